"""NVML by ctypes, with the structures and the calls of pynvml. Prints what it is told."""

from __future__ import annotations

import ctypes


class Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Memory2(ctypes.Structure):
    """`nvmlMemory_v2_t`."""

    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def check(code: int) -> None:
    """As pynvml: each error is an exception."""
    if code != 0:
        raise RuntimeError(f"NVML: {code}")


def main() -> None:
    library = ctypes.CDLL("libnvidia-ml.so.1")
    check(library.nvmlInit_v2())
    count = ctypes.c_uint()
    check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
    for index in range(count.value):
        device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        check(library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device)))
        check(library.nvmlDeviceGetName(device, name, ctypes.c_uint(96)))
        first, second = Memory(), Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
        check(library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(first)))
        check(library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(second)))
        print(index, name.value.decode(), first.total, first.free, first.used, end=" | ")
        print(second.total, second.reserved, second.free, second.used)
    check(library.nvmlShutdown())


main()
