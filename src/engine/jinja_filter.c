/* SPDX-License-Identifier: MIT */
/* jinja_filter.c: filters of texts, numbers and JSON, and the table of all filters. */
#include "engine/jinja_filter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const kvs__jstr *text_of(kvs__jrun *r, const kvs__val *v)
{
    return kvs__jstring(r->h, v);
}

static _Noreturn void bad_arg(kvs__jrun *r, const kvs__jargs *a, const kvs__val *v)
{
    kvs__jfail(r->h, KVS_E_FORMAT, "%s: %s as an argument", a->who, kvs__jtype_name(v));
}

static void no_args(kvs__jrun *r, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
}

static kvs__val f_upper(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    return kvs__jcased(r->h, text_of(r, &v), J_UPPER);
}

static kvs__val f_lower(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    return kvs__jcased(r->h, text_of(r, &v), J_LOWER);
}

static kvs__val f_title(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    return kvs__jtitle_filter(r->h, text_of(r, &v));
}

static kvs__val f_capitalize(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    return kvs__jcapitalize(r->h, text_of(r, &v));
}

static kvs__val f_string(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    return kvs__jstrv(text_of(r, &v));
}

static kvs__val f_safe(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    kvs__jstr *s = kvs__jalloc(r->h, sizeof *s);
    *s = *text_of(r, &v);
    s->safe = true;
    return kvs__jstrv(s);
}

static kvs__val f_trim(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[1];
    uint32_t given = kvs__jbind(r->h, a, "chars", x);
    if (given && x[0].type != J_STR && x[0].type != J_NONE) {
        bad_arg(r, a, &x[0]);
    }
    const kvs__jstr *chars = given && x[0].type == J_STR ? x[0].u.s : NULL;
    return kvs__jstrip(r->h, text_of(r, &v), chars, true, true);
}

static kvs__val f_replace(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[3];
    int64_t count = -1;
    uint32_t given = kvs__jbind(r->h, a, "old|new|count", x);
    if ((given & 3) != 3) {
        kvs__jfail(r->h, KVS_E_FORMAT, "replace takes what and by what");
    }
    if (given & 4 && x[2].type != J_NONE) {
        if (x[2].type != J_INT) {
            bad_arg(r, a, &x[2]);
        }
        count = x[2].u.i;
    }
    return kvs__jreplace(r->h, text_of(r, &v), text_of(r, &x[0]), text_of(r, &x[1]), count);
}

static kvs__val f_format(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_TUPLE);
    if (a->n_named > 0) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "the filter format with named values");
    }
    for (size_t i = 0; i < a->n; i++) {
        kvs__jlist_add(r->h, l, a->at[i]);
    }
    kvs__val args = kvs__jlistv(l);
    return kvs__jpercent(r->h, text_of(r, &v), &args);
}

static kvs__val f_indent(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[3] = {kvs__jint(4), kvs__jbool(false), kvs__jbool(false)};
    (void)kvs__jbind(r->h, a, "width|first|blank", x);
    kvs__jsb b = {.h = r->h};
    if (x[0].type == J_STR) {
        kvs__jsb_str(&b, x[0].u.s, 0, x[0].u.s->n);
    } else if (x[0].type == J_INT || x[0].type == J_BOOL) {
        for (int64_t i = 0; i < kvs__jnum_int(&x[0]); i++) {
            kvs__jstep(r->h, 1);
            kvs__jsb_put(&b, " ", 1);
        }
    } else {
        bad_arg(r, a, &x[0]);
    }
    const kvs__jstr *by = kvs__jsb_done(&b).u.s;
    kvs__jsb s = {.h = r->h};
    if (v.type != J_STR) {
        kvs__jfail(r->h, KVS_E_FORMAT, "indent of %s", kvs__jtype_name(&v));
    }
    kvs__jsb_str(&s, v.u.s, 0, v.u.s->n);
    kvs__jsb_put(&s, "\n", 1);
    const kvs__jlist *lines = kvs__jlines(r->h, kvs__jsb_done(&s).u.s, false);
    kvs__jsb out = {.h = r->h};
    if (kvs__jtrue(&x[1])) {
        kvs__jsb_str(&out, by, 0, by->n);
    }
    for (size_t i = 0; i < lines->n; i++) {
        const kvs__jstr *line = lines->at[i].u.s;
        if (i > 0) {
            kvs__jsb_put(&out, "\n", 1);
        }
        if (i > 0 && (line->n > 0 || kvs__jtrue(&x[2]))) {
            kvs__jsb_str(&out, by, 0, by->n);
        }
        kvs__jsb_str(&out, line, 0, line->n);
    }
    return kvs__jsb_done(&out);
}

static kvs__val f_wordcount(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    int64_t n = 0;
    bool inside = false;
    no_args(r, a);
    const kvs__jstr *s = text_of(r, &v);
    for (size_t i = 0; i < s->n;) {
        uint32_t cp = kvs__jnext(s->p, &i);
        bool word = cp == '_' || kvs__jclass(cp) != 0;
        kvs__jstep(r->h, 1);
        if (cp >= 0x80) {
            kvs__jfail(r->h, KVS_E_UNSUPPORTED, "wordcount of text beyond ASCII");
        }
        n += word && !inside;
        inside = word;
    }
    return kvs__jint(n);
}

/* ---- defaults and numbers */

static kvs__val f_default(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jtext(r->h, "", 0), kvs__jbool(false)};
    (void)kvs__jbind(r->h, a, "default_value|boolean", x);
    bool use = v.type == J_UNDEFINED || (kvs__jtrue(&x[1]) && !kvs__jtrue(&v));
    return use ? x[0] : v;
}

static int64_t digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

/* Does "0x" of this base begin at i? */
static bool has_prefix(const kvs__jstr *s, size_t i, int64_t base)
{
    char c = (char)(s->n >= i + 2 && s->p[i] == '0' ? s->p[i + 1] | 0x20 : ' ');
    return (c == 'x' && base == 16) || (c == 'o' && base == 8) || (c == 'b' && base == 2);
}

/* Python's int(text, base), as far as ASCII digits go; false: ValueError. */
static bool parse_int(kvs__jrun *r, const kvs__jstr *s, int64_t base, int64_t *out)
{
    const kvs__jstr *t = kvs__jstrip(r->h, s, NULL, true, true).u.s;
    size_t i = t->n > 0 && (t->p[0] == '-' || t->p[0] == '+');
    bool minus = i > 0 && t->p[0] == '-';
    bool digit_before = has_prefix(t, i, base); /* 0x_1 is fine */
    int64_t x = 0;
    i += digit_before ? 2 : 0;
    size_t first = i;
    for (; i < t->n; i++) {
        if (t->p[i] == '_' && digit_before && i + 1 < t->n) {
            digit_before = false;
            continue;
        }
        int64_t d = digit_of(t->p[i]);
        if (d >= base) {
            return false;
        }
        digit_before = true;
        if (__builtin_mul_overflow(x, base, &x) || __builtin_add_overflow(x, d, &x)) {
            kvs__jfail(r->h, KVS_E_UNSUPPORTED, "an integer beyond 64 bits");
        }
    }
    *out = minus ? -x : x;
    return i > first && digit_before;
}

/* Python's float(text) without its words in other scripts. */
static bool parse_float(kvs__jrun *r, const kvs__jstr *s, double *out)
{
    char text[400];
    const kvs__jstr *t = kvs__jstrip(r->h, s, NULL, true, true).u.s;
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        char c = t->p[i];
        bool digit = i > 0 && t->p[i - 1] >= '0' && t->p[i - 1] <= '9';
        if (c == '_' && digit && t->p[i + 1] >= '0' && t->p[i + 1] <= '9') {
            continue;
        }
        if (n == sizeof text) {
            return false;
        }
        text[n++] = c;
    }
    return kvs__jfloat_read(text, n, out);
}

static kvs__val whole(kvs__jrun *r, double f, kvs__val other)
{
    if (isnan(f) || isinf(f)) {
        return other;
    }
    if (fabs(f) >= 0x1p63) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "an integer beyond 64 bits");
    }
    return kvs__jint((int64_t)f);
}

static kvs__val f_int(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jint(0), kvs__jint(10)};
    int64_t i = 0;
    double f = 0.0;
    (void)kvs__jbind(r->h, a, "default|base", x);
    if (x[1].type != J_INT || x[1].u.i < 2 || x[1].u.i > 36) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "int: this base");
    }
    if (v.type == J_UNDEFINED) {
        kvs__jfail(r->h, KVS_E_FORMAT, "int of an undefined value");
    }
    if (v.type == J_STR) {
        if (parse_int(r, v.u.s, x[1].u.i, &i)) {
            return kvs__jint(i);
        }
        return parse_float(r, v.u.s, &f) ? whole(r, f, x[0]) : x[0];
    }
    if (v.type == J_FLOAT) {
        return whole(r, v.u.f, x[0]);
    }
    return kvs__jis_number(&v) ? kvs__jint(kvs__jnum_int(&v)) : x[0];
}

static kvs__val f_float(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[1] = {kvs__jfloat(0.0)};
    double f = 0.0;
    (void)kvs__jbind(r->h, a, "default", x);
    if (v.type == J_UNDEFINED) {
        kvs__jfail(r->h, KVS_E_FORMAT, "float of an undefined value");
    }
    if (v.type == J_STR) {
        return parse_float(r, v.u.s, &f) ? kvs__jfloat(f) : x[0];
    }
    return kvs__jis_number(&v) ? kvs__jfloat(kvs__jnum_float(&v)) : x[0];
}

static kvs__val f_abs(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    if (v.type == J_FLOAT) {
        return kvs__jfloat(fabs(v.u.f));
    }
    if (!kvs__jis_number(&v)) {
        kvs__jfail(r->h, KVS_E_FORMAT, "abs of %s", kvs__jtype_name(&v));
    }
    int64_t i = kvs__jnum_int(&v);
    return i < 0 ? kvs__jbinary(r->h, '-', kvs__jint(0), kvs__jint(i)) : kvs__jint(i);
}

static kvs__val f_round(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jint(0), kvs__jtext0(r->h, "common")};
    char text[400];
    (void)kvs__jbind(r->h, a, "precision|method", x);
    if (x[0].type != J_INT || x[0].u.i < 0 || x[0].u.i > 30 || x[1].type != J_STR) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "round with these arguments");
    }
    if (!kvs__jis_number(&v)) {
        kvs__jfail(r->h, KVS_E_FORMAT, "round of %s", kvs__jtype_name(&v));
    }
    double f = kvs__jnum_float(&v);
    if (kvs__jis(x[1].u.s, "common")) {
        if (v.type != J_FLOAT) {
            return kvs__jint(kvs__jnum_int(&v));
        }
        (void)snprintf(text, sizeof text, "%.*f", (int)x[0].u.i, f);
        return kvs__jfloat(strtod(text, NULL));
    }
    bool up = kvs__jis(x[1].u.s, "ceil");
    if (!up && !kvs__jis(x[1].u.s, "floor")) {
        kvs__jfail(r->h, KVS_E_FORMAT, "round: the method is common, ceil or floor");
    }
    double scale = pow(10.0, (double)x[0].u.i);
    double y = up ? ceil(f * scale) : floor(f * scale);
    return kvs__jfloat(y / scale);
}

/* ---- JSON */

static kvs__val f_tojson(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[4] = {kvs__jbool(false), kvs__jnone(), kvs__jnone(), kvs__jbool(false)};
    kvs__jdump o = {.indent = -1};
    (void)kvs__jbind(r->h, a, "ensure_ascii|indent|separators|sort_keys", x);
    o.ascii = kvs__jtrue(&x[0]);
    o.sort = kvs__jtrue(&x[3]);
    if (x[1].type == J_STR) {
        o.indent_text = x[1].u.s;
    } else if (x[1].type == J_INT || x[1].type == J_BOOL) {
        o.indent = kvs__jnum_int(&x[1]);
        o.indent = o.indent < 0 ? 0 : o.indent;
    } else if (x[1].type != J_NONE) {
        bad_arg(r, a, &x[1]);
    }
    o.item_sep = kvs__jtext0(r->h, x[1].type == J_NONE ? ", " : ",").u.s;
    o.key_sep = kvs__jtext0(r->h, ": ").u.s;
    if (x[2].type != J_NONE) {
        const kvs__jlist *l = kvs__jiter(r->h, &x[2]);
        if (l->n != 2 || l->at[0].type != J_STR || l->at[1].type != J_STR) {
            bad_arg(r, a, &x[2]);
        }
        o.item_sep = l->at[0].u.s;
        o.key_sep = l->at[1].u.s;
    }
    kvs__jsb b = {.h = r->h};
    kvs__jsb_json(&b, &v, &o);
    return kvs__jsb_done(&b);
}

static kvs__val f_from_json(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    no_args(r, a);
    if (v.type != J_STR) {
        kvs__jfail(r->h, KVS_E_FORMAT, "from_json of %s", kvs__jtype_name(&v));
    }
    return kvs__jparse_json(r->h, v.u.s->p, v.u.s->n, kvs__jsub_input(v.u.s) ? KVS__JSON_INPUT : 0);
}

static const kvs__jfilter filters[] = {{"upper", f_upper},         {"lower", f_lower},
                                       {"title", f_title},         {"capitalize", f_capitalize},
                                       {"string", f_string},       {"safe", f_safe},
                                       {"trim", f_trim},           {"replace", f_replace},
                                       {"format", f_format},       {"indent", f_indent},
                                       {"wordcount", f_wordcount}, {"default", f_default},
                                       {"d", f_default},           {"int", f_int},
                                       {"float", f_float},         {"abs", f_abs},
                                       {"round", f_round},         {"tojson", f_tojson},
                                       {"from_json", f_from_json}};

const kvs__jfilter *kvs__jfilter_named(const char *name, size_t n)
{
    for (size_t i = 0; i < KVS_COUNT(filters); i++) {
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0) {
            return &filters[i];
        }
    }
    return kvs__jseq_filter(name, n);
}
