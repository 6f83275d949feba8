/* SPDX-License-Identifier: MIT */
/* pages_chunk.c: how a chunk is laid out, how large the next one is, which of its blocks are free.
 *
 * A chunk is: this header with the bits, the headers of the blocks side by side, then for each head
 * plane by plane what all blocks have of it, the centres last:
 *     [n_heads][planes][n_blocks][slots of a block]
 * C1  Of blocks that lie side by side, a head's plane goes on from one to the next without a gap. So
 *     side by side and in the order of positions they are read and written as one (store.c), and
 *     memory sees long streams, as of a grown segment.
 * C2  A chunk takes n_blocks times the bytes of a block, its own header and all padding included: what
 *     a class takes depends on its number of blocks alone, not on the chunks that they come in.
 * C3  Bit i of free is set if and only if block i has no reference; bits from n_blocks on are clear. */
#include "state/pages_chunk.h"

#include <string.h>

#define FIRST_BYTES ((size_t)1 << 20)
#define MOST_BYTES  ((size_t)32 << 20)
#define SHARE       4 /* a chunk adds a quarter of the total, within these bounds */
/* Of the chunk's header what a block pays for: n of them are enough for the header of n blocks. */
#define HEAD_SHARE round_up(sizeof(kvs__page_chunk) + sizeof(uint64_t))
/* What a block has of each head: planes of K, of V, centres. */
#define PARTS   (KVS__SIDES * KVS__PLANES + 1)
#define CENTERS (KVS__SIDES * KVS__PLANES)

static size_t round_up(size_t n)
{
    return (n + 63) / 64 * 64;
}

static size_t n_words(uint32_t n_blocks)
{
    return (n_blocks + 63) / 64;
}

/* -- sizes */

uint32_t kvs__page_centers(uint32_t block)
{
    const uint32_t group = KVS_CENTER_GROUP;
    if (block % group == 0 || group % block == 0) {
        return block > group ? block / group : 1;
    }
    return (uint32_t)kvs__center_rows(block);
}

static uint64_t slots_of(uint32_t block)
{
    return (block + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
}

/* Bytes of a part of one head; dims and cap are small: no overflow. */
static size_t part_bytes(const kvs__fmt *fmt, uint64_t cap, size_t n_centers, int part)
{
    if (part == CENTERS) {
        return n_centers * fmt->center_bytes;
    }
    const kvs__side *s = &fmt->side[part / KVS__PLANES];
    return (size_t)cap * s->n_units[part % KVS__PLANES] * s->unit_bytes[part % KVS__PLANES];
}

/* The parts of one head of n blocks: where each begins, and bytes of all. */
static size_t lay_out_head(const kvs__fmt *fmt, uint32_t block, uint32_t n, size_t at[PARTS])
{
    const size_t centers = fmt->center_bytes ? kvs__page_centers(block) : 0;
    size_t head = 0;
    for (int i = 0; i < PARTS; i++) {
        at[i] = head;
        head += round_up(n * part_bytes(fmt, slots_of(block), centers, i));
    }
    return head;
}

bool kvs__page_size(const kvs__fmt *fmt, uint32_t block, size_t *bytes)
{
    size_t at[PARTS];
    size_t head = lay_out_head(fmt, block, 1, at);
    return kvs__mul_size(head, fmt->n_heads, bytes) &&
           kvs__add_size(*bytes, KVS__SEG_STRIDE + HEAD_SHARE, bytes);
}

/* Blocks of the chunk that follows `total` blocks; never fewer than after a smaller total. */
static uint32_t step_of(size_t block_bytes, size_t chunk_bytes, uint64_t total)
{
    size_t bytes = 0;
    size_t want = chunk_bytes;
    if (!chunk_bytes) {
        bool fits = total <= SIZE_MAX && kvs__mul_size((size_t)total, block_bytes, &bytes);
        want = fits && bytes / SHARE < MOST_BYTES ? bytes / SHARE : MOST_BYTES;
        want = want < FIRST_BYTES ? FIRST_BYTES : want;
    }
    size_t n = want / block_bytes;
    n = n < KVS__PAGE_CHUNK_MOST ? n : KVS__PAGE_CHUNK_MOST;
    return n > 0 ? (uint32_t)n : 1;
}

uint64_t kvs__page_rung(size_t block_bytes, size_t chunk_bytes, uint64_t n)
{
    const uint64_t most = step_of(block_bytes, chunk_bytes, UINT64_MAX);
    uint64_t total = 0;
    uint64_t step = 0;
    while (total < n && (step = step_of(block_bytes, chunk_bytes, total)) < most) {
        total += step;
    }
    if (total < n) { /* no step from here on is another */
        total += ((n - total - 1) / most + 1) * most;
    }
    return total;
}

uint32_t kvs__page_least(size_t block_bytes, size_t chunk_bytes)
{
    return step_of(block_bytes, chunk_bytes, 0);
}

/* -- layout */

static size_t front_bytes(uint32_t n_blocks)
{
    return round_up(sizeof(kvs__page_chunk) + n_words(n_blocks) * sizeof(uint64_t));
}

kvs__seg *kvs__page_at(const kvs__page_chunk *c, uint32_t i)
{
    unsigned char *base = (unsigned char *)(uintptr_t)c + front_bytes(c->n_blocks);
    return (kvs__seg *)(void *)(base + (size_t)i * KVS__SEG_STRIDE);
}

uint32_t kvs__page_index(const kvs__page_chunk *c, const kvs__seg *page)
{
    const unsigned char *first = (const unsigned char *)kvs__page_at(c, 0);
    return (uint32_t)((size_t)((const unsigned char *)page - first) / KVS__SEG_STRIDE);
}

void kvs__page_chunk_init(kvs__page_chunk *c, struct kvs__page_class *home, const kvs__fmt *fmt,
                          uint32_t block, uint32_t n, size_t block_bytes)
{
    size_t at[PARTS];
    const size_t head = lay_out_head(fmt, block, n, at);
    const uint64_t cap = slots_of(block);
    const uint32_t centers = fmt->center_bytes ? kvs__page_centers(block) : 0;
    memset(c, 0, front_bytes(n));
    c->home = home;
    c->n_blocks = n;
    for (uint32_t i = 0; i < n; i++) {
        kvs__seg *page = kvs__page_at(c, i);
        /* of part 0 of block 0, seen from this header */
        const size_t base = (size_t)n * KVS__SEG_STRIDE - (size_t)i * KVS__SEG_STRIDE;
        memset(page, 0, sizeof *page);
        page->bytes = block_bytes;
        page->cap = cap;
        page->chunk = c;
        page->center_head = head;
        page->n_centers = centers;
        page->center_at = base + at[CENTERS] + i * part_bytes(fmt, cap, centers, CENTERS);
        for (int p = 0; p < CENTERS; p++) {
            page->offset[p / KVS__PLANES][p % KVS__PLANES] =
                base + at[p] + i * part_bytes(fmt, cap, centers, p);
            page->head_bytes[p / KVS__PLANES][p % KVS__PLANES] = head;
        }
        kvs__page_set_free(c, i, true);
    }
}

/* -- free blocks */

bool kvs__page_is_free(const kvs__page_chunk *c, uint32_t i)
{
    return c->free[i / 64] >> i % 64 & 1;
}

void kvs__page_set_free(kvs__page_chunk *c, uint32_t i, bool is_free)
{
    KVS_ASSERT(i < c->n_blocks && kvs__page_is_free(c, i) != is_free);
    c->free[i / 64] ^= (uint64_t)1 << i % 64;
    c->n_free += is_free ? 1 : UINT32_MAX;
}

/* First block from i on that is free, or is not; n_blocks if there is none. */
static uint32_t find(const kvs__page_chunk *c, uint32_t i, bool is_free)
{
    for (; i < c->n_blocks; i = (i / 64 + 1) * 64) {
        uint64_t word = is_free ? c->free[i / 64] : ~c->free[i / 64];
        word &= UINT64_MAX << i % 64;
        if (word) {
            i = i / 64 * 64 + (uint32_t)__builtin_ctzll(word);
            break;
        }
    }
    return i < c->n_blocks ? i : c->n_blocks;
}

uint32_t kvs__page_nth_free(const kvs__page_chunk *c, uint32_t k)
{
    uint32_t i = find(c, 0, true);
    for (; k > 0; k--) {
        i = find(c, i + 1, true);
    }
    return i;
}

uint32_t kvs__page_longest(const kvs__page_chunk *c, uint32_t *at)
{
    uint32_t most = 0;
    uint32_t left = c->n_free;
    for (uint32_t i = 0; left > most;) {
        uint32_t begin = find(c, i, true);
        uint32_t end = find(c, begin, false);
        if (end - begin > most) {
            most = end - begin;
            /* what lies before may be a sequence that is growing: it has the first half */
            *at = begin == 0 ? 0 : begin + most / 2;
        }
        left -= end - begin;
        i = end;
    }
    return most;
}

/* -- bytes */

static size_t part_at(const kvs__seg *page, int part, uint32_t head)
{
    return part == CENTERS ? page->center_at + head * page->center_head
                           : page->offset[part / KVS__PLANES][part % KVS__PLANES] +
                                 head * page->head_bytes[part / KVS__PLANES][part % KVS__PLANES];
}

void kvs__page_clear(const kvs__fmt *fmt, kvs__seg *page)
{
    for (int i = 0; i < PARTS; i++) {
        size_t bytes = part_bytes(fmt, page->cap, page->n_centers, i);
        for (uint32_t h = 0; bytes > 0 && h < fmt->n_heads; h++) {
            memset((unsigned char *)page + part_at(page, i, h), 0, bytes);
        }
    }
}

void kvs__page_copy(const kvs__fmt *fmt, kvs__seg *dst, const kvs__seg *src)
{
    for (int i = 0; i < PARTS; i++) {
        size_t bytes = part_bytes(fmt, dst->cap, dst->n_centers, i);
        for (uint32_t h = 0; bytes > 0 && h < fmt->n_heads; h++) {
            memcpy((unsigned char *)dst + part_at(dst, i, h),
                   (const unsigned char *)src + part_at(src, i, h), bytes);
        }
    }
}
