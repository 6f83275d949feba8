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
    const char *arch; /* "llama" or "gemma3" */
    uint32_t n_layers, d_model, d_ff, n_heads, n_kv_heads, dim, n_vocab, n_ctx;
    uint32_t window;
    int untied, bias, rope_freqs; /* llama only */
    int chat;                     /* with a tokenizer: n_vocab is TINY_CHAT_VOCAB */
    kvs__wtype type;              /* of the matrices */
    float rope_scale;             /* linear scaling factor, 0: none */
    const char *omit;             /* tensor or key left out */
    const char *wrong;            /* tensor one row too long */
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

/* Every byte, then <|im_start|>, <|im_end|> and <|endoftext|>. */
#define TINY_CHAT_VOCAB 259

typedef struct tiny_tensor {
    char name[64];
    uint64_t ne[2];
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
    if (strcmp(name, "rope_freqs.weight") == 0) {
        x->mean = 2.0f;
    }
}

static inline void tiny_layer(tiny_list *l, uint32_t i)
{
    const tiny *t = l->t;
    const uint64_t q = (uint64_t)t->n_heads * t->dim;
    const uint64_t kv = (uint64_t)t->n_kv_heads * t->dim;
    const struct {
        const char *name;
        uint64_t k, n;
        int on;
    } parts[] = {
        {"attn_norm.weight", t->d_model, 0, 1},
        {"attn_q.weight", t->d_model, q, 1},
        {"attn_k.weight", t->d_model, kv, 1},
        {"attn_v.weight", t->d_model, kv, 1},
        {"attn_q.bias", q, 0, t->bias},
        {"attn_k.bias", kv, 0, t->bias},
        {"attn_v.bias", kv, 0, t->bias},
        {"attn_output.weight", q, t->d_model, 1},
        {"ffn_norm.weight", t->d_model, 0, 1},
        {"ffn_gate.weight", t->d_model, t->d_ff, 1},
        {"ffn_up.weight", t->d_model, t->d_ff, 1},
        {"ffn_down.weight", t->d_ff, t->d_model, 1},
        {"attn_q_norm.weight", t->dim, 0, t->arch[0] == 'g'},
        {"attn_k_norm.weight", t->dim, 0, t->arch[0] == 'g'},
        {"post_attention_norm.weight", t->d_model, 0, t->arch[0] == 'g'},
        {"post_ffw_norm.weight", t->d_model, 0, t->arch[0] == 'g'},
    };
    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%u.%s", i, parts[p].name);
        if (parts[p].on) {
            tiny_add(l, name, parts[p].k, parts[p].n);
        }
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

static inline void tiny_keys(gb *b, const tiny *t)
{
    gb_kv_str(b, "general.architecture", t->arch);
    gb_kv_str(b, "general.name", "tiny");
    tiny_key(b, t, "block_count", t->n_layers, 0);
    tiny_key(b, t, "context_length", t->n_ctx, 0);
    tiny_key(b, t, "embedding_length", t->d_model, 0);
    tiny_key(b, t, "feed_forward_length", t->d_ff, 0);
    tiny_key(b, t, "attention.head_count", t->n_heads, 0);
    tiny_key(b, t, "attention.head_count_kv", t->n_kv_heads, 0);
    tiny_key(b, t, "attention.key_length", t->dim, 0);
    tiny_key(b, t, "attention.value_length", t->dim, 0);
    tiny_key(b, t, "attention.layer_norm_rms_epsilon", 1e-5, 1);
    tiny_key(b, t, "rope.freq_base", 5000.0, 1);
    if (t->window > 0) {
        tiny_key(b, t, "attention.sliding_window", t->window, 0);
    }
    if (t->rope_scale > 0.0f) {
        char key[96];
        (void)snprintf(key, sizeof key, "%s.rope.scaling.type", t->arch);
        gb_kv_str(b, key, "linear");
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
    for (uint32_t i = 0; i < t->n_layers; i++) {
        tiny_layer(&l, i);
    }
    uint64_t offset = 0;
    for (size_t i = 0; i < l.n; i++) {
        const kvs__wtype_info *info = kvs__wtype_get((uint32_t)l.v[i].type);
        uint64_t n = l.v[i].ne[0] * (l.v[i].n_dims > 1 ? l.v[i].ne[1] : 1);
        gb_tensor(b, l.v[i].name, l.v[i].n_dims, l.v[i].ne, (uint32_t)l.v[i].type, offset);
        offset += (n / info->block_elems * info->block_bytes + 31) / 32 * 32;
    }
    gb_pad(b, 32);
    uint64_t seed = t->seed;
    for (size_t i = 0; i < l.n; i++) {
        const kvs__wtype_info *info = kvs__wtype_get((uint32_t)l.v[i].type);
        uint64_t n = l.v[i].ne[0] * (l.v[i].n_dims > 1 ? l.v[i].ne[1] : 1);
        for (uint64_t k = 0; k < n; k += info->block_elems) {
            tiny_block(b, &l.v[i], &seed);
        }
        gb_pad(b, 32);
    }
}

/* Writes the model to a new file in the temporary folder; path is for unlink. */
static inline int tiny_write(const tiny *t, char *path, size_t n)
{
    gb b;
    tiny_build(&b, t);
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(path, n, "%s/kvs-tiny-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    int ok = fd >= 0 && write(fd, b.p, b.n) == (ssize_t)b.n;
    if (fd >= 0) {
        (void)close(fd);
    }
    gb_free(&b);
    return ok;
}

#endif
