/* SPDX-License-Identifier: MIT */
/* coded_rig.h: layers of one head whose codes, scales and biases a test chooses number by number,
 * reads of them in any layout, and what docs/numerics.md says such a read gives. RIG_PAGED is
 * defined by who includes it. */
#ifndef KVS_TESTS_SUPPORT_CODED_RIG_H
#define KVS_TESTS_SUPPORT_CODED_RIG_H

#include <float.h>
#include <math.h>

#include "kern/math.h"
#include "support/cache_rig.h"
#include "support/coded.h"

/* Tokens of a layer; side 0 is K, side 1 V. Dense sides have their elements in `code`. */
typedef struct scene {
    kvs_layer_spec spec;
    uint32_t n;
    float *code[2]; /* [n][dim] */
    float *unit[2]; /* [n][groups][2]: scale, bias; NULL: dense */
} scene;

static inline kvs_codec scene_codec(const scene *s, int side)
{
    return side ? s->spec.v : s->spec.k;
}

static inline uint32_t scene_dim(const scene *s, int side)
{
    return side ? s->spec.v_dim : s->spec.k_dim;
}

static inline float *scene_code(const scene *s, int side, uint32_t token)
{
    return s->code[side] + (size_t)token * scene_dim(s, side);
}

static inline float *scene_unit(const scene *s, int side, uint32_t token, uint32_t group)
{
    kvs_codec c = scene_codec(s, side);
    return s->unit[side] + ((size_t)token * (scene_dim(s, side) / c.group) + group) * 2;
}

static inline float scene_rounded(kvs_dtype t, float x)
{
    return t == KVS_F16    ? kvs__f16_to_f32(kvs__f16_from_f32(x))
           : t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x))
                           : x;
}

/* Of any codes, scales of both signs and biases about them. */
static inline scene scene_new(kvs_layer_spec spec, uint32_t n, uint64_t seed)
{
    scene s = {.spec = spec, .n = n};
    for (int side = 0; side < 2; side++) {
        kvs_codec c = scene_codec(&s, side);
        size_t elements = (size_t)n * scene_dim(&s, side);
        s.code[side] = rig_alloc(elements * sizeof(float));
        for (size_t i = 0; i < elements; i++) {
            float x = rig_value(seed + (uint64_t)side, i);
            s.code[side][i] =
                c.bits
                    ? (float)(rig_mix(seed + i * 2 + (uint64_t)side) >> 32 & ((1u << c.bits) - 1))
                    : scene_rounded(c.dtype, x);
        }
        if (c.bits == 0) {
            continue;
        }
        size_t units = elements / c.group * 2;
        s.unit[side] = rig_alloc(units * sizeof(float));
        for (size_t i = 0; i < units; i++) {
            float x = rig_value(seed + 7 + (uint64_t)side, i);
            s.unit[side][i] = scene_rounded(c.dtype, i % 2 ? x : x / (float)(1u << c.bits));
        }
    }
    return s;
}

static inline void scene_free(scene *s)
{
    for (int side = 0; side < 2; side++) {
        free(s->code[side]);
        free(s->unit[side]);
    }
}

/* A copy to change. */
static inline scene scene_copy(const scene *s)
{
    scene c = *s;
    for (int side = 0; side < 2; side++) {
        size_t bytes = (size_t)s->n * scene_dim(s, side) * sizeof(float);
        c.code[side] = memcpy(rig_alloc(bytes), s->code[side], bytes);
        if (s->unit[side]) {
            bytes = bytes / scene_codec(s, side).group * 2;
            c.unit[side] = memcpy(rig_alloc(bytes), s->unit[side], bytes);
        }
    }
    return c;
}

static inline void scene_put(void *dst, kvs_dtype t, size_t i, float x)
{
    if (t == KVS_F32) {
        ((float *)dst)[i] = x;
    } else {
        ((uint16_t *)dst)[i] = t == KVS_F16 ? kvs__f16_from_f32(x) : kvs__bf16_from_f32(x);
    }
}

/* Tokens [at, at + n) of a side into planes. */
static inline void scene_planes(const scene *s, int side, uint32_t at, uint32_t n, void *const p[3])
{
    kvs_codec c = scene_codec(s, side);
    size_t dim = scene_dim(s, side);
    const float *code = scene_code(s, side, at);
    for (size_t i = 0; i < n * dim; i++) {
        if (c.bits == 0) {
            scene_put(p[0], c.dtype, i, code[i]);
        }
        for (uint32_t b = 0; b < c.bits; b++) {
            size_t bit = i * c.bits + b; /* a row is whole words */
            ((uint32_t *)p[0])[bit / 32] |= ((uint32_t)code[i] >> b & 1) << bit % 32;
        }
    }
    for (size_t i = 0; c.bits && i < n * dim / c.group; i++) {
        scene_put(p[1], c.dtype, i, scene_unit(s, side, at, 0)[2 * i]);
        scene_put(p[2], c.dtype, i, scene_unit(s, side, at, 0)[2 * i + 1]);
    }
}

static inline kvs_cache *scene_cache(kvs_ctx *ctx, const scene *s)
{
    kvs_cache *c = rig_cache(ctx, &s->spec, 1, 0);
    uint32_t most = s->spec.layout == KVS_LAYOUT_GROW ? s->n : s->spec.max_block;
    for (uint32_t at = 0; at < s->n; at += most) {
        uint32_t n = s->n - at < most ? s->n - at : most;
        kvs_planes p;
        size_t bytes = 0;
        void *base = rig_planes(&s->spec, 0, n, &p, &bytes);
        scene_planes(s, 0, at, n, p.k);
        scene_planes(s, 1, at, n, p.v);
        rig_must(kvs_cache_import(c, 0, at, n, &p, NULL));
        free(base);
    }
    return c;
}

/* The newest n_queries queries q [n_queries][rep][k_dim], scale 1: a new [n_queries][rep][v_dim]. */
static inline float *scene_read(kvs_ctx *ctx, const scene *s, const float *q, uint32_t n_queries,
                                uint32_t rep)
{
    kvs_cache *c = scene_cache(ctx, s);
    kvs_attend d = KVS_ATTEND_INIT;
    float *out = rig_alloc((size_t)n_queries * rep * s->spec.v_dim * sizeof *out);
    d.n_queries = n_queries;
    d.n_q_heads = rep;
    d.q = q;
    d.out = out;
    d.scale = 1.0f;
    rig_must(kvs_cache_attend(c, 0, &d, NULL));
    kvs_cache_free(c);
    return out;
}

/* -- by the definition */

static inline bool scene_sees(const scene *s, int64_t pos, int64_t key)
{
    int64_t w = (int64_t)s->spec.window;
    return key <= pos && (w == 0 || key > pos - w || key < (int64_t)s->spec.sinks);
}

static inline float scene_score(const scene *s, const float *q, uint32_t token)
{
    const float *k = scene_code(s, 0, token);
    float sum = 0.0f;
    if (s->unit[0]) {
        return coded_score(s->spec.k_dim, s->spec.k.group, q, k, scene_unit(s, 0, token, 0));
    }
    for (uint32_t d = 0; d < s->spec.k_dim; d++) {
        sum = fmaf(q[d], k[d], sum);
    }
    return sum;
}

static inline float scene_lanes(const float x[256])
{
    float lane[16] = {0};
    for (int i = 0; i < 256; i++) {
        lane[i % 16] += x[i];
    }
    for (int h = 8; h > 0; h /= 2) {
        for (int i = 0; i < h; i++) {
            lane[i] += lane[i + h];
        }
    }
    return lane[0];
}

/* Values of a chunk with numerators p; `seen` tells its tokens from what follows. */
static inline void scene_values(const scene *s, uint32_t c0, const float p[256],
                                const bool seen[256], float *acc)
{
    const float *codes[256] = {NULL};
    const float *units[256] = {NULL};
    for (uint32_t i = 0; i < 256; i++) {
        if (!seen[i]) {
            continue;
        }
        codes[i] = scene_code(s, 1, c0 + i);
        units[i] = s->unit[1] ? scene_unit(s, 1, c0 + i, 0) : NULL;
        for (uint32_t d = 0; !s->unit[1] && d < s->spec.v_dim; d++) {
            acc[d] = fmaf(p[i], codes[i][d], acc[d]);
        }
    }
    if (s->unit[1]) {
        coded_values(s->spec.v_dim, s->spec.v.group, p, codes, units, acc);
    }
}

/* One query at a position: out [v_dim]. */
static inline void scene_expect_row(const scene *s, const float *q, int64_t pos, float *out)
{
    float acc[1024] = {0};
    float m = -FLT_MAX;
    float l = 0.0f;
    for (uint32_t c0 = 0; c0 < s->n; c0 += 256) {
        float p[256] = {0};
        bool seen[256] = {false};
        bool any = false;
        float m2 = -FLT_MAX;
        for (uint32_t i = 0; i < 256 && c0 + i < s->n; i++) {
            seen[i] = scene_sees(s, pos, (int64_t)(c0 + i));
            any = any || seen[i];
            p[i] = seen[i] ? scene_score(s, q, c0 + i) : 0.0f;
            m2 = seen[i] && p[i] > m2 ? p[i] : m2;
        }
        if (!any) {
            continue;
        }
        for (int i = 0; i < 256; i++) {
            p[i] = seen[i] ? kvs__exp(p[i] - m2) : 0.0f;
        }
        float acc2[1024] = {0};
        scene_values(s, c0, p, seen, acc2);
        float top = m > m2 ? m : m2;
        float a = kvs__exp(m - top);
        float b = kvs__exp(m2 - top);
        for (uint32_t d = 0; d < s->spec.v_dim; d++) {
            acc[d] = fmaf(acc[d], a, acc2[d] * b);
        }
        l = fmaf(l, a, scene_lanes(p) * b);
        m = top;
    }
    for (uint32_t d = 0; d < s->spec.v_dim; d++) {
        float x = l == 0.0f ? 0.0f : acc[d] / l;
        out[d] = x != x ? kvs__f32_bits(0x7fc00000u) : x;
    }
}

static inline float *scene_expect(const scene *s, const float *q, uint32_t n_queries, uint32_t rep)
{
    float *out = rig_alloc((size_t)n_queries * rep * s->spec.v_dim * sizeof *out);
    for (uint32_t i = 0; i < n_queries * rep; i++) {
        scene_expect_row(s, q + (size_t)i * s->spec.k_dim, (int64_t)(s->n - n_queries + i / rep),
                         out + (size_t)i * s->spec.v_dim);
    }
    return out;
}

#endif
