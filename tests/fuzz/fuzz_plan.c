/* SPDX-License-Identifier: MIT */
/* fuzz_plan.c: a plan as text, as a user or a layers file gives it, for three layers. Whatever it is:
 * an error with a text, or codecs whose written names are read as the same codecs. */
#include <stdlib.h>
#include <string.h>

#include "engine/net.h"
#include "engine/plan_parse.h"
#include "fuzz/fuzz.h"

enum { LAYERS = 3 };

static void check_codec(const kvs_codec *c)
{
    char name[64];
    kvs_codec again = KVS_CODEC_DENSE(KVS_F32);
    CHECK(kvs_codec_name(c, name, sizeof name) < sizeof name);
    CHECK(kvs_codec_parse(name, &again, NULL) == KVS_OK);
    CHECK(again.bits == c->bits && again.rotate == c->rotate && again.group == c->group &&
          again.dtype == c->dtype);
}

static void parse(kvs__plan_parser *ps, const char *text)
{
    kvs_err err = KVS_ERR_INIT;
    uint32_t block = 0;
    kvs_status st = kvs__plan_parse_paged(&text, &block, &err);
    if (st == KVS_OK && strncmp(text, "layers=", 7) == 0) {
        st = kvs__plan_parse_layers(ps, text + 7, &err);
    } else if (st == KVS_OK) {
        st = kvs__plan_parse_pair(ps, text, &ps->layers[0].k, &ps->layers[0].v, &err);
    }
    CHECK(st == KVS_OK || (err.status == st && err.msg[0] != '\0'));
    CHECK(ps->notes->n <= 4);
    for (uint32_t i = 0; st == KVS_OK && i < LAYERS; i++) {
        check_codec(&ps->layers[i].k);
        check_codec(&ps->layers[i].v);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    kvs_layer_spec layers[LAYERS] = {KVS_LAYER_SPEC_INIT, KVS_LAYER_SPEC_INIT, KVS_LAYER_SPEC_INIT};
    kvs__plan_notes notes = {0, {""}};
    kvs_model model; /* no layer has a window of its own */
    char *text = malloc(size + 1);
    memset(&model, 0, sizeof model);
    opts.n_threads = 1;
    opts.max_bytes = (size_t)4 << 20;
    CHECK(text && kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK);
    if (size > 0) {
        memcpy(text, data, size);
    }
    text[size] = '\0';
    for (uint32_t group = 0; group <= 64; group += 64) {
        kvs__plan_parser ps = {layers, LAYERS, group, &notes, ctx, &model};
        parse(&ps, text);
    }
    kvs_ctx_free(ctx);
    free(text);
    return 0;
}
