/* SPDX-License-Identifier: MIT */
/* cpu.c: CPU features by CPUID and XGETBV (x86), hwcaps (Arm); the CPUs this process may use. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "base/cpu.h"

#include <stdbool.h>

#include <stdio.h>
#include <unistd.h>

#include "kvstate/base.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#if defined(__x86_64__) || defined(__i386__)
static uint64_t xgetbv0(void)
{
    uint32_t lo = 0;
    uint32_t hi = 0;
    __asm__ __volatile__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

uint32_t kvs__cpu_detect(void)
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return 0;
    }
    bool osxsave = (c >> 27) & 1u;
    bool fma = (c >> 12) & 1u;
    bool f16c = (c >> 29) & 1u;
    if (!osxsave) {
        return 0;
    }
    uint64_t xcr0 = xgetbv0();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return 0;
    }
    uint32_t tiers = 0;
    bool ymm = (xcr0 & 0x6u) == 0x6u;
    if (ymm && fma && f16c && ((b >> 5) & 1u)) {
        tiers |= KVS_TIER_AVX2;
    }
    bool zmm = (xcr0 & 0xe6u) == 0xe6u;
    unsigned need = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    bool vnni = (c >> 11) & 1u;
    if (tiers && zmm && vnni && (b & need) == need) {
        tiers |= KVS_TIER_AVX512;
    }
    return tiers;
}
#elif defined(__aarch64__)
uint32_t kvs__cpu_detect(void)
{
    return KVS_TIER_NEON; /* Advanced SIMD with FP16 conversion is part of the base architecture */
}
#else
uint32_t kvs__cpu_detect(void)
{
    return 0;
}
#endif

uint32_t kvs_cpu_tiers(void)
{
    return kvs__cpu_detect();
}

#if defined(__linux__)
/* CPUs granted by cgroup v2, rounded up; 0 where there is no quota or no such file. */
static uint32_t cgroup_quota(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f) {
        return 0;
    }
    unsigned long quota = 0;
    unsigned long period = 0;
    /* "max 100000" reads no number; a quota out of range only means no quota */
    int got = fscanf(f, "%lu %lu", &quota, &period); /* NOLINT(cert-err34-c) */
    (void)fclose(f);
    if (got != 2 || period == 0 || quota == 0) {
        return 0;
    }
    unsigned long n = (quota + period - 1) / period;
    return n > 4096 ? 4096 : (uint32_t)n;
}
#endif

uint32_t kvs__cpu_count(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        n = CPU_COUNT(&set);
    }
    uint32_t quota = cgroup_quota();
    if (quota > 0 && (long)quota < n) {
        n = (long)quota;
    }
#endif
    return n < 1 ? 1u : (uint32_t)n;
}
