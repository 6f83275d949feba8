/* SPDX-License-Identifier: MIT */
/* token_merge.c: the merging both kinds of tokenizer share: of all neighbours join the pair of
 * lowest rank, the leftmost if several, until no pair has a rank.
 *
 * I1  syms linked by next from 0 cover the text in order; a joined symbol keeps its left index.
 * I2  syms[i].rank is the rank of joining i with its next one, KVS__RANK_NONE for the last.
 * I3  heap[0..n) holds (rank << 32 | index) of each symbol once, at syms[index].heap_at; no child
 *     is below its parent. Dead symbols have KVS__RANK_NONE and sink.
 *
 * A few symbols (nearly all words) are scanned for the best; more go through the heap, so a text of
 * one repeated letter costs O(n log n). An indexed heap holds one entry per symbol, where the
 * usual lazy queue grows to three. Four children a node and the ranks in the heap itself: a step
 * down touches one cache line, not one for each symbol compared.
 */
#include "engine/token.h"

/* Scanning n symbols costs n * n / 2 steps of one load; the heap costs about 40 a symbol. */
#define SCAN_MAX 40u
#define NO_SYM   UINT32_MAX

static void rank_pair(const kvs_tokenizer *tok, const char *text, kvs__sym *syms, uint32_t i,
                      kvs__pair_fn pair)
{
    kvs__sym *s = &syms[i];
    s->rank = KVS__RANK_NONE;
    if (s->next != NO_SYM) {
        s->rank = pair(tok, text, s, &syms[s->next], &s->pair_id);
    }
}

/* Joins i with its next one, whose index is returned (it is dead then). */
static uint32_t join(kvs__sym *syms, uint32_t i)
{
    kvs__sym *s = &syms[i];
    uint32_t dead = s->next;
    s->id = s->pair_id;
    s->len += syms[dead].len;
    s->next = syms[dead].next;
    if (s->next != NO_SYM) {
        syms[s->next].prev = i;
    }
    syms[dead].rank = KVS__RANK_NONE;
    return dead;
}

static void merge_scan(const kvs_tokenizer *tok, const char *text, kvs__sym *syms,
                       kvs__pair_fn pair)
{
    for (;;) {
        uint32_t best = NO_SYM;
        uint32_t best_rank = KVS__RANK_NONE;
        for (uint32_t i = 0; i != NO_SYM; i = syms[i].next) {
            if (syms[i].rank < best_rank) {
                best_rank = syms[i].rank;
                best = i;
            }
        }
        if (best == NO_SYM) {
            return;
        }
        (void)join(syms, best);
        rank_pair(tok, text, syms, best, pair);
        if (syms[best].prev != NO_SYM) {
            rank_pair(tok, text, syms, syms[best].prev, pair);
        }
    }
}

static uint64_t key_of(const kvs__sym *syms, uint32_t i)
{
    return (uint64_t)syms[i].rank << 32 | i;
}

static void put(kvs__sym *syms, uint64_t *heap, size_t at, uint64_t key)
{
    heap[at] = key;
    syms[(uint32_t)key].heap_at = (uint32_t)at;
}

static void sift_down(kvs__sym *syms, uint64_t *heap, size_t n, size_t at, uint64_t key)
{
    for (;;) {
        const size_t first = 4 * at + 1;
        if (first >= n) {
            break;
        }
        const size_t end = first + 4 < n ? first + 4 : n;
        size_t child = first;
        for (size_t c = first + 1; c < end; c++) {
            child = heap[c] < heap[child] ? c : child;
        }
        if (heap[child] >= key) {
            break;
        }
        put(syms, heap, at, heap[child]);
        at = child;
    }
    put(syms, heap, at, key);
}

/* Restores I3 after the rank of i changed. */
static void replace(kvs__sym *syms, uint64_t *heap, size_t n, uint32_t i)
{
    const uint64_t key = key_of(syms, i);
    size_t at = syms[i].heap_at;
    while (at > 0 && key < heap[(at - 1) / 4]) {
        put(syms, heap, at, heap[(at - 1) / 4]);
        at = (at - 1) / 4;
    }
    sift_down(syms, heap, n, at, key);
}

static void merge_heap(const kvs_tokenizer *tok, const char *text, kvs__sym *syms, uint64_t *heap,
                       size_t n, kvs__pair_fn pair)
{
    for (size_t i = 0; i < n; i++) {
        put(syms, heap, i, key_of(syms, (uint32_t)i));
    }
    for (size_t i = n / 4 + 1; i-- > 0;) {
        sift_down(syms, heap, n, i, heap[i]);
    }
    while (heap[0] >> 32 != KVS__RANK_NONE) {
        const uint32_t i = (uint32_t)heap[0];
        const uint32_t dead = join(syms, i);
        replace(syms, heap, n, dead);
        rank_pair(tok, text, syms, i, pair);
        replace(syms, heap, n, i);
        const uint32_t prev = syms[i].prev;
        if (prev != NO_SYM) {
            rank_pair(tok, text, syms, prev, pair);
            replace(syms, heap, n, prev);
        }
    }
}

void kvs__token_merge(const kvs_tokenizer *tok, const char *text, kvs__sym *syms, uint64_t *heap,
                      size_t n, kvs__pair_fn pair)
{
    for (size_t i = 0; i < n; i++) {
        syms[i].prev = i == 0 ? NO_SYM : (uint32_t)(i - 1);
        syms[i].next = i + 1 == n ? NO_SYM : (uint32_t)(i + 1);
    }
    for (size_t i = 0; i < n; i++) {
        rank_pair(tok, text, syms, (uint32_t)i, pair);
    }
    if (n <= SCAN_MAX) {
        merge_scan(tok, text, syms, pair);
    } else {
        merge_heap(tok, text, syms, heap, n, pair);
    }
}
