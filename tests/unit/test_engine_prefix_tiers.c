/* SPDX-License-Identifier: MIT */
/* test_engine_prefix_tiers.c: what memory may let go of while the directory is slow, full, failing or gone:
 * nothing whose save is under way, but for a pool without a block and a lower limit; no session ever
 * stops for it, budgets hold, and what was computed is found in one tier or the other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "engine/share.h"
#include "store/store_vfs.h"
#include "support/fail_alloc.h"
#include "support/memfs.h"
#include "support/prefix_rig.h"

/* Writes wait at a gate while it is closed, and take some time. */
static struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool closed;
    long slow_us;
} gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};

static void set_gate(bool closed)
{
    (void)pthread_mutex_lock(&gate.lock);
    gate.closed = closed;
    (void)pthread_cond_broadcast(&gate.changed);
    (void)pthread_mutex_unlock(&gate.lock);
}

static int gated_pwrite(kvs__vfs *v, kvs__file *f, const void *buf, size_t n, uint64_t at)
{
    (void)pthread_mutex_lock(&gate.lock);
    while (gate.closed) {
        (void)pthread_cond_wait(&gate.changed, &gate.lock);
    }
    struct timespec t = {0, gate.slow_us * 1000};
    (void)pthread_mutex_unlock(&gate.lock);
    if (t.tv_nsec > 0) {
        (void)nanosleep(&t, NULL);
    }
    return memfs_pwrite(v, f, buf, n, at);
}

typedef struct tier {
    rig r;
    memfs *m;
} tier;

/* A prefix cache on a directory in memory. */
static kvs_status add_store(tier *t, kvs_prefix_cache *pc, const kvs_store_opts *so, kvs_err *err)
{
    t->m->v.pwrite = gated_pwrite;
    if (memfs_look(t->m, ".") < 0) {
        memfs_link(t->m, ".", memfs_new_inode(t->m, true, 0700));
    }
    memset(pc->weights, 1, sizeof pc->weights);
    return kvs__store_open_vfs(pc->ctx, &t->m->v, "d", so, &pc->store, err);
}

static void tier_open(tier *t, const kind *k, const kvs_store_opts *so)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o.policy = KVS_RETAIN_LRU;
    rig_open(&t->r, k, &o);
    t->m = memfs_new();
    must(add_store(t, t->r.pc, so, &err), &err);
}

static void tier_close(tier *t)
{
    rig_close(&t->r);
    memfs_free(t->m);
}

static kvs_store_stats disk_of(const tier *t)
{
    kvs_store_stats s = KVS_STORE_STATS_INIT;
    assert_int_equal(kvs_prefix_cache_get_store_stats(t->r.pc, &s), KVS_OK);
    return s;
}

static kvs_reuse reuse_of(const kvs_session *s)
{
    kvs_reuse u = KVS_REUSE_INIT;
    assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
    return u;
}

/* Is a text found on disk, and right? Memory is emptied for it. */
static bool on_disk(const tier *t, uint32_t text)
{
    float want[N_VOCAB];
    kvs_prefix_cache_clear(t->r.pc);
    kvs_session *s = session_of(&t->r, true, NULL);
    (void)sync_to(s, N, 0, text);
    bool found = reuse_of(s).n_disk >= N - 8;
    assert_int_equal(reuse_of(s).n_shared, 0);
    cold_logits(&t->r, N, 0, text, want);
    same(s, want, &t->r, "from disk", text);
    kvs_session_free(s);
    return found;
}

/* Full, quantised, windows, recurrent. */
static const size_t which[] = {0, 3, 6, 10};
#define N_WHICH (sizeof which / sizeof which[0])

/* ---- a slow disk */

static void test_slow(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WHICH; i++) {
        enum { SESSIONS = 6 };
        tier t;
        float want[N_VOCAB];
        kvs_session *s[SESSIONS + 2];
        tier_open(&t, &kinds[which[i]], NULL);
        set_gate(true);
        for (uint32_t k = 0; k < SESSIONS; k++) {
            s[k] = session_of(&t.r, true, NULL);
            (void)sync_to(s[k], N, 0, k);
            if (k == 0) {
                kvs_prefix_stats one = stats_of(&t.r);
                assert_true(one.waiting > 0 && one.waiting_bytes > 0);
                assert_int_equal(kvs_prefix_cache_limit(t.r.pc, one.bytes * 5 / 2, NULL), KVS_OK);
            }
            kvs_prefix_stats st = stats_of(&t.r);
            assert_true(st.bytes <= st.max_bytes && st.peak_bytes <= st.max_bytes);
            assert_true(st.waiting_bytes <= st.bytes);
            assert_true(k > 1 || st.refused_waiting == 0);
        }
        kvs_prefix_stats full = stats_of(&t.r);
        assert_true(full.refused_waiting > 0);
        assert_int_equal(full.evicted_waiting, 0);
        /* the first two are where they were, and a session that found no room has the right bits */
        for (uint32_t k = 0; k < 2; k++) {
            kvs_session *other = session_of(&t.r, true, NULL);
            assert_int_equal(sync_to(other, N, 0, k), N - 1);
            assert_int_equal(reuse_of(other).n_shared, N - 1);
            s[SESSIONS + k] = other;
        }
        for (uint32_t k = 0; k < SESSIONS; k++) {
            cold_logits(&t.r, N, 0, k, want);
            same(s[k], want, &t.r, "a slow disk", k);
        }
        set_gate(false);
        assert_int_equal(kvs_session_flush(s[0], NULL), KVS_OK);
        assert_int_equal(stats_of(&t.r).waiting, 0);
        (void)sync_to(s[0], N, 0, SESSIONS); /* now there is room: the oldest go */
        assert_true(stats_of(&t.r).evicted > full.evicted);
        assert_int_equal(stats_of(&t.r).refused, full.refused);
        for (uint32_t k = 0; k < SESSIONS + 2; k++) {
            kvs_session_free(s[k]);
        }
        for (uint32_t k = 0; k <= SESSIONS; k++) {
            assert_true(on_disk(&t, k));
        }
        tier_close(&t);
    }
}

/* A session goes from text to text; its pool holds one, and what is being saved: it waits for that. */
static void test_pool_wins(void **state)
{
    (void)state;
    tier t;
    float want[N_VOCAB];
    kvs_err err = {KVS_OK, 0, "", ""};
    tier_open(&t, &kinds[0], NULL);
    kvs_session *s = session_of(&t.r, true, NULL);
    (void)sync_to(s, N, 0, 0);
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o.plan = t.r.plan;
    o.pool_bytes = pool_of(&t.r).held_bytes + 4096;
    kvs_session_free(s);
    kvs_prefix_cache_free(t.r.pc);
    must(kvs_prefix_cache_new(t.r.ctx, t.r.model, &o, &t.r.pc, &err), &err);
    must(add_store(&t, t.r.pc, NULL, &err), &err);
    gate.slow_us = 3000;
    s = session_of(&t.r, true, NULL);
    for (uint32_t k = 1; k < 4; k++) {
        (void)sync_to(s, N, 0, k);
        cold_logits(&t.r, N, 0, k, want);
        same(s, want, &t.r, "a small pool", k);
        assert_true(pool_of(&t.r).peak_bytes <= o.pool_bytes);
    }
    assert_true(stats_of(&t.r).evicted > 0);
    kvs_session_free(s);
    assert_int_equal(stats_of(&t.r).waiting, 0);
    for (uint32_t k = 0; k < 4; k++) {
        assert_true(on_disk(&t, k)); /* what went from memory was on its way */
    }
    tier_close(&t);
}

/* A lower limit holds at once; what is emptied by name goes; the saves go on. */
static void test_limit_wins(void **state)
{
    (void)state;
    for (int clear = 0; clear < 2; clear++) {
        tier t;
        tier_open(&t, &kinds[6], NULL);
        set_gate(true);
        kvs_session *s = session_of(&t.r, true, NULL);
        (void)sync_to(s, N, 0, 0);
        kvs_prefix_stats st = stats_of(&t.r);
        assert_true(st.waiting > 0);
        if (clear) {
            kvs_prefix_cache_clear(t.r.pc);
            st = stats_of(&t.r);
            assert_true(st.nodes == 0 && st.waiting == 0 && st.evicted_waiting == 0);
        } else {
            size_t less = st.bytes - st.waiting_bytes / 2;
            assert_int_equal(kvs_prefix_cache_limit(t.r.pc, less, NULL), KVS_OK);
            st = stats_of(&t.r);
            assert_true(st.bytes <= less && st.waiting > 0 && st.evicted_waiting > 0);
        }
        (void)sync_to(s, N, 0, 1);
        set_gate(false);
        kvs_session_free(s);
        assert_int_equal(stats_of(&t.r).waiting, 0);
        assert_true(on_disk(&t, 0) && on_disk(&t, 1));
        tier_close(&t);
    }
}

static int open_gate(void **state)
{
    (void)state;
    set_gate(false);
    gate.slow_us = 0;
    return 0;
}

static void *open_soon(void *user)
{
    struct timespec t = {0, 50000000};
    (void)user;
    (void)nanosleep(&t, NULL);
    set_gate(false);
    return NULL;
}

/* The queue holds one: what is left for another text meanwhile is lost to the disk, and that is said; what
 * a session still holds is saved as it goes on, or at its end. */
static void queue_full(uint32_t items, uint64_t bytes)
{
    tier t;
    kvs_store_opts so = KVS_STORE_OPTS_INIT;
    so.max_queue_items = items;
    so.max_queue_bytes = bytes;
    tier_open(&t, &kinds[0], &so);
    set_gate(true);
    kvs_session *s = session_of(&t.r, true, NULL);
    (void)sync_to(s, N, 0, 0);
    uint64_t waiting = stats_of(&t.r).waiting;
    (void)sync_to(s, N, 0, 1);
    assert_int_equal(stats_of(&t.r).waiting, waiting); /* of what is not queued nothing waits */
    assert_int_equal(reuse_of(s).not_saved, 0);
    assert_non_null(strstr(reuse_of(s).save_reason, "queue"));
    (void)sync_to(s, N, 0, 2);
    assert_int_equal(reuse_of(s).not_saved, 1);
    kvs_session *other = session_of(&t.r, true, NULL);
    (void)sync_to(other, N, 0, 3);
    pthread_t opener;
    assert_int_equal(pthread_create(&opener, NULL, open_soon, NULL), 0);
    kvs_session_free(s); /* waits for room, then for the save */
    assert_int_equal(pthread_join(opener, NULL), 0);
    for (uint32_t k = 0; k < 200; k++) { /* it grows by more than a step */
        int32_t id = (int32_t)(k % N_VOCAB);
        if (N + k < N_CTX) {
            assert_int_equal(kvs_session_append(other, &id, 1, NULL), KVS_OK);
        }
    }
    kvs_session_free(other);
    assert_true(on_disk(&t, 0) && !on_disk(&t, 1) && on_disk(&t, 2) && on_disk(&t, 3));
    tier_close(&t);
}

static void test_queue_full(void **state)
{
    (void)state;
    queue_full(1, 0);
    queue_full(0, 1); /* in bytes: what is lent to it counts */
}

/* ---- a disk that fails */

static void fail_writes(tier *t, int e)
{
    (void)pthread_mutex_lock(&t->m->lock);
    t->m->calls = 0;
    t->m->fail_at = e ? 0 : -1;
    t->m->fail_on = true;
    t->m->fail_errno = e;
    (void)pthread_mutex_unlock(&t->m->lock);
}

/* What a save that failed had covered waits for the next one of the session. */
static void test_covers_again(void **state)
{
    (void)state;
    tier t;
    tier_open(&t, &kinds[0], NULL);
    kvs_session *s = session_of(&t.r, true, NULL);
    for (int failed = 1; failed >= 0; failed--) {
        uint32_t text = (uint32_t)failed;
        fail_writes(&t, failed ? EIO : 0);
        (void)sync_to(s, N, 0, text);
        assert_int_equal(kvs_session_flush(s, NULL) == KVS_OK, !failed);
        fail_writes(&t, 0);
        set_gate(true);
        (void)sync_to(s, N + 70, 0, text); /* the same, longer */
        kvs_prefix_stats st = stats_of(&t.r);
        set_gate(false);
        /* of 16 tokens each: all, or those that begin in the first text's last block */
        assert_int_equal(st.waiting, (N + 70 + 15) / 16 - (failed ? 0 : N / 16));
        assert_int_equal(kvs_session_flush(s, NULL), KVS_OK);
    }
    kvs_session_free(s);
    tier_close(&t);
}

/* A failure for good lets go of what waited; once the disk is well again the session's end saves it. */
static void test_failing(void **state)
{
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EROFS, ENOENT, EACCES}; /* ENOENT: it has vanished */
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        tier t;
        float want[N_VOCAB];
        tier_open(&t, &kinds[which[i % N_WHICH]], NULL);
        fail_writes(&t, errors[i]);
        kvs_session *s = session_of(&t.r, true, NULL);
        (void)sync_to(s, N, 0, 0);
        assert_true(kvs_session_flush(s, NULL) != KVS_OK);
        kvs_prefix_stats st = stats_of(&t.r);
        assert_true(st.waiting == 0 && st.nodes > 0);
        kvs_reuse u = reuse_of(s);
        assert_true(u.not_saved == 1 && u.save_reason[0]);
        assert_true(disk_of(&t).failed > 0 && disk_of(&t).queued_items == 0);
        /* an entry like any other: it is found, and it goes for others */
        kvs_session *other = session_of(&t.r, true, NULL);
        assert_int_equal(sync_to(other, N, 0, 0), N - 1);
        assert_int_equal(kvs_prefix_cache_limit(t.r.pc, st.bytes * 3 / 2, NULL), KVS_OK);
        (void)sync_to(other, N, 0, 1);
        cold_logits(&t.r, N, 0, 1, want);
        same(other, want, &t.r, "a failing disk", i);
        (void)kvs_session_flush(other, NULL);
        (void)sync_to(other, N, 0, 2);
        assert_true(stats_of(&t.r).evicted > 0);
        (void)kvs_session_flush(other, NULL);
        fail_writes(&t, 0);
        kvs_session_free(s);
        kvs_session_free(other);
        assert_true(on_disk(&t, 0) && on_disk(&t, 2));
        tier_close(&t);
    }
}

/* The k-th allocation fails, for every k, with the store's work in the call: nothing waits for ever,
 * nothing leaks, the bits are right. */
static void test_alloc_fails(void **state)
{
    (void)state;
    float want[N_VOCAB];
    bool done = false;
    for (long at = 0; !done; at++) {
        fail_alloc fa = FAIL_ALLOC_INIT;
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        kvs_store_opts so = KVS_STORE_OPTS_INIT;
        kvs_ctx *ctx = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        tier t;
        co.alloc = fail_alloc_take;
        co.free = fail_alloc_give;
        co.alloc_user = &fa;
        co.n_threads = 1;
        so.flags = KVS_STORE_NO_THREADS;
        assert_int_equal(kvs_ctx_new(&co, &ctx, NULL), KVS_OK);
        rig_on(&t.r, &kinds[7], ctx, NULL);
        t.m = memfs_new();
        must(add_store(&t, t.r.pc, &so, &err), &err);
        if (at == 0) {
            cold_logits(&t.r, 100, 0, 1, want);
        }
        long before = fa.calls;
        fa.fail_at = before + at;
        kvs_session *s = NULL;
        kvs_session_opts o = KVS_SESSION_OPTS_INIT;
        o.plan = t.r.plan;
        o.prefix_cache = t.r.pc;
        int32_t text[100];
        kvs_status st = kvs_session_new(ctx, t.r.model, &o, &s, &err);
        for (uint32_t k = 0; st == KVS_OK && k < 2; k++) {
            make_text(text, 100, 0, k);
            st = kvs_session_sync(s, text, 100, NULL, &err);
            st = st == KVS_E_NOMEM ? kvs_session_sync(s, text, 100, NULL, &err) : st;
            assert_int_equal(stats_of(&t.r).waiting, 0); /* it is durable, or was given up */
        }
        done = fa.calls <= before + at;
        fa.fail_at = -1;
        if (st == KVS_OK) {
            same(s, want, &t.r, "allocation", (size_t)at);
        } else {
            assert_int_equal(st, KVS_E_NOMEM);
        }
        kvs_session_free(s);
        assert_int_equal(stats_of(&t.r).leases, 0);
        tier_close(&t);
        assert_true(fa.live == 0 && fa.wrong == 0);
    }
}

/* ---- two threads */

enum { TEXTS = 7 };
typedef struct worker {
    const tier *t;
    const float (*want)[N_VOCAB];
    uint32_t seed;
    int failed;
} worker;

static void *work(void *user)
{
    worker *w = user;
    const rig *r = &w->t->r;
    kvs_ctx *ctx = new_ctx();
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = r->plan;
    o.prefix_cache = r->pc;
    for (uint32_t i = 0; i < 3; i++) {
        kvs_session *s = NULL;
        w->failed += kvs_session_new(ctx, r->model, &o, &s, NULL) != KVS_OK;
        for (uint32_t k = 0; s && k < 4; k++) {
            int32_t t[N];
            uint32_t text = (3 * i + k + 1) * w->seed % TEXTS;
            make_text(t, N, 0, text);
            w->failed += kvs_session_sync(s, t, N, NULL, NULL) != KVS_OK;
            const float *got = kvs_session_logits(s);
            w->failed += !got || memcmp(got, w->want[text], sizeof w->want[text]) != 0;
            kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
            (void)kvs_prefix_cache_get_stats(r->pc, &st);
            w->failed += st.bytes > st.max_bytes;
        }
        kvs_session_free(s);
    }
    kvs_ctx_free(ctx);
    return NULL;
}

/* Each evicts the other's entries, and both wait for the same slow disk: every text that was computed is
 * in memory or on disk in the end, and nothing waits. */
static void test_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_WHICH; i++) {
        tier t;
        float want[TEXTS][N_VOCAB];
        tier_open(&t, &kinds[which[i]], NULL);
        for (uint32_t k = 0; k < TEXTS; k++) {
            cold_logits(&t.r, N, 0, k, want[k]);
        }
        kvs_session *s = session_of(&t.r, true, NULL);
        (void)sync_to(s, N, 0, 0);
        kvs_session_free(s);
        assert_int_equal(kvs_prefix_cache_limit(t.r.pc, 2 * stats_of(&t.r).bytes, NULL), KVS_OK);
        gate.slow_us = 300;
        worker w[2] = {{&t, (const float(*)[N_VOCAB])want, 1, 0},
                       {&t, (const float(*)[N_VOCAB])want, 3, 0}};
        pthread_t id[2];
        for (int k = 0; k < 2; k++) {
            assert_int_equal(pthread_create(&id[k], NULL, work, &w[k]), 0);
        }
        for (int k = 0; k < 2; k++) {
            assert_int_equal(pthread_join(id[k], NULL), 0);
            assert_int_equal(w[k].failed, 0);
        }
        gate.slow_us = 0;
        kvs_prefix_stats st = stats_of(&t.r);
        assert_true(st.waiting == 0 && st.leases == 0 && st.evicted_waiting == 0);
        assert_int_equal(pool_of(&t.r).n_held, 0);
        for (uint32_t k = 0; k < TEXTS; k++) {
            assert_true(on_disk(&t, k));
        }
        tier_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_slow, open_gate),
        cmocka_unit_test_setup(test_pool_wins, open_gate),
        cmocka_unit_test_setup(test_limit_wins, open_gate),
        cmocka_unit_test_setup(test_queue_full, open_gate),
        cmocka_unit_test_setup(test_covers_again, open_gate),
        cmocka_unit_test_setup(test_failing, open_gate),
        cmocka_unit_test_setup(test_alloc_fails, open_gate),
        cmocka_unit_test_setup(test_threads, open_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
