/* SPDX-License-Identifier: MIT */
/* pool.c: the thread pool of pool.h.
 *
 * State of a run is one 64-bit ticket: run number in the upper half, next item in the lower.
 * I1  A thread owns item i of run r exactly when its compare-and-swap moved (r, i) to (r, i+1)
 *     with i < n_items.
 * I2  The fields of a run (fn, arg, n_items) change only while the ticket is (r, CLOSED), so a
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
/* About 20-60 us of pauses: longer than the gap between two kernels of a decode step, far shorter
 * than a scheduler slice, so that a busy neighbour gets the CPU when we have no work. */
#define SPIN_LIMIT 1500

typedef struct worker_slot {
    kvs__pool *pool;
    pthread_t handle;
    uint32_t thread; /* 1 .. n_threads-1 */
} worker_slot;

struct kvs__pool {
    kvs_ctx *ctx;
    uint32_t n_threads;
    uint32_t n_started;
    worker_slot *workers; /* [n_threads - 1] */
    _Alignas(64) _Atomic uint64_t ticket;
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

static bool has_work(kvs__pool *p)
{
    uint64_t t = atomic_load(&p->ticket);
    return (uint32_t)t != CLOSED &&
           (uint32_t)t < atomic_load_explicit(&p->n_items, memory_order_relaxed);
}

/* Takes and runs items until none is left. */
static void drain(kvs__pool *p, uint32_t thread)
{
    for (;;) {
        uint64_t t = atomic_load(&p->ticket);
        uint32_t item = (uint32_t)t;
        uint32_t n = atomic_load_explicit(&p->n_items, memory_order_relaxed);
        kvs__item_fn fn = atomic_load_explicit(&p->fn, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        if (item == CLOSED || item >= n) {
            return;
        }
        if (!atomic_compare_exchange_weak(&p->ticket, &t, t + 1)) {
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

static bool spin_for_work(kvs__pool *p)
{
    for (int i = 0; i < SPIN_LIMIT; i++) {
        if (has_work(p) || atomic_load_explicit(&p->stop, memory_order_relaxed)) {
            return true;
        }
        CPU_RELAX();
    }
    return false;
}

static void sleep_for_work(kvs__pool *p)
{
    (void)pthread_mutex_lock(&p->lock);
    (void)atomic_fetch_add(&p->sleepers, 1);
    while (!has_work(p) && !atomic_load(&p->stop)) {
        (void)pthread_cond_wait(&p->work, &p->lock);
    }
    (void)atomic_fetch_sub(&p->sleepers, 1);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *worker(void *opaque)
{
    const worker_slot *w = opaque;
    while (!atomic_load(&w->pool->stop)) {
        if (!spin_for_work(w->pool)) {
            sleep_for_work(w->pool);
        }
        drain(w->pool, w->thread);
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
    atomic_store(&p->ticket, (uint64_t)CLOSED);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->work, NULL);
    (void)pthread_cond_init(&p->finished, NULL);
    if (n_threads > 1) {
        size_t bytes = (n_threads - 1) * sizeof *p->workers;
        p->workers = kvs__alloc(ctx, bytes);
        if (!p->workers) {
            kvs__pool_free(p);
            return kvs__nomem(err, "base", bytes);
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
    uint64_t run = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&p->ticket, run << 32 | CLOSED); /* I2 */
    atomic_store_explicit(&p->n_items, n, memory_order_relaxed);
    atomic_store_explicit(&p->fn, fn, memory_order_relaxed);
    atomic_store_explicit(&p->arg, arg, memory_order_relaxed);
    atomic_store(&p->done, 0);
    atomic_store(&p->ticket, run << 32);
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
