/* SPDX-License-Identifier: MIT */
/* fuzz_model.c: the input is a GGUF file with a model. It opens and computes a few tokens, or is
 * refused with a text; whatever the numbers in it, memory and time follow the input's size. */
#include <stdlib.h>
#include <string.h>

#include "engine/model_parts.h"
#include "fuzz/fuzz_use.h"
#include "support/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 8u << 20;
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    /* tensors are aligned to 64 in a mapped file, and the input must end where it ends */
    uint8_t *copy = aligned_alloc(64, (size + 127) / 64 * 64);
    CHECK(copy);
    memcpy(copy, data, size);
    kvs__gguf *g = NULL;
    kvs_model *m = NULL;
    kvs_status st = kvs__gguf_open_mem(ctx, copy, size, &g, &err);
    if (st == KVS_OK) {
        st = kvs__model_open_gguf(ctx, g, 0, &m, &err);
        CHECK(st == KVS_OK || (!m && err.msg[0] != 0));
    }
    if (st == KVS_OK) {
        fuzz_use(ctx, m);
    }
    kvs_model_close(m);
    kvs_ctx_free(ctx);
    free(copy);
    return 0;
}
