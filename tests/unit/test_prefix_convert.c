/* SPDX-License-Identifier: MIT */
/* test_prefix_convert.c: a delayed conversion of dense blocks that an index lent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/index_rig.h"

#define DENSE  20u
#define WINDOW 5u
#define SINKS  1u
#define BLOCK  3u

static void open_delayed(rig *r)
{
    r->ctx = rig_ctx(1, 0);
    r->pages = rig_pages(r->ctx, BLOCK, 0);
    r->n_layers = 2;
    r->max_block = 4;
    for (uint32_t i = 0; i < 2; i++) {
        r->spec[i] = rig_spec(2, 32, 32, "affine4:32", "affine4:32");
        r->spec[i].layout = KVS_LAYOUT_PAGED;
        r->spec[i].dense_until = DENSE;
        r->spec[i].dense_dtype = KVS_F16;
    }
    r->spec[1].window = WINDOW;
    r->spec[1].sinks = SINKS;
    r->spec[1].max_block = r->max_block;
    kvs_cache *like = new_cache(r);
    assert_int_equal(kvs_prefix_new(r->ctx, like, NULL, &r->ix, NULL), KVS_OK);
    kvs_cache_free(like);
    for (size_t i = 0; i < KVS_COUNT(ids); i++) {
        ids[i] = (int32_t)(rig_mix(i) % 1000);
    }
}

/* The index has every block of the window's layer, the cache that goes on lets go of most: the codes
 * are made of what it keeps, its sinks among them, and are those of a cache that was lent nothing. */
static void test_lent_window(void **state)
{
    (void)state;
    rig r;
    open_delayed(&r);
    kvs_cache *cold = new_cache(&r);
    for (uint32_t n = 1; n <= DENSE; n++) {
        fill_to(&r, cold, n);
        publish(&r, cold, n, NULL);
    }
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_prefix_key key = key_of(DENSE + 2);
    kvs_cache *warm = new_cache(&r);
    assert_int_equal(kvs_prefix_lookup(r.ix, &key, 0, &lease, &hit, NULL), KVS_OK);
    assert_int_equal(hit.n_tokens, DENSE);
    assert_int_equal(kvs_prefix_attach(lease, warm, NULL), KVS_OK);
    assert_int_equal(kvs__layer_store(&warm->layer[1])->lo, 0);
    fill_to(&r, warm, DENSE + 2);
    fill_to(&r, cold, DENSE + 2);
    static const int64_t from[2][2] = {{0, 0}, {0, DENSE + 2 - WINDOW}};
    static const uint64_t count[2][2] = {{DENSE + 2, 0}, {SINKS, WINDOW}};
    for (uint32_t l = 0; l < 2; l++) {
        for (int i = 0; i < 2; i++) {
            size_t bytes = 0;
            void *a = count[l][i] ? rig_export(cold, l, from[l][i], count[l][i], &bytes) : NULL;
            void *b = count[l][i] ? rig_export(warm, l, from[l][i], count[l][i], &bytes) : NULL;
            assert_true(bytes == 0 || memcmp(a, b, bytes) == 0);
            free(a);
            free(b);
        }
    }
    kvs_prefix_release(lease);
    kvs_cache_free(warm);
    kvs_cache_free(cold);
    close_rig(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lent_window)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
