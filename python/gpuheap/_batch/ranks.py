"""What the ranks of a distributed program agree on: one exchange, in which every rank takes part whatever happened."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from gpuheap._batch.failures import first_line
from gpuheap.errors import Error

__all__ = ["Ranks", "device_of_rank"]

T = TypeVar("T")
# Seconds beyond the limit of a search, until a rank that says nothing is given up.
_PATIENCE = 120.0


class Ranks:
    """The ranks of ``torch.distributed``; one alone if that is not in use."""

    def __init__(self, group: Any, seconds: float) -> None:
        """Find out who there is. ``seconds`` is how long ranks may differ. All ranks have to come here."""
        self.size = 1
        self.rank = 0
        self._distributed: Any = None
        self._group = group
        self._own = False
        torch = sys.modules.get("torch")
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return
        self.size = int(distributed.get_world_size(group))
        self.rank = int(distributed.get_rank(group))
        self._distributed = distributed
        if group is None and self.size > 1 and distributed.is_gloo_available():
            # On the host, so that it takes no device memory, and with a limit that is longer than a search.
            with suppress(RuntimeError):
                self._group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=seconds + _PATIENCE))
                self._own = True

    def agree(self, work: Callable[[], tuple[T, Any]]) -> tuple[T, list[Any]]:
        """Do the work on every rank; return what it made here, and what it tells the others, of each rank.

        What it raises here is raised here, after the others have been told; they raise an error that names this rank.
        """
        value: T | None = None
        told: Any = None
        failure: BaseException | None = None
        try:
            value, told = work()
        except BaseException as error:
            failure = error
        try:
            answers = self._exchange((None if failure is None else first_line(failure), told))
        except BaseException:
            if failure is not None:
                raise failure from None
            raise
        finally:
            self._close()
        if failure is not None:
            try:
                raise failure
            finally:
                # Or the frames of this call would be kept by the exception, and it by them.
                del failure
        failed = [(rank, text) for rank, (text, _) in enumerate(answers) if text is not None]
        if failed:
            rank, text = failed[0]
            others = f" (and {len(failed) - 1} others)" if len(failed) > 1 else ""
            raise Error(
                f"`find_batch_size` failed on rank {rank} of {self.size}{others}\n  cause: {text}",
                f"the output of rank {rank} has the traceback",
            )
        assert value is not None
        return value, [told for _, told in answers]

    def _exchange(self, mine: Any) -> list[Any]:
        if self._distributed is None or self.size == 1:
            return [mine]
        answers: list[Any] = [None] * self.size
        self._distributed.all_gather_object(answers, mine, group=self._group)
        return answers

    def _close(self) -> None:
        if self._own:
            self._own = False
            with suppress(Exception):
                self._distributed.destroy_process_group(self._group)


def device_of_rank(device: str | None) -> str | None:
    """The device that the program uses, if it has said so; the one of this rank, if it has not come to that yet."""
    if device not in (None, "cuda"):
        return device
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda"):
        return device
    if torch.cuda.is_initialized():
        return f"cuda:{torch.cuda.current_device()}"
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return device
    local = os.environ.get("LOCAL_RANK", "")
    if local.isdigit() and torch.cuda.is_available() and int(local) < torch.cuda.device_count():
        return f"cuda:{int(local)}"
    return device
