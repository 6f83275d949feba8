/* SPDX-License-Identifier: MIT */
/* prefix_lookup.c: the longest prefix that every layer can be resumed from, and the lease on it.
 *
 * Down the tree, for each slot, `run` is the first block of those kept without a gap up to here. A
 * slot that sees all must have run 0; one with a window the blocks of the window's newest tokens, and
 * the sinks. So whether a block can be the last one is decided in O(slots), and a lookup is O(prompt
 * in blocks x slots). Of the siblings that agree with the prompt in part those are tried that agree
 * in most, up to KVS__FURTHER on each side of the two nearest. */
#include <string.h>

#include "store/prefix_priv.h"

typedef struct walk {
    kvs_prefix *ix;
    const kvs__part *part;
    uint32_t which;  /* part */
    uint32_t *run;   /* [n_slots]: first block of the run up to the current one, KVS__NONE: none */
    uint32_t *sinks; /* [n_slots]: blocks kept from 0 on, up to n_sink */
    uint32_t *hole;  /* [n_slots]: that of the last of those (store.h I8) */
    uint32_t *best_run;
    uint64_t limit; /* tokens that may be resumed from */
    uint64_t known;
    uint64_t best;
    kvs__snap *snap;
    kvs__node *tail;       /* the last node of the best, not in the path when it is partial */
    kvs_prefix_reason why; /* of the longest that was known and could not be used */
} walk;

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void step(walk *w, const kvs__node *node, uint32_t block)
{
    const kvs_prefix *ix = w->ix;
    for (uint32_t s = w->part->first; s < w->part->end; s++) {
        if (!node->page[s]) {
            w->run[s] = KVS__NONE;
        } else if (w->run[s] == KVS__NONE) {
            w->run[s] = block;
        }
        if (node->page[s] && w->sinks[s] == block && block < ix->slot[s].n_sink) {
            w->sinks[s]++;
            w->hole[s] = block + 1 == ix->slot[s].n_sink ? node->page[s]->hole : 0;
        }
    }
}

/* First position that is stored but for the sinks, as far as their last block tells. */
static uint64_t past_hole(const walk *w, uint32_t s)
{
    return w->hole[s] ? (w->ix->slot[s].n_sink - 1) * w->ix->block + w->hole[s] : 0;
}

/* Can n tokens, which end in the current block, be resumed from? */
static bool usable(walk *w, uint64_t n)
{
    const kvs_prefix *ix = w->ix;
    uint64_t end = (n - 1) / ix->block + 1;
    for (uint32_t s = w->part->first; s < w->part->end; s++) {
        const kvs__slot *slot = &ix->slot[s];
        if (!kvs__slot_used(slot, n)) {
            continue;
        }
        uint64_t first = 0;
        bool whole = true;
        if (slot->window > 0) { /* the next query, at n, sees n - window + 1 and later */
            uint64_t seen = n + 1 > slot->window ? n + 1 - slot->window : 0;
            whole = n <= slot->sinks || seen >= past_hole(w, s);
            first = seen / ix->block;
        }
        bool in_sinks = end <= slot->n_sink;
        bool run = in_sinks ||
                   (w->run[s] != KVS__NONE && (w->run[s] <= first || w->run[s] <= slot->n_sink));
        if (!run || !whole || w->sinks[s] < least(slot->n_sink, end)) {
            bool gone = slot->window > 0 && slot->dense_until == 0;
            w->why = gone ? KVS_PREFIX_WINDOW : KVS_PREFIX_FORMAT;
            return false;
        }
    }
    return true;
}

/* Where the block is one of sinks that was torn (store.h I8) and less of it may serve than agrees: so
 * many tokens, all of them sinks; else 0. */
static uint64_t before_hole(const walk *w, uint32_t block)
{
    uint64_t n = UINT64_MAX;
    for (uint32_t s = w->part->first; s < w->part->end; s++) {
        const kvs__slot *slot = &w->ix->slot[s];
        if (w->hole[s] && block + 1 == slot->n_sink) {
            n = least(n, slot->sinks);
        }
    }
    return n == UINT64_MAX ? 0 : n;
}

static void take(walk *w, kvs__node *node, uint64_t n, kvs__snap *snap)
{
    w->best = n;
    w->tail = node;
    w->snap = snap;
    memcpy(w->best_run, w->run, w->ix->n_slots * sizeof *w->run);
}

/* The node's first `same` tokens agree with the prompt; what of them can be resumed from? */
static void consider(walk *w, kvs__node *node, uint32_t block, uint32_t same)
{
    uint64_t begin = (uint64_t)block * w->ix->block;
    if (begin >= w->limit) {
        return;
    }
    uint64_t most = least(begin + same, w->limit);
    w->known = most > w->known ? most : w->known;
    if (!w->part->snapshots) {
        uint64_t n = most;
        if (n > w->best && !usable(w, n)) {
            n = least(before_hole(w, block), n);
            n = n > w->best && usable(w, n) ? n : 0;
        }
        if (n > w->best) {
            kvs__snap *snap = node->snaps;
            while (snap && (snap->part != w->which || begin + snap->at != n)) {
                snap = snap->next;
            }
            take(w, node, n, snap);
        }
        return;
    }
    bool any = false;
    for (kvs__snap *snap = node->snaps; snap; snap = snap->next) {
        uint64_t n = begin + snap->at;
        bool mine = snap->part == w->which;
        any = any || (mine && n <= most);
        if (mine && n <= most && n > w->best && usable(w, n)) {
            take(w, node, n, snap);
        }
    }
    w->why = any ? w->why : KVS_PREFIX_SNAPSHOT;
}

/* A leaf or a node that agrees in part: seen as if it were the next of the path, then forgotten. */
static void consider_part(walk *w, kvs__node *node, uint32_t block, uint32_t same, uint32_t *saved)
{
    size_t bytes = w->ix->n_slots * sizeof *w->run;
    if (same == 0) {
        return;
    }
    memcpy(saved, w->run, 3 * bytes); /* run, sinks and hole lie together */
    step(w, node, block);
    consider(w, node, block, same);
    memcpy(w->run, saved, 3 * bytes);
}

/* All leaves whose tokens begin the block: each may have what longer
 * siblings lack: a snapshot, or blocks of a window. */
static void consider_leaves(walk *w, const kvs__node *parent, uint32_t block, const int32_t *ids,
                            uint32_t n, uint32_t *saved)
{
    while (n > 0) {
        kvs__node *near[2];
        uint32_t same[2];
        kvs__node_near(parent, ids, n, near, same);
        if (!near[0]) {
            return;
        }
        n = same[0];
        if (near[0]->n_tokens == n && n > 0) {
            consider_part(w, near[0], block, n, saved);
            n--;
        }
    }
}

/* Where neither of the two siblings beside the prompt can be resumed from as far as they agree, one
 * further off may: it agrees in no more tokens, but may have a block of a window, or of the format
 * before a conversion, that they lack. A few are looked at. */
static void consider_more(walk *w, kvs__node *const near[2], uint32_t block, const int32_t *ids,
                          uint32_t n, uint32_t *saved)
{
    uint64_t begin = (uint64_t)block * w->ix->block;
    for (int side = 0; side < 2; side++) {
        kvs__node *at = near[side];
        for (uint32_t i = 0; i < KVS__FURTHER && at && w->best < w->known; i++) {
            uint32_t same = 0;
            at = kvs__node_beside(at, side);
            if (at) {
                (void)kvs__ids_compare(at->ids, at->n_tokens, ids, n, &same);
            }
            if (same == 0 || begin + same <= w->best) {
                break;
            }
            consider_part(w, at, block, same, saved);
        }
    }
}

static kvs_status reserve_path(kvs_prefix *ix, size_t n, kvs_err *err)
{
    if (n <= ix->cap_path) {
        return KVS_OK;
    }
    const size_t item = sizeof(kvs__node *);
    size_t cap = ix->cap_path ? ix->cap_path : 64;
    while (cap < n) {
        cap *= 2;
    }
    kvs_status st = kvs__prefix_lend(ix, cap * item, err);
    kvs__node **path = st == KVS_OK ? kvs__calloc(ix->ctx, cap, item) : NULL;
    if (!path) {
        return st == KVS_OK ? kvs__nomem(err, "store", cap * item) : st;
    }
    kvs__free(ix->ctx, ix->path, ix->cap_path * item);
    ix->own += (cap - ix->cap_path) * item;
    ix->path = path;
    ix->cap_path = cap;
    kvs__prefix_count(ix);
    return KVS_OK;
}

/* Returns the number of whole nodes in ix->path. */
static uint32_t descend(walk *w, kvs__node *root, const kvs_prefix_key *key, uint32_t *saved)
{
    kvs_prefix *ix = w->ix;
    kvs__node *at = root;
    uint32_t block = 0;
    for (;; block++) {
        size_t done = (size_t)block * ix->block;
        uint32_t n = (uint32_t)least(key->n_ids - done, ix->block);
        kvs__node *near[2];
        uint32_t same[2];
        if (n == 0 || done >= w->limit) {
            return block;
        }
        kvs__node_near(at, key->ids + done, n, near, same);
        uint32_t side = same[1] > same[0] ? 1 : 0;
        bool whole = near[side] && near[side]->n_tokens == ix->block && same[side] == ix->block;
        if (at->n_children > 1) {
            consider_leaves(w, at, block, key->ids + done, n, saved);
        }
        for (int i = 0; i < 2; i++) {
            if (near[i] && (!whole || at->n_children > 1)) {
                consider_part(w, near[i], block, same[i], saved);
            }
        }
        if (at->n_children > 1) {
            consider_more(w, near, block, key->ids + done, n, saved);
        }
        if (!whole) {
            return block;
        }
        at = near[side];
        step(w, at, block);
        consider(w, at, block, ix->block);
        ix->path[block] = at;
    }
}

/* -- the lease */

typedef struct layout {
    uint64_t first; /* after the sinks */
    uint64_t n_sink;
    uint64_t n;
} layout;

/* The blocks of one slot that go with the best of a walk: with slack for rewinds where it is kept. */
static layout blocks_of(const walk *w, uint32_t s)
{
    const kvs__slot *slot = &w->ix->slot[s];
    uint64_t block = w->ix->block;
    uint64_t end = (w->best - 1) / block + 1;
    uint64_t first = 0;
    if (slot->window > 0) {
        first = w->best > slot->ring_cap ? (w->best - slot->ring_cap) / block : 0;
        first = w->best_run[s] != KVS__NONE && w->best_run[s] > first ? w->best_run[s] : first;
    }
    layout l;
    l.n_sink = least(slot->n_sink, end);
    l.first = first > l.n_sink ? first : l.n_sink;
    l.n = l.n_sink + (end > l.first ? end - l.first : 0);
    return l;
}

static kvs__seg *page_at(const walk *w, uint64_t block, uint32_t s)
{
    uint64_t last = (w->best - 1) / w->ix->block;
    return (block == last ? w->tail : w->ix->path[block])->page[s];
}

/* Of the best: positions of its sinks' last block that are missing end here; 0: none. */
static int64_t hole_in(const walk *w, uint32_t s, uint64_t n_sink)
{
    const kvs__slot *slot = &w->ix->slot[s];
    if (slot->window == 0 || n_sink == 0 || n_sink < slot->n_sink || w->best <= slot->sinks) {
        return 0;
    }
    uint32_t hole = page_at(w, n_sink - 1, s)->hole;
    return hole ? (int64_t)((n_sink - 1) * w->ix->block + hole) : 0;
}

static void fill_lease(const walk *w, kvs_lease *lease)
{
    const kvs_prefix *ix = w->ix;
    kvs__seg **to = lease->page;
    for (uint32_t s = w->part->first; s < w->part->end; s++) {
        if (!kvs__slot_used(&ix->slot[s], w->best)) {
            continue;
        }
        layout l = blocks_of(w, s);
        kvs__page_list *list = &lease->list[ix->slot[s].layer];
        list->page = to;
        list->n = l.n;
        list->n_sink = l.n_sink;
        list->first = l.first;
        list->oldest = hole_in(w, s, l.n_sink);
        for (uint64_t i = 0; i < l.n; i++) {
            uint64_t block = i < l.n_sink ? i : l.first + i - l.n_sink;
            *to = page_at(w, block, s);
            kvs__page_share(*to);
            to++;
        }
    }
}

size_t kvs__lease_bytes(uint32_t n_layers, size_t n_pages)
{
    return sizeof(kvs_lease) + n_layers * sizeof(kvs__page_list) + n_pages * sizeof(kvs__seg *);
}

static kvs_status make_lease(walk *w, kvs_lease **out, kvs_err *err)
{
    kvs_prefix *ix = w->ix;
    size_t n_pages = 0;
    for (uint32_t s = w->part->first; s < w->part->end; s++) {
        n_pages += kvs__slot_used(&ix->slot[s], w->best) ? (size_t)blocks_of(w, s).n : 0;
    }
    size_t bytes = kvs__lease_bytes(w->part->n_layers, n_pages);
    kvs_status st = kvs__prefix_lend(ix, bytes, err);
    kvs_lease *lease = st == KVS_OK ? kvs__calloc(ix->ctx, 1, bytes) : NULL;
    if (!lease) {
        return st == KVS_OK ? kvs__nomem(err, "store", bytes) : st;
    }
    lease->ix = ix;
    lease->n_layers = w->part->n_layers;
    lease->bytes = bytes;
    lease->n_tokens = w->best;
    lease->n_pages = n_pages;
    lease->list = (kvs__page_list *)(void *)(lease + 1);
    lease->page = (kvs__seg **)(void *)(lease->list + lease->n_layers);
    lease->snap = w->snap;
    if (lease->snap) {
        lease->snap->refs++;
    }
    fill_lease(w, lease);
    ix->own += bytes;
    ix->st.leases++;
    kvs__prefix_count(ix);
    *out = lease;
    return KVS_OK;
}

/* The path of the best is held while room is made: neither it nor its windows may go meanwhile. */
static kvs_status lease_best(walk *w, uint32_t n_path, kvs_lease **out, kvs_err *err)
{
    kvs_prefix *ix = w->ix;
    uint64_t last = (w->best - 1) / ix->block;
    uint64_t n = least(n_path, last);
    for (uint64_t i = 0; i < n; i++) {
        kvs__node_hold(ix, ix->path[i]);
    }
    kvs__node_hold(ix, w->tail);
    kvs_status st = make_lease(w, out, err);
    kvs__node_release(ix, w->tail);
    for (uint64_t i = 0; i < n; i++) {
        kvs__node_release(ix, ix->path[i]);
    }
    if (st != KVS_OK || w->which != KVS__PART_MAIN) {
        return st;
    }
    for (kvs__node *at = w->tail; at->parent;
         at = at->parent) { /* so that the first is the newest */
        if (at->windows) {
            (void)kvs_retain_use(ix->retain, at->windows, ix->block, 0);
        }
        (void)kvs_retain_use(ix->retain, at->item, ix->block, 0);
    }
    return KVS_OK;
}

static kvs_status lookup_object(kvs_prefix *ix, kvs__node *root, kvs_lease **out,
                                kvs_prefix_hit *hit, kvs_err *err)
{
    size_t bytes = sizeof(kvs_lease);
    if (!root || !root->snaps) {
        hit->reason = root ? KVS_PREFIX_TOKENS : KVS_PREFIX_NAMESPACE;
        return KVS_NO;
    }
    kvs__node_hold(ix, root);
    kvs_status st = kvs__prefix_lend(ix, bytes, err);
    kvs_lease *lease = st == KVS_OK ? kvs__calloc(ix->ctx, 1, bytes) : NULL;
    kvs__node_release(ix, root);
    if (!lease) {
        return st == KVS_OK ? kvs__nomem(err, "store", bytes) : st;
    }
    lease->ix = ix;
    lease->bytes = bytes;
    lease->snap = root->snaps;
    lease->snap->refs++;
    ix->own += bytes;
    ix->st.leases++;
    kvs__prefix_count(ix);
    (void)kvs_retain_use(ix->retain, root->item, ix->block, 0);
    *out = lease;
    return KVS_OK;
}

static kvs_status search(walk *w, kvs__node *root, const kvs_prefix_key *key, size_t min_tokens,
                         kvs_lease **out, kvs_err *err)
{
    kvs_prefix *ix = w->ix;
    uint32_t *saved = ix->run + (size_t)4 * ix->n_slots; /* three rows */
    w->run = ix->run;
    w->sinks = ix->run + ix->n_slots;
    w->hole = ix->run + (size_t)2 * ix->n_slots;
    w->best_run = ix->run + (size_t)3 * ix->n_slots;
    w->limit = key->n_ids - 1;
    if (ix->n_slots > 0) {
        memset(w->run, 0xff, ix->n_slots * sizeof *w->run);
        memset(w->sinks, 0, (size_t)2 * ix->n_slots * sizeof *w->sinks); /* and holes */
    }
    kvs__node_hold(ix, root);
    kvs_status st = reserve_path(ix, key->n_ids / ix->block + 1, err);
    if (st == KVS_OK) {
        uint32_t n = descend(w, root, key, saved);
        if (w->known == 0) {
            w->why = KVS_PREFIX_TOKENS;
        } else if (w->best == w->known) {
            w->why = KVS_PREFIX_ALL;
        }
        if (w->best > 0 && w->best < min_tokens) {
            w->why = KVS_PREFIX_SHORT;
        }
        st = w->best == 0 || w->best < min_tokens ? KVS_NO : lease_best(w, n, out, err);
    }
    kvs__node_release(ix, root);
    return st;
}

static void count(kvs_prefix *ix, uint32_t part, const kvs_prefix_key *key, const kvs_prefix_hit *h)
{
    if (part == KVS__PART_DRAFT) {
        ix->st.draft_lookups++;
        ix->st.draft_hits += h->n_tokens > 0;
        ix->st.draft_hit_tokens += h->n_tokens;
        return;
    }
    ix->st.lookups++;
    ix->st.asked_tokens += key->n_ids;
    ix->st.hits += h->n_tokens > 0;
    ix->st.hit_tokens += h->n_tokens;
    ix->st.reasons[h->reason]++;
}

kvs_status kvs__prefix_lookup_part(kvs_prefix *ix, uint32_t part, const kvs_prefix_key *key,
                                   size_t min_tokens, kvs_lease **out, kvs_prefix_hit *hit,
                                   kvs_err *err)
{
    kvs_prefix_hit h = KVS_PREFIX_HIT_INIT;
    if (!ix || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL", ix ? "out" : "index");
    }
    *out = NULL;
    kvs_status st = kvs__prefix_check_key(key, err);
    if (st == KVS_OK && hit && kvs__stats_write(hit, &h, sizeof h) != KVS_OK) {
        st = kvs__fail(err, KVS_E_INVAL, "store", "hit->struct_size is %zu", hit->struct_size);
    }
    if (st != KVS_OK) {
        return st;
    }
    uint8_t name[KVS__SHA_BYTES];
    kvs__root_key(key, name);
    kvs__node *root = kvs__root_find(ix, name);
    walk w;
    memset(&w, 0, sizeof w);
    w.ix = ix;
    w.which = part;
    w.part = &ix->part[part];
    w.why = KVS_PREFIX_NAMESPACE;
    if (key->n_ids == 0) {
        st = lookup_object(ix, root, out, &h, err);
        w.why = h.reason;
    } else {
        st = root ? search(&w, root, key, min_tokens, out, err) : KVS_NO;
    }
    if (st != KVS_OK && st != KVS_NO) {
        return st;
    }
    h.n_tokens = st == KVS_OK ? (size_t)w.best : 0;
    h.n_known = (size_t)w.known;
    h.reason = w.why;
    if (*out && (*out)->snap) {
        h.snapshot = (*out)->snap + 1;
        h.snapshot_bytes = (*out)->snap->n;
    }
    count(ix, part, key, &h);
    if (hit) {
        (void)kvs__stats_write(hit, &h, sizeof h);
    }
    return st;
}

kvs_status kvs_prefix_lookup(kvs_prefix *ix, const kvs_prefix_key *key, size_t min_tokens,
                             kvs_lease **out, kvs_prefix_hit *hit, kvs_err *err)
{
    return kvs__prefix_lookup_part(ix, KVS__PART_MAIN, key, min_tokens, out, hit, err);
}

kvs_status kvs_prefix_attach(const kvs_lease *lease, kvs_cache *cache, kvs_err *err)
{
    if (!lease || !cache) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL", lease ? "cache" : "lease");
    }
    if (cache->n_layers != lease->n_layers || lease->n_tokens == 0) {
        return kvs__fail(err, KVS_E_INVAL, "store", "a cache of %u layers, a lease of %zu tokens",
                         cache->n_layers, lease->n_tokens);
    }
    if (cache->broken || cache->open) {
        return kvs__fail(err, cache->broken ? KVS_E_BROKEN : KVS_E_STATE, "store", "the cache %s",
                         cache->broken ? "is broken" : "is in a round");
    }
    return kvs__page_attach(cache, lease->n_tokens, lease->list, err);
}

void kvs_prefix_release(kvs_lease *lease)
{
    if (!lease) {
        return;
    }
    kvs_prefix *ix = lease->ix;
    for (size_t i = 0; i < lease->n_pages; i++) {
        kvs__page_release(lease->page[i]);
    }
    ix->own -= lease->bytes;
    kvs__snap_unref(ix, lease->snap);
    ix->st.leases--;
    kvs__free(ix->ctx, lease, lease->bytes);
}

const kvs__seg *kvs__lease_page(const kvs_lease *lease, uint32_t layer, uint64_t block)
{
    if (layer >= lease->n_layers || lease->n_tokens == 0) {
        return NULL;
    }
    const kvs__page_list *l = &lease->list[layer];
    if (block < l->n_sink) {
        return l->page[block];
    }
    return block >= l->first && block - l->first < l->n - l->n_sink
               ? l->page[l->n_sink + block - l->first]
               : NULL;
}
