"""Measures what `gpuheap.holders` and `gpuheap.scope` cost, on heaps of millions of objects and per operation.

    PYTHONPATH=python python gpu/holders.py [folder of leak programs]

With a folder that holds `cases_a.py` and `common.py` (programs that leak on purpose, run with a function `mark` that
they call after each step), each program is asked, inside its last step, who holds the largest storage that leaked.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import torch

from gpuheap._held import groups_of
from gpuheap._survivors import census
from gpuheap._tensors import live_tensors
from gpuheap.holders import holders
from gpuheap.scope import scope


class Thing:
    """An object of the program."""


def milliseconds(work: Any, times: int = 5) -> float:
    """The median of some runs."""
    spent = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        spent.append(time.perf_counter() - started)
    return sorted(spent)[times // 2] * 1000


def heaps() -> None:
    """What a search and an empty scope cost as the heap grows."""
    for millions in (0, 1, 2, 4):
        heap = [[{}] for _ in range(millions * 500_000)]
        for row in heap:
            row[0]["row"] = row
        box = {"a": [[Thing()]]}
        count = len(gc.get_objects())
        found = holders(box["a"][0][0])
        spent = milliseconds(lambda box=box: holders(box["a"][0][0]))
        tensor = {"x": torch.ones(8)}
        of_tensor = milliseconds(lambda tensor=tensor: holders(tensor["x"]))

        def block() -> None:
            with scope("step"):
                pass

        print(
            f"heap of {count / 1e6:.2f} M objects: holders of an object {spent:.0f} ms ({found[0].path}), of a tensor "
            f"{of_tensor:.0f} ms, an empty scope {milliseconds(block):.0f} ms"
        )
        del heap, box, tensor


def operations() -> None:
    """What following each operation costs."""
    x = torch.ones(64, 64, device="cuda")

    def run() -> None:
        for _ in range(10_000):
            torch.add(x, 1)
        torch.cuda.synchronize()

    def tracked() -> None:
        with scope("step", track=True):
            run()

    def budget() -> None:
        with scope("step", "1 GiB"):
            run()

    run()
    plain, followed, limited = milliseconds(run), milliseconds(tracked), milliseconds(budget)
    print(f"one operation: {plain / 10:.2f} us, tracked {followed / 10:.2f} us, with a budget {limited / 10:.2f} us")


class Found(Exception):
    """Ends a program; carries what was found."""


def leaks(folder: str) -> None:
    """Runs the programs that leak on purpose."""
    sys.path.insert(0, folder)
    import cases_a
    from common import STEPS

    for name, case in cases_a.S.items():
        if case["verdict"] != "leak":
            continue
        births: dict[int, int] = {}
        steps = STEPS[name]
        state = {"step": 0}

        def mark(births: dict[int, int] = births, steps: int = steps, state: dict[str, int] = state) -> None:
            now = census(torch, lambda device: device.startswith("cuda"))
            for key in [key for key in births if key not in now.storages]:
                del births[key]
            for key in now.storages:
                births.setdefault(key, state["step"])
            state["step"] += 1
            if state["step"] < min(steps, 24):
                return
            tensors = live_tensors(torch)
            groups = groups_of(torch, tensors)
            model = {
                one.untyped_storage()._cdata
                for one in tensors
                if groups.get(id(one), "other tensors")[:2] in ("pa", "gr", "op", "bu")
            }
            del tensors
            old = [
                now.storages[key] for key, born in births.items() if 2 <= born < state["step"] - 3 and key not in model
            ]
            raise Found(str(holders(max(old, key=lambda one: one.bytes).address)) if old else "nothing")

        torch.manual_seed(0)
        try:
            case["run"](mark)
        except Found as found:
            print(f"== {name}\n{found}")
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    heaps()
    operations()
    if len(sys.argv) > 1:
        leaks(sys.argv[1])
