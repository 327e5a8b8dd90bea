"""How pip builds the package: maturin does it, once the library that stands before the CUDA driver is built.

Programs load that library by the driver's name, so it is no extension of Python and maturin does not know it. A source
distribution is without it, and so is what is built from one: `gpuheap run` says so there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import maturin
from maturin import (  # noqa: F401  (what a build backend has)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).parents[2]
LIBRARY = "libgpuheap_shim.so"


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the library and the wheel."""
    build_library()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the library and a wheel that leads to the sources."""
    build_library()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_library() -> None:
    """Build the library and put it into the package."""
    if not sys.platform.startswith("linux") or not (ROOT / "crates" / "gpuheap-shim").is_dir():
        return
    cargo = os.environ.get("CARGO", "cargo")
    command = [cargo, "build", "--package", "gpuheap-shim", "--lib", "--profile", "wheel", "--message-format", "json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    files = [file for message in messages for file in message.get("filenames", []) if file.endswith("/" + LIBRARY)]
    shutil.copy(files[-1], ROOT / "python" / "gpuheap" / LIBRARY)
