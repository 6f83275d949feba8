/* SPDX-License-Identifier: MIT */
/* jinja_json.c: JSON to values and back, as Python's json module does it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/jinja.h"
#include "engine/token_utf8.h"

#define MAX_NEST 128u

typedef struct reader {
    kvs__jheap *h;
    const char *p;
    size_t n, i;
    uint32_t nest;
    bool input; /* strings here came from input */
} reader;

static _Noreturn void bad(reader *r, const char *what)
{
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < r->i && i < r->n; i++) {
        column = r->p[i] == '\n' ? 1 : column + 1;
        line += r->p[i] == '\n';
    }
    kvs__jfail(r->h, KVS_E_FORMAT, "JSON, line %zu, column %zu: %s", line, column, what);
}

static void skip_space(reader *r)
{
    while (r->i < r->n && r->p[r->i] && strchr(" \t\r\n", r->p[r->i])) {
        r->i++;
    }
}

static char peek(const reader *r)
{
    return r->i < r->n ? r->p[r->i] : '\0';
}

static bool word(reader *r, const char *w)
{
    size_t n = strlen(w);
    if (r->n - r->i < n || memcmp(r->p + r->i, w, n) != 0) {
        return false;
    }
    r->i += n;
    return true;
}

double kvs__jstrtod(const char *p, char **end)
{
    char point[16]; /* "0", what the locale puts between, "5" */
    char copy[400];
    const char *dot = strchr(p, '.');
    (void)snprintf(point, sizeof point, "%.1f", 0.5);
    size_t n_point = strlen(point) - 2;
    size_t n = strlen(p);
    if (!dot || point[1] == '.' || n + n_point >= sizeof copy) {
        return strtod(p, end);
    }
    size_t head = (size_t)(dot - p);
    (void)snprintf(copy, sizeof copy, "%.*s%.*s%s", (int)head, p, (int)n_point, point + 1, dot + 1);
    char *stop = NULL;
    double f = strtod(copy, &stop);
    size_t used = (size_t)(stop - copy);
    used -= used > head ? n_point - 1 : 0;
    if (end) {
        *end = (char *)(uintptr_t)(p + used);
    }
    return f;
}

static void skip_digits(reader *r)
{
    while (peek(r) >= '0' && peek(r) <= '9') {
        r->i++;
    }
}

/* Moves over ".5" or "e+7" where one begins here. */
static bool skip_part(reader *r, bool exponent)
{
    if (exponent ? peek(r) != 'e' && peek(r) != 'E' : peek(r) != '.') {
        return false;
    }
    r->i++;
    if (exponent && (peek(r) == '-' || peek(r) == '+')) {
        r->i++;
    }
    size_t from = r->i;
    skip_digits(r);
    if (r->i == from) {
        bad(r, "a digit is missing");
    }
    return true;
}

static kvs__val read_number(reader *r)
{
    char text[512];
    size_t from = r->i;
    r->i += peek(r) == '-';
    if (word(r, "Infinity")) {
        return kvs__jfloat(r->p[from] == '-' ? -1.0 / 0.0 : 1.0 / 0.0);
    }
    size_t first = r->i;
    skip_digits(r);
    if (r->i == first || (r->p[first] == '0' && r->i > first + 1)) {
        bad(r, "not a value");
    }
    bool real = skip_part(r, false);
    real = skip_part(r, true) || real;
    if (r->i - from >= sizeof text) {
        bad(r, "a number of too many digits");
    }
    memcpy(text, r->p + from, r->i - from);
    text[r->i - from] = '\0';
    if (real) {
        return kvs__jfloat(kvs__jstrtod(text, NULL));
    }
    errno = 0;
    long long x = strtoll(text, NULL, 10);
    if (errno != 0) {
        bad(r, "an integer beyond 64 bits");
    }
    return kvs__jint(x);
}

static uint32_t read_hex4(reader *r)
{
    uint32_t x = 0;
    for (int k = 0; k < 4; k++, r->i++) {
        char c = peek(r);
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) {
            bad(r, "\\u needs four hexadecimal digits");
        }
        x = x << 4 | d;
    }
    return x;
}

static void read_escape(reader *r, kvs__jsb *b)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    char c = peek(r);
    const char *k = c ? strchr(from, c) : NULL;
    r->i++;
    if (k) {
        kvs__jsb_put(b, to + (k - from), 1);
        return;
    }
    if (c != 'u') {
        bad(r, "an unknown escape");
    }
    uint32_t cp = read_hex4(r);
    if (cp >= 0xd800 && cp < 0xdc00 && r->n - r->i >= 6 && r->p[r->i] == '\\' &&
        r->p[r->i + 1] == 'u') {
        size_t back = r->i;
        r->i += 2;
        uint32_t low = read_hex4(r);
        if (low >= 0xdc00 && low < 0xe000) {
            cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        } else {
            r->i = back;
        }
    }
    kvs__jsb_cp(b, cp >= 0xd800 && cp < 0xe000 ? 0xfffd : cp);
}

static kvs__val read_string(reader *r)
{
    kvs__jsb b = {.h = r->h};
    r->i++;
    for (;;) {
        size_t from = r->i;
        while (r->i < r->n && r->p[r->i] != '"' && r->p[r->i] != '\\' &&
               (unsigned char)r->p[r->i] >= 0x20) {
            r->i++;
        }
        if (kvs__utf8_valid(r->p + from, r->i - from) != r->i - from) {
            bad(r, "a string that is not UTF-8");
        }
        kvs__jsb_put(&b, r->p + from, r->i - from);
        if (r->i == r->n) {
            bad(r, "a string without an end");
        }
        if (r->p[r->i] == '"') {
            r->i++;
            if (r->input) {
                kvs__jsb_input(&b, 0);
            }
            return kvs__jsb_done(&b);
        }
        if (r->p[r->i] != '\\') {
            bad(r, "a control character in a string");
        }
        r->i++;
        read_escape(r, &b);
    }
}

static kvs__val read_value(reader *r);

static kvs__val read_array(reader *r)
{
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_LIST);
    r->i++;
    skip_space(r);
    if (peek(r) == ']') {
        r->i++;
        return kvs__jlistv(l);
    }
    for (;;) {
        kvs__jlist_add(r->h, l, read_value(r));
        skip_space(r);
        char c = peek(r);
        if (c != ',' && c != ']') {
            bad(r, "\",\" or \"]\" is missing");
        }
        r->i++;
        if (c == ']') {
            return kvs__jlistv(l);
        }
    }
}

static bool is_input_key(const kvs__jstr *key)
{
    return kvs__jis(key, "messages") || kvs__jis(key, "tools") || kvs__jis(key, "documents");
}

static kvs__val read_object(reader *r, bool variables)
{
    kvs__jdict *d = kvs__jdict_new(r->h);
    r->i++;
    skip_space(r);
    if (peek(r) == '}') {
        r->i++;
        return kvs__jdictv(d);
    }
    for (;;) {
        skip_space(r);
        if (peek(r) != '"') {
            bad(r, "a key in quotes is missing");
        }
        kvs__val key = read_string(r);
        skip_space(r);
        if (peek(r) != ':') {
            bad(r, "\":\" is missing");
        }
        r->i++;
        bool before = r->input;
        r->input = before || (variables && is_input_key(key.u.s));
        kvs__jdict_set(r->h, d, key, read_value(r));
        r->input = before;
        skip_space(r);
        char c = peek(r);
        if (c != ',' && c != '}') {
            bad(r, "\",\" or \"}\" is missing");
        }
        r->i++;
        if (c == '}') {
            return kvs__jdictv(d);
        }
    }
}

static kvs__val read_nested(reader *r, bool variables)
{
    if (++r->nest > MAX_NEST) {
        kvs__jfail(r->h, KVS_E_LIMIT, "JSON nested more than %u deep", MAX_NEST);
    }
    kvs__val v = peek(r) == '{' ? read_object(r, variables) : read_array(r);
    r->nest--;
    return v;
}

static kvs__val read_value(reader *r)
{
    kvs__jstep(r->h, 1);
    skip_space(r);
    switch (peek(r)) {
    case '{':
    case '[':
        return read_nested(r, false);
    case '"':
        return read_string(r);
    default:
        break;
    }
    if (word(r, "null")) {
        return kvs__jnone();
    }
    if (word(r, "true")) {
        return kvs__jbool(true);
    }
    if (word(r, "false")) {
        return kvs__jbool(false);
    }
    if (word(r, "NaN")) {
        return kvs__jfloat(0.0 / 0.0);
    }
    return read_number(r);
}

kvs__val kvs__jparse_json(kvs__jheap *h, const char *p, size_t n, uint32_t flags)
{
    reader r = {.h = h, .p = p, .n = n, .input = (flags & KVS__JSON_INPUT) != 0};
    skip_space(&r);
    bool variables = (flags & KVS_VALUE_VARIABLES) != 0;
    if (variables && peek(&r) != '{') {
        bad(&r, "the variables of a template are an object");
    }
    kvs__val v = variables ? read_nested(&r, true) : read_value(&r);
    skip_space(&r);
    if (r.i != n) {
        bad(&r, "something follows the value");
    }
    return v;
}

/* ---- writing */

static void dump_string(kvs__jsb *b, const kvs__jstr *s, bool ascii)
{
    static const char from[] = "\"\\\b\f\n\r\t";
    static const char to[] = "\"\\bfnrt";
    size_t start = b->n;
    kvs__jsb_put(b, "\"", 1);
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = kvs__jnext(s->p, &i);
        const char *k = cp > 0 && cp < 0x80 ? strchr(from, (int)cp) : NULL;
        char u[16];
        if (k) {
            kvs__jsb_put(b, "\\", 1);
            kvs__jsb_put(b, to + (k - from), 1);
        } else if (cp < 0x20 || (ascii && cp > 0x7e)) {
            if (cp > 0xffff) {
                (void)snprintf(u, sizeof u, "\\u%04x\\u%04x", 0xd800 + ((cp - 0x10000) >> 10),
                               0xdc00 + ((cp - 0x10000) & 0x3ff));
            } else {
                (void)snprintf(u, sizeof u, "\\u%04x", cp);
            }
            kvs__jsb_put0(b, u);
        } else {
            kvs__jsb_put(b, s->p + at, i - at);
        }
    }
    kvs__jsb_put(b, "\"", 1);
    if (kvs__jsub_input(s)) {
        kvs__jsb_input(b, start);
    }
}

static void dump_break(kvs__jsb *b, const kvs__jdump *o, uint32_t level)
{
    if (o->indent < 0 && !o->indent_text) {
        return;
    }
    kvs__jsb_put(b, "\n", 1);
    for (uint32_t i = 0; i < level; i++) {
        if (o->indent_text) {
            kvs__jsb_str(b, o->indent_text, 0, o->indent_text->n);
        }
        for (int64_t k = 0; !o->indent_text && k < o->indent; k++) {
            kvs__jsb_put(b, " ", 1);
        }
    }
}

static void dump(kvs__jsb *b, const kvs__val *v, const kvs__jdump *o, uint32_t level);

static void dump_scalar(kvs__jsb *b, const kvs__val *v)
{
    switch (v->type) {
    case J_NONE:
        kvs__jsb_put0(b, "null");
        break;
    case J_BOOL:
        kvs__jsb_put0(b, v->u.b ? "true" : "false");
        break;
    case J_INT:
        kvs__jsb_int(b, v->u.i);
        break;
    case J_FLOAT:
        if (v->u.f - v->u.f == 0.0) {
            kvs__jsb_float(b, v->u.f);
        } else {
            kvs__jsb_put0(b, v->u.f > 0 ? "Infinity" : v->u.f < 0 ? "-Infinity" : "NaN");
        }
        break;
    default:
        kvs__jfail(b->h, KVS_E_FORMAT, "tojson: %s has no JSON form", kvs__jtype_name(v));
    }
}

static void dump_key(kvs__jsb *b, const kvs__val *key, const kvs__jdump *o)
{
    if (key->type == J_STR) {
        dump_string(b, key->u.s, o->ascii);
        return;
    }
    kvs__jsb_put(b, "\"", 1);
    dump_scalar(b, key);
    kvs__jsb_put(b, "\"", 1);
}

static void dump_dict(kvs__jsb *b, const kvs__jdict *d, const kvs__jdump *o, uint32_t level)
{
    size_t *order = kvs__jalloc_n(b->h, d->n + 1, sizeof *order);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = i;
        for (; o->sort && k > 0 &&
               kvs__jcompare(b->h, &d->at[i].key, &d->at[order[k - 1]].key, "sort_keys") < 0;
             k--) {
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
    kvs__jsb_put(b, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        const kvs__jpair *pair = &d->at[order[i]];
        if (i > 0) {
            kvs__jsb_str(b, o->item_sep, 0, o->item_sep->n);
        }
        dump_break(b, o, level + 1);
        dump_key(b, &pair->key, o);
        kvs__jsb_str(b, o->key_sep, 0, o->key_sep->n);
        dump(b, &pair->value, o, level + 1);
    }
    if (d->n > 0) {
        dump_break(b, o, level);
    }
    kvs__jsb_put(b, "}", 1);
}

static void dump(kvs__jsb *b, const kvs__val *v, const kvs__jdump *o, uint32_t level)
{
    kvs__jenter(b->h);
    kvs__jstep(b->h, 1);
    if (v->type == J_STR) {
        dump_string(b, v->u.s, o->ascii);
    } else if (v->type == J_DICT) {
        dump_dict(b, v->u.d, o, level);
    } else if (v->type == J_LIST && v->u.l->kind <= J_KIND_TUPLE) {
        kvs__jsb_put(b, "[", 1);
        for (size_t i = 0; i < v->u.l->n; i++) {
            if (i > 0) {
                kvs__jsb_str(b, o->item_sep, 0, o->item_sep->n);
            }
            dump_break(b, o, level + 1);
            dump(b, &v->u.l->at[i], o, level + 1);
        }
        if (v->u.l->n > 0) {
            dump_break(b, o, level);
        }
        kvs__jsb_put(b, "]", 1);
    } else {
        dump_scalar(b, v);
    }
    kvs__jleave(b->h);
}

void kvs__jsb_json(kvs__jsb *b, const kvs__val *v, const kvs__jdump *o)
{
    dump(b, v, o, 0);
}
