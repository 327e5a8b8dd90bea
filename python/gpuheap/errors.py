"""What goes wrong, as exceptions: the operation with its object, the cause, and a hint if the reader can act."""

from __future__ import annotations

__all__ = ["Error", "described"]


class Error(Exception):
    """An operation of gpuheap failed. The base of all exceptions that gpuheap defines.

    ``message`` says what failed and why, ``hint`` what to do about it, if there is something. ``str()`` of the
    exception is both.
    """

    message: str
    hint: str | None

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Set both parts."""
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Both parts as a person should read them."""
        return self.message if self.hint is None else f"{self.message}\n\nhint: {self.hint}"


def described(error: BaseException) -> str:
    """An exception of the program's in one phrase: type and text. Its text may fail as well."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
