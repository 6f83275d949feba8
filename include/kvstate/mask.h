/* SPDX-License-Identifier: MIT */
/* kvstate/mask.h: attention masks as arrays, for callers with a tensor engine of their own.
 *
 * kvs_cache_attend needs none of this. A mask is told by a descriptor, planned (is an array needed
 * at all, and of which shape), and filled into the caller's memory or leased from a memo that
 * builds it once per forward and shares it among layers. All functions but the memo's are pure.
 *
 * Columns are keys in the order the caller attends them; j counts columns, i queries, b rows. */
#ifndef KVSTATE_MASK_H
#define KVSTATE_MASK_H

#include "kvstate/codec.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_mask_kind {
    /* [N, offset + N]: j <= p, p = offset + i, and (no window, or j > p - window, or j < sinks). */
    KVS_MASK_CAUSAL = 0,
    /* [N, n_keys]: j <= n_keys - N + i. */
    KVS_MASK_BOTTOM_RIGHT = 1,
    /* [N, offset + N]: causal (with window and sinks), or query i and new key j - offset flagged. */
    KVS_MASK_BIDIRECTIONAL = 2,
    /* [B, 1, N, n_keys]: rows padded on the left by pads[b], all ending at n_keys:
     * p = n_keys - N + i, causal (with window), and j >= pads[b]. */
    KVS_MASK_PADDED = 3,
    /* [B, 1, N, max(e) + N]: rows with ends of their own, e[b] = row_offsets[b] + pads[b]:
     * p = e[b] + i, causal (with window), and j >= pads[b]. */
    KVS_MASK_ROWS = 4,
    /* [N, c + N]: a block appended to a ring of `ring` slots, fetched in time order behind the
     * c = min(ring - 1, offset) tokens kept: the `sinks` first, then the newest. Window 0 means
     * ring - sinks. */
    KVS_MASK_RING_WINDOW = 5,
    /* [min(offset + 1, ring)]: one token written in place, the ring fetched as it lies: the newest
     * `window` tokens (0: all), and the `sinks` first, which the ring never overwrites. ring_index
     * is the slot before the write, `ring` (or more) where the write wraps. */
    KVS_MASK_RING_DECODE = 6,
    /* [1, 1, 1, n + N]: a block attended with the newest n columns of a ring's live window but not
     * stored; n = n_keys, but ring - 1 where more than that many tokens are held. */
    KVS_MASK_RING_BLOCK = 7,
    /* [B, 1, N, c + N]: a batch in one ring, c = min(ring - 1, offset): offset is the total count
     * of columns written, pads[b] (which may fall below 0) the columns that row b never filled. */
    KVS_MASK_RING_ROWS = 8
} kvs_mask_kind;

typedef enum kvs_mask_type {
    KVS_MASK_BOOL = 0, /* one byte, 1 visible, 0 hidden */
    KVS_MASK_F32 = 1,  /* to be added to scores: 0 visible, the floor hidden */
    KVS_MASK_F16 = 2,
    KVS_MASK_BF16 = 3
} kvs_mask_type;

enum {
    KVS_MASK_INFINITE = 1u << 0, /* the floor is -inf, not the lowest finite value of the type */
    KVS_MASK_ARRAY = 1u << 1,    /* plan: an array where "causal" would do (N = 1 stays "none") */
    KVS_MASK_ROTATED = 1u << 2,  /* RING_ROWS: the ring has wrapped since it was last in order */
    KVS_MASK_ORDERED = 1u << 3   /* RING_ROWS, N = 1: written as a block, fetched in time order */
};

/* What a mask depends on, taken before the append. Fields that a kind does not name must be zero.
 * Counts go up to 2^40; pointers are read during the call only. */
typedef struct kvs_mask_desc {
    size_t struct_size;
    kvs_mask_kind kind;
    kvs_mask_type type;
    uint32_t flags; /* KVS_MASK_INFINITE ... */
    uint32_t n_queries;
    uint32_t n_rows; /* B of the kinds with rows, else 0 */
    int64_t offset;  /* tokens seen */
    int64_t n_keys;
    int64_t window; /* 0: none */
    int64_t sinks;
    int64_t ring;               /* slots: window plus sinks of a kvs_layer_spec */
    int64_t ring_index;         /* next slot */
    const int64_t *row_offsets; /* [n_rows] */
    const int64_t *pads;        /* [n_rows] */
    const uint8_t *paired;      /* BIDIRECTIONAL: [n_queries], non-zero where flagged */
} kvs_mask_desc;
#define KVS_MASK_DESC_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_mask_desc), KVS_MASK_CAUSAL, KVS_MASK_BOOL, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL,    \
            NULL, NULL                                                                             \
    }

typedef enum kvs_mask_mode {
    KVS_MASK_MODE_NONE = 0,   /* every query sees every column: attend without a mask */
    KVS_MASK_MODE_CAUSAL = 1, /* bottom-right causal over all columns: no array needed */
    KVS_MASK_MODE_ARRAY = 2
} kvs_mask_mode;

typedef struct kvs_mask_shape {
    size_t struct_size;
    kvs_mask_mode mode;
    uint32_t n_dims;
    uint64_t dims[4]; /* of the array that fill writes, row-major, whatever the mode */
    size_t bytes;
} kvs_mask_shape;
#define KVS_MASK_SHAPE_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_mask_shape), KVS_MASK_MODE_NONE, 0, {0, 0, 0, 0}, 0                             \
    }

/* Mode, shape and bytes. The modes are those of MLX's caches, but where a window hides a token from
 * a single query the answer is an array, never "none". KVS_E_INVAL, KVS_E_RANGE, KVS_E_LIMIT (more
 * bytes than a size_t counts) name the field and its value; *out is untouched then. */
KVS_API kvs_status kvs_mask_plan(const kvs_mask_desc *desc, kvs_mask_shape *out, kvs_err *err);

/* Writes the array, whatever the mode. dst is aligned for its element type; KVS_E_RANGE unless
 * dst_bytes is exactly the plan's. A failing call leaves dst as it was. */
KVS_API kvs_status kvs_mask_fill(const kvs_mask_desc *desc, void *dst, size_t dst_bytes,
                                 kvs_err *err);

/* ---- the memo: one per model, handed to all its layers */

/* One slot per family, which is all that layers of one sort share: kind, type, window, sinks, ring.
 * Within a family the newest mask is kept with every value it depends on (contents of the arrays
 * included); the same values give the same mask. So a forward builds one mask per family. Used by
 * one thread at a time, like every object of a context. */
typedef struct kvs_masks kvs_masks;
/* A leased mask: immutable, valid until released, even after the memo went on or was freed. */
typedef struct kvs_mask kvs_mask;

KVS_API kvs_status kvs_masks_new(kvs_ctx *ctx, kvs_masks **out, kvs_err *err);
KVS_API void kvs_masks_free(kvs_masks *masks); /* NULL is fine; leases stay valid */
/* Drops the masks that are kept; leases stay valid. */
KVS_API void kvs_masks_clear(kvs_masks *masks);
/* Leases the mask of a descriptor, to be released before the context is freed. Modes "none" and
 * "causal" build nothing. On failure nothing is leased and the memo keeps what it had. */
KVS_API kvs_status kvs_masks_acquire(kvs_masks *masks, const kvs_mask_desc *desc, kvs_mask **out,
                                     kvs_err *err);
KVS_API void kvs_mask_release(kvs_mask *mask); /* NULL is fine */

/* NULL where the mode needs no array. */
KVS_API const void *kvs_mask_data(const kvs_mask *mask);
/* n_dims and bytes are 0 where the mode needs no array. */
KVS_API kvs_status kvs_mask_get_shape(const kvs_mask *mask, kvs_mask_shape *out);

typedef struct kvs_masks_stats {
    size_t struct_size;
    uint64_t builds; /* arrays built */
    uint64_t leases; /* all that were given, those without an array included */
    uint64_t kept;   /* slots in use */
} kvs_masks_stats;
#define KVS_MASKS_STATS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_masks_stats), 0, 0, 0                                                           \
    }
KVS_API kvs_status kvs_masks_get_stats(const kvs_masks *masks, kvs_masks_stats *out);

#ifdef __cplusplus
}
#endif
#endif
