"""What `gpuheap run` does to real programs on a GPU: results, times, budgets, spill, sleep.

    python gpu/shim.py OUT.json [PART ...]      parts: passive exact others spill budgets sleep naps

Each program runs in a process of its own, alone on the card where it is timed, with gpuheap and without. Prints a line a
run as it ends and writes all to OUT.json. `python gpu/shim.py work NAME STEPS` is one program.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

GIB = 1 << 30
HERE = Path(__file__).resolve()
rows: list[dict[str, Any]] = []

# The programs


def checksum(torch: Any, model: Any) -> str:
    """Of all bits of the weights."""
    total = 0
    for tensor in model.state_dict().values():
        if tensor.is_cuda and tensor.numel():
            bits = tensor.detach().contiguous().view(-1).view(torch.uint8)
            pad = -bits.numel() % 8
            bits = torch.nn.functional.pad(bits, (0, pad)).view(torch.int64)
            weights = torch.arange(1, bits.numel() + 1, device=bits.device)
            total = (total * 31 + int((bits * weights).sum().item())) % (1 << 61)
    return f"{total:x}"


def training(torch: Any, name: str) -> Any:
    import random

    torch.manual_seed(0)
    random.seed(0)
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    if name.startswith("bert"):
        config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
        # Made on the device: to fill 335 M parameters on the host takes many seconds.
        with torch.device("cuda"):
            model = BertForMaskedLM(config)
        batch = int(os.environ.get("BATCH", "16"))
    else:
        with torch.device("cuda"):
            model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=24, n_head=16))
        config = model.config
        batch = 8
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step() -> float:
        length = 512 if name.startswith("bert") else random.randrange(128, 1024)
        tokens = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.bfloat16, enabled=name.startswith("gpt2")):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return model, step


def generation(torch: Any) -> Any:
    torch.manual_seed(0)
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    prompt = torch.randint(5, 30000, (1, 64), device="cuda")

    def step() -> float:
        with torch.no_grad():
            out = model.generate(
                prompt, max_new_tokens=32, min_new_tokens=32, do_sample=False, pad_token_id=0, eos_token_id=None
            )
        return float(out.sum().item())

    return model, step


def work_torch(name: str, steps: int) -> None:
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    if os.environ.get("EXACT"):
        # The fast forms of attention add up in any order in their backward passes.
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.utils.deterministic.fill_uninitialized_memory = False
    model, step = generation(torch) if name == "generate" else training(torch, name)
    losses, times = [], []
    print("READY", flush=True)
    for _ in range(steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        losses.append(step())
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    free, total = torch.cuda.mem_get_info()
    print(
        "FIG",
        json.dumps(
            {
                "losses": losses,
                "checksum": checksum(torch, model),
                "ms": [round(one * 1e3, 2) for one in times],
                "reserved": torch.cuda.max_memory_reserved(),
                "allocated": torch.cuda.max_memory_allocated(),
                "retries": torch.cuda.memory_stats()["num_alloc_retries"],
                "used": total - free,
                "total": total,
            }
        ),
    )


def work_jax(steps: int) -> None:
    import jax
    import jax.numpy as jnp

    key = jax.random.PRNGKey(0)
    layers = [jax.random.normal(jax.random.fold_in(key, i), (4096, 4096), jnp.float32) * 0.01 for i in range(8)]

    def loss(layers: Any, x: Any) -> Any:
        for layer in layers:
            x = jax.nn.relu(x @ layer)
        return (x * x).mean()

    @jax.jit
    def update(layers: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(layers, x)
        return value, [layer - 0.1 * grad for layer, grad in zip(layers, grads, strict=True)]

    x = jax.random.normal(key, (int(os.environ.get("BATCH", "8192")), 4096), jnp.float32)
    losses, times = [], []
    print("READY", flush=True)
    for _ in range(steps):
        start = time.perf_counter()
        value, layers = update(layers, x)
        losses.append(float(value))
        times.append(time.perf_counter() - start)
    digest = sum(int(jnp.sum(jax.lax.bitcast_convert_type(layer, jnp.int32) % 9973)) for layer in layers)
    # None with the platform's allocator.
    reserved = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    show(losses, str(digest), times, reserved)


def show(losses: list[float], digest: str, times: list[float], reserved: int) -> None:
    ms = [round(one * 1e3, 2) for one in times]
    print("FIG", json.dumps({"losses": losses, "checksum": digest, "ms": ms, "reserved": reserved}))


def work_cupy(steps: int) -> None:
    import cupy

    cupy.random.seed(0)
    a = cupy.random.rand(8192, 8192, dtype=cupy.float32)
    kept, losses, times = [], [], []
    print("READY", flush=True)
    for _ in range(steps):
        start = time.perf_counter()
        b = (a @ a) % 1.0
        kept.append(b[: len(b) // 2].copy())
        losses.append(float(b.sum()))
        times.append(time.perf_counter() - start)
    digest = sum(int(one.view(cupy.int32).astype(cupy.int64).sum()) for one in kept)
    show(losses, str(digest), times, cupy.get_default_memory_pool().total_bytes())


def work_hold(gib: int) -> None:
    """Holds memory, looks at it at each line of input."""
    import torch

    kept = [torch.full((GIB // 8,), i + 1, dtype=torch.int64, device="cuda") for i in range(gib)]
    torch.cuda.synchronize()
    print("READY", flush=True)
    for _ in sys.stdin:
        wrong = [i for i, one in enumerate(kept) if not bool((one == i + 1).all())]
        print("WRONG" if wrong else "RIGHT", wrong, flush=True)


def work_greedy(gib: int) -> None:
    """Takes until it is refused, gives back, goes on."""
    import torch

    kept: list[Any] = []
    caught = 0
    print("READY", flush=True)
    for _ in range(gib):
        try:
            kept.append(torch.empty(GIB, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as error:
            caught += 1
            text = str(error)
            kept = kept[: len(kept) // 2]
            torch.cuda.empty_cache()
    print("FIG", json.dumps({"caught": caught, "text": text[:200] if caught else "", "held": len(kept)}), flush=True)
    sys.stdin.readline()


def work(name: str, steps: int) -> None:
    if name.startswith("jax"):
        work_jax(steps)
    elif name == "cupy":
        work_cupy(steps)
    elif name == "hold":
        work_hold(steps)
    elif name == "greedy":
        work_greedy(steps)
    else:
        work_torch(name, steps)


# Running them


class Run:
    """A program with gpuheap, or without."""

    def __init__(
        self, name: str, steps: int, *options: str, shim: bool = True, env: dict[str, str] | None = None
    ) -> None:
        self.name, self.options, self.shim = name, options, shim
        command = [sys.executable, str(HERE), "work", name, str(steps)]
        if shim:
            gpuheap = shutil.which("gpuheap") or str(Path(sys.executable).parent / "gpuheap")
            command = [gpuheap, "run", *options, "--", *command]
        settings = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {})}
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **settings},
        )
        self.errors: list[str] = []
        assert self.process.stderr is not None
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr or []), daemon=True)
        self.reader.start()

    def until(self, word: str, seconds: float = 120) -> str:
        assert self.process.stdout is not None
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            line = self.process.stdout.readline()
            if line.startswith(word):
                return line[len(word) :].strip()
            if not line:
                break
        raise RuntimeError(f"{self.name}: no {word}: {''.join(self.errors)[-1500:]}")

    def figures(self, seconds: float = 300) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.until("FIG", seconds))
        except (RuntimeError, ValueError) as error:
            found = {"failed": str(error)}
        return found

    def end(self, seconds: float = 60) -> str:
        try:
            self.process.communicate("", timeout=seconds)
        except (subprocess.TimeoutExpired, ValueError):
            self.process.kill()
        self.reader.join(2)
        return "".join(self.errors)


def gpuheap_command(*arguments: str) -> tuple[int, str, str]:
    gpuheap = shutil.which("gpuheap") or str(Path(sys.executable).parent / "gpuheap")
    done = subprocess.run([gpuheap, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def measured(
    name: str,
    steps: int,
    *options: str,
    shim: bool = True,
    env: dict[str, str] | None = None,
    seconds: float = 300,
) -> dict[str, Any]:
    run = Run(name, steps, *options, shim=shim, env=env)
    alarm = threading.Timer(seconds, run.process.terminate)
    alarm.start()
    found = run.figures()
    alarm.cancel()
    errors = run.end()
    times = found.get("ms") or [0.0]
    tail = sorted(times[len(times) // 2 :])
    row = {
        "name": name,
        "options": " ".join(options),
        "shim": shim,
        "env": env or {},
        "seconds": time.monotonic() - run.began,
        "step_ms": tail[len(tail) // 2],
        **found,
        "stderr": errors[-600:],
    }
    rows.append(row)
    text = found.get("failed") or (
        f"step {row['step_ms']:.2f} ms, checksum {found.get('checksum')}, reserved {found.get('reserved', 0) / GIB:.2f} GiB, "
        f"used {found.get('used', 0) / GIB:.2f} of {found.get('total', 0) / GIB:.2f} GiB, retries {found.get('retries')}"
    )
    with_ = f"gpuheap run {row['options']}" if shim else "bare"
    print(f"{name} {env or ''} [{with_}] {row['seconds']:.0f} s: {text}", flush=True)
    if shim:
        print("   ", errors.strip().splitlines()[-1:], times, flush=True)
    return row


def same(one: dict[str, Any], other: dict[str, Any]) -> str:
    equal = one.get("losses") == other.get("losses") and one.get("checksum") == other.get("checksum")
    ratio = other["step_ms"] / one["step_ms"] if one.get("step_ms") else 0
    return f"{'the same to the bit' if equal else 'OTHER RESULTS'}, {ratio:.3f} times"


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
PLATFORM = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}


def passive() -> None:
    for name, steps, env in (
        ("bert", 8, {}),
        ("bert", 8, EXPANDABLE),
        ("generate", 6, {}),
        ("jax", 8, {}),
        ("jax", 8, PLATFORM),
        ("cupy", 8, {}),
    ):
        bare = measured(name, steps, shim=False, env=env)
        with_ = measured(name, steps, env=env)
        again = measured(name, steps, shim=False, env=env)
        print(f"== {name} {env}: with gpuheap {same(bare, with_)}; again without {same(bare, again)}", flush=True)


EXACT = {"EXACT": "1", "BATCH": "4"}


def exact() -> None:
    """Results to the bit: without budget, with spill, native and expandable segments."""
    bare = measured("bert", 10, shim=False, env=EXACT)
    again = measured("bert", 10, shim=False, env=EXACT)
    print(f"== exact, again without: {same(bare, again)}", flush=True)
    need = bare.get("reserved", 12 * GIB)
    for env in (EXACT, {**EXACT, **EXPANDABLE}):
        for options in (
            (),
            ("--budget", str(int(need * 0.8)), "--spill", "auto"),
            ("--budget", str(int(need * 0.6)), "--spill", "auto"),
        ):
            row = measured("bert", 10, *options, env=env)
            print(f"== exact {env} {options}: {same(bare, row)}", flush=True)


def others() -> None:
    """JAX and CuPy to the bit. XLA does not tune: what it chooses differs from run to run."""
    # JAX's own allocator takes no more than a share of the card as it is told of it, which is the budget.
    own = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "4"}
    plain = {"XLA_FLAGS": "--xla_gpu_autotune_level=0", "BATCH": "2048"}
    need = 0
    for name, steps, env in (("jax", 12, {**plain, **own}), ("jax", 12, {**plain, **PLATFORM}), ("cupy", 20, {})):
        bare = measured(name, steps, shim=False, env=env)
        again = measured(name, steps, shim=False, env=env)
        print(f"== {name} {env}, again without: {same(bare, again)}", flush=True)
        need = bare.get("reserved") or need
        for share in (None, 0.8, 0.6):
            options = () if share is None else ("--budget", str(int(need * share)), "--spill", "auto")
            row = measured(name, steps, *options, env=env, seconds=40)
            print(f"== {name} {env} at {share} of {need / GIB:.2f} GiB: {same(bare, row)}", flush=True)
        naps(10, name, 2 * steps, env)


def spill() -> None:
    bare = measured("bert", 12, shim=False, env=EXPANDABLE)
    for budget in ("18GiB", "16GiB", "12GiB"):
        row = measured("bert", 12, "--budget", budget, "--spill", "auto", env=EXPANDABLE)
        print(f"== bert at {budget}: {same(bare, row)}", flush=True)
    bare = measured("gpt2", 12, shim=False, env=EXPANDABLE)
    row = measured("gpt2", 12, "--budget", "12GiB", "--spill", "auto", env=EXPANDABLE)
    total = [sum(one.get("ms", [0])[2:]) for one in (bare, row)]
    print(f"== gpt2 at 12 GiB: {same(bare, row)}; all steps {total[1] / max(total[0], 1):.3f} times", flush=True)


def card() -> int:
    """MiB in use on the card, by NVML."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(ask, capture_output=True, text=True).stdout.split()[0])


def budgets() -> None:
    """Two processes of one run, each taking all that it gets."""
    before, most = card(), 0
    gpuheap = shutil.which("gpuheap") or "gpuheap"
    both = f"{sys.executable} {HERE} work greedy 40 & {sys.executable} {HERE} work greedy 40 & wait"
    run = subprocess.Popen(
        [gpuheap, "run", "--budget", "20GiB", "--", "bash", "-c", both],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while run.poll() is None:
        most = max(most, card())
        time.sleep(0.02)
    out, err = run.communicate()
    figures = [line for line in out.splitlines() if line.startswith("FIG")]
    print(
        f"== two at 20 GiB: at most {(most - before) / 1024:.2f} GiB by NVML, contexts included; {figures}", flush=True
    )
    print("\n".join(err.splitlines()[:3]), "...", err.splitlines()[-1:], flush=True)


def child_of(run: Run) -> int:
    """The program's own number: `gpuheap run` waits for it."""
    if not run.shim:
        return run.process.pid
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    return int(children[0])


def sleep() -> None:
    run = Run("hold", 16)
    run.until("READY")
    pid = str(child_of(run))
    print(gpuheap_command("ps")[1], flush=True)
    for _ in range(3):
        start = time.monotonic()
        code, out, err = gpuheap_command("yield", pid)
        print(f"yield: {code} {time.monotonic() - start:.2f} s: {out.strip()} {err.strip()[-300:]}", flush=True)
        print(
            subprocess.run(
                ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"],
                capture_output=True,
                text=True,
            ).stdout.strip(),
            flush=True,
        )
        code, out, err = gpuheap_command("wake", pid)
        print(f"wake: {code}: {out.strip()} {err.strip()[-300:]}", flush=True)
        assert run.process.stdin is not None
        run.process.stdin.write("\n")
        run.process.stdin.flush()
        print("content:", run.process.stdout.readline().strip() if run.process.stdout else "", flush=True)
    print(run.end()[-600:], flush=True)


def naps(count: int = 50, name: str = "bert", steps: int = 60, env: dict[str, str] = EXACT) -> None:
    """Yields while it works."""
    bare = measured(name, steps, shim=False, env=env)
    run = Run(name, steps, env=env)
    run.until("READY")
    pid, done, refused = str(child_of(run)), 0, ""
    while run.process.poll() is None and done < count:
        code, _, err = gpuheap_command("yield", pid)
        done += code == 0
        refused = err if code else refused
        time.sleep(0.05)
    found = run.figures()
    errors = run.end()
    rows.append({"name": "naps", "count": done, **found, "stderr": errors[-600:]})
    equal = found.get("losses") == bare.get("losses") and found.get("checksum") == bare.get("checksum")
    print(
        f"== {name}, {done} yields while it works: {'the same to the bit' if equal else f'OTHER RESULTS {found}'} {refused[-200:]} {errors[-300:]}",
        flush=True,
    )


def main() -> None:
    if sys.argv[1] == "work":
        work(sys.argv[2], int(sys.argv[3]))
        return
    out = sys.argv[1]
    parts = {
        "passive": passive,
        "exact": exact,
        "others": others,
        "spill": spill,
        "budgets": budgets,
        "sleep": sleep,
        "naps": naps,
    }
    for name in sys.argv[2:] or parts:
        try:
            parts[name]()
        except Exception as error:  # the others are worth running
            print(f"== {name} FAILED: {type(error).__name__}: {error}", flush=True)
        Path(out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
