/* SPDX-License-Identifier: MIT */
/* coded.h: attention over affine codes as docs/numerics.md tells it, slow and obvious: for models that
 * the library is held against. */
#ifndef KVS_TESTS_SUPPORT_CODED_H
#define KVS_TESTS_SUPPORT_CODED_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"
#include "kvstate/codec.h"

#define CODED_GROUPS 32 /* of a row, at most */

/* The codes of an encoded row, as numbers, and scale and bias of each of its groups. */
static inline void coded_unpack(const kvs_codec *codec, uint32_t dim, const uint32_t *words,
                                const void *scales, const void *biases, float *codes, float *units)
{
    for (uint32_t i = 0; i < dim; i++) {
        uint32_t code = 0;
        for (uint32_t b = 0; b < codec->bits; b++) {
            uint32_t at = i * codec->bits + b;
            code |= (words[at / 32] >> at % 32 & 1) << b;
        }
        codes[i] = (float)code;
    }
    for (uint32_t i = 0; i < 2 * dim / codec->group; i++) {
        const void *unit = i % 2 ? biases : scales;
        units[i] = codec->dtype == KVS_F32   ? ((const float *)unit)[i / 2]
                   : codec->dtype == KVS_F16 ? kvs__f16_to_f32(((const uint16_t *)unit)[i / 2])
                                             : kvs__bf16_to_f32(((const uint16_t *)unit)[i / 2]);
    }
}

/* Sixteen bits of some numbers; returns their step. */
static inline float coded_sixteen(int32_t *out, const float *x, uint32_t n)
{
    float top = 0.0f;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && x[i] - x[i] == 0.0f;
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    }
    bool none = !finite || top < 0x1p-100f;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = none ? 0 : (int32_t)rintf(x[i] * (32512.0f / top));
    }
    return !finite ? NAN : (none ? 0.0f : top / 32512.0f);
}

/* Of a query and a token: both exact, group by group. */
static inline float coded_score(uint32_t dim, uint32_t group, const float *q, const float *codes,
                                const float *units)
{
    float s = 0.0f;
    for (uint32_t g = 0; g < dim / group; g++) {
        int32_t q16[128];
        int64_t sum = 0;
        int64_t product = 0;
        float step = coded_sixteen(q16, q + g * group, group);
        for (uint32_t i = 0; i < group; i++) {
            sum += q16[i];
            product += q16[i] * (int64_t)codes[g * group + i];
        }
        s = fmaf((float)product * step, units[2 * g], s);
        s = fmaf((float)sum * step, units[2 * g + 1], s);
    }
    return s;
}

/* The sum of a chunk's values by numerators p; codes[t] and units[t] NULL: token t is not seen. */
static inline void coded_values(uint32_t dim, uint32_t group, const float p[256],
                                const float *const codes[256], const float *const units[256],
                                float *acc)
{
    for (uint32_t g = 0; g < dim / group; g++) {
        float w[256] = {0};
        float lane[16] = {0};
        int32_t w16[256];
        int64_t sum[128] = {0};
        for (int i = 0; i < 256; i++) {
            if (codes[i] && p[i] != 0.0f) {
                w[i] = p[i] * units[i][2 * g];
                lane[i % 16] = fmaf(p[i], units[i][2 * g + 1], lane[i % 16]);
            }
        }
        float step = coded_sixteen(w16, w, 256);
        for (int i = 0; i < 256; i++) {
            for (uint32_t e = 0; w16[i] != 0 && e < group; e++) {
                sum[e] += w16[i] * (int64_t)codes[i][g * group + e];
            }
        }
        for (int h = 8; h > 0; h /= 2) {
            for (int i = 0; i < h; i++) {
                lane[i] += lane[i + h];
            }
        }
        for (uint32_t e = 0; e < group; e++) {
            acc[g * group + e] = fmaf((float)sum[e], step, lane[0] + 0.0f);
        }
    }
}

#endif
