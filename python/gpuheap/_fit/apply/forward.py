"""Programs that do their whole step themselves."""

from __future__ import annotations

from typing import Any

__all__ = ["is_whole_step"]


def is_whole_step(loss: Any) -> bool:
    """Whether what stands in place of the loss is a whole step, `step(model, optimizer, batch)`."""
    return bool(getattr(loss, "whole_step", False))
