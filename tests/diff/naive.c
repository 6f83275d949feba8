/* SPDX-License-Identifier: MIT */
/* naive.c: see naive.h. Slow and obvious on purpose. */
#include "diff/naive.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "kern/math.h"
#include "support/coded.h"

static uint32_t dim_of(const model *m, int side)
{
    return side ? m->spec.v_dim : m->spec.k_dim;
}

static size_t row_floats(const model *m, int side)
{
    return (size_t)m->spec.n_kv_heads * dim_of(m, side);
}

static float *xalloc(size_t n)
{
    float *p = calloc(n ? n : 1, sizeof *p);
    if (!p) {
        abort();
    }
    return p;
}

void model_init(model *m, kvs_ctx *ctx, const kvs_layer_spec *spec)
{
    memset(m, 0, sizeof *m);
    m->ctx = ctx;
    m->spec = *spec;
    for (int side = 0; side < 2; side++) {
        m->in[side] = xalloc(MODEL_MAX_TOKENS * row_floats(m, side));
        m->raw[side] = xalloc(MODEL_MAX_TOKENS * row_floats(m, side));
    }
    m->rest = xalloc((MODEL_MAX_TOKENS + KVS_CENTER_GROUP) * row_floats(m, 0));
    m->apart = xalloc((MODEL_MAX_TOKENS + KVS_CENTER_GROUP) * row_floats(m, 0));
    m->center = xalloc(MODEL_GROUPS * row_floats(m, 0));
    model_clear(m);
}

void model_free(model *m)
{
    for (int side = 0; side < 2; side++) {
        free(m->in[side]);
        free(m->raw[side]);
    }
    free(m->rest);
    free(m->apart);
    free(m->center);
}

void model_copy(model *dst, const model *src)
{
    model_init(dst, src->ctx, &src->spec);
    model own = *dst;
    *dst = *src;
    for (int side = 0; side < 2; side++) {
        size_t n = MODEL_MAX_TOKENS * row_floats(src, side);
        dst->in[side] = memcpy(own.in[side], src->in[side], n * sizeof(float));
        dst->raw[side] = memcpy(own.raw[side], src->raw[side], n * sizeof(float));
    }
    size_t n = row_floats(src, 0);
    dst->rest =
        memcpy(own.rest, src->rest, (MODEL_MAX_TOKENS + KVS_CENTER_GROUP) * n * sizeof(float));
    dst->apart =
        memcpy(own.apart, src->apart, (MODEL_MAX_TOKENS + KVS_CENTER_GROUP) * n * sizeof(float));
    dst->center = memcpy(own.center, src->center, MODEL_GROUPS * n * sizeof(float));
}

void model_clear(model *m)
{
    m->len = 0;
    m->high = 0;
    m->gap = 0;
    m->early = m->spec.dense_until > 0;
    m->converted = m->spec.dense_until == 0;
}

static float to_dtype(kvs_dtype t, float x)
{
    if (t == KVS_F16) {
        return kvs__f16_to_f32(kvs__f16_from_f32(x));
    }
    return t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x)) : x;
}

static void set_raw(model *m, int64_t pos)
{
    for (int side = 0; side < 2; side++) {
        size_t n = row_floats(m, side);
        for (size_t i = (size_t)pos * n; i < ((size_t)pos + 1) * n; i++) {
            bool dense = pos < (int64_t)m->spec.dense_until;
            m->raw[side][i] =
                dense ? to_dtype(m->spec.dense_dtype, m->in[side][i]) : m->in[side][i];
        }
    }
}

void model_skip(model *m, uint32_t n)
{
    for (int side = 0; side < 2; side++) {
        size_t f = row_floats(m, side);
        memset(m->in[side] + (size_t)m->len * f, 0, n * f * sizeof(float));
        memset(m->raw[side] + (size_t)m->len * f, 0, n * f * sizeof(float));
    }
    m->len += n;
    m->gap = n ? m->len : m->gap;
}

void model_rewind(model *m, uint64_t n)
{
    m->len -= (int64_t)n;
    if (m->len == 0) {
        model_clear(m);
    }
    if (m->spec.dense_until > 0 && m->len < (int64_t)m->spec.dense_until) {
        m->converted = false;
        for (int64_t p = 0; p < m->len; p++) {
            set_raw(m, p);
        }
    }
}

bool model_may_miss(const model *m, int64_t pos)
{
    if (m->spec.layout == KVS_LAYOUT_GROW || m->spec.window == 0) {
        return false;
    }
    int64_t block = m->spec.max_block ? (int64_t)m->spec.max_block : 1;
    int64_t kept = m->high - ((int64_t)m->spec.window - 1 + block);
    kept = kept > m->gap ? kept : m->gap;
    return kept > (int64_t)m->spec.sinks && pos - (int64_t)m->spec.window + 1 < kept;
}

static void naive_turn(float *x, uint32_t dim, uint32_t block)
{
    float scale = 1.0f;
    for (uint32_t b = block; b > 1; b /= 4) {
        scale *= b == 2 ? 0x1.6a09e6p-1f : 0.5f;
    }
    for (uint32_t at = 0; at < dim; at += block) {
        for (uint32_t h = 1; h < block; h *= 2) {
            for (uint32_t i = 0; i < block; i++) {
                if ((i & h) == 0) {
                    float a = x[at + i];
                    float b = x[at + i + h];
                    x[at + i] = a + b;
                    x[at + i + h] = a - b;
                }
            }
        }
    }
    for (uint32_t i = 0; i < dim; i++) {
        x[i] *= scale;
    }
}

static void naive_hadamard(float *x, uint32_t dim)
{
    naive_turn(x, dim, dim & (0u - dim));
}

static void encoded_value(const model *m, const kvs_codec *codec, uint32_t dim, const float *x,
                          float *out)
{
    uint32_t words[1024];
    uint32_t scales[64];
    uint32_t biases[64];
    kvs_status a = kvs_codec_encode(m->ctx, codec, dim, 1, x, KVS_F32, words,
                                    codec->bits ? scales : NULL, codec->bits ? biases : NULL, NULL);
    kvs_status b = kvs_codec_decode_f32(m->ctx, codec, dim, 1, words, codec->bits ? scales : NULL,
                                        codec->bits ? biases : NULL, out, NULL);
    if (a != KVS_OK || b != KVS_OK) {
        abort();
    }
}

/* The codes of a row, as numbers, and scale and bias of each of its groups. */
static void coded_value(const model *m, const kvs_codec *codec, uint32_t dim, const float *x,
                        float *codes, float *units)
{
    uint32_t words[1024];
    uint32_t scales[64];
    uint32_t biases[64];
    if (kvs_codec_encode(m->ctx, codec, dim, 1, x, KVS_F32, words, scales, biases, NULL) !=
        KVS_OK) {
        abort();
    }
    coded_unpack(codec, dim, words, scales, biases, codes, units);
}

bool model_centered(const model *m)
{
    return m->spec.kind == KVS_LAYER_ATTENTION && m->spec.k.bits &&
           (m->spec.k.rotate & KVS_CENTERED);
}

/* -- centred keys: every group's centre is the mean of the keys stored before it */

static float *center_row(const model *m, int64_t pos, uint32_t head)
{
    size_t group = (size_t)pos / KVS_CENTER_GROUP;
    return m->center + (group * m->spec.n_kv_heads + head) * m->spec.k_dim;
}

static float *rest_row(const model *m, int64_t pos, uint32_t head)
{
    return m->rest + ((size_t)pos * m->spec.n_kv_heads + head) * m->spec.k_dim;
}

/* The 64 positions before the group, or all that a query sees but itself; 0 if one is missing, and
 * after a conversion those that a query no longer saw are missing. */
static void make_center(const model *m, int64_t first, uint32_t head, int64_t from)
{
    float *c = center_row(m, first, head);
    int64_t span = m->spec.window && m->spec.window <= 64 ? (int64_t)m->spec.window - 1 : 64;
    int64_t begin = first > span ? first - span : 0;
    bool whole = begin < first;
    memset(c, 0, m->spec.k_dim * sizeof *c);
    for (int64_t p = begin; p < first; p++) {
        bool there = p < (int64_t)m->spec.sinks || (p >= from && p >= m->gap);
        whole = whole && there;
    }
    for (uint32_t i = 0; whole && i < m->spec.k_dim; i++) {
        float sum = 0.0f;
        for (int64_t p = begin; p < first; p++) {
            sum += rest_row(m, p, head)[i] + center_row(m, p, head)[i];
        }
        float mean = to_dtype(m->spec.k.dtype, sum / (float)(first - begin));
        c[i] = mean - mean == 0.0f ? mean : 0.0f;
    }
}

/* Stores one key of a head: centre known. */
static void put_key(const model *m, int64_t pos, uint32_t head, const float *row, bool given)
{
    float x[1024];
    const kvs_codec *k = &m->spec.k;
    const float *c = center_row(m, pos, head);
    memcpy(x, row, m->spec.k_dim * sizeof *x);
    naive_hadamard(x, m->spec.k_dim);
    for (uint32_t i = 0; !given && i < m->spec.k_dim; i++) {
        x[i] -= c[i];
    }
    encoded_value(m, k, m->spec.k_dim, x, rest_row(m, pos, head));
    memcpy(m->apart + (rest_row(m, pos, head) - m->rest), x, m->spec.k_dim * sizeof *x);
}

static void put_keys(const model *m, int64_t begin, int64_t end, int64_t from, const float *rows)
{
    for (int64_t p = begin; p < end && model_centered(m); p++) {
        for (uint32_t h = 0; h < m->spec.n_kv_heads; h++) {
            if (p % (int64_t)KVS_CENTER_GROUP == 0) {
                make_center(m, p, h, from);
            }
            size_t row = (size_t)(p - begin) * m->spec.n_kv_heads + h;
            put_key(m, p, h, rows + row * m->spec.k_dim, false);
        }
    }
}

/* All that main holds, from raw. */
static void put_all(const model *m, int64_t len)
{
    int64_t live = m->spec.window ? len - (int64_t)m->spec.window + 1 : 0;
    put_keys(m, 0, len, live, m->raw[0]);
}

static void append(model *m, uint32_t n, const float *k, const float *v, const float *center)
{
    int64_t dense = (int64_t)m->spec.dense_until;
    int64_t old = m->len;
    bool was = m->converted;
    if (dense > 0 && m->converted) {
        m->early = false;
    }
    const float *src[2] = {k, v};
    for (int side = 0; side < 2; side++) {
        size_t f = row_floats(m, side);
        memcpy(m->in[side] + (size_t)m->len * f, src[side], n * f * sizeof(float));
    }
    for (uint32_t i = 0; i < n; i++) {
        set_raw(m, m->len + i);
    }
    m->len += n;
    m->high = m->len > m->high ? m->len : m->high;
    m->converted = m->converted || m->len > dense;
    if (!m->converted || !model_centered(m)) {
        return;
    }
    size_t f = row_floats(m, 0);
    if (center) {
        for (int64_t p = old; p < m->len; p++) {
            int64_t g = p / (int64_t)KVS_CENTER_GROUP - old / (int64_t)KVS_CENTER_GROUP;
            memcpy(center_row(m, p, 0), center + (size_t)g * f, f * sizeof *center);
            for (uint32_t h = 0; h < m->spec.n_kv_heads; h++) {
                const float *row = k + (size_t)(p - old) * f + h * m->spec.k_dim;
                put_key(m, p, h, row, true);
            }
        }
        return;
    }
    if (!was) {
        put_all(m, dense);
        old = dense;
    }
    put_keys(m, old, m->len, 0, m->raw[0] + (size_t)old * f);
}

void model_append(model *m, uint32_t n, const float *k, const float *v)
{
    append(m, n, k, v, NULL);
}

void model_import(model *m, uint32_t n, const float *k, const float *v, const float *center)
{
    append(m, n, k, v, model_centered(m) ? center : NULL);
}

/* What attention reads for a row, in the domain it is stored in. */
static void stored_value(const model *m, const kvs_codec *codec, uint32_t dim, const float *row,
                         float *out)
{
    float x[1024];
    memcpy(x, row, dim * sizeof *x);
    if (codec->bits && codec->rotate) {
        naive_hadamard(x, dim);
    }
    encoded_value(m, codec, dim, x, out);
}

static kvs_codec codec_of(const model *m, int side)
{
    return side ? m->spec.v : m->spec.k;
}

void model_convert(model *m, const kvs_codec *k, const kvs_codec *v)
{
    for (int side = 0; m->converted && side < (m->spec.kind == KVS_LAYER_LATENT ? 1 : 2); side++) {
        kvs_codec c = codec_of(m, side);
        uint32_t dim = dim_of(m, side);
        float out[1024];
        for (size_t r = 0; r < (size_t)m->len * m->spec.n_kv_heads; r++) {
            if (side == 0 && model_centered(m)) {
                size_t pos = r / m->spec.n_kv_heads;
                uint32_t head = (uint32_t)(r % m->spec.n_kv_heads);
                for (uint32_t i = 0; i < dim; i++) {
                    out[i] = m->rest[r * dim + i] + center_row(m, (int64_t)pos, head)[i];
                }
            } else {
                stored_value(m, &c, dim, m->raw[side] + r * dim, out);
            }
            if (c.bits && c.rotate) {
                naive_hadamard(out, dim);
            }
            memcpy(m->raw[side] + r * dim, out, dim * sizeof *out);
        }
    }
    m->spec.k = *k;
    if (m->spec.kind != KVS_LAYER_LATENT) {
        m->spec.v = *v;
    }
    if (m->converted) {
        put_all(m, m->len);
    }
}

bool model_sees(const model *m, const kvs_attend *d, uint32_t query, int64_t key)
{
    int64_t w = (int64_t)m->spec.window;
    int64_t pos = d->q_pos + query;
    bool block = d->mode == KVS_READ_BLOCK;
    if (block && key >= m->len) {
        return true;
    }
    int64_t newest = block ? m->len : pos;
    bool in_window = w == 0 || key > newest - w || key < (int64_t)m->spec.sinks;
    if (key <= newest && in_window) {
        return true;
    }
    int64_t i = key - d->q_pos;
    return d->mode == KVS_READ_BIDIRECTIONAL && i >= 0 && i < (int64_t)d->n_queries &&
           d->flags[i] && d->flags[query];
}

/* One read. A head's tokens are kept once decoded:
 * as dense (of a delayed layer) and as encoded, K and V. */
typedef struct reading {
    const model *m;
    const kvs_attend *d;
    const float *block[2];
    int64_t end;
    uint32_t head;
    float *row[2][2]; /* [dense][side]: [end][dim]; codes where those are read as such */
    bool *have[2][2];
    float *units[2]; /* [end][CODED_GROUPS][2]: of codes */
} reading;

static float *units_at(const reading *r, int side, int64_t pos)
{
    return r->units[side] + (size_t)pos * 2 * CODED_GROUPS;
}

/* Does a query read the codes of a side? */
static bool coded(const model *m, bool dense, int side)
{
    const kvs_codec *c = side ? &m->spec.v : &m->spec.k;
    return !dense && c->bits > 0 && m->spec.kind != KVS_LAYER_LATENT;
}

static bool reads_dense(const reading *r, uint32_t query)
{
    const model *m = r->m;
    if (m->spec.dense_until == 0) {
        return false;
    }
    return r->d->mode == KVS_READ_BLOCK ? !m->converted
                                        : r->d->q_pos + query < (int64_t)m->spec.dense_until;
}

/* One token's K or V of the head as the query reads it. */
static const float *value_at(reading *r, bool dense, int side, int64_t pos)
{
    const model *m = r->m;
    uint32_t dim = dim_of(m, side);
    if (side == 1 && m->spec.kind == KVS_LAYER_LATENT) {
        return value_at(r, dense, 0, pos); /* its first v_dim elements */
    }
    float *out = r->row[dense][side] + (size_t)pos * dim;
    if (r->have[dense][side][pos]) {
        return out;
    }
    kvs_codec c = codec_of(m, side);
    size_t row = ((size_t)pos * m->spec.n_kv_heads + r->head) * dim;
    const float *src = dense ? m->in[side] + row : m->raw[side] + row;
    if (r->d->mode == KVS_READ_BLOCK && pos >= m->len) {
        src = r->block[side] + (((size_t)(pos - m->len)) * m->spec.n_kv_heads + r->head) * dim;
    }
    if (dense) {
        c = (kvs_codec){0, 0, 0, m->spec.dense_dtype};
    }
    if (coded(m, dense, side)) {
        float x[1024];
        bool apart = side == 0 && model_centered(m);
        memcpy(x, apart ? m->apart + (rest_row(m, pos, r->head) - m->rest) : src, dim * sizeof *x);
        if (c.rotate && !apart) {
            naive_hadamard(x, dim);
        }
        coded_value(m, &c, dim, x, out, units_at(r, side, pos));
    } else {
        stored_value(m, &c, dim, src, out);
    }
    r->have[dense][side][pos] = true;
    return out;
}

typedef struct total {
    float acc[1024];
    float m;
    float l;
} total;

static void join(total *t, const total *c, uint32_t dim)
{
    float top = t->m > c->m ? t->m : c->m;
    float a = kvs__exp(t->m - top);
    float b = kvs__exp(c->m - top);
    for (uint32_t i = 0; i < dim; i++) {
        t->acc[i] = fmaf(t->acc[i], a, c->acc[i] * b);
    }
    t->l = fmaf(t->l, a, c->l * b);
    t->m = top;
}

static float lane_sum(float *lane)
{
    for (int h = 8; h > 0; h /= 2) {
        for (int i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    return lane[0];
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        sum = fmaf(a[i], b[i], sum);
    }
    return sum;
}

/* The visible tokens of one chunk for one query of the head; false if there are none. */
static bool one_chunk(reading *r, uint32_t query, const float *q, int64_t c0, total *out)
{
    const model *m = r->m;
    bool dense = reads_dense(r, query);
    float s[256] = {0};
    bool seen[256] = {false};
    bool any = false;
    out->m = -FLT_MAX;
    for (int64_t p = c0; p < c0 + 256 && p < r->end; p++) {
        if (!model_sees(m, r->d, query, p)) {
            continue;
        }
        any = true;
        seen[p - c0] = true;
        const float *row = value_at(r, dense, 0, p);
        float sum = coded(m, dense, 0)
                        ? coded_score(m->spec.k_dim, m->spec.k.group, q, row, units_at(r, 0, p))
                        : dot(q, row, m->spec.k_dim);
        if (!dense && model_centered(m)) {
            sum += dot(q, center_row(m, p, r->head), m->spec.k_dim);
        }
        sum = r->d->softcap > 0.0f ? kvs__softcap(sum, r->d->softcap) : sum;
        s[p - c0] = sum;
        out->m = sum > out->m ? sum : out->m;
    }
    float lane[16] = {0};
    memset(out->acc, 0, sizeof out->acc);
    for (int i = 0; i < 256; i++) {
        if (!seen[i]) {
            continue;
        }
        s[i] = kvs__exp(s[i] - out->m);
        lane[i % 16] += s[i];
        const float *row = coded(m, dense, 1) ? NULL : value_at(r, dense, 1, c0 + i);
        for (uint32_t e = 0; row && e < m->spec.v_dim; e++) {
            out->acc[e] = fmaf(s[i], row[e], out->acc[e]);
        }
    }
    if (coded(m, dense, 1)) {
        const float *codes[256] = {NULL};
        const float *units[256] = {NULL};
        for (int i = 0; i < 256; i++) {
            codes[i] = seen[i] ? value_at(r, false, 1, c0 + i) : NULL;
            units[i] = seen[i] ? units_at(r, 1, c0 + i) : NULL;
        }
        coded_values(m->spec.v_dim, m->spec.v.group, s, codes, units, out->acc);
    }
    out->l = lane_sum(lane);
    return any;
}

static void attend_row(reading *r, uint32_t query, uint32_t q_head, const float *q_in, float *out)
{
    const model *m = r->m;
    const kvs_attend *d = r->d;
    bool dense = reads_dense(r, query);
    float q[1024];
    memcpy(q, q_in, m->spec.k_dim * sizeof *q);
    if (!dense && m->spec.k.bits && m->spec.k.rotate) {
        naive_hadamard(q, m->spec.k_dim);
    }
    for (uint32_t i = 0; i < m->spec.k_dim; i++) {
        q[i] *= d->scale;
    }
    total t = {.m = -FLT_MAX, .l = 0.0f};
    memset(t.acc, 0, sizeof t.acc);
    for (int64_t c0 = 0; c0 < r->end; c0 += 256) {
        total c;
        if (one_chunk(r, query, q, c0, &c)) {
            join(&t, &c, m->spec.v_dim);
        }
    }
    if (d->sink_logits && t.l != 0.0f) {
        float top = t.m > d->sink_logits[q_head] ? t.m : d->sink_logits[q_head];
        float a = kvs__exp(t.m - top);
        t.l = fmaf(t.l, a, kvs__exp(d->sink_logits[q_head] - top));
        for (uint32_t i = 0; i < m->spec.v_dim; i++) {
            t.acc[i] *= a;
        }
    }
    for (uint32_t i = 0; i < m->spec.v_dim; i++) {
        out[i] = t.l == 0.0f ? 0.0f : t.acc[i] / t.l;
    }
    bool latent = m->spec.kind == KVS_LAYER_LATENT;
    const kvs_codec *v = latent ? &m->spec.k : &m->spec.v;
    uint32_t whole = latent ? m->spec.k_dim : m->spec.v_dim;
    if (!dense && v->bits && v->rotate) {
        naive_turn(out, m->spec.v_dim, whole & (0u - whole));
    }
    for (uint32_t i = 0; i < m->spec.v_dim; i++) {
        out[i] = out[i] != out[i] ? kvs__f32_bits(0x7fc00000u) : out[i];
    }
}

static void attend_head(reading *r, const float *q, float *out)
{
    uint32_t rep = r->d->n_q_heads / r->m->spec.n_kv_heads;
    for (uint32_t i = 0; i < r->d->n_queries; i++) {
        for (uint32_t h = r->head * rep; h < (r->head + 1) * rep; h++) {
            size_t row = (size_t)i * r->d->n_q_heads + h;
            attend_row(r, i, h, q + row * r->m->spec.k_dim, out + row * r->m->spec.v_dim);
        }
    }
}

void model_attend(const model *m, const kvs_attend *d, const float *q, const float *block_k,
                  const float *block_v, float *out)
{
    reading r = {.m = m, .d = d, .block = {block_k, block_v}};
    if (d->mode == KVS_READ_BLOCK && m->converted) {
        put_keys(m, m->len, m->len + (int64_t)d->n_queries, 0, block_k);
    }
    r.end = m->len + (d->mode == KVS_READ_BLOCK ? (int64_t)d->n_queries : 0);
    for (int i = 0; i < 4; i++) {
        r.row[i / 2][i % 2] = xalloc((size_t)r.end * dim_of(m, i % 2));
        r.have[i / 2][i % 2] = (bool *)xalloc((size_t)r.end);
    }
    for (int side = 0; side < 2; side++) {
        r.units[side] = xalloc((size_t)r.end * 2 * CODED_GROUPS);
    }
    for (r.head = 0; r.head < m->spec.n_kv_heads; r.head++) {
        for (int i = 0; i < 4; i++) {
            memset(r.have[i / 2][i % 2], 0, (size_t)r.end * sizeof(bool));
        }
        attend_head(&r, q, out);
    }
    for (int i = 0; i < 4; i++) {
        free(r.row[i / 2][i % 2]);
        free(r.have[i / 2][i % 2]);
    }
    free(r.units[0]);
    free(r.units[1]);
}
