/* SPDX-License-Identifier: MIT */
/* rows_rig.h: what tests of row sets share: rows of the token streams of cache_rig.h, blocks of
 * which only a part belongs to the stream (drafts), and a row held against a cache of its own. */
#ifndef KVS_TESTS_SUPPORT_ROWS_RIG_H
#define KVS_TESTS_SUPPORT_ROWS_RIG_H

#include "support/cache_rig.h"

#define RIG_JUNK 9001u /* the stream of tokens that are to be rejected */

/* A block of n tokens in one append: the first `good` of stream `seed`, the others not. */
static inline kvs_status rig_draft(kvs_cache *c, uint32_t layer, uint32_t n, uint32_t good,
                                   uint64_t seed)
{
    const kvs_layer_spec *s = kvs_cache_spec(c, layer);
    int64_t at = kvs_cache_length(c, layer);
    size_t kf = (size_t)s->n_kv_heads * s->k_dim;
    size_t vf = (size_t)s->n_kv_heads * s->v_dim;
    float *k = rig_rows(2 * RIG_JUNK, at, n, kf);
    float *v = rig_rows(2 * RIG_JUNK + 1, at, n, vf);
    float *gk = rig_rows(2 * seed, at, good, kf);
    float *gv = rig_rows(2 * seed + 1, at, good, vf);
    memcpy(k, gk, good * kf * sizeof *k);
    memcpy(v, gv, good * vf * sizeof *v);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = k;
    kv.v = v;
    kvs_status st = kvs_cache_append(c, layer, &kv, NULL);
    free(k);
    free(v);
    free(gk);
    free(gv);
    return st;
}

/* A cache of these layers with the first n tokens of the stream, token by token. */
static inline kvs_cache *rig_solo(kvs_ctx *ctx, const kvs_layer_spec *specs, uint32_t n_layers,
                                  uint32_t n, uint64_t seed)
{
    kvs_cache *c = rig_cache(ctx, specs, n_layers, 0);
    for (uint32_t i = 0; i < n_layers; i++) {
        if (specs[i].kind != KVS_LAYER_BORROW) {
            rig_fill(c, i, n, 1, seed);
        }
    }
    return c;
}

/* 1 if layer i of both holds the same bytes (where both hold a token) and reads the same. */
static inline int rig_alike(kvs_cache *a, kvs_cache *b, uint32_t i)
{
    int64_t len = kvs_cache_length(a, i);
    int64_t from = kvs_cache_oldest(a, i);
    from = from > kvs_cache_oldest(b, i) ? from : kvs_cache_oldest(b, i);
    if (len != kvs_cache_length(b, i)) {
        return 0;
    }
    if (len == 0) {
        return 1;
    }
    size_t bytes = 0;
    void *x = rig_export(a, i, from, (uint64_t)(len - from), &bytes);
    void *y = rig_export(b, i, from, (uint64_t)(len - from), &bytes);
    int same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    const kvs_layer_spec *s = kvs_cache_spec(a, i);
    float *p = rig_read(a, i, 1, 2);
    float *q = rig_read(b, i, 1, 2);
    same = same && memcmp(p, q, (size_t)s->n_kv_heads * 2 * s->v_dim * sizeof *p) == 0;
    free(p);
    free(q);
    return same;
}

static inline kvs_rows *rig_rows_of(kvs_ctx *ctx, kvs_cache *const *caches, uint32_t n)
{
    kvs_rows *rows = NULL;
    rig_must(kvs_rows_merge(ctx, caches, n, &rows, NULL));
    return rows;
}

static inline void rig_begin(kvs_rows *rows, uint32_t drafts)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    o.n_drafts = drafts;
    rig_must(kvs_txn_begin(rows, &o, NULL));
}

#endif
