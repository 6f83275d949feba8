/* SPDX-License-Identifier: MIT */
/* test_engine_rows.c: a step over several rows gives each row the bits that it has alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/graph.h"
#include "kvstate/engine.h"
#include "kvstate/txn.h"
#include "support/model_build.h"

#define MAX_LEN 64
#define N_ROWS  4

typedef struct rig {
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs__graph *graph;
    char path[256];
} rig;

static void rig_open(rig *r, const tiny *t, const char *kv, uint32_t threads)
{
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = threads;
    assert_int_equal(kvs_ctx_new(&co, &r->ctx, NULL), KVS_OK);
    assert_true(tiny_write(t, r->path, sizeof r->path));
    kvs_err e = {KVS_OK, 0, "", ""};
    if (kvs_model_open(r->ctx, r->path, NULL, &r->model, &e) != KVS_OK) {
        fail_msg("%s", e.msg);
    }
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = kv;
    po.n_ctx = MAX_LEN;
    assert_int_equal(kvs_plan_new(r->ctx, r->model, &po, &r->plan, NULL), KVS_OK);
    assert_int_equal(
        kvs__graph_new(r->ctx, &r->model->net, N_ROWS * MAX_LEN, MAX_LEN, &r->graph, NULL), KVS_OK);
}

static void rig_close(rig *r)
{
    kvs__graph_free(r->graph);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    (void)unlink(r->path);
    kvs_ctx_free(r->ctx);
}

static kvs_cache *new_cache(const rig *r)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = kvs_plan_n_layers(r->plan);
    o.layers = kvs_plan_layer(r->plan, 0);
    kvs_cache *c = NULL;
    assert_int_equal(kvs_cache_new(r->ctx, &o, &c, NULL), KVS_OK);
    return c;
}

static int32_t token_of(uint32_t row, uint32_t pos, uint32_t n_vocab)
{
    return (int32_t)((row * 31 + pos * 7 + pos * pos) % n_vocab);
}

/* Runs rows [r0, r1) from position `from` of each to `to[r]`; logits of the newest `want[r]`. */
static float *run(const rig *r, kvs_cache *const *caches, uint32_t r0, uint32_t r1,
                  const uint32_t *from, const uint32_t *to, const uint32_t *want)
{
    kvs__graph_row rows[N_ROWS] = {{NULL, NULL, 0, 0, 0}};
    static int32_t tokens[N_ROWS][MAX_LEN];
    uint32_t n_vocab = r->model->net.n_vocab;
    uint32_t wanted = 0;
    for (uint32_t i = r0; i < r1; i++) {
        uint32_t n = to[i] - from[i];
        for (uint32_t p = 0; p < n; p++) {
            tokens[i][p] = token_of(i, from[i] + p, n_vocab);
        }
        rows[i - r0] = (kvs__graph_row){caches[i], tokens[i], n, n - want[i], (int64_t)from[i]};
        wanted += want[i];
    }
    kvs_err e = {KVS_OK, 0, "", ""};
    if (kvs__graph_run(r->graph, rows, r1 - r0, &e) != KVS_OK) {
        fail_msg("%s", e.msg);
    }
    float *out = malloc((wanted ? wanted : 1) * n_vocab * sizeof *out);
    assert_non_null(out);
    if (wanted > 0) {
        kvs__graph_logits(r->graph, 0, wanted, out);
    }
    return out;
}

/* Steps of unequal lengths, some wanting no logits, then a token each. */
static void check(const tiny *t, const char *kv, uint32_t threads)
{
    static const uint32_t ends[][N_ROWS] = {
        {0, 0, 0, 0}, {17, 1, 40, 3}, {18, 20, 41, 4}, {19, 21, 42, 5}, {60, 23, 43, 6}};
    static const uint32_t want[][N_ROWS] = {
        {0}, {0, 1, 3, 2}, {1, 5, 0, 1}, {1, 1, 1, 1}, {0, 0, 0, 0}};
    rig r = {.ctx = NULL};
    rig_open(&r, t, kv, threads);
    size_t n_vocab = r.model->net.n_vocab;
    kvs_cache *alone[N_ROWS];
    kvs_cache *together[N_ROWS];
    for (uint32_t i = 0; i < N_ROWS; i++) {
        alone[i] = new_cache(&r);
        together[i] = new_cache(&r);
    }
    for (size_t s = 1; s < sizeof ends / sizeof ends[0]; s++) {
        float *all = run(&r, together, 0, N_ROWS, ends[s - 1], ends[s], want[s]);
        const float *at = all;
        for (uint32_t i = 0; i < N_ROWS; i++) {
            float *one = run(&r, alone, i, i + 1, ends[s - 1], ends[s], want[s]);
            assert_memory_equal(at, one, want[s][i] * n_vocab * sizeof *one);
            at += want[s][i] * n_vocab;
            free(one);
        }
        free(all);
    }
    for (uint32_t i = 0; i < N_ROWS; i++) {
        kvs_cache_free(alone[i]);
        kvs_cache_free(together[i]);
    }
    rig_close(&r);
}

static void test_llama(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    check(&t, "f16", 1);
    check(&t, "f32", 3);
    t.type = KVS__W_Q8_0;
    t.bias = 1;
    check(&t, "f32", 2);
}

static void test_gemma(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA;
    check(&t, "f32", 1);
    check(&t, "affine8:32", 2);
}

static void test_every_arch(void **state)
{
    (void)state;
    static const char *const plain[] = {"qwen2", "qwen3", "phi3", "gemma2"};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        tiny t = TINY_LLAMA;
        t.arch = plain[i];
        t.window = 24;
        t.bias = plain[i][4] == '2';
        t.longrope = plain[i][0] == 'p';
        check(&t, "f32", 2);
    }
}

static void test_experts(void **state)
{
    (void)state;
    static const char *const archs[] = {"qwen3moe", "olmoe", "llama"};
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        tiny t = TINY_MOE;
        t.arch = archs[i];
        check(&t, "f16", 1 + (uint32_t)i);
    }
    tiny quantised = TINY_MOE;
    quantised.type = KVS__W_Q8_0;
    check(&quantised, "f32", 2);
}

static void test_latent(void **state)
{
    (void)state;
    tiny t = TINY_DEEPSEEK;
    check(&t, "f32", 1);
    check(&t, "f16", 3);
    t.apart = 1;
    t.q_rank = 0;
    check(&t, "f32", 2);
    t.rank = 48; /* a row of 64 */
    t.apart = 0;
    check(&t, "affine4:32", 2);
    t.type = KVS__W_BF16;
    check(&t, "affine8:64", 1);
}

static void test_delta(void **state)
{
    (void)state;
    tiny t = TINY_QWEN3NEXT;
    check(&t, "f32", 1);
    check(&t, "paged/16:f16", 3);
    t.by_kind = 1;
    t.type = KVS__W_Q8_0;
    check(&t, "f16", 2);
}

static void test_ssd(void **state)
{
    (void)state;
    tiny t = TINY_MAMBA2;
    check(&t, "f32", 1);
    check(&t, "f16", 3);
    t.type = KVS__W_Q8_0;
    t.bias = 0;
    check(&t, "f32", 2);
}

static void test_borrow(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA4;
    check(&t, "f32", 1);
    check(&t, "f16", 3);
    t.d_side = 0;
    t.type = KVS__W_BF16;
    check(&t, "f16", 2);
}

/* ---- rounds of drafts over all rows and layers: what is kept is as if drafts had never been */

#define N_TXN 3

static void plain_rows(const rig *r, float *const *want)
{
    for (uint32_t i = 0; i < N_TXN; i++) {
        kvs_cache *c = new_cache(r);
        for (uint32_t p = 0; p < MAX_LEN; p++) {
            int32_t token = token_of(i, p, r->model->net.n_vocab);
            const kvs__graph_row row = {c, &token, 1, 0, (int64_t)p};
            assert_int_equal(kvs__graph_run(r->graph, &row, 1, NULL), KVS_OK);
            kvs__graph_logits(r->graph, 0, 1, want[i] + (size_t)p * r->model->net.n_vocab);
        }
        kvs_cache_free(c);
    }
}

/* Tokens at[b] .. of row b, of which all behind the first `good` are wrong. */
static void verify_round(const rig *r, kvs_rows *set, const uint32_t *at, const uint32_t *drafts,
                         const uint32_t *accepted, float *const *want)
{
    static int32_t tokens[N_TXN][MAX_LEN];
    kvs__graph_row rows[N_TXN];
    const uint32_t n_vocab = r->model->net.n_vocab;
    uint32_t all = 0;
    for (uint32_t b = 0; b < N_TXN; b++) {
        for (uint32_t p = 0; p <= drafts[b]; p++) {
            int32_t right = token_of(b, at[b] + p, n_vocab);
            tokens[b][p] = p <= accepted[b] ? right : (right + 1) % (int32_t)n_vocab;
        }
        rows[b] =
            (kvs__graph_row){kvs_rows_cache(set, b), tokens[b], drafts[b] + 1, 0, (int64_t)at[b]};
        all += drafts[b] + 1;
    }
    float *got = malloc((size_t)all * n_vocab * sizeof *got);
    assert_non_null(got);
    assert_int_equal(kvs__graph_run(r->graph, rows, N_TXN, NULL), KVS_OK);
    kvs__graph_logits(r->graph, 0, all, got);
    const float *from = got;
    for (uint32_t b = 0; b < N_TXN; b++) {
        assert_memory_equal(from, want[b] + (size_t)at[b] * n_vocab,
                            (size_t)(accepted[b] + 1) * n_vocab * sizeof *got);
        from += (size_t)(drafts[b] + 1) * n_vocab;
    }
    free(got);
}

static void check_rounds(const tiny *t, const char *kv)
{
    rig r = {.ctx = NULL};
    rig_open(&r, t, kv, 2);
    float *want[N_TXN];
    kvs_cache *caches[N_TXN];
    uint32_t at[N_TXN] = {0};
    for (uint32_t i = 0; i < N_TXN; i++) {
        want[i] = malloc((size_t)MAX_LEN * r.model->net.n_vocab * sizeof *want[i]);
        assert_non_null(want[i]);
        caches[i] = new_cache(&r);
    }
    plain_rows(&r, want);
    kvs_rows *set = NULL;
    assert_int_equal(kvs_rows_merge(r.ctx, caches, N_TXN, &set, NULL), KVS_OK);
    for (uint32_t round = 0; round < 12; round++) {
        uint32_t drafts[N_TXN];
        uint32_t accepted[N_TXN];
        for (uint32_t b = 0; b < N_TXN; b++) {
            drafts[b] = (round * 3 + b * 2) % 8;
            accepted[b] = drafts[b] ? (round + b) % (drafts[b] + 1) : 0;
        }
        kvs_txn_opts o = KVS_TXN_OPTS_INIT;
        o.drafts = drafts;
        kvs_err e = {KVS_OK, 0, "", ""};
        if (kvs_txn_begin(set, &o, &e) != KVS_OK) {
            fail_msg("%s", e.msg);
        }
        verify_round(&r, set, at, drafts, accepted, want);
        if (round % 4 == 3) {
            assert_int_equal(kvs_txn_abort(set, NULL), KVS_OK);
            continue;
        }
        assert_int_equal(kvs_txn_resolve(set, accepted, NULL), KVS_OK);
        for (uint32_t b = 0; b < N_TXN; b++) {
            at[b] += accepted[b] + 1;
        }
    }
    assert_true(at[0] > 12 && at[1] != at[2]);
    kvs_rows_free(set);
    for (uint32_t i = 0; i < N_TXN; i++) {
        free(want[i]);
    }
    rig_close(&r);
}

static void test_rounds(void **state)
{
    (void)state;
    tiny llama = TINY_LLAMA;
    tiny gemma = TINY_GEMMA;
    tiny delta = TINY_QWEN3NEXT;
    tiny ssd = TINY_MAMBA2;
    tiny borrow = TINY_GEMMA4;
    check_rounds(&llama, "f16");
    check_rounds(&gemma, "affine8:32");
    check_rounds(&delta, "f32");
    check_rounds(&ssd, "f16");
    check_rounds(&borrow, "f16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),      cmocka_unit_test(test_gemma),
        cmocka_unit_test(test_every_arch), cmocka_unit_test(test_experts),
        cmocka_unit_test(test_latent),     cmocka_unit_test(test_delta),
        cmocka_unit_test(test_ssd),        cmocka_unit_test(test_borrow),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
