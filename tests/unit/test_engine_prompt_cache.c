/* SPDX-License-Identifier: MIT */
/* test_engine_prompt_cache.c: prompt-cache files written and read again: the same bytes in every kind of
 * layer and both layouts, what is refused and why, damaged files, failing memory and failing disks,
 * sessions. What mlx-lm itself makes of them is oracle_files.py's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "engine/gguf_priv.h"
#include "engine/pcache.h"
#include "engine/safetensors_write.h"
#include "kvstate/engine.h"
#include "support/fail_alloc.h"
#include "support/memfs.h"
#include "support/model_build.h"

enum { MOST = 3, MAX_TOKENS = 700 };

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

/* The same answers now and after more tokens. */
static void same_reads(kvs_cache *a, kvs_cache *b)
{
    static float q[4 * 128];
    static float out[2][4 * 128];
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof q / sizeof q[0]; i++) {
        q[i] = tiny_random(&state);
    }
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t l = 0; l < kvs_cache_n_layers(a); l++) {
            kvs_attend d = KVS_ATTEND_INIT;
            d.n_queries = 1;
            d.n_q_heads = kvs_cache_spec(a, l)->n_kv_heads;
            d.q = q;
            d.scale = 0.1f;
            memset(out, 0, sizeof out);
            d.out = out[0];
            assert_int_equal(kvs_cache_attend(a, l, &d, NULL), KVS_OK);
            d.out = out[1];
            assert_int_equal(kvs_cache_attend(b, l, &d, NULL), KVS_OK);
            assert_memory_equal(out[0], out[1], sizeof out[0]);
        }
        feed(a, 1 + round, 77 + round);
        feed(b, 1 + round, 77 + round);
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

/* ---- there and back */

typedef struct round_row {
    const char *name;
    uint32_t n_layers;
    kvs_layer_spec spec[MOST];
    uint32_t tokens;
    uint32_t layouts; /* 1: since 0.32, 2: before, 3: both */
    kvs_prompt_class cls;
} round_row;

static const round_row rows[] = {
    {"f32", 1, {SPEC(2, 64, 64, DENSE(KVS_F32))}, 300, 3, KVS_PROMPT_KV},
    {"f16",
     2,
     {SPEC(2, 64, 128, DENSE(KVS_F16)), SPEC(1, 16, 16, DENSE(KVS_BF16))},
     17,
     3,
     KVS_PROMPT_KV},
    {"affine4", 1, {SPEC(3, 64, 128, AFFINE(4, 64, KVS_F16))}, 33, 3, KVS_PROMPT_QUANTIZED},
    {"affine3", 1, {SPEC(1, 96, 96, AFFINE(3, 32, KVS_BF16))}, 20, 3, KVS_PROMPT_QUANTIZED},
    {"affine8", 1, {SPEC(1, 128, 128, AFFINE(8, 128, KVS_F32))}, 270, 3, KVS_PROMPT_QUANTIZED},
    {"ring", 1, {SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 8))}, 61, 3, KVS_PROMPT_ROTATING},
    {"ring, part",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 8))},
     11,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, full",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), RING(20, 4, 8))},
     24,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, sinks",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_BF16), RING(20, 4, 1))},
     61,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, quantised",
     1,
     {SPEC(2, 64, 64, AFFINE(4, 32, KVS_F16), RING(20, 4, 8))},
     61,
     2,
     KVS_PROMPT_ROTATING_QUANTIZED},
    {"window that keeps all",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24)},
     61,
     3,
     KVS_PROMPT_ROTATING},
    {"paged", 1, {SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(0, 0))}, 100, 3, KVS_PROMPT_KV},
    {"paged window",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(24, 8))},
     300,
     3,
     KVS_PROMPT_ROTATING},
    {"latent",
     1,
     {SPEC(1, 80, 64, DENSE(KVS_F16), .kind = KVS_LAYER_LATENT)},
     40,
     3,
     KVS_PROMPT_KV},
    {"latent, quantised",
     1,
     {SPEC(1, 128, 96, AFFINE(8, 32, KVS_F16), .kind = KVS_LAYER_LATENT)},
     40,
     3,
     KVS_PROMPT_QUANTIZED},
    {"before the start",
     1,
     {SPEC(1, 64, 64, AFFINE(4, 64, KVS_BF16), .dense_until = 30, .dense_dtype = KVS_BF16)},
     30,
     3,
     KVS_PROMPT_KV},
    {"after the start",
     1,
     {SPEC(1, 64, 64, AFFINE(4, 64, KVS_BF16), .dense_until = 30, .dense_dtype = KVS_BF16)},
     300,
     3,
     KVS_PROMPT_QUANTIZED},
    {"a borrower",
     3,
     {SPEC(1, 32, 32, DENSE(KVS_F16)),
      SPEC(1, 32, 32, DENSE(KVS_F16), .kind = KVS_LAYER_BORROW, .donor = 0),
      SPEC(1, 32, 32, DENSE(KVS_F32))},
     9,
     3,
     KVS_PROMPT_KV},
};

static void round_trip(const round_row *r, kvs_prompt_layout layout)
{
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_prompt_layer info = KVS_PROMPT_LAYER_INIT;
    kvs_prompt_info file = KVS_PROMPT_INFO_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.layout = layout;
    kvs_cache *a = make(ctx, r->spec, r->n_layers);
    kvs_cache *b = make(ctx, r->spec, r->n_layers);
    feed(a, r->tokens, 1);
    save(a, &o);
    kvs_prompt_cache *f = open_file(path);
    assert_int_equal(kvs_prompt_cache_get_info(f, &file), KVS_OK);
    assert_int_equal(file.layout, layout);
    assert_int_equal(file.n_rows, 1);
    assert_int_equal(kvs_prompt_cache_get_layer(f, 0, &info), KVS_OK);
    assert_int_equal(info.cls, r->cls);
    assert_int_equal(info.offset, r->tokens);
    assert_int_equal(info.window, r->spec[0].window);
    assert_int_equal(info.sinks, r->spec[0].sinks);
    assert_int_equal(kvs_prompt_cache_get_layer(f, file.n_layers, &info), KVS_NO);
    if (kvs_prompt_cache_load(f, 0, b, &err) != KVS_OK) {
        fail_msg("%s: %s", r->name, err.msg);
    }
    for (uint32_t l = 0; l < r->n_layers; l++) {
        same_layer(a, b, l);
    }
    same_reads(a, b);
    assert_int_equal(kvs_prompt_cache_load(f, 0, b, &err), KVS_E_STATE);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (uint32_t layout = 0; layout < 2; layout++) {
            if (rows[i].layouts >> layout & 1) {
                round_trip(&rows[i], (kvs_prompt_layout)layout);
            }
        }
    }
}

/* A ring's file fits a ring of another phase and block, and one that keeps all. */
static void test_other_layouts(void **state)
{
    (void)state;
    const kvs_layer_spec grow = SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24);
    const kvs_layer_spec to[] = {
        SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 1)),
        SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 64)),
        SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(24, 8)),
        SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24),
    };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        kvs_cache *a = make(ctx, &grow, 1);
        kvs_cache *b = make(ctx, &to[i], 1);
        feed(a, 100, 3);
        save(a, NULL);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        same_layer(a, b, 0);
        kvs_prompt_cache_close(f);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
}

/* ---- several rows, lists, chunks, metadata */

static void test_batch(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(2, 32, 64, DENSE(KVS_F16)),
                                     SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 64))};
    const uint32_t n[3] = {5, 60, 24};
    for (int layout = 0; layout < 2; layout++) {
        kvs_cache *c[3];
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_prompt_info info = KVS_PROMPT_INFO_INIT;
        for (int r = 0; r < 3; r++) {
            c[r] = make(ctx, specs, 2);
            feed(c[r], n[r], 10 + (uint64_t)r);
        }
        const kvs_cache *more[2] = {c[1], c[2]};
        o.layout = (kvs_prompt_layout)layout;
        o.more = more;
        o.n_more = 2;
        save(c[0], &o);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_get_info(f, &info), KVS_OK);
        assert_int_equal(info.n_rows, 3);
        for (uint32_t r = 0; r < 3; r++) {
            kvs_cache *b = make(ctx, specs, 2);
            assert_int_equal(kvs_prompt_cache_load(f, r, b, NULL), KVS_OK);
            same_layer(c[r], b, 0);
            same_layer(c[r], b, 1);
            same_reads(c[r], b);
            kvs_cache_free(b);
        }
        kvs_cache *b = make(ctx, specs, 2);
        assert_int_equal(kvs_prompt_cache_load(f, 3, b, NULL), KVS_E_RANGE);
        kvs_cache_free(b);
        kvs_prompt_cache_close(f);
        for (int r = 0; r < 3; r++) {
            kvs_cache_free(c[r]);
        }
    }
}

static bool str_is(const char *s, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(s, want, n) == 0;
}

static void test_lists_and_meta(void **state)
{
    (void)state;
    const kvs_layer_spec specs[3] = {SPEC(2, 32, 64, DENSE(KVS_F16)),
                                     SPEC(1, 64, 64, AFFINE(8, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F32))};
    const kvs_prompt_form forms[3] = {{9, 0}, {9, 0}, {0, 64}};
    const kvs_prompt_meta meta[2] = {{"model", "a \"b\"\n\\ \xc3\xa9"}, {"empty", ""}};
    int32_t tokens[7] = {1, 0, 2147483647, 3, 4, 5, 6};
    int32_t back[8];
    for (int layout = 0; layout < 2; layout++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_prompt_layer l = KVS_PROMPT_LAYER_INIT;
        kvs_prompt_info info = KVS_PROMPT_INFO_INIT;
        kvs_cache *a = make(ctx, specs, 3);
        kvs_cache *b = make(ctx, specs, 3);
        feed(a, 7, 2);
        o.layout = (kvs_prompt_layout)layout;
        o.forms = forms;
        o.n_forms = 3;
        o.meta = meta;
        o.n_meta = 2;
        o.tokens = tokens;
        o.n_tokens = 7;
        save(a, &o);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_get_info(f, &info), KVS_OK);
        assert_true(info.n_entries == 2 && info.n_layers == 3 && info.n_meta == 3);
        assert_int_equal(kvs_prompt_cache_get_layer(f, 1, &l), KVS_OK);
        assert_true(l.entry == 0 && l.member == 1 && l.cls == KVS_PROMPT_QUANTIZED);
        assert_int_equal(kvs_prompt_cache_get_layer(f, 2, &l), KVS_OK);
        assert_true(l.entry == 1 && l.member == UINT32_MAX && l.cls == KVS_PROMPT_CHUNKED &&
                    l.chunk == 64);
        const char *k = NULL;
        const char *v = NULL;
        size_t kn = 0;
        size_t vn = 0;
        assert_int_equal(kvs_prompt_cache_get_meta(f, 2, &k, &kn, &v, &vn), KVS_OK);
        assert_true(str_is(k, kn, "model") && str_is(v, vn, meta[0].value));
        assert_int_equal(kvs_prompt_cache_get_meta(f, 3, &k, &kn, &v, &vn), KVS_NO);
        size_t n = 0;
        assert_int_equal(kvs_prompt_cache_get_tokens(f, back, 8, &n, NULL), KVS_OK);
        assert_int_equal(n, 7);
        assert_memory_equal(back, tokens, sizeof tokens);
        assert_int_equal(kvs_prompt_cache_get_tokens(f, back, 2, &n, NULL), KVS_OK);
        assert_int_equal(n, 7);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        for (uint32_t i = 0; i < 3; i++) {
            same_layer(a, b, i);
        }
        kvs_prompt_cache_close(f);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
}

/* ---- refusals */

static void save_refused(const kvs_layer_spec *spec, uint32_t tokens, const kvs_prompt_save_opts *o,
                         kvs_status status, const char *says)
{
    kvs_cache *c = make(ctx, spec, 1);
    kvs_err err = {KVS_OK, 0, "", ""};
    feed(c, tokens, 4);
    (void)unlink(path);
    kvs_status st = kvs_prompt_cache_save(c, o, path, &err);
    if (st != status || !strstr(err.msg, says)) {
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", st, err.msg, status, says);
    }
    assert_int_equal(access(path, F_OK), -1);
    kvs_cache_free(c);
}

static void test_save_refused(void **state)
{
    (void)state;
    const kvs_layer_spec plain = SPEC(1, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec rotated =
        SPEC(1, 64, 64, .k = {4, 1, 64, KVS_F16}, .v = {4, 1, 64, KVS_F16});
    const kvs_layer_spec apart =
        SPEC(1, 64, 64, .k = {8, 0, 64, KVS_F16}, .v = {4, 0, 64, KVS_F16});
    const kvs_layer_spec groups =
        SPEC(1, 64, 64, .k = {4, 0, 32, KVS_F16}, .v = {4, 0, 64, KVS_F16});
    const kvs_layer_spec types =
        SPEC(1, 64, 64, .k = {4, 0, 64, KVS_F16}, .v = {4, 0, 64, KVS_F32});
    const kvs_layer_spec ring = SPEC(1, 64, 64, AFFINE(4, 64, KVS_F16), RING(20, 0, 8));
    const kvs_layer_spec sinks = SPEC(1, 64, 64, DENSE(KVS_F16), RING(20, 4, 8));
    kvs_prompt_save_opts old = KVS_PROMPT_SAVE_OPTS_INIT;
    old.layout = KVS_PROMPT_MLX_LM_031;
    save_refused(&rotated, 5, NULL, KVS_E_UNSUPPORTED,
                 "layer 0 can't be written for mlx-lm: its codes are rotated");
    save_refused(&apart, 5, NULL, KVS_E_UNSUPPORTED, "other bits or groups");
    save_refused(&groups, 5, NULL, KVS_E_UNSUPPORTED, "other bits or groups");
    save_refused(&types, 5, NULL, KVS_E_UNSUPPORTED, "scales of keys and values");
    save_refused(&ring, 5, NULL, KVS_E_UNSUPPORTED, "a quantised window has no class");
    save_refused(&plain, 0, &old, KVS_E_UNSUPPORTED, "it is empty");
    const struct {
        kvs_prompt_meta meta;
        const char *says;
    } keys[] = {{{"a.b", ""}, "has no dot"}, {{"1a", ""}, "begin like a number"},
                {{"", ""}, "given once"},    {{"a", "\xff"}, "no UTF-8"},
                {{NULL, ""}, "is NULL"},     {{"kvstate_tokens", "1"}, "given once"}};
    const int32_t tokens[5] = {1, 2, 3, 4, 5};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        o.meta = &keys[i].meta;
        o.n_meta = 1;
        o.tokens = tokens;
        o.n_tokens = 5;
        save_refused(&plain, 5, &o, KVS_E_INVAL, keys[i].says);
    }
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    o.tokens = tokens;
    o.n_tokens = 4;
    save_refused(&plain, 5, &o, KVS_E_INVAL, "4 tokens, the cache holds 5");
    o = (kvs_prompt_save_opts)KVS_PROMPT_SAVE_OPTS_INIT;
    const kvs_prompt_form chunk = {0, 8};
    o.forms = &chunk;
    o.n_forms = 1;
    save_refused(&sinks, 5, &o, KVS_E_UNSUPPORTED, "a ChunkedKVCache is dense");
    o.n_forms = 2;
    save_refused(&plain, 5, &o, KVS_E_INVAL, "2 forms for 1 layers");
    kvs_cache *other = make(ctx, &plain, 1);
    const kvs_cache *more = other;
    o = (kvs_prompt_save_opts)KVS_PROMPT_SAVE_OPTS_INIT;
    o.more = &more;
    o.n_more = 1;
    save_refused(&sinks, 5, &o, KVS_E_INVAL, "row 1 has another plan");
    kvs_cache_free(other);
    other = make(ctx, &sinks, 1);
    more = other;
    save_refused(&sinks, 5, &o, KVS_E_UNSUPPORTED, "a batch has no sinks");
    kvs_cache_free(other);
    struct {
        kvs_prompt_save_opts o;
        uint64_t tail;
    } longer = {KVS_PROMPT_SAVE_OPTS_INIT, 1};
    longer.o.struct_size = sizeof longer;
    save_refused(&plain, 5, &longer.o, KVS_E_UNSUPPORTED, "kvs_prompt_save_opts");
}

static void load_refused(const kvs_layer_spec *from, uint32_t tokens, const kvs_layer_spec *to,
                         kvs_status status, const char *says)
{
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_cache *a = make(ctx, from, 1);
    kvs_cache *b = make(ctx, to, 1);
    kvs_err err = {KVS_OK, 0, "", ""};
    feed(a, tokens, 4);
    save(a, &o);
    kvs_prompt_cache *f = open_file(path);
    kvs_status st = kvs_prompt_cache_load(f, 0, b, &err);
    if (st != status || !strstr(err.msg, says) || !strstr(err.msg, "layer 0")) {
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", st, err.msg, status, says);
    }
    assert_int_equal(kvs_cache_length(b, 0), 0);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_load_refused(void **state)
{
    (void)state;
    const kvs_layer_spec f16 = SPEC(2, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec bf16 = SPEC(2, 64, 64, DENSE(KVS_BF16));
    const kvs_layer_spec heads = SPEC(1, 64, 64, DENSE(KVS_F16));
    const kvs_layer_spec dims = SPEC(2, 64, 128, DENSE(KVS_F16));
    const kvs_layer_spec q4 = SPEC(2, 64, 64, .k = {4, 1, 64, KVS_F16}, .v = {4, 1, 64, KVS_F16});
    const kvs_layer_spec a4 = SPEC(2, 64, 64, AFFINE(4, 64, KVS_F16));
    const kvs_layer_spec a4g = SPEC(2, 64, 64, AFFINE(4, 32, KVS_F16));
    const kvs_layer_spec w24 = SPEC(2, 64, 64, DENSE(KVS_F16), RING(24, 0, 8));
    const kvs_layer_spec w32 = SPEC(2, 64, 64, DENSE(KVS_F16), RING(32, 0, 8));
    const kvs_layer_spec w24s = SPEC(2, 64, 64, DENSE(KVS_F16), RING(24, 2, 8));
    const kvs_layer_spec all = SPEC(2, 64, 64, DENSE(KVS_F16), .window = 24);
    const kvs_layer_spec late =
        SPEC(2, 64, 64, AFFINE(4, 64, KVS_F16), .dense_until = 50, .dense_dtype = KVS_F16);
    load_refused(&f16, 5, &bf16, KVS_E_UNSUPPORTED,
                 "keys are f16 in the file, the plan keeps bf16");
    load_refused(&f16, 5, &heads, KVS_E_UNSUPPORTED, "2 heads of 64/64");
    load_refused(&f16, 5, &dims, KVS_E_UNSUPPORTED, "2 of 64/128");
    load_refused(&a4, 5, &q4, KVS_E_UNSUPPORTED, "rotated codes can't be exchanged");
    load_refused(&a4, 5, &a4g, KVS_E_UNSUPPORTED,
                 "keys are affine4:64 in the file, the plan keeps affine4:32");
    load_refused(&a4, 5, &f16, KVS_E_UNSUPPORTED, "the plan keeps f16");
    load_refused(&a4, 5, &late, KVS_E_UNSUPPORTED, "the plan keeps f16 before its start");
    load_refused(&f16, 60, &late, KVS_E_UNSUPPORTED, "the plan keeps affine4:64");
    load_refused(&w24, 60, &w32, KVS_E_UNSUPPORTED,
                 "a window of 24 and 0 sinks in the file, 32 and 0");
    load_refused(&w24, 60, &w24s, KVS_E_UNSUPPORTED, "24 and 2 in the plan");
    load_refused(&w24, 60, &f16, KVS_E_UNSUPPORTED, "0 and 0 in the plan (0: none)");
    load_refused(&w24, 60, &all, KVS_E_UNSUPPORTED, "this plan keeps all");
    /* nothing dropped or hidden yet: any window will do */
    kvs_cache *a = make(ctx, &w24, 1);
    feed(a, 20, 4);
    save(a, NULL);
    const kvs_layer_spec *const fits[] = {&w24, &w32, &w24s, &f16, &all};
    for (size_t i = 0; i < sizeof fits / sizeof fits[0]; i++) {
        kvs_cache *b = make(ctx, fits[i], 1);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        assert_int_equal(kvs_cache_length(b, 0), 20);
        kvs_prompt_cache_close(f);
        kvs_cache_free(b);
    }
    kvs_layer_spec two[2] = {w24, w24};
    kvs_cache *b = make(ctx, two, 2);
    kvs_prompt_cache *f = open_file(path);
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_prompt_cache_load(f, 0, b, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "1 layers in the file, the model keeps 2"));
    assert_int_equal(kvs_cache_length(b, 0), 0);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

/* ---- damage */

static uint8_t *read_whole(size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    (void)fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    uint8_t *p = malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    (void)fclose(f);
    return p;
}

/* Opens in an allocation of exactly n bytes, so that a sanitizer sees any access outside; loads. */
static kvs_status try_bytes(const uint8_t *bytes, size_t n, const kvs_layer_spec *specs, uint32_t k,
                            kvs_err *err)
{
    uint8_t *p = malloc(n ? n : 1);
    memcpy(p, bytes, n);
    kvs_prompt_cache *f = NULL;
    kvs_status st = kvs__prompt_cache_open_mem(ctx, p, n, "damaged", &f, err);
    assert_true((st == KVS_OK) == (f != NULL));
    if (f) {
        kvs_cache *c = make(ctx, specs, k);
        st = kvs_prompt_cache_load(f, 0, c, err);
        assert_true(st == KVS_OK || kvs_cache_length(c, 0) == 0);
        kvs_cache_free(c);
    }
    kvs_prompt_cache_close(f);
    free(p);
    return st;
}

static void test_damage(void **state)
{
    (void)state;
    const kvs_layer_spec specs[3] = {SPEC(1, 32, 32, DENSE(KVS_F16)),
                                     SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    kvs_cache *a = make(ctx, specs, 3);
    feed(a, 9, 6);
    for (int layout = 0; layout < 2; layout++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_err err = {KVS_OK, 0, "", ""};
        size_t n = 0;
        o.layout = (kvs_prompt_layout)layout;
        save(a, &o);
        uint8_t *p = read_whole(&n);
        uint64_t header = kvs__gguf_le64(p);
        assert_int_equal(try_bytes(p, n, specs, 3, &err), KVS_OK);
        for (size_t cut = 0; cut < n; cut += cut < 64 ? 1 : 37) {
            assert_true(try_bytes(p, cut, specs, 3, &err) < 0);
        }
        for (size_t i = 0; i < 8 + header; i++) {
            for (int bit = 0; bit < 8; bit += 3) {
                p[i] ^= (uint8_t)(1 << bit);
                (void)try_bytes(p, n, specs, 3, &err);
                p[i] ^= (uint8_t)(1 << bit);
            }
        }
        free(p);
    }
    kvs_cache_free(a);
}

/* Numbers that contradict the tensors are told, each by name. */
static void test_contradictions(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    const struct {
        const char *from, *to, *says;
    } swaps[] = {
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"8\"", NULL}, /* spare rows are fine */
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"x\"", "layer 0: offset is missing or no count"},
        {"\"0.0.0\":\"9\"", "\"0.0.0\":\"-\"", "offset is missing"},
        {"\"0.0.1\":\"32\"", "\"0.0.1\":\"64\"", "words, scales and biases do not fit"},
        {"\"0.0.1\":\"32\"", "\"0.0.1\":\"33\"", "4 bits in groups of 33"},
        {"\"0.0.2\":\"4\"", "\"0.0.2\":\"8\"", "words, scales and biases do not fit"},
        {"\"0.0.2\":\"4\"", "\"0.0.2\":\"7\"", "7 bits in groups of 32"},
        {"\"0.1.1\":\"5\"", "\"0.1.1\":\"1\"", "max_size does not hold what it keeps"},
        {"\"0.1.2\":\"9\"", "\"0.1.2\":\"3\"", "offset and index do not fit"},
        {"\"0.1.3\":\"9\"", "\"0.1.3\":\"8\"", "offset and index do not fit"},
        {"\"0.1.3\":\"9\"", "\"0.1.3\":\"0\"", "offset and index do not fit"},
        {"\"QuantizedKVCache\"", "\"QuantizedKVCachX\"", "class \"QuantizedKVCachX\" is not known"},
        {"\"2.0\":", "\"3.0\":", "the metadata names no classes"},
        {"\"0.0.1\":", "\"0.0.2\":", "a name twice"},
        {"\"1.0\":{", "\"1.7\":{", "no tensor 1.0"},
        {"\"F16\",\"shape\":[1,1,9,1]", "\"I16\",\"shape\":[1,1,9,1]", "do not fit its bits"},
        {"\"shape\":[1,1,9,32]", "\"shape\":[1,9,1,32]", "another shape than"},
    };
    kvs_cache *a = make(ctx, specs, 2);
    feed(a, 9, 6);
    o.layout = KVS_PROMPT_MLX_LM_031;
    save(a, &o);
    size_t n = 0;
    uint8_t *p = read_whole(&n);
    for (size_t i = 0; i < sizeof swaps / sizeof swaps[0]; i++) {
        kvs_err err = {KVS_OK, 0, "", ""};
        uint8_t *q = malloc(n);
        memcpy(q, p, n);
        size_t len = strlen(swaps[i].from);
        size_t at = 0;
        while (at + len <= n && memcmp(q + at, swaps[i].from, len) != 0) {
            at++;
        }
        if (at + len > n) {
            fail_msg("%s is not in the file", swaps[i].from);
        }
        memcpy(q + at, swaps[i].to, len);
        kvs_status st = try_bytes(q, n, specs, 2, &err);
        if (swaps[i].says ? (st >= 0 || !strstr(err.msg, swaps[i].says)) : st != KVS_OK) {
            fail_msg("%s: %d \"%s\"; expected \"%s\"", swaps[i].to, st, err.msg, swaps[i].says);
        }
        free(q);
    }
    free(p);
    kvs_cache_free(a);
}

/* ---- failing memory, failing disk */

static void test_memory(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(1, 32, 32, AFFINE(4, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F16), RING(4, 1, 1))};
    const kvs_prompt_meta meta = {"note", "\n"};
    const int32_t tokens[9] = {0};
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    fail_alloc fa = FAIL_ALLOC_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *c = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &fa;
    assert_int_equal(kvs_ctx_new(&co, &c, NULL), KVS_OK);
    kvs_cache *a = make(c, specs, 2);
    kvs_cache *b = make(c, specs, 2);
    feed(a, 9, 6);
    o.layout = KVS_PROMPT_MLX_LM_031;
    o.meta = &meta;
    o.n_meta = 1;
    o.tokens = tokens;
    o.n_tokens = 9;
    (void)unlink(path);
    long blocks = fa.blocks;
    long k = 0;
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        fa.calls = 0;
        fa.fail_at = k;
        st = kvs_prompt_cache_save(a, &o, path, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        assert_int_equal(access(path, F_OK) == 0, st == KVS_OK);
        assert_int_equal(fa.blocks, blocks);
    }
    assert_true(k > 5);
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        kvs_prompt_cache *f = NULL;
        fa.calls = 0;
        fa.fail_at = k - 6;
        st = kvs_prompt_cache_open(c, path, &f, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || (st == KVS_E_NOMEM && !f));
        kvs_prompt_cache_close(f);
        assert_int_equal(fa.blocks, blocks);
    }
    kvs_prompt_cache *f = NULL;
    assert_int_equal(kvs_prompt_cache_open(c, path, &f, &err), KVS_OK);
    k = 0;
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        fa.calls = 0;
        fa.fail_at = k;
        st = kvs_prompt_cache_load(f, 0, b, &err);
        fa.fail_at = -1;
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        assert_int_equal(kvs_cache_length(b, 0), st == KVS_OK ? 9 : 0);
    }
    assert_true(k > 2);
    same_layer(a, b, 1);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
    kvs_ctx_free(c);
    assert_int_equal(fa.blocks, 0);
    assert_int_equal(fa.wrong, 0);
}

/* One tensor of 3 numbers and a note; 0: published. */
static kvs_status write_small(kvs__vfs *v, const char *text, kvs_err *err)
{
    kvs__st_writer *w = NULL;
    const size_t dims[1] = {3};
    const int32_t data[3] = {1, 2, 3};
    kvs_status st = kvs__st_writer_new(ctx, &w, err);
    st = st == KVS_OK ? kvs__st_meta(w, "note", text, err) : st;
    st = st == KVS_OK ? kvs__st_tensor_declare(w, "x", KVS__ST_I32, 1, dims, err) : st;
    st = st == KVS_OK ? kvs__st_begin(w, v, "/d/file", err) : st;
    st = st == KVS_OK ? kvs__st_data(w, data, sizeof data, err) : st;
    st = st == KVS_OK ? kvs__st_commit(w, err) : st;
    kvs__st_writer_free(w);
    return st;
}

/* What lies under the final name, and nothing else lies there; its note. */
static char note_of(memfs *m)
{
    assert_true(memfs_look(m, "/d/file") >= 0);
    const memfs_inode *x = &m->inodes[m->names[memfs_look(m, "/d/file")].inode];
    kvs__safetensors *s = NULL;
    assert_int_equal(kvs__safetensors_open_mem(ctx, x->data, x->n, "file", &s, NULL), KVS_OK);
    kvs__jval v = kvs__json_get(kvs__safetensors_metadata(s), "note");
    char c = kvs__json_raw(v).ptr[0];
    kvs__safetensors_close(s);
    return c;
}

static void test_disk(void **state)
{
    (void)state;
    kvs_err err = {KVS_OK, 0, "", ""};
    memfs *m = memfs_new();
    assert_int_equal(m->v.mkdir(&m->v, "/d"), 0);
    assert_int_equal(write_small(&m->v, "a", &err), KVS_OK);
    assert_int_equal(note_of(m), 'a');
    int names = m->n_names;
    kvs_status st = KVS_E_IO;
    for (long k = 0; st != KVS_OK; k++) {
        m->calls = 0;
        m->fail_at = k;
        m->fail_errno = ENOSPC;
        st = write_small(&m->v, "b", &err);
        bool done = m->calls <= k;
        m->fail_at = -1;
        assert_int_equal(st == KVS_OK, done);
        assert_true(st == KVS_OK || (st == KVS_E_IO && err.sys_errno == ENOSPC));
        assert_true(note_of(m) == (st == KVS_OK ? 'b' : 'a') || m->calls >= 5);
        assert_int_equal(m->n_names, names); /* no temporary file stays */
    }
    memfs_free(m);
    const kvs_layer_spec spec = SPEC(1, 32, 32, DENSE(KVS_F16));
    kvs_cache *a = make(ctx, &spec, 1);
    assert_int_equal(kvs_prompt_cache_save(a, NULL, "/nonexistent/x", &err), KVS_E_IO);
    assert_non_null(strstr(err.msg, "/nonexistent/x"));
    save(a, NULL);
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    kvs_cache_free(a);
}

/* ---- a session */

static void test_session(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA;
    char model_path[256];
    kvs_model *model = NULL;
    kvs_plan *plan = NULL;
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_session *s[2];
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t tokens[100];
    size_t reused = 0;
    size_t n = 0;
    for (int i = 0; i < 100; i++) {
        tokens[i] = (i * 31 + 7) % 97;
    }
    assert_true(tiny_write(&t, model_path, sizeof model_path));
    assert_int_equal(kvs_model_open(ctx, model_path, NULL, &model, NULL), KVS_OK);
    po.kv = "bf16";
    po.max_block = 8;
    assert_int_equal(kvs_plan_new(ctx, model, &po, &plan, NULL), KVS_OK);
    so.plan = plan;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvs_session_new(ctx, model, &so, &s[i], NULL), KVS_OK);
    }
    assert_int_equal(kvs_session_sync(s[0], tokens, 90, NULL, NULL), KVS_OK);
    o.tokens = tokens;
    o.n_tokens = 90;
    save(kvs_session_cache(s[0]), &o);
    assert_int_equal(kvs_session_append(s[0], tokens + 90, 10, NULL), KVS_OK);

    kvs_prompt_cache *f = open_file(path);
    assert_int_equal(kvs_session_append(s[1], tokens, 3, NULL), KVS_OK); /* is given up */
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_null(kvs_session_logits(s[1]));
    assert_memory_equal(kvs_session_tokens(s[1], &n), tokens, 90 * sizeof *tokens);
    assert_int_equal(n, 90);
    assert_int_equal(kvs_session_sync(s[1], tokens, 100, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 90);
    assert_memory_equal(kvs_session_logits(s[0]), kvs_session_logits(s[1]), 97 * sizeof(float));
    /* exactly what is held: the last token is computed again */
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_int_equal(kvs_session_sync(s[1], tokens, 90, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 89);
    assert_int_equal(kvs_session_append(s[1], tokens + 90, 10, NULL), KVS_OK);
    assert_memory_equal(kvs_session_logits(s[0]), kvs_session_logits(s[1]), 97 * sizeof(float));
    kvs_prompt_cache_close(f);

    /* tokens that the file does not tell: one goes on behind them, and samples */
    kvs_session *cold = s[0];
    assert_int_equal(kvs_session_sync(cold, tokens, 90, NULL, NULL), KVS_OK);
    save(kvs_session_cache(cold), NULL);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_int_equal(kvs_session_tokens(s[1], &n)[89], -1);
    assert_int_equal(kvs_session_append(s[1], tokens + 90, 10, NULL), KVS_OK);
    assert_int_equal(kvs_session_append(cold, tokens + 90, 10, NULL), KVS_OK);
    assert_memory_equal(kvs_session_logits(cold), kvs_session_logits(s[1]), 97 * sizeof(float));
    kvs_sampler_opts sam = KVS_SAMPLER_OPTS_INIT;
    kvs_sampler *sampler = NULL;
    int32_t token = -1;
    sam.repeat_penalty = 1.5f;
    assert_int_equal(kvs_sampler_new(ctx, &sam, 97, &sampler, NULL), KVS_OK);
    assert_int_equal(kvs_session_sample(s[1], sampler, &token, NULL), KVS_OK);
    assert_true(token >= 0 && token < 97);
    kvs_sampler_free(sampler);
    assert_int_equal(kvs_session_sync(s[1], tokens, 90, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 0);
    kvs_prompt_cache_close(f);

    /* more tokens than another session's context, and tokens that are none of the model's */
    kvs_plan *small = NULL;
    kvs_session *t2 = NULL;
    po.n_ctx = 80;
    assert_int_equal(kvs_plan_new(ctx, model, &po, &small, NULL), KVS_OK);
    so.plan = small;
    assert_int_equal(kvs_session_new(ctx, model, &so, &t2, NULL), KVS_OK);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(t2, f, 0, &err), KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "90 tokens in the file do not fit into the context of 80"));
    (void)kvs_session_tokens(t2, &n);
    assert_int_equal(n, 0);
    kvs_prompt_cache_close(f);
    tokens[4] = 97;
    o.n_tokens = 90;
    assert_int_equal(kvs_session_sync(cold, tokens + 10, 90, NULL, NULL), KVS_OK);
    save(kvs_session_cache(cold), &o);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_E_RANGE);
    assert_int_equal(kvs_session_sync(s[1], tokens + 10, 20, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 0);
    kvs_prompt_cache_close(f);
    kvs_session_free(t2);
    kvs_session_free(s[0]);
    kvs_session_free(s[1]);
    kvs_plan_free(small);
    kvs_plan_free(plan);
    kvs_model_close(model);
    (void)unlink(model_path);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_other_layouts),
        cmocka_unit_test(test_batch),        cmocka_unit_test(test_lists_and_meta),
        cmocka_unit_test(test_save_refused), cmocka_unit_test(test_load_refused),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_memory),       cmocka_unit_test(test_disk),
        cmocka_unit_test(test_session),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
