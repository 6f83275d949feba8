/* SPDX-License-Identifier: MIT */
/* affine.h: scalar parts of the affine codes that the reference and the SIMD tiers share: reading a
 * code, and the decoded value of groups whose scale or bias is not finite. There the NaN matters:
 * sign and payload are fixed here, so that tiers and processors agree. With a finite scale and bias
 * no decode can make a NaN, so the SIMD tiers leave only such groups to these functions. */
#ifndef KVS_KERN_AFFINE_H
#define KVS_KERN_AFFINE_H

#include <math.h>
#include <stddef.h>

#include "base/half.h"
#include "kvstate/codec.h"

#define KVS__NAN_POSITIVE 0x7fc00000u
#define KVS__NAN_NEGATIVE 0xffc00000u /* what an invalid operation gives on x86 */

/* Code i of a bit stream: bits [i * bits, (i + 1) * bits), lowest first; words[stride * j]. */
static inline uint32_t kvs__code_at(const uint32_t *words, size_t stride, uint32_t bits, size_t i)
{
    size_t at = i * bits;
    uint32_t shift = (uint32_t)(at % 32);
    uint64_t w = words[(at / 32) * stride];
    if (shift + bits > 32) {
        w |= (uint64_t)words[(at / 32 + 1) * stride] << 32;
    }
    return (uint32_t)(w >> shift) & ((1u << bits) - 1);
}

static inline float kvs__load_elem(const void *p, kvs_dtype t, size_t i)
{
    if (t == KVS_F32) {
        return ((const float *)p)[i];
    }
    uint16_t h = ((const uint16_t *)p)[i];
    return t == KVS_F16 ? kvs__f16_to_f32(h) : kvs__bf16_to_f32(h);
}

static inline float kvs__round_to(kvs_dtype t, float x)
{
    if (t == KVS_F16) {
        return kvs__f16_to_f32(kvs__f16_from_f32(x));
    }
    return t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x)) : x;
}

/* Rounds to T the way MLX stores: a NaN becomes 0x7fc0 in bf16, sign | 0x7d00 in f16, and is quiet
 * in f32. Other values as the general conversion. */
static inline uint16_t kvs__f16_store_mlx(float x)
{
    uint16_t sign = (uint16_t)(kvs__bits_f32(x) >> 16 & 0x8000u);
    return x != x ? (uint16_t)(sign | 0x7d00u) : kvs__f16_from_f32(x);
}

static inline uint16_t kvs__bf16_store_mlx(float x)
{
    return x != x ? (uint16_t)0x7fc0u : kvs__bf16_from_f32(x);
}

static inline void kvs__store_mlx(void *p, kvs_dtype t, size_t i, float x)
{
    if (t == KVS_F32) {
        ((float *)p)[i] = x != x ? kvs__f32_bits(kvs__bits_f32(x) | 0x400000u) : x;
    } else {
        ((uint16_t *)p)[i] = t == KVS_F16 ? kvs__f16_store_mlx(x) : kvs__bf16_store_mlx(x);
    }
}

/* fma(code, scale, bias) with one NaN. */
static inline float kvs__affine_value(uint32_t code, float scale, float bias)
{
    float x = fmaf((float)code, scale, bias);
    return x != x ? kvs__f32_bits(KVS__NAN_POSITIVE) : x;
}

/* T(code * scale) + bias, the last rounding left to the store. A NaN is as x86 makes it: that of
 * the first operand that is one, else the negative one of an invalid operation. */
static inline float kvs__affine_value_mlx(uint32_t code, float scale, float bias, kvs_dtype t)
{
    float product = kvs__round_to(t, (float)code * scale);
    float x = product + bias;
    if (x == x) {
        return x;
    }
    if (scale != scale) {
        return scale;
    }
    return product == product && bias != bias ? bias : kvs__f32_bits(KVS__NAN_NEGATIVE);
}

static inline void kvs__affine_group(float *dst, const uint32_t *words, float scale, float bias,
                                     uint32_t bits, uint32_t group)
{
    for (uint32_t i = 0; i < group; i++) {
        dst[i] = kvs__affine_value(kvs__code_at(words, 1, bits, i), scale, bias);
    }
}

static inline void kvs__affine_group_mlx(void *dst, size_t at, const uint32_t *words, float scale,
                                         float bias, uint32_t bits, uint32_t group, kvs_dtype t)
{
    for (uint32_t i = 0; i < group; i++) {
        uint32_t code = kvs__code_at(words, 1, bits, i);
        kvs__store_mlx(dst, t, at + i, kvs__affine_value_mlx(code, scale, bias, t));
    }
}

#endif
