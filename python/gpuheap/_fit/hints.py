"""What to do about errors of PyTorch's whose own words do not say it."""

from __future__ import annotations

__all__ = ["hint_of"]

_DEVICES = (
    "The model and the batch are brought to the GPU; other tensors and models of the program, such as copies for "
    "averages, are the program's to bring there: `.cuda()`."
)
_NESTED = "Nested tensors cannot be traced: give the loss a batch that is padded to its longest sample."
_HINTS = (
    ("found two different devices", _DEVICES),
    ("Expected all tensors to be on the same device", _DEVICES),
    ("_nested_tensor", _NESTED),
    ("shape_env must not be None", _NESTED),
    (
        "opt_ready_stream && opt_parent_stream",
        "An operator that PyTorch only compiles, such as `flex_attention`, cannot be traced: put "
        "`scaled_dot_product_attention` in its place for the plan.",
    ),
    (
        "'FakeTensor' object is not callable",
        "A loss whose first parameter is called `model` gets the model and the batch, any other output and target.",
    ),
    (
        "ProcessGroupNCCL is only supported with GPUs",
        "Leave `init_process_group` and `DistributedDataParallel` out of make(): `--gpus N` plans for several GPUs.",
    ),
    (
        "CUDA driver version is insufficient",
        "CUDA graphs and calls of the driver cannot be traced: leave them out of make().",
    ),
    ("UninitializedParameter", "Make lazy layers with their sizes, as `Linear(64, 10)` for `LazyLinear(10)`."),
    ("SparseTensorImpl", "Sparse tensors in a batch or among parameters cannot be traced; sparse gradients can."),
)
"""Parts of messages, and what to do."""


def hint_of(message: str) -> str | None:
    """What to do about an error of PyTorch's, if that is known."""
    return next((hint for part, hint in _HINTS if part in message), None)
