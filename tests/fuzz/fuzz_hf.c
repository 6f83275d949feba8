/* SPDX-License-Identifier: MIT */
/* fuzz_hf.c: the input is a model directory: two bytes with the length of config.json, the same for
 * the index (0: none), their texts, and the rest is the safetensors file. It opens and computes a
 * few tokens, or is refused with a text; memory is bounded whatever the numbers say. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/json.h" /* the engine is linked */
#include "fuzz/fuzz_use.h"
#include "support/hf_build.h"

static char dir[64];

static void remove_dir(void)
{
    hf_remove(dir, "config.json");
    hf_remove(dir, "model.safetensors");
    hf_remove(dir, "model.safetensors.index.json");
    (void)rmdir(dir);
}

static void open_and_use(void)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 16u << 20;
    kvs_ctx *ctx = NULL;
    kvs_model *m = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs_status st = kvs_model_open(ctx, dir, NULL, &m, &err);
    CHECK(st == KVS_OK || (!m && err.msg[0] != 0));
    if (st == KVS_OK) {
        kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
        kvs_model_tensor t = KVS_MODEL_TENSOR_INIT;
        for (size_t i = 0; kvs_model_get_entry(m, i, &e) == KVS_OK; i++) {
        }
        for (size_t i = 0; kvs_model_get_tensor(m, i, &t) == KVS_OK; i++) {
        }
        fuzz_use(ctx, m);
    }
    kvs_model_close(m);
    kvs_ctx_free(ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!dir[0]) {
        (void)snprintf(dir, sizeof dir, "/tmp/kvs-fuzz-hf-XXXXXX");
        CHECK(mkdtemp(dir));
        (void)atexit(remove_dir);
    }
    if (size < 4) {
        return 0;
    }
    size_t config = (size_t)data[0] | (size_t)data[1] << 8;
    size_t index = (size_t)data[2] | (size_t)data[3] << 8;
    if (config + index > size - 4) {
        return 0;
    }
    data += 4;
    hf_write(dir, "config.json", data, config);
    if (index > 0) {
        hf_write(dir, "model.safetensors.index.json", data + config, index);
    } else {
        hf_remove(dir, "model.safetensors.index.json");
    }
    hf_write(dir, "model.safetensors", data + config + index, size - 4 - config - index);
    open_and_use();
    return 0;
}
