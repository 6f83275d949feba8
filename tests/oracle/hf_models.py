# SPDX-License-Identifier: MIT
"""Tiny random checkpoints written by mlx_lm itself, for oracle_hf.py."""
import json
import pathlib

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.utils import _get_classes, quantize_model, save_config, save_model

LLAMA = dict(model_type="llama", hidden_size=128, num_hidden_layers=3, intermediate_size=256,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-5,
             vocab_size=160, max_position_embeddings=512, rope_theta=10000.0,
             tie_word_embeddings=False)
QWEN3 = dict(model_type="qwen3", hidden_size=128, num_hidden_layers=3, intermediate_size=256,
             num_attention_heads=4, num_key_value_heads=2, head_dim=64, rms_norm_eps=1e-6,
             vocab_size=160, max_position_embeddings=512, rope_theta=1e6, tie_word_embeddings=True)
GEMMA3 = dict(model_type="gemma3_text", hidden_size=128, num_hidden_layers=7,
              intermediate_size=256, num_attention_heads=4, num_key_value_heads=1, head_dim=64,
              rms_norm_eps=1e-6, vocab_size=160, max_position_embeddings=512, sliding_window=24,
              sliding_window_pattern=6, query_pre_attn_scalar=48, rope_theta=1e6,
              rope_local_base_freq=1e4)
FAMILIES = {"llama": LLAMA, "qwen3": QWEN3, "gemma3": GEMMA3}
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}


def build(config, seed):
    """A model with weights of ordinary size: norms near what training leaves, no two alike."""
    model_class, args_class = _get_classes(config)
    model = model_class(args_class.from_dict(config))
    mx.random.seed(seed)

    def fill(name, w):
        if "gemma4" in config["model_type"] and "self_attn.q_norm" in name:
            # scores are scaled by these alone
            return mx.random.normal(w.shape) * 0.03 + w.shape[0] ** -0.5
        if w.ndim == 1 and "norm" in name:
            from_zero = config["model_type"] in ("gemma2", "gemma3_text")
            return mx.random.normal(w.shape) * 0.2 + (0.0 if from_zero else 1)
        if name.endswith("A_log"):  # memories of a token to some hundred
            return mx.random.uniform(-5.0, 0.5, w.shape)
        if name.endswith((".D", "layer_scalar")):
            return mx.random.normal(w.shape) * 0.2 + 1
        if "conv1d.weight" in name:
            return mx.random.normal(w.shape) * 0.6
        if w.ndim == 1:
            return mx.random.normal(w.shape) * 0.1
        return mx.random.normal(w.shape) * (1.2 / w.shape[-1] ** 0.5)

    flat = [(k, fill(k, v)) for k, v in tree_flatten(model.parameters())]
    model.load_weights(flat)
    return model


def cast(model, dtype):
    model.update(tree_map(lambda w: w.astype(dtype) if mx.issubdtype(w.dtype, mx.floating) else w,
                          model.parameters()))
    return model


def reshard(path, n):
    """The single file of `path` as n shards of about equal size, with an index."""
    whole = path / "model.safetensors"
    weights = mx.load(str(whole))
    parts = [{} for _ in range(n)]
    for i, (name, w) in enumerate(sorted(weights.items())):
        parts[i * n // len(weights)][name] = w
    weight_map = {}
    for i, part in enumerate(parts):
        name = "model-%05d-of-%05d.safetensors" % (i + 1, n)
        mx.save_safetensors(str(path / name), part, metadata={"format": "mlx"})
        weight_map.update(dict.fromkeys(part, name))
    whole.unlink()
    with open(path / "model.safetensors.index.json", "w") as f:
        json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, f)


def write(path, config, dtype="f32", bits=0, group=64, shards=1, seed=1, predicate=None,
          scale_dtype=None):
    """Saves a checkpoint; returns it as a float32 model that holds exactly the saved values."""
    path = pathlib.Path(path)
    config = dict(config)
    model = cast(build(config, seed), DTYPES[dtype])
    if bits:
        model, config = quantize_model(model, config, group, bits, quant_predicate=predicate)
    mx.eval(model.parameters())
    save_model(path, model)
    save_config(config, path / "config.json")
    if shards > 1:
        reshard(path, shards)
    return cast(model, mx.float32)


NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight",
         "q_norm.weight", "k_norm.weight")


def unconvert(path):
    """What MLX changed when it converted a checkpoint, taken back: convolutions turned, ones of
    norms, experts stacked; and what it left out: keys of layers that borrow, other models."""
    path = pathlib.Path(path)
    weights = mx.load(str(path / "model.safetensors"))
    delta = any("linear_attn" in name for name in weights)
    layers = {int(n.split("layers.")[1].split(".")[0]) for n in weights if "layers." in n}
    out = {"mtp.fc.weight": mx.ones((4, 4))}
    for name, w in weights.items():
        if name.startswith("language_model.model."):
            name = name.replace("language_model.model.", "model.language_model.")
        name = name.replace("language_model.lm_head", "lm_head")
        if "conv1d.weight" in name:
            w = w.moveaxis(2, 1)
        if delta and name.replace("language_model", "model").endswith(NORMS):
            w = w - 1
        if "mlp.gate_proj" in name and any("mamba.A_log" in n for n in weights):
            both = mx.concatenate([w, weights[name.replace("gate", "up")]])
            out[name.replace("mlp.gate_proj", "shared_mlp.input_linear")] = both
        elif ".mlp." in name and any("mamba.A_log" in n for n in weights):
            if "down" in name:
                out[name.replace("mlp.down_proj", "shared_mlp.output_linear")] = w
        elif ".switch_mlp." in name:
            for e in range(w.shape[0]):
                out[name.replace("switch_mlp", "experts.%d" % e)] = w[e]
        else:
            out[name] = w
    for layer in layers:
        q = "model.layers.%d.self_attn.q_proj.weight" % layer
        if "per_layer_input_gate" in " ".join(weights) and q.replace("q_p", "k_p") not in weights:
            out[q.replace("q_p", "k_p")] = weights[q]
            out[q.replace("q_p", "v_p")] = weights[q]
            out[q.replace("q_proj", "k_norm")] = mx.ones((32,))
    (path / "model.safetensors.index.json").unlink()
    mx.save_safetensors(str(path / "model.safetensors"), out, metadata={"format": "pt"})


def own_bits(path, module):
    """Bits of its own for some tensors, none for others, as mixed checkpoints have."""
    if not hasattr(module, "to_quantized") or "q_proj" in path:
        return False
    if "down_proj" in path:
        return {"bits": 8, "group_size": 32, "mode": "affine"}
    if "embed_tokens" in path or "lm_head" in path:
        return {"bits": 6, "group_size": 64, "mode": "affine"}
    return True


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
SPECIAL = [
    ("llama with bits of their own for some tensors", LLAMA,
     dict(dtype="bf16", bits=4, predicate=own_bits, shards=2)),
    ("llama tied, llama3 scaling",
     dict(LLAMA, tie_word_embeddings=True, rope_scaling=LLAMA3, rope_theta=500000.0),
     dict(dtype="bf16")),
    ("llama with biases", dict(LLAMA, attention_bias=True), dict(dtype="bf16")),
    ("llama linear scaling, narrow heads",
     dict(LLAMA, head_dim=32, rope_scaling={"type": "linear", "factor": 2.5}), {}),
    ("gemma3 with a text_config", dict(model_type="gemma3", vocab_size=160, text_config=dict(
        GEMMA3, rope_scaling={"rope_type": "linear", "factor": 8.0})), dict(dtype="bf16")),
    ("gemma3 with a text_config in 4 bits", dict(model_type="gemma3", vocab_size=160,
                                                 text_config=GEMMA3), dict(bits=4)),
    ("llama of one group a row", dict(LLAMA, hidden_size=64, intermediate_size=64, head_dim=64),
     dict(bits=4, group=64)),
]
