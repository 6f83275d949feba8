/* SPDX-License-Identifier: MIT */
/* half.h: f16 and bf16 to and from f32 in integers, exact: round to nearest even with gradual
 * underflow, NaN kept NaN (quiet bit set, top payload bits kept, as F16C and Armv8 do). */
#ifndef KVS_BASE_HALF_H
#define KVS_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t kvs__bits_f32(float x)
{
    uint32_t u = 0;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float kvs__f32_bits(uint32_t u)
{
    float x = 0;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float kvs__bf16_to_f32(uint16_t h)
{
    return kvs__f32_bits((uint32_t)h << 16);
}

static inline uint16_t kvs__bf16_from_f32(float x)
{
    uint32_t u = kvs__bits_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float kvs__f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = h & 0x7fffu;
    if (mag >= 0x7c00u) { /* inf, NaN: a signalling NaN becomes quiet, as in hardware */
        uint32_t frac = mag & 0x3ffu;
        return kvs__f32_bits(sign | 0x7f800000u | (frac ? 0x400000u : 0u) | (frac << 13));
    }
    if (mag >= 0x400u) {
        return kvs__f32_bits(sign | ((mag << 13) + 0x38000000u));
    }
    /* subnormal: mag * 2^-24 is exact in f32 */
    float x = (float)mag * 0x1p-24f;
    return kvs__f32_bits(sign | kvs__bits_f32(x));
}

static inline uint16_t kvs__f16_from_f32(float x)
{
    uint32_t u = kvs__bits_f32(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    }
    if (u >= 0x477ff000u) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (u < 0x38800000u) { /* below 2^-14: the result is subnormal, in units of 2^-24 */
        /* adding 0.5 aligns the last place of the sum with 2^-24, the hardware rounds to even */
        float r = kvs__f32_bits(u) + 0.5f;
        return (uint16_t)(sign | (kvs__bits_f32(r) - 0x3f000000u));
    }
    u += 0xc8000fffu + ((u >> 13) & 1u); /* rebias the exponent by -112, round to even */
    return (uint16_t)(sign | (u >> 13));
}

#endif
