/* SPDX-License-Identifier: MIT */
/* test_engine_prefix_memory.c: sessions that share prefixes: memory is counted once, budgets hold
 * at every allocation, a pool gets its blocks back, any allocation may fail; rows of a batch,
 * threads. */
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

#include "support/fail_alloc.h"
#include "support/prefix_rig.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counted_once),    cmocka_unit_test(test_budget),
        cmocka_unit_test(test_pool_needs_room), cmocka_unit_test(test_alloc_fails),
        cmocka_unit_test(test_batch),           cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
