"""Workspaces that cuDNN takes for convolutions, from what is known of how its kernels work.

Seen operator by operator on an H200 with cuDNN 9.19, in fp32 (as TF32, PyTorch's default), bf16 and fp16:

- The kernels for tensor cores want channels last. What comes with channels first is transposed into the workspace:
  input, output and filter. Few channels are padded to 16 bytes on the way.
- A 1 x 1 filter is the same in both orders, and with stride 1 it is a plain matrix product for each sample, without a
  workspace, provided that rows begin at multiples of 16 bytes.
- The gradient of a filter adds up over all samples and positions. Its few tiles, of 128 x 128 channels for each of the
  filter's positions, would leave most multiprocessors idle, so the sum is split, and each part has its fp32 sum in the
  workspace: as many parts as the multiprocessors hold tiles, if each is long enough to be worth it. Tiles that nearly
  fill the multiprocessors are left whole; where they fill the last round of them badly, the tiles are shared out, and
  each multiprocessor keeps one of its own. As a product per sample, a 1 x 1 filter has one part a sample; of the two
  ways the smaller one is taken.
- Pictures (fewer than four channels) in fp32 are not padded. Their gradient has a kernel that needs nothing, and small
  filters over them have such kernels for everything; depthwise filters mostly have PyTorch's own. With channels last,
  larger filters over pictures are computed with channels first.
- With channels last, depthwise filters larger than 5 x 5 have no kernel in fp32 for the gradient of the filter:
  each channel is a group, and padded by itself.
- In three dimensions, and for strided 1 x 1 filters of up to 256 channels, kernels in fp32 write their results with
  channels first.

A few kernels need up to 8 MiB more where tiles do not fill the multiprocessors evenly; that is left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpuheap._fit.pretend import Gpu

__all__ = ["Convolution", "backward", "forward"]

_ALIGNED = 16
"""Bytes to which rows and channels are aligned."""
_SMALL_FILTER = 16
"""Positions in a filter for pictures that has kernels of its own."""
_LARGEST_DEPTHWISE = 25
"""Positions in the largest depthwise filter that has kernels of its own with channels last."""
_GROUPS_AT_ONCE = 24
"""Groups that a multiprocessor sums at the same time."""
_LITTLE = 256
"""Input channels up to which a kernel spends more time on its results than on sums."""
_TILE = 128
"""Rows and columns of a tile of results."""
_FULL = 0.8
"""Tiles that occupy this part of the multiprocessors' rounds are not shared out."""
_WORTH = {4: 1024, 2: 8192, 1: 8192}
"""Positions in all samples that a part of a filter's gradient sums at the least, by bytes of an element."""


@dataclass(frozen=True)
class Convolution:
    """The shapes of one convolution; of a transposed one, `x` is what the plain one would return."""

    x: tuple[int, ...]
    y: tuple[int, ...]
    weight: tuple[int, ...]
    element: int
    """Bytes of an element."""
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int
    channels_last: bool
    processors: int
    """Multiprocessors of the GPU."""

    @property
    def pointwise(self) -> bool:
        """Whether the filter has one position."""
        return all(size == 1 for size in self.weight[2:]) and not any(self.padding)

    @property
    def product(self) -> bool:
        """Whether it is a matrix product over memory as it lies."""
        if not self.pointwise or any(step != 1 for step in self.stride) or self.groups != 1:
            return False
        return self.channels_last or math.prod(self.x[2:]) * self.element % _ALIGNED == 0

    @property
    def own_kernel(self) -> bool:
        """Whether each channel is on its own: PyTorch has kernels for that."""
        return self.groups > 1 and self.groups == self.x[1]

    def _padded(self, channels: int) -> int:
        """Channels, as many as fill 16 bytes."""
        unit = _ALIGNED // self.element
        return -(-channels // unit) * unit

    @property
    def picture(self) -> bool:
        """Whether the input is a picture in fp32: cuDNN has kernels for it that take memory as it lies."""
        return self.x[1] < 4 and self.groups == 1 and len(self.x) == 4 and self.element == 4

    @property
    def small_filter(self) -> bool:
        """Whether the filter has few positions."""
        return math.prod(self.weight[2:]) <= _SMALL_FILTER

    def _moved(self, *, result: bool = True, padded: bool = True) -> int:
        """Bytes of what is transposed into the workspace; `result` includes the output's side."""
        taken = 0
        for shape in (self.x, self.y) if result else (self.x,):
            channels = self._padded(shape[1])
            if not self.channels_last or channels != shape[1]:
                taken += shape[0] * (channels if padded else shape[1]) * math.prod(shape[2:]) * self.element
        if not taken:
            return 0
        if not self.pointwise:
            taken += (self._filter() if padded else math.prod(self.weight)) * self.element
        return taken + _ALIGNED

    def _filter(self) -> int:
        """Elements of the filter with padded channels."""
        outputs, inputs = self.weight[0], self.weight[1]
        return self._padded(outputs) * self._padded(inputs) * math.prod(self.weight[2:])

    def _parts(self) -> int:
        """Bytes of the partial sums of a filter's gradient."""
        positions, inputs = math.prod(self.weight[2:]), self.weight[1]
        # The few channels of a picture share tiles.
        columns = -(-inputs * positions // _TILE) if inputs < 4 else -(-inputs // _TILE) * positions
        tiles = -(-self.weight[0] // _TILE) * columns
        long_enough = self.y[0] * math.prod(self.y[2:]) // _WORTH[self.element]
        parts = min(self.processors // tiles, long_enough)
        if parts > 1:
            return parts * self._filter() * 4
        rounds = -(-tiles // self.processors)
        if long_enough < 2 or tiles >= _FULL * rounds * self.processors:
            return 0
        return min(tiles, self.processors) * _TILE * _TILE * 4

    def _depthwise_filter(self) -> int:
        """Of large filters with channels last in fp32: each channel is a group that is padded to 16 bytes."""
        if not self.channels_last or self.element < 4 or math.prod(self.weight[2:]) <= _LARGEST_DEPTHWISE:
            return 0
        unit = _ALIGNED // self.element
        moved = (math.prod(self.x) + math.prod(self.y)) * unit * self.element
        parts = max(1, self.processors * _GROUPS_AT_ONCE // self.groups)
        return moved + parts * math.prod(self.weight) * unit * unit * 4

    def output(self) -> int:
        """Bytes of the workspace of the results."""
        if self.own_kernel or self.product:
            return 0
        if self.x[1] < 4 and self.groups == 1 and self.small_filter and len(self.x) == 4 and not self.channels_last:
            return 0
        if self.element == 4 and not self.channels_last and self._sums_little():
            return self._moved(result=False) + self._filter() * self.element
        return self._moved(result=len(self.x) < 5 or self.element < 4, padded=not self.picture)

    def _sums_little(self) -> bool:
        """Whether a strided 1 x 1 filter spends its time on results, enough of them for every multiprocessor."""
        if not self.pointwise or self.groups != 1 or self.x[1] > _LITTLE:
            return False
        rows = self.y[0] * math.prod(self.y[2:])
        return -(-rows // _TILE) * -(-self.y[1] // _TILE) > self.processors

    def data(self) -> int:
        """Bytes of the workspace of the input's gradient."""
        if self.own_kernel or self.product:
            return 0
        if self.picture and not self.channels_last:
            return 0
        if self.picture and not self.small_filter:
            return dataclasses.replace(self, channels_last=False)._moved(padded=False)
        return self._moved()

    def filter(self) -> int:
        """Bytes of the workspace of the filter's gradient."""
        if self.own_kernel:
            return self._depthwise_filter()
        if self.picture:
            if self.small_filter:
                return 0
            first = dataclasses.replace(self, channels_last=False)
            return first._moved() + first._parts()
        moved = self._moved() + self._parts()
        if self.product and not self.channels_last:
            return min(moved, self.x[0] * math.prod(self.weight) * 4)
        return moved


def _described(
    gpu: Gpu, x: Any, weight: Any, y: Any, stride: Any, padding: Any, transposed: bool, groups: int
) -> Convolution:
    last = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    lies_last = x.dim() in (4, 5) and not x.is_contiguous() and x.is_contiguous(memory_format=last)
    before, after = (y, x) if transposed else (x, y)
    return Convolution(
        x=tuple(before.shape),
        y=tuple(after.shape),
        weight=tuple(weight.shape),
        element=x.element_size(),
        stride=tuple(stride),
        padding=tuple(padding),
        groups=groups,
        channels_last=lies_last,
        processors=gpu.processors,
    )


def forward(
    gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> Iterator[tuple[int, bool]]:
    """Scratch of `aten.convolution`: bytes, and whether it is held until the operator is done."""
    del kwargs
    x, weight, _, stride, padding, _, transposed, _, groups = args[:9]
    if x.element_size() <= 4 and x.dim() >= 3:
        found = _described(gpu, x, weight, results[0], stride, padding, transposed, groups)
        yield found.data() if transposed else found.output(), False


def backward(
    gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> Iterator[tuple[int, bool]]:
    """Scratch of `aten.convolution_backward`."""
    del kwargs, results
    gradient, x, weight, _, stride, padding, _, transposed, _, groups, wanted = args[:11]
    if x.element_size() > 4 or x.dim() < 3:
        return
    found = _described(gpu, x, weight, gradient, stride, padding, transposed, groups)
    if not gradient.is_contiguous() and not found.channels_last:
        yield gradient.numel() * gradient.element_size(), True
    if wanted[0]:
        yield found.output() if transposed else found.data(), False
    if wanted[1]:
        yield found.filter(), False
