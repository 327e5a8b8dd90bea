"""A process with all that it started: who belongs to it, what it holds in host memory, how it is ended.

A root is started as the leader of a session of its own. Its tree is everything in that session or below one of its
processes, so that neither a worker of a worker nor one that lost its parent is forgotten. Without ``/proc`` only the
process group of the root is known.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import NamedTuple

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Processes that clean up (named semaphores, shared memory) once those that they serve have ended.
_CLEANERS = (b"multiprocessing.resource_tracker", b"multiprocessing/resource_tracker", b"torch_shm_manager")
# Seconds that they have.
_CLEANING = 2.0
# Seconds after which a process that was killed is waited for no more: it is stuck in the kernel.
_STUCK = 10.0


class _Process(NamedTuple):
    parent: int
    session: int
    is_dead: bool
    # A number may be given to another process, but not at the same time.
    started: int
    resident_bytes: int


def _table() -> dict[int, _Process] | None:
    """Every process by its id, or nothing where there is no ``/proc``."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return None
    table = {}
    for name in names:
        if not name.isdigit():
            continue
        # A process may end at any moment.
        with suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name before the last parenthesis may hold anything.
                fields = file.read().rpartition(b")")[2].split()
            state, parent, session = fields[0], int(fields[1]), int(fields[3])
            table[int(name)] = _Process(
                parent, session, state in (b"Z", b"X"), int(fields[19]), int(fields[21]) * _PAGE
            )
    return table or None


def _tree(root: int, table: dict[int, _Process]) -> set[int]:
    """The living processes of the tree, the root included."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    todo = [pid for pid, process in table.items() if process.session == root or pid == root]
    found: set[int] = set()
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo.extend(children.get(pid, ()))
    return {pid for pid in found if not table[pid].is_dead}


def host_bytes(root: int, limit: int) -> int:
    """Host memory of the tree, in bytes.

    Pages that processes share count once where the kernel says so; since that takes it a while, only if the simple sum
    is over the limit.
    """
    table = _table()
    if table is None:
        return 0
    tree = _tree(root, table)
    total = sum(table[pid].resident_bytes for pid in tree)
    if total <= limit:
        return total
    return sum(_proportional_bytes(pid, table[pid].resident_bytes) for pid in tree)


def _proportional_bytes(pid: int, resident_bytes: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    return resident_bytes


def interrupt(root: int) -> None:
    """Send what Ctrl-C sends to the root and the processes of its group."""
    with suppress(OSError):
        os.killpg(root, signal.SIGINT)


def end(root: int, *, spare: int | None = None) -> None:
    """Kill the whole tree and return when it is gone (the root may remain as a zombie for its parent).

    ``spare`` is a process of the tree that is left alone: the caller, if it is one of it.
    """
    deadline = time.monotonic() + _STUCK
    # Those that were killed lose their parents and may be found no more, though they take a moment to go.
    dying: set[tuple[int, int]] = set()
    while (table := _table()) is not None:
        tree = _tree(root, table) - {spare}
        cleaners = {pid for pid in tree if _is_cleaner(pid)}
        alive = (tree - cleaners) | {pid for pid, started in dying if _is_alive(pid, started, table)}
        if not alive or time.monotonic() > deadline:
            _end_cleaners(root, spare)
            return
        # A process that stands still starts no other one.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in alive:
                with suppress(OSError):
                    os.kill(pid, number)
        dying.update((pid, table[pid].started) for pid in alive)
        time.sleep(0.002)
    with suppress(OSError):
        os.killpg(root, signal.SIGKILL)


def _is_alive(pid: int, started: int, table: dict[int, _Process]) -> bool:
    process = table.get(pid)
    return process is not None and process.started == started and not process.is_dead


def _is_cleaner(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
    except OSError:
        return False
    return any(name in line for name in _CLEANERS)


def _end_cleaners(root: int, spare: int | None) -> None:
    """Wait until those that clean up are done, and kill what is left."""
    deadline = time.monotonic() + _CLEANING
    while (table := _table()) is not None and (tree := _tree(root, table) - {spare}):
        if time.monotonic() > deadline:
            for pid in tree:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.005)
