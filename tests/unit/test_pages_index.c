/* SPDX-License-Identifier: MIT */
/* test_pages_index.c: what a prefix index does with blocks: refer to those of a cache, outlive it,
 * make a cache out of them, move their raw bytes, give them up when the pool is full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#define RIG_PAGED
#include "support/cache_rig.h"
#include "support/fail_alloc.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define N_LAYERS 4

static kvs_pages_stats stats_of(const kvs_pages *p)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(p, &s), KVS_OK);
    assert_true(kvs__pages_check(p));
    return s;
}

/* Full, window with sinks, full and delayed, window without sinks: what models mix. */
static void make_specs(kvs_layer_spec *s)
{
    s[0] = rig_spec(2, 64, 32, "f16", "q8:32");
    s[1] = rig_ring(rig_spec(1, 32, 32, "affine4:32", "bf16"), 40, 5, 16);
    s[2] = rig_spec(1, 32, 48, "q4:32", "f32");
    s[2].dense_until = 70;
    s[3] = rig_ring(rig_spec(1, 32, 32, "f32", "f16"), 9, 0, 16);
}

static void fill_all(kvs_cache *c, uint32_t n, uint64_t seed)
{
    for (uint32_t l = 0; l < kvs_cache_n_layers(c); l++) {
        rig_fill(c, l, n, 16, seed + l);
    }
}

static void compare_all(kvs_cache *a, kvs_cache *b)
{
    for (uint32_t l = 0; l < kvs_cache_n_layers(a); l++) {
        const kvs_layer_spec *s = kvs_cache_spec(a, l);
        assert_int_equal(kvs_cache_length(a, l), kvs_cache_length(b, l));
        float *x = rig_read(a, l, 1, 2);
        float *y = rig_read(b, l, 1, 2);
        assert_memory_equal(x, y, sizeof *x * s->n_kv_heads * 2 * s->v_dim);
        free(x);
        free(y);
    }
}

/* An entry of an index: the blocks of all layers. */
typedef struct entry {
    kvs__page_list list[N_LAYERS];
    kvs__seg *page[N_LAYERS][512];
    uint64_t n_tokens;
} entry;

static void publish(const kvs_cache *c, uint64_t n_tokens, entry *e)
{
    memset(e, 0, sizeof *e);
    e->n_tokens = n_tokens;
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        kvs__page_need need;
        rig_must(kvs__page_need_of(c, l, n_tokens, &need, NULL));
        uint64_t block = kvs__pages_block(c->pages);
        uint64_t stored = ((uint64_t)kvs_cache_oldest(c, l) + block - 1) / block;
        uint64_t n = 0;
        need.first = need.first < stored ? stored : need.first; /* after a rewind: less slack */
        for (uint64_t b = 0; b < need.end; b++) {
            if (b < need.n_sink || b >= need.first) {
                rig_must(kvs__page_keep_of(c, l, b, n_tokens, &e->page[l][n++], NULL));
            }
        }
        e->list[l] = (kvs__page_list){
            e->page[l], n, need.n_sink, need.first,
            n_tokens == (uint64_t)kvs_cache_length(c, l) ? kvs_cache_oldest(c, l) : 0};
    }
}

static void forget(entry *e)
{
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint64_t i = 0; i < e->list[l].n; i++) {
            kvs__page_unkeep(e->page[l][i]);
        }
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 16, 17, 64, 70, 71, 128, 200};
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < RIG_BLOCKS * COUNT(lengths); i++) {
        uint32_t n = lengths[i / RIG_BLOCKS];
        kvs_pages *p = rig_pages(ctx, rig_blocks[i % RIG_BLOCKS], 0);
        kvs_layer_spec s[N_LAYERS];
        make_specs(s);
        kvs_cache *source = rig_paged_cache(ctx, s, N_LAYERS, p);
        kvs_cache *twin = rig_paged_cache(ctx, s, N_LAYERS, p);
        entry e;
        fill_all(source, n, 1);
        fill_all(twin, n, 1);
        uint64_t held = stats_of(p).n_held;
        publish(source, n, &e);
        assert_true(stats_of(p).n_held == held && stats_of(p).n_cached == 0);
        fill_all(source, 20, 50); /* the source goes on: the entry's blocks are not written */
        kvs_cache_free(source);
        kvs_pages_stats st = stats_of(p);
        assert_true(st.n_cached > 0 && st.cached_bytes > 0);
        kvs_cache *a = rig_paged_cache(ctx, s, N_LAYERS, p);
        kvs_cache *b = rig_paged_cache(ctx, s, N_LAYERS, p);
        rig_must(kvs__page_attach(a, n, e.list, NULL));
        assert_int_equal(stats_of(p).n_cached, 0);
        compare_all(a, twin);
        fill_all(a, 37, 90); /* writes to the partial block: a copy */
        rig_must(kvs__page_attach(b, n, e.list, NULL));
        compare_all(b, twin);
        forget(&e);
        compare_all(b, twin);
        fill_all(twin, 37, 90);
        compare_all(a, twin);
        fill_all(b, 37, 90);
        compare_all(b, twin);
        rig_must(kvs_cache_rewind(a, KVS_ALL_LAYERS, 10, NULL));
        rig_must(kvs_cache_rewind(twin, KVS_ALL_LAYERS, 10, NULL));
        compare_all(a, twin);
        kvs_cache_free(a);
        kvs_cache_free(b);
        kvs_cache_free(twin);
        assert_int_equal(stats_of(p).n_total, 0);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* Raw bytes: out of one cache's blocks, into fresh ones of another pool; and they are a function of
 * the tokens alone, rewound ones leave no trace. */
static void test_raw(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < RIG_BLOCKS * 3; i++) {
        uint32_t block = rig_blocks[i % RIG_BLOCKS];
        uint32_t n = 50 + 43 * (uint32_t)(i / RIG_BLOCKS);
        kvs_pages *p[2] = {rig_pages(ctx, block, 0), rig_pages(ctx, block, 0)};
        kvs_layer_spec s[N_LAYERS];
        make_specs(s);
        kvs_cache *a = rig_paged_cache(ctx, s, N_LAYERS, p[0]);
        kvs_cache *other = rig_paged_cache(ctx, s, N_LAYERS, p[0]);
        kvs_cache *b = rig_paged_cache(ctx, s, N_LAYERS, p[1]);
        fill_all(a, n, 1);
        fill_all(other, n, 1);
        fill_all(other, 9, 7);
        rig_must(kvs_cache_rewind(other, KVS_ALL_LAYERS, 9, NULL));
        entry e;
        entry eo;
        entry made;
        publish(a, n, &e);
        publish(other, n, &eo);
        made = e;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            for (uint64_t j = 0; j < e.list[l].n; j++) {
                const kvs__page_list *list = &e.list[l];
                uint64_t number = j < list->n_sink ? j : list->first + j - list->n_sink;
                uint64_t left = n - number * block;
                uint32_t used = left < block ? (uint32_t)left : block;
                size_t bytes = kvs__page_raw_bytes(kvs__page_fmt(e.page[l][j]), block);
                unsigned char *x = rig_alloc(bytes);
                unsigned char *y = rig_alloc(bytes);
                memset(x, 0xaa, bytes);
                memset(y, 0x55, bytes);
                kvs__page_get_raw(e.page[l][j], used, x);
                uint64_t skip = eo.list[l].first - list->first;
                if (j < list->n_sink || j >= list->n_sink + skip) {
                    kvs__page_get_raw(eo.page[l][j < list->n_sink ? j : j - skip], used, y);
                    assert_memory_equal(x, y, bytes);
                }
                rig_must(kvs__page_fresh(b, l, n, &made.page[l][j], NULL));
                kvs__page_set_raw(made.page[l][j], x);
                kvs__page_get_raw(made.page[l][j], block, y);
                assert_memory_equal(x, y, bytes);
                free(x);
                free(y);
            }
            made.list[l].page = made.page[l];
        }
        assert_true(stats_of(p[1]).n_held == 0 && stats_of(p[1]).n_cached > 0);
        rig_must(kvs__page_attach(b, n, made.list, NULL));
        compare_all(b, a);
        forget(&e);
        forget(&eo);
        forget(&made);
        fill_all(b, 30, 3);
        fill_all(a, 30, 3);
        compare_all(b, a);
        kvs_cache_free(a);
        kvs_cache_free(b);
        kvs_cache_free(other);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(stats_of(p[j]).n_total, 0);
            kvs_pages_free(p[j]);
        }
    }
    kvs_ctx_free(ctx);
}

static void refuse(kvs_cache *c, uint64_t n, const kvs__page_list *list, kvs_status want,
                   const char *word)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t bytes = kvs_cache_bytes(c, KVS_ALL_LAYERS);
    kvs_pages_stats before = stats_of(c->pages);
    assert_int_equal(kvs__page_attach(c, n, list, &err), want);
    if (!strstr(err.msg, word)) {
        fail_msg("\"%s\" does not name %s", err.msg, word);
    }
    kvs_pages_stats after = stats_of(c->pages);
    assert_true(kvs_cache_bytes(c, KVS_ALL_LAYERS) == bytes && after.n_held == before.n_held);
}

static void test_refusals(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages *p = rig_pages(ctx, 16, 0);
    kvs_pages *q = rig_pages(ctx, 16, 0);
    kvs_layer_spec s[N_LAYERS];
    make_specs(s);
    kvs_cache *source = rig_paged_cache(ctx, s, N_LAYERS, p);
    kvs_cache *c = rig_paged_cache(ctx, s, N_LAYERS, p);
    kvs_cache *foreign = rig_paged_cache(ctx, s, N_LAYERS, q);
    entry e;
    fill_all(source, 150, 1);
    publish(source, 150, &e);
    kvs__page_list list[N_LAYERS];
#define FRESH_LIST memcpy(list, e.list, sizeof list)
    FRESH_LIST;
    refuse(foreign, 150, list, KVS_E_INVAL, "another pool");
    refuse(c, 0, list, KVS_E_RANGE, "0");
    refuse(c, UINT64_MAX, list, KVS_E_RANGE, "1844674");
    refuse(c, 200, list, KVS_E_INVAL, "200");
    list[0].n--;
    refuse(c, 150, list, KVS_E_INVAL, "layer 0");
    FRESH_LIST;
    list[3].page = NULL;
    refuse(c, 150, list, KVS_E_INVAL, "layer 3");
    FRESH_LIST;
    kvs__seg *hole = e.page[2][4];
    e.page[2][4] = NULL;
    refuse(c, 150, list, KVS_E_INVAL, "block 4 of the list is NULL");
    e.page[2][4] = e.page[0][0];
    refuse(c, 150, list, KVS_E_INVAL, "format");
    e.page[2][4] = hole;
    list[1].n_sink = 0;
    refuse(c, 150, list, KVS_E_INVAL, "layer 1");
    FRESH_LIST;
    list[1].oldest = 120; /* the window of 40 is not whole */
    refuse(c, 150, list, KVS_E_INVAL, "below 120");
    FRESH_LIST;
    uint64_t skip = 8 - list[1].first; /* it may begin as late as position 111 */
    list[1].first += skip;
    list[1].n -= skip;
    kvs__seg *window[64];
    window[0] = e.page[1][0];
    memcpy(window + 1, e.page[1] + 1 + skip, (list[1].n - 1) * sizeof *window);
    list[1].page = window;
    refuse(c, 150, list, KVS_E_INVAL, "below 128");
    rig_must(rig_append(c, 2, 1, 1, NULL));
    FRESH_LIST;
    refuse(c, 150, list, KVS_E_STATE, "layer 2 holds 1");
    rig_must(kvs_cache_clear(c, NULL));
    rig_must(kvs_cache_reserve(c, KVS_ALL_LAYERS, 16, NULL)); /* blocks in hand make way */
    rig_must(kvs__page_attach(c, 150, list, NULL));
    compare_all(c, source);

    kvs__seg *page = NULL;
    kvs__page_need need;
    assert_int_equal(kvs__page_keep_of(c, 0, 10, 150, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 0, 0, 151, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 0, 9, 144, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 0, UINT64_MAX / 8, 150, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 3, 0, 150, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 9, 0, 150, &page, NULL), KVS_E_RANGE);
    assert_null(page);
    assert_int_equal(kvs__page_need_of(c, 0, UINT64_MAX, &need, NULL), KVS_E_RANGE);
    kvs_layer_spec grow = rig_spec(1, 32, 32, "f16", "f16");
    kvs_cache *plain = rig_cache(ctx, &grow, 1, 0);
    rig_fill(plain, 0, 20, 20, 1);
    assert_int_equal(kvs__page_keep_of(plain, 0, 0, 20, &page, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs__page_need_of(plain, 0, 20, &need, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs__page_fresh(plain, 0, 20, &page, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs__page_attach(plain, 20, e.list, NULL), KVS_E_INVAL);
    kvs_cache_free(plain);
    forget(&e);
    kvs_cache_free(source);
    kvs_cache_free(c);
    kvs_cache_free(foreign);
    kvs_pages_free(p);
    kvs_pages_free(q);
    kvs_ctx_free(ctx);
}

/* A block of a window that an import began in its middle is not whole, so it can't be shared. */
static void test_gap(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages *p = rig_pages(ctx, 16, 0);
    kvs_layer_spec s = rig_ring(rig_spec(1, 32, 32, "f32", "f16"), 9, 0, 16);
    kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
    kvs_planes planes;
    size_t bytes = 0;
    void *base = rig_planes(&s, 0, 10, &planes, &bytes);
    rig_must(
        kvs_cache_import(c, 0, 1000, 10, &planes, NULL)); /* positions 1000..1009: blocks 62, 63 */
    kvs__seg *page = NULL;
    assert_int_equal(kvs__page_keep_of(c, 0, 62, 1010, &page, NULL), KVS_E_RANGE);
    assert_int_equal(kvs__page_keep_of(c, 0, 61, 1010, &page, NULL), KVS_E_RANGE);
    rig_must(kvs__page_keep_of(c, 0, 63, 1010, &page, NULL));
    kvs__page_unkeep(page);
    free(base);
    kvs_cache_free(c);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* attach with the k-th allocation failing: nothing changes. */
static void test_attach_without_memory(void **state)
{
    (void)state;
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &heap;
    o.n_threads = 1;
    rig_must(kvs_ctx_new(&o, &ctx, NULL));
    kvs_pages *p = rig_pages(ctx, 16, 0);
    kvs_layer_spec s[N_LAYERS];
    make_specs(s);
    kvs_cache *source = rig_paged_cache(ctx, s, N_LAYERS, p);
    kvs_cache *c = rig_paged_cache(ctx, s, N_LAYERS, p);
    entry e;
    fill_all(source, 100, 1);
    publish(source, 100, &e);
    size_t bytes = kvs_cache_bytes(c, KVS_ALL_LAYERS);
    size_t live = heap.live;
    long k = 0;
    for (;; k++) {
        atomic_store(&heap.fail_at, heap.calls + k);
        kvs_status st = kvs__page_attach(c, 100, e.list, NULL);
        atomic_store(&heap.fail_at, -1);
        if (st == KVS_OK) {
            break;
        }
        assert_int_equal(st, KVS_E_NOMEM);
        assert_true(kvs_cache_bytes(c, KVS_ALL_LAYERS) == bytes && heap.live == live);
    }
    assert_int_equal(k, N_LAYERS); /* a table each */
    compare_all(c, source);
    forget(&e);
    kvs_cache_free(source);
    kvs_cache_free(c);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
    assert_true(heap.live == 0 && heap.wrong == 0);
}

/* The pool at its limit asks the index to let go. */
typedef struct store {
    kvs__seg *page[64];
    size_t n;
    int asked;
} store;

static bool let_go(void *user, kvs_pages *p, size_t block_bytes)
{
    store *s = user;
    assert_true(p && block_bytes > 0);
    s->asked++;
    if (s->n == 0) {
        return false;
    }
    kvs__page_unkeep(s->page[--s->n]);
    return true;
}

static void test_reclaim(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = 16;
    o.chunk_bytes = 1;
    rig_must(kvs_pages_new(ctx, &o, &p, NULL));
    kvs_layer_spec s[2] = {rig_spec(1, 32, 32, "f16", "f16"), rig_spec(1, 32, 32, "f32", "f32")};
    kvs_cache *old = rig_paged_cache(ctx, &s[0], 1, p);
    rig_fill(old, 0, 320, 64, 1);
    store st = {.n = 0};
    for (; st.n < 20; st.n++) {
        rig_must(kvs__page_keep_of(old, 0, st.n, 320, &st.page[st.n], NULL));
    }
    kvs_cache_free(old);
    assert_true(stats_of(p).n_cached == 20 && stats_of(p).n_held == 0);
    size_t limit = stats_of(p).bytes;
    rig_must(kvs_pages_set_limit(p, limit, NULL));
    kvs_cache *c = rig_paged_cache(ctx, &s[1], 1, p); /* another class: larger blocks */
    assert_int_equal(rig_append(c, 0, 16, 1, NULL), KVS_E_LIMIT);
    kvs__pages_set_reclaim(p, let_go, &st);
    rig_must(rig_append(c, 0, 16 * 8, 1, NULL));
    kvs_pages_stats now = stats_of(p);
    assert_true(now.bytes <= limit && now.n_held == 8 && now.n_cached == st.n && st.n > 0);
    assert_int_equal(rig_append(c, 0, 16 * 8, 1, NULL),
                     KVS_E_LIMIT); /* it gives all it has first */
    assert_true(st.n == 0 && stats_of(p).n_held == 8 && stats_of(p).n_cached == 0);
    kvs_cache_free(c);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* A writer thread copies raw bytes of a referenced block while the cache that had it goes on. */
typedef struct copier {
    const kvs__seg *page;
    unsigned char *first;
    unsigned char *again;
    size_t bytes;
    atomic_int rounds;
    atomic_bool stop;
    bool changed;
} copier;

static void *copy_rounds(void *arg)
{
    copier *k = arg;
    do {
        kvs__page_get_raw(k->page, 10, k->again);
        k->changed = k->changed || memcmp(k->first, k->again, k->bytes) != 0;
        atomic_fetch_add(&k->rounds, 1);
    } while (!atomic_load(&k->stop));
    return NULL;
}

static void test_copying_thread(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_pages *p = rig_pages(ctx, 16, 0);
    kvs_layer_spec s = rig_spec(2, 64, 64, "affine4:32", "f16");
    kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
    rig_fill(c, 0, 42, 42, 1);
    kvs__seg *page = NULL;
    rig_must(kvs__page_keep_of(c, 0, 2, 42, &page, NULL)); /* the tail, 10 tokens of 16 */
    copier k = {.page = page, .bytes = kvs__page_raw_bytes(kvs__page_fmt(page), 16)};
    k.first = rig_alloc(k.bytes);
    k.again = rig_alloc(k.bytes);
    kvs__page_get_raw(page, 10, k.first);
    pthread_t id;
    assert_int_equal(pthread_create(&id, NULL, copy_rounds, &k), 0);
    for (uint32_t i = 0; i < 200 || atomic_load(&k.rounds) < 3; i++) {
        rig_must(kvs_cache_rewind(c, 0, 2 + i % 20, NULL));
        rig_must(rig_append(c, 0, 2 + i % 20, 5 + i, NULL));
    }
    atomic_store(&k.stop, true);
    assert_int_equal(pthread_join(id, NULL), 0);
    assert_false(k.changed);
    kvs__page_unkeep(page);
    free(k.first);
    free(k.again);
    kvs_cache_free(c);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_gap),
        cmocka_unit_test(test_attach_without_memory),
        cmocka_unit_test(test_reclaim),
        cmocka_unit_test(test_copying_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
