/* SPDX-License-Identifier: MIT */
/* test_pages_runs.c: chunks that grow with a pool, and blocks that lie side by side: exact plans and
 * limits, chunks that the allocator refuses, and reads of joined blocks, which have the bits of grow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RIG_PAGED
#include "support/cache_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MIB      ((size_t)1 << 20)

static kvs_pages_stats stats_of(const kvs_pages *p)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(p, &s), KVS_OK);
    assert_true(kvs__pages_check(p));
    return s;
}

/* A pool whose blocks are handed out in the order of its own. */
static kvs_pages *pool(kvs_ctx *ctx, uint32_t block, size_t chunk_bytes, size_t max_bytes)
{
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = block;
    o.chunk_bytes = chunk_bytes;
    o.max_bytes = max_bytes;
    rig_must(kvs_pages_new(ctx, &o, &p, NULL));
    return p;
}

static kvs__fmt format_of(const kvs_layer_spec *s)
{
    kvs__store store;
    memset(&store, 0, sizeof store);
    kvs__store_init(&store, s, &s->k, &s->v, 0);
    return store.fmt;
}

/* -- sizes of chunks */

static void test_rungs(void **state)
{
    (void)state;
    static const size_t blocks[] = {1000, 70000, 262400, 3 * MIB, 40 * MIB};
    static const size_t chunks[] = {0, 1, 100000, 5 * MIB};
    for (size_t i = 0; i < COUNT(blocks) * COUNT(chunks); i++) {
        size_t block = blocks[i / COUNT(chunks)];
        size_t chunk = chunks[i % COUNT(chunks)];
        assert_int_equal(kvs__page_rung(block, chunk, 0), 0);
        uint64_t rung = 0;
        uint64_t last_step = 0;
        for (uint64_t n = 1; n < 20000; n++) {
            uint64_t above = kvs__page_rung(block, chunk, n);
            if (n <= rung) { /* all numbers up to a rung lead to it */
                assert_int_equal(above, rung);
                continue;
            }
            uint64_t step = above - rung;
            assert_true(above >= n && step >= last_step && step <= KVS__PAGE_CHUNK_MOST);
            size_t bytes = (size_t)step * block;
            size_t most = chunk ? chunk : 32 * MIB;
            assert_true(step == 1 || bytes <= most);
            if (!chunk) { /* not much more than is there, but about a MiB */
                assert_true(step == 1 || bytes <= MIB || bytes <= (size_t)rung * block / 4);
                assert_true(step == KVS__PAGE_CHUNK_MOST || bytes + block > MIB);
            }
            assert_true(last_step > 0 || step == kvs__page_least(block, chunk));
            last_step = step;
            rung = above;
        }
        uint64_t huge = kvs__page_rung(block, chunk, UINT64_MAX / 2);
        assert_true(huge >= UINT64_MAX / 2 && huge <= UINT64_MAX / 2 + KVS__PAGE_CHUNK_MOST);
    }
}

static kvs_layer_spec large(void) /* a block of 16 tokens: 128 KiB */
{
    return rig_as_paged(rig_spec(8, 128, 128, "f32", "f32"));
}

/* While chunks grow, the plan of every length is what the pool has taken, to the byte. */
static void test_plan_of_growing_chunks(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[2] = {large(), rig_as_paged(rig_spec(8, 128, 128, "f16", "f16"))};
    kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    po.block_tokens = 16;
    o.n_layers = 2;
    o.layers = s;
    o.pages = pool(ctx, 16, 0, 0);
    kvs_cache *c = NULL;
    rig_must(kvs_cache_new(ctx, &o, &c, NULL));
    kvs_pages *p = o.pages;
    size_t chunk = 0;
    size_t last = stats_of(p).bytes;
    for (uint64_t n = 48; n <= 3600; n += 48) {
        size_t plan = 0;
        rig_must(kvs_cache_reserve(c, KVS_ALL_LAYERS, (uint32_t)n, NULL));
        o.pages = NULL;
        rig_must(kvs_pages_plan(&po, &o, 1, n, &plan, NULL));
        assert_int_equal(stats_of(p).bytes, plan);
        chunk = plan - last > chunk ? plan - last : chunk;
        last = plan;
    }
    assert_true(chunk > 4 * MIB);
    rig_must(kvs_pages_set_limit(p, last, NULL)); /* is enough for what it was planned for */
    kvs_cache_free(c);
    size_t none = stats_of(p).bytes;
    o.pages = p;
    rig_must(kvs_cache_new(ctx, &o, &c, NULL));
    rig_must(kvs_cache_reserve(c, 1, 3600, NULL));
    rig_must(kvs_cache_reserve(c, 0, 3600, NULL));
    assert_int_equal(stats_of(p).bytes, last);
    kvs_cache_free(c);
    assert_int_equal(stats_of(p).bytes, none);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* A limit is used up to the last whole block, however large the next chunk would be. */
static void test_limit_to_the_block(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = large();
    kvs__fmt fmt = format_of(&s);
    size_t block = 0;
    assert_true(kvs__page_size(&fmt, 16, &block));
    const size_t empty = kvs__pages_head() + sizeof(kvs__page_class);
    for (size_t more = 0; more < 4; more++) {
        size_t n = 30 + 41 * more;
        size_t limit = empty + n * block + (more % 2 ? block - 1 : 0);
        kvs_pages *p = pool(ctx, 16, 0, limit);
        kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
        kvs_err err = {KVS_OK, 0, "", ""};
        for (size_t i = 1; i <= n; i++) {
            rig_must(kvs_cache_reserve(c, 0, (uint32_t)(16 * i), NULL));
        }
        assert_int_equal(stats_of(p).bytes, empty + n * block);
        assert_int_equal(stats_of(p).n_held, n);
        assert_int_equal(kvs_cache_reserve(c, 0, (uint32_t)(16 * n + 1), &err), KVS_E_LIMIT);
        assert_non_null(strstr(err.msg, "limit"));
        assert_int_equal(stats_of(p).bytes, empty + n * block);
        kvs_cache_free(c);
        rig_must(kvs_pages_set_limit(p, empty + block - 1, NULL)); /* the class needs room, too */
        c = rig_paged_cache(ctx, &s, 1, p);
        assert_int_equal(kvs_cache_reserve(c, 0, 1, NULL), KVS_E_LIMIT);
        rig_must(kvs_pages_set_limit(p, empty + block, NULL));
        rig_must(kvs_cache_reserve(c, 0, 16, NULL));
        assert_int_equal(stats_of(p).bytes, empty + block);
        kvs_cache_free(c);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* Blocks of two formats come and go in any order, never more of one than was planned for: the planned
 * bytes always do, though chunks go back and others take their place. */
static void test_plan_in_any_order(void **state)
{
    (void)state;
    enum { MOST = 90 };
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s[2] = {large(), rig_as_paged(rig_spec(8, 128, 64, "f32", "f32"))};
    kvs__fmt fmt[2] = {format_of(&s[0]), format_of(&s[1])};
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    static const uint64_t most[2] = {MOST, MOST / 2 + 1};
    static kvs__seg *held[2][MOST];
    o.block_tokens = 16;
    o.max_bytes = kvs__pages_head();
    for (int i = 0; i < 2; i++) {
        size_t one = 0;
        assert_true(kvs__pages_need(&o, &fmt[i], most[i], &one));
        o.max_bytes += one;
    }
    kvs_pages *p = NULL;
    rig_must(kvs_pages_new(ctx, &o, &p, NULL));
    uint64_t n[2] = {0, 0};
    bool rising[2] = {true, true};
    for (uint64_t step = 0; step < 3000; step++) {
        uint64_t z = rig_mix(step);
        int i = z % 3 == 0;
        rising[i] = n[i] == 0 || (n[i] < most[i] && (z >> 8) % 16 ? rising[i] : !rising[i]);
        if (n[i] < most[i] && (rising[i] ? (z >> 16) % 8 > 0 : (z >> 16) % 8 == 0)) {
            const kvs__seg *after = n[i] ? held[i][n[i] - 1] : NULL;
            rig_must(kvs__page_take(p, &fmt[i], after, &held[i][n[i]], NULL));
            n[i]++;
        } else if (n[i] > 0) {
            uint64_t k = (z >> 24) % n[i];
            kvs__page_release(held[i][k]);
            held[i][k] = held[i][--n[i]];
        }
        if (step % 100 == 0) {
            assert_true(stats_of(p).peak_bytes <= o.max_bytes);
        }
    }
    for (int i = 0; i < 2; i++) {
        for (; n[i] < most[i]; n[i]++) {
            rig_must(kvs__page_take(p, &fmt[i], NULL, &held[i][n[i]], NULL));
        }
    }
    assert_int_equal(stats_of(p).n_held, most[0] + most[1]);
    for (int i = 0; i < 2; i++) {
        for (uint64_t k = 0; k < most[i]; k++) {
            kvs__page_release(held[i][k]);
        }
    }
    assert_int_equal(stats_of(p).n_total, 0);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* -- chunks that are refused */

typedef struct picky { /* an allocator with nothing above so many bytes */
    size_t most;
    size_t largest;
    long refused;
} picky;

static void *picky_alloc(void *user, size_t bytes, size_t align)
{
    picky *a = user;
    if (bytes > a->most) {
        a->refused++;
        return NULL;
    }
    a->largest = bytes > a->largest ? bytes : a->largest;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void picky_free(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(p);
}

static void test_refused_chunks(void **state)
{
    (void)state;
    picky a = {SIZE_MAX, 0, 0};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    co.n_threads = 1;
    co.alloc = picky_alloc;
    co.free = picky_free;
    co.alloc_user = &a;
    rig_must(kvs_ctx_new(&co, &ctx, NULL));
    kvs_layer_spec s = large();
    kvs_pages *p = pool(ctx, 16, 0, 0);
    kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
    rig_must(kvs_cache_reserve(c, 0, 2000, NULL));
    assert_true(a.refused == 0 && a.largest > 3 * MIB);
    rig_must(kvs_cache_reserve(c, 0, 1, NULL));
    kvs_cache_free(c);
    a = (picky){2 * MIB, 0, 0};
    c = rig_paged_cache(ctx, &s, 1, p);
    rig_must(kvs_cache_reserve(c, 0, 2000, NULL)); /* in smaller ones, each of which is counted */
    kvs_pages_stats st = stats_of(p);
    assert_true(a.refused > 0 && a.largest > MIB / 2 && st.n_held == 125);
    assert_true(st.n_total < 125 + 2 * MIB / (128 << 10));
    a.most = MIB / 2; /* less than a pool begins with */
    const uint64_t total = st.n_total;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_cache_reserve(c, 0, 16 * (uint32_t)(total + 1), &err), KVS_E_NOMEM);
    st = stats_of(p);
    assert_true(err.status == KVS_E_NOMEM && st.n_held == 125 && st.n_total == total);
    rig_must(kvs_cache_reserve(c, 0, 16 * (uint32_t)total, NULL)); /* what is there serves */
    a.most = SIZE_MAX;
    rig_must(kvs_cache_reserve(c, 0, 16 * (uint32_t)(total + 1), NULL));
    kvs_cache_free(c);
    assert_int_equal(stats_of(p).n_total, 0);
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

/* -- blocks side by side */

static bool is_beside(const kvs__seg *a, const kvs__seg *b)
{
    return (const unsigned char *)b == (const unsigned char *)a + KVS__SEG_STRIDE;
}

/* Runs of blocks side by side in a table. */
static uint32_t runs_of(const kvs_cache *c, uint32_t layer)
{
    const kvs__store *s = &c->layer[layer].main;
    uint32_t n = s->n_segs > 0;
    for (uint32_t i = 1; i < s->n_segs; i++) {
        n += !is_beside(s->table[i - 1], s->table[i]);
    }
    return n;
}

static uint32_t spans_of(const kvs_cache *c, uint32_t layer)
{
    uint32_t n = 0;
    rig_must(kvs_cache_spans(c, layer, 0, kvs_cache_length(c, layer), NULL, 0, &n, NULL));
    return n;
}

/* Planes of blocks side by side go on without a gap, for every head, and so do centres. */
static void test_planes_go_on(void **state)
{
    (void)state;
    static const char *const k[] = {"f16", "q4:32", "affine8:64", "c4:32"};
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (size_t i = 0; i < COUNT(k); i++) {
        kvs_layer_spec s = rig_as_paged(rig_spec(3, 64, 32, k[i], "affine4:32"));
        kvs_pages *p = pool(ctx, 64, 0, 0);
        kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
        rig_must(kvs_cache_reserve(c, 0, 640, NULL));
        const kvs__store *st = &c->layer[0].main;
        assert_true(runs_of(c, 0) == 1 && st->n_segs == 10 && st->joins);
        for (uint32_t b = 1; b < st->n_segs; b++) {
            const kvs__seg *x = st->table[b - 1];
            const kvs__seg *y = st->table[b];
            for (uint32_t h = 0; h < 3; h++) {
                for (int plane = 0; plane < KVS__PLANES; plane++) {
                    assert_ptr_equal(kvs__k_tile_at(st, x, plane, h, 4),
                                     kvs__k_tile_at(st, y, plane, h, 0));
                    assert_ptr_equal(kvs__v_row_at(st, x, plane, h, 64),
                                     kvs__v_row_at(st, y, plane, h, 0));
                }
                assert_ptr_equal(kvs__center_at(st, x, h, 64, 64), kvs__center_at(st, y, h, 64, 0));
            }
        }
        kvs_cache_free(c);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

static void compare(kvs_cache *a, kvs_cache *b, uint32_t layer, uint32_t n, const char *what)
{
    const kvs_layer_spec *s = kvs_cache_spec(a, layer);
    float *x = rig_read(a, layer, n, 2);
    float *y = rig_read(b, layer, n, 2);
    if (memcmp(x, y, sizeof *x * n * s->n_kv_heads * 2 * s->v_dim) != 0) {
        fail_msg("%s: %u queries differ", what, n);
    }
    free(x);
    free(y);
}

/* Centres as the header says where they are in a span. */
static void check_centers(const kvs_cache *c)
{
    enum { MOST = 100 };
    const kvs__store *s = &c->layer[0].main;
    kvs_span span[MOST];
    uint32_t n = 0;
    rig_must(kvs_cache_spans(c, 0, 0, s->len, span, MOST, &n, NULL));
    assert_true(n <= MOST);
    for (uint32_t i = 0; i < n; i++) {
        const kvs_plane *p = &span[i].k_center;
        for (uint64_t t = 0; t < span[i].n_tokens; t++) {
            const int64_t pos = span[i].first_pos + (int64_t)t;
            const uint64_t r = (uint64_t)(pos / (int64_t)KVS_CENTER_GROUP - span[i].first_group) %
                               span[i].n_centers;
            const kvs__seg *seg = NULL;
            uint64_t slot = 0;
            (void)kvs__store_locate(s, pos, 1, &seg, &slot);
            for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
                assert_ptr_equal((const unsigned char *)p->base + h * p->head_bytes +
                                     r * p->n_units * p->unit_bytes,
                                 kvs__center_at(s, seg, h, pos, slot));
            }
        }
    }
}

/* Whatever codec, block and chunk, and however blocks come to lie: bits of grow, and the bytes of spans. */
static void test_same_as_grow(void **state)
{
    (void)state;
    static const char *const codecs[][2] = {{"bf16", "bf16"},   {"f32", "f32"},
                                            {"q4:32", "q8:32"}, {"affine8:32", "affine3:32"},
                                            {"c4:32", "q4:32"}, {"c8/bf16", "f16"}};
    static const uint32_t blocks[] = {16, 17, 32, 48, 64, 128};
    static const uint32_t queries[] = {1, 7, 70};
    kvs_ctx *ctx = rig_ctx(2, 0);
    for (size_t i = 0; i < COUNT(codecs) * COUNT(blocks); i++) {
        const char *const *codec = codecs[i / COUNT(blocks)];
        const uint32_t block = blocks[i % COUNT(blocks)];
        const kvs_layer_spec s = rig_spec(2, 64, 32, codec[0], codec[1]);
        const kvs__fmt fmt = format_of(&s);
        size_t bytes = 0;
        assert_true(kvs__page_size(&fmt, block, &bytes));
        kvs_pages *p = pool(ctx, block, 3 * bytes, 0); /* so that runs end often */
        kvs_cache *grow = rig_cache(ctx, &s, 1, 0);
        kvs_cache *alone = rig_paged_cache(ctx, &s, 1, p);
        kvs_cache *other = rig_paged_cache(ctx, &s, 1, p);
        for (uint32_t n = 0; n < 900; n += 90) {
            rig_fill(grow, 0, 90, 45, 1);
            rig_fill(alone, 0, 90, 45, 1);
            if (n % 180 == 0) { /* in between, so that runs have other lengths, too */
                rig_fill(other, 0, 60, 7, 2);
            }
        }
        const bool joined = block % 16 == 0 && (!fmt.center_bytes || block % KVS_CENTER_GROUP == 0);
        assert_int_equal(alone->layer[0].main.joins, joined);
        assert_int_equal(spans_of(alone, 0),
                         joined ? runs_of(alone, 0) : alone->layer[0].main.n_segs);
        if (fmt.center_bytes) {
            check_centers(alone);
        }
        for (size_t q = 0; q < COUNT(queries); q++) {
            compare(grow, alone, 0, queries[q], codec[0]);
        }
        kvs_cache *fork = NULL; /* shares blocks, then goes on with its own */
        rig_must(kvs_cache_fork(alone, 333, &fork, NULL));
        rig_fill(fork, 0, 567, 40, 1);
        compare(grow, fork, 0, 1, codec[1]);
        kvs_cache_free(other);
        kvs_cache_free(alone);
        rig_must(kvs_cache_rewind(fork, 0, 400, NULL)); /* and again over what was freed */
        rig_fill(fork, 0, 400, 40, 1);
        compare(grow, fork, 0, 70, codec[1]);
        kvs_cache_free(grow);
        kvs_cache_free(fork);
        assert_int_equal(stats_of(p).n_total, 0);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* Windows and sinks: a run ends where positions are missing. */
static void test_windows(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    for (uint32_t i = 0; i < 24; i++) {
        kvs_layer_spec s = rig_ring(rig_spec(1, 32, 32, i % 2 ? "c4:32" : "f16", "q8:32"),
                                    30 + 23 * i, i % 4 * 11, 9);
        kvs_pages *p = pool(ctx, i % 3 ? 64 : 16, i % 5 * 4000, 0);
        kvs_cache *ring = rig_cache(ctx, &s, 1, 0);
        kvs_cache *c = rig_paged_cache(ctx, &s, 1, p);
        for (uint32_t n = 0; n < 700; n += 50) {
            rig_fill(ring, 0, 50, 9, 5);
            rig_fill(c, 0, 50, 9, 5);
            compare(ring, c, 0, 1, "window");
        }
        kvs_cache_free(ring);
        kvs_cache_free(c);
        kvs_pages_free(p);
    }
    kvs_ctx_free(ctx);
}

/* Layers and rows that take blocks in turn each get rows of them, not every so manieth. */
static void test_turns(void **state)
{
    (void)state;
    enum { ROWS = 5, BLOCKS = 100 };
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_layer_spec s = rig_spec(2, 64, 64, "f16", "f16");
    const kvs__fmt fmt = format_of(&s);
    size_t bytes = 0;
    assert_true(kvs__page_size(&fmt, 16, &bytes));
    kvs_pages *p = pool(ctx, 16, ROWS * 20 * bytes, 0);
    kvs_cache *c[ROWS];
    for (int i = 0; i < ROWS; i++) {
        c[i] = rig_paged_cache(ctx, &s, 1, p);
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < ROWS; i++) {
            rig_must(kvs_cache_reserve(c[i], 0, 16 * (b + 1), NULL));
        }
    }
    assert_int_equal(stats_of(p).n_total, ROWS * BLOCKS);
    uint32_t runs = 0;
    for (int i = 0; i < ROWS; i++) {
        runs += runs_of(c[i], 0);
    }
    assert_true(runs <= ROWS * BLOCKS / 5); /* 5 blocks and more, where a list would give 1 */
    for (int i = 0; i < ROWS; i++) {
        kvs_cache_free(c[i]);
    }
    kvs_pages_free(p);
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rungs),
        cmocka_unit_test(test_plan_of_growing_chunks),
        cmocka_unit_test(test_limit_to_the_block),
        cmocka_unit_test(test_plan_in_any_order),
        cmocka_unit_test(test_refused_chunks),
        cmocka_unit_test(test_planes_go_on),
        cmocka_unit_test(test_same_as_grow),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
