"""One trace from its beginning to its end: the contexts that the program runs in, and the program's steps."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuheap._fit import batches, collectives, fastpath, fused, linear, losses, packed, reads, recurrent
from gpuheap._fit.attention import attending
from gpuheap._fit.classes import Classes
from gpuheap._fit.convert import Converted, converting
from gpuheap._fit.engine import Engine
from gpuheap._fit.errors import TraceError
from gpuheap._fit.fake import FakeCuda, prepare_engine
from gpuheap._fit.kernels import Kernels
from gpuheap._fit.loaders import loading_here
from gpuheap._fit.modules import Modules
from gpuheap._fit.phases import Phases
from gpuheap._fit.pretend import Gpu, pretending
from gpuheap._fit.program import Program, as_program, loss_of, output_of
from gpuheap._fit.rank import Handed, alone, shard_of
from gpuheap._fit.recorder import Recorder
from gpuheap._fit.state import preserving
from gpuheap._fit.storages import resizing
from gpuheap._fit.streams import Streams
from gpuheap._fit.trace import SCHEMA, failed
from gpuheap._fit.values import Values, constants

__all__ = ["Session"]

_TOKENS = 4
"""New tokens that a generation is traced for; each has shapes of its own and takes its time."""


_INTERCEPTS = (recurrent.run, losses.run, fused.run, linear.add_bias, collectives.intercept)


class Session:
    """A program under trace."""

    def __init__(self, gpu: Gpu, name: str, file: str | None, rank: int = 0, handed: Handed | None = None) -> None:
        """``name`` and ``file`` of the function that makes the program are for messages.

        Of a program on several GPUs it is the one of ``rank``; ``handed`` has what the ranks before it sent.
        """
        self._gpu = gpu
        self._rank = rank
        self._handed = handed or Handed()
        self._stack: ExitStack | None = None
        self._shard: Mapping[str, Any] | None = None
        self._name = name
        self._file = file
        self._recorder = Recorder()
        self._streams = Streams()
        self._streams.on_record, self._streams.on_wait = self._recorder.record, self._recorder.wait
        self._recorder.storages.stream = lambda: self._streams.current
        self._values = Values(self._recorder)
        self._mode = FakeCuda(self._recorder, self._intercept)
        self._engine = Engine(self._recorder, self._mode)
        self._phases = Phases(self._recorder, self._engine)
        self._kernels = Kernels(self._recorder, gpu)
        self._classes = Classes(self._recorder)
        self._converted = Converted()
        self._refresh: Callable[[], None] = lambda: None
        self._program: Program | None = None
        self._modules: Modules | None = None
        self._batch: Any = None
        self._applied: Any = None
        self._size: int | None = None
        self._described: dict[str, Any] = {}

    def open(self, stack: ExitStack) -> None:
        """Enter everything that the program runs in.

        Raises:
            TraceError: autograd cannot run in this process.
        """
        try:
            prepare_engine()
        except RuntimeError as error:
            raise TraceError(f"a program for CUDA cannot be traced here: {error}") from error
        self._stack = stack
        stack.enter_context(preserving())
        stack.enter_context(_quiet())
        stack.enter_context(warnings.catch_warnings())
        # Copies of fake tensors ask for an address.
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        self._refresh = stack.enter_context(pretending(self._gpu, self._streams))
        stack.enter_context(attending(self._gpu))
        self._converted = stack.enter_context(converting())
        stack.enter_context(_lists_of_tensors())
        stack.enter_context(loading_here())
        stack.enter_context(recurrent.recurring(self._gpu))
        stack.enter_context(fastpath.decomposed())
        stack.enter_context(linear.adding_in_place())
        stack.enter_context(constants())
        stack.enter_context(reads.reading(self._values.read))
        stack.enter_context(reads.scripting())
        stack.enter_context(packed.packing(self._values.padded))
        stack.enter_context(resizing(lambda: self._recorder.storages))
        stack.enter_context(_eager())
        stack.enter_context(self._engine.following())
        stack.enter_context(self._phases.following())
        stack.callback(self._stop)
        with self._mode:
            self._engine.calibrate()
        self._recorder.restart()
        self._mode.on_results = self._on_results
        stack.enter_context(self._mode)

    def _stop(self) -> None:
        self._recorder.recording = False
        if self._modules is not None:
            self._modules.detach()

    def _intercept(self, mode: FakeCuda, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for intercept in (self._engine.intercept, self._values.intercept, *_INTERCEPTS):
            out = intercept(mode, func, args, kwargs)
            if out is not NotImplemented:
                return out
        return NotImplemented

    def _on_results(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], results: list[Any]) -> list[int]:
        held = self._kernels.run(func, args, kwargs, results)
        leaf = self._engine.leaf()
        storages = self._recorder.storages
        for result in results:
            number = storages.find(result)
            self._engine.made(number)
            if leaf is not None:
                self._classes.gradient(number, leaf)
            elif result.dim() == 0:
                self._values.made(func, number)
        return held

    # The program

    def build(self, make: Callable[[], Any], size: int | None, levers: Sequence[Mapping[str, Any]]) -> None:
        """Run `make()`, and bring the model to the GPU."""
        with self._blaming(f"{self._name} fails"):
            made = make()
        self._refresh()
        with self._blaming(f"what {self._name} returns cannot be used"):
            program = as_program(made)
        del made
        self._size = size
        model = program.model
        with self._blaming("the model cannot be moved to the GPU"):
            model.to("cuda")
        for optimizer in program.optimizers:
            self._converted.fix(optimizer)
            self._move_state(optimizer)
        self._program = program
        if levers:
            self._apply(levers, program)
        model = program.model
        self._modules = Modules(self._recorder, model)
        self._modules.attach()
        self._engine.modules = self._modules
        self._values.module_name = self._module_name
        self._classes.built(model, self._modules)
        if not batches.is_maker(program.batch):
            self._load()
        gc.collect()

    def _move_state(self, optimizer: Any) -> None:
        """What an optimizer made with its parameters follows them, as if it had been made after the model's move."""
        for parameter, state in getattr(optimizer, "state", {}).items():
            for key, value in state.items() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor) and value.dim() and value.shape == parameter.shape:
                    state[key] = value.to(parameter.device)

    def _apply(self, levers: Sequence[Mapping[str, Any]], program: Program) -> None:
        try:
            # It imports nothing of the tracer, and programs without levers do not need it.
            apply = import_module("gpuheap._fit.apply").apply
        except ImportError as error:
            raise TraceError(f"levers cannot be applied: {error}") from error
        optimizer = program.optimizer if len(program.optimizers) != 1 else program.optimizers[0]
        self._shard = shard_of(levers)
        if self._shard is not None:
            assert self._stack is not None
            ranks = int(self._shard.get("gpus", 2))
            self._stack.enter_context(alone(ranks, self._rank, self._streams, self._handed))
        with self._blaming("the levers cannot be applied"):
            self._applied = apply(levers, program.model, optimizer, loss=program.step or program.loss)
        program.model = self._applied.model
        program.optimizer = self._applied.optimizer
        if any(lever.get("lever") == "compile" for lever in levers):
            # It is run as it is: which activations the partitioner keeps, and which operators the compiler joins, are
            # not known. Compiled code gives all gradients at once, beside those of the passes before.
            trained = sum(one.numel() * one.element_size() for one in program.model.parameters() if one.requires_grad)
            self._recorder.unknown_at("torch.compile, traced as if it were not there", "the model", trained)

    def _module_name(self) -> str:
        return self._modules.name(self._recorder.module) if self._modules is not None else "the program"

    def _failing_module(self, error: BaseException) -> str:
        """The innermost module in whose method an error was raised; empty if there is none."""
        found, trace = "", error.__traceback__
        while trace is not None and self._modules is not None:
            owner = trace.tb_frame.f_locals.get("self")
            number = self._modules.number_of(owner) if isinstance(owner, torch.nn.Module) else -1
            if number >= 0:
                found = self._modules.name(number)
            trace = trace.tb_next
        return found

    def _load(self) -> None:
        program = self._program
        assert program is not None
        self._recorder.enter_phase("load", "input")
        with self._blaming("the batch cannot be made"):
            if batches.is_maker(program.batch):
                batch = batches.as_tensors(batches.make(program.batch, self._size))
            else:
                batch = batches.as_tensors(program.batch)
                batch = batch if self._size is None else batches.resized(batch, self._size)
            part = self._part(batch)
            self._batch = batches.to_device(part)
        self._described = self._described or batches.describe(self._batch if part is batch else batch)

    def _part(self, batch: Any) -> Any:
        """What this rank takes of the batch."""
        if self._shard is None or self._shard.get("form") not in ("data", "fsdp2"):
            return batch
        split = import_module("gpuheap._fit.apply.batch").split
        return split(batch, int(self._shard.get("gpus", 2)))[self._rank]

    def step(self, number: int) -> None:
        """One training step, or, without an optimizer, one forward pass without gradients."""
        program, modules = self._program, self._modules
        assert program is not None and modules is not None
        self._recorder.step(number)
        modules.new_step()
        if batches.is_maker(program.batch):
            self._load()
        with self._blaming(f"step {number} fails", during=True):
            if self._applied is not None:
                self._phases.begin("forward")
                self._applied.step(self._batch)
            elif program.step is not None:
                self._phases.begin("forward")
                program.step(program.model, program.optimizer, self._batch)
            elif program.evaluates:
                self._evaluate("evaluation")
            else:
                self._train(program)
        if program.step is not None and not self._engine.backwards:
            self._recorder.note("the step has no backward pass")
        self._classes.stepped(program.model, program.optimizers, modules)

    def _train(self, program: Program) -> None:
        for optimizer in program.optimizers:
            optimizer.zero_grad()
        self._phases.begin("forward")
        loss = loss_of(program.model, program.loss, self._batch, lambda: self._phases.begin("loss"))
        if not hasattr(loss, "backward"):
            raise TraceError(f"the loss is a {type(loss).__name__}, and not a tensor")
        if not loss.requires_grad:
            raise TraceError(
                "the loss depends on no parameter that is trained",
                "Train a parameter that it depends on, or return None as the optimizer to plan for evaluation.",
            )
        if loss.dim():
            raise TraceError(f"the loss has the shape {tuple(loss.shape)}; it has to be one number")
        self._classes.loss(loss)
        loss.backward()
        for optimizer in program.optimizers:
            optimizer.step()

    def _evaluate(self, phase: str) -> None:
        program = self._program
        assert program is not None
        self._phases.begin(phase)
        with torch.no_grad():
            if program.step is not None:
                batches_in = self._batch
                inputs = batches_in[0] if isinstance(batches_in, (tuple, list)) else batches_in
                program.model(**inputs) if isinstance(inputs, Mapping) else program.model(inputs)
            elif program.evaluates and program.loss is None:
                output_of(program.model, self._batch)
            else:
                loss_of(program.model, program.loss, self._batch)

    def extra(self, phase: str) -> None:
        """A phase beside the steps: evaluation, generation or saving."""
        program, modules = self._program, self._modules
        assert program is not None and modules is not None
        modules.new_step()
        training = program.model.training
        with self._blaming(f"{phase} fails", during=True):
            if phase == "evaluation":
                program.model.eval()
                self._evaluate("evaluation")
                program.model.train(training)
            elif phase == "saving":
                self._phases.begin("saving")
                states = [program.model.state_dict(), *(one.state_dict() for one in program.optimizers)]
                torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), states)
            else:
                self._generate()

    def _generate(self) -> None:
        program = self._program
        assert program is not None
        generate = getattr(program.model, "generate", None)
        if generate is None:
            raise TraceError(f"{type(program.model).__name__} has no generate()")
        training = program.model.training
        program.model.eval()
        self._phases.begin("generation")
        named = dict(batches.leaves(self._batch))
        tokens = named.get("input_ids", next(iter(named.values())))
        with torch.no_grad():
            generate(tokens, max_new_tokens=_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0)
        self._recorder.note(f"generation was traced for {_TOKENS} new tokens; the cache grows with every further one")
        program.model.train(training)

    @contextmanager
    def _blaming(self, what: str, *, during: bool = False) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if during:
                module = self._failing_module(error) or self._module_name()
                what = f"{what} in the {self._recorder.phase} phase, in {module}"
            raise failed(what, error, self._file) from error

    # The result

    def result(self) -> dict[str, Any]:
        """The trace."""
        program, modules, recorder = self._program, self._modules, self._recorder
        assert program is not None and modules is not None
        recorder.recording = False
        self._classes.finish()
        storages = recorder.storages
        return {
            "schema": SCHEMA,
            "source": {
                "make": "",
                "torch": torch.__version__,
                "python": "",
                "how": "fake-cuda",
                "notes": recorder.notes,
            },
            "device_type": "cuda",
            "batch": self._described,
            "model": self._classes.model_figures(program.model),
            "optimizer": self._classes.optimizer_figures(program.optimizers),
            "modules": modules.table(),
            "ops": list(recorder.ops),
            "storages": {
                "bytes": storages.bytes,
                "class": storages.classes,
                "module": storages.modules,
                "dtype": storages.dtypes,
                "name": storages.names,
                **({"stream": storages.streams} if any(storages.streams) else {}),
            },
            **({"micro_batches": self._micro_batches()} if self._micro_batches() > 1 else {}),
            "events": recorder.events,
            "unknown": [
                {"what": what, "where": where, "bound_bytes": bound}
                for (what, where), bound in recorder.unknown.items()
            ],
        }

    def _micro_batches(self) -> int:
        """Parts of a batch that a pipeline works on."""
        pipeline = getattr(getattr(self._applied, "_target", None), "pipeline", None)
        return int(getattr(pipeline, "count", 1))

    def close(self) -> None:
        """Let the program go, while the contexts that it was made in are still there."""
        self._recorder.storages.forget()
        self._program = self._batch = self._applied = None


@contextmanager
def _quiet() -> Iterator[None]:
    """An operator that fails is reported once, by what is raised."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _lists_of_tensors() -> Iterator[None]:
    """Let optimizers work on lists of fake tensors as on those of real ones."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    lists = [_foreach_utils._foreach_supported_types]
    if optimizer._foreach_supported_types is not lists[0]:
        lists.append(optimizer._foreach_supported_types)
    lists = [types for types in lists if FakeTensor not in types]
    for types in lists:
        types.append(FakeTensor)
    try:
        yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


@contextmanager
def _eager() -> Iterator[None]:
    """Run what `torch.compile` was given as it is."""
    config: Any = import_module("torch._dynamo.config")
    before = config.disable
    config.disable = True
    try:
        yield
    finally:
        config.disable = before
