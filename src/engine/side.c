/* SPDX-License-Identifier: MIT */
/* side.c: inputs that layers have of their own (Gemma 3n and 4): for each token and layer a short
 * vector, made of the token's row of a second embedding and of its first row of the stream; after
 * the feed-forward the stream, projected to that width, activated and multiplied by the vector, is
 * projected back. graph.c norms and adds the result. */
#include <math.h>

#include "engine/block.h"

typedef struct job {
    const kvs__graph *g;
    const kvs__step *step;
    uint32_t layer;
    size_t all;  /* n_layers * d_side */
    float *rows; /* [n_tokens][all] of the embedding */
    float *gate; /* [n_out][d_side] */
} job;

kvs__need kvs__side_need(const kvs__net *net)
{
    size_t all = (size_t)net->n_layers * net->d_side;
    return (kvs__need){all, net->d_side, 0, 0};
}

static void begin_token(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__net *net = j->g->net;
    const kvs__wkern *kern = j->g->kern;
    float *side = j->g->side + t * j->all;
    float *row = j->rows + t * j->all;
    kern->row(row, &net->side_embed, (size_t)j->g->token[t]);
    kern->scale(row, row, net->side_scale, j->all);
    kern->scale(side, side, 1.0f / sqrtf((float)net->d_model), j->all);
    for (uint32_t i = 0; i < net->n_layers; i++) {
        float *part = side + (size_t)i * net->d_side;
        kern->rms_norm(part, part, net->side_norm, net->d_side, net->rms_eps);
    }
    kern->add(side, side, row, j->all);
    kern->scale(side, side, sqrtf(0.5f), j->all);
}

void kvs__side_begin(kvs__graph *g, const kvs__step *step)
{
    job j = {.g = g, .all = (size_t)g->net->n_layers * g->net->d_side, .rows = g->work};
    const kvs__mat_out out[] = {{g->net->side_model, g->side, j.all}};
    kvs__graph_multiply(g, out, KVS_COUNT(out), g->x, step->n_tokens);
    kvs__graph_each(g, begin_token, &j, step->n_tokens);
}

static void activate(const void *arg, size_t t)
{
    const job *j = arg;
    size_t n = j->g->net->d_side;
    const float *side = j->g->side + kvs__step_source(j->step, t) * j->all + (size_t)j->layer * n;
    kvs__act_mul(j->g, j->gate + t * n, side, n);
}

void kvs__side_run(kvs__graph *g, uint32_t layer, const kvs__step *step)
{
    const kvs__layer *l = &g->net->layers[layer];
    job j = {.g = g, .step = step, .layer = layer, .gate = g->work};
    j.all = (size_t)g->net->n_layers * g->net->d_side;
    const kvs__mat_out gate[] = {{l->side_gate, j.gate, g->net->d_side}};
    const kvs__mat_out out[] = {{l->side_proj, g->h, g->net->d_model}};
    kvs__graph_multiply(g, gate, KVS_COUNT(gate), g->x, step->n_out);
    kvs__graph_each(g, activate, &j, step->n_out);
    kvs__graph_multiply(g, out, KVS_COUNT(out), j.gate, step->n_out);
}
