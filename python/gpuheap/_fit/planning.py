"""From a `make()` to a plan: traces in a process of its own, then the planner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from gpuheap._fit.plan import Plan
from gpuheap.errors import Error

__all__ = ["plan_for", "source_of", "trace_of"]

_DEVICE = "H200"
_LEVERS = (
    "accumulate", "allocator", "autocast", "parameters", "optimizer", "optimizer_state", "offload_optimizer", "loss",
    "checkpoint", "selective_checkpoint", "offload_activations", "compile", "shard", "quantize", "prune", "sparse24",
    "inference_mode", "spill",
)  # fmt: skip
_NAMES = {
    "without": (*_LEVERS, "8bit", "4bit", "all"),
    "allow": ("accumulate", "autocast", "parameters", "optimizer_state", "8bit", "4bit"),
}


def plan_for(make: Callable[[], Any] | str, options: Mapping[str, Any], *, timeout: float | None = None) -> Plan:
    """Trace and plan; see :func:`gpuheap.fit` for the options.

    Raises:
        Error: the program cannot be traced, or an option makes no sense.
    """
    from gpuheap import _core
    from gpuheap.isolate import Isolate

    if not callable(make) and not isinstance(make, str):
        raise TypeError(f"`make` is {make!r}, expected a function that returns the program, or its name as text")
    options = {name: value for name, value in options.items() if value is not None}
    _check(options)
    options.setdefault("device", _device_here() or _DEVICE)
    if not hasattr(_core, "fit_traced"):
        raise Error("this build of gpuheap cannot plan", "Install it anew: `pip install .` in its folder.")
    options.setdefault("timelines", True)
    # Tracing leaves torch without its devices, so that it is done in a process that does nothing else.
    with Isolate(env={"CUDA_VISIBLE_DEVICES": ""}, timeout=timeout) as own:

        def traced(levers: str, batch: int | None) -> str:
            return own.call(trace_of, make, batch, levers, source_of(make))

        # Which traces there have to be is said there: of the program as it is, at half its batch, with the plan.
        return Plan(json.loads(_core.fit_traced(traced, json.dumps(options))))


def _check(options: Mapping[str, Any]) -> None:
    """Before anything is traced, which takes its time.

    Raises:
        TypeError: an option is of another type.
        ValueError: a number is out of its range.
        Error: an option has a name that there is not.
    """
    if options.get("budget_bytes") == 0:
        raise ValueError("`budget` is 0: nothing fits into no memory; leave it out for all of the device")
    for name, most in (("gpus", 4096), ("batch", 1 << 32)):
        value = options.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"`{name}` is {value!r}, expected a whole number")
        if not 1 <= value <= most:
            raise ValueError(f"`{name}` is {value}, expected 1 to {most}")
    for option, names in _NAMES.items():
        unknown = next((name for name in options[option] if name not in names), None)
        if unknown is not None:
            raise Error(f"`{option}` has `{unknown}`, which is none of {', '.join(names)}")
    for lever in options["set"]:
        if lever.get("lever") not in _LEVERS:
            raise Error(f"`must` has the lever `{lever.get('lever')}`, which is none of {', '.join(_LEVERS)}")


def trace_of(make: Callable[[], Any] | str, batch: int | None, levers: str, source: str | None) -> str:
    """Runs in the process that traces: the trace as JSON, with levers, a list as JSON, applied before."""
    from gpuheap._fit.load import load
    from gpuheap._fit.trace import trace

    function = load(make) if isinstance(make, str) else make
    return json.dumps(trace(function, batch=batch, levers=json.loads(levers), source=source))


def source_of(make: Callable[[], Any] | str) -> str | None:
    """Where `make` can be found again, as `file.py:function`; None for a function within another or of a notebook."""
    if isinstance(make, str):
        return make
    code = getattr(make, "__code__", None)
    name = getattr(make, "__qualname__", "")
    if code is None or not name.isidentifier() or not str(code.co_filename).endswith(".py"):
        return None
    return f"{code.co_filename}:{name}"


def _device_here() -> str | None:
    """The type of this machine's GPU, by the driver's library, without touching CUDA."""
    from gpuheap._nvml import devices

    found = devices()
    if not found or not found[0].name:
        return None
    return found[0].name.removeprefix("NVIDIA ").removeprefix("GeForce ")
