/* SPDX-License-Identifier: MIT */
/* store_unit.h: what the programs of unit tests of the store share, after cmocka.h: a context whose
 * memory is all given back, stores in memory, and puts that must succeed. */
#ifndef KVS_TESTS_SUPPORT_STORE_UNIT_H
#define KVS_TESTS_SUPPORT_STORE_UNIT_H

#include "support/memfs.h"
#include "support/store_rig.h"

static kvs_ctx *ctx;

RIG_UNUSED static kvs_store *open_with(memfs *m, const kvs_store_opts *opts, uint32_t flags)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_store *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (opts) {
        o = *opts;
    }
    o.flags |= flags;
    if (memfs_look(m, ".") < 0) {
        memfs_link(m, ".", memfs_new_inode(m, true, 0700));
    }
    kvs_status st = kvs__store_open_vfs(ctx, &m->v, "d", &o, &s, &err);
    if (st != KVS_OK) {
        print_message("%s\n", err.msg);
    }
    return s;
}

RIG_UNUSED static kvs_store *open_on(memfs *m, const kvs_store_opts *opts)
{
    return open_with(m, opts, KVS_STORE_NO_THREADS);
}

RIG_UNUSED static kvs_store_stats stats_of(kvs_store *s)
{
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    assert_int_equal(kvs_store_get_stats(s, &st), KVS_OK);
    assert_null(rig_audit(s));
    return st;
}

RIG_UNUSED static void put(kvs_store *s, uint32_t key, uint32_t version)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = rig_put(s, key, version, KVS_PUT_DURABLE, &err);
    if (st != KVS_OK) {
        print_message("put %u: %s\n", key, err.msg);
    }
    assert_int_equal(st, KVS_OK);
}

RIG_UNUSED static kvs_entry entry_of(kvs_store *s, uint32_t key)
{
    static rig_entry r;
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    rig_make(&r, key, 0);
    kvs_status st = kvs_store_find(s, &r.key, NULL, &h, NULL);
    if (st != KVS_OK) {
        return 0;
    }
    assert_int_equal(kvs_store_unpin(s, h.entry), KVS_OK);
    return h.entry;
}

RIG_UNUSED static int start(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : 1;
}

RIG_UNUSED static int end(void **state)
{
    (void)state;
    kvs_ctx_stats a = KVS_CTX_STATS_INIT;
    kvs_ctx_stats b = KVS_CTX_STATS_INIT;
    kvs_ctx *fresh = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    (void)kvs_ctx_get_stats(ctx, &a);
    if (kvs_ctx_new(&o, &fresh, NULL) != KVS_OK) {
        return 1;
    }
    (void)kvs_ctx_get_stats(fresh, &b);
    kvs_ctx_free(fresh);
    kvs_ctx_free(ctx);
    if (a.live_bytes != b.live_bytes) {
        print_message("%zu bytes leaked\n", a.live_bytes - b.live_bytes);
    }
    return a.live_bytes == b.live_bytes ? 0 : 1;
}

#endif
