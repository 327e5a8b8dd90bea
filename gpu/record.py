"""What `gpuheap.record` makes of real programs on a GPU: verdicts, names, costs.

    python gpu/record.py FOLDER_WITH_LEAK_PROGRAMS OUT [leaks] [programs] [cost]

Prints one line a check; everything else goes to OUT. The leak programs are those of recordings/loops: a module
`cases_a` with `S`, each with a function that calls `mark` after each step, and a label.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import gpuheap

CHILD = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
import torch, gpuheap, cases_a, common
name, out = sys.argv[2], sys.argv[3]
torch.manual_seed(0); random.seed(0)
spec = cases_a.S[name]
recording = gpuheap.record(out).start()
steps = 0
def mark():
    global steps
    steps += 1
    if steps == common.STEPS[name]:
        recording.stop()
spec["run"](mark)
report = recording.report()
finding = report["findings"][0] if report["findings"] else {}
print(json.dumps({"verdict": report["verdict"]["kind"], "site": report["verdict"]["site"],
                  "rate": finding.get("bytes_per_step"), "label": spec["verdict"],
                  "named": [rule["rule"] for rule in report["classes"] if rule["rule"].startswith("named")],
                  "exact": report["replay"]["exact"], "complete": report["source"]["complete"]}))
"""

STEP = """
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM
kind = {kind!r}
torch.manual_seed(0)
if kind == "bert":
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = BertForMaskedLM(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    batch = torch.randint(0, 30000, (16, 256), device="cuda")
    def step():
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
else:
    config = LlamaConfig(hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8,
                         intermediate_size=8192, vocab_size=128256, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    prompt = torch.randint(0, 30000, (1, 64), device="cuda")
    def step():
        with torch.no_grad():
            model.generate(prompt, max_new_tokens=32, min_new_tokens=32, do_sample=False, pad_token_id=0)
"""

COST = STEP + """
import time, statistics, sys, gpuheap
for _ in range(4):
    step()
def timed():
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range({inner}):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start
firsts = []
def recorded(**options):
    # A ring that is full soon, as that of a long run, and small enough to be written in a moment.
    recording = gpuheap.record(sys.argv[1], max_entries=200_000, **options).start()
    # The first 50,000 allocations are recorded whole, modules are looked for once: not what a step costs.
    first = timed()
    spent = timed()
    if not options:
        firsts.append(first)
    recording.stop()
    return spent
# Each turn measures all, in an order that turns round: what drifts hits all alike. The first two are the same thing
# twice and say how much two measurements of the same differ.
kinds = {{"not recorded": timed, "again": timed, "recorded": recorded,
         "every stack": lambda: recorded(stack_share=1.0), "with activations": lambda: recorded(activations=True)}}
spent = {{kind: [] for kind in kinds}}
for turn in range({turns}):
    order = list(kinds)[turn % len(kinds):] + list(kinds)[:turn % len(kinds)]
    for kind in order if turn % 2 else reversed(order):
        spent[kind].append(kinds[kind]())
base = statistics.median(spent["not recorded"] + spent["again"])
print(f"{{base / {inner} * 1e3:.2f}} ms a step; " + ", ".join(
    f"{{kind}} {{(statistics.median(values) / base - 1) * 100:+.1f}} %" for kind, values in spent.items()),
    f"; once, at the start, {{(statistics.median(firsts) - statistics.median(spent['recorded'])) * 1e3:.0f}} ms")
print([note for note in gpuheap.explain(sys.argv[1])["source"]["notes"]])
"""

KEPT = STEP + """
import gpuheap, sys, json
kept = []
with gpuheap.record(sys.argv[1]) as recording:
    for _ in range(64):
        with torch.no_grad():
            out = model(prompt)
            model.generate(prompt, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)
            kept.append(out.logits)
        gpuheap.step()
report = recording.report()
site = report["verdict"]["site"] or {{}}
print(report["verdict"]["headline"], "| line", site.get("line"), "|", [n for n in report["source"]["notes"] if "stacks" in n])
"""

NAMED = STEP + """
import gpuheap, sys
with gpuheap.record(sys.argv[1], activations=True) as recording:
    step()
report = recording.report()
print("named", [(n["name"], n["bytes"], n["class"]) for n in report.get("named", []) if n["class"] == "activations"][:3],
      "| ledger", [(p["part"], round(p["bytes"] / 2**30, 2)) for p in report["ledger"] if p["kind"] == "outside"],
      "| sum", sum(p["bytes"] for p in report["ledger"]) == report["source"].get("device_bytes"),
      "|", report["source"].get("facts"))
"""

KILLED = """
import gpuheap, gpuheap._record.beat, os, signal, sys, time, torch, traceback
gpuheap._record.beat.FIRST_SAVE = 3.0
inner = gpuheap.Recording._autosave
def loud(self):
    try:
        inner(self)
    except BaseException:
        traceback.print_exc()
        raise
gpuheap.Recording._autosave = loud
recording = gpuheap.record(sys.argv[1]).start()
model = torch.nn.Linear(1024, 1024).cuda()
end = time.monotonic() + 12
while time.monotonic() < end:
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
os.kill(os.getpid(), signal.SIGKILL)
"""

OUT_OF_MEMORY = """
import sys, torch, gpuheap, weakref
class Big: pass
seen = []
try:
    with gpuheap.record(sys.argv[1]):
        big = Big(); seen.append(weakref.ref(big))
        model = torch.nn.Linear(8192, 8192).cuda()
        kept = []
        while True:
            kept.append(model(torch.randn(65536, 8192, device="cuda")))
except torch.cuda.OutOfMemoryError as error:
    text = str(error)
del big, kept
print("unchanged", text.startswith("CUDA out of memory"), "freed", seen[0]() is None)
print(gpuheap.explain(sys.argv[1])["verdict"]["kind"])
"""

PLAIN = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(20):
    loss = model(torch.randn(64, 512, device="cuda")).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    kept.append(loss)
"""


def run(code, *arguments, env=None, out=None):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        print(done.stdout[-1500:], done.stderr[-3000:], file=sys.stderr)
    return done


def main():
    leaks_folder, out = sys.argv[1], sys.argv[2]
    sys.path.insert(0, leaks_folder)
    os.makedirs(out, exist_ok=True)
    parts = {"leaks": lambda: leaks(leaks_folder, out), "programs": lambda: programs(out), "cost": lambda: cost(out)}
    for name in sys.argv[3:] or parts:
        parts[name]()


def leaks(folder, out):
    import cases_a

    def judged(name):
        done = run(CHILD, folder, name, f"{out}/{name}.gpuheap")
        return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None

    right = same = 0
    # Verdicts, no timings: several at once may share the card.
    with ThreadPoolExecutor(5) as pool:
        for name, result in zip(cases_a.S, pool.map(judged, cases_a.S)):
            if result is None:
                print(f"leak {name}: FAILED")
                continue
            expected = json.load(open(f"{folder}/{name}.json"))
            is_right = (result["verdict"] in ("leak", "sawtooth")) == (expected["verdict"] in ("leak", "sawtooth"))
            site = result["site"] or {}
            snapshot = gpuheap.explain(f"{folder}/{name}.pickle.gz")["verdict"]
            of = snapshot["site"] or {}
            is_same = (snapshot["kind"], of.get("line")) == (result["verdict"], site.get("line"))
            right, same = right + is_right, same + is_same
            print(f"leak {name}: {result['verdict']} (label {expected['verdict']}, snapshot {snapshot['kind']} line "
                  f"{of.get('line')}) line {site.get('line')} {site.get('function')} rate {result['rate']} exact "
                  f"{result['exact']} complete {result['complete']} named {len(result['named'])} "
                  f"{'ok' if is_right and is_same else 'OTHER'}")
    print(f"leaks: {right} of {len(cases_a.S)} as labelled, {same} as their snapshots")


def programs(out):
    done = run(OUT_OF_MEMORY, f"{out}/oom.gpuheap")
    print("oom:", done.stdout.replace("\n", " "), "| stderr:", done.stderr.strip().replace("\n", " / ")[:400])
    script = f"{out}/plain.py"
    open(script, "w").write(PLAIN)
    done = subprocess.run([sys.executable, script], env={**os.environ, "GPUHEAP_RECORD": f"{out}/env.gpuheap"},
                          capture_output=True, text=True)
    print("env:", done.returncode, os.path.exists(f"{out}/env.gpuheap"), done.stderr[-300:])
    done = subprocess.run([sys.executable, "-m", "gpuheap", "record", "-o", f"{out}/cli.gpuheap", script],
                          capture_output=True, text=True)
    print("command:", done.returncode, os.path.exists(f"{out}/cli.gpuheap"), done.stderr[-300:])
    for name in ("env", "cli"):
        code = ("import gpuheap, sys; r = gpuheap.explain(sys.argv[1]); print(r['verdict']['headline'], '|', "
                "r['source']['complete'], [c['rule'] for c in r['classes']], r['source']['notes'])")
        print(f"  {name}:", run(code, f"{out}/{name}.gpuheap").stdout.strip())
    for name, code in (("kept", KEPT.format(kind="llama")), ("activations", NAMED.format(kind="bert"))):
        print(f"{name}: {run(code, f'{out}/{name}.gpuheap').stdout.strip()}")
    done = run(KILLED, f"{out}/killed.gpuheap")
    code = ("import gpuheap, sys; r = gpuheap.explain(sys.argv[1]); "
            "print(r['source']['events'], 'events', r['verdict']['headline'])")
    print("killed:", done.returncode, run(code, f"{out}/killed.gpuheap").stdout.strip())


def cost(out):
    for kind, inner, turns in (("llama", 3, 5), ("bert", 5, 3)):
        done = run(COST.format(kind=kind, inner=inner, turns=turns), f"{out}/{kind}.gpuheap")
        print(f"cost {kind}: {done.stdout.strip()}")


main()
