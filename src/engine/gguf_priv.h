/* SPDX-License-Identifier: MIT */
/* gguf_priv.h: what the files of the GGUF reader share. Not for others. */
#ifndef KVS_ENGINE_GGUF_PRIV_H
#define KVS_ENGINE_GGUF_PRIV_H

#include "base/base.h"
#include "base/map.h"
#include "engine/gguf.h"

#define KVS__GGUF_ANCHOR_STEP  32u
#define KVS__GGUF_NAME_MAX     65535u
#define KVS__GGUF_MIN_ALIGN    8u  /* the format's own lower limit */
#define KVS__GGUF_KV_MIN       14u /* bytes of the smallest key: length, 1 byte, type, u8 value */
#define KVS__GGUF_TENSOR_MIN   33u /* bytes of the smallest tensor entry: 8 + 1 + 4 + 8 + 4 + 8 */
#define KVS__GGUF_HEADER_BYTES 24u

/* Open addressing over an array of structs whose first member is a kvs__str. slots[] holds index
 * + 1, 0 is empty; at most half full. The seed differs from handle to handle so that a file cannot
 * be made to collide. */
typedef struct kvs__gguf_names {
    const unsigned char *items;
    size_t stride;
    size_t n;
    uint32_t *slots;
    size_t n_slots; /* a power of two, 0 when n is 0 */
    uint64_t seed;
} kvs__gguf_names;

/* KVS_E_FORMAT, with the two indices, when a name occurs twice. */
kvs_status kvs__gguf_names_build(kvs_ctx *ctx, kvs__gguf_names *names, const char *what,
                                 kvs_err *err);
void kvs__gguf_names_free(kvs_ctx *ctx, kvs__gguf_names *names);
/* Index of the name or SIZE_MAX. */
size_t kvs__gguf_names_find(const kvs__gguf_names *names, const char *name, size_t len);

struct kvs__gguf {
    kvs_ctx *ctx;
    kvs__map map; /* bytes 0 when the memory is the caller's */
    const uint8_t *data;
    size_t size;
    kvs__gguf_info info;
    kvs__gguf_kv *kv; /* [cap_kv], info.n_kv filled */
    size_t cap_kv;
    kvs__gguf_tensor *tensors; /* [cap_tensors], info.n_tensors filled */
    size_t cap_tensors;
    kvs__gguf_names kv_names;
    kvs__gguf_names tensor_names;
};

/* Reading position; at <= size always. */
typedef struct kvs__gguf_cursor {
    const uint8_t *data;
    size_t size;
    size_t at;
} kvs__gguf_cursor;

/* A name as messages show it: at most 63 bytes, cut between characters. */
typedef struct kvs__gguf_quoted {
    char text[72];
} kvs__gguf_quoted;
kvs__gguf_quoted kvs__gguf_quote(kvs__str name);

/* Reads a key or tensor name and checks its length, encoding and characters; what is "key" or
 * "tensor", i its number in the file. */
kvs_status kvs__gguf_read_name(kvs__gguf_cursor *c, const char *what, uint64_t i, kvs__str *out,
                               kvs_err *err);
/* "file ends inside ..." */
kvs_status kvs__gguf_ends(const kvs__gguf_cursor *c, const char *what, kvs__str name,
                          const char *part, kvs_err *err);

/* Both leave g with what was read so far, for kvs__gguf_close to free. */
kvs_status kvs__gguf_read_meta(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t n, kvs_err *err);
kvs_status kvs__gguf_read_tensors(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t n, kvs_err *err);

static inline uint32_t kvs__gguf_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t kvs__gguf_le64(const uint8_t *p)
{
    return (uint64_t)kvs__gguf_le32(p) | (uint64_t)kvs__gguf_le32(p + 4) << 32;
}

/* NULL, and nothing consumed, if fewer than n bytes are left. */
static inline const uint8_t *kvs__gguf_take(kvs__gguf_cursor *c, uint64_t n)
{
    if (n > c->size - c->at) {
        return NULL;
    }
    const uint8_t *p = c->data + c->at;
    c->at += (size_t)n;
    return p;
}

static inline bool kvs__gguf_take_u32(kvs__gguf_cursor *c, uint32_t *out)
{
    const uint8_t *p = kvs__gguf_take(c, 4);
    if (p) {
        *out = kvs__gguf_le32(p);
    }
    return p != NULL;
}

static inline bool kvs__gguf_take_u64(kvs__gguf_cursor *c, uint64_t *out)
{
    const uint8_t *p = kvs__gguf_take(c, 8);
    if (p) {
        *out = kvs__gguf_le64(p);
    }
    return p != NULL;
}

#endif
