/* SPDX-License-Identifier: MIT */
/* jinja_run.c: statements at work: scopes, loops, macros, captured blocks.
 *
 * A loop's body, a macro, a captured block and `with` have a scope each; what is set there is gone
 * afterwards. `if` has none. Names are looked up outwards, then among the variables, then among the
 * functions that are always there. */
#include "engine/jinja.h"

#define MAX_MACROS 60u

typedef enum flow { GO_ON, BREAK, CONTINUE } flow;

static flow run_list(kvs__jrun *r, const kvs__jnode *n);

kvs__jscope *kvs__jpush(kvs__jrun *r, kvs__jscope *up)
{
    kvs__jscope *before = r->scope;
    kvs__jscope *s = kvs__jalloc(r->h, sizeof *s);
    s->up = up;
    r->scope = s;
    return before;
}

void kvs__jset(kvs__jrun *r, const kvs__jstr *name, kvs__val v)
{
    for (kvs__jvar *x = r->scope->vars; x; x = x->next) {
        if (x->name->n == name->n && memcmp(x->name->p, name->p, name->n) == 0) {
            x->value = v;
            return;
        }
    }
    kvs__jvar *x = kvs__jalloc(r->h, sizeof *x);
    x->name = name;
    x->value = v;
    x->next = r->scope->vars;
    r->scope->vars = x;
}

static void unpack(kvs__jrun *r, const kvs__jnode *target, kvs__val v)
{
    const kvs__jlist *l = kvs__jiter(r->h, &v);
    size_t i = 0;
    for (const kvs__jnode *t = target->a; t; t = t->next, i++) {
        if (i < l->n) {
            kvs__jassign(r, t, l->at[i]);
        }
    }
    if (i != l->n) {
        kvs__jfail(r->h, KVS_E_FORMAT, "%zu values for %zu names", l->n, i);
    }
}

void kvs__jassign(kvs__jrun *r, const kvs__jnode *target, kvs__val v)
{
    kvs__jstep(r->h, 1);
    if (target->op == E_NAME) {
        kvs__jset(r, target->val.u.s, v);
    } else if (target->op == E_TUPLE) {
        kvs__jenter(r->h);
        unpack(r, target, v);
        kvs__jleave(r->h);
    } else if (target->op == E_ATTR) {
        kvs__val space = kvs__jeval(r, target->a);
        if (space.type != J_SPACE) {
            kvs__jfail(r->h, KVS_E_FORMAT, "can't set an attribute of %s, only of a namespace",
                       kvs__jtype_name(&space));
        }
        kvs__jdict_set(r->h, space.u.d, target->val, v);
    } else {
        kvs__jfail(r->h, KVS_E_FORMAT, "can't assign to this expression");
    }
}

/* Output of a body as a text; in a scope of its own. */
static kvs__val capture(kvs__jrun *r, const kvs__jnode *body, kvs__jscope *up)
{
    kvs__jsb text = {.h = r->h, .max = r->out->max};
    kvs__jsb *before = r->out;
    kvs__jscope *scope = kvs__jpush(r, up);
    r->out = &text;
    (void)run_list(r, body);
    r->out = before;
    r->scope = scope;
    return kvs__jsb_done(&text);
}

static kvs__val filtered(kvs__jrun *r, const kvs__jnode *chain, kvs__val text)
{
    kvs__val before = r->hole;
    r->hole = text;
    kvs__val v = kvs__jeval(r, chain);
    r->hole = before;
    return v;
}

/* ---- loops */

static kvs__jlist *loop_items(kvs__jrun *r, const kvs__jnode *n, kvs__val iterable)
{
    kvs__jlist *all = kvs__jiter(r->h, &iterable);
    if (!n->e) {
        return all;
    }
    kvs__jlist *some = kvs__jlist_new(r->h, J_KIND_LIST);
    kvs__jscope *before = kvs__jpush(r, r->scope);
    for (size_t i = 0; i < all->n; i++) {
        kvs__jassign(r, n->a, all->at[i]);
        kvs__val keep = kvs__jeval(r, n->e);
        if (kvs__jtrue(&keep)) {
            kvs__jlist_add(r->h, some, all->at[i]);
        }
    }
    r->scope = before;
    return some;
}

static void run_for(kvs__jrun *r, const kvs__jnode *n)
{
    static const kvs__jstr loop_name = {"loop", 4, 4, NULL, 0, false};
    kvs__jlist *items = loop_items(r, n, kvs__jeval(r, n->b));
    kvs__jloop *loop = kvs__jalloc(r->h, sizeof *loop);
    kvs__val loop_value = {J_LOOP, {.loop = loop}};
    loop->items = items;
    kvs__jscope *before = r->scope;
    for (size_t i = 0; i < items->n; i++) {
        loop->i = i;
        (void)kvs__jpush(r, before);
        kvs__jset(r, &loop_name, loop_value);
        kvs__jassign(r, n->a, items->at[i]);
        flow f = run_list(r, n->c);
        r->scope = before;
        if (f == BREAK) {
            break;
        }
    }
    if (items->n == 0 && n->d) {
        (void)kvs__jpush(r, before);
        (void)run_list(r, n->d);
        r->scope = before;
    }
}

static kvs__val neighbour(kvs__jloop *l, bool before)
{
    if (before ? l->i == 0 : l->i + 1 >= l->items->n) {
        return kvs__jundef(before ? "there is no previous item" : "there is no next item");
    }
    return l->items->at[before ? l->i - 1 : l->i + 1];
}

kvs__val kvs__jloop_attr(kvs__jrun *r, kvs__jloop *l, const kvs__jstr *name)
{
    static const char *const names[] = {"index",  "index0",   "revindex", "revindex0",
                                        "length", "first",    "last",     "depth",
                                        "depth0", "previtem", "nextitem"};
    int64_t i = (int64_t)l->i;
    int64_t n = (int64_t)l->items->n;
    const int64_t numbers[] = {i + 1, i, n - i, n - i - 1, n};
    for (size_t k = 0; k < KVS_COUNT(names); k++) {
        if (!kvs__jis(name, names[k])) {
            continue;
        }
        switch (k) {
        case 5:
            return kvs__jbool(i == 0);
        case 6:
            return kvs__jbool(i == n - 1);
        case 7:
            return kvs__jint(1);
        case 8:
            return kvs__jint(0);
        case 9:
        case 10:
            return neighbour(l, k == 9);
        default:
            return kvs__jint(numbers[k]);
        }
    }
    if (kvs__jis(name, "cycle") || kvs__jis(name, "changed")) {
        kvs__jfunc *fn = kvs__jalloc(r->h, sizeof *fn);
        kvs__val v = {J_FUNC, {.fn = fn}};
        fn->self.type = J_LOOP;
        fn->self.u.loop = l;
        fn->name = name;
        return v;
    }
    return kvs__jundef(name->p);
}

/* ---- macros */

/* The argument given by this name, or NULL; marked in *used. */
static const kvs__jarg *named_arg(const kvs__jargs *a, const kvs__jstr *name, uint64_t *used)
{
    const kvs__jarg *found = NULL;
    for (size_t k = 0; k < a->n_named && k < 64; k++) {
        const kvs__jstr *s = a->named[k].name;
        if (s->n == name->n && memcmp(s->p, name->p, s->n) == 0) {
            found = &a->named[k];
            *used |= (uint64_t)1 << k;
        }
    }
    return found;
}

/* What no parameter takes: an error, or varargs and kwargs where the macro looks at them. */
static void bind_rest(kvs__jrun *r, const kvs__jnode *m, const kvs__jargs *a, size_t n,
                      uint64_t used)
{
    if (a->n > n && !(m->flag & J_USES_VARARGS)) {
        kvs__jfail(r->h, KVS_E_FORMAT, "macro %.60s takes not more than %zu arguments",
                   m->val.u.s->p, n);
    }
    kvs__jdict *rest = kvs__jdict_new(r->h);
    for (size_t k = 0; k < a->n_named; k++) {
        if (k >= 64 || !(used >> k & 1)) {
            kvs__jdict_set(r->h, rest, kvs__jstrv(a->named[k].name), a->named[k].value);
        }
    }
    if (rest->n > 0 && !(m->flag & J_USES_KWARGS)) {
        kvs__jfail(r->h, KVS_E_FORMAT, "macro %.60s has no argument %.60s", m->val.u.s->p,
                   rest->at[0].key.u.s->p);
    }
    if (m->flag & J_USES_VARARGS) {
        kvs__jlist *more = kvs__jlist_new(r->h, J_KIND_TUPLE);
        for (size_t i = n; i < a->n; i++) {
            kvs__jlist_add(r->h, more, a->at[i]);
        }
        kvs__jset(r, kvs__jtext0(r->h, "varargs").u.s, kvs__jlistv(more));
    }
    if (m->flag & J_USES_KWARGS) {
        kvs__jset(r, kvs__jtext0(r->h, "kwargs").u.s, kvs__jdictv(rest));
    }
}

static void bind_parameters(kvs__jrun *r, const kvs__jnode *m, const kvs__jargs *a)
{
    size_t i = 0;
    uint64_t used = 0;
    for (const kvs__jnode *p = m->a; p; p = p->next, i++) {
        const kvs__jstr *name = p->val.u.s;
        const kvs__jarg *named = named_arg(a, name, &used);
        if (named && i < a->n) {
            kvs__jfail(r->h, KVS_E_FORMAT, "macro %.60s got the argument %.60s twice",
                       m->val.u.s->p, name->p);
        }
        if (i < a->n) {
            kvs__jset(r, name, a->at[i]);
        } else if (named) {
            kvs__jset(r, name, named->value);
        } else {
            kvs__jset(r, name, p->b ? kvs__jeval(r, p->b) : kvs__jundef(name->p));
        }
    }
    bind_rest(r, m, a, i, used);
}

kvs__val kvs__jmacro(kvs__jrun *r, const kvs__jfunc *fn, const kvs__jargs *a)
{
    uint32_t line = r->h->line;
    if (++r->macros > MAX_MACROS) {
        kvs__jfail(r->h, KVS_E_LIMIT, "macros that call each other more than %u deep", MAX_MACROS);
    }
    kvs__jscope *before = kvs__jpush(r, fn->scope);
    bind_parameters(r, fn->macro, a);
    kvs__val text = capture(r, fn->macro->b, r->scope);
    r->scope = before;
    r->macros--;
    r->h->line = line;
    return text;
}

/* ---- statements */

static void define_macro(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jfunc *fn = kvs__jalloc(r->h, sizeof *fn);
    kvs__val v = {J_FUNC, {.fn = fn}};
    fn->macro = n;
    fn->scope = r->scope;
    fn->name = n->val.u.s;
    kvs__jset(r, n->val.u.s, v);
}

static flow run_if(kvs__jrun *r, const kvs__jnode *n)
{
    for (; n; n = n->c) {
        if (n->op == S_SCOPE) {
            return run_list(r, n->b); /* else */
        }
        r->h->line = n->line;
        kvs__val cond = kvs__jeval(r, n->a);
        if (kvs__jtrue(&cond)) {
            return run_list(r, n->b);
        }
    }
    return GO_ON;
}

static flow run_with(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__jscope *before = r->scope;
    kvs__jscope *inner = kvs__jalloc(r->h, sizeof *inner);
    inner->up = before;
    const kvs__jnode *value = n->b;
    for (const kvs__jnode *t = n->a; t; t = t->next, value = value->next) {
        kvs__val v = kvs__jeval(r, value); /* of the scope around */
        r->scope = inner;
        kvs__jassign(r, t, v);
        r->scope = before;
    }
    r->scope = inner;
    flow f = run_list(r, n->c);
    r->scope = before;
    return f;
}

static void print(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val v = kvs__jeval(r, n->a);
    kvs__jsb_value(r->out, &v);
}

static flow run_one(kvs__jrun *r, const kvs__jnode *n)
{
    kvs__val v;
    flow f = GO_ON;
    switch (n->op) {
    case S_DATA:
        kvs__jsb_str(r->out, n->val.u.s, 0, n->val.u.s->n);
        break;
    case S_PRINT:
        print(r, n);
        break;
    case S_IF:
        return run_if(r, n);
    case S_FOR:
        run_for(r, n);
        break;
    case S_SET:
        kvs__jassign(r, n->a, kvs__jeval(r, n->b));
        break;
    case S_SETBLOCK:
        kvs__jassign(r, n->a, filtered(r, n->c, capture(r, n->b, r->scope)));
        break;
    case S_MACRO:
        define_macro(r, n);
        break;
    case S_FILTER:
        v = filtered(r, n->a, capture(r, n->b, r->scope));
        kvs__jsb_value(r->out, &v);
        break;
    case S_WITH:
        return run_with(r, n);
    case S_SCOPE: {
        kvs__jscope *before = kvs__jpush(r, r->scope);
        f = run_list(r, n->b);
        r->scope = before;
        return f;
    }
    case S_BREAK:
        return BREAK;
    case S_CONTINUE:
        return CONTINUE;
    default:
        kvs__jfail(r->h, KVS_E_INTERNAL, "statement %d", (int)n->op);
    }
    return f;
}

static flow run_list(kvs__jrun *r, const kvs__jnode *n)
{
    flow f = GO_ON;
    kvs__jenter(r->h);
    for (; n && f == GO_ON; n = n->next) {
        kvs__jstep(r->h, 1);
        r->h->line = n->line;
        f = run_one(r, n);
    }
    kvs__jleave(r->h);
    return f;
}

void kvs__jexec(kvs__jrun *r, const kvs__jnode *body)
{
    (void)run_list(r, body);
}
