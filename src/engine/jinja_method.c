/* SPDX-License-Identifier: MIT */
/* jinja_method.c: methods of strings, dicts and lists. Those that would change a value are refused,
 * as Python's sandbox refuses them. */
#include "engine/jinja.h"

static const char *const string_methods[] = {
    "startswith", "endswith",     "strip",        "lstrip",    "rstrip",    "split",      "rsplit",
    "splitlines", "replace",      "upper",        "lower",     "title",     "capitalize", "find",
    "rfind",      "index",        "count",        "join",      "format",    "isdigit",    "isalpha",
    "isalnum",    "isspace",      "isupper",      "islower",   "zfill",     "ljust",      "rjust",
    "center",     "removeprefix", "removesuffix", "partition", "rpartition"};
static const char *const dict_methods[] = {"items", "keys",   "values",     "get",   "copy",
                                           "pop",   "update", "setdefault", "clear", "popitem"};
static const char *const list_methods[] = {"index", "count",  "copy", "append",  "extend", "insert",
                                           "pop",   "remove", "sort", "reverse", "clear"};

static bool among(const char *const *names, size_t n, const kvs__jstr *name)
{
    for (size_t i = 0; i < n; i++) {
        if (kvs__jis(name, names[i])) {
            return true;
        }
    }
    return false;
}

bool kvs__jhas_method(const kvs__val *self, const kvs__jstr *name)
{
    switch (self->type) {
    case J_STR:
        return among(string_methods, KVS_COUNT(string_methods), name);
    case J_DICT:
        return among(dict_methods, KVS_COUNT(dict_methods), name);
    case J_LIST:
        if (self->u.l->kind == J_KIND_LIST) {
            return among(list_methods, KVS_COUNT(list_methods), name);
        }
        return self->u.l->kind <= J_KIND_RANGE && among(list_methods, 2, name);
    default:
        return false;
    }
}

/* ---- arguments */

static _Noreturn void wrong(kvs__jheap *h, const kvs__jargs *a, const kvs__val *v, const char *want)
{
    kvs__jfail(h, KVS_E_FORMAT, "%s: %s where %s is wanted", a->who, kvs__jtype_name(v), want);
}

static const kvs__jstr *text_arg(kvs__jheap *h, const kvs__jargs *a, const kvs__val *v)
{
    if (v->type != J_STR) {
        wrong(h, a, v, "a string");
    }
    return v->u.s;
}

static int64_t int_arg(kvs__jheap *h, const kvs__jargs *a, const kvs__val *v)
{
    if (v->type != J_INT && v->type != J_BOOL) {
        wrong(h, a, v, "an integer");
    }
    return kvs__jnum_int(v);
}

static void want(kvs__jheap *h, const kvs__jargs *a, uint32_t given, uint32_t needed)
{
    if ((given & needed) != needed) {
        kvs__jfail(h, KVS_E_FORMAT, "%s: an argument is missing", a->who);
    }
}

static void positional(kvs__jheap *h, const kvs__jargs *a)
{
    if (a->n_named > 0) {
        kvs__jfail(h, KVS_E_FORMAT, "%s takes no argument by name", a->who);
    }
}

/* Bytes [*from, *to) of a string for the bounds in v[0], v[1], where given; false: none. */
static bool part(kvs__jheap *h, const kvs__jargs *a, const kvs__jstr *s, const kvs__val *v,
                 uint32_t given, size_t *from, size_t *to)
{
    int64_t n = (int64_t)s->n_chars;
    int64_t x = given & 1 && v[0].type != J_NONE ? int_arg(h, a, &v[0]) : 0;
    int64_t y = given & 2 && v[1].type != J_NONE ? int_arg(h, a, &v[1]) : n;
    x = x < 0 ? (x < -n ? 0 : x + n) : x;
    y = y < 0 ? (y < -n ? 0 : y + n) : y > n ? n : y;
    if (x > n || x > y) {
        return false;
    }
    *from = kvs__jbyte(s, (size_t)x);
    *to = kvs__jbyte(s, (size_t)y);
    return true;
}

/* ---- strings */

static bool matches(const kvs__jstr *s, size_t from, size_t to, const kvs__jstr *what, bool end)
{
    if (what->n > to - from) {
        return false;
    }
    return memcmp(s->p + (end ? to - what->n : from), what->p, what->n) == 0;
}

static kvs__val affix(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, bool end)
{
    kvs__val v[3];
    size_t from = 0;
    size_t to = 0;
    positional(h, a);
    uint32_t given = kvs__jbind(h, a, "prefix|start|end", v);
    want(h, a, given, 1);
    bool is_tuple = v[0].type == J_LIST && v[0].u.l->kind == J_KIND_TUPLE;
    if (!is_tuple) {
        (void)text_arg(h, a, &v[0]);
    }
    if (!part(h, a, s, v + 1, given >> 1, &from, &to)) {
        return kvs__jbool(false);
    }
    if (!is_tuple) {
        return kvs__jbool(matches(s, from, to, v[0].u.s, end));
    }
    bool found = false;
    for (size_t i = 0; i < v[0].u.l->n && !found; i++) {
        found = matches(s, from, to, text_arg(h, a, &v[0].u.l->at[i]), end);
    }
    return kvs__jbool(found);
}

static kvs__val strip(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, int sides)
{
    kvs__val v[1];
    positional(h, a);
    uint32_t given = kvs__jbind(h, a, "chars", v);
    const kvs__jstr *chars = given && v[0].type != J_NONE ? text_arg(h, a, &v[0]) : NULL;
    return kvs__jstrip(h, s, chars, (sides & 1) != 0, (sides & 2) != 0);
}

static kvs__val split(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, bool right)
{
    kvs__val v[2];
    uint32_t given = kvs__jbind(h, a, "sep|maxsplit", v);
    const kvs__jstr *sep = given & 1 && v[0].type != J_NONE ? text_arg(h, a, &v[0]) : NULL;
    int64_t most = given & 2 ? int_arg(h, a, &v[1]) : -1;
    return kvs__jlistv((right ? kvs__jrsplit : kvs__jsplit)(h, s, sep, most));
}

static kvs__val partition(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, bool right)
{
    kvs__val v[1];
    want(h, a, kvs__jbind(h, a, "sep", v), 1);
    const kvs__jstr *sep = text_arg(h, a, &v[0]);
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_TUPLE);
    if (sep->n == 0) {
        kvs__jfail(h, KVS_E_FORMAT, "%s: an empty separator", a->who);
    }
    int64_t at = kvs__jfind(h, s, 0, s->n, sep, right);
    kvs__val empty = kvs__jtext(h, "", 0);
    if (at < 0) {
        kvs__jlist_add(h, l, right ? empty : kvs__jstrv(s));
        kvs__jlist_add(h, l, empty);
        kvs__jlist_add(h, l, right ? kvs__jstrv(s) : empty);
        return kvs__jlistv(l);
    }
    size_t i = (size_t)at;
    kvs__jlist_add(h, l, kvs__jsub(h, s, 0, i));
    kvs__jlist_add(h, l, kvs__jstrv(sep));
    kvs__jlist_add(h, l, kvs__jsub(h, s, i + sep->n, s->n));
    return kvs__jlistv(l);
}

static kvs__val find(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, bool last, bool must)
{
    kvs__val v[3];
    size_t from = 0;
    size_t to = 0;
    positional(h, a);
    uint32_t given = kvs__jbind(h, a, "sub|start|end", v);
    want(h, a, given, 1);
    const kvs__jstr *what = text_arg(h, a, &v[0]);
    int64_t at = -1;
    if (part(h, a, s, v + 1, given >> 1, &from, &to)) {
        at = kvs__jfind(h, s, from, to, what, last);
    }
    if (at < 0) {
        if (must) {
            kvs__jfail(h, KVS_E_FORMAT, "index: not found");
        }
        return kvs__jint(-1);
    }
    int64_t chars = 0;
    for (size_t i = 0; i < (size_t)at; chars++) {
        (void)kvs__jnext(s->p, &i);
    }
    return kvs__jint(chars);
}

static kvs__val count(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__val v[3];
    size_t from = 0;
    size_t to = 0;
    int64_t n = 0;
    positional(h, a);
    uint32_t given = kvs__jbind(h, a, "sub|start|end", v);
    want(h, a, given, 1);
    const kvs__jstr *what = text_arg(h, a, &v[0]);
    if (!part(h, a, s, v + 1, given >> 1, &from, &to)) {
        return kvs__jint(0);
    }
    while (from <= to) {
        int64_t at = kvs__jfind(h, s, from, to, what, false);
        if (at < 0) {
            break;
        }
        n++;
        from = (size_t)at + what->n;
        if (what->n == 0) {
            if (from == to) {
                break;
            }
            (void)kvs__jnext(s->p, &from);
        }
    }
    return kvs__jint(n);
}

static kvs__val join(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__val v[1];
    kvs__jsb b = {.h = h};
    want(h, a, kvs__jbind(h, a, "iterable", v), 1);
    const kvs__jlist *l = kvs__jiter(h, &v[0]);
    for (size_t i = 0; i < l->n; i++) {
        if (i > 0) {
            kvs__jsb_str(&b, s, 0, s->n);
        }
        const kvs__jstr *x = text_arg(h, a, &l->at[i]);
        kvs__jsb_str(&b, x, 0, x->n);
    }
    return kvs__jsb_done(&b);
}

/* isdigit, isalpha, isalnum, isspace: of every character, and there is one. */
static kvs__val classify(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *name)
{
    bool space = kvs__jis(name, "isspace");
    unsigned good = kvs__jis(name, "isdigit")   ? J_CLASS_DIGIT
                    : kvs__jis(name, "isalpha") ? J_CLASS_ALPHA
                                                : J_CLASS_ALPHA | J_CLASS_DIGIT;
    bool all = s->n > 0;
    for (size_t i = 0; i < s->n && all;) {
        uint32_t cp = kvs__jnext(s->p, &i);
        kvs__jstep(h, 1);
        if (!space && cp >= 0x80) {
            kvs__jfail(h, KVS_E_UNSUPPORTED, "%s of text beyond ASCII", name->p);
        }
        all = space ? kvs__jspace(cp) : (kvs__jclass(cp) & good) != 0;
    }
    return kvs__jbool(all);
}

/* isupper, islower: of every character that has case, and there is one. */
static kvs__val classify_case(kvs__jheap *h, const kvs__jstr *s, unsigned good)
{
    bool any = false;
    for (size_t i = 0; i < s->n;) {
        unsigned c = kvs__jclass(kvs__jnext(s->p, &i)) & (J_CLASS_UPPER | J_CLASS_LOWER);
        kvs__jstep(h, 1);
        if (c != 0 && c != good) {
            return kvs__jbool(false);
        }
        any = any || c == good;
    }
    return kvs__jbool(any);
}

static void fill(kvs__jsb *b, const kvs__jstr *with, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        kvs__jstep(b->h, 1);
        kvs__jsb_str(b, with, 0, with->n);
    }
}

static kvs__val justify(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, char how)
{
    kvs__val v[2];
    kvs__jsb b = {.h = h};
    kvs__jstr with = {.p = " ", .n = 1, .n_chars = 1};
    uint32_t given = kvs__jbind(h, a, "width|fillchar", v);
    want(h, a, given, 1);
    int64_t pad = int_arg(h, a, &v[0]) - (int64_t)s->n_chars;
    if (given & 2) {
        with = *text_arg(h, a, &v[1]);
    }
    if (with.n_chars != 1) {
        kvs__jfail(h, KVS_E_FORMAT, "%s: fill with exactly one character", a->who);
    }
    if (pad <= 0) {
        return kvs__jstrv(s);
    }
    int64_t width = pad + (int64_t)s->n_chars;
    int64_t left = how == 'r' ? pad : how == 'l' ? 0 : pad / 2 + (pad & width & 1);
    fill(&b, &with, left);
    kvs__jsb_str(&b, s, 0, s->n);
    fill(&b, &with, pad - left);
    return kvs__jsb_done(&b);
}

static kvs__val zfill(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__val v[1];
    kvs__jsb b = {.h = h};
    kvs__jstr zero = {.p = "0", .n = 1, .n_chars = 1};
    want(h, a, kvs__jbind(h, a, "width", v), 1);
    size_t sign = s->n > 0 && (s->p[0] == '-' || s->p[0] == '+');
    kvs__jsb_str(&b, s, 0, sign);
    fill(&b, &zero, int_arg(h, a, &v[0]) - (int64_t)s->n_chars);
    kvs__jsb_str(&b, s, sign, s->n);
    return kvs__jsb_done(&b);
}

static kvs__val replace(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__val v[3];
    positional(h, a);
    uint32_t given = kvs__jbind(h, a, "old|new|count", v);
    want(h, a, given, 3);
    return kvs__jreplace(h, s, text_arg(h, a, &v[0]), text_arg(h, a, &v[1]),
                         given & 4 ? int_arg(h, a, &v[2]) : -1);
}

static kvs__val remove_affix(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a, bool end)
{
    kvs__val v[1];
    want(h, a, kvs__jbind(h, a, "affix", v), 1);
    const kvs__jstr *x = text_arg(h, a, &v[0]);
    if (!matches(s, 0, s->n, x, end)) {
        return kvs__jstrv(s);
    }
    return end ? kvs__jsub(h, s, 0, s->n - x->n) : kvs__jsub(h, s, x->n, s->n);
}

static kvs__val lines(kvs__jheap *h, const kvs__jstr *s, const kvs__jargs *a)
{
    kvs__val v[1];
    uint32_t given = kvs__jbind(h, a, "keepends", v);
    return kvs__jlistv(kvs__jlines(h, s, given && kvs__jtrue(&v[0])));
}

static kvs__val simple(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *name,
                       const kvs__jargs *a)
{
    if (a->n + a->n_named > 0) {
        kvs__jfail(h, KVS_E_FORMAT, "%s takes no argument", a->who);
    }
    if (kvs__jis(name, "upper")) {
        return kvs__jcased(h, s, J_UPPER);
    }
    if (kvs__jis(name, "lower")) {
        return kvs__jcased(h, s, J_LOWER);
    }
    if (kvs__jis(name, "title")) {
        return kvs__jtitle_method(h, s);
    }
    if (kvs__jis(name, "capitalize")) {
        return kvs__jcapitalize(h, s);
    }
    if (kvs__jis(name, "isupper") || kvs__jis(name, "islower")) {
        return classify_case(h, s, kvs__jis(name, "isupper") ? J_CLASS_UPPER : J_CLASS_LOWER);
    }
    return classify(h, s, name);
}

typedef enum which {
    M_STARTS,
    M_ENDS,
    M_STRIP,
    M_LSTRIP,
    M_RSTRIP,
    M_SPLIT,
    M_RSPLIT,
    M_LINES,
    M_REPLACE,
    M_UPPER,
    M_LOWER,
    M_TITLE,
    M_CAPITALIZE,
    M_FIND,
    M_RFIND,
    M_INDEX,
    M_COUNT,
    M_JOIN,
    M_FORMAT,
    M_ISDIGIT,
    M_ISALPHA,
    M_ISALNUM,
    M_ISSPACE,
    M_ISUPPER,
    M_ISLOWER,
    M_ZFILL,
    M_LJUST,
    M_RJUST,
    M_CENTER,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_PARTITION,
    M_RPARTITION
} which; /* the order of string_methods */

static kvs__val string_method(kvs__jrun *r, const kvs__jstr *s, const kvs__jstr *name,
                              const kvs__jargs *a)
{
    kvs__jheap *h = r->h;
    size_t k = 0;
    while (k < KVS_COUNT(string_methods) && !kvs__jis(name, string_methods[k])) {
        k++;
    }
    switch ((which)k) {
    case M_STARTS:
    case M_ENDS:
        return affix(h, s, a, k == M_ENDS);
    case M_STRIP:
        return strip(h, s, a, 3);
    case M_LSTRIP:
        return strip(h, s, a, 1);
    case M_RSTRIP:
        return strip(h, s, a, 2);
    case M_SPLIT:
    case M_RSPLIT:
        return split(h, s, a, k == M_RSPLIT);
    case M_LINES:
        return lines(h, s, a);
    case M_REPLACE:
        return replace(h, s, a);
    case M_FIND:
    case M_RFIND:
    case M_INDEX:
        return find(h, s, a, k == M_RFIND, k == M_INDEX);
    case M_COUNT:
        return count(h, s, a);
    case M_JOIN:
        return join(h, s, a);
    case M_FORMAT:
        return kvs__jformat(r, s, a);
    case M_ZFILL:
        return zfill(h, s, a);
    case M_LJUST:
        return justify(h, s, a, 'l');
    case M_RJUST:
        return justify(h, s, a, 'r');
    case M_CENTER:
        return justify(h, s, a, 'c');
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX:
        return remove_affix(h, s, a, k == M_REMOVESUFFIX);
    case M_PARTITION:
    case M_RPARTITION:
        return partition(h, s, a, k == M_RPARTITION);
    default:
        return simple(h, s, name, a);
    }
}

/* ---- dicts and lists */

static kvs__val view(kvs__jheap *h, const kvs__jdict *d, kvs__jkind kind)
{
    kvs__jlist *l = kvs__jlist_new(h, kind);
    kvs__jstep(h, d->n);
    for (size_t i = 0; i < d->n; i++) {
        kvs__val v = kind == J_KIND_KEYS ? d->at[i].key : d->at[i].value;
        if (kind == J_KIND_ITEMS) {
            kvs__jlist *pair = kvs__jlist_new(h, J_KIND_TUPLE);
            kvs__jlist_add(h, pair, d->at[i].key);
            kvs__jlist_add(h, pair, d->at[i].value);
            v = kvs__jlistv(pair);
        }
        kvs__jlist_add(h, l, v);
    }
    return kvs__jlistv(l);
}

static kvs__val dict_method(kvs__jheap *h, kvs__jdict *d, const kvs__jstr *name,
                            const kvs__jargs *a)
{
    kvs__val v[2];
    if (kvs__jis(name, "get")) {
        positional(h, a);
        uint32_t given = kvs__jbind(h, a, "key|default", v);
        want(h, a, given, 1);
        const kvs__val *x = kvs__jdict_find(h, d, v[0]);
        return x ? *x : given & 2 ? v[1] : kvs__jnone();
    }
    (void)kvs__jbind(h, a, "", v);
    if (kvs__jis(name, "items")) {
        return view(h, d, J_KIND_ITEMS);
    }
    if (kvs__jis(name, "keys")) {
        return view(h, d, J_KIND_KEYS);
    }
    if (kvs__jis(name, "values")) {
        return view(h, d, J_KIND_VALUES);
    }
    return kvs__jdictv(d); /* copy: nothing can change it */
}

static kvs__val list_method(kvs__jheap *h, kvs__jlist *l, const kvs__jstr *name,
                            const kvs__jargs *a)
{
    kvs__val v[1];
    if (kvs__jis(name, "copy")) {
        (void)kvs__jbind(h, a, "", v);
        return kvs__jlistv(l);
    }
    want(h, a, kvs__jbind(h, a, "value", v), 1);
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (kvs__jequal(h, &l->at[i], &v[0])) {
            if (kvs__jis(name, "index")) {
                return kvs__jint((int64_t)i);
            }
            n++;
        }
    }
    if (kvs__jis(name, "index")) {
        kvs__jfail(h, KVS_E_FORMAT, "index: not in the list");
    }
    return kvs__jint(n);
}

kvs__val kvs__jmethod(kvs__jrun *r, kvs__val self, const kvs__jstr *name, const kvs__jargs *a)
{
    if (self.type == J_STR) {
        return string_method(r, self.u.s, name, a);
    }
    if (self.type == J_DICT) {
        if (among(dict_methods + 5, KVS_COUNT(dict_methods) - 5, name)) {
            kvs__jfail(r->h, KVS_E_UNSUPPORTED, "%s would change the dict", name->p);
        }
        return dict_method(r->h, self.u.d, name, a);
    }
    if (among(list_methods + 3, KVS_COUNT(list_methods) - 3, name)) {
        kvs__jfail(r->h, KVS_E_UNSUPPORTED, "%s would change the list", name->p);
    }
    return list_method(r->h, self.u.l, name, a);
}
