/* SPDX-License-Identifier: MIT */
/* persist_rig.h: for tests of sessions with a store: tiny models in a directory of their own, one
 * pseudo-random text and its variants, and the logits of a session that never saw a store. */
#ifndef KVS_TESTS_SUPPORT_PERSIST_RIG_H
#define KVS_TESTS_SUPPORT_PERSIST_RIG_H

#include <sys/stat.h>
#include <unistd.h>

#include "kvstate/engine.h"
#include "support/fail_alloc.h"
#include "support/model_build.h"
#include "support/remove_tree.h"

#define N       600
#define TAIL    5
#define N_VOCAB 97

static char base[256];
static int n_dirs;

static int setup(void **state)
{
    (void)state;
    (void)snprintf(base, sizeof base, "/dev/shm/kvstate-persist-XXXXXX"); /* flushes cost nothing */
    if (mkdtemp(base)) {
        return 0;
    }
    (void)snprintf(base, sizeof base, "/tmp/kvstate-persist-XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    remove_tree(base);
    return 0;
}

static const char *new_dir(char *dst, size_t n)
{
    (void)snprintf(dst, n, "%s/%d", base, n_dirs++);
    return dst;
}

/* ---- rig */

typedef struct rig {
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *s;
    char file[320];
} rig;

typedef struct kind {
    const char *name;
    const tiny *model;
    kvs_plan_opts plan;
    uint32_t first; /* fewest tokens that come back: those of delayed conversion come whole */
} kind;

#define PLAN(...)                                                                                  \
    {                                                                                              \
        sizeof(kvs_plan_opts), __VA_ARGS__                                                         \
    }

static void open_on(rig *r, const tiny *t, const kvs_plan_opts *plan, kvs_ctx *ctx)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    memset(r, 0, sizeof *r);
    r->ctx = ctx;
    (void)snprintf(r->file, sizeof r->file, "%s/%s-%llu.gguf", base, t->arch,
                   (unsigned long long)t->seed);
    assert_true(access(r->file, F_OK) == 0 || tiny_save(t, r->file));
    if (kvs_model_open(ctx, r->file, NULL, &r->model, &err) != KVS_OK ||
        kvs_plan_new(ctx, r->model, plan, &r->plan, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = r->plan;
    if (kvs_session_new(ctx, r->model, &o, &r->s, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
}

static void rig_open(rig *r, const kind *k, const char *dir, const kvs_persist_opts *opts)
{
    kvs_ctx *ctx = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = 1;
    assert_int_equal(kvs_ctx_new(&co, &ctx, NULL), KVS_OK);
    open_on(r, k->model, &k->plan, ctx);
    if (dir || opts) {
        kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
        o = opts ? *opts : o;
        o.dir = dir;
        if (kvs_session_persist(r->s, &o, &err) != KVS_OK) {
            fail_msg("%s", err.msg);
        }
    }
}

static void rig_close(rig *r)
{
    kvs_session_free(r->s);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    kvs_ctx_free(r->ctx);
}

static int32_t token(size_t i, uint32_t text)
{
    return (int32_t)((i * 2654435761u + (i >> 3) * 40503u + text * 977u) >> 7) % N_VOCAB;
}

/* The first n tokens of text 0, then others. */
static size_t prompt(int32_t *dst, size_t n, size_t tail)
{
    for (size_t i = 0; i < n + tail; i++) {
        dst[i] = token(i, i < n ? 0 : 1);
        dst[i] = (dst[i] % N_VOCAB + N_VOCAB) % N_VOCAB;
    }
    return n + tail;
}

static kvs_reuse reuse_of(const kvs_session *s)
{
    kvs_reuse r = KVS_REUSE_INIT;
    assert_int_equal(kvs_session_get_reuse(s, &r), KVS_OK);
    return r;
}

static void sync_to(rig *r, size_t n, size_t tail)
{
    int32_t t[N + 2000];
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t len = prompt(t, n, tail);
    if (kvs_session_sync(r->s, t, len, NULL, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
}

/* Logits of a session that never saw a store. */
static void cold_logits(const kind *k, size_t n, size_t tail, float *dst)
{
    rig r;
    rig_open(&r, k, NULL, NULL);
    sync_to(&r, n, tail);
    memcpy(dst, kvs_session_logits(r.s), N_VOCAB * sizeof *dst);
    rig_close(&r);
}

static void same(const rig *r, const float *want, const char *what, const char *kind_name, size_t n)
{
    const float *got = kvs_session_logits(r->s);
    if (!got || memcmp(got, want, N_VOCAB * sizeof *got) != 0) {
        fail_msg("%s, %s, %zu tokens: other logits", kind_name, what, n);
    }
}

/* Goes on as a session that computed all n tokens of the prompt itself: the same bits for what
 * follows them, token by token. */
static void decode_alike(rig *r, const kind *k, size_t n)
{
    rig cold;
    rig_open(&cold, k, NULL, NULL);
    sync_to(&cold, n, 0);
    same(r, kvs_session_logits(cold.s), "again", k->name, n);
    for (int32_t t = 0; t < 70; t++) {
        int32_t id = (t * 31) % N_VOCAB;
        assert_int_equal(kvs_session_append(cold.s, &id, 1, NULL), KVS_OK);
        assert_int_equal(kvs_session_append(r->s, &id, 1, NULL), KVS_OK);
        same(r, kvs_session_logits(cold.s), "decoded", k->name, (size_t)t);
    }
    rig_close(&cold);
}

/* ---- trouble */

/* Each file of a folder: a byte changed, or cut there. */
static void damage(const char *dir, const char *folder, long at, bool cut)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", dir, folder);
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        if (e->d_name[0] == '.') {
            continue;
        }
        (void)snprintf(path, sizeof path, "%s/%s/%s", dir, folder, e->d_name);
        if (cut) {
            assert_int_equal(truncate(path, at), 0);
            continue;
        }
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
        int c = fgetc(f);
        assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
        assert_int_not_equal(fputc(c ^ 0x10, f), EOF);
        assert_int_equal(fclose(f), 0);
    }
    (void)closedir(d);
}

/* State of all N tokens that is damaged, in the dark or under a session's hands, is computed again. */
static void check_damage(const kind *k, const char *folder, long at, bool cut, bool open_before)
{
    char dir[300];
    float want[N_VOCAB];
    rig r;
    cold_logits(k, N, 0, want);
    rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
    sync_to(&r, N, 0);
    rig_close(&r);
    if (!open_before) {
        damage(dir, folder, at, cut);
    }
    rig_open(&r, k, dir, NULL);
    if (open_before) {
        damage(dir, folder, at, cut);
    }
    sync_to(&r, N, 0);
    same(&r, want, "damaged", k->name, N);
    rig_close(&r);
    rig_open(&r, k, dir, NULL); /* it was saved anew, or was in memory all the time */
    sync_to(&r, N, 0);
    same(&r, want, "after damage", k->name, N);
    rig_close(&r);
}

/* A prompt of n tokens and TAIL others, whose logits are `want`, on a session whose at-th allocation
 * from the store on fails; false: none did. */
static bool run_failing(const kind *k, const char *dir, long at, size_t n, const float *want)
{
    fail_alloc f = FAIL_ALLOC_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    int32_t t[N + TAIL];
    rig r;
    o.dir = dir;
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &f;
    assert_int_equal(kvs_ctx_new(&co, &ctx, NULL), KVS_OK);
    open_on(&r, k->model, &k->plan, ctx);
    long before = atomic_load(&f.calls);
    atomic_store(&f.fail_at, before + at);
    kvs_status st = kvs_session_persist(r.s, &o, NULL);
    size_t len = prompt(t, n, TAIL);
    kvs_status sync = kvs_session_sync(r.s, t, len, NULL, NULL);
    bool over = atomic_load(&f.calls) <= before + at;
    atomic_store(&f.fail_at, -1);
    if (sync != KVS_OK) {
        assert_int_equal(sync, KVS_E_NOMEM);
        assert_int_equal(kvs_session_sync(r.s, t, len, NULL, NULL), KVS_OK);
    }
    same(&r, want, "memory fails", k->name, (size_t)at);
    rig_close(&r);
    assert_int_equal(atomic_load(&f.blocks), 0);
    assert_int_equal(atomic_load(&f.wrong), 0);
    assert_true(!over || st == KVS_OK);
    return !over;
}

#endif
