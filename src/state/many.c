/* SPDX-License-Identifier: MIT */
/* many.c: see many.h. A read that fails in the pool is done again by itself, for its message. */
#include "state/many.h"

#include <stdatomic.h>

#include "base/pool.h"
#include "state/layer.h"

typedef struct job {
    kvs_ctx *ctx;
    uint32_t layer;
    const kvs_attend *like;
    const kvs__read *reads;
    unsigned char *scratch;
    size_t each;   /* bytes of a thread, at least what any layer of the context needs */
    uint64_t most; /* longer ones are not for the pool */
    _Atomic int failed;
} job;

static kvs_attend desc_of(const job *j, size_t i)
{
    kvs_attend d = *j->like;
    d.n_queries = j->reads[i].n_queries;
    d.q = j->reads[i].q;
    d.out = j->reads[i].out;
    return d;
}

/* Work, in tokens read; 0 where the layer can't be read, which the read will tell. */
static uint64_t work_of(const job *j, size_t i)
{
    int64_t len = kvs_cache_length(j->reads[i].cache, j->layer);
    return len > 0 ? (uint64_t)len * j->reads[i].n_queries : 0;
}

static void read_item(void *arg, size_t i, uint32_t thread)
{
    job *j = arg;
    kvs__layer *l = NULL;
    if (work_of(j, i) > j->most) {
        return;
    }
    kvs_attend d = desc_of(j, i);
    kvs_status st = kvs__cache_layer(j->reads[i].cache, j->layer, &l, NULL);
    if (st == KVS_OK) {
        st = kvs__layer_attend_here(j->ctx, l, &d, j->scratch + thread * j->each, NULL);
    }
    if (st != KVS_OK) {
        atomic_store(&j->failed, 1);
    }
}

kvs_status kvs__attend_many(kvs_ctx *ctx, uint32_t layer, const kvs_attend *like,
                            const kvs__read *reads, uint32_t n, kvs_err *err)
{
    uint32_t threads = kvs__ctx_threads(ctx);
    size_t bytes = kvs__ctx_scratch_bytes(ctx);
    job j = {.ctx = ctx, .layer = layer, .like = like, .reads = reads};
    j.scratch = kvs__ctx_scratch(ctx, bytes);
    j.each = bytes / threads / 64 * 64;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++) {
        total += work_of(&j, i);
    }
    j.most = n >= threads ? total / threads : 0;
    if (j.most > 0) {
        kvs__pool_run(kvs__ctx_pool(ctx), n, read_item, &j);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (work_of(&j, i) > j.most || atomic_load(&j.failed)) {
            kvs_attend d = desc_of(&j, i);
            kvs_status st = kvs_cache_attend(reads[i].cache, layer, &d, err);
            if (st != KVS_OK) {
                return st;
            }
        }
    }
    return KVS_OK;
}
