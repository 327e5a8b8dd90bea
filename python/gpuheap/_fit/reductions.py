"""The staging memory of reductions, by the rules of `aten/src/ATen/native/cuda/Reduce.cuh`.

A reduction with few results and many inputs for each is split over thread blocks, which meet in memory of the
allocator. For the bias of a layer this is 16 KiB for each of its elements and more: 64 MiB for 1,024 of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuheap._fit.pretend import Gpu

__all__ = ["staging"]

_WARP = 32
_MOST_THREADS = 512
_INPUTS_AT_ONCE = 4
_LEAST_VALUES, _MOST_VALUES = 16, 256
_THREADS_OF_A_PROCESSOR = 2048


def staging(gpu: Gpu, tensor: Any, dims: Sequence[int] | None, accumulator: int = 4) -> tuple[int, int]:
    """Bytes of the staging buffer and of the semaphores with which a tensor is reduced over dimensions.

    Args:
        gpu: where.
        tensor: what is reduced.
        dims: over which dimensions; all if None or empty.
        accumulator: bytes of what is added up for one result.
    """
    count = tensor.dim()
    over = {dim % count for dim in dims} if dims and count else set(range(count))
    reduced = _merged([(tensor.stride(dim), tensor.size(dim)) for dim in over])
    kept = _merged([(tensor.stride(dim), tensor.size(dim)) for dim in range(count) if dim not in over])
    outputs = _product(kept)
    inputs = _product(reduced)
    if outputs == 0 or inputs <= 1:
        return 0, 0
    return _split(gpu, reduced, kept, inputs, outputs, accumulator)


def _split(
    gpu: Gpu, reduced: list[tuple[int, int]], kept: list[tuple[int, int]], inputs: int, outputs: int, accumulator: int
) -> tuple[int, int]:
    along_inputs = not kept or reduced[0][0] < kept[0][0]
    if along_inputs:
        width, height, fastest = inputs, outputs, reduced[0][0]
    else:
        width, height, fastest = kept[0][1], inputs, kept[0][0]
    at_once = 1
    if fastest == 1:
        if along_inputs:
            if width > 128 and len(reduced) + len(kept) == 1:
                width //= _INPUTS_AT_ONCE
        else:
            at_once = _results_at_once(reduced, kept)
            width //= at_once
    most = _MOST_THREADS // at_once
    columns, rows = min(_power(width), most), min(_power(height), most)
    block_width = min(columns, _WARP)
    block_height = min(rows, most // block_width)
    block_width = min(columns, most // block_height)
    step_input = step_output = 1
    if along_inputs:
        step_input = block_width
    else:
        step_output = block_width
    if _up(inputs, step_input) < min(block_height * 16, _MOST_VALUES):
        return 0, 0
    step_input *= block_height
    values = _up(inputs, step_input)
    blocks = _THREADS_OF_A_PROCESSOR // (block_width * block_height)
    target = gpu.processors * blocks
    grid = _up(outputs // at_once, step_output)
    if values < _MOST_VALUES or grid > target:
        return 0, 0
    parts = max(min(_up(target, grid), _up(values, _LEAST_VALUES)), _up(values, _MOST_VALUES))
    if parts <= 1:
        return 0, 0
    size = accumulator * outputs * parts
    if not along_inputs:
        size *= block_width * at_once
    return size, 4 * grid


def _results_at_once(reduced: list[tuple[int, int]], kept: list[tuple[int, int]]) -> int:
    """How many results one thread computes: as many as are aligned in every stride, at most four."""
    for width in (4, 2):
        strides = [stride for stride, _ in reduced + kept[1:]]
        if kept[0][1] % width == 0 and all(stride % width == 0 for stride in strides):
            return width
    return 1


def _merged(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dimensions from the innermost, those that follow each other in memory as one."""
    found: list[tuple[int, int]] = []
    for stride, size in sorted(dim for dim in dims if dim[1] != 1):
        if found and stride == found[-1][0] * found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] * size)
        else:
            found.append((stride, size))
    return found


def _product(dims: list[tuple[int, int]]) -> int:
    result = 1
    for _, size in dims:
        result *= size
    return result


def _power(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1) if number > 0 else 1


def _up(number: int, by: int) -> int:
    return -(-number // by)
