/* SPDX-License-Identifier: MIT */
/* chunk_values.c: values of a chunk: dense ones token by token as rows see them, codes all at once. */
#include "state/chunk_priv.h"

#include <string.h>

#include "state/transpose.h"

#define DIRECT_BYTES 16384u /* of V in one call that decodes in registers */
#define FEW_ROWS     8u     /* read codes as they come; more rows keep memory waiting */

/* rows[i * dim + d] = tile[d * 16 + i] for all 16 lanes, dim a multiple of 8. */
static void transpose_tile(float *rows, const float *tile, size_t dim)
{
    for (size_t d = 0; d < dim; d += 4) {
        for (size_t i = 0; i < KVS__TILE; i += 4) {
            kvs__transpose_4x4(rows + i * dim + d, dim, tile + d * KVS__TILE + i, KVS__TILE);
        }
    }
}

/* n <= KVS__V_ROWS values of a latent layer from `slot` on as f32 rows: the first elements of keys. */
static void latent_rows(const kvs__job *j, const kvs__work *w, const kvs__seg *seg, uint32_t head,
                        uint64_t slot, size_t n)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    float *rows = w->vt;
    while (n > 0) {
        size_t from = slot % KVS__TILE;
        size_t m = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = kvs__k_planes(j->s, seg, head, slot / KVS__TILE);
        j->kern->k_tile(w->tmp, shape, &p);
        if (m == KVS__TILE) {
            transpose_tile(rows, w->tmp, dim);
        }
        for (size_t d = 0; m < KVS__TILE && d < dim; d++) {
            for (size_t i = 0; i < m; i++) {
                rows[i * dim + d] = w->tmp[d * KVS__TILE + from + i];
            }
        }
        rows += m * dim;
        slot += m;
        n -= m;
    }
}

static uint64_t min_rows(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Rows of V for one call that decodes in registers: as many as stay in L1 between two strips of a row,
 * all of them asking for the same run of storage ahead. */
static uint64_t direct_step(const kvs__side *side, uint64_t in_row)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    uint64_t most = DIRECT_BYTES / row / KVS__V_ROWS * KVS__V_ROWS;
    uint64_t far = kvs__far_positions(side);
    most = most < KVS__V_ROWS || in_row <= far ? KVS__V_ROWS : most;
    return in_row > far ? min_rows(most, in_row - far) : most;
}

/* acc += P V over positions [pos, pos + n) for rows [r0, r0 + n_rows). */
static void add_values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t r0,
                       uint32_t n_rows, int64_t c0, int64_t pos, uint64_t n)
{
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    const kvs__shape *shape = &v->shape;
    size_t dim = shape->dim;
    float *acc = w->acc + r0 * dim;
    while (n > 0) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t in_row = kvs__chunk_locate(j, pos, kvs__look_most(v), &seg, &slot);
        bool latent = j->s->fmt.n_sides == 1;
        bool direct = !latent && n_rows <= KVS__DIRECT_DENSE;
        uint64_t m = min_rows(n, in_row);
        m = min_rows(m, direct ? direct_step(v, in_row) : KVS__V_ROWS);
        const float *numer = w->s + (size_t)r0 * KVS__CHUNK + (pos - c0);
        if (latent) {
            latent_rows(j, w, seg, head, slot, (size_t)m);
            j->kern->pv(acc, dim, numer, KVS__CHUNK, n_rows, w->vt, dim, (size_t)m, dim);
            pos += (int64_t)m;
            n -= m;
            continue;
        }
        kvs__planes p = kvs__v_planes(j->s, seg, head, slot);
        if (!direct) {
            kvs__prefetch(v, p.data, kvs__ahead_of(v), (size_t)m);
        }
        if (direct) {
            kvs__look_ahead(j, KVS__V, head, pos, in_row, &p);
            j->kern->pv_direct(acc, dim, numer, KVS__CHUNK, n_rows, shape, &p, (size_t)m);
        } else if (shape->bits == 0 && shape->dtype == KVS_F32) {
            j->kern->pv(acc, dim, numer, KVS__CHUNK, n_rows, p.data, dim, (size_t)m, dim);
        } else {
            j->kern->v_rows(w->vt, dim, shape, &p, (size_t)m);
            j->kern->pv(acc, dim, numer, KVS__CHUNK, n_rows, w->vt, dim, (size_t)m, dim);
        }
        pos += (int64_t)m;
        n -= m;
    }
}

/* One tile of which not all rows see all tokens: rows of one mask together, run by run. */
static void add_mixed_tile(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n,
                           int64_t c0, uint32_t t)
{
    for (uint32_t r0 = 0; r0 < n;) {
        uint16_t bits = w->mask[(size_t)r0 * KVS__CHUNK_TILES + t];
        uint32_t r1 = r0 + 1;
        while (r1 < n && w->mask[(size_t)r1 * KVS__CHUNK_TILES + t] == bits) {
            r1++;
        }
        uint32_t left = bits;
        while (left) {
            uint32_t lane = kvs__low_bit(left);
            uint32_t len = kvs__low_bit(~(left >> lane));
            add_values(j, w, head, r0, r1 - r0, c0, c0 + (int64_t)t * KVS__TILE + lane, len);
            left &= left + (left & (~left + 1)); /* without its lowest run of ones */
        }
        r0 = r1;
    }
}

static void values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0)
{
    memset(w->acc, 0, (size_t)n * j->s->fmt.side[KVS__V].shape.dim * sizeof(float));
    uint32_t t = 0;
    while (t < KVS__CHUNK_TILES) {
        uint32_t end = t;
        while (end < KVS__CHUNK_TILES && w->all[end] == 0xffff) {
            end++;
        }
        if (end > t) {
            add_values(j, w, head, 0, n, c0, c0 + (int64_t)t * KVS__TILE,
                       (uint64_t)(end - t) * KVS__TILE);
            t = end;
        } else {
            add_mixed_tile(j, w, head, n, c0, t++);
        }
    }
}

/* -- values in codes */

/* Runs of tokens that some row sees, as they lie in storage. */
typedef struct v_run {
    uint32_t at; /* in the chunk */
    uint32_t n;
    kvs__planes planes;
} v_run;

static bool seen(const kvs__work *w, uint32_t t)
{
    return w->any[t / KVS__TILE] >> t % KVS__TILE & 1;
}

/* Where the tokens end that some row sees, from t on. */
static uint32_t seen_end(const kvs__work *w, uint32_t t)
{
    while (t < KVS__CHUNK && seen(w, t)) {
        t += t % KVS__TILE == 0 && w->any[t / KVS__TILE] == 0xffff ? KVS__TILE : 1;
    }
    return t;
}

/* The next run from *t, a token of the chunk, on, of as many tokens as direct_step() allows; false: none. */
static bool next_run(const kvs__job *j, const kvs__work *w, uint32_t head, int64_t c0, uint32_t *t,
                     bool ahead, v_run *run)
{
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    run->at = *t;
    while (run->at < KVS__CHUNK && !seen(w, run->at)) {
        run->at++;
    }
    if (run->at == KVS__CHUNK) {
        return false;
    }
    uint32_t end = seen_end(w, run->at);
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    uint64_t in_row = kvs__chunk_locate(j, c0 + run->at, kvs__look_most(v), &seg, &slot);
    run->n = (uint32_t)min_rows(min_rows(end - run->at, in_row), direct_step(v, in_row));
    run->planes = kvs__v_planes(j->s, seg, head, slot);
    if (ahead) {
        kvs__look_ahead(j, KVS__V, head, c0 + run->at, in_row, &run->planes);
    }
    *t = run->at + run->n;
    return true;
}

/* As values(), of tiles [t0, t1), in which all is that a row sees. */
static void code_values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n,
                        int64_t c0, uint32_t t0, uint32_t t1)
{
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    const kvs__shape *shape = &v->shape;
    const size_t dim = shape->dim;
    const size_t n_groups = dim / shape->group;
    const size_t lead = (size_t)t0 * KVS__TILE;
    const bool few = n <= FEW_ROWS;
    float *bias = w->units + n_groups * KVS__CHUNK;
    v_run run;
    if (seen_end(w, 0) < KVS__CHUNK) {
        memset(w->units, 0, 2 * n_groups * KVS__CHUNK * sizeof *w->units);
    }
    for (uint32_t t = 0; next_run(j, w, head, c0, &t, false, &run);) {
        j->kern->v_units(w->units + run.at, bias + run.at, KVS__CHUNK, shape, &run.planes, run.n);
    }
    for (size_t i = 0; i < n_groups * n; i++) {
        size_t unit = i / n * KVS__CHUNK + lead;
        float *param = w->p_params + 2 * i;
        j->kern->p_weights(w->pw + i * KVS__CHUNK + lead, param, param + 1,
                           w->s + i % n * KVS__CHUNK + lead, w->units + unit, bias + unit,
                           (size_t)(t1 - t0) * KVS__TILE);
    }
    memset(w->sums, 0, n * dim * sizeof *w->sums);
    for (uint32_t t = 0; next_run(j, w, head, c0, &t, few, &run);) {
        if (!few) {
            kvs__prefetch(v, run.planes.data, kvs__ahead_of(v), run.n);
        }
        j->kern->pv_codes(w->sums, dim, w->pw + run.at, KVS__CHUNK, n * KVS__CHUNK, n, shape,
                          &run.planes, run.n, w->pairs);
    }
    for (size_t i = 0; i < n_groups * n; i++) {
        size_t at = i % n * dim + i / n * shape->group;
        j->kern->v_sums(w->acc + at, w->sums + at, shape->group, w->p_params[2 * i],
                        w->p_params[2 * i + 1]);
    }
}

void kvs__chunk_values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0,
                       uint32_t t0, uint32_t t1)
{
    if (kvs__reads_codes(&j->s->fmt, KVS__V)) {
        code_values(j, w, head, n, c0, t0, t1);
    } else {
        values(j, w, head, n, c0);
    }
}
