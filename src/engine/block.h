/* SPDX-License-Identifier: MIT */
/* block.h: what graph.c and the two kinds of block that make up a layer know of each other.
 *
 * A layer is a mixer (attention: tokens see each other, through the cache) and a feed-forward (each
 * token for itself). graph.c owns the residual stream, norms and joins; a block turns rows of g->h
 * into what is added to the stream, again in g->h. A kind is a table of functions in a file of its
 * own (mix_NAME.c, ffn_NAME.c) and an entry of the tables in graph.c.
 *
 * B1  A block computes each token from its own row (and cache) alone, whatever rows come with it.
 * B2  g->work holds nothing between two blocks.
 * B3  In the last layer (step->last) a mixer takes in all tokens and gives out the wanted ones
 *     only, one after another; elsewhere tokens in and out are the same. */
#ifndef KVS_ENGINE_BLOCK_H
#define KVS_ENGINE_BLOCK_H

#include "engine/graph.h"
#include "engine/matmul.h"

/* What a block takes from the graph's memory. */
typedef struct kvs__need {
    size_t floats;      /* of g->work for each token */
    size_t widest;      /* elements of the longest row that it multiplies by a matrix */
    size_t fixed;       /* floats of g->work whatever the tokens */
    size_t each_thread; /* floats of scratch for each thread */
} kvs__need;

typedef struct kvs__step {
    const kvs__graph_row *rows;
    uint32_t n_rows;
    uint32_t n_tokens; /* of all rows */
    uint32_t n_out;    /* tokens that go on after this layer's mixer */
    bool last;
} kvs__step;

/* Tokens of row r that end in this layer's mixer: the first ones. */
static inline uint32_t kvs__step_skip(const kvs__step *step, uint32_t r)
{
    return step->last ? step->rows[r].first_wanted : 0;
}

/* The token of the step that is number `out` of those that go on. */
static inline size_t kvs__step_source(const kvs__step *step, size_t out)
{
    size_t from = 0;
    for (uint32_t r = 0; r < step->n_rows; r++) {
        uint32_t skip = kvs__step_skip(step, r);
        size_t n = step->rows[r].n - skip;
        if (out < n) {
            return from + skip + out;
        }
        out -= n;
        from += step->rows[r].n;
    }
    return from;
}

struct kvs__graph {
    kvs_ctx *ctx;
    const kvs__net *net;
    const kvs__wkern *kern;
    uint32_t max_tokens;
    size_t bytes;
    size_t mat_scratch;           /* of the context's scratch, for products */
    void *mem;                    /* [bytes], of which the rest is cut */
    int64_t *pos;                 /* [max_tokens] of each token in its sequence */
    int32_t *token;               /* [max_tokens] */
    double *freq[KVS__MAX_ROPES]; /* [n_rot / 2] */
    float turn[KVS__MAX_ROPES];   /* cosine and sine are multiplied by it */
    float *cos[KVS__MAX_ROPES];   /* [max_tokens][n_rot / 2] */
    float *sin[KVS__MAX_ROPES];
    float *side;          /* [max_tokens][n_layers][d_side] inputs of layers, net.d_side */
    float *x;             /* [max_tokens][d_model] the residual stream */
    float *h;             /* [max_tokens][d_model] a normed copy, or what a block adds */
    float *work;          /* the most that a block needs, cut by kvs__graph_take */
    float *thread_floats; /* [threads][each_thread] */
    size_t each_thread;
};

typedef struct kvs__mixer {
    kvs__need (*need)(const kvs__net *net, const kvs__layer *l);
    /* h [n_tokens] -> h [n_out]; appends to the caches. */
    kvs_status (*run)(kvs__graph *g, uint32_t layer, const kvs__step *step, kvs_err *err);
} kvs__mixer;

typedef struct kvs__ffn {
    kvs__need (*need)(const kvs__net *net, const kvs__layer *l);
    /* h [n] -> h [n] */
    void (*run)(kvs__graph *g, const kvs__layer *l, size_t n);
} kvs__ffn;

extern const kvs__mixer kvs__mix_attention;
extern const kvs__mixer kvs__mix_latent;
extern const kvs__mixer kvs__mix_recurrent;
extern const kvs__ffn kvs__ffn_dense;
extern const kvs__ffn kvs__ffn_moe;

/* side.c: the inputs that layers have of their own. Before the first layer, from g->x; and after a
 * layer's feed-forward, whose result is in g->x: leaves in g->h what is to be normed and added. */
kvs__need kvs__side_need(const kvs__net *net);
void kvs__side_begin(kvs__graph *g, const kvs__step *step);
void kvs__side_run(kvs__graph *g, uint32_t layer, const kvs__step *step);

/* ffn_moe.c: from the router's scores p [n], which are used up, to the experts chosen [used] and
 * their weights [used]. */
void kvs__moe_route(const kvs__moe *e, float *p, uint32_t *choice, float *weight);

/* ---- for blocks */

/* Cuts n floats off the front of what is left of g->work; *at starts as g->work. */
static inline float *kvs__graph_take(float **at, size_t n)
{
    float *p = *at;
    *at += n;
    return p;
}

/* Products of rows [n][outs[0].w.k] with up to KVS__MATMUL_MAX matrices that share them. */
void kvs__graph_multiply(kvs__graph *g, const kvs__mat_out *outs, size_t n_outs, const float *x,
                         size_t n);

/* y [rows] (ldy apart) = x (ldx apart) times w, by one thread: from inside a run of the pool. */
void kvs__graph_multiply_here(kvs__graph *g, const kvs__wrows *w, const float *x, size_t ldx,
                              float *y, size_t ldy, size_t rows, uint32_t thread);

/* fn for each of n rows, shared out over the threads. */
typedef void (*kvs__row_fn)(const void *arg, size_t row);
void kvs__graph_each(kvs__graph *g, kvs__row_fn fn, const void *arg, size_t n);

/* gate = act(gate) * up, with the activation of the model. */
static inline void kvs__act_mul(const kvs__graph *g, float *gate, const float *up, size_t n)
{
    if (g->net->act == KVS__ACT_SILU) {
        g->kern->silu_mul(gate, gate, up, n);
    } else {
        g->kern->gelu_mul(gate, gate, up, n);
    }
}

/* Turns the first n_rot elements of each head of one token of the step by the angles of a rope. */
void kvs__graph_turn(const kvs__graph *g, uint32_t rope, size_t token, float *x, size_t n_heads,
                     size_t dim);

#endif
