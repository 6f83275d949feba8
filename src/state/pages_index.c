/* SPDX-License-Identifier: MIT */
/* pages_index.c: what a prefix index does with blocks: refer to those of a cache, move their bytes,
 * and make a cache out of them (pages_priv.h). It keeps no index itself. */
#include <string.h>

#include "state/pages_priv.h"

/* The store whose format a layer's tokens have once it holds n of them. */
static const kvs__store *store_at(const kvs__layer *l, uint64_t n_tokens)
{
    return l->spec.dense_until > 0 && n_tokens <= l->spec.dense_until ? &l->early : &l->main;
}

static kvs_status paged_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err)
{
    kvs_status st = kvs__cache_kv_layer(c, layer, out, err);
    if (st == KVS_OK && (*out)->spec.layout != KVS_LAYOUT_PAGED) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "state", "layer %u is not paged", layer);
    }
    return st;
}

static kvs__page_need need_of(const kvs__store *s, uint64_t n_tokens)
{
    kvs__page_need n = {0, 0, 0};
    uint64_t lo = (uint64_t)kvs__paged_oldest(s, (int64_t)n_tokens) / s->block;
    n.end = n_tokens / s->block + (n_tokens % s->block > 0);
    n.n_sink = s->n_sink < n.end ? s->n_sink : n.end;
    n.first = lo > n.n_sink ? lo : n.n_sink;
    return n;
}

kvs_status kvs__page_need_of(const kvs_cache *c, uint32_t layer, uint64_t n_tokens,
                             kvs__page_need *out, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = paged_layer(c, layer, &l, err);
    if (st == KVS_OK && n_tokens > (uint64_t)INT64_MAX / 4) {
        st = kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                       (unsigned long long)n_tokens);
    }
    if (st == KVS_OK) {
        *out = need_of(&l->main, n_tokens);
    }
    return st;
}

kvs_status kvs__page_keep_of(const kvs_cache *c, uint32_t layer, uint64_t block,
                             uint64_t n_committed, kvs__seg **out, kvs_err *err)
{
    kvs__layer *l = NULL;
    *out = NULL;
    kvs_status st = paged_layer(c, layer, &l, err);
    if (st != KVS_OK) {
        return st;
    }
    const kvs__store *s = kvs__layer_store(l);
    if (n_committed > (uint64_t)s->len || block >= n_committed / s->block + 1 ||
        block * s->block >= n_committed) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: block %llu of %llu committed tokens, %lld are held", layer,
                         (unsigned long long)block, (unsigned long long)n_committed,
                         (long long)s->len);
    }
    kvs__seg **at = kvs__paged_find(s, block);
    if (!at || (block >= s->n_sink && (int64_t)(block * s->block) < s->lo)) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: block %llu is not stored, %lld is the oldest position", layer,
                         (unsigned long long)block, (long long)s->lo);
    }
    kvs__pages_lock(c->pages);
    uint32_t hole = block + 1 == s->n_sink ? s->hole : 0;
    if ((*at)->kept == 0 || (*at)->hole < hole) { /* who holds the sinks alone knows of none */
        (*at)->hole = hole;
    }
    kvs__page_keep(*at);
    kvs__pages_unlock(c->pages);
    *out = *at;
    return KVS_OK;
}

kvs_status kvs__page_fresh(const kvs_cache *c, uint32_t layer, uint64_t n_tokens, kvs__seg **out,
                           kvs_err *err)
{
    kvs__layer *l = NULL;
    *out = NULL;
    kvs_status st = paged_layer(c, layer, &l, err);
    if (st == KVS_OK) {
        st = kvs__page_take(c->pages, &store_at(l, n_tokens)->fmt, NULL, out, err);
    }
    if (st == KVS_OK) {
        kvs__page_keep(*out);
        kvs__page_release(*out);
    }
    return st;
}

const kvs__fmt *kvs__page_fmt(const kvs__seg *page)
{
    return &page->chunk->home->fmt;
}

/* -- bytes */

/* Of one plane of one side and one head. */
static size_t plane_bytes(const kvs__fmt *fmt, int side, int plane, uint64_t cap)
{
    const kvs__side *s = &fmt->side[side];
    return (size_t)cap * s->n_units[plane] * s->unit_bytes[plane];
}

size_t kvs__page_raw_bytes(const kvs__fmt *fmt, uint32_t block_tokens)
{
    uint64_t cap = (block_tokens + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
    size_t sum = 0;
    for (int i = 0; i < KVS__SIDES * KVS__PLANES; i++) {
        sum += plane_bytes(fmt, i / KVS__PLANES, i % KVS__PLANES, cap);
    }
    return (sum + kvs__page_centers(block_tokens) * (size_t)fmt->center_bytes) * fmt->n_heads;
}

static unsigned char *centers_of(const kvs__seg *page, uint32_t head)
{
    return (unsigned char *)(uintptr_t)page + page->center_at + head * page->center_head;
}

/* Zeros for the slots of one head from n on. */
static void clear_dead(const kvs__side *s, int side, int plane, uint32_t n, uint64_t cap,
                       unsigned char *head)
{
    size_t ub = s->unit_bytes[plane];
    size_t units = s->n_units[plane];
    uint64_t whole = n;
    if (side == KVS__K) {
        uint32_t lane = n % KVS__TILE;
        unsigned char *tile = head + (size_t)(n / KVS__TILE) * KVS__TILE * units * ub;
        for (size_t u = 0; lane > 0 && u < units; u++) {
            memset(tile + (u * KVS__TILE + lane) * ub, 0, (KVS__TILE - lane) * ub);
        }
        whole = ((uint64_t)n + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
    }
    memset(head + (size_t)whole * units * ub, 0, (size_t)(cap - whole) * units * ub);
}

void kvs__page_get_raw(const kvs__seg *page, uint32_t n_tokens, unsigned char *dst)
{
    const kvs__fmt *fmt = kvs__page_fmt(page);
    const size_t centers = page->n_centers * (size_t)fmt->center_bytes;
    uint64_t groups = n_tokens ? (page->phase + (uint64_t)n_tokens - 1) / KVS_CENTER_GROUP + 1 : 0;
    groups = page->phase == KVS__NO_PHASE ? page->n_centers : groups;
    for (uint32_t head = 0; head < fmt->n_heads; head++) {
        for (int i = 0; i < KVS__SIDES * KVS__PLANES; i++) {
            int side = i / KVS__PLANES;
            int p = i % KVS__PLANES;
            size_t bytes = plane_bytes(fmt, side, p, page->cap);
            if (bytes == 0) {
                continue;
            }
            memcpy(dst, kvs__seg_at(page, side, p, head), bytes);
            if (n_tokens < page->cap) {
                clear_dead(&fmt->side[side], side, p, n_tokens, page->cap, dst);
            }
            dst += bytes;
        }
        memcpy(dst, centers_of(page, head), centers);
        if (groups < page->n_centers) {
            memset(dst + groups * fmt->center_bytes, 0,
                   (size_t)(page->n_centers - groups) * fmt->center_bytes);
        }
        dst += centers;
    }
}

void kvs__page_set_raw(kvs__seg *page, const unsigned char *src)
{
    const kvs__fmt *fmt = kvs__page_fmt(page);
    const size_t centers = page->n_centers * (size_t)fmt->center_bytes;
    KVS_ASSERT(page->refs == 1 && page->kept == 1);
    for (uint32_t head = 0; head < fmt->n_heads; head++) {
        for (int i = 0; i < KVS__SIDES * KVS__PLANES; i++) {
            size_t bytes = plane_bytes(fmt, i / KVS__PLANES, i % KVS__PLANES, page->cap);
            if (bytes > 0) {
                memcpy(kvs__seg_at(page, i / KVS__PLANES, i % KVS__PLANES, head), src, bytes);
                src += bytes;
            }
        }
        memcpy(centers_of(page, head), src, centers);
        src += centers;
    }
}

/* -- a cache out of blocks */

static int64_t oldest_of(const kvs__store *s, const kvs__page_list *list)
{
    int64_t lo = list->first > s->n_sink ? (int64_t)(list->first * s->block) : 0;
    return list->oldest > lo ? list->oldest : lo;
}

/* Of a store that takes blocks over: its sinks' block has nothing between them and oldest. */
static uint32_t hole_of(const kvs__store *s, int64_t oldest)
{
    int64_t end = (int64_t)(s->n_sink * s->block);
    int64_t upto = oldest < end ? oldest : end;
    return upto > (int64_t)s->sinks ? (uint32_t)(upto - (end - s->block)) : 0;
}

static kvs_status check_pages(const kvs_cache *c, uint32_t i, const kvs__store *s,
                              const kvs__page_list *list, kvs_err *err)
{
    for (uint64_t b = 0; b < list->n; b++) {
        const kvs__seg *page = list->page[b];
        if (!page || page->chunk->home->pages != c->pages ||
            !kvs__fmt_same(kvs__page_fmt(page), &s->fmt)) {
            return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: block %llu of the list is %s", i,
                             (unsigned long long)b, page ? "of another pool or format" : "NULL");
        }
    }
    return KVS_OK;
}

static kvs_status check_list(const kvs_cache *c, uint32_t i, uint64_t n_tokens,
                             const kvs__page_list *list, kvs_err *err)
{
    const kvs__layer *l = &c->layer[i];
    if (l->spec.layout != KVS_LAYOUT_PAGED || l->spec.kind == KVS_LAYER_BORROW) {
        return list->n == 0 ? KVS_OK
                            : kvs__fail(err, KVS_E_INVAL, "state",
                                        "layer %u: blocks for a layer that has none", i);
    }
    if (kvs__layer_len(l) != 0) {
        return kvs__fail(err, KVS_E_STATE, "state", "layer %u holds %lld tokens", i,
                         (long long)kvs__layer_len(l));
    }
    const kvs__store *s = store_at(l, n_tokens);
    kvs__page_need need = need_of(s, n_tokens);
    bool first_ok = list->first >= need.n_sink && list->first <= need.end;
    if (list->n_sink != need.n_sink || !first_ok ||
        list->n != need.n_sink + (need.end - list->first) || (list->n > 0 && !list->page)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: %llu blocks, %llu of sinks, then from number %llu: not those "
                         "of %llu tokens",
                         i, (unsigned long long)list->n, (unsigned long long)list->n_sink,
                         (unsigned long long)list->first, (unsigned long long)n_tokens);
    }
    kvs__store probe = *s; /* would the next query see all of its window? */
    probe.len = (int64_t)n_tokens;
    probe.lo = oldest_of(s, list);
    if (probe.lo > probe.len || !kvs__attend_covered(&probe, probe.len, probe.len)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: positions below %lld are missing, the window of the query at "
                         "%llu needs some",
                         i, (long long)probe.lo, (unsigned long long)n_tokens);
    }
    return check_pages(c, i, s, list, err);
}

static kvs__store *target(kvs_cache *c, uint32_t i, uint64_t n_tokens)
{
    kvs__layer *l = &c->layer[i];
    return store_at(l, n_tokens) == &l->early ? &l->early : &l->main;
}

kvs_status kvs__page_attach(kvs_cache *c, uint64_t n_tokens, const kvs__page_list *list,
                            kvs_err *err)
{
    if (n_tokens == 0 || n_tokens > (uint64_t)INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "a cache of %llu stored tokens",
                         (unsigned long long)n_tokens);
    }
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < c->n_layers; i++) {
        st = check_list(c, i, n_tokens, &list[i], err);
    }
    uint32_t done = 0;
    for (; st == KVS_OK && done < c->n_layers; done++) {
        if (list[done].n > 0) {
            st = kvs__paged_table(c->ctx, target(c, done, n_tokens), list[done].n, err);
        }
    }
    if (st != KVS_OK) {
        for (uint32_t i = 0; i < done; i++) {
            kvs__store *s = target(c, i, n_tokens);
            if (list[i].n > 0 && s->n_segs == 0) {
                kvs__paged_drop(c->ctx, s); /* the table alone */
            }
        }
        return st;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (list[i].n > 0) {
            kvs__store *s = target(c, i, n_tokens);
            uint64_t first = list[i].first > s->n_sink ? list[i].first : s->n_sink;
            s->hole = hole_of(s, list[i].oldest);
            kvs__paged_adopt(s, list[i].page, list[i].n, first, oldest_of(s, &list[i]),
                             (int64_t)n_tokens);
        }
    }
    return KVS_OK;
}
