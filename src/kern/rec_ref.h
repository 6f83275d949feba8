/* SPDX-License-Identifier: MIT */
/* rec_ref.h: the reference kernels of recurrent layers, a part of kern_ref.c. The order of
 * operations here is the specification. `gates` is the same scalar code on every tier. */
#ifndef KVS_KERN_REC_REF_H
#define KVS_KERN_REC_REF_H

#include <math.h>

#include "kern/kern.h"
#include "kern/rec_gates.h"

static float one_nan(float x)
{
    return x != x ? kvs__f32_bits(KVS__NAN_BITS) : x;
}

static void conv_taps(float *y, size_t ldy, const float *x, size_t ldx, size_t n, const float *w,
                      size_t ldw, const float *bias, size_t taps, size_t n_ch, bool silu)
{
    for (size_t t = 0; t < n; t++) {
        for (size_t c = 0; c < n_ch; c++) {
            float acc = bias ? bias[c] : 0.0f;
            for (size_t j = 0; j < taps; j++) {
                acc = fmaf(w[j * ldw + c], x[(t + j) * ldx + c], acc);
            }
            acc = silu ? acc / (1.0f + kvs__exp(-acc)) : acc;
            y[t * ldy + c] = one_nan(acc);
        }
    }
}

static float join_lanes(const float *lane)
{
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/* One row of a tile: elements s[j * KVS__TILE]. */
static float delta_row(float *dst, const float *src, size_t dim, const kvs__scan *in, size_t t,
                       float v)
{
    const float *k = in->k + t * in->ldk;
    float m[4] = {0};
    for (size_t j = 0; j < dim; j++) {
        float u = src[j * KVS__TILE] * in->g[t * in->ldg];
        dst[j * KVS__TILE] = u;
        m[j % 4] = fmaf(u, k[j], m[j % 4]);
    }
    float delta = (v - join_lanes(m)) * in->b[t * in->ldg];
    float y[4] = {0};
    for (size_t j = 0; j < dim; j++) {
        float s = fmaf(k[j], delta, dst[j * KVS__TILE]);
        dst[j * KVS__TILE] = s;
        y[j % 4] = in->q ? fmaf(s, in->q[t * in->ldq + j], y[j % 4]) : 0.0f;
    }
    return join_lanes(y);
}

static float ssd_row(float *dst, const float *src, size_t dim, const kvs__scan *in, size_t t,
                     float x)
{
    const float *k = in->k + t * in->ldk;
    float dtx = in->b[t * in->ldg] * x;
    float y[4] = {0};
    for (size_t j = 0; j < dim; j++) {
        float s = fmaf(k[j], dtx, src[j * KVS__TILE] * in->g[t * in->ldg]);
        dst[j * KVS__TILE] = s;
        y[j % 4] = in->q ? fmaf(s, in->q[t * in->ldq + j], y[j % 4]) : 0.0f;
    }
    return fmaf(in->skip, x, join_lanes(y));
}

typedef float (*row_fn)(float *dst, const float *src, size_t dim, const kvs__scan *in, size_t t,
                        float v);

static void scan_rows(row_fn row, float *dst, const float *src, size_t rows, size_t dim,
                      const kvs__scan *in, size_t n, float *y, size_t ldy)
{
    for (size_t r = 0; r < KVS__TILE; r++) {
        for (size_t t = 0; t < n; t++) {
            float v = r < rows ? in->v[t * in->ldv + r] : 0.0f;
            float sum = row(dst + r, (t == 0 ? src : dst) + r, dim, in, t, v);
            if (in->q && r < rows) {
                y[t * ldy + r] = one_nan(sum);
            }
        }
    }
}

static void scan_delta(float *dst, const float *src, size_t rows, size_t dim, const kvs__scan *in,
                       size_t n, float *y, size_t ldy)
{
    scan_rows(delta_row, dst, src, rows, dim, in, n, y, ldy);
}

static void scan_ssd(float *dst, const float *src, size_t rows, size_t dim, const kvs__scan *in,
                     size_t n, float *y, size_t ldy)
{
    scan_rows(ssd_row, dst, src, rows, dim, in, n, y, ldy);
}

#endif
