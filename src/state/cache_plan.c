/* SPDX-License-Identifier: MIT */
/* cache_plan.c: what a cache is to be: checks of layer specifications and options, and the bytes that
 * a cache of them takes. Allocates nothing. */
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

kvs_status kvs__cache_any_paged(const kvs_cache_opts *o, bool *out, kvs_err *err)
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

size_t kvs__cache_head_bytes(uint32_t n_layers)
{
    return sizeof(kvs_cache) + n_layers * sizeof(kvs__layer);
}

static kvs_status plan_layers(const kvs_cache_opts *o, uint64_t n_tokens, size_t *sum,
                              size_t *layer_bytes, kvs_err *err)
{
    *sum = kvs__cache_head_bytes(o->n_layers);
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
