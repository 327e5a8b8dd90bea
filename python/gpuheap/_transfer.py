"""What crosses to another process and back: functions of any kind, values, exceptions, tensors as CPU copies.

Functions that the other process cannot import (of ``__main__``, of a notebook, lambdas) travel by cloudpickle if it is
installed, else as their code with the globals that it names.
"""

from __future__ import annotations

import builtins
import importlib
import io
import marshal
import pickle
import sys
import traceback
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from gpuheap.errors import Error

_CLOUDPICKLE = "install `cloudpickle`, or move it into a module of its own"


class TransferError(Error):
    """Something cannot be sent to the other process, or not be made again there."""


def dumps(value: object) -> bytes:
    """Pickle; tensors and arrays of other devices become CPU copies."""
    out = io.BytesIO()
    _pickler(out).dump(value)
    return out.getvalue()


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Make again what :func:`dumps` wrote."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "__mp_main__" and module not in sys.modules:
            module = "__main__"
        if module == "__main__" and not _has(sys.modules[module], name):
            load = getattr(sys.modules[module], "_gpuheap_load_main", None)
            if load is not None:
                load()
        try:
            return super().find_class(module, name)
        except AttributeError as error:
            if module != "__main__":
                raise
            message = f"`{name}` of the main program is not known in the other process"
            raise TransferError(message, _CLOUDPICKLE) from error


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name.partition(".")[0])


def _pickler(out: io.BytesIO) -> pickle.Pickler:
    try:
        import cloudpickle
    except ImportError:
        return _Plain(out, protocol=5)

    class Cloud(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
        def reducer_override(self, obj: Any) -> Any:
            reduced = _reduce_array(obj)
            return super().reducer_override(obj) if reduced is NotImplemented else reduced

    return Cloud(out, protocol=5)  # type: ignore[no-any-return, unused-ignore]


class _Plain(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, FunctionType) and not _is_importable(obj):
            return _reduce_function(obj)
        if isinstance(obj, ModuleType):
            return importlib.import_module, (obj.__name__,)
        return _reduce_array(obj)


# Functions.


def _is_importable(function: FunctionType) -> bool:
    """Whether the other process gets the same function by its name."""
    module = sys.modules.get(function.__module__)
    if module is None or function.__module__ in ("__main__", "__mp_main__"):
        return False
    found: object = module
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _reduce_function(function: FunctionType) -> tuple[Any, ...]:
    cells = None
    if function.__closure__ is not None:
        try:
            cells = tuple(cell.cell_contents for cell in function.__closure__)
        except ValueError as error:
            name = function.__qualname__
            raise TransferError(f"`{name}` uses a variable that has no value yet", _CLOUDPICKLE) from error
    names = _global_names(function.__code__)
    known = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    # The function itself comes back to its globals after it is made: it may call itself.
    state = (known, cells, function.__defaults__, function.__kwdefaults__, function.__dict__)
    made = (marshal.dumps(function.__code__), function.__name__, function.__qualname__, len(cells or ()))
    return _make_function, made, state, None, None, _fill_function


def _global_names(code: CodeType) -> set[str]:
    """Names that the code, or code within it, may look up among the globals."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _global_names(constant)
    return names


def _make_function(code: bytes, name: str, qualified: str, cells: int) -> FunctionType:
    scope: dict[str, Any] = {"__builtins__": builtins, "__name__": "__main__"}
    closure = tuple(_Cell() for _ in range(cells)) or None
    function = FunctionType(marshal.loads(code), scope, name, None, closure)
    function.__qualname__ = qualified
    return function


def _Cell() -> Any:
    """An empty cell of a closure."""
    value = None

    def inside() -> Any:
        return value

    assert inside.__closure__ is not None
    cell = inside.__closure__[0]
    del cell.cell_contents
    return cell


def _fill_function(function: FunctionType, state: tuple[Any, ...]) -> None:
    known, cells, defaults, keyword_defaults, attributes = state
    function.__globals__.update(known)
    for cell, value in zip(function.__closure__ or (), cells or (), strict=True):
        cell.cell_contents = value
    function.__defaults__ = defaults
    function.__kwdefaults__ = keyword_defaults
    function.__dict__.update(attributes)


# Tensors and arrays.


def _reduce_array(obj: Any) -> Any:
    """A way to make the array again on the CPU, or `NotImplemented` for everything else."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Tensor):
        return _reduce_tensor(torch, obj)
    module = type(obj).__module__
    if module.startswith("cupy") and type(obj).__name__ == "ndarray":
        return obj.get().__reduce_ex__(5)
    if module.startswith("jax") and hasattr(obj, "addressable_shards"):
        return _as_numpy(obj)
    if module.startswith("tensorflow"):
        return _reduce_tensorflow(obj)
    return NotImplemented


def _reduce_tensorflow(obj: Any) -> Any:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not hasattr(tensorflow, "Variable"):
        return NotImplemented
    # A tensor of a function that is being traced has no value.
    if isinstance(obj, (tensorflow.Tensor, tensorflow.Variable)) and hasattr(obj, "numpy"):
        # As a tensor, it would start TensorFlow over there, which takes most of every GPU.
        return _as_numpy(obj.numpy())
    if isinstance(obj, (tensorflow.RaggedTensor, tensorflow.SparseTensor, tensorflow.IndexedSlices)):
        # These are made of tensors, and broken if they are made of NumPy arrays.
        return pickle.loads, (pickle.dumps(obj, protocol=5),)
    return NotImplemented


def _as_numpy(array: Any) -> Any:
    numpy = importlib.import_module("numpy")
    return numpy.asarray(array).__reduce_ex__(5)


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        # Subclasses and sparse tensors know best themselves; those of other devices have to leave them.
        return NotImplemented if tensor.device.type in ("cpu", "meta") else (_identity, (tensor.detach().cpu(),))
    if tensor.device.type == "meta" or tensor.is_quantized:
        return NotImplemented
    copy = tensor.detach().cpu()
    if copy.untyped_storage().nbytes() > copy.numel() * copy.element_size():
        # A view: what it is cut out of stays behind.
        copy = copy.clone()
    out = io.BytesIO()
    torch.save(copy, out)
    # The graph of a computed tensor cannot cross.
    kind = "parameter" if isinstance(tensor, torch.nn.Parameter) else "leaf" if tensor.is_leaf else "computed"
    return _load_tensor, (out.getbuffer().tobytes(), kind, tensor.requires_grad and tensor.is_leaf)


def _load_tensor(data: bytes, kind: str, requires_grad: bool) -> Any:
    torch = importlib.import_module("torch")
    # It comes from a pickle that was made by this program, and is as trusted.
    tensor = torch.load(io.BytesIO(data), weights_only=False)
    if kind == "parameter":
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _identity(value: Any) -> Any:
    return value


# Exceptions.


def describe(error: BaseException) -> tuple[bytes | None, str, str]:
    """An exception, if it can be made again in another process; its type and message; its traceback as text."""
    trace = error.__traceback__
    # Our own frames say nothing.
    while trace is not None and trace.tb_next is not None and _is_own(trace.tb_frame):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    line = "".join(traceback.format_exception_only(type(error), error)).strip()
    try:
        data = dumps(error)
        # Many exceptions can be pickled but not made again: their arguments are not those of their class.
        again = loads(data)
        return (data if type(again) is type(error) else None), line, text
    except Exception:
        return None, line, text


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__package__")).partition(".")[0] == "gpuheap"


def call_and_dump(work: Callable[[], Any]) -> bytes:
    """Pickle what the work returns; say so if that cannot be done."""
    value = work()
    try:
        return dumps(value)
    except Exception as error:
        what = type(value).__name__
        hint = "return plain values, arrays or tensors"
        raise TransferError(f"The result (`{what}`) cannot be sent back\n  cause: {error}", hint) from error
