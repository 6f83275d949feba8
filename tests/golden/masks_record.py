#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records the masks that mlx-lm's caches make: masks_record.py > masks.txt

Recorded with mlx 0.32.4 (CPU) and mlx-lm 0.32.2. A line is

    KIND N WINDOW RETURN_ARRAY OFFSET INDEX RING ROTATED B PAD[B] RESULT [BITS]

KIND kv, ring, batch, batchring (KVCache, RotatingKVCache, BatchKVCache, BatchRotatingKVCache), the
state before the append, WINDOW and RING 0 for none, RESULT none, causal or array, BITS the mask in
row-major order, 1 where attended. Caches are driven by random appends; equal lines are left out.
A block appended to a batched ring that has wrapped is left out too: mlx-lm takes the slot index for
the length there, counts too much padding and hides tokens within the window.
"""
import random

import mlx.core as mx
from mlx_lm.models import cache as C


def rows(b, n):
    return mx.zeros((b, 1, n, 8))


def result(mask):
    if mask is None:
        return "none"
    if isinstance(mask, str):
        return mask
    return "array " + "".join("01"[v] for v in mask.flatten().tolist())


def line(kind, n, window, array, offset, index, ring, rotated, pads, mask):
    head = [kind, n, window or 0, int(array), offset, index, ring, int(rotated), len(pads), *pads]
    return " ".join(map(str, head)) + " " + result(mask)


def kv(rng):
    c = C.KVCache()
    for _ in range(6):
        n, window, array = rng.choice([1, 1, 2, 5]), rng.choice([None, 1, 3, 8]), rng.random() < 0.5
        yield line("kv", n, window, array, c.offset, 0, 0, 0, [],
                   c.make_mask(n, window_size=window, return_array=array))
        c.update_and_fetch(rows(1, n), rows(1, n))


def ring(rng):
    size = rng.choice([1, 2, 5, 8])
    c = C.RotatingKVCache(size)
    for _ in range(10):
        n, array = rng.choice([1, 1, 1, 2, 3, 7]), rng.random() < 0.5
        window = rng.choice([None, None, 1, 3, 5, 9])
        yield line("ring", n, window, array, c.offset, c._idx, size, 0, [],
                   c.make_mask(n, window_size=window, return_array=array))
        c.update_and_fetch(rows(1, n), rows(1, n))


def batch(rng):
    pads = [rng.choice([0, 0, 1, 2, 4]) for _ in range(rng.choice([1, 2, 3]))]
    c = C.BatchKVCache(pads)
    for _ in range(4):
        n = rng.choice([1, 1, 2, 5])
        window = rng.choice([None, None, 2, 4])
        extra = {"window_size": window} if window else {}
        yield line("batch", n, window, True, c._idx, 0, 0, 0, c.left_padding.tolist(),
                   c.make_mask(n, **extra))
        c.update_and_fetch(rows(len(pads), n), rows(len(pads), n))


def batchring(rng):
    size = rng.choice([1, 2, 5, 7])
    pads = [rng.choice([0, 0, 1, 2, 4]) for _ in range(rng.choice([1, 2, 3]))]
    c = C.BatchRotatingKVCache(size, pads)
    for _ in range(9):
        n, window = rng.choice([1, 1, 1, 2, 4]), rng.choice([None, None, 2, 4])
        if n == 1 or not c.rotated:
            yield line("batchring", n, window, True, c._offset, c._idx, size, c.rotated,
                       c.left_padding.tolist(), c.make_mask(n, window_size=window))
        c.update_and_fetch(rows(len(pads), n), rows(len(pads), n))


def main():
    rng = random.Random(7)
    seen = {}
    for runs, make in ((60, kv), (160, ring), (60, batch), (120, batchring)):
        for _ in range(runs):
            seen.update(dict.fromkeys(make(rng)))
    print("# masks of mlx-lm 0.32.2 on mlx 0.32.4 (CPU); recorded by masks_record.py")
    print("\n".join(seen))


main()
