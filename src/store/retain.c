/* SPDX-License-Identifier: MIT */
/* retain.c: items, pins, priorities, budget (retain.h); which item goes first is the order's matter:
 * retain_heap.c for scores, retain_density.c for hit density. Knows nothing of what the items are. */
#include <math.h>
#include <string.h>

#include "store/retain_priv.h"

#define FIRST_CAP   64u
#define GHOSTS_MIN  4096u
#define GHOSTS_EACH 16u

static const uint64_t hash_mul = 0x9e3779b97f4a7c15u;

/* -- life cycle */

kvs_status kvs_retain_new(kvs_ctx *ctx, const kvs_retain_opts *opts, kvs_retain **out, kvs_err *err)
{
    kvs_retain_opts o = KVS_RETAIN_OPTS_INIT;
    if (!ctx || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL", ctx ? "out" : "ctx");
    }
    *out = NULL;
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_retain_opts", err) : KVS_OK;
    if (st != KVS_OK) {
        return st;
    }
    if ((unsigned)o.policy > KVS_RETAIN_CUSTOM || (o.policy == KVS_RETAIN_CUSTOM && !o.score)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "policy %u %s", (unsigned)o.policy,
                         o.policy == KVS_RETAIN_CUSTOM ? "needs a score" : "is unknown");
    }
    kvs_retain *r = kvs__calloc(ctx, 1, sizeof *r);
    if (!r) {
        return kvs__nomem(err, "store", sizeof *r);
    }
    r->ctx = ctx;
    r->o = o;
    r->free = KVS__NONE;
    r->ghosts.prev = KVS__NONE;
    r->ghosts.next = KVS__NONE;
    st = o.policy == KVS_RETAIN_DENSITY ? kvs__density_new(ctx, &r->density, err) : KVS_OK;
    if (st != KVS_OK) {
        kvs_retain_free(r);
        return st;
    }
    *out = r;
    return KVS_OK;
}

void kvs_retain_free(kvs_retain *r)
{
    if (!r) {
        return;
    }
    for (uint32_t p = 0; p < KVS_RETAIN_PRIORITIES; p++) {
        kvs__free(r->ctx, r->heap[p].at, r->cap * sizeof *r->heap[p].at);
    }
    kvs__free(r->ctx, r->expiry.at, r->cap * sizeof *r->expiry.at);
    kvs__density_free(r->ctx, r->density);
    kvs__idmap_free(r->ctx, &r->by_key);
    kvs__free(r->ctx, r->item, r->cap * sizeof *r->item);
    kvs__free(r->ctx, r, sizeof *r);
}

/* -- slots */

/* Heaps first: one that is larger than r->cap says would be freed by the wrong size, so all or none
 * are replaced. */
static bool grow_heaps(kvs_retain *r, uint32_t cap)
{
    kvs__heap fresh[KVS_RETAIN_PRIORITIES + 1];
    kvs__heap *old[KVS_RETAIN_PRIORITIES + 1];
    memset(fresh, 0, sizeof fresh);
    uint32_t n = 0;
    bool ok = true;
    for (uint32_t p = 0; p <= KVS_RETAIN_PRIORITIES; p++) {
        old[p] = p < KVS_RETAIN_PRIORITIES ? &r->heap[p] : &r->expiry;
    }
    bool scores = r->o.policy != KVS_RETAIN_DENSITY;
    for (n = scores ? 0 : KVS_RETAIN_PRIORITIES; ok && n <= KVS_RETAIN_PRIORITIES; n++) {
        fresh[n].at = kvs__calloc(r->ctx, cap, sizeof *fresh[n].at);
        ok = fresh[n].at != NULL;
    }
    for (uint32_t p = 0; p <= KVS_RETAIN_PRIORITIES; p++) {
        kvs__heap *drop = ok ? old[p] : &fresh[p];
        uint32_t drop_cap = ok ? r->cap : cap;
        if (ok && fresh[p].at) {
            if (drop->n > 0) {
                memcpy(fresh[p].at, drop->at, drop->n * sizeof *drop->at);
            }
            kvs__free(r->ctx, drop->at, drop_cap * sizeof *drop->at);
            drop->at = fresh[p].at;
        } else if (!ok) {
            kvs__free(r->ctx, drop->at, drop_cap * sizeof *drop->at);
        }
    }
    return ok;
}

static kvs_status grow(kvs_retain *r, kvs_err *err)
{
    uint32_t cap = r->cap ? r->cap * 2 : FIRST_CAP;
    if (r->cap > UINT32_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "store", "%u items are too many", r->cap);
    }
    kvs__item *item = kvs__calloc(r->ctx, cap, sizeof *item);
    kvs_status st = item ? kvs__idmap_reserve(r->ctx, &r->by_key, cap - r->by_key.n, err)
                         : kvs__nomem(err, "store", cap * sizeof *item);
    if (st == KVS_OK && !grow_heaps(r, cap)) {
        st = kvs__nomem(err, "store", cap * sizeof(uint32_t));
    }
    if (st != KVS_OK || !item) {
        kvs__free(r->ctx, item, cap * sizeof *item);
        return st;
    }
    if (r->cap > 0) {
        memcpy(item, r->item, r->cap * sizeof *item);
    }
    kvs__free(r->ctx, r->item, r->cap * sizeof *item);
    r->item = item;
    for (uint32_t i = cap; i-- > r->cap;) {
        item[i].evict.next = r->free;
        item[i].generation = 1;
        r->free = i;
    }
    r->cap = cap;
    return KVS_OK;
}

static uint32_t find_key(const kvs_retain *r, uint64_t key)
{
    size_t at = SIZE_MAX;
    uint32_t i = kvs__idmap_next(&r->by_key, key * hash_mul, &at);
    while (i != KVS__NONE && r->item[i].key != key) {
        i = kvs__idmap_next(&r->by_key, key * hash_mul, &at);
    }
    return i;
}

static void release_slot(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    uint32_t generation = x->generation;
    kvs__idmap_remove(&r->by_key, x->key * hash_mul, i);
    memset(x, 0, sizeof *x);
    x->generation = generation;
    x->evict.next = r->free;
    r->free = i;
}

static kvs__item *of_id(const kvs_retain *r, kvs_retain_id id)
{
    uint32_t i = (uint32_t)id;
    if (!r || i >= r->cap) {
        return NULL;
    }
    kvs__item *x = &r->item[i];
    return x->state == KVS__LIVE && x->generation == id >> 32 ? x : NULL;
}

static uint32_t number(const kvs_retain *r, const kvs__item *x)
{
    return (uint32_t)(x - r->item);
}

/* -- ghosts */

static void ghost_out(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    if (x->evict.prev == KVS__NONE) {
        r->ghosts.next = x->evict.next;
    } else {
        r->item[x->evict.prev].evict.next = x->evict.next;
    }
    if (x->evict.next == KVS__NONE) {
        r->ghosts.prev = x->evict.prev;
    } else {
        r->item[x->evict.next].evict.prev = x->evict.prev;
    }
    r->n_ghosts--;
}

static void ghost_in(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    x->state = KVS__GHOST;
    x->generation++;
    x->evict.prev = r->ghosts.prev;
    x->evict.next = KVS__NONE;
    if (r->ghosts.prev == KVS__NONE) {
        r->ghosts.next = i;
    } else {
        r->item[r->ghosts.prev].evict.next = i;
    }
    r->ghosts.prev = i;
    r->n_ghosts++;
    uint64_t most = r->o.max_ghosts;
    if (most == 0) {
        most = r->n_live > GHOSTS_MIN / GHOSTS_EACH ? r->n_live * GHOSTS_EACH : GHOSTS_MIN;
    }
    for (int n = 0; n < 2 && r->n_ghosts > most; n++) { /* two: a sunken limit is reached in time */
        uint32_t old = r->ghosts.next;
        ghost_out(r, old);
        kvs__density_forget(r, old);
        release_slot(r, old);
    }
}

/* -- orders */

static void link_item(kvs_retain *r, uint32_t i)
{
    if (r->density) {
        kvs__density_link(r, i);
    } else {
        kvs__score_push(r, i);
    }
}

static void unlink_item(kvs_retain *r, uint32_t i)
{
    if (r->density) {
        kvs__density_unlink(r, i);
    } else {
        kvs__score_remove(r, i);
    }
}

static void fill_info(const kvs__item *x, kvs_retain_info *info)
{
    kvs_retain_info v = KVS_RETAIN_INFO_INIT;
    v.key = x->key;
    v.bytes = x->bytes;
    v.cost = x->cost;
    v.last_use = x->last_use;
    v.uses = x->uses;
    v.kind = x->kind;
    v.hint = x->hint;
    v.priority = x->priority;
    v.pins = x->pins;
    *info = v;
}

static void rate(kvs_retain *r, kvs__item *x)
{
    if (r->o.policy == KVS_RETAIN_COST) {
        double bytes = (double)(x->bytes > 0 ? x->bytes : 1);
        x->score = r->age + (double)x->cost * (double)x->uses / bytes;
    } else if (r->o.policy == KVS_RETAIN_CUSTOM) {
        kvs_retain_info info;
        fill_info(x, &info);
        double score = r->o.score(r->o.user, &info);
        x->score = isnan(score) ? 0.0 : score;
    }
}

/* A use of an item that is in no order, which puts it there unless it is pinned. */
static void use(kvs_retain *r, uint32_t i, bool known)
{
    kvs__item *x = &r->item[i];
    r->tick++;
    if (r->density) {
        kvs__density_use(r, i, known);
    } else {
        x->last_use = r->tick;
        rate(r, x);
    }
    if (x->pins == 0) {
        link_item(r, i);
    }
}

static void set_priority(kvs_retain *r, uint32_t i, uint32_t priority, uint64_t until)
{
    kvs__item *x = &r->item[i];
    if (x->until > 0) {
        kvs__expiry_remove(r, i);
    }
    if (x->pins == 0) {
        unlink_item(r, i);
    }
    x->priority = (uint8_t)(until > 0 && until <= r->now ? 0 : priority);
    x->until = x->priority > 0 ? until : 0;
    if (x->pins == 0) {
        link_item(r, i);
    }
    if (x->until > 0) {
        kvs__expiry_push(r, i);
    }
}

/* -- calls */

kvs_status kvs_retain_admit(const kvs_retain *r, uint64_t bytes)
{
    if (!r) {
        return KVS_E_INVAL;
    }
    uint64_t most = r->o.max_bytes;
    if (most == 0) {
        return KVS_OK;
    }
    if (bytes > most || r->pinned_bytes > most - bytes) {
        return KVS_E_LIMIT;
    }
    return r->bytes > most - bytes ? KVS_NO : KVS_OK;
}

static kvs_status check_item(const kvs_retain_item *v, kvs_err *err)
{
    if (v->kind > 31 || v->hint > 15 || v->priority >= KVS_RETAIN_PRIORITIES || v->reserved) {
        return kvs__fail(err, KVS_E_INVAL, "store", "kind %u, hint %u, priority %u: too large",
                         v->kind, v->hint, v->priority);
    }
    return KVS_OK;
}

kvs_status kvs_retain_add(kvs_retain *r, const kvs_retain_item *item, kvs_retain_id *out,
                          kvs_err *err)
{
    kvs_retain_item v = KVS_RETAIN_ITEM_INIT;
    if (!r || !item || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "%s is NULL",
                         !r ? "retain" : (item ? "out" : "item"));
    }
    kvs_status st = kvs__opts_read(&v, sizeof v, item, "kvs_retain_item", err);
    st = st == KVS_OK ? check_item(&v, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    uint32_t i = find_key(r, v.key);
    bool known = i != KVS__NONE;
    if (known && r->item[i].state == KVS__LIVE) {
        return kvs__fail(err, KVS_E_STATE, "store", "key %llx is there", (unsigned long long)v.key);
    }
    if (kvs_retain_admit(r, v.bytes) != KVS_OK) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "%llu bytes more than %llu would pass %llu",
                         (unsigned long long)v.bytes, (unsigned long long)r->bytes,
                         (unsigned long long)r->o.max_bytes);
    }
    st = !known && r->free == KVS__NONE ? grow(r, err) : KVS_OK;
    if (st != KVS_OK) {
        return st;
    }
    if (known) {
        ghost_out(r, i);
        r->returned++;
    } else {
        i = r->free;
        r->free = r->item[i].evict.next;
        kvs__idmap_insert(&r->by_key, v.key * hash_mul, i);
    }
    kvs__item *x = &r->item[i];
    x->key = v.key;
    x->bytes = v.bytes;
    x->cost = v.cost;
    x->kind = (uint8_t)v.kind;
    x->hint = (uint8_t)v.hint;
    x->priority = 0;
    x->until = 0;
    x->uses = known ? x->uses + 1 : 1;
    x->state = KVS__LIVE;
    r->n_live++;
    r->bytes += v.bytes;
    r->added++;
    use(r, i, known);
    if (v.priority > 0) {
        set_priority(r, i, v.priority, v.until);
    }
    *out = (uint64_t)x->generation << 32 | i;
    return KVS_OK;
}

kvs_status kvs_retain_knows(const kvs_retain *r, uint64_t key)
{
    uint32_t i = r ? find_key(r, key) : KVS__NONE;
    if (i == KVS__NONE) {
        return r ? KVS_E_NOTFOUND : KVS_E_INVAL;
    }
    return r->item[i].state == KVS__LIVE ? KVS_OK : KVS_NO;
}

kvs_status kvs_retain_use(kvs_retain *r, kvs_retain_id id, uint64_t cost, uint32_t hint)
{
    kvs__item *x = of_id(r, id);
    if (!x) {
        return KVS_E_NOTFOUND;
    }
    if (hint > 15) {
        return KVS_E_INVAL;
    }
    uint32_t i = number(r, x);
    if (x->pins == 0) {
        unlink_item(r, i);
    }
    x->uses += x->uses < UINT32_MAX;
    x->cost = cost;
    x->hint = (uint8_t)hint;
    r->used++;
    use(r, i, true);
    return KVS_OK;
}

kvs_status kvs_retain_renew(kvs_retain *r, kvs_retain_id id)
{
    kvs__item *x = of_id(r, id);
    if (!x) {
        return KVS_E_NOTFOUND;
    }
    uint32_t i = number(r, x);
    if (x->pins == 0) {
        unlink_item(r, i);
    }
    r->tick++;
    if (r->density) {
        kvs__density_renew(r, i);
    } else {
        x->last_use = r->tick;
        rate(r, x);
    }
    if (x->pins == 0) {
        link_item(r, i);
    }
    return KVS_OK;
}

kvs_status kvs_retain_resize(kvs_retain *r, kvs_retain_id id, uint64_t bytes)
{
    kvs__item *x = of_id(r, id);
    if (!x) {
        return KVS_E_NOTFOUND;
    }
    if (bytes > x->bytes && kvs_retain_admit(r, bytes - x->bytes) != KVS_OK) {
        return KVS_E_LIMIT;
    }
    r->bytes += bytes - x->bytes;
    r->pinned_bytes += x->pins > 0 ? bytes - x->bytes : 0;
    x->bytes = bytes;
    return KVS_OK;
}

kvs_status kvs_retain_set_priority(kvs_retain *r, kvs_retain_id id, uint32_t priority,
                                   uint64_t until)
{
    kvs__item *x = of_id(r, id);
    if (!x || priority >= KVS_RETAIN_PRIORITIES) {
        return x ? KVS_E_INVAL : KVS_E_NOTFOUND;
    }
    set_priority(r, number(r, x), priority, until);
    return KVS_OK;
}

kvs_status kvs_retain_pin(kvs_retain *r, kvs_retain_id id)
{
    kvs__item *x = of_id(r, id);
    if (!x) {
        return KVS_E_NOTFOUND;
    }
    if (x->pins == UINT32_MAX) {
        return KVS_E_RANGE;
    }
    if (x->pins == 0) {
        unlink_item(r, number(r, x));
        r->pinned_bytes += x->bytes;
    }
    x->pins++;
    return KVS_OK;
}

kvs_status kvs_retain_unpin(kvs_retain *r, kvs_retain_id id)
{
    kvs__item *x = of_id(r, id);
    if (!x) {
        return KVS_E_NOTFOUND;
    }
    if (x->pins == 0) {
        return KVS_E_STATE;
    }
    if (--x->pins == 0) {
        link_item(r, number(r, x));
        r->pinned_bytes -= x->bytes;
    }
    return KVS_OK;
}

void kvs_retain_clock(kvs_retain *r, uint64_t now)
{
    if (!r || now <= r->now) {
        return;
    }
    r->now = now;
    while (r->expiry.n > 0 && r->item[r->expiry.at[0]].until <= now) {
        set_priority(r, r->expiry.at[0], 0, 0);
    }
}

kvs_status kvs_retain_choose(kvs_retain *r, kvs_retain_id *out)
{
    if (!r || !out) {
        return KVS_E_INVAL;
    }
    for (uint32_t p = 0; p < KVS_RETAIN_PRIORITIES; p++) {
        uint32_t i = KVS__NONE;
        if (r->density) {
            i = kvs__density_pick(r, p);
        } else if (r->heap[p].n > 0) {
            i = r->heap[p].at[0];
        }
        if (i != KVS__NONE) {
            *out = (uint64_t)r->item[i].generation << 32 | i;
            return KVS_OK;
        }
    }
    return KVS_NO;
}

kvs_status kvs_retain_drop(kvs_retain *r, kvs_retain_id id, uint32_t how)
{
    kvs__item *x = of_id(r, id);
    if (!x || how > KVS_RETAIN_FORGOTTEN) {
        return x ? KVS_E_INVAL : KVS_E_NOTFOUND;
    }
    if (x->pins > 0) {
        return KVS_E_STATE;
    }
    uint32_t i = number(r, x);
    unlink_item(r, i);
    if (x->until > 0) {
        kvs__expiry_remove(r, i);
        x->until = 0;
    }
    r->n_live--;
    r->bytes -= x->bytes;
    if (how == KVS_RETAIN_EVICTED) {
        r->evicted++;
        r->age = x->score > r->age && r->o.policy == KVS_RETAIN_COST ? x->score : r->age;
    }
    if (r->density && how == KVS_RETAIN_EVICTED) {
        ghost_in(r, i);
        return KVS_OK;
    }
    if (r->density) {
        kvs__density_forget(r, i);
    }
    x->generation++;
    release_slot(r, i);
    return KVS_OK;
}

void kvs_retain_limit(kvs_retain *r, uint64_t max_bytes)
{
    if (r) {
        r->o.max_bytes = max_bytes;
    }
}

kvs_status kvs_retain_get_info(const kvs_retain *r, kvs_retain_id id, kvs_retain_info *out)
{
    const kvs__item *x = of_id(r, id);
    if (!x || !out) {
        return out ? KVS_E_NOTFOUND : KVS_E_INVAL;
    }
    kvs_retain_info info;
    fill_info(x, &info);
    return kvs__stats_write(out, &info, sizeof info);
}

/* Of one slot in the arrays. */
static size_t slot_bytes(const kvs_retain *r)
{
    size_t heaps = r->density ? 1 : KVS_RETAIN_PRIORITIES + 1;
    return sizeof *r->item + heaps * sizeof(uint32_t);
}

size_t kvs__retain_own(const kvs_retain *r)
{
    return sizeof *r + r->cap * slot_bytes(r) + r->by_key.cap * sizeof *r->by_key.slots +
           (r->density ? kvs__density_bytes() : 0);
}

size_t kvs__retain_growth(const kvs_retain *r)
{
    size_t cap = r->cap ? (size_t)r->cap * 2 : FIRST_CAP;
    /* the map is at most 2/3 full, its size a power of two */
    return r->free != KVS__NONE ? 0 : cap * (slot_bytes(r) + 4 * sizeof *r->by_key.slots);
}

kvs_status kvs_retain_get_stats(const kvs_retain *r, kvs_retain_stats *out)
{
    if (!r || !out) {
        return KVS_E_INVAL;
    }
    kvs_retain_stats s = KVS_RETAIN_STATS_INIT;
    s.items = r->n_live;
    s.bytes = r->bytes;
    s.pinned_bytes = r->pinned_bytes;
    s.max_bytes = r->o.max_bytes;
    s.ghosts = r->n_ghosts;
    s.added = r->added;
    s.used = r->used;
    s.evicted = r->evicted;
    s.returned = r->returned;
    s.own_bytes = kvs__retain_own(r);
    return kvs__stats_write(out, &s, sizeof s);
}
