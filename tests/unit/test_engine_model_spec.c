/* SPDX-License-Identifier: MIT */
/* test_engine_model_spec.c: on the two real models, eight rows of different plans with unequal
 * acceptance, and n-gram drafts on a text that repeats: the same bits of logits as each row alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "kvstate/engine.h"
#include "support/models.h"

#define ROWS  8
#define N_NEW 24
#define CTX   1024

static const char text[] =
    "Memory is the faculty of the mind by which data or information is encoded, stored, and "
    "retrieved when needed. It is the retention of information over time for the purpose of "
    "influencing future action. If past events could not be remembered, it would be impossible for "
    "language, relationships, or personal identity to develop. ";

typedef struct row {
    const char *kv;
    uint32_t window, sinks, start, kv_block, n_prompt;
    int32_t tokens[CTX];
    uint64_t hash[CTX]; /* of the logits after each token */
    size_t n;
    uint32_t wrong;
    kvs_session *s;
    kvs_spec *spec;
} row;

static row rows[ROWS] = {
    {.kv = "f16", .n_prompt = 90, .wrong = 3},
    {.kv = "q8", .n_prompt = 41, .wrong = 0},
    {.kv = "q4", .n_prompt = 57, .wrong = 1},
    {.kv = "f32", .n_prompt = 20, .wrong = 4},
    {.kv = "k8v4", .n_prompt = 66, .wrong = 2, .kv_block = 16},
    {.kv = "q4", .n_prompt = 120, .wrong = 5, .window = 24, .sinks = 4},
    {.kv = "q2", .n_prompt = 33, .wrong = 7, .start = 40},
    {.kv = "f16", .n_prompt = 640, .wrong = 6},
};

static void must(kvs_status st, const kvs_err *err)
{
    if (st < KVS_OK) {
        fail_msg("%s: %s", kvs_status_name(st), err->msg);
    }
}

static uint64_t hash_of(const kvs_session *s, size_t n_vocab)
{
    const float *logits = kvs_session_logits(s);
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    assert_non_null(logits);
    for (size_t i = 0; i < n_vocab; i++) {
        uint32_t bits = 0;
        memcpy(&bits, &logits[i], sizeof bits);
        h = (h ^ bits) * UINT64_C(0x100000001b3);
    }
    return h;
}

static void encode(const kvs_model *m, row *r, size_t skip)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    for (r->n = 0; r->n < r->n_prompt;) { /* the text again and again */
        int32_t part[200];
        size_t n = 0;
        must(kvs_tokenizer_encode(kvs_model_tokenizer(m), text + skip, sizeof text - 1 - skip, 0,
                                  part, 200, &n, &err),
             &err);
        n = n < r->n_prompt - r->n ? n : r->n_prompt - r->n;
        memcpy(r->tokens + r->n, part, n * sizeof *part);
        r->n += n;
    }
}

static kvs_session *new_session(kvs_ctx *ctx, const kvs_model *m, const row *r, kvs_batch *b)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_plan *plan = NULL;
    kvs_session *s = NULL;
    po.kv = r->kv;
    po.window = r->window;
    po.sinks = r->sinks;
    po.start = r->start;
    po.kv_block = r->kv_block;
    po.n_ctx = CTX;
    po.max_block = 64;
    must(kvs_plan_new(ctx, m, &po, &plan, &err), &err);
    so.plan = plan;
    so.batch = b;
    must(kvs_session_new(ctx, m, &so, &s, &err), &err);
    kvs_plan_free(plan);
    return s;
}

static void decode_alone(kvs_ctx *ctx, const kvs_model *m, row *r, size_t n_vocab,
                         kvs_sampler *pick)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = new_session(ctx, m, r, NULL);
    must(kvs_session_sync(s, r->tokens, r->n, NULL, &err), &err);
    r->hash[r->n - 1] = hash_of(s, n_vocab);
    for (int i = 0; i < N_NEW + 9; i++) {
        must(kvs_session_sample(s, pick, &r->tokens[r->n], &err), &err);
        must(kvs_session_append(s, &r->tokens[r->n], 1, &err), &err);
        r->hash[r->n++] = hash_of(s, n_vocab);
    }
    kvs_session_free(s);
}

static uint32_t guess(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out, uint32_t n)
{
    const row *r = user;
    (void)tokens;
    for (uint32_t i = 0; i < n; i++) {
        size_t at = n_tokens + i;
        out[i] = at < r->n ? r->tokens[at] ^ (r->wrong && at % r->wrong == 0) : 1;
    }
    return n;
}

static void same(const row *r, size_t n_vocab)
{
    size_t n = 0;
    const int32_t *tokens = kvs_session_tokens(r->s, &n);
    assert_true(n <= r->n);
    assert_memory_equal(tokens, r->tokens, n * sizeof *tokens);
    if (hash_of(r->s, n_vocab) != r->hash[n - 1]) {
        fail_msg("kv %s: the logits after token %zu differ", r->kv, n - 1);
    }
}

/* All rows until each has N_NEW tokens more; those that have leave. */
static void decode_together(kvs_ctx *ctx, const kvs_model *m, size_t n_vocab, kvs_sampler *pick,
                            int own_drafts)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_batch_opts bo = KVS_BATCH_OPTS_INIT;
    kvs_batch *b = NULL;
    bo.n_ctx = CTX;
    must(kvs_batch_new(ctx, m, &bo, &b, &err), &err);
    for (uint32_t i = 0; i < ROWS; i++) {
        row *r = &rows[i];
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        r->s = new_session(ctx, m, r, b);
        o.sampler = pick;
        o.max_drafts = 1 + i;
        o.flags = own_drafts ? KVS_SPEC_FIXED : 0;
        o.draft = own_drafts ? guess : NULL;
        o.user = r;
        must(kvs_session_sync(r->s, r->tokens, r->n_prompt, NULL, &err), &err);
        must(kvs_spec_new(r->s, &o, &r->spec, &err), &err);
    }
    for (;;) {
        kvs_spec *active[ROWS];
        uint32_t n_active = 0;
        for (uint32_t i = 0; i < ROWS; i++) {
            size_t n = 0;
            (void)kvs_session_tokens(rows[i].s, &n);
            if (n < rows[i].n_prompt + N_NEW) {
                active[n_active++] = rows[i].spec;
            }
        }
        if (n_active == 0) {
            break;
        }
        must(kvs_spec_next_rows(b, active, n_active, &err), &err);
        for (uint32_t i = 0; i < ROWS; i++) {
            same(&rows[i], n_vocab);
        }
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        kvs_spec_free(rows[i].spec);
        kvs_session_free(rows[i].s);
    }
    kvs_batch_free(b);
}

static void check_model(const char *path)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_sampler_opts so = KVS_SAMPLER_OPTS_INIT;
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    kvs_ctx *ctx = NULL;
    kvs_model *m = NULL;
    kvs_sampler *pick = NULL;
    co.n_threads = 2;
    so.temperature = 0.0f;
    must(kvs_ctx_new(&co, &ctx, &err), &err);
    must(kvs_model_open(ctx, path, NULL, &m, &err), &err);
    (void)kvs_model_get_info(m, &info);
    must(kvs_sampler_new(ctx, &so, info.n_vocab, &pick, &err), &err);
    for (uint32_t i = 0; i < ROWS; i++) {
        encode(m, &rows[i], i);
        decode_alone(ctx, m, &rows[i], info.n_vocab, pick);
    }
    decode_together(ctx, m, info.n_vocab, pick, 1);
    decode_together(ctx, m, info.n_vocab, pick, 0);
    kvs_sampler_free(pick);
    kvs_model_close(m);
    kvs_ctx_free(ctx);
}

static char smollm2[512];
static char gemma3[512];

static void test_smollm2(void **state)
{
    (void)state;
    check_model(smollm2);
}

static void test_gemma3(void **state)
{
    (void)state;
    check_model(gemma3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    if (!kvs_test_model(KVS_TEST_SMOLLM2, smollm2, sizeof smollm2) ||
        !kvs_test_model(KVS_TEST_GEMMA3, gemma3, sizeof gemma3)) {
        return KVS_TEST_SKIP;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
