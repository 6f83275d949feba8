/* SPDX-License-Identifier: MIT */
/* test_pool.c: the thread pool: every item exactly once, thread numbers never shared, real
 * concurrency, no lost wake-up in many tiny runs, and no CPU time used while idle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/pool.h"

#define MOST_ITEMS   5000
#define MOST_THREADS 8

typedef struct job {
    _Atomic uint32_t hits[MOST_ITEMS];
    _Atomic uint32_t busy[MOST_THREADS];
    _Atomic uint32_t wrong;
    uint32_t n_threads;
    float out[MOST_ITEMS];
} job;

static void count_item(void *arg, size_t item, uint32_t thread)
{
    job *j = arg;
    if (thread >= j->n_threads || atomic_fetch_add(&j->busy[thread], 1) != 0) {
        atomic_fetch_add(&j->wrong, 1); /* another item runs with this number: shared scratch */
    }
    atomic_fetch_add(&j->hits[item], 1);
    float x = (float)item + 1.0f;
    for (size_t i = 0; i < item % 50; i++) {
        x = x * 1.25f - x / 3.0f;
    }
    j->out[item] = x;
    if (thread < j->n_threads) {
        atomic_fetch_sub(&j->busy[thread], 1);
    }
}

static kvs_ctx *new_ctx(uint32_t threads)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = threads;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    assert_int_equal(kvs__ctx_threads(ctx), threads);
    return ctx;
}

static void test_exactly_once(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, MOST_ITEMS};
    static job j;
    static float want[MOST_ITEMS];
    for (uint32_t threads = 1; threads <= MOST_THREADS; threads++) {
        kvs_ctx *ctx = new_ctx(threads);
        for (size_t s = 0; s < KVS_COUNT(sizes) * 3; s++) {
            size_t n = sizes[s % KVS_COUNT(sizes)];
            memset(&j, 0, sizeof j);
            j.n_threads = threads;
            kvs__pool_run(kvs__ctx_pool(ctx), n, count_item, &j);
            for (size_t i = 0; i < MOST_ITEMS; i++) {
                assert_int_equal(j.hits[i], i < n);
            }
            assert_int_equal(j.wrong, 0);
            if (threads == 1) {
                memcpy(want, j.out, sizeof want);
            }
            assert_memory_equal(j.out, want, n * sizeof want[0]);
        }
        kvs_ctx_free(ctx);
    }
}

typedef struct counter {
    _Atomic uint32_t n;
} counter;

static void add_one(void *arg, size_t item, uint32_t thread)
{
    (void)item;
    (void)thread;
    counter *c = arg;
    atomic_fetch_add(&c->n, 1);
}

static void test_tiny_runs(void **state)
{
    (void)state;
    for (uint32_t threads = 2; threads <= 4; threads += 2) {
        kvs_ctx *ctx = new_ctx(threads);
        for (uint32_t run = 0; run < 100000; run++) {
            counter c = {0};
            kvs__pool_run(kvs__ctx_pool(ctx), run % 6, add_one, &c);
            assert_int_equal(c.n, run % 6);
        }
        kvs_ctx_free(ctx);
    }
}

static void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL);
}

/* Runs with pauses in between, so that workers are asleep, awake, or falling asleep. */
static void test_wake_up(void **state)
{
    (void)state;
    kvs_ctx *ctx = new_ctx(3);
    for (uint32_t run = 0; run < 2000; run++) {
        counter c = {0};
        kvs__pool_run(kvs__ctx_pool(ctx), 4, add_one, &c);
        assert_int_equal(c.n, 4);
        for (volatile uint32_t i = 0; i < run * 40; i++) { /* 0 .. 80000 steps */
        }
    }
    kvs_ctx_free(ctx);
}

typedef struct pair {
    _Atomic bool begun[2];
} pair;

/* Each item waits until the other has begun: only two threads at once can finish the run. */
static void meet(void *arg, size_t item, uint32_t thread)
{
    (void)thread;
    pair *p = arg;
    atomic_store(&p->begun[item], true);
    while (!atomic_load(&p->begun[1 - item])) {
        nap(1);
    }
}

static void test_concurrent(void **state)
{
    (void)state;
    kvs_ctx *ctx = new_ctx(2);
    for (int run = 0; run < 20; run++) {
        pair p = {{false, false}};
        kvs__pool_run(kvs__ctx_pool(ctx), 2, meet, &p);
        if (run % 5 == 4) {
            nap(5); /* let the worker fall asleep */
        }
    }
    kvs_ctx_free(ctx);
}

/* Items 0 and 1 meet, so that two threads at least go for the rest at the same moment. */
typedef struct rush {
    pair meeting;
    job work;
} rush;

static void rush_item(void *arg, size_t item, uint32_t thread)
{
    rush *r = arg;
    atomic_fetch_add(&r->work.hits[item], 1);
    if (item < 2) {
        atomic_store(&r->meeting.begun[item], true);
        while (!atomic_load(&r->meeting.begun[1 - item])) {
        }
    }
    (void)thread;
}

static void test_contention(void **state)
{
    (void)state;
    static rush r;
    kvs_ctx *ctx = new_ctx(2);
    for (int run = 0; run < 300; run++) {
        memset(&r, 0, sizeof r);
        kvs__pool_run(kvs__ctx_pool(ctx), MOST_ITEMS, rush_item, &r);
        for (size_t i = 0; i < MOST_ITEMS; i++) {
            assert_int_equal(r.work.hits[i], 1);
        }
    }
    kvs_ctx_free(ctx);
}

static void slow_item(void *arg, size_t item, uint32_t thread)
{
    job *j = arg;
    if (thread >= j->n_threads || atomic_fetch_add(&j->busy[thread], 1) != 0) {
        atomic_fetch_add(&j->wrong, 1);
    }
    nap(2);
    atomic_fetch_add(&j->hits[item], 1);
    atomic_fetch_sub(&j->busy[thread], 1);
}

/* Items that sleep overlap on any machine: each thread must have a number of its own. */
static void test_thread_numbers(void **state)
{
    (void)state;
    static job j;
    kvs_ctx *ctx = new_ctx(MOST_THREADS);
    j.n_threads = MOST_THREADS;
    kvs__pool_run(kvs__ctx_pool(ctx), 200, slow_item, &j);
    assert_int_equal(j.wrong, 0);
    for (size_t i = 0; i < 200; i++) {
        assert_int_equal(j.hits[i], 1);
    }
    kvs_ctx_free(ctx);
}

static double cpu_seconds(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* CPU time, not wall time: other processes on the machine do not show in it. */
static void test_idle(void **state)
{
    (void)state;
    kvs_ctx *ctx = new_ctx(MOST_THREADS);
    counter c = {0};
    kvs__pool_run(kvs__ctx_pool(ctx), 100, add_one, &c);
    nap(100); /* workers give up spinning */
    double begin = cpu_seconds();
    nap(400);
    double used = cpu_seconds() - begin;
    printf("idle: %.3f ms of CPU in 400 ms with %d threads\n", used * 1e3, MOST_THREADS);
    assert_true(used < 0.040);
    kvs_ctx_free(ctx);
}

static void test_new_and_free(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 200; i++) {
        kvs_ctx *ctx = new_ctx(1 + i % MOST_THREADS);
        if (i % 3 == 0) {
            counter c = {0};
            kvs__pool_run(kvs__ctx_pool(ctx), 3, add_one, &c);
            assert_int_equal(c.n, 3);
        }
        kvs_ctx_free(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exactly_once), cmocka_unit_test(test_tiny_runs),
        cmocka_unit_test(test_wake_up),      cmocka_unit_test(test_concurrent),
        cmocka_unit_test(test_contention),   cmocka_unit_test(test_thread_numbers),
        cmocka_unit_test(test_idle),         cmocka_unit_test(test_new_and_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
