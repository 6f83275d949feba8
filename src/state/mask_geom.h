/* SPDX-License-Identifier: MIT */
/* mask_geom.h: a mask descriptor reduced to what decides its bits.
 *
 * Every kind is the same picture: query i of row b stands at column base[b] + i and sees the
 * columns up to its own that its window (or the sinks) reach and that lie at or after pad[b], less
 * a hole, plus flagged pairs; at the end the columns from `roll_from` on are rolled right. Two
 * descriptors of one geometry have one mask, which is what the memo relies on. */
#ifndef KVS_STATE_MASK_GEOM_H
#define KVS_STATE_MASK_GEOM_H

#include "base/base.h"
#include "kvstate/mask.h"

/* All of one type, so that there is no padding and a comparison of bytes is one of values. */
typedef struct kvs__mask_geom {
    int64_t n_rows;
    int64_t n_queries;
    int64_t n_keys;
    int64_t window;     /* 0: none */
    int64_t sinks;      /* columns [0, sinks) stay visible behind the window */
    int64_t hole_begin; /* columns [hole_begin, hole_end) are hidden from all */
    int64_t hole_end;
    int64_t roll_from; /* columns [roll_from, n_keys) are rolled right by `roll` */
    int64_t roll;
    int64_t flag_col; /* column of the first query's own key, for flagged pairs */
} kvs__mask_geom;

/* A checked descriptor. The caller's struct was copied by its size; pointers are the caller's. */
typedef struct kvs__mask_plan {
    kvs_mask_desc desc;
    kvs__mask_geom geom;
    kvs_mask_shape shape;
} kvs__mask_plan;

kvs_status kvs__mask_check(const kvs_mask_desc *desc, kvs__mask_plan *out, kvs_err *err);
/* Column of row b's first query, and its first column that is no padding. */
int64_t kvs__mask_base(const kvs__mask_plan *plan, uint32_t b);
int64_t kvs__mask_pad(const kvs__mask_plan *plan, uint32_t b);
/* Writes shape.bytes; cannot fail. */
void kvs__mask_write(const kvs__mask_plan *plan, void *dst);

#endif
