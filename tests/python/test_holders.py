"""`gpuheap.holders`: every kind of holder by its exact text, and that the search harms nothing.

PYTEST_DONT_REWRITE: a rewritten `assert` keeps its values in hidden local variables, and would be a holder itself.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import textwrap
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuheap.holders import Holders, holders


class Thing:
    """What is looked for where PyTorch is not needed."""


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[str], types.ModuleType]]:
    """Writes a program `train.py` and runs it as the module `train`, so that files and lines are known."""

    def run(source: str) -> types.ModuleType:
        path = tmp_path / "train.py"
        path.write_text("from gpuheap.holders import holders\n" + textwrap.dedent(source).lstrip("\n"))
        spec = importlib.util.spec_from_file_location("train", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["train"] = module
        spec.loader.exec_module(module)
        return module

    yield run
    module = sys.modules.pop("train", None)
    if module is not None:
        module.__dict__.clear()


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found must not depend on how busy the machine is."""
    monkeypatch.setattr(sys.modules["gpuheap.holders"], "BUDGET_S", 120.0)


@pytest.fixture
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch")


def paths(found: Holders) -> list[str]:
    return [holder.path for holder in found]


# Without PyTorch: the kinds of holders that Python itself has.


def test_an_element_of_a_global(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        history = [Thing() for _ in range(20)]
        """
    )
    found = holders(train.history[17])
    assert paths(found) == ["train.history[17]"]
    assert (found[0].kind, found[0].root, found[0].line) == ("global", "global", None)
    assert found[0].file == train.__file__
    assert found.complete
    assert str(found) == "a Thing, held by\n  train.history[17]  (train.py)"


def test_keys_attributes_slots_and_nested_containers(program: Any) -> None:
    train = program(
        """
        import collections
        class Thing: pass
        class Slotted:
            __slots__ = ("kept",)
        class State:
            def __init__(self): self.best = {"step": (1, Thing())}
        state = State()
        slotted = Slotted()
        slotted.kept = collections.deque([Thing()])
        elements = {Thing()}
        by_thing = {Thing(): 1}
        numbers = collections.namedtuple("Numbers", "loss")(Thing())
        """
    )
    assert paths(holders(train.state.best["step"][1])) == ["train.state.best['step'][1]"]
    assert paths(holders(train.slotted.kept[0])) == ["train.slotted.kept[0]"]
    assert paths(holders(gc.get_referents(train.elements)[0])) == ["an element of train.elements"]
    assert paths(holders(train.numbers.loss)) == ["train.numbers[0]"]
    key = next(one for one in gc.get_referents(train.by_thing) if type(one) is train.Thing)
    assert "<Thing>, a key of train.by_thing" in paths(holders(key))


def test_a_local_of_a_running_call(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        def step():
            outputs = [Thing(), Thing()]
            return holders(outputs[1])
        """
    )
    found = train.step()
    assert paths(found) == ["local 'outputs'[1] in train.py:5 (step)"]
    assert (found[0].kind, found[0].line, found[0].function) == ("local", 5, "step")


def test_a_closure(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        def make():
            acc = [Thing()]
            def on_end(): acc.append(Thing())
            return on_end
        on_end = make()
        callbacks = {"end": make()}
        """
    )
    assert paths(holders(train.on_end.__closure__[0].cell_contents[0])) == [
        "closure cell 'acc'[0] of on_end (train.py:5), held by train.on_end"
    ]
    found = holders(train.callbacks["end"].__closure__[0].cell_contents[0])
    assert paths(found) == ["closure cell 'acc'[0] of on_end (train.py:5), held by train.callbacks['end']"]
    assert (found[0].kind, found[0].line, found[0].function) == ("closure", 5, "on_end")


def test_default_arguments_function_attributes_methods_and_partials(program: Any) -> None:
    train = program(
        """
        import functools
        class Thing: pass
        def collect(x, kept=[Thing()], *, named=[Thing()]): pass
        def count(): pass
        count.last = Thing()
        class Recorder:
            def __init__(self): self.buffer = [Thing()]
            def hook(self): pass
        handlers = [Recorder().hook]
        later = functools.partial(print, Thing(), end=[Thing()])
        """
    )
    assert paths(holders(train.collect.__defaults__[0][0])) == ["default argument 'kept'[0] of collect (train.py:4)"]
    assert paths(holders(train.collect.__kwdefaults__["named"][0])) == [
        "default argument 'named'[0] of collect (train.py:4)"
    ]
    assert paths(holders(train.count.last)) == ["train.count.last"]
    assert paths(holders(train.handlers[0].__self__.buffer[0])) == [
        "self.buffer[0] of the bound method Recorder.hook, held by train.handlers[0]"
    ]
    assert paths(holders(train.later.args[0])) == ["train.later.args[0]"]
    assert paths(holders(train.later.keywords["end"][0])) == ["train.later.keywords['end'][0]"]


def test_functools_caches(program: Any) -> None:
    train = program(
        """
        import functools
        class Thing: pass
        @functools.lru_cache(maxsize=8)
        def embed(n): return Thing()
        @functools.cache
        def embed_all(n): return Thing()
        class Model:
            @functools.lru_cache
            def mask(self, n): return Thing()
        model = Model()
        """
    )
    found = holders(train.embed(3))
    assert paths(found) == ["lru_cache of embed (train.py:4)"]
    assert (found[0].kind, found[0].line) == ("cache", 4)
    assert paths(holders(train.embed_all(3))) == ["lru_cache of embed_all (train.py:6)"]
    assert paths(holders(train.model.mask(3))) == ["lru_cache of mask (train.py:9)"]
    # The cache of a method keeps the object itself, too.
    reference = weakref.ref(train.model)
    del train.model
    assert paths(holders(reference())) == ["lru_cache of mask (train.py:9)"]


def test_an_attribute_of_a_class(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        class Model:
            cache = {"a": Thing()}
        """
    )
    found = holders(train.Model.cache["a"])
    assert paths(found) == ["train.Model.cache['a']"]
    assert found[0].root == "class"


def test_generators_and_coroutines(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        def batches():
            batch = [Thing()]
            yield 1
        async def serve():
            request = Thing()
            await wait()
        class wait:
            def __await__(self): yield 1
        it = batches(); next(it)
        task = serve(); task.send(None)
        """
    )
    batch = train.it.gi_frame.f_locals["batch"]
    reference = weakref.ref(batch[0])
    del batch
    assert paths(holders(reference())) == [
        "local 'batch'[0] in train.py:5 (batches, suspended generator), held by train.it"
    ]
    found = holders(train.task.cr_frame.f_locals["request"])
    assert paths(found) == ["local 'request' in train.py:8 (serve, suspended coroutine), held by train.task"]
    train.task.close()


def test_the_traceback_of_a_stored_exception(program: Any) -> None:
    train = program(
        """
        import weakref
        class Thing: pass
        errors = []
        alive = []
        def step():
            x = Thing()
            alive.append(weakref.ref(x))
            raise ValueError("bad sample")
        try: step()
        except ValueError as e: errors.append(e)
        """
    )
    found = holders(train.alive[0]())
    assert paths(found) == ["local 'x' in train.py:9 (step), kept by the traceback of ValueError in train.errors[0]"]
    assert (found[0].kind, found[0].line, found[0].function) == ("traceback", 9, "step")


def test_the_last_error_of_a_prompt(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    train = program(
        """
        import weakref
        class Thing: pass
        alive = []
        def step():
            x = Thing()
            alive.append(weakref.ref(x))
            raise ValueError
        def run():
            try: step()
            except ValueError as e: return e
        """
    )
    monkeypatch.setattr(sys, "last_exc", train.run(), raising=False)
    assert paths(holders(train.alive[0]())) == [
        "local 'x' in train.py:8 (step), kept by the traceback of ValueError in sys.last_exc"
    ]
    error = train.run()
    monkeypatch.setattr(sys, "last_traceback", error.__traceback__, raising=False)
    del error
    assert paths(holders(train.alive[1]())) == ["local 'x' in train.py:8 (step), kept by sys.last_traceback"]


def test_an_exception_that_is_being_handled(program: Any) -> None:
    train = program(
        """
        import weakref
        class Thing: pass
        alive = []
        def step():
            x = Thing()
            alive.append(weakref.ref(x))
            raise ValueError
        def run():
            try: step()
            except ValueError: return holders(alive[0]())
        """
    )
    assert paths(train.run()) == [
        "local 'x' in train.py:8 (step), kept by the traceback of the ValueError that is being handled"
    ]


def test_outputs_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    outputs = {3: Thing()}
    monkeypatch.setattr(main, "Out", outputs, raising=False)
    monkeypatch.setattr(main, "_3", outputs[3], raising=False)
    del outputs
    found = holders(main.__dict__["_3"])
    assert sorted(paths(found)) == ["Out[3]", "_3 (an earlier result at the prompt)"]
    assert {holder.kind for holder in found} == {"notebook"}


def test_a_thread(program: Any) -> None:
    train = program(
        """
        import threading
        class Thing: pass
        ready, done = threading.Event(), threading.Event()
        alive = []
        def work():
            import weakref
            batch = Thing()
            alive.append(weakref.ref(batch))
            ready.set(); done.wait()
        worker = threading.Thread(target=work, name="loader")
        worker.start(); ready.wait()
        """
    )
    try:
        found = holders(train.alive[0]())
    finally:
        train.done.set()
        train.worker.join()
    assert paths(found) == ["local 'batch' in train.py:10 (work), thread 'loader'"]
    assert found[0].thread == "loader"


def test_the_arguments_of_a_thread() -> None:
    done = threading.Event()
    reference = []

    def start() -> threading.Thread:
        thing = Thing()
        reference.append(weakref.ref(thing))
        thread = threading.Thread(target=lambda *_: done.wait(), args=([thing],), name="writer")
        thread.start()
        return thread

    thread = start()
    try:
        found = paths(holders(reference[0]()))
    finally:
        done.set()
        thread.join()
    assert "thread 'writer'._args[0][0]" in found or any("thread 'writer'" in path for path in found)


def test_a_context_variable() -> None:
    import contextvars

    variable: contextvars.ContextVar[Thing] = contextvars.ContextVar("request")
    context = contextvars.copy_context()
    context.run(variable.set, Thing())
    found = holders(context[variable])
    assert "context variable 'request'" in paths(found)


def test_a_weak_reference_is_no_holder() -> None:
    thing = Thing()
    references = [weakref.ref(thing)]
    by_name = weakref.WeakValueDictionary({"thing": thing})
    found = holders(thing)
    assert len(found) == 1
    assert found[0].path.startswith("local 'thing' in test_holders.py:")
    assert references[0]() is by_name["thing"]


def test_a_reference_cycle_is_named_as_one(program: Any) -> None:
    train = program(
        """
        import weakref
        class Thing: pass
        class Node: pass
        def make():
            node = Node()
            node.me, node.thing = node, Thing()
            return weakref.ref(node.thing)
        """
    )
    gc.disable()
    try:
        reference = train.make()
        found = holders(reference())
        assert found[0].kind == "cycle"
        assert "a reference cycle through Node" in found[0].path
        assert "only a reference cycle keeps it: `gc.collect()` frees it" in found.notes
    finally:
        gc.enable()
    del found
    gc.collect()
    assert reference() is None


def test_nothing_that_python_sees() -> None:
    found = holders(Thing())
    assert len(found) == 0
    assert found.notes and "nothing visible to Python" in found.notes[0]
    assert str(found).startswith("a Thing: no holder found")


def test_the_search_keeps_nothing_alive(program: Any) -> None:
    train = program(
        """
        import weakref
        class Thing: pass
        def step():
            x = Thing()
            reference = weakref.ref(x)
            found = holders(x)
            del x
            return reference() is None, found
        """
    )
    # The frame goes on to run after the search: before Python 3.13 a look at its locals would leave a copy there.
    freed, found = train.step()
    assert freed
    assert paths(found) == ["local 'x' in train.py:7 (step)"]


def test_what_the_program_got_from_locals_stays_its_own(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        def step():
            x = Thing()
            mine = locals()
            found = holders(x)
            return mine, found
        """
    )
    mine, _ = train.step()
    assert "x" in mine


class Hostile:
    """Everything that can go wrong when an object is asked something."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __hash__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")


class Proxy:
    """Says that it is something else, and hides its attributes."""

    def __init__(self) -> None:
        object.__setattr__(self, "inside", Thing())

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("class")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("dict")


class LyingType(type):
    def __getattribute__(cls, name: str) -> Any:
        if name.startswith("__") and name not in ("__init__", "__new__", "__call__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class OfLyingType(metaclass=LyingType):
    pass


def test_hostile_objects_are_not_asked() -> None:
    module = types.ModuleType("hostile")
    sys.modules["hostile"] = module
    try:
        module.__dict__["objects"] = [Hostile(), Proxy(), OfLyingType()]
        for position in range(3):
            assert paths(holders(module.__dict__["objects"][position])) == [f"hostile.objects[{position}]"]
        module.__dict__["table"] = {Hostile(): Thing()}
        thing = next(one for one in gc.get_referents(module.__dict__["table"]) if type(one) is Thing)
        reference = weakref.ref(thing)
        del thing
        assert paths(holders(reference())) == ["hostile.table[<Hostile>]"]
        proxy = module.__dict__["objects"][1]
        inside = weakref.ref(object.__getattribute__(proxy, "inside"))
        del proxy
        assert len(holders(inside())) == 1
    finally:
        del sys.modules["hostile"]


def test_a_large_heap_within_the_budget(program: Any) -> None:
    train = program(
        """
        class Thing: pass
        heap = [[{}] for _ in range(1_000_000)]
        for row in heap: row[0]["row"] = row
        row = None
        needle = Thing()
        box = {"a": [[[needle]]]}
        del needle
        """
    )
    assert len(gc.get_objects()) > 2_000_000
    started = time.monotonic()
    found = holders(train.box["a"][0][0][0])
    assert paths(found) == ["train.box['a'][0][0][0]"]
    # One look cannot be interrupted: far less than a whole search takes, on any machine.
    whole = time.monotonic() - started
    short = holders(train.heap[500_000][0], budget=0.01)
    assert short.seconds < 2.0 * whole


def test_the_time_is_bounded_and_said() -> None:
    chain: list[Any] = [Thing()]
    target = weakref.ref(chain[0])
    for _ in range(2_000):
        chain = [chain]
    found = holders(target(), budget=0.2, depth=1_000_000)
    assert not found.complete
    assert "the time was up" in found.notes
    assert found.seconds < 2.0
    found = holders(target(), depth=5)
    assert not found.complete
    assert "paths longer than 5 objects were not followed" in found.notes


def test_the_limit_is_enough() -> None:
    module = types.ModuleType("many")
    sys.modules["many"] = module
    try:
        thing = Thing()
        for position in range(100):
            module.__dict__[f"near{position}"] = [thing]
            module.__dict__[f"far{position}"] = [[thing]]
        reference = weakref.ref(thing)
        del thing
        found = holders(reference(), limit=4)
        # All at the distance at which the fourth is found, and none beyond.
        assert sorted(paths(found)) == sorted(f"many.near{position}[0]" for position in range(100))
        assert "more than 4 holders" in found.notes
        assert len(holders(reference(), limit=1_000)) == 200
    finally:
        del sys.modules["many"]


def test_the_collector_is_left_as_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            holders(Thing())
            assert gc.isenabled() is enabled
        finally:
            gc.enable()


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"depth": 0}, {"budget": 0}, {"budget": float("nan")}])
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        holders(Thing(), **wrong)


def test_html_is_escaped() -> None:
    module = types.ModuleType("page")
    sys.modules["page"] = module
    try:
        module.__dict__["table"] = {"<script>": Thing()}
        found = holders(module.__dict__["table"]["<script>"])
        assert paths(found) == ["page.table['<script>']"]
        assert "<script>" not in found._repr_html_()
    finally:
        del sys.modules["page"]


def test_many_threads_at_once() -> None:
    things = [Thing() for _ in range(4)]
    wrong: list[str] = []

    def ask(thing: Thing) -> None:
        for _ in range(5):
            found = holders(thing, limit=20)
            if not any("'things'" in path or "'thing'" in path for path in paths(found)):
                wrong.append(str(found))

    threads = [threading.Thread(target=ask, args=(thing,)) for thing in things]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# With PyTorch: what it keeps in C++.

TORCH = """
import torch, torch.nn as nn, torch.nn.functional as F
def net(width=16, out=4): return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))
def batch(rows=8, width=16): return torch.randn(rows, width), torch.randint(0, 4, (rows,))
"""


def torch_program(program: Any, source: str) -> Any:
    # Line 1 is the import of holders; TORCH has three more.
    return program(TORCH.lstrip("\n") + textwrap.dedent(source).lstrip("\n"))


def test_saved_for_backward(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        losses = []
        w = torch.ones(8, requires_grad=True)
        def step():
            a = w * 2
            b = a.exp()
            losses.append((b + 1).sum())
            return b.data_ptr()
        """,
    )
    for _ in range(3):
        train.step()
    address = train.step()
    found = holders(address)
    assert paths(found) == ["saved for backward by ExpBackward0 (2 steps behind the grad_fn of train.losses[3])"], str(
        found
    )
    assert found[0].kind == "autograd"
    assert found.bytes == 32
    train.losses[3].backward()
    # Backward has freed what was saved.
    assert len(holders(address)) == 0


def test_the_node_itself(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        def step():
            x = torch.ones(4, requires_grad=True).exp()
            y = x * x
            return y, x.data_ptr()
        losses = [0, 0, 0, step()]
        """,
    )
    loss, address = train.losses[3]
    train.losses[3] = loss
    del loss
    assert "saved for backward by MulBackward0 (grad_fn of train.losses[3])" in paths(holders(address))


def test_all_results_of_one_step_are_named(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        def loop():
            rnn, h = nn.GRU(4, 4, 1, batch_first=True), None
            for i in range(4):
                out, h = rnn(torch.randn(2, 3, 4), h)
                if i == 0: address = h.grad_fn.next_functions[0][0].next_functions[1][0]._saved_result.data_ptr()
            return holders(address)
        """,
    )
    found = str(train.loop())
    # Either keeps the graphs of all steps; the hidden state is the one to detach.
    assert "grad_fn of local 'h' in train.py:10 (loop)" in found, found
    assert "grad_fn of local 'out' in train.py:10 (loop)" in found, found


def test_an_attribute_of_ctx(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): ctx.big = x * 2; return x + 1
            @staticmethod
            def backward(ctx, g): return g
        outs = [Scale.apply(torch.ones(4, requires_grad=True)) * 3]
        def big(): return outs[0].grad_fn.next_functions[0][0].big
        """,
    )
    assert paths(holders(train.big())) == ["ctx.big of ScaleBackward (1 step behind the grad_fn of train.outs[0])"]


def test_parameters_gradients_and_optimizer_state_by_name(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        model = net()
        opt = torch.optim.Adam(model.parameters())
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        """,
    )
    assert "train.model[0].weight" in paths(holders(train.model[0].weight))
    assert "train.model[0].weight.grad" in paths(holders(train.model[0].weight.grad))
    state = train.opt.state[train.model[2].bias]
    address = state["exp_avg"].data_ptr()
    del state
    assert paths(holders(address)) == ["train.opt.state[2.bias]['exp_avg']"]
    train.x = None


def test_a_view_pins_its_storage(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        feats = []
        def step():
            x, y = batch(1024)
            feats.append(x[:1])
            return x.data_ptr()
        """,
    )
    found = holders(train.step())
    assert paths(found) == ["train.feats[0]"]
    assert (found.bytes, found[0].bytes, found[0].needed_bytes) == (65536, 65536, 64)
    assert "train.feats[0]  (train.py, a view that needs 64 B)" in str(found)
    of_view = holders(train.feats[0])
    assert str(of_view).splitlines()[0] == (
        "Tensor[1, 16] float32 on cpu, a view that needs 64 B and pins 64.0 KiB, held by"
    )
    # From the tensor's side the view is a holder.
    base = train.feats[0]._base
    of_base = holders(base)
    assert "train.feats[0] (a view of it, needs 64 B, pins 64.0 KiB)" in paths(of_base)


def test_other_tensors_on_the_storage(program: Any, torch: Any) -> None:
    train = torch_program(program, "x = torch.ones(4)\nkept = {'y': x.detach()}\n")
    found = holders(train.x)
    assert "train.x" in paths(found)
    assert "train.kept['y'] (the same storage)" in paths(found)


def test_hooks(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        def build():
            seen = []
            model = net()
            model[2].register_forward_hook(lambda mod, i, out: seen.append(out.detach().mean(0)))
            return model, seen
        model, seen = build()
        model(batch()[0])
        address = seen[0].data_ptr()
        del seen
        grads = {}
        w = torch.ones(3, requires_grad=True)
        def stash():
            kept = []
            w.register_hook(lambda g: kept.append(g))
            (w * 2).sum().backward()
            return kept[0].data_ptr()
        """,
    )
    found = holders(train.address)
    assert paths(found) == ["closure cell 'seen'[0] of <lambda> (train.py:8), forward hook of train.model[2]"]
    assert (found[0].kind, found[0].line) == ("closure", 8)
    found = holders(train.stash())
    assert "closure cell 'kept'[0] of <lambda> (train.py:18), tensor hook of train.w" in paths(found), str(found)


def test_a_leaf_of_a_kept_graph(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        def step():
            w = torch.ones(4, requires_grad=True)
            return w.sum(), w.data_ptr()
        loss, address = step()
        """,
    )
    found = paths(holders(train.address))
    assert found == ["a leaf of the graph (1 step behind the grad_fn of train.loss)"]


def test_unpack_hooks_are_not_run(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        ran = []
        class Packed:
            def __init__(self, t): self.t = t
        w = torch.ones(4, requires_grad=True)
        def step():
            with torch.autograd.graph.saved_tensors_hooks(Packed, lambda p: ran.append(1) or p.t):
                return (w.exp() * w).sum()
        loss = step()
        """,
    )
    packed = next(one for one in gc.get_objects() if type(one) is train.Packed)
    address = packed.t.data_ptr()
    del packed
    found = holders(address)
    assert train.ran == []
    assert "saved for backward by" in found[0].path and ".t" not in found.notes


def test_tensors_die_after_the_search(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        import weakref
        def step():
            w = torch.ones(4, requires_grad=True)
            x = w.exp()
            y = x * x
            view = x[:2]
            r = [weakref.ref(w), weakref.ref(x), weakref.ref(y), weakref.ref(view)]
            for one in (w, x, y, view, x.data_ptr()): found = holders(one)
            del w, x, y, view, one
            return [reference() for reference in r]
        """,
    )
    assert train.step() == [None, None, None, None]


def test_subclasses_and_odd_tensors(program: Any, torch: Any) -> None:
    train = torch_program(
        program,
        """
        class Odd(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None): raise RuntimeError("asked")
        kept = [torch.ones(3).as_subclass(Odd), torch.ones(2, device="meta"), torch.eye(3).to_sparse()]
        """,
    )
    for position in range(3):
        assert f"train.kept[{position}]" in paths(holders(train.kept[position]))


def test_an_address_that_is_nobodys(torch: Any) -> None:
    found = holders(1)
    assert len(found) == 0
    assert found.notes == ("no tensor that Python knows of has its memory there",)


# The leaks of real loops: each has a holder with a name.

LEAKS = {
    "loss_accumulate": (
        """
        def loop():
            m = net(); running = 0
            for i in range(5):
                x, y = batch(); loss = F.cross_entropy(m(x), y)
                h = m[0](x); address = h.data_ptr()
                running = running + F.mse_loss(m[2](m[1](h)).mean(), loss)
                del h, x, y, loss
            return holders(address)
        """,
        "grad_fn of local 'running' in train.py:12 (loop))",
    ),
    "outputs_kept": (
        """
        def loop():
            kept = []
            m = net()
            for i in range(5): kept.append(m(batch()[0]).detach())
            return holders(kept[2].data_ptr())
        """,
        "local 'kept'[2] in train.py:9 (loop)",
    ),
    "rnn_hidden": (
        """
        def loop():
            r = nn.RNNCell(4, 4); h = torch.zeros(2, 4); first = None
            for i in range(6):
                h = r(torch.randn(2, 4), h)
                first = first or h.data_ptr()
            return holders(first)
        """,
        "grad_fn of local 'h' in train.py:10 (loop))",
    ),
    "eval_logits": (
        """
        def loop():
            m = net().eval(); logits = []
            with torch.no_grad():
                for i in range(5): logits.append(m(batch()[0]))
                return holders(logits[0].data_ptr())
        """,
        "local 'logits'[0] in train.py:9 (loop)",
    ),
    "errors_kept": (
        """
        def loop():
            errors = []; m = net(); at = []
            def step(i):
                x, y = batch(); out = m(x); at.append(out.data_ptr())
                raise ValueError("bad sample")
            for i in range(3):
                try: step(i)
                except ValueError as e: errors.append(e)
            return holders(at[1])
        """,
        "local 'out' in train.py:9 (step), kept by the traceback of ValueError in local 'errors'[1]"
        " in train.py:13 (loop)",
    ),
    "hook_stash": (
        """
        def loop():
            m = net(); seen = []
            for l in m:
                if isinstance(l, nn.Linear): l.register_forward_hook(lambda mod, i, out: seen.append(out.mean(0)))
            m(batch()[0])
            return holders(seen[1].data_ptr())
        """,
        "local 'seen'[1] in train.py:10 (loop)",
    ),
    "mask_cache": (
        """
        def loop():
            cache = {}
            def mask(n):
                if n not in cache: cache[n] = torch.ones(n, n).tril()
                return cache[n]
            for n in (3, 5, 7): mask(n)
            return holders(mask(5).data_ptr())
        """,
        "local 'cache'[5] in train.py:11 (loop)",
    ),
    "replay_unbounded": (
        """
        def loop():
            buf = []
            for i in range(10):
                x, y = batch()
                if i % 5 == 0: buf.append((x.clone(), y.clone()))
            return holders(buf[1][0].data_ptr())
        """,
        "local 'buf'[1][0] in train.py:10 (loop)",
    ),
    "ctx_attr": (
        """
        class Keep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): ctx.out = x * 2; return x + 1
            @staticmethod
            def backward(ctx, g): return g
        def loop():
            w = torch.ones(4, requires_grad=True); outs = [Keep.apply(w) for _ in range(3)]
            return holders(outs[1].grad_fn.out)
        """,
        "ctx.out of KeepBackward (grad_fn of local 'outs'[1] in train.py:12 (loop))",
    ),
    "method_cache": (
        """
        import functools
        class Model:
            @functools.lru_cache(maxsize=None)
            def mask(self, n): return torch.ones(n, n)
        def loop():
            m = Model(); m.mask(3)
            return holders(m.mask(3).data_ptr())
        """,
        "lru_cache of mask (train.py:7)",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_real_holder_of_a_leak(name: str, program: Any, torch: Any) -> None:
    source, expected = LEAKS[name]
    found = torch_program(program, source).loop()
    assert any(path.endswith(expected) for path in paths(found)), str(found)
    assert found.complete
