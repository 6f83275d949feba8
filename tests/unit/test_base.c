/* SPDX-License-Identifier: MIT */
/* test_base.c: status and errors, checked sizes, the context's allocator, scratch, log and tiers. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/cpu.h"
#include "base/pool.h"
#include "kern/kern.h"
#include "support/fail_alloc.h"

static void test_status(void **state)
{
    (void)state;
    static const struct {
        kvs_status status;
        int code;
        const char *name;
    } pinned[] = {
        {KVS_OK, 0, "KVS_OK"},
        {KVS_NO, 1, "KVS_NO"},
        {KVS_E_INVAL, -1, "KVS_E_INVAL"},
        {KVS_E_NOMEM, -2, "KVS_E_NOMEM"},
        {KVS_E_RANGE, -3, "KVS_E_RANGE"},
        {KVS_E_UNSUPPORTED, -4, "KVS_E_UNSUPPORTED"},
        {KVS_E_STATE, -5, "KVS_E_STATE"},
        {KVS_E_BROKEN, -6, "KVS_E_BROKEN"},
        {KVS_E_IO, -7, "KVS_E_IO"},
        {KVS_E_FORMAT, -8, "KVS_E_FORMAT"},
        {KVS_E_LIMIT, -9, "KVS_E_LIMIT"},
        {KVS_E_CANCELLED, -10, "KVS_E_CANCELLED"},
        {KVS_E_NOTFOUND, -11, "KVS_E_NOTFOUND"},
        {KVS_E_INTERNAL, -12, "KVS_E_INTERNAL"},
    };
    for (size_t i = 0; i < KVS_COUNT(pinned); i++) {
        assert_int_equal(pinned[i].status, pinned[i].code);
        assert_string_equal(kvs_status_name(pinned[i].status), pinned[i].name);
        assert_string_not_equal(kvs_status_text(pinned[i].status), "unknown status");
    }
    assert_string_equal(kvs_status_name((kvs_status)-13), "unknown status");
    assert_string_equal(kvs_status_text((kvs_status)2), "unknown status");
    assert_string_equal(kvs_version(), KVS_VERSION_STRING);
}

static void test_errors(void **state)
{
    (void)state;
    kvs_err err;
    memset(&err, 0xff, sizeof err);
    assert_int_equal(kvs__fail(&err, KVS_E_RANGE, "state", "value %d", 7), KVS_E_RANGE);
    assert_int_equal(err.status, KVS_E_RANGE);
    assert_int_equal(err.sys_errno, 0);
    assert_string_equal(err.room, "state");
    assert_string_equal(err.msg, "value 7");
    assert_int_equal(kvs__fail(NULL, KVS_E_IO, "base", "x"), KVS_E_IO);
    char longer[400];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    kvs__fail(&err, KVS_E_RANGE, "a room with a long name", "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_int_equal(strlen(err.room), sizeof err.room - 1);
    kvs__fail_errno(&err, KVS_E_IO, ENOENT, "base", "open of %s", "f");
    assert_int_equal(err.sys_errno, ENOENT);
    assert_string_equal(err.msg, "open of f: No such file or directory");
    kvs__fail_errno(&err, KVS_E_IO, ENOENT, "base", "%s", longer);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    assert_int_equal(kvs__nomem(&err, "kern", 77), KVS_E_NOMEM);
    assert_non_null(strstr(err.msg, "77"));
}

static void test_sizes(void **state)
{
    (void)state;
    size_t r = 5;
    assert_true(kvs__mul_size(SIZE_MAX, 1, &r) && r == SIZE_MAX);
    assert_true(kvs__mul_size(0, SIZE_MAX, &r) && r == 0);
    r = 5;
    assert_false(kvs__mul_size(SIZE_MAX / 2 + 1, 2, &r));
    assert_false(kvs__mul_size((size_t)1 << 32, (size_t)1 << 32, &r));
    assert_false(kvs__add_size(SIZE_MAX, 1, &r));
    assert_false(kvs__align_size(SIZE_MAX - 62, 64, &r));
    assert_int_equal(r, 5); /* untouched by failures */
    assert_true(kvs__add_size(SIZE_MAX - 1, 1, &r) && r == SIZE_MAX);
    assert_true(kvs__align_size(0, 64, &r) && r == 0);
    assert_true(kvs__align_size(1, 64, &r) && r == 64);
    assert_true(kvs__align_size(64, 64, &r) && r == 64);
    assert_true(kvs__align_size(SIZE_MAX - 63, 64, &r) && r == SIZE_MAX - 63);
}

static kvs_ctx *new_ctx(fail_alloc *heap, uint32_t threads, size_t max_bytes)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = threads;
    o.max_bytes = max_bytes;
    if (heap) {
        o.alloc = fail_alloc_take;
        o.free = fail_alloc_give;
        o.alloc_user = heap;
    }
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    return ctx;
}

static kvs_ctx_stats stats_of(const kvs_ctx *ctx)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(ctx, &s), KVS_OK);
    return s;
}

static void test_counting(void **state)
{
    (void)state;
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx *ctx = new_ctx(&heap, 1, 0);
    size_t base = stats_of(ctx).live_bytes;
    assert_int_equal(base, heap.live); /* I1: the context itself is counted too */
    void *a = kvs__alloc(ctx, 1000);
    void *b = kvs__calloc(ctx, 10, 30);
    void *c = kvs__alloc(ctx, 0);
    void *d = kvs__alloc(ctx, 0);
    assert_true(a && b && c && d && c != d);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)b % 64, 0);
    for (int i = 0; i < 300; i++) {
        assert_int_equal(((const char *)b)[i], 0);
    }
    assert_int_equal(stats_of(ctx).live_bytes, base + 1300);
    assert_int_equal(heap.live, base + 1300);
    kvs__free(ctx, a, 1000);
    assert_int_equal(stats_of(ctx).live_bytes, base + 300);
    assert_int_equal(stats_of(ctx).peak_bytes, base + 1300);
    kvs__free(ctx, NULL, 55);
    assert_null(kvs__calloc(ctx, SIZE_MAX / 2, 3));
    assert_null(kvs__alloc(ctx, SIZE_MAX - 10));
    assert_int_equal(stats_of(ctx).live_bytes, base + 300);
    kvs__free(ctx, b, 300);
    kvs__free(ctx, c, 0);
    kvs__free(ctx, d, 0);
    kvs_ctx_free(ctx);
    kvs_ctx_free(NULL);
    assert_true(heap.live == 0 && heap.blocks == 0 && heap.wrong == 0);
}

/* Items stay through every growth, memory is given back with the size it was taken with, a list
 * doubles at least, and a failure changes nothing. */
static void test_grow(void **state)
{
    (void)state;
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx *ctx = new_ctx(&heap, 1, 0);
    size_t before = atomic_load(&heap.live);
    long calls = atomic_load(&heap.calls);
    uint32_t *list = NULL;
    size_t cap = 0;
    size_t n = 0;
    for (; n < 1000; n++) {
        uint32_t *p = kvs__grow(ctx, list, &cap, n, n + 1, sizeof *p);
        assert_non_null(p);
        assert_true(cap > n && atomic_load(&heap.live) == before + cap * sizeof *p);
        list = p;
        list[n] = (uint32_t)(n * n);
    }
    assert_int_equal(cap, 1024);
    assert_int_equal(atomic_load(&heap.calls) - calls, 7); /* 16, 32 ... 1024 */
    const size_t no_size[] = {SIZE_MAX, SIZE_MAX / 4 + 1};
    for (size_t i = 0; i < 2; i++) { /* more than fits a size_t */
        assert_null(kvs__grow(ctx, list, &cap, n, no_size[i], sizeof *list));
    }
    atomic_store(&heap.fail_at, atomic_load(&heap.calls));
    assert_null(kvs__grow(ctx, list, &cap, n, 1025, sizeof *list));
    assert_int_equal(cap, 1024);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(list[i], i * i);
    }
    uint32_t *same = kvs__grow(ctx, list, &cap, n, 1024, sizeof *list); /* it has room */
    assert_ptr_equal(same, list);
    uint32_t *more = kvs__grow(ctx, list, &cap, 1, 5000, sizeof *list); /* at once, keeping one */
    assert_non_null(more);
    assert_int_equal(cap, 5000);
    assert_int_equal(more[0], 0);
    kvs__free(ctx, more, cap * sizeof *more);
    size_t huge = SIZE_MAX / 2 + 1;
    char c = 0;
    assert_null(kvs__grow(ctx, &c, &huge, 1, SIZE_MAX, 1)); /* twice that is no size */
    kvs_ctx_free(ctx);
    assert_int_equal(atomic_load(&heap.blocks), 0);
    assert_int_equal(atomic_load(&heap.wrong), 0);
}

static void test_limit(void **state)
{
    (void)state;
    kvs_ctx *probe = new_ctx(NULL, 1, 0);
    size_t base = stats_of(probe).live_bytes;
    kvs_ctx_free(probe);
    kvs_ctx *ctx = new_ctx(NULL, 1, base + 1000);
    assert_int_equal(stats_of(ctx).max_bytes, base + 1000);
    assert_null(kvs__alloc(ctx, 1001));
    void *a = kvs__alloc(ctx, 600);
    void *b = kvs__alloc(ctx, 400);
    assert_true(a && b);
    assert_null(kvs__alloc(ctx, 1));
    assert_int_equal(stats_of(ctx).live_bytes, base + 1000);
    kvs__free(ctx, a, 600);
    a = kvs__alloc(ctx, 600);
    assert_non_null(a);
    kvs__free(ctx, a, 600);
    kvs__free(ctx, b, 400);
    kvs_ctx_free(ctx);
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_err err = {0};
    o.max_bytes = 10;
    assert_int_equal(kvs_ctx_new(&o, &ctx, &err), KVS_E_LIMIT);
    assert_null(ctx);
    assert_non_null(strstr(err.msg, "10"));
    o.max_bytes = base - 1; /* holds the struct but not its pool */
    o.n_threads = 1;
    assert_int_equal(kvs_ctx_new(&o, &ctx, &err), KVS_E_NOMEM);
    assert_null(ctx);
}

static void test_kth_failure(void **state)
{
    (void)state;
    long failures = 0;
    for (long k = 0;; k++) {
        fail_alloc heap = FAIL_ALLOC_INIT;
        heap.fail_at = k;
        kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
        o.alloc = fail_alloc_take;
        o.free = fail_alloc_give;
        o.alloc_user = &heap;
        o.n_threads = 4;
        kvs_ctx *ctx = NULL;
        kvs_err err = {0};
        kvs_status st = kvs_ctx_new(&o, &ctx, &err);
        if (st == KVS_OK) {
            assert_int_equal(stats_of(ctx).n_threads, 4);
            kvs_ctx_free(ctx);
        } else {
            failures++;
            assert_int_equal(st, KVS_E_NOMEM);
            assert_int_equal(err.status, KVS_E_NOMEM);
            assert_null(ctx);
        }
        assert_true(heap.live == 0 && heap.blocks == 0 && heap.wrong == 0);
        if (st == KVS_OK) {
            break;
        }
    }
    assert_true(failures >= 3); /* context, pool, list of threads */
}

static void test_options(void **state)
{
    (void)state;
    kvs_ctx *ctx = (kvs_ctx *)(void *)&state;
    kvs_err err = {0};
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1025;
    assert_int_equal(kvs_ctx_new(&o, &ctx, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "1025"));
    assert_null(ctx);
    o = (kvs_ctx_opts)KVS_CTX_OPTS_INIT;
    o.alloc = fail_alloc_take;
    assert_int_equal(kvs_ctx_new(&o, &ctx, &err), KVS_E_INVAL);
    assert_int_equal(kvs_ctx_new(NULL, NULL, &err), KVS_E_INVAL);
    o.struct_size = 4;
    assert_int_equal(kvs_ctx_new(&o, &ctx, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "4"));
    assert_int_equal(kvs_ctx_new(NULL, &ctx, &err), KVS_OK); /* all defaults */
    assert_int_equal(stats_of(ctx).n_threads, kvs__cpu_count());
    assert_int_equal(kvs_ctx_get_stats(ctx, NULL), KVS_E_INVAL);
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(NULL, &s), KVS_E_INVAL);
    s.struct_size = 3;
    assert_int_equal(kvs_ctx_get_stats(ctx, &s), KVS_E_INVAL);
    kvs_ctx_free(ctx);
}

static void test_scratch(void **state)
{
    (void)state;
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx *ctx = new_ctx(&heap, 1, 0);
    assert_int_equal(kvs__ctx_scratch_reserve(ctx, 500, NULL), KVS_OK);
    void *p = kvs__ctx_scratch(ctx, 500);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(kvs__ctx_scratch_reserve(ctx, 100, NULL), KVS_OK);
    assert_ptr_equal(kvs__ctx_scratch(ctx, 100), p);
    assert_int_equal(kvs__ctx_scratch_bytes(ctx), 500);
    kvs_err err = {0};
    heap.fail_at = (long)heap.calls;
    assert_int_equal(kvs__ctx_scratch_reserve(ctx, 501, &err), KVS_E_NOMEM);
    assert_ptr_equal(kvs__ctx_scratch(ctx, 500), p);
    assert_int_equal(kvs__ctx_scratch_bytes(ctx), 500);
    assert_int_equal(kvs__ctx_scratch_reserve(ctx, 501, &err), KVS_OK);
    assert_int_equal(kvs__ctx_scratch_bytes(ctx), 501);
    kvs_ctx_free(ctx);
    assert_true(heap.live == 0 && heap.wrong == 0);
}

typedef struct sink {
    int n;
    kvs_log_level level;
    char msg[600];
} sink;

static void take_log(void *user, kvs_log_level level, const char *msg)
{
    sink *s = user;
    s->n++;
    s->level = level;
    (void)snprintf(s->msg, sizeof s->msg, "%s", msg);
}

static void test_log(void **state)
{
    (void)state;
    sink s = {0};
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.log = take_log;
    o.log_user = &s;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    kvs__log(ctx, KVS_LOG_WARN, "layer %d", 3);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.level, KVS_LOG_WARN);
    assert_string_equal(s.msg, "layer 3");
    kvs__log(ctx, KVS_LOG_WARN, "%0600d", 3);
    assert_int_equal(strlen(s.msg), 511);
    kvs_ctx_free(ctx);
    ctx = new_ctx(NULL, 1, 0);
    kvs__log(ctx, KVS_LOG_ERROR, "to nobody");
    kvs_ctx_free(ctx);
}

static void test_tiers(void **state)
{
    (void)state;
    uint32_t have = kvs_cpu_tiers();
    assert_true(!(have & KVS_TIER_AVX512) || (have & KVS_TIER_AVX2));
    for (uint32_t off = 0; off < 8; off++) {
        kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
        o.n_threads = 1;
        o.tiers_off = off;
        kvs_ctx *ctx = NULL;
        assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
        uint32_t want = have & ~off;
        if (!(want & KVS_TIER_AVX2)) {
            want &= ~(uint32_t)KVS_TIER_AVX512;
        }
        assert_int_equal(stats_of(ctx).tiers, want);
        assert_ptr_equal(kvs__ctx_kern(ctx), kvs__kern_for(want));
        kvs_ctx_free(ctx);
    }
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.tiers_off = KVS_TIER_ALL;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&o, &ctx, NULL), KVS_OK);
    kvs__kern ref;
    kvs__kern_init_ref(&ref);
    assert_memory_equal(kvs__ctx_kern(ctx), &ref, sizeof ref); /* every slot is the reference */
    kvs_ctx_free(ctx);
    assert_true(kvs__cpu_count() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_counting),
        cmocka_unit_test(test_grow),        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_kth_failure), cmocka_unit_test(test_options),
        cmocka_unit_test(test_scratch),     cmocka_unit_test(test_log),
        cmocka_unit_test(test_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
