/* SPDX-License-Identifier: MIT */
/* fuzz_model.c: the input is a GGUF file with a model. It opens and computes a few tokens, or is
 * refused with a text; whatever the numbers in it, memory and time follow the input's size. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_parts.h"
#include "kvstate/session.h"
#include "support/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(kvs_ctx *ctx, const kvs_model *m)
{
    kvs_plan *plan = NULL;
    kvs_session *s = NULL;
    kvs_err err = {0};
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = "f16";
    po.n_ctx = 24;
    po.max_block = 4;
    kvs_status st = kvs_plan_new(ctx, m, &po, &plan, &err);
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = plan;
    if (st == KVS_OK) {
        st = kvs_session_new(ctx, m, &so, &s, &err);
    }
    if (st == KVS_OK) {
        int32_t tokens[9] = {0};
        st = kvs_session_sync(s, tokens, 9, NULL, &err);
        GGUF_WALK_CHECK(st == KVS_OK || st == KVS_E_NOMEM);
        GGUF_WALK_CHECK(st != KVS_OK || kvs_session_logits(s));
    }
    GGUF_WALK_CHECK(st == KVS_OK || err.msg[0] != 0);
    kvs_session_free(s);
    kvs_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 8u << 20;
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    GGUF_WALK_CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    /* tensors are aligned to 64 in a mapped file, and the input must end where it ends */
    uint8_t *copy = aligned_alloc(64, (size + 127) / 64 * 64);
    GGUF_WALK_CHECK(copy);
    memcpy(copy, data, size);
    kvs__gguf *g = NULL;
    kvs_model *m = NULL;
    kvs_status st = kvs__gguf_open_mem(ctx, copy, size, &g, &err);
    if (st == KVS_OK) {
        st = kvs__model_open_gguf(ctx, g, 0, &m, &err);
        GGUF_WALK_CHECK(st == KVS_OK || (!m && err.msg[0] != 0));
    }
    if (st == KVS_OK) {
        use(ctx, m);
    }
    kvs_model_close(m);
    kvs_ctx_free(ctx);
    free(copy);
    return 0;
}
