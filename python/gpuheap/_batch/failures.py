"""Which errors say that memory has run out: by their type first, then by their text.

Libraries below PyTorch have their own words for it, and programs wrap what they catch. Everything else (a wrong shape,
a device assertion) is an error of the program, which no smaller batch would mend.
"""

from __future__ import annotations

__all__ = ["first_line", "is_out_of_memory"]

# As their classes are called in PyTorch, CuPy and RMM.
_TYPES = frozenset(("OutOfMemoryError", "out_of_memory"))
_TEXTS = (
    "out of memory",
    "outofmemory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "cudnn_status_internal_error_device_allocation_failed",
    "cudnn_status_internal_error_host_allocation_failed",
    "cusolver_status_alloc_failed",
    "cusparse_status_alloc_failed",
    "cufft_alloc_failed",
    "curand_status_allocation_failed",
    "cudaerrormemoryallocation",
    "hiperrormemoryallocation",
    "failed to cuda calloc",
    "resource_exhausted",
    "defaultcpuallocator: can't allocate memory",
    "defaultcpuallocator: not enough memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, says that memory has run out."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        if _says_so(one):
            return True
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return False


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or any(kind.__name__ in _TYPES for kind in type(error).__mro__):
        return True
    # The libraries' errors arrive as this type; a text of the program that speaks of memory does not.
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(known in text for known in _TEXTS)


def first_line(error: BaseException) -> str:
    """Type and first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
