/* SPDX-License-Identifier: MIT */
/* math.h: exp, tanh, softplus and sigmoid as every tier computes them; these scalar forms are the
 * specification.
 *
 * exp(x): n = rint(x * log2 e) by adding 1.5 * 2^23; r = x - n ln 2 in two fma steps (ln 2 split so
 * that n times its head is exact, Cody & Waite); polynomial of degree 7 in r (coefficients of
 * Cephes expf); times 2^n by adding to the exponent. Below -86.5: 0. Above 88: +inf. NaN: the one
 * NaN 0x7fc00000. No subnormal result. */
#ifndef KVS_KERN_MATH_H
#define KVS_KERN_MATH_H

#include <math.h>

#include "base/half.h"

#define KVS__EXP_LO         (-86.5f)
#define KVS__EXP_HI         88.0f
#define KVS__EXP_LOG2E      1.44269504f
#define KVS__EXP_MAGIC      12582912.0f /* 1.5 * 2^23 */
#define KVS__EXP_MAGIC_BITS 0x4b400000u
#define KVS__EXP_LN2_HEAD   0.693359375f
#define KVS__EXP_LN2_TAIL   (-2.12194440e-4f)
#define KVS__EXP_C0         1.9875691500e-4f
#define KVS__EXP_C1         1.3981999507e-3f
#define KVS__EXP_C2         8.3334519073e-3f
#define KVS__EXP_C3         4.1665795894e-2f
#define KVS__EXP_C4         1.6666665459e-1f
#define KVS__EXP_C5         5.0000001201e-1f
#define KVS__NAN_BITS       0x7fc00000u

static inline float kvs__exp(float x)
{
    if (x != x) {
        return kvs__f32_bits(KVS__NAN_BITS);
    }
    if (x < KVS__EXP_LO) {
        return 0.0f;
    }
    if (x > KVS__EXP_HI) {
        return kvs__f32_bits(0x7f800000u);
    }
    float t = fmaf(x, KVS__EXP_LOG2E, KVS__EXP_MAGIC);
    float n = t - KVS__EXP_MAGIC;
    float r = fmaf(n, -KVS__EXP_LN2_HEAD, x);
    r = fmaf(n, -KVS__EXP_LN2_TAIL, r);
    float p = fmaf(KVS__EXP_C0, r, KVS__EXP_C1);
    p = fmaf(p, r, KVS__EXP_C2);
    p = fmaf(p, r, KVS__EXP_C3);
    p = fmaf(p, r, KVS__EXP_C4);
    p = fmaf(p, r, KVS__EXP_C5);
    float y = fmaf(p, r * r, r) + 1.0f;
    uint32_t shift = (kvs__bits_f32(t) - KVS__EXP_MAGIC_BITS) << 23;
    return kvs__f32_bits(kvs__bits_f32(y) + shift);
}

/* softcap * tanh(s / softcap), tanh(t) = 1 - 2 / (exp(2 t) + 1). */
static inline float kvs__softcap(float s, float cap)
{
    float e = kvs__exp(2.0f * (s / cap));
    return cap * (1.0f - 2.0f / (e + 1.0f));
}

/* log(1 + exp(x)) = max(x, 0) + log1p(e), e = exp(-|x|), log1p(e) = 2 atanh(z), z = e / (2 + e), by
 * the Taylor series of atanh up to z^15 (z <= 1/3). */
static inline float kvs__softplus(float x)
{
    if (x != x) {
        return kvs__f32_bits(KVS__NAN_BITS);
    }
    float e = kvs__exp(-fabsf(x));
    float z = e / (2.0f + e);
    float w = z * z;
    float p = fmaf(1.0f / 15, w, 1.0f / 13);
    p = fmaf(p, w, 1.0f / 11);
    p = fmaf(p, w, 1.0f / 9);
    p = fmaf(p, w, 1.0f / 7);
    p = fmaf(p, w, 1.0f / 5);
    p = fmaf(p, w, 1.0f / 3);
    float t = 2.0f * z;
    return (x > 0.0f ? x : 0.0f) + fmaf(p * w, t, t);
}

static inline float kvs__sigmoid(float x)
{
    return 1.0f / (1.0f + kvs__exp(-x));
}

#endif
