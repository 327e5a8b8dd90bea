"""What PyTorch has for the end of a step, made by hand, in a program that goes past its budget."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable

hooks: list[Callable[..., None]] = []
emptied: list[int] = []
torch, optim, optimizer = types.ModuleType("torch"), types.ModuleType("torch.optim"), types.ModuleType("optimizer")
torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
    empty_cache=lambda: emptied.append(1), is_current_stream_capturing=lambda: False
)
optimizer.register_optimizer_step_post_hook = hooks.append  # type: ignore[attr-defined]
sys.modules |= {"torch": torch, "torch.optim": optim, "torch.optim.optimizer": optimizer}

driver = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_uint64(), ctypes.c_uint64()
driver.cuInit(0)
driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
driver.cuCtxSetCurrent(context)
names = set(globals())
for where in ("within", "beyond"):
    for _ in range(2):
        assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(24 << 20)) == 0
    # Python does what it was asked for between two of its instructions.
    for _ in range(1000):
        pass
    print(f"{where}: hooks {len(hooks)}")
for _ in range(8):
    hooks[0](None, (), {})
print(f"steps: 8, emptied {len(emptied)}")
print("nothing left in __main__:", set(globals()) - names <= {"where", "_", "names"})
