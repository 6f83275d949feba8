/* SPDX-License-Identifier: MIT */
/* find.c: lookups. Hashes of the prefix index propose entries; a hit is what compares equal: identity,
 * namespace and every token id that is reported as common. */
#include <string.h>

#include "store/kvstore.h"

#define OVERLAP_TRIES 64u
#define STACK_LEVELS  256u

typedef struct lookup {
    kvs_store *s;
    const kvs_store_key *key;
    kvs_store_query q;
    size_t n; /* ids that count */
    uint32_t best;
    size_t common;
} lookup;

kvs__chain_link *kvs__entry_links(void *store, uint32_t entry)
{
    return ((kvs_store *)store)->slots[entry].e->links;
}

static bool wanted(const lookup *l, const kvs__entry *e)
{
    return (l->q.kinds == 0 || (l->q.kinds >> e->head.kind & 1u)) &&
           e->head.ns_bytes == l->key->ns_bytes &&
           memcmp(e->head.identity, l->key->identity, 32) == 0 &&
           (l->key->ns_bytes == 0 || memcmp(e->ns, l->key->ns, l->key->ns_bytes) == 0);
}

static size_t common(const lookup *l, const kvs__entry *e)
{
    size_t n = e->head.n_ids < l->n ? e->head.n_ids : l->n;
    size_t i = 0;
    while (i < n && e->ids[i] == l->key->ids[i]) {
        i++;
    }
    return i;
}

static void find_exact(lookup *l)
{
    uint8_t digest[32];
    kvs__key_digest(l->key, digest);
    uint32_t slot = kvs__entry_by_key(l->s, digest);
    if (slot == KVS__NONE) {
        return;
    }
    const kvs__entry *e = l->s->slots[slot].e;
    if (!e->foreign && wanted(l, e) && e->head.n_ids == l->key->n_ids &&
        common(l, e) == l->key->n_ids) {
        l->best = slot;
        l->common = l->key->n_ids;
    }
}

/* Entries that end inside the block after `level` and agree up to there. */
static bool prefix_at(lookup *l, uint32_t level, kvs__chain_hash h, uint32_t node)
{
    size_t begin = (size_t)level * KVS__CHAIN_STEP;
    uint64_t tails = l->s->chain.nodes[node].tails;
    size_t most = l->n - begin < KVS__CHAIN_STEP - 1 ? l->n - begin : KVS__CHAIN_STEP - 1;
    for (size_t t = most + 1; t-- > 0;) {
        if (!(tails >> t & 1u)) {
            continue;
        }
        size_t at = SIZE_MAX;
        uint64_t hash = kvs__chain_tail(h, l->key->ids ? l->key->ids + begin : NULL, t);
        for (;;) {
            uint32_t slot = kvs__idmap_next(&l->s->chain.tails, hash, &at);
            if (slot == KVS__NONE) {
                break;
            }
            const kvs__entry *e = l->s->slots[slot].e;
            if (e->head.n_ids == begin + t && wanted(l, e) && common(l, e) == begin + t) {
                l->best = slot;
                l->common = begin + t;
                return true;
            }
        }
    }
    return false;
}

static bool overlap_at(lookup *l, uint32_t level, uint32_t node)
{
    uint32_t slot = l->s->chain.nodes[node].head;
    for (uint32_t i = 0; i < OVERLAP_TRIES && slot != KVS__NONE; i++) {
        const kvs__entry *e = l->s->slots[slot].e;
        if (wanted(l, e)) {
            size_t n = common(l, e);
            if (l->best == KVS__NONE || n > l->common) {
                l->best = slot;
                l->common = n;
            }
        }
        slot = e->links[level].next;
    }
    return l->best != KVS__NONE;
}

/* Up the levels while there are nodes (I1 of chain.h), then down until an entry is found. */
static kvs_status walk(lookup *l, kvs_err *err)
{
    kvs__chain_hash on_stack[STACK_LEVELS];
    kvs__chain_hash *h = on_stack;
    kvs_store *s = l->s;
    uint32_t n_levels = kvs__chain_levels(l->n);
    if (n_levels > STACK_LEVELS) {
        h = kvs__calloc(s->ctx, n_levels, sizeof *h);
        if (!h) {
            return kvs__nomem(err, "store", n_levels * sizeof *h);
        }
    }
    uint32_t n = 0;
    kvs__chain_hash at = kvs__chain_start(l->key->identity, l->key->ns, l->key->ns_bytes);
    while (kvs__chain_node_of(&s->chain, at) != KVS__NONE) {
        h[n++] = at;
        if (n == n_levels) {
            break;
        }
        at = kvs__chain_step(at, l->key->ids + (size_t)(n - 1) * KVS__CHAIN_STEP);
    }
    while (n-- > 0 && (size_t)(n + 1) * KVS__CHAIN_STEP > l->q.min_tokens) {
        uint32_t node = kvs__chain_node_of(&s->chain, h[n]);
        if (l->q.mode == KVS_FIND_PREFIX ? prefix_at(l, n, h[n], node) : overlap_at(l, n, node)) {
            break;
        }
    }
    if (h != on_stack) {
        kvs__free(s->ctx, h, n_levels * sizeof *h);
    }
    return KVS_OK;
}

static kvs_status check_query(const lookup *l, kvs_err *err)
{
    const kvs_store_key *k = l->key;
    if (!k || !k->identity || (!k->ids && k->n_ids > 0) || (!k->ns && k->ns_bytes > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "the key lacks identity, namespace or ids");
    }
    if (l->q.mode > KVS_FIND_OVERLAP) {
        return kvs__fail(err, KVS_E_INVAL, "store", "find mode %u is not known", l->q.mode);
    }
    return KVS_OK;
}

kvs_status kvs_store_find(kvs_store *s, const kvs_store_key *key, const kvs_store_query *query,
                          kvs_store_hit *hit, kvs_err *err)
{
    lookup l = {.s = s, .key = key, .q = KVS_STORE_QUERY_INIT, .best = KVS__NONE};
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    if (!s || !hit) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or hit is NULL");
    }
    kvs_status st = KVS_OK;
    if (query) {
        st = kvs__opts_read(&l.q, sizeof l.q, query, "kvs_store_query", err);
    }
    if (st == KVS_OK) {
        st = check_query(&l, err);
    }
    if (st == KVS_OK && kvs__stats_write(hit, &h, sizeof h) != KVS_OK) { /* before a pin is taken */
        st = kvs__fail(err, KVS_E_INVAL, "store", "hit->struct_size is %zu", hit->struct_size);
    }
    if (st != KVS_OK) {
        return st;
    }
    l.n = l.q.max_tokens > 0 && l.q.max_tokens < key->n_ids ? l.q.max_tokens : key->n_ids;
    (void)pthread_mutex_lock(&s->lock);
    if (l.q.mode == KVS_FIND_EXACT) {
        l.n = key->n_ids;
        find_exact(&l);
    } else {
        st = walk(&l, err);
    }
    bool found = st == KVS_OK && l.best != KVS__NONE && l.common >= l.q.min_tokens &&
                 (l.common > 0 || l.q.mode != KVS_FIND_OVERLAP);
    if (found) {
        kvs__entry *e = s->slots[l.best].e;
        e->pins++;
        kvs__entry_info_of(e, &h.info);
        h.entry = e->id;
        h.n_common = l.common;
    }
    s->stats.hits += found;
    s->stats.misses += !found;
    (void)pthread_mutex_unlock(&s->lock);
    if (st != KVS_OK) {
        return st;
    }
    return found ? kvs__stats_write(hit, &h, sizeof h) : KVS_NO;
}
