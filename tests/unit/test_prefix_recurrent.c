/* SPDX-License-Identifier: MIT */
/* test_prefix_recurrent.c: recurrent state in one piece, and a prefix index over a model of all groups
 * of layers: what is resumed from is what all of them have, a snapshot right there included, and the
 * cache goes on as one that computed everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_PAGED
#include "kvstate/prefix.h"
#include "support/fail_alloc.h"
#include "support/hybrid_rig.h"

#define N     300
#define BYTES (HYBRID_DELTA + HYBRID_SSD)

static kvs_cache *make_cache(kvs_ctx *ctx, kvs_pages *pages, uint32_t window, uint32_t undo)
{
    kvs_layer_spec l[HYBRID_LAYERS];
    kvs_recurrent_spec r[2];
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    hybrid_specs(l, r, "c4:32", window, undo);
    l[0].layout = l[1].layout = KVS_LAYOUT_PAGED;
    o.n_layers = HYBRID_LAYERS;
    o.layers = l;
    o.pages = pages;
    rig_must(kvs_cache_new(ctx, &o, &c, NULL));
    return c;
}

static void grow(kvs_cache *c, int64_t end, uint64_t text)
{
    for (int64_t p = kvs_cache_length(c, 0); p < end; p++) {
        rig_must(rig_append(c, 0, 1, text, NULL));
        rig_must(rig_append(c, 1, 1, text + 10, NULL));
        hybrid_advance(c, 2, p, text);
        hybrid_advance(c, 3, p, text);
    }
}

/* ---- one piece */

static void test_piece(void **state)
{
    (void)state;
    _Alignas(8) unsigned char whole[BYTES + 8];
    _Alignas(8) unsigned char one[HYBRID_DELTA];
    for (uint32_t undo = 0; undo <= 12; undo += 12) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_pages *pages = rig_pages(ctx, 16, 0);
        kvs_cache *c = make_cache(ctx, pages, 0, undo);
        assert_int_equal(kvs_recurrent_snapshot_bytes(c), BYTES);
        grow(c, 40, 1);
        for (int64_t at = 40; at >= 40 - (int64_t)undo; at--) {
            kvs_cache *to = make_cache(ctx, pages, 0, 0);
            kvs_cache *stopped = make_cache(ctx, pages, 0, 0);
            memset(whole, 0xaa, sizeof whole);
            rig_must(kvs_recurrent_snapshot(c, at, whole, BYTES, NULL));
            grow(stopped, at, 1);
            hybrid_planes(stopped, 2, at, one);
            assert_memory_equal(whole, one, HYBRID_DELTA);
            hybrid_planes(stopped, 3, at, one);
            assert_memory_equal(whole + HYBRID_DELTA, one, HYBRID_SSD);
            assert_int_equal(whole[BYTES], 0xaa);
            rig_must(kvs_recurrent_resume(to, at, whole, BYTES, NULL));
            for (uint32_t i = 2; i < 4; i++) {
                assert_int_equal(kvs_cache_length(to, i), at);
                assert_int_equal(kvs_cache_can_rewind(to, i, 1), KVS_NO);
            }
            assert_int_equal(kvs_cache_length(c, 2), 40); /* the source as it was */
            kvs_cache_free(to);
            kvs_cache_free(stopped);
        }
        kvs_err err = KVS_ERR_INIT;
        assert_int_equal(kvs_recurrent_snapshot(c, 41, whole, BYTES, &err), KVS_E_RANGE);
        assert_non_null(strstr(err.msg, "layer 2: 41"));
        assert_int_equal(kvs_recurrent_snapshot(c, 10, whole, BYTES, NULL), KVS_E_RANGE);
        assert_int_equal(kvs_recurrent_snapshot(c, -1, whole, BYTES, NULL), KVS_E_RANGE);
        assert_int_equal(kvs_recurrent_snapshot(c, 40, whole, BYTES - 8, NULL), KVS_E_INVAL);
        assert_int_equal(kvs_recurrent_snapshot(c, 40, whole + 4, BYTES, NULL), KVS_E_INVAL);
        assert_int_equal(kvs_recurrent_snapshot(c, 40, NULL, BYTES, NULL), KVS_E_INVAL);
        assert_int_equal(kvs_recurrent_resume(c, -1, whole, BYTES, NULL), KVS_E_RANGE);
        assert_int_equal(kvs_recurrent_resume(c, 1, whole, BYTES + 8, NULL), KVS_E_INVAL);
        assert_int_equal(kvs_recurrent_resume(NULL, 1, whole, BYTES, NULL), KVS_E_INVAL);
        kvs_layer_spec plain = rig_spec(1, 16, 16, "f32", "f32");
        rig_block = 0;
        kvs_cache *none = rig_cache(ctx, &plain, 1, 0);
        assert_int_equal(kvs_recurrent_snapshot_bytes(none), 0);
        assert_int_equal(kvs_recurrent_resume(none, 1, whole, BYTES, NULL), KVS_E_UNSUPPORTED);
        kvs_cache_free(none);
        kvs_cache_free(c);
        kvs_pages_free(pages);
        kvs_ctx_free(ctx);
    }
}

static void test_memory(void **state)
{
    (void)state;
    _Alignas(8) unsigned char whole[BYTES];
    for (long at = 0, failed = 1; failed; at++) {
        fail_alloc f = FAIL_ALLOC_INIT;
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        kvs_ctx *ctx = NULL;
        co.n_threads = 1;
        co.alloc = fail_alloc_take;
        co.free = fail_alloc_give;
        co.alloc_user = &f;
        rig_must(kvs_ctx_new(&co, &ctx, NULL));
        kvs_pages *pages = rig_pages(ctx, 16, 0);
        kvs_cache *c = make_cache(ctx, pages, 0, 12);
        kvs_cache *to = make_cache(ctx, pages, 0, 12);
        grow(c, 40, 1);
        long before = atomic_load(&f.calls);
        atomic_store(&f.fail_at, before + at);
        kvs_status a = kvs_recurrent_snapshot(c, 37, whole, BYTES, NULL);
        kvs_status b = a == KVS_OK ? kvs_recurrent_resume(to, 37, whole, BYTES, NULL) : a;
        failed = atomic_load(&f.calls) > before + at;
        atomic_store(&f.fail_at, -1);
        assert_int_equal(b, failed ? KVS_E_NOMEM : KVS_OK);
        for (uint32_t i = 2; i < 4; i++) {
            assert_int_equal(kvs_cache_length(to, i), failed ? 0 : 37);
            assert_int_equal(kvs_cache_length(c, i), 40);
        }
        rig_must(kvs_recurrent_snapshot(c, 37, whole, BYTES, NULL));
        rig_must(kvs_recurrent_resume(to, 37, whole, BYTES, NULL));
        kvs_cache_free(to);
        kvs_cache_free(c);
        kvs_pages_free(pages);
        kvs_ctx_free(ctx);
        assert_int_equal(atomic_load(&f.blocks), 0);
        assert_int_equal(atomic_load(&f.wrong), 0);
    }
}

/* ---- behind an index */

static void test_index(void **state)
{
    (void)state;
    static const uint8_t identity[32] = {9};
    static const size_t points[] = {64,  130, 192,
                                    250, 292, 300}; /* inside blocks and between them */
    for (uint32_t window = 0; window <= 40; window += 40) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_pages *pages = rig_pages(ctx, 32, 0);
        kvs_cache *c = make_cache(ctx, pages, window, 4);
        kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
        kvs_prefix *ix = NULL;
        _Alignas(8) unsigned char snap[BYTES];
        int32_t ids[N + 40];
        for (int32_t i = 0; i < N + 40; i++) {
            ids[i] = i < N ? i : -i;
        }
        rig_must(kvs_prefix_new(ctx, c, &o, &ix, NULL));
        for (size_t i = 0; i < KVS_COUNT(points); i++) {
            kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
            kvs_prefix_key key = {identity, "", 0, ids, points[i]};
            /* the one before the end is taken by undo, after the end was reached */
            grow(c, points[i] == 292 ? 296 : (int64_t)points[i], 1);
            rig_must(kvs_recurrent_snapshot(c, (int64_t)points[i], snap, BYTES, NULL));
            p.snapshot = snap;
            p.snapshot_bytes = BYTES;
            rig_must(kvs_prefix_publish(ix, &key, c, &p, NULL, NULL));
        }
        for (size_t common = 60; common <= N; common += 11) {
            int32_t ask[N + 40];
            memcpy(ask, ids, common * sizeof *ids);
            for (size_t i = common; i < N + 40; i++) {
                ask[i] = -(int32_t)i;
            }
            size_t best = 0;
            for (size_t i = 0; i < KVS_COUNT(points); i++) {
                best = points[i] <= common ? points[i] : best;
            }
            kvs_prefix_key key = {identity, "", 0, ask, N + 40};
            kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
            kvs_lease *lease = NULL;
            kvs_status st = kvs_prefix_lookup(ix, &key, 1, &lease, &hit, NULL);
            assert_int_equal(st, best ? KVS_OK : KVS_NO);
            if (!best) {
                assert_int_equal(hit.reason, KVS_PREFIX_SNAPSHOT);
                continue;
            }
            assert_int_equal(hit.n_tokens, best);
            kvs_cache *to = make_cache(ctx, pages, window, 0);
            kvs_cache *cold = make_cache(ctx, pages, window, 0);
            rig_must(kvs_prefix_attach(lease, to, NULL));
            rig_must(kvs_recurrent_resume(to, (int64_t)hit.n_tokens, hit.snapshot,
                                          hit.snapshot_bytes, NULL));
            kvs_prefix_release(lease);
            grow(to, (int64_t)best + 70, 3);
            grow(cold, (int64_t)best, 1);
            grow(cold, (int64_t)best + 70, 3);
            hybrid_same(to, cold);
            kvs_cache_free(to);
            kvs_cache_free(cold);
        }
        kvs_prefix_free(ix);
        kvs_cache_free(c);
        kvs_pages_free(pages);
        kvs_ctx_free(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_piece),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
