#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""oracle_gguf.py GGUF_TOOL [SEED]: the GGUF reader against the `gguf` package, on fresh data.

dequant  random and adversarial blocks of every type: the same f32 bits (any NaN equals any NaN)
writer   files that gguf.GGUFWriter writes with random keys and tensors: all of it read back
models   the real models, where they are unpacked: the same keys, values and tensors as GGUFReader's
The seed is printed; giving it again repeats the data."""
import os
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))

import gguf
import numpy as np
import record_gguf as rec

N_BLOCKS = 2000
V = gguf.GGUFValueType
NAMES = {V.UINT8: "u8", V.INT8: "i8", V.UINT16: "u16", V.INT16: "i16", V.UINT32: "u32",
         V.INT32: "i32", V.FLOAT32: "f32", V.BOOL: "bool", V.STRING: "string", V.UINT64: "u64",
         V.INT64: "i64", V.FLOAT64: "f64"}
BITS = {V.UINT8: 8, V.INT8: 8, V.UINT16: 16, V.INT16: 16, V.UINT32: 32, V.INT32: 32, V.UINT64: 64,
        V.INT64: 64}


def fail(text):
    print("FAIL: %s" % text)
    sys.exit(1)


def check_dequant(tool, rng):
    asked, want, names = [], [], []
    for name in rec.TYPES:
        size = rec.sizes(name)[1]
        wild = rng.integers(0, 256, (N_BLOCKS, size), np.uint8)  # infinite and NaN scales too
        blocks = np.concatenate([rec.random_blocks(name, rng, N_BLOCKS),
                                 rec.adversarial_blocks(name, rng), wild])
        number = gguf.GGMLQuantizationType[name].value
        asked.append(struct.pack("<II", number, len(blocks)) + blocks.tobytes())
        want.append(rec.decode(name, blocks))
        names.append(name)
    out = subprocess.run([tool, "dequant"], input=b"".join(asked), stdout=subprocess.PIPE,
                         check=True).stdout
    got = np.frombuffer(out, "<f4")
    got = np.where(np.isnan(got), np.uint32(0x7fc00000), got.view("<u4"))
    if len(got) != sum(map(len, want)):
        fail("dequant gave %d values, expected %d" % (len(got), sum(map(len, want))))
    for name, w in zip(names, want):
        g, got = got[:len(w)], got[len(w):]
        bad = np.flatnonzero(g != w)
        if len(bad):
            fail("%s element %d: %08x, gguf has %08x (%d differ)" % (
                name, bad[0], g[bad[0]], w[bad[0]], len(bad)))
    print("dequant: %d types, %d blocks each, equal" % (len(names), len(blocks)))


def show(vtype, v):
    """A value as gguf_tool prints it."""
    if vtype == V.STRING:
        return "x" + (v if isinstance(v, bytes) else v.encode()).hex()
    if vtype in (V.FLOAT32, V.FLOAT64):
        return "%016x" % struct.unpack("<Q", struct.pack("<d", float(v)))
    return str(int(v))


def random_value(vtype, rng):
    if vtype == V.STRING:
        return "".join(chr(c) for c in rng.choice([65, 0x20, 0xe9, 0x4e2d, 0x1f600, 10],
                                                  rng.integers(0, 40)))
    if vtype == V.BOOL:
        return bool(rng.integers(0, 2))
    if vtype in (V.FLOAT32, V.FLOAT64):
        return float(np.float32(rng.normal() * 10.0 ** rng.integers(-30, 30)))
    bits = int(rng.integers(0, 1 << 63, dtype=np.uint64)) << 1 | int(rng.integers(0, 2))
    bits &= (1 << BITS[vtype]) - 1
    signed = vtype.name.startswith("INT")
    return bits - (1 << BITS[vtype]) if signed and bits >> (BITS[vtype] - 1) else bits


def write_random(path, rng):
    """Writes a file with the package and returns the lines that dump must print."""
    w = gguf.GGUFWriter(path, "llama")
    align = int(rng.choice([8, 32, 64, 256]))
    w.add_custom_alignment(align)
    lines = ["kv general.architecture string " + show(V.STRING, "llama"),
             "kv general.alignment u32 %d" % align]
    types = list(NAMES)
    for i in range(int(rng.integers(0, 60))):
        vtype, key = types[rng.integers(len(types))], "k%d.\u00e9" % i
        if rng.integers(0, 2):
            v = random_value(vtype, rng)
            w.add_key_value(key, v, vtype)
            lines.append("kv %s %s %s" % (key, NAMES[vtype], show(vtype, v)))
        else:  # the package writes no empty arrays
            vs = [random_value(vtype, rng) for _ in range(int(rng.integers(1, 100)))]
            w.add_key_value(key, vs, V.ARRAY, sub_type=vtype)
            lines.append(" ".join(["kv %s array %s %d" % (key, NAMES[vtype], len(vs))] +
                                  [show(vtype, v) for v in vs]))
    tensors = []
    for i in range(int(rng.integers(0, 20))):
        name = rec.TYPES[rng.integers(len(rec.TYPES))]
        elems, size = rec.sizes(name)
        rows = [int(x) for x in rng.integers(1, 5, rng.integers(0, 4))]
        n = int(rng.integers(1, 5))
        data = rng.integers(0, 256, rows + [n * size], np.uint8)
        w.add_tensor("t%d" % i, data, raw_dtype=gguf.GGMLQuantizationType[name])
        dims = " ".join(str(d) for d in [n * elems] + rows[::-1])
        tensors.append(("tensor t%d %s %s" % (i, name, dims), data.tobytes()))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return lines, tensors


def dump(tool, path):
    done = subprocess.run([tool, "dump", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        fail("%s: %s" % (path, done.stderr.decode(errors="replace")))
    return done.stdout.decode().split("\n")[:-1]


def compare(got, want, what):
    for g, w in zip(got, want):
        if g != w:
            fail("%s:\n  got  %.300s\n  want %.300s" % (what, g, w))
    if len(got) != len(want):
        fail("%s: %d lines, expected %d" % (what, len(got), len(want)))


def check_writer(tool, rng):
    with tempfile.TemporaryDirectory() as folder:
        for i in range(40):
            path = os.path.join(folder, "f%d.gguf" % i)
            lines, tensors = write_random(path, rng)
            with open(path, "rb") as f:
                raw = f.read()
            got = dump(tool, path)
            compare([g for g in got if g.startswith("kv ")], lines, "written file %d" % i)
            got = [g for g in got if g.startswith("tensor ")]
            compare([g.split(" at ")[0] for g in got], [t for t, _ in tensors], "tensors %d" % i)
            for g, (_, data) in zip(got, tensors):
                at = int(g.split(" at ")[1].split()[0])
                if raw[at:at + len(data)] != data or not g.endswith(" bytes %d" % len(data)):
                    fail("data of %s" % g)
    print("writer: 40 files, equal")


def reader_lines(reader):
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        vtype = field.types[0]
        if vtype != V.ARRAY:
            part = field.parts[field.data[0]]
            v = part.tobytes() if vtype == V.STRING else part[0]
            yield "kv %s %s %s" % (key, NAMES[vtype], show(vtype, v))
            continue
        sub = field.types[-1]
        parts = [field.parts[i] for i in field.data]
        vs = [p.tobytes() if sub == V.STRING else p[0] for p in parts]
        yield " ".join(["kv %s array %s %d" % (key, NAMES[sub], len(vs))] +
                       [show(sub, v) for v in vs])
    for t in reader.tensors:
        yield "tensor %s %s %s at %d bytes %d" % (
            t.name, t.tensor_type.name, " ".join(str(d) for d in t.shape), t.data_offset,
            t.n_bytes)


def check_models(tool):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for name in ("SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"):
        path = os.path.join(cache, "kvstate", "models", name)
        if not os.path.exists(path):
            print("models: %s is absent, not compared" % path)
            continue
        compare(dump(tool, path), list(reader_lines(gguf.GGUFReader(path))), name)
        print("models: %s, equal" % name)


def main():
    tool = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    print("seed %d" % seed)
    rng = np.random.default_rng(seed)
    check_dequant(tool, rng)
    check_writer(tool, rng)
    check_models(tool)


if __name__ == "__main__":
    main()
