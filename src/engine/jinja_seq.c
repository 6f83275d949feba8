/* SPDX-License-Identifier: MIT */
/* jinja_seq.c: filters of sequences. Those that are generators in Python give one here too: true,
 * without a length, used up by the first who walks it; but worked out at once. */
#include "engine/jinja_filter.h"

static _Noreturn void wrong(kvs__jrun *r, const kvs__jargs *a, const kvs__val *v)
{
    kvs__jfail(r->h, KVS_E_FORMAT, "%s of %s", a->who, kvs__jtype_name(v));
}

static kvs__val f_length(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
    int64_t n = kvs__jlen(&v);
    if (n < 0) {
        wrong(r, a, &v);
    }
    return kvs__jint(n);
}

static kvs__val f_list(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
    const kvs__jlist *from = kvs__jiter(r->h, &v);
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_LIST);
    kvs__jstep(r->h, from->n);
    for (size_t i = 0; i < from->n; i++) {
        kvs__jlist_add(r->h, l, from->at[i]);
    }
    return kvs__jlistv(l);
}

static kvs__val f_items(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    static const kvs__jstr items = {"items", 5, 5, NULL, 0, false};
    (void)kvs__jbind(r->h, a, "", NULL);
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_ITER);
    if (v.type == J_UNDEFINED) {
        return kvs__jlistv(l);
    }
    if (v.type != J_DICT) {
        wrong(r, a, &v);
    }
    kvs__val view = kvs__jmethod(r, v, &items, a);
    view.u.l->kind = J_KIND_ITER;
    return view;
}

static kvs__val f_first(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
    if (v.type == J_LIST && v.u.l->kind == J_KIND_ITER && v.u.l->n > 0) {
        v.u.l->n--; /* takes only one */
        return *v.u.l->at++;
    }
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    return l->n > 0 ? l->at[0] : kvs__jundef("the first item of an empty sequence");
}

static kvs__val f_last(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
    if (v.type == J_LIST && v.u.l->kind == J_KIND_ITER) {
        wrong(r, a, &v);
    }
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    return l->n > 0 ? l->at[l->n - 1] : kvs__jundef("the last item of an empty sequence");
}

kvs__val kvs__jreverse(kvs__jheap *h, kvs__val v)
{
    static const kvs__val step = {J_INT, {.i = -1}};
    if (v.type == J_STR) {
        const kvs__val parts[3] = {kvs__jnone(), kvs__jnone(), step};
        return kvs__jslice(h, v, parts);
    }
    bool is_iter = v.type == J_LIST && v.u.l->kind == J_KIND_ITER;
    const kvs__jlist *from = kvs__jiter(h, &v);
    kvs__jlist *l = kvs__jlist_new(h, is_iter ? J_KIND_LIST : J_KIND_ITER);
    kvs__jstep(h, from->n);
    for (size_t i = from->n; i > 0; i--) {
        kvs__jlist_add(h, l, from->at[i - 1]);
    }
    return kvs__jlistv(l);
}

static kvs__val f_reverse(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    (void)kvs__jbind(r->h, a, "", NULL);
    return kvs__jreverse(r->h, v);
}

/* ---- attributes: "a.b.0" */

static kvs__val follow_path(kvs__jrun *r, kvs__val v, const kvs__val *path)
{
    if (path->type == J_INT) {
        return kvs__jgetitem(r, v, *path);
    }
    if (path->type != J_STR) {
        kvs__jfail(r->h, KVS_E_FORMAT, "%s as the name of an attribute", kvs__jtype_name(path));
    }
    const kvs__jstr *s = path->u.s;
    for (size_t i = 0; i <= s->n;) {
        size_t end = i;
        int64_t number = 0;
        bool digits = true;
        for (; end < s->n && s->p[end] != '.'; end++) {
            digits = digits && s->p[end] >= '0' && s->p[end] <= '9' && end - i < 9;
            number = digits ? 10 * number + (s->p[end] - '0') : 0;
        }
        digits = digits && end > i;
        v = kvs__jgetitem(r, v, digits ? kvs__jint(number) : kvs__jsub(r->h, s, i, end));
        i = end + 1;
    }
    return v;
}

static kvs__val ignore_case(kvs__jrun *r, kvs__val v)
{
    return v.type == J_STR ? kvs__jcased(r->h, v.u.s, J_LOWER) : v;
}

static kvs__val f_join(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jtext(r->h, "", 0), kvs__jnone()};
    kvs__jsb b = {.h = r->h};
    (void)kvs__jbind(r->h, a, "d|attribute", x);
    const kvs__jstr *by = kvs__jstring(r->h, &x[0]);
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    for (size_t i = 0; i < l->n; i++) {
        kvs__val item = x[1].type == J_NONE ? l->at[i] : follow_path(r, l->at[i], &x[1]);
        if (i > 0) {
            kvs__jsb_str(&b, by, 0, by->n);
        }
        kvs__jstep(r->h, 1);
        kvs__jsb_value(&b, &item);
    }
    return kvs__jsb_done(&b);
}

/* ---- map, select, reject */

static kvs__jargs rest_of(const kvs__jargs *a, size_t skip, const char *who)
{
    kvs__jargs rest = *a;
    rest.at += skip;
    rest.n -= skip;
    rest.who = who;
    return rest;
}

static kvs__val map_attribute(kvs__jrun *r, const kvs__jlist *from, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jnone(), kvs__jundef(NULL)};
    uint32_t given = kvs__jbind(r->h, a, "attribute|default", x);
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_ITER);
    for (size_t i = 0; i < from->n; i++) {
        kvs__val v = follow_path(r, from->at[i], &x[0]);
        kvs__jlist_add(r->h, l, v.type == J_UNDEFINED && given & 2 ? x[1] : v);
    }
    return kvs__jlistv(l);
}

static kvs__val f_map(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    const kvs__jlist *from = NULL;
    if (!kvs__jtrue(&v) && v.type != J_LIST && v.type != J_STR && v.type != J_DICT) {
        return kvs__jlistv(kvs__jlist_new(r->h, J_KIND_ITER)); /* none and undefined too */
    }
    from = kvs__jiter(r->h, &v);
    if (a->n == 0) {
        if (a->n_named == 0 || !kvs__jis(a->named[0].name, "attribute")) {
            kvs__jfail(r->h, KVS_E_FORMAT, "map takes the name of a filter or attribute=");
        }
        return map_attribute(r, from, a);
    }
    if (a->at[0].type != J_STR) {
        wrong(r, a, &a->at[0]);
    }
    const kvs__jstr *name = a->at[0].u.s;
    const kvs__jfilter *f = kvs__jfilter_named(name->p, name->n);
    if (!f) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "map: no filter \"%.60s\"", name->p);
    }
    kvs__jargs rest = rest_of(a, 1, name->p);
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_ITER);
    kvs__jenter(r->h);
    for (size_t i = 0; i < from->n; i++) {
        kvs__jstep(r->h, 1);
        kvs__jlist_add(r->h, l, f->fn(r, from->at[i], &rest));
    }
    kvs__jleave(r->h);
    return kvs__jlistv(l);
}

/* by_attribute: the first argument names it; then a test and its arguments, or truth. */
static kvs__val choose(kvs__jrun *r, kvs__val v, const kvs__jargs *a, bool by_attribute, bool want)
{
    const kvs__jtest *test = NULL;
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_ITER);
    size_t at = by_attribute ? 1 : 0;
    if (a->n < at) {
        kvs__jfail(r->h, KVS_E_FORMAT, "%s takes the name of an attribute", a->who);
    }
    if (!kvs__jtrue(&v) && v.type != J_LIST && v.type != J_STR && v.type != J_DICT) {
        return kvs__jlistv(l);
    }
    const kvs__jlist *from = kvs__jiter(r->h, &v);
    kvs__jargs rest = *a;
    if (a->n > at) {
        const kvs__val *name = &a->at[at];
        test = name->type == J_STR ? kvs__jtest_named(name->u.s->p, name->u.s->n) : NULL;
        if (!test) {
            kvs__jfail(r->h, KVS_E_UNSUPPORTED, "%s: no test \"%.60s\"", a->who,
                       name->type == J_STR ? name->u.s->p : "");
        }
        rest = rest_of(a, at + 1, name->u.s->p);
    }
    for (size_t i = 0; i < from->n; i++) {
        kvs__val x = by_attribute ? follow_path(r, from->at[i], &a->at[0]) : from->at[i];
        bool is = test ? test->fn(r, x, &rest) : kvs__jtrue(&x);
        kvs__jstep(r->h, 1);
        if (is == want) {
            kvs__jlist_add(r->h, l, from->at[i]);
        }
    }
    return kvs__jlistv(l);
}

static kvs__val f_select(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return choose(r, v, a, false, true);
}

static kvs__val f_reject(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return choose(r, v, a, false, false);
}

static kvs__val f_selectattr(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return choose(r, v, a, true, true);
}

static kvs__val f_rejectattr(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return choose(r, v, a, true, false);
}

/* ---- order */

typedef struct keyed {
    kvs__val key, item;
} keyed;

/* Stable, n log n comparisons. */
static void merge_sort(kvs__jheap *h, keyed *at, keyed *spare, size_t n, bool down)
{
    if (n < 2) {
        return;
    }
    size_t half = n / 2;
    merge_sort(h, at, spare, half, down);
    merge_sort(h, at + half, spare, n - half, down);
    memcpy(spare, at, n * sizeof *at);
    size_t i = 0;
    size_t k = half;
    for (size_t out = 0; out < n; out++) {
        bool right = i == half;
        if (!right && k < n) {
            int c = down ? kvs__jcompare(h, &spare[i].key, &spare[k].key, "<")
                         : kvs__jcompare(h, &spare[k].key, &spare[i].key, "<");
            right = c == -1;
        }
        at[out] = right ? spare[k++] : spare[i++];
    }
}

static kvs__val sorted(kvs__jheap *h, keyed *at, size_t n, bool down)
{
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_LIST);
    merge_sort(h, at, kvs__jalloc_n(h, n + 1, sizeof *at), n, down);
    for (size_t i = 0; i < n; i++) {
        kvs__jlist_add(h, l, at[i].item);
    }
    return kvs__jlistv(l);
}

static kvs__val key_of(kvs__jrun *r, kvs__val item, const kvs__val *attribute, bool keep_case)
{
    if (attribute->type == J_NONE) {
        return keep_case ? item : ignore_case(r, item);
    }
    if (attribute->type != J_STR) {
        kvs__val v = follow_path(r, item, attribute);
        return keep_case ? v : ignore_case(r, v);
    }
    static const kvs__jstr comma = {",", 1, 1, NULL, 0, false};
    const kvs__jlist *names = kvs__jsplit(r->h, attribute->u.s, &comma, -1);
    kvs__jlist *keys = kvs__jlist_new(r->h, J_KIND_LIST);
    for (size_t i = 0; i < names->n; i++) {
        kvs__val v = follow_path(r, item, &names->at[i]);
        kvs__jlist_add(r->h, keys, keep_case ? v : ignore_case(r, v));
    }
    return kvs__jlistv(keys);
}

static kvs__val f_sort(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[3] = {kvs__jbool(false), kvs__jbool(false), kvs__jnone()};
    (void)kvs__jbind(r->h, a, "reverse|case_sensitive|attribute", x);
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    keyed *at = kvs__jalloc_n(r->h, l->n + 1, sizeof *at);
    for (size_t i = 0; i < l->n; i++) {
        at[i].key = key_of(r, l->at[i], &x[2], kvs__jtrue(&x[1]));
        at[i].item = l->at[i];
    }
    return sorted(r->h, at, l->n, kvs__jtrue(&x[0]));
}

static kvs__val f_dictsort(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[3] = {kvs__jbool(false), kvs__jtext0(r->h, "key"), kvs__jbool(false)};
    (void)kvs__jbind(r->h, a, "case_sensitive|by|reverse", x);
    bool by_value = x[1].type == J_STR && kvs__jis(x[1].u.s, "value");
    if (v.type != J_DICT || x[1].type != J_STR || (!by_value && !kvs__jis(x[1].u.s, "key"))) {
        wrong(r, a, &v);
    }
    keyed *at = kvs__jalloc_n(r->h, v.u.d->n + 1, sizeof *at);
    for (size_t i = 0; i < v.u.d->n; i++) {
        kvs__jlist *pair = kvs__jlist_new(r->h, J_KIND_TUPLE);
        kvs__jlist_add(r->h, pair, v.u.d->at[i].key);
        kvs__jlist_add(r->h, pair, v.u.d->at[i].value);
        kvs__val key = pair->at[by_value];
        at[i].key = kvs__jtrue(&x[0]) ? key : ignore_case(r, key);
        at[i].item = kvs__jlistv(pair);
    }
    return sorted(r->h, at, v.u.d->n, kvs__jtrue(&x[2]));
}

static kvs__val extreme(kvs__jrun *r, kvs__val v, const kvs__jargs *a, bool most)
{
    kvs__val x[2] = {kvs__jbool(false), kvs__jnone()};
    (void)kvs__jbind(r->h, a, "case_sensitive|attribute", x);
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    if (l->n == 0) {
        return kvs__jundef("the extreme of an empty sequence");
    }
    size_t best = 0;
    kvs__val best_key = kvs__jnone();
    for (size_t i = 0; i < l->n; i++) {
        kvs__val key = x[1].type == J_NONE ? l->at[i] : follow_path(r, l->at[i], &x[1]);
        key = kvs__jtrue(&x[0]) ? key : ignore_case(r, key);
        if (i == 0 || kvs__jcompare(r->h, &key, &best_key, most ? ">" : "<") == (most ? 1 : -1)) {
            best = i;
            best_key = key;
        }
    }
    return l->at[best];
}

static kvs__val f_min(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return extreme(r, v, a, false);
}

static kvs__val f_max(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    return extreme(r, v, a, true);
}

static kvs__val f_sum(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jnone(), kvs__jint(0)};
    (void)kvs__jbind(r->h, a, "attribute|start", x);
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    kvs__val sum = x[1];
    for (size_t i = 0; i < l->n; i++) {
        kvs__val item = x[0].type == J_NONE ? l->at[i] : follow_path(r, l->at[i], &x[0]);
        kvs__jstep(r->h, 1);
        sum = kvs__jbinary(r->h, '+', sum, item);
    }
    return sum;
}

static kvs__val f_unique(kvs__jrun *r, kvs__val v, const kvs__jargs *a)
{
    kvs__val x[2] = {kvs__jbool(false), kvs__jnone()};
    (void)kvs__jbind(r->h, a, "case_sensitive|attribute", x);
    const kvs__jlist *from = kvs__jiter(r->h, &v);
    kvs__jdict *seen = kvs__jdict_new(r->h);
    kvs__jlist *l = kvs__jlist_new(r->h, J_KIND_ITER);
    for (size_t i = 0; i < from->n; i++) {
        kvs__val key = x[1].type == J_NONE ? from->at[i] : follow_path(r, from->at[i], &x[1]);
        key = kvs__jtrue(&x[0]) ? key : ignore_case(r, key);
        if (!kvs__jdict_find(r->h, seen, key)) {
            kvs__jdict_set(r->h, seen, key, kvs__jnone());
            kvs__jlist_add(r->h, l, from->at[i]);
        }
    }
    return kvs__jlistv(l);
}

static const kvs__jfilter filters[] = {{"length", f_length},
                                       {"count", f_length},
                                       {"list", f_list},
                                       {"items", f_items},
                                       {"first", f_first},
                                       {"last", f_last},
                                       {"reverse", f_reverse},
                                       {"join", f_join},
                                       {"map", f_map},
                                       {"select", f_select},
                                       {"reject", f_reject},
                                       {"selectattr", f_selectattr},
                                       {"rejectattr", f_rejectattr},
                                       {"sort", f_sort},
                                       {"dictsort", f_dictsort},
                                       {"min", f_min},
                                       {"max", f_max},
                                       {"sum", f_sum},
                                       {"unique", f_unique}};

const kvs__jfilter *kvs__jseq_filter(const char *name, size_t n)
{
    for (size_t i = 0; i < KVS_COUNT(filters); i++) {
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0) {
            return &filters[i];
        }
    }
    return NULL;
}
