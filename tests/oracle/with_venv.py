#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""with_venv.py VENV REQUIREMENTS SCRIPT [ARG...]: runs SCRIPT with the packages of REQUIREMENTS.

The virtual environment VENV is made on the first run and again when REQUIREMENTS or Python changed;
it belongs in the build folder. If it cannot be made (no venv module, no package index within reach)
that is a SKIP, exit status 77, with the reason; what SCRIPT answers is passed on."""
import hashlib
import os
import shutil
import subprocess
import sys


def skip(why):
    print("SKIP: %s" % why)
    sys.exit(77)


def make(venv, requirements, want):
    shutil.rmtree(venv, ignore_errors=True)
    python = os.path.join(venv, "bin", "python")
    steps = [[sys.executable, "-m", "venv", venv],
             [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              "--retries", "1", "--timeout", "20", "--only-binary", ":all:", "-r", requirements]]
    for step in steps:
        try:
            done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=500)
        except (OSError, subprocess.TimeoutExpired) as e:
            skip("%s: %s" % (" ".join(step[1:4]), e))
        if done.returncode != 0:
            lines = done.stdout.strip().splitlines() or ["no output"]
            skip("%s failed: %s" % (" ".join(step[1:4]), lines[-1]))
    with open(os.path.join(venv, "made-for"), "w") as f:
        f.write(want)


def main():
    venv, requirements = os.path.abspath(sys.argv[1]), sys.argv[2]
    with open(requirements, "rb") as f:
        want = hashlib.sha256(f.read() + sys.version.encode()).hexdigest()
    try:
        with open(os.path.join(venv, "made-for")) as f:
            made_for = f.read()
    except OSError:
        made_for = None
    if made_for != want:
        make(venv, requirements, want)
    python = os.path.join(venv, "bin", "python")
    sys.stdout.flush()
    os.execv(python, [python] + sys.argv[3:])


if __name__ == "__main__":
    main()
