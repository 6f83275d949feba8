/* SPDX-License-Identifier: MIT */
/* kvstate/pages.h: a pool of reference-counted blocks that paged layers keep their tokens in.
 *
 * One pool serves all rows and layers of a process: a paged layer (KVS_LAYOUT_PAGED) takes a block
 * of block_tokens tokens when it needs one and gives it back when its last holder lets go. Forks,
 * views and stored prefixes share blocks; who writes to a shared one gets a copy first. Blocks of
 * one shape (codecs, heads, dims) are interchangeable, whatever layer or row they served.
 *
 * A block is held (some cache or view uses it), cached (only a prefix index does) or free; the
 * three add up to the total after every call. Blocks come in chunks, a chunk of which every block
 * is free goes back to the context's allocator at once. A sequence gets blocks that lie side by side
 * where there are such, and these are read as one piece. */
#ifndef KVSTATE_PAGES_H
#define KVSTATE_PAGES_H

#include "kvstate/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shared by caches of several threads, each with a context of its own; a cache itself is used by one
 * thread at a time. Blocks are taken from the pool's context and counted there, whose allocator other
 * threads call then, and which outlives the caches. */

typedef struct kvs_pages_opts {
    size_t struct_size;
    uint32_t block_tokens; /* 1..256, 0: 64; multiples of 16 are read at full speed */
    uint32_t reserved;     /* 0 */
    size_t max_bytes;      /* hard limit on all that the pool takes; 0: none */
    /* About what is taken at a time, at least one block; 0: a quarter of what the shape has already,
     * but 1 to 32 MiB, less of it where the allocator refuses so much. Less where the limit leaves no
     * more. */
    size_t chunk_bytes;
} kvs_pages_opts;
#define KVS_PAGES_OPTS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_pages_opts), 0, 0, 0, 0                                                         \
    }

/* KVS_E_INVAL: block_tokens above 256; KVS_E_LIMIT: max_bytes does not hold the pool itself. */
KVS_API kvs_status kvs_pages_new(kvs_ctx *ctx, const kvs_pages_opts *opts, kvs_pages **out,
                                 kvs_err *err);
/* Gives up the caller's hold. The pool goes when its last cache, view and block have gone, all of
 * them before the context. NULL is fine. */
KVS_API void kvs_pages_free(kvs_pages *pages);

/* Another limit from now on; 0: none. Below what is held nothing is taken away, but no chunk is
 * added until the pool is under it. */
KVS_API kvs_status kvs_pages_set_limit(kvs_pages *pages, size_t max_bytes, kvs_err *err);

typedef struct kvs_pages_stats {
    size_t struct_size;
    uint32_t block_tokens;
    uint32_t n_classes; /* shapes of block that exist */
    size_t bytes;       /* taken from the allocator: chunks and the pool's own tables */
    size_t peak_bytes;
    size_t max_bytes; /* the limit, 0: none */
    uint64_t n_total; /* blocks: n_free + n_cached + n_held */
    uint64_t n_free;
    uint64_t n_cached;
    uint64_t n_held;
    size_t cached_bytes;
    size_t held_bytes;
} kvs_pages_stats;
#define KVS_PAGES_STATS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_pages_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                   \
    }
KVS_API kvs_status kvs_pages_get_stats(const kvs_pages *pages, kvs_pages_stats *out);

typedef struct kvs_pages_class {
    size_t struct_size;
    size_t block_bytes; /* of one block, its header included */
    uint64_t n_total;
    uint64_t n_free;
    uint64_t n_cached;
    uint64_t n_held;
    char shape[120]; /* "k=q4 v=q8 heads=8 dims=128/128" */
} kvs_pages_class;
#define KVS_PAGES_CLASS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_pages_class), 0, 0, 0, 0, 0, ""                                                 \
    }
/* Shape i of n_classes, in no lasting order; KVS_E_RANGE past the end. */
KVS_API kvs_status kvs_pages_get_class(const kvs_pages *pages, uint32_t i, kvs_pages_class *out);

/* The limit under which n_rows caches of these options (every layer paged, nothing shared) reach
 * n_tokens each whatever the order of their appends: where no layer has a window or dense_until,
 * exactly what the pool will have taken. pages_opts as for kvs_pages_new; its limit is ignored. */
KVS_API kvs_status kvs_pages_plan(const kvs_pages_opts *pages_opts,
                                  const kvs_cache_opts *cache_opts, uint32_t n_rows,
                                  uint64_t n_tokens, size_t *bytes, kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
