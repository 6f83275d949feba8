/* SPDX-License-Identifier: MIT */
/* test_txn.c: rounds of drafts: their life cycle, what is refused meanwhile, named parameter sets of
 * rings that wrap, the set of tokens that each query sees, and the latch of a failed round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "state/round.h"
#include "support/rows_rig.h"

/* -- named parameter sets: window 8, three rows, blocks of 4, 36 rounds each followed by a decode */

static const uint32_t initial[4][3] = {{0, 0, 0}, {0, 5, 7}, {2, 5, 7}, {9, 15, 21}};

static void run_rounds(kvs_layer_spec spec, const uint32_t *start, bool step_by_step)
{
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_cache *row[3];
    kvs_cache *solo[3];
    uint32_t len[3];
    for (uint32_t b = 0; b < 3; b++) {
        len[b] = start[b];
        row[b] = rig_solo(ctx, &spec, 1, start[b], b + 1);
        solo[b] = rig_solo(ctx, &spec, 1, start[b], b + 1);
    }
    kvs_rows *rows = rig_rows_of(ctx, row, 3);
    for (uint32_t round = 0; round < 36; round++) {
        uint32_t accepted[3];
        rig_begin(rows, 3);
        for (uint32_t b = 0; b < 3; b++) {
            accepted[b] = (round * 7 + b * 5 + round / 4) % 4;
            uint32_t good = accepted[b] + 1;
            for (uint32_t t = 0; step_by_step && t < 4; t++) {
                rig_must(rig_draft(row[b], 0, 1, t < good, b + 1));
            }
            rig_must(step_by_step ? KVS_OK : rig_draft(row[b], 0, 4, good, b + 1));
        }
        assert_int_equal(kvs_txn_resolve(rows, accepted, NULL), KVS_OK);
        for (uint32_t b = 0; b < 3; b++) {
            len[b] += accepted[b] + 1;
            rig_fill(solo[b], 0, accepted[b] + 1, 1, b + 1);
            assert_int_equal(kvs_cache_length(row[b], 0), len[b]);
            assert_true(rig_alike(row[b], solo[b], 0));
            rig_fill(row[b], 0, 1, 1, b + 1);
            rig_fill(solo[b], 0, 1, 1, b + 1);
            len[b]++;
            assert_true(rig_alike(row[b], solo[b], 0));
        }
    }
    for (uint32_t b = 0; b < 3; b++) {
        kvs_cache_free(solo[b]);
    }
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

static void test_w8_b3_36_rounds(void **state)
{
    (void)state;
    static const char *const codec[] = {"f32", "f16", "affine4:32", "affine8:32", "q2:32", "q5:32"};
    for (size_t c = 0; c < sizeof codec / sizeof *codec; c++) {
        for (size_t i = 0; i < 4; i++) {
            kvs_layer_spec grow = rig_spec(2, 32, 32, codec[c], codec[c]);
            kvs_layer_spec ring = rig_ring(grow, 8, 0, 4);
            run_rounds(ring, initial[i], false);
            run_rounds(ring, initial[i], true);
            run_rounds(rig_ring(grow, 8, 2, 4), initial[i], false);
            run_rounds(grow, initial[i], false);
            ring.dense_until = 10; /* the conversion crosses the wrap, and the drafts */
            grow.dense_until = 10;
            run_rounds(ring, initial[i], false);
            run_rounds(ring, initial[i], true);
            run_rounds(grow, initial[i], true);
        }
    }
}

/* -- the attended set: all scores equal, each value a one in the lane of its position */

enum { LANES = 512 };

static void append_marks(kvs_cache *c, uint32_t n, int64_t shift)
{
    int64_t at = kvs_cache_length(c, 0);
    float *k = rig_alloc((size_t)n * 16 * sizeof *k);
    float *v = rig_alloc((size_t)n * LANES * sizeof *v);
    for (uint32_t i = 0; i < n; i++) {
        v[(size_t)i * LANES + (size_t)(at + (int64_t)i + shift) % LANES] = 1.0f;
    }
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = k;
    kv.v = v;
    rig_must(kvs_cache_append(c, 0, &kv, NULL));
    free(k);
    free(v);
}

/* Queries at the newest n positions of a row whose true count is `count`. */
static void check_attended(kvs_cache *c, uint32_t n, int64_t count, int64_t window)
{
    float *q = NULL;
    float *out = NULL;
    assert_int_equal(kvs_cache_length(c, 0), count);
    kvs_attend d = rig_query(kvs_cache_spec(c, 0), n, 1, -1, &q, &out);
    rig_must(kvs_cache_attend(c, 0, &d, NULL));
    for (uint32_t i = 0; i < n; i++) {
        int64_t pos = count - (int64_t)n + (int64_t)i;
        int64_t begin = pos + 1 - window > 0 ? pos + 1 - window : 0;
        for (int64_t lane = 0; lane < LANES; lane++) {
            bool seen = out[(size_t)i * LANES + (size_t)lane] != 0.0f;
            int64_t p = pos - (((pos - lane) % LANES + LANES) % LANES);
            if (seen != (p >= begin && p <= pos)) {
                fail_msg("window %lld, query at %lld: lane %lld", (long long)window, (long long)pos,
                         (long long)lane);
            }
        }
    }
    free(q);
    free(out);
}

typedef struct marks {
    kvs_rows *rows;
    uint32_t n;
    int64_t count[4];
    uint32_t window;
    uint64_t rng;
} marks;

static uint32_t draw(marks *m, uint32_t n)
{
    m->rng = rig_mix(m->rng);
    return (uint32_t)(m->rng >> 33) % n;
}

static void marks_round(marks *m)
{
    uint32_t most = 2 * m->window + 2;
    uint32_t d = draw(m, most < 12 ? most : 12);
    uint32_t accepted[4];
    bool abort = draw(m, 5) == 0; /* keep 0 of a block */
    rig_begin(m->rows, d);
    for (uint32_t b = 0; b < m->n; b++) {
        kvs_cache *c = kvs_rows_cache(m->rows, b);
        accepted[b] = draw(m, d + 1);
        /* what is rejected has other lanes than the tokens that come in its place */
        append_marks(c, accepted[b] + 1, 0);
        check_attended(c, accepted[b] + 1, m->count[b] + accepted[b] + 1, m->window);
        if (accepted[b] < d) {
            append_marks(c, d - accepted[b], 97);
        }
        m->count[b] += abort ? 0 : accepted[b] + 1;
    }
    assert_int_equal(
        abort ? kvs_txn_abort(m->rows, NULL) : kvs_txn_resolve(m->rows, accepted, NULL), KVS_OK);
}

static void marks_step(marks *m)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    uint32_t kept[4];
    o.kind = KVS_TXN_STEP;
    rig_must(kvs_txn_begin(m->rows, &o, NULL));
    for (uint32_t b = 0; b < m->n; b++) {
        kept[b] = draw(m, 2);
        append_marks(kvs_rows_cache(m->rows, b), 1, kept[b] ? 0 : 131);
        m->count[b] += kept[b];
    }
    assert_int_equal(kvs_txn_resolve(m->rows, kept, NULL), KVS_OK);
}

/* Two chunks of a prefill with trailing padding. */
static void marks_prefill(marks *m)
{
    uint32_t most = 2 * m->window + 2;
    uint32_t length[4];
    uint32_t right[4];
    uint32_t width = 0;
    kvs_prefill_row pre[4];
    for (uint32_t b = 0; b < m->n; b++) {
        length[b] = 1 + draw(m, most < 20 ? most : 20);
        width = length[b] > width ? length[b] : width;
        pre[b] = (kvs_prefill_row){m->count[b], 0, KVS_PREFILL_NO_END};
    }
    for (uint32_t b = 0; b < m->n; b++) {
        right[b] = width - length[b];
    }
    rig_must(kvs_prefill_prepare(pre, m->n, NULL, length, right, NULL));
    uint32_t cut = width / 2;
    for (uint32_t done = 0; done < width;) {
        uint32_t n = done == 0 && cut > 0 ? cut : width - done;
        uint64_t starts[4];
        uint64_t ends[4];
        kvs_rect_row at[4];
        kvs_rect r = KVS_RECT_INIT;
        rig_must(kvs_prefill_advance(pre, m->n, n, starts, ends, NULL));
        float *k = rig_alloc((size_t)m->n * n * 16 * sizeof *k);
        float *v = rig_alloc((size_t)m->n * n * LANES * sizeof *v);
        for (uint32_t b = 0; b < m->n; b++) {
            at[b] = (kvs_rect_row){0, m->count[b], starts[b], ends[b]};
            for (uint32_t c = 0; c < n; c++) {
                bool pad = c < starts[b] || c >= ends[b];
                int64_t lane = (m->count[b] + (int64_t)c - (int64_t)starts[b]) % LANES;
                v[((size_t)b * n + c) * LANES + (size_t)lane] = pad ? 1e30f : 1.0f;
            }
            m->count[b] += (int64_t)(ends[b] - starts[b]);
        }
        r.width = n;
        r.rows = at;
        kvs_planes planes = KVS_PLANES_INIT;
        planes.k[0] = k;
        planes.v[0] = v;
        r.planes = &planes;
        rig_must(kvs_rect_import(m->rows, &r, NULL));
        free(k);
        free(v);
        done += n;
    }
    for (uint32_t b = 0; b < m->n; b++) {
        assert_int_equal(kvs_prefill_valid(&pre[b]), m->count[b]);
    }
}

static void marks_op(marks *m)
{
    uint32_t op = draw(m, 8);
    if (op < 2) {
        marks_round(m);
    } else if (op == 2) {
        marks_step(m);
    } else if (op == 3) {
        marks_prefill(m);
    } else if (op == 4 && m->n > 1) {
        uint32_t gone = draw(m, m->n);
        rig_must(kvs_rows_cancel(m->rows, gone, NULL));
        m->n--;
        memmove(m->count + gone, m->count + gone + 1, (m->n - gone) * sizeof *m->count);
    }
    for (uint32_t b = 0; b < m->n; b++) {
        uint32_t most = 2 * m->window + 2 < 40 ? 2 * m->window + 2 : 40;
        uint32_t n = op < 6 ? 1 : 1 + draw(m, most);
        append_marks(kvs_rows_cache(m->rows, b), n, 0);
        m->count[b] += n;
        check_attended(kvs_rows_cache(m->rows, b), n, m->count[b], m->window);
    }
}

static void test_attended_set_is_the_newest(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 2, 3, 5, 8, 16, 40, 300};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        for (uint32_t n = 1; n <= 4; n++) {
            kvs_ctx *ctx = rig_ctx(1, 0);
            marks m = {.n = n, .window = windows[w], .rng = w * 16 + n};
            kvs_layer_spec s = rig_spec(1, 16, LANES, "f16", "f32");
            s = rig_ring(s, windows[w], 0, 2 * windows[w] + 2);
            kvs_cache *c[4];
            for (uint32_t b = 0; b < n; b++) {
                c[b] = rig_cache(ctx, &s, 1, 0);
                m.count[b] = draw(&m, 3) == 0 ? 0 : 1 + draw(&m, 30);
                for (int64_t i = 0; i < m.count[b]; i++) {
                    append_marks(c[b], 1, 0);
                }
            }
            m.rows = rig_rows_of(ctx, c, n);
            for (int i = 0; i < 30; i++) {
                marks_op(&m);
            }
            kvs_rows_free(m.rows);
            kvs_ctx_free(ctx);
        }
    }
}

/* -- the life cycle */

static kvs_rows *two_rows(kvs_ctx *ctx, uint32_t block)
{
    kvs_layer_spec a[2] = {rig_spec(1, 32, 32, "f16", "q4:32"), rig_spec(1, 32, 16, "f32", "f32")};
    kvs_layer_spec b[2] = {rig_ring(a[0], 6, 1, block), a[1]};
    kvs_cache *c[2] = {rig_solo(ctx, a, 2, 5, 1), rig_solo(ctx, b, 2, 20, 2)};
    return rig_rows_of(ctx, c, 2);
}

static void test_invalid_calls_change_nothing(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_rows *rows = two_rows(ctx, 4);
    kvs_cache *c = kvs_rows_cache(rows, 1);
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    uint32_t drafts[2] = {9, 2};
    uint32_t a[2] = {0, 0};
    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_E_STATE);
    assert_int_equal(kvs_txn_abort(rows, &err), KVS_E_STATE);
    assert_int_equal(kvs_txn_can_begin(NULL, &o), KVS_E_INVAL);
    assert_int_equal(kvs_txn_can_begin(rows, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_txn_begin(rows, NULL, &err), KVS_E_INVAL);
    o.kind = (kvs_txn_kind)2;
    assert_int_equal(kvs_txn_begin(rows, &o, &err), KVS_E_INVAL);
    o.kind = KVS_TXN_STEP;
    o.n_drafts = 1;
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_E_INVAL);
    o.kind = KVS_TXN_DRAFTS;
    o.n_drafts = 4; /* one token more than the ring's block */
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_NO);
    assert_int_equal(kvs_txn_begin(rows, &o, &err), KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "row 1, layer 0"));
    o.n_drafts = UINT32_MAX;
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_NO);
    o.drafts = drafts; /* the row without a ring takes any number */
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_OK);
    assert_int_equal(kvs_txn_begin(rows, &o, &err), KVS_OK);
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_NO);
    assert_int_equal(kvs_txn_begin(rows, &o, &err), KVS_E_STATE);

    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_E_STATE); /* nothing was appended */
    assert_non_null(strstr(err.msg, "row 0, layer 0"));
    for (uint32_t b = 0; b < 2; b++) {
        rig_must(rig_draft(kvs_rows_cache(rows, b), 0, 3, 1, b + 1));
    }
    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_E_STATE); /* layer 1 has not its token */
    for (uint32_t b = 0; b < 2; b++) {
        rig_must(rig_draft(kvs_rows_cache(rows, b), 1, 3, 1, b + 1));
    }
    a[1] = 3;
    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_E_RANGE);
    a[1] = 2;
    a[0] = 3; /* of 9, but 3 were appended */
    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_E_STATE);
    assert_int_equal(kvs_txn_resolve_all(rows, 10, &err), KVS_E_RANGE);
    assert_int_equal(kvs_cache_append(c, 0, &(kvs_kv){.struct_size = sizeof(kvs_kv)}, NULL),
                     KVS_E_INVAL);
    assert_int_equal(rig_draft(c, 0, 1, 0, 2), KVS_E_LIMIT);

    assert_int_equal(kvs_cache_length(c, 0), 23);
    assert_int_equal(kvs_cache_committed(c, 0), 20);
    assert_int_equal(kvs_cache_committed(c, 2), -1);
    a[0] = 0;
    a[1] = 0;
    assert_int_equal(kvs_txn_resolve(rows, a, &err), KVS_OK);
    assert_int_equal(kvs_cache_length(c, 0), 21);
    assert_int_equal(kvs_cache_committed(c, 1), 21);
    kvs_txn_stats s = KVS_TXN_STATS_INIT;
    assert_int_equal(kvs_txn_get_stats(rows, &s), KVS_OK);
    assert_true(s.open == 0 && s.rounds == 1 && s.drafts == 11 && s.accepted == 0);
    assert_int_equal(kvs_txn_get_stats(NULL, &s), KVS_E_INVAL);
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

static void test_only_committed_state_leaves(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_rows *rows = two_rows(ctx, 4);
    kvs_cache *c = kvs_rows_cache(rows, 1);
    kvs_cache *f = NULL;
    kvs_view *v = NULL;
    kvs_planes p = KVS_PLANES_INIT;
    kvs_rows *none = rig_rows_of(ctx, NULL, 0);
    uint32_t keep[2] = {1, 0};
    rig_begin(rows, 2);
    assert_int_equal(kvs_view_new(c, 0, &v, NULL), KVS_OK); /* nothing was drafted yet */
    kvs_view_free(v);
    for (uint32_t i = 0; i < 2; i++) {
        rig_must(rig_draft(c, i, 3, 1, 2));
        rig_must(rig_draft(kvs_rows_cache(rows, 0), i, 3, 3, 1));
    }
    assert_int_equal(kvs_view_new(c, 0, &v, NULL), KVS_E_STATE);
    assert_null(v);
    assert_int_equal(kvs_cache_fork(c, KVS_ALL_TOKENS, &f, NULL), KVS_E_STATE);
    assert_int_equal(kvs_cache_fork(c, 21, &f, NULL), KVS_E_STATE);
    assert_null(f);
    assert_int_equal(kvs_cache_export(c, 0, 20, 1, &p, NULL), KVS_E_STATE);
    assert_int_equal(kvs_cache_export(c, 0, 19, 1, &p, NULL), KVS_OK);
    assert_int_equal(kvs_cache_rewind(c, 0, 1, NULL), KVS_E_STATE);
    assert_int_equal(kvs_cache_rewind(c, KVS_ALL_LAYERS, 1, NULL), KVS_E_STATE);
    assert_int_equal(kvs_cache_can_rewind(c, 0, 1), KVS_NO);
    assert_int_equal(kvs_cache_clear(c, NULL), KVS_E_STATE);
    kvs_codec q8 = KVS_CODEC_AFFINE(8, 32, KVS_F16);
    assert_int_equal(kvs_cache_convert(c, 0, &q8, &q8, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_filter(rows, keep, 2, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_reorder(rows, keep, 2, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_extend(rows, none, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_extend(none, rows, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_fork(rows, 0, 1, NULL), KVS_E_STATE);
    assert_int_equal(kvs_rows_extract(rows, 0, &f, NULL), KVS_E_STATE);
    assert_null(f);
    kvs_rows *again = NULL;
    assert_int_equal(kvs_rows_merge(ctx, &c, 1, &again, NULL), KVS_E_INVAL);
    assert_null(again);

    assert_int_equal(kvs_cache_fork(c, 20, &f, NULL), KVS_OK); /* committed tokens are shared */
    kvs_layer_spec specs[2] = {*kvs_cache_spec(c, 0), *kvs_cache_spec(c, 1)};
    kvs_cache *solo = rig_solo(ctx, specs, 2, 20, 2);
    assert_true(rig_alike(f, solo, 0) && rig_alike(f, solo, 1));
    rig_fill(f, 0, 30, 4, 7); /* over what the drafts of the source lie in */
    kvs_cache_free(f);
    assert_int_equal(kvs_rows_cancel(rows, 0, NULL), KVS_OK); /* a row may leave */
    assert_int_equal(kvs_txn_resolve_all(rows, 0, NULL), KVS_OK);
    rig_fill(solo, 0, 1, 1, 2);
    rig_fill(solo, 1, 1, 1, 2);
    assert_true(rig_alike(c, solo, 0) && rig_alike(c, solo, 1));
    kvs_cache_free(solo);
    kvs_rows_free(none);
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

/* One round of `drafts` drafts, all rejected, token by token from length `start`. */
static void retain(kvs_ctx *ctx, const kvs_layer_spec *s, uint32_t start, uint32_t drafts)
{
    kvs_txn_stats t = KVS_TXN_STATS_INIT;
    uint32_t dense = s->dense_until;
    kvs_cache *c = rig_solo(ctx, s, 1, start, 1);
    kvs_rows *rows = rig_rows_of(ctx, &c, 1);
    rig_begin(rows, drafts);
    for (uint32_t i = 0; i <= drafts; i++) {
        rig_must(rig_draft(c, 0, 1, i == 0, 1));
    }
    rig_must(kvs_txn_get_stats(rows, &t));
    bool held = drafts > 0 && start + drafts > dense && start < dense + 2;
    assert_int_equal(t.retained_bytes > 0, held);
    assert_int_equal(kvs_txn_resolve_all(rows, 0, NULL), KVS_OK);
    rig_must(kvs_txn_get_stats(rows, &t));
    assert_int_equal(t.retained_bytes, 0);
    kvs_cache *solo = rig_solo(ctx, s, 1, start + 1, 1);
    assert_true(rig_alike(c, solo, 0));
    assert_int_equal(kvs_cache_bytes(c, 0), kvs_cache_bytes(solo, 0));
    kvs_cache_free(solo);
    kvs_rows_free(rows);
}

/* Rounds hold nothing but a dense copy that drafts may need; that goes with the drafts. */
static void test_bytes_retained(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(1, 32, 32, "q4:32", "q4:32");
    for (uint32_t drafts = 0; drafts < 6; drafts++) {
        for (uint32_t at = 0; at < 7; at++) {
            s.dense_until = 10;
            retain(ctx, &s, 6 + at, drafts);
            s.dense_until = 2; /* from nothing, past the conversion */
            retain(ctx, &s, at, drafts);
        }
    }
    kvs_ctx_free(ctx);
}

/* -- the latch */

static kvs_status no_settle(kvs_ctx *ctx, kvs__layer *l, uint64_t kept, kvs_err *err)
{
    (void)ctx;
    (void)l;
    return kvs__fail(err, KVS_E_NOMEM, "test", "settle of %llu", (unsigned long long)kept);
}

static void test_a_failed_round_breaks_the_set(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_rows *rows = two_rows(ctx, 4);
    kvs_cache *c = kvs_rows_cache(rows, 0);
    kvs__round_ops ops = *kvs__round_ops_of(KVS_LAYER_ATTENTION);
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_cache *f = NULL;
    uint32_t one = 0;
    ops.settle = no_settle;
    rig_begin(rows, 1);
    for (uint32_t b = 0; b < 2; b++) {
        for (uint32_t i = 0; i < 2; i++) {
            rig_must(rig_draft(kvs_rows_cache(rows, b), i, 2, 1, b + 1));
        }
    }
    kvs_rows_cache(rows, 1)->layer[1].ops = &ops;
    assert_int_equal(kvs_txn_resolve_all(rows, 0, &err), KVS_E_NOMEM);
    assert_int_equal(kvs_txn_resolve_all(rows, 0, &err), KVS_E_BROKEN);
    assert_int_equal(err.status, KVS_E_BROKEN);
    assert_int_equal(kvs_txn_abort(rows, NULL), KVS_E_BROKEN);
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    assert_int_equal(kvs_txn_begin(rows, &o, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_txn_can_begin(rows, &o), KVS_E_BROKEN);
    assert_null(kvs_rows_cache(rows, 0));
    assert_int_equal(kvs_rows_extract(rows, 0, &f, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_rows_filter(rows, &one, 1, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_rows_cancel(rows, 0, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_rows_fork(rows, 0, 0, NULL), KVS_E_BROKEN);
    kvs_rows *none = rig_rows_of(ctx, NULL, 0);
    assert_int_equal(kvs_rows_extend(none, rows, NULL), KVS_E_BROKEN);
    kvs_rows_free(none);
    /* its caches too, though the first of them was settled */
    assert_int_equal(kvs_cache_fork(c, 0, &f, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_cache_clear(c, NULL), KVS_E_BROKEN);
    assert_int_equal(kvs_cache_rewind(c, KVS_ALL_LAYERS, 0, NULL), KVS_E_BROKEN);
    assert_int_equal(rig_draft(c, 0, 1, 1, 1), KVS_E_BROKEN);
    assert_int_equal(kvs_rows_merge(ctx, &c, 1, &none, NULL), KVS_E_BROKEN);
    kvs_rows_free(rows);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_w8_b3_36_rounds),
        cmocka_unit_test(test_attended_set_is_the_newest),
        cmocka_unit_test(test_invalid_calls_change_nothing),
        cmocka_unit_test(test_only_committed_state_leaves),
        cmocka_unit_test(test_bytes_retained),
        cmocka_unit_test(test_a_failed_round_breaks_the_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
