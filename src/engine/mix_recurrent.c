/* SPDX-License-Identifier: MIT */
/* mix_recurrent.c: the mixer of layers whose state has a fixed size: gated delta rule and Mamba-2.
 *
 * Projections of all rows in one product; then, row by row, the convolution over the row's tail and
 * the rule over its state (kvstate/recurrent.h), which never see another row; then the gated norm
 * and one product for the output. The inputs of the convolution stay as they are until the rule has
 * advanced: both calls are given the same.
 *
 * Delta: q and k are scaled to unit length between the two calls, q by 1 / sqrt(state_dim) too; the
 * result is normed head by head, then gated. Mamba-2: gated, then normed. */
#include <math.h>
#include <string.h>

#include "engine/block.h"

#define UNIT_EPS 1e-6f /* added to the sum of squares, whatever the model's norms use */

typedef struct widths {
    size_t keys, values, conv, heads;
    size_t mixed; /* of the product by groups, and its twin for b and a; else 0 */
    size_t ba;
} widths;

static widths get_widths(const kvs__recurrent *r)
{
    widths w;
    w.keys = (size_t)r->spec.n_groups * r->spec.state_dim;
    w.values = (size_t)r->spec.n_heads * r->spec.head_dim;
    w.conv = r->spec.conv_dim;
    w.heads = r->spec.n_heads;
    w.mixed = r->by_group ? 2 * w.keys + 2 * w.values : 0;
    w.ba = r->ba_by_group ? 2 * w.heads : 0;
    return w;
}

typedef struct job {
    kvs__graph *g;
    const kvs__layer *l;
    const kvs__recurrent *r;
    const kvs__step *step;
    widths w;
    float *mixed; /* [n_tokens][mixed] */
    float *ba;    /* [n_tokens][ba] */
    float *x;     /* [n_tokens][conv] before the convolution */
    float *c;     /* [n_tokens][conv] after it */
    float *z;     /* [n_tokens][values] */
    float *a;     /* [n_tokens][heads] */
    float *b;     /* [n_tokens][heads] */
    float *y;     /* [n_tokens][values] */
    float *out;   /* [n_out][values] */
} job;

static bool is_delta(const kvs__recurrent *r)
{
    return r->spec.rule == KVS_RECURRENT_GATED_DELTA;
}

static kvs__need need(const kvs__net *net, const kvs__layer *l)
{
    widths w = get_widths(&l->recurrent);
    kvs__need n = {w.mixed + w.ba + 2 * w.conv + 3 * w.values + 2 * w.heads, w.values, 0, 0};
    n.widest = n.widest > net->d_model ? n.widest : net->d_model;
    return n;
}

/* Takes the rows of groups apart: q, k and v as the convolution wants them, z, b, a. */
static void take_apart(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs_recurrent_spec *s = &j->r->spec;
    size_t key = s->state_dim;
    size_t heads = s->n_heads / s->n_groups;
    size_t value = heads * s->head_dim;
    const float *from = j->mixed + t * j->w.mixed;
    float *x = j->x + t * j->w.conv;
    float *z = j->z + t * j->w.values;
    for (size_t i = 0; j->r->by_group && i < s->n_groups; i++) {
        memcpy(x + i * key, from, key * sizeof *x);
        memcpy(x + j->w.keys + i * key, from + key, key * sizeof *x);
        memcpy(x + 2 * j->w.keys + i * value, from + 2 * key, value * sizeof *x);
        memcpy(z + i * value, from + 2 * key + value, value * sizeof *z);
        from += 2 * key + 2 * value;
    }
    const float *ba = j->ba + t * j->w.ba;
    for (size_t i = 0; j->r->ba_by_group && i < s->n_groups; i++) {
        memcpy(j->b + t * j->w.heads + i * heads, ba, heads * sizeof *ba);
        memcpy(j->a + t * j->w.heads + i * heads, ba + heads, heads * sizeof *ba);
        ba += 2 * heads;
    }
}

static void project(const job *j)
{
    const kvs__recurrent *r = j->r;
    size_t n = j->step->n_tokens;
    kvs__mat_out in[4];
    size_t n_in = 0;
    if (r->by_group) {
        in[n_in++] = (kvs__mat_out){r->mixed, j->mixed, j->w.mixed};
    } else {
        in[n_in++] = (kvs__mat_out){r->x, j->x, j->w.conv};
        in[n_in++] = (kvs__mat_out){r->z, j->z, j->w.values};
    }
    if (r->ba_by_group) {
        in[n_in++] = (kvs__mat_out){r->ba, j->ba, j->w.ba};
    } else {
        in[n_in++] = (kvs__mat_out){r->a, j->a, j->w.heads};
    }
    if (is_delta(r) && !r->ba_by_group) {
        in[n_in++] = (kvs__mat_out){r->b, j->b, j->w.heads};
    }
    kvs__graph_multiply(j->g, in, n_in, j->g->h, n);
    if (r->by_group || r->ba_by_group) {
        kvs__graph_each(j->g, take_apart, j, n);
    }
}

/* x / sqrt(sum of squares + eps) is the norm without a weight, with eps / n, over sqrt(n). */
static void make_units(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__wkern *kern = j->g->kern;
    size_t n = j->r->spec.state_dim;
    float inv = 1.0f / sqrtf((float)n);
    float *q = j->c + t * j->w.conv;
    for (size_t i = 0; i < 2 * (size_t)j->r->spec.n_groups; i++) {
        float *x = q + i * n;
        kern->rms_norm(x, x, j->g->net->ones, n, UNIT_EPS / (float)n);
        kern->scale(x, x, i < j->r->spec.n_groups ? inv * inv : inv, n);
    }
}

static kvs_status convolve(const job *j, uint32_t layer, kvs_err *err)
{
    kvs_status st = KVS_OK;
    size_t at = 0;
    for (uint32_t i = 0; st == KVS_OK && i < j->step->n_rows; i++) {
        const kvs__graph_row *row = &j->step->rows[i];
        kvs_recurrent_conv_desc d = KVS_RECURRENT_CONV_DESC_INIT;
        d.n_tokens = row->n;
        d.x = j->x + at * j->w.conv;
        d.weight = j->r->conv;
        d.bias = j->r->conv_bias;
        d.out = j->c + at * j->w.conv;
        st = kvs_recurrent_conv(row->cache, layer, &d, err);
        at += row->n;
    }
    return st;
}

/* Where the rule's arguments lie in a token's convolved row: delta q, k, v; SSD x, B, C. */
static void place(const job *j, const float *c, kvs_recurrent_step *s)
{
    bool delta = is_delta(j->r);
    s->q = c + (delta ? 0 : j->w.values + j->w.keys);
    s->k = c + (delta ? j->w.keys : j->w.values);
    s->v = c + (delta ? 2 * j->w.keys : 0);
    s->q_stride = j->w.conv;
    s->k_stride = j->w.conv;
    s->v_stride = j->w.conv;
}

static kvs_status advance(const job *j, uint32_t layer, kvs_err *err)
{
    const kvs__recurrent *r = j->r;
    kvs_status st = KVS_OK;
    size_t at = 0;
    for (uint32_t i = 0; st == KVS_OK && i < j->step->n_rows; i++) {
        const kvs__graph_row *row = &j->step->rows[i];
        kvs_recurrent_step s = KVS_RECURRENT_STEP_INIT;
        s.n_tokens = row->n;
        s.conv_x = j->x + at * j->w.conv;
        place(j, j->c + at * j->w.conv, &s);
        s.a = j->a + at * j->w.heads;
        s.b = is_delta(r) ? j->b + at * j->w.heads : NULL;
        s.decay = r->decay;
        s.dt_bias = r->dt_bias;
        s.d = r->d;
        s.dt_min = r->dt_min;
        s.dt_max = r->dt_max;
        s.y = j->y + at * j->w.values;
        st = kvs_recurrent_advance(row->cache, layer, &s, err);
        at += row->n;
    }
    return st;
}

static void finish_token(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__recurrent *r = j->r;
    const kvs__wkern *kern = j->g->kern;
    size_t from = kvs__step_source(j->step, t) * j->w.values;
    const float *z = j->z + from;
    float *y = j->y + from;
    float *out = j->out + t * j->w.values;
    size_t part = j->w.values / r->norm_groups;
    float eps = j->g->net->rms_eps;
    if (!is_delta(r)) {
        kern->silu_mul(y, z, y, j->w.values);
    }
    for (size_t i = 0; i < r->norm_groups; i++) {
        kern->rms_norm(y + i * part, y + i * part, r->norm + (is_delta(r) ? 0 : i * part), part,
                       eps);
    }
    if (is_delta(r)) {
        kern->silu_mul(out, z, y, j->w.values);
    } else {
        memcpy(out, y, j->w.values * sizeof *out);
    }
}

static kvs_status run(kvs__graph *g, uint32_t layer, const kvs__step *step, kvs_err *err)
{
    const kvs__layer *l = &g->net->layers[layer];
    job j = {.g = g, .l = l, .r = &l->recurrent, .step = step, .w = get_widths(&l->recurrent)};
    size_t n = step->n_tokens;
    float *at = g->work;
    j.mixed = kvs__graph_take(&at, n * j.w.mixed);
    j.ba = kvs__graph_take(&at, n * j.w.ba);
    j.x = kvs__graph_take(&at, n * j.w.conv);
    j.c = kvs__graph_take(&at, n * j.w.conv);
    j.z = kvs__graph_take(&at, n * j.w.values);
    j.a = kvs__graph_take(&at, n * j.w.heads);
    j.b = kvs__graph_take(&at, n * j.w.heads);
    j.y = kvs__graph_take(&at, n * j.w.values);
    j.out = kvs__graph_take(&at, step->n_out * j.w.values);
    project(&j);
    kvs_status st = convolve(&j, layer, err);
    if (st == KVS_OK && is_delta(j.r)) {
        kvs__graph_each(g, make_units, &j, n);
    }
    if (st == KVS_OK) {
        st = advance(&j, layer, err);
    }
    if (st != KVS_OK || step->n_out == 0) {
        return st;
    }
    kvs__graph_each(g, finish_token, &j, step->n_out);
    const kvs__mat_out out[] = {{l->wo, g->h, g->net->d_model}};
    kvs__graph_multiply(g, out, KVS_COUNT(out), j.out, step->n_out);
    return KVS_OK;
}

const kvs__mixer kvs__mix_recurrent = {need, run};
