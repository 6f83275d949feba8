/* SPDX-License-Identifier: MIT */
/* bytes.c: stored bytes in and out: spans (borrowed), export and import (copied), and conversion
 * of a layer to other codecs. Export and import move codes, never values. */
#include <string.h>

#include "state/layer.h"

static kvs_status check_range(const kvs__layer *l, int64_t begin, int64_t end, kvs_err *err)
{
    int64_t len = kvs__layer_len(l);
    if (begin < 0 || begin > end || end > len) {
        return kvs__fail(err, KVS_E_RANGE, "state", "positions %lld to %lld of %lld",
                         (long long)begin, (long long)end, (long long)len);
    }
    return KVS_OK;
}

static void fill_span(const kvs__store *s, const kvs__seg *seg, kvs_span *out)
{
    for (int side = 0; side < KVS__SIDES; side++) {
        const kvs__side *sd = &s->fmt.side[side];
        kvs_plane *plane = side == KVS__K ? out->k : out->v;
        for (int p = 0; p < KVS__PLANES; p++) {
            if (sd->n_units[p]) {
                plane[p] = (kvs_plane){kvs__seg_at(seg, side, p, 0), seg->head_bytes[side][p],
                                       sd->n_units[p], sd->unit_bytes[p]};
            }
        }
    }
    if (s->fmt.center_bytes) {
        const uint32_t dim = s->fmt.side[KVS__K].shape.dim;
        const uint64_t slot0 =
            (uint64_t)out->first_pos - out->slot; /* its position, but of a ring */
        out->k_center = (kvs_plane){(const unsigned char *)seg + seg->center_at, seg->center_head,
                                    dim, s->fmt.center_bytes / dim};
        out->n_centers = seg->n_centers;
        if (s->layout == KVS_LAYOUT_PAGED) { /* more where blocks are joined */
            uint64_t n = (out->slot + out->n_tokens + KVS_CENTER_GROUP - 1) / KVS_CENTER_GROUP;
            out->n_centers = n > out->n_centers ? n : out->n_centers;
        }
        out->first_group = s->layout == KVS_LAYOUT_RING ? 0 : (int64_t)(slot0 / KVS_CENTER_GROUP);
    }
}

kvs_status kvs_cache_spans(const kvs_cache *c, uint32_t layer, int64_t begin, int64_t end,
                           kvs_span *out, uint32_t cap, uint32_t *n_spans, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_kv_layer(c, layer, &l, err);
    st = st == KVS_OK ? check_range(l, begin, end, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (!n_spans || (cap > 0 && !out)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", n_spans ? "out" : "n_spans");
    }
    const kvs__store *s = kvs__layer_store(l);
    uint32_t n = 0;
    int64_t at = begin;
    while (at < end) {
        if (!kvs__store_holds(s, at)) {
            at = s->lo; /* past the hole between sinks and window */
            continue;
        }
        const kvs__seg *seg = NULL;
        kvs_span span;
        memset(&span, 0, sizeof span);
        span.first_pos = at;
        span.n_tokens = kvs__store_locate(s, at, (uint64_t)(end - at), &seg, &span.slot);
        if (n < cap) {
            fill_span(s, seg, &span);
            out[n] = span;
        }
        n++;
        at += (int64_t)span.n_tokens;
    }
    *n_spans = n;
    return KVS_OK;
}

static kvs_status read_planes(const kvs_planes *src, kvs_planes *out, kvs_err *err)
{
    if (!src) {
        return kvs__fail(err, KVS_E_INVAL, "state", "planes is NULL");
    }
    return kvs__opts_read(out, sizeof *out, src, "kvs_planes", err);
}

/* Start of head h's rows in a caller's plane, heads `stride` tokens apart. */
static unsigned char *rows_of(const kvs_planes *p, const kvs__fmt *fmt, int side, int plane,
                              uint32_t head, uint64_t stride)
{
    unsigned char *base = side == KVS__K ? p->k[plane] : p->v[plane];
    const kvs__side *s = &fmt->side[side];
    return base + (size_t)head * stride * s->n_units[plane] * s->unit_bytes[plane];
}

static bool has_plane(const kvs_planes *p, int side, int plane)
{
    return (side == KVS__K ? p->k[plane] : p->v[plane]) != NULL;
}

/* Row of head h for position `at` in a caller's plane of centres that begins with the group of
 * `begin`. */
static unsigned char *center_row(const kvs_planes *p, const kvs__fmt *fmt, uint32_t head,
                                 uint64_t c_stride, int64_t begin, int64_t at)
{
    int64_t row = at / (int64_t)KVS_CENTER_GROUP - begin / (int64_t)KVS_CENTER_GROUP;
    return (unsigned char *)p->k_center + (head * c_stride + (uint64_t)row) * fmt->center_bytes;
}

/* Where the group of `at` ends, at most `end`. */
static int64_t group_end(int64_t at, int64_t end)
{
    at += (int64_t)KVS_CENTER_GROUP - at % (int64_t)KVS_CENTER_GROUP;
    return at < end ? at : end;
}

static void export_centers(const kvs__store *s, int64_t begin, int64_t end, const kvs_planes *p,
                           uint64_t c_stride)
{
    for (int64_t at = begin; at < end; at = group_end(at, end)) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        (void)kvs__store_locate(s, at, 1, &seg, &slot);
        for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
            memcpy(center_row(p, &s->fmt, h, c_stride, begin, at),
                   kvs__center_at(s, seg, h, at, slot), s->fmt.center_bytes);
        }
    }
}

void kvs__store_export(const kvs__store *s, int64_t begin, uint64_t n, const kvs_planes *p,
                       uint64_t stride, uint64_t c_stride)
{
    if (s->fmt.center_bytes && p->k_center) {
        export_centers(s, begin, begin + (int64_t)n, p, c_stride);
    }
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int plane = 0; plane < KVS__PLANES; plane++) {
            if (s->fmt.side[side].n_units[plane] == 0 || !has_plane(p, side, plane)) {
                continue;
            }
            for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
                kvs__store_get_units(s, side, plane, h, begin, n,
                                     rows_of(p, &s->fmt, side, plane, h, stride));
            }
        }
    }
}

kvs_status kvs_cache_export(const kvs_cache *c, uint32_t layer, int64_t begin, uint64_t n,
                            const kvs_planes *dst, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_kv_layer(c, layer, &l, err);
    kvs_planes p = KVS_PLANES_INIT;
    st = st == KVS_OK ? read_planes(dst, &p, err) : st;
    if (st == KVS_OK && (n > (uint64_t)INT64_MAX / 4 || begin > INT64_MAX / 4)) {
        st = kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens from position %lld",
                       (unsigned long long)n, (long long)begin);
    }
    st = st == KVS_OK ? check_range(l, begin, begin + (int64_t)n, err) : st;
    st = st == KVS_OK ? kvs__layer_committed(l, begin + (int64_t)n, "export", err) : st;
    if (st != KVS_OK || n == 0) {
        return st;
    }
    const kvs__store *s = kvs__layer_store(l);
    int64_t end = begin + (int64_t)n;
    bool whole = begin >= s->lo || end <= (int64_t)s->sinks || s->lo <= (int64_t)s->sinks;
    if (!whole) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "positions %lld to %lld: %lld is the oldest stored after %u sinks",
                         (long long)begin, (long long)end, (long long)s->lo, s->sinks);
    }
    kvs__store_export(s, begin, n, &p, n, kvs_center_groups(begin, n));
    return KVS_OK;
}

/* The store that takes tokens [at, at + n), or NULL with an error. */
static kvs__store *import_target(kvs__layer *l, int64_t at, uint64_t n, kvs_err *err)
{
    int64_t dense = (int64_t)l->spec.dense_until;
    if (dense > 0 && at + (int64_t)n <= dense) {
        return &l->early;
    }
    if (dense > 0 && l->early.len > 0 && l->main.len == 0) {
        (void)kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                        "import of positions %lld to %lld crosses dense_until %lld", (long long)at,
                        (long long)at + (long long)n, (long long)dense);
        return NULL;
    }
    return &l->main;
}

kvs_status kvs__store_check_centers(const kvs__store *s, int64_t at, const kvs_planes *p,
                                    uint64_t c_stride, kvs_err *err)
{
    const kvs__fmt *fmt = &s->fmt;
    if (!p->k_center ||
        (uintptr_t)p->k_center % (fmt->center_bytes / fmt->side[KVS__K].shape.dim)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "plane k_center is missing or misaligned");
    }
    int64_t first = at - at % (int64_t)KVS_CENTER_GROUP;
    int64_t have = kvs__store_holds(s, at - 1) ? at - 1 : first;
    bool gone = at > s->len && have >= (int64_t)s->sinks; /* goes when the import has come */
    if (first == at || gone || !kvs__store_holds(s, have)) {
        return KVS_OK;
    }
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    (void)kvs__store_locate(s, have, 1, &seg, &slot);
    for (uint32_t h = 0; h < fmt->n_heads; h++) {
        if (memcmp(kvs__center_at(s, seg, h, have, slot), center_row(p, fmt, h, c_stride, at, at),
                   fmt->center_bytes) != 0) {
            return kvs__fail(err, KVS_E_INVAL, "state",
                             "plane k_center differs from the centre that the tokens before %lld "
                             "have, head %u",
                             (long long)at, h);
        }
    }
    return KVS_OK;
}

static kvs_status check_import(const kvs__store *s, int64_t at, uint64_t n, const kvs_planes *p,
                               uint64_t c_stride, kvs_err *err)
{
    bool ring = kvs__store_slides(s);
    if (at != s->len &&
        !(ring && at > s->len && at >= (int64_t)s->sinks && s->len >= (int64_t)s->sinks)) {
        return kvs__fail(err, KVS_E_RANGE, "state", "import at %lld into a layer of %lld tokens",
                         (long long)at, (long long)s->len);
    }
    bool paged = s->layout == KVS_LAYOUT_PAGED;
    if (ring && (paged ? kvs__paged_oldest(s, at + (int64_t)n) > at : n > s->ring_cap)) {
        return kvs__fail(err, KVS_E_LIMIT, "state", "import of %llu tokens into a ring of %llu",
                         (unsigned long long)n, (unsigned long long)s->ring_cap);
    }
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int plane = 0; plane < KVS__PLANES; plane++) {
            uint32_t ub = s->fmt.side[side].unit_bytes[plane];
            if (ub == 0) {
                continue;
            }
            if (!has_plane(p, side, plane) ||
                (uintptr_t)rows_of(p, &s->fmt, side, plane, 0, n) % ub) {
                return kvs__fail(err, KVS_E_INVAL, "state", "plane %s[%d] is missing or misaligned",
                                 side == KVS__K ? "k" : "v", plane);
            }
        }
    }
    return s->fmt.center_bytes ? kvs__store_check_centers(s, at, p, c_stride, err) : KVS_OK;
}

kvs_status kvs__layer_import_reserve(kvs_ctx *ctx, kvs__layer *l, int64_t at, uint64_t n,
                                     const kvs_planes *p, uint64_t c_stride, kvs_err *err)
{
    if (at < 0 || at > INT64_MAX / 4 || n == 0 || n > (uint64_t)INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "import of %llu tokens at %lld",
                         (unsigned long long)n, (long long)at);
    }
    if (kvs__layer_open(l) && at != kvs__layer_len(l)) {
        return kvs__fail(err, KVS_E_STATE, "state", "import at %lld past a gap: a round is open",
                         (long long)at);
    }
    kvs_status st = kvs__layer_room(l, n, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__store *s = import_target(l, at, n, err);
    if (!s) {
        return KVS_E_UNSUPPORTED;
    }
    st = check_import(s, at, n, p, c_stride, err);
    return st == KVS_OK ? kvs__store_reserve(ctx, s, at, n, err) : st;
}

static void import_centers(kvs__store *s, int64_t begin, int64_t end, const kvs_planes *p,
                           uint64_t c_stride)
{
    for (int64_t at = begin; at < end;) {
        int64_t to = group_end(at, end);
        for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
            kvs__center_put(s, h, at, (uint64_t)(to - at),
                            center_row(p, &s->fmt, h, c_stride, begin, at));
        }
        at = to;
    }
}

void kvs__store_import(kvs__store *s, int64_t at, uint64_t n, const kvs_planes *p, uint64_t stride,
                       uint64_t c_stride)
{
    if (at > s->len) {
        kvs__store_jump(s, at);
    }
    kvs__store_advance(s, n);
    if (s->fmt.center_bytes) {
        import_centers(s, at, at + (int64_t)n, p, c_stride);
    }
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int plane = 0; plane < KVS__PLANES; plane++) {
            if (s->fmt.side[side].n_units[plane] == 0) {
                continue;
            }
            for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
                kvs__store_set_units(s, side, plane, h, at, n,
                                     rows_of(p, &s->fmt, side, plane, h, stride));
            }
        }
    }
}

void kvs__layer_import(kvs_ctx *ctx, kvs__layer *l, int64_t at, uint64_t n, const kvs_planes *p,
                       uint64_t stride, uint64_t c_stride)
{
    kvs__store *s = import_target(l, at, n, NULL);
    if (KVS_NEVER(!s)) {
        return;
    }
    if (s == &l->main) { /* as an append beyond dense_until does */
        kvs__layer_drop_early(ctx, l);
    }
    kvs__store_import(s, at, n, p, stride, c_stride);
}

kvs_status kvs_cache_import(kvs_cache *c, uint32_t layer, int64_t at, uint64_t n,
                            const kvs_planes *src, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_own_kv(c, layer, "import", &l, err);
    kvs_planes p = KVS_PLANES_INIT;
    st = st == KVS_OK ? read_planes(src, &p, err) : st;
    uint64_t c_stride = kvs_center_groups(at < 0 ? 0 : at, n);
    st = st == KVS_OK ? kvs__layer_import_reserve(c->ctx, l, at, n, &p, c_stride, err) : st;
    if (st == KVS_OK) {
        kvs__layer_import(c->ctx, l, at, n, &p, n, c_stride);
    }
    return st;
}

/* flags: those of rotate that count. */
static bool same_codec(const kvs_codec *a, const kvs_codec *b, unsigned flags)
{
    return a->bits == b->bits && ((a->rotate ^ b->rotate) & flags) == 0 && a->group == b->group &&
           a->dtype == b->dtype;
}

kvs_status kvs_cache_convert(kvs_cache *c, uint32_t layer, const kvs_codec *k, const kvs_codec *v,
                             kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_own_kv(c, layer, "convert", &l, err);
    st = st == KVS_OK ? kvs__cache_closed(c, "convert", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    bool latent = l->spec.kind == KVS_LAYER_LATENT;
    v = latent ? &l->spec.v : v;
    if (!k || !v) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", k ? "v" : "k");
    }
    st = kvs_codec_check(k, l->spec.k_dim, err);
    if (st == KVS_OK) {
        st = latent ? kvs__latent_check(&l->spec, k, err) : kvs_codec_check(v, l->spec.v_dim, err);
    }
    if (st != KVS_OK ||
        (same_codec(k, &l->spec.k, latent ? KVS_ROTATED : KVS_ROTATED | KVS_CENTERED) &&
         same_codec(v, &l->spec.v, KVS_ROTATED))) {
        return st;
    }
    kvs__layer to = *l;
    to.spec.k = *k;
    to.spec.v = *v;
    kvs__store_init(&to.main, &to.spec, k, v, l->reserve);
    if (to.spec.layout == KVS_LAYOUT_PAGED) {
        kvs__paged_init(&to.main, l->main.pages, l->main.block);
    }
    size_t scratch = 0;
    if (!kvs__layer_scratch(&to, kvs__ctx_threads(c->ctx), &scratch)) {
        return kvs__fail(err, KVS_E_RANGE, "state", "layer %u: scratch overflows", layer);
    }
    st = kvs__ctx_scratch_reserve(c->ctx, scratch, err);
    if (st == KVS_OK && l->main.n_segs > 0) {
        st = kvs__store_reserve_like(c->ctx, &to.main, &l->main, l->main.len ? 0 : 1, err);
    }
    if (st != KVS_OK) {
        kvs__store_drop(c->ctx, &to.main);
        return st;
    }
    if (l->main.len > 0) {
        kvs__store_transcode(c->ctx, &to.main, &l->main);
    }
    kvs__store_drop(c->ctx, &l->main);
    *l = to;
    for (uint32_t i = layer + 1; i < c->n_layers; i++) { /* borrowers are described by the donor */
        kvs_layer_spec *b = &c->layer[i].spec;
        if (b->kind == KVS_LAYER_BORROW && b->donor == layer) {
            b->k = *k;
            b->v = *v;
        }
    }
    return KVS_OK;
}
