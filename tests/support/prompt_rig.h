/* SPDX-License-Identifier: MIT */
/* prompt_rig.h: caches of any layers, filled by formula, compared byte for byte, and a file in a folder
 * of its own; for the tests of prompt-cache files. */
#ifndef KVS_TESTS_SUPPORT_PROMPT_RIG_H
#define KVS_TESTS_SUPPORT_PROMPT_RIG_H

#include "kvstate/engine.h"
#include "support/model_build.h"

enum { MAX_TOKENS = 700 };

static kvs_ctx *ctx;
static char dir[200];
static char path[256];

/* ---- caches */

#define SPEC(heads, kd, vd, ...)                                                                   \
    {                                                                                              \
        .struct_size = sizeof(kvs_layer_spec), .n_kv_heads = heads, .k_dim = kd, .v_dim = vd,      \
        __VA_ARGS__                                                                                \
    }
#define DENSE(t)        .k = KVS_CODEC_DENSE(t), .v = KVS_CODEC_DENSE(t)
#define AFFINE(b, g, t) .k = KVS_CODEC_AFFINE(b, g, t), .v = KVS_CODEC_AFFINE(b, g, t)
#define RING(w, s, m)   .layout = KVS_LAYOUT_RING, .window = w, .sinks = s, .max_block = m
#define PAGED(w, m)     .layout = KVS_LAYOUT_PAGED, .window = w, .max_block = m

static kvs_cache *make(kvs_ctx *c, const kvs_layer_spec *specs, uint32_t n)
{
    kvs_cache *out = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = n;
    o.layers = specs;
    o.block_tokens = 0;
    if (kvs_cache_new(c, &o, &out, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return out;
}

static void feed(kvs_cache *c, uint32_t n, uint64_t seed)
{
    static float rows[2][MAX_TOKENS * 4 * 128];
    for (uint32_t l = 0; l < kvs_cache_n_layers(c); l++) {
        const kvs_layer_spec *s = kvs_cache_spec(c, l);
        if (s->kind == KVS_LAYER_BORROW) {
            continue;
        }
        uint32_t step = s->max_block ? s->max_block : n;
        uint64_t state = seed + l;
        for (uint32_t at = 0; at < n; at += step) {
            kvs_kv kv = KVS_KV_INIT;
            kv.n_tokens = n - at < step ? n - at : step;
            for (size_t i = 0; i < (size_t)kv.n_tokens * s->n_kv_heads * s->k_dim; i++) {
                rows[0][i] = tiny_random(&state);
            }
            for (size_t i = 0; i < (size_t)kv.n_tokens * s->n_kv_heads * s->v_dim; i++) {
                rows[1][i] = tiny_random(&state);
            }
            kv.k = rows[0];
            kv.v = s->kind == KVS_LAYER_LATENT ? NULL : rows[1];
            kvs_err err = {KVS_OK, 0, "", ""};
            if (kvs_cache_append(c, l, &kv, &err) != KVS_OK) {
                fail_msg("%s", err.msg);
            }
        }
    }
}

static size_t planes_of(const kvs_cache *c, uint32_t layer, int64_t at, uint64_t room[6][2048])
{
    kvs_planes p = KVS_PLANES_INIT;
    memset(room, 0, 6 * sizeof room[0]);
    for (int i = 0; i < 3; i++) {
        p.k[i] = room[i];
        p.v[i] = room[3 + i];
    }
    assert_int_equal(kvs_cache_export(c, layer, at, 1, &p, NULL), KVS_OK);
    return 6 * sizeof room[0];
}

static void same_layer(const kvs_cache *a, const kvs_cache *b, uint32_t layer)
{
    static uint64_t x[6][2048];
    static uint64_t y[6][2048];
    const kvs_layer_spec *s = kvs_cache_spec(a, layer);
    int64_t n = kvs_cache_length(a, layer);
    assert_int_equal(kvs_cache_length(b, layer), n);
    int64_t from = kvs_cache_oldest(a, layer);
    int64_t window = s->window && n > (int64_t)s->window ? n - (int64_t)s->window : 0;
    assert_true(kvs_cache_oldest(b, layer) <= window || kvs_cache_oldest(b, layer) <= from);
    from = kvs_cache_oldest(b, layer) > from ? kvs_cache_oldest(b, layer) : from;
    for (int64_t p = 0; p < n; p++) {
        if (p >= from || p < (int64_t)s->sinks) {
            size_t bytes = planes_of(a, layer, p, x);
            (void)planes_of(b, layer, p, y);
            assert_memory_equal(x, y, bytes);
        }
    }
}

static kvs_prompt_cache *open_file(const char *name)
{
    kvs_prompt_cache *f = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_prompt_cache_open(ctx, name, &f, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return f;
}

static void save(const kvs_cache *c, const kvs_prompt_save_opts *o)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_prompt_cache_save(c, o, path, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
}

static int set_up(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dir, sizeof dir, "%s/kvs-prompt-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    if (!mkdtemp(dir) || kvs_ctx_new(&o, &ctx, NULL) != KVS_OK) {
        return -1;
    }
    (void)snprintf(path, sizeof path, "%s/file.safetensors", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    (void)unlink(path);
    return rmdir(dir); /* no temporary file may have stayed */
}

#endif
