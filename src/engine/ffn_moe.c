/* SPDX-License-Identifier: MIT */
/* ffn_moe.c: a mixture of experts: each token goes through the `used` gated feed-forwards that the
 * router rates highest for it, and through a shared one where the model has it.
 *
 * Routing of a token: p = softmax(router x); of the groups of experts the best stay (by their
 * greatest p); of theirs the `used` greatest p, of equal ones the lower index; their p are divided by
 * their sum where the model says so, and scaled. The result is the weighted sum in the order of
 * choice, then the shared expert's. All of it depends on the token alone.
 *
 * A choice is a slot. Slots are sorted by expert, so that each expert's matrices are read once for
 * all its tokens; an item of the pool is a run of rows of one matrix for one expert's slots. */
#include <string.h>

#include "engine/block.h"
#include "kern/math.h"

#define FEW_SLOTS  4u
#define ITEM_BYTES ((size_t)32 << 10) /* of a matrix with few slots: some us of work */

typedef struct job {
    kvs__graph *g;
    const kvs__moe *e;
    size_t d;
    size_t n;         /* tokens */
    float *p;         /* [n][experts] */
    float *weight;    /* [n][used] */
    float *x;         /* [slots][d] inputs in slot order; unused for one token */
    float *gate;      /* [slots][d_ff] */
    float *up;        /* [slots][d_ff] */
    float *y;         /* [slots][d] */
    float *shared;    /* [n][2][d_shared] */
    float *shared_y;  /* [n][d] */
    float *shared_g;  /* [n] scores of the shared expert's gate */
    uint32_t *choice; /* [n][used] expert */
    uint32_t *slot;   /* [n][used] */
    uint32_t *source; /* [slots] token */
    uint32_t *first;  /* [experts + 1] first slot of each */
    uint32_t *active; /* [experts] those that have slots */
    uint32_t n_active;
    bool down;     /* which product runs: gate and up, or down */
    size_t block;  /* rows of a matrix of an item */
    size_t blocks; /* items of a matrix */
} job;

static kvs__need need(const kvs__net *net, const kvs__layer *l)
{
    const kvs__moe *e = &l->moe;
    size_t d = net->d_model;
    size_t slot = 2 * d + 2 * (size_t)e->d_ff + 3 + 1;
    size_t token = e->n + e->used * slot + 2 * (size_t)e->d_shared + d + 1;
    size_t widest = d > e->d_ff ? d : e->d_ff;
    widest = widest > e->d_shared ? widest : e->d_shared;
    return (kvs__need){token, widest, 2 * (size_t)e->n + 1, 0};
}

/* ---- routing */

static void softmax(float *p, size_t n)
{
    float top = p[0];
    for (size_t i = 1; i < n; i++) {
        top = p[i] > top ? p[i] : top;
    }
    float sum = 0.0f;
    for (size_t i = 0; i < n; i++) {
        p[i] = kvs__exp(p[i] - top);
        sum += p[i];
    }
    for (size_t i = 0; i < n; i++) {
        p[i] /= sum;
    }
}

/* Index of the greatest of p[0 .. n) among those above -1, the lowest of equal ones. */
static uint32_t greatest(const float *p, uint32_t n)
{
    uint32_t best = 0;
    float top = -1.0f;
    for (uint32_t i = 0; i < n; i++) {
        if (p[i] > top) {
            best = i;
            top = p[i];
        }
    }
    return best;
}

/* Experts outside the best groups are given probability 0. */
static void keep_groups(const kvs__moe *e, float *p)
{
    uint32_t size = e->n / e->n_groups;
    for (uint32_t drop = e->n_groups - e->groups_used; drop > 0; drop--) {
        uint32_t worst = 0;
        float least = 2.0f;
        for (uint32_t g = 0; g < e->n_groups; g++) {
            float top = p[(size_t)g * size + greatest(p + (size_t)g * size, size)];
            if (top >= 0.0f && top <= least) { /* of equal groups the later one goes */
                worst = g;
                least = top;
            }
        }
        for (uint32_t i = 0; i < size; i++) {
            p[(size_t)worst * size + i] = -1.0f;
        }
    }
    for (uint32_t i = 0; i < e->n; i++) {
        p[i] = p[i] < 0.0f ? 0.0f : p[i];
    }
}

void kvs__moe_route(const kvs__moe *e, float *p, uint32_t *choice, float *weight)
{
    softmax(p, e->n);
    if (p[0] !=
        p[0]) { /* a NaN among the scores makes them all so, and goes through to the result */
        for (uint32_t i = 0; i < e->used; i++) {
            choice[i] = i;
            weight[i] = p[0];
        }
        return;
    }
    keep_groups(e, p);
    float sum = 0.0f;
    for (uint32_t i = 0; i < e->used; i++) {
        uint32_t best = greatest(p, e->n);
        choice[i] = best;
        weight[i] = p[best];
        sum += p[best];
        p[best] = -1.0f;
    }
    for (uint32_t i = 0; i < e->used; i++) {
        weight[i] = (e->normalise ? weight[i] / sum : weight[i]) * e->scale;
    }
}

static void route(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__moe *e = j->e;
    kvs__moe_route(e, j->p + t * e->n, j->choice + t * e->used, j->weight + t * e->used);
}

/* Sorts choices by expert, tokens ascending in each. */
static void make_slots(job *j)
{
    const kvs__moe *e = j->e;
    size_t n = j->n * e->used;
    memset(j->first, 0, (e->n + 1) * sizeof *j->first);
    for (size_t i = 0; i < n; i++) {
        j->first[j->choice[i] + 1]++;
    }
    j->n_active = 0;
    for (uint32_t x = 0; x < e->n; x++) {
        if (j->first[x + 1] > 0) {
            j->active[j->n_active++] = x;
        }
        j->first[x + 1] += j->first[x];
    }
    for (size_t i = 0; i < n; i++) { /* first[x] walks to the end of x ... */
        uint32_t slot = j->first[j->choice[i]]++;
        j->slot[i] = slot;
        j->source[slot] = (uint32_t)(i / e->used);
    }
    for (uint32_t x = e->n; x > 0; x--) { /* ... and back */
        j->first[x] = j->first[x - 1];
    }
    j->first[0] = 0;
}

/* ---- experts */

static void gather(const void *arg, size_t slot)
{
    const job *j = arg;
    memcpy(j->x + slot * j->d, j->g->h + j->source[slot] * j->d, j->d * sizeof *j->x);
}

static void expert_item(void *opaque, size_t item, uint32_t thread)
{
    const job *j = opaque;
    size_t per = j->down ? 1 : 2;
    uint32_t x = j->active[item / (per * j->blocks)];
    size_t which = j->down ? 2 : item / j->blocks % 2;
    size_t row = item % j->blocks * j->block;
    const kvs__wrows *all = &j->e->expert[(size_t)x * 3 + which];
    kvs__wrows w = kvs__wrows_part(all, row, all->n - row < j->block ? all->n - row : j->block);
    size_t slot = j->first[x];
    size_t n = j->first[x + 1] - slot;
    size_t ff = j->e->d_ff;
    if (j->down) {
        kvs__graph_multiply_here(j->g, &w, j->gate + slot * ff, ff, j->y + slot * j->d + row, j->d,
                                 n, thread);
        return;
    }
    const float *in = j->n == 1 ? j->g->h : j->x + slot * j->d;
    float *out = (which == 0 ? j->gate : j->up) + slot * ff + row;
    kvs__graph_multiply_here(j->g, &w, in, j->d, out, ff, n, thread);
}

/* Gate and up, or down, of all slots. */
static void run_experts(job *j, bool down)
{
    const kvs__wrows *w = &j->e->expert[(size_t)j->active[0] * 3 + (down ? 2 : 0)];
    size_t slots = j->n * j->e->used;
    size_t rows =
        slots <= FEW_SLOTS * j->n_active ? ITEM_BYTES / w->row_bytes : kvs__wmat_panel_rows(w->k);
    rows = rows / KVS__WTILE_ROWS * KVS__WTILE_ROWS;
    j->down = down;
    j->block = rows ? rows : KVS__WTILE_ROWS;
    j->blocks = (w->n + j->block - 1) / j->block;
    size_t items = j->n_active * (down ? 1 : 2) * j->blocks;
    kvs__pool_run(kvs__ctx_pool(j->g->ctx), items, expert_item, j);
}

static void activate(const void *arg, size_t slot)
{
    const job *j = arg;
    size_t ff = j->e->d_ff;
    kvs__act_mul(j->g, j->gate + slot * ff, j->up + slot * ff, ff);
}

static void activate_shared(const void *arg, size_t t)
{
    const job *j = arg;
    size_t ff = j->e->d_shared;
    kvs__act_mul(j->g, j->shared + t * ff, j->shared + (j->n + t) * ff, ff);
}

static void combine(const void *arg, size_t t)
{
    const job *j = arg;
    const kvs__wkern *kern = j->g->kern;
    float *h = j->g->h + t * j->d;
    memset(h, 0, j->d * sizeof *h);
    for (uint32_t i = 0; i < j->e->used; i++) {
        float *y = j->y + j->slot[t * j->e->used + i] * j->d;
        kern->scale(y, y, j->weight[t * j->e->used + i], j->d);
        kern->add(h, h, y, j->d);
    }
    if (j->e->d_shared > 0) {
        float *y = j->shared_y + t * j->d;
        if (j->e->gated) {
            kern->scale(y, y, kvs__sigmoid(j->shared_g[t]), j->d);
        }
        kern->add(h, h, y, j->d);
    }
}

static void run_shared(job *j)
{
    kvs__graph *g = j->g;
    const kvs__moe *e = j->e;
    const kvs__mat_out in[] = {
        {e->shared_gate, j->shared, e->d_shared},
        {e->shared_up, j->shared + j->n * e->d_shared, e->d_shared},
        {e->shared_router, j->shared_g, 1},
    };
    const kvs__mat_out out[] = {{e->shared_down, j->shared_y, j->d}};
    kvs__graph_multiply(g, in, e->gated ? 3 : 2, g->h, j->n);
    kvs__graph_each(g, activate_shared, j, j->n);
    kvs__graph_multiply(g, out, KVS_COUNT(out), j->shared, j->n);
}

static uint32_t *take_u32(float **at, size_t n)
{
    return (uint32_t *)(void *)kvs__graph_take(at, n);
}

static void run(kvs__graph *g, const kvs__layer *l, size_t n)
{
    const kvs__moe *e = &l->moe;
    job j = {.g = g, .e = e, .d = g->net->d_model, .n = n};
    size_t slots = n * e->used;
    float *at = g->work;
    j.p = kvs__graph_take(&at, n * e->n);
    j.weight = kvs__graph_take(&at, slots);
    j.x = kvs__graph_take(&at, slots * j.d);
    j.gate = kvs__graph_take(&at, slots * e->d_ff);
    j.up = kvs__graph_take(&at, slots * e->d_ff);
    j.y = kvs__graph_take(&at, slots * j.d);
    j.shared = kvs__graph_take(&at, 2 * n * e->d_shared);
    j.shared_y = kvs__graph_take(&at, n * j.d);
    j.shared_g = kvs__graph_take(&at, n);
    j.choice = take_u32(&at, slots);
    j.slot = take_u32(&at, slots);
    j.source = take_u32(&at, slots);
    j.first = take_u32(&at, (size_t)e->n + 1);
    j.active = take_u32(&at, e->n);
    const kvs__mat_out router[] = {{e->router, j.p, e->n}};
    kvs__graph_multiply(g, router, KVS_COUNT(router), g->h, n);
    kvs__graph_each(g, route, &j, n);
    make_slots(&j);
    if (n > 1) {
        kvs__graph_each(g, gather, &j, slots);
    }
    run_experts(&j, false);
    kvs__graph_each(g, activate, &j, slots);
    run_experts(&j, true);
    if (e->d_shared > 0) {
        run_shared(&j);
    }
    kvs__graph_each(g, combine, &j, n);
}

const kvs__ffn kvs__ffn_moe = {need, run};
