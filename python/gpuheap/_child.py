"""One process of ``gpuheap.isolate``, as its parent sees it."""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

from gpuheap import _processes, _transfer, _worker
from gpuheap.errors import Error

# Seconds between looks at the process and its memory.
_LOOK = 0.1
# Seconds that a call has to end by itself after Ctrl-C.
_INTERRUPTED = 3.0
# Seconds that an idle process has to end by itself.
_GOODBYE = 5.0
# So many interruptions do not keep a process from being ended.
_PATIENCE = 5
_CHUNK = 1 << 20


class Limits(NamedTuple):
    """What a call may take."""

    seconds: float | None
    host_bytes: int | None


class OverTime(Exception):
    """The call took too long."""


class OverMemory(Exception):
    """The call took too much host memory."""

    def __init__(self, host_bytes: int) -> None:
        """Keep what it held."""
        super().__init__(host_bytes)
        self.host_bytes = host_bytes


class Died(Exception):
    """The process ended before its answer came."""


class _Output:
    """What a stream of the process prints, passed on to the stream of that name here."""

    def __init__(self, name: str, pipe: Any) -> None:
        self.name = name
        self.file = pipe
        os.set_blocking(pipe.fileno(), False)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def copy(self) -> bool:
        """Pass on what is there; tell whether more may come."""
        while True:
            try:
                data = os.read(self.file.fileno(), 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            text = self.decoder.decode(data, not data)
            stream = getattr(sys, self.name)
            if stream is not None and text:
                # The stream may be closed; the call goes on.
                with suppress(ValueError):
                    stream.write(text)
                    stream.flush()
            if not data:
                return False


class Child:
    """A process that takes one call after the other."""

    VALUE = _worker.VALUE
    ERROR = _worker.ERROR

    def __init__(self, env: dict[str, str]) -> None:
        """Start it."""
        if _worker.is_loading_main():
            raise Error(
                "The main program starts a process while it is loaded in one",
                'put what runs below `if __name__ == "__main__":`, or install `cloudpickle`',
            )
        self.owner = os.getpid()
        self.exit_code: int | None = None
        self._ended = False
        ours, theirs = socket.socketpair()
        stdout = None if _is_inherited("stdout", 1) else subprocess.PIPE
        stderr = None if _is_inherited("stderr", 2) else subprocess.PIPE
        path = [entry or os.getcwd() for entry in sys.path]
        code = (
            f"import sys; sys.path[:] = {path!r}; "
            f"from gpuheap._worker import main; main({theirs.fileno()}, {self.owner})"
        )
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        try:
            self._process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, **env},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._connection = ours
        outputs = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._outputs = [_Output(name, pipe) for name, pipe in outputs.items() if pipe is not None]
        self._settings: bytes | None = _transfer.dumps((_worker.prepare, (_main_program(),), {}))

    def is_alive(self) -> bool:
        """Whether it can take a call."""
        return not self._ended and not self._has_exited()

    def call(self, data: bytes, limits: Limits) -> tuple[bytes, bytearray]:
        """Carry out a call: the kind of the answer and its pickle."""
        deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        try:
            if self._settings is not None:
                self._exchange(self._settings, deadline, None)
                self._settings = None
            return self._exchange(data, deadline, limits.host_bytes)
        except KeyboardInterrupt:
            _processes.interrupt(self._process.pid)
            with suppress(OverTime, Died):
                self._exchange(b"", time.monotonic() + _INTERRUPTED, None)
            raise

    def _exchange(self, data: bytes, deadline: float | None, host_bytes: int | None) -> tuple[bytes, bytearray]:
        """Send a message, or nothing, and wait for one."""
        message = _worker.HEADER.pack(_worker.CALL, len(data)) + data if data else b""
        unsent = memoryview(message)
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(self._connection, both if unsent else selectors.EVENT_READ)
            for output in self._outputs:
                selector.register(output.file, selectors.EVENT_READ, output)
            looked = time.monotonic()
            while True:
                for key, _ in selector.select(_LOOK):
                    if key.data is not None and not key.data.copy():
                        selector.unregister(key.fileobj)
                if unsent:
                    with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                        unsent = unsent[self._connection.send(unsent[:_CHUNK]) :]
                    if not unsent:
                        selector.modify(self._connection, selectors.EVENT_READ)
                # Looked at first: what it had sent before it ended is then read.
                exited = self._has_exited()
                while (found := _message(answer)) is None and (part := self._receive()):
                    answer += part
                if found is not None:
                    for output in self._outputs:
                        output.copy()
                    return found
                if exited:
                    raise Died
                now = time.monotonic()
                if deadline is not None and now > deadline:
                    raise OverTime
                if host_bytes is not None and now - looked >= _LOOK:
                    looked = now
                    held = _processes.host_bytes(self._process.pid, host_bytes)
                    if held > host_bytes:
                        raise OverMemory(held)

    def _receive(self) -> bytes:
        try:
            return self._connection.recv(_CHUNK)
        except (BlockingIOError, ConnectionResetError):
            return b""

    def close(self) -> None:
        """Let it end by itself, as an idle process does at once, then end what is left."""
        if self._ended:
            return
        try:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            deadline = time.monotonic() + _GOODBYE
            pause = 0.001
            while not self._has_exited() and time.monotonic() < deadline:
                for output in self._outputs:
                    output.copy()
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
        finally:
            # Also after Ctrl-C: what it has started may live for long.
            self.end()

    def kill(self) -> None:
        """Kill it with all that it started, from another thread than that of its call, which then sees it die."""
        _processes.end(self._process.pid)
        with suppress(OSError):
            os.kill(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it with all that it started, and wait until that is gone."""
        if self._ended:
            return
        interrupted: BaseException | None = None
        for _ in range(_PATIENCE):
            try:
                # Before it is waited for: until then its number cannot be that of another process.
                if self._process.returncode is None:
                    self.kill()
                    self._process.wait()
                break
            except KeyboardInterrupt as error:
                interrupted = error
        self._ended = True
        self.exit_code = self._process.returncode
        for output in self._outputs:
            output.copy()
            output.file.close()
        self._connection.close()
        if interrupted is not None:
            raise interrupted

    def _has_exited(self) -> bool:
        """Whether it ended; it remains to be waited for."""
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True


def _is_inherited(name: str, number: int) -> bool:
    """Whether the program prints to the descriptor that a child gets by itself (in a notebook it does not)."""
    stream = getattr(sys, name)
    try:
        stream.flush()
        return bool(stream.fileno() == number)
    except Exception:
        return stream is None


def _main_program() -> dict[str, Any]:
    """What a process needs to find what is defined in the main program."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    name = None if spec is None else spec.name
    path = None if name is not None else getattr(main, "__file__", None)
    if path is not None:
        path = os.path.abspath(path) if os.path.exists(path) else None
    return {"argv": list(sys.argv), "main_name": name, "main_path": path}


def _message(received: bytearray) -> tuple[bytes, bytearray] | None:
    """The message, once all of it is there."""
    if len(received) < _worker.HEADER.size:
        return None
    kind, length = _worker.HEADER.unpack_from(received)
    if len(received) < _worker.HEADER.size + length:
        return None
    return kind, received[_worker.HEADER.size :]
