/* SPDX-License-Identifier: MIT */
/* layer.h: one layer of a cache: its store, the dense store of a delayed conversion, and its part
 * in a round of drafts (round.h); or, of a recurrent layer, the object of recurrent.h and no store.
 *
 * Phases of a layer with dense_until = D > 0, by its length n:
 *   n <= D               early holds all, main is empty
 *   n > D, just crossed  early holds [.., D), main holds all; queries below D still read early
 *   n > D, later         the next append dropped early; main holds all
 * A block read takes the format that the stored tokens have: early up to D, main beyond.
 * I1  A query at a position below D reads early, any other main. The switch depends on positions
 *     alone, so how tokens were cut into appends can't show.
 * I2  The length of the layer is main.len if main holds a token, else early.len.
 * I3  While a round is open tokens below round.base are committed and can't be changed; early is
 *     kept if the round began with it and may have to go back there. */
#ifndef KVS_STATE_LAYER_H
#define KVS_STATE_LAYER_H

#include "state/recurrent.h"
#include "state/store.h"

/* Of one layer in an open round. */
typedef struct kvs__round {
    int64_t base;  /* length at begin; -1: no round */
    uint64_t most; /* tokens that may be appended */
    bool drafts;   /* some of them can be rejected */
    bool dense;    /* began with the dense copy: it may be needed again */
    bool whole;    /* began before the conversion */
    bool held;     /* the dense copy would have been dropped */
} kvs__round;

struct kvs__round_ops;

typedef struct kvs__layer {
    kvs_layer_spec spec;
    const struct kvs__round_ops *ops;
    kvs__round round;
    uint64_t reserve;
    kvs__store main;
    kvs__store early; /* used when spec.dense_until > 0 */
    kvs__rec *rec;    /* recurrent layers; the stores are not used then */
    struct {
        uint32_t n_segs;
        uint64_t table_cap;
    } mark[2]; /* of main and early at kvs__layer_mark */
} kvs__layer;

struct kvs_cache {
    kvs_ctx *ctx;
    uint32_t n_layers;
    bool open;         /* a round is, in every layer with ops */
    bool broken;       /* by a failed round: all calls are refused */
    bool mark;         /* for the time of a call that looks for doubles (rows.c) */
    uint32_t drafts;   /* of the open round */
    kvs__layer *layer; /* [n_layers] */
    kvs_pages *pages;  /* of the paged layers, or NULL */
};

static inline bool kvs__layer_open(const kvs__layer *l)
{
    return l->round.base >= 0;
}

/* "layer 3: ..." errors for a layer out of range; *out NULL then. The first gives the layer itself
 * and refuses one that borrows (`what` can't be done to it), the second the layer that is read:
 * the donor of one that borrows. */
kvs_status kvs__cache_own(const kvs_cache *c, uint32_t layer, const char *what, kvs__layer **out,
                          kvs_err *err);
kvs_status kvs__cache_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err);
/* The same, and refuses layers that hold no keys and values. */
kvs_status kvs__cache_kv_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err);
/* kvs__cache_own of such a layer. */
kvs_status kvs__cache_own_kv(const kvs_cache *c, uint32_t layer, const char *what, kvs__layer **out,
                             kvs_err *err);
/* KVS_E_STATE while a round is open: `what` would change committed tokens. */
kvs_status kvs__cache_closed(const kvs_cache *c, const char *what, kvs_err *err);
/* KVS_E_STATE if tokens of [.., end) are not committed. */
kvs_status kvs__layer_committed(const kvs__layer *l, int64_t end, const char *what, kvs_err *err);

/* Options, and layer i as an empty cache has it, checked; of the pool only the block is looked at. */
kvs_status kvs__cache_read_opts(const kvs_cache_opts *opts, kvs_cache_opts *out, kvs_err *err);
kvs_status kvs__cache_read_layer(const kvs_cache_opts *o, uint32_t i, kvs__layer *out,
                                 kvs_err *err);
/* Is one of the layers paged? */
kvs_status kvs__cache_any_paged(const kvs_cache_opts *o, bool *out, kvs_err *err);
/* Bytes of a cache and its layers without what they store. */
size_t kvs__cache_head_bytes(uint32_t n_layers);

int64_t kvs__layer_len(const kvs__layer *l);
/* The store whose tokens answer for the length: main once converted, early before. */
const kvs__store *kvs__layer_store(const kvs__layer *l);
/* KVS_E_LIMIT: the open round takes fewer than n more tokens. */
kvs_status kvs__layer_room(const kvs__layer *l, uint64_t n, kvs_err *err);
/* What the first append beyond the conversion does, unless a round may need the dense copy. */
void kvs__layer_drop_early(kvs_ctx *ctx, kvs__layer *l);
/* Import in two halves: all that can fail, then the copy of planes whose heads are `stride` tokens
 * (centres: c_stride groups) apart. */
kvs_status kvs__layer_import_reserve(kvs_ctx *ctx, kvs__layer *l, int64_t at, uint64_t n,
                                     const kvs_planes *p, uint64_t c_stride, kvs_err *err);
void kvs__layer_import(kvs_ctx *ctx, kvs__layer *l, int64_t at, uint64_t n, const kvs_planes *p,
                       uint64_t stride, uint64_t c_stride);
/* Copies such planes to positions [at, at + n) of a store that has room, behind a gap or not. */
void kvs__store_import(kvs__store *s, int64_t at, uint64_t n, const kvs_planes *p, uint64_t stride,
                       uint64_t c_stride);
/* KVS_E_INVAL where centres for positions from `at` on are missing, or that of a group which has tokens
 * already is not the one that they have. */
kvs_status kvs__store_check_centers(const kvs__store *s, int64_t at, const kvs_planes *p,
                                    uint64_t c_stride, kvs_err *err);
/* Copies stored bytes of [begin, begin + n), all stored, to such planes. */
void kvs__store_export(const kvs__store *s, int64_t begin, uint64_t n, const kvs_planes *p,
                       uint64_t stride, uint64_t c_stride);
kvs_status kvs__layer_reserve(kvs_ctx *ctx, kvs__layer *l, uint64_t n, kvs_err *err);
/* Remembers what is held, and gives up what reserves since then have added. */
void kvs__layer_mark(kvs__layer *l);
void kvs__layer_undo(kvs_ctx *ctx, kvs__layer *l);
/* The same for an append in several blocks, each within a ring's max_block. */
kvs_status kvs__layer_reserve_all(kvs_ctx *ctx, kvs__layer *l, uint64_t n, kvs_err *err);
/* Reserves, then writes; the write itself cannot fail. */
kvs_status kvs__layer_append(kvs_ctx *ctx, kvs__layer *l, const kvs_kv *kv, kvs_err *err);
/* dst: a layer of its own that begins with the first `len` tokens of src (which can rewind there).
 * O(segments). Can fail for a paged table alone; dst holds nothing then. */
kvs_status kvs__layer_fork(kvs_ctx *ctx, kvs__layer *dst, kvs__layer *src, int64_t len,
                           kvs_err *err);
void kvs__layer_drop(kvs_ctx *ctx, kvs__layer *l);
bool kvs__layer_can_rewind(const kvs__layer *l, uint64_t n);
void kvs__layer_rewind(kvs_ctx *ctx, kvs__layer *l, uint64_t n);
kvs_status kvs__layer_attend(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc,
                             kvs_err *err);
/* By the calling thread alone, with scratch of its own (kvs__layer_scratch over the threads of the
 * context); mode causal alone. */
kvs_status kvs__layer_attend_here(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc,
                                  void *scratch, kvs_err *err);
/* Checks a kv against the kind of the layer; `what` names it in messages. */
kvs_status kvs__kv_check(const kvs_kv *kv, kvs_layer_kind kind, const char *what, kvs_err *err);
/* Can a latent layer of this shape keep its row in codec k? */
kvs_status kvs__latent_check(const kvs_layer_spec *s, const kvs_codec *k, kvs_err *err);
/* Scratch of every call on a layer of this spec; part of kvs_cache_new. */
bool kvs__layer_scratch(const kvs__layer *l, uint32_t n_threads, size_t *bytes);

#endif
