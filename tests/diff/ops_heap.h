/* SPDX-License-Identifier: MIT */
/* ops_heap.h: the allocator of the op programs: counts, refuses the k-th call, and fills memory with
 * what must never show: NaN before its first use, another pattern after its last. */
#ifndef KVS_TESTS_DIFF_OPS_HEAP_H
#define KVS_TESTS_DIFF_OPS_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/base.h"

typedef struct heap {
    uint64_t count;
    uint64_t fail_at;
    size_t live;
    bool failed; /* an allocation was refused since last looked at */
} heap;

static inline void *heap_alloc(void *user, size_t bytes, size_t align)
{
    heap *h = user;
    if (h->fail_at && ++h->count == h->fail_at) {
        h->failed = true;
        return NULL;
    }
    size_t rounded = (bytes + align - 1) / align * align;
    unsigned char *p = aligned_alloc(align, rounded ? rounded : align);
    if (p) {
        memset(p, 0xff,
               rounded); /* NaN in every float format: what was not written must not show */
        h->live += bytes;
    }
    return p;
}

static inline void heap_free(void *user, void *ptr, size_t bytes)
{
    heap *h = user;
    h->live -= bytes;
    memset(ptr, 0xee, bytes);
    free(ptr);
}

/* The context under test, on that heap, and a plain one; false: none. */
static inline bool heap_contexts(heap *h, uint32_t tiers_off, uint32_t n_threads, kvs_ctx **ctx,
                                 kvs_ctx **plain)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    if (kvs_ctx_new(&o, plain, NULL) != KVS_OK) {
        return false;
    }
    o.alloc = heap_alloc;
    o.free = heap_free;
    o.alloc_user = h;
    o.tiers_off = tiers_off;
    o.n_threads = n_threads;
    return kvs_ctx_new(&o, ctx, NULL) == KVS_OK;
}

#endif
