"""Makes the PyTorch wheel of the package index load without NVIDIA's libraries, for tests on the CPU.

    python cuda_stand_ins.py

That wheel names a dozen CUDA libraries (over 2 GB) which the loader wants to see, though nothing on the CPU calls
them. For each that is missing, an empty stand-in is compiled into PyTorch's own folder: it has the wanted names, and
every function of it answers "no device". Needs `cc` and `readelf`. Only for environments that exist for tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

FOREIGN = re.compile(r"lib(cu[a-zA-Z]*|nccl|nvrtc|nvshmem_host|nvJitLink|nvToolsExt)\.so\.\d+")
# What those libraries define: a name without a version could as well be one that is weak, and better left undefined.
CUDA_NAME = re.compile(r"(__cuda|cu|nccl|nvrtc|nvshmem|nvJitLink|nvtx)[a-zA-Z_]*\w*")
# cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE.
NO_DEVICE = 100


def readelf(*arguments: str) -> str:
    """What `readelf` prints."""
    command = ["readelf", "--wide", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def wanted(libraries: list[Path]) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Missing libraries, the versions that are asked of each, and the names that nothing defines."""
    missing: set[str] = set()
    versions: dict[str, set[str]] = defaultdict(set)
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in libraries:
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", str(library))):
            if FOREIGN.fullmatch(name):
                missing.add(name)
        of = ""
        for line in readelf("--version-info", str(library)).splitlines():
            if found := re.search(r"File: (\S+)", line):
                of = found[1]
            elif (found := re.search(r"Name: (\S+)\s+Flags", line)) and FOREIGN.fullmatch(of):
                versions[of].add(found[1])
        for line in readelf("--dyn-syms", str(library)).splitlines():
            columns = line.split()
            if len(columns) < 8 or not columns[0].endswith(":"):
                continue
            (undefined if columns[6] == "UND" else defined).add(columns[7])
    return missing, versions, undefined - defined


def main() -> int:
    """Compile what is missing."""
    folder = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
    libraries = sorted(folder.glob("*.so*"))
    missing, versions, undefined = wanted(libraries)
    names = defaultdict(set)
    for name in undefined:
        plain, _, version = name.partition("@")
        version = version.strip("@")
        # What has a version belongs to the library of that version; the rest may come from any of them.
        owner = next((library for library, known in versions.items() if version in known), None)
        if owner is None and (version or not CUDA_NAME.fullmatch(plain)):
            continue
        names[owner].add((plain, version))
    with tempfile.TemporaryDirectory() as temporary:
        for library in sorted(missing):
            own = names[library] | (names[None] if library == min(missing) else set())
            source, script = Path(temporary, "stand_in.c"), Path(temporary, "stand_in.map")
            lines = [f"long {name}(void) {{ return {NO_DEVICE}; }}" for name, _ in sorted(own)]
            source.write_text("\n".join(lines) + "\n")
            by_version = {version: [n for n, v in own if v == version] for version in versions[library]}
            script.write_text(
                "".join(f"{v} {{ {''.join(f'{n};' for n in sorted(ns))} }};\n" for v, ns in by_version.items())
            )
            command = ["cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{library}", str(source)]
            if by_version:
                command.append(f"-Wl,--version-script={script}")
            subprocess.run([*command, "-o", str(folder / library)], check=True)
    print(f"{len(missing)} stand-ins in {folder}")
    return subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"]).returncode


if __name__ == "__main__":
    sys.exit(main())
