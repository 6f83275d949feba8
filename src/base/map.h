/* SPDX-License-Identifier: MIT */
/* map.h: a whole file mapped read-only into memory; memory in huge pages.
 *
 * The mapping follows the file: bytes that another process writes in place show up in it, and if the
 * file is truncated, touching what is gone raises SIGBUS, which the library does not catch (a
 * handler would be a side effect on the whole process). So a file that may be mapped is replaced by
 * writing a new one and renaming it over the old: the mapping then keeps the old content. */
#ifndef KVS_BASE_MAP_H
#define KVS_BASE_MAP_H

#include "base/base.h"

typedef struct kvs__map {
    const uint8_t *data; /* page-aligned; never NULL while open, also for an empty file */
    size_t bytes;        /* the file's size when it was opened */
    /* Device, inode, time of change of content and of inode in ns: with the size they tell whether
     * it is still the file that was mapped, as it was then. All 0: no file. */
    uint64_t id[4];
} kvs__map;

/* Maps a regular file; the descriptor is closed before return. KVS_E_NOTFOUND: no such file.
 * KVS_E_IO: the system refused, or it is no regular file. On failure *out is untouched. */
kvs_status kvs__map_open(const char *path, kvs__map *out, kvs_err *err);
/* Unmaps and clears; a cleared map is fine. */
void kvs__map_close(kvs__map *m);

#define KVS__HUGE_PAGE ((size_t)2 << 20)
/* Advice: where the system has huge pages, the range is backed by them when it is first touched.
 * Streams of reads then run across page borders: measured 27 -> 37 GB/s on one core of a Zen 4. */
void kvs__map_huge(void *p, size_t bytes);
/* Is that advice known here? Not where a sanitizer watches allocations instead. */
bool kvs__has_huge_pages(void);
/* Zeroed memory at a multiple of a huge page; bytes is one too. Touched pages alone take memory. NULL:
 * the system refused. */
void *kvs__map_memory(size_t bytes);
void kvs__unmap_memory(void *p, size_t bytes);
/* Takes the memory of whole pages away; they read as zeros when they are touched again. */
void kvs__drop_memory(void *p, size_t bytes);

#endif
