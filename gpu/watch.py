"""What `gpuheap.watch` costs and says on a GPU.

    python gpu/watch.py [--inside]      --inside: only the time that is spent in a watch, no pairs

Prints one line a check. Costs are of alternating pairs of runs, with and without, and of each part on its own. Needs
PyTorch with a GPU; generation needs transformers. Takes about a minute.
"""

import gc
import statistics
import sys
import time

import torch

import gpuheap
from gpuheap import _core, _nvml
from gpuheap._watch.steps import OptimizerSteps
from gpuheap._watch.torch import Torch

EVERY = 100
BAR = 0.002


def timed(step, steps):
    """Seconds a step."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def pairs(name, step, seconds, explicit):
    """What one watch costs a long run: the time that is spent in it, and pairs of runs with it and without.

    Its first steps are looked at one by one, at any cost, and are told apart.
    """
    for _ in range(10):
        step()
    once = timed(step, 10)
    steps = max(EVERY, min(int(seconds / 14 / once), 1000) // EVERY * EVERY)
    watch = gpuheap.watch(EVERY, to=[]).start()
    inside = []
    stepped = OptimizerSteps.stepped

    def timed_call(call, *arguments):
        start = time.perf_counter()
        call(*arguments)
        inside.append(time.perf_counter() - start)

    def with_watch():
        step()
        if explicit:
            timed_call(watch.step)

    if not explicit:
        OptimizerSteps.stepped = lambda self, optimizer: timed_call(stepped, self, optimizer)
    timed(with_watch, EVERY)
    first = sum(inside)
    inside.clear()

    ratios, without = [], []
    if "--inside" in sys.argv:
        timed(with_watch, 3 * steps)
        without.append(timed(step, steps))
    for turn in range(0 if "--inside" in sys.argv else 7):
        # Which of the two comes first changes: the clock of the GPU drifts.
        for which in ((0, 1), (1, 0))[turn % 2]:
            if which == 0:
                watch._optimizers.stop()
                plain = timed(step, steps)
                without.append(plain)
            else:
                if not explicit:
                    watch._optimizers.start()
                watched = timed(with_watch, steps)
        ratios.append(watched / plain)
    OptimizerSteps.stepped = stepped
    watch.stop()
    cost, spread = 0.0, [1.0, 1.0, 1.0]
    if ratios:
        cost, spread = statistics.median(ratios) - 1, statistics.quantiles(ratios, n=4)
    ms = statistics.median(without) * 1e3
    # Two runs of the same differ by some percent: what is spent inside is the cost, pairs say that nothing else is slower.
    # Whoever takes the processor away in the middle is not of the watch: the longest of each kind of call are cut off.
    mean, judged, other = trimmed(inside)
    share = mean / ms * 1e3
    print(
        f"cost {name}: {mean * 1e6:.1f} us a step of {ms:.2f} ms ({share * 100:.3f} %; nothing cut off: "
        f"{statistics.fmean(inside) / ms * 1e5:.3f} %; {judged * 1e6:.0f} us if it is judged, else {other * 1e6:.1f}) {'ok' if share <= BAR else 'OVER THE BAR'}; the first {EVERY} steps "
        f"{first * 1e3:.1f} ms in all; by the clock {cost * 100:+.2f} % (quartiles {(spread[0] - 1) * 100:+.2f} to "
        f"{(spread[2] - 1) * 100:+.2f} %, {len(ratios)} pairs of {steps} steps)"
    )
    print(f"  says: {watch.summary()}")


def trimmed(inside):
    """Seconds a step, a judged one and another, without the slowest hundredth of either."""
    judged, others = inside[EVERY - 1 :: EVERY], [one for i, one in enumerate(inside) if i % EVERY != EVERY - 1]
    kept = [sorted(part)[: max(1, len(part) - max(1, len(part) // 100))] for part in (judged, others)]
    judged, other = statistics.fmean(kept[0]), statistics.fmean(kept[1])
    return (judged + other * (EVERY - 1)) / EVERY, judged, other


def generation():
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        print(f"cost generation: SKIPPED ({error})")
        return
    config = LlamaConfig(
        hidden_size=2048,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=8192,
        vocab_size=128256,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    prompt = torch.randint(0, 30000, (1, 64), device="cuda")
    state = {"cache": None, "token": prompt, "count": 0}

    @torch.no_grad()
    def step():
        # One token; a new text after 256.
        if state["count"] % 256 == 0:
            state["cache"], state["token"] = None, prompt
        state["count"] += 1
        out = model(state["token"], past_key_values=state["cache"], use_cache=True)
        state["cache"], state["token"] = out.past_key_values, out.logits[:, -1:].argmax(-1)

    pairs("generation, a step per token", step, 30, explicit=True)


def deep_mlp(layers=100):
    model = torch.nn.Sequential(
        *[m for _ in range(layers) for m in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randn(32, 256, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def parts():
    """Microseconds of each part."""
    source = Torch(torch)
    device = source.devices()[0]

    def us(work, times=200):
        for _ in range(20):
            work()
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
        return statistics.median(taken) * 1e6

    def flat():
        return torch.cuda.memory_stats(0)

    judge = _core.Monitor("step")
    row = source.counters(device)
    count = iter(range(1, 1 << 30))

    def push():
        judge.push(next(count), time.perf_counter(), *row[:5], 0, *row[5:])

    print(f"part counters: {us(lambda: source.counters(device)):.1f} us (torch.cuda.memory_stats: {us(flat):.1f} us)")
    print(f"part push: {us(push, 5000):.2f} us")
    print(f"part judgement after 5,000 steps: {us(lambda: judge.health(free=1 << 30, total=1 << 31)):.1f} us")
    print(f"part mem_get_info: {us(lambda: torch.cuda.mem_get_info(0)):.1f} us")
    print(f"part NVML devices: {us(_nvml.devices):.1f} us, processes: {us(lambda: _nvml.processes(0)):.1f} us")


def driver():
    """What the driver says, against what PyTorch says."""
    free, total = torch.cuda.mem_get_info(0)
    uuid = getattr(torch.cuda.get_device_properties(0), "uuid", None)
    card = [one for one in _nvml.devices() or [] if uuid is None or one.uuid == f"GPU-{uuid}"]
    if not card:
        print("nvml: not there, or it knows no such card")
        return
    processes = _nvml.processes(card[0])
    around = Torch(torch).around("cuda:0")
    print(
        f"nvml: {card[0].name}, driver {_nvml.driver_version()}, mig {card[0].mig}, total {card[0].total} (CUDA {total}), "
        f"free {card[0].free} (CUDA {free}), processes "
        f"{None if processes is None else [(one.own, one.bytes) for one in processes]}, others {around.others}, "
        f"numbers of this process {sorted(_nvml.own_pids())}"
    )


def kinds():
    """What it says of small loops that are known to be sick or well."""
    kept = []

    class Cycle:
        def __init__(self, tensor):
            self.tensor, self.self = tensor, self

    def leak(step, _):
        kept.append(step())

    def garbage(step, turn):
        step()
        Cycle(torch.empty(1 << 20, device="cuda"))
        if turn % 15 == 14:
            gc.collect()

    def batches(step, turn):
        step()
        # Larger and larger odd sizes, alive together with small ones: nothing that is free fits.
        torch.empty((turn * 7919 % 97 + 3) * 1_000_003, dtype=torch.uint8, device="cuda")

    cases = (
        ("steady", lambda step, _: step(), ("steady",)),
        ("leak", leak, ("leak",)),
        ("garbage", garbage, ("sawtooth",)),
        ("variable shapes", batches, ("steady", "reserved_growth")),
    )
    for name, loop, expected in cases:
        gc.collect()
        kept.clear()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step = deep_mlp(8)
        with gpuheap.watch(50, to=[]) as watch:
            for turn in range(150):
                loop(step, turn)
        health = watch.health
        right = health is not None and health.kind in expected
        print(f"kind {name}: {'ok' if right else 'WRONG'}: {watch.summary()}")


def main():
    if not torch.cuda.is_available():
        sys.exit("PyTorch sees no GPU")
    print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    step = deep_mlp()
    step()
    parts()
    driver()
    kinds()
    pairs("training, 100 layers, steps of the optimizer", step, 20, explicit=False)
    generation()


main()
