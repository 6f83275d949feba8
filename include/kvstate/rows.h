/* SPDX-License-Identifier: MIT */
/* kvstate/rows.h: a batch: an ordered set of caches, one for each row (sequence), and the padded
 * rectangle that a tensor engine wants.
 *
 * A set owns its caches. Rows may differ in codecs, layouts and lengths; layer by layer they have
 * one kind and geometry. Moving rows between and within sets moves handles: O(rows), no code is
 * touched, so a row is at any time byte for byte what it would be alone. A row that holds no token
 * is a row. Every failing call leaves all sets and caches as they were.
 *
 * Drafts and their acceptance: txn.h. While a round is open a set only loses rows (cancel). */
#ifndef KVSTATE_ROWS_H
#define KVSTATE_ROWS_H

#include "kvstate/cache.h"
#include "kvstate/mask.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Used by one thread at a time, as its context and caches are. */
typedef struct kvs_rows kvs_rows;

/* A set of n caches of the context (n may be 0), which it owns from then on. KVS_E_INVAL: a NULL, a
 * cache given twice, of another context, in a round, or of another geometry than the first. */
KVS_API kvs_status kvs_rows_merge(kvs_ctx *ctx, kvs_cache *const *caches, uint32_t n,
                                  kvs_rows **out, kvs_err *err);
KVS_API void kvs_rows_free(kvs_rows *rows); /* NULL is fine; frees the caches */

KVS_API uint32_t kvs_rows_count(const kvs_rows *rows);
/* Borrowed, to append to and read from; NULL out of range and of a broken set (txn.h). */
KVS_API kvs_cache *kvs_rows_cache(const kvs_rows *rows, uint32_t row);

/* Moves all rows of src behind those of dst; src is empty then. */
KVS_API kvs_status kvs_rows_extend(kvs_rows *dst, kvs_rows *src, kvs_err *err);
/* Keeps rows keep[0 .. n), in that order, and frees the others; n may be 0. KVS_E_RANGE: no such
 * row; KVS_E_INVAL: a row named twice. */
KVS_API kvs_status kvs_rows_filter(kvs_rows *rows, const uint32_t *keep, uint32_t n, kvs_err *err);
/* The same where keep has to name every row. */
KVS_API kvs_status kvs_rows_reorder(kvs_rows *rows, const uint32_t *order, uint32_t n,
                                    kvs_err *err);
/* Takes a row out of the set; the caller owns it. The rows behind it move up. */
KVS_API kvs_status kvs_rows_extract(kvs_rows *rows, uint32_t row, kvs_cache **out, kvs_err *err);
/* Adds a last row that begins with n_tokens of row `row`, see kvs_cache_fork. */
KVS_API kvs_status kvs_rows_fork(kvs_rows *rows, uint32_t row, uint64_t n_tokens, kvs_err *err);
/* Frees a row, also while a round is open; the rows behind it move up. */
KVS_API kvs_status kvs_rows_cancel(kvs_rows *rows, uint32_t row, kvs_err *err);

/* ---- the padded rectangle of one layer: planes [rows][heads][width][units], rows padded on the
 * left so that all end in the last column */

typedef struct kvs_rect_row {
    int64_t offset; /* tokens seen: the position of the row's next token */
    int64_t first;  /* position in column `start` */
    uint64_t start; /* columns [start, end) hold tokens, the others are padding */
    uint64_t end;
} kvs_rect_row;

/* What the rows hold: the live window of a ring or of a windowed layer, else everything. rows:
 * [kvs_rows_count]. *width is the most tokens of a row. KVS_E_UNSUPPORTED: a ring holds sinks apart
 * from its window (its tokens are no one run). */
KVS_API kvs_status kvs_rect_plan(const kvs_rows *set, uint32_t layer, kvs_rect_row *rows,
                                 uint64_t *width, kvs_err *err);

enum {
    /* Stored bytes, moved and not decoded: all rows must have one codec (KVS_E_UNSUPPORTED). Else
     * values, in `dtype`, rotation undone. */
    KVS_RECT_RAW = 1u << 0
};
typedef struct kvs_rect {
    size_t struct_size;
    uint32_t layer;
    uint32_t flags;
    kvs_dtype dtype; /* of values */
    uint64_t width;
    const kvs_rect_row *rows; /* [kvs_rows_count] */
    const kvs_planes *planes; /* values: k[0] and v[0]. What is NULL there, an export leaves out */
} kvs_rect;
#define KVS_RECT_INIT                                                                              \
    {                                                                                              \
        sizeof(kvs_rect), 0, 0, KVS_F32, 0, NULL, NULL                                             \
    }

/* Copies the columns [start, end) of each row, positions first .. first + (end - start) - 1, out and
 * fills the padding with zero bytes. KVS_E_RANGE: positions that are not stored. */
KVS_API kvs_status kvs_rect_export(const kvs_rows *set, const kvs_rect *rect, kvs_err *err);
/* Appends the columns [start, end) of each row; padding is never read. Values are encoded as by
 * kvs_cache_append, in blocks of a ring's max_block, and `first` must be the row's length; raw
 * bytes are taken over as by kvs_cache_import. All rows or none. */
KVS_API kvs_status kvs_rect_import(kvs_rows *set, const kvs_rect *rect, kvs_err *err);
/* The mask of n_queries new tokens behind such a rectangle ([rows, 1, n_queries, width +
 * n_queries], see KVS_MASK_PADDED) with the layer's window. pads: [count], filled here and borrowed
 * by *out, which starts as KVS_MASK_DESC_INIT. */
KVS_API kvs_status kvs_rect_mask(const kvs_rows *set, uint32_t layer, const kvs_rect_row *rows,
                                 uint64_t width, uint32_t n_queries, int64_t *pads,
                                 kvs_mask_desc *out, kvs_err *err);

/* ---- prefill of rows of different lengths as one rectangle: the arithmetic of its padding, for a
 * tensor engine that keeps the rectangle itself. No cache is involved. */

#define KVS_PREFILL_NO_END INT64_MAX
/* Of a row: physical column = offset + pad. Empty row: {0, 0, KVS_PREFILL_NO_END}. */
typedef struct kvs_prefill_row {
    int64_t offset; /* position of the next column; below 0 inside left padding */
    int64_t pad;    /* columns of padding in front */
    int64_t end;    /* position at which valid tokens end, KVS_PREFILL_NO_END: no such */
} kvs_prefill_row;

/* left[b]: columns of padding in front (empty rows only: KVS_E_STATE); right[b]: trailing padding.
 * Either may be NULL. If any row has trailing padding, ends are set for all: lengths[b] counts the
 * columns before it, left ones included; else lengths don't matter. */
KVS_API kvs_status kvs_prefill_prepare(kvs_prefill_row *rows, uint32_t n_rows, const uint32_t *left,
                                       const uint32_t *lengths, const uint32_t *right,
                                       kvs_err *err);
/* The next n_columns are written: columns [starts[b], ends[b]) of them hold tokens of row b, what
 * kvs_rect_row wants. Either array may be NULL. */
KVS_API kvs_status kvs_prefill_advance(kvs_prefill_row *rows, uint32_t n_rows, uint64_t n_columns,
                                       uint64_t *starts, uint64_t *ends, kvs_err *err);
/* Position up to which a row is valid: min(offset, end). */
KVS_API int64_t kvs_prefill_valid(const kvs_prefill_row *row);
/* Ends the prefill: trailing padding that was written becomes left padding. shifts[b] (or NULL) is
 * by how much the row is rolled right; KVS_NO: no row is. One-shot: ends are cleared. */
KVS_API kvs_status kvs_prefill_finalize(kvs_prefill_row *rows, uint32_t n_rows, uint64_t *shifts);
/* Column of the old row that a rolled one has in `column`: (column - shift) mod width. */
KVS_API uint64_t kvs_prefill_roll(uint64_t column, uint64_t shift, uint64_t width);

#ifdef __cplusplus
}
#endif
#endif
