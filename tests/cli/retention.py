#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""retention.py KVSTATE [TRACE]: the default policy against LRU on made-up traces of eight kinds, and on
the Mooncake conversation trace (.jsonl or .jsonl.gz) if its path is given. TAP."""
import gzip
import io
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trace_gen  # noqa: E402

USES = 60000
CAPACITIES = (300, 1000, 3000, 10000)
# Below LRU at most. With uniform requests all that is kept is worth the same, so that policies differ
# by luck alone: 10000 requests of 6 blocks, a third of which only one of two caches holds, give 0.005.
NOISE = {"uniform": 0.01}
NOISE_ELSE = 0.002
# Hit rate above LRU's at some capacities: four fifths of what was measured.
GAINS = {"documents": {1000: 0.088, 3000: 0.058}, "chats": {1000: 0.1, 3000: 0.068}, "scans": {3000: 0.007},
         "agents": {300: 0.16, 1000: 0.075}, "phases": {300: 0.022, 1000: 0.008},
         "cycle": {1000: 0.064, 3000: 0.2}}
# On Mooncake's trace, half a point under what docs/retention.md says.
MOONCAKE = {1000: 0.081, 3000: 0.138, 10000: 0.233, 30000: 0.330, 50000: 0.352}

count = 0
failed = False


def report(ok, name):
    global count, failed
    count += 1
    failed = failed or not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}")


def simulate(kvstate, trace, capacities):
    blocks = ",".join(str(c) for c in capacities)
    done = subprocess.run([kvstate, "cache", "simulate", "-", "--json", "--blocks", blocks],
                          input=trace, stdout=subprocess.PIPE, check=True)
    result = json.loads(done.stdout)
    return {p: dict(zip(capacities, result[p])) for p in ("lru", "density", "bound")}


def check(name, rate, noise, least):
    for c in rate["lru"]:
        lru, ours, bound = rate["lru"][c], rate["density"][c], rate["bound"][c]
        want = max(lru - noise, least(c, lru))
        report(want <= ours <= bound + 1e-9, f"{name} at {c}: {want:.4f} <= {ours:.4f} <= {bound:.4f}")


def main():
    kvstate = sys.argv[1]
    for kind in trace_gen.KINDS:
        out = io.StringIO()
        trace_gen.write(kind, USES, out)
        gain = GAINS.get(kind, {})
        check(kind, simulate(kvstate, out.getvalue().encode(), CAPACITIES),
              NOISE.get(kind, NOISE_ELSE), lambda c, lru: lru + gain[c] if c in gain else 0.0)
    if len(sys.argv) > 2 and sys.argv[2]:
        path = sys.argv[2]
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as f:
            check("mooncake", simulate(kvstate, f.read(), tuple(MOONCAKE)), 0.0, lambda c, lru: MOONCAKE[c])
    else:
        print("# the Mooncake trace was not given (cmake -DKVS_TRACE=FILE)")
    print(f"1..{count}")
    return failed


sys.exit(main())
