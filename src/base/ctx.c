/* SPDX-License-Identifier: MIT */
/* ctx.c: the context: counted allocation with a hard limit, log sink, scratch, pool, kernel table.
 *
 * I1  live_bytes is the sum of the sizes handed out and not given back; it never exceeds max_bytes.
 * I2  Nothing here is global: two contexts share no state.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/base.h"
#include "base/cpu.h"
#include "base/pool.h"

#define MAX_THREADS 1024u
#define MAX_STRUCT  4096u /* no options struct comes near; larger is garbage, and not to be read */
#define ALIGNMENT   64u

struct kvs_ctx {
    kvs_ctx_opts opts;
    kvs__arena *arena; /* NULL: the caller's allocator */
    uint32_t tiers;
    const struct kvs__kern *kern;
    kvs__pool *pool;
    void *scratch;
    size_t scratch_bytes;
    _Atomic size_t live;
    _Atomic size_t peak;
};

/* Set by the kern room before the first context is made; base must not look at kern. */
extern const struct kvs__kern *kvs__kern_for(uint32_t tiers);

/* Where the caller has no allocator: user is the context's arena. */
static void *own_alloc(void *user, size_t bytes, size_t align)
{
    void *p = bytes < KVS__ARENA_FROM ? NULL : kvs__arena_take(user, bytes);
    size_t rounded = 0;
    if (p || !kvs__align_size(bytes ? bytes : 1, align, &rounded)) {
        return p;
    }
    return aligned_alloc(align, rounded);
}

static void own_free(void *user, void *ptr, size_t bytes)
{
    if (bytes < KVS__ARENA_FROM || !kvs__arena_give(user, ptr, bytes)) {
        free(ptr);
    }
}

/* Counts bytes in unless the limit would be passed. */
static bool take_bytes(kvs_ctx *ctx, size_t bytes)
{
    size_t old = atomic_load(&ctx->live);
    size_t sum = 0;
    do {
        if (!kvs__add_size(old, bytes, &sum) ||
            (ctx->opts.max_bytes && sum > ctx->opts.max_bytes)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&ctx->live, &old, sum));
    size_t peak = atomic_load(&ctx->peak);
    while (sum > peak && !atomic_compare_exchange_weak(&ctx->peak, &peak, sum)) {
    }
    return true;
}

void *kvs__alloc(kvs_ctx *ctx, size_t bytes)
{
    if (!take_bytes(ctx, bytes)) {
        return NULL;
    }
    void *p = ctx->opts.alloc(ctx->opts.alloc_user, bytes, ALIGNMENT);
    if (!p) {
        (void)atomic_fetch_sub(&ctx->live, bytes);
    }
    return p;
}

void *kvs__calloc(kvs_ctx *ctx, size_t n, size_t bytes_each)
{
    size_t bytes = 0;
    if (!kvs__mul_size(n, bytes_each, &bytes)) {
        return NULL;
    }
    void *p = kvs__alloc(ctx, bytes);
    if (p) {
        memset(p, 0, bytes);
    }
    return p;
}

void kvs__free(kvs_ctx *ctx, void *ptr, size_t bytes)
{
    if (!ptr) {
        return;
    }
    ctx->opts.free(ctx->opts.alloc_user, ptr, bytes);
    (void)atomic_fetch_sub(&ctx->live, bytes);
}

void kvs__log(const kvs_ctx *ctx, kvs_log_level level, const char *fmt, ...)
{
    if (!ctx->opts.log) {
        return;
    }
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    ctx->opts.log(ctx->opts.log_user, level, msg);
}

kvs_status kvs__opts_read(void *dst, size_t known, const void *src, const char *what, kvs_err *err)
{
    size_t given = 0;
    memcpy(&given, src, sizeof given);
    if (given < sizeof given || given > MAX_STRUCT) {
        return kvs__fail(err, KVS_E_INVAL, "base", "%s.struct_size is %zu; use the initialiser",
                         what, given);
    }
    const unsigned char *bytes = src;
    for (size_t i = known; i < given; i++) {
        if (bytes[i] != 0) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "base",
                             "%s sets an option at byte %zu that this library does not know", what,
                             i);
        }
    }
    memcpy(dst, src, given < known ? given : known);
    memcpy(dst, &known, sizeof known);
    return KVS_OK;
}

kvs_status kvs__stats_write(void *dst, const void *src, size_t known)
{
    size_t given = 0;
    memcpy(&given, dst, sizeof given);
    if (given < sizeof given) {
        return KVS_E_INVAL;
    }
    size_t n = given < known ? given : known;
    if (n > sizeof given) {
        memcpy((char *)dst + sizeof given, (const char *)src + sizeof given, n - sizeof given);
    }
    return KVS_OK;
}

static kvs_status check_opts(const kvs_ctx_opts *o, kvs_err *err)
{
    if (!o->alloc != !o->free) {
        return kvs__fail(err, KVS_E_INVAL, "base", "alloc and free must be given together");
    }
    if (o->n_threads > MAX_THREADS) {
        return kvs__fail(err, KVS_E_RANGE, "base", "n_threads %u is above %u", o->n_threads,
                         MAX_THREADS);
    }
    return KVS_OK;
}

kvs_status kvs_ctx_new(const kvs_ctx_opts *opts, kvs_ctx **out, kvs_err *err)
{
    if (!out) {
        return kvs__fail(err, KVS_E_INVAL, "base", "out is NULL");
    }
    *out = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    if (opts) {
        kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_ctx_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    kvs_status st = check_opts(&o, err);
    if (st != KVS_OK) {
        return st;
    }
    if (o.max_bytes && o.max_bytes < sizeof(kvs_ctx)) {
        return kvs__fail(err, KVS_E_LIMIT, "base", "max_bytes %zu does not hold the context",
                         o.max_bytes);
    }
    kvs__arena *arena = o.alloc ? NULL : kvs__arena_new();
    if (arena) {
        o.alloc = own_alloc;
        o.free = own_free;
        o.alloc_user = arena;
    }
    kvs_ctx *ctx = o.alloc ? o.alloc(o.alloc_user, sizeof *ctx, ALIGNMENT) : NULL;
    if (!ctx) {
        kvs__arena_free(arena);
        return kvs__nomem(err, "base", sizeof *ctx);
    }
    memset(ctx, 0, sizeof *ctx);
    ctx->opts = o;
    ctx->arena = arena;
    atomic_store(&ctx->live, sizeof *ctx);
    atomic_store(&ctx->peak, sizeof *ctx);
    ctx->tiers = kvs__cpu_detect() & ~o.tiers_off;
    if (!(ctx->tiers & KVS_TIER_AVX2)) {
        ctx->tiers &= ~(uint32_t)KVS_TIER_AVX512;
    }
    ctx->kern = kvs__kern_for(ctx->tiers);
    uint32_t n = o.n_threads ? o.n_threads : kvs__cpu_count();
    st = kvs__pool_new(ctx, n > MAX_THREADS ? MAX_THREADS : n, &ctx->pool, err);
    if (st != KVS_OK) {
        kvs_ctx_free(ctx);
        return st;
    }
    *out = ctx;
    return KVS_OK;
}

void kvs_ctx_free(kvs_ctx *ctx)
{
    if (!ctx) {
        return;
    }
    kvs__pool_free(ctx->pool);
    kvs__free(ctx, ctx->scratch, ctx->scratch_bytes);
    kvs_ctx_opts o = ctx->opts;
    kvs__arena *arena = ctx->arena;
    o.free(o.alloc_user, ctx, sizeof *ctx);
    kvs__arena_free(arena);
}

kvs_status kvs_ctx_get_stats(const kvs_ctx *ctx, kvs_ctx_stats *out)
{
    if (!ctx || !out) {
        return KVS_E_INVAL;
    }
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    s.live_bytes = atomic_load(&ctx->live);
    s.peak_bytes = atomic_load(&ctx->peak);
    s.max_bytes = ctx->opts.max_bytes;
    s.n_threads = kvs__pool_threads(ctx->pool);
    s.tiers = ctx->tiers;
    return kvs__stats_write(out, &s, sizeof s);
}

kvs__pool *kvs__ctx_pool(kvs_ctx *ctx)
{
    return ctx->pool;
}

const struct kvs__kern *kvs__ctx_kern(const kvs_ctx *ctx)
{
    return ctx->kern;
}

uint32_t kvs__ctx_threads(const kvs_ctx *ctx)
{
    return kvs__pool_threads(ctx->pool);
}

kvs_status kvs__ctx_scratch_reserve(kvs_ctx *ctx, size_t bytes, kvs_err *err)
{
    if (bytes <= ctx->scratch_bytes) {
        return KVS_OK;
    }
    void *p = kvs__alloc(ctx, bytes);
    if (!p) {
        return kvs__nomem(err, "base", bytes);
    }
    kvs__free(ctx, ctx->scratch, ctx->scratch_bytes);
    ctx->scratch = p;
    ctx->scratch_bytes = bytes;
    return KVS_OK;
}

void *kvs__ctx_scratch(kvs_ctx *ctx, size_t bytes)
{
    KVS_ASSERT(bytes <= ctx->scratch_bytes);
    (void)bytes;
    return ctx->scratch;
}

size_t kvs__ctx_scratch_bytes(const kvs_ctx *ctx)
{
    return ctx->scratch_bytes;
}
