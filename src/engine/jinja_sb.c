/* SPDX-License-Identifier: MIT */
/* jinja_sb.c: strings that grow, with the spans that came from input, and the forms that Python's
 * str() and repr() give values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/jinja.h"
#include "engine/token_utf8.h"

size_t kvs__jutf8_cut(const char *text)
{
    return kvs__utf8_valid(text, strlen(text));
}

static void reserve(kvs__jsb *b, size_t more)
{
    size_t want = 0;
    if (!kvs__add_size(b->n, more, &want) || !kvs__add_size(want, 1, &want)) {
        kvs__jfail(b->h, KVS_E_LIMIT, "a text of %zu bytes", b->n);
    }
    if (b->max > 0 && want - 1 > b->max) {
        kvs__jfail(b->h, KVS_E_LIMIT, "more than %zu bytes of text", b->max);
    }
    if (b->p && want <= b->cap) {
        return;
    }
    size_t cap = b->cap > 0 && b->cap <= SIZE_MAX / 2 ? 2 * b->cap : want;
    cap = cap > want ? cap : want;
    char *p = kvs__jalloc(b->h, cap);
    if (b->p) {
        memcpy(p, b->p, b->n);
    }
    b->p = p;
    b->cap = cap;
}

static size_t count_chars(const char *p, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        count += ((unsigned char)p[i] & 0xc0) != 0x80;
    }
    return count;
}

void kvs__jsb_put(kvs__jsb *b, const char *p, size_t n)
{
    if (n == 0) {
        return;
    }
    kvs__jstep(b->h, n / 64);
    reserve(b, n);
    memcpy(b->p + b->n, p, n);
    b->n += n;
    b->n_chars += count_chars(p, n);
}

void kvs__jsb_put0(kvs__jsb *b, const char *p)
{
    kvs__jsb_put(b, p, strlen(p));
}

static void add_span(kvs__jsb *b, size_t from, size_t to)
{
    if (b->n_spans > 0 && b->spans[b->n_spans - 1].to == from) {
        b->spans[b->n_spans - 1].to = to;
        return;
    }
    if (b->n_spans == b->cap_spans) {
        size_t cap = b->cap_spans > 0 ? 2 * b->cap_spans : 2;
        kvs__jspan *s = kvs__jalloc_n(b->h, cap, sizeof *s);
        if (b->n_spans > 0) {
            memcpy(s, b->spans, b->n_spans * sizeof *s);
        }
        b->spans = s;
        b->cap_spans = cap;
    }
    b->spans[b->n_spans++] = (kvs__jspan){from, to};
}

void kvs__jsb_str(kvs__jsb *b, const kvs__jstr *s, size_t from, size_t to)
{
    size_t base = b->n;
    if (from >= to) {
        return;
    }
    kvs__jsb_put(b, s->p + from, to - from);
    size_t lo = 0; /* the first span that ends after `from` */
    for (size_t hi = s->n_spans; lo < hi;) {
        size_t mid = (lo + hi) / 2;
        if (s->spans[mid].to <= from) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    for (size_t i = lo; i < s->n_spans && s->spans[i].from < to; i++) {
        size_t x = s->spans[i].from > from ? s->spans[i].from - from : 0;
        size_t y = (s->spans[i].to < to ? s->spans[i].to : to) - from;
        add_span(b, base + x, base + y);
    }
}

void kvs__jsb_input(kvs__jsb *b, size_t from)
{
    if (from >= b->n) {
        return;
    }
    while (b->n_spans > 0 && b->spans[b->n_spans - 1].from >= from) {
        b->n_spans--;
    }
    if (b->n_spans > 0 && b->spans[b->n_spans - 1].to >= from) {
        b->spans[b->n_spans - 1].to = b->n;
    } else {
        add_span(b, from, b->n);
    }
}

void kvs__jsb_cp(kvs__jsb *b, uint32_t cp)
{
    char u[4];
    size_t n = 1;
    if (cp < 0x80) {
        u[0] = (char)cp;
    } else if (cp < 0x800) {
        u[0] = (char)(0xc0 | cp >> 6);
        u[1] = (char)(0x80 | (cp & 0x3f));
        n = 2;
    } else if (cp < 0x10000) {
        u[0] = (char)(0xe0 | cp >> 12);
        u[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        u[2] = (char)(0x80 | (cp & 0x3f));
        n = 3;
    } else {
        u[0] = (char)(0xf0 | cp >> 18);
        u[1] = (char)(0x80 | (cp >> 12 & 0x3f));
        u[2] = (char)(0x80 | (cp >> 6 & 0x3f));
        u[3] = (char)(0x80 | (cp & 0x3f));
        n = 4;
    }
    kvs__jsb_put(b, u, n);
}

kvs__val kvs__jsb_done(kvs__jsb *b)
{
    reserve(b, 0);
    b->p[b->n] = '\0';
    kvs__jstr *s = kvs__jalloc(b->h, sizeof *s);
    s->p = b->p;
    s->n = b->n;
    s->n_chars = b->n_chars;
    s->spans = b->spans;
    s->n_spans = b->n_spans;
    return kvs__jstrv(s);
}

kvs__val kvs__jsub(kvs__jheap *h, const kvs__jstr *s, size_t from, size_t to)
{
    kvs__jsb b = {.h = h};
    if (from == 0 && to == s->n) {
        return kvs__jstrv(s);
    }
    kvs__jsb_str(&b, s, from, to);
    return kvs__jsb_done(&b);
}

bool kvs__jsub_input(const kvs__jstr *s)
{
    return s->n_spans > 0;
}

/* ---- str() and repr() */

void kvs__jsb_int(kvs__jsb *b, int64_t i)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)i);
    kvs__jsb_put0(b, text);
}

/* Digits of the shortest text that reads back the same; "d.ddde+xx" without the point. */
static size_t shortest(double f, char *digits, int *exponent)
{
    char text[64];
    for (int prec = 0; prec < 17; prec++) {
        (void)snprintf(text, sizeof text, "%.*e", prec, f);
        if (strtod(text, NULL) == f) {
            break;
        }
    }
    size_t n = 0;
    char *e = strchr(text, 'e');
    for (char *p = text; p < e; p++) {
        if (*p >= '0' && *p <= '9') {
            digits[n++] = *p;
        }
    }
    while (n > 1 && digits[n - 1] == '0') {
        n--;
    }
    *exponent = (int)strtol(e + 1, NULL, 10);
    return n;
}

void kvs__jsb_float(kvs__jsb *b, double f)
{
    char digits[40];
    int e = 0;
    if (isnan(f) || isinf(f)) {
        kvs__jsb_put0(b, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    if (signbit(f)) {
        kvs__jsb_put(b, "-", 1);
    }
    size_t n = shortest(fabs(f), digits, &e);
    if (e < -4 || e >= 16) {
        char tail[16];
        kvs__jsb_put(b, digits, 1);
        if (n > 1) {
            kvs__jsb_put(b, ".", 1);
            kvs__jsb_put(b, digits + 1, n - 1);
        }
        (void)snprintf(tail, sizeof tail, "e%c%02d", e < 0 ? '-' : '+', e < 0 ? -e : e);
        kvs__jsb_put0(b, tail);
        return;
    }
    if (e < 0) {
        kvs__jsb_put0(b, "0.");
        for (int i = -1; i > e; i--) {
            kvs__jsb_put(b, "0", 1);
        }
        kvs__jsb_put(b, digits, n);
        return;
    }
    for (size_t i = 0; i <= (size_t)e; i++) {
        kvs__jsb_put(b, i < n ? digits + i : "0", 1);
    }
    kvs__jsb_put(b, ".", 1);
    if (n > (size_t)e + 1) {
        kvs__jsb_put(b, digits + e + 1, n - (size_t)e - 1);
    } else {
        kvs__jsb_put(b, "0", 1);
    }
}

static void repr_escape(kvs__jsb *b, uint32_t cp)
{
    char text[16];
    switch (cp) {
    case '\n':
        kvs__jsb_put0(b, "\\n");
        return;
    case '\r':
        kvs__jsb_put0(b, "\\r");
        return;
    case '\t':
        kvs__jsb_put0(b, "\\t");
        return;
    default:
        break;
    }
    if (cp < 0x100) {
        (void)snprintf(text, sizeof text, "\\x%02x", cp);
    } else if (cp < 0x10000) {
        (void)snprintf(text, sizeof text, "\\u%04x", cp);
    } else {
        (void)snprintf(text, sizeof text, "\\U%08x", cp);
    }
    kvs__jsb_put0(b, text);
}

static void repr_string(kvs__jsb *b, const kvs__jstr *s)
{
    size_t start = b->n;
    bool has_single = memchr(s->p, '\'', s->n) != NULL;
    bool has_double = memchr(s->p, '"', s->n) != NULL;
    char quote = has_single && !has_double ? '"' : '\'';
    kvs__jsb_put0(b, s->safe ? "Markup(" : "");
    kvs__jsb_put(b, &quote, 1);
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t cp = kvs__jnext(s->p, &i);
        if (cp == (uint32_t)quote || cp == '\\') {
            kvs__jsb_put(b, "\\", 1);
            kvs__jsb_put(b, s->p + at, 1);
        } else if (!kvs__jprintable(cp)) {
            repr_escape(b, cp);
        } else {
            kvs__jsb_put(b, s->p + at, i - at);
        }
    }
    kvs__jsb_put(b, &quote, 1);
    kvs__jsb_put0(b, s->safe ? ")" : "");
    if (kvs__jsub_input(s)) {
        kvs__jsb_input(b, start);
    }
}

static void repr_list(kvs__jsb *b, const kvs__jlist *l)
{
    static const char *const open[] = {
        "[", "(", "", "", "dict_items([", "dict_keys([", "dict_values(["};
    static const char *const shut[] = {"]", ")", "", "", "])", "])", "])"};
    if (l->kind == J_KIND_RANGE) {
        kvs__jsb_put0(b, "range(");
        kvs__jsb_int(b, l->start);
        kvs__jsb_put0(b, ", ");
        kvs__jsb_int(b, l->stop);
        if (l->step != 1) {
            kvs__jsb_put0(b, ", ");
            kvs__jsb_int(b, l->step);
        }
        kvs__jsb_put0(b, ")");
        return;
    }
    if (l->kind == J_KIND_ITER) {
        kvs__jfail(b->h, KVS_E_UNSUPPORTED, "a generator is printed; |list or |join was meant");
    }
    kvs__jsb_put0(b, open[l->kind]);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) {
            kvs__jsb_put0(b, ", ");
        }
        kvs__jsb_repr(b, &l->at[i]);
    }
    if (l->kind == J_KIND_TUPLE && l->n == 1) {
        kvs__jsb_put(b, ",", 1);
    }
    kvs__jsb_put0(b, shut[l->kind]);
}

static void repr_dict(kvs__jsb *b, const kvs__jdict *d)
{
    kvs__jsb_put(b, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        if (i > 0) {
            kvs__jsb_put0(b, ", ");
        }
        kvs__jsb_repr(b, &d->at[i].key);
        kvs__jsb_put0(b, ": ");
        kvs__jsb_repr(b, &d->at[i].value);
    }
    kvs__jsb_put(b, "}", 1);
}

static void repr(kvs__jsb *b, const kvs__val *v)
{
    switch (v->type) {
    case J_UNDEFINED:
        kvs__jsb_put0(b, "Undefined");
        break;
    case J_NONE:
        kvs__jsb_put0(b, "None");
        break;
    case J_BOOL:
        kvs__jsb_put0(b, v->u.b ? "True" : "False");
        break;
    case J_INT:
        kvs__jsb_int(b, v->u.i);
        break;
    case J_FLOAT:
        kvs__jsb_float(b, v->u.f);
        break;
    case J_STR:
        repr_string(b, v->u.s);
        break;
    case J_LIST:
        repr_list(b, v->u.l);
        break;
    case J_DICT:
        repr_dict(b, v->u.d);
        break;
    default:
        kvs__jfail(b->h, KVS_E_UNSUPPORTED, "%s is printed", kvs__jtype_name(v));
    }
}

void kvs__jsb_repr(kvs__jsb *b, const kvs__val *v)
{
    kvs__jenter(b->h);
    kvs__jstep(b->h, 1);
    repr(b, v);
    kvs__jleave(b->h);
}

void kvs__jsb_value(kvs__jsb *b, const kvs__val *v)
{
    if (v->type == J_STR) {
        kvs__jsb_str(b, v->u.s, 0, v->u.s->n);
    } else if (v->type != J_UNDEFINED) {
        kvs__jsb_repr(b, v);
    }
}

const kvs__jstr *kvs__jstring(kvs__jheap *h, const kvs__val *v)
{
    if (v->type == J_STR) {
        return v->u.s;
    }
    kvs__jsb b = {.h = h};
    kvs__jsb_value(&b, v);
    return kvs__jsb_done(&b).u.s;
}
