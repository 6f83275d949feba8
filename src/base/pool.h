/* SPDX-License-Identifier: MIT */
/* pool.h: a pool of threads that runs n independent items.
 *
 * The split never changes a result: an item writes only its own output, and which thread runs it is
 * of no consequence. Each thread starts in a range of its own and takes items one by one, in order;
 * a thread that is done helps in the other ranges, so that one that the scheduler took off its CPU
 * holds up at most the item in its hands. Idle threads spin for a few
 * microseconds (a decode step issues hundreds of short runs), then sleep. */
#ifndef KVS_BASE_POOL_H
#define KVS_BASE_POOL_H

#include "base/base.h"

typedef struct kvs__pool kvs__pool;
/* `thread` is 0 .. n_threads-1, for per-thread scratch. */
typedef void (*kvs__item_fn)(void *arg, size_t item, uint32_t thread);

/* n_threads counts the caller; with 1 no thread is made. */
kvs_status kvs__pool_new(kvs_ctx *ctx, uint32_t n_threads, kvs__pool **out, kvs_err *err);
void kvs__pool_free(kvs__pool *pool);
/* Runs fn for 0 .. n_items-1 and returns when all are done. Never allocates, cannot fail. Not
 * reentrant: an item must not call run on its own pool. */
void kvs__pool_run(kvs__pool *pool, size_t n_items, kvs__item_fn fn, void *arg);
uint32_t kvs__pool_threads(const kvs__pool *pool);

#endif
