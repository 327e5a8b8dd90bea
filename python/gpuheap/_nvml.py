"""The driver's own account of the GPUs, by NVML: who holds how much of what. One place for the whole package.

The library comes with the driver and is found when it is first asked; without one everything here is None. It is opened
once for the life of the process: opening it again and again is what makes monitors slow. After a fork the child opens
it anew. `GPUHEAP_NVML` names another library than the driver's.

Inside of `gpuheap run --budget` the library that is found by its name is gpuheap's own, in front of the driver's.
There `total`, `free` and `used` of a device are the run's: the budget, what is left of it (never more than what is free
on the device), and the rest; contexts are not part of it. What each process holds, names, versions and parts are the
driver's account as ever, so that processes may hold more than `used`, and others' memory is among it where they left
less free than the run has left. A library that `GPUHEAP_NVML` names by its path is the one that is asked.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Device", "Nvml", "Process", "devices", "driver_version", "nvml", "own_pids", "processes"]

_SUCCESS = 0
_NOT_SUPPORTED = 3
_INSUFFICIENT_SIZE = 7
_FUNCTION_NOT_FOUND = 13
_NOT_AVAILABLE = (1 << 64) - 1
_NAME_BYTES = 96
_MOST_PROCESSES = 1 << 16
_MOST_DEVICES = 1 << 10


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. Figures are bytes; None where the driver does not tell, as for a GPU that is cut into parts (MIG)."""

    index: int
    """Its number for NVML, which is not CUDA's where that is told to hide or to sort devices."""
    uuid: str | None
    """`GPU-` and what CUDA calls its UUID, too."""
    name: str | None
    """`NVIDIA H200`."""
    total: int | None
    free: int | None
    used: int | None
    mig: bool
    """Whether it is cut into parts."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that computes on a GPU."""

    pid: int
    """Its number where the driver runs: outside of a container."""
    bytes: int | None
    """What it holds, its context included; None if the driver does not tell."""
    name: str | None
    """The program's name, if this process may read it and has the same numbers for processes."""
    own: bool
    """Whether it is this process."""


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Memory2(ctypes.Structure):
    # Tells reserved memory, which the driver keeps for itself, apart from used memory.
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Process1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)]


class _Process2(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


# Newest first: the function, and what it fills in.
_PROCESS_CALLS: tuple[tuple[str, type[ctypes.Structure]], ...] = (
    ("nvmlDeviceGetComputeRunningProcesses_v3", _Process2),
    ("nvmlDeviceGetComputeRunningProcesses_v2", _Process2),
    ("nvmlDeviceGetComputeRunningProcesses", _Process1),
)


class Nvml:
    """One opened library. All threads may ask it at any time."""

    def __init__(self, path: str | None = None) -> None:
        """Opens nothing yet. `path` is another library than the driver's."""
        self._path = path
        self._library: Any = None
        self._opened_by: int | None = None
        self._lock = threading.Lock()

    def devices(self) -> list[Device] | None:
        """All GPUs of the machine; None without a driver."""
        with self._lock:
            library = self._open()
            count = ctypes.c_uint()
            if library is None or _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count)) != _SUCCESS:
                return None
            return [_device(library, index) for index in range(min(count.value, _MOST_DEVICES))]

    def processes(self, device: Device | int) -> list[Process] | None:
        """Who computes on a GPU; None where the driver does not tell, or the GPU is lost."""
        index = device if isinstance(device, int) else device.index
        with self._lock:
            library = self._open()
            handle = None if library is None else _handle(library, index)
            return None if handle is None else _processes(library, handle)

    def driver_version(self) -> str | None:
        """`580.65.06`."""
        with self._lock:
            library = self._open()
            return None if library is None else _text(library, "nvmlSystemGetDriverVersion")

    def _open(self) -> Any:
        if self._opened_by == os.getpid():
            return self._library
        # A handle from before a fork is the parent's.
        self._opened_by, self._library = os.getpid(), None
        for name in [self._path] if self._path else _names():
            try:
                library: Any = ctypes.CDLL(name)
            except OSError:
                continue
            if _call(library, "nvmlInit_v2") == _SUCCESS:
                self._library = library
                break
        return self._library

    def _after_fork(self) -> None:
        # Another thread may have held it in the parent, and there is none here to let it go.
        self._lock = threading.Lock()


def _names() -> list[str]:
    if sys.platform == "win32":
        root = os.environ.get("SYSTEMROOT", r"C:\Windows")
        files = os.environ.get("PROGRAMFILES", r"C:\Program Files")
        return [rf"{root}\System32\nvml.dll", rf"{files}\NVIDIA Corporation\NVSMI\nvml.dll"]
    return ["libnvidia-ml.so.1", "libnvidia-ml.so"]


def _call(library: Any, name: str, *arguments: Any) -> int:
    try:
        function = getattr(library, name)
    except AttributeError:
        return _FUNCTION_NOT_FOUND
    return int(function(*arguments))


def _handle(library: Any, index: int) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    code = _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    return handle if code == _SUCCESS else None


def _text(library: Any, name: str, *before: Any) -> str | None:
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    if _call(library, name, *before, buffer, ctypes.c_uint(_NAME_BYTES)) != _SUCCESS:
        return None
    return buffer.value.decode(errors="replace")


def _device(library: Any, index: int) -> Device:
    handle = _handle(library, index)
    if handle is None:
        return Device(index, None, None, None, None, None, False)
    uuid, name = _text(library, "nvmlDeviceGetUUID", handle), _text(library, "nvmlDeviceGetName", handle)
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    asked = _call(library, "nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    # Of a GPU in parts, the figures of the whole are nobody's.
    mig = asked == _SUCCESS and current.value != 0
    total, free, used = (None, None, None) if mig else _memory(library, handle)
    return Device(index, uuid, name, total, free, used, mig)


def _memory(library: Any, handle: ctypes.c_void_p) -> tuple[int | None, int | None, int | None]:
    newer = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << 24)
    if _call(library, "nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(newer)) == _SUCCESS:
        return newer.total, newer.free, newer.used
    older = _Memory()
    if _call(library, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(older)) == _SUCCESS:
        return older.total, older.free, older.used
    return None, None, None


def _processes(library: Any, handle: ctypes.c_void_p) -> list[Process] | None:
    for name, kind in _PROCESS_CALLS:
        size, code = 16, _FUNCTION_NOT_FOUND
        while size <= _MOST_PROCESSES:
            rows = (kind * size)()
            count = ctypes.c_uint(size)
            code = _call(library, name, handle, ctypes.byref(count), rows)
            if code == _SUCCESS:
                return _named(rows[: min(count.value, size)])
            if code != _INSUFFICIENT_SIZE:
                break
            # More may come until the next call.
            size = max(count.value, size) * 2
        if code not in (_FUNCTION_NOT_FOUND, _NOT_SUPPORTED):
            return None
    return None


def _named(rows: Sequence[Any]) -> list[Process]:
    own = own_pids()
    ours = any(row.pid in own for row in rows)
    return [
        Process(
            row.pid,
            None if row.bytes == _NOT_AVAILABLE else row.bytes,
            # A number of another namespace may be another program's here.
            _program(row.pid) if ours else None,
            row.pid in own,
        )
        for row in rows
    ]


def _program(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() or None
    except OSError:
        return None


def own_pids() -> frozenset[int]:
    """The numbers of this process, in each namespace that is visible: in a container only those inside it.

    If none of them is among the processes of a GPU that this process uses, the driver numbers them in another
    namespace, and what is whose cannot be told.
    """
    found = {os.getpid()}
    try:
        with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
            line = next((line for line in file if line.startswith("NSpid:")), "")
        found.update(int(number) for number in line.split()[1:])
    except (OSError, ValueError):
        pass
    return frozenset(found)


_shared = Nvml(os.environ.get("GPUHEAP_NVML") or None)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _shared._after_fork())


def nvml() -> Nvml:
    """The library that all of the package shares."""
    return _shared


def devices() -> list[Device] | None:
    """All GPUs of the machine; None without a driver."""
    return _shared.devices()


def processes(device: Device | int) -> list[Process] | None:
    """Who computes on a GPU; None where the driver does not tell."""
    return _shared.processes(device)


def driver_version() -> str | None:
    """The version of the driver; None without one."""
    return _shared.driver_version()
