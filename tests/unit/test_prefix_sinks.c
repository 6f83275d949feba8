/* SPDX-License-Identifier: MIT */
/* test_prefix_sinks.c: a prefix index is given caches that have the sinks and the newest tokens of a
 * window and nothing between, as those that were read from a disk. Where sinks end within a block, the
 * rest of that block is missing there, but not in one whose tokens were all computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/index_rig.h"

#define N_TOKENS 40u

typedef struct shape {
    uint32_t block, window, sinks, max_block;
} shape;

static const shape shapes[] = {{16, 9, 4, 3}, {16, 20, 8, 6}, {5, 7, 3, 2}, {5, 12, 8, 4},
                               {4, 6, 8, 4},  {1, 6, 3, 2},   {64, 9, 4, 3}};

/* [begin, end) of a layer of both, where it is not empty. */
static void expect_same(const kvs_cache *a, const kvs_cache *b, uint32_t layer, int64_t begin,
                        int64_t end)
{
    size_t bytes = 0;
    if (begin >= end) {
        return;
    }
    void *x = rig_export(a, layer, begin, (uint64_t)(end - begin), &bytes);
    void *y = rig_export(b, layer, begin, (uint64_t)(end - begin), &bytes);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
}

/* All that the query behind n tokens sees. */
static void expect_seen(rig *r, const kvs_cache *c, const kvs_cache *whole, int64_t n)
{
    int64_t sinks = n < (int64_t)r->spec[1].sinks ? n : (int64_t)r->spec[1].sinks;
    int64_t from = n - (int64_t)r->spec[1].window + 1;
    expect_same(c, whole, 0, 0, n);
    expect_same(c, whole, 1, 0, sinks);
    expect_same(c, whole, 1, from > sinks ? from : sinks, n);
}

/* A cache of n tokens that keeps what it was given. */
static kvs_cache *whole_of(rig *r, uint32_t n)
{
    uint32_t window = r->spec[1].window;
    r->spec[1].window = 4 * N_TOKENS; /* the bytes of a token do not depend on it */
    kvs_cache *c = new_cache(r);
    r->spec[1].window = window;
    fill_to(r, c, n);
    return c;
}

static void import(kvs_cache *c, uint32_t layer, const kvs_cache *from, int64_t begin, int64_t end)
{
    kvs_planes p;
    size_t bytes = 0;
    uint64_t n = (uint64_t)(end - begin);
    if (n == 0) {
        return;
    }
    void *base = rig_planes(kvs_cache_spec(c, layer), 0, n, &p, &bytes);
    rig_must(kvs_cache_export(from, layer, begin, n, &p, NULL));
    rig_must(kvs_cache_import(c, layer, begin, n, &p, NULL));
    free(base);
}

/* n tokens, of the window those from lo on and the sinks. */
static kvs_cache *torn_of(rig *r, const kvs_cache *whole, uint32_t lo, uint32_t n)
{
    kvs_cache *c = new_cache(r);
    import(c, 0, whole, 0, n);
    import(c, 1, whole, 0, r->spec[1].sinks);
    import(c, 1, whole, lo, n);
    return c;
}

/* The hit for a prompt of n tokens: what it can be resumed from, and rewound to, is right. */
static size_t check_hit(rig *r, const kvs_cache *whole, uint32_t n)
{
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_prefix_key key = key_of(n);
    if (kvs_prefix_lookup(r->ix, &key, 0, &lease, &hit, NULL) != KVS_OK) {
        return 0;
    }
    for (int64_t to = (int64_t)hit.n_tokens; to > 0; to--) {
        kvs_cache *c = new_cache(r);
        rig_must(kvs_prefix_attach(lease, c, NULL));
        if (kvs_cache_rewind(c, KVS_ALL_LAYERS, hit.n_tokens - (uint64_t)to, NULL) == KVS_OK) {
            expect_seen(r, c, whole, to);
        } else {
            assert_true(to < (int64_t)hit.n_tokens);
        }
        kvs_cache_free(c);
    }
    kvs_prefix_release(lease);
    return hit.n_tokens;
}

static void check_hits(rig *r, const kvs_cache *whole, size_t *hits)
{
    for (uint32_t n = 2; n <= N_TOKENS + 1; n++) {
        size_t had = hits[n];
        hits[n] = check_hit(r, whole, n);
        assert_true(hits[n] >= had);
    }
}

static void check_shape(const shape *s, uint32_t lo, uint32_t first_whole)
{
    rig r;
    size_t hits[N_TOKENS + 2] = {0};
    open_rig(&r, s->block, s->window, s->sinks, s->max_block, NULL);
    kvs_cache *whole = whole_of(&r, N_TOKENS);
    kvs_cache *torn = torn_of(&r, whole, lo, N_TOKENS);
    kvs_cache *part = new_cache(&r);
    fill_to(&r, part, first_whole);
    if (first_whole > 0) { /* before, or else after */
        publish(&r, part, first_whole, NULL);
    }
    publish(&r, torn, N_TOKENS, NULL);
    check_hits(&r, whole, hits);
    for (uint32_t n = s->sinks; n <= N_TOKENS; n++) { /* the sinks are there in any case */
        assert_true(hits[n + 1] >= s->sinks);
    }
    uint32_t seen = (N_TOKENS + 1 - s->window) / s->block * s->block; /* of whole blocks */
    if (seen < s->sinks || seen >= lo) {
        assert_int_equal(hits[N_TOKENS + 1], N_TOKENS);
    }
    assert_true(hits[first_whole + 1] >= first_whole);
    for (uint32_t n = 1; n <= N_TOKENS; n++) { /* each end has what resuming there needs */
        fill_to(&r, part, n > first_whole ? n : first_whole);
        if (n >= first_whole) {
            publish(&r, part, n, NULL);
        }
    }
    check_hits(&r, whole, hits);
    for (uint32_t n = first_whole + 1; n <= N_TOKENS; n++) {
        assert_int_equal(hits[n + 1], n);
    }
    kvs_cache_free(part);
    kvs_cache_free(torn);
    kvs_cache_free(whole);
    close_rig(&r);
}

static void test_hole(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVS_COUNT(shapes); i++) {
        const shape *s = &shapes[i];
        for (uint32_t lo = s->sinks; lo + s->window <= N_TOKENS + 1; lo++) {
            if (N_TOKENS - lo > s->window + s->max_block - 1) {
                continue; /* more than a window keeps */
            }
            for (uint32_t n = 0; n < N_TOKENS; n += n < 2 * s->sinks ? 1 : 7) {
                check_shape(s, lo, n);
            }
        }
    }
}

/* What was made good may be given: the hole ends with what is computed in its place. */
static void test_filled(void **state)
{
    (void)state;
    rig r;
    size_t hits[N_TOKENS + 2] = {0};
    open_rig(&r, 16, 9, 4, 3, NULL);
    kvs_cache *whole = whole_of(&r, N_TOKENS);
    kvs_cache *torn = torn_of(&r, whole, 10, 18);
    rig_must(kvs_cache_rewind(torn, KVS_ALL_LAYERS, 18 - 4, NULL));
    for (uint32_t n = 5; n <= N_TOKENS; n++) {
        import(torn, 0, whole, n - 1, n);
        import(torn, 1, whole, n - 1, n);
        publish(&r, torn, n, NULL);
    }
    check_hits(&r, whole, hits);
    for (uint32_t n = 5; n <= N_TOKENS; n++) {
        assert_int_equal(hits[n + 1], n);
    }
    kvs_cache_free(torn);
    kvs_cache_free(whole);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hole), cmocka_unit_test(test_filled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
