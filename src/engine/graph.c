/* SPDX-License-Identifier: MIT */
/* graph.c: embedding, residual stream and logits of graph.h.
 *
 * A layer is: norm, mixer, residual, norm, feed-forward, residual. Mixers and feed-forwards are
 * tables of functions (block.h); norms after a block and soft caps are switched by net.h. Steps
 * over tokens and steps over matrices alternate; each is one run of the thread pool, so the end of
 * one block and the norm before the next are one step.
 *
 * The mixer of the last layer takes in all tokens and gives out the wanted ones only: a prompt's
 * other tokens end there, unseen. */
#include "engine/graph.h"

#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "engine/block.h"
#include "kern/math.h"

#define TOKENS_PER_ITEM 4u

/* In the order of the enums in net.h. */
static const kvs__mixer *const mixers[] = {&kvs__mix_attention, &kvs__mix_latent,
                                           &kvs__mix_recurrent};
static const kvs__ffn *const ffns[] = {&kvs__ffn_dense, &kvs__ffn_moe, NULL};

/* ---- memory */

static size_t greater(size_t a, size_t b)
{
    return a > b ? a : b;
}

static void widen(kvs__need *most, kvs__need n)
{
    most->floats = greater(most->floats, n.floats);
    most->fixed = greater(most->fixed, n.fixed);
    most->each_thread = greater(most->each_thread, n.each_thread);
    most->widest = greater(most->widest, n.widest);
}

/* The greatest need of all blocks, each field by itself. */
static kvs__need need_of(const kvs__net *net)
{
    kvs__need most = {0, net->d_model, 0, 0};
    widen(&most, kvs__side_need(net));
    for (uint32_t i = 0; i < net->n_layers; i++) {
        const kvs__layer *l = &net->layers[i];
        widen(&most, mixers[l->mixer]->need(net, l));
        if (l->ffn != KVS__FFN_NONE) {
            widen(&most, ffns[l->ffn]->need(net, l));
        }
    }
    return most;
}

static size_t side_of(const kvs__net *net)
{
    return (size_t)net->n_layers * net->d_side;
}

static size_t half_of(const kvs__net *net, uint32_t rope)
{
    return net->ropes[rope].n_rot / 2;
}

/* Bytes of one token. Dimensions are at most 2^20 and there are a few: no overflow. */
static size_t token_bytes(const kvs__net *net, const kvs__need *need)
{
    size_t floats = 2 * (size_t)net->d_model + side_of(net) + need->floats;
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        floats += 2 * half_of(net, r);
    }
    return floats * sizeof(float) + sizeof(int64_t) + sizeof(int32_t);
}

static size_t fixed_bytes(const kvs__net *net, const kvs__need *need, uint32_t threads)
{
    size_t bytes = (need->fixed + need->each_thread * threads) * sizeof(float);
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        bytes += half_of(net, r) * sizeof(double);
    }
    return bytes;
}

uint32_t kvs__graph_block(const kvs__net *net, size_t bytes, uint32_t most)
{
    kvs__need need = need_of(net);
    size_t n = bytes / token_bytes(net, &need);
    n = n < 16 ? 16 : n - n % 16;
    return n < most ? (uint32_t)n : most;
}

/* Eight-byte elements first, for their alignment. */
static void carve(kvs__graph *g)
{
    const kvs__net *net = g->net;
    size_t n = g->max_tokens;
    double *wide = g->mem;
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        g->freq[r] = wide;
        wide += half_of(net, r);
    }
    g->pos = (int64_t *)(void *)wide;
    float *at = (float *)(void *)(g->pos + n);
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        g->cos[r] = kvs__graph_take(&at, n * half_of(net, r));
        g->sin[r] = kvs__graph_take(&at, n * half_of(net, r));
    }
    g->side = kvs__graph_take(&at, n * side_of(net));
    g->x = kvs__graph_take(&at, n * net->d_model);
    g->h = kvs__graph_take(&at, n * net->d_model);
    g->token = (int32_t *)(void *)kvs__graph_take(&at, n);
    g->thread_floats = kvs__graph_take(&at, g->each_thread * kvs__ctx_threads(g->ctx));
    g->work = at;
}

static kvs_status take_memory(kvs__graph *g, kvs_err *err)
{
    kvs__need need = need_of(g->net);
    uint32_t threads = kvs__ctx_threads(g->ctx);
    size_t bytes = 0;
    if (!kvs__mul_size(token_bytes(g->net, &need), g->max_tokens, &bytes) ||
        !kvs__add_size(bytes, fixed_bytes(g->net, &need, threads), &bytes)) {
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    g->mat_scratch = kvs__matmul_scratch(threads, need.widest);
    kvs_status st = kvs__ctx_scratch_reserve(g->ctx, g->mat_scratch, err);
    if (st != KVS_OK) {
        return st;
    }
    g->mem = kvs__alloc(g->ctx, bytes);
    if (!g->mem) {
        return kvs__nomem(err, "engine", bytes);
    }
    g->bytes = bytes;
    g->each_thread = need.each_thread;
    return KVS_OK;
}

kvs_status kvs__graph_new(kvs_ctx *ctx, const kvs__net *net, uint32_t max_tokens, uint32_t n_ctx,
                          kvs__graph **out, kvs_err *err)
{
    kvs__graph *g = kvs__calloc(ctx, 1, sizeof *g);
    if (!g) {
        return kvs__nomem(err, "engine", sizeof *g);
    }
    g->ctx = ctx;
    g->net = net;
    g->max_tokens = max_tokens;
    kvs_status st = take_memory(g, err);
    if (st != KVS_OK) {
        kvs__graph_free(g);
        return st;
    }
    kvs_ctx_stats stats = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &stats);
    g->kern = kvs__wkern_for(stats.tiers);
    carve(g);
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        g->turn[r] = kvs__rope_freqs(&net->ropes[r], n_ctx, g->freq[r]);
    }
    *out = g;
    return KVS_OK;
}

void kvs__graph_free(kvs__graph *g)
{
    if (!g) {
        return;
    }
    kvs__free(g->ctx, g->mem, g->bytes);
    kvs__free(g->ctx, g, sizeof *g);
}

size_t kvs__graph_bytes(const kvs__graph *g)
{
    return g->bytes;
}

/* ---- for blocks */

void kvs__graph_multiply(kvs__graph *g, const kvs__mat_out *outs, size_t n_outs, const float *x,
                         size_t n)
{
    kvs__matmul_args a = {
        .kern = g->kern,
        .x = x,
        .ldx = outs[0].w.k,
        .rows = n,
        .outs = outs,
        .n_outs = n_outs,
        .scratch = kvs__ctx_scratch(g->ctx, g->mat_scratch),
        .scratch_bytes = g->mat_scratch,
    };
    kvs__matmul(kvs__ctx_pool(g->ctx), &a);
}

void kvs__graph_multiply_here(kvs__graph *g, const kvs__wrows *w, const float *x, size_t ldx,
                              float *y, size_t ldy, size_t rows, uint32_t thread)
{
    uint8_t *scratch = kvs__ctx_scratch(g->ctx, g->mat_scratch);
    size_t each = g->mat_scratch / kvs__ctx_threads(g->ctx) / 64 * 64;
    g->kern->matmul(y, ldy, x, ldx, rows, w, scratch + thread * each);
}

typedef struct each_arg {
    kvs__row_fn fn;
    const void *arg;
    size_t n;
} each_arg;

static void each_item(void *opaque, size_t item, uint32_t thread)
{
    const each_arg *a = opaque;
    (void)thread;
    size_t begin = item * TOKENS_PER_ITEM;
    size_t end = begin + TOKENS_PER_ITEM < a->n ? begin + TOKENS_PER_ITEM : a->n;
    for (size_t r = begin; r < end; r++) {
        a->fn(a->arg, r);
    }
}

void kvs__graph_each(kvs__graph *g, kvs__row_fn fn, const void *arg, size_t n)
{
    each_arg a = {fn, arg, n};
    size_t items = (n + TOKENS_PER_ITEM - 1) / TOKENS_PER_ITEM;
    if (items > 0) {
        kvs__pool_run(kvs__ctx_pool(g->ctx), items, each_item, &a);
    }
}

void kvs__graph_turn(const kvs__graph *g, uint32_t rope, size_t token, float *x, size_t n_heads,
                     size_t dim)
{
    size_t half = half_of(g->net, rope);
    const float *c = g->cos[rope] + token * half;
    const float *s = g->sin[rope] + token * half;
    if (g->net->rope_style == KVS__ROPE_PAIRS) {
        g->kern->rope_norm(x, n_heads, dim, half, c, s);
    } else {
        g->kern->rope_neox(x, n_heads, dim, half, c, s);
    }
}

/* ---- the beginning: embedding and angles */

static void embed(const kvs__graph *g, size_t t)
{
    const kvs__net *net = g->net;
    float *x = g->x + t * net->d_model;
    g->kern->row(x, &net->embed, (size_t)g->token[t]);
    if (net->embed_scale != 1.0f) {
        g->kern->scale(x, x, net->embed_scale, net->d_model);
    }
}

/* Cosines and sines of position * frequency, each rounded to f32 once. */
static void angles(const kvs__graph *g, size_t t)
{
    double pos = (double)g->pos[t];
    for (uint32_t r = 0; r < g->net->n_ropes; r++) {
        size_t half = half_of(g->net, r);
        double turn = (double)g->turn[r];
        for (size_t i = 0; i < half; i++) {
            double angle = pos * g->freq[r][i];
            g->cos[r][t * half + i] = (float)(cos(angle) * turn);
            g->sin[r][t * half + i] = (float)(sin(angle) * turn);
        }
    }
}

static void norm(const kvs__graph *g, const float *weight, size_t t)
{
    size_t d = g->net->d_model;
    g->kern->rms_norm(g->h + t * d, g->x + t * d, weight, d, g->net->rms_eps);
}

static void begin_token(const void *arg, size_t t)
{
    const kvs__graph *g = arg;
    embed(g, t);
    angles(g, t);
    norm(g, g->net->layers[0].attn_norm, t);
}

/* ---- layers */

/* Adds what a block made to the stream, then norms for the next one (NULL: there is none). */
typedef struct join {
    const kvs__graph *g;
    const float *post_norm;
    const float *out_scale; /* of the stream after that, or NULL */
    const float *next_norm;
} join;

static void join_token(const void *arg, size_t t)
{
    const join *j = arg;
    const kvs__graph *g = j->g;
    size_t d = g->net->d_model;
    float *h = g->h + t * d;
    float *x = g->x + t * d;
    if (j->post_norm) {
        g->kern->rms_norm(h, h, j->post_norm, d, g->net->rms_eps);
    }
    if (g->net->block_scale != 1.0f) {
        g->kern->scale(h, h, g->net->block_scale, d);
    }
    g->kern->add(x, x, h, d);
    if (j->out_scale) {
        g->kern->scale(x, x, *j->out_scale, d);
    }
    if (j->next_norm) {
        norm(g, j->next_norm, t);
    }
}

/* Moves the stream of the wanted tokens to where the last mixer left theirs: one after another. */
static void keep_wanted(kvs__graph *g, const kvs__step *step)
{
    size_t d = g->net->d_model;
    size_t from = 0;
    size_t to = 0;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        uint32_t skip = kvs__step_skip(step, r);
        size_t n = step->rows[r].n - skip;
        memmove(g->x + to * d, g->x + (from + skip) * d, n * d * sizeof *g->x);
        from += step->rows[r].n;
        to += n;
    }
}

static kvs_status run_layer(kvs__graph *g, uint32_t i, const kvs__step *step, kvs_err *err)
{
    const kvs__layer *l = &g->net->layers[i];
    kvs_status st = mixers[l->mixer]->run(g, i, step, err);
    if (st != KVS_OK || step->n_out == 0) {
        return st;
    }
    if (step->last) {
        keep_wanted(g, step);
    }
    bool fed = l->ffn != KVS__FFN_NONE;
    bool side = g->net->d_side > 0;
    join mixed = {g, l->post_attn_norm, NULL, l->ffn_norm};
    join last = {g, fed ? l->post_ffn_norm : l->post_attn_norm, l->out_scale,
                 step->last ? g->net->output_norm : l[1].attn_norm};
    if (fed) {
        kvs__graph_each(g, join_token, &mixed, step->n_out);
        ffns[l->ffn]->run(g, l, step->n_out);
    }
    if (side) {
        join before = {g, last.post_norm, NULL, NULL};
        kvs__graph_each(g, join_token, &before, step->n_out);
        kvs__side_run(g, i, step);
        last.post_norm = l->side_norm;
    }
    kvs__graph_each(g, join_token, &last, step->n_out);
    return KVS_OK;
}

static void take_rows(kvs__graph *g, kvs__step *step, uint32_t *n_wanted)
{
    for (uint32_t r = 0; r < step->n_rows; r++) {
        const kvs__graph_row *row = &step->rows[r];
        KVS_ASSERT(row->n > 0 && row->n <= g->max_tokens - step->n_tokens);
        KVS_ASSERT(row->first_wanted <= row->n);
        memcpy(g->token + step->n_tokens, row->tokens, row->n * sizeof *g->token);
        for (uint32_t i = 0; i < row->n; i++) {
            g->pos[step->n_tokens + i] = row->pos + (int64_t)i;
        }
        step->n_tokens += row->n;
        *n_wanted += row->n - row->first_wanted;
    }
}

kvs_status kvs__graph_run(kvs__graph *g, const kvs__graph_row *rows, uint32_t n_rows, kvs_err *err)
{
    kvs__step step = {.rows = rows, .n_rows = n_rows};
    uint32_t n_wanted = 0;
    take_rows(g, &step, &n_wanted);
    step.n_out = step.n_tokens;
    kvs__graph_each(g, begin_token, g, step.n_tokens);
    if (g->net->d_side > 0) {
        kvs__side_begin(g, &step);
    }
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; st == KVS_OK && i < g->net->n_layers; i++) {
        step.last = i + 1 == g->net->n_layers;
        step.n_out = step.last ? n_wanted : step.n_tokens;
        st = run_layer(g, i, &step, err);
    }
    return st;
}

void kvs__graph_logits(kvs__graph *g, uint32_t first, uint32_t n, float *dst)
{
    const kvs__net *net = g->net;
    const kvs__mat_out out[] = {{net->output, dst, net->n_vocab}};
    kvs__graph_multiply(g, out, KVS_COUNT(out), g->h + (size_t)first * net->d_model, n);
    if (net->logit_scale != 1.0f) {
        g->kern->scale(dst, dst, net->logit_scale, (size_t)n * net->n_vocab);
    }
    if (net->logit_softcap > 0.0f) {
        for (size_t i = 0; i < (size_t)n * net->n_vocab; i++) {
            dst[i] = kvs__softcap(dst[i], net->logit_softcap);
        }
    }
}
