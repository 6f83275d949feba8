/* SPDX-License-Identifier: MIT */
/* kern_ref.c: the reference kernels. Plain loops: this order of operations is the specification
 * that every other tier equals bit for bit. Clarity first; nothing here is tuned. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "kern/affine.h"
#include "kern/kern.h"
#include "kern/math.h"

static void f32_from_f16(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = kvs__f16_to_f32(src[i]);
    }
}

static void f32_from_bf16(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = kvs__bf16_to_f32(src[i]);
    }
}

static void f16_from_f32(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = kvs__f16_from_f32(src[i]);
    }
}

static void bf16_from_f32(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        dst[i] = kvs__bf16_from_f32(src[i]);
    }
}

static void hadamard(float *x, size_t n_blocks, size_t block)
{
    float scale = kvs__hadamard_scale(block);
    for (size_t b = 0; b < n_blocks; b++, x += block) {
        for (size_t h = 1; h < block; h *= 2) {
            for (size_t i = 0; i < block; i += 2 * h) {
                for (size_t j = i; j < i + h; j++) {
                    float lo = x[j];
                    float hi = x[j + h];
                    x[j] = lo + hi;
                    x[j + h] = lo - hi;
                }
            }
        }
        for (size_t i = 0; i < block; i++) {
            float y = x[i] * scale;
            x[i] = y != y ? kvs__f32_bits(KVS__NAN_BITS) : y; /* one NaN, whichever came in */
        }
    }
}

/* The range that fixes a group's scale and bias; a NaN never wins a comparison. */
static void group_scale(const float *x, uint32_t group, float n_codes, float *scale, float *bias)
{
    float lo = HUGE_VALF;
    float hi = -HUGE_VALF;
    for (uint32_t i = 0; i < group; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    bool low_side = fabsf(lo) > fabsf(hi); /* a tie anchors at the maximum */
    float s = (hi - lo) / n_codes;
    s = s < 1e-7f ? 1e-7f : s; /* keeps a NaN */
    s = low_side ? s : -s;
    float edge = low_side ? lo : hi;
    float q0 = rintf(edge / s);
    /* stretch the scale so that zero falls on a code: edge = q0 * scale */
    s = q0 != 0.0f ? edge / q0 : s;
    *bias = q0 != 0.0f ? edge : 0.0f;
    /* Infinities in the group: MLX's NaN, whose sign is that of x86 arithmetic (an invalid operation
     * gives a negative NaN; the one in hi - lo was negated above). */
    bool early = hi - lo != hi - lo;
    *scale = s != s ? kvs__f32_bits(early ? KVS__NAN_POSITIVE : KVS__NAN_NEGATIVE) : s;
}

static void affine_encode(const float *x, size_t n_groups, uint32_t bits, uint32_t group,
                          uint32_t *words, float *scale, float *bias)
{
    size_t group_words = (size_t)group * bits / 32;
    float n_codes = (float)((1u << bits) - 1);
    memset(words, 0, n_groups * group_words * sizeof *words);
    for (size_t g = 0; g < n_groups; g++, x += group, words += group_words) {
        group_scale(x, group, n_codes, &scale[g], &bias[g]);
        for (uint32_t i = 0; i < group; i++) {
            float q = rintf((x[i] - bias[g]) / scale[g]);
            q = q > 0.0f ? q : 0.0f; /* NaN becomes 0 */
            uint64_t code = (uint64_t)(q < n_codes ? q : n_codes);
            uint32_t at = i * bits;
            words[at / 32] |= (uint32_t)(code << (at % 32));
            if (at % 32 + bits > 32) {
                words[at / 32 + 1] |= (uint32_t)(code >> (32 - at % 32));
            }
        }
    }
}

static void affine_decode(float *dst, const uint32_t *words, const float *scale, const float *bias,
                          size_t n_groups, uint32_t bits, uint32_t group)
{
    size_t group_words = (size_t)group * bits / 32;
    for (size_t g = 0; g < n_groups; g++, words += group_words, dst += group) {
        kvs__affine_group(dst, words, scale[g], bias[g], bits, group);
    }
}

static void affine_decode_mlx(void *dst, const uint32_t *words, const void *scale, const void *bias,
                              size_t n_groups, uint32_t bits, uint32_t group, kvs_dtype dtype)
{
    size_t group_words = (size_t)group * bits / 32;
    for (size_t g = 0; g < n_groups; g++, words += group_words) {
        kvs__affine_group_mlx(dst, g * group, words, kvs__load_elem(scale, dtype, g),
                              kvs__load_elem(bias, dtype, g), bits, group, dtype);
    }
}

/* Element d of token i of a tile. */
static float k_value(const kvs__shape *s, const kvs__planes *t, size_t d, size_t i)
{
    if (s->bits == 0) {
        return kvs__load_elem(t->data, s->dtype, d * KVS__TILE + i);
    }
    uint32_t code = kvs__code_at((const uint32_t *)t->data + i, KVS__TILE, s->bits, d);
    size_t g = d / s->group * KVS__TILE + i;
    return fmaf((float)code, kvs__load_elem(t->scale, s->dtype, g),
                kvs__load_elem(t->bias, s->dtype, g));
}

/* Element d of row j. */
static float v_value(const kvs__shape *s, const kvs__planes *rows, size_t j, size_t d)
{
    if (s->bits == 0) {
        return kvs__load_elem(rows->data, s->dtype, j * s->dim + d);
    }
    size_t words = (size_t)s->dim * s->bits / 32;
    uint32_t code = kvs__code_at((const uint32_t *)rows->data + j * words, 1, s->bits, d);
    size_t g = j * (s->dim / s->group) + d / s->group;
    return fmaf((float)code, kvs__load_elem(rows->scale, s->dtype, g),
                kvs__load_elem(rows->bias, s->dtype, g));
}

static void k_tile(float *dst, const kvs__shape *s, const kvs__planes *t)
{
    for (size_t d = 0; d < s->dim; d++) {
        for (size_t i = 0; i < KVS__TILE; i++) {
            dst[d * KVS__TILE + i] = k_value(s, t, d, i);
        }
    }
}

static void v_rows(float *dst, size_t ldd, const kvs__shape *s, const kvs__planes *rows, size_t n)
{
    for (size_t j = 0; j < n; j++) {
        for (size_t d = 0; d < s->dim; d++) {
            dst[j * ldd + d] = v_value(s, rows, j, d);
        }
    }
}

static void qk(float *s, size_t lds, const float *q, size_t ldq, size_t rows, const float *k,
               size_t n_tiles, size_t dim)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t t = 0; t < n_tiles; t++) {
            for (size_t i = 0; i < KVS__TILE; i++) {
                float sum = 0.0f;
                for (size_t d = 0; d < dim; d++) {
                    sum = fmaf(q[r * ldq + d], k[(t * dim + d) * KVS__TILE + i], sum);
                }
                s[r * lds + t * KVS__TILE + i] = sum;
            }
        }
    }
}

static void qk_direct(float *s, size_t lds, const float *q, size_t ldq, size_t rows,
                      const kvs__shape *shape, const kvs__planes *tiles, size_t n_tiles)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < n_tiles * KVS__TILE; i++) {
            const kvs__planes *tile = &tiles[i / KVS__TILE];
            float sum = 0.0f;
            for (size_t d = 0; d < shape->dim; d++) {
                sum = fmaf(q[r * ldq + d], k_value(shape, tile, d, i % KVS__TILE), sum);
            }
            s[r * lds + i] = sum;
        }
    }
}

static void softmax_row(float *s, size_t n_tiles, const uint16_t *mask, float softcap, float *m,
                        float *l)
{
    float top = -FLT_MAX;
    for (size_t i = 0; i < n_tiles * KVS__TILE; i++) {
        if (mask[i / KVS__TILE] >> (i % KVS__TILE) & 1) {
            s[i] = softcap > 0.0f ? kvs__softcap(s[i], softcap) : s[i];
            top = s[i] > top ? s[i] : top;
        }
    }
    float lane[KVS__TILE] = {0};
    for (size_t i = 0; i < n_tiles * KVS__TILE; i++) {
        bool visible = mask[i / KVS__TILE] >> (i % KVS__TILE) & 1;
        s[i] = visible ? kvs__exp(s[i] - top) : 0.0f;
        lane[i % KVS__TILE] += s[i];
    }
    for (size_t h = KVS__TILE / 2; h > 0; h /= 2) {
        for (size_t i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    *m = top;
    *l = lane[0];
}

static void softmax(float *s, size_t lds, size_t rows, size_t n_tiles, const uint16_t *mask,
                    size_t ldm, float softcap, float *m, float *l)
{
    for (size_t r = 0; r < rows; r++) {
        softmax_row(s + r * lds, n_tiles, mask + r * ldm, softcap, &m[r], &l[r]);
    }
}

static void pv(float *acc, size_t lda, const float *p, size_t ldp, size_t rows, const float *v,
               size_t ldv, size_t n, size_t dim)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t d = 0; d < dim; d++) {
            float sum = acc[r * lda + d];
            for (size_t j = 0; j < n; j++) {
                sum = fmaf(p[r * ldp + j], v[j * ldv + d], sum);
            }
            acc[r * lda + d] = sum;
        }
    }
}

static void pv_direct(float *acc, size_t lda, const float *p, size_t ldp, size_t rows,
                      const kvs__shape *shape, const kvs__planes *v, size_t n)
{
    for (size_t r = 0; r < rows; r++) {
        for (size_t d = 0; d < shape->dim; d++) {
            float sum = acc[r * lda + d];
            for (size_t j = 0; j < n; j++) {
                sum = fmaf(p[r * ldp + j], v_value(shape, v, j, d), sum);
            }
            acc[r * lda + d] = sum;
        }
    }
}

static void merge(float *acc, float *m, float *l, const float *acc2, float m2, float l2, size_t dim)
{
    float top = *m > m2 ? *m : m2;
    float a = kvs__exp(*m - top);
    float b = kvs__exp(m2 - top);
    for (size_t d = 0; d < dim; d++) {
        acc[d] = fmaf(acc[d], a, acc2[d] * b);
    }
    *l = fmaf(*l, a, l2 * b);
    *m = top;
}

#include "kern/codes_ref.h"
#include "kern/rec_ref.h"

void kvs__kern_init_ref(kvs__kern *k)
{
#define KVS_KERN(name, class_, ret, args) k->name = name;
#include "kern/kern.inc"
#undef KVS_KERN
}
