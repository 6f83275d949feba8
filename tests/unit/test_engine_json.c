/* SPDX-License-Identifier: MIT */
/* test_engine_json.c: the JSON reader: what is a text and what is none, numbers, strings, steps
 * through arrays and objects, depth, failing allocations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/json.h"
#include "support/fail_alloc.h"

static kvs_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return 0;
}

/* Parses a copy that ends exactly where the text does. */
static kvs_status parse(const char *text, size_t n, char **copy, kvs__json **doc, kvs_err *err)
{
    *copy = malloc(n ? n : 1);
    assert_non_null(*copy);
    memcpy(*copy, text, n);
    return kvs__json_parse(ctx, *copy, n, "text", doc, err);
}

static void test_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {"{}",
                                       "[]",
                                       " [ ] ",
                                       "null",
                                       "true",
                                       "false",
                                       "0",
                                       "-0",
                                       "1.5e-3",
                                       "\"\"",
                                       "[1,2]",
                                       "{\"a\":1,\"a\":2}",
                                       "\"\\u0000\"",
                                       "[[[]]]",
                                       "1E+2",
                                       "\"\\ud83d\\ude00\"",
                                       "\"\xf0\x9f\x98\x80\"",
                                       "{\"\":[{},{}]}",
                                       "\r\n\t 1 \n"};
    for (size_t i = 0; i < KVS_COUNT(good); i++) {
        kvs__json *doc = NULL;
        char *copy = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        if (parse(good[i], strlen(good[i]), &copy, &doc, &err) != KVS_OK) {
            fail_msg("%s: %s", good[i], err.msg);
        }
        kvs__json_free(doc);
        free(copy);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"", "expected a value"},
        {"  ", "expected a value"},
        {"nul", "expected a value"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"'a'", "expected a value"},
        {"[1,]", "expected a value"},
        {"[1 2]", "expected a comma"},
        {"[1", "expected a comma"},
        {"[", "expected a value"},
        {"{", "expected a name"},
        {"{\"a\"}", "expected a colon"},
        {"{\"a\":1,}", "expected a name"},
        {"{a:1}", "expected a name"},
        {"{\"a\":1]", "expected a comma"},
        {"1 2", "text after the value"},
        {"{} x", "text after the value"},
        {"01", "a number that is none"},
        {"-", "a number that is none"},
        {"1.", "a number that is none"},
        {"1e", "a number that is none"},
        {"1e+", "a number that is none"},
        {".5", "expected a value"},
        {"+1", "expected a value"},
        {"\"a", "without its end"},
        {"\"\\", "an escape that is none"},
        {"\"\\x\"", "an escape that is none"},
        {"\"\\u12\"", "an escape that is none"},
        {"\"\\ud800\"", "half of a surrogate pair"},
        {"\"\\udc00\"", "half of a surrogate pair"},
        {"\"\\ud800\\u0041\"", "half of a surrogate pair"},
        {"\"\n\"", "control character"},
        {"\"\xff\"", "not UTF-8"},
        {"\xef\xbb\xbf{}", "expected a value"},
        {"// x\n1", "expected a value"},
    };
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        kvs__json *doc = NULL;
        char *copy = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        assert_int_equal(parse(bad[i].text, strlen(bad[i].text), &copy, &doc, &err), KVS_E_FORMAT);
        assert_null(doc);
        if (!strstr(err.msg, bad[i].says)) {
            fail_msg("%s: %s", bad[i].text, err.msg);
        }
        free(copy);
    }
}

static void test_place_of_an_error(void **state)
{
    (void)state;
    static const char text[] = "{\n  \"a\": 1,\n  \"b\" 2\n}";
    kvs__json *doc = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs__json_parse(ctx, text, sizeof text - 1, "x.json", &doc, &err),
                     KVS_E_FORMAT);
    assert_string_equal(err.msg, "x.json: line 3, byte 7: expected a colon after a name");
}

static void test_depth(void **state)
{
    (void)state;
    char text[300];
    for (size_t depth = 63; depth <= 66; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        kvs__json *doc = NULL;
        kvs_status st = kvs__json_parse(ctx, text, 2 * depth, "text", &doc, NULL);
        assert_int_equal(st, depth <= KVS__JSON_DEPTH ? KVS_OK : KVS_E_FORMAT);
        kvs__json_free(doc);
    }
}

static kvs__json *must(const char *text)
{
    kvs__json *doc = NULL;
    assert_int_equal(kvs__json_parse(ctx, text, strlen(text), "text", &doc, NULL), KVS_OK);
    return doc;
}

static void test_steps(void **state)
{
    (void)state;
    kvs__json *doc =
        must("{\"a\":[1,[2,3],{\"b\":4}],\"c\":\"x\",\"d\":{},\"c\":\"y\",\"\\u0065\":5}");
    kvs__jval root = kvs__json_root(doc);
    assert_int_equal(kvs__json_count(root), 5);
    assert_true(kvs__json_is(kvs__json_get(root, "c"), "y")); /* the last one */
    int64_t v = 0;
    assert_true(kvs__json_int(kvs__json_get(root, "e"), &v));
    assert_int_equal(v, 5);
    assert_int_equal(kvs__json_kind(kvs__json_get(root, "z")), KVS__JSON_NONE);
    assert_int_equal(kvs__json_kind(kvs__json_get(kvs__json_get(root, "z"), "y")), KVS__JSON_NONE);
    kvs__jval a = kvs__json_get(root, "a");
    kvs__jval e = {NULL, 0};
    kvs__json_type types[4] = {KVS__JSON_NONE};
    size_t n = 0;
    while (kvs__json_next(a, &e)) {
        types[n++] = kvs__json_kind(e);
    }
    assert_int_equal(n, 3);
    assert_int_equal(types[0], KVS__JSON_NUMBER);
    assert_int_equal(types[1], KVS__JSON_ARRAY);
    assert_int_equal(types[2], KVS__JSON_OBJECT);
    assert_false(kvs__json_next(root, &e));
    kvs__jval name = {NULL, 0};
    kvs__jval value = {NULL, 0};
    assert_false(kvs__json_member(kvs__json_get(root, "d"), &name, &value));
    assert_false(kvs__json_member(a, &name, &value));
    assert_int_equal(kvs__json_count(kvs__json_get(root, "c")), 0);
    kvs__json_free(doc);
}

static void test_strings(void **state)
{
    (void)state;
    kvs__json *doc = must("[\"a\\n\\u00e9\\ud83d\\ude00\\u0000z\",\"plain\"]");
    kvs__jval v = {NULL, 0};
    assert_true(kvs__json_next(kvs__json_root(doc), &v));
    assert_true(kvs__json_escaped(v));
    char text[64];
    assert_true(kvs__json_raw(v).len <= sizeof text);
    size_t n = kvs__json_text(v, text);
    static const char want[] = "a\n\xc3\xa9\xf0\x9f\x98\x80\0z";
    assert_int_equal(n, sizeof want - 1);
    assert_memory_equal(text, want, n);
    assert_false(kvs__json_is(v, "a\n\xc3\xa9\xf0\x9f\x98\x80")); /* goes on after NUL */
    assert_true(kvs__json_next(kvs__json_root(doc), &v));
    assert_false(kvs__json_escaped(v));
    assert_true(kvs__json_is(v, "plain"));
    assert_false(kvs__json_is(v, "plai"));
    assert_false(kvs__json_is(v, "plainer"));
    kvs__json_free(doc);
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_int;
        int64_t i;
        double d;
    } cases[] = {
        {"0", true, 0, 0.0},
        {"-0", true, 0, -0.0},
        {"12", true, 12, 12.0},
        {"-7", true, -7, -7.0},
        {"4096.0", true, 4096, 4096.0},
        {"1e3", true, 1000, 1000.0},
        {"1.5", false, 0, 1.5},
        {"1e-5", false, 0, 1e-5},
        {"1e-06", false, 0, 1e-6},
        {"0.1", false, 0, 0.1},
        {"500000.0", true, 500000, 500000.0},
        {"9223372036854775807", true, INT64_MAX, 9223372036854775807.0},
        {"9223372036854775808", false, 0, 9223372036854775808.0},
        {"-9223372036854775807", true, -INT64_MAX, -9223372036854775807.0},
        {"9007199254740993", true, 9007199254740993, 9007199254740993.0},
        {"1e400", false, 0, HUGE_VAL},
        {"1e-400", false, 0, 0.0},
        {"1e99999999999999999999", false, 0, HUGE_VAL},
        {"0e99999999999999999999", true, 0, 0.0},
        {"123456789012345678901234567890", false, 0, 123456789012345678901234567890.0},
        {"2.2250738585072014e-308", false, 0, 2.2250738585072014e-308},
        {"1.00000000000000000000", true, 1, 1.0},
    };
    for (size_t i = 0; i < KVS_COUNT(cases); i++) {
        kvs__json *doc = must(cases[i].text);
        int64_t v = 0;
        double d = 0.0;
        bool is_int = kvs__json_int(kvs__json_root(doc), &v);
        assert_true(kvs__json_double(kvs__json_root(doc), &d));
        if (is_int != cases[i].is_int || (is_int && v != cases[i].i) || !(d == cases[i].d)) {
            fail_msg("%s: int %d %lld, double %.17g", cases[i].text, is_int, (long long)v, d);
        }
        kvs__json_free(doc);
    }
    kvs__json *doc = must("\"1\"");
    int64_t v = 0;
    double d = 0.0;
    assert_false(kvs__json_int(kvs__json_root(doc), &v));
    assert_false(kvs__json_double(kvs__json_root(doc), &d));
    kvs__json_free(doc);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    char text[2048];
    size_t n = 0;
    text[n++] = '[';
    for (int i = 0; i < 300; i++) {
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", i ? "," : "", i);
    }
    text[n++] = ']';
    for (long k = 0;; k++) {
        fail_alloc heap = FAIL_ALLOC_INIT;
        kvs_ctx *c = NULL;
        kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
        o.n_threads = 1;
        o.alloc = fail_alloc_take;
        o.free = fail_alloc_give;
        o.alloc_user = &heap;
        assert_int_equal(kvs_ctx_new(&o, &c, NULL), KVS_OK);
        size_t live = heap.live;
        heap.fail_at = heap.calls + k;
        kvs__json *doc = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_status st = kvs__json_parse(c, text, n, "text", &doc, &err);
        assert_true(st == KVS_OK || (st == KVS_E_NOMEM && !doc && err.msg[0]));
        kvs__json_free(doc);
        assert_int_equal(heap.live, live);
        assert_int_equal(heap.wrong, 0);
        kvs_ctx_free(c);
        if (st == KVS_OK) {
            assert_true(k >= 4); /* the handle and growing */
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_place_of_an_error),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
