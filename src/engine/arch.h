/* SPDX-License-Identifier: MIT */
/* arch.h: what tells one architecture from another: a table entry and a setup function.
 * docs/adding-an-architecture.md walks through one. */
#ifndef KVS_ENGINE_ARCH_H
#define KVS_ENGINE_ARCH_H

#include "engine/net.h"

/* Parts that a layer may have beyond attention norm, q, k, v, o, ffn norm, gate, up, down. */
enum {
    KVS__PART_QK_NORM = 1u << 0,    /* attn_q_norm, attn_k_norm, per head */
    KVS__PART_POST_NORM = 1u << 1,  /* post_attention_norm, post_ffw_norm */
    KVS__PART_BIAS = 1u << 2,       /* attn_q.bias, ..., attn_output.bias, where present */
    KVS__PART_ROPE_FREQS = 1u << 3, /* rope_freqs.weight, used where present */
    KVS__PART_WIDE_NORM = 1u << 4,  /* attn_q_norm, attn_k_norm, over all heads at once */
    KVS__PART_FUSED = 1u << 5, /* attn_qkv and ffn_up hold q, k, v and gate, up, one under other */
    KVS__PART_EXPERTS = 1u << 6,   /* layers with ffn_gate_inp are mixtures of experts */
    KVS__PART_POST_NAME = 1u << 7, /* the feed-forward's norm is post_attention_norm */
    KVS__PART_NO_HEADS = 1u << 8,  /* no layer has attention: keys about heads are not read */
    KVS__PART_NO_FFN = 1u << 9     /* nor a feed-forward */
};

typedef struct kvs__arch {
    const char *name; /* general.architecture, also the prefix of its keys */
    uint32_t parts;   /* KVS__PART_* */
    kvs__rope_style rope_style;
    kvs__act act;
    /* Called when the common hyper-parameters are in and before weights are looked up: reads keys
     * of its own and changes net, layers included. NULL: nothing differs. */
    kvs_status (*setup)(kvs_model *m, kvs_err *err);
} kvs__arch;

const kvs__arch *kvs__arch_find(kvs__str name); /* NULL: unknown */
/* "llama, qwen2, ...", for messages. */
const char *kvs__arch_list(void);

/* Value of key "<arch>.<suffix>". Absent: KVS_E_FORMAT names the key, or, with a `fallback`, that
 * value. KVS_E_FORMAT also where it lies outside [min, max]. */
typedef struct kvs__u32_rule {
    const char *suffix;
    uint32_t min, max;
    const uint32_t *fallback; /* NULL: required */
} kvs__u32_rule;
kvs_status kvs__param_u32(const kvs_model *m, const kvs__u32_rule *rule, uint32_t *out,
                          kvs_err *err);
/* The same for a positive finite float. */
kvs_status kvs__param_f32(const kvs_model *m, const char *suffix, const float *fallback, float *out,
                          kvs_err *err);

/* As the key says, or *out unchanged where it is absent. */
kvs_status kvs__param_bool(const kvs_model *m, const char *suffix, bool *out, kvs_err *err);
kvs_status kvs__param_str(const kvs_model *m, const char *suffix, kvs__str *out, kvs_err *err);

/* Setup functions, and parts of them. attention.sliding_window for all layers, or all
 * but every sliding_window_pattern-th. */
kvs_status kvs__setup_window(kvs_model *m, kvs_err *err);
/* ssm.*, as KVS__MIX_RECURRENT in net.usual; full_attention_interval layers apart where there is
 * attention as well. */
kvs_status kvs__setup_delta(kvs_model *m, kvs_err *err);
kvs_status kvs__setup_ssd(kvs_model *m, kvs_err *err);
/* expert_*, for all layers; which of them are mixtures is seen by their tensors. */
kvs_status kvs__setup_experts(kvs_model *m, bool normalise, kvs_err *err);

extern const kvs__arch kvs__arch_llama;
extern const kvs__arch kvs__arch_qwen2;
extern const kvs__arch kvs__arch_qwen3;
extern const kvs__arch kvs__arch_qwen3moe;
extern const kvs__arch kvs__arch_olmoe;
extern const kvs__arch kvs__arch_phi3;
extern const kvs__arch kvs__arch_gemma2;
extern const kvs__arch kvs__arch_gemma3;
extern const kvs__arch kvs__arch_deepseek2;
extern const kvs__arch kvs__arch_qwen3next;
extern const kvs__arch kvs__arch_qwen35;
extern const kvs__arch kvs__arch_mamba2;
extern const kvs__arch kvs__arch_gemma4;
extern const kvs__arch kvs__arch_granitehybrid;

#endif
