/* SPDX-License-Identifier: MIT */
/* vec_avx2.h: vectors of floats with AVX2, FMA and F16C, for attn_avx2.c and codec_avx2.c. They define
 * INLINE. */
#ifndef KVS_KERN_VEC_AVX2_H
#define KVS_KERN_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#define VW 8 /* lanes */
typedef __m256 vf;
typedef __m256 vm;

INLINE vf vf_ld(const float *p)
{
    return _mm256_loadu_ps(p);
}

INLINE void vf_st(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

INLINE vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}

INLINE vf vf_from_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

INLINE vf vf_from_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

INLINE vm vm_lt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

INLINE vm vm_nan(vf x)
{
    return _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
}

/* yes where the mask is set */
INLINE vf vf_sel(vm m, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, m);
}

#endif
