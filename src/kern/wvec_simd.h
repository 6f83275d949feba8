/* SPDX-License-Identifier: MIT */
/* wvec_simd.h: a transformer's vector operations over a small vector vocabulary; the body of
 * wvec_avx2.c and wvec_neon.c, which define first: vec, VL, vload, vstore, vset, vadd, vsub, vmul,
 * vdiv, vfma (a * b + c), vexp_shift (y, t: y times 2^n by the exponent bits of t, see math.h),
 * vlt (mask of a < b), vnan (mask of NaN), vsel (mask, a, b: a where set), rope_pairs.
 *
 * Elementwise, so that the width does not show; a ragged end goes through a copy in a full vector.
 * rms_norm has the 16 lanes of the reference: zeros that fill the last ones change nothing, since a
 * sum of squares is never -0. AVX-512 uses the AVX2 form: n operations beside a matrix's n * n. */
#ifndef KVS_KERN_WVEC_SIMD_H
#define KVS_KERN_WVEC_SIMD_H

#include <math.h>
#include <string.h>

#include "kern/math.h"
#include "kern/wmat.h"

#define AI    static inline __attribute__((always_inline))
#define LANES 16u
#define ACCS  (LANES / VL)

AI vec one_nan(vec x)
{
    return vsel(vnan(x), vset(kvs__f32_bits(KVS__NAN_BITS)), x);
}

/* kvs__exp of math.h */
AI vec vexp(vec x)
{
    vec t = vfma(x, vset(KVS__EXP_LOG2E), vset(KVS__EXP_MAGIC));
    vec n = vsub(t, vset(KVS__EXP_MAGIC));
    vec r = vfma(n, vset(-KVS__EXP_LN2_HEAD), x);
    r = vfma(n, vset(-KVS__EXP_LN2_TAIL), r);
    vec p = vfma(vset(KVS__EXP_C0), r, vset(KVS__EXP_C1));
    p = vfma(p, r, vset(KVS__EXP_C2));
    p = vfma(p, r, vset(KVS__EXP_C3));
    p = vfma(p, r, vset(KVS__EXP_C4));
    p = vfma(p, r, vset(KVS__EXP_C5));
    vec y = vadd(vfma(p, vmul(r, r), r), vset(1.0f));
    y = vexp_shift(y, t);
    y = vsel(vlt(x, vset(KVS__EXP_LO)), vset(0.0f), y);
    y = vsel(vlt(vset(KVS__EXP_HI), x), vset(HUGE_VALF), y);
    return vsel(vnan(x), vset(kvs__f32_bits(KVS__NAN_BITS)), y);
}

AI vec negate(vec x)
{
    return vmul(x, vset(-1.0f));
}

AI vec op_silu_mul(vec g, vec u)
{
    vec t = vdiv(g, vadd(vset(1.0f), vexp(negate(g))));
    return one_nan(vmul(t, u));
}

AI vec op_gelu_mul(vec g, vec u)
{
    vec z = vmul(g, vfma(vmul(g, g), vset(KVS__GELU_C3), vset(KVS__GELU_C1)));
    vec t = vdiv(g, vadd(vset(1.0f), vexp(negate(z))));
    return one_nan(vmul(t, u));
}

AI vec op_add(vec a, vec b)
{
    return one_nan(vadd(a, b));
}

/* Elements at p, of which `left` < VL exist. */
AI vec load_some(const float *p, size_t left)
{
    float t[VL] = {0};
    memcpy(t, p, left * sizeof *p);
    return vload(t);
}

AI void store_some(float *p, vec v, size_t left)
{
    float t[VL];
    vstore(t, v);
    memcpy(p, t, left * sizeof *p);
}

#define MAP2(name)                                                                                 \
    static void name(float *y, const float *a, const float *b, size_t n)                           \
    {                                                                                              \
        size_t i = 0;                                                                              \
        for (; i + VL <= n; i += VL) {                                                             \
            vstore(y + i, op_##name(vload(a + i), vload(b + i)));                                  \
        }                                                                                          \
        if (i < n) {                                                                               \
            vec v = op_##name(load_some(a + i, n - i), load_some(b + i, n - i));                   \
            store_some(y + i, v, n - i);                                                           \
        }                                                                                          \
    }
MAP2(silu_mul)
MAP2(gelu_mul)
MAP2(add)

static void scale(float *y, const float *x, float s, size_t n)
{
    vec f = vset(s);
    size_t i = 0;
    for (; i + VL <= n; i += VL) {
        vstore(y + i, one_nan(vmul(vload(x + i), f)));
    }
    if (i < n) {
        store_some(y + i, one_nan(vmul(load_some(x + i, n - i), f)), n - i);
    }
}

static float sum_squares(const float *x, size_t n)
{
    vec acc[ACCS];
    for (size_t c = 0; c < ACCS; c++) {
        acc[c] = vset(0.0f);
    }
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (size_t c = 0; c < ACCS; c++) {
            vec v = vload(x + i + c * VL);
            acc[c] = vfma(v, v, acc[c]);
        }
    }
    float lane[LANES] = {0};
    memcpy(lane, x + i, (n - i) * sizeof *x);
    for (size_t c = 0; c < ACCS; c++) {
        vec v = vload(lane + c * VL);
        acc[c] = vfma(v, v, acc[c]);
    }
    for (size_t c = 0; c < ACCS; c++) {
        vstore(lane + c * VL, acc[c]);
    }
    for (size_t h = LANES / 2; h > 0; h /= 2) {
        for (size_t j = 0; j < h; j++) {
            lane[j] += lane[j + h];
        }
    }
    return lane[0];
}

static void rms_norm(float *y, const float *x, const float *weight, size_t n, float eps)
{
    float mean = sum_squares(x, n) / (float)n;
    vec s = vset(1.0f / sqrtf(mean + eps));
    size_t i = 0;
    for (; i + VL <= n; i += VL) {
        vstore(y + i, one_nan(vmul(vmul(vload(x + i), s), vload(weight + i))));
    }
    if (i < n) {
        vec v = vmul(vmul(load_some(x + i, n - i), s), load_some(weight + i, n - i));
        store_some(y + i, one_nan(v), n - i);
    }
}

AI void rotate(vec *a, vec *b, vec c, vec s)
{
    vec p = vmul(*b, s);
    vec q = vmul(*b, c);
    vec t = vfma(*a, c, negate(p));
    *b = one_nan(vfma(*a, s, q));
    *a = one_nan(t);
}

static void rope_neox(float *x, size_t n_heads, size_t dim, size_t half, const float *cos,
                      const float *sin)
{
    for (size_t h = 0; h < n_heads; h++, x += dim) {
        float *y = x + half;
        size_t i = 0;
        for (; i + VL <= half; i += VL) {
            vec a = vload(x + i);
            vec b = vload(y + i);
            rotate(&a, &b, vload(cos + i), vload(sin + i));
            vstore(x + i, a);
            vstore(y + i, b);
        }
        if (i < half) {
            size_t left = half - i;
            vec a = load_some(x + i, left);
            vec b = load_some(y + i, left);
            rotate(&a, &b, load_some(cos + i, left), load_some(sin + i, left));
            store_some(x + i, a, left);
            store_some(y + i, b, left);
        }
    }
}

/* Neighbours: VL / 2 pairs fill a vector; a is the even element of each, b the odd one. */
static void rope_norm(float *x, size_t n_heads, size_t dim, size_t half, const float *cos,
                      const float *sin)
{
    for (size_t h = 0; h < n_heads; h++, x += dim) {
        size_t i = 0;
        for (; i + VL / 2 <= half; i += VL / 2) {
            vstore(x + 2 * i, one_nan(rope_pairs(vload(x + 2 * i), cos + i, sin + i)));
        }
        if (i < half) {
            size_t left = half - i;
            float c[VL / 2] = {0};
            float s[VL / 2] = {0};
            memcpy(c, cos + i, left * sizeof *c);
            memcpy(s, sin + i, left * sizeof *s);
            vec v = rope_pairs(load_some(x + 2 * i, 2 * left), c, s);
            store_some(x + 2 * i, one_nan(v), 2 * left);
        }
    }
}

static void init(kvs__wkern *k)
{
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->rope_norm = rope_norm;
    k->rope_neox = rope_neox;
    k->add = add;
    k->scale = scale;
}

#endif
