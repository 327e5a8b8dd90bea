"""A PyTorch that is none: what `gpuheap.record` needs of it, with a snapshot of a real program."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuheap

FAKE = """
import pickle, gzip, sys, types

class OutOfMemoryError(RuntimeError):
    pass

class _Memory:
    started = []
    def _record_memory_history(self, enabled="all", clear_history=False, **options):
        self.started.append((enabled, options))
    def _snapshot(self):
        with gzip.open({example!r}) as file:
            return pickle.load(file)

class _Cuda(types.ModuleType):
    OutOfMemoryError = OutOfMemoryError
    memory = _Memory()
    def is_available(self): return True
    def is_initialized(self): return True
    def device_count(self): return 1
    def memory_reserved(self, device): return 1 << 30
    def mem_get_info(self, device): return (2 << 30, 4 << 30)
    def get_device_name(self, device): return "Card"
    def get_device_properties(self, device): return types.SimpleNamespace(uuid="of-card")

class Storage:
    def __init__(self, address): self.address = address
    def data_ptr(self): return self.address

class Device:
    index = 0

strided = "strided"

class Tensor:
    is_cuda, layout, device, grad = True, strided, Device(), None
    def __init__(self, address): self.address = address
    def untyped_storage(self): return Storage(self.address)

class Module:
    def __init__(self, **parameters):
        self.__dict__["_modules"] = {{}}
        self.parameters = parameters
    def named_parameters(self, prefix=""):
        return [(f"{{prefix}}.{{name}}", tensor) for name, tensor in self.parameters.items()]
    def named_buffers(self, prefix=""):
        return []
    def named_modules(self, prefix=""):
        return [(prefix, self)]

class Optimizer:
    def __init__(self, state):
        self.state, self.param_groups = state, []

observers, marks = [], []
cuda = _Cuda("torch.cuda")
forward_hooks = []

def register_module_forward_hook(hook):
    forward_hooks.append(hook)
    return types.SimpleNamespace(remove=forward_hooks.clear)

nn = types.SimpleNamespace(
    Module=Module,
    modules=types.SimpleNamespace(
        module=types.SimpleNamespace(register_module_forward_hook=register_module_forward_hook)
    ),
)
compiler = types.SimpleNamespace(is_compiling=lambda: False)
version = types.SimpleNamespace(cuda="13.0")
optim = types.SimpleNamespace(Optimizer=Optimizer)
def _cuda_memoryStats(device):
    return {{"allocation": {{"all": {{"allocated": 0}}}}}}

_C = types.SimpleNamespace(
    _cuda_attach_out_of_memory_observer=observers.append, _cuda_memoryStats=_cuda_memoryStats
)

class _Range:
    def __init__(self, name): marks.append(name)
    def __enter__(self): return self
    def __exit__(self, *_): return None

autograd = types.SimpleNamespace(profiler=types.SimpleNamespace(record_function=_Range))
__version__ = "0.0"
"""


def installed(monkeypatch: pytest.MonkeyPatch, example: Path) -> Iterator[Any]:
    """What the fixtures of a test do: `torch` is this module, and no recording is under way after the test."""
    module = types.ModuleType("torch")
    exec(FAKE.format(example=str(example)), module.__dict__)
    monkeypatch.setitem(sys.modules, "torch", module)
    active = gpuheap.record.__globals__["_active"]
    monkeypatch.setattr(active, "observed", False)
    yield module
    assert active.recording is None
