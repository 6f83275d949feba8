/* SPDX-License-Identifier: MIT */
/* test_prefix_index: the prefix index by itself: prompts that end around every block and window
 * boundary, what a windowed model recomputes when it goes back, sessions, budget, errors, every
 * failing allocation. Random programs are in diff/prefixops.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/fail_alloc.h"
#include "support/index_rig.h"

/* Full layers: all but one token of the prompt, wherever it ends, whatever was published. */
static void every_boundary(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {1, 2, 16, 17};
    for (size_t b = 0; b < KVS_COUNT(blocks); b++) {
        for (uint32_t n = 1; n <= 3 * blocks[b] + 2; n++) {
            rig r;
            open_rig(&r, blocks[b], 0, 0, 0, NULL);
            kvs_cache *c = new_cache(&r);
            fill_to(&r, c, n);
            publish(&r, c, n, NULL);
            for (uint32_t m = 1; m <= 4 * blocks[b]; m++) {
                assert_int_equal(found(&r, m, NULL), m <= n ? m - 1 : n);
            }
            int32_t old = ids[n - 1]; /* the last token differs */
            ids[n - 1] = -1;
            assert_int_equal(found(&r, n + 1, NULL), n - 1);
            ids[n - 1] = old;
            kvs_cache_free(c);
            close_rig(&r);
        }
    }
}

/* A window published at its end only: resumed from there, and back as far as its blocks reach. */
static void window_boundaries(void **state)
{
    (void)state;
    const uint32_t block = 4;
    for (uint32_t window = 1; window <= 9; window++) {
        for (uint32_t sinks = 0; sinks <= 5; sinks += 5) {
            rig r;
            open_rig(&r, block, window, sinks, 4, NULL);
            kvs_cache *c = new_cache(&r);
            fill_to(&r, c, 30);
            publish(&r, c, 30, NULL);
            int64_t lo = kvs_cache_oldest(c, 1);
            for (uint32_t n = 2; n <= 31; n++) {
                int64_t need = (int64_t)n - 1 - (int64_t)window + 1; /* of a query at n - 1 */
                size_t hit = found(&r, n, NULL);
                need = need > 0 ? need : 0;
                if (need >= lo &&
                    window > 1) { /* of 1 nothing is needed, and nothing may be left */
                    assert_int_equal(hit, n - 1);
                }
                assert_true(hit <= n - 1);
            }
            kvs_cache_free(c);
            close_rig(&r);
        }
    }
}

/* 4096 tokens of a model with windows of 512, published as it goes: back to 2048 (and anywhere) it
 * computes at most 1/8 of the prompt again. */
static void back_to_the_middle(void **state)
{
    (void)state;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_publish_opts whole = KVS_PREFIX_PUBLISH_OPTS_INIT;
    whole.flags = KVS_PREFIX_NO_TAIL;
    static const uint32_t strides[] = {0, 256, 512};
    for (size_t s = 0; s < KVS_COUNT(strides); s++) {
        rig r;
        o.window_stride = strides[s];
        open_rig(&r, 64, 512, 0, 256, &o);
        kvs_cache *c = new_cache(&r);
        for (uint32_t n = 256; n <= 4096; n += 256) {
            fill_to(&r, c, n);
            publish(&r, c, n, &whole);
        }
        for (uint32_t n = 3; n <= 4096; n += 61) {
            assert_true(n - 1 - found(&r, n, NULL) <= (strides[s] ? strides[s] : 0));
        }
        assert_true(2048 - found(&r, 2049, NULL) == 0);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

static void sparse_windows_take_less(void **state)
{
    (void)state;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        rig r;
        kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
        o.window_stride = i ? 512 : 0;
        open_rig(&r, 16, 64, 0, 64, &o);
        kvs_cache *c = new_cache(&r);
        for (uint32_t n = 64; n <= 4096; n += 64) {
            fill_to(&r, c, n);
            p.flags = n < 4096 ? KVS_PREFIX_MIDWAY | KVS_PREFIX_NO_TAIL : 0;
            publish(&r, c, n, &p);
        }
        (void)kvs_prefix_get_stats(r.ix, &st);
        bytes[i] = st.pages;
        for (uint32_t n = 2; n <= 4096; n += 37) {
            assert_true(n - 1 - found(&r, n, NULL) <= (i ? 512 : 0));
        }
        kvs_cache_free(c);
        close_rig(&r);
    }
    assert_true(bytes[1] < bytes[0] * 3 / 4);
}

/* Of texts that part within a block, the two beside the prompt are long ones that have let go of their
 * windows there; a short one further off still has its own. */
static void further_siblings(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    const size_t at = 8; /* where they part */
    open_rig(&r, 16, 20, 0, 1, NULL);
    ids[at] = 9;
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 12);
    publish(&r, c, 12, NULL);
    kvs_cache_free(c);
    for (int32_t id = 1; id <= 7; id += 2) {
        ids[at] = id;
        c = new_cache(&r);
        fill_to(&r, c, 100);
        publish(&r, c, 100, NULL);
        kvs_cache_free(c);
        for (int32_t own = 0; own < 8; own++) { /* also where the block is one that is there */
            ids[at] = own;
            assert_int_equal(found(&r, 40, &hit), at);
            assert_int_equal(hit.n_known, own % 2 && own <= id ? 39 : at);
            assert_int_equal(hit.reason, own % 2 && own <= id ? KVS_PREFIX_WINDOW : KVS_PREFIX_ALL);
        }
    }
    close_rig(&r);
}

static void misses_have_reasons(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    open_rig(&r, 4, 4, 0, 1, NULL);
    kvs_cache *c = new_cache(&r);
    assert_int_equal(found(&r, 5, &hit), 0);
    assert_int_equal(hit.reason, KVS_PREFIX_NAMESPACE);
    fill_to(&r, c, 32);
    publish(&r, c, 32, NULL);
    assert_int_equal(found(&r, 17, &hit), 0);
    assert_int_equal(hit.reason, KVS_PREFIX_WINDOW);
    assert_int_equal(hit.n_known, 16);
    assert_int_equal(found(&r, 40, &hit), 32);
    assert_int_equal(hit.reason, KVS_PREFIX_ALL);
    ids[0]++;
    assert_int_equal(found(&r, 5, &hit), 0);
    assert_int_equal(hit.reason, KVS_PREFIX_TOKENS);
    ids[0]--;
    kvs_lease *lease = NULL;
    kvs_prefix_key k = key_of(40);
    assert_int_equal(kvs_prefix_lookup(r.ix, &k, 33, &lease, &hit, NULL), KVS_NO);
    assert_int_equal(hit.reason, KVS_PREFIX_SHORT);
    uint8_t other[KVS_DIGEST_BYTES] = {1}; /* another model, adapter, tenant ... */
    k.identity = other;
    assert_int_equal(kvs_prefix_lookup(r.ix, &k, 0, &lease, &hit, NULL), KVS_NO);
    assert_int_equal(hit.reason, KVS_PREFIX_NAMESPACE);
    kvs_cache_free(c);
    close_rig(&r);
}

/* A namespace and an identity that give the same bytes one after another are different names. */
static void names_are_framed(void **state)
{
    (void)state;
    uint8_t a[KVS__SHA_BYTES];
    uint8_t b[KVS__SHA_BYTES];
    uint8_t identity[KVS_DIGEST_BYTES] = {'x'};
    kvs_prefix_key k = {identity, NULL, 0, NULL, 0};
    kvs__root_key(&k, a);
    k = (kvs_prefix_key){NULL, identity, sizeof identity, NULL, 0};
    kvs__root_key(&k, b);
    assert_true(memcmp(a, b, sizeof a) != 0);
}

static void errors(void **state)
{
    (void)state;
    rig r;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix *ix = NULL;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    open_rig(&r, 4, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    kvs_prefix_key k = key_of(5);
    assert_int_equal(kvs_prefix_publish(r.ix, &k, c, NULL, NULL, &err), KVS_E_RANGE);
    fill_to(&r, c, 5);
    assert_int_equal(kvs_prefix_publish(r.ix, &k, NULL, NULL, NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_prefix_publish(NULL, &k, c, NULL, NULL, &err), KVS_E_INVAL);
    assert_int_equal(kvs_prefix_publish(r.ix, NULL, c, NULL, NULL, &err), KVS_E_INVAL);
    p.flags = 8;
    assert_int_equal(kvs_prefix_publish(r.ix, &k, c, &p, NULL, &err), KVS_E_INVAL);
    k.ids = NULL;
    assert_int_equal(kvs_prefix_publish(r.ix, &k, c, NULL, NULL, &err), KVS_E_INVAL);
    k = key_of(0);
    assert_int_equal(kvs_prefix_publish(r.ix, &k, NULL, NULL, NULL, &err), KVS_E_INVAL);
    o.policy = KVS_RETAIN_CUSTOM;
    assert_int_equal(kvs_prefix_new(r.ctx, c, &o, &ix, &err), KVS_E_INVAL);
    o.policy = KVS_RETAIN_LRU;
    o.max_bytes = 10;
    assert_int_equal(kvs_prefix_new(r.ctx, c, &o, &ix, &err), KVS_E_LIMIT);
    o.max_bytes = 0;
    o.flags = 2;
    assert_int_equal(kvs_prefix_new(r.ctx, c, &o, &ix, &err), KVS_E_UNSUPPORTED);
    kvs_layer_spec grow = rig_spec(1, 16, 16, "f16", "f16");
    kvs_cache *g = rig_cache(r.ctx, &grow, 1, 0);
    assert_int_equal(kvs_prefix_new(r.ctx, g, NULL, &ix, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "layer 0"));
    rig_fill(g, 0, 5, 5, 1);
    k = key_of(5);
    assert_int_equal(kvs_prefix_publish(r.ix, &k, g, NULL, NULL, &err), KVS_E_INVAL);
    kvs_cache_free(g);
    assert_int_equal(kvs_prefix_forget(r.ix, &k, NULL), KVS_E_NOTFOUND);
    kvs_cache_free(c);
    close_rig(&r);
}

/* -- uses are requests */

enum { MOST_KEYS = 64 };
typedef struct recorder {
    uint64_t key[MOST_KEYS]; /* in the order of their coming */
    uint32_t uses[MOST_KEYS];
    uint64_t last_use[MOST_KEYS];
    uint32_t n;
    uint32_t wrong_cost;
} recorder;

/* A policy that keeps a record of what it is told. */
static double record(void *user, const kvs_retain_info *info)
{
    recorder *rec = user;
    uint32_t i = 0;
    while (i < rec->n && rec->key[i] != info->key) {
        i++;
    }
    assert_true(i < MOST_KEYS);
    rec->n = i < rec->n ? rec->n : i + 1;
    rec->key[i] = info->key;
    rec->uses[i] = info->uses;
    rec->last_use[i] = info->last_use;
    rec->wrong_cost += info->cost != 16;
    return 0;
}

/* One request of n tokens: a lookup, what it finds and the rest computed, given every 16 tokens. */
static void request(rig *r, size_t n, size_t want_hit)
{
    kvs_prefix_key k = key_of(n);
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    kvs_lease *lease = NULL;
    kvs_cache *c = new_cache(r);
    kvs_status st = kvs_prefix_lookup(r->ix, &k, 0, &lease, &hit, NULL);
    assert_int_equal(st, want_hit ? KVS_OK : KVS_NO);
    assert_int_equal(hit.n_tokens, want_hit);
    if (st == KVS_OK) {
        assert_int_equal(kvs_prefix_attach(lease, c, NULL), KVS_OK);
        kvs_prefix_release(lease);
    }
    p.n_counted = hit.n_tokens;
    for (size_t at = hit.n_tokens; at < n;) {
        at = at / 16 * 16 + 16 < n ? at / 16 * 16 + 16 : n;
        fill_to(r, c, (uint32_t)at);
        k = key_of(at);
        p.flags = at < n ? KVS_PREFIX_MIDWAY | KVS_PREFIX_NO_TAIL : 0;
        assert_int_equal(kvs_prefix_publish(r->ix, &k, c, &p, &p.n_counted, NULL), KVS_OK);
        assert_int_equal(p.n_counted, at);
    }
    kvs_cache_free(c);
}

static void a_request_is_one_use(void **state)
{
    (void)state;
    rig r;
    recorder rec;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    memset(&rec, 0, sizeof rec);
    o.policy = KVS_RETAIN_CUSTOM;
    o.score = record;
    o.user = &rec;
    open_rig(&r, 16, 0, 0, 0, &o);
    request(&r, 70, 0); /* four blocks, then 6 tokens */
    assert_int_equal(rec.n, 5);
    for (uint32_t i = 0; i < rec.n; i++) {
        assert_int_equal(rec.uses[i], 1);
    }
    request(&r, 100, 70); /* 64..80, 80..96 and 4 tokens more */
    assert_int_equal(rec.n, 8);
    for (uint32_t i = 0; i < rec.n; i++) {
        assert_int_equal(rec.uses[i], i < 5 ? 2 : 1);
    }
    request(&r, 100, 99); /* the same again: all but the 6 tokens of the first */
    for (uint32_t i = 0; i < rec.n; i++) {
        assert_int_equal(rec.uses[i], i < 4 ? 3 : 2);
    }
    /* what a request came to is as new as its end, the first block the newest */
    assert_true(rec.last_use[0] > rec.last_use[1] && rec.last_use[1] > rec.last_use[6]);
    assert_true(rec.last_use[6] > rec.last_use[7] && rec.last_use[7] > rec.last_use[4]);
    /* a conversation that its owner holds is not looked up: its turn is a request all the same */
    kvs_cache *c = new_cache(&r);
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    for (size_t at = 112; at <= 144; at += 16) {
        kvs_prefix_key k = key_of(at);
        fill_to(&r, c, (uint32_t)at);
        p.flags = at < 144 ? KVS_PREFIX_MIDWAY | KVS_PREFIX_NO_TAIL : 0;
        assert_int_equal(kvs_prefix_publish(r.ix, &k, c, &p, &p.n_counted, NULL), KVS_OK);
    }
    for (uint32_t i = 0; i < rec.n; i++) {
        uint32_t path = i < 4 ? 4 : (i == 5 || i == 6 ? 3 : (i > 7 ? 1 : 2));
        assert_int_equal(rec.uses[i], path);
    }
    assert_int_equal(rec.n, 11); /* 96..112 and two more */
    assert_int_equal(rec.wrong_cost, 0);
    kvs_cache_free(c);
    close_rig(&r);
}

/* One session's newest entry outlives newer ones of nobody, until its time is over. */
static void sessions_are_kept(void **state)
{
    (void)state;
    for (int expired = 0; expired < 2; expired++) {
        rig r;
        kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
        kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
        o.policy = KVS_RETAIN_LRU;
        o.session_ms = 100;
        open_rig(&r, 16, 0, 0, 0, &o);
        kvs_cache *c = new_cache(&r);
        fill_to(&r, c, 64);
        p.session = 77;
        publish(&r, c, 64, &p);
        kvs_prefix_clock(r.ix, expired ? 1000 : 50);
        kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
        (void)kvs_prefix_get_stats(r.ix, &st);
        assert_int_equal(kvs_prefix_limit(r.ix, st.bytes + 30000), KVS_OK);
        for (int32_t i = 0; i < 400; i++) {
            int32_t first = ids[0];
            ids[0] = 5000 + i;
            publish(&r, c, 16, NULL);
            ids[0] = first;
        }
        assert_int_equal(found(&r, 65, NULL), expired ? 0 : 64);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

/* With a window what resuming needs is kept, too, and only that; a priority of its own has its time. */
static void windows_are_kept(void **state)
{
    (void)state;
    for (uint64_t now = 50; now <= 250; now += 100) {
        rig r;
        kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
        kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
        o.policy = KVS_RETAIN_LRU;
        o.session_ms = 200;
        open_rig(&r, 16, 20, 0, 16, &o);
        kvs_cache *c = new_cache(&r);
        fill_to(&r, c, 40);
        p.session = now < 100 ? 0 : 77;
        p.priority = now < 100 ? 3 : 0;
        p.priority_ms = now < 100 ? 100 : 0;
        publish(&r, c, 40, &p);
        kvs_prefix_clock(r.ix, now);
        kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
        const int32_t first = ids[0];
        ids[0] = 5000;
        publish(&r, c, 40, NULL);
        ids[0] = first;
        assert_int_equal(found(&r, 41, NULL), 40); /* the oldest all the same: used before others */
        ids[0] = 5000;
        assert_int_equal(found(&r, 41, NULL), 40);
        ids[0] = first;
        do { /* all that is of no priority */
            assert_true(kvs__prefix_evict(r.ix));
            (void)kvs_prefix_get_stats(r.ix, &st);
        } while (st.nodes > 3);
        assert_int_equal(found(&r, 41, NULL), now < 200 ? 40 : 0);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

/* Of a session its newest entry is kept; the one before goes when its turn comes. */
static void earlier_entries_go(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    const int32_t first = ids[0];
    size_t left[3] = {0, 0, 0};
    o.policy = KVS_RETAIN_LRU;
    open_rig(&r, 16, 0, 0, 0, &o);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 16);
    for (int32_t i = 0; i < 3; i++) { /* the last one is of no session */
        p.session = i < 2 ? 77 : 0;
        ids[0] = 5000 + i;
        publish(&r, c, 16, &p);
    }
    assert_true(kvs__prefix_evict(r.ix));
    for (int32_t i = 0; i < 3; i++) {
        ids[0] = 5000 + i;
        left[i] = found(&r, 17, NULL);
    }
    ids[0] = first;
    assert_true(left[0] == 0 && left[1] == 16 && left[2] == 16);
    kvs_prefix_clear(r.ix);
    assert_int_equal(r.ix->sessions.n, 0); /* nothing points to what has gone */
    p.session = 77;
    publish(&r, c, 16, &p);
    kvs_cache_free(c);
    close_rig(&r);
}

/* A snapshot of the same tokens takes the place of the one before, but not of who holds that. */
static void snapshots_are_replaced(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
    kvs_prefix_stats before = KVS_PREFIX_STATS_INIT;
    kvs_prefix_stats after = KVS_PREFIX_STATS_INIT;
    kvs_prefix_hit held = KVS_PREFIX_HIT_INIT;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_prefix_key k = key_of(21);
    unsigned char bytes[300];
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 20);
    p.snapshot = bytes;
    p.snapshot_bytes = sizeof bytes;
    for (int i = 0; i < 10; i++) {
        memset(bytes, i, sizeof bytes);
        publish(&r, c, 20, &p);
        if (i == 0) {
            assert_int_equal(kvs_prefix_lookup(r.ix, &k, 0, &lease, &held, NULL), KVS_OK);
        } else if (i == 1) {
            (void)kvs_prefix_get_stats(r.ix, &before);
        }
        assert_int_equal(found(&r, 21, &hit), 20);
        assert_int_equal(hit.snapshot_bytes, sizeof bytes);
        assert_int_equal(((const unsigned char *)held.snapshot)[299], 0);
    }
    (void)kvs_prefix_get_stats(r.ix, &after);
    assert_int_equal(after.bytes, before.bytes);
    kvs_prefix_release(lease);
    assert_int_equal(kvs_prefix_lookup(r.ix, &k, 0, &lease, &hit, NULL), KVS_OK);
    assert_int_equal(((const unsigned char *)hit.snapshot)[0], 9);
    kvs_prefix_release(lease);
    kvs_cache_free(c);
    close_rig(&r);
}

/* A window that came from elsewhere may begin inside a block: that block is not given. */
static void half_a_block_of_a_window(void **state)
{
    (void)state;
    rig r;
    kvs_planes planes = KVS_PLANES_INIT;
    static uint16_t k[40][16];
    static uint16_t v[40][16];
    open_rig(&r, 16, 4, 0, 8, NULL);
    kvs_cache *from = new_cache(&r);
    kvs_cache *to = new_cache(&r);
    fill_to(&r, from, 40);
    planes.k[0] = k;
    planes.v[0] = v;
    assert_int_equal(kvs_cache_export(from, 0, 0, 40, &planes, NULL), KVS_OK);
    assert_int_equal(kvs_cache_import(to, 0, 0, 40, &planes, NULL), KVS_OK);
    assert_int_equal(kvs_cache_export(from, 1, 34, 6, &planes, NULL), KVS_OK);
    assert_int_equal(kvs_cache_import(to, 1, 34, 6, &planes, NULL), KVS_OK);
    publish(&r, to, 40, NULL);
    assert_true(kvs__prefix_check(r.ix));
    assert_int_equal(found(&r, 41, NULL), 0); /* block 2 lacks 32 and 33 */
    publish(&r, from, 40, NULL);
    assert_int_equal(found(&r, 41, NULL), 40);
    kvs_cache_free(from);
    kvs_cache_free(to);
    close_rig(&r);
}

/* A leaf with a block of a window stays beside a longer one: windows go apart from each other. */
static void shorter_windows_stay(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    o.policy = KVS_RETAIN_LRU;
    open_rig(&r, 16, 4, 0, 8, &o);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 20);
    publish(&r, c, 20, NULL);
    fill_to(&r, c, 32);
    publish(&r, c, 32, NULL);
    assert_int_equal(found(&r, 21, NULL), 20); /* now the longer one is the oldest */
    assert_true(kvs__prefix_evict(r.ix));
    assert_int_equal(found(&r, 21, NULL), 20);
    (void)kvs_prefix_get_stats(r.ix, &st);
    assert_int_equal(st.evicted + st.evicted_windows, 1);
    kvs_cache_free(c);
    close_rig(&r);
}

static void budget(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    o.policy = KVS_RETAIN_LRU;
    o.max_bytes = 60000;
    open_rig(&r, 16, 0, 0, 0, &o);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 4096);
    kvs_prefix_key k = key_of(4096);
    publish(&r, c, 64, NULL);
    size_t stored = 1;
    assert_int_equal(kvs_prefix_publish(r.ix, &k, c, NULL, &stored, NULL), KVS_E_LIMIT);
    assert_int_equal(stored, 0);
    assert_int_equal(found(&r, 65, NULL), 64); /* nothing went for what can't fit */
    size_t live = 0;
    for (int32_t i = 0; i < 20000; i++) {
        ids[0] = i % 3000;
        ids[17] = i % 7;
        publish(&r, c, 40, NULL);
        (void)kvs_prefix_get_stats(r.ix, &st);
        assert_true(st.peak_bytes <= o.max_bytes);
        live = i == 5000 ? rig_live(r.ctx) : live;
        if (i > 5000) {
            assert_true(rig_live(r.ctx) <= live + 16384); /* a chunk of the pool more or less */
        }
    }
    assert_true(st.evicted > 1000);
    kvs_cache_free(c);
    close_rig(&r);
}

/* What the index says it takes is what the allocator gave, pages apart. */
static void bytes_are_the_allocators(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    kvs_pages_stats pool = KVS_PAGES_STATS_INIT;
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 48);
    size_t live = rig_live(r.ctx);
    (void)kvs_prefix_get_stats(r.ix, &st);
    size_t before = st.bytes;
    for (int32_t i = 0; i < 500; i++) {
        ids[0] = i;
        publish(&r, c, 48, NULL);
    }
    (void)kvs_prefix_get_stats(r.ix, &st);
    (void)kvs_pages_get_stats(r.pages, &pool);
    size_t blocks = st.pages * (pool.held_bytes / pool.n_held);
    assert_int_equal(rig_live(r.ctx) - live, st.bytes - before - blocks);
    kvs_cache_free(c);
    close_rig(&r);
}

static void failing_allocations(void **state)
{
    (void)state;
    for (long k = 0;; k++) {
        fail_alloc mem = FAIL_ALLOC_INIT;
        kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
        rig r;
        open_rig(&r, 4, 6, 0, 4, NULL); /* for its specs */
        close_rig(&r);
        co.alloc = fail_alloc_take;
        co.free = fail_alloc_give;
        co.alloc_user = &mem;
        co.n_threads = 1;
        assert_int_equal(kvs_ctx_new(&co, &r.ctx, NULL), KVS_OK);
        r.pages = rig_pages(r.ctx, 4, 0);
        r.ix = NULL;
        kvs_cache *c = new_cache(&r);
        kvs_cache *to = new_cache(&r);
        fill_to(&r, c, 40);
        mem.fail_at = mem.calls + k;
        kvs_prefix_publish_opts p = KVS_PREFIX_PUBLISH_OPTS_INIT;
        kvs_lease *lease = NULL;
        p.session = 1;
        p.snapshot = ids;
        p.snapshot_bytes = 8;
        kvs_prefix_key key = key_of(40);
        size_t stored = 0;
        kvs_status st = kvs_prefix_new(r.ctx, c, NULL, &r.ix, NULL);
        st = st == KVS_OK ? kvs_prefix_publish(r.ix, &key, c, &p, &stored, NULL) : st;
        key = key_of(41);
        st = st == KVS_OK ? kvs_prefix_lookup(r.ix, &key, 0, &lease, NULL, NULL) : st;
        st = st == KVS_OK ? kvs_prefix_attach(lease, to, NULL) : st;
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        bool all = mem.calls <= mem.fail_at; /* windows may be left out without a failure */
        mem.fail_at = -1;
        assert_true(!r.ix || kvs__prefix_check(r.ix));
        if (st != KVS_OK && r.ix) { /* and it works once there is memory */
            assert_int_equal(kvs_cache_length(to, 0), 0);
            key = key_of(40);
            assert_int_equal(kvs_prefix_publish(r.ix, &key, c, &p, &stored, NULL), KVS_OK);
            assert_int_equal(found(&r, 41, NULL), 40);
        }
        kvs_prefix_release(lease);
        kvs_cache_free(c);
        kvs_cache_free(to);
        kvs_prefix_free(r.ix);
        kvs_pages_free(r.pages);
        kvs_ctx_free(r.ctx);
        assert_true(mem.live == 0 && mem.wrong == 0);
        if (all) {
            return;
        }
    }
}

/* An object lives in the root of its namespace: with tokens below it stays, without them it goes like
 * any other item. */
static void objects_beside_tokens(void **state)
{
    (void)state;
    rig r;
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    kvs_prefix_key object = key_of(0);
    kvs_lease *lease = NULL;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 40);
    publish(&r, c, 40, NULL);
    o.snapshot = ids;
    o.snapshot_bytes = 100;
    assert_int_equal(kvs_prefix_publish(r.ix, &object, NULL, &o, NULL, NULL), KVS_OK);
    assert_true(kvs__prefix_check(r.ix));
    assert_int_equal(kvs_prefix_lookup(r.ix, &object, 0, &lease, &hit, NULL), KVS_OK);
    assert_int_equal(hit.snapshot_bytes, 100);
    assert_memory_equal(hit.snapshot, ids, 100);
    kvs_prefix_release(lease);
    while (kvs__prefix_evict(r.ix)) {
        assert_true(kvs__prefix_check(r.ix));
        assert_int_equal(kvs_prefix_get_stats(r.ix, &s), KVS_OK);
        /* while tokens are there the object is */
        kvs_status st = kvs_prefix_lookup(r.ix, &object, 0, &lease, NULL, NULL);
        assert_true(st == KVS_OK || (st == KVS_NO && s.nodes == 0));
        kvs_prefix_release(lease);
        lease = NULL;
    }
    assert_true(s.nodes == 0 && s.namespaces == 0 && s.pages == 0);
    kvs_cache_free(c);
    close_rig(&r);
}

/* What retention is told of each block of the only path, which has n. */
static void expect_hints(const rig *r, size_t n, const uint32_t *want)
{
    size_t seen = 0;
    assert_int_equal(r->ix->n_roots, 1);
    for (const kvs__node *node = r->ix->root[0]->child; node; node = node->child, seen++) {
        kvs_retain_info info = KVS_RETAIN_INFO_INIT;
        assert_int_equal(node->depth, seen);
        assert_int_equal(kvs_retain_get_info(r->ix->retain, node->item, &info), KVS_OK);
        if (info.hint != want[seen]) {
            fail_msg("block %zu: hint %u, expected %u", seen, info.hint, want[seen]);
        }
    }
    assert_int_equal(seen, n);
}

static void evict(rig *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_true(kvs__prefix_evict(r->ix));
    }
}

/* Blocks that went and are remembered count as seen before, from the first that is missing on and as
 * long as they are the same tokens; blocks that no one stored do not. */
static void ghosts_were_seen(void **state)
{
    (void)state;
    static const uint32_t fresh[] = {0, 0, 0, 0, 1};
    static const uint32_t again[] = {2, 2, 2, 2, 3};
    static const uint32_t others[] = {0, 0, 0, 0, 1};
    static const uint32_t much[] = {4, 4, 4, 4};
    static const uint32_t known[] = {2, 2, 2, 2};
    rig r;
    open_rig(&r, 16, 0, 0, 0, NULL);
    kvs_cache *c = new_cache(&r);
    fill_to(&r, c, 72);
    publish(&r, c, 72, NULL);
    expect_hints(&r, 5, fresh);
    evict(&r, 4); /* leaves go first: the block at the root is there, the next three are ghosts */
    publish(&r, c, 72, NULL);
    expect_hints(&r, 5, again);
    evict(&r, 5);
    publish(&r, c, 72, NULL);
    expect_hints(&r, 5, again);
    evict(&r, 5);
    publish(&r, c, 24, NULL); /* a ghost of one block: no more than a system prompt has */
    expect_hints(&r, 2, fresh + 3);
    evict(&r, 2);
    ids[3]++; /* other tokens: what lies behind them was never seen behind them */
    publish(&r, c, 72, NULL);
    expect_hints(&r, 5, others);
    evict(&r, 5);
    ids[3]--;
    ids[40]++; /* alike for two blocks */
    publish(&r, c, 72, NULL);
    expect_hints(&r, 5, again);
    kvs_cache_free(c);
    close_rig(&r);
    for (int ghosts = 0; ghosts < 2; ghosts++) { /* 4180 tokens: much, but not of what was seen */
        open_rig(&r, 256, 0, 0, 0, NULL);
        c = new_cache(&r);
        fill_to(&r, c, 4180);
        publish(&r, c, 4180, NULL);
        if (ghosts) {
            evict(&r, 17);
            publish(&r, c, 4180, NULL);
        }
        evict(&r, 13);
        expect_hints(&r, 4, ghosts ? known : much);
        kvs_cache_free(c);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ghosts_were_seen),         cmocka_unit_test(every_boundary),
        cmocka_unit_test(objects_beside_tokens),    cmocka_unit_test(window_boundaries),
        cmocka_unit_test(back_to_the_middle),       cmocka_unit_test(sparse_windows_take_less),
        cmocka_unit_test(further_siblings),         cmocka_unit_test(misses_have_reasons),
        cmocka_unit_test(names_are_framed),         cmocka_unit_test(errors),
        cmocka_unit_test(sessions_are_kept),        cmocka_unit_test(earlier_entries_go),
        cmocka_unit_test(shorter_windows_stay),     cmocka_unit_test(snapshots_are_replaced),
        cmocka_unit_test(half_a_block_of_a_window), cmocka_unit_test(budget),
        cmocka_unit_test(bytes_are_the_allocators), cmocka_unit_test(failing_allocations),
        cmocka_unit_test(a_request_is_one_use),     cmocka_unit_test(windows_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
