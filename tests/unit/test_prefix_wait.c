/* SPDX-License-Identifier: MIT */
/* test_prefix_wait: entries of a prefix index that wait for a slower tier (prefix_wait.h), and what leases
 * take meanwhile. Random programs are in diff/prefixops.c, a disk in test_engine_prefix_tiers.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/index_rig.h"

static kvs_prefix_stats stats_of(const rig *r)
{
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    assert_int_equal(kvs_prefix_get_stats(r->ix, &s), KVS_OK);
    return s;
}

static void begin(rig *r, size_t n, size_t from, kvs__prefix_wait *w)
{
    kvs_prefix_key k = key_of(n);
    kvs__prefix_wait_begin(r->ix, &k, from, w);
    assert_true(kvs__prefix_check(r->ix));
}

static void evict_all(rig *r)
{
    while (kvs__prefix_evict(r->ix)) {
        assert_true(kvs__prefix_check(r->ix));
    }
}

/* Others find no room, and are told so; afterwards it goes like any other. */
static void others_are_refused(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs__prefix_wait w = {0};
    kvs_err err = {KVS_OK, 0, "", ""};
    o.policy = KVS_RETAIN_LRU;
    open_rig(&r, 16, 0, 0, 0, &o);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 70);
    publish(&r, c, 70, NULL);
    begin(&r, 70, 0, &w);
    kvs_prefix_stats st = stats_of(&r);
    assert_true(st.waiting == 5 && st.waiting_bytes > 0 && st.waiting_bytes < st.bytes);
    assert_int_equal(kvs_prefix_limit(r.ix, st.bytes + 1000), KVS_OK);
    const int32_t first = ids[0];
    kvs_prefix_key k = key_of(70);
    for (int32_t i = 0; i < 3; i++) {
        size_t stored = 1;
        ids[0] = 5000 + i;
        assert_int_equal(kvs_prefix_publish(r.ix, &k, c, NULL, &stored, &err), KVS_NO);
        assert_int_equal(stored, 0);
        assert_non_null(strstr(err.msg, "wait"));
    }
    ids[0] = first;
    assert_int_equal(found(&r, 71, NULL), 70);
    assert_int_equal(stats_of(&r).refused_waiting, 3);
    kvs__prefix_wait_end(r.ix, &w);
    kvs__prefix_wait_end(r.ix, &w); /* it has ended */
    ids[0] = 5000;
    publish(&r, c, 70, NULL);
    ids[0] = first;
    assert_true(found(&r, 71, NULL) < 70);
    st = stats_of(&r);
    assert_true(st.waiting == 0 && st.evicted_waiting == 0 && st.refused_waiting == 3);
    kvs_cache_free(c);
    close_rig(&r);
}

/* From a token on; what waits for one list does not for another; the first to begin goes first. */
static void parts_wait(void **state)
{
    (void)state;
    rig r;
    kvs__prefix_wait a = {0};
    kvs__prefix_wait b = {0};
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 128);
    publish(&r, c, 128, NULL);
    begin(&r, 64, 17, &a);
    assert_int_equal(stats_of(&r).waiting, 3); /* 16..32 has tokens from 17 on */
    begin(&r, 128, 0, &b);
    assert_int_equal(stats_of(&r).waiting, 8);
    assert_true(kvs__prefix_give_up(r.ix, false)); /* of a none is a leaf: the end of b */
    assert_int_equal(found(&r, 129, NULL), 112);
    kvs__prefix_wait_end(r.ix, &b);
    evict_all(&r);
    assert_int_equal(found(&r, 129, NULL), 64);
    assert_int_equal(stats_of(&r).waiting, 3);
    kvs_prefix_clear(r.ix);
    assert_true(kvs__prefix_check(r.ix));
    assert_int_equal(stats_of(&r).nodes, 0);
    kvs__prefix_wait_end(r.ix, &a); /* nothing is left of it */
    begin(&r, 64, 0, &a);           /* nor of a namespace */
    assert_int_equal(stats_of(&r).waiting, 0);
    kvs__prefix_wait_end(r.ix, &a);
    kvs_cache_free(c);
    close_rig(&r);
}

/* Blocks of windows, there already and come later, wait with their node. */
static void windows_wait(void **state)
{
    (void)state;
    for (int later = 0; later < 2; later++) {
        rig r;
        kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
        kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
        kvs__prefix_wait w = {0};
        o.window_stride = 1024;
        open_rig(&r, 16, 40, 0, 16, &o);
        kvs_cache *c = new_cache(&r);
        fill_to(&r, c, 96);
        p.flags = KVS_PREFIX_MIDWAY;
        publish(&r, c, 96, later ? &p : NULL);
        begin(&r, 96, 0, &w);
        assert_int_equal(found(&r, 97, NULL), later ? 0 : 96);
        publish(&r, c, 96, NULL);
        assert_true(kvs__prefix_check(r.ix));
        evict_all(&r);
        assert_int_equal(found(&r, 97, NULL), 96);
        kvs__prefix_wait_end(r.ix, &w);
        evict_all(&r);
        assert_int_equal(stats_of(&r).nodes, 0);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

/* A partial block that waits is not given up for a longer one that does not. */
static void shorter_ones_wait(void **state)
{
    (void)state;
    rig r;
    kvs__prefix_wait w = {0};
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 20);
    publish(&r, c, 20, NULL);
    begin(&r, 20, 0, &w);
    fill_to(&r, c, 32);
    publish(&r, c, 32, NULL);
    evict_all(&r);
    assert_int_equal(found(&r, 33, NULL), 20);
    kvs__prefix_wait_end(r.ix, &w);
    publish(&r, c, 32, NULL);
    evict_all(&r);
    kvs_cache_free(c);
    close_rig(&r);
}

/* However little a limit leaves, others take none of what a lease on what waits needs. */
static void it_can_be_lent(void **state)
{
    (void)state;
    for (size_t spare = 1000; spare < 9000; spare += 40) {
        rig r;
        kvs__prefix_wait w = {0};
        kvs__prefix_wait other = {0};
        open_rig(&r, 16, 0, 0, 0, NULL);
        kvs_cache *c = new_cache(&r);
        fill_to(&r, c, 64);
        publish(&r, c, 64, NULL);
        begin(&r, 64, 0, &w);
        assert_true(kvs__prefix_lease_spare(r.ix) < 1000);
        assert_int_equal(kvs_prefix_limit(r.ix, stats_of(&r).bytes + spare), KVS_OK);
        kvs_prefix_key k = key_of(64);
        ids[0] += 5000;
        (void)kvs_prefix_publish(r.ix, &k, c, NULL, NULL, NULL);
        begin(&r, 64, 0, &other); /* so nothing goes for a lease */
        ids[0] -= 5000;
        assert_int_equal(found(&r, 65, NULL), 64);
        kvs__prefix_wait_end(r.ix, &other);
        kvs__prefix_wait_end(r.ix, &w);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

/* A snapshot is counted once: of its node as long as there is one, then of the lease. */
static void lent_snapshots_count_once(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease[2] = {NULL, NULL};
    unsigned char bytes[3000];
    memset(bytes, 7, sizeof bytes);
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 20);
    p.snapshot = bytes;
    p.snapshot_bytes = sizeof bytes;
    publish(&r, c, 20, &p);
    kvs_prefix_key k = key_of(21);
    size_t there = stats_of(&r).bytes;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvs_prefix_lookup(r.ix, &k, 0, &lease[i], &hit, NULL), KVS_OK);
    }
    size_t leases = 2 * kvs__lease_bytes(r.ix->part[0].n_layers, 2);
    assert_true(stats_of(&r).bytes <= there + leases + 64 * sizeof(void *)); /* the path */
    size_t live = rig_live(r.ctx);
    size_t before = stats_of(&r).bytes;
    kvs_pages_stats pool = KVS_PAGES_STATS_INIT;
    (void)kvs_pages_get_stats(r.pages, &pool);
    size_t block = pool.held_bytes / pool.n_held;
    evict_all(&r);
    assert_int_equal(stats_of(&r).nodes, 0);
    /* the blocks stay with the cache and the leases, and are the index's no more */
    assert_int_equal(live - rig_live(r.ctx), before - stats_of(&r).bytes - 2 * block);
    assert_memory_equal(hit.snapshot, bytes, sizeof bytes);
    kvs_prefix_release(lease[0]);
    assert_true(stats_of(&r).bytes >= sizeof bytes);
    live = rig_live(r.ctx);
    before = stats_of(&r).bytes;
    kvs_prefix_release(lease[1]);
    assert_true(before - stats_of(&r).bytes > sizeof bytes);
    assert_int_equal(live - rig_live(r.ctx), before - stats_of(&r).bytes);
    kvs_cache_free(c);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_refused), cmocka_unit_test(parts_wait),
        cmocka_unit_test(windows_wait),       cmocka_unit_test(shorter_ones_wait),
        cmocka_unit_test(it_can_be_lent),     cmocka_unit_test(lent_snapshots_count_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
