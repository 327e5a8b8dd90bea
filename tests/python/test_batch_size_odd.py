"""`gpuheap.find_batch_size` with programs that are odd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gpuheap
import support_batch as steps

pytest.importorskip("torch")


@pytest.mark.parametrize("make", [steps.make_generator_step, steps.make_coroutine_step])
def test_a_step_that_has_done_nothing_yet_is_none(make: Callable[[int], Any]) -> None:
    with pytest.raises(gpuheap.Error, match="and has done nothing yet"):
        gpuheap.find_batch_size(make, "16MiB", device="cpu", quiet=True)
