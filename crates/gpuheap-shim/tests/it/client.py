"""The driver by ctypes, as Numba and many scripts use it. Prints what it is told, never an address."""

from __future__ import annotations

import ctypes
import sys


def main() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    size, pointer = ctypes.c_size_t, ctypes.c_uint64

    def call(name: str, *arguments: object) -> None:
        print(name, getattr(driver, name)(*arguments))

    call("cuInit", 0)
    context, address, free, total = pointer(), pointer(), size(), size()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), size(5 << 20))
    call("cuMemsetD8_v2", address, ctypes.c_ubyte(7), size(5 << 20))
    found = ctypes.create_string_buffer(4)
    call("cuMemcpyDtoH_v2", found, address, size(4))
    print(found.raw)
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    print(total.value - free.value)
    charged = getattr(driver, "gpuheap_shim_bytes", None)
    if charged is not None:
        charged.restype = ctypes.c_uint64
        print(charged(0, 0), file=sys.stderr)
    call("cuMemFree_v2", address)
    if charged is not None:
        print(charged(0, 0), file=sys.stderr)
    try:
        driver.cuNoSuchFunction  # noqa: B018
    except AttributeError:
        print("no such function")


main()
