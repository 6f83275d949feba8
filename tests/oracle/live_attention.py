# SPDX-License-Identifier: MIT
"""Attention reads of every mode, the library's and mx.fast's with the same mask, each against a
float64 reference over the values it reads (bound.py has the tolerance)."""

import dataclasses

import mlx.core as mx
import numpy as np

import bound
import kvs


@dataclasses.dataclass
class Shape:
    heads: int
    kv_heads: int
    dim: int
    tokens: int
    rows: int
    mode: int
    bits: int
    window: int
    sinks: int


def draw_shape(rng):
    kv_heads = int(rng.integers(1, 4))
    tokens = int(rng.choice([1, 2, 15, 16, 17, 255, 256, 257, 513, rng.integers(1, 700)]))
    window = int(rng.integers(1, tokens + 2)) if rng.random() < 0.5 else 0
    return Shape(
        heads=kv_heads * int(rng.integers(1, 5)),
        kv_heads=kv_heads,
        dim=int(rng.choice([32, 64, 128])),
        tokens=tokens,
        rows=int(rng.integers(1, min(tokens, 9) + 1)),
        mode=int(rng.integers(0, 3)),
        bits=int(rng.choice([0, 2, 3, 4, 5, 6, 8])),
        window=window,
        sinks=int(rng.integers(0, 5)) if window else 0,
    )


def draw_qkv(rng, s):
    sharp = rng.choice([0.3, 1, 3])
    q = (sharp * rng.standard_normal((s.heads, s.rows, s.dim))).astype(np.float32)
    shape = (s.kv_heads, s.tokens + s.rows, s.dim)
    k, v = (rng.standard_normal(shape, np.float32) for _ in range(2))
    if rng.random() < 0.3:
        v += np.float32(rng.uniform(-4, 4))
    return q, k, v


def visible(s, flags):
    """[rows, keys], True where a query sees a key."""
    query = np.arange(s.tokens - s.rows, s.tokens)[:, None]
    key = np.arange(s.tokens)[None]
    if s.mode == kvs.BLOCK:  # the newest window - 1 stored tokens and the whole block
        key = np.arange(s.tokens + s.rows)[None]
        see = (key > s.tokens - s.window) | (s.window == 0) | (key < s.sinks)
        return np.repeat(see, s.rows, axis=0)
    see = (key <= query) & ((s.window == 0) | (key > query - s.window) | (key < s.sinks))
    if s.mode == kvs.BIDIRECTIONAL:
        flagged = flags.astype(bool)
        new = np.concatenate([np.zeros(s.tokens - s.rows, bool), flagged])
        see = see | (flagged[:, None] & new[None])
    return see


def read(ctx, s, q, k, v, scale, flags, logits):
    """(the library's output, the K and V it reads, their Codes or None)."""
    codec = kvs.Codec(s.bits, 0, 32 if s.bits else 0, kvs.F32)
    cache = kvs.Cache(ctx, s.kv_heads, (s.dim, s.dim), (codec, codec), kvs.GROW, s.window, s.sinks)
    stored = [np.ascontiguousarray(x[:, : s.tokens]) for x in (k, v)]
    block = [np.ascontiguousarray(x[:, s.tokens :]) for x in (k, v)]
    cache.append(*stored, kvs.F32)
    seen = (k, v) if s.mode == kvs.BLOCK else stored
    codes = (None, None)
    if s.bits:
        planes = [ctx.encode(x.reshape(-1, s.dim), kvs.F32, codec, s.dim) for x in seen]
        units = [(y.view(np.float32).astype(np.float64) for y in p[1:]) for p in planes]
        codes = [bound.Codes(*(y.reshape(*k.shape[:1], -1, s.dim // 32) for y in u)) for u in units]
        seen = [ctx.decode(p, codec, s.dim, True).reshape(x.shape) for p, x in zip(planes, seen)]
    try:
        block = (*block, kvs.F32) if s.mode == kvs.BLOCK else None
        y = cache.attend(q, kvs.F32, scale, s.mode, logits, flags, block)
    finally:
        cache.close()
    return y, seen, codes


def check(rng, ctx, s, worst):
    """Outputs compared; raises when a read is beyond its bound."""
    q, k, v = draw_qkv(rng, s)
    scale = float(np.float32(rng.uniform(0.5, 1.5) * s.dim**-0.5))
    flags = rng.integers(0, 2, s.rows).astype(np.uint8) if s.mode == kvs.BIDIRECTIONAL else None
    logits = rng.standard_normal(s.heads).astype(np.float32) if rng.random() < 0.3 else None
    y, (k, v), codes = read(ctx, s, q, k, v, scale, flags, logits)
    see = visible(s, flags)
    z = mx.fast.scaled_dot_product_attention(
        *(mx.array(x)[None] for x in (q, k, v)),
        scale=scale,
        mask=mx.array(see),
        sinks=None if logits is None else mx.array(logits),
    )
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wide += [scale, see, None if logits is None else logits.astype(np.float64)]
    positions = np.arange(see.shape[1])
    for who, got, rule, own in (
        ("ours", y, bound.ours, codes),
        ("mlx", np.array(z)[0], bound.mlx, (None, None)),
    ):
        exact = bound.reference(*wide, own, positions)
        error, rms = bound.judge(got, exact, *rule(len(positions), own[0] is not None))
        most = bound.limit(s.heads * s.rows, own[0] is not None)
        if not (error <= 1 and rms <= most):
            raise kvs.Refused(f"{who}: error / bound {error:.3g}, rms {rms:.3g} of {most:.3g}")
        worst[who][0] = max(worst[who][0], error)
        worst[who][1] += rms**2 * y.size
    return y.size


def run(library, rng, cases):
    contexts = [kvs.Context(library, 0, 2), kvs.Context(library, kvs.TIER_ALL)]
    worst = {"ours": [0.0, 0.0], "mlx": [0.0, 0.0]}
    outputs, good = 0, True
    for i in range(cases):
        shape = draw_shape(rng)
        try:
            outputs += check(rng, contexts[int(rng.random() < 0.2)], shape, worst)
        except kvs.Refused as e:
            print(f"read {i}: {e}: {shape}")
            good = False
    for ctx in contexts:
        ctx.close()
    rms = {who: (w[1] / max(outputs, 1)) ** 0.5 for who, w in worst.items()}
    good = good and all(r <= 1 for r in rms.values())
    shown = ", ".join(f"{who} {w[0]:.3f} {rms[who]:.3f}" for who, w in worst.items())
    print(
        f"attention: {outputs} outputs of {cases} reads; "
        f"error / bound at worst, rms / expected of all: {shown}"
    )
    return good and outputs > 0
