#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seed_prompt_cache.py DIR: writes the seed inputs of fuzz_prompt_cache to the folder prompt_cache of
DIR (tests/fuzz/corpus): every class of mlx-lm in both layouts. Numbers come from a fixed formula."""

import json
import os
import struct
import sys

SIZE = {"BF16": 2, "F16": 2, "F32": 4, "U32": 4, "I32": 4, "BOOL": 1}


class File:
    def __init__(self):
        self.header, self.body, self.meta, self.scalars = {}, b"", {}, 0

    def add(self, name, dtype, shape, data=None):
        n = SIZE[dtype]
        for d in shape:
            n *= d
        if data is None:
            data = bytes((7 * i * i + 3 * len(self.body)) % 61 for i in range(n))
        self.header[name] = {"dtype": dtype, "shape": shape,
                             "data_offsets": [len(self.body), len(self.body) + n]}
        self.body += data

    def number(self, name, value, dtype="I32"):
        self.add(name, dtype, [], struct.pack("<i", value)[:SIZE[dtype]])
        self.kind(name, "scalar")

    def numbers(self, name, values):
        self.add(name, "I32", [len(values)], struct.pack("<%di" % len(values), *values))

    def text(self, name, text):
        self.numbers(name, [ord(c) for c in text])
        self.kind(name, "string")

    def none(self, name):
        self.add(name, "F32", [0])
        self.kind(name, "none")

    def kind(self, name, kind):
        self.scalars += 1
        self.meta["2.%d.0" % self.scalars] = name
        self.meta["2.%d.1" % self.scalars] = kind

    def bytes(self):
        text = json.dumps({"__metadata__": self.meta, **self.header}, separators=(",", ":")).encode()
        return struct.pack("<Q", len(text)) + text + self.body


def planes(f, path, rows, heads, columns, dim, quantized):
    for side in (0, 1):
        if quantized:
            bits, group = quantized
            shape = [rows, heads, columns]
            f.add("%s.%d.0" % (path, side), "U32", shape + [dim * bits // 32])
            f.add("%s.%d.1" % (path, side), "BF16", shape + [dim // group])
            f.add("%s.%d.2" % (path, side), "BF16", shape + [dim // group])
        else:
            f.add("%s.%d" % (path, side), "F32", [rows, heads, columns, dim])


def new(f, i, path, cls, columns, numbers, quantized=None, rows=None, flag=False, where=None):
    """One cache of mlx-lm 0.32; rows: offsets and paddings of a batch."""
    f.meta[where or "1.%d" % i] = cls
    planes(f, path, len(rows[0]) if rows else 1, 1, columns, 32, quantized)
    field = 2
    for values in rows or ():
        f.numbers("%s.%d" % (path, field), values)
        field += 1
    for v in numbers:
        f.number("%s.%d" % (path, field), v)
        field += 1
    if flag:
        f.number("%s.%d" % (path, field), 0, "BOOL")


def old(f, i, path, cls, columns, numbers, info, quantized=None, rows=None, where=None):
    f.meta[where or "2.%d" % i] = cls
    planes(f, path, len(rows[0]) if rows else 1, 1, columns, 32, quantized)
    for field, values in enumerate(rows or (), 2):
        f.numbers("%s.%d" % (path, field), values)
    for k, v in enumerate(numbers):
        f.meta["%s.%d" % (info, k)] = str(v)
    if not numbers:
        f.meta[info] = ""


def seeds():
    out = {}

    def keep(name, f):
        out[name] = f.bytes()

    f = File()
    f.meta["2.0"] = ""
    f.meta["0.note"] = "two \"words\" \u00e9"
    f.meta["0.kvstate_tokens"] = "1 2 3 4 5"
    new(f, 0, "0", "KVCache", 7, [5])
    new(f, 1, "1", "QuantizedKVCache", 6, [5, 32, 4], (4, 32))
    new(f, 2, "2", "RotatingKVCache", 4, [9, 1, 4, 3])
    new(f, 3, "3", "ChunkedKVCache", 6, [5, 8, 0])
    keep("new_all", f)
    f = File()
    f.meta["2.0"] = ""
    for i, cls in enumerate(("KVCache", "QuantizedKVCache", "RotatingKVCache")):
        f.meta["1.%d" % i] = cls
        f.none("%d.0" % i)
        f.none("%d.1" % i)
        for field, v in enumerate({0: [0], 1: [0, 64, 8], 2: [0, 0, 8, 0]}[i], 2):
            f.number("%d.%d" % (i, field), v)
    keep("new_empty", f)
    f = File()
    f.meta["2.0"] = ""
    new(f, 0, "0", "BatchKVCache", 9, [7], rows=([5, 7], [2, 0]))
    new(f, 1, "1", "BatchRotatingKVCache", 6, [6, 6, 6], rows=([9, 2], [0, 4]), flag=True)
    keep("new_batch", f)
    f = File()
    f.meta["2.0"] = ""
    f.meta["1.0"] = "CacheList"
    new(f, 0, "0.0.0", "", 6, [5], where="0.x")
    f.text("0.0.1", "KVCache")
    new(f, 0, "0.1.0", "", 5, [5, 32, 8], (8, 32), where="0.y")
    f.text("0.1.1", "QuantizedKVCache")
    f.meta["1.1"] = "ArraysCache"
    f.add("1.0.0", "BF16", [1, 3, 8])
    f.none("1.1")
    f.none("1.2")
    keep("new_list", f)
    f = File()
    f.meta["2.0"] = ""
    new(f, 0, "0", "RotatingKVCache", 9, [9, 0, 4, 9])
    new(f, 1, "1", "RotatingKVCache", 6, [3, 0, 8, 3])
    keep("new_ring", f)
    f = File()
    f.meta["1.note"] = "x"
    old(f, 0, "0", "KVCache", 5, [], "0.0")
    old(f, 1, "1", "QuantizedKVCache", 5, [5, 32, 8], "0.1", (8, 32))
    old(f, 2, "2", "RotatingKVCache", 4, [1, 4, 5, 2], "0.2")
    old(f, 3, "3", "ChunkedKVCache", 5, [8, 0], "0.3")
    old(f, 4, "4", "RotatingQuantizedKVCache", 4, [0, 4, 9, 1, 32, 4], "0.4", (4, 32))
    keep("old_all", f)
    f = File()
    f.meta["2.0"] = "CacheList"
    old(f, 0, "0.0", "KVCache", 5, [], "0.0.1.0", where="0.0.0.0")
    old(f, 0, "0.1", "BatchKVCache", 5, [], "0.0.1.1", rows=([5], [0]), where="0.0.0.1")
    keep("old_list", f)
    f = File()
    old(f, 0, "0", "BatchKVCache", 5, [], "0.0", rows=([5, 3], [0, 2]))
    old(f, 1, "1", "BatchRotatingKVCache", 4, [4, 9, 2, "True"], "0.1", rows=([9, 2], [-5, -2]))
    keep("old_batch", f)
    return out


def main():
    folder = os.path.join(sys.argv[1], "prompt_cache")
    os.makedirs(folder, exist_ok=True)
    for name, data in seeds().items():
        with open(os.path.join(folder, name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
