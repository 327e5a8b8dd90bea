"""Tensors that say that they are on a GPU and have no memory, through PyTorch's real dispatcher and autograd engine.

PyTorch's fake tensors carry the dispatch keys of CUDA, so that everything that PyTorch decides by device (autocast,
backends of layers, fused dropout, lists of tensors in optimizers) is decided as on a GPU. Two things keep the real
autograd engine from running over them where there is no GPU:

* It asks the accelerator of the process for its streams, and CUDA fails without a driver. A device type that is
  PyTorch's own for such purposes (`PrivateUse1`), registered without devices, is asked first and has none.
* It wants a stream for gradients on a GPU. So where it is the engine that asks for the device of a fake tensor, and
  not Python code or an operator, the answer is `meta`, which has no streams. Gradients of fake tensors are not compared
  with the device that is expected of them.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from gpuheap._fit.known import follow
from gpuheap._fit.recorder import Recorder

__all__ = ["FakeCuda", "prepare_engine"]

_DEVICE_OF = torch.ops.prim.device.default
_META = torch.device("meta")
_CUDA = torch.device("cuda:0")
_NAME = "gpuheapfit"

Intercept = Callable[["FakeCuda", Any, Sequence[Any], Mapping[str, Any]], Any]


def prepare_engine() -> None:
    """Lets autograd run without a driver. It cannot be undone, so it is for processes that only trace.

    Raises:
        RuntimeError: another device type was registered in this process, such as that of another vendor.
    """
    if torch._C._get_privateuse1_backend_name() == _NAME:
        return
    if torch._C._get_accelerator().type not in ("cuda", "cpu") and torch.accelerator.is_available():
        raise RuntimeError("the process uses an accelerator that is not CUDA")
    if not torch.cuda._is_compiled() or torch._C._cuda_getDeviceCount() > 0:
        # There is no accelerator to ask, or one that answers.
        return
    from torch.utils import backend_registration

    class Hook(torch._C._acc.PrivateUse1Hooks):  # type: ignore[misc]
        def is_available(self) -> bool:
            return False

        def has_primary_context(self, _device: int) -> bool:
            return False

        def is_built(self) -> bool:
            return True

    class Guard(torch._C._acc.DeviceGuard):  # type: ignore[misc]
        def type_(self) -> Any:
            return torch._C._autograd.DeviceType.PrivateUse1

    class Module:
        def is_initialized(self) -> bool:
            return False

        def is_available(self) -> bool:
            return False

        def current_device(self) -> int:
            return 0

        def _is_in_bad_fork(self) -> bool:
            return False

        def manual_seed_all(self, seed: int) -> None:
            del seed

        def device_count(self) -> int:
            return 0

    backend_registration._setup_privateuseone_for_python_backend(
        _NAME, backend_module=Module(), hook=Hook(), device_guard=Guard()
    )


class FakeCuda(FakeTensorMode):  # type: ignore[misc]
    """Runs every operator on fake tensors and tells a recorder of storages on the GPU that come and go."""

    cache_enabled: bool

    def __init__(self, recorder: Recorder, intercept: Intercept | None = None) -> None:
        """``intercept`` is asked first what an operator's result is; `NotImplemented` leaves it to PyTorch."""
        super().__init__(allow_fallback_kernels=False, allow_non_fake_inputs=True)
        self._recorder = recorder
        self._intercept = intercept
        self._depth = 0
        self.engine_code: CodeType | None = None
        """The function that calls the engine: from there, too, it is the engine that asks."""
        self.before_op: Callable[[], None] | None = None
        self.on_results: Callable[[Any, Sequence[Any], Mapping[str, Any], list[Any]], list[int]] = self._add
        self._main = threading.get_ident()

    @property
    def avoid_device_init(self) -> bool:
        """Never touch a driver, whatever `torch.cuda.is_available` says."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else a wrapper stands between the engine and `__torch_dispatch__`, and takes time.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator."""
        if func is _DEVICE_OF:
            if self._engine_asks(sys._getframe().f_back):
                return _META
            return self.dispatch(func, types, args, kwargs or {})
        if self._depth:
            return self.dispatch(func, types, args, kwargs or {})
        if any(not issubclass(kind, FakeTensor) and kind not in _PLAIN for kind in types):
            # Tensors that are spread over ranks, or hold others in another way, come back with what they hold.
            return NotImplemented
        self._depth = 1
        kwargs = kwargs or {}
        if (
            kwargs.get("device") is not None
            and kwargs["device"].type == "meta"
            and self._engine_asks(sys._getframe().f_back)
        ):
            # A node of the graph makes a tensor like one whose device it was told to be this.
            kwargs = {**kwargs, "device": _CUDA}
        try:
            if self.before_op is not None:
                self.before_op()
            out = NotImplemented if self._intercept is None else self._intercept(self, func, args, kwargs)
            if out is NotImplemented:
                out = self.dispatch(func, types, args, kwargs)
            if out is not NotImplemented:
                self._record(func, args, kwargs, out)
                follow(func, args, kwargs, out)
            return out
        finally:
            self._depth = 0

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """PyTorch's fake result of an operator."""
        if getattr(func, "overloadpacket", None) is not _aten.set_:
            return super().dispatch(func, types, args, kwargs or {})
        # PyTorch remembers results by what they were asked with, and would keep the storages alive for good.
        before, self.cache_enabled = self.cache_enabled, False
        try:
            return super().dispatch(func, types, args, kwargs or {})
        finally:
            self.cache_enabled = before

    def __deepcopy__(self, _memo: Any) -> FakeCuda:
        # Copies of modules copy what their tensors hold, and the copies belong to the same mode.
        return self

    def _engine_asks(self, caller: Any) -> bool:
        return caller is None or caller.f_code is self.engine_code

    def plain(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An operator's result as PyTorch's fake tensors give it, for interceptors."""
        with self:
            return func(*args, **kwargs)

    def _add(self, _func: Any, _args: Sequence[Any], _kwargs: Mapping[str, Any], results: list[Any]) -> list[int]:
        for result in results:
            self._recorder.storages.add(result, self._recorder.new_class, self._recorder.module)
        return []

    def _record(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        results = _on_gpu(out)
        inputs = _on_gpu((args, kwargs) if kwargs else args)
        if not results and not inputs:
            return
        recorder = self._recorder
        storages = recorder.storages
        new = len(storages.bytes)
        held = self.on_results(func, args, kwargs, results)
        if len(storages.bytes) == new and (func.is_view or func in _ALIASES):
            return
        changed = _changed(func, args, kwargs)
        if changed:
            for tensor in changed:
                tensor.__dict__.pop("_gpuheap_numbers", None)
            known = {id(tensor) for tensor in results}
            results = [*results, *(tensor for tensor in changed if id(tensor) not in known)]
        outputs = [storages.find(tensor) for tensor in results]
        sources = [storages.find(tensor) for tensor in inputs]
        cost = recorder.costs.of(func, args, kwargs, out, inputs, results)
        thread = 0 if threading.get_ident() == self._main else 1
        recorder.op(func, thread, cost, _once(sources), _once(outputs))
        for number in reversed(held):
            storages.end_scratch(number)


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_writes_of: dict[Any, tuple[tuple[int, str], ...]] = {}


def _changed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensors among an operator's arguments that it writes to."""
    writes = _writes_of.get(func)
    if writes is None:
        arguments = enumerate(func._schema.arguments)
        found = [(at, one.name) for at, one in arguments if one.alias_info is not None and one.alias_info.is_write]
        writes = _writes_of[func] = tuple(found)
    changed: list[Any] = []
    for at, name in writes:
        changed += _on_gpu(args[at] if at < len(args) else kwargs.get(name))
    return changed


_aten = torch.ops.aten
_ALIASES = frozenset(
    (
        _aten._unsafe_view.default,
        _aten.detach.default,
        _aten.t.default,
        _aten._reshape_alias.default,
        _aten.lift_fresh.default,
    )
)
"""Operators that move nothing, though they are not marked as views."""


def _on_gpu(value: Any) -> list[Any]:
    if isinstance(value, FakeTensor):
        return [value] if value.fake_device.type == "cuda" else []
    if isinstance(value, (tuple, list)):
        found: list[Any] = []
        for one in value:
            if isinstance(one, FakeTensor):
                if one.fake_device.type == "cuda":
                    found.append(one)
            elif isinstance(one, (tuple, list, dict)):
                found += _on_gpu(one)
        return found
    if isinstance(value, dict):
        return _on_gpu(list(value.values()))
    return [] if value is None else [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, FakeTensor)]


def _once(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(number for number in numbers if number >= 0))
