/* SPDX-License-Identifier: MIT */
/* test_rowset.c: forks and what they cost, the algebra of rows, the padded rectangle, and the
 * arithmetic of padded prefills. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/rows_rig.h"

static kvs_layer_spec f16_spec(void)
{
    return rig_spec(2, 32, 32, "f16", "f16");
}

/* -- forks */

static size_t segment(uint64_t tokens)
{
    kvs_layer_spec s = f16_spec();
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    size_t bytes = 0;
    o.n_layers = 1;
    o.layers = &s;
    rig_must(kvs_cache_plan(&o, tokens, NULL, &bytes, NULL));
    return bytes;
}

static void test_a_fork_shares_and_pays_for_what_it_adds(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = f16_spec();
    kvs_cache *a = rig_solo(ctx, &s, 1, 5000, 1);
    kvs_cache *b = NULL;
    size_t held = kvs_cache_bytes(a, 0);
    size_t live = rig_live(ctx);
    assert_int_equal(kvs_cache_fork(a, 4999, &b, NULL), KVS_OK);
    assert_true(rig_live(ctx) - live < 8192); /* handles, no token */
    assert_int_equal(kvs_cache_bytes(b, 0), held);
    assert_int_equal(kvs_cache_bytes(a, 0), held);
    live = rig_live(ctx);
    rig_fill(a, 0, 1, 1, 1); /* the source owns its tail: no memory */
    assert_int_equal(rig_live(ctx), live);
    rig_fill(b, 0, 1, 1, 1); /* the fork starts a segment, as small as they come */
    assert_int_equal(rig_live(ctx) - live, segment(256));
    rig_fill(b, 0, 240, 7, 1);
    assert_int_equal(rig_live(ctx) - live, segment(256));
    rig_fill(a, 0, 239, 7, 1);
    assert_true(rig_alike(a, b, 0));
    kvs_cache_free(a);
    kvs_cache *solo = rig_solo(ctx, &s, 1, 5240, 1);
    assert_true(rig_alike(b, solo, 0));
    kvs_cache_free(solo);
    kvs_cache_free(b);
    kvs_ctx_free(ctx);
}

/* A fork of segments that are full to the last token starts small too. */
static void test_a_fork_at_the_end_of_a_segment(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = f16_spec();
    kvs_cache *a = rig_solo(ctx, &s, 1, 1280, 1);
    kvs_cache *b = NULL;
    assert_true(segment(1281) > segment(1280) + segment(512)); /* what the source would take */
    assert_int_equal(kvs_cache_fork(a, KVS_ALL_TOKENS, &b, NULL), KVS_OK);
    size_t live = rig_live(ctx);
    rig_fill(b, 0, 1, 1, 1);
    assert_int_equal(rig_live(ctx) - live, segment(256));
    kvs_cache_free(a);
    kvs_cache_free(b);
    kvs_ctx_free(ctx);
}

/* Who is alone with a segment owns it, and goes on in it beside a view. */
static void test_the_last_holder_owns(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = f16_spec();
    kvs_cache *a = rig_solo(ctx, &s, 1, 100, 1);
    kvs_cache *b = NULL;
    kvs_view *v = NULL;
    assert_int_equal(kvs_cache_fork(a, KVS_ALL_TOKENS, &b, NULL), KVS_OK);
    kvs_cache_free(a);
    assert_int_equal(kvs_view_new(b, 0, &v, NULL), KVS_OK);
    size_t live = rig_live(ctx);
    rig_fill(b, 0, 50, 10, 1);
    assert_int_equal(rig_live(ctx), live);
    kvs_cache *solo = rig_solo(ctx, &s, 1, 150, 1);
    assert_true(rig_alike(b, solo, 0));
    kvs_view_free(v);
    kvs_cache_free(b);
    kvs_cache_free(solo);
    kvs_ctx_free(ctx);
}

/* Forks of a ring that has not all its sinks yet: each side gets its own. */
static void test_forks_among_sinks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_ring(rig_spec(1, 32, 32, "q8:32", "f16"), 5, 6, 3);
    for (uint32_t n = 1; n < 8; n++) {
        kvs_cache *a = rig_solo(ctx, &s, 1, n, 1);
        kvs_cache *b = NULL;
        kvs_cache *sa = rig_solo(ctx, &s, 1, n + 40, 1);
        kvs_cache *sb = rig_solo(ctx, &s, 1, n, 1);
        assert_int_equal(kvs_cache_fork(a, KVS_ALL_TOKENS, &b, NULL), KVS_OK);
        rig_fill(b, 0, 40, 3, 2);
        rig_fill(a, 0, 40, 3, 1);
        rig_fill(sb, 0, 40, 3, 2);
        assert_true(rig_alike(a, sa, 0)); /* the read sees the sinks */
        assert_true(rig_alike(b, sb, 0));
        kvs_cache_free(a);
        kvs_cache_free(b);
        kvs_cache_free(sa);
        kvs_cache_free(sb);
    }
    kvs_ctx_free(ctx);
}

/* Forks at every length around tiles and segments, both sides going on differently. */
static void test_forks_at_every_length(void **state)
{
    (void)state;
    static const char *const codec[] = {"f16", "q4:32"};
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (int kind = 0; kind < 6; kind++) {
        kvs_layer_spec s = rig_spec(1, 32, 32, codec[kind % 2], codec[kind % 2]);
        s = kind / 2 == 1 ? rig_ring(s, 40, 3, 300) : s;
        s.dense_until = kind / 2 == 2 ? 250 : 0;
        for (uint32_t n = 238; n <= 274; n++) {
            kvs_cache *a = rig_solo(ctx, &s, 1, 270, 1);
            kvs_cache *b = NULL;
            uint32_t at = n < 270 ? n : 270;
            if (kvs_cache_can_rewind(a, 0, 270 - at) == KVS_NO) {
                assert_int_equal(kvs_cache_fork(a, at, &b, NULL), KVS_E_STATE);
                kvs_cache_free(a);
                continue;
            }
            assert_int_equal(kvs_cache_fork(a, at, &b, NULL), KVS_OK);
            rig_fill(b, 0, n - at + 20, 9, 2); /* other tokens than the source's */
            rig_fill(a, 0, 30, 9, 1);
            kvs_cache *sa = rig_solo(ctx, &s, 1, 300, 1);
            kvs_cache *sb = rig_solo(ctx, &s, 1, at, 1);
            rig_fill(sb, 0, n - at + 20, 9, 2);
            assert_true(rig_alike(a, sa, 0));
            assert_true(rig_alike(b, sb, 0));
            kvs_cache_free(a);
            assert_true(rig_alike(b, sb, 0));
            kvs_cache_free(b);
            kvs_cache_free(sa);
            kvs_cache_free(sb);
        }
    }
    kvs_ctx_free(ctx);
}

/* Branches of branches without end: the list of segments is folded when it is full. */
static void test_a_long_line_of_forks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(1, 16, 16, "f32", "f32");
    kvs_cache *c = rig_solo(ctx, &s, 1, 3, 1);
    kvs_cache *kept[300];
    for (int i = 0; i < 300; i++) {
        kept[i] = c;
        assert_int_equal(kvs_cache_fork(c, KVS_ALL_TOKENS, &c, NULL), KVS_OK);
        rig_fill(c, 0, 17, 17, 1);
    }
    kvs_cache *solo = rig_solo(ctx, &s, 1, 3 + 300 * 17, 1);
    assert_true(rig_alike(c, solo, 0));
    kvs_cache_free(solo);
    for (int i = 0; i < 300; i++) {
        solo = rig_solo(ctx, &s, 1, 3 + (uint32_t)i * 17, 1);
        assert_true(rig_alike(kept[i], solo, 0));
        kvs_cache_free(solo);
        kvs_cache_free(kept[i]);
    }
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

static void test_fork_refusals(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[2] = {rig_ring(f16_spec(), 8, 0, 2), f16_spec()};
    kvs_cache *a = rig_solo(ctx, s, 2, 30, 1);
    kvs_cache *b = a;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_cache_fork(NULL, 0, &b, &err), KVS_E_INVAL);
    assert_int_equal(kvs_cache_fork(a, 0, NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_cache_fork(a, 31, &b, &err), KVS_E_RANGE);
    assert_null(b);
    assert_non_null(strstr(err.msg, "layer 0"));
    assert_int_equal(kvs_cache_fork(a, 20, &b, &err), KVS_E_STATE);
    assert_int_equal(kvs_cache_fork(a, 0, &b, &err), KVS_OK); /* of nothing: as new */
    assert_int_equal(kvs_cache_length(b, 1), 0);
    rig_fill(b, 0, 9, 2, 5);
    kvs_cache_free(b);
    assert_int_equal(kvs_cache_fork(a, 28, &b, &err), KVS_OK);
    rig_fill(b, 0, 5, 2, 1);
    rig_fill(b, 1, 5, 2, 1);
    kvs_cache *solo = rig_solo(ctx, s, 2, 33, 1);
    assert_true(rig_alike(b, solo, 0) && rig_alike(b, solo, 1));
    kvs_cache_free(solo);
    kvs_cache_free(b);
    kvs_cache_free(a);
    kvs_ctx_free(ctx);
}

/* -- rows */

static void test_rows_move_and_stay_what_they_are(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[4];
    kvs_cache *c[4];
    kvs_cache *solo[4];
    static const char *const codec[] = {"f32", "q8:32", "affine4:32", "bf16"};
    static const uint32_t len[] = {7, 0, 300, 41};
    for (uint32_t i = 0; i < 4; i++) {
        s[i] = rig_spec(2, 32, 32, codec[i], codec[3 - i]);
        s[i] = i % 2 ? rig_ring(s[i], 9, i, 5) : s[i];
        c[i] = rig_solo(ctx, &s[i], 1, len[i], i + 1);
        solo[i] = rig_solo(ctx, &s[i], 1, len[i], i + 1);
    }
    kvs_rows *rows = rig_rows_of(ctx, c, 3);
    kvs_rows *other = rig_rows_of(ctx, c + 3, 1);
    size_t live = rig_live(ctx);
    assert_int_equal(kvs_rows_extend(rows, other, NULL), KVS_OK);
    assert_int_equal(kvs_rows_count(rows), 4);
    assert_int_equal(kvs_rows_count(other), 0);
    assert_int_equal(kvs_rows_extend(rows, other, NULL), KVS_OK); /* by none */
    uint32_t order[4] = {3, 1, 0, 2};
    assert_int_equal(kvs_rows_reorder(rows, order, 4, NULL), KVS_OK);
    assert_true(rig_live(ctx) - live < 256);
    for (uint32_t i = 0; i < 4; i++) {
        assert_ptr_equal(kvs_rows_cache(rows, i), c[order[i]]);
        assert_true(rig_alike(kvs_rows_cache(rows, i), solo[order[i]], 0));
    }
    uint32_t keep[2] = {2, 1}; /* rows 0 and the empty 1 */
    assert_int_equal(kvs_rows_filter(rows, keep, 2, NULL), KVS_OK);
    assert_ptr_equal(kvs_rows_cache(rows, 0), c[0]);
    assert_ptr_equal(kvs_rows_cache(rows, 1), c[1]);
    rig_fill(c[1], 0, 20, 5, 2); /* an empty row is a row */
    rig_fill(solo[1], 0, 20, 5, 2);
    assert_int_equal(kvs_rows_fork(rows, 1, 20, NULL), KVS_OK);
    assert_int_equal(kvs_rows_cancel(rows, 1, NULL), KVS_OK);
    kvs_cache *out = NULL;
    assert_int_equal(kvs_rows_extract(rows, 1, &out, NULL), KVS_OK);
    assert_true(rig_alike(out, solo[1], 0));
    kvs_cache_free(out);
    assert_int_equal(kvs_rows_filter(rows, NULL, 0, NULL), KVS_OK);
    assert_int_equal(kvs_rows_count(rows), 0);
    for (uint32_t i = 0; i < 4; i++) {
        kvs_cache_free(solo[i]);
    }
    kvs_rows_free(rows);
    kvs_rows_free(other);
    kvs_rows_free(NULL);
    kvs_ctx_free(ctx);
}

static void test_row_refusals(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_ctx *ctx2 = rig_ctx(1, 0);
    kvs_layer_spec s[2] = {f16_spec(), f16_spec()};
    kvs_layer_spec wide = rig_spec(2, 64, 32, "f16", "f16");
    kvs_cache *c[3] = {rig_cache(ctx, s, 1, 0), rig_cache(ctx, s, 2, 0),
                       rig_cache(ctx, &wide, 1, 0)};
    kvs_cache *far = rig_cache(ctx2, s, 1, 0);
    kvs_rows *rows = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_rows_merge(NULL, c, 1, &rows, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_merge(ctx, NULL, 1, &rows, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_merge(ctx, c, 1, NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_merge(ctx, c, 2, &rows, &err), KVS_E_INVAL); /* layers differ */
    kvs_cache *bad[3][2] = {{c[0], c[2]}, {c[0], far}, {c[0], NULL}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvs_rows_merge(ctx, bad[i], 2, &rows, &err), KVS_E_INVAL);
        assert_non_null(strstr(err.msg, "row 1"));
    }
    kvs_cache *same[3] = {c[0], rig_cache(ctx, s, 1, 0), c[0]};
    assert_int_equal(kvs_rows_merge(ctx, same, 3, &rows, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "row 2 is given twice"));
    assert_null(rows);
    assert_int_equal(kvs_rows_merge(ctx, same, 2, &rows, &err), KVS_OK);

    kvs_rows *wide_rows = rig_rows_of(ctx, &c[2], 1);
    assert_int_equal(kvs_rows_extend(rows, wide_rows, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_extend(rows, rows, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_extend(rows, NULL, &err), KVS_E_INVAL);
    kvs_rows *far_rows = rig_rows_of(ctx2, &far, 1);
    assert_int_equal(kvs_rows_extend(rows, far_rows, &err), KVS_E_INVAL);
    uint32_t keep[3] = {0, 1, 0};
    assert_int_equal(kvs_rows_filter(rows, keep, 3, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_filter(rows, keep, 2, &err), KVS_OK); /* the marks are gone */
    keep[1] = 2;
    assert_int_equal(kvs_rows_filter(rows, keep, 2, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rows_filter(rows, NULL, 1, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_reorder(rows, keep, 1, &err), KVS_E_INVAL);
    kvs_cache *out = NULL;
    assert_int_equal(kvs_rows_extract(rows, 2, &out, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rows_extract(rows, 0, NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_rows_fork(rows, 2, 0, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rows_fork(rows, 0, 1, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rows_cancel(rows, 2, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rows_count(rows), 2);
    assert_null(kvs_rows_cache(rows, 2));
    assert_int_equal(kvs_rows_count(NULL), 0);
    kvs_rows_free(rows);
    kvs_rows_free(wide_rows);
    kvs_rows_free(far_rows);
    kvs_cache_free(c[1]);
    kvs_ctx_free(ctx);
    kvs_ctx_free(ctx2);
}

/* -- the rectangle */

enum { ROWS = 4 };

/* Out of one set and into another of the same codecs: the same bytes, and the padding zero. */
static void round_trip(const char *codec, bool ring, bool raw)
{
    static const uint32_t len[ROWS] = {0, 5, 37, 300};
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(2, 32, 64, codec, codec);
    s = ring ? rig_ring(s, 20, 0, 7) : s;
    kvs_cache *c[ROWS];
    kvs_cache *d[ROWS];
    for (uint32_t b = 0; b < ROWS; b++) {
        c[b] = rig_solo(ctx, &s, 1, len[b], b + 1);
        d[b] = rig_cache(ctx, &s, 1, 0);
    }
    kvs_rows *from = rig_rows_of(ctx, c, ROWS);
    kvs_rows *to = rig_rows_of(ctx, d, ROWS);
    kvs_rect_row at[ROWS];
    kvs_rect r = KVS_RECT_INIT;
    assert_int_equal(kvs_rect_plan(from, 0, at, &r.width, NULL), KVS_OK);
    assert_int_equal(r.width, ring ? 20 : 300);
    size_t bytes = 0;
    kvs_planes planes;
    kvs_layer_spec f32 = rig_spec(2, 32, 64, "f32", "f32");
    kvs_layer_spec many = raw ? s : f32;
    many.n_kv_heads = 2 * ROWS;
    void *base = rig_planes(&many, 0, r.width, &planes, &bytes);
    r.planes = &planes;
    memset(base, 0x5a, bytes);
    r.rows = at;
    r.flags = raw ? KVS_RECT_RAW : 0;
    assert_int_equal(kvs_rect_export(from, &r, NULL), KVS_OK);
    size_t row = (size_t)r.width * 2 * (raw && s.k.bits ? 32 * (size_t)s.k.bits / 8 : 32 * 4);
    row = raw && !s.k.bits ? (size_t)r.width * 2 * 32 * 2 : row;
    for (uint32_t b = 0; b < ROWS; b++) {
        const unsigned char *p = (const unsigned char *)planes.k[0] + b * row;
        assert_int_equal(at[b].offset, len[b]);
        assert_int_equal(at[b].end, r.width);
        for (size_t i = 0; i < at[b].start * (row / (2 * r.width)); i++) {
            assert_int_equal(p[i], 0);
        }
    }
    if (!raw && ring) {
        free(base); /* values continue at the length, and these rows begin later */
    } else {
        assert_int_equal(kvs_rect_import(to, &r, NULL), KVS_OK);
        for (uint32_t b = 0; b < ROWS; b++) {
            assert_true(rig_alike(kvs_rows_cache(to, b), kvs_rows_cache(from, b), 0));
        }
        free(base);
    }
    kvs_rows_free(from);
    kvs_rows_free(to);
    kvs_ctx_free(ctx);
}

static void test_rectangle_round_trip(void **state)
{
    (void)state;
    for (int ring = 0; ring < 2; ring++) {
        round_trip("f16", ring, true);
        round_trip("affine4:32", ring, true);
        round_trip("q8:32", ring, true);
        round_trip("f16", ring, false); /* f32 holds an f16 exactly */
    }
}

static void test_rectangle_mask(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = f16_spec();
    kvs_cache *c[2] = {rig_solo(ctx, &s, 1, 2, 1), rig_solo(ctx, &s, 1, 5, 2)};
    kvs_rows *rows = rig_rows_of(ctx, c, 2);
    kvs_rect_row at[2];
    uint64_t width = 0;
    int64_t pads[2];
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    rig_must(kvs_rect_plan(rows, 0, at, &width, NULL));
    assert_int_equal(kvs_rect_mask(rows, 0, at, width, 2, pads, &d, NULL), KVS_OK);
    uint8_t mask[2][2][7];
    assert_int_equal(kvs_mask_fill(&d, mask, sizeof mask, NULL), KVS_OK);
    for (int b = 0; b < 2; b++) {
        for (int q = 0; q < 2; q++) {
            for (int j = 0; j < 7; j++) {
                assert_int_equal(mask[b][q][j], j >= (b ? 0 : 3) && j <= 5 + q);
            }
        }
    }
    at[0].end = 4;
    assert_int_equal(kvs_rect_mask(rows, 0, at, width, 2, pads, &d, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_rect_mask(rows, 0, NULL, width, 2, pads, &d, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_rect_mask(rows, 1, at, width, 2, pads, &d, NULL), KVS_E_RANGE);
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

static void test_rectangle_refusals(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = f16_spec();
    kvs_layer_spec q = rig_spec(2, 32, 32, "q4:32", "f16");
    kvs_layer_spec sinks = rig_ring(s, 6, 2, 4);
    kvs_cache *c[3] = {rig_solo(ctx, &s, 1, 4, 1), rig_solo(ctx, &q, 1, 4, 2),
                       rig_solo(ctx, &sinks, 1, 4, 3)};
    kvs_rows *rows = rig_rows_of(ctx, c, 3);
    kvs_rect_row at[3];
    kvs_rect r = KVS_RECT_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_planes planes = KVS_PLANES_INIT;
    float plane[3 * 2 * 8 * 32];
    memset(plane, 0, sizeof plane);
    rig_must(kvs_rect_plan(rows, 0, at, &r.width, NULL));
    r.rows = at;
    r.planes = &planes;
    planes.k[0] = plane;
    r.flags = KVS_RECT_RAW;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_UNSUPPORTED); /* mixed codecs */
    assert_int_equal(kvs_rect_import(rows, &r, &err), KVS_E_UNSUPPORTED);
    r.flags = 2;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_INVAL);
    r.flags = 0;
    r.dtype = (kvs_dtype)9;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_INVAL);
    r.dtype = KVS_F32;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_OK); /* values of mixed rows */
    kvs_rect_row was = at[1];
    at[1].first = 1;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_RANGE);
    at[1] = was;
    at[1].end = 5;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_RANGE);
    at[1] = was;
    r.rows = NULL;
    assert_int_equal(kvs_rect_export(rows, &r, &err), KVS_E_INVAL);
    r.rows = at;
    /* all rows or none: row 2 asks for another position than its length */
    planes.v[0] = plane;
    at[0].first = 4;
    at[1].first = 4;
    assert_int_equal(kvs_rect_import(rows, &r, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "row 2"));
    assert_int_equal(kvs_cache_length(c[0], 0), 4);
    at[2].first = 4;
    planes.v[0] = NULL;
    assert_int_equal(kvs_rect_import(rows, &r, &err), KVS_E_INVAL);
    planes.v[0] = plane;
    assert_int_equal(kvs_rect_import(rows, &r, &err), KVS_OK);
    assert_int_equal(kvs_cache_length(c[2], 0), 8);
    rig_fill(c[2], 0, 9, 4, 1);
    assert_int_equal(kvs_rect_plan(rows, 0, at, &r.width, &err), KVS_E_UNSUPPORTED); /* sinks */
    assert_int_equal(kvs_rect_plan(rows, 1, at, &r.width, &err), KVS_E_RANGE);
    assert_int_equal(kvs_rect_plan(rows, 0, NULL, &r.width, &err), KVS_E_INVAL);
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

/* -- padded prefill */

static void test_prefill_positions(void **state)
{
    (void)state;
    /* rows at 11, lengths [2,10,4], trailing [8,0,6]: five columns done, then rows 2 and 0 stay */
    kvs_prefill_row row[3];
    uint32_t length[3] = {2, 10, 4};
    uint32_t right[3] = {8, 0, 6};
    uint64_t shift[3];
    for (int b = 0; b < 3; b++) {
        row[b] = (kvs_prefill_row){11, 0, KVS_PREFILL_NO_END};
    }
    assert_int_equal(kvs_prefill_prepare(row, 3, NULL, length, right, NULL), KVS_OK);
    uint64_t starts[3];
    uint64_t ends[3];
    assert_int_equal(kvs_prefill_advance(row, 3, 5, starts, ends, NULL), KVS_OK);
    assert_true(starts[0] == 0 && ends[0] == 2 && ends[1] == 5 && ends[2] == 4);
    assert_int_equal(kvs_prefill_valid(&row[0]), 13);
    kvs_prefill_row kept[2] = {row[2], row[0]};
    assert_int_equal(kvs_prefill_finalize(kept, 2, shift), KVS_OK);
    assert_true(kept[0].offset == 15 && kept[1].offset == 13);
    assert_true(kept[0].pad == 1 && kept[1].pad == 3);
    assert_true(shift[0] == 1 && shift[1] == 3);
    assert_int_equal(kvs_prefill_finalize(kept, 2, shift), KVS_NO); /* one-shot */
    assert_true(shift[0] == 0 && kept[1].pad == 3);
    assert_int_equal(kvs_prefill_advance(kept, 2, 4, starts, ends, NULL), KVS_OK);
    assert_true(ends[0] == 4 && ends[1] == 4); /* no end any more */
    assert_int_equal(kvs_prefill_valid(&kept[1]), 17);
}

static void test_prefill_cases(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        uint32_t left[4];
        uint32_t length[4];
        uint32_t right[4];
    } cases[] = {
        {2, {2, 0}, {6, 8}, {2, 0}},
        {2, {2, 0}, {6, 8}, {0, 0}},
        {2, {0, 0}, {5, 8}, {3, 0}},
        {4, {0, 3, 1, 5}, {8, 5, 7, 3}, {0, 0, 0, 0}},
        {4, {0, 3, 1, 5}, {8, 5, 7, 5}, {0, 3, 1, 3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (uint32_t chunk = 1; chunk <= 8; chunk++) {
            kvs_prefill_row row[4] = {{0, 0, KVS_PREFILL_NO_END},
                                      {0, 0, KVS_PREFILL_NO_END},
                                      {0, 0, KVS_PREFILL_NO_END},
                                      {0, 0, KVS_PREFILL_NO_END}};
            uint64_t valid[4] = {0, 0, 0, 0};
            uint64_t shift[4];
            uint32_t n = cases[i].n;
            bool trailing = false;
            rig_must(
                kvs_prefill_prepare(row, n, cases[i].left, cases[i].length, cases[i].right, NULL));
            for (uint32_t b = 0; b < n; b++) {
                trailing = trailing || cases[i].right[b] > 0;
                assert_int_equal(row[b].offset, -(int64_t)cases[i].left[b]);
            }
            for (uint32_t at = 0; at < 8; at += chunk) {
                uint64_t starts[4];
                uint64_t ends[4];
                uint32_t m = 8 - at < chunk ? 8 - at : chunk;
                rig_must(kvs_prefill_advance(row, n, m, starts, ends, NULL));
                for (uint32_t b = 0; b < n; b++) {
                    valid[b] += ends[b] - starts[b];
                }
            }
            kvs_status st = kvs_prefill_finalize(row, n, shift);
            assert_true(trailing || st == KVS_NO);
            for (uint32_t b = 0; b < n; b++) {
                uint32_t left = cases[i].left[b];
                uint32_t tokens = trailing ? cases[i].length[b] - left : 8 - left;
                assert_int_equal(valid[b], tokens);
                assert_int_equal(row[b].offset, tokens);
                assert_int_equal(row[b].pad + row[b].offset, 8); /* the column does not move */
                assert_int_equal(shift[b], 8 - left - tokens);
                /* the roll puts token 0 right behind the padding */
                assert_int_equal(kvs_prefill_roll((uint64_t)row[b].pad, shift[b], 8), left);
            }
        }
    }
    assert_int_equal(kvs_prefill_roll(0, 3, 8), 5);
    assert_int_equal(kvs_prefill_roll(7, 3, 8), 4);
    assert_int_equal(kvs_prefill_roll(9, 11, 8), 6);
    assert_int_equal(kvs_prefill_roll(1, 1, 0), 0);
}

static void test_prefill_refusals(void **state)
{
    (void)state;
    kvs_prefill_row row = {3, 0, KVS_PREFILL_NO_END};
    uint32_t length = 4;
    uint32_t left = 1;
    assert_int_equal(kvs_prefill_prepare(&row, 1, &left, &length, NULL, NULL), KVS_E_STATE);
    uint32_t right = 1;
    left = 5;
    row.offset = 0;
    assert_int_equal(kvs_prefill_prepare(&row, 1, &left, &length, &right, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_prefill_prepare(&row, 1, NULL, NULL, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_prefill_prepare(NULL, 1, NULL, &length, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_prefill_advance(NULL, 1, 1, NULL, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_prefill_advance(&row, 1, UINT64_MAX, NULL, NULL, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_prefill_finalize(NULL, 1, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_prefill_finalize(NULL, 0, NULL), KVS_NO);
    assert_true(row.offset == 0 && row.pad == 0 && row.end == KVS_PREFILL_NO_END);
    row.offset = INT64_MAX;
    assert_int_equal(kvs_prefill_prepare(&row, 1, NULL, &length, NULL, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_prefill_advance(&row, 1, 1, NULL, NULL, NULL), KVS_E_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_fork_shares_and_pays_for_what_it_adds),
        cmocka_unit_test(test_a_fork_at_the_end_of_a_segment),
        cmocka_unit_test(test_the_last_holder_owns),
        cmocka_unit_test(test_forks_among_sinks),
        cmocka_unit_test(test_forks_at_every_length),
        cmocka_unit_test(test_a_long_line_of_forks),
        cmocka_unit_test(test_fork_refusals),
        cmocka_unit_test(test_rows_move_and_stay_what_they_are),
        cmocka_unit_test(test_row_refusals),
        cmocka_unit_test(test_rectangle_round_trip),
        cmocka_unit_test(test_rectangle_mask),
        cmocka_unit_test(test_rectangle_refusals),
        cmocka_unit_test(test_prefill_positions),
        cmocka_unit_test(test_prefill_cases),
        cmocka_unit_test(test_prefill_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
