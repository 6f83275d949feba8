/* SPDX-License-Identifier: MIT */
/* prefix.c: life cycle, budget and eviction of the prefix index (prefix.h; invariants in
 * prefix_priv.h). Decides nothing about what is worth keeping: that is retain.c. */
#include <string.h>

#include "store/prefix_priv.h"
#include "store/retain_priv.h"

/* -- budget */

size_t kvs__prefix_bytes(const kvs_prefix *ix)
{
    return ix->own + kvs__retain_own(ix->retain) + (size_t)ix->retain->bytes;
}

void kvs__prefix_count(kvs_prefix *ix)
{
    size_t bytes = kvs__prefix_bytes(ix);
    ix->peak = bytes > ix->peak ? bytes : ix->peak;
}

static void evict_windows(kvs_prefix *ix, kvs__node *node)
{
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        if (node->page[s] && ix->slot[s].window > 0 && node->depth >= ix->slot[s].n_sink) {
            kvs__page_unkeep(node->page[s]);
            node->page[s] = NULL;
            ix->st.pages--;
        }
    }
    (void)kvs_retain_drop(ix->retain, node->windows, KVS_RETAIN_EVICTED);
    node->windows = 0;
    ix->st.evicted_windows++;
}

bool kvs__prefix_evict(kvs_prefix *ix)
{
    kvs_retain_id id = 0;
    if (kvs_retain_choose(ix->retain, &id) != KVS_OK) {
        return false;
    }
    kvs__node *node = ix->owner[(uint32_t)id];
    bool windows = node->windows == id;
    if (ix->on_evict) {
        ix->on_evict(ix->evict_user, node, windows);
    }
    if (windows) {
        evict_windows(ix, node);
        return true;
    }
    ix->st.evicted++;
    kvs__node_drop(ix, node, KVS_RETAIN_EVICTED);
    return true;
}

kvs_status kvs__prefix_room(kvs_prefix *ix, size_t bytes, kvs_err *err)
{
    size_t spare = ix->o.max_bytes && ix->waits ? kvs__prefix_lease_spare(ix) : 0;
    return kvs__prefix_lend(ix, bytes + spare, err);
}

kvs_status kvs__prefix_lend(kvs_prefix *ix, size_t bytes, kvs_err *err)
{
    size_t most = ix->o.max_bytes;
    if (most == 0) {
        return KVS_OK;
    }
    while (bytes > most || kvs__prefix_bytes(ix) > most - bytes) {
        if (bytes > most || !kvs__prefix_evict(ix)) {
            return kvs__fail(err, KVS_E_LIMIT, "store",
                             "the index takes %zu bytes, %zu more would pass its limit of %zu%s",
                             kvs__prefix_bytes(ix), bytes, most,
                             ix->waits ? "; some wait for a slower tier" : "");
        }
    }
    return KVS_OK;
}

static kvs_status reserve_owner(kvs_prefix *ix, kvs_err *err)
{
    size_t want = ix->retain->cap;
    if (want <= ix->n_owner) {
        return KVS_OK;
    }
    kvs__node **owner = kvs__calloc(ix->ctx, want, sizeof(kvs__node *));
    if (!owner) {
        return kvs__nomem(err, "store", want * sizeof(kvs__node *));
    }
    if (ix->owner) {
        memcpy(owner, ix->owner, ix->n_owner * sizeof(kvs__node *));
    }
    kvs__free(ix->ctx, ix->owner, ix->n_owner * sizeof(kvs__node *));
    ix->own += (want - ix->n_owner) * sizeof(kvs__node *);
    ix->owner = owner;
    ix->n_owner = want;
    return KVS_OK;
}

kvs_status kvs__prefix_item(kvs_prefix *ix, kvs__node *node, bool windows, size_t bytes,
                            uint32_t hint, kvs_err *err)
{
    kvs_retain_item item = KVS_RETAIN_ITEM_INIT;
    size_t growth = kvs__retain_growth(ix->retain);
    size_t slots = growth == 0       ? ix->retain->cap
                   : ix->retain->cap ? (size_t)ix->retain->cap * 2
                                     : 64;
    /* owner may lag behind: memory for it was refused the last time */
    size_t need = bytes + growth + (slots > ix->n_owner ? slots * sizeof(kvs__node *) : 0);
    kvs_retain_id id = 0;
    kvs_status st = kvs__prefix_room(ix, need, err);
    if (st != KVS_OK) {
        return st;
    }
    item.key = node->hash ^ (windows ? 0x5bd1e9955bd1e995u : 0);
    item.bytes = bytes;
    item.cost = ix->block;
    item.kind = windows ? 1 : 0;
    item.hint = hint;
    st = kvs_retain_add(ix->retain, &item, &id, err);
    if (st != KVS_OK) {
        return st;
    }
    st = reserve_owner(ix, err);
    if (st != KVS_OK) {
        (void)kvs_retain_drop(ix->retain, id, KVS_RETAIN_FORGOTTEN);
        return st;
    }
    ix->owner[(uint32_t)id] = node;
    *(windows ? &node->windows : &node->item) = id;
    uint32_t pins = node->holds + (node->wait != NULL) + (windows ? 0 : node->n_children > 0);
    for (uint32_t i = 0; i < pins; i++) {
        (void)kvs_retain_pin(ix->retain, id);
    }
    kvs__prefix_count(ix);
    return KVS_OK;
}

/* The pool can't get a block: give one up, whatever it frees; what waits only if it frees one. */
static bool reclaim(void *user, kvs_pages *pages, size_t block_bytes)
{
    (void)pages;
    (void)block_bytes;
    return kvs__prefix_evict(user) || kvs__prefix_give_up(user, true);
}

void kvs__prefix_on_evict(kvs_prefix *ix, kvs__evict_fn fn, void *user)
{
    ix->on_evict = fn;
    ix->evict_user = user;
}

/* -- life cycle */

static void fill_slot(kvs__slot *slot, const kvs__layer *l, uint32_t layer, bool early)
{
    const kvs__store *s = early ? &l->early : &l->main;
    slot->fmt = s->fmt;
    slot->layer = layer;
    slot->early = early;
    slot->dense_until = l->spec.dense_until;
    slot->window = s->window;
    slot->ring_cap = s->ring_cap;
    slot->n_sink = s->n_sink;
    slot->sinks = s->sinks;
}

static kvs_status read_layers(kvs_prefix *ix, uint32_t which, const kvs_cache *like, bool count,
                              kvs_err *err)
{
    kvs__part *part = &ix->part[which];
    part->n_layers = like->n_layers;
    part->first = ix->n_slots;
    part->snapshots = which == KVS__PART_MAIN && (ix->o.flags & KVS_PREFIX_SNAPSHOTS) != 0;
    for (uint32_t i = 0; i < like->n_layers; i++) {
        const kvs__layer *l = &like->layer[i];
        if (l->spec.kind == KVS_LAYER_BORROW) {
            continue;
        }
        if (l->spec.kind == KVS_LAYER_RECURRENT) {
            part->snapshots = true;
            continue;
        }
        if (l->spec.layout != KVS_LAYOUT_PAGED) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "store", "layer %u%s is not paged", i,
                             which == KVS__PART_DRAFT ? " of the draft model" : "");
        }
        for (int early = 0; early < (l->spec.dense_until > 0 ? 2 : 1); early++) {
            if (!count) {
                kvs__slot *slot = &ix->slot[ix->n_slots];
                fill_slot(slot, l, i, early == 1);
                if (!kvs__page_size(&slot->fmt, ix->block, &slot->page_bytes)) {
                    return kvs__fail(err, KVS_E_RANGE, "store", "layer %u: a block is too large",
                                     i);
                }
            }
            ix->n_slots++;
        }
    }
    part->end = ix->n_slots;
    return KVS_OK;
}

/* Of both parts. */
static kvs_status read_parts(kvs_prefix *ix, const kvs_cache *const like[KVS__PARTS], bool count,
                             kvs_err *err)
{
    kvs_status st = KVS_OK;
    ix->n_slots = 0;
    for (uint32_t i = 0; st == KVS_OK && i < KVS__PARTS && like[i]; i++) {
        st = read_layers(ix, i, like[i], count, err);
    }
    return st;
}

static kvs_status read_opts(const kvs_prefix_opts *opts, kvs_prefix_opts *o, kvs_err *err)
{
    kvs_status st = opts ? kvs__opts_read(o, sizeof *o, opts, "kvs_prefix_opts", err) : KVS_OK;
    if (st == KVS_OK && (o->flags & ~(uint32_t)KVS_PREFIX_SNAPSHOTS)) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "store", "kvs_prefix_opts.flags is %#x", o->flags);
    }
    return st;
}

static size_t run_len(const kvs_prefix *ix)
{
    return (size_t)7 * ix->n_slots + 1;
}

static kvs_status fill(kvs_prefix *ix, const kvs_cache *const like[KVS__PARTS], kvs_err *err)
{
    kvs_retain_opts r = KVS_RETAIN_OPTS_INIT;
    kvs_status st = read_parts(ix, like, true, err);
    if (st != KVS_OK) {
        return st;
    }
    /* one more of each: without slots (recurrent layers alone) neither is NULL */
    ix->slot = kvs__calloc(ix->ctx, ix->n_slots + (size_t)1, sizeof *ix->slot);
    ix->run = kvs__calloc(ix->ctx, run_len(ix), sizeof *ix->run);
    if (!ix->slot || !ix->run) {
        return kvs__nomem(err, "store", ix->n_slots * sizeof *ix->slot);
    }
    ix->own = sizeof *ix + (ix->n_slots + 1) * sizeof *ix->slot + run_len(ix) * sizeof *ix->run;
    st = read_parts(ix, like, false, err);
    r.policy = ix->o.policy;
    r.score = ix->o.score;
    r.user = ix->o.user;
    st = st == KVS_OK ? kvs_retain_new(ix->ctx, &r, &ix->retain, err) : st;
    if (st == KVS_OK && ix->o.max_bytes && kvs__prefix_bytes(ix) > ix->o.max_bytes) {
        st = kvs__fail(err, KVS_E_LIMIT, "store", "max_bytes %zu does not hold the index (%zu)",
                       ix->o.max_bytes, kvs__prefix_bytes(ix));
    }
    return st;
}

static void free_parts(kvs_prefix *ix)
{
    kvs_retain_free(ix->retain);
    kvs__free(ix->ctx, ix->owner, ix->n_owner * sizeof(kvs__node *));
    kvs__free(ix->ctx, ix->root, ix->cap_roots * sizeof(kvs__node *));
    kvs__free(ix->ctx, ix->path, ix->cap_path * sizeof(kvs__node *));
    kvs__free(ix->ctx, ix->slot, (ix->n_slots + (size_t)1) * sizeof *ix->slot);
    kvs__free(ix->ctx, ix->run, run_len(ix) * sizeof *ix->run);
    kvs__idmap_free(ix->ctx, &ix->roots);
    kvs__idmap_free(ix->ctx, &ix->sessions);
    kvs__free(ix->ctx, ix, sizeof *ix);
}

kvs_status kvs__prefix_new_pair(kvs_ctx *ctx, const kvs_cache *like, const kvs_cache *draft,
                                const kvs_prefix_opts *opts, kvs_prefix **out, kvs_err *err)
{
    const kvs_cache *const parts[KVS__PARTS] = {like, draft};
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    if (!ctx || !like || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL",
                         !ctx ? "ctx" : (like ? "out" : "like"));
    }
    *out = NULL;
    kvs_status st = read_opts(opts, &o, err);
    if (st != KVS_OK) {
        return st;
    }
    /* a cache without a paged layer has no pool */
    kvs_pages *pages = like->pages || !draft ? like->pages : draft->pages;
    if (pages && kvs__pages_ctx(pages) != ctx) {
        return kvs__fail(err, KVS_E_INVAL, "store", "the pool is of another context");
    }
    if (draft && draft->pages && draft->pages != pages) {
        return kvs__fail(err, KVS_E_INVAL, "store", "the draft model's cache has another pool");
    }
    kvs_prefix *ix = kvs__calloc(ctx, 1, sizeof *ix);
    if (!ix) {
        return kvs__nomem(err, "store", sizeof *ix);
    }
    ix->ctx = ctx;
    ix->o = o;
    ix->pages = pages;
    ix->block = pages ? kvs__pages_block(pages) : KVS__PAGE_BLOCK;
    ix->rng = 0x2545f4914f6cdd1du;
    st = fill(ix, parts, err);
    if (st != KVS_OK) {
        free_parts(ix);
        return st;
    }
    if (ix->pages) {
        kvs__pages_join(ix->pages);
        kvs__pages_set_reclaim(ix->pages, reclaim, ix);
    }
    kvs__prefix_count(ix);
    *out = ix;
    return KVS_OK;
}

kvs_status kvs_prefix_new(kvs_ctx *ctx, const kvs_cache *like, const kvs_prefix_opts *opts,
                          kvs_prefix **out, kvs_err *err)
{
    return kvs__prefix_new_pair(ctx, like, NULL, opts, out, err);
}

void kvs_prefix_clear(kvs_prefix *ix)
{
    if (ix) {
        for (uint32_t i = ix->n_roots; i-- > 0;) {
            if (i < ix->n_roots) {
                kvs__node_drop_tree(ix, ix->root[i]);
            }
        }
    }
}

void kvs_prefix_free(kvs_prefix *ix)
{
    if (!ix) {
        return;
    }
    KVS_ASSERT(ix->st.leases == 0 && !ix->waits);
    kvs_prefix_clear(ix);
    if (ix->pages) {
        kvs__pages_set_reclaim(ix->pages, NULL, NULL);
        kvs__pages_leave(ix->pages);
    }
    free_parts(ix);
}

kvs_status kvs_prefix_limit(kvs_prefix *ix, size_t max_bytes)
{
    if (!ix) {
        return KVS_E_INVAL;
    }
    ix->o.max_bytes = max_bytes;
    kvs_status st = kvs__prefix_lend(ix, 0, NULL);
    while (st != KVS_OK && kvs__prefix_give_up(ix, false)) {
        st = kvs__prefix_lend(ix, 0, NULL);
    }
    ix->peak = kvs__prefix_bytes(ix);
    return st == KVS_OK ? KVS_OK : KVS_NO;
}

void kvs_prefix_clock(kvs_prefix *ix, uint64_t now_ms)
{
    if (ix) {
        ix->now = now_ms > ix->now ? now_ms : ix->now;
        kvs_retain_clock(ix->retain, ix->now);
    }
}

kvs_status kvs_prefix_get_stats(const kvs_prefix *ix, kvs_prefix_stats *out)
{
    if (!ix || !out) {
        return KVS_E_INVAL;
    }
    kvs_prefix_stats s = ix->st;
    s.struct_size = sizeof s;
    s.bytes = kvs__prefix_bytes(ix);
    s.peak_bytes = ix->peak;
    s.max_bytes = ix->o.max_bytes;
    kvs__prefix_count_waiting(ix, &s);
    return kvs__stats_write(out, &s, sizeof s);
}

/* -- invariants */

typedef struct tally {
    size_t bytes;
    uint64_t nodes;
    uint64_t pages;
} tally;

static bool check_node(const kvs_prefix *ix, const kvs__node *node, tally *t)
{
    kvs_retain_info item = KVS_RETAIN_INFO_INIT;
    kvs_retain_info win = KVS_RETAIN_INFO_INIT;
    size_t bytes = node->parent ? node->bytes : 0;
    size_t windows = 0;
    for (const kvs__snap *s = node->snaps; s; s = s->next) {
        bytes += s->bytes;
    }
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        const kvs__slot *slot = &ix->slot[s];
        if (node->page[s]) {
            bool apart = slot->window > 0 && node->depth >= slot->n_sink;
            *(apart ? &windows : &bytes) += slot->page_bytes;
            t->pages++;
            if (!kvs__fmt_same(kvs__page_fmt(node->page[s]), &slot->fmt)) {
                return false;
            }
        }
    }
    if (node->item && kvs_retain_get_info(ix->retain, node->item, &item) != KVS_OK) {
        return false;
    }
    if (node->windows && kvs_retain_get_info(ix->retain, node->windows, &win) != KVS_OK) {
        return false;
    }
    t->bytes += bytes + windows;
    t->nodes += node->parent != NULL;
    uint32_t calls = node->holds + (node->wait != NULL);
    bool pins = (!node->item || item.pins == calls + (node->n_children > 0)) &&
                (!node->windows || win.pins == calls);
    return pins && item.bytes == (node->item ? bytes : 0) && win.bytes == windows &&
           (node->windows != 0) == (windows > 0) && (node->item || !node->parent) &&
           (node->n_children == 0 || !node->parent || node->n_tokens == ix->block);
}

/* Children one after another, in order; counts them. */
static bool check_children(const kvs_prefix *ix, const kvs__node *parent)
{
    uint32_t n = 0;
    const kvs__node *last = NULL;
    const kvs__node *at = parent->child;
    uint32_t same = 0;
    while (at && at->left) {
        at = at->left;
    }
    while (at) {
        if (at->parent != parent || at->depth != (parent->parent ? parent->depth + 1 : 0) ||
            (last &&
             kvs__ids_compare(last->ids, last->n_tokens, at->ids, at->n_tokens, &same) >= 0)) {
            return false;
        }
        n++;
        last = at;
        const kvs__node *next = NULL;
        for (const kvs__node *k = parent->child; k;) {
            bool later =
                kvs__ids_compare(k->ids, k->n_tokens, last->ids, last->n_tokens, &same) > 0;
            next = later ? k : next;
            k = later ? k->left : k->right;
        }
        at = next;
    }
    (void)ix;
    return n == parent->n_children;
}

bool kvs__prefix_check(const kvs_prefix *ix)
{
    tally t = {0, 0, 0};
    if (!kvs__prefix_check_waits(ix)) {
        return false;
    }
    for (uint32_t i = 0; i < ix->n_roots; i++) {
        if (!check_node(ix, ix->root[i], &t) || !check_children(ix, ix->root[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < ix->n_owner; i++) { /* every node has an item */
        const kvs__node *node = ix->owner[i];
        const kvs__item *item = &ix->retain->item[i];
        if (item->state != KVS__LIVE || !node || !node->parent || (uint32_t)node->item != i) {
            continue;
        }
        if (!check_node(ix, node, &t) || !check_children(ix, node)) {
            return false;
        }
    }
    return t.bytes == ix->retain->bytes && t.nodes == ix->st.nodes && t.pages == ix->st.pages &&
           (ix->o.max_bytes == 0 || ix->peak <= ix->o.max_bytes || ix->st.leases > 0);
}
