/* SPDX-License-Identifier: MIT */
/* test_arena.c: pieces never overlap and keep their content, memory goes back, threads. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/map.h"

#define PIECES 200

typedef struct piece {
    unsigned char *p;
    size_t bytes;
    unsigned char mark;
} piece;

static uint64_t draw(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return *s >> 33;
}

/* Both ends and a byte of each page say whose piece it is. */
static void paint(const piece *x)
{
    for (size_t i = 0; i < x->bytes; i += 4096) {
        x->p[i] = x->mark;
    }
    x->p[x->bytes - 1] = x->mark;
}

static bool is_painted(const piece *x)
{
    for (size_t i = 0; i < x->bytes; i += 4096) {
        if (x->p[i] != x->mark) {
            return false;
        }
    }
    return x->p[x->bytes - 1] == x->mark;
}

static size_t a_size(uint64_t *s)
{
    switch (draw(s) % 4) {
    case 0:
        return KVS__ARENA_FROM + draw(s) % 100;
    case 1:
        return 1 + draw(s) % ((size_t)9 << 20); /* also larger than the first region */
    case 2:
        return (draw(s) % 3 + 1) * KVS__HUGE_PAGE;
    default:
        return KVS__ARENA_FROM + draw(s) % ((size_t)1 << 20);
    }
}

/* Random pieces taken and given; false if one lost its content. */
static bool run_program(kvs__arena *a, uint64_t seed, int steps)
{
    static _Thread_local piece x[PIECES];
    bool ok = true;
    memset(x, 0, sizeof x);
    for (int i = 0; i < steps && ok; i++) {
        piece *at = &x[draw(&seed) % (draw(&seed) % 2 ? PIECES : 12)];
        if (at->p) {
            ok = is_painted(at) && kvs__arena_give(a, at->p, at->bytes);
            at->p = NULL;
            continue;
        }
        at->bytes = a_size(&seed);
        at->mark = (unsigned char)draw(&seed);
        at->p = kvs__arena_take(a, at->bytes);
        ok = at->p && (uintptr_t)at->p % 4096 == 0;
        if (ok) {
            paint(at);
        }
    }
    for (int i = 0; i < PIECES; i++) {
        ok = ok && (!x[i].p || (is_painted(&x[i]) && kvs__arena_give(a, x[i].p, x[i].bytes)));
    }
    return ok;
}

static void test_random(void **state)
{
    (void)state;
    if (!kvs__has_huge_pages()) {
        skip();
    }
    for (uint64_t seed = 1; seed <= 8; seed++) {
        kvs__arena *a = kvs__arena_new();
        assert_non_null(a);
        assert_true(run_program(a, seed, 600));
        size_t used = 1;
        size_t mapped = 1;
        kvs__arena_bytes(a, &used, &mapped);
        assert_int_equal(used, 0);
        assert_int_equal(mapped, 0); /* nothing is kept behind */
        kvs__arena_free(a);
    }
}

static void *of_thread(void *arg)
{
    kvs__arena *a = arg;
    return run_program(a, (uint64_t)(uintptr_t)pthread_self(), 400) ? arg : NULL;
}

static void test_threads(void **state)
{
    (void)state;
    if (!kvs__has_huge_pages()) {
        skip();
    }
    kvs__arena *a = kvs__arena_new();
    pthread_t t[3];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, of_thread, a), 0);
    }
    for (int i = 0; i < 3; i++) {
        void *ok = NULL;
        assert_int_equal(pthread_join(t[i], &ok), 0);
        assert_non_null(ok);
    }
    kvs__arena_free(a);
}

/* KiB of the process that are in memory; 0 where the system doesn't tell. */
static size_t resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    char line[128] = "";
    if (!f) {
        return 0;
    }
    char *at = fgets(line, sizeof line, f) ? line : NULL;
    (void)fclose(f);
    (void)(at ? strtoul(at, &at, 10) : 0); /* first the size, then what is resident, in pages */
    return at ? strtoul(at, NULL, 10) * 4 : 0;
}

/* Pieces between others that stay: their memory goes back in whole huge pages. */
static void test_memory_goes_back(void **state)
{
    (void)state;
    if (!kvs__has_huge_pages() || resident() == 0) {
        skip();
    }
    kvs__arena *a = kvs__arena_new();
    piece big[6];
    piece small[6];
    for (int i = 0; i < 6; i++) {
        big[i] = (piece){NULL, (size_t)8 << 20, (unsigned char)i};
        small[i] = (piece){NULL, KVS__ARENA_FROM, (unsigned char)(i + 100)};
        big[i].p = kvs__arena_take(a, big[i].bytes);
        small[i].p = kvs__arena_take(a, small[i].bytes);
        assert_true(big[i].p && small[i].p);
        paint(&big[i]);
        paint(&small[i]);
    }
    size_t before = resident();
    for (int i = 0; i < 6; i++) {
        assert_true(kvs__arena_give(a, big[i].p, big[i].bytes));
    }
    /* a huge page at either border of each may stay */
    assert_true(resident() + (size_t)6 * 8 * 1024 - (size_t)6 * 4 * 1024 <= before);
    for (int i = 0; i < 6; i++) {
        assert_true(is_painted(&small[i]));
    }
    /* what is free is used again: nothing new is mapped */
    size_t used = 0;
    size_t mapped = 0;
    size_t again = 0;
    kvs__arena_bytes(a, &used, &mapped);
    assert_int_equal(used, 6 * KVS__ARENA_FROM);
    for (int i = 0; i < 6; i++) {
        big[i].p = kvs__arena_take(a, big[i].bytes);
        assert_non_null(big[i].p);
        paint(&big[i]);
    }
    kvs__arena_bytes(a, &used, &again);
    assert_int_equal(again, mapped);
    for (int i = 0; i < 6; i++) {
        assert_true(is_painted(&small[i]) && is_painted(&big[i]));
        assert_true(kvs__arena_give(a, big[i].p, big[i].bytes));
        assert_true(kvs__arena_give(a, small[i].p, small[i].bytes));
    }
    kvs__arena_bytes(a, &used, &mapped);
    assert_true(used == 0 && mapped == 0);
    kvs__arena_free(a);
}

static void test_refusals(void **state)
{
    (void)state;
    kvs__arena *a = kvs__arena_new();
    int other = 0;
    assert_null(kvs__arena_take(a, 0));
    assert_null(kvs__arena_take(a, SIZE_MAX));
    assert_null(kvs__arena_take(a, SIZE_MAX / 4));
    assert_false(kvs__arena_give(a, &other, KVS__ARENA_FROM));
    kvs__arena_free(a);
    kvs__arena_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_memory_goes_back),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
