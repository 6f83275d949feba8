/* SPDX-License-Identifier: MIT */
/* test_cache_window.c: which reads and rewinds a ring answers, by brute force: exactly those whose
 * every visible token is among those that it says it stores. And views of one segment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RIG_PAGED
#include "support/cache_rig.h"

static bool stored(const kvs_cache *c, const kvs_layer_spec *s, int64_t pos)
{
    return pos >= kvs_cache_oldest(c, 0) || pos < (int64_t)s->sinks;
}

/* Is all that a query at pos sees, below `end`, stored? */
static bool whole(const kvs_cache *c, const kvs_layer_spec *s, int64_t pos, int64_t end)
{
    for (int64_t j = 0; j < end; j++) {
        if ((j > pos - (int64_t)s->window || j < (int64_t)s->sinks) && !stored(c, s, j)) {
            return false;
        }
    }
    return true;
}

static void check_reads(kvs_cache *c, const kvs_layer_spec *s)
{
    int64_t len = kvs_cache_length(c, 0);
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(s, 1, 1, 0, &q, &out);
    for (int64_t pos = 0; pos < len; pos++) {
        d.q_pos = pos;
        kvs_status want = whole(c, s, pos, pos + 1) ? KVS_OK : KVS_E_RANGE;
        if (kvs_cache_attend(c, 0, &d, NULL) != want) {
            fail_msg("window %u, sinks %u, length %lld: the read at %lld should be %s", s->window,
                     s->sinks, (long long)len, (long long)pos, kvs_status_name(want));
        }
    }
    free(q);
    free(out);
}

static void check_rewinds(kvs_cache *c, const kvs_layer_spec *s)
{
    int64_t len = kvs_cache_length(c, 0);
    for (int64_t n = 0; n <= len; n++) {
        int64_t to = len - n;
        kvs_status want = to == 0 || whole(c, s, to, to) ? KVS_OK : KVS_NO;
        if (kvs_cache_can_rewind(c, 0, (uint64_t)n) != want) {
            fail_msg("window %u, sinks %u, length %lld: a rewind of %lld should be %s", s->window,
                     s->sinks, (long long)len, (long long)n, kvs_status_name(want));
        }
    }
    assert_int_equal(kvs_cache_can_rewind(c, 0, (uint64_t)len + 1), KVS_NO);
}

static void test_every_read_and_rewind(void **state)
{
    (void)state;
    static const uint32_t windows[] = {1, 2, 7, 16, 30};
    static const uint32_t sinks[] = {0, 1, 5, 17, 40};
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (int i = 0; i < 25; i++) {
        kvs_layer_spec s = rig_ring(rig_spec(1, 16, 16, "f32", "f16"), windows[i % 5], sinks[i / 5],
                                    1 + (uint32_t)i % 4);
        kvs_cache *c = rig_cache(ctx, &s, 1, 0);
        while (kvs_cache_length(c, 0) < 75) {
            rig_must(rig_append(c, 0, s.max_block, 1, NULL));
            check_reads(c, &s);
            check_rewinds(c, &s);
        }
        /* one step back and forth leaves less to go back to, never more than is there */
        rig_must(kvs_cache_rewind(c, 0, s.max_block, NULL));
        check_reads(c, &s);
        check_rewinds(c, &s);
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

/* Of two views of the same segment one is freed: the other is still guarded. */
static void test_two_views(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (int i = 0; i < 8; i++) {
        kvs_layer_spec s = rig_spec(1, 32, 32, "q4:32", "f16");
        s = i % 2 ? rig_ring(s, 20, 3, 13) : s;
        kvs_cache *c = rig_cache(ctx, &s, 1, 0);
        rig_fill(c, 0, 24, 12, 1);
        kvs_view *v[2] = {NULL, NULL};
        rig_must(kvs_view_new(c, 0, &v[i / 2 % 2], NULL));
        if (i >= 4) {
            rig_must(kvs_cache_rewind(c, 0, 3, NULL));
        }
        rig_must(kvs_view_new(c, 0, &v[1 - i / 2 % 2], NULL));
        float *q = NULL;
        float *before = NULL;
        kvs_attend d = rig_query(&s, 1, 1, -1, &q, &before);
        rig_must(kvs_view_attend(v[1], &d, NULL));
        kvs_view_free(v[0]);
        rig_must(kvs_cache_rewind(c, 0, 9, NULL));
        rig_fill(c, 0, 60, 12, 2);
        float after[32];
        d.out = after;
        rig_must(kvs_view_attend(v[1], &d, NULL));
        assert_memory_equal(after, before, sizeof after);
        free(q);
        free(before);
        kvs_view_free(v[1]);
        kvs_cache_free(c);
    }
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_read_and_rewind),
        cmocka_unit_test(test_two_views),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < RIG_BLOCKS; i++) {
        rig_block = rig_blocks[i];
        failed += cmocka_run_group_tests_name("paged", tests, NULL, NULL);
    }
    return failed;
}
