/* SPDX-License-Identifier: MIT */
/* test_store_fail.c: the k-th allocation or file call of each call on a store fails, for every k. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/fail_alloc.h"
#include "support/store_unit.h"

typedef struct deep {
    fail_alloc heap;
    kvs_ctx *ctx;
    memfs *fs;
    kvs_store *s;
} deep;

static void deep_start(deep *d)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    memset(d, 0, sizeof *d);
    atomic_store(&d->heap.fail_at, -1);
    o.n_threads = 1;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &d->heap;
    assert_int_equal(kvs_ctx_new(&o, &d->ctx, NULL), KVS_OK);
    d->fs = memfs_new();
    memfs_link(d->fs, ".", memfs_new_inode(d->fs, true, 0700));
}

static kvs_status deep_open(deep *d)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_store *s = NULL;
    o.flags = KVS_STORE_NO_THREADS;
    o.retry_ms = 1;
    kvs_status st = kvs__store_open_vfs(d->ctx, &d->fs->v, "d", &o, &s, NULL);
    d->s = st == KVS_OK ? s : NULL;
    return st;
}

static void deep_end(deep *d)
{
    kvs_store_close(d->s);
    kvs_ctx_free(d->ctx);
    assert_int_equal(atomic_load(&d->heap.live), 0);
    assert_int_equal(atomic_load(&d->heap.wrong), 0);
    memfs_free(d->fs);
}

static kvs_status do_put(deep *d)
{
    return rig_put(d->s, 3, 2, KVS_PUT_DURABLE, NULL);
}

static kvs_status do_remove(deep *d)
{
    return kvs_store_remove(d->s, entry_of(d->s, 3), NULL);
}

static kvs_status do_export(deep *d)
{
    return kvs_store_export(d->s, entry_of(d->s, 3), "x", NULL);
}

static kvs_status do_import(deep *d)
{
    return kvs_store_import(d->s, "./y", NULL, NULL);
}

static kvs_status do_verify(deep *d)
{
    kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
    kvs_status st = kvs_store_verify(d->s, &r, NULL);
    return st == KVS_OK && r.unreadable > 0 ? KVS_E_IO : st;
}

static kvs_status do_gc(deep *d)
{
    return kvs_store_gc(d->s, NULL, NULL);
}

static kvs_status do_reopen(deep *d)
{
    kvs_store_close(d->s);
    return deep_open(d);
}

/* Fails call k of an operation, for all k until it does not notice; what it leaves must be one of the
 * two states, and a second attempt must succeed. */
static long fail_each(kvs_status (*op)(deep *), bool io, int before, int after)
{
    long k = 0;
    for (bool noticed = true; noticed && k < 400; k++) {
        deep d;
        deep_start(&d);
        assert_int_equal(deep_open(&d), KVS_OK);
        for (uint32_t key = 0; key < 6; key++) {
            put(d.s, key, 1);
        }
        /* its segment keeps what the others share: sparse */
        assert_int_equal(kvs_store_remove(d.s, entry_of(d.s, 0), NULL), KVS_OK);
        assert_int_equal(kvs_store_export(d.s, entry_of(d.s, 3), "y", NULL), KVS_OK);
        d.fs->calls = 0;
        atomic_store(&d.heap.calls, 0);
        if (io) {
            d.fs->fail_errno = EACCES; /* not one that is tried again */
            d.fs->fail_at = k;
        } else {
            atomic_store(&d.heap.fail_at, k);
        }
        kvs_status st = op(&d);
        noticed = io ? d.fs->calls > k : atomic_load(&d.heap.calls) > k;
        d.fs->fail_at = -1;
        atomic_store(&d.heap.fail_at, -1);
        if (!d.s) {
            assert_int_equal(deep_open(&d), KVS_OK);
        }
        if (op != do_reopen) { /* which skips what it can't read, and says so */
            int got = rig_get(d.s, 3);
            assert_true(got == after || (st != KVS_OK && got == before));
        }
        assert_null(rig_audit(d.s));
        kvs_store_close(d.s);
        assert_int_equal(deep_open(&d), KVS_OK);
        for (uint32_t key = 0; key < 6; key++) {
            int got = rig_get(d.s, key);
            assert_true(key == 3 ? got == before || got == after : got == (key == 0 ? -1 : 1));
        }
        assert_int_equal(stats_of(d.s).quarantined, 0);
        if (op != do_remove || rig_get(d.s, 3) >= 0) {
            assert_int_equal(op(&d), KVS_OK);
        }
        assert_int_equal(rig_get(d.s, 3), after);
        deep_end(&d);
    }
    return k;
}

static void test_each_failure(void **state)
{
    (void)state;
    for (int io = 0; io < 2; io++) {
        assert_true(fail_each(do_put, io, 1, 2) > 6);
        assert_true(fail_each(do_remove, io, 1, -1) > io);
        assert_true(fail_each(do_export, io, 1, 1) > 5);
        assert_true(fail_each(do_import, io, 1, 1) > 5);
        assert_true(fail_each(do_verify, io, 1, 1) > 2);
        assert_true(fail_each(do_gc, io, 1, 1) > 2);
        assert_true(fail_each(do_reopen, io, 1, 1) > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_failure),
    };
    return cmocka_run_group_tests(tests, start, end);
}
