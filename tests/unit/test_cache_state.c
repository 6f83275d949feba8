/* SPDX-License-Identifier: MIT */
/* test_cache_state.c: what a cache holds: bytes against the plan, signatures, clearing, views over
 * everything that can happen to their cache, spans read by the formula of the header, conversion
 * between every two codecs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#define RIG_PAGED
#include "support/cache_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *const codecs[] = {"f32",        "f16",        "bf16",        "affine2:32/f32",
                                     "affine3:64", "affine4:32", "affine5:128", "affine6:32/bf16",
                                     "affine8:64", "q2:32",      "q4",          "q4:128/bf16",
                                     "q6:32/f32",  "q8"};

/* -- signatures */

static void check_signature(kvs_layer_spec s, const char *want)
{
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    char text[160];
    assert_int_equal(kvs_cache_signature(c, 0, text, sizeof text), strlen(want));
    assert_string_equal(text, want);
    char cut[8];
    assert_int_equal(kvs_cache_signature(c, 0, cut, sizeof cut), strlen(want));
    assert_int_equal(strlen(cut), sizeof cut - 1);
    assert_memory_equal(cut, want, sizeof cut - 1);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

static void test_signatures(void **state)
{
    (void)state;
    kvs_layer_spec s = rig_spec(8, 128, 128, "q4", "q8");
    check_signature(s, "grow k=q4 v=q8 heads=8 dims=128/128");
    check_signature(rig_ring(s, 512, 4, 32),
                    "ring window=512 sinks=4 block=32 k=q4 v=q8 heads=8 dims=128/128");
    s.dense_until = 64;
    s.dense_dtype = KVS_BF16;
    check_signature(s, "grow k=q4 v=q8 bf16<64 heads=8 dims=128/128");
    s = rig_spec(1, 576, 512, "affine4:64/bf16", "f16");
    s.window = 9;
    check_signature(s, "grow window=9 sinks=0 k=affine4:64/bf16 v=f16 heads=1 dims=576/512");
    s = rig_ring(rig_spec(65536, 1024, 1016, "affine8:128/bf16", "bf16"), 1u << 30, 1u << 30, 1);
    s.dense_until = UINT32_MAX;
    char text[200];
    kvs_ctx *ctx = rig_ctx(1, 0);
    s.n_kv_heads = 1; /* the scratch of 65536 heads is not needed here */
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    (void)kvs_cache_signature(c, 0, text, sizeof text);
    assert_string_equal(text, "ring window=1073741824 sinks=1073741824 block=1 "
                              "k=affine8:128/bf16 v=bf16 f16<4294967295 heads=1 dims=1024/1016");
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* -- bytes */

static kvs_layer_spec size_spec(size_t i)
{
    kvs_layer_spec s =
        rig_spec(1 + (uint32_t)(i % 3), 32 + 96 * (uint32_t)(i % 2), 64, "f16", "f16");
    (void)kvs_codec_parse(codecs[i % 6], &s.k, NULL);
    s.k = i % 6 == 4 ? s.v : s.k;
    switch (i % 5) {
    case 1:
        return rig_ring(s, 30, 0, 8);
    case 2:
        return rig_ring(s, 5, 20, 600);
    case 3:
        s.dense_until = 50;
        break;
    case 4:
        s = rig_ring(s, 30, 2, 60);
        s.dense_until = 300;
        break;
    default:
        s.window = (uint32_t)i;
    }
    return s;
}

static size_t planned(const kvs_layer_spec *s, uint64_t reserve, uint64_t n, size_t *layer)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    size_t sum = 0;
    o.n_layers = 1;
    o.layers = s;
    o.reserve_tokens = reserve;
    assert_int_equal(kvs_cache_plan(&o, n, &sum, layer, NULL), KVS_OK);
    assert_int_equal(kvs_cache_plan(&o, n, NULL, NULL, NULL), KVS_OK);
    return sum;
}

static void check_bytes(const kvs_layer_spec *s, uint64_t reserve)
{
    kvs_ctx *ctx = rig_ctx(1, 0);
    size_t empty = rig_live(ctx);
    kvs_cache *c = rig_cache(ctx, s, 1, reserve);
    size_t layer = 0;
    size_t fixed = rig_live(ctx) - planned(s, reserve, 0, &layer) - empty; /* scratch */
    uint32_t block = s->layout == KVS_LAYOUT_RING ? s->max_block : 70;
    for (int64_t target = 0; target < 1300; target += 1 + target / 3) {
        while (kvs_cache_length(c, 0) < target) {
            int64_t left = target - kvs_cache_length(c, 0);
            rig_fill(c, 0, left < block ? (uint32_t)left : block, block, 1);
        }
        int64_t dense = s->dense_until;
        if (dense > 0 && target > dense && target - (int64_t)block <= dense) {
            continue; /* between the append that converts and the next: both are held */
        }
        size_t sum = planned(s, reserve, (uint64_t)target, &layer);
        if (kvs_cache_bytes(c, KVS_ALL_LAYERS) != sum || kvs_cache_bytes(c, 0) != layer ||
            rig_live(ctx) != empty + fixed + sum) {
            fail_msg("%lld tokens: %zu and %zu bytes held, %zu and %zu planned", (long long)target,
                     kvs_cache_bytes(c, KVS_ALL_LAYERS), kvs_cache_bytes(c, 0), sum, layer);
        }
    }
    assert_int_equal(kvs_cache_clear(c, NULL), KVS_OK);
    bool gone = s->dense_until > 0; /* the reservation was for the dense copy */
    assert_int_equal(kvs_cache_bytes(c, KVS_ALL_LAYERS), planned(s, gone ? 0 : reserve, 0, &layer));
    assert_int_equal(kvs_cache_length(c, 0), 0);
    assert_int_equal(kvs_cache_oldest(c, 0), 0);
    rig_must(rig_append(c, 0, 1, 1, NULL));
    assert_int_equal(kvs_cache_bytes(c, KVS_ALL_LAYERS), planned(s, reserve, 1, &layer));
    kvs_cache_free(c);
    assert_int_equal(rig_live(ctx), empty + fixed);
    kvs_ctx_free(ctx);
}

static void test_bytes_are_the_plan(void **state)
{
    (void)state;
    static const uint64_t reserves[] = {0, 1, 100, 1000};
    for (size_t i = 0; i < 15; i++) {
        kvs_layer_spec s = size_spec(i);
        for (size_t j = 0; j < COUNT(reserves); j++) {
            check_bytes(&s, reserves[j]);
        }
    }
}

/* The bytes beside the header of a segment are those of the rows, rounded up to tiles and lines. */
static void test_bytes_of_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(codecs); i++) {
        kvs_layer_spec s = rig_spec(2, 128, 128, codecs[i], codecs[COUNT(codecs) - 1 - i]);
        size_t row = kvs_codec_row_bytes(&s.k, 128) + kvs_codec_row_bytes(&s.v, 128);
        size_t layer = 0;
        (void)planned(&s, 0, 1, &layer);
        assert_true(layer >= 256 * 2 * row && layer < 256 * 2 * row + 1024);
    }
}

/* Capacities whose bytes are a multiple of 2^64, one factor at a time: the row, the heads, the sum
 * of the planes. */
static void test_sizes_that_wrap(void **state)
{
    (void)state;
    static const struct {
        uint32_t heads;
        uint64_t tokens;
    } cases[] = {{1, (uint64_t)1 << 58}, {4, (uint64_t)1 << 56}, {2, (uint64_t)1 << 56}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        kvs_layer_spec s = rig_spec(cases[i].heads, 16, 16, "f32", "f32");
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        size_t sum = 0;
        o.n_layers = 1;
        o.layers = &s;
        o.reserve_tokens = cases[i].tokens;
        assert_int_equal(kvs_cache_plan(&o, 0, &sum, NULL, NULL), KVS_E_RANGE);
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_cache *c = NULL;
        assert_int_equal(kvs_cache_new(ctx, &o, &c, NULL), KVS_E_RANGE);
        kvs_ctx_free(ctx);
    }
}

/* Each segment is half as large again as all before it: few of them, and little held in vain. */
static void test_ladder(void **state)
{
    (void)state;
    static const uint32_t ends[] = {256, 512, 768, 1280, 2048, 3072, 4608};
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(1, 16, 16, "f16", "f16");
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    for (uint32_t i = 0; i < COUNT(ends); i++) {
        rig_fill(c, 0, ends[i] - (uint32_t)kvs_cache_length(c, 0), 512, 1);
        kvs_span span[16];
        uint32_t n = 0;
        rig_must(kvs_cache_spans(c, 0, 0, ends[i], span, 16, &n, NULL));
        assert_int_equal(n, i + 1);
        assert_int_equal(span[i].first_pos + (int64_t)span[i].n_tokens, ends[i]);
    }
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* A cleared cache is as good as new, and so is one that was rewound to nothing. */
static void test_clear(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < 15; i++) {
        kvs_layer_spec s = size_spec(i);
        kvs_cache *used = rig_cache(ctx, &s, 1, i % 2 ? 40 : 0);
        kvs_cache *fresh = rig_cache(ctx, &s, 1, i % 2 ? 40 : 0);
        uint32_t block = s.layout == KVS_LAYOUT_RING ? s.max_block : 70;
        rig_fill(used, 0, 333, block, 9);
        if (i % 3) {
            rig_must(kvs_cache_clear(used, NULL));
        } else {
            rig_must(kvs_cache_rewind(used, 0, 333, NULL));
        }
        rig_fill(used, 0, 77, block, 1);
        rig_fill(fresh, 0, 77, block, 1);
        float *a = rig_read(used, 0, 3, 2);
        float *b = rig_read(fresh, 0, 3, 2);
        assert_memory_equal(a, b, (size_t)s.n_kv_heads * 2 * 3 * s.v_dim * sizeof *a);
        free(a);
        free(b);
        kvs_cache_free(used);
        kvs_cache_free(fresh);
    }
    kvs_ctx_free(ctx);
}

/* -- views */

static float *read_view(kvs_view *v, const kvs_layer_spec *s)
{
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(s, 1, 2, -1, &q, &out);
    rig_must(kvs_view_attend(v, &d, NULL));
    free(q);
    return out;
}

static void check_view(kvs_view *v, const kvs_layer_spec *s, const float *want)
{
    float *got = read_view(v, s);
    assert_memory_equal(got, want, (size_t)s->n_kv_heads * 2 * s->v_dim * sizeof *got);
    free(got);
}

static void check_views_of(kvs_ctx *ctx, kvs_layer_spec s)
{
    uint32_t block = s.layout == KVS_LAYOUT_RING ? s.max_block : 64;
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    kvs_view *v[3] = {NULL, NULL, NULL};
    float *want[3];
    rig_fill(c, 0, 100, block, 1);
    rig_must(kvs_view_new(c, 0, &v[0], NULL));
    want[0] = rig_read(c, 0, 1, 2);
    rig_must(kvs_cache_rewind(c, 0, block - 1, NULL));
    rig_fill(c, 0, 5, 5 < block ? 5 : block, 2); /* other tokens where the view has its own */
    rig_must(kvs_view_new(c, 0, &v[1], NULL));
    want[1] = rig_read(c, 0, 1, 2);
    assert_memory_not_equal(want[0], want[1], s.v_dim * sizeof(float));
    check_view(v[0], &s, want[0]);
    rig_must(kvs_cache_rewind(c, 0, 2, NULL));
    rig_fill(c, 0, 200, block, 3);
    rig_must(kvs_view_new(c, 0, &v[2], NULL));
    want[2] = rig_read(c, 0, 1, 2);
    for (int i = 0; i < 3; i++) {
        check_view(v[i], &s, want[i]);
    }
    kvs_view_info info = KVS_VIEW_INFO_INIT;
    assert_int_equal(kvs_view_get_info(v[0], &info), KVS_OK);
    assert_true(info.offset == 100 && info.end == 100 && info.dtype == s.k.dtype);
    if (s.layout == KVS_LAYOUT_GROW) {
        assert_true(info.start == 0 && info.width == 100 && info.n_sinks == 0);
    } else {
        assert_true(info.start == 100 - (int64_t)s.window && info.n_sinks == s.sinks);
        assert_int_equal(info.width, s.window + s.sinks);
    }
    kvs_codec f32 = KVS_CODEC_DENSE(KVS_F32);
    rig_must(kvs_cache_convert(c, 0, &f32, &f32, NULL));
    kvs_view_free(v[1]);
    check_view(v[0], &s, want[0]);
    check_view(v[2], &s, want[2]);
    rig_must(kvs_cache_clear(c, NULL));
    rig_fill(c, 0, 30, block, 4);
    check_view(v[2], &s, want[2]);
    kvs_cache_free(c); /* views outlive it */
    check_view(v[0], &s, want[0]);
    kvs_view_free(v[0]);
    check_view(v[2], &s, want[2]);
    kvs_view_free(v[2]);
    for (int i = 0; i < 3; i++) {
        free(want[i]);
    }
}

static void test_views(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    static const char *const some[] = {"f16", "affine4:32", "q8", "q3:32/bf16"};
    for (size_t i = 0; i < COUNT(some); i++) {
        kvs_layer_spec s = rig_spec(2, 64, 64, some[i], some[COUNT(some) - 1 - i]);
        size_t before = 0;
        for (int turn = 0; turn < 2; turn++) { /* the second finds the scratch large enough */
            check_views_of(ctx, s);
            check_views_of(ctx, rig_ring(s, 9, 0, 12));
            check_views_of(ctx, rig_ring(s, 40, 3, 20));
            check_views_of(ctx, rig_ring(s, 3, 33, 17));
            assert_true(turn == 0 || rig_live(ctx) == before);
            before = rig_live(ctx);
        }
    }
    kvs_ctx_free(ctx);
}

/* An import may jump any distance: slots under a view are found all the same. */
static void test_view_and_jump(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_ring(rig_spec(1, 16, 16, "f32", "f32"), 10, 2, 4);
    for (int64_t gap = 0; gap < 70; gap += 3) {
        for (uint32_t had = 3; had < 40; had += 9) {
            kvs_cache *c = rig_cache(ctx, &s, 1, 0);
            kvs_view *v = NULL;
            rig_fill(c, 0, had, 4, 1);
            rig_must(kvs_view_new(c, 0, &v, NULL));
            float *want = read_view(v, &s);
            size_t bytes = 0;
            kvs_planes p;
            void *base = rig_planes(&s, 0, 7, &p, &bytes);
            rig_must(kvs_cache_import(c, 0, had + gap, 7, &p, NULL));
            check_view(v, &s, want);
            rig_fill(c, 0, 9, 4, 2);
            check_view(v, &s, want);
            free(base);
            free(want);
            kvs_view_free(v);
            kvs_cache_free(c);
        }
    }
    kvs_ctx_free(ctx);
}

/* -- spans */

/* Unit u of token slot s of head h, by the header's formula. */
static const unsigned char *unit_at(const kvs_plane *p, bool k, uint32_t h, uint64_t s, uint32_t u)
{
    uint64_t i = k ? (s / 16 * p->n_units + u) * 16 + s % 16 : s * p->n_units + u;
    return (const unsigned char *)p->base + h * p->head_bytes + i * p->unit_bytes;
}

static void check_plane(const kvs_span *s, const kvs_plane *p, bool k, uint32_t heads,
                        const unsigned char *want, int64_t begin, uint64_t n)
{
    if (!p->base) {
        assert_true(!want && p->n_units == 0);
        return;
    }
    size_t row = (size_t)p->n_units * p->unit_bytes;
    for (uint32_t h = 0; h < heads; h++) {
        for (uint64_t t = 0; t < s->n_tokens; t++) {
            size_t at = (h * n + (uint64_t)(s->first_pos - begin) + t) * row;
            for (uint32_t u = 0; u < p->n_units; u++) {
                assert_memory_equal(unit_at(p, k, h, s->slot + t, u), want + at + u * p->unit_bytes,
                                    p->unit_bytes);
            }
        }
    }
}

static uint32_t check_spans(const kvs_cache *c, int64_t begin, int64_t end)
{
    const kvs_layer_spec *s = kvs_cache_spec(c, 0);
    kvs_span span[32];
    uint32_t n_spans = 0;
    uint64_t n = (uint64_t)(end - begin);
    kvs_planes p;
    size_t bytes = 0;
    void *base = rig_planes(s, rig_is_dense(c, 0), n, &p, &bytes);
    rig_must(kvs_cache_export(c, 0, begin, n, &p, NULL));
    rig_must(kvs_cache_spans(c, 0, begin, end, span, COUNT(span), &n_spans, NULL));
    assert_true(n_spans <= COUNT(span));
    int64_t at = begin;
    for (uint32_t i = 0; i < n_spans; i++) {
        assert_int_equal(span[i].first_pos, at);
        for (int plane = 0; plane < 3; plane++) {
            check_plane(&span[i], &span[i].k[plane], true, s->n_kv_heads, p.k[plane], begin, n);
            check_plane(&span[i], &span[i].v[plane], false, s->n_kv_heads, p.v[plane], begin, n);
        }
        at += (int64_t)span[i].n_tokens;
    }
    assert_int_equal(at, end);
    free(base);
    return n_spans;
}

static void test_spans(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < COUNT(codecs); i++) {
        kvs_layer_spec s = rig_spec(2, 128, 256, codecs[i], codecs[(i + 5) % COUNT(codecs)]);
        kvs_cache *c = rig_cache(ctx, &s, 1, 0);
        rig_fill(c, 0, 700, 70, 1);
        assert_int_equal(check_spans(c, 0, 700), 3);
        assert_int_equal(check_spans(c, 250, 260), 2);
        assert_int_equal(check_spans(c, 17, 18), 1);
        assert_int_equal(check_spans(c, 9, 9), 0);
        kvs_cache_free(c);
        s = rig_ring(s, 20, 5, 9); /* 32 slots */
        c = rig_cache(ctx, &s, 1, 0);
        rig_fill(c, 0, 75, 9, 1);
        assert_int_equal(kvs_cache_oldest(c, 0), 43);
        assert_int_equal(check_spans(c, 43, 75), 2);
        assert_int_equal(check_spans(c, 0, 5), 1);
        kvs_span span[4] = {0};
        uint32_t n = 0;
        rig_must(kvs_cache_spans(c, 0, 0, 75, span, 2, &n, NULL)); /* sinks, then two runs */
        assert_true(n == 3 && span[0].first_pos == 0 && span[0].n_tokens == 5);
        assert_true(span[1].first_pos == 43 && span[1].slot == 11 && span[1].n_tokens == 21);
        assert_true(span[2].n_tokens == 0); /* beyond cap: not written */
        rig_must(kvs_cache_spans(c, 0, 5, 43, NULL, 0, &n, NULL));
        assert_int_equal(n, 0);
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

static void *ones_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    size_t n = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, n ? n : align);
    if (p) {
        memset(p, 0xff, n);
    }
    return p;
}

static void ones_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(p);
}

/* The lanes of a K tile that hold no token yet are zeros: a kernel that works on the whole tile meets
 * neither NaN nor another's bytes. */
static void test_empty_lanes(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    o.alloc = ones_alloc;
    o.free = ones_free;
    o.n_threads = 1;
    rig_must(kvs_ctx_new(&o, &ctx, NULL));
    for (size_t i = 0; i < 2 * COUNT(codecs); i++) {
        kvs_layer_spec s = rig_spec(2, 128, 128, codecs[i / 2], "f16");
        s = i % 2 ? rig_ring(s, 40, 5, 21) : s;
        kvs_cache *c = rig_cache(ctx, &s, 1, 0);
        rig_fill(c, 0, 21, 21, 1);
        kvs_span span[2];
        uint32_t n = 0;
        rig_must(kvs_cache_spans(c, 0, 16, 21, span, 2, &n, NULL));
        assert_true(n == 1 && span[0].slot == 16);
        static const unsigned char zeros[4] = {0};
        for (int p = 0; p < 3 && span[0].k[p].base; p++) {
            for (uint32_t u = 0; u < span[0].k[p].n_units * 11; u++) {
                const kvs_plane *k = &span[0].k[p];
                assert_memory_equal(unit_at(k, true, u % 2, 21 + u % 11, u / 11), zeros,
                                    k->unit_bytes);
            }
        }
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

/* -- conversion */

static void hadamard(float *x, uint32_t dim)
{
    uint32_t block = dim & (0u - dim);
    for (uint32_t at = 0; at < dim; at += block) {
        for (uint32_t h = 1; h < block; h *= 2) {
            for (uint32_t i = 0; i < block; i++) {
                if ((i & h) == 0) {
                    float a = x[at + i];
                    float b = x[at + i + h];
                    x[at + i] = a + b;
                    x[at + i + h] = a - b;
                }
            }
        }
    }
    float scale = 1.0f;
    for (uint32_t b = block; b > 1; b /= 4) {
        scale *= b == 2 ? 0x1.6a09e6p-1f : 0.5f;
    }
    for (uint32_t i = 0; i < dim; i++) {
        x[i] *= scale;
    }
}

/* Planes of `from` as they must be once converted to `to`. */
static void convert_rows(kvs_ctx *ctx, const kvs_codec *from, const kvs_codec *to, uint32_t dim,
                         size_t n, void *const old[3], void *const want[3])
{
    float *x = rig_alloc(n * dim * sizeof *x);
    rig_must(kvs_codec_decode_f32(ctx, from, dim, n, old[0], old[1], old[2], x, NULL));
    for (size_t i = 0; i < n; i++) {
        if (from->rotate) {
            hadamard(x + i * dim, dim);
        }
        if (to->rotate) {
            hadamard(x + i * dim, dim);
        }
    }
    rig_must(kvs_codec_encode(ctx, to, dim, n, x, KVS_F32, want[0], want[1], want[2], NULL));
    free(x);
}

static void check_convert(kvs_ctx *ctx, kvs_layer_spec s, const char *k, const char *v)
{
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    rig_fill(c, 0, 60, 12, 1);
    int64_t begin = kvs_cache_oldest(c, 0);
    uint64_t n = (uint64_t)(60 - begin);
    kvs_planes old;
    kvs_planes want;
    size_t bytes = 0;
    size_t new_bytes = 0;
    void *old_base = rig_planes(&s, 0, n, &old, &bytes);
    rig_must(kvs_cache_export(c, 0, begin, n, &old, NULL));
    kvs_layer_spec to = s;
    rig_must(kvs_codec_parse(k, &to.k, NULL));
    rig_must(kvs_codec_parse(v, &to.v, NULL));
    void *want_base = rig_planes(&to, 0, n, &want, &new_bytes);
    bool same = memcmp(&to.k, &s.k, sizeof s.k) == 0 && memcmp(&to.v, &s.v, sizeof s.v) == 0;
    if (same) {
        memcpy(want_base, old_base, bytes);
    } else {
        convert_rows(ctx, &s.k, &to.k, s.k_dim, n * s.n_kv_heads, old.k, want.k);
        convert_rows(ctx, &s.v, &to.v, s.v_dim, n * s.n_kv_heads, old.v, want.v);
    }
    rig_must(kvs_cache_convert(c, 0, &to.k, &to.v, NULL));
    assert_memory_equal(&kvs_cache_spec(c, 0)->k, &to.k, sizeof to.k);
    assert_true(kvs_cache_length(c, 0) == 60 && kvs_cache_oldest(c, 0) == begin);
    size_t got_bytes = 0;
    void *got = rig_export(c, 0, begin, n, &got_bytes);
    assert_int_equal(got_bytes, new_bytes);
    assert_memory_equal(got, want_base, new_bytes);
    size_t layer = 0;
    (void)planned(&to, 0, 60, &layer);
    assert_int_equal(kvs_cache_bytes(c, 0), layer);
    free(got);
    free(old_base);
    free(want_base);
    kvs_cache_free(c);
}

static void test_convert(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < COUNT(codecs); i++) {
        for (size_t j = 0; j < COUNT(codecs); j++) {
            size_t a = COUNT(codecs) - 1 - i;
            size_t b = COUNT(codecs) - 1 - j;
            kvs_layer_spec s = rig_spec(2, 128, 128, codecs[i], codecs[a]);
            check_convert(ctx, s, codecs[j], codecs[b]);
            if ((i + j) % 4 == 0) {
                check_convert(ctx, rig_ring(s, 7, 20, 12), codecs[j], codecs[i]);
            }
        }
    }
    kvs_ctx_free(ctx);
}

/* Sinks, which a ring keeps apart, are converted too. */
static void test_convert_sinks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(3, 0);
    for (int turn = 0; turn < 8; turn++) { /* threads write them: eight chances for a race */
        kvs_layer_spec s = rig_ring(rig_spec(16, 64, 64, "f32", "f32"), 1, 40, 12);
        kvs_cache *a = rig_cache(ctx, &s, 1, 0);
        kvs_codec q8 = KVS_CODEC_AFFINE(8, 32, KVS_F32);
        s.k = q8;
        s.v = q8;
        kvs_cache *b = rig_cache(ctx, &s, 1, 0);
        rig_fill(a, 0, 90, 12, 1);
        rig_fill(b, 0, 90, 12, 1);
        rig_must(kvs_cache_convert(a, 0, &q8, &q8, NULL));
        rig_snap snap;
        rig_snap_take(&snap, b);
        assert_true(rig_snap_same(&snap, a)); /* one rounding each: f32 loses nothing */
        rig_snap_drop(&snap);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
    kvs_ctx_free(ctx);
}

/* A layer that is still dense only notes the new codecs. */
static void test_convert_delayed(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_codec q8 = KVS_CODEC_AFFINE(8, 32, KVS_F32);
    kvs_layer_spec s = rig_spec(1, 64, 64, "f16", "f16");
    s.dense_until = 30;
    s.dense_dtype = KVS_F32;
    kvs_cache *a = rig_cache(ctx, &s, 1, 0);
    s.k = q8;
    s.v = q8;
    kvs_cache *b = rig_cache(ctx, &s, 1, 0);
    rig_fill(a, 0, 20, 20, 1);
    rig_fill(b, 0, 20, 20, 1);
    rig_must(kvs_cache_convert(a, 0, &q8, &q8, NULL));
    rig_fill(a, 0, 20, 20, 1);
    rig_fill(b, 0, 20, 20, 1);
    rig_snap snap;
    rig_snap_take(&snap, b);
    assert_true(rig_snap_same(&snap, a));
    rig_snap_drop(&snap);
    kvs_cache_free(a);
    kvs_cache_free(b);
    kvs_ctx_free(ctx);
}

/* Import beyond dense_until gives the dense copy up, as an append does. */
static void test_import_drops_dense(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(1, 64, 64, "q4", "q8");
    s.dense_until = 30;
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    rig_fill(c, 0, 31, 31, 1);
    size_t both = kvs_cache_bytes(c, 0);
    size_t layer = 0;
    (void)planned(&s, 0, 32, &layer);
    assert_true(both > layer);
    kvs_planes p;
    size_t bytes = 0;
    void *base = rig_planes(&s, 0, 1, &p, &bytes);
    rig_must(kvs_cache_export(c, 0, 30, 1, &p, NULL));
    rig_must(kvs_cache_import(c, 0, 31, 1, &p, NULL));
    assert_int_equal(kvs_cache_bytes(c, 0), layer);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 3), KVS_NO);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 2), KVS_OK);
    free(base);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* A ring that an import left a gap in: no read and no step until the window is whole again. */
static void test_gap(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_ring(rig_spec(1, 16, 16, "f32", "f16"), 6, 0, 4);
    kvs_cache *c = rig_cache(ctx, &s, 1, 0);
    kvs_planes p;
    size_t bytes = 0;
    void *base = rig_planes(&s, 0, 4, &p, &bytes);
    rig_must(kvs_cache_import(c, 0, 1000, 4, &p, NULL));
    assert_true(kvs_cache_length(c, 0) == 1004 && kvs_cache_oldest(c, 0) == 1000);
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(&s, 1, 1, -1, &q, &out);
    kvs_step step = KVS_STEP_INIT;
    kvs_fetch f = KVS_FETCH_CONCAT;
    assert_int_equal(kvs_cache_attend(c, 0, &d, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_step_plan(c, 0, &step, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_step_phase(c, 0, &f, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 1), KVS_NO);
    rig_must(rig_append(c, 0, 1, 1, NULL)); /* 1004: the next step sees 1000 .. 1005 */
    assert_int_equal(kvs_cache_attend(c, 0, &d, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_step_plan(c, 0, &step, NULL), KVS_OK);
    assert_true(step.oldest == 1000 && step.active == 5 && step.fetch == KVS_FETCH_RING);
    rig_must(rig_append(c, 0, 1, 1, NULL));
    assert_int_equal(kvs_cache_attend(c, 0, &d, NULL), KVS_OK);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 1), KVS_OK);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 2), KVS_NO);
    rig_must(kvs_cache_clear(c, NULL));
    free(q);
    free(out);
    kvs_cache_free(c);
    s.sinks = 5; /* which have to be there first */
    c = rig_cache(ctx, &s, 1, 0);
    rig_fill(c, 0, 4, 4, 1);
    assert_int_equal(kvs_cache_import(c, 0, 20, 4, &p, NULL), KVS_E_RANGE);
    rig_fill(c, 0, 1, 1, 1);
    assert_int_equal(kvs_cache_import(c, 0, 20, 4, &p, NULL), KVS_OK);
    free(base);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signatures),
        cmocka_unit_test(test_bytes_are_the_plan),
        cmocka_unit_test(test_bytes_of_rows),
        cmocka_unit_test(test_sizes_that_wrap),
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_clear),
        cmocka_unit_test(test_views),
        cmocka_unit_test(test_view_and_jump),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_empty_lanes),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_convert_sinks),
        cmocka_unit_test(test_convert_delayed),
        cmocka_unit_test(test_import_drops_dense),
        cmocka_unit_test(test_gap),
    };
    const struct CMUnitTest paged[] = {
        /* those that count neither segments nor their bytes */
        cmocka_unit_test(test_views),         cmocka_unit_test(test_view_and_jump),
        cmocka_unit_test(test_convert_sinks), cmocka_unit_test(test_convert_delayed),
        cmocka_unit_test(test_clear),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < RIG_BLOCKS; i++) {
        rig_block = rig_blocks[i];
        failed += cmocka_run_group_tests(paged, NULL, NULL);
    }
    return failed;
}
