/* SPDX-License-Identifier: MIT */
/* rec_naive.c: see rec_naive.h. */
#include "diff/rec_naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kern/math.h"
#include "support/cache_rig.h"

rec_sizes rec_sizes_of(const kvs_recurrent_spec *s)
{
    rec_sizes z = {(size_t)s->n_groups * s->state_dim, (size_t)s->n_heads * s->head_dim, 0, 0};
    z.conv = 2 * z.key + z.value;
    z.state = z.value * s->state_dim;
    return z;
}

static float *series(uint64_t seed, size_t n, float scale, float shift)
{
    float *x = rig_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = rig_value(seed, i) * scale + shift;
    }
    return x;
}

rec_weights rec_weights_new(const kvs_recurrent_spec *s, uint64_t seed)
{
    rec_weights w;
    w.conv = series(seed + 1, (size_t)s->conv_taps * s->conv_dim, 0.3f, 0);
    w.bias = series(seed + 2, s->conv_dim, 0.1f, 0);
    w.decay = series(seed + 3, s->n_heads, 0.5f, 0);
    w.dt_bias = series(seed + 4, s->n_heads, 0.5f, 0);
    w.d = series(seed + 5, s->n_heads, 0.5f, 1.0f);
    w.dt_min = 0.05f;
    w.dt_max = 1.5f;
    kvs_recurrent_decay(w.decay, w.decay, s->n_heads);
    return w;
}

void rec_weights_free(rec_weights *w)
{
    free(w->conv);
    free(w->bias);
    free(w->decay);
    free(w->dt_bias);
    free(w->d);
}

rec_token rec_token_new(const kvs_recurrent_spec *s, uint64_t id)
{
    size_t conv = rec_sizes_of(s).conv;
    rec_token t;
    t.x = series(1000 + id, conv + 2 * (size_t)s->n_heads, 1.0f, 0);
    t.a = t.x + conv;
    t.b = t.a + s->n_heads;
    return t;
}

void rec_glue(const kvs_recurrent_spec *s, float *conv_out)
{
    for (size_t i = 0; i < 2 * (size_t)s->n_groups; i++) {
        float *row = conv_out + i * s->state_dim;
        double sum = 1e-6;
        for (size_t j = 0; j < s->state_dim; j++) {
            sum += (double)row[j] * (double)row[j];
        }
        float scale = (float)(1.0 / sqrt(sum));
        for (size_t j = 0; j < s->state_dim; j++) {
            row[j] *= scale;
        }
    }
}

static size_t tail_size(const kvs_recurrent_spec *s)
{
    return s->conv_dim ? (size_t)(s->conv_taps - 1) * s->conv_dim : 0;
}

rec_model *rec_model_new(const kvs_recurrent_spec *s, uint64_t seed)
{
    rec_model *m = rig_alloc(sizeof *m);
    size_t n = NAIVE_MAX_TOKENS + 1;
    m->spec = *s;
    m->w = rec_weights_new(s, seed);
    m->state = rig_alloc(n * rec_sizes_of(s).state * sizeof *m->state);
    m->exact = rig_alloc(n * rec_sizes_of(s).state * sizeof *m->exact);
    m->tail = rig_alloc(n * tail_size(s) * sizeof *m->tail);
    return m;
}

void rec_model_free(rec_model *m)
{
    rec_weights_free(&m->w);
    free(m->state);
    free(m->exact);
    free(m->tail);
    free(m);
}

void rec_model_copy(rec_model *dst, const rec_model *src)
{
    size_t n = (size_t)src->len + 1;
    size_t state = rec_sizes_of(&src->spec).state;
    dst->len = src->len;
    dst->oldest = src->oldest;
    dst->guard = src->guard;
    memcpy(dst->state, src->state, n * state * sizeof *dst->state);
    memcpy(dst->exact, src->exact, n * state * sizeof *dst->exact);
    memcpy(dst->tail, src->tail, n * tail_size(&src->spec) * sizeof *dst->tail);
}

const float *rec_model_state(const rec_model *m, int64_t at)
{
    return m->state + (size_t)at * rec_sizes_of(&m->spec).state;
}

const float *rec_model_tail(const rec_model *m, int64_t at)
{
    return m->tail + (size_t)at * tail_size(&m->spec);
}

static float round_to(kvs_dtype t, float x)
{
    if (t == KVS_F16) {
        return kvs__f16_to_f32(kvs__f16_from_f32(x));
    }
    return t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x)) : x;
}

static void convolve(rec_model *m, const float *x, float *out)
{
    const kvs_recurrent_spec *s = &m->spec;
    const float *old = rec_model_tail(m, m->len);
    float *tail = m->tail + (size_t)(m->len + 1) * tail_size(s);
    for (size_t c = 0; c < s->conv_dim; c++) {
        float acc = m->w.bias[c];
        size_t newest = s->conv_taps - 1u;
        for (size_t j = 0; j <= newest; j++) {
            float in = j < newest ? old[j * s->conv_dim + c] : round_to(s->conv_dtype, x[c]);
            acc = fmaf(m->w.conv[j * s->conv_dim + c], in, acc);
            if (j > 0) {
                tail[(j - 1) * s->conv_dim + c] = in;
            }
        }
        out[c] = acc / (1.0f + kvs__exp(-acc));
    }
}

/* Sum of four interleaved chains. */
static float four(const float *a, const float *b, size_t n)
{
    float part[4];
    for (size_t l = 0; l < 4; l++) {
        part[l] = 0.0f;
        for (size_t j = l; j < n; j += 4) {
            part[l] = fmaf(a[j], b[j], part[l]);
        }
    }
    return (part[0] + part[2]) + (part[1] + part[3]);
}

static float row_delta(float *s, const float *k, const float *q, float v, float g, float beta,
                       size_t n)
{
    for (size_t j = 0; j < n; j++) {
        s[j] *= g;
    }
    float delta = (v - four(s, k, n)) * beta;
    for (size_t j = 0; j < n; j++) {
        s[j] = fmaf(k[j], delta, s[j]);
    }
    return four(s, q, n);
}

static float row_ssd(float *s, const float *b, const float *c, float x, float g, float dt, float d,
                     size_t n)
{
    float dtx = dt * x;
    for (size_t j = 0; j < n; j++) {
        s[j] *= g;
        s[j] = fmaf(b[j], dtx, s[j]);
    }
    return fmaf(d, x, four(s, c, n));
}

static double row_exact(double *s, const float *k, const float *q, double v, double g, double beta,
                        double d, size_t n, int ssd)
{
    double m = 0;
    double y = 0;
    for (size_t j = 0; j < n; j++) {
        s[j] *= g;
        m += s[j] * (double)k[j];
    }
    double delta = ssd ? beta * v : (v - m) * beta;
    for (size_t j = 0; j < n; j++) {
        s[j] += (double)k[j] * delta;
        y += s[j] * (double)q[j];
    }
    return ssd ? y + d * v : y;
}

typedef struct head_gates {
    float g, b;
    double g64, b64;
} head_gates;

static head_gates gates_of(const rec_model *m, const rec_token *t, size_t h)
{
    const rec_weights *w = &m->w;
    head_gates e;
    float u = t->a[h] + w->dt_bias[h];
    float dt = kvs__softplus(u);
    double dt64 = log1p(exp((double)u));
    if (m->spec.rule == KVS_RECURRENT_SSD) {
        dt = fminf(fmaxf(dt, w->dt_min), w->dt_max);
        dt64 = fmin(fmax(dt64, (double)w->dt_min), (double)w->dt_max);
        e.b = dt;
        e.b64 = dt64;
    } else {
        e.b = kvs__sigmoid(t->b[h]);
        e.b64 = 1 / (1 + exp(-(double)t->b[h]));
    }
    e.g = kvs__exp(w->decay[h] * dt);
    e.g64 = exp((double)w->decay[h] * dt64);
    return e;
}

void rec_model_token(rec_model *m, uint64_t id, float *conv, float *y, double *y64)
{
    const kvs_recurrent_spec *s = &m->spec;
    rec_sizes z = rec_sizes_of(s);
    rec_token t = rec_token_new(s, id);
    size_t n = s->state_dim;
    float *state = m->state + (size_t)(m->len + 1) * z.state;
    double *exact = m->exact + (size_t)(m->len + 1) * z.state;
    memcpy(state, state - z.state, z.state * sizeof *state);
    memcpy(exact, exact - z.state, z.state * sizeof *exact);
    float *in = rig_alloc(z.conv * sizeof *in);
    if (s->conv_dim) {
        convolve(m, t.x, conv);
        memcpy(in, conv, z.conv * sizeof *in);
    } else {
        memcpy(in, t.x, z.conv * sizeof *in);
    }
    rec_glue(s, in);
    for (size_t h = 0; h < s->n_heads; h++) {
        const float *q = in + h / (s->n_heads / s->n_groups) * n;
        const float *k = q + z.key;
        head_gates e = gates_of(m, &t, h);
        for (size_t r = 0; r < s->head_dim; r++) {
            size_t row = h * s->head_dim + r;
            float v = in[2 * z.key + row];
            int ssd = s->rule == KVS_RECURRENT_SSD;
            y[row] = ssd ? row_ssd(state + row * n, k, q, v, e.g, e.b, m->w.d[h], n)
                         : row_delta(state + row * n, k, q, v, e.g, e.b, n);
            double exact_y = row_exact(exact + row * n, k, q, (double)v, e.g64, e.b64,
                                       (double)m->w.d[h], n, ssd);
            if (y64) {
                y64[row] = exact_y;
            }
        }
    }
    m->len++;
    if (m->guard < m->len - (int64_t)s->undo_tokens) {
        m->guard = m->len - (int64_t)s->undo_tokens;
    }
    free(in);
    free(t.x);
}
