"""The largest batch size that fits: solved from a few runs in processes of their own, then verified."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpuheap._batch.plan import make_plan, scale_rate
from gpuheap._batch.ranks import Ranks, device_of_rank
from gpuheap._batch.result import BatchSize, BatchSizeError, Found
from gpuheap._batch.run import Range, Runs, expect_budget, search
from gpuheap._bytes import parse_bytes

__all__ = ["BatchSize", "BatchSizeError", "find_batch_size"]


def find_batch_size(
    make_step: Callable[[int], Callable[[], Any]],
    budget: int | str | None = None,
    *,
    device: str | None = None,
    start: int = 8,
    most: int = 65_536,
    multiple_of: int = 1,
    steps: int = 3,
    evaluate: Callable[[int], Callable[[], Any]] | None = None,
    target: int | None = None,
    learning_rate: float | tuple[float, int] | None = None,
    extra: int | str = 0,
    timeout: float = 1800,
    group: Any = None,
    quiet: bool = False,
) -> BatchSize:
    """Find the largest batch size of a training step that fits, in at most six runs, none of them in this process.

    ``make_step(batch_size)`` makes model, optimizer and a batch of that size, and returns a function that does one
    training step: forward, backward, optimizer. It is only ever called in other processes (see :func:`isolate`), so
    weights, optimizer, random numbers and loaders here stay as they are, and no out-of-memory error arises here.

    A size fits if ``steps`` optimizer steps (at least two; more until the allocator takes no more memory) run without
    an out-of-memory error of any library, without the allocator giving memory back to ask again, and without memory
    that the driver silently puts on the host. Found is a size that has been run and fits, where one at most 3 % larger
    has been run, too, and does not. If six runs do not suffice for that, the result says so, with bounds.

    Args:
        make_step: makes a training step for a batch size.
        budget: the most that PyTorch's allocator may reserve, in bytes or as text (``"24GiB"``): what
            ``torch.cuda.memory_reserved`` counts. By default what the device has free for a new process, less what
            context and libraries take there. On a CPU it is the most that tensors may hold, and has to be given.
        device: ``"cuda"``, ``"cuda:1"`` or ``"cpu"``; by default the current CUDA device, else the CPU.
        start: the size of the first run.
        most: no larger size is tried.
        multiple_of: the size is a multiple of this.
        steps: optimizer steps of each run, at least two.
        evaluate: makes an evaluation step for a batch size; solved for itself, and if none fits, training keeps its
            size.
        target: the effective batch, over all passes and ranks, that accumulation is planned for.
        learning_rate: the learning rate that is right for ``target``, or ``(rate, batch)``: for that effective batch.
        extra: memory that something else will hold in the allocator, in bytes or as text; ``"ddp"``: as much as the
            gradients, as `DistributedDataParallel` does for its buckets.
        timeout: the most seconds for all of it.
        group: the ranks that agree, if not all of ``torch.distributed``.
        quiet: print no line for each run to standard error.

    If ``torch.distributed`` is initialised, each rank searches on its own device, and all get the smallest size. All
    ranks have to call it.

    Raises:
        BatchSizeError: not even the smallest size fits; says by how much, and what fills the memory. Or time ran out
            before one did.
        Error: the step is none, or another rank has failed.
        Exception: whatever else ``make_step`` or the step raised, with the traceback of the other process.

    >>> result = gpuheap.find_batch_size(make_step, "24GiB", target=256)
    >>> result.batch_size, result.accumulation
    (64, 4)
    """
    began = time.monotonic()
    ranks = Ranks(group, timeout)

    def work() -> tuple[tuple[Found, Found | None], tuple[int, int | None]]:
        _check(make_step, evaluate, start, most, multiple_of, steps, target, learning_rate, timeout)
        limit = None if budget is None else parse_bytes(budget)
        where = device_of_rank(device)
        expect_budget(limit, where)
        beside = None if extra == "ddp" else parse_bytes(extra)
        runs = Runs(limit, where, steps, beside, timeout, quiet)
        try:
            training = search(runs, make_step, Range(start, most, multiple_of), training=True)
            assert training.largest is not None
            evaluation = None
            if evaluate is not None:
                # What can be trained with can as a rule be evaluated with.
                first = Range(training.largest, most, multiple_of)
                evaluation = search(runs, evaluate, first, training=False)
        finally:
            runs.close()
        return (training, evaluation), (training.largest, None if evaluation is None else evaluation.largest)

    (training, evaluation), told = ranks.agree(work)
    sizes = tuple(size for size, _ in told)
    evaluations = [size for _, size in told]
    plan = make_plan(min(sizes), multiple_of, ranks.size, target)
    rate, rule = None, None
    if learning_rate is not None:
        base = learning_rate if isinstance(learning_rate, tuple) else (learning_rate, target or 0)
        assert training.run is not None
        rate, rule = scale_rate(*base, plan.effective, training.run.optimizers)
    return BatchSize(
        plan=plan,
        largest=min(sizes),
        learning_rate=rate,
        learning_rate_rule=rule,
        training=training,
        evaluation=evaluation,
        eval_batch_size=None if None in evaluations else min(size for size in evaluations if size is not None),
        largest_by_rank=sizes,
        target=target,
        seconds=time.monotonic() - began,
    )


def _check(
    make_step: object,
    evaluate: object,
    start: int,
    most: int,
    multiple_of: int,
    steps: int,
    target: int | None,
    learning_rate: float | tuple[float, int] | None,
    timeout: float,
) -> None:
    for name, function in (("make_step", make_step), ("evaluate", evaluate)):
        if not callable(function) and not (name == "evaluate" and function is None):
            raise ValueError(f"`{name}` is {function!r}, expected a function of a batch size that returns a step")
    for name, number, least in (
        ("start", start, 1),
        ("multiple_of", multiple_of, 1),
        ("most", most, multiple_of),
        ("steps", steps, 2),
        ("target", target, 1),
    ):
        if number is not None and number < least:
            why = ": the optimizer's state is made in the first step" if name == "steps" else ""
            raise ValueError(f"`{name}` is {number}, expected at least {least}{why}")
    if timeout <= 0:
        raise ValueError(f"`timeout` is {timeout}, expected a positive number of seconds")
    if learning_rate is not None and not isinstance(learning_rate, tuple) and target is None:
        raise ValueError(
            f"`learning_rate` is {learning_rate}, but for which batch? Write `({learning_rate}, 256)`, or give `target`"
        )
