/* SPDX-License-Identifier: MIT */
/* test_engine_spec.c: tokens and logits of speculative decoding are those of plain decoding, bit for
 * bit, for every plan, source of drafts and pattern of acceptance; what a round leaves behind when
 * it ends early, finds no room, or fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/speculate_priv.h"
#include "support/fail_alloc.h"
#include "support/spec_rig.h"

#define LEN 110

static spec_text plain;
static spec_guess guess;

/* Decodes from the prompt to the end of the text in rounds, comparing after each. */
static void decode(const spec_rig *r, const spec_plan *p, const kvs_spec_opts *opts,
                   kvs_spec_stats *stats, const char *what)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = spec_session(r, p, SPEC_MAX, NULL);
    kvs_spec *spec = NULL;
    size_t n = 0;
    guess.n_told = 0;
    spec_must(kvs_session_sync(s, plain.tokens, plain.n_prompt, NULL, &err), &err);
    spec_must(kvs_spec_new(s, opts, &spec, &err), &err);
    while ((void)kvs_session_tokens(s, &n), n + opts->max_drafts + 1 <= plain.n) {
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, &plain, what);
    }
    if (opts->on_token == spec_guess_token) {
        assert_int_equal(guess.n_told, n - plain.n_prompt);
        assert_memory_equal(guess.told, plain.tokens + plain.n_prompt,
                            guess.n_told * sizeof(int32_t));
    }
    assert_int_equal(kvs_spec_get_stats(spec, stats), KVS_OK);
    assert_int_equal(stats->n_tokens, n - plain.n_prompt);
    assert_int_equal(stats->n_tokens, stats->n_rounds + stats->n_accepted);
    kvs_spec_free(spec);
    /* and plain decoding goes on from there */
    for (; n < plain.n; n++) {
        spec_must(kvs_session_append(s, &plain.tokens[n], 1, &err), &err);
        spec_same(s, &plain, what);
    }
    kvs_session_free(s);
}

static kvs_spec_opts guess_opts(kvs_sampler *sampler, uint32_t most, uint32_t wrong)
{
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    guess = (spec_guess){.text = &plain, .wrong = wrong};
    o.flags = KVS_SPEC_FIXED;
    o.max_drafts = most;
    o.sampler = sampler;
    o.draft = spec_guess_draft;
    o.on_token = spec_guess_token;
    o.user = &guess;
    return o;
}

/* All accepted, none, and two patterns, at each depth. */
static void check_guesses(const spec_rig *r, const spec_plan *p, kvs_sampler *sampler)
{
    static const uint32_t depths[] = {1, 3, 8};
    static const uint32_t wrong[] = {0, 1, 3, 5};
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    char what[96];
    spec_plain(r, p, sampler, 1, 21, LEN, &plain);
    for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) {
        for (size_t w = 0; w < sizeof wrong / sizeof wrong[0]; w++) {
            kvs_spec_opts o = guess_opts(sampler, depths[d], wrong[w]);
            (void)snprintf(what, sizeof what, "%s window %u block %u, %u drafts, wrong %u", p->kv,
                           p->window, p->kv_block, depths[d], wrong[w]);
            decode(r, p, &o, &st, what);
            assert_true(st.n_drafts > 0);
            assert_true(wrong[w] != 0 || st.n_accepted == st.n_drafts);
            assert_true(wrong[w] != 1 || st.n_accepted == 0);
            assert_true(wrong[w] < 2 || (st.n_accepted > 0 && st.n_accepted < st.n_drafts));
        }
    }
}

static void check_model(tiny t, uint32_t threads, bool all)
{
    spec_rig r;
    t.dim = t.rank ? t.dim : 64;
    spec_rig_open(&r, &t, threads);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    kvs_sampler *drawn = spec_sampler(&r, 0.9f, 7);
    for (size_t i = 0; i < N_SPEC_PLANS; i++) {
        const spec_plan *p = &spec_plans[i];
        bool latent = t.rank && strcmp(p->kv, "q3+f16") == 0; /* has one side */
        if ((all || p->window || p->kv_block) && !latent && !(t.rank && strstr(p->kv, "v"))) {
            check_guesses(&r, p, i % 2 ? drawn : greedy);
        }
    }
    kvs_sampler_free(greedy);
    kvs_sampler_free(drawn);
    spec_rig_close(&r);
}

static void test_every_plan(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    check_model(t, 2, true);
}

static void test_windowed_model(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA;
    check_model(t, 1, true);
}

static void test_other_kinds(void **state)
{
    (void)state;
    tiny d = TINY_DEEPSEEK;
    d.rank = 64;
    d.rot = 32;
    spec_plan plans[] = {{"f16", 0, 0, 0, 0, 0, 0}, {"q8:32", 0, 0, 0, 8, 0, 0}};
    tiny m = TINY_MOE;
    for (int i = 0; i < 2; i++) {
        spec_rig r;
        spec_rig_open(&r, i ? &m : &d, 1 + (uint32_t)i);
        kvs_sampler *s = spec_sampler(&r, i ? 0.7f : 0.0f, 3);
        plans[1].kv = i ? "f32" : "affine8:32";
        check_guesses(&r, &plans[0], s);
        check_guesses(&r, &plans[1], s);
        kvs_sampler_free(s);
        spec_rig_close(&r);
    }
}

/* Of what does not go back no round is begun: it is refused, and not called a full context. */
static void test_no_undo(void **state)
{
    (void)state;
    const tiny t = TINY_MAMBA2;
    spec_rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig_open(&r, &t, 1);
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.n_ctx = SPEC_MAX;
    for (int i = 0; i < 2; i++) { /* the session itself, then the draft model's */
        kvs_session *s[2];
        kvs_plan *plan[2];
        for (int j = 0; j < 2; j++) {
            kvs_session_opts so = KVS_SESSION_OPTS_INIT;
            po.undo_tokens = i == j ? KVS_UNDO_NONE : 1;
            spec_must(kvs_plan_new(r.ctx, r.model, &po, &plan[j], &err), &err);
            so.plan = plan[j];
            spec_must(kvs_session_new(r.ctx, r.model, &so, &s[j], &err), &err);
        }
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        kvs_spec *spec = NULL;
        o.draft_model = r.model;
        o.draft_plan = plan[1];
        assert_int_equal(kvs_spec_new(s[0], &o, &spec, &err), KVS_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "layer 0"));
        assert_null(spec);
        for (int j = 0; j < 2; j++) {
            kvs_session_free(s[j]);
            kvs_plan_free(plan[j]);
        }
    }
    spec_rig_close(&r);
}

/* Recurrent layers go back through snapshots, borrowed ones with their donor. */
static void test_hybrids(void **state)
{
    (void)state;
    const tiny models[] = {TINY_QWEN3NEXT, TINY_MAMBA2, TINY_GEMMA4};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        spec_rig r;
        spec_rig_open(&r, &models[i], 1 + (uint32_t)(i % 2));
        kvs_sampler *s = spec_sampler(&r, i % 2 ? 0.7f : 0.0f, 3);
        check_guesses(&r, &spec_plans[i % 2], s);
        kvs_sampler_free(s);
        spec_rig_close(&r);
    }
}

/* ---- sources of drafts */

static void test_ngram_drafts(void **state)
{
    (void)state;
    int32_t out[8];
    const int32_t h[] = {1, 2, 3, 4, 9, 1, 2, 3, 7, 8, 2, 3, 5, 1, 2, 3};
    /* 8: before it 9 1 2 3 against 5 1 2 3; the later of two equal matches */
    assert_int_equal(kvs__ngram_draft(h, 16, 3, out, 4), 4);
    assert_int_equal(out[0], 7);
    assert_int_equal(out[1], 8);
    assert_int_equal(out[3], 3);
    assert_int_equal(kvs__ngram_draft(h, 16, 4, out, 4), 0);
    assert_int_equal(kvs__ngram_draft(h, 13, 1, out, 4), 0);
    assert_int_equal(kvs__ngram_draft(h, 12, 2, out, 2), 2);
    assert_int_equal(out[0], 7);
    assert_int_equal(kvs__ngram_draft(h, 0, 1, out, 4), 0);
    assert_int_equal(kvs__ngram_draft(h, 1, 1, out, 4), 0);
    assert_int_equal(kvs__ngram_draft(h, 16, 3, out, 0), 0);
    /* goes round behind the end */
    const int32_t two[] = {5, 6, 5, 6, 5};
    assert_int_equal(kvs__ngram_draft(two, 5, 3, out, 8), 8);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(out[i], i % 2 ? 5 : 6);
    }
    int32_t same[300];
    for (int i = 0; i < 300; i++) {
        same[i] = 4;
    }
    assert_int_equal(kvs__ngram_draft(same, 300, KVS__NGRAM_MOST, out, 8), 8);
    assert_int_equal(out[7], 4);
}

static void test_ngram_decoding(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 4, 21, SPEC_MAX, &plain);
    for (uint32_t least = 1; least <= 4; least++) {
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        o.ngram = least;
        o.max_drafts = 5;
        o.flags = least == 1 ? KVS_SPEC_FIXED : 0;
        decode(&r, &spec_plans[0], &o, &st, "n-grams");
        assert_true(least > 1 || st.n_drafts > 0);
    }
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

static void test_draft_model(void **state)
{
    (void)state;
    static const spec_plan draft_plans[] = {{"f16", 0, 0, 0, 0, 0, 0}, {"q8", 11, 2, 0, 0, 6, 0}};
    tiny t = TINY_LLAMA;
    tiny g = TINY_GEMMA;
    spec_rig r;
    spec_rig other;
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    t.dim = 64;
    g.dim = 64;
    spec_rig_open(&r, &t, 1);
    spec_rig_open(&other, &g, 1);
    for (int i = 0; i < 4; i++) {
        kvs_sampler *s = spec_sampler(&r, i % 2 ? 0.9f : 0.0f, 11);
        const spec_plan *p = &spec_plans[i == 3 ? 14 : 0];
        spec_plain(&r, p, s, 2, 21, LEN, &plain);
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        o.sampler = s;
        o.max_drafts = 4;
        o.flags = KVS_SPEC_FIXED;
        o.draft_model = r.model;
        decode(&r, p, &o, &st, "the model itself");
        if (p == &spec_plans[0]) { /* the same model, plan and noise: all right */
            assert_int_equal(st.n_accepted, st.n_drafts);
        }
        assert_true(st.bytes > 0);
        o.draft_model = other.model;
        for (int d = 0; d < 2; d++) {
            kvs_plan *dp = spec_plan_new(&other, &draft_plans[d], SPEC_MAX);
            o.draft_plan = dp;
            decode(&r, p, &o, &st, "another model");
            kvs_plan_free(dp);
            assert_true(st.n_drafts > 0 && st.n_accepted < st.n_drafts);
        }
        kvs_sampler_free(s);
    }
    spec_rig_close(&other);
    spec_rig_close(&r);
}

/* The draft model's context may be shorter; it then has nothing to say, and nothing breaks. */
static void test_short_draft_model(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 2, 21, LEN, &plain);
    kvs_plan *dp = spec_plan_new(&r, &spec_plans[0], 60);
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    o.max_drafts = 4;
    o.flags = KVS_SPEC_FIXED;
    o.draft_model = r.model;
    o.draft_plan = dp;
    decode(&r, &spec_plans[0], &o, &st, "a short context");
    assert_true(st.n_accepted == st.n_drafts && st.n_drafts > 20 && st.n_drafts < 40);
    kvs_plan_free(dp);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* ---- how rounds end */

static size_t held(const kvs_session *s)
{
    size_t n = 0;
    (void)kvs_session_tokens(s, &n);
    return n;
}

/* on_token says stop at each place within rounds: the state holds what was told, no more. */
static void test_stop(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_GEMMA;
    t.dim = 64;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 6, 30, LEN, &plain);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    for (size_t stop = 1; stop < 16; stop++) {
        for (int drop = 0; drop < 2; drop++) {
            kvs_spec *spec = NULL;
            kvs_spec_opts o = guess_opts(greedy, 6, 7);
            guess.last_at = drop ? 0 : stop;
            guess.drop_at = drop ? stop : 0;
            spec_must(kvs_session_sync(s, plain.tokens, plain.n_prompt, NULL, &err), &err);
            spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
            kvs_status st = KVS_OK;
            while (st == KVS_OK) {
                st = kvs_spec_next(spec, &err);
            }
            assert_int_equal(st, KVS_NO);
            assert_int_equal(guess.n_told, stop);
            assert_int_equal(held(s), plain.n_prompt + stop - (size_t)drop);
            spec_same(s, &plain, "stopped");
            /* it goes on where it was left */
            guess.n_told = 100;
            for (int i = 0; i < 3; i++) {
                spec_must(kvs_spec_next(spec, &err), &err);
                spec_same(s, &plain, "went on");
            }
            kvs_spec_free(spec);
        }
    }
    kvs_session_free(s);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* Between rounds the session is used otherwise: a kept pick must not survive that. */
static void test_session_moves(void **state)
{
    (void)state;
    static spec_text second;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 1, 21, LEN, &plain);
    spec_plain(&r, &spec_plans[0], greedy, 9, 25, LEN, &second);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    kvs_spec *spec = NULL;
    kvs_spec_opts o = guess_opts(greedy, 3, 2);
    spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
    assert_int_equal(kvs_spec_next(spec, &err), KVS_E_STATE);
    for (int i = 0; i < 6; i++) {
        const spec_text *text = i % 2 ? &second : &plain;
        guess.text = text;
        spec_must(kvs_session_sync(s, text->tokens, text->n_prompt, NULL, &err), &err);
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, text, "another text");
        spec_must(kvs_session_append(s, &text->tokens[held(s)], 1, &err), &err);
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, text, "after an append");
    }
    kvs_spec_free(spec);
    kvs_session_free(s);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* One draft that is right, then the first id that is no token. */
static uint32_t beyond(void *user, const int32_t *known, size_t n_known, int32_t *out, uint32_t n)
{
    const spec_text *text = user;
    (void)known;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = i == 0 && n_known < text->n ? text->tokens[n_known] : SPEC_VOCAB;
    }
    return n;
}

/* What is no token ends the list of drafts. */
static void test_drafts_that_are_no_tokens(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    kvs_spec *spec = NULL;
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 1, 21, LEN, &plain);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    spec_must(kvs_session_sync(s, plain.tokens, 21, NULL, &err), &err);
    o.sampler = greedy;
    o.draft = beyond;
    o.user = &plain;
    o.max_drafts = 4;
    o.flags = KVS_SPEC_FIXED;
    spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
    for (int i = 0; i < 5; i++) {
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, &plain, "drafts that are no tokens");
    }
    assert_int_equal(kvs_spec_get_stats(spec, &st), KVS_OK);
    assert_int_equal(st.n_drafts, 5);
    assert_int_equal(st.n_accepted, 5);
    kvs_spec_free(spec);
    kvs_session_free(s);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* A round has no more tokens than a step of the session takes, however many drafts are wanted. */
static void test_small_block(void **state)
{
    (void)state;
    static const spec_plan small = {"f16", 0, 0, 0, 0, 4, 0};
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &small, greedy, 1, 21, LEN, &plain);
    kvs_spec_opts o = guess_opts(greedy, 8, 0);
    o.flags = KVS_SPEC_FIXED;
    decode(&r, &small, &o, &st, "a block of 4");
    assert_true(st.n_drafts <= 3 * st.n_rounds && st.n_drafts > 2 * st.n_rounds);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* What a round picked is of the text it had: another one of the same length has its own. */
static void test_another_text_of_that_length(void **state)
{
    (void)state;
    static spec_text other;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = KVS_ERR_INIT;
    kvs_spec *spec = NULL;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 1, 21, LEN, &plain);
    spec_plain(&r, &spec_plans[0], greedy, 2, 21, LEN, &other);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    kvs_spec_opts o = guess_opts(greedy, 4, 3);
    o.on_token = NULL;
    spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
    for (size_t at = 21; at < 60; at++) {
        spec_must(kvs_session_sync(s, plain.tokens, at, NULL, &err), &err);
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_must(kvs_session_sync(s, other.tokens, held(s), NULL, &err), &err);
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, &other, "another text of that length");
    }
    kvs_spec_free(spec);
    kvs_session_free(s);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

static void test_context_full(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, &spec_plans[0], greedy, 1, 21, LEN, &plain);
    for (uint32_t n_ctx = 22; n_ctx < 40; n_ctx++) {
        for (int model = 0; model < 2; model++) {
            kvs_session *s = spec_session(&r, &spec_plans[0], n_ctx, NULL);
            kvs_spec *spec = NULL;
            kvs_spec_opts o = guess_opts(greedy, 5, 4);
            o.draft = model ? NULL : o.draft;
            o.draft_model = model ? r.model : NULL;
            spec_must(kvs_session_sync(s, plain.tokens, plain.n_prompt, NULL, &err), &err);
            spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
            kvs_status st = KVS_OK;
            while (st == KVS_OK) {
                st = kvs_spec_next(spec, &err);
            }
            assert_int_equal(st, KVS_E_LIMIT);
            assert_non_null(strstr(err.msg, "context full"));
            /* as plain decoding: the context is full, and one more token is known */
            assert_int_equal(held(s), n_ctx);
            assert_int_equal(guess.n_told, n_ctx - plain.n_prompt + 1);
            assert_memory_equal(guess.told, plain.tokens + plain.n_prompt,
                                guess.n_told * sizeof(int32_t));
            spec_same(s, &plain, "full");
            kvs_spec_free(spec);
            kvs_session_free(s);
        }
    }
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* ---- failures */

static int stop_at_once(void *user, size_t done, size_t total)
{
    (void)done;
    (void)total;
    return *(int *)user;
}

/* A signal while the draft model reads the prompt. */
static void test_cancel(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    int stop = 0;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    const spec_plan p = {"f16", 0, 0, 0, 0, 8, 0};
    spec_plain(&r, &p, greedy, 1, 60, LEN, &plain);
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_plan *plan = spec_plan_new(&r, &p, SPEC_MAX);
    kvs_session *s = NULL;
    kvs_spec *spec = NULL;
    so.plan = plan;
    so.progress = stop_at_once;
    so.progress_user = &stop;
    spec_must(kvs_session_new(r.ctx, r.model, &so, &s, &err), &err);
    spec_must(kvs_session_sync(s, plain.tokens, plain.n_prompt, NULL, &err), &err);
    kvs_spec_opts o = guess_opts(greedy, 4, 0);
    o.draft = NULL;
    o.draft_model = r.model;
    o.draft_plan = plan;
    spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
    stop = 1;
    assert_int_equal(kvs_spec_next(spec, &err), KVS_E_CANCELLED);
    assert_int_equal(held(s), plain.n_prompt);
    spec_same(s, &plain, "cancelled");
    stop = 0;
    for (int i = 0; i < 4; i++) {
        spec_must(kvs_spec_next(spec, &err), &err);
        spec_same(s, &plain, "after a cancelled round");
    }
    kvs_spec_free(spec);
    kvs_session_free(s);
    kvs_plan_free(plan);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

/* Every allocation of making it and of twelve rounds fails once, also those that nobody misses. Returns
 * how often the draft model gave up what it held. */
static long check_no_memory(int model, const spec_plan *p)
{
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig r;
    tiny t = TINY_LLAMA;
    t.dim = 64;
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    spec_plain(&r, p, greedy, 1, 21, LEN, &plain);
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &heap;
    long failed = 0;
    long gave_up = 0;
    for (long k = 0, done = 0; !done; k++) {
        spec_rig f = r;
        assert_int_equal(kvs_ctx_new(&co, &f.ctx, NULL), KVS_OK);
        kvs_session *s = spec_session(&f, p, SPEC_MAX, NULL);
        kvs_spec *spec = NULL;
        kvs_spec_opts o = guess_opts(greedy, 5, 4);
        o.draft = model ? NULL : o.draft;
        o.draft_model = model ? r.model : NULL;
        spec_must(kvs_session_sync(s, plain.tokens, plain.n_prompt, NULL, &err), &err);
        heap.fail_at = heap.calls + k;
        kvs_status st = kvs_spec_new(s, &o, &spec, &err);
        if (st != KVS_OK) {
            assert_int_equal(st, KVS_E_NOMEM);
            assert_null(spec);
            spec_must(kvs_spec_new(s, &o, &spec, &err), &err);
            failed++;
        }
        for (int i = 0; i < 12; i++) {
            size_t before = held(s);
            st = kvs_spec_next(spec, &err);
            if (st != KVS_OK) {
                assert_int_equal(st, KVS_E_NOMEM);
                assert_int_equal(held(s), before);
                failed++;
            }
            spec_same(s, &plain, "no memory");
        }
        kvs_reuse reuse = KVS_REUSE_INIT;
        assert_int_equal(kvs_spec_get_reuse(spec, &reuse), model ? KVS_OK : KVS_NO);
        gave_up += strstr(reuse.reason, "no memory for both") != NULL;
        done = heap.calls <= heap.fail_at;
        heap.fail_at = -1;
        kvs_spec_free(spec);
        kvs_session_free(s);
        kvs_ctx_free(f.ctx);
        assert_int_equal(heap.blocks, 0);
        assert_int_equal(heap.wrong, 0);
    }
    assert_true(failed >= (model ? 4 : 1));
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
    return gave_up;
}

static void test_no_memory(void **state)
{
    (void)state;
    const spec_plan paged = {"q8", 0, 0, 0, 2, 0, 0};
    assert_int_equal(check_no_memory(0, &spec_plans[0]), 0);
    (void)check_no_memory(1, &spec_plans[0]);
    assert_int_equal(check_no_memory(0, &paged), 0);
    /* the target's round finds no memory while the drafter's is open: that one ends, and drafts with it */
    assert_true(check_no_memory(1, &spec_plans[18]) > 0);
    assert_true(check_no_memory(1, &paged) > 0);
}

static void test_refused(void **state)
{
    (void)state;
    spec_rig r;
    spec_rig wide;
    spec_rig named;
    tiny t = TINY_LLAMA;
    tiny w = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    w.n_vocab = 98;
    spec_rig_open(&r, &t, 1);
    spec_rig_open(&wide, &w, 1);
    tiny chat = TINY_LLAMA;
    chat.chat = 1;
    chat.n_vocab = TINY_CHAT_VOCAB;
    spec_rig_open(&named, &chat, 1);
    kvs_session *s = spec_session(&r, &spec_plans[0], SPEC_MAX, NULL);
    kvs_session *c = spec_session(&named, &spec_plans[0], SPEC_MAX, NULL);
    kvs_spec *spec = NULL;
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    assert_int_equal(kvs_spec_new(NULL, &o, &spec, &err), KVS_E_INVAL);
    assert_int_equal(kvs_spec_new(s, &o, NULL, &err), KVS_E_INVAL);
    o.flags = 2;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_INVAL);
    o.flags = 0;
    o.max_drafts = 256;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "256"));
    o.max_drafts = 0;
    o.ngram = 33;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_RANGE);
    o.ngram = 0;
    o.draft_model = wide.model;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "98"));
    assert_non_null(strstr(err.msg, "97"));
    o.draft = spec_guess_draft;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_INVAL);
    o.draft = NULL;
    o.draft_model = NULL;
    o.sampler = spec_sampler(&r, 0.0f, 0);
    assert_int_equal(kvs_spec_new(c, &o, &spec, &err), KVS_E_INVAL);
    kvs_sampler_free(o.sampler);
    o.sampler = NULL;
    /* the plan of another geometry */
    kvs_plan *plan = spec_plan_new(&r, &spec_plans[0], SPEC_MAX);
    tiny g = TINY_GEMMA;
    spec_rig gemma;
    spec_rig_open(&gemma, &g, 1);
    o.draft_model = gemma.model;
    o.draft_plan = plan;
    assert_int_equal(kvs_spec_new(s, &o, &spec, &err), KVS_E_INVAL);
    assert_null(spec);
    assert_int_equal(kvs_spec_next(NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_spec_get_stats(NULL, NULL), KVS_E_INVAL);
    kvs_spec_free(NULL);
    kvs_plan_free(plan);
    kvs_session_free(s);
    kvs_session_free(c);
    spec_rig_close(&gemma);
    spec_rig_close(&named);
    spec_rig_close(&wide);
    spec_rig_close(&r);
}

/* Opens a copy of the model whose token <|im_end|> is spelled otherwise. */
static void open_respelled(spec_rig *r, const tiny *t)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_ctx_new(NULL, &r->ctx, NULL), KVS_OK);
    assert_true(tiny_write(t, r->path, sizeof r->path));
    FILE *f = fopen(r->path, "r+b");
    assert_non_null(f);
    const char name[] = "<|im_end|>";
    size_t same = 0;
    long at = 0;
    for (int c = 0; same < sizeof name - 1 && (c = fgetc(f)) != EOF; at++) {
        same = c == name[same] ? same + 1 : c == name[0];
    }
    assert_int_equal(same, sizeof name - 1);
    assert_int_equal(fseek(f, at - 3, SEEK_SET), 0);
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
    spec_must(kvs_model_open(r->ctx, r->path, NULL, &r->model, &err), &err);
}

static void test_other_vocabulary(void **state)
{
    (void)state;
    spec_rig r[4];
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    t.n_vocab = TINY_CHAT_VOCAB;
    spec_rig_open(&r[0], &t, 1);
    t.chat = 1;
    spec_rig_open(&r[1], &t, 1);
    open_respelled(&r[2], &t);
    t.seed = 99;
    spec_rig_open(&r[3], &t, 1);
    kvs_session *s = spec_session(&r[1], &spec_plans[0], SPEC_MAX, NULL);
    static const char *const words[] = {"only one has a tokenizer", NULL, "<|im_enx|>", NULL};
    for (int i = 0; i < 4; i++) {
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        kvs_spec *spec = NULL;
        o.draft_model = r[i].model;
        kvs_status st = kvs_spec_new(s, &o, &spec, &err);
        assert_int_equal(st, words[i] ? KVS_E_INVAL : KVS_OK);
        assert_true(!words[i] || strstr(err.msg, words[i]));
        kvs_spec_free(spec);
    }
    kvs_session_free(s);
    for (int i = 0; i < 4; i++) {
        spec_rig_close(&r[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_plan),
        cmocka_unit_test(test_windowed_model),
        cmocka_unit_test(test_other_kinds),
        cmocka_unit_test(test_ngram_drafts),
        cmocka_unit_test(test_ngram_decoding),
        cmocka_unit_test(test_draft_model),
        cmocka_unit_test(test_short_draft_model),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_session_moves),
        cmocka_unit_test(test_drafts_that_are_no_tokens),
        cmocka_unit_test(test_small_block),
        cmocka_unit_test(test_another_text_of_that_length),
        cmocka_unit_test(test_context_full),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_other_vocabulary),
        cmocka_unit_test(test_hybrids),
        cmocka_unit_test(test_no_undo),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
