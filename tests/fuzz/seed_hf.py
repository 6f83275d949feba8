#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""seed_hf.py DIR: writes the seed inputs of fuzz_json, fuzz_safetensors and fuzz_hf to folders json,
safetensors and hf of DIR (tests/fuzz/corpus). Numbers come from a fixed formula."""

import json
import os
import struct
import sys


def data(n, unit, seed):
    out = bytearray()
    for i in range(n):
        seed = (seed * 1664525 + 1013904223) & 0xFFFFFFFF
        out.append((seed >> 17 & 0x80) | 0x3C if i % unit == unit - 1 else seed >> 24)
    return bytes(out)


def safetensors(tensors, metadata=None):
    """tensors: [(name, dtype, shape, bytes)]"""
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for i, (name, dtype, shape, n) in enumerate(tensors):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + n]}
        body += data(n, 4 if dtype == "F32" else 2, i)
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + body


CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32,
          "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 64, "vocab_size": 4}
GEMMA = dict(CONFIG, model_type="gemma3_text", sliding_window=3, query_pre_attn_scalar=16,
             layer_types=["full_attention"])


def matrix(name, n, k, how):
    if not how:
        return [(name + ".weight", "BF16", [n, k], 2 * n * k)]
    bits, group, dtype = how
    unit = 4 if dtype == "F32" else 2
    return [(name + ".weight", "U32", [n, k * bits // 32], n * k * bits // 8),
            (name + ".scales", dtype, [n, k // group], unit * n * k // group),
            (name + ".biases", dtype, [n, k // group], unit * n * k // group)]


def model(how=None, gemma=False):
    p = "model.layers.0."
    t = matrix("model.embed_tokens", 4, 32, how)
    t += [("model.norm.weight", "F32", [32], 128)]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if gemma:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        t += [(p + "self_attn.%s_norm.weight" % x, "F16", [16], 32) for x in "qk"]
    t += [(p + n + ".weight", "F16", [32], 64) for n in norms]
    for name, n, k in (("self_attn.q_proj", 32, 32), ("self_attn.k_proj", 16, 32),
                       ("self_attn.v_proj", 16, 32), ("self_attn.o_proj", 32, 32),
                       ("mlp.gate_proj", 32, 32), ("mlp.up_proj", 32, 32),
                       ("mlp.down_proj", 32, 32)):
        t += matrix(p + name, n, k, how)
    return t


def directory(config, tensors, index=None):
    c = json.dumps(config).encode()
    i = json.dumps(index).encode() if index else b""
    return struct.pack("<HH", len(c), len(i)) + c + i + safetensors(tensors)


def quantised(bits, group, dtype):
    q = {"bits": bits, "group_size": group}
    return directory(dict(CONFIG, quantization=q), model((bits, group, dtype)))


SEEDS = {
    "json": {
        "config": json.dumps(GEMMA, indent=2).encode(),
        "strings": b'["\\u00e9\\ud83d\\ude00\\n","' + "é中".encode() + b'",{"a":{"b":[]}},null]',
        "numbers": b"[0,-1,1.5e-3,9223372036854775807,1e400,123456789012345678901234567890]",
        "deep": b"[" * 64 + b"]" * 64,
    },
    "safetensors": {
        "two": safetensors([("a", "F32", [2, 3], 24), ("b", "BF16", [5], 10)], {"format": "pt"}),
        "kinds": safetensors([("x", "U32", [2], 8), ("y", "BOOL", [], 1), ("z", "F32", [0, 2], 0)]),
        "empty": safetensors([]),
    },
    "hf": {
        "llama": directory(CONFIG, model()),
        "gemma3": directory(GEMMA, model(gemma=True)),
        "affine4": quantised(4, 32, "F16"),
        "affine3": quantised(3, 32, "F32"),
        "index": directory(CONFIG, model(), {"weight_map": {
            "model.norm.weight": "model.safetensors"}}),
        "scaled": directory(dict(CONFIG, rope_scaling={"rope_type": "llama3", "factor": 8}),
                            model()),
        "mixed": directory(dict(CONFIG, quantization={
            "bits": 8, "group_size": 32, "model.norm": False}), model((8, 32, "BF16"))),
    },
}


def main():
    for folder, seeds in SEEDS.items():
        path = os.path.join(sys.argv[1], folder)
        os.makedirs(path, exist_ok=True)
        for name, text in seeds.items():
            with open(os.path.join(path, name), "wb") as f:
                f.write(text)


if __name__ == "__main__":
    main()
