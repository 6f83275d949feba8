/* SPDX-License-Identifier: MIT */
/* arena.h: memory for what is read in long streams, in huge pages though no piece fills one.
 *
 * A translation of an address costs more than the line that it finds where the pages are small and
 * the machine is virtual: reading keys and values of 30 layers in pieces of 0.2 to 2.3 MiB went from
 * 8.2 to 6.0 ms (Zen 4, two threads). The system gives huge pages to whole aligned 2 MiB only, so
 * pieces are cut from regions of many of those. What is free again in whole huge pages goes back to
 * the system at once, and a region when nothing of it is used; so at most a huge page a border of
 * used and free memory is held that nobody asked for. */
#ifndef KVS_BASE_ARENA_H
#define KVS_BASE_ARENA_H

#include "base/base.h"

typedef struct kvs__arena kvs__arena;

/* Pieces of this many bytes or more belong here: smaller ones share pages with others anyway. */
#define KVS__ARENA_FROM ((size_t)64 << 10)

/* NULL: no memory. */
kvs__arena *kvs__arena_new(void);
/* All pieces have been given back. NULL is fine. */
void kvs__arena_free(kvs__arena *a);
/* Page-aligned, content undefined; any thread. NULL: no memory, or the system has no huge pages; the
 * caller then asks elsewhere. */
void *kvs__arena_take(kvs__arena *a, size_t bytes);
/* False: p is none of the arena's pieces. */
bool kvs__arena_give(kvs__arena *a, void *p, size_t bytes);
/* Bytes of address space in use for pieces, and of all regions. */
void kvs__arena_bytes(kvs__arena *a, size_t *used, size_t *mapped);

#endif
