/* SPDX-License-Identifier: MIT */
/* write.c: rows into and out of storage: rotate, encode once, place; and the way back.
 *
 * Work is cut at the tile grid of positions, one head and at most 16 tokens an item, so items never
 * touch a common byte and the split over threads can't show. */
#include <string.h>

#include "base/pool.h"
#include "kern/affine.h"
#include "state/store.h"

#define SCRATCH_ALIGN 64u

/* Scratch of one put: f32 scales and biases, then the encoded units of 16 rows. */
typedef struct put_scratch {
    float *scale; /* [16][groups] */
    float *bias;
    void *units[KVS__PLANES]; /* [16][n_units] */
} put_scratch;

static size_t round_up(size_t n)
{
    return (n + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

static size_t side_scratch(const kvs__side *s)
{
    size_t n = 2 * round_up((size_t)KVS__TILE * s->n_units[1] * sizeof(float));
    for (int p = 0; p < KVS__PLANES; p++) {
        n += round_up((size_t)KVS__TILE * s->n_units[p] * s->unit_bytes[p]);
    }
    return n;
}

size_t kvs__put_scratch_bytes(const kvs__fmt *fmt)
{
    size_t k = side_scratch(&fmt->side[KVS__K]);
    size_t v = side_scratch(&fmt->side[KVS__V]);
    return k > v ? k : v;
}

static size_t rows_bytes(const kvs__fmt *fmt)
{
    uint32_t k = fmt->side[KVS__K].shape.dim;
    uint32_t v = fmt->side[KVS__V].shape.dim;
    return round_up((size_t)KVS__TILE * (k > v ? k : v) * sizeof(float));
}

/* A centre as f32, and as it is stored. */
static size_t center_bytes(const kvs__fmt *fmt)
{
    size_t f32 = round_up(fmt->side[KVS__K].shape.dim * sizeof(float));
    return fmt->center_bytes ? 2 * f32 : 0;
}

bool kvs__write_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes)
{
    return kvs__mul_size(2 * rows_bytes(fmt) + kvs__put_scratch_bytes(fmt) + center_bytes(fmt),
                         n_threads, bytes);
}

static put_scratch carve(const kvs__side *s, unsigned char *at)
{
    put_scratch p;
    size_t scales = round_up((size_t)KVS__TILE * s->n_units[1] * sizeof(float));
    p.scale = (float *)(void *)at;
    p.bias = (float *)(void *)(at + scales);
    at += 2 * scales;
    for (int i = 0; i < KVS__PLANES; i++) {
        p.units[i] = at;
        at += round_up((size_t)KVS__TILE * s->n_units[i] * s->unit_bytes[i]);
    }
    return p;
}

/* Scales and biases keep MLX's NaN. */
static void store_scales(void *dst, kvs_dtype dtype, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kvs__store_mlx(dst, dtype, i, src[i]);
    }
}

static void encode(const kvs__kern *kern, const kvs__side *s, size_t n, float *rows,
                   const float *center, const put_scratch *p)
{
    size_t dim = s->shape.dim;
    if (s->rot) {
        kern->hadamard(rows, n * dim / s->rot, s->rot);
    }
    for (size_t i = 0; center && i < n; i++) {
        for (size_t d = 0; d < dim; d++) {
            rows[i * dim + d] -= center[d];
        }
    }
    if (s->shape.bits) {
        size_t groups = n * s->n_units[1];
        kern->affine_encode(rows, groups, s->shape.bits, s->shape.group, p->units[0], p->scale,
                            p->bias);
        store_scales(p->units[1], s->shape.dtype, p->scale, groups);
        store_scales(p->units[2], s->shape.dtype, p->bias, groups);
    } else if (s->shape.dtype == KVS_F16) {
        kern->f16_from_f32(p->units[0], rows, n * dim);
    } else if (s->shape.dtype == KVS_BF16) {
        kern->bf16_from_f32(p->units[0], rows, n * dim);
    } else {
        memcpy(p->units[0], rows, n * dim * sizeof(float));
    }
}

/* Rows [n][n_units] into lanes lane .. lane+n-1 of a K tile, unit by unit. */
static void scatter(unsigned char *tile, const void *rows, size_t n, size_t n_units,
                    size_t unit_bytes, size_t lane)
{
    if (unit_bytes == 4) {
        uint32_t *dst = (uint32_t *)(void *)tile + lane;
        const uint32_t *src = rows;
        for (size_t u = 0; u < n_units; u++) {
            for (size_t j = 0; j < n; j++) {
                dst[u * KVS__TILE + j] = src[j * n_units + u];
            }
        }
    } else {
        uint16_t *dst = (uint16_t *)(void *)tile + lane;
        const uint16_t *src = rows;
        for (size_t u = 0; u < n_units; u++) {
            for (size_t j = 0; j < n; j++) {
                dst[u * KVS__TILE + j] = src[j * n_units + u];
            }
        }
    }
}

static void gather(void *rows, const unsigned char *tile, size_t n, size_t n_units,
                   size_t unit_bytes, size_t lane)
{
    unsigned char *out = rows;
    for (size_t j = 0; j < n; j++) {
        for (size_t u = 0; u < n_units; u++) {
            memcpy(out, tile + (u * KVS__TILE + lane + j) * unit_bytes, unit_bytes);
            out += unit_bytes;
        }
    }
}

/* Units of one plane of n tokens at slots slot .. slot+n-1 of one K tile or of V rows. */
static void place(const kvs__store *s, const kvs__seg *seg, int side, int plane, uint32_t head,
                  uint64_t slot, size_t n, const void *rows)
{
    const kvs__side *sd = &s->fmt.side[side];
    size_t units = sd->n_units[plane];
    size_t ub = sd->unit_bytes[plane];
    if (side == KVS__V) {
        memcpy(kvs__v_row_at(s, seg, plane, head, slot), rows, n * units * ub);
        return;
    }
    unsigned char *tile = kvs__k_tile_at(s, seg, plane, head, slot / KVS__TILE);
    size_t lane = slot % KVS__TILE;
    if (lane == 0 && n < KVS__TILE && s->layout == KVS_LAYOUT_GROW) {
        memset(tile, 0, KVS__TILE * units * ub); /* store.h I4 */
    }
    scatter(tile, rows, n, units, ub, lane);
}

/* Both homes of positions [at, at + n): the segment that locate names and, for a ring's sinks,
 * the sink segment. Sinks that the ring has dropped go to the latter alone: their slots belong to
 * later positions, which another thread may be writing. */
static void place_all(kvs__store *s, int side, int plane, uint32_t head, int64_t at, uint64_t n,
                      const void *rows)
{
    bool sinks = s->layout == KVS_LAYOUT_RING && at < (int64_t)s->sinks;
    if (sinks) {
        uint64_t m = (uint64_t)((int64_t)s->sinks - at);
        place(s, s->seg[1], side, plane, head, (uint64_t)at, m < n ? m : n, rows);
    }
    if (s->layout == KVS_LAYOUT_RING) {
        uint64_t gone = at < s->lo ? (uint64_t)(s->lo - at) : 0;
        if (gone < n) {
            const kvs__side *sd = &s->fmt.side[side];
            const unsigned char *kept =
                (const unsigned char *)rows + gone * sd->n_units[plane] * sd->unit_bytes[plane];
            place(s, s->seg[0], side, plane, head, ((uint64_t)at + gone) % s->ring_cap, n - gone,
                  kept);
        }
        return;
    }
    const kvs__side *sd = &s->fmt.side[side];
    const unsigned char *src = rows;
    while (n > 0) { /* more than once: pages that do not start on the tile grid */
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t m = kvs__store_locate(s, at, n, &seg, &slot);
        uint64_t room = KVS__TILE - slot % KVS__TILE;
        m = side == KVS__K && m > room ? room : m;
        place(s, seg, side, plane, head, slot, (size_t)m, src);
        src += m * sd->n_units[plane] * sd->unit_bytes[plane];
        at += (int64_t)m;
        n -= m;
    }
}

void kvs__store_put(kvs_ctx *ctx, kvs__store *s, int side, uint32_t head, int64_t at, uint64_t n,
                    float *rows, const float *center, unsigned char *scratch)
{
    const kvs__side *sd = &s->fmt.side[side];
    put_scratch p = carve(sd, scratch);
    encode(kvs__ctx_kern(ctx), sd, (size_t)n, rows, center, &p);
    for (int plane = 0; plane < KVS__PLANES; plane++) {
        if (sd->n_units[plane]) {
            place_all(s, side, plane, head, at, n, p.units[plane]);
        }
    }
}

void kvs__store_set_units(kvs__store *s, int side, int plane, uint32_t head, int64_t at, uint64_t n,
                          const unsigned char *src)
{
    size_t row = (size_t)s->fmt.side[side].n_units[plane] * s->fmt.side[side].unit_bytes[plane];
    while (n > 0) {
        uint64_t room = KVS__TILE - (uint64_t)at % KVS__TILE;
        uint64_t m = n < room ? n : room;
        /* an aligned bounce buffer is not needed: scatter reads by element */
        place_all(s, side, plane, head, at, m, src);
        src += m * row;
        at += (int64_t)m;
        n -= m;
    }
}

void kvs__store_get_units(const kvs__store *s, int side, int plane, uint32_t head, int64_t at,
                          uint64_t n, unsigned char *dst)
{
    size_t units = s->fmt.side[side].n_units[plane];
    size_t ub = s->fmt.side[side].unit_bytes[plane];
    while (n > 0) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t m = kvs__store_locate(s, at, n, &seg, &slot);
        if (side == KVS__V) {
            memcpy(dst, kvs__v_row_at(s, seg, plane, head, slot), (size_t)m * units * ub);
        } else {
            uint64_t room = KVS__TILE - slot % KVS__TILE;
            m = m < room ? m : room;
            gather(dst, kvs__k_tile_at(s, seg, plane, head, slot / KVS__TILE), (size_t)m, units, ub,
                   slot % KVS__TILE);
        }
        dst += m * units * ub;
        at += (int64_t)m;
        n -= m;
    }
}

typedef struct write_job {
    kvs_ctx *ctx;
    kvs__store *dst;
    const kvs__store *src; /* transcode */
    const kvs_kv *kv;      /* write */
    int64_t kv_pos;
    const kvs__store *before; /* write: positions below dst->lo */
    int64_t begin;
    int64_t end;
    int64_t from; /* centred: where positions begin that a centre may be made of, sinks apart */
    uint32_t n_heads;
    size_t thread_bytes;
    unsigned char *scratch;
} write_job;

/* Item -> head and the part of [begin, end) inside one tile of the position grid. */
static bool item_range(const write_job *j, size_t item, uint32_t *head, int64_t *at, uint64_t *n)
{
    int64_t tile = j->begin / (int64_t)KVS__TILE + (int64_t)(item / j->n_heads);
    int64_t lo = tile * (int64_t)KVS__TILE;
    int64_t hi = lo + (int64_t)KVS__TILE;
    *head = (uint32_t)(item % j->n_heads);
    *at = lo > j->begin ? lo : j->begin;
    hi = hi < j->end ? hi : j->end;
    *n = (uint64_t)(hi - *at);
    return hi > *at;
}

static size_t n_tiles(const write_job *j)
{
    int64_t tiles =
        (j->end + (int64_t)KVS__TILE - 1) / (int64_t)KVS__TILE - j->begin / (int64_t)KVS__TILE;
    return (size_t)tiles;
}

/* Rows of one side and head, at most a tile. */
static void write_rows(const write_job *j, int side, uint32_t head, int64_t at, uint64_t n,
                       const float *center, unsigned char *scratch)
{
    float *rows = (float *)(void *)scratch;
    unsigned char *rest = scratch + 2 * rows_bytes(&j->dst->fmt);
    const kvs__kern *kern = kvs__ctx_kern(j->ctx);
    const unsigned char *base = side == KVS__K ? j->kv->k : j->kv->v;
    size_t hs = side == KVS__K ? j->kv->k_head_stride : j->kv->v_head_stride;
    size_t ts = side == KVS__K ? j->kv->k_token_stride : j->kv->v_token_stride;
    size_t elem = j->kv->dtype == KVS_F32 ? 4 : 2;
    const kvs__shape *shape = &j->dst->fmt.side[side].shape;
    size_t dim = shape->dim;
    size_t hstride = hs ? hs : dim;
    size_t tstride = ts ? ts : dim * j->n_heads;
    /* elements of the stored type are not touched: widening would quiet a signalling NaN */
    bool copy = shape->bits == 0 && shape->dtype == j->kv->dtype;
    for (uint64_t i = 0; i < n; i++) {
        size_t t = (size_t)(at - j->kv_pos) + (size_t)i;
        const unsigned char *src = base + (t * tstride + head * hstride) * elem;
        if (copy) {
            memcpy(scratch + i * dim * elem, src, dim * elem);
        } else {
            kvs__kern_widen(kern, rows + i * dim, src, j->kv->dtype, dim);
        }
    }
    if (copy) {
        place_all(j->dst, side, 0, head, at, n, scratch);
    } else {
        kvs__store_put(j->ctx, j->dst, side, head, at, n, rows, center, rest);
    }
}

static void put_rows(const write_job *j, int side, uint32_t head, int64_t at, uint64_t n,
                     const float *center, unsigned char *scratch)
{
    float *rows = (float *)(void *)scratch;
    if (j->kv) {
        write_rows(j, side, head, at, n, center, scratch);
        return;
    }
    kvs__store_read(j->ctx, j->src, side, head, at, n, rows);
    kvs__store_put(j->ctx, j->dst, side, head, at, n, rows, center,
                   scratch + 2 * rows_bytes(&j->dst->fmt));
}

/* The centre of the group of position `at`, of which no position from `at` on is written yet: the
 * one that earlier tokens of the group have, else made. */
static void center_of(const write_job *j, uint32_t head, int64_t at, float *rows, float *center,
                      void *stored)
{
    const kvs__store *s = j->dst;
    int64_t first = at - at % (int64_t)KVS_CENTER_GROUP;
    const kvs__store *old = j->before && at == s->lo ? j->before : s;
    int64_t have = kvs__store_holds(old, at - 1) ? at - 1 : first;
    if (first < at && kvs__store_holds(old, have)) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        (void)kvs__store_locate(old, have, 1, &seg, &slot);
        memcpy(stored, kvs__center_at(old, seg, head, have, slot), s->fmt.center_bytes);
        (void)kvs__center_get(kvs__ctx_kern(j->ctx), old, head, have, 1, center);
        return;
    }
    kvs__center_make(j->ctx, s, j->before, j->from, head, first, rows, center, stored);
}

/* Centred keys of one head, in ascending order: a group's centre is made of the keys before it. */
static void put_centered(const write_job *j, uint32_t head, unsigned char *scratch)
{
    const kvs__fmt *fmt = &j->dst->fmt;
    unsigned char *at_center = scratch + 2 * rows_bytes(fmt) + kvs__put_scratch_bytes(fmt);
    float *center = (float *)(void *)at_center;
    void *stored = at_center + center_bytes(fmt) / 2;
    for (int64_t at = j->begin; at < j->end;) {
        int64_t end = at + (int64_t)KVS__TILE - at % (int64_t)KVS__TILE;
        end = end < j->end ? end : j->end;
        if (at == j->begin || at % (int64_t)KVS_CENTER_GROUP == 0) {
            center_of(j, head, at, (float *)(void *)scratch, center, stored);
        }
        kvs__center_put(j->dst, head, at, (uint64_t)(end - at), stored);
        put_rows(j, KVS__K, head, at, (uint64_t)(end - at), center, scratch);
        at = end;
    }
}

/* Items of a centred store: the keys of each head, then tiles of values. */
static void put_item(void *arg, size_t item, uint32_t thread)
{
    const write_job *j = arg;
    uint32_t head = 0;
    int64_t at = 0;
    uint64_t n = 0;
    unsigned char *scratch = j->scratch + thread * j->thread_bytes;
    bool centered = j->dst->fmt.center_bytes > 0;
    if (centered && item < j->n_heads) {
        put_centered(j, (uint32_t)item, scratch);
        return;
    }
    item -= centered ? j->n_heads : 0;
    if (!item_range(j, item, &head, &at, &n)) {
        return;
    }
    for (int side = centered; side < KVS__SIDES && side < (int)j->dst->fmt.n_sides; side++) {
        put_rows(j, side, head, at, n, NULL, scratch);
    }
}

static void run_job(write_job *j)
{
    size_t bytes = 0;
    uint32_t threads = kvs__ctx_threads(j->ctx);
    bool fits = kvs__write_scratch_bytes(&j->dst->fmt, threads, &bytes);
    KVS_ASSERT(fits);
    (void)fits;
    j->thread_bytes = bytes / threads;
    j->scratch = kvs__ctx_scratch(j->ctx, bytes);
    size_t tiles = n_tiles(j) * j->n_heads;
    size_t n = tiles + (j->dst->fmt.center_bytes ? j->n_heads : 0);
    /* One token of a few heads is not worth waking a thread: about 1 us of work a row. */
    if (tiles < 16) {
        for (size_t i = 0; i < n; i++) {
            put_item(j, i, 0);
        }
    } else {
        kvs__pool_run(kvs__ctx_pool(j->ctx), n, put_item, j);
    }
}

void kvs__store_write(kvs_ctx *ctx, kvs__store *s, const kvs__store *before, int64_t at, uint64_t n,
                      const kvs_kv *kv, int64_t kv_pos)
{
    write_job j = {.ctx = ctx,
                   .dst = s,
                   .kv = kv,
                   .kv_pos = kv_pos,
                   .before = before,
                   .begin = at,
                   .end = at + (int64_t)n,
                   .n_heads = s->fmt.n_heads};
    run_job(&j);
}

/* Adds to m keys the centre of their block, which is that of position `at`. */
static void add_center(const kvs__kern *kern, const kvs__store *s, uint32_t head, int64_t at,
                       float *keys, uint64_t m)
{
    const size_t dim = s->fmt.side[KVS__K].shape.dim;
    float center[1024];
    (void)kvs__center_get(kern, s, head, at, 1, center);
    for (size_t i = 0; i < m * dim; i += dim) {
        for (size_t d = 0; d < dim; d++) {
            keys[i + d] += center[d];
        }
    }
}

void kvs__store_read_stored(kvs_ctx *ctx, const kvs__store *s, int side, uint32_t head, int64_t at,
                            uint64_t n, float *dst)
{
    const kvs__kern *kern = kvs__ctx_kern(ctx);
    const kvs__side *sd = &s->fmt.side[side];
    size_t dim = sd->shape.dim;
    float tile[KVS__TILE * 1024];
    uint64_t done = 0;
    while (done < n) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        uint64_t m = kvs__store_locate(s, at + (int64_t)done, n - done, &seg, &slot);
        uint64_t room = KVS__TILE - slot % KVS__TILE;
        m = side == KVS__K && m > room ? room : m;
        kvs__planes p = {NULL, NULL, NULL, 0, 0};
        const void **plane[KVS__PLANES] = {&p.data, &p.scale, &p.bias};
        for (int i = 0; i < KVS__PLANES; i++) {
            if (sd->n_units[i]) {
                *plane[i] = side == KVS__K ? kvs__k_tile_at(s, seg, i, head, slot / KVS__TILE)
                                           : kvs__v_row_at(s, seg, i, head, slot);
            }
        }
        if (side == KVS__V) {
            kern->v_rows(dst + done * dim, dim, &sd->shape, &p, (size_t)m);
        } else {
            kern->k_tile(tile, &sd->shape, &p);
            gather(dst + done * dim, (const unsigned char *)tile, (size_t)m, dim, sizeof(float),
                   slot % KVS__TILE);
        }
        if (side == KVS__K && s->fmt.center_bytes) {
            add_center(kern, s, head, at + (int64_t)done, dst + done * dim, m);
        }
        done += m;
    }
}

void kvs__store_read(kvs_ctx *ctx, const kvs__store *s, int side, uint32_t head, int64_t at,
                     uint64_t n, float *dst)
{
    const kvs__side *sd = &s->fmt.side[side];
    kvs__store_read_stored(ctx, s, side, head, at, n, dst);
    if (sd->rot) {
        kvs__ctx_kern(ctx)->hadamard(dst, (size_t)n * sd->shape.dim / sd->rot, sd->rot);
    }
}

static void transcode_range(kvs_ctx *ctx, kvs__store *dst, const kvs__store *src, int64_t begin,
                            int64_t end)
{
    /* what any store of these tokens holds, however much more this one does */
    int64_t live = src->window ? src->len - (int64_t)src->window + 1 : 0;
    write_job j = {.ctx = ctx,
                   .dst = dst,
                   .src = src,
                   .begin = begin,
                   .end = end,
                   .from = live > src->lo ? live : src->lo,
                   .n_heads = dst->fmt.n_heads};
    if (end > begin) {
        run_job(&j);
    }
}

void kvs__store_transcode(kvs_ctx *ctx, kvs__store *dst, const kvs__store *src)
{
    int64_t sinks = src->len < (int64_t)src->sinks ? src->len : (int64_t)src->sinks;
    if (src->lo > 0 && sinks > 0) {
        kvs__store_advance(dst, (uint64_t)sinks);
        transcode_range(ctx, dst, src, 0, sinks);
    }
    kvs__store_jump(dst, src->lo);
    kvs__store_advance(dst, (uint64_t)(src->len - src->lo));
    /* src may have more than its window, blocks that were lent to it; dst lets go of them at once */
    int64_t lo = src->lo > dst->lo ? src->lo : dst->lo;
    transcode_range(ctx, dst, src, src->lo, sinks < lo ? sinks : lo);
    transcode_range(ctx, dst, src, lo, src->len);
}
