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
 * split: few rows (decode) of KV heads that the threads can't share out evenly: an item is some
 * chunks of one head; partial results are joined after, which costs up to a sixth more. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/pool.h"
#include "kern/math.h"
#include "state/chunk.h"

#define SPLIT_BYTES ((size_t)1 << 20) /* of partial results between two joins */
#define GROUP       4u     /* chunks of a split item, so that a thread reads some pages in a row */
#define INLINE_WORK 65536u /* multiply-adds below which waking a thread costs more than it saves */

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t row_floats(const kvs__fmt *fmt)
{
    return (size_t)fmt->side[KVS__V].shape.dim + 2;
}

/* Bytes of totals of all heads, then of partial results: at least one chunk of the most rows. */
static bool split_bytes(const kvs__fmt *fmt, size_t *total, size_t *part)
{
    size_t n = 0;
    if (!kvs__mul_size(row_floats(fmt) * sizeof(float) * KVS__ROWS, fmt->n_heads, &n)) {
        return false;
    }
    *total = round_up(n);
    *part = n > SPLIT_BYTES ? round_up(n) : SPLIT_BYTES;
    return true;
}

bool kvs__attend_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes)
{
    kvs__work w;
    size_t total = 0;
    size_t part = 0;
    size_t threads = 0;
    return kvs__mul_size(kvs__work_carve(fmt, NULL, &w), n_threads, &threads) &&
           split_bytes(fmt, &total, &part) && kvs__add_size(threads, total, bytes) &&
           kvs__add_size(*bytes, part, bytes);
}

/* -- queries in, rows out */

static const unsigned char *element(const void *base, kvs_dtype t, size_t index)
{
    return (const unsigned char *)base + index * (t == KVS_F32 ? 4 : 2);
}

static void load_queries(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t row0,
                         uint32_t n)
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
        kvs__kern_widen(j->kern, q, src, d->q_dtype, dim);
    }
    if (k->rot) {
        j->kern->hadamard(w->q, n * dim / k->rot, k->rot);
    }
    for (size_t i = 0; i < n * dim; i++) {
        w->q[i] *= d->scale;
    }
    kvs__queries_ready(j, w, n);
}

/* Joins the sink logit, divides, turns back, rounds and stores one row. */
static void finish_row(const kvs__job *j, uint32_t head, uint32_t row, float *acc, float m, float l)
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
/* -- whole: an item is a block of rows */

static void whole_item(void *arg, size_t item, uint32_t thread)
{
    const kvs__job *j = arg;
    kvs__work w;
    (void)kvs__work_carve(&j->s->fmt, j->scratch + thread * j->thread_bytes, &w);
    uint32_t head = (uint32_t)(item / j->n_blocks);
    uint32_t row0 = (uint32_t)(item % j->n_blocks) * KVS__ROWS;
    uint32_t n = j->head_rows - row0 < KVS__ROWS ? j->head_rows - row0 : KVS__ROWS;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    load_queries(j, &w, head, row0, n);
    memset(w.tot, 0, n * dim * sizeof(float));
    for (uint32_t r = 0; r < n; r++) {
        w.tm[r] = -FLT_MAX;
        w.tl[r] = 0.0f;
    }
    kvs__chunk_list l = kvs__list_chunks(j, row0, n);
    for (int64_t i = 0; i < l.n; i++) {
        if (!kvs__chunk(j, &w, head, row0, n, kvs__chunk_at(&l, i))) {
            continue;
        }
        for (uint32_t r = 0; r < n; r++) {
            if (kvs__row_sees(&w, r)) {
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

static float *part_row(const kvs__job *j, uint32_t wave_chunk, uint32_t head, uint32_t row)
{
    size_t i = ((size_t)wave_chunk * j->s->fmt.n_heads + head) * j->head_rows + row;
    return j->part + i * row_floats(&j->s->fmt);
}

static void split_chunk(const kvs__job *j, const kvs__work *w, const kvs__chunk_list *l,
                        uint32_t head, uint32_t at)
{
    uint32_t n = j->head_rows;
    size_t dim = j->s->fmt.side[KVS__V].shape.dim;
    bool any = kvs__chunk(j, w, head, 0, n, kvs__chunk_at(l, (int64_t)j->wave_first + at));
    for (uint32_t r = 0; r < n; r++) {
        float *out = part_row(j, at, head, r);
        if (!any || !kvs__row_sees(w, r)) {
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
    const kvs__job *j = arg;
    kvs__work w;
    (void)kvs__work_carve(&j->s->fmt, j->scratch + thread * j->thread_bytes, &w);
    uint32_t groups = (j->wave_n + GROUP - 1) / GROUP;
    uint32_t head = (uint32_t)(item / groups);
    uint32_t first = (uint32_t)(item % groups) * GROUP;
    uint32_t end = first + GROUP < j->wave_n ? first + GROUP : j->wave_n;
    kvs__chunk_list l = kvs__list_chunks(j, 0, j->head_rows);
    if (*w.head != (int64_t)head) {
        load_queries(j, &w, head, 0, j->head_rows);
        *w.head = (int64_t)head;
    }
    for (uint32_t at = first; at < end; at++) {
        split_chunk(j, &w, &l, head, at);
    }
}

static void join_item(void *arg, size_t item, uint32_t thread)
{
    const kvs__job *j = arg;
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

static void run_split(kvs__job *j, const kvs__chunk_list *l)
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
    for (uint32_t i = 0; i < kvs__ctx_threads(j->ctx); i++) {
        kvs__work w;
        (void)kvs__work_carve(&j->s->fmt, j->scratch + i * j->thread_bytes, &w);
        *w.head = -1;
    }
    for (int64_t i = 0; i < l->n; i += most) {
        j->wave_first = (uint32_t)i;
        j->wave_n = (uint32_t)min64(most, l->n - i);
        j->wave_last = i + most >= l->n;
        kvs__pool_run(pool, (size_t)((j->wave_n + GROUP - 1) / GROUP) * heads, split_item, j);
        kvs__pool_run(pool, heads, join_item, j);
    }
}

static kvs__job make_job(kvs_ctx *ctx, const kvs__store *s, const kvs_attend *desc,
                         uint32_t q_begin, uint32_t q_end)
{
    kvs__work w;
    kvs__job j = {.ctx = ctx,
                  .kern = kvs__ctx_kern(ctx),
                  .s = s,
                  .d = desc,
                  .q_begin = q_begin,
                  .q_end = q_end,
                  .rep = desc->n_q_heads / s->fmt.n_heads,
                  .thread_bytes = kvs__work_carve(&s->fmt, NULL, &w)};
    j.head_rows = (q_end - q_begin) * j.rep;
    j.n_blocks = (j.head_rows + KVS__ROWS - 1) / KVS__ROWS;
    return j;
}

void kvs__attend_run_here(kvs_ctx *ctx, const kvs__store *s, const kvs_attend *desc,
                          uint32_t q_begin, uint32_t q_end, void *scratch)
{
    kvs__job j = make_job(ctx, s, desc, q_begin, q_end);
    j.scratch = scratch;
    for (size_t i = 0; i < (size_t)j.n_blocks * s->fmt.n_heads; i++) {
        whole_item(&j, i, 0);
    }
}

void kvs__attend_run(kvs_ctx *ctx, const kvs__store *s, const kvs__store *tail,
                     const kvs_attend *desc, uint32_t q_begin, uint32_t q_end)
{
    uint32_t threads = kvs__ctx_threads(ctx);
    size_t bytes = 0;
    bool fits = kvs__attend_scratch_bytes(&s->fmt, threads, &bytes);
    KVS_ASSERT(fits && bytes <= kvs__ctx_scratch_bytes(ctx));
    (void)fits;
    kvs__job j = make_job(ctx, s, desc, q_begin, q_end);
    j.tail = tail;
    j.scratch = kvs__ctx_scratch(ctx, bytes);
    size_t items = (size_t)j.n_blocks * s->fmt.n_heads;
    kvs__chunk_list l = kvs__list_chunks(&j, 0, j.head_rows);
    size_t dims = (size_t)s->fmt.side[KVS__K].shape.dim + s->fmt.side[KVS__V].shape.dim;
    if (threads == 1 ||
        (size_t)l.n * KVS__CHUNK * dims * j.head_rows * s->fmt.n_heads < INLINE_WORK) {
        for (size_t i = 0; i < items; i++) {
            whole_item(&j, i, 0);
        }
    } else if (j.head_rows <= KVS__ROWS && l.n > 1 && items % threads != 0 &&
               items < 4 * (size_t)threads) {
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
    if (rows > UINT32_MAX - KVS__ROWS) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%u queries of %u heads are too many",
                         d->n_queries, d->n_q_heads);
    }
    return check_mode(d, err);
}
