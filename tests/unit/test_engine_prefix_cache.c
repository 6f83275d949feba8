/* SPDX-License-Identifier: MIT */
/* test_engine_prefix_cache.c: sessions that share prefixes, on tiny models: the bits with a cache are
 * those without for every plan and kind of model, at every boundary of blocks and windows; memory is
 * counted once; budgets hold at every allocation; threads, batches, cancelled prompts, memory that
 * fails, a directory behind it, salts, files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "kvstate/engine.h"
#include "support/fail_alloc.h"
#include "support/model_build.h"
#include "support/remove_tree.h"

#define N       150
#define TAIL    4
#define N_VOCAB 97
#define N_CTX   256u

/* ---- rig */

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

static void must(kvs_status st, const kvs_err *err)
{
    if (st != KVS_OK) {
        fail_msg("%s: %s", kvs_status_name(st), err->msg);
    }
}

static void make_plan(rig *r, kvs_err *err)
{
    kvs_plan_opts po = r->k->plan;
    kvs_status st = kvs_plan_new(r->ctx, r->model, &po, &r->plan, err);
    if (st != KVS_OK && r->k->snapshots) { /* no layer of it can be paged */
        po.kv_block = 0;
        st = kvs_plan_new(r->ctx, r->model, &po, &r->plan, err);
    }
    must(st, err);
}

static void rig_on(rig *r, const kind *k, kvs_ctx *ctx, const kvs_prefix_cache_opts *opts)
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

static kvs_ctx *new_ctx(void)
{
    kvs_ctx *ctx = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    return ctx;
}

static void rig_open(rig *r, const kind *k, const kvs_prefix_cache_opts *opts)
{
    rig_on(r, k, new_ctx(), opts);
}

static void rig_close(rig *r)
{
    kvs_prefix_cache_free(r->pc);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    (void)unlink(r->path);
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(r->ctx, &s);
    kvs_ctx_free(r->ctx);
}

static kvs_session *session_of(const rig *r, bool shared, kvs_batch *batch)
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
static int32_t token(size_t i, size_t common, uint32_t text)
{
    uint64_t x = (i + 1) * UINT64_C(2654435761) + (i < common ? 0 : text) * UINT64_C(40503 * 977);
    return (int32_t)((x ^ (x >> 13)) % N_VOCAB);
}

static void make_text(int32_t *dst, size_t n, size_t common, uint32_t text)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = token(i, common, text);
    }
}

static size_t sync_to(kvs_session *s, size_t n, size_t common, uint32_t text)
{
    int32_t t[N_CTX];
    size_t reused = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    make_text(t, n, common, text);
    must(kvs_session_sync(s, t, n, &reused, &err), &err);
    return reused;
}

static void same(const kvs_session *s, const float *want, const rig *r, const char *what, size_t n)
{
    const float *got = kvs_session_logits(s);
    if (!got || memcmp(got, want, N_VOCAB * sizeof *got) != 0) {
        fail_msg("%s, %s, %zu tokens: other logits", r->k->name, what, n);
    }
}

static void cold_logits(const rig *r, size_t n, size_t common, uint32_t text, float *dst)
{
    kvs_session *s = session_of(r, false, NULL);
    (void)sync_to(s, n, common, text);
    memcpy(dst, kvs_session_logits(s), N_VOCAB * sizeof *dst);
    kvs_session_free(s);
}

static kvs_prefix_stats stats_of(const rig *r)
{
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    assert_int_equal(kvs_prefix_cache_get_stats(r->pc, &s), KVS_OK);
    return s;
}

static kvs_pages_stats pool_of(const rig *r)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(kvs_prefix_cache_pages(r->pc), &s), KVS_OK);
    return s;
}

static size_t live(const rig *r)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(r->ctx, &s), KVS_OK);
    return s.live_bytes;
}

/* ---- the same bits */

static const size_t cuts[] = {1,  2,  4,  5,  7,  8,  15, 16, 17,  19,  20,  21,  23,  24,      25,
                              31, 32, 33, 47, 48, 49, 59, 60, 61,  63,  64,  65,  95,  96,      97,
                              99, 79, 80, 81, 98, 40, 41, 39, 112, 127, 128, 129, 143, N - TAIL};
#define N_CUTS (sizeof cuts / sizeof cuts[0])

/* A prompt leaves the first session's anywhere: all that is common is lent (of models with snapshots:
 * the second time), and the rest and what is decoded then have the bits of a session alone. */
static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        float want[N_VOCAB];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *first = session_of(&r, true, NULL);
        assert_int_equal(sync_to(first, N, N, 0), 0);
        for (size_t c = 0; c < N_CUTS; c++) {
            size_t at = cuts[c];
            for (uint32_t round = 1; round <= 2; round++) {
                uint32_t text = 2 * (uint32_t)c + round;
                cold_logits(&r, at + TAIL, at, text, want);
                kvs_session *s = session_of(&r, true, NULL);
                size_t reused = sync_to(s, at + TAIL, at, text);
                /* a snapshot less than a block ago is as good */
                bool lost = r.k->snapshots ? round == 2 && reused + 16 <= at
                                           : at >= r.k->first && reused < at;
                if (reused > at + TAIL - 1 || lost) {
                    fail_msg("%s, cut at %zu, round %u: %zu tokens reused", r.k->name, at, round,
                             reused);
                }
                kvs_reuse u = KVS_REUSE_INIT;
                assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
                assert_int_equal(u.n_shared, reused);
                same(s, want, &r, "lent", at);
                kvs_session_free(s);
            }
        }
        /* what was lent was not written to */
        cold_logits(&r, N, N, 0, want);
        same(first, want, &r, "lender", N);
        kvs_session *s = session_of(&r, true, NULL);
        kvs_session *cold = session_of(&r, false, NULL);
        assert_int_equal(sync_to(s, N, N, 0), N - 1); /* one gives the logits */
        (void)sync_to(cold, N, N, 0);
        for (int32_t t = 0; t < 40; t++) {
            int32_t id = (t * 31) % N_VOCAB;
            assert_int_equal(kvs_session_append(cold, &id, 1, NULL), KVS_OK);
            assert_int_equal(kvs_session_append(s, &id, 1, NULL), KVS_OK);
            assert_int_equal(kvs_session_append(first, &id, 1, NULL), KVS_OK);
            same(s, kvs_session_logits(cold), &r, "decoded", (size_t)t);
            same(first, kvs_session_logits(cold), &r, "decoded by the lender", (size_t)t);
        }
        kvs_session_free(cold);
        kvs_session_free(s);
        kvs_session_free(first);
        assert_int_equal(stats_of(&r).leases, 0);
        rig_close(&r);
    }
}

/* A session that goes back finds what its windows dropped, and what it leaves is found again. */
static void test_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        float want[N_VOCAB];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *s = session_of(&r, true, NULL);
        for (size_t c = 0; c < N_CUTS; c += 3) {
            size_t at = cuts[(c * 11) % N_CUTS];
            (void)sync_to(s, N, N, 0);
            size_t reused = sync_to(s, at + TAIL, at, 1);
            if (!r.k->snapshots && at >= r.k->first) {
                assert_true(reused >= at);
            }
            cold_logits(&r, at + TAIL, at, 1, want);
            same(s, want, &r, "back", at);
        }
        (void)sync_to(s, N, N, 0);
        int32_t id = 5;
        assert_int_equal(kvs_session_append(s, &id, 1, NULL), KVS_OK);
        kvs_session_free(s); /* an answer is kept when its session ends */
        s = session_of(&r, true, NULL);
        int32_t t[N + 3];
        size_t reused = 0;
        make_text(t, N + 3, N, 0);
        t[N] = id;
        assert_int_equal(kvs_session_sync(s, t, N + 3, &reused, NULL), KVS_OK);
        assert_int_equal(reused, N + 1);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* ---- memory */

/* A second session of the same prefix takes its table, the blocks it writes to and what a session of no
 * tokens takes; the blocks exist once. */
static void test_counted_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        rig r;
        rig_open(&r, &kinds[i], NULL);
        kvs_session *a = session_of(&r, true, NULL);
        (void)sync_to(a, N, N, 0);
        kvs_session *b = session_of(&r, true, NULL);
        kvs_pages_stats before = pool_of(&r);
        size_t live_before = live(&r);
        assert_int_equal(sync_to(b, N, N, 0), N - 1);
        kvs_pages_stats after = pool_of(&r);
        uint32_t layers = kvs_plan_n_layers(r.plan);
        size_t block = (after.held_bytes + after.cached_bytes) / (after.n_held + after.n_cached);
        uint64_t blocks = after.n_total - after.n_free - (before.n_total - before.n_free);
        if (blocks > 2 * layers) { /* the tail, and what of it is given at the end */
            fail_msg("%s: %llu blocks more", r.k->name, (unsigned long long)blocks);
        }
        size_t alone = before.held_bytes;
        size_t grown = live(&r) - live_before;
        size_t pool = after.bytes - before.bytes; /* comes in chunks */
        assert_true(grown - pool < alone / 2 + layers * 4096);
        assert_true(blocks * block < alone);
        kvs_session_free(a);
        kvs_session_free(b);
        /* none is held, all are the cache's */
        assert_int_equal(pool_of(&r).n_held, 0);
        assert_true(pool_of(&r).cached_bytes <= stats_of(&r).bytes);
        kvs_prefix_cache_clear(r.pc);
        assert_int_equal(pool_of(&r).n_total, 0);
        rig_close(&r);
    }
}

/* Checks at each allocation that the cache keeps to its budget. */
typedef struct watch {
    fail_alloc fa;
    const kvs_prefix_cache *pc;
    size_t max_bytes, pool_bytes;
    long seen, over;
} watch;

static void *watch_take(void *user, size_t bytes, size_t align)
{
    watch *w = user;
    void *p = fail_alloc_take(&w->fa, bytes, align);
    if (w->pc && p) {
        kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
        kvs_pages_stats ps = KVS_PAGES_STATS_INIT;
        (void)kvs_prefix_cache_get_stats(w->pc, &s);
        (void)kvs_pages_get_stats(kvs_prefix_cache_pages(w->pc), &ps);
        w->seen++;
        w->over += s.bytes > w->max_bytes || s.peak_bytes > w->max_bytes;
        w->over += ps.bytes > w->pool_bytes || ps.peak_bytes > w->pool_bytes;
    }
    return p;
}

static void watch_give(void *user, void *p, size_t bytes)
{
    watch *w = user;
    fail_alloc_give(&w->fa, p, bytes);
}

static void test_budget(void **state)
{
    (void)state;
    static const size_t which[] = {0, 3, 6, 10};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        watch w = {FAIL_ALLOC_INIT, NULL, 0, 0, 0, 0};
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        kvs_ctx *ctx = NULL;
        rig r;
        float want[N_VOCAB];
        co.alloc = watch_take;
        co.free = watch_give;
        co.alloc_user = &w;
        co.n_threads = 1;
        assert_int_equal(kvs_ctx_new(&co, &ctx, NULL), KVS_OK);
        rig_on(&r, &kinds[which[i]], ctx, NULL);
        kvs_session *s = session_of(&r, true, NULL);
        (void)sync_to(s, N, N, 0);
        size_t pool = pool_of(&r).held_bytes + 4096;
        kvs_session_free(s);
        size_t one = stats_of(&r).bytes; /* what one text takes */
        kvs_prefix_cache_free(r.pc);
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        o.plan = r.plan;
        o.max_bytes = 2 * one;
        o.pool_bytes = 3 * pool;
        assert_int_equal(kvs_prefix_cache_new(ctx, r.model, &o, &r.pc, NULL), KVS_OK);
        w.max_bytes = o.max_bytes;
        w.pool_bytes = o.pool_bytes;
        w.pc = r.pc;
        for (uint32_t text = 0; text < 40; text++) {
            kvs_err err = {KVS_OK, 0, "", ""};
            int32_t t[N];
            s = session_of(&r, true, NULL);
            make_text(t, N, text % 3 * 20, text % 7);
            must(kvs_session_sync(s, t, N, NULL, &err), &err);
            if (text % 8 == 7) {
                cold_logits(&r, N, text % 3 * 20, text % 7, want);
                same(s, want, &r, "under a budget", text);
            }
            kvs_session_free(s);
            kvs_prefix_stats st = stats_of(&r);
            assert_true(st.bytes <= o.max_bytes && st.leases == 0);
        }
        assert_true(w.seen > 500);
        assert_int_equal(w.over, 0);
        kvs_prefix_stats st = stats_of(&r);
        assert_true(st.evicted + st.evicted_windows > 0 && st.hits > 0);
        /* less and less, down to nothing */
        w.pc = NULL;
        kvs_status less = kvs_prefix_cache_limit(r.pc, one / 2, NULL);
        assert_true(less == KVS_OK ? stats_of(&r).bytes <= one / 2
                                   : less == KVS_NO && stats_of(&r).nodes == 0);
        kvs_prefix_cache_free(r.pc);
        r.pc = NULL;
        rig_close(&r);
        assert_int_equal(w.fa.live, 0);
        assert_int_equal(w.fa.wrong, 0);
    }
}

/* A pool that holds one sequence alone: entries go, the session goes on. */
static void test_pool_needs_room(void **state)
{
    (void)state;
    rig r;
    float want[N_VOCAB];
    rig_open(&r, &kinds[0], NULL);
    kvs_session *s = session_of(&r, true, NULL);
    (void)sync_to(s, N, N, 0);
    size_t pool = pool_of(&r).held_bytes + 4096; /* and its own tables */
    kvs_session_free(s);
    kvs_prefix_cache_free(r.pc);
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o.plan = r.plan;
    o.pool_bytes = pool;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &r.pc, NULL), KVS_OK);
    for (uint32_t text = 0; text < 6; text++) {
        s = session_of(&r, true, NULL);
        (void)sync_to(s, N, 0, text);
        cold_logits(&r, N, 0, text, want);
        same(s, want, &r, "a small pool", text);
        kvs_session_free(s);
        assert_true(pool_of(&r).peak_bytes <= pool);
    }
    assert_true(stats_of(&r).evicted > 0);
    rig_close(&r);
}

/* The k-th allocation fails, for every k: the session works on or says so, nothing leaks, and what is
 * found afterwards has the right bits. */
static void fail_kind(const kind *k)
{
    float want[N_VOCAB];
    bool done = false;
    for (long at = 0; !done; at++) {
        fail_alloc fa = FAIL_ALLOC_INIT;
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        kvs_ctx *ctx = NULL;
        kvs_prefix_cache *pc = NULL;
        kvs_session *s[2] = {NULL, NULL};
        kvs_err err = {KVS_OK, 0, "", ""};
        rig r;
        co.alloc = fail_alloc_take;
        co.free = fail_alloc_give;
        co.alloc_user = &fa;
        co.n_threads = 1;
        assert_int_equal(kvs_ctx_new(&co, &ctx, NULL), KVS_OK);
        rig_on(&r, k, ctx, NULL);
        if (at == 0) {
            cold_logits(&r, 60, 40, 1, want);
        }
        kvs_prefix_cache_free(r.pc);
        r.pc = NULL;
        long before = fa.calls;
        long blocks = fa.blocks;
        fa.fail_at = before + at;
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        o.plan = r.plan;
        o.snapshot_stride = 20;
        kvs_status st = kvs_prefix_cache_new(ctx, r.model, &o, &pc, &err);
        kvs_session_opts so = KVS_SESSION_OPTS_INIT;
        so.plan = r.plan;
        so.prefix_cache = pc;
        for (int i = 0; st == KVS_OK && i < 2; i++) {
            int32_t t[60];
            make_text(t, 60, 40, (uint32_t)i);
            st = kvs_session_new(ctx, r.model, &so, &s[i], &err);
            st = st == KVS_OK ? kvs_session_sync(s[i], t, 60, NULL, &err) : st;
            if (st == KVS_E_NOMEM && s[i]) { /* a further sync goes on */
                st = kvs_session_sync(s[i], t, 60, NULL, &err);
            }
        }
        done = fa.calls <= before + at;
        if (st == KVS_OK) {
            const float *got = kvs_session_logits(s[1]);
            if (!got || memcmp(got, want, sizeof want) != 0) {
                fail_msg("%s, allocation %ld: other logits", k->name, at);
            }
        } else {
            assert_int_equal(st, KVS_E_NOMEM);
        }
        kvs_session_free(s[0]);
        kvs_session_free(s[1]);
        kvs_prefix_stats left = KVS_PREFIX_STATS_INIT;
        assert_true(!pc || kvs_prefix_cache_get_stats(pc, &left) == KVS_OK);
        assert_int_equal(left.leases, 0);
        kvs_prefix_cache_free(pc);
        assert_int_equal(fa.blocks, blocks);
        rig_close(&r);
        assert_int_equal(fa.live, 0);
        assert_int_equal(fa.wrong, 0);
    }
}

static void test_alloc_fails(void **state)
{
    (void)state;
    fail_kind(&kinds[3]);
    fail_kind(&kinds[7]);
    fail_kind(&kinds[10]);
}

/* ---- many at once */

/* Rows that begin alike at different lengths, prefilled in one batch after prepare. */
static void test_batch(void **state)
{
    (void)state;
    enum { ROWS = 6 };
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        rig_open(&r, &kinds[i], NULL);
        kvs_batch_opts bo = KVS_BATCH_OPTS_INIT;
        kvs_batch *batch = NULL;
        bo.n_ctx = N_CTX;
        must(kvs_batch_new(r.ctx, r.model, &bo, &batch, &err), &err);
        for (int round = 0; round < 2; round++) {
            kvs_session *s[ROWS];
            int32_t text[ROWS][N_CTX];
            size_t len[ROWS];
            size_t reused[ROWS];
            for (uint32_t b = 0; b < ROWS; b++) {
                len[b] = 30 + 13 * b;
                make_text(text[b], len[b], 25 + 13 * b, b);
                s[b] = session_of(&r, true, b % 2 ? batch : NULL);
                must(kvs_session_prepare(s[b], text[b], len[b], &reused[b], &err), &err);
                assert_true(reused[b] < len[b]);
                if (round > 0 && !r.k->snapshots && len[b] > r.k->first) {
                    assert_int_equal(reused[b], len[b] - 1);
                }
            }
            for (bool more = true; more;) {
                const int32_t *tokens[ROWS];
                kvs_session *rows[ROWS];
                uint32_t n[ROWS];
                kvs_batch_step e = KVS_BATCH_STEP_INIT;
                for (uint32_t b = 0; b < ROWS; b++) {
                    size_t left = len[b] - reused[b];
                    if (left > 0) {
                        n[e.n_rows] = left < 7 ? (uint32_t)left : 7;
                        tokens[e.n_rows] = text[b] + reused[b];
                        rows[e.n_rows] = s[b];
                        reused[b] += n[e.n_rows++];
                    }
                }
                more = e.n_rows > 0;
                e.sessions = rows;
                e.tokens = tokens;
                e.n_tokens = n;
                must(kvs_batch_eval(batch, &e, &err), &err);
            }
            for (uint32_t b = 0; b < ROWS; b++) {
                float want[N_VOCAB];
                cold_logits(&r, len[b], 25 + 13 * b, b, want);
                same(s[b], want, &r, "row", b);
                kvs_session_free(s[b]);
            }
        }
        assert_true(stats_of(&r).hits > 0);
        kvs_batch_free(batch);
        rig_close(&r);
    }
}

typedef struct worker {
    const rig *r;
    const float (*want)[N_VOCAB];
    uint32_t seed;
    int failed;
    size_t reused;
} worker;

enum { TEXTS = 5 };

static void *work(void *user)
{
    worker *w = user;
    kvs_ctx *ctx = new_ctx();
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = w->r->plan;
    o.prefix_cache = w->r->pc;
    for (uint32_t i = 0; i < 12; i++) {
        kvs_session *s = NULL;
        int32_t t[N];
        size_t reused = 0;
        uint32_t text = (i * w->seed + w->seed) % TEXTS;
        make_text(t, N, text * 20, text);
        w->failed += kvs_session_new(ctx, w->r->model, &o, &s, NULL) != KVS_OK;
        w->failed += !s || kvs_session_sync(s, t, N, &reused, NULL) != KVS_OK;
        const float *got = s ? kvs_session_logits(s) : NULL;
        w->failed += !got || memcmp(got, w->want[text], sizeof w->want[text]) != 0;
        int32_t id = (int32_t)i;
        w->failed += s && kvs_session_append(s, &id, 1, NULL) != KVS_OK;
        w->reused += reused;
        kvs_session_free(s);
    }
    kvs_ctx_free(ctx);
    return NULL;
}

/* Each thread with a context of its own; a budget that makes them evict each other's entries. */
static void test_threads(void **state)
{
    (void)state;
    static const size_t which[] = {0, 7, 10};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        rig r;
        float want[TEXTS][N_VOCAB];
        rig_open(&r, &kinds[which[i]], NULL);
        for (uint32_t t = 0; t < TEXTS; t++) {
            cold_logits(&r, N, t * 20, t, want[t]);
        }
        kvs_session *s = session_of(&r, true, NULL);
        (void)sync_to(s, N, 0, 0);
        kvs_session_free(s);
        assert_int_equal(kvs_prefix_cache_limit(r.pc, 2 * stats_of(&r).bytes, NULL), KVS_OK);
        worker w[2] = {{&r, (const float(*)[N_VOCAB])want, 1, 0, 0},
                       {&r, (const float(*)[N_VOCAB])want, 3, 0, 0}};
        pthread_t id[2];
        for (int k = 0; k < 2; k++) {
            assert_int_equal(pthread_create(&id[k], NULL, work, &w[k]), 0);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(pthread_join(id[k], NULL), 0);
            assert_int_equal(w[k].failed, 0);
        }
        assert_true(w[0].reused + w[1].reused > 0);
        assert_int_equal(pool_of(&r).n_held, 0);
        assert_int_equal(stats_of(&r).leases, 0);
        rig_close(&r);
    }
}

/* ---- what is kept, and what not */

static int stop_at(void *user, size_t done, size_t total)
{
    (void)total;
    return done >= *(const size_t *)user;
}

/* A prompt that is cancelled leaves what it has computed. */
static void test_cancelled(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_session *s = NULL;
        kvs_session_opts o = KVS_SESSION_OPTS_INIT;
        float want[N_VOCAB];
        int32_t t[N];
        size_t stop = 60;
        rig_open(&r, &kinds[i], NULL);
        o.plan = r.plan;
        o.prefix_cache = r.pc;
        o.block = 20;
        o.progress = stop_at;
        o.progress_user = &stop;
        assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, NULL), KVS_OK);
        make_text(t, N, N, 0);
        assert_int_equal(kvs_session_sync(s, t, N, NULL, NULL), KVS_E_CANCELLED);
        kvs_session *other = session_of(&r, true, NULL);
        if (r.k->first <= stop) {
            assert_int_equal(sync_to(other, N, N, 0), stop);
        } else {
            assert_true(sync_to(other, N, N, 0) <= stop);
        }
        cold_logits(&r, N, N, 0, want);
        same(other, want, &r, "after a cancelled one", stop);
        kvs_session_free(other);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* What rounds of drafts accepted is given, what they tried is not: another session goes on from the
 * whole answer, and its bits are those of a session alone. */
static uint32_t wrong_drafts(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out,
                             uint32_t n)
{
    (void)user;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (tokens[n_tokens - 1] + 7 * (int32_t)i) % N_VOCAB;
    }
    return n;
}

static void test_drafts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        kvs_spec *spec = NULL;
        size_t n = 0;
        size_t reused = 0;
        int32_t text[N_CTX];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *s = session_of(&r, true, NULL);
        (void)sync_to(s, 50, 50, 0);
        o.draft = wrong_drafts;
        o.max_drafts = 3;
        o.flags = KVS_SPEC_FIXED;
        must(kvs_spec_new(s, &o, &spec, &err), &err);
        for (int round = 0; round < 30; round++) {
            must(kvs_spec_next(spec, &err), &err);
        }
        kvs_spec_free(spec);
        memcpy(text, kvs_session_tokens(s, &n), sizeof text);
        assert_true(n >= 80);
        kvs_session_free(s);
        text[n] = 3;
        s = session_of(&r, true, NULL);
        must(kvs_session_sync(s, text, n + 1, &reused, &err), &err);
        assert_int_equal(reused, n);
        kvs_session *cold = session_of(&r, false, NULL);
        must(kvs_session_sync(cold, text, n + 1, NULL, &err), &err);
        same(s, kvs_session_logits(cold), &r, "after drafts", n);
        kvs_session_free(cold);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* State of a file is another program's: it is gone on with, and never given. */
static void test_foreign(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    char path[] = "/tmp/kvstate-foreign-XXXXXX";
    kvs_prompt_cache *file = NULL;
    kvs_prompt_save_opts so = KVS_PROMPT_SAVE_OPTS_INIT;
    int32_t t[N];
    size_t reused = 0;
    rig_open(&r, &kinds[0], NULL);
    make_text(t, N, N, 0);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    kvs_session *s = session_of(&r, false, NULL);
    (void)sync_to(s, 100, N, 0);
    so.tokens = t;
    so.n_tokens = 100;
    must(kvs_prompt_cache_save(kvs_session_cache(s), &so, path, &err), &err);
    kvs_session_free(s);
    s = session_of(&r, true, NULL);
    must(kvs_prompt_cache_open(r.ctx, path, &file, &err), &err);
    must(kvs_session_load_prompt_cache(s, file, 0, &err), &err);
    kvs_prompt_cache_close(file);
    must(kvs_session_sync(s, t, N, &reused, &err), &err);
    assert_int_equal(reused, 100);
    kvs_session *other = session_of(&r, true, NULL);
    assert_int_equal(sync_to(other, 120, N, 0), 0);
    /* emptied, it computes and gives again */
    assert_int_equal(kvs_session_sync(s, NULL, 0, NULL, NULL), KVS_OK);
    assert_int_equal(sync_to(s, N, 0, 9), 0);
    assert_int_equal(sync_to(other, N, 0, 9), N - 1);
    kvs_session_free(other);
    kvs_session_free(s);
    (void)unlink(path);
    rig_close(&r);
}

/* Another salt, context of another length with the same encodings, other plan, other model. */
static void test_apart(void **state)
{
    (void)state;
    rig r;
    rig other;
    kvs_session *s = NULL;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    rig_open(&r, &kinds[0], NULL);
    rig_open(&other, &kinds[0], NULL);
    o.plan = r.plan;
    o.prefix_cache = r.pc;
    for (int i = 0; i < 4; i++) {
        static const char *const salts[] = {"", "tenant a", "tenant b", "tenant a"};
        o.prefix_salt = (kvs_bytes){salts[i], strlen(salts[i])};
        must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
        assert_int_equal(sync_to(s, N, N, 0), i == 3 ? N - 1 : 0);
        kvs_session_free(s);
    }
    o.prefix_salt = (kvs_bytes){NULL, 0};
    kvs_plan_opts po = r.k->plan;
    kvs_plan *plan = NULL;
    po.n_ctx = 200;
    must(kvs_plan_new(r.ctx, r.model, &po, &plan, &err), &err);
    o.plan = plan;
    must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
    assert_int_equal(sync_to(s, N, N, 0), N - 1);
    kvs_session_free(s);
    kvs_plan_free(plan);
    po.kv = "f32";
    must(kvs_plan_new(r.ctx, r.model, &po, &plan, &err), &err);
    o.plan = plan;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "plan"));
    o.plan = NULL;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    o.plan = r.plan;
    assert_int_equal(kvs_session_new(r.ctx, other.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "model"));
    o.pages = (kvs_pages *)(uintptr_t)kvs_prefix_cache_pages(other.pc);
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "pool"));
    o = (kvs_session_opts)KVS_SESSION_OPTS_INIT;
    o.prefix_salt = (kvs_bytes){"a", 1};
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_null(s);
    kvs_plan_free(plan);
    rig_close(&other);
    rig_close(&r);
}

static void test_refused(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache *pc = NULL;
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    rig_open(&r, &kinds[0], NULL);
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_INVAL);
    o.plan = r.plan;
    o.reserved = 1;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_UNSUPPORTED);
    o.reserved = 0;
    o.max_bytes = 1;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_LIMIT);
    o.max_bytes = 0;
    o.policy = KVS_RETAIN_CUSTOM;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_INVAL);
    kvs_plan *plan = NULL;
    must(kvs_plan_new(r.ctx, r.model, NULL, &plan, &err), &err);
    o.policy = KVS_RETAIN_LRU;
    o.plan = plan;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "layer 0 is not paged"));
    assert_null(pc);
    kvs_plan_free(plan);
    rig_close(&r);
    rig_open(&r, &kinds[10], NULL);
    o.plan = r.plan;
    o.dir = "/nowhere";
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "recurrent"));
    rig_close(&r);
}

/* ---- the directory behind it */

static kvs_reuse reuse_of(const kvs_session *s)
{
    kvs_reuse u = KVS_REUSE_INIT;
    assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
    return u;
}

/* Memory, then disk, then memory again; what memory evicts is on disk; a restart finds it. */
static void test_disk(void **state)
{
    (void)state;
    static const size_t which[] = {0, 3, 5, 6, 8};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        char dir[] = "/tmp/kvstate-tier-XXXXXX";
        rig r;
        float want[N_VOCAB];
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        assert_non_null(mkdtemp(dir));
        o.dir = dir;
        rig_open(&r, &kinds[which[i]], &o);
        kvs_session *a = session_of(&r, true, NULL);
        (void)sync_to(a, N, N, 0);
        kvs_session *b = session_of(&r, true, NULL);
        assert_int_equal(sync_to(b, N, N, 0), N - 1);
        assert_int_equal(reuse_of(b).n_shared, N - 1);
        assert_int_equal(reuse_of(b).n_disk + reuse_of(b).n_memory, 0);
        assert_int_equal(kvs_session_flush(a, NULL), KVS_OK);
        kvs_session_free(a);
        kvs_session_free(b);
        kvs_prefix_cache_clear(r.pc); /* all of memory is evicted */
        cold_logits(&r, N, N, 0, want);
        for (int round = 0; round < 2; round++) {
            a = session_of(&r, true, NULL);
            assert_int_equal(sync_to(a, N, N, 0), N - 1);
            assert_int_equal(round == 0 ? reuse_of(a).n_disk : reuse_of(a).n_shared, N - 1);
            assert_int_equal(round == 0 ? reuse_of(a).n_shared : reuse_of(a).n_disk, 0);
            same(a, want, &r, round == 0 ? "from disk" : "from memory again", N);
            kvs_session_free(a);
        }
        rig_close(&r);
        rig_open(&r, &kinds[which[i]], &o);
        a = session_of(&r, true, NULL);
        assert_int_equal(sync_to(a, N, N, 0), N - 1);
        assert_int_equal(reuse_of(a).n_disk, N - 1);
        same(a, want, &r, "after a restart", N);
        kvs_session_free(a);
        rig_close(&r);
        /* and a session with a store alone finds the same */
        kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
        rig_open(&r, &kinds[which[i]], NULL);
        a = session_of(&r, false, NULL);
        po.dir = dir;
        assert_int_equal(kvs_session_persist(a, &po, NULL), KVS_OK);
        assert_int_equal(sync_to(a, N, N, 0), N - 1);
        assert_int_equal(reuse_of(a).n_disk, N - 1);
        same(a, want, &r, "by a store alone", N);
        kvs_session_free(a);
        rig_close(&r);
        remove_tree(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),       cmocka_unit_test(test_back),
        cmocka_unit_test(test_counted_once),    cmocka_unit_test(test_budget),
        cmocka_unit_test(test_pool_needs_room), cmocka_unit_test(test_alloc_fails),
        cmocka_unit_test(test_batch),           cmocka_unit_test(test_threads),
        cmocka_unit_test(test_cancelled),       cmocka_unit_test(test_apart),
        cmocka_unit_test(test_drafts),          cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_refused),         cmocka_unit_test(test_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
