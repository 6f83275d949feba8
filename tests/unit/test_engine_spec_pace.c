/* SPDX-License-Identifier: MIT */
/* test_engine_spec_pace.c: how many drafts a round may have, by what was accepted (speculate_pace.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/speculate_priv.h"

/* Rounds of a text of n tokens whose drafts are accepted as `accept` says; what drafts cost. */
static uint32_t pace_cost(uint32_t n, uint32_t accept, uint32_t own, uint32_t *rounds)
{
    kvs__pace p;
    uint32_t cost = 0;
    kvs__pace_start(&p, 8, own, false);
    *rounds = 0;
    for (uint32_t made = 0; made < n; (*rounds)++) {
        uint32_t d = kvs__pace_depth(&p);
        uint32_t a = accept < d ? accept : d;
        cost += d * p.cost;
        made += a + 1;
        kvs__pace_note(&p, d, a);
    }
    return cost;
}

static void test_pace(void **state)
{
    (void)state;
    uint32_t rounds = 0;
    /* nothing accepted: below 3 % of a step a token, in sixteenths */
    assert_true(pace_cost(256, 0, 0, &rounds) * 100 < 3 * 16 * 256);
    assert_true(pace_cost(2048, 0, 0, &rounds) * 100 < 1 * 16 * 2048);
    assert_int_equal(rounds, 2048);
    /* all accepted: soon nine tokens a round */
    (void)pace_cost(256, 8, 0, &rounds);
    assert_true(rounds < 36);
    /* one of any number: one draft a round, which pays */
    (void)pace_cost(256, 1, 0, &rounds);
    assert_true(rounds < 140);
    /* a draft model as dear as the model never pays */
    assert_true(pace_cost(1024, 8, 16, &rounds) * 100 < 10 * 16 * 1024);
    kvs__pace p;
    kvs__pace_start(&p, 8, 0, true);
    for (int i = 0; i < 50; i++) {
        kvs__pace_note(&p, 8, 0);
        assert_int_equal(kvs__pace_depth(&p), 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
