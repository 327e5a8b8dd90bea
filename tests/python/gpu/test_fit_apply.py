"""The levers of `gpuheap fit` on a real GPU: they run, save what they should, and keep results."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

# Frameworks warn of their own insides when they compile something or are read for the first time.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
MIB = 1 << 20


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _fresh(torch: Any) -> Any:
    yield
    gc.collect()
    # To read all of it only for this takes seconds.
    if "torch._inductor.compile_fx" in sys.modules:
        torch._dynamo.reset()
    torch.cuda.empty_cache()


class Block:
    """Made late: torch may not be there."""

    def __new__(cls, torch: Any, width: int) -> Any:
        nn = torch.nn
        return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def program(torch: Any, blocks: int = 12, width: int = 1024, tokens: int = 8192) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    layers = [Block(torch, width) for _ in range(blocks)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1000)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = (torch.randn(tokens, width, device="cuda"), torch.randint(1000, (tokens,), device="cuda"))
    return model, optimizer, torch.nn.CrossEntropyLoss(), batch


def run(torch: Any, levers: list[dict[str, Any]], steps: int = 4, **size: int) -> tuple[list[float], int, Any]:
    """Losses, peak of allocated bytes in the last step, and what was applied."""
    from gpuheap._fit.apply import apply

    model, optimizer, loss, batch = program(torch, **size)
    applied = apply(levers, model, optimizer, loss=loss)
    losses = []
    for _ in range(steps):
        torch.cuda.reset_peak_memory_stats()
        losses.append(float(applied.step(batch)))
    return losses, int(torch.cuda.max_memory_allocated()), applied


NAMES = [str(index) for index in range(12)]
# The lever, how far losses may be off, and tokens: few of them where it is the optimizer that decides about the peak.
SAVING = [
    ({"lever": "checkpoint", "modules": NAMES}, 1e-6, 8192),
    ({"lever": "selective_checkpoint", "modules": NAMES, "keep": ["aten.addmm.default"]}, 1e-6, 8192),
    ({"lever": "offload_activations", "modules": NAMES}, 1e-6, 8192),
    ({"lever": "offload_activations", "modules": NAMES, "window_bytes": 64 * MIB}, 1e-6, 8192),
    ({"lever": "accumulate", "factor": 4}, 1e-3, 8192),
    ({"lever": "autocast", "dtype": "bfloat16"}, 5e-2, 8192),
    ({"lever": "parameters", "dtype": "bfloat16"}, 5e-2, 8192),
    ({"lever": "offload_optimizer"}, 1e-6, 64),
    ({"lever": "optimizer_state", "dtype": "bfloat16"}, 5e-2, 64),
    ({"lever": "optimizer", "form": "in_backward"}, 1e-4, 64),
    ({"lever": "optimizer", "form": "for_loop"}, 1e-4, 64),
    ({"lever": "optimizer", "form": "fused"}, 1e-3, 64),
]


def _id(value: Any) -> str:
    return str(value.get("form") or value["lever"]) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize(("lever", "off", "tokens"), SAVING, ids=_id)
def test_a_lever_saves_memory_and_keeps_losses(torch: Any, lever: dict[str, Any], off: float, tokens: int) -> None:
    expected, base = run(torch, [], tokens=tokens)[:2]
    gc.collect()
    losses, peak, applied = run(torch, [lever], tokens=tokens)
    assert losses == pytest.approx(expected, rel=off)
    assert peak < base, f"{applied}: {peak / MIB:.0f} MiB, without it {base / MIB:.0f} MiB"


def test_activations_come_back_from_the_host_bit_by_bit(torch: Any) -> None:
    _, _, plain = run(torch, [], steps=3)
    _, _, moved = run(torch, [{"lever": "offload_activations", "modules": NAMES, "window_bytes": 40 * MIB}], steps=3)
    for one, other in zip(plain.model.parameters(), moved.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_graph_thrown_away_leaves_nothing_behind(torch: Any) -> None:
    from gpuheap._fit.apply import apply

    model, optimizer, loss, batch = program(torch)
    before = torch.cuda.memory_allocated()
    applied = apply([{"lever": "offload_activations", "modules": NAMES}], model, optimizer, loss=loss)
    for _ in range(3):
        value = loss(applied.model(batch[0]), batch[1])
        del value
    torch.cuda.synchronize()
    applied.step(batch)
    optimizer.zero_grad()
    optimizer.state.clear()
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before + 128 * MIB


def test_float16_is_scaled(torch: Any) -> None:
    expected, _, _ = run(torch, [], steps=8)
    losses, _, applied = run(torch, [{"lever": "autocast", "dtype": "float16"}], steps=8)
    assert applied.scaler is not None and applied.scaler.get_scale() > 0
    # The first steps may be left out, until the scale fits.
    assert losses == pytest.approx(expected, rel=5e-2)
    assert len(set(losses)) > 4, "the optimizer stepped"


def test_a_chunked_loss_saves_the_logits(torch: Any) -> None:
    from gpuheap._fit.apply import apply

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Linear(512, 512)
            self.lm_head = torch.nn.Linear(512, 50_000, bias=False)

        def forward(self, inputs: Any) -> Any:
            return self.lm_head(self.body(inputs))

    def whole(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]).float().view(-1, 50_000), batch[1].view(-1))

    found = []
    for levers in ([], [{"lever": "loss", "form": "chunked", "chunks": 8}]):
        torch.manual_seed(0)
        model = Model().cuda()
        batch = (torch.randn(4, 1024, 512, device="cuda"), torch.randint(50_000, (4, 1024), device="cuda"))
        applied = apply(levers, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=whole)
        torch.cuda.reset_peak_memory_stats()
        losses = [float(applied.step(batch)) for _ in range(3)]
        found.append((losses, torch.cuda.max_memory_allocated()))
    (expected, base), (losses, peak) = found
    assert losses == pytest.approx(expected, rel=1e-4)
    # Logits are 0.76 GiB; their gradient as much.
    assert peak < base - 1000 * MIB


def test_quantized_weights_of_frozen_layers(torch: Any) -> None:
    from gpuheap._fit.apply import apply

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(8)), torch.nn.Linear(2048, 10)).cuda()
    model[:8].requires_grad_(False)
    batch = (torch.randn(256, 2048, device="cuda"), torch.randint(10, (256,), device="cuda"))
    optimizer = torch.optim.AdamW(model[8].parameters(), lr=1e-2)
    before = torch.cuda.memory_allocated()
    lever = {"lever": "quantize", "dtype": "int4", "frozen_only": True}
    applied = apply([lever], model, optimizer, loss=torch.nn.CrossEntropyLoss())
    gc.collect()
    assert torch.cuda.memory_allocated() < before - 80 * MIB
    losses = [float(applied.step(batch)) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_int8_and_sparse_weights_for_inference(torch: Any) -> None:
    from gpuheap._fit.apply import apply

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256))
    model = model.cuda().bfloat16().eval()
    inputs = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = model(inputs)
    applied = apply([{"lever": "quantize", "dtype": "int8"}, {"lever": "inference_mode"}], model)
    with applied.forward():
        found = applied.model(inputs)
    assert (found - expected).norm() < 0.02 * expected.norm()
    dense = torch.nn.Sequential(torch.nn.Linear(1024, 1024)).cuda().bfloat16().eval()
    from gpuheap._fit.apply.sparse24 import largest_two_of_four

    with torch.no_grad():
        dense[0].weight.copy_(largest_two_of_four(dense[0].weight))
        expected = dense(inputs)
    try:
        sparse = apply([{"lever": "sparse24"}, {"lever": "inference_mode"}], dense)
        with sparse.forward():
            found = sparse.model(inputs)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this build of PyTorch has no sparse kernels: {error}")
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_the_allocators_settings_reach_it(torch: Any, monkeypatch: Any) -> None:
    from gpuheap._fit.apply import apply
    from gpuheap._fit.start import VARIABLE

    # To be as it was after the test.
    monkeypatch.setenv(VARIABLE, "")

    model, optimizer, loss, batch = program(torch, blocks=2)
    try:
        applied = apply([{"lever": "allocator", "conf": "expandable_segments:True"}], model, optimizer, loss=loss)
        applied.step(batch)
        more = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        found = [one for one in torch.cuda.memory_snapshot() if one["address"] <= more.data_ptr()]
        assert max(found, key=lambda one: one["address"])["is_expandable"]
        assert any("expandable_segments:True" in note for note in applied.notes)
    finally:
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (change or torch.cuda.memory._set_allocator_settings)("expandable_segments:False")


def test_compiled_within_a_budget(torch: Any) -> None:
    expected, _, _ = run(torch, [], steps=3, blocks=2, tokens=1024)
    levers = [{"lever": "compile", "activation_memory_budget": 0.5}]
    losses, _, _ = run(torch, levers, steps=3, blocks=2, tokens=1024)
    torch._functorch.config.activation_memory_budget = 1.0
    assert losses == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("form", ["8bit", "4bit"])
def test_an_optimizer_of_few_bits(torch: Any, form: str) -> None:
    pytest.importorskip("torchao")
    # What was applied is not kept: the first model would be there beside the second.
    expected, base = run(torch, [], blocks=4)[:2]
    gc.collect()
    losses, peak, _ = run(torch, [{"lever": "optimizer", "form": form}], blocks=4)
    assert losses == pytest.approx(expected, rel=2e-2)
    assert peak < base


def test_a_plan_is_verified(torch: Any, tmp_path: Any) -> None:
    from gpuheap._fit.verify import verify

    (tmp_path / "train.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))\n"
        "    batch = (torch.randn(512, 1024), torch.randint(1024, (512,)))\n"
        "    return model, torch.optim.AdamW(model.parameters()), torch.nn.CrossEntropyLoss(), batch\n"
    )
    peak = {"allocated_bytes": 200 * MIB, "reserved_bytes": 220 * MIB, "device_bytes": 900 * MIB}
    plan = {
        "plan": [{"lever": "checkpoint", "modules": ["0", "1"]}],
        "verdict": "fits",
        "device": torch.cuda.get_device_name(),
        "budget_bytes": 4 << 30,
        "peak": peak,
        "step_us": 1000.0,
    }
    answer = verify(plan, f"{tmp_path / 'train.py'}:make", calibration=tmp_path / "calibration.json")
    assert answer["fits"] and answer["real"]["steps"] == 5
    assert 100 * MIB < answer["real"]["allocated_bytes"] < answer["real"]["device_bytes"] < 4 << 30
    assert answer["real"]["context_bytes"] > 100 * MIB
    assert answer["calibration"]["runs"] == 1 and (tmp_path / "calibration.json").exists()


def test_out_of_memory_is_reported_as_such(torch: Any, tmp_path: Any) -> None:
    from gpuheap._fit.verify import verify

    (tmp_path / "train.py").write_text(
        "import torch\n"
        "def whole(model, batch):\n"
        "    kept = []\n"
        "    while True:\n"
        "        kept.append(torch.empty(8 << 30, dtype=torch.uint8, device='cuda'))\n"
        "def make():\n"
        "    model = torch.nn.Linear(8, 8)\n"
        "    return model, torch.optim.SGD(model.parameters()), whole, torch.randn(4, 8)\n"
    )
    answer = verify({"plan": [], "verdict": "fits", "budget_bytes": 1 << 30}, f"{tmp_path / 'train.py'}:make")
    assert not answer["fits"] and "out of memory" in answer["real"]["out_of_memory"]
    assert answer["calibration"] is None
