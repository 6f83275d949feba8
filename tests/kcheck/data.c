/* SPDX-License-Identifier: MIT */
/* data.c: random numbers and the kinds of test data, all from the seed. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kcheck.h"

enum {
    RUN = 32 /* the least group of a codec */
};

uint64_t kc_u64(kc_rng *r)
{
    uint64_t z = r->s += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t kc_below(kc_rng *r, uint32_t n)
{
    return (uint32_t)((kc_u64(r) >> 32) * n >> 32);
}

static float uniform(kc_rng *r) /* [-1, 1) */
{
    return (float)((int64_t)(kc_u64(r) >> 40) - (1 << 23)) * 0x1p-23f;
}

/* Twelve uniform values of 10 bits: near enough to a bell, exact and the same on every machine. */
float kc_normal(kc_rng *r)
{
    int32_t sum = 0;
    for (int i = 0; i < 2; i++) {
        uint64_t z = kc_u64(r);
        for (int j = 0; j < 6; j++) {
            sum += (int32_t)(z >> (10 * j) & 1023);
        }
    }
    return (float)(sum - 6138) * 0x1p-10f;
}

static float special(kc_rng *r)
{
    static const uint32_t bits[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u,
                                    0x7f800001u, 0xffa12345u, 0x7fffffffu, 0xffffffffu};
    return kvs__f32_bits(bits[kc_below(r, 8)]);
}

static float huge(kc_rng *r)
{
    uint64_t z = kc_u64(r);
    uint32_t exponent = 1 + (uint32_t)(z >> 32) % 254;
    return kvs__f32_bits((uint32_t)(z & 0x807fffffu) | exponent << 23);
}

static void fill_run(kc_rng *r, kc_data kind, uint64_t zeros, float *dst, size_t n)
{
    float base = kc_normal(r);
    float sign = kc_below(r, 2) ? 1.0f : -1.0f;
    for (size_t i = 0; i < n; i++) {
        switch (kind) {
        case KC_UNIFORM:
            dst[i] = uniform(r);
            break;
        case KC_HUGE:
            dst[i] = huge(r);
            break;
        case KC_SUB:
            dst[i] = kvs__f32_bits((uint32_t)kc_u64(r) & 0x807fffffu);
            break;
        case KC_ZERO:
            dst[i] = kc_u64(r) >> 40 < zeros ? -0.0f : 0.0f;
            break;
        case KC_CONST:
            dst[i] = base;
            break;
        case KC_TIES:
            dst[i] = 0.25f * (float)((int32_t)kc_below(r, 61) - 30);
            break;
        case KC_TINY:
            dst[i] = 1e-7f * base * uniform(r);
            break;
        case KC_SIGNED:
            dst[i] = sign * fabsf(kc_normal(r));
            break;
        case KC_MIN:
            dst[i] = -FLT_MAX;
            break;
        case KC_MAX:
            dst[i] = FLT_MAX;
            break;
        case KC_BITS:
            dst[i] = kvs__f32_bits((uint32_t)kc_u64(r));
            break;
        case KC_SPECIAL:
            dst[i] = kc_below(r, 8) == 0 ? special(r) : kc_normal(r);
            break;
        case KC_ALL_NAN:
            dst[i] = kvs__f32_bits(0x7fc00000u | (uint32_t)kc_u64(r));
            break;
        case KC_ALL_INF:
            dst[i] = sign * HUGE_VALF;
            break;
        default:
            dst[i] = kc_normal(r);
            break;
        }
    }
}

/* Signs of zeros are drawn for a whole buffer: all +, all - or mixed, since a sum is -0 only where
 * every term is. */
void kc_fill_f32(kc_rng *r, kc_data kind, float *dst, size_t n)
{
    uint64_t zeros = (uint64_t)kc_below(r, 3) << 23;
    for (size_t i = 0; i < n; i += RUN) {
        size_t run = n - i < RUN ? n - i : RUN;
        kc_data k = kind == KC_MIX ? (kc_data)kc_below(r, KC_MIX) : kind;
        fill_run(r, k, zeros, dst + i, run);
    }
}

void kc_fill(kc_rng *r, kc_data kind, kvs_dtype dtype, void *dst, size_t n)
{
    if (dtype == KVS_F32) {
        kc_fill_f32(r, kind, dst, n);
        return;
    }
    uint16_t *h = dst;
    for (size_t i = 0; i < n; i += RUN) {
        float x[RUN] = {0};
        size_t run = n - i < RUN ? n - i : RUN;
        kc_fill_f32(r, kind, x, run);
        for (size_t j = 0; j < run; j++) {
            uint32_t u = kvs__bits_f32(x[j]);
            if (kind == KC_BITS) {
                h[i + j] = (uint16_t)u;
            } else if (kind == KC_SUB) {
                h[i + j] = (uint16_t)(u & (dtype == KVS_F16 ? 0x83ffu : 0x807fu));
            } else {
                h[i + j] = dtype == KVS_F16 ? kvs__f16_from_f32(x[j]) : kvs__bf16_from_f32(x[j]);
            }
        }
    }
}

void kc_fill_bytes(kc_rng *r, void *dst, size_t n)
{
    uint8_t *p = dst;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t z = kc_u64(r);
        memcpy(p + i, &z, n - i < 8 ? n - i : 8);
    }
}
