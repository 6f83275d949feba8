/* SPDX-License-Identifier: MIT */
/* codes_ref.h: the reference of attention over affine codes; a part of kern_ref.c. */
#ifndef KVS_KERN_CODES_REF_H
#define KVS_KERN_CODES_REF_H

#include "kern/pairs.h"

static uint32_t magnitude(float x)
{
    return kvs__bits_f32(x) & 0x7fffffffu;
}

static int32_t to16(float x, kvs__scale16 s)
{
    return s.to == 0.0f ? 0 : (int32_t)rintf(x * s.to);
}

static void q_pairs(uint32_t *pairs, float *params, const float *q, const kvs__shape *shape)
{
    for (uint32_t g = 0; g < shape->dim / shape->group; g++) {
        const float *x = q + (size_t)g * shape->group;
        uint32_t top = 0;
        for (uint32_t d = 0; d < shape->group; d++) {
            top = magnitude(x[d]) > top ? magnitude(x[d]) : top;
        }
        kvs__scale16 s = kvs__scale16_of(top);
        int32_t sum = 0;
        for (uint32_t i = 0; i < shape->group / 2; i++) {
            kvs__pair_at at = kvs__pair_of(shape->bits, i);
            int32_t lo = to16(x[at.lo], s);
            int32_t hi = to16(x[at.hi], s);
            sum += lo + hi;
            *pairs++ = kvs__pair(lo, hi);
        }
        params[2 * g] = s.step;
        params[2 * g + 1] = (float)sum * s.step;
    }
}

static int32_t low16(uint32_t pair)
{
    return (int16_t)(uint16_t)pair;
}

static float code_score(const uint32_t *q, const float *params, const kvs__shape *shape,
                        const kvs__planes *tile, size_t lane)
{
    float s = 0.0f;
    for (uint32_t g = 0; g < shape->dim / shape->group; g++) {
        int32_t sum = 0;
        for (uint32_t i = 0; i < shape->group / 2; i++, q++) {
            kvs__pair_at at = kvs__pair_of(shape->bits, i);
            const uint32_t *words = (const uint32_t *)tile->data + lane;
            size_t d = (size_t)g * shape->group;
            sum += low16(*q) * (int32_t)kvs__code_at(words, KVS__TILE, shape->bits, d + at.lo);
            sum +=
                low16(*q >> 16) * (int32_t)kvs__code_at(words, KVS__TILE, shape->bits, d + at.hi);
        }
        size_t at = (size_t)g * KVS__TILE + lane;
        s = fmaf((float)sum * params[2 * g], kvs__load_elem(tile->scale, shape->dtype, at), s);
        s = fmaf(params[2 * g + 1], kvs__load_elem(tile->bias, shape->dtype, at), s);
    }
    return s;
}

static void qk_codes(float *s, size_t lds, const uint32_t *q, const float *params, size_t rows,
                     const kvs__shape *shape, const kvs__planes *tiles, size_t n_tiles,
                     uint32_t *scratch)
{
    size_t n_groups = shape->dim / shape->group;
    (void)scratch;
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n_tiles * KVS__TILE; i++) {
            s[r * lds + i] = code_score(q + r * shape->dim / 2, params + r * 2 * n_groups, shape,
                                        &tiles[i / KVS__TILE], i % KVS__TILE);
        }
    }
}

static void v_units(float *scale, float *bias, size_t ld, const kvs__shape *shape,
                    const kvs__planes *rows, size_t n)
{
    size_t n_groups = shape->dim / shape->group;
    for (size_t j = 0; j < n; j++) {
        for (size_t g = 0; g < n_groups; g++) {
            scale[g * ld + j] = kvs__load_elem(rows->scale, shape->dtype, j * n_groups + g);
            bias[g * ld + j] = kvs__load_elem(rows->bias, shape->dtype, j * n_groups + g);
        }
    }
}

static void p_weights(int16_t *w, float *step, float *sum, const float *p, const float *scale,
                      const float *bias, size_t n)
{
    uint32_t top = 0;
    float lane[KVS__TILE] = {0};
    for (size_t i = 0; i < n; i++) {
        bool none = p[i] == 0.0f;
        uint32_t x = none ? 0 : magnitude(p[i] * scale[i]);
        top = x > top ? x : top;
        lane[i % KVS__TILE] = fmaf(p[i], none ? 0.0f : bias[i], lane[i % KVS__TILE]);
    }
    kvs__scale16 s = kvs__scale16_of(top);
    for (size_t i = 0; i < n; i++) {
        w[i] = (int16_t)(p[i] == 0.0f ? 0 : to16(p[i] * scale[i], s));
    }
    for (size_t h = KVS__TILE / 2; h > 0; h /= 2) {
        for (size_t i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    *step = s.step;
    *sum = lane[0] + 0.0f;
}

static void pv_codes(int32_t *acc, size_t lda, const int16_t *w, size_t ldw, size_t ldg,
                     size_t rows, const kvs__shape *shape, const kvs__planes *v, size_t n,
                     uint32_t *scratch)
{
    size_t words = (size_t)shape->dim * shape->bits / 32;
    (void)scratch;
    for (size_t r = 0; r < rows; r++) {
        for (size_t j = 0; j < n; j++) {
            const uint32_t *row = (const uint32_t *)v->data + j * words;
            for (size_t d = 0; d < shape->dim; d++) {
                acc[r * lda + d] += w[d / shape->group * ldg + r * ldw + j] *
                                    (int32_t)kvs__code_at(row, 1, shape->bits, d);
            }
        }
    }
}

static void v_sums(float *acc, const int32_t *sums, size_t n, float step, float bias)
{
    for (size_t d = 0; d < n; d++) {
        acc[d] = fmaf((float)sums[d], step, bias);
    }
}

#endif
