# SPDX-License-Identifier: MIT
"""oracle_arch.py LIBRARY [NAME...]: every architecture and rotary scaling against mlx_lm.

mlx_lm builds a tiny model with random weights, saves it, and computes prompt and single steps in
float32 on the CPU; the engine opens what was saved. Each row of logits must be within NEAR of the
greatest logit of the row, past windows too."""
import os
import sys
import tempfile

os.environ["MLX_DISABLE_COMPILE"] = "1"

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

import engine_lib
import gguf_models
import hf_models

mx.set_default_device(mx.cpu)
NEAR = 2e-4
PROMPT = 270
STEPS = 20

BASE = dict(hidden_size=64, num_hidden_layers=3, intermediate_size=96, num_attention_heads=4,
            num_key_value_heads=2, rms_norm_eps=1e-5, vocab_size=288, max_position_embeddings=512,
            rope_theta=10000.0, tie_word_embeddings=False)


def config(model_type, **more):
    return {**BASE, "model_type": model_type, **more}


def moe(model_type, **more):
    return config(model_type, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=40,
                  head_dim=16, decoder_sparse_step=1, mlp_only_layers=[], **more)


def deepseek(**more):
    scaling = dict(type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32,
                   beta_slow=1, mscale=0.707, mscale_all_dim=0.707)
    return config("deepseek_v2", **{**dict(
        num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16,
        qk_nope_head_dim=24, v_head_dim=40, n_routed_experts=8, n_shared_experts=2,
        num_experts_per_tok=3, moe_intermediate_size=40, first_k_dense_replace=1,
        routed_scaling_factor=1.5, topk_method="greedy", norm_topk_prob=False, n_group=1,
        topk_group=1, moe_layer_freq=1, rms_norm_eps=1e-6, rope_scaling=scaling), **more})


def delta(model_type, **more):
    return config(model_type, **{**dict(
        num_hidden_layers=5, head_dim=32, linear_num_value_heads=6, linear_num_key_heads=3,
        linear_key_head_dim=16, linear_value_head_dim=24, linear_conv_kernel_dim=4,
        full_attention_interval=3, rms_norm_eps=1e-6, num_experts=8, num_experts_per_tok=3,
        moe_intermediate_size=40, shared_expert_intermediate_size=48, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], partial_rotary_factor=0.25), **more})


def mamba2(**more):
    return {**dict(model_type="mamba2", hidden_size=64, num_hidden_layers=4, vocab_size=288,
                   num_heads=8, head_dim=16, intermediate_size=128, state_size=24, n_groups=1,
                   conv_kernel=4, layer_norm_epsilon=1e-5, use_bias=False, use_conv_bias=True,
                   tie_word_embeddings=True, time_step_limit=[0.0, float("inf")],
                   time_step_rank="auto"), **more}


def granite(**more):
    return config("granitemoehybrid", **{**dict(
        num_hidden_layers=5, layer_types=["mamba", "mamba", "attention", "mamba", "attention"],
        attention_bias=False, embedding_multiplier=6.0, attention_multiplier=0.2,
        logits_scaling=0.5, residual_multiplier=0.4, mamba_n_heads=4, mamba_d_head=24,
        mamba_proj_bias=False, mamba_d_state=16, mamba_d_conv=4, mamba_n_groups=1,
        mamba_conv_bias=True, position_embedding_type="nope", time_step_limit=[0.001, 100.0],
        num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=56,
        tie_word_embeddings=True), **more})


def gemma4(**more):
    return config("gemma4_text", **{**dict(
        num_hidden_layers=11, head_dim=32, global_head_dim=64, num_key_value_heads=2,
        num_kv_shared_layers=5, vocab_size_per_layer_input=288, hidden_size_per_layer_input=24,
        sliding_window=20, sliding_window_pattern=3, final_logit_softcapping=8.0,
        use_double_wide_mlp=True, tie_word_embeddings=True, rope_parameters=dict(
            full_attention=dict(partial_rotary_factor=0.25, rope_theta=1e6,
                                rope_type="proportional"),
            sliding_attention=dict(rope_theta=1e4, rope_type="default"))), **more})


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LONG = dict(type="longrope", short_factor=[1.0 + 0.05 * i for i in range(8)],
            long_factor=[1.0 + 0.5 * i for i in range(8)])
MODELS = {
    "llama": config("llama"),
    "llama-bias": config("llama", attention_bias=True, tie_word_embeddings=True),
    "llama-linear": config("llama", rope_scaling=dict(rope_type="linear", factor=4.0)),
    "llama-llama3": config("llama", rope_scaling=LLAMA3, head_dim=32),
    "llama-dynamic": config("llama", rope_scaling=dict(rope_type="dynamic", factor=2.0),
                            max_position_embeddings=48),
    "llama-proportional": config("llama", rope_scaling=dict(rope_type="proportional", factor=2.0,
                                                            partial_rotary_factor=0.5)),
    "mistral": config("mistral", sliding_window=20, layer_types=["sliding_attention"] * 2 + ["full_attention"]),
    "mixtral": config("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen2": config("qwen2", tie_word_embeddings=True),
    "qwen2-yarn": config("qwen2", rope_scaling=YARN),
    "qwen3": config("qwen3", head_dim=32, rope_theta=1e6),
    "qwen3-moe": moe("qwen3_moe", norm_topk_prob=True),
    "qwen3-moe-unnormed": moe("qwen3_moe", norm_topk_prob=False),
    "qwen3-moe-sparse": {**moe("qwen3_moe", norm_topk_prob=True), "decoder_sparse_step": 2,
                         "mlp_only_layers": [0], "num_hidden_layers": 4},
    "olmoe": config("olmoe", num_experts=8, num_experts_per_tok=2, norm_topk_prob=False),
    "phi3": config("phi3"),
    "phi3-partial": config("phi3", partial_rotary_factor=0.5),
    "phi3-longrope": config("phi3", rope_scaling=LONG, original_max_position_embeddings=64),
    "gemma2": config("gemma2", head_dim=32, num_key_value_heads=1, query_pre_attn_scalar=48,
                     attn_logit_softcapping=5.0, final_logit_softcapping=3.0, sliding_window=4096,
                     tie_word_embeddings=True),
    "gemma3": config("gemma3_text", num_hidden_layers=7, head_dim=32, num_key_value_heads=1,
                     query_pre_attn_scalar=48, sliding_window=24, sliding_window_pattern=6,
                     rope_theta=1e6, rope_local_base_freq=1e4),
    "deepseek-v2-lite": deepseek(),
    "deepseek-v2": deepseek(q_lora_rank=48, topk_method="group_limited_greedy", n_group=4,
                            topk_group=2, num_hidden_layers=4, first_k_dense_replace=2),
    "deepseek-v2-magnitude": deepseek(rope_scaling=dict(
        type="yarn", factor=8.0, original_max_position_embeddings=32, mscale=1.0,
        mscale_all_dim=0.5)),
    "qwen3-next": delta("qwen3_next"),
    "qwen3-next-dense": delta("qwen3_next", num_experts=0, linear_num_key_heads=6,
                              full_attention_interval=2, tie_word_embeddings=True),
    "qwen3.5": delta("qwen3_5", num_experts=0, rope_parameters=dict(
        rope_type="default", rope_theta=1e5, partial_rotary_factor=0.5, mrope_section=[3, 3, 2])),
    "qwen3.5-moe": delta("qwen3_5", rope_parameters=dict(
        rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25)),
    "mamba2": mamba2(),
    "mamba2-limits": mamba2(n_groups=2, time_step_limit=[0.3, 0.9], use_conv_bias=False,
                            tie_word_embeddings=False),
    "granite-hybrid": granite(),
    "granite-hybrid-dense": granite(num_local_experts=0, position_embedding_type="rope",
                                    layer_types=["attention", "mamba"] * 2 + ["mamba"],
                                    tie_word_embeddings=False),
    "gemma4": gemma4(),
    "gemma4-plain": gemma4(num_kv_shared_layers=0, hidden_size_per_layer_input=0,
                           attention_k_eq_v=True, num_global_key_value_heads=1,
                           num_hidden_layers=6),
}
# Quantised by MLX: matrices of experts stacked, latent matrices cut by rows. (bits, group)
QUANTISED = {"llama": (4, 64), "phi3": (8, 32), "gemma2": (4, 32), "qwen3-moe": (4, 32),
             "deepseek-v2": (8, 32), "deepseek-v2-lite": (4, 32)}
# As GGUF too; "apart": with the matrices of latent attention apart, as newer files have them.
AS_GGUF = {"llama": "", "mixtral": "", "qwen2": "", "qwen3": "", "qwen3-moe": "",
           "qwen3-moe-unnormed": "", "olmoe": "", "phi3": "", "phi3-longrope": "", "gemma2": "",
           "gemma3": "", "deepseek-v2": "apart", "deepseek-v2-lite": "", "qwen3-next": "apart",
           "qwen3-next-dense": "", "mamba2": ""}
# As those who trained them publish them, before MLX converts.
AS_PUBLISHED = ("qwen3-next", "qwen3.5", "gemma4", "mamba2", "granite-hybrid-dense")
# The base of the encoding depends on the length of the call: all tokens at once, and the context
# exactly as long.
AT_ONCE = {"llama-dynamic"}


def expected(model, tokens, at_once):
    if at_once:
        return np.array(model(mx.array([tokens]))[0])
    cache = make_prompt_cache(model)
    rows = [model(mx.array([tokens[:PROMPT]]), cache=cache)[0]]
    for t in tokens[PROMPT:]:
        rows.append(model(mx.array([[t]]), cache=cache)[0])
    return np.concatenate([np.array(r) for r in rows])


def logits(library, path, tokens, n_ctx):
    """The engine's rows, and whether another block size and two threads give the same bits."""
    got = []
    for block, threads in ((0, 1), (7, 2)):
        engine = engine_lib.Engine(library, path, threads=threads, n_ctx=n_ctx, block=block)
        got.append(engine.logits(tokens, 0))
        engine.close()
    return got[0], np.array_equal(got[0], got[1])


def judge(label, got, same, want):
    spread = np.abs(want).max(axis=1)
    far = (np.abs(got - want).max(axis=1) / spread).max()
    ok = far <= NEAR and same and np.isfinite(want).all() and np.ptp(want, axis=1).min() > 0.1
    print("%s %s: %.1e of the greatest logit%s" % ("ok" if ok else "FAIL", label, far,
                                                   "" if same else ", block size shows"))
    return ok


def check(library, name, bits=0, group=64):
    tokens = np.random.default_rng(7).integers(0, BASE["vocab_size"], PROMPT + STEPS).tolist()
    n_ctx = len(tokens) if name in AT_ONCE else 512
    with tempfile.TemporaryDirectory() as path:
        model = hf_models.write(path, MODELS[name], bits=bits, group=group)
        want = expected(model, tokens, name in AT_ONCE)
        label = "%s in %d bits" % (name, bits) if bits else name
        ok = judge(label, *logits(library, path, tokens, n_ctx), want)
        if name in AS_GGUF and not bits:
            file = os.path.join(path, "model.gguf")
            gguf_models.write(file, model, MODELS[name], AS_GGUF[name] == "apart")
            ok &= judge(name + " as GGUF", *logits(library, file, tokens, n_ctx), want)
        if name in AS_PUBLISHED and not bits:
            hf_models.unconvert(path)
            ok &= judge(name + " as published", *logits(library, path, tokens, n_ctx), want)
    return ok


def main():
    names = sys.argv[2:] or list(MODELS)
    runs = [(name,) for name in names]
    runs += [(name, *QUANTISED[name]) for name in names if name in QUANTISED]
    bad = 0
    for run in runs:
        try:
            bad += not check(sys.argv[1], *run)
        except RuntimeError as e:
            print("FAIL %s: %s" % (run[0], e))
            bad += 1
    print("%d of %d models" % (len(runs) - bad, len(runs)))
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
