/* SPDX-License-Identifier: MIT */
/* history_priv.h: what the files of history share: blocks of a layer and the list of saved runs. */
#ifndef KVS_STORE_HISTORY_PRIV_H
#define KVS_STORE_HISTORY_PRIV_H

#include "state/layer.h"
#include "store/history.h"
#include "store/known.h"

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
    kvs__layer *l;    /* keys and values; NULL: has none of its own */
    bool slides;      /* drops old tokens: has notes */
    bool dense;       /* form of the notes, or of what is known: that below dense_until */
    uint32_t whole;   /* of a layer that keeps all: which one, in a row of h->row */
    int64_t end;      /* noted up to here */
    kvs__hblock *blk; /* of the notes */
    kvs__lent **lent; /* [n_blk], where their data is */
    uint32_t n_blk;
    size_t cap, cap_lent;
    kvs__layer *rec;    /* a recurrent layer, l is NULL then */
    size_t rec_bytes;   /* of its planes, a multiple of 8 */
    size_t rec_at;      /* of them in a snapshot */
    uint32_t rec_known; /* of a snapshot: the first that is its */
} kvs__hlayer;

/* The planes of all recurrent layers after the first `pos` tokens: tail and state move together. */
typedef struct kvs__hsnap {
    int64_t pos;
    kvs__lent *lent; /* [rec_bytes] */
} kvs__hsnap;

#define KVS__MARKS 4

struct kvs__history {
    kvs_ctx *ctx;
    kvs_cache *cache;
    size_t max_bytes;
    size_t bytes;   /* of notes */
    uint32_t shift; /* by which S(c) was doubled to stay within max_bytes */
    bool over;      /* no notes: not even those of the windows fit */
    uint32_t n_layers;
    kvs__hlayer *layer;
    size_t rec_bytes;   /* of a snapshot; 0: no layer is recurrent */
    uint32_t rec_known; /* chunks of it */
    uint64_t rec_undo;  /* tokens that every recurrent layer goes back by itself */
    kvs__hsnap *snap;   /* ascending */
    uint32_t n_snaps;
    size_t cap_snaps;
    int64_t rec_end;          /* snapshots up to here were taken, or could not be */
    int64_t mark[KVS__MARKS]; /* positions worth one, the newest first; 0: none */
    /* What is known of the blocks of layers that keep all: row i of [256 i, 256 (i + 1)), one of each */
    kvs__lent **row;
    uint32_t n_rows;
    size_t cap_rows;
    uint32_t n_whole; /* such layers */
    /* entry that was restored, pinned */
    kvs_store *store;
    kvs_entry entry;
    uint64_t from_entry; /* tokens of it that are still the cache's */
};

/* Bytes of a block of the n positions from base on, and where plane p of a side begins in it; the
 * centres come last, at side KVS__SIDES. */
size_t kvs__hblock_bytes(const kvs__fmt *fmt, int64_t base, uint64_t n);
size_t kvs__hblock_at(const kvs__fmt *fmt, uint64_t n, int side, int plane);
/* Stored bytes of [lo, hi) between a store and a buffer. put appends (or jumps) and may fail. */
void kvs__hblock_get(const kvs__store *s, const kvs__hblock *b);
kvs_status kvs__hblock_put(kvs_ctx *ctx, kvs__store *s, const kvs__hblock *b, kvs_err *err);
/* Copies rows [to->lo, to->hi) from one buffer to another. */
void kvs__hblock_copy(const kvs__fmt *fmt, const kvs__hblock *from, const kvs__hblock *to);

/* Tokens that the cache holds. */
uint64_t kvs__hist_len(const kvs__history *h);
/* Distance of checkpoints about position c, and the first of them after `at`. */
int64_t kvs__hist_spacing(const kvs__history *h, int64_t c);
int64_t kvs__hist_next(const kvs__history *h, int64_t at);

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
/* Makes the data of block b of the notes fit to be written to; false without memory. */
bool kvs__hist_own(kvs__history *h, kvs__hlayer *hl, kvs__hblock *b);
/* Thins the notes until `bytes` more have room; false: they have none. 0: gives the notes up then. */
bool kvs__hist_room(kvs__history *h, size_t bytes);
/* Completes the notes below what was restored from the entry. */
void kvs__hist_fill(kvs__history *h);

/* -- what is known of layers that keep all (history_known.c) */

/* Drops the rows of blocks that are not what they were, makes those of blocks that are new. Rows take a
 * sixteenth of max_bytes at most, besides the notes; blocks beyond have none and are hashed at each
 * save. */
void kvs__hknown_follow(kvs__history *h);
size_t kvs__hknown_bytes(const kvs__history *h);
/* Rows from the nth on. */
void kvs__hknown_drop(kvs__history *h, uint32_t n);
/* Of block k of a layer that keeps all, NULL: nothing is. */
static inline kvs__known *kvs__hknown(const kvs__history *h, const kvs__hlayer *hl, uint64_t k)
{
    return k < h->n_rows ? &h->row[k]->known[hl->whole] : NULL;
}
/* Bytes of a whole block where the store can cut at its end, else 0. */
static inline size_t kvs__hblock_chunk(const kvs__fmt *fmt)
{
    size_t chunk = kvs__hblock_bytes(fmt, 0, (uint64_t)BLOCK);
    return chunk <= KVS_STORE_CHUNK_MAX ? chunk : 0;
}

/* -- recurrent layers (history_rec.c) */

/* What a snapshot takes. */
static inline size_t kvs__hsnap_bytes(const kvs__history *h)
{
    return kvs__lent_bytes(h->rec_bytes, h->rec_known);
}
/* Chunks of a layer's planes in an entry. */
static inline uint32_t kvs__rec_chunks(const kvs__hlayer *hl)
{
    return (uint32_t)((hl->rec_bytes + KVS_STORE_CHUNK - 1) / KVS_STORE_CHUNK);
}
kvs_status kvs__hrec_init(kvs__history *h, kvs_err *err);
/* Takes what is due, drops what is past the length. */
void kvs__hrec_note(kvs__history *h);
/* The snapshot at pos, or NULL. */
const kvs__hsnap *kvs__hrec_find(const kvs__history *h, int64_t pos);
bool kvs__hrec_wanted(const kvs__history *h, int64_t pos);
/* Room for a snapshot at its place in the list, data to be filled; NULL without memory or budget. */
kvs__hsnap *kvs__hrec_insert(kvs__history *h, int64_t pos);
void kvs__hrec_thin(kvs__history *h);
void kvs__hrec_remove(kvs__history *h, int64_t pos);
/* Those after position pos. */
void kvs__hrec_drop(kvs__history *h, int64_t pos);
/* The oldest mark and what it kept; false: there is none. */
bool kvs__hrec_drop_mark(kvs__history *h);
/* Can every recurrent layer go to c, by itself or with a snapshot? And takes them there. */
bool kvs__hrec_serves(const kvs__history *h, int64_t c);
kvs_status kvs__hrec_back(kvs__history *h, int64_t c, kvs_err *err);
static inline bool kvs__layer_dense(const kvs__layer *l)
{
    return kvs__layer_store(l) == &l->early;
}
static inline int64_t kvs__hist_grid(int64_t at)
{
    return at - at % BLOCK;
}

#endif
