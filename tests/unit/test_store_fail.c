/* SPDX-License-Identifier: MIT */
/* test_store_fail.c: the k-th allocation or file call of each call on a store fails, for every k. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

/* Nothing is known, then all of it is; then some of it is, of an entry that is gone. */
static kvs_status do_put_known(deep *d)
{
    static kvs__known known[RIG_CHUNKS];
    memset(known, 0, sizeof known);
    kvs_status st = rig_put_known(d->s, 3, 2, KVS_PUT_DURABLE, NULL, known, NULL);
    return st == KVS_OK ? rig_put_known(d->s, 3, 2, KVS_PUT_DURABLE, NULL, known, NULL) : st;
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
        assert_true(fail_each(do_put_known, io, 1, 2) > 12);
        assert_true(fail_each(do_remove, io, 1, -1) > io);
        assert_true(fail_each(do_export, io, 1, 1) > 5);
        assert_true(fail_each(do_import, io, 1, 1) > 5);
        assert_true(fail_each(do_verify, io, 1, 1) > 2);
        assert_true(fail_each(do_gc, io, 1, 1) > 2);
        assert_true(fail_each(do_reopen, io, 1, 1) > 20);
    }
}

/* A part whose making has a reader find the blocks of another one bad. */
typedef struct trap {
    kvs_store *s;
    kvs__known *known;
    uint32_t n;
} trap;

static void spring(void *user, uint64_t offset, size_t bytes, void *dst)
{
    trap *t = user;
    memset(dst, (int)offset + 1, bytes);
    (void)pthread_mutex_lock(&t->s->lock);
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t b = kvs__block_find(t->s, t->known[i].sha, 256);
        if (b != KVS__NONE) {
            t->s->blocks[b].bad = true;
        }
    }
    (void)pthread_mutex_unlock(&t->s->lock);
    t->n = 0;
}

/* What is found bad while a save that shares it is under way is written again by it. */
static void test_bad_meanwhile(void **state)
{
    (void)state;
    for (int known = 0; known < 2; known++) {
        deep d;
        static uint8_t data[512];
        static uint8_t back[768];
        kvs__known k[3] = {{.set = false}};
        kvs__known *list[3] = {&k[0], &k[1], NULL};
        int32_t id = 1;
        const kvs_store_key key = {rig_identity, "", 0, &id, 1};
        kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
        kvs_store_hit h = KVS_STORE_HIT_INIT;
        deep_start(&d);
        assert_int_equal(deep_open(&d), KVS_OK);
        memset(data + 256, 7, 256);
        trap t = {d.s, k, 0};
        kvs_store_part parts[2] = {{"a", 0, 0, 512, data, 256, 0, NULL, NULL},
                                   {"b", 0, 0, 256, NULL, 256, 0, spring, &t}};
        o.flags = KVS_PUT_DURABLE;
        assert_int_equal(kvs__store_put_known(d.s, &key, parts, 2, &o, list, NULL), KVS_OK);
        uint64_t before = stats_of(d.s).written_bytes;
        id = 2;
        t.n = 2;
        assert_int_equal(kvs__store_put_known(d.s, &key, parts, 2, &o, known ? list : NULL, NULL),
                         KVS_OK);
        assert_true(stats_of(d.s).written_bytes >= before + 512);
        assert_int_equal(kvs_store_find(d.s, &key, NULL, &h, NULL), KVS_OK);
        for (uint32_t i = 0; i < 3; i++) {
            const kvs__entry *e = kvs__entry_of(d.s, h.entry);
            assert_false(d.s->blocks[e->chunks[i]].bad);
        }
        kvs_store_buf bufs[2] = {{0, 0, 512, back}, {1, 0, 256, back + 512}};
        assert_int_equal(kvs_store_get(d.s, h.entry, bufs, 2, NULL), KVS_OK);
        assert_memory_equal(back, data, 512);
        assert_int_equal(kvs_store_unpin(d.s, h.entry), KVS_OK);
        assert_null(rig_audit(d.s));
        deep_end(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_meanwhile),
        cmocka_unit_test(test_each_failure),
    };
    return cmocka_run_group_tests(tests, start, end);
}
