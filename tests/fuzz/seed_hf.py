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


def tensors_of(prefix, ends, layers):
    """layers: for each a list of (name, shape); vectors in f32, the rest in bf16."""
    out = []
    for name, shape in ends + [("%slayers.%d.%s" % (prefix, i, n), s)
                               for i, layer in enumerate(layers) for n, s in layer]:
        n = 1
        for x in shape:
            n *= x
        out.append((name, "F32" if len(shape) == 1 else "BF16", shape,
                    n * (4 if len(shape) == 1 else 2)))
    return out


FFN = [("mlp.gate_proj.weight", [8, 16]), ("mlp.up_proj.weight", [8, 16]),
       ("mlp.down_proj.weight", [16, 8])]
TWO = [("input_layernorm.weight", [16]), ("post_attention_layernorm.weight", [16])]
FOUR = TWO + [("pre_feedforward_layernorm.weight", [16]),
              ("post_feedforward_layernorm.weight", [16])]


def attention(q, kv=True):
    t = [("self_attn.q_proj.weight", [q, 16]), ("self_attn.o_proj.weight", [16, 16]),
         ("self_attn.q_norm.weight", [16])]
    own = [("self_attn.k_proj.weight", [16, 16]), ("self_attn.v_proj.weight", [16, 16]),
           ("self_attn.k_norm.weight", [16])]
    return t + own if kv else t


def state(name, conv, values, heads, norm):
    return [(name + ".conv1d.weight", [conv, 1, 4]), (name + ".dt_bias", [heads]),
            (name + ".A_log", [heads]), (name + ".norm.weight", [norm]),
            (name + ".out_proj.weight", [16, values])]


DELTA = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 8, "vocab_size": 4,
         "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 64, "linear_num_value_heads": 2, "linear_num_key_heads": 1,
         "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4,
         "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"],
         "partial_rotary_factor": 0.5}
MAMBA = {"model_type": "mamba2", "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2,
         "head_dim": 8, "state_size": 4, "n_groups": 1, "conv_kernel": 4, "vocab_size": 4,
         "time_step_limit": [0.0, float("inf")]}
GEMMA4 = {"model_type": "gemma4", "text_config": {
    "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 8, "vocab_size": 4,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 16,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "sliding_window": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_kv_shared_layers": 1, "use_double_wide_mlp": False, "hidden_size_per_layer_input": 8,
    "final_logit_softcapping": 30.0, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                           "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}}
EMBED = [("model.embed_tokens.weight", [4, 16]), ("model.norm.weight", [16])]
SIDE = [("per_layer_input_gate.weight", [8, 16]), ("per_layer_projection.weight", [16, 8]),
        ("post_per_layer_input_norm.weight", [16]), ("layer_scalar", [1])]


def qwen3_next():
    linear = TWO + FFN + state("linear_attn", 16, 8, 2, 4) + [
        ("linear_attn.in_proj_qkvz.weight", [24, 16]), ("linear_attn.in_proj_ba.weight", [4, 16])]
    return directory(dict(DELTA, model_type="qwen3_next"),
                     tensors_of("model.", EMBED, [linear, TWO + FFN + attention(32)]))


def qwen3_5():
    linear = TWO + FFN + state("linear_attn", 16, 8, 2, 4) + [
        ("linear_attn.in_proj_qkv.weight", [16, 16]), ("linear_attn.in_proj_z.weight", [8, 16]),
        ("linear_attn.in_proj_a.weight", [2, 16]), ("linear_attn.in_proj_b.weight", [2, 16])]
    return directory(dict(DELTA, model_type="qwen3_5_text"),
                     tensors_of("model.", EMBED, [linear, TWO + FFN + attention(32)]))


def mamba2():
    layer = [("norm.weight", [16]), ("mixer.in_proj.weight", [42, 16]), ("mixer.D", [2]),
             ("mixer.conv1d.bias", [24])] + state("mixer", 24, 16, 2, 16)
    ends = [("backbone.embeddings.weight", [4, 16]), ("backbone.norm_f.weight", [16])]
    return directory(MAMBA, tensors_of("backbone.", ends, [layer]))


def gemma4():
    ends = EMBED + [("model.embed_tokens_per_layer.weight", [4, 24]),
                    ("model.per_layer_model_projection.weight", [24, 16]),
                    ("model.per_layer_projection_norm.weight", [8])]
    return directory(GEMMA4, tensors_of("model.", ends, [
        FOUR + FFN + SIDE + attention(16, kv=i < 2) for i in range(3)]))


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
        "qwen3_next": qwen3_next(),
        "qwen3_5": qwen3_5(),
        "mamba2": mamba2(),
        "gemma4": gemma4(),
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
