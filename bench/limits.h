/* SPDX-License-Identifier: MIT */
/* limits.h: what the benches share: the clock, medians, the machine's limits measured in the run
 * (read bandwidth, f32 FMA peak of a tier) and the CSV lines `bench,case,value,unit,limit,ratio`.
 * ratio = value / limit; both empty where there is no limit. */
#ifndef KVS_BENCH_LIMITS_H
#define KVS_BENCH_LIMITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kvstate/base.h"

static FILE *bench_csv;
static const char *bench_name;

__attribute__((unused)) static double bench_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
        (void)fprintf(bench_csv, "%s,%s,%.6g,%s,%s\n", bench_name, what, value, unit, tail);
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

/* Bytes/s that n_threads (<= 64) read from memory; median of `rounds` passes over `bytes` each. */
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
            buf[i] = aligned_alloc(64, bytes);
            if (!buf[i]) {
                abort();
            }
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
    return (double)bytes * n_threads / bench_median(t, (size_t)rounds);
}

#define BENCH_FMA_STEPS 4000000L

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void bench_fma_avx2(void)
{
    __m256 x[12];
    __m256 c = _mm256_set1_ps(0.999f);
    for (int i = 0; i < 12; i++) {
        x[i] = _mm256_set1_ps((float)i);
    }
    for (long n = 0; n < BENCH_FMA_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            x[i] = _mm256_fmadd_ps(x[i], c, c);
            __asm__ volatile("" : "+x"(x[i]));
        }
    }
}

__attribute__((target("avx512f"))) static void bench_fma_avx512(void)
{
    __m512 x[12];
    __m512 c = _mm512_set1_ps(0.999f);
    for (int i = 0; i < 12; i++) {
        x[i] = _mm512_set1_ps((float)i);
    }
    for (long n = 0; n < BENCH_FMA_STEPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            x[i] = _mm512_fmadd_ps(x[i], c, c);
            __asm__ volatile("" : "+v"(x[i]));
        }
    }
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
    return lanes * 2 * 12 * (double)BENCH_FMA_STEPS * n_threads / bench_median(t, 5);
}

__attribute__((unused)) static const char *bench_tier_name(uint32_t tiers)
{
    return tiers & KVS_TIER_AVX512 ? "avx512"
           : tiers & KVS_TIER_AVX2 ? "avx2"
           : tiers & KVS_TIER_NEON ? "neon"
                                   : "ref";
}

#endif
