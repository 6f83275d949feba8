/* SPDX-License-Identifier: MIT */
/* prefix_rig.h: tiny models of every kind with paged plans and a prefix cache, texts that begin alike,
 * and the logits of a session that never saw a cache. */
#ifndef KVS_TESTS_SUPPORT_PREFIX_RIG_H
#define KVS_TESTS_SUPPORT_PREFIX_RIG_H

#include <stdbool.h>
#include <string.h>

#include "kvstate/engine.h"
#include "support/model_build.h"

#define N       150
#define TAIL    4
#define N_VOCAB 97
#define N_CTX   256u

typedef struct kind {
    const char *name;
    tiny model;
    kvs_plan_opts plan;
    bool snapshots; /* resumes at snapshots alone */
    uint32_t first; /* fewest tokens that a conversion lets come back */
} kind;

#define PLAN(...)                                                                                  \
    {                                                                                              \
        sizeof(kvs_plan_opts), __VA_ARGS__                                                         \
    }
#define PAGED .n_ctx = N_CTX, .kv_block
static const kind kinds[] = {
    {"f16", TINY_LLAMA, PLAN("f16", PAGED = 16), false, 1},
    {"f16, block 1", TINY_LLAMA, PLAN("f16", PAGED = 1), false, 1},
    {"q8, block 48", TINY_LLAMA, PLAN("affine8:32", .group = 0, PAGED = 48), false, 1},
    {"q4", TINY_LLAMA, PLAN("affine4:32", PAGED = 16), false, 1},
    {"start", TINY_LLAMA, PLAN("affine4:32", .start = 60, PAGED = 16), false, 61},
    {"window", TINY_LLAMA, PLAN("affine8:32", .window = 20, .sinks = 5, .max_block = 32, PAGED = 8),
     false, 1},
    {"gemma", TINY_GEMMA, PLAN("f16", .max_block = 24, PAGED = 16), false, 1},
    {"gemma q4", TINY_GEMMA, PLAN("affine4:32", .max_block = 64, PAGED = 5), false, 1},
    {"latent", TINY_DEEPSEEK, PLAN("f16", PAGED = 16), false, 1},
    {"gemma 4", TINY_GEMMA4, PLAN("f16", .max_block = 32, PAGED = 16), false, 1},
    {"hybrid", TINY_QWEN3NEXT, PLAN("f16", PAGED = 16), true, 1},
    {"recurrent", TINY_MAMBA2, PLAN("f16", PAGED = 16), true, 1},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

typedef struct rig {
    const kind *k;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_prefix_cache *pc;
    char path[256];
} rig;

static inline void must(kvs_status st, const kvs_err *err)
{
    if (st != KVS_OK) {
        fail_msg("%s: %s", kvs_status_name(st), err->msg);
    }
}

static inline void make_plan(rig *r, kvs_err *err)
{
    kvs_plan_opts po = r->k->plan;
    kvs_status st = kvs_plan_new(r->ctx, r->model, &po, &r->plan, err);
    if (st != KVS_OK && r->k->snapshots) { /* no layer of it can be paged */
        po.kv_block = 0;
        st = kvs_plan_new(r->ctx, r->model, &po, &r->plan, err);
    }
    must(st, err);
}

static inline void rig_on(rig *r, const kind *k, kvs_ctx *ctx, const kvs_prefix_cache_opts *opts)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    tiny t = k->model;
    if (tiny_is(&t, "llama") || tiny_is(&t, "gemma3")) {
        t.dim = 64; /* of whole groups */
    }
    memset(r, 0, sizeof *r);
    r->k = k;
    r->ctx = ctx;
    assert_true(tiny_write(&t, r->path, sizeof r->path));
    must(kvs_model_open(ctx, r->path, NULL, &r->model, &err), &err);
    make_plan(r, &err);
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o = opts ? *opts : o;
    o.plan = r->plan;
    must(kvs_prefix_cache_new(ctx, r->model, &o, &r->pc, &err), &err);
}

static inline kvs_ctx *new_ctx(void)
{
    kvs_ctx *ctx = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    return ctx;
}

static inline void rig_open(rig *r, const kind *k, const kvs_prefix_cache_opts *opts)
{
    rig_on(r, k, new_ctx(), opts);
}

static inline void rig_close(rig *r)
{
    kvs_prefix_cache_free(r->pc);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    (void)unlink(r->path);
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(r->ctx, &s);
    kvs_ctx_free(r->ctx);
}

static inline kvs_session *session_of(const rig *r, bool shared, kvs_batch *batch)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = NULL;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = r->plan;
    o.prefix_cache = shared ? r->pc : NULL;
    o.batch = batch;
    must(kvs_session_new(r->ctx, r->model, &o, &s, &err), &err);
    return s;
}

/* Token i of a text; all texts begin with `common` tokens of text 0. */
static inline int32_t token(size_t i, size_t common, uint32_t text)
{
    uint64_t x = (i + 1) * UINT64_C(2654435761) + (i < common ? 0 : text) * UINT64_C(40503 * 977);
    return (int32_t)((x ^ (x >> 13)) % N_VOCAB);
}

static inline void make_text(int32_t *dst, size_t n, size_t common, uint32_t text)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = token(i, common, text);
    }
}

static inline size_t sync_to(kvs_session *s, size_t n, size_t common, uint32_t text)
{
    int32_t t[N_CTX];
    size_t reused = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    make_text(t, n, common, text);
    must(kvs_session_sync(s, t, n, &reused, &err), &err);
    return reused;
}

static inline void same(const kvs_session *s, const float *want, const rig *r, const char *what,
                        size_t n)
{
    const float *got = kvs_session_logits(s);
    if (!got || memcmp(got, want, N_VOCAB * sizeof *got) != 0) {
        fail_msg("%s, %s, %zu tokens: other logits", r->k->name, what, n);
    }
}

static inline void cold_logits(const rig *r, size_t n, size_t common, uint32_t text, float *dst)
{
    kvs_session *s = session_of(r, false, NULL);
    (void)sync_to(s, n, common, text);
    memcpy(dst, kvs_session_logits(s), N_VOCAB * sizeof *dst);
    kvs_session_free(s);
}

static inline kvs_prefix_stats stats_of(const rig *r)
{
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    assert_int_equal(kvs_prefix_cache_get_stats(r->pc, &s), KVS_OK);
    return s;
}

static inline kvs_pages_stats pool_of(const rig *r)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(kvs_prefix_cache_pages(r->pc), &s), KVS_OK);
    return s;
}

static inline size_t live(const rig *r)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(r->ctx, &s), KVS_OK);
    return s.live_bytes;
}

#endif
