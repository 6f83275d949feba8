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
report(a["base_perplexity"] == by["f32"]["perplexity"], "the base's own perplexity")
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
report(t["probe_chunks"] == 2 and t["check_chunks"] == 2 and t["scored"] == 2 * 31, "half of the windows check")
def tuned(*args):
    return json.loads(run("tune", "-m", "m.gguf", "-f", "text.txt", "-c", "64", "--json", "-q", *args).stdout)
# the last windows alone: what tune says of its plan is what perplexity measures there
words = open("text.txt").read()
u = tuned("--chunks", "3", "--check", "2", "--out", "u.plan", "--sensitivity", "s.txt")
report(u["probe_chunks"] == 1 and u["check_chunks"] == 2, "--check sets the windows that check")
whole = scored("-c", "64", "--chunks", "3", "--kv", "layers:u.plan", "--kl")["plans"][0]
first = scored("-c", "64", "--chunks", "1", "--kv", "layers:u.plan", "--kl")["plans"][0]
report(abs(first["kl_mean"] - u["tuned"]["kl_chosen_by"]) < 1e-7, "where it chose, the divergence is that of perplexity")
rest = (3 * whole["kl_mean"] - first["kl_mean"]) / 2
report(abs(rest - u["tuned"]["kl"]) < 1e-7, "where it checks, too: the windows that did not choose")
report(abs(u["kl_ratio"] - u["tuned"]["kl"] / u["q4"]["kl"]) < 1e-5, "ratio to q4")
report(u["tuned"]["kl_chosen_by"] < u["q4"]["kl_chosen_by"], "no farther from dense than q4, at its bits")
per_token = [scored("-c", "64", "--chunks", "1", "--kv", k)["plans"][0]["bytes_per_token"] for k in ("layers:u.plan", "q4")]
report([u["tuned"]["bytes"], u["q4"]["bytes"]] == per_token, "bytes are those of perplexity")
# what was measured once serves other goals
kept = open("s.txt").read()
v = tuned("--chunks", "3", "--check", "2", "--sensitivity", "s.txt")
report(v == u and open("s.txt").read() == kept, "sensitivities read back give the same plan")
k_of = lambda text: [l for l in text.split("\n") if l.startswith("0 k ")][0]
import re
open("s2.txt", "w").write(re.sub(r"(?m)^(\d+ k) .*$", r"\1 0x1p+3", kept))
w = tuned("--chunks", "3", "--check", "2", "--sensitivity", "s2.txt")
bits = lambda codec: int(codec.split(":")[0][1:])
bits_of = lambda side: [bits(l[side]["codec"]) for l in w["layers"]]
report(min(bits_of("k")) > 4 > max(bits_of("v")), "the sensitivities that are read decide")
m = tuned("--chunks", "3", "--check", "2", "--sensitivity", "s.txt", "--max-kl", "q4", "--out", "m.plan")
report(m["tuned"]["kl_chosen_by"] < m["kl_bound"] <= m["max_kl"] == m["q4"]["kl_chosen_by"],
       "--max-kl PLAN is kept to, with standard errors to spare")
report(m["tuned"]["bytes"] < m["q4"]["bytes"] and abs(m["saved"] - 1 + m["tuned"]["bytes"] / m["q4"]["bytes"]) < 1e-5, "and takes fewer bytes")
tight = m["max_kl"] / 10
n = tuned("--chunks", "3", "--check", "2", "--sensitivity", "s.txt", "--max-kl", repr(tight))
report(n["tuned"]["kl_chosen_by"] <= tight and n["tuned"]["bytes"] > m["tuned"]["bytes"], "--max-kl KL: less divergence, more bytes")
o = tuned("--chunks", "3", "--check", "2", "--sensitivity", "s.txt", "--max-kl", "k8v4")
report(o["tuned"]["kl_chosen_by"] <= o["k8v4"]["kl_chosen_by"], "a plan of two codecs as the goal")
plain = tuned("--chunks", "2", "--no-center", "--out", "plain.plan")
report(all(l["k"]["codec"][0] == "q" for l in plain["layers"]) and "c" not in open("plain.plan").read().split("\n", 1)[1],
       "--no-center: rotated keys")
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
def tune_refused(what, status, *args):
    refused(what, status, "tune", "-m", "m.gguf", "-f", "text.txt", "-c", "64", "--chunks", "3", "-q", *args)
tune_refused("one is to choose by", 2, "--check", "3")
tune_refused("a budget does not apply", 2, "--max-kl", "0.1", "--budget", "4")
tune_refused("above 0", 2, "--max-kl", "-1")
tune_refused("nonsense", 2, "--max-kl", "nonsense")
tune_refused("does not diverge", 2, "--max-kl", "f32", "--check", "2", "--sensitivity", "s.txt")
tune_refused("no plan found", 1, "--max-kl", "1e-11", "--check", "2", "--sensitivity", "s.txt")
tune_refused("another file, window, text or kind of keys", 3, "--check", "1", "--sensitivity", "s.txt")
tune_refused("kind of keys", 3, "--check", "2", "--sensitivity", "s.txt", "--no-center")
tune_refused("no file of sensitivities", 3, "--sensitivity", "text.txt")
for name, text in (("cut", kept[:-9]), ("more", kept + "1"), ("nan", kept.replace(k_of(kept), "0 k nan")),
                   ("negative", kept.replace(k_of(kept), "0 k -1")), ("two", kept.replace(k_of(kept), "0 k 1 2")),
                   ("none", kept.replace(k_of(kept), "0 k")), ("order", kept.replace("0 k ", "1 k ", 1)),
                   ("long", kept.replace(k_of(kept), "0 k " + "1" * 5000))):
    open("bad.txt", "w").write(text)
    tune_refused("not understood", 3, "--check", "2", "--sensitivity", "bad.txt")
os.chmod("s.txt", 0o444)
report(tuned("--chunks", "3", "--check", "2", "--sensitivity", "s.txt") == u, "sensitivities need not be writable")
tune_refused("can't be written", 3, "--sensitivity", "no/such/dir.txt")
refused("tune makes the plan", 2, "tune", "-m", "m.gguf", "-f", "text.txt", "--kv", "q4")
sys.exit(bad != 0)
P
exec python3 check.py "$kvstate"
