# SPDX-License-Identifier: MIT
"""The library against the installed MLX, mlx-lm and mlx-optiq, on fresh input.

    python live.py --library libkvstate.so --golden tests/golden [--seed N] [--values N]

Prints the seed, what was compared and how much; exits 1 on any difference.
"""

import argparse
import pathlib
import subprocess
import sys
import time

import mlx.core as mx
import numpy as np

import kvs
import live_attention
import live_codec
import live_state


def recorded(golden):
    """The golden files are what these packages record."""
    script = pathlib.Path(golden) / "record_mlx.py"
    run = subprocess.run(
        [sys.executable, script, pathlib.Path(golden) / "mlx", "--check"], check=False
    )
    return run.returncode == 0


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("--library", required=True)
    parse.add_argument("--golden", required=True)
    parse.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parse.add_argument("--values", type=float, default=1e7)
    parse.add_argument("--reads", type=int, default=1000)
    parse.add_argument("--caches", type=int, default=400)
    o = parse.parse_args()
    mx.set_default_device(mx.cpu)
    library = kvs.Library(o.library)
    print(f"seed {o.seed}, libkvstate {library.c.kvs_version().decode()}, mlx {mx.__version__}")
    sys.stdout.flush()
    good = recorded(o.golden)
    for i, (name, run, size) in enumerate(
        (
            ("codec", live_codec.run, (int(o.values),)),
            ("attention", live_attention.run, (o.reads,)),
            ("caches", live_state.run, (o.caches, 40)),
        )
    ):
        began = time.monotonic()
        good = run(library, np.random.default_rng([o.seed, i]), *size) and good
        print(f"  {name}: {time.monotonic() - began:.0f} s")
        sys.stdout.flush()
    print("all as MLX" if good else f"NOT as MLX; again with --seed {o.seed}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
