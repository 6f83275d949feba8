/* SPDX-License-Identifier: MIT */
/* chunk.c: masks, scores, numerators and values of one chunk (chunk.h). Dense K and V are widened in
 * registers for few rows, to L1 for many; both ways have the same bits. Affine codes are multiplied as
 * they are, by what is made integers of 16 bits (numerics.md), but for latent layers. Only tokens that a
 * row of the block sees are touched in V; lanes of a K tile that none sees are computed and thrown away. */
#include "state/chunk.h"

#include <string.h>

#define V_ROWS       32u   /* of V decoded at a time, inside L1 */
#define K_TILES      4u    /* of K decoded at a time, at most */
#define K_FLOATS     4096u /* of K decoded at a time where the head dim allows: half of a 32 KiB L1 */
#define CACHE_LINE   64u
#define FAR_ELEMENTS 32768u /* of a head that are asked for ahead where storage is in pieces */
#define AHEAD_BYTES  4096u  /* of a plane that are asked for ahead of their use */
#define DIRECT_BYTES 16384u /* of V in one call that decodes in registers */
/* Rows up to which decoding in registers beats decoding to L1 first. Of codes, each block of 8 rows
 * would decode again. Dense elements are widened at ports that the products leave idle, and memory is
 * asked for line by line instead of in bursts: 24 rows of f16 take a fifth less time (Zen 4; 64 rows
 * take as long either way). */
#define DIRECT_CODES 8u
#define DIRECT_DENSE 48u

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

static uint32_t k_tiles(uint32_t dim)
{
    uint32_t n = K_FLOATS / (dim * KVS__TILE);
    n = n < 2 ? 2 : n; /* one tile of 16 lanes would leave qk a load for each product */
    return n > K_TILES ? K_TILES : n;
}

/* Are the codes of a side multiplied as they are? */
static bool reads_codes(const kvs__fmt *fmt, int side)
{
    return fmt->n_sides == KVS__SIDES && fmt->side[side].shape.bits > 0;
}

/* Carves the arrays out of base (chunk.h). Dims are at most 1024, so no sum here can overflow. */
size_t kvs__work_carve(const kvs__fmt *fmt, unsigned char *base, kvs__work *w)
{
    size_t kd = fmt->side[KVS__K].shape.dim;
    size_t vd = fmt->side[KVS__V].shape.dim;
    size_t centers = fmt->center_bytes ? KVS__CENTERS : 0;
    bool codes[KVS__SIDES] = {reads_codes(fmt, KVS__K), reads_codes(fmt, KVS__V)};
    size_t kg = codes[KVS__K] ? kd / fmt->side[KVS__K].shape.group : 0;
    size_t vg = codes[KVS__V] ? vd / fmt->side[KVS__V].shape.group : 0;
    size_t tile = (fmt->side[KVS__K].shape.bits * kd / 32 + 2 * kg) * KVS__TILE;
    size_t pairs = codes[KVS__K] ? KVS__PAIR_TILES * kd / 2 * KVS__TILE : 0;
    pairs = codes[KVS__V] && pairs < KVS__PAIR_ROWS / 2 * vd ? KVS__PAIR_ROWS / 2 * vd : pairs;
    float *batch = NULL;
    float *at[5] = {NULL};
    struct {
        float **at;
        size_t n;
    } part[] = {
        {&w->q, KVS__ROWS * kd},
        {&w->s, KVS__ROWS * KVS__CHUNK},
        {&w->acc, KVS__ROWS * vd},
        {&w->tot, KVS__ROWS * vd},
        {&w->kt, k_tiles((uint32_t)kd) * kd * KVS__TILE},
        {&w->tmp, kd * KVS__TILE},
        {&w->vt, V_ROWS * vd},
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
    };
    size_t used = 0;
    for (size_t i = 0; i < KVS_COUNT(part); i++) {
        *part[i].at = base && part[i].n ? (float *)(void *)(base + used) : NULL;
        used += round_up(part[i].n * sizeof(float));
    }
    w->batch = (int64_t *)(void *)batch;
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

static uint64_t locate(const kvs__job *j, int64_t pos, uint64_t most, const kvs__seg **seg,
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

static void add_flags(const kvs__job *j, uint16_t *mask, int64_t c0)
{
    for (uint32_t i = 0; i < j->d->n_queries; i++) {
        int64_t at = j->d->q_pos + (int64_t)i - c0;
        if (j->d->flags[i] && at >= 0 && at < (int64_t)KVS__CHUNK) {
            mask[at / (int64_t)KVS__TILE] |= (uint16_t)(1u << (at % (int64_t)KVS__TILE));
        }
    }
}

/* Masks of rows [row0, row0 + n) of a KV head for one chunk; false if none sees anything. */
static bool fill_masks(const kvs__job *j, const kvs__work *w, uint32_t row0, uint32_t n, int64_t c0)
{
    uint16_t seen = 0;
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

static uint32_t low_bit(uint32_t x)
{
    return (uint32_t)__builtin_ctz(x);
}

/* -- scores */

static kvs__planes k_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t tile)
{
    const kvs__side *k = &s->fmt.side[KVS__K];
    kvs__planes p = {kvs__k_tile_at(s, seg, 0, head, tile), NULL, NULL, 0, 0};
    if (k->shape.bits) {
        p.scale = kvs__k_tile_at(s, seg, 1, head, tile);
        p.bias = kvs__k_tile_at(s, seg, 2, head, tile);
    }
    return p;
}

static kvs__planes v_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t slot)
{
    kvs__planes p = {kvs__v_row_at(s, seg, 0, head, slot), NULL, NULL, 0, 0};
    if (s->fmt.side[KVS__V].shape.bits) {
        p.scale = kvs__v_row_at(s, seg, 1, head, slot);
        p.bias = kvs__v_row_at(s, seg, 2, head, slot);
    }
    return p;
}

/* Asks for the codes of n tokens that follow `ahead` tokens after data. Streams of a few KiB are too
 * short for the hardware to catch on: without this, reading codes costs compute plus memory instead
 * of the greater of both. Scales are too few to be worth the instructions. An address past the end
 * of a segment is harmless. */
static void prefetch(const kvs__side *side, const void *data, size_t ahead, size_t n)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    uintptr_t at = ((uintptr_t)data + ahead * row) / CACHE_LINE * CACHE_LINE;
    uintptr_t end = (uintptr_t)data + (ahead + n) * row;
    for (; at < end; at += CACHE_LINE) {
        __builtin_prefetch((const void *)at, 0, 3);
    }
}

/* Tokens ahead of the one in work that are asked for: some KiB, a multiple of the tile. */
static size_t ahead_of(const kvs__side *side)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    size_t tiles = AHEAD_BYTES / (row * KVS__TILE);
    return (tiles < 1 ? 1 : tiles) * KVS__TILE;
}

/* Positions ahead whose memory the kernels ask for (attn_direct.h), a multiple of what is read at a
 * time. */
static uint64_t far_positions(const kvs__side *side)
{
    uint32_t n = FAR_ELEMENTS / side->shape.dim;
    return n < V_ROWS ? V_ROWS : n / V_ROWS * V_ROWS;
}

/* Positions whose place is asked for at a time: where so many lie in a row, none in a chunk need be looked
 * up again, nor what is asked for ahead of them. */
static uint64_t look_most(const kvs__side *side)
{
    return KVS__CHUNK + far_positions(side) + 1;
}

/* True if the tokens of `bits` of the tile at pos0 lie in one tile of storage, each in its own lane;
 * its planes, and how many positions from pos0 on lie in a row with it. */
static bool tile_in_place(const kvs__job *j, uint32_t head, int64_t pos0, uint16_t bits,
                          kvs__planes *p, uint64_t *in_row)
{
    uint32_t lane = low_bit(bits);
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    uint64_t n = locate(j, pos0 + lane, look_most(&j->s->fmt.side[KVS__K]), &seg, &slot);
    if (slot % KVS__TILE != lane || (n < KVS__TILE - lane && (bits >> lane) >> n != 0)) {
        return false;
    }
    *p = k_planes(j->s, seg, head, slot / KVS__TILE);
    *in_row = n + lane;
    return true;
}

/* The position that is read `far` positions after pos, and its head: behind the last of a head comes
 * the first of the next. False: none. */
static bool far_place(const kvs__store *s, uint64_t far, int64_t *pos, uint32_t *head)
{
    *pos += (int64_t)far;
    if (*pos >= s->len) {
        *pos += s->lo - s->len;
        *head += 1;
    }
    return *head < s->fmt.n_heads && kvs__store_holds(s, *pos);
}

/* Where a run of storage ends, the kernels would ask for what lies behind it and not for what they
 * read next: tells them how far that is. in_row: positions from pos on that lie in a row with it. */
static void look_ahead(const kvs__job *j, int side, uint32_t head, int64_t pos, uint64_t in_row,
                       kvs__planes *p)
{
    const kvs__store *s = j->s;
    uint64_t far = far_positions(&s->fmt.side[side]);
    if (far < in_row || j->tail) {
        return;
    }
    if (!far_place(s, far, &pos, &head)) {
        p->far = CACHE_LINE; /* on its way already: costs nothing */
        p->far_unit = CACHE_LINE;
        return;
    }
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    (void)kvs__store_locate(s, pos, 1, &seg, &slot);
    kvs__planes f =
        side == KVS__K ? k_planes(s, seg, head, slot / KVS__TILE) : v_planes(s, seg, head, slot);
    p->far = (size_t)((uintptr_t)f.data - (uintptr_t)p->data);
    p->far_unit = (size_t)((uintptr_t)f.scale - (uintptr_t)p->scale);
    if (side == KVS__V && f.scale) { /* the kernels leave those of rows to the hardware */
        const kvs__side *v = &s->fmt.side[KVS__V];
        size_t bytes = (size_t)V_ROWS * v->n_units[1] * v->unit_bytes[1];
        for (size_t at = 0; at < bytes; at += CACHE_LINE) {
            __builtin_prefetch((const unsigned char *)f.scale + at, 0, 3);
            __builtin_prefetch((const unsigned char *)f.bias + at, 0, 3);
        }
    }
}

/* A tile that lies in several places (sinks apart from the window; pages that do not start on the
 * tile grid), put together lane by lane as [k_dim][16] f32. */
static void tile_assemble(const kvs__job *j, const kvs__work *w, uint32_t head, int64_t pos0,
                          uint16_t bits, float *dst)
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

/* The same as it is stored, n_units of unit_bytes a token. */
static void raw_lanes(unsigned char *dst, const unsigned char *src, size_t n_units, size_t unit_bytes,
                      uint32_t lane, uint64_t from, size_t n)
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
        uint32_t lane = low_bit(left);
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t n = locate(j, pos0 + lane, KVS__TILE - lane, &seg, &slot);
        uint64_t from = slot % KVS__TILE;
        n = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = k_planes(j->s, seg, head, slot / KVS__TILE);
        raw_lanes(data, p.data, k->n_units[0], k->unit_bytes[0], lane, from, n);
        raw_lanes(scale, p.scale, k->n_units[1], k->unit_bytes[1], lane, from, n);
        raw_lanes(bias, p.bias, k->n_units[2], k->unit_bytes[2], lane, from, n);
        left &= ~(((1u << n) - 1) << lane);
    }
    return (kvs__planes){data, scale, bias, CACHE_LINE, CACHE_LINE};
}

static bool reads_direct(const kvs__shape *shape, uint32_t rows)
{
    return rows <= (shape->bits ? DIRECT_CODES : DIRECT_DENSE);
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
        kern->qk_codes(out, KVS__CHUNK, s->w->qp, s->w->q_params, s->rows, shape, run->planes, run->n,
                       s->w->pairs);
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
            look_ahead(s->j, KVS__K, s->head, pos, in_row, p);
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
        prefetch(s->k, p.data, s->ahead, KVS__TILE);
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

static void scores(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0)
{
    const kvs__side *k = &j->s->fmt.side[KVS__K];
    bool codes = reads_codes(&j->s->fmt, KVS__K);
    bool direct = codes || (k->shape.bits == 0 && reads_direct(&k->shape, n));
    tile_run run; /* its planes are written before they are read */
    score_job s = {.j = j,
                   .w = w,
                   .k = k,
                   .head = head,
                   .rows = n,
                   .most = k_tiles(k->shape.dim),
                   .ahead = direct ? 0 : ahead_of(k),
                   .far = far_positions(k),
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

/* -- centres */

/* dst[i * ldd + e] = src[e * lds + i], in registers. */
static void transpose_4x4(float *dst, size_t ldd, const float *src, size_t lds)
{
    typedef float vec __attribute__((vector_size(16)));
    vec in[4];
    for (size_t e = 0; e < 4; e++) {
        memcpy(&in[e], src + e * lds, sizeof in[e]);
    }
    vec ab = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    vec ef = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    vec cd = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    vec gh = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    vec out[4] = {
        __builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
        __builtin_shufflevector(ef, gh, 0, 1, 4, 5), __builtin_shufflevector(ef, gh, 2, 3, 6, 7)};
    for (size_t e = 0; e < 4; e++) {
        memcpy(dst + e * ldd, &out[e], sizeof out[e]);
    }
}

void kvs__queries_ready(const kvs__job *j, const kvs__work *w, uint32_t n)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    size_t dim = shape->dim;
    for (uint32_t r = 0; r < n && w->qp; r++) {
        j->kern->q_pairs(w->qp + r * dim / 2, w->q_params + r * (dim / shape->group) * 2,
                         w->q + r * dim, shape);
    }
    if (!j->s->fmt.center_bytes) {
        return;
    }
    size_t whole = (n + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
    memset(w->q + n * dim, 0, (whole - n) * dim * sizeof(float));
    for (size_t r = 0; r < whole; r += 4) {
        float *tile = w->qt + r / KVS__TILE * KVS__TILE * dim + r % KVS__TILE;
        for (size_t d = 0; d < dim; d += 4) {
            transpose_4x4(tile + d * KVS__TILE, KVS__TILE, w->q + r * dim + d, dim);
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
    int64_t p = max64(g0, s->lo);
    if (p < min64(g0 + (int64_t)KVS_CENTER_GROUP, s->len)) {
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

/* What the keys' residuals scored becomes the scores of the keys. */
static void add_centers(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n,
                        int64_t c0)
{
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

/* -- values */

/* rows[i * dim + d] = tile[d * 16 + i] for all 16 lanes, dim a multiple of 8. */
static void transpose_tile(float *rows, const float *tile, size_t dim)
{
    for (size_t d = 0; d < dim; d += 4) {
        for (size_t i = 0; i < KVS__TILE; i += 4) {
            transpose_4x4(rows + i * dim + d, dim, tile + d * KVS__TILE + i, KVS__TILE);
        }
    }
}

/* n <= V_ROWS values of a latent layer from `slot` on as f32 rows: the first elements of keys. */
static void latent_rows(const kvs__job *j, const kvs__work *w, const kvs__seg *seg, uint32_t head,
                        uint64_t slot, size_t n)
{
    const kvs__shape *shape = &j->s->fmt.side[KVS__K].shape;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    float *rows = w->vt;
    while (n > 0) {
        size_t from = slot % KVS__TILE;
        size_t m = n < KVS__TILE - from ? n : KVS__TILE - from;
        kvs__planes p = k_planes(j->s, seg, head, slot / KVS__TILE);
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
    uint64_t most = DIRECT_BYTES / row / V_ROWS * V_ROWS;
    uint64_t far = far_positions(side);
    most = most < V_ROWS || in_row <= far ? V_ROWS : most;
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
        uint64_t in_row = locate(j, pos, look_most(v), &seg, &slot);
        bool latent = j->s->fmt.n_sides == 1;
        bool direct = !latent && reads_direct(shape, n_rows); /* dense */
        uint64_t m = min_rows(n, in_row);
        m = min_rows(m, direct ? direct_step(v, in_row) : V_ROWS);
        const float *numer = w->s + (size_t)r0 * KVS__CHUNK + (pos - c0);
        if (latent) {
            latent_rows(j, w, seg, head, slot, (size_t)m);
            j->kern->pv(acc, dim, numer, KVS__CHUNK, n_rows, w->vt, dim, (size_t)m, dim);
            pos += (int64_t)m;
            n -= m;
            continue;
        }
        kvs__planes p = v_planes(j->s, seg, head, slot);
        if (!direct) {
            prefetch(v, p.data, ahead_of(v), (size_t)m);
        }
        if (direct) {
            look_ahead(j, KVS__V, head, pos, in_row, &p);
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
            uint32_t lane = low_bit(left);
            uint32_t len = low_bit(~(left >> lane));
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

/* The next run from *t, a token of the chunk, on, at most `step` tokens or those of 16 KiB; false: none. */
static bool next_run(const kvs__job *j, const kvs__work *w, uint32_t head, int64_t c0, uint32_t *t,
                     bool ahead, v_run *run)
{
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    uint32_t end = *t;
    while (end < KVS__CHUNK && !(w->any[end / KVS__TILE] >> end % KVS__TILE & 1)) {
        end++;
    }
    run->at = end;
    if (end == KVS__CHUNK) {
        return false;
    }
    while (end < KVS__CHUNK && w->any[end / KVS__TILE] >> end % KVS__TILE & 1) {
        end += end % KVS__TILE == 0 && w->any[end / KVS__TILE] == 0xffff ? KVS__TILE : 1;
    }
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    uint64_t in_row = locate(j, c0 + run->at, look_most(v), &seg, &slot);
    run->n = (uint32_t)min_rows(min_rows(end - run->at, in_row), direct_step(v, in_row));
    run->planes = v_planes(j->s, seg, head, slot);
    if (ahead) {
        look_ahead(j, KVS__V, head, c0 + run->at, in_row, &run->planes);
    }
    *t = run->at + run->n;
    return true;
}

/* As values(), of tiles [t0, t1), in which all is that a row sees. */
static void code_values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0,
                        uint32_t t0, uint32_t t1)
{
    const kvs__side *v = &j->s->fmt.side[KVS__V];
    const kvs__shape *shape = &v->shape;
    const size_t dim = shape->dim;
    const size_t n_groups = dim / shape->group;
    const size_t lead = (size_t)t0 * KVS__TILE;
    const bool few = reads_direct(shape, n);
    float *bias = w->units + n_groups * KVS__CHUNK;
    v_run run;
    memset(w->units, 0, 2 * n_groups * KVS__CHUNK * sizeof *w->units);
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
            prefetch(v, run.planes.data, ahead_of(v), run.n);
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
    scores(j, w, head, n, c0);
    if (j->s->fmt.center_bytes) {
        add_centers(j, w, head, n, c0);
    }
    j->kern->softmax(w->s + (size_t)t0 * KVS__TILE, KVS__CHUNK, n, t1 - t0, w->mask + t0,
                     KVS__CHUNK_TILES, j->d->softcap, w->m, w->l);
    if (reads_codes(&j->s->fmt, KVS__V)) {
        code_values(j, w, head, n, c0, t0, t1);
    } else {
        values(j, w, head, n, c0);
    }
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
        sinks = max64(sinks, v.sinks);
        begin = min64(begin, v.begin);
        end = max64(end, v.end);
    }
    if (j->d->mode == KVS_READ_BIDIRECTIONAL) {
        begin = min64(begin, j->d->q_pos);
        end = max64(end, min64(j->d->q_pos + (int64_t)j->d->n_queries, j->s->len));
    }
    int64_t c = (int64_t)KVS__CHUNK;
    kvs__chunk_list l = {(sinks + c - 1) / c, begin / c, 0};
    l.n_sink = min64(l.n_sink, l.first);
    l.n = l.n_sink + (end + c - 1) / c - l.first;
    return l;
}

int64_t kvs__chunk_at(const kvs__chunk_list *l, int64_t i)
{
    return (i < l->n_sink ? i : l->first + i - l->n_sink) * (int64_t)KVS__CHUNK;
}
