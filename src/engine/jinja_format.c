/* SPDX-License-Identifier: MIT */
/* jinja_format.c: "%" and str.format in their common forms, strftime, and the functions that are
 * always there. Forms that are not common are refused by name. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/jinja.h"

/* ---- "%" */

typedef struct spec {
    bool left, zero, plus, space, alt;
    int width, precision; /* precision -1: none */
    char type;
} spec;

static int small_number(kvs__jheap *h, const kvs__jstr *s, size_t *i)
{
    int x = 0;
    for (; *i < s->n && s->p[*i] >= '0' && s->p[*i] <= '9'; (*i)++) {
        x = 10 * x + (s->p[*i] - '0');
        if (x > 10000) {
            kvs__jfail(h, KVS_E_LIMIT, "a width above 10000 in a format");
        }
    }
    return x;
}

static spec read_spec(kvs__jheap *h, const kvs__jstr *s, size_t *i)
{
    spec f = {.precision = -1};
    for (; *i < s->n && s->p[*i] && strchr("-0+ #", s->p[*i]); (*i)++) {
        f.left |= s->p[*i] == '-';
        f.zero |= s->p[*i] == '0';
        f.plus |= s->p[*i] == '+';
        f.space |= s->p[*i] == ' ';
        f.alt |= s->p[*i] == '#';
    }
    f.width = small_number(h, s, i);
    if (*i < s->n && s->p[*i] == '.') {
        (*i)++;
        f.precision = small_number(h, s, i);
    }
    if (*i >= s->n || f.alt || !strchr("srdiufFeEgGxX%", s->p[*i])) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "a format of \"%%\" other than s, r, d, f, e, g, x");
    }
    f.type = s->p[(*i)++];
    return f;
}

static void pad(kvs__jsb *b, const spec *f, const kvs__jstr *s)
{
    int64_t n = f->width - (int64_t)s->n_chars;
    bool number = !strchr("sr", f->type);
    size_t sign = number && f->zero && !f->left && s->n > 0 && strchr("+- ", s->p[0]);
    kvs__jsb_str(b, s, 0, sign);
    for (; !f->left && n > 0; n--) {
        kvs__jsb_put(b, f->zero && number ? "0" : " ", 1);
    }
    kvs__jsb_str(b, s, sign, s->n);
    for (; n > 0; n--) {
        kvs__jsb_put(b, " ", 1);
    }
}

/* snprintf's text with the point of whatever locale made a '.'. */
static void plain_point(char *text)
{
    for (char *p = text; *p; p++) {
        if (!strchr("+-0123456789eEinfaINFA .", *p)) {
            *p = '.';
            char *rest = p + 1;
            while ((*rest & 0xc0) == 0x80 && *rest) {
                rest++;
            }
            memmove(p + 1, rest, strlen(rest) + 1);
        }
    }
}

static kvs__val format_float(kvs__jheap *h, const spec *f, double x)
{
    char text[512];
    int prec = f->precision < 0 ? 6 : f->precision;
    if (prec > 100 || fabs(x) > 1e200) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "a format of more than 100 digits");
    }
    switch (f->type) {
    case 'e':
        (void)snprintf(text, sizeof text, "%.*e", prec, x);
        break;
    case 'E':
        (void)snprintf(text, sizeof text, "%.*E", prec, x);
        break;
    case 'g':
        (void)snprintf(text, sizeof text, "%.*g", prec, x);
        break;
    case 'G':
        (void)snprintf(text, sizeof text, "%.*G", prec, x);
        break;
    default:
        (void)snprintf(text, sizeof text, "%.*f", prec, x);
        break;
    }
    plain_point(text);
    kvs__jsb b = {.h = h};
    if (text[0] != '-' && (f->plus || f->space)) {
        kvs__jsb_put(&b, f->plus ? "+" : " ", 1);
    }
    kvs__jsb_put0(&b, text);
    return kvs__jsb_done(&b);
}

static kvs__val format_int(kvs__jheap *h, const spec *f, const kvs__val *v)
{
    char text[32];
    int64_t i = 0;
    if (v->type == J_FLOAT && strchr("diu", f->type) && fabs(v->u.f) < 0x1p63) {
        i = (int64_t)v->u.f;
    } else if (v->type == J_INT || v->type == J_BOOL) {
        i = kvs__jnum_int(v);
    } else {
        kvs__jfail(h, KVS_E_FORMAT, "%%%c of %s", f->type, kvs__jtype_name(v));
    }
    if (f->precision >= 0) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "a precision with %%%c", f->type);
    }
    unsigned long long size = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    (void)snprintf(text, sizeof text,
                   f->type == 'x'   ? "%llx"
                   : f->type == 'X' ? "%llX"
                                    : "%llu",
                   size);
    kvs__jsb b = {.h = h};
    kvs__jsb_put0(&b, i < 0 ? "-" : f->plus ? "+" : f->space ? " " : "");
    kvs__jsb_put0(&b, text);
    return kvs__jsb_done(&b);
}

static kvs__val format_one(kvs__jheap *h, const spec *f, const kvs__val *v)
{
    if (f->type == 's' || f->type == 'r') {
        kvs__jsb b = {.h = h};
        if (f->type == 's') {
            kvs__jsb_value(&b, v);
        } else {
            kvs__jsb_repr(&b, v);
        }
        kvs__val text = kvs__jsb_done(&b);
        if (f->precision >= 0 && (size_t)f->precision < text.u.s->n_chars) {
            return kvs__jsub(h, text.u.s, 0, kvs__jbyte(text.u.s, (size_t)f->precision));
        }
        return text;
    }
    if (strchr("fFeEgG", f->type)) {
        if (!kvs__jis_number(v)) {
            kvs__jfail(h, KVS_E_FORMAT, "%%%c of %s", f->type, kvs__jtype_name(v));
        }
        return format_float(h, f, kvs__jnum_float(v));
    }
    return format_int(h, f, v);
}

/* The member that "(name)" at *i names; moves on. NULL: none is named. */
static const kvs__val *named_value(kvs__jheap *h, const kvs__jstr *s, size_t *i,
                                   const kvs__val *arg)
{
    if (*i >= s->n || s->p[*i] != '(') {
        return NULL;
    }
    size_t end = *i;
    while (end < s->n && s->p[end] != ')') {
        end++;
    }
    const kvs__val *v = NULL;
    if (arg->type == J_DICT) {
        v = kvs__jdict_name(arg->u.d, s->p + *i + 1, end - *i - 1);
    }
    if (!v) {
        kvs__jfail(h, KVS_E_FORMAT, "%%(name)s without such a member");
    }
    *i = end + 1;
    return v;
}

kvs__val kvs__jpercent(kvs__jheap *h, const kvs__jstr *s, const kvs__val *arg)
{
    kvs__jsb b = {.h = h};
    bool is_tuple = arg->type == J_LIST && arg->u.l->kind == J_KIND_TUPLE;
    const kvs__val *at = is_tuple ? arg->u.l->at : arg;
    size_t n = is_tuple ? arg->u.l->n : 1;
    size_t used = 0;
    for (size_t i = 0; i < s->n;) {
        const char *p = memchr(s->p + i, '%', s->n - i);
        size_t at_sign = p ? (size_t)(p - s->p) : s->n;
        kvs__jsb_str(&b, s, i, at_sign);
        i = at_sign + 1;
        if (!p) {
            break;
        }
        const kvs__val *v = named_value(h, s, &i, arg);
        n = v ? 0 : n;
        spec f = read_spec(h, s, &i);
        if (f.type == '%') {
            kvs__jsb_put(&b, "%", 1);
            continue;
        }
        if (!v && used >= n) {
            kvs__jfail(h, KVS_E_FORMAT, "\"%%\": not enough values for the format");
        }
        kvs__val text = format_one(h, &f, v ? v : &at[used++]);
        pad(&b, &f, text.u.s);
    }
    if (used < n && arg->type != J_DICT && !(arg->type == J_LIST && !is_tuple)) {
        kvs__jfail(h, KVS_E_FORMAT, "\"%%\": more values than the format takes");
    }
    return kvs__jsb_done(&b);
}

/* ---- str.format */

static kvs__val field(kvs__jrun *r, const kvs__jstr *s, size_t from, size_t to, const kvs__jargs *a,
                      size_t *automatic)
{
    size_t i = from;
    if (from == to) {
        if (*automatic < a->n) {
            return a->at[(*automatic)++];
        }
        kvs__jfail(r->h, KVS_E_FORMAT, "format: not enough values");
    }
    int x = small_number(r->h, s, &i);
    if (i == to) {
        if ((size_t)x < a->n) {
            return a->at[x];
        }
        kvs__jfail(r->h, KVS_E_FORMAT, "format: not enough values");
    }
    for (size_t k = 0; k < a->n_named; k++) {
        if (a->named[k].name->n == to - from &&
            memcmp(a->named[k].name->p, s->p + from, to - from) == 0) {
            return a->named[k].value;
        }
    }
    kvs__jfail(r->h, KVS_E_UNSUPPORTED, "format: the field \"%.*s\"",
               (int)(to - from < 60 ? to - from : 60), s->p + from);
}

kvs__val kvs__jformat(kvs__jrun *r, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__jsb b = {.h = r->h};
    size_t automatic = 0;
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if (c != '{' && c != '}') {
            kvs__jsb_str(&b, s, i, i + 1);
            continue;
        }
        if (i + 1 < s->n && s->p[i + 1] == c) {
            kvs__jsb_str(&b, s, i, i + 1);
            i++;
            continue;
        }
        size_t end = i;
        while (c == '{' && end < s->n && s->p[end] != '}') {
            end++;
        }
        if (c == '}' || end == s->n) {
            kvs__jfail(r->h, KVS_E_FORMAT, "format: a single \"%c\"", c);
        }
        kvs__val v = field(r, s, i + 1, end, a, &automatic);
        kvs__jsb_value(&b, &v);
        i = end;
    }
    /* bytes were copied one by one */
    b.n_chars = 0;
    for (size_t i = 0; i < b.n; i++) {
        b.n_chars += ((unsigned char)b.p[i] & 0xc0) != 0x80;
    }
    return kvs__jsb_done(&b);
}

/* ---- functions */

static kvs__val range(kvs__jheap *h, const kvs__jargs *a)
{
    kvs__val v[3];
    int64_t x[3] = {0, 0, 1};
    (void)kvs__jbind(h, a, "start|stop|step", v);
    if (a->n == 0 || a->n_named > 0) {
        kvs__jfail(h, KVS_E_FORMAT, "range takes one to three numbers");
    }
    for (size_t i = 0; i < a->n; i++) {
        if (v[i].type != J_INT && v[i].type != J_BOOL) {
            kvs__jfail(h, KVS_E_FORMAT, "range of %s", kvs__jtype_name(&v[i]));
        }
        x[a->n == 1 ? 1 : i] = kvs__jnum_int(&v[i]);
    }
    if (x[2] == 0) {
        kvs__jfail(h, KVS_E_FORMAT, "range with step 0");
    }
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_RANGE);
    l->start = x[0];
    l->stop = x[1];
    l->step = x[2];
    int64_t i = x[0];
    while (x[2] > 0 ? i < x[1] : i > x[1]) {
        if (l->n == 100000) {
            kvs__jfail(h, KVS_E_LIMIT, "range of more than 100000 numbers");
        }
        kvs__jlist_add(h, l, kvs__jint(i));
        if (__builtin_add_overflow(i, x[2], &i)) {
            break;
        }
    }
    return kvs__jlistv(l);
}

static kvs__val make_dict(kvs__jheap *h, const kvs__jargs *a)
{
    kvs__jdict *d = kvs__jdict_new(h);
    if (a->n > 1 || (a->n == 1 && a->at[0].type != J_DICT)) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "%s from anything but one dict and named members", a->who);
    }
    for (size_t i = 0; a->n == 1 && i < a->at[0].u.d->n; i++) {
        kvs__jdict_set(h, d, a->at[0].u.d->at[i].key, a->at[0].u.d->at[i].value);
    }
    for (size_t i = 0; i < a->n_named; i++) {
        kvs__jdict_set(h, d, kvs__jstrv(a->named[i].name), a->named[i].value);
    }
    return kvs__jdictv(d);
}

/* Year, month 1-12, day 1-31 of a day since 1970, in the Gregorian calendar. */
static void civil(int64_t days, int64_t *year, int *month, int *day)
{
    int64_t z = days + 719468;
    int64_t era = (z >= 0 ? z : z - 146096) / 146097;
    int64_t doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    *day = (int)(doy - (153 * mp + 2) / 5 + 1);
    *month = (int)(mp < 10 ? mp + 3 : mp - 9);
    *year = yoe + era * 400 + (*month <= 2);
}

typedef struct moment {
    int64_t year, days, seconds;
    int month, day;
} moment;

static void put_field(kvs__jheap *h, kvs__jsb *b, const moment *m, char c, bool bare)
{
    static const char *const days[] = {"Thursday", "Friday",  "Saturday", "Sunday",
                                       "Monday",   "Tuesday", "Wednesday"};
    static const char *const months[] = {"January",   "February", "March",    "April",
                                         "May",       "June",     "July",     "August",
                                         "September", "October",  "November", "December"};
    char text[32];
    int hour = (int)(m->seconds / 3600);
    int64_t jan_year = 0;
    int x = 0;
    int jan_month = 0;
    int64_t yday = m->days;
    switch (c) {
    case 'A':
        kvs__jsb_put0(b, days[((m->days % 7) + 7) % 7]);
        return;
    case 'a':
        kvs__jsb_put(b, days[((m->days % 7) + 7) % 7], 3);
        return;
    case 'B':
        kvs__jsb_put0(b, months[m->month - 1]);
        return;
    case 'b':
    case 'h':
        kvs__jsb_put(b, months[m->month - 1], 3);
        return;
    case 'Y':
        kvs__jsb_int(b, m->year);
        return;
    case 'y':
        x = (int)(m->year % 100);
        break;
    case 'm':
        x = m->month;
        break;
    case 'd':
        x = m->day;
        break;
    case 'H':
        x = hour;
        break;
    case 'I':
        x = hour % 12 == 0 ? 12 : hour % 12;
        break;
    case 'M':
        x = (int)(m->seconds / 60 % 60);
        break;
    case 'S':
        x = (int)(m->seconds % 60);
        break;
    case 'p':
        kvs__jsb_put0(b, hour < 12 ? "AM" : "PM");
        return;
    case 'e':
        (void)snprintf(text, sizeof text, "%2d", m->day);
        kvs__jsb_put0(b, text);
        return;
    case 'j':
        while (yday > m->days - m->day - 31 * (m->month - 1) - 1) { /* back to 31 December */
            int day = 0;
            civil(yday, &jan_year, &jan_month, &day);
            if (jan_year != m->year) {
                break;
            }
            yday--;
        }
        (void)snprintf(text, sizeof text, bare ? "%d" : "%03d", (int)(m->days - yday));
        kvs__jsb_put0(b, text);
        return;
    case '%':
        kvs__jsb_put(b, "%", 1);
        return;
    default:
        kvs__jfail(h, KVS_E_UNSUPPORTED, "strftime_now: %%%c", c);
    }
    (void)snprintf(text, sizeof text, bare ? "%d" : "%02d", x);
    kvs__jsb_put0(b, text);
}

static void put_time(kvs__jheap *h, kvs__jsb *b, const moment *m, const char *fmt, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (fmt[i] != '%' || i + 1 == n) {
            kvs__jsb_put(b, fmt + i, 1);
            continue;
        }
        char c = fmt[++i];
        bool bare = c == '-' && i + 1 < n;
        c = bare ? fmt[++i] : c;
        const char *whole = c == 'D'   ? "%m/%d/%y"
                            : c == 'F' ? "%Y-%m-%d"
                            : c == 'T' ? "%H:%M:%S"
                            : c == 'R' ? "%H:%M"
                                       : NULL;
        if (whole) {
            put_time(h, b, m, whole, strlen(whole));
        } else {
            put_field(h, b, m, c, bare);
        }
    }
}

static kvs__val strftime_now(kvs__jrun *r, const kvs__jargs *a)
{
    kvs__val v[1];
    kvs__jsb b = {.h = r->h};
    if (kvs__jbind(r->h, a, "format", v) != 1 || v[0].type != J_STR) {
        kvs__jfail(r->h, KVS_E_FORMAT, "strftime_now takes a format");
    }
    if (!r->opts->has_time) {
        kvs__jfail(r->h, KVS_E_STATE, "strftime_now: no time was given");
    }
    int64_t t = r->opts->time;
    moment m = {.days = t / 86400 - (t % 86400 < 0)};
    m.seconds = t - m.days * 86400;
    civil(m.days, &m.year, &m.month, &m.day);
    put_time(r->h, &b, &m, v[0].u.s->p, v[0].u.s->n);
    b.n_chars = 0;
    for (size_t i = 0; i < b.n; i++) {
        b.n_chars += ((unsigned char)b.p[i] & 0xc0) != 0x80;
    }
    return kvs__jsb_done(&b);
}

kvs__val kvs__jglobal_call(kvs__jrun *r, const char *name, const kvs__jargs *a)
{
    if (strcmp(name, "range") == 0) {
        return range(r->h, a);
    }
    if (strcmp(name, "strftime_now") == 0) {
        return strftime_now(r, a);
    }
    if (strcmp(name, "raise_exception") == 0) {
        kvs__val v[1] = {kvs__jnone()};
        (void)kvs__jbind(r->h, a, "message", v);
        kvs__jfail(r->h, KVS_E_FORMAT, "%.160s", kvs__jstring(r->h, &v[0])->p);
    }
    kvs__val v = make_dict(r->h, a);
    if (strcmp(name, "namespace") == 0) {
        v.type = J_SPACE;
    }
    return v;
}
