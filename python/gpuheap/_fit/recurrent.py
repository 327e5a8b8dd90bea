"""Recurrent layers as cuDNN runs them.

PyTorch asks cuDNN, and cuDNN the driver, for sizes, so the operators of the CUDA path are called here as the C++ code
calls them. Sizes of the buffers are from recordings on an H200 with cuDNN 9.19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuheap._fit.pretend import Gpu

__all__ = ["RELEASE", "backward", "forward", "recurring", "run"]

_aten = torch.ops.aten
_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_LSTM = 2
_GRU = 3
_UNITS = {0: 1, 1: 1, 2: 5, 3: 6}
"""Numbers that a cell keeps for each of its outputs: its gates, and its state."""
RELEASE = (0, True)
"""In a plan: what is held so far goes, the last one first."""
_AREA = 8 << 20
"""Bytes that a layer's product in one direction works in."""


@contextmanager
def recurring(gpu: Gpu) -> Iterator[None]:
    """Let recurrent layers take CUDA's path."""
    from torch.nn.modules import rnn

    functions = {name: getattr(rnn._VF, name) for name in _MODES}
    flatten = rnn.RNNBase.flatten_parameters
    table = dict(rnn._rnn_impls)
    for name, function in functions.items():
        setattr(rnn._VF, name, _layer(gpu, name, function))
    rnn._rnn_impls.update({key: getattr(rnn._VF, key.lower()) for key in table})
    rnn.RNNBase.flatten_parameters = _flatten
    try:
        yield
    finally:
        for name in functions:
            delattr(rnn._VF, name)
        rnn._rnn_impls.update(table)
        rnn.RNNBase.flatten_parameters = flatten
        _dropout_states.clear()


def _flatten(self: Any) -> None:
    """One buffer for all weights, as cuDNN wants them."""
    weights = getattr(self, "_flat_weights", ())
    if not weights or not all(isinstance(one, FakeTensor) and one.device.type == "cuda" for one in weights):
        return
    dtype = weights[0].dtype
    if any(one.dtype != dtype for one in weights) or not torch.backends.cudnn.enabled or dtype == torch.bfloat16:
        return
    if len({one.untyped_storage()._cdata for one in weights}) == 1 and len(weights) > 1:
        return
    with torch.no_grad():
        flat = torch.empty(sum(one.numel() for one in weights), dtype=dtype, device=weights[0].device)
        at = 0
        for one in weights:
            part = flat[at : at + one.numel()].view(one.shape)
            at += one.numel()
            made = torch.nn.Parameter(part, requires_grad=one.requires_grad)
            torch._C._swap_tensor_impl(one, made)
            del made, part


def _layer(gpu: Gpu, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def layer(*args: Any) -> Any:
        source = args[0]
        if source.device.type != "cuda" or not torch.backends.cudnn.enabled:
            return function(*args)
        packed = isinstance(args[3], (tuple, list))
        if packed:
            source, sizes, state, weights, biases, layers, dropout, train, both = args
            first = False
        else:
            source, state, weights, biases, layers, dropout, train, both, first = args
            sizes = []
        if torch.is_autocast_enabled("cuda"):
            # The sizes are those of fp16 weights in one buffer, which cuDNN wants anew at every call. PyTorch casts to
            # fp16 under autocast to bf16, too (`autocast_mode`'s `RNN.cpp`).
            dtype = torch.float16
            source, weights = source.to(dtype), [one.to(dtype) for one in weights]
            state = tuple(one.to(dtype) for one in state) if name == "lstm" else state.to(dtype)
        hidden: Any
        cell: Any
        hidden, cell = state if name == "lstm" else (state, None)
        size = hidden.size(2) if cell is None else cell.size(2)
        projected = hidden.size(2) if cell is not None and hidden.size(2) != cell.size(2) else 0
        whole = [int(one) for one in sizes] if packed else []
        # Everything is cast by now; the operator under autocast would ask cuDNN for the layout of its buffer.
        with torch.autocast("cuda", enabled=False):
            out, last, last_cell, _, _ = _aten._cudnn_rnn.default(
                source,
                list(weights),
                4 if biases else 2,
                _buffer(weights),
                hidden,
                cell,
                _MODES[name],
                size,
                projected,
                layers,
                first,
                float(dropout),
                train,
                both,
                whole,
                _dropout_state(gpu) if train and dropout else None,
            )
        return (out, last, last_cell) if name == "lstm" else (out, last)

    return layer


_dropout_states: list[Any] = []
_STATE_OF_A_PROCESSOR = 49_152
"""Bytes of the random states of dropout, for each multiprocessor."""


def _dropout_state(gpu: Gpu) -> Any:
    """The states are made once in a process and stay."""
    if not _dropout_states:
        size = gpu.processors * _STATE_OF_A_PROCESSOR
        _dropout_states.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    return _dropout_states[0]


def _buffer(weights: Sequence[Any]) -> Any:
    """The buffer that all weights lie in, or None."""
    storages = {one.untyped_storage()._cdata for one in weights}
    if len(storages) != 1:
        return None
    count = sum(one.numel() for one in weights)
    return torch.as_strided(weights[0].detach(), (count,), (1,), 0)


def _figures(args: Sequence[Any], *, shift: int = 0) -> tuple[int, int, int, int, int, float]:
    """Time steps times samples, samples, outputs of a layer, layers times directions, numbers a cell keeps, dropout."""
    mode, hidden, _, layers, first, dropout, _, both, sizes = args[6 + shift : 15 + shift]
    source = args[0]
    if sizes:
        steps, samples = source.size(0), int(sizes[0])
    else:
        steps, samples = source.size(0) * source.size(1), source.size(0 if first else 1)
    return steps, samples, hidden, layers * (2 if both else 1), _UNITS[mode], dropout


def _reserve(args: Sequence[Any], *, shift: int = 0) -> int:
    """Bytes that the forward pass keeps for the backward pass."""
    steps, _, hidden, cells, units, dropout = _figures(args, shift=shift)
    layers = args[9 + shift]
    both = cells // layers
    between = steps * hidden * (layers - 1) * both
    # Of what is dropped, two bits for each number.
    dropped = between // 4 if dropout else 0
    return int((steps * hidden * cells * units + between) * args[0].element_size() + dropped)


def _workspace(args: Sequence[Any], *, shift: int = 0) -> int:
    """Bytes of scratch memory, to the byte for the layers of `gpu/fit_cases.py`, in one and in both directions.

    The weights once more, an area for each product, what goes into gates for all steps of a layer and its results for
    the next, the input once or twice, and some state for each sample. Of RNNs in bf16 it is more than they take.
    """
    steps, samples, hidden, cells, _, _ = _figures(args, shift=shift)
    mode, layers, train = args[6 + shift], args[9 + shift], args[12 + shift]
    both = cells // layers
    element = args[0].element_size()
    weights = sum(one.numel() for one in args[1] if one.dim() > 1) * element
    if mode == _LSTM:
        # Gradients of both directions are kept beside each other; whether that is more over several layers, nobody saw.
        gates, inputs, states = both * (3 + layers) + 6 * (both - 1), 1, 10 * cells + 4 * (both - 1)
    elif mode == _GRU:
        gates, inputs, states = both * (3 + layers), 2 if train else 1, 5 * cells + 3 * (layers - 1) * both
    else:
        gates, inputs, states = 7 * cells, 2, 6 * cells
    taken = (steps * gates + samples * states) * hidden + args[0].numel() * inputs
    return int(taken * element + weights + cells * _AREA + 512)


def run(mode: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of cuDNN's operators, with sizes that PyTorch does not know without cuDNN; else `NotImplemented`."""
    if func is _aten._cudnn_rnn.default:
        with mode:
            out, hidden, cell, _, buffer = func(*args, **kwargs)
            train = args[12]
            if args[10] and not args[14]:
                # Time comes first in memory, whatever comes first in the shape.
                samples, steps, width = out.shape
                out = torch.empty((steps, samples, width), dtype=out.dtype, device=out.device).transpose(0, 1)
            reserve = torch.empty(_reserve(args) + 512 if train else 0, dtype=torch.uint8, device=args[0].device)
            if buffer is None:
                weights = args[1]
                buffer = torch.empty(sum(one.numel() for one in weights), dtype=weights[0].dtype, device=args[0].device)
        return out, hidden, cell, reserve, buffer
    if func is _aten._cudnn_rnn_backward.default:
        source, weights, hidden, cell, wanted = args[0], args[1], args[4], args[5], args[21]
        with mode:
            flat = torch.empty(sum(one.numel() for one in weights), dtype=weights[0].dtype, device=source.device)
            parts, at = [], 0
            for one in weights:
                parts.append(flat[at : at + one.numel()].view(one.shape))
                at += one.numel()
            if args[14] and not args[18]:
                samples, steps, width = source.shape
                gradient = source.new_empty((steps, samples, width)).transpose(0, 1)
            else:
                gradient = torch.empty_like(source, memory_format=torch.contiguous_format)
            last = torch.empty_like(hidden)
            last_cell = torch.empty_like(cell) if cell is not None else None
        # cuDNN computes the gradients of the state with that of the input.
        wanted_weights = wanted[3] if len(wanted) > 3 else True
        return gradient, last, last_cell, parts if wanted_weights else []
    return NotImplemented


def forward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Iterator[Any]:
    """What the forward pass asks the allocator for, in order."""
    del gpu, kwargs
    source, first = args[0], args[10]
    if first:
        yield source.numel() * source.element_size(), True
    states = 3 if args[6] == _LSTM else 2
    yield from range(states)
    yield _workspace(args), True
    yield from range(states, len(results))


def backward(gpu: Gpu, args: Sequence[Any], kwargs: Mapping[str, Any], results: Sequence[Any]) -> Iterator[Any]:
    """What the backward pass asks for: the input's gradient, then, with the input copied once more, the weights'.

    These are two of PyTorch's functions, and what the first one copied goes at its end.
    """
    del gpu, kwargs
    source, output = args[0], args[6]
    # Before `mode` stand the three gradients of the results and the results' own.
    shift = 4
    first = args[10 + shift]
    size = source.numel() * source.element_size()
    if first:
        yield size, True
        yield output.numel() * output.element_size(), True
    states = 2 if args[6 + shift] != _LSTM else 3
    yield from range(states)
    yield _workspace(args, shift=shift), False
    yield RELEASE
    if first:
        yield size, True
    yield from range(states, len(results))
    yield _workspace(args, shift=shift), False
