"""No call imports a framework that the program has not, and arrays are told without one."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

import gpuheap
from gpuheap._arrays import array_of

FRAMEWORKS = ("torch", "jax", "cupy", "tensorflow", "keras", "numpy", "IPython")

CALLS = """
import sys
{imports}
frameworks = {frameworks}
before = {{name for name in frameworks if name in sys.modules}}
import gpuheap
gpuheap.release()
gpuheap.release(compiled=True, graphs=True, notebook=True)
kept = [object()]
assert len(gpuheap.holders(kept[0], budget=60)) == 1
assert len(gpuheap.holders(1 << 40)) == 0
with gpuheap.scope("block", budget="1 GiB", track=True):
    pass

@gpuheap.scope("function")
def function():
    return 1

assert function() == 1
assert list(gpuheap.prefetch([1, 2])) == [1, 2]
assert gpuheap.isolate(max, 1, 2) == 2
print(*sorted(name for name in frameworks if name in sys.modules and name not in before))
"""


@pytest.mark.parametrize("imports", ["", "import numpy", "import torch", "import jax", "import tensorflow"])
def test_no_framework_is_imported_that_the_program_has_not(imports: str) -> None:
    name = imports.removeprefix("import ")
    if name and importlib.util.find_spec(name) is None:
        pytest.skip(f"`{name}` is not installed")
    code = CALLS.format(imports=imports, frameworks=FRAMEWORKS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"


def test_an_array_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    whole = numpy.ones((256, 1024), dtype="float32")
    found = gpuheap.holders(whole[:2])
    assert found.subject == "ndarray[2, 1024] float32 on cpu"
    assert (found.bytes, found.needed_bytes) == (1 << 20, 8 << 10)


class Impostor:
    """Says that it is an array of JAX, and fails at everything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


Impostor.__module__, Impostor.__qualname__ = "jaxlib.fake", "ArrayImpl"


def test_what_only_looks_like_an_array_is_no_error() -> None:
    assert array_of(Impostor()) is None
    assert array_of([1]) is None
    assert gpuheap.holders(Impostor()).subject == "an ArrayImpl"


class FakeArray:
    """An array of CuPy by its surface."""

    shape, dtype, device, nbytes, base = (2, 3), "float32", "<CUDA Device 1>", 24, None


FakeArray.__module__, FakeArray.__qualname__ = "cupy", "ndarray"


def test_an_array_of_cupy() -> None:
    found = array_of(FakeArray())
    assert found is not None
    assert (found.text, found.bytes) == ("ndarray[2, 3] float32 on cuda:1", 24)


def test_keras_without_tensorflow() -> None:
    if not all(map(importlib.util.find_spec, ("keras", "jax"))):
        pytest.skip("Keras and JAX are not installed")
    code = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
import keras, gpuheap
first, second = keras.layers.Dense(1).name, keras.layers.Dense(1).name
print({step.name: step.status for step in gpuheap.release().steps}["Keras' session"])
print(first != second, keras.layers.Dense(1).name == first, "tensorflow" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\nTrue True False\n"), done.stderr
