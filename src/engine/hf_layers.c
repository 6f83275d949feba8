/* SPDX-License-Identifier: MIT */
/* hf_layers.c: config.json of families whose layers are recurrent or not all alike, as the engine's
 * keys: Qwen3-Next and 3.5 (linear_*), Mamba-2, Granite 4, Gemma 4. hf_config.c writes what is
 * common, after this; a key that is written here is not written again.
 *
 * A key that is missing is left out where the architecture asks for it, and has the value here that
 * the reference libraries give it where they agree. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/hf_config.h"

#define LONGEST (1u << 20) /* what no one wrote down: Mamba has no positions */

typedef struct pair {
    const char *name;   /* in config.json */
    const char *suffix; /* of the engine's key */
} pair;

static void copy_counts(kvs__hf_writer *w, const pair *pairs, size_t n)
{
    uint32_t v = 0;
    for (size_t i = 0; i < n; i++) {
        if (kvs__hf_read_u32(w, pairs[i].name, &v)) {
            kvs__hf_put_u32(w, pairs[i].suffix, v);
        }
    }
}

/* The product of two counts. */
static void put_inner(kvs__hf_writer *w, const char *heads_name, const char *dim_name)
{
    uint32_t heads = 0;
    uint32_t dim = 0;
    if (!kvs__hf_read_u32(w, heads_name, &heads) || !kvs__hf_read_u32(w, dim_name, &dim)) {
        return;
    }
    if ((uint64_t)heads * dim > UINT32_MAX) {
        kvs__hf_refuse(w, dim_name, "is too large");
    }
    kvs__hf_put_u32(w, "ssm.inner_size", (uint32_t)((uint64_t)heads * dim));
}

/* ---- Qwen3-Next, Qwen3.5 */

/* layer_types, where they are given, must be what the interval says. */
static void check_types(kvs__hf_writer *w, uint32_t every)
{
    kvs__jval types = kvs__hf_get(w, "layer_types");
    kvs__jval v = {NULL, 0};
    uint32_t i = 0;
    while (w->st == KVS_OK && kvs__json_kind(types) == KVS__JSON_ARRAY &&
           kvs__json_next(types, &v)) {
        i++;
        bool full = i % every == 0;
        if (!kvs__json_is(v, full ? "full_attention" : "linear_attention")) {
            kvs__hf_wrong(w, "layer_types", v, "what full_attention_interval says");
        }
    }
}

static void write_delta(kvs__hf_writer *w)
{
    static const pair counts[] = {
        {"linear_num_value_heads", "ssm.time_step_rank"},
        {"linear_num_key_heads", "ssm.group_count"},
        {"linear_key_head_dim", "ssm.state_size"},
        {"linear_conv_kernel_dim", "ssm.conv_kernel"},
        {"full_attention_interval", "full_attention_interval"},
        {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    };
    uint32_t every = 4;
    copy_counts(w, counts, KVS_COUNT(counts));
    put_inner(w, "linear_num_value_heads", "linear_value_head_dim");
    (void)kvs__hf_read_u32(w, "full_attention_interval", &every);
    if (every > 0) {
        check_types(w, every);
    }
    uint32_t width = 0;
    if (!kvs__hf_get(w, "intermediate_size").doc &&
        kvs__hf_read_u32(w, "moe_intermediate_size", &width)) {
        kvs__hf_put_u32(w, "feed_forward_length", width); /* all layers are mixtures */
    }
}

/* ---- Mamba-2 */

/* A number, or infinity: {"__float__": "Infinity"} is how newer files say it. */
static bool read_limit(kvs__jval v, double *out)
{
    if (kvs__json_is(kvs__json_get(v, "__float__"), "Infinity")) {
        *out = HUGE_VAL;
        return true;
    }
    return kvs__json_double(v, out) && *out >= 0.0;
}

/* The limits of the time step, of which the upper one may be infinite. */
static void write_limits(kvs__hf_writer *w)
{
    kvs__jval limits = kvs__hf_get(w, "time_step_limit");
    if (!limits.doc || w->st != KVS_OK) {
        return;
    }
    double x[2] = {0.0, 0.0};
    kvs__jval v = {NULL, 0};
    bool good = kvs__json_kind(limits) == KVS__JSON_ARRAY && kvs__json_count(limits) == 2;
    for (size_t i = 0; good && i < 2; i++) {
        good = kvs__json_next(limits, &v) && read_limit(v, &x[i]);
    }
    if (!good || x[0] > x[1] || x[1] == 0.0) {
        kvs__hf_wrong(w, "time_step_limit", limits, "a lower and an upper limit");
        return;
    }
    if (x[0] > 0.0) {
        kvs__hf_put_f32(w, "ssm.time_step_min", x[0]);
    }
    if (isfinite((float)x[1])) {
        kvs__hf_put_f32(w, "ssm.time_step_max", x[1]);
    }
}

static void write_mamba(kvs__hf_writer *w)
{
    static const pair counts[] = {
        {"num_hidden_layers", "block_count"},
        {"hidden_size", "embedding_length"},
        {"vocab_size", "vocab_size"},
        {"num_heads", "ssm.time_step_rank"},
        {"n_groups", "ssm.group_count"},
        {"ssm_state_size", "ssm.state_size"},
        {"state_size", "ssm.state_size"},
        {"conv_kernel", "ssm.conv_kernel"},
        {"max_position_embeddings", "context_length"},
    };
    double eps = 1e-5;
    copy_counts(w, counts, KVS_COUNT(counts));
    put_inner(w, "num_heads", "head_dim");
    kvs__hf_put_u32(w, "context_length", LONGEST);
    kvs__hf_put_u32(w, "feed_forward_length", 0);
    kvs__hf_put_u32(w, "ssm.norm_group_count", 1); /* normed as a whole, unlike GGUF's */
    (void)kvs__hf_read_number(w, "layer_norm_epsilon", &eps);
    kvs__hf_put_f32(w, "attention.layer_norm_rms_epsilon", eps);
    write_limits(w);
}

/* ---- Gemma 4 */

static void write_gemma4(kvs__hf_writer *w)
{
    static const pair counts[] = {
        {"global_head_dim", "attention.key_length"},
        {"global_head_dim", "attention.value_length"},
        {"head_dim", "attention.key_length_swa"},
        {"num_global_key_value_heads", "attention.head_count_kv_full"},
        {"num_kv_shared_layers", "attention.shared_kv_layers"},
        {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    };
    if (kvs__hf_read_bool(w, "enable_moe_block", false)) {
        kvs__hf_refuse(w, "enable_moe_block", "is true; models without experts run");
    }
    if (!kvs__hf_get(w, "rope_parameters").doc) {
        kvs__hf_refuse(w, "rope_parameters", "are missing");
    }
    copy_counts(w, counts, KVS_COUNT(counts));
    kvs__hf_put_bool(w, "feed_forward_double_wide",
                     kvs__hf_read_bool(w, "use_double_wide_mlp", true));
    kvs__hf_put_bool(w, "attention.key_is_value", kvs__hf_read_bool(w, "attention_k_eq_v", false));
    kvs__hf_put_f32(w, "attention.scale", 1.0);
    uint32_t width = 0;
    if (kvs__hf_read_u32(w, "hidden_size", &width)) {
        kvs__hf_put_f32(w, "embedding_scale", sqrt((double)width));
    }
}

/* ---- Granite 4 */

static void write_granite(kvs__hf_writer *w)
{
    static const pair counts[] = {
        {"mamba_n_heads", "ssm.time_step_rank"},
        {"mamba_n_groups", "ssm.group_count"},
        {"mamba_d_state", "ssm.state_size"},
        {"mamba_d_conv", "ssm.conv_kernel"},
        {"shared_intermediate_size", "expert_shared_feed_forward_length"},
        {"intermediate_size", "expert_feed_forward_length"},
    };
    static const pair scales[] = {
        {"embedding_multiplier", "embedding_scale"},
        {"residual_multiplier", "residual_scale"},
        {"attention_multiplier", "attention.scale"},
        {"logits_scaling", "logit_scale"},
    };
    double x = 0.0;
    copy_counts(w, counts, KVS_COUNT(counts));
    put_inner(w, "mamba_n_heads", "mamba_d_head");
    kvs__hf_put_u32(w, "ssm.norm_group_count", 1);
    for (size_t i = 0; i < KVS_COUNT(scales); i++) {
        if (kvs__hf_read_number(w, scales[i].name, &x)) {
            kvs__hf_put_f32(w, scales[i].suffix, x);
        }
    }
    kvs__jval kind = kvs__hf_get(w, "position_embedding_type");
    bool nope = kvs__json_is(kind, "nope");
    if (kind.doc && !nope && !kvs__json_is(kind, "rope") && w->st == KVS_OK) {
        kvs__hf_wrong(w, "position_embedding_type", kind, "rope or nope");
    }
    kvs__hf_put_bool(w, "attention.rotary", !nope);
    write_limits(w);
}

void kvs__hf_write_layers(kvs__hf_writer *w)
{
    uint32_t flags = w->hf->family->flags;
    if (flags & KVS__HF_DELTA) {
        write_delta(w);
    }
    if (flags & KVS__HF_MAMBA) {
        write_mamba(w);
    }
    if (flags & KVS__HF_GRANITE) {
        write_granite(w);
    }
    if (flags & KVS__HF_GEMMA4) {
        write_gemma4(w);
    }
}
