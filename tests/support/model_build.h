/* SPDX-License-Identifier: MIT */
/* model_build.h: tiny models with random weights as GGUF files, for tests of the engine. */
#ifndef KVS_TESTS_SUPPORT_MODEL_BUILD_H
#define KVS_TESTS_SUPPORT_MODEL_BUILD_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/half.h"
#include "gguf_build.h"

typedef struct tiny {
    const char *arch; /* any that the engine knows; general.architecture */
    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, dim, n_vocab, n_ctx;
    uint32_t window;
    int untied, bias, rope_freqs; /* llama, qwen2, qwen3 only */
    uint32_t n_experts, n_used, d_expert, n_shared, n_groups, n_best, n_dense;
    uint32_t q_rank, rank, nope, rot; /* deepseek2; dim is that of a value */
    int apart;                        /* deepseek2: attn_k_b and attn_v_b instead of attn_kv_b */
    int longrope;                     /* phi3 */
    /* Recurrent layers, all but every every-th: heads of s_head, a state of s_dim. */
    uint32_t s_heads, s_groups, s_head, s_dim, taps, every;
    int by_kind;                         /* qwen3next: attn_qkv and attn_gate instead of ssm_in */
    uint32_t d_gated;                    /* width of a shared expert with a gate */
    uint32_t full_dim, d_side, n_borrow; /* gemma4; every every-th layer sees all */
    int chat;                            /* with a tokenizer: n_vocab is TINY_CHAT_VOCAB */
    kvs__wtype type;                     /* of the matrices */
    float rope_scale;                    /* scaling factor, 0: none */
    const char *rope_type;               /* NULL: linear */
    const char *omit;                    /* tensor or key left out */
    const char *wrong;                   /* tensor one row too long */
    uint64_t seed;
} tiny;

#define TINY_LLAMA                                                                                 \
    {                                                                                              \
        .arch = "llama", .n_layers = 3, .d_model = 64, .d_ff = 96, .n_heads = 4, .n_kv_heads = 2,  \
        .dim = 16, .n_vocab = 97, .n_ctx = 256, .type = KVS__W_F32, .seed = 1                      \
    }
#define TINY_GEMMA                                                                                 \
    {                                                                                              \
        .arch = "gemma3", .n_layers = 7, .d_model = 64, .d_ff = 96, .n_heads = 4, .n_kv_heads = 1, \
        .dim = 32, .n_vocab = 97, .n_ctx = 256, .window = 24, .type = KVS__W_F32, .seed = 2        \
    }

#define TINY_EXPERTS                                                                               \
    .n_layers = 3, .d_model = 64, .d_ff = 96, .n_heads = 4, .n_kv_heads = 2, .dim = 16,            \
    .n_vocab = 97, .n_ctx = 256, .type = KVS__W_F32, .n_experts = 8, .n_used = 3, .d_expert = 32
#define TINY_MOE                                                                                   \
    {                                                                                              \
        .arch = "qwen3moe", TINY_EXPERTS, .seed = 3                                                \
    }
#define TINY_DEEPSEEK                                                                              \
    {                                                                                              \
        .arch = "deepseek2", TINY_EXPERTS, .n_shared = 2, .n_groups = 4, .n_best = 2,              \
        .n_dense = 1, .q_rank = 48, .rank = 32, .nope = 24, .rot = 16, .seed = 4                   \
    }

#define TINY_STATE .s_heads = 4, .s_groups = 2, .s_head = 24, .s_dim = 16, .taps = 4
#define TINY_QWEN3NEXT                                                                             \
    {                                                                                              \
        .arch = "qwen3next", .n_layers = 5, .d_model = 64, .d_ff = 96, .n_heads = 4,               \
        .n_kv_heads = 2, .dim = 16, .n_vocab = 97, .n_ctx = 256, .type = KVS__W_F32,               \
        .n_experts = 8, .n_used = 3, .d_expert = 32, .d_gated = 64, .rot = 8, TINY_STATE,          \
        .every = 2, .seed = 5                                                                      \
    }
#define TINY_MAMBA2                                                                                \
    {                                                                                              \
        .arch = "mamba2", .n_layers = 3, .d_model = 64, .n_vocab = 97, .n_ctx = 256,               \
        .type = KVS__W_F32, .bias = 1, TINY_STATE, .seed = 6                                       \
    }
#define TINY_GEMMA4                                                                                \
    {                                                                                              \
        .arch = "gemma4", .n_layers = 8, .d_model = 64, .d_ff = 96, .n_heads = 4, .n_kv_heads = 2, \
        .dim = 16, .full_dim = 32, .n_vocab = 97, .n_ctx = 256, .window = 24, .every = 3,          \
        .d_side = 16, .n_borrow = 4, .type = KVS__W_F32, .seed = 7                                 \
    }

/* Every byte, then <|im_start|>, <|im_end|> and <|endoftext|>. */
#define TINY_CHAT_VOCAB 259

typedef struct tiny_tensor {
    char name[64];
    uint64_t ne[3];
    uint32_t n_dims;
    kvs__wtype type;
    float mean, spread;
} tiny_tensor;

typedef struct tiny_list {
    const tiny *t;
    tiny_tensor v[256];
    size_t n;
} tiny_list;

static inline float tiny_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(*state >> 40) * 0x1p-23f - 1.0f;
}

static inline int tiny_is(const tiny *t, const char *arch)
{
    return strcmp(t->arch, arch) == 0;
}

static inline void tiny_add(tiny_list *l, const char *name, uint64_t k, uint64_t n)
{
    const tiny *t = l->t;
    if (t->omit && strcmp(t->omit, name) == 0) {
        return;
    }
    tiny_tensor *x = &l->v[l->n++];
    (void)snprintf(x->name, sizeof x->name, "%s", name);
    x->ne[0] = k;
    x->ne[1] = t->wrong && strcmp(t->wrong, name) == 0 ? n + 1 : n;
    x->n_dims = n ? 2 : 1;
    x->type = n ? t->type : KVS__W_F32;
    x->mean = n || strstr(name, "bias") ? 0.0f : 1.0f;
    x->spread = n ? 1.7f / sqrtf((float)k) : 0.3f;
    if (strncmp(name, "rope_f", 6) == 0) {
        x->mean = 2.0f;
    }
    if (strstr(name, "ssm_a") && !strstr(name, "weight")) {
        x->mean = -0.35f; /* the decay, negative */
    }
    if (strstr(name, "conv1d.weight")) {
        x->spread = 0.8f;
        x->type = KVS__W_F32;
    }
    if (strcmp(t->arch, "gemma4") == 0 && strstr(name, "attn_q_norm")) {
        x->mean = 0.2f; /* scores are scaled by these alone */
        x->spread = 0.05f;
    }
}

/* A matrix for each expert, one under the other. */
static inline void tiny_add_experts(tiny_list *l, const char *name, uint64_t k, uint64_t n)
{
    size_t before = l->n;
    tiny_add(l, name, k, n);
    if (l->n > before) {
        l->v[before].n_dims = 3;
        l->v[before].ne[2] = l->t->n_experts;
    }
}

static inline void tiny_latent(tiny_list *l, uint32_t i)
{
    const tiny *t = l->t;
    const uint64_t h = t->n_heads;
    const uint64_t head = t->nope + t->rot;
    const struct {
        const char *name;
        uint64_t k, n;
        int on;
    } parts[] = {
        {"attn_q.weight", t->d_model, h * head, !t->q_rank},
        {"attn_q_a.weight", t->d_model, t->q_rank, t->q_rank > 0},
        {"attn_q_a_norm.weight", t->q_rank, 0, t->q_rank > 0},
        {"attn_q_b.weight", t->q_rank, h * head, t->q_rank > 0},
        {"attn_kv_a_mqa.weight", t->d_model, t->rank + t->rot, 1},
        {"attn_kv_a_norm.weight", t->rank, 0, 1},
        {"attn_kv_b.weight", t->rank, h * (t->nope + t->dim), !t->apart},
        {"attn_k_b.weight", t->nope, h * t->rank, t->apart},
        {"attn_v_b.weight", t->rank, h * t->dim, t->apart},
        {"attn_output.weight", h * t->dim, t->d_model, 1},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s", i, parts[p].name);
        if (parts[p].on) {
            tiny_add(l, name, parts[p].k, parts[p].n);
        }
    }
}

static inline void tiny_recurrent(tiny_list *l, uint32_t i)
{
    const tiny *t = l->t;
    const int ssd = tiny_is(t, "mamba2");
    const uint64_t keys = (uint64_t)t->s_groups * t->s_dim;
    const uint64_t values = (uint64_t)t->s_heads * t->s_head;
    const struct {
        const char *name;
        uint64_t k, n;
        int on;
    } parts[] = {
        {"ssm_in.weight", t->d_model, 2 * values + 2 * keys + (ssd ? t->s_heads : 0), !t->by_kind},
        {"attn_qkv.weight", t->d_model, values + 2 * keys, t->by_kind},
        {"attn_gate.weight", t->d_model, values, t->by_kind},
        {"ssm_ba.weight", t->d_model, 2 * (uint64_t)t->s_heads, !ssd && tiny_is(t, "qwen3next")},
        {"ssm_alpha.weight", t->d_model, t->s_heads, tiny_is(t, "qwen35moe")},
        {"ssm_beta.weight", t->d_model, t->s_heads, tiny_is(t, "qwen35moe")},
        {"ssm_conv1d.weight", t->taps, values + 2 * keys, 1},
        {"ssm_conv1d.bias", values + 2 * keys, 0, ssd && t->bias},
        {"ssm_dt.bias", t->s_heads, 0, 1},
        {"ssm_a", t->s_heads, 0, 1},
        {"ssm_d", t->s_heads, 0, ssd},
        {"ssm_norm.weight", ssd ? values : t->s_head, 0, 1},
        {"ssm_out.weight", values, t->d_model, 1},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s", i, parts[p].name);
        if (parts[p].on) {
            tiny_add(l, name, parts[p].k, parts[p].n);
        }
    }
}

static inline void tiny_moe(tiny_list *l, uint32_t i)
{
    const tiny *t = l->t;
    const uint64_t shared = t->d_gated ? t->d_gated : (uint64_t)t->n_shared * t->d_expert;
    const struct {
        const char *name;
        uint64_t k, n;
        int on, each;
    } parts[] = {
        {"ffn_gate_inp.weight", t->d_model, t->n_experts, 1, 0},
        {"ffn_gate_exps.weight", t->d_model, t->d_expert, 1, 1},
        {"ffn_up_exps.weight", t->d_model, t->d_expert, 1, 1},
        {"ffn_down_exps.weight", t->d_expert, t->d_model, 1, 1},
        {"ffn_gate_shexp.weight", t->d_model, shared, shared > 0, 0},
        {"ffn_up_shexp.weight", t->d_model, shared, shared > 0, 0},
        {"ffn_down_shexp.weight", shared, t->d_model, shared > 0, 0},
        {"ffn_gate_inp_shexp.weight", t->d_model, 0, t->d_gated > 0, 0},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s", i, parts[p].name);
        if (parts[p].on && parts[p].each) {
            tiny_add_experts(l, name, parts[p].k, parts[p].n);
        } else if (parts[p].on) {
            tiny_add(l, name, parts[p].k, parts[p].n);
        }
    }
}

static inline void tiny_layer(tiny_list *l, uint32_t i)
{
    const tiny *t = l->t;
    const int latent = tiny_is(t, "deepseek2");
    const int fused = tiny_is(t, "phi3");
    const int four = tiny_is(t, "gemma4");
    const int next = tiny_is(t, "qwen3next") || tiny_is(t, "qwen35moe");
    const int state = t->s_heads > 0 && (t->every == 0 || (i + 1) % t->every != 0);
    const int bare = tiny_is(t, "mamba2");
    const int apart = !latent && !fused && !state;
    const int own = apart && i < t->n_layers - t->n_borrow;
    const int dense = !bare && (t->n_experts == 0 || i < t->n_dense);
    const int post = four || tiny_is(t, "gemma2") || tiny_is(t, "gemma3");
    const int wide = tiny_is(t, "olmoe");
    const int normed =
        !state && (wide || four || tiny_is(t, "gemma3") || strncmp(t->arch, "qwen3", 5) == 0);
    const uint64_t dim = four && (i + 1) % t->every == 0 ? t->full_dim : t->dim;
    const uint64_t q = t->n_heads * dim;
    const uint64_t kv = t->n_kv_heads * dim;
    const uint64_t d_ff = four && !own ? 2 * (uint64_t)t->d_ff : t->d_ff;
    const struct {
        const char *name;
        uint64_t k, n;
        int on;
    } parts[] = {
        {"attn_norm.weight", t->d_model, 0, 1},
        {"attn_qkv.weight", t->d_model, q + 2 * kv, fused},
        {"attn_q.weight", t->d_model, next ? 2 * q : q, apart},
        {"attn_k.weight", t->d_model, kv, own},
        {"attn_v.weight", t->d_model, kv, own},
        {"attn_q.bias", q, 0, t->bias && !bare},
        {"attn_k.bias", kv, 0, t->bias && !bare},
        {"attn_v.bias", kv, 0, t->bias && !bare},
        {"attn_output.weight", q, t->d_model, !latent && !state},
        {"ffn_norm.weight", t->d_model, 0, !next && !bare},
        {"ffn_gate.weight", t->d_model, d_ff, dense && !fused},
        {"ffn_up.weight", t->d_model, d_ff, dense && !fused},
        {"ffn_up.weight", t->d_model, 2 * (uint64_t)t->d_ff, dense && fused},
        {"ffn_down.weight", d_ff, t->d_model, dense},
        {"attn_q_norm.weight", wide ? q : dim, 0, normed},
        {"attn_k_norm.weight", wide ? kv : dim, 0, normed && own},
        {"post_attention_norm.weight", t->d_model, 0, post || next},
        {"post_ffw_norm.weight", t->d_model, 0, post},
        {"inp_gate.weight", t->d_model, t->d_side, t->d_side > 0},
        {"proj.weight", t->d_side, t->d_model, t->d_side > 0},
        {"post_norm.weight", t->d_model, 0, t->d_side > 0},
        {"layer_output_scale.weight", 1, 0, four},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s", i, parts[p].name);
        if (parts[p].on) {
            tiny_add(l, name, parts[p].k, parts[p].n);
        }
    }
    if (latent) {
        tiny_latent(l, i);
    }
    if (state) {
        tiny_recurrent(l, i);
    }
    if (!dense && !bare) {
        tiny_moe(l, i);
    }
}

static inline void tiny_key(gb *b, const tiny *t, const char *suffix, double x, int is_float)
{
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", t->arch, suffix);
    if (t->omit && strcmp(t->omit, key) == 0) {
        return;
    }
    if (is_float) {
        gb_kv_f32(b, key, (float)x);
    } else {
        gb_kv_u32(b, key, (uint32_t)x);
    }
}

/* Keys of mixtures of experts and latent attention. */
static inline void tiny_more_keys(gb *b, const tiny *t)
{
    const struct {
        const char *suffix;
        uint32_t value;
    } keys[] = {
        {"expert_count", t->n_experts},
        {"expert_used_count", t->n_used},
        {"expert_feed_forward_length", t->d_expert},
        {"expert_shared_count", t->n_shared},
        {"expert_group_count", t->n_groups},
        {"expert_group_used_count", t->n_best},
        {"leading_dense_block_count", t->n_dense},
        {"attention.q_lora_rank", t->q_rank},
        {"attention.kv_lora_rank", t->rank},
        {"attention.key_length_mla", t->apart ? t->nope + t->rot : 0},
        {"attention.value_length_mla", t->apart ? t->dim : 0},
        {"rope.dimension_count", t->rot},
        {"expert_shared_feed_forward_length", t->d_gated},
        {"ssm.time_step_rank", t->s_heads},
        {"ssm.group_count", t->s_groups},
        {"ssm.inner_size", t->s_heads * t->s_head},
        {"ssm.state_size", t->s_dim},
        {"ssm.conv_kernel", t->taps},
        {"full_attention_interval", t->s_heads ? t->every : 0},
        {"attention.sliding_window_pattern", t->full_dim ? t->every : 0},
        {"attention.key_length_swa", t->full_dim ? t->dim : 0},
        {"attention.shared_kv_layers", t->n_borrow},
        {"feed_forward_double_wide", t->n_borrow > 0},
        {"embedding_length_per_layer_input", t->d_side},
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i].value > 0 && strncmp(keys[i].suffix, "feed_forward_d", 14) == 0) {
            char key[96];
            (void)snprintf(key, sizeof key, "%s.%s", t->arch, keys[i].suffix);
            gb_kv_bool(b, key, 1);
        } else if (keys[i].value > 0) {
            tiny_key(b, t, keys[i].suffix, keys[i].value, 0);
        }
    }
    if (t->longrope) {
        tiny_key(b, t, "rope.scaling.original_context_length", 16, 0);
    }
}

static inline void tiny_keys(gb *b, const tiny *t)
{
    int latent = tiny_is(t, "deepseek2");
    gb_kv_str(b, "general.architecture", t->arch);
    gb_kv_str(b, "general.name", "tiny");
    tiny_key(b, t, "block_count", t->n_layers, 0);
    tiny_key(b, t, "context_length", t->n_ctx, 0);
    tiny_key(b, t, "embedding_length", t->d_model, 0);
    tiny_key(b, t, "feed_forward_length", t->d_ff, 0);
    tiny_key(b, t, "attention.head_count", t->n_heads, 0);
    tiny_key(b, t, "attention.head_count_kv", t->n_kv_heads, 0);
    uint32_t dim = t->full_dim ? t->full_dim : t->dim;
    uint32_t key_dim = latent ? (t->apart ? t->rank : t->nope) + t->rot : dim;
    tiny_key(b, t, "attention.key_length", key_dim, 0);
    tiny_key(b, t, "attention.value_length", latent && t->apart ? t->rank : dim, 0);
    tiny_more_keys(b, t);
    tiny_key(b, t, "attention.layer_norm_rms_epsilon", 1e-5, 1);
    tiny_key(b, t, "rope.freq_base", 5000.0, 1);
    if (t->window > 0) {
        tiny_key(b, t, "attention.sliding_window", t->window, 0);
    }
    if (t->rope_scale > 0.0f) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s.rope.scaling.type", t->arch);
        gb_kv_str(b, key, t->rope_type ? t->rope_type : "linear");
        tiny_key(b, t, "rope.scaling.factor", (double)t->rope_scale, 1);
    }
}

/* The visible character of a byte in the byte-level alphabet, as UTF-8. */
static inline void tiny_byte_text(int byte, char text[4])
{
    int cp = byte;
    int hidden = 0;
    for (int b = 0; b <= byte; b++) {
        int visible = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
        if (b == byte && !visible) {
            cp = 256 + hidden;
        }
        hidden += !visible;
    }
    memset(text, 0, 4);
    if (cp < 0x80) {
        text[0] = (char)cp;
    } else {
        text[0] = (char)(0xc0 | cp >> 6);
        text[1] = (char)(0x80 | (cp & 0x3f));
    }
}

static inline void tiny_tokenizer(gb *b)
{
    static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    gb_kv_str(b, "tokenizer.ggml.model", "gpt2");
    gb_kv_str(b, "tokenizer.ggml.pre", "gpt-2");
    gb_kv_array(b, "tokenizer.ggml.tokens", KVS__GGUF_STR, TINY_CHAT_VOCAB);
    for (int i = 0; i < 256; i++) {
        char text[4];
        tiny_byte_text(i, text);
        gb_str(b, text);
    }
    for (int i = 0; i < 3; i++) {
        gb_str(b, control[i]);
    }
    gb_kv_array(b, "tokenizer.ggml.token_type", KVS__GGUF_I32, TINY_CHAT_VOCAB);
    for (int i = 0; i < TINY_CHAT_VOCAB; i++) {
        gb_u32(b, i < 256 ? 1 : 3);
    }
    gb_kv_array(b, "tokenizer.ggml.merges", KVS__GGUF_STR, 0);
    gb_kv_u32(b, "tokenizer.ggml.eos_token_id", 257);
    gb_kv_str(
        b, "tokenizer.chat_template",
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\n"
        "Be brief.<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
}

/* One block of random content. Quantised types: Q8_0 and Q4_0 only. */
static inline void tiny_block(gb *b, const tiny_tensor *x, uint64_t *seed)
{
    float v[32];
    const kvs__wtype_info *info = kvs__wtype_get((uint32_t)x->type);
    float max = 1e-6f;
    for (uint32_t i = 0; i < info->block_elems; i++) {
        v[i] = x->mean + x->spread * tiny_random(seed);
        max = fabsf(v[i]) > max ? fabsf(v[i]) : max;
    }
    uint8_t out[34];
    uint16_t half = 0;
    switch (x->type) {
    case KVS__W_F32:
        gb_raw(b, v, 4);
        return;
    case KVS__W_F16:
        gb_le(b, kvs__f16_from_f32(v[0]), 2);
        return;
    case KVS__W_BF16:
        gb_le(b, kvs__bf16_from_f32(v[0]), 2);
        return;
    case KVS__W_Q8_0:
        half = kvs__f16_from_f32(max / 127.0f);
        for (uint32_t i = 0; i < 32; i++) {
            out[2 + i] = (uint8_t)(int8_t)lrintf(v[i] / max * 127.0f);
        }
        break;
    default:
        half = kvs__f16_from_f32(max / 7.0f);
        for (uint32_t i = 0; i < 16; i++) {
            int lo = (int)lrintf(v[i] / max * 7.0f) + 8;
            int hi = (int)lrintf(v[i + 16] / max * 7.0f) + 8;
            out[2 + i] = (uint8_t)(lo | hi << 4);
        }
        break;
    }
    memcpy(out, &half, 2);
    gb_raw(b, out, info->block_bytes);
}

static inline uint64_t tiny_elements(const tiny_tensor *x)
{
    uint64_t n = x->ne[0];
    for (uint32_t d = 1; d < x->n_dims; d++) {
        n *= x->ne[d];
    }
    return n;
}

static inline void tiny_build(gb *b, const tiny *t)
{
    static tiny_list l;
    l.t = t;
    l.n = 0;
    gb_init(b, 3);
    tiny_keys(b, t);
    if (t->chat) {
        tiny_tokenizer(b);
    }
    tiny_add(&l, "token_embd.weight", t->d_model, t->n_vocab);
    tiny_add(&l, "output_norm.weight", t->d_model, 0);
    if (t->untied) {
        tiny_add(&l, "output.weight", t->d_model, t->n_vocab);
    }
    if (t->rope_freqs) {
        tiny_add(&l, "rope_freqs.weight", t->dim / 2, 0);
    }
    if (t->longrope) {
        tiny_add(&l, "rope_factors_long.weight", t->dim / 2, 0);
        tiny_add(&l, "rope_factors_short.weight", t->dim / 2, 0);
    }
    if (t->d_side > 0) {
        const uint64_t all = (uint64_t)t->n_layers * t->d_side;
        tiny_add(&l, "per_layer_token_embd.weight", all, t->n_vocab);
        tiny_add(&l, "per_layer_model_proj.weight", t->d_model, all);
        tiny_add(&l, "per_layer_proj_norm.weight", t->d_side, 0);
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        tiny_layer(&l, i);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < l.n; i++) {
        const kvs__wtype_info *info = kvs__wtype_get((uint32_t)l.v[i].type);
        uint64_t n = tiny_elements(&l.v[i]);
        gb_tensor(b, l.v[i].name, l.v[i].n_dims, l.v[i].ne, (uint32_t)l.v[i].type, offset);
        offset += (n / info->block_elems * info->block_bytes + 31) / 32 * 32;
    }
    gb_pad(b, 32);
    uint64_t seed = t->seed;
    for (size_t i = 0; i < l.n; i++) {
        const kvs__wtype_info *info = kvs__wtype_get((uint32_t)l.v[i].type);
        uint64_t n = tiny_elements(&l.v[i]);
        for (uint64_t k = 0; k < n; k += info->block_elems) {
            tiny_block(b, &l.v[i], &seed);
        }
        gb_pad(b, 32);
    }
}

/* 1: the model is in the file. */
static inline int tiny_save(const tiny *t, const char *path)
{
    gb b;
    tiny_build(&b, t);
    FILE *f = fopen(path, "wb");
    int ok = f && fwrite(b.p, 1, b.n, f) == b.n;
    ok = f && fclose(f) == 0 && ok;
    gb_free(&b);
    return ok;
}

/* The same in a new file in the temporary folder; path is for unlink. */
static inline int tiny_write(const tiny *t, char *path, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(path, n, "%s/kvs-tiny-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    return fd >= 0 && close(fd) == 0 && tiny_save(t, path);
}

#endif
