/* SPDX-License-Identifier: MIT */
/* ops_paged.h: the pool of an op program, drawn with any block size, scrambled and sometimes tight,
 * and a fork of one layer, made inside the library. */
#ifndef KVS_TESTS_DIFF_OPS_PAGED_H
#define KVS_TESTS_DIFF_OPS_PAGED_H

#include "state/pages_priv.h"

/* block: 0..7 picks a size; order: 0 keeps the order of blocks; tight: a limit of some KiB. */
static inline kvs_pages *ops_pool(kvs_ctx *ctx, uint32_t block, uint32_t order, uint32_t tight)
{
    static const uint32_t sizes[] = {64, 16, 1, 3, 17, 256, 40, 0};
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = sizes[block % 8];
    o.chunk_bytes = order % 3 ? (size_t)order * 4096 : 0;
    o.max_bytes = tight ? (size_t)tight * 16384 : 0;
    if (kvs_pages_new(ctx, &o, &p, NULL) == KVS_OK) {
        kvs__pages_scramble(p, order);
    }
    return p;
}

/* A cache of one layer that shares the first n tokens of a paged layer; NULL if memory is short. */
static inline kvs_cache *ops_fork(kvs_ctx *ctx, kvs_pages *pages, const kvs_cache *src,
                                  uint32_t layer, int64_t n)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    const kvs__layer *from = &src->layer[layer];
    o.n_layers = 1;
    o.layers = &from->spec;
    o.pages = pages;
    if (kvs_cache_new(ctx, &o, &c, NULL) != KVS_OK) {
        return NULL;
    }
    kvs__layer *to = &c->layer[0];
    int64_t main = n < from->main.len ? n : from->main.len;
    int64_t early = n < from->early.len ? n : from->early.len;
    main = n < (int64_t)from->spec.dense_until ? 0 : main;
    if (kvs__paged_fork(ctx, &from->main, main, &to->main, NULL) != KVS_OK ||
        kvs__paged_fork(ctx, &from->early, early, &to->early, NULL) != KVS_OK) {
        kvs_cache_free(c);
        return NULL;
    }
    return c;
}

#endif
