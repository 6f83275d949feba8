/* SPDX-License-Identifier: MIT */
/* test_codec.c: codecs as values (check, size, name, parse) and encode and decode on a few rows
 * whose codes are worked out by hand, with every refusal. That the kernels agree with each other is
 * kcheck's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "kvstate/codec.h"

static const uint8_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const uint16_t all_groups[] = {32, 64, 128};

static kvs_ctx *make_ctx(uint32_t tiers_off)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.tiers_off = tiers_off & kvs_cpu_tiers();
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    if (kvs_ctx_new(&opts, &ctx, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return ctx;
}

/* Every valid codec in turn: 3 dense ones, then bits x groups x dtypes x rotate. */
static bool nth_codec(size_t i, kvs_codec *out)
{
    if (i < 3) {
        kvs_codec c = KVS_CODEC_DENSE((kvs_dtype)i);
        *out = c;
        return true;
    }
    i -= 3;
    static const uint8_t rotate[] = {0, KVS_ROTATED, KVS_ROTATED | KVS_CENTERED};
    kvs_codec c = {all_bits[i % 6], rotate[i / 54 % 3], all_groups[i / 6 % 3],
                   (kvs_dtype)(i / 18 % 3)};
    *out = c;
    return i < 162;
}

static bool same_codec(const kvs_codec *a, const kvs_codec *b)
{
    return a->bits == b->bits && a->rotate == b->rotate && a->group == b->group &&
           a->dtype == b->dtype;
}

static void test_names_round_trip(void **state)
{
    (void)state;
    char seen[165][24];
    kvs_codec c;
    size_t n = 0;
    for (; nth_codec(n, &c); n++) {
        kvs_codec back = {0};
        kvs_err err = {0};
        size_t len = kvs_codec_name(&c, seen[n], sizeof seen[n]);
        assert_int_equal(len, strlen(seen[n]));
        assert_int_equal(kvs_codec_parse(seen[n], &back, &err), KVS_OK);
        assert_true(same_codec(&c, &back));
        for (size_t j = 0; j < n; j++) {
            assert_string_not_equal(seen[j], seen[n]);
        }
    }
    assert_int_equal(n, 165);
}

static void test_names_as_documented(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *canonical;
        kvs_codec codec;
    } rows[] = {
        {"f32", "f32", {0, 0, 0, KVS_F32}},
        {"bf16", "bf16", {0, 0, 0, KVS_BF16}},
        {"affine4:64", "affine4:64", {4, 0, 64, KVS_F16}},
        {"affine4", "affine4:64", {4, 0, 64, KVS_F16}},
        {"affine4/f16", "affine4:64", {4, 0, 64, KVS_F16}},
        {"affine3:128/bf16", "affine3:128/bf16", {3, 0, 128, KVS_BF16}},
        {"affine8:32/f32", "affine8:32/f32", {8, 0, 32, KVS_F32}},
        {"q4", "q4", {4, 1, 64, KVS_F16}},
        {"q4:64", "q4", {4, 1, 64, KVS_F16}},
        {"q4:32", "q4:32", {4, 1, 32, KVS_F16}},
        {"q4/bf16", "q4:64/bf16", {4, 1, 64, KVS_BF16}},
        {"c4", "c4", {4, 3, 64, KVS_F16}},
        {"c3:32/f32", "c3:32/f32", {3, 3, 32, KVS_F32}},
    };
    for (size_t i = 0; i < KVS_COUNT(rows); i++) {
        kvs_codec c = {0};
        char name[32];
        assert_int_equal(kvs_codec_parse(rows[i].name, &c, NULL), KVS_OK);
        assert_true(same_codec(&c, &rows[i].codec));
        (void)kvs_codec_name(&c, name, sizeof name);
        assert_string_equal(name, rows[i].canonical);
    }
}

static void test_names_cut_short(void **state)
{
    (void)state;
    kvs_codec c = KVS_CODEC_AFFINE(4, 64, KVS_BF16);
    char name[8] = "xxxxxxx";
    assert_int_equal(kvs_codec_name(&c, NULL, 0), strlen("affine4:64/bf16"));
    assert_int_equal(kvs_codec_name(&c, name, 4), strlen("affine4:64/bf16"));
    assert_string_equal(name, "aff");
    assert_int_equal(name[4], 'x');
    c.bits = 7;
    assert_int_equal(kvs_codec_name(&c, name, sizeof name), strlen("invalid"));
    assert_string_equal(name, "invalid");
}

static void test_parse_refuses(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "f64",
                                      "F32",
                                      "f16 ",
                                      " f16",
                                      "f16/f16",
                                      "affine",
                                      "affine4:",
                                      "affine4:0",
                                      "affine4:064",
                                      "affine04",
                                      "affine4:64/",
                                      "affine4/x",
                                      "affine-4",
                                      "affine4:64x",
                                      "affine7",
                                      "affine1",
                                      "affine300",
                                      "affine4:48",
                                      "affine4:9999",
                                      "q",
                                      "q16",
                                      "q4:16",
                                      "qq4",
                                      "q4:64/bf16/f16",
                                      "affine4:65600",
                                      "affine4::64"};
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        kvs_codec c = KVS_CODEC_AFFINE(8, 128, KVS_BF16);
        kvs_codec before = c;
        kvs_err err = {0};
        kvs_status st = kvs_codec_parse(bad[i], &c, &err);
        if (st != KVS_E_INVAL && st != KVS_E_UNSUPPORTED) {
            fail_msg("\"%s\": %s", bad[i], kvs_status_name(st));
        }
        assert_int_equal(err.status, st);
        assert_true(strlen(err.msg) > 0);
        assert_true(same_codec(&c, &before));
    }
    kvs_codec c;
    assert_int_equal(kvs_codec_parse(NULL, &c, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_codec_parse("f32", NULL, NULL), KVS_E_INVAL);
}

static void test_check(void **state)
{
    (void)state;
    static const struct {
        kvs_codec codec;
        uint32_t dim;
        kvs_status want;
        const char *says; /* the message names it */
    } rows[] = {
        {{0, 0, 0, KVS_F16}, 16, KVS_OK, ""},
        {{0, 0, 0, KVS_F32}, 1024, KVS_OK, ""},
        {{0, 0, 0, KVS_F16}, 8, KVS_E_INVAL, "8"},
        {{0, 0, 0, KVS_F16}, 0, KVS_E_INVAL, "0"},
        {{0, 0, 0, KVS_F16}, 1032, KVS_E_INVAL, "1032"},
        {{0, 0, 0, KVS_F16}, 100, KVS_E_INVAL, "100"},
        {{0, 0, 32, KVS_F16}, 64, KVS_E_INVAL, "32"},
        {{0, 1, 0, KVS_F16}, 64, KVS_E_INVAL, "rotate"},
        {{0, 0, 0, (kvs_dtype)3}, 64, KVS_E_INVAL, "3"},
        {{4, 0, 64, KVS_F16}, 64, KVS_OK, ""},
        {{4, 1, 64, KVS_F16}, 192, KVS_OK, ""},
        {{4, 0, 64, KVS_F16}, 96, KVS_E_INVAL, "96"},
        {{8, 0, 128, KVS_F16}, 576, KVS_E_INVAL, "576"},
        {{7, 0, 64, KVS_F16}, 64, KVS_E_UNSUPPORTED, "7"},
        {{1, 0, 64, KVS_F16}, 64, KVS_E_UNSUPPORTED, "1"},
        {{4, 0, 16, KVS_F16}, 64, KVS_E_UNSUPPORTED, "16"},
        {{4, 0, 0, KVS_F16}, 64, KVS_E_UNSUPPORTED, "0"},
        {{4, 2, 64, KVS_F16}, 64, KVS_E_INVAL, "2"},
        {{4, 4, 64, KVS_F16}, 64, KVS_E_INVAL, "4"},
        {{4, 3, 64, KVS_F16}, 64, KVS_OK, ""},
        {{0, 3, 0, KVS_F16}, 64, KVS_E_INVAL, "rotate"},
    };
    for (size_t i = 0; i < KVS_COUNT(rows); i++) {
        kvs_err err = {0};
        assert_int_equal(kvs_codec_check(&rows[i].codec, rows[i].dim, &err), rows[i].want);
        assert_int_equal(err.status, rows[i].want);
        assert_non_null(strstr(err.msg, rows[i].says));
        size_t bytes = kvs_codec_row_bytes(&rows[i].codec, rows[i].dim);
        assert_int_equal(bytes == 0, rows[i].want != KVS_OK);
    }
    assert_int_equal(kvs_codec_check(NULL, 64, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_codec_row_bytes(NULL, 64), 0);
}

static void test_row_bytes(void **state)
{
    (void)state;
    kvs_codec dense = KVS_CODEC_DENSE(KVS_BF16);
    kvs_codec a4 = KVS_CODEC_AFFINE(4, 64, KVS_F16);
    kvs_codec a3 = KVS_CODEC_AFFINE(3, 32, KVS_F32);
    assert_int_equal(kvs_codec_row_bytes(&dense, 128), 256);
    assert_int_equal(kvs_codec_row_bytes(&a4, 128), 64 + 2 * 2 * 2);
    assert_int_equal(kvs_codec_row_bytes(&a3, 96), 36 + 3 * 2 * 4);
}

/* One group of 0, -1 ... -15, 0, -1 ...: low side, scale 1, bias -15, code 15 - i. */
static void test_encode_by_hand(void **state)
{
    (void)state;
    kvs_codec c = KVS_CODEC_AFFINE(4, 32, KVS_F16);
    float x[32];
    for (int i = 0; i < 32; i++) {
        x[i] = -(float)(i % 16);
    }
    for (uint32_t off = 0; off < 4; off++) {
        kvs_ctx *ctx = make_ctx(off);
        uint32_t words[4] = {0};
        uint16_t scale = 0;
        uint16_t bias = 0;
        uint16_t back[32];
        float f32[32];
        assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, KVS_F32, words, &scale, &bias, NULL),
                         KVS_OK);
        static const uint32_t want[] = {0x89abcdef, 0x01234567, 0x89abcdef, 0x01234567};
        assert_memory_equal(words, want, sizeof want);
        assert_int_equal(scale, 0x3c00);
        assert_int_equal(bias, 0xcb80);
        assert_int_equal(kvs_codec_decode(ctx, &c, 32, 1, words, &scale, &bias, back, NULL),
                         KVS_OK);
        assert_int_equal(kvs_codec_decode_f32(ctx, &c, 32, 1, words, &scale, &bias, f32, NULL),
                         KVS_OK);
        for (int i = 0; i < 32; i++) {
            assert_int_equal(back[i], kvs__f16_from_f32(x[i] + 0.0f));
            assert_true(f32[i] == x[i]);
        }
        kvs_ctx_free(ctx);
    }
}

/* MLX's stored NaN: one infinity makes the scale NaN, the bias that infinity. */
static void test_stored_nan(void **state)
{
    (void)state;
    static const struct {
        kvs_dtype dtype;
        float all; /* every other element */
        uint32_t scale;
        uint32_t bias;
    } rows[] = {
        {KVS_BF16, 1.0f, 0x7fc0, 0x7f80},
        {KVS_F16, 1.0f, 0xfd00, 0x7c00},
        {KVS_F32, 1.0f, 0xffc00000u, 0x7f800000u},
        {KVS_F16, HUGE_VALF, 0x7d00, 0x7c00},
        {KVS_F32, HUGE_VALF, 0x7fc00000u, 0x7f800000u},
    };
    kvs_ctx *ctx = make_ctx(0);
    for (size_t i = 0; i < KVS_COUNT(rows); i++) {
        kvs_codec c = KVS_CODEC_AFFINE(3, 32, rows[i].dtype);
        float x[32];
        for (int j = 0; j < 32; j++) {
            x[j] = j == 7 ? HUGE_VALF : rows[i].all;
        }
        uint32_t words[3] = {1, 1, 1};
        uint32_t scale = 0; /* the low half is a 16-bit value's place */
        uint32_t bias = 0;
        assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, KVS_F32, words, &scale, &bias, NULL),
                         KVS_OK);
        assert_int_equal(scale, rows[i].scale);
        assert_int_equal(bias, rows[i].bias);
        assert_int_equal(words[0] | words[1] | words[2], 0);
    }
    kvs_ctx_free(ctx);
}

/* Rows are encoded on their own, whatever the count: many rows at once equal one at a time, for
 * lengths around the run that is worked on at once; from f16 equals from the same values in f32. */
static void test_rows_are_independent(void **state)
{
    (void)state;
    enum { DIM = 384, ROWS = 23 };
    static uint16_t x[ROWS * DIM];
    static float wide[ROWS * DIM];
    static uint32_t words[2][ROWS * DIM / 4];
    static uint16_t scales[2][ROWS * DIM / 32];
    static uint16_t biases[2][ROWS * DIM / 32];
    static float out[2][ROWS * DIM];
    kvs_ctx *ctx = make_ctx(0);
    uint32_t s = 1;
    for (size_t i = 0; i < ROWS * DIM; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (uint16_t)((s >> 16 & 0x83ffu) | 0x3800u);
        wide[i] = kvs__f16_to_f32(x[i]);
    }
    for (size_t k = 0; k < 18; k++) {
        kvs_codec c = KVS_CODEC_AFFINE(all_bits[k % 6], all_groups[k / 6], KVS_F16);
        size_t n_words = (size_t)DIM * c.bits / 32;
        size_t n_groups = DIM / c.group;
        assert_int_equal(kvs_codec_encode(ctx, &c, DIM, ROWS, wide, KVS_F32, words[0], scales[0],
                                          biases[0], NULL),
                         KVS_OK);
        assert_int_equal(
            kvs_codec_decode_f32(ctx, &c, DIM, ROWS, words[0], scales[0], biases[0], out[0], NULL),
            KVS_OK);
        for (size_t r = 0; r < ROWS; r++) {
            assert_int_equal(kvs_codec_encode(ctx, &c, DIM, 1, x + r * DIM, KVS_F16,
                                              words[1] + r * n_words, scales[1] + r * n_groups,
                                              biases[1] + r * n_groups, NULL),
                             KVS_OK);
            assert_int_equal(kvs_codec_decode_f32(ctx, &c, DIM, 1, words[1] + r * n_words,
                                                  scales[1] + r * n_groups,
                                                  biases[1] + r * n_groups, out[1] + r * DIM, NULL),
                             KVS_OK);
        }
        assert_memory_equal(words[0], words[1], ROWS * n_words * 4);
        assert_memory_equal(scales[0], scales[1], ROWS * n_groups * 2);
        assert_memory_equal(biases[0], biases[1], ROWS * n_groups * 2);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
    kvs_ctx_free(ctx);
}

static void test_dense(void **state)
{
    (void)state;
    enum { N = 16 };
    kvs_ctx *ctx = make_ctx(0);
    float x[N];
    for (int i = 0; i < N; i++) {
        x[i] = 1.0f + (float)i * 0x1.8p-9f;
    }
    for (int from = KVS_F32; from <= KVS_BF16; from++) {
        for (int to = KVS_F32; to <= KVS_BF16; to++) {
            uint32_t src[N];
            uint32_t stored[N] = {0};
            uint32_t copy[N] = {0};
            float back[N];
            kvs_codec cf = KVS_CODEC_DENSE((kvs_dtype)from);
            kvs_codec ct = KVS_CODEC_DENSE((kvs_dtype)to);
            assert_int_equal(kvs_codec_encode(ctx, &cf, N, 1, x, KVS_F32, src, NULL, NULL, NULL),
                             KVS_OK);
            assert_int_equal(
                kvs_codec_encode(ctx, &ct, N, 1, src, (kvs_dtype)from, stored, NULL, NULL, NULL),
                KVS_OK);
            assert_int_equal(kvs_codec_decode(ctx, &ct, N, 1, stored, NULL, NULL, copy, NULL),
                             KVS_OK);
            assert_memory_equal(stored, copy, kvs_codec_row_bytes(&ct, N));
            assert_int_equal(kvs_codec_decode_f32(ctx, &ct, N, 1, stored, NULL, NULL, back, NULL),
                             KVS_OK);
            for (int i = 0; i < N; i++) {
                float want = x[i];
                want = from == KVS_F16 ? kvs__f16_to_f32(kvs__f16_from_f32(want)) : want;
                want = from == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(want)) : want;
                want = to == KVS_F16 ? kvs__f16_to_f32(kvs__f16_from_f32(want)) : want;
                want = to == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(want)) : want;
                assert_true(back[i] == want);
            }
        }
    }
    kvs_ctx_free(ctx);
}

static void test_rows_refused(void **state)
{
    (void)state;
    kvs_ctx *ctx = make_ctx(0);
    kvs_codec c = KVS_CODEC_AFFINE(4, 32, KVS_F16);
    float x[32] = {0};
    uint32_t words[5] = {7, 7, 7, 7, 7};
    uint16_t s[2] = {7, 7};
    uint16_t b[2] = {7, 7};
    kvs_err err = {0};
    static const uint32_t sevens[5] = {7, 7, 7, 7, 7};
    const char *odd = (const char *)words + 1;
    assert_int_equal(kvs_codec_encode(NULL, &c, 32, 1, x, KVS_F32, words, s, b, &err), KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, NULL, 32, 1, x, KVS_F32, words, s, b, &err),
                     KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 48, 1, x, KVS_F32, words, s, b, &err), KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, (kvs_dtype)9, words, s, b, &err),
                     KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, NULL, KVS_F32, words, s, b, &err),
                     KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, KVS_F32, NULL, s, b, &err), KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, KVS_F32, words, NULL, b, &err),
                     KVS_E_INVAL);
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 1, x, KVS_F32, words, s, NULL, &err),
                     KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "biases"));
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, SIZE_MAX / 64, x, KVS_F32, words, s, b, &err),
                     KVS_E_RANGE);
    assert_int_equal(kvs_codec_decode_f32(ctx, &c, 32, 1, odd, s, b, x, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "aligned"));
    assert_int_equal(kvs_codec_decode(ctx, NULL, 32, 1, words, s, b, x, &err), KVS_E_INVAL);
    assert_int_equal(kvs_codec_decode(ctx, &c, 32, 1, words, s, b, NULL, &err), KVS_E_INVAL);
    /* no rows: nothing is read or written */
    assert_int_equal(kvs_codec_encode(ctx, &c, 32, 0, NULL, KVS_F32, NULL, NULL, NULL, &err),
                     KVS_OK);
    assert_int_equal(kvs_codec_decode(ctx, &c, 32, 0, NULL, NULL, NULL, NULL, &err), KVS_OK);
    assert_memory_equal(words, sevens, sizeof words);
    assert_int_equal(s[0] | b[0], 7);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_round_trip),
        cmocka_unit_test(test_names_as_documented),
        cmocka_unit_test(test_names_cut_short),
        cmocka_unit_test(test_parse_refuses),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_encode_by_hand),
        cmocka_unit_test(test_stored_nan),
        cmocka_unit_test(test_rows_are_independent),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_rows_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
