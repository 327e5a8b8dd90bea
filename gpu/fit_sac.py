"""What torch's `sac_milp` chooses at a plan's budget, and a program with that choice applied.

    python gpu/fit_sac.py PLANS.json FOLDER       one JSON a model and budget; needs pulp, pwlf and scipy

Everything is worked out on fake tensors. Its solver knows nothing of the optimizer's state, so it is given the budget
without that and without what the context takes: better than it could do by itself. Its decisions are limited to the
model's blocks, as its users do, so only blocks get the lines that stand for their trade-offs: to fit those for every
module takes minutes and decides nothing. Without a GPU the speed of an H200 stands in for that of the device, and a
CPU's fused attention for the GPU's.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch

GIB = 1 << 30
# Of one H200: dense float32 without TF32, and memory.
TFLOPS, GBPS = 67.0, 4800.0
CONTEXT = 520 << 20


def work_out(plans: Path, folder: Path) -> None:
    """Choose for every plan; a model is estimated once."""
    known: dict[str, Any] = {}
    for row in json.loads(plans.read_text(encoding="utf-8")):
        if row["budget"] == "139GiB":
            continue
        out = folder / f"{row['model']}-{row['budget']}.json"
        begun = time.perf_counter()
        try:
            if row["model"] not in known:
                known[row["model"]] = estimated(row["model"], row["batch"])
            found = chosen(known[row["model"]], row["fit"]["budget_bytes"])
        except ImportError as error:
            found = {"error": f"sac_milp cannot run here: {error}"}
        except Exception as error:
            found = {"error": f"sac_milp failed: {type(error).__name__}: {error}"}
        found["sac_seconds"] = time.perf_counter() - begun
        out.write_text(json.dumps(found), encoding="utf-8")
        print(out.name, {key: value for key, value in found.items() if key != "modules"}, flush=True)


def estimated(model: str, batch: int) -> dict[str, Any]:
    """Memory, time and trade-offs of a model by torch's own tools."""
    from fit_runs import blocks_of, make_of
    from torch._subclasses import FakeTensorMode
    from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    from gpuheap._fit.program import as_program

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.cuda.is_available():
        _speed_of_an_h200()
    with FakeTensorMode(), torch.device(device):
        program = as_program(make_of(model, batch)())
        net, optimizer = program.model, program.optimizer

        def loss_outside() -> Any:
            # A loss module that is made in each pass is none of the model's modules, which torch's tools count.
            inputs = dict(program.batch)
            labels = inputs.pop("labels")
            logits = net(**inputs).logits
            return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

        def step() -> None:
            loss_outside().backward()
            optimizer.step()
            optimizer.zero_grad()

        tracker = MemTracker()
        tracker.track_external(net, optimizer)
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
        runtime = RuntimeEstimator()
        with runtime(estimate_mode_type="operator-level-cost-model"):
            step()
        sac = _estimator()
        with sac(estimate_mode_type="operator-level-cost-model"):
            loss = loss_outside()
        sac.outputs.clear()
        loss.backward()
        root = type(net).__name__
        blocks = [f"{root}.{name}" for name in blocks_of(model)]
        sac.sac_mod_stats = {name: sac.sac_mod_stats[name] for name in blocks}
        _forget_without_backward(net, tracker, runtime)
        info = aggregate_stats(net, tracker, runtime, sac, torch.device(device))
        for stats in info["mod_stats"]:
            figures = [*stats["slopes"], *stats["intercepts"], *stats["breakpoints"]]
            if not all(map(math.isfinite, figures)):
                # A fit through too few points: the solver takes no such number, so the module is left whole.
                stats.update(is_leaf=True, n_segments=0, slopes=[], intercepts=[], breakpoints=[])
        state = sum(
            value.numel() * value.element_size()
            for entry in optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor) and value.dim()
        )
    return {
        "graph": parse_module_info(info),
        "stats": sac.sac_mod_stats,
        "state": state,
        "root": root,
        "blocks": blocks,
    }


def _estimator() -> Any:
    """Torch's estimator, with all outputs kept: it knows storages by their addresses, which are used again."""
    from torch.distributed._tools.sac_estimator import SACEstimator

    class Estimator(SACEstimator):
        def __init__(self) -> None:
            super().__init__()
            self.outputs: list[Any] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = ..., kwargs: Any = None) -> Any:
            output = super().__torch_dispatch__(func, types, args, kwargs)
            self.outputs.append(output)
            return output

    return Estimator()


def _forget_without_backward(net: Any, tracker: Any, runtime: Any) -> None:
    """Take modules that no gradient passes through, such as tables of positions, out of what the solver sees."""
    names = {module: f"{type(net).__name__}.{name}".rstrip(".") for name, module in net.named_modules()}
    for module, stats in list(tracker.memory_tracking.items()):
        if any(state.name == "PRE_BW" for state in stats.snapshots):
            continue
        tracker.memory_tracking.pop(module)
        for order in ("mod_fw_pre_order", "mod_fw_post_order", "mod_bw_pre_order", "mod_bw_post_order"):
            kept = [one for one in getattr(runtime, order) if one != names.get(module)]
            setattr(runtime, order, kept)


def chosen(known: dict[str, Any], budget: int) -> dict[str, Any]:
    """What is recomputed in which block."""
    from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module, sac_milp

    left = (budget - known["state"] - CONTEXT) / GIB
    decisions, recompute_ms, peak = sac_milp(known["graph"], memory_budget=left, ac_units=known["blocks"])
    if peak == -1:
        raise RuntimeError(f"the solver found nothing within {left:.2f} GiB beside the optimizer's state")
    modules: dict[str, Any] = {}
    policies: dict[Any, list[int]] = {}
    for name, discarded in decisions.items():
        stats = known["stats"][name]
        alike = (tuple(stats.func_names), tuple(stats.memory), tuple(stats.runtimes), discarded)
        if alike not in policies:
            policies[alike] = get_optimal_checkpointing_policy_per_module(stats, 1 - discarded)
        policy = policies[alike]
        if not policy:
            raise RuntimeError(f"the solver found no operators to keep in {name}, of which it discards {discarded:.0%}")
        modules[name.removeprefix(f"{known['root']}.")] = [list(stats.func_names), policy]
    return {"modules": modules, "recompute_ms": recompute_ms, "sac_peak_bytes": int(peak) + known["state"] + CONTEXT}


def applied(make: Callable[[], Any], policy: dict[str, Any]) -> Callable[[], Any]:
    """The program with these blocks checkpointed selectively."""

    def made() -> Any:
        from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

        model, optimizer, loss, batch = make()
        if hasattr(model, "config"):
            model.config.use_cache = False
        for name, (names, keeps) in policy["modules"].items():
            module = model.get_submodule(name)
            contexts = functools.partial(_contexts, names, keeps, create_selective_checkpoint_contexts)
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False, context_fn=contexts)
        return model, optimizer, loss, batch

    return made


def _contexts(names: list[str], keeps: list[int], make: Any) -> Any:
    return make(_Policy(names, keeps))


class _Policy:
    """Decides by the order of operators, as the estimator saw them; kernels of attention have other names on a CPU."""

    def __init__(self, names: list[str], keeps: list[int]) -> None:
        self.names, self.keeps = [_kind(name) for name in names], keeps
        self.place = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *arguments: Any, **named: Any) -> Any:
        from torch.utils.checkpoint import CheckpointPolicy

        kind, begin = _kind(operator._overloadpacket.__name__), self.place[context.is_recompute]
        try:
            at = self.names.index(kind, begin)
        except ValueError:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self.place[context.is_recompute] = at + 1
        return CheckpointPolicy.MUST_SAVE if self.keeps[at] else CheckpointPolicy.PREFER_RECOMPUTE


def _kind(name: str) -> str:
    if name.startswith("_scaled_dot_product"):
        return "attention"
    # Estimates that were made with a processor's own dropout draw a mask and multiply.
    return "dropout" if name in ("bernoulli_", "native_dropout") else name


def _speed_of_an_h200() -> None:
    """Let the estimates by roofline do without a device: its two figures are given here."""
    import torch.utils._runtime_estimation as figures
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    # With dropout a CPU computes attention step by step, which keeps what no kernel of a GPU keeps. And it drops with a
    # mask of the numbers' own type, where a GPU's kernel has one byte for each.
    attention = torch.nn.functional.scaled_dot_product_attention

    def fused(*arguments: Any, **named: Any) -> Any:
        return attention(*arguments, **{**named, "dropout_p": 0.0})

    def dropped(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(input, p, True)[0] if training and p else input

    torch.nn.functional.scaled_dot_product_attention = fused
    torch.nn.functional.dropout = dropped
    figures.get_device_tflops = lambda dtype: TFLOPS
    figures.get_gpu_dram_gbps = lambda: GBPS
    (name,) = [name for name in vars(RuntimeEstimator) if "roofline_estimate" in name]
    estimate = getattr(RuntimeEstimator, name)

    @functools.wraps(estimate)
    def without_device(*arguments: Any, **named: Any) -> Any:
        asked = torch.cuda.is_available
        torch.cuda.is_available = lambda: True
        try:
            return estimate(*arguments, **named)
        finally:
            torch.cuda.is_available = asked

    is_bound = isinstance(vars(RuntimeEstimator)[name], (classmethod, staticmethod))
    setattr(RuntimeEstimator, name, staticmethod(without_device) if is_bound else without_device)


if __name__ == "__main__":
    work_out(Path(sys.argv[1]), Path(sys.argv[2]))
