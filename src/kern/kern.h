/* SPDX-License-Identifier: MIT */
/* kern.h: the kernel table. Pure functions on raw pointers; one table per set of tiers. */
#ifndef KVS_KERN_KERN_H
#define KVS_KERN_KERN_H

#include <stddef.h>
#include <stdint.h>

#include <stdbool.h>
#include <string.h>

#include "kvstate/codec.h"

/* Tokens of a K tile: one AVX-512 vector, two of AVX2, four of NEON. */
#define KVS__TILE 16u
/* Tokens of a softmax chunk on the grid of absolute positions; the unit that threads share out. */
#define KVS__CHUNK       256u
#define KVS__CHUNK_TILES (KVS__CHUNK / KVS__TILE)
/* Tiles of K and rows of V whose codes many queries read as pairs (pairs.h), out of scratch. */
#define KVS__PAIR_TILES 2u
#define KVS__PAIR_ROWS  32u

/* How one token's K or V of one head is stored. */
typedef struct kvs__shape {
    uint32_t dim;    /* elements of a head, a multiple of 8 */
    uint32_t bits;   /* 0: dense */
    uint32_t group;  /* affine: elements that share a scale */
    kvs_dtype dtype; /* of the elements (dense) or of scale and bias (affine) */
} kvs__shape;

/* Where it lies. Rows (V): data [n][dim] elements or [n][dim*bits/32] u32 words, scale and bias
 * [n][dim/group]. Tile (K): the same with 16 tokens innermost: data [dim or words][16], scale and
 * bias [dim/group][16]. */
typedef struct kvs__planes {
    const void *data;
    const void *scale; /* NULL when dense */
    const void *bias;
    /* Bytes (mod 2^64) from data, and from scale and bias, to what will be read some KiB later, for
     * storage that is not in one piece; 0: what follows. A hint to the memory, no value. */
    size_t far;
    size_t far_unit;
} kvs__planes;

/* Tokens of a recurrent scan: strides from one to the next. Delta: keys, queries, values, decay and
 * beta; SSD: B, C, x, decay and dt. */
typedef struct kvs__scan {
    const float *k; /* [n][dim] */
    const float *q; /* or NULL */
    const float *v; /* [n][rows] */
    const float *g; /* [n] */
    const float *b;
    size_t ldk, ldq, ldv, ldg;
    float skip; /* SSD: D */
} kvs__scan;

#define KVS_KERN(name, class_, ret, args) typedef ret(*kvs__##name##_fn) args;
#include "kern/kern.inc"
#undef KVS_KERN

typedef struct kvs__kern {
#define KVS_KERN(name, class_, ret, args) kvs__##name##_fn name;
#include "kern/kern.inc"
#undef KVS_KERN
} kvs__kern;

/* The table for a set of KVS_TIER_*; tables are made once and live for ever. */
const kvs__kern *kvs__kern_for(uint32_t tiers);

/* One global symbol per file: each overwrites the fields it has. */
void kvs__kern_init_ref(kvs__kern *k);
void kvs__kern_init_codec_avx2(kvs__kern *k);
void kvs__kern_init_codec_avx512(kvs__kern *k);
void kvs__kern_init_codec_neon(kvs__kern *k);
void kvs__kern_init_attn_avx2(kvs__kern *k);
void kvs__kern_init_attn_avx512(kvs__kern *k);
void kvs__kern_init_attn_neon(kvs__kern *k);

/* n elements of any dtype as f32, and back. */
static inline void kvs__kern_widen(const kvs__kern *k, float *dst, const void *src, kvs_dtype t,
                                   size_t n)
{
    if (t == KVS_F16) {
        k->f32_from_f16(dst, src, n);
    } else if (t == KVS_BF16) {
        k->f32_from_bf16(dst, src, n);
    } else {
        memcpy(dst, src, n * sizeof *dst);
    }
}

static inline void kvs__kern_narrow(const kvs__kern *k, void *dst, kvs_dtype t, const float *src,
                                    size_t n)
{
    if (t == KVS_F16) {
        k->f16_from_f32(dst, src, n);
    } else if (t == KVS_BF16) {
        k->bf16_from_f32(dst, src, n);
    } else {
        memcpy(dst, src, n * sizeof *src);
    }
}

/* 2^(-log2(block)/2) in f32. */
static inline float kvs__hadamard_scale(size_t block)
{
    float s = 1.0f;
    while (block >= 4) {
        s *= 0.5f;
        block /= 4;
    }
    return block == 2 ? s * 0x1.6a09e6p-1f : s;
}

#endif
