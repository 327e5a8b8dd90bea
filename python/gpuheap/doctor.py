"""The leak investigation as one call: `gpuheap.doctor(model, step)`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from gpuheap._bytes import bytes_text
from gpuheap._doctor.report import Finding, Report
from gpuheap._doctor.restore import Saved
from gpuheap._doctor.session import Session
from gpuheap._doctor.subject import Subject, roots_of
from gpuheap._tensors import loaded_torch, plain

__all__ = ["Finding", "Report", "doctor"]

STEPS = 12
_MORE = 4


def doctor(
    model: Any,
    step: Callable[..., object],
    *,
    steps: int = STEPS,
    loader: Iterable[Any] | None = None,
    evaluate: Callable[[], object] | None = None,
    optimizer: Any = None,
    max_steps: int | None = None,
    budget_seconds: float = 300.0,
    restore: bool = True,
    quiet: bool = False,
) -> Report:
    """Runs some steps of a training program and says what keeps, wastes or leaks memory, with file and line.

    Checked are the parameters (types, places, duplicates, a second copy or a checkpoint in memory, pruning masks,
    state of optimizers), memory over the steps (what outlives its step, who holds it, where it was made), data loading,
    graphs that are kept alive, and habits (evaluation without `no_grad`, `zero_grad(set_to_none=False)`,
    `DataParallel`, `empty_cache` in every step, hooks, exceptions and caches that keep tensors).

    The steps are the program's own and do train the model. Afterwards weights, gradients, optimizers, schedulers,
    gradient scalers and random numbers are put back bit for bit, from copies on the host that take as much memory as
    they do. What the steps put into lists and the like stays there, and an iterator of the program has moved on.
    Everything that was put in place to watch is taken away, also when a step raises: that exception goes on unchanged,
    with the report so far as a note.

    Args:
        model: a `torch.nn.Module`, or a list of those that belong together.
        step: makes one step; called without arguments, or with a batch if `loader` is given.
        steps: how many steps are run. 7 are the fewest that tell a leak from a warm-up.
        loader: gives the batches; it is begun anew when it ends.
        evaluate: the program's evaluation, called without arguments after every fourth part of `steps`.
        optimizer: the optimizer, or a list of several. Found by itself if it is alive and has parameters of the model.
        max_steps: how far to go on if something grows or might: more steps tell a buffer that fills from a leak
            [default: four times `steps`]. Growth by more than 1 GiB (on a device: half of what is free) is not awaited.
        budget_seconds: after so many seconds no further step is begun.
        restore: put everything back at the end.
        quiet: say nothing on standard error while the steps run.

    Returns:
        A `Report`: `str()` of it is text, `findings` are the findings, `ok` says that there are none.

    Raises:
        Error: the model is no PyTorch model, or the loader gives nothing.
        ValueError: `steps`, `max_steps` or `budget_seconds` is not positive.
    """
    if steps < 1 or (max_steps is not None and max_steps < 1) or not budget_seconds > 0:
        raise ValueError("`steps`, `max_steps` and `budget_seconds` must be positive")
    if not callable(step) or (evaluate is not None and not callable(evaluate)):
        raise TypeError(f"`{'step' if not callable(step) else 'evaluate'}` must be a function")
    started = time.monotonic()
    torch = loaded_torch()
    roots = roots_of(torch, model)

    def say(text: str) -> None:
        if not quiet:
            print(f"gpuheap doctor: {text}", file=sys.stderr)

    subject = Subject(torch, roots, optimizer)
    # Attributes of tensors mean what PyTorch means by them, also where a subclass has its own answer.
    with plain(torch):
        session = Session(subject, step, loader=loader, evaluate=evaluate, deadline=started + budget_seconds, say=say)
        saved = Saved(subject) if restore else None
    if saved is not None and saved.bytes:
        say(
            f"{bytes_text(saved.bytes)} of weights, gradients and optimizer state are copied to the host, to be put "
            "back"
        )
    try:
        session.run(steps, max(steps, _MORE * steps if max_steps is None else max_steps))
        with plain(torch):
            report = session.examine()
    except BaseException as error:
        _add_partial(session, error, started, quiet)
        raise
    finally:
        failed = saved.put_back() if saved is not None else []
    if saved is not None:
        report.notes.append(
            "weights, gradients, optimizers and random numbers are as they were before the steps "
            f"({bytes_text(saved.bytes)} "
            "were copied to the host)"
        )
        report.notes += [f"not put back: {one}" for one in failed]
    report.seconds = time.monotonic() - started
    return report


def _add_partial(session: Session, error: BaseException, started: float, quiet: bool) -> None:
    """The report so far, as a note on the exception. Text only: nothing keeps its frames."""
    try:
        session.report.error = type(error).__name__
        with plain(session.torch):
            report = session.examine(partial=True)
        report.seconds = time.monotonic() - started
        text = report.text()
    except Exception:  # the program's own exception matters more
        return
    add_note = getattr(error, "add_note", None)
    if add_note is not None:
        add_note(text)
    elif not quiet:
        # Before Python 3.11 exceptions take no notes.
        print(text, file=sys.stderr)
