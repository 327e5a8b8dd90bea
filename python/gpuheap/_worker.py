"""The other process of ``gpuheap.isolate``: takes calls from a socket, answers them, ends with its parent."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import ModuleType
from typing import Any

from gpuheap import _processes, _transfer

# Kind and length of a message.
HEADER = struct.Struct("<cQ")
CALL = b"c"
VALUE = b"v"
ERROR = b"e"
# Whether the parent's program is being loaded here, which must not start processes.
_loading_main = False
# Seconds between looks at the parent.
_LOOK = 0.5


def main(channel: int, parent: int) -> None:
    """Serve the parent until it hangs up."""
    _adopt_orphans()
    threading.Thread(target=_watch, args=(parent,), name="gpuheap-parent", daemon=True).start()
    with socket.socket(fileno=channel) as connection:
        while True:
            try:
                data = _receive(connection)
                if data is None:
                    return
                kind, answer = _answer(data)
                del data
                _send(connection, kind, answer)
                del answer
            except KeyboardInterrupt:
                # Between two calls there is nothing to interrupt.
                continue


def prepare(settings: dict[str, Any]) -> None:
    """Make this process look like the parent's program, without running that again unless something of it is needed."""
    sys.argv = settings["argv"]
    path, name = settings["main_path"], settings["main_name"]
    if path is None and name is None:
        return

    def load() -> None:
        global _loading_main
        from multiprocessing import spawn

        del vars(main_module)["_gpuheap_load_main"]
        fix: Any = spawn
        _loading_main = True
        try:
            if name is not None:
                fix._fixup_main_from_name(name)
            else:
                fix._fixup_main_from_path(path)
        finally:
            _loading_main = False

    main_module: ModuleType = sys.modules["__main__"]
    vars(main_module)["_gpuheap_load_main"] = load


def is_loading_main() -> bool:
    """Whether the parent's program is being loaded here."""
    return _loading_main


def _answer(data: bytes) -> tuple[bytes, bytes]:
    """Carry out one call."""
    try:
        value = _transfer.call_and_dump(lambda: _call(data))
        _flush()
        return VALUE, value
    except BaseException as error:
        answer = _transfer.dumps((*_transfer.describe(error), type(error).__name__))
        # No frame of the call, and nothing that it held, outlives it.
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = error.__cause__ = error.__context__ = None
        _flush()
    gc.collect()
    return ERROR, answer


def _call(data: bytes) -> Any:
    function, arguments, keywords = _transfer.loads(data)
    return function(*arguments, **keywords)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The program may have put anything there.
        with suppress(Exception):
            stream.flush()


def _receive(connection: socket.socket) -> bytes | None:
    header = _exactly(connection, HEADER.size)
    if header is None:
        return None
    _, length = HEADER.unpack(header)
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray(length)
    view, done = memoryview(data), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            return None
        done += count
    return bytes(data)


def _send(connection: socket.socket, kind: bytes, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(HEADER.pack(kind, len(data)))
        connection.sendall(data)


def _watch(parent: int) -> None:
    """End with the parent, whatever the main thread is doing."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    _processes.end(os.getpid(), spare=os.getpid())
    os.kill(os.getpid(), signal.SIGKILL)


def _adopt_orphans() -> None:
    """Become the parent of processes below this one that lose theirs, so that they are found in the end (Linux)."""
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
