/* SPDX-License-Identifier: MIT */
/* hf_build.h: writes tiny model directories for tests: safetensors files from a list of tensors,
 * and any text beside them. Single-threaded; a failure to write is fatal. */
#ifndef KVS_TESTS_SUPPORT_HF_BUILD_H
#define KVS_TESTS_SUPPORT_HF_BUILD_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct hf_buf {
    char data[1 << 16];
    size_t n;
} hf_buf;

/* A safetensors file in memory: header text and data grow side by side. */
typedef struct hf_file {
    hf_buf header;
    hf_buf data;
} hf_file;

static inline void hf_put(hf_buf *b, const void *p, size_t n)
{
    if (n > sizeof b->data - b->n) {
        abort();
    }
    memcpy(b->data + b->n, p, n);
    b->n += n;
}

static inline void hf_text(hf_buf *b, const char *s)
{
    hf_put(b, s, strlen(s));
}

/* shape "2,3"; bytes of data are made from the name, as small numbers of any float type. */
static inline void hf_add(hf_file *f, const char *name, const char *dtype, const char *shape,
                          size_t bytes)
{
    char line[512];
    (void)snprintf(line, sizeof line,
                   "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":"
                   "[%zu,%zu]}",
                   f->header.n ? "," : "", name, dtype, shape, f->data.n, f->data.n + bytes);
    hf_text(&f->header, line);
    uint32_t seed = 7;
    for (const char *p = name; *p; p++) {
        seed = seed * 31 + (unsigned char)*p;
    }
    size_t unit = strcmp(dtype, "F32") == 0 ? 4 : 2;
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        char c = (char)(seed >> 24);
        if (i % unit == unit - 1) { /* exponents about 1 */
            c = (char)((seed >> 17 & 0x80u) | 0x3cu);
        }
        hf_put(&f->data, &c, 1);
    }
}

/* The whole file; returns its bytes. */
static inline size_t hf_finish(const hf_file *f, uint8_t *out, size_t cap)
{
    size_t n = f->header.n + 2;
    if (8 + n + f->data.n > cap) {
        abort();
    }
    for (size_t i = 0; i < 8; i++) {
        out[i] = (uint8_t)(n >> (8 * i));
    }
    out[8] = '{';
    memcpy(out + 9, f->header.data, f->header.n);
    out[9 + f->header.n] = '}';
    memcpy(out + 8 + n, f->data.data, f->data.n);
    return 8 + n + f->data.n;
}

static inline void hf_write(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(path);
        abort();
    }
}

static inline void hf_write_text(const char *dir, const char *name, const char *text)
{
    hf_write(dir, name, text, strlen(text));
}

static inline void hf_write_file(const char *dir, const char *name, const hf_file *f)
{
    static uint8_t out[1 << 17];
    hf_write(dir, name, out, hf_finish(f, out, sizeof out));
}

static inline void hf_remove(const char *dir, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
}

/* The tensors of one layer of a llama of width 64, two heads of 32 (one for keys), feed-forward 64
 * and 40 tokens, all but those whose name is `skip`. */
static inline void hf_add_layer(hf_file *f, int layer, const char *skip)
{
    static const struct {
        const char *name;
        const char *shape;
        size_t n;
    } t[] = {
        {"input_layernorm", "64", 64},       {"post_attention_layernorm", "64", 64},
        {"self_attn.q_proj", "64,64", 4096}, {"self_attn.k_proj", "32,64", 2048},
        {"self_attn.v_proj", "32,64", 2048}, {"self_attn.o_proj", "64,64", 4096},
        {"mlp.gate_proj", "64,64", 4096},    {"mlp.up_proj", "64,64", 4096},
        {"mlp.down_proj", "64,64", 4096},
    };
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        char name[96];
        (void)snprintf(name, sizeof name, "model.layers.%d.%s.weight", layer, t[i].name);
        if (!skip || strcmp(skip, t[i].name) != 0) {
            hf_add(f, name, "BF16", t[i].shape, 2 * t[i].n);
        }
    }
}

static inline void hf_add_ends(hf_file *f)
{
    hf_add(f, "model.embed_tokens.weight", "F16", "40,64", 40 * 64 * 2);
    hf_add(f, "model.norm.weight", "F32", "64", 256);
}

#define HF_CONFIG                                                                                  \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"num_hidden_layers\":1,"                         \
    "\"intermediate_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                \
    "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":128,\"vocab_size\":40"

#endif
