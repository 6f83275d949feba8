/* SPDX-License-Identifier: MIT */
/* gguf_walk.h: touches everything that an open GGUF file offers, so that a sanitizer or a guard
 * page sees every wrong bound, and checks what must hold for any file that opened. */
#ifndef KVS_TESTS_SUPPORT_GGUF_WALK_H
#define KVS_TESTS_SUPPORT_GGUF_WALK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"

#define GGUF_WALK_CHECK(x) ((x) ? (void)0 : abort())

static inline uint64_t gguf_walk_bytes(uint64_t sum, const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++) {
        sum = sum * 31 + b[i];
    }
    return sum;
}

static inline uint64_t gguf_walk_array(uint64_t sum, const kvs__gguf_array *a)
{
    size_t at = 0;
    size_t seen = 0;
    kvs__str s = {"", 0};
    if (a->type != KVS__GGUF_STR) {
        for (size_t i = 0; i < a->n; i++) {
            bool real = a->type == KVS__GGUF_F32 || a->type == KVS__GGUF_F64;
            float f = real ? kvs__gguf_array_f32(a, i) : (float)kvs__gguf_array_int(a, i);
            sum = gguf_walk_bytes(sum, &f, sizeof f);
        }
        return sum;
    }
    for (; kvs__gguf_array_next(a, &at, &s); seen++) {
        sum = gguf_walk_bytes(sum, s.ptr, s.len);
        if (seen % 29 == 0 || seen + 1 == a->n) {
            kvs__str t = kvs__gguf_array_str(a, seen);
            GGUF_WALK_CHECK(t.ptr == s.ptr && t.len == s.len);
        }
    }
    GGUF_WALK_CHECK(seen == a->n && at == a->bytes);
    return sum;
}

static inline void gguf_walk_getters(const kvs__gguf *g, const kvs__gguf_kv *kv)
{
    char key[256];
    if (kv->key.len >= sizeof key || memchr(kv->key.ptr, 0, kv->key.len)) {
        return;
    }
    memcpy(key, kv->key.ptr, kv->key.len);
    key[kv->key.len] = 0;
    GGUF_WALK_CHECK(kvs__gguf_kv_find(g, key) == kv);
    union {
        uint32_t u32;
        uint64_t u64;
        int64_t i64;
        float f32;
        bool b;
        kvs__str s;
        kvs__gguf_array a;
    } out;
    kvs_status st[7] = {
        kvs__gguf_get_u32(g, key, &out.u32, NULL),
        kvs__gguf_get_u64(g, key, &out.u64, NULL),
        kvs__gguf_get_i64(g, key, &out.i64, NULL),
        kvs__gguf_get_f32(g, key, &out.f32, NULL),
        kvs__gguf_get_bool(g, key, &out.b, NULL),
        kvs__gguf_get_str(g, key, &out.s, NULL),
        kvs__gguf_get_array(g, key, KVS__GGUF_STR, &out.a, NULL),
    };
    for (size_t i = 0; i < 7; i++) {
        GGUF_WALK_CHECK(st[i] != KVS_NO);
    }
}

static inline uint64_t gguf_walk_tensor(uint64_t sum, const kvs__gguf *g, const kvs__gguf_tensor *t)
{
    const kvs__wtype_info *w = kvs__wtype_get((uint32_t)t->type);
    kvs__gguf_info info = kvs__gguf_get_info(g);
    GGUF_WALK_CHECK(w && t->n_dims >= 1 && t->n_dims <= 4);
    GGUF_WALK_CHECK(t->bytes == t->n_rows * t->row_bytes && t->bytes > 0);
    GGUF_WALK_CHECK(t->offset % info.alignment == 0);
    GGUF_WALK_CHECK(info.data_offset + t->offset + t->bytes <= info.file_bytes);
    float block[256];
    kvs__gguf_dequant(t->type, t->data, w->block_elems, block);
    return gguf_walk_bytes(gguf_walk_bytes(sum, block, sizeof block[0]), t->data, t->bytes);
}

static inline uint64_t gguf_walk(const kvs__gguf *g)
{
    kvs__gguf_info info = kvs__gguf_get_info(g);
    uint64_t sum = 0;
    for (size_t i = 0; i < info.n_kv; i++) {
        const kvs__gguf_kv *kv = kvs__gguf_kv_at(g, i);
        sum = gguf_walk_bytes(sum, kv->key.ptr, kv->key.len);
        if (kv->type == KVS__GGUF_ARRAY) {
            sum = gguf_walk_array(sum, &kv->v.a);
        } else if (kv->type == KVS__GGUF_STR) {
            sum = gguf_walk_bytes(sum, kv->v.s.ptr, kv->v.s.len);
        }
        gguf_walk_getters(g, kv);
    }
    for (size_t i = 0; i < info.n_tensors; i++) {
        sum = gguf_walk_tensor(sum, g, kvs__gguf_tensor_at(g, i));
    }
    GGUF_WALK_CHECK(!kvs__gguf_kv_at(g, info.n_kv) && !kvs__gguf_tensor_at(g, info.n_tensors));
    return sum;
}

#endif
