/* SPDX-License-Identifier: MIT */
/* prefix_publish.c: committed tokens of a cache into the tree, block by block; a block that is there
 * gets what it lacks. Room is made before anything is taken, so the budget holds at every instant;
 * what a publication has stored when it stops short stays: it is true all the same. */
#include <string.h>

#include "store/prefix_priv.h"
#include "store/retain_priv.h"

typedef struct publication {
    kvs_prefix *ix;
    uint32_t which; /* part */
    const kvs_prefix_key *key;
    const kvs_cache *cache;
    const kvs_prefix_publish_opts *o;
    kvs__node *at; /* held */
    uint32_t n_new;
    uint64_t known; /* tokens found in the tree */
    uint64_t seen;  /* those and the ones behind them that went and are remembered */
} publication;

/* Of what was never seen: more than a message, more than a long document. */
#define FRESH_SOME 4096u
#define FRESH_MUCH 16384u

/* -- what of a cache's block is kept */

/* Is it apart from the node's other blocks, and may go before them? */
static bool apart(const kvs__slot *slot, uint32_t block)
{
    return slot->window > 0 && block >= slot->n_sink;
}

/* Of a window: does someone who resumes at the end, or at a multiple of the stride, see the block? */
static bool wanted(const publication *p, const kvs__slot *slot, uint32_t block)
{
    const kvs_prefix *ix = p->ix;
    uint64_t begin = (uint64_t)block * ix->block;
    uint64_t stride = ix->o.window_stride;
    bool at_end = begin + ix->block + slot->ring_cap > p->key->n_ids;
    if (stride == 0 || (at_end && !(p->o->flags & KVS_PREFIX_MIDWAY))) {
        return true;
    }
    uint64_t next = (begin / stride + 1) * stride;
    return next + 1 < begin + ix->block + slot->window;
}

/* Has the cache the block in this slot, whole? */
static bool there(const publication *p, const kvs__slot *slot, uint32_t block)
{
    const kvs__layer *l = &p->cache->layer[slot->layer];
    const kvs__store *s = kvs__layer_store(l);
    if (slot->early != (s == &l->early && slot->dense_until > 0)) {
        return false;
    }
    uint64_t begin = (uint64_t)block * p->ix->block;
    bool whole = !apart(slot, block) || (int64_t)begin >= s->lo;
    return whole && kvs__paged_find(s, block) != NULL;
}

/* Has the node, of a block of sinks, one that lacks something which the cache's has (store.h I8)? */
static bool poorer(const publication *p, const kvs__node *node, uint32_t block, uint32_t s)
{
    const kvs__slot *slot = &p->ix->slot[s];
    if (slot->window == 0 || block + 1 != slot->n_sink || !node->page[s] ||
        node->page[s]->hole == 0 || !there(p, slot, block)) {
        return false;
    }
    return kvs__layer_store(&p->cache->layer[slot->layer])->hole < node->page[s]->hole;
}

/* Such blocks make way for the cache's, of the same size. */
static void enrich(const publication *p, kvs__node *node, uint32_t block)
{
    const kvs__part *part = &p->ix->part[p->which];
    for (uint32_t s = part->first; s < part->end; s++) {
        kvs__seg *page = NULL;
        if (poorer(p, node, block, s) && kvs__page_keep_of(p->cache, p->ix->slot[s].layer, block,
                                                           p->key->n_ids, &page, NULL) == KVS_OK) {
            kvs__page_unkeep(node->page[s]);
            node->page[s] = page;
        }
    }
}

/* Slots of one kind (apart or not) that the node lacks and the cache has: their bytes, or (take)
 * references to them. */
static size_t lacking(const publication *p, kvs__node *node, uint32_t block, bool windows,
                      bool take)
{
    kvs_prefix *ix = p->ix;
    const kvs__part *part = &ix->part[p->which];
    size_t bytes = 0;
    for (uint32_t s = part->first; s < part->end; s++) {
        const kvs__slot *slot = &ix->slot[s];
        if ((node && node->page[s]) || apart(slot, block) != windows || !there(p, slot, block) ||
            (windows && !wanted(p, slot, block))) {
            continue;
        }
        if (!take) {
            bytes += slot->page_bytes;
        } else if (kvs__page_keep_of(p->cache, slot->layer, block, p->key->n_ids, &node->page[s],
                                     NULL) == KVS_OK) {
            bytes += slot->page_bytes;
            ix->st.pages++;
        }
    }
    return bytes;
}

/* From the node where the first new one will hang. */
static uint64_t seen_of(const publication *p)
{
    const kvs_prefix *ix = p->ix;
    const kvs_prefix_key *key = p->key;
    uint64_t mix[2] = {p->at->hash, 0};
    uint64_t seen = p->known;
    while (key->n_ids - seen >= ix->block) {
        kvs__xxh3_128(key->ids + seen, ix->block * sizeof *key->ids, mix[0] + ix->block, mix);
        if (kvs_retain_knows(ix->retain, mix[0]) < KVS_OK) {
            break;
        }
        seen += ix->block;
    }
    return seen;
}

/* What tells blocks with different futures apart (retain.h): the last one is probably partial; a
 * prompt that begins like an earlier one goes on more often, one with much new text less often. */
static uint32_t hint_of(const publication *p, uint32_t n)
{
    uint64_t seen = p->seen > p->known ? p->seen : p->known;
    uint64_t fresh = p->key->n_ids - seen;
    return (n < p->ix->block ? 1u : 0u) | (seen > p->ix->block ? 2u : 0u) |
           (fresh > FRESH_MUCH ? 8u : (fresh > FRESH_SOME ? 4u : 0u));
}

/* -- nodes */

static kvs_status add_windows(const publication *p, kvs__node *node, uint32_t block, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    size_t bytes = lacking(p, node, block, true, false);
    if (bytes == 0) {
        return KVS_OK;
    }
    if (node->windows) {
        kvs_status st = kvs__prefix_room(ix, bytes, err);
        if (st == KVS_OK) {
            kvs_retain_info info = KVS_RETAIN_INFO_INIT;
            (void)kvs_retain_get_info(ix->retain, node->windows, &info);
            (void)lacking(p, node, block, true, true);
            (void)kvs_retain_resize(ix->retain, node->windows, info.bytes + bytes);
            kvs__prefix_count(ix);
        }
        return st;
    }
    kvs_status st = kvs__prefix_item(ix, node, true, bytes, hint_of(p, node->n_tokens), err);
    if (st == KVS_OK) {
        (void)lacking(p, node, block, true, true);
    }
    return st;
}

/* More bytes for a node's own item. */
static kvs_status enlarge(kvs_prefix *ix, kvs__node *node, size_t bytes, kvs_err *err)
{
    kvs_retain_info info = KVS_RETAIN_INFO_INIT;
    kvs_status st = kvs__prefix_room(ix, bytes, err);
    if (st == KVS_OK) {
        (void)kvs_retain_get_info(ix->retain, node->item, &info);
        st = kvs_retain_resize(ix->retain, node->item, info.bytes + bytes);
        kvs__prefix_count(ix);
    }
    return st;
}

static bool covers(const kvs_prefix *ix, const kvs__node *node, const kvs__node *old)
{
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        if (old->page[s] && (!node->page[s] || node->page[s]->hole > old->page[s]->hole ||
                             apart(&ix->slot[s], node->depth))) {
            return false;
        }
    }
    return true;
}

/* Leaves that hold fewer of the same tokens, and nothing that this one lacks, are of no use now. */
static void supersede(kvs_prefix *ix, kvs__node *node)
{
    kvs__node *parent = node->parent;
    for (uint32_t n = 1; n < node->n_tokens && parent->n_children > 1; n++) {
        kvs__node *near[2];
        uint32_t same[2];
        kvs__node_near(parent, node->ids, n, near, same);
        kvs__node *old = near[0];
        if (old && old->n_tokens == n && same[0] == n && !old->snaps && old->holds == 0 &&
            !old->wait && covers(ix, node, old)) {
            kvs__node_drop(ix, old, KVS_RETAIN_FORGOTTEN);
        }
    }
}

/* A node that is there gets what it lacks. The draft part comes after the other, so that what it makes
 * superfluous is known here. */
static kvs_status complete(const publication *p, kvs__node *node, uint32_t block, kvs_err *err)
{
    size_t bytes = lacking(p, node, block, false, false);
    enrich(p, node, block);
    if (bytes > 0) {
        kvs_status st = enlarge(p->ix, node, bytes, err);
        if (st != KVS_OK) {
            return st;
        }
        (void)lacking(p, node, block, false, true);
    }
    kvs_status st = add_windows(p, node, block, err);
    if (bytes > 0 && p->which == KVS__PART_DRAFT) {
        supersede(p->ix, node);
    }
    return st;
}

static kvs__node *new_node(kvs_prefix *ix, kvs_err *err)
{
    kvs__node *node = kvs__node_new(ix);
    while (!node && kvs__prefix_evict(ix)) { /* the context's limit, not ours */
        node = kvs__node_new(ix);
    }
    if (!node) {
        (void)kvs__nomem(err, "store", kvs__node_bytes(ix));
    }
    return node;
}

static kvs_status add_node(publication *p, uint32_t block, const int32_t *ids, uint32_t n,
                           kvs__node **out, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    size_t bytes = kvs__node_bytes(ix) + lacking(p, NULL, block, false, false);
    p->seen = p->n_new > 0 ? p->seen : seen_of(p);
    kvs_status st = kvs__prefix_room(ix, bytes, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__node *node = new_node(ix, err);
    if (!node) {
        return KVS_E_NOMEM;
    }
    memcpy(node->ids, ids, n * sizeof *ids);
    node->n_tokens = n;
    node->depth = block;
    uint64_t mix[2];
    kvs__xxh3_128(ids, n * sizeof *ids, p->at->hash + n, mix);
    node->hash = mix[0];
    st = kvs__prefix_item(ix, node, false, bytes, hint_of(p, n), err);
    while (st == KVS_E_STATE) { /* a hash that is taken: any other will do */
        node->hash++;
        st = kvs__prefix_item(ix, node, false, bytes, hint_of(p, n), NULL);
    }
    if (st != KVS_OK) {
        kvs__free(ix->ctx, node, node->bytes);
        return st;
    }
    (void)lacking(p, node, block, false, true);
    kvs__node_link(ix, p->at, node);
    kvs__node_hold(ix, node);
    (void)add_windows(p, node, block, NULL); /* without them it is still worth having */
    supersede(ix, node);
    kvs__node_release(ix, node);
    p->n_new++;
    ix->st.stored_tokens += n;
    *out = node;
    return KVS_OK;
}

/* Tokens get a leaf of their own beside a longer node that begins with them where layers have a
 * window, or with a snapshot that hits need: of many siblings that begin alike a lookup sees two, and
 * leaves by their tokens. */
static kvs__node *child_for(const publication *p, uint32_t block, const int32_t *ids, uint32_t n)
{
    kvs__node *node = kvs__node_child_with(p->at, ids, n);
    if (!node || node->n_tokens == n) {
        return node;
    }
    const kvs__part *part = &p->ix->part[p->which];
    bool own = (p->o->snapshot && part->snapshots) || lacking(p, node, block, true, false) > 0 ||
               lacking(p, node, block, false, false) > 0;
    for (uint32_t s = part->first; !own && s < part->end; s++) {
        own = poorer(p, node, block, s);
    }
    return own ? NULL : node;
}

/* -- what hangs on the last node */

static kvs_status put_snapshot(const publication *p, uint32_t at, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    kvs__node *node = p->at;
    size_t bytes = 0;
    if (!p->o->snapshot) {
        return KVS_OK;
    }
    if (!kvs__add_size(sizeof(kvs__snap), p->o->snapshot_bytes, &bytes)) {
        return kvs__fail(err, KVS_E_RANGE, "store", "a snapshot of %zu bytes",
                         p->o->snapshot_bytes);
    }
    kvs_status st = kvs__prefix_room(ix, bytes, err);
    kvs__snap *snap = st == KVS_OK ? kvs__alloc(ix->ctx, bytes) : NULL;
    if (!snap) {
        return st == KVS_OK ? kvs__nomem(err, "store", bytes) : st;
    }
    st = node->item ? enlarge(ix, node, bytes, err)
                    : kvs__prefix_item(ix, node, false, bytes, 0, err);
    if (st != KVS_OK) {
        kvs__free(ix->ctx, snap, bytes);
        return st;
    }
    snap->part = p->which;
    snap->at = at;
    snap->refs = 1;
    snap->apart = false;
    snap->bytes = bytes;
    snap->n = p->o->snapshot_bytes;
    memcpy(snap + 1, p->o->snapshot, p->o->snapshot_bytes);
    for (kvs__snap **old = &node->snaps; *old; old = &(*old)->next) {
        if ((*old)->at == at && (*old)->part == p->which) {
            kvs__snap *gone = *old;
            kvs_retain_info info = KVS_RETAIN_INFO_INIT;
            *old = gone->next;
            (void)kvs_retain_get_info(ix->retain, node->item, &info);
            (void)kvs_retain_resize(ix->retain, node->item, info.bytes - gone->bytes);
            kvs__snap_leave(ix, gone);
            break;
        }
    }
    snap->next = node->snaps;
    node->snaps = snap;
    return KVS_OK;
}

static kvs__node *of_session(const kvs_prefix *ix, uint64_t session)
{
    size_t at = SIZE_MAX;
    for (uint32_t i = kvs__idmap_next(&ix->sessions, session, &at); i != KVS__NONE;
         i = kvs__idmap_next(&ix->sessions, session, &at)) {
        if (ix->owner[i]->session == session) {
            return ix->owner[i];
        }
    }
    return NULL;
}

/* Of an entry that ends with this node: its last block, and the windows that resuming there needs. */
static void set_priority(kvs_prefix *ix, const kvs__node *node, uint32_t priority, uint64_t until)
{
    uint64_t end = (uint64_t)node->depth * ix->block + node->n_tokens;
    uint64_t window = 0;
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        window = ix->slot[s].window > window ? ix->slot[s].window : window;
    }
    (void)kvs_retain_set_priority(ix->retain, node->item, priority, until);
    for (const kvs__node *at = node; at->parent; at = at->parent) {
        if (at->windows) {
            (void)kvs_retain_set_priority(ix->retain, at->windows, priority, until);
        }
        if (end - (uint64_t)at->depth * ix->block >= window) {
            break;
        }
    }
}

static kvs_status put_session(const publication *p, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    kvs__node *node = p->at;
    uint32_t priority = p->o->priority;
    uint64_t session = p->o->session;
    if (session) {
        size_t before = ix->sessions.cap;
        size_t grown = 4 * (before ? before : 16) * sizeof(kvs__idmap_slot);
        bool room = (ix->sessions.n + 2) * 2 < before;
        kvs_status st = room ? KVS_OK : kvs__prefix_room(ix, grown, err);
        st = st == KVS_OK ? kvs__idmap_reserve(ix->ctx, &ix->sessions, 1, err) : st;
        if (st != KVS_OK) {
            return st;
        }
        kvs__node *old = of_session(ix, session); /* asked late: making room may drop it */
        ix->own += (ix->sessions.cap - before) * sizeof(kvs__idmap_slot);
        if (old) {
            kvs__idmap_remove(&ix->sessions, session, (uint32_t)old->item);
            set_priority(ix, old, 0, 0);
            old->session = 0;
        }
        if (node->session) {
            kvs__idmap_remove(&ix->sessions, node->session, (uint32_t)node->item);
        }
        kvs__idmap_insert(&ix->sessions, session, (uint32_t)node->item);
        node->session = session;
        priority = priority > 0 ? priority : 1;
    }
    if (priority > 0) {
        uint32_t ms = p->o->priority_ms ? p->o->priority_ms : (session ? ix->o.session_ms : 0);
        set_priority(ix, node, priority, ms ? ix->now + ms : 0);
    }
    kvs__prefix_count(ix);
    return KVS_OK;
}

/* -- the call */

kvs_status kvs__prefix_check_key(const kvs_prefix_key *key, kvs_err *err)
{
    if (!key || (!key->ids && key->n_ids > 0) || (!key->ns && key->ns_bytes > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL",
                         !key ? "key" : (key->ids ? "namespace" : "ids"));
    }
    if (key->n_ids > KVS_STORE_IDS_MAX || key->ns_bytes > KVS_STORE_NS_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "store", "%zu ids, a namespace of %zu bytes: too many",
                         key->n_ids, key->ns_bytes);
    }
    return KVS_OK;
}

static kvs_status check_cache(const kvs_prefix *ix, const kvs__part *part, const kvs_cache *cache,
                              uint64_t n, kvs_err *err)
{
    bool paged = part->end > part->first;
    if (!cache || cache->n_layers != part->n_layers || (paged && cache->pages != ix->pages)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s",
                         cache ? "the cache has other layers or "
                                 "another pool than the index"
                               : "cache is NULL");
    }
    if (cache->broken || cache->open) {
        return kvs__fail(err, cache->broken ? KVS_E_BROKEN : KVS_E_STATE, "store", "the cache %s",
                         cache->broken ? "is broken" : "is in a round: nothing of it is published");
    }
    for (uint32_t s = part->first; s < part->end; s++) {
        const kvs__slot *slot = &ix->slot[s];
        const kvs__layer *l = &cache->layer[slot->layer];
        const kvs__store *store = slot->early ? &l->early : &l->main;
        if (l->spec.layout != KVS_LAYOUT_PAGED || l->spec.dense_until != slot->dense_until ||
            l->spec.window != slot->window || store->n_sink != slot->n_sink ||
            !kvs__fmt_same(&store->fmt, &slot->fmt)) {
            return kvs__fail(err, KVS_E_INVAL, "store", "layer %u is not as in the index",
                             slot->layer);
        }
        if ((uint64_t)kvs__layer_len(l) < n) {
            return kvs__fail(err, KVS_E_RANGE, "store", "layer %u holds %lld of %llu tokens",
                             slot->layer, (long long)kvs__layer_len(l), (unsigned long long)n);
        }
    }
    return KVS_OK;
}

/* More than could ever fit must not drive everything else out. */
static kvs_status check_size(const publication *p, kvs_err *err)
{
    const kvs_prefix *ix = p->ix;
    const kvs__part *part = &ix->part[p->which];
    size_t most = ix->o.max_bytes;
    size_t each = kvs__node_bytes(ix);
    size_t sum = p->o->snapshot ? p->o->snapshot_bytes : 0;
    for (uint32_t s = part->first; s < part->end; s++) {
        bool counts = p->cache && ix->slot[s].window == 0 && there(p, &ix->slot[s], 0);
        each += counts ? ix->slot[s].page_bytes : 0;
    }
    size_t blocks = p->key->n_ids / ix->block + 1;
    if (most && (!kvs__mul_size(each, p->key->n_ids ? blocks - 1 : 0, &each) ||
                 !kvs__add_size(sum, each, &sum) || sum > most)) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "%zu tokens take more than the limit of %zu",
                         p->key->n_ids, most);
    }
    return KVS_OK;
}

static void go_to(publication *p, kvs__node *node)
{
    kvs__node_hold(p->ix, node);
    kvs__node_release(p->ix, p->at);
    p->at = node;
}

/* Block after block; *done: tokens that are in the tree. */
static kvs_status put_blocks(publication *p, size_t n_ids, size_t *done, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    *done = 0;
    for (uint32_t block = 0; *done < n_ids; block++) {
        size_t left = n_ids - *done;
        uint32_t n = left < ix->block ? (uint32_t)left : ix->block;
        const int32_t *ids = p->key->ids + *done;
        kvs__node *node = child_for(p, block, ids, n);
        kvs_status st = KVS_OK;
        if (node) {
            kvs__node_hold(ix, node);
            if (node->n_tokens == n) { /* a longer one's blocks hold tokens that this has not */
                (void)complete(p, node, block, NULL);
            }
            kvs__node_release(ix, node);
            p->known += n;
            ix->st.known_tokens += n;
        } else {
            st = add_node(p, block, ids, n, &node, err);
        }
        if (st != KVS_OK) {
            return st;
        }
        go_to(p, node);
        *done += n;
    }
    return KVS_OK;
}

/* From the last one up, so that the first is the newest. Those that are new count as used; those that
 * this request has used before are renewed, at its end alone: until then what hangs below keeps them. */
static void use_known(publication *p)
{
    kvs_retain *retain = p->ix->retain;
    uint32_t skip = p->n_new;
    if (p->which != KVS__PART_MAIN) {
        return;
    }
    for (kvs__node *at = p->at; at->parent; at = at->parent) {
        bool counted = (uint64_t)at->depth * p->ix->block < p->o->n_counted;
        if (skip > 0) {
            skip--;
        } else if (!counted) {
            (void)kvs_retain_use(retain, at->item, p->ix->block, hint_of(p, at->n_tokens));
        } else if (p->o->flags & KVS_PREFIX_MIDWAY) {
            return;
        } else {
            (void)kvs_retain_renew(retain, at->item);
        }
    }
}

static kvs_status publish(publication *p, kvs__node *root, size_t *n_stored, kvs_err *err)
{
    kvs_prefix *ix = p->ix;
    size_t n = p->key->n_ids;
    bool tail = !(p->o->flags & KVS_PREFIX_NO_TAIL);
    size_t done = 0;
    p->at = root;
    kvs__node_hold(ix, root);
    kvs_status st = put_blocks(p, tail ? n : n - n % ix->block, &done, err);
    use_known(p);
    if (st == KVS_OK && done == n) {
        st = put_snapshot(p, n > 0 ? (uint32_t)((n - 1) % ix->block + 1) : 0, err);
    }
    if (st == KVS_OK && p->at != root) {
        st = put_session(p, err);
    }
    kvs__node_release(ix, p->at);
    ix->st.published++;
    if (n_stored) {
        *n_stored = done;
    }
    ix->st.refused += st != KVS_OK;
    ix->st.refused_waiting += st == KVS_E_LIMIT && ix->waits != NULL;
    return st == KVS_E_LIMIT ? KVS_NO : st;
}

kvs_status kvs__prefix_publish_part(kvs_prefix *ix, uint32_t part, const kvs_prefix_key *key,
                                    const kvs_cache *cache, const kvs_prefix_publish_opts *opts,
                                    size_t *n_stored, kvs_err *err)
{
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    uint8_t name[KVS__SHA_BYTES];
    kvs_status st = ix ? kvs__prefix_check_key(key, err)
                       : kvs__fail(err, KVS_E_INVAL, "store", "index is NULL");
    if (st == KVS_OK && opts) {
        st = kvs__opts_read(&o, sizeof o, opts, "kvs_prefix_publish_opts", err);
    }
    if (n_stored) { /* not earlier: it may be opts->n_counted */
        *n_stored = 0;
    }
    if (st == KVS_OK && (o.flags & ~(uint32_t)(KVS_PREFIX_NO_TAIL | KVS_PREFIX_MIDWAY) ||
                         o.priority >= KVS_RETAIN_PRIORITIES || o.reserved ||
                         (key->n_ids == 0 && (!o.snapshot || cache)))) {
        st = kvs__fail(err, KVS_E_INVAL, "store", "flags %#x, priority %u, %zu ids", o.flags,
                       o.priority, key->n_ids);
    }
    if (st == KVS_OK && key->n_ids > 0) {
        st = check_cache(ix, &ix->part[part], cache, key->n_ids, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    publication p = {ix, part, key, cache, &o, NULL, 0, 0, 0};
    st = key->n_ids > 0 || ix->o.max_bytes ? check_size(&p, err) : KVS_OK;
    kvs__node *root = NULL;
    if (st == KVS_OK) {
        kvs__root_key(key, name);
        st = kvs__root_make(ix, name, &root, err);
    }
    if (st != KVS_OK) {
        ix->st.refused++;
        return st;
    }
    return publish(&p, root, n_stored, err);
}

kvs_status kvs_prefix_publish(kvs_prefix *ix, const kvs_prefix_key *key, const kvs_cache *cache,
                              const kvs_prefix_publish_opts *opts, size_t *n_stored, kvs_err *err)
{
    return kvs__prefix_publish_part(ix, KVS__PART_MAIN, key, cache, opts, n_stored, err);
}

kvs_status kvs_prefix_forget(kvs_prefix *ix, const kvs_prefix_key *key, size_t *freed)
{
    uint8_t name[KVS__SHA_BYTES];
    if (!ix || kvs__prefix_check_key(key, NULL) != KVS_OK) {
        return KVS_E_INVAL;
    }
    kvs__root_key(key, name);
    size_t before = kvs__prefix_bytes(ix);
    kvs__node *at = kvs__root_find(ix, name);
    size_t done = 0;
    while (at && key->n_ids - done > ix->block) {
        at = kvs__node_child_with(at, key->ids + done, ix->block);
        done += ix->block;
    }
    uint32_t n = (uint32_t)(key->n_ids - done);
    kvs__node *first = at && n > 0 ? kvs__node_child_with(at, key->ids + done, n) : at;
    if (!first) {
        return KVS_E_NOTFOUND;
    }
    if (n == 0) {
        kvs__node_drop_tree(ix, at);
    } else {
        kvs__node_hold(ix, at); /* a root must not go while it is looked through */
        for (kvs__node *node = first; node; node = kvs__node_child_with(at, key->ids + done, n)) {
            kvs__node_drop_tree(ix, node);
        }
        kvs__node_release(ix, at);
    }
    if (freed) {
        *freed = before - kvs__prefix_bytes(ix);
    }
    return KVS_OK;
}
