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
#include "engine/json_number.h"
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
        assert_int_equal(st, depth <= KVS__JSON_DEPTH ? KVS_OK : KVS_E_LIMIT);
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
        {"-9223372036854775808", true, INT64_MIN, -9223372036854775808.0},
        {"-9223372036854775809", false, 0, -9223372036854775808.0},
        {"-3.5681400299072266", false, 0, -3.5681400299072266},
        {"-10.434567451477051", false, 0, -10.434567451477051},
        {"2.5E-2", false, 0, 0.025},
        {"123456789012345678", true, 123456789012345678, 123456789012345678.0},
        {"9007199254740993e-1", false, 0, 900719925474099.25},
        {"0.30000000000000004", false, 0, 0.30000000000000004},
        {"1.00000000000000011102230246251565", false, 0, 1.0},
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

/* Our nearest double against the C library's, in the locale "C", which tests run in. */
static void same_double(const char *text)
{
    const double want = strtod(text, NULL);
    const double got = kvs__json_number_double(text, strlen(text));
    if (memcmp(&want, &got, sizeof want) != 0) {
        fail_msg("%s: %.17g, not %.17g", text, got, want);
    }
}

/* Products and quotients of doubles, written as such. */
static void test_a_double_rounded_twice(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double want;
    } c[] = {
        {"-9.613224029541016", -(9613224029541016.0 / 1e15)},
        {"-13.347004890441895", -(13347004890441895.0 / 1e15)}, /* beyond 2^53: the digits round */
        {"12345678901234567e3", 12345678901234567.0 * 1e3},
        {"-0.0", -0.0},
        {"7", 7.0},
        {"1e-30", 1e-30},
    };
    int apart = 0;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        const double got = kvs__json_number_rounded_twice(c[i].text, strlen(c[i].text));
        assert_memory_equal(&got, &c[i].want, sizeof got);
    }
    for (unsigned i = 0; i < 100000; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "9.%015u7", i * 7919u);
        const double near = kvs__json_number_double(text, strlen(text));
        const double got = kvs__json_number_rounded_twice(text, strlen(text));
        assert_true(got == near || nextafter(got, near) == near);
        apart += got != near;
    }
    assert_true(apart > 0);
}

static void test_doubles_are_the_nearest(void **state)
{
    (void)state;
    static const char *const hard[] = {"-0",
                                       "-0.0e5",
                                       "4.9406564584124654e-324",
                                       "2.4703282292062327208e-324",
                                       "2.4703282292062327209e-324",
                                       "2.2250738585072011e-308",
                                       "2.2250738585072012e-308",
                                       "1.7976931348623157e308",
                                       "1.7976931348623158e308",
                                       "1.797693134862315807e308",
                                       "1.797693134862315808e308",
                                       "1.7976931348623159e308",
                                       "9007199254740993",
                                       "9007199254740992.999999999999999999999999999999",
                                       "9007199254740993.0000000000000000001",
                                       "8.5e-320",
                                       "1e-330",
                                       "1e23",
                                       "8.41e21",
                                       "5e-325",
                                       "123456789012345678901234567890e-30",
                                       "0.000000000000000000000000000000000000000000000001e48",
                                       "6.631236846766476e-316"};
    for (size_t i = 0; i < KVS_COUNT(hard); i++) {
        same_double(hard[i]);
    }
    uint64_t seed = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 60000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const uint64_t bits = seed ^ seed >> 29;
        char text[1600];
        double f = 0.0;
        memcpy(&f, &bits, sizeof f);
        if (!isfinite(f)) {
            continue;
        }
        (void)snprintf(text, sizeof text, "%.*e", (int)(seed >> 60) + 10, f);
        same_double(text);
        if (i % 20 == 0) { /* exactly the middle of f and its neighbour, and one digit beyond */
            const double g = nextafter(f, f < 0 ? -HUGE_VAL : HUGE_VAL);
            if (!isfinite(g)) {
                continue;
            }
            const long double middle = ((long double)f + (long double)g) / 2;
            const size_t n = (size_t)snprintf(text, sizeof text, "%.1100Lf", middle);
            assert_true(n + 2 < sizeof text);
            same_double(text);
            memcpy(text + n, "1", 2);
            same_double(text);
        }
    }
}

static void test_long_numbers(void **state)
{
    (void)state;
    enum { MOST = 5000 };
    static char text[2 * MOST + 64];
    for (int zeros = 700; zeros <= MOST; zeros += 430) { /* 1 followed by zeros, taken back */
        (void)snprintf(text, sizeof text, "1%0*de-%d", zeros, 0, zeros);
        same_double(text);
        (void)snprintf(text, sizeof text, "0.%0*d1e%d", zeros, 0, zeros + 1);
        same_double(text);
        (void)snprintf(text, sizeof text, "9007199254740993.%0*d1", zeros, 0);
        same_double(text);
        (void)snprintf(text, sizeof text, "9007199254740993.%0*d", zeros, 0);
        same_double(text);
    }
}

static void test_whole(void **state)
{
    (void)state;
    kvs__json *doc = must("[7,-7,7.0,7e0,9223372036854775808,\"7\"]");
    kvs__jval v = {NULL, 0};
    for (int i = 0; kvs__json_next(kvs__json_root(doc), &v); i++) {
        int64_t x = 0;
        assert_int_equal(kvs__json_whole(v, &x), i < 2);
        assert_int_equal(x, i == 0 ? 7 : i == 1 ? -7 : 0);
    }
    kvs__json_free(doc);
}

static char *own(const char *text, size_t n)
{
    char *copy = kvs__alloc(ctx, n + 1);
    assert_non_null(copy);
    memcpy(copy, text, n);
    return copy;
}

static void test_adopted(void **state)
{
    (void)state;
    static const char text[] = "{\"a\\n\\u00e9\":\"\\ud83d\\ude00\\u0000z\",\"b\":[\"\",\"plain\","
                               "1.5,\"\xc3\xa9\\t\xc3\xa9\"]}";
    kvs__json *doc = NULL;
    assert_int_equal(
        kvs__json_adopt(ctx, own(text, sizeof text - 1), sizeof text - 1, "text", &doc, NULL),
        KVS_OK);
    kvs__jval root = kvs__json_root(doc);
    kvs__jval v = kvs__json_get(root, "a\n\xc3\xa9");
    static const char want[] = "\xf0\x9f\x98\x80\0z";
    assert_false(kvs__json_escaped(v));
    assert_int_equal(kvs__json_raw(v).len, sizeof want - 1);
    assert_memory_equal(kvs__json_raw(v).ptr, want, sizeof want - 1);
    kvs__jval e = {NULL, 0};
    static const char *const list[] = {"", "plain", NULL, "\xc3\xa9\t\xc3\xa9"};
    for (size_t i = 0; kvs__json_next(kvs__json_get(root, "b"), &e); i++) {
        assert_true(!list[i] || kvs__json_is(e, list[i]));
        assert_int_equal(kvs__json_kind(e), list[i] ? KVS__JSON_STRING : KVS__JSON_NUMBER);
    }
    const kvs__str kept = kvs__json_raw(v);
    kvs__json_drop_nodes(doc);
    assert_int_equal(kvs__json_kind(kvs__json_root(doc)), KVS__JSON_NONE);
    assert_memory_equal(kept.ptr, want, sizeof want - 1);
    kvs__json_free(doc);
}

/* Line breaks that were escaped do not count, though they stand in the text by then. */
static void test_place_in_an_adopted_text(void **state)
{
    (void)state;
    static const char text[] = "{\n\"\\n\\n\\n\": 1,\n\"\\n\\n\":\n  x}";
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs__json *doc = NULL;
    assert_int_equal(
        kvs__json_adopt(ctx, own(text, sizeof text - 1), sizeof text - 1, "x", &doc, &err),
        KVS_E_FORMAT);
    assert_null(doc);
    assert_string_equal(err.msg, "x: line 4, byte 3: expected a value");
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
        cmocka_unit_test(test_doubles_are_the_nearest),
        cmocka_unit_test(test_a_double_rounded_twice),
        cmocka_unit_test(test_long_numbers),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_place_in_an_adopted_text),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
