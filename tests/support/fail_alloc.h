/* SPDX-License-Identifier: MIT */
/* fail_alloc.h: allocator hooks that count, check sizes on free, and fail the k-th call.
 *
 * A test loops k = 0, 1, ... until the operation succeeds; every failure must leave live == 0 (or
 * what was live before). Threads may call them: counters are atomic. */
#ifndef KVS_TESTS_SUPPORT_FAIL_ALLOC_H
#define KVS_TESTS_SUPPORT_FAIL_ALLOC_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct fail_alloc {
    _Atomic long calls;
    _Atomic long fail_at; /* number of the call that fails, from 0; -1: none */
    _Atomic size_t live;
    _Atomic long blocks;
    _Atomic long wrong; /* frees with another size than asked for, pointers not aligned */
} fail_alloc;
#define FAIL_ALLOC_INIT                                                                            \
    {                                                                                              \
        0, -1, 0, 0, 0                                                                             \
    }

/* The size is kept in front of the block, 64 bytes for alignment. */
static inline void *fail_alloc_take(void *user, size_t bytes, size_t align)
{
    fail_alloc *f = user;
    if (atomic_fetch_add(&f->calls, 1) == atomic_load(&f->fail_at)) {
        return NULL;
    }
    size_t front = align < 64 ? 64 : align;
    if (bytes > SIZE_MAX / 2) {
        return NULL;
    }
    char *p = aligned_alloc(front, (front + bytes + front - 1) / front * front);
    if (!p) {
        return NULL;
    }
    *(size_t *)(void *)(p + front - sizeof(size_t)) = bytes;
    *(size_t *)(void *)(p + front - 2 * sizeof(size_t)) = front;
    atomic_fetch_add(&f->live, bytes);
    atomic_fetch_add(&f->blocks, 1);
    return p + front;
}

static inline void fail_alloc_give(void *user, void *ptr, size_t bytes)
{
    fail_alloc *f = user;
    char *p = ptr;
    size_t asked = *(size_t *)(void *)(p - sizeof(size_t));
    size_t front = *(size_t *)(void *)(p - 2 * sizeof(size_t));
    if (asked != bytes) {
        atomic_fetch_add(&f->wrong, 1);
    }
    atomic_fetch_sub(&f->live, asked);
    atomic_fetch_sub(&f->blocks, 1);
    free(p - front);
}

#endif
