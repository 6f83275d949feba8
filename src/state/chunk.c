/* SPDX-License-Identifier: MIT */
/* chunk.c: one chunk (chunk.h): what is seen of it, and the steps. Dense K and V are widened in
 * registers for few rows, to L1 for many; both ways have the same bits. Affine codes are multiplied as
 * they are, by what is made integers of 16 bits (numerics.md), but for latent layers. Only tokens that a
 * row of the block sees are touched in V; lanes of a K tile that none sees are computed and thrown away. */
#include "state/chunk_priv.h"

#include <string.h>

/* What one query sees: [0, sinks) and [begin, end). */
typedef struct visible {
    int64_t sinks;
    int64_t begin;
    int64_t end;
} visible;

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* Carves the arrays out of base (chunk.h). Dims are at most 1024, so no sum here can overflow. */
size_t kvs__work_carve(const kvs__fmt *fmt, unsigned char *base, kvs__work *w)
{
    size_t kd = fmt->side[KVS__K].shape.dim;
    size_t vd = fmt->side[KVS__V].shape.dim;
    size_t centers = fmt->center_bytes ? KVS__CENTERS : 0;
    bool codes[KVS__SIDES] = {kvs__reads_codes(fmt, KVS__K), kvs__reads_codes(fmt, KVS__V)};
    size_t kg = codes[KVS__K] ? kd / fmt->side[KVS__K].shape.group : 0;
    size_t vg = codes[KVS__V] ? vd / fmt->side[KVS__V].shape.group : 0;
    size_t tile = (fmt->side[KVS__K].shape.bits * kd / 32 + 2 * kg) * KVS__TILE;
    size_t pairs = codes[KVS__K] ? KVS__PAIR_TILES * kd / 2 * KVS__TILE : 0;
    pairs = codes[KVS__V] && pairs < KVS__PAIR_ROWS / 2 * vd ? KVS__PAIR_ROWS / 2 * vd : pairs;
    float *batch = NULL;
    float *head = NULL;
    float *at[5] = {NULL};
    struct {
        float **at;
        size_t n;
    } part[] = {
        {&w->q, KVS__ROWS * kd},
        {&w->s, KVS__ROWS * KVS__CHUNK},
        {&w->acc, KVS__ROWS * vd},
        {&w->tot, KVS__ROWS * vd},
        {&w->kt, codes[KVS__K] ? 0 : kvs__k_tiles((uint32_t)kd) * kd * KVS__TILE},
        {&w->tmp, codes[KVS__K] ? 0 : kd * KVS__TILE},
        {&w->vt, codes[KVS__V] ? 0 : KVS__V_ROWS * vd},
        {&w->m, KVS__ROWS},
        {&w->l, KVS__ROWS},
        {&w->tm, KVS__ROWS},
        {&w->tl, KVS__ROWS},
        {&at[0], kg ? KVS__ROWS * kd / 2 : 0},
        {&w->q_params, KVS__ROWS * kg * 2},
        {&at[1], pairs},
        {&at[2], kg ? tile : 0},
        {&w->units, 2 * vg * KVS__CHUNK},
        {&at[3], vg * KVS__ROWS * KVS__CHUNK / 2},
        {&w->p_params, vg * KVS__ROWS * 2},
        {&at[4], vg ? KVS__ROWS * vd : 0},
        {&w->qt, centers ? KVS__ROWS * kd : 0},
        {&w->cen, centers * kd},
        {&w->qc, centers * KVS__ROWS},
        {&w->ones, centers ? KVS_CENTER_GROUP : 0},
        {&batch, centers ? sizeof *w->batch / sizeof(float) : 0},
        {&head, sizeof *w->head / sizeof(float)},
    };
    size_t used = 0;
    for (size_t i = 0; i < KVS_COUNT(part); i++) {
        *part[i].at = base && part[i].n ? (float *)(void *)(base + used) : NULL;
        used += round_up(part[i].n * sizeof(float));
    }
    w->batch = (int64_t *)(void *)batch;
    w->head = (int64_t *)(void *)head;
    w->qp = (uint32_t *)(void *)at[0];
    w->pairs = (uint32_t *)(void *)at[1];
    w->raw = at[2];
    w->pw = (int16_t *)(void *)at[3];
    w->sums = (int32_t *)(void *)at[4];
    w->mask = base ? (uint16_t *)(void *)(base + used) : NULL;
    w->any = base ? w->mask + (size_t)KVS__ROWS * KVS__CHUNK_TILES : NULL;
    w->all = base ? w->any + KVS__CHUNK_TILES : NULL;
    return used + round_up((KVS__ROWS + 2) * KVS__CHUNK_TILES * sizeof(uint16_t));
}

/* -- what is seen */

static int64_t window_begin(const kvs__store *s, int64_t newest)
{
    return s->window ? kvs__max64(0, newest - (int64_t)s->window + 1) : 0;
}

static visible seen_by(const kvs__job *j, uint32_t query)
{
    int64_t pos = j->d->q_pos + (int64_t)query;
    visible v = {0, 0, 0};
    if (j->d->mode == KVS_READ_BLOCK) {
        /* the newest window - 1 stored tokens and the whole block */
        v.begin = window_begin(j->s, j->tail->lo);
        v.end = j->tail->len;
    } else {
        v.begin = window_begin(j->s, pos);
        v.end = kvs__min64(pos + 1, j->s->len);
    }
    v.begin = kvs__min64(v.begin, v.end);
    v.sinks = kvs__min64((int64_t)j->s->sinks, v.begin);
    return v;
}

bool kvs__attend_covered(const kvs__store *s, int64_t first_query, int64_t end)
{
    /* of [need, end), the sinks and what lies from lo on are there */
    int64_t need = kvs__max64(window_begin(s, first_query), (int64_t)s->sinks);
    return need >= kvs__min64(s->lo, end);
}

/* Sets the bits of [lo, hi) in the 256-bit mask of the chunk at c0. */
static void add_range(uint16_t *mask, int64_t c0, int64_t lo, int64_t hi)
{
    int64_t a = kvs__max64(lo - c0, 0);
    int64_t b = kvs__min64(hi - c0, (int64_t)KVS__CHUNK);
    for (int64_t t = a / (int64_t)KVS__TILE; a < b; t++) {
        int64_t t0 = t * (int64_t)KVS__TILE;
        uint32_t first = (uint32_t)(a - t0);
        uint32_t last = (uint32_t)kvs__min64(b - t0, (int64_t)KVS__TILE);
        mask[t] |= (uint16_t)(((1u << last) - 1) & ~((1u << first) - 1));
        a = t0 + (int64_t)KVS__TILE;
    }
}

static void add_flags(const kvs__job *j, uint16_t *mask, int64_t c0)
{
    for (uint32_t i = 0; i < j->d->n_queries; i++) {
        int64_t at = j->d->q_pos + (int64_t)i - c0;
        if (j->d->flags[i] && at >= 0 && at < (int64_t)KVS__CHUNK) {
            mask[at / (int64_t)KVS__TILE] |= (uint16_t)(1u << (at % (int64_t)KVS__TILE));
        }
    }
}

/* Does every query of some rows see all of the chunk? The bounds grow with the query. */
static bool sees_all(const kvs__job *j, uint32_t row0, uint32_t n, int64_t c0)
{
    visible first = seen_by(j, j->q_begin + row0 / j->rep);
    visible last = seen_by(j, j->q_begin + (row0 + n - 1) / j->rep);
    int64_t end = c0 + (int64_t)KVS__CHUNK;
    return end <= first.sinks || (c0 >= last.begin && end <= first.end);
}

/* Masks of rows [row0, row0 + n) of a KV head for one chunk; false if none sees anything. */
static bool fill_masks(const kvs__job *j, const kvs__work *w, uint32_t row0, uint32_t n, int64_t c0)
{
    uint16_t seen = 0;
    if (sees_all(j, row0, n, c0)) {
        memset(w->mask, 0xff, (size_t)n * KVS__CHUNK_TILES * sizeof *w->mask);
        memset(w->any, 0xff, KVS__CHUNK_TILES * sizeof *w->any);
        memset(w->all, 0xff, KVS__CHUNK_TILES * sizeof *w->all);
        return true;
    }
    memset(w->any, 0, KVS__CHUNK_TILES * sizeof *w->any);
    memset(w->all, 0xff, KVS__CHUNK_TILES * sizeof *w->all);
    for (uint32_t r = 0; r < n; r++) {
        uint16_t *mask = w->mask + (size_t)r * KVS__CHUNK_TILES;
        uint32_t query = j->q_begin + (row0 + r) / j->rep;
        if (r > 0 && query == j->q_begin + (row0 + r - 1) / j->rep) {
            const uint16_t *above = w->mask + (size_t)(r - 1) * KVS__CHUNK_TILES;
            memcpy(mask, above, KVS__CHUNK_TILES * sizeof *mask);
            continue;
        }
        memset(mask, 0, KVS__CHUNK_TILES * sizeof *mask);
        visible v = seen_by(j, query);
        add_range(mask, c0, 0, v.sinks);
        add_range(mask, c0, v.begin, v.end);
        if (j->d->mode == KVS_READ_BIDIRECTIONAL && j->d->flags[query]) {
            add_flags(j, mask, c0);
        }
        for (uint32_t t = 0; t < KVS__CHUNK_TILES; t++) {
            w->any[t] |= mask[t];
            w->all[t] &= mask[t];
            seen |= mask[t];
        }
    }
    return seen != 0;
}

/* -- the steps */

void kvs__queries_ready(const kvs__job *j, const kvs__work *w, uint32_t n)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    size_t dim = shape->dim;
    for (uint32_t r = 0; r < n && w->qp; r++) {
        j->kern->q_pairs(w->qp + r * dim / 2, w->q_params + r * (dim / shape->group) * 2,
                         w->q + r * dim, shape);
    }
    kvs__center_queries(j, w, n);
}

/* One chunk for rows [row0, row0 + n) of a KV head into w->acc, m, l; false: nothing is seen. */
bool kvs__chunk(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t row0, uint32_t n,
                int64_t c0)
{
    if (!fill_masks(j, w, row0, n, c0)) {
        return false;
    }
    uint32_t t0 = 0;
    uint32_t t1 = KVS__CHUNK_TILES;
    while (w->any[t0] == 0) {
        t0++;
    }
    while (w->any[t1 - 1] == 0) {
        t1--;
    }
    kvs__chunk_scores(j, w, head, n, c0);
    kvs__add_centers(j, w, head, n, c0);
    j->kern->softmax(w->s + (size_t)t0 * KVS__TILE, KVS__CHUNK, n, t1 - t0, w->mask + t0,
                     KVS__CHUNK_TILES, j->d->softcap, w->m, w->l);
    kvs__chunk_values(j, w, head, n, c0, t0, t1);
    return true;
}

bool kvs__row_sees(const kvs__work *w, uint32_t r)
{
    uint16_t any = 0;
    for (uint32_t t = 0; t < KVS__CHUNK_TILES; t++) {
        any |= w->mask[(size_t)r * KVS__CHUNK_TILES + t];
    }
    return any != 0;
}

/* -- the list of chunks of some rows: those with sinks, then those of the window, no gap twice */

kvs__chunk_list kvs__list_chunks(const kvs__job *j, uint32_t row0, uint32_t n)
{
    int64_t sinks = 0;
    int64_t begin = INT64_MAX;
    int64_t end = 0;
    uint32_t q0 = j->q_begin + row0 / j->rep;
    uint32_t q1 = j->q_begin + (row0 + n - 1) / j->rep;
    for (uint32_t q = q0; q <= q1; q += q1 > q0 ? q1 - q0 : 1) { /* bounds grow with the query */
        visible v = seen_by(j, q);
        sinks = kvs__max64(sinks, v.sinks);
        begin = kvs__min64(begin, v.begin);
        end = kvs__max64(end, v.end);
    }
    if (j->d->mode == KVS_READ_BIDIRECTIONAL) {
        begin = kvs__min64(begin, j->d->q_pos);
        end = kvs__max64(end, kvs__min64(j->d->q_pos + (int64_t)j->d->n_queries, j->s->len));
    }
    int64_t c = (int64_t)KVS__CHUNK;
    kvs__chunk_list l = {(sinks + c - 1) / c, begin / c, 0};
    l.n_sink = kvs__min64(l.n_sink, l.first);
    l.n = l.n_sink + (end + c - 1) / c - l.first;
    return l;
}

int64_t kvs__chunk_at(const kvs__chunk_list *l, int64_t i)
{
    return (i < l->n_sink ? i : l->first + i - l->n_sink) * (int64_t)KVS__CHUNK;
}
