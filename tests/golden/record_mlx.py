# SPDX-License-Identifier: MIT
"""Records what MLX, mlx-lm and mlx-optiq answer, for C tests that need neither.

    python record_mlx.py FOLDER           writes quantize.kvg, attention.kvg, caches.txt
    python record_mlx.py FOLDER --check   records again and compares with what is there
    python record_mlx.py FOLDER --confirm the same, and adds a line to versions.txt

Must stay true: the same bytes from every version set in requirements-mlx*.txt; every input that is
not stored can be made again from a seed (see `draw`). README.md has the formats. Deliberately no
reference of the library's own arithmetic here: only what the oracle says goes into the files.
"""

import hashlib
import importlib.metadata
import pathlib
import random
import re
import struct
import sys
import zlib

import mlx.core as mx
import numpy as np
from mlx_lm.generate import maybe_quantize_kv_cache
from mlx_lm.models.base import create_causal_mask, quantized_scaled_dot_product_attention
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache
from optiq.runtime.kv.rotating import RotatingQuantizedKVCache, patch_rotating_to_quantized

TYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
FILES = ("quantize.kvg", "attention.kvg", "caches.txt")
VERSIONED = ("mlx", "mlx-cpu", "mlx-lm", "mlx-optiq", "numpy")


# -- the container: 64 byte headers, each before its data; README.md

MAGIC = b"kvsgold1"
CODES = {"f32": 0, "f16": 1, "bf16": 2, "u32": 3, "u8": 4}


def raw(x):
    """Row-major little-endian bytes of an MLX or NumPy array."""
    if isinstance(x, mx.array):
        x = np.array(mx.contiguous(x).view(mx.uint8)) if x.size else np.zeros(0, np.uint8)
    return np.ascontiguousarray(x).tobytes()


class Container:
    def __init__(self):
        self.parts = [MAGIC]

    def add(self, name, kind, shape, data):
        shape = (tuple(shape) + (1, 1, 1))[:3]
        head = struct.pack("<40sI3III", name.encode(), CODES[kind], *shape, zlib.crc32(data), 0)
        self.parts += [head, data, b"\0" * (-len(data) % 8)]

    def array(self, name, kind, x, shape):
        self.add(name, kind, shape, raw(x))

    def text(self, name, lines):
        data = "".join(line + "\n" for line in lines).encode()
        self.add(name, "u8", (len(data),), data)

    def bytes(self):
        return b"".join(self.parts)


# -- inputs


def splitmix(seed, n):
    """The first n outputs of splitmix64 started at `seed`."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def draw(seed, shape):
    """float32 in (-2, 2): element i is ((z_i >> 40) - 2^23) * 2^(-22 - (z_i & 7)), exactly."""
    z = splitmix(seed, int(np.prod(shape)))
    m = (z >> np.uint64(40)).astype(np.int64) - 2**23
    e = -22 - (z & np.uint64(7)).astype(np.int32)
    return np.ldexp(m.astype(np.float32), e).reshape(shape)


def typed(x, kind):
    """A float32 array as an MLX array of `kind`, rounded to nearest even."""
    return mx.array(np.asarray(x, np.float32)).astype(TYPES[kind])


def corner_rows(kind, width=128):
    """(name, row) pairs that reach the corners of the affine rule; rows are float32."""
    rng = np.random.default_rng(20)
    info = mx.finfo(TYPES[kind])
    top = float(info.max)
    low_e, high_e = (-24, 15) if kind == "f16" else (-148, 127)
    unit = 2.0**low_e if kind != "bf16" else 2.0**-133
    normal = rng.standard_normal((8, width))
    uniform = rng.random((8, width))
    sign = np.where(rng.random(width) < 0.5, -1.0, 1.0)
    index = np.arange(width)
    block = index // 32
    rows = [
        ("normal", normal[0]),
        ("normal_wide", normal[1] * 30),
        ("offset", normal[2] * 0.01 + 7.3),
        ("positive", uniform[0] + 0.5),
        ("negative", -uniform[1] - 0.5),
        ("constant", np.full(width, 3.7)),
        ("constant_negative", np.full(width, -3.7)),
        ("constants_by_32", np.choose(block, [1e-9, -1e-9, 5.0e-8, 5.1e-8])),
        ("constants_large", np.choose(block, [top, -top, top / 2, 1.0])),
        ("zeros_mixed", sign * 0.0),
        ("zeros_negative", np.full(width, -0.0)),
        ("tie_of_edges", np.where(index % 7 == 3, sign, uniform[2]) * 0.75),
        ("half_steps", rng.integers(-31, 32, width) * 0.5),
        ("quarter_steps", rng.integers(0, 61, width) * 0.25),
        ("ramp", index / 8.0),
        ("ramp_negative", -index / 3.0),
        ("sparse", np.where(uniform[3] < 0.05, normal[3], 0.0)),
        ("outlier", np.where(index == 77, 200.0, normal[4] * 0.1)),
        ("near_epsilon", rng.integers(-20, 21, width) * 2.5e-8),
        ("subnormal", rng.integers(-300, 301, width) * unit),
        ("least_subnormal", np.where(index % 3 == 0, unit, np.where(index % 3 == 1, -unit, 0))),
        ("spread", np.ldexp(normal[5], rng.integers(low_e, high_e - 2, width))),
        ("huge", np.clip(normal[6], -2, 2) * (top / 3)),
        ("range_overflows", sign * top),
        ("one_inf", np.where(index == 40, np.inf, normal[7])),
        ("one_minus_inf", np.where(index == 41, -np.inf, normal[0])),
        ("both_inf", np.where(index % 50 == 1, sign * np.inf, normal[1])),
        ("some_nan", np.where(uniform[4] < 0.1, np.nan, normal[2])),
        ("nan_and_inf", np.choose(index % 4, [np.nan, np.inf, -np.inf, 1.0])),
        ("only_by_32", np.choose(block, [np.nan, np.inf, -np.inf, 0.0])),
    ]
    return [(name, row.astype(np.float32)) for name, row in rows]


def bit_rows(kind, n, width=128):
    """Rows of arbitrary bit patterns, as MLX arrays."""
    rng = np.random.default_rng(21)
    word = np.uint32 if kind == "f32" else np.uint16
    bits = rng.integers(0, np.iinfo(word).max, (n, width), word, endpoint=True)
    return mx.array(bits).view(TYPES[kind])


# -- quantize.kvg


def record_quantize():
    out = Container()
    n_bits = 3
    for kind in TYPES:
        with np.errstate(all="ignore"):
            named = corner_rows(kind)
            x = typed(np.stack([row for _, row in named]), kind)
        x = mx.concatenate([x, bit_rows(kind, n_bits)])
        if kind == "f32":
            names = [name for name, _ in named] + [f"bits_{i}" for i in range(n_bits)]
            out.text("rows", names)
        out.array(f"{kind}/x", kind, x, x.shape)
        for bits in BITS:
            for group in GROUPS:
                words, scales, biases = mx.quantize(x, group, bits)
                y = mx.dequantize(words, scales, biases, group, bits)
                at = f"{kind}/b{bits}g{group}"
                out.array(f"{at}/words", "u32", words, words.shape)
                out.array(f"{at}/scales", kind, scales, scales.shape)
                out.array(f"{at}/biases", kind, biases, biases.shape)
                out.array(f"{at}/y", kind, y, y.shape)
    return out.bytes()


# -- attention.kvg

# (query heads, KV heads, dim, tokens, queries, window (0: all), keep, sink logits, scale, codecs)
SHAPES = (
    (4, 2, 64, 37, 1, 0, 0, False, 0.11, ((4, 64), (8, 64), (3, 32))),
    (4, 2, 64, 37, 5, 0, 0, False, 0.11, ((4, 64), (8, 32), (2, 64))),
    (2, 1, 128, 300, 1, 0, 0, False, 0.09, ((4, 128), (5, 64))),
    (3, 3, 64, 600, 1, 0, 0, False, 0.5, ((6, 64),)),
    (8, 2, 32, 270, 9, 0, 0, False, 0.25, ((4, 32),)),
    (4, 1, 64, 300, 7, 16, 0, False, 0.2, ((4, 64),)),
    (4, 2, 64, 80, 3, 0, 0, True, 0.15, ()),
    (2, 2, 64, 1, 1, 0, 0, False, 0.125, ((4, 64),)),
    (4, 2, 32, 290, 5, 20, 4, False, 0.2, ((4, 32), (8, 32))),
)


def record_attention():
    out = Container()
    lines = []
    for i, (heads, kv, dim, n, rows, window, keep, sinks, scale, codecs) in enumerate(SHAPES):
        for kind in TYPES:
            seed = 1000 * (i + 1) + CODES[kind] * 10
            name = f"{i}/{kind}"
            scale32 = float(np.float32(scale))
            packed = ",".join(f"b{b}g{g}" for b, g in codecs) or "-"
            lines.append(
                f"name={name} dtype={kind} q_heads={heads} kv_heads={kv} dim={dim} tokens={n} "
                f"queries={rows} window={window} keep={keep} sinks={int(sinks)} seed={seed} "
                f"scale={np.float32(scale).view(np.uint32):08x} codecs={packed}"
            )
            q = typed(2 * draw(seed, (1, heads, rows, dim)), kind)
            k = typed(2 * draw(seed + 1, (1, kv, n, dim)), kind)
            v = typed(2 * draw(seed + 2, (1, kv, n, dim)), kind)
            logits = typed(2 * draw(seed + 3, (heads,)), kind)
            mask = None if rows == 1 else "causal"
            if window:
                kept = create_causal_mask(n, 0) & (mx.arange(n) < keep)
                mask = (create_causal_mask(n, 0, window_size=window) | kept)[n - rows :]
            y = mx.fast.scaled_dot_product_attention(
                q, k, v, scale=scale32, mask=mask, sinks=logits if sinks else None
            )
            out.array(f"{name}/dense", kind, y, (heads, rows, dim))
            for bits, group in codecs:
                pk, pv = mx.quantize(k, group, bits), mx.quantize(v, group, bits)
                scratch = mx.array(q)  # the callee scales its queries in place
                y = quantized_scaled_dot_product_attention(
                    scratch, pk, pv, scale32, mask, group, bits
                )
                out.array(f"{name}/b{bits}g{group}", kind, y, (heads, rows, dim))
    out.text("cases", lines)
    return out.bytes()


# -- caches.txt

VERBS = ("trace", "update", "trim", "refuse", "mask", "convert")


def crc(x):
    return f"{zlib.crc32(raw(x)):08x}"


def planes(x):
    return list(x) if isinstance(x, (list, tuple)) else [x]


def sums(x):
    return ",".join(crc(p) for p in planes(x))


class Trace:
    """Drives one cache and writes a line for each operation and what it left."""

    def __init__(self, name, cache, kind, heads=1, dims=(64, 64), batch=1):
        self.name, self.cache, self.kind = name, cache, kind
        self.heads, self.dims, self.batch = heads, dims, batch
        self.lines, self.largest, self.seed = [], 1, zlib.crc32(name.encode()) << 8
        self.head = f"class={type(cache).__name__} dtype={kind} batch={batch} heads={heads} "
        self.head += f"k_dim={dims[0]} v_dim={dims[1]}"
        for field in ("max_size", "keep", "bits", "group_size"):
            self.head += f" {field}={getattr(cache, field, 0)}"

    def tensor(self, seed, n, dim):
        return typed(draw(seed, (self.batch, self.heads, n, dim)), self.kind)

    def live(self, x):
        rotating = isinstance(self.cache, RotatingKVCache)
        cut = (lambda p: p) if rotating else (lambda p: p[..., : self.cache.offset, :])
        if rotating:
            x = self.cache._temporal_order(x)
        return [cut(p) for p in planes(x)]

    def state(self):
        c = self.cache
        if c.keys is None:
            return f"offset={c.offset} index={getattr(c, '_idx', -1)} live=0 lk=- lv=-"
        k, v = self.live(c.keys), self.live(c.values)
        return (
            f"offset={c.offset} index={getattr(c, '_idx', -1)} live={k[0].shape[2]} "
            f"lk={sums(k)} lv={sums(v)}"
        )

    def update(self, n):
        self.largest = max(self.largest, n)
        self.seed += 2
        k = self.tensor(self.seed, n, self.dims[0])
        v = self.tensor(self.seed + 1, n, self.dims[1])
        fk, fv = self.cache.update_and_fetch(k, v)
        self.lines.append(
            f"update n={n} seed={self.seed} cols={planes(fk)[0].shape[2]} "
            f"fk={sums(fk)} fv={sums(fv)} {self.state()}"
        )

    def trim(self, n):
        if self.cache.is_trimmable():
            done = self.cache.trim(n)
            self.lines.append(f"trim n={n} done={done} {self.state()}")
        else:
            self.lines.append(f"refuse n={n}")

    def mask(self, n, window, as_array):
        m = self.cache.make_mask(n, window_size=window or None, return_array=as_array)
        if isinstance(m, mx.array):
            shape = (1, *m.shape)[-2:]
            answer = f"{shape[0]}x{shape[1]}:{crc(m)}"
        else:
            answer = str(m).lower()
        self.lines.append(f"mask n={n} window={window} array={int(as_array)} answer={answer}")

    def converted(self, cache):
        self.cache = cache
        self.lines.append(f"convert bits={cache.bits} group_size={cache.group_size} {self.state()}")

    def convert(self, bits, group):
        self.converted(self.cache.to_quantized(group_size=group, bits=bits))

    def scheduled(self, n, start, bits, group):
        """An append as mlx-lm's loop makes it: read as it was stored, converted afterwards."""
        self.update(n)
        before = self.cache
        if isinstance(before, (QuantizedKVCache, RotatingQuantizedKVCache)):
            return
        box = [before]
        maybe_quantize_kv_cache(box, start, group, bits)
        if box[0] is not before:
            self.converted(box[0])

    def script(self, steps):
        """Positive numbers are appended, negative ones trimmed."""
        for n in steps:
            self.update(n) if n > 0 else self.trim(-n)
        return self

    def wander(self, rng, steps):
        size = getattr(self.cache, "max_size", 48)
        for _ in range(steps):
            kind = rng.choices(("one", "many", "trim", "mask"), (5, 2, 2, 3))[0]
            if kind == "one":
                self.script([1] * rng.randint(1, 3))
            elif kind == "many":
                self.update(rng.choice((2, 3, rng.randint(2, 2 * size + 2))))
            elif kind == "trim":
                self.trim(rng.randint(0, 6))
            else:
                window = rng.choice((0, 0, rng.randint(1, size + 2)))
                n = rng.choice((1, rng.randint(1, size + 1)))
                self.mask(n, window, rng.random() < 0.5)
        return self

    def text(self):
        return [f"trace name={self.name} {self.head} largest={self.largest}", *self.lines]


def scripted_traces():
    """Growth, wrap and conversion at the edges that the rules name."""
    yield Trace("grow_steps", KVCache(), "bf16", 1, (16, 16)).script(
        (250, 6, 1, -3, 259, 256, -10000, 1)
    )
    yield Trace("grow_steps_q8", QuantizedKVCache(32, 8), "bf16", 1, (32, 32)).script(
        (255, 2, -1, 300, 1)
    )
    yield Trace("ring_steps", RotatingKVCache(300, 4), "f16", 1, (16, 16)).script(
        (1, 254, 1, 1, 40, 1, 10, 1, 1, 600, 1)
    )
    # histories around a window of 8: exactly W-1, W, W+1 rows, one by one, after an overlong block
    for keep in (0, 3):
        for i, steps in enumerate(
            ([13], [7], [8], [9], [5, 6, 9], [5] + 10 * [1], [5, 1, 1, 1, 1, 1, 1, 4])
            + ([13, 1, 1], [7, 1, 1], [3, 1, 12, 1, 1, 20, 1], [4, -2, 3, -5, 1, 9, -1, 1])
        ):
            ring = RotatingKVCache(8, keep)
            yield Trace(f"ring8_{keep}_{i}", ring, "f32", 1, (16, 24)).script([*steps, 1, 2])
    for i, steps in enumerate(((1, 3), (5, 1, 1, 1, 1, 1, 1, 1), (30,), (30, 1))):
        ring = Trace(f"ring_convert_{i}", RotatingKVCache(8, 2), "bf16", 2, (64, 128))
        ring.script(steps).convert(4, 64)
        yield ring.script((1, 1, 6, 1, 1, 1, 1, 12, 1))


def scheduled_traces():
    """Dense first, converted after the append that reaches `start`."""
    for start in (0, 3, 512):
        for kind, bits, group in (("bf16", 4, 64), ("f16", 8, 32), ("f32", 3, 64)):
            trace = Trace(f"first_dense_{start}_{bits}", KVCache(), kind, 2, (64, 64))
            steps = (2, 1, 1, 5, 1) if start < 512 else (300, 200, 11, 1, 1, 7)
            for n in steps:
                trace.scheduled(n, start, bits, group)
            trace.trim(4)
            trace.script((1, 2))
            yield trace
    for keep in (0, 2):
        for steps in ((3, 1, 1, 1), (10, 1, 1, 14, 1), (4, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1)):
            start = min(6, sum(steps[:3]))
            cache = RotatingKVCache(8, keep)
            name = f"first_dense_ring_{keep}_{steps[0]}"
            trace = Trace(name, cache, "bf16", 1, (64, 64))
            for n in steps:
                trace.scheduled(n, start, 4, 64)
            yield trace.script((1, 1, 9, 1))


def random_traces(rng):
    def place():
        return rng.choice(list(TYPES)), rng.randint(1, 2)

    for kind in TYPES:
        yield Trace(f"kv_{kind}", KVCache(), kind, 2, (64, 32), rng.randint(1, 2)).wander(rng, 24)
    for bits in BITS:
        kind, heads = place()
        cache = QuantizedKVCache(64, bits)
        yield Trace(f"quant_b{bits}", cache, kind, heads, (64, 64)).wander(rng, 14)
    for group in GROUPS:
        kind, heads = place()
        cache = QuantizedKVCache(group, 4)
        yield Trace(f"quant_g{group}", cache, kind, heads, (128, 128), 2).wander(rng, 14)
    for size, keep in ((1, 0), (2, 1), (7, 0), (8, 4), (16, 2), (33, 0)):
        kind, heads = place()
        ring = RotatingKVCache(size, keep)
        yield Trace(f"ring_{size}_{keep}", ring, kind, heads, (16, 32), 2).wander(rng, 45)
    for size, keep, group, bits in ((7, 0, 64, 4), (8, 4, 32, 8), (16, 2, 64, 2), (33, 0, 64, 6)):
        kind, heads = place()
        ring = RotatingQuantizedKVCache(size, keep, group, bits)
        # the oracle sizes its words by whole codes a word: 6 bits fit no wider than 64
        dims = (64, 64 if bits == 6 else 128)
        yield Trace(f"ringq_{size}_{keep}", ring, kind, heads, dims).wander(rng, 45)


def record_caches():
    patch_rotating_to_quantized()
    lines = []
    rng = random.Random(5)
    for traces in (scripted_traces(), scheduled_traces(), random_traces(rng)):
        for trace in traces:
            lines += trace.text()
    # what a replay has to have compared when it is through
    text = "\n".join(lines)
    sums_ = len(re.findall(r"\b[0-9a-f]{8}\b", re.sub(r"answer=\S+", "", text)))
    counts = [len(re.findall(rf"^{verb} ", text, re.M)) for verb in VERBS]
    counted = " ".join(f"{verb}={n}" for verb, n in zip(VERBS, counts))
    lines.append(f"end sums={sums_} {counted}")
    return ("\n".join(lines) + "\n").encode()


# -- the files


def versions():
    """What ran, in one line."""
    found = []
    for package in VERSIONED:
        try:
            found.append(f"{package}={importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{package}=none")
    return " ".join(found)


def main():
    mx.set_default_device(mx.cpu)
    folder = pathlib.Path(sys.argv[1])
    confirm = "--confirm" in sys.argv[2:]
    check = confirm or "--check" in sys.argv[2:]
    made = dict(zip(FILES, (record_quantize(), record_attention(), record_caches())))
    if check:
        differing = [n for n in FILES if (folder / n).read_bytes() != made[n]]
        print(f"{versions()}: {len(FILES) - len(differing)} of {len(FILES)} files are the same")
        if differing:
            sys.exit(f"recorded otherwise: {' '.join(differing)}")
        if confirm:
            with (folder / "versions.txt").open("a") as file:
                file.write(versions() + "\n")
        return
    folder.mkdir(parents=True, exist_ok=True)
    sums256 = []
    for name, data in made.items():
        (folder / name).write_bytes(data)
        sums256.append(f"{hashlib.sha256(data).hexdigest()}  {name}\n")
    (folder / "SHA256SUMS").write_text("".join(sums256))
    (folder / "versions.txt").write_text(versions() + "\n")


if __name__ == "__main__":
    main()
