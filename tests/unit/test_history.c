/* SPDX-License-Identifier: MIT */
/* test_history.c: a cache as parts of an entry and back (store/history.h), with layers of keys and
 * values, centred ones, and recurrent ones: the bytes against docs/format.md, read here by a reader of
 * its own; tables of version 1, and tables that are refused; snapshots and their budget; allocations
 * that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "store/history_priv.h"
#include "support/cache_rig.h"
#include "support/fail_alloc.h"
#include "support/hybrid_rig.h"
#include "support/memfs.h"

/* store/kvstore.h, which has a name of the kernels' too */
kvs_status kvs__store_open_vfs(kvs_ctx *ctx, kvs__vfs *v, const char *dir,
                               const kvs_store_opts *opts, kvs_store **out, kvs_err *err);

/* What a snapshot takes, with the digests of its two parts. */
#define SNAPSHOT kvs__lent_bytes(HYBRID_DELTA + HYBRID_SSD, 2)

/* ---- rig */

typedef struct rig {
    kvs_ctx *ctx;
    kvs_cache *c;
    kvs__history *h;
    memfs *m;
    kvs_store *s;
} rig;

static kvs_cache *make_cache(kvs_ctx *ctx, const char *k, uint32_t window, uint32_t undo)
{
    kvs_layer_spec l[HYBRID_LAYERS];
    kvs_recurrent_spec r[2];
    hybrid_specs(l, r, k, window, undo);
    return rig_cache(ctx, l, HYBRID_LAYERS, 0);
}

static void rig_make(rig *r, kvs_ctx *ctx, const char *k, uint32_t window, uint32_t undo,
                     size_t note_bytes)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    r->ctx = ctx;
    r->c = make_cache(ctx, k, window, undo);
    rig_must(kvs__history_new(ctx, r->c, note_bytes, &r->h, NULL));
    r->m = memfs_new();
    memfs_link(r->m, ".", memfs_new_inode(r->m, true, 0700));
    o.flags = KVS_STORE_NO_THREADS;
    rig_must(kvs__store_open_vfs(ctx, &r->m->v, "d", &o, &r->s, NULL));
}

static void rig_free(rig *r)
{
    kvs__history_free(r->h);
    kvs_store_close(r->s);
    memfs_free(r->m);
    kvs_cache_free(r->c);
    kvs_ctx_free(r->ctx);
}

static void grow(rig *r, int64_t end, uint64_t text)
{
    for (int64_t p = kvs_cache_length(r->c, 0); p < end; p++) {
        kvs__history_note(r->h, 1);
        rig_must(rig_append(r->c, 0, 1, text, NULL));
        rig_must(rig_append(r->c, 1, 1, text + 10, NULL));
        hybrid_advance(r->c, 2, p, text);
        hybrid_advance(r->c, 3, p, text);
        kvs__history_note(r->h, 0);
    }
}

/* Planes at `pos` of a cache that stopped there. */
static void planes_at(uint32_t layer, int64_t pos, uint64_t text, unsigned char *dst)
{
    rig r;
    rig_make(&r, rig_ctx(1, 0), "f32", 0, 0, 0);
    grow(&r, pos, text);
    hybrid_planes(r.c, layer, pos, dst);
    rig_free(&r);
}

/* ---- entries */

static kvs_entry put(rig *r, const kvs_store_part *parts, size_t n)
{
    static const uint8_t identity[32] = {1};
    static int32_t id = 1;
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    kvs_store_hit hit = KVS_STORE_HIT_INIT;
    id++;
    const kvs_store_key key = {identity, "", 0, &id, 1};
    o.flags = KVS_PUT_DURABLE;
    rig_must(kvs_store_put(r->s, &key, parts, n, &o, NULL));
    rig_must(kvs_store_find(r->s, &key, NULL, &hit, NULL)); /* pinned */
    return hit.entry;
}

/* A cache of its own with what is saved of r's. */
static kvs_entry save(rig *r)
{
    kvs__saved saved;
    rig_must(kvs__history_copy(r->h, 0, &saved, NULL));
    kvs_entry e = put(r, saved.parts, saved.n_parts);
    kvs__saved_free(&saved);
    return e;
}

typedef struct other {
    kvs_cache *c;
    kvs__history *h;
} other;

static other other_of(const rig *r, const char *k, uint32_t window)
{
    other o;
    o.c = make_cache(r->ctx, k, window, 0);
    rig_must(kvs__history_new(r->ctx, o.c, 1 << 20, &o.h, NULL));
    return o;
}

static void other_free(other *o)
{
    kvs__history_free(o->h);
    kvs_cache_free(o->c);
}

/* Every byte of the parts, against the specification. */
static void test_bytes(void **state)
{
    (void)state;
    const int64_t len = 300;
    rig r;
    rig_make(&r, rig_ctx(1, 0), "c4:32/f32", 0, 0, 1 << 20);
    kvs__history_mark(r.h, 290);
    grow(&r, len, 1);
    kvs__saved saved;
    rig_must(kvs__history_copy(r.h, 0, &saved, NULL));
    const unsigned char *t = saved.parts[0].data;
    assert_memory_equal(t, "KVSSTATE", 8);
    assert_int_equal(le(t + 8, 4), 2);
    assert_int_equal(le(t + 12, 4), 256);
    assert_int_equal(le(t + 16, 8), len);
    assert_int_equal(le(t + 24, 4), HYBRID_LAYERS);
    static const struct {
        uint32_t layer, form;
        int64_t end;
        size_t bytes;
    } want[] = {{0, 0, 300, 300 * (64 + 32)},
                /* codes, scales, biases, V; centres of 4 groups, then of 1 */
                {1, 0, 300, 2 * (300 * (16 + 4 + 4 + 64) + 5 * HYBRID_DIM * 4)},
                {2, 2, 256, HYBRID_DELTA},
                {2, 2, 290, HYBRID_DELTA},
                {2, 2, 300, HYBRID_DELTA},
                {3, 2, 256, HYBRID_SSD},
                {3, 2, 290, HYBRID_SSD},
                {3, 2, 300, HYBRID_SSD}};
    assert_int_equal(le(t + 28, 4), KVS_COUNT(want));
    assert_int_equal(saved.n_parts, KVS_COUNT(want) + 1);
    for (size_t i = 0; i < KVS_COUNT(want); i++) {
        const unsigned char *run = t + 32 + 32 * i;
        const kvs_store_part *part = &saved.parts[i + 1];
        assert_int_equal(le(run, 4), want[i].layer);
        assert_int_equal(le(run + 4, 4), want[i].form);
        assert_int_equal(le(run + 8, 8), 0);
        assert_int_equal(le(run + 16, 8), want[i].end);
        assert_int_equal(le(run + 24, 4), i + 1);
        assert_int_equal(le(run + 28, 4), 0);
        assert_int_equal(part->bytes, want[i].bytes);
        assert_string_equal(part->name, want[i].form == 2 ? "recurrent" : "kv");
        if (want[i].form == 2) {
            _Alignas(8) unsigned char planes[HYBRID_DELTA];
            planes_at(want[i].layer, want[i].end, 1, planes);
            assert_memory_equal(planes, part->data, part->bytes);
        }
    }
    /* what keeps all is not copied, snapshots are lent */
    assert_int_equal(saved.data_bytes, HYBRID_DELTA + HYBRID_SSD + 32 + 32 * KVS_COUNT(want));
    /* layer 1: the centres of a block end it; the second block is of 44 positions, one group */
    unsigned char kv[2 * (300 * (16 + 4 + 4 + 64) + 5 * HYBRID_DIM * 4)];
    float center[5][2][HYBRID_DIM];
    const kvs_store_part *made = &saved.parts[2];
    assert_null(
        made->data); /* the layer is pinned: it reads the same when the cache went on otherwise */
    for (int64_t g = 0; g < 5; g++) {
        kvs_planes p = KVS_PLANES_INIT;
        p.k_center = center[g];
        rig_must(kvs_cache_export(r.c, 1, g * 64, 1, &p, NULL));
    }
    rig_must(kvs__history_back(r.h, 290, NULL));
    grow(&r, 340, 2);
    memset(kv, 0xa5, sizeof kv);
    for (size_t at = 0; at < sizeof kv; at += made->chunk_bytes) {
        size_t n = sizeof kv - at < made->chunk_bytes ? sizeof kv - at : made->chunk_bytes;
        made->fill(made->fill_user, at, n, kv + at);
    }
    const size_t first = 2 * (256 * (16 + 4 + 4 + 64));
    for (size_t g = 0; g < 5; g++) {
        for (size_t h = 0; h < 2; h++) {
            size_t at = g < 4 ? first + (h * 4 + g) * HYBRID_DIM * 4
                              : want[1].bytes - 2 * (size_t)HYBRID_DIM * 4 + h * HYBRID_DIM * 4;
            assert_memory_equal(kv + at, center[g][h], sizeof center[g][h]);
        }
    }
    kvs__saved_free(&saved);
    rig_free(&r);
}

/* ---- old tables, made by hand */

typedef struct table {
    unsigned char bytes[32 + 32 * 8];
    uint32_t n;
    size_t part[8];
} table;

static table table_of(uint32_t version, uint64_t len)
{
    table t;
    memset(&t, 0, sizeof t);
    memcpy(t.bytes, "KVSSTATE", 8);
    put_le(t.bytes + 8, version, 4);
    put_le(t.bytes + 12, 256, 4);
    put_le(t.bytes + 16, len, 8);
    put_le(t.bytes + 24, HYBRID_LAYERS, 4);
    return t;
}

static void add(table *t, uint32_t layer, uint32_t form, int64_t lo, int64_t hi, size_t bytes)
{
    unsigned char *run = t->bytes + 32 + 32 * (size_t)t->n;
    put_le(run, layer, 4);
    put_le(run + 4, form, 4);
    put_le(run + 8, (uint64_t)lo, 8);
    put_le(run + 16, (uint64_t)hi, 8);
    put_le(run + 24, t->n + 1, 4);
    t->part[t->n++] = bytes;
    put_le(t->bytes + 28, t->n, 4);
}

static kvs_entry put_table(rig *r, const table *t, unsigned fill)
{
    static unsigned char data[1 << 16];
    kvs_store_part parts[9];
    memset(data, (int)fill, sizeof data);
    parts[0] = (kvs_store_part){"state", 0, -1, 32 + 32 * (size_t)t->n, t->bytes, 0, 0, NULL, NULL};
    for (uint32_t i = 0; i < t->n; i++) {
        parts[i + 1] = (kvs_store_part){"kv", 0, 0, t->part[i], data, 0, 0, NULL, NULL};
    }
    return put(r, parts, t->n + 1);
}

/* Restores `want` tokens; the status of it, which is that of the probe. */
static kvs_status try_table(rig *r, const table *t, uint64_t want, uint64_t *n, kvs_err *err)
{
    kvs_entry e = put_table(r, t, 0);
    other o = other_of(r, "q4:32", 0);
    uint64_t probed = want;
    *n = want;
    kvs_status a = kvs__history_probe(o.h, r->s, e, &probed, err);
    kvs_status b = kvs__history_restore(o.h, r->s, e, n, err);
    assert_int_equal(a, b);
    if (a == KVS_OK) {
        assert_int_equal(*n, probed);
        for (uint32_t i = 0; i < HYBRID_LAYERS; i++) {
            assert_int_equal(kvs_cache_length(o.c, i), probed);
        }
    } else {
        rig_must(kvs_store_unpin(r->s, e));
    }
    other_free(&o);
    return a;
}

#define KV0(n) ((size_t)(n) * (64 + 32))
#define KV1(n) ((size_t)(n)*2 * (16 + 2 + 2 + 64))

static table good(uint32_t version)
{
    table t = table_of(version, 100);
    add(&t, 0, 0, 0, 100, KV0(100));
    add(&t, 1, 0, 0, 100, KV1(100));
    add(&t, 2, 2, 0, 40, HYBRID_DELTA);
    add(&t, 2, 2, 0, 100, HYBRID_DELTA);
    add(&t, 3, 2, 0, 40, HYBRID_SSD);
    add(&t, 3, 2, 0, 100, HYBRID_SSD);
    return t;
}

static void test_tables(void **state)
{
    (void)state;
    rig r;
    kvs_err err = KVS_ERR_INIT;
    uint64_t n = 0;
    rig_make(&r, rig_ctx(1, 0), "q4:32", 0, 0, 1 << 20);
    table t = good(2);
    assert_int_equal(try_table(&r, &t, 200, &n, &err), KVS_OK);
    assert_int_equal(n, 100);
    assert_int_equal(try_table(&r, &t, 99, &n, &err), KVS_OK);
    assert_int_equal(n, 40);
    assert_int_equal(try_table(&r, &t, 40, &n, &err), KVS_OK);
    assert_int_equal(n, 40);
    assert_int_equal(try_table(&r, &t, 39, &n, &err), KVS_NO);
    assert_non_null(strstr(err.msg, "recurrent"));
    t = good(2); /* the layers' snapshots differ: the greatest that both have */
    put_le(t.bytes + 32 + 32 * 5 + 16, 90, 8);
    assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_OK);
    assert_int_equal(n, 40);
    t = table_of(2, 300); /* and notes take none that only one of them has */
    add(&t, 0, 0, 0, 300, KV0(300));
    add(&t, 1, 0, 0, 300, KV1(300));
    add(&t, 2, 2, 0, 256, HYBRID_DELTA);
    add(&t, 2, 2, 0, 300, HYBRID_DELTA);
    add(&t, 3, 2, 0, 250, HYBRID_SSD);
    add(&t, 3, 2, 0, 300, HYBRID_SSD);
    other o = other_of(&r, "q4:32", 0);
    kvs_entry e = put_table(&r, &t, 0);
    kvs__saved saved;
    n = 300;
    rig_must(kvs__history_restore(o.h, r.s, e, &n, NULL));
    rig_must(kvs__history_copy(o.h, 0, &saved, NULL));
    assert_int_equal(saved.n_parts, 1 + 4);
    assert_int_equal(kvs__history_reach(o.h, 299), 0);
    kvs__saved_free(&saved);
    other_free(&o);
    t = good(2); /* one has none at all */
    put_le(t.bytes + 28, 4, 4);
    t.n = 4;
    assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_NO);
    t = good(1); /* version 1 knows no such form, version 3 is not known */
    assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_E_FORMAT);
    assert_non_null(strstr(err.msg, "run 2"));
    t = good(3);
    assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_E_FORMAT);
    assert_non_null(strstr(err.msg, "version 3"));
    t = good(0);
    assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_E_FORMAT);
    static const struct {
        size_t run, field, bytes;
        uint64_t value;
    } bad[] = {
        {2, 4, 4, 0},    {2, 4, 4, 1},  {2, 4, 4, 3},   {0, 4, 4, 2},
        {2, 8, 8, 1},    {2, 16, 8, 0}, {3, 16, 8, 40}, {3, 16, 8, 30},
        {3, 16, 8, 101}, {2, 0, 4, 1},  {2, 0, 4, 4},   {4, 0, 4, 2},
        {2, 28, 4, 1},   {2, 24, 4, 0}, {2, 24, 4, 99}, {2, 16, 8, UINT64_MAX},
    };
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        t = good(2);
        put_le(t.bytes + 32 + 32 * bad[i].run + bad[i].field, bad[i].value, bad[i].bytes);
        if (try_table(&r, &t, 100, &n, &err) != KVS_E_FORMAT) {
            fail_msg("case %zu is not refused", i);
        }
    }
    for (int i = 0; i < 6; i++) { /* parts too long and too short */
        t = good(2);
        t.part[i] += i % 2 ? 8 : (size_t)-8;
        assert_int_equal(try_table(&r, &t, 100, &n, &err), KVS_E_FORMAT);
    }
    rig_free(&r);
}

/* What version 1 holds is written and read as before. */
static void test_version_1(void **state)
{
    (void)state;
    kvs_layer_spec l[2] = {rig_spec(1, 16, 16, "f32", "f16"),
                           rig_spec(2, HYBRID_DIM, HYBRID_DIM, "q4:32", "f16")};
    rig r;
    kvs__saved saved;
    rig_make(&r, rig_ctx(1, 0), "q4:32", 0, 0, 0);
    kvs_cache *a = rig_cache(r.ctx, l, 2, 0);
    kvs_cache *b = rig_cache(r.ctx, l, 2, 0);
    kvs__history *ha = NULL;
    kvs__history *hb = NULL;
    rig_must(kvs__history_new(r.ctx, a, 0, &ha, NULL));
    rig_must(kvs__history_new(r.ctx, b, 0, &hb, NULL));
    rig_fill(a, 0, 100, 30, 1);
    rig_fill(a, 1, 100, 30, 2);
    rig_must(kvs__history_copy(ha, 0, &saved, NULL));
    table t = table_of(1, 100);
    put_le(t.bytes + 24, 2, 4);
    add(&t, 0, 0, 0, 100, KV0(100));
    add(&t, 1, 0, 0, 100, KV1(100));
    assert_int_equal(saved.parts[0].bytes, 32 + 2 * 32);
    assert_memory_equal(saved.parts[0].data, t.bytes, 32 + 2 * 32);
    uint64_t n = 100;
    kvs_entry e = put(&r, saved.parts, saved.n_parts);
    rig_must(kvs__history_restore(hb, r.s, e, &n, NULL));
    for (uint32_t i = 0; i < 2; i++) {
        size_t nx = 0;
        void *x = rig_export(a, i, 0, 100, &nx);
        void *y = rig_export(b, i, 0, 100, &nx);
        assert_memory_equal(x, y, nx);
        free(x);
        free(y);
    }
    kvs__saved_free(&saved);
    kvs__history_free(ha);
    kvs__history_free(hb);
    kvs_cache_free(a);
    kvs_cache_free(b);
    rig_free(&r);
}

/* Centred keys alone make it version 2; runs begin and end anywhere in a group. */
static void test_version_2(void **state)
{
    (void)state;
    kvs_layer_spec l = rig_spec(1, HYBRID_DIM, HYBRID_DIM, "c4:32/f32", "f16");
    rig r;
    rig_make(&r, rig_ctx(1, 0), "q4:32", 0, 0, 0);
    kvs_cache *a = rig_cache(r.ctx, &l, 1, 0);
    kvs_cache *b = rig_cache(r.ctx, &l, 1, 0);
    kvs__history *h = NULL;
    kvs__saved saved;
    rig_must(kvs__history_new(r.ctx, a, 0, &h, NULL));
    rig_fill(a, 0, 100, 30, 1);
    rig_must(kvs__history_copy(h, 0, &saved, NULL));
    assert_int_equal(le((const char *)saved.parts[0].data + 8, 4), 2);
    kvs__saved_free(&saved);
    kvs__history_free(h);
    static unsigned char data[2][1 << 13];
    const size_t row = 16 + 4 + 4 + 64;
    const int64_t ends[] = {0, 50, 100};
    const size_t groups[] = {1, 2};
    table t = table_of(2, 100);
    put_le(t.bytes + 24, 1, 4);
    kvs_store_part parts[3] = {{"state", 0, -1, 32 + 2 * 32, t.bytes, 0, 0, NULL, NULL}};
    for (int i = 0; i < 2; i++) { /* by plane, as an export has them; the centres last */
        kvs_planes p = KVS_PLANES_INIT;
        p.k[0] = data[i];
        p.k[1] = data[i] + 50 * 16;
        p.k[2] = data[i] + 50 * 20;
        p.v[0] = data[i] + 50 * 24;
        p.k_center = data[i] + 50 * row;
        rig_must(kvs_cache_export(a, 0, ends[i], 50, &p, NULL));
        const size_t bytes = 50 * row + groups[i] * HYBRID_DIM * 4;
        add(&t, 0, 0, ends[i], ends[i + 1], bytes);
        parts[i + 1] = (kvs_store_part){"kv", 0, 0, bytes, data[i], 0, 0, NULL, NULL};
    }
    uint64_t n = 100;
    kvs_entry e = put(&r, parts, 3);
    rig_must(kvs__history_new(r.ctx, b, 0, &h, NULL));
    rig_must(kvs__history_restore(h, r.s, e, &n, NULL));
    assert_int_equal(n, 100);
    size_t bytes = 0;
    void *x = rig_export(a, 0, 0, 100, &bytes);
    void *y = rig_export(b, 0, 0, 100, &bytes);
    assert_memory_equal(x, y, bytes);
    free(x);
    free(y);
    kvs__history_free(h);
    kvs_cache_free(a);
    kvs_cache_free(b);
    rig_free(&r);
}

/* Two runs of one group of centred keys that do not agree about its centre. */
static void test_two_centers(void **state)
{
    (void)state;
    kvs_layer_spec l = rig_spec(1, HYBRID_DIM, HYBRID_DIM, "c4:32/f32", "f16");
    rig r;
    rig_make(&r, rig_ctx(1, 0), "q4:32", 0, 0, 0);
    for (int differ = 0; differ < 2; differ++) {
        kvs_cache *c = rig_cache(r.ctx, &l, 1, 0);
        kvs__history *h = NULL;
        kvs_err err = KVS_ERR_INIT;
        static unsigned char data[2][1 << 13];
        const size_t bytes = (size_t)20 * (16 + 4 + 4 + 64) + HYBRID_DIM * 4;
        rig_must(kvs__history_new(r.ctx, c, 0, &h, NULL));
        table t = table_of(2, 40);
        put_le(t.bytes + 24, 1, 4);
        add(&t, 0, 0, 0, 20, bytes);
        add(&t, 0, 0, 20, 40, bytes);
        memset(data, 0, sizeof data);
        data[1][bytes - 5] = (unsigned char)differ;
        kvs_store_part parts[3] = {{"state", 0, -1, 32 + 2 * 32, t.bytes, 0, 0, NULL, NULL},
                                   {"kv", 0, 0, bytes, data[0], 0, 0, NULL, NULL},
                                   {"kv", 0, 0, bytes, data[1], 0, 0, NULL, NULL}};
        uint64_t n = 40;
        kvs_entry e = put(&r, parts, 3);
        kvs_status st = kvs__history_restore(h, r.s, e, &n, &err);
        if (differ) {
            assert_int_equal(st, KVS_E_FORMAT);
            assert_non_null(strstr(err.msg, "two centres"));
            rig_must(kvs_store_unpin(r.s, e));
        } else {
            assert_int_equal(st, KVS_OK);
        }
        kvs__history_free(h);
        kvs_cache_free(c);
    }
    rig_free(&r);
}

/* ---- going there and back */

static void test_restore(void **state)
{
    (void)state;
    static const char *const codecs[] = {"f16", "c4:32", "c3:32/f32"};
    for (size_t k = 0; k < 3; k++) {
        for (uint32_t window = 0; window <= 70; window += 35) {
            rig r;
            rig_make(&r, rig_ctx(1, 0), codecs[k], window, 0, 1 << 20);
            kvs__history_mark(r.h, 590);
            grow(&r, 600, 1);
            kvs_entry e = save(&r);
            const int64_t at[] = {256, 300, 512, 589, 590, 599, 600, 700};
            const int64_t got[] = {256, 256, 512, 512, 590, 590, 600, 600};
            for (size_t i = 0; i < KVS_COUNT(at); i++) {
                other o = other_of(&r, codecs[k], window);
                uint64_t n = (uint64_t)at[i];
                rig_must(kvs_store_pin(r.s, e));
                rig_must(kvs__history_restore(o.h, r.s, e, &n, NULL));
                assert_int_equal(n, got[i]);
                /* where it can go from here: to what it holds alone, and it says so */
                assert_int_equal(kvs__history_reach(o.h, n), n);
                assert_int_equal(kvs__history_reach(o.h, n - 1), 0);
                assert_int_equal(kvs_cache_can_rewind(o.c, KVS_ALL_LAYERS, 1), KVS_NO);
                rig t = {r.ctx, o.c, o.h, NULL, NULL};
                grow(&t, 650, 1);
                rig cold;
                rig_make(&cold, rig_ctx(1, 0), codecs[k], window, 0, 0);
                grow(&cold, 650, 1);
                hybrid_same(o.c, cold.c);
                /* and it goes back in memory as the first one would: 512 was passed or came along */
                kvs__saved saved;
                rig_must(kvs__history_copy(o.h, 0, &saved, NULL));
                kvs__saved_free(&saved);
                assert_int_equal(kvs__history_reach(o.h, 640), 512);
                rig_must(kvs__history_back(o.h, 512, NULL));
                grow(&t, 640, 2);
                rig_free(&cold);
                rig_make(&cold, rig_ctx(1, 0), codecs[k], window, 0, 0);
                grow(&cold, 512, 1);
                grow(&cold, 640, 2);
                hybrid_same(o.c, cold.c);
                rig_free(&cold);
                other_free(&o);
            }
            rig_must(kvs_store_unpin(r.s, e));
            rig_free(&r);
        }
    }
}

/* No byte for notes: a window is saved from where it happens to begin. */
static void test_no_notes(void **state)
{
    (void)state;
    for (int64_t end = 590; end < 602; end++) {
        rig r;
        rig cold;
        uint64_t n = 1000;
        rig_make(&r, rig_ctx(1, 0), "c4:32", 70, 0, 0);
        grow(&r, end, 1);
        kvs_entry e = save(&r);
        other o = other_of(&r, "c4:32", 70);
        rig_must(kvs__history_restore(o.h, r.s, e, &n, NULL));
        assert_int_equal(n, end);
        rig t = {r.ctx, o.c, o.h, NULL, NULL};
        grow(&t, end + 70, 1);
        rig_make(&cold, rig_ctx(1, 0), "c4:32", 70, 0, 0);
        grow(&cold, end + 70, 1);
        hybrid_same(o.c, cold.c);
        rig_free(&cold);
        other_free(&o);
        rig_free(&r);
    }
}

/* Snapshots where undo reaches back need no stop, and are the same; those of other text go. */
static void test_marks(void **state)
{
    (void)state;
    for (uint32_t undo = 0; undo <= 20; undo += 10) {
        rig r;
        rig_make(&r, rig_ctx(1, 0), "f16", 0, undo, 1 << 20);
        kvs__history_mark(r.h, 100);
        assert_int_equal(kvs__history_step(r.h, 0, 512), 100);
        assert_int_equal(kvs__history_step(r.h, 0, 105), undo < 5 ? 100 : 105);
        assert_int_equal(kvs__history_step(r.h, 0, 120), undo < 20 ? 100 : 120);
        assert_int_equal(kvs__history_step(r.h, 0, 100 + undo), 100 + undo);
        assert_int_equal(kvs__history_step(r.h, 0, 101 + undo), 100);
        assert_int_equal(kvs__history_step(r.h, 100, 512), 156);
        assert_int_equal(kvs__history_step(r.h, 256, 100), 100);
        assert_int_equal(kvs__history_step(r.h, 4096, 4096), 512);
        grow(&r, 105, 1);
        kvs__history_mark(r.h, 97); /* passed already: undo has it, or it is too late */
        kvs__history_note(r.h, 0);
        assert_int_equal(kvs__history_reach(r.h, 97), undo >= 10 ? 97 : 0);
        kvs__history_mark(r.h, 96); /* kept by a layer, perhaps */
        kvs__history_note(r.h, 0);
        if (undo >= 10) {
            _Alignas(8) unsigned char x[HYBRID_DELTA];
            planes_at(2, 96, 1, x);
            assert_non_null(kvs__hrec_find(r.h, 96));
            assert_memory_equal(kvs__hrec_find(r.h, 96)->lent->data, x, sizeof x);
        }
        grow(&r, 400, 1);
        assert_int_equal(kvs__history_reach(r.h, 99), undo >= 10 ? 97 : 0);
        assert_int_equal(kvs__history_reach(r.h, 120), 100);
        assert_int_equal(kvs__history_reach(r.h, 399), undo ? 399 : 256);
        rig_must(kvs__history_back(r.h, 100, NULL));
        assert_int_equal(kvs__history_reach(r.h, 400), 100);
        for (uint32_t i = 2; i < HYBRID_LAYERS; i++) {
            _Alignas(8) unsigned char x[HYBRID_DELTA];
            _Alignas(8) unsigned char y[HYBRID_DELTA];
            hybrid_planes(r.c, i, 100, x);
            planes_at(i, 100, 1, y);
            assert_memory_equal(x, y, sizeof x);
        }
        grow(&r, 300, 2); /* 256 of the other text is this one's now */
        kvs_entry e = save(&r);
        other o = other_of(&r, "f16", 0);
        uint64_t n = 299;
        rig_must(kvs__history_restore(o.h, r.s, e, &n, NULL));
        assert_int_equal(n, 256);
        rig cold;
        rig_make(&cold, rig_ctx(1, 0), "f16", 0, 0, 0);
        grow(&cold, 100, 1);
        grow(&cold, 256, 2);
        hybrid_same(o.c, cold.c);
        rig_free(&cold);
        other_free(&o);
        rig_free(&r);
    }
}

/* Nothing of a round that is open; windows beside marks. */
static void test_open(void **state)
{
    (void)state;
    rig r;
    rig_make(&r, rig_ctx(1, 0), "f16", 0, 0, 1 << 20);
    grow(&r, 100, 1);
    kvs__history_mark(r.h, 100);
    r.c->open = true;
    kvs__history_note(r.h, 0);
    assert_int_equal(kvs__history_bytes(r.h), 0);
    r.c->open = false;
    kvs__history_note(r.h, 0);
    assert_int_equal(kvs__history_bytes(r.h), SNAPSHOT);
    rig_free(&r);
    rig_make(&r, rig_ctx(1, 0), "f16", 70, 0, 1 << 24); /* the window before a mark is kept, too */
    kvs__history_mark(r.h, 4200);
    grow(&r, 5600, 1);
    assert_int_equal(kvs__history_reach(r.h, 4300), 4200);
    rig_free(&r);
}

/* n snapshots fit: checkpoints go first, then the oldest marks, and never is there one too many. */
static void test_budget(void **state)
{
    (void)state;
    const size_t one = SNAPSHOT;
    for (size_t fit = 0; fit <= 8; fit++) {
        rig r;
        rig_make(&r, rig_ctx(1, 0), "f16", 0, 0, fit * one + 7);
        for (int64_t p = 1; p <= 1500; p++) {
            if (p == 700 || p == 1450) {
                kvs__history_mark(r.h, (uint64_t)p + 5);
            }
            grow(&r, p, 1);
            assert_true(kvs__history_bytes(r.h) <= fit * one);
            assert_int_equal(kvs__history_bytes(r.h) % one, 0);
        }
        static const uint64_t at_1499[] = {0, 1455, 1455, 1455, 1455, 1455, 1455, 1455, 1455};
        static const uint64_t at_1454[] = {0, 0, 705, 1024, 1024, 1024, 1024, 1280, 1280};
        static const uint64_t at_800[] = {0, 0, 705, 705, 705, 705, 705, 768, 768};
        assert_int_equal(kvs__history_reach(r.h, 1499), at_1499[fit]);
        assert_int_equal(kvs__history_reach(r.h, 1454), at_1454[fit]);
        assert_int_equal(kvs__history_reach(r.h, 800), at_800[fit]);
        rig_free(&r);
    }
}

/* ---- allocations that fail */

static kvs_ctx *failing_ctx(fail_alloc *f)
{
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = f;
    rig_must(kvs_ctx_new(&co, &ctx, NULL));
    return ctx;
}

static kvs_status copy_out(rig *r, kvs_entry e)
{
    kvs__saved saved;
    (void)e;
    kvs_status st = kvs__history_copy(r->h, 0, &saved, NULL);
    if (st == KVS_OK) {
        assert_int_equal(saved.len, 262);
        kvs__saved_free(&saved);
    }
    return st;
}

static kvs_status load_in(rig *r, kvs_entry e)
{
    uint64_t n = 300;
    rig_must(kvs_store_pin(r->s, e));
    rig_must(kvs_cache_clear(r->c, NULL));
    kvs__history_clear(r->h);
    kvs_status st = kvs__history_restore(r->h, r->s, e, &n, NULL);
    assert_true(st != KVS_OK || n == 255);
    if (st != KVS_OK) {
        rig_must(kvs_store_unpin(r->s, e));
    }
    return st;
}

/* Notes are given up without memory, the step itself never fails. */
static kvs_status take_notes(rig *r, kvs_entry e)
{
    (void)e;
    kvs__history_mark(r->h, 258);
    kvs__history_note(r->h, 0);
    uint64_t reach = kvs__history_reach(r->h, 258);
    assert_true(reach == 258 || reach == 256 || reach == 0);
    kvs_status st = kvs__history_back(r->h, 258, NULL);
    return st == KVS_OK || st == KVS_E_STATE ? KVS_OK : st;
}

static void test_memory(void **state)
{
    (void)state;
    kvs_status (*const calls[])(rig *, kvs_entry) = {copy_out, load_in, take_notes};
    for (size_t i = 0; i < KVS_COUNT(calls); i++) {
        long at = 0;
        for (bool failed = true; failed; at++) {
            fail_alloc f = FAIL_ALLOC_INIT;
            rig r;
            rig_make(&r, failing_ctx(&f), "c4:32", 35, 10, 1 << 20);
            kvs__history_mark(r.h, 262);
            grow(&r, 255, 1);
            kvs_entry e = save(&r);
            grow(&r, 262, 1);
            long before = atomic_load(&f.calls);
            atomic_store(&f.fail_at, before + at);
            kvs_status st = calls[i](&r, e);
            failed = atomic_load(&f.calls) > before + at;
            atomic_store(&f.fail_at, -1);
            assert_true(st == KVS_OK || (failed && st == KVS_E_NOMEM));
            if (st != KVS_OK) { /* and again, with memory */
                assert_int_equal(calls[i](&r, e), KVS_OK);
            }
            rig_must(kvs_store_unpin(r.s, e));
            rig_free(&r);
            assert_int_equal(atomic_load(&f.blocks), 0);
            assert_int_equal(atomic_load(&f.wrong), 0);
        }
        assert_true(at > 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),       cmocka_unit_test(test_tables),
        cmocka_unit_test(test_version_1),   cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_two_centers), cmocka_unit_test(test_restore),
        cmocka_unit_test(test_no_notes),    cmocka_unit_test(test_marks),
        cmocka_unit_test(test_open),        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
