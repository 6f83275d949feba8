/* SPDX-License-Identifier: MIT */
/* wdispatch.c: builds the tables of wmat.h: the reference first, then each tier overwrites what it
 * has and this CPU too. Tables are built once and never change. */
#include <pthread.h>

#include "base/base.h"
#include "base/cpu.h"
#include "kern/tiers.h"
#include "kern/wmat.h"

static kvs__wkern tables[KVS__N_SETS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void build(void)
{
    for (int i = 0; i < KVS__N_SETS; i++) {
        kvs__wkern_init_ref(&tables[i]);
        kvs__wkern_init_vec_ref(&tables[i]);
    }
#if defined(KVS_NO_SIMD)
    /* the reference alone */
#elif defined(__x86_64__)
    /* the files of a tier are compiled for it, their init functions too */
    uint32_t cpu = kvs__cpu_detect();
    if (cpu & KVS_TIER_AVX2) {
        kvs__wkern_init_avx2(&tables[KVS__SET_AVX2]);
        kvs__wkern_init_vec_avx2(&tables[KVS__SET_AVX2]);
    }
    if (cpu & KVS_TIER_AVX512) {
        tables[KVS__SET_AVX512] = tables[KVS__SET_AVX2];
        kvs__wkern_init_avx512(&tables[KVS__SET_AVX512]);
    }
#elif defined(__aarch64__)
    kvs__wkern_init_neon(&tables[KVS__SET_NEON]);
    kvs__wkern_init_vec_neon(&tables[KVS__SET_NEON]);
#endif
}

const kvs__wkern *kvs__wkern_for(uint32_t tiers)
{
    (void)pthread_once(&once, build);
    return &tables[kvs__tier_set(tiers)];
}

size_t kvs__wmat_panel_rows(size_t k)
{
    size_t rows = KVS__WPANEL_BYTES / sizeof(float) / (k ? k : 1);
    rows = rows > KVS__WPANEL_ROWS ? KVS__WPANEL_ROWS : rows;
    rows = rows / KVS__WTILE_ROWS * KVS__WTILE_ROWS;
    return rows ? rows : KVS__WTILE_ROWS;
}

size_t kvs__wmat_scratch(size_t k)
{
    /* a panel of at least one tile of whole rows, and the lanes of its outputs for a tile of x */
    size_t padded = 0;
    size_t panel = 0;
    if (!kvs__align_size(k, 32, &padded) ||
        !kvs__mul_size(padded, KVS__WTILE_ROWS * sizeof(float), &panel)) {
        return SIZE_MAX;
    }
    panel = panel < KVS__WPANEL_BYTES ? KVS__WPANEL_BYTES : panel;
    size_t total = 0;
    size_t lanes = (size_t)KVS__WPANEL_ROWS * 8 * 16 * sizeof(float);
    return kvs__add_size(panel, lanes, &total) ? total : SIZE_MAX;
}
