/* SPDX-License-Identifier: MIT */
/* pool.c: the thread pool of pool.h.
 *
 * The items of a run are cut into one contiguous range a thread. A thread takes from its own range
 * in order, so that it walks memory in order and what it prefetches is its own; when that is empty
 * it helps out in the others'. State of a range is one 64-bit ticket: run number in the upper half,
 * next item in the lower.
 * I1  A thread owns item i of run r exactly when its compare-and-swap moved a range's ticket from
 *     (r, i) to (r, i+1) with i below the range's end.
 * I2  The fields of a run (fn, arg, n_items) change only while every ticket is (r, CLOSED), so a
 *     successful swap proves that the fields read before it belong to run r.
 * I3  run() returns only when `done` has counted every item, so `arg` may live on its stack.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__) || defined(__i386__)
#define CPU_RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define CPU_RELAX() __asm__ __volatile__("yield")
#else
#define CPU_RELAX() ((void)0)
#endif

#define CLOSED UINT32_C(0xffffffff)
/* About 5-15 us of pauses: the gap between two kernels of a decode step. Longer spins gained nothing
 * on idle cores (200 to 1500 pauses: the same tokens/s) and cost a fifth beside a busy process. */
#define SPIN_LIMIT 400

typedef struct worker_slot {
    kvs__pool *pool;
    pthread_t handle;
    uint32_t thread; /* 1 .. n_threads-1 */
} worker_slot;

typedef struct range {
    _Alignas(64) _Atomic uint64_t ticket;
} range;

struct kvs__pool {
    kvs_ctx *ctx;
    uint32_t n_threads;
    uint32_t n_started;
    worker_slot *workers;              /* [n_threads - 1] */
    range *ranges;                     /* [n_threads] */
    _Alignas(64) _Atomic uint32_t run; /* published last: what idle threads watch */
    _Atomic uint32_t n_items;
    _Atomic(kvs__item_fn) fn;
    _Atomic(void *) arg;
    _Alignas(64) _Atomic uint32_t done;
    _Atomic uint32_t sleepers;
    _Atomic bool caller_waits;
    _Atomic bool stop;
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_cond_t finished;
};

/* First item of thread t's range; of n_threads: the end of the last. */
static uint32_t range_begin(const kvs__pool *p, uint32_t n_items, uint32_t t)
{
    return (uint32_t)((uint64_t)n_items * t / p->n_threads);
}

/* Takes and runs the items of one range until none is left. */
static void drain_range(kvs__pool *p, uint32_t r, uint32_t thread)
{
    for (;;) {
        uint64_t t = atomic_load(&p->ranges[r].ticket);
        uint32_t item = (uint32_t)t;
        uint32_t n = atomic_load_explicit(&p->n_items, memory_order_relaxed);
        kvs__item_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        if (item == CLOSED || item >= range_begin(p, n, r + 1)) {
            return;
        }
        if (!atomic_compare_exchange_weak(&p->ranges[r].ticket, &t, t + 1)) {
            continue;
        }
        fn(arg, item, thread);
        if (atomic_fetch_add(&p->done, 1) + 1 == n && atomic_load(&p->caller_waits)) {
            (void)pthread_mutex_lock(&p->lock);
            (void)pthread_cond_signal(&p->finished);
            (void)pthread_mutex_unlock(&p->lock);
        }
    }
}

static void drain(kvs__pool *p, uint32_t thread)
{
    for (uint32_t i = 0; i < p->n_threads; i++) {
        drain_range(p, (thread + i) % p->n_threads, thread);
    }
}

static bool is_news(kvs__pool *p, uint32_t seen)
{
    return atomic_load(&p->run) != seen || atomic_load(&p->stop);
}

/* Waits for a run other than `seen` (or the end): spins for a while, then sleeps. */
static void wait_for_run(kvs__pool *p, uint32_t seen)
{
    for (int i = 0; i < SPIN_LIMIT; i++) {
        if (is_news(p, seen)) {
            return;
        }
        CPU_RELAX();
    }
    (void)pthread_mutex_lock(&p->lock);
    (void)atomic_fetch_add(&p->sleepers, 1);
    while (!is_news(p, seen)) {
        (void)pthread_cond_wait(&p->work, &p->lock);
    }
    (void)atomic_fetch_sub(&p->sleepers, 1);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *worker(void *opaque)
{
    const worker_slot *w = opaque;
    kvs__pool *p = w->pool;
    uint32_t seen = 0;
    while (!atomic_load(&p->stop)) {
        wait_for_run(p, seen);
        seen = atomic_load(&p->run);
        drain(p, w->thread);
    }
    return NULL;
}

static kvs_status start_worker(kvs__pool *p, uint32_t thread, kvs_err *err)
{
    worker_slot *w = &p->workers[thread - 1];
    w->pool = p;
    w->thread = thread;
    int e = pthread_create(&w->handle, NULL, worker, w);
    if (e != 0) {
        return kvs__fail_errno(err, KVS_E_NOMEM, e, "base", "thread %u could not be started",
                               thread);
    }
    p->n_started++;
    return KVS_OK;
}

kvs_status kvs__pool_new(kvs_ctx *ctx, uint32_t n_threads, kvs__pool **out, kvs_err *err)
{
    kvs__pool *p = kvs__calloc(ctx, 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "base", sizeof *p);
    }
    p->ctx = ctx;
    p->n_threads = n_threads;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->finished, NULL);
    if (n_threads > 1) {
        p->ranges = kvs__calloc(ctx, n_threads, sizeof *p->ranges);
        p->workers = kvs__calloc(ctx, n_threads - 1, sizeof *p->workers);
        if (!p->ranges || !p->workers) {
            kvs__pool_free(p);
            return kvs__nomem(err, "base", n_threads * sizeof *p->ranges);
        }
        for (uint32_t t = 0; t < n_threads; t++) {
            atomic_store(&p->ranges[t].ticket, (uint64_t)CLOSED);
        }
        for (uint32_t t = 1; t < n_threads; t++) {
            kvs_status st = start_worker(p, t, err);
            if (st != KVS_OK) {
                kvs__pool_free(p);
                return st;
            }
        }
    }
    *out = p;
    return KVS_OK;
}

void kvs__pool_free(kvs__pool *p)
{
    if (!p) {
        return;
    }
    (void)pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    (void)pthread_cond_broadcast(&p->work);
    (void)pthread_mutex_unlock(&p->lock);
    for (uint32_t t = 0; t < p->n_started; t++) {
        (void)pthread_join(p->workers[t].handle, NULL);
    }
    (void)pthread_cond_destroy(&p->finished);
    (void)pthread_cond_destroy(&p->work);
    (void)pthread_mutex_destroy(&p->lock);
    kvs__free(p->ctx, p->workers, (p->n_threads - 1) * sizeof *p->workers);
    kvs__free(p->ctx, p->ranges, p->n_threads * sizeof *p->ranges);
    kvs__free(p->ctx, p, sizeof *p);
}

uint32_t kvs__pool_threads(const kvs__pool *p)
{
    return p->n_threads;
}

static void wait_done(kvs__pool *p, uint32_t n)
{
    for (int i = 0; i < SPIN_LIMIT; i++) {
        if (atomic_load(&p->done) == n) {
            return;
        }
        CPU_RELAX();
    }
    (void)pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_waits, true);
    while (atomic_load(&p->done) != n) {
        (void)pthread_cond_wait(&p->finished, &p->lock);
    }
    atomic_store(&p->caller_waits, false);
    (void)pthread_mutex_unlock(&p->lock);
}

/* One batch of fewer than 2^32 - 1 items. */
static void run_batch(kvs__pool *p, uint32_t n, kvs__item_fn fn, void *arg)
{
    uint32_t run = atomic_load_explicit(&p->run, memory_order_relaxed) + 1;
    for (uint32_t t = 0; t < p->n_threads; t++) {
        atomic_store(&p->ranges[t].ticket, (uint64_t)run << 32 | CLOSED);
    }
    atomic_thread_fence(memory_order_seq_cst); /* I2: no field may be seen before the closing */
    atomic_store_explicit(&p->n_items, n, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store(&p->done, 0);
    for (uint32_t t = 0; t < p->n_threads; t++) {
        atomic_store(&p->ranges[t].ticket, (uint64_t)run << 32 | range_begin(p, n, t));
    }
    atomic_store(&p->run, run);
    if (atomic_load(&p->sleepers) > 0) {
        (void)pthread_mutex_lock(&p->lock);
        (void)pthread_cond_broadcast(&p->work);
        (void)pthread_mutex_unlock(&p->lock);
    }
    drain(p, 0);
    wait_done(p, n);
}

typedef struct offset_arg {
    kvs__item_fn fn;
    void *arg;
    size_t base;
} offset_arg;

static void offset_item(void *opaque, size_t item, uint32_t thread)
{
    offset_arg *a = opaque;
    a->fn(a->arg, a->base + item, thread);
}

void kvs__pool_run(kvs__pool *p, size_t n_items, kvs__item_fn fn, void *arg)
{
    if (p->n_threads == 1 || n_items == 1) {
        for (size_t i = 0; i < n_items; i++) {
            fn(arg, i, 0);
        }
        return;
    }
    size_t most = CLOSED - 1;
    for (size_t base = 0; base < n_items; base += most) {
        size_t n = n_items - base < most ? n_items - base : most;
        offset_arg a = {fn, arg, base};
        run_batch(p, (uint32_t)n, offset_item, &a);
    }
}
