/* SPDX-License-Identifier: MIT */
/* pages_priv.h: the pool of blocks from inside (pages.h is what callers see).
 *
 * A block is a kvs__seg that lies in a chunk of its class. A class is a format; all its blocks have
 * one size. What a block's counts say (seg.refs all references, seg.kept those of a prefix index):
 *     refs == 0           free     marked in its chunk
 *     refs == kept > 0    cached   only a prefix index refers to it
 *     refs > kept         held     a cache or view refers to it
 * I1  n_free + n_cached + n_held == n_total, in each class, after every call (debug builds prove it
 *     for the class and the chunk that changed; kvs__pages_check proves it for all).
 * I2  `bytes` is what the pool has from the allocator, and never grows past max_bytes.
 * I3  A block with refs > 1 or kept > 0 is never written: a writer takes a copy (paged.c).
 * I4  A block handed out is all zeros; so no byte of another sequence is ever seen in it.
 *
 * Threads: counts and lists are changed and read under the pool's lock, which is recursive and
 * which an index that serves caches of several threads is under, too: reclaim, called with it, goes
 * into the index. Bytes of a block are read without it by who holds a reference: I3 keeps them from
 * being written, and a reference is got under the lock, so after they were.
 */
#ifndef KVS_STATE_PAGES_PRIV_H
#define KVS_STATE_PAGES_PRIV_H

#include "kvstate/pages.h"
#include "state/layer.h"
#include "state/pages_chunk.h"
#include "state/pages_lock.h"

#define KVS__PAGE_BLOCK 64u /* tokens; bench_attention: as fast as grow, and a fork wastes 32 */

#define KVS__PAGE_MOST 256u

typedef struct kvs__page_class kvs__page_class;

struct kvs__page_class {
    kvs_pages *pages;
    kvs__page_class *next;
    kvs__fmt fmt;
    size_t block_bytes;
    kvs__page_chunk *chunks;
    kvs__page_chunk *open;
    uint64_t n_total;
    uint64_t n_free;
    uint64_t n_cached;
    uint64_t n_held;
};

/* Asked to let go of cached blocks when no chunk can be had; false: there is nothing to let go. May
 * call kvs__page_unkeep, nothing else of the pool. */
typedef bool (*kvs__page_reclaim_fn)(void *user, kvs_pages *pages, size_t block_bytes);

uint32_t kvs__pages_block(const kvs_pages *p);
kvs_ctx *kvs__pages_ctx(const kvs_pages *p);
/* A cache that uses the pool keeps it alive. */
void kvs__pages_join(kvs_pages *p);
void kvs__pages_leave(kvs_pages *p);
void kvs__pages_set_reclaim(kvs_pages *p, kvs__page_reclaim_fn fn, void *user);
/* For tests: free blocks are handed out in an order drawn from seed; 0: as kvs__page_take says. */
void kvs__pages_scramble(kvs_pages *p, uint64_t seed);
/* Walks everything; false where an invariant does not hold. */
bool kvs__pages_check(const kvs_pages *p);

/* A zeroed block of this format with one reference, held: the one beside `after`, which the caller
 * refers to, if that is free; else, or with NULL, one that has room for others behind it. KVS_E_LIMIT
 * or KVS_E_NOMEM; then nothing has changed but what reclaim gave up. */
kvs_status kvs__page_take(kvs_pages *p, const kvs__fmt *fmt, const kvs__seg *after, kvs__seg **out,
                          kvs_err *err);
void kvs__page_share(kvs__seg *page);   /* one more reference of a cache or view */
void kvs__page_release(kvs__seg *page); /* of a cache or view */
void kvs__page_keep(kvs__seg *page);    /* one more reference of an index */
void kvs__page_unkeep(kvs__seg *page);
bool kvs__page_shared(const kvs__seg *page); /* somebody else refers to it, too */

/* Options read and their defaults put in. */
kvs_status kvs__pages_read_opts(const kvs_pages_opts *opts, kvs_pages_opts *out, kvs_err *err);
/* What a pool of these options takes for n_blocks of a format; false on overflow. Its own struct
 * comes on top. */
bool kvs__pages_need(const kvs_pages_opts *opts, const kvs__fmt *fmt, uint64_t n_blocks,
                     size_t *bytes);
size_t kvs__pages_head(void);
bool kvs__fmt_same(const kvs__fmt *a, const kvs__fmt *b);

/* -- what a prefix index needs (pages_index.c) */

/* The blocks that a layer needs to go on from n tokens: [0, n_sink) and [first, end), by number. A
 * block b holds positions [b * block, (b + 1) * block); the last may be partial. */
typedef struct kvs__page_need {
    uint64_t n_sink;
    uint64_t first; /* >= n_sink */
    uint64_t end;
} kvs__page_need;
/* With max_block tokens of slack for rewinds, as far as there are tokens. KVS_E_UNSUPPORTED: the
 * layer is not paged. */
kvs_status kvs__page_need_of(const kvs_cache *c, uint32_t layer, uint64_t n_tokens,
                             kvs__page_need *out, kvs_err *err);
/* Takes an index reference on block number `block` of a layer. n_committed: tokens of the layer that
 * can't be taken back any more; the block must hold one of them, and of a block that reaches beyond
 * only those below count. KVS_E_RANGE: not stored (any more). */
kvs_status kvs__page_keep_of(const kvs_cache *c, uint32_t layer, uint64_t block,
                             uint64_t n_committed, kvs__seg **out, kvs_err *err);
/* Bytes of a block without padding: head after head its K planes, then its V planes (codes or
 * elements, scales, biases), then the centres of the groups that it has tokens of, where K slots come in tiles as kvs_span says and V slots in rows; slots are the
 * block's tokens rounded up to 16. Depends on the format and block_tokens alone. */
size_t kvs__page_raw_bytes(const kvs__fmt *fmt, uint32_t block_tokens);
/* Slots from n_tokens on, and centres of groups that begin there, are written as zeros, whatever a
 * rewound token left there. */
void kvs__page_get_raw(const kvs__seg *page, uint32_t n_tokens, unsigned char *dst);
/* Into a block of kvs__page_fresh that nobody else refers to. */
void kvs__page_set_raw(kvs__seg *page, const unsigned char *src);
/* A zeroed block that goes with tokens of this layer when it holds n_tokens (a layer with
 * dense_until has two formats), with one index reference. */
kvs_status kvs__page_fresh(const kvs_cache *c, uint32_t layer, uint64_t n_tokens, kvs__seg **out,
                           kvs_err *err);
const kvs__fmt *kvs__page_fmt(const kvs__seg *page);
/* Blocks of one layer: numbers [0, n_sink), then [first, first + n - n_sink). */
typedef struct kvs__page_list {
    kvs__seg *const *page; /* [n] */
    uint64_t n;
    uint64_t n_sink;
    uint64_t first;
    int64_t oldest; /* no position from here on is missing, but those of blocks that are not in the
                       list: kvs_cache_oldest of the source, or less */
} kvs__page_list;
/* Makes an empty cache one of n_tokens tokens that shares these blocks: list [n_layers]. A list may
 * start later than kvs__page_need_of says as long as the next query's window is whole. A layer that
 * is not paged is left alone and has an empty list. All layers or none: KVS_E_STATE (a layer holds
 * tokens), KVS_E_INVAL (block missing, NULL, of another pool or format), KVS_E_NOMEM. */
kvs_status kvs__page_attach(kvs_cache *c, uint64_t n_tokens, const kvs__page_list *list,
                            kvs_err *err);

#endif
