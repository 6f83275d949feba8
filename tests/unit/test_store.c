/* SPDX-License-Identifier: MIT */
/* test_store.c: the object store as its header tells it: saves, lookups, sharing, limits, damage.
 * Failing calls are in test_store_fail.c, real directories and threads in test_store_dir.c; crashes,
 * killed processes and random programs in tests/crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/store_unit.h"

static void test_save_and_find(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    for (uint32_t k = 0; k < 40; k++) {
        put(s, k, k % 4);
    }
    put(s, 7, 9);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t k = 0; k < 40; k++) {
            assert_int_equal(rig_get(s, k), k == 7 ? 9 : k % 4);
        }
        assert_int_equal(rig_get(s, 41), -1);
        kvs_store_stats st = stats_of(s);
        assert_int_equal(st.entries, 40);
        assert_true(st.live_bytes <= st.disk_bytes);
        kvs_store_close(s); /* and from the files alone */
        s = open_on(m, NULL);
    }
    assert_int_equal(stats_of(s).quarantined, 0);
    kvs_store_close(s);
    memfs_free(m);
}

static void test_shared_blocks(void **state)
{
    (void)state;
    static uint8_t data[64 * 1024];
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    int32_t ids[128] = {0};
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    kvs_store_key key = {rig_identity, "", 0, ids, 64};
    kvs_store_part part = {"k", 0, 0, 32 * 1024, data, 4096, 0, NULL, NULL};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    o.flags = KVS_PUT_DURABLE;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, NULL), KVS_OK);
    kvs_store_stats a = stats_of(s);
    key.n_ids = 128; /* the conversation went on: its first half is stored once */
    part.bytes = 64 * 1024;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, NULL), KVS_OK);
    kvs_store_stats b = stats_of(s);
    assert_int_equal(b.deduplicated_bytes, 32 * 1024);
    assert_in_range(b.disk_bytes - a.disk_bytes, 32 * 1024, 34 * 1024);
    assert_int_equal(b.blocks, 16);
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    assert_int_equal(kvs_store_find(s, &key, NULL, &h, NULL), KVS_OK);
    static uint8_t out[64 * 1024];
    kvs_store_buf ranges[] = {{0, 4000, 200, out}, {0, 0, 1, out + 300}, {0, 65535, 1, out + 400}};
    assert_int_equal(kvs_store_get(s, h.entry, ranges, 3, NULL), KVS_OK);
    assert_memory_equal(out, data + 4000, 200);
    assert_true(out[300] == data[0] && out[400] == data[65535]);
    ranges[0].bytes = 65536;
    assert_int_equal(kvs_store_get(s, h.entry, ranges, 3, NULL), KVS_E_RANGE);
    ranges[0].part = 1;
    assert_int_equal(kvs_store_get(s, h.entry, ranges, 3, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_store_unpin(s, h.entry), KVS_OK);
    assert_int_equal(kvs_store_unpin(s, h.entry), KVS_E_NOTFOUND);
    kvs_store_close(s);
    memfs_free(m);
}

/* Modes of find against a search by hand, over all lengths around the blocks of the index. */
static void test_find_modes(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    static int32_t ids[400];
    static const size_t lengths[] = {1, 63, 64, 65, 127, 128, 130, 192, 300};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    o.flags = KVS_PUT_DURABLE;
    for (size_t i = 0; i < 400; i++) {
        ids[i] = (int32_t)i;
    }
    kvs_store_key key = {rig_identity, "n", 1, ids, 0};
    for (size_t i = 0; i < KVS_COUNT(lengths); i++) {
        key.n_ids = lengths[i];
        o.kind = (uint32_t)(i % 2);
        assert_int_equal(kvs_store_put(s, &key, NULL, 0, &o, NULL), KVS_OK);
    }
    for (size_t n = 1; n <= 400; n++) {
        for (uint32_t kinds = 0; kinds < 4; kinds++) {
            size_t prefix = 0;
            size_t overlap = 0;
            for (size_t i = 0; i < KVS_COUNT(lengths); i++) {
                if (kinds && !(kinds >> i % 2 & 1u)) {
                    continue;
                }
                prefix = lengths[i] <= n && lengths[i] > prefix ? lengths[i] : prefix;
                size_t both = lengths[i] < n ? lengths[i] : n;
                overlap = both > overlap ? both : overlap;
            }
            for (uint32_t mode = KVS_FIND_PREFIX; mode <= KVS_FIND_OVERLAP; mode++) {
                size_t want = mode == KVS_FIND_PREFIX ? prefix : overlap;
                kvs_store_query q = KVS_STORE_QUERY_INIT;
                kvs_store_hit h = KVS_STORE_HIT_INIT;
                q.mode = mode;
                q.kinds = kinds;
                q.max_tokens = n % 3 == 0 ? n : 0;
                key.n_ids = n % 3 == 0 ? 400 : n;
                kvs_status st = kvs_store_find(s, &key, &q, &h, NULL);
                assert_int_equal(st, want > 0 ? KVS_OK : KVS_NO);
                if (st == KVS_OK) {
                    assert_int_equal(h.n_common, want);
                    assert_int_equal(kvs_store_unpin(s, h.entry), KVS_OK);
                    q.min_tokens = want + 1;
                    assert_int_equal(kvs_store_find(s, &key, &q, &h, NULL), KVS_NO);
                }
            }
        }
    }
    /* another identity, namespace or token is another thing */
    uint8_t other[32] = {9};
    kvs_store_query q = KVS_STORE_QUERY_INIT;
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    q.mode = KVS_FIND_OVERLAP;
    kvs_store_key k2 = {other, "n", 1, ids, 300};
    assert_int_equal(kvs_store_find(s, &k2, &q, &h, NULL), KVS_NO);
    k2 = (kvs_store_key){rig_identity, "nn", 2, ids, 300};
    assert_int_equal(kvs_store_find(s, &k2, &q, &h, NULL), KVS_NO);
    ids[0] = -1;
    k2 = (kvs_store_key){rig_identity, "n", 1, ids, 300};
    assert_int_equal(kvs_store_find(s, &k2, &q, &h, NULL), KVS_NO);
    kvs_store_close(s);
    memfs_free(m);
}

static void test_identity(void **state)
{
    (void)state;
    uint8_t a[32];
    uint8_t b[32];
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    d.model = (kvs_bytes){"ab", 2};
    d.plan = (kvs_bytes){"c", 1};
    assert_int_equal(kvs_identity_digest(&d, a, NULL), KVS_OK);
    d.model = (kvs_bytes){"a", 1};
    d.plan = (kvs_bytes){"bc", 2};
    assert_int_equal(kvs_identity_digest(&d, b, NULL), KVS_OK);
    assert_memory_not_equal(a, b, 32);
    d.salt = (kvs_bytes){NULL, 3};
    assert_int_equal(kvs_identity_digest(&d, b, NULL), KVS_E_INVAL);
}

static void test_limit(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.max_bytes = 30000;
    kvs_store *s = open_on(m, &o);
    for (uint32_t k = 0; k < 40; k++) {
        put(s, k, 1);
        assert_true(stats_of(s).disk_bytes <= 30000);
        assert_int_equal(rig_get(s, 0), k < 41 ? 1 : -1); /* used each time: never the oldest */
    }
    kvs_store_stats st = stats_of(s);
    assert_true(st.evicted > 0 && st.entries > 3);
    /* a pinned entry stays, though it is the oldest */
    kvs_entry e = entry_of(s, 39);
    assert_int_equal(kvs_store_pin(s, e), KVS_OK);
    for (uint32_t k = 0; k < 39; k++) {
        put(s, k, 2);
    }
    assert_int_equal(rig_get(s, 39), 1);
    assert_int_equal(kvs_store_unpin(s, e), KVS_OK);
    /* what is larger than all of it is refused, and nothing is lost for it */
    static uint8_t big[40000];
    kvs_store_key key = {rig_identity, "big", 3, NULL, 0};
    kvs_store_part part = {"x", 0, 0, sizeof big, big, 0, 0, NULL, NULL};
    uint64_t before = stats_of(s).entries;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, NULL, NULL), KVS_E_LIMIT);
    assert_int_equal(stats_of(s).entries, before);
    assert_int_equal(stats_of(s).refused, 1);
    kvs_store_close(s);
    /* a smaller limit holds from the start */
    o.max_bytes = 12000;
    s = open_on(m, &o);
    assert_true(stats_of(s).disk_bytes <= 12000);
    assert_int_equal(kvs_store_limit(s, 6000, NULL), KVS_OK);
    assert_true(stats_of(s).disk_bytes <= 6000);
    assert_int_equal(kvs_store_limit(s, 0, NULL), KVS_OK);
    kvs_store_close(s);
    memfs_free(m);
}

/* A queued save that then fails, be it that all that is there is pinned, is told of once. */
static void test_flush_tells(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.max_bytes = 12000;
    kvs_store *s = open_with(m, &o, 0);
    kvs_entry pinned[16];
    size_t n = 0;
    while (n < 16 && rig_put(s, (uint32_t)n, 1, KVS_PUT_DURABLE, NULL) == KVS_OK) {
        pinned[n] = entry_of(s, (uint32_t)n);
        assert_int_equal(kvs_store_pin(s, pinned[n]), KVS_OK);
        n++;
    }
    assert_in_range(n, 2, 15);
    kvs_status became = KVS_OK;
    assert_int_equal(rig_put_told(s, 0, 2, KVS_PUT_WAIT, &became, NULL), KVS_OK);
    assert_int_equal(kvs_store_flush(s, &err), KVS_E_LIMIT);
    assert_int_equal(became, KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "1 entries were not saved"));
    assert_int_equal(kvs_store_flush(s, &err), KVS_OK);
    assert_int_equal(rig_get(s, 0), 1); /* what was there still is */
    while (n > 0) {
        assert_int_equal(kvs_store_unpin(s, pinned[--n]), KVS_OK);
    }
    assert_int_equal(rig_put(s, 0, 2, KVS_PUT_WAIT, NULL), KVS_OK);
    assert_int_equal(kvs_store_flush(s, &err), KVS_OK);
    assert_int_equal(rig_get(s, 0), 2);
    m->fail_on = true;
    m->calls = 0;
    m->fail_errno = ENOSPC;
    m->fail_at = 0;
    assert_int_equal(rig_put(s, 0, 3, KVS_PUT_WAIT, NULL), KVS_OK);
    assert_int_equal(kvs_store_flush(s, &err), KVS_E_IO);
    m->fail_at = -1;
    assert_non_null(strstr(err.msg, "not saved"));
    assert_int_equal(kvs_store_flush(s, &err), KVS_OK);
    assert_int_equal(rig_get(s, 0), 2);
    kvs_store_close(s);
    memfs_free(m);
}

/* Byte i of part p. */
static uint8_t made_byte(uint32_t p, uint64_t i)
{
    return (uint8_t)((i * 2654435761u >> 9) + p * 77);
}

static void make_bytes(void *user, uint64_t offset, size_t bytes, void *dst)
{
    uint32_t p = *(const uint32_t *)user;
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)dst)[i] = made_byte(p, offset + i);
    }
}

/* Parts that are made while they are written: many windows, chunks that don't divide the part. */
static void test_made_parts(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {9000001, 0, 65536, 5000000};
    static const uint32_t flags[] = {KVS_PUT_DURABLE, KVS_PUT_WAIT, KVS_PUT_WAIT | KVS_PUT_BORROW};
    memfs *m = memfs_new();
    kvs_store *s = open_with(m, NULL, 0);
    uint32_t number[4] = {0, 1, 2, 3};
    kvs_store_part parts[4];
    memset(parts, 0, sizeof parts);
    for (uint32_t p = 0; p < 4; p++) {
        (void)snprintf(parts[p].name, sizeof parts[p].name, "p%u", p);
        parts[p].bytes = sizes[p];
        parts[p].chunk_bytes = p == 0 ? 65536 : p == 3 ? 0 : 4096;
        parts[p].fill = make_bytes;
        parts[p].fill_user = &number[p];
    }
    uint8_t *out = malloc(sizes[0]);
    assert_non_null(out);
    for (int32_t i = 0; i < 3; i++) {
        kvs_store_key key = {rig_identity, "made", 4, &i, 1};
        kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
        kvs_store_hit h = KVS_STORE_HIT_INIT;
        o.flags = flags[i];
        kvs_ctx_stats before = KVS_CTX_STATS_INIT;
        kvs_ctx_stats after = KVS_CTX_STATS_INIT;
        assert_int_equal(kvs_ctx_get_stats(ctx, &before), KVS_OK);
        assert_int_equal(kvs_store_put(s, &key, parts, 4, &o, NULL), KVS_OK);
        assert_int_equal(kvs_store_flush(s, NULL), KVS_OK);
        assert_int_equal(kvs_ctx_get_stats(ctx, &after), KVS_OK);
        if (i == 0) { /* two windows of 2 MiB and a chunk, not the 14 MB of the parts */
            assert_true(after.peak_bytes < before.live_bytes + ((size_t)7 << 20));
        }
        assert_int_equal(kvs_store_find(s, &key, NULL, &h, NULL), KVS_OK);
        for (uint32_t p = 0; p < 4; p++) {
            kvs_store_buf b = {p, 0, sizes[p], out};
            assert_int_equal(kvs_store_get(s, h.entry, &b, 1, NULL), KVS_OK);
            for (uint64_t k = 0; k < sizes[p]; k++) {
                if (out[k] != made_byte(p, k)) {
                    fail_msg("put %d, part %u, byte %llu", i, p, (unsigned long long)k);
                }
            }
        }
        assert_int_equal(kvs_store_unpin(s, h.entry), KVS_OK);
    }
    assert_true(stats_of(s).deduplicated_bytes >= 2 * (sizes[0] + sizes[3]));
    parts[0].data = out;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_store_key key = {rig_identity, "both", 4, NULL, 0};
    assert_int_equal(kvs_store_put(s, &key, parts, 4, NULL, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "data and fill"));
    free(out);
    kvs_store_close(s);
    memfs_free(m);
}

/* Recency survives a restart; a policy sees the stored facts and decides. */
typedef struct by_cost {
    kvs_entry_info seen[64];
    size_t n;
    long uses;
} by_cost;

static void cost_add(void *user, const kvs_entry_info *i)
{
    by_cost *p = user;
    p->seen[p->n++] = *i;
}

static void cost_use(void *user, const kvs_entry_info *i)
{
    (void)i;
    ((by_cost *)user)->uses++;
}

static void cost_drop(void *user, kvs_entry e)
{
    by_cost *p = user;
    size_t i = 0;
    while (i < p->n && p->seen[i].entry != e) {
        i++;
    }
    assert_true(i < p->n);
    p->seen[i] = p->seen[--p->n];
}

static kvs_entry cost_choose(void *user, uint64_t bytes, kvs_evictable_fn evictable,
                             const void *arg)
{
    by_cost *p = user;
    const kvs_entry_info *best = NULL;
    (void)bytes;
    for (size_t i = 0; i < p->n; i++) {
        if (evictable(arg, p->seen[i].entry) && (!best || p->seen[i].cost < best->cost)) {
            best = &p->seen[i];
        }
    }
    return best ? best->entry : 0;
}

static void test_policy(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    for (uint32_t k = 0; k < 20; k++) {
        put(s, k, 0);
    }
    assert_int_equal(rig_get(s, 0), 0);
    assert_int_equal(kvs_store_flush(s, NULL), KVS_OK);
    uint64_t full = stats_of(s).disk_bytes;
    kvs_store_close(s);
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.max_bytes = full / 2;
    s = open_on(m, &o); /* least recently used: 1, 2, ... go, 0 stays */
    assert_int_equal(rig_get(s, 0), 0);
    assert_int_equal(rig_get(s, 19), 0);
    assert_int_equal(rig_get(s, 1), -1);
    kvs_store_close(s);
    by_cost p = {.n = 0};
    kvs_store_policy policy = KVS_STORE_POLICY_INIT;
    policy.user = &p;
    policy.add = cost_add;
    policy.use = cost_use;
    policy.drop = cost_drop;
    policy.choose = cost_choose;
    o.policy = &policy;
    o.max_bytes = 0;
    s = open_on(m, &o);
    assert_int_equal(p.n, stats_of(s).entries);
    assert_int_equal(kvs_store_limit(s, full / 4, NULL), KVS_OK); /* cheapest first: 0 goes */
    assert_int_equal(rig_get(s, 0), -1);
    assert_int_equal(rig_get(s, 19), 0);
    assert_true(p.uses > 0);
    assert_int_equal(p.n, stats_of(s).entries);
    kvs_store_close(s);
    policy.choose = NULL;
    assert_null(open_on(m, &o));
    memfs_free(m);
}

static void test_remove_and_gc(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    for (uint32_t k = 0; k < 20; k++) {
        put(s, k, 0);
    }
    kvs_entry e = entry_of(s, 5);
    assert_int_equal(kvs_store_pin(s, e), KVS_OK);
    assert_int_equal(kvs_store_remove(s, e, NULL), KVS_OK);
    assert_int_equal(kvs_store_remove(s, e, NULL), KVS_E_NOTFOUND);
    assert_int_equal(rig_get(s, 5), -1);
    static uint8_t out[1200];
    kvs_store_buf buf = {1, 0, 605, out}; /* a reader goes on */
    assert_int_equal(kvs_store_gc(s, NULL, NULL), KVS_OK);
    assert_int_equal(kvs_store_get(s, e, &buf, 1, NULL), KVS_OK);
    put(s, 5, 3);
    assert_int_equal(rig_get(s, 5), 3);
    assert_int_equal(kvs_store_unpin(s, e), KVS_OK);
    assert_int_equal(kvs_store_get(s, e, &buf, 1, NULL), KVS_E_NOTFOUND);
    for (uint32_t k = 0; k < 19; k++) {
        assert_int_equal(kvs_store_remove(s, entry_of(s, k), NULL), KVS_OK);
    }
    uint64_t freed = 0;
    assert_int_equal(kvs_store_gc(s, &freed, NULL), KVS_OK);
    kvs_store_stats st = stats_of(s);
    assert_int_equal(st.entries, 1);
    assert_true(st.disk_bytes < st.live_bytes + 2000);
    assert_int_equal(rig_get(s, 19), 0);
    kvs_store_close(s);
    memfs_free(m);
}

/* Opens a copy of the disk in which one file differs; the entry must be a miss and the file aside, or
 * the entry right. */
static void expect_detected(const memfs *m, const char *path, size_t cut, size_t flip,
                            bool is_block)
{
    memfs *d = memfs_new();
    for (int i = 0; i < m->n_names; i++) {
        const memfs_inode *x = &m->inodes[m->names[i].inode];
        int inode = memfs_new_inode(d, x->is_dir, x->mode);
        memfs_link(d, m->names[i].path, inode);
        memfs_put(&d->inodes[inode], x->data, x->n, 0);
        if (strcmp(m->names[i].path, path) == 0) {
            if (flip < 8 * x->n) {
                d->inodes[inode].data[flip / 8] ^= (uint8_t)(1u << flip % 8);
            }
            d->inodes[inode].n = cut < x->n ? cut : x->n;
        }
    }
    kvs_store *s = open_on(d, NULL);
    assert_non_null(s);
    int got = rig_get(s, 1);
    if (got != -1 && got != -3) {
        print_message("%s: cut %zu, bit %zu: answer %d\n", path, cut, flip, got);
    }
    assert_true(got == -1 || got == -3);
    assert_int_equal(rig_get(s, 1), -1);
    kvs_store_stats st = stats_of(s);
    /* another format is recognised by a header that verifies, so a flipped bit never is one */
    assert_int_equal(st.other_format, 0);
    assert_int_equal(st.unreadable, 0);
    if (is_block && got == -3) {
        assert_int_equal(kvs_store_gc(s, NULL, NULL), KVS_OK);
    }
    assert_true(stats_of(s).quarantined >= 1);
    put(s, 1, 2); /* and it can be saved again */
    assert_int_equal(rig_get(s, 1), 2);
    kvs_store_close(s);
    s = open_on(d, NULL);
    assert_int_equal(rig_get(s, 1), 2);
    kvs_store_close(s);
    memfs_free(d);
}

static void test_every_bit_and_length(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    put(s, 1, 1);
    kvs_store_close(s);
    int files = 0;
    for (int i = 0; i < m->n_names; i++) {
        const char *path = m->names[i].path;
        size_t n = m->inodes[m->names[i].inode].n;
        bool is_block = strstr(path, ".kvb") != NULL;
        if (!is_block && !strstr(path, ".kve")) {
            continue;
        }
        files++;
        for (size_t k = 0; k < n; k++) {
            expect_detected(m, path, k, SIZE_MAX, is_block);
        }
        for (size_t k = 0; k < 8 * n; k++) {
            expect_detected(m, path, SIZE_MAX, k, is_block);
        }
    }
    assert_int_equal(files, 2);
    memfs_free(m);
}

/* A damaged or absent file of uses costs the order of eviction and nothing else. */
static void test_uses_are_hints(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    put(s, 1, 1);
    put(s, 2, 1);
    assert_int_equal(rig_get(s, 1), 1);
    kvs_store_close(s);
    int i = memfs_look(m, "d/uses");
    assert_true(i >= 0);
    memfs_inode *x = &m->inodes[m->names[i].inode];
    for (size_t k = 0; k < x->n; k++) {
        x->data[k] ^= 0x40;
        s = open_on(m, NULL);
        assert_int_equal(stats_of(s).entries, 2);
        kvs_store_close(s);
        x = &m->inodes[m->names[memfs_look(m, "d/uses")].inode];
        x->data[k] ^= 0x40;
    }
    memfs_free(m);
}

static void test_other_files(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    put(s, 1, 1);
    put(s, 2, 1);
    kvs_store_close(s);
    /* of a later format: header rewritten so that it verifies */
    for (int i = 0; i < m->n_names; i++) {
        memfs_inode *x = &m->inodes[m->names[i].inode];
        if (strstr(m->names[i].path, ".kve")) {
            kvs__put32(x->data + 8, KVS_FORMAT_CURRENT + 1);
            kvs__sha256_of(x->data, 224, x->data + 224);
            break;
        }
    }
    memfs_link(m, "d/entries/notes.txt", memfs_new_inode(m, false, 0644));
    memfs_link(m, "d/entries/left.kve.tmp", memfs_new_inode(m, false, 0644));
    memfs_link(m, "d/blocks/left.kvb.tmp", memfs_new_inode(m, false, 0644));
    int names = m->n_names;
    s = open_on(m, NULL);
    kvs_store_stats st = stats_of(s);
    assert_int_equal(st.entries, 1);
    assert_int_equal(st.other_format, 1);
    assert_int_equal(st.temporaries, 2);
    assert_int_equal(st.quarantined, 0);
    assert_int_equal(st.gc_blocked, 1);
    assert_int_equal(m->n_names, names - 2);
    /* nothing is reclaimed, for nobody knows what the other file refers to */
    assert_int_equal(kvs_store_gc(s, NULL, NULL), KVS_E_STATE);
    assert_int_equal(kvs_store_limit(s, 10, NULL), KVS_E_LIMIT);
    assert_int_equal(stats_of(s).entries, 1);
    kvs_store_close(s);
    memfs_free(m);
    /* of another identity: kept, counted, never served, never evicted */
    m = memfs_new();
    s = open_on(m, NULL);
    put(s, 1, 1);
    kvs_store_close(s);
    uint8_t other[32] = {7};
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    o.identity = other;
    o.max_bytes = 100;
    s = open_on(m, &o);
    assert_int_equal(stats_of(s).foreign, 1);
    assert_int_equal(stats_of(s).entries, 0);
    assert_int_equal(rig_get(s, 1), -1);
    kvs_store_close(s);
    s = open_on(m, NULL);
    assert_int_equal(rig_get(s, 1), 1);
    kvs_store_close(s);
    memfs_free(m);
}

static void test_transient_errors(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    put(s, 1, 1);
    put(s, 2, 2);
    /* reads fail: a miss with a reason, nothing set aside, and back when it works again */
    m->fail_reads_only = true;
    m->fail_on = true;
    m->calls = 0;
    m->fail_at = 0;
    m->fail_errno = EMFILE;
    assert_int_equal(rig_get(s, 1), -3);
    kvs_store_stats st = stats_of(s);
    assert_true(strlen(st.reason) > 0 && st.read_failed == 1 && st.quarantined == 0);
    m->fail_at = -1;
    assert_int_equal(rig_get(s, 1), 1);
    /* writes fail: reported, and what is there stays */
    m->fail_reads_only = false;
    m->calls = 0;
    m->fail_at = 0;
    m->fail_errno = ENOSPC;
    assert_int_equal(rig_put(s, 1, 3, KVS_PUT_DURABLE, NULL), KVS_E_IO);
    assert_true(stats_of(s).failed == 1 && stats_of(s).retried == 3);
    assert_int_equal(kvs_store_flush(s, NULL), KVS_OK); /* the caller has been told */
    m->fail_at = -1;
    assert_int_equal(rig_get(s, 1), 1);
    kvs_store_close(s);
    /* unreadable at open: skipped, not set aside, nothing reclaimed */
    m->fail_reads_only = true;
    m->fail_on = false;
    int found = 0;
    for (long k = 0; k < 40; k++) {
        m->calls = 0;
        m->fail_at = k;
        m->fail_errno = EIO;
        s = open_on(m, NULL);
        m->fail_at = -1;
        if (s) {
            st = stats_of(s);
            assert_int_equal(st.quarantined, 0);
            found += st.unreadable > 0;
            kvs_store_close(s);
        }
        s = open_on(m, NULL);
        assert_int_equal(rig_get(s, 1), 1);
        assert_int_equal(rig_get(s, 2), 2);
        kvs_store_close(s);
    }
    assert_true(found > 3);
    memfs_free(m);
}

static void test_export(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    for (uint32_t k = 0; k < 12; k++) {
        put(s, k, k);
    }
    memfs *n = memfs_new();
    kvs_store *t = open_on(n, NULL);
    for (uint32_t k = 0; k < 12; k++) {
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_entry e = 0;
        assert_int_equal(kvs_store_export(s, entry_of(s, k), "one", &err), KVS_OK);
        memfs_inode *x = &m->inodes[m->names[memfs_look(m, "./one")].inode];
        int inode = memfs_new_inode(n, false, 0600);
        memfs_link(n, "in", inode);
        memfs_put(&n->inodes[inode], x->data, x->n, 0);
        if (k == 1) { /* every bit counts here too */
            for (size_t bit = 0; bit < 8 * x->n; bit++) {
                n->inodes[inode].data[bit / 8] ^= (uint8_t)(1u << bit % 8);
                kvs_status st = kvs_store_import(t, "in", &e, &err);
                assert_true(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED);
                n->inodes[inode].data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            for (size_t cut = 0; cut < x->n; cut++) {
                n->inodes[inode].n = cut;
                assert_int_equal(kvs_store_import(t, "in", &e, &err), KVS_E_FORMAT);
            }
            n->inodes[inode].n = x->n;
        }
        assert_int_equal(kvs_store_import(t, "in", &e, &err), KVS_OK);
        assert_int_equal(rig_get(t, k), k);
        assert_true(e == entry_of(t, k));
    }
    kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
    assert_int_equal(kvs_store_verify(t, &r, NULL), KVS_OK);
    assert_true(r.entries == 12 && r.blocks > 20 && r.bad_blocks == 0);
    kvs_store_close(s);
    kvs_store_close(t);
    memfs_free(m);
    memfs_free(n);
}

static void test_arguments(void **state)
{
    (void)state;
    memfs *m = memfs_new();
    kvs_store *s = open_on(m, NULL);
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_store_key key = {rig_identity, "", 0, NULL, 0};
    kvs_store_part part = {"k", 0, 0, 4, NULL, 0, 0, NULL, NULL};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_E_INVAL);
    part.data = "abc";
    memset(part.name, 'x', sizeof part.name);
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_E_INVAL);
    part.name[1] = 0;
    part.chunk_bytes = KVS_STORE_CHUNK_MAX + 1;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_E_RANGE);
    part.chunk_bytes = 3;
    o.kind = 32;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_E_RANGE);
    o.kind = 31;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_OK);
    key.n_ids = 3;
    assert_int_equal(kvs_store_put(s, &key, &part, 1, &o, &err), KVS_E_INVAL);
    assert_int_equal(kvs_store_put(NULL, &key, &part, 1, &o, &err), KVS_E_INVAL);
    kvs_store_query q = KVS_STORE_QUERY_INIT;
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    q.mode = 3;
    key.n_ids = 0;
    assert_int_equal(kvs_store_find(s, &key, &q, &h, &err), KVS_E_INVAL);
    q.mode = 0;
    assert_int_equal(kvs_store_find(s, &key, &q, &h, &err), KVS_OK); /* a named object */
    kvs_entry cursor = 0;
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    assert_int_equal(kvs_store_list(s, &cursor, &info), KVS_OK);
    assert_true(cursor == h.entry && info.kind == 31 && info.bytes == 4);
    assert_int_equal(kvs_store_list(s, &cursor, &info), KVS_NO);
    assert_int_equal(kvs_store_pin(s, 12345), KVS_E_NOTFOUND);
    assert_int_equal(kvs_store_entry_info(s, 0, &info), KVS_E_NOTFOUND);
    kvs_store_close(s);
    kvs_store_close(NULL);
    memfs_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_find),
        cmocka_unit_test(test_shared_blocks),
        cmocka_unit_test(test_find_modes),
        cmocka_unit_test(test_identity),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_flush_tells),
        cmocka_unit_test(test_made_parts),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_remove_and_gc),
        cmocka_unit_test(test_every_bit_and_length),
        cmocka_unit_test(test_uses_are_hints),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_transient_errors),
        cmocka_unit_test(test_export),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, start, end);
}
