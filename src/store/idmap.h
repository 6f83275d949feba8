/* SPDX-License-Identifier: MIT */
/* idmap.h: a hash table from 64-bit hashes to 32-bit numbers; several numbers may share a hash, and
 * the caller tells them apart. Memory is taken by reserve alone, so that insert cannot fail. */
#ifndef KVS_STORE_IDMAP_H
#define KVS_STORE_IDMAP_H

#include "base/base.h"

#define KVS__NONE UINT32_MAX

typedef struct kvs__idmap_slot {
    uint64_t hash;
    uint32_t value; /* KVS__NONE: free */
    uint32_t unused;
} kvs__idmap_slot;

typedef struct kvs__idmap {
    kvs__idmap_slot *slots; /* [cap], a power of two or 0 */
    size_t cap;
    size_t n;
} kvs__idmap;

/* Room for `more` insertions; the content stays. */
kvs_status kvs__idmap_reserve(kvs_ctx *ctx, kvs__idmap *m, size_t more, kvs_err *err);
void kvs__idmap_free(kvs_ctx *ctx, kvs__idmap *m);
void kvs__idmap_insert(kvs__idmap *m, uint64_t hash, uint32_t value);
/* The pair must be there. */
void kvs__idmap_remove(kvs__idmap *m, uint64_t hash, uint32_t value);
/* Numbers under a hash one after another: *at starts as SIZE_MAX; KVS__NONE ends. */
uint32_t kvs__idmap_next(const kvs__idmap *m, uint64_t hash, size_t *at);

#endif
