/* SPDX-License-Identifier: MIT */
/* rec_snapshot.c: the planes of recurrent layers in one piece of bytes (docs/format.md): of one layer
 * for saved state, of all of them at one position for whoever keeps them (a prefix index). */
#include <string.h>

#include "state/layer.h"

/* Where the state begins, after the tail. */
static size_t state_at(const kvs_recurrent_spec *s)
{
    size_t element = s->conv_dtype == KVS_F32 ? 4 : 2;
    size_t tail = s->conv_dim ? (size_t)(s->conv_taps - 1) * s->conv_dim * element : 0;
    return (tail + 7) & ~(size_t)7;
}

bool kvs__rec_packed_bytes(const kvs_recurrent_spec *s, size_t *bytes)
{
    size_t row = (size_t)s->head_dim * s->state_dim * sizeof(float);
    size_t state = 0;
    bool ok =
        kvs__mul_size(row, s->n_heads, &state) && kvs__add_size(state, state_at(s) + 7, bytes);
    *bytes &= ~(size_t)7;
    return ok;
}

static void pack(const kvs__rec *r, int64_t at, unsigned char *dst)
{
    kvs__rec_export(r, at, dst, (float *)(void *)(dst + state_at(&r->spec)));
}

kvs_status kvs__rec_pack(kvs_ctx *ctx, const kvs__rec *r, int64_t at, unsigned char *dst,
                         kvs_err *err)
{
    if (kvs__rec_kept(r, at) == at) {
        pack(r, at, dst);
        return KVS_OK;
    }
    kvs__rec *copy = NULL; /* only rewound to: in a copy */
    kvs_status st = kvs__rec_fork(ctx, r, at, &copy, err);
    if (st == KVS_OK) {
        pack(copy, at, dst);
    }
    kvs__rec_free(ctx, copy);
    return st;
}

kvs_status kvs__rec_unpack(kvs_ctx *ctx, kvs__rec *r, int64_t at, const unsigned char *src,
                           kvs_err *err)
{
    const float *state = (const float *)(const void *)(src + state_at(&r->spec));
    return kvs__rec_import(ctx, r, at, src, state, err);
}

/* ---- all of a cache */

size_t kvs_recurrent_snapshot_bytes(const kvs_cache *c)
{
    size_t sum = 0;
    for (uint32_t i = 0; c && i < c->n_layers; i++) {
        size_t one = 0;
        const kvs__rec *r = c->layer[i].rec;
        if (r && !(kvs__rec_packed_bytes(&r->spec, &one) && kvs__add_size(sum, one, &sum))) {
            return 0; /* no cache holds what overflows */
        }
    }
    return sum;
}

static kvs_status check(const kvs_cache *c, int64_t at, const void *p, size_t bytes,
                        const char *what, kvs_err *err)
{
    if (!c || !p || (uintptr_t)p % 8 != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is %s", c ? what : "cache",
                         c && p ? "not aligned to 8" : "NULL");
    }
    size_t need = kvs_recurrent_snapshot_bytes(c);
    if (need == 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "no layer is recurrent");
    }
    if (bytes != need) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%zu bytes of recurrent state, not %zu", bytes,
                         need);
    }
    if (at < 0 || at > INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "recurrent state after %lld tokens",
                         (long long)at);
    }
    return KVS_OK;
}

static kvs_status check_reach(const kvs_cache *c, int64_t at, kvs_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const kvs__rec *r = c->layer[i].rec;
        if (!r) {
            continue;
        }
        if (at > r->len || !kvs__rec_can_rewind(r, (uint64_t)(r->len - at))) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "layer %u: %lld is not among positions %lld to %lld", i, (long long)at,
                             (long long)kvs__rec_oldest(r), (long long)r->len);
        }
        kvs_status st = kvs__rec_check_open(r, at, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

kvs_status kvs_recurrent_snapshot(const kvs_cache *c, int64_t at, void *dst, size_t bytes,
                                  kvs_err *err)
{
    kvs_status st = check(c, at, dst, bytes, "dst", err);
    st = st == KVS_OK ? check_reach(c, at, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    unsigned char *to = dst;
    memset(to, 0, bytes); /* gaps between planes */
    for (uint32_t i = 0; i < c->n_layers && st == KVS_OK; i++) {
        const kvs__rec *r = c->layer[i].rec;
        size_t one = 0;
        if (r && kvs__rec_packed_bytes(&r->spec, &one)) {
            st = kvs__rec_pack(c->ctx, r, at, to, err);
            to += one;
        }
    }
    return st;
}

kvs_status kvs_recurrent_resume(kvs_cache *c, int64_t at, const void *src, size_t bytes,
                                kvs_err *err)
{
    kvs_status st = check(c, at, src, bytes, "src", err);
    st = st == KVS_OK ? kvs__cache_closed(c, "resume", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    const unsigned char *from = src;
    for (uint32_t i = 0; i < c->n_layers && st == KVS_OK; i++) {
        kvs__rec *r = c->layer[i].rec;
        size_t one = 0;
        if (r && kvs__rec_packed_bytes(&r->spec, &one)) {
            st = kvs__rec_unpack(c->ctx, r, at, from, err);
            from += one;
        }
    }
    for (uint32_t i = 0; i < c->n_layers && st != KVS_OK; i++) {
        if (c->layer[i].rec) {
            kvs__rec_clear(c->ctx, c->layer[i].rec);
        }
    }
    return st;
}
