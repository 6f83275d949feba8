/* SPDX-License-Identifier: MIT */
/* cache.c: the public calls on a cache: plans, life cycle, append, rewind, read. All checks of
 * input happen here or in what it calls first; nothing changes before they have passed. */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "state/pages_priv.h"
#include "state/round.h"

#define MAX_HEADS  65536u
#define MAX_LAYERS 65536u
#define MAX_WINDOW (1u << 30)

static kvs_status check_layer_shape(const kvs_layer_spec *s, uint32_t i, kvs_err *err)
{
    if (s->n_kv_heads == 0 || s->n_kv_heads > MAX_HEADS) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: n_kv_heads %u is not in 1..%u", i,
                         s->n_kv_heads, MAX_HEADS);
    }
    if ((unsigned)s->layout > KVS_LAYOUT_PAGED) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: layout %d is none of kvs_layout", i,
                         (int)s->layout);
    }
    if (s->layout == KVS_LAYOUT_RING && s->window == 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: a ring needs a window", i);
    }
    if (s->window > MAX_WINDOW || s->sinks > MAX_WINDOW || s->max_block > MAX_WINDOW) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: window %u, sinks %u or max_block %u is above %u", i, s->window,
                         s->sinks, s->max_block, MAX_WINDOW);
    }
    if (s->sinks > 0 && s->window == 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: %u sinks without a window have no effect", i, s->sinks);
    }
    return KVS_OK;
}

static kvs_status check_side(const kvs_codec *codec, uint32_t dim, const char *side, uint32_t i,
                             kvs_err *err)
{
    kvs_err inner = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_codec_check(codec, dim, &inner);
    if (st == KVS_OK) {
        return KVS_OK;
    }
    return kvs__fail(err, st, "state", "layer %u %s: %.180s", i, side, inner.msg);
}

static kvs_status check_recurrent(const kvs_layer_spec *s, uint32_t i, kvs_err *err)
{
    if (s->n_kv_heads || s->k_dim || s->v_dim || s->layout != KVS_LAYOUT_GROW || s->window ||
        s->sinks || s->max_block || s->dense_until || s->donor || s->reserved) {
        return kvs__fail(
            err, KVS_E_INVAL, "state",
            "layer %u: a recurrent layer with %u KV heads, dims %u/%u, layout %d, window "
            "%u, dense_until %u, donor %u: they must be 0",
            i, s->n_kv_heads, s->k_dim, s->v_dim, (int)s->layout, s->window, s->dense_until,
            s->donor);
    }
    kvs_recurrent_spec rec;
    kvs__rec_plan plan;
    kvs_status st = kvs__rec_read_spec(s->recurrent, i, &rec, err);
    return st == KVS_OK ? kvs__rec_plan_of(&rec, i, &plan, err) : st;
}

kvs_status kvs__latent_check(const kvs_layer_spec *s, const kvs_codec *k, kvs_err *err)
{
    if (s->n_kv_heads != 1) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a latent row has one head, not %u",
                         s->n_kv_heads);
    }
    if (s->v_dim < 16 || s->v_dim > s->k_dim || s->v_dim % 8 != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "v_dim %u of a latent row of %u is no multiple of 8 in 16..%u", s->v_dim,
                         s->k_dim, s->k_dim);
    }
    uint32_t turned = s->k_dim & (0u - s->k_dim); /* elements rotated together */
    if (k->bits && k->rotate && s->v_dim % turned != 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                         "the value, %u elements of a latent row, cuts a rotated block of %u",
                         s->v_dim, turned);
    }
    return KVS_OK;
}

static kvs_status check_spec(const kvs_layer_spec *s, uint32_t i, kvs_err *err)
{
    if (s->kind == KVS_LAYER_RECURRENT) {
        return check_recurrent(s, i, err);
    }
    kvs_status st = check_layer_shape(s, i, err);
    if (st == KVS_OK && s->recurrent) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "layer %u: recurrent is set, the kind is %d", i,
                       (int)s->kind);
    }
    bool latent = s->kind == KVS_LAYER_LATENT;
    bool keys = s->kind == KVS_LAYER_ATTENTION || latent;
    if (st == KVS_OK && (!keys || s->donor != 0)) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                       "layer %u: kind %d with donor %u is not supported", i, (int)s->kind,
                       s->donor);
    }
    st = st == KVS_OK ? check_side(&s->k, s->k_dim, "K", i, err) : st;
    if (st == KVS_OK && latent) {
        kvs_err inner = {KVS_OK, 0, "", ""};
        st = kvs__latent_check(s, &s->k, &inner);
        st = st == KVS_OK ? st : kvs__fail(err, st, "state", "layer %u: %.180s", i, inner.msg);
    } else {
        st = st == KVS_OK ? check_side(&s->v, s->v_dim, "V", i, err) : st;
    }
    if (st == KVS_OK && s->dense_until > 0) {
        kvs_codec dense = KVS_CODEC_DENSE(s->dense_dtype);
        st = check_side(&dense, s->k_dim, "dense", i, err);
    }
    return st;
}

/* Spec i, unchecked, of an array whose elements have the caller's struct_size. */
static kvs_status copy_spec(const kvs_cache_opts *o, uint32_t i, kvs_layer_spec *out, kvs_err *err)
{
    size_t stride = o->layers->struct_size;
    const unsigned char *at = (const unsigned char *)o->layers + (size_t)i * stride;
    kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
    size_t given = 0;
    *out = init;
    memcpy(&given, at, sizeof given);
    if (given != stride) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: struct_size %zu differs from layer 0's %zu", i, given, stride);
    }
    return kvs__opts_read(out, sizeof *out, at, "kvs_layer_spec", err);
}

static bool dim_differs(uint32_t mine, uint32_t donor)
{
    return mine != 0 && mine != donor;
}

/* A layer that borrows is described by its donor: geometry that it tells itself must be the same. */
static kvs_status borrow_spec(const kvs_cache_opts *o, uint32_t i, kvs_layer_spec *s, kvs_err *err)
{
    kvs_layer_spec donor;
    if (s->donor >= i) {
        return kvs__fail(err, KVS_E_INVAL, "state", "layer %u: donor %u is not a lower layer", i,
                         s->donor);
    }
    kvs_status st = copy_spec(o, s->donor, &donor, err);
    if (st != KVS_OK) {
        return st;
    }
    if (donor.kind != KVS_LAYER_ATTENTION && donor.kind != KVS_LAYER_LATENT) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                         "layer %u: donor %u keeps no keys and values (kind %d)", i, s->donor,
                         (int)donor.kind);
    }
    if (dim_differs(s->n_kv_heads, donor.n_kv_heads) || dim_differs(s->k_dim, donor.k_dim) ||
        dim_differs(s->v_dim, donor.v_dim)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "layer %u: %u heads of %u/%u, donor %u has %u of %u/%u", i, s->n_kv_heads,
                         s->k_dim, s->v_dim, s->donor, donor.n_kv_heads, donor.k_dim, donor.v_dim);
    }
    donor.kind = KVS_LAYER_BORROW;
    donor.donor = s->donor;
    *s = donor;
    return KVS_OK;
}

static kvs_status read_spec(const kvs_cache_opts *o, uint32_t i, kvs_layer_spec *out, kvs_err *err)
{
    kvs_status st = copy_spec(o, i, out, err);
    if (st == KVS_OK && out->reserved != 0) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "state", "layer %u: reserved is %u, not 0", i,
                       out->reserved);
    }
    if (st == KVS_OK && out->kind == KVS_LAYER_BORROW) {
        return borrow_spec(o, i, out, err); /* checked as its donor, a lower layer */
    }
    return st == KVS_OK ? check_spec(out, i, err) : st;
}

static uint32_t block_of(const kvs_cache_opts *o)
{
    if (o->pages) {
        return kvs__pages_block(o->pages);
    }
    return o->block_tokens ? o->block_tokens : KVS__PAGE_BLOCK;
}

static void layer_init(kvs__layer *l, const kvs_layer_spec *spec, const kvs_cache_opts *o)
{
    uint64_t reserve = o->reserve_tokens;
    memset(l, 0, sizeof *l);
    l->spec = *spec;
    l->reserve = spec->kind == KVS_LAYER_BORROW ? 0 : reserve;
    l->ops = kvs__round_ops_of(spec->kind);
    l->round.base = -1;
    if (spec->kind == KVS_LAYER_RECURRENT) {
        return;
    }
    kvs__store_init(&l->main, spec, &spec->k, &spec->v, reserve);
    if (spec->dense_until > 0) {
        kvs_codec dense = KVS_CODEC_DENSE(spec->dense_dtype);
        uint64_t most = reserve < spec->dense_until ? reserve : spec->dense_until;
        kvs__store_init(&l->early, spec, &dense, &dense, most);
    }
    if (spec->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_init(&l->main, o->pages, block_of(o));
        kvs__paged_init(&l->early, o->pages, block_of(o));
    }
}

kvs_status kvs__cache_read_layer(const kvs_cache_opts *o, uint32_t i, kvs__layer *out, kvs_err *err)
{
    kvs_layer_spec spec;
    kvs_status st = read_spec(o, i, &spec, err);
    if (st == KVS_OK) {
        layer_init(out, &spec, o);
    }
    return st;
}

static kvs_status check_pages(const kvs_cache_opts *o, kvs_err *err)
{
    if (o->reserved_pages != 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "reserved_pages is %u, not 0",
                         o->reserved_pages);
    }
    if (o->block_tokens > KVS__PAGE_MOST) {
        return kvs__fail(err, KVS_E_INVAL, "state", "block_tokens %u is above %u", o->block_tokens,
                         KVS__PAGE_MOST);
    }
    if (o->pages && o->block_tokens && o->block_tokens != kvs__pages_block(o->pages)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "block_tokens %u, the pool's are %u",
                         o->block_tokens, kvs__pages_block(o->pages));
    }
    return KVS_OK;
}

kvs_status kvs__cache_read_opts(const kvs_cache_opts *opts, kvs_cache_opts *o, kvs_err *err)
{
    if (!opts) {
        return kvs__fail(err, KVS_E_INVAL, "state", "opts is NULL");
    }
    kvs_status st = kvs__opts_read(o, sizeof *o, opts, "kvs_cache_opts", err);
    if (st != KVS_OK) {
        return st;
    }
    if (o->n_layers == 0 || o->n_layers > MAX_LAYERS || !o->layers) {
        return kvs__fail(err, KVS_E_INVAL, "state", "n_layers %u (1..%u) or layers %s", o->n_layers,
                         MAX_LAYERS, o->layers ? "is out of range" : "is NULL");
    }
    if (o->reserve_tokens > (uint64_t)INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "reserve_tokens %llu is too large",
                         (unsigned long long)o->reserve_tokens);
    }
    return check_pages(o, err);
}

/* Tokens that the layer's segments have room for once it holds n: the reservation at least. */
static uint64_t planned_tokens(const kvs__store *s, uint64_t reserve, uint64_t n)
{
    return s->layout == KVS_LAYOUT_GROW && reserve > n ? reserve : n;
}

/* The spec passed its check. */
static size_t recurrent_planned(const kvs__layer *l, uint64_t n)
{
    kvs_recurrent_spec spec;
    kvs__rec_plan plan = {0};
    (void)kvs__rec_read_spec(l->spec.recurrent, 0, &spec, NULL);
    (void)kvs__rec_plan_of(&spec, 0, &plan, NULL);
    return n > 0 || l->reserve > 0 ? plan.bytes : plan.head_bytes;
}

static bool layer_planned(const kvs__layer *l, uint64_t n, size_t *bytes)
{
    if (l->spec.kind == KVS_LAYER_RECURRENT) {
        *bytes = recurrent_planned(l, n);
        return true;
    }
    const kvs__store *s = &l->main;
    uint64_t reserve = l->reserve;
    if (l->spec.dense_until > 0 && n <= l->spec.dense_until) {
        s = &l->early;
        reserve = reserve < l->spec.dense_until ? reserve : l->spec.dense_until;
    }
    *bytes = 0;
    if (l->spec.kind == KVS_LAYER_BORROW) {
        return true;
    }
    uint64_t tokens = planned_tokens(s, reserve, n);
    return tokens == 0 || kvs__store_planned(s, tokens, bytes);
}

static size_t head_bytes(uint32_t n_layers)
{
    return sizeof(kvs_cache) + n_layers * sizeof(kvs__layer);
}

static kvs_status plan_layers(const kvs_cache_opts *o, uint64_t n_tokens, size_t *sum,
                              size_t *layer_bytes, kvs_err *err)
{
    *sum = head_bytes(o->n_layers);
    for (uint32_t i = 0; i < o->n_layers; i++) {
        kvs__layer l;
        kvs_status st = kvs__cache_read_layer(o, i, &l, err);
        if (st != KVS_OK) {
            return st;
        }
        size_t bytes = 0;
        if (!layer_planned(&l, n_tokens, &bytes) || !kvs__add_size(*sum, bytes, sum)) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "layer %u: %llu tokens overflow the address space", i,
                             (unsigned long long)n_tokens);
        }
        if (layer_bytes) {
            layer_bytes[i] = bytes;
        }
    }
    return KVS_OK;
}

kvs_status kvs_cache_plan(const kvs_cache_opts *opts, uint64_t n_tokens, size_t *state_bytes,
                          size_t *layer_bytes, kvs_err *err)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_status st = kvs__cache_read_opts(opts, &o, err);
    if (st != KVS_OK) {
        return st;
    }
    if (n_tokens > (uint64_t)INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                         (unsigned long long)n_tokens);
    }
    size_t sum = 0;
    st = plan_layers(&o, n_tokens, &sum, NULL, err);
    if (st == KVS_OK && layer_bytes) { /* again, now that it cannot fail halfway */
        st = plan_layers(&o, n_tokens, &sum, layer_bytes, err);
    }
    if (st == KVS_OK && state_bytes) {
        *state_bytes = sum;
    }
    return st;
}

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

static kvs_status any_paged(const kvs_cache_opts *o, bool *out, kvs_err *err)
{
    *out = false;
    for (uint32_t i = 0; i < o->n_layers; i++) {
        kvs_layer_spec s;
        kvs_status st = read_spec(o, i, &s, err);
        if (st != KVS_OK) {
            return st;
        }
        *out = *out || s.layout == KVS_LAYOUT_PAGED;
    }
    return KVS_OK;
}

/* The pool given, or one of the cache's own where a layer needs one. */
static kvs_status join_pages(kvs_cache *c, kvs_cache_opts *o, kvs_err *err)
{
    bool paged = false;
    kvs_status st = any_paged(o, &paged, err);
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
        return kvs__nomem(err, "state", head_bytes(src->n_layers));
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
    size_t sum = layer == KVS_ALL_LAYERS ? head_bytes(c->n_layers) : 0;
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
