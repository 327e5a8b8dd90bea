"""The tracer of `gpuheap fit`: small programs, and the bytes that they take, derived by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

HERE = Path(__file__).parent
PROGRAMS = [
    "mlp",
    "sized",
    "sized@16",
    "evaluated",
    "evaluated_alone",
    "loaded",
    "residual",
    "blocks",
    "blocks@ampere",
    "checkpointed",
    "reentrant",
    "blocks@offloaded",
    "autocast",
    "called_twice",
    "masked",
    "scaled",
    "convolutions",
    "recurrent",
    "recurrent_autocast",
    "elementwise_losses",
    "encoder_evaluated",
    "fused_sgd",
    "in_pieces",
    "tied",
    "gan",
    "choosy",
    "on_gpu",
    "changes_state",
    "no_loss",
    "breaks",
    "bad_batch",
    "fails",
    "only_model",
    "mlp@phases",
]
FAILING = ("no_loss", "breaks", "bad_batch", "fails", "only_model")


class Traced:
    """A trace, with what tests ask of it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.error = str(found.get("error", ""))
        self.events: list[list[Any]] = found.get("events", [])
        storages = found.get("storages", {})
        self.bytes: list[int] = storages.get("bytes", [])
        self.classes: list[str] = storages.get("class", [])
        self.names: list[str] = storages.get("name", [])

    def during(self, step: int, *phases: str) -> list[list[Any]]:
        """The events of a step in these phases; step 0 is what is before the first."""
        now, phase, found = 0, "", []
        for event in self.events:
            if event[0] == "step":
                now = event[1]
            elif event[0] == "phase":
                phase = event[1]
            elif now == step and (not phases or phase in phases):
                found.append(event)
        return found

    def allocated(self, step: int, *phases: str) -> list[int]:
        return [self.bytes[event[1]] for event in self.during(step, *phases) if event[0] == "alloc"]

    def operators(self, step: int, *phases: str) -> list[str]:
        """Names of operators, without their overload."""
        names = self.found["ops"]
        return [names[event[1]].split(".")[1] for event in self.during(step, *phases) if event[0] == "op"]

    def of_class(self, kind: str) -> Counter[int]:
        return Counter(size for size, one in zip(self.bytes, self.classes, strict=True) if one == kind)

    def live_at(self, step: int, phase: str) -> int:
        """Bytes that are there when a phase of a step begins."""
        now, live = 0, 0
        for event in self.events:
            if event[0] == "step":
                now = event[1]
            elif event[0] == "phase" and event[1] == phase and now == step:
                return live
            elif event[0] in ("alloc", "free"):
                live += self.bytes[event[1]] * (1 if event[0] == "alloc" else -1)
        raise AssertionError(f"no {phase} in step {step}")

    def live_at_end(self) -> int:
        live = sum(self.bytes[event[1]] for event in self.events if event[0] == "alloc")
        return live - sum(self.bytes[event[1]] for event in self.events if event[0] == "free")

    def saved(self, step: int) -> int:
        return sum(self.bytes[event[1]] for event in self.during(step) if event[0] == "saved")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    """All programs, traced in a process of their own."""
    folder = tmp_path_factory.mktemp("traces")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "support_fit.py"), str(folder), *PROGRAMS],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {name: Traced(json.loads((folder / f"{name}.json").read_text())) for name in PROGRAMS}


def test_evaluation_needs_no_loss(traces: dict[str, Traced]) -> None:
    trace = traces["evaluated_alone"]
    assert not trace.error
    # The hidden layer, its activation and the output.
    assert trace.allocated(2, "evaluation") == [32 * 256 * 4, 32 * 256 * 4, 32 * 10 * 4]


def test_a_loader_with_workers_and_pinned_memory_gives_the_batch(traces: dict[str, Traced]) -> None:
    trace = traces["loaded"]
    assert not trace.error
    assert trace.allocated(0, "load") == [8 * 64 * 4, 8 * 8]


def test_parameters_arrive_in_order_and_stay(traces: dict[str, Traced]) -> None:
    trace = traces["mlp"]
    assert trace.allocated(0, "setup") == [64 * 256 * 4, 256 * 4, 256 * 10 * 4, 10 * 4]
    assert trace.names[:4] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert trace.allocated(0, "load") == [32 * 64 * 4, 32 * 8]
    assert trace.found["model"] == {
        "parameters": 19210,
        "parameter_bytes": 76840,
        "trainable_bytes": 76840,
        "buffers_bytes": 0,
    }
    assert trace.found["batch"]["size"] == 32
    assert trace.found["optimizer"]["class"] == "AdamW"
    assert trace.found["optimizer"]["state_per_parameter_bytes"] == 8


def test_a_step_takes_what_it_must(traces: dict[str, Traced]) -> None:
    trace = traces["mlp"]
    wide, narrow = 32 * 256 * 4, 32 * 10 * 4
    # Two products, and the activation between them.
    assert trace.allocated(1, "forward") == [wide, wide, narrow]
    # The logarithms, the loss, its weight; and the gradient that the backward pass begins with.
    assert trace.allocated(1, "loss") == [narrow, 4, 4, 4]
    # The loss's gradients; of the second layer its input's, its weight's, its bias'; of the first no input's.
    assert trace.allocated(1, "backward") == [narrow, narrow, wide, 10240, 40, wide, 65536, 1024]
    assert trace.allocated(1, "zero_grad") == []
    # Two moments of each parameter, one after the other, and the list of denominators.
    sizes = [65536, 1024, 10240, 40]
    moments = [size for size in sizes for _ in range(2)]
    assert trace.allocated(1, "optimizer") == [*moments, *sizes]
    assert trace.allocated(2, "optimizer") == sizes
    assert trace.operators(1, "forward") == ["addmm", "relu", "addmm"]


def test_gradients_and_states_have_their_classes(traces: dict[str, Traced]) -> None:
    trace = traces["mlp"]
    sizes = [65536, 1024, 10240, 40]
    assert trace.of_class("gradient") == Counter(2 * sizes)
    assert trace.of_class("optimizer") == Counter(2 * sizes)
    assert trace.of_class("parameter") == Counter(sizes)
    assert trace.of_class("input") == Counter([8192, 256])
    # What the next operator needs no longer is gone before the backward pass.
    assert trace.of_class("activation")[32 * 256 * 4] == 2
    held = sum(sizes) * 4 + 8192 + 256
    assert trace.live_at_end() == held


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in FAILING])
def test_every_free_has_its_alloc(traces: dict[str, Traced], name: str) -> None:
    trace = traces[name]
    assert not trace.error
    alive: set[int] = set()
    entered: list[tuple[int, int]] = []
    for kind, *rest in trace.events:
        if kind == "alloc":
            assert rest[0] not in alive and trace.bytes[rest[0]] > 0
            alive.add(rest[0])
        elif kind == "free":
            alive.remove(rest[0])
        elif kind == "op":
            # What an operator reads and writes is there.
            assert set(rest[6]) | set(rest[7]) <= alive
        elif kind == "saved":
            assert rest[0] in alive
        elif kind == "enter":
            entered.append((rest[0], rest[1]))
        elif kind == "leave":
            assert entered.pop() == (rest[0], rest[1])
    assert not entered
    # Both steps end with what a program keeps: parameters, gradients, states, the batch.
    kept = {trace.classes[number] for number in alive}
    assert kept <= {"parameter", "buffer", "gradient", "optimizer", "input", "workspace", "unknown"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_process_is_as_it_was(traces: dict[str, Traced], name: str) -> None:
    assert traces[name].found["state_kept"]


def test_batches_of_another_size(traces: dict[str, Traced]) -> None:
    small, large = traces["sized"], traces["sized@16"]
    assert (small.found["batch"]["size"], large.found["batch"]["size"]) == (8, 16)
    assert small.allocated(1, "forward") == [8 * 256 * 4, 8 * 256 * 4, 8 * 40]
    assert large.allocated(1, "forward") == [16 * 256 * 4, 16 * 256 * 4, 16 * 40]
    # A batch maker is asked for every step; the batch before goes when the new one is there.
    assert small.allocated(2, "load") == [8 * 256, 8 * 8]


def test_evaluation_keeps_nothing(traces: dict[str, Traced]) -> None:
    trace = traces["evaluated"]
    assert trace.found["optimizer"] is None
    wide = 32 * 256 * 4
    assert trace.allocated(1, "evaluation")[:2] == [wide, wide]
    assert trace.of_class("gradient") == Counter()
    assert trace.live_at_end() == 76840 + 8192 + 256


def test_gradients_that_meet_are_added_in_place(traces: dict[str, Traced]) -> None:
    trace = traces["residual"]
    size = 1024 * 256 * 4
    backward = trace.allocated(1, "backward")
    # The gradient of exp, of sin through cos, and no third one for their sum.
    assert backward.count(size) == 3
    assert "add" in trace.operators(1, "backward")


def test_reductions_meet_in_staging_memory(traces: dict[str, Traced]) -> None:
    trace = traces["residual"]
    scratch = [size for size, kind in zip(trace.bytes, trace.classes, strict=True) if kind == "workspace"]
    # The bias' gradient adds 1,024 rows of 256: four results a thread, 32 x 4 threads, 16 parts of 16 rows a thread.
    assert 256 * 4 * 16 * 32 * 4 in scratch


def test_modules_are_followed_both_ways(traces: dict[str, Traced]) -> None:
    trace = traces["blocks"]
    names = [module["name"] for module in trace.found["modules"]]
    parents = [module["parent"] for module in trace.found["modules"]]
    assert names[0] == "" and parents[0] == -1
    assert all(parent < number for number, parent in enumerate(parents))
    assert names[parents[names.index("blocks.1.qkv")]] == "blocks.1"
    forward = [names[event[1]] for event in trace.during(1) if event[0] == "enter" and event[2] == 0]
    backward = [names[event[1]] for event in trace.during(1) if event[0] == "enter" and event[2] == 1]
    layers = [name for name in forward if name.count(".") == 1]
    assert layers == ["blocks.0", "blocks.1", "blocks.2"]
    seen = dict.fromkeys(name for name in backward if name.count(".") == 1)
    assert list(seen) == layers[::-1]
    # Operators of the backward pass belong to modules, and run in the engine's thread.
    ops = [event for event in trace.during(1, "backward") if event[0] == "op" and event[3] == 1]
    assert sum(names[event[2]].startswith("blocks.") for event in ops if event[2] >= 0) > len(ops) // 2


def test_a_module_called_twice(traces: dict[str, Traced]) -> None:
    trace = traces["called_twice"]
    names = [module["name"] for module in trace.found["modules"]]
    entered = [names[event[1]] for event in trace.during(1) if event[0] == "enter" and event[2] == 0]
    assert entered.count("blocks.0") == 2
    # Its gradients meet, and are kept once.
    assert trace.found["model"] == traces["blocks"].found["model"]
    assert trace.live_at_end() == traces["blocks"].live_at_end()


@pytest.mark.parametrize("name", ["checkpointed", "reentrant"])
def test_checkpoints_run_again(traces: dict[str, Traced], name: str) -> None:
    plain, trace = traces["blocks"], traces[name]
    again = [event for event in trace.during(1, "backward") if event[0] == "enter" and event[2] == 2]
    names = [trace.found["modules"][event[1]]["name"] for event in again]
    assert [one for one in names if one.count(".") == 1] == ["blocks.2", "blocks.1", "blocks.0"]
    assert not [event for event in plain.events if event[0] == "enter" and event[2] == 2]
    assert trace.saved(1) < plain.saved(1) / 2
    assert trace.live_at_end() == plain.live_at_end() + (8 * 32 * 64 * 4 if name == "reentrant" else 0)


def test_what_waits_on_the_host_is_not_on_the_device(traces: dict[str, Traced]) -> None:
    plain, trace = traces["blocks"], traces["blocks@offloaded"]
    left = plain.saved(1) - trace.saved(1)
    assert left > plain.saved(1) / 2
    for step in (1, 2):
        # But for what is on its way, as much as the window allows.
        spared = plain.live_at(step, "backward") - trace.live_at(step, "backward")
        assert left - (1 << 17) <= spared <= left
    assert trace.live_at_end() == plain.live_at_end()


def test_attention_takes_the_kernel_of_the_gpu(traces: dict[str, Traced]) -> None:
    # fp32 has only the memory-efficient kernel, with or without a mask.
    for name in ("blocks", "masked", "blocks@ampere"):
        assert "_scaled_dot_product_efficient_attention" in traces[name].operators(1, "forward")
    half = traces["autocast"].operators(1, "forward")
    assert "_scaled_dot_product_cudnn_attention" in half or "_scaled_dot_product_flash_attention" in half


def test_autocast_casts_weights_once_and_keeps_them_until_it_ends(traces: dict[str, Traced]) -> None:
    trace = traces["autocast"]
    # qkv's weight, 64 x 192, in bf16: three layers.
    assert trace.allocated(1, "forward").count(64 * 192 * 2) == 3
    assert trace.saved(1) < traces["blocks"].saved(1)


def test_scaled_gradients_are_taken_as_finite(traces: dict[str, Traced]) -> None:
    trace = traces["scaled"]
    assert trace.found["unknown"] == []
    assert "_foreach_addcdiv_" in trace.operators(1, "optimizer")


def test_layers_of_a_convolutional_net(traces: dict[str, Traced]) -> None:
    trace = traces["convolutions"]
    image = 4 * 16 * 8 * 8 * 4
    forward = trace.allocated(1, "forward")
    assert forward.count(image) == 3
    assert trace.of_class("buffer")[16 * 4] == 2
    # Momentum is made in the first step.
    parameters = trace.of_class("parameter")
    assert trace.of_class("optimizer") == parameters


def test_recurrent_layers_have_one_buffer(traces: dict[str, Traced]) -> None:
    trace = traces["recurrent"]
    hidden, layer = 32, [4 * 32 * 16, 4 * 32 * 32, 4 * 32, 4 * 32]
    weights = [*layer, 4 * 32 * 32, 4 * 32 * 32, 4 * 32, 4 * 32]
    setup = trace.allocated(0, "setup")
    assert sum(weights) * 4 in setup
    assert "_cudnn_rnn" in trace.operators(1, "forward")
    # Five numbers a cell, for both layers, and what goes from one to the other, of 4 sequences of 10; and 512 bytes.
    assert 4 * 10 * hidden * (2 * 5 + 1) * 4 + 512 in trace.allocated(1, "forward")
    assert trace.found["model"]["parameters"] == sum(weights) + 33
    # The gradients of all weights are views of one buffer, too.
    assert trace.of_class("gradient")[sum(weights) * 4] >= 1


def test_recurrent_layers_under_autocast_to_bf16_compute_in_fp16(traces: dict[str, Traced]) -> None:
    trace = traces["recurrent_autocast"]
    assert not trace.error
    assert "_cudnn_rnn" in trace.operators(1, "forward")
    weights = 4 * 32 * (16 + 32 + 2) + 4 * 32 * (32 + 32 + 2)
    dtypes = trace.found["storages"]["dtype"]
    halves = {size for size, dtype in zip(trace.bytes, dtypes, strict=True) if dtype == "float16"}
    # The buffer of all weights, which is made anew, and the output.
    assert {weights * 2, 4 * 10 * 32 * 2} <= halves


def test_a_loss_keeps_the_storage_of_all_its_elements(traces: dict[str, Traced]) -> None:
    trace = traces["elementwise_losses"]
    assert not trace.error
    whole, kept = 32 * 64 * 4, Counter[str]()
    for event in trace.during(1, "loss", "forward"):
        if event[0] == "op":
            name = trace.found["ops"][event[1]].split(".")[1]
            kept[name] += sum(trace.bytes[slot] == whole for slot in event[8])
    assert kept["mse_loss"] == kept["smooth_l1_loss"] == kept["binary_cross_entropy"] == 1
    # This one is the mean of a difference that goes.
    assert kept["mean"] == 0


def test_evaluated_transformer_layers_take_the_steps_of_their_fast_path(traces: dict[str, Traced]) -> None:
    trace = traces["encoder_evaluated"]
    assert not trace.error
    rows = 4 * 8
    taken = trace.allocated(1, "evaluation")
    # The first layer has its projections in one product, as the second has, whose heads then get a buffer of their own.
    assert taken.count(rows * 3 * 32 * 4) == 3
    # Every activation of the wide part is one allocation, whatever the function.
    assert taken.count(rows * 64 * 4) == 2
    operators = Counter(trace.operators(1, "evaluation"))
    assert operators["bmm"] == 2 and operators["native_layer_norm"] == 4
    assert operators["_addmm_activation"] == 2


def test_masks_are_known_in_pieces_of_a_batch_too(traces: dict[str, Traced]) -> None:
    trace = traces["in_pieces"]
    assert not trace.error and trace.found["unknown"] == []
    operators = trace.operators(1)
    assert operators.count("all") == 2 and "where" not in operators


def test_fused_sgd_takes_its_momentum_and_nothing_else(traces: dict[str, Traced]) -> None:
    trace = traces["fused_sgd"]
    assert not trace.error
    assert trace.operators(2, "optimizer").count("_fused_sgd_") == 1
    assert trace.allocated(1, "optimizer") == [64 * 256 * 4, 256 * 4, 256 * 10 * 4, 10 * 4]
    assert trace.allocated(2, "optimizer") == []


def test_tied_weights_count_once(traces: dict[str, Traced]) -> None:
    trace = traces["tied"]
    assert trace.found["model"]["parameters"] == 3200
    assert trace.of_class("parameter") == Counter([3200 * 4])
    assert trace.live_at_end() == 4 * 3200 * 4 + 4 * 8 * 8


def test_a_step_of_its_own_has_phases(traces: dict[str, Traced]) -> None:
    trace = traces["gan"]
    phases, now = [], 0
    for event in trace.events:
        now = event[1] if event[0] == "step" else now
        if event[0] == "phase" and now == 2:
            phases.append(event[1])
    once = ["zero_grad", "backward", "optimizer"]
    assert [phase for phase in phases if phase != "forward"] == 2 * once
    assert trace.found["optimizer"]["class"] == "Adam"


def test_sizes_that_depend_on_numbers_are_bounded(traces: dict[str, Traced]) -> None:
    trace = traces["choosy"]
    (unknown,) = trace.found["unknown"]
    assert "nonzero" in unknown["what"] and "support_fit.py" in unknown["where"] and "Choosy" in unknown["where"]
    assert unknown["bound_bytes"] == 64 * 8


def test_programs_may_bring_their_model_to_the_gpu(traces: dict[str, Traced]) -> None:
    trace = traces["on_gpu"]
    # In fp32 first, then in bf16.
    assert trace.allocated(0, "setup") == [64 * 64 * 4, 64 * 4, 64 * 64 * 2, 64 * 2]
    assert "_fused_adamw_" in trace.operators(1, "optimizer")
    assert trace.found["optimizer"]["fused"] is True


def test_more_phases(traces: dict[str, Traced]) -> None:
    trace = traces["mlp@phases"]
    phases = [event[1] for event in trace.events if event[0] == "phase"]
    assert phases[-2:] == ["evaluation", "saving"]


def test_costs(traces: dict[str, Traced]) -> None:
    trace = traces["mlp"]
    (first, relu, _) = [event for event in trace.during(1, "forward") if event[0] == "op"]
    assert first[4:7] == [2 * 32 * 64 * 256, 32 * 64 * 4 + 64 * 256 * 4 + 256 * 4, 32 * 256 * 4]
    assert relu[4:7] == [0, 32 * 256 * 4, 32 * 256 * 4]
    updates = [event for event in trace.during(1, "optimizer") if event[0] == "op"]
    assert all(event[6] > 0 for event in updates)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", ["support_fit.py:fails fails", "no such model: tiny", "support_fit.py:", "raise ValueError"]),
        ("bad_batch", ["the batch cannot be made", "data.bin is not there", "support_fit.py:"]),
        ("only_model", ["only a model", "(model, optimizer, loss, batch)"]),
        ("no_loss", ["Linear gives no loss", "loss(output, target)"]),
        ("breaks", ["step 1 fails in the forward phase, in 1 (Breaks)", "support_fit.py:", "torch.ones(7, 7"]),
    ],
)
def test_errors_say_where(traces: dict[str, Traced], name: str, words: list[str]) -> None:
    for word in words:
        assert word in traces[name].error
