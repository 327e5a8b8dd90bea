"""Two processes with NCCL within one budget, on two GPUs.

    gpuheap run --budget 8GiB -- torchrun --nproc-per-node 2 gpu/shim_nccl.py

Each takes memory until it is refused, gives half of it back and goes on; after each turn both add a tensor up, which is
right or not. Prints what each device held at most by NVML (which counts contexts and NCCL's buffers as well), the
refusals, and whether all sums were right.
"""

import json
import os
import subprocess
import threading
import time

import torch
import torch.distributed as dist

GIB = 1 << 30


def held() -> list[int]:
    """MiB in use by device."""
    ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.run(ask, capture_output=True, text=True).stdout.split()]


def main() -> None:
    """One of the two."""
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    before, most, over = held(), [0, 0], threading.Event()

    def look() -> None:
        while not over.is_set():
            for device, mib in enumerate(held()):
                most[device] = max(most[device], mib)
            time.sleep(0.05)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    kept: list[torch.Tensor] = []
    caught, wrong, text = 0, 0, ""
    one = torch.empty(1 << 24, device="cuda")
    for turn in range(24):
        try:
            for _ in range(3):
                kept.append(torch.empty(GIB // 2, dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError as error:
            caught += 1
            text = str(error).splitlines()[0][:160]
            kept = kept[: len(kept) // 2]
            torch.cuda.empty_cache()
        dist.all_reduce(one.fill_(float(rank + turn)))
        wrong += not bool((one == 2 * turn + 1).all())
    free, total = torch.cuda.mem_get_info()
    over.set()
    watcher.join()
    print(
        json.dumps(
            {
                "rank": rank,
                "caught": caught,
                "text": text,
                "sums_wrong": wrong,
                "before_mib": before,
                "most_mib": most,
                "total_told_gib": total / GIB,
                "free_told_gib": free / GIB,
            }
        ),
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
