"""What programs do with the numbers of tensors beside computing: print them, hand them to NumPy, copy them deeply.

Tensors that are traced have no numbers, and PyTorch's fake ones refuse all of this. Here they answer as
:mod:`gpuheap._fit.values` does where a program asks for one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["reading", "scripting"]


@contextmanager
def reading(read: Callable[[Any], Any]) -> Iterator[None]:
    """Let programs read fake tensors; ``read`` gives a real tensor on the host in place of one."""
    tensor: Any = torch.Tensor
    names = ("__deepcopy__", "__format__", "numpy", "tolist")
    before = {name: getattr(tensor, name) for name in names}

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        # Parameters have a method of their own, which is right for fake ones; of other tensors the storage is copied,
        # which only real ones have.
        if not isinstance(self, FakeTensor) or not self.is_leaf or id(self) in memo:
            return before["__deepcopy__"](self, memo)
        with torch.no_grad():
            copied = self.detach().clone(memory_format=torch.preserve_format)
        memo[id(self)] = copied
        return copied.requires_grad_(self.requires_grad)

    def formatted(self: Any, spec: str) -> Any:
        if isinstance(self, FakeTensor) and self.dim() == 0:
            return format(self.item(), spec)
        return before["__format__"](self, spec)

    def numpy(self: Any, *, force: bool = False) -> Any:
        if not isinstance(self, FakeTensor):
            return before["numpy"](self, force=force)
        if not force and self.device.type != "cpu":
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
        if not force and self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        real = read(self)
        with torch._C._DisableTorchDispatch():
            return before["numpy"](real)

    def listed(self: Any) -> Any:
        if not isinstance(self, FakeTensor):
            return before["tolist"](self)
        real = read(self)
        with torch._C._DisableTorchDispatch():
            return before["tolist"](real)

    for name, function in zip(names, (deepcopy, formatted, numpy, listed), strict=True):
        setattr(tensor, name, function)
    try:
        yield
    finally:
        for name in names:
            # What `Tensor` only inherits is found where it was.
            if before[name] is getattr(torch._C.TensorBase, name, None):
                delattr(tensor, name)
            else:
                setattr(tensor, name, before[name])


@contextmanager
def scripting() -> Iterator[None]:
    """Run what is given to TorchScript as it is: its compiler asks a driver for kernels, and reads no fake tensors."""
    jit: Any = torch.jit
    core: Any = torch._C
    script, fuses, fuses_on_gpu = jit.script, core._jit_texpr_fuser_enabled(), core._jit_can_fuse_on_gpu()

    def same(made: Any = None, *_: Any, **__: Any) -> Any:
        return made if made is not None else (lambda function: function)

    jit.script = same
    # Functions that were scripted before, when the program's file was imported, are interpreted.
    core._jit_set_texpr_fuser_enabled(False)
    core._jit_override_can_fuse_on_gpu(False)
    try:
        yield
    finally:
        jit.script = script
        core._jit_set_texpr_fuser_enabled(fuses)
        core._jit_override_can_fuse_on_gpu(fuses_on_gpu)
