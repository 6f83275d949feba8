/* SPDX-License-Identifier: MIT */
/* fuzz_gguf.c: the input is a GGUF file. Opening must end with a handle whose every view can be
 * read, or with an error that has a text; memory must follow the input's size, not its claims. */
#include <stdlib.h>

#include "engine/gguf.h"
#include "fuzz/fuzz.h"
#include "support/gguf_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 20 * size + (64u << 10); /* worst: 14-byte keys, 3 x 64 bytes while growing */
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    GGUF_WALK_CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs__gguf *g = NULL;
    kvs_status st = kvs__gguf_open_mem(ctx, data, size, &g, &err);
    if (st == KVS_OK) {
        volatile uint64_t sink = gguf_walk(g);
        (void)sink;
    } else {
        GGUF_WALK_CHECK(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED);
        GGUF_WALK_CHECK(g == NULL && err.status == st && err.msg[0] != 0);
    }
    kvs__gguf_close(g);
    kvs_ctx_free(ctx);
    return 0;
}
