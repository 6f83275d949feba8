/* SPDX-License-Identifier: MIT */
/* test_engine_step_fails.c: a step that fails half way. Memory is taken before a step, so that only a
 * layer that is not where its session says makes one fail: a test puts it there. What the other layers
 * took is given back, or the session latches broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/spec_rig.h"

#define HELD 20

static int32_t text[HELD + 4];

/* Layer 1 loses its newest token. */
static void misplace(const kvs_session *s)
{
    const kvs_cache *c = kvs_session_cache(s);
    kvs_cache *inside = NULL;
    memcpy(&inside, &c, sizeof c);
    assert_int_equal(kvs_cache_rewind(inside, 1, 1, NULL), KVS_OK);
}

static void expect_lengths(const kvs_session *s, int64_t n)
{
    size_t held = 0;
    const kvs_cache *c = kvs_session_cache(s);
    (void)kvs_session_tokens(s, &held);
    assert_int_equal(held, n);
    for (uint32_t l = 0; l < kvs_cache_n_layers(c); l++) {
        assert_int_equal(kvs_cache_length(c, l), n);
    }
}

static kvs_session *open_session(const spec_rig *r, kvs_batch *b)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_session *s = spec_session(r, &spec_plans[0], SPEC_MAX, b);
    spec_must(kvs_session_sync(s, text, HELD, NULL, &err), &err);
    return s;
}

static void test_session(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    size_t reused = 1;
    float want[SPEC_VOCAB];
    spec_rig_open(&r, &t, 1);
    kvs_session *s = open_session(&r, NULL);
    memcpy(want, kvs_session_logits(s), sizeof want);
    misplace(s);
    assert_int_equal(kvs_session_append(s, text + HELD, 4, &err), KVS_E_RANGE);
    expect_lengths(s, HELD);
    assert_null(kvs_session_logits(s));
    const int32_t other[2] = {5, 6}; /* nothing in common: it starts anew, and works */
    spec_must(kvs_session_sync(s, other, 2, &reused, &err), &err);
    assert_int_equal(reused, 0);
    spec_must(kvs_session_sync(s, text, HELD, &reused, &err), &err);
    assert_memory_equal(kvs_session_logits(s), want, sizeof want);
    kvs_session_free(s);
    spec_rig_close(&r);
}

/* All rows or none, and the step before has no logits any more. */
static void test_batch(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    kvs_batch *b = NULL;
    kvs_batch_step e = KVS_BATCH_STEP_INIT;
    spec_rig_open(&r, &t, 1);
    spec_must(kvs_batch_new(r.ctx, r.model, NULL, &b, &err), &err);
    kvs_session *s[3] = {open_session(&r, NULL), open_session(&r, b), open_session(&r, NULL)};
    const int32_t *tokens[3] = {text + HELD, text + HELD, text + HELD};
    const uint32_t n[3] = {1, 3, 2};
    e.n_rows = 3;
    e.sessions = s;
    e.tokens = tokens;
    spec_must(kvs_batch_eval(b, &e, &err), &err);
    assert_non_null(kvs_batch_logits(b, 2, 0));
    misplace(s[1]);
    e.n_tokens = n;
    assert_int_equal(kvs_batch_eval(b, &e, &err), KVS_E_RANGE);
    for (int i = 0; i < 3; i++) {
        expect_lengths(s[i], HELD + 1);
    }
    assert_null(kvs_batch_logits(b, 0, 0));
    const kvs_session *whole = s[1];
    s[1] = s[2]; /* without it the others go on */
    e.n_rows = 2;
    spec_must(kvs_batch_eval(b, &e, &err), &err);
    expect_lengths(s[0], HELD + 2);
    expect_lengths(s[2], HELD + 4);
    expect_lengths(whole, HELD + 1);
    s[1] = NULL;
    memcpy(&s[1], &whole, sizeof whole);
    for (int i = 0; i < 3; i++) {
        kvs_session_free(s[i]);
    }
    kvs_batch_free(b);
    spec_rig_close(&r);
}

/* A round gives back what its layers took; the text goes on once the layer is in its place. */
static void test_round(void **state)
{
    (void)state;
    static spec_text plain;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    spec_guess guess = {.text = &plain};
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    kvs_spec *spec = NULL;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 1, HELD, 60, &plain);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    spec_must(kvs_session_sync(s, plain.tokens, HELD, NULL, &err), &err);
    o.draft = spec_guess_draft;
    o.user = &guess;
    o.sampler = greedy;
    o.max_drafts = 4;
    o.flags = KVS_SPEC_FIXED;
    spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
    misplace(s);
    assert_true(kvs_spec_next(spec, &err) < KVS_OK);
    const kvs_cache *c = kvs_session_cache(s);
    for (uint32_t l = 0; l < kvs_cache_n_layers(c); l++) {
        assert_int_equal(kvs_cache_length(c, l), l == 1 ? HELD - 1 : HELD);
    }
    spec_must(kvs_session_sync(s, plain.tokens, 0, NULL, &err), &err);
    spec_must(kvs_session_sync(s, plain.tokens, HELD, NULL, &err), &err);
    for (int i = 0; i < 5; i++) {
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, &plain, "after a round that failed");
    }
    kvs_spec_free(spec);
    kvs_session_free(s);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* A recurrent layer without undo cannot give back: the session says so for ever. */
static void test_broken(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_QWEN3NEXT;
    kvs_err err = KVS_ERR_INIT;
    spec_rig_open(&r, &t, 1);
    for (int undo = 0; undo < 2; undo++) {
        kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
        kvs_session_opts so = KVS_SESSION_OPTS_INIT;
        kvs_plan *plan = NULL;
        kvs_session *s = NULL;
        po.undo_tokens = undo ? 8 : KVS_UNDO_NONE;
        spec_must(kvs_plan_new(r.ctx, r.model, &po, &plan, &err), &err);
        so.plan = plan;
        spec_must(kvs_session_new(r.ctx, r.model, &so, &s, &err), &err);
        spec_must(kvs_session_sync(s, text, HELD, NULL, &err), &err);
        misplace(s); /* layer 0 is recurrent, layer 1 is not */
        assert_int_equal(kvs_session_append(s, text + HELD, 4, &err), KVS_E_RANGE);
        assert_null(kvs_session_logits(s));
        if (undo) {
            expect_lengths(s, HELD);
        } else {
            assert_int_equal(kvs_session_append(s, text + HELD, 1, &err), KVS_E_BROKEN);
            assert_int_equal(kvs_session_sync(s, text, 3, NULL, &err), KVS_E_BROKEN);
        }
        kvs_session_free(s);
        kvs_plan_free(plan);
    }
    spec_rig_close(&r);
}

typedef struct seen {
    float last[SPEC_VOCAB];
    size_t n;
} seen;

static int keep_last(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    seen *k = user;
    (void)pos;
    memcpy(k->last, logits, n_vocab * sizeof *logits);
    k->n++;
    return 0;
}

/* However many rows of logits are handed out, the session keeps the last one. */
static void test_last_row(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    spec_rig_open(&r, &t, 1);
    for (size_t rows = 1; rows <= 9; rows++) {
        kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
        kvs_eval e = KVS_EVAL_INIT;
        seen k = {{0}, 0};
        e.tokens = text;
        e.n_tokens = HELD;
        e.logits_from = HELD - rows;
        e.on_logits = keep_last;
        e.user = &k;
        spec_must(kvs_session_eval(s, &e, &err), &err);
        assert_int_equal(k.n, rows);
        assert_memory_equal(kvs_session_logits(s), k.last, sizeof k.last);
        kvs_session_free(s);
    }
    spec_rig_close(&r);
}

int main(void)
{
    for (size_t i = 0; i < sizeof text / sizeof text[0]; i++) {
        text[i] = (int32_t)((i * 29 + 3) % SPEC_VOCAB);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_session), cmocka_unit_test(test_batch),
        cmocka_unit_test(test_round),   cmocka_unit_test(test_broken),
        cmocka_unit_test(test_last_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
