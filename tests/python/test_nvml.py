"""The driver's account, on a library that is made here and can be told to fail."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuheap import _nvml
from gpuheap._nvml import Nvml

GIB = 1 << 30

SOURCE = r"""
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long total, free, used; } memory1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;
typedef struct { unsigned pid; unsigned long long bytes; } process1;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } process2;

/* What the tests turn: how often it was opened, which faults it has. */
int opened, init_code, memory_code, handle_code, mig, process_code, more_each_call;
unsigned process_count = 2, shift;
unsigned long long first_bytes = 3ull << 30;

int nvmlInit_v2(void) { opened++; return init_code; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index > 1) return 2;
    *device = (void *)(unsigned long)(index + 1);
    return index == 1 ? handle_code : 0;
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    strncpy(text, device == (void *)1 ? "GPU-aa" : "GPU-bb", size); return 0;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "Make-believe 9000", size); return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "580.65.06", size); return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    *current = mig; *pending = 0; return mig < 0 ? 3 : 0;
}
#ifdef NEW
int nvmlDeviceGetMemoryInfo_v2(void *device, memory2 *memory) {
    if (memory->version != (sizeof(memory2) | 2u << 24)) return 25;
    memory->total = 80ull << 30; memory->reserved = 1ull << 30; memory->free = 59ull << 30; memory->used = 20ull << 30;
    return memory_code;
}
#endif
int nvmlDeviceGetMemoryInfo(void *device, memory1 *memory) {
    memory->total = 80ull << 30; memory->free = 59ull << 30; memory->used = 21ull << 30;
    return memory_code;
}
#define FILL(name, type) \
int name(void *device, unsigned *count, type *rows) { \
    if (process_code) return process_code; \
    unsigned room = *count; \
    *count = process_count; \
    if (room < process_count) { process_count += more_each_call; return 7; } \
    for (unsigned i = 0; i < process_count; i++) { \
        rows[i].pid = i == 0 ? (unsigned)getpid() + shift : 4000000 + i; \
        rows[i].bytes = i == 0 ? first_bytes : 1ull << 30; \
    } \
    return 0; \
}
#ifdef NEW
FILL(nvmlDeviceGetComputeRunningProcesses_v3, process2)
#endif
#ifdef MIDDLE
FILL(nvmlDeviceGetComputeRunningProcesses_v2, process2)
#endif
FILL(nvmlDeviceGetComputeRunningProcesses, process1)
"""


def build(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    source, library = folder / "nvml.c", folder / "libnvml.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", *flags, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def library(tmp_path: Path) -> Path:
    # Of its own for each test: what is turned stays turned in a library that is loaded.
    return build(tmp_path, "-DNEW", "-DMIDDLE")


def turn(library: Path, **values: int) -> None:
    loaded = ctypes.CDLL(str(library))
    for name, value in values.items():
        kind: Any = ctypes.c_ulonglong if name == "first_bytes" else ctypes.c_int
        kind.in_dll(loaded, name).value = value


def opened(library: Path) -> int:
    return ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "opened").value


def test_devices_and_processes(library: Path) -> None:
    nvml = Nvml(str(library))
    first, second = nvml.devices() or []
    assert (first.index, first.uuid, first.name) == (0, "GPU-aa", "Make-believe 9000")
    assert (first.total, first.free, first.used, first.mig) == (80 * GIB, 59 * GIB, 20 * GIB, False)
    assert second.uuid == "GPU-bb"
    processes = nvml.processes(first)
    assert processes is not None
    own, other = processes
    assert (own.pid, own.bytes, own.own) == (os.getpid(), 3 * GIB, True)
    assert own.name == Path("/proc/self/comm").read_text().strip()
    assert (other.bytes, other.name, other.own) == (GIB, None, False)
    assert nvml.driver_version() == "580.65.06"
    assert opened(library) == 1


@pytest.mark.parametrize("flags", [("-DMIDDLE",), ()], ids=["v2", "v1"])
def test_older_drivers(tmp_path: Path, flags: tuple[str, ...]) -> None:
    nvml = Nvml(str(build(tmp_path, *flags)))
    devices = nvml.devices()
    assert devices is not None and devices[0].used == 21 * GIB
    processes = nvml.processes(0)
    assert processes is not None
    assert [process.bytes for process in processes] == [3 * GIB, GIB]


def test_no_library_and_a_driver_that_does_not_start(tmp_path: Path, library: Path) -> None:
    for nvml in (Nvml(str(tmp_path / "missing.so")), Nvml(str(library))):
        turn(library, init_code=9)
        assert nvml.devices() is None
        assert nvml.processes(0) is None
        assert nvml.driver_version() is None


def test_more_processes_than_room(library: Path) -> None:
    turn(library, process_count=50, more_each_call=40)
    processes = Nvml(str(library)).processes(0)
    assert processes is not None and len(processes) == 90


def test_processes_that_never_fit_are_given_up(library: Path) -> None:
    turn(library, process_count=1 << 20)
    assert Nvml(str(library)).processes(0) is None


@pytest.mark.parametrize("code", [3, 4, 15, 999], ids=["not supported", "no permission", "lost", "unknown"])
def test_faults(library: Path, code: int) -> None:
    turn(library, process_code=code, memory_code=code)
    nvml = Nvml(str(library))
    devices = nvml.devices()
    assert devices is not None
    assert (devices[0].total, devices[0].free, devices[0].used) == (None, None, None)
    assert nvml.processes(0) is None


def test_a_lost_gpu_does_not_hide_the_others(library: Path) -> None:
    turn(library, handle_code=15)
    nvml = Nvml(str(library))
    devices = nvml.devices()
    assert devices is not None
    assert devices[0].free == 59 * GIB
    assert (devices[1].uuid, devices[1].free) == (None, None)
    assert nvml.processes(devices[1]) is None


def test_a_gpu_in_parts_has_no_figures(library: Path) -> None:
    turn(library, mig=1)
    devices = Nvml(str(library)).devices()
    assert devices is not None and devices[0].mig
    assert (devices[0].uuid, devices[0].total, devices[0].free) == ("GPU-aa", None, None)
    turn(library, mig=-1)
    devices = Nvml(str(library)).devices()
    assert devices is not None and not devices[0].mig


def test_numbers_of_another_namespace(library: Path) -> None:
    turn(library, shift=1)
    processes = Nvml(str(library)).processes(0)
    assert processes is not None
    # Nobody is this process, and nobody's name is looked up: the numbers are of other programs here.
    assert [(process.own, process.name) for process in processes] == [(False, None), (False, None)]


def test_bytes_that_are_not_told(library: Path) -> None:
    turn(library, first_bytes=-1 & 0xFFFFFFFFFFFFFFFF)
    processes = Nvml(str(library)).processes(0)
    assert processes is not None and processes[0].bytes is None


def test_own_numbers() -> None:
    assert os.getpid() in _nvml.own_pids()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_opens_it_anew(library: Path) -> None:
    code = """
import os, sys
from gpuheap import _nvml
assert len(_nvml.devices()) == 2
_nvml.nvml()._lock.acquire()  # as if another thread were asking
pid = os.fork()
if pid == 0:
    import ctypes
    fine = len(_nvml.devices()) == 2 and _nvml.processes(0)[0].own
    opened = ctypes.c_int.in_dll(ctypes.CDLL(sys.argv[1]), "opened").value
    os._exit(0 if fine and opened == 2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    environment = {**os.environ, "GPUHEAP_NVML": str(library)}
    done = subprocess.run([sys.executable, "-c", code, str(library)], env=environment, timeout=60, check=False)
    assert done.returncode == 0


def test_threads_share_one(library: Path) -> None:
    nvml = Nvml(str(library))
    seen: list[int] = []

    def ask() -> None:
        for _ in range(50):
            seen.append(len(nvml.devices() or []) + len(nvml.processes(0) or []))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [4] * 200
    assert opened(library) == 1
