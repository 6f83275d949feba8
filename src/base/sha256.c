/* SPDX-License-Identifier: MIT */
/* sha256.c: SHA-256 by the book, by the x86 SHA extensions, and by the Armv8 crypto extensions.
 *
 * The plain code is the specification; the others take the same blocks and are compared with it in
 * the tests. Which one runs is asked once. */
#include "base/sha256.h"

#include <pthread.h>
#include <string.h>

#if !defined(KVS_NO_SIMD) && defined(__x86_64__)
#define SHA_X86 1
#include <cpuid.h>
#include <immintrin.h>
#elif !defined(KVS_NO_SIMD) && defined(__aarch64__) && defined(__linux__) &&                       \
    (!defined(__clang__) || defined(__ARM_FEATURE_SHA2))
#define SHA_ARM 1
#ifndef __clang__
#pragma GCC push_options
#pragma GCC target("+crypto")
#endif
#include <arm_neon.h>
#include <sys/auxv.h>
#define HWCAP_SHA2_BIT (1ul << 6)
#endif

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store_be(uint8_t *p, uint32_t x)
{
    p[0] = (uint8_t)(x >> 24);
    p[1] = (uint8_t)(x >> 16);
    p[2] = (uint8_t)(x >> 8);
    p[3] = (uint8_t)x;
}

static void block_plain(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64];
    uint32_t s[8];
    for (size_t i = 0; i < 16; i++) {
        w[i] = load_be(p + 4 * i);
    }
    for (size_t i = 16; i < 64; i++) {
        uint32_t a = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, h, sizeof s);
    for (size_t i = 0; i < 64; i++) {
        uint32_t e = rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25);
        uint32_t t1 = s[7] + e + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t a = rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22);
        uint32_t t2 = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (size_t i = 0; i < 8; i++) {
        h[i] += s[i];
    }
}

void kvs__sha256_blocks_plain(uint32_t h[8], const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        block_plain(h, p + 64 * i);
    }
}

#if defined(SHA_X86)
static bool have_fast(void)
{
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !((c >> 19) & 1u) || !((c >> 9) & 1u)) {
        return false; /* SSE4.1 and SSSE3 */
    }
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && ((b >> 29) & 1u);
}

/* The instructions keep the state as {a,b,e,f} and {c,d,g,h}, highest word first. */
__attribute__((target("sha,sse4.1,ssse3"))) static void blocks_fast(uint32_t h[8], const uint8_t *p,
                                                                    size_t n)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i t = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)h), 0xb1);
    __m128i hi = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(h + 4)), 0x1b);
    __m128i s0 = _mm_alignr_epi8(t, hi, 8);
    __m128i s1 = _mm_blend_epi16(hi, t, 0xf0);
    for (; n > 0; n--, p += 64) {
        const __m128i keep0 = s0;
        const __m128i keep1 = s1;
        __m128i m[4];
        for (size_t i = 0; i < 4; i++) {
            m[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)),
                                    swap);
        }
#if defined(__clang__)
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 16
#endif
        for (size_t i = 0; i < 16; i++) {
            __m128i w = m[i % 4];
            __m128i x =
                _mm_add_epi32(w, _mm_loadu_si128((const __m128i *)(const void *)(k + 4 * i)));
            s1 = _mm_sha256rnds2_epu32(s1, s0, x);
            s0 = _mm_sha256rnds2_epu32(s0, s1, _mm_shuffle_epi32(x, 0x0e));
            if (i < 12) { /* words 16 + 4 i ... */
                __m128i y = _mm_sha256msg1_epu32(w, m[(i + 1) % 4]);
                y = _mm_add_epi32(y, _mm_alignr_epi8(m[(i + 3) % 4], m[(i + 2) % 4], 4));
                m[i % 4] = _mm_sha256msg2_epu32(y, m[(i + 3) % 4]);
            }
        }
        s0 = _mm_add_epi32(s0, keep0);
        s1 = _mm_add_epi32(s1, keep1);
    }
    t = _mm_shuffle_epi32(s0, 0x1b);
    hi = _mm_shuffle_epi32(s1, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)h, _mm_blend_epi16(t, hi, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(h + 4), _mm_alignr_epi8(hi, t, 8));
}
#elif defined(SHA_ARM)
static bool have_fast(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_SHA2_BIT) != 0;
}

static void blocks_fast(uint32_t h[8], const uint8_t *p, size_t n)
{
    uint32x4_t s0 = vld1q_u32(h);
    uint32x4_t s1 = vld1q_u32(h + 4);
    for (; n > 0; n--, p += 64) {
        const uint32x4_t keep0 = s0;
        const uint32x4_t keep1 = s1;
        uint32x4_t m[4];
        for (size_t i = 0; i < 4; i++) {
            m[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(p + 16 * i)));
        }
        for (size_t i = 0; i < 16; i++) {
            uint32x4_t x = vaddq_u32(m[i % 4], vld1q_u32(k + 4 * i));
            uint32x4_t was = s0;
            s0 = vsha256hq_u32(s0, s1, x);
            s1 = vsha256h2q_u32(s1, was, x);
            if (i < 12) {
                m[i % 4] = vsha256su1q_u32(vsha256su0q_u32(m[i % 4], m[(i + 1) % 4]),
                                           m[(i + 2) % 4], m[(i + 3) % 4]);
            }
        }
        s0 = vaddq_u32(s0, keep0);
        s1 = vaddq_u32(s1, keep1);
    }
    vst1q_u32(h, s0);
    vst1q_u32(h + 4, s1);
}
#ifndef __clang__
#pragma GCC pop_options
#endif
#else
static bool have_fast(void)
{
    return false;
}

static void blocks_fast(uint32_t h[8], const uint8_t *p, size_t n)
{
    kvs__sha256_blocks_plain(h, p, n);
}
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool fast;

static void ask(void)
{
    fast = have_fast();
}

bool kvs__sha256_blocks_fast(uint32_t h[8], const uint8_t *p, size_t n)
{
    (void)pthread_once(&once, ask);
    if (fast) {
        blocks_fast(h, p, n);
    }
    return fast;
}

static void blocks(uint32_t h[8], const uint8_t *p, size_t n)
{
    if (n > 0 && !kvs__sha256_blocks_fast(h, p, n)) {
        kvs__sha256_blocks_plain(h, p, n);
    }
}

void kvs__sha256_init(kvs__sha256 *s)
{
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(s, 0, sizeof *s);
    memcpy(s->h, start, sizeof start);
}

void kvs__sha256_add(kvs__sha256 *s, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    size_t have = (size_t)(s->bytes % 64);
    s->bytes += bytes;
    if (have > 0) {
        size_t n = bytes < 64 - have ? bytes : 64 - have;
        if (n > 0) {
            memcpy(s->block + have, p, n);
        }
        if (have + n < 64) {
            return;
        }
        blocks(s->h, s->block, 1);
        p += n;
        bytes -= n;
    }
    blocks(s->h, p, bytes / 64);
    if (bytes % 64 > 0) {
        memcpy(s->block, p + bytes / 64 * 64, bytes % 64);
    }
}

void kvs__sha256_end(kvs__sha256 *s, uint8_t out[KVS__SHA_BYTES])
{
    size_t have = (size_t)(s->bytes % 64);
    uint64_t bits = s->bytes * 8;
    s->block[have++] = 0x80;
    if (have > 56) {
        memset(s->block + have, 0, 64 - have);
        blocks(s->h, s->block, 1);
        have = 0;
    }
    memset(s->block + have, 0, 56 - have);
    store_be(s->block + 56, (uint32_t)(bits >> 32));
    store_be(s->block + 60, (uint32_t)bits);
    blocks(s->h, s->block, 1);
    for (size_t i = 0; i < 8; i++) {
        store_be(out + 4 * i, s->h[i]);
    }
}

void kvs__sha256_of(const void *data, size_t bytes, uint8_t out[KVS__SHA_BYTES])
{
    kvs__sha256 s;
    kvs__sha256_init(&s);
    kvs__sha256_add(&s, data, bytes);
    kvs__sha256_end(&s, out);
}

void kvs__sha256_field(kvs__sha256 *s, const void *data, size_t bytes)
{
    uint8_t n[8];
    for (size_t i = 0; i < 8; i++) {
        n[i] = (uint8_t)((uint64_t)bytes >> (8 * i));
    }
    kvs__sha256_add(s, n, sizeof n);
    kvs__sha256_add(s, data, bytes);
}
