"""The trace as it grows: events in order, and the names that they refer to."""

from __future__ import annotations

from typing import Any

from gpuheap._fit.costs import Costs
from gpuheap._fit.errors import TraceError
from gpuheap._fit.storages import Storages

__all__ = ["Recorder"]

_MOST_EVENTS = 5_000_000
"""Of the longest programs; what has more has a loop without an end."""

Event = list[Any]


class Recorder:
    """Takes down what happens."""

    def __init__(self) -> None:
        """Begin with nothing, in the phase `setup`."""
        self.events: list[Event] = []
        self.storages = Storages(self._alloc, self._free)
        self.ops: dict[str, int] = {}
        self.costs = Costs()
        self.unknown: dict[tuple[str, str], int | None] = {}
        self._silent = 0
        self.notes: list[str] = []
        self.recording = True
        self.phase = ""
        self.new_class = "temporary"
        """The class of storages that are made now."""
        self.module = -1
        """The module whose code runs."""
        self._op_of: dict[Any, int] = {}
        self.enter_phase("setup", "unknown")

    def restart(self) -> None:
        """Forget everything so far."""
        stream = self.storages.stream
        self.storages.forget()
        self.storages = Storages(self._alloc, self._free)
        self.storages.stream = stream
        self.events.clear()
        self.ops.clear()
        self._op_of.clear()
        self.phase = ""
        self.enter_phase("setup", "unknown")

    def enter_phase(self, name: str, new_class: str = "temporary") -> None:
        """Another phase begins; it is taken down unless it is the same as before."""
        self.new_class = new_class
        if name != self.phase:
            self.phase = name
            self.events.append(["phase", name])

    def step(self, number: int) -> None:
        """A step begins."""
        self.events.append(["step", number])

    def enter(self, module: int, direction: int) -> None:
        """A module is entered."""
        self.events.append(["enter", module, direction])

    def leave(self, module: int, direction: int) -> None:
        """A module is left."""
        self.events.append(["leave", module, direction])

    def saved(self, storage: int, module: int) -> None:
        """Autograd keeps a storage."""
        self.events.append(["saved", storage, module])

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)

    def unknown_at(self, what: str, where: str, bound: int | None) -> None:
        """Something that cannot be followed: what, where, and the most bytes that it can take."""
        key = (what, where)
        known = self.unknown.get(key, 0)
        self.unknown[key] = None if bound is None or known is None else max(known, bound)

    def record(self, event: int, stream: int) -> None:
        """An event is recorded on a stream: all that was asked for on it before comes before the event."""
        if self.recording:
            self.events.append(["record", event, stream])

    def wait(self, stream: int, event: int) -> None:
        """What comes next on a stream comes after an event."""
        if self.recording:
            self.events.append(["wait", stream, event])

    def op(
        self,
        func: Any,
        thread: int,
        cost: tuple[float, int, int],
        inputs: list[int],
        outputs: list[int],
        on: int | None = None,
    ) -> None:
        """An operator has run, on the stream of its thread or on another.

        Raises:
            TraceError: there are more than any program has.
        """
        if not inputs and not outputs:
            # Of numbers, or of nothing: no kernel runs for it, and at another batch size there may be none.
            self._silent += 1
        if len(self.events) + self._silent > _MOST_EVENTS:
            raise TraceError(
                f"the program does not come to an end: {_MOST_EVENTS:,} events so far, in the {self.phase} phase",
                "A loop that ends by the value of a tensor never ends here: a trace has shapes and no data.",
            )
        if not inputs and not outputs:
            return
        number = self._op_of.get(func)
        if number is None:
            number = self._op_of[func] = self.ops.setdefault(str(func), len(self.ops))
        event: Event = ["op", number, self.module, thread, *cost, inputs, outputs]
        stream = self.storages.stream() if on is None else on
        self.events.append([*event, stream] if stream else event)

    def _alloc(self, storage: int) -> None:
        self.events.append(["alloc", storage])

    def _free(self, storage: int) -> None:
        if self.recording:
            self.events.append(["free", storage])
