/* SPDX-License-Identifier: MIT */
/* bench.c: times one kernel at a time on one pinned CPU. A measurement is the median of many short
 * batches of CPU time, so that a busy machine moves it little. The limit printed beside bytes/s is
 * memcpy's read + write rate over a footprint that the first-level cache holds, measured in the
 * same run; beside elements/s of affine encode, which must divide each element, the rate at which
 * the tier's vectors are divided and do nothing else. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__linux__)
#include <sched.h>
#endif

#include "base/base.h"
#include "kcheck.h"

enum { SLOTS = 6, SLOT_BYTES = 256 * 1024, BATCHES = 41, COPY_BYTES = 8192 };

static _Alignas(64) uint8_t slots[SLOTS][SLOT_BYTES];

static double now(void)
{
    struct timespec ts = {0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median seconds of one call. */
static double time_call(const kc_bench *b, kc_call call, void *const *p, const kc_arg *a)
{
    double t[BATCHES];
    size_t reps = 1;
    for (;;) { /* batches long against the clock's grain */
        double start = now();
        for (size_t i = 0; i < reps; i++) {
            call(b->k, p, a);
        }
        if (now() - start > b->seconds / BATCHES || reps > (size_t)1 << 30) {
            break;
        }
        reps *= 2;
    }
    for (size_t j = 0; j < BATCHES; j++) {
        double start = now();
        for (size_t i = 0; i < reps; i++) {
            call(b->k, p, a);
        }
        t[j] = (now() - start) / (double)reps;
    }
    qsort(t, BATCHES, sizeof t[0], by_value);
    return t[BATCHES / 2];
}

static void call_copy(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    (void)k;
    memcpy(p[0], p[1], a->n);
    __asm__ __volatile__("" : : "r"(p[0]) : "memory");
}

/* Divides n floats by a constant with vectors of `bytes`. */
#define DIVIDE(name, bytes, attribute)                                                             \
    attribute static void name(const kvs__kern *k, void *const *p, const kc_arg *a)                \
    {                                                                                              \
        typedef float vec __attribute__((vector_size(bytes)));                                     \
        (void)k;                                                                                   \
        const vec *x = p[0];                                                                       \
        vec *y = p[1];                                                                             \
        for (size_t i = 0; i < a->n * 4 / (bytes); i++) {                                          \
            y[i] = x[i] / a->f0;                                                                   \
        }                                                                                          \
    }
DIVIDE(divide_16, 16, )
#if defined(__x86_64__)
DIVIDE(divide_32, 32, __attribute__((target("avx2"))))
DIVIDE(divide_64, 64, __attribute__((target("avx512f"))))
#else
#define divide_32 divide_16
#define divide_64 divide_16
#endif

double kc_bench_divide_rate(const kc_bench *b)
{
    bool wide = strcmp(b->tier, "avx512") == 0;
    kc_call call = wide ? divide_64 : strcmp(b->tier, "avx2") == 0 ? divide_32 : divide_16;
    kc_arg a = {.n = COPY_BYTES / 4, .f0 = 1.1f};
    void *p[] = {kc_bench_buffer(0, COPY_BYTES), kc_bench_buffer(1, COPY_BYTES)};
    return (double)a.n / time_call(b, call, p, &a);
}

void kc_bench_init(kc_bench *b)
{
#if defined(__linux__)
    int cpu = sched_getcpu();
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu < 0 ? 0u : (unsigned)cpu, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
#endif
    b->seconds = 0.1;
    kc_arg a = {.n = COPY_BYTES};
    void *p[] = {kc_bench_buffer(0, COPY_BYTES), kc_bench_buffer(1, COPY_BYTES)};
    b->copy_rate = 2.0 * COPY_BYTES / time_call(b, call_copy, p, &a);
    (void)printf("memcpy in the first-level cache: %.1f GB/s read + write\n", b->copy_rate * 1e-9);
}

void *kc_bench_buffer(size_t slot, size_t bytes)
{
    if (slot >= SLOTS || bytes > SLOT_BYTES) {
        abort();
    }
    kc_rng r = {slot + 1};
    for (size_t i = 0; i < SLOT_BYTES / 4; i++) {
        /* as two halves the patterns are tame too: exponents near one, in f16, bf16 and f32 */
        uint32_t z = (uint32_t)kc_u64(&r);
        uint32_t u = (z & 0x83ff83ffu) | 0x3c003c00u;
        memcpy(slots[slot] + 4 * i, &u, sizeof u);
    }
    return slots[slot];
}

void kc_bench_run(kc_bench *b, const char *what, kc_call call, void *const *p, const kc_arg *a,
                  double elems, double bytes)
{
    double s = time_call(b, call, p, a);
    char name[96];
    (void)snprintf(name, sizeof name, "%s/%s%s%s", b->tier, b->kernel, *what ? "/" : "", what);
    double ge = elems / s * 1e-9;
    double gb = bytes / s * 1e-9;
    double limit = b->copy_rate * 1e-9;
    double elem_limit = b->elem_rate * 1e-9;
    (void)printf("%-44s %8.3f Gelem/s %8.2f GB/s  %5.2f of memcpy", name, ge, gb, gb / limit);
    if (elem_limit > 0) {
        (void)printf(", %5.2f of %.1f Gelem/s", ge / elem_limit, elem_limit);
    }
    (void)printf("\n");
    if (b->csv && elem_limit > 0) {
        (void)fprintf(b->csv, "kcheck,%s,%.4f,Gelem/s,%.4f,%.3f\n", name, ge, elem_limit,
                      ge / elem_limit);
    } else if (b->csv) {
        (void)fprintf(b->csv, "kcheck,%s,%.4f,Gelem/s,,\n", name, ge);
    }
    if (b->csv) {
        (void)fprintf(b->csv, "kcheck,%s,%.3f,GB/s,%.3f,%.3f\n", name, gb, limit, gb / limit);
    }
    (void)fflush(stdout);
}
