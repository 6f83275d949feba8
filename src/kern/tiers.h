/* SPDX-License-Identifier: MIT */
/* tiers.h: the sets of tiers that a kernel table is built for, and which of them serves a caller. */
#ifndef KVS_KERN_TIERS_H
#define KVS_KERN_TIERS_H

#include <stdint.h>

#include "kvstate/base.h"

/* AVX-512 stands on AVX2; a CPU has one of the x86 tiers or NEON. */
enum { KVS__SET_REF, KVS__SET_AVX2, KVS__SET_AVX512, KVS__SET_NEON, KVS__N_SETS };

/* The best set within `tiers` (KVS_TIER_*). */
static inline int kvs__tier_set(uint32_t tiers)
{
    return tiers & KVS_TIER_NEON     ? KVS__SET_NEON
           : tiers & KVS_TIER_AVX512 ? KVS__SET_AVX512
           : tiers & KVS_TIER_AVX2   ? KVS__SET_AVX2
                                     : KVS__SET_REF;
}

#endif
