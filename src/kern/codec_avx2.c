/* SPDX-License-Identifier: MIT */
/* codec_avx2.c: the codec kernels for AVX2 + FMA + F16C: the primitives that codec_simd.h wants. */
#include <immintrin.h>

#include "kern/codec_x86.h"
#include "kern/vec_avx2.h"

INLINE vf vf_rint(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

INLINE vf vf_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE vf vf_neg(vf x)
{
    return _mm256_xor_ps(_mm256_set1_ps(-0.0f), x);
}

/* The instruction gives its second operand when either is a NaN. */
INLINE vf vf_min(vf x, vf acc)
{
    return _mm256_min_ps(x, acc);
}

INLINE vf vf_max(vf x, vf acc)
{
    return _mm256_max_ps(x, acc);
}

INLINE float vf_hmin(vf x)
{
    __m128 v = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    v = _mm_min_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_min_ss(v, _mm_movehdup_ps(v)));
}

INLINE float vf_hmax(vf x)
{
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

INLINE vm vm_gt(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_GT_OQ);
}

/* a - b is a + (-b), exactly. */
INLINE vf vf_butterfly(vf x, int h)
{
    vf partner = h == 1   ? _mm256_permute_ps(x, 0xb1)
                 : h == 2 ? _mm256_permute_ps(x, 0x4e)
                          : _mm256_permute2f128_ps(x, x, 1);
    vf sign = h == 1   ? _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f)
              : h == 2 ? _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f)
                       : _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    return _mm256_add_ps(partner, _mm256_xor_ps(x, sign));
}

INLINE __m128i f16_bits(vf x)
{
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, f16_bits(x));
}

INLINE vf vf_round_f16(vf x)
{
    return _mm256_cvtph_ps(f16_bits(x));
}

/* The f32 pattern whose upper half is the nearest bf16. */
INLINE __m256i bf16_rounded(vf x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    __m256i quiet = _mm256_or_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x400000));
    __m256i r = _mm256_blendv_epi8(bf16_rounded(x), quiet, _mm256_castps_si256(vm_nan(x)));
    r = _mm256_srli_epi32(r, 16);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(r));
}

INLINE vf vf_round_bf16(vf x)
{
    return _mm256_castsi256_ps(
        _mm256_and_si256(bf16_rounded(x), _mm256_set1_epi32((int)0xffff0000u)));
}

/* A NaN converts to the least integer; packing saturates it and whatever is negative to 0. */
INLINE v32 v32_codes(const vf *q, uint32_t top)
{
    __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(q[0]), _mm256_cvtps_epi32(q[1]));
    __m256i cd = _mm256_packs_epi32(_mm256_cvtps_epi32(q[2]), _mm256_cvtps_epi32(q[3]));
    __m256i c = _mm256_min_epu8(_mm256_packus_epi16(ab, cd), _mm256_set1_epi8((char)top));
    /* packing works within 128 bits: a0-3 b0-3 c0-3 d0-3 a4-7 ... */
    return _mm256_permutevar8x32_epi32(c, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

INLINE vf v32_values(v32_stream s, uint32_t b, int j)
{
    __m256i both = _mm256_broadcastsi128_si256(s.half[j / 2]);
    uint32_t k = j % 2 ? 8u : 0u;
    __m256i bytes =
        _mm256_setr_epi32(BYTES(b, k), BYTES(b, k + 1), BYTES(b, k + 2), BYTES(b, k + 3),
                          BYTES(b, k + 4), BYTES(b, k + 5), BYTES(b, k + 6), BYTES(b, k + 7));
    __m256i u = _mm256_shuffle_epi8(both, bytes);
    if (b != 8) {
        u = _mm256_srlv_epi32(u,
                              _mm256_setr_epi32(SHIFT(b, k), SHIFT(b, k + 1), SHIFT(b, k + 2),
                                                SHIFT(b, k + 3), SHIFT(b, k + 4), SHIFT(b, k + 5),
                                                SHIFT(b, k + 6), SHIFT(b, k + 7)));
        u = _mm256_and_si256(u, _mm256_set1_epi32((1 << b) - 1));
    }
    return _mm256_cvtepi32_ps(u);
}

#include "kern/codec_simd.h"

void kvs__kern_init_codec_avx2(kvs__kern *k)
{
    codec_init(k);
}
