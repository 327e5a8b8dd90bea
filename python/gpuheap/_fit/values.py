"""Operators whose result depends on numbers that fake tensors do not have.

Where a program asks for a number, it gets the one of the usual run: no infinite gradients, a mask without padding.
Where the size of a tensor depends on numbers, it gets the largest that it can be. Both are named in the trace.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from gpuheap._fit.known import numbers
from gpuheap._fit.sparse import SPARSE

if TYPE_CHECKING:
    from gpuheap._fit.fake import FakeCuda
    from gpuheap._fit.recorder import Recorder

__all__ = ["Values", "constants"]

_aten = torch.ops.aten
_SCALAR = _aten._local_scalar_dense.default


_EXPECTED = frozenset(("all", "equal", "allclose", "_is_all_true"))
"""Operators that ask whether all is as it should be, as distributions do of their parameters: it is."""

_KNOWN = 1 << 20
"""Tensors on the host with at most so many elements keep their numbers, if they begin with known ones."""

_FACTORIES = frozenset(
    (
        _aten.arange.default,
        _aten.arange.start,
        _aten.arange.start_step,
        _aten.linspace.default,
        _aten.full.default,
        _aten.zeros.default,
        _aten.ones.default,
        _aten.eye.default,
        _aten.scalar_tensor.default,
    )
)


@contextmanager
def constants() -> Iterator[None]:
    """Let small tensors on the host keep their numbers: programs compute sizes and schedules with them."""
    from torch._subclasses import fake_tensor

    before = fake_tensor.CONSTANT_NUMEL_LIMIT
    fake_tensor.CONSTANT_NUMEL_LIMIT = _KNOWN
    try:
        yield
    finally:
        fake_tensor.CONSTANT_NUMEL_LIMIT = before


class Values:
    """Answers for a program that looks at numbers."""

    def __init__(self, recorder: Recorder) -> None:
        """Name what is asked in the recorder's trace."""
        self._recorder = recorder
        self.module_name: Callable[[], str] = lambda: "the program"
        # What made the tensors with one element that a program may look at, by storage.
        self._made_by: dict[int, str] = {}
        self._rules: dict[Any, Callable[[FakeCuda, Sequence[Any], Mapping[str, Any]], Any]] = {
            _SCALAR: self._scalar,
            _aten.is_pinned.default: lambda *_: False,
            _aten._pin_memory.default: self._same,
            _aten.nonzero.default: self._nonzero,
            _aten.masked_select.default: self._masked_select,
            _aten.index.Tensor: self._index,
            _aten._unique2.default: self._unique,
            _aten.unique_dim.default: self._unique,
            _aten.equal.default: self._equal,
            _aten.repeat_interleave.Tensor: self._repeat,
            _aten._grouped_mm.default: self._grouped,
            **SPARSE,
        }

    def intercept(self, mode: FakeCuda, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator, or `NotImplemented` if it needs no numbers."""
        if func in _FACTORIES:
            return _constant(mode, func, args, kwargs)
        rule = self._rules.get(func)
        if rule is not None and args and getattr(args[0], "constant", None) is not None:
            # Its numbers are known.
            return NotImplemented
        return NotImplemented if rule is None else rule(mode, args, kwargs)

    def made(self, func: Any, storage: int) -> None:
        """An operator has made a tensor with one element."""
        self._made_by[storage] = func._schema.name

    def read(self, tensor: Any) -> Any:
        """A real tensor on the host in place of one whose numbers a program reads all at once."""
        known = numbers(tensor)
        if known is not None:
            return known
        where = self._where()
        whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
        value = 1 if whole else 0
        bound = None if whole else 0
        self._recorder.unknown_at(f"numbers that the program reads, all taken as {value}", where, bound)
        with torch._C._DisableTorchDispatch():
            return torch.full(tuple(tensor.shape), value, dtype=tensor.dtype)

    def padded(self, size: int) -> None:
        """Sequences were packed whose lengths nobody knows."""
        self._recorder.unknown_at("lengths of sequences, taken as the longest", self._where(), size)

    def _same(self, _mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        return args[0]

    def _scalar(self, mode: FakeCuda, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        tensor = args[0]
        known = numbers(tensor)
        if known is not None:
            return known.item()
        if _asked_by_scaler():
            return 0.0
        maker = self._made_by.get(self._recorder.storages.find(tensor), "")
        where = self._where()
        if tensor.dtype == torch.bool:
            value: Any = maker.rpartition("::")[2] in _EXPECTED
            self._recorder.unknown_at(f"a branch on a number ({maker or 'bool'}), taken as {value}", where, 0)
            return value
        value = 0.0 if tensor.is_floating_point() else 1
        if tensor.is_floating_point():
            # Logged losses; branches on them are rare and say so here.
            self._recorder.unknown_at("a number that the program reads, taken as 0", where, 0)
        else:
            self._recorder.unknown_at("a whole number that the program reads, taken as 1", where, None)
        return value

    def _nonzero(self, mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        tensor = args[0]
        return self._bounded(mode, "aten::nonzero", (tensor.numel(), tensor.dim()), tensor, torch.int64)

    def _masked_select(self, mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return self._bounded(mode, "aten::masked_select", (shape.numel(),), args[0], args[0].dtype)

    def _unique(self, mode: FakeCuda, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Any:
        tensor = args[0]
        values = self._bounded(mode, "aten::unique", (tensor.numel(),), tensor, tensor.dtype)
        with mode:
            inverse = torch.empty(tensor.shape, dtype=torch.int64, device=tensor.device)
            counts = torch.empty((tensor.numel(),), dtype=torch.int64, device=tensor.device)
        return values, inverse, counts

    def _repeat(self, mode: FakeCuda, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if kwargs.get("output_size") is not None:
            return NotImplemented
        return self._bounded(mode, "aten::repeat_interleave", (args[0].numel(),), args[0], torch.int64)

    def _equal(self, _mode: FakeCuda, _args: Sequence[Any], _kwargs: Mapping[str, Any]) -> bool:
        self._recorder.unknown_at("a comparison of tensors (aten::equal), taken as True", self._where(), 0)
        return True

    def _grouped(self, mode: FakeCuda, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Products in other types than bf16 run one after the other on CUDA; fake tensors have only bf16."""
        first, second = args[0], args[1]
        if first.dtype == torch.bfloat16 or first.device.type != "cuda":
            return NotImplemented
        offsets: Any = args[2] if len(args) > 2 else kwargs.get("offs")
        shape: tuple[int, ...]
        if first.dim() == 2 and second.dim() == 2:
            shape = (offsets.size(0), first.size(0), second.size(1))
        elif first.dim() == 3 and second.dim() == 3:
            shape = (first.size(0), first.size(1), second.size(2))
        else:
            shape = (first.size(-2), second.size(-1))
        with mode:
            return torch.empty(shape, dtype=kwargs.get("out_dtype") or first.dtype, device=first.device)

    def _index(self, mode: FakeCuda, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        indices = args[1]
        if not any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in indices):
            return NotImplemented
        whole: list[Any] = []
        for one in indices:
            if one is None or one.dtype not in (torch.bool, torch.uint8):
                whole.append(one)
                continue
            shape = (one.numel(),)
            whole += [self._bounded(mode, "an index of booleans", shape, one, torch.int64) for _ in range(one.dim())]
        return mode.plain(_aten.index.Tensor, (args[0], whole), kwargs)

    def _bounded(self, mode: FakeCuda, what: str, shape: Sequence[int], like: Any, dtype: Any) -> Any:
        with mode:
            made = torch.empty(tuple(shape), dtype=dtype, device=like.device)
        bound = made.untyped_storage().nbytes()
        self._recorder.unknown_at(
            f"a size that depends on numbers ({what}), taken as the largest", self._where(), bound
        )
        return made

    def _where(self) -> str:
        line = _own_line()
        module = self.module_name()
        return f"{module} ({line})" if line else module


def _constant(mode: FakeCuda, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    device = kwargs.get("device")
    if (device is not None and torch.device(device).type != "cpu") or kwargs.get("pin_memory"):
        return NotImplemented
    if func not in _ALWAYS_SMALL and _count(args) > _KNOWN:
        return NotImplemented
    with torch._C._DisableTorchDispatch():
        real = func(*args, **kwargs)
        if real.numel() > _KNOWN:
            return NotImplemented
    return mode.fake_tensor_converter.from_real_tensor(mode, real, make_constant=True)


_ALWAYS_SMALL = frozenset((_aten.scalar_tensor.default,))


def _count(args: Sequence[Any]) -> float:
    """The most elements that a factory may make of these arguments."""
    if args and isinstance(args[0], (list, tuple)):
        count = 1
        for size in args[0]:
            count *= size
        return count
    return max((abs(one) for one in args if isinstance(one, (int, float))), default=0)


def _own_line() -> str:
    """The innermost line outside of torch and of this package."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not any(part in file for part in ("/torch/", "/numpy/", "/gpuheap/_fit/")) and not file.startswith("<"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _asked_by_scaler() -> bool:
    frame: Any = sys._getframe(1)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith("/torch/amp/grad_scaler.py"):
            return True
        frame = frame.f_back
    return False
