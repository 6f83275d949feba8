/* SPDX-License-Identifier: MIT */
/* test_prefix_part: entries of a prefix index with the state of two models (prefix_part.h): each part is
 * found by itself and is that of its own tokens; both count, and go together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RIG_PAGED
#include "store/prefix_priv.h"
#include "support/cache_rig.h"
#include "support/fail_alloc.h"

#define MOST  48u
#define KNOWN 300u

typedef struct text {
    uint32_t n;
    int32_t ids[MOST];
} text;

typedef struct rig {
    fail_alloc mem;
    kvs_ctx *ctx;
    kvs_pages *pages;
    kvs_pages *apart; /* of cold caches */
    kvs_prefix *ix;
    kvs_layer_spec spec[KVS__PARTS][2];
    uint32_t n_layers[KVS__PARTS];
    text known[KVS__PARTS][KNOWN]; /* published */
    uint32_t n_known[KVS__PARTS];
    bool complete; /* nothing was evicted, nor failed */
    uint64_t rng;
} rig;

static uint64_t foretold;
static uint64_t exactly;

static uint32_t below(rig *r, uint32_t n)
{
    r->rng = rig_mix(r->rng + 1);
    return (uint32_t)(r->rng >> 33) % n;
}

static kvs_cache *new_cache(rig *r, uint32_t part, kvs_pages *pages)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    long at = r->mem.fail_at;
    r->mem.fail_at = -1;
    o.n_layers = r->n_layers[part];
    o.layers = r->spec[part];
    o.pages = pages;
    rig_must(kvs_cache_new(r->ctx, &o, &c, NULL));
    r->mem.fail_at = at;
    return c;
}

static kvs_layer_spec paged(kvs_layer_spec s, uint32_t window, uint32_t sinks)
{
    s.layout = KVS_LAYOUT_PAGED;
    s.window = window;
    s.sinks = sinks;
    s.max_block = window ? 4 : s.max_block;
    return s;
}

/* kind: windows in neither part, the first, the second, both. */
static void open_rig(rig *r, uint32_t block, uint32_t kind, const kvs_prefix_opts *opts)
{
    kvs_ctx_opts c = KVS_CTX_OPTS_INIT;
    memset(r, 0, sizeof *r);
    r->mem.fail_at = -1;
    r->complete = true;
    c.alloc = fail_alloc_take;
    c.free = fail_alloc_give;
    c.alloc_user = &r->mem;
    c.n_threads = 1;
    rig_must(kvs_ctx_new(&c, &r->ctx, NULL));
    r->pages = rig_pages(r->ctx, block, 0);
    r->apart = rig_pages(r->ctx, block, 0);
    r->spec[0][0] = paged(rig_spec(1, 32, 32, "f32", "f32"), 0, 0);
    r->spec[0][1] = paged(rig_spec(2, 32, 32, "f16", "f16"), kind & 1 ? 9 : 0, kind & 1 ? 3 : 0);
    r->spec[1][0] = paged(rig_spec(1, 64, 32, "affine4:32", "f16"), kind & 2 ? 7 : 0, 0);
    r->n_layers[0] = 2;
    r->n_layers[1] = 1;
    kvs_cache *like = new_cache(r, 0, r->pages);
    kvs_cache *draft = new_cache(r, 1, r->pages);
    rig_must(kvs__prefix_new_pair(r->ctx, like, draft, opts, &r->ix, NULL));
    kvs_cache_free(like);
    kvs_cache_free(draft);
}

static void close_rig(rig *r)
{
    assert_true(kvs__prefix_check(r->ix));
    kvs_prefix_free(r->ix);
    kvs_pages_free(r->pages);
    kvs_pages_free(r->apart);
    kvs_ctx_free(r->ctx);
    assert_int_equal(r->mem.live, 0);
    assert_int_equal(r->mem.wrong, 0);
}

/* Keys and values of a token are a function of it, of all before it and of the part. */
static uint64_t seed_of(const text *t, uint32_t n, uint32_t part)
{
    uint64_t h = rig_mix(77 + part);
    for (uint32_t i = 0; i < n; i++) {
        h = rig_mix(h ^ (uint64_t)(uint32_t)t->ids[i]);
    }
    return h;
}

static bool compute(rig *r, uint32_t part, kvs_cache *c, const text *t, uint32_t n)
{
    for (uint32_t at = (uint32_t)kvs_cache_length(c, 0); at < n; at++) {
        if (kvs_cache_reserve(c, KVS_ALL_LAYERS, 1, NULL) != KVS_OK) {
            return false;
        }
        for (uint32_t l = 0; l < r->n_layers[part]; l++) {
            rig_must(rig_append(c, l, 1, seed_of(t, at + 1, part) + l, NULL));
        }
    }
    return true;
}

/* What can be seen of both from the newer of their oldest positions on. */
static void same(rig *r, uint32_t part, kvs_cache *c, const text *t, uint32_t n)
{
    long at = r->mem.fail_at;
    r->mem.fail_at = -1;
    kvs_cache *cold = new_cache(r, part, r->apart);
    assert_true(compute(r, part, cold, t, n));
    for (uint32_t l = 0; l < r->n_layers[part]; l++) {
        size_t bytes[2] = {0, 0};
        int64_t lo = kvs_cache_oldest(c, l);
        lo = kvs_cache_oldest(cold, l) > lo ? kvs_cache_oldest(cold, l) : lo;
        assert_int_equal(kvs_cache_length(c, l), n);
        void *a = rig_export(c, l, lo, n - (uint64_t)lo, &bytes[0]);
        void *b = rig_export(cold, l, lo, n - (uint64_t)lo, &bytes[1]);
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(a, b, bytes[0]);
        free(a);
        free(b);
    }
    kvs_cache_free(cold);
    r->mem.fail_at = at;
}

static kvs_prefix_key key_of(const text *t, uint32_t n)
{
    kvs_prefix_key k = {NULL, "t", 1, t->ids, n};
    return k;
}

static kvs_prefix_stats stats_of(const rig *r)
{
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    assert_int_equal(kvs_prefix_get_stats(r->ix, &s), KVS_OK);
    return s;
}

static void publish(rig *r, uint32_t part, kvs_cache *c, const text *t, uint32_t n)
{
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    kvs_prefix_key k = key_of(t, n);
    uint64_t snap = seed_of(t, n, part);
    size_t stored = 0;
    if (below(r, 3) == 0) {
        o.snapshot = &snap;
        o.snapshot_bytes = sizeof snap;
    }
    kvs_status st = kvs__prefix_publish_part(r->ix, part, &k, c, &o, &stored, NULL);
    r->complete = r->complete && st == KVS_OK;
    assert_true(st == KVS_OK || st == KVS_NO || st == KVS_E_NOMEM || st == KVS_E_LIMIT);
    if (r->n_known[part] == KNOWN) {
        r->n_known[part] = 0;
        r->complete = false;
    }
    text *known = &r->known[part][r->n_known[part]++];
    *known = *t;
    known->n = n;
}

/* The most of a text that anything published in this part begins with. */
static uint32_t longest(const rig *r, uint32_t part, const text *t)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->n_known[part]; i++) {
        const text *k = &r->known[part][i];
        uint32_t n = 0;
        while (n < k->n && n < t->n - 1 && k->ids[n] == t->ids[n]) {
            n++;
        }
        most = n > most ? n : most;
    }
    return most;
}

/* A prompt: what is lent of the part, then the rest, published on the way or not. */
static uint32_t serve(rig *r, uint32_t part, const text *t, bool exact)
{
    kvs_prefix_key k = key_of(t, t->n);
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_cache *c = new_cache(r, part, r->pages);
    uint32_t most = longest(r, part, t);
    kvs_status st = kvs__prefix_lookup_part(r->ix, part, &k, 0, &lease, &hit, NULL);
    if (r->n_known[part] < KNOWN && r->complete) {
        assert_true(hit.n_tokens <= most);
        /* of the siblings that agree in part a lookup sees two, which may have the other part alone */
        assert_true(!exact || hit.n_tokens >= most - most % kvs__pages_block(r->pages));
        exactly += exact && hit.n_tokens == most;
        foretold += exact;
    }
    if (st == KVS_OK) {
        if (hit.snapshot) {
            assert_int_equal(hit.snapshot_bytes, sizeof(uint64_t));
            assert_int_equal(*(const uint64_t *)hit.snapshot,
                             seed_of(t, (uint32_t)hit.n_tokens, part));
        }
        kvs_cache *other = new_cache(r, 1 - part, r->pages); /* has other layers */
        assert_int_equal(kvs_prefix_attach(lease, other, NULL), KVS_E_INVAL);
        kvs_cache_free(other);
        st = kvs_prefix_attach(lease, c, NULL);
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        if (st == KVS_OK) {
            same(r, part, c, t, (uint32_t)hit.n_tokens);
        }
    }
    kvs_prefix_release(lease);
    uint32_t stop = 1 + below(r, t->n);
    if (compute(r, part, c, t, stop)) {
        uint32_t n = (uint32_t)kvs_cache_length(c, 0);
        publish(r, part, c, t, n);
        if (compute(r, part, c, t, t->n)) {
            publish(r, part, c, t, t->n);
        }
    }
    kvs_cache_free(c);
    assert_true(kvs__prefix_check(r->ix) && kvs__pages_check(r->pages));
    return (uint32_t)hit.n_tokens;
}

static void make_text(rig *r, text *t)
{
    memset(t, 0, sizeof *t);
    uint32_t part = below(r, 2);
    if (r->n_known[part] > 0 && below(r, 4) > 0) {
        const text *old = &r->known[part][below(r, r->n_known[part])];
        t->n = below(r, old->n);
        memcpy(t->ids, old->ids, t->n * sizeof *t->ids);
    }
    uint32_t n = t->n + 2 + below(r, 12);
    while (t->n < n && t->n < MOST) {
        t->ids[t->n++] = (int32_t)below(r, 2);
    }
}

/* Random prompts of both parts, with and without limits and failing memory. */
static void random_prompts(void **state)
{
    (void)state;
    static const uint32_t blocks[] = {1, 3, 4, 16};
    uint64_t hits = 0;
    uint64_t evicted = 0;
    static rig r;
    for (uint32_t run = 0; run < 96; run++) {
        kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
        o.policy = (kvs_retain_policy)(run % 3);
        open_rig(&r, blocks[run % 4], run / 4 % 4, &o);
        r.rng = run;
        if (run % 3 == 1) {
            size_t empty = stats_of(&r).bytes;
            assert_int_equal(kvs_prefix_limit(r.ix, empty + 12000 + 1000 * run), KVS_OK);
            r.complete = false;
        }
        for (uint32_t op = 0; op < 60; op++) {
            text t;
            make_text(&r, &t);
            uint32_t part = below(&r, 2);
            if (run % 3 == 2 && below(&r, 8) == 0) {
                r.mem.fail_at = r.mem.calls + below(&r, 30);
                r.complete = false;
            }
            hits += serve(&r, part, &t, r.spec[part][part ? 0 : 1].window == 0) > 0;
            r.mem.fail_at = -1;
            kvs_prefix_stats st = stats_of(&r);
            assert_true(st.max_bytes == 0 || st.peak_bytes <= st.max_bytes);
        }
        evicted += stats_of(&r).evicted;
        close_rig(&r);
    }
    assert_true(hits > 1000);
    assert_true(evicted > 100);
    assert_true(exactly > foretold * 2 / 3);
}

static kvs_cache *filled(rig *r, uint32_t part, const text *t, uint32_t n)
{
    kvs_cache *c = new_cache(r, part, r->pages);
    assert_true(compute(r, part, c, t, n));
    return c;
}

static uint32_t found(rig *r, uint32_t part, const text *t)
{
    kvs_prefix_key k = key_of(t, t->n);
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    (void)kvs__prefix_lookup_part(r->ix, part, &k, 0, &lease, &hit, NULL);
    kvs_prefix_release(lease);
    return (uint32_t)hit.n_tokens;
}

/* Both are in one node: what evicts it takes both, and each counts its bytes. */
static void one_entry(void **state)
{
    (void)state;
    static rig r;
    text t = {40, {0}};
    for (uint32_t i = 0; i < t.n; i++) {
        t.ids[i] = (int32_t)(i * i % 7);
    }
    open_rig(&r, 4, 0, NULL);
    kvs_cache *c[KVS__PARTS] = {filled(&r, 0, &t, 36), filled(&r, 1, &t, 36)};
    publish(&r, 0, c[0], &t, 36);
    kvs_prefix_stats one = stats_of(&r);
    assert_int_equal(found(&r, 1, &t), 0);
    publish(&r, 1, c[1], &t, 24); /* it comes later, and not as far */
    kvs_prefix_stats two = stats_of(&r);
    assert_int_equal(two.nodes, one.nodes);
    assert_true(two.bytes > one.bytes && two.pages == one.pages + 6);
    assert_int_equal(found(&r, 0, &t), 36);
    assert_int_equal(found(&r, 1, &t), 24);
    /* a lookup of the draft part is no use, nor a lookup of the index's statistics */
    kvs_prefix_stats now = stats_of(&r);
    assert_int_equal(now.lookups, one.lookups + 1);
    assert_int_equal(now.draft_lookups, one.draft_lookups + 2);
    assert_int_equal(now.draft_hits, 1);
    assert_int_equal(now.draft_hit_tokens, 24);
    for (uint32_t left = 36; left > 0; left -= 4) {
        assert_int_equal(found(&r, 0, &t), left);
        assert_int_equal(found(&r, 1, &t), left < 24 ? left : 24);
        assert_true(kvs__prefix_evict(r.ix));
        assert_true(kvs__prefix_check(r.ix));
    }
    assert_int_equal(stats_of(&r).pages, 0);
    c[0]->open = true; /* as kvs_txn_begin leaves it */
    kvs_prefix_key k = key_of(&t, 20);
    assert_int_equal(kvs__prefix_publish_part(r.ix, 0, &k, c[0], NULL, NULL, NULL), KVS_E_STATE);
    c[0]->open = false;
    assert_int_equal(kvs__prefix_publish_part(r.ix, 1, &k, c[0], NULL, NULL, NULL), KVS_E_INVAL);
    c[1]->open = true;
    assert_int_equal(kvs__prefix_publish_part(r.ix, 1, &k, c[1], NULL, NULL, NULL), KVS_E_STATE);
    c[1]->open = false;
    kvs_cache_free(c[0]);
    kvs_cache_free(c[1]);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_entry),
        cmocka_unit_test(random_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
