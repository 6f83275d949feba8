# SPDX-License-Identifier: MIT
"""memory.py KVSTATE MODEL: peak resident memory of a run is at most the mapped file, the planned
state and 32 MiB, for a prompt of about 600 tokens."""
import json
import os
import subprocess
import sys

import models

EXTRA = 32 << 20

os.environ["KVSTATE_NO_CACHE"] = "1"  # what is saved has tests of its own


def run(command):
    """What the command printed as JSON, and the greatest size it was resident with, in bytes."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    out = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, status
    return json.loads(out), usage.ru_maxrss * 1024


def main():
    kvstate, name = sys.argv[1:]
    model = models.find(name)
    if not model:
        return 77
    prompt = "The quick brown fox jumps over the lazy dog. " * 60
    bad = 0
    print("1..2")
    for i, kv in enumerate(("f16", "q4")):
        got, peak = run([kvstate, "run", "-m", model, "--raw", "-p", prompt, "-n", "4", "-q",
                         "--json", "--kv", kv])
        beyond = peak - os.path.getsize(model) - got["state_bytes"]
        ok = beyond <= EXTRA
        bad += not ok
        print("%s %d - kv %s: peak %.1f MiB: file %.1f, state %.1f, the rest %.1f"
              % ("ok" if ok else "not ok", i + 1, kv, peak / 2**20,
                 os.path.getsize(model) / 2**20, got["state_bytes"] / 2**20, beyond / 2**20))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
