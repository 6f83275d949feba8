/* SPDX-License-Identifier: MIT */
/* test_cache_read.c: attention reads bit for bit: against the naive model in shapes that the random
 * programs (ops.c) do not draw, and against each other where nothing may show: threads, tiers,
 * grouping of tokens and of queries, layout, strides, the memory's former content, and tokens that
 * a query does not see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "base/half.h"
#define RIG_PAGED
#include "diff/naive.h"
#include "support/cache_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* -- against the model */

typedef struct shape {
    uint32_t heads;
    uint32_t k_dim;
    uint32_t v_dim;
    const char *k;
    const char *v;
    uint32_t n;
    uint32_t queries;
    uint32_t rep;
    uint32_t window;
    uint32_t sinks;
    uint32_t max_block; /* not 0: a ring */
    float softcap;
    bool sink_logits;
} shape;

static const shape shapes[] = {
    /* every head dim's remainders; K and V apart */
    {1, 16, 16, "f16", "bf16", 300, 2, 3, 0, 0, 0, 0.0f, false},
    {2, 24, 40, "bf16", "f32", 300, 3, 2, 0, 0, 0, 0.0f, true},
    {1, 80, 112, "f32", "f16", 270, 1, 9, 0, 0, 0, 5.0f, false},
    {1, 192, 160, "q4", "affine5:32", 280, 1, 4, 0, 0, 0, 0.0f, false},
    {1, 256, 256, "affine3:32", "q6:128", 260, 9, 1, 0, 0, 0, 0.0f, true},
    {1, 512, 1024, "affine2:64", "affine8:128/bf16", 40, 2, 2, 0, 0, 0, 0.0f, false},
    {1, 1024, 512, "q8:128/f32", "q2", 40, 1, 3, 0, 0, 0, 2.0f, true},
    /* latent attention: one head, V inside K's dim, many query heads */
    {1, 576, 512, "f16", "f16", 70, 1, 16, 0, 0, 0, 0.0f, false},
    {1, 576, 512, "q8", "affine4:64", 40, 1, 10, 0, 0, 0, 0.0f, false},
    /* more rows than a block of rows has */
    {1, 32, 16, "f32", "f16", 40, 1, 70, 0, 0, 0, 0.0f, true},
    {1, 32, 32, "affine4:32", "affine4:32", 70, 3, 50, 0, 0, 0, 0.0f, false},
    {1, 16, 16, "f32", "f32", 610, 600, 1, 0, 0, 0, 0.0f, false},
    {2, 16, 16, "f16", "f16", 300, 200, 1, 37, 5, 0, 0.0f, false},
    /* windows: of one token, longer than what is held, sinks that meet or exceed the window */
    {1, 16, 16, "f16", "f16", 50, 20, 2, 1, 0, 0, 0.0f, false},
    {1, 16, 16, "f16", "f16", 50, 20, 2, 1000, 7, 0, 0.0f, false},
    {1, 16, 16, "f16", "f16", 50, 20, 2, 4, 30, 0, 0.0f, true},
    {2, 32, 32, "q4:32", "q4:32", 90, 1, 2, 1, 0, 1, 0.0f, false},
    {2, 32, 32, "affine4:32", "f16", 90, 3, 2, 5, 3, 4, 0.0f, false},
    {1, 32, 32, "f16", "q3:32", 700, 17, 2, 300, 280, 17, 0.0f, true},
    {1, 32, 32, "bf16", "f32", 700, 17, 2, 20, 300, 17, 0.0f, false},
    {1, 32, 32, "f32", "bf16", 40, 9, 2, 1000, 0, 9, 0.0f, false},
    {1, 16, 16, "f16", "f16", 530, 1, 1, 257, 0, 1, 0.0f, false},
};

static kvs_layer_spec spec_of(const shape *s)
{
    kvs_layer_spec spec = rig_spec(s->heads, s->k_dim, s->v_dim, s->k, s->v);
    if (s->max_block) {
        return rig_ring(spec, s->window, s->sinks, s->max_block);
    }
    spec.window = s->window;
    spec.sinks = s->sinks;
    return spec;
}

static kvs_attend query_of(const shape *s, const kvs_layer_spec *spec, float *logits, float **q,
                           float **out)
{
    kvs_attend d = rig_query(spec, s->queries, s->rep, -1, q, out);
    d.softcap = s->softcap;
    if (s->sink_logits) {
        for (uint32_t h = 0; h < d.n_q_heads; h++) {
            logits[h] = rig_value(5, h);
        }
        d.sink_logits = logits;
    }
    return d;
}

static void compare(const float *got, const float *want, size_t n, const char *what, size_t which)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof *got) != 0) {
            fail_msg("%s %zu: element %zu is %.9g, not %.9g", what, which, i, (double)got[i],
                     (double)want[i]);
        }
    }
}

static float *model_read(kvs_ctx *ctx, const shape *s)
{
    kvs_layer_spec spec = spec_of(s);
    model m;
    model_init(&m, ctx, &spec);
    float *k = rig_rows(2, 0, s->n, (size_t)s->heads * s->k_dim);
    float *v = rig_rows(3, 0, s->n, (size_t)s->heads * s->v_dim);
    model_append(&m, s->n, k, v);
    float logits[128];
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = query_of(s, &spec, logits, &q, &out);
    d.q_pos = (int64_t)s->n - s->queries;
    model_attend(&m, &d, q, NULL, NULL, out);
    model_free(&m);
    free(k);
    free(v);
    free(q);
    return out;
}

static float *cache_read(kvs_ctx *ctx, const shape *s, uint32_t block)
{
    kvs_layer_spec spec = spec_of(s);
    kvs_cache *c = rig_cache(ctx, &spec, 1, 0);
    uint32_t most = s->max_block ? s->max_block : block;
    rig_fill(c, 0, s->n, block < most ? block : most, 1);
    float logits[128];
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = query_of(s, &spec, logits, &q, &out);
    rig_must(kvs_cache_attend(c, 0, &d, NULL));
    kvs_cache_free(c);
    free(q);
    return out;
}

static size_t out_floats(const shape *s)
{
    return (size_t)s->queries * s->heads * s->rep * s->v_dim;
}

static void test_shapes(void **state)
{
    (void)state;
    kvs_ctx *plain = rig_ctx(1, 0);
    static const uint32_t off[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    static const uint32_t threads[] = {1, 2, 3, 8};
    static const uint32_t blocks[] = {1, 7, 64, UINT32_MAX};
    for (size_t i = 0; i < COUNT(shapes); i++) {
        float *want = model_read(plain, &shapes[i]);
        for (size_t j = 0; j < COUNT(threads); j++) {
            kvs_ctx *ctx = rig_ctx(threads[j], off[(i + j) % COUNT(off)]);
            float *got = cache_read(ctx, &shapes[i], blocks[(i + j) % COUNT(blocks)]);
            compare(got, want, out_floats(&shapes[i]), "shape", i);
            free(got);
            kvs_ctx_free(ctx);
        }
        free(want);
    }
    kvs_ctx_free(plain);
}

/* -- one cache, read in other ways */

/* Memory that was never written holds what hurts most. */
static uint32_t poison;

static void *poison_alloc(void *user, size_t bytes, size_t align)
{
    size_t n = (bytes + align - 1) / align * align;
    uint32_t *p = aligned_alloc(align, n ? n : align);
    for (size_t i = 0; p && i < n / sizeof *p; i++) {
        p[i] = *(const uint32_t *)user;
    }
    return p;
}

static void poison_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(p);
}

static void test_poison(void **state)
{
    (void)state;
    static const uint32_t fills[] = {0xffffffffu, 0x7f817f81u, 0x7c017c01u, 0x7f800000u, 0};
    for (size_t i = 0; i < COUNT(shapes); i += 3) {
        float *want = NULL;
        for (size_t j = 0; j < COUNT(fills); j++) {
            kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
            kvs_ctx *ctx = NULL;
            poison = fills[j];
            o.alloc = poison_alloc;
            o.free = poison_free;
            o.alloc_user = &poison;
            o.n_threads = 1 + (uint32_t)j % 2;
            rig_must(kvs_ctx_new(&o, &ctx, NULL));
            float *got = cache_read(ctx, &shapes[i], 7);
            if (want) {
                compare(got, want, out_floats(&shapes[i]), "poison", i);
                free(got);
            } else {
                want = got;
            }
            kvs_ctx_free(ctx);
        }
        free(want);
    }
}

/* A ring gives what a grown cache with the same window gives, and one query what many give. */
static void test_ring_is_grow(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(2, 0);
    static const uint32_t windows[] = {1, 3, 16, 100, 255, 300};
    static const uint32_t sinks[] = {0, 4, 33, 270};
    for (size_t i = 0; i < COUNT(windows) * COUNT(sinks); i++) {
        kvs_layer_spec ring =
            rig_ring(rig_spec(2, 32, 32, i % 2 ? "q4:32" : "f16", "affine8:32"),
                     windows[i % COUNT(windows)], sinks[i / COUNT(windows)], 1 + (uint32_t)i);
        kvs_layer_spec grow = ring;
        grow.layout = KVS_LAYOUT_GROW;
        kvs_cache *a = rig_cache(ctx, &ring, 1, 0);
        kvs_cache *b = rig_cache(ctx, &grow, 1, 0);
        for (int turn = 0; turn < 5; turn++) {
            rig_fill(a, 0, 131, ring.max_block, 1);
            rig_fill(b, 0, 131, 131, 1);
            uint32_t n = ring.max_block;
            float *x = rig_read(a, 0, n, 2);
            float *y = rig_read(b, 0, n, 2);
            compare(x, y, (size_t)n * 4 * 32, "ring", i);
            float *q = NULL;
            float *z = NULL;
            kvs_attend d = rig_query(&ring, n, 2, 0, &q, &z);
            d.n_queries = 1;
            for (uint32_t t = 0; t < n; t++) {
                d.q = q + (size_t)t * 4 * 32;
                d.out = z + (size_t)t * 4 * 32;
                d.q_pos = kvs_cache_length(a, 0) - (int64_t)(n - t);
                rig_must(kvs_cache_attend(a, 0, &d, NULL));
            }
            compare(z, x, (size_t)n * 4 * 32, "one by one", i);
            free(q);
            free(x);
            free(y);
            free(z);
        }
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
    kvs_ctx_free(ctx);
}

static size_t elem(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

static float rounded(kvs_dtype t, float x)
{
    if (t == KVS_F16) {
        return kvs__f16_to_f32(kvs__f16_from_f32(x));
    }
    return t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x)) : x;
}

static void put(void *dst, kvs_dtype t, size_t i, float x)
{
    if (t == KVS_F32) {
        ((float *)dst)[i] = x;
    } else {
        ((uint16_t *)dst)[i] = t == KVS_F16 ? kvs__f16_from_f32(x) : kvs__bf16_from_f32(x);
    }
}

/* [n][heads][dim] of x with gaps of 3 and 5 elements, NaN in them; the strides come back. */
static void *spread(kvs_dtype t, const float *x, size_t n, size_t heads, size_t dim, size_t *ts,
                    size_t *hs)
{
    *hs = dim + 3;
    *ts = heads * *hs + 5;
    void *p = rig_alloc(n * *ts * elem(t));
    memset(p, 0xff, n * *ts * elem(t));
    for (size_t i = 0; i < n * heads * dim; i++) {
        put(p, t, i / (heads * dim) * *ts + i / dim % heads * *hs + i % dim, x[i]);
    }
    return p;
}

static void round_all(kvs_dtype t, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = rounded(t, x[i]);
    }
}

/* Any strides and dtypes of K, V, q and out give what dense f32 of the same values gives, rounded
 * once; the gaps are not read, and not written. */
static void check_strides(kvs_ctx *ctx, kvs_layer_spec s, kvs_dtype kv_type, kvs_dtype q_type,
                          kvs_dtype out_type)
{
    enum { N = 45, Q = 5, REP = 2 };
    size_t heads = s.n_kv_heads;
    float *k = rig_rows(2, 0, N, heads * s.k_dim);
    float *v = rig_rows(3, 0, N, heads * s.v_dim);
    float *q = rig_rows(4, 0, Q, heads * REP * s.k_dim);
    round_all(kv_type, k, N * heads * s.k_dim);
    round_all(kv_type, v, N * heads * s.v_dim);
    round_all(q_type, q, Q * heads * REP * s.k_dim);
    size_t n_out = Q * heads * REP * s.v_dim;
    float *want = rig_alloc(n_out * sizeof *want);
    kvs_cache *a = rig_cache(ctx, &s, 1, 0);
    kvs_cache *b = rig_cache(ctx, &s, 1, 0);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = N;
    kv.k = k;
    kv.v = v;
    rig_must(kvs_cache_append(a, 0, &kv, NULL));
    void *ks = spread(kv_type, k, N, heads, s.k_dim, &kv.k_token_stride, &kv.k_head_stride);
    void *vs = spread(kv_type, v, N, heads, s.v_dim, &kv.v_token_stride, &kv.v_head_stride);
    kv.dtype = kv_type;
    kv.k = ks;
    kv.v = vs;
    rig_must(kvs_cache_append(b, 0, &kv, NULL));
    rig_snap snap;
    rig_snap_take(&snap, a);
    assert_true(rig_snap_same(&snap, b));
    rig_snap_drop(&snap);
    kvs_attend d = KVS_ATTEND_INIT;
    d.n_queries = Q;
    d.n_q_heads = s.n_kv_heads * REP;
    d.scale = 0.25f;
    d.q = q;
    d.out = want;
    rig_must(kvs_cache_attend(a, 0, &d, NULL));
    void *qs = spread(q_type, q, Q, heads * REP, s.k_dim, &d.q_token_stride, &d.q_head_stride);
    d.q = qs;
    d.q_dtype = q_type;
    d.out_dtype = out_type;
    void *wanted =
        spread(out_type, want, Q, heads * REP, s.v_dim, &d.out_token_stride, &d.out_head_stride);
    size_t out_bytes = Q * d.out_token_stride * elem(out_type);
    d.out = rig_alloc(out_bytes);
    memset(d.out, 0xff, out_bytes);
    rig_must(kvs_cache_attend(b, 0, &d, NULL));
    assert_memory_equal(d.out, wanted, out_bytes);
    free(d.out);
    free(wanted);
    free(qs);
    free(ks);
    free(vs);
    free(want);
    free(q);
    free(v);
    free(k);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_strides_and_dtypes(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(2, 0);
    static const char *const codecs[] = {"f32", "f16", "bf16", "affine4:32", "q8:32"};
    for (uint32_t i = 0; i < 27; i++) {
        kvs_layer_spec s = rig_spec(2, 96, 32, codecs[i % 5], codecs[i / 5 % 5]);
        check_strides(ctx, s, (kvs_dtype)(i % 3), (kvs_dtype)(i / 3 % 3), (kvs_dtype)(i / 9));
    }
    kvs_ctx_free(ctx);
}

/* -- tokens that are and are not seen */

static const uint32_t odd_bits[] = {0x7fc00000u, 0x7f800001u, 0xffc01234u, 0x7f800000u,
                                    0xff800000u, 0x7f7fffffu, 0x00000001u};

/* Appends N tokens of the usual stream, token `at` replaced by x everywhere (if not negative). */
static kvs_cache *with_odd_token(kvs_ctx *ctx, const kvs_layer_spec *s, uint32_t n, int64_t at,
                                 float x)
{
    kvs_cache *c = rig_cache(ctx, s, 1, 0);
    uint32_t block = s->layout == KVS_LAYOUT_RING ? s->max_block : n;
    for (uint32_t t = 0; t < n; t += block) {
        uint32_t m = n - t < block ? n - t : block;
        size_t rk = (size_t)s->n_kv_heads * s->k_dim;
        size_t rv = (size_t)s->n_kv_heads * s->v_dim;
        float *k = rig_rows(2, t, m, rk);
        float *v = rig_rows(3, t, m, rv);
        if (at >= t && at < t + m) {
            for (size_t i = 0; i < rk; i++) {
                k[(size_t)(at - t) * rk + i] = x;
            }
            for (size_t i = 0; i < rv; i++) {
                v[(size_t)(at - t) * rv + i] = x;
            }
        }
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = m;
        kv.k = k;
        kv.v = v;
        rig_must(kvs_cache_append(c, 0, &kv, NULL));
        free(k);
        free(v);
    }
    return c;
}

static bool sees(const kvs_layer_spec *s, int64_t pos, int64_t key)
{
    return key <= pos &&
           (s->window == 0 || key > pos - (int64_t)s->window || key < (int64_t)s->sinks);
}

/* All queries of a cache of n tokens that are still answered, bit by bit. */
static void check_odd_token(kvs_ctx *ctx, const kvs_layer_spec *s, uint32_t n, int64_t at,
                            uint32_t bits, size_t which)
{
    kvs_cache *a = with_odd_token(ctx, s, n, -1, 0.0f);
    kvs_cache *b = with_odd_token(ctx, s, n, at, kvs__f32_bits(bits));
    uint32_t most = s->layout == KVS_LAYOUT_RING ? s->max_block : n;
    float *x = rig_read(a, 0, most, 1);
    float *y = rig_read(b, 0, most, 1);
    size_t row = (size_t)s->n_kv_heads * s->v_dim;
    for (uint32_t i = 0; i < most; i++) {
        bool seen = sees(s, (int64_t)(n - most + i), at);
        if (!seen) {
            compare(y + i * row, x + i * row, row, "unseen token", which);
        } else if (isnan(kvs__f32_bits(bits)) && s->v.bits == 0) {
            for (size_t e = 0; e < row; e++) {
                assert_int_equal(kvs__bits_f32(y[i * row + e]), 0x7fc00000u);
            }
        }
    }
    free(x);
    free(y);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_odd_tokens(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(2, 0);
    static const char *const codecs[] = {"f32", "f16", "bf16", "affine4:32", "q8:32"};
    static const int64_t at[] = {0, 15, 16, 33, 64, 240, 241, 255, 256, 269, 270};
    for (size_t i = 0; i < COUNT(at) * COUNT(odd_bits); i++) {
        const char *codec = codecs[i % COUNT(codecs)];
        kvs_layer_spec s = rig_spec(1, 32, 32, codec, codec);
        int64_t key = at[i % COUNT(at)];
        uint32_t bits = odd_bits[i / COUNT(at)];
        check_odd_token(ctx, &s, 271, key, bits, i);
        s.window = 20;
        s.sinks = 3;
        check_odd_token(ctx, &s, 271, key, bits, i);
        s = rig_ring(s, 20, 17, 14);
        check_odd_token(ctx, &s, 271, key, bits, i);
    }
    kvs_ctx_free(ctx);
}

/* Groups with NaN and infinities are stored as kvs_codec_encode says, scales included. */
static void test_odd_groups(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    static const char *const codecs[] = {"affine4:32", "affine2:32/bf16", "affine8:32/f32"};
    for (size_t i = 0; i < COUNT(codecs) * COUNT(odd_bits); i++) {
        const char *codec = codecs[i % COUNT(codecs)];
        kvs_layer_spec s = rig_spec(1, 64, 64, codec, codec);
        float x[4][64];
        for (size_t e = 0; e < 4 * 64; e++) { /* one group odd in one element, one in all */
            bool odd = e == 70 || e / 32 == 4;
            x[e / 64][e % 64] = odd ? kvs__f32_bits(odd_bits[i / COUNT(codecs)]) : rig_value(6, e);
        }
        x[3][5] = INFINITY;
        x[3][7] = -INFINITY;
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = 4;
        kv.k = x;
        kv.v = x;
        kvs_cache *c = rig_cache(ctx, &s, 1, 0);
        rig_must(kvs_cache_append(c, 0, &kv, NULL));
        kvs_planes want;
        size_t bytes = 0;
        void *base = rig_planes(&s, 0, 4, &want, &bytes);
        rig_must(
            kvs_codec_encode(ctx, &s.k, 64, 4, x, KVS_F32, want.k[0], want.k[1], want.k[2], NULL));
        rig_must(
            kvs_codec_encode(ctx, &s.v, 64, 4, x, KVS_F32, want.v[0], want.v[1], want.v[2], NULL));
        size_t got_bytes = 0;
        void *got = rig_export(c, 0, 0, 4, &got_bytes);
        assert_int_equal(got_bytes, bytes);
        assert_memory_equal(got, base, bytes);
        free(got);
        free(base);
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

/* -- what few tests reach: image tokens across chunks, many waves of partial results */

static void check_image(kvs_ctx *ctx, uint32_t n, uint32_t queries, uint32_t rep, int64_t q_pos,
                        uint32_t window)
{
    kvs_layer_spec s = rig_spec(1, 16, 16, "f16", "f16");
    s.window = window;
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    rig_fill(c, 0, n, n, 1);
    model m;
    model_init(&m, ctx, &s);
    float *k = rig_rows(2, 0, n, 16);
    float *v = rig_rows(3, 0, n, 16);
    model_append(&m, n, k, v);
    float *q = NULL;
    float *got = NULL;
    kvs_attend d = rig_query(&s, queries, rep, q_pos, &q, &got);
    float *want = rig_alloc((size_t)queries * rep * 16 * sizeof *want);
    uint8_t *flags = rig_alloc(queries);
    d.mode = KVS_READ_BIDIRECTIONAL;
    d.flags = flags;
    for (uint32_t kind = 0; kind < 3; kind++) { /* all, every third, none */
        for (uint32_t i = 0; i < queries; i++) {
            flags[i] = (uint8_t)(kind == 0 || (kind == 1 && i % 3 == 0));
        }
        rig_must(kvs_cache_attend(c, 0, &d, NULL));
        model_attend(&m, &d, q, NULL, NULL, want);
        compare(got, want, (size_t)queries * rep * 16, "image", kind);
    }
    free(flags);
    free(want);
    free(got);
    free(q);
    free(v);
    free(k);
    model_free(&m);
    kvs_cache_free(c);
}

static void test_images_across_chunks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(2, 0);
    check_image(ctx, 300, 12, 1, 250, 0);
    check_image(ctx, 300, 12, 2, 250, 4);
    check_image(ctx, 300, 60, 2, 220, 0); /* two blocks of rows, the second sees a chunk more */
    check_image(ctx, 300, 60, 3, 230, 7);
    check_image(ctx, 40, 40, 1, 0, 3);
    kvs_ctx_free(ctx);
}

/* 64 rows of 1024 elements: three chunks' partial results fill the scratch. */
static void test_waves(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1536, 1300, 768, 600};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        kvs_layer_spec s = rig_spec(1, 16, 1024, "f32", "f16");
        float *want = NULL;
        for (uint32_t threads = 1; threads <= 3; threads++) {
            kvs_ctx *ctx = rig_ctx(threads, 0);
            kvs_cache *c = rig_cache(ctx, &s, 1, 0);
            rig_fill(c, 0, lengths[i], 300, 1);
            float *got = rig_read(c, 0, 1, 64);
            if (want) {
                compare(got, want, (size_t)64 * 1024, "waves", threads);
                free(got);
            } else {
                want = got;
            }
            kvs_cache_free(c);
            kvs_ctx_free(ctx);
        }
        free(want);
    }
}

/* Taken back and written over, a token leaves no trace, whatever it was. */
static void test_rewound_nan(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (uint32_t back = 1; back < 40; back += 3) {
        kvs_layer_spec s = rig_spec(2, 32, 64, back % 2 ? "f16" : "q4:32", "f32");
        kvs_cache *a = rig_cache(ctx, &s, 1, 0);
        rig_fill(a, 0, 60, 60, 1);
        kvs_cache *b = with_odd_token(ctx, &s, 70, 70 - (int64_t)back, NAN);
        rig_must(kvs_cache_rewind(b, 0, back, NULL));
        if (back < 10) {
            rig_must(kvs_cache_rewind(b, 0, 10 - back, NULL));
        }
        rig_fill(b, 0, (uint32_t)(60 - kvs_cache_length(b, 0)), 60, 1);
        float *x = rig_read(a, 0, 1, 1);
        float *y = rig_read(b, 0, 1, 1);
        compare(y, x, 2 * 64, "rewound", back);
        free(x);
        free(y);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
    kvs_ctx_free(ctx);
}

/* usage: test_cache_read [block]: paged layers in blocks of so many tokens */
int main(int argc, char **argv)
{
    rig_block = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_poison),
        cmocka_unit_test(test_ring_is_grow), cmocka_unit_test(test_strides_and_dtypes),
        cmocka_unit_test(test_odd_tokens),   cmocka_unit_test(test_rewound_nan),
        cmocka_unit_test(test_odd_groups),   cmocka_unit_test(test_images_across_chunks),
        cmocka_unit_test(test_waves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
