/* SPDX-License-Identifier: MIT */
/* wmat_avx2.c: weights x activations with AVX2, FMA and F16C; equals wmat_ref.c bit for bit.
 *
 * A tile is 2 rows of x by 6 of W in one of two passes over k (lanes 0..7, then 8..15): 12
 * accumulators, 2 rows of x and one of W fill the 16 registers. 3 x 4 needs a seventeenth
 * (measured on Zen 5: 0.72 of the fma peak against 0.92). */
#include "kern/wmat_x86.h"

typedef __m256 vec;
#define VL           8u
#define vload        _mm256_loadu_ps
#define vstore       _mm256_storeu_ps
#define vzero        _mm256_setzero_ps
#define vfma         _mm256_fmadd_ps
#define TILE_R       2u
#define TILE_C       6u
#define FUSED_MAX    4u
#define FUSED_MOST   4u
#define FUSED_SHARED 0
#define FUSED_MORE(T, parts, bytes)
#define FUSED_MORE_OPS(T)
#define FUSED_COLS_1 4
#define FUSED_COLS_2 2
#define FUSED_COLS_3 1
#define FUSED_COLS_4 1

#define TILE_STEP(a, xs, ldx, w, rows)                                                             \
    do {                                                                                           \
        vec tx[TILE_R];                                                                            \
        EACH (r, (rows)) {                                                                         \
            tx[r] = vload((xs) + r * (ldx));                                                       \
        }                                                                                          \
        EACH (c, TILE_C) {                                                                         \
            vec tw = vload((w) + c * VL);                                                          \
            HOLD(tw);                                                                              \
            EACH (r, (rows)) {                                                                     \
                (a)[r][c] = vfma(tx[r], tw, (a)[r][c]);                                            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

#include "kern/wmat_tile.h"

/* 32 signed bytes as floats. */
XI void widen(__m256i q, vec *v)
{
    __m128i lo = _mm256_castsi256_si128(q);
    __m128i hi = _mm256_extracti128_si256(q, 1);
    v[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(lo));
    v[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(lo, 8)));
    v[2] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(hi));
    v[3] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(hi, 8)));
}

/* v * factor of its 16 elements */
XI void times(vec *v, __m256 f0, __m256 f1)
{
    v[0] = _mm256_mul_ps(v[0], f0);
    v[1] = _mm256_mul_ps(v[1], f0);
    v[2] = _mm256_mul_ps(v[2], f1);
    v[3] = _mm256_mul_ps(v[3], f1);
}

/* 16 bytes of nibbles as 32 floats, low nibbles first. */
XI void widen_nibbles(const uint8_t *p, __m256i minus, vec *v)
{
    __m256i mask = _mm256_set1_epi32(15);
    __m256i q0 = _mm256_cvtepu8_epi32(ld8b(p));
    __m256i q1 = _mm256_cvtepu8_epi32(ld8b(p + 8));
    v[0] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(q0, mask), minus));
    v[1] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_and_si256(q1, mask), minus));
    v[2] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(q0, 4), minus));
    v[3] = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_srli_epi32(q1, 4), minus));
}

XI void dec_f32(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 4) {
        v[i] = _mm256_castsi256_ps(ld32b(b + 32 * i));
    }
}

XI void dec_f16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 4) {
        v[i] = _mm256_cvtph_ps(ld16b(b + 16 * i));
    }
}

XI void dec_bf16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 4) {
        __m256i q = _mm256_cvtepu16_epi32(ld16b(b + 16 * i));
        v[i] = _mm256_castsi256_ps(_mm256_slli_epi32(q, 16));
    }
}

XI void dec_q4_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    __m256 d = f16_all(b);
    widen_nibbles(b + 2, _mm256_set1_epi32(8), v);
    times(v, d, d);
}

XI void scale_offset(const float *h, __m256 *d, __m256 *m)
{
    double both = 0.0; /* a load for both: with one each, more rows of x lack loads */
    memcpy(&both, h, sizeof both);
    __m256 dm = _mm256_castpd_ps(_mm256_set1_pd(both));
    *d = _mm256_moveldup_ps(dm);
    *m = _mm256_movehdup_ps(dm);
}

XI void dec_q4_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    __m256 d;
    __m256 m;
    scale_offset(h, &d, &m);
    widen_nibbles(b + 4, _mm256_setzero_si256(), v);
    EACH (i, 4) {
        v[i] = _mm256_fmadd_ps(v[i], d, m); /* the product is exact */
    }
}

XI void dec_q5_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    __m256 d = f16_all(b);
    widen(bytes_q5_0(b), v);
    times(v, d, d);
}

XI void dec_q5_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    __m256 d;
    __m256 m;
    scale_offset(h, &d, &m);
    widen(bytes_q5_1(b), v);
    EACH (i, 4) {
        v[i] = _mm256_fmadd_ps(v[i], d, m);
    }
}

XI void dec_q8_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    __m256 d = f16_all(b);
    EACH (i, 4) {
        __m256 q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(ld8b(b + 2 + 8 * i)));
        v[i] = _mm256_mul_ps(q, d);
    }
}

XI void dec_q2_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    widen(bytes_q2_k(b, s), v);
    EACH (i, 4) {
        __m256 d = _mm256_broadcast_ss(h + 2 * s + i / 2);
        __m256 m = _mm256_broadcast_ss(h + 16 + 2 * s + i / 2);
        v[i] = _mm256_fmsub_ps(v[i], d, m);
    }
}

XI void dec_q3_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    widen(bytes_q3_k(b, s), v);
    times(v, _mm256_broadcast_ss(h + 2 * s), _mm256_broadcast_ss(h + 2 * s + 1));
}

XI void dec_q4_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256 d = _mm256_broadcast_ss(h + s);
    __m256 m = _mm256_broadcast_ss(h + 16 + s);
    EACH (i, 4) {
        __m256i q = _mm256_cvtepu8_epi32(ld8b(b + 16 + s / 2 * 32 + 8 * i));
        q = s % 2 ? _mm256_srli_epi32(q, 4) : _mm256_and_si256(q, _mm256_set1_epi32(15));
        v[i] = _mm256_fmsub_ps(_mm256_cvtepi32_ps(q), d, m);
    }
}

XI void dec_q5_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256 d = _mm256_broadcast_ss(h + s);
    __m256 m = _mm256_broadcast_ss(h + 16 + s);
    widen(bytes_q5_k(b, s), v);
    EACH (i, 4) {
        v[i] = _mm256_fmsub_ps(v[i], d, m);
    }
}

XI void dec_q6_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    widen(bytes_q6_k(b, s), v);
    times(v, _mm256_broadcast_ss(h + 2 * s), _mm256_broadcast_ss(h + 2 * s + 1));
}

/* Affine types: code * scale + bias, two roundings. */
XI vec affine(__m256i q, const float *h)
{
    vec p = _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_broadcast_ss(h));
    return _mm256_add_ps(p, _mm256_broadcast_ss(h + 16));
}

/* Eight codes from one word. */
XI vec affine_word(uint32_t word, __m256i shift, int mask, const float *h)
{
    __m256i q = _mm256_srlv_epi32(_mm256_set1_epi32((int)word), shift);
    return affine(_mm256_and_si256(q, _mm256_set1_epi32(mask)), h);
}

/* Eight codes that cross bytes: `at` gathers the two bytes of each. */
XI vec affine_bytes(__m128i src, __m256i at, __m256i shift, int mask, const float *h)
{
    __m256i q = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(src), at);
    q = _mm256_srlv_epi32(q, shift);
    return affine(_mm256_and_si256(q, _mm256_set1_epi32(mask)), h);
}

XI void dec_aff2(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i shift = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    (void)s;
    EACH (i, 4) {
        v[i] = affine_word((uint16_t)ld16(b + 2 * i), shift, 3, h);
    }
}

XI void dec_aff3(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i shift = _mm256_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21);
    (void)s;
    EACH (i, 3) {
        v[i] = affine_word(ld32(b + 3 * i), shift, 7, h);
    }
    v[3] = affine_word(ld32(b + 8) >> 8, shift, 7, h);
}

XI void dec_aff4(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i shift = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    (void)s;
    EACH (i, 4) {
        v[i] = affine_word(ld32(b + 4 * i), shift, 15, h);
    }
}

#define AT5(c)                                                                                     \
    _mm256_setr_epi8(WINDOW(c), WINDOW(c), WINDOW((c) + 1), WINDOW((c) + 1), WINDOW((c) + 2),      \
                     WINDOW((c) + 3), WINDOW((c) + 3), WINDOW((c) + 4))
#define AT6(c)                                                                                     \
    _mm256_setr_epi8(WINDOW(c), WINDOW(c), WINDOW((c) + 1), WINDOW((c) + 2), WINDOW((c) + 3),      \
                     WINDOW((c) + 3), WINDOW((c) + 4), WINDOW((c) + 5))

XI void dec_aff5(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i shift = _mm256_setr_epi32(0, 5, 2, 7, 4, 1, 6, 3);
    __m128i q = ld16b(b);
    (void)s;
    v[0] = affine_bytes(q, AT5(0), shift, 31, h);
    v[1] = affine_bytes(q, AT5(5), shift, 31, h);
    v[2] = affine_bytes(q, AT5(10), shift, 31, h);
    v[3] = affine_bytes(ld16b(b + 4), AT5(11), shift, 31, h);
}

XI void dec_aff6(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i shift = _mm256_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2);
    __m128i q0 = ld16b(b);
    __m128i q1 = ld16b(b + 8);
    (void)s;
    v[0] = affine_bytes(q0, AT6(0), shift, 63, h);
    v[1] = affine_bytes(q0, AT6(6), shift, 63, h);
    v[2] = affine_bytes(q1, AT6(4), shift, 63, h);
    v[3] = affine_bytes(q1, AT6(10), shift, 63, h);
}

XI void dec_aff8(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    EACH (i, 4) {
        v[i] = affine(_mm256_cvtepu8_epi32(ld8b(b + 8 * i)), h);
    }
}

#include "kern/wmat_types.h"

void kvs__wkern_init_avx2(kvs__wkern *k)
{
    k->matmul = matmul;
    k->dequant = dequant;
    k->row = row;
}
