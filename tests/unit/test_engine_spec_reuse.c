/* SPDX-License-Identifier: MIT */
/* test_engine_spec_reuse.c: a draft model's state that is lent by a prefix cache or read from a store:
 * tokens, logits and what is accepted are those of a drafter that computed all of it; what is of other
 * tokens, models or plans is never taken; budgets, failing memory and damaged files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>
#include <dirent.h>
#include <unistd.h>

#include "engine/share.h"
#include "engine/speculate_priv.h"
#include "support/fail_alloc.h"
#include "support/remove_tree.h"
#include "support/spec_rig.h"

/* store/prefix_priv.h, which does not go with the engine's own headers. */
bool kvs__prefix_check(const kvs_prefix *ix);

#define PROMPT 70u
#define LEN    110u
#define DRAFTS 4u

typedef struct pair {
    const char *name;
    tiny target;
    spec_plan plan;
    tiny draft;
    spec_plan draft_plan;
    bool alike; /* the same model and plan: all drafts are right */
} pair;

static const pair pairs[] = {
    {"itself", TINY_LLAMA, {"f16", .kv_block = 16}, TINY_LLAMA, {"f16", .kv_block = 16}, true},
    {"quantised", TINY_LLAMA, {"q4", .kv_block = 8}, TINY_LLAMA, {"affine8:32", .kv_block = 8}, 0},
    {"windows", TINY_GEMMA, {"f16", .kv_block = 16}, TINY_GEMMA, {"f16", .kv_block = 16}, true},
    {"a window's sinks",
     TINY_LLAMA,
     {"q8", 20, 5, 0, 8, 32, 0},
     TINY_GEMMA,
     {"affine4:32", 0, 0, 0, 8, 24, 0},
     false},
    {"delayed",
     TINY_LLAMA,
     {"q4", .start = 60, .kv_block = 5},
     TINY_LLAMA,
     {"q8", .start = 33, .kv_block = 5},
     false},
    {"hybrid, recurrent",
     TINY_QWEN3NEXT,
     {"f16", .kv_block = 16},
     TINY_MAMBA2,
     {"f16", .kv_block = 0},
     false},
    {"recurrent itself",
     TINY_MAMBA2,
     {"f16", .kv_block = 0},
     TINY_MAMBA2,
     {"f16", .kv_block = 0},
     true},
    {"hybrid for full",
     TINY_LLAMA,
     {"f16", .kv_block = 16},
     TINY_QWEN3NEXT,
     {"f16", .kv_block = 16},
     false},
    {"full for recurrent",
     TINY_MAMBA2,
     {"f16", .kv_block = 0},
     TINY_LLAMA,
     {"q8", .kv_block = 16},
     false},
    {"borrowed",
     TINY_GEMMA4,
     {"f16", 0, 0, 0, 16, 32, 0},
     TINY_DEEPSEEK,
     {"f16", .kv_block = 16},
     false},
};
#define N_PAIRS (sizeof pairs / sizeof pairs[0])

/* A directory of this test. */
static char dir[64];

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/dev/shm/kvstate-spec-XXXXXX");
    if (mkdtemp(dir)) {
        return 0;
    }
    (void)snprintf(dir, sizeof dir, "/tmp/kvstate-spec-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_tree(dir);
    return 0;
}

typedef struct rig {
    const pair *p;
    kvs_ctx *ctx; /* of sessions and the cache */
    spec_rig target, draft;
    kvs_plan *plan, *draft_plan;
    kvs_prefix_cache *pc; /* NULL: none */
    const char *dir;      /* of sessions; NULL: none */
    kvs_sampler *greedy;
} rig;

static tiny sized(tiny t)
{
    if (tiny_is(&t, "llama") || tiny_is(&t, "gemma3")) {
        t.dim = 64; /* of whole groups */
    }
    return t;
}

static void rig_open(rig *r, const pair *p)
{
    tiny t = sized(p->target);
    tiny d = sized(p->draft);
    memset(r, 0, sizeof *r);
    r->p = p;
    spec_rig_open(&r->target, &t, 1);
    if (p->alike) {
        r->draft = r->target;
    } else {
        spec_rig_open(&r->draft, &d, 1);
    }
    r->ctx = r->target.ctx;
    r->plan = spec_plan_new(&r->target, &p->plan, SPEC_MAX);
    r->draft_plan = spec_plan_new(&r->draft, &p->draft_plan, SPEC_MAX);
    r->greedy = spec_sampler(&r->target, 0.0f, 0);
}

static kvs_status add_cache(rig *r, const kvs_prefix_cache_opts *opts, kvs_err *err)
{
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o = opts ? *opts : o;
    o.plan = r->plan;
    o.draft_model = r->draft.model;
    o.draft_plan = r->draft_plan;
    return kvs_prefix_cache_new(r->ctx, r->target.model, &o, &r->pc, err);
}

static void rig_close(rig *r)
{
    kvs_prefix_cache_free(r->pc);
    kvs_sampler_free(r->greedy);
    kvs_plan_free(r->plan);
    kvs_plan_free(r->draft_plan);
    if (!r->p->alike) {
        spec_rig_close(&r->draft);
    }
    spec_rig_close(&r->target);
}

static spec_text texts[3];

/* What a drafter did: the cold ones are the reference. */
typedef struct answer {
    kvs_spec_stats st;
    kvs_reuse first; /* of the drafter, after the first round */
    kvs_reuse last;
    size_t lent; /* to the target */
} answer;

static kvs_status open_session(rig *r, kvs_session **out, kvs_err *err)
{
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = r->plan;
    so.prefix_cache = r->pc;
    kvs_status st = kvs_session_new(r->ctx, r->target.model, &so, out, err);
    if (st == KVS_OK && r->dir) {
        kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
        po.dir = r->dir;
        st = kvs_session_persist(*out, &po, err);
        if (st != KVS_OK) {
            kvs_session_free(*out);
            *out = NULL;
        }
    }
    return st;
}

static kvs_spec_opts opts_of(const rig *r)
{
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    o.flags = KVS_SPEC_FIXED;
    o.max_drafts = DRAFTS;
    o.sampler = r->greedy;
    o.draft_model = r->draft.model;
    o.draft_plan = r->draft_plan;
    return o;
}

/* The first n tokens of a text, then rounds up to its end, each compared. Where memory fails a call is
 * made once more. */
static answer talk(rig *r, const spec_text *t, size_t n, fail_alloc *heap)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = NULL;
    kvs_spec *spec = NULL;
    kvs_spec_opts o = opts_of(r);
    answer a;
    memset(&a, 0, sizeof a);
    a.st = (kvs_spec_stats)KVS_SPEC_STATS_INIT;
    a.first = (kvs_reuse)KVS_REUSE_INIT;
    a.last = a.first;
    for (int i = 0; !s; i++) {
        kvs_status st = open_session(r, &s, &err);
        assert_true(st == KVS_OK || (heap && st == KVS_E_NOMEM && i == 0));
    }
    kvs_status st = kvs_session_sync(s, t->tokens, n, &a.lent, &err);
    if (heap && st == KVS_E_NOMEM) {
        st = kvs_session_sync(s, t->tokens, n, &a.lent, &err);
    }
    spec_must(st, &err);
    spec_same(s, t, r->p->name);
    st = kvs_spec_new(s, &o, &spec, &err);
    if (heap && st == KVS_E_NOMEM) {
        st = kvs_spec_new(s, &o, &spec, &err);
    }
    spec_must(st, &err);
    for (bool first = true; (void)kvs_session_tokens(s, &n), n + DRAFTS + 1 <= t->n;) {
        st = kvs_spec_next(spec, &err);
        if (st != KVS_OK && !(heap && st == KVS_E_NOMEM)) {
            spec_must(st, &err);
        }
        spec_same(s, t, r->p->name);
        if (first) {
            assert_int_equal(kvs_spec_get_reuse(spec, &a.first), KVS_OK);
            first = false;
        }
    }
    assert_int_equal(kvs_spec_get_stats(spec, &a.st), KVS_OK);
    assert_int_equal(kvs_spec_get_reuse(spec, &a.last), KVS_OK);
    kvs_spec_free(spec);
    if (r->dir && !heap) {
        assert_int_equal(kvs_session_flush(s, NULL), KVS_OK);
    }
    kvs_session_free(s);
    return a;
}

/* The drafter made the same drafts as one that computed everything. */
static void same_drafts(const rig *r, const answer *a, const answer *cold)
{
    if (a->st.n_drafts != cold->st.n_drafts || a->st.n_accepted != cold->st.n_accepted) {
        fail_msg("%s: %llu of %llu drafts accepted, a cold one %llu of %llu", r->p->name,
                 (unsigned long long)a->st.n_accepted, (unsigned long long)a->st.n_drafts,
                 (unsigned long long)cold->st.n_accepted, (unsigned long long)cold->st.n_drafts);
    }
    assert_true(!r->p->alike || a->st.n_accepted == a->st.n_drafts);
}

static void had(const rig *r, const char *what, uint64_t got, uint64_t want)
{
    if (got != want) {
        fail_msg("%s, %s: %llu tokens of the drafter's state, not %llu", r->p->name, what,
                 (unsigned long long)got, (unsigned long long)want);
    }
}

/* A text that leaves the first one after `common` tokens. */
static void branch(const rig *r, size_t common, spec_text *t)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = spec_session(&r->target, &r->p->plan, SPEC_MAX, NULL);
    *t = texts[0];
    for (size_t i = common; i < PROMPT; i++) {
        t->tokens[i] = (t->tokens[i] + 1 + (int32_t)(i % 7)) % SPEC_VOCAB;
    }
    spec_must(kvs_session_sync(s, t->tokens, PROMPT, NULL, &err), &err);
    memcpy(t->logits[PROMPT - 1], kvs_session_logits(s), sizeof t->logits[0]);
    for (size_t i = PROMPT; i < LEN; i++) {
        spec_must(kvs_session_sample(s, r->greedy, &t->tokens[i], &err), &err);
        spec_must(kvs_session_append(s, &t->tokens[i], 1, &err), &err);
        memcpy(t->logits[i], kvs_session_logits(s), sizeof t->logits[0]);
    }
    kvs_session_free(s);
}

static void start(rig *r, const pair *p)
{
    rig_open(r, p);
    spec_plain(&r->target, &p->plan, r->greedy, 3, PROMPT, LEN, &texts[0]);
}

/* ---- memory */

static void test_lent(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PAIRS; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        start(&r, &pairs[i]);
        branch(&r, 45, &texts[1]);
        answer cold = talk(&r, &texts[0], PROMPT, NULL);
        answer cold2 = talk(&r, &texts[1], PROMPT, NULL);
        answer late = talk(&r, &texts[0], 95, NULL);
        had(&r, "cold", cold.st.draft_reused, 0);
        spec_must(add_cache(&r, NULL, &err), &err);
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "first", a.st.draft_reused, 0);
        same_drafts(&r, &a, &cold);
        /* the same prompt: both parts are lent, the drafter needs one token more */
        a = talk(&r, &texts[0], PROMPT, NULL);
        assert_int_equal(a.lent, PROMPT - 1);
        had(&r, "the same", a.first.n_shared, PROMPT);
        had(&r, "the same", a.st.draft_reused, PROMPT);
        assert_true(a.st.draft_computed < LEN - PROMPT + 1);
        same_drafts(&r, &a, &cold);
        /* one that goes on where rounds had settled, and one that leaves it */
        a = talk(&r, &texts[0], 95, NULL);
        assert_true(a.first.n_shared >= PROMPT && a.first.n_shared <= 95);
        same_drafts(&r, &a, &late);
        a = talk(&r, &texts[1], PROMPT, NULL);
        assert_true(a.first.n_shared <= 45);
        same_drafts(&r, &a, &cold2);
        assert_true(kvs__prefix_check(r.pc->index));
        kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
        assert_int_equal(kvs_prefix_cache_get_stats(r.pc, &st), KVS_OK);
        assert_true(st.draft_hits >= 2 && st.draft_hits <= st.draft_lookups);
        assert_true(st.draft_hit_tokens >= 2 * PROMPT);
        kvs_prefix_cache_clear(r.pc); /* of both */
        assert_int_equal(kvs_prefix_cache_get_stats(r.pc, &st), KVS_OK);
        assert_true(st.nodes == 0 && st.pages == 0);
        a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "cleared", a.first.n_shared, 0);
        rig_close(&r);
    }
}

/* Entries of both under one limit: it holds, whatever goes, and what is lent is right. */
static void test_budget(void **state)
{
    (void)state;
    static const size_t which[] = {0, 3, 5, 7};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
        uint64_t evicted = 0;
        start(&r, &pairs[which[i]]);
        branch(&r, 20, &texts[1]);
        branch(&r, 50, &texts[2]);
        spec_must(add_cache(&r, NULL, &err), &err);
        (void)talk(&r, &texts[0], PROMPT, NULL);
        assert_int_equal(kvs_prefix_cache_get_stats(r.pc, &st), KVS_OK);
        for (size_t part = 1; part < 6; part++) {
            kvs_prefix_cache_free(r.pc);
            r.pc = NULL;
            o.policy = (kvs_retain_policy)(part % 2);
            o.max_bytes = st.bytes * (part + 3) / 6;
            if (add_cache(&r, &o, &err) != KVS_OK) {
                continue; /* does not hold what is empty */
            }
            for (int k = 0; k < 9; k++) {
                (void)talk(&r, &texts[k * k % 3], PROMPT, NULL);
                kvs_prefix_stats now = KVS_PREFIX_STATS_INIT;
                assert_int_equal(kvs_prefix_cache_get_stats(r.pc, &now), KVS_OK);
                assert_true(now.peak_bytes <= o.max_bytes);
                assert_true(kvs__prefix_check(r.pc->index));
                evicted += now.evicted + now.evicted_windows;
            }
        }
        assert_true(evicted > 0);
        rig_close(&r);
    }
}

/* Does the pool hold the text, decoded plainly? */
static bool holds_text(rig *r)
{
    kvs_session *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    spec_must(open_session(r, &s, &err), &err);
    kvs_status st = kvs_session_sync(s, texts[0].tokens, LEN, NULL, &err);
    kvs_session_free(s);
    kvs_prefix_cache_clear(r->pc);
    return st == KVS_OK;
}

/* Pools of less and less room: as long as one holds the text, answers go on, if without drafts. */
static void test_small_pool(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    kvs_pages_stats st = KVS_PAGES_STATS_INIT;
    start(&r, &pairs[0]);
    answer cold = talk(&r, &texts[0], PROMPT, NULL);
    spec_must(add_cache(&r, NULL, &err), &err);
    assert_true(holds_text(&r));
    assert_int_equal(kvs_pages_get_stats(kvs_prefix_cache_pages(r.pc), &st), KVS_OK);
    size_t step = st.peak_bytes / 24;
    int fewer = 0;
    int gave_up = 0;
    for (o.pool_bytes = st.peak_bytes + 24 * step; o.pool_bytes > step; o.pool_bytes -= step) {
        kvs_prefix_cache_free(r.pc);
        r.pc = NULL;
        if (add_cache(&r, &o, &err) != KVS_OK || !holds_text(&r)) {
            break;
        }
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        fewer += a.st.n_drafts < cold.st.n_drafts;
        gave_up += strstr(a.last.reason, "no memory for both") != NULL;
        assert_int_equal(kvs_pages_get_stats(kvs_prefix_cache_pages(r.pc), &st), KVS_OK);
        assert_true(st.peak_bytes <= o.pool_bytes);
    }
    assert_true(fewer > 0);
    assert_true(gave_up > 0);
    rig_close(&r);
}

/* ---- disk */

static void new_dir(const rig *r, char *dst, size_t n)
{
    static int count;
    (void)r;
    (void)snprintf(dst, n, "%s/%d", dir, count++);
}

static void test_restored(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PAIRS; i++) {
        rig r;
        char own[128];
        start(&r, &pairs[i]);
        branch(&r, 45, &texts[1]);
        answer cold = talk(&r, &texts[0], PROMPT, NULL);
        answer cold2 = talk(&r, &texts[1], PROMPT, NULL);
        new_dir(&r, own, sizeof own);
        r.dir = own;
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "first", a.first.n_disk, 0);
        same_drafts(&r, &a, &cold);
        a = talk(&r, &texts[0], PROMPT, NULL); /* another session: as after a restart */
        bool snapshots = tiny_is(&r.p->target, "mamba2") || tiny_is(&r.p->target, "qwen3next");
        assert_true(a.lent == PROMPT - 1 || (snapshots && a.lent == PROMPT - 8));
        snapshots = tiny_is(&r.p->draft, "mamba2") || tiny_is(&r.p->draft, "qwen3next");
        assert_int_equal(a.first.n_disk, a.st.draft_reused);
        assert_int_equal(a.first.n_disk, a.st.draft_restored);
        had(&r, "the same", a.first.n_disk, snapshots ? PROMPT - 8 : PROMPT);
        same_drafts(&r, &a, &cold);
        a = talk(&r, &texts[1], PROMPT, NULL);
        assert_true(a.first.n_disk <= 45);
        same_drafts(&r, &a, &cold2);
        rig_close(&r);
    }
}

/* Memory in front of a directory: each tier gives both. */
static void test_both_tiers(void **state)
{
    (void)state;
    static const size_t which[] = {0, 3, 6};
    for (size_t i = 0; i < sizeof which / sizeof which[0]; i++) {
        rig r;
        char own[128];
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        start(&r, &pairs[which[i]]);
        new_dir(&r, own, sizeof own);
        answer cold = talk(&r, &texts[0], PROMPT, NULL);
        o.dir = own;
        spec_must(add_cache(&r, &o, &err), &err);
        (void)talk(&r, &texts[0], PROMPT, NULL);
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "memory", a.first.n_shared, PROMPT);
        kvs_prefix_cache_free(r.pc);
        r.pc = NULL;
        spec_must(add_cache(&r, &o, &err), &err);
        a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "disk", a.first.n_disk, PROMPT);
        same_drafts(&r, &a, &cold);
        a = talk(&r, &texts[0], PROMPT, NULL); /* what came from disk is in memory, too */
        had(&r, "memory again", a.first.n_shared, PROMPT);
        same_drafts(&r, &a, &cold);
        rig_close(&r);
    }
}

/* A byte of each block of saved state is another: all of it is computed, and the reason told. */
static void test_damaged(void **state)
{
    (void)state;
    rig r;
    char own[128];
    char path[512];
    start(&r, &pairs[1]);
    new_dir(&r, own, sizeof own);
    answer cold = talk(&r, &texts[0], PROMPT, NULL);
    r.dir = own;
    (void)talk(&r, &texts[0], PROMPT, NULL);
    (void)snprintf(path, sizeof path, "%s/blocks", own);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        (void)snprintf(path, sizeof path, "%s/blocks/%s", own, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r+b");
        if (f) {
            assert_int_equal(fseek(f, -3, SEEK_END), 0);
            int c = fgetc(f);
            assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
            assert_int_not_equal(fputc(c ^ 1, f), EOF);
            assert_int_equal(fclose(f), 0);
        }
    }
    (void)closedir(d);
    answer a = talk(&r, &texts[0], PROMPT, NULL);
    had(&r, "damaged", a.first.n_disk, 0);
    assert_true(a.first.reason[0] != '\0');
    same_drafts(&r, &a, &cold);
    rig_close(&r);
}

/* ---- apart */

/* State of another draft model, or of another plan of it, is nobody's, in memory and on disk. */
static void test_apart(void **state)
{
    (void)state;
    static const spec_plan other_plan = {"q4", .kv_block = 16};
    rig r;
    rig other;
    char own[128];
    kvs_err err = {KVS_OK, 0, "", ""};
    start(&r, &pairs[0]);
    pair p = pairs[0];
    p.target.seed = 99;
    rig_open(&other, &p);
    kvs_plan *plans[] = {r.draft_plan, spec_plan_new(&r.draft, &other_plan, SPEC_MAX)};
    kvs_model *models[] = {r.draft.model, other.target.model};
    new_dir(&r, own, sizeof own);
    spec_must(add_cache(&r, NULL, &err), &err);
    for (int tier = 0; tier < 2; tier++) {
        r.dir = tier ? own : NULL;
        if (tier) {
            kvs_prefix_cache_free(r.pc);
            r.pc = NULL;
        }
        r.draft.model = models[0];
        r.draft_plan = plans[0];
        (void)talk(&r, &texts[0], PROMPT, NULL);
        for (int i = 0; i < 3; i++) {
            r.draft.model = models[i == 2];
            r.draft_plan = plans[i == 1];
            answer a = talk(&r, &texts[0], PROMPT, NULL);
            had(&r, "another's", a.st.draft_reused, i == 0 ? PROMPT : 0);
            assert_int_equal(a.lent, PROMPT - 1);
            assert_true(i == 0 || a.first.reason[0] != '\0');
            assert_true(i == 0 || tier || strstr(a.first.reason, "no part"));
        }
    }
    r.draft.model = models[0];
    r.draft_plan = plans[0];
    kvs_plan_free(plans[1]);
    rig_close(&other);
    rig_close(&r);
}

/* Without a plan of its own the drafter has that of the cache's part. */
static void test_no_draft_plan(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PAIRS; i += 2) {
        rig r;
        kvs_err err = {KVS_OK, 0, "", ""};
        start(&r, &pairs[i]);
        kvs_plan *plan = r.draft_plan;
        r.draft_plan = NULL;
        spec_must(add_cache(&r, NULL, &err), &err);
        (void)talk(&r, &texts[0], PROMPT, NULL);
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        had(&r, "no plan", a.first.n_shared, PROMPT);
        r.draft_plan = plan;
        rig_close(&r);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const spec_plan ring = {"f16", 0, 0, 0, 0, 0, 0};
    static const spec_plan wide = {"f16", .kv_block = 32};
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    start(&r, &pairs[0]);
    kvs_plan *plan = r.draft_plan;
    r.draft_plan = spec_plan_new(&r.draft, &ring, SPEC_MAX);
    assert_int_equal(add_cache(&r, NULL, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "draft model"));
    kvs_plan_free(r.draft_plan);
    r.draft_plan = spec_plan_new(&r.draft, &wide, SPEC_MAX);
    assert_int_equal(add_cache(&r, NULL, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "32"));
    kvs_plan_free(r.draft_plan);
    r.draft_plan = plan;
    kvs_model *model = r.draft.model;
    r.draft.model = NULL;
    assert_int_equal(add_cache(&r, NULL, &err), KVS_E_INVAL);
    r.draft.model = model;
    assert_null(r.pc);
    assert_int_equal(kvs_spec_get_reuse(NULL, NULL), KVS_E_INVAL);
    rig_close(&r);
}

/* ---- memory fails */

/* Each allocation of two conversations in a row, the second one warm. */
static void check_failing(const pair *p, bool disk, long stride)
{
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    start(&r, p);
    kvs_ctx *ctx = r.ctx;
    bool over = false;
    for (long k = 0; !over; k += stride) {
        fail_alloc heap = FAIL_ALLOC_INIT;
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        char own[128];
        co.n_threads = 1;
        co.alloc = fail_alloc_take;
        co.free = fail_alloc_give;
        co.alloc_user = &heap;
        assert_int_equal(kvs_ctx_new(&co, &r.ctx, NULL), KVS_OK);
        new_dir(&r, own, sizeof own);
        r.dir = disk ? own : NULL;
        if (!disk) {
            spec_must(add_cache(&r, NULL, &err), &err);
        }
        (void)talk(&r, &texts[0], PROMPT, NULL);
        long at = atomic_load(&heap.calls) + k;
        atomic_store(&heap.fail_at, at);
        (void)talk(&r, &texts[0], PROMPT, &heap);
        over = atomic_load(&heap.calls) <= at;
        atomic_store(&heap.fail_at, -1);
        answer a = talk(&r, &texts[0], PROMPT, NULL);
        assert_true(a.st.n_drafts > 0);
        kvs_prefix_cache_free(r.pc);
        r.pc = NULL;
        kvs_ctx_free(r.ctx);
        assert_int_equal(atomic_load(&heap.blocks), 0);
        assert_int_equal(atomic_load(&heap.wrong), 0);
        remove_tree(own);
    }
    r.ctx = ctx;
    r.dir = NULL;
    rig_close(&r);
}

static void test_alloc_fails(void **state)
{
    (void)state;
    check_failing(&pairs[3], false, 1);
    check_failing(&pairs[5], false, 1);
    check_failing(&pairs[0], true, 3);
    check_failing(&pairs[6], true, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent),       cmocka_unit_test(test_budget),
        cmocka_unit_test(test_small_pool), cmocka_unit_test(test_restored),
        cmocka_unit_test(test_both_tiers), cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_apart),      cmocka_unit_test(test_no_draft_plan),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_alloc_fails),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
