/* SPDX-License-Identifier: MIT */
/* test_fault_rows.c: every allocation of every call on forks, sets of rows, rounds and rectangles
 * fails once: KVS_E_NOMEM, nothing leaked, nothing changed, and the call succeeds when repeated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/fail_alloc.h"
#include "support/rows_rig.h"

typedef struct rig {
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_rows *rows;
    kvs_rows *other;
    kvs_cache *loose; /* in no set */
    void *base;
    kvs_planes planes;
    kvs_rect rect;
    kvs_rect_row at[8];
} rig;

static void specs(kvs_layer_spec *s, int row)
{
    s[0] = rig_spec(2, 32, 32, row ? "q4:32" : "f16", "q8:32");
    s[0].dense_until = row ? 255 : 0;
    s[1] = row ? rig_spec(1, 16, 16, "f32", "f32")
               : rig_ring(rig_spec(1, 16, 16, "f32", "f32"), 9, 2, 8);
}

static kvs_cache *make(rig *r, int row, uint32_t n)
{
    kvs_layer_spec s[2];
    specs(s, row);
    kvs_cache *c = rig_cache(r->ctx, s, 2, 0);
    rig_fill(c, 0, n, 8, 1);
    rig_fill(c, 1, n, 8, 1);
    return c;
}

static void prepare(rig *r)
{
    kvs_cache *c[2] = {make(r, 0, 250), make(r, 1, 250)};
    r->rows = rig_rows_of(r->ctx, c, 2);
    c[0] = make(r, 1, 20);
    r->other = rig_rows_of(r->ctx, c, 1);
    r->loose = make(r, 0, 40);
}

static void prepare_forked(rig *r)
{
    prepare(r);
    rig_must(kvs_rows_fork(r->rows, 0, KVS_ALL_TOKENS, NULL));
    rig_must(kvs_rows_fork(r->rows, 1, KVS_ALL_TOKENS, NULL));
}

static void prepare_rect(rig *r)
{
    kvs_rect init = KVS_RECT_INIT;
    size_t bytes = 0;
    prepare_forked(r);
    r->rect = init;
    r->rect.layer = 1;
    r->rect.width = 8;
    r->rect.rows = r->at;
    for (int b = 0; b < 4; b++) {
        r->at[b] = (kvs_rect_row){250, 242, 0, 8};
    }
    kvs_layer_spec s = rig_spec(4, 16, 16, "f32", "f32");
    r->base = rig_planes(&s, 0, 8, &r->planes, &bytes);
    r->rect.planes = &r->planes;
}

static void prepare_import(rig *r)
{
    prepare_rect(r);
    for (int b = 0; b < 4; b++) {
        r->at[b].first = 250;
    }
}

static kvs_status call_cache_fork(rig *r, kvs_err *err)
{
    kvs_cache *c = NULL;
    kvs_status st = kvs_cache_fork(r->loose, 39, &c, err);
    assert_int_equal(st == KVS_OK, c != NULL);
    kvs_cache_free(c);
    return st;
}

static kvs_status call_merge(rig *r, kvs_err *err)
{
    kvs_rows *rows = NULL;
    kvs_status st = kvs_rows_merge(r->ctx, &r->loose, 1, &rows, err);
    assert_int_equal(st == KVS_OK, rows != NULL);
    if (rows) {
        r->loose = NULL;
    }
    kvs_rows_free(rows);
    return st;
}

static kvs_status call_extend(rig *r, kvs_err *err)
{
    return kvs_rows_extend(r->rows, r->other, err);
}

static kvs_status call_filter(rig *r, kvs_err *err)
{
    uint32_t keep = 1;
    return kvs_rows_filter(r->rows, &keep, 1, err);
}

static kvs_status call_reorder(rig *r, kvs_err *err)
{
    uint32_t order[2] = {1, 0};
    return kvs_rows_reorder(r->rows, order, 2, err);
}

static kvs_status call_rows_fork(rig *r, kvs_err *err)
{
    return kvs_rows_fork(r->rows, 1, 250, err);
}

/* Rows grow into new segments, one of them is converted within the round. */
static kvs_status call_begin(rig *r, kvs_err *err)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    o.n_drafts = 7;
    return kvs_txn_begin(r->rows, &o, err);
}

static kvs_status call_append_fork(rig *r, kvs_err *err)
{
    return rig_append(kvs_rows_cache(r->rows, 2), 0, 8, 1, err);
}

static kvs_status call_append_ring_fork(rig *r, kvs_err *err)
{
    return rig_append(kvs_rows_cache(r->rows, 2), 1, 8, 1, err);
}

static kvs_status call_export(rig *r, kvs_err *err)
{
    return kvs_rect_export(r->rows, &r->rect, err);
}

static kvs_status call_import(rig *r, kvs_err *err)
{
    return kvs_rect_import(r->rows, &r->rect, err);
}

static const struct scenario {
    const char *name;
    void (*prepare)(rig *r);
    kvs_status (*call)(rig *r, kvs_err *err);
    long least;
    bool keeps_room; /* memory that was reserved before the failure may stay */
} scenarios[] = {
    {"fork of a cache", prepare, call_cache_fork, 2, false},
    {"merge", prepare, call_merge, 2, false},
    {"extend", prepare, call_extend, 1, false},
    {"filter", prepare, call_filter, 1, false},
    {"reorder", prepare, call_reorder, 1, false},
    {"fork of a row", prepare, call_rows_fork, 3, false},
    {"begin", prepare, call_begin, 3, false},
    {"begin on forks", prepare_forked, call_begin, 6, true}, /* a ring was copied */
    {"append to a fork", prepare_forked, call_append_fork, 1, false},
    {"append to a fork of a ring", prepare_forked, call_append_ring_fork, 1, false},
    {"export of values", prepare_rect, call_export, 1, false},
    {"import of values", prepare_import, call_import, 2, true},
};

static void open_rig(rig *r, const struct scenario *s)
{
    fail_alloc init = FAIL_ALLOC_INIT;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    memset(r, 0, sizeof *r);
    r->heap = init;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &r->heap;
    o.n_threads = 1;
    rig_must(kvs_ctx_new(&o, &r->ctx, NULL));
    s->prepare(r);
}

static void close_rig(rig *r)
{
    kvs_rows_free(r->rows);
    kvs_rows_free(r->other);
    kvs_cache_free(r->loose);
    kvs_ctx_free(r->ctx);
    free(r->base);
    assert_int_equal(r->heap.live, 0);
    assert_int_equal(r->heap.blocks, 0);
    assert_int_equal(r->heap.wrong, 0);
}

/* Does the k-th allocation of the call exist? */
static bool fail_once(const struct scenario *s, long k)
{
    rig r;
    rig_snap snap[8];
    open_rig(&r, s);
    uint32_t n = kvs_rows_count(r.rows);
    for (uint32_t b = 0; b < n; b++) {
        rig_snap_take(&snap[b], kvs_rows_cache(r.rows, b));
    }
    size_t live = r.heap.live;
    kvs_err err = {KVS_OK, 0, "", ""};
    atomic_store(&r.heap.fail_at, r.heap.calls + k);
    kvs_status st = s->call(&r, &err);
    bool failed = r.heap.calls > r.heap.fail_at;
    atomic_store(&r.heap.fail_at, -1);
    if (failed) {
        assert_int_equal(st, KVS_E_NOMEM);
        assert_true(err.status == KVS_E_NOMEM && err.msg[0]);
        assert_int_equal(kvs_rows_count(r.rows), n);
        assert_int_equal(kvs_rows_count(r.other), 1);
        assert_true(s->keeps_room || r.heap.live == live);
        for (uint32_t b = 0; b < n; b++) {
            kvs_cache *c = kvs_rows_cache(r.rows, b);
            for (uint32_t i = 0; s->keeps_room && i < 2; i++) {
                snap[b].held[i] = kvs_cache_bytes(c, i);
            }
            assert_int_equal(kvs_cache_committed(c, 0), kvs_cache_length(c, 0));
            assert_true(rig_snap_same(&snap[b], c));
        }
        assert_int_equal(s->call(&r, &err), KVS_OK);
    } else {
        assert_int_equal(st, KVS_OK);
    }
    for (uint32_t b = 0; b < n; b++) {
        rig_snap_drop(&snap[b]);
    }
    close_rig(&r);
    return failed;
}

static void test_every_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        long k = 0;
        while (fail_once(&scenarios[i], k)) {
            k++;
        }
        if (k < scenarios[i].least) {
            fail_msg("%s: %ld allocations, %ld were to be expected", scenarios[i].name, k,
                     scenarios[i].least);
        }
        print_message("%-32s %ld allocations failed in turn\n", scenarios[i].name, k);
    }
}

/* What begin has reserved is what the round takes; resolve and abort take nothing. */
static void test_a_round_takes_nothing(void **state)
{
    (void)state;
    for (int abort = 0; abort < 2; abort++) {
        rig r;
        open_rig(&r, &scenarios[7]);
        rig_begin(r.rows, 7);
        atomic_store(&r.heap.fail_at, r.heap.calls);
        for (uint32_t b = 0; b < 4; b++) {
            for (uint32_t i = 0; i < 2; i++) {
                assert_int_equal(rig_draft(kvs_rows_cache(r.rows, b), i, 8, 2, 1), KVS_OK);
            }
        }
        assert_int_equal(abort ? kvs_txn_abort(r.rows, NULL) : kvs_txn_resolve_all(r.rows, 1, NULL),
                         KVS_OK);
        assert_int_equal(r.heap.calls, r.heap.fail_at);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_a_round_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
