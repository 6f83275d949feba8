/* SPDX-License-Identifier: MIT */
/* gguf_build.h: builds GGUF files in memory, correct or broken on purpose.
 *
 * gb_init writes a header; gb_kv_* and gb_tensor append and count themselves in; gb_pad and gb_raw
 * append the data. Every piece can also be put by hand with gb_u32, gb_u64, gb_str, gb_raw. */
#ifndef KVS_TESTS_SUPPORT_GGUF_BUILD_H
#define KVS_TESTS_SUPPORT_GGUF_BUILD_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"

typedef struct gb {
    uint8_t *p;
    size_t n;
    size_t cap;
} gb;

static inline void gb_raw(gb *b, const void *bytes, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->p = realloc(b->p, b->cap);
        if (!b->p) {
            abort();
        }
    }
    if (n > 0) {
        memcpy(b->p + b->n, bytes, n);
        b->n += n;
    }
}

static inline void gb_le(gb *b, uint64_t x, size_t bytes)
{
    uint8_t le[8];
    for (size_t i = 0; i < bytes; i++) {
        le[i] = (uint8_t)(x >> (8 * i));
    }
    gb_raw(b, le, bytes);
}

static inline void gb_u32(gb *b, uint32_t x)
{
    gb_le(b, x, 4);
}

static inline void gb_u64(gb *b, uint64_t x)
{
    gb_le(b, x, 8);
}

static inline void gb_str(gb *b, const char *s)
{
    gb_u64(b, strlen(s));
    gb_raw(b, s, strlen(s));
}

static inline void gb_set(gb *b, size_t at, uint64_t x, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        b->p[at + i] = (uint8_t)(x >> (8 * i));
    }
}

/* One more in the header's counter at byte `at`. */
static inline void gb_count(gb *b, size_t at)
{
    uint64_t n = 0;
    for (size_t i = 0; i < 8; i++) {
        n |= (uint64_t)b->p[at + i] << (8 * i);
    }
    gb_set(b, at, n + 1, 8);
}

static inline void gb_init(gb *b, uint32_t version)
{
    *b = (gb){NULL, 0, 0};
    gb_raw(b, "GGUF", 4);
    gb_u32(b, version);
    gb_u64(b, 0);
    gb_u64(b, 0);
}

static inline void gb_free(gb *b)
{
    free(b->p);
    *b = (gb){NULL, 0, 0};
}

/* Key and type; the value is to follow. */
static inline void gb_key(gb *b, const char *key, kvs__gguf_vtype type)
{
    gb_count(b, 16);
    gb_str(b, key);
    gb_u32(b, (uint32_t)type);
}

/* Any integer type or bool, of that many bytes. */
static inline void gb_kv_int(gb *b, const char *key, kvs__gguf_vtype type, uint64_t x, size_t bytes)
{
    gb_key(b, key, type);
    gb_le(b, x, bytes);
}

static inline void gb_kv_u32(gb *b, const char *key, uint32_t x)
{
    gb_kv_int(b, key, KVS__GGUF_U32, x, 4);
}

static inline void gb_kv_bool(gb *b, const char *key, int x)
{
    gb_kv_int(b, key, KVS__GGUF_BOOL, x ? 1 : 0, 1);
}

static inline void gb_kv_f32(gb *b, const char *key, float x)
{
    uint32_t u = 0;
    memcpy(&u, &x, sizeof u);
    gb_kv_int(b, key, KVS__GGUF_F32, u, 4);
}

static inline void gb_kv_f64(gb *b, const char *key, double x)
{
    uint64_t u = 0;
    memcpy(&u, &x, sizeof u);
    gb_kv_int(b, key, KVS__GGUF_F64, u, 8);
}

static inline void gb_kv_str(gb *b, const char *key, const char *s)
{
    gb_key(b, key, KVS__GGUF_STR);
    gb_str(b, s);
}

/* Array header; the n elements are to follow. */
static inline void gb_kv_array(gb *b, const char *key, kvs__gguf_vtype type, uint64_t n)
{
    gb_key(b, key, KVS__GGUF_ARRAY);
    gb_u32(b, (uint32_t)type);
    gb_u64(b, n);
}

static inline void gb_tensor(gb *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                             uint32_t type, uint64_t offset)
{
    gb_count(b, 8);
    gb_str(b, name);
    gb_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) {
        gb_u64(b, ne[d]);
    }
    gb_u32(b, type);
    gb_u64(b, offset);
}

static inline void gb_pad(gb *b, size_t align)
{
    while (b->n % align != 0) {
        gb_raw(b, "", 1);
    }
}

/* n bytes that count up. */
static inline void gb_fill(gb *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t x = (uint8_t)(i * 7 + 1);
        gb_raw(b, &x, 1);
    }
}

/* A valid file with every value type, arrays of every element type, strings beyond one anchor, and
 * tensors of four types; it ends with the last tensor's last byte. */
static inline void gb_sample(gb *b, uint32_t version)
{
    static const size_t bytes[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    static const char *const key[13] = {"u8",   "i8",  "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "str", "array", "u64", "i64", "f64"};
    gb_init(b, version);
    gb_kv_str(b, "general.architecture", "llama");
    for (uint32_t t = 0; t < 13; t++) {
        char name[32] = "a.";
        strcat(name, key[t]);
        if (bytes[t] > 0) {
            gb_kv_int(b, key[t], (kvs__gguf_vtype)t, t == KVS__GGUF_BOOL ? 1 : 0x4041, bytes[t]);
            gb_kv_array(b, name, (kvs__gguf_vtype)t, 3);
            for (uint64_t i = 0; i < 3; i++) {
                gb_le(b, t == KVS__GGUF_BOOL ? i & 1 : i, bytes[t]);
            }
        }
    }
    gb_kv_u32(b, "general.alignment", 16);
    gb_kv_array(b, "empty", KVS__GGUF_STR, 0);
    gb_kv_array(b, "strings", KVS__GGUF_STR, 35);
    for (int i = 0; i < 35; i++) {
        char s[8] = {(char)('a' + i % 26), (char)('0' + i % 10), 0};
        gb_str(b, i % 4 == 0 ? "" : s);
    }
    const uint64_t ne[4] = {32, 2, 1, 1};
    gb_tensor(b, "norm", 1, ne, KVS__W_F32, 80);
    gb_tensor(b, "blk.0.w", 2, ne, KVS__W_Q4_1, 0);
    gb_tensor(b, "blk.0.v", 4, ne, KVS__W_Q8_0, 48);
    gb_set(b, b->n - 8, 208, 8);
    gb_tensor(b, "half", 1, ne, KVS__W_F16, 288);
    gb_pad(b, 16);
    gb_fill(b, 288 + 64);
}

#endif
