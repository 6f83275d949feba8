# SPDX-License-Identifier: MIT
"""Makes the environment that the live oracle test needs, once a build folder, and runs it there.

    python run.py REQUIREMENTS VENV [arguments of live.py ...]
    python run.py REQUIREMENTS VENV --run SCRIPT [its arguments ...]

Exits 77 and says why where the packages cannot be had: no network, no pip, another platform.
mlx-optiq is installed without its dependencies, of which the tests touch none.
"""

import pathlib
import platform
import subprocess
import sys

SKIP = 77


def skip(reason):
    print(f"SKIP: {reason}")
    sys.exit(SKIP)


def must(command, what):
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        skip(f"{what}: {e}")
    if run.returncode:
        lines = (run.stderr or run.stdout).strip().splitlines() or ["no message"]
        skip(f"{what}: {lines[-1]}")


def install(requirements, venv):
    """Leaves a copy of the requirements behind, which tells that the environment is whole."""
    done = venv / "installed.txt"
    wanted = requirements.read_text()
    python = venv / "bin" / "python"
    if done.exists() and done.read_text() == wanted:
        return python
    must([sys.executable, "-m", "venv", "--clear", venv], "no virtual environment")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--timeout", "20", "--retries", "1"]
    alone = [line for line in wanted.split() if line.startswith("mlx-optiq")]
    must([*pip, *(line for line in wanted.split() if line not in alone)], "pip cannot install mlx")
    must([*pip, "--no-deps", *alone], "pip cannot install mlx-optiq")
    done.write_text(wanted)
    return python


def main():
    requirements, venv = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    if sys.platform != "linux" or platform.machine() != "x86_64":
        skip("the oracle is MLX's CPU backend for Linux on x86-64")
    python = install(requirements, venv)
    script, args = pathlib.Path(__file__).resolve().parent / "live.py", sys.argv[3:]
    if args[:1] == ["--run"]:
        script, args = args[1], args[2:]
    sys.exit(subprocess.run([python, "-B", script, *args], check=False).returncode)


if __name__ == "__main__":
    main()
