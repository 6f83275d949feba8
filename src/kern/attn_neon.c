/* SPDX-License-Identifier: MIT */
/* attn_neon.c: the attention kernels with 4 lanes (Armv8-A Advanced SIMD). A K tile is four vectors;
 * blocks of up to 6 x 4 accumulators fit among 32 registers. */
#include <arm_neon.h>
#include <string.h>

#include "base/half.h"
#include "kern/attn_unroll.h"
#include "kern/kern.h"
#include "kern/vec_neon.h"

#define ROWS_MAX  6
#define COLS_WIDE 8
#define BLOCKS                                                                                     \
    BLOCK(1, 1)                                                                                    \
    BLOCK(1, 2)                                                                                    \
    BLOCK(1, 4)                                                                                    \
    BLOCK(1, 8)                                                                                    \
    BLOCK(2, 1)                                                                                    \
    BLOCK(2, 2)                                                                                    \
    BLOCK(2, 4)                                                                                    \
    BLOCK(2, 8)                                                                                    \
    BLOCK(3, 1)                                                                                    \
    BLOCK(3, 2)                                                                                    \
    BLOCK(3, 4)                                                                                    \
    BLOCK(4, 1)                                                                                    \
    BLOCK(4, 2)                                                                                    \
    BLOCK(4, 4)                                                                                    \
    BLOCK(5, 1)                                                                                    \
    BLOCK(5, 2)                                                                                    \
    BLOCK(5, 4)                                                                                    \
    BLOCK(6, 1)                                                                                    \
    BLOCK(6, 2)                                                                                    \
    BLOCK(6, 4)

#define DIRECT_ROWS 4
#define T_MAX       2
#define C_MAX       8
#define DIRECT_SHAPES(X)                                                                           \
    X(1, 2, 8)                                                                                     \
    X(2, 1, 8)                                                                                     \
    X(3, 1, 4)                                                                                     \
    X(4, 1, 4)

typedef uint32x4_t vi;

INLINE float f32_from_f16_1(uint16_t h)
{
    return kvs__f16_to_f32(h);
}

INLINE vf vf_from_u32(vi x)
{
    return vcvtq_f32_u32(x);
}

INLINE vf vf_from_i32(vi x)
{
    return vcvtq_f32_s32(vreinterpretq_s32_u32(x));
}

INLINE vf vf_evens(vf a, vf b)
{
    return vuzp1q_f32(a, b);
}

INLINE vf vf_odds(vf a, vf b)
{
    return vuzp2q_f32(a, b);
}

INLINE vi vi_round(vf x)
{
    return vreinterpretq_u32_s32(vcvtnq_s32_f32(x));
}

INLINE vi vi_max(vi a, vi b)
{
    return vmaxq_u32(a, b);
}

INLINE vi vi_dot(vi acc, vi a, vi b)
{
    int16x8_t x = vreinterpretq_s16_u32(a);
    int16x8_t y = vreinterpretq_s16_u32(b);
    int32x4_t lo = vmull_s16(vget_low_s16(x), vget_low_s16(y));
    int32x4_t sums = vpaddq_s32(lo, vmull_high_s16(x, y));
    return vaddq_u32(acc, vreinterpretq_u32_s32(sums));
}

/* Four lanes that fit 16 bits. */
INLINE void vi_st16(int16_t *p, vi x)
{
    vst1_s16(p, vmovn_s32(vreinterpretq_s32_u32(x)));
}

INLINE vf vf_from_bits(vi x)
{
    return vreinterpretq_f32_u32(x);
}

INLINE vi vi_from_bits(vf x)
{
    return vreinterpretq_u32_f32(x);
}

INLINE vi vi_ld(const uint32_t *p)
{
    return vld1q_u32(p);
}

INLINE vi vi_set(uint32_t x)
{
    return vdupq_n_u32(x);
}

INLINE vi vi_srl(vi x, int n)
{
    return x >> vdupq_n_u32((uint32_t)n);
}

INLINE vi vi_sll(vi x, int n)
{
    return x << vdupq_n_u32((uint32_t)n);
}

INLINE vi vi_and(vi a, vi b)
{
    return vandq_u32(a, b);
}

INLINE vi vi_or(vi a, vi b)
{
    return vorrq_u32(a, b);
}

INLINE vi vi_add(vi a, vi b)
{
    return vaddq_u32(a, b);
}

/* a > b ? a : b; b where either is NaN or they are equal. */
INLINE vf vf_greater(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* Lane i from bit i. */
INLINE vm vm_bits(uint32_t bits)
{
    static const uint32_t lane[4] = {1, 2, 4, 8};
    return vtstq_u32(vdupq_n_u32(bits), vld1q_u32(lane));
}

INLINE float vf_sum(vf x)
{
    float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
    return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}

/* No lane is NaN. */
INLINE float vf_top(vf x)
{
    return vmaxvq_f32(x);
}

#define CODE_BYTES(bits)   8
#define CODE_IN_WORD(bits) ((bits) == 2 || (bits) == 4)
#define CODE_SHIFT_SIGN    (-1)
#include "kern/attn_codes.h"

/* Codes 4 c .. 4 c + 3 of a block of 32. */
INLINE vi v_codes(const uint8_t *block, uint32_t bits, size_t c)
{
    vi v;
    if (CODE_IN_WORD(bits)) {
        uint32_t w = 0;
        memcpy(&w, block + 4 * c * bits / 32 * 4, sizeof w);
        v = vdupq_n_u32(w);
    } else {
        uint8x8_t w = vld1_u8(block + code_base(bits, c));
        uint8x16_t pick = vld1q_u8(code_pick[bits] + 16 * c);
        v = vreinterpretq_u32_u8(vqtbl1q_u8(vcombine_u8(w, w), pick));
    }
    v = vshlq_u32(v, vld1q_s32(code_shift[bits] + 4 * c));
    return vandq_u32(v, vdupq_n_u32((1u << bits) - 1));
}

#include "kern/attn_simd.h"
/* after attn_simd.h */
#include "kern/attn_direct.h"

#define V_UNITS
INLINE void v_unit8(vi y[2], const uint8_t *a, const uint8_t *b)
{
    uint8x8_t x = vld1_u8(a);
    uint8x8_t z = vld1_u8(b);
    y[0] = vreinterpretq_u32_u16(vmovl_u8(vzip1_u8(x, z)));
    y[1] = vreinterpretq_u32_u16(vmovl_u8(vzip2_u8(x, z)));
}

/* Even elements, then odd ones. */
INLINE void v_unit4(vi y[2], const uint8_t *a, const uint8_t *b)
{
    uint32_t x = 0;
    uint32_t z = 0;
    memcpy(&x, a, sizeof x);
    memcpy(&z, b, sizeof z);
    uint8x8_t pairs = vzip1_u8(vcreate_u8(x), vcreate_u8(z));
    vi v = vreinterpretq_u32_u16(vmovl_u8(pairs));
    y[0] = vi_and(v, vi_set(0x000f000fu));
    y[1] = vi_and(vi_srl(v, 4), vi_set(0x000f000fu));
}

INLINE void in_order4(vi y[2])
{
    vi even = y[0];
    y[0] = vzip1q_u32(even, y[1]);
    y[1] = vzip2q_u32(even, y[1]);
}

#define PAIR_ROWS         4
#define PAIR_DIRECT(bits) 8
#define U_MAX             4
#define PAIR_SHAPES(X)                                                                             \
    X(1, 2, 4)                                                                                     \
    X(2, 1, 4)                                                                                     \
    X(3, 1, 2)                                                                                     \
    X(4, 1, 2)
#include "kern/attn_pairs.h"

#define REC_COLS 2
#include "kern/rec_simd.h"

void kvs__kern_init_attn_neon(kvs__kern *k)
{
    attn_init(k);
    pairs_init(k);
    rec_init(k);
}
