"""What `gpuheap.find_batch_size` finds on a GPU, whether it holds, and what two other finders do.

    python gpu/batch_size.py [--quick | --rest] [OUT]

ResNet-152, BERT-large and GPT-2 (small), each under three budgets. Each size found runs 20 steps in a process of its
own under the same budget, and so does the next one, at most 3 % larger, which must not. One line a check, tables at the
end; all figures go to OUT/batch_size.json. Seconds of the finders are taken with nothing else on the card; `--rest`
leaves these out, `--quick` is for one program and two budgets.
"""

import contextlib
import functools
import json
import os
import sys
import threading
import time
import traceback

import gpuheap

GIB = 1 << 30
BUDGETS = [8 * GIB, 16 * GIB, 32 * GIB]
COMPARED = 16 * GIB
STEPS = 20
# Seconds after which no part is begun.
LAST_START = 400
# accelerate's own default, and for the larger samples a start that is kinder to it.
ACCELERATE_STARTS = {"ResNet-152": 128, "BERT-large": 32, "GPT-2": 32}


# The programs.


def resnet():
    import torch
    from torchvision.models import resnet152

    model = resnet152().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loss = torch.nn.CrossEntropyLoss()

    def batch(size):
        return torch.randn(size, 3, 224, 224), torch.randint(1000, (size,))

    return model, optimizer, batch, lambda data: loss(model(data[0]), data[1])


def bert():
    import torch
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = BertForMaskedLM(config).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def batch(size):
        return (torch.randint(30000, (size, 512)),)

    return model, optimizer, batch, lambda data: model(data[0], labels=data[0]).loss


def gpt2():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def batch(size):
        return (torch.randint(50000, (size, 1024)),)

    return model, optimizer, batch, lambda data: model(data[0], labels=data[0]).loss


PROGRAMS = {"ResNet-152": resnet, "BERT-large": bert, "GPT-2": gpt2}


def make_step(program, size):
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(0)
    _, optimizer, batch, loss_of = PROGRAMS[program]()
    data = [one.cuda() for one in batch(size)]

    def step():
        optimizer.zero_grad()
        loss_of(data).backward()
        optimizer.step()

    return step


def make_wide(size):
    """Few parameters and large activations, to fill a whole card quickly."""
    import torch

    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.randn(size, 4096, 1024, device="cuda")

    def step():
        optimizer.zero_grad()
        model(data).mean().backward()
        optimizer.step()

    return step


# Checks, each in a process of its own.


def limit(budget):
    import torch

    torch.cuda.set_per_process_memory_fraction((budget + 0.5) / torch.cuda.get_device_properties(0).total_memory)


def train(program, size, budget, steps=STEPS):
    """Plain training under the budget, by nothing of gpuheap."""
    import torch

    limit(budget)
    done, error = 0, None
    try:
        step = make_step(program, size)
        for _ in range(steps):
            step()
            done += 1
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as failure:
        error = str(failure).splitlines()[0]
    stats = torch.cuda.memory_stats()
    return {
        "steps": done,
        "error": error,
        "retries": stats["num_alloc_retries"],
        "reserved": stats["reserved_bytes.all.peak"],
        "allocated": stats["allocated_bytes.all.peak"],
    }


def with_accelerate(program, budget):
    import torch
    from accelerate.utils import find_executable_batch_size

    torch.zeros(1, device="cuda")
    limit(budget)
    tried = []

    @find_executable_batch_size(starting_batch_size=ACCELERATE_STARTS[program])
    def inner(batch_size):
        tried.append(batch_size)
        step = make_step(program, batch_size)
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        return batch_size

    began = time.monotonic()
    found = inner()
    stats = torch.cuda.memory_stats()
    return {
        "found": found,
        "attempts": len(tried),
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "seconds": time.monotonic() - began,
    }


def with_lightning(program, budget):
    import logging
    import tempfile
    import warnings

    import torch

    try:
        from lightning import pytorch as lightning
    except ImportError:
        import pytorch_lightning as lightning
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.zeros(1, device="cuda")
    limit(budget)
    model, optimizer, batch, loss_of = PROGRAMS[program]()
    tried = []

    class Data(torch.utils.data.Dataset):
        def __init__(self):
            self.one = [part[0] for part in batch(1)]

        def __len__(self):
            return 1 << 16

        def __getitem__(self, index):
            return self.one

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model
            self.batch_size = 2

        def train_dataloader(self):
            return torch.utils.data.DataLoader(Data(), batch_size=self.batch_size)

        def on_train_start(self):
            tried.append(self.batch_size)

        def training_step(self, data, index):
            return loss_of(data)

        def configure_optimizers(self):
            return optimizer

    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu",
            devices=1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            max_epochs=1,
            default_root_dir=folder,
        )
        tuner = lightning.tuner.Tuner(trainer)
        found = tuner.scale_batch_size(Module(), mode="binsearch", steps_per_trial=3)
    stats = torch.cuda.memory_stats()
    return {
        "found": found,
        "attempts": len(tried),
        "ooms": stats["num_ooms"],
        "retries": stats["num_alloc_retries"],
        "seconds": time.monotonic() - began,
    }


# The measurement.


class Report:
    """Prints, and keeps."""

    def __init__(self):
        self.found, self.checks, self.others, self.wrong = {}, {}, {}, 0
        self.lock = threading.Lock()
        self.began = time.monotonic()

    def say(self, good, text):
        with self.lock:
            self.wrong += not good
            print(f"{'ok  ' if good else 'FAIL'} {text}", flush=True)

    def try_(self, what, work, *args):
        if time.monotonic() - self.began > LAST_START:
            print(f"     {what}: not run, no time is left", flush=True)
            return None
        try:
            return work(*args)
        except Exception as error:
            self.say(False, f"{what}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            traceback.print_exc()
            return None


class Room:
    """Lets as many parts begin as fit on the card together."""

    def __init__(self, free):
        self.free = free
        self.changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, amount):
        with self.changed:
            self.changed.wait_for(lambda: self.free >= amount)
            self.free -= amount
        try:
            yield
        finally:
            with self.changed:
                self.free += amount
                self.changed.notify_all()


def find(report, program, budget, alone):
    result = gpuheap.find_batch_size(functools.partial(make_step, program), budget, quiet=True, timeout=240)
    training = result.training
    report.found[program, budget] = {
        "found": result.largest,
        "too_large": training.too_large,
        "verified": result.verified,
        "probes": len(training.probes),
        "processes": sum(probe.new_process for probe in training.probes),
        "seconds": result.seconds,
        "alone": alone,
        "reserved": training.run.reserved,
        "peak": training.run.peak,
        "text": str(result),
    }
    good = result.verified and len(training.probes) <= 6
    sizes = " ".join(str(probe.batch) + ("" if probe.fits else "!") for probe in training.probes)
    report.say(good, f"{program} {budget // GIB} GiB: found {result.largest} by {sizes} in {result.seconds:.0f} s")


def check(report, program, budget):
    found = report.found.get((program, budget))
    if found is None:
        return
    size = found["found"]
    above = size + max(1, int(0.03 * size))
    at = gpuheap.isolate(train, program, size, budget)
    over = gpuheap.isolate(train, program, above, budget)
    report.checks[program, budget] = {"size": size, "at": at, "above": above, "over": over}
    runs = at["steps"] == STEPS and at["error"] is None and at["retries"] == 0
    report.say(runs, f"{program} {budget // GIB} GiB: {size} ran {at['steps']} steps, {at['retries']} retries")
    fails = over["error"] is not None or over["retries"] > 0
    how = "out of memory" if over["error"] else f"{over['retries']} retries"
    report.say(fails, f"{program} {budget // GIB} GiB: {above} after {over['steps']} steps: {how}")
    text = f"reserves {at['reserved'] / GIB:.3f} GiB in plain training, {found['reserved'] / GIB:.3f} in its run"
    report.say(abs(at["reserved"] - found["reserved"]) <= 0.005 * budget, f"{program} {budget // GIB} GiB: {text}")


def other(report, name, work, program, budget):
    told = gpuheap.isolate(work, program, budget, timeout=150)
    told["runs"] = gpuheap.isolate(train, program, told["found"], budget)
    report.others[name, program] = told
    runs = told["runs"]
    held = runs["steps"] == STEPS and not runs["error"] and not runs["retries"]
    print(
        f"     {name}, {program} {budget // GIB} GiB: found {told['found']} in {told['attempts']} attempts, "
        f"{told['ooms']} OOMs, {told['seconds']:.0f} s; 20 steps of it {'run' if held else 'fail'}",
        flush=True,
    )


def reuse(report, program, budget):
    """A process that was used measures the same as a new one."""
    from gpuheap import _transfer
    from gpuheap._batch.probe import Order, run

    make = _transfer.dumps(functools.partial(make_step, program))

    def order(batch):
        return Order(make, batch, 3, budget, None, 0, True)

    with gpuheap.Isolate() as used:
        clean = [used.call(run, order(batch)).clean for batch in (1, 3)]
        again = used.call(run, order(2)).probe
    new = gpuheap.isolate(run, order(2)).probe
    same = again.reserved == new.reserved and again.peaks == new.peaks
    peaks = "equal" if again.peaks == new.peaks else "differ"
    text = f"clean {clean}, reserved {again.reserved} and {new.reserved}, peaks {peaks}"
    report.say(all(clean) and same, f"{program}: a used process against a new one: {text}")


def whole_card(report):
    result = gpuheap.find_batch_size(make_wide, start=64, quiet=True, timeout=240)
    text = f"found {result.largest} of {result.training.budget / GIB:.1f} GiB in {result.seconds:.0f} s"
    report.say(result.verified, f"no budget given: {text}, {len(result.training.probes)} runs")


def tables(report):
    print("\n| program | budget | found | runs | reserved | 20 steps | next size | after | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (program, budget), found in sorted(report.found.items()):
        check = report.checks.get((program, budget))
        at = over = above = "-"
        if check is not None:
            at = f"{check['at']['steps']} run, {check['at']['retries']} retries"
            above = check["above"]
            error = check["over"]["error"]
            over = f"OOM, step {check['over']['steps'] + 1}" if error else f"{check['over']['retries']} retries"
        seconds = f"{found['seconds']:.0f}" + ("" if found["alone"] else " (not alone)")
        print(
            f"| {program} | {budget // GIB} GiB | {found['found']} | {found['probes']} | "
            f"{found['reserved'] / GIB:.2f} GiB | {at} | {above} | {over} | {seconds} |"
        )
    print("\n| finder | program | found | attempts | OOMs in the program | seconds | 20 steps of it |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (program, budget), found in sorted(report.found.items()):
        if budget == COMPARED:
            print(f"| gpuheap | {program} | {found['found']} | {found['probes']} | 0 | {found['seconds']:.0f} | run |")
    for (name, program), told in report.others.items():
        runs = told["runs"]
        held = "run" if runs["steps"] == STEPS and not runs["error"] and not runs["retries"] else "fail"
        if held == "fail":
            held = f"OOM at step {runs['steps'] + 1}" if runs["error"] else f"{runs['retries']} retries"
        print(
            f"| {name} | {program} | {told['found']} | {told['attempts']} | {told['ooms']} | {told['seconds']:.0f} "
            f"| {held} |"
        )


def main():
    import torch

    began = time.monotonic()
    quick = "--quick" in sys.argv
    folder = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), ".")
    # The caller has a tensor on the card itself, so that a failure here would be seen.
    mine = torch.ones(1 << 20, device="cuda")
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    report = Report()
    programs = list(PROGRAMS)
    alone = [] if "--rest" in sys.argv else programs[: 1 if quick else None]
    for program in alone:
        report.try_(f"find {program}", find, report, program, COMPARED, True)
    for program in alone:
        for name, work in (("accelerate", with_accelerate), ("Lightning", with_lightning)):
            report.try_(f"{name} {program}", other, report, name, work, program, COMPARED)
    print(f"     {time.monotonic() - began:.0f} s so far", flush=True)

    room = Room(int(0.95 * torch.cuda.mem_get_info()[0]))

    def rest(program, budget):
        with room.take(budget + GIB):
            if (program, budget) not in report.found:
                report.try_(f"find {program}", find, report, program, budget, False)
            report.try_(f"check {program} {budget // GIB} GiB", check, report, program, budget)
            if budget == BUDGETS[0]:
                report.try_(f"reuse {program}", reuse, report, program, budget)

    pairs = [(program, budget) for budget in reversed(BUDGETS[: 2 if quick else None]) for program in programs]
    if "--rest" in sys.argv:
        pairs = [pair for pair in pairs if pair[1] != COMPARED]
    threads = [threading.Thread(target=rest, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"     {time.monotonic() - began:.0f} s so far", flush=True)
    report.try_("no budget", whole_card, report)
    ooms, total = torch.cuda.memory_stats()["num_ooms"], float(mine.sum())
    report.say(ooms == 0 and total == 1 << 20, f"out-of-memory errors in this process: {ooms}")
    tables(report)
    print(f"\n{report.wrong} checks failed; {time.monotonic() - began:.0f} s together")
    with open(os.path.join(folder, "batch_size.json"), "w") as file:
        named = {
            name: {" ".join(map(str, key)): value for key, value in getattr(report, name).items()}
            for name in ("found", "checks", "others")
        }
        json.dump(named, file, indent=1)
    return int(report.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
