"""What `parallelize_module` makes of linear layers, for one rank that is traced alone.

Its tensors know all ranks' parts (`DTensor`), and tell the autograd engine of their device, which is not there. What a
rank computes and asks for is the same with its parts as plain tensors and the exchanges written out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpuheap._fit.errors import TraceError

__all__ = ["parallelize"]


def parallelize(model: Any, mesh: Any, plan: Mapping[str, Any]) -> Any:
    """Cut layers by their outputs (`ColwiseParallel`) or inputs (`RowwiseParallel`), in the order of the plan."""
    group, rank, ranks = mesh.get_group(), mesh.get_local_rank(), mesh.size()
    for name, style in plan.items():
        module = model.get_submodule(name)
        kind = type(style).__name__
        if kind == "ColwiseParallel":
            for key, parameter in list(module.named_parameters(recurse=False)):
                module.register_parameter(key, _part(parameter, 0, rank, ranks, group))
            module.register_forward_pre_hook(lambda _, inputs: (_Entered.apply(inputs[0], group), *inputs[1:]))
        elif kind == "RowwiseParallel":
            module.register_parameter("weight", _part(module.weight, 1, rank, ranks, group))
            module.register_forward_hook(lambda _module, _inputs, output: _Left.apply(output, group))
        else:
            raise TraceError(f"layers that are cut as {kind} cannot be traced")
    return model


def _part(parameter: Any, dim: int, rank: int, ranks: int, group: Any) -> Any:
    """This rank's part, sent by the first rank."""
    import torch.distributed as dist

    with torch.no_grad():
        parts = [part.contiguous() for part in torch.chunk(parameter.detach(), ranks, dim)]
        own = torch.empty_like(parts[rank])
        dist.scatter(own, parts if rank == 0 else None, group=group, group_src=0)
    return torch.nn.Parameter(own, requires_grad=parameter.requires_grad)


def _sum(tensor: Any, group: Any) -> Any:
    """The sum over ranks, in memory of its own."""
    functional = torch.ops._c10d_functional
    return functional.wait_tensor(functional.all_reduce(tensor.contiguous(), "sum", group.group_name))


class _Entered(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """All ranks have the whole input; each has a part of its gradient."""

    @staticmethod
    def forward(context: Any, tensor: Any, group: Any) -> Any:
        context.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return _sum(gradients[0], context.group), None


class _Left(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Each rank has a part of the sum; all get the sum, and its gradient is that of each part."""

    @staticmethod
    def forward(context: Any, tensor: Any, group: Any) -> Any:
        del context
        return _sum(tensor, group)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        del context
        return gradients[0], None
