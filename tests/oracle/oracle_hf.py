#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_hf.py LIBRARY: tiny random checkpoints written by mlx_lm, opened by the engine.

mlx_lm computes in float32 on the CPU with exactly the values that were saved. Compared:
  logits    over a prompt at once, then token by token past every window; within DENSE of the greatest
            logit, and the greatest logit equal where the runner-up is further away than that
  codes     of quantised caches: where a number is at the boundary of two codes, any difference, however
            small, makes it the other one, and that is a step of 4 bits to all layers and tokens behind
            it. So mlx_lm reads the engine's codes, and the logits are within SIXTEEN: the engine makes
            integers of 16 bits of queries and weights (docs/numerics.md), 2^8 times as coarse as f32,
            which leads to some 4e-6. What mlx_lm would have stored itself may be another step in at
            most RARE of all elements: either is within half a step of the number, where it is cut within
            one, so STEPS apart at most
  state     the keys and values that mlx_lm's caches were given go into caches of the library; every
            word, scale and bias has to be the same
"""
import ctypes
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
SIXTEEN = 1e-3
RARE, STEPS = 1e-2, 1.5
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


class Session(engine_lib.Engine):
    def codes(self, tokens, kind, recorders):
        """What the layers' caches hold of each token: [layer][side][plane][heads, tokens, units]."""
        self.lib.kvs_session_cache.restype = ctypes.c_void_p
        held = [([], []) for _ in recorders]
        self._call("kvs_session_sync", self.session, None, ctypes.c_size_t(0), None)
        for at, token in enumerate(tokens):  # at once: a window loses what it no longer sees
            self._call("kvs_session_append", self.session, (ctypes.c_int32 * 1)(token),
                       ctypes.c_size_t(1))
            cache = ctypes.c_void_p(self.lib.kvs_session_cache(self.session))
            for layer, recorder in enumerate(recorders):
                planes = kvs.sized(kvs.Planes)
                for field, x, sides in zip((planes.k, planes.v), recorder.given[0], held[layer]):
                    units = [x.shape[2] * kind[1] // 32] + [x.shape[2] // kind[2]] * 2
                    one = [np.empty((x.shape[0], 1, n), t)
                           for n, t in zip(units, (np.uint32, np.float32, np.float32))]
                    for i, plane in enumerate(one):
                        field[i] = plane.ctypes.data
                    sides.append(one)
                self._call("kvs_cache_export", cache, ctypes.c_uint32(layer), ctypes.c_int64(at),
                           ctypes.c_uint64(1), ctypes.byref(planes))
        return [[[np.concatenate(p, 1) for p in zip(*side)] for side in sides] for sides in held]


class Given(QuantizedKVCache):
    """A cache of mlx_lm that holds codes of ours, whatever it is asked to store."""

    def __init__(self, group, bits, sides):
        super().__init__(group, bits)
        self.sides = [[mx.array(p)[None] for p in side] for side in sides]
        self.steps, self.differ, self.elements = 0.0, 0, 0

    def values_of(self, planes):
        return np.array(mx.dequantize(*planes, group_size=self.group_size, bits=self.bits))

    def update_and_fetch(self, keys, values):
        at, self.offset = self.offset, self.offset + keys.shape[2]
        for own, side in zip((keys, values), self.sides):
            ours = [p[:, :, at:self.offset] for p in side]
            theirs = mx.quantize(own, group_size=self.group_size, bits=self.bits)
            step = np.repeat(np.abs(np.array(ours[1])), self.group_size, -1)
            off = np.abs(self.values_of(ours) - self.values_of(theirs)) / step
            self.steps = float(np.maximum(self.steps, off.max()))  # a NaN stays
            self.differ += int((off > 0.5).sum())
            self.elements += off.size
        return [tuple(p[:, :, : self.offset] for p in side) for side in self.sides]


def compare_codes(label, model, tokens, kind, engine, got, recorders):
    caches = [Given(kind[2], kind[1], sides) for sides in engine.codes(tokens, kind, recorders)]
    compare(label, got, run_mlx(model, tokens, caches), SIXTEEN)
    steps = float(np.max([c.steps for c in caches]))
    share = sum(c.differ for c in caches) / sum(c.elements for c in caches)
    report(steps <= STEPS and share <= RARE,
           "%s: %.5f of the elements differ, by %.3f steps at most" % (label, share, steps))


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
        return {}
    if kind[0] == "quant":
        return {"kv": "affine%d:%d/f32" % (kind[1], kind[2])}
    return {"window": kind[1] - 4, "sinks": 4, "max_block": PROMPT}


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
        try:
            engine = Session(library, str(path), **{"kv": "f32", **plan_of(kind)})
        except RuntimeError as e:
            if "is not used by architecture" in str(e) and "biases" in name:
                print("# %s: this engine has no such biases" % name)
            else:
                report(False, "%s: %s" % (label, e))
            continue
        got = engine.steps(tokens, PROMPT)
        if kind[0] == "quant":
            compare_codes(label, model, tokens, kind, engine, got, recorders)
        else:
            compare(label, got, want, DENSE)
        engine.close()
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
