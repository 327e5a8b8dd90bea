"""Parameters and buffers of unexpected type, size or place, and those that nothing trains."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding
from gpuheap._doctor.subject import Item

__all__ = ["dtypes", "gradients_held", "large_buffers", "places", "unused"]

_HALF = frozenset(("bfloat16", "float16"))
_WIDE_SHARE = 0.05
_UNUSED_SHARE = 0.01
_SMALL = 1 << 20
_NAMED = 4


def _names(items: Sequence[Item]) -> str:
    shown = ", ".join(f"`{item.name}`" for item in sorted(items, key=lambda item: -item.bytes)[:_NAMED])
    return shown if len(items) <= _NAMED else f"{shown} and {len(items) - _NAMED} more"


def _sum(items: Sequence[Item]) -> int:
    # What two names share is there once.
    return sum({item.keys or (item.identity,): item.bytes for item in items}.values())


def _elements(items: Sequence[Item]) -> int:
    return sum(item.bytes // max(1, item.element_size) for item in items)


def dtypes(items: Sequence[Item]) -> list[Finding]:
    """float64 anywhere, and float32 where most of the weights are bf16 or fp16."""
    parameters = [item for item in items if not item.buffer]
    double = [item for item in parameters if item.dtype in ("float64", "complex128")]
    found = []
    if double:
        found.append(
            Finding(
                kind="float64_parameters",
                title=f"{len(double)} of {len(parameters)} parameters are float64: twice the memory of float32",
                bytes=_sum(double),
                evidence=(_names(double), "gradients and optimizer state take the type of their parameter"),
                remedy="Convert them with `.float()` before the optimizer is made: saves "
                f"{bytes_text(_sum(double) // 2)} "
                "of weights. NumPy arrays are float64 by default: `torch.from_numpy(a).float()`.",
                confidence="medium" if len(double) == len(parameters) else "high",
            )
        )
    half = [item for item in parameters if item.dtype in _HALF]
    single = [item for item in parameters if item.dtype == "float32" and len(item.shape) >= 2]
    # Small trained parts beside frozen weights are kept in float32 on purpose, and so are norms (one dimension).
    trains_half = any(item.requires_grad for item in half)
    wide = [item for item in single if trains_half or not item.requires_grad]
    total = _sum(parameters)
    if half and 2 * _elements(half) > _elements(parameters) and _sum(wide) >= _WIDE_SHARE * total:
        found.append(
            Finding(
                kind="mixed_parameter_types",
                title=f"{len(wide)} weights are float32 where most are {half[0].dtype}",
                bytes=_sum(wide),
                evidence=(
                    _names(wide),
                    f"{bytes_text(_sum(half))} of {bytes_text(total)} are in half precision",
                ),
                remedy=f"If that is not meant so, convert them: `.to(torch.{half[0].dtype})` saves "
                f"{bytes_text(_sum(wide) // 2)}.",
                confidence="medium",
            )
        )
    return found


def large_buffers(items: Sequence[Item]) -> list[Finding]:
    """Buffers that take more than the parameters do."""
    parameters = _sum([item for item in items if not item.buffer])
    # Quantized weights are buffers by nature.
    buffers = [item for item in items if item.buffer and item.dtype not in ("int8", "uint8", "qint8", "quint8")]
    taken = _sum(buffers)
    if not parameters or taken <= parameters or taken < _SMALL:
        return []
    largest = max(buffers, key=lambda item: item.bytes)
    saved = "it is saved with the model" if largest.persistent else "it is not saved with the model"
    return [
        Finding(
            kind="large_buffers",
            title=f"buffers take more memory ({bytes_text(taken)}) than parameters ({bytes_text(parameters)})",
            bytes=taken,
            evidence=(
                _names(buffers),
                f"the largest, `{largest.name}`, is {list(largest.shape)} of {largest.dtype} and takes "
                f"{bytes_text(largest.bytes)}; {saved}",
            ),
            remedy="Compute what is cheap (masks, position tables) when it is needed, or keep it smaller: a boolean "
            "mask "
            "takes a quarter of a float32 one. Keep data sets and caches out of the model.",
            confidence="medium",
        )
    ]


def places(items: Sequence[Item]) -> list[Finding]:
    """Parameters that were left on the host while most of the model is on a device."""
    real = [item for item in items if item.device != "meta"]
    away = [item for item in real if item.device != "cpu"]
    host = [item for item in real if item.device == "cpu" and not item.buffer]
    if not host or _sum(away) <= _sum(host):
        return []
    return [
        Finding(
            kind="parameters_on_host",
            title=f"{len(host)} parameters are on the CPU, the others on {away[0].device}",
            bytes=_sum(host),
            evidence=(_names(host),),
            remedy="Call `model.to(device)` once, before the optimizer is made; a tensor in a plain list or dict is "
            "not "
            "moved with the module: use `nn.ParameterList` or `register_buffer`.",
            confidence="medium",
        )
    ]


def unused(items: Sequence[Item], with_gradient: Collection[int], state_bytes: int = 0) -> list[Finding]:
    """Parameters that never got a gradient although backward passes ran."""
    trained = [item for item in items if not item.buffer and item.requires_grad]
    idle = [item for item in trained if item.identity not in with_gradient]
    if not idle or len(idle) == len(trained) or _sum(idle) < _UNUSED_SHARE * _sum(trained):
        return []
    return [
        Finding(
            kind="unused_parameters",
            title=f"{len(idle)} of {len(trained)} parameters never got a gradient",
            bytes=_sum(idle) + state_bytes,
            evidence=(_names(idle), "backward passes ran in the steps, and none reached them"),
            remedy="Remove them if the model does not use them. If they are meant to be frozen, say so with "
            "`requires_grad_(False)` and leave them out of the optimizer.",
            confidence="medium",
        )
    ]


def gradients_held(gradient_bytes: int, names: Sequence[str], trained: bool) -> list[Finding]:
    """Gradients that lie there although nothing is trained."""
    if not gradient_bytes or trained:
        return []
    shown = ", ".join(f"`{name}`" for name in names[:_NAMED])
    return [
        Finding(
            kind="gradients_held",
            title=f"gradients of {len(names)} parameters are kept although no step trains",
            bytes=gradient_bytes,
            evidence=(shown, "no backward pass and no optimizer step was made in the steps"),
            remedy="Drop them after training: `model.zero_grad()` (or `p.grad = None`); for inference also "
            "`model.requires_grad_(False)`.",
        )
    ]
