/* SPDX-License-Identifier: MIT */
/* jinja_parse.c: statements. What chat templates don't use (blocks, imports, call) is refused. */
#include "engine/jinja.h"

static kvs__jnode *body(kvs__jparser *p);

static void want_end(kvs__jparser *p)
{
    if (p->tok[p->at].type != T_BLOCK_END) {
        kvs__junexpected(p, "\"%}\"");
    }
    p->at++;
}

/* At "{% NAME": is it one of these? */
static bool next_is(const kvs__jparser *p, const char *name)
{
    const kvs__jtok *t = &p->tok[p->at];
    return t->type == T_BLOCK_BEGIN && t[1].type == T_NAME && kvs__jis(t[1].val.u.s, name);
}

/* "{% NAME" is taken, what follows is not. */
static void want_tag(kvs__jparser *p, const char *name, uint32_t begun)
{
    if (!next_is(p, name)) {
        p->h->line = begun;
        kvs__jfail(p->h, KVS_E_FORMAT, "the block that begins here has no {%% %s %%}", name);
    }
    p->at += 2;
}

static void want_last_tag(kvs__jparser *p, const char *name, uint32_t begun)
{
    want_tag(p, name, begun);
    want_end(p);
}

static kvs__jnode *parse_if(kvs__jparser *p)
{
    kvs__jnode *first = kvs__jnode_new(p, S_IF);
    kvs__jnode *n = first;
    for (;;) {
        n->a = kvs__jtuple(p, false);
        want_end(p);
        n->b = body(p);
        if (!next_is(p, "elif")) {
            break;
        }
        p->at += 2;
        n->c = kvs__jnode_new(p, S_IF);
        n = n->c;
    }
    if (next_is(p, "else")) {
        p->at += 2;
        want_end(p);
        n->c = kvs__jnode_new(p, S_SCOPE);
        n->c->flag = 1; /* no scope of its own */
        n->c->b = body(p);
    }
    want_last_tag(p, "endif", first->line);
    return first;
}

static kvs__jnode *parse_for(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_FOR);
    n->a = kvs__jtarget(p, false);
    if (!kvs__jskip_name(p, "in")) {
        kvs__junexpected(p, "\"in\"");
    }
    n->b = kvs__jtuple(p, false);
    if (kvs__jskip_name(p, "if")) {
        n->e = kvs__jexpr(p);
    }
    if (kvs__jis_name(p, "recursive")) {
        kvs__jfail(p->h, KVS_E_UNSUPPORTED, "recursive loops");
    }
    want_end(p);
    p->loops++;
    n->c = body(p);
    p->loops--;
    if (next_is(p, "else")) {
        p->at += 2;
        want_end(p);
        n->d = body(p);
    }
    want_last_tag(p, "endfor", n->line);
    return n;
}

static kvs__jnode *parse_set(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_SET);
    n->a = kvs__jtarget(p, true);
    if (kvs__jskip_op(p, '=')) {
        n->b = kvs__jtuple(p, true);
        want_end(p);
        return n;
    }
    n->op = S_SETBLOCK;
    kvs__jnode *hole = kvs__jnode_new(p, E_HOLE);
    n->c = kvs__jfilters(p, hole, false);
    want_end(p);
    n->b = body(p);
    want_last_tag(p, "endset", n->line);
    return n;
}

static kvs__jnode *parse_parameters(kvs__jparser *p)
{
    kvs__jnode *first = NULL;
    kvs__jnode **tail = &first;
    kvs__jwant_op(p, '(');
    while (!kvs__jis_op(p, ')')) {
        if (first) {
            kvs__jwant_op(p, ',');
        }
        if (p->tok[p->at].type != T_NAME) {
            kvs__junexpected(p, "the name of a parameter");
        }
        kvs__jnode *n = kvs__jnode_new(p, E_NAME);
        n->val = p->tok[p->at++].val;
        if (kvs__jskip_op(p, '=')) {
            n->b = kvs__jexpr(p);
        } else if (first && *tail == NULL) {
            for (const kvs__jnode *before = first; before; before = before->next) {
                if (before->b) {
                    kvs__jfail(p->h, KVS_E_FORMAT,
                               "a parameter without a default follows one "
                               "with a default");
                }
            }
        }
        *tail = n;
        tail = &n->next;
    }
    kvs__jwant_op(p, ')');
    return first;
}

static kvs__jnode *parse_macro(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_MACRO);
    if (p->tok[p->at].type != T_NAME) {
        kvs__junexpected(p, "the name of the macro");
    }
    n->val = p->tok[p->at++].val;
    n->a = parse_parameters(p);
    want_end(p);
    uint32_t loops = p->loops;
    int uses = p->macro_uses;
    p->loops = 0;
    p->macro_uses = 0;
    n->b = body(p);
    n->flag = p->macro_uses;
    p->loops = loops;
    p->macro_uses = uses;
    want_last_tag(p, "endmacro", n->line);
    return n;
}

static kvs__jnode *parse_filter(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_FILTER);
    n->a = kvs__jfilters(p, kvs__jnode_new(p, E_HOLE), true);
    want_end(p);
    n->b = body(p);
    want_last_tag(p, "endfilter", n->line);
    return n;
}

static kvs__jnode *parse_with(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_WITH);
    kvs__jnode **targets = &n->a;
    kvs__jnode **values = &n->b;
    while (p->tok[p->at].type != T_BLOCK_END) {
        if (n->a) {
            kvs__jwant_op(p, ',');
        }
        if (p->tok[p->at].type != T_NAME) {
            kvs__junexpected(p, "a name");
        }
        *targets = kvs__jnode_new(p, E_NAME);
        (*targets)->val = p->tok[p->at++].val;
        targets = &(*targets)->next;
        kvs__jwant_op(p, '=');
        *values = kvs__jexpr(p);
        values = &(*values)->next;
    }
    want_end(p);
    n->c = body(p);
    want_last_tag(p, "endwith", n->line);
    return n;
}

static kvs__jnode *parse_generation(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, S_SCOPE);
    want_end(p);
    n->b = body(p);
    want_last_tag(p, "endgeneration", n->line);
    return n;
}

static kvs__jnode *parse_jump(kvs__jparser *p, bool is_break)
{
    kvs__jnode *n = kvs__jnode_new(p, is_break ? S_BREAK : S_CONTINUE);
    if (p->loops == 0) {
        kvs__jfail(p->h, KVS_E_FORMAT, "%s outside of a loop", is_break ? "break" : "continue");
    }
    want_end(p);
    return n;
}

static kvs__jnode *statement(kvs__jparser *p)
{
    static const struct {
        const char *name;
        kvs__jnode *(*fn)(kvs__jparser *p);
    } known[] = {{"if", parse_if},        {"for", parse_for},   {"set", parse_set},
                 {"macro", parse_macro},  {"with", parse_with}, {"generation", parse_generation},
                 {"filter", parse_filter}};
    p->h->line = p->tok[p->at].line;
    const kvs__jtok *t = &p->tok[++p->at];
    if (t->type != T_NAME) {
        kvs__junexpected(p, "the name of a statement");
    }
    p->at++;
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (kvs__jis(t->val.u.s, known[i].name)) {
            return known[i].fn(p);
        }
    }
    if (kvs__jis(t->val.u.s, "break") || kvs__jis(t->val.u.s, "continue")) {
        return parse_jump(p, kvs__jis(t->val.u.s, "break"));
    }
    kvs__jfail(p->h, KVS_E_UNSUPPORTED, "the statement {%% %.60s %%}", t->val.u.s->p);
}

/* Up to a tag that ends or goes on with the block around. */
static bool at_end(const kvs__jparser *p)
{
    static const char *const ends[] = {"elif",     "else",      "endif",   "endfor",       "endset",
                                       "endmacro", "endfilter", "endwith", "endgeneration"};
    for (size_t i = 0; i < KVS_COUNT(ends); i++) {
        if (next_is(p, ends[i])) {
            return true;
        }
    }
    return p->tok[p->at].type == T_EOF;
}

static kvs__jnode *body(kvs__jparser *p)
{
    kvs__jnode *first = NULL;
    kvs__jnode **tail = &first;
    kvs__jenter(p->h);
    while (!at_end(p)) {
        kvs__jnode *n = NULL;
        p->h->line = p->tok[p->at].line;
        if (p->tok[p->at].type == T_DATA) {
            n = kvs__jnode_new(p, S_DATA);
            n->val = p->tok[p->at++].val;
        } else if (p->tok[p->at].type == T_VAR_BEGIN) {
            p->at++;
            n = kvs__jnode_new(p, S_PRINT);
            n->a = kvs__jtuple(p, true);
            if (p->tok[p->at].type != T_VAR_END) {
                kvs__junexpected(p, "\"}}\"");
            }
            p->at++;
        } else {
            n = statement(p);
        }
        *tail = n;
        tail = &n->next;
    }
    kvs__jleave(p->h);
    return first;
}

kvs__jnode *kvs__jparse(kvs__jheap *h, const char *text, size_t n)
{
    kvs__jparser p = {.h = h};
    p.tok = kvs__jlex(h, text, n);
    kvs__jnode *first = body(&p);
    if (p.tok[p.at].type != T_EOF) {
        p.h->line = p.tok[p.at].line;
        kvs__jfail(h, KVS_E_FORMAT, "{%% %.60s %%} without its beginning",
                   p.tok[p.at + 1].val.u.s->p);
    }
    return first;
}
