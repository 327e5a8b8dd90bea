"""Levers applied to small models on the CPU: results as without them, checks before changes, changes taken back."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch, "nn") or not hasattr(torch.nn, "Linear"):
    pytest.skip("the PyTorch here is none", allow_module_level=True)

from gpuheap._fit.apply import LeverError, apply  # noqa: E402
from gpuheap._fit.apply.order import NAMES  # noqa: E402

VOCABULARY = 60
Levers = list[dict[str, Any]]


class Block(torch.nn.Module):
    """Called by keyword, gives a tuple, drops out, and normalises over the batch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.batch_norm = torch.nn.BatchNorm1d(2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, hidden: Any, *, scale: float = 1.0, use_cache: bool = False) -> tuple[Any, dict[str, Any]]:
        inner = torch.nn.functional.gelu(self.up(self.norm(hidden)))
        inner = self.batch_norm(inner.transpose(1, 2)).transpose(1, 2)
        out = hidden + scale * self.dropout(self.down(inner))
        return out, {"mean": out.mean()}


class Model(torch.nn.Module):
    """Its last block runs twice; its head shares the embedding's weight."""

    def __init__(self, width: int = 16, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(blocks))
        self.lm_head = torch.nn.Linear(width, VOCABULARY, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, tokens: Any, labels: Any = None) -> dict[str, Any]:
        hidden = self.embedding(tokens)
        extra = 0.0
        for block in (*self.blocks, self.blocks[-1]):
            hidden, beside = block(hidden, scale=0.5, use_cache=False)
            extra = extra + beside["mean"]
        logits = self.lm_head(hidden)
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, VOCABULARY), labels.view(-1))
        return {"loss": loss + 0.01 * extra, "logits": logits}


def program(seed: int = 0, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    torch.manual_seed(seed)
    model = Model()
    tokens = torch.randint(0, VOCABULARY, (4, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    return model, optimizer, {"tokens": tokens, "labels": tokens.clone()}


def run(levers: Levers, steps: int = 3, **options: Any) -> tuple[list[float], Any, Any]:
    model, optimizer, batch = program(**options)
    applied = apply(levers, model, optimizer)
    torch.manual_seed(1)
    losses = [float(applied.step(batch)) for _ in range(steps)]
    return losses, applied, model.state_dict()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


EXACT: list[Levers] = [
    [{"lever": "checkpoint", "modules": ["blocks.0", "blocks.2"]}],
    [{"lever": "checkpoint", "modules": ["blocks.1"]}, {"lever": "accumulate", "factor": 1}],
    [{"lever": "selective_checkpoint", "modules": ["blocks.0", "blocks.2"], "keep": ["aten.addmm.default"]}],
    [{"lever": "selective_checkpoint", "modules": ["blocks.1"]}],
    [{"lever": "offload_activations", "modules": ["blocks.0", "blocks.2"], "least_bytes": 0}],
    [
        {"lever": "checkpoint", "modules": ["blocks.0"]},
        {"lever": "offload_activations", "modules": ["blocks.1"], "least_bytes": 0},
    ],
    [{"lever": "optimizer", "form": "foreach"}],
    [{"lever": "optimizer", "form": "for_loop"}],
    [{"lever": "optimizer", "form": "in_backward"}],
    [{"lever": "offload_optimizer", "chunk_bytes": 2000}],
    [{"lever": "spill", "bytes": 1 << 20}],
]


@pytest.mark.parametrize(
    "levers", EXACT, ids=lambda levers: "+".join(f"{x['lever']}-{x.get('form', '')}" for x in levers)
)
def test_a_lever_that_keeps_the_mathematics_keeps_every_bit(levers: Levers) -> None:
    expected, _, weights = run([])
    losses, applied, found = run(levers)
    assert losses == expected
    assert same(found, weights), applied


NEAR: list[tuple[Levers, float]] = [
    ([{"lever": "loss", "form": "chunked", "chunks": 5}], 1e-5),
    ([{"lever": "optimizer", "form": "fused"}], 1e-4),
    ([{"lever": "optimizer_state", "dtype": "bfloat16", "chunk_bytes": 3000}], 2e-2),
    ([{"lever": "autocast", "dtype": "bfloat16"}], 2e-2),
    ([{"lever": "autocast", "dtype": "bfloat16"}, {"lever": "loss", "form": "chunked", "chunks": 3}], 2e-2),
    ([{"lever": "parameters", "dtype": "bfloat16"}], 5e-2),
]


@pytest.mark.parametrize(
    ("levers", "off"), NEAR, ids=lambda value: str(value[0]["lever"]) if isinstance(value, list) else ""
)
def test_a_lever_that_rounds_stays_near(levers: Levers, off: float) -> None:
    expected, _, _ = run([])
    losses, _, _ = run(levers)
    assert losses == pytest.approx(expected, rel=off, abs=off)
    assert losses != expected or levers[0]["lever"] == "loss"


@pytest.mark.parametrize(
    "levers",
    [*EXACT, *(levers for levers, _ in NEAR)],
    ids=lambda levers: "+".join(f"{x['lever']}-{x.get('form', '')}" for x in levers),
)
def test_a_model_that_is_dropped_is_gone(levers: Levers) -> None:
    _, applied, _ = run(levers, steps=2)
    left = [weakref.ref(applied.model), weakref.ref(applied.optimizer), weakref.ref(next(applied.model.parameters()))]
    del applied
    gc.collect()
    assert [one() for one in left] == [None] * 3


def test_names_of_weights_stay() -> None:
    model, optimizer, _ = program()
    names, kind = list(model.state_dict()), type(model)
    modules = [f"blocks.{index}" for index in range(3)]
    applied = apply([{"lever": "checkpoint", "modules": modules}], model, optimizer)
    assert list(model.state_dict()) == names
    assert applied.model is model and type(model) is kind
    assert list(applied) == [model, optimizer]


def test_a_copy_and_a_pickle_of_a_changed_model_work() -> None:
    model, optimizer, batch = program()
    apply([{"lever": "checkpoint", "modules": ["blocks.0"]}], model, optimizer)
    other = copy.deepcopy(model)
    other(**batch)["loss"].backward()
    assert other.blocks[0].up.weight.grad is not None and model.blocks[0].up.weight.grad is None
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    loaded(**batch)["loss"].backward()
    assert loaded.blocks[0].up.weight.grad is not None and "forward" in vars(loaded.blocks[0])


def test_without_gradients_nothing_is_kept_or_moved() -> None:
    model, optimizer, batch = program()
    levers = [{"lever": "checkpoint", "modules": ["blocks.0"]}, {"lever": "loss", "form": "chunked"}]
    apply(levers, model, optimizer)
    with torch.no_grad():
        output = model(**batch)
    assert type(output["logits"]) is torch.Tensor


def test_a_head_of_any_name_is_held_back_if_the_plan_names_it() -> None:
    model, optimizer, batch = program()
    model.head, model.lm_head = model.lm_head, None
    model.forward = lambda tokens, labels: model.head(model.embedding(tokens))
    lever = {"lever": "loss", "form": "chunked", "chunks": 4}
    with pytest.raises(LeverError, match="none was found"):
        apply([lever], model, optimizer)
    apply([{**lever, "module": "head"}], model, optimizer)
    logits = model(**batch)
    assert "LazyLogits" in repr(logits)
    # Losses flatten what they get: that leaves classes alone.
    for flat in (logits.flatten(0, 1), torch.flatten(logits, 0, -2), logits.flatten(end_dim=1)):
        assert "LazyLogits" in repr(flat) and flat.shape == (24, VOCABULARY)
    assert type(logits.flatten(1)) is torch.Tensor and logits.flatten().shape == (24 * VOCABULARY,)


def test_held_back_logits_are_logits_for_whoever_looks() -> None:
    model, optimizer, batch = program()
    model.eval()
    expected = model(**batch)["logits"].detach()
    apply([{"lever": "loss", "form": "chunked", "chunks": 4}], model, optimizer)
    logits = model(**batch)["logits"]
    assert logits.shape == expected.shape and logits.dtype == expected.dtype
    assert "LazyLogits" in repr(logits)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))
    torch.testing.assert_close(logits + 0, expected)
    torch.testing.assert_close(logits[:, -1, :3] * 1, expected[:, -1, :3])
    torch.testing.assert_close(logits.softmax(-1), expected.softmax(-1))
    logits.exp().sum().backward()
    assert model.blocks[0].up.weight.grad is not None


@pytest.mark.parametrize("options", [
    {}, {"ignore_index": 3}, {"reduction": "sum"}, {"reduction": "none"}, {"label_smoothing": 0.1},
    {"weight": torch.linspace(0.1, 2, 20)},
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("upcast", [True, False])
def test_the_chunked_loss_is_the_cross_entropy(options: dict[str, Any], dtype: Any, upcast: bool) -> None:
    from gpuheap._fit.apply.chunked import linear_cross_entropy

    torch.manual_seed(0)
    hidden, weight = torch.randn(13, 8), torch.randn(20, 8)
    bias, target = torch.randn(20), torch.randint(0, 20, (13,))
    parts = [one.to(dtype).requires_grad_() for one in (hidden, weight, bias)]
    own = [one.detach().clone().requires_grad_() for one in parts]
    logits = torch.nn.functional.linear(parts[0], parts[1], parts[2])
    logits = logits.float() if upcast else logits
    named = {name: value for name, value in options.items() if name != "weight"}
    class_weight = options.get("weight")
    class_weight = None if class_weight is None else class_weight.to(logits.dtype)
    expected = torch.nn.functional.cross_entropy(logits, target, class_weight, **named)
    found = linear_cross_entropy(
        own[0], own[1], target, own[2], chunks=4, class_weight=class_weight, upcast=upcast, **named
    )
    rough = 0.1 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found.float(), expected.float(), rtol=rough, atol=rough)
    expected.float().square().sum().backward()
    found.float().square().sum().backward()
    for one, other in zip(own, parts, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=2 * rough, atol=2 * rough)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 5))

    def forward(self, inputs: Any) -> Any:
        return self.layers(inputs)


@pytest.mark.parametrize("loss", [
    torch.nn.CrossEntropyLoss(),
    torch.nn.CrossEntropyLoss(ignore_index=2),
    torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.2, 3.0, 1.0, 0.5])),
    torch.nn.CrossEntropyLoss(reduction="sum"),
    torch.nn.CrossEntropyLoss(label_smoothing=0.1),
])  # fmt: skip
@pytest.mark.parametrize("factor", [2, 3, 7])
def test_accumulation_is_the_mean_of_the_whole_batch(loss: Any, factor: int) -> None:
    torch.manual_seed(0)
    batch = (torch.randn(10, 6), torch.randint(0, 5, (10,)))
    found = []
    for levers in ([], [{"lever": "accumulate", "factor": factor}]):
        torch.manual_seed(1)
        model = Classifier()
        applied = apply(levers, model, torch.optim.SGD(model.parameters(), lr=0.05), loss=loss)
        losses = [float(applied.step(batch)) for _ in range(3)]
        found.append((losses, [one.detach() for one in model.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_program_says_what_its_parts_weigh() -> None:
    def shifted(model: Any, batch: Any) -> Any:
        logits = model.lm_head(model.embedding(batch["tokens"]))[:, :-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch["labels"][:, 1:].reshape(-1))

    found = []
    for factor in (1, 4):
        model, _, batch = program()
        batch["labels"][0, 2:] = -100
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        applied = apply(
            [{"lever": "accumulate", "factor": factor}],
            model,
            optimizer,
            loss=shifted,
            weigh=lambda part: (part["labels"][:, 1:] != -100).sum(),
        )
        found.append([float(applied.step(batch)) for _ in range(3)])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_loop_of_ones_own_gives_the_same() -> None:
    levers: Levers = [{"lever": "accumulate", "factor": 2}, {"lever": "autocast", "dtype": "bfloat16"}]
    found = []
    for own in (False, True):
        torch.manual_seed(3)
        model = Classifier()
        batch = (torch.randn(8, 6), torch.randint(0, 5, (8,)))
        loss = torch.nn.CrossEntropyLoss()
        applied = apply(levers, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)
        for _ in range(2):
            if not own:
                applied.step(batch)
                continue
            for part in applied.parts(batch):
                with applied.forward():
                    value = loss(applied.model(part.batch[0]), part.batch[1]) * part.weight
                applied.backward(value)
            applied.optimizer_step()
        found.append([one.detach().clone() for one in model.parameters()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_the_step_in_backward_goes_with_schedulers_and_hooks() -> None:
    found = []
    for levers in ([], [{"lever": "optimizer", "form": "in_backward"}]):
        model, optimizer, batch = program()
        applied = apply(levers, model, optimizer)
        calls: list[str] = []
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("stepped"))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        torch.manual_seed(2)
        for _ in range(3):
            applied.step(batch)
            scheduler.step()
        assert calls == ["stepped"] * 3
        assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.5**3)
        found.append(model.state_dict())
        if levers:
            assert all(one.grad is None for one in model.parameters())
    assert same(*found)


def test_the_step_in_backward_says_that_nothing_is_trained_without_its_optimizer() -> None:
    model, optimizer, batch = program()
    applied = apply([{"lever": "optimizer", "form": "in_backward"}], model, optimizer)
    applied.step(batch)
    before = [one.detach().clone() for one in model.parameters()]
    del applied, optimizer
    gc.collect()
    with pytest.warns(RuntimeWarning, match="nothing is trained") as told:
        for _ in range(2):
            sum(one.sum() for one in model.parameters()).backward()
    assert len(told) == 1
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    # Another optimizer has the gradients.
    assert all(one.grad is not None for one in model.parameters())


def test_streamed_state_goes_with_schedulers_and_several_groups() -> None:
    found = []
    for levers in ([], [{"lever": "offload_optimizer", "chunk_bytes": 500}]):
        torch.manual_seed(0)
        model = Classifier()
        first, second = model.layers[0], model.layers[2]
        groups = [{"params": first.parameters(), "lr": 0.1}, {"params": second.parameters(), "weight_decay": 0.3}]
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        applied = apply(levers, model, optimizer, loss=torch.nn.CrossEntropyLoss())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
        batch = (torch.randn(8, 6), torch.randint(0, 5, (8,)))
        for _ in range(3):
            applied.step(batch)
            scheduler.step()
        found.append(model.state_dict())
        assert len(optimizer.param_groups) == 2
    assert same(*found)


def test_rounding_at_random_keeps_the_mean_and_the_programs_random_numbers() -> None:
    from gpuheap._fit.apply.optimizer_state import _Rounded

    rounded = _Rounded()
    value = torch.full((100_000,), 1 + 1 / 512)
    before = torch.get_rng_state()
    kept = rounded.pack(value, None)
    assert torch.equal(torch.get_rng_state(), before)
    assert kept.dtype == torch.bfloat16
    assert float(kept.double().mean()) == pytest.approx(1 + 1 / 512, rel=1e-4)
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0])
    assert torch.equal(rounded.pack(odd, None).float().nan_to_num(7), odd.nan_to_num(7))


def test_quantized_frozen_layers_let_gradients_through() -> None:
    for dtype, off in (("int8", 0.02), ("int4", 0.2)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
        head = torch.nn.Linear(256, 256)
        whole = torch.nn.Sequential(head, model)
        model[0].requires_grad_(False)
        inputs = torch.randn(8, 256)
        expected = whole(inputs)
        optimizer = torch.optim.SGD([one for one in whole.parameters() if one.requires_grad], lr=0.01)
        lever = {"lever": "quantize", "dtype": dtype, "frozen_only": True}
        applied = apply([lever], whole, optimizer, loss=torch.nn.MSELoss())
        found = whole(inputs)
        assert (found - expected).norm() < off * expected.norm()
        assert type(whole[1][0]).__name__ == "FrozenLinear" and type(whole[1][2]) is torch.nn.Linear
        losses = [float(applied.step((inputs, torch.zeros(8, 5)))) for _ in range(4)]
        assert losses[-1] < losses[0] and head.weight.grad is not None


def test_pruning_is_permanent_and_says_its_size() -> None:
    from gpuheap._fit.apply.prune import true_size

    model = Classifier()
    weight = model.layers[0].weight
    size, _ = true_size(model)
    applied = apply([{"lever": "prune", "amount": 0.5}], model)
    assert model.layers[0].weight is weight and "weight_orig" not in dict(model.named_parameters())
    assert true_size(model) == (size, pytest.approx(0.5, abs=0.02))
    assert "same memory" in applied.notes[0]
    torch.nn.utils.prune.l1_unstructured(model.layers[0], "weight", 0.1)
    assert true_size(model)[0] == size + 2 * weight.nbytes


def test_two_of_four() -> None:
    from gpuheap._fit.apply.sparse24 import largest_two_of_four

    found = largest_two_of_four(torch.tensor([[1.0, -4.0, 3.0, 2.0, 0.0, 0.0, 5.0, 0.0]]))
    assert found.tolist()[0][:4] == [0.0, -4.0, 3.0, 0.0]
    assert (found.reshape(-1, 4) != 0).sum(1).max() <= 2


def test_inference_mode_evaluates() -> None:
    model = Classifier().eval()
    applied = apply([{"lever": "inference_mode"}, {"lever": "accumulate", "factor": 2}], model, loss=torch.nn.MSELoss())
    with applied.forward():
        assert torch.is_inference_mode_enabled()
    batch = (torch.randn(4, 6), torch.zeros(4, 5))
    assert float(applied.step(batch)) == pytest.approx(
        float(torch.nn.MSELoss()(model(batch[0]).detach(), batch[1])), rel=1e-5
    )


WRONG: list[tuple[Any, str]] = [
    ([{"lever": "fly"}], "there is no lever `fly`"),
    (["checkpoint"], "is no lever"),
    ([{"lever": "accumulate", "factor": 2}, {"lever": "accumulate", "factor": 4}], "is there twice"),
    ([{"lever": "accumulate", "factor": 0}], "factor `0`"),
    ([{"lever": "accumulate", "factor": True}], "factor `True`"),
    ([{"lever": "checkpoint", "modules": []}], "names no modules"),
    ([{"lever": "checkpoint", "modules": ["block.0"]}], "has no module `block.0`; it has `blocks.0`"),
    ([{"lever": "checkpoint", "modules": ["blocks"]}], "which is a ModuleList"),
    ([{"lever": "checkpoint", "modules": ["blocks.0", "blocks.0.up"]}], "which contains it"),
    ([{"lever": "selective_checkpoint", "modules": ["blocks.0"], "keep": ["aten.nothing.default"]}], "does not have"),
    (
        [
            {"lever": "checkpoint", "modules": ["blocks.0"]},
            {"lever": "offload_activations", "modules": ["blocks.0.up"]},
        ],
        "both name `blocks.0.up`",
    ),
    ([{"lever": "optimizer", "form": "fast"}], "form `fast`"),
    (
        [{"lever": "optimizer", "form": "in_backward"}, {"lever": "accumulate", "factor": 2}],
        "would step after every part",
    ),
    (
        [{"lever": "optimizer", "form": "in_backward"}, {"lever": "autocast", "dtype": "float16"}],
        "scaled gradients have to be looked through",
    ),
    ([{"lever": "offload_optimizer"}, {"lever": "optimizer_state", "dtype": "bfloat16"}], "do not go together"),
    ([{"lever": "autocast", "dtype": "bfloat16"}, {"lever": "parameters", "dtype": "bfloat16"}], "do not go together"),
    ([{"lever": "autocast", "dtype": "int8"}], "dtype `int8`"),
    ([{"lever": "quantize", "dtype": "int8"}], "no linear layer of Model is frozen"),
    ([{"lever": "quantize", "dtype": "int8", "frozen_only": False}], "weights that are trained"),
    ([{"lever": "sparse24"}], "for inference"),
    ([{"lever": "prune", "amount": 2}], "amount `2`"),
    ([{"lever": "compile", "activation_memory_budget": 3}], "activation_memory_budget `3`"),
    ([{"lever": "allocator", "conf": "fast"}], "conf `fast`"),
    ([{"lever": "shard", "form": "fsdp2", "gpus": 2}], "`torch.distributed` is not initialised"),
    ([{"lever": "shard", "form": "sideways", "gpus": 2}], "form `sideways`"),
    ([{"lever": "inference_mode"}, {"lever": "checkpoint", "modules": ["blocks.0"]}], "nothing is trained"),
    ([{"lever": "loss", "form": "chunked", "module": "blocks.0"}], "needs a `torch.nn.Linear`"),
]


@pytest.mark.parametrize(("levers", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_applied_is_refused_and_nothing_is_changed(levers: Any, says: str) -> None:
    model, optimizer, _ = program()
    before = copy.deepcopy(model.state_dict())
    modules = {name: (type(module), set(vars(module))) for name, module in model.named_modules()}
    # A lever before it that would change something.
    own = {x["lever"] for x in levers if isinstance(x, dict)}
    more = [] if own & {"loss", "compile"} else [{"lever": "loss", "form": "chunked"}]
    with pytest.raises(LeverError) as caught:
        apply([*more, *levers], model, optimizer)
    assert says in str(caught.value)
    assert caught.value.hint
    assert same(model.state_dict(), before)
    assert {name: (type(module), set(vars(module))) for name, module in model.named_modules()} == modules
    assert not optimizer.state and "step" not in vars(optimizer)


def test_a_second_plan_is_refused_and_a_failed_one_is_none() -> None:
    model, optimizer, _ = program()
    with pytest.raises(LeverError, match="has no module `nothing`"):
        apply([{"lever": "checkpoint", "modules": ["nothing"]}], model, optimizer)
    # This changes neither of them.
    apply([{"lever": "allocator", "conf": "expandable_segments:True"}], model, optimizer)
    apply([{"lever": "checkpoint", "modules": ["blocks.0"]}, {"lever": "accumulate", "factor": 2}], model, optimizer)
    for levers in ([{"lever": "optimizer", "form": "for_loop"}], [{"lever": "checkpoint", "modules": ["blocks.1"]}]):
        with pytest.raises(LeverError, match="has a plan already, with `checkpoint`, `accumulate`"):
            apply(levers, model, optimizer)
    other, _, _ = program()
    with pytest.raises(LeverError, match="has a plan already"):
        apply([{"lever": "accumulate", "factor": 2}], other, optimizer)


def test_a_lever_that_fails_while_it_is_applied_takes_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuheap._fit.apply import accumulate

    model, optimizer, batch = program()
    before = copy.deepcopy(model.state_dict())
    modules = {name: (type(module), set(vars(module))) for name, module in model.named_modules()}

    def fails(*_: Any) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(accumulate, "apply", fails)
    levers: Levers = [
        {"lever": "prune", "amount": 0.5},
        {"lever": "parameters", "dtype": "bfloat16"},
        {"lever": "loss", "form": "chunked"},
        {"lever": "checkpoint", "modules": ["blocks.0"]},
        {"lever": "offload_activations", "modules": ["blocks.1"]},
        {"lever": "optimizer", "form": "for_loop"},
        {"lever": "offload_optimizer"},
        {"lever": "accumulate", "factor": 2},
    ]
    with pytest.raises(RuntimeError, match="no more"):
        apply(levers, model, optimizer)
    assert same(model.state_dict(), before)
    assert {name: (type(module), set(vars(module))) for name, module in model.named_modules()} == modules
    assert optimizer.param_groups[0]["foreach"] is None and "step" not in vars(optimizer)
    assert not model._forward_pre_hooks
    torch.manual_seed(1)
    model(**batch)["loss"].backward()


def test_every_lever_has_its_file() -> None:
    from importlib import import_module

    from gpuheap._fit.apply.order import _FILES

    for name in NAMES:
        module = import_module(f"gpuheap._fit.apply.{_FILES[name]}")
        assert callable(module.check) and callable(module.apply)


def test_a_programs_own_step_is_left_to_itself() -> None:
    model, optimizer, batch = program()

    def step(model: Any, optimizer: Any, batch: Any) -> Any:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        return loss.detach()

    step.whole_step = True  # type: ignore[attr-defined]
    applied = apply([{"lever": "checkpoint", "modules": ["blocks.0"]}], model, optimizer, loss=step)
    expected, _, _ = run([])
    torch.manual_seed(1)
    assert [float(applied.step(batch)) for _ in range(3)] == expected
    model, optimizer, _ = program()
    with pytest.raises(LeverError, match="does its whole step by itself"):
        apply([{"lever": "accumulate", "factor": 2}], model, optimizer, loss=step)
