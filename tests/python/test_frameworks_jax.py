"""What the calls do with JAX itself, on the CPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import gpuheap

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402


def status(released: Any) -> dict[str, str]:
    return {step.name: step.status for step in released.steps}


def test_compiled_functions_are_dropped_and_arrays_stay() -> None:
    double = jax.jit(lambda x: x * 2)
    array = jnp.ones((1024, 1024))
    double(array)
    assert double._cache_size() == 1
    released = gpuheap.release()
    assert status(released)["JAX's compiled functions"] == "done"
    assert double._cache_size() == 0
    assert released.by_class["JAX"] >= 4 << 20
    assert "JAX's live arrays (`jax_buffers=True` deletes them)" in " ".join(str(released).split())
    # Both are as they were.
    assert float(double(array).sum()) == 2 * 1024 * 1024


def test_live_arrays_are_deleted_on_request() -> None:
    array, key = jnp.ones((1024, 1024)), jax.random.key(0)
    released = gpuheap.release(jax_buffers=True)
    assert array.is_deleted()
    assert status(released)["JAX's live arrays"] == "done"
    assert "JAX" not in released.by_class
    with pytest.raises(RuntimeError, match="deleted"):
        array + 1
    with pytest.raises(RuntimeError, match="deleted"):
        jax.random.split(key)
    # JAX itself goes on.
    assert float(jax.jit(lambda x: x + 1)(jnp.zeros(3)).sum()) == 3
    gpuheap.release(jax_buffers=True)
    assert status(gpuheap.release(jax_buffers=True))["JAX's live arrays"] == "skipped"


def test_jax_is_not_started_by_a_release() -> None:
    code = """
import jax, gpuheap
from jax._src import xla_bridge
print(gpuheap.release(jax_buffers=True))
assert not xla_bridge.backends_are_initialized()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "JAX's live arrays, JAX's compiled functions (JAX is not in use)" in " ".join(done.stdout.split())


def test_who_holds_an_array() -> None:
    kept = {"features": jnp.ones((256, 1024))}
    found = gpuheap.holders(kept["features"], budget=60)
    assert found.subject == "Array[256, 1024] float32 on cpu:0"
    assert found.bytes == found.needed_bytes == 1 << 20
    assert [holder.path.partition(" in ")[0] for holder in found] == ["local 'kept'['features']"]


def test_a_deleted_array_keeps_nothing() -> None:
    array = jnp.ones(8)
    array.delete()
    found = gpuheap.holders(array, budget=60)
    assert (found.subject, found.bytes) == ("Array[8] float32, deleted", 0)


def test_a_scope_sees_pytorch_alone() -> None:
    with gpuheap.scope("step", device="cpu", on_leak="raise") as scope:
        kept = jnp.ones(1024)
    assert scope.report is None
    assert kept.sum() == 1024


def arrays(size: int) -> Any:
    import jax.numpy as jnp

    whole = jnp.arange(size)
    return {"whole": whole, "parts": [whole[:2], jnp.ones((2, 2), jnp.bfloat16)], "sum": whole.sum()}


def fails() -> None:
    import jax.numpy as jnp

    jnp.ones((2, 3)) @ jnp.ones((2, 3))


def kind_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__} {value.sum()}"


def test_results_of_another_process_are_numpy_arrays() -> None:
    import numpy

    with gpuheap.Isolate() as own:
        got = own.call(arrays, 5)
        assert {type(got["whole"]), type(got["sum"]), *map(type, got["parts"])} == {numpy.ndarray}
        assert (got["whole"].tolist(), got["sum"].item(), got["parts"][0].tolist()) == ([0, 1, 2, 3, 4], 10, [0, 1])
        assert str(got["parts"][1].dtype) == "bfloat16"
        assert own.call(kind_of, jnp.ones(3)) == "numpy.ndarray 3.0"
        with pytest.raises(TypeError, match="contracting dimensions"):
            own.call(fails)
