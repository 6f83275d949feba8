/* SPDX-License-Identifier: MIT */
/* limits.h: what the benches share: clocks, medians, numbers to work on, the machine's limits
 * measured in the run (read bandwidth, f32 FMA peak of a tier) and the CSV lines
 * `bench,case,value,unit,limit,ratio`. ratio = value / limit; both empty where there is no limit. */
#ifndef KVS_BENCH_LIMITS_H
#define KVS_BENCH_LIMITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "kvstate/base.h"

static FILE *bench_csv;
static const char *bench_name;

__attribute__((unused)) static double bench_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* CPU time of the calling thread. */
__attribute__((unused)) static double bench_cpu_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A bench that cannot do what it measures ends. */
__attribute__((unused)) static void bench_must(kvs_status st, const char *what)
{
    if (st < KVS_OK) {
        (void)fprintf(stderr, "%s: %s\n", what, kvs_status_name(st));
        exit(1);
    }
}

__attribute__((unused)) static void bench_check(kvs_status st, const kvs_err *err)
{
    bench_must(st, err->msg);
}

/* Numbers in [-1, 1), the same in each run. */
__attribute__((unused)) static void bench_fill(float *x, size_t n)
{
    uint64_t s = 42;
    for (size_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(s >> 32) * 0x1p-31f;
    }
}

static int bench_cmp(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

__attribute__((unused)) static double bench_median(double *x, size_t n)
{
    qsort(x, n, sizeof *x, bench_cmp);
    return x[n / 2];
}

/* limit 0: none. */
static void bench_line(const char *what, double value, const char *unit, double limit)
{
    char tail[64] = ",";
    if (limit > 0) {
        (void)snprintf(tail, sizeof tail, "%.4g,%.3f", limit, value / limit);
    }
    if (limit > 0) {
        printf("%-44s %10.4g %-10s of %8.4g = %5.1f %%\n", what, value, unit, limit,
               100 * value / limit);
    } else {
        printf("%-44s %10.4g %s\n", what, value, unit);
    }
    (void)fflush(stdout);
    if (bench_csv) {
        const char *quote = strchr(what, ',') ? "\"" : ""; /* RFC 4180 */
        (void)fprintf(bench_csv, "%s,%s%s%s,%.6g,%s,%s\n", bench_name, quote, what, quote, value,
                      unit, tail);
        (void)fflush(bench_csv);
    }
}

/* Takes `--csv FILE` out of argv; false on a usage error. */
static bool bench_start(const char *name, int *argc, char **argv)
{
    int kept = 1;
    bench_name = name;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--csv") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == *argc || !(bench_csv = fopen(argv[++i], "a"))) {
            (void)fprintf(stderr, "--csv needs a file that can be written\n");
            return false;
        }
        if (fseek(bench_csv, 0, SEEK_END) == 0 && ftell(bench_csv) == 0) {
            (void)fprintf(bench_csv, "bench,case,value,unit,limit,ratio\n");
        }
    }
    *argc = kept;
    return true;
}

typedef struct bench_read_arg {
    const uint64_t *p;
    size_t n;
    uint64_t sum;
} bench_read_arg;

static void *bench_read_thread(void *opaque)
{
    bench_read_arg *a = opaque;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= a->n; i += 8) {
        for (size_t l = 0; l < 8; l++) {
            s[l] ^= a->p[i + l];
        }
    }
    for (size_t l = 0; l < 8; l++) {
        a->sum ^= s[l];
    }
    return NULL;
}

/* Memory in huge pages where the system has them, as the library's own: what it can be read at is
 * the limit. */
__attribute__((unused)) static void *bench_pages(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, KVS__HUGE_PAGE, bytes) != 0) {
        abort();
    }
    kvs__map_huge(p, bytes);
    return p;
}

/* Bytes/s that n_threads (<= 64) read from memory: the best of `rounds` passes over `bytes` each (a
 * limit is what the machine can do, not what a neighbour left of it). */
__attribute__((unused)) static double bench_read_rate(uint32_t n_threads, size_t bytes, int rounds)
{
    static uint64_t *buf[64];
    static size_t have;
    double t[16];
    if (have != bytes) {
        for (uint32_t i = 0; i < 64; i++) {
            free(buf[i]);
            buf[i] = NULL;
        }
        have = bytes;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        if (!buf[i]) {
            buf[i] = bench_pages(bytes);
            memset(buf[i], (int)i + 1, bytes);
        }
    }
    for (int r = 0; r < rounds && r < 16; r++) {
        pthread_t id[64];
        bench_read_arg a[64];
        double start = bench_now();
        for (uint32_t i = 0; i < n_threads; i++) {
            a[i] = (bench_read_arg){buf[i], bytes / sizeof(uint64_t), 0};
            if (i + 1 < n_threads) {
                (void)pthread_create(&id[i], NULL, bench_read_thread, &a[i]);
            } else {
                (void)bench_read_thread(&a[i]);
            }
        }
        for (uint32_t i = 0; i + 1 < n_threads; i++) {
            (void)pthread_join(id[i], NULL);
        }
        t[r] = bench_now() - start;
    }
    (void)bench_median(t, (size_t)rounds);
    return (double)bytes * n_threads / t[0];
}

#define BENCH_FMA_STEPS 4000000L

/* Twelve chains in registers: two FMA ports times four to six cycles of latency. */
#define BENCH_TWELVE(op, r)                                                                        \
    op(r, 0) op(r, 1) op(r, 2) op(r, 3) op(r, 4) op(r, 5) op(r, 6) op(r, 7) op(r, 8) op(r, 9)      \
        op(r, 10) op(r, 11)
#define BENCH_ZERO(r, i) "vxorps %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n\t"
#define BENCH_FMA(r, i)  "vfmadd231ps %%" r "13, %%" r "13, %%" r #i "\n\t"
#define BENCH_LOOP(r)                                                                              \
    long n = BENCH_FMA_STEPS;                                                                      \
    __asm__ volatile(                                                                              \
        BENCH_TWELVE(BENCH_ZERO, r) "vxorps %%xmm13, %%xmm13, %%xmm13\n"                           \
                                    "1:\n\t" BENCH_TWELVE(BENCH_FMA, r) "dec %0\n\tjnz 1b"         \
        : "+r"(n)                                                                                  \
        :                                                                                          \
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
          "xmm11", "xmm13", "cc")

#if defined(__x86_64__)
static void bench_fma_avx2(void)
{
    BENCH_LOOP("ymm");
}

static void bench_fma_avx512(void)
{
    BENCH_LOOP("zmm");
}
#endif

static void *bench_fma_thread(void *tiers)
{
#if defined(__x86_64__)
    if (*(uint32_t *)tiers & KVS_TIER_AVX512) {
        bench_fma_avx512();
    } else if (*(uint32_t *)tiers & KVS_TIER_AVX2) {
        bench_fma_avx2();
    }
#else
    (void)tiers;
#endif
    return NULL;
}

/* f32 FLOP/s (2 per FMA) of n_threads in the widest of `tiers`; 0 where it is not known. */
__attribute__((unused)) static double bench_fma_peak(uint32_t tiers, uint32_t n_threads)
{
    double t[5];
    double lanes = tiers & KVS_TIER_AVX512 ? 16 : tiers & KVS_TIER_AVX2 ? 8 : 0;
    for (int r = 0; r < 5; r++) {
        pthread_t id[64];
        double start = bench_now();
        for (uint32_t i = 0; i + 1 < n_threads; i++) {
            (void)pthread_create(&id[i], NULL, bench_fma_thread, &tiers);
        }
        (void)bench_fma_thread(&tiers);
        for (uint32_t i = 0; i + 1 < n_threads; i++) {
            (void)pthread_join(id[i], NULL);
        }
        t[r] = bench_now() - start;
    }
    (void)bench_median(t, 5); /* sorts: t[0] is the best */
    return lanes * 2 * 12 * (double)BENCH_FMA_STEPS * n_threads / t[0];
}

__attribute__((unused)) static const char *bench_tier_name(uint32_t tiers)
{
    return tiers & KVS_TIER_AVX512 ? "avx512"
           : tiers & KVS_TIER_AVX2 ? "avx2"
           : tiers & KVS_TIER_NEON ? "neon"
                                   : "ref";
}

#endif
