"""Runs random programs through PyTorch's own caching allocator under each setting.

Each program allocates and frees blocks of random sizes on two streams, with `empty_cache` now and then, and is the same
under every setting. For each run the memory snapshot with its whole history and the allocator's counters are written;
`compare.py` compares both with gpuheap's replay and with what gpuheap predicts from the stock run.

    python gpu/policy.py OUT [SEEDS]
"""

import gzip
import json
import os
import pickle
import random
import subprocess
import sys

MIB = 2**20
# Name, settings, cap in GiB.
SETTINGS = [
    ("stock", "", 0),
    ("expandable", "expandable_segments:True", 0),
    ("split64", "max_split_size_mb:64", 0),
    ("split200", "max_split_size_mb:200", 0),
    ("split64_rounding64", "max_split_size_mb:64,max_non_split_rounding_mb:64", 0),
    ("divisions8", "roundup_power2_divisions:8", 0),
    ("divisions_list", "roundup_power2_divisions:[4:8,64:4,>:2]", 0),
    ("large_segment64", "large_segment_size_mb:64", 0),
    ("cap", "", 3),
    ("collected", "garbage_collection_threshold:0.6", 3),
    ("split64_cap", "max_split_size_mb:64", 3),
    ("expandable_cap", "expandable_segments:True", 3),
    ("expandable_split", "expandable_segments:True,max_split_size_mb:64", 0),
]
COUNTERS = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
}


def size(chance):
    kind = chance.random()
    if kind < 0.35:
        return chance.randrange(1, 1 * MIB)
    if kind < 0.65:
        return chance.randrange(1 * MIB, 12 * MIB)
    if kind < 0.95:
        return chance.randrange(12 * MIB, 120 * MIB)
    return chance.choice([1 * MIB, 10 * MIB, 20 * MIB, 64 * MIB, 200 * MIB, 300 * MIB])


def program(seed):
    """What a program does: allocations by number, frees by the number of their allocation."""
    chance = random.Random(seed)
    live, steps = [], []
    target = chance.randrange(10, 40)
    for number in range(500):
        if live and (len(live) > target or chance.random() < 0.45):
            steps.append(("free", live.pop(chance.randrange(len(live)))))
        elif chance.random() < 0.01:
            steps.append(("empty_cache",))
        else:
            steps.append(("alloc", number, size(chance), int(chance.random() < 0.2)))
            live.append(number)
    return steps


def run(name, cap, out, seeds):
    import torch

    torch.cuda.init()
    if cap:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(cap * 2**30 / total)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for seed in range(seeds):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
        blocks, ooms = {}, 0
        for step in program(seed):
            if step[0] == "alloc":
                try:
                    blocks[step[1]] = torch.cuda.caching_allocator_alloc(step[2], 0, streams[step[3]])
                except torch.OutOfMemoryError:
                    ooms += 1
            elif step[0] == "free":
                if step[1] in blocks:
                    torch.cuda.caching_allocator_delete(blocks.pop(step[1]))
            else:
                torch.cuda.empty_cache()
        stats = torch.cuda.memory_stats()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        for pointer in blocks.values():
            torch.cuda.caching_allocator_delete(pointer)
        torch.cuda.empty_cache()
        path = f"{out}/{name}-{seed}"
        with gzip.open(path + ".pickle.gz", "wb", 6) as file:
            pickle.dump(snapshot, file, 4)
        truth = {ours: stats[theirs] for ours, theirs in COUNTERS.items()}
        for ours, theirs in (("segments", "segment.all.allocated"), ("retries", "num_alloc_retries"), ("ooms", "num_ooms")):
            truth[ours] = stats.get(theirs, 0) - before.get(theirs, 0)
        truth.update(cap_bytes=cap * 2**30, conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""), torch=torch.__version__)
        with open(path + ".json", "w") as file:
            json.dump(truth, file)
    print(name, "done", flush=True)


def main():
    out, seeds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    if len(sys.argv) > 3:
        name = sys.argv[3]
        cap = next(cap for known, _, cap in SETTINGS if known == name)
        return run(name, cap, out, seeds)
    os.makedirs(out, exist_ok=True)
    failed = []
    for name, conf, _ in SETTINGS:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": conf}
        command = [sys.executable, __file__, out, str(seeds), name]
        if subprocess.run(command, env=environment).returncode:
            failed.append(name)
    print("failed:", failed)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
