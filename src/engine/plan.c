/* SPDX-License-Identifier: MIT */
/* plan.c: from option texts to a checked kvs_layer_spec for every layer (plan.h).
 *
 * Order: one codec text for all layers, then the lines of a layers file, then the K and V names,
 * then start, window and sinks, then layouts; last every layer is checked by the state library
 * itself (kvs_cache_plan), so a plan can't accept what a cache would refuse.
 *
 * What a name is replaced by (llama.cpp's block types) becomes a note of the plan; nothing is
 * replaced silently. */
#include "kvstate/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/net.h"
#include "engine/plan_parse.h"
#include "kvstate/pages.h"
#include "state/recurrent.h"

#define DEFAULT_BLOCK 512u
#define DEFAULT_UNDO  16u
#define MAX_UNDO      65536u

struct kvs_plan {
    kvs_ctx *ctx;
    kvs_layer_spec *layers;        /* [n_layers] */
    kvs_recurrent_spec *recurrent; /* [n_layers], of the recurrent ones */
    uint32_t n_layers;
    uint32_t n_heads;
    uint32_t n_ctx;
    uint32_t max_block;
    uint32_t kv_block; /* 0: no layer is paged */
    bool *own_window;  /* [n_layers] a window or sinks that are not the model's */
    kvs__plan_notes notes;
};

/* ---- making */

static kvs_status layers_from_model(kvs_plan *p, const kvs_model *model, const kvs_model_info *info,
                                    kvs_err *err)
{
    p->n_layers = info->n_layers;
    p->layers = kvs__calloc(p->ctx, p->n_layers, sizeof *p->layers);
    p->own_window = kvs__calloc(p->ctx, p->n_layers, sizeof *p->own_window);
    if (!p->layers || !p->own_window) {
        return kvs__nomem(err, "engine", info->n_layers * sizeof *p->layers);
    }
    p->n_heads = info->n_heads;
    p->recurrent = kvs__calloc(p->ctx, info->n_layers, sizeof *p->recurrent);
    if (!p->recurrent) {
        return kvs__nomem(err, "engine", info->n_layers * sizeof *p->recurrent);
    }
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs__net_layer_spec(&model->net, i, &p->layers[i]);
        if (p->layers[i].kind == KVS_LAYER_RECURRENT) {
            p->recurrent[i] = *p->layers[i].recurrent;
            p->layers[i].recurrent = &p->recurrent[i];
        }
    }
    return KVS_OK;
}

static bool has_keys(const kvs_layer_spec *s)
{
    return s->kind == KVS_LAYER_ATTENTION || s->kind == KVS_LAYER_LATENT;
}

/* Its recurrent layers' share of undo_bytes, which they get in equal parts. */
static kvs_status apply_undo(kvs_plan *p, const kvs_plan_opts *o, kvs_err *err)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        n += p->layers[i].kind == KVS_LAYER_RECURRENT;
    }
    uint64_t need = 0; /* of undo_bytes, so that every share is enough */
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs_recurrent_spec *r = &p->recurrent[i];
        size_t least = 0;
        if (p->layers[i].kind != KVS_LAYER_RECURRENT || o->undo_tokens == KVS_UNDO_NONE) {
            continue;
        }
        r->undo_tokens = o->undo_tokens > 0 ? o->undo_tokens : DEFAULT_UNDO;
        r->undo_bytes = o->undo_bytes > 0 && o->undo_bytes < n ? 1 : o->undo_bytes / n;
        (void)kvs__rec_undo_bytes(r, kvs__rec_least(r), &least);
        need = (uint64_t)least * n > need ? (uint64_t)least * n : need;
    }
    if (o->undo_bytes > 0 && o->undo_bytes < need) {
        return kvs__fail(err, KVS_E_LIMIT, "engine",
                         "%u recurrent layers take back %u tokens with %llu bytes at least, "
                         "undo_bytes is %llu",
                         n, o->undo_tokens > 0 ? o->undo_tokens : DEFAULT_UNDO,
                         (unsigned long long)need, (unsigned long long)o->undo_bytes);
    }
    return KVS_OK;
}

static kvs_status apply_codecs(kvs_plan *p, const kvs_model *model, const kvs_plan_opts *o,
                               kvs_err *err)
{
    kvs__plan_parser ps = {p->layers, p->n_layers, o->group, &p->notes, p->ctx, model};
    const char *kv = o->kv ? o->kv : "f16";
    kvs_status st = kvs__plan_parse_paged(&kv, &p->kv_block, err);
    if (st != KVS_OK) {
        return st;
    }
    p->kv_block = o->kv_block > 0 ? o->kv_block : p->kv_block;
    if (strncmp(kv, "layers:", 7) == 0) {
        st = kvs__plan_parse_file(&ps, kv + 7, err);
    } else if (strncmp(kv, "config:", 7) == 0) {
        st = kvs__plan_parse_config(&ps, kv + 7, err);
    } else if (strncmp(kv, "layers=", 7) == 0) {
        st = kvs__plan_parse_layers(&ps, kv + 7, err);
    } else {
        kvs_codec k;
        kvs_codec v;
        st = kvs__plan_parse_pair(&ps, kv, &k, &v, err);
        for (uint32_t i = 0; st == KVS_OK && i < p->n_layers; i++) {
            p->layers[i].k = k;
            p->layers[i].v = v;
        }
    }
    const char *const sides[2] = {o->k, o->v};
    for (size_t side = 0; side < 2 && st == KVS_OK; side++) {
        kvs_codec c;
        if (!sides[side]) {
            continue;
        }
        st = kvs__plan_parse_codec(&ps, sides[side], &c, err);
        for (uint32_t i = 0; st == KVS_OK && i < p->n_layers; i++) {
            *(side == 0 ? &p->layers[i].k : &p->layers[i].v) = c;
        }
    }
    return st;
}

static kvs_status apply_limits(kvs_plan *p, const kvs_model *model, const kvs_plan_opts *o,
                               kvs_err *err)
{
    bool any_affine = false;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs_layer_spec *s = &p->layers[i];
        if (!has_keys(s)) {
            s->window = 0; /* a layers file may have named it */
            s->sinks = 0;
            s->dense_until = 0;
            continue;
        }
        bool affine = s->k.bits > 0 || s->v.bits > 0;
        any_affine = any_affine || affine;
        if (o->start > 0 && affine && s->dense_until == 0) {
            s->dense_until = o->start;
        }
        if (s->dense_until > 0) { /* what is quantised later has scales of the type it came in */
            s->dense_dtype = s->k.bits > 0 ? s->k.dtype : s->v.dtype;
        }
        if (o->window > 0 && s->window == 0) {
            s->window = o->window;
            s->sinks = o->sinks;
        }
        p->own_window[i] = s->window != kvs_model_window(model, i) || s->sinks > 0;
    }
    if (o->start > 0 && !any_affine) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "start %u delays quantisation, but no layer is quantised", o->start);
    }
    return KVS_OK;
}

/* All layers share one pool's blocks. A paged window that is to keep all tokens says that a block, and
 * so a rewind, may be as long as the context. */
static void make_paged(const kvs_plan *p, kvs_layer_spec *s, uint32_t flags)
{
    uint32_t most = flags & KVS_PLAN_FULL_WINDOW ? p->n_ctx : p->max_block;
    s->layout = KVS_LAYOUT_PAGED;
    s->max_block = s->window > 0 ? most : 0;
}

/* A window becomes a ring unless it, with room for one block, reaches the context anyway. */
static void choose_layouts(kvs_plan *p, uint32_t flags)
{
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs_layer_spec *s = &p->layers[i];
        if (!has_keys(s)) {
            continue;
        }
        if (p->kv_block > 0) {
            make_paged(p, s, flags);
            continue;
        }
        uint64_t ring = (uint64_t)s->window + s->sinks + p->max_block;
        bool grow = s->window == 0 || ring >= p->n_ctx || flags & KVS_PLAN_FULL_WINDOW;
        s->layout = grow ? KVS_LAYOUT_GROW : KVS_LAYOUT_RING;
        s->max_block = grow ? 0 : p->max_block;
    }
}

/* A layer that borrows is described as what it reads. */
static void describe_borrowers(kvs_plan *p)
{
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs_layer_spec *s = &p->layers[i];
        if (s->kind == KVS_LAYER_BORROW) {
            uint32_t donor = s->donor;
            *s = p->layers[donor];
            s->kind = KVS_LAYER_BORROW;
            s->donor = donor;
        }
    }
}

static kvs_status check_layer(const kvs_plan *p, uint32_t i, kvs_err *err)
{
    const kvs_layer_spec *s = &p->layers[i];
    kvs_err e = {KVS_OK, 0, "", ""};
    const char *side = "keys";
    if (!has_keys(s)) {
        return KVS_OK;
    }
    kvs_status st = kvs_codec_check(&s->k, s->k_dim, &e);
    if (st == KVS_OK && s->kind != KVS_LAYER_LATENT) {
        side = "values";
        st = kvs_codec_check(&s->v, s->v_dim, &e);
    }
    if (st != KVS_OK) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "layer %u can't keep its %s so: %s", i,
                         side, e.msg);
    }
    return KVS_OK;
}

static kvs_status check(const kvs_plan *p, kvs_err *err)
{
    for (uint32_t i = 0; i < p->n_layers; i++) {
        kvs_status st = check_layer(p, i, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    size_t bytes = 0;
    return kvs_plan_bytes(p, p->n_ctx, &bytes, NULL, err);
}

static kvs_status check_opts(const kvs_plan_opts *o, const kvs_model_info *info, kvs_err *err)
{
    if (info->n_layers == 0) {
        return kvs__fail(err, KVS_E_STATE, "engine",
                         "the model was opened for inspection and its architecture is unknown");
    }
    if (o->sinks > 0 && o->window == 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "sinks %u need a window", o->sinks);
    }
    if (o->group != 0 && o->group != 32 && o->group != 64 && o->group != 128) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "group %u is none of 32, 64, 128", o->group);
    }
    if (o->flags & ~(uint32_t)KVS_PLAN_FULL_WINDOW) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "flags 0x%x of kvs_plan_opts", o->flags);
    }
    if (o->reserved != 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "reserved %u of kvs_plan_opts", o->reserved);
    }
    if (o->undo_tokens > MAX_UNDO && o->undo_tokens != KVS_UNDO_NONE) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "undo_tokens %u is above %u", o->undo_tokens,
                         MAX_UNDO);
    }
    if (o->n_ctx > INT32_MAX || o->max_block > INT32_MAX || o->window > INT32_MAX ||
        o->sinks > INT32_MAX || o->start > INT32_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "a length above %d tokens", INT32_MAX);
    }
    return KVS_OK;
}

static kvs_status build(kvs_plan *p, const kvs_model *model, const kvs_plan_opts *o, kvs_err *err)
{
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(model, &info);
    kvs_status st = check_opts(o, &info, err);
    if (st != KVS_OK) {
        return st;
    }
    p->n_ctx = o->n_ctx ? o->n_ctx : info.n_ctx_train;
    p->max_block = o->max_block ? o->max_block : DEFAULT_BLOCK;
    p->max_block = p->max_block < p->n_ctx ? p->max_block : p->n_ctx;
    st = layers_from_model(p, model, &info, err);
    if (st == KVS_OK) {
        st = apply_codecs(p, model, o, err);
    }
    if (st == KVS_OK) {
        st = apply_limits(p, model, o, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    st = apply_undo(p, o, err);
    if (st != KVS_OK) {
        return st;
    }
    choose_layouts(p, o->flags);
    describe_borrowers(p);
    return check(p, err);
}

kvs_status kvs_plan_new(kvs_ctx *ctx, const kvs_model *model, const kvs_plan_opts *opts,
                        kvs_plan **out, kvs_err *err)
{
    if (!ctx || !model || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, model or out is NULL");
    }
    *out = NULL;
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    if (opts) {
        kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_plan_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    kvs_plan *p = kvs__calloc(ctx, 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    p->ctx = ctx;
    kvs_status st = build(p, model, &o, err);
    if (st != KVS_OK) {
        kvs_plan_free(p);
        return st;
    }
    *out = p;
    return KVS_OK;
}

void kvs_plan_free(kvs_plan *p)
{
    if (!p) {
        return;
    }
    kvs__free(p->ctx, p->layers, p->n_layers * sizeof *p->layers);
    kvs__free(p->ctx, p->own_window, p->n_layers * sizeof *p->own_window);
    kvs__free(p->ctx, p->recurrent, p->n_layers * sizeof *p->recurrent);
    kvs__free(p->ctx, p, sizeof *p);
}

/* ---- questions */

uint32_t kvs_plan_n_layers(const kvs_plan *p)
{
    return p ? p->n_layers : 0;
}

const kvs_layer_spec *kvs_plan_layer(const kvs_plan *p, uint32_t layer)
{
    return p && layer < p->n_layers ? &p->layers[layer] : NULL;
}

uint32_t kvs_plan_n_ctx(const kvs_plan *p)
{
    return p ? p->n_ctx : 0;
}

uint32_t kvs_plan_max_block(const kvs_plan *p)
{
    return p ? p->max_block : 0;
}

static kvs_cache_opts cache_opts(const kvs_plan *p)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = p->n_layers;
    o.layers = p->layers;
    o.block_tokens = p->kv_block;
    return o;
}

kvs_status kvs_plan_bytes(const kvs_plan *p, uint64_t n_tokens, size_t *state_bytes,
                          size_t *layer_bytes, kvs_err *err)
{
    if (!p) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "plan is NULL");
    }
    kvs_cache_opts o = cache_opts(p);
    return kvs_cache_plan(&o, n_tokens, state_bytes, layer_bytes, err);
}

kvs_status kvs_plan_rows_bytes(const kvs_plan *p, uint32_t n_rows, uint64_t n_tokens,
                               size_t *state_bytes, size_t *pool_bytes, kvs_err *err)
{
    size_t one = 0;
    size_t all = 0;
    size_t pool = 0;
    kvs_status st = kvs_plan_bytes(p, n_tokens, &one, NULL, err);
    if (st == KVS_OK && !kvs__mul_size(one, n_rows, &all)) {
        st = kvs__fail(err, KVS_E_RANGE, "engine", "%u rows of %zu bytes overflow", n_rows, one);
    }
    if (st == KVS_OK && p->kv_block > 0 && pool_bytes) {
        kvs_pages_opts pages = KVS_PAGES_OPTS_INIT;
        kvs_cache_opts o = cache_opts(p);
        pages.block_tokens = p->kv_block;
        o.block_tokens = 0;
        st = kvs_pages_plan(&pages, &o, n_rows, n_tokens, &pool, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    if (state_bytes) {
        *state_bytes = all;
    }
    if (pool_bytes) {
        *pool_bytes = pool;
    }
    return KVS_OK;
}

bool kvs__plan_own_window(const kvs_plan *p, uint32_t layer)
{
    return p->own_window[layer];
}

static bool same_recurrent(const kvs_recurrent_spec *a, const kvs_recurrent_spec *b)
{
    return a->rule == b->rule && a->n_heads == b->n_heads && a->n_groups == b->n_groups &&
           a->head_dim == b->head_dim && a->state_dim == b->state_dim &&
           a->conv_dim == b->conv_dim && a->conv_taps == b->conv_taps &&
           a->conv_dtype == b->conv_dtype && a->undo_tokens == b->undo_tokens &&
           a->undo_bytes == b->undo_bytes;
}

static bool same_spec(const kvs_layer_spec *a, const kvs_layer_spec *b)
{
    if (a->kind != b->kind || a->donor != b->donor) {
        return false;
    }
    if (a->kind == KVS_LAYER_BORROW) {
        return true;
    }
    if (a->kind == KVS_LAYER_RECURRENT) {
        return same_recurrent(a->recurrent, b->recurrent);
    }
    return a->k.bits == b->k.bits && a->k.group == b->k.group && a->k.rotate == b->k.rotate &&
           a->k.dtype == b->k.dtype && a->v.bits == b->v.bits && a->v.group == b->v.group &&
           a->v.rotate == b->v.rotate && a->v.dtype == b->v.dtype && a->layout == b->layout &&
           a->window == b->window && a->sinks == b->sinks && a->dense_until == b->dense_until &&
           a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim;
}

/* First layer of group i of equal layers; n_layers past the end. */
static uint32_t group_start(const kvs_plan *p, uint32_t i)
{
    for (uint32_t l = 0; l < p->n_layers; l++) {
        uint32_t first = 0;
        while (!same_spec(&p->layers[first], &p->layers[l])) {
            first++;
        }
        if (first == l && i-- == 0) {
            return l;
        }
    }
    return p->n_layers;
}

static uint32_t n_groups(const kvs_plan *p)
{
    uint32_t n = 0;
    while (group_start(p, n) < p->n_layers) {
        n++;
    }
    return n;
}

/* "0-4,6-10" of the layers equal to `first`. */
static void put_ranges(const kvs_plan *p, uint32_t first, kvs__plan_text *t)
{
    const char *sep = "";
    for (uint32_t l = first; l < p->n_layers; l++) {
        if (!same_spec(&p->layers[first], &p->layers[l])) {
            continue;
        }
        uint32_t end = l;
        while (end + 1 < p->n_layers && same_spec(&p->layers[first], &p->layers[end + 1])) {
            end++;
        }
        kvs__plan_put(t, end > l ? "%s%u-%u" : "%s%u", sep, l, end);
        sep = ",";
        l = end;
    }
}

kvs_status kvs_plan_get_undo(const kvs_plan *p, kvs_plan_undo *out)
{
    if (!p || !out) {
        return KVS_E_INVAL;
    }
    kvs_plan_undo u = KVS_PLAN_UNDO_INIT;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        const kvs_recurrent_spec *r = &p->recurrent[i];
        kvs__rec_plan plan;
        if (p->layers[i].kind != KVS_LAYER_RECURRENT || r->undo_tokens == 0 ||
            kvs__rec_plan_of(r, i, &plan, NULL) != KVS_OK) {
            continue;
        }
        const uint32_t intervals[3] = {plan.interval, kvs__rec_least(r), 1};
        size_t bytes[3] = {0, 0, 0};
        for (int k = 0; k < 3; k++) {
            (void)kvs__rec_undo_bytes(r, intervals[k], &bytes[k]);
        }
        u.n_tokens = r->undo_tokens;
        u.interval = plan.interval > u.interval ? plan.interval : u.interval;
        u.interval_least = intervals[1] > u.interval_least ? intervals[1] : u.interval_least;
        u.bytes += bytes[0];
        u.bytes_least += bytes[1];
        u.bytes_every += bytes[2];
    }
    return kvs__stats_write(out, &u, sizeof u);
}

static void put_recurrent(const kvs_recurrent_spec *r, kvs__plan_text *t)
{
    kvs__plan_put(t, ": recurrent %s, %u heads of %u x %u in f32, convolution %u of %u",
                  r->rule == KVS_RECURRENT_SSD ? "ssd" : "delta", r->n_heads, r->head_dim,
                  r->state_dim, r->conv_taps, r->conv_dim);
    if (r->undo_tokens > 0) {
        kvs__rec_plan plan;
        size_t bytes = 0;
        (void)kvs__rec_plan_of(r, 0, &plan, NULL); /* it was checked with the plan */
        (void)kvs__rec_undo_bytes(r, plan.interval, &bytes);
        kvs__plan_put(t, ", goes back %u tokens (a snapshot every %u, %zu bytes)", r->undo_tokens,
                      plan.interval, bytes);
    } else {
        kvs__plan_put(t, ", does not go back");
    }
}

static void put_group(const kvs_plan *p, uint32_t first, kvs__plan_text *t)
{
    const kvs_layer_spec *s = &p->layers[first];
    char k[48];
    char v[48];
    (void)kvs_codec_name(&s->k, k, sizeof k);
    (void)kvs_codec_name(&s->v, v, sizeof v);
    kvs__plan_put(t, "layers ");
    put_ranges(p, first, t);
    if (s->kind == KVS_LAYER_RECURRENT) {
        put_recurrent(s->recurrent, t);
        return;
    }
    if (s->kind == KVS_LAYER_BORROW) {
        kvs__plan_put(t, ": nothing, they read layer %u", s->donor);
        return;
    }
    static const char *const layouts[] = {"grow", "ring", "paged"};
    kvs__plan_put(t, ": %s", layouts[s->layout]);
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__plan_put(t, " %u", p->kv_block);
    }
    if (s->window > 0) {
        kvs__plan_put(t, " window %u", s->window);
    }
    if (s->sinks > 0) {
        kvs__plan_put(t, " sinks %u", s->sinks);
    }
    if (s->kind == KVS_LAYER_LATENT) {
        kvs__plan_put(t, ", latent %s", k);
    } else {
        kvs__plan_put(t, ", k %s, v %s", k, v);
    }
    if (s->dense_until > 0) {
        kvs__plan_put(t, " after %u dense tokens", s->dense_until);
    }
    if (s->kind == KVS_LAYER_LATENT) {
        kvs__plan_put(t, ", one row of %u", s->k_dim);
    } else {
        kvs__plan_put(t, ", %u heads of %u/%u", s->n_kv_heads, s->k_dim, s->v_dim);
    }
}

uint32_t kvs_plan_kv_block(const kvs_plan *p)
{
    return p ? p->kv_block : 0;
}

size_t kvs_plan_line(const kvs_plan *p, uint32_t i, char *dst, size_t n)
{
    kvs__plan_text t = {dst, n, 0};
    uint32_t groups = p ? n_groups(p) : 0;
    if (n > 0) {
        dst[0] = '\0';
    }
    if (i < groups) {
        put_group(p, group_start(p, i), &t);
    } else if (p && i - groups < p->notes.n) {
        kvs__plan_put(&t, "note: %s", p->notes.text[i - groups]);
    }
    return t.used;
}
