/* SPDX-License-Identifier: MIT */
/* chunk_priv.h: what the files of a chunk share (chunk.h): chunk.c which tokens are seen, chunk_place.c
 * where they lie, chunk_keys.c scores, chunk_center.c what centred keys add to them, chunk_values.c
 * values. */
#ifndef KVS_STATE_CHUNK_PRIV_H
#define KVS_STATE_CHUNK_PRIV_H

#include "state/chunk.h"

#define KVS__V_ROWS     32u /* of V decoded at a time, inside L1 */
#define KVS__CACHE_LINE 64u
/* Rows up to which decoding in registers beats decoding to L1 first. Dense elements are widened at
 * ports that the products leave idle, and memory is asked for line by line instead of in bursts: 24 rows
 * of f16 take a fifth less time (Zen 4; 64 rows take as long either way). */
#define KVS__DIRECT_DENSE 48u

/* -- where tokens lie (chunk_place.c) */

/* Where position pos of a job lies, and how many positions from it on, at most `most`, lie in a row. */
uint64_t kvs__chunk_locate(const kvs__job *j, int64_t pos, uint64_t most, const kvs__seg **seg,
                           uint64_t *slot);
kvs__planes kvs__k_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t tile);
kvs__planes kvs__v_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t slot);
/* Asks for the codes of n tokens that follow `ahead` tokens after data. Streams of a few KiB are too
 * short for the hardware to catch on: without this, reading codes costs compute plus memory instead
 * of the greater of both. Scales are too few to be worth the instructions. An address past the end
 * of a segment is harmless. */
void kvs__prefetch(const kvs__side *side, const void *data, size_t ahead, size_t n);
/* Tokens ahead of the one in work that are asked for: some KiB, a multiple of the tile. */
size_t kvs__ahead_of(const kvs__side *side);
/* Positions ahead whose memory the kernels ask for (attn_direct.h), a multiple of what is read at a
 * time. */
uint64_t kvs__far_positions(const kvs__side *side);
/* Positions whose place is asked for at a time: where so many lie in a row, none in a chunk need be looked
 * up again, nor what is asked for ahead of them. */
uint64_t kvs__look_most(const kvs__side *side);
/* Where a run of storage ends, the kernels would ask for what lies behind it and not for what they
 * read next: tells them how far that is. in_row: positions from pos on that lie in a row with it. */
void kvs__look_ahead(const kvs__job *j, int side, uint32_t head, int64_t pos, uint64_t in_row,
                     kvs__planes *p);

/* -- the steps of a chunk at position c0, for n rows whose masks are made */

uint32_t kvs__k_tiles(uint32_t dim); /* of K decoded at a time */
/* Scores into w->s. */
void kvs__chunk_scores(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n,
                       int64_t c0);
/* What the keys' residuals scored becomes the scores of the keys. */
void kvs__add_centers(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0);
/* Of queries that are ready, if keys are centred. */
void kvs__center_queries(const kvs__job *j, const kvs__work *w, uint32_t n);
/* acc = numerators times values; tiles [t0, t1) have all that a row sees. */
void kvs__chunk_values(const kvs__job *j, const kvs__work *w, uint32_t head, uint32_t n, int64_t c0,
                       uint32_t t0, uint32_t t1);

/* -- small things */

static inline int64_t kvs__max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t kvs__min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline uint32_t kvs__low_bit(uint32_t x)
{
    return (uint32_t)__builtin_ctz(x);
}

/* Are the codes of a side multiplied as they are? */
static inline bool kvs__reads_codes(const kvs__fmt *fmt, int side)
{
    return fmt->n_sides == KVS__SIDES && fmt->side[side].shape.bits > 0;
}

#endif
