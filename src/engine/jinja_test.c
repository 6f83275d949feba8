/* SPDX-License-Identifier: MIT */
/* jinja_test.c: what "is" can ask. */
#include <math.h>

#include "engine/jinja.h"

static kvs__val only(kvs__jrun *r, const kvs__jargs *a)
{
    if (a->n != 1 || a->n_named > 0) {
        kvs__jfail(r->h, KVS_E_FORMAT, "the test %s takes one argument", a->who);
    }
    return a->at[0];
}

#define PLAIN(name, expr)                                                                          \
    static bool name(kvs__jrun *r, kvs__val v, const kvs__jargs *a)                                \
    {                                                                                              \
        if (a->n + a->n_named > 0) {                                                               \
            kvs__jfail(r->h, KVS_E_FORMAT, "the test %s takes no argument", a->who);               \
        }                                                                                          \
        return expr;                                                                               \
    }

static bool is_sequence_value(const kvs__val *v)
{
    return v->type == J_STR || v->type == J_DICT ||
           (v->type == J_LIST && v->u.l->kind <= J_KIND_RANGE);
}

static bool parity(kvs__jrun *r, kvs__val v, int64_t want)
{
    kvs__val m = kvs__jbinary(r->h, '%', v, kvs__jint(2));
    kvs__val w = kvs__jint(want);
    return kvs__jequal(r->h, &m, &w);
}

static bool has_case(kvs__jrun *r, kvs__val v, kvs__jcase want)
{
    const kvs__jstr *s = kvs__jstring(r->h, &v);
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        unsigned c = kvs__jclass(kvs__jnext(s->p, &i));
        kvs__jstep(r->h, 1);
        if (c & (want == J_UPPER ? J_CLASS_LOWER : J_CLASS_UPPER)) {
            return false;
        }
        any = any || (c & (J_CLASS_LOWER | J_CLASS_UPPER)) != 0;
    }
    return any;
}

PLAIN(is_defined, v.type != J_UNDEFINED)
PLAIN(is_undefined, v.type == J_UNDEFINED)
PLAIN(is_none, v.type == J_NONE)
PLAIN(is_string, v.type == J_STR)
PLAIN(is_mapping, v.type == J_DICT)
PLAIN(is_iterable, kvs__jiterable(&v))
PLAIN(is_sequence, is_sequence_value(&v) || v.type == J_UNDEFINED)
PLAIN(is_number, kvs__jis_number(&v))
PLAIN(is_integer, v.type == J_INT)
PLAIN(is_float, v.type == J_FLOAT)
PLAIN(is_boolean, v.type == J_BOOL)
PLAIN(is_true, v.type == J_BOOL && v.u.b)
PLAIN(is_false, v.type == J_BOOL && !v.u.b)
PLAIN(is_callable, v.type == J_FUNC)
PLAIN(is_even, parity(r, v, 0))
PLAIN(is_odd, parity(r, v, 1))
PLAIN(is_upper, has_case(r, v, J_UPPER))
PLAIN(is_lower, has_case(r, v, J_LOWER))

#define RELATION(name, op)                                                                         \
    static bool name(kvs__jrun *r, kvs__val v, const kvs__jargs *a)                                \
    {                                                                                              \
        return kvs__jrelation(r->h, op, v, only(r, a));                                            \
    }

RELATION(is_eq, J_EQ)
RELATION(is_ne, J_NE)
RELATION(is_lt, '<')
RELATION(is_le, J_LE)
RELATION(is_gt, '>')
RELATION(is_ge, J_GE)
RELATION(is_in, J_IN)

static bool is_divisible(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val m = kvs__jbinary(r->h, '%', v, only(r, a));
    return kvs__jis_number(&m) && kvs__jnum_float(&m) == 0.0;
}

static bool is_same(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val w = only(r, a);
    if (v.type != w.type) {
        return false;
    }
    if (v.type == J_NONE || v.type == J_BOOL) {
        return kvs__jequal(r->h, &v, &w);
    }
    kvs__jfail(r->h, KVS_E_UNSUPPORTED, "the test sameas of anything but none, true, false");
}

static const kvs__jtest tests[] = {{"defined", is_defined},
                                   {"undefined", is_undefined},
                                   {"none", is_none},
                                   {"string", is_string},
                                   {"mapping", is_mapping},
                                   {"iterable", is_iterable},
                                   {"sequence", is_sequence},
                                   {"number", is_number},
                                   {"integer", is_integer},
                                   {"float", is_float},
                                   {"boolean", is_boolean},
                                   {"true", is_true},
                                   {"false", is_false},
                                   {"callable", is_callable},
                                   {"even", is_even},
                                   {"odd", is_odd},
                                   {"upper", is_upper},
                                   {"lower", is_lower},
                                   {"eq", is_eq},
                                   {"equalto", is_eq},
                                   {"==", is_eq},
                                   {"ne", is_ne},
                                   {"!=", is_ne},
                                   {"lt", is_lt},
                                   {"lessthan", is_lt},
                                   {"<", is_lt},
                                   {"le", is_le},
                                   {"<=", is_le},
                                   {"gt", is_gt},
                                   {"greaterthan", is_gt},
                                   {">", is_gt},
                                   {"ge", is_ge},
                                   {">=", is_ge},
                                   {"in", is_in},
                                   {"divisibleby", is_divisible},
                                   {"sameas", is_same}};

const kvs__jtest *kvs__jtest_named(const char *name, size_t n)
{
    for (size_t i = 0; i < KVS_COUNT(tests); i++) {
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0) {
            return &tests[i];
        }
    }
    return NULL;
}
