"""`torch.cuda` as it is on a machine with one GPU, for as long as a program is traced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gpuheap._fit.streams import Streams

__all__ = ["Gpu", "pretending"]

_MISSING = object()


@dataclass(frozen=True)
class Gpu:
    """What programs and PyTorch ask of a GPU. The default is an H200."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 150_121_545_728
    processors: int = 132


def _answers(gpu: Gpu, streams: Streams) -> dict[Any, dict[str, Any]]:
    import torch
    import torch._subclasses.fake_tensor as fake_tensor

    properties = SimpleNamespace(
        name=gpu.name,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.processors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        L2_cache_size=50 << 20,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        is_integrated=False,
        is_multi_gpu_board=False,
        gcnArchName="",
        uuid="GPU-00000000-0000-0000-0000-000000000000",
    )

    def always(value: Any) -> Callable[..., Any]:
        # A function of its own for each name: the compiler, which 8-bit optimizers load, has rules by function.
        return lambda *_, **__: value

    def rng_state(*_: Any, **__: Any) -> Any:
        return torch.zeros(16, dtype=torch.uint8)

    cuda: dict[str, Any] = {
        "_initialized": True,
        "_lazy_init": always(None),
        "init": always(None),
        "is_initialized": always(True),
        "is_available": always(True),
        "device_count": always(1),
        "current_device": always(0),
        "set_device": always(None),
        "_exchange_device": always(0),
        "_maybe_exchange_device": always(0),
        "get_device_name": always(gpu.name),
        "get_device_capability": always(gpu.capability),
        "get_device_properties": always(properties),
        "is_bf16_supported": always(gpu.capability[0] >= 8),
        "get_arch_list": always([f"sm_{gpu.capability[0]}{gpu.capability[1]}"]),
        "mem_get_info": always((gpu.memory_bytes, gpu.memory_bytes)),
        "memory_stats": always({}),
        "synchronize": always(None),
        "empty_cache": always(None),
        "ipc_collect": always(None),
        "set_per_process_memory_fraction": always(None),
        "is_current_stream_capturing": always(False),
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "stream": streams.on,
        "StreamContext": streams.on,
        "Stream": streams.Stream,
        "Event": streams.Event,
        "manual_seed": always(None),
        "manual_seed_all": always(None),
        "seed": always(None),
        "seed_all": always(None),
        "initial_seed": always(0),
        "get_rng_state": rng_state,
        "get_rng_state_all": lambda: [rng_state()],
        "set_rng_state": always(None),
        "set_rng_state_all": always(None),
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        cuda[name] = always(0)
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_accumulated_memory_stats"):
        cuda[name] = always(None)
    generator = torch.Generator

    class Generator(generator):  # type: ignore[misc, valid-type]
        """One on the host in place of one on the GPU: fake tensors have no numbers."""

        def __new__(cls, device: Any = "cpu") -> Any:
            del device
            return generator.__new__(cls, "cpu")

    answers: dict[Any, dict[str, Any]] = {
        torch.cuda: cuda,
        torch.cuda.random: {name: cuda[name] for name in cuda if "rng" in name or "seed" in name},
        torch.cuda.memory: {name: cuda[name] for name in ("memory_stats", "empty_cache", "mem_get_info")},
        torch.cuda.nvtx: {"range_push": always(0), "range_pop": always(0), "mark": always(None)},
        torch: {"Generator": Generator},
        fake_tensor: {"init_gpu_context": always(None)},
    }
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        answers[accelerator] = {
            "is_available": always(True),
            "device_count": always(1),
            "current_accelerator": always(torch.device("cuda")),
            "current_device_index": always(0),
            "current_stream": streams.current_stream,
            "set_stream": streams.set_stream,
            "set_device_index": always(None),
            "synchronize": always(None),
            "empty_cache": always(None),
        }
    hugging = sys.modules.get("transformers.utils.import_utils")
    if hugging is not None:
        # It keeps masks that it would leave out in the real run if it sees fake tensors.
        answers[hugging] = {"is_fake_tensor": always(False)}
    return answers


@contextmanager
def pretending(gpu: Gpu, streams: Streams) -> Iterator[Callable[[], None]]:
    """Answer for a GPU that is not there. Yields a function that does the same for modules imported since."""
    changed: dict[tuple[int, str], tuple[Any, str, Any]] = {}

    def put() -> None:
        for place, answers in _answers(gpu, streams).items():
            for name, value in answers.items():
                if (id(place), name) not in changed and hasattr(place, name):
                    changed[id(place), name] = (place, name, vars(place).get(name, _MISSING))
                    setattr(place, name, value)

    put()
    try:
        yield put
    finally:
        for place, name, before in changed.values():
            if before is _MISSING:
                delattr(place, name)
            else:
                setattr(place, name, before)
