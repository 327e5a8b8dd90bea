"""Gives memory back, in the order that works, and says what each step gave: `gpuheap.release()`."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

from gpuheap._bytes import bytes_text
from gpuheap._device import Memory, measure
from gpuheap._exceptions import drop_stored, handled_bytes
from gpuheap._frameworks import cupy as cupy_
from gpuheap._frameworks import jax as jax_
from gpuheap._frameworks import keras as keras_
from gpuheap._frameworks import notebook as notebook_
from gpuheap._frameworks import tensorflow as tensorflow_
from gpuheap._frameworks import torch as torch_
from gpuheap._frameworks.step import NotApplicable, Step
from gpuheap._held import Large, by_class
from gpuheap._release_table import Held, Released, StepResult
from gpuheap._tensors import loaded_torch
from gpuheap.errors import Error
from gpuheap.holders import holders

__all__ = ["Held", "Released", "StepResult", "release"]

_REST = "not visible to Python"
_LARGEST = 5
_HOLDERS_EACH = 2


def release(
    *,
    compiled: bool = False,
    graphs: bool = False,
    notebook: bool = False,
    jax_buffers: bool = False,
    tracebacks: bool = True,
    largest: int = _LARGEST,
    budget: float = 2.0,
) -> Released:
    """Gives back device memory that the program no longer uses, and says how much each step gave.

    The order matters: finish the work of the streams, drop stored exceptions (they keep the local variables of calls
    that failed), collect reference cycles, empty the frameworks' caches, and only then the allocators, which can give
    back whole segments alone. What a variable of the program still refers to stays; the result names the largest such
    tensors and who holds them.

    Call it after an `except` block, not inside: the exception that is being handled keeps its frames.

    Frameworks are looked at only if the program has loaded them: PyTorch (CUDA, ROCm; XPU and MPS where they have the
    same call), CuPy (pools, plans), JAX (compiled functions), Keras (its session), TensorFlow (statistics).

    Args:
        compiled: also drop what `torch.compile` has made; it compiles again when it is needed.
        graphs: also drop the CUDA graphs that compiled code has captured, with their pools. Graphs that the program
            captured itself stay.
        notebook: also forget the notebook's outputs (`Out`, `_`, `_1`, …).
        jax_buffers: also delete every live JAX array. **The program cannot use any of them afterwards.**
        tracebacks: clear the local variables in the tracebacks of all exceptions that are no longer handled, wherever
            they are stored (the exceptions stay, with their line numbers; a debugger sees no locals any more). If
            false, only `sys.last_exc` and its like are dropped.
        largest: of how many of the largest tensors to tell the holders; 0 for none, which is the fastest.
        budget: how long to look for holders, in seconds.

    Returns:
        The steps with the bytes that each gave back, what is still held by class, and the largest tensors that no class
        explains. The steps' device bytes add up to the change of the devices' free memory.

    Raises:
        gpuheap.Error: the current stream is capturing a CUDA graph. Waiting or freeing would break the capture.

    Steps that fail are in the result; none keeps the others from being taken.

    Example:
        >>> import gpuheap
        >>> released = gpuheap.release()
        >>> sum(step.device_bytes for step in released.steps) == released.device_bytes
        True
    """
    torch = loaded_torch()
    if torch is not None and torch_.capturing(torch):
        raise Error(
            "Failed to release memory: the current stream is capturing a CUDA graph",
            hint="call `gpuheap.release()` before or after the capture",
        )
    pinned_by_error = handled_bytes()
    before, problem = _measure(None)
    now = before
    results: list[StepResult] = []
    plan = _plan(compiled=compiled, graphs=graphs, notebook=notebook, jax_buffers=jax_buffers, tracebacks=tracebacks)
    for step in plan:
        result, now = _take(step, now)
        results.append(result)
    results += _not_asked(compiled=compiled, graphs=graphs, notebook=notebook, jax_buffers=jax_buffers)
    notes: list[str] = [] if problem is None else [problem]
    if pinned_by_error:
        notes.append(
            f"an exception that is being handled keeps {bytes_text(pinned_by_error)} in its frames: "
            "call `gpuheap.release()` after the `except` block"
        )
    classes, held = _still_held(now, largest, budget)
    return Released(tuple(results), before, now, classes, held, tuple(notes))


def _measure(previous: Memory | None) -> tuple[Memory, str | None]:
    try:
        return measure(), None
    except Exception as error:  # after a fault of the device every call fails
        empty = Memory(None, None, None, 0, 0)
        return previous or empty, f"the device could not be asked: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    try:
        return (str(error).strip().splitlines() or [""])[0]
    except Exception:
        return ""


def _take(step: Step, before: Memory) -> tuple[StepResult, Memory]:
    started = time.monotonic()
    try:
        status, remark = "done", step.run()
    except NotApplicable as reason:
        status, remark = "skipped", str(reason)
    except Exception as error:
        status, remark = "failed", f"{type(error).__name__}: {_first_line(error)}"
    after, problem = _measure(before)
    if problem is not None and status == "done":
        status, remark = "failed", problem
    result = StepResult(
        name=step.name,
        status=status,
        remark=remark,
        device_bytes=(after.free or 0) - (before.free or 0),
        reserved_bytes=before.reserved - after.reserved,
        allocated_bytes=before.allocated - after.allocated,
        seconds=time.monotonic() - started,
    )
    return result, after


def _plan(*, compiled: bool, graphs: bool, notebook: bool, jax_buffers: bool, tracebacks: bool) -> Iterator[Step]:
    torch, cupy = loaded_torch(), cupy_.loaded_cupy()
    jax, tensorflow = jax_.loaded_jax(), tensorflow_.loaded_tensorflow()
    yield Step("work of the streams", _finish)
    yield Step("stored exceptions", lambda: _drop_exceptions(tracebacks))
    if notebook:
        yield from notebook_.steps()
    # What drops references comes before the collection of cycles, and that before the allocators.
    if torch is not None and graphs:
        yield from torch_.graph_steps(torch)
    if torch is not None and compiled:
        yield from torch_.compiled_steps(torch)
    yield from keras_.steps()
    if tensorflow is not None:
        yield from tensorflow_.steps(tensorflow)
    if jax is not None:
        yield from jax_.steps(jax, buffers=jax_buffers)
    yield Step("reference cycles", _collect)
    if torch is not None:
        yield from torch_.cache_steps(torch)
    if cupy is not None:
        yield from cupy_.steps(cupy)
    if torch is not None:
        yield from torch_.allocator_steps(torch)


def _not_asked(*, compiled: bool, graphs: bool, notebook: bool, jax_buffers: bool) -> list[StepResult]:
    torch = loaded_torch()
    steps = []
    if torch is not None and not compiled and "torch._dynamo" in sys.modules:
        steps.append(("compiled code", "`compiled=True` drops it"))
    if torch is not None and not graphs and "torch._inductor.cudagraph_trees" in sys.modules:
        steps.append(("CUDA graphs of compiled code", "`graphs=True` drops them"))
    if not notebook and "IPython" in sys.modules:
        steps.append(("outputs of the notebook", "`notebook=True` forgets them"))
    if jax_.in_use() and not jax_buffers:
        steps.append(("JAX's live arrays", "`jax_buffers=True` deletes them"))
    return [StepResult(name, "skipped", remark, 0, 0, 0, 0.0) for name, remark in steps]


def _finish() -> str:
    waited: list[str] = []
    torch, cupy, jax = loaded_torch(), cupy_.loaded_cupy(), jax_.loaded_jax()
    if torch is not None:
        waited += torch_.synchronize(torch)
    if cupy is not None and cupy_.pool_bytes(cupy)[0]:
        cupy.cuda.runtime.deviceSynchronize()
        waited.append("cupy")
    if jax is not None and jax_.in_use() and hasattr(jax, "effects_barrier"):
        jax.effects_barrier()
        waited.append("jax")
    if not waited:
        raise NotApplicable("no accelerator is in use")
    return ", ".join(waited)


def _drop_exceptions(everywhere: bool) -> str:
    errors, frames = drop_stored(everywhere=everywhere)
    if not errors:
        raise NotApplicable("none")
    what = "exception" if errors == 1 else "exceptions"
    return f"{errors} {what}, {frames} {'frame' if frames == 1 else 'frames'} cleared"


def _collect() -> str:
    collected = 0
    # What a finalizer releases may be a cycle, too.
    for _ in range(3):
        found = gc.collect()
        collected += found
        if not found:
            break
    return f"{collected} {'object' if collected == 1 else 'objects'}"


def _still_held(now: Memory, largest: int, budget: float) -> tuple[dict[str, int], tuple[Held, ...]]:
    torch = loaded_torch()
    on_device = now.reserved > 0 or now.source is not None
    classes: dict[str, int] = {}
    unnamed: list[Large] = []
    if torch is not None and hasattr(torch, "nn"):
        classes, unnamed = by_class(torch, "accelerator" if on_device else "cpu")
        rest = now.by_framework.get("PyTorch", 0) - sum(classes.values())
        if on_device and rest > 0:
            classes[_REST] = rest
    others = {name: taken for name, taken in now.by_framework.items() if name != "PyTorch"}
    if not on_device and jax_.loaded_jax() is not None:
        others["JAX"] = jax_.host_bytes()
    for name, taken in others.items():
        if taken:
            classes[name] = taken
    deadline = time.monotonic() + budget
    return classes, tuple(_with_holders(one, deadline) for one in unnamed[:largest])


def _with_holders(one: Large, deadline: float) -> Held:
    paths: tuple[str, ...] = ()
    left = deadline - time.monotonic()
    if left > 0 and one.address:
        try:
            paths = tuple(holder.path for holder in holders(one.address, limit=_HOLDERS_EACH, budget=left))
        except Exception:  # a release has done its work by now, and must say so
            paths = ()
    return Held(one.text, one.bytes, one.group, paths[:_HOLDERS_EACH])
