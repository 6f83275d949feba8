/* SPDX-License-Identifier: MIT */
/* base.h: what every room uses: checked sizes, errors, allocation through the context, asserts. */
#ifndef KVS_BASE_BASE_H
#define KVS_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvstate/base.h"

#if defined(__GNUC__)
#define KVS_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define KVS_LIKELY(x)          __builtin_expect(!!(x), 1)
#define KVS_UNLIKELY(x)        __builtin_expect(!!(x), 0)
#else
#define KVS_PRINTF(fmt, first)
#define KVS_LIKELY(x)   (x)
#define KVS_UNLIKELY(x) (x)
#endif

/* KVS_ASSERT is for our own bugs, never for input. Debug builds trap, release builds drop it. */
#ifdef KVS_DEBUG
#define KVS_ASSERT(x) ((x) ? (void)0 : __builtin_trap())
#else
#define KVS_ASSERT(x) ((void)0)
#endif
/* A branch that cannot happen: kept as a defence in release, a trap in debug. */
static inline bool kvs__never(bool x)
{
#ifdef KVS_DEBUG
    if (x) {
        __builtin_trap();
    }
#endif
    return x;
}
#define KVS_NEVER(x) KVS_UNLIKELY(kvs__never(x))

#define KVS_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Checked size arithmetic: false (and *out untouched) on overflow. */
static inline bool kvs__mul_size(size_t a, size_t b, size_t *out)
{
    size_t r = 0;
    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

static inline bool kvs__add_size(size_t a, size_t b, size_t *out)
{
    size_t r = 0;
    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *out = r;
    return true;
}

/* Rounds up to a multiple of a power of two. */
static inline bool kvs__align_size(size_t a, size_t align, size_t *out)
{
    size_t r = 0;
    if (!kvs__add_size(a, align - 1, &r)) {
        return false;
    }
    *out = r & ~(align - 1);
    return true;
}

/* Fills err (if not NULL) and returns status, so that a failure is one line:
 * return kvs__fail(err, KVS_E_INVAL, "state", "bits %u is none of 2,3,4,5,6,8", bits); */
kvs_status kvs__fail(kvs_err *err, kvs_status status, const char *room, const char *fmt, ...)
    KVS_PRINTF(4, 5);
/* The same with errno, whose text is appended. */
kvs_status kvs__fail_errno(kvs_err *err, kvs_status status, int sys_errno, const char *room,
                           const char *fmt, ...) KVS_PRINTF(5, 6);

#ifdef __clang_analyzer__
/* It looks at one file at a time and must be told that the status given is the status returned. */
#define kvs__fail(err, status, ...) ((void)(kvs__fail)((err), (status), __VA_ARGS__), (status))
#endif

/* Allocation through the context: counted, limited, may fail anywhere. Sizes are given back on
 * free. kvs__alloc does not clear; bytes 0 gives a unique pointer too. Alignment is 64. */
void *kvs__alloc(kvs_ctx *ctx, size_t bytes);
void *kvs__calloc(kvs_ctx *ctx, size_t n, size_t bytes_each); /* cleared; NULL on overflow too */
void kvs__free(kvs_ctx *ctx, void *ptr, size_t bytes);        /* NULL is fine */
kvs_status kvs__nomem(kvs_err *err, const char *room, size_t bytes);

/* Room for `need` items of bytes_each in a list of *cap, of which the first `used` stay: the list as
 * it is, or one of twice the size at least, so that items put in one by one are copied twice in all
 * and memory follows what was read, not what a header claims. Items behind `used` are not cleared.
 * NULL: no memory, nothing has changed. `list` may be NULL where *cap is 0. */
void *kvs__grow(kvs_ctx *ctx, void *list, size_t *cap, size_t used, size_t need, size_t bytes_each);

void kvs__log(const kvs_ctx *ctx, kvs_log_level level, const char *fmt, ...) KVS_PRINTF(3, 4);

/* Copies min(caller's struct_size, known) bytes over the defaults already in dst; rejects a size
 * below the size_t itself, and a non-zero tail that this library does not know. */
kvs_status kvs__opts_read(void *dst, size_t known, const void *src, const char *what, kvs_err *err);
/* The same in the other direction: writes at most the caller's struct_size, keeping the field. */
kvs_status kvs__stats_write(void *dst, const void *src, size_t known);

struct kvs__pool;
struct kvs__kern;
struct kvs__pool *kvs__ctx_pool(kvs_ctx *ctx);
const struct kvs__kern *kvs__ctx_kern(const kvs_ctx *ctx);
uint32_t kvs__ctx_threads(const kvs_ctx *ctx);

/* Scratch shared by the calls of a context (one caller at a time): grows, never shrinks, aligned
 * to 64. reserve may fail; get never allocates and asserts the reservation. */
kvs_status kvs__ctx_scratch_reserve(kvs_ctx *ctx, size_t bytes, kvs_err *err);
void *kvs__ctx_scratch(kvs_ctx *ctx, size_t bytes);
size_t kvs__ctx_scratch_bytes(const kvs_ctx *ctx);

#endif
