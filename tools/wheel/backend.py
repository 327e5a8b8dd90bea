"""How pip builds the package: maturin does it, once the libraries that stand before the CUDA driver's are built.

Programs load these by the names of the driver's, so they are no extensions of Python and maturin does not know them. A
source distribution is without them, and so is what is built from one: `gpuheap run` says so there.
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
LIBRARIES = {"gpuheap-shim": "libgpuheap_shim.so", "gpuheap-shim-nvml": "libgpuheap_shim_nvml.so"}


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the libraries and the wheel."""
    build_libraries()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Build the libraries and a wheel that leads to the sources."""
    build_libraries()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def build_libraries() -> None:
    """Build the libraries and put them into the package."""
    if not sys.platform.startswith("linux") or not (ROOT / "crates" / "gpuheap-shim").is_dir():
        return
    command = [os.environ.get("CARGO", "cargo"), "build", "--lib", "--profile", "wheel", "--message-format", "json"]
    for package in LIBRARIES:
        command += ["--package", package]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    files = [Path(file) for message in messages for file in message.get("filenames", [])]
    for name in LIBRARIES.values():
        built_file = next(file for file in reversed(files) if file.name == name)
        shutil.copy(built_file, ROOT / "python" / "gpuheap" / name)
