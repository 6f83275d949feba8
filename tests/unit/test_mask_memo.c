/* SPDX-License-Identifier: MIT */
/* test_mask_memo.c: kvs_masks: one build per forward and family, leases that outlive the memo. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvstate/mask.h"
#include "support/fail_alloc.h"

typedef struct fixture {
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_masks *masks;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f) {
        return -1;
    }
    f->heap.fail_at = -1;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &f->heap;
    o.n_threads = 1;
    *state = f;
    return kvs_ctx_new(&o, &f->ctx, NULL) || kvs_masks_new(f->ctx, &f->masks, NULL);
}

static int teardown(void **state)
{
    fixture *f = *state;
    kvs_masks_free(f->masks);
    kvs_ctx_free(f->ctx);
    int bad = f->heap.live != 0 || f->heap.blocks != 0 || f->heap.wrong != 0;
    free(f);
    return bad;
}

static kvs_masks_stats stats(const fixture *f)
{
    kvs_masks_stats s = KVS_MASKS_STATS_INIT;
    assert_int_equal(kvs_masks_get_stats(f->masks, &s), KVS_OK);
    return s;
}

static kvs_mask *acquire(fixture *f, const kvs_mask_desc *d)
{
    kvs_mask *m = NULL;
    kvs_err err = {0};
    if (kvs_masks_acquire(f->masks, d, &m, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return m;
}

/* The lease holds what fill writes. */
static void check(const kvs_mask *m, const kvs_mask_desc *d)
{
    kvs_mask_shape leased = KVS_MASK_SHAPE_INIT;
    kvs_mask_shape planned = KVS_MASK_SHAPE_INIT;
    assert_int_equal(kvs_mask_get_shape(m, &leased), KVS_OK);
    assert_int_equal(kvs_mask_plan(d, &planned, NULL), KVS_OK);
    assert_int_equal(leased.mode, planned.mode);
    if (planned.mode != KVS_MASK_MODE_ARRAY) {
        assert_null(kvs_mask_data(m));
        assert_int_equal(leased.bytes, 0);
        return;
    }
    assert_memory_equal(&leased, &planned, sizeof leased);
    void *want = malloc(planned.bytes);
    assert_non_null(want);
    assert_int_equal(kvs_mask_fill(d, want, planned.bytes, NULL), KVS_OK);
    assert_memory_equal(kvs_mask_data(m), want, planned.bytes);
    free(want);
}

static kvs_mask_desc full(uint32_t n, int64_t offset)
{
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.n_queries = n;
    d.offset = offset;
    d.flags = KVS_MASK_ARRAY;
    return d;
}

static kvs_mask_desc sliding(uint32_t n, int64_t offset, int64_t ring)
{
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = KVS_MASK_RING_WINDOW;
    d.n_queries = n;
    d.offset = offset;
    d.ring = ring;
    d.type = KVS_MASK_BF16;
    return d;
}

/* Five sliding layers to one full one, as in Gemma: two builds a forward, not one per layer. */
static void test_forward(void **state)
{
    fixture *f = *state;
    for (uint32_t forward = 0; forward < 5; forward++) {
        uint64_t before = stats(f).builds;
        for (int layer = 0; layer < 24; layer++) {
            uint32_t n = 7 + forward; /* another block length: no mask of the last forward fits */
            kvs_mask_desc d = layer % 6 == 5 ? full(n, 20 * (int64_t)forward)
                                             : sliding(n, 20 * (int64_t)forward, 6);
            kvs_mask *m = acquire(f, &d);
            check(m, &d);
            kvs_mask_release(m);
        }
        assert_int_equal(stats(f).builds - before, 2);
    }
    assert_int_equal(stats(f).leases, 5 * 24);
    assert_int_equal(stats(f).kept, 2);
}

static void test_one_family(void **state)
{
    fixture *f = *state;
    kvs_mask_desc d = full(3, 4);
    kvs_mask *a = acquire(f, &d);
    kvs_mask *b = acquire(f, &d);
    assert_ptr_equal(a, b);
    assert_int_equal(stats(f).builds, 1);
    kvs_mask_release(a);
    kvs_mask_release(b);
    b = acquire(f, &d); /* kept by the memo though nobody leased it */
    assert_ptr_equal(a, b);
    kvs_mask_release(b);
    assert_int_equal(stats(f).builds, 1);
    /* another ring is another family, and both are kept */
    kvs_mask_desc r = sliding(9, 50, 6);
    kvs_mask_desc s = sliding(9, 50, 7);
    for (int i = 0; i < 3; i++) {
        kvs_mask_release(acquire(f, &r));
        kvs_mask_release(acquire(f, &s));
    }
    assert_int_equal(stats(f).builds, 3);
    /* a full ring's window mask does not depend on the offset any more */
    r.offset = 500;
    kvs_mask_release(acquire(f, &r));
    assert_int_equal(stats(f).builds, 3);
}

static void test_constant(void **state)
{
    fixture *f = *state;
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.n_queries = 1;
    kvs_mask *none = acquire(f, &d);
    check(none, &d);
    d.n_queries = 5;
    kvs_mask *causal = acquire(f, &d);
    check(causal, &d);
    assert_ptr_not_equal(none, causal);
    assert_int_equal(stats(f).builds, 0);
    assert_int_equal(stats(f).leases, 2);
    assert_int_equal(stats(f).kept, 0);
    kvs_mask_release(none);
    kvs_mask_release(causal);
}

/* Every value counts, the contents of arrays too; equal contents elsewhere in memory are equal. */
static void test_keys(void **state)
{
    fixture *f = *state;
    int64_t pads[3] = {0, 2, 1};
    int64_t offsets[3] = {4, 1, 3};
    uint8_t paired[4] = {0, 1, 1, 0};
    kvs_mask_desc rows = KVS_MASK_DESC_INIT;
    rows.kind = KVS_MASK_ROWS;
    rows.n_queries = 2;
    rows.n_rows = 3;
    rows.pads = pads;
    rows.row_offsets = offsets;
    kvs_mask_desc pairs = KVS_MASK_DESC_INIT;
    pairs.kind = KVS_MASK_BIDIRECTIONAL;
    pairs.n_queries = 4;
    pairs.paired = paired;
    for (int i = 0; i < 8; i++) {
        int64_t copy[3];
        uint64_t before = stats(f).builds;
        int64_t *cell = i < 3 ? &pads[i] : i < 6 ? &offsets[i - 3] : NULL;
        if (cell) {
            *cell += 1;
        } else {
            paired[i - 6] ^= 1;
        }
        kvs_mask_desc *d = cell ? &rows : &pairs;
        kvs_mask *m = acquire(f, d);
        check(m, d);
        kvs_mask_release(m);
        memcpy(copy, pads, sizeof copy);
        rows.pads = copy;
        m = acquire(f, d);
        rows.pads = pads;
        check(m, d);
        kvs_mask_release(m);
        assert_int_equal(stats(f).builds - before, 1);
    }
    kvs_mask_desc padded = KVS_MASK_DESC_INIT; /* here a pad moves nothing else */
    padded.kind = KVS_MASK_PADDED;
    padded.n_queries = 2;
    padded.n_rows = 3;
    padded.n_keys = 9;
    padded.pads = pads;
    for (int i = 0; i < 3; i++) {
        pads[i]++;
        kvs_mask *m = acquire(f, &padded);
        check(m, &padded);
        kvs_mask_release(m);
    }
    paired[2] = 9; /* flagged is flagged, whatever the byte */
    uint64_t before = stats(f).builds;
    kvs_mask_release(acquire(f, &pairs));
    assert_int_equal(stats(f).builds, before);
}

static void test_lifetime(void **state)
{
    fixture *f = *state;
    kvs_mask_desc a = full(3, 4);
    kvs_mask_desc b = full(4, 7);
    kvs_mask *first = acquire(f, &a);
    kvs_mask *second = acquire(f, &b); /* replaces the first in its slot */
    check(first, &a);
    kvs_masks_clear(f->masks);
    assert_int_equal(stats(f).kept, 0);
    check(first, &a);
    check(second, &b);
    kvs_mask *third = acquire(f, &b);
    assert_ptr_not_equal(second, third);
    assert_int_equal(stats(f).builds, 3);
    kvs_mask_desc one = KVS_MASK_DESC_INIT;
    one.n_queries = 1;
    kvs_mask *none = acquire(f, &one);
    kvs_masks_free(f->masks);
    f->masks = NULL;
    check(first, &a);
    check(third, &b);
    check(none, &one);
    kvs_mask_release(first);
    kvs_mask_release(second);
    kvs_mask_release(third);
    kvs_mask_release(none);
    kvs_mask_release(NULL);
    kvs_masks_clear(NULL);
}

static void test_many_families(void **state)
{
    fixture *f = *state;
    for (int round = 0; round < 3; round++) {
        for (int64_t ring = 2; ring < 80; ring++) {
            kvs_mask_desc d = sliding(5, 100, ring);
            kvs_mask *m = acquire(f, &d);
            check(m, &d);
            kvs_mask_release(m);
        }
    }
    assert_true(stats(f).kept <= 32);
    /* a family in use between all the others stays */
    kvs_mask_desc hot = full(3, 4);
    kvs_mask_release(acquire(f, &hot));
    for (int64_t ring = 2; ring < 80; ring++) {
        kvs_mask_desc d = sliding(5, 100, ring);
        kvs_mask_release(acquire(f, &d));
        uint64_t builds = stats(f).builds;
        kvs_mask_release(acquire(f, &hot));
        assert_int_equal(stats(f).builds, builds);
    }
    /* the newest families are the ones kept */
    uint64_t before = stats(f).builds;
    kvs_mask_desc d = sliding(5, 100, 79);
    kvs_mask_release(acquire(f, &d));
    assert_int_equal(stats(f).builds, before);
}

static void test_failure(void **state)
{
    fixture *f = *state;
    kvs_mask_desc a = full(3, 4);
    kvs_mask_desc b = full(40, 70);
    kvs_mask_release(acquire(f, &a));
    size_t live = f->heap.live;
    kvs_mask *m = (kvs_mask *)(void *)f;
    kvs_err err = {0};
    f->heap.fail_at = (long)f->heap.calls;
    assert_int_equal(kvs_masks_acquire(f->masks, &b, &m, &err), KVS_E_NOMEM);
    assert_int_equal(err.status, KVS_E_NOMEM);
    assert_ptr_equal(m, f);
    assert_int_equal(f->heap.live, live);
    assert_int_equal(stats(f).leases, 1);
    kvs_mask_release(acquire(f, &a)); /* what was kept still is */
    assert_int_equal(stats(f).builds, 1);
    kvs_mask_release(acquire(f, &b));
    assert_int_equal(stats(f).builds, 2);
    b.n_queries = 0;
    assert_int_equal(kvs_masks_acquire(f->masks, &b, &m, &err), KVS_E_INVAL);
    assert_ptr_equal(m, f);
}

static void test_new_failure(void **state)
{
    fixture *f = *state;
    long failures = 0;
    for (long k = 0;; k++) {
        size_t live = f->heap.live;
        kvs_masks *s = NULL;
        f->heap.fail_at = (long)f->heap.calls + k;
        kvs_status st = kvs_masks_new(f->ctx, &s, NULL);
        f->heap.fail_at = -1;
        if (st == KVS_OK) {
            kvs_masks_free(s);
            assert_int_equal(f->heap.live, live);
            break;
        }
        assert_int_equal(st, KVS_E_NOMEM);
        assert_null(s);
        assert_int_equal(f->heap.live, live);
        failures++;
    }
    assert_int_equal(failures, 3);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_forward),  TEST(test_one_family),    TEST(test_constant), TEST(test_keys),
        TEST(test_lifetime), TEST(test_many_families), TEST(test_failure),  TEST(test_new_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
