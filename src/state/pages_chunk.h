/* SPDX-License-Identifier: MIT */
/* pages_chunk.h: a chunk of blocks: one allocation that a pool takes for a class (pages_priv.h). */
#ifndef KVS_STATE_PAGES_CHUNK_H
#define KVS_STATE_PAGES_CHUNK_H

#include "state/store.h"

#define KVS__PAGE_CHUNK_MOST 4096u /* blocks; bounds the search for a free one */

struct kvs__page_class;

typedef struct kvs__page_chunk {
    struct kvs__page_class *home;
    struct kvs__page_chunk *prev; /* of all chunks of the class */
    struct kvs__page_chunk *next;
    struct kvs__page_chunk *open_prev; /* of those with a free block */
    struct kvs__page_chunk *open_next;
    uint32_t n_blocks;
    uint32_t n_free;
    uint64_t free[]; /* bit i: nobody refers to block i; [n_blocks / 64, rounded up] */
} kvs__page_chunk;

/* Groups of positions that a block can hold tokens of, at any place in the table. */
uint32_t kvs__page_centers(uint32_t block_tokens);
/* Bytes of one block, its headers included; a chunk of n blocks is n times that. False on overflow. */
bool kvs__page_size(const kvs__fmt *fmt, uint32_t block_tokens, size_t *bytes);
/* How many blocks a class has when a chunk is added to fewer than n: the totals that it grows by do not
 * depend on how it came to have what it has, so that they can be planned. n <= UINT64_MAX / 2.
 * chunk_bytes 0: a quarter of the total, but 1 to 32 MiB. */
uint64_t kvs__page_rung(size_t block_bytes, size_t chunk_bytes, uint64_t n);
/* Blocks up to which a chunk that is refused is not tried with fewer. */
uint32_t kvs__page_least(size_t block_bytes, size_t chunk_bytes);

/* In the memory of n blocks; all of them are free. */
void kvs__page_chunk_init(kvs__page_chunk *c, struct kvs__page_class *home, const kvs__fmt *fmt,
                          uint32_t block_tokens, uint32_t n, size_t block_bytes);
kvs__seg *kvs__page_at(const kvs__page_chunk *c, uint32_t i);
uint32_t kvs__page_index(const kvs__page_chunk *c, const kvs__seg *page);

bool kvs__page_is_free(const kvs__page_chunk *c, uint32_t i);
/* Changes the bit and n_free. */
void kvs__page_set_free(kvs__page_chunk *c, uint32_t i, bool is_free);
/* The k-th free block from the first on, k < n_free. */
uint32_t kvs__page_nth_free(const kvs__page_chunk *c, uint32_t k);
/* Longest run of free blocks: returns its length, *at is where a new sequence of blocks had best begin
 * in it. */
uint32_t kvs__page_longest(const kvs__page_chunk *c, uint32_t *at);

/* All bytes of tokens and centres of a block. */
void kvs__page_clear(const kvs__fmt *fmt, kvs__seg *page);
void kvs__page_copy(const kvs__fmt *fmt, kvs__seg *dst, const kvs__seg *src);

#endif
