/* SPDX-License-Identifier: MIT */
/* chunk_center.c: what the centres of keys add to scores (center.c): their products with the queries,
 * a batch of groups at a time. */
#include "state/chunk_priv.h"

#include <string.h>

#include "state/transpose.h"

void kvs__center_queries(const kvs__job *j, const kvs__work *w, uint32_t n)
{
    size_t dim = j->s->fmt.side[KVS__K].shape.dim;
    if (!j->s->fmt.center_bytes) {
        return;
    }
    size_t whole = (n + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
    memset(w->q + n * dim, 0, (whole - n) * dim * sizeof(float));
    for (size_t r = 0; r < whole; r += 4) {
        float *tile = w->qt + r / KVS__TILE * KVS__TILE * dim + r % KVS__TILE;
        for (size_t d = 0; d < dim; d += 4) {
            kvs__transpose_4x4(tile + d * KVS__TILE, KVS__TILE, w->q + r * dim + d, dim);
        }
    }
    for (size_t i = 0; i < KVS_CENTER_GROUP; i++) {
        w->ones[i] = 1.0f;
    }
    *w->batch = -1;
}

/* A position of the group from g0 on that a store holds, or -1. */
static int64_t held_of(const kvs__store *s, int64_t g0)
{
    int64_t p = kvs__max64(g0, s->lo);
    if (p < kvs__min64(g0 + (int64_t)KVS_CENTER_GROUP, s->len)) {
        return p;
    }
    return kvs__store_holds(s, g0) ? g0 : -1;
}

/* Centres of n groups from position g0 on, as many as lie in a row; how many that was. Of a group
 * that is not stored: 0. */
static size_t load_centers(const kvs__job *j, uint32_t head, int64_t g0, size_t n, float *dst)
{
    size_t dim = j->s->fmt.side[KVS__K].shape.dim;
    const kvs__store *s = j->s;
    int64_t p = held_of(s, g0);
    if (p < 0 && j->tail) {
        s = j->tail;
        p = held_of(s, g0);
    }
    if (p < 0) {
        memset(dst, 0, dim * sizeof(float));
        return 1;
    }
    return kvs__center_get(j->kern, s, head, p, n, dst);
}

/* Products of n rows with the centres of the batch. */
static void center_products(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n,
                            int64_t batch)
{
    size_t dim = j->s->fmt.side[KVS__K].shape.dim;
    for (size_t i = 0; i < KVS__CENTERS;) {
        int64_t g0 = (batch * (int64_t)KVS__CENTERS + (int64_t)i) * (int64_t)KVS_CENTER_GROUP;
        i += load_centers(j, head, g0, KVS__CENTERS - i, w->cen + i * dim);
    }
    j->kern->qk(w->qc, KVS__ROWS, w->cen, dim, KVS__CENTERS, w->qt, (n + KVS__TILE - 1) / KVS__TILE,
                dim);
    *w->batch = batch;
}

void kvs__add_centers(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0)
{
    if (!j->s->fmt.center_bytes) {
        return;
    }
    const uint32_t tiles = KVS_CENTER_GROUP / KVS__TILE;
    int64_t group = c0 / (int64_t)KVS_CENTER_GROUP;
    int64_t batch = group / (int64_t)KVS__CENTERS;
    if (*w->batch != batch) {
        center_products(j, w, head, n, batch);
    }
    const float *qc = w->qc + (size_t)(group % (int64_t)KVS__CENTERS) * KVS__ROWS;
    for (uint32_t t = 0; t < KVS__CHUNK_TILES; t += tiles) {
        uint16_t any = 0;
        for (uint32_t i = t; i < t + tiles; i++) {
            any |= w->any[i];
        }
        if (any) { /* a sum: fma(product, 1, score) */
            j->kern->pv(w->s + (size_t)t * KVS__TILE, KVS__CHUNK, qc, 1, n, w->ones, 0, 1,
                        KVS_CENTER_GROUP);
        }
        qc += KVS__ROWS;
    }
}
