/* SPDX-License-Identifier: MIT */
/* fuzz_prompt_cache.c: the input is a prompt-cache file of mlx-lm. It opens or is refused with a text;
 * what opens describes itself, and every row of it either loads into a cache made from that
 * description, all of its tokens counted and exported again, or is refused and leaves it empty. */
#include <stdlib.h>
#include <string.h>

#include "engine/pcache.h"
#include "fuzz/fuzz.h"

enum { MOST_LAYERS = 8, MOST_ROWS = 3, MOST_TOKENS = 64 };

/* Reads all that is stored back. */
static void export_all(const kvs_cache *c, uint32_t layer, const kvs_layer_spec *s)
{
    static uint64_t room[2][3][8192];
    kvs_planes p = KVS_PLANES_INIT;
    size_t k = kvs_codec_row_bytes(&s->k, s->k_dim) * s->n_kv_heads;
    size_t v = kvs_codec_row_bytes(&s->v, s->v_dim) * s->n_kv_heads;
    for (int i = 0; i < 3; i++) {
        p.k[i] = room[0][i];
        p.v[i] = room[1][i];
    }
    for (int64_t at = kvs_cache_oldest(c, layer); at < kvs_cache_length(c, layer); at++) {
        if (k <= sizeof room[0][0] && v <= sizeof room[0][0]) {
            CHECK(kvs_cache_export(c, layer, at, 1, &p, NULL) == KVS_OK);
        }
    }
}

static void load_row(kvs_ctx *ctx, const kvs_prompt_cache *f, const kvs_prompt_layer *info,
                     uint32_t n, uint32_t row)
{
    kvs_layer_spec specs[MOST_LAYERS];
    kvs_err err = {KVS_OK, 0, "", ""};
    for (uint32_t i = 0; i < n; i++) {
        kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
        s.n_kv_heads = info[i].n_kv_heads ? info[i].n_kv_heads : 1;
        s.k_dim = info[i].k_dim ? info[i].k_dim : 16;
        s.v_dim = info[i].v_dim ? info[i].v_dim : 16;
        s.k = info[i].k;
        s.v = info[i].v;
        s.layout = info[i].window ? KVS_LAYOUT_RING : KVS_LAYOUT_GROW;
        s.window = info[i].window;
        s.sinks = info[i].sinks;
        s.max_block = info[i].window ? 4 : 0;
        specs[i] = s;
    }
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = n;
    o.layers = specs;
    kvs_cache *c = NULL;
    if (kvs_cache_new(ctx, &o, &c, NULL) != KVS_OK) {
        return;
    }
    kvs_status st = kvs_prompt_cache_load(f, row, c, &err);
    CHECK(st == KVS_OK || err.msg[0] != 0);
    for (uint32_t i = 0; i < n; i++) {
        if (st == KVS_OK) {
            CHECK(kvs_cache_length(c, i) <= info[i].offset);
            export_all(c, i, &specs[i]);
        } else {
            CHECK(kvs_cache_length(c, i) == 0);
        }
    }
    kvs_cache_free(c);
}

static void look(kvs_ctx *ctx, const kvs_prompt_cache *f)
{
    kvs_prompt_info info = KVS_PROMPT_INFO_INIT;
    kvs_prompt_layer layers[MOST_LAYERS];
    int32_t tokens[MOST_TOKENS];
    size_t n = 0;
    CHECK(kvs_prompt_cache_get_info(f, &info) == KVS_OK && info.n_layers > 0 && info.n_rows > 0);
    for (uint32_t i = 0; i < info.n_layers; i++) {
        kvs_prompt_layer l = KVS_PROMPT_LAYER_INIT;
        CHECK(kvs_prompt_cache_get_layer(f, i, &l) == KVS_OK);
        CHECK(l.n_rows == info.n_rows && (int64_t)l.n_stored <= l.offset);
        if (i < MOST_LAYERS) {
            layers[i] = l;
        }
    }
    for (uint32_t i = 0; i < info.n_meta; i++) {
        const char *text[2];
        size_t len[2];
        CHECK(kvs_prompt_cache_get_meta(f, i, &text[0], &len[0], &text[1], &len[1]) == KVS_OK);
    }
    (void)kvs_prompt_cache_get_tokens(f, tokens, MOST_TOKENS, &n, NULL);
    if (info.n_layers > MOST_LAYERS) {
        return;
    }
    for (uint32_t row = 0; row < info.n_rows && row < MOST_ROWS; row++) {
        load_row(ctx, f, layers, info.n_layers, row);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = (size_t)64 << 20;
    kvs_ctx *ctx = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs_prompt_cache *f = NULL;
    kvs_status st = kvs__prompt_cache_open_mem(ctx, data, size, "input", &f, &err);
    if (st == KVS_OK) {
        look(ctx, f);
    } else {
        CHECK(!f && err.msg[0] != 0);
        CHECK(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED || st == KVS_E_NOMEM);
    }
    kvs_prompt_cache_close(f);
    kvs_ctx_free(ctx);
    return 0;
}
