/* SPDX-License-Identifier: MIT */
/* test_engine_persist.c: sessions with a store on tiny models: cold = warm = restored = gone back, bit
 * for bit, at every boundary of blocks and windows; misses with a reason; damage, a full and a
 * vanished directory, two sessions on one directory, memory that fails, answers under way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/persist_rig.h"

static const tiny llama = {.arch = "llama",
                           .n_layers = 2,
                           .d_model = 32,
                           .d_ff = 32,
                           .n_heads = 2,
                           .n_kv_heads = 1,
                           .dim = 64,
                           .n_vocab = N_VOCAB,
                           .n_ctx = 8192,
                           .type = KVS__W_F32,
                           .seed = 1};
static const tiny gemma = {.arch = "gemma3",
                           .n_layers = 7,
                           .d_model = 32,
                           .d_ff = 32,
                           .n_heads = 2,
                           .n_kv_heads = 1,
                           .dim = 64,
                           .n_vocab = N_VOCAB,
                           .n_ctx = 8192,
                           .window = 24,
                           .type = KVS__W_F32,
                           .seed = 2};
static const tiny latent = {.arch = "deepseek2",
                            TINY_EXPERTS,
                            .n_shared = 2,
                            .n_groups = 4,
                            .n_best = 2,
                            .n_dense = 1,
                            .q_rank = 48,
                            .rank = 32,
                            .nope = 24,
                            .rot = 16,
                            .seed = 4};

static const kind kinds[] = {
    {"f16", &llama, PLAN("f16", .n_ctx = 1024), 1},
    {"q8", &llama, PLAN("q8", .n_ctx = 1024), 1},
    {"k8v4", &llama, PLAN("k8v4", .n_ctx = 1024), 1},
    {"affine4", &llama, PLAN("affine4", .group = 32, .n_ctx = 1024), 1},
    {"paged", &llama, PLAN("q4", .n_ctx = 1024, .kv_block = 16), 1},
    {"start", &llama, PLAN("q4", .n_ctx = 1024, .start = 300), 301},
    {"start beyond", &llama, PLAN("q4", .n_ctx = 1024, .start = 700), 1},
    {"window", &llama, PLAN("q8", .n_ctx = 1024, .window = 40, .sinks = 4, .max_block = 64), 1},
    {"window, block 1", &llama, PLAN("f16", .n_ctx = 1024, .window = 300, .max_block = 16), 1},
    {"window, paged", &llama,
     PLAN("q4", .n_ctx = 1024, .window = 40, .sinks = 20, .max_block = 64, .kv_block = 16), 1},
    {"gemma", &gemma, PLAN("f16", .n_ctx = 1024, .max_block = 96), 1},
    {"gemma q4", &gemma, PLAN("q4", .n_ctx = 1024, .max_block = 512), 1},
    {"gemma full", &gemma, PLAN("q4", .n_ctx = 1024, .flags = KVS_PLAN_FULL_WINDOW), 1},
    {"gemma paged", &gemma, PLAN("q8", .n_ctx = 1024, .max_block = 64, .kv_block = 48), 1},
    {"latent", &latent, PLAN("f16", .n_ctx = 1024), 1},
    {"c4", &llama, PLAN("c4", .n_ctx = 1024), 1},
    {"c4, window", &llama, PLAN("c4", .n_ctx = 1024, .window = 40, .sinks = 4, .max_block = 64), 1},
    {"c3, window, paged", &llama,
     PLAN("c3", .n_ctx = 1024, .window = 90, .sinks = 20, .max_block = 64, .kv_block = 48), 1},
    {"c4, start", &llama, PLAN("c4", .n_ctx = 1024, .start = 300), 301},
    {"gemma c8", &gemma, PLAN("c8", .n_ctx = 1024, .max_block = 96), 1},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static const size_t cuts[] = {16,  17,  39,  40,  41,  44,  63,  64,  65,  255,
                              256, 257, 279, 280, 281, 299, 300, 301, 302, 343,
                              511, 512, 513, 535, 536, 537, 598, 599, 600};
#define N_CUTS (sizeof cuts / sizeof cuts[0])

/* ---- the same bits */

static void test_restored(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        rig r;
        float want[N_VOCAB];
        uint32_t n = k->model == &latent ? 200 : N;
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        sync_to(&r, n, 0);
        rig_close(&r);
        for (size_t c = 0; c < N_CUTS; c++) {
            size_t at = cuts[c] < n ? cuts[c] : n;
            if (at + TAIL < 64) {
                continue;
            }
            cold_logits(k, at, TAIL, want);
            rig_open(&r, k, dir, NULL);
            sync_to(&r, at, TAIL);
            kvs_reuse u = reuse_of(r.s);
            if (at >= k->first ? u.n_disk != at : u.n_disk > at) {
                fail_msg("%s, cut at %zu: %llu tokens restored (%s)", k->name, at,
                         (unsigned long long)u.n_disk, u.reason);
            }
            same(&r, want, "restored", k->name, at);
            rig_close(&r);
        }
        /* the whole prompt again: one token gives the logits; and decoded on from there */
        rig_open(&r, k, dir, NULL);
        sync_to(&r, n, 0);
        assert_int_equal(reuse_of(r.s).n_disk, n - 1);
        decode_alike(&r, k, n);
        rig_close(&r);
    }
}

/* Back within one session, in any order; then saved by it and found by the next. */
static void test_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
        float want[N_VOCAB];
        rig r;
        if (k->model == &latent) {
            continue;
        }
        rig_open(&r, k, NULL, &o);
        for (size_t c = N_CUTS; c-- > 0;) {
            size_t at = cuts[(c * 11) % N_CUTS];
            sync_to(&r, N, 0);
            sync_to(&r, at, TAIL);
            kvs_reuse u = reuse_of(r.s);
            bool may_lose = at < k->first; /* dense copies go at the append after the conversion */
            if (u.n_memory != at && !(may_lose && u.n_memory == 0)) {
                fail_msg("%s, back to %zu: %llu held", k->name, at, (unsigned long long)u.n_memory);
            }
            cold_logits(k, at, TAIL, want);
            same(&r, want, "back", k->name, at);
        }
        rig_close(&r);
    }
}

/* A third session gets what the second one has not read: its entry is complete. */
static void test_generations(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        rig r;
        float want[N_VOCAB];
        if (k->model == &latent || k->first > 1) {
            continue;
        }
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        sync_to(&r, N, 0);
        rig_close(&r);
        rig_open(&r, k, dir, NULL);
        sync_to(&r, N, 300);
        assert_int_equal(reuse_of(r.s).n_disk, N);
        rig_close(&r);
        cold_logits(k, 257, TAIL, want);
        rig_open(&r, k, dir, NULL);
        sync_to(&r, 257, TAIL);
        if (reuse_of(r.s).n_disk != 257) {
            fail_msg("%s: %llu: %s", k->name, (unsigned long long)reuse_of(r.s).n_disk,
                     reuse_of(r.s).reason);
        }
        same(&r, want, "third session", k->name, 257);
        sync_to(&r, N, 300);
        assert_int_equal(reuse_of(r.s).n_disk, N + 299);
        rig_close(&r);
    }
}

/* Layouts share entries: what one plan saved another of the same codecs finds. */
static void test_layouts(void **state)
{
    (void)state;
    const size_t pairs[][2] = {{10, 12}, {12, 10}, {0, 0}};
    for (size_t i = 0; i < 2; i++) {
        kind from = kinds[pairs[i][0]];
        kind to = kinds[pairs[i][1]];
        char dir[300];
        float want[N_VOCAB];
        rig r;
        from.plan.kv = to.plan.kv = "q8";
        to.plan.kv_block = i == 0 ? 0 : 32;
        rig_open(&r, &from, new_dir(dir, sizeof dir), NULL);
        sync_to(&r, N, 0);
        rig_close(&r);
        cold_logits(&from, 400, TAIL, want);
        rig_open(&r, &to, dir, NULL);
        sync_to(&r, 400, TAIL);
        assert_int_equal(reuse_of(r.s).n_disk, 400);
        same(&r, want, "another layout", from.name, 400);
        rig_close(&r);
    }
}

/* Far back in a long text: at most an eighth is computed again, and notes stay bounded. */
static void test_far_back(void **state)
{
    (void)state;
    kind k = kinds[10];
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    rig r;
    k.plan.n_ctx = 8192;
    static int32_t t[8192];
    for (size_t i = 0; i < 8192; i++) {
        t[i] = (token(i, 0) % N_VOCAB + N_VOCAB) % N_VOCAB;
    }
    for (int small = 0; small < 2; small++) {
        o.note_bytes = small ? 400000 : 0;
        rig_open(&r, &k, NULL, &o);
        for (size_t at = 8000; at > 300; at -= 1109) {
            assert_int_equal(kvs_session_sync(r.s, t, 8100, NULL, NULL), KVS_OK);
            kvs_reuse u = reuse_of(r.s);
            assert_true(!small || u.notes_bytes <= 400000);
            assert_int_equal(kvs_session_sync(r.s, t, at, NULL, NULL), KVS_OK);
            u = reuse_of(r.s);
            size_t most = (at > 2048 ? at / 8 : 256) + 1;
            assert_true(u.n_memory + (small ? at : most) >= at);
        }
        rig_close(&r);
    }
}

/* ---- misses */

static void expect_miss(const kind *k, const char *dir, const kvs_persist_opts *o, const char *why)
{
    rig r;
    float want[N_VOCAB];
    cold_logits(k, N, 0, want);
    rig_open(&r, k, dir, o);
    sync_to(&r, N, 0);
    kvs_reuse u = reuse_of(r.s);
    assert_int_equal(u.n_disk, 0);
    if (!strstr(u.reason, why)) {
        fail_msg("\"%s\" instead of \"%s\"", u.reason, why);
    }
    same(&r, want, "miss", k->name, N);
    rig_close(&r);
}

static void test_identity(void **state)
{
    (void)state;
    char dir[300];
    char copy[330];
    rig r;
    const char *other = "another model, plan or position";
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    kind k = kinds[1];
    tiny t = llama;
    rig_open(&r, &k, new_dir(dir, sizeof dir), NULL);
    sync_to(&r, N, 0);
    rig_close(&r);
    for (int i = 0; i < 9; i++) {
        (void)snprintf(copy, sizeof copy, "%s-%d", dir, i);
        char command[800];
        (void)snprintf(command, sizeof command, "cp -r '%s' '%s'", dir, copy);
        assert_int_equal(system(command), 0); /* NOLINT: a fixed command of a test */
        k = kinds[1];
        o = (kvs_persist_opts)KVS_PERSIST_OPTS_INIT;
        t = llama;
        switch (i) {
        case 0:
            k.plan.kv = "q6";
            break;
        case 1:
            k.plan.window = 500;
            break;
        case 2:
            t.seed = 77;
            break;
        case 3:
            t.rope_scale = 2.0f;
            t.seed = 78;
            break;
        case 4:
            o.rope = (kvs_bytes){"base 5", 6};
            break;
        case 5:
            o.adapter = (kvs_bytes){"base 5", 6};
            break;
        case 7: /* rotated the same, but centred */
            k.plan.kv = "c8";
            break;
        case 6:
            o.salt = (kvs_bytes){"base 5", 6};
            break;
        default:
            k.plan.start = 10;
            break;
        }
        k.model = &t;
        expect_miss(&k, copy, &o, other);
    }
    k = kinds[1]; /* and still a hit where all is equal */
    rig_open(&r, &k, dir, NULL);
    sync_to(&r, N, 0);
    assert_int_equal(reuse_of(r.s).n_disk, N - 1);
    rig_close(&r);
}

/* ---- trouble */

static void test_damage(void **state)
{
    (void)state;
    const char *folders[] = {"entries", "blocks", "blocks", "blocks"};
    const long at[] = {300, 200, 5000, -10};
    for (int i = 0; i < 4; i++) {
        check_damage(&kinds[10], folders[i], at[i], false, false);
        check_damage(&kinds[10], folders[i], at[i], false, true);
    }
}

static void test_no_room(void **state)
{
    (void)state;
    char dir[300];
    float want[N_VOCAB];
    rig r;
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    const kind *k = &kinds[0];
    cold_logits(k, N, 0, want);
    o.max_bytes = 20000;
    rig_open(&r, k, new_dir(dir, sizeof dir), &o);
    sync_to(&r, N, 0);
    same(&r, want, "no room", k->name, N);
    kvs_reuse u = reuse_of(r.s);
    assert_true(u.not_saved > 0);
    assert_non_null(strstr(u.save_reason, "limit"));
    rig_close(&r);
    o.max_bytes = 0; /* vanished while in use */
    rig_open(&r, k, new_dir(dir, sizeof dir), &o);
    remove_tree(dir);
    sync_to(&r, N, 0);
    same(&r, want, "vanished", k->name, N);
    assert_int_equal(kvs_session_flush(r.s, NULL), KVS_E_IO);
    assert_true(reuse_of(r.s).not_saved > 0);
    rig_close(&r);
    kvs_ctx *ctx = NULL; /* no directory at all */
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    open_on(&r, k->model, &k->plan, ctx);
    o.dir = "/proc/nothing/here";
    assert_int_not_equal(kvs_session_persist(r.s, &o, NULL), KVS_OK);
    o.dir = NULL;
    assert_int_equal(kvs_session_persist(r.s, &o, NULL), KVS_OK);
    assert_int_equal(kvs_session_persist(r.s, &o, NULL), KVS_E_STATE);
    sync_to(&r, N, 0);
    same(&r, want, "no directory", k->name, N);
    rig_close(&r);
}

static void test_two(void **state)
{
    (void)state;
    char dir[300];
    float want[N_VOCAB];
    rig a;
    rig b;
    const kind *k = &kinds[11];
    cold_logits(k, 300, TAIL, want);
    rig_open(&a, k, new_dir(dir, sizeof dir), NULL);
    sync_to(&a, N, 0);
    assert_int_equal(kvs_session_flush(a.s, NULL), KVS_OK);
    rig_open(&b, k, dir, NULL);
    assert_int_equal(reuse_of(b.s).read_only, 1);
    sync_to(&b, 300, TAIL);
    assert_int_equal(reuse_of(b.s).n_disk, 300);
    same(&b, want, "second", k->name, 300);
    assert_int_equal(kvs_session_save(b.s, NULL), KVS_NO);
    sync_to(&a, 300, TAIL);
    same(&a, want, "first", k->name, 300);
    rig_close(&b);
    rig_close(&a);
}

static void test_memory(void **state)
{
    (void)state;
    char dir[300];
    float want[N_VOCAB];
    const kind *k = &kinds[10];
    rig r;
    cold_logits(k, 300, TAIL, want);
    rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
    sync_to(&r, N, 0);
    rig_close(&r);
    for (long at = 0; run_failing(k, dir, at, 300, want); at++) {
    }
}

/* ---- answers under way */

static void test_answers(void **state)
{
    (void)state;
    char dir[300];
    rig r;
    int32_t t[N];
    int32_t ids[64];
    size_t n = 0;
    const kind *k = &kinds[0];
    kvs_answer a = KVS_ANSWER_INIT;
    int32_t made[3] = {5, 6, 7};
    a.request = (kvs_bytes){"temp 1", 6};
    a.prompt = t;
    a.n_prompt = prompt(t, 100, 0);
    a.seed = 0x123456789abcdef0u;
    rig_open(&r, k, NULL, NULL);
    assert_int_equal(kvs_session_put_answer(r.s, &a, NULL), KVS_NO);
    assert_int_equal(kvs_session_find_answer(r.s, &a, ids, 64, &n, NULL), KVS_NO);
    rig_close(&r);
    rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
    assert_int_equal(kvs_session_find_answer(r.s, &a, ids, 64, &n, NULL), KVS_NO);
    a.ids = made;
    for (a.n_ids = 1; a.n_ids <= 3; a.n_ids++) {
        assert_int_equal(kvs_session_put_answer(r.s, &a, NULL), KVS_OK);
    }
    a.n_ids = 3;
    rig_close(&r);
    rig_open(&r, k, dir, NULL);
    kvs_answer b = a;
    b.seed = 0;
    assert_int_equal(kvs_session_find_answer(r.s, &b, ids, 64, &n, NULL), KVS_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(ids, made, sizeof made);
    assert_true(b.seed == 0x123456789abcdef0u);
    assert_int_equal(kvs_session_find_answer(r.s, &b, ids, 2, &n, NULL), KVS_OK);
    assert_int_equal(n, 3);
    b.request.bytes = 5; /* other options, another prompt */
    assert_int_equal(kvs_session_find_answer(r.s, &b, ids, 64, &n, NULL), KVS_NO);
    b.request.bytes = 6;
    b.n_prompt--;
    assert_int_equal(kvs_session_find_answer(r.s, &b, ids, 64, &n, NULL), KVS_NO);
    b.n_prompt++;
    assert_int_equal(kvs_session_put_answer(r.s, &a, NULL), KVS_OK); /* still queued, perhaps */
    assert_int_equal(kvs_session_drop_answer(r.s, &b, NULL), KVS_OK);
    assert_int_equal(kvs_session_find_answer(r.s, &b, ids, 64, &n, NULL), KVS_NO);
    assert_int_equal(kvs_session_drop_answer(r.s, &b, NULL), KVS_NO);
    sync_to(&r, 100, 0); /* never served as state */
    assert_int_equal(reuse_of(r.s).n_disk, 0);
    rig_close(&r);
}

/* What a prompt-cache file claims is not proven, so it never becomes a hit for others: here the
 * tokens that it names are not those of its state. */
static void test_foreign(void **state)
{
    (void)state;
    const kind *k = &kinds[0];
    char dir[300];
    char path[300];
    float want[N_VOCAB];
    kvs_err err = {KVS_OK, 0, "", ""};
    rig r;
    int32_t t[N];
    for (size_t i = 0; i < 200; i++) {
        t[i] = (int32_t)((i * 7 + 3) % N_VOCAB);
    }
    (void)snprintf(path, sizeof path, "%s/foreign.safetensors", base);
    rig_open(&r, k, NULL, NULL);
    sync_to(&r, 200, 0);
    kvs_prompt_save_opts so = KVS_PROMPT_SAVE_OPTS_INIT;
    so.tokens = t;
    so.n_tokens = 200;
    assert_int_equal(kvs_prompt_cache_save(kvs_session_cache(r.s), &so, path, &err), KVS_OK);
    rig_close(&r);

    rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
    kvs_prompt_cache *file = NULL;
    assert_int_equal(kvs_prompt_cache_open(r.ctx, path, &file, &err), KVS_OK);
    assert_int_equal(kvs_session_load_prompt_cache(r.s, file, 0, &err), KVS_OK);
    kvs_prompt_cache_close(file);
    assert_int_equal(kvs_session_append(r.s, t, 100, &err), KVS_OK);
    assert_int_equal(kvs_session_save(r.s, &err), KVS_NO);
    assert_int_equal(kvs_session_flush(r.s, &err), KVS_OK);
    assert_int_equal(reuse_of(r.s).saved, 0);
    /* what it computes itself from the first token on is saved again */
    sync_to(&r, 300, 0);
    assert_int_equal(kvs_session_flush(r.s, &err), KVS_OK);
    assert_int_equal(reuse_of(r.s).saved, 1);
    rig_close(&r);

    rig_open(&r, k, NULL, NULL);
    assert_int_equal(kvs_session_sync(r.s, t, 200, NULL, &err), KVS_OK);
    memcpy(want, kvs_session_logits(r.s), sizeof want);
    rig_close(&r);
    rig_open(&r, k, dir, NULL);
    assert_int_equal(kvs_session_sync(r.s, t, 200, NULL, &err), KVS_OK);
    same(&r, want, "after a foreign file", k->name, 200);
    assert_int_equal(reuse_of(r.s).n_disk, 0);
    rig_close(&r);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restored),    cmocka_unit_test(test_back),
        cmocka_unit_test(test_generations), cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_far_back),    cmocka_unit_test(test_identity),
        cmocka_unit_test(test_damage),      cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_two),         cmocka_unit_test(test_memory),
        cmocka_unit_test(test_answers),     cmocka_unit_test(test_foreign),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
