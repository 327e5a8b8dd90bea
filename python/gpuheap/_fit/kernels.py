"""Memory that a kernel takes from PyTorch's allocator beside its results, where the shapes tell how much.

cuBLAS's workspaces stay for good and depend on the device alone; they are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gpuheap._fit import convolutions, recurrent
from gpuheap._fit.pretend import Gpu
from gpuheap._fit.recorder import Recorder
from gpuheap._fit.reductions import staging

__all__ = ["Kernels"]

_aten = torch.ops.aten

Plan = Iterator["int | tuple[int, bool]"]
"""What a kernel asks the allocator for, in order: the number of a result among those on the GPU, or bytes and whether
they are held until the kernel is done or given back at once. Results that are not named come first."""

Rule = Callable[[Gpu, Sequence[Any], Mapping[str, Any], Sequence[Any]], Plan]


class Kernels:
    """What kernels ask the allocator for."""

    def __init__(self, recorder: Recorder, gpu: Gpu) -> None:
        """For the storages of a recorder, on a GPU."""
        self._recorder = recorder
        self._gpu = gpu

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> list[int]:
        """Add the storages of an operator's results, and what its kernel uses beside them, which whoever calls ends."""
        recorder = self._recorder
        storages, module, kind = recorder.storages, recorder.module, recorder.new_class
        rule = RULES.get(func)
        if rule is None:
            for result in results:
                storages.add(result, kind, module)
            return []
        plan = list(rule(self._gpu, args, kwargs, results))
        named = {one for one in plan if isinstance(one, int)}
        for at, result in enumerate(results):
            if at not in named:
                storages.add(result, kind, module)
        held: list[int] = []
        for one in plan:
            if isinstance(one, int):
                if one < len(results):
                    storages.add(results[one], kind, module)
            elif one == recurrent.RELEASE:
                while held:
                    storages.end_scratch(held.pop())
            elif one[0]:
                number = storages.scratch(one[0], "workspace", module)
                if one[1]:
                    held.append(number)
                else:
                    storages.end_scratch(number)
        return held


def _in_order(*order: int) -> Rule:
    """The results in another order."""

    def rule(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
        del gpu, args, kwargs, results
        yield from order

    return rule


def _reduced(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    del results
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dims, int):
        dims = [dims]
    for size in staging(
        gpu, args[0], dims if isinstance(dims, (list, tuple)) else None, max(4, args[0].element_size())
    ):
        yield size, True


def _reduced_whole(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    del kwargs, results
    for size in staging(gpu, args[0], None, max(4, args[0].element_size())):
        yield size, True


def _efficient_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """Scratch of the memory-efficient kernel (`kernel_backward.h`).

    It adds up the gradient of the queries in tiles, each with a lock of 16 bytes; in fp32 the products of the output
    and its gradient are added up outside of the kernel.
    """
    del gpu, kwargs, results
    gradient, query, key = args[0], args[1], args[2]
    batch, heads, queries, width = query.shape
    keys = key.size(2)
    half = query.element_size() == 2
    if not half:
        yield gradient.numel() * 4, False
    yield batch * heads * queries * 4, True
    tile = 64 if width <= 64 else 128
    elements = -(-queries // tile) * -(-width // tile) * (tile * tile + 4)
    if half and width > tile:
        # The results do not fit into registers.
        elements += 2 * (-(-keys // tile) * tile) * (-(-width // tile) * tile)
    yield batch * heads * (-(-elements // 4) * 4) * 4, True


def _cudnn_attention(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    del gpu, args, kwargs, results
    # Seed and offset first.
    yield from (2, 3, 0, 1)
    yield 256, True


def _cudnn_attention_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """The gradient of the queries in fp32, a number for every row, and 256 bytes (cuDNN 9.19, on an H200)."""
    del gpu, kwargs, results
    batch, heads, queries, width = args[1].shape
    yield batch * heads * queries * (width + 1) * 4 + 256, True


def _ctc_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """The same paths once more, from their ends (`LossCTC.cu`)."""
    del gpu, kwargs, results
    yield args[6].numel() * args[6].element_size(), True


def _flash_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """Gradients of the queries in fp32, and of keys and values for every head of the queries (`flash_api.cpp`)."""
    del gpu, kwargs, results
    query, key = args[1], args[2]
    batch, heads, queries, width = query.shape
    rows = -(-queries // 128) * 128
    rounded = -(-width // 32) * 32 if width <= 192 else 256
    yield batch * heads * rows * 4, True
    yield batch * heads * rows * rounded * 4, True
    if key.size(1) != heads:
        for _ in range(2):
            yield batch * heads * key.size(2) * width * query.element_size(), True


def _embedding_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """More than 3,072 indices are sorted, and rows for the same index added up in parts of ten.

    See `EmbeddingBackwardKernel.cu`.
    """
    del gpu, kwargs, results
    gradient, indices, weights = args[0], args[1], args[2]
    scale = args[4] if len(args) > 4 else False
    count = indices.numel()
    if count <= 3072 and not scale:
        return
    width = gradient.numel() // count
    whole = indices.element_size()
    # Sorted indices, where they were, where they are, and the sort's own buffers.
    yield count * whole, True
    yield count * whole, True
    yield 2 * count * whole, False
    yield 0
    segments = min(count, weights)
    yield count * whole, True
    yield segments * whole, True
    yield segments * whole, True
    parts = count // 10 + segments
    yield parts * whole, True
    yield parts * width * max(4, gradient.element_size()), True


def _convolution(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    yield 0
    yield from convolutions.forward(gpu, args, kwargs, results)


def _convolution_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """The gradient of the input with its workspace, that of the filter with its own, that of the bias.

    A gradient of the results that is not contiguous is copied for each of the first two.
    """
    scratch = list(convolutions.backward(gpu, args, kwargs, results))
    wanted = args[10]
    copies = [scratch.pop(0)[0]] if scratch and scratch[0][1] else []
    at = 0
    for one in range(2):
        if wanted[one]:
            yield at
            at += 1
            # The workspace lives within the time of the copy.
            own = scratch.pop(0)[0] if scratch else 0
            yield from ((copies[0] + own, False),) if copies else ((own, False),)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _dense_gradient(at: int) -> Rule:
    """Before its results, a kernel copies this argument if it is not contiguous."""

    def rule(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
        del gpu, kwargs
        if not args[at].is_contiguous():
            yield _bytes(args[at]), True
        yield from range(len(results))

    return rule


def _softmax_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """The product of the gradient and the output."""
    del gpu, kwargs
    if not args[0].is_contiguous():
        yield _bytes(args[0]), True
    yield 0
    yield _bytes(results[0]), True


def _safe_softmax(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """Which elements are minus infinity, and which rows are nothing else."""
    del gpu, kwargs, results
    count = args[0].numel()
    yield 0
    yield count, True
    yield count // max(args[0].size(-1), 1), True
    yield 4, True


def _elementwise_loss(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """The losses of all elements once more, before they are added up."""
    del kwargs, results
    reduction = args[2] if len(args) > 2 else 1
    yield 0
    if reduction:
        yield _bytes(args[0]), True
        for size in staging(gpu, args[0], None):
            yield size, True


def _group_norm(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """A factor and a term for every channel of every sample."""
    del gpu, kwargs
    samples, channels = args[3], args[4]
    yield from range(len(results))
    yield samples * channels * 4, True
    yield samples * channels * 4, True


def _group_norm_backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Plan:
    """Sums for every channel of every sample, and for every group."""
    del gpu, kwargs
    samples, channels, groups = args[5], args[6], args[8]
    yield from range(len(results))
    for count in (channels, channels, groups, groups, channels):
        yield samples * count * 4, True


RULES: dict[Any, Rule] = {
    _aten._ctc_loss_backward.default: _ctc_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_backward,
    _aten.native_dropout.default: _in_order(1, 0),
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten._log_softmax_backward_data.default: _dense_gradient(0),
    _aten.native_layer_norm_backward.default: _dense_gradient(0),
    _aten.max_pool2d_with_indices_backward.default: _dense_gradient(0),
    _aten.upsample_nearest2d_backward.default: _dense_gradient(0),
    _aten.upsample_bilinear2d_backward.default: _dense_gradient(0),
    _aten._safe_softmax.default: _safe_softmax,
    _aten.mse_loss.default: _elementwise_loss,
    _aten.smooth_l1_loss.default: _elementwise_loss,
    _aten.native_group_norm.default: _group_norm,
    _aten.native_group_norm_backward.default: _group_norm_backward,
    _aten._cudnn_rnn.default: recurrent.forward,
    _aten._cudnn_rnn_backward.default: recurrent.backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    **dict.fromkeys(
        (
            _aten.sum.dim_IntList,
            _aten.mean.dim,
            _aten.prod.dim_int,
            _aten.amax.default,
            _aten.amin.default,
            _aten.any.dim,
            _aten.all.dim,
            _aten.linalg_vector_norm.default,
        ),
        _reduced,
    ),
    **dict.fromkeys((_aten.sum.default, _aten.mean.default, _aten.max.default, _aten.min.default), _reduced_whole),
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}
