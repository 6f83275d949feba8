#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_hf.py LIBRARY: tiny random checkpoints written by mlx_lm, opened by the engine.

mlx_lm computes in float32 on the CPU with exactly the values that were saved. Compared:
  logits    over a prompt at once, then token by token past every window; dense caches within 2e-4
            of the greatest logit, quantised caches within QUANT, where a code may fall on the other
            side of a rounding boundary; the greatest logit equal where the runner-up is further away
            than the tolerance
  state     the keys and values that mlx_lm's caches were given go into caches of the library; every
            word, scale and bias has to be the same
"""
import pathlib
import shutil
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

import engine_lib
import hf_models
import kvs

DENSE = 2e-4
QUANT = 2e-2
PROMPT, TOTAL = 40, 96
failures = []


def report(good, text):
    print("%s %s" % ("ok" if good else "not ok", text), flush=True)
    if not good:
        failures.append(text)


class Recorder:
    """A cache of mlx_lm that remembers what it was given."""

    def __init__(self, cache):
        self.cache, self.given = cache, []

    def update_and_fetch(self, keys, values):
        self.given.append((np.array(keys)[0], np.array(values)[0]))
        return self.cache.update_and_fetch(keys, values)

    def __getattr__(self, name):
        return getattr(self.cache, name)


def run_mlx(model, tokens, caches):
    rows = [model(mx.array([tokens[:PROMPT]]), cache=caches)[0]]
    for t in tokens[PROMPT:]:
        rows.append(model(mx.array([[t]]), cache=caches)[0])
    return np.concatenate([np.array(r) for r in rows])


def compare(name, got, want, tolerance):
    if got.shape != want.shape or not np.isfinite(got).all():
        report(False, "%s: shape %s, %s wanted" % (name, got.shape, want.shape))
        return
    worst = np.abs(got - want).max() / np.abs(want).max()
    ordered = np.sort(want, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > 2 * tolerance * np.abs(want).max()
    same = got.argmax(1) == want.argmax(1)
    wrong = int((clear & ~same).sum())
    report(worst <= tolerance and wrong == 0 and clear.any(),
           "%s: greatest difference %.2e of %.0e, argmax differs in %d of %d clear rows"
           % (name, worst, tolerance, wrong, int(clear.sum())))


def bits_equal(a, b):
    b = np.array(b)
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def compare_state(name, ctx, recorders, window=0):
    """What mlx_lm's caches hold against caches of ours that were given the same."""
    units, good = 0, True
    for r in recorders:
        heads, dim = r.given[0][0].shape[0], r.given[0][0].shape[2]
        quant = isinstance(r.cache, QuantizedKVCache)
        codec = kvs.Codec(r.cache.bits, 0, r.cache.group_size, 0) if quant else kvs.Codec(0, 0, 0, 0)
        ring = isinstance(r.cache, RotatingKVCache)
        sinks = r.cache.keep if ring else 0
        kind = dict(layout=kvs.RING, window=r.cache.max_size - sinks, sinks=sinks,
                    max_block=PROMPT) if ring else {}
        ours = kvs.Cache(ctx, heads, (dim, dim), (codec, codec), **kind)
        for k, v in r.given:
            ours.append(np.ascontiguousarray(k), np.ascontiguousarray(v), kvs.F32)
        n = len(ours)
        for side, theirs in enumerate((r.cache.keys, r.cache.values)):
            if quant:
                for mine, plane in zip(ours.export(0, n)[side], theirs):
                    good &= bits_equal(mine, plane[0, :, :n])
                    units += mine.size
            elif ring:
                held = np.array(r.cache._temporal_order(theirs))[0]
                newest = held.shape[1] - sinks
                mine = [ours.export(0, sinks)[side][0]] if sinks else []
                mine.append(ours.export(n - newest, newest)[side][0])
                mine = np.concatenate(mine, axis=1)
                good &= bits_equal(mine, held)
                units += mine.size
            else:
                mine = ours.export(0, n)[side][0]
                good &= bits_equal(mine, theirs[0, :, :n])
                units += mine.size
        ours.close()
    report(good and units > 0, "%s: %d words of state equal" % (name, units))


def caches_of(model, kind):
    if kind == "model":
        made = model.make_cache() if hasattr(model, "make_cache") else [KVCache()
                                                                        for _ in model.layers]
    elif kind[0] == "quant":
        made = [QuantizedKVCache(kind[2], kind[1]) for _ in model.layers]
    else:
        made = [RotatingKVCache(kind[1], keep=4) for _ in model.layers]
    return [Recorder(c) for c in made]


def plan_of(kind):
    if kind == "model":
        return {}, DENSE
    if kind[0] == "quant":
        return {"kv": "affine%d:%d/f32" % (kind[1], kind[2])}, QUANT
    return {"window": kind[1] - 4, "sinks": 4, "max_block": PROMPT}, DENSE


def check(library, ctx, folder, name, config, kinds, **how):
    path = pathlib.Path(folder) / "model"
    shutil.rmtree(path, ignore_errors=True)
    model = hf_models.write(path, config, **how)
    rng = np.random.default_rng(7)
    tokens = [int(t) for t in rng.integers(0, config["vocab_size"], TOTAL)]
    for kind in kinds:
        label = "%s, %s" % (name, kind if kind == "model" else "%s %s" % (kind[0], kind[1:]))
        recorders = caches_of(model, kind)
        want = run_mlx(model, tokens, recorders)
        plan, tolerance = plan_of(kind)
        try:
            engine = engine_lib.Engine(library, str(path), **{"kv": "f32", **plan})
        except RuntimeError as e:
            if "is not used by architecture" in str(e) and "biases" in name:
                print("# %s: this engine has no such biases" % name)
            else:
                report(False, "%s: %s" % (label, e))
            continue
        got = engine.steps(tokens, PROMPT)
        engine.close()
        compare(label, got, want, tolerance)
        compare_state(label, ctx, recorders)


def families(library):
    """Those that this engine knows: asked, so that the test grows with the engine."""
    for name, config in hf_models.FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            hf_models.write(folder, config)
            try:
                engine_lib.Engine(library, folder).close()
            except RuntimeError as e:
                if "is not supported; supported" in str(e):
                    print("# %s: this engine has no such architecture" % name)
                    continue
            yield name, config


def main():
    mx.set_default_device(mx.cpu)
    library = sys.argv[1]
    ctx = kvs.Context(kvs.Library(library))
    quants = [("quant", 4, 32), ("quant", 4, 64), ("quant", 8, 32), ("quant", 8, 64)]
    with tempfile.TemporaryDirectory() as folder:
        for name, config in families(library):
            ring = [] if "gemma" in name else [("ring", 48)]
            for dtype, shards in (("f32", 1), ("bf16", 2), ("f16", 3)):
                check(library, ctx, folder, "%s %s in %d" % (name, dtype, shards), config,
                      ["model"] + ring, dtype=dtype, shards=shards)
            for bits, group, dtype in ((4, 64, "bf16"), (8, 64, "f16"), (4, 32, "f32"),
                                       (8, 32, "bf16"), (2, 32, "f32"), (3, 64, "f16"),
                                       (5, 64, "bf16"), (6, 32, "f32"), (4, 128, "f16")):
                kinds = ["model"] + (quants + ring if bits in (4, 8) and group == 64 else [])
                check(library, ctx, folder, "%s %s %d bits of %d" % (name, dtype, bits, group),
                      config, kinds, dtype=dtype, bits=bits, group=group)
        for name, config, how in hf_models.SPECIAL:
            check(library, ctx, folder, name, config, ["model"], **how)
    ctx.close()
    print("%d failures" % len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
