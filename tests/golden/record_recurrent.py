# SPDX-License-Identifier: MIT
"""Records what mlx-lm's recurrent layers answer on the CPU, for tests/diff/golden_recurrent.c.

    python record_recurrent.py FILE           writes FILE (tests/golden/recurrent.kvg)
    python record_recurrent.py FILE --check   records again; every value within 1e-5 of what is there

Unlike record_mlx.py the bytes may differ between versions: matrix products add in another order. All
inputs come from seeds (`draw`); only answers are stored. README.md has the names.
"""

import pathlib
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.gated_delta import gated_delta_update
from mlx_lm.models.ssm import ssm_update

from record_mlx import Container, draw, versions

TOKENS = 12
CUT = 5  # a second call continues after that many tokens


def inputs(seed, *shape, scale=1.0):
    return mx.array(draw(seed, shape) * np.float32(scale))


def delta(out):
    heads, groups, value, key = 4, 2, 16, 32
    q = inputs(1, 1, TOKENS, groups, key, scale=0.25)
    k = inputs(2, 1, TOKENS, groups, key, scale=0.25)
    v = inputs(3, 1, TOKENS, heads, value)
    a = inputs(4, 1, TOKENS, heads)
    b = inputs(5, 1, TOKENS, heads)
    a_log = inputs(6, heads, scale=0.5)
    dt_bias = inputs(7, heads, scale=0.5)
    ys, state = [], None
    for part in (slice(0, CUT), slice(CUT, TOKENS)):
        rows = [x[:, part] for x in (q, k, v, a, b)]
        y, state = gated_delta_update(*rows, a_log, dt_bias, state, use_kernel=False)
        ys.append(y)
    out.array("delta/y", "f32", mx.concatenate(ys, axis=1), (TOKENS, heads, value))
    out.array("delta/state", "f32", state, (heads, value, key))


def ssd(out):
    heads, groups, dim, width = 4, 2, 24, 16
    x = inputs(11, 1, TOKENS, heads, dim)
    b = inputs(12, 1, TOKENS, groups, width)
    c = inputs(13, 1, TOKENS, groups, width)
    dt = inputs(14, 1, TOKENS, heads)
    a_log = inputs(15, heads, scale=0.5)
    dt_bias = inputs(16, heads, scale=0.5)
    d = inputs(17, heads)
    ys, state = [], None
    for part in (slice(0, CUT), slice(CUT, TOKENS)):
        y, state = ssm_update(
            x[:, part], a_log, b[:, part], c[:, part], d, dt[:, part], dt_bias, state, (0.05, 1.5)
        )
        ys.append(y)
    out.array("ssd/y", "f32", mx.concatenate(ys, axis=1), (TOKENS, heads, dim))
    out.array("ssd/state", "f32", state, (heads, dim, width))


def conv(out):
    channels, taps = 40, 4
    x = inputs(21, 1, TOKENS, channels)
    weight = inputs(22, taps, channels)
    bias = inputs(23, channels)
    padded = mx.concatenate([mx.zeros((1, taps - 1, channels)), x], axis=1)
    y = mx.conv1d(padded, weight.T[..., None], groups=channels) + bias
    out.array("conv/y", "f32", nn.silu(y), (TOKENS, channels))


def main():
    mx.set_default_device(mx.cpu)
    path = pathlib.Path(sys.argv[1])
    out = Container()
    for part in (delta, ssd, conv):
        part(out)
    made = out.bytes()
    if sys.argv[2:] != ["--check"]:
        path.write_bytes(made)
        print(versions())
        return 0
    there = path.read_bytes()
    same = len(there) == len(made)
    at = 8
    while same and at < len(made):
        same = made[at : at + 56] == there[at : at + 56]  # all but the checksum
        n = 4 * int(np.prod(np.frombuffer(made, np.uint32, 3, at + 44)))
        got, want = (np.frombuffer(x, np.float32, n // 4, at + 64) for x in (made, there))
        same = same and bool(np.abs(got - want).max() < 1e-5)
        at += 64 + (n + 7) // 8 * 8
    print(f"{versions()}: {'the same within 1e-5' if same else 'DIFFERS'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
