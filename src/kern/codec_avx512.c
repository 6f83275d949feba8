/* SPDX-License-Identifier: MIT */
/* codec_avx512.c: the codec kernels for AVX-512 F, BW, DQ, VL: the primitives that codec_simd.h
 * wants. */
#include <immintrin.h>

#include "kern/codec_x86.h"
#include "kern/vec_avx512.h"

INLINE vf vf_rint(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vf vf_abs(vf x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

INLINE vf vf_neg(vf x)
{
    return _mm512_xor_ps(_mm512_set1_ps(-0.0f), x);
}

/* The instruction gives its second operand when either is a NaN. */
INLINE vf vf_min(vf x, vf acc)
{
    return _mm512_min_ps(x, acc);
}

INLINE vf vf_max(vf x, vf acc)
{
    return _mm512_max_ps(x, acc);
}

INLINE float vf_hmin(vf x)
{
    __m256 u = _mm256_min_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 v = _mm_min_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1));
    v = _mm_min_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)));
}

INLINE float vf_hmax(vf x)
{
    __m256 u = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

INLINE vm vm_gt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

INLINE vf vf_butterfly(vf x, int h)
{
    vf partner = h == 1   ? _mm512_permute_ps(x, 0xb1)
                 : h == 2 ? _mm512_permute_ps(x, 0x4e)
                 : h == 4 ? _mm512_shuffle_f32x4(x, x, 0xb1)
                          : _mm512_shuffle_f32x4(x, x, 0x4e);
    vm upper = h == 1 ? 0xaaaa : h == 2 ? 0xcccc : h == 4 ? 0xf0f0 : 0xff00;
    return _mm512_mask_sub_ps(_mm512_add_ps(partner, x), upper, partner, x);
}

INLINE __m256i f16_bits(vf x)
{
    return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, f16_bits(x));
}

INLINE vf vf_round_f16(vf x)
{
    return _mm512_cvtph_ps(f16_bits(x));
}

/* The f32 pattern whose upper half is the nearest bf16. */
INLINE __m512i bf16_rounded(vf x)
{
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    __m512i r = bf16_rounded(x);
    r = _mm512_mask_or_epi32(r, vm_nan(x), _mm512_castps_si512(x), _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}

INLINE vf vf_round_bf16(vf x)
{
    return _mm512_castsi512_ps(
        _mm512_and_si512(bf16_rounded(x), _mm512_set1_epi32((int)0xffff0000u)));
}

/* A NaN converts to the least integer; packing saturates it and whatever is negative to 0. */
INLINE v32 v32_codes(const vf *q, uint32_t top)
{
    __m512i ab = _mm512_packs_epi32(_mm512_cvtps_epi32(q[0]), _mm512_cvtps_epi32(q[1]));
    __m256i c = _mm256_packus_epi16(_mm512_castsi512_si256(ab), _mm512_extracti64x4_epi64(ab, 1));
    c = _mm256_min_epu8(c, _mm256_set1_epi8((char)top));
    /* packing works within 128 bits: a0-3 b0-3 a8-11 b8-11 a4-7 ... */
    return _mm256_permutevar8x32_epi32(c, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
}

INLINE vf v32_values(v32_stream s, uint32_t b, int j)
{
    __m512i bytes = _mm512_setr_epi32(BYTES(b, 0u), BYTES(b, 1u), BYTES(b, 2u), BYTES(b, 3u),
                                      BYTES(b, 4u), BYTES(b, 5u), BYTES(b, 6u), BYTES(b, 7u),
                                      BYTES(b, 8u), BYTES(b, 9u), BYTES(b, 10u), BYTES(b, 11u),
                                      BYTES(b, 12u), BYTES(b, 13u), BYTES(b, 14u), BYTES(b, 15u));
    __m512i u = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(s.half[j]), bytes);
    if (b != 8) {
        u = _mm512_srlv_epi32(
            u, _mm512_setr_epi32(SHIFT(b, 0u), SHIFT(b, 1u), SHIFT(b, 2u), SHIFT(b, 3u),
                                 SHIFT(b, 4u), SHIFT(b, 5u), SHIFT(b, 6u), SHIFT(b, 7u),
                                 SHIFT(b, 8u), SHIFT(b, 9u), SHIFT(b, 10u), SHIFT(b, 11u),
                                 SHIFT(b, 12u), SHIFT(b, 13u), SHIFT(b, 14u), SHIFT(b, 15u)));
        u = _mm512_and_si512(u, _mm512_set1_epi32((1 << b) - 1));
    }
    return _mm512_cvtepi32_ps(u);
}

#include "kern/codec_simd.h"

void kvs__kern_init_codec_avx512(kvs__kern *k)
{
    codec_init(k);
}
