/* SPDX-License-Identifier: MIT */
/* wref.c: the block types of model weights: table and reference decoder.
 *
 * One function per type decodes one block. Scales d, m, dmin are f16, read exactly; the order of
 * operations is that of the formulas (wtype.h says why it does not matter).
 * Nothing here is tuned and nothing checks sizes: callers pass whole blocks. */
#include "kern/wtype.h"

#include "base/base.h"
#include "base/half.h"

#define SUPER 256u /* elements of a K block */

static const kvs__wtype_info table[] = {
#define KVS_X(name, number, elems, bytes) {KVS__W_##name, elems, bytes, #name},
    KVS_WTYPE_MAP(KVS_X)
#undef KVS_X
};

const kvs__wtype_info *kvs__wtype_at(size_t i)
{
    return i < KVS_COUNT(table) ? &table[i] : NULL;
}

const kvs__wtype_info *kvs__wtype_get(uint32_t number)
{
    for (size_t i = 0; i < KVS_COUNT(table); i++) {
        if ((uint32_t)table[i].type == number) {
            return &table[i];
        }
    }
    return NULL;
}

static uint32_t le16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t le32(const uint8_t *p)
{
    return le16(p) | le16(p + 2) << 16;
}

static float f16_at(const uint8_t *p)
{
    return kvs__f16_to_f32((uint16_t)le16(p));
}

static void block_f32(const uint8_t *b, float *y)
{
    y[0] = kvs__f32_bits(le32(b));
}

static void block_f16(const uint8_t *b, float *y)
{
    y[0] = f16_at(b);
}

static void block_bf16(const uint8_t *b, float *y)
{
    y[0] = kvs__bf16_to_f32((uint16_t)le16(b));
}

/* Nibble of element e of 32: the low nibbles are elements 0..15, the high ones 16..31. */
static int nibble(const uint8_t *qs, uint32_t e)
{
    return qs[e % 16] >> (e / 16 * 4) & 15;
}

/* d, 16 bytes of nibbles: d * (q - 8) */
static void block_q4_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    for (uint32_t e = 0; e < 32; e++) {
        y[e] = d * (float)(nibble(b + 2, e) - 8);
    }
}

/* d, m, 16 bytes of nibbles: d * q + m */
static void block_q4_1(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    float m = f16_at(b + 2);
    for (uint32_t e = 0; e < 32; e++) {
        float p = d * (float)nibble(b + 4, e);
        y[e] = p + m;
    }
}

/* d, fifth bits (bit e of a u32), 16 bytes of nibbles: d * (q - 16) */
static void block_q5_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    uint32_t high = le32(b + 2);
    for (uint32_t e = 0; e < 32; e++) {
        int q = nibble(b + 6, e) | (int)(high >> e & 1u) << 4;
        y[e] = d * (float)(q - 16);
    }
}

/* d, m, fifth bits, 16 bytes of nibbles: d * q + m */
static void block_q5_1(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    float m = f16_at(b + 2);
    uint32_t high = le32(b + 4);
    for (uint32_t e = 0; e < 32; e++) {
        int q = nibble(b + 8, e) | (int)(high >> e & 1u) << 4;
        float p = d * (float)q;
        y[e] = p + m;
    }
}

static int int8_at(const uint8_t *p)
{
    return *p < 128 ? *p : *p - 256;
}

/* d, 32 signed bytes: q * d */
static void block_q8_0(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    for (uint32_t e = 0; e < 32; e++) {
        y[e] = (float)int8_at(b + 2 + e) * d;
    }
}

/* Two bits of element e of 256: 64 bytes, 32 for each half of the block; a byte holds the elements
 * that are 32 apart. */
static int two_bits(const uint8_t *qs, uint32_t e)
{
    return qs[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
}

/* 16 bytes (scale low, minimum high nibble), 64 bytes of 2-bit codes, d, dmin. Per 16 elements:
 * (d * scale) * q - (dmin * min) */
static void block_q2_k(const uint8_t *b, float *y)
{
    float d = f16_at(b + 80);
    float dmin = f16_at(b + 82);
    for (uint32_t e = 0; e < SUPER; e++) {
        uint8_t s = b[e / 16];
        float dl = d * (float)(s & 15);
        float ml = dmin * (float)(s >> 4);
        float p = dl * (float)two_bits(b + 16, e);
        y[e] = p - ml;
    }
}

/* Signed 6-bit scale i of 16 in 12 bytes: low nibbles in bytes i % 8, the two high bits in bytes
 * 8 + i % 4; stored plus 32. */
static int scale_q3_k(const uint8_t *s, uint32_t i)
{
    int low = s[i % 8] >> (i / 8 * 4) & 15;
    int high = s[8 + i % 4] >> (i / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

/* 32 bytes of third bits (bit e / 32 of byte e % 32; set: no offset), 64 bytes of 2-bit codes,
 * 12 bytes of scales, d. Per 16 elements: (d * scale) * (q - 4 unless the third bit is set) */
static void block_q3_k(const uint8_t *b, float *y)
{
    float d = f16_at(b + 108);
    for (uint32_t e = 0; e < SUPER; e++) {
        float dl = d * (float)scale_q3_k(b + 96, e / 16);
        int q = two_bits(b + 32, e) - (b[e % 32] >> (e / 32) & 1 ? 0 : 4);
        y[e] = dl * (float)q;
    }
}

/* 6-bit scale and minimum j of 8 in 12 bytes: the first four lie in the low six bits of bytes j and
 * j + 4; the others have their low nibbles in byte j + 4 and their two high bits on top of the
 * first four. */
static void scale_min(const uint8_t *s, uint32_t j, float *scale, float *min)
{
    int sc = 0;
    int mn = 0;
    if (j < 4) {
        sc = s[j] & 63;
        mn = s[j + 4] & 63;
    } else {
        sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        mn = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
    *scale = (float)sc;
    *min = (float)mn;
}

/* Nibble of element e of 256: 128 bytes, 32 for every 64 elements. */
static int nibble_k(const uint8_t *qs, uint32_t e)
{
    return qs[e / 64 * 32 + e % 32] >> (e % 64 / 32 * 4) & 15;
}

/* d, dmin, 12 bytes of scales and minima, 128 bytes of nibbles. Per 32 elements:
 * (d * scale) * q - (dmin * min) */
static void block_q4_k(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    float dmin = f16_at(b + 2);
    for (uint32_t e = 0; e < SUPER; e++) {
        float sc = 0.0f;
        float mn = 0.0f;
        scale_min(b + 4, e / 32, &sc, &mn);
        float dl = d * sc;
        float ml = dmin * mn;
        float p = dl * (float)nibble_k(b + 16, e);
        y[e] = p - ml;
    }
}

/* As q4_k with 32 bytes of fifth bits (bit e / 32 of byte e % 32) before the nibbles. */
static void block_q5_k(const uint8_t *b, float *y)
{
    float d = f16_at(b);
    float dmin = f16_at(b + 2);
    for (uint32_t e = 0; e < SUPER; e++) {
        float sc = 0.0f;
        float mn = 0.0f;
        scale_min(b + 4, e / 32, &sc, &mn);
        float dl = d * sc;
        float ml = dmin * mn;
        int q = nibble_k(b + 48, e) | (b[16 + e % 32] >> (e / 32) & 1) << 4;
        float p = dl * (float)q;
        y[e] = p - ml;
    }
}

/* 128 bytes of low nibbles (64 for each half of the block, a byte holds elements 64 apart), 64
 * bytes of high bit pairs (as two_bits), 16 signed scales, d. Per 16 elements:
 * (d * scale) * (q - 32) */
static void block_q6_k(const uint8_t *b, float *y)
{
    float d = f16_at(b + 208);
    for (uint32_t e = 0; e < SUPER; e++) {
        float dl = d * (float)int8_at(b + 192 + e / 16);
        int low = b[e / 128 * 64 + e % 64] >> (e % 128 / 64 * 4) & 15;
        int q = low | two_bits(b + 128, e) << 4;
        y[e] = dl * (float)(q - 32);
    }
}

typedef void (*block_fn)(const uint8_t *b, float *y);

static block_fn decoder(kvs__wtype type)
{
    switch (type) {
    case KVS__W_F32:
        return block_f32;
    case KVS__W_F16:
        return block_f16;
    case KVS__W_Q4_0:
        return block_q4_0;
    case KVS__W_Q4_1:
        return block_q4_1;
    case KVS__W_Q5_0:
        return block_q5_0;
    case KVS__W_Q5_1:
        return block_q5_1;
    case KVS__W_Q8_0:
        return block_q8_0;
    case KVS__W_Q2_K:
        return block_q2_k;
    case KVS__W_Q3_K:
        return block_q3_k;
    case KVS__W_Q4_K:
        return block_q4_k;
    case KVS__W_Q5_K:
        return block_q5_k;
    case KVS__W_Q6_K:
        return block_q6_k;
    case KVS__W_BF16:
        return block_bf16;
    default: /* affine types are no block types */
        return NULL;
    }
}

void kvs__gguf_dequant(kvs__wtype type, const void *src, size_t n, float *dst)
{
    const kvs__wtype_info *info = kvs__wtype_get((uint32_t)type);
    block_fn decode = decoder(type);
    if (KVS_NEVER(!info || !decode)) {
        return;
    }
    KVS_ASSERT(n % info->block_elems == 0);
    const uint8_t *b = src;
    for (size_t i = 0; i < n; i += info->block_elems, b += info->block_bytes) {
        decode(b, dst + i);
    }
}
