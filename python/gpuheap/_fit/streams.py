"""Streams of a GPU that is not there: nothing runs on them, but what is asked for on which, and who waits for whom, is
taken down. PyTorch's allocator keeps memory of different streams apart, and work of different streams overlaps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Streams"]

_POOL = 32
"""Streams of one priority that there are; further ones are these again."""


class Streams:
    """The streams of one trace, by number; 0 is the one on which everything runs that says nothing else."""

    def __init__(self) -> None:
        """Begin with the default stream alone."""
        self._local = threading.local()
        self._made: dict[int, int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._events = 0
        self.on_record: Callable[[int, int], None] = lambda event, stream: None
        """Told of an event and the stream on which it is recorded."""
        self.on_wait: Callable[[int, int], None] = lambda stream, event: None
        """Told of a stream that waits for an event."""
        streams = self

        class Event:
            """An event: a moment of a stream."""

            def __init__(self, *_: Any, **__: Any) -> None:
                self._number = -1

            def record(self, stream: Any = None) -> None:
                self._number = streams._record(_number_of(stream, streams.current))

            def wait(self, stream: Any = None) -> None:
                streams._wait(_number_of(stream, streams.current), self._number)

            def synchronize(self) -> None:
                pass

            def query(self) -> bool:
                return True

            def elapsed_time(self, _: Any) -> float:
                return 0.0

        class Stream:
            """A stream on which nothing runs."""

            device_index = 0
            device_type = 1

            def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
                import torch

                self.device = torch.device("cuda:0")
                self.priority = priority
                self.stream_id = streams._new(priority)

            @property
            def cuda_stream(self) -> int:
                return self.stream_id

            def __enter__(self) -> Any:
                self._before = streams.current
                streams.current = self.stream_id
                return self

            def __exit__(self, *_: object) -> None:
                streams.current = self._before

            def __eq__(self, other: object) -> bool:
                return isinstance(other, Stream) and other.stream_id == self.stream_id

            def __hash__(self) -> int:
                return hash(self.stream_id)

            def synchronize(self) -> None:
                pass

            def query(self) -> bool:
                return True

            def is_capturing(self) -> bool:
                return False

            def wait_stream(self, other: Any) -> None:
                streams._wait(self.stream_id, streams._record(_number_of(other, 0)))

            def wait_event(self, event: Any) -> None:
                streams._wait(self.stream_id, getattr(event, "_number", -1))

            def record_event(self, event: Any = None) -> Any:
                event = event or Event()
                event.record(self)
                return event

        self.Event = Event
        self.Stream = Stream
        self.default = Stream.__new__(Stream)
        self.default.priority, self.default.stream_id = 0, 0
        self._of_number: dict[int, Any] = {0: self.default}

    @property
    def current(self) -> int:
        """The stream of this thread."""
        return getattr(self._local, "current", 0)

    @current.setter
    def current(self, number: int) -> None:
        self._local.current = number

    def current_stream(self, *_: Any, **__: Any) -> Any:
        """The stream of this thread, as an object."""
        return self._object(self.current)

    def default_stream(self, *_: Any, **__: Any) -> Any:
        """The stream that is there without being made."""
        return self._object(0)

    def set_stream(self, stream: Any) -> None:
        """Change the stream of this thread."""
        if stream is not None:
            self.current = _number_of(stream, 0)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Run what follows on a stream; None changes nothing."""
        before = self.current
        self.set_stream(stream)
        try:
            yield
        finally:
            self.current = before

    def _object(self, number: int) -> Any:
        import torch

        found = self._of_number.get(number)
        if found is None:
            found = self.Stream.__new__(self.Stream)
            found.priority, found.stream_id = 0, number
            self._of_number[number] = found
        found.device = torch.device("cuda:0")
        return found

    def _new(self, priority: int) -> int:
        count = self._made.get(priority, 0)
        self._made[priority] = count + 1
        return self._numbers.setdefault((priority, count % _POOL), len(self._numbers) + 1)

    def _record(self, stream: int) -> int:
        number = self._events
        self._events += 1
        self.on_record(number, stream)
        return number

    def _wait(self, stream: int, event: int) -> None:
        if event >= 0:
            self.on_wait(stream, event)


def _number_of(stream: Any, otherwise: int) -> int:
    return int(getattr(stream, "stream_id", otherwise)) if stream is not None else otherwise
