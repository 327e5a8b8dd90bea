"""What a program may change in its process, as it was before."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["preserving"]


@contextmanager
def preserving() -> Iterator[None]:
    """Put back what tracing a program changes: random numbers, defaults and switches of torch."""
    import torch

    numpy: Any = sys.modules.get("numpy")
    before_random = random.getstate()
    before_numpy = numpy.random.get_state() if numpy is not None else None
    before_torch = torch.get_rng_state()
    dtype, gradient = torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    precision = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    cuda = torch.backends.cuda
    kernels = (
        (cuda.enable_flash_sdp, cuda.flash_sdp_enabled()),
        (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled()),
        (cuda.enable_math_sdp, cuda.math_sdp_enabled()),
        (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled()),
    )
    default = torch.utils._device.CURRENT_DEVICE
    anomaly = torch.is_anomaly_enabled()
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        random.setstate(before_random)
        if numpy is not None:
            numpy.random.set_state(before_numpy)
        torch.set_rng_state(before_torch)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradient)
        torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])
        torch.set_float32_matmul_precision(precision)
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
        for enable, value in kernels:
            enable(value)
        if default != torch.utils._device.CURRENT_DEVICE:
            torch.set_default_device(default)
        torch.autograd.set_detect_anomaly(anomaly)
