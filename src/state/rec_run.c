/* SPDX-License-Identifier: MIT */
/* rec_run.c: what recurrent layers compute, shared out over threads.
 *
 * A thread's item is a run of state tiles (scan) or a block of channels (convolution): it writes its
 * own output alone, so threads cannot show. A scan goes over BLOCK tokens before it moves to the
 * next tile, so that an 8 KiB tile is read from memory once per BLOCK tokens; blocks are no grid:
 * every token is one step of one serial chain, wherever blocks begin. */
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "state/recurrent.h"

enum {
    BLOCK = 64,      /* tokens between two barriers of the threads; bounds the gates' scratch */
    CONV_CH = 128,   /* channels of an item: two KiB of taps, 18 KiB of inputs */
    CONV_TOKENS = 32 /* inputs gathered at a time */
};

typedef struct scan_job {
    const kvs__kern *k;
    const kvs__rec *r;
    float *dst;
    const float *src;
    kvs__scan in; /* of head 0, row 0 */
    const float *d;
    float *y;
    size_t ldy;
    size_t n;
    size_t n_items;
} scan_job;

static size_t n_tiles(const kvs__rec *r)
{
    return r->spec.n_heads * r->plan.tiles_per_head;
}

static void scan_tile(const scan_job *j, size_t tile)
{
    const kvs_recurrent_spec *s = &j->r->spec;
    size_t head = tile / j->r->plan.tiles_per_head;
    size_t row = tile % j->r->plan.tiles_per_head * KVS__TILE;
    size_t group = head / (s->n_heads / s->n_groups);
    size_t rows = s->head_dim - row < KVS__TILE ? s->head_dim - row : KVS__TILE;
    size_t at = tile * KVS__TILE * s->state_dim;
    kvs__scan in = j->in;
    in.k += group * s->state_dim;
    in.q = in.q ? in.q + group * s->state_dim : NULL;
    in.v += head * s->head_dim + row;
    in.g += head;
    in.b += head;
    in.skip = j->d ? j->d[head] : 0.0f;
    float *y = j->y ? j->y + head * s->head_dim + row : NULL;
    if (s->rule == KVS_RECURRENT_SSD) {
        j->k->scan_ssd(j->dst + at, j->src + at, rows, s->state_dim, &in, j->n, y, j->ldy);
    } else {
        j->k->scan_delta(j->dst + at, j->src + at, rows, s->state_dim, &in, j->n, y, j->ldy);
    }
}

static void scan_item(void *arg, size_t item, uint32_t thread)
{
    (void)thread;
    const scan_job *j = arg;
    size_t all = n_tiles(j->r);
    size_t end = all * (item + 1) / j->n_items;
    for (size_t tile = all * item / j->n_items; tile < end; tile++) {
        scan_tile(j, tile);
    }
}

static void run_scan(kvs_ctx *ctx, scan_job *j)
{
    size_t most = (size_t)kvs__ctx_threads(ctx) * 8;
    j->n_items = n_tiles(j->r) < most ? n_tiles(j->r) : most;
    kvs__pool_run(kvs__ctx_pool(ctx), j->n_items, scan_item, j);
}

static size_t stride_or(size_t stride, size_t dense)
{
    return stride ? stride : dense;
}

static size_t conv_scratch(const kvs_recurrent_spec *s)
{
    size_t rows = CONV_TOKENS + s->conv_taps;
    return s->conv_dim ? (rows * CONV_CH + CONV_CH) * sizeof(float) : 0;
}

size_t kvs__rec_scratch_bytes(const kvs_recurrent_spec *s, uint32_t n_threads)
{
    size_t conv = conv_scratch(s) * n_threads;
    size_t gates = (size_t)2 * BLOCK * s->n_heads * sizeof(float);
    return conv > gates ? conv : gates;
}

/* Records one token, as the ring of records lays it. */
static void keep_record(const kvs__rec *r, int64_t pos, const float *k, const float *v,
                        const float *g, const float *b)
{
    const kvs_recurrent_spec *s = &r->spec;
    size_t nk = (size_t)s->n_groups * s->state_dim;
    size_t nv = (size_t)s->n_heads * s->head_dim;
    float *at = r->records + (size_t)pos % r->plan.n_records * r->plan.record;
    memcpy(at, k, nk * sizeof *at);
    memcpy(at + nk, v, nv * sizeof *at);
    memcpy(at + nk + nv, g, s->n_heads * sizeof *at);
    memcpy(at + nk + nv + s->n_heads, b, s->n_heads * sizeof *at);
}

static void block_gates(kvs_ctx *ctx, const kvs__rec *r, const kvs_recurrent_step *step,
                        size_t first, size_t n, float *g, float *b)
{
    const kvs_recurrent_spec *s = &r->spec;
    const kvs__kern *kern = kvs__ctx_kern(ctx);
    bool limits = step->dt_min != 0.0f || step->dt_max != 0.0f;
    float lo = limits ? step->dt_min : 0.0f;
    float hi = limits ? step->dt_max : HUGE_VALF;
    size_t lda = stride_or(step->a_stride, s->n_heads);
    size_t ldb = stride_or(step->b_stride, s->n_heads);
    for (size_t t = 0; t < n; t++) {
        const float *beta = s->rule == KVS_RECURRENT_SSD ? NULL : step->b + (first + t) * ldb;
        kern->gates(g + t * s->n_heads, b + t * s->n_heads, step->a + (first + t) * lda, beta,
                    step->dt_bias, step->decay, lo, hi, s->n_heads);
    }
}

void kvs__rec_run(kvs_ctx *ctx, const kvs__rec *r, kvs__rec_slot *dst, kvs__rec_slot *src,
                  const kvs_recurrent_step *step, uint32_t first, uint32_t n)
{
    const kvs_recurrent_spec *s = &r->spec;
    scan_job j = {.k = kvs__ctx_kern(ctx), .r = r, .d = step->d};
    float *g = kvs__ctx_scratch(ctx, kvs__rec_scratch_bytes(s, kvs__ctx_threads(ctx)));
    float *b = g + (size_t)BLOCK * s->n_heads;
    j.in.ldk = stride_or(step->k_stride, (size_t)s->n_groups * s->state_dim);
    j.in.ldq = stride_or(step->q_stride, (size_t)s->n_groups * s->state_dim);
    j.in.ldv = stride_or(step->v_stride, (size_t)s->n_heads * s->head_dim);
    j.in.ldg = s->n_heads;
    j.in.g = g;
    j.in.b = b;
    j.ldy = stride_or(step->y_stride, (size_t)s->n_heads * s->head_dim);
    j.dst = kvs__rec_state(dst);
    /* the tokens whose records the ring will still hold at the end of the step */
    int64_t keep = r->len + (int64_t)step->n_tokens - (int64_t)r->plan.n_records;
    for (size_t t = first; t < (size_t)first + n; t += j.n) {
        size_t left = (size_t)first + n - t;
        j.n = left < BLOCK ? left : BLOCK;
        j.src = t == first ? kvs__rec_state(src) : j.dst;
        j.in.k = step->k + t * j.in.ldk;
        j.in.v = step->v + t * j.in.ldv;
        j.in.q = step->y ? step->q + t * j.in.ldq : NULL;
        j.y = step->y ? step->y + t * j.ldy : NULL;
        block_gates(ctx, r, step, t, j.n, g, b);
        run_scan(ctx, &j);
        for (size_t i = 0; r->plan.n_records && i < j.n; i++) {
            int64_t pos = r->len + (int64_t)(t + i);
            if (pos >= keep) {
                keep_record(r, pos, j.in.k + i * j.in.ldk, j.in.v + i * j.in.ldv,
                            g + i * s->n_heads, b + i * s->n_heads);
            }
        }
    }
}

void kvs__rec_replay(kvs_ctx *ctx, const kvs__rec *r, kvs__rec_slot *dst, kvs__rec_slot *src,
                     int64_t from, int64_t to)
{
    const kvs_recurrent_spec *s = &r->spec;
    scan_job j = {.k = kvs__ctx_kern(ctx), .r = r};
    size_t nk = (size_t)s->n_groups * s->state_dim;
    size_t nv = (size_t)s->n_heads * s->head_dim;
    j.in.ldk = r->plan.record;
    j.in.ldv = r->plan.record;
    j.in.ldg = r->plan.record;
    j.dst = kvs__rec_state(dst);
    j.src = kvs__rec_state(src);
    while (from < to) {
        size_t at = (size_t)from % r->plan.n_records;
        size_t left = (size_t)(to - from);
        size_t run = r->plan.n_records - at;
        j.n = left < run ? left : run;
        j.in.k = r->records + at * r->plan.record;
        j.in.v = j.in.k + nk;
        j.in.g = j.in.v + nv;
        j.in.b = j.in.g + s->n_heads;
        run_scan(ctx, &j);
        j.src = j.dst;
        from += (int64_t)j.n;
    }
}

/* -- convolution */

typedef struct conv_job {
    const kvs__kern *k;
    const kvs__rec *r;
    const kvs_recurrent_conv_desc *d;
    unsigned char *scratch;
} conv_job;

/* Channels [c, c + n) of position pos, rounded to the tail's dtype. */
static void gather(const conv_job *j, int64_t pos, size_t c, size_t n, float *dst, void *half)
{
    kvs_dtype t = j->r->spec.conv_dtype;
    if (pos < j->r->len) {
        size_t bytes = t == KVS_F32 ? 4 : 2;
        if (!j->r->rows) { /* nothing was ever stored */
            memset(dst, 0, n * sizeof *dst);
            return;
        }
        kvs__kern_widen(j->k, dst, kvs__rec_row(j->r, pos) + c * bytes, t, n);
        return;
    }
    size_t ldx = stride_or(j->d->x_stride, j->r->spec.conv_dim);
    const float *x = j->d->x + (size_t)(pos - j->r->len) * ldx + c;
    if (t == KVS_F32) {
        memcpy(dst, x, n * sizeof *dst);
        return;
    }
    kvs__kern_narrow(j->k, half, t, x, n);
    kvs__kern_widen(j->k, dst, half, t, n);
}

static void conv_item(void *arg, size_t item, uint32_t thread)
{
    const conv_job *j = arg;
    const kvs_recurrent_spec *s = &j->r->spec;
    const kvs_recurrent_conv_desc *d = j->d;
    float *x = (float *)(void *)(j->scratch + conv_scratch(s) * thread);
    void *half = x + (size_t)(CONV_TOKENS + s->conv_taps) * CONV_CH;
    size_t c = item * CONV_CH;
    size_t n_ch = s->conv_dim - c < CONV_CH ? s->conv_dim - c : CONV_CH;
    size_t tail = s->conv_taps - 1;
    size_t ldo = stride_or(d->out_stride, s->conv_dim);
    for (size_t i = 0; i < tail; i++) {
        gather(j, j->r->len - (int64_t)(tail - i), c, n_ch, x + i * CONV_CH, half);
    }
    for (size_t t = 0; t < d->n_tokens; t += CONV_TOKENS) {
        size_t n = d->n_tokens - t < CONV_TOKENS ? d->n_tokens - t : CONV_TOKENS;
        for (size_t i = 0; i < n; i++) {
            gather(j, j->r->len + (int64_t)(t + i), c, n_ch, x + (tail + i) * CONV_CH, half);
        }
        j->k->conv_taps(d->out + t * ldo + c, ldo, x, CONV_CH, n, d->weight + c, s->conv_dim,
                        d->bias ? d->bias + c : NULL, s->conv_taps, n_ch,
                        (d->flags & KVS_RECURRENT_SILU) != 0);
        memmove(x, x + n * CONV_CH, tail * CONV_CH * sizeof *x);
    }
}

void kvs__rec_conv(kvs_ctx *ctx, const kvs__rec *r, const kvs_recurrent_conv_desc *desc)
{
    conv_job j = {kvs__ctx_kern(ctx), r, desc,
                  kvs__ctx_scratch(ctx, kvs__rec_scratch_bytes(&r->spec, kvs__ctx_threads(ctx)))};
    size_t n_items = (r->spec.conv_dim + CONV_CH - 1) / CONV_CH;
    kvs__pool_run(kvs__ctx_pool(ctx), n_items, conv_item, &j);
}

void kvs__rec_keep_rows(kvs_ctx *ctx, kvs__rec *r, const kvs_recurrent_step *step, int64_t at)
{
    if (r->spec.conv_dim == 0) {
        return;
    }
    size_t n = step->n_tokens;
    size_t ldx = stride_or(step->conv_x_stride, r->spec.conv_dim);
    for (size_t t = n > r->plan.n_rows ? n - r->plan.n_rows : 0; t < n; t++) {
        kvs__kern_narrow(kvs__ctx_kern(ctx), kvs__rec_row(r, at + (int64_t)t), r->spec.conv_dtype,
                         step->conv_x + t * ldx, r->spec.conv_dim);
    }
}
