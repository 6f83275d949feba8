/* SPDX-License-Identifier: MIT */
/* attn_avx512.c: the attention kernels with 16 lanes (AVX-512 F, BW, DQ, VL, VNNI). The register blocks
 * leave room for the vectors of b and one broadcast among 32 registers. */
#include <immintrin.h>
#include <string.h>

#include "kern/attn_unroll.h"
#include "kern/kern.h"
#include "kern/vec_avx512.h"

#define ROWS_MAX  8
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
    BLOCK(6, 4)                                                                                    \
    BLOCK(7, 1)                                                                                    \
    BLOCK(7, 2)                                                                                    \
    BLOCK(8, 1)                                                                                    \
    BLOCK(8, 2)

#define DIRECT_ROWS 8
#define T_MAX       4
#define C_MAX       4
/* 4 x 2 leaves the broadcasts fewer vectors to wait for and is 15 % faster than 4 x 4. */
#define DIRECT_SHAPES(X)                                                                           \
    X(1, 4, 4)                                                                                     \
    X(2, 4, 4)                                                                                     \
    X(3, 4, 4)                                                                                     \
    X(4, 2, 4)                                                                                     \
    X(5, 2, 2)                                                                                     \
    X(6, 2, 2)                                                                                     \
    X(7, 2, 2)                                                                                     \
    X(8, 2, 2)

typedef __m512i vi;

INLINE float f32_from_f16_1(uint16_t h)
{
    return _cvtsh_ss(h);
}

INLINE vf vf_from_u32(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

INLINE vf vf_from_i32(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

INLINE vf vf_evens(vf a, vf b)
{
    const vi at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, at, b);
}

INLINE vf vf_odds(vf a, vf b)
{
    const vi at = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, at, b);
}

INLINE vi vi_round(vf x)
{
    return _mm512_cvtps_epi32(x);
}

INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}

INLINE vi vi_dot(vi acc, vi a, vi b)
{
    return _mm512_dpwssd_epi32(acc, a, b);
}

/* Sixteen lanes that fit 16 bits. */
INLINE void vi_st16(int16_t *p, vi x)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(x));
}

INLINE vf vf_from_bits(vi x)
{
    return _mm512_castsi512_ps(x);
}

INLINE vi vi_from_bits(vf x)
{
    return _mm512_castps_si512(x);
}

INLINE vi vi_ld(const uint32_t *p)
{
    return _mm512_loadu_si512((const void *)p);
}

INLINE vi vi_set(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}

INLINE vi vi_srl(vi x, int n)
{
    return _mm512_srli_epi32(x, (unsigned)n);
}

INLINE vi vi_sll(vi x, int n)
{
    return _mm512_slli_epi32(x, (unsigned)n);
}

INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_epi32(a, b);
}

INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_epi32(a, b);
}

INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

/* a > b ? a : b; b where either is NaN or they are equal. */
INLINE vf vf_greater(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

/* Lane i from bit i. */
INLINE vm vm_bits(uint32_t bits)
{
    return (vm)bits;
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
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return vf_sum4(_mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}

INLINE float vf_top(vf x)
{
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return vf_top4(_mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1)));
}

#define CODE_BYTES(bits)   ((bits) > 4 ? 16 : 8)
#define CODE_IN_WORD(bits) ((bits) == 2)
#define CODE_SHIFT_SIGN    1
#include "kern/attn_codes.h"

/* Codes 16 c .. 16 c + 15 of a block of 32, each with other codes above it. */
INLINE vi v_codes(const uint8_t *block, uint32_t bits, size_t c)
{
    if (bits == 8) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(block + 16 * c)));
    }
    vi v;
    if (CODE_IN_WORD(bits)) {
        uint32_t w = 0;
        memcpy(&w, block + 16 * c * bits / 32 * 4, sizeof w);
        v = vi_set(w);
    } else {
        __m512i pick = _mm512_loadu_si512(code_pick[bits] + 64 * c);
        const uint8_t *at = block + code_base(bits, c);
        if (CODE_BYTES(bits) == 8) {
            uint64_t w = 0;
            memcpy(&w, at, sizeof w);
            v = _mm512_set1_epi64((long long)w);
        } else {
            v = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)at));
        }
        v = _mm512_shuffle_epi8(v, pick);
    }
    return _mm512_srlv_epi32(v, _mm512_loadu_si512(code_shift[bits] + 16 * c));
}

/* Up to 4 bits: the 16 values of a group once, then a look-up, which sees 4 bits and no more. */
#define V_DECODER
typedef struct v_decoder {
    vf scale; /* or the values */
    vf bias;
} v_decoder;

INLINE v_decoder v_decoder_of(uint32_t bits, float scale, float bias)
{
    v_decoder v = {vf_set(scale), vf_set(bias)};
    if (bits <= 4) {
        vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        vf code = vf_from_u32(vi_and(lane, vi_set((1u << bits) - 1)));
        v.scale = vf_fma(code, v.scale, v.bias);
    }
    return v;
}

/* Elements 16 c .. 16 c + 15 of a block of 32. */
INLINE vf v_values(const v_decoder *v, const uint8_t *block, uint32_t bits, size_t c)
{
    vi codes = v_codes(block, bits, c);
    if (bits <= 4) {
        return _mm512_permutexvar_ps(codes, v->scale);
    }
    if (bits < 8) {
        codes = vi_and(codes, vi_set((1u << bits) - 1));
    }
    return vf_fma(vf_from_u32(codes), v->scale, v->bias);
}

#include "kern/attn_simd.h"
/* after attn_simd.h */
#include "kern/attn_direct.h"

#define V_UNITS
/* Bytes of two rows side by side, each 16 bits: (a[i], b[i]), i < 16. */
INLINE vi both(const uint8_t *a, const uint8_t *b)
{
    __m128i x = _mm_loadu_si128((const void *)a);
    __m128i z = _mm_loadu_si128((const void *)b);
    __m256i pairs = _mm256_castsi128_si256(_mm_unpacklo_epi8(x, z));
    return _mm512_cvtepu8_epi16(_mm256_inserti128_si256(pairs, _mm_unpackhi_epi8(x, z), 1));
}

INLINE void v_unit8(vi y[2], const uint8_t *a, const uint8_t *b)
{
    y[0] = both(a, b);
    y[1] = both(a + 16, b + 16);
}

/* Even elements, then odd ones. */
INLINE void v_unit4(vi y[2], const uint8_t *a, const uint8_t *b)
{
    vi v = both(a, b);
    y[0] = vi_and(v, vi_set(0x000f000fu));
    y[1] = vi_and(vi_srl(v, 4), vi_set(0x000f000fu));
}

INLINE void in_order4(vi y[2])
{
    const vi low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    vi even = y[0];
    y[0] = _mm512_permutex2var_epi32(even, low, y[1]);
    y[1] = _mm512_permutex2var_epi32(even, vi_add(low, vi_set(8)), y[1]);
}

/* Unpacking again costs less than a store and a load. */
#define PAIR_ROWS         8
#define PAIR_DIRECT(bits) 64
#define U_MAX             2
#define PAIR_SHAPES(X)                                                                             \
    X(1, 4, 2)                                                                                     \
    X(2, 4, 2)                                                                                     \
    X(3, 4, 2)                                                                                     \
    X(4, 4, 2)                                                                                     \
    X(5, 2, 1)                                                                                     \
    X(6, 2, 1)                                                                                     \
    X(7, 2, 1)                                                                                     \
    X(8, 2, 1)
#include "kern/attn_pairs.h"

#define REC_COLS 1
#include "kern/rec_simd.h"

void kvs__kern_init_attn_avx512(kvs__kern *k)
{
    attn_init(k);
    pairs_init(k);
    rec_init(k);
}
