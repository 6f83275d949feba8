/* SPDX-License-Identifier: MIT */
/* wvec_neon.c: the vector operations of wvec_simd.h with Advanced SIMD. */
#include <arm_neon.h>

typedef float32x4_t vec;
#define VL            4u
#define vload         vld1q_f32
#define vstore        vst1q_f32
#define vset          vdupq_n_f32
#define vadd          vaddq_f32
#define vsub          vsubq_f32
#define vmul          vmulq_f32
#define vdiv          vdivq_f32
#define vfma(a, b, c) vfmaq_f32(c, a, b)
#define vlt           vcltq_f32
#define vnan(a)       vmvnq_u32(vceqq_f32(a, a))
#define vsel          vbslq_f32

/* The count n sits in the low bits of t = n + 1.5 * 2^23: moved to the exponent. */
static inline vec vexp_shift(vec y, vec t)
{
    uint32x4_t n = vsubq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(0x4b400000u));
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(y), vshlq_n_u32(n, 23)));
}

/* (a, b) -> (fma(a, c, -(b * s)), fma(a, s, b * c)) for two neighbouring pairs. */
static inline vec rope_pairs(vec x, const float *cos, const float *sin)
{
    float32x2x2_t z = vzip_f32(vld1_f32(cos), vld1_f32(sin));
    vec cs = vcombine_f32(z.val[0], z.val[1]);
    vec p = vmulq_f32(vtrn2q_f32(x, x), vrev64q_f32(cs));
    uint32x4_t minus = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
    p = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(p), minus));
    return vfmaq_f32(p, vtrn1q_f32(x, x), cs);
}

#include "kern/wvec_simd.h"

void kvs__wkern_init_vec_neon(kvs__wkern *k)
{
    init(k);
}
