/* SPDX-License-Identifier: MIT */
/* test_engine_batch.c: rows of a batch have the bits that they have alone, whatever company they
 * keep: one to eight rows of different plans, offsets, numbers of tokens and drafts accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/fail_alloc.h"
#include "support/spec_rig.h"

#define ROWS 8
#define LEN  90

static spec_text plain[ROWS];
static spec_guess guess[ROWS];

typedef struct crowd {
    spec_rig rig;
    kvs_sampler *greedy;
    kvs_batch *batch;
    kvs_session *s[ROWS];
    const spec_plan *plan[ROWS];
} crowd;

static void crowd_open(crowd *c, tiny t, uint32_t threads, size_t first_plan, int shared)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    t.dim = 64;
    spec_rig_open(&c->rig, &t, threads);
    c->greedy = spec_sampler(&c->rig, 0.0f, 0);
    kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
    o.n_ctx = SPEC_MAX;
    o.max_logits = 5 * ROWS;
    spec_must(kvs_batch_new(c->rig.ctx, c->rig.model, &o, &c->batch, &err), &err);
    for (uint32_t i = 0; i < ROWS; i++) {
        c->plan[i] = &spec_plans[(first_plan + i) % N_SPEC_PLANS];
        spec_plain(&c->rig, c->plan[i], c->greedy, i, 5 + 4 * (size_t)i, LEN, &plain[i]);
        c->s[i] = spec_session(&c->rig, c->plan[i], SPEC_MAX, shared ? c->batch : NULL);
    }
}

static void crowd_close(crowd *c)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        kvs_session_free(c->s[i]);
    }
    kvs_batch_free(c->batch);
    kvs_sampler_free(c->greedy);
    spec_rig_close(&c->rig);
}

static size_t held(const kvs_session *s)
{
    size_t n = 0;
    (void)kvs_session_tokens(s, &n);
    return n;
}

static void prompts(crowd *c, uint32_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    for (uint32_t i = 0; i < n; i++) {
        spec_must(kvs_session_sync(c->s[i], plain[i].tokens, plain[i].n_prompt, NULL, &err), &err);
        spec_same(c->s[i], &plain[i], "prompt");
    }
}

/* Steps of one to four tokens a row with none to all logits; which row has how many turns round. */
static void check_eval(crowd *c, uint32_t n_rows)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    const int32_t *tokens[ROWS];
    uint32_t n[ROWS];
    uint32_t want[ROWS];
    prompts(c, n_rows);
    for (uint32_t step = 0; step < 9; step++) {
        kvs_batch_step e = KVS_BATCH_STEP_INIT;
        e.n_rows = n_rows;
        e.sessions = c->s;
        e.tokens = tokens;
        for (uint32_t i = 0; i < n_rows; i++) {
            size_t at = held(c->s[i]);
            tokens[i] = plain[i].tokens + at;
            n[i] = step % 3 ? 1 + (i + step) % (c->plan[i]->max_block == 2 ? 2 : 4) : 1;
            want[i] = step == 8 ? 1 : (i * 3 + step) % (n[i] + 1);
        }
        e.n_tokens = step % 3 ? n : NULL;
        e.n_logits = step % 3 ? want : NULL;
        spec_must(kvs_batch_eval(c->batch, &e, &err), &err);
        for (uint32_t i = 0; i < n_rows; i++) {
            uint32_t w = step % 3 ? want[i] : 1;
            size_t end = held(c->s[i]);
            for (uint32_t k = 0; k < w; k++) {
                assert_memory_equal(kvs_batch_logits(c->batch, i, k), plain[i].logits[end - w + k],
                                    sizeof plain[i].logits[0]);
            }
            assert_null(kvs_batch_logits(c->batch, i, w));
            if (w > 0) {
                spec_same(c->s[i], &plain[i], "step");
            } else {
                assert_null(kvs_session_logits(c->s[i]));
            }
        }
        assert_null(kvs_batch_logits(c->batch, n_rows, 0));
    }
}

static void test_rows(void **state)
{
    (void)state;
    tiny l = TINY_LLAMA;
    tiny g = TINY_GEMMA;
    for (size_t p = 0; p < N_SPEC_PLANS; p += ROWS) {
        crowd c;
        crowd_open(&c, p % 16 ? g : l, 1 + (uint32_t)(p / 8), p, p != 8);
        for (uint32_t n = 1; n <= ROWS; n++) {
            check_eval(&c, n);
        }
        kvs_batch_stats st = KVS_BATCH_STATS_INIT;
        assert_int_equal(kvs_batch_get_stats(c.batch, &st), KVS_OK);
        assert_int_equal(st.n_steps, 8 * 9);
        crowd_close(&c);
    }
}

/* Rounds of unequal acceptance; a row that is done leaves, the others go on. */
static void check_rounds(crowd *c, uint32_t n_rows, int source)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_spec *spec[ROWS];
    uint32_t row[ROWS];
    prompts(c, n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        guess[i] = (spec_guess){.text = &plain[i], .wrong = i, .most = i % 4 == 3 ? 2 : 0};
        guess[i].drop_at = 20 + 5 * i;
        o.flags = i % 3 ? KVS_SPEC_FIXED : 0;
        o.max_drafts = 1 + (i + n_rows) % 7;
        o.sampler = c->greedy;
        o.draft = source == 0 ? spec_guess_draft : NULL;
        o.draft_model = source == 1 && i % 2 ? c->rig.model : NULL;
        o.on_token = spec_guess_token;
        o.user = &guess[i];
        spec_must(kvs_spec_new(c->s[i], &o, &spec[i], &err), &err);
        row[i] = i;
    }
    for (uint32_t n = n_rows; n > 0;) {
        kvs_status st = kvs_spec_next_rows(c->batch, spec, n, &err);
        assert_true(st == KVS_OK || st == KVS_NO);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            const spec_guess *g = &guess[row[i]];
            bool done = g->n_told >= g->drop_at;
            spec_same(c->s[row[i]], g->text, "round");
            assert_int_equal(held(c->s[row[i]]), g->text->n_prompt + g->n_told - done);
            if (done) {
                kvs_spec_free(spec[i]);
                continue;
            }
            spec[kept] = spec[i];
            row[kept++] = row[i];
        }
        assert_int_equal(st == KVS_NO, kept < n);
        n = kept;
    }
}

static void test_rounds(void **state)
{
    (void)state;
    tiny l = TINY_LLAMA;
    tiny g = TINY_GEMMA;
    for (size_t p = 0; p < N_SPEC_PLANS; p += ROWS) {
        crowd c;
        crowd_open(&c, p % 16 ? l : g, 1 + (uint32_t)(p / 8), p, p != 8);
        for (uint32_t n = 1; n <= ROWS; n++) {
            check_rounds(&c, n, (int)(n % 3));
        }
        check_rounds(&c, ROWS, 0);
        crowd_close(&c);
    }
}

/* A step takes fewer tokens than all drafts: they are cut, not refused. And one row's context is
 * full: the others go on. */
static void test_tight(void **state)
{
    (void)state;
    crowd c;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    crowd_open(&c, t, 1, 0, 1);
    kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
    kvs_batch *small = NULL;
    o.max_rows = 3;
    o.max_tokens = 7;
    o.max_logits = 2;
    o.n_ctx = SPEC_MAX;
    spec_must(kvs_batch_new(c.rig.ctx, c.rig.model, &o, &small, &err), &err);
    kvs_session *s[3] = {c.s[0], c.s[1], spec_session(&c.rig, c.plan[2], 24, small)};
    kvs_spec *spec[3];
    for (uint32_t i = 0; i < 3; i++) {
        kvs_spec_opts so = KVS_SPEC_OPTS_INIT;
        guess[i] = (spec_guess){.text = &plain[i], .wrong = 5 + i};
        so.max_drafts = 4;
        so.flags = KVS_SPEC_FIXED;
        so.draft = spec_guess_draft;
        so.on_token = spec_guess_token;
        so.user = &guess[i];
        spec_must(kvs_session_sync(s[i], plain[i].tokens, plain[i].n_prompt, NULL, &err), &err);
        spec_must(kvs_spec_new(s[i], &so, &spec[i], &err), &err);
    }
    kvs_status st = KVS_OK;
    int rounds = 0;
    for (; st == KVS_OK && rounds < 40; rounds++) {
        size_t before = held(s[0]);
        st = kvs_spec_next_rows(small, spec, 3, &err);
        assert_true(held(s[0]) > before);
        for (uint32_t i = 0; i < 3; i++) {
            spec_same(s[i], &plain[i], "tight");
        }
    }
    assert_int_equal(st, KVS_E_LIMIT);
    assert_int_equal(held(s[2]), 24);
    for (uint32_t i = 0; i < 3; i++) {
        kvs_spec_free(spec[i]);
    }
    kvs_session_free(s[2]);
    kvs_batch_free(small);
    crowd_close(&c);
}

static void refused(crowd *c, kvs_batch_step *e, kvs_status want, const char *word)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_batch_eval(c->batch, e, &err), want);
    if (word && !strstr(err.msg, word)) {
        fail_msg("no \"%s\" in \"%s\"", word, err.msg);
    }
    for (uint32_t i = 0; i < 2; i++) {
        spec_same(c->s[i], &plain[i], "refused");
        assert_int_equal(held(c->s[i]), plain[i].n_prompt);
    }
}

static void test_refused(void **state)
{
    (void)state;
    crowd c;
    crowd other;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    crowd_open(&other, t, 1, 0, 0);
    crowd_open(&c, t, 1, 0, 0);
    prompts(&c, 2);
    const int32_t good[] = {1, 2, 3, 4, 5};
    const int32_t bad[] = {1, SPEC_VOCAB};
    const int32_t *tokens[ROWS + 1] = {good, bad};
    kvs_session *s[ROWS + 1] = {c.s[0], c.s[1]};
    uint32_t n[ROWS + 1] = {1, 1};
    uint32_t want[ROWS + 1] = {1, 1};
    kvs_batch_step e = KVS_BATCH_STEP_INIT;
    spec_must(kvs_batch_eval(c.batch, &e, &err), &err);
    e.n_rows = 2;
    refused(&c, &e, KVS_E_INVAL, "NULL");
    e.sessions = s;
    e.tokens = tokens;
    e.n_tokens = n;
    e.n_logits = want;
    n[1] = 2;
    refused(&c, &e, KVS_E_RANGE, "row 1: token 97");
    tokens[1] = good;
    n[1] = 0;
    refused(&c, &e, KVS_E_RANGE, "row 1");
    n[1] = 1;
    want[1] = 2;
    refused(&c, &e, KVS_E_RANGE, "row 1");
    want[1] = 1;
    tokens[1] = NULL;
    refused(&c, &e, KVS_E_INVAL, "row 1: tokens");
    tokens[1] = good;
    s[1] = s[0];
    refused(&c, &e, KVS_E_INVAL, "0 and 1");
    s[1] = other.s[1];
    refused(&c, &e, KVS_E_INVAL, "row 1");
    s[1] = NULL;
    refused(&c, &e, KVS_E_INVAL, "row 1: session");
    s[1] = c.s[1];
    e.n_rows = ROWS + 1;
    refused(&c, &e, KVS_E_RANGE, "9 rows");
    e.n_rows = 2;
    e.struct_size = 3;
    refused(&c, &e, KVS_E_INVAL, NULL);
    e.struct_size = sizeof e;
    kvs_session *tiny_ctx = spec_session(&c.rig, c.plan[0], 4, NULL);
    spec_must(kvs_session_sync(tiny_ctx, good, 4, NULL, &err), &err);
    s[1] = tiny_ctx;
    refused(&c, &e, KVS_E_LIMIT, "row 1: context full");
    kvs_session_free(tiny_ctx);
    assert_int_equal(kvs_batch_eval(NULL, &e, &err), KVS_E_INVAL);
    assert_int_equal(kvs_spec_next_rows(NULL, NULL, 0, &err), KVS_E_INVAL);
    assert_int_equal(kvs_batch_get_stats(NULL, NULL), KVS_E_INVAL);
    kvs_batch_free(NULL);
    crowd_close(&c);
    crowd_close(&other);
}

static void test_options(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig_open(&r, &t, 1);
    kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
    kvs_batch *b = NULL;
    o.max_rows = 65537;
    assert_int_equal(kvs_batch_new(r.ctx, r.model, &o, &b, &err), KVS_E_RANGE);
    o.max_rows = 8;
    o.max_tokens = 7;
    assert_int_equal(kvs_batch_new(r.ctx, r.model, &o, &b, &err), KVS_E_RANGE);
    o.max_tokens = 16;
    o.n_ctx = 64;
    assert_int_equal(kvs_batch_new(r.ctx, NULL, &o, &b, &err), KVS_E_INVAL);
    assert_null(b);
    spec_must(kvs_batch_new(r.ctx, r.model, &o, &b, &err), &err);
    /* a session in it: neither a longer context nor a larger block */
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_session *s = NULL;
    so.batch = b;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &so, &s, &err), KVS_E_RANGE);
    kvs_plan *plan = spec_plan_new(&r, &spec_plans[0], 64);
    so.plan = plan;
    so.block = 17;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &so, &s, &err), KVS_E_RANGE);
    so.block = 16;
    spec_must(kvs_session_new(r.ctx, r.model, &so, &s, &err), &err);
    kvs_session_free(s);
    kvs_plan_free(plan);
    kvs_batch_free(b);
    spec_rig_close(&r);
}

/* Angles of a stretched encoding depend on the context: such rows must agree with the batch. */
static void test_other_angles(void **state)
{
    (void)state;
    spec_rig r;
    tiny t = TINY_LLAMA;
    kvs_err err = {KVS_OK, 0, "", ""};
    t.arch = "phi3";
    t.longrope = 1;
    spec_rig_open(&r, &t, 1);
    kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
    kvs_batch *b = NULL;
    o.n_ctx = SPEC_MAX;
    spec_must(kvs_batch_new(r.ctx, r.model, &o, &b, &err), &err);
    for (int i = 0; i < 2; i++) {
        kvs_session *s = spec_session(&r, &spec_plans[0], i ? SPEC_MAX : 64, NULL);
        const int32_t token = 1;
        const int32_t *tokens[] = {&token};
        kvs_batch_step e = KVS_BATCH_STEP_INIT;
        e.n_rows = 1;
        e.sessions = &s;
        e.tokens = tokens;
        assert_int_equal(kvs_batch_eval(b, &e, &err), i ? KVS_OK : KVS_E_UNSUPPORTED);
        kvs_session_free(s);
    }
    kvs_batch_free(b);
    spec_rig_close(&r);
}

/* Every allocation of a batch and of steps fails once: all rows hold what they held. */
static void test_no_memory(void **state)
{
    (void)state;
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_rig r;
    tiny t = TINY_LLAMA;
    const spec_plan paged = {"f16", 0, 0, 0, 1, 0, 0};
    spec_rig_open(&r, &t, 1);
    kvs_sampler *greedy = spec_sampler(&r, 0.0f, 0);
    for (uint32_t i = 0; i < 2; i++) {
        spec_plain(&r, &paged, greedy, i, 5 + i, 40, &plain[i]);
    }
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &heap;
    long failed = 0;
    for (long k = 0, done = 0; !done; k++) {
        spec_rig f = r;
        kvs_session *s[2];
        kvs_batch *b = NULL;
        kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
        o.n_ctx = SPEC_MAX;
        assert_int_equal(kvs_ctx_new(&co, &f.ctx, NULL), KVS_OK);
        for (uint32_t i = 0; i < 2; i++) {
            s[i] = spec_session(&f, &paged, SPEC_MAX, NULL);
            spec_must(kvs_session_sync(s[i], plain[i].tokens, plain[i].n_prompt, NULL, &err), &err);
        }
        heap.fail_at = heap.calls + k;
        done = 1;
        kvs_status st = kvs_batch_new(f.ctx, r.model, &o, &b, &err);
        if (st != KVS_OK) {
            assert_int_equal(st, KVS_E_NOMEM);
            spec_must(kvs_batch_new(f.ctx, r.model, &o, &b, &err), &err);
            done = 0;
        }
        for (int i = 0; i < 24; i++) {
            const size_t before[2] = {held(s[0]), held(s[1])};
            const int32_t *tokens[2] = {plain[0].tokens + before[0], plain[1].tokens + before[1]};
            kvs_batch_step e = KVS_BATCH_STEP_INIT;
            e.n_rows = 2;
            e.sessions = s;
            e.tokens = tokens;
            st = kvs_batch_eval(b, &e, &err);
            for (uint32_t q = 0; q < 2; q++) {
                assert_int_equal(held(s[q]), before[q] + (st == KVS_OK));
                spec_same(s[q], &plain[q], "no memory");
            }
            if (st != KVS_OK) {
                assert_int_equal(st, KVS_E_NOMEM);
                done = 0;
            }
        }
        failed += !done;
        heap.fail_at = -1;
        for (uint32_t i = 0; i < 2; i++) {
            kvs_session_free(s[i]);
        }
        kvs_batch_free(b);
        kvs_ctx_free(f.ctx);
        assert_int_equal(heap.blocks, 0);
        assert_int_equal(heap.wrong, 0);
    }
    assert_true(failed >= 5);
    kvs_sampler_free(greedy);
    spec_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),      cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_tight),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_options),   cmocka_unit_test(test_other_angles),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
