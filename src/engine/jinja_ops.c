/* SPDX-License-Identifier: MIT */
/* jinja_ops.c: operators and slices with Python's meaning. Integers have 64 bits; what leaves them
 * is an error, never a wrong number. */
#include <math.h>

#include "engine/jinja.h"

static _Noreturn void no_such(kvs__jheap *h, int op, const kvs__val *a, const kvs__val *b)
{
    static const char *const names[] = {"//", "**"};
    char one[2] = {(char)op, '\0'};
    kvs__jfail(h, KVS_E_FORMAT, "%s %s %s", kvs__jtype_name(a),
               op >= J_FLOORDIV ? names[op - J_FLOORDIV] : one, kvs__jtype_name(b));
}

static _Noreturn void too_large(kvs__jheap *h)
{
    kvs__jfail(h, KVS_E_UNSUPPORTED, "an integer beyond 64 bits");
}

static kvs__val int_power(kvs__jheap *h, int64_t a, int64_t b)
{
    int64_t x = 1;
    if (b < 0) {
        if (a == 0) {
            kvs__jfail(h, KVS_E_FORMAT, "0 to a negative power");
        }
        return kvs__jfloat(pow((double)a, (double)b));
    }
    if (a == 0 || a == 1 || a == -1) {
        return kvs__jint(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
    }
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(x, a, &x)) {
            too_large(h);
        }
    }
    return kvs__jint(x);
}

static kvs__val int_divide(kvs__jheap *h, int op, int64_t a, int64_t b)
{
    if (b == 0) {
        kvs__jfail(h, KVS_E_FORMAT, "division by zero");
    }
    if (op == '/') {
        return kvs__jfloat((double)a / (double)b);
    }
    if (b == -1) {
        if (op == '%') {
            return kvs__jint(0);
        }
        if (a == INT64_MIN) {
            too_large(h);
        }
        return kvs__jint(-a);
    }
    int64_t q = a / b;
    int64_t m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) {
        q--;
        m += b;
    }
    return kvs__jint(op == '%' ? m : q);
}

static kvs__val int_op(kvs__jheap *h, int op, int64_t a, int64_t b)
{
    int64_t x = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &x);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case J_POW:
        return int_power(h, a, b);
    default:
        return int_divide(h, op, a, b);
    }
    if (over) {
        too_large(h);
    }
    return kvs__jint(x);
}

static kvs__val float_power(kvs__jheap *h, double a, double b)
{
    if (a == 0.0 && b < 0.0) {
        kvs__jfail(h, KVS_E_FORMAT, "0 to a negative power");
    }
    if (a < 0.0 && isfinite(a) && isfinite(b) && b != floor(b)) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "a complex number");
    }
    double x = pow(a, b);
    if (isinf(x) && isfinite(a) && isfinite(b)) {
        kvs__jfail(h, KVS_E_FORMAT, "a number too large");
    }
    return kvs__jfloat(x);
}

static kvs__val float_op(kvs__jheap *h, int op, double a, double b)
{
    switch (op) {
    case '+':
        return kvs__jfloat(a + b);
    case '-':
        return kvs__jfloat(a - b);
    case '*':
        return kvs__jfloat(a * b);
    case J_POW:
        return float_power(h, a, b);
    default:
        break;
    }
    if (b == 0.0) {
        kvs__jfail(h, KVS_E_FORMAT, "division by zero");
    }
    if (op == '/') {
        return kvs__jfloat(a / b);
    }
    double m = fmod(a, b);
    double q = (a - m) / b;
    if (m != 0.0 && (m < 0.0) != (b < 0.0)) {
        m += b;
        q -= 1.0;
    } else if (m == 0.0) {
        m = copysign(0.0, b);
    }
    if (op == '%') {
        return kvs__jfloat(m);
    }
    if (q == 0.0) {
        return kvs__jfloat(copysign(0.0, a / b));
    }
    double whole = floor(q);
    return kvs__jfloat(q - whole > 0.5 ? whole + 1.0 : whole);
}

static bool has_markup(const kvs__jstr *s)
{
    return memchr(s->p, '<', s->n) || memchr(s->p, '>', s->n) || memchr(s->p, '&', s->n) ||
           memchr(s->p, '"', s->n) || memchr(s->p, '\'', s->n);
}

static kvs__val add_strings(kvs__jheap *h, const kvs__jstr *a, const kvs__jstr *b)
{
    kvs__jsb sum = {.h = h};
    if (a->safe != b->safe && has_markup(a->safe ? b : a)) {
        kvs__jfail(h, KVS_E_UNSUPPORTED,
                   "\"+\" with a |safe text, which would escape the other; "
                   "use \"~\"");
    }
    kvs__jsb_str(&sum, a, 0, a->n);
    kvs__jsb_str(&sum, b, 0, b->n);
    return kvs__jsb_done(&sum);
}

static kvs__val add_lists(kvs__jheap *h, const kvs__jlist *a, const kvs__jlist *b)
{
    kvs__jlist *l = kvs__jlist_new(h, a->kind);
    kvs__jstep(h, a->n + b->n);
    for (size_t i = 0; i < a->n; i++) {
        kvs__jlist_add(h, l, a->at[i]);
    }
    for (size_t i = 0; i < b->n; i++) {
        kvs__jlist_add(h, l, b->at[i]);
    }
    return kvs__jlistv(l);
}

static kvs__val repeat(kvs__jheap *h, const kvs__val *what, int64_t times)
{
    if (what->type == J_STR) {
        kvs__jsb b = {.h = h};
        for (int64_t i = 0; i < times && what->u.s->n > 0; i++) {
            kvs__jstep(h, 1);
            kvs__jsb_str(&b, what->u.s, 0, what->u.s->n);
        }
        return kvs__jsb_done(&b);
    }
    kvs__jlist *l = kvs__jlist_new(h, what->u.l->kind);
    for (int64_t i = 0; i < times && what->u.l->n > 0; i++) {
        kvs__jstep(h, what->u.l->n);
        for (size_t k = 0; k < what->u.l->n; k++) {
            kvs__jlist_add(h, l, what->u.l->at[k]);
        }
    }
    return kvs__jlistv(l);
}

static bool is_list(const kvs__val *v)
{
    return v->type == J_LIST && v->u.l->kind <= J_KIND_TUPLE;
}

kvs__val kvs__jbinary(kvs__jheap *h, int op, kvs__val a, kvs__val b)
{
    if (kvs__jis_number(&a) && kvs__jis_number(&b)) {
        if (a.type == J_FLOAT || b.type == J_FLOAT) {
            return float_op(h, op, kvs__jnum_float(&a), kvs__jnum_float(&b));
        }
        return int_op(h, op, kvs__jnum_int(&a), kvs__jnum_int(&b));
    }
    if (op == '+' && a.type == J_STR && b.type == J_STR) {
        return add_strings(h, a.u.s, b.u.s);
    }
    if (op == '+' && is_list(&a) && is_list(&b) && a.u.l->kind == b.u.l->kind) {
        return add_lists(h, a.u.l, b.u.l);
    }
    if (op == '*' && (a.type == J_STR || is_list(&a)) && (b.type == J_INT || b.type == J_BOOL)) {
        return repeat(h, &a, kvs__jnum_int(&b));
    }
    if (op == '*' && (b.type == J_STR || is_list(&b)) && (a.type == J_INT || a.type == J_BOOL)) {
        return repeat(h, &b, kvs__jnum_int(&a));
    }
    if (op == '%' && a.type == J_STR) {
        return kvs__jpercent(h, a.u.s, &b);
    }
    no_such(h, op, &a, &b);
}

bool kvs__jrelation(kvs__jheap *h, int op, kvs__val a, kvs__val b)
{
    switch (op) {
    case J_EQ:
        return kvs__jequal(h, &a, &b);
    case J_NE:
        return !kvs__jequal(h, &a, &b);
    case J_IN:
        return kvs__jcontains(h, &a, &b);
    case J_NOT_IN:
        return !kvs__jcontains(h, &a, &b);
    case '<':
        return kvs__jcompare(h, &a, &b, "<") == -1;
    case '>':
        return kvs__jcompare(h, &a, &b, ">") == 1;
    case J_LE: {
        int c = kvs__jcompare(h, &a, &b, "<=");
        return c == -1 || c == 0;
    }
    default: {
        int c = kvs__jcompare(h, &a, &b, ">=");
        return c == 1 || c == 0;
    }
    }
}

/* ---- slices */

static int64_t bound(kvs__jheap *h, const kvs__val *v, int64_t none, int64_t n, int64_t step)
{
    if (v->type == J_NONE) {
        return none;
    }
    if (v->type != J_INT && v->type != J_BOOL) {
        kvs__jfail(h, KVS_E_FORMAT, "%s as the bound of a slice", kvs__jtype_name(v));
    }
    int64_t i = kvs__jnum_int(v);
    if (i < 0) {
        i = i < -n ? -1 : i + n;
        return i < 0 && step > 0 ? 0 : i;
    }
    return i < n ? i : step > 0 ? n : n - 1;
}

static kvs__val slice_text(kvs__jheap *h, const kvs__jstr *s, int64_t from, int64_t to,
                           int64_t step)
{
    bool ascii = s->n == s->n_chars;
    if (step == 1) {
        if (from >= to) {
            return kvs__jtext(h, "", 0);
        }
        kvs__jstep(h, s->n / 64);
        size_t a = kvs__jbyte(s, (size_t)from);
        return kvs__jsub(h, s, a, kvs__jbyte(s, (size_t)to));
    }
    size_t *offsets = NULL;
    if (!ascii) {
        offsets = kvs__jalloc_n(h, s->n_chars + 1, sizeof *offsets);
        for (size_t i = 0, c = 0; i < s->n; c++) {
            offsets[c] = i;
            (void)kvs__jnext(s->p, &i);
        }
        offsets[s->n_chars] = s->n;
    }
    kvs__jsb b = {.h = h};
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        size_t a = ascii ? (size_t)i : offsets[i];
        kvs__jsb_str(&b, s, a, ascii ? a + 1 : offsets[i + 1]);
        kvs__jstep(h, 1);
        if (step > 0 ? step >= to - i : step <= to - i) {
            break; /* also: no overflow */
        }
    }
    return kvs__jsb_done(&b);
}

kvs__val kvs__jslice(kvs__jheap *h, kvs__val v, const kvs__val part[3])
{
    bool is_seq = v.type == J_LIST && v.u.l->kind <= J_KIND_RANGE;
    if (v.type != J_STR && !is_seq) {
        kvs__jfail(h, KVS_E_UNSUPPORTED, "a slice of %s", kvs__jtype_name(&v));
    }
    int64_t n = kvs__jlen(&v);
    int64_t step = 1;
    if (part[2].type != J_NONE) {
        (void)bound(h, &part[2], 1, 0, 1); /* checks the type */
        step = kvs__jnum_int(&part[2]);
    }
    if (step == 0) {
        kvs__jfail(h, KVS_E_FORMAT, "a slice with step 0");
    }
    int64_t from = bound(h, &part[0], step > 0 ? 0 : n - 1, n, step);
    int64_t to = bound(h, &part[1], step > 0 ? n : -1, n, step);
    if (v.type == J_STR) {
        return slice_text(h, v.u.s, from, to, step);
    }
    kvs__jlist *l = kvs__jlist_new(h, v.u.l->kind == J_KIND_TUPLE ? J_KIND_TUPLE : J_KIND_LIST);
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        kvs__jstep(h, 1);
        kvs__jlist_add(h, l, v.u.l->at[i]);
        if (step > 0 ? step >= to - i : step <= to - i) {
            break;
        }
    }
    if (v.u.l->kind == J_KIND_RANGE) {
        l->kind = J_KIND_RANGE;
        l->step = v.u.l->step * step;
        l->start = v.u.l->start + from * v.u.l->step;
        l->stop = v.u.l->start + to * v.u.l->step;
    }
    return kvs__jlistv(l);
}
