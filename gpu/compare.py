"""Compares what PyTorch's allocator did in the programs of `policy.py` with what gpuheap replays and predicts.

    python gpu/compare.py FOLDER [target/release/gpuheap]

For each run: every segment event, every placement and the final state (`replay.exact`), and the four peaks. Then, from
each stock recording alone: the reserved and allocated peak, segments and retries of the same program under every other
setting, where it did not run out of memory there.
"""

import glob
import json
import os
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

PEAKS = ("allocated", "requested", "active", "reserved")


def gpuheap(binary, *arguments):
    return json.loads(subprocess.run([binary, *arguments, "--json"], check=True, capture_output=True).stdout)


def main():
    folder, binary = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "target/release/gpuheap"
    truth = {}
    for path in glob.glob(f"{folder}/*.json"):
        name, seed = os.path.basename(path)[:-5].rsplit("-", 1)
        truth[name, int(seed)] = json.load(open(path))
    replayed, predicted = defaultdict(lambda: [0, 0]), defaultdict(lambda: [0, 0, 0.0, 0])

    def check(key):
        told = gpuheap(binary, "explain", f"{folder}/{key[0]}-{key[1]}.pickle.gz")
        peaks = all(told["peaks"][f"{peak}_bytes"] == truth[key][f"peak_{peak}_bytes"] for peak in PEAKS)
        return key, told["replay"]["exact"] and peaks

    def predict(key):
        name, seed = key
        limit = ["--limit", str(truth[key]["cap_bytes"])] if truth[key]["cap_bytes"] else []
        told = gpuheap(binary, "whatif", f"{folder}/stock-{seed}.pickle.gz", "--conf", truth[key]["conf"], *limit)
        return key, next(row for row in told["whatif"] if row["conf"] == truth[key]["conf"])

    with ThreadPoolExecutor() as pool:
        for (name, _), good in pool.map(check, sorted(truth)):
            replayed[name][0] += good
            replayed[name][1] += 1
        others = [key for key in sorted(truth) if key[0] != "stock" and not truth[key]["ooms"] and ("stock", key[1]) in truth]
        for key, row in pool.map(predict, others):
            real, entry = truth[key], predicted[key[0]]
            same = (
                row["peak_reserved_bytes"] == real["peak_reserved_bytes"]
                and row["peak_allocated_bytes"] == real["peak_allocated_bytes"]
                and row["segments"] == real["segments"]
                and row["retries"] == real["retries"]
            )
            entry[0] += same
            entry[1] += 1
            off = abs(row["peak_reserved_bytes"] - real["peak_reserved_bytes"]) / real["peak_reserved_bytes"]
            entry[2] = max(entry[2], off)
            entry[3] += row["oom"]

    print(f"{'settings':<20} {'replayed exactly':>16}   {'predicted exactly':>17}   {'reserved off by at most':>23}")
    for name in replayed:
        good, count = replayed[name]
        line = f"{name:<20} {good:>10} of {count:<3}"
        if name in predicted:
            same, runs, off, _ = predicted[name]
            line += f"   {same:>10} of {runs:<3}   {off * 100:>21.3f} %"
        print(line)
    wrong = sum(count - good for good, count in replayed.values())
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
