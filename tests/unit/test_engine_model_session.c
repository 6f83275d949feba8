/* SPDX-License-Identifier: MIT */
/* test_engine_model_session.c: on the two real models, the same bits of logits for every block size,
 * number of threads, set of kernels, layout and way to a prefix. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "kvstate/engine.h"
#include "support/models.h"

static const char text[] =
    "Memory is the faculty of the mind by which data or information is encoded, stored, and "
    "retrieved when needed. It is the retention of information over time for the purpose of "
    "influencing future action. If past events could not be remembered, it would be impossible for "
    "language, relationships, or personal identity to develop. ";

typedef struct how {
    const char *kv;
    uint32_t threads, tiers_off, block, max_block, flags;
    size_t n_tokens, from; /* logits of tokens from .. n_tokens - 1 */
    int detour;            /* reach the prefix through another text, in steps */
} how;

typedef struct digest {
    uint64_t hash;
    size_t rows;
} digest;

static int add_row(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    digest *d = user;
    (void)pos;
    for (size_t i = 0; i < n_vocab; i++) {
        uint32_t bits = 0;
        memcpy(&bits, &logits[i], sizeof bits);
        d->hash = (d->hash ^ bits) * UINT64_C(0x100000001b3);
    }
    d->rows++;
    return 0;
}

static void must(kvs_status st, const kvs_err *err)
{
    if (st != KVS_OK) {
        fail_msg("%d: %s", st, err->msg);
    }
}

static size_t encode(const kvs_model *m, int32_t *ids, size_t cap)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t n = 0;
    size_t used = 0;
    while (used < cap) { /* the text again and again */
        int32_t part[200];
        must(kvs_tokenizer_encode(kvs_model_tokenizer(m), text, sizeof text - 1, 0, part, 200, &n,
                                  &err),
             &err);
        n = n < cap - used ? n : cap - used;
        memcpy(ids + used, part, n * sizeof *part);
        used += n;
    }
    return used;
}

static digest run(const char *path, const how *h)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx *ctx = NULL;
    kvs_model *m = NULL;
    kvs_plan *plan = NULL;
    kvs_session *s = NULL;
    static int32_t ids[1024];
    digest d = {UINT64_C(0xcbf29ce484222325), 0};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = h->threads ? h->threads : 2;
    co.tiers_off = h->tiers_off;
    must(kvs_ctx_new(&co, &ctx, &err), &err);
    must(kvs_model_open(ctx, path, NULL, &m, &err), &err);
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = h->kv;
    po.n_ctx = 2048;
    po.max_block = h->max_block;
    po.flags = h->flags;
    must(kvs_plan_new(ctx, m, &po, &plan, &err), &err);
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = plan;
    so.block = h->block;
    must(kvs_session_new(ctx, m, &so, &s, &err), &err);
    (void)encode(m, ids, h->n_tokens);
    if (h->detour) {
        int32_t other = ids[h->from - 3];
        size_t reused = 0;
        ids[h->from - 3] = ids[0];
        must(kvs_session_sync(s, ids, h->from + 5, &reused, &err), &err);
        ids[h->from - 3] = other;
        must(kvs_session_sync(s, ids, h->from - 2, &reused, &err), &err);
        assert_int_equal(reused, h->from - 3);
        must(kvs_session_append(s, ids + h->from - 2, 2, &err), &err);
    }
    size_t held = h->detour ? h->from : 0;
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = ids + held;
    e.n_tokens = h->n_tokens - held;
    e.logits_from = h->from - held;
    e.on_logits = add_row;
    e.user = &d;
    must(kvs_session_eval(s, &e, &err), &err);
    assert_int_equal(d.rows, h->n_tokens - h->from);
    kvs_session_free(s);
    kvs_plan_free(plan);
    kvs_model_close(m);
    kvs_ctx_free(ctx);
    return d;
}

static void same(const char *path, const how *h, digest want, const char *what)
{
    digest d = run(path, h);
    if (d.hash != want.hash) {
        fail_msg("kv %s, %s: other bits", h->kv, what);
    }
}

static void check_ways(const char *file)
{
    static const char *const plans[] = {"f16", "q8", "q4"};
    char path[512];
    if (!kvs_test_model(file, path, sizeof path)) {
        skip();
    }
    for (size_t p = 0; p < sizeof plans / sizeof plans[0]; p++) {
        how base = {.kv = plans[p], .n_tokens = 72, .from = 60};
        digest want = run(path, &base);
        how h = base;
        h.block = 1;
        same(path, &h, want, "blocks of 1");
        h.block = 7;
        h.threads = 1;
        same(path, &h, want, "blocks of 7, one thread");
        h.block = 64;
        h.tiers_off = KVS_TIER_AVX512;
        same(path, &h, want, "blocks of 64, without AVX-512");
        h = base;
        h.detour = 1;
        same(path, &h, want, "another text before");
        /* the last token of all must matter, or this proves nothing */
        h = base;
        h.n_tokens = 71;
        assert_true(run(path, &h).hash != want.hash);
    }
    how few = {.kv = "q4", .n_tokens = 6, .from = 3};
    digest want = run(path, &few);
    few.tiers_off = KVS_TIER_ALL;
    same(path, &few, want, "reference kernels");
}

static void test_smollm2(void **state)
{
    (void)state;
    check_ways(KVS_TEST_SMOLLM2);
}

static void test_gemma3(void **state)
{
    (void)state;
    check_ways(KVS_TEST_GEMMA3);
}

/* Past the window of 512: a ring that wrapped against layers that kept all. */
static void test_gemma3_ring(void **state)
{
    (void)state;
    char path[512];
    if (!kvs_test_model(KVS_TEST_GEMMA3, path, sizeof path)) {
        skip();
    }
    how h = {.kv = "q8", .n_tokens = 580, .from = 570, .max_block = 32, .block = 32};
    digest want = run(path, &h);
    h.block = 0;
    h.max_block = 512;
    h.flags = KVS_PLAN_FULL_WINDOW;
    same(path, &h, want, "no ring, blocks of 512");
    h.detour = 1;
    h.flags = 0;
    h.max_block = 64;
    same(path, &h, want, "a ring, another text before");
    h.kv = "paged/64:q8";
    same(path, &h, want, "paged, another text before");
    h.kv = "paged/17:q8";
    h.detour = 0;
    h.max_block = 32;
    h.block = 32;
    same(path, &h, want, "paged in blocks of 17");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_gemma3_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
