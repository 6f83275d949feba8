/* SPDX-License-Identifier: MIT */
/* fuzz_safetensors.c: the input is a safetensors file. It opens with every view inside the input,
 * or is refused with a text; memory follows the input's size. */
#include <stdlib.h>

#include "engine/safetensors.h"
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 64 * size + (64u << 10);
    kvs_ctx *ctx = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs__safetensors *s = NULL;
    kvs_status st = kvs__safetensors_open_mem(ctx, data, size, "input", &s, &err);
    if (st == KVS_OK) {
        const kvs__st_tensor *t = NULL;
        const uint8_t *end = NULL;
        for (size_t i = 0; (t = kvs__safetensors_at(s, i)); i++) {
            CHECK(t->data >= data && t->data <= data + size);
            CHECK(t->bytes <= (size_t)(data + size - t->data));
            CHECK(!end || t->data == end);
            CHECK(kvs__safetensors_find(s, t->name) == t);
            CHECK(kvs__st_dtype_name(t->dtype)[0] != 0);
            end = t->data + t->bytes;
        }
        CHECK(!end || end == data + size);
    } else {
        CHECK(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED);
        CHECK(!s && err.msg[0] != 0);
    }
    kvs__safetensors_close(s);
    kvs_ctx_free(ctx);
    return 0;
}
