/* SPDX-License-Identifier: MIT */
/* codec_x86.h: packing of codes in 256-bit and 128-bit integer vectors, shared by codec_avx2.c and
 * codec_avx512.c. `bits` is a constant wherever it is passed. */
#ifndef KVS_KERN_CODEC_X86_H
#define KVS_KERN_CODEC_X86_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef __m256i v32; /* byte i: code i */

/* 16 codes of a stream each: 2 * bits bytes from byte 0 on, rubbish after them. */
typedef struct v32_stream {
    __m128i half[2];
} v32_stream;

/* Shuffle bytes i .. i + 3 that move together the `b` bytes that either 64 bits hold. */
#define KEEP(b, i) ((i) < (b) ? (i) : (i) < 2 * (b) ? 8 + (i) - (b) : 0x80u)
#define KEEP_4(b, i)                                                                               \
    ((int)(KEEP(b, i) | KEEP(b, (i) + 1) << 8 | KEEP(b, (i) + 2) << 16 | KEEP(b, (i) + 3) << 24))

/* Writes the low 2 * bits bytes and no more. */
INLINE void store_16_codes(uint8_t *dst, __m128i v, uint32_t bits)
{
    if (bits < 4) {
        int32_t low = _mm_cvtsi128_si32(v);
        memcpy(dst, &low, 4);
    } else {
        _mm_storel_epi64((__m128i *)(void *)dst, v);
    }
    if (bits == 3 || bits == 5) {
        uint16_t rest = (uint16_t)(bits == 3 ? _mm_extract_epi16(v, 2) : _mm_extract_epi16(v, 4));
        memcpy(dst + 2 * bits - 2, &rest, 2);
    } else if (bits == 6) {
        int32_t rest = _mm_extract_epi32(v, 2);
        memcpy(dst + 8, &rest, 4);
    }
}

/* Neighbours are joined three times, to 2, 4 and 8 codes in 16, 32 and 64 bits; then the `bits`
 * bytes that each 64 bits hold are moved together. */
INLINE void v32_pack(uint32_t *words, v32 c, uint32_t bits)
{
    if (bits == 8) {
        _mm256_storeu_si256((__m256i *)(void *)words, c);
        return;
    }
    c = _mm256_maddubs_epi16(c, _mm256_set1_epi16((short)(1u | 1u << (8 + bits))));
    c = _mm256_madd_epi16(c, _mm256_set1_epi32((int)(1u | 1u << (16 + 2 * bits))));
    __m256i high = _mm256_slli_epi64(_mm256_srli_epi64(c, 32), (int)(4 * bits));
    if (bits > 4) {
        c = _mm256_and_si256(c, _mm256_set1_epi64x(0xffffffff));
    } else {
        high = _mm256_srli_epi64(c, (int)(32 - 4 * bits));
    }
    c = _mm256_or_si256(c, high);
    __m128i keep = _mm_setr_epi32(KEEP_4(bits, 0u), KEEP_4(bits, 4u), KEEP_4(bits, 8u), -1);
    c = _mm256_shuffle_epi8(c, _mm256_broadcastsi128_si256(keep));
    uint8_t *dst = (uint8_t *)words;
    store_16_codes(dst, _mm256_castsi256_si128(c), bits);
    store_16_codes(dst + 2 * bits, _mm256_extracti128_si256(c, 1), bits);
}

/* Reads the 2 * bits bytes of 16 codes and no more. */
INLINE __m128i load_16_codes(const uint8_t *p, uint32_t bits)
{
    if (bits == 8) {
        return _mm_loadu_si128((const __m128i *)(const void *)p);
    }
    uint64_t low = 0;
    memcpy(&low, p, bits < 4 ? 4 : 8);
    __m128i v = _mm_cvtsi64_si128((long long)low);
    if (bits == 3 || bits == 5) {
        uint16_t rest = 0;
        memcpy(&rest, p + 2 * bits - 2, 2);
        v = bits == 3 ? _mm_insert_epi16(v, rest, 2) : _mm_insert_epi16(v, rest, 4);
    } else if (bits == 6) {
        int32_t rest = 0;
        memcpy(&rest, p + 8, 4);
        v = _mm_insert_epi32(v, rest, 2);
    }
    return v;
}

INLINE v32_stream v32_load(const uint32_t *words, uint32_t bits, size_t left)
{
    const uint8_t *p = (const uint8_t *)words;
    v32_stream s;
    if (left >= 2 * bits + 16) { /* whole vectors, all of it within the argument */
        s.half[0] = _mm_loadu_si128((const __m128i *)(const void *)p);
        s.half[1] = _mm_loadu_si128((const __m128i *)(const void *)(p + 2 * bits));
    } else {
        s.half[0] = load_16_codes(p, bits);
        s.half[1] = load_16_codes(p + 2 * bits, bits);
    }
    return s;
}

/* Code k of 16: the shuffle that brings the one or two bytes it lies in to a 32-bit lane, and the
 * shift that brings it down there. */
#define BYTES(b, k)                                                                                \
    ((int)(0x80800000u | (((k) * (b) % 8 + (b) > 8) ? (k) * (b) / 8 + 1 : 0x80u) << 8 |            \
           (k) * (b) / 8))
#define SHIFT(b, k) ((int)((k) * (b) % 8))

#endif
