/* SPDX-License-Identifier: MIT */
/* jinja_json.c: JSON to values and back, as Python's json module does it: the lexer is that of
 * json.c, but NaN and Infinity are numbers here, half a surrogate pair becomes U+FFFD, and values
 * are made at once, without nodes, because the heap of a template copies and counts them anyway. */
#include <math.h>
#include <stdio.h>
#include <strings.h>

#include "engine/jinja.h"
#include "engine/json_lex.h"
#include "engine/json_number.h"

#define MAX_NEST 128u

typedef struct reader {
    kvs__jheap *h;
    kvs__json_lex l;
    uint32_t nest;
    bool input; /* strings here came from input */
} reader;

static _Noreturn void bad(reader *r, const char *what)
{
    kvs__jfail(r->h, KVS_E_FORMAT, "JSON, line %zu, column %zu: %s", r->l.line + 1,
               r->l.at - r->l.line_at + 1, what);
}

static char peek(const reader *r)
{
    return kvs__json_peek(&r->l);
}

static bool word(reader *r, const char *w)
{
    return kvs__json_word(&r->l, w);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* What Python's float() reads that is no number in JSON. */
static bool read_float_word(const char *p, size_t n, size_t sign, double *out)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < KVS_COUNT(words); i++) {
        if (n - sign == strlen(words[i]) && strncasecmp(p + sign, words[i], n - sign) == 0) {
            *out = copysign(i < 2 ? (double)INFINITY : (double)NAN, p[0] == '-' ? -1.0 : 1.0);
            return true;
        }
    }
    return false;
}

bool kvs__jfloat_read(const char *p, size_t n, double *out)
{
    const size_t sign = n > 0 && (p[0] == '-' || p[0] == '+') ? 1 : 0;
    if (read_float_word(p, n, sign, out)) {
        return true;
    }
    size_t i = sign;
    size_t digits = 0;
    for (bool dot = false; i < n && (is_digit(p[i]) || (p[i] == '.' && !dot)); i++) {
        dot = dot || p[i] == '.';
        digits += is_digit(p[i]);
    }
    if (digits > 0 && i < n && (p[i] == 'e' || p[i] == 'E')) {
        i++;
        i += i < n && (p[i] == '-' || p[i] == '+');
        for (digits = 0; i < n && is_digit(p[i]); i++) {
            digits++;
        }
    }
    if (digits == 0 || i < n) {
        return false;
    }
    *out = kvs__json_number_double(p, n);
    return true;
}

static kvs__val read_number(reader *r)
{
    if (word(r, "Infinity")) {
        return kvs__jfloat((double)INFINITY);
    }
    if (word(r, "-Infinity")) {
        return kvs__jfloat(-(double)INFINITY);
    }
    const char *p = r->l.text + r->l.at;
    bool whole = false;
    const size_t n = kvs__json_number_len(p, r->l.n - r->l.at, &whole);
    if (n == 0) {
        bad(r, "not a value");
    }
    int64_t x = 0;
    if (whole && !kvs__json_number_int(p, n, &x)) {
        bad(r, "an integer beyond 64 bits");
    }
    r->l.at += n;
    return whole ? kvs__jint(x) : kvs__jfloat(kvs__json_number_double(p, n));
}

static kvs__val read_string(reader *r)
{
    kvs__jsb b = {.h = r->h};
    const char *p = r->l.text;
    r->l.at++;
    for (;;) {
        const size_t from = r->l.at;
        r->l.at = kvs__json_run(p, r->l.n, from);
        kvs__jsb_put(&b, p + from, r->l.at - from);
        const unsigned char c = (unsigned char)peek(r);
        if (c == '"') {
            r->l.at++;
            if (r->input) {
                kvs__jsb_input(&b, 0);
            }
            return kvs__jsb_done(&b);
        }
        if (r->l.at == r->l.n) {
            bad(r, "a string without an end");
        }
        if (c != '\\') {
            bad(r, c < 0x20 ? "a control character in a string" : "a string that is not UTF-8");
        }
        uint32_t cp = 0;
        const size_t n = kvs__json_escape(p + r->l.at, r->l.n - r->l.at, &cp);
        if (n == 0) {
            bad(r, "an unknown escape");
        }
        kvs__jsb_cp(&b, kvs__json_surrogate(cp) ? 0xfffd : cp);
        r->l.at += n;
    }
}

static kvs__val read_value(reader *r);

static kvs__val read_array(reader *r)
{
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_LIST);
    r->l.at++;
    kvs__json_space(&r->l);
    if (peek(r) == ']') {
        r->l.at++;
        return kvs__jlistv(l);
    }
    for (;;) {
        kvs__jlist_add(r->h, l, read_value(r));
        kvs__json_space(&r->l);
        char c = peek(r);
        if (c != ',' && c != ']') {
            bad(r, "\",\" or \"]\" is missing");
        }
        r->l.at++;
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
    r->l.at++;
    kvs__json_space(&r->l);
    if (peek(r) == '}') {
        r->l.at++;
        return kvs__jdictv(d);
    }
    for (;;) {
        kvs__json_space(&r->l);
        if (peek(r) != '"') {
            bad(r, "a key in quotes is missing");
        }
        kvs__val key = read_string(r);
        kvs__json_space(&r->l);
        if (peek(r) != ':') {
            bad(r, "\":\" is missing");
        }
        r->l.at++;
        bool before = r->input;
        r->input = before || (variables && is_input_key(key.u.s));
        kvs__jdict_set(r->h, d, key, read_value(r));
        r->input = before;
        kvs__json_space(&r->l);
        char c = peek(r);
        if (c != ',' && c != '}') {
            bad(r, "\",\" or \"}\" is missing");
        }
        r->l.at++;
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
    kvs__json_space(&r->l);
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
    reader r = {.h = h, .l = {.text = p, .n = n}, .input = (flags & KVS__JSON_INPUT) != 0};
    kvs__json_space(&r.l);
    bool variables = (flags & KVS_VALUE_VARIABLES) != 0;
    if (variables && peek(&r) != '{') {
        bad(&r, "the variables of a template are an object");
    }
    kvs__val v = variables ? read_nested(&r, true) : read_value(&r);
    kvs__json_space(&r.l);
    if (r.l.at != n) {
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
