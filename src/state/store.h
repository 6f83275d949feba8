/* SPDX-License-Identifier: MIT */
/* store.h: where the tokens of one layer live: formats, segments and the two layouts.
 *
 * A format says how one token of one head is stored (planes of K and of V). A segment is one
 * allocation with room for `cap` tokens of all heads in one format. A store is a layout over
 * segments: it maps positions to slots. Nothing above this file knows about slots but through
 * kvs__store_locate, which is all that a further layout has to answer. */
#ifndef KVS_STATE_STORE_H
#define KVS_STATE_STORE_H

#include <stdbool.h>

#include "base/base.h"
#include "kern/kern.h"
#include "kvstate/cache.h"

enum {
    KVS__K = 0,
    KVS__V = 1,
    KVS__SIDES = 2,
    KVS__PLANES = 3, /* codes or elements, scales, biases */
    KVS__MAX_SEGS = 96
};

/* One of K and V. */
typedef struct kvs__side {
    kvs_codec codec;
    kvs__shape shape;
    uint32_t rot;                  /* Hadamard block, 0: not rotated */
    uint32_t n_units[KVS__PLANES]; /* per token and head; 0: no such plane */
    uint32_t unit_bytes[KVS__PLANES];
} kvs__side;

typedef struct kvs__fmt {
    uint32_t n_heads;
    uint32_t n_sides; /* KVS__SIDES, or 1: latent, V is a part of K and has no planes */
    kvs__side side[KVS__SIDES];
} kvs__fmt;

typedef struct kvs__seg {
    size_t bytes;   /* of the whole allocation, this header included */
    uint64_t cap;   /* tokens, a multiple of KVS__TILE */
    uint32_t refs;  /* the store and each view that pins it */
    int64_t pin_lo; /* hull of the pinned positions; empty when pin_lo >= pin_hi */
    int64_t pin_hi;
    size_t offset[KVS__SIDES][KVS__PLANES];     /* of head 0 from `this` */
    size_t head_bytes[KVS__SIDES][KVS__PLANES]; /* from one head to the next */
} kvs__seg;

/* I1  Stored are the positions [lo, len) and [0, min(sinks, len)).
 * I2  grow: lo == 0; position p lies in the last segment with first <= p, at slot p - first.
 * I3  ring: len - lo <= ring_cap; p >= lo lies at slot p mod ring_cap of seg[0], a sink below lo at
 *     slot p of seg[1]. Sinks are written to both, so seg[0] alone serves until it wraps over them.
 * I4  K tiles of a segment hold no uninitialised bytes where a token of the tile is stored. */
typedef struct kvs__store {
    kvs__fmt fmt;
    kvs_layout layout;
    uint32_t window;
    uint32_t sinks;
    uint64_t ring_cap;
    uint64_t first_cap; /* grow: capacity of the first segment */
    int64_t lo;
    int64_t len;
    uint32_t n_segs;
    kvs__seg *seg[KVS__MAX_SEGS];
    int64_t first[KVS__MAX_SEGS]; /* grow: position at slot 0 */
} kvs__store;

/* Fills side from a checked codec. */
void kvs__side_init(kvs__side *side, const kvs_codec *codec, uint32_t dim);
/* False on overflow. */
bool kvs__seg_size(const kvs__fmt *fmt, uint64_t cap, size_t *bytes);

static inline unsigned char *kvs__seg_at(const kvs__seg *seg, int side, int plane, uint32_t head)
{
    return (unsigned char *)(uintptr_t)seg + seg->offset[side][plane] +
           head * seg->head_bytes[side][plane];
}
/* First byte of K tile `tile`, and of V row `slot`. */
static inline unsigned char *kvs__k_tile_at(const kvs__store *s, const kvs__seg *seg, int plane,
                                            uint32_t head, uint64_t tile)
{
    const kvs__side *k = &s->fmt.side[KVS__K];
    return kvs__seg_at(seg, KVS__K, plane, head) +
           tile * KVS__TILE * k->n_units[plane] * k->unit_bytes[plane];
}
static inline unsigned char *kvs__v_row_at(const kvs__store *s, const kvs__seg *seg, int plane,
                                           uint32_t head, uint64_t slot)
{
    const kvs__side *v = &s->fmt.side[KVS__V];
    return kvs__seg_at(seg, KVS__V, plane, head) + slot * v->n_units[plane] * v->unit_bytes[plane];
}

/* An empty store of a checked spec with these codecs; allocates nothing. */
void kvs__store_init(kvs__store *s, const kvs_layer_spec *spec, const kvs_codec *k,
                     const kvs_codec *v, uint64_t reserve_tokens);
/* Bytes of all segments once n_tokens are held; false on overflow or past KVS__MAX_SEGS. */
bool kvs__store_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes);
size_t kvs__store_bytes(const kvs__store *s);
/* Makes room for positions [at, at + n) and copies segments whose pinned slots they would write
 * over. On failure no segment was added; one may have been copied. */
kvs_status kvs__store_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err);
/* Gives up the segments from n_segs on, which hold no token. */
void kvs__store_trim(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs);
/* Counts n tokens as written; the room was reserved. */
void kvs__store_advance(kvs__store *s, uint64_t n);
/* Empty ring: continue at position `at`, everything before it (sinks apart) counts as dropped. */
void kvs__store_jump(kvs__store *s, int64_t at);
/* Can the length go back to `len` with all that a later query may see still stored? */
bool kvs__store_can_rewind(const kvs__store *s, int64_t len);
void kvs__store_rewind(kvs__store *s, int64_t len);
/* Drops the segments; keep_reserve keeps a grow store's first one if it was reserved. */
void kvs__store_drop(kvs_ctx *ctx, kvs__store *s);
bool kvs__store_holds(const kvs__store *s, int64_t pos);
/* Segment and slot of a stored position, and how many positions from it lie in a row (slots and
 * positions), at most `most`. */
uint64_t kvs__store_locate(const kvs__store *s, int64_t pos, uint64_t most, const kvs__seg **seg,
                           uint64_t *slot);
/* Pins all that is stored: dst becomes an alias that shares the segments. */
void kvs__store_pin(kvs__store *dst, kvs__store *src);
void kvs__seg_unref(kvs_ctx *ctx, kvs__seg *seg);
/* A store of the same format for n tokens that follow those of s, apart from it (block reads).
 * Freed by kvs__store_drop. */
kvs_status kvs__store_tail(kvs_ctx *ctx, const kvs__store *s, uint64_t n, kvs__store *out,
                           kvs_err *err);

/* -- writing (write.c) */

/* Encodes and stores rows of positions [at, at + n) given as kv, whose row 0 is position kv_pos.
 * Room was reserved; cannot fail. */
void kvs__store_write(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, const kvs_kv *kv,
                      int64_t kv_pos);
/* Decodes positions [at, at + n), n <= KVS__TILE, all stored and inside one tile of the position
 * grid, of one head to f32 rows in the original domain (rotation undone): dst [n][dim]. */
void kvs__store_read(kvs_ctx *ctx, const kvs__store *s, int side, uint32_t head, int64_t at,
                     uint64_t n, float *dst);
/* Encodes f32 rows [n][dim] (original domain) at positions [at, at + n) of one head, one side. */
void kvs__store_put(kvs_ctx *ctx, kvs__store *s, int side, uint32_t head, int64_t at, uint64_t n,
                    float *rows, unsigned char *scratch);
size_t kvs__put_scratch_bytes(const kvs__fmt *fmt);
/* Re-encodes every stored token of src in dst (empty, room reserved), of the same layout. */
void kvs__store_transcode(kvs_ctx *ctx, kvs__store *dst, const kvs__store *src);
/* Scratch of write and transcode for all threads. */
bool kvs__write_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes);
/* Copies raw units of one side and plane, no value changes: rows [n][n_units]. */
void kvs__store_get_units(const kvs__store *s, int side, int plane, uint32_t head, int64_t at,
                          uint64_t n, unsigned char *dst);
void kvs__store_set_units(kvs__store *s, int side, int plane, uint32_t head, int64_t at, uint64_t n,
                          const unsigned char *src);

/* -- reading (attend.c) */

/* Scratch that any read of a store of this format needs. */
bool kvs__attend_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes);
/* Checks desc against the format; the caller resolved q_pos. */
kvs_status kvs__attend_check(const kvs__fmt *fmt, const kvs_attend *desc, kvs_err *err);
/* Reads queries [q_begin, q_end) of the description (positions desc->q_pos + i). `tail`, for mode
 * block, holds the positions from tail->lo on and is not part of the store; else NULL. */
void kvs__attend_run(kvs_ctx *ctx, const kvs__store *s, const kvs__store *tail,
                     const kvs_attend *desc, uint32_t q_begin, uint32_t q_end);
/* Is every position below `end` that a query at first_query, or a later one, sees still stored? */
bool kvs__attend_covered(const kvs__store *s, int64_t first_query, int64_t end);

#endif
