/* SPDX-License-Identifier: MIT */
/* wvec_ref.c: the reference of a transformer's vector operations (wmat.inc); the specification of
 * every other tier. A NaN result is always 0x7fc00000: the sign of an invalid operation and the
 * payload that survives differ between processors. */
#include <math.h>

#include "base/half.h"
#include "kern/math.h"
#include "kern/wmat.h"

#define LANES 16u

static float one_nan(float x)
{
    return x == x ? x : kvs__f32_bits(KVS__NAN_BITS);
}

static void rms_norm(float *y, const float *x, const float *weight, size_t n, float eps)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) {
        lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    }
    for (size_t h = LANES / 2; h > 0; h /= 2) {
        for (size_t i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    float mean = lane[0] / (float)n;
    float s = 1.0f / sqrtf(mean + eps);
    for (size_t i = 0; i < n; i++) {
        float t = x[i] * s;
        y[i] = one_nan(t * weight[i]);
    }
}

static void silu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float t = g[i] / (1.0f + kvs__exp(-g[i]));
        y[i] = one_nan(t * u[i]);
    }
}

static void gelu_mul(float *y, const float *g, const float *u, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float z = g[i] * fmaf(g[i] * g[i], KVS__GELU_C3, KVS__GELU_C1);
        float t = g[i] / (1.0f + kvs__exp(-z));
        y[i] = one_nan(t * u[i]);
    }
}

static void rotate(float *a, float *b, float c, float s)
{
    float p = *b * s;
    float q = *b * c;
    float t = fmaf(*a, c, -p);
    *b = one_nan(fmaf(*a, s, q));
    *a = one_nan(t);
}

static void rope_norm(float *x, size_t n_heads, size_t dim, size_t half, const float *cos,
                      const float *sin)
{
    for (size_t h = 0; h < n_heads; h++, x += dim) {
        for (size_t i = 0; i < half; i++) {
            rotate(&x[2 * i], &x[2 * i + 1], cos[i], sin[i]);
        }
    }
}

static void rope_neox(float *x, size_t n_heads, size_t dim, size_t half, const float *cos,
                      const float *sin)
{
    for (size_t h = 0; h < n_heads; h++, x += dim) {
        for (size_t i = 0; i < half; i++) {
            rotate(&x[i], &x[i + half], cos[i], sin[i]);
        }
    }
}

static void add(float *y, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = one_nan(a[i] + b[i]);
    }
}

static void scale(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = one_nan(x[i] * s);
    }
}

void kvs__wkern_init_vec_ref(kvs__wkern *k)
{
    k->rms_norm = rms_norm;
    k->silu_mul = silu_mul;
    k->gelu_mul = gelu_mul;
    k->rope_norm = rope_norm;
    k->rope_neox = rope_neox;
    k->add = add;
    k->scale = scale;
}
