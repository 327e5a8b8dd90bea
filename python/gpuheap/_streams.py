"""The few things that :mod:`gpuheap._ring` needs of CUDA, as PyTorch has them."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Cuda", "Event", "Layer", "Stream"]


class Event(Protocol):
    """A mark in a stream."""

    def record(self, stream: Any) -> None:
        """Mark the work that the stream has so far."""

    def synchronize(self) -> None:
        """Wait, on the host, until the marked work is done."""


class Stream(Protocol):
    """Work of the device in order."""

    def wait_event(self, event: Any) -> None:
        """Let later work of this stream wait for the marked work."""

    def synchronize(self) -> None:
        """Wait, on the host, until all work is done."""


class Layer(Protocol):
    """A device with streams. Tensors are PyTorch's."""

    torch: Any
    device: Any

    def enter_thread(self) -> None:
        """Make the device the calling thread's."""

    def side_stream(self) -> Stream:
        """A new stream."""
        raise NotImplementedError

    def current_stream(self) -> Stream:
        """The stream to which the calling thread gives its work."""
        raise NotImplementedError

    def event(self) -> Event:
        """A new mark."""
        raise NotImplementedError

    def device_bytes(self, count: int, stream: Any) -> Any:
        """Device memory, from the stream's own pool."""
        raise NotImplementedError

    def host_bytes(self, count: int) -> Any:
        """Pinned host memory."""
        raise NotImplementedError

    def is_pinned(self, tensor: Any) -> bool:
        """Whether the device can copy from there while the host goes on."""
        raise NotImplementedError

    def copy(self, to: Any, source: Any, stream: Any) -> None:
        """Let the stream copy."""


class Cuda:
    """An NVIDIA or AMD device."""

    def __init__(self, torch: Any, device: Any) -> None:
        """Take the device; starts nothing on it."""
        self.torch = torch
        self.device = device

    def enter_thread(self) -> None:
        """Make the device the calling thread's: pinned memory belongs to the context of one."""
        self.torch.cuda.set_device(self.device)

    def side_stream(self) -> Any:
        """Return a new stream."""
        return self.torch.cuda.Stream(self.device)

    def current_stream(self) -> Any:
        """Return the stream to which the calling thread gives its work."""
        return self.torch.cuda.current_stream(self.device)

    def event(self) -> Any:
        """Return a new mark, which takes no times."""
        return self.torch.cuda.Event()

    def device_bytes(self, count: int, stream: Any) -> Any:
        """Return device memory that belongs to the stream."""
        with self.torch.cuda.stream(stream):
            return self.torch.empty(count, dtype=self.torch.uint8, device=self.device)

    def host_bytes(self, count: int) -> Any:
        """Return pinned host memory."""
        return self.torch.empty(count, dtype=self.torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: Any) -> bool:
        """Tell whether the tensor's memory is pinned."""
        return bool(tensor.is_pinned())

    def copy(self, to: Any, source: Any, stream: Any) -> None:
        """Let the stream copy."""
        with self.torch.cuda.stream(stream):
            to.copy_(source, non_blocking=True)
