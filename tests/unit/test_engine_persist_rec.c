/* SPDX-License-Identifier: MIT */
/* test_engine_persist_rec.c: sessions with recurrent layers and a store: what comes back is a snapshot
 * and exact, where snapshots are, that a chat of several turns computes few tokens again, that undo
 * does not show; little memory, damage, allocations that fail, answers under way, drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/wait.h>

#include "support/persist_rig.h"

#define OPENING 8 /* tokens before the end of a prompt at which it has a snapshot */
#define UNDO    16

static const tiny next = {.arch = "qwen3next",
                          .n_layers = 5,
                          .d_model = 32,
                          .d_ff = 32,
                          .n_heads = 2,
                          .n_kv_heads = 1,
                          .dim = 64,
                          .n_vocab = N_VOCAB,
                          .n_ctx = 8192,
                          .type = KVS__W_F32,
                          .n_experts = 4,
                          .n_used = 2,
                          .d_expert = 16,
                          .d_gated = 16,
                          .rot = 16,
                          TINY_STATE,
                          .every = 2,
                          .seed = 5};
static const tiny mamba = {.arch = "mamba2",
                           .n_layers = 3,
                           .d_model = 32,
                           .n_vocab = N_VOCAB,
                           .n_ctx = 8192,
                           .type = KVS__W_F32,
                           .bias = 1,
                           TINY_STATE,
                           .seed = 6};

static const kind kinds[] = {
    {"mamba", &mamba, PLAN("f16", .n_ctx = 2048), 1},
    {"mamba, no undo", &mamba, PLAN("f16", .n_ctx = 2048, .undo_tokens = KVS_UNDO_NONE), 1},
    {"next", &next, PLAN("f16", .n_ctx = 2048), 1},
    {"next c4", &next, PLAN("c4", .n_ctx = 2048, .undo_tokens = KVS_UNDO_NONE), 1},
    {"next q8, paged", &next, PLAN("q8", .n_ctx = 2048, .kv_block = 48, .undo_bytes = 200000), 1},
    {"next, window", &next, PLAN("q4", .n_ctx = 2048, .window = 40, .sinks = 4, .max_block = 64),
     1},
    {"next, far undo", &next, PLAN("f16", .n_ctx = 2048, .undo_tokens = 300), 1},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static const size_t cuts[] = {63,  64,  200, 255, 256, 257, 300, 511, 512, 513,
                              575, 583, 584, 590, 591, 592, 593, 598, 599, 600};
#define N_CUTS (sizeof cuts / sizeof cuts[0])

/* The newest snapshot of a prompt of n tokens at or before `at`. */
static size_t snapshot(size_t n, size_t at)
{
    size_t grid = at - at % 256;
    size_t mark = n - OPENING;
    return at >= n ? n : at >= mark && mark > grid ? mark : grid;
}

static size_t undo_of(const kind *k)
{
    return k->plan.undo_tokens == KVS_UNDO_NONE ? 0
           : k->plan.undo_tokens                ? k->plan.undo_tokens
                                                : UNDO;
}

/* ---- the same bits, from the places promised */

static void test_restored(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        rig r;
        float want[N_VOCAB];
        for (size_t c = 0; c < N_CUTS; c++) {
            rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
            sync_to(&r, N, 0);
            rig_close(&r);
            cold_logits(k, cuts[c], TAIL, want);
            rig_open(&r, k, dir, NULL);
            sync_to(&r, cuts[c], TAIL);
            kvs_reuse u = reuse_of(r.s);
            if (u.n_disk != snapshot(N, cuts[c]) || (u.n_disk == 0 && !u.reason[0])) {
                fail_msg("%s, cut at %zu: %llu tokens restored (%s)", k->name, cuts[c],
                         (unsigned long long)u.n_disk, u.reason);
            }
            same(&r, want, "restored", k->name, cuts[c]);
            rig_close(&r);
        }
        /* the whole prompt again, and decoded on from there */
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        sync_to(&r, N, 0);
        rig_close(&r);
        rig_open(&r, k, dir, NULL);
        sync_to(&r, N, 0);
        assert_int_equal(reuse_of(r.s).n_disk, N - OPENING);
        decode_alike(&r, k, N);
        rig_close(&r);
    }
}

/* Within one session: by undo where it reaches, else to a snapshot. Then the saved state of a session
 * that went back. */
static void test_back(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        for (size_t c = 0; c < N_CUTS; c++) {
            char dir[300];
            rig r;
            float want[N_VOCAB];
            size_t at = cuts[c];
            rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
            sync_to(&r, N, 0);
            sync_to(&r, at, TAIL);
            kvs_reuse u = reuse_of(r.s);
            size_t most = at + undo_of(k) >= N ? at : snapshot(N, at);
            /* where undo ends decides the interval of its snapshots, never below undo_tokens */
            if (u.n_memory < most || u.n_memory > at || u.n_disk != 0) {
                fail_msg("%s, back to %zu: %llu held", k->name, at, (unsigned long long)u.n_memory);
            }
            cold_logits(k, at, TAIL, want);
            same(&r, want, "back", k->name, at);
            assert_true(kvs_session_save(r.s, NULL) >= KVS_OK);
            rig_close(&r);
            rig_open(&r, k, dir, NULL);
            sync_to(&r, at, TAIL);
            size_t back = at + TAIL - OPENING;
            if (reuse_of(r.s).n_disk < snapshot(N, back)) {
                fail_msg("%s, saved after going back to %zu: %llu", k->name, at,
                         (unsigned long long)reuse_of(r.s).n_disk);
            }
            same(&r, want, "saved after going back", k->name, at);
            rig_close(&r);
        }
    }
}

/* ---- turns of a chat */

typedef struct talk {
    int32_t t[2048];
    size_t n;
} talk;

static void say(talk *k, size_t n, uint32_t text)
{
    for (size_t i = 0; i < n; i++) {
        k->t[k->n] = (token(k->n, text) % N_VOCAB + N_VOCAB) % N_VOCAB;
        k->n++;
    }
}

static void answer(rig *r, talk *k, size_t n, uint32_t text)
{
    size_t from = k->n;
    say(k, n, text);
    for (size_t i = from; i < k->n; i++) {
        assert_int_equal(kvs_session_append(r->s, &k->t[i], 1, NULL), KVS_OK);
    }
    (void)kvs_session_save(r->s, NULL);
}

/* Four turns, with a restart between them or not, the answer kept as it was or rendered anew from its
 * first token on, and the opening of an answer left out: what is computed again is bounded. */
static void test_turns(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        for (int way = 0; way < 6; way++) {
            const kind *k = &kinds[i];
            const bool restart = way & 1;
            const size_t dropped = way < 2   ? 0
                                   : way < 4 ? 1
                                             : 3; /* of the prompt, with the answer */
            char dir[300];
            rig r;
            talk t = {{0}, 0};
            rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
            for (uint32_t turn = 0; turn < 4; turn++) {
                size_t reused = 0;
                size_t known = t.n;
                if (turn > 0 && dropped > 0) {
                    t.n = known = t.n - 60 - dropped;
                    say(&t, 60 + dropped, 50 + turn); /* the answer in other tokens */
                }
                say(&t, 90, turn);
                assert_int_equal(kvs_session_sync(r.s, t.t, t.n, &reused, NULL), KVS_OK);
                size_t least = turn == 0 ? 0 : dropped == 0 ? known : known + dropped - OPENING;
                if (reused < least || reused > known) {
                    fail_msg("%s, way %d, turn %u: %zu of %zu known tokens reused", k->name, way,
                             turn, reused, known);
                }
                answer(&r, &t, 60, 20 + turn);
                if (restart) {
                    rig_close(&r);
                    rig_open(&r, k, dir, NULL);
                }
            }
            say(&t, 5, 99);
            assert_int_equal(kvs_session_sync(r.s, t.t, t.n, NULL, NULL), KVS_OK);
            rig cold;
            rig_open(&cold, k, NULL, NULL);
            assert_int_equal(kvs_session_sync(cold.s, t.t, t.n, NULL, NULL), KVS_OK);
            same(&r, kvs_session_logits(cold.s), "four turns", k->name, t.n);
            rig_close(&cold);
            rig_close(&r);
        }
    }
}

/* A question put otherwise: back to where the turn began, also several turns later on disk. */
static void test_edit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        rig r;
        size_t begin[3];
        size_t reused = 0;
        talk t = {{0}, 0};
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        for (uint32_t turn = 0; turn < 3; turn++) {
            begin[turn] = t.n;
            say(&t, 90, turn);
            assert_int_equal(kvs_session_sync(r.s, t.t, t.n, NULL, NULL), KVS_OK);
            answer(&r, &t, 60, 20 + turn);
        }
        talk other = t;
        other.n = begin[2];
        say(&other, 40, 77);
        assert_int_equal(kvs_session_sync(r.s, other.t, other.n, &reused, NULL), KVS_OK);
        assert_int_equal(reused, begin[2]);
        rig_close(&r);
        rig_open(&r, k, dir, NULL);
        other.n = begin[1];
        say(&other, 40, 78);
        assert_int_equal(kvs_session_sync(r.s, other.t, other.n, &reused, NULL), KVS_OK);
        assert_int_equal(reused, begin[1]);
        rig_close(&r);
    }
}

/* Far back in a long text: an eighth, and a token of prefill is never lost to a snapshot's place. */
static void test_far_back(void **state)
{
    (void)state;
    static int32_t t[8192];
    for (size_t i = 0; i < 8192; i++) {
        t[i] = (token(i, 0) % N_VOCAB + N_VOCAB) % N_VOCAB;
    }
    for (int small = 0; small < 2; small++) {
        kind k = kinds[0];
        kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
        rig r;
        k.plan.n_ctx = 8192;
        o.note_bytes = small ? 100000 : 0;
        rig_open(&r, &k, NULL, &o);
        for (size_t at = 8000; at > 300; at -= 1100) {
            kvs_err err = KVS_ERR_INIT;
            if (kvs_session_sync(r.s, t, 8100, NULL, &err) != KVS_OK) {
                fail_msg("%s", err.msg);
            }
            kvs_reuse u = reuse_of(r.s);
            assert_true(!small || (u.notes_bytes <= 100000 && u.notes_bytes > 0));
            assert_int_equal(kvs_session_sync(r.s, t, at, NULL, NULL), KVS_OK);
            u = reuse_of(r.s);
            size_t most = (at > 2048 ? at / 8 : 256) + 1;
            assert_true(u.n_memory + (small ? at : most) >= at);
        }
        rig_close(&r);
    }
}

/* ---- drafts: rejected tokens are in no snapshot, and a checkpoint that a round jumps over has one */

/* Two of three drafts are what the text goes on with. */
static uint32_t guess(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out, uint32_t n)
{
    const talk *k = user;
    (void)tokens;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = i == 2 || n_tokens + i >= k->n ? 0 : k->t[n_tokens + i];
    }
    return n;
}

static void test_drafts(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        if (undo_of(k) < 8) {
            continue;
        }
        char dir[300];
        rig r;
        static talk plain;
        int32_t id = 0;
        kvs_sampler_opts so = KVS_SAMPLER_OPTS_INIT;
        kvs_spec_opts po = KVS_SPEC_OPTS_INIT;
        kvs_sampler *sampler = NULL;
        kvs_spec *spec = NULL;
        so.temperature = 0.0f;
        plain.n = 0;
        say(&plain, 240, 1);
        rig_open(&r, k, NULL, NULL);
        assert_int_equal(kvs_sampler_new(r.ctx, &so, N_VOCAB, &sampler, NULL), KVS_OK);
        assert_int_equal(kvs_session_sync(r.s, plain.t, plain.n, NULL, NULL), KVS_OK);
        while (plain.n < 400) {
            assert_int_equal(kvs_session_sample(r.s, sampler, &id, NULL), KVS_OK);
            assert_int_equal(kvs_session_append(r.s, &id, 1, NULL), KVS_OK);
            plain.t[plain.n++] = id;
        }
        kvs_sampler_free(sampler);
        rig_close(&r);
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        assert_int_equal(kvs_session_sync(r.s, plain.t, 240, NULL, NULL), KVS_OK);
        po.flags = KVS_SPEC_FIXED;
        po.max_drafts = 5;
        po.draft = guess;
        po.user = &plain;
        assert_int_equal(kvs_spec_new(r.s, &po, &spec, NULL), KVS_OK);
        size_t n = 240;
        while (n < 330) {
            assert_int_equal(kvs_spec_next(spec, NULL), KVS_OK);
            const int32_t *t = kvs_session_tokens(r.s, &n);
            assert_memory_equal(t, plain.t, n * sizeof *t);
        }
        assert_true(kvs_session_save(r.s, NULL) >= KVS_OK);
        kvs_spec_stats stats = KVS_SPEC_STATS_INIT;
        assert_int_equal(kvs_spec_get_stats(spec, &stats), KVS_OK);
        assert_true(stats.n_accepted > 10 && stats.n_accepted < stats.n_drafts);
        kvs_spec_free(spec);
        rig_close(&r);
        for (size_t at = 300; at <= 400; at += 100) {
            size_t reused = 0;
            talk other = plain;
            rig cold;
            other.n = at;
            say(&other, 5, 9);
            rig_open(&r, k, dir, NULL);
            rig_open(&cold, k, NULL, NULL);
            assert_int_equal(kvs_session_sync(r.s, other.t, other.n, &reused, NULL), KVS_OK);
            assert_int_equal(kvs_session_sync(cold.s, other.t, other.n, NULL, NULL), KVS_OK);
            assert_int_equal(reused, at == 300 ? 256 : n);
            same(&r, kvs_session_logits(cold.s), "drafts", k->name, reused);
            rig_close(&cold);
            rig_close(&r);
        }
    }
}

/* ---- what it depends on */

static void test_identity(void **state)
{
    (void)state;
    char dir[300];
    rig r;
    float want[N_VOCAB];
    kind k = kinds[2];
    rig_open(&r, &k, new_dir(dir, sizeof dir), NULL);
    sync_to(&r, N, 0);
    rig_close(&r);
    cold_logits(&k, N, TAIL, want);
    k.plan.undo_tokens = KVS_UNDO_NONE; /* undo and layout: no part of it */
    k.plan.kv_block = 32;
    rig_open(&r, &k, dir, NULL);
    sync_to(&r, N, TAIL);
    assert_int_equal(reuse_of(r.s).n_disk, N);
    same(&r, want, "other undo", k.name, N);
    rig_close(&r);
    for (int i = 0; i < 4; i++) {
        tiny t = next;
        k = kinds[2];
        k.model = &t;
        switch (i) {
        case 0:
            k.plan.kv = "c4";
            break;
        case 1:
            t.taps = 3; /* the shapes of the state, which the plan has, with weights of their own */
            t.seed = 55;
            break;
        case 2:
            t.s_dim = 24;
            t.seed = 56;
            break;
        default:
            t.seed = 57;
            break;
        }
        cold_logits(&k, N, 0, want);
        rig_open(&r, &k, dir, NULL);
        sync_to(&r, N, 0);
        kvs_reuse u = reuse_of(r.s);
        assert_int_equal(u.n_disk, 0);
        assert_non_null(strstr(u.reason, "another model, plan or position"));
        same(&r, want, "miss", k.name, N);
        rig_close(&r);
    }
}

/* ---- trouble */

static void test_damage(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        long at;
    } where[] = {{"entries", 300}, {"blocks", 200}, {"blocks", 6000}, {"blocks", 20000}};
    for (int i = 0; i < 16; i++) {
        check_damage(&kinds[i & 1 ? 0 : 3], where[i / 4].folder, where[i / 4].at, i & 1, !(i & 2));
    }
}

/* No room for a snapshot: the state at the end is saved all the same. */
static void test_no_notes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        float want[N_VOCAB];
        rig r;
        kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
        o.note_bytes = 1000;
        rig_open(&r, k, new_dir(dir, sizeof dir), &o);
        sync_to(&r, N, 0);
        assert_true(reuse_of(r.s).notes_bytes <= 1000);
        rig_close(&r);
        cold_logits(k, N, TAIL, want);
        rig_open(&r, k, dir, &o);
        sync_to(&r, N, TAIL);
        assert_int_equal(reuse_of(r.s).n_disk, N);
        same(&r, want, "no notes", k->name, N);
        rig_close(&r);
        rig_open(&r, k, dir, &o); /* and before the end there is nothing: it is told */
        sync_to(&r, 500, TAIL);
        assert_int_equal(reuse_of(r.s).n_disk, 0);
        assert_non_null(strstr(reuse_of(r.s).reason, "recurrent"));
        rig_close(&r);
    }
}

static void test_memory(void **state)
{
    (void)state;
    const size_t which[] = {0, 3, 5};
    for (size_t i = 0; i < 3; i++) {
        const kind *k = &kinds[which[i]];
        char dir[300];
        float want[N_VOCAB];
        rig r;
        rig_open(&r, k, new_dir(dir, sizeof dir), NULL);
        sync_to(&r, N, 0);
        rig_close(&r);
        cold_logits(k, 300, TAIL, want);
        for (long at = 0; run_failing(k, dir, at, 300, want); at++) {
        }
    }
}

/* ---- answers under way: the prompt's state and the ids give the same bits after a kill */

/* Answers 40 tokens and is killed; in a process of its own. */
static void answer_and_die(const kind *k, const char *dir, kvs_answer *a, int32_t *made)
{
    rig r;
    rig_open(&r, k, dir, NULL);
    sync_to(&r, 300, 0);
    a->ids = made;
    for (a->n_ids = 1; a->n_ids <= 40; a->n_ids++) {
        (void)kvs_session_append(r.s, &made[a->n_ids - 1], 1, NULL);
        (void)kvs_session_put_answer(r.s, a, NULL);
    }
    (void)kvs_session_flush(r.s, NULL);
    (void)raise(SIGKILL);
}

static void test_killed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        const kind *k = &kinds[i];
        char dir[300];
        rig r;
        rig cold;
        int32_t t[N];
        int32_t made[40];
        size_t n = 0;
        int status = 0;
        kvs_answer a = KVS_ANSWER_INIT;
        a.request = (kvs_bytes){"temp 1", 6};
        a.prompt = t;
        a.n_prompt = prompt(t, 300, 0);
        for (int m = 0; m < 40; m++) {
            made[m] = m * 7 % N_VOCAB;
        }
        (void)new_dir(dir, sizeof dir);
        rig_open(&r, k, NULL, NULL); /* writes the model's file */
        rig_close(&r);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            answer_and_die(k, dir, &a, made);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        rig_open(&r, k, dir, NULL);
        assert_int_equal(kvs_session_find_answer(r.s, &a, t + 300, 64, &n, NULL), KVS_OK);
        assert_int_equal(n, 40);
        assert_memory_equal(t + 300, made, sizeof made);
        assert_int_equal(kvs_session_sync(r.s, t, 340, NULL, NULL), KVS_OK);
        assert_int_equal(reuse_of(r.s).n_disk, 300);
        rig_open(&cold, k, NULL, NULL);
        assert_int_equal(kvs_session_sync(cold.s, t, 340, NULL, NULL), KVS_OK);
        same(&r, kvs_session_logits(cold.s), "resumed", k->name, 340);
        rig_close(&cold);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_restored), cmocka_unit_test(test_back),
        cmocka_unit_test(test_turns),    cmocka_unit_test(test_edit),
        cmocka_unit_test(test_far_back), cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_identity), cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_notes), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_killed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
