/* SPDX-License-Identifier: MIT */
/* test_donor.c: layers that borrow, and captured donors: every donor (dense, affine, rotated, delayed;
 * grow, window, ring) read by a borrower and by a view, against the donor's own reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/rows_rig.h"

static kvs_layer_spec borrow(uint32_t donor)
{
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    s.kind = KVS_LAYER_BORROW;
    s.donor = donor;
    return s;
}

/* The matrix of donors. */
enum { DONORS = 6 * 4 };
static kvs_layer_spec donor_spec(int i)
{
    static const char *const codec[] = {"f32",        "bf16",  "affine4:32",
                                        "affine8:32", "q4:32", "q3:32"};
    kvs_layer_spec s = rig_spec(2, 32, 64, codec[i % 6], codec[(i + 1) % 6]);
    int layout = i / 6;
    if (layout == 1) {
        s.window = 9;
        s.sinks = 2;
    } else if (layout == 2) {
        s = rig_ring(s, 9, 2, 5);
    } else if (layout == 3) {
        s.dense_until = 17;
    }
    return s;
}

static bool same_read(kvs_cache *a, uint32_t la, kvs_cache *b, uint32_t lb, uint32_t n)
{
    const kvs_layer_spec *s = kvs_cache_spec(a, la);
    float *x = rig_read(a, la, n, 2);
    float *y = rig_read(b, lb, n, 2);
    bool same = memcmp(x, y, (size_t)n * s->n_kv_heads * 2 * s->v_dim * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

static void test_a_borrower_reads_this_step(void **state)
{
    (void)state;
    for (int i = 0; i < DONORS; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[3] = {rig_spec(1, 16, 16, "f32", "f32"), donor_spec(i), borrow(1)};
        kvs_cache *c = rig_cache(ctx, s, 3, 0);
        for (uint32_t n = 0; n < 30; n++) {
            rig_fill(c, 0, 1, 1, 1);
            rig_fill(c, 1, 1, 1, 1);
            assert_int_equal(kvs_cache_length(c, 2), n + 1); /* the donor's, this step included */
            assert_true(same_read(c, 2, c, 1, 1));
        }
        rig_fill(c, 1, 4, 4, 1); /* a block: queries see what they would in the donor */
        assert_true(same_read(c, 2, c, 1, 4));
        assert_int_equal(kvs_cache_oldest(c, 2), kvs_cache_oldest(c, 1));
        assert_int_equal(kvs_cache_bytes(c, 2), 0);
        size_t plan[3];
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        o.n_layers = 3;
        o.layers = s;
        assert_int_equal(kvs_cache_plan(&o, 100, NULL, plan, NULL), KVS_OK);
        assert_true(plan[1] > 0 && plan[2] == 0);
        assert_int_equal(kvs_cache_spec(c, 2)->n_kv_heads, 2);
        assert_int_equal(kvs_cache_spec(c, 2)->window, s[1].window);
        kvs_cache_free(c);
        kvs_ctx_free(ctx);
    }
}

static void test_a_borrower_never_writes(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[2] = {donor_spec(2), borrow(0)};
    kvs_cache *c = rig_cache(ctx, s, 2, 0);
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_planes p = KVS_PLANES_INIT;
    kvs_step step = KVS_STEP_INIT;
    rig_fill(c, 0, 5, 5, 1);
    assert_int_equal(rig_append(c, 1, 1, 1, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "layer 1 borrows from layer 0"));
    assert_int_equal(kvs_cache_reserve(c, 1, 1, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_rewind(c, 1, 1, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_can_rewind(c, 1, 1), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_import(c, 1, 5, 1, &p, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_convert(c, 1, &s[0].k, &s[0].v, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_step_plan(c, 1, &step, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_length(c, 0), 5);
    assert_int_equal(kvs_cache_reserve(c, KVS_ALL_LAYERS, 3, NULL), KVS_OK); /* passed over */
    assert_int_equal(kvs_cache_rewind(c, KVS_ALL_LAYERS, 2, NULL), KVS_OK);
    assert_int_equal(kvs_cache_length(c, 1), 3);
    char name[32];
    assert_int_equal(kvs_cache_signature(c, 1, name, sizeof name), 14);
    assert_string_equal(name, "borrow layer=0");
    kvs_codec q8 = KVS_CODEC_AFFINE(8, 32, KVS_F16);
    assert_int_equal(kvs_cache_convert(c, 0, &q8, &q8, NULL), KVS_OK);
    assert_int_equal(kvs_cache_spec(c, 1)->k.bits, 8); /* it is what the donor is */
    assert_true(same_read(c, 1, c, 0, 1));
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

static void test_what_can_borrow(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[3] = {donor_spec(0), borrow(0), borrow(1)};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.n_layers = 3;
    o.layers = s;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_UNSUPPORTED); /* a chain */
    assert_non_null(strstr(err.msg, "layer 2"));
    s[2].donor = 2;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_INVAL); /* itself */
    s[2].donor = 7;
    assert_int_equal(kvs_cache_plan(&o, 1, NULL, NULL, &err), KVS_E_INVAL);
    s[2].donor = 0;
    s[2].n_kv_heads = 3;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_INVAL);
    s[2].n_kv_heads = 2;
    s[2].k_dim = 64;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_INVAL);
    s[2].k_dim = 32;
    s[2].v_dim = 32;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_INVAL);
    s[2].v_dim = 64;
    s[2].reserved = 1;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_E_UNSUPPORTED);
    assert_null(c);
    s[2].reserved = 0;
    assert_int_equal(kvs_cache_new(ctx, &o, &c, &err), KVS_OK);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* A borrower in a round sees drafts, and what is left when they are rejected. */
static void test_a_borrower_in_a_round(void **state)
{
    (void)state;
    for (int i = 0; i < DONORS; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[2] = {donor_spec(i), borrow(0)};
        kvs_cache *c = rig_solo(ctx, s, 2, 15, 1);
        kvs_rows *rows = rig_rows_of(ctx, &c, 1);
        rig_begin(rows, 3);
        rig_must(rig_draft(c, 0, 4, 2, 1));
        assert_int_equal(kvs_cache_length(c, 1), 19);
        assert_int_equal(kvs_cache_committed(c, 1), 15);
        assert_true(same_read(c, 1, c, 0, 1));
        assert_int_equal(kvs_txn_resolve_all(rows, 1, NULL), KVS_OK);
        kvs_cache *solo = rig_solo(ctx, s, 2, 17, 1);
        assert_true(same_read(c, 1, solo, 0, 1));
        kvs_cache_free(solo);
        kvs_rows_free(rows);
        kvs_ctx_free(ctx);
    }
}

/* -- captured once per chain */

typedef struct capture {
    kvs_view *view;
    kvs_view_info info;
    float *out;
    size_t bytes;
} capture;

static float *view_read(const capture *v, const kvs_layer_spec *s)
{
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(s, 1, 2, -1, &q, &out);
    rig_must(kvs_view_attend(v->view, &d, NULL));
    free(q);
    return out;
}

static capture take(kvs_cache *c, uint32_t layer)
{
    const kvs_layer_spec *s = kvs_cache_spec(c, layer);
    capture v = {.info = KVS_VIEW_INFO_INIT};
    rig_must(kvs_view_new(c, layer, &v.view, NULL));
    rig_must(kvs_view_get_info(v.view, &v.info));
    v.out = view_read(&v, s);
    v.bytes = (size_t)s->n_kv_heads * 2 * s->v_dim * sizeof(float);
    return v;
}

static void still(const capture *v, const kvs_layer_spec *s)
{
    kvs_view_info now = KVS_VIEW_INFO_INIT;
    rig_must(kvs_view_get_info(v->view, &now));
    float *out = view_read(v, s);
    assert_memory_equal(out, v->out, v->bytes);
    assert_memory_equal(&now, &v->info, sizeof now);
    free(out);
}

static void test_captures_survive_their_source(void **state)
{
    (void)state;
    kvs_codec q8 = KVS_CODEC_AFFINE(8, 32, KVS_F16);
    for (int i = 0; i < DONORS; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec s[2] = {donor_spec(i), borrow(0)};
        kvs_cache *c[2] = {rig_solo(ctx, s, 2, 16, 1), rig_solo(ctx, s, 2, 3, 2)};
        kvs_rows *rows = rig_rows_of(ctx, c, 2);
        kvs_layer_spec spec = *kvs_cache_spec(c[0], 0);
        capture own = take(c[0], 0);
        capture by = take(c[0], 1); /* through the borrower */
        assert_memory_equal(own.out, by.out, own.bytes);
        assert_int_equal(own.info.offset, 16);
        assert_int_equal(own.info.width, own.info.n_sinks + 16 - own.info.start);
        assert_int_equal(own.info.start, spec.layout == KVS_LAYOUT_RING ? 7 : 0);
        uint32_t order[2] = {1, 0};
        rig_must(kvs_rows_reorder(rows, order, 2, NULL));
        still(&own, &spec);
        rig_begin(rows, 2);
        rig_must(rig_draft(c[0], 0, 3, 0, 1));
        rig_must(rig_draft(c[1], 0, 3, 0, 1));
        still(&own, &spec);
        rig_must(kvs_txn_abort(rows, NULL));
        still(&own, &spec);
        if (kvs_cache_can_rewind(c[0], 0, 5) == KVS_OK) {
            rig_must(kvs_cache_rewind(c[0], 0, 5, NULL));
        }
        rig_fill(c[0], 0, 40, 5, 3); /* over what was rewound, past a conversion, round a ring */
        still(&own, &spec);
        rig_must(kvs_cache_convert(c[0], 0, &q8, &q8, NULL));
        still(&own, &spec);
        rig_must(kvs_cache_clear(c[0], NULL));
        rig_fill(c[0], 0, 20, 5, 4);
        still(&own, &spec);
        kvs_cache *gone = NULL;
        rig_must(kvs_rows_extract(rows, 1, &gone, NULL));
        kvs_cache_free(gone);
        kvs_rows_free(rows);
        still(&own, &spec);
        still(&by, &spec);
        kvs_view_free(own.view);
        kvs_view_free(by.view);
        free(own.out);
        free(by.out);
        kvs_ctx_free(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_borrower_reads_this_step),
        cmocka_unit_test(test_a_borrower_never_writes),
        cmocka_unit_test(test_what_can_borrow),
        cmocka_unit_test(test_a_borrower_in_a_round),
        cmocka_unit_test(test_captures_survive_their_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
