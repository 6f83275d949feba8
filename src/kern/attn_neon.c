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

#define TIGHT(n_acc) ((n_acc) > 12)
#define DIRECT_ROWS  4
#define T_MAX        2
#define C_MAX        8
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

#define REC_COLS 2
#include "kern/rec_simd.h"

void kvs__kern_init_attn_neon(kvs__kern *k)
{
    attn_init(k);
    rec_init(k);
}
