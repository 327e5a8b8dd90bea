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
- Channels of groups are padded to a power of two, where there are eight groups and more. In fp16 the channels of
  pictures are padded to four.
- Pictures (fewer than four channels) in fp32 are not padded. Their gradient has a kernel that needs nothing, and small
  filters over them have such kernels for everything; depthwise filters mostly have PyTorch's own. With channels last,
  larger filters over pictures are computed with channels first.
- With channels last, depthwise filters larger than 5 x 5 have no kernel in fp32 for the gradient of the filter:
  each channel is a group, and padded by itself.
- Kernels in fp32 write their results with channels first where that costs little beside the sums: where few numbers are
  summed for each result, over many results that lie together; where few filters leave tiles half empty; and for 1 x 1
  filters in three dimensions.
- Signals of one channel, strided 1 x 1 filters over few channels, and small filters over few channels in fp32, have
  kernels that take memory as it lies.
- Where the output has one position, gradients are products of matrices as they lie.
- A product for each sample reads the filter anew for each: with a filter of 4 MiB and more the input's gradient is made
  by a kernel for all samples, from channels last.
- Dilated filters have fewer kernels. Tiles of their gradient are not shared out; where a filter's positions are far
  apart (12 and more; up to 4 is near) the sum has eight parts, and results are written with channels first.

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
_SMALLEST_FILTER = 9
"""The same in 16 bits."""
_LARGEST_DEPTHWISE = 25
"""Positions in the largest depthwise filter that has kernels of its own with channels last."""
_GROUPS_AT_ONCE = 24
"""Groups that a multiprocessor sums at the same time."""
_LITTLE = 1024
"""Numbers summed for a result up to which a kernel spends its time on results rather than on sums."""
_TOGETHER = 224
"""Positions of a sample's results that lie together, at the least, for a kernel to write them so: nearly two tiles."""
_FEW_CHANNELS = 32
"""Channels up to which kernels for few channels take memory as it lies, if filters are small."""
_SKIPPED = {"out": 64, "data": 128}
"""Input channels up to which a strided 1 x 1 filter takes what it needs itself and leaves the rest where it lies."""
_FEW = 64
"""Filters that fill half a tile."""
_FEW_ROUNDS = 3
"""Rounds of tiles up to which results of few filters are written as they lie."""
_FAR = 8
"""Distance between a filter's positions beyond which other kernels are taken."""
_MANY_GROUPS = 8
"""Groups from which on one kernel has them all, each with room for a power of two of channels."""
_FAR_PARTS = 8
"""Parts of the sum of a filter's gradient there."""
_LARGE_FILTER = 1 << 20
"""Numbers in a filter that is not read anew for each sample."""
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
    fp16: bool = False
    """Whether numbers are fp16; bf16 has other kernels for pictures."""
    dilation: tuple[int, ...] = ()
    """Distances between the filter's positions; left out, they are next to each other."""

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

    @property
    def one_position(self) -> bool:
        """Whether the filter covers the input, so that the output has one position."""
        return math.prod(self.y[2:]) == 1 and self.groups == 1

    @property
    def dilated(self) -> bool:
        """Whether the filter's positions are not next to each other."""
        return any(step != 1 for step in self.dilation)

    @property
    def far(self) -> bool:
        """Whether the filter's positions are far apart."""
        return any(step > _FAR for step in self.dilation)

    def _padded(self, channels: int) -> int:
        """Channels, as many as fill 16 bytes; those of each group a power of two, for tiles to be whole."""
        if self.groups >= _MANY_GROUPS and len(self.x) == 4 and channels % self.groups == 0:
            return self.groups * (1 << (channels // self.groups - 1).bit_length())
        unit = _ALIGNED // self.element
        return -(-channels // unit) * unit

    def _padded_picture(self, *, gradient: bool) -> int:
        """Channels of a picture in fp16: in fours where the filter has a middle, else as they are for results."""
        channels = self.x[1]
        if all(size % 2 for size in self.weight[2:]):
            return -(-channels // 4) * 4
        return self._padded(channels) if gradient else channels

    @property
    def picture(self) -> bool:
        """Whether the input is a picture in fp32: cuDNN has kernels for it that take memory as it lies."""
        return self.x[1] < 4 and self.groups == 1 and len(self.x) in (4, 5) and self.element == 4

    @property
    def small_filter(self) -> bool:
        """Whether the filter has few positions."""
        return math.prod(self.weight[2:]) <= (_SMALL_FILTER if self.element == 4 else _SMALLEST_FILTER)

    def _moved(self, *, result: bool = True, padded: bool = True, gradient: bool = False) -> int:
        """Bytes of what is transposed into the workspace; `result` includes the output's side.

        `gradient`: for the filter's gradient.
        """
        taken = 0
        for shape in (self.x, self.y) if result else (self.x,):
            channels = self._padded(shape[1])
            if (
                shape is self.x
                and self.fp16
                and not self.channels_last
                and channels != shape[1] < 4
                and self.groups == 1
                and len(shape) == 4
            ):
                channels = self._padded_picture(gradient=gradient)
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
        if self.groups >= _MANY_GROUPS:
            room = 1 << (inputs - 1).bit_length()
            return (self._padded(outputs) if len(self.x) == 4 else outputs) * room * math.prod(self.weight[2:])
        return self._padded(outputs) * self._padded(inputs) * math.prod(self.weight[2:])

    def _parts(self) -> int:
        """Bytes of the partial sums of a filter's gradient."""
        positions, inputs = math.prod(self.weight[2:]), self.weight[1]
        # The few channels of a picture share tiles.
        columns = -(-inputs * positions // _TILE) if inputs < 4 else -(-inputs // _TILE) * positions
        if self.far and self.element == 4:
            return _FAR_PARTS * self._filter() * 4
        tiles = -(-self.weight[0] // _TILE) * columns
        long_enough = self.y[0] * math.prod(self.y[2:]) // _WORTH[self.element]
        parts = min(self.processors // tiles, long_enough)
        if parts > 1:
            return parts * self._filter() * 4
        rounds = -(-tiles // self.processors)
        if self.dilated or long_enough < 2 or tiles >= _FULL * rounds * self.processors:
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
        if self.skips("out") or self._few_channels():
            return 0
        if self.element == 4 and not self.channels_last and self._writes_as_it_lies():
            return self._moved(result=False) + (self._filter() * self.element if self.pointwise else 0)
        return self._moved(padded=not self.picture)

    def skips(self, what: str) -> bool:
        """Whether a strided 1 x 1 filter over few channels needs nothing; for the input's gradient in fp32 only."""
        if not self.pointwise or self.groups != 1 or len(self.x) != 4 or self.channels_last:
            return False
        strided = any(step != 1 for step in self.stride)
        return strided and self.x[1] <= _SKIPPED[what] and (what == "out" or self.element == 4)

    def _one_channel(self) -> bool:
        """Whether a signal of one channel in fp32 has kernels of its own for gradients."""
        return len(self.x) == 3 and self.x[1] == 1 and self.groups == 1 and self.element == 4

    def _few_channels(self) -> bool:
        """Whether a kernel for few channels computes the results."""
        if self.groups != 1 or self.channels_last:
            return False
        if len(self.x) == 3:
            return self.x[1] == 1
        few = self.element == 4 and len(self.x) == 4 and self.small_filter and not self.pointwise
        return few and 4 <= self.x[1] <= _FEW_CHANNELS

    def _writes_as_it_lies(self) -> bool:
        """Whether a kernel in fp32 writes its results with channels first."""
        if self.groups != 1 or self.picture:
            return False
        if len(self.x) == 5:
            return self.pointwise or self.y[1] <= _FEW
        rows = self.y[0] * math.prod(self.y[2:])
        tiles = -(-rows // _TILE) * -(-self.y[1] // _TILE)
        if self.far:
            return tiles > self.processors
        if self.x[1] * math.prod(self.weight[2:]) > _LITTLE:
            return False
        if self.y[1] <= _FEW:
            return tiles <= _FEW_ROUNDS * self.processors
        return math.prod(self.y[2:]) >= _TOGETHER and tiles >= _FULL * self.processors

    def data(self) -> int:
        """Bytes of the workspace of the input's gradient."""
        if self.own_kernel or self.one_position or self.skips("data") or self._one_channel():
            return 0
        if self.product and (self.channels_last or self.element < 4 or math.prod(self.weight) < _LARGE_FILTER):
            return 0
        if self.picture and not self.channels_last:
            return 0
        if self.picture and not self.small_filter:
            return dataclasses.replace(self, channels_last=False)._moved(padded=False)
        return self._moved(gradient=True)

    def filter(self) -> int:
        """Bytes of the workspace of the filter's gradient."""
        if self.own_kernel:
            return self._depthwise_filter()
        if self.one_position or self._one_channel():
            return 0
        if self.picture and len(self.x) == 4:
            if self.small_filter:
                return 0
            first = dataclasses.replace(self, channels_last=False)
            return first._moved() + first._parts()
        moved = self._moved(gradient=True) + self._parts()
        if self.product and not self.channels_last:
            return min(moved, self.x[0] * math.prod(self.weight) * 4)
        return moved


def _described(
    gpu: Gpu, x: Any, weight: Any, y: Any, steps: tuple[Any, Any, Any], transposed: bool, groups: int
) -> Convolution:
    stride, padding, dilation = steps
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
        dilation=tuple(dilation),
        fp16=x.dtype == torch.float16,
        groups=groups,
        channels_last=lies_last,
        processors=gpu.processors,
    )


def forward(
    gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> Iterator[tuple[int, bool]]:
    """Scratch of `aten.convolution`: bytes, and whether it is held until the operator is done."""
    del kwargs
    x, weight, _, stride, padding, dilation, transposed, _, groups = args[:9]
    if x.element_size() <= 4 and x.dim() >= 3:
        found = _described(gpu, x, weight, results[0], (stride, padding, dilation), transposed, groups)
        yield found.data() if transposed else found.output(), False


def backward(
    gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]
) -> Iterator[tuple[int, bool]]:
    """Scratch of `aten.convolution_backward`."""
    del kwargs, results
    gradient, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = args[:11]
    if x.element_size() > 4 or x.dim() < 3:
        return
    found = _described(gpu, x, weight, gradient, (stride, padding, dilation), transposed, groups)
    if not gradient.is_contiguous() and not found.channels_last:
        yield gradient.numel() * gradient.element_size(), True
    if wanted[0]:
        yield found.output() if transposed else found.data(), False
    if wanted[1]:
        yield found.filter(), False
