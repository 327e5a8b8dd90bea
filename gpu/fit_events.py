"""Compares a trace with what happened on a GPU, operator by operator, and names the operators whose memory differs.

    python gpu/fit_events.py events.jsonl.gz TRACE.json --run resnet50:64:none [--rows 25]

`gpu/fit_workspaces.py` writes the events. Bytes are rounded to 512, as the allocator does. "Kept" is what is allocated
at an operator's end beyond what was at its beginning, "inside" what it took and gave back.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

GRAIN = 512

Op = dict[str, Any]


def rounded(size: int) -> int:
    return max(GRAIN, -(-size // GRAIN) * GRAIN)


def real_ops(path: Path, run: str) -> list[Op]:
    """The operators of a recorded run with what they took, and the live bytes at their ends from the first one on."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if f"{row['model']}:{row['batch']}:{row['setting']}" == run:
                break
        else:
            raise SystemExit(f"error: {path} has no run {run}")
    ops = [{"name": row["names"][i], "allocs": [], "inside": 0, "kept": 0, "live": None} for i in row["ops"]]
    sizes: dict[int, int] = {}
    owner: dict[int, int] = {}
    live = 0
    for event in row["events"]:
        if event[0] == "a":
            _, block, size, op = event
            sizes[block], owner[block] = rounded(size), op
            live += rounded(size)
            if op >= 0:
                ops[op]["allocs"].append(size)
                ops[op]["kept"] += rounded(size)
        elif event[0] == "f":
            _, block, op = event
            live -= sizes[block]
            if op >= 0 and owner[block] == op:
                ops[op]["kept"] -= sizes[block]
                ops[op]["inside"] += sizes[block]
        elif event[0] == "o":
            ops[event[1]]["live"] = live
    return ops


def traced_ops(path: Path) -> list[Op]:
    """The same of a trace, from its first step on."""
    trace = json.loads(path.read_text(encoding="utf-8"))
    sizes = [rounded(size) for size in trace["storages"]["bytes"]]
    ops: list[Op] = []
    live, fresh, gone, stepped = 0, [], [], False
    for event in trace["events"]:
        if event[0] == "step":
            if not stepped:
                live = 0
            stepped = True
            fresh, gone = [], []
        elif event[0] == "alloc":
            live += sizes[event[1]]
            fresh.append(event[1])
        elif event[0] == "free":
            live -= sizes[event[1]]
            if event[1] in fresh:
                gone.append(event[1])
        elif event[0] == "op" and stepped:
            inside = sum(sizes[one] for one in gone)
            ops.append(
                {
                    "name": trace["ops"][event[1]],
                    "allocs": [trace["storages"]["bytes"][one] for one in fresh],
                    "inside": inside,
                    "kept": sum(sizes[one] for one in fresh) - inside,
                    "live": live,
                }
            )
            fresh, gone = [], []
    return ops


def takes(op: Op) -> bool:
    return bool(op["allocs"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=Path)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--run", required=True)
    parser.add_argument("--rows", type=int, default=25)
    arguments = parser.parse_args()
    real, ours = real_ops(arguments.events, arguments.run), traced_ops(arguments.trace)
    real, ours = [op for op in real if takes(op)], [op for op in ours if takes(op)]
    print(f"operators that take memory: {len(real)} real, {len(ours)} traced")
    matcher = difflib.SequenceMatcher(None, [op["name"] for op in real], [op["name"] for op in ours], autojunk=False)
    only_real, only_ours = Counter[str](), Counter[str]()
    kept: dict[str, list[int]] = defaultdict(list)
    inside: dict[str, list[int]] = defaultdict(list)
    examples: dict[str, str] = {}
    drift: list[tuple[int, str, int]] = []
    before = 0
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            only_real.update(op["name"] for op in real[a:b])
            only_ours.update(op["name"] for op in ours[c:d])
            continue
        for i in range(b - a):
            one, other = real[a + i], ours[c + i]
            if one["kept"] != other["kept"]:
                kept[one["name"]].append(one["kept"] - other["kept"])
                examples.setdefault(f"{one['name']} kept", f"{one['allocs']} for {other['allocs']}")
            if one["inside"] != other["inside"]:
                inside[one["name"]].append(one["inside"] - other["inside"])
                examples.setdefault(f"{one['name']} inside", f"{one['allocs']} for {other['allocs']}")
            if one["live"] is not None:
                difference = one["live"] - other["live"]
                if difference != before:
                    drift.append((difference - before, one["name"], a + i))
                    before = difference
    for title, found in (("kept", kept), ("inside", inside)):
        print(f"\n{title}, real minus traced: operator, how often, sum, largest, an example")
        for name, sums in sorted(found.items(), key=lambda item: -max(map(abs, item[1])))[: arguments.rows]:
            example = examples[f"{name} {title}"][:150]
            print(f"  {name:55} {len(sums):5} {sum(sums):15,} {max(sums, key=abs):15,}  {example}")
    print("\nonly real:", dict(only_real.most_common(12)), "\nonly traced:", dict(only_ours.most_common(12)))
    print(f"\nlive bytes, real minus traced, where the difference changes most (now {before:,}):")
    for change, name, at in sorted(drift, key=lambda one: -abs(one[0]))[: arguments.rows]:
        print(f"  {change:15,}  at operator {at} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
