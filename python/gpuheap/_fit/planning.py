"""From a `make()` to a plan: traces in a process of its own, then the planner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuheap._fit.plan import Plan
from gpuheap.errors import Error

__all__ = ["plan_for", "source_of", "traces_of"]

# Levers whose effect only a trace with them can tell.
_TRACED = ("autocast", "parameters", "compile", "quantize", "prune", "sparse24", "inference_mode")
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


def plan_for(make: Callable[[], Any] | str, options: Mapping[str, Any]) -> Plan:
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
    options.setdefault("timelines", True)
    variants = _variants(options)
    sizes = "accumulate" not in options["without"] and "all" not in options["without"]
    sizes = sizes or options["gpus"] > 1 or any(lever.get("lever") == "accumulate" for lever in options["set"])
    # Tracing leaves torch without its devices, so that it is done in a process that does nothing else.
    with Isolate(env={"CUDA_VISIBLE_DEVICES": ""}) as own:
        texts = own.call(traces_of, make, options.get("batch"), variants, sizes, source_of(make))
    if not hasattr(_core, "fit_plan"):
        raise Error("this build of gpuheap cannot plan", "Install it anew: `pip install .` in its folder.")
    found = json.loads(_core.fit_plan(texts, json.dumps(options)))
    return Plan(found)


def _check(options: Mapping[str, Any]) -> None:
    """Before anything is traced, which takes its time.

    Raises:
        TypeError: an option is of another type.
        ValueError: a number is out of its range.
        Error: an option has a name that there is not.
    """
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


def _variants(options: Mapping[str, Any]) -> list[list[dict[str, Any]]]:
    """What is traced: the program as it is, with the levers that it must have, and with those it may have."""
    must = [dict(lever) for lever in options["set"] if lever.get("lever") in _TRACED]
    variants: list[list[dict[str, Any]]] = [[]]
    if must:
        variants.append(must)
    for name in ("autocast", "parameters"):
        if name in options["allow"]:
            variants.append([{"lever": name, "dtype": "bfloat16"}])
    return variants


def traces_of(
    make: Callable[[], Any] | str,
    batch: int | None,
    variants: Sequence[Sequence[Mapping[str, Any]]],
    sizes: bool,
    source: str | None,
) -> list[str]:
    """Runs in the process that traces: the traces, as JSON. Two batch sizes tell about all others."""
    from gpuheap._fit.errors import TraceError
    from gpuheap._fit.load import load
    from gpuheap._fit.trace import trace

    function = load(make) if isinstance(make, str) else make
    texts: list[str] = []
    for levers in variants:
        whole = trace(function, batch=batch, levers=levers, source=source)
        texts.append(json.dumps(whole))
        size = int(whole["batch"]["size"])
        if sizes and size >= 2:
            try:
                texts.append(json.dumps(trace(function, batch=size // 2, levers=levers, source=source)))
            except TraceError:
                # A batch that cannot be halved is no reason to give no answer.
                continue
    return texts


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
