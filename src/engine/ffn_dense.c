/* SPDX-License-Identifier: MIT */
/* ffn_dense.c: the gated feed-forward: down(act(gate(x)) * up(x)). */
#include "engine/block.h"

typedef struct job {
    const kvs__graph *g;
    size_t width;
    float *gate; /* [n][d_ff] */
    float *up;
} job;

static kvs__need need(const kvs__net *net, const kvs__layer *l)
{
    size_t widest = net->d_model > l->d_ff ? net->d_model : l->d_ff;
    return (kvs__need){2 * (size_t)l->d_ff, widest, 0, 0};
}

static void activate(const void *arg, size_t row)
{
    const job *j = arg;
    kvs__act_mul(j->g, j->gate + row * j->width, j->up + row * j->width, j->width);
}

static void run(kvs__graph *g, const kvs__layer *l, size_t n)
{
    job j = {.g = g, .width = l->d_ff};
    float *at = g->work;
    j.gate = kvs__graph_take(&at, n * j.width);
    j.up = kvs__graph_take(&at, n * j.width);
    const kvs__mat_out in[] = {
        {l->gate, j.gate, j.width},
        {l->up, j.up, j.width},
    };
    const kvs__mat_out out[] = {{l->down, g->h, g->net->d_model}};
    kvs__graph_multiply(g, in, KVS_COUNT(in), g->h, n);
    kvs__graph_each(g, activate, &j, n);
    kvs__graph_multiply(g, out, KVS_COUNT(out), j.gate, n);
}

const kvs__ffn kvs__ffn_dense = {need, run};
