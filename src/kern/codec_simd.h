/* SPDX-License-Identifier: MIT */
/* codec_simd.h: the codec kernels over a handful of vector primitives. codec_avx2.c, codec_avx512.c
 * and codec_neon.c define the primitives (listed below) and include this file, which defines static
 * kernels and codec_init. Nothing here is faster than its order allows: every operation, its order
 * within an element and its rounding are those of kern_ref.c.
 *
 * Types: vf, VW floats; vm, a comparison of them; v32, 32 codes as bytes; v32_stream, 32 packed.
 *   vf_ld vf_st vf_set vf_add vf_sub vf_mul vf_div vf_fma vf_rint vf_abs vf_neg
 *   vf_min(x, acc), vf_max(x, acc): x if x < (>) acc, else acc; so a NaN x is passed over
 *   vf_hmin vf_hmax: of all lanes, no NaN there
 *   vm_lt vm_gt vm_nan: vm;  vf_sel(m, a, b): a where m
 *   vf_butterfly(x, h): lanes with bit h clear: x + partner, else partner - x; h a constant
 *   vf_from_f16 vf_from_bf16 vf_store_f16 vf_store_bf16: VW halves, conversion as base/half.h
 *   vf_round_f16 vf_round_bf16: to the nearest half and back; x is no NaN
 *   v32_codes(q, top): a v32 of q[32 / VW], rounded to nearest even; NaN and less than 0 give 0,
 *   more than top gives top; |q| < 2^15
 *   v32_pack(words, c, bits): writes exactly `bits` words
 *   v32_load(p, bits, left): a v32_stream of the 4 * bits bytes at p, where `left` may be read
 *   v32_values(c, bits, j): codes j * VW ... as vf
 * `bits` is a constant wherever it is passed. */
#ifndef KVS_KERN_CODEC_SIMD_H
#define KVS_KERN_CODEC_SIMD_H

#include <math.h>
#include <stdbool.h>

#include "kern/affine.h"
#include "kern/kern.h"
#include "kern/math.h"

/* Loops over a run must be unrolled: the vector's number selects constants. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum {
    Q = 32 / VW /* vectors of a run of 32 elements, which every group is a multiple of */
};

/* -- conversion */

static void f32_from_f16(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_st(dst + i, vf_from_f16(src + i));
    }
    for (; i < n; i++) {
        dst[i] = kvs__f16_to_f32(src[i]);
    }
}

static void f32_from_bf16(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_st(dst + i, vf_from_bf16(src + i));
    }
    for (; i < n; i++) {
        dst[i] = kvs__bf16_to_f32(src[i]);
    }
}

static void f16_from_f32(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_store_f16(dst + i, vf_ld(src + i));
    }
    for (; i < n; i++) {
        dst[i] = kvs__f16_from_f32(src[i]);
    }
}

static void bf16_from_f32(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_store_bf16(dst + i, vf_ld(src + i));
    }
    for (; i < n; i++) {
        dst[i] = kvs__bf16_from_f32(src[i]);
    }
}

/* -- rotation: the levels below VW within a register, the others two a pass over the block */

/* The last step of the last pass: the norm, and one NaN. */
INLINE vf finish(vf x, vf scale, bool last)
{
    if (!last) {
        return x;
    }
    x = vf_mul(x, scale);
    return vf_sel(vm_nan(x), vf_set(kvs__f32_bits(KVS__NAN_BITS)), x);
}

INLINE vf levels_in_register(vf x, size_t block)
{
    x = block > 1 ? vf_butterfly(x, 1) : x;
    x = block > 2 ? vf_butterfly(x, 2) : x;
#if VW > 4
    x = block > 4 ? vf_butterfly(x, 4) : x;
#endif
#if VW > 8
    x = block > 8 ? vf_butterfly(x, 8) : x;
#endif
    return x;
}

/* Two levels, of distance h and 2 h, over x[0], x[h], x[2 h], x[3 h]. */
INLINE void two_levels(float *x, size_t h, vf a, vf b, vf c, vf d, vf scale, bool last)
{
    vf ab = vf_add(a, b);
    vf a_b = vf_sub(a, b);
    vf cd = vf_add(c, d);
    vf c_d = vf_sub(c, d);
    vf_st(x, finish(vf_add(ab, cd), scale, last));
    vf_st(x + h, finish(vf_add(a_b, c_d), scale, last));
    vf_st(x + 2 * h, finish(vf_sub(ab, cd), scale, last));
    vf_st(x + 3 * h, finish(vf_sub(a_b, c_d), scale, last));
}

INLINE void first_pass(float *x, size_t block, vf scale, bool last)
{
    for (size_t i = 0; i < block; i += 4 * VW) {
        vf a = levels_in_register(vf_ld(x + i), VW);
        vf b = levels_in_register(vf_ld(x + i + VW), VW);
        vf c = levels_in_register(vf_ld(x + i + 2 * VW), VW);
        vf d = levels_in_register(vf_ld(x + i + 3 * VW), VW);
        two_levels(x + i, VW, a, b, c, d, scale, last);
    }
}

INLINE void next_pass(float *x, size_t block, size_t h, vf scale, bool last)
{
    for (size_t i = 0; i < block; i += 4 * h) {
        for (size_t j = i; j < i + h; j += VW) {
            two_levels(x + j, h, vf_ld(x + j), vf_ld(x + j + h), vf_ld(x + j + 2 * h),
                       vf_ld(x + j + 3 * h), scale, last);
        }
    }
}

/* One level of distance block / 2. */
static void last_level(float *x, size_t block, vf scale)
{
    size_t h = block / 2;
    for (size_t j = 0; j < h; j += VW) {
        vf a = vf_ld(x + j);
        vf b = vf_ld(x + j + h);
        vf_st(x + j, finish(vf_add(a, b), scale, true));
        vf_st(x + j + h, finish(vf_sub(a, b), scale, true));
    }
}

/* block >= 4 VW */
static void hadamard_large(float *x, size_t block, vf scale)
{
    size_t h = 4 * VW;
    if (h == block) {
        first_pass(x, block, scale, true);
        return;
    }
    first_pass(x, block, scale, false);
    for (; 4 * h < block; h *= 4) {
        next_pass(x, block, h, scale, false);
    }
    if (4 * h == block) {
        next_pass(x, block, h, scale, true);
    } else {
        last_level(x, block, scale);
    }
}

/* VW < block < 4 VW: 2 VW */
static void hadamard_pair(float *x, vf scale)
{
    vf a = levels_in_register(vf_ld(x), VW);
    vf b = levels_in_register(vf_ld(x + VW), VW);
    vf_st(x, finish(vf_add(a, b), scale, true));
    vf_st(x + VW, finish(vf_sub(a, b), scale, true));
}

static void hadamard_scalar(float *x, size_t block)
{
    float scale = kvs__hadamard_scale(block);
    for (size_t h = 1; h < block; h *= 2) {
        for (size_t i = 0; i < block; i++) {
            if (!(i & h)) {
                float lo = x[i];
                float hi = x[i + h];
                x[i] = lo + hi;
                x[i + h] = lo - hi;
            }
        }
    }
    for (size_t i = 0; i < block; i++) {
        float y = x[i] * scale;
        x[i] = y != y ? kvs__f32_bits(KVS__NAN_BITS) : y;
    }
}

static void hadamard(float *x, size_t n_blocks, size_t block)
{
    vf scale = vf_set(kvs__hadamard_scale(block));
    if (block > VW) {
        for (size_t b = 0; b < n_blocks; b++, x += block) {
            if (block == 2 * VW) {
                hadamard_pair(x, scale);
            } else {
                hadamard_large(x, block, scale);
            }
        }
        return;
    }
    size_t n = n_blocks * block; /* a vector holds whole blocks */
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_st(x + i, finish(levels_in_register(vf_ld(x + i), block), scale, true));
    }
    for (; i < n; i += block) {
        hadamard_scalar(x + i, block);
    }
}

/* The switch makes `bits` a constant in each copy of f. */
#define EACH_BITS(bits, f, ...)                                                                    \
    switch (bits) {                                                                                \
    case 2:                                                                                        \
        f(2u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 3:                                                                                        \
        f(3u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 4:                                                                                        \
        f(4u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 5:                                                                                        \
        f(5u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    case 6:                                                                                        \
        f(6u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    default:                                                                                       \
        f(8u, __VA_ARGS__);                                                                        \
        break;                                                                                     \
    }

/* -- affine encode: the ranges of VW groups, their scales together, then the codes of each */

static void group_range(const float *x, uint32_t group, float *lo, float *hi)
{
    vf lo0 = vf_set(HUGE_VALF);
    vf hi0 = vf_set(-HUGE_VALF);
    vf lo1 = lo0;
    vf hi1 = hi0;
    for (uint32_t i = 0; i < group; i += 2 * VW) {
        vf a = vf_ld(x + i);
        vf b = vf_ld(x + i + VW);
        lo0 = vf_min(a, lo0);
        hi0 = vf_max(a, hi0);
        lo1 = vf_min(b, lo1);
        hi1 = vf_max(b, hi1);
    }
    *lo = vf_hmin(vf_min(lo0, lo1));
    *hi = vf_hmax(vf_max(hi0, hi1));
}

/* As group_scale in kern_ref.c, a group a lane. */
static void group_scales(const float *lo_, const float *hi_, float n_codes, float *scale,
                         float *bias)
{
    vf zero = vf_set(0.0f);
    vf eps = vf_set(1e-7f);
    vf lo = vf_ld(lo_);
    vf hi = vf_ld(hi_);
    vf range = vf_sub(hi, lo);
    vm low_side = vm_gt(vf_abs(lo), vf_abs(hi));
    vf s = vf_div(range, vf_set(n_codes));
    s = vf_sel(vm_lt(s, eps), eps, s);
    s = vf_sel(low_side, s, vf_neg(s));
    vf edge = vf_sel(low_side, lo, hi);
    vf q0 = vf_rint(vf_div(edge, s));
    vf stretched = vf_div(edge, q0);
    vm below = vm_lt(vf_abs(q0), vf_set(0.5f)); /* q0 == 0; false for a NaN */
    s = vf_sel(below, s, stretched);
    vf nan = vf_sel(vm_nan(range), vf_set(kvs__f32_bits(KVS__NAN_POSITIVE)),
                    vf_set(kvs__f32_bits(KVS__NAN_NEGATIVE)));
    vf_st(scale, vf_sel(vm_nan(s), nan, s));
    vf_st(bias, vf_sel(below, zero, edge));
}

/* The quotient is at most twice the greatest code (the scale is stretched by less than that), or
 * NaN, so that the clamp can wait until codes are integers. */
INLINE void group_codes(const float *x, uint32_t group, float scale_, float bias_, uint32_t *words,
                        uint32_t bits)
{
    vf scale = vf_set(scale_);
    vf bias = vf_set(bias_);
    for (uint32_t i = 0; i < group; i += 32, words += bits) {
        vf q[Q];
        UNROLL
        for (int j = 0; j < Q; j++) {
            q[j] = vf_div(vf_sub(vf_ld(x + i + j * VW), bias), scale);
        }
        v32_pack(words, v32_codes(q, (1u << bits) - 1), bits);
    }
}

/* Scales and biases of the first VW groups at x, or of all n_groups. Returns how many. */
static size_t batch_scales(const float *x, size_t n_groups, uint32_t group, float n_codes,
                           float *scale, float *bias)
{
    size_t n = n_groups < VW ? n_groups : VW;
    if (n == 0) {
        return 0;
    }
    float lo[VW] = {0};
    float hi[VW] = {0};
    for (size_t i = 0; i < n; i++) {
        group_range(x + i * group, group, &lo[i], &hi[i]);
    }
    group_scales(lo, hi, n_codes, scale, bias);
    return n;
}

/* The scales of the next batch are begun before the codes of this one: their chain of divisions is
 * long, and the two have nothing to do with each other. */
INLINE void encode(uint32_t bits, const float *x, size_t n_groups, uint32_t group, uint32_t *words,
                   float *scale, float *bias)
{
    size_t group_words = (size_t)group * bits / 32;
    float n_codes = (float)((1u << bits) - 1);
    float s[2][VW];
    float b[2][VW];
    size_t next = batch_scales(x, n_groups, group, n_codes, s[0], b[0]);
    for (int turn = 0; next > 0; turn ^= 1) {
        size_t n = next;
        n_groups -= n;
        next = batch_scales(x + n * group, n_groups, group, n_codes, s[turn ^ 1], b[turn ^ 1]);
        for (size_t i = 0; i < n; i++, x += group, words += group_words) {
            *scale++ = s[turn][i];
            *bias++ = b[turn][i];
            group_codes(x, group, s[turn][i], b[turn][i], words, bits);
        }
    }
}

static void affine_encode(const float *x, size_t n_groups, uint32_t bits, uint32_t group,
                          uint32_t *words, float *scale, float *bias){
    EACH_BITS(bits, encode, x, n_groups, group, words, scale, bias)}

/* -- affine decode. A group whose scale or bias is not finite may make NaN: to the scalar form. */

INLINE bool is_finite(float x)
{
    return (kvs__bits_f32(x) & 0x7f800000u) != 0x7f800000u;
}

INLINE void decode(uint32_t bits, float *dst, const uint32_t *words, const float *scale,
                   const float *bias, size_t n_groups, uint32_t group)
{
    size_t left = n_groups * group * bits / 8; /* bytes of words */
    for (size_t g = 0; g < n_groups; g++) {
        if (!is_finite(scale[g]) || !is_finite(bias[g])) {
            kvs__affine_group(dst, words, scale[g], bias[g], bits, group);
            dst += group;
            words += group * bits / 32;
            left -= group * bits / 8;
            continue;
        }
        vf s = vf_set(scale[g]);
        vf b = vf_set(bias[g]);
        for (uint32_t i = 0; i < group; i += 32, dst += 32, words += bits, left -= 4 * bits) {
            v32_stream c = v32_load(words, bits, left);
            UNROLL
            for (int j = 0; j < Q; j++) {
                vf_st(dst + j * VW, vf_fma(v32_values(c, bits, j), s, b));
            }
        }
    }
}

static void affine_decode(float *dst, const uint32_t *words, const float *scale, const float *bias,
                          size_t n_groups, uint32_t bits, uint32_t group){
    EACH_BITS(bits, decode, dst, words, scale, bias, n_groups, group)}

/* T(T(code * s) + b) to dst[at]. */
INLINE void store_value_mlx(void *dst, size_t at, vf code, vf s, vf b, kvs_dtype dtype)
{
    vf x = vf_mul(code, s);
    if (dtype == KVS_F32) {
        vf_st((float *)dst + at, vf_add(x, b));
    } else if (dtype == KVS_F16) {
        vf_store_f16((uint16_t *)dst + at, vf_add(vf_round_f16(x), b));
    } else {
        vf_store_bf16((uint16_t *)dst + at, vf_add(vf_round_bf16(x), b));
    }
}

INLINE void decode_mlx(uint32_t bits, kvs_dtype dtype, void *dst, const uint32_t *words,
                       const void *scale, const void *bias, size_t n_groups, uint32_t group)
{
    size_t left = n_groups * group * bits / 8;
    size_t at = 0;
    for (size_t g = 0; g < n_groups; g++) {
        float s1 = kvs__load_elem(scale, dtype, g);
        float b1 = kvs__load_elem(bias, dtype, g);
        if (!is_finite(s1) || !is_finite(b1)) {
            kvs__affine_group_mlx(dst, at, words, s1, b1, bits, group, dtype);
            at += group;
            words += group * bits / 32;
            left -= group * bits / 8;
            continue;
        }
        vf s = vf_set(s1);
        vf b = vf_set(b1);
        for (uint32_t i = 0; i < group; i += 32, at += 32, words += bits, left -= 4 * bits) {
            v32_stream c = v32_load(words, bits, left);
            UNROLL
            for (size_t j = 0; j < Q; j++) {
                store_value_mlx(dst, at + j * VW, v32_values(c, bits, (int)j), s, b, dtype);
            }
        }
    }
}

static void affine_decode_mlx(void *dst, const uint32_t *words, const void *scale, const void *bias,
                              size_t n_groups, uint32_t bits, uint32_t group, kvs_dtype dtype)
{
    if (dtype == KVS_F32) {
        EACH_BITS(bits, decode_mlx, KVS_F32, dst, words, scale, bias, n_groups, group)
    } else if (dtype == KVS_F16) {
        EACH_BITS(bits, decode_mlx, KVS_F16, dst, words, scale, bias, n_groups, group)
    } else {
        EACH_BITS(bits, decode_mlx, KVS_BF16, dst, words, scale, bias, n_groups, group)
    }
}

static void codec_init(kvs__kern *k)
{
    k->f32_from_f16 = f32_from_f16;
    k->f32_from_bf16 = f32_from_bf16;
    k->f16_from_f32 = f16_from_f32;
    k->bf16_from_f32 = bf16_from_f32;
    k->hadamard = hadamard;
    k->affine_encode = affine_encode;
    k->affine_decode = affine_decode;
    k->affine_decode_mlx = affine_decode_mlx;
}

#undef EACH_BITS
#undef UNROLL
#endif
