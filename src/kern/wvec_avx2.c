/* SPDX-License-Identifier: MIT */
/* wvec_avx2.c: the vector operations of wvec_simd.h with AVX2 and FMA. */
#include <immintrin.h>

typedef __m256 vec;
#define VL            8u
#define vload         _mm256_loadu_ps
#define vstore        _mm256_storeu_ps
#define vset          _mm256_set1_ps
#define vadd          _mm256_add_ps
#define vsub          _mm256_sub_ps
#define vmul          _mm256_mul_ps
#define vdiv          _mm256_div_ps
#define vfma          _mm256_fmadd_ps
#define vlt(a, b)     _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define vnan(a)       _mm256_cmp_ps(a, a, _CMP_UNORD_Q)
#define vsel(m, a, b) _mm256_blendv_ps(b, a, m)

/* The count n sits in the low bits of t = n + 1.5 * 2^23: moved to the exponent. */
static inline __m256 vexp_shift(__m256 y, __m256 t)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000));
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(n, 23)));
}

/* (a, b) -> (fma(a, c, -(b * s)), fma(a, s, b * c)) for four neighbouring pairs. */
static inline __m256 rope_pairs(__m256 x, const float *cos, const float *sin)
{
    __m128 c = _mm_loadu_ps(cos);
    __m128 s = _mm_loadu_ps(sin);
    __m256 cs = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_unpacklo_ps(c, s)),
                                     _mm_unpackhi_ps(c, s), 1);
    __m256 sc = _mm256_permute_ps(cs, 0xb1);
    __m256 p = _mm256_mul_ps(_mm256_movehdup_ps(x), sc);
    __m256 minus = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));
    return _mm256_fmadd_ps(_mm256_moveldup_ps(x), cs, _mm256_xor_ps(p, minus));
}

#include "kern/wvec_simd.h"

void kvs__wkern_init_vec_avx2(kvs__wkern *k)
{
    init(k);
}
