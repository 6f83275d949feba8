/* SPDX-License-Identifier: MIT */
/* chain.c: the prefix index of chain.h. Hashes live in memory only, so their byte order is the
 * machine's. Entries are doubly linked through arrays of their own, one link a level. */
#include "store/chain.h"

#include <string.h>

#include "base/sha256.h"

void kvs__chain_init(kvs__chain *c, kvs__links_fn links, void *user)
{
    memset(c, 0, sizeof *c);
    c->free_node = KVS__NONE;
    c->links = links;
    c->user = user;
}

void kvs__chain_free(kvs_ctx *ctx, kvs__chain *c)
{
    kvs__idmap_free(ctx, &c->map);
    kvs__idmap_free(ctx, &c->tails);
    kvs__free(ctx, c->nodes, c->cap * sizeof(kvs__chain_node));
    c->nodes = NULL;
    c->cap = 0;
}

kvs_status kvs__chain_reserve(kvs_ctx *ctx, kvs__chain *c, uint32_t n_levels, kvs_err *err)
{
    kvs_status st = kvs__idmap_reserve(ctx, &c->map, n_levels, err);
    if (st == KVS_OK) {
        st = kvs__idmap_reserve(ctx, &c->tails, 1, err);
    }
    if (st != KVS_OK || c->n_free + (c->cap - c->n_used) >= n_levels) {
        return st;
    }
    size_t cap = c->cap * 2 > c->n_used + n_levels ? c->cap * 2 : c->n_used + n_levels;
    size_t bytes = 0;
    kvs__chain_node *nodes = NULL;
    if (cap < KVS__NONE && kvs__mul_size(cap, sizeof *nodes, &bytes)) {
        nodes = kvs__alloc(ctx, bytes);
    }
    if (!nodes) {
        return kvs__nomem(err, "store", bytes);
    }
    if (c->n_used > 0) {
        memcpy(nodes, c->nodes, c->n_used * sizeof *nodes);
    }
    kvs__free(ctx, c->nodes, c->cap * sizeof *nodes);
    c->nodes = nodes;
    c->cap = cap;
    return KVS_OK;
}

kvs__chain_hash kvs__chain_start(const uint8_t identity[32], const void *ns, size_t ns_bytes)
{
    struct {
        uint8_t identity[32];
        uint64_t ns[2];
        uint64_t ns_bytes;
    } in;
    kvs__chain_hash h = {{0, 0}};
    memcpy(in.identity, identity, 32);
    kvs__xxh3_128(ns_bytes > 0 ? ns : "", ns_bytes, 1, in.ns);
    in.ns_bytes = ns_bytes;
    kvs__xxh3_128(&in, sizeof in, 2, h.h);
    return h;
}

kvs__chain_hash kvs__chain_step(kvs__chain_hash h, const int32_t ids[KVS__CHAIN_STEP])
{
    struct {
        uint64_t h[2];
        int32_t ids[KVS__CHAIN_STEP];
    } in;
    kvs__chain_hash out = {{0, 0}};
    memcpy(in.h, h.h, sizeof in.h);
    memcpy(in.ids, ids, sizeof in.ids);
    kvs__xxh3_128(&in, sizeof in, 3, out.h);
    return out;
}

uint64_t kvs__chain_tail(kvs__chain_hash h, const int32_t *ids, size_t n)
{
    struct {
        uint64_t h[2];
        int32_t ids[KVS__CHAIN_STEP];
    } in;
    uint64_t out[2];
    memcpy(in.h, h.h, sizeof in.h);
    if (n > 0) {
        memcpy(in.ids, ids, n * sizeof in.ids[0]);
    }
    kvs__xxh3_128(&in, sizeof in.h + n * sizeof in.ids[0], 4 + n, out);
    return out[0];
}

uint32_t kvs__chain_node_of(const kvs__chain *c, kvs__chain_hash h)
{
    size_t at = SIZE_MAX;
    for (;;) {
        uint32_t i = kvs__idmap_next(&c->map, h.h[0], &at);
        if (i == KVS__NONE || c->nodes[i].hash[1] == h.h[1]) {
            return i;
        }
    }
}

static uint32_t new_node(kvs__chain *c, kvs__chain_hash h)
{
    uint32_t i = c->free_node;
    if (i != KVS__NONE) {
        c->free_node = c->nodes[i].head;
        c->n_free--;
    } else {
        KVS_ASSERT(c->n_used < c->cap);
        i = (uint32_t)c->n_used++;
    }
    c->nodes[i] = (kvs__chain_node){{h.h[0], h.h[1]}, 0, KVS__NONE, 0};
    kvs__idmap_insert(&c->map, h.h[0], i);
    return i;
}

static void list_in(kvs__chain *c, uint32_t entry, uint32_t level, kvs__chain_hash h)
{
    uint32_t i = kvs__chain_node_of(c, h);
    if (i == KVS__NONE) {
        i = new_node(c, h);
    }
    kvs__chain_node *node = &c->nodes[i];
    c->links(c->user, entry)[level] = (kvs__chain_link){i, KVS__NONE, node->head};
    if (node->head != KVS__NONE) {
        c->links(c->user, node->head)[level].prev = entry;
    }
    node->head = entry;
    node->count++;
}

uint64_t kvs__chain_insert(kvs__chain *c, uint32_t entry, kvs__chain_hash start, const int32_t *ids,
                           size_t n_ids)
{
    kvs__chain_hash h = start;
    uint32_t last = kvs__chain_levels(n_ids) - 1;
    for (uint32_t level = 0;; level++) {
        list_in(c, entry, level, h);
        if (level == last) {
            break;
        }
        h = kvs__chain_step(h, ids + (size_t)level * KVS__CHAIN_STEP);
    }
    size_t rest = n_ids % KVS__CHAIN_STEP;
    uint64_t tail = kvs__chain_tail(h, ids + (n_ids - rest), rest);
    c->nodes[c->links(c->user, entry)[last].node].tails |= (uint64_t)1 << rest;
    kvs__idmap_insert(&c->tails, tail, entry);
    return tail;
}

void kvs__chain_remove(kvs__chain *c, uint32_t entry, uint32_t n_levels, uint64_t tail)
{
    kvs__chain_link *links = c->links(c->user, entry);
    kvs__idmap_remove(&c->tails, tail, entry);
    for (uint32_t level = 0; level < n_levels; level++) {
        kvs__chain_link l = links[level];
        kvs__chain_node *node = &c->nodes[l.node];
        if (l.prev != KVS__NONE) {
            c->links(c->user, l.prev)[level].next = l.next;
        } else {
            node->head = l.next;
        }
        if (l.next != KVS__NONE) {
            c->links(c->user, l.next)[level].prev = l.prev;
        }
        if (--node->count == 0) { /* I1 */
            kvs__idmap_remove(&c->map, node->hash[0], l.node);
            node->head = c->free_node;
            c->free_node = l.node;
            c->n_free++;
        }
    }
}
