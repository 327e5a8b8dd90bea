"""Cross entropy of a linear layer's output without its logits: by chunks of tokens, computed again in backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    hidden: Any,
    weight: Any,
    target: Any,
    bias: Any = None,
    *,
    chunks: int = 8,
    class_weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    upcast: bool = True,
) -> Any:
    """The cross entropy of ``F.linear(hidden, weight, bias)`` with class labels.

    Args:
        hidden: ``(tokens, features)``.
        weight: ``(classes, features)``, of the type of ``hidden``.
        target: ``(tokens,)``, class labels.
        bias: ``(classes,)``.
        chunks: logits of this part of the tokens exist at a time.
        class_weight: what each class counts for.
        ignore_index: tokens with this label count nothing.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: as in `F.cross_entropy`.
        upcast: whether logits of 16 bits become float32 before the softmax.

    The result is a tensor with one element, or one for each token with ``"none"``.

    From PyTorch 2.15 on this is `F.linear_cross_entropy` by chunks, which makes the gradients along with the loss
    instead of computing the logits again.
    """
    if _torch_has_it(hidden, weight, reduction, label_smoothing):
        size = -(-hidden.shape[0] // chunks)
        return F.linear_cross_entropy(
            hidden,
            weight,
            target,
            linear_bias=bias,
            weight=class_weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=size),
        )
    losses = _Chunked.apply(
        hidden, weight, bias, target, class_weight, chunks, ignore_index, reduction, label_smoothing, upcast
    )
    if reduction != "mean":
        return losses
    counted = target != ignore_index
    if class_weight is None:
        return losses / counted.sum()
    # What `F.cross_entropy` divides by: the weights of the labels that count.
    return losses / (class_weight[target.clamp(min=0)] * counted).sum()


def _torch_has_it(hidden: Any, weight: Any, reduction: str, label_smoothing: float) -> bool:
    """Whether PyTorch's own does exactly this: by chunks it smooths nothing, and computes in the type it is given."""
    if not hasattr(torch.nn, "LinearCrossEntropyOptions") or reduction == "none" or label_smoothing:
        return False
    return bool(hidden.shape[0] and hidden.dtype == weight.dtype == torch.float32)


class _Chunked(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Sums (or single losses) by chunks; backward makes each chunk's logits again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Any,
        weight: Any,
        bias: Any,
        target: Any,
        class_weight: Any,
        chunks: int,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
        upcast: bool,
    ) -> Any:
        ctx.save_for_backward(hidden, weight, bias, target, class_weight)
        ctx.chunks = chunks
        ctx.single = reduction == "none"
        ctx.options = {
            "ignore_index": ignore_index,
            "reduction": "none" if ctx.single else "sum",
            "label_smoothing": label_smoothing,
        }
        ctx.upcast = upcast
        losses = []
        # Types are the caller's: autocast has had its say.
        with torch.autocast(hidden.device.type, enabled=False):
            for part, labels in zip(_parts(hidden, chunks), _parts(target, chunks), strict=True):
                logits = _up(F.linear(part, weight, bias), upcast)
                losses.append(F.cross_entropy(logits, labels, class_weight, **ctx.options))
                del logits
        return torch.cat(losses) if ctx.single else torch.stack(losses).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        hidden, weight, bias, target, class_weight = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        of_weight = torch.zeros_like(weight) if wants_weight else None
        of_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias else None
        single = iter(_parts(gradient, ctx.chunks)) if ctx.single else None
        begin = 0
        with torch.autocast(hidden.device.type, enabled=False):
            for part, labels in zip(_parts(hidden, ctx.chunks), _parts(target, ctx.chunks), strict=True):
                of_loss = next(single) if single is not None else gradient
                of_logits = _gradient_of_logits(part, weight, bias, labels, class_weight, of_loss, ctx)
                end = begin + part.shape[0]
                if of_hidden is not None:
                    torch.mm(of_logits, weight, out=of_hidden[begin:end])
                if of_weight is not None:
                    of_weight.addmm_(of_logits.t(), part)
                if of_bias is not None:
                    of_bias += of_logits.sum(0, dtype=torch.float32)
                begin = end
                del of_logits
        if of_bias is not None:
            of_bias = of_bias.to(bias.dtype)
        return of_hidden, of_weight, of_bias, *[None] * 7


def _gradient_of_logits(
    part: Any, weight: Any, bias: Any, labels: Any, class_weight: Any, of_loss: Any, ctx: Any
) -> Any:
    """The gradient of a chunk's logits, in the type of the layer."""
    with torch.no_grad():
        computed = F.linear(part, weight, bias)
        kept = computed.dtype
        logits = _up(computed, ctx.upcast)
        del computed
    with torch.enable_grad():
        logits.requires_grad_()
        loss = F.cross_entropy(logits, labels, class_weight, **ctx.options)
    (of_logits,) = torch.autograd.grad(loss, logits, of_loss.to(loss.dtype))
    return of_logits.to(kept)


def _up(logits: Any, upcast: bool) -> Any:
    return logits.float() if upcast else logits


def _parts(tensor: Any, chunks: int) -> tuple[Any, ...]:
    return tuple(tensor.tensor_split(min(chunks, max(tensor.shape[0], 1))))
