"""What the calls do with TensorFlow itself, on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import gpuheap

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    tensorflow = pytest.importorskip("tensorflow")


def status(released: Any) -> dict[str, str]:
    return {step.name: step.status for step in released.steps}


def test_the_session_of_keras_is_cleared_and_models_stay() -> None:
    layers = tensorflow.keras.layers
    model = tensorflow.keras.Sequential([layers.Dense(3, name="kept")])
    before = model(tensorflow.ones((2, 4))).numpy()
    first, second = layers.Dense(1).name, layers.Dense(1).name
    assert first != second
    released = gpuheap.release()
    assert not released.failed
    assert status(released)["Keras' session"] == "done"
    # Names are counted from the beginning again, which is what a cleared session is known by.
    assert layers.Dense(1).name == "dense"
    assert (model(tensorflow.ones((2, 4))).numpy() == before).all()


def test_statistics_need_a_gpu() -> None:
    tensorflow.ones(1)
    released = gpuheap.release()
    if not tensorflow.config.list_logical_devices("GPU"):
        assert "TensorFlow's statistics (no GPU is in use)" in str(released)
    assert status(released)["TensorFlow's statistics"] in ("done", "skipped")


def test_tensorflow_is_not_started_by_a_release() -> None:
    code = """
import tensorflow, gpuheap
from tensorflow.python.eager import context
print(gpuheap.release())
started = context.context_safe()
assert started is None or not started._initialized
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "TensorFlow's statistics (no GPU is in use)" in done.stdout


def test_who_holds_a_tensor() -> None:
    kept = [tensorflow.ones((256, 1024))]
    found = gpuheap.holders(kept[0], budget=60)
    assert found.subject.startswith("Tensor[256, 1024] float32 on ")
    assert found.bytes == 1 << 20
    assert [holder.path.partition(" in ")[0] for holder in found] == ["local 'kept'[0]"]


def test_a_scope_sees_pytorch_alone() -> None:
    with gpuheap.scope("step", device="cpu", on_leak="raise") as scope:
        kept = tensorflow.ones(1024)
    assert scope.report is None
    assert float(tensorflow.reduce_sum(kept)) == 1024


def tensors(size: int) -> Any:
    import tensorflow

    ragged = tensorflow.ragged.constant([[1], [2, 3]])
    return {
        "whole": tensorflow.range(size),
        "variable": tensorflow.Variable([1.0, 2.0]),
        "text": tensorflow.constant("text"),
        "half": [tensorflow.ones((2, 2), tensorflow.bfloat16)],
        "ragged": ragged,
        "sparse": tensorflow.sparse.from_dense([[0, 1], [2, 0]]),
    }


def fails() -> None:
    import tensorflow

    tensorflow.matmul(tensorflow.ones((2, 3)), tensorflow.ones((2, 3)))


def test_results_of_another_process_are_numpy_arrays() -> None:
    import numpy

    with gpuheap.Isolate() as own:
        got = own.call(tensors, 4)
        assert {type(got[name]) for name in ("whole", "variable", "text")} == {numpy.ndarray}
        assert (got["whole"].tolist(), got["variable"].tolist(), got["text"].item()) == ([0, 1, 2, 3], [1, 2], b"text")
        assert str(got["half"][0].dtype) == "bfloat16"
        # What is made of several tensors stays what it is.
        assert got["ragged"].to_list() == [[1], [2, 3]]
        assert tensorflow.sparse.to_dense(got["sparse"]).numpy().tolist() == [[0, 1], [2, 0]]
        with pytest.raises(tensorflow.errors.InvalidArgumentError, match="incompatible"):
            own.call(fails)


FUNCTIONS = """
def ones(size):
    import tensorflow
    return tensorflow.ones(size)
"""


def test_a_result_does_not_bring_tensorflow_along(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    code = "import sys, gpuheap, functions; print(gpuheap.isolate(functions.ones, 3), 'tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[1. 1. 1.] False\n"), done.stderr
