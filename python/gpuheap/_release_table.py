"""The result of a release, and how it is shown."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass

from gpuheap._bytes import bytes_text
from gpuheap._device import Memory

__all__ = ["Held", "Released", "StepResult"]


# As wide as a terminal is at least.
_WIDTH = 80


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did."""

    name: str
    """`reference cycles`, `PyTorch's allocator`, …"""
    status: str
    """`done`, `skipped` (it did not apply, or was not asked for) or `failed`."""
    remark: str
    """Details of a step that was done, or why it was skipped or failed."""
    device_bytes: int
    """Bytes of device memory that the driver has more than before the step. Negative if it has less: another process,
    or another thread, took some meanwhile."""
    reserved_bytes: int
    """Bytes that the frameworks' allocators gave back to the driver."""
    allocated_bytes: int
    """Bytes that tensors, arrays and workspaces gave back to the allocators."""
    seconds: float
    """How long the step took."""


@dataclass(frozen=True, slots=True)
class Held:
    """One large storage that is still alive."""

    tensor: str
    """`Tensor[4096, 1024] float32 on cuda:0`"""
    bytes: int
    """Its size."""
    group: str
    """Its class: `activations` or `other tensors`."""
    holders: tuple[str, ...]
    """Who holds it, as `gpuheap.holders` says it; empty if nobody was found, or if they were not looked for."""


@dataclass(frozen=True, slots=True)
class Released:
    """What `release` gave back, and what is still held. `str()` is a table."""

    steps: tuple[StepResult, ...]
    """All steps in the order in which they were taken."""
    before: Memory
    """The devices before the first step."""
    after: Memory
    """The devices after the last."""
    by_class: dict[str, int]
    """Bytes that live tensors of PyTorch hold, by class, each storage once. `not visible to Python` is the rest of what
    its allocator has handed out: saved by autograd without a tensor in Python, workspaces, rounding. What the others
    hold is one class each: `CuPy`, `JAX`, `TensorFlow`."""
    largest: tuple[Held, ...]
    """The largest storages that no class explains, with their holders."""
    notes: tuple[str, ...]
    """What the reader should know or do."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory given back: free after less free before, and the sum over the steps."""
        return (self.after.free or 0) - (self.before.free or 0)

    @property
    def reserved_bytes(self) -> int:
        """Bytes that the frameworks' allocators gave back to the driver."""
        return self.before.reserved - self.after.reserved

    @property
    def allocated_bytes(self) -> int:
        """Bytes that tensors, arrays and workspaces gave back to the allocators."""
        return self.before.allocated - self.after.allocated

    @property
    def failed(self) -> tuple[StepResult, ...]:
        """The steps that failed."""
        return tuple(step for step in self.steps if step.status == "failed")

    def _rows(self) -> list[tuple[str, str, str, str, str]]:
        rows = []
        for step in self.steps:
            if step.status == "skipped":
                continue
            remark = step.remark if step.status == "done" else f"failed: {step.remark}"
            numbers = (step.device_bytes, step.reserved_bytes, step.allocated_bytes)
            device, reserved, allocated = (bytes_text(number) if number else "-" for number in numbers)
            rows.append((step.name, device, reserved, allocated, remark))
        together = (self.device_bytes, self.reserved_bytes, self.allocated_bytes)
        device, reserved, allocated = map(bytes_text, together)
        return [*rows, ("together", device, reserved, allocated, "")]

    def _state(self) -> list[str]:
        if self.after.free is None or self.before.free is None or self.after.total is None:
            return ["no device is in use"]
        of = f" of {bytes_text(self.after.total)}" + (" (all GPUs, by NVML)" if self.after.source == "NVML" else "")
        return [f"device free: {bytes_text(self.before.free)} before, {bytes_text(self.after.free)} now,{of}"]

    def _skipped(self) -> list[str]:
        """The steps that were not taken, those with one reason together."""
        names: dict[str, list[str]] = {}
        for step in self.steps:
            if step.status == "skipped":
                names.setdefault(step.remark, []).append(step.name)
        return [f"{', '.join(together)} ({reason})" for reason, together in names.items()]

    def text(self) -> str:
        """The table as text, without a line break at its end."""
        header = ("given back", "device", "allocator", "tensors", "")
        rows = [header, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = []
        for row in rows:
            cells = [row[0].ljust(widths[0]), *(row[column].rjust(widths[column]) for column in range(1, 4)), row[4]]
            lines.append("  ".join(cells).rstrip())
        lines += ["", *self._state()]
        if self.by_class:
            lines += [f"still held: {bytes_text(sum(self.by_class.values()))}"]
            width = max(map(len, self.by_class))
            for name, taken in self.by_class.items():
                lines.append(f"  {name.ljust(width)}  {bytes_text(taken).rjust(9)}")
        for one in self.largest:
            lines.append(f"  {one.tensor}, {bytes_text(one.bytes)} ({one.group})")
            lines += [f"    {holder}" for holder in one.holders or ("no holder found",)]
        skipped = "; ".join(self._skipped())
        if skipped:
            lines += _wrapped(skipped, "not done: ")
        for note in self.notes:
            lines += _wrapped(note, "note: ")
        return "\n".join(lines)

    def __str__(self) -> str:
        """The table."""
        return self.text()

    def __repr__(self) -> str:
        """Short; `str()` is the table."""
        held = bytes_text(sum(self.by_class.values()))
        return f"<gpuheap.Released: {bytes_text(self.device_bytes)} given back to the device, {held} still held>"

    def _repr_html_(self) -> str:
        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in self._rows()
        )
        held = "".join(
            f"<li>{html.escape(one.tensor)}, {bytes_text(one.bytes)}: {html.escape('; '.join(one.holders))}</li>"
            for one in self.largest
        )
        classes = ", ".join(f"{html.escape(name)} {bytes_text(taken)}" for name, taken in self.by_class.items())
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in (*self._state(), *self.notes))
        return (
            "<table><thead><tr><th>given back</th><th>device</th><th>allocator</th><th>tensors</th><th></th></tr>"
            f"</thead><tbody>{rows}</tbody></table>{lines}"
            + (f"<p>still held: {classes}</p><ul>{held}</ul>" if classes else "")
        )


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
