/* SPDX-License-Identifier: MIT */
/* mix_latent.c: multi-head latent attention (DeepSeek V2), over one row a token.
 *
 * The row is the normed latent c and a rotary key shared by all heads. By definition head h has key
 * (Wk[h] c, rotary key) and value Wv[h] c. The matrices go to the other side instead: q . Wk[h] c =
 * (Wk[h]^T q) . c, and sum p Wv[h] c = Wv[h] sum p c. So attention runs over the rows as they are
 * stored, with queries (Wk[h]^T q, rotary part) and one KV head, and nothing is expanded.
 *
 * Wk and Wv of all heads may lie in one matrix; then Wk^T q is a sum of its rows, decoded ROWS at a
 * time, by fma in their order. */
#include <string.h>

#include "engine/block.h"
#include "kern/kern.h"

#define ROWS 32u

typedef struct job {
    kvs__graph *g;
    const kvs__layer *l;
    const kvs__latent *a;
    size_t head;   /* of a query before: nope + rot */
    size_t row;    /* of the cache: rank + rot */
    size_t n;      /* tokens of the loop that runs */
    float *q_low;  /* [n_tokens][q_rank] */
    float *q;      /* [n_tokens][n_heads][head] */
    float *kv;     /* [n_tokens][row] */
    float *query;  /* [n_tokens][n_heads][row] */
    float *latent; /* [n_out][n_heads][rank] what attention gives */
    float *out;    /* [n_out][n_heads][v_dim] */
} job;

static kvs__need need(const kvs__net *net, const kvs__layer *l)
{
    const kvs__latent *a = &l->latent;
    size_t head = (size_t)a->nope + a->rot;
    size_t row = (size_t)a->rank + a->rot;
    size_t heads = l->n_heads;
    kvs__need n = {a->q_rank + row + heads * (head + row + a->rank + a->v_dim), net->d_model, 0,
                   (size_t)ROWS * a->rank};
    const size_t rows[] = {a->q_rank, a->rank, a->nope, heads * a->v_dim};
    for (size_t i = 0; i < KVS_COUNT(rows); i++) {
        n.widest = rows[i] > n.widest ? rows[i] : n.widest;
    }
    return n;
}

static void norm_q(const void *arg, size_t t)
{
    const job *j = arg;
    float *q = j->q_low + t * j->a->q_rank;
    j->g->kern->rms_norm(q, q, j->a->q_a_norm, j->a->q_rank, j->a->eps);
}

/* Norm of the latent, rotary parts of key and queries. */
static void finish_token(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__latent *a = j->a;
    float *kv = j->kv + t * j->row;
    float *q = j->q + t * j->l->n_heads * j->head;
    j->g->kern->rms_norm(kv, kv, a->kv_a_norm, a->rank, a->eps);
    kvs__graph_turn(j->g, j->l->rope, t, kv + a->rank, 1, a->rot);
    kvs__graph_turn(j->g, j->l->rope, t, q + a->nope, j->l->n_heads, j->head);
    for (size_t h = 0; h < j->l->n_heads; h++) {
        float *to = j->query + (t * j->l->n_heads + h) * j->row + a->rank;
        memcpy(to, q + h * j->head + a->nope, a->rot * sizeof *to);
    }
}

/* query[.., h, 0 .. rank) = sum over d of q[.., h, d] * row d of the head's keys in kv_b. */
static void sum_rows(const job *j, size_t h, float *decoded)
{
    const kvs__latent *a = j->a;
    const kvs__wrows w = kvs__wrows_part(&a->kv_b, h * (a->nope + a->v_dim), a->nope);
    const kvs__kern *kern = kvs__ctx_kern(j->g->ctx);
    size_t ldq = j->l->n_heads * j->head;
    size_t ldy = j->l->n_heads * j->row;
    const float *q = j->q + h * j->head;
    float *y = j->query + h * j->row;
    for (size_t t = 0; t < j->n; t++) {
        memset(y + t * ldy, 0, a->rank * sizeof *y);
    }
    for (size_t d = 0; d < a->nope; d += ROWS) {
        size_t n = a->nope - d < ROWS ? a->nope - d : ROWS;
        for (size_t i = 0; i < n; i++) {
            j->g->kern->row(decoded + i * a->rank, &w, d + i);
        }
        kern->pv(y, ldy, q + d, ldq, j->n, decoded, a->rank, n, a->rank);
    }
}

/* Queries of head h in terms of the latent. */
static void query_item(void *opaque, size_t h, uint32_t thread)
{
    const job *j = opaque;
    const kvs__latent *a = j->a;
    if (!a->k_b.data) {
        sum_rows(j, h, j->g->thread_floats + thread * j->g->each_thread);
        return;
    }
    const kvs__wrows w = kvs__wrows_part(&a->k_b, h * a->rank, a->rank);
    kvs__graph_multiply_here(j->g, &w, j->q + h * j->head, j->l->n_heads * j->head,
                             j->query + h * j->row, j->l->n_heads * j->row, j->n, thread);
}

/* What head h gives, from the latent. */
static void value_item(void *opaque, size_t h, uint32_t thread)
{
    const job *j = opaque;
    const kvs__latent *a = j->a;
    kvs__wrows w;
    if (a->v_b.data) {
        w = kvs__wrows_part(&a->v_b, h * a->v_dim, a->v_dim);
    } else {
        w = kvs__wrows_part(&a->kv_b, h * (a->nope + a->v_dim) + a->nope, a->v_dim);
    }
    kvs__graph_multiply_here(j->g, &w, j->latent + h * a->rank, j->l->n_heads * a->rank,
                             j->out + h * a->v_dim, j->l->n_heads * a->v_dim, j->n, thread);
}

static void project(job *j, const kvs__step *step)
{
    kvs__graph *g = j->g;
    const kvs__latent *a = j->a;
    size_t heads = j->l->n_heads;
    const kvs__mat_out kv = {a->kv_a, j->kv, j->row};
    const kvs__mat_out direct[] = {{a->q_b, j->q, heads * j->head}, kv};
    const kvs__mat_out low[] = {{a->q_a, j->q_low, a->q_rank}, kv};
    kvs__graph_multiply(g, a->q_rank ? low : direct, 2, g->h, step->n_tokens);
    if (a->q_rank) {
        kvs__graph_each(g, norm_q, j, step->n_tokens);
        kvs__graph_multiply(g, direct, 1, j->q_low, step->n_tokens);
    }
    kvs__graph_each(g, finish_token, j, step->n_tokens);
    j->n = step->n_tokens;
    kvs__pool_run(kvs__ctx_pool(g->ctx), heads, query_item, j);
}

static kvs_status use_cache(const job *j, uint32_t layer, const kvs__graph_row *row, uint32_t skip,
                            size_t at, size_t to, kvs_err *err)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = row->n;
    kv.k = j->kv + at * j->row;
    kvs_status st = kvs_cache_append(row->cache, layer, &kv, err);
    if (st != KVS_OK || skip == row->n) {
        return st;
    }
    kvs_attend a = KVS_ATTEND_INIT;
    a.n_queries = row->n - skip;
    a.n_q_heads = j->l->n_heads;
    a.q = j->query + (at + skip) * j->l->n_heads * j->row;
    a.out = j->latent + to * j->l->n_heads * j->a->rank;
    a.scale = j->l->attn_scale;
    return kvs_cache_attend(row->cache, layer, &a, err);
}

static kvs_status run(kvs__graph *g, uint32_t layer, const kvs__step *step, kvs_err *err)
{
    const kvs__layer *l = &g->net->layers[layer];
    const kvs__latent *a = &l->latent;
    job j = {.g = g, .l = l, .a = a};
    j.head = (size_t)a->nope + a->rot;
    j.row = (size_t)a->rank + a->rot;
    size_t heads = l->n_heads;
    float *at = g->work;
    j.q_low = kvs__graph_take(&at, step->n_tokens * a->q_rank);
    j.q = kvs__graph_take(&at, step->n_tokens * heads * j.head);
    j.kv = kvs__graph_take(&at, step->n_tokens * j.row);
    j.query = kvs__graph_take(&at, step->n_tokens * heads * j.row);
    j.latent = kvs__graph_take(&at, step->n_out * heads * a->rank);
    j.out = kvs__graph_take(&at, step->n_out * heads * a->v_dim);
    project(&j, step);
    size_t from = 0;
    size_t to = 0;
    kvs_status st = KVS_OK;
    for (uint32_t r = 0; st == KVS_OK && r < step->n_rows; r++) {
        uint32_t skip = kvs__step_skip(step, r);
        st = use_cache(&j, layer, &step->rows[r], skip, from, to, err);
        from += step->rows[r].n;
        to += step->rows[r].n - skip;
    }
    if (st != KVS_OK || step->n_out == 0) {
        return st;
    }
    j.n = step->n_out;
    kvs__pool_run(kvs__ctx_pool(g->ctx), heads, value_item, &j);
    const kvs__mat_out out[] = {{l->wo, g->h, g->net->d_model}};
    kvs__graph_multiply(g, out, KVS_COUNT(out), j.out, step->n_out);
    return KVS_OK;
}

const kvs__mixer kvs__mix_latent = {need, run};
