/* SPDX-License-Identifier: MIT */
/* recurrent.h: the state of one recurrent layer and its undo storage.
 *
 * State lies in slots, one allocation each: [n_heads][tiles][state_dim][16], a tile being 16 rows of
 * head_dim side by side (the last one filled up with rows of zeros). The inputs of the convolution
 * lie in a ring of rows, those of the scan (keys, values, gates) in a ring of records.
 *
 * I1  `live` is the state after `len` tokens: the newest snapshot where that is at len, else `work`;
 *     NULL before the first reservation after new or clear, when it stands for zeros.
 * I2  Snapshot i of `count` (oldest first) is at pos[]: ascending, each `interval` after the one
 *     before. A snapshot is never written while it is one; slots are shared with forks, work is not.
 * I3  With interval > 1 the ring of records holds the tokens from the oldest snapshot to len.
 * I4  The ring of rows holds the inputs from conv_taps - 1 before the oldest snapshot (before len,
 *     without undo) to len; positions below 0 are rows of zeros.
 * I5  Between kvs__rec_reserve(n) and the next change, an advance by up to n tokens takes no memory. */
#ifndef KVS_STATE_RECURRENT_H
#define KVS_STATE_RECURRENT_H

#include <stdbool.h>

#include "base/base.h"
#include "kern/kern.h"
#include "kvstate/recurrent.h"

typedef struct kvs__rec_slot {
    size_t bytes;
    uint32_t refs;
} kvs__rec_slot;

/* What a spec comes to. */
typedef struct kvs__rec_plan {
    uint32_t interval;     /* 0: no undo */
    uint32_t n_snaps;      /* snapshots kept */
    size_t tiles_per_head; /* of 16 rows */
    size_t slot_bytes;
    size_t record;     /* floats of a record: k [groups][dim], v [heads][head_dim], g, b [heads] */
    size_t n_records;  /* interval > 1: n_snaps * interval */
    size_t row_bytes;  /* of one input of the convolution */
    size_t n_rows;     /* of the ring of inputs, 0: no convolution */
    size_t head_bytes; /* of the object with its arrays */
    size_t bytes;      /* of everything once a token is held */
} kvs__rec_plan;

typedef struct kvs__rec {
    kvs_recurrent_spec spec;
    kvs__rec_plan plan;
    bool keep; /* keep memory in clear */
    int64_t len;
    kvs__rec_slot *live;
    kvs__rec_slot *work;   /* interval != 1 */
    kvs__rec_slot **snap;  /* [n_snaps], a ring; NULL: not there yet */
    int64_t *pos;          /* [n_snaps] */
    kvs__rec_slot **spare; /* [n_snaps], n_spare of them: take the place of shared ones */
    uint32_t head;
    uint32_t count;
    uint32_t n_spare;
    unsigned char *rows;
    float *records;
    bool armed;         /* a round is open */
    int64_t base;       /* its position */
    uint64_t most_undo; /* tokens that it may take back */
    uint64_t n_rewinds;
    uint64_t n_recomputed;
} kvs__rec;

/* Reads and checks what spec->recurrent points to. */
kvs_status kvs__rec_read_spec(const kvs_recurrent_spec *in, uint32_t layer, kvs_recurrent_spec *out,
                              kvs_err *err);
/* KVS_E_LIMIT: undo_bytes holds no interval. interval 0 asks for the one that the spec chooses. */
kvs_status kvs__rec_plan_of(const kvs_recurrent_spec *spec, uint32_t layer, kvs__rec_plan *out,
                            kvs_err *err);
/* Undo bytes with a given interval; false on overflow. */
bool kvs__rec_undo_bytes(const kvs_recurrent_spec *spec, uint32_t interval, size_t *bytes);
/* The interval from 1 to undo_tokens that takes the least memory, the smallest of equals. */
uint32_t kvs__rec_least(const kvs_recurrent_spec *spec);
size_t kvs__rec_scratch_bytes(const kvs_recurrent_spec *spec, uint32_t n_threads);
/* "recurrent delta heads=32/16 ...", as snprintf. */
size_t kvs__rec_signature(const kvs__rec *r, char *dst, size_t n);

/* A checked spec; keep: takes all memory at once, and clear keeps it. */
kvs_status kvs__rec_new(kvs_ctx *ctx, const kvs_recurrent_spec *spec, bool keep, kvs__rec **out,
                        kvs_err *err);
void kvs__rec_free(kvs_ctx *ctx, kvs__rec *r); /* NULL is fine */
void kvs__rec_clear(kvs_ctx *ctx, kvs__rec *r);
size_t kvs__rec_bytes(const kvs__rec *r);
/* The oldest position that a rewind reaches. */
int64_t kvs__rec_oldest(const kvs__rec *r);
/* The greatest stored position <= at, -1: none. */
int64_t kvs__rec_kept(const kvs__rec *r, int64_t at);

kvs_status kvs__rec_reserve(kvs_ctx *ctx, kvs__rec *r, uint64_t n, kvs_err *err);
/* A checked description. */
void kvs__rec_conv(kvs_ctx *ctx, const kvs__rec *r, const kvs_recurrent_conv_desc *desc);
/* A checked step; reserves, then cannot fail. */
kvs_status kvs__rec_advance(kvs_ctx *ctx, kvs__rec *r, const kvs_recurrent_step *step,
                            kvs_err *err);
bool kvs__rec_can_rewind(const kvs__rec *r, uint64_t n);
void kvs__rec_rewind(kvs_ctx *ctx, kvs__rec *r, uint64_t n);

/* Another layer with the first n_tokens of r. Shares the snapshots; the running state and the rings,
 * whose size is fixed, are copied. No round is open in it. KVS_E_STATE: n_tokens can't be rewound to,
 * or reaches into an open round. */
kvs_status kvs__rec_fork(kvs_ctx *ctx, const kvs__rec *r, int64_t n_tokens, kvs__rec **out,
                         kvs_err *err);

/* A round of drafts: begin, any number of advances, then rollback or commit. KVS_E_STATE: a round is
 * open (begin), none is (the others), or undo_tokens is below most_undo, the number of tokens that the
 * round may have to take back; with 0 it retains nothing. rollback keeps the first `keep` tokens of
 * the round: KVS_E_RANGE above what was advanced or where more than most_undo would go, KVS_E_STATE
 * before the first advance and where rewinds within the round used undo up. A call that fails
 * leaves the round as it was. While a round is open only what came before it can be forked or
 * exported, and nothing before it rewound. */
kvs_status kvs__rec_begin(kvs__rec *r, uint64_t most_undo, kvs_err *err);
kvs_status kvs__rec_rollback(kvs_ctx *ctx, kvs__rec *r, uint64_t keep, kvs_err *err);
kvs_status kvs__rec_commit(kvs__rec *r, kvs_err *err);

kvs_status kvs__rec_import(kvs_ctx *ctx, kvs__rec *r, int64_t at, const void *conv,
                           const float *state, kvs_err *err);
/* KVS_E_STATE: a position inside an open round. */
kvs_status kvs__rec_check_open(const kvs__rec *r, int64_t at, kvs_err *err);
/* `at` is kept. */
void kvs__rec_export(const kvs__rec *r, int64_t at, void *conv, float *state);

/* -- planes in one piece (rec_snapshot.c): docs/format.md, form 2 */

/* A multiple of 8; false on overflow. */
bool kvs__rec_packed_bytes(const kvs_recurrent_spec *spec, size_t *bytes);
/* After `at` tokens, which the layer can rewind to; gaps between planes are left as they are. Takes
 * memory where that position is not kept. dst and src: aligned to 8. */
kvs_status kvs__rec_pack(kvs_ctx *ctx, const kvs__rec *r, int64_t at, unsigned char *dst,
                         kvs_err *err);
kvs_status kvs__rec_unpack(kvs_ctx *ctx, kvs__rec *r, int64_t at, const unsigned char *src,
                           kvs_err *err);

/* -- for rec_run.c */

static inline float *kvs__rec_state(kvs__rec_slot *slot)
{
    return (float *)(void *)((unsigned char *)slot + 64);
}
/* The row of position pos >= -(conv_taps - 1). */
static inline unsigned char *kvs__rec_row(const kvs__rec *r, int64_t pos)
{
    size_t i = (size_t)(pos + (int64_t)r->spec.conv_taps - 1) % r->plan.n_rows;
    return r->rows + i * r->plan.row_bytes;
}
/* Tokens [first, first + n) of a step from one slot to another (or the same). */
void kvs__rec_run(kvs_ctx *ctx, const kvs__rec *r, kvs__rec_slot *dst, kvs__rec_slot *src,
                  const kvs_recurrent_step *step, uint32_t first, uint32_t n);
/* Recorded tokens [from, to), the state alone. */
void kvs__rec_replay(kvs_ctx *ctx, const kvs__rec *r, kvs__rec_slot *dst, kvs__rec_slot *src,
                     int64_t from, int64_t to);
/* Stores the convolution inputs of a step of n tokens at position `at`, as far as the ring goes. */
void kvs__rec_keep_rows(kvs_ctx *ctx, kvs__rec *r, const kvs_recurrent_step *step, int64_t at);

#endif
