/* SPDX-License-Identifier: MIT */
/* fuzz_use.h: a model that opened computes a few tokens in more than one block, or says why not. */
#ifndef KVS_TESTS_FUZZ_FUZZ_USE_H
#define KVS_TESTS_FUZZ_FUZZ_USE_H

#include "fuzz/fuzz.h"
#include "kvstate/session.h"

static inline void fuzz_use(kvs_ctx *ctx, const kvs_model *m)
{
    const int32_t tokens[9] = {0};
    kvs_plan *plan = NULL;
    kvs_session *s = NULL;
    kvs_err err = KVS_ERR_INIT;
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    po.kv = "f16";
    po.n_ctx = 24;
    po.max_block = 4;
    kvs_status st = kvs_plan_new(ctx, m, &po, &plan, &err);
    so.plan = plan;
    if (st == KVS_OK) {
        st = kvs_session_new(ctx, m, &so, &s, &err);
    }
    if (st == KVS_OK) {
        st = kvs_session_sync(s, tokens, 9, NULL, &err);
        CHECK(st == KVS_OK || st == KVS_E_NOMEM);
        CHECK(st != KVS_OK || kvs_session_logits(s));
    }
    CHECK(st == KVS_OK || err.msg[0] != 0);
    kvs_session_free(s);
    kvs_plan_free(plan);
}

#endif
