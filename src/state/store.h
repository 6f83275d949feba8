/* SPDX-License-Identifier: MIT */
/* store.h: where the tokens of one layer live: formats, segments and the layouts.
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
    uint32_t n_sides;      /* KVS__SIDES, or 1: latent, V is a part of K and has no planes */
    uint32_t center_bytes; /* of the centre of a group of keys, one head; 0: not centred */
    kvs__side side[KVS__SIDES];
} kvs__fmt;

typedef struct kvs__seg {
    size_t bytes;   /* that it takes, this header included */
    uint64_t cap;   /* tokens, a multiple of KVS__TILE */
    uint32_t refs;  /* the stores and views that share it */
    uint32_t kept;  /* a pool's block: of refs, those of a prefix index */
    int64_t pin_lo; /* hull of the pinned positions; empty when pin_lo >= pin_hi */
    int64_t pin_hi;
    struct kvs__page_chunk *chunk; /* a pool's block (pages_priv.h): where it goes back to */
    struct kvs__seg *next;         /* a pool's block of a list being made */
    size_t offset[KVS__SIDES][KVS__PLANES];     /* of head 0 from `this` */
    size_t head_bytes[KVS__SIDES][KVS__PLANES]; /* from one head to the next */
    size_t center_at;                           /* of head 0's centres from `this` */
    size_t center_head;                         /* from one head to the next */
    uint32_t n_centers;                         /* of a head */
    uint32_t
        phase; /* a pool's block: its first position mod KVS_CENTER_GROUP; KVS__NO_PHASE: none */
    uint32_t hole; /* of a block that an index keeps: as in the store it came from (I8) */
} kvs__seg;

/* From the header of one block of a pool to that of the block beside it (pages_chunk.h). */
#define KVS__SEG_STRIDE ((sizeof(kvs__seg) + 63) / 64 * 64)
#define KVS__NO_PHASE   UINT32_MAX /* not in the table of a store yet */

/* I1  Stored are the positions [lo, len) and [0, min(sinks, len)).
 * I2  grow: lo == 0; position p lies in the last segment with first <= p, at slot p - first. So a
 *     segment ends where the next one begins, whatever its capacity; first is on the tile grid.
 * I3  ring: len - lo <= ring_cap; p >= lo lies at slot p mod ring_cap of seg[0], a sink below lo at
 *     slot p of seg[1]. Sinks are written to both, so seg[0] alone serves until it wraps over them.
 * I4  K tiles of a segment hold no uninitialised bytes where a token of the tile is stored.
 * I5  Of the stores that share a segment at most one owns it. Only the owner writes there, and not
 *     over pinned positions: all that a view or another store reads is pinned. Others get a segment
 *     of their own first: grow starts one behind what is shared, a ring copies its (bounded) one.
 * I7  A segment that holds a token of a group of positions holds the group's centre, too.
 * I6  paged (paged.c): position p lies at slot p mod block of block number b = p / block, which is
 *     table[b] for b < n_sink, table[n_sink + b - front] beyond; all n_segs entries are blocks, those
 *     from ceil(len / block) on are this store's alone.
 * I8  paged: where sinks end within a block, the rest of it was seen when they were appended, and is
 *     there as long as the block. After an import past a gap it is not: then `hole` is the slot of the
 *     last block of sinks below which, from the sinks on, nothing is stored. lo is beyond it; it
 *     matters to others that begin earlier and are lent the block.
 * I9  No position below `kept` was written since the one who keeps facts about what is stored (the
 *     history of the cache, store/history.h) raised it to len: tokens are written at len alone, and
 *     `kept` goes down with it. */
typedef struct kvs__store {
    kvs__fmt fmt;
    kvs_layout layout;
    uint32_t window;
    uint32_t sinks;
    uint64_t ring_cap;
    uint64_t first_cap; /* grow: capacity of the first segment */
    int64_t lo;
    int64_t len;
    int64_t kept;    /* I9 */
    uint32_t n_segs; /* paged: blocks */
    kvs__seg *seg[KVS__MAX_SEGS];
    int64_t first[KVS__MAX_SEGS]; /* grow: position at slot 0 */
    bool owned[KVS__MAX_SEGS];
    int64_t base; /* grow: where the ladder of segments began; past 0 behind a shared prefix */
    /* paged */
    struct kvs_pages *pages;
    uint32_t block;   /* tokens of a block */
    uint32_t shift;   /* of a block of 2^shift tokens; 0: divide */
    bool joins;       /* blocks side by side are read and written as one */
    uint64_t n_sink;  /* blocks with sinks, kept whatever the window */
    uint32_t hole;    /* I8; 0: none */
    uint64_t front;   /* number of the first block after those of the sinks, >= n_sink */
    kvs__seg **table; /* [table_cap], n_segs in use */
    uint64_t table_cap;
} kvs__store;

/* Fills side from a checked codec. */
void kvs__side_init(kvs__side *side, const kvs_codec *codec, uint32_t dim);
/* Groups that n positions in a row belong to, wherever they start. */
static inline uint64_t kvs__center_rows(uint64_t n)
{
    return (n + 2 * KVS_CENTER_GROUP - 2) / KVS_CENTER_GROUP;
}
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

/* The centre of the group of a position that lies at this slot. */
static inline unsigned char *kvs__center_at(const kvs__store *s, const kvs__seg *seg, uint32_t head,
                                            int64_t pos, uint64_t slot)
{
    uint64_t group = (uint64_t)pos / KVS_CENTER_GROUP;
    uint64_t row = s->layout == KVS_LAYOUT_RING ? group % seg->n_centers
                                                : group - ((uint64_t)pos - slot) / KVS_CENTER_GROUP;
    return (unsigned char *)(uintptr_t)seg + seg->center_at + head * seg->center_head +
           row * s->fmt.center_bytes;
}

/* An empty store of a checked spec with these codecs; allocates nothing. */
void kvs__store_init(kvs__store *s, const kvs_layer_spec *spec, const kvs_codec *k,
                     const kvs_codec *v, uint64_t reserve_tokens);
/* Bytes of all segments once n_tokens are held; false on overflow or past KVS__MAX_SEGS. */
bool kvs__store_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes);
size_t kvs__store_bytes(const kvs__store *s);
/* Makes room for positions [at, at + n), of its own where others read what would be written over
 * (I5). A grow store, whose length is `at`, copies 15 tokens at most, but half of its segments when
 * it has no more room in its list. On failure no segment was added; one may have been copied. */
kvs_status kvs__store_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err);
/* Undoes a reserve: gives up the segments from n_segs on, which hold no token, and of a paged table
 * what is beyond table_cap. */
void kvs__store_trim(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs, uint64_t table_cap);
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
 * positions), at most `most`. Paged: past the end of the segment, too, where the next block lies beside
 * it; planes and centres go on there as if the segment did. */
uint64_t kvs__store_locate(const kvs__store *s, int64_t pos, uint64_t most, const kvs__seg **seg,
                           uint64_t *slot);
/* Pins all that is stored: dst becomes an alias that shares the segments. On failure (paged: for
 * the table) dst holds nothing. */
kvs_status kvs__store_pin(kvs_ctx *ctx, kvs__store *dst, kvs__store *src, kvs_err *err);
/* Room in dst (empty, same layout) for a transcode of src and `extra` tokens after it. */
kvs_status kvs__store_reserve_like(kvs_ctx *ctx, kvs__store *dst, const kvs__store *src,
                                   uint64_t extra, kvs_err *err);
/* Does it drop old tokens: a ring, or paged with a window? */
static inline bool kvs__store_slides(const kvs__store *s)
{
    return s->layout == KVS_LAYOUT_RING || (s->layout == KVS_LAYOUT_PAGED && s->window > 0);
}
/* dst becomes a store of its own that begins with the tokens of src below `len`, to which src can
 * rewind: O(segments), copies nothing, allocates a paged table alone. On failure dst holds nothing. */
kvs_status kvs__store_fork(kvs_ctx *ctx, kvs__store *dst, kvs__store *src, int64_t len,
                           kvs_err *err);
/* Drops all but a first segment that is wholly its own. */
void kvs__store_empty(kvs_ctx *ctx, kvs__store *s);
void kvs__seg_unref(kvs_ctx *ctx, kvs__seg *seg);
/* A store of the same format for n tokens that follow those of s, apart from it (block reads).
 * Freed by kvs__store_drop. */
kvs_status kvs__store_tail(kvs_ctx *ctx, const kvs__store *s, uint64_t n, kvs__store *out,
                           kvs_err *err);

/* -- the paged layout (paged.c); kvs__store_* call these where layout is KVS_LAYOUT_PAGED */

/* Blocks for n_tokens once more than the window has been appended; at the worst moment. */
uint64_t kvs__paged_blocks(const kvs__store *s, uint64_t n_tokens);
uint64_t kvs__paged_peak(const kvs__store *s, uint64_t n_tokens);
/* An empty store made by kvs__store_init; pages may be NULL for a plan. */
void kvs__paged_init(kvs__store *s, struct kvs_pages *pages, uint32_t block);
bool kvs__paged_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes);
size_t kvs__paged_bytes(const kvs__store *s);
/* Nothing changes on failure. */
kvs_status kvs__paged_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err);
/* Gives up the blocks from n_segs on and what the table has beyond cap entries, cap >= n_segs. */
void kvs__paged_give_back(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs, uint64_t cap);
void kvs__paged_advance(kvs__store *s, uint64_t n);
void kvs__paged_jump(kvs__store *s, int64_t at);
void kvs__paged_rewind(kvs__store *s, int64_t len);
void kvs__paged_drop(kvs_ctx *ctx, kvs__store *s);
/* dst becomes a store of the first n_tokens of src, sharing every block that holds one of them:
 * O(blocks), no bytes of tokens move; who writes first to a shared block copies it. The caller made
 * sure that src can be rewound to n_tokens. dst holds nothing on failure. */
kvs_status kvs__paged_fork(kvs_ctx *ctx, const kvs__store *src, int64_t n_tokens, kvs__store *dst,
                           kvs_err *err);
/* Oldest position that a store keeps when it grows to len tokens. */
int64_t kvs__paged_oldest(const kvs__store *s, int64_t len);
/* Where the table has block number b, or NULL. */
kvs__seg **kvs__paged_find(const kvs__store *s, uint64_t b);
/* Room in the table for n blocks. */
kvs_status kvs__paged_table(kvs_ctx *ctx, kvs__store *s, uint64_t n_blocks, kvs_err *err);
/* Replaces what is held by references to these blocks, the sinks' first, then from number `first`
 * on; the table has room. */
void kvs__paged_adopt(kvs__store *s, kvs__seg *const *page, uint64_t n, uint64_t first, int64_t lo,
                      int64_t len);

/* -- writing (write.c) */

/* Encodes and stores rows of positions [at, at + n) given as kv, whose row 0 is position kv_pos.
 * `before` holds the positions below s->lo, which s goes on from (block reads), else NULL. Room was
 * reserved; cannot fail. */
void kvs__store_write(kvs_ctx *ctx, kvs__store *s, const kvs__store *before, int64_t at, uint64_t n,
                      const kvs_kv *kv, int64_t kv_pos);
/* Decodes positions [at, at + n), n <= KVS__TILE, all stored and inside one tile of the position
 * grid, of one head to f32 rows in the original domain (rotation undone): dst [n][dim]. */
void kvs__store_read(kvs_ctx *ctx, const kvs__store *s, int side, uint32_t head, int64_t at,
                     uint64_t n, float *dst);
/* The same in the domain that they are stored in (a centre is added). */
void kvs__store_read_stored(kvs_ctx *ctx, const kvs__store *s, int side, uint32_t head, int64_t at,
                            uint64_t n, float *dst);
/* Encodes f32 rows [n][dim] (original domain) at positions [at, at + n) of one head, one side;
 * center [dim] is taken off first, NULL: none. */
void kvs__store_put(kvs_ctx *ctx, kvs__store *s, int side, uint32_t head, int64_t at, uint64_t n,
                    float *rows, const float *center, unsigned char *scratch);
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

/* -- centres (center.c) */

/* The centre of the group of a stored position as f32 [k_dim], and of as many of the n - 1 groups
 * after it as lie behind it; how many that are. */
size_t kvs__center_get(const kvs__kern *kern, const kvs__store *s, uint32_t head, int64_t pos,
                       size_t n, float *dst);
/* Stores it in every segment that holds one of the positions [at, at + n), all of one group. */
void kvs__center_put(kvs__store *s, uint32_t head, int64_t at, uint64_t n, const void *center);
/* The centre of the group that begins at `first`, rounded as it is stored, to `stored`, and as f32 to
 * dst: the mean of the positions before it that `before` or s holds (numerics.md), 0 where one of them
 * is missing or lies below `from` and is no sink. rows [KVS__TILE][k_dim] is scratch. */
void kvs__center_make(kvs_ctx *ctx, const kvs__store *s, const kvs__store *before, int64_t from,
                      uint32_t head, int64_t first, float *rows, float *dst, void *stored);

/* -- reading (attend.c) */

/* Scratch that any read of a store of this format needs. */
bool kvs__attend_scratch_bytes(const kvs__fmt *fmt, uint32_t n_threads, size_t *bytes);
/* Checks desc against the format; the caller resolved q_pos. */
kvs_status kvs__attend_check(const kvs__fmt *fmt, const kvs_attend *desc, kvs_err *err);
/* Reads queries [q_begin, q_end) of the description (positions desc->q_pos + i). `tail`, for mode
 * block, holds the positions from tail->lo on and is not part of the store; else NULL. */
void kvs__attend_run(kvs_ctx *ctx, const kvs__store *s, const kvs__store *tail,
                     const kvs_attend *desc, uint32_t q_begin, uint32_t q_end);
/* The same by the calling thread alone, from inside a run of the pool, with scratch of its own:
 * kvs__attend_scratch_bytes of one thread. */
void kvs__attend_run_here(kvs_ctx *ctx, const kvs__store *s, const kvs_attend *desc,
                          uint32_t q_begin, uint32_t q_end, void *scratch);
/* Is every position below `end` that a query at first_query, or a later one, sees still stored? */
bool kvs__attend_covered(const kvs__store *s, int64_t first_query, int64_t end);

#endif
