"""PyTorch: its caches, on CUDA and ROCm, and where the same call makes sense on XPU and MPS."""

from __future__ import annotations

import gc
import sys
from typing import Any

from gpuheap._frameworks.step import NotApplicable, Step
from gpuheap._objects import is_instance

__all__ = [
    "allocator_steps",
    "cache_steps",
    "capturing",
    "compiled_steps",
    "cuda_devices",
    "graph_steps",
    "live_graphs",
    "synchronize",
]


def cuda_devices(torch: Any) -> list[int]:
    """The devices on which this process has a context. Asking any other one would make a context there."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    devices = range(int(cuda.device_count()))
    return [device for device in devices if has_context is None or has_context(device)]


def _xpu(torch: Any) -> Any | None:
    xpu = getattr(torch, "xpu", None)
    return xpu if xpu is not None and getattr(xpu, "is_initialized", bool)() else None


def _mps(torch: Any) -> Any | None:
    mps = getattr(torch, "mps", None)
    backend = getattr(getattr(torch, "backends", None), "mps", None)
    if mps is None or backend is None or not backend.is_available():
        return None
    return mps if mps.driver_allocated_memory() else None


def capturing(torch: Any) -> bool:
    """Whether the current stream records a CUDA graph: then nothing may wait, allocate or free."""
    return bool(cuda_devices(torch)) and bool(torch.cuda.is_current_stream_capturing())


def synchronize(torch: Any) -> list[str]:
    """Waits until all work that was given to the devices is done; returns what was waited for."""
    waited: list[str] = []
    for device in cuda_devices(torch):
        torch.cuda.synchronize(device)
        waited.append(f"cuda:{device}")
    xpu, mps = _xpu(torch), _mps(torch)
    if xpu is not None:
        xpu.synchronize()
        waited.append("xpu")
    if mps is not None:
        mps.synchronize()
        waited.append("mps")
    return waited


def live_graphs(torch: Any) -> int:
    """How many captured CUDA graphs are alive."""
    graph = getattr(getattr(torch, "cuda", None), "CUDAGraph", None)
    return 0 if graph is None else sum(is_instance(value, graph) for value in gc.get_objects())


def _need_cuda(torch: Any) -> list[int]:
    devices = cuda_devices(torch)
    if not devices:
        raise NotApplicable("CUDA is not in use")
    return devices


def cache_steps(torch: Any) -> list[Step]:
    """PyTorch's caches before the allocator: what they hold is allocated memory."""

    def autocast() -> str:
        torch.clear_autocast_cache()
        return ""

    def cublas() -> str:
        _need_cuda(torch)
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is None:
            raise NotApplicable("this version of PyTorch has no call for it")
        graphs = live_graphs(torch)
        if graphs:
            # A captured graph writes to the workspace by its address, also after it has been freed.
            raise NotApplicable(f"{graphs} captured CUDA {'graph' if graphs == 1 else 'graphs'} may use them")
        clear()
        return ""

    def cufft() -> str:
        plans = 0
        for device in _need_cuda(torch):
            cache = torch.backends.cuda.cufft_plan_cache[device]
            plans += int(cache.size)
            cache.clear()
        if not plans:
            raise NotApplicable("no plans")
        return f"{plans} {'plan' if plans == 1 else 'plans'}"

    def ipc() -> str:
        _need_cuda(torch)
        torch.cuda.ipc_collect()
        return ""

    def pinned() -> str:
        _need_cuda(torch)
        empty = getattr(torch._C, "_host_emptyCache", None)
        if empty is None:
            raise NotApplicable("this version of PyTorch has no call for it")
        before = pinned_bytes(torch)
        empty()
        after = pinned_bytes(torch)
        if before is None or after is None:
            return ""
        from gpuheap._bytes import bytes_text  # only for this remark

        return f"{bytes_text(before - after)} of host memory"

    return [
        Step("autocast cache", autocast),
        Step("cuBLAS workspaces", cublas),
        Step("cuFFT plans", cufft),
        Step("memory of ended peers (IPC)", ipc),
        Step("pinned host memory", pinned),
    ]


def pinned_bytes(torch: Any) -> int | None:
    """Host memory that PyTorch's allocator for pinned memory has taken; None if this version does not count it."""
    stats = getattr(torch.cuda, "host_memory_stats", None)
    if stats is None:
        return None
    counters = stats()
    for name in ("allocated_bytes.current", "reserved_bytes.current"):
        if name in counters:
            return int(counters[name])
    return None


def allocator_steps(torch: Any) -> list[Step]:
    """The caching allocators: free memory inside them goes back to the driver."""

    def allocator() -> str:
        emptied: list[str] = []
        if cuda_devices(torch):
            torch.cuda.empty_cache()
            emptied.append("cuda")
        xpu, mps = _xpu(torch), _mps(torch)
        if xpu is not None:
            xpu.empty_cache()
            emptied.append("xpu")
        if mps is not None:
            mps.empty_cache()
            emptied.append("mps")
        if not emptied:
            raise NotApplicable("no accelerator is in use")
        return "" if emptied == ["cuda"] else ", ".join(emptied)

    return [Step("PyTorch's allocator", allocator)]


def compiled_steps(torch: Any) -> list[Step]:
    """On request: what `torch.compile` has made. It is made again when it is needed again."""

    def compiled() -> str:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is None:
            raise NotApplicable("nothing was compiled")
        dynamo.reset()
        reset = getattr(getattr(torch, "compiler", None), "reset", None)
        if reset is not None:
            reset()
        return ""

    return [Step("compiled code", compiled)]


def graph_steps(torch: Any) -> list[Step]:
    """On request: the graphs that `torch.compile` has captured. Graphs that the program captured stay its own."""

    def graphs() -> str:
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is not None:
            trees.reset_cudagraph_trees()
        left = live_graphs(torch)
        if left:
            graphs = "1 captured graph is" if left == 1 else f"{left} captured graphs are"
            return f"{graphs} held by the program; drop what holds them to free their pools"
        if trees is None:
            raise NotApplicable("no graph was captured")
        return ""

    return [Step("CUDA graphs of compiled code", graphs)]
