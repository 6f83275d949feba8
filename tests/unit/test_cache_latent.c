/* SPDX-License-Identifier: MIT */
/* test_cache_latent.c: layers that keep one row a token (MLA): reads equal those of keys and values
 * kept apart, bytes are those of the key alone, and what can't be is refused. The differential test
 * draws such layers too; here are the dims of real models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvstate/kvstate.h"

#define N_TOKENS 300
#define N_HEADS  16
#define K_DIM    576
#define V_DIM    512

static float *random_floats(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)(seed >> 40) * 0x1p-23f - 1.0f;
    }
    return x;
}

static kvs_ctx *new_ctx(uint32_t threads, uint32_t tiers_off)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = threads;
    o.tiers_off = tiers_off;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    return ctx;
}

static kvs_layer_spec latent_spec(kvs_codec k)
{
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    s.kind = KVS_LAYER_LATENT;
    s.n_kv_heads = 1;
    s.k_dim = K_DIM;
    s.v_dim = V_DIM;
    s.k = k;
    return s;
}

static kvs_cache *new_cache(kvs_ctx *ctx, const kvs_layer_spec *s)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = s;
    kvs_cache *c = NULL;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, NULL), KVS_OK);
    return c;
}

static void append(kvs_cache *c, const float *k, const float *v, uint32_t n, size_t v_stride)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = k;
    kv.v = v;
    kv.v_token_stride = v_stride;
    assert_int_equal(kvs_cache_append(c, 0, &kv, NULL), KVS_OK);
}

static void attend(kvs_cache *c, const float *q, uint32_t n, float *out)
{
    kvs_attend a = KVS_ATTEND_INIT;
    a.n_queries = n;
    a.n_q_heads = N_HEADS;
    a.q = q;
    a.out = out;
    a.scale = 0.07f;
    assert_int_equal(kvs_cache_attend(c, 0, &a, NULL), KVS_OK);
}

/* What the layer reads for each row, in the original domain, as keys and values of a dense layer. */
static float *decoded(kvs_ctx *ctx, const kvs_codec *k, const float *rows)
{
    size_t words = (size_t)N_TOKENS * K_DIM;
    uint32_t *codes = malloc(words * sizeof *codes);
    uint32_t *scales = malloc(words * sizeof *scales);
    uint32_t *biases = malloc(words * sizeof *biases);
    float *out = malloc(words * sizeof *out);
    assert_true(codes && scales && biases && out);
    assert_int_equal(kvs_codec_encode(ctx, k, K_DIM, N_TOKENS, rows, KVS_F32, codes,
                                      k->bits ? scales : NULL, k->bits ? biases : NULL, NULL),
                     KVS_OK);
    assert_int_equal(kvs_codec_decode_f32(ctx, k, K_DIM, N_TOKENS, codes, k->bits ? scales : NULL,
                                          k->bits ? biases : NULL, out, NULL),
                     KVS_OK);
    free(codes);
    free(scales);
    free(biases);
    return out;
}

static void check_codec(kvs_codec k, uint32_t threads, uint32_t tiers_off)
{
    kvs_ctx *ctx = new_ctx(threads, tiers_off);
    float *rows = random_floats((size_t)N_TOKENS * K_DIM, 5);
    float *q = random_floats((size_t)5 * N_HEADS * K_DIM, 9);
    float *seen = decoded(ctx, &k, rows);
    kvs_layer_spec latent = latent_spec(k);
    kvs_layer_spec apart = latent_spec((kvs_codec)KVS_CODEC_DENSE(KVS_F32));
    apart.kind = KVS_LAYER_ATTENTION;
    apart.v = (kvs_codec)KVS_CODEC_DENSE(KVS_F32);
    kvs_cache *a = new_cache(ctx, &latent);
    kvs_cache *b = new_cache(ctx, &apart);
    append(a, rows, NULL, 7, 0);
    append(a, rows + (size_t)7 * K_DIM, NULL, N_TOKENS - 7, 0);
    append(b, seen, seen, N_TOKENS, K_DIM);
    size_t n = (size_t)5 * N_HEADS * V_DIM;
    float *got = malloc(n * sizeof *got);
    float *want = malloc(n * sizeof *want);
    assert_true(got && want);
    attend(a, q, 5, got);
    attend(b, q, 5, want);
    assert_memory_equal(got, want, n * sizeof *got);
    attend(a, q, 1, got); /* one query goes other ways through the kernels */
    attend(b, q, 1, want);
    assert_memory_equal(got, want, n / 5 * sizeof *got);
    free(got);
    free(want);
    kvs_cache_free(a);
    kvs_cache_free(b);
    free(rows);
    free(q);
    free(seen);
    kvs_ctx_free(ctx);
}

static void test_reads(void **state)
{
    (void)state;
    for (uint32_t off = 0; off < 2; off++) {
        uint32_t tiers_off = off ? UINT32_MAX : 0;
        check_codec((kvs_codec)KVS_CODEC_DENSE(KVS_F32), 1, tiers_off);
        check_codec((kvs_codec)KVS_CODEC_DENSE(KVS_F16), 3, tiers_off);
        check_codec((kvs_codec)KVS_CODEC_DENSE(KVS_BF16), 1, tiers_off);
        const uint8_t bits[] = {2, 3, 4, 5, 6, 8};
        for (size_t i = 0; i < sizeof bits; i++) {
            check_codec((kvs_codec){bits[i], 0, i % 2 ? 32 : 64, KVS_F16}, 1 + (uint32_t)i % 2,
                        tiers_off);
        }
    }
}

/* The value is not counted: the same bytes as a dense layer whose values had no elements. */
static void test_bytes(void **state)
{
    (void)state;
    kvs_layer_spec s = latent_spec((kvs_codec){8, 0, 64, KVS_F16});
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &s;
    o.reserve_tokens = 4096;
    size_t bytes = 0;
    size_t total = 0;
    assert_int_equal(kvs_cache_plan(&o, 4096, &total, &bytes, NULL), KVS_OK);
    size_t row = K_DIM + K_DIM / 64 * 4;
    assert_in_range(bytes, row * 4096, row * 4096 + 1024);
    kvs_ctx *ctx = new_ctx(1, 0);
    kvs_cache *c = NULL;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, NULL), KVS_OK);
    float *rows = random_floats((size_t)4096 * K_DIM, 1);
    append(c, rows, NULL, 4096, 0);
    assert_int_equal(kvs_cache_bytes(c, 0), bytes);
    char text[96];
    (void)kvs_cache_signature(c, 0, text, sizeof text);
    assert_string_equal(text, "grow latent=affine8:64 dims=576/512");
    free(rows);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* Bytes out and in again, without any plane of V. */
static void test_planes(void **state)
{
    (void)state;
    kvs_ctx *ctx = new_ctx(1, 0);
    kvs_layer_spec s = latent_spec((kvs_codec){4, 0, 64, KVS_BF16});
    kvs_cache *a = new_cache(ctx, &s);
    kvs_cache *b = new_cache(ctx, &s);
    float *rows = random_floats((size_t)100 * K_DIM, 3);
    float *q = random_floats((size_t)N_HEADS * K_DIM, 4);
    append(a, rows, NULL, 100, 0);
    kvs_planes p = KVS_PLANES_INIT;
    for (size_t i = 0; i < 3; i++) {
        p.k[i] = malloc((size_t)100 * K_DIM);
        assert_non_null(p.k[i]);
    }
    assert_int_equal(kvs_cache_export(a, 0, 0, 100, &p, NULL), KVS_OK);
    assert_int_equal(kvs_cache_import(b, 0, 0, 100, &p, NULL), KVS_OK);
    float got[N_HEADS * V_DIM];
    float want[N_HEADS * V_DIM];
    attend(a, q, 1, want);
    attend(b, q, 1, got);
    assert_memory_equal(got, want, sizeof got);
    kvs_span span;
    uint32_t n = 0;
    assert_int_equal(kvs_cache_spans(a, 0, 0, 100, &span, 1, &n, NULL), KVS_OK);
    assert_int_equal(n, 1);
    assert_non_null(span.k[2].base);
    assert_null(span.v[0].base);
    kvs_codec dense = KVS_CODEC_DENSE(KVS_F32);
    assert_int_equal(kvs_cache_convert(b, 0, &dense, NULL, NULL), KVS_OK);
    attend(b, q, 1, got);
    assert_memory_equal(got, want, sizeof got);
    for (size_t i = 0; i < 3; i++) {
        free(p.k[i]);
    }
    free(rows);
    free(q);
    kvs_cache_free(a);
    kvs_cache_free(b);
    kvs_ctx_free(ctx);
}

static void test_refusals(void **state)
{
    (void)state;
    const struct {
        uint32_t heads, k_dim, v_dim;
        kvs_codec k;
        kvs_status status;
        const char *says;
    } cases[] = {
        {2, 576, 512, KVS_CODEC_DENSE(KVS_F16), KVS_E_INVAL, "one head, not 2"},
        {1, 576, 584, KVS_CODEC_DENSE(KVS_F16), KVS_E_INVAL, "v_dim 584"},
        {1, 576, 500, KVS_CODEC_DENSE(KVS_F16), KVS_E_INVAL, "v_dim 500"},
        {1, 576, 8, KVS_CODEC_DENSE(KVS_F16), KVS_E_INVAL, "v_dim 8"},
        {1, 576, 512, {4, 0, 128, KVS_F16}, KVS_E_INVAL, "128"},
        {1, 576, 480, {4, 1, 64, KVS_F16}, KVS_E_UNSUPPORTED, "480 elements"},
        {1, 576, 512, {4, 1, 64, KVS_F16}, KVS_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvs_layer_spec s = latent_spec(cases[i].k);
        s.n_kv_heads = cases[i].heads;
        s.k_dim = cases[i].k_dim;
        s.v_dim = cases[i].v_dim;
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        o.n_layers = 1;
        o.layers = &s;
        size_t bytes = 0;
        kvs_err e = {KVS_OK, 0, "", ""};
        assert_int_equal(kvs_cache_plan(&o, 1, &bytes, NULL, &e), cases[i].status);
        assert_non_null(strstr(e.msg, cases[i].says));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_planes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
