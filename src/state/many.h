/* SPDX-License-Identifier: MIT */
/* many.h: causal reads of many caches of one context at once, for an engine that decodes rows.
 *
 * Each read is one item of the pool: with a few queries a row, that is one barrier for all rows
 * instead of one or two each, and no thread waits for a last head. A row that is longer than the
 * others together is shared out over the threads by itself. The bits are those of
 * kvs_cache_attend. */
#ifndef KVS_STATE_MANY_H
#define KVS_STATE_MANY_H

#include "kvstate/cache.h"

typedef struct kvs__read {
    kvs_cache *cache;
    uint32_t n_queries;
    const float *q;
    float *out;
} kvs__read;

/* like: what all reads have in common. The statuses of kvs_cache_attend; on failure some have been
 * done. */
kvs_status kvs__attend_many(kvs_ctx *ctx, uint32_t layer, const kvs_attend *like,
                            const kvs__read *reads, uint32_t n, kvs_err *err);

#endif
