/* SPDX-License-Identifier: MIT */
/* chain.h: which entries share how many of the first token ids.
 *
 * Level k of a list of ids is the hash of level k - 1 and ids 64 (k - 1) .. 64 k - 1; level 0 is the
 * hash of identity and namespace. Every entry is listed in the node of each of its levels, so a
 * lookup walks up the levels of its own ids until a node is missing: time O(ids), whatever the
 * number of entries. Hashes only propose; the caller compares ids.
 *
 * I1  A node exists exactly while an entry is listed in it. So the node of level k exists only if
 *     those of all lower levels on its path do.
 * I2  An entry of n ids is listed in levels 0 .. n / 64, and in `tails` under the hash of level
 *     n / 64 and the rest of its ids. Bit n % 64 is then set in that node (bits are not cleared while
 *     the node lives: a stale one costs a probe). */
#ifndef KVS_STORE_CHAIN_H
#define KVS_STORE_CHAIN_H

#include "store/idmap.h"

#define KVS__CHAIN_STEP 64u

typedef struct kvs__chain_link {
    uint32_t node;
    uint32_t prev; /* entries */
    uint32_t next;
} kvs__chain_link;

typedef struct kvs__chain_node {
    uint64_t hash[2];
    uint64_t tails;
    uint32_t head; /* newest entry; of a free node the next free one */
    uint32_t count;
} kvs__chain_node;

/* Where the links of entry i are: links[level]. */
typedef kvs__chain_link *(*kvs__links_fn)(void *user, uint32_t entry);

typedef struct kvs__chain {
    kvs__idmap map;   /* hash[0] of a node -> node */
    kvs__idmap tails; /* -> entry */
    kvs__chain_node *nodes;
    size_t cap;
    size_t n_used; /* of nodes[], free ones included */
    size_t n_free;
    uint32_t free_node;
    kvs__links_fn links;
    void *user;
} kvs__chain;

typedef struct kvs__chain_hash {
    uint64_t h[2];
} kvs__chain_hash;

static inline uint32_t kvs__chain_levels(size_t n_ids)
{
    return (uint32_t)(n_ids / KVS__CHAIN_STEP) + 1;
}

void kvs__chain_init(kvs__chain *c, kvs__links_fn links, void *user);
void kvs__chain_free(kvs_ctx *ctx, kvs__chain *c);
/* Room for one entry of n_levels. */
kvs_status kvs__chain_reserve(kvs_ctx *ctx, kvs__chain *c, uint32_t n_levels, kvs_err *err);
kvs__chain_hash kvs__chain_start(const uint8_t identity[32], const void *ns, size_t ns_bytes);
kvs__chain_hash kvs__chain_step(kvs__chain_hash h, const int32_t ids[KVS__CHAIN_STEP]);
uint64_t kvs__chain_tail(kvs__chain_hash h, const int32_t *ids, size_t n); /* n < 64 */
/* Returns the tail's hash, which remove wants back. */
uint64_t kvs__chain_insert(kvs__chain *c, uint32_t entry, kvs__chain_hash start, const int32_t *ids,
                           size_t n_ids);
void kvs__chain_remove(kvs__chain *c, uint32_t entry, uint32_t n_levels, uint64_t tail);
/* Node of a hash, KVS__NONE. */
uint32_t kvs__chain_node_of(const kvs__chain *c, kvs__chain_hash h);

#endif
