/* SPDX-License-Identifier: MIT */
/* history_priv.h: what the files of history share: blocks of a layer and the list of saved runs. */
#ifndef KVS_STORE_HISTORY_PRIV_H
#define KVS_STORE_HISTORY_PRIV_H

#include "state/layer.h"
#include "store/history.h"

#define BLOCK ((int64_t)KVS__HISTORY_BLOCK)

/* Positions [lo, hi) of one block of the grid, in a buffer that holds the planes of `stride`
 * tokens, the first of which is position `base`. */
typedef struct kvs__hblock {
    int64_t lo, hi;
    int64_t base;
    uint32_t stride;
    unsigned char *data;
} kvs__hblock;

typedef struct kvs__hlayer {
    kvs__layer *l; /* NULL: has nothing of its own */
    bool slides;   /* drops old tokens: has notes */
    bool dense;    /* form of the notes: that below dense_until */
    int64_t end;   /* noted up to here */
    kvs__hblock *blk;
    uint32_t n_blk, cap;
} kvs__hlayer;

struct kvs__history {
    kvs_ctx *ctx;
    kvs_cache *cache;
    size_t max_bytes;
    size_t bytes;   /* of notes */
    uint32_t shift; /* by which S(c) was doubled to stay within max_bytes */
    bool over;      /* no notes: not even those of the windows fit */
    uint32_t n_layers;
    kvs__hlayer *layer;
    /* entry that was restored, pinned */
    kvs_store *store;
    kvs_entry entry;
    uint64_t from_entry; /* tokens of it that are still the cache's */
};

/* Bytes of a block of n tokens, and where plane p of a side begins in it. */
size_t kvs__hblock_bytes(const kvs__fmt *fmt, uint64_t n);
size_t kvs__hblock_at(const kvs__fmt *fmt, uint64_t n, int side, int plane);
/* Stored bytes of [lo, hi) between a store and a buffer. put appends (or jumps) and may fail. */
void kvs__hblock_get(const kvs__store *s, const kvs__hblock *b);
kvs_status kvs__hblock_put(kvs_ctx *ctx, kvs__store *s, const kvs__hblock *b, kvs_err *err);

/* First position that a query at c needs of the newest ones; sinks come on top. */
int64_t kvs__hist_need(const kvs_layer_spec *spec, int64_t c);
/* Is [lo, hi) covered by n blocks in ascending order? */
bool kvs__hist_covers(const kvs__hblock *b, uint32_t n, int64_t lo, int64_t hi);
/* Are these blocks enough to go on at c? full: the layer keeps everything. */
bool kvs__hist_serves(const kvs_layer_spec *spec, bool slides, const kvs__hblock *b, uint32_t n,
                      int64_t c);
/* Takes an empty store to c tokens from blocks that serve it. data of blocks that are needed is
 * there. */
kvs_status kvs__hist_load(kvs_ctx *ctx, kvs__store *s, const kvs_layer_spec *spec, bool slides,
                          const kvs__hblock *b, uint32_t n, int64_t c, kvs_err *err);
/* First position that kvs__hist_load reads besides sinks. */
int64_t kvs__hist_from(const kvs_layer_spec *spec, bool slides, const kvs__hblock *b, uint32_t n,
                       int64_t c);
bool kvs__hist_wanted(const kvs__history *h, const kvs_layer_spec *spec, int64_t at, int64_t n);
/* Room for one more block at its place in the list; NULL without memory. */
kvs__hblock *kvs__hist_insert(kvs__history *h, kvs__hlayer *hl, int64_t base);
void kvs__hist_thin(kvs__history *h);
/* Completes the notes below what was restored from the entry. */
void kvs__hist_fill(kvs__history *h);

static inline bool kvs__layer_dense(const kvs__layer *l)
{
    return kvs__layer_store(l) == &l->early;
}
static inline int64_t kvs__hist_grid(int64_t at)
{
    return at - at % BLOCK;
}

#endif
