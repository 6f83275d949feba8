/* SPDX-License-Identifier: MIT */
/* plan_rig.h: for tests of plans: two tiny models, one with windows, for all tests of a group. */
#ifndef KVS_TESTS_SUPPORT_PLAN_RIG_H
#define KVS_TESTS_SUPPORT_PLAN_RIG_H

#include "kvstate/engine.h"
#include "support/model_build.h"

static char llama_path[256];
static char gemma_path[256];
static kvs_ctx *ctx;
static kvs_model *llama; /* head dim 64, 3 layers, no window */
static kvs_model *gemma; /* head dim 32, 7 layers, window 24 but for layer 5 */

static kvs_plan *make(const kvs_model *m, const kvs_plan_opts *o)
{
    kvs_plan *p = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_plan_new(ctx, m, o, &p, &err) != KVS_OK) {
        fail_msg("%s: %s", o->kv ? o->kv : "-", err.msg);
    }
    return p;
}

static int set_up(void **state)
{
    (void)state;
    tiny l = TINY_LLAMA;
    tiny g = TINY_GEMMA;
    l.dim = 64;
    return kvs_ctx_new(NULL, &ctx, NULL) == KVS_OK &&
                   tiny_write(&l, llama_path, sizeof llama_path) &&
                   tiny_write(&g, gemma_path, sizeof gemma_path) &&
                   kvs_model_open(ctx, llama_path, NULL, &llama, NULL) == KVS_OK &&
                   kvs_model_open(ctx, gemma_path, NULL, &gemma, NULL) == KVS_OK
               ? 0
               : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kvs_model_close(llama);
    kvs_model_close(gemma);
    kvs_ctx_free(ctx);
    (void)unlink(llama_path);
    (void)unlink(gemma_path);
    return 0;
}

#endif
