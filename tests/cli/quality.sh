#!/bin/sh
# SPDX-License-Identifier: MIT
# quality.sh KVSTATE TINY_MODEL: perplexity and tune on a tiny model: figures that must agree, files
# that must be read back, what is refused.
set -u
kvstate=$1
tiny_model=$2
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1

"$tiny_model" llama m.gguf wide || exit 1
i=0
while [ $i -lt 300 ]; do
    printf 'one two three %d four five six seven\n' $i
    i=$((i + 1))
done >text.txt
cat >check.py <<'P'
import json, subprocess, sys, xml.dom.minidom
exe = sys.argv[1]
bad = 0
def report(ok, what):
    global bad
    bad += not ok
    print(("ok - " if ok else "not ok - ") + what)
def run(*args, want=0):
    p = subprocess.run([exe, *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if p.returncode != want:
        report(False, f"{args}: status {p.returncode}, wanted {want}: {p.stderr[-300:]}")
    return p
def scored(*args):
    return json.loads(run("perplexity", "-m", "m.gguf", "-f", "text.txt", "--json", "-q", *args).stdout)

a = scored("-c", "64", "--chunks", "3", "--kv", "f32,f16,q8,q4,affine2", "--kl", "--svg", "p.svg")
by = {p["kv"]: p for p in a["plans"]}
report(a["scored"] == 3 * (64 - 32 - 1), "half of each window is scored, but for its last token")
report(by["f32"]["kl_mean"] == 0 and by["f32"]["same_top"] == 1, "a plan does not diverge from itself")
report(by["q8"]["kl_mean"] < by["q4"]["kl_mean"] < by["affine2"]["kl_mean"], "fewer bits diverge more")
report(by["f16"]["bytes_per_token"] * 2 == by["f32"]["bytes_per_token"], "bytes a token")
report(all(p["kl_median"] <= p["kl_99"] <= p["kl_max"] for p in a["plans"]), "percentiles in order")
b = scored("-c", "64", "--chunks", "3", "--kv", "q4", "--kl-base", "f32", "-t", "1", "-b", "7")
c = scored("-c", "64", "--chunks", "3", "--kv", "q4", "-isa", "ref")
report(b["plans"][0]["kl_mean"] == by["q4"]["kl_mean"], "threads, block and company do not show")
report(c["plans"][0]["perplexity"] == by["q4"]["perplexity"], "kernels do not show")
t = run("tune", "-m", "m.gguf", "-f", "text.txt", "-c", "64", "--chunks", "4", "--out", "t.plan",
        "--svg", "t.svg", "--json", "-q")
t = json.loads(t.stdout)
report(t["tuned"]["bits"] <= 4.5 and len(t["layers"]) > 0, "tune stays within the budget")
d = scored("-c", "64", "--chunks", "4", "--kv", "layers:t.plan", "--kl")
report(d["plans"][0]["kl_mean"] > 0, "the plan that tune wrote can be read")
line = open("t.plan").read().split("\n")[1:-1]
e = scored("-c", "64", "--chunks", "4", "--kv", "layers=" + ";".join(line), "--kl")
report(e["plans"][0]["perplexity"] == d["plans"][0]["perplexity"], "its lines on the command line are the same plan")
less = run("tune", "-m", "m.gguf", "-f", "text.txt", "-c", "64", "--chunks", "2", "--budget", "3", "--json", "-q")
report(json.loads(less.stdout)["tuned"]["bits"] <= 3.0, "a smaller budget")
for name in ("p.svg", "t.svg"):
    report(xml.dom.minidom.parse(name).documentElement.tagName == "svg", name + " is SVG")
run("bench", "-m", "m.gguf", "-p", "0", "-n", "4", "-d", "0,16", "--kv", "f16,q8", "--svg", "b.svg", "-q", "-r", "1")
report("polyline" in open("b.svg").read(), "speed by depth is plotted")
import os
def saved():
    p = subprocess.run([exe, "run", "-m", "m.gguf", "--raw", "-p", "one two " * 12, "-n", "2", "--temp", "0", "--kv", "c4",
                        "--cache-dir", "saved"], capture_output=True, text=True,
                       env={**os.environ, "KVSTATE_NO_CACHE": "0"})
    return p.stdout, p.returncode == 0 and "from disk" in p.stderr, p.stderr
first, warm, log = saved()
again, warm_again, log = saved()
report(not warm and warm_again and first == again, f"centred keys are saved: {log[-120:]}")
def refused(what, status, *args):
    p = run(*args, want=status)
    report(what in p.stderr, f"refused: {what}: {p.stderr.strip()[-120:]}")
refused("which text", 2, "perplexity", "-m", "m.gguf")
refused("fewer than one window", 3, "perplexity", "-m", "m.gguf", "-f", "text.txt", "-c", "100000")
refused("at least 4", 2, "perplexity", "-m", "m.gguf", "-f", "text.txt", "-c", "2")
refused("nowhere.txt", 3, "perplexity", "-m", "m.gguf", "-f", "nowhere.txt")
refused("budget", 2, "tune", "-m", "m.gguf", "-f", "text.txt", "-c", "64", "--budget", "2", "-q")
refused("tune makes the plan", 2, "tune", "-m", "m.gguf", "-f", "text.txt", "--kv", "q4")
sys.exit(bad != 0)
P
exec python3 check.py "$kvstate"
