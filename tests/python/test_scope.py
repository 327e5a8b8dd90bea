"""`gpuheap.scope`: survivors, what is no survivor, budgets, nesting, threads, generators and coroutines.

All on host tensors (`device="cpu"`): what a scope does does not depend on the device.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from gpuheap.errors import Error
from gpuheap.scope import BudgetExceeded, LeakError, LeakReport, LeakWarning, Survivor, scope

MIB = 1 << 20


@pytest.fixture(scope="module")
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


@pytest.fixture(params=[False, True], ids=["compared", "tracked"])
def track(request: pytest.FixtureRequest) -> bool:
    """Both ways to know what is new."""
    return bool(request.param)


KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    KEPT.clear()
    yield
    KEPT.clear()


def mib(torch: Any, count: int = 1) -> Any:
    return torch.zeros(count * MIB, dtype=torch.uint8)


class Reports(list[LeakReport]):
    """Collects what scopes find."""

    def __call__(self, report: LeakReport) -> None:
        self.append(report)

    def sizes(self) -> list[tuple[str, int]]:
        return [(report.name, report.bytes) for report in self]


@pytest.fixture
def reports() -> Reports:
    return Reports()


# What survives


def test_a_clean_block_says_nothing(torch: Any, track: bool) -> None:
    with scope("step", device="cpu", on_leak="raise", track=track) as step:
        assert mib(torch).sum() == 0
    assert step.report is None


def test_a_survivor_is_named_with_bytes_site_and_holder(torch: Any) -> None:
    with pytest.warns(LeakWarning) as caught:
        with scope("step", device="cpu", track=True):
            KEPT.append(mib(torch, 4))
    line = caught[0].lineno
    with open(__file__) as source:
        assert source.read().splitlines()[line - 1].strip().startswith("with scope(")
    assert caught[0].filename == __file__
    report = caught[0].message.report  # type: ignore[union-attr]
    made = mib.__code__.co_firstlineno + 1
    assert str(caught[0].message) == (
        "scope `step`: 1 storage of 4.00 MiB allocated inside is alive at its end\n"
        f"  Tensor[4194304] uint8 on cpu, 4.00 MiB (other tensors), allocated at test_scope.py:{made} (mib)\n"
        f"    held by {__name__}.KEPT[0]"
    )
    assert report.survivors == (
        Survivor(
            "Tensor[4194304] uint8 on cpu",
            4 * MIB,
            "other tensors",
            f"test_scope.py:{made} (mib)",
            (f"{__name__}.KEPT[0]",),
        ),
    )


def test_without_tracking_the_site_is_said_to_be_unknown(torch: Any) -> None:
    with pytest.warns(LeakWarning, match="site not known: `track=True`, or PyTorch's allocation history, tells it"):
        with scope("step", device="cpu"):
            KEPT.append(mib(torch))


def test_errors_and_functions(torch: Any, track: bool, reports: Reports) -> None:
    with pytest.raises(LeakError, match=r"scope `a`: 1 storage of 1\.00 MiB allocated inside is alive at its end"):
        with scope("a", device="cpu", on_leak="raise", track=track):
            KEPT.append(mib(torch))
    with scope("b", device="cpu", on_leak=reports, track=track) as block:
        KEPT.append(mib(torch, 2))
    assert reports == [block.report]
    assert reports.sizes() == [("b", 2 * MIB)]
    assert issubclass(LeakError, Error)


def test_what_was_there_before_is_no_survivor(torch: Any, track: bool) -> None:
    KEPT.append(mib(torch))
    with scope("step", device="cpu", on_leak="raise", track=track):
        KEPT.append(KEPT[0][:10])
        KEPT.append(KEPT[0].view(2, -1))
        KEPT[0].add_(1)
        KEPT.append(KEPT[0].detach())


def test_views_pin_their_storage_and_count_once(torch: Any, track: bool, reports: Reports) -> None:
    with scope("step", device="cpu", on_leak=reports, track=track):
        whole = mib(torch, 8)
        KEPT.extend([whole[:1], whole[1:2]])
        del whole
    assert reports.sizes() == [("step", 8 * MIB)]


def test_addresses_that_are_used_again(torch: Any, track: bool, reports: Reports) -> None:
    KEPT.extend(mib(torch) for _ in range(16))
    with scope("step", device="cpu", on_leak=reports, track=track):
        # The new ones may well get the memory and the bookkeeping of the old ones.
        KEPT.clear()
        KEPT.extend(mib(torch) for _ in range(16))
    assert reports.sizes() == [("step", 16 * MIB)]


def test_a_graph_that_is_kept_counts_with_all_that_it_saved(torch: Any, track: bool, reports: Reports) -> None:
    weight = torch.ones(MIB // 4, requires_grad=True)
    with scope("step", device="cpu", on_leak=reports, track=track):
        KEPT.append((weight * 2).exp().sum())
    assert reports[0].bytes >= MIB + 4
    assert any("saved for backward by ExpBackward0" in path for one in reports[0].survivors for path in one.holders)
    assert weight.grad is None


def test_gradients_are_survivors_by_class(torch: Any, track: bool, reports: Reports) -> None:
    model = torch.nn.Linear(256, 256)
    with scope("step", device="cpu", on_leak=reports, track=track):
        model(torch.ones(1, 256)).sum().backward()
    assert {one.group for one in reports[0].survivors} == {"gradients"}
    model.zero_grad()
    with scope("step", device="cpu", on_leak="raise", allow=("gradients",), track=track):
        model(torch.ones(1, 256)).sum().backward()


def test_the_first_step_of_training(torch: Any, track: bool) -> None:
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.Adam(model.parameters())
    allowed = ("gradients", "optimizer state")
    with scope("step", device="cpu", on_leak="raise", allow=allowed, track=track):
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with scope("step", device="cpu", on_leak="raise", track=track):
        model(torch.ones(1, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_what_is_allowed(torch: Any, track: bool, reports: Reports) -> None:
    with scope("a", device="cpu", on_leak="raise", allow=lambda one: one.bytes < 2 * MIB, track=track):
        KEPT.append(mib(torch))
    with scope("b", device="cpu", on_leak=reports, allow=lambda one: one.bytes < 2 * MIB, track=track):
        KEPT.append(mib(torch))
        KEPT.append(mib(torch, 3))
    assert reports.sizes() == [("b", 3 * MIB)]
    with scope("c", device="cpu", on_leak="raise", tolerance="1 MiB", track=track):
        KEPT.append(mib(torch))


def test_cycles_are_collected_first(torch: Any, track: bool, reports: Reports) -> None:
    class Node:
        pass

    gc.disable()
    try:
        with scope("step", device="cpu", on_leak="raise", track=track):
            node: Any = Node()
            node.me, node.tensor = node, mib(torch)
            del node
        with scope("both", device="cpu", on_leak=reports, track=track):
            node = Node()
            node.me, node.tensor = node, mib(torch)
            del node
            KEPT.append(mib(torch, 2))
    finally:
        gc.enable()
    assert reports.sizes() == [("both", 2 * MIB)]
    assert reports[0].collected_bytes == MIB
    assert "1.00 MiB more were freed by collecting reference cycles" in str(reports[0])


def test_only_the_device_that_was_asked_for(torch: Any, track: bool) -> None:
    with scope("accelerators", on_leak="raise", track=track):
        KEPT.append(mib(torch))
    with scope("cuda", device="cuda", on_leak="raise", track=track):
        KEPT.append(mib(torch))


# What is handed out


def test_keep(torch: Any, track: bool) -> None:
    with scope("step", device="cpu", on_leak="raise", track=track) as step:
        KEPT.append(step.keep({"out": [mib(torch)], "n": 3}))
        model = step.keep(torch.nn.Linear(8, 8))
        loss = step.keep((torch.ones(64, requires_grad=True) * 2).exp().sum())
    assert (len(KEPT), model.in_features, loss.requires_grad) == (1, 8, True)


def test_keep_keeps_nothing_alive(torch: Any, track: bool) -> None:
    with scope("step", device="cpu", on_leak="raise", track=track) as step:
        tensor = step.keep(mib(torch))
        reference = weakref.ref(tensor)
        del tensor
        assert reference() is None


def test_what_a_function_returns(torch: Any, track: bool, reports: Reports) -> None:
    class Result:
        def __init__(self) -> None:
            self.parts = {"a": (mib(torch),)}

    @scope("f", device="cpu", on_leak=reports, track=track)
    def function(leak: bool, *, named: int = 0) -> Any:
        """Says what it does."""
        if leak:
            KEPT.append(mib(torch, 2))
        return Result()

    assert function.__doc__ == "Says what it does."
    result = function(False, named=1)
    assert reports == []
    assert result.parts["a"][0].numel() == MIB
    function(True)
    assert reports.sizes() == [("f", 2 * MIB)]


def test_a_loss_is_returned_with_its_graph(torch: Any, track: bool) -> None:
    @scope("loss", device="cpu", on_leak="raise", track=track)
    def loss() -> Any:
        return (torch.ones(64, requires_grad=True) * 2).exp().sum()

    loss().backward()


def test_recursion(torch: Any, track: bool, reports: Reports) -> None:
    @scope("down", device="cpu", on_leak=reports, track=track)
    def down(depth: int) -> Any:
        return down(depth - 1) if depth else mib(torch)

    assert down(3).numel() == MIB
    assert reports == []


# Budgets


def test_a_budget(torch: Any) -> None:
    with scope("small", "4 MiB", device="cpu") as block:
        for _ in range(100):
            mib(torch, 3)
    assert block.peak_bytes is not None and 3 * MIB <= block.peak_bytes <= 4 * MIB
    kept = []
    with pytest.raises(BudgetExceeded) as caught:
        with scope("large", 4 * MIB, device="cpu"):
            for _ in range(10):
                kept.append(mib(torch))
    assert len(kept) == 4
    error = caught.value
    assert (error.name, error.budget, error.allocated) == ("large", 4 * MIB, 5 * MIB)
    assert str(error).splitlines()[0] == "scope `large`: 5.00 MiB allocated, over its budget of 4.00 MiB"
    # Only what is allocated beyond the beginning counts.
    with scope("again", 4 * MIB, device="cpu"):
        mib(torch, 3)


def test_a_budget_in_a_backward_pass(torch: Any) -> None:
    weight = torch.ones(MIB, requires_grad=True)
    loss = (weight * 2).sum()
    with pytest.raises(BudgetExceeded):
        with scope("backward", "2 MiB", device="cpu"):
            loss.backward()


def test_nested_budgets(torch: Any) -> None:
    with pytest.raises(BudgetExceeded, match="scope `outer`"):
        with scope("outer", 4 * MIB, device="cpu"):
            first = mib(torch, 3)
            with scope("inner", 3 * MIB, device="cpu", allow=lambda one: True):
                second = mib(torch, 2)
    del first
    assert "second" not in locals()
    with pytest.raises(BudgetExceeded, match="scope `inner`"):
        with scope("outer", 40 * MIB, device="cpu"):
            with scope("inner", 1 * MIB, device="cpu"):
                mib(torch, 2)


def test_the_hook_goes_with_the_last_scope(torch: Any) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    assert _get_current_dispatch_mode() is None
    with pytest.raises(BudgetExceeded):
        with scope("outer", 1 << 40, device="cpu"), scope("inner", 1, device="cpu"):
            assert _get_current_dispatch_mode() is not None
            mib(torch)
    assert _get_current_dispatch_mode() is None


def test_exceptions_travel() -> None:
    error = pickle.loads(pickle.dumps(BudgetExceeded("a", 1, 2)))
    assert (error.name, error.budget, error.allocated) == ("a", 1, 2)
    leak = pickle.loads(pickle.dumps(LeakError(LeakReport("a", (), 0, 0))))
    assert leak.report.name == "a"


# Nesting, exceptions


def test_an_inner_report_is_not_repeated(torch: Any, track: bool, reports: Reports) -> None:
    with scope("outer", device="cpu", on_leak=reports, track=track):
        with scope("inner", device="cpu", on_leak=reports, track=track):
            KEPT.append(mib(torch))
        KEPT.append(mib(torch, 2))
    assert reports.sizes() == [("inner", MIB), ("outer", 2 * MIB)]


def test_kept_by_the_inner_is_still_the_outers(torch: Any, track: bool, reports: Reports) -> None:
    with scope("outer", device="cpu", on_leak=reports, track=track):
        with scope("inner", device="cpu", on_leak=reports, track=track) as inner:
            KEPT.append(inner.keep(mib(torch)))
    assert reports.sizes() == [("outer", MIB)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError, asyncio.CancelledError])
def test_exceptions_pass_unchanged(torch: Any, track: bool, kind: type[BaseException]) -> None:
    error = kind("stop")
    with pytest.raises(kind) as caught:
        with scope("outer", device="cpu", on_leak="raise", track=track):
            with scope("step", device="cpu", on_leak="raise", track=track) as step:
                KEPT.append(mib(torch))
                raise error
    assert caught.value is error
    assert error.__context__ is None
    assert step.report is None

    @scope("f", device="cpu", on_leak="raise", track=track)
    def function() -> None:
        KEPT.append(mib(torch))
        raise error

    with pytest.raises(kind) as caught:
        function()
    assert caught.value is error
    # The next scope starts anew.
    with scope("next", device="cpu", on_leak="raise", track=track):
        mib(torch)


def test_a_scope_is_not_opened_twice(torch: Any) -> None:
    block = scope("once", device="cpu")
    with block:
        with pytest.raises(RuntimeError, match="is open already"):
            block.__enter__()
    with block:
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"budget": "much"}, "is not an amount of memory"),
        ({"on_leak": "shout"}, "`on_leak` is"),
        ({"allow": ("weights",)}, "not 'weights'"),
        ({"tolerance": -1}, "is not an amount of memory"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scope("wrong", **arguments)


def test_without_torch_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with scope("step", budget=1, on_leak="raise", track=True):
        pass


# Threads


def test_scopes_of_threads_do_not_see_each_other(torch: Any) -> None:
    found: dict[str, Reports] = {"clean": Reports(), "leaky": Reports()}
    both = threading.Barrier(2, timeout=20)
    kept: list[Any] = []

    def clean() -> None:
        with scope("clean", device="cpu", on_leak=found["clean"]):
            both.wait()
            mib(torch)
            both.wait()
            both.wait()

    def leaky() -> None:
        both.wait()
        with scope("leaky", device="cpu", on_leak=found["leaky"]):
            kept.append(mib(torch, 2))
        both.wait()
        both.wait()

    threads = [threading.Thread(target=clean), threading.Thread(target=leaky)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["clean"] == []
    assert found["leaky"].sizes() == [("leaky", 2 * MIB)]


def test_a_tracked_scope_does_not_see_threads_without_one(torch: Any) -> None:
    kept: list[Any] = []
    with scope("step", device="cpu", on_leak="raise", track=True):
        thread = threading.Thread(target=lambda: kept.append(mib(torch)))
        thread.start()
        thread.join()
    assert len(kept) == 1


def test_many_threads(torch: Any) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                with scope("step", "64 MiB", device="cpu", on_leak="raise"):
                    mib(torch, 2).add_(1)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Generators and coroutines


def test_a_generator_counts_its_own_slices(torch: Any, track: bool, reports: Reports) -> None:
    mine: list[Any] = []

    @scope("batches", device="cpu", on_leak=reports, track=track)
    def batches(leak: bool) -> Iterator[Any]:
        for _ in range(3):
            if leak:
                KEPT.append(mib(torch, 2))
            yield mib(torch)

    for batch in batches(False):
        # The caller's memory, while the generator is suspended.
        mine.append(mib(torch, 5))
        mine.append(batch)
    assert reports == []
    assert len(list(batches(True))) == 3
    assert reports.sizes() == [("batches", 6 * MIB)]


def test_a_generator_that_is_closed_or_thrown_into(torch: Any, track: bool) -> None:
    closed: list[str] = []

    @scope("batches", device="cpu", on_leak="raise", track=track)
    def batches() -> Iterator[Any]:
        try:
            while True:
                try:
                    yield mib(torch)
                except ValueError:
                    closed.append("caught")
        finally:
            closed.append("closed")

    it: Any = batches()
    next(it)
    it.throw(ValueError)
    it.close()
    assert closed == ["caught", "closed"]
    it = batches()
    next(it)
    with pytest.raises(KeyError):
        it.throw(KeyError)


def test_a_coroutine_counts_its_own_slices(torch: Any, track: bool, reports: Reports) -> None:
    others: list[Any] = []

    @scope("serve", device="cpu", on_leak=reports, track=track)
    async def serve(leak: bool) -> Any:
        first = mib(torch)
        await asyncio.sleep(0.01)
        if leak:
            KEPT.append(mib(torch, 2))
        await asyncio.sleep(0)
        return first

    async def other() -> None:
        for _ in range(5):
            others.append(mib(torch, 3))
            await asyncio.sleep(0)

    async def main(leak: bool) -> Any:
        result, _ = await asyncio.gather(serve(leak), other())
        return result

    assert asyncio.run(main(False)).numel() == MIB
    assert reports == []
    asyncio.run(main(True))
    assert reports.sizes() == [("serve", 2 * MIB)]


def test_a_cancelled_coroutine(torch: Any) -> None:
    @scope("serve", device="cpu", on_leak="raise")
    async def serve() -> None:
        KEPT.append(mib(torch))
        await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.ensure_future(serve())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_async_generators_are_refused() -> None:
    with pytest.raises(TypeError, match="an async generator cannot be a scope"):

        @scope("stream")
        async def stream() -> Any:
            yield 1


def test_the_cost_of_a_scope_on_a_large_heap(torch: Any) -> None:
    heap = [[{}] for _ in range(500_000)]  # type: ignore[var-annotated]
    started = time.monotonic()
    for _ in range(3):
        with scope("step", device="cpu"):
            pass
    # About 60 ms each; this only catches a scope that looks at the heap again and again.
    assert time.monotonic() - started < 30.0
    assert len(heap) == 500_000
