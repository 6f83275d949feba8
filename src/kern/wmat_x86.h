/* SPDX-License-Identifier: MIT */
/* wmat_x86.h: what the AVX2 and AVX-512 tiers share in decoding weight blocks: scales of a block
 * (hdr_T: factors in h[0..15], offsets in h[16..31], products exact in f32) and the codes of a
 * 32-element part as signed bytes (bytes_T). AVX2 instructions only. Layouts as in wref.c. */
#ifndef KVS_KERN_WMAT_X86_H
#define KVS_KERN_WMAT_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH(i, n) UNROLL for (unsigned i = 0; i < (n); i++)
#define XI         static inline __attribute__((always_inline))
/* Keeps the compiler from turning one load into a memory operand of each use. */
#define HOLD(v) __asm__("" : "+v"(v))

#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)

XI int16_t ld16(const uint8_t *p)
{
    int16_t x = 0;
    memcpy(&x, p, sizeof x);
    return x;
}

XI uint32_t ld32(const uint8_t *p)
{
    uint32_t x = 0;
    memcpy(&x, p, sizeof x);
    return x;
}

XI __m128i ld8b(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)(const void *)p);
}

XI __m128i ld16b(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

XI __m256i ld32b(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

XI float f16_one(const uint8_t *p)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((uint16_t)ld16(p))));
}

/* -- sums of lanes: i + (i + 8), i + (i + 4), i + (i + 2), i + (i + 1)
 *
 * The first step takes halves from memory and needs no shuffle. In the next two, two outputs share a
 * vector, of which one is added the other way round: one shuffle where two would do the same. */

/* i + (i + 8) of 16 lanes */
XI __m256 fold16(const float *acc)
{
    return _mm256_add_ps(_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + 8));
}

/* i + (i + 4): a's lanes in the lower half, b's in the upper one. */
XI __m256 fold8(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}

/* i + (i + 2) in each half: two lanes of a's output, two of b's. */
XI __m256 fold4(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}

/* Four times 16 lanes to four sums. */
XI void reduce4(float *y, const float *acc)
{
    __m256 s =
        fold4(fold8(fold16(acc), fold16(acc + 32)), fold8(fold16(acc + 16), fold16(acc + 48)));
    __m128 lo = _mm256_castps256_ps128(s);
    __m128 hi = _mm256_extractf128_ps(s, 1);
    __m128 r = _mm_add_ps(_mm_shuffle_ps(lo, hi, 0x88), _mm_shuffle_ps(lo, hi, 0xdd));
    __m128 nan = _mm_castsi128_ps(_mm_set1_epi32(0x7fc00000));
    _mm_storeu_ps(y, _mm_blendv_ps(r, nan, _mm_cmpunord_ps(r, r)));
}

/* Eight times 16 lanes to eight sums. */
#define REDUCE8
XI void reduce8(float *y, const float *acc)
{
    __m256 v[4];
    EACH (i, 4) {
        v[i] = fold8(fold16(acc + 16 * i), fold16(acc + 16 * i + 64));
    }
    __m256 lo = fold4(v[0], v[1]);
    __m256 hi = fold4(v[2], v[3]);
    __m256 r = _mm256_add_ps(_mm256_shuffle_ps(lo, hi, 0x88), _mm256_shuffle_ps(lo, hi, 0xdd));
    __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(y, _mm256_blendv_ps(r, nan, _mm256_cmp_ps(r, r, _CMP_UNORD_Q)));
}

/* 12 bytes, then zeros. */
XI __m128i ld12b(const uint8_t *p)
{
    return _mm_insert_epi32(ld8b(p), (int)ld32(p + 8), 2);
}

/* A byte and the next one in the low half of a 32-bit element, for codes that cross bytes. */
#define WINDOW(at) (char)(at), (char)((at) + 1), -128, -128

/* An f16 in every element. */
XI __m256 f16_all(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_set1_epi16(ld16(p)));
}

/* Scales that lie in the block as they are: nothing to prepare. */
XI void hdr_none(const uint8_t *b, float *h)
{
    (void)b;
    (void)h;
}

/* Two f16 as they lie, to h[0] and h[1]. They go through memory, from where a load broadcasts for
 * free: shuffles take turns with fma at a port. */
XI void hdr_pair(const uint8_t *b, float *h)
{
    _mm_storeu_ps(h, _mm_cvtph_ps(_mm_cvtsi32_si128((int)ld32(b))));
    __asm__("" : "+m"(*(float(*)[4])h));
}

/* NOLINTBEGIN(readability-identifier-naming): they stand for functions */
#define hdr_q4_0 hdr_none
#define hdr_q4_1 hdr_pair
#define hdr_q5_0 hdr_none
#define hdr_q5_1 hdr_pair
#define hdr_q8_0 hdr_none
/* NOLINTEND(readability-identifier-naming) */

/* h[0..7] = d * signed bytes of q */
XI void scale8(float *h, __m128i q, __m256 d)
{
    _mm256_storeu_ps(h, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q)), d));
}

XI void hdr_q2_k(const uint8_t *b, float *h)
{
    __m128i q = ld16b(b);
    __m128i mask = _mm_set1_epi8(15);
    __m128i sc = _mm_and_si128(q, mask);
    __m128i mn = _mm_and_si128(_mm_srli_epi16(q, 4), mask);
    __m256 d = f16_all(b + 80);
    __m256 dmin = f16_all(b + 82);
    scale8(h, sc, d);
    scale8(h + 8, _mm_srli_si128(sc, 8), d);
    scale8(h + 16, mn, dmin);
    scale8(h + 24, _mm_srli_si128(mn, 8), dmin);
}

XI void hdr_q3_k(const uint8_t *b, float *h)
{
    uint32_t lo0 = ld32(b + 96);
    uint32_t lo1 = ld32(b + 100);
    uint32_t hi = ld32(b + 104);
    uint32_t m4 = 0x0f0f0f0fu;
    uint32_t m2 = 0x03030303u;
    uint32_t s0 = (lo0 & m4) | (hi & m2) << 4;
    uint32_t s1 = (lo1 & m4) | (hi >> 2 & m2) << 4;
    uint32_t s2 = (lo0 >> 4 & m4) | (hi >> 4 & m2) << 4;
    uint32_t s3 = (lo1 >> 4 & m4) | (hi >> 6 & m2) << 4;
    __m128i q = _mm_setr_epi32((int)s0, (int)s1, (int)s2, (int)s3);
    q = _mm_sub_epi8(q, _mm_set1_epi8(32));
    __m256 d = f16_all(b + 108);
    scale8(h, q, d);
    scale8(h + 8, _mm_srli_si128(q, 8), d);
}

/* Eight scales to h[0..7], eight minima to h[16..23]: q4_k and q5_k. */
XI void hdr_q4_k(const uint8_t *b, float *h)
{
    uint32_t a = ld32(b + 4);
    uint32_t m = ld32(b + 8);
    uint32_t c = ld32(b + 12);
    uint32_t m6 = 0x3f3f3f3fu;
    uint32_t m4 = 0x0f0f0f0fu;
    uint32_t m2 = 0x03030303u;
    uint32_t sc1 = (c & m4) | (a >> 6 & m2) << 4;
    uint32_t mn1 = (c >> 4 & m4) | (m >> 6 & m2) << 4;
    __m128i q = _mm_setr_epi32((int)(a & m6), (int)sc1, (int)(m & m6), (int)mn1);
    scale8(h, q, f16_all(b));
    scale8(h + 16, _mm_srli_si128(q, 8), f16_all(b + 2));
}

XI void hdr_q6_k(const uint8_t *b, float *h)
{
    __m128i q = ld16b(b + 192);
    __m256 d = f16_all(b + 208);
    scale8(h, q, d);
    scale8(h + 8, _mm_srli_si128(q, 8), d);
}

/* 0xff in byte e where bit e is set. */
XI __m256i bits_to_bytes(uint32_t bits)
{
    __m256i at = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    __m256i bit = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
    __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), at);
    return _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
}

/* 16 bytes of nibbles: low ones first. */
XI __m256i nibbles(const uint8_t *p)
{
    __m128i q = ld16b(p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(q), _mm_srli_epi16(q, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

XI __m256i bytes_q5_0(const uint8_t *b)
{
    /* q - 16: the fifth bit clear means that all upper bits of the signed byte are set */
    __m256i high = _mm256_andnot_si256(bits_to_bytes(ld32(b + 2)), _mm256_set1_epi8(-16));
    return _mm256_or_si256(nibbles(b + 6), high);
}

XI __m256i bytes_q5_1(const uint8_t *b)
{
    __m256i high = _mm256_and_si256(bits_to_bytes(ld32(b + 4)), _mm256_set1_epi8(16));
    return _mm256_or_si256(nibbles(b + 8), high);
}

/* 2-bit codes of part s of 64 bytes at p. */
XI __m256i two_bits(const uint8_t *p, unsigned s)
{
    __m256i q = ld32b(p + s / 4 * 32);
    return _mm256_and_si256(_mm256_srli_epi16(q, (int)(s % 4 * 2)), _mm256_set1_epi8(3));
}

XI __m256i bytes_q2_k(const uint8_t *b, unsigned s)
{
    return two_bits(b + 16, s);
}

XI __m256i bytes_q3_k(const uint8_t *b, unsigned s)
{
    __m256i bit = _mm256_set1_epi8((char)(1u << s));
    __m256i clear = _mm256_cmpeq_epi8(_mm256_and_si256(ld32b(b), bit), _mm256_setzero_si256());
    /* clear: minus 4, which is all bits above the two set */
    return _mm256_or_si256(two_bits(b + 32, s), _mm256_and_si256(clear, _mm256_set1_epi8(-4)));
}

XI __m256i nibbles_k(const uint8_t *p, unsigned s)
{
    __m256i q = ld32b(p + s / 2 * 32);
    q = s % 2 ? _mm256_srli_epi16(q, 4) : q;
    return _mm256_and_si256(q, _mm256_set1_epi8(15));
}

XI __m256i bytes_q5_k(const uint8_t *b, unsigned s)
{
    __m256i bit = _mm256_set1_epi8((char)(1u << s));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(ld32b(b + 16), bit), bit);
    return _mm256_or_si256(nibbles_k(b + 48, s), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

XI __m256i bytes_q6_k(const uint8_t *b, unsigned s)
{
    __m256i low = ld32b(b + s / 4 * 64 + s % 2 * 32);
    low = s % 4 >= 2 ? _mm256_srli_epi16(low, 4) : low;
    low = _mm256_and_si256(low, _mm256_set1_epi8(15));
    __m256i high = _mm256_slli_epi16(two_bits(b + 128, s), 4);
    return _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
}

#endif
