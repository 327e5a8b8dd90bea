"""Functions for `test_isolate.py` that another process can import."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from typing import Any


class Odd(Exception):
    """Can be pickled, but not made again: its arguments are not those of its class."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def add(one: int, two: int = 0) -> int:
    return one + two


def fail(text: str) -> None:
    raise KeyError(text)


def fail_oddly() -> None:
    raise Odd(1, 2)


def exit_with(code: int) -> None:
    sys.exit(code)


def die(number: int) -> None:
    os.kill(os.getpid(), number)


def talk(text: str) -> None:
    print(text)
    print(text.upper(), file=sys.stderr)
    subprocess.run([sys.executable, "-c", f"print('{text} below')"], check=True)


def hold(count: int, seconds: float) -> int:
    data = bytearray(count)
    # Resident only once it is written to.
    data[::4096] = b"x" * len(data[::4096])
    time.sleep(seconds)
    return len(data)


def start_sleepers(path: str) -> None:
    """Start a child, a grandchild in a session of its own, and an orphan; write down who they are; never return."""
    sleeper = "import time; time.sleep(40)"
    silent = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
    orphan = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleeper!r}], {silent}).pid)"
    child = subprocess.Popen([sys.executable, "-c", sleeper])
    own = subprocess.Popen([sys.executable, "-c", sleeper], start_new_session=True)
    lost = subprocess.run(
        [sys.executable, "-c", orphan], capture_output=True, check=True, text=True, start_new_session=True
    )
    with open(path + ".part", "w") as file:
        file.write(f"{os.getpid()} {child.pid} {own.pid} {lost.stdout}")
    os.rename(path + ".part", path)
    time.sleep(40)


def start_sleeper() -> int:
    """Start a process and leave it alone; its number."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(40)"]).pid


def use_semaphore(path: str) -> None:
    """Hold a named semaphore and shared memory when the end comes."""
    from multiprocessing import get_context
    from multiprocessing.shared_memory import SharedMemory

    semaphore: Any = get_context("spawn").Semaphore()
    memory = SharedMemory(create=True, size=1 << 20)
    with open(path + ".part", "w") as file:
        file.write(f"{semaphore._semlock.name} {memory.name}")
    os.rename(path + ".part", path)
    time.sleep(40)


def nest(depth: int) -> int:
    from gpuheap.isolate import isolate

    return os.getppid() if depth == 0 else isolate(nest, depth - 1)


def nest_sleeper(path: str) -> None:
    from gpuheap.isolate import isolate

    isolate(start_sleepers, path)


def in_daemon(results: Any) -> None:
    from gpuheap.isolate import isolate

    results.put(isolate(add, 1, 2))


def say_interrupted(path: str) -> None:
    with open(path, "w"):
        pass
    try:
        time.sleep(40)
    except KeyboardInterrupt:
        with open(path, "w") as file:
            file.write("interrupted")
        raise


def parallel_workers() -> int:
    """Children of the kind that a daemonic process cannot have."""
    from multiprocessing import get_context

    with get_context("fork").Pool(2) as pool:
        return sum(pool.map(add, range(10)))


kept: list[object] = []


def keep(value: object) -> int:
    kept.append(value)
    return len(kept)


class Large:
    """Something that a failed call must not leave behind."""


def fail_while_holding() -> None:
    large = Large()
    raise ValueError(repr(large))


def living_large() -> int:
    return sum(type(value).__name__ == "Large" for value in gc.get_objects())


def restore_interrupts() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler
