/* SPDX-License-Identifier: MIT */
/* test_pages.c: the pool and the layers on it: options, exact bytes, the hard limit, steady windows,
 * forks and copies on write, lifetimes. What a prefix index does is in test_pages_index.c; that any
 * block size reads as grow does, in test_cache_read and the op programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RIG_PAGED
#include "diff/ops_paged.h"
#include "support/cache_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static kvs_pages_stats stats_of(const kvs_pages *p)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(p, &s), KVS_OK);
    assert_true(kvs__pages_check(p));
    assert_int_equal(s.n_free + s.n_cached + s.n_held, s.n_total);
    return s;
}

/* -- options */

static void refuse_pool(kvs_ctx *ctx, kvs_pages_opts o, kvs_status want, const char *word)
{
    kvs_pages *p = (kvs_pages *)&o;
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t live = rig_live(ctx);
    assert_int_equal(kvs_pages_new(ctx, &o, &p, &err), want);
    assert_null(p);
    assert_true(err.status == want && strstr(err.msg, word));
    assert_int_equal(rig_live(ctx), live);
}

static void test_bad_pools(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = 257;
    refuse_pool(ctx, o, KVS_E_INVAL, "257");
    o.block_tokens = 256;
    o.reserved = 3;
    refuse_pool(ctx, o, KVS_E_UNSUPPORTED, "3");
    o.reserved = 0;
    o.max_bytes = 1;
    refuse_pool(ctx, o, KVS_E_LIMIT, "1");
    assert_int_equal(kvs_pages_new(NULL, NULL, &p, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_pages_new(ctx, NULL, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_pages_new(ctx, NULL, &p, NULL), KVS_OK);
    kvs_pages_stats s = stats_of(p);
    assert_true(s.block_tokens == 64 && s.n_classes == 0 && s.n_total == 0 && s.max_bytes == 0);
    kvs_pages_class c = KVS_PAGES_CLASS_INIT;
    assert_int_equal(kvs_pages_get_class(p, 0, &c), KVS_E_RANGE);
    assert_int_equal(kvs_pages_get_class(NULL, 0, &c), KVS_E_INVAL);
    assert_int_equal(kvs_pages_get_stats(NULL, &s), KVS_E_INVAL);
    assert_int_equal(kvs_pages_get_stats(p, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_pages_set_limit(NULL, 0, NULL), KVS_E_INVAL);
    kvs_pages_free(p);
    kvs_pages_free(NULL);
    kvs_ctx_free(ctx);
}

static void refuse_cache(kvs_ctx *ctx, const kvs_cache_opts *o, kvs_status want, const char *word)
{
    kvs_cache *c = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t live = rig_live(ctx);
    assert_int_equal(kvs_cache_new(ctx, o, &c, &err), want);
    assert_true(!c && strstr(err.msg, word));
    assert_int_equal(rig_live(ctx), live);
}

static void test_bad_caches(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_ctx *other = rig_ctx(1, 0);
    kvs_pages *p = rig_pages(ctx, 32, 0);
    kvs_layer_spec s = rig_as_paged(rig_spec(1, 32, 32, "f16", "f16"));
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &s;
    o.block_tokens = 257;
    refuse_cache(ctx, &o, KVS_E_INVAL, "257");
    o.block_tokens = 0;
    o.reserved_pages = 7;
    refuse_cache(ctx, &o, KVS_E_UNSUPPORTED, "7");
    o.reserved_pages = 0;
    o.pages = p;
    o.block_tokens = 64;
    refuse_cache(ctx, &o, KVS_E_INVAL, "64");
    o.block_tokens = 32;
    s.sinks = 3;
    refuse_cache(ctx, &o, KVS_E_INVAL, "sinks");
    s.sinks = 0;
    s.layout = (kvs_layout)3;
    refuse_cache(ctx, &o, KVS_E_INVAL, "layout 3");
    s.layout = KVS_LAYOUT_PAGED;
    kvs_cache *c = NULL;
    assert_int_equal(kvs_cache_new(other, &o, &c, NULL), KVS_OK); /* any context may use it */
    kvs_cache_free(c);
    assert_int_equal(kvs_cache_new(ctx, &o, &c, NULL), KVS_OK);
    kvs_pages_free(p); /* the cache keeps it */
    rig_must(rig_append(c, 0, 40, 1, NULL));
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
    kvs_ctx_free(other);
}

static void test_signatures(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    static const struct {
        uint32_t window;
        uint32_t sinks;
        uint32_t block;
        const char *want;
    } cases[] = {{0, 0, 0, "grow k=f16 v=q8 heads=2 dims=64/64"},
                 {9, 3, 4, "paged window=9 sinks=3 block=4 k=f16 v=q8 heads=2 dims=64/64"},
                 {9, 0, 0, "paged window=9 sinks=0 block=1 k=f16 v=q8 heads=2 dims=64/64"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvs_layer_spec s = rig_as_paged(rig_spec(2, 64, 64, "f16", "q8"));
        s.window = cases[i].window;
        s.sinks = cases[i].sinks;
        s.max_block = cases[i].block;
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        o.n_layers = 1;
        o.layers = &s;
        kvs_cache *c = NULL;
        char text[160];
        rig_must(kvs_cache_new(ctx, &o, &c, NULL));
        (void)kvs_cache_signature(c, 0, text, sizeof text);
        assert_string_equal(text, cases[i].want);
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

/* -- bytes */

static uint32_t some_layers(kvs_layer_spec *s)
{
    s[0] = rig_spec(2, 64, 64, "f16", "f16");
    s[1] = rig_spec(2, 64, 64, "affine4:32", "q8:32");
    s[2] = s[0]; /* one class with layer 0 */
    s[3] = rig_spec(1, 48, 80, "f32", "bf16");
    for (int i = 0; i < 4; i++) {
        s[i] = rig_as_paged(s[i]);
    }
    return 4;
}

/* What the plan says is what the pool takes, and a limit of that many bytes suffices. */
static void test_plan_is_taken(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1, 16, 17, 64, 65, 300};
    for (size_t i = 0; i < RIG_BLOCKS * COUNT(lengths); i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[4];
        kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        uint64_t n = lengths[i / RIG_BLOCKS];
        uint32_t rows = 1 + (uint32_t)i % 3;
        size_t plan = 0;
        po.block_tokens = rig_blocks[i % RIG_BLOCKS];
        po.chunk_bytes = i % 2 ? 50000 : 0;
        o.n_layers = some_layers(s);
        o.layers = s;
        rig_must(kvs_pages_plan(&po, &o, rows, n, &plan, NULL));
        size_t before = rig_live(ctx);
        po.max_bytes = plan;
        rig_must(kvs_pages_new(ctx, &po, &o.pages, NULL));
        kvs_cache *c[3] = {NULL, NULL, NULL};
        for (uint32_t row = 0; row < rows; row++) {
            rig_must(kvs_cache_new(ctx, &o, &c[row], NULL));
        }
        size_t caches = rig_live(ctx) - before - stats_of(o.pages).bytes;
        size_t tables = 0;
        for (uint32_t row = 0; row < rows; row++) {
            for (uint32_t l = 0; l < 4; l++) {
                rig_fill(c[row], l, (uint32_t)n, 1 + row * 50, row);
            }
            size_t want = 0;
            rig_must(kvs_cache_plan(&o, n, &want, NULL, NULL));
            assert_int_equal(kvs_cache_bytes(c[row], KVS_ALL_LAYERS), want);
            tables += want;
        }
        kvs_pages_stats st = stats_of(o.pages);
        assert_true(st.bytes == plan && st.peak_bytes == plan && st.n_cached == 0);
        assert_int_equal(st.n_classes, 3);
        /* tables are what the caches have besides their blocks and heads */
        size_t heads = 0;
        rig_must(kvs_cache_plan(&o, 0, &heads, NULL, NULL));
        tables -= st.held_bytes + rows * heads;
        assert_int_equal(rig_live(ctx), before + st.bytes + caches + tables);
        kvs_err err = {KVS_OK, 0, "", ""};
        rig_must(kvs_pages_set_limit(o.pages, st.bytes, NULL));
        while (rig_append(c[0], 3, 64, 9, &err) == KVS_OK) { /* to the end of the last chunk */
        }
        assert_true(err.status == KVS_E_LIMIT && stats_of(o.pages).bytes == plan);
        for (uint32_t row = 0; row < rows; row++) {
            kvs_cache_free(c[row]);
        }
        assert_int_equal(stats_of(o.pages).n_total, 0);
        kvs_pages_free(o.pages);
        assert_int_equal(rig_live(ctx) > before,
                         caches > rows * heads); /* scratch of the context */
        kvs_ctx_free(ctx);
    }
}

static void test_bad_plans(void **state)
{
    (void)state;
    kvs_layer_spec s[4];
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
    size_t bytes = 7;
    o.n_layers = some_layers(s);
    o.layers = s;
    assert_int_equal(kvs_pages_plan(&po, &o, 1, 1, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_pages_plan(&po, NULL, 1, 1, &bytes, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_pages_plan(&po, &o, UINT32_MAX, INT64_MAX / 4, &bytes, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_pages_plan(&po, &o, 1, UINT64_MAX, &bytes, NULL), KVS_E_RANGE);
    po.block_tokens = 300;
    assert_int_equal(kvs_pages_plan(&po, &o, 1, 1, &bytes, NULL), KVS_E_INVAL);
    po.block_tokens = 0;
    s[2].layout = KVS_LAYOUT_GROW;
    assert_int_equal(kvs_pages_plan(&po, &o, 1, 1, &bytes, NULL), KVS_E_INVAL);
    assert_int_equal(bytes, 7);
    s[2].layout = KVS_LAYOUT_PAGED;
    assert_int_equal(kvs_pages_plan(NULL, &o, 0, 100, &bytes, NULL), KVS_OK);
    kvs_pages *p = NULL;
    kvs_ctx *ctx = rig_ctx(1, 0);
    rig_must(kvs_pages_new(ctx, NULL, &p, NULL));
    assert_int_equal(stats_of(p).bytes, bytes); /* no rows: the pool itself */
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* Windows and delayed layers: the plan is a limit under which no order of appends fails. */
static void test_plan_of_windows(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 36; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[2] = {rig_spec(1, 32, 32, "q4:32", "f16"),
                               rig_spec(1, 32, 32, "f16", "f16")};
        s[0] = rig_as_paged(rig_ring(s[0], 1 + i * 7, i % 5 * 6, 1 + i % 9));
        s[1] = rig_as_paged(s[1]);
        s[0].dense_until = i % 3 ? 60 + i : 0;
        s[1].dense_until = i % 4 ? 0 : 33;
        kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        po.block_tokens = rig_blocks[i % RIG_BLOCKS];
        po.chunk_bytes = 1; /* a block each */
        o.n_layers = 2;
        o.layers = s;
        rig_must(kvs_pages_plan(&po, &o, 2, 500, &po.max_bytes, NULL));
        rig_must(kvs_pages_new(ctx, &po, &o.pages, NULL));
        kvs_cache *c[2];
        rig_must(kvs_cache_new(ctx, &o, &c[0], NULL));
        rig_must(kvs_cache_new(ctx, &o, &c[1], NULL));
        for (uint64_t z = i; kvs_cache_length(c[0], 0) < 500;) {
            z = rig_mix(z);
            uint32_t n = 1 + (uint32_t)(z % s[0].max_block);
            int64_t len = kvs_cache_length(c[0], 0);
            n = n < 500 - len ? n : (uint32_t)(500 - len);
            for (uint32_t row = 0; row < 2; row++) {
                rig_must(rig_append(c[row], 0, n, 1, NULL));
                rig_must(rig_append(c[row], 1, n, 1, NULL));
            }
            if (z % 7 == 0 && kvs_cache_can_rewind(c[0], KVS_ALL_LAYERS, n - n / 2) == KVS_OK) {
                rig_must(kvs_cache_rewind(c[0], KVS_ALL_LAYERS, n - n / 2, NULL));
                rig_must(kvs_cache_rewind(c[1], KVS_ALL_LAYERS, n - n / 2, NULL));
            }
        }
        size_t want = 0;
        rig_must(kvs_cache_plan(&o, 500, &want, NULL, NULL));
        rig_must(kvs_cache_rewind(c[0], 0, 1, NULL)); /* drops a dense copy with the append */
        rig_must(rig_append(c[0], 0, 1, 1, NULL));
        assert_true(kvs_cache_bytes(c[0], KVS_ALL_LAYERS) >= want);
        assert_true(stats_of(o.pages).peak_bytes <= po.max_bytes);
        kvs_cache_free(c[0]);
        kvs_cache_free(c[1]);
        kvs_pages_free(o.pages);
        kvs_ctx_free(ctx);
    }
}

/* -- the limit */

static void test_limit(void **state)
{
    (void)state;
    for (size_t i = 0; i < RIG_BLOCKS; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[2] = {rig_spec(2, 64, 32, "affine4:32", "q8:32"),
                               rig_spec(2, 64, 32, "f32", "f32")};
        kvs_pages *p = rig_pages(ctx, rig_blocks[i], 0);
        kvs_cache *c = rig_paged_cache(ctx, s, 2, p);
        rig_fill(c, 0, 100, 100, 3);
        rig_fill(c, 1, 100, 100, 4);
        kvs_view *v = NULL;
        rig_must(kvs_view_new(c, 0, &v, NULL));
        float *before = rig_read(c, 0, 1, 2);
        size_t held = stats_of(p).bytes;
        rig_must(kvs_pages_set_limit(p, held, NULL));
        rig_snap snap;
        kvs_err err = {KVS_OK, 0, "", ""};
        rig_snap_take(&snap, c);
        assert_int_equal(rig_append(c, 1, 5000, 4, &err), KVS_E_LIMIT);
        assert_true(err.status == KVS_E_LIMIT && strstr(err.msg, "limit"));
        assert_int_equal(kvs_cache_reserve(c, 1, 5000, NULL), KVS_E_LIMIT);
        assert_int_equal(kvs_cache_reserve(c, KVS_ALL_LAYERS, 5000, NULL), KVS_E_LIMIT);
        assert_true(rig_snap_same(&snap, c) && stats_of(p).bytes == held);
        /* what is free in the chunks still serves; then even the copy of a shared block is refused */
        while (rig_append(c, 1, 1, 4, NULL) == KVS_OK) {
        }
        while (rig_append(c, 0, 1, 3, NULL) == KVS_OK) {
        }
        assert_int_equal(stats_of(p).bytes, held);
        float *x = rig_read(c, 0, 1, 2);
        free(x);
        rig_must(kvs_cache_rewind(c, 0, (uint64_t)kvs_cache_length(c, 0) - 100, NULL));
        x = rig_read(c, 0, 1, 2);
        assert_memory_equal(x, before, sizeof *x * 2 * 2 * 32);
        free(x);
        rig_must(kvs_pages_set_limit(p, 2 * held + 100000, NULL));
        rig_must(rig_append(c, 0, rig_blocks[i], 3, NULL));
        rig_must(kvs_pages_set_limit(p, 1, NULL)); /* below what is held: nothing is taken away */
        held = stats_of(p).bytes;
        while (rig_append(c, 0, 100, 3, NULL) == KVS_OK) {
        }
        assert_int_equal(stats_of(p).bytes, held);
        x = rig_read(c, 0, 1, 2);
        free(x);
        rig_snap_drop(&snap);
        free(before);
        kvs_view_free(v);
        kvs_cache_free(c);
        assert_int_equal(stats_of(p).n_total, 0);
        kvs_pages_free(p);
        kvs_ctx_free(ctx);
    }
}

/* -- windows */

/* 10^4 steps and more with blocks, rewinds and two rows: memory stands still. */
static void test_churn(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {1, 17, 16, 64};
    for (size_t i = 0; i < COUNT(blocks); i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s = rig_ring(rig_spec(1, 16, 16, "f16", "f16"), 50, 9, 6);
        kvs_pages *p = rig_pages(ctx, blocks[i], 0);
        kvs_cache *c[2] = {rig_paged_cache(ctx, &s, 1, p), rig_paged_cache(ctx, &s, 1, p)};
        size_t most[2] = {0, 0};
        size_t live[2] = {0, 0};
        for (int step = 0; step < 24000; step++) {
            uint64_t z = rig_mix((uint64_t)step);
            kvs_cache *row = c[step % 2];
            uint32_t n = z % 5 ? 1 : 6;
            rig_must(rig_append(row, 0, n, 1, NULL));
            if (z % 11 == 0) {
                rig_must(kvs_cache_rewind(row, 0, n, NULL));
            }
            int half = step >= 12000;
            size_t held = kvs_cache_bytes(row, 0);
            most[half] = held > most[half] ? held : most[half];
            size_t now = rig_live(ctx);
            live[half] = now > live[half] ? now : live[half];
        }
        assert_true(most[1] == most[0] && live[1] == live[0]);
        /* sinks, window and slack, nothing more */
        uint64_t span = (9 + blocks[i] - 1) / blocks[i] + (64 + 6) / blocks[i] + 2;
        assert_true(stats_of(p).n_held <= 2 * span);
        kvs_cache_free(c[0]);
        kvs_cache_free(c[1]);
        kvs_pages_free(p);
        kvs_ctx_free(ctx);
    }
}

/* Ring, grow and paged give the same bits after any mix of appends and rewinds that all allow. */
static void test_same_as_ring(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(2, 0);
    for (uint32_t i = 0; i < 24; i++) {
        kvs_layer_spec ring = rig_ring(rig_spec(2, 32, 32, i % 2 ? "q4:32" : "bf16", "affine8:32"),
                                       1 + i * i, i % 4 * 9, 1 + i % 13);
        kvs_layer_spec grow = ring;
        grow.layout = KVS_LAYOUT_GROW;
        kvs_pages *p = rig_pages(ctx, rig_blocks[i % RIG_BLOCKS], 0);
        kvs_cache *c[3] = {rig_cache(ctx, &ring, 1, 0), rig_cache(ctx, &grow, 1, 0),
                           rig_paged_cache(ctx, &ring, 1, p)};
        uint64_t z = i;
        for (int step = 0; step < 60; step++) {
            z = rig_mix(z);
            uint32_t n = 1 + (uint32_t)(z % ring.max_block);
            uint32_t back = z % 3 == 0 ? (uint32_t)(z / 64 % (n + 1)) : 0;
            float *out[3];
            for (int j = 0; j < 3; j++) {
                rig_must(rig_append(c[j], 0, n, 1, NULL));
                rig_must(kvs_cache_rewind(c[j], 0, back, NULL));
                if (kvs_cache_length(c[j], 0) == 0) {
                    rig_must(rig_append(c[j], 0, 1, 1, NULL));
                }
                out[j] = rig_read(c[j], 0, 1, 2);
            }
            assert_memory_equal(out[1], out[0], sizeof(float) * 2 * 2 * 32);
            assert_memory_equal(out[2], out[0], sizeof(float) * 2 * 2 * 32);
            assert_true(kvs_cache_oldest(c[2], 0) <= kvs_cache_oldest(c[0], 0));
            for (int j = 0; j < 3; j++) {
                free(out[j]);
            }
        }
        assert_true(kvs__pages_check(p));
        for (int j = 0; j < 3; j++) {
            kvs_cache_free(c[j]);
        }
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* -- forks */

static void compare_reads(kvs_cache *a, kvs_cache *b, const kvs_layer_spec *s)
{
    float *x = rig_read(a, 0, 1, 2);
    float *y = rig_read(b, 0, 1, 2);
    assert_memory_equal(x, y, sizeof *x * s->n_kv_heads * 2 * s->v_dim);
    free(x);
    free(y);
}

/* A grown cache of n tokens of stream a, then m of stream b. */
static kvs_cache *twin(kvs_ctx *ctx, const kvs_layer_spec *s, uint32_t n, uint64_t a, uint32_t m,
                       uint64_t b)
{
    kvs_cache *c = rig_cache(ctx, s, 1, 0);
    rig_fill(c, 0, n, 64, a);
    rig_fill(c, 0, m, 64, b);
    return c;
}

static void check_fork(kvs_ctx *ctx, uint32_t block, uint32_t len, uint32_t at, const char *codec)
{
    kvs_layer_spec s = rig_spec(2, 64, 32, codec, "q8:32");
    kvs_pages *p = rig_pages(ctx, block, 0);
    kvs_cache *parent = rig_paged_cache(ctx, &s, 1, p);
    rig_fill(parent, 0, len, 50, 1);
    uint64_t held = stats_of(p).n_held;
    kvs_cache *child = ops_fork(ctx, p, parent, 0, at);
    kvs_cache *third = ops_fork(ctx, p, child, 0, at);
    assert_non_null(third);
    assert_int_equal(stats_of(p).n_held, held); /* no block was copied */
    kvs_cache *twin_c = twin(ctx, &s, at, 1, 40, 2);
    kvs_cache *twin_p = twin(ctx, &s, len, 1, 33, 3);
    kvs_cache *twin_t = twin(ctx, &s, at, 1, 0, 1);
    rig_fill(child, 0, 1, 1, 2);
    /* a partial block was copied, or a new one begun: one block either way */
    assert_int_equal(stats_of(p).n_held, held + 1);
    rig_fill(parent, 0, 33, 8, 3);
    rig_fill(child, 0, 39, 13, 2);
    compare_reads(child, twin_c, &s);
    compare_reads(parent, twin_p, &s);
    compare_reads(third, twin_t, &s);
    rig_must(kvs_cache_rewind(parent, 0, (uint64_t)len + 33 - at, NULL));
    compare_reads(parent, twin_t, &s);
    rig_fill(parent, 0, 40, 7, 2);
    compare_reads(parent, twin_c, &s);
    kvs_cache_free(parent);
    compare_reads(child, twin_c, &s);
    rig_must(kvs_cache_clear(child, NULL));
    compare_reads(third, twin_t, &s);
    kvs_cache_free(child);
    kvs_cache_free(third);
    kvs_cache_free(twin_c);
    kvs_cache_free(twin_p);
    kvs_cache_free(twin_t);
    assert_int_equal(stats_of(p).n_total, 0);
    kvs_pages_free(p);
}

static void test_forks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    static const uint32_t len[][2] = {{1, 1},    {64, 64},  {65, 64},  {100, 33},
                                      {128, 65}, {150, 17}, {257, 256}};
    for (size_t i = 0; i < RIG_BLOCKS * COUNT(len); i++) {
        check_fork(ctx, rig_blocks[i % RIG_BLOCKS], len[i / RIG_BLOCKS][0], len[i / RIG_BLOCKS][1],
                   i % 2 ? "affine4:32" : "f32");
    }
    kvs_ctx_free(ctx);
}

/* Latent layers, whose values are the first elements of keys, in blocks of any size. */
static void test_latent(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    static const char *const codecs[] = {"f16", "q8:32", "affine4:32"};
    for (size_t i = 0; i < RIG_BLOCKS * COUNT(codecs); i++) {
        const char *codec = codecs[i / RIG_BLOCKS];
        kvs_layer_spec s = rig_spec(1, 96, 64, codec, codec);
        s.kind = KVS_LAYER_LATENT;
        kvs_pages *p = rig_pages(ctx, rig_blocks[i % RIG_BLOCKS], 0);
        kvs_cache *a = rig_paged_cache(ctx, &s, 1, p);
        kvs_cache *b = rig_cache(ctx, &s, 1, 0);
        rig_fill(a, 0, 300, 37, 1);
        rig_fill(b, 0, 300, 300, 1);
        compare_reads(a, b, &s);
        float *x = rig_read(a, 0, 20, 3);
        float *y = rig_read(b, 0, 20, 3);
        assert_memory_equal(x, y, sizeof *x * 20 * 3 * 64);
        free(x);
        free(y);
        assert_true(kvs__pages_check(p));
        kvs_cache_free(a);
        kvs_cache_free(b);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* -- lifetimes */

/* A pool that the cache made for itself goes with the last of cache and views, in any order. */
static void test_lifetimes(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_as_paged(rig_spec(1, 32, 32, "f16", "q4:32"));
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &s;
    kvs_cache *warm = rig_cache(ctx, &s, 1, 0); /* the context's scratch */
    kvs_cache_free(warm);
    size_t live = rig_live(ctx);
    for (uint32_t i = 0; i < 8; i++) {
        kvs_cache *c = NULL;
        kvs_view *v = NULL;
        o.block_tokens = i + 13;
        rig_must(kvs_cache_new(ctx, &o, &c, NULL));
        assert_int_equal(kvs__pages_block(c->pages), i + 13);
        if (i % 4) {
            rig_fill(c, 0, 70, 70, 1);
            rig_must(kvs_view_new(c, 0, &v, NULL));
        }
        if (i % 4 == 2) {
            rig_must(kvs_cache_clear(c, NULL));
        }
        kvs_cache_free(i % 2 ? c : NULL);
        kvs_view_free(v);
        kvs_cache_free(i % 2 ? NULL : c);
        assert_int_equal(rig_live(ctx), live);
    }
    kvs_ctx_free(ctx);
}

/* Chunks go back when their last block does, whatever order blocks come and go in. */
static void test_chunks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = 16;
    o.chunk_bytes = 20000;
    rig_must(kvs_pages_new(ctx, &o, &p, NULL));
    size_t empty = stats_of(p).bytes;
    for (uint64_t scramble = 0; scramble < 3; scramble++) {
        kvs__pages_scramble(p, scramble);
        kvs_layer_spec s = rig_spec(1, 64, 64, "f16", "f16");
        kvs_cache *c[6];
        for (int i = 0; i < 6; i++) {
            c[i] = rig_paged_cache(ctx, &s, 1, p);
        }
        for (uint32_t step = 0; step < 40; step++) {
            for (uint32_t i = 0; i < 6; i++) {
                rig_must(rig_append(c[i], 0, 1 + (step + i) % 19, 1, NULL));
            }
        }
        kvs_pages_class k = KVS_PAGES_CLASS_INIT;
        rig_must(kvs_pages_get_class(p, 0, &k));
        assert_string_equal(k.shape, "k=f16 v=f16 heads=1 dims=64/64");
        assert_true(k.n_held == stats_of(p).n_held && k.n_total == stats_of(p).n_total);
        size_t full = stats_of(p).bytes;
        rig_must(kvs_cache_rewind(c[2], 0, (uint64_t)kvs_cache_length(c[2], 0), NULL));
        for (int i = 0; i < 5; i++) {
            kvs_cache_free(c[i]);
        }
        kvs_pages_stats one = stats_of(p);
        assert_true(one.bytes < full && one.n_held > 0);
        /* in order of use one cache's blocks fill whole chunks but two at the ends */
        kvs_cache_free(c[5]);
        assert_true(stats_of(p).bytes == empty && stats_of(p).n_classes == 0);
    }
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* Another sequence's bytes are never in a block that is handed out. */
static void test_blocks_are_clean(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages *p = rig_pages(ctx, 40, 0);
    kvs_layer_spec s = rig_spec(2, 32, 32, "affine4:32", "f32");
    kvs_cache *hold = rig_paged_cache(ctx, &s, 1, p); /* keeps the chunk */
    rig_fill(hold, 0, 1, 1, 1);
    kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
    rig_fill(c, 0, 900, 90, 2);
    kvs_cache_free(c);
    c = rig_paged_cache(ctx, &s, 1, p);
    rig_must(kvs_cache_reserve(c, 0, 900, NULL));
    size_t bytes = kvs__page_raw_bytes(&c->layer[0].main.fmt, 40);
    unsigned char *raw = rig_alloc(bytes);
    for (uint32_t i = 0; i < c->layer[0].main.n_segs; i++) {
        kvs__page_get_raw(c->layer[0].main.table[i], 48, raw); /* all slots */
        for (size_t b = 0; b < bytes; b++) {
            assert_int_equal(raw[b], 0);
        }
    }
    free(raw);
    kvs_cache_free(c);
    kvs_cache_free(hold);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_pools),
        cmocka_unit_test(test_bad_caches),
        cmocka_unit_test(test_signatures),
        cmocka_unit_test(test_plan_is_taken),
        cmocka_unit_test(test_bad_plans),
        cmocka_unit_test(test_plan_of_windows),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_same_as_ring),
        cmocka_unit_test(test_forks),
        cmocka_unit_test(test_lifetimes),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_blocks_are_clean),
        cmocka_unit_test(test_latent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
