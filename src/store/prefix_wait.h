/* SPDX-License-Identifier: MIT */
/* prefix_wait.h: entries of a prefix index that wait for a slower tier: they stay until that has them, or
 * can't have them (prefix_wait.c). */
#ifndef KVS_STORE_PREFIX_WAIT_H
#define KVS_STORE_PREFIX_WAIT_H

#include "kvstate/prefix.h"

/* The caller's memory, zeroed; in the index's list from begin to end. */
typedef struct kvs__prefix_wait {
    struct kvs__prefix_wait *prev; /* began earlier */
    struct kvs__prefix_wait *next;
    struct kvs__node *first; /* of a prompt, the deepest last */
    struct kvs__node *last;
    bool begun;
} kvs__prefix_wait;

/* What is there of the prompt's blocks that reach beyond `from` tokens, and waits for nobody else, stays.
 * Takes no memory, can't fail. Of a last block that is not whole and lies in longer blocks of other texts
 * only, one of these stays: what goes on after the prompt may be found through another. */
void kvs__prefix_wait_begin(kvs_prefix *ix, const kvs_prefix_key *key, size_t from,
                            kvs__prefix_wait *wait);
/* The slower tier has it, or never will: an entry like any other again. One that has not begun is fine. */
void kvs__prefix_wait_end(kvs_prefix *ix, kvs__prefix_wait *wait);

#endif
