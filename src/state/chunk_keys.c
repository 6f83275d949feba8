/* SPDX-License-Identifier: MIT */
/* chunk_keys.c: scores of a chunk. Tiles are read where they lie, or put together. */
#include "state/chunk_priv.h"

#include <string.h>

#define K_TILES  4u    /* of K decoded at a time, at most */
#define K_FLOATS 4096u /* of K decoded at a time where the head dim allows: half of a 32 KiB L1 */

uint32_t kvs__k_tiles(uint32_t dim)
{
    uint32_t n = K_FLOATS / (dim * KVS__TILE);
    n = n < 2 ? 2 : n; /* one tile of 16 lanes would leave qk a load for each product */
    return n > K_TILES ? K_TILES : n;
}

/* True if the tokens of `bits` of the tile at pos0 lie in one tile of storage, each in its own lane;
 * its planes, and how many positions from pos0 on lie in a row with it. */
static bool tile_in_place(const kvs__job *j, uint32_t head, int64_t pos0, uint16_t bits,
                          kvs__planes *p, uint64_t *in_row)
{
    uint32_t lane = kvs__low_bit(bits);
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    uint64_t n =
        kvs__chunk_locate(j, pos0 + lane, kvs__look_most(&j->s->fmt.side[KVS__K]), &seg, &slot);
    if (slot % KVS__TILE != lane || (n < KVS__TILE - lane && (bits >> lane) >> n != 0)) {
        return false;
    }
    *p = kvs__k_planes(j->s, seg, head, slot / KVS__TILE);
    *in_row = n + lane;
    return true;
}

/* A tile that lies in several places (sinks apart from the window; pages that do not start on the
 * tile grid), put together lane by lane as [k_dim][16] f32. */
static void tile_assemble(const kvs__job *j, const kvs__work *w, uint32_t head, int64_t pos0,
                          uint16_t bits, float *dst)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    uint32_t left = bits;
    while (left) {
        uint32_t lane = kvs__low_bit(left);
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t n = kvs__chunk_locate(j, pos0 + lane, KVS__TILE - lane, &seg, &slot);
        uint64_t from = slot % KVS__TILE;
        n = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = kvs__k_planes(j->s, seg, head, slot / KVS__TILE);
        j->kern->k_tile(w->tmp, shape, &p);
        for (size_t d = 0; d < shape->dim; d++) {
            memcpy(dst + d * KVS__TILE + lane, w->tmp + d * KVS__TILE + from, n * sizeof(float));
        }
        left &= ~(((1u << n) - 1) << lane);
    }
}

/* The same as it is stored, n_units of unit_bytes a token. */
static void raw_lanes(unsigned char *dst, const unsigned char *src, size_t n_units,
                      size_t unit_bytes, uint32_t lane, uint64_t from, size_t n)
{
    for (size_t u = 0; u < n_units; u++) {
        memcpy(dst + (u * KVS__TILE + lane) * unit_bytes, src + (u * KVS__TILE + from) * unit_bytes,
               n * unit_bytes);
    }
}

static kvs__planes tile_of_codes(const kvs__job *j, const kvs__work *w, uint32_t head, int64_t pos0,
                                 uint16_t bits)
{
    const kvs__side *k = &j->s->fmt.side[KVS__K];
    unsigned char *data = w->raw;
    unsigned char *scale = data + (size_t)k->n_units[0] * k->unit_bytes[0] * KVS__TILE;
    unsigned char *bias = scale + (size_t)k->n_units[1] * k->unit_bytes[1] * KVS__TILE;
    uint32_t left = bits;
    memset(data, 0, (size_t)(bias - data) + (size_t)(bias - scale));
    while (left) {
        uint32_t lane = kvs__low_bit(left);
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t n = kvs__chunk_locate(j, pos0 + lane, KVS__TILE - lane, &seg, &slot);
        uint64_t from = slot % KVS__TILE;
        n = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = kvs__k_planes(j->s, seg, head, slot / KVS__TILE);
        raw_lanes(data, p.data, k->n_units[0], k->unit_bytes[0], lane, from, n);
        raw_lanes(scale, p.scale, k->n_units[1], k->unit_bytes[1], lane, from, n);
        raw_lanes(bias, p.bias, k->n_units[2], k->unit_bytes[2], lane, from, n);
        left &= ~(((1u << n) - 1) << lane);
    }
    return (kvs__planes){data, scale, bias, KVS__CACHE_LINE, KVS__CACHE_LINE};
}

/* Tiles waiting for one kernel call: consecutive ones, decoded in kt or to be read in place. */
typedef struct tile_run {
    bool decoded;
    uint32_t first;
    uint32_t n;
    kvs__planes planes[KVS__CHUNK_TILES];
} tile_run;

/* What the scores of a chunk need. */
typedef struct score_job {
    const kvs__job *j;
    const kvs__work *w;
    const kvs__side *k;
    uint32_t head;
    uint32_t rows;
    uint32_t most; /* tiles decoded at a time */
    size_t ahead;
    uint64_t far;
    bool codes;
    tile_run *run;
} score_job;

static void flush(const score_job *s)
{
    const kvs__kern *kern = s->j->kern;
    const kvs__shape *shape = &s->k->shape;
    tile_run *run = s->run;
    float *out = s->w->s + (size_t)run->first * KVS__TILE;
    if (run->n > 0 && run->decoded) {
        kern->qk(out, KVS__CHUNK, s->w->q, shape->dim, s->rows, s->w->kt, run->n, shape->dim);
    } else if (run->n > 0 && s->codes) {
        kern->qk_codes(out, KVS__CHUNK, s->w->qp, s->w->q_params, s->rows, shape, run->planes,
                       run->n, s->w->pairs);
    } else if (run->n > 0) {
        kern->qk_direct(out, KVS__CHUNK, s->w->q, shape->dim, s->rows, shape, run->planes, run->n);
    }
    run->n = 0;
}

/* Makes the run one that tile t may join. */
static void join_run(const score_job *s, uint32_t t, bool decoded)
{
    tile_run *run = s->run;
    if (run->decoded != decoded || (decoded && run->n == s->most)) {
        flush(s);
    }
    if (run->n == 0) {
        run->decoded = decoded;
        run->first = t;
    }
}

/* How many tiles of a row of storage, from tile t on, have a token that is seen. */
static uint32_t tiles_seen(const kvs__work *w, uint32_t t, uint64_t in_row)
{
    uint64_t most = in_row < KVS__TILE ? 1 : in_row / KVS__TILE;
    uint32_t n = 1;
    while (n < most && t + n < KVS__CHUNK_TILES && w->any[t + n] != 0) {
        n++;
    }
    return n;
}

static void next_tile(const kvs__side *k, kvs__planes *p)
{
    p->data = (const unsigned char *)p->data + (size_t)k->n_units[0] * k->unit_bytes[0] * KVS__TILE;
    if (p->scale) {
        size_t bytes = (size_t)k->n_units[1] * k->unit_bytes[1] * KVS__TILE;
        p->scale = (const unsigned char *)p->scale + bytes;
        p->bias = (const unsigned char *)p->bias + bytes;
    }
}

/* n tiles of a row of storage as they are. Looking each up, or copying structs that were just
 * written in parts, would cost a tenth of the products of a short head. */
static void list_tiles(const score_job *s, int64_t pos, uint64_t in_row, kvs__planes at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        kvs__planes *p = &s->run->planes[s->run->n++];
        p->data = at.data;
        p->scale = at.scale;
        p->bias = at.bias;
        p->far = 0;
        p->far_unit = 0;
        if (s->far >= in_row) {
            kvs__look_ahead(s->j, KVS__K, s->head, pos, in_row, p);
        }
        pos += (int64_t)KVS__TILE;
        in_row -= in_row < KVS__TILE ? in_row : KVS__TILE;
        next_tile(s->k, &at);
    }
}

/* n tiles of a row of storage that many rows read: decoded, unless they have the kernel's form. */
static void decode_tiles(const score_job *s, uint32_t t, kvs__planes p, uint32_t n)
{
    const kvs__shape *shape = &s->k->shape;
    bool f32 = shape->bits == 0 && shape->dtype == KVS_F32;
    if (f32) {
        flush(s);
    }
    for (uint32_t end = t + n; t < end; t++) {
        kvs__prefetch(s->k, p.data, s->ahead, KVS__TILE);
        if (f32) {
            s->j->kern->qk(s->w->s + (size_t)t * KVS__TILE, KVS__CHUNK, s->w->q, shape->dim,
                           s->rows, p.data, 1, shape->dim);
        } else {
            join_run(s, t, true);
            s->j->kern->k_tile(s->w->kt + (size_t)s->run->n++ * shape->dim * KVS__TILE, shape, &p);
        }
        next_tile(s->k, &p);
    }
}

void kvs__chunk_scores(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0)
{
    const kvs__side *k = &j->s->fmt.side[KVS__K];
    bool codes = kvs__reads_codes(&j->s->fmt, KVS__K);
    bool direct = codes || (k->shape.bits == 0 && n <= KVS__DIRECT_DENSE);
    tile_run run; /* its planes are written before they are read */
    score_job s = {.j = j,
                   .w = w,
                   .k = k,
                   .head = head,
                   .rows = n,
                   .most = kvs__k_tiles(k->shape.dim),
                   .ahead = direct ? 0 : kvs__ahead_of(k),
                   .far = kvs__far_positions(k),
                   .codes = codes,
                   .run = &run};
    run.n = 0;
    run.decoded = false;
    run.first = 0;
    for (uint32_t t = 0; t < KVS__CHUNK_TILES;) {
        int64_t pos = c0 + (int64_t)t * KVS__TILE;
        kvs__planes p;
        uint64_t in_row = 0;
        uint32_t m = 1;
        bool in_place = w->any[t] != 0 && tile_in_place(j, head, pos, w->any[t], &p, &in_row);
        if (w->any[t] == 0) {
            flush(&s);
        } else if (in_place) {
            m = tiles_seen(w, t, in_row);
            if (direct) {
                join_run(&s, t, false);
                list_tiles(&s, pos, in_row, p, m);
            } else {
                decode_tiles(&s, t, p, m);
            }
        } else if (codes) {
            flush(&s);
            join_run(&s, t, false);
            run.planes[run.n++] = tile_of_codes(j, w, head, pos, w->any[t]);
            flush(&s);
        } else {
            join_run(&s, t, true);
            tile_assemble(j, w, head, pos, w->any[t],
                          w->kt + (size_t)run.n++ * k->shape.dim * KVS__TILE);
        }
        t += m;
    }
    flush(&s);
}
