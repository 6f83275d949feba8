/* SPDX-License-Identifier: MIT */
/* jinja_eval.c: expressions at work: names, attributes, items, calls. */
#include "engine/jinja.h"

/* ---- names */

static kvs__val global(kvs__jrun *r, const kvs__jstr *name)
{
    static const char *const known[] = {"range", "namespace", "dict", "raise_exception",
                                        "strftime_now"};
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (kvs__jis(name, known[i])) {
            kvs__jfunc *fn = kvs__jalloc(r->h, sizeof *fn);
            kvs__val v = {J_FUNC, {.fn = fn}};
            fn->name = name;
            return v;
        }
    }
    return kvs__jundef(name->p);
}

static kvs__val lookup(kvs__jrun *r, const kvs__jstr *name)
{
    for (const kvs__jscope *s = r->scope; s; s = s->up) {
        for (const kvs__jvar *v = s->vars; v; v = v->next) {
            if (v->name->n == name->n && memcmp(v->name->p, name->p, name->n) == 0) {
                return v->value;
            }
        }
    }
    const kvs__val *v = NULL;
    if (r->vars) {
        v = kvs__jdict_name(r->vars->u.d, name->p, name->n);
    }
    return v ? *v : global(r, name);
}

/* ---- attributes and items */

static _Noreturn void undefined(kvs__jrun *r, const kvs__val *v)
{
    kvs__jfail(r->h, KVS_E_FORMAT, "%.100s is undefined",
               v->u.missing ? v->u.missing : "a value that is used");
}

static kvs__val method(kvs__jrun *r, kvs__val self, const kvs__jstr *name)
{
    kvs__jfunc *fn = kvs__jalloc(r->h, sizeof *fn);
    kvs__val v = {J_FUNC, {.fn = fn}};
    fn->self = self;
    fn->name = name;
    return v;
}

/* v[key] without the attributes; false: there is none. */
static bool item(kvs__jrun *r, const kvs__val *v, const kvs__val *key, kvs__val *out)
{
    if (v->type == J_DICT) {
        const kvs__val *x = kvs__jdict_find(NULL, v->u.d, *key);
        if (x) {
            *out = *x;
        }
        return x != NULL;
    }
    if (key->type != J_INT && key->type != J_BOOL) {
        return false;
    }
    int64_t i = kvs__jnum_int(key);
    int64_t n = kvs__jlen(v);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n) {
        return false;
    }
    if (v->type == J_LIST && v->u.l->kind <= J_KIND_RANGE) {
        *out = v->u.l->at[i];
        return true;
    }
    if (v->type == J_STR) {
        size_t from = kvs__jbyte(v->u.s, (size_t)i);
        size_t to = from;
        (void)kvs__jnext(v->u.s->p, &to);
        kvs__jstep(r->h, from / 64);
        *out = kvs__jsub(r->h, v->u.s, from, to);
        return true;
    }
    return false;
}

static bool attribute(kvs__jrun *r, kvs__val v, const kvs__jstr *name, kvs__val *out)
{
    if (v.type == J_SPACE) {
        const kvs__val *x = kvs__jdict_name(v.u.d, name->p, name->n);
        if (x) {
            *out = *x;
        }
        return x != NULL;
    }
    if (v.type == J_LOOP) {
        *out = kvs__jloop_attr(r, v.u.loop, name);
        return true;
    }
    if (kvs__jhas_method(&v, name)) {
        *out = method(r, v, name);
        return true;
    }
    return false;
}

kvs__val kvs__jgetattr(kvs__jrun *r, kvs__val v, kvs__val name)
{
    kvs__val out;
    if (v.type == J_UNDEFINED) {
        undefined(r, &v);
    }
    if (name.u.s->n >= 2 && memcmp(name.u.s->p, "__", 2) == 0 &&
        !(v.type == J_DICT && item(r, &v, &name, &out))) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "the attribute %.60s", name.u.s->p);
    }
    if (attribute(r, v, name.u.s, &out) || item(r, &v, &name, &out)) {
        return out;
    }
    return kvs__jundef(name.u.s->p);
}

kvs__val kvs__jgetitem(kvs__jrun *r, kvs__val v, kvs__val key)
{
    kvs__val out;
    if (v.type == J_UNDEFINED) {
        undefined(r, &v);
    }
    if (item(r, &v, &key, &out) || (key.type == J_STR && attribute(r, v, key.u.s, &out))) {
        return out;
    }
    return kvs__jundef(key.type == J_STR ? key.u.s->p : "an item");
}

/* ---- calls */

static kvs__jargs arguments(kvs__jrun *r, const kvs__jnode *first, const char *who)
{
    kvs__jargs a = {.who = who};
    size_t n = 0;
    for (const kvs__jnode *x = first; x; x = x->next) {
        n++;
    }
    if (n == 0) {
        return a;
    }
    a.at = kvs__jalloc_n(r->h, n, sizeof *a.at);
    a.named = kvs__jalloc_n(r->h, n, sizeof *a.named);
    for (const kvs__jnode *x = first; x; x = x->next) {
        if (x->op == E_ARG) {
            a.named[a.n_named].name = x->val.u.s;
            a.named[a.n_named++].value = kvs__jeval(r, x->a);
        } else {
            a.at[a.n++] = kvs__jeval(r, x);
        }
    }
    return a;
}

uint32_t kvs__jbind(kvs__jheap *h, const kvs__jargs *a, const char *names, kvs__val *out)
{
    uint32_t given = 0;
    size_t i = 0;
    uint64_t used = 0;
    for (const char *p = names; *p; i++) {
        size_t len = strcspn(p, "|");
        if (i < a->n) {
            out[i] = a->at[i];
            given |= 1u << i;
        }
        for (size_t k = 0; k < a->n_named; k++) {
            if (a->named[k].name->n != len || memcmp(a->named[k].name->p, p, len) != 0) {
                continue;
            }
            if (given >> i & 1 || k >= 64) {
                kvs__jfail(h, KVS_E_FORMAT, "%s: argument %.60s twice", a->who,
                           a->named[k].name->p);
            }
            out[i] = a->named[k].value;
            given |= 1u << i;
            used |= (uint64_t)1 << k;
        }
        p += len;
        p += *p == '|';
    }
    if (a->n > i) {
        kvs__jfail(h, KVS_E_FORMAT, "%s: %zu arguments, at most %zu", a->who, a->n, i);
    }
    for (size_t k = 0; k < a->n_named; k++) {
        if (k >= 64 || !(used >> k & 1)) {
            kvs__jfail(h, KVS_E_FORMAT, "%s: no argument %.60s", a->who, a->named[k].name->p);
        }
    }
    return given;
}

static kvs__val loop_cycle(kvs__jrun *r, const kvs__jloop *l, const kvs__jargs *a)
{
    if (a->n > 0) {
        return a->at[l->i % a->n];
    }
    kvs__jfail(r->h, KVS_E_FORMAT, "loop.cycle: no items");
}

static kvs__val loop_changed(kvs__jrun *r, kvs__jloop *l, const kvs__jargs *a)
{
    kvs__jlist *now = kvs__jlist_new(r->h, J_KIND_TUPLE);
    for (size_t i = 0; i < a->n; i++) {
        kvs__jlist_add(r->h, now, a->at[i]);
    }
    kvs__val v = kvs__jlistv(now);
    bool same = l->has_changed && kvs__jequal(r->h, &l->changed, &v);
    l->changed = v;
    l->has_changed = true;
    return kvs__jbool(!same);
}

kvs__val kvs__jcall(kvs__jrun *r, kvs__val fn, const kvs__jargs *a)
{
    if (fn.type == J_UNDEFINED) {
        undefined(r, &fn);
    }
    if (fn.type != J_FUNC) {
        kvs__jfail(r->h, KVS_E_FORMAT, "%s can't be called", kvs__jtype_name(&fn));
    }
    kvs__jargs named = *a;
    named.who = fn.u.fn->name->p;
    if (fn.u.fn->macro) {
        return kvs__jmacro(r, fn.u.fn, a);
    }
    if (fn.u.fn->self.type == J_LOOP) {
        kvs__jloop *loop = fn.u.fn->self.u.loop;
        return kvs__jis(fn.u.fn->name, "cycle") ? loop_cycle(r, loop, &named)
                                                : loop_changed(r, loop, &named);
    }
    if (fn.u.fn->self.type == J_UNDEFINED) {
        return kvs__jglobal_call(r, fn.u.fn->name->p, &named);
    }
    return kvs__jmethod(r, fn.u.fn->self, fn.u.fn->name, &named);
}

/* ---- expressions */

static kvs__val compare(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val left = kvs__jeval(r, n->a);
    for (const kvs__jnode *o = n->b; o; o = o->next) {
        kvs__val right = kvs__jeval(r, o->a);
        if (!kvs__jrelation(r->h, o->flag, left, right)) {
            return kvs__jbool(false);
        }
        left = right;
    }
    return kvs__jbool(true);
}

static kvs__val concat(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jsb b = {.h = r->h};
    for (const kvs__jnode *x = n->a; x; x = x->next) {
        kvs__val v = kvs__jeval(r, x);
        kvs__jsb_value(&b, &v);
    }
    return kvs__jsb_done(&b);
}

static kvs__val sequence(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jlist *l = kvs__jlist_new(r->h, n->op == E_LIST ? J_KIND_LIST : J_KIND_TUPLE);
    for (const kvs__jnode *x = n->a; x; x = x->next) {
        kvs__jlist_add(r->h, l, kvs__jeval(r, x));
    }
    return kvs__jlistv(l);
}

static kvs__val dict(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jdict *d = kvs__jdict_new(r->h);
    for (const kvs__jnode *x = n->a; x; x = x->next) {
        kvs__val key = kvs__jeval(r, x->a);
        kvs__jdict_set(r->h, d, key, kvs__jeval(r, x->b));
    }
    return kvs__jdictv(d);
}

static kvs__val slice(kvs__jrun *r, const kvs__jnode *n)
{
    const kvs__jnode *nodes[3] = {n->b, n->c, n->d};
    kvs__val of = kvs__jeval(r, n->a);
    kvs__val part[3];
    for (int i = 0; i < 3; i++) {
        part[i] = nodes[i] ? kvs__jeval(r, nodes[i]) : kvs__jnone();
    }
    if (of.type == J_UNDEFINED) {
        undefined(r, &of);
    }
    return kvs__jslice(r->h, of, part);
}

static kvs__val sign(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val v = kvs__jeval(r, n->a);
    if (!kvs__jis_number(&v)) {
        if (v.type == J_UNDEFINED) {
            undefined(r, &v);
        }
        kvs__jfail(r->h, KVS_E_FORMAT, "the sign of %s", kvs__jtype_name(&v));
    }
    if (v.type == J_FLOAT) {
        return kvs__jfloat(n->op == E_NEG ? -v.u.f : v.u.f);
    }
    return n->op == E_NEG ? kvs__jbinary(r->h, '-', kvs__jint(0), v) : kvs__jint(kvs__jnum_int(&v));
}

static kvs__val binary(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val a = kvs__jeval(r, n->a);
    kvs__val b = kvs__jeval(r, n->b);
    if (a.type == J_UNDEFINED || b.type == J_UNDEFINED) {
        bool text = n->flag == '%' && a.type == J_STR;
        if (!text) {
            undefined(r, a.type == J_UNDEFINED ? &a : &b);
        }
    }
    return kvs__jbinary(r->h, n->flag, a, b);
}

static kvs__val apply(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val in = kvs__jeval(r, n->a);
    kvs__jargs a = arguments(r, n->b, n->val.u.s->p);
    r->h->line = n->line;
    return n->op == E_FILTER ? n->filter->fn(r, in, &a) : kvs__jbool(n->test->fn(r, in, &a));
}

static kvs__val call(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val fn = kvs__jeval(r, n->a);
    kvs__jargs a = arguments(r, n->b, "call");
    r->h->line = n->line;
    return kvs__jcall(r, fn, &a);
}

static kvs__val choose(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val v = kvs__jeval(r, n->a);
    bool is = kvs__jtrue(&v);
    switch (n->op) {
    case E_AND:
        return is ? kvs__jeval(r, n->b) : v;
    case E_OR:
        return is ? v : kvs__jeval(r, n->b);
    case E_NOT:
        return kvs__jbool(!is);
    default:
        if (is) {
            return kvs__jeval(r, n->b);
        }
        return n->c ? kvs__jeval(r, n->c) : kvs__jundef("an \"if\" without \"else\"");
    }
}

static kvs__val eval(kvs__jrun *r, const kvs__jnode *n)
{
    switch (n->op) {
    case E_CONST:
        return n->val;
    case E_NAME:
        return lookup(r, n->val.u.s);
    case E_LIST:
    case E_TUPLE:
        return sequence(r, n);
    case E_DICT:
        return dict(r, n);
    case E_COND:
    case E_AND:
    case E_OR:
    case E_NOT:
        return choose(r, n);
    case E_COMPARE:
        return compare(r, n);
    case E_CONCAT:
        return concat(r, n);
    case E_BINARY:
        return binary(r, n);
    case E_NEG:
    case E_POS:
        return sign(r, n);
    case E_ATTR:
        return kvs__jgetattr(r, kvs__jeval(r, n->a), n->val);
    case E_ITEM: {
        kvs__val of = kvs__jeval(r, n->a);
        return kvs__jgetitem(r, of, kvs__jeval(r, n->b));
    }
    case E_SLICE:
        return slice(r, n);
    case E_CALL:
        return call(r, n);
    case E_FILTER:
    case E_TEST:
        return apply(r, n);
    case E_HOLE:
        return r->hole;
    default:
        kvs__jfail(r->h, KVS_E_INTERNAL, "expression %d", (int)n->op);
    }
}

kvs__val kvs__jeval(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jenter(r->h);
    kvs__jstep(r->h, 1);
    kvs__val v = eval(r, n);
    kvs__jleave(r->h);
    return v;
}
