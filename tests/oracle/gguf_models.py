# SPDX-License-Identifier: MIT
"""A model of mlx_lm as the GGUF file that llama.cpp's converter would make of it (in f32): names,
keys, permuted q and k of llama, norms plus one of gemma, matrices of latent attention apart."""
import gguf
import numpy as np
from mlx.utils import tree_flatten

ARCH = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe",
        "olmoe": "olmoe", "phi3": "phi3", "gemma2": "gemma2", "gemma3_text": "gemma3",
        "deepseek_v2": "deepseek2", "mixtral": "llama", "qwen3_next": "qwen3next",
        "mamba2": "mamba2"}
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
NAMES.update({
    "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d",
    "mixer.dt_bias": "ssm_dt.bias", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d",
    "mixer.norm": "ssm_norm", "mixer.out_proj": "ssm_out"})
BARE = ("dt_bias", "A_log", "mixer.D")
NAMES.update({k.replace("mlp.", "block_sparse_moe.", 1): v for k, v in NAMES.items()
              if k.startswith("mlp.switch_mlp") or k == "mlp.gate"})
FOUR_NORMS = {"post_attention_layernorm": "post_attention_norm",
              "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
ENDS = {"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm",
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def permute(w, heads):
    """Halves of a head become neighbours."""
    shape = w.shape
    return w.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def rename(name, gemma):
    if name.endswith(BARE):
        _, _, layer, part = name.split(".", 3)
        return "blk.%s.%s" % (layer, NAMES[part])
    stem, tail = name.rsplit(".", 1)
    if stem in ENDS:
        return "%s.%s" % (ENDS[stem], tail)
    _, _, layer, part = stem.split(".", 3)
    known = {**NAMES, **FOUR_NORMS} if gemma else NAMES
    return "blk.%s.%s.%s" % (layer, known[part], tail)


def tensors(model, c, apart):
    """(name, array) in the conventions of GGUF."""
    arch = ARCH[c["model_type"]]
    gemma = arch.startswith("gemma")
    for name, value in tree_flatten(model.parameters()):
        w = np.array(value)
        name = rename(name, gemma)
        if "ssm_conv1d.weight" in name:
            w = w.reshape(w.shape[:2])
        if name.endswith("ssm_a"):
            w = -np.exp(w)
        if name.endswith(("ssm_a", "ssm_d")) and arch == "mamba2":
            w = w[:, None]
        if arch == "mamba2" and "ssm_norm" in name:
            w = w.reshape(c["n_groups"], -1)
        if arch == "qwen3next":
            name = name.replace(".ffn_norm.", ".post_attention_norm.")
        if "ffn_gate_inp_shexp" in name:
            w = w.reshape(-1)
        if apart and ".ssm_in." in name:
            yield from apart_by_kind(name, w, c)
            continue
        if arch == "llama" and (".attn_q." in name or ".attn_k." in name):
            w = permute(w, c["num_attention_heads" if "_q" in name else "num_key_value_heads"])
        if gemma and "norm" in name:
            w = w + 1
        if apart and ".attn_kv_b." in name:
            w = w.reshape(c["num_attention_heads"], -1, c["kv_lora_rank"])
            k, v = np.split(w, [c["qk_nope_head_dim"]], axis=1)
            yield name.replace("kv_b", "k_b"), k.swapaxes(1, 2)
            yield name.replace("kv_b", "v_b"), v
        else:
            yield name, w


def apart_by_kind(name, w, c):
    """q, k, v of all groups, and the gates, as newer files have them."""
    groups, key = c["linear_num_key_heads"], c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] // groups * c["linear_value_head_dim"]
    parts = np.split(w.reshape(groups, -1, w.shape[-1]), [key, 2 * key, 2 * key + value], axis=1)
    flat = [p.reshape(-1, w.shape[-1]) for p in parts]
    yield name.replace("ssm_in", "attn_qkv"), np.concatenate(flat[:3])
    yield name.replace("ssm_in", "attn_gate"), flat[3]


def put_recurrent(out, arch, c):
    """Keys of layers with a state."""
    if arch == "mamba2":
        ints = dict(block_count=c["num_hidden_layers"], context_length=1 << 20,
                    embedding_length=c["hidden_size"], feed_forward_length=0,
                    vocab_size=c["vocab_size"])
        ints.update({"attention.head_count": 0, "ssm.conv_kernel": c["conv_kernel"],
                     "ssm.inner_size": c["num_heads"] * c["head_dim"],
                     "ssm.state_size": c["state_size"], "ssm.time_step_rank": c["num_heads"],
                     "ssm.group_count": c["n_groups"]})
        out.add_float32(arch + ".attention.layer_norm_rms_epsilon", c["layer_norm_epsilon"])
    else:
        heads = c["linear_num_value_heads"]
        ints = {"ssm.conv_kernel": c["linear_conv_kernel_dim"],
                "ssm.inner_size": heads * c["linear_value_head_dim"],
                "ssm.state_size": c["linear_key_head_dim"], "ssm.time_step_rank": heads,
                "ssm.group_count": c["linear_num_key_heads"],
                "full_attention_interval": c["full_attention_interval"],
                "rope.dimension_count": int(c["head_dim"] * c["partial_rotary_factor"]),
                "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"]}
    for k, v in ints.items():
        out.add_uint32("%s.%s" % (arch, k), v)


def put_keys(out, c, apart):
    arch = ARCH[c["model_type"]]
    if arch in ("mamba2", "qwen3next"):
        put_recurrent(out, arch, c)
    if arch == "mamba2":
        return
    heads = c["num_attention_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    key, value = dim, dim
    counts = dict(block_count="num_hidden_layers", context_length="max_position_embeddings",
                  embedding_length="hidden_size", feed_forward_length="intermediate_size",
                  expert_used_count="num_experts_per_tok", expert_shared_count="n_shared_experts",
                  expert_feed_forward_length="moe_intermediate_size")
    counts.update({"attention.sliding_window": "sliding_window",
                   "attention.q_lora_rank": "q_lora_rank",
                   "attention.kv_lora_rank": "kv_lora_rank",
                   "leading_dense_block_count": "first_k_dense_replace"})
    ints = {k: c.get(v) for k, v in counts.items()}
    ints["expert_count"] = c.get("num_experts", c.get("n_routed_experts",
                                                      c.get("num_local_experts")))
    if c.get("topk_method") == "group_limited_greedy":
        ints["expert_group_count"] = c["n_group"]
        ints["expert_group_used_count"] = c["topk_group"]
    ints["attention.head_count"] = heads
    ints["attention.head_count_kv"] = (
        1 if apart and "kv_lora_rank" in c else c["num_key_value_heads"])
    if "kv_lora_rank" in c:
        rank, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
        own = c["qk_nope_head_dim"] + rope, c["v_head_dim"]
        key, value = (rank + rope, rank) if apart else own
        ints["rope.dimension_count"] = rope
        if apart:
            ints["attention.key_length_mla"], ints["attention.value_length_mla"] = own
    ints["attention.key_length"] = key
    ints["attention.value_length"] = value
    floats = {"attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
              "rope.freq_base": c["rope_theta"],
              "rope.freq_base_swa": c.get("rope_local_base_freq"),
              "attn_logit_softcapping": c.get("attn_logit_softcapping"),
              "final_logit_softcapping": c.get("final_logit_softcapping"),
              "expert_weights_scale": c.get("routed_scaling_factor")}
    if "query_pre_attn_scalar" in c:
        floats["attention.scale"] = c["query_pre_attn_scalar"] ** -0.5
    scaling = c.get("rope_scaling") or {}
    if scaling.get("type") == "yarn":
        out.add_string(arch + ".rope.scaling.type", "yarn")
        floats["rope.scaling.factor"] = scaling["factor"]
        floats["rope.scaling.yarn_log_multiplier"] = 0.1 * scaling["mscale_all_dim"]
        ints["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    if scaling.get("type") == "longrope":
        original = c["original_max_position_embeddings"]
        ints["rope.scaling.original_context_length"] = original
        factor = c["max_position_embeddings"] / original
        floats["rope.scaling.attn_factor"] = (1 + np.log(factor) / np.log(original)) ** 0.5
    for k, v in ints.items():
        if v is not None:
            out.add_uint32("%s.%s" % (arch, k), int(v))
    for k, v in floats.items():
        if v is not None:
            out.add_float32("%s.%s" % (arch, k), float(v))
    if arch == "qwen3moe" and not c["norm_topk_prob"]:
        out.add_bool(arch + ".expert_weights_norm", False)


def write(path, model, c, apart=False):
    out = gguf.GGUFWriter(path, ARCH[c["model_type"]])
    put_keys(out, c, apart)
    if (c.get("rope_scaling") or {}).get("type") == "longrope":
        for kind in ("long", "short"):
            out.add_tensor("rope_factors_%s.weight" % kind,
                           np.array(c["rope_scaling"][kind + "_factor"], np.float32))
    for name, w in tensors(model, c, apart):
        out.add_tensor(name, np.ascontiguousarray(w, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
