/* SPDX-License-Identifier: MIT */
/* attn_avx2.c: the attention kernels with 8 lanes (AVX2, FMA, F16C). The register blocks leave
 * room for the vectors of b and one broadcast among 16 registers; 6 x 2 has the 8 or more
 * independent chains that keep two FMA units of latency 4 busy. */
#include <immintrin.h>
#include <string.h>

#include "kern/attn_unroll.h"
#include "kern/kern.h"
#include "kern/vec_avx2.h"

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
    BLOCK(3, 1)                                                                                    \
    BLOCK(3, 2)                                                                                    \
    BLOCK(3, 4)                                                                                    \
    BLOCK(4, 1)                                                                                    \
    BLOCK(4, 2)                                                                                    \
    BLOCK(5, 1)                                                                                    \
    BLOCK(5, 2)                                                                                    \
    BLOCK(6, 1)                                                                                    \
    BLOCK(6, 2)

#define DIRECT_ROWS 4
#define T_MAX       2
#define C_MAX       8
#define DIRECT_SHAPES(X)                                                                           \
    X(1, 2, 8)                                                                                     \
    X(2, 2, 4)                                                                                     \
    X(3, 1, 2)                                                                                     \
    X(4, 1, 2)

typedef __m256i vi;

INLINE float f32_from_f16_1(uint16_t h)
{
    return _cvtsh_ss(h);
}

INLINE vf vf_from_u32(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

INLINE vf vf_from_i32(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

INLINE vf vf_evens(vf a, vf b)
{
    __m256d x = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(x, 0xd8));
}

INLINE vf vf_odds(vf a, vf b)
{
    __m256d x = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(x, 0xd8));
}

INLINE vi vi_round(vf x)
{
    return _mm256_cvtps_epi32(x);
}

INLINE vi vi_max(vi a, vi b)
{
    return _mm256_max_epu32(a, b);
}

INLINE vi vi_dot(vi acc, vi a, vi b)
{
    acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
    __asm__("" : "+x"(acc)); /* sums of products first would take all registers */
    return acc;
}

/* Eight lanes that fit 16 bits. */
INLINE void vi_st16(int16_t *p, vi x)
{
    __m128i y = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128((void *)p, y);
}

INLINE vf vf_from_bits(vi x)
{
    return _mm256_castsi256_ps(x);
}

INLINE vi vi_from_bits(vf x)
{
    return _mm256_castps_si256(x);
}

INLINE vi vi_ld(const uint32_t *p)
{
    return _mm256_loadu_si256((const void *)p);
}

INLINE vi vi_set(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}

INLINE vi vi_srl(vi x, int n)
{
    return _mm256_srli_epi32(x, n);
}

INLINE vi vi_sll(vi x, int n)
{
    return _mm256_slli_epi32(x, n);
}

INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}

INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}

INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}

/* a > b ? a : b; b where either is NaN or they are equal. */
INLINE vf vf_greater(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

/* Lane i from bit i. */
INLINE vm vm_bits(uint32_t bits)
{
    __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    __m256i hit = _mm256_and_si256(_mm256_set1_epi32((int)bits), lane);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(hit, lane));
}

INLINE float vf_sum4(__m128 x)
{
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

INLINE float vf_top4(__m128 x)
{
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

INLINE float vf_sum(vf x)
{
    return vf_sum4(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

INLINE float vf_top(vf x)
{
    return vf_top4(_mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}

#define CODE_BYTES(bits)   8
#define CODE_IN_WORD(bits) ((bits) == 2 || (bits) == 4)
#define CODE_SHIFT_SIGN    1
#include "kern/attn_codes.h"

/* Codes 8 c .. 8 c + 7 of a block of 32. */
INLINE vi v_codes(const uint8_t *block, uint32_t bits, size_t c)
{
    if (bits == 8) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(block + 8 * c)));
    }
    vi v;
    if (CODE_IN_WORD(bits)) {
        uint32_t w = 0;
        memcpy(&w, block + 8 * c * bits / 32 * 4, sizeof w);
        v = vi_set(w);
    } else {
        uint64_t w = 0;
        memcpy(&w, block + code_base(bits, c), sizeof w);
        __m256i pick = _mm256_loadu_si256((const void *)(code_pick[bits] + 32 * c));
        v = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)w), pick);
    }
    v = _mm256_srlv_epi32(v, _mm256_loadu_si256((const void *)(code_shift[bits] + 8 * c)));
    return vi_and(v, vi_set((1u << bits) - 1));
}

#include "kern/attn_simd.h"
/* after attn_simd.h */
#include "kern/attn_direct.h"

#define V_UNITS
/* Bytes of two rows side by side, each 16 bits: (a[i], b[i]). */
INLINE vi both(__m128i pairs)
{
    return _mm256_cvtepu8_epi16(pairs);
}

INLINE void v_unit8(vi y[2], const uint8_t *a, const uint8_t *b)
{
    __m128i x = _mm_loadu_si128((const void *)a);
    __m128i z = _mm_loadu_si128((const void *)b);
    y[0] = both(_mm_unpacklo_epi8(x, z));
    y[1] = both(_mm_unpackhi_epi8(x, z));
}

/* Even elements, then odd ones. */
INLINE void v_unit4(vi y[2], const uint8_t *a, const uint8_t *b)
{
    __m128i x = _mm_loadl_epi64((const void *)a);
    __m128i z = _mm_loadl_epi64((const void *)b);
    vi v = both(_mm_unpacklo_epi8(x, z));
    y[0] = vi_and(v, vi_set(0x000f000fu));
    y[1] = vi_and(vi_srl(v, 4), vi_set(0x000f000fu));
}

INLINE void in_order4(vi y[2])
{
    vi lo = _mm256_unpacklo_epi32(y[0], y[1]);
    vi hi = _mm256_unpackhi_epi32(y[0], y[1]);
    y[0] = _mm256_permute2x128_si256(lo, hi, 0x20);
    y[1] = _mm256_permute2x128_si256(lo, hi, 0x31);
}

#define PAIR_ROWS         4
#define PAIR_DIRECT(bits) (kvs__pair_in_word(bits) ? 64 : 8)
#define U_MAX             4
#define PAIR_SHAPES(X)                                                                             \
    X(1, 2, 4)                                                                                     \
    X(2, 2, 2)                                                                                     \
    X(3, 1, 1)                                                                                     \
    X(4, 1, 1)
#include "kern/attn_pairs.h"

#define REC_COLS 1
#include "kern/rec_simd.h"

void kvs__kern_init_attn_avx2(kvs__kern *k)
{
    attn_init(k);
    pairs_init(k);
    rec_init(k);
}
