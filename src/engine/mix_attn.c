/* SPDX-License-Identifier: MIT */
/* mix_attn.c: the mixer of most models: multi-head attention with grouped keys and values.
 *
 * q, k, v of all rows in one product; biases, norms of heads and the rotary encoding token by
 * token; then each row appends to its cache and attends to it; then one product for the output. */
#include <string.h>

#include "engine/block.h"
#include "kern/math.h"
#include "state/many.h"

#define READS 64u /* rows whose reads go to the pool together */

typedef struct widths {
    size_t q, k, v, out; /* q: with the gates; k, v: 0 where they are borrowed */
    size_t q_head;       /* from one head's query to the next's */
} widths;

static widths get_widths(const kvs__layer *l)
{
    widths w;
    w.q_head = l->gated ? 2 * (size_t)l->k_dim : l->k_dim;
    w.q = l->n_heads * w.q_head;
    w.k = l->borrows ? 0 : (size_t)l->n_kv_heads * l->k_dim;
    w.v = l->borrows ? 0 : (size_t)l->n_kv_heads * l->v_dim;
    w.out = (size_t)l->n_heads * l->v_dim;
    return w;
}

typedef struct job {
    const kvs__graph *g;
    const kvs__layer *l;
    const kvs__step *step;
    widths w;
    float *q;   /* [n_tokens][n_heads * k_dim] */
    float *k;   /* [n_tokens][n_kv_heads * k_dim] */
    float *v;   /* [n_tokens][n_kv_heads * v_dim] */
    float *out; /* [n_out][n_heads * v_dim] */
} job;

static kvs__need need(const kvs__net *net, const kvs__layer *l)
{
    widths w = get_widths(l);
    kvs__need n = {w.q + w.k + w.v + w.out, w.out, 0, 0};
    n.widest = n.widest > net->d_model ? n.widest : net->d_model;
    return n;
}

static void add_bias(const job *j, float *y, const float *bias, size_t n)
{
    if (bias) {
        j->g->kern->add(y, y, bias, n);
    }
}

static void norm_heads(const job *j, float *y, const float *weight, size_t heads, size_t stride)
{
    size_t dim = j->l->k_dim;
    for (size_t i = 0; weight && i < heads; i++) {
        float *head = y + i * stride;
        j->g->kern->rms_norm(head, head, weight, dim, j->g->net->rms_eps);
    }
}

/* Biases of k and v, norms, rotary encoding of k. */
static void finish_kv(const job *j, size_t t)
{
    const kvs__layer *l = j->l;
    float *k = j->k + t * j->w.k;
    float *v = j->v + t * j->w.v;
    if (l->same_kv) {
        memcpy(v, k, j->w.v * sizeof *v);
    }
    add_bias(j, k, l->bk, j->w.k);
    add_bias(j, v, l->bv, j->w.v);
    if (l->wide_norm) {
        j->g->kern->rms_norm(k, k, l->k_norm, j->w.k, j->g->net->rms_eps);
    } else {
        norm_heads(j, k, l->k_norm, l->n_kv_heads, l->k_dim);
    }
    if (l->v_norm) {
        norm_heads(j, v, j->g->net->ones, l->n_kv_heads, l->v_dim);
    }
    kvs__graph_turn(j->g, l->rope, t, k, l->n_kv_heads, l->k_dim);
}

/* Biases, norms of q and k, rotary encoding. */
static void finish_token(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__layer *l = j->l;
    float *q = j->q + t * j->w.q;
    add_bias(j, q, l->bq, j->w.q);
    if (l->wide_norm) {
        j->g->kern->rms_norm(q, q, l->q_norm, j->w.q, j->g->net->rms_eps);
    } else {
        norm_heads(j, q, l->q_norm, l->n_heads, j->w.q_head);
    }
    for (size_t h = 0; l->gated && h < l->n_heads; h++) {
        kvs__graph_turn(j->g, l->rope, t, q + h * j->w.q_head, 1, l->k_dim);
    }
    if (!l->gated) {
        kvs__graph_turn(j->g, l->rope, t, q, l->n_heads, l->k_dim);
    }
    if (!l->borrows) {
        finish_kv(j, t);
    }
}

/* out *= sigmoid of the gates that came with the queries. */
static void gate_out(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__layer *l = j->l;
    const float *gate = j->q + kvs__step_source(j->step, t) * j->w.q + l->k_dim;
    float *out = j->out + t * j->w.out;
    for (size_t h = 0; h < l->n_heads; h++) {
        for (size_t i = 0; i < l->v_dim; i++) {
            out[h * l->v_dim + i] *= kvs__sigmoid(gate[h * j->w.q_head + i]);
        }
    }
}

static void finish_out(const void *arg, size_t t)
{
    const job *j = arg;
    add_bias(j, j->g->h + t * j->g->net->d_model, j->l->bo, j->g->net->d_model);
}

/* One row's tokens, the first of which is `at` in the step, into its cache. */
static kvs_status append(const job *j, uint32_t layer, const kvs__graph_row *row, size_t at,
                         kvs_err *err)
{
    if (j->l->borrows) { /* the donor, a lower layer, holds this step's tokens by now */
        return KVS_OK;
    }
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = row->n;
    kv.k = j->k + at * j->w.k;
    kv.v = j->v + at * j->w.v;
    return kvs_cache_append(row->cache, layer, &kv, err);
}

/* READS rows at a time: appends, then the queries of tokens that go on. */
static kvs_status use_caches(const job *j, uint32_t layer, const kvs__step *step, kvs_err *err)
{
    kvs__read reads[READS];
    kvs_attend like = KVS_ATTEND_INIT;
    like.n_q_heads = j->l->n_heads;
    like.q_token_stride = j->w.q;
    like.q_head_stride = j->w.q_head;
    like.scale = j->l->attn_scale;
    like.softcap = j->g->net->attn_softcap;
    size_t from = 0;
    size_t to = 0;
    uint32_t n = 0;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        const kvs__graph_row *row = &step->rows[r];
        uint32_t skip = kvs__step_skip(step, r);
        kvs_status st = append(j, layer, row, from, err);
        if (st == KVS_OK && skip < row->n) {
            reads[n++] = (kvs__read){row->cache, row->n - skip, j->q + (from + skip) * j->w.q,
                                     j->out + to * j->w.out};
        }
        if (st == KVS_OK && (n == READS || r + 1 == step->n_rows)) {
            st = kvs__attend_many(j->g->ctx, layer, &like, reads, n, err);
            n = 0;
        }
        if (st != KVS_OK) {
            return st;
        }
        from += row->n;
        to += row->n - skip;
    }
    return KVS_OK;
}

static kvs_status run(kvs__graph *g, uint32_t layer, const kvs__step *step, kvs_err *err)
{
    const kvs__layer *l = &g->net->layers[layer];
    job j = {.g = g, .l = l, .step = step, .w = get_widths(l)};
    float *at = g->work;
    j.q = kvs__graph_take(&at, step->n_tokens * j.w.q);
    j.k = kvs__graph_take(&at, step->n_tokens * j.w.k);
    j.v = kvs__graph_take(&at, step->n_tokens * j.w.v);
    j.out = kvs__graph_take(&at, step->n_out * j.w.out);
    const kvs__mat_out qkv[] = {
        {l->wq, j.q, j.w.q},
        {l->wk, j.k, j.w.k},
        {l->wv, j.v, j.w.v},
    };
    kvs__graph_multiply(g, qkv, l->borrows ? 1 : l->same_kv ? 2 : 3, g->h, step->n_tokens);
    kvs__graph_each(g, finish_token, &j, step->n_tokens);
    kvs_status st = use_caches(&j, layer, step, err);
    if (st == KVS_OK && l->gated) {
        kvs__graph_each(g, gate_out, &j, step->n_out);
    }
    if (st == KVS_OK) {
        const kvs__mat_out out[] = {{l->wo, g->h, g->net->d_model}};
        kvs__graph_multiply(g, out, KVS_COUNT(out), j.out, step->n_out);
    }
    if (st == KVS_OK && l->bo) {
        kvs__graph_each(g, finish_out, &j, step->n_out);
    }
    return st;
}

const kvs__mixer kvs__mix_attention = {need, run};
