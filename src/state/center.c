/* SPDX-License-Identifier: MIT */
/* center.c: centres of groups of keys (store.h I7): how one is made, stored and found.
 *
 * What a centre is depends on positions and on what is stored before its group, never on segments:
 * so layouts, appends and threads can't show. It is made when the first token of its group is
 * written; every segment that takes a token of the group gets it. */
#include "kern/affine.h"
#include "state/store.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SPAN 64 /* positions before a group whose mean is its centre */

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void widen(const kvs__kern *kern, float *dst, const void *src, kvs_dtype t, size_t n)
{
    if (t == KVS_F16) {
        kern->f32_from_f16(dst, src, n);
    } else if (t == KVS_BF16) {
        kern->f32_from_bf16(dst, src, n);
    } else {
        memcpy(dst, src, n * sizeof *dst);
    }
}

size_t kvs__center_get(const kvs__kern *kern, const kvs__store *s, uint32_t head, int64_t pos,
                       size_t n, float *dst)
{
    const int64_t group = (int64_t)KVS_CENTER_GROUP;
    const kvs__shape *shape = &s->fmt.side[KVS__K].shape;
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    size_t run = 1;
    int64_t end = pos + (int64_t)kvs__store_locate(s, pos, n * KVS_CENTER_GROUP, &seg, &slot);
    while (s->layout != KVS_LAYOUT_RING && run < n && (pos / group + (int64_t)run) * group < end) {
        run++; /* a ring's rows start again somewhere */
    }
    widen(kern, dst, kvs__center_at(s, seg, head, pos, slot), shape->dtype, run * shape->dim);
    return run;
}

void kvs__center_put(kvs__store *s, uint32_t head, int64_t at, uint64_t n, const void *center)
{
    size_t bytes = s->fmt.center_bytes;
    int64_t end = at + (int64_t)n;
    if (s->layout == KVS_LAYOUT_RING) {
        if (at < (int64_t)s->sinks) {
            memcpy(kvs__center_at(s, s->seg[1], head, at, (uint64_t)at), center, bytes);
        }
        if (end > s->lo) {
            memcpy(kvs__center_at(s, s->seg[0], head, at, 0), center, bytes);
        }
        return;
    }
    while (at < end) {
        const kvs__seg *seg = NULL;
        uint64_t slot = 0;
        int64_t m = (int64_t)kvs__store_locate(s, at, (uint64_t)(end - at), &seg, &slot);
        /* where the segment has an earlier token of the group it has the centre too, and another
         * thread may be reading that (store/snap.c) */
        if (at % (int64_t)KVS_CENTER_GROUP == 0 || slot == 0 || !kvs__store_holds(s, at - 1)) {
            memcpy(kvs__center_at(s, seg, head, at, slot), center, bytes);
        }
        at += m;
    }
}

/* Are all positions [begin, end) there, and may they be used? */
static bool usable(const kvs__store *s, const kvs__store *before, int64_t from, int64_t begin,
                   int64_t end)
{
    const kvs__store *front = before ? before : s;
    for (int64_t p = begin; p < end; p++) {
        bool held = before && p < s->lo ? kvs__store_holds(before, p) : kvs__store_holds(s, p);
        if (!held || (p < from && p >= (int64_t)front->sinks)) {
            return false;
        }
    }
    return begin < end;
}

void kvs__center_make(kvs_ctx *ctx, const kvs__store *s, const kvs__store *before, int64_t from,
                      uint32_t head, int64_t first, float *rows, float *dst, void *stored)
{
    const kvs__kern *kern = kvs__ctx_kern(ctx);
    const kvs__shape *shape = &s->fmt.side[KVS__K].shape;
    const uint32_t window = before ? before->window : s->window;
    const size_t dim = shape->dim;
    int64_t begin = first - (window ? min64(SPAN, (int64_t)window - 1) : SPAN);
    begin = begin > 0 ? begin : 0;
    memset(dst, 0, dim * sizeof *dst);
    bool mean = usable(s, before, from, begin, first);
    for (int64_t at = begin; mean && at < first;) {
        const kvs__store *src = before && at < s->lo ? before : s;
        int64_t end = min64(first, at + (int64_t)KVS__TILE - at % (int64_t)KVS__TILE);
        end = src == before ? min64(end, s->lo) : end;
        kvs__store_read_stored(ctx, src, KVS__K, head, at, (uint64_t)(end - at), rows);
        for (int64_t i = 0; i < end - at; i++) {
            for (size_t d = 0; d < dim; d++) {
                dst[d] += rows[(size_t)i * dim + d];
            }
        }
        at = end;
    }
    for (size_t d = 0; mean && d < dim; d++) {
        dst[d] /= (float)(first - begin);
    }
    if (shape->dtype == KVS_F16) {
        kern->f16_from_f32(stored, dst, dim);
    } else if (shape->dtype == KVS_BF16) {
        kern->bf16_from_f32(stored, dst, dim);
    } else {
        memcpy(stored, dst, dim * sizeof *dst);
    }
    widen(kern, dst, stored, shape->dtype, dim);
    for (size_t d = 0; d < dim; d++) {
        if (!(fabsf(dst[d]) <= FLT_MAX)) { /* one bad key shall not spoil all that follow */
            dst[d] = 0.0f;
            kvs__store_mlx(stored, shape->dtype, d, 0.0f);
        }
    }
}
