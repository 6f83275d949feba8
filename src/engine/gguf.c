/* SPDX-License-Identifier: MIT */
/* gguf.c: opening and closing a GGUF file: header, order of the checks, names.
 *
 *     offset  bytes  header
 *     0       4      "GGUF"
 *     4       4      version: 2 or 3, u32
 *     8       8      number of tensors, u64
 *     16      8      number of keys, u64
 *     24      ...    keys (gguf_meta.c), tensor entries (gguf_tensor.c), padding to the alignment,
 *                    tensor data
 *
 * I1  Every pointer handed out lies inside [data, data + size).
 * I2  Memory taken is bounded by a small multiple of the bytes read; no count is believed before
 *     the bytes it speaks of were seen.
 * I3  A handle that exists passed every check; nothing is checked again on access. */
#include "engine/gguf.h"

#include <inttypes.h>
#include <string.h>

#include "engine/gguf_priv.h"

static kvs_status check_version(uint32_t version, kvs_err *err)
{
    if (version != 0 && (version & 0xffffu) == 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "GGUF file is big-endian (version field 0x%08" PRIx32
                         "); only little-endian files are read",
                         version);
    }
    if (version == 1) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "GGUF version 1 is not read (2 and 3 are); convert the file again");
    }
    if (version != 2 && version != 3) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "GGUF version %" PRIu32 " is not known (2 and 3 are)", version);
    }
    return KVS_OK;
}

static kvs_status check_magic(const kvs__gguf_cursor *c, kvs_err *err)
{
    if (c->size < 4) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "not a GGUF file: it has %zu bytes", c->size);
    }
    if (memcmp(c->data, "GGUF", 4) != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "not a GGUF file: it begins with bytes %02x %02x %02x %02x", c->data[0],
                         c->data[1], c->data[2], c->data[3]);
    }
    if (c->size < KVS__GGUF_HEADER_BYTES) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "file ends inside the header (%zu of %u bytes)", c->size,
                         KVS__GGUF_HEADER_BYTES);
    }
    return KVS_OK;
}

static kvs_status check_counts(const kvs__gguf_cursor *c, uint64_t n_tensors, uint64_t n_kv,
                               kvs_err *err)
{
    size_t left = c->size - c->at;
    if (n_kv > left / KVS__GGUF_KV_MIN) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "header claims %" PRIu64 " keys, too many for a file of %zu bytes", n_kv,
                         c->size);
    }
    if (n_tensors > left / KVS__GGUF_TENSOR_MIN) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "header claims %" PRIu64 " tensors, too many for a file of %zu bytes",
                         n_tensors, c->size);
    }
    return KVS_OK;
}

/* The tensor data begins at the next multiple of general.alignment, which is 32 unless stated. */
static kvs_status read_alignment(kvs__gguf *g, kvs_err *err)
{
    g->info.alignment = 32;
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, "general.alignment");
    if (!kv) {
        return KVS_OK;
    }
    if (kv->type != KVS__GGUF_U32) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "key 'general.alignment' is of type %s, expected u32",
                         kvs__gguf_vtype_name(kv->type));
    }
    uint32_t align = (uint32_t)kv->v.u;
    if (align < KVS__GGUF_MIN_ALIGN || (align & (align - 1)) != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "general.alignment %" PRIu32 " is not a power of two of at least %u",
                         align, KVS__GGUF_MIN_ALIGN);
    }
    g->info.alignment = align;
    return KVS_OK;
}

static kvs_status read_all(kvs__gguf *g, kvs_err *err)
{
    kvs__gguf_cursor c = {g->data, g->size, 0};
    kvs_status st = check_magic(&c, err);
    if (st != KVS_OK) {
        return st;
    }
    c.at = KVS__GGUF_HEADER_BYTES;
    g->info.version = kvs__gguf_le32(c.data + 4);
    st = check_version(g->info.version, err);
    if (st != KVS_OK) {
        return st;
    }
    uint64_t n_tensors = kvs__gguf_le64(c.data + 8);
    uint64_t n_kv = kvs__gguf_le64(c.data + 16);
    st = check_counts(&c, n_tensors, n_kv, err);
    if (st != KVS_OK) {
        return st;
    }
    st = kvs__gguf_read_meta(g, &c, n_kv, err);
    if (st != KVS_OK) {
        return st;
    }
    st = read_alignment(g, err);
    return st == KVS_OK ? kvs__gguf_read_tensors(g, &c, n_tensors, err) : st;
}

/* Takes over the map on success only. */
static kvs_status open_bytes(kvs_ctx *ctx, const void *bytes, size_t n, kvs__map map,
                             kvs__gguf **out, kvs_err *err)
{
    kvs__gguf *g = kvs__calloc(ctx, 1, sizeof *g);
    if (!g) {
        return kvs__nomem(err, "engine", sizeof *g);
    }
    g->ctx = ctx;
    g->data = bytes;
    g->size = n;
    g->info.file_bytes = n;
    kvs_status st = read_all(g, err);
    if (st != KVS_OK) {
        kvs__gguf_close(g);
        return st;
    }
    g->map = map;
    *out = g;
    return KVS_OK;
}

kvs_status kvs__gguf_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, kvs__gguf **out,
                              kvs_err *err)
{
    return open_bytes(ctx, bytes, n, (kvs__map){NULL, 0, {0}}, out, err);
}

kvs_status kvs__gguf_open(kvs_ctx *ctx, const char *path, kvs__gguf **out, kvs_err *err)
{
    kvs__map map = {NULL, 0, {0}};
    kvs_status st = kvs__map_open(path, &map, err);
    if (st != KVS_OK) {
        return st;
    }
    st = open_bytes(ctx, map.data, map.bytes, map, out, err);
    if (st != KVS_OK) {
        kvs__map_close(&map);
    }
    return st;
}

static void free_anchors(kvs__gguf *g, const kvs__gguf_kv *kv)
{
    if (kv->type != KVS__GGUF_ARRAY || !kv->v.a.anchors) {
        return;
    }
    union {
        const size_t *in;
        void *out;
    } p = {kv->v.a.anchors}; /* const is for the readers of the view */
    size_t n = (kv->v.a.n + KVS__GGUF_ANCHOR_STEP - 1) / KVS__GGUF_ANCHOR_STEP;
    kvs__free(g->ctx, p.out, n * sizeof(size_t));
}

void kvs__gguf_close(kvs__gguf *g)
{
    if (!g) {
        return;
    }
    for (size_t i = 0; i < g->info.n_kv; i++) {
        free_anchors(g, &g->kv[i]);
    }
    kvs__gguf_names_free(g->ctx, &g->kv_names);
    kvs__gguf_names_free(g->ctx, &g->tensor_names);
    kvs__free(g->ctx, g->kv, g->cap_kv * sizeof *g->kv);
    kvs__free(g->ctx, g->tensors, g->cap_tensors * sizeof *g->tensors);
    kvs__map_close(&g->map);
    kvs__free(g->ctx, g, sizeof *g);
}

kvs__gguf_info kvs__gguf_get_info(const kvs__gguf *g)
{
    return g->info;
}

const kvs__gguf_kv *kvs__gguf_kv_at(const kvs__gguf *g, size_t i)
{
    return i < g->info.n_kv ? &g->kv[i] : NULL;
}

const kvs__gguf_tensor *kvs__gguf_tensor_at(const kvs__gguf *g, size_t i)
{
    return i < g->info.n_tensors ? &g->tensors[i] : NULL;
}

const kvs__gguf_kv *kvs__gguf_kv_find(const kvs__gguf *g, const char *key)
{
    return kvs__gguf_kv_at(g, kvs__gguf_names_find(&g->kv_names, key, strlen(key)));
}

const kvs__gguf_tensor *kvs__gguf_tensor_find(const kvs__gguf *g, const char *name)
{
    return kvs__gguf_tensor_at(g, kvs__gguf_names_find(&g->tensor_names, name, strlen(name)));
}
