/* SPDX-License-Identifier: MIT */
/* kvstate/base.h: status codes, errors, the context (allocator, log, threads, CPU tiers). */
#ifndef KVSTATE_BASE_H
#define KVSTATE_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVS_VERSION_MAJOR  0
#define KVS_VERSION_MINOR  1
#define KVS_VERSION_PATCH  0
#define KVS_VERSION_STRING "0.1.0"
/* Number of the binary interface (the soname); raised only when an existing symbol changes. */
#define KVS_ABI 0

#if defined(KVS_STATIC) || !defined(__GNUC__)
#define KVS_API
#else
#define KVS_API __attribute__((visibility("default")))
#endif

/* One polarity everywhere: 0 is success, a negative value is an error, a small positive value is
 * an expected outcome that each function names. Values are pinned for ever.
 *
 * Any function with a kvs_err may answer KVS_E_INVAL (a NULL or malformed argument, an options struct
 * with another size or an unknown field set) and, where it takes memory, KVS_E_NOMEM; the comments
 * name what else. Unless a comment says otherwise a failing call has changed nothing. */
#define KVS_STATUS_MAP(X)                                                                          \
    X(KVS_OK, 0, "success")                                                                        \
    X(KVS_NO, 1, "the answer is no (not an error)")                                                \
    X(KVS_E_INVAL, -1, "invalid argument")                                                         \
    X(KVS_E_NOMEM, -2, "out of memory")                                                            \
    X(KVS_E_RANGE, -3, "value out of range")                                                       \
    X(KVS_E_UNSUPPORTED, -4, "not supported")                                                      \
    X(KVS_E_STATE, -5, "not possible in this state")                                               \
    X(KVS_E_BROKEN, -6, "object is latched broken by an earlier failure")                          \
    X(KVS_E_IO, -7, "input/output error")                                                          \
    X(KVS_E_FORMAT, -8, "malformed data")                                                          \
    X(KVS_E_LIMIT, -9, "limit reached")                                                            \
    X(KVS_E_CANCELLED, -10, "cancelled")                                                           \
    X(KVS_E_NOTFOUND, -11, "not found")                                                            \
    X(KVS_E_INTERNAL, -12, "internal error")

typedef enum kvs_status {
#define KVS_X(name, code, text) name = code,
    KVS_STATUS_MAP(KVS_X)
#undef KVS_X
} kvs_status;

/* "KVS_E_INVAL" and "invalid argument"; both answer "unknown status" for a foreign value. */
KVS_API const char *kvs_status_name(kvs_status status);
KVS_API const char *kvs_status_text(kvs_status status);

/* Filled by a failing call where the caller passes one; untouched on success. Caller-owned. */
typedef struct kvs_err {
    kvs_status status;
    int32_t sys_errno; /* errno of the failing system call, else 0 */
    char room[16];     /* "base", "state", "engine" ... */
    char msg[240];     /* one sentence that names the offending value */
} kvs_err;
#define KVS_ERR_INIT                                                                               \
    {                                                                                              \
        KVS_OK, 0, "", ""                                                                          \
    }

typedef enum kvs_log_level {
    KVS_LOG_ERROR = 1,
    KVS_LOG_WARN = 2,
    KVS_LOG_INFO = 3,
    KVS_LOG_DEBUG = 4
} kvs_log_level;

/* CPU kernel tiers; the plain C reference is always there and cannot be removed. */
enum {
    KVS_TIER_AVX2 = 1u << 0,   /* AVX2 + FMA + F16C */
    KVS_TIER_AVX512 = 1u << 1, /* AVX-512 F+BW+DQ+VL+VNNI, needs KVS_TIER_AVX2 */
    KVS_TIER_NEON = 1u << 2,   /* Armv8-A Advanced SIMD with FP16 conversion */
    KVS_TIER_ALL = 0x7fffffffu
};

/* Tiers of this CPU that the operating system enables. */
KVS_API uint32_t kvs_cpu_tiers(void);

/* Memory hooks. `alloc` returns memory aligned to `align` (a power of two <= 4096) or NULL; `free`
 * gets the size that was asked for. Both may be called from any thread that calls the library. */
typedef void *(*kvs_alloc_fn)(void *user, size_t bytes, size_t align);
typedef void (*kvs_free_fn)(void *user, void *ptr, size_t bytes);
typedef void (*kvs_log_fn)(void *user, kvs_log_level level, const char *msg);

typedef struct kvs_ctx_opts {
    size_t struct_size;
    kvs_alloc_fn alloc; /* NULL, with free NULL too: the C library's */
    kvs_free_fn free;
    void *alloc_user;
    kvs_log_fn log; /* NULL: silent. The library never prints. */
    void *log_user;
    uint32_t
        n_threads; /* threads that work on a call, the caller's included; 0: all CPUs allowed */
    uint32_t tiers_off; /* KVS_TIER_* to do without, at most what the CPU has */
    size_t max_bytes;   /* hard limit on live bytes; a call that would pass it gives KVS_E_NOMEM (a
                           limit that does not hold the context: KVS_E_LIMIT). 0: none */
} kvs_ctx_opts;
#define KVS_CTX_OPTS_INIT                                                                          \
    {                                                                                              \
        sizeof(kvs_ctx_opts), NULL, NULL, NULL, NULL, NULL, 0, 0, 0                                \
    }

/* A context owns the allocator, the thread pool and the kernel table. It must outlive everything
 * made with it. Objects of one context are used by one thread at a time; contexts are independent.
 */
typedef struct kvs_ctx kvs_ctx;

/* opts NULL: the defaults. KVS_E_INVAL: one of alloc and free without the other; KVS_E_RANGE: more than
 * 1024 threads; KVS_E_LIMIT: max_bytes does not hold the context. */
KVS_API kvs_status kvs_ctx_new(const kvs_ctx_opts *opts, kvs_ctx **out, kvs_err *err);
KVS_API void kvs_ctx_free(kvs_ctx *ctx); /* NULL is fine; every object must be freed before */

typedef struct kvs_ctx_stats {
    size_t struct_size;
    size_t live_bytes; /* allocated through this context and not freed */
    size_t peak_bytes;
    size_t max_bytes; /* the limit, 0: none */
    uint32_t n_threads;
    uint32_t tiers; /* KVS_TIER_* in use */
} kvs_ctx_stats;
#define KVS_CTX_STATS_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_ctx_stats), 0, 0, 0, 0, 0                                                       \
    }
/* KVS_E_INVAL: a NULL, or out's struct_size is no size. So it is with every get_stats and get_info. */
KVS_API kvs_status kvs_ctx_get_stats(const kvs_ctx *ctx, kvs_ctx_stats *out);

/* Bytes of memory that this process may use: the machine's, or less where its control groups (a
 * container) say so. What budgets should be derived from; 0: not known. */
KVS_API uint64_t kvs_memory_limit(void);

/* "0.1.0", the version of the library that runs (not of the header). */
KVS_API const char *kvs_version(void);

#ifdef __cplusplus
}
#endif
#endif
