/* SPDX-License-Identifier: MIT */
/* test_engine_prefix_cache.c: sessions that share prefixes, on tiny models: the bits with a cache are
 * those without for every plan and kind of model, at every boundary of blocks and windows; cancelled
 * prompts, drafts, salts, files, a directory behind it. Memory and threads: test_engine_prefix_memory.c */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/prefix_rig.h"
#include "support/remove_tree.h"

/* ---- the same bits */

static const size_t cuts[] = {1,  2,  4,  5,  7,  8,  15, 16, 17,  19,  20,  21,  23,  24,      25,
                              31, 32, 33, 47, 48, 49, 59, 60, 61,  63,  64,  65,  95,  96,      97,
                              99, 79, 80, 81, 98, 40, 41, 39, 112, 127, 128, 129, 143, N - TAIL};
#define N_CUTS (sizeof cuts / sizeof cuts[0])

/* A prompt leaves the first session's anywhere: all that is common is lent (of models with snapshots:
 * the second time), and the rest and what is decoded then have the bits of a session alone. */
static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        float want[N_VOCAB];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *first = session_of(&r, true, NULL);
        assert_int_equal(sync_to(first, N, N, 0), 0);
        for (size_t c = 0; c < N_CUTS; c++) {
            size_t at = cuts[c];
            for (uint32_t round = 1; round <= 2; round++) {
                uint32_t text = 2 * (uint32_t)c + round;
                cold_logits(&r, at + TAIL, at, text, want);
                kvs_session *s = session_of(&r, true, NULL);
                size_t reused = sync_to(s, at + TAIL, at, text);
                /* a snapshot less than a block ago is as good */
                bool lost = r.k->snapshots ? round == 2 && reused + 16 <= at
                                           : at >= r.k->first && reused < at;
                if (reused > at + TAIL - 1 || lost) {
                    fail_msg("%s, cut at %zu, round %u: %zu tokens reused", r.k->name, at, round,
                             reused);
                }
                kvs_reuse u = KVS_REUSE_INIT;
                assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
                assert_int_equal(u.n_shared, reused);
                same(s, want, &r, "lent", at);
                kvs_session_free(s);
            }
        }
        /* what was lent was not written to */
        cold_logits(&r, N, N, 0, want);
        same(first, want, &r, "lender", N);
        kvs_session *s = session_of(&r, true, NULL);
        kvs_session *cold = session_of(&r, false, NULL);
        assert_int_equal(sync_to(s, N, N, 0), N - 1); /* one gives the logits */
        (void)sync_to(cold, N, N, 0);
        for (int32_t t = 0; t < 40; t++) {
            int32_t id = (t * 31) % N_VOCAB;
            assert_int_equal(kvs_session_append(cold, &id, 1, NULL), KVS_OK);
            assert_int_equal(kvs_session_append(s, &id, 1, NULL), KVS_OK);
            assert_int_equal(kvs_session_append(first, &id, 1, NULL), KVS_OK);
            same(s, kvs_session_logits(cold), &r, "decoded", (size_t)t);
            same(first, kvs_session_logits(cold), &r, "decoded by the lender", (size_t)t);
        }
        kvs_session_free(cold);
        kvs_session_free(s);
        kvs_session_free(first);
        assert_int_equal(stats_of(&r).leases, 0);
        rig_close(&r);
    }
}

/* A session that goes back finds what its windows dropped, and what it leaves is found again. */
static void test_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        float want[N_VOCAB];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *s = session_of(&r, true, NULL);
        for (size_t c = 0; c < N_CUTS; c += 3) {
            size_t at = cuts[(c * 11) % N_CUTS];
            (void)sync_to(s, N, N, 0);
            size_t reused = sync_to(s, at + TAIL, at, 1);
            if (!r.k->snapshots && at >= r.k->first) {
                assert_true(reused >= at);
            }
            cold_logits(&r, at + TAIL, at, 1, want);
            same(s, want, &r, "back", at);
        }
        (void)sync_to(s, N, N, 0);
        int32_t id = 5;
        assert_int_equal(kvs_session_append(s, &id, 1, NULL), KVS_OK);
        kvs_session_free(s); /* an answer is kept when its session ends */
        s = session_of(&r, true, NULL);
        int32_t t[N + 3];
        size_t reused = 0;
        make_text(t, N + 3, N, 0);
        t[N] = id;
        assert_int_equal(kvs_session_sync(s, t, N + 3, &reused, NULL), KVS_OK);
        assert_int_equal(reused, N + 1);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* What a session computed and left for another text is there for others: the answer to its end, and
 * of the text that it went to every window on the way. */
static void test_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        float want[N_VOCAB];
        int32_t t[N];
        size_t reused = 0;
        kvs_err err = {KVS_OK, 0, "", ""};
        rig_open(&r, &kinds[i], NULL);
        kvs_session *s = session_of(&r, true, NULL);
        (void)sync_to(s, 100, N, 0);
        make_text(t, N, N, 0);
        for (size_t k = 100; k < 107; k++) {
            must(kvs_session_append(s, &t[k], 1, &err), &err);
        }
        (void)sync_to(s, N, 20, 5); /* leaves 107 tokens, keeps 20 */
        kvs_session *other = session_of(&r, true, NULL);
        must(kvs_session_sync(other, t, N, &reused, &err), &err);
        assert_int_equal(reused, 107);
        cold_logits(&r, N, N, 0, want);
        same(other, want, &r, "left", 107);
        make_text(t, N, 20, 5);
        t[70] = (t[70] + 1) % N_VOCAB;
        must(kvs_session_sync(other, t, 75, &reused, &err), &err);
        if (!r.k->snapshots && r.k->first <= 70) {
            assert_int_equal(reused, 70);
        }
        kvs_session_free(other);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* ---- what is kept, and what not */

static int stop_at(void *user, size_t done, size_t total)
{
    (void)total;
    return done >= *(const size_t *)user;
}

/* A prompt that is cancelled leaves what it has computed. */
static void test_cancelled(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_session *s = NULL;
        kvs_session_opts o = KVS_SESSION_OPTS_INIT;
        float want[N_VOCAB];
        int32_t t[N];
        size_t stop = 60;
        rig_open(&r, &kinds[i], NULL);
        o.plan = r.plan;
        o.prefix_cache = r.pc;
        o.block = 20;
        o.progress = stop_at;
        o.progress_user = &stop;
        assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, NULL), KVS_OK);
        make_text(t, N, N, 0);
        assert_int_equal(kvs_session_sync(s, t, N, NULL, NULL), KVS_E_CANCELLED);
        kvs_session *other = session_of(&r, true, NULL);
        if (r.k->first <= stop) {
            assert_int_equal(sync_to(other, N, N, 0), stop);
        } else {
            assert_true(sync_to(other, N, N, 0) <= stop);
        }
        cold_logits(&r, N, N, 0, want);
        same(other, want, &r, "after a cancelled one", stop);
        kvs_session_free(other);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* What rounds of drafts accepted is given, what they tried is not: another session goes on from the
 * whole answer, and its bits are those of a session alone. */
static uint32_t wrong_drafts(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out,
                             uint32_t n)
{
    (void)user;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (tokens[n_tokens - 1] + 7 * (int32_t)i) % N_VOCAB;
    }
    return n;
}

static void test_drafts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        kvs_spec *spec = NULL;
        size_t n = 0;
        size_t reused = 0;
        int32_t text[N_CTX];
        rig_open(&r, &kinds[i], NULL);
        kvs_session *s = session_of(&r, true, NULL);
        (void)sync_to(s, 50, 50, 0);
        o.draft = wrong_drafts;
        o.max_drafts = 3;
        o.flags = KVS_SPEC_FIXED;
        must(kvs_spec_new(s, &o, &spec, &err), &err);
        for (int round = 0; round < 30; round++) {
            must(kvs_spec_next(spec, &err), &err);
        }
        kvs_spec_free(spec);
        memcpy(text, kvs_session_tokens(s, &n), sizeof text);
        assert_true(n >= 80);
        kvs_session_free(s);
        text[n] = 3;
        s = session_of(&r, true, NULL);
        must(kvs_session_sync(s, text, n + 1, &reused, &err), &err);
        assert_int_equal(reused, n);
        kvs_session *cold = session_of(&r, false, NULL);
        must(kvs_session_sync(cold, text, n + 1, NULL, &err), &err);
        same(s, kvs_session_logits(cold), &r, "after drafts", n);
        kvs_session_free(cold);
        kvs_session_free(s);
        rig_close(&r);
    }
}

/* State of a file is another program's: it is gone on with, and never given. */
static void test_foreign(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    char path[] = "/tmp/kvstate-foreign-XXXXXX";
    kvs_prompt_cache *file = NULL;
    kvs_prompt_save_opts so = KVS_PROMPT_SAVE_OPTS_INIT;
    int32_t t[N];
    size_t reused = 0;
    rig_open(&r, &kinds[0], NULL);
    make_text(t, N, N, 0);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    kvs_session *s = session_of(&r, false, NULL);
    (void)sync_to(s, 100, N, 0);
    so.tokens = t;
    so.n_tokens = 100;
    must(kvs_prompt_cache_save(kvs_session_cache(s), &so, path, &err), &err);
    kvs_session_free(s);
    s = session_of(&r, true, NULL);
    must(kvs_prompt_cache_open(r.ctx, path, &file, &err), &err);
    must(kvs_session_load_prompt_cache(s, file, 0, &err), &err);
    kvs_prompt_cache_close(file);
    must(kvs_session_sync(s, t, N, &reused, &err), &err);
    assert_int_equal(reused, 100);
    kvs_session *other = session_of(&r, true, NULL);
    assert_int_equal(sync_to(other, 120, N, 0), 0);
    /* emptied, it computes and gives again */
    assert_int_equal(kvs_session_sync(s, NULL, 0, NULL, NULL), KVS_OK);
    assert_int_equal(sync_to(s, N, 0, 9), 0);
    assert_int_equal(sync_to(other, N, 0, 9), N - 1);
    kvs_session_free(other);
    kvs_session_free(s);
    (void)unlink(path);
    rig_close(&r);
}

/* Another salt, context of another length with the same encodings, other plan, other model. */
static void test_apart(void **state)
{
    (void)state;
    rig r;
    rig other;
    kvs_session *s = NULL;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    rig_open(&r, &kinds[0], NULL);
    rig_open(&other, &kinds[0], NULL);
    o.plan = r.plan;
    o.prefix_cache = r.pc;
    for (int i = 0; i < 4; i++) {
        static const char *const salts[] = {"", "tenant a", "tenant b", "tenant a"};
        o.prefix_salt = (kvs_bytes){salts[i], strlen(salts[i])};
        must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
        assert_int_equal(sync_to(s, N, N, 0), i == 3 ? N - 1 : 0);
        kvs_session_free(s);
    }
    o.prefix_salt = (kvs_bytes){NULL, 0};
    kvs_plan_opts po = r.k->plan;
    kvs_plan *plan = NULL;
    po.n_ctx = 200;
    must(kvs_plan_new(r.ctx, r.model, &po, &plan, &err), &err);
    o.plan = plan;
    must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
    assert_int_equal(sync_to(s, N, N, 0), N - 1);
    kvs_session_free(s);
    kvs_plan_free(plan);
    po.kv = "f32";
    must(kvs_plan_new(r.ctx, r.model, &po, &plan, &err), &err);
    o.plan = plan;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "plan"));
    o.plan = NULL;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    o.plan = r.plan;
    assert_int_equal(kvs_session_new(r.ctx, other.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "model"));
    o.pages = (kvs_pages *)(uintptr_t)kvs_prefix_cache_pages(other.pc);
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "pool"));
    o = (kvs_session_opts)KVS_SESSION_OPTS_INIT;
    o.prefix_salt = (kvs_bytes){"a", 1};
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_null(s);
    kvs_plan_free(plan);
    rig_close(&other);
    rig_close(&r);
}

static void test_refused(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache *pc = NULL;
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    rig_open(&r, &kinds[0], NULL);
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_INVAL);
    o.plan = r.plan;
    o.max_bytes = 1;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_LIMIT);
    o.max_bytes = 0;
    o.policy = KVS_RETAIN_CUSTOM;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_INVAL);
    kvs_plan *plan = NULL;
    must(kvs_plan_new(r.ctx, r.model, NULL, &plan, &err), &err);
    o.policy = KVS_RETAIN_LRU;
    o.plan = plan;
    assert_int_equal(kvs_prefix_cache_new(r.ctx, r.model, &o, &pc, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "layer 0 is not paged"));
    assert_null(pc);
    kvs_plan_free(plan);
    rig_close(&r);
}

/* The most uses of anything, as the policy is told: those of the first block. */
static double most_uses(void *user, const kvs_retain_info *info)
{
    uint32_t *most = user;
    *most = info->uses > *most ? info->uses : *most;
    return 0;
}

/* A prompt is one use of what it begins with, whatever it computes, gives and answers after that. */
static void test_uses_are_prompts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        int32_t t[N_CTX];
        size_t n = N;
        uint32_t uses = 0;
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        o.policy = KVS_RETAIN_CUSTOM;
        o.score = most_uses;
        o.score_user = &uses;
        rig_open(&r, &kinds[i], &o);
        kvs_session *a = session_of(&r, true, NULL);
        (void)sync_to(a, N, N, 0);
        assert_int_equal(uses, 1);
        kvs_session *b = session_of(&r, true, NULL);
        (void)sync_to(b, N, N, 0);
        if (uses != 2) {
            fail_msg("%s: %u uses", r.k->name, uses);
        }
        make_text(t, N, N, 0);
        for (; n < N + 40; n++) { /* an answer */
            t[n] = (int32_t)(n * 31 % N_VOCAB);
            must(kvs_session_append(b, &t[n], 1, &err), &err);
        }
        assert_int_equal(uses, 2);
        t[n++] = 7; /* the next turn, of what it holds */
        t[n++] = 8;
        must(kvs_session_sync(b, t, n, NULL, &err), &err);
        must(kvs_session_append(b, t, 20, &err), &err);
        assert_int_equal(uses, 3);
        kvs_session_free(b);
        assert_int_equal(uses, 3);
        must(kvs_session_sync(a, t, n, NULL, &err), &err);
        assert_int_equal(uses, 4);
        kvs_session_free(a);
        assert_int_equal(uses, 4);
        rig_close(&r);
    }
}

/* ---- the directory behind it */

static kvs_reuse reuse_of(const kvs_session *s)
{
    kvs_reuse u = KVS_REUSE_INIT;
    assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
    return u;
}

/* Memory, then disk, then memory again; what memory evicts is on disk; a restart finds it. */
static void test_disk(void **state)
{
    (void)state;
    static const size_t which[] = {0, 3, 5, 6, 8, 10};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        char dir[] = "/tmp/kvstate-tier-XXXXXX";
        /* on disk a recurrent state is that of some tokens before the end of the prompt */
        const size_t disk = which[i] == 10 ? N - 8 : N - 1;
        rig r;
        float want[N_VOCAB];
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        assert_non_null(mkdtemp(dir));
        o.dir = dir;
        rig_open(&r, &kinds[which[i]], &o);
        kvs_session *a = session_of(&r, true, NULL);
        (void)sync_to(a, N, N, 0);
        kvs_session *b = session_of(&r, true, NULL);
        assert_int_equal(sync_to(b, N, N, 0), N - 1);
        assert_int_equal(reuse_of(b).n_shared, N - 1);
        assert_int_equal(reuse_of(b).n_disk + reuse_of(b).n_memory, 0);
        assert_int_equal(kvs_session_flush(a, NULL), KVS_OK);
        kvs_session_free(a);
        kvs_session_free(b);
        kvs_prefix_cache_clear(r.pc); /* all of memory is evicted */
        cold_logits(&r, N, N, 0, want);
        for (int round = 0; round < 2; round++) {
            a = session_of(&r, true, NULL);
            const size_t held = round == 0 ? disk : N - 1;
            assert_int_equal(sync_to(a, N, N, 0), held);
            assert_int_equal(round == 0 ? reuse_of(a).n_disk : reuse_of(a).n_shared, held);
            assert_int_equal(round == 0 ? reuse_of(a).n_shared : reuse_of(a).n_disk, 0);
            same(a, want, &r, round == 0 ? "from disk" : "from memory again", N);
            kvs_session_free(a);
        }
        rig_close(&r);
        rig_open(&r, &kinds[which[i]], &o);
        a = session_of(&r, true, NULL);
        assert_int_equal(sync_to(a, N, N, 0), disk);
        assert_int_equal(reuse_of(a).n_disk, disk);
        same(a, want, &r, "after a restart", N);
        kvs_session_free(a);
        rig_close(&r);
        /* and a session with a store alone finds the same */
        kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
        rig_open(&r, &kinds[which[i]], NULL);
        a = session_of(&r, false, NULL);
        po.dir = dir;
        assert_int_equal(kvs_session_persist(a, &po, NULL), KVS_OK);
        assert_int_equal(sync_to(a, N, N, 0), disk);
        assert_int_equal(reuse_of(a).n_disk, disk);
        same(a, want, &r, "by a store alone", N);
        kvs_session_free(a);
        rig_close(&r);
        remove_tree(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits), cmocka_unit_test(test_back),
        cmocka_unit_test(test_left),      cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_apart),     cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_foreign),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_disk),      cmocka_unit_test(test_uses_are_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
