/* SPDX-License-Identifier: MIT */
/* attend.c: attention over a store: softmax(scale * Q K^T) V.
 *
 * The order of operations (docs/numerics.md): the positions that a query sees are cut at the grid
 * of KVS__CHUNK absolute positions; each chunk is worked on its own (scores, greatest score, exp,
 * sum, P V, all in ascending position); chunks are joined in ascending order; a chunk of which the
 * query sees nothing is left out. So neither the layout, nor the other queries of the call, nor the
 * threads can show in a result.
 *
 * A row is one query of one query head. Rows of the KV head they share are worked in blocks, so
 * that K and V are decoded once for all of them. Two ways to share out work, same arithmetic:
 * whole: an item is a block of rows, all its chunks one after another.
 * split: few rows (decode): an item is some chunks of one KV head; partial results are joined after. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/pool.h"
#include "kern/math.h"
#include "state/store.h"

#define ROWS        64u   /* of a block: amortises decoding, and the scratch stays inside L2 */
#define V_ROWS      32u   /* of V decoded at a time, inside L1 */
#define K_TILES     4u    /* of K decoded at a time, at most */
#define K_FLOATS    4096u /* of K decoded at a time where the head dim allows: half of a 32 KiB L1 */
#define DIRECT_ROWS 8u    /* up to which decoding in registers beats decoding to L1 first */
#define CACHE_LINE  64u
#define AHEAD_BYTES 8192u             /* of a plane that are asked for ahead of their use */
#define SPLIT_BYTES ((size_t)1 << 20) /* of partial results between two joins */
#define GROUP       4u     /* chunks of a split item, so that a thread reads some pages in a row */
#define INLINE_WORK 65536u /* multiply-adds below which waking a thread costs more than it saves */

/* What one query sees: [0, sinks) and [begin, end), and with flags more of [flag_lo, flag_hi). */
typedef struct visible {
    int64_t sinks;
    int64_t begin;
    int64_t end;
} visible;

typedef struct job {
    kvs_ctx *ctx;
    const kvs__kern *kern;
    const kvs__store *s;
    const kvs_attend *d;
    const kvs__store *tail; /* mode block: positions from tail->lo on; else NULL */
    uint32_t q_begin;       /* queries of this run */
    uint32_t q_end;
    uint32_t rep;       /* query heads per KV head */
    uint32_t head_rows; /* rows of one KV head: queries * rep */
    uint32_t n_blocks;  /* of rows, per KV head */
    size_t thread_bytes;
    unsigned char *scratch;
    /* split */
    uint32_t wave_first; /* index of the wave's first chunk in the list of chunks */
    uint32_t wave_n;
    bool wave_last;
    float *part; /* [wave_n][heads][head_rows][v_dim + 2]: acc, m, l; m is NaN where nothing seen */
    float *total; /* [heads][head_rows][v_dim + 2] */
} job;

/* Per-thread scratch. */
typedef struct work {
    float *q;   /* [ROWS][k_dim], rotated and scaled */
    float *s;   /* [ROWS][KVS__CHUNK] scores, then numerators */
    float *acc; /* [ROWS][v_dim] of a chunk */
    float *tot; /* [ROWS][v_dim] joined */
    float *kt;  /* [tiles][k_dim][16] */
    float *tmp; /* [k_dim][16] */
    float *vt;  /* [V_ROWS][v_dim] */
    float *m;   /* [ROWS] of a chunk */
    float *l;
    float *tm; /* [ROWS] joined */
    float *tl;
    uint16_t *mask; /* [ROWS][16] */
} work;

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

static uint32_t k_tiles(uint32_t dim)
{
    uint32_t n = K_FLOATS / (dim * KVS__TILE);
    n = n < 1 ? 1 : n;
    return n > K_TILES ? K_TILES : n;
}

/* Carves the arrays out of base; with base NULL only counts. Dims are at most 1024, so no sum here
 * can overflow. */
static size_t carve(const kvs__fmt *fmt, unsigned char *base, work *w)
{
    size_t kd = fmt->side[KVS__K].shape.dim;
    size_t vd = fmt->side[KVS__V].shape.dim;
    struct {
        float **at;
        size_t n;
    } part[] = {
        {&w->q, ROWS * kd},
        {&w->s, ROWS * KVS__CHUNK},
        {&w->acc, ROWS * vd},
        {&w->tot, ROWS * vd},
        {&w->kt, k_tiles((uint32_t)kd) * kd * KVS__TILE},
        {&w->tmp, kd * KVS__TILE},
        {&w->vt, V_ROWS * vd},
        {&w->m, ROWS},
        {&w->l, ROWS},
        {&w->tm, ROWS},
        {&w->tl, ROWS},
    };
    size_t used = 0;
    for (size_t i = 0; i < KVS_COUNT(part); i++) {
        *part[i].at = base ? (float *)(void *)(base + used) : NULL;
        used += round_up(part[i].n * sizeof(float));
    }
    w->mask = base ? (uint16_t *)(void *)(base + used) : NULL;
    return used + round_up(ROWS * KVS__CHUNK_TILES * sizeof(uint16_t));
}

static size_t row_floats(const kvs__fmt *fmt)
{
    return (size_t)fmt->side[KVS__V].shape.dim + 2;
}

/* Bytes of totals of all heads, then of partial results: at least one chunk of the most rows. */
static bool split_bytes(const kvs__fmt *fmt, size_t *total, size_t *part)
{
    size_t n = 0;
    if (!kvs__mul_size(row_floats(fmt) * sizeof(float) * ROWS, fmt->n_heads, &n)) {
        return false;
    }
    *total = round_up(n);
    *part = n > SPLIT_BYTES ? round_up(n) : SPLIT_BYTES;
    return true;
}

bool kvs__attend_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes)
{
    work w;
    size_t total = 0;
    size_t part = 0;
    size_t threads = 0;
    return kvs__mul_size(carve(fmt, NULL, &w), n_threads, &threads) &&
           split_bytes(fmt, &total, &part) && kvs__add_size(threads, total, bytes) &&
           kvs__add_size(*bytes, part, bytes);
}

/* -- what is seen */

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t window_begin(const kvs__store *s, int64_t newest)
{
    return s->window ? max64(0, newest - (int64_t)s->window + 1) : 0;
}

static visible seen_by(const job *j, uint32_t query)
{
    int64_t pos = j->d->q_pos + (int64_t)query;
    visible v = {0, 0, 0};
    if (j->d->mode == KVS_READ_BLOCK) {
        /* the newest window - 1 stored tokens and the whole block */
        v.begin = window_begin(j->s, j->tail->lo);
        v.end = j->tail->len;
    } else {
        v.begin = window_begin(j->s, pos);
        v.end = min64(pos + 1, j->s->len);
    }
    v.begin = min64(v.begin, v.end);
    v.sinks = min64((int64_t)j->s->sinks, v.begin);
    return v;
}

bool kvs__attend_covered(const kvs__store *s, int64_t first_query, int64_t end)
{
    /* of [need, end), the sinks and what lies from lo on are there */
    int64_t need = max64(window_begin(s, first_query), (int64_t)s->sinks);
    return need >= min64(s->lo, end);
}

static uint64_t locate(const job *j, int64_t pos, uint64_t most, const kvs__seg **seg,
                       uint64_t *slot)
{
    const kvs__store *s = j->tail && pos >= j->tail->lo ? j->tail : j->s;
    return kvs__store_locate(s, pos, most, seg, slot);
}

/* Sets the bits of [lo, hi) in the 256-bit mask of the chunk at c0. */
static void add_range(uint16_t *mask, int64_t c0, int64_t lo, int64_t hi)
{
    int64_t a = max64(lo - c0, 0);
    int64_t b = min64(hi - c0, (int64_t)KVS__CHUNK);
    for (int64_t t = a / (int64_t)KVS__TILE; a < b; t++) {
        int64_t t0 = t * (int64_t)KVS__TILE;
        uint32_t first = (uint32_t)(a - t0);
        uint32_t last = (uint32_t)min64(b - t0, (int64_t)KVS__TILE);
        mask[t] |= (uint16_t)(((1u << last) - 1) & ~((1u << first) - 1));
        a = t0 + (int64_t)KVS__TILE;
    }
}

static void add_flags(const job *j, uint16_t *mask, int64_t c0)
{
    for (uint32_t i = 0; i < j->d->n_queries; i++) {
        int64_t at = j->d->q_pos + (int64_t)i - c0;
        if (j->d->flags[i] && at >= 0 && at < (int64_t)KVS__CHUNK) {
            mask[at / (int64_t)KVS__TILE] |= (uint16_t)(1u << (at % (int64_t)KVS__TILE));
        }
    }
}

/* Masks of rows [row0, row0 + n) of a KV head for one chunk; false if none sees anything. */
static bool fill_masks(const job *j, const work *w, uint32_t row0, uint32_t n, int64_t c0)
{
    uint16_t any = 0;
    for (uint32_t r = 0; r < n; r++) {
        uint16_t *mask = w->mask + (size_t)r * KVS__CHUNK_TILES;
        uint32_t query = j->q_begin + (row0 + r) / j->rep;
        if (r > 0 && query == j->q_begin + (row0 + r - 1) / j->rep) {
            memcpy(mask, mask - KVS__CHUNK_TILES, KVS__CHUNK_TILES * sizeof *mask);
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
            any |= mask[t];
        }
    }
    return any != 0;
}

static uint16_t mask_union(const work *w, uint32_t n, uint32_t tile)
{
    uint16_t u = 0;
    for (uint32_t r = 0; r < n; r++) {
        u |= w->mask[(size_t)r * KVS__CHUNK_TILES + tile];
    }
    return u;
}

static uint32_t low_bit(uint32_t x)
{
    return (uint32_t)__builtin_ctz(x);
}

/* -- scores */

static kvs__planes k_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t tile)
{
    const kvs__side *k = &s->fmt.side[KVS__K];
    kvs__planes p = {kvs__k_tile_at(s, seg, 0, head, tile), NULL, NULL};
    if (k->shape.bits) {
        p.scale = kvs__k_tile_at(s, seg, 1, head, tile);
        p.bias = kvs__k_tile_at(s, seg, 2, head, tile);
    }
    return p;
}

static kvs__planes v_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t slot)
{
    kvs__planes p = {kvs__v_row_at(s, seg, 0, head, slot), NULL, NULL};
    if (s->fmt.side[KVS__V].shape.bits) {
        p.scale = kvs__v_row_at(s, seg, 1, head, slot);
        p.bias = kvs__v_row_at(s, seg, 2, head, slot);
    }
    return p;
}

/* Asks for the n units-rows' worth of bytes that follow `ahead` such rows after p: the next tiles or
 * rows of the same planes. Streams of a few KiB a plane are too short for the hardware to catch on:
 * without this, reading codes costs compute plus memory instead of the greater of both. An address
 * past the end of a segment is harmless. */
static void prefetch(const kvs__side *side, const kvs__planes *p, size_t ahead, size_t n)
{
    const void *base[KVS__PLANES] = {p->data, p->scale, p->bias};
    for (int i = 0; i < KVS__PLANES && base[i]; i++) {
        size_t row = (size_t)side->n_units[i] * side->unit_bytes[i];
        uintptr_t at = (uintptr_t)base[i] + ahead * row;
        uintptr_t end = at + n * row;
        for (at = at / CACHE_LINE * CACHE_LINE; at < end; at += CACHE_LINE) {
            __builtin_prefetch((const void *)at, 0, 3);
        }
    }
}

/* Tokens ahead of the one in work that are asked for: some KiB, a multiple of the tile. */
static size_t ahead_of(const kvs__side *side)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    size_t tiles = AHEAD_BYTES / (row * KVS__TILE);
    return (tiles < 1 ? 1 : tiles) * KVS__TILE;
}

/* True, and its planes, if the tokens of `bits` of the tile at pos0 lie in one tile of storage, each
 * in its own lane. */
static bool tile_in_place(const job *j, uint32_t head, int64_t pos0, uint16_t bits, kvs__planes *p)
{
    uint32_t lane = low_bit(bits);
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    uint64_t n = locate(j, pos0 + lane, KVS__TILE - lane, &seg, &slot);
    if (slot % KVS__TILE != lane || (bits >> lane) >> n != 0) {
        return false;
    }
    *p = k_planes(j->s, seg, head, slot / KVS__TILE);
    return true;
}

/* A tile that lies in several places (sinks apart from the window; pages that do not start on the
 * tile grid), put together lane by lane as [k_dim][16] f32. */
static void tile_assemble(const job *j, const work *w, uint32_t head, int64_t pos0, uint16_t bits,
                          float *dst)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    uint32_t left = bits;
    while (left) {
        uint32_t lane = low_bit(left);
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t n = locate(j, pos0 + lane, KVS__TILE - lane, &seg, &slot);
        uint64_t from = slot % KVS__TILE;
        n = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = k_planes(j->s, seg, head, slot / KVS__TILE);
        j->kern->k_tile(w->tmp, shape, &p);
        for (size_t d = 0; d < shape->dim; d++) {
            memcpy(dst + d * KVS__TILE + lane, w->tmp + d * KVS__TILE + from, n * sizeof(float));
        }
        left &= ~(((1u << n) - 1) << lane);
    }
}

/* Tiles waiting for one kernel call: consecutive ones, decoded in kt or to be read in place. */
typedef struct tile_run {
    bool decoded;
    uint32_t first;
    uint32_t n;
    kvs__planes planes[KVS__CHUNK_TILES];
} tile_run;

static void flush(const job *j, const work *w, uint32_t rows, tile_run *run)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    float *s = w->s + (size_t)run->first * KVS__TILE;
    if (run->n == 0) {
        return;
    }
    if (run->decoded) {
        j->kern->qk(s, KVS__CHUNK, w->q, shape->dim, rows, w->kt, run->n, shape->dim);
    } else {
        j->kern->qk_direct(s, KVS__CHUNK, w->q, shape->dim, rows, shape, run->planes, run->n);
    }
    run->n = 0;
}

static void scores(const job *j, const work *w, uint32_t head, uint32_t n, int64_t c0)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    size_t tile_floats = (size_t)shape->dim * KVS__TILE;
    uint32_t most = k_tiles(shape->dim);
    bool f32 = shape->bits == 0 && shape->dtype == KVS_F32;
    size_t ahead = ahead_of(&j->s->fmt.side[KVS__K]);
    tile_run run = {.n = 0};
    for (uint32_t t = 0; t < KVS__CHUNK_TILES; t++) {
        uint16_t bits = mask_union(w, n, t);
        if (bits == 0) {
            flush(j, w, n, &run);
            continue;
        }
        int64_t pos0 = c0 + (int64_t)t * KVS__TILE;
        kvs__planes p;
        bool in_place = tile_in_place(j, head, pos0, bits, &p);
        if (in_place) {
            prefetch(&j->s->fmt.side[KVS__K], &p, ahead, KVS__TILE);
        }
        bool decode = !in_place || (n > DIRECT_ROWS && !f32);
        if (run.n > 0 && (run.decoded != decode || (decode && run.n == most))) {
            flush(j, w, n, &run);
        }
        if (run.n == 0) {
            run.decoded = decode;
            run.first = t;
        }
        if (in_place && f32 && n > DIRECT_ROWS) { /* storage has the kernel's form already */
            j->kern->qk(w->s + (size_t)t * KVS__TILE, KVS__CHUNK, w->q, shape->dim, n, p.data, 1,
                        shape->dim);
            continue;
        }
        if (!in_place) {
            tile_assemble(j, w, head, pos0, bits, w->kt + run.n * tile_floats);
        } else if (decode) {
            j->kern->k_tile(w->kt + run.n * tile_floats, shape, &p);
        } else {
            run.planes[run.n] = p;
        }
        run.n++;
    }
    flush(j, w, n, &run);
}

/* -- values */

/* acc += P V over positions [pos, pos + n) for rows [r0, r0 + n_rows). */
static void add_values(const job *j, const work *w, uint32_t head, uint32_t r0, uint32_t n_rows,
                       int64_t c0, int64_t pos, uint64_t n)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__V].shape;
    size_t dim = shape->dim;
    float *acc = w->acc + r0 * dim;
    while (n > 0) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t m = locate(j, pos, n < V_ROWS ? n : V_ROWS, &seg, &slot);
        kvs__planes p = v_planes(j->s, seg, head, slot);
        prefetch(&j->s->fmt.side[KVS__V], &p, ahead_of(&j->s->fmt.side[KVS__V]), (size_t)m);
        const float *numer = w->s + (size_t)r0 * KVS__CHUNK + (pos - c0);
        if (n_rows <= DIRECT_ROWS) {
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
static void add_mixed_tile(const job *j, const work *w, uint32_t head, uint32_t n, int64_t c0,
                           uint32_t t)
{
    for (uint32_t r0 = 0; r0 < n;) {
        uint16_t bits = w->mask[(size_t)r0 * KVS__CHUNK_TILES + t];
        uint32_t r1 = r0 + 1;
        while (r1 < n && w->mask[(size_t)r1 * KVS__CHUNK_TILES + t] == bits) {
            r1++;
        }
        uint32_t left = bits;
        while (left) {
            uint32_t lane = low_bit(left);
            uint32_t len = low_bit(~(left >> lane));
            add_values(j, w, head, r0, r1 - r0, c0, c0 + (int64_t)t * KVS__TILE + lane, len);
            left &= ~(((1u << len) - 1) << lane);
        }
        r0 = r1;
    }
}

static bool all_full(const work *w, uint32_t n, uint32_t t)
{
    uint16_t u = 0xffff;
    for (uint32_t r = 0; r < n; r++) {
        u &= w->mask[(size_t)r * KVS__CHUNK_TILES + t];
    }
    return u == 0xffff;
}

static void values(const job *j, const work *w, uint32_t head, uint32_t n, int64_t c0)
{
    memset(w->acc, 0, (size_t)n * j->s->fmt.side[KVS__V].shape.dim * sizeof(float));
    uint32_t t = 0;
    while (t < KVS__CHUNK_TILES) {
        uint32_t end = t;
        while (end < KVS__CHUNK_TILES && all_full(w, n, end)) {
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

/* One chunk for rows [row0, row0 + n) of a KV head into w->acc, m, l; false: nothing is seen. */
static bool chunk(const job *j, const work *w, uint32_t head, uint32_t row0, uint32_t n, int64_t c0)
{
    if (!fill_masks(j, w, row0, n, c0)) {
        return false;
    }
    uint32_t t0 = 0;
    uint32_t t1 = KVS__CHUNK_TILES;
    while (mask_union(w, n, t0) == 0) {
        t0++;
    }
    while (mask_union(w, n, t1 - 1) == 0) {
        t1--;
    }
    scores(j, w, head, n, c0);
    j->kern->softmax(w->s + (size_t)t0 * KVS__TILE, KVS__CHUNK, n, t1 - t0, w->mask + t0,
                     KVS__CHUNK_TILES, j->d->softcap, w->m, w->l);
    values(j, w, head, n, c0);
    return true;
}

static bool row_sees(const work *w, uint32_t r)
{
    uint16_t any = 0;
    for (uint32_t t = 0; t < KVS__CHUNK_TILES; t++) {
        any |= w->mask[(size_t)r * KVS__CHUNK_TILES + t];
    }
    return any != 0;
}

/* -- queries in, rows out */

static const unsigned char *element(const void *base, kvs_dtype t, size_t index)
{
    return (const unsigned char *)base + index * (t == KVS_F32 ? 4 : 2);
}

static void load_queries(const job *j, const work *w, uint32_t head, uint32_t row0, uint32_t n)
{
    const kvs_attend *d = j->d;
    const kvs__side *k = &j->s->fmt.side[KVS__K];
    size_t dim = k->shape.dim;
    size_t hs = d->q_head_stride ? d->q_head_stride : dim;
    size_t ts = d->q_token_stride ? d->q_token_stride : dim * d->n_q_heads;
    for (uint32_t r = 0; r < n; r++) {
        size_t query = j->q_begin + (row0 + r) / j->rep;
        size_t q_head = (size_t)head * j->rep + (row0 + r) % j->rep;
        const void *src = element(d->q, d->q_dtype, query * ts + q_head * hs);
        float *q = w->q + r * dim;
        if (d->q_dtype == KVS_F16) {
            j->kern->f32_from_f16(q, src, dim);
        } else if (d->q_dtype == KVS_BF16) {
            j->kern->f32_from_bf16(q, src, dim);
        } else {
            memcpy(q, src, dim * sizeof *q);
        }
    }
    if (k->rot) {
        j->kern->hadamard(w->q, n * dim / k->rot, k->rot);
    }
    for (size_t i = 0; i < n * dim; i++) {
        w->q[i] *= d->scale;
    }
}

/* Joins the sink logit, divides, turns back, rounds and stores one row. */
static void finish_row(const job *j, uint32_t head, uint32_t row, float *acc, float m, float l)
{
    const kvs_attend *d = j->d;
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    size_t dim = v->shape.dim;
    size_t query = j->q_begin + row / j->rep;
    size_t q_head = (size_t)head * j->rep + row % j->rep;
    if (d->sink_logits && l != 0.0f) {
        float top = m > d->sink_logits[q_head] ? m : d->sink_logits[q_head];
        float a = kvs__exp(m - top);
        l = fmaf(l, a, kvs__exp(d->sink_logits[q_head] - top));
        for (size_t i = 0; i < dim; i++) {
            acc[i] *= a;
        }
    }
    for (size_t i = 0; i < dim; i++) {
        acc[i] = l == 0.0f ? 0.0f : acc[i] / l;
    }
    if (v->rot) {
        j->kern->hadamard(acc, dim / v->rot, v->rot);
    }
    for (size_t i = 0; i < dim; i++) {
        acc[i] = acc[i] != acc[i] ? kvs__f32_bits(KVS__NAN_BITS) : acc[i];
    }
    size_t hs = d->out_head_stride ? d->out_head_stride : dim;
    size_t ts = d->out_token_stride ? d->out_token_stride : dim * d->n_q_heads;
    void *dst = (void *)(uintptr_t)element(d->out, d->out_dtype, query * ts + q_head * hs);
    if (d->out_dtype == KVS_F16) {
        j->kern->f16_from_f32(dst, acc, dim);
    } else if (d->out_dtype == KVS_BF16) {
        j->kern->bf16_from_f32(dst, acc, dim);
    } else {
        memcpy(dst, acc, dim * sizeof *acc);
    }
}

/* -- the list of chunks of some rows: those with sinks, then those of the window, no gap twice */

typedef struct chunk_list {
    int64_t n_sink; /* chunks 0 .. n_sink-1 */
    int64_t first;  /* then first .. first + n - n_sink - 1 */
    int64_t n;
} chunk_list;

static chunk_list list_chunks(const job *j, uint32_t row0, uint32_t n)
{
    int64_t sinks = 0;
    int64_t begin = INT64_MAX;
    int64_t end = 0;
    uint32_t q0 = j->q_begin + row0 / j->rep;
    uint32_t q1 = j->q_begin + (row0 + n - 1) / j->rep;
    for (uint32_t q = q0; q <= q1; q += q1 > q0 ? q1 - q0 : 1) { /* bounds grow with the query */
        visible v = seen_by(j, q);
        sinks = max64(sinks, v.sinks);
        begin = min64(begin, v.begin);
        end = max64(end, v.end);
    }
    if (j->d->mode == KVS_READ_BIDIRECTIONAL) {
        begin = min64(begin, j->d->q_pos);
        end = max64(end, min64(j->d->q_pos + (int64_t)j->d->n_queries, j->s->len));
    }
    int64_t c = (int64_t)KVS__CHUNK;
    chunk_list l = {(sinks + c - 1) / c, begin / c, 0};
    l.n_sink = min64(l.n_sink, l.first);
    l.n = l.n_sink + (end + c - 1) / c - l.first;
    return l;
}

static int64_t chunk_at(const chunk_list *l, int64_t i)
{
    return (i < l->n_sink ? i : l->first + i - l->n_sink) * (int64_t)KVS__CHUNK;
}

/* -- whole: an item is a block of rows */

static void whole_item(void *arg, size_t item, uint32_t thread)
{
    const job *j = arg;
    work w;
    (void)carve(&j->s->fmt, j->scratch + thread * j->thread_bytes, &w);
    uint32_t head = (uint32_t)(item / j->n_blocks);
    uint32_t row0 = (uint32_t)(item % j->n_blocks) * ROWS;
    uint32_t n = j->head_rows - row0 < ROWS ? j->head_rows - row0 : ROWS;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    load_queries(j, &w, head, row0, n);
    memset(w.tot, 0, n * dim * sizeof(float));
    for (uint32_t r = 0; r < n; r++) {
        w.tm[r] = -FLT_MAX;
        w.tl[r] = 0.0f;
    }
    chunk_list l = list_chunks(j, row0, n);
    for (int64_t i = 0; i < l.n; i++) {
        if (!chunk(j, &w, head, row0, n, chunk_at(&l, i))) {
            continue;
        }
        for (uint32_t r = 0; r < n; r++) {
            if (row_sees(&w, r)) {
                j->kern->merge(w.tot + r * dim, &w.tm[r], &w.tl[r], w.acc + r * dim, w.m[r], w.l[r],
                               dim);
            }
        }
    }
    for (uint32_t r = 0; r < n; r++) {
        finish_row(j, head, row0 + r, w.tot + r * dim, w.tm[r], w.tl[r]);
    }
}

/* -- split: an item is up to GROUP chunks of one KV head */

static float *part_row(const job *j, uint32_t wave_chunk, uint32_t head, uint32_t row)
{
    size_t i = ((size_t)wave_chunk * j->s->fmt.n_heads + head) * j->head_rows + row;
    return j->part + i * row_floats(&j->s->fmt);
}

static void split_chunk(const job *j, const work *w, const chunk_list *l, uint32_t head,
                        uint32_t at)
{
    uint32_t n = j->head_rows;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    bool any = chunk(j, w, head, 0, n, chunk_at(l, (int64_t)j->wave_first + at));
    for (uint32_t r = 0; r < n; r++) {
        float *out = part_row(j, at, head, r);
        if (!any || !row_sees(w, r)) {
            out[dim] = kvs__f32_bits(KVS__NAN_BITS);
            continue;
        }
        memcpy(out, w->acc + r * dim, dim * sizeof(float));
        out[dim] = w->m[r];
        out[dim + 1] = w->l[r];
    }
}

static void split_item(void *arg, size_t item, uint32_t thread)
{
    const job *j = arg;
    work w;
    (void)carve(&j->s->fmt, j->scratch + thread * j->thread_bytes, &w);
    uint32_t groups = (j->wave_n + GROUP - 1) / GROUP;
    uint32_t head = (uint32_t)(item / groups);
    uint32_t first = (uint32_t)(item % groups) * GROUP;
    uint32_t end = first + GROUP < j->wave_n ? first + GROUP : j->wave_n;
    chunk_list l = list_chunks(j, 0, j->head_rows);
    load_queries(j, &w, head, 0, j->head_rows);
    for (uint32_t at = first; at < end; at++) {
        split_chunk(j, &w, &l, head, at);
    }
}

static void join_item(void *arg, size_t item, uint32_t thread)
{
    const job *j = arg;
    (void)thread;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    uint32_t head = (uint32_t)item;
    for (uint32_t r = 0; r < j->head_rows; r++) {
        float *tot = j->total + ((size_t)head * j->head_rows + r) * row_floats(&j->s->fmt);
        if (j->wave_first == 0) {
            memset(tot, 0, dim * sizeof(float));
            tot[dim] = -FLT_MAX;
            tot[dim + 1] = 0.0f;
        }
        for (uint32_t c = 0; c < j->wave_n; c++) {
            const float *p = part_row(j, c, head, r);
            if (p[dim] == p[dim]) {
                j->kern->merge(tot, &tot[dim], &tot[dim + 1], p, p[dim], p[dim + 1], dim);
            }
        }
        if (j->wave_last) {
            finish_row(j, head, r, tot, tot[dim], tot[dim + 1]);
        }
    }
}

static void run_split(job *j, const chunk_list *l)
{
    size_t total = 0;
    size_t part = 0;
    (void)split_bytes(&j->s->fmt, &total, &part);
    uint32_t heads = j->s->fmt.n_heads;
    j->total = (float *)(void *)(j->scratch + j->thread_bytes * kvs__ctx_threads(j->ctx));
    j->part = (float *)(void *)((unsigned char *)j->total + total);
    size_t chunk_bytes = row_floats(&j->s->fmt) * sizeof(float) * j->head_rows * heads;
    int64_t most = (int64_t)(part / chunk_bytes);
    kvs__pool *pool = kvs__ctx_pool(j->ctx);
    for (int64_t i = 0; i < l->n; i += most) {
        j->wave_first = (uint32_t)i;
        j->wave_n = (uint32_t)min64(most, l->n - i);
        j->wave_last = i + most >= l->n;
        kvs__pool_run(pool, (size_t)((j->wave_n + GROUP - 1) / GROUP) * heads, split_item, j);
        kvs__pool_run(pool, heads, join_item, j);
    }
}

void kvs__attend_run(kvs_ctx *ctx, const kvs__store *s, const kvs__store *tail,
                     const kvs_attend *desc, uint32_t q_begin, uint32_t q_end)
{
    work w;
    uint32_t threads = kvs__ctx_threads(ctx);
    size_t bytes = 0;
    bool fits = kvs__attend_scratch_bytes(&s->fmt, threads, &bytes);
    KVS_ASSERT(fits && bytes <= kvs__ctx_scratch_bytes(ctx));
    (void)fits;
    job j = {.ctx = ctx,
             .kern = kvs__ctx_kern(ctx),
             .s = s,
             .d = desc,
             .q_begin = q_begin,
             .q_end = q_end,
             .tail = tail,
             .rep = desc->n_q_heads / s->fmt.n_heads,
             .thread_bytes = carve(&s->fmt, NULL, &w),
             .scratch = kvs__ctx_scratch(ctx, bytes)};
    j.head_rows = (q_end - q_begin) * j.rep;
    j.n_blocks = (j.head_rows + ROWS - 1) / ROWS;
    size_t items = (size_t)j.n_blocks * s->fmt.n_heads;
    chunk_list l = list_chunks(&j, 0, j.head_rows);
    size_t dims = (size_t)s->fmt.side[KVS__K].shape.dim + s->fmt.side[KVS__V].shape.dim;
    if (threads == 1 ||
        (size_t)l.n * KVS__CHUNK * dims * j.head_rows * s->fmt.n_heads < INLINE_WORK) {
        for (size_t i = 0; i < items; i++) {
            whole_item(&j, i, 0);
        }
    } else if (j.head_rows <= ROWS && l.n > 1 && items < 8 * (size_t)threads) {
        run_split(&j, &l);
    } else {
        kvs__pool_run(kvs__ctx_pool(ctx), items, whole_item, &j);
    }
}

/* -- checks */

static bool dtype_ok(kvs_dtype t)
{
    return t == KVS_F32 || t == KVS_F16 || t == KVS_BF16;
}

static kvs_status check_mode(const kvs_attend *d, kvs_err *err)
{
    if ((unsigned)d->mode > KVS_READ_BIDIRECTIONAL) {
        return kvs__fail(err, KVS_E_INVAL, "state", "mode %d is none of kvs_read", (int)d->mode);
    }
    if ((d->mode == KVS_READ_BLOCK) != (d->block != NULL)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a block goes with mode KVS_READ_BLOCK alone");
    }
    if ((d->mode == KVS_READ_BIDIRECTIONAL) != (d->flags != NULL)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "flags go with mode KVS_READ_BIDIRECTIONAL alone");
    }
    return KVS_OK;
}

kvs_status kvs__attend_check(const kvs__fmt *fmt, const kvs_attend *d, kvs_err *err)
{
    if (!d->q || !d->out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", d->q ? "out" : "q");
    }
    if (d->n_queries == 0 || d->n_queries > INT32_MAX) {
        return kvs__fail(err, KVS_E_INVAL, "state", "n_queries is %u", d->n_queries);
    }
    if (d->n_q_heads == 0 || d->n_q_heads % fmt->n_heads != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "n_q_heads %u is no multiple of the %u KV heads", d->n_q_heads,
                         fmt->n_heads);
    }
    if (!dtype_ok(d->q_dtype) || !dtype_ok(d->out_dtype)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s %d is no kvs_dtype",
                         dtype_ok(d->q_dtype) ? "out_dtype" : "q_dtype",
                         (int)(dtype_ok(d->q_dtype) ? d->out_dtype : d->q_dtype));
    }
    if (!isfinite(d->scale) || !isfinite(d->softcap) || d->softcap < 0.0f) {
        return kvs__fail(err, KVS_E_INVAL, "state", "scale %g or softcap %g is out of range",
                         (double)d->scale, (double)d->softcap);
    }
    uint64_t rows = (uint64_t)d->n_queries * (d->n_q_heads / fmt->n_heads);
    if (rows > UINT32_MAX - ROWS) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%u queries of %u heads are too many",
                         d->n_queries, d->n_q_heads);
    }
    return check_mode(d, err);
}
