/* SPDX-License-Identifier: MIT */
/* dispatch.c: builds the kernel table of a set of tiers: the reference first, then each tier
 * overwrites what it has, of those that this CPU has. Built once, never changed. */
#include <pthread.h>

#include "base/cpu.h"
#include "kern/kern.h"
#include "kern/tiers.h"

static kvs__kern tables[KVS__N_SETS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(void)
{
    for (int i = 0; i < KVS__N_SETS; i++) {
        kvs__kern_init_ref(&tables[i]);
    }
#if defined(KVS_NO_SIMD)
    /* the reference alone */
#elif defined(__x86_64__)
    /* the files of a tier are compiled for it, their init functions too */
    uint32_t cpu = kvs__cpu_detect();
    if (cpu & KVS_TIER_AVX2) {
        kvs__kern_init_codec_avx2(&tables[KVS__SET_AVX2]);
        kvs__kern_init_attn_avx2(&tables[KVS__SET_AVX2]);
    }
    if (cpu & KVS_TIER_AVX512) {
        tables[KVS__SET_AVX512] = tables[KVS__SET_AVX2];
        kvs__kern_init_codec_avx512(&tables[KVS__SET_AVX512]);
        kvs__kern_init_attn_avx512(&tables[KVS__SET_AVX512]);
    }
#elif defined(__aarch64__)
    kvs__kern_init_codec_neon(&tables[KVS__SET_NEON]);
    kvs__kern_init_attn_neon(&tables[KVS__SET_NEON]);
#endif
}

const kvs__kern *kvs__kern_for(uint32_t tiers)
{
    (void)pthread_once(&once, build);
    return &tables[kvs__tier_set(tiers)];
}
