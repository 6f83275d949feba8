/* SPDX-License-Identifier: MIT */
/* test_engine_template.c: values and chat templates: the interface, what is refused and how, where
 * text from input is, limits, and every allocation failing once. What templates render to is
 * compared with jinja2 by tests/oracle/oracle_jinja.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "kvstate/template.h"
#include "support/fail_alloc.h"

static kvs_ctx *ctx;

static kvs_value *parse(const char *json, uint32_t flags)
{
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_value_parse(ctx, json, strlen(json), flags, &v, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return v;
}

/* Renders; the text, or NULL with err filled. */
static kvs_status render(const char *text, const char *json, const kvs_template_opts *o,
                         kvs_value **out, kvs_err *err)
{
    kvs_template *t = NULL;
    kvs_value *vars = parse(json, KVS_VALUE_VARIABLES);
    kvs_status st = kvs_template_compile(ctx, text, strlen(text), &t, err);
    if (st == KVS_OK) {
        st = kvs_template_render(ctx, t, vars, o, out, err);
    }
    kvs_template_free(t);
    kvs_value_free(vars);
    return st;
}

static void gives(const char *text, const char *json, const char *want)
{
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (render(text, json, NULL, &v, &err) != KVS_OK) {
        fail_msg("%s: %s", text, err.msg);
    }
    size_t n = 0;
    const char *p = kvs_value_text(v, &n);
    assert_string_equal(p, want);
    assert_int_equal(n, strlen(want));
    kvs_value_free(v);
}

static void refused(const char *text, const char *json, kvs_status want, const char *message)
{
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = render(text, json, NULL, &v, &err);
    if (st != want || !strstr(err.msg, message)) {
        fail_msg("%.80s: status %d \"%s\", wanted %d \"%s\"", text, (int)st, err.msg, (int)want,
                 message);
    }
    assert_null(v);
}

static void test_values(void **state)
{
    (void)state;
    kvs_value *v =
        parse("{\"a\": [1, -2.5, \"\\u00e9\\ud83c\\udf89\", null, true], \"b\": {\"c\": 7},"
              " \"a2\": 1, \"b\": {\"c\": 8}}",
              0);
    size_t n = 0;
    assert_int_equal(kvs_value_type(v), KVS_VALUE_OBJECT);
    assert_int_equal(kvs_value_size(v), 3); /* of equal keys the last one */
    const kvs_value *a = kvs_value_get(v, "a");
    assert_int_equal(kvs_value_type(a), KVS_VALUE_ARRAY);
    assert_int_equal(kvs_value_size(a), 5);
    assert_int_equal(kvs_value_int(kvs_value_at(a, 0), -1), 1);
    assert_int_equal(kvs_value_type(kvs_value_at(a, 1)), KVS_VALUE_FLOAT);
    assert_int_equal(kvs_value_int(kvs_value_at(a, 1), -1), -1);
    assert_string_equal(kvs_value_text(kvs_value_at(a, 2), &n), "\xc3\xa9\xf0\x9f\x8e\x89");
    assert_int_equal(n, 6);
    assert_int_equal(kvs_value_type(kvs_value_at(a, 3)), KVS_VALUE_NULL);
    assert_int_equal(kvs_value_type(kvs_value_at(a, 4)), KVS_VALUE_BOOL);
    assert_null(kvs_value_at(a, 5));
    assert_int_equal(kvs_value_int(kvs_value_get(kvs_value_get(v, "b"), "c"), -1), 8);
    /* a path that leads nowhere */
    assert_null(kvs_value_get(kvs_value_get(kvs_value_get(v, "x"), "y"), "z"));
    assert_null(kvs_value_text(kvs_value_at(NULL, 3), &n));
    assert_int_equal(n, 0);
    assert_int_equal(kvs_value_type(NULL), KVS_VALUE_OTHER);
    kvs_value_free(v);
    kvs_value_free(NULL);
}

static void test_bad_json(void **state)
{
    (void)state;
    static const char *const bad[] = {"",         "{",
                                      "[1,]",     "{\"a\":1,}",
                                      "[1 2]",    "01",
                                      "1.",       "-",
                                      "+1",       "\"a",
                                      "\"\\x\"",  "nul",
                                      "[1]x",     "{1:2}",
                                      "\"\n\"",   "'a'",
                                      "1e",       "[",
                                      "{\"a\"",   "\"\\u12\"",
                                      "\"\xff\"", "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvs_value *v = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        assert_int_equal(kvs_value_parse(ctx, bad[i], strlen(bad[i]), 0, &v, &err), KVS_E_FORMAT);
        assert_non_null(strstr(err.msg, "line 1, column"));
        assert_null(v);
    }
    char deep[400];
    memset(deep, '[', sizeof deep);
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_value_parse(ctx, deep, sizeof deep, 0, &v, &err), KVS_E_LIMIT);
    assert_int_equal(kvs_value_parse(ctx, "[\n1,\n  x]", 9, 0, &v, &err), KVS_E_FORMAT);
    assert_non_null(strstr(err.msg, "line 3, column 3"));
    assert_int_equal(kvs_value_parse(ctx, "[]", 2, KVS_VALUE_VARIABLES, &v, &err), KVS_E_FORMAT);
    assert_int_equal(kvs_value_parse(ctx, "[]", 2, 1u << 31, &v, &err), KVS_E_INVAL);
    assert_int_equal(kvs_value_parse(NULL, "[]", 2, 0, &v, &err), KVS_E_INVAL);
}

static void test_render(void **state)
{
    (void)state;
    gives("{% for m in messages %}\n<{{ m.role }}>{{ m.content | trim }}\n{% endfor %}\n",
          "{\"messages\": [{\"role\": \"user\", \"content\": \" hi \"}]}", "<user>hi\n");
    gives("a\n", "{}", "a");
    gives("", "{}", "");
    gives("{{ x }}{{ messages | length }}", "{\"messages\": []}", "0");
    gives("{{ {'b': 1, 'a': [none, 1.0]} | tojson }}", "{}", "{\"b\": 1, \"a\": [null, 1.0]}");
}

static void test_refusals(void **state)
{
    (void)state;
    refused("a\n\n{% block x %}{% endblock %}", "{}", KVS_E_UNSUPPORTED,
            "line 3: the statement {% block %}");
    refused("\n{{ x | urlize }}", "{}", KVS_E_UNSUPPORTED, "line 2: no filter \"urlize\"");
    refused("{{ x is prime }}", "{}", KVS_E_UNSUPPORTED, "line 1: no test \"prime\"");
    refused("{% for a in b recursive %}{% endfor %}", "{}", KVS_E_UNSUPPORTED, "recursive");
    refused("{% call x() %}{% endcall %}", "{}", KVS_E_UNSUPPORTED, "{% call %}");
    refused("{% if a %}\n\n", "{}", KVS_E_FORMAT, "line 1: the block that begins here has no");
    refused("\n{{ 1 + }}", "{}", KVS_E_FORMAT, "line 2: \"}}\", an expression expected");
    refused("\n{{ a", "{}", KVS_E_FORMAT, "line 2: a tag without its end");
    refused("{{ 'a }}", "{}", KVS_E_FORMAT, "a string without its end");
    refused("\n\n{{ raise_exception('roles must alternate') }}", "{}", KVS_E_FORMAT,
            "line 3: roles must alternate");
    refused("{{ x.y.z }}", "{\"x\": {}}", KVS_E_FORMAT, "y is undefined");
    refused("{{ [].append(1) }}", "{}", KVS_E_UNSUPPORTED, "append would change the list");
    refused("{{ strftime_now('%Y') }}", "{}", KVS_E_STATE, "no time was given");
    refused("{{ '\xff' }}", "{}", KVS_E_FORMAT, "not UTF-8 text: byte 0xff at offset 4");
    kvs_template *t = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_template_compile(ctx, NULL, 1, &t, &err), KVS_E_INVAL);
    assert_int_equal(kvs_template_compile(ctx, "x", (size_t)2 << 20, &t, &err), KVS_E_LIMIT);
    kvs_template_free(NULL);
}

static void test_limits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t bytes, output;
        uint64_t steps;
        const char *message;
    } cases[] = {
        {"{{ 'abc' * 100 }}", 0, 100, 0, "more than 100 bytes of text"},
        {"{% for i in range(1000) %}{% endfor %}", 0, 0, 500, "more than 500 steps"},
        {"{% set x = 'a' * 10000000 %}", (size_t)4 << 20, 0, 0, "more than 4 MiB of memory"},
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", 0, 0, 0, "macros that call each other"},
        {"{{ range(200000) }}", 0, 0, 0, "range of more than 100000"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
        kvs_value *v = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        o.max_bytes = cases[i].bytes;
        o.max_output = cases[i].output;
        o.max_steps = cases[i].steps;
        assert_int_equal(render(cases[i].text, "{}", &o, &v, &err), KVS_E_LIMIT);
        assert_non_null(strstr(err.msg, cases[i].message));
        assert_null(v);
    }
}

static void test_options(void **state)
{
    (void)state;
    kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.reserved = 1;
    assert_int_equal(render("a", "{}", &o, &v, &err), KVS_E_INVAL);
    o.reserved = 0;
    o.struct_size = 3;
    assert_int_equal(render("a", "{}", &o, &v, &err), KVS_E_INVAL);
    o.struct_size = sizeof o;
    o.has_time = 1;
    o.time = INT64_MAX;
    assert_int_equal(render("a", "{}", &o, &v, &err), KVS_E_RANGE);
    o.time = 951782400; /* 29 February 2000 */
    assert_int_equal(render("{{ strftime_now('%d %b %Y %j') }}", "{}", &o, &v, &err), KVS_OK);
    assert_string_equal(kvs_value_text(v, NULL), "29 Feb 2000 060");
    kvs_value_free(v);
}

/* "[" where input begins and "]" where it ends. */
static void spans(const char *text, const char *json, const char *want)
{
    kvs_value *v = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    char got[256];
    size_t n = 0;
    size_t m = 0;
    if (render(text, json, NULL, &v, &err) != KVS_OK) {
        fail_msg("%s: %s", text, err.msg);
    }
    const char *p = kvs_value_text(v, &n);
    size_t from = 0;
    size_t to = 0;
    size_t at = 0;
    for (size_t k = 0; kvs_value_input_span(v, k, &from, &to) == KVS_OK; k++) {
        assert_true(from >= at && to > from && to <= n);
        m += (size_t)snprintf(got + m, sizeof got - m, "%.*s[%.*s]", (int)(from - at), p + at,
                              (int)(to - from), p + from);
        at = to;
    }
    (void)snprintf(got + m, sizeof got - m, "%s", p + at);
    assert_string_equal(got, want);
    kvs_value_free(v);
}

static void test_input_spans(void **state)
{
    (void)state;
    static const char json[] = "{\"messages\": [{\"role\": \"user\", \"content\": \" <s>x \"}],"
                               " \"bos\": \"<s>\"}";
    spans("{% set c = messages[0].content %}<s>{{ c }}</s>", json, "<s>[ <s>x ]</s>");
    spans("{% set c = messages[0].content %}{{ '<s>' + c + '</s>' }}", json, "<s>[ <s>x ]</s>");
    spans("{% set c = messages[0].content %}{{ ('<s>' ~ c ~ '</s>')|trim }}", json,
          "<s>[ <s>x ]</s>");
    spans("{% set c = messages[0].content %}{{ ('<s>' ~ c)|trim }}{{ bos }}", json,
          "<s>[ <s>x]<s>");
    spans("{% set c = messages[0].content %}{{ ('<s>' + c)[1:6] }}", json, "s>[ <s]");
    spans("{% set c = messages[0].content %}{{ ('<s>' + c)[::-1] }}", json, "[ x>s< ]>s<");
    spans("{% set c = messages[0].content %}{{ ('a' + c).split('x')[0] }}", json, "a[ <s>]");
    spans("{% set c = messages[0].content %}{{ ('a' + c + 'x').replace('x', 'yy') }}", json,
          "a[ <s>]yy[ ]yy");
    spans("{% set c = messages[0].content %}{{ 'q'.replace('q', c) }}", json, "[ <s>x ]");
    spans("{% set c = messages[0].content %}{{ ['<s>', c]|join(bos) }}", json, "<s><s>[ <s>x ]");
    spans("{% set c %}<s>{{ messages[0].content }}{% endset %}{{ c }}", json, "<s>[ <s>x ]");
    spans("{% macro f(c) %}<s>{{ c }}{% endmacro %}{{ f(messages[0].content) }}", json,
          "<s>[ <s>x ]");
    spans("{% set c = messages[0].content %}{{ ('a' ~ c)|upper }}", json, "[A <S>X ]");
    spans("{{ messages[0]|tojson }}", json,
          "{[\"role\"]: [\"user\"], [\"content\"]: [\" <s>x \"]}");
    spans("{{ '%s|%s' % (messages[0].content, '<s>') }}", json, "[ <s>x ]|<s>");
    spans("{{ '{}|{}'.format(messages[0].content, '<s>') }}", json, "[ <s>x ]|<s>");
    spans("{% set c = messages[0].content %}{{ ('<s>\n' ~ c)|indent(2) }}", json,
          "<s>\n  [ <s>x ]");
    spans("{{ messages[0] }}", json, "{['role']: ['user'], ['content']: [' <s>x ']}");
}

/* A locale with a comma must not show, neither in reading nor in writing. */
static void test_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE.utf8"};
    for (size_t i = 0; i < 3; i++) {
        if (setlocale(LC_NUMERIC, names[i])) {
            break;
        }
    }
    gives("{{ 2.5 }} {{ x }} {{ '%.2f' % 1.5 }} {{ '3.25'|float }} {{ 2.25|round(1) }} {{ 0.1 + "
          "0.2 }}",
          "{\"x\": 1.75}", "2.5 1.75 1.50 3.25 2.2 0.30000000000000004");
    (void)setlocale(LC_NUMERIC, "C");
}

static void test_allocation(void **state)
{
    (void)state;
    static const char text[] =
        "{% macro f(x) %}{{ x | upper }}{% endmacro %}{% for m in messages %}"
        "{{ f(m.content) ~ m | tojson }}{{ 'y' * 100000 }}{% endfor %}";
    static const char json[] = "{\"messages\": [{\"content\": \"a\"}, {\"content\": \"b\"}]}";
    fail_alloc heap = FAIL_ALLOC_INIT;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &heap;
    kvs_ctx *c = NULL;
    assert_int_equal(kvs_ctx_new(&o, &c, NULL), KVS_OK);
    size_t live = heap.live;
    long k = 0;
    for (kvs_status st = KVS_E_NOMEM; st != KVS_OK; k++) {
        kvs_value *vars = NULL;
        kvs_value *out = NULL;
        kvs_template *t = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        heap.calls = 0;
        heap.fail_at = k;
        st = kvs_value_parse(c, json, strlen(json), KVS_VALUE_VARIABLES, &vars, &err);
        if (st == KVS_OK) {
            st = kvs_template_compile(c, text, strlen(text), &t, &err);
        }
        if (st == KVS_OK) {
            st = kvs_template_render(c, t, vars, NULL, &out, &err);
        }
        assert_true(st == KVS_OK || st == KVS_E_NOMEM);
        assert_true(st == KVS_OK || (err.status == KVS_E_NOMEM && !out));
        kvs_value_free(out);
        kvs_value_free(vars);
        kvs_template_free(t);
        assert_int_equal(heap.live, live);
    }
    assert_true(k > 6);
    assert_int_equal(heap.wrong, 0);
    kvs_ctx_free(c);
}

static int setup(void **state)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    (void)state;
    o.n_threads = 1;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : 1;
}

static int teardown(void **state)
{
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    (void)state;
    (void)kvs_ctx_get_stats(ctx, &st);
    kvs_ctx_free(ctx);
    return st.live_bytes < ((size_t)1 << 20) ? 0 : 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_render),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limits),      cmocka_unit_test(test_options),
        cmocka_unit_test(test_input_spans), cmocka_unit_test(test_locale),
        cmocka_unit_test(test_allocation)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
