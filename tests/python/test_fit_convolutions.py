"""cuDNN's workspaces, as the tracer reckons them, against what an H200 took."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from gpuheap._fit.convolutions import Convolution

MIB = 1 << 20
STREAM_K = 8 * MIB + 4096
"""Tiles that do not fill the multiprocessors evenly take up to this much more; the rule leaves it out."""
MEASURED = (
    # batch, channels in and out, size in and out, kernel, stride, padding, bytes of an element: forward, data, filter
    (64, 64, 64, 56, 56, 3, 1, 1, 4, 102908051, 102908051, 104972967),
    (64, 128, 128, 56, 28, 3, 2, 1, 4, 129040531, 129040531, 137298599),
    (64, 512, 512, 7, 7, 3, 1, 1, 4, 22282256, 22282256, 30933743),
    (64, 256, 512, 56, 28, 1, 2, 0, 4, 206045200, 308281491, 316670607),
    (64, 2048, 512, 7, 7, 1, 1, 0, 4, 32112656, 32112787, 40501679),
    (64, 64, 256, 56, 56, 1, 1, 0, 4, 400, 400, 4194704),
    (64, 512, 1024, 28, 14, 1, 2, 0, 4, 154140819, 154140819, 162529839),
    (64, 1024, 512, 14, 14, 1, 1, 0, 4, 0, 400, 85459503),
    (16, 512, 512, 16, 16, 3, 1, 1, 4, 34079375, 34079375, None),
    (64, 64, 64, 56, 56, 3, 1, 1, 2, 51454099, 51454099, 53371559),
    (64, 2048, 512, 7, 7, 1, 1, 0, 2, 16056336, 16056467, 16056336),
    (16, 64, 256, 56, 56, 1, 1, 0, 2, 0, 0, 1048576),
)


def convolution(row: tuple[int | None, ...], *, channels_last: bool = False) -> Convolution:
    batch, inputs, outputs, before, after, kernel, stride, padding, element = (int(one or 0) for one in row[:9])
    return Convolution(
        x=(batch, inputs, before, before),
        y=(batch, outputs, after, after),
        weight=(outputs, inputs, kernel, kernel),
        element=element,
        stride=(stride, stride),
        padding=(padding, padding),
        groups=1,
        channels_last=channels_last,
        processors=132,
    )


@pytest.mark.parametrize("row", MEASURED)
def test_workspaces_are_those_of_the_device(row: tuple[int | None, ...]) -> None:
    found = convolution(row)
    for real, ours in ((row[9], found.output()), (row[10], found.data()), (row[11], found.filter())):
        if real is not None:
            assert real - STREAM_K <= ours <= real + STREAM_K


def test_a_strided_product_of_few_channels_writes_its_results_in_place() -> None:
    few, small, more = ((64, 256, 512, 56, 28), (4, 256, 512, 56, 28), (64, 512, 1024, 28, 14))
    for shape, real in ((few, 206045200), (small, 19267600), (more, 154140819)):
        assert abs(convolution((*shape, 1, 2, 0, 4)).output() - real) < 1024


def test_channels_last_needs_no_transposes() -> None:
    found = convolution(MEASURED[0], channels_last=True)
    assert found.output() == found.data() == 0
    assert 0 < found.filter() <= STREAM_K


EXACT = (
    # As above, with what an H200 took for the gradient of the filter. Parts fill the multiprocessors: 14 of 9 tiles,
    # 8 of 16, 16 of 8.
    (64, 64, 64, 56, 56, 3, 1, 1, 4, 104972967),
    (64, 64, 128, 64, 33, 4, 2, 2, 4, 107512431),
    (64, 256, 512, 56, 28, 1, 2, 0, 4, 316670607),
    # 144 tiles fill a second round badly; 216 do well, and are left whole.
    (64, 512, 512, 7, 7, 3, 1, 1, 4, 30933743),
    (32, 768, 512, 8, 8, 3, 1, 1, 4, 24641552),
    # Sums too short to be split in half precision.
    (16, 128, 128, 28, 28, 3, 1, 1, 2, 6717456),
    (16, 512, 512, 7, 7, 3, 1, 1, 2, 6324240),
)


@pytest.mark.parametrize("row", EXACT)
def test_parts_of_a_filters_gradient_are_those_of_the_device(row: tuple[int, ...]) -> None:
    assert abs(convolution(row).filter() - row[9]) < 1024


def picture(*, channels_last: bool = False, kernel: int = 7, outputs: int = 64) -> Convolution:
    return Convolution(
        x=(64, 3, 224, 224),
        y=(64, outputs, 112, 112),
        weight=(outputs, 3, kernel, kernel),
        element=4,
        stride=(2, 2),
        padding=(kernel // 2, kernel // 2),
        groups=1,
        channels_last=channels_last,
        processors=132,
    )


def test_pictures_in_fp32_are_not_padded_and_their_gradient_needs_nothing() -> None:
    assert abs(picture().output() - 244093712) < 1024
    assert picture().data() == 0
    assert abs(picture(channels_last=True).output() - 38572816) < 1024
    # With channels last, a large filter is computed as with channels first.
    assert abs(picture(channels_last=True).data() - 244093712) < 1024
    assert abs(picture(channels_last=True).filter() - 262972560) < 3 * MIB
    assert picture(channels_last=True).filter() == picture().filter()
    assert picture(channels_last=True, kernel=3).filter() == 0


def test_results_in_three_dimensions_are_moved_in_half_precision_only() -> None:
    for element, real in ((2, 102981779), (4, 103202832)):
        shape = (16, 64, 8, 56, 56)
        one = Convolution(shape, shape, (64, 64, 3, 3, 3), element, (1, 1, 1), (1, 1, 1), 1, False, 132)
        assert abs(one.output() - real) < 1024


@pytest.mark.parametrize(("batch", "real"), [(4, 48473719), (16, 164079223), (64, 626501239)])
def test_large_depthwise_filters_with_channels_last_pad_each_channel(batch: int, real: int) -> None:
    shape = (batch, 96, 56, 56)
    one = Convolution(shape, shape, (96, 1, 7, 7), 4, (1, 1), (3, 3), 96, True, 132)
    assert abs(one.filter() - real) < 8192
    assert one.output() == one.data() == 0
    small = Convolution(shape, shape, (96, 1, 5, 5), 4, (1, 1), (2, 2), 96, True, 132)
    assert small.filter() == 0


def test_few_channels_are_padded_to_sixteen_bytes() -> None:
    picture = Convolution(
        x=(64, 3, 224, 224),
        y=(64, 64, 112, 112),
        weight=(64, 3, 7, 7),
        element=2,
        stride=(2, 2),
        padding=(3, 3),
        groups=1,
        channels_last=False,
        processors=132,
    )
    assert abs(picture.output() - 154190864) < 1024


def test_depthwise_and_small_picture_filters_take_none() -> None:
    depthwise = Convolution((4, 96, 56, 56), (4, 96, 56, 56), (96, 1, 7, 7), 4, (1, 1), (3, 3), 96, False, 132)
    picture = Convolution((32, 3, 224, 224), (32, 64, 224, 224), (64, 3, 3, 3), 4, (1, 1), (1, 1), 1, False, 132)
    for one in (depthwise, picture):
        assert one.output() == one.data() == one.filter() == 0


KERNELS = (
    # Input, output, filter, stride, dilation, bytes of an element, groups, which workspace, what an H200 took in MiB.
    # Few sums for each of many results that lie together: those are written as they lie.
    ((16, 64, 64, 64), (16, 128, 33, 33), (128, 64, 4, 4), 2, 1, 4, 1, "output", 16.5),
    ((4, 64, 64, 64), (4, 128, 33, 33), (128, 64, 4, 4), 2, 1, 4, 1, "output", 6.63),
    ((16, 64, 56, 56), (16, 64, 56, 56), (64, 64, 3, 3), 1, 1, 4, 1, "output", 12.39),
    ((64, 64, 56, 56), (64, 64, 56, 56), (64, 64, 3, 3), 1, 1, 4, 1, "output", 98.14),
    # Far apart: results as they lie, and eight parts of the sum; near: no tiles are shared out.
    ((16, 1024, 32, 32), (16, 256, 32, 32), (256, 1024, 3, 3), 1, 12, 4, 1, "output", 73.0),
    ((4, 1024, 32, 32), (4, 256, 32, 32), (256, 1024, 3, 3), 1, 24, 4, 1, "filter", 101.0),
    ((4, 1024, 32, 32), (4, 256, 32, 32), (256, 1024, 3, 3), 1, 1, 4, 1, "filter", 37.25),
    ((4, 512, 32, 32), (4, 512, 32, 32), (512, 512, 3, 3), 1, 4, 4, 1, "filter", 25.0),
    ((4, 1024, 32, 32), (4, 256, 32, 32), (256, 1024, 3, 3), 1, 24, 2, 1, "filter", 14.5),
    # One position in the output.
    ((64, 512, 4, 4), (64, 1, 1, 1), (1, 512, 4, 4), 1, 1, 4, 1, "data", 0.0),
    ((64, 512, 4, 4), (64, 1, 1, 1), (1, 512, 4, 4), 1, 1, 4, 1, "filter", 0.0),
    # Groups of 24 channels have room for 32.
    ((64, 192, 56, 56), (64, 192, 56, 56), (192, 24, 3, 3), 1, 1, 4, 8, "output", 392.28),
    ((64, 192, 56, 56), (64, 192, 56, 56), (192, 24, 3, 3), 1, 1, 2, 8, "data", 196.14),
    # A signal of one channel.
    ((64, 1, 16000), (64, 64, 3981), (64, 1, 80), 4, 1, 4, 1, "data", 0.0),
    # In three dimensions: results of 1 x 1 filters are written as they lie, those of pictures are not.
    ((4, 64, 16, 56, 56), (4, 128, 8, 28, 28), (128, 64, 1, 1, 1), 2, 1, 4, 1, "output", 49.03),
    ((4, 64, 16, 56, 56), (4, 128, 8, 28, 28), (128, 64, 3, 3, 3), 2, 1, 4, 1, "output", 62.09),
    ((4, 3, 16, 112, 112), (4, 64, 16, 56, 56), (64, 3, 3, 7, 7), 2, 1, 4, 1, "output", 58.3),
)


@pytest.mark.parametrize("row", KERNELS)
def test_kernels_take_what_single_operators_took(row: tuple[Any, ...]) -> None:
    x, y, weight, stride, dilation, element, groups, what, real = row
    dimensions = len(x) - 2
    # A padding of nothing is what tells a 1 x 1 filter.
    padding = (0,) * dimensions if weight[-1] == 1 or y[-1] == 1 or dimensions == 1 else (1,) * dimensions
    found = Convolution(
        x, y, weight, element, (stride,) * dimensions, padding, groups, False, 132, dilation=(dilation,) * dimensions
    )
    assert abs(getattr(found, what)() / MIB - real) < 0.01


def test_pictures_in_fp16_have_four_channels_and_in_bf16_eight() -> None:
    for fp16, real in ((True, 122.524), (False, 147.048)):
        shape = {"x": (64, 3, 224, 224), "y": (64, 64, 112, 112), "weight": (64, 3, 7, 7)}
        found = Convolution(
            **shape, element=2, stride=(2, 2), padding=(3, 3), groups=1, channels_last=False, processors=132, fp16=fp16
        )
        # The filter's few channels are not told apart.
        assert abs(found.output() / MIB - real) < 0.03
