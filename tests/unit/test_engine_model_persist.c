/* SPDX-License-Identifier: MIT */
/* test_engine_model_persist.c: on the two real models, for every kind of plan: the logits of a prompt
 * are the same bits computed from nothing, restored from disk at cuts about the boundaries of blocks
 * and windows, and gone back to in the session. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kvstate/engine.h"
#include "support/models.h"

#define N     800
#define TAIL  3
#define N_CUT 5

static const size_t cuts[N_CUT] = {255, 257, 512, 515, 797};

typedef struct plan {
    const char *kv;
    uint32_t window, sinks, start, kv_block, flags;
} plan;
static const plan plans[] = {
    {"f16", 0, 0, 0, 0, 0},      {"q8", 0, 0, 0, 0, 0},
    {"q4", 0, 0, 0, 0, 0},       {"affine4", 0, 0, 0, 0, 0},
    {"q8+q4", 100, 4, 0, 0, 0},  {"q4", 0, 0, 300, 0, 0},
    {"q8", 0, 0, 0, 48, 0},      {"f16", 0, 0, 0, 0, KVS_PLAN_FULL_WINDOW},
    {"k8v4", 200, 20, 0, 16, 0},
};

typedef struct rig {
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *s;
    size_t n_vocab;
} rig;

static void must(kvs_status st, const kvs_err *err)
{
    if (st != KVS_OK) {
        fail_msg("%d: %s", st, err->msg);
    }
}

static void rig_open(rig *r, const char *path, const plan *p, bool persist, const char *dir)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    o.kv = p->kv;
    o.window = p->window;
    o.sinks = p->sinks;
    o.start = p->start;
    o.kv_block = p->kv_block;
    o.flags = p->flags;
    o.n_ctx = 2048;
    must(kvs_ctx_new(NULL, &r->ctx, &err), &err);
    must(kvs_model_open(r->ctx, path, NULL, &r->model, &err), &err);
    must(kvs_plan_new(r->ctx, r->model, &o, &r->plan, &err), &err);
    so.plan = r->plan;
    must(kvs_session_new(r->ctx, r->model, &so, &r->s, &err), &err);
    kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
    po.dir = dir;
    if (persist) {
        must(kvs_session_persist(r->s, &po, &err), &err);
    }
    (void)kvs_model_get_info(r->model, &info);
    r->n_vocab = info.n_vocab;
}

static void rig_close(rig *r)
{
    kvs_session_free(r->s);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    kvs_ctx_free(r->ctx);
}

static void sync_to(rig *r, size_t n, size_t tail)
{
    int32_t t[N + TAIL];
    kvs_err err = {KVS_OK, 0, "", ""};
    for (size_t i = 0; i < n + tail; i++) {
        t[i] = (int32_t)((i * 2654435761u + (i < n ? 0 : 12345)) % 40000u % r->n_vocab);
    }
    must(kvs_session_sync(r->s, t, n + tail, NULL, &err), &err);
}

static uint64_t tokens_from(const rig *r, bool disk)
{
    kvs_reuse u = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(r->s, &u);
    return disk ? u.n_disk : u.n_memory;
}

static void check(const rig *r, const float *want, const char *how, const plan *p, size_t n)
{
    if (memcmp(kvs_session_logits(r->s), want, r->n_vocab * sizeof *want) != 0) {
        fail_msg("%s, %s, %zu tokens: other logits", how, p->kv, n);
    }
}

static void one_plan(const char *path, const plan *p)
{
    char dir[64] = "/tmp/kvstate-warm-XXXXXX";
    rig r;
    assert_non_null(mkdtemp(dir));
    float *want[N_CUT];
    rig_open(&r, path, p, false, NULL);
    for (size_t i = 0; i < N_CUT; i++) {
        kvs_err err = {KVS_OK, 0, "", ""};
        must(kvs_session_sync(r.s, NULL, 0, NULL, &err), &err); /* from nothing */
        sync_to(&r, cuts[i], TAIL);
        want[i] = malloc(r.n_vocab * sizeof **want);
        assert_non_null(want[i]);
        memcpy(want[i], kvs_session_logits(r.s), r.n_vocab * sizeof **want);
    }
    rig_close(&r);
    rig_open(&r, path, p, true, dir);
    sync_to(&r, N, 0);
    for (size_t i = N_CUT; i-- > 0;) { /* back, in falling order */
        sync_to(&r, cuts[i], TAIL);
        assert_true(tokens_from(&r, false) + tokens_from(&r, true) == cuts[i] || p->start > 0);
        check(&r, want[i], "back", p, cuts[i]);
    }
    rig_close(&r);
    for (size_t i = 0; i < N_CUT; i++) {
        rig_open(&r, path, p, true, dir);
        sync_to(&r, cuts[i], TAIL);
        assert_true(tokens_from(&r, true) >= cuts[i] || p->start > 0);
        check(&r, want[i], "restored", p, cuts[i]);
        rig_close(&r);
        free(want[i]);
    }
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0); /* NOLINT: a folder of ours */
}

static void run_model(const char *file)
{
    char path[1024];
    if (!kvs_test_model(file, path, sizeof path)) {
        skip();
    }
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        one_plan(path, &plans[i]);
    }
}

static void test_smollm2(void **state)
{
    (void)state;
    run_model(KVS_TEST_SMOLLM2);
}

static void test_gemma3(void **state)
{
    (void)state;
    run_model(KVS_TEST_GEMMA3);
}

int main(void)
{
    char path[1024];
    if (!kvs_test_model(KVS_TEST_SMOLLM2, path, sizeof path) &&
        !kvs_test_model(KVS_TEST_GEMMA3, path, sizeof path)) {
        return KVS_TEST_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
