/* SPDX-License-Identifier: MIT */
/* test_engine_session.c: logits are the same bits whatever the block size, threads, kernels, layout
 * and history; what sync reuses; what is refused; what happens when memory runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>

#include "kvstate/engine.h"
#include "support/model_build.h"

#define N     150
#define VOCAB 97

typedef struct setup {
    const char *path;
    const char *kv;
    uint32_t threads, tiers_off, block, max_block, flags, start, window, sinks, n_ctx, kv_block;
    uint32_t undo;
    uint64_t undo_bytes;
    kvs_ctx_opts ctx_opts; /* used where its struct_size is set */
    kvs_progress_fn progress;
    void *user;
} setup;

typedef struct engine {
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *session;
} engine;

static int32_t tokens[N];
static char llama_path[256];
static char gemma_path[256];
static char latent_path[256]; /* latent attention and a mixture of experts */
static char delta_path[256];  /* gated delta rule, attention with a gate, experts */
static char ssd_path[256];    /* Mamba-2 alone */
static char borrow_path[256]; /* layers that read another's keys and values */

static kvs_status engine_try(engine *e, const setup *s, kvs_err *err)
{
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    if (s->ctx_opts.struct_size) {
        co = s->ctx_opts;
    }
    co.n_threads = s->threads ? s->threads : 1;
    co.tiers_off = s->tiers_off;
    *e = (engine){NULL, NULL, NULL, NULL};
    kvs_status st = kvs_ctx_new(&co, &e->ctx, err);
    if (st == KVS_OK) {
        st = kvs_model_open(e->ctx, s->path, NULL, &e->model, err);
    }
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = s->kv;
    po.kv_block = s->kv_block;
    po.undo_tokens = s->undo;
    po.undo_bytes = s->undo_bytes;
    po.max_block = s->max_block;
    po.flags = s->flags;
    po.start = s->start;
    po.window = s->window;
    po.sinks = s->sinks;
    po.n_ctx = s->n_ctx;
    if (st == KVS_OK) {
        st = kvs_plan_new(e->ctx, e->model, &po, &e->plan, err);
    }
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = e->plan;
    so.block = s->block;
    so.progress = s->progress;
    so.progress_user = s->user;
    return st == KVS_OK ? kvs_session_new(e->ctx, e->model, &so, &e->session, err) : st;
}

static void engine_open(engine *e, const setup *s)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    if (engine_try(e, s, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
}

static void engine_close(engine *e)
{
    kvs_session_free(e->session);
    kvs_plan_free(e->plan);
    kvs_model_close(e->model);
    kvs_ctx_free(e->ctx);
}

typedef struct rows {
    float v[N][VOCAB];
    size_t n;
} rows;

static int keep_row(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    rows *r = user;
    assert_int_equal(n_vocab, VOCAB);
    assert_in_range(pos, 0, N - 1);
    memcpy(r->v[pos], logits, sizeof r->v[pos]);
    r->n++;
    return 0;
}

static void all_rows(const setup *s, rows *r)
{
    engine e;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_eval ev = KVS_EVAL_INIT;
    engine_open(&e, s);
    r->n = 0;
    ev.tokens = tokens;
    ev.n_tokens = N;
    ev.on_logits = keep_row;
    ev.user = r;
    if (kvs_session_eval(e.session, &ev, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(r->n, N);
    engine_close(&e);
}

static rows reference;
static rows other;

static void same_rows(const setup *s, const char *what)
{
    all_rows(s, &other);
    for (size_t i = 0; i < N; i++) {
        if (memcmp(reference.v[i], other.v[i], sizeof reference.v[i]) != 0) {
            fail_msg("kv %s, %s: row %zu differs", s->kv, what, i);
        }
    }
}

static const char *const plans[] = {"f32", "f16", "bf16", "q8", "q4", "k8v4", "q3+f16", "affine2"};

static void check_plan(const char *path, const char *kv)
{
    setup base = {.path = path, .kv = kv, .max_block = 64, .block = 16};
    const uint32_t blocks[] = {1, 7, 64};
    all_rows(&base, &reference);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        setup s = base;
        s.block = blocks[i];
        same_rows(&s, "block size");
    }
    setup s = base;
    s.max_block = 512;
    s.block = 0;
    same_rows(&s, "one block of up to 512");
    s = base;
    s.threads = 2;
    same_rows(&s, "two threads");
    s = base;
    s.max_block = 8; /* the window becomes a ring that wraps many times */
    s.block = 8;
    same_rows(&s, "small ring");
    s = base;
    s.flags = KVS_PLAN_FULL_WINDOW;
    same_rows(&s, "no ring");
    const uint32_t paged[] = {1, 17, 64};
    for (size_t i = 0; i < sizeof paged / sizeof paged[0]; i++) {
        s = base;
        s.kv_block = paged[i];
        s.max_block = i ? 8 : 64;
        s.block = 8;
        same_rows(&s, "paged");
    }
    s.flags = KVS_PLAN_FULL_WINDOW;
    same_rows(&s, "paged, windows that keep all");
    s = base;
    s.tiers_off = KVS_TIER_AVX512;
    same_rows(&s, "without AVX-512");
    s.tiers_off = KVS_TIER_ALL;
    s.threads = 2;
    same_rows(&s, "reference kernels");
}

static void test_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        check_plan(llama_path, plans[i]);
        check_plan(gemma_path, plans[i]);
    }
    static const char *const latent[] = {"f16", "affine8:32", "q4:32"};
    for (size_t i = 0; i < sizeof latent / sizeof latent[0]; i++) {
        check_plan(latent_path, latent[i]);
    }
    static const char *const few[] = {"f32", "f16", "q4"};
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++) {
        check_plan(delta_path, few[i]);
        check_plan(borrow_path, few[i]);
    }
    check_plan(ssd_path, "f16");
}

static void test_same_bits_with_limits(void **state)
{
    (void)state;
    const uint32_t blocks[] = {1, 7, 32};
    setup base = {.path = llama_path, .kv = "q4", .max_block = 32, .block = 5};
    for (int kind = 0; kind < 2; kind++) {
        base.start = kind == 0 ? 45 : 0;
        base.window = kind == 1 ? 40 : 0;
        base.sinks = kind == 1 ? 3 : 0;
        all_rows(&base, &reference);
        for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            setup s = base;
            s.block = blocks[i];
            same_rows(&s, kind == 0 ? "delayed quantisation" : "window and sinks");
            s.kv_block = 16 + (uint32_t)i;
            same_rows(&s, kind == 0 ? "delayed, paged" : "window and sinks, paged");
        }
        if (kind == 1) {
            setup s = base;
            s.flags = KVS_PLAN_FULL_WINDOW;
            same_rows(&s, "window and sinks without a ring");
        }
    }
}

/* The same prefix reached in other ways: the logits are those of a cold start. */
static void test_reuse(void **state)
{
    (void)state;
    const char *const paths[] = {llama_path, gemma_path};
    for (size_t p = 0; p < 2; p++) {
        setup s = {.path = paths[p], .kv = "q8", .max_block = 16};
        all_rows(&s, &reference);
        engine e;
        size_t reused = 99;
        int32_t changed[N];
        engine_open(&e, &s);
        memcpy(changed, tokens, sizeof tokens);
        changed[90] = (changed[90] + 1) % VOCAB;
        assert_int_equal(kvs_session_sync(e.session, changed, 100, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 0);
        assert_memory_not_equal(kvs_session_logits(e.session), reference.v[99], VOCAB * 4);
        assert_int_equal(kvs_session_sync(e.session, tokens, 120, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 90);
        assert_memory_equal(kvs_session_logits(e.session), reference.v[119], VOCAB * 4);
        /* the same again: nothing is computed */
        assert_int_equal(kvs_session_sync(e.session, tokens, 120, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 120);
        /* a prefix of what is held: one token, for its logits */
        assert_int_equal(kvs_session_sync(e.session, tokens, 115, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 114);
        assert_memory_equal(kvs_session_logits(e.session), reference.v[114], VOCAB * 4);
        /* far back: a ring has dropped what is needed, so it starts anew and says so */
        assert_int_equal(kvs_session_sync(e.session, tokens, 30, &reused, NULL), KVS_OK);
        assert_int_equal(reused, p == 0 ? 29 : 0);
        assert_memory_equal(kvs_session_logits(e.session), reference.v[29], VOCAB * 4);
        assert_int_equal(kvs_session_append(e.session, tokens + 30, 2, NULL), KVS_OK);
        assert_memory_equal(kvs_session_logits(e.session), reference.v[31], VOCAB * 4);
        assert_int_equal(kvs_session_sync(e.session, NULL, 0, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 0);
        assert_null(kvs_session_logits(e.session));
        engine_close(&e);
    }
}

/* Recurrent layers go back as far as the plan says, and beyond that a session starts anew. */
static void test_undo(void **state)
{
    (void)state;
    static const char *const paths[] = {delta_path, ssd_path};
    static const uint32_t undo[] = {0, 1, 20, KVS_UNDO_NONE};
    static const uint32_t depth[] = {16, 1, 20, 0};
    for (size_t i = 0; i < 8; i++) {
        setup s = {.path = paths[i / 4], .kv = "f16", .undo = undo[i % 4]};
        const uint32_t most = depth[i % 4];
        engine e;
        all_rows(&s, &reference);
        engine_open(&e, &s);
        size_t reused = 99;
        assert_int_equal(kvs_session_append(e.session, tokens, 100, NULL), KVS_OK);
        for (size_t n = 100; most > 0 && n >= 100 - most + 1; n -= most > 7 ? 7 : 1) {
            /* the token before the last is the one that is computed again */
            assert_int_equal(kvs_session_sync(e.session, tokens, n, &reused, NULL), KVS_OK);
            assert_int_equal(reused, n == 100 ? 100 : n - 1);
            assert_memory_equal(kvs_session_logits(e.session), reference.v[n - 1], VOCAB * 4);
            assert_int_equal(kvs_session_append(e.session, tokens + n, 100 - n, NULL), KVS_OK);
            assert_memory_equal(kvs_session_logits(e.session), reference.v[99], VOCAB * 4);
        }
        /* snapshots may reach somewhat further than asked, but not so far */
        const size_t n = most ? 30 : 99;
        assert_int_equal(kvs_session_sync(e.session, tokens, n, &reused, NULL), KVS_OK);
        assert_int_equal(reused, 0);
        assert_memory_equal(kvs_session_logits(e.session), reference.v[n - 1], VOCAB * 4);
        engine_close(&e);
    }
}

static void test_undo_bytes(void **state)
{
    (void)state;
    kvs_err err = {KVS_OK, 0, "", ""};
    engine e;
    setup s = {.path = delta_path, .kv = "f16"};
    size_t bytes[4];
    const uint32_t undo[4] = {KVS_UNDO_NONE, 1, 64, 64};
    const uint64_t limit[4] = {0, 0, 0, (uint64_t)1 << 30};
    engine_open(&e, &s);
    for (size_t i = 0; i < 4; i++) {
        kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
        kvs_plan *p = NULL;
        o.undo_tokens = undo[i];
        o.undo_bytes = limit[i];
        assert_int_equal(kvs_plan_new(e.ctx, e.model, &o, &p, NULL), KVS_OK);
        assert_int_equal(kvs_plan_bytes(p, 100, &bytes[i], NULL, NULL), KVS_OK);
        kvs_plan_free(p);
    }
    assert_true(bytes[0] < bytes[1] && bytes[1] < bytes[2] && bytes[2] < bytes[3]);
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    kvs_plan *p = NULL;
    o.undo_bytes = 100; /* too few for any interval */
    assert_true(kvs_plan_new(e.ctx, e.model, &o, &p, &err) < 0);
    assert_null(p);
    assert_non_null(strstr(err.msg, "undo_bytes is 100"));
    o.undo_bytes = 0;
    o.undo_tokens = 65537;
    assert_int_equal(kvs_plan_new(e.ctx, e.model, &o, &p, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "65537"));
    o.undo_tokens = 0;
    o.reserved = 1;
    assert_int_equal(kvs_plan_new(e.ctx, e.model, &o, &p, &err), KVS_E_INVAL);
    engine_close(&e);
}

/* What undo may take decides how far snapshots lie apart, and both costs are what a plan says: bytes
 * to the byte, tokens computed again at most interval - 1. The logits are the same. */
static void test_undo_costs(void **state)
{
    (void)state;
    static const char *const paths[] = {delta_path, ssd_path};
    for (size_t m = 0; m < 2; m++) {
        engine e;
        setup s = {.path = paths[m], .kv = "f16"};
        kvs_err err = KVS_ERR_INIT;
        kvs_plan_undo least = KVS_PLAN_UNDO_INIT;
        engine_open(&e, &s);
        assert_int_equal(kvs_plan_get_undo(e.plan, &least), KVS_OK);
        assert_true(least.n_tokens == 16 && least.interval == least.interval_least);
        assert_true(least.bytes == least.bytes_least && least.bytes < least.bytes_every);
        assert_true(least.interval > 1);
        assert_int_equal(kvs_plan_get_undo(NULL, &least), KVS_E_INVAL);
        kvs_plan_undo old = {offsetof(kvs_plan_undo, interval), 7, 7, 7, 7, 7, 7, 7};
        assert_int_equal(kvs_plan_get_undo(e.plan, &old), KVS_OK); /* an older caller's */
        assert_true(old.n_tokens == 16 && old.interval == 7 && old.bytes_every == 7);
        assert_int_equal(kvs_session_sync(e.session, tokens, 60, NULL, NULL), KVS_OK);
        assert_int_equal(kvs_session_sync(e.session, tokens, 50, NULL, NULL), KVS_OK);
        float want[VOCAB];
        memcpy(want, kvs_session_logits(e.session), sizeof want);
        engine_close(&e);
        uint32_t before = least.interval;
        for (uint64_t budget = least.bytes_least; before > 1; budget += 1000) {
            kvs_plan_undo u = KVS_PLAN_UNDO_INIT;
            s.undo_bytes = budget;
            engine_open(&e, &s);
            assert_int_equal(kvs_plan_get_undo(e.plan, &u), KVS_OK);
            assert_true(u.bytes <= budget && u.interval <= before && u.interval >= 1);
            assert_true(u.bytes_least == least.bytes_least && u.bytes_every == least.bytes_every);
            assert_true(u.interval > 1 || u.bytes == u.bytes_every);
            before = u.interval;
            assert_int_equal(kvs_session_sync(e.session, tokens, 60, NULL, NULL), KVS_OK);
            assert_int_equal(kvs_session_sync(e.session, tokens, 50, NULL, NULL), KVS_OK);
            assert_memory_equal(kvs_session_logits(e.session), want, sizeof want);
            size_t bytes = 0;
            const kvs_cache *c = kvs_session_cache(e.session);
            for (uint32_t l = 0; l < kvs_plan_n_layers(e.plan); l++) {
                kvs_recurrent_stats st = KVS_RECURRENT_STATS_INIT;
                if (kvs_recurrent_get_stats(c, l, &st) == KVS_OK) {
                    bytes += st.undo_bytes;
                    assert_true(st.n_rewinds == 1 && st.n_recomputed < u.interval);
                }
            }
            assert_int_equal(bytes, u.bytes);
            engine_close(&e);
        }
        s.undo_bytes = least.bytes_least - 1;
        assert_int_equal(engine_try(&e, &s, &err), KVS_E_LIMIT);
        char says[64];
        (void)snprintf(says, sizeof says, "with %zu bytes at least", least.bytes_least);
        assert_non_null(strstr(err.msg, says));
        engine_close(&e);
        s.undo = KVS_UNDO_NONE; /* then nothing is taken, whatever it may take */
        engine_open(&e, &s);
        assert_int_equal(kvs_plan_get_undo(e.plan, &least), KVS_OK);
        assert_true(least.n_tokens == 0 && least.bytes == 0 && least.interval == 0);
        engine_close(&e);
    }
}

static void test_plan_lines(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        const char *lines[4];
    } cases[] = {
        {delta_path,
         {"layers 0,2,4: recurrent delta, 4 heads of 24 x 16 in f32, convolution 4 of 160, "
          "goes back 16 tokens (a snapshot every 8, 52616 bytes)",
          "layers 1,3: grow, k f16, v f16, 2 heads of 64/64", ""}},
        {ssd_path,
         {"layers 0-2: recurrent ssd, 4 heads of 24 x 16 in f32, convolution 4 of 160, "
          "goes back 16 tokens (a snapshot every 8, 52616 bytes)",
          ""}},
        {borrow_path,
         {"layers 0-1,3: grow window 24, k f16, v f16, 2 heads of 64/64",
          "layers 2: grow, k f16, v f16, 2 heads of 128/128",
          "layers 4,6-7: nothing, they read layer 3", "layers 5: nothing, they read layer 2"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        engine e;
        setup s = {.path = cases[c].path, .kv = "f16"};
        char line[256];
        engine_open(&e, &s);
        for (uint32_t i = 0; i < 4 && cases[c].lines[i]; i++) {
            (void)kvs_plan_line(e.plan, i, line, sizeof line);
            assert_string_equal(line, cases[c].lines[i]);
        }
        engine_close(&e);
    }
}

static void test_refused(void **state)
{
    (void)state;
    engine e;
    setup s = {.path = llama_path, .kv = "f16", .n_ctx = 64};
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t n = 0;
    int32_t bad[4] = {1, 2, VOCAB, 3};
    engine_open(&e, &s);
    assert_int_equal(kvs_session_sync(e.session, tokens, 60, NULL, &err), KVS_OK);
    assert_int_equal(kvs_session_sync(e.session, tokens, 65, NULL, &err), KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "65 tokens do not fit into 64"));
    assert_int_equal(kvs_session_append(e.session, tokens, 5, &err), KVS_E_LIMIT);
    assert_int_equal(kvs_session_append(e.session, bad, 4, &err), KVS_E_RANGE);
    assert_non_null(strstr(err.msg, "token 97 at index 2"));
    bad[2] = -1;
    assert_int_equal(kvs_session_sync(e.session, bad, 4, NULL, &err), KVS_E_RANGE);
    (void)kvs_session_tokens(e.session, &n);
    assert_int_equal(n, 60);
    assert_non_null(kvs_session_logits(e.session)); /* nothing changed */
    assert_int_equal(kvs_session_append(e.session, tokens + 60, 4, &err), KVS_OK);
    engine_close(&e);

    s.block = 65;
    assert_int_equal(engine_try(&e, &s, &err), KVS_E_RANGE);
    engine_close(&e);
}

static int stop_at_32(void *user, size_t done, size_t total)
{
    assert_true(done > 0 && done < total); /* between blocks */
    *(size_t *)user = done;
    return done >= 32;
}

static void test_cancel(void **state)
{
    (void)state;
    engine e;
    size_t done = 0;
    size_t n = 0;
    size_t reused = 0;
    setup s = {.path = gemma_path, .kv = "f16", .max_block = 16, .progress = stop_at_32};
    s.user = &done;
    all_rows(&(setup){.path = gemma_path, .kv = "f16"}, &reference);
    engine_open(&e, &s);
    assert_int_equal(kvs_session_sync(e.session, tokens, 100, NULL, NULL), KVS_E_CANCELLED);
    assert_int_equal(done, 32);
    (void)kvs_session_tokens(e.session, &n);
    assert_int_equal(n, 32);
    assert_null(kvs_session_logits(e.session));
    assert_int_equal(kvs_session_sync(e.session, tokens, 40, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 32);
    assert_memory_equal(kvs_session_logits(e.session), reference.v[39], VOCAB * 4);
    engine_close(&e);
}

typedef struct seen {
    float last[VOCAB];
    size_t n;
} seen;

static int keep_last(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    seen *k = user;
    (void)pos;
    memcpy(k->last, logits, n_vocab * sizeof *logits);
    k->n++;
    return 0;
}

/* However many rows of logits are handed out together, the session keeps the last one. */
static void test_last_row(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 9; n++) {
        engine e;
        setup s = {.path = llama_path, .kv = "f16"};
        kvs_eval ev = KVS_EVAL_INIT;
        seen k = {{0}, 0};
        engine_open(&e, &s);
        ev.tokens = tokens;
        ev.n_tokens = 20;
        ev.logits_from = 20 - n;
        ev.on_logits = keep_last;
        ev.user = &k;
        assert_int_equal(kvs_session_eval(e.session, &ev, NULL), KVS_OK);
        assert_int_equal(k.n, n);
        assert_memory_equal(kvs_session_logits(e.session), k.last, sizeof k.last);
        engine_close(&e);
    }
}

/* ---- memory that runs out: the k-th allocation fails, for every k */

typedef struct fuse {
    long left; /* allocations that still work */
    size_t live;
} fuse;

static void *fuse_alloc(void *user, size_t bytes, size_t align)
{
    fuse *f = user;
    if (f->left-- <= 0) {
        return NULL;
    }
    f->live += bytes;
    return aligned_alloc(align, (bytes + align) / align * align);
}

static void fuse_free(void *user, void *ptr, size_t bytes)
{
    fuse *f = user;
    f->live -= bytes;
    free(ptr);
}

static void run_out_of_memory(const char *path, const char *kv)
{
    fuse f = {1 << 20, 0};
    setup s = {.path = path, .kv = kv, .max_block = 16};
    s.ctx_opts = (kvs_ctx_opts)KVS_CTX_OPTS_INIT;
    s.ctx_opts.alloc = fuse_alloc;
    s.ctx_opts.free = fuse_free;
    s.ctx_opts.alloc_user = &f;
    all_rows(&(setup){.path = path, .kv = kv}, &reference);
    size_t failures = 0;
    for (long k = 0;; k++) {
        engine e;
        kvs_err err = {KVS_OK, 0, "", ""};
        f = (fuse){k, 0};
        kvs_status st = engine_try(&e, &s, &err);
        if (st == KVS_OK) {
            st = kvs_session_sync(e.session, tokens, 70, NULL, &err);
            if (st != KVS_OK) { /* with memory again it goes on from where it is */
                size_t held = 0;
                (void)kvs_session_tokens(e.session, &held);
                assert_int_equal(st, KVS_E_NOMEM);
                f.left = 1 << 20;
                size_t reused = 0;
                assert_int_equal(kvs_session_sync(e.session, tokens, 70, &reused, &err), KVS_OK);
                assert_int_equal(reused, held);
                assert_memory_equal(kvs_session_logits(e.session), reference.v[69], VOCAB * 4);
            }
        }
        engine_close(&e);
        assert_int_equal(f.live, 0);
        if (st == KVS_OK) {
            break;
        }
        assert_int_equal(st, KVS_E_NOMEM);
        failures++;
    }
    assert_true(failures > 20);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    run_out_of_memory(gemma_path, "q4");
    run_out_of_memory(latent_path, "f16");
    run_out_of_memory(delta_path, "q4");
    run_out_of_memory(ssd_path, "f16");
    run_out_of_memory(borrow_path, "f16");
}

static void test_planned_bytes(void **state)
{
    (void)state;
    const char *const paths[] = {llama_path, gemma_path, delta_path, ssd_path, borrow_path};
    for (size_t p = 0; p < sizeof paths / sizeof paths[0]; p++) {
        for (size_t i = 0; i < 2 * sizeof plans / sizeof plans[0]; i++) {
            engine e;
            setup s = {.path = paths[p], .kv = plans[i / 2], .max_block = 16};
            s.kv_block = i % 2 ? 8 + (uint32_t)i : 0;
            s.undo = (uint32_t)i;
            engine_open(&e, &s);
            for (size_t n = 1; n <= 129; n += 64) {
                size_t want = 0;
                assert_int_equal(kvs_session_sync(e.session, NULL, 0, NULL, NULL), KVS_OK);
                assert_int_equal(kvs_session_sync(e.session, tokens, n, NULL, NULL), KVS_OK);
                assert_int_equal(kvs_plan_bytes(e.plan, n, &want, NULL, NULL), KVS_OK);
                kvs_session_stats st = KVS_SESSION_STATS_INIT;
                assert_int_equal(kvs_session_get_stats(e.session, &st), KVS_OK);
                assert_int_equal(st.state_bytes, want);
            }
            engine_close(&e);
        }
    }
}

/* Two sessions on one pool of the caller's: its limit is one budget, and it outlives both. */
static void test_shared_pool(void **state)
{
    (void)state;
    engine e;
    setup s = {.path = llama_path, .kv = "q8", .kv_block = 16, .max_block = 16};
    engine_open(&e, &s);
    kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_session *two[2] = {NULL, NULL};
    kvs_err err = {KVS_OK, 0, "", ""};
    po.block_tokens = 32;
    so.plan = e.plan;
    assert_int_equal(kvs_pages_new(e.ctx, &po, &so.pages, NULL), KVS_OK);
    assert_int_equal(kvs_session_new(e.ctx, e.model, &so, &two[0], &err), KVS_E_INVAL);
    assert_true(!two[0] && strstr(err.msg, "32"));
    kvs_pages_free(so.pages);
    po.block_tokens = 16;
    assert_int_equal(kvs_pages_new(e.ctx, &po, &so.pages, NULL), KVS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvs_session_new(e.ctx, e.model, &so, &two[i], NULL), KVS_OK);
        assert_int_equal(kvs_session_sync(two[i], tokens, 40, NULL, NULL), KVS_OK);
    }
    assert_memory_equal(kvs_session_logits(two[0]), kvs_session_logits(two[1]),
                        VOCAB * sizeof(float));
    kvs_pages_stats st = KVS_PAGES_STATS_INIT;
    assert_int_equal(kvs_pages_get_stats(so.pages, &st), KVS_OK);
    assert_int_equal(st.n_held, 2 * 3 * kvs_plan_n_layers(e.plan));
    assert_int_equal(kvs_pages_set_limit(so.pages, 1, NULL), KVS_OK);
    kvs_status full = KVS_OK;
    size_t n = 0;
    for (n = 48; n < N && full == KVS_OK; n += 16) {
        full = kvs_session_sync(two[0], tokens, n, NULL, &err);
    }
    /* the pool had some free blocks; then the session is left where it was, the other untouched */
    assert_true(full == KVS_E_LIMIT || n >= N);
    kvs_session_free(two[0]);
    assert_int_equal(kvs_session_sync(two[1], tokens, 48, NULL, NULL), KVS_OK);
    kvs_session_free(two[1]);
    assert_int_equal(kvs_pages_get_stats(so.pages, &st), KVS_OK);
    assert_int_equal(st.n_total, 0);
    kvs_pages_free(so.pages);
    engine_close(&e);
}

/* ---- one model, several contexts at once */

typedef struct worker {
    const kvs_model *model;
    uint32_t threads;
    float logits[VOCAB];
    kvs_status status;
} worker;

static void *work(void *opaque)
{
    worker *w = opaque;
    kvs_ctx *ctx = NULL;
    kvs_session *s = NULL;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = w->threads;
    w->status = kvs_ctx_new(&co, &ctx, NULL);
    if (w->status == KVS_OK) {
        w->status = kvs_session_new(ctx, w->model, NULL, &s, NULL);
    }
    if (w->status == KVS_OK) {
        w->status = kvs_session_sync(s, tokens, N, NULL, NULL);
    }
    if (w->status == KVS_OK) {
        memcpy(w->logits, kvs_session_logits(s), sizeof w->logits);
    }
    kvs_session_free(s);
    kvs_ctx_free(ctx);
    return NULL;
}

static void test_shared_model(void **state)
{
    (void)state;
    kvs_ctx *ctx = NULL;
    kvs_model *model = NULL;
    pthread_t threads[3];
    static worker w[3];
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    assert_int_equal(kvs_model_open(ctx, gemma_path, NULL, &model, NULL), KVS_OK);
    for (uint32_t i = 0; i < 3; i++) {
        w[i] = (worker){.model = model, .threads = i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    for (uint32_t i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], NULL);
        assert_int_equal(w[i].status, KVS_OK);
        assert_memory_equal(w[i].logits, w[0].logits, sizeof w[0].logits);
    }
    kvs_model_close(model);
    kvs_ctx_free(ctx);
}

static int write_models(void **state)
{
    (void)state;
    tiny l = TINY_LLAMA;
    tiny g = TINY_GEMMA;
    l.dim = 64;
    g.dim = 64;
    for (int i = 0; i < N; i++) {
        tokens[i] = (i * 31 + i * i * 7) % VOCAB;
    }
    tiny d = TINY_DEEPSEEK;
    d.rank = 64;
    d.rot = 32; /* a row of 96: rotated in blocks of 32, which the value does not cut */
    tiny q = TINY_QWEN3NEXT;
    tiny m = TINY_MAMBA2;
    tiny b = TINY_GEMMA4;
    q.dim = 64;
    b.dim = 64;
    b.full_dim = 128;
    return tiny_write(&q, delta_path, sizeof delta_path) &&
                   tiny_write(&m, ssd_path, sizeof ssd_path) &&
                   tiny_write(&b, borrow_path, sizeof borrow_path) &&
                   tiny_write(&l, llama_path, sizeof llama_path) &&
                   tiny_write(&g, gemma_path, sizeof gemma_path) &&
                   tiny_write(&d, latent_path, sizeof latent_path)
               ? 0
               : -1;
}

static int remove_models(void **state)
{
    (void)state;
    (void)unlink(llama_path);
    (void)unlink(gemma_path);
    (void)unlink(latent_path);
    (void)unlink(delta_path);
    (void)unlink(ssd_path);
    (void)unlink(borrow_path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),     cmocka_unit_test(test_same_bits_with_limits),
        cmocka_unit_test(test_reuse),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_cancel),        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_planned_bytes), cmocka_unit_test(test_shared_pool),
        cmocka_unit_test(test_shared_model),  cmocka_unit_test(test_undo),
        cmocka_unit_test(test_undo_bytes),    cmocka_unit_test(test_last_row),
        cmocka_unit_test(test_undo_costs),    cmocka_unit_test(test_plan_lines),
    };
    return cmocka_run_group_tests(tests, write_models, remove_models);
}
