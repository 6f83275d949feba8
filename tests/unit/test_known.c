/* SPDX-License-Identifier: MIT */
/* test_known.c: saves of a cache that use what earlier saves learned (store/known.h).
 *
 * Random programs grow a cache, also by drafts that are rejected, take it back, clear it, fork it, restore
 * it, lend it blocks of an index, save it, remove entries, and put what was taken earlier: whatever happened, an entry says what its parts say, byte for byte, and what
 * was taken does not change. A save of an unchanged cache hashes what is no whole block alone. Then
 * single cases: a block that is found bad in the middle of a save, files that vanish. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvstate/prefix.h"
#include "kvstate/txn.h"
#include "store/history_priv.h"
#define RIG_PAGED
#include "support/cache_rig.h"
#include "support/fail_alloc.h"
#include "support/hybrid_rig.h"
#include "support/memfs.h"

/* store/kvstore.h, which has a name of the kernels' too */
kvs_status kvs__store_open_vfs(kvs_ctx *ctx, kvs__vfs *v, const char *dir,
                               const kvs_store_opts *opts, kvs_store **out, kvs_err *err);

typedef struct config {
    const char *name;
    const char *k;
    uint32_t window;
    uint32_t dense_until;
    uint32_t block; /* paged */
    uint32_t n_layers;
    size_t note_bytes;
    uint32_t undo; /* drafts that recurrent layers take back */
} config;

static const config configs[] = {
    {"full, recurrent", "f16", 0, 0, 0, HYBRID_LAYERS, 1 << 20, 0},
    {"centred", "c4:32/f32", 0, 0, 0, 2, 1 << 20, 0},
    {"window, recurrent", "q4:32", 70, 0, 0, HYBRID_LAYERS, 1 << 20, 6},
    {"window, few notes", "f16", 300, 0, 0, HYBRID_LAYERS, 200000, 0},
    {"converted", "q4:32", 0, 600, 0, HYBRID_LAYERS, 1 << 20, 6},
    {"window, converted", "q8:32", 200, 600, 0, 2, 1 << 20, 0},
    {"converted, of one size", "f16", 0, 600, 0, 2, 1 << 20, 0},
    {"paged", "q4:32", 0, 0, 16, 2, 1 << 20, 0},
    {"window, paged", "f16", 70, 0, 64, 2, 1 << 20, 0},
    {"no room for rows", "f16", 0, 0, 0, HYBRID_LAYERS, 3000, 0},
};

/* What was taken from a cache and not put yet, with a copy of its bytes. */
typedef struct taken {
    kvs__saved saved;
    unsigned char *bytes;
    bool is;
} taken;

#define ENTRIES 64

typedef struct world {
    const config *cfg;
    uint64_t seed;
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_pages *pages; /* NULL: not paged */
    kvs_rows *rows;   /* of c alone */
    kvs_cache *c;
    kvs_cache *fork; /* or NULL */
    kvs_prefix *ix;  /* paged: has one text of n_lent tokens, whose ids are all `lent` */
    size_t n_lent;
    int32_t lent;
    kvs__history *h;
    memfs *m;
    kvs_store *s;
    uint64_t text;
    int32_t id;
    kvs_entry entries[ENTRIES];
    taken held;
} world;

static uint64_t draw(world *w, uint64_t n)
{
    return (memfs_rand(&w->seed) >> 11) % n;
}

static kvs_cache *make_cache(const world *w)
{
    const config *g = w->cfg;
    kvs_layer_spec l[HYBRID_LAYERS];
    kvs_recurrent_spec r[2];
    hybrid_specs(l, r, g->k, g->window, g->undo);
    l[1].dense_until = g->dense_until;
    l[1].dense_dtype = g->dense_until ? KVS_BF16 : l[1].dense_dtype;
    return w->pages ? rig_paged_cache(w->ctx, l, g->n_layers, w->pages)
                    : rig_cache(w->ctx, l, g->n_layers, 0);
}

static void world_make(world *w, const config *g, uint64_t seed)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    memset(w, 0, sizeof *w);
    w->cfg = g;
    w->seed = seed * 0x9e3779b97f4a7c15u + 5;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    atomic_store(&w->heap.fail_at, -1);
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &w->heap;
    rig_must(kvs_ctx_new(&co, &w->ctx, NULL));
    w->pages = g->block ? rig_pages(w->ctx, g->block, 0) : NULL;
    w->c = make_cache(w);
    rig_must(kvs_rows_merge(w->ctx, &w->c, 1, &w->rows, NULL));
    if (w->pages) {
        rig_must(kvs_prefix_new(w->ctx, w->c, NULL, &w->ix, NULL));
    }
    rig_must(kvs__history_new(w->ctx, w->c, g->note_bytes, &w->h, NULL));
    w->m = memfs_new();
    memfs_link(w->m, ".", memfs_new_inode(w->m, true, 0700));
    o.flags = KVS_STORE_NO_THREADS;
    rig_must(kvs__store_open_vfs(w->ctx, &w->m->v, "d", &o, &w->s, NULL));
}

static void world_free(world *w)
{
    kvs__saved_free(&w->held.saved);
    free(w->held.bytes);
    kvs__history_free(w->h);
    kvs_store_close(w->s);
    memfs_free(w->m);
    kvs_rows_free(w->rows);
    kvs_cache_free(w->fork);
    kvs_prefix_free(w->ix);
    kvs_pages_free(w->pages);
    kvs_ctx_free(w->ctx);
    assert_int_equal(atomic_load(&w->heap.live), 0);
    assert_int_equal(atomic_load(&w->heap.wrong), 0);
}

static void append(const world *w, kvs_cache *c, uint64_t text)
{
    int64_t p = kvs_cache_length(c, 0);
    for (uint32_t l = 0; l < w->cfg->n_layers; l++) {
        if (l < 2) {
            rig_must(rig_append(c, l, 1, text + 10 * l, NULL));
        } else {
            hybrid_advance(c, l, p, text);
        }
    }
}

static void grow(world *w, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        kvs__history_note(w->h, 1);
        append(w, w->c, w->text);
        kvs__history_note(w->h, 0);
    }
}

static void take(kvs__history *h, kvs__saved *out)
{
    kvs_err err = KVS_ERR_INIT;
    if (kvs__history_copy(h, 0, out, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
}

/* Every byte of the parts, in a piece that free() gives back. */
static unsigned char *bytes_of(const kvs__saved *s)
{
    unsigned char *all = rig_alloc(s->bytes);
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const kvs_store_part *p = &s->parts[i];
        size_t each = p->chunk_bytes ? p->chunk_bytes : KVS_STORE_CHUNK;
        for (size_t k = 0; k < p->bytes; k += each) {
            size_t n = p->bytes - k < each ? (size_t)p->bytes - k : each;
            if (p->data) {
                memcpy(all + at + k, (const char *)p->data + k, n);
            } else {
                p->fill(p->fill_user, k, n, all + at + k);
            }
        }
        at += (size_t)p->bytes;
    }
    assert_int_equal(at, s->bytes);
    return all;
}

static uint64_t hashed(const world *w)
{
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    rig_must(kvs_store_get_stats(w->s, &st));
    return st.hashed_bytes;
}

/* Puts what was taken, and compares what the store then has. */
static kvs_entry put(world *w, const kvs__saved *s)
{
    static const uint8_t identity[32] = {1};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    kvs_store_hit hit = KVS_STORE_HIT_INIT;
    w->id++;
    const kvs_store_key key = {identity, "", 0, &w->id, 1};
    o.flags = KVS_PUT_DURABLE;
    rig_must(kvs__store_put_known(w->s, &key, s->parts, s->n_parts, &o, s->known, NULL));
    rig_must(kvs_store_find(w->s, &key, NULL, &hit, NULL));
    unsigned char *want = bytes_of(s);
    unsigned char *got = rig_alloc(s->bytes);
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        kvs_store_buf buf = {i, 0, s->parts[i].bytes, got + at};
        rig_must(kvs_store_get(w->s, hit.entry, &buf, 1, NULL));
        if (memcmp(got + at, want + at, (size_t)s->parts[i].bytes) != 0) {
            fail_msg("%s: part %u of layer %d", w->cfg->name, i, (int)s->parts[i].layer);
        }
        at += (size_t)s->parts[i].bytes;
    }
    free(want);
    free(got);
    rig_must(kvs_store_unpin(w->s, hit.entry));
    return hit.entry;
}

/* Bytes of a save of a cache that has not changed since the last one, which must be hashed. */
static uint64_t not_whole(const kvs__saved *s)
{
    uint64_t n = s->data_bytes;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        n += s->parts[i].data || !s->parts[i].chunk_bytes
                 ? 0
                 : s->parts[i].bytes % s->parts[i].chunk_bytes;
    }
    return n;
}

/* The entry gives a cache that holds what this one does. */
static void check_entry(const world *w, kvs_entry e)
{
    kvs_cache *c = make_cache(w);
    kvs__history *h = NULL;
    uint64_t n = (uint64_t)kvs_cache_length(w->c, 0);
    uint64_t got = n;
    kvs_err err = {KVS_OK, 0, "", ""};
    rig_must(kvs__history_new(w->ctx, c, 0, &h, NULL));
    rig_must(kvs_store_pin(w->s, e));
    kvs_status st = kvs__history_restore(h, w->s, e, &got, &err);
    if (st != KVS_OK || got != n) {
        fail_msg("%s: %llu of %llu tokens: %s", w->cfg->name, (unsigned long long)got,
                 (unsigned long long)n, err.msg);
    }
    for (uint32_t i = 0; i < w->cfg->n_layers; i++) {
        if (i >= 2) {
            _Alignas(8) unsigned char x[HYBRID_DELTA];
            _Alignas(8) unsigned char y[HYBRID_DELTA];
            hybrid_planes(c, i, (int64_t)n, x);
            hybrid_planes(w->c, i, (int64_t)n, y);
            assert_memory_equal(x, y, sizeof x);
            continue;
        }
        int64_t from = kvs_cache_oldest(w->c, i);
        size_t nx = 0;
        size_t ny = 0;
        from = from > kvs_cache_oldest(c, i) ? from : kvs_cache_oldest(c, i);
        void *x = rig_export(c, i, from, n - (uint64_t)from, &nx);
        void *y = rig_export(w->c, i, from, n - (uint64_t)from, &ny);
        assert_int_equal(nx, ny);
        assert_memory_equal(x, y, nx);
        free(x);
        free(y);
    }
    kvs__history_free(h);
    kvs_cache_free(c);
}

static void op_save(world *w)
{
    if (kvs_cache_length(w->c, 0) == 0) {
        return;
    }
    for (int again = 0; again < 2; again++) {
        kvs__saved s;
        take(w->h, &s);
        uint64_t before = hashed(w);
        kvs_entry e = put(w, &s);
        w->entries[draw(w, ENTRIES)] = e;
        if (draw(w, 3) == 0) {
            check_entry(w, e);
        }
        if (again && w->cfg->note_bytes >= 200000) {
            assert_true(hashed(w) - before <= not_whole(&s));
        }
        kvs__saved_free(&s);
    }
    size_t most = w->cfg->note_bytes + w->cfg->note_bytes / 16;
    assert_true(kvs__history_bytes(w->h) <= most);
    assert_true(kvs__hknown_bytes(w->h) <= w->cfg->note_bytes / 16);
}

static void op_take(world *w)
{
    if (w->held.is) {
        unsigned char *now = bytes_of(&w->held.saved);
        assert_memory_equal(now, w->held.bytes, w->held.saved.bytes);
        free(now);
        (void)put(w, &w->held.saved);
        kvs__saved_free(&w->held.saved);
        free(w->held.bytes);
        w->held = (taken){.is = false};
    } else if (kvs_cache_length(w->c, 0) > 0) {
        take(w->h, &w->held.saved);
        w->held.bytes = bytes_of(&w->held.saved);
        w->held.is = true;
    }
}

static void clear(world *w)
{
    rig_must(kvs_cache_clear(w->c, NULL));
    kvs__history_clear(w->h);
}

static void op_back(world *w)
{
    uint64_t len = (uint64_t)kvs_cache_length(w->c, 0);
    uint64_t to = kvs__history_reach(w->h, draw(w, len + 1));
    w->text += 100;
    if (to == 0) {
        clear(w);
    } else {
        rig_must(kvs__history_back(w->h, to, NULL));
    }
}

static void op_restore(world *w)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_entry e = w->entries[draw(w, ENTRIES)];
    uint64_t n = 1 + draw(w, 3000);
    if (e == 0 || kvs_store_pin(w->s, e) != KVS_OK) {
        return;
    }
    clear(w);
    w->text += 100;
    kvs_status st = kvs__history_restore(w->h, w->s, e, &n, &err);
    if (st != KVS_OK) {
        assert_int_equal(st, KVS_NO);
        rig_must(kvs_store_unpin(w->s, e));
        clear(w);
        return;
    }
    if (draw(w, 2)) { /* it came from blocks that are there */
        kvs__saved s;
        take(w->h, &s);
        uint64_t before = hashed(w);
        (void)put(w, &s);
        uint64_t bound = not_whole(&s);
        if (w->cfg->note_bytes >= 200000 && !w->cfg->window) {
            assert_true(hashed(w) - before <= bound);
        }
        kvs__saved_free(&s);
    }
}

/* Rounds of drafts about the end of a block, of which some are kept, or all taken back. */
static void op_rounds(world *w)
{
    uint64_t len = (uint64_t)kvs_cache_length(w->c, 0);
    uint64_t edge = len + 255 - (len + 255) % 256;
    uint64_t stop = draw(w, 4);
    if (edge > len + stop) {
        grow(w, edge - len - stop);
    }
    for (int i = 0; i < 4; i++) {
        kvs_txn_opts o = KVS_TXN_OPTS_INIT;
        o.n_drafts = 1 + (uint32_t)draw(w, 5);
        kvs_status can = kvs_txn_can_begin(w->rows, &o);
        if (can != KVS_OK) {
            assert_true(can == KVS_NO && w->cfg->n_layers > 2 && w->cfg->undo == 0);
            return;
        }
        kvs__history_note(w->h, o.n_drafts + 1);
        rig_must(kvs_txn_begin(w->rows, &o, NULL));
        for (uint32_t k = 0; k <= o.n_drafts; k++) {
            append(w, w->c, w->text);
        }
        w->text += 100; /* after what is kept another text comes */
        rig_must(draw(w, 8) ? kvs_txn_resolve_all(w->rows, (uint32_t)draw(w, o.n_drafts + 1), NULL)
                            : kvs_txn_abort(w->rows, NULL));
        kvs__history_note(w->h, 0);
        if (draw(w, 2)) {
            op_save(w);
        }
    }
}

/* A fork shares what both have: each copies what it writes to. It has its own history. */
static void op_fork(world *w)
{
    uint64_t len = (uint64_t)kvs_cache_length(w->c, 0);
    if (!w->fork) {
        if (len > 0) {
            rig_must(kvs_cache_fork(w->c, KVS_ALL_TOKENS, &w->fork, NULL));
        }
        return;
    }
    kvs__history *h = NULL;
    kvs__saved s;
    rig_must(kvs__history_new(w->ctx, w->fork, w->cfg->note_bytes, &h, NULL));
    kvs__history_note(h, 2);
    for (int i = 0; i < 2; i++) {
        take(h, &s);
        (void)put(w, &s);
        kvs__saved_free(&s);
        append(w, w->fork, w->text + 1);
    }
    kvs__history_free(h);
    kvs_cache_free(w->fork);
    w->fork = NULL;
}

static void fill_ids(int32_t *ids, size_t n, int32_t id)
{
    for (size_t i = 0; i < n; i++) {
        ids[i] = id;
    }
}

/* Gives its blocks to an index, or is lent what that has. */
static void op_lend(world *w)
{
    int32_t *ids = rig_alloc(((size_t)kvs_cache_length(w->c, 0) + w->n_lent + 1) * sizeof *ids);
    kvs_prefix_key key = {NULL, "t", 1, ids, (size_t)kvs_cache_length(w->c, 0)};
    if (w->n_lent > 0) {
        kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
        kvs_lease *lease = NULL;
        fill_ids(ids, w->n_lent + 1, w->lent);
        key.n_ids = w->n_lent + 1;
        if (kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL) == KVS_OK) {
            rig_must(kvs_cache_clear(w->c, NULL));
            rig_must(kvs_prefix_attach(lease, w->c, NULL));
            kvs__history_clear(w->h);
            kvs__history_note(w->h, 2);
            kvs_prefix_release(lease);
        }
        /* a block of a window that was restored in part is not given */
        assert_true(hit.n_tokens == w->n_lent || w->cfg->window);
        key.n_ids--;
        rig_must(kvs_prefix_forget(w->ix, &key, NULL));
        w->n_lent = 0;
        w->text += 100;
    } else if (w->ix && key.n_ids > 0) {
        fill_ids(ids, key.n_ids, ++w->lent);
        rig_must(kvs_prefix_publish(w->ix, &key, w->c, NULL, &w->n_lent, NULL));
    }
    free(ids);
}

static void step(world *w)
{
    switch (draw(w, 20)) {
    case 0:
    case 1:
    case 2:
    case 3:
        op_save(w);
        break;
    case 4:
        op_take(w);
        break;
    case 5:
        op_back(w);
        break;
    case 6:
        if (draw(w, 4) == 0) {
            clear(w);
        }
        break;
    case 7:
    case 8:
        (void)kvs_store_remove(w->s, w->entries[draw(w, ENTRIES)], NULL);
        if (draw(w, 2)) {
            rig_must(kvs_store_gc(w->s, NULL, NULL));
        }
        break;
    case 9:
        op_restore(w);
        break;
    case 10:
        kvs__history_mark(w->h, (uint64_t)kvs_cache_length(w->c, 0) + draw(w, 40));
        break;
    case 11: { /* the first token behind a conversion, from which there is a way back */
        uint64_t len = (uint64_t)kvs_cache_length(w->c, 0);
        if (len <= w->cfg->dense_until) {
            grow(w, w->cfg->dense_until + 1 - len);
            op_save(w);
            op_back(w);
            op_save(w);
        }
        break;
    }
    case 12:
        op_rounds(w);
        break;
    case 13:
        op_fork(w);
        break;
    case 14:
        op_lend(w);
        break;
    default:
        grow(w, 1 + draw(w, draw(w, 3) ? 40 : 500));
        break;
    }
}

static void programs(uint64_t first, uint64_t n)
{
    for (uint64_t seed = first; seed < first + n; seed++) {
        world w;
        world_make(&w, &configs[seed % KVS_COUNT(configs)], seed);
        for (int i = 0; i < 50; i++) {
            step(&w);
        }
        world_free(&w);
    }
}

static void test_programs(void **state)
{
    (void)state;
    const char *env = getenv("KNOWN_PROGRAMS");
    programs(1, env ? strtoull(env, NULL, 10) : 12 * KVS_COUNT(configs));
}

/* ---- single cases */

static size_t segments(const world *w, bool all_gone)
{
    size_t n = 0;
    for (int i = w->m->n_names; i-- > 0;) {
        if (strstr(w->m->names[i].path, ".kvb")) {
            n++;
            if (all_gone) {
                memfs_cut(w->m, i);
            }
        }
    }
    return n;
}

/* The files of all blocks vanish, or every entry is removed: the next save writes all of it again, and
 * what is opened afterwards has it. */
static void test_vanished(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        world w;
        world_make(&w, &configs[2], 1);
        grow(&w, 1000);
        kvs__saved s;
        take(w.h, &s);
        kvs_entry e = put(&w, &s);
        uint64_t first = hashed(&w);
        if (how == 0) {
            assert_true(segments(&w, true) > 0);
        } else {
            rig_must(kvs_store_remove(w.s, e, NULL));
            rig_must(kvs_store_gc(w.s, NULL, NULL));
            assert_int_equal(segments(&w, false), 0);
        }
        e = put(&w, &s);
        assert_true(hashed(&w) >= 2 * first);
        kvs__saved_free(&s);
        kvs_store_close(w.s);
        kvs_store_opts o = KVS_STORE_OPTS_INIT;
        o.flags = KVS_STORE_NO_THREADS;
        rig_must(kvs__store_open_vfs(w.ctx, &w.m->v, "d", &o, &w.s, NULL));
        kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
        rig_must(kvs_store_verify(w.s, &r, NULL));
        assert_int_equal(r.entries, how == 0 ? 2 : 1); /* the first has its blocks again */
        const uint8_t identity[32] = {1};
        const kvs_store_key key = {identity, "", 0, &w.id, 1};
        kvs_store_hit hit = KVS_STORE_HIT_INIT;
        uint64_t n = 1000;
        rig_must(kvs_store_find(w.s, &key, NULL, &hit, NULL));
        clear(&w);
        rig_must(kvs__history_restore(w.h, w.s, hit.entry, &n, NULL));
        assert_int_equal(n, 1000);
        world_free(&w);
    }
}

/* n tokens of a longer entry are restored, and go on as this cache did. */
static void check_part(const world *w, kvs_entry e, uint64_t n)
{
    kvs_cache *c = make_cache(w);
    kvs__history *h = NULL;
    uint64_t len = (uint64_t)kvs_cache_length(w->c, 0);
    uint64_t got = n;
    rig_must(kvs__history_new(w->ctx, c, 0, &h, NULL));
    rig_must(kvs_store_pin(w->s, e));
    rig_must(kvs__history_restore(h, w->s, e, &got, NULL));
    assert_int_equal(got, n);
    while (got++ < len) {
        append(w, c, w->text);
    }
    for (uint32_t i = 0; i < 2; i++) {
        size_t nx = 0;
        size_t ny = 0;
        uint64_t count = w->cfg->window && i == 1 ? w->cfg->window - 1 : len;
        void *x = rig_export(c, i, (int64_t)(len - count), count, &nx);
        void *y = rig_export(w->c, i, (int64_t)(len - count), count, &ny);
        assert_int_equal(nx, ny);
        assert_memory_equal(x, y, nx);
        free(x);
        free(y);
    }
    kvs__history_free(h);
    kvs_cache_free(c);
}

/* Converted, and gone back to dense_until: the codes are there, and are what is saved and restored, by an
 * entry of that length as by a longer one. */
static void test_converted_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < KVS_COUNT(configs); i++) {
        world w;
        const uint64_t n = configs[i].dense_until;
        if (n == 0) {
            continue;
        }
        world_make(&w, &configs[i], 1);
        for (uint64_t more = 0; more < 3; more++) {
            kvs__saved s;
            grow(&w, n + more - (uint64_t)kvs_cache_length(w.c, 0));
            take(w.h, &s);
            kvs_entry e = put(&w, &s);
            kvs__saved_free(&s);
            if (more > 0 && configs[i].n_layers == 2) {
                check_part(&w, e, n);
            }
            if (more == 0 ||
                kvs__history_reach(w.h, n) != n) { /* recurrent layers may not go back */
                continue;
            }
            rig_must(kvs__history_back(w.h, n, NULL));
            assert_ptr_equal(kvs__layer_store(&w.c->layer[1]), &w.c->layer[1].main);
            take(w.h, &s);
            check_entry(&w, put(&w, &s));
            kvs__saved_free(&s);
        }
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),
        cmocka_unit_test(test_vanished),
        cmocka_unit_test(test_converted_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
