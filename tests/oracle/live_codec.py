# SPDX-License-Identifier: MIT
"""kvs_codec_encode and _decode against mx.quantize and mx.dequantize on fresh input.

Bits must be the same, those of NaNs included.
"""

import mlx.core as mx
import numpy as np

import kvs

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
WIDTH = 128
MX = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def to_mx(a, kind):
    """Bits as an array of `kind`."""
    return mx.array(a).view(MX[kind])


def bits_of(a):
    return np.array(a.view(mx.uint32 if a.itemsize == 4 else mx.uint16))


def typed(x, kind):
    """float32 values rounded to `kind`, as bits."""
    with np.errstate(all="ignore"):
        return bits_of(mx.array(np.ascontiguousarray(x, np.float32)).astype(MX[kind]))


def is_nan(a, kind):
    inf = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}[kind]
    return (a & (0x7FFFFFFF if kind == "f32" else 0x7FFF)) > inf


def block_draws(rng, n, low, high):
    """One power of ten a 32-block, [n, WIDTH]."""
    return np.repeat(10.0 ** rng.uniform(low, high, (n, WIDTH // 32)), 32, axis=1)


def draw(rng, kind, n):
    """n rows of WIDTH values of many sorts, as bits."""
    normal = rng.standard_normal((n, WIDTH), np.float32)
    uniform = rng.random((n, WIDTH), np.float32)
    out = np.array(normal)
    info = {"f32": (-149, 127), "f16": (-24, 15), "bf16": (-133, 127)}[kind]
    sort = rng.integers(0, 20, n)

    def rows(*numbers):
        return np.isin(sort, numbers)

    with np.errstate(all="ignore"):
        r = rows(6, 7, 8)
        out[r] *= block_draws(rng, r.sum(), -6, 4)
        r = rows(9)
        out[r] = normal[r] * 0.01 + block_draws(rng, r.sum(), -2, 3)
        r = rows(10)
        sign = np.where(rng.random((r.sum(), 1)) < 0.5, -1, 1)
        out[r] = (uniform[r] + rng.uniform(0, 2, (r.sum(), 1))) * sign
        r = rows(11)
        sign = np.where(rng.random((r.sum(), 1)) < 0.5, -1, 1)
        out[r] = block_draws(rng, r.sum(), -8.5, 4) * sign
        r = rows(12, 13)
        step = 2.0 ** rng.integers(-6, 4, (r.sum(), 1))
        out[r] = rng.integers(-40, 41, (r.sum(), WIDTH)) * step
        r = rows(14)
        out[r] = np.where(uniform[r] < 0.03, normal[r] * 100, 0)
        r = rows(15)
        out[r] = rng.integers(-400, 401, (r.sum(), WIDTH)) * 2.0 ** info[0]
        r = rows(16)
        out[r] = np.ldexp(normal[r], rng.integers(info[0], info[1], (r.sum(), WIDTH)))
        r = rows(17)
        special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], (r.sum(), WIDTH))
        out[r] = np.where(uniform[r] < 0.02, special, normal[r])
        r = rows(18)
        symmetric = rng.integers(-3, 4, (r.sum(), WIDTH)) * rng.uniform(0, 2, (r.sum(), 1))
        out[r] = symmetric
    x = typed(out, kind)
    r = rows(19)
    word = np.uint32 if kind == "f32" else np.uint16
    x[r] = rng.integers(0, np.iinfo(word).max, (r.sum(), WIDTH), word, endpoint=True)
    return x


class Tally:
    def __init__(self):
        self.compared = self.differ = 0

    def same(self, what, ours, theirs, kind, nan_bits):
        """ours and theirs: arrays of bits."""
        self.compared += ours.size
        if np.array_equal(ours, theirs):
            return
        if ours.shape != theirs.shape:
            raise SystemExit(f"{what}: shape {ours.shape} is {theirs.shape} in MLX")
        wrong = ours != theirs
        if not nan_bits:
            wrong &= ~(is_nan(ours, kind) & is_nan(theirs, kind))
        n = int(wrong.sum())
        if n:
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            print(f"{what}: {n} differ, first at {at}: {ours[at]:x}, MLX {theirs[at]:x}")
        self.differ += n


def check_encode(tally, ctx, kind, x, bits, group, name):
    codec = kvs.Codec(bits, 0, group, kvs.DTYPES[kind])
    theirs = mx.quantize(to_mx(x, kind), group, bits)
    ours = ctx.encode(x, codec.dtype, codec, WIDTH)
    what = f"{name} {kind} bits {bits} group {group}"
    words, scales, biases = (bits_of(a) for a in theirs)
    tally.same(f"{what} words", ours[0], words, "f32", True)
    tally.same(f"{what} scales", ours[1], scales, kind, True)
    tally.same(f"{what} biases", ours[2], biases, kind, True)
    y = ctx.decode((words, scales, biases), codec, WIDTH)
    expect = bits_of(mx.dequantize(*theirs, group, bits))
    tally.same(f"{what} decoded", y, expect, kind, True)


def check_decode(tally, ctx, rng, kind, bits, group, n, name):
    """Any words under any scales and biases."""
    codec = kvs.Codec(bits, 0, group, kvs.DTYPES[kind])
    words = rng.integers(0, 2**32, (n, WIDTH * bits // 32), np.uint32)
    scales, biases = (draw(rng, kind, n)[:, : WIDTH // group].copy() for _ in range(2))
    planes = mx.array(words), to_mx(scales, kind), to_mx(biases, kind)
    expect = bits_of(mx.dequantize(*planes, group, bits))
    y = ctx.decode((words, scales, biases), codec, WIDTH)
    tally.same(f"{name} {kind} bits {bits} group {group} any planes", y, expect, kind, True)


def run(library, rng, values):
    """At least `values` encoded and decoded values for each type, width and group."""
    tally = Tally()
    n_rows = -(-values // WIDTH)
    full, ref = kvs.Context(library), kvs.Context(library, kvs.TIER_ALL)
    for kind in MX:
        done = 0
        while done < n_rows:
            n = min(16384, n_rows - done)
            x = draw(rng, kind, n)
            for bits in BITS:
                for group in GROUPS:
                    check_encode(tally, full, kind, x, bits, group, "tiers")
                    few = np.ascontiguousarray(x[: n // 32 + 1])
                    check_encode(tally, ref, kind, few, bits, group, "reference")
                    check_decode(tally, full, rng, kind, bits, group, n // 16 + 1, "tiers")
            done += n
    full.close()
    ref.close()
    print(
        f"codec: {n_rows * WIDTH} values for each of {len(MX) * len(BITS) * len(GROUPS)} forms; "
        f"{tally.compared} words, scales, biases and decoded values compared, {tally.differ} differ"
    )
    return tally.differ == 0 and tally.compared > 54 * values
