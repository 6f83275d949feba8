/* SPDX-License-Identifier: MIT */
/* cache.c: the public calls on a cache: life cycle, append, rewind, read. All checks of input happen
 * here or in what it calls first (cache_plan.c); nothing changes before they have passed. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "state/pages_priv.h"
#include "state/round.h"

/* The memory that a layer holds while empty. */
static kvs_status reserve_first(kvs_ctx *ctx, kvs__layer *l, kvs_err *err)
{
    if (l->spec.kind == KVS_LAYER_RECURRENT) {
        kvs_recurrent_spec spec;
        kvs_status st = kvs__rec_read_spec(l->spec.recurrent, 0, &spec, err);
        st = st == KVS_OK ? kvs__rec_new(ctx, &spec, l->reserve > 0, &l->rec, err) : st;
        l->spec.recurrent = l->rec ? &l->rec->spec : NULL;
        return st;
    }
    kvs__store *s = l->spec.dense_until > 0 ? &l->early : &l->main;
    if (s->layout != KVS_LAYOUT_GROW || l->reserve == 0 || s->n_segs > 0) {
        return KVS_OK;
    }
    return kvs__store_reserve(ctx, s, 0, s->first_cap, err);
}

static kvs_status init_layers(kvs_cache *c, const kvs_cache_opts *o, kvs_err *err)
{
    size_t scratch = 0;
    for (uint32_t i = 0; i < o->n_layers; i++) {
        kvs_status st = kvs__cache_read_layer(o, i, &c->layer[i], err);
        st = st == KVS_OK ? reserve_first(c->ctx, &c->layer[i], err) : st;
        if (st != KVS_OK) {
            return st;
        }
        size_t n = 0;
        if (!kvs__layer_scratch(&c->layer[i], kvs__ctx_threads(c->ctx), &n)) {
            return kvs__fail(err, KVS_E_RANGE, "state", "layer %u: scratch overflows", i);
        }
        scratch = n > scratch ? n : scratch;
    }
    return kvs__ctx_scratch_reserve(c->ctx, scratch, err);
}

/* The pool given, or one of the cache's own where a layer needs one. */
static kvs_status join_pages(kvs_cache *c, kvs_cache_opts *o, kvs_err *err)
{
    bool paged = false;
    kvs_status st = kvs__cache_any_paged(o, &paged, err);
    if (st != KVS_OK || !paged) {
        return st;
    }
    if (o->pages) {
        c->pages = o->pages;
        kvs__pages_join(c->pages);
        return KVS_OK;
    }
    kvs_pages_opts p = KVS_PAGES_OPTS_INIT;
    p.block_tokens = o->block_tokens;
    st = kvs_pages_new(c->ctx, &p, &c->pages, err);
    if (st == KVS_OK) {
        kvs__pages_join(c->pages);
        kvs_pages_free(c->pages); /* it goes with the cache and its views */
        o->pages = c->pages;
    }
    return st;
}

kvs_status kvs_cache_new(kvs_ctx *ctx, const kvs_cache_opts *opts, kvs_cache **out, kvs_err *err)
{
    if (!ctx || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", ctx ? "out" : "ctx");
    }
    *out = NULL;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_status st = kvs__cache_read_opts(opts, &o, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_cache *c = kvs__calloc(ctx, 1, sizeof *c);
    if (!c) {
        return kvs__nomem(err, "state", sizeof *c);
    }
    c->ctx = ctx;
    c->layer = kvs__calloc(ctx, o.n_layers, sizeof *c->layer);
    if (!c->layer) {
        kvs_cache_free(c);
        return kvs__nomem(err, "state", o.n_layers * sizeof *c->layer);
    }
    c->n_layers = o.n_layers;
    st = join_pages(c, &o, err);
    st = st == KVS_OK ? init_layers(c, &o, err) : st;
    if (st != KVS_OK) {
        kvs_cache_free(c);
        return st;
    }
    *out = c;
    return KVS_OK;
}

void kvs_cache_free(kvs_cache *c)
{
    if (!c) {
        return;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        kvs__layer_drop(c->ctx, &c->layer[i]);
    }
    if (c->pages) {
        kvs__pages_leave(c->pages);
    }
    kvs__free(c->ctx, c->layer, c->n_layers * sizeof *c->layer);
    kvs__free(c->ctx, c, sizeof *c);
}

kvs_status kvs__cache_closed(const kvs_cache *c, const char *what, kvs_err *err)
{
    if (!c) {
        return kvs__fail(err, KVS_E_INVAL, "state", "cache is NULL");
    }
    if (c->broken) {
        return kvs__fail(err, KVS_E_BROKEN, "state", "the cache was broken by a failed round");
    }
    return c->open ? kvs__fail(err, KVS_E_STATE, "state", "%s: a round is open", what) : KVS_OK;
}

/* What may be forked: a layer's length for all of it. */
static kvs_status check_fork(const kvs_cache *c, uint64_t n_tokens, kvs_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const kvs__layer *l = &c->layer[i];
        uint64_t len = (uint64_t)kvs__layer_len(l);
        uint64_t n = n_tokens == KVS_ALL_TOKENS ? len : n_tokens;
        if (l->spec.kind == KVS_LAYER_BORROW) {
            continue;
        }
        if (n > len) {
            return kvs__fail(err, KVS_E_RANGE, "state", "layer %u: fork of %llu tokens, %llu held",
                             i, (unsigned long long)n, (unsigned long long)len);
        }
        kvs_status st = kvs__layer_committed(l, (int64_t)n, "fork", err);
        if (st != KVS_OK) {
            return st;
        }
        if (n < len && !kvs__layer_can_rewind(l, len - n)) {
            return kvs__fail(err, KVS_E_STATE, "state",
                             "layer %u: a fork of %llu of %llu tokens is not exact", i,
                             (unsigned long long)n, (unsigned long long)len);
        }
    }
    return KVS_OK;
}

kvs_status kvs_cache_fork(kvs_cache *src, uint64_t n_tokens, kvs_cache **out, kvs_err *err)
{
    if (!src || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", src ? "out" : "src");
    }
    *out = NULL;
    kvs__layer *first = NULL;
    kvs_status st = kvs__cache_layer(src, 0, &first, err);
    st = st == KVS_OK ? check_fork(src, n_tokens, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs_cache *c = kvs__calloc(src->ctx, 1, sizeof *c);
    kvs__layer *layer = c ? kvs__calloc(src->ctx, src->n_layers, sizeof *layer) : NULL;
    if (!layer) {
        kvs__free(src->ctx, c, sizeof *c);
        return kvs__nomem(err, "state", kvs__cache_head_bytes(src->n_layers));
    }
    c->ctx = src->ctx;
    c->layer = layer;
    c->pages = src->pages;
    if (c->pages) {
        kvs__pages_join(c->pages);
    }
    for (uint32_t i = 0; st == KVS_OK && i < src->n_layers; i++) {
        kvs__layer *l = &src->layer[i];
        int64_t n = n_tokens == KVS_ALL_TOKENS ? kvs__layer_len(l) : (int64_t)n_tokens;
        st = kvs__layer_fork(src->ctx, &layer[i], l, n, err);
        c->n_layers += st == KVS_OK;
    }
    if (st != KVS_OK) {
        for (uint32_t i = 0; i < c->n_layers; i++) {
            kvs__layer_drop(c->ctx, &layer[i]);
        }
        c->n_layers = 0;
        kvs__free(c->ctx, layer, src->n_layers * sizeof *layer);
        c->layer = NULL;
        kvs_cache_free(c);
        return st;
    }
    *out = c;
    return KVS_OK;
}

/* Empties a store but for what the layer reserved. */
static void empty_store(kvs_ctx *ctx, kvs__layer *l, kvs__store *s)
{
    if (l->reserve > 0 && s == (l->spec.dense_until > 0 ? &l->early : &l->main)) {
        kvs__store_empty(ctx, s);
    } else {
        kvs__store_drop(ctx, s);
    }
}

kvs_status kvs_cache_clear(kvs_cache *c, kvs_err *err)
{
    kvs_status st = kvs__cache_closed(c, "clear", err);
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        kvs__layer *l = &c->layer[i];
        if (l->rec) {
            kvs__rec_clear(c->ctx, l->rec);
            continue;
        }
        empty_store(c->ctx, l, &l->main);
        empty_store(c->ctx, l, &l->early);
    }
    return KVS_OK;
}

kvs_status kvs__cache_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err)
{
    *out = NULL;
    if (!c) {
        return kvs__fail(err, KVS_E_INVAL, "state", "cache is NULL");
    }
    if (layer >= c->n_layers) {
        return kvs__fail(err, KVS_E_RANGE, "state", "layer %u of a cache of %u layers", layer,
                         c->n_layers);
    }
    if (c->broken) {
        return kvs__fail(err, KVS_E_BROKEN, "state", "the cache was broken by a failed round");
    }
    kvs__layer *l = &c->layer[layer];
    *out = l->spec.kind == KVS_LAYER_BORROW ? &c->layer[l->spec.donor] : l;
    return KVS_OK;
}

kvs_status kvs__cache_kv_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err)
{
    kvs_status st = kvs__cache_layer(c, layer, out, err);
    if (st == KVS_OK && (*out)->rec) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                         "layer %u is recurrent: it has no keys and values; see recurrent.h",
                         layer);
    }
    return st;
}

kvs_status kvs__cache_own(const kvs_cache *c, uint32_t layer, const char *what, kvs__layer **out,
                          kvs_err *err)
{
    kvs_status st = kvs__cache_layer(c, layer, out, err);
    if (st == KVS_OK && *out != &c->layer[layer]) {
        *out = NULL;
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                       "%s: layer %u borrows from layer %u and is only read", what, layer,
                       c->layer[layer].spec.donor);
    }
    return st;
}

kvs_status kvs__cache_own_kv(const kvs_cache *c, uint32_t layer, const char *what, kvs__layer **out,
                             kvs_err *err)
{
    kvs_status st = kvs__cache_kv_layer(c, layer, out, err);
    return st == KVS_OK ? kvs__cache_own(c, layer, what, out, err) : st;
}

uint32_t kvs_cache_n_layers(const kvs_cache *c)
{
    return c ? c->n_layers : 0;
}

const kvs_layer_spec *kvs_cache_spec(const kvs_cache *c, uint32_t layer)
{
    return c && layer < c->n_layers ? &c->layer[layer].spec : NULL;
}

int64_t kvs_cache_length(const kvs_cache *c, uint32_t layer)
{
    kvs__layer *l = NULL;
    return kvs__cache_layer(c, layer, &l, NULL) == KVS_OK ? kvs__layer_len(l) : -1;
}

int64_t kvs_cache_oldest(const kvs_cache *c, uint32_t layer)
{
    kvs__layer *l = NULL;
    if (kvs__cache_layer(c, layer, &l, NULL) != KVS_OK) {
        return -1;
    }
    return l->rec ? kvs__rec_oldest(l->rec) : kvs__layer_store(l)->lo;
}

size_t kvs_cache_bytes(const kvs_cache *c, uint32_t layer)
{
    if (!c || (layer >= c->n_layers && layer != KVS_ALL_LAYERS)) {
        return 0;
    }
    size_t sum = layer == KVS_ALL_LAYERS ? kvs__cache_head_bytes(c->n_layers) : 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (layer == KVS_ALL_LAYERS || layer == i) {
            const kvs__layer *l = &c->layer[i];
            sum += l->rec ? kvs__rec_bytes(l->rec)
                          : kvs__store_bytes(&l->main) + kvs__store_bytes(&l->early);
        }
    }
    return sum;
}

size_t kvs_cache_signature(const kvs_cache *c, uint32_t layer, char *dst, size_t n)
{
    if (n > 0) {
        dst[0] = '\0';
    }
    if (!c || layer >= c->n_layers) {
        return 0;
    }
    const kvs_layer_spec *s = &c->layer[layer].spec;
    if (c->layer[layer].rec) {
        return kvs__rec_signature(c->layer[layer].rec, dst, n);
    }
    char k[48];
    char v[48];
    const char *slides = s->layout == KVS_LAYOUT_RING ? "ring" : "paged";
    char layout[96] = "grow"; /* paged without a window, too: the bytes are the same */
    if (s->kind == KVS_LAYER_BORROW) {
        int len = snprintf(dst, n, "borrow layer=%u", s->donor);
        return len < 0 ? 0 : (size_t)len;
    }
    (void)kvs_codec_name(&s->k, k, sizeof k);
    (void)kvs_codec_name(&s->v, v, sizeof v);
    if (kvs__store_slides(&c->layer[layer].main)) {
        (void)snprintf(layout, sizeof layout, "%s window=%u sinks=%u block=%u", slides, s->window,
                       s->sinks, s->max_block ? s->max_block : 1);
    } else if (s->window > 0) {
        (void)snprintf(layout, sizeof layout, "grow window=%u sinks=%u", s->window, s->sinks);
    }
    char dense[48] = "";
    if (s->dense_until > 0) {
        kvs_codec d = KVS_CODEC_DENSE(s->dense_dtype);
        char name[16];
        (void)kvs_codec_name(&d, name, sizeof name);
        (void)snprintf(dense, sizeof dense, " %s<%u", name, s->dense_until);
    }
    int len = 0;
    if (s->kind == KVS_LAYER_LATENT) {
        len = snprintf(dst, n, "%s latent=%s%s dims=%u/%u", layout, k, dense, s->k_dim, s->v_dim);
    } else {
        len = snprintf(dst, n, "%s k=%s v=%s%s heads=%u dims=%u/%u", layout, k, v, dense,
                       s->n_kv_heads, s->k_dim, s->v_dim);
    }
    return len < 0 ? 0 : (size_t)len;
}

static bool borrows(const kvs__layer *l)
{
    return l->spec.kind == KVS_LAYER_BORROW;
}

/* Layers a call on `layer` means: [*first, *end), of which those that borrow are passed over. */
static kvs_status layer_range(const kvs_cache *c, uint32_t layer, const char *what, uint32_t *first,
                              uint32_t *end, kvs_err *err)
{
    kvs__layer *l = NULL;
    *first = 0;
    *end = c ? c->n_layers : 0;
    if (c && layer == KVS_ALL_LAYERS) {
        return kvs__cache_layer(c, 0, &l, err);
    }
    *first = layer;
    *end = layer + 1;
    return kvs__cache_own(c, layer, what, &l, err);
}

kvs_status kvs_cache_reserve(kvs_cache *c, uint32_t layer, uint32_t n_tokens, kvs_err *err)
{
    uint32_t first = 0;
    uint32_t end = 0;
    kvs_status st = layer_range(c, layer, "reserve", &first, &end, err);
    uint32_t i = first;
    for (; st == KVS_OK && i < end; i++) {
        kvs__layer_mark(&c->layer[i]);
        if (!borrows(&c->layer[i])) {
            st = kvs__layer_reserve(c->ctx, &c->layer[i], n_tokens, err);
        }
    }
    while (st != KVS_OK && i > first) { /* what one row can't use, others can */
        kvs__layer_undo(c->ctx, &c->layer[--i]);
    }
    return st;
}

kvs_status kvs_cache_append(kvs_cache *c, uint32_t layer, const kvs_kv *kv, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_own_kv(c, layer, "append", &l, err);
    if (st != KVS_OK) {
        return st;
    }
    if (!kv) {
        return kvs__fail(err, KVS_E_INVAL, "state", "kv is NULL");
    }
    kvs_kv in = KVS_KV_INIT;
    st = kvs__opts_read(&in, sizeof in, kv, "kvs_kv", err);
    st = st == KVS_OK ? kvs__kv_check(&in, l->spec.kind, "kv", err) : st;
    return st == KVS_OK ? kvs__layer_append(c->ctx, l, &in, err) : st;
}

kvs_status kvs_cache_can_rewind(const kvs_cache *c, uint32_t layer, uint64_t n_tokens)
{
    uint32_t first = 0;
    uint32_t end = 0;
    kvs_status st = layer_range(c, layer, "rewind", &first, &end, NULL);
    if (st == KVS_OK && c->open) {
        return KVS_NO;
    }
    for (uint32_t i = first; st == KVS_OK && i < end; i++) {
        bool can = borrows(&c->layer[i]) || kvs__layer_can_rewind(&c->layer[i], n_tokens);
        st = can ? KVS_OK : KVS_NO;
    }
    return st;
}

/* The greatest m <= n that can be taken back; what can't grow again by taking back more. */
static uint64_t most_rewind(const kvs__layer *l, uint64_t n)
{
    uint64_t lo = 0;
    uint64_t hi = n;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo + 1) / 2;
        if (kvs__layer_can_rewind(l, mid)) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

kvs_status kvs_cache_rewind(kvs_cache *c, uint32_t layer, uint64_t n_tokens, kvs_err *err)
{
    uint32_t first = 0;
    uint32_t end = 0;
    kvs_status st = layer_range(c, layer, "rewind", &first, &end, err);
    st = st == KVS_OK ? kvs__cache_closed(c, "rewind", err) : st;
    for (uint32_t i = first; st == KVS_OK && i < end; i++) {
        const kvs__layer *l = &c->layer[i];
        int64_t len = kvs__layer_len(l);
        if (borrows(l)) {
            continue;
        }
        if (n_tokens > (uint64_t)len) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "layer %u: rewind of %llu tokens, %lld are held", i,
                             (unsigned long long)n_tokens, (long long)len);
        }
        if (!kvs__layer_can_rewind(l, n_tokens)) {
            return kvs__fail(err, KVS_E_STATE, "state",
                             "layer %u: rewind of %llu tokens is not exact, at most %llu are", i,
                             (unsigned long long)n_tokens,
                             (unsigned long long)most_rewind(l, n_tokens));
        }
    }
    for (uint32_t i = first; st == KVS_OK && i < end; i++) {
        if (!borrows(&c->layer[i])) {
            kvs__layer_rewind(c->ctx, &c->layer[i], n_tokens);
        }
    }
    return st;
}

kvs_status kvs_cache_attend(kvs_cache *c, uint32_t layer, const kvs_attend *desc, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_kv_layer(c, layer, &l, err);
    if (st != KVS_OK) {
        return st;
    }
    if (!desc) {
        return kvs__fail(err, KVS_E_INVAL, "state", "desc is NULL");
    }
    kvs_attend d = KVS_ATTEND_INIT;
    st = kvs__opts_read(&d, sizeof d, desc, "kvs_attend", err);
    return st == KVS_OK ? kvs__layer_attend(c->ctx, l, &d, err) : st;
}
