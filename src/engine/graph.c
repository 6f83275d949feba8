/* SPDX-License-Identifier: MIT */
/* graph.c: embedding, layers and logits of graph.h.
 *
 * A layer is: norm, q k v, rotary encoding, append, attention, output, residual, norm, gated
 * feed-forward, residual; what an architecture has beyond that (norms on q and k, norms after a
 * block, biases, soft caps) is switched by the pointers and numbers of net.h. Steps over rows and
 * steps over matrices alternate; each is one run of the thread pool.
 *
 * The last layer appends the keys and values of all rows and then goes on with the wanted rows
 * only: a prompt's other rows end there, unseen.
 *
 * Rotary angles are position * base^(-2i/n_rot) in double, cosine and sine rounded to f32 once;
 * they depend on the position alone. */
#include "engine/graph.h"

#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "engine/matmul.h"
#include "kern/math.h"

#define ROWS_PER_ITEM 4u

struct kvs__graph {
    kvs_ctx *ctx;
    const kvs__net *net;
    const kvs__wkern *kern;
    uint32_t max_tokens;
    size_t bytes;
    size_t mat_scratch;           /* of the context's scratch, for products */
    double *freq[KVS__MAX_ROPES]; /* [n_rot / 2] */
    float *cos[KVS__MAX_ROPES];   /* [max_tokens][n_rot / 2] */
    float *sin[KVS__MAX_ROPES];
    float *x; /* [max_tokens][d_model] the residual stream */
    float *h; /* [max_tokens][d_model] a normed copy, or what a block adds */
    /* One region twice: attention's rows, then the feed-forward's. */
    float *q;    /* [max_tokens][n_heads * k_dim] */
    float *k;    /* [max_tokens][n_kv_heads * k_dim] */
    float *v;    /* [max_tokens][n_kv_heads * v_dim] */
    float *att;  /* [max_tokens][n_heads * v_dim] */
    float *gate; /* [max_tokens][d_ff] */
    float *up;
};

/* ---- memory */

typedef struct widths {
    size_t q, k, v, att;
    size_t shared; /* of the region that attention and feed-forward share */
    size_t half;   /* rotary pairs */
} widths;

static widths get_widths(const kvs__net *net)
{
    widths w;
    w.q = (size_t)net->n_heads * net->k_dim;
    w.k = (size_t)net->n_kv_heads * net->k_dim;
    w.v = (size_t)net->n_kv_heads * net->v_dim;
    w.att = (size_t)net->n_heads * net->v_dim;
    size_t attention = w.q + w.k + w.v + w.att;
    size_t ffn = 2 * (size_t)net->d_ff;
    w.shared = attention > ffn ? attention : ffn;
    w.half = net->n_rot / 2;
    return w;
}

/* Floats of one row. Dimensions are at most 2^20 and there are a few: no overflow. */
static size_t row_floats(const kvs__net *net)
{
    widths w = get_widths(net);
    return 2 * (size_t)net->d_model + w.shared + 2 * w.half * net->n_ropes;
}

/* Elements of the longest row that is multiplied. */
static size_t widest(const kvs__net *net)
{
    size_t k = net->d_model > net->d_ff ? net->d_model : net->d_ff;
    size_t att = (size_t)net->n_heads * net->v_dim;
    return k > att ? k : att;
}

uint32_t kvs__graph_block(const kvs__net *net, size_t bytes, uint32_t most)
{
    size_t n = bytes / (row_floats(net) * sizeof(float));
    n = n < 16 ? 16 : n - n % 16;
    return n < most ? (uint32_t)n : most;
}

static void carve(kvs__graph *g, float *mem)
{
    const kvs__net *net = g->net;
    widths w = get_widths(net);
    size_t n = g->max_tokens;
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        g->freq[r] = (double *)(void *)mem; /* first, for its alignment */
        mem += 2 * w.half;
    }
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        g->cos[r] = mem;
        g->sin[r] = mem + n * w.half;
        mem += 2 * n * w.half;
    }
    g->x = mem;
    g->h = g->x + n * net->d_model;
    g->q = g->h + n * net->d_model;
    g->k = g->q + n * w.q;
    g->v = g->k + n * w.k;
    g->att = g->v + n * w.v;
    g->gate = g->q;
    g->up = g->gate + n * net->d_ff;
}

static void make_freqs(kvs__graph *g)
{
    const kvs__net *net = g->net;
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        const kvs__rope *rope = &net->ropes[r];
        for (uint32_t i = 0; i < net->n_rot / 2; i++) {
            double f = pow((double)rope->base, -2.0 * (double)i / (double)net->n_rot);
            f *= (double)rope->position_scale;
            g->freq[r][i] = rope->factors ? f / (double)rope->factors[i] : f;
        }
    }
}

kvs_status kvs__graph_new(kvs_ctx *ctx, const kvs__net *net, uint32_t max_tokens, kvs__graph **out,
                          kvs_err *err)
{
    kvs__graph *g = kvs__calloc(ctx, 1, sizeof *g);
    if (!g) {
        return kvs__nomem(err, "engine", sizeof *g);
    }
    g->ctx = ctx;
    g->net = net;
    g->max_tokens = max_tokens;
    size_t floats = row_floats(net);
    size_t bytes = 0;
    if (!kvs__mul_size(floats, max_tokens, &floats) ||
        !kvs__add_size(floats, (size_t)net->n_rot * net->n_ropes, &floats) ||
        !kvs__mul_size(floats, sizeof(float), &bytes)) {
        kvs__graph_free(g);
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    g->mat_scratch = kvs__matmul_scratch(kvs__ctx_threads(ctx), widest(net));
    kvs_status st = kvs__ctx_scratch_reserve(ctx, g->mat_scratch, err);
    if (st != KVS_OK) {
        kvs__graph_free(g);
        return st;
    }
    float *mem = kvs__alloc(ctx, bytes);
    if (!mem) {
        kvs__graph_free(g);
        return kvs__nomem(err, "engine", bytes);
    }
    kvs_ctx_stats stats = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &stats);
    g->bytes = bytes;
    g->kern = kvs__wkern_for(stats.tiers);
    carve(g, mem);
    make_freqs(g);
    *out = g;
    return KVS_OK;
}

void kvs__graph_free(kvs__graph *g)
{
    if (!g) {
        return;
    }
    kvs__free(g->ctx, g->freq[0], g->bytes);
    kvs__free(g->ctx, g, sizeof *g);
}

size_t kvs__graph_bytes(const kvs__graph *g)
{
    return g->bytes;
}

/* Products with up to three matrices that share their input rows. */
static void multiply(kvs__graph *g, const kvs__mat_out *outs, size_t n_outs, const float *x,
                     size_t rows)
{
    kvs__matmul_args a = {
        .kern = g->kern,
        .x = x,
        .ldx = outs[0].w.k,
        .rows = rows,
        .outs = outs,
        .n_outs = n_outs,
        .scratch = kvs__ctx_scratch(g->ctx, g->mat_scratch),
        .scratch_bytes = g->mat_scratch,
    };
    kvs__matmul(kvs__ctx_pool(g->ctx), &a);
}

/* ---- steps over rows */

typedef void (*row_fn)(kvs__graph *g, const kvs__layer *l, size_t row);

typedef struct rows_arg {
    kvs__graph *g;
    const kvs__layer *layer;
    const kvs__graph_step *step;
    row_fn fn;
    size_t begin, end;
} rows_arg;

static void rows_item(void *opaque, size_t item, uint32_t thread)
{
    const rows_arg *a = opaque;
    (void)thread;
    size_t begin = a->begin + item * ROWS_PER_ITEM;
    size_t end = begin + ROWS_PER_ITEM < a->end ? begin + ROWS_PER_ITEM : a->end;
    for (size_t r = begin; r < end; r++) {
        a->fn(a->g, a->layer, r);
    }
}

/* fn for rows begin .. end-1. */
static void each_row(kvs__graph *g, const kvs__layer *l, row_fn fn, size_t begin, size_t end)
{
    rows_arg a = {g, l, NULL, fn, begin, end};
    size_t items = (end - begin + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
    if (items > 0) {
        kvs__pool_run(kvs__ctx_pool(g->ctx), items, rows_item, &a);
    }
}

static void norm_attn(kvs__graph *g, const kvs__layer *l, size_t row)
{
    size_t d = g->net->d_model;
    g->kern->rms_norm(g->h + row * d, g->x + row * d, l->attn_norm, d, g->net->rms_eps);
}

static void add_bias(kvs__graph *g, float *y, const float *bias, size_t n)
{
    if (bias) {
        g->kern->add(y, y, bias, n);
    }
}

static void norm_heads(kvs__graph *g, float *y, const float *weight, size_t heads, size_t dim)
{
    for (size_t i = 0; weight && i < heads; i++) {
        g->kern->rms_norm(y + i * dim, y + i * dim, weight, dim, g->net->rms_eps);
    }
}

/* Biases, norms of q and k, rotary encoding. */
static void finish_qkv(kvs__graph *g, const kvs__layer *l, size_t row)
{
    const kvs__net *net = g->net;
    widths w = get_widths(net);
    float *q = g->q + row * w.q;
    float *k = g->k + row * w.k;
    add_bias(g, q, l->bq, w.q);
    add_bias(g, k, l->bk, w.k);
    add_bias(g, g->v + row * w.v, l->bv, w.v);
    norm_heads(g, q, l->q_norm, net->n_heads, net->k_dim);
    norm_heads(g, k, l->k_norm, net->n_kv_heads, net->k_dim);
    const float *c = g->cos[l->rope] + row * w.half;
    const float *s = g->sin[l->rope] + row * w.half;
    if (net->rope_style == KVS__ROPE_PAIRS) {
        g->kern->rope_norm(q, net->n_heads, net->k_dim, w.half, c, s);
        g->kern->rope_norm(k, net->n_kv_heads, net->k_dim, w.half, c, s);
    } else {
        g->kern->rope_neox(q, net->n_heads, net->k_dim, w.half, c, s);
        g->kern->rope_neox(k, net->n_kv_heads, net->k_dim, w.half, c, s);
    }
}

static void add_block(kvs__graph *g, const float *post_norm, size_t row)
{
    size_t d = g->net->d_model;
    float *h = g->h + row * d;
    float *x = g->x + row * d;
    if (post_norm) {
        g->kern->rms_norm(h, h, post_norm, d, g->net->rms_eps);
    }
    g->kern->add(x, x, h, d);
}

/* Residual of attention, then the feed-forward's norm. */
static void join_attn(kvs__graph *g, const kvs__layer *l, size_t row)
{
    size_t d = g->net->d_model;
    add_block(g, l->post_attn_norm, row);
    g->kern->rms_norm(g->h + row * d, g->x + row * d, l->ffn_norm, d, g->net->rms_eps);
}

static void activate(kvs__graph *g, const kvs__layer *l, size_t row)
{
    (void)l;
    size_t n = g->net->d_ff;
    float *gate = g->gate + row * n;
    if (g->net->act == KVS__ACT_SILU) {
        g->kern->silu_mul(gate, gate, g->up + row * n, n);
    } else {
        g->kern->gelu_mul(gate, gate, g->up + row * n, n);
    }
}

static void join_ffn(kvs__graph *g, const kvs__layer *l, size_t row)
{
    add_block(g, l->post_ffn_norm, row);
}

/* ---- embedding and angles */

static void embed(const rows_arg *a, size_t row)
{
    kvs__graph *g = a->g;
    const kvs__net *net = g->net;
    float *x = g->x + row * net->d_model;
    g->kern->row(x, &net->embed, (size_t)a->step->tokens[row]);
    if (net->embed_scale != 1.0f) {
        g->kern->scale(x, x, net->embed_scale, net->d_model);
    }
}

static void angles(const rows_arg *a, size_t row)
{
    kvs__graph *g = a->g;
    size_t half = g->net->n_rot / 2;
    double pos = (double)(a->step->pos + (int64_t)row);
    for (uint32_t r = 0; r < g->net->n_ropes; r++) {
        for (size_t i = 0; i < half; i++) {
            double angle = pos * g->freq[r][i];
            g->cos[r][row * half + i] = (float)cos(angle);
            g->sin[r][row * half + i] = (float)sin(angle);
        }
    }
}

static void begin_item(void *opaque, size_t item, uint32_t thread)
{
    const rows_arg *a = opaque;
    (void)thread;
    for (size_t r = item * ROWS_PER_ITEM; r < (item + 1) * ROWS_PER_ITEM && r < a->end; r++) {
        embed(a, r);
        angles(a, r);
    }
}

/* ---- layers */

static kvs_status append(kvs__graph *g, kvs_cache *cache, uint32_t i, uint32_t n, kvs_err *err)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = g->k;
    kv.v = g->v;
    return kvs_cache_append(cache, i, &kv, err);
}

static kvs_status attend(kvs__graph *g, kvs_cache *cache, uint32_t i, const kvs__graph_step *step,
                         uint32_t first, kvs_err *err)
{
    widths w = get_widths(g->net);
    kvs_attend a = KVS_ATTEND_INIT;
    a.n_queries = step->n - first;
    a.n_q_heads = g->net->n_heads;
    a.q = g->q + first * w.q;
    a.out = g->att + first * w.att;
    a.scale = g->net->attn_scale;
    a.softcap = g->net->attn_softcap;
    return kvs_cache_attend(cache, i, &a, err);
}

static void feed_forward(kvs__graph *g, const kvs__layer *l, size_t begin, size_t n)
{
    size_t d = g->net->d_model;
    size_t ff = g->net->d_ff;
    const kvs__mat_out in[] = {
        {l->gate, g->gate + begin * ff, ff},
        {l->up, g->up + begin * ff, ff},
    };
    const kvs__mat_out out[] = {{l->down, g->h + begin * d, d}};
    multiply(g, in, KVS_COUNT(in), g->h + begin * d, n);
    each_row(g, l, activate, begin, begin + n);
    multiply(g, out, KVS_COUNT(out), g->gate + begin * ff, n);
    each_row(g, l, join_ffn, begin, begin + n);
}

static kvs_status run_layer(kvs__graph *g, kvs_cache *cache, uint32_t i,
                            const kvs__graph_step *step, kvs_err *err)
{
    const kvs__layer *l = &g->net->layers[i];
    widths w = get_widths(g->net);
    size_t d = g->net->d_model;
    uint32_t first = i + 1 == g->net->n_layers ? step->first_row : 0;
    const kvs__mat_out qkv[] = {
        {l->wk, g->k, w.k},
        {l->wv, g->v, w.v},
        {l->wq, g->q, w.q},
    };
    each_row(g, l, norm_attn, 0, step->n);
    multiply(g, qkv, KVS_COUNT(qkv), g->h, step->n);
    each_row(g, l, finish_qkv, 0, step->n);
    kvs_status st = append(g, cache, i, step->n, err);
    if (st != KVS_OK || first == step->n) {
        return st;
    }
    st = attend(g, cache, i, step, first, err);
    if (st != KVS_OK) {
        return st;
    }
    size_t n = step->n - first;
    const kvs__mat_out out[] = {{l->wo, g->h + first * d, d}};
    multiply(g, out, KVS_COUNT(out), g->att + first * w.att, n);
    each_row(g, l, join_attn, first, step->n);
    feed_forward(g, l, first, n);
    return KVS_OK;
}

kvs_status kvs__graph_run(kvs__graph *g, kvs_cache *cache, const kvs__graph_step *step,
                          kvs_err *err)
{
    KVS_ASSERT(step->n > 0 && step->n <= g->max_tokens && step->first_row <= step->n);
    rows_arg a = {g, NULL, step, NULL, 0, step->n};
    size_t items = (step->n + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM;
    kvs__pool_run(kvs__ctx_pool(g->ctx), items, begin_item, &a);
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < g->net->n_layers; i++) {
        st = run_layer(g, cache, i, step, err);
    }
    return st;
}

void kvs__graph_logits(kvs__graph *g, uint32_t row, uint32_t n, float *dst)
{
    const kvs__net *net = g->net;
    size_t d = net->d_model;
    for (size_t r = row; r < (size_t)row + n; r++) {
        g->kern->rms_norm(g->h + r * d, g->x + r * d, net->output_norm, d, net->rms_eps);
    }
    const kvs__mat_out out[] = {{net->output, dst, net->n_vocab}};
    multiply(g, out, KVS_COUNT(out), g->h + row * d, n);
    if (net->logit_softcap > 0.0f) {
        for (size_t i = 0; i < (size_t)n * net->n_vocab; i++) {
            dst[i] = kvs__softcap(dst[i], net->logit_softcap);
        }
    }
}
