"""The file of what is known about a type of device: what a calibration measured, and what verifications found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["is_named", "keep", "kept"]


def is_named(full: str, short: str) -> bool:
    """Whether a GPU with this full name, such as `NVIDIA H200`, is of the type that plans name so: `H200`."""
    full, short = (name.lower().translate({ord(one): None for one in " -_"}) for name in (full, short))
    return short in full or full in short


def kept(path: Path, device: str) -> dict[str, Any]:
    """What the file says about the device; empty if it is about another one, or cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # What cannot be read is written anew.
        return {}
    return found if isinstance(found, dict) and found.get("device") == device else {}


def keep(path: Path, value: Any) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(value, indent=1), encoding="utf-8")
    os.replace(beside, path)
