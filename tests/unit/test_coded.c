/* SPDX-License-Identifier: MIT */
/* test_coded.c: attention over affine codes is what docs/numerics.md says ("Attention over affine
 * codes"): in every shape, layout and tier bit for bit, and what follows from the definition without
 * computing it: how a query is rounded to 16 bits, which scales and biases may matter, the greatest
 * sums. How far that is from exact attention: test_coded_bound.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#define RIG_PAGED
#include "base/half.h"
#include "support/coded_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MANY     20 /* queries that are read otherwise than a few are */

/* Every tier, one and several threads. */
static const struct {
    uint32_t threads;
    uint32_t off;
} ways[] = {{1, 0}, {3, KVS_TIER_AVX512}, {1, KVS_TIER_ALL}};

static void same(const float *got, const float *want, size_t n, const char *what, size_t which)
{
    for (size_t i = 0; i < n; i++) {
        if (kvs__bits_f32(got[i]) != kvs__bits_f32(want[i])) {
            fail_msg("%s %zu: element %zu is %.9g, not %.9g", what, which, i, (double)got[i],
                     (double)want[i]);
        }
    }
}

/* -- against the definition */

typedef struct shape {
    const char *k;
    const char *v;
    uint32_t k_dim;
    uint32_t v_dim;
    uint32_t n;
    uint32_t queries;
    uint32_t rep;
    uint32_t window;
    uint32_t sinks;
} shape;

static const shape shapes[] = {
    /* every width, group and type of scales */
    {"affine2:32/f32", "affine3:32/f32", 32, 32, 40, 2, 1, 0, 0},
    {"affine3:32/f16", "affine2:32/bf16", 96, 160, 70, 3, 2, 0, 0},
    {"affine4:32/bf16", "affine5:64/f16", 96, 64, 70, 1, 7, 0, 0},
    {"affine5:64/f32", "affine4:32/f32", 192, 96, 50, 5, 1, 0, 0},
    {"affine6:64/f16", "affine8:128/f16", 320, 384, 40, 1, 3, 0, 0},
    {"affine8:64/bf16", "affine6:64/bf16", 64, 128, 90, 4, 5, 0, 0},
    {"affine2:128/f16", "affine8:32/f32", 128, 96, 60, 2, 9, 0, 0},
    {"affine8:128/f32", "affine3:128/f16", 256, 512, 40, 6, 3, 0, 0},
    {"affine3:64/bf16", "affine6:128/f32", 1024, 1024, 20, 2, 2, 0, 0},
    {"affine8:32/f16", "affine4:64/f16", 1024, 64, 20, 1, 17, 0, 0},
    {"affine6:32/f32", "affine8:64/f16", 32, 1024, 20, 1, 1, 0, 0},
    /* one side dense */
    {"affine4:64/f16", "f16", 64, 48, 280, 3, 2, 0, 0},
    {"bf16", "affine4:64/f16", 48, 64, 280, 3, 2, 0, 0},
    {"affine8:32/f32", "f32", 96, 96, 270, MANY, 2, 0, 0},
    {"f32", "affine8:32/f32", 96, 96, 270, MANY, 2, 0, 0},
    /* about the boundaries of tiles and chunks */
    {"affine4:32/f16", "affine4:32/f16", 32, 32, 1, 1, 1, 0, 0},
    {"affine4:32/f16", "affine4:32/f16", 32, 32, 15, 2, 1, 0, 0},
    {"affine4:32/f16", "affine4:32/f16", 32, 32, 17, 3, 1, 0, 0},
    {"affine8:64/f16", "affine8:64/f16", 64, 64, 255, 2, 2, 0, 0},
    {"affine8:64/f16", "affine8:64/f16", 64, 64, 256, 1, 2, 0, 0},
    {"affine5:64/f16", "affine3:64/f16", 64, 64, 257, 5, 2, 0, 0},
    {"affine2:64/f16", "affine8:64/f16", 64, 64, 513, 70, 2, 0, 0},
    {"affine4:64/f16", "affine4:64/f16", 128, 128, 1030, 9, 4, 0, 0},
    /* windows and sinks, within a chunk, across two, apart from one another */
    {"affine4:32/f16", "affine4:32/f16", 32, 32, 300, 9, 2, 1, 0},
    {"affine8:32/f32", "affine8:32/f32", 96, 32, 300, 9, 2, 20, 3},
    {"affine3:32/f16", "affine6:32/f16", 32, 96, 700, 9, 3, 256, 0},
    {"affine6:32/bf16", "affine5:32/bf16", 64, 64, 700, MANY, 3, 255, 17},
    {"affine4:64/f16", "affine8:64/f16", 64, 64, 800, 9, 1, 5, 300},
};

static scene scene_of(const shape *s)
{
    kvs_layer_spec spec = rig_spec(1, s->k_dim, s->v_dim, s->k, s->v);
    spec.window = s->window;
    spec.sinks = s->sinks;
    return scene_new(spec, s->n, 100 * s->n + s->k_dim);
}

static void read_everywhere(const scene *s, const float *q, uint32_t queries, uint32_t rep,
                            const float *want, const char *what, size_t which)
{
    size_t n = (size_t)queries * rep * s->spec.v_dim;
    static const uint32_t blocks[] = {0, 16, 17};
    for (size_t i = 0; i < COUNT(ways); i++) {
        kvs_ctx *ctx = rig_ctx(ways[i].threads, ways[i].off);
        rig_block = blocks[i];
        float *got = scene_read(ctx, s, q, queries, rep);
        rig_block = 0;
        same(got, want, n, what, which);
        free(got);
        kvs_ctx_free(ctx);
    }
}

static void test_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const shape *t = &shapes[i];
        scene s = scene_of(t);
        float *q = rig_rows(5, 0, t->queries, (size_t)t->rep * t->k_dim);
        float *want = scene_expect(&s, q, t->queries, t->rep);
        read_everywhere(&s, q, t->queries, t->rep, want, "shape", i);
        if (t->window) {
            s.spec = rig_ring(s.spec, t->window, t->sinks, t->queries);
            read_everywhere(&s, q, t->queries, t->rep, want, "ring", i);
        }
        scene_free(&s);
        free(q);
        free(want);
    }
}

/* Numbers of any size, some not finite, in all that there is. */
static float wild(uint64_t seed, uint64_t i)
{
    uint64_t z = rig_mix(seed + 977 * i);
    int exponent = (int)(z >> 8 & 255) - 128;
    static const uint32_t odd[] = {0x7fc00000u, 0x7f800000u, 0xff800000u, 0x80000000u, 1u, 0u};
    return z % 97 == 0 ? kvs__f32_bits(odd[z >> 32 & 3 ? 3 + (z >> 40) % 3 : (z >> 40) % 6])
                       : ldexpf(rig_value(seed, i), z % 5 ? exponent % 4 : exponent);
}

static void test_wild(void **state)
{
    (void)state;
    size_t finite = 0;
    size_t nan = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        const char *codec = seed % 2 ? "affine4:32/f32" : "affine8:32/f32";
        kvs_layer_spec spec = rig_spec(1, 64, 64, codec, codec);
        spec.window = seed % 3 ? 0 : 10;
        scene s = scene_new(spec, 270, seed);
        for (size_t i = 0; i < (size_t)s.n * 4; i++) {
            bool tame = seed % 4 == 1;
            s.unit[0][i] = tame ? s.unit[0][i] : wild(seed, i) * 0.01f;
            s.unit[1][i] = wild(seed + 1000, i);
        }
        uint32_t queries = seed % 5 ? 3 : MANY;
        float *q = rig_rows(seed, 0, queries, 64);
        for (size_t i = 0; i < (size_t)queries * 64; i++) {
            q[i] = seed % 7 == 0 ? wild(seed + 2000, i) : q[i];
        }
        float *want = scene_expect(&s, q, queries, 1);
        read_everywhere(&s, q, queries, 1, want, "wild", seed);
        for (size_t i = 0; i < (size_t)queries * 64; i++) {
            finite += isfinite(want[i]) && want[i] != 0.0f;
            nan += isnan(want[i]) != 0;
        }
        free(q);
        free(want);
        scene_free(&s);
    }
    assert_true(finite > 1000);
    assert_true(nan > 1000);
}

/* -- sixteen bits of a query. A dense V of one element in 16 shows the scores: token 0 has 1, the
 * others 0, so out = exp(s0) / sum of exp. */

/* Two groups of 32; the codes of token 0 are 1 at `at`, all others 0; scales 1, biases 0. */
static scene probe(uint32_t at)
{
    scene s = scene_new(rig_spec(1, 64, 16, "affine4:32/f32", "f32"), 3, 1);
    for (uint32_t t = 0; t < s.n; t++) {
        for (uint32_t d = 0; d < 64; d++) {
            scene_code(&s, 0, t)[d] = t == 0 && d == at ? 1.0f : 0.0f;
        }
        for (uint32_t d = 0; d < 16; d++) {
            scene_code(&s, 1, t)[d] = t == 0 ? 1.0f : 0.0f;
        }
        for (uint32_t g = 0; g < 2; g++) {
            scene_unit(&s, 0, t, g)[0] = 1.0f;
            scene_unit(&s, 0, t, g)[1] = 0.0f;
        }
    }
    return s;
}

/* What a query shows: by every tier, alone and among many, the same. */
static float shown(const scene *s, const float q[64])
{
    float rows[MANY][64];
    float first = 0.0f;
    for (int i = 0; i < MANY; i++) {
        memcpy(rows[i], q, sizeof rows[i]);
    }
    for (size_t i = 0; i < COUNT(ways); i++) {
        kvs_ctx *ctx = rig_ctx(ways[i].threads, ways[i].off);
        for (uint32_t rep = 1; rep <= MANY; rep += MANY - 1) {
            float *y = scene_read(ctx, s, rows[0], 1, rep);
            first = i == 0 && rep == 1 ? y[0] : first;
            for (size_t e = 0; e < (size_t)rep * 16; e++) {
                assert_int_equal(kvs__bits_f32(y[e]), kvs__bits_f32(first));
            }
            free(y);
        }
        kvs_ctx_free(ctx);
    }
    return first;
}

/* What a score of s0 against two of 0 gives. */
static float softmax_of(float s0)
{
    float m = s0 > 0.0f ? s0 : 0.0f;
    float p = kvs__exp(s0 - m);
    return p / (p + kvs__exp(-m) + kvs__exp(-m));
}

/* With a greatest element of 32512 a step is 1: whole numbers, ties to even. */
static void test_ties_to_even(void **state)
{
    (void)state;
    static const float cases[][2] = {
        {0.0f, 0.0f}, {0.5f, 0.0f},    {-0.5f, 0.0f},  {0.75f, 1.0f},   {1.0f, 1.0f},
        {1.5f, 2.0f}, {2.5f, 2.0f},    {-1.5f, -2.0f}, {-2.5f, -2.0f},  {3.49f, 3.0f},
        {3.5f, 4.0f}, {-7.51f, -8.0f}, {0.499f, 0.0f}, {-0.501f, -1.0f}};
    for (size_t i = 0; i < COUNT(cases) * 2; i++) {
        uint32_t at = i % 2 ? 31 : 0; /* of the group of the greatest */
        float q[64] = {0};
        scene s = probe(at);
        q[at] = cases[i / 2][0];
        q[7] = i % 3 ? 32512.0f : -32512.0f;
        float got = shown(&s, q);
        float want = softmax_of(cases[i / 2][1]);
        same(&got, &want, 1, "tie", i);
        scene_free(&s);
    }
}

/* A huge element takes the bits of its own group alone. Of 2^113 on the sums of 16-bit numbers times
 * their step may overflow, and infinity times a bias of 0 is NaN: by the definition, like the rest. */
static void test_huge_element(void **state)
{
    (void)state;
    float q[64] = {0};
    float want = softmax_of(1.0f);
    for (uint32_t at = 3; at < 64; at += 32) {
        scene s = probe(at);
        q[at] = 1.0f;
        float alone = shown(&s, q);
        same(&alone, &want, 1, "alone", at);
        q[20] = -0x1p20f; /* a step of 32.25 */
        float beside = shown(&s, q);
        float left = at < 32 ? softmax_of(0.0f) : want;
        same(&beside, &left, 1, "beside a huge one", at);
        q[20] = 0x1p112f;
        beside = shown(&s, q);
        same(&beside, &left, 1, "beside the greatest", at);
        q[20] = FLT_MAX;
        q[21] = FLT_MAX;
        float *over = scene_expect(&s, q, 1, 1);
        assert_true(isnan(over[0]));
        beside = shown(&s, q);
        same(&beside, over, 1, "overflow", at);
        free(over);
        q[20] = q[21] = q[at] = 0.0f;
        scene_free(&s);
    }
}

/* Below 2^-100 a group is 0; there it is not. Scales of 2^120 make it seen. */
static void test_tiny_query(void **state)
{
    (void)state;
    scene s = probe(5);
    scene_unit(&s, 0, 0, 0)[0] = 0x1p100f;
    float q[64] = {0};
    float zero = shown(&s, q);
    float none = softmax_of(0.0f);
    same(&zero, &none, 1, "no query", 0);
    q[5] = nextafterf(0x1p-100f, 0.0f);
    float below = shown(&s, q);
    same(&below, &none, 1, "below", 0);
    q[5] = kvs__f32_bits(1u);
    q[6] = -0x1p-101f;
    below = shown(&s, q);
    same(&below, &none, 1, "far below", 0);
    q[6] = 0.0f;
    q[5] = 0x1p-100f;
    float there = shown(&s, q);
    float want = softmax_of(32512.0f * (0x1p-100f / 32512.0f) * 0x1p100f);
    same(&there, &want, 1, "there", 0);
    assert_true(there > none);
    q[5] = -0x1p-100f;
    assert_true(shown(&s, q) < none);
    q[40] = 0x1p-90f; /* groups are apart: another one's size lends it no bits */
    q[5] = nextafterf(0x1p-100f, 0.0f);
    below = shown(&s, q);
    same(&below, &none, 1, "beside another group", 0);
    scene_free(&s);
}

/* An element that is not finite makes all of its row NaN, and no other row. */
static void test_odd_query(void **state)
{
    (void)state;
    static const uint32_t odd[] = {0x7fc00000u, 0x7f800001u, 0xffc01234u, 0x7f800000u, 0xff800000u};
    scene s = scene_new(rig_spec(1, 64, 64, "affine4:32/f16", "affine4:32/f16"), 300, 3);
    float *q = rig_rows(5, 0, MANY, 64);
    for (size_t i = 0; i < COUNT(odd) * COUNT(ways); i++) {
        kvs_ctx *ctx = rig_ctx(ways[i % COUNT(ways)].threads, ways[i % COUNT(ways)].off);
        float *plain = scene_read(ctx, &s, q, MANY, 1);
        size_t row = i % MANY;
        float *at = &q[row * 64 + i * 11 % 64];
        float old = *at;
        *at = kvs__f32_bits(odd[i / COUNT(ways)]);
        float *got = scene_read(ctx, &s, q, MANY, 1);
        for (size_t e = 0; e < 64; e++) {
            assert_int_equal(kvs__bits_f32(got[row * 64 + e]), 0x7fc00000u);
        }
        memcpy(got + row * 64, plain + row * 64, 64 * sizeof *got);
        same(got, plain, (size_t)MANY * 64, "other rows", i);
        *at = old;
        free(got);
        free(plain);
        kvs_ctx_free(ctx);
    }
    free(q);
    scene_free(&s);
}

/* Sums are exact, so which order a group's elements have does not show: q and codes turned about
 * alike. A permutation of a multiplier prime to 64. */
static void test_order_does_not_show(void **state)
{
    (void)state;
    static const char *const codecs[] = {"affine2:64/f16", "affine3:64/f16", "affine4:64/f16",
                                         "affine5:64/f16", "affine6:64/f16", "affine8:64/f16"};
    for (size_t i = 0; i < COUNT(codecs) * COUNT(ways); i++) {
        kvs_ctx *ctx = rig_ctx(ways[i % COUNT(ways)].threads, ways[i % COUNT(ways)].off);
        scene s = scene_new(rig_spec(1, 192, 32, codecs[i / COUNT(ways)], "affine8:32/f16"), 40, i);
        scene t = scene_copy(&s);
        float *q = rig_rows(i, 0, 4, 192);
        float *r = rig_rows(i, 0, 4, 192);
        for (uint32_t d = 0; d < 192; d++) {
            uint32_t to = d / 64 * 64 + (d * 37 + 11) % 64;
            for (uint32_t k = 0; k < s.n; k++) {
                scene_code(&t, 0, k)[to] = scene_code(&s, 0, k)[d];
            }
            for (size_t k = 0; k < 4; k++) {
                r[k * 192 + to] = q[k * 192 + d];
            }
        }
        float *want = scene_read(ctx, &s, q, 4, 1);
        float *got = scene_read(ctx, &t, r, 4, 1);
        same(got, want, (size_t)4 * 32, "order", i);
        free(want);
        free(got);
        free(q);
        free(r);
        scene_free(&s);
        scene_free(&t);
        kvs_ctx_free(ctx);
    }
}

/* The greatest sums there are: 256 tokens of weight 1 and code 255. */
static void test_greatest_values(void **state)
{
    (void)state;
    scene s = scene_new(rig_spec(1, 128, 128, "affine8:128/f32", "affine8:128/f32"), 256, 1);
    for (int side = 0; side < 2; side++) {
        for (uint32_t t = 0; t < s.n; t++) {
            for (uint32_t d = 0; d < 128; d++) {
                scene_code(&s, side, t)[d] = 255.0f;
            }
            scene_unit(&s, side, t, 0)[0] = side ? 2.0f : 0x1p-20f;
            scene_unit(&s, side, t, 0)[1] = side ? -1.0f : 0.0f;
        }
    }
    for (int sign = -1; sign <= 1; sign += 2) {
        float q[128];
        for (uint32_t d = 0; d < 128; d++) {
            q[d] = (float)sign;
        }
        for (uint32_t t = 0; t < s.n; t++) {
            scene_unit(&s, 1, t, 0)[0] = 2.0f * (float)sign;
        }
        float sum = (float)(256 * 32512 * 255);
        float want[128];
        for (uint32_t d = 0; d < 128; d++) { /* b = -256, exactly; l = 256 */
            want[d] = fmaf((float)sign * sum, 2.0f / 32512.0f, -256.0f) / 256.0f;
        }
        read_everywhere(&s, q, 1, 1, want, "greatest", sign > 0);
    }
    scene_free(&s);
}

/* The greatest score, against 0 of tokens of code 0: D = 128 * 32512 * 255. */
static void test_greatest_score(void **state)
{
    (void)state;
    scene p = scene_new(rig_spec(1, 128, 16, "affine8:128/f32", "f32"), 3, 1);
    for (uint32_t t = 0; t < p.n; t++) {
        for (uint32_t d = 0; d < 128; d++) {
            scene_code(&p, 0, t)[d] = t ? 0.0f : 255.0f;
            scene_code(&p, 1, t)[d % 16] = t ? 0.0f : 1.0f;
        }
        scene_unit(&p, 0, t, 0)[0] = 0x1p-15f;
        scene_unit(&p, 0, t, 0)[1] = 0.0f;
    }
    float q[128];
    float want[16];
    for (uint32_t d = 0; d < 128; d++) {
        q[d] = 1.0f;
        want[d % 16] = softmax_of((float)(128 * 32512 * 255) * (1.0f / 32512.0f) * 0x1p-15f);
    }
    read_everywhere(&p, q, 1, 1, want, "greatest score", 0);
    scene_free(&p);
}

/* -- scales and biases that may and may not matter */

static const uint32_t bad[] = {0x7fc00000u, 0x7f800001u, 0x7f800000u, 0xff800000u, 0x7f7fffffu};

/* Sets one side's scale (which 0) or bias (1) of a group of a token. */
static void spoil(scene *s, int side, uint32_t token, uint32_t group, int which, uint32_t bits)
{
    scene_unit(s, side, token, group)[which] = kvs__f32_bits(bits);
}

static void test_unseen_units(void **state)
{
    (void)state;
    static const struct {
        uint32_t window;
        uint32_t sinks;
        uint32_t token; /* that the query at 279 does not see, or only later ones */
    } cases[] = {{20, 0, 0},   {20, 0, 259}, {20, 4, 4},  {20, 4, 255}, {20, 4, 256},
                 {24, 0, 255}, {25, 0, 254}, {1, 0, 278}, {1, 300, 300}};
    for (size_t i = 0; i < COUNT(cases) * COUNT(bad); i++) {
        kvs_layer_spec spec = rig_spec(1, 64, 64, "affine4:32/f32", "affine8:32/f32");
        spec.window = cases[i / COUNT(bad)].window;
        spec.sinks = cases[i / COUNT(bad)].sinks;
        uint32_t token = cases[i / COUNT(bad)].token;
        scene s = scene_new(spec, token > 279 ? token + 1 : 280, i);
        scene t = scene_copy(&s);
        float *q = rig_rows(5, 0, MANY, 64);
        for (int side = 0; side < 2; side++) {
            for (uint32_t g = 0; g < 2; g++) {
                spoil(&t, side, token, g, 0, bad[i % COUNT(bad)]);
                spoil(&t, side, token, g, 1, bad[(i + 1) % COUNT(bad)]);
            }
            memset(scene_code(&t, side, token), 0, 64 * sizeof(float));
        }
        float *want = scene_expect(&s, q, 1, MANY);
        if (token > 279) { /* the future: the query before the last sees all but it */
            for (size_t w = 0; w < COUNT(ways); w++) {
                kvs_ctx *ctx = rig_ctx(ways[w].threads, ways[w].off);
                float *x = scene_read(ctx, &s, q, 2, MANY / 2);
                float *y = scene_read(ctx, &t, q, 2, MANY / 2);
                same(y, x, (size_t)MANY / 2 * 64, "the future", i);
                assert_true(isnan(y[(size_t)MANY / 2 * 64]) || bad[i % COUNT(bad)] == 0x7f7fffffu);
                free(x);
                free(y);
                kvs_ctx_free(ctx);
            }
        } else {
            read_everywhere(&t, q, 1, MANY, want, "unseen", i);
            read_everywhere(&t, q, 1, 1, want, "unseen by one", i);
        }
        free(want);
        free(q);
        scene_free(&s);
        scene_free(&t);
    }
}

/* Of a value that is seen a bad scale or bias spoils its own group and no other one's bit. */
static void test_bad_value_units(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 40, 256, 300};
    for (size_t i = 0; i < COUNT(counts) * 4 * 2; i++) {
        int which = (int)(i % 2);
        uint32_t bits = bad[i / 2 % 4];
        uint32_t n = counts[i / 8];
        scene s = scene_new(rig_spec(1, 32, 96, "affine4:32/f32", "affine5:32/f32"), n, i);
        float *q = rig_rows(5, 0, MANY, 32);
        float *want = scene_expect(&s, q, 1, MANY);
        spoil(&s, 1, n - 1, 1, which, bits);
        for (size_t r = 0; r < MANY; r++) {
            for (size_t d = 32; d < 64; d++) { /* of an infinite bias the sum is infinite */
                bool inf = which == 1 && (bits & 0x7fffffu) == 0;
                want[r * 96 + d] = kvs__f32_bits(inf ? bits : 0x7fc00000u);
            }
        }
        read_everywhere(&s, q, 1, MANY, want, "bad value", i);
        read_everywhere(&s, q, 1, 1, want, "bad value, one query", i);
        free(want);
        free(q);
        scene_free(&s);
    }
}

/* A bad scale or bias of a key makes its score NaN, and so all of the output; one of -inf that makes
 * it -inf makes the token count as nothing. */
static void test_bad_key_units(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(bad) - 2; i++) {
        scene s = scene_new(rig_spec(1, 64, 32, "affine4:32/f32", "affine4:32/f32"), 270, i);
        float q[64];
        float want[32];
        for (int d = 0; d < 64; d++) {
            q[d] = d < 32 ? 1.0f : 0.0f; /* one group is all zero */
        }
        for (int d = 0; d < 32; d++) {
            want[d] = kvs__f32_bits(0x7fc00000u);
        }
        spoil(&s, 0, 100, i % 2, 0, bad[i / 2 % 2]);
        read_everywhere(&s, q, 1, 1, want, "NaN in a key", i);
        spoil(&s, 0, 100, 1, (int)(i % 2), bad[2 + i % 2]); /* 0 times infinity */
        spoil(&s, 0, 100, 0, 0, 0x3f800000u);
        read_everywhere(&s, q, 1, 1, want, "an infinity that meets 0", i);
        scene_free(&s);
    }
    scene s = scene_new(rig_spec(1, 32, 32, "affine4:32/f32", "affine8:32/f32"), 30, 9);
    float *q = rig_rows(4, 0, 1, 32);
    float sum = 0.0f;
    for (int d = 0; d < 32; d++) {
        q[d] = fabsf(q[d]);
        sum += q[d];
    }
    assert_true(sum > 1.0f);
    spoil(&s, 0, 11, 0, 1, 0xff800000u);
    for (int turn = 0; turn < 2; turn++) {
        float *want = scene_expect(&s, q, 1, 1);
        assert_true(isfinite(want[0]));
        spoil(&s, 1, 11, 0, turn, bad[turn]); /* exp(-inf) is 0: its value is not looked at */
        read_everywhere(&s, q, 1, 1, want, "a score of -inf", (size_t)turn);
        free(want);
    }
    free(q);
    scene_free(&s);
}

/* -- numerators */

/* Token t's score is bias * 32 where all of q is 1 and codes are 0. */
static void give_score(scene *s, uint32_t t, float score)
{
    memset(scene_code(s, 0, t), 0, 32 * sizeof(float));
    scene_unit(s, 0, t, 0)[0] = 1.0f;
    scene_unit(s, 0, t, 0)[1] = score / 32.0f;
}

/* A token whose numerator is 0 counts as nothing, whatever its value; one above it does. */
static void test_no_numerator(void **state)
{
    (void)state;
    float q[MANY * 32];
    for (int d = 0; d < MANY * 32; d++) {
        q[d] = 1.0f;
    }
    for (uint32_t i = 0; i < 3 * COUNT(bad); i++) {
        scene s = scene_new(rig_spec(1, 32, 64, "affine4:32/f32", "affine8:32/f32"), 300, i);
        for (uint32_t t = 0; t < s.n; t++) {
            give_score(&s, t, t % 3 == i % 3 ? -96.0f : (float)(t % 7) * 0.25f);
        }
        float *want = scene_expect(&s, q, 1, MANY);
        for (uint32_t t = i % 3; t < s.n; t += 3) {
            spoil(&s, 1, t, t % 2, 0, bad[i / 3]);
            spoil(&s, 1, t, 1 - t % 2, 1, bad[(i / 3 + t) % COUNT(bad)]);
        }
        read_everywhere(&s, q, 1, MANY, want, "no numerator", i);
        read_everywhere(&s, q, 1, 1, want, "no numerator, one query", i);
        give_score(&s, i % 3 + 30, -80.0f);
        spoil(&s, 1, i % 3 + 30, 0, 0, 0x7f800000u);
        kvs_ctx *ctx = rig_ctx(1, 0);
        float *got = scene_read(ctx, &s, q, 1, 1);
        assert_true(isnan(got[0]));
        free(got);
        kvs_ctx_free(ctx);
        free(want);
        scene_free(&s);
    }
}

/* Weights below 2^-100 are 0, all biases stay; a token of code 255 shows them. */
static void test_tiny_weights(void **state)
{
    (void)state;
    float q[32] = {0};
    scene s = scene_new(rig_spec(1, 32, 32, "affine4:32/f32", "affine8:32/f32"), 1, 1);
    for (int d = 0; d < 32; d++) {
        scene_code(&s, 1, 0)[d] = 255.0f;
    }
    static const float scales[] = {0x1p-100f, -0x1p-100f, 0x1p-126f, 0x0.8p-126f};
    for (size_t i = 0; i < COUNT(scales) * 2; i++) {
        float scale = scales[i / 2];
        bool there = fabsf(scale) == 0x1p-100f;
        float bias = i % 2 ? 3.0f : 0.0f;
        float want[32];
        scene_unit(&s, 1, 0, 0)[0] = scale;
        scene_unit(&s, 1, 0, 0)[1] = bias;
        for (int d = 0; d < 32; d++) {
            float sum = (float)(32512 * 255) * (scale < 0.0f ? -1.0f : 1.0f);
            want[d] = there ? fmaf(sum, 0x1p-100f / 32512.0f, bias) : bias;
        }
        read_everywhere(&s, q, 1, 1, want, "tiny weights", i);
        if (there) {
            scene_unit(&s, 1, 0, 0)[0] = nextafterf(scale, 0.0f);
            for (int d = 0; d < 32; d++) {
                want[d] = bias;
            }
            read_everywhere(&s, q, 1, 1, want, "just below", i);
        }
    }
    scene_free(&s);
}

/* The weights of every chunk have a step of their own. */
static void test_chunks_apart(void **state)
{
    (void)state;
    float q[32] = {0}; /* all tokens alike */
    scene s = scene_new(rig_spec(1, 32, 32, "affine4:32/f32", "affine8:32/f32"), 257, 1);
    for (uint32_t t = 0; t < s.n; t++) {
        for (int d = 0; d < 32; d++) {
            scene_code(&s, 1, t)[d] = t == 3 || t == 256 ? 1.0f : 0.0f;
        }
        scene_unit(&s, 1, t, 0)[0] = 1.0f;
        scene_unit(&s, 1, t, 0)[1] = 0.0f;
    }
    float want[32];
    for (int i = 0; i < 2; i++) {
        /* one huge scale, of code 0: in the chunk of 3 it takes the bits */
        scene_unit(&s, 1, 7, 0)[0] = i ? 0x1p20f : 1.0f;
        float first = i ? 0.0f : 32512.0f * (1.0f / 32512.0f);
        for (int d = 0; d < 32; d++) {
            want[d] = (first + 32512.0f * (1.0f / 32512.0f)) / 257.0f;
        }
        read_everywhere(&s, q, 1, 1, want, "chunk", (size_t)i);
    }
    scene_free(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_wild),
        cmocka_unit_test(test_ties_to_even),
        cmocka_unit_test(test_huge_element),
        cmocka_unit_test(test_tiny_query),
        cmocka_unit_test(test_odd_query),
        cmocka_unit_test(test_order_does_not_show),
        cmocka_unit_test(test_greatest_values),
        cmocka_unit_test(test_greatest_score),
        cmocka_unit_test(test_unseen_units),
        cmocka_unit_test(test_bad_value_units),
        cmocka_unit_test(test_bad_key_units),
        cmocka_unit_test(test_no_numerator),
        cmocka_unit_test(test_tiny_weights),
        cmocka_unit_test(test_chunks_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
