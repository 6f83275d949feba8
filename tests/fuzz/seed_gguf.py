#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seed_gguf.py DIR: writes the seed inputs of fuzz_gguf (tests/fuzz/corpus/gguf).

Small files, each valid or broken in one way, so that the fuzzer starts behind every check. Inputs
that the fuzzer found and that matter are kept beside them under their own names."""
import os
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 = range(13)
SCALAR = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B",
          U64: "Q", I64: "q", F64: "d"}
# type number: (elements of a block, bytes of a block)
BLOCK = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
         10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 30: (1, 2)}


def text(s):
    b = s if isinstance(s, bytes) else s.encode()
    return struct.pack("<Q", len(b)) + b


def value(vtype, v):
    return text(v) if vtype == STR else struct.pack("<" + SCALAR[vtype], v)


def kv(key, vtype, v):
    return text(key) + struct.pack("<I", vtype) + value(vtype, v)


def array(key, vtype, vs):
    return (text(key) + struct.pack("<IIQ", ARRAY, vtype, len(vs)) +
            b"".join(value(vtype, v) for v in vs))


def tensor(name, ne, wtype, offset):
    return (text(name) + struct.pack("<I", len(ne)) + struct.pack("<%dQ" % len(ne), *ne) +
            struct.pack("<IQ", wtype, offset))


def gguf(kvs=(), tensors=(), data=0, version=3, align=32, n_kv=None, n_tensors=None):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                                 len(kvs) if n_kv is None else n_kv)
    body = head + b"".join(kvs) + b"".join(tensors)
    if tensors:
        body += bytes(-len(body) % align) + bytes(i * 5 & 255 for i in range(data))
    return body


def every_type():
    tensors, at = [], 0
    for wtype, (elems, size) in BLOCK.items():
        tensors.append(tensor("t%d" % wtype, [elems], wtype, at))
        at += (size + 31) // 32 * 32
    return gguf([kv("general.architecture", STR, "llama")], tensors, at)


def seeds():
    arch = kv("general.architecture", STR, "llama")
    scalars = [kv("k%d" % t, t, 1) for t in SCALAR] + [kv("s", STR, "text")]
    arrays = [array("a%d" % t, t, [0, 1, 1]) for t in SCALAR]
    yield "empty-v2", gguf(version=2)
    yield "scalars", gguf([arch] + scalars)
    yield "arrays", gguf(arrays + [array("none", STR, [])])
    yield "strings", gguf([array("tokens", STR, ["t%d" % i for i in range(70)] + [""])])
    yield "every-type", every_type()
    yield "two-tensors", gguf([arch, kv("general.alignment", U32, 8)],
                              [tensor("b", [2, 3], 0, 24), tensor("a", [4], 0, 0)], 48, align=8)
    yield "overlap", gguf([], [tensor("b", [16], 0, 0), tensor("a", [16], 0, 32)], 96)
    yield "same-key", gguf([kv("k", U8, 1), kv("k", U8, 2)])
    yield "same-tensor", gguf([], [tensor("t", [1], 0, 0), tensor("t", [1], 0, 32)], 64)
    yield "nested", gguf([text("n") + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 3])
    yield "many-keys", gguf([arch], n_kv=1 << 60)
    yield "big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "huge-array", gguf([text("h") + struct.pack("<IIQ", ARRAY, U64, 1 << 61)])
    yield "huge-dims", gguf([], [tensor("t", [1 << 40, 1 << 40], 0, 0)], 32)
    yield "no-dims", gguf([], [tensor("t", [], 0, 0), tensor("z", [0], 0, 0)], 32)
    yield "foreign-type", gguf([], [tensor("t", [256], 23, 0)], 160)
    yield "latin1-key", gguf([kv(b"caf\xe9", U8, 1)])
    yield "not-gguf", b"GGJT\x01\0\0\0"


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, data in seeds():
        with open(os.path.join(sys.argv[1], name), "wb") as f:
            f.write(data)


if __name__ == "__main__":
    main()
