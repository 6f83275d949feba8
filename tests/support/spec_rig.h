/* SPDX-License-Identifier: MIT */
/* spec_rig.h: for tests of batches and speculation: plans of every kind, a sequence decoded plainly
 * with all its logits, and drafts that are right or wrong where the test wants it. */
#ifndef KVS_TESTS_SUPPORT_SPEC_RIG_H
#define KVS_TESTS_SUPPORT_SPEC_RIG_H

#include <stdbool.h>
#include <string.h>

#include "kvstate/engine.h"
#include "support/model_build.h"

#define SPEC_VOCAB 97
#define SPEC_MAX   160

typedef struct spec_plan {
    const char *kv;
    uint32_t window, sinks, start, kv_block, max_block, flags;
} spec_plan;

/* Every codec; a window that wraps many times, with sinks; delayed conversion; pages; both. */
static const spec_plan spec_plans[] = {
    {"f16", 0, 0, 0, 0, 0, 0},        {"f32", 0, 0, 0, 0, 0, 0},
    {"bf16", 0, 0, 0, 0, 0, 0},       {"q8", 0, 0, 0, 0, 0, 0},
    {"q6", 0, 0, 0, 0, 0, 0},         {"q5", 0, 0, 0, 0, 0, 0},
    {"q4", 0, 0, 0, 0, 0, 0},         {"q3", 0, 0, 0, 0, 0, 0},
    {"q2", 0, 0, 0, 0, 0, 0},         {"affine4", 0, 0, 0, 0, 0, 0},
    {"affine8:32", 0, 0, 0, 0, 0, 0}, {"k8v4", 0, 0, 0, 0, 0, 0},
    {"q3+f16", 0, 0, 0, 0, 0, 0},     {"f16", 13, 0, 0, 0, 10, 0},
    {"q4", 16, 3, 0, 0, 16, 0},       {"q8", 9, 4, 0, 0, 4, 0},
    {"f32", 7, 1, 0, 0, 2, 0},        {"q4", 0, 0, 40, 0, 0, 0},
    {"q8", 20, 2, 50, 0, 12, 0},      {"f16", 0, 0, 0, 16, 0, 0},
    {"q4", 0, 0, 0, 1, 0, 0},         {"k8v4", 24, 0, 0, 3, 9, 0},
    {"q8", 0, 0, 33, 5, 0, 0},        {"f16", 0, 0, 0, 0, 0, KVS_PLAN_FULL_WINDOW},
};
#define N_SPEC_PLANS (sizeof spec_plans / sizeof spec_plans[0])

typedef struct spec_rig {
    kvs_ctx *ctx;
    kvs_model *model;
    char path[256];
} spec_rig;

static inline void spec_must(kvs_status st, const kvs_err *err)
{
    if (st != KVS_OK) {
        fail_msg("%s: %s", kvs_status_name(st), err->msg);
    }
}

static inline void spec_rig_open(spec_rig *r, const tiny *t, uint32_t threads)
{
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    co.n_threads = threads;
    assert_int_equal(kvs_ctx_new(&co, &r->ctx, NULL), KVS_OK);
    assert_true(tiny_write(t, r->path, sizeof r->path));
    spec_must(kvs_model_open(r->ctx, r->path, NULL, &r->model, &err), &err);
}

static inline void spec_rig_close(spec_rig *r)
{
    kvs_model_close(r->model);
    (void)unlink(r->path);
    kvs_ctx_free(r->ctx);
}

static inline kvs_plan *spec_plan_new(const spec_rig *r, const spec_plan *p, uint32_t n_ctx)
{
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan *plan = NULL;
    o.kv = p->kv;
    o.window = p->window;
    o.sinks = p->sinks;
    o.start = p->start;
    o.kv_block = p->kv_block;
    o.max_block = p->max_block;
    o.flags = p->flags;
    o.n_ctx = n_ctx;
    spec_must(kvs_plan_new(r->ctx, r->model, &o, &plan, &err), &err);
    return plan;
}

static inline kvs_session *spec_session(const spec_rig *r, const spec_plan *p, uint32_t n_ctx,
                                        kvs_batch *batch)
{
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan *plan = spec_plan_new(r, p, n_ctx);
    kvs_session *s = NULL;
    o.plan = plan;
    o.batch = batch;
    spec_must(kvs_session_new(r->ctx, r->model, &o, &s, &err), &err);
    kvs_plan_free(plan);
    return s;
}

/* ---- plain decoding, the reference */

typedef struct spec_text {
    int32_t tokens[SPEC_MAX];
    float logits[SPEC_MAX][SPEC_VOCAB]; /* after each token, from n_prompt - 1 on */
    size_t n_prompt;
    size_t n;
} spec_text;

static inline kvs_sampler *spec_sampler(const spec_rig *r, float temperature, uint64_t seed)
{
    kvs_sampler_opts o = KVS_SAMPLER_OPTS_INIT;
    kvs_sampler *s = NULL;
    o.temperature = temperature;
    o.repeat_penalty = temperature > 0.0f ? 1.2f : 1.0f;
    o.seed = seed;
    assert_int_equal(kvs_sampler_new(r->ctx, &o, SPEC_VOCAB, &s, NULL), KVS_OK);
    return s;
}

/* n_prompt tokens of a text that `row` tells apart, then decoded up to n. */
static inline void spec_plain(const spec_rig *r, const spec_plan *p, kvs_sampler *sampler,
                              uint32_t row, size_t n_prompt, size_t n, spec_text *t)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s = spec_session(r, p, SPEC_MAX, NULL);
    t->n_prompt = n_prompt;
    t->n = n;
    for (size_t i = 0; i < n_prompt; i++) {
        t->tokens[i] = (int32_t)((i * 31 + row * 17 + i * i * (row + 5)) % SPEC_VOCAB);
    }
    spec_must(kvs_session_sync(s, t->tokens, n_prompt, NULL, &err), &err);
    memcpy(t->logits[n_prompt - 1], kvs_session_logits(s), sizeof t->logits[0]);
    for (size_t i = n_prompt; i < n; i++) {
        spec_must(kvs_session_sample(s, sampler, &t->tokens[i], &err), &err);
        spec_must(kvs_session_append(s, &t->tokens[i], 1, &err), &err);
        memcpy(t->logits[i], kvs_session_logits(s), sizeof t->logits[0]);
    }
    kvs_session_free(s);
}

/* The session holds the first tokens of the text, and the logits after them, bit for bit. */
static inline void spec_same(const kvs_session *s, const spec_text *t, const char *what)
{
    size_t n = 0;
    const int32_t *tokens = kvs_session_tokens(s, &n);
    if (n > t->n || memcmp(tokens, t->tokens, n * sizeof *tokens) != 0) {
        fail_msg("%s: the tokens differ within the first %zu", what, n);
    }
    const float *logits = kvs_session_logits(s);
    if (!logits || memcmp(logits, t->logits[n - 1], sizeof t->logits[0]) != 0) {
        fail_msg("%s: the logits after token %zu differ", what, n - 1);
    }
}

/* ---- drafts from the known text: every `wrong`th position is another token; 0: all right */

typedef struct spec_guess {
    const spec_text *text;
    uint32_t wrong;
    uint32_t most; /* drafts given, 0: as many as asked for */
    /* what on_token was told */
    int32_t told[2 * SPEC_MAX];
    size_t n_told;
    size_t last_at; /* told so many: LAST, and at drop_at: DROP; 0: never */
    size_t drop_at;
} spec_guess;

static inline uint32_t spec_guess_draft(void *user, const int32_t *tokens, size_t n_tokens,
                                        int32_t *out, uint32_t n)
{
    const spec_guess *g = user;
    uint32_t i = 0;
    (void)tokens;
    n = g->most && g->most < n ? g->most : n;
    for (; i < n && n_tokens + i < g->text->n; i++) {
        size_t at = n_tokens + i;
        bool wrong = g->wrong && at % g->wrong == 0;
        out[i] = (g->text->tokens[at] + wrong) % SPEC_VOCAB;
    }
    return i;
}

static inline int spec_guess_token(void *user, int32_t token)
{
    spec_guess *g = user;
    g->told[g->n_told++] = token;
    if (g->n_told == g->drop_at) {
        return KVS_SPEC_DROP;
    }
    return g->n_told == g->last_at ? KVS_SPEC_LAST : KVS_SPEC_GO;
}

#endif
