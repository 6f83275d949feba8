/* SPDX-License-Identifier: MIT */
/* rec_api.c: the public calls of recurrent.h: reads and checks descriptions, then calls the layer. */
#include <math.h>

#include "kern/math.h"
#include "state/layer.h"

static kvs_status find(const kvs_cache *c, uint32_t layer, kvs__rec **out, kvs_err *err)
{
    kvs__layer *l = NULL;
    *out = NULL;
    kvs_status st = kvs__cache_layer(c, layer, &l, err);
    if (st == KVS_OK && !l->rec) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "layer %u is not recurrent", layer);
    }
    *out = st == KVS_OK ? l->rec : NULL;
    return st;
}

static kvs_status check_stride(size_t stride, size_t dense, const char *what, kvs_err *err)
{
    if (stride != 0 && stride < dense) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s_stride %zu is below %zu", what, stride,
                         dense);
    }
    return KVS_OK;
}

static kvs_status check_input(const float *p, size_t stride, size_t dense, const char *what,
                              kvs_err *err)
{
    if (!p) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", what);
    }
    return check_stride(stride, dense, what, err);
}

static kvs_status check_count(uint32_t n_tokens, kvs_err *err)
{
    if (n_tokens == 0 || n_tokens > INT32_MAX) {
        return kvs__fail(err, KVS_E_INVAL, "state", "n_tokens is %u", n_tokens);
    }
    return KVS_OK;
}

kvs_status kvs_recurrent_conv(kvs_cache *c, uint32_t layer, const kvs_recurrent_conv_desc *desc,
                              kvs_err *err)
{
    kvs__rec *r = NULL;
    kvs_recurrent_conv_desc d = KVS_RECURRENT_CONV_DESC_INIT;
    kvs_status st = find(c, layer, &r, err);
    if (st == KVS_OK && !desc) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "desc is NULL");
    }
    st = st == KVS_OK ? kvs__opts_read(&d, sizeof d, desc, "kvs_recurrent_conv_desc", err) : st;
    st = st == KVS_OK ? check_count(d.n_tokens, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    size_t dim = r->spec.conv_dim;
    if (dim == 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "layer %u has no convolution", layer);
    }
    if (d.flags & ~(uint32_t)KVS_RECURRENT_SILU) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "flags %#x", d.flags);
    }
    st = check_input(d.x, d.x_stride, dim, "x", err);
    st = st == KVS_OK ? check_input(d.weight, 0, dim, "weight", err) : st;
    st = st == KVS_OK ? check_input(d.out, d.out_stride, dim, "out", err) : st;
    if (st == KVS_OK) {
        kvs__rec_conv(c->ctx, r, &d);
    }
    return st;
}

static kvs_status check_outputs(const kvs_recurrent_spec *s, const kvs_recurrent_step *p,
                                kvs_err *err)
{
    size_t key = (size_t)s->n_groups * s->state_dim;
    size_t value = (size_t)s->n_heads * s->head_dim;
    if (!p->y) {
        return KVS_OK;
    }
    kvs_status st = check_input(p->q, p->q_stride, key, "q", err);
    return st == KVS_OK ? check_stride(p->y_stride, value, "y", err) : st;
}

static kvs_status check_step(const kvs_recurrent_spec *s, const kvs_recurrent_step *p, kvs_err *err)
{
    size_t key = (size_t)s->n_groups * s->state_dim;
    size_t value = (size_t)s->n_heads * s->head_dim;
    bool ssd = s->rule == KVS_RECURRENT_SSD;
    kvs_status st = check_input(p->k, p->k_stride, key, "k", err);
    st = st == KVS_OK ? check_input(p->v, p->v_stride, value, "v", err) : st;
    st = st == KVS_OK ? check_input(p->a, p->a_stride, s->n_heads, "a", err) : st;
    st = st == KVS_OK ? check_input(p->decay, 0, s->n_heads, "decay", err) : st;
    if (st == KVS_OK && !ssd) {
        st = check_input(p->b, p->b_stride, s->n_heads, "b", err);
    }
    if (st == KVS_OK && (s->conv_dim == 0) != (p->conv_x == NULL)) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "conv_x is %sNULL in a layer of %u channels",
                       p->conv_x ? "not " : "", s->conv_dim);
    }
    st = st == KVS_OK ? check_stride(p->conv_x_stride, s->conv_dim, "conv_x", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    bool limits = p->dt_min != 0.0f || p->dt_max != 0.0f;
    if (!ssd && (limits || p->d)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "limits of dt or d in the gated delta rule");
    }
    if (ssd && p->b) {
        return kvs__fail(err, KVS_E_INVAL, "state", "b in the SSD rule");
    }
    if (limits && !(p->dt_min >= 0.0f && p->dt_min <= p->dt_max)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dt_min %g, dt_max %g", (double)p->dt_min,
                         (double)p->dt_max);
    }
    if (p->reserved != 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "reserved is %u, not 0", p->reserved);
    }
    return check_outputs(s, p, err);
}

kvs_status kvs_recurrent_advance(kvs_cache *c, uint32_t layer, const kvs_recurrent_step *step,
                                 kvs_err *err)
{
    kvs__rec *r = NULL;
    kvs_recurrent_step p = KVS_RECURRENT_STEP_INIT;
    kvs_status st = find(c, layer, &r, err);
    if (st == KVS_OK && !step) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "step is NULL");
    }
    st = st == KVS_OK ? kvs__opts_read(&p, sizeof p, step, "kvs_recurrent_step", err) : st;
    st = st == KVS_OK ? check_count(p.n_tokens, err) : st;
    st = st == KVS_OK ? check_step(&r->spec, &p, err) : st;
    st = st == KVS_OK ? kvs__layer_room(&c->layer[layer], p.n_tokens, err) : st;
    return st == KVS_OK ? kvs__rec_advance(c->ctx, r, &p, err) : st;
}

void kvs_recurrent_decay(float *decay, const float *a_log, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        decay[i] = -kvs__exp(a_log[i]);
    }
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

void kvs_recurrent_pad_next(kvs_recurrent_pad *pad, uint32_t n, uint32_t *first, uint32_t *count)
{
    if (!pad || !first || !count) {
        return;
    }
    int64_t from = clamp(pad->left, 0, n);
    int64_t end = clamp(pad->length, 0, n);
    *first = (uint32_t)from;
    *count = end > from ? (uint32_t)(end - from) : 0;
    pad->length = pad->length > INT64_MIN + (int64_t)n ? pad->length - (int64_t)n : INT64_MIN;
    pad->left = pad->left > INT64_MIN + (int64_t)n ? pad->left - (int64_t)n : INT64_MIN;
}

int64_t kvs_recurrent_kept(const kvs_cache *c, uint32_t layer, int64_t at)
{
    kvs__rec *r = NULL;
    return find(c, layer, &r, NULL) == KVS_OK ? kvs__rec_kept(r, at) : -1;
}

static kvs_status read_planes(const kvs_recurrent_planes *in, kvs_recurrent_planes *out,
                              kvs_err *err)
{
    if (!in) {
        return kvs__fail(err, KVS_E_INVAL, "state", "planes is NULL");
    }
    return kvs__opts_read(out, sizeof *out, in, "kvs_recurrent_planes", err);
}

kvs_status kvs_recurrent_export(const kvs_cache *c, uint32_t layer, int64_t at,
                                const kvs_recurrent_planes *dst, kvs_err *err)
{
    kvs__rec *r = NULL;
    kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
    kvs_status st = find(c, layer, &r, err);
    st = st == KVS_OK ? read_planes(dst, &p, err) : st;
    if (st == KVS_OK && kvs__rec_kept(r, at) != at) {
        st = kvs__fail(err, KVS_E_RANGE, "state",
                       "layer %u: no state is stored at %lld of %lld tokens", layer, (long long)at,
                       (long long)r->len);
    }
    st = st == KVS_OK ? kvs__rec_check_open(r, at, err) : st;
    if (st == KVS_OK) {
        kvs__rec_export(r, at, p.conv, p.state);
    }
    return st;
}

kvs_status kvs_recurrent_import(kvs_cache *c, uint32_t layer, int64_t at,
                                const kvs_recurrent_planes *src, kvs_err *err)
{
    kvs__rec *r = NULL;
    kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
    kvs_status st = find(c, layer, &r, err);
    st = st == KVS_OK ? read_planes(src, &p, err) : st;
    if (st == KVS_OK && (at < 0 || at > INT64_MAX / 4)) {
        st = kvs__fail(err, KVS_E_RANGE, "state", "import at %lld", (long long)at);
    }
    if (st == KVS_OK && (!p.state || (r->spec.conv_dim && !p.conv))) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", p.state ? "conv" : "state");
    }
    return st == KVS_OK ? kvs__rec_import(c->ctx, r, at, p.conv, p.state, err) : st;
}

kvs_status kvs_recurrent_get_stats(const kvs_cache *c, uint32_t layer, kvs_recurrent_stats *out)
{
    kvs__rec *r = NULL;
    kvs_status st = find(c, layer, &r, NULL);
    if (st != KVS_OK || !out) {
        return st != KVS_OK ? st : KVS_E_INVAL;
    }
    kvs_recurrent_stats s = KVS_RECURRENT_STATS_INIT;
    s.interval = r->plan.interval;
    s.state_bytes = r->plan.bytes;
    if (s.interval > 0) {
        s.interval_least = kvs__rec_least(&r->spec);
        (void)kvs__rec_undo_bytes(&r->spec, s.interval, &s.undo_bytes);
        (void)kvs__rec_undo_bytes(&r->spec, 1, &s.undo_bytes_1);
        (void)kvs__rec_undo_bytes(&r->spec, s.interval_least, &s.undo_bytes_least);
        s.state_bytes -= s.undo_bytes;
    }
    s.n_rewinds = r->n_rewinds;
    s.n_recomputed = r->n_recomputed;
    return kvs__stats_write(out, &s, sizeof s);
}
