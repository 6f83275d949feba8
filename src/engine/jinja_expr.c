/* SPDX-License-Identifier: MIT */
/* jinja_expr.c: expressions, by recursive descent with jinja2's precedence (which is not quite
 * Python's: "**" groups to the left, "-x|f" filters the negation). */
#include "engine/jinja.h"

kvs__jnode *kvs__jnode_new(kvs__jparser *p, kvs__jop op)
{
    kvs__jnode *n = kvs__jalloc(p->h, sizeof *n);
    n->op = op;
    n->line = p->tok[p->at].line;
    return n;
}

static const kvs__jtok *now(kvs__jparser *p)
{
    p->h->line = p->tok[p->at].line;
    return &p->tok[p->at];
}

bool kvs__jis_op(const kvs__jparser *p, int op)
{
    return p->tok[p->at].type == T_OP && p->tok[p->at].op == op;
}

bool kvs__jis_name(const kvs__jparser *p, const char *name)
{
    return p->tok[p->at].type == T_NAME && kvs__jis(p->tok[p->at].val.u.s, name);
}

bool kvs__jskip_op(kvs__jparser *p, int op)
{
    bool is = kvs__jis_op(p, op);
    p->at += is;
    return is;
}

bool kvs__jskip_name(kvs__jparser *p, const char *name)
{
    bool is = kvs__jis_name(p, name);
    p->at += is;
    return is;
}

void kvs__junexpected(kvs__jparser *p, const char *want)
{
    static const char *const names[] = {"the end of the template",
                                        "text",
                                        "\"{{\"",
                                        "\"}}\"",
                                        "\"{%\"",
                                        "\"%}\"",
                                        "",
                                        "a string",
                                        "a number",
                                        ""};
    const kvs__jtok *t = now(p);
    char text[64];
    text[0] = '\0';
    if (t->type == T_NAME) {
        (void)snprintf(text, sizeof text, "\"%.40s\"", t->val.u.s->p);
    } else if (t->type == T_OP) {
        static const char *const long_ops[] = {"//", "**", "==", "!=", "<=", ">="};
        if (t->op < 256) {
            (void)snprintf(text, sizeof text, "\"%c\"", t->op);
        } else {
            (void)snprintf(text, sizeof text, "\"%s\"", long_ops[t->op - J_FLOORDIV]);
        }
    }
    kvs__jfail(p->h, KVS_E_FORMAT, "%s%s, %s expected", names[t->type], text, want);
}

void kvs__jwant_op(kvs__jparser *p, int op)
{
    char want[8];
    if (!kvs__jskip_op(p, op)) {
        (void)snprintf(want, sizeof want, "\"%c\"", op);
        kvs__junexpected(p, want);
    }
}

static kvs__jnode *unary(kvs__jparser *p, bool with_filter);

static kvs__jnode *two(kvs__jparser *p, kvs__jop op, kvs__jnode *a, kvs__jnode *b)
{
    kvs__jnode *n = kvs__jnode_new(p, op);
    n->a = a;
    n->b = b;
    return n;
}

static void append(kvs__jnode ***tail, kvs__jnode *n)
{
    if (KVS_NEVER(!n)) {
        return;
    }
    **tail = n;
    *tail = &n->next;
}

/* ---- primaries */

static kvs__jnode *constant(kvs__jparser *p, kvs__val v)
{
    kvs__jnode *n = kvs__jnode_new(p, E_CONST);
    n->val = v;
    return n;
}

static kvs__jnode *name(kvs__jparser *p)
{
    const kvs__jstr *s = now(p)->val.u.s;
    kvs__jnode *n = NULL;
    if (kvs__jis(s, "true") || kvs__jis(s, "True")) {
        n = constant(p, kvs__jbool(true));
    } else if (kvs__jis(s, "false") || kvs__jis(s, "False")) {
        n = constant(p, kvs__jbool(false));
    } else if (kvs__jis(s, "none") || kvs__jis(s, "None")) {
        n = constant(p, kvs__jnone());
    } else {
        n = kvs__jnode_new(p, E_NAME);
        n->val = p->tok[p->at].val;
        p->macro_uses |= kvs__jis(s, "varargs") ? J_USES_VARARGS : 0;
        p->macro_uses |= kvs__jis(s, "kwargs") ? J_USES_KWARGS : 0;
        if (kvs__jis(s, "self") || kvs__jis(s, "caller") || kvs__jis(s, "cycler") ||
            kvs__jis(s, "joiner") || kvs__jis(s, "lipsum")) {
            kvs__jfail(p->h, KVS_E_UNSUPPORTED, "\"%s\" is not supported", s->p);
        }
    }
    p->at++;
    return n;
}

static kvs__jnode *strings(kvs__jparser *p)
{
    kvs__jnode *n = constant(p, now(p)->val);
    kvs__jsb b = {.h = p->h};
    size_t count = 0;
    for (; p->tok[p->at].type == T_STR; p->at++, count++) {
        kvs__jsb_str(&b, p->tok[p->at].val.u.s, 0, p->tok[p->at].val.u.s->n);
    }
    if (count > 1) {
        n->val = kvs__jsb_done(&b);
    }
    return n;
}

static kvs__jnode *list(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, E_LIST);
    kvs__jnode **tail = &n->a;
    kvs__jwant_op(p, '[');
    while (!kvs__jis_op(p, ']')) {
        if (n->a) {
            kvs__jwant_op(p, ',');
        }
        if (kvs__jis_op(p, ']')) {
            break;
        }
        append(&tail, kvs__jexpr(p));
    }
    kvs__jwant_op(p, ']');
    return n;
}

static kvs__jnode *dict(kvs__jparser *p)
{
    kvs__jnode *n = kvs__jnode_new(p, E_DICT);
    kvs__jnode **tail = &n->a;
    kvs__jwant_op(p, '{');
    while (!kvs__jis_op(p, '}')) {
        if (n->a) {
            kvs__jwant_op(p, ',');
        }
        if (kvs__jis_op(p, '}')) {
            break;
        }
        kvs__jnode *key = kvs__jexpr(p);
        kvs__jwant_op(p, ':');
        append(&tail, two(p, E_ARG, key, kvs__jexpr(p)));
    }
    kvs__jwant_op(p, '}');
    return n;
}

static bool ends_tuple(const kvs__jparser *p)
{
    const kvs__jtok *t = &p->tok[p->at];
    return t->type == T_VAR_END || t->type == T_BLOCK_END || kvs__jis_op(p, ')');
}

/* A tuple without parentheses, or one expression where there is no comma. */
static kvs__jnode *tuple(kvs__jparser *p, bool with_cond, bool explicit, bool simple)
{
    kvs__jnode *n = kvs__jnode_new(p, E_TUPLE);
    kvs__jnode **tail = &n->a;
    bool is_tuple = false;
    size_t count = 0;
    for (;;) {
        if (count > 0) {
            kvs__jwant_op(p, ',');
        }
        if (ends_tuple(p) || kvs__jis_name(p, "in")) {
            break;
        }
        append(&tail, simple ? unary(p, false) : with_cond ? kvs__jexpr(p) : kvs__jexpr_or(p));
        count++;
        if (!kvs__jis_op(p, ',')) {
            break;
        }
        is_tuple = true;
    }
    if (!is_tuple && count > 0) {
        return n->a;
    }
    if (!is_tuple && !explicit) {
        kvs__junexpected(p, "an expression");
    }
    return n;
}

kvs__jnode *kvs__jtuple(kvs__jparser *p, bool with_cond)
{
    return tuple(p, with_cond, false, false);
}

static kvs__jnode *primary(kvs__jparser *p)
{
    const kvs__jtok *t = now(p);
    kvs__jnode *n = NULL;
    switch (t->type) {
    case T_NAME:
        return name(p);
    case T_STR:
        return strings(p);
    case T_NUMBER:
        n = constant(p, t->val);
        p->at++;
        return n;
    default:
        break;
    }
    if (kvs__jskip_op(p, '(')) {
        n = tuple(p, true, true, false);
        kvs__jwant_op(p, ')');
        return n;
    }
    if (kvs__jis_op(p, '[')) {
        return list(p);
    }
    if (kvs__jis_op(p, '{')) {
        return dict(p);
    }
    kvs__junexpected(p, "an expression");
}

/* ---- what follows a primary */

static void arguments(kvs__jparser *p, kvs__jnode **first)
{
    kvs__jnode **tail = first;
    bool named = false;
    kvs__jwant_op(p, '(');
    while (!kvs__jis_op(p, ')')) {
        if (*first) {
            kvs__jwant_op(p, ',');
        }
        if (kvs__jis_op(p, ')')) {
            break;
        }
        if (kvs__jis_op(p, '*') || kvs__jis_op(p, J_POW)) {
            kvs__jfail(p->h, KVS_E_UNSUPPORTED, "* and ** in the arguments of a call");
        }
        const kvs__jtok *t = now(p);
        if (t->type == T_NAME && p->tok[p->at + 1].type == T_OP && p->tok[p->at + 1].op == '=') {
            kvs__jnode *n = kvs__jnode_new(p, E_ARG);
            n->val = t->val;
            p->at += 2;
            n->a = kvs__jexpr(p);
            append(&tail, n);
            named = true;
            continue;
        }
        if (named) {
            kvs__jfail(p->h, KVS_E_FORMAT, "an argument without a name follows one with a name");
        }
        append(&tail, kvs__jexpr(p));
    }
    kvs__jwant_op(p, ')');
}

static kvs__jnode *call(kvs__jparser *p, kvs__jnode *callee)
{
    kvs__jnode *n = kvs__jnode_new(p, E_CALL);
    n->a = callee;
    arguments(p, &n->b);
    return n;
}

static kvs__jnode *subscript(kvs__jparser *p, kvs__jnode *of)
{
    kvs__jnode *n = kvs__jnode_new(p, E_ITEM);
    kvs__jnode *part[3] = {NULL, NULL, NULL};
    n->a = of;
    kvs__jwant_op(p, '[');
    int k = 0;
    while (!kvs__jis_op(p, ']')) {
        if (kvs__jis_op(p, ':')) {
            if (++k > 2) {
                kvs__junexpected(p, "\"]\"");
            }
            p->at++;
        } else if (kvs__jis_op(p, ',')) {
            kvs__jfail(p->h, KVS_E_UNSUPPORTED, "a subscript of several parts");
        } else if (part[k]) {
            kvs__junexpected(p, "\"]\"");
        } else {
            part[k] = kvs__jexpr(p);
        }
    }
    kvs__jwant_op(p, ']');
    if (k > 0) {
        n->op = E_SLICE;
        n->b = part[0];
        n->c = part[1];
        n->d = part[2];
        return n;
    }
    if (!part[0]) {
        kvs__jfail(p->h, KVS_E_FORMAT, "an empty subscript");
    }
    n->b = part[0];
    return n;
}

static kvs__jnode *attribute(kvs__jparser *p, kvs__jnode *of)
{
    kvs__jwant_op(p, '.');
    const kvs__jtok *t = now(p);
    kvs__jnode *n = kvs__jnode_new(p, E_ATTR);
    n->a = of;
    if (t->type == T_NUMBER && t->val.type == J_INT) {
        n->op = E_ITEM;
        n->b = constant(p, t->val);
    } else if (t->type == T_NAME) {
        n->val = t->val;
    } else {
        kvs__junexpected(p, "a name");
    }
    p->at++;
    return n;
}

static kvs__jnode *postfix(kvs__jparser *p, kvs__jnode *n)
{
    for (;;) {
        if (kvs__jis_op(p, '.')) {
            n = attribute(p, n);
        } else if (kvs__jis_op(p, '[')) {
            n = subscript(p, n);
        } else if (kvs__jis_op(p, '(')) {
            n = call(p, n);
        } else {
            return n;
        }
    }
}

static kvs__jnode *filter(kvs__jparser *p, kvs__jnode *input)
{
    const kvs__jtok *t = now(p);
    if (t->type != T_NAME) {
        kvs__junexpected(p, "the name of a filter");
    }
    kvs__jnode *n = kvs__jnode_new(p, E_FILTER);
    n->a = input;
    n->val = t->val;
    n->filter = kvs__jfilter_named(t->val.u.s->p, t->val.u.s->n);
    if (!n->filter) {
        kvs__jfail(p->h, KVS_E_UNSUPPORTED, "no filter \"%.60s\"", t->val.u.s->p);
    }
    p->at++;
    if (kvs__jis_op(p, '(')) {
        arguments(p, &n->b);
    }
    return n;
}

kvs__jnode *kvs__jfilters(kvs__jparser *p, kvs__jnode *input, bool first_is_named)
{
    kvs__jnode *n = first_is_named ? filter(p, input) : input;
    while (kvs__jskip_op(p, '|')) {
        n = filter(p, n);
    }
    return n;
}

static bool begins_argument(const kvs__jparser *p)
{
    const kvs__jtok *t = &p->tok[p->at];
    if (t->type == T_NAME) {
        return !kvs__jis_name(p, "else") && !kvs__jis_name(p, "or") && !kvs__jis_name(p, "and");
    }
    return t->type == T_STR || t->type == T_NUMBER || kvs__jis_op(p, '[') || kvs__jis_op(p, '{');
}

static kvs__jnode *test(kvs__jparser *p, kvs__jnode *input)
{
    bool negated = kvs__jskip_name(p, "not");
    const kvs__jtok *t = now(p);
    if (t->type != T_NAME) {
        kvs__junexpected(p, "the name of a test");
    }
    kvs__jnode *n = kvs__jnode_new(p, E_TEST);
    n->a = input;
    n->val = t->val;
    n->test = kvs__jtest_named(t->val.u.s->p, t->val.u.s->n);
    if (!n->test) {
        kvs__jfail(p->h, KVS_E_UNSUPPORTED, "no test \"%.60s\"", t->val.u.s->p);
    }
    p->at++;
    if (kvs__jis_op(p, '(')) {
        arguments(p, &n->b);
    } else if (begins_argument(p)) {
        if (kvs__jis_name(p, "is")) {
            kvs__jfail(p->h, KVS_E_FORMAT, "\"is\" after a test");
        }
        n->b = postfix(p, primary(p));
    }
    return negated ? two(p, E_NOT, n, NULL) : n;
}

static kvs__jnode *filters_and_tests(kvs__jparser *p, kvs__jnode *n)
{
    for (;;) {
        if (kvs__jis_op(p, '|')) {
            n = kvs__jfilters(p, n, false);
        } else if (kvs__jskip_name(p, "is")) {
            n = test(p, n);
        } else if (kvs__jis_op(p, '(')) {
            n = call(p, n);
        } else {
            return n;
        }
    }
}

/* ---- operators */

static kvs__jnode *unary(kvs__jparser *p, bool with_filter)
{
    kvs__jnode *n = NULL;
    kvs__jenter(p->h);
    if (kvs__jskip_op(p, '-')) {
        n = two(p, E_NEG, unary(p, false), NULL);
    } else if (kvs__jskip_op(p, '+')) {
        n = two(p, E_POS, unary(p, false), NULL);
    } else {
        n = primary(p);
    }
    n = postfix(p, n);
    if (with_filter) {
        n = filters_and_tests(p, n);
    }
    kvs__jleave(p->h);
    return n;
}

static kvs__jnode *power(kvs__jparser *p)
{
    kvs__jnode *n = unary(p, true);
    while (kvs__jskip_op(p, J_POW)) {
        n = two(p, E_BINARY, n, unary(p, true));
        n->flag = J_POW;
    }
    return n;
}

static kvs__jnode *product(kvs__jparser *p)
{
    kvs__jnode *n = power(p);
    while (kvs__jis_op(p, '*') || kvs__jis_op(p, '/') || kvs__jis_op(p, '%') ||
           kvs__jis_op(p, J_FLOORDIV)) {
        int op = p->tok[p->at++].op;
        n = two(p, E_BINARY, n, power(p));
        n->flag = op;
    }
    return n;
}

static kvs__jnode *concat(kvs__jparser *p)
{
    kvs__jnode *first = product(p);
    if (!kvs__jis_op(p, '~')) {
        return first;
    }
    kvs__jnode *n = kvs__jnode_new(p, E_CONCAT);
    kvs__jnode **tail = &n->a;
    append(&tail, first);
    while (kvs__jskip_op(p, '~')) {
        append(&tail, product(p));
    }
    return n;
}

static kvs__jnode *sum(kvs__jparser *p)
{
    kvs__jnode *n = concat(p);
    while (kvs__jis_op(p, '+') || kvs__jis_op(p, '-')) {
        int op = p->tok[p->at++].op;
        n = two(p, E_BINARY, n, concat(p));
        n->flag = op;
    }
    return n;
}

/* The relation at the cursor, which is then behind it; 0: none. */
static int relation(kvs__jparser *p)
{
    static const int ops[] = {J_EQ, J_NE, J_LE, J_GE, '<', '>'};
    for (size_t i = 0; i < KVS_COUNT(ops); i++) {
        if (kvs__jskip_op(p, ops[i])) {
            return ops[i];
        }
    }
    if (kvs__jskip_name(p, "in")) {
        return J_IN;
    }
    const kvs__jtok *t = &p->tok[p->at];
    if (kvs__jis_name(p, "not") && t[1].type == T_NAME && kvs__jis(t[1].val.u.s, "in")) {
        p->at += 2;
        return J_NOT_IN;
    }
    return 0;
}

static kvs__jnode *compare(kvs__jparser *p)
{
    kvs__jnode *first = sum(p);
    kvs__jnode *operands = NULL;
    kvs__jnode **tail = &operands;
    for (int op = relation(p); op != 0; op = relation(p)) {
        kvs__jnode *operand = two(p, E_OPERAND, sum(p), NULL);
        operand->flag = op;
        append(&tail, operand);
    }
    return operands ? two(p, E_COMPARE, first, operands) : first;
}

static kvs__jnode *negation(kvs__jparser *p)
{
    kvs__jnode *n = NULL;
    kvs__jenter(p->h);
    if (kvs__jskip_name(p, "not")) {
        n = two(p, E_NOT, negation(p), NULL);
    } else {
        n = compare(p);
    }
    kvs__jleave(p->h);
    return n;
}

static kvs__jnode *conjunction(kvs__jparser *p)
{
    kvs__jnode *n = negation(p);
    while (kvs__jskip_name(p, "and")) {
        n = two(p, E_AND, n, negation(p));
    }
    return n;
}

kvs__jnode *kvs__jexpr_or(kvs__jparser *p)
{
    kvs__jnode *n = conjunction(p);
    while (kvs__jskip_name(p, "or")) {
        n = two(p, E_OR, n, conjunction(p));
    }
    return n;
}

kvs__jnode *kvs__jexpr(kvs__jparser *p)
{
    kvs__jenter(p->h);
    kvs__jnode *n = kvs__jexpr_or(p);
    while (kvs__jskip_name(p, "if")) {
        kvs__jnode *cond = kvs__jnode_new(p, E_COND);
        cond->b = n;
        cond->a = kvs__jexpr_or(p);
        if (kvs__jskip_name(p, "else")) {
            cond->c = kvs__jexpr(p);
        }
        n = cond;
    }
    kvs__jleave(p->h);
    return n;
}

/* ---- targets of assignments */

kvs__jnode *kvs__jtarget(kvs__jparser *p, bool attributes)
{
    const kvs__jtok *t = now(p);
    kvs__jnode *n = NULL;
    if (attributes && t->type == T_NAME && t[1].type == T_OP && t[1].op == '.') {
        n = kvs__jnode_new(p, E_ATTR);
        n->a = name(p);
        p->at++;
        if (now(p)->type != T_NAME) {
            kvs__junexpected(p, "a name");
        }
        n->val = p->tok[p->at++].val;
        return n;
    }
    n = tuple(p, false, false, true);
    kvs__jnode *one = n->op == E_TUPLE ? n->a : n;
    for (; one; one = n->op == E_TUPLE ? one->next : NULL) {
        if (one->op == E_TUPLE && n->op == E_TUPLE) {
            continue; /* checked when it is assigned to */
        }
        if (one->op != E_NAME) {
            kvs__jfail(p->h, KVS_E_FORMAT, "can't assign to this expression");
        }
    }
    return n;
}
