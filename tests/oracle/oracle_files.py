#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_files.py LIBRARY: prompt-cache files between the engine and mlx_lm, in the layout that the
installed mlx_lm writes and reads.

  read     every class of mlx_lm, saved by it, is described and loaded here: every stored word equal, at
           the position that mlx_lm's own order gives it
  write    caches of ours, saved here, load in mlx_lm: equal arrays, and the same rows as its own cache
           for everything that is appended from there on
  model    a prompt computed by one side goes on in the other: logits within 2e-4 of the greatest
"""
import ctypes as C
import inspect
import pathlib
import sys
import tempfile

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_cache

import engine_lib
import hf_models
import kvs

MX = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
NEW = "meta_state" not in inspect.signature(mlx_cache.KVCache.from_state).parameters
LAYOUT = 0 if NEW else 1
CLASSES = ["KVCache", "QuantizedKVCache", "RotatingKVCache", "RotatingQuantizedKVCache",
           "ChunkedKVCache", "ArraysCache", "BatchKVCache", "BatchRotatingKVCache",
           "ConcatenateKVCache"]  # fmt: skip
DENSE = 2e-4
PROMPT, SAVED, TOTAL = 40, 64, 96
_U32, _U64, _I64, _P = C.c_uint32, C.c_uint64, C.c_int64, C.c_void_p
failures, counts = [], {"words": 0, "files": 0}


class LayerInfo(C.Structure):
    _fields_ = [("struct_size", C.c_size_t)]
    _fields_ += [(n, _U32) for n in ("cls", "entry", "member", "n_rows", "heads", "k_dim", "v_dim")]
    _fields_ += [("k", kvs.Codec), ("v", kvs.Codec), ("offset", _I64), ("n_stored", _U64)]
    _fields_ += [(n, _U32) for n in ("window", "sinks", "chunk", "n_arrays")]


class Form(C.Structure):
    _fields_ = [("list", _U32), ("chunk", _U32)]


class Meta(C.Structure):
    _fields_ = [("key", C.c_char_p), ("value", C.c_char_p)]


class SaveOpts(C.Structure):
    _fields_ = [("struct_size", C.c_size_t), ("layout", C.c_int), ("n_meta", _U32)]
    _fields_ += [("meta", C.POINTER(Meta)), ("tokens", C.POINTER(C.c_int32))]
    _fields_ += [("n_tokens", C.c_size_t), ("forms", C.POINTER(Form)), ("n_forms", _U32)]
    _fields_ += [("n_more", _U32), ("more", C.POINTER(_P))]


class Failure(Exception):
    pass


def check(good, what):
    if not good:
        raise Failure(what)


def bits(x):
    """An array of the oracle as unsigned words."""
    if x.dtype == mx.uint32:
        return np.array(x)
    wide = mx.uint32 if x.dtype in (mx.float32, mx.int32) else mx.uint16
    return np.array(x.view(wide))


def planes_of(x):
    return [bits(p) for p in (x if isinstance(x, (list, tuple)) else [x])]


def spec(heads, dims, codec, window=0, sinks=0, max_block=0):
    return kvs.sized(
        kvs.LayerSpec, n_kv_heads=heads, k_dim=dims[0], v_dim=dims[1], k=codec, v=codec,
        layout=kvs.RING if window else kvs.GROW, window=window, sinks=sinks, max_block=max_block,
    )  # fmt: skip


class Layers:
    """A cache of several layers."""

    def __init__(self, ctx, specs):
        self.lib, self.specs, self.handle = ctx.lib, specs, _P()
        array = (kvs.LayerSpec * len(specs))(*specs)
        opts = kvs.sized(kvs.CacheOpts, n_layers=len(specs), layers=array)
        self.lib.call("kvs_cache_new", ctx.handle, C.byref(opts), C.byref(self.handle))

    def append(self, layer, k, v, dtype):
        kv = kvs.Cache.kv(k, v, dtype)
        self.lib.call("kvs_cache_append", self.handle, _U32(layer), C.byref(kv))

    def length(self, layer):
        return self.lib.c.kvs_cache_length(self.handle, _U32(layer))

    def oldest(self, layer):
        return self.lib.c.kvs_cache_oldest(self.handle, _U32(layer))

    def export(self, layer, begin, n):
        s, planes, out = self.specs[layer], kvs.sized(kvs.Planes), []
        for field, dim, codec in ((planes.k, s.k_dim, s.k), (planes.v, s.v_dim, s.v)):
            word = kvs.WORD[codec.dtype]
            shapes = [(dim, word)]
            if codec.bits:
                shapes = [(dim * codec.bits // 32, np.uint32)] + [(dim // codec.group, word)] * 2
            out.append([np.empty((s.n_kv_heads, n, units), w) for units, w in shapes])
            for i, a in enumerate(out[-1]):
                field[i] = kvs.ptr(a)
        self.lib.call("kvs_cache_export", self.handle, _U32(layer), _I64(begin), _U64(n),
                      C.byref(planes))  # fmt: skip
        return out

    def rows(self, layer, order):
        """Stored planes of the positions, [side][plane] of [heads, n, units]."""
        parts = [self.export(layer, p, 1) for p in order]
        return [[np.concatenate(p, 1) for p in zip(*(x[side] for x in parts))] for side in (0, 1)]

    def close(self):
        self.lib.c.kvs_cache_free(self.handle)


class File:
    def __init__(self, ctx, path):
        self.lib, self.handle = ctx.lib, _P()
        self.lib.call("kvs_prompt_cache_open", ctx.handle, str(path).encode(),
                      C.byref(self.handle))  # fmt: skip
        counts["files"] += 1

    def layer(self, i):
        out = kvs.sized(LayerInfo)
        self.lib.c.kvs_prompt_cache_get_layer(self.handle, _U32(i), C.byref(out))
        return out

    def load(self, row, cache):
        self.lib.call("kvs_prompt_cache_load", self.handle, _U32(row), cache.handle)

    def close(self):
        self.lib.c.kvs_prompt_cache_close(self.handle)


def save(cache, path, **fields):
    opts = kvs.sized(SaveOpts, layout=LAYOUT, **fields)
    cache.lib.call("kvs_prompt_cache_save", cache.handle, C.byref(opts), str(path).encode())


def tensors(rng, kind, batch, heads, n, dims):
    x = [rng.standard_normal((batch, heads, n, d), np.float32) for d in dims]
    return [mx.array(a).astype(MX[kind]) for a in x]


def ours_of(k, row):
    return np.ascontiguousarray(bits(k)[row])


def equal(ours, theirs, what):
    for side in (0, 1):
        check(len(ours[side]) == len(theirs[side]), what + ": planes")
        for a, b in zip(ours[side], theirs[side]):
            check(a.shape == b.shape, "%s: shape %s, oracle %s" % (what, a.shape, b.shape))
            check((a == b).all(), "%s: %d words differ" % (what, int((a != b).sum())))
            counts["words"] += a.size


def codec_of(c, kind):
    dtype = kvs.DTYPES[kind]
    if hasattr(c, "bits"):
        return kvs.Codec(c.bits, 0, c.group_size, dtype)
    return kvs.Codec(0, 0, 0, dtype)


def held(c, twin, row):
    """(positions, keys, values) of one row of a cache of the oracle; twin was fed positions."""
    name = type(c).__name__
    if name in ("RotatingKVCache",):
        order = twin._temporal_order(twin.keys)[0, 0, :, 0].tolist()
        keys, values = c._temporal_order(c.keys), c._temporal_order(c.values)
    elif name == "BatchRotatingKVCache":
        c._temporal_order()
        twin._temporal_order()
        order = twin.keys[row, 0, : twin._idx, 0].tolist()
        keys, values = c.keys[..., : c._idx, :], c.values[..., : c._idx, :]
    elif name == "BatchKVCache":
        order = twin.keys[row, 0, : twin._idx, 0].tolist()
        keys, values = c.keys[..., : c._idx, :], c.values[..., : c._idx, :]
    else:
        order = twin.keys[0, 0, : twin.offset, 0].tolist()
        cut = lambda x: [p[..., : c.offset, :] for p in x]  # noqa: E731
        pair = c.keys, c.values
        keys, values = (cut(x) if isinstance(x, (list, tuple)) else x[..., : c.offset, :]
                        for x in pair)  # fmt: skip
    real = [i for i, p in enumerate(order) if p >= 0]
    take = lambda x: [p[row][:, real] for p in planes_of(x)]  # noqa: E731
    return [int(order[i]) for i in real], take(keys), take(values)


class Pair:
    """A cache of the oracle and its twin, fed positions (a batch: -1 for padding)."""

    def __init__(self, rng, kind, heads, dims, make, twin, rows=1):
        self.rng, self.kind, self.heads, self.dims, self.rows = rng, kind, heads, dims, rows
        self.theirs, self.twin, self.seen, self.given = make(), twin(), [0] * rows, []

    def feed(self, n):
        k, v = tensors(self.rng, self.kind, self.rows, self.heads, n, self.dims)
        self.given.append((k, v))
        tag = mx.array([[[[s + i] for i in range(n)]] for s in self.seen], dtype=mx.float32)
        self.seen = [s + n for s in self.seen]
        self.twin.update_and_fetch(tag, tag)
        return self.theirs.update_and_fetch(k, v)

    def trim(self, n):
        self.theirs.trim(n)
        self.twin.trim(n)
        self.seen = [s - n for s in self.seen]


def read_back(ctx, folder, name, pair, specs, rows=1):
    path = pathlib.Path(folder) / "theirs.safetensors"
    theirs = pair.theirs
    mlx_cache.save_prompt_cache(str(path), [theirs], {"model": "x", "note": "two \"words\""})
    f = File(ctx, path)
    info = f.layer(0)
    check(CLASSES[info.cls] == type(theirs).__name__, "class %d" % info.cls)
    check(info.n_rows == rows and info.heads == pair.heads, "rows or heads")
    check((info.k_dim, info.v_dim) == tuple(pair.dims), "dims")
    check(info.offset == max(pair.seen), "offset %d, oracle %d" % (info.offset, max(pair.seen)))
    for row in range(rows):
        ours = Layers(ctx, specs)
        f.load(row, ours)
        check(ours.length(0) == pair.seen[row], "length %d" % ours.length(0))
        order, keys, values = held(theirs, pair.twin, row)
        sinks, oldest = specs[0].sinks, ours.oldest(0)
        some = [i for i, p in enumerate(order) if p < sinks or p >= oldest]
        need = min(pair.seen[row], specs[0].window + sinks) if specs[0].window else len(order)
        check(len(some) >= need, "%d rows kept of %d" % (len(some), need))
        equal(ours.rows(0, [order[i] for i in some]),
              [[p[:, some] for p in keys], [p[:, some] for p in values]], "row %d" % row)
        ours.close()
    f.close()


def case(name, fn, *args):
    try:
        fn(*args)
        print("ok %s" % name, flush=True)
    except (Failure, kvs.Refused, RuntimeError, ValueError) as e:
        failures.append(name)
        print("not ok %s: %s" % (name, e), flush=True)


def plain_cases(rng, ctx, folder):
    K = mlx_cache.KVCache
    for kind in MX:
        for dims in ((64, 64), (64, 128)):
            for feeds in ((5,), (256,), (250, 1, 9), (300, 1, 1)):
                def run(make=K, codec=kvs.Codec(0, 0, 0, kvs.DTYPES[kind]), trim=3, twin=K):
                    pair = Pair(rng, kind, 2, dims, make, twin)
                    for n in feeds:
                        pair.feed(n)
                    if trim:
                        pair.trim(trim)
                    read_back(ctx, folder, "", pair, [spec(2, dims, codec)])
                case("read KVCache %s %s %s" % (kind, dims, feeds), run)
                if dims[0] == dims[1] and kind != "f16":
                    case("read ConcatenateKVCache %s" % kind, run, mlx_cache.ConcatenateKVCache,
                         kvs.Codec(0, 0, 0, kvs.DTYPES[kind]), 0)
                if dims[0] == dims[1]:
                    case("read ChunkedKVCache %s %s" % (kind, feeds), run,
                         lambda: mlx_cache.ChunkedKVCache(512))
        for b in (4, 8):
            for g in (32, 64):
                for feeds in ((5,), (250, 1, 9)):
                    def run(n=feeds):
                        pair = Pair(rng, kind, 3, (64, 128), lambda: mlx_cache.QuantizedKVCache(g, b), K)
                        for m in n:
                            pair.feed(m)
                        codec = kvs.Codec(b, 0, g, kvs.DTYPES[kind])
                        read_back(ctx, folder, "", pair, [spec(3, (64, 128), codec)])
                    case("read QuantizedKVCache %s %d bits of %d, %s" % (kind, b, g, feeds), run)


RING_FEEDS = ((3,), (24,), (20, 1, 1), (20, 1, 1, 1, 1, 1), (20, 9, 1), (60,), (60, 1), (60, 7),
              (60, 1, 1, 1), (5, 1, 1, 30, 1, 1), (1,) * 24, (1,) * 61)


def ring_cases(rng, ctx, folder):
    for keep in (0, 4):
        for i, feeds in enumerate(RING_FEEDS):
            kind = list(MX)[i % 3]
            make = lambda: mlx_cache.RotatingKVCache(24, keep)  # noqa: E731
            def run():
                pair = Pair(rng, kind, 2, (32, 64), make, make)
                for n in feeds:
                    pair.feed(n)
                codec = kvs.Codec(0, 0, 0, kvs.DTYPES[kind])
                read_back(ctx, folder, "", pair, [spec(2, (32, 64), codec, 24 - keep, keep, 8)])
                if pair.seen[0] < 24:
                    pair.trim(2)
                    read_back(ctx, folder, "", pair, [spec(2, (32, 64), codec, 24 - keep, keep, 8)])
            case("read RotatingKVCache keep %d %s" % (keep, feeds), run)


def merged(cls, pairs):
    """A batch of the rows of some pairs, and of their twins, whose padding becomes -1."""
    batch = cls.merge([p.theirs for p in pairs])
    shift = [p.twin for p in pairs]
    for t in shift:
        t.keys, t.values = t.keys + 1, t.values + 1
    twin = cls.merge(shift)
    twin.keys, twin.values = twin.keys - 1, twin.values - 1
    out = Pair(pairs[0].rng, pairs[0].kind, pairs[0].heads, pairs[0].dims, lambda: batch,
               lambda: twin, len(pairs))
    out.seen = [p.seen[0] for p in pairs]
    return out


def batch_cases(rng, ctx, folder):
    for kind in MX:
        for after in ((), (1,), (1, 1, 9), (300,)):
            def run():
                pairs = [Pair(rng, kind, 2, (32, 64), mlx_cache.KVCache, mlx_cache.KVCache)
                         for _ in range(3)]
                for p, n in zip(pairs, (5, 17, 2)):
                    p.feed(n)
                pair = merged(mlx_cache.BatchKVCache, pairs)
                for n in after:
                    pair.feed(n)
                codec = kvs.Codec(0, 0, 0, kvs.DTYPES[kind])
                read_back(ctx, folder, "", pair, [spec(2, (32, 64), codec)], 3)
            case("read BatchKVCache %s %s" % (kind, after), run)
        for feeds in ((5, 17, 2), (30, 24, 3), (2, 2, 2)):
            for after in ((), (1,) * 3, (1,) * 30, (9, 1), (40,)):
                make = lambda: mlx_cache.RotatingKVCache(24)  # noqa: E731
                def run():
                    pairs = [Pair(rng, kind, 2, (32, 64), make, make) for _ in range(3)]
                    for p, n in zip(pairs, feeds):
                        p.feed(n)
                    pair = merged(mlx_cache.BatchRotatingKVCache, pairs)
                    for n in after:
                        pair.feed(n)
                    codec = kvs.Codec(0, 0, 0, kvs.DTYPES[kind])
                    read_back(ctx, folder, "", pair, [spec(2, (32, 64), codec, 24, 0, 64)], 3)
                case("read BatchRotatingKVCache %s %s %s" % (kind, feeds, after), run)


def list_cases(rng, ctx, folder):
    path = str(pathlib.Path(folder) / "list.safetensors")

    def lists():
        a, b, c = mlx_cache.KVCache(), mlx_cache.QuantizedKVCache(32, 4), mlx_cache.KVCache()
        for x in (a, b, c):
            x.update_and_fetch(*tensors(rng, "bf16", 1, 2, 7, (64, 64)))
        mlx_cache.save_prompt_cache(path, [mlx_cache.CacheList(a, b), c])
        specs = [spec(2, (64, 64), codec_of(x, "bf16")) for x in (a, b, c)]
        f, ours = File(ctx, path), Layers(ctx, specs)
        f.load(0, ours)
        for i, x in enumerate((a, b, c)):
            check((f.layer(i).entry, f.layer(i).member) == ((0, 0), (0, 1), (1, 2**32 - 1))[i],
                  "numbering")
            equal(ours.export(i, 0, 7),
                  [[p[0][:, :7] for p in planes_of(y)] for y in (x.keys, x.values)], "list")
        ours.close()
        f.close()

    def arrays():
        a, k = mlx_cache.ArraysCache(2), mlx_cache.KVCache()
        a[0], a[1] = mx.ones((1, 3, 64)), mx.ones((1, 2, 8, 8))
        k.update_and_fetch(*tensors(rng, "bf16", 1, 2, 7, (64, 64)))
        mlx_cache.save_prompt_cache(path, [mlx_cache.CacheList(a, k), a])
        f = File(ctx, path)
        check([f.layer(i).cls for i in range(3)] == [5, 0, 5], "classes")
        check(f.layer(2).n_arrays == 2, "arrays")
        ours = Layers(ctx, [spec(2, (64, 64), kvs.Codec(0, 0, 0, kvs.BF16))] * 3)
        try:
            f.load(0, ours)
            check(False, "recurrent state was loaded as keys and values")
        except kvs.Refused as e:
            check("layer 0" in str(e) and "recurrent" in str(e), str(e))
        ours.close()
        f.close()

    def empty():
        if NEW:
            caches = [mlx_cache.KVCache(), mlx_cache.QuantizedKVCache(), mlx_cache.RotatingKVCache(8)]
            mlx_cache.save_prompt_cache(path, caches)
            f = File(ctx, path)
            codec = kvs.Codec(0, 0, 0, kvs.BF16)
            ours = Layers(ctx, [spec(1, (64, 64), codec)] * 2 + [spec(1, (64, 64), codec, 8, 0, 4)])
            f.load(0, ours)
            check(all(ours.length(i) == 0 for i in range(3)), "length")
            save(ours, path)
            back = mlx_cache.load_prompt_cache(path)
            check([c.offset for c in back] == [0, 0, 0] and all(c.empty() for c in back), "back")
            back[2].update_and_fetch(*tensors(rng, "bf16", 1, 1, 1, (64, 64)))
            ours.close()
            f.close()

    case("read CacheList", lists)
    case("read ArraysCache", arrays)
    case("empty caches", empty)


def go_on(pair, back, steps, what):
    """The loaded cache and the oracle's own, fed alike, hand out alike."""
    for n in steps:
        k, v = tensors(pair.rng, pair.kind, pair.rows, pair.heads, n, pair.dims)
        one, two = pair.theirs.update_and_fetch(k, v), back.update_and_fetch(k, v)
        if type(back).__name__ in ("RotatingKVCache", "BatchRotatingKVCache") and n == 1:
            one, two = ([mx.sort(x.astype(mx.float32), axis=2) for x in y] for y in (one, two))  # a ring may lie otherwise, with the same rows
        equal([planes_of(x) for x in one], [planes_of(x) for x in two], "%s, then %d" % (what, n))
        check(pair.theirs.offset == back.offset if pair.rows == 1 else True, "offset")


def write_case(rng, ctx, folder, kind, make, specs, feeds, steps, twin=None, **form):
    path = str(pathlib.Path(folder) / "ours.safetensors")
    dims, heads = (specs[0].k_dim, specs[0].v_dim), specs[0].n_kv_heads
    pair = Pair(rng, kind, heads, dims, make, twin or make)
    ours = Layers(ctx, specs)
    for n in feeds:
        pair.feed(n)
        k, v = pair.given[-1]
        block = specs[0].max_block or n
        for i in range(0, n, block):
            ours.append(0, *(np.ascontiguousarray(ours_of(x, 0)[:, i:i + block]) for x in (k, v)),
                        kvs.DTYPES[kind])
    meta = (Meta * 1)(Meta(b"note", "two \"w\u00f6rds\"\n".encode()))
    tokens = (C.c_int32 * pair.seen[0])(*range(pair.seen[0]))
    save(ours, path, n_meta=1, meta=meta, tokens=tokens, n_tokens=pair.seen[0], **form)
    back, note = mlx_cache.load_prompt_cache(path, return_metadata=True)
    check(note["note"] == "two \"w\u00f6rds\"\n", "metadata %s" % note)
    check(note["kvstate_tokens"].split() == [str(i) for i in range(pair.seen[0])], "tokens")
    check(type(back[0]) is type(pair.theirs), "class %s" % type(back[0]).__name__)
    check(back[0].offset == pair.theirs.offset, "offset")
    go_on(pair, back[0], steps, "%s" % (feeds,))
    f, again = File(ctx, path), Layers(ctx, specs)
    f.load(0, again)
    oldest = ours.oldest(0)
    order = [p for p in range(pair.seen[0]) if p < specs[0].sinks or p >= oldest]
    equal(again.rows(0, order), ours.rows(0, order), "loaded here again")
    for x in (again, ours, f):
        x.close()


def write_cases(rng, ctx, folder):
    K = mlx_cache.KVCache
    for kind in MX:
        dtype = kvs.DTYPES[kind]
        dense = kvs.Codec(0, 0, 0, dtype)
        for feeds in ((5,), (256,), (300, 1)):
            case("write KVCache %s %s" % (kind, feeds), write_case, rng, ctx, folder, kind, K,
                 [spec(2, (64, 128), dense)], feeds, (1, 1, 9, 256))
            form = (Form * 1)(Form(0, 512))
            case("write ChunkedKVCache %s %s" % (kind, feeds), lambda: write_case(
                rng, ctx, folder, kind, lambda: mlx_cache.ChunkedKVCache(512),
                [spec(2, (64, 64), dense)], feeds, (1, 9), K, forms=form, n_forms=1))
            for b in (4, 8):
                for g in (32, 64):
                    case("write QuantizedKVCache %s %s %d bits of %d" % (kind, feeds, b, g),
                         write_case, rng, ctx, folder, kind,
                         lambda: mlx_cache.QuantizedKVCache(g, b),
                         [spec(2, (64, 64), kvs.Codec(b, 0, g, dtype))], feeds, (1, 1, 9), K)
        for keep in (0, 4):
            for feeds in RING_FEEDS:
                for block in (8, 64):
                    for steps in ((1,) * 30, (9, 1, 1, 40, 1)):
                        case("write RotatingKVCache %s keep %d block %d %s %s"
                             % (kind, keep, block, feeds, steps), write_case, rng, ctx, folder, kind,
                             lambda: mlx_cache.RotatingKVCache(24, keep),
                             [spec(2, (32, 64), dense, 24 - keep, keep, block)], feeds, steps)


def batch_write(rng, ctx, folder, kind, ring, lengths, steps):
    path = str(pathlib.Path(folder) / "batch.safetensors")
    dense = kvs.Codec(0, 0, 0, kvs.DTYPES[kind])
    make = (lambda: mlx_cache.RotatingKVCache(24)) if ring else mlx_cache.KVCache
    cls = mlx_cache.BatchRotatingKVCache if ring else mlx_cache.BatchKVCache
    s = spec(2, (32, 64), dense, *((24, 0, 64) if ring else ()))
    pairs, ours = [], []
    for n in lengths:
        pairs.append(Pair(rng, kind, 2, (32, 64), make, make))
        pairs[-1].feed(n)
        ours.append(Layers(ctx, [s]))
        ours[-1].append(0, *(ours_of(x, 0) for x in pairs[-1].given[0]), kvs.DTYPES[kind])
    pair = merged(cls, pairs)
    more = (_P * (len(ours) - 1))(*(c.handle for c in ours[1:]))
    save(ours[0], path, n_more=len(ours) - 1, more=more)
    back = mlx_cache.load_prompt_cache(path)[0]
    check(type(back) is cls, "class")
    check(back.offset.tolist() == pair.theirs.offset.tolist(), "offset")
    check(back.left_padding.tolist() == pair.theirs.left_padding.tolist(), "padding")
    back._lengths = None  # mlx_lm's reader leaves it out, and the cache can't be updated without
    for n in steps:
        k, v = tensors(rng, kind, len(ours), 2, n, (32, 64))
        one, two = pair.theirs.update_and_fetch(k, v), back.update_and_fetch(k, v)
        equal([planes_of(x) for x in one], [planes_of(x) for x in two], "then %d" % n)
        check(back.left_padding.tolist() == pair.theirs.left_padding.tolist(), "padding")
    for c in ours:
        c.close()


def batch_write_cases(rng, ctx, folder):
    for kind in MX:
        for lengths in ((5, 17, 2), (30, 24, 3), (64, 40, 30), (2, 2)):
            for steps in ((1,) * 30, (9, 1)):
                case("write BatchKVCache %s %s" % (kind, lengths), batch_write, rng, ctx, folder,
                     kind, False, lengths, steps)
                # the old reader takes the text "False" for true: only its own writing is rotated
                case("write BatchRotatingKVCache %s %s" % (kind, lengths), batch_write, rng, ctx,
                     folder, kind, True, lengths, steps if NEW else ())


def lists_write(rng, ctx, folder):
    path = str(pathlib.Path(folder) / "lists.safetensors")
    dense = kvs.Codec(0, 0, 0, kvs.BF16)
    ours = Layers(ctx, [spec(2, (64, 64), dense), spec(1, (32, 32), kvs.Codec(8, 0, 32, kvs.BF16)),
                        spec(2, (64, 64), dense)])
    given = []
    for i, s in enumerate(ours.specs):
        given.append(tensors(rng, "bf16", 1, s.n_kv_heads, 9, (s.k_dim, s.v_dim)))
        ours.append(i, *(ours_of(x, 0) for x in given[-1]), kvs.BF16)
    form = (Form * 3)(Form(7, 0), Form(7, 0), Form(0, 0))
    save(ours, path, forms=form, n_forms=3)
    back = mlx_cache.load_prompt_cache(path)
    check([type(c).__name__ for c in back] == ["CacheList", "KVCache"], "classes")
    q = mlx_cache.QuantizedKVCache(32, 8)
    q.update_and_fetch(*given[1])
    for x, want in ((back[0][0], given[0]), (back[1], given[2])):
        equal([planes_of(x.keys), planes_of(x.values)], [planes_of(y) for y in want], "dense")
    cut = lambda x: [p[..., :9, :] for p in x]  # noqa: E731
    equal([planes_of(back[0][1].keys), planes_of(back[0][1].values)],
          [planes_of(cut(q.keys)), planes_of(cut(q.values))], "quantised")
    ours.close()


class Session(engine_lib.Engine):
    def load(self, path):
        f = _P()
        self._call("kvs_prompt_cache_open", self.ctx, str(path).encode(), C.byref(f))
        try:
            self._call("kvs_session_load_prompt_cache", self.session, f, _U32(0))
        finally:
            self.lib.kvs_prompt_cache_close(f)

    def save(self, path):
        self.lib.kvs_session_cache.restype = _P
        opts = kvs.sized(SaveOpts, layout=LAYOUT)
        self._call("kvs_prompt_cache_save", _P(self.lib.kvs_session_cache(self.session)),
                   C.byref(opts), str(path).encode())

    def go_on(self, tokens):
        rows = []
        self.lib.kvs_session_logits.restype = C.POINTER(C.c_float)
        for token in tokens:
            self._call("kvs_session_append", self.session, (C.c_int32 * 1)(token), C.c_size_t(1))
            logits = self.lib.kvs_session_logits(self.session)
            rows.append(np.ctypeslib.as_array(logits, (self.n_vocab,)).copy())
        return np.stack(rows)


def model_case(library, folder, config, caches, **plan):
    path = pathlib.Path(folder) / "model"
    model = hf_models.write(path, config)
    rng = np.random.default_rng(5)
    tokens = [int(t) for t in rng.integers(0, config["vocab_size"], TOTAL)]
    step = lambda c, t: np.array(model(mx.array([[t]]), cache=c)[0, -1])  # noqa: E731
    cache = caches(model)
    model(mx.array([tokens[:PROMPT]]), cache=cache)
    for t in tokens[PROMPT:SAVED]:
        step(cache, t)
    files = [str(pathlib.Path(folder) / n) for n in ("m.safetensors", "o.safetensors")]
    mlx_cache.save_prompt_cache(files[0], cache)
    want = np.stack([step(cache, t) for t in tokens[SAVED:]])
    engine = Session(library, str(path), **plan)
    engine.n_vocab = config["vocab_size"]
    engine.load(files[0])
    got = engine.go_on(tokens[SAVED:])
    tolerance = (2e-2 if "affine" in plan["kv"] else DENSE) * np.abs(want).max()
    check(np.abs(got - want).max() <= tolerance, "ours after theirs: %g" % np.abs(got - want).max())
    engine.logits(tokens[:SAVED], SAVED - 1)
    engine.save(files[1])
    back = mlx_cache.load_prompt_cache(files[1])
    check([type(a) for a in back] == [type(a) for a in caches(model)] or "affine" in plan["kv"],
          "classes")
    got = np.stack([step(back, t) for t in tokens[SAVED:]])
    check(np.abs(got - want).max() <= tolerance, "theirs after ours: %g" % np.abs(got - want).max())
    engine.close()


def model_cases(library, folder):
    made = lambda m: (m.make_cache() if hasattr(m, "make_cache")  # noqa: E731
                      else [mlx_cache.KVCache() for _ in m.layers])
    ring = lambda m: [mlx_cache.RotatingKVCache(48, 4) for _ in m.layers]  # noqa: E731
    quant = lambda m: [mlx_cache.QuantizedKVCache(32, 8) for _ in m.layers]  # noqa: E731
    for name, config in (("llama", hf_models.LLAMA), ("qwen3", hf_models.QWEN3),
                         ("gemma3", hf_models.GEMMA3)):
        case("model %s" % name, lambda: model_case(library, folder, config, made, kv="f32",
                                                   max_block=PROMPT))
    case("model llama, ring", lambda: model_case(library, folder, hf_models.LLAMA, ring, kv="f32",
                                                 window=44, sinks=4, max_block=PROMPT))
    case("model llama, quantised", lambda: model_case(library, folder, hf_models.LLAMA, quant,
                                                      kv="affine8:32/f32"))


def main():
    mx.set_default_device(mx.cpu)
    library = sys.argv[1]
    ctx = kvs.Context(kvs.Library(library))
    ctx.lib.c.kvs_prompt_cache_close.restype = None
    rng = np.random.default_rng(3)
    print("# mlx_lm with the layout %s" % ("of 0.32.0 and later" if NEW else "before 0.32.0"))
    with tempfile.TemporaryDirectory() as folder:
        plain_cases(rng, ctx, folder)
        ring_cases(rng, ctx, folder)
        batch_cases(rng, ctx, folder)
        list_cases(rng, ctx, folder)
        write_cases(rng, ctx, folder)
        batch_write_cases(rng, ctx, folder)
        case("write CacheList", lists_write, rng, ctx, folder)
        model_cases(library, folder)
    ctx.close()
    print("%d failures, %d files read, %d words equal"
          % (len(failures), counts["files"], counts["words"]))
    return 1 if failures or counts["words"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
