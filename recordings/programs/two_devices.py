"""One process, two GPUs: a healthy loop on the first, a leak of 1 MiB a step on the second."""
import json, sys, torch, torch.nn as nn, torch.nn.functional as F
out = sys.argv[1]
torch.manual_seed(0)
torch.cuda.memory._record_memory_history(max_entries=200000, stacks="python")
def model(device):
    m = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10)).to(device)
    return m, torch.optim.AdamW(m.parameters())
def step(m, o, device):
    x = torch.randn(512, 512, device=device); t = torch.randint(0, 10, (512,), device=device)
    loss = F.cross_entropy(m(x), t); o.zero_grad(); loss.backward(); o.step()
    return x
first, second = model("cuda:0"), model("cuda:1")
kept = []
def keep(x):
    kept.append(x.clone())
for i in range(30):
    step(*first, "cuda:0")
    keep(step(*second, "cuda:1"))
torch.cuda.memory._dump_snapshot(f"{out}/two_devices.pickle")
counters = {"allocated_bytes": "allocated_bytes.all.current", "reserved_bytes": "reserved_bytes.all.current", "peak_allocated_bytes": "allocated_bytes.all.peak", "peak_reserved_bytes": "reserved_bytes.all.peak"}
truth = [{ours: torch.cuda.memory_stats(d)[theirs] for ours, theirs in counters.items()} for d in range(2)]
json.dump(truth, open(f"{out}/two_devices.json", "w")); print(truth)
