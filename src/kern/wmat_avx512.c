/* SPDX-License-Identifier: MIT */
/* wmat_avx512.c: weights x activations with AVX-512 F, BW, DQ, VL; equals wmat_ref.c bit for bit.
 *
 * Codes of up to five bits go through a table: 16 (or twice 16) decoded values in a register, found
 * by vpermps, which heeds only the lowest four bits of an index, so that low nibbles need no mask.
 * A tile is 6 rows of x by 4 of W: 24 accumulators. */
#include "kern/wmat_x86.h"

typedef __m512 vec;
#define VL           16u
#define vload        _mm512_loadu_ps
#define vstore       _mm512_storeu_ps
#define vzero        _mm512_setzero_ps
#define vfma         _mm512_fmadd_ps
#define TILE_R       6u
#define TILE_C       4u
#define FUSED_MAX    8u
#define FUSED_MOST   16u
#define FUSED_SHARED 1
#define FUSED_COLS_1 4
#define FUSED_COLS_2 4
#define FUSED_COLS_3 4
#define FUSED_COLS_4 2
#define FUSED_COLS_5 2
#define FUSED_COLS_6 2
#define FUSED_COLS_7 2
#define FUSED_COLS_8 2
#define FUSED_MORE(T, parts, bytes)                                                                \
    FUSED_FN(T, parts, bytes, 5)                                                                   \
    FUSED_FN(T, parts, bytes, 6) FUSED_FN(T, parts, bytes, 7) FUSED_FN(T, parts, bytes, 8)
#define FUSED_MORE_OPS(T) , fused_##T##_5, fused_##T##_6, fused_##T##_7, fused_##T##_8

#define TILE_STEP(a, xs, ldx, w, rows)                                                             \
    do {                                                                                           \
        vec tw[TILE_C];                                                                            \
        EACH (c, TILE_C) {                                                                         \
            tw[c] = vload((w) + c * VL);                                                           \
        }                                                                                          \
        EACH (r, (rows)) {                                                                         \
            vec tx = vload((xs) + r * (ldx));                                                      \
            HOLD(tx);                                                                              \
            EACH (c, TILE_C) {                                                                     \
                (a)[r][c] = vfma(tx, tw[c], (a)[r][c]);                                            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* i + (i + 8) of two times 16 lanes: 128-bit parts a0 a1 b0 b1. */
XI vec halves(vec a, vec b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

/* Sums of sixteen times 16 lanes, in the order of reduce4, from registers: a[i] to y[i]. */
XI void sum16(float *y, const vec *a)
{
    vec u[4];
    EACH (q, 4) { /* part p of u[q]: four lanes of output 4 p + q */
        vec ab = halves(a[q], a[4 + q]);
        vec cd = halves(a[8 + q], a[12 + q]);
        u[q] =
            _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    }
    vec v[2];
    EACH (q, 2) { /* i + (i + 2) of two outputs */
        v[q] = _mm512_add_ps(_mm512_shuffle_ps(u[2 * q], u[2 * q + 1], 0x44),
                             _mm512_shuffle_ps(u[2 * q], u[2 * q + 1], 0xee));
    }
    vec s = _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
    __mmask16 nan = _mm512_cmp_ps_mask(s, s, _CMP_UNORD_Q);
    vstore(y, _mm512_mask_mov_ps(s, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000))));
}

#include "kern/wmat_tile.h"

/* 0, 1, ... 15 */
XI vec iota(void)
{
    return _mm512_setr_ps(0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f, 9.0f, 10.0f, 11.0f,
                          12.0f, 13.0f, 14.0f, 15.0f);
}

XI vec iota_from(float start)
{
    return _mm512_add_ps(iota(), _mm512_set1_ps(start));
}

/* 0, 1, 2, 3 four times: a table for two bits whatever the next two are */
XI vec iota4(float start)
{
    return _mm512_setr_ps(start, start + 1.0f, start + 2.0f, start + 3.0f, start, start + 1.0f,
                          start + 2.0f, start + 3.0f, start, start + 1.0f, start + 2.0f,
                          start + 3.0f, start, start + 1.0f, start + 2.0f, start + 3.0f);
}

XI vec f16_all16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_set1_epi16(ld16(p)));
}

XI vec all(const float *p)
{
    return _mm512_set1_ps(*p);
}

XI __m512i bytes16(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(ld16b(p));
}

XI vec look(__m512i at, vec table)
{
    return _mm512_permutexvar_ps(at, table);
}

/* Where a bit of `high` is set, the second table. */
XI vec look2(__m512i at, __mmask16 high, vec table, vec table_high)
{
    return _mm512_mask_permutexvar_ps(look(at, table), high, at, table_high);
}

/* 16 signed bytes as floats. */
XI vec widen(__m128i q)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
}

XI void dec_f32(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    v[0] = _mm512_castsi512_ps(_mm512_loadu_si512(b));
    v[1] = _mm512_castsi512_ps(_mm512_loadu_si512(b + 64));
}

XI void dec_f16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    v[0] = _mm512_cvtph_ps(ld32b(b));
    v[1] = _mm512_cvtph_ps(ld32b(b + 32));
}

XI void dec_bf16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    v[0] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(ld32b(b)), 16));
    v[1] = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(ld32b(b + 32)), 16));
}

/* Tables of decoded values. An element in memory is an operand at no cost, where a broadcast of its
 * own takes turns with fma and look-ups at their ports: so by mul and add, the product being exact,
 * rather than by fma, of which one more operand would be a register. One row of x, cycles per 16
 * weights on a Zen 4: Q4_1 2.9 -> 2.6, Q4_0 2.9 -> 2.4. */

/* factors * h[0] */
XI vec times(vec factors, const float *h)
{
    return _mm512_mul_ps(factors, all(h));
}

/* factors * h[0] + h[1] */
XI vec times_plus(vec factors, const float *h)
{
    return _mm512_add_ps(times(factors, h), all(h + 1));
}

/* factors * h[0] - h[16] */
XI vec times_minus(vec factors, const float *h)
{
    return _mm512_sub_ps(times(factors, h), all(h + 16));
}

XI void dec_q4_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    vec table = times(iota_from(-8.0f), h);
    __m512i q = bytes16(b + 2);
    v[0] = look(q, table);
    v[1] = look(_mm512_srli_epi32(q, 4), table);
}

XI void dec_q4_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    vec table = times_plus(iota(), h);
    __m512i q = bytes16(b + 4);
    v[0] = look(q, table);
    v[1] = look(_mm512_srli_epi32(q, 4), table);
}

XI void five_bits(const uint8_t *high, const uint8_t *q, vec low, vec high_table, vec *v)
{
    uint32_t bits = ld32(high);
    __m512i at = bytes16(q);
    v[0] = look2(at, (__mmask16)bits, low, high_table);
    v[1] = look2(_mm512_srli_epi32(at, 4), (__mmask16)(bits >> 16), low, high_table);
}

XI void dec_q5_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    vec d = f16_all16(b);
    five_bits(b + 2, b + 6, _mm512_mul_ps(d, iota_from(-16.0f)), _mm512_mul_ps(d, iota()), v);
}

XI void dec_q5_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    vec dm = _mm512_cvtph_ps(_mm256_set1_epi32((int)ld32(b)));
    vec d = _mm512_moveldup_ps(dm); /* for two tables registers pay */
    vec m = _mm512_movehdup_ps(dm);
    five_bits(b + 4, b + 8, _mm512_fmadd_ps(d, iota(), m), _mm512_fmadd_ps(d, iota_from(16.0f), m),
              v);
}

XI void dec_q8_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    vec d = f16_all16(b);
    v[0] = _mm512_mul_ps(widen(ld16b(b + 2)), d);
    v[1] = _mm512_mul_ps(widen(ld16b(b + 18)), d);
}

XI void dec_q2_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        vec table = times_minus(iota4(0.0f), h + 2 * s + i);
        __m512i q = bytes16(b + 16 + s / 4 * 32 + 16 * i);
        v[i] = look(_mm512_srli_epi32(q, s % 4 * 2), table);
    }
}

XI void dec_q3_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m128i bit = _mm_set1_epi8((char)(1u << s));
    EACH (i, 2) {
        const float *d = h + 2 * s + i;
        __m512i q = _mm512_srli_epi32(bytes16(b + 32 + s / 4 * 32 + 16 * i), s % 4 * 2);
        __mmask16 high = _mm_test_epi8_mask(ld16b(b + 16 * i), bit);
        v[i] = look2(q, high, times(iota4(-4.0f), d), times(iota4(0.0f), d));
    }
}

XI __m512i nibbles_k16(const uint8_t *p, unsigned s, unsigned i)
{
    __m512i q = bytes16(p + s / 2 * 32 + 16 * i);
    return s % 2 ? _mm512_srli_epi32(q, 4) : q;
}

XI void dec_q4_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    vec table = times_minus(iota(), h + s);
    v[0] = look(nibbles_k16(b + 16, s, 0), table);
    v[1] = look(nibbles_k16(b + 16, s, 1), table);
}

XI void dec_q5_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    vec low = times_minus(iota(), h + s);
    vec high = times_minus(iota_from(16.0f), h + s);
    __m128i bit = _mm_set1_epi8((char)(1u << s));
    v[0] = look2(nibbles_k16(b + 48, s, 0), _mm_test_epi8_mask(ld16b(b + 16), bit), low, high);
    v[1] = look2(nibbles_k16(b + 48, s, 1), _mm_test_epi8_mask(ld16b(b + 32), bit), low, high);
}

XI void dec_q6_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m256i q = bytes_q6_k(b, s);
    v[0] = times(widen(_mm256_castsi256_si128(q)), h + 2 * s);
    v[1] = times(widen(_mm256_extracti128_si256(q, 1)), h + 2 * s + 1);
}

/* Affine types: code * scale + bias, two roundings. */
XI vec affine(vec codes, const float *h)
{
    return _mm512_add_ps(_mm512_mul_ps(codes, all(h)), all(h + 16));
}

/* 16 codes that cross bytes: `at` gathers the two bytes of each; higher bits are left. */
XI __m512i cut(__m128i src, __m512i at, __m512i shift)
{
    return _mm512_srlv_epi32(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(src), at), shift);
}

XI void dec_aff2(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m512i shift = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    vec table = affine(iota4(0.0f), h);
    (void)s;
    EACH (i, 2) {
        v[i] = look(_mm512_srlv_epi32(_mm512_set1_epi32((int)ld32(b + 4 * i)), shift), table);
    }
}

#define BYTES64(...) _mm512_loadu_si512((const char[64]){__VA_ARGS__})
#define AT3(c)                                                                                     \
    WINDOW(c), WINDOW(c), WINDOW(c), WINDOW((c) + 1), WINDOW((c) + 1), WINDOW((c) + 1),            \
        WINDOW((c) + 2), WINDOW((c) + 2)
#define AT5(c)                                                                                     \
    WINDOW(c), WINDOW(c), WINDOW((c) + 1), WINDOW((c) + 1), WINDOW((c) + 2), WINDOW((c) + 3),      \
        WINDOW((c) + 3), WINDOW((c) + 4)
#define AT6(c)                                                                                     \
    WINDOW(c), WINDOW(c), WINDOW((c) + 1), WINDOW((c) + 2), WINDOW((c) + 3), WINDOW((c) + 3),      \
        WINDOW((c) + 4), WINDOW((c) + 5)

XI void dec_aff3(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m512i shift = _mm512_setr_epi32(0, 3, 6, 1, 4, 7, 2, 5, 0, 3, 6, 1, 4, 7, 2, 5);
    vec eight = _mm512_setr_ps(0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 0.0f, 1.0f, 2.0f,
                               3.0f, 4.0f, 5.0f, 6.0f, 7.0f);
    vec table = affine(eight, h);
    __m128i q = ld12b(b);
    (void)s;
    v[0] = look(cut(q, BYTES64(AT3(0), AT3(3)), shift), table);
    v[1] = look(cut(q, BYTES64(AT3(6), AT3(9)), shift), table);
}

/* A byte in 64 bits; shifted by 28 its high nibble begins the upper half. */
XI void dec_aff4(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    vec table = affine(iota(), h);
    (void)s;
    EACH (i, 2) {
        __m512i q = _mm512_cvtepu8_epi64(ld8b(b + 8 * i));
        v[i] = look(_mm512_or_si512(q, _mm512_slli_epi64(q, 28)), table);
    }
}

XI void dec_aff5(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m512i shift = _mm512_setr_epi32(0, 5, 2, 7, 4, 1, 6, 3, 0, 5, 2, 7, 4, 1, 6, 3);
    vec low = affine(iota(), h);
    vec high = affine(iota_from(16.0f), h);
    (void)s;
    __m512i q0 = cut(ld16b(b), BYTES64(AT5(0), AT5(5)), shift);
    __m512i q1 = cut(ld16b(b + 4), BYTES64(AT5(6), AT5(11)), shift);
    v[0] = _mm512_permutex2var_ps(low, q0, high);
    v[1] = _mm512_permutex2var_ps(low, q1, high);
}

XI void dec_aff6(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    __m512i shift = _mm512_setr_epi32(0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2, 0, 6, 4, 2);
    __m512i mask = _mm512_set1_epi32(63);
    (void)s;
    __m512i q0 = cut(ld16b(b), BYTES64(AT6(0), AT6(6)), shift);
    __m512i q1 = cut(ld16b(b + 8), BYTES64(AT6(4), AT6(10)), shift);
    v[0] = affine(_mm512_cvtepi32_ps(_mm512_and_si512(q0, mask)), h);
    v[1] = affine(_mm512_cvtepi32_ps(_mm512_and_si512(q1, mask)), h);
}

XI void dec_aff8(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    v[0] = affine(_mm512_cvtepi32_ps(bytes16(b)), h);
    v[1] = affine(_mm512_cvtepi32_ps(bytes16(b + 16)), h);
}

/* NOLINTBEGIN(readability-identifier-naming): they stand for functions */
#undef hdr_q4_0
#undef hdr_q5_1
#define hdr_q4_0 hdr_pair
#define hdr_q5_1 hdr_none
/* NOLINTEND(readability-identifier-naming) */

#include "kern/wmat_types.h"

void kvs__wkern_init_avx512(kvs__wkern *k)
{
    k->matmul = matmul;
    k->dequant = dequant;
    k->row = row;
}
