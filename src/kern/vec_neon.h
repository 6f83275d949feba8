/* SPDX-License-Identifier: MIT */
/* vec_neon.h: vectors of floats with Armv8-A Advanced SIMD, for attn_neon.c and codec_neon.c. They define
 * INLINE. */
#ifndef KVS_KERN_VEC_NEON_H
#define KVS_KERN_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>

#define VW 4 /* lanes */
typedef float32x4_t vf;
typedef uint32x4_t vm;

INLINE vf vf_ld(const float *p)
{
    return vld1q_f32(p);
}

INLINE void vf_st(float *p, vf x)
{
    vst1q_f32(p, x);
}

INLINE vf vf_set(float x)
{
    return vdupq_n_f32(x);
}

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

INLINE vf vf_from_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

INLINE vf vf_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

INLINE vm vm_lt(vf a, vf b)
{
    return vcltq_f32(a, b);
}

INLINE vm vm_nan(vf x)
{
    return vmvnq_u32(vceqq_f32(x, x));
}

/* yes where the mask is set */
INLINE vf vf_sel(vm m, vf yes, vf no)
{
    return vbslq_f32(m, yes, no);
}

#endif
