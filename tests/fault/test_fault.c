/* SPDX-License-Identifier: MIT */
/* test_fault.c: every allocation of every call fails once. Such a call must say KVS_E_NOMEM, leak
 * nothing, and change nothing that can be seen (lengths, stored bytes, memory held, what a read
 * gives); called again it must succeed and give what an undisturbed twin gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#define RIG_PAGED
#include "support/cache_rig.h"
#include "support/fail_alloc.h"

typedef struct rig {
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_cache *c;
    kvs_view *view;
    kvs_planes planes; /* of one more token of layer 0 */
    void *planes_base;
} rig;

typedef struct scenario {
    const char *name;
    kvs_status (*prepare)(rig *r); /* no failure here */
    kvs_status (*call)(rig *r, kvs_err *err);
    long least; /* allocations that the call makes, at the least */
} scenario;

static kvs_layer_spec base_spec(void)
{
    return rig_spec(2, 64, 32, "affine4:32", "q8:32");
}

static kvs_status start(rig *r, kvs_layer_spec s, uint32_t n, uint32_t block)
{
    kvs_layer_spec two[2] = {s, base_spec()};
    r->c = rig_cache(r->ctx, two, 2, 0);
    rig_fill(r->c, 0, n, block, 3);
    rig_fill(r->c, 1, 20, 20, 4);
    return KVS_OK;
}

static kvs_status grow_255(rig *r)
{
    return start(r, base_spec(), 255, 255);
}

static kvs_status grow_40(rig *r)
{
    return start(r, base_spec(), 40, 40);
}

static kvs_status ring_spare(rig *r)
{
    return start(r, rig_ring(base_spec(), 20, 3, 8), 0, 8);
}

static kvs_status ring_full(rig *r)
{
    return start(r, rig_ring(base_spec(), 20, 3, 8), 100, 8);
}

static kvs_status delayed(rig *r)
{
    kvs_layer_spec s = base_spec();
    s.dense_until = 30;
    return start(r, s, 28, 28);
}

static kvs_status delayed_ring(rig *r)
{
    kvs_layer_spec s = rig_ring(base_spec(), 9, 3, 8);
    s.dense_until = 30;
    return start(r, s, 28, 8);
}

static kvs_status pin(rig *r, kvs_status st)
{
    return st == KVS_OK ? kvs_view_new(r->c, 0, &r->view, NULL) : st;
}

static kvs_status ring_pinned(rig *r)
{
    return pin(r, ring_full(r));
}

static kvs_status grow_pinned(rig *r)
{
    kvs_status st = pin(r, start(r, base_spec(), 600, 600));
    return st == KVS_OK ? kvs_cache_rewind(r->c, 0, 400, NULL) : st;
}

static kvs_status delayed_pinned(rig *r)
{
    kvs_status st = pin(r, delayed(r));
    return st == KVS_OK ? kvs_cache_rewind(r->c, 0, 5, NULL) : st;
}

/* Layer 0 paged, in blocks of 64 tokens, each an allocation. */
static kvs_status start_paged(rig *r, kvs_layer_spec s, uint32_t n, uint32_t block)
{
    kvs_layer_spec two[2] = {rig_as_paged(s), base_spec()};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_pages_opts p = KVS_PAGES_OPTS_INIT;
    p.chunk_bytes = 1;
    o.n_layers = 2;
    o.layers = two;
    rig_must(kvs_pages_new(r->ctx, &p, &o.pages, NULL));
    rig_must(kvs_cache_new(r->ctx, &o, &r->c, NULL));
    kvs_pages_free(o.pages); /* the cache keeps it */
    rig_fill(r->c, 0, n, block, 3);
    rig_fill(r->c, 1, 20, 20, 4);
    return KVS_OK;
}

static kvs_status paged_64(rig *r)
{
    return start_paged(r, base_spec(), 64, 64);
}

static kvs_status paged_pinned(rig *r)
{
    return pin(r, start_paged(r, base_spec(), 100, 100));
}

static kvs_status paged_window(rig *r)
{
    return start_paged(r, rig_ring(base_spec(), 20, 3, 8), 64, 8);
}

static kvs_status paged_spare(rig *r)
{
    return start_paged(r, rig_ring(base_spec(), 20, 3, 8), 0, 8);
}

static kvs_status paged_delayed(rig *r)
{
    kvs_layer_spec s = base_spec();
    s.dense_until = 30;
    return start_paged(r, s, 28, 28);
}

static kvs_status with_planes(rig *r, kvs_status st)
{
    size_t bytes = 0;
    r->planes_base = rig_planes(kvs_cache_spec(r->c, 0), 0, 1, &r->planes, &bytes);
    return st == KVS_OK ? kvs_cache_export(r->c, 1, 0, 1, &r->planes, NULL) : st;
}

static kvs_status grow_256_planes(rig *r)
{
    return with_planes(r, start(r, base_spec(), 256, 256));
}

static kvs_status ring_pinned_planes(rig *r)
{
    return with_planes(r, ring_pinned(r));
}

static kvs_status paged_planes(rig *r)
{
    return with_planes(r, paged_window(r));
}

static kvs_status nothing(rig *r)
{
    (void)r;
    return KVS_OK;
}

/* -- calls */

static kvs_status call_ctx(rig *r, kvs_err *err)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &r->heap;
    o.n_threads = 4;
    kvs_status st = kvs_ctx_new(&o, &ctx, err);
    assert_int_equal(st == KVS_OK, ctx != NULL);
    kvs_ctx_free(ctx);
    return st;
}

static kvs_status call_cache(rig *r, kvs_err *err)
{
    kvs_layer_spec s[3] = {base_spec(), rig_ring(base_spec(), 300, 3, 8), base_spec()};
    s[0].k_dim = 512; /* more scratch than there is */
    s[2].dense_until = 9;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 3;
    o.layers = s;
    o.reserve_tokens = 100;
    kvs_cache *c = NULL;
    kvs_status st = kvs_cache_new(r->ctx, &o, &c, err);
    assert_int_equal(st == KVS_OK, c != NULL);
    kvs_cache_free(c);
    return st;
}

static kvs_status call_append_1(rig *r, kvs_err *err)
{
    return rig_append(r->c, 0, 1, 3, err);
}

static kvs_status call_append_7(rig *r, kvs_err *err)
{
    return rig_append(r->c, 0, 7, 3, err);
}

static kvs_status call_append_1500(rig *r, kvs_err *err)
{
    return rig_append(r->c, 0, 1500, 3, err);
}

static kvs_status call_reserve(rig *r, kvs_err *err)
{
    return kvs_cache_reserve(r->c, 0, 1500, err);
}

static kvs_status call_reserve_all(rig *r, kvs_err *err)
{
    return kvs_cache_reserve(r->c, KVS_ALL_LAYERS, 8, err);
}

static kvs_status call_view(rig *r, kvs_err *err)
{
    kvs_view *v = NULL;
    kvs_status st = kvs_view_new(r->c, 0, &v, err);
    assert_int_equal(st == KVS_OK, v != NULL);
    kvs_view_free(v);
    return st;
}

static kvs_status call_convert(rig *r, kvs_err *err)
{
    kvs_codec k = KVS_CODEC_DENSE(KVS_F32);
    kvs_codec v = KVS_CODEC_AFFINE(2, 32, KVS_BF16);
    return kvs_cache_convert(r->c, 0, &k, &v, err);
}

static kvs_status call_import(rig *r, kvs_err *err)
{
    return kvs_cache_import(r->c, 0, kvs_cache_length(r->c, 0), 1, &r->planes, err);
}

static kvs_status call_import_jump(rig *r, kvs_err *err)
{
    return kvs_cache_import(r->c, 0, kvs_cache_length(r->c, 0) + 77, 1, &r->planes, err);
}

static kvs_status call_step(rig *r, kvs_err *err)
{
    kvs_step s = KVS_STEP_INIT;
    return kvs_step_plan(r->c, 0, &s, err);
}

static kvs_status call_block(rig *r, kvs_err *err)
{
    float *q = NULL;
    float *out = NULL;
    const kvs_layer_spec *s = kvs_cache_spec(r->c, 0);
    kvs_attend d = rig_query(s, 6, 2, -1, &q, &out);
    float *k = rig_rows(8, 0, 6, (size_t)s->n_kv_heads * s->k_dim);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = 6;
    kv.k = k;
    kv.v = k;
    d.mode = KVS_READ_BLOCK;
    d.block = &kv;
    kvs_status st = kvs_cache_attend(r->c, 0, &d, err);
    free(q);
    free(out);
    free(k);
    return st;
}

static kvs_status call_mask(rig *r, kvs_err *err)
{
    kvs_masks *m = NULL;
    kvs_mask *lease = NULL;
    kvs_status st = kvs_masks_new(r->ctx, &m, err);
    if (st != KVS_OK) {
        assert_null(m);
        return st;
    }
    int64_t pads[2] = {1, 2};
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = KVS_MASK_PADDED;
    d.n_queries = 4;
    d.n_rows = 2;
    d.n_keys = 9;
    d.pads = pads;
    st = kvs_masks_acquire(m, &d, &lease, err);
    assert_int_equal(st == KVS_OK, lease != NULL);
    kvs_masks_stats s = KVS_MASKS_STATS_INIT;
    assert_int_equal(kvs_masks_get_stats(m, &s), KVS_OK);
    assert_int_equal(s.leases, st == KVS_OK);
    kvs_mask_release(lease);
    kvs_masks_free(m);
    return st;
}

static const scenario scenarios[] = {
    {"a context with threads", nothing, call_ctx, 3},
    {"a cache with reservation", nothing, call_cache, 5},
    {"a mask memo and a lease", nothing, call_mask, 3},
    {"append to the second segment", grow_255, call_append_7, 1},
    {"append over several segments", grow_255, call_append_1500, 3},
    {"first append to a ring with sinks", ring_spare, call_append_7, 2},
    {"append that converts", delayed, call_append_7, 1},
    {"long append that converts", delayed, call_append_1500, 3},
    {"append that converts a ring", delayed_ring, call_append_7, 2},
    {"append to a pinned ring", ring_pinned, call_append_1, 1},
    {"append over pinned segments", grow_pinned, call_append_1500, 4},
    {"append that converts, dense copy pinned", delayed_pinned, call_append_1500, 4},
    {"reserve of several segments", grow_40, call_reserve, 3},
    {"reserve of all layers", grow_255, call_reserve_all, 1},
    {"reserve of pinned segments", grow_pinned, call_reserve, 4},
    {"block read", grow_40, call_block, 1},
    {"block read of a ring", ring_full, call_block, 1},
    {"view", ring_full, call_view, 1},
    {"convert", grow_255, call_convert, 1},
    {"convert of a ring", ring_full, call_convert, 2},
    {"convert of a pinned ring", ring_pinned, call_convert, 2},
    {"import to the second segment", grow_256_planes, call_import, 1},
    {"import to a pinned ring", ring_pinned_planes, call_import, 1},
    {"import past a gap of a pinned ring", ring_pinned_planes, call_import_jump, 1},
    {"step plan to the second segment", grow_256_planes, call_step, 1},
    {"step plan of a pinned ring", ring_pinned, call_step, 1},
    {"first append to a paged window", paged_spare, call_append_7, 2},
    {"append to the next block", paged_64, call_append_1, 1},
    {"append of many blocks", paged_64, call_append_1500, 2},
    {"append to a pinned block", paged_pinned, call_append_1, 1},
    {"append over a pinned block", paged_pinned, call_append_1500, 2},
    {"append that converts a paged layer", paged_delayed, call_append_7, 2},
    {"long append that converts a paged layer", paged_delayed, call_append_1500, 2},
    {"reserve of many blocks", paged_64, call_reserve, 2},
    {"reserve of all layers, one paged", paged_64, call_reserve_all, 1},
    {"view of a paged window", paged_window, call_view, 2},
    {"convert of a paged layer", paged_64, call_convert, 2},
    {"convert of a pinned paged layer", paged_pinned, call_convert, 2},
    {"import past a gap of a paged window", paged_planes, call_import_jump, 1},
    {"step plan to the next block", paged_64, call_step, 1},
    {"block read of a paged window", paged_window, call_block, 1},
};

static void open_rig(rig *r, const scenario *s)
{
    memset(r, 0, sizeof *r);
    atomic_store(&r->heap.fail_at, -1);
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &r->heap;
    o.n_threads = 1;
    rig_must(kvs_ctx_new(&o, &r->ctx, NULL));
    rig_must(s->prepare(r));
}

static void close_rig(rig *r)
{
    kvs_view_free(r->view);
    kvs_cache_free(r->c);
    kvs_ctx_free(r->ctx);
    free(r->planes_base);
    assert_true(r->heap.live == 0 && r->heap.blocks == 0 && r->heap.wrong == 0);
}

/* Newest output of layer 0, then that of the view; NULL where there is none. */
typedef struct reading {
    float *cache;
    float *view;
    size_t bytes;
} reading;

static reading read_all(rig *r)
{
    reading x = {NULL, NULL, 0};
    if (!r->c || kvs_cache_length(r->c, 0) == 0) {
        return x;
    }
    const kvs_layer_spec *s = kvs_cache_spec(r->c, 0);
    x.bytes = (size_t)s->n_kv_heads * 2 * s->v_dim * sizeof(float);
    float *q = NULL;
    kvs_attend d = rig_query(s, 1, 2, -1, &q, &x.cache);
    if (kvs_cache_attend(r->c, 0, &d, NULL) != KVS_OK) { /* a gap in the window */
        memset(x.cache, 0, x.bytes);
    }
    if (r->view) {
        x.view = rig_alloc(x.bytes);
        d.out = x.view;
        rig_must(kvs_view_attend(r->view, &d, NULL));
    }
    free(q);
    return x;
}

static bool readings_equal(const reading *a, const reading *b)
{
    return !a->cache == !b->cache && !a->view == !b->view &&
           (!a->cache || memcmp(a->cache, b->cache, a->bytes) == 0) &&
           (!a->view || memcmp(a->view, b->view, a->bytes) == 0);
}

static void drop_reading(reading *x)
{
    free(x->cache);
    free(x->view);
}

/* The state of r equals that of the undisturbed twin. */
static void check_twin(rig *r, const scenario *s)
{
    rig twin;
    open_rig(&twin, s);
    rig_must(s->call(&twin, NULL));
    reading a = read_all(r);
    reading b = read_all(&twin);
    assert_true(readings_equal(&a, &b));
    if (r->c) {
        rig_snap snap;
        rig_snap_take(&snap, r->c);
        assert_true(rig_snap_same(&snap, twin.c));
        rig_snap_drop(&snap);
    }
    drop_reading(&a);
    drop_reading(&b);
    close_rig(&twin);
}

/* The k-th allocation of the call fails; false once the call needs no more than k. */
static bool fail_once(const scenario *s, long k, bool twin)
{
    rig r;
    open_rig(&r, s);
    rig_snap snap = {0};
    if (r.c) {
        rig_snap_take(&snap, r.c);
    }
    reading before = read_all(&r);
    long blocks = r.heap.blocks;
    kvs_err err = {KVS_OK, 0, "", ""};
    atomic_store(&r.heap.fail_at, r.heap.calls + k);
    kvs_status st = s->call(&r, &err);
    bool failed = r.heap.calls > r.heap.fail_at;
    atomic_store(&r.heap.fail_at, -1);
    if (failed) {
        reading after = read_all(&r);
        if (st != KVS_E_NOMEM || err.status != st || !err.msg[0] ||
            !readings_equal(&before, &after) || (r.c && !rig_snap_same(&snap, r.c))) {
            fail_msg("%s, allocation %ld: %s (%s)", s->name, k, kvs_status_name(st), err.msg);
        }
        /* a pinned segment may have been copied by then: no leak, and not done again */
        assert_true(r.heap.blocks == blocks || (r.view && r.heap.blocks > blocks));
        drop_reading(&after);
        assert_int_equal(s->call(&r, &err), KVS_OK);
    } else {
        assert_int_equal(st, KVS_OK);
    }
    if (twin) {
        check_twin(&r, s);
    }
    rig_snap_drop(&snap);
    drop_reading(&before);
    close_rig(&r);
    return failed;
}

static void test_every_allocation(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        const scenario *s = &scenarios[i];
        long k = 0;
        while (fail_once(s, k, true)) {
            k++;
        }
        if (k < s->least) {
            fail_msg("%s: %ld allocations, %ld were to be expected", s->name, k, s->least);
        }
        print_message("%-42s %ld allocations failed in turn\n", s->name, k);
    }
}

/* A reserve that succeeded, or a plan, is what lets the write itself not fail. */
static void test_reserved_append_needs_nothing(void **state)
{
    (void)state;
    static const struct {
        kvs_status (*prepare)(rig *r);
        uint32_t n;
    } cases[] = {{grow_255, 1500},  {ring_spare, 8},      {ring_pinned, 8},     {delayed, 1500},
                 {delayed_ring, 7}, {grow_pinned, 1500},  {paged_64, 1500},     {paged_spare, 8},
                 {paged_window, 8}, {paged_pinned, 1500}, {paged_delayed, 1500}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        scenario s = {"reserved", cases[i].prepare, NULL, 0};
        open_rig(&r, &s);
        assert_int_equal(kvs_cache_reserve(r.c, 0, cases[i].n, NULL), KVS_OK);
        atomic_store(&r.heap.fail_at, r.heap.calls);
        assert_int_equal(rig_append(r.c, 0, cases[i].n, 3, NULL), KVS_OK);
        assert_int_equal(r.heap.calls, r.heap.fail_at);
        close_rig(&r);
    }
}

/* Reads that are not of a block, rewinds, clears, exports and spans take no memory at all. */
static void test_calls_that_take_nothing(void **state)
{
    (void)state;
    static kvs_status (*const prepare[])(rig *) = {grow_255,    ring_pinned,  delayed,
                                                   grow_pinned, paged_window, paged_pinned};
    for (size_t i = 0; i < sizeof prepare / sizeof prepare[0]; i++) {
        rig r;
        scenario s = {"nothing", prepare[i], NULL, 0};
        open_rig(&r, &s);
        atomic_store(&r.heap.fail_at, r.heap.calls);
        reading x = read_all(&r);
        drop_reading(&x);
        rig_snap snap;
        rig_snap_take(&snap, r.c);
        rig_snap_drop(&snap);
        kvs_span span[8];
        uint32_t n = 0;
        int64_t len = kvs_cache_length(r.c, 0);
        assert_int_equal(kvs_cache_spans(r.c, 0, 0, len, span, 8, &n, NULL), KVS_OK);
        assert_int_equal(kvs_cache_rewind(r.c, 0, 1, NULL), KVS_OK);
        assert_int_equal(kvs_cache_clear(r.c, NULL), KVS_OK);
        assert_int_equal(r.heap.calls, r.heap.fail_at);
        close_rig(&r);
    }
}

/* The context's own limit fails like an allocator that has no more. */
static void test_limit(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    kvs_ctx *ctx = NULL;
    kvs_layer_spec s = base_spec();
    kvs_ctx *probe = rig_ctx(1, 0);
    kvs_cache *c = rig_cache(probe, &s, 1, 0);
    size_t empty = rig_live(probe);
    rig_fill(c, 0, 256, 256, 3);
    size_t one_segment = rig_live(probe);
    kvs_cache_free(c);
    kvs_ctx_free(probe);
    o.max_bytes = one_segment;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    c = rig_cache(ctx, &s, 1, 0);
    assert_int_equal(rig_live(ctx), empty);
    rig_fill(c, 0, 256, 256, 3);
    rig_snap snap;
    rig_snap_take(&snap, c);
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(rig_append(c, 0, 1, 3, &err), KVS_E_NOMEM);
    assert_true(err.status == KVS_E_NOMEM && err.msg[0]);
    assert_true(rig_snap_same(&snap, c));
    assert_int_equal(rig_live(ctx), one_segment);
    assert_int_equal(kvs_cache_rewind(c, 0, 1, NULL), KVS_OK);
    assert_int_equal(rig_append(c, 0, 1, 3, NULL), KVS_OK);
    assert_true(rig_snap_same(&snap, c));
    rig_snap_drop(&snap);
    kvs_ctx_stats stats = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(ctx, &stats), KVS_OK);
    assert_true(stats.peak_bytes <= stats.max_bytes && stats.peak_bytes == one_segment);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_reserved_append_needs_nothing),
        cmocka_unit_test(test_calls_that_take_nothing),
        cmocka_unit_test(test_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
