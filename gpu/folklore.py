"""Measures what the usual tips against out-of-memory do, on a GPU.

    PYTHONPATH=python python gpu/folklore.py [OUT.json] [CHECK ...]

Each check runs in a process of its own, so that none sees another's cache. Prints a line a row as it comes, a table at
the end, and writes the rows to OUT.json. Needs PyTorch and transformers. Under five minutes.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

DEVICE = "cuda"
LIMIT_S = 270.0
"""No check begins after this time."""
CHECK_S = 90.0
"""The most that one check may take."""
BATCH, LENGTH = 16, 512
BERT = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
SMALL = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
GPT2 = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
GPT2_STEPS = 12
LENGTHS = (128, 1024)
COPY_BYTES = 256 << 20
FILL_BYTES = 20 << 30

Row = dict[str, Any]


def row(case: str, **numbers: Any) -> Row:
    return {"case": case, **numbers}


def fresh(torch: Any) -> None:
    """As if nothing had run before, but for libraries that are loaded."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def peaks(torch: Any) -> dict[str, int]:
    counters = torch.cuda.memory_stats()
    return {
        "allocated_bytes": counters["allocated_bytes.all.peak"],
        "reserved_bytes": counters["reserved_bytes.all.peak"],
    }


def timed(torch: Any, work: Callable[[], Any], times: int, warm: int = 2) -> float:
    """The median time in milliseconds; the peaks that follow are of the timed runs."""
    spent = []
    for turn in range(warm + times):
        if turn == warm:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        if turn >= warm:
            spent.append(time.perf_counter() - started)
    return sorted(spent)[times // 2] * 1e3


def bert(torch: Any, config: dict[str, int]) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    # Made on the device: to fill 335 M parameters on the host takes seconds.
    with torch.device(DEVICE):
        return BertForMaskedLM(BertConfig(**config))


def tokens(torch: Any, batch: int, length: int) -> Any:
    return torch.randint(0, 30000, (batch, length), device=DEVICE)


def train_step(
    torch: Any, model: Any, batch: Any, *, autocast: bool = False, set_to_none: bool = True
) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step() -> None:
        optimizer.zero_grad(set_to_none=set_to_none)
        with torch.amp.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()

    return step


def empty_cache(torch: Any) -> Iterator[Row]:
    """A small model, whose steps are launch-bound, and a large one."""
    for name, config, batch, length in (("small BERT", SMALL, 8, 128), ("BERT-large", BERT, BATCH, LENGTH)):
        model = bert(torch, config)
        step = train_step(torch, model, tokens(torch, batch, length), autocast=True)

        def emptied(step: Callable[[], Any] = step) -> None:
            step()
            torch.cuda.empty_cache()

        for case, work in ((f"{name}", step), (f"{name}, empty_cache() every step", emptied)):
            fresh(torch)
            yield row(case, step_ms=timed(torch, work, 10), **peaks(torch))
        del model, step, emptied, work


def varied(torch: Any) -> Iterator[Row]:
    """GPT-2 medium, batch 8, lengths at random: the program that fragments."""
    from transformers import GPT2Config, GPT2LMHeadModel

    emptied = os.environ.get("FOLKLORE_EMPTY") == "1"
    torch.manual_seed(0)
    random.seed(0)
    config = GPT2Config(**GPT2)
    with torch.device(DEVICE):
        model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    spent = []
    for _ in range(GPT2_STEPS):
        batch = torch.randint(0, config.vocab_size, (8, random.randrange(*LENGTHS)), device=DEVICE)
        torch.cuda.synchronize()
        started = time.perf_counter()
        optimizer.zero_grad()
        with torch.amp.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        if emptied:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - started)
    case = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or "stock"
    # The first steps are slower for other reasons.
    step_ms = sum(spent[2:]) / max(len(spent[2:]), 1) * 1e3
    yield row(case + (", empty_cache() every step" if emptied else ""), step_ms=step_ms, **peaks(torch))


def delete(torch: Any) -> Iterator[Row]:
    """An evaluation whose logits are 1 GB a batch."""
    model = bert(torch, BERT).eval()
    batch = tokens(torch, BATCH, LENGTH)

    def loop(way: str) -> None:
        kept = []
        with torch.no_grad():
            for _ in range(3):
                logits = model(input_ids=batch).logits
                if way == "del while a list refers to it":
                    kept.append(logits)
                if way != "no del":
                    del logits

    for way in ("no del", "del at the end of each turn", "del while a list refers to it"):
        fresh(torch)
        yield row(way, step_ms=timed(torch, lambda way=way: loop(way), 1, warm=1) / 3, **peaks(torch))


def collect(torch: Any) -> Iterator[Row]:
    """`gc.collect()` in a program without cycles, and in one with them."""
    import transformers  # noqa: F401  the heap of a usual program

    for case, cyclic in (("no cycles", False), ("a cycle of 1 GiB", True)):
        gc.collect()
        before = torch.cuda.memory_allocated()
        gc.disable()
        holder: list[Any] = [torch.empty(1 << 28, device=DEVICE)]
        if cyclic:
            holder.append(holder)
        del holder
        left = torch.cuda.memory_allocated() - before
        started = time.perf_counter()
        gc.collect()
        spent = (time.perf_counter() - started) * 1e3
        freed = left - (torch.cuda.memory_allocated() - before)
        gc.enable()
        yield row(f"gc.collect(), {case}", step_ms=spent, bytes=freed, objects=len(gc.get_objects()))


def zero_grad(torch: Any) -> Iterator[Row]:
    for set_to_none in (True, False):
        model = bert(torch, BERT)
        batch = tokens(torch, BATCH, LENGTH)
        step = train_step(torch, model, batch, autocast=True, set_to_none=set_to_none)
        fresh(torch)
        yield row(f"set_to_none={set_to_none}", step_ms=timed(torch, step, 5), **peaks(torch))
        del model, step


def evaluation(torch: Any) -> Iterator[Row]:
    model = bert(torch, BERT).eval()
    batch = tokens(torch, BATCH, LENGTH)
    ways = {"grad mode on": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}

    def forward(mode: Any) -> None:
        with mode():
            model(input_ids=batch)

    for name, mode in ways.items():
        fresh(torch)
        yield row(name, step_ms=timed(torch, lambda mode=mode: forward(mode), 4), **peaks(torch))
    fresh(torch)
    yield row("eval() alone, grad mode on", step_ms=timed(torch, lambda: model(input_ids=batch), 4), **peaks(torch))


def levers(torch: Any) -> Iterator[Row]:
    for name, autocast, checkpoints in (
        ("fp32", False, False),
        ("bf16 autocast", True, False),
        ("checkpointing", False, True),
        ("both", True, True),
    ):
        model = bert(torch, BERT).train()
        if checkpoints:
            model.gradient_checkpointing_enable()
        step = train_step(torch, model, tokens(torch, BATCH, LENGTH), autocast=autocast)
        fresh(torch)
        yield row(name, step_ms=timed(torch, step, 4), **peaks(torch))
        del model, step


def copies(torch: Any) -> Iterator[Row]:
    pageable = torch.ones(COPY_BYTES, dtype=torch.uint8)
    started = time.perf_counter()
    pinned = pageable.pin_memory()
    yield row("pin_memory() of 256 MiB, first time", step_ms=(time.perf_counter() - started) * 1e3)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE)

    def returns(source: Any) -> float:
        """How long the call itself takes, in milliseconds."""
        torch.cuda.synchronize()
        started = time.perf_counter()
        device.copy_(source, non_blocking=True)
        spent = time.perf_counter() - started
        torch.cuda.synchronize()
        return spent * 1e3

    def case(name: str, work: Callable[[], Any], **more: Any) -> Row:
        spent = timed(torch, work, 7)
        return row(name, step_ms=spent, gb_per_s=COPY_BYTES / spent / 1e6, **more)

    for name, host in (("pageable", pageable), ("pinned", pinned)):
        own = min(returns(host) for _ in range(5))
        yield case(
            f"{name}, to the device, non_blocking", lambda h=host: device.copy_(h, non_blocking=True), call_ms=own
        )
        yield case(f"{name}, to the host", lambda h=host: h.copy_(device))
    yield case("pin_memory() for each copy", lambda: device.copy_(pageable.pin_memory(), non_blocking=True))


def full(torch: Any) -> Iterator[Row]:
    """What `nvidia-smi` shows is not what the program uses."""
    torch.zeros(1, device=DEVICE)

    def now(case: str) -> Row:
        free, total = torch.cuda.mem_get_info()
        used = total - free
        return row(
            case, bytes=used, allocated_bytes=torch.cuda.memory_allocated(), reserved_bytes=torch.cuda.memory_reserved()
        )

    yield now("one number on the device")
    held = [torch.empty(FILL_BYTES // 10, dtype=torch.uint8, device=DEVICE) for _ in range(10)]
    yield now("20 GiB in use")
    held.clear()
    yield now("all of it freed")
    torch.cuda.synchronize()
    yield now("and synchronize()")
    torch.cuda.empty_cache()
    yield now("and empty_cache()")


def synchronize(torch: Any) -> Iterator[Row]:
    model = bert(torch, SMALL)
    step = train_step(torch, model, tokens(torch, 8, 128), autocast=True)

    def ten(wait: bool) -> None:
        for _ in range(10):
            step()
            if wait:
                torch.cuda.synchronize()

    for case, wait in (("10 steps", False), ("10 steps, synchronize() after each", True)):
        fresh(torch)
        yield row(case, step_ms=timed(torch, lambda wait=wait: ten(wait), 5) / 10, **peaks(torch))


def workers(torch: Any) -> Iterator[Row]:
    """Workers of a loader take host memory."""
    data = torch.utils.data.TensorDataset(torch.ones(512, 512))
    torch.zeros(1, device=DEVICE)
    for count in (0, 2, 8):
        before, _ = torch.cuda.mem_get_info()
        loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=count)
        batches = iter(loader)
        next(batches)
        during, _ = torch.cuda.mem_get_info()
        yield row(f"num_workers={count}", bytes=before - during)
        del batches, loader


def data_parallel(torch: Any) -> Iterator[Row]:
    devices = torch.cuda.device_count()
    if devices < 2:
        yield row("needs two GPUs: not measured")
        return
    model = torch.nn.DataParallel(bert(torch, BERT))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    batch = tokens(torch, BATCH, LENGTH)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch, return_dict=False)[0].sum().backward()
        optimizer.step()

    step_ms = timed(torch, step, 3)
    for device in range(devices):
        peak = torch.cuda.max_memory_allocated(device)
        yield row(f"DataParallel, peak of cuda:{device}", step_ms=step_ms, allocated_bytes=peak)


def fill() -> int:
    """Takes memory and fails with it, in a process of its own."""
    import torch

    held = [torch.empty(FILL_BYTES, dtype=torch.uint8, device=DEVICE)]
    return len(held)


def isolated(torch: Any) -> Iterator[Row]:
    if importlib.util.find_spec("gpuheap") is None:
        yield row("gpuheap is not on the path: not measured")
        return
    import gpuheap

    torch.zeros(1, device=DEVICE)
    before, _ = torch.cuda.mem_get_info()
    started = time.perf_counter()
    gpuheap.isolate(fill, timeout=60)
    spent = (time.perf_counter() - started) * 1e3
    after, _ = torch.cuda.mem_get_info()
    yield row("gpuheap.isolate of 20 GiB: missing afterwards", step_ms=spent, bytes=before - after)


CHECKS: dict[str, Callable[[Any], Iterator[Row]]] = {
    "varied": varied,
    "empty_cache": empty_cache,
    "levers": levers,
    "evaluation": evaluation,
    "zero_grad": zero_grad,
    "delete": delete,
    "copies": copies,
    "collect": collect,
    "full": full,
    "synchronize": synchronize,
    "workers": workers,
    "data_parallel": data_parallel,
    "isolated": isolated,
}
VARIED: list[dict[str, str]] = [
    {},
    {"FOLKLORE_EMPTY": "1"},
    {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
    {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
]


def child(name: str) -> None:
    import torch

    for found in CHECKS[name](torch):
        print("ROW " + json.dumps({"check": name, **found}), flush=True)


def run(name: str, more: dict[str, str]) -> list[Row]:
    """The rows of a check; one that says why if it failed."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTORCH_CUDA_ALLOC_CONF"}
    rows: list[Row] = []
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", name],
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=CHECK_S,
            check=False,
        )
        out, code, error = done.stdout, done.returncode, done.stderr
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        code, error = -1, f"took longer than {CHECK_S:.0f} s"
    rows += [json.loads(line[4:]) for line in out.splitlines() if line.startswith("ROW ")]
    if code != 0:
        last = (error.strip().splitlines() or ["no message"])[-1]
        rows.append({"check": name, "case": f"failed: {last[:160]}", "failed": True})
        print(error[-2000:], file=sys.stderr)
    return rows


def size(value: int | None) -> str:
    return "" if value is None else f"{value / 2**30:.2f} GiB" if abs(value) >= 2**30 else f"{value / 2**20:.1f} MiB"


def cells(one: Row) -> list[str]:
    more = []
    for name, form in (("gb_per_s", "{:.1f} GB/s"), ("call_ms", "call {:.2f} ms"), ("objects", "{:,} objects")):
        if name in one:
            more.append(form.format(one[name]))
    if "bytes" in one:
        more.append(size(one["bytes"]))
    step_ms = f"{one['step_ms']:.2f} ms" if "step_ms" in one else ""
    allocated, reserved = size(one.get("allocated_bytes")), size(one.get("reserved_bytes"))
    return [one["check"], one["case"], step_ms, allocated, reserved, ", ".join(more)]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--child"]:
        child(arguments[1])
        return 0
    out = next((argument for argument in arguments if argument.endswith(".json")), None)
    wanted = [argument for argument in arguments if argument != out] or list(CHECKS)
    unknown = [name for name in wanted if name not in CHECKS]
    if unknown:
        print(f"error: no check `{unknown[0]}`\n\nhint: there are {', '.join(CHECKS)}", file=sys.stderr)
        return 2
    started = time.monotonic()
    rows: list[Row] = []
    for name in wanted:
        for more in VARIED if name == "varied" else [{}]:
            if time.monotonic() - started > LIMIT_S:
                found = [{"check": name, "case": "not run: the time is up", "failed": True}]
            else:
                found = run(name, more)
            rows += found
            for one in found:
                print("  ".join(cell for cell in cells(one) if cell), flush=True)
    import torch

    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": sys.version.split()[0]}
    if out is not None:
        with open(out, "w", encoding="utf-8") as file:
            json.dump({"about": about, "seconds": time.monotonic() - started, "rows": rows}, file, indent=1)
    print(
        f"\n{about['device']}, PyTorch {about['torch']}, Python {about['python']}, {time.monotonic() - started:.0f} s\n"
    )
    print("| check | case | time | allocated | reserved | |\n| --- | --- | --- | --- | --- | --- |")
    for one in rows:
        print(f"| {' | '.join(cells(one))} |")
    return 1 if any(one.get("failed") for one in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
