/* SPDX-License-Identifier: MIT */
/* test_engine_prefix_session.c: what a prefix cache keeps before other things: the newest entry of a
 * conversation, entries of a priority, each for its time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <unistd.h>

#include "support/prefix_rig.h"

static void wait_ms(long ms)
{
    struct timespec t = {0, ms * 1000000};
    (void)nanosleep(&t, NULL);
}

static void open_lru(rig *r, const kind *k, uint32_t session_ms)
{
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    o.policy = KVS_RETAIN_LRU;
    o.session_ms = session_ms;
    rig_open(r, k, &o);
}

/* A session of these options takes a text of n tokens, and ends. Returns what it was lent. */
static size_t visit(const rig *r, const kvs_session_opts *opts, size_t n, uint32_t text)
{
    kvs_session_opts o = *opts;
    kvs_session *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t t[N_CTX];
    kvs_reuse u = KVS_REUSE_INIT;
    o.plan = r->plan;
    o.prefix_cache = r->pc;
    must(kvs_session_new(r->ctx, r->model, &o, &s, &err), &err);
    make_text(t, n, 0, text);
    must(kvs_session_sync(s, t, n, NULL, &err), &err);
    assert_int_equal(kvs_session_get_reuse(s, &u), KVS_OK);
    kvs_session_free(s);
    return u.n_shared;
}

/* Room for so many texts of N tokens, measured with one that is there. */
static void limit_to(const rig *r, size_t texts)
{
    size_t one = stats_of(r).bytes;
    assert_int_equal(kvs_prefix_cache_limit(r->pc, texts * one + one / 2, NULL), KVS_OK);
}

static const kvs_session_opts plain = KVS_SESSION_OPTS_INIT;

static void others(const rig *r, uint32_t first)
{
    for (uint32_t text = first; text < first + 6; text++) {
        (void)visit(r, &plain, N, text);
    }
}

/* All kinds of models: windows and snapshots are kept with it. */
static void test_conversation(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        for (int named = 0; named < 2; named++) {
            rig r;
            kvs_session_opts o = KVS_SESSION_OPTS_INIT;
            o.prefix_session = named ? 77 : 0;
            open_lru(&r, &kinds[i], 0);
            (void)visit(&r, &o, N, 0);
            limit_to(&r, 3);
            others(&r, 1);
            size_t got = visit(&r, &o, N, 0);
            if (r.k->snapshots) {
                assert_true(named || got == 0); /* resumed behind the text alone */
            } else if (named ? got != N - 1 : got >= N - 1) {
                fail_msg("%s, named %d: %zu tokens", r.k->name, named, got);
            }
            /* its next turn is the newest entry; what the last one ended with serves it */
            others(&r, 10);
            got = visit(&r, &o, N + 30, 0);
            if (named && got + 1 < N) {
                fail_msg("%s: the next turn was lent %zu tokens", r.k->name, got);
            }
            others(&r, 20);
            got = visit(&r, &o, N + 30, 0);
            if (!r.k->snapshots && (named ? got != N + 29 : got == N + 29)) {
                fail_msg("%s, named %d: %zu tokens of the next turn", r.k->name, named, got);
            }
            rig_close(&r);
        }
    }
}

/* One that has left for another text, and one whose time is over, are as others. */
static void test_ordinary_again(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        rig r;
        kvs_session_opts o = KVS_SESSION_OPTS_INIT;
        o.prefix_session = 77;
        open_lru(&r, &kinds[0], over ? 1 : 0);
        (void)visit(&r, &o, N, 0);
        limit_to(&r, 3);
        if (over) {
            wait_ms(5);
        } else {
            (void)visit(&r, &o, N, 40);
        }
        others(&r, 1);
        assert_true(visit(&r, &plain, N, 0) < N - 1);
        if (!over) {
            assert_int_equal(visit(&r, &plain, N, 40), N - 1);
        }
        rig_close(&r);
    }
}

/* The same number of another tenant is another conversation. */
static void test_salts(void **state)
{
    (void)state;
    rig r;
    kvs_session_opts o[2] = {KVS_SESSION_OPTS_INIT, KVS_SESSION_OPTS_INIT};
    open_lru(&r, &kinds[0], 0);
    for (int i = 0; i < 2; i++) {
        o[i].prefix_session = 77;
        o[i].prefix_salt = (kvs_bytes){i ? "b" : "a", 1};
        (void)visit(&r, &o[i], N, 0);
        if (i == 0) {
            limit_to(&r, 3);
        }
    }
    others(&r, 1);
    assert_int_equal(visit(&r, &o[0], N, 0), N - 1);
    assert_int_equal(visit(&r, &o[1], N, 0), N - 1);
    rig_close(&r);
}

/* Higher ones last longer, a conversation's newest counts as 1, and each has its time. */
static void test_priority(void **state)
{
    (void)state;
    rig r;
    kvs_session_opts high = KVS_SESSION_OPTS_INIT;
    kvs_session_opts talk = KVS_SESSION_OPTS_INIT;
    kvs_session_opts brief = KVS_SESSION_OPTS_INIT;
    high.prefix_priority = 2;
    talk.prefix_session = 5;
    brief.prefix_priority = KVS_RETAIN_PRIORITIES - 1;
    brief.prefix_priority_ms = 1;
    open_lru(&r, &kinds[0], 0);
    (void)visit(&r, &high, N, 0);
    limit_to(&r, 4);
    (void)visit(&r, &brief, N, 1);
    (void)visit(&r, &talk, N, 2);
    wait_ms(5);
    others(&r, 10);
    assert_int_equal(visit(&r, &plain, N, 0), N - 1);
    assert_int_equal(visit(&r, &plain, N, 2), N - 1);
    assert_true(visit(&r, &plain, N, 1) < N - 1);
    kvs_session *s = session_of(&r, true, NULL); /* what it is lent stays as it is */
    (void)sync_to(s, N, 0, 0);
    kvs_session_free(s);
    assert_int_equal(kvs_prefix_cache_limit(r.pc, stats_of(&r).max_bytes / 3, NULL), KVS_OK);
    assert_int_equal(visit(&r, &plain, N, 0), N - 1);
    assert_true(visit(&r, &plain, N, 2) < N - 1);
    rig_close(&r);
}

/* What can't be, and callers that do not know the fields. */
static void test_options(void **state)
{
    (void)state;
    rig r;
    kvs_session *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    open_lru(&r, &kinds[0], 0);
    o.plan = r.plan;
    o.prefix_session = 1;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "prefix_session"));
    o.prefix_session = 0;
    o.prefix_priority_ms = 1;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "prefix_priority"));
    o.prefix_cache = r.pc;
    o.prefix_priority = KVS_RETAIN_PRIORITIES;
    assert_int_equal(kvs_session_new(r.ctx, r.model, &o, &s, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "4"));
    assert_null(s);
    o.struct_size = offsetof(kvs_session_opts, prefix_session); /* what lies behind is not read */
    must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
    kvs_session_free(s);
    o.struct_size = offsetof(kvs_session_opts, prefix_cache);
    must(kvs_session_new(r.ctx, r.model, &o, &s, &err), &err);
    kvs_session_free(s);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conversation), cmocka_unit_test(test_ordinary_again),
        cmocka_unit_test(test_salts),        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
