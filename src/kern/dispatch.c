/* SPDX-License-Identifier: MIT */
/* dispatch.c: builds the kernel table of a set of tiers: the reference first, then each tier
 * overwrites what it has, of those that this CPU has. Built once, never changed. */
#include <pthread.h>

#include "base/cpu.h"
#include "kern/kern.h"
#include "kvstate/base.h"

enum { SET_REF, SET_AVX2, SET_AVX512, SET_NEON, N_SETS };

static kvs__kern tables[N_SETS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(void)
{
    for (int i = 0; i < N_SETS; i++) {
        kvs__kern_init_ref(&tables[i]);
    }
#if defined(KVS_NO_SIMD)
    /* the reference alone */
#elif defined(__x86_64__)
    /* the files of a tier are compiled for it, their init functions too */
    uint32_t cpu = kvs__cpu_detect();
    if (cpu & KVS_TIER_AVX2) {
        kvs__kern_init_codec_avx2(&tables[SET_AVX2]);
        kvs__kern_init_attn_avx2(&tables[SET_AVX2]);
    }
    if (cpu & KVS_TIER_AVX512) {
        tables[SET_AVX512] = tables[SET_AVX2];
        kvs__kern_init_codec_avx512(&tables[SET_AVX512]);
        kvs__kern_init_attn_avx512(&tables[SET_AVX512]);
    }
#elif defined(__aarch64__)
    kvs__kern_init_codec_neon(&tables[SET_NEON]);
    kvs__kern_init_attn_neon(&tables[SET_NEON]);
#endif
}

const kvs__kern *kvs__kern_for(uint32_t tiers)
{
    (void)pthread_once(&once, build);
    if (tiers & KVS_TIER_NEON) {
        return &tables[SET_NEON];
    }
    if (tiers & KVS_TIER_AVX512) {
        return &tables[SET_AVX512];
    }
    return &tables[tiers & KVS_TIER_AVX2 ? SET_AVX2 : SET_REF];
}
