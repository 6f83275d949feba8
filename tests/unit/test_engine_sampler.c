/* SPDX-License-Identifier: MIT */
/* test_engine_sampler.c: filters keep what they should, draws follow the distribution (fixed seeds,
 * chi-square), and noise belongs to (seed, row, position, token) alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/sampler.h"

#define VOCAB 50

static kvs_ctx *ctx;

static kvs_sampler *make(const kvs_sampler_opts *o, size_t n_vocab)
{
    kvs_sampler *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_sampler_new(ctx, o, n_vocab, &s, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return s;
}

static int32_t pick(kvs_sampler *s, const float *logits, const int32_t *history, size_t n)
{
    int32_t t = -1;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_sampler_pick(s, logits, history, n, &t, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return t;
}

/* Everything off: draws from the softmax of all logits. */
static kvs_sampler_opts plain(void)
{
    kvs_sampler_opts o = KVS_SAMPLER_OPTS_INIT;
    o.temperature = 1.0f;
    o.top_k = 0;
    o.top_p = 1.0f;
    o.min_p = 0.0f;
    return o;
}

static void test_greedy(void **state)
{
    (void)state;
    kvs_sampler_opts o = plain();
    float logits[VOCAB] = {0};
    const kvs_candidate *c = NULL;
    o.temperature = 0.0f;
    kvs_sampler *s = make(&o, VOCAB);
    logits[7] = 2.0f;
    logits[30] = 2.0f;
    logits[3] = NAN;
    logits[4] = -INFINITY;
    assert_int_equal(pick(s, logits, NULL, 0), 7); /* the lowest of equals */
    assert_int_equal(kvs_sampler_candidates(s, &c), 1);
    assert_int_equal(c[0].token, 7);
    for (size_t i = 0; i < VOCAB; i++) {
        logits[i] = i % 2 ? NAN : -INFINITY;
    }
    int32_t t = 0;
    assert_int_equal(kvs_sampler_pick(s, logits, NULL, 0, &t, NULL), KVS_E_RANGE);
    kvs_sampler_free(s);
}

/* Tokens that the filters leave, as a sorted list against a plain sort. */
static void test_filters(void **state)
{
    (void)state;
    const struct {
        uint32_t top_k;
        float top_p, min_p;
        size_t kept;
    } rows[] = {
        /* logits fall by 0.1: p_i = p_0 exp(-i / 10); the last of 50 weighs 0.0007 */
        {10, 1.0f, 0.0f, 10}, {0, 1.0f, 0.5f, 7},   {0, 0.5f, 0.0f, 7},    {20, 0.5f, 0.0f, 6},
        {0, 0.0f, 0.0f, 1},   {5, 0.9f, 0.9f, 2},   {1, 1.0f, 0.0f, 1},    {0, 0.5f, 0.9f, 2},
        {49, 1.0f, 0.0f, 49}, {80, 1.0f, 0.0f, 50}, {0, 0.999f, 0.0f, 49}, {0, 1.0f, 1.0f, 1},
    };
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        logits[(i * 17 + 5) % VOCAB] = 3.0f - 0.1f * (float)i;
    }
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        kvs_sampler_opts o = plain();
        const kvs_candidate *c = NULL;
        o.top_k = rows[r].top_k;
        o.top_p = rows[r].top_p;
        o.min_p = rows[r].min_p;
        kvs_sampler *s = make(&o, VOCAB);
        (void)pick(s, logits, NULL, 0);
        size_t n = kvs_sampler_candidates(s, &c);
        if (n != rows[r].kept) {
            fail_msg("row %zu keeps %zu, not %zu", r, n, rows[r].kept);
        }
        for (size_t i = 0; i < n && n < VOCAB; i++) {
            assert_int_equal(c[i].token, ((int)i * 17 + 5) % VOCAB);
        }
        kvs_sampler_free(s);
    }
}

/* Chi-square of n draws against probabilities; logits as given, all tokens kept. */
static double chi_square(const kvs_sampler_opts *o, const float *logits, size_t n_vocab, size_t n)
{
    kvs_sampler *s = make(o, n_vocab);
    double p[VOCAB];
    double seen[VOCAB] = {0};
    double sum = 0.0;
    double chi = 0.0;
    int32_t *history = calloc(n, sizeof *history);
    for (size_t i = 0; i < n_vocab; i++) {
        p[i] = exp((double)(logits[i] / o->temperature));
        sum += p[i];
    }
    for (size_t i = 0; i < n; i++) {
        seen[pick(s, logits, history, i)] += 1.0;
    }
    for (size_t i = 0; i < n_vocab; i++) {
        double want = (double)n * p[i] / sum;
        chi += (seen[i] - want) * (seen[i] - want) / want;
    }
    free(history);
    kvs_sampler_free(s);
    return chi;
}

static void test_distribution(void **state)
{
    (void)state;
    float logits[20];
    for (int i = 0; i < 20; i++) {
        logits[i] = sinf((float)i * 1.7f) * 1.5f;
    }
    /* 19 degrees of freedom: above 43.8 once in 1000 */
    for (uint64_t seed = 1; seed <= 6; seed++) {
        kvs_sampler_opts o = plain();
        o.seed = seed * 1000;
        o.row = seed % 3;
        o.temperature = seed % 2 ? 1.0f : 0.7f;
        double chi = chi_square(&o, logits, 20, 40000);
        if (chi > 43.8 || chi < 4.9) {
            fail_msg("seed %d: chi-square %g", (int)o.seed, chi);
        }
    }
    /* a wrong distribution must be seen: the draws of one temperature against another */
    kvs_sampler_opts o = plain();
    kvs_sampler *s = make(&o, 20);
    double hot = 0.0;
    for (size_t i = 0; i < 40000; i++) {
        static int32_t history[40000];
        hot += pick(s, logits, history, i) == 1 ? 1.0 : 0.0;
    }
    double sum = 0.0;
    for (int i = 0; i < 20; i++) {
        sum += exp((double)logits[i]);
    }
    double p = exp((double)logits[1]) / sum;
    assert_true(fabs(hot / 40000.0 - p) < 4.0 * sqrt(p * (1.0 - p) / 40000.0));
    kvs_sampler_free(s);
}

/* The fast path over an unfiltered vocabulary draws what the slow one would. */
static void test_filter_does_not_move_the_draw(void **state)
{
    (void)state;
    static float logits[2000];
    static int32_t history[500];
    kvs_sampler_opts all = plain();
    kvs_sampler_opts some = plain();
    some.top_p = 0.9999999f;
    for (int i = 0; i < 2000; i++) {
        logits[i] = 8.0f * sinf((float)(i * i) * 0.37f);
    }
    kvs_sampler *a = make(&all, 2000);
    kvs_sampler *b = make(&some, 2000);
    for (size_t i = 0; i < 500; i++) {
        assert_int_equal(pick(a, logits, history, i), pick(b, logits, history, i));
    }
    kvs_sampler_free(a);
    kvs_sampler_free(b);
}

/* Noise belongs to the token: removing others or moving a logit by an ulp changes the draw of few
 * positions; another row, seed or position gives another draw. */
static void test_noise_is_by_token(void **state)
{
    (void)state;
    static int32_t history[2000];
    float logits[VOCAB];
    float moved[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = cosf((float)i * 2.3f);
        moved[i] = nextafterf(logits[i], i % 2 ? 9.0f : -9.0f);
    }
    kvs_sampler_opts o = plain();
    kvs_sampler *s = make(&o, VOCAB);
    o.row = 1;
    kvs_sampler *row = make(&o, VOCAB);
    o.row = 0;
    o.seed = 1;
    kvs_sampler *seed = make(&o, VOCAB);
    int differs[4] = {0};
    for (size_t i = 0; i < 2000; i++) {
        int32_t t = pick(s, logits, history, i);
        differs[0] += t != pick(s, moved, history, i);
        differs[1] += t != pick(row, logits, history, i);
        differs[2] += t != pick(seed, logits, history, i);
        differs[3] += i > 0 && t != pick(s, logits, history, i - 1);
        assert_int_equal(t, pick(s, logits, history, i)); /* no hidden state */
        /* without a token that was not drawn the draw stays */
        float less[VOCAB];
        memcpy(less, logits, sizeof less);
        less[(t + 1 + (int)i % (VOCAB - 1)) % VOCAB] = -INFINITY;
        assert_int_equal(pick(s, less, history, i), t);
    }
    assert_in_range(differs[0], 0, 1);
    for (int i = 1; i < 4; i++) { /* independent draws from ~45 likely tokens rarely agree */
        assert_in_range(differs[i], 1850, 2000);
    }
    kvs_sampler_free(s);
    kvs_sampler_free(row);
    kvs_sampler_free(seed);
}

static void test_penalties_and_bias(void **state)
{
    (void)state;
    const int32_t history[] = {1, 2, 2, 2, 9, 1};
    const kvs_logit_bias bias[] = {{5, 4.0f}, {0, -INFINITY}};
    float logits[10] = {9.0f, 2.0f, 2.0f, -1.0f, 0.5f, 0.0f, 0.0f, 0.0f, 0.0f, -2.0f};
    float want[10] = {-INFINITY,
                      2.0f / 2.0f - 0.25f - 0.5f * 2.0f,
                      2.0f / 2.0f - 0.25f - 0.5f * 2.0f,
                      -1.0f,
                      0.5f,
                      4.0f,
                      0.0f,
                      0.0f,
                      0.0f,
                      -2.0f * 2.0f - 0.25f - 0.5f};
    kvs_sampler_opts o = plain();
    o.repeat_penalty = 2.0f;
    o.presence_penalty = 0.25f;
    o.frequency_penalty = 0.5f;
    o.penalty_last_n = 4; /* 2 2 9 1 */
    o.bias = bias;
    o.n_bias = 2;
    o.top_p = 0.99999f;
    want[1] += 0.5f; /* seen once in the newest four */
    for (int round = 0; round < 2; round++) {
        kvs_sampler *s = make(&o, 10);
        const kvs_candidate *c = NULL;
        (void)pick(s, logits, history, 6);
        (void)pick(s, logits, history, 6); /* counts were put back */
        size_t n = kvs_sampler_candidates(s, &c);
        assert_int_equal(n, 9);
        for (size_t i = 0; i < n; i++) {
            assert_true(c[i].logit == want[c[i].token]);
            assert_true(i == 0 || c[i].logit <= c[i - 1].logit);
        }
        kvs_sampler_free(s);
        o.penalty_last_n = UINT32_MAX;
        want[1] -= 0.5f;
        want[2] -= 0.5f;
    }
    const int32_t foreign[] = {3, 10};
    int32_t t = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_sampler *s = make(&o, 10);
    assert_int_equal(kvs_sampler_pick(s, logits, foreign, 2, &t, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "token 10 at position 1"));
    kvs_sampler_free(s);
}

static void test_refused(void **state)
{
    (void)state;
    const kvs_logit_bias bias = {VOCAB, 1.0f};
    const float inf = INFINITY;
    for (int i = 0; i < 9; i++) {
        kvs_sampler_opts o = plain();
        kvs_sampler *s = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        o.temperature = i == 0 ? -1.0f : i == 1 ? inf : 1.0f;
        o.top_p = i == 2 ? 1.5f : i == 3 ? NAN : 1.0f;
        o.min_p = i == 4 ? -0.1f : 0.0f;
        o.repeat_penalty = i == 5 ? 0.0f : 1.0f;
        o.presence_penalty = i == 6 ? inf : 0.0f;
        o.frequency_penalty = i == 7 ? NAN : 0.0f;
        o.bias = i == 8 ? &bias : NULL;
        o.n_bias = i == 8 ? 1 : 0;
        assert_int_equal(kvs_sampler_new(ctx, &o, VOCAB, &s, &err), KVS_E_RANGE);
        assert_null(s);
        assert_true(err.msg[0] != '\0');
    }
}

static int set_up(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_filter_does_not_move_the_draw),
        cmocka_unit_test(test_noise_is_by_token),
        cmocka_unit_test(test_penalties_and_bias),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
