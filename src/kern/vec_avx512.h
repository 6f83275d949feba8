/* SPDX-License-Identifier: MIT */
/* vec_avx512.h: vectors of floats with AVX-512 F, for attn_avx512.c and codec_avx512.c. They define
 * INLINE. */
#ifndef KVS_KERN_VEC_AVX512_H
#define KVS_KERN_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#define VW 16 /* lanes */
typedef __m512 vf;
typedef __mmask16 vm;

INLINE vf vf_ld(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE void vf_st(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

INLINE vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

INLINE vf vf_from_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

INLINE vf vf_from_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

INLINE vm vm_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

INLINE vm vm_nan(vf x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

/* yes where the mask is set */
INLINE vf vf_sel(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

#endif
