# SPDX-License-Identifier: MIT
"""kvs_cache against live mlx-lm and mlx-optiq caches under random operations.

The order in which a cache of the oracle hands out rows is learnt from a twin that is fed position
numbers, so nothing of its index rules is repeated here: row c of what attention is given has to be
the bytes of position twin[c], as the library exports them.
"""

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import quantized_scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from optiq.runtime.kv.rotating import RotatingQuantizedKVCache, patch_rotating_to_quantized

import bound
import kvs
import live_codec
from live_codec import MX, bits_of, is_nan, to_mx

OPS = ("one", "many", "trim", "mask", "load", "convert")
ODDS = (0.4, 0.2, 0.2, 0.12, 0.05, 0.03)
LAYERS = ("kv", "quant", "ring", "ringq")


class Failure(Exception):
    pass


def check(good, what):
    if not good:
        raise Failure(what)


def planes_of(x):
    return [np.array(p) if p.dtype == mx.uint32 else bits_of(p) for p in _list(x)]


def _list(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


class Pair:
    """A cache of the oracle, its twin, and as many caches of ours as the batch has rows."""

    def __init__(self, rng, library, ctx, totals):
        self.rng, self.lib, self.totals, self.log = rng, library, totals, []
        self.sort = str(rng.choice(LAYERS))
        self.kind = str(rng.choice(list(MX)))
        self.dtype = kvs.DTYPES[self.kind]
        self.batch, self.heads = int(rng.integers(1, 3)), int(rng.integers(1, 4))
        group = int(rng.choice([32, 64]))
        bits = int(rng.choice([2, 4, 8] if group == 32 else [2, 3, 4, 5, 6, 8]))
        self.form = (bits, group)
        # 64 is the one width at which the oracle sizes words of 3, 5, 6 bits rightly
        self.dims = (64, 64) if bits in (3, 5, 6) else tuple(rng.choice([64, 128], 2).tolist())
        self.size = int(rng.choice([1, 2, 3, 7, 16, 17, 33, 100, 300]))
        self.keep = int(rng.integers(0, min(self.size, 5))) if rng.random() < 0.5 else 0
        self.block = int(rng.integers(2, 2 * min(self.size, 60) + 4))
        ring = self.sort in ("ring", "ringq")
        self.window = self.size - self.keep if ring else 0
        self.theirs = {
            "kv": lambda: KVCache(),
            "quant": lambda: QuantizedKVCache(group, bits),
            "ring": lambda: RotatingKVCache(self.size, self.keep),
            "ringq": lambda: RotatingQuantizedKVCache(self.size, self.keep, group, bits),
        }[self.sort]()
        self.twin = RotatingKVCache(self.size, self.keep) if ring else KVCache()
        quantised = self.sort in ("quant", "ringq")
        codec = (
            kvs.Codec(bits, 0, group, self.dtype) if quantised else kvs.Codec(0, 0, 0, self.dtype)
        )
        self.ours = [
            kvs.Cache(
                ctx, self.heads, self.dims, (codec, codec), kvs.RING if ring else kvs.GROW,
                self.window, self.keep if ring else 0, self.block if ring else 0,
            )
            for _ in range(self.batch)
        ]  # fmt: skip
        self.ring, self.loaded = ring, False

    def close(self):
        for c in self.ours:
            c.close()

    def describe(self):
        return (
            f"{self.sort} {self.kind} batch {self.batch} heads {self.heads} dims {self.dims} "
            f"form {self.form} size {self.size} keep {self.keep} block {self.block}: "
            f"{' '.join(self.log)}"
        )

    def tensor(self, n, dim):
        rows = self.batch * self.heads * n
        if self.rng.random() < 0.3:
            x = live_codec.draw(self.rng, self.kind, rows)[:, :dim].copy()
        else:
            x = live_codec.typed(self.rng.standard_normal((rows, dim), np.float32), self.kind)
        return x.reshape(self.batch, self.heads, n, dim)

    def rows(self, order):
        """Exported planes of the positions, [side][plane] of [batch, heads, n, units]."""
        sides = [[], []]
        for cache in self.ours:
            oldest, end = max(cache.oldest(), 0), len(cache)
            sinks = min(self.keep, oldest) if self.ring else 0
            parts = [cache.export(0, sinks)] if sinks else []
            parts.append(cache.export(oldest, end - oldest))
            where = [p if p < sinks else p - oldest + sinks for p in order]
            check(all(p < sinks or p >= oldest for p in order), "a row is no longer stored")
            for side in range(2):
                planes = zip(*(part[side] for part in parts))
                sides[side].append([np.concatenate(p, 1)[:, where] for p in planes])
        return [[np.stack(p) for p in zip(*side)] for side in sides]

    def compare(self, order, keys, values, what):
        if len(order) == 0:
            return
        for ours, theirs, name in zip(self.rows(order), (keys, values), "KV"):
            theirs = planes_of(theirs)
            check(len(ours) == len(theirs), f"{what}: planes of {name}")
            for i, (a, b) in enumerate(zip(ours, theirs)):
                check(a.shape == b.shape, f"{what}: {name} plane {i} {a.shape}, oracle {b.shape}")
                at = np.argwhere(a != b)
                if len(at):
                    first = tuple(int(x) for x in at[0])
                    pair = f"{a[first]:x}, oracle {b[first]:x}"
                    check(False, f"{what}: {name} plane {i}: {len(at)} differ, {first}: {pair}")
                self.totals["units"] += a.size

    def live(self):
        """Rows held by the oracle, oldest first, and their positions."""
        c, t = self.theirs, self.twin
        if c.keys is None:
            return [], [], []
        if self.ring:
            order = t._temporal_order(t.keys)
            return (
                order[0, 0, :, 0].tolist(),
                c._temporal_order(c.keys),
                c._temporal_order(c.values),
            )
        cut = lambda x: [p[..., : c.offset, :] for p in _list(x)]  # noqa: E731
        return list(range(c.offset)), cut(c.keys), cut(c.values)

    def compare_state(self):
        for c in self.ours:
            check(len(c) == self.theirs.offset, f"length {len(c)}, oracle {self.theirs.offset}")
        order, keys, values = self.live()
        self.compare([int(p) for p in order], keys, values, "held")
        self.totals["states"] += 1

    def update(self, n):
        self.log.append(f"+{n}")
        at = self.theirs.offset
        k, v = (self.tensor(n, dim) for dim in self.dims)
        mask = self.theirs.make_mask(n, window_size=None, return_array=False)
        tag = mx.arange(at, at + n, dtype=mx.float32).reshape(1, 1, n, 1)
        order = self.twin.update_and_fetch(tag, tag)[0][0, 0, :, 0].tolist()
        fetched = self.theirs.update_and_fetch(to_mx(k, self.kind), to_mx(v, self.kind))
        for b, cache in enumerate(self.ours):
            first = 0
            while first < n:  # as many appends as it pleases
                m = (
                    n - first
                    if self.rng.random() < 0.7
                    else int(self.rng.integers(1, n - first + 1))
                )
                part = [np.ascontiguousarray(x[b, :, first : first + m]) for x in (k, v)]
                cache.append(*part, self.dtype)
                first += m
        self.compare([int(p) for p in order], *fetched, "fetched")
        self.compare_state()
        if self.kind == "f32" and self.keep == 0 and self.rng.random() < 0.3:
            self.attend(n, order, fetched, mask)

    def attend(self, n, order, fetched, mask):
        """What a model would compute at this point, in both."""
        values = [np.concatenate([p.ravel() for p in planes_of(x)]) for x in fetched]
        if any(is_nan(x, "f32").any() for x in values if x.dtype == np.uint32):
            return
        repeat = int(self.rng.integers(1, 4))
        q = self.rng.standard_normal((self.batch, self.heads * repeat, n, self.dims[0]), np.float32)
        scale = np.float32(self.rng.uniform(0.02, 0.3))
        dense = isinstance(fetched[0], mx.array)
        if dense:
            k, v = fetched
            mine, codes = [np.array(x) for x in fetched], None
        else:
            k, v = (mx.dequantize(*x, *reversed(self.form)) for x in fetched)
            mine = [self.decoded(x) for x in fetched]
            codes = [[np.array(p).astype(np.float64) for p in x[1:]] for x in fetched]
        exact = [np.array(x).astype(np.float64) for x in (k, v)]
        mine = [x.astype(np.float64) for x in mine]
        if not all(np.abs(x).max() <= 1e4 for x in (*exact, *mine)):
            return  # NaN and what overflows a score
        if not dense and self.dims[0] == self.dims[1]:  # mlx-lm reads no other quantised shape
            y = quantized_scaled_dot_product_attention(
                mx.array(q), *fetched, float(scale), mask, *reversed(self.form)
            )
        else:
            y = mx.fast.scaled_dot_product_attention(
                mx.array(q), k, v, scale=float(scale), mask=mask
            )
        y = np.array(y)
        end = self.theirs.offset
        query = np.arange(end - n, end)[:, None]
        key = np.array(order)[None]
        see = (key <= query) & ((self.window == 0) | (key > query - self.window))
        for b, cache in enumerate(self.ours):
            got = cache.attend(np.ascontiguousarray(q[b]), kvs.F32, float(scale))
            own = [bound.Codes(*(p[b] for p in x)) for x in codes] if codes else (None, None)
            for who, z, kv, rule, as_codes in (
                ("ours", got, mine, bound.ours, own),
                ("mlx", y[b], exact, bound.mlx, (None, None)),
            ):
                parts = bound.reference(
                    q[b].astype(np.float64), kv[0][b], kv[1][b], float(scale), see,
                    codes=as_codes, positions=np.array(order),
                )  # fmt: skip
                worst, rms = bound.judge(z, parts, *rule(len(order), as_codes[0] is not None))
                most = bound.limit(q[b].shape[0] * n, as_codes[0] is not None)
                check(worst <= 1 and rms <= most, f"attention, {who}: worst {worst} rms {rms}")
                self.totals[f"worst {who}"] = max(self.totals[f"worst {who}"], worst)
                self.totals[f"squares {who}"] += rms**2 * got.size
            self.totals["outputs"] += got.size

    def decoded(self, triple):
        """What the library's attention reads: one rounding, where MLX has two."""
        planes = planes_of(triple)
        dim = planes[1].shape[-1] * self.form[1]
        flat = [np.ascontiguousarray(p.reshape(-1, p.shape[-1])) for p in planes]
        codec = self.ours[0].codecs[0]
        y = self.ours[0].ctx.decode(flat, codec, dim, True)
        return y.reshape(*planes[0].shape[:3], dim)

    def trim(self, n):
        self.log.append(f"-{n}")
        if not self.theirs.is_trimmable():
            return self.refused(n)
        done = self.theirs.trim(n)
        self.twin.trim(n)
        for c in self.ours:
            check(c.can_rewind(done), f"cannot rewind {done} where the oracle trims")
            c.rewind(done)
        self.compare_state()

    def refused(self, n):
        """The oracle refuses; where we do not, writing the same tokens again changes nothing."""
        c = self.ours[0]
        if not c.can_rewind(n):
            check(
                n > self.block or n > len(c) or self.loaded,
                f"a rewind of {n} within the block is promised",
            )
            self.totals["refused by both"] += 1
            return
        self.totals["refused by the oracle alone"] += 1
        end, dense = (
            len(c),
            self.theirs.keys is not None and not isinstance(self.theirs.keys, tuple),
        )
        order = list(range(max(c.oldest(), end - self.window), end))
        if not dense or c.codecs[0].bits or n == 0 or end - n < max(c.oldest(), 0):
            return
        before = self.rows(order)
        for cache in self.ours:
            (k,), (v,) = cache.export(end - n, n)
            cache.rewind(n)
            check(len(cache) == end - n, "length after a rewind")
            for i in range(n):
                part = [np.ascontiguousarray(x[:, i : i + 1]) for x in (k, v)]
                cache.append(*part, self.dtype)
        for a, b in zip(before, self.rows(order)):
            check(all(np.array_equal(x, y) for x, y in zip(a, b)), "rewound and rewritten")

    def convert(self):
        bits, group = self.form
        if self.theirs.keys is None or self.ours[0].codecs[0].bits:
            return
        self.log.append(f"to {bits}:{group}")
        self.theirs = self.theirs.to_quantized(group_size=group, bits=bits)
        for c in self.ours:
            c.convert(kvs.Codec(bits, 0, group, self.dtype))
        self.totals["conversions"] += 1
        self.compare_state()

    def reload(self):
        """New caches that are given what the oracle holds, in its own bytes."""
        order, keys, values = self.live()
        if not len(order):
            return
        self.log.append("load")
        self.loaded = True
        starts = [i for i, p in enumerate(order) if i == 0 or p != order[i - 1] + 1]
        for b, old in enumerate(self.ours):
            new = old.fresh()
            for first, end in zip(starts, [*starts[1:], len(order)]):
                sides = [
                    [np.ascontiguousarray(p[b, :, first:end]) for p in planes_of(side)]
                    for side in (keys, values)
                ]
                new.load(int(order[first]), sides)
            old.close()
            self.ours[b] = new
        self.totals["imports"] += 1
        self.compare_state()

    def mask(self):
        n = int(self.rng.choice([1, self.rng.integers(1, self.block + 1)]))
        window = int(self.rng.choice([0, self.rng.integers(1, 40)]))
        if self.keep and self.ring:
            return  # sinks stay visible in ours: the recorded traces show how
        array = bool(self.rng.random() < 0.5)
        theirs = self.theirs.make_mask(n, window_size=window or None, return_array=array)
        fields = dict(n_queries=n, offset=self.theirs.offset, window=window, flags=2 * array)
        if self.ring:
            fields["ring"] = self.size
            fields["kind"] = kvs.MASK_RING_WINDOW if n > 1 else kvs.MASK_RING_DECODE
            fields["ring_index"] = 0 if n > 1 else self.theirs._idx
        mode, ours = kvs.mask(self.lib, **fields)
        ours = ours.reshape(n, -1)
        if isinstance(theirs, mx.array):
            expect = np.array(theirs).astype(np.uint8).reshape(n, -1)
        else:
            cols = ours.shape[1]
            expect = np.tri(n, cols, cols - n, dtype=np.uint8)
            check(mode == {"causal": 1, "None": 0}[str(theirs)], f"mode {mode} is {theirs}")
        check(np.array_equal(ours, expect), f"mask of {n}, window {window}, array {array}")
        self.totals["masks"] += 1

    def step(self):
        what = self.rng.choice(OPS, p=ODDS)
        if what == "one":
            self.update(1)
        elif what == "many":
            self.update(int(self.rng.integers(2, self.block + 1)))
        elif what == "trim":
            self.trim(int(self.rng.integers(0, 8)))
        elif what == "mask":
            self.mask()
        elif what == "load":
            self.reload()
        else:
            self.convert()


def run(library, rng, caches, steps):
    patch_rotating_to_quantized()
    keys = [
        "units",
        "states",
        "outputs",
        "masks",
        "conversions",
        "imports",
        "worst ours",
        "worst mlx",
    ]
    keys += ["squares ours", "squares mlx", "refused by both", "refused by the oracle alone"]
    totals = dict.fromkeys(keys, 0)
    ctx = kvs.Context(library)
    good = True
    for i in range(caches):
        pair = Pair(rng, library, ctx, totals)
        try:
            for _ in range(steps):
                pair.step()
        except (Failure, kvs.Refused) as e:
            print(f"cache {i}: {e}\n  {pair.describe()}")
            good = False
        pair.close()
    ctx.close()
    for who in ("ours", "mlx"):  # of all outputs together
        squares = totals.pop(f"squares {who}")
        totals[f"rms {who}"] = (squares / max(totals["outputs"], 1)) ** 0.5
        good = good and totals[f"rms {who}"] <= 1
    shown = ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in totals.items()
    )
    print(f"caches: {caches} of {steps} operations: {shown}")
    return good and all(n > 0 for k, n in totals.items() if "refused" not in k)
