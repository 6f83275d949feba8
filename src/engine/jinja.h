/* SPDX-License-Identifier: MIT */
/* jinja.h: what the parts of the template interpreter share: heap, values, tree, calls.
 *
 * I1  All memory of a compilation, rendering or value tree lies in one kvs__jheap and goes with it;
 *     nothing in it is freed alone. The heap has a limit.
 * I2  A failure leaves through kvs__jfail, which jumps to the entry point: code between holds
 *     nothing but heap memory, so nothing leaks.
 * I3  Values that were handed in are never changed: lists and dicts are written by those who made
 *     them and only while they make them (namespaces excepted).
 * I4  A string knows which of its bytes came from input, through every operation; where an
 *     operation can't tell it says all of them. */
#ifndef KVS_ENGINE_JINJA_H
#define KVS_ENGINE_JINJA_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "kvstate/template.h"

/* ---- heap */

typedef struct kvs__jchunk kvs__jchunk;

typedef struct kvs__jheap {
    kvs_ctx *ctx;
    kvs__jchunk *chunks;
    size_t left; /* in the newest chunk */
    char *next;
    size_t used;
    size_t max_bytes;
    uint64_t steps;
    uint64_t max_steps;
    uint32_t depth;
    uint32_t line; /* of the template, 0: none */
    kvs_err *err;
    jmp_buf *escape;
    kvs_status status; /* of the failure */
} kvs__jheap;

/* Cleared, aligned to 16; never NULL (I2). */
#if defined(__GNUC__)
__attribute__((returns_nonnull))
#endif
void *
kvs__jalloc(kvs__jheap *h, size_t bytes);
#if defined(__GNUC__)
__attribute__((returns_nonnull))
#endif
void *
kvs__jalloc_n(kvs__jheap *h, size_t n, size_t each);
void kvs__jheap_free(kvs__jheap *h);
/* Where a text that was cut off ends without half a character. */
size_t kvs__jutf8_cut(const char *text);
_Noreturn void kvs__jfail(kvs__jheap *h, kvs_status st, const char *fmt, ...) KVS_PRINTF(3, 4);
void kvs__jstep(kvs__jheap *h, size_t n); /* counts work; fails above the limit */
void kvs__jenter(kvs__jheap *h);          /* counts nesting; fails above the limit */
static inline void kvs__jleave(kvs__jheap *h)
{
    h->depth--;
}

/* ---- values */

typedef struct kvs__jspan {
    size_t from, to;
} kvs__jspan;

typedef struct kvs__jstr {
    const char *p; /* UTF-8, terminated */
    size_t n;
    size_t n_chars;
    const kvs__jspan *spans; /* from input; in order, apart */
    size_t n_spans;
    bool safe; /* went through |safe: markup to Python */
} kvs__jstr;

typedef enum kvs__jtype {
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_FLOAT,
    J_STR,
    J_LIST, /* every sequence; kvs__jlist.kind */
    J_DICT,
    J_SPACE, /* namespace */
    J_FUNC,
    J_LOOP
} kvs__jtype;

typedef enum kvs__jkind {
    J_KIND_LIST,
    J_KIND_TUPLE,
    J_KIND_RANGE,
    J_KIND_ITER,  /* a generator: used up by the first who walks it, true, no length */
    J_KIND_ITEMS, /* views of a dict: length, no index */
    J_KIND_KEYS,
    J_KIND_VALUES
} kvs__jkind;

typedef struct kvs__jlist kvs__jlist;
typedef struct kvs__jdict kvs__jdict;
typedef struct kvs__jfunc kvs__jfunc;
typedef struct kvs__jloop kvs__jloop;

struct kvs_value {
    kvs__jtype type;
    union {
        bool b;
        int64_t i;
        double f;
        const kvs__jstr *s;
        kvs__jlist *l;
        kvs__jdict *d; /* of a namespace too */
        const kvs__jfunc *fn;
        kvs__jloop *loop;
        const char *missing; /* what is undefined, for messages; may be NULL */
    } u;
};
typedef struct kvs_value kvs__val;

struct kvs__jlist {
    kvs__val *at;
    size_t n, cap;
    kvs__jkind kind;
    int64_t start, stop, step; /* range */
};

typedef struct kvs__jpair {
    kvs__val key, value;
    uint64_t hash;
} kvs__jpair;

struct kvs__jdict {
    kvs__jpair *at; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* open addressing, entry + 1; made above 8 members */
    size_t n_index;
};

static inline kvs__val kvs__jundef(const char *what)
{
    kvs__val v = {J_UNDEFINED, {.missing = what}};
    return v;
}
static inline kvs__val kvs__jnone(void)
{
    kvs__val v = {J_NONE, {.i = 0}};
    return v;
}
static inline kvs__val kvs__jbool(bool b)
{
    kvs__val v = {J_BOOL, {.b = b}};
    return v;
}
static inline kvs__val kvs__jint(int64_t i)
{
    kvs__val v = {J_INT, {.i = i}};
    return v;
}
static inline kvs__val kvs__jfloat(double f)
{
    kvs__val v = {J_FLOAT, {.f = f}};
    return v;
}
static inline kvs__val kvs__jstrv(const kvs__jstr *s)
{
    kvs__val v = {J_STR, {.s = s}};
    return v;
}
static inline kvs__val kvs__jlistv(kvs__jlist *l)
{
    kvs__val v = {J_LIST, {.l = l}};
    return v;
}
static inline kvs__val kvs__jdictv(kvs__jdict *d)
{
    kvs__val v = {J_DICT, {.d = d}};
    return v;
}

kvs__val kvs__jtext(kvs__jheap *h, const char *p, size_t n); /* copies */
kvs__val kvs__jtext0(kvs__jheap *h, const char *p);
kvs__jlist *kvs__jlist_new(kvs__jheap *h, kvs__jkind kind);
void kvs__jlist_add(kvs__jheap *h, kvs__jlist *l, kvs__val v);
kvs__jdict *kvs__jdict_new(kvs__jheap *h);
void kvs__jdict_set(kvs__jheap *h, kvs__jdict *d, kvs__val key, kvs__val v);
/* NULL where there is none. A key that can't be one fails (h NULL: is not found). */
const kvs__val *kvs__jdict_find(kvs__jheap *h, const kvs__jdict *d, kvs__val key);
const kvs__val *kvs__jdict_name(const kvs__jdict *d, const char *name, size_t n);

bool kvs__jtrue(const kvs__val *v);
bool kvs__jis_number(const kvs__val *v);
int64_t kvs__jnum_int(const kvs__val *v); /* of an int or bool */
double kvs__jnum_float(const kvs__val *v);
bool kvs__jequal(kvs__jheap *h, const kvs__val *a, const kvs__val *b);
int kvs__jcompare(kvs__jheap *h, const kvs__val *a, const kvs__val *b, const char *op);
bool kvs__jcontains(kvs__jheap *h, const kvs__val *item, const kvs__val *in);
const char *kvs__jtype_name(const kvs__val *v);
/* Python's len(), or -1 where there is none. */
int64_t kvs__jlen(const kvs__val *v);
/* Everything that iter() gives, as a list to be read; uses up a generator. Fails for what is not
 * iterable. */
kvs__jlist *kvs__jiter(kvs__jheap *h, const kvs__val *v);
bool kvs__jiterable(const kvs__val *v);

/* ---- text */

typedef struct kvs__jsb {
    kvs__jheap *h;
    char *p;
    size_t n, cap;
    size_t n_chars;
    size_t max; /* 0: none */
    kvs__jspan *spans;
    size_t n_spans, cap_spans;
} kvs__jsb;

void kvs__jsb_put(kvs__jsb *b, const char *p, size_t n);
void kvs__jsb_put0(kvs__jsb *b, const char *p);
void kvs__jsb_str(kvs__jsb *b, const kvs__jstr *s, size_t from, size_t to); /* bytes */
void kvs__jsb_input(kvs__jsb *b, size_t from); /* all since `from` came from input */
void kvs__jsb_cp(kvs__jsb *b, uint32_t cp);
kvs__val kvs__jsb_done(kvs__jsb *b);
kvs__val kvs__jsub(kvs__jheap *h, const kvs__jstr *s, size_t from, size_t to); /* bytes */
bool kvs__jsub_input(const kvs__jstr *s);

/* str() and repr() */
void kvs__jsb_value(kvs__jsb *b, const kvs__val *v);
void kvs__jsb_repr(kvs__jsb *b, const kvs__val *v);
void kvs__jsb_float(kvs__jsb *b, double f);
void kvs__jsb_int(kvs__jsb *b, int64_t i);
const kvs__jstr *kvs__jstring(kvs__jheap *h, const kvs__val *v); /* str() */

/* JSON */
typedef struct kvs__jdump {
    int64_t indent; /* -1: none; as spaces, unless indent_text */
    const kvs__jstr *indent_text;
    const kvs__jstr *item_sep, *key_sep;
    bool ascii, sort;
} kvs__jdump;
void kvs__jsb_json(kvs__jsb *b, const kvs__val *v, const kvs__jdump *o);
kvs__val kvs__jparse_json(kvs__jheap *h, const char *p, size_t n, uint32_t flags);
/* Flag of kvs__jparse_json beside the public ones: all strings came from input. */
#define KVS__JSON_INPUT (1u << 31)
/* All of p as Python's float() reads it, but for white space, underscores and digits of other
 * scripts; false: it is none. */
bool kvs__jfloat_read(const char *p, size_t n, double *out);

/* Characters */
uint32_t kvs__jnext(const char *p, size_t *i); /* of well-formed text; moves on */
size_t kvs__jprev(const char *p, size_t i);
size_t kvs__jbyte(const kvs__jstr *s, size_t i_char); /* offset of a character */
bool kvs__jspace(uint32_t cp);
bool kvs__jprintable(uint32_t cp);
typedef enum kvs__jcase { J_UPPER, J_LOWER, J_TITLE } kvs__jcase;
/* Up to 3 code points; their number. */
unsigned kvs__jmap_case(uint32_t cp, kvs__jcase to, uint32_t out[3]);
enum {
    J_CLASS_UPPER = 1,
    J_CLASS_LOWER = 2,
    J_CLASS_TITLE = 4,
    J_CLASS_ALPHA = 8,
    J_CLASS_DIGIT = 16
};
unsigned kvs__jclass(uint32_t cp);

/* Text operations (jinja_text.c) that filters and methods share. */
kvs__val kvs__jstrip(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *chars, bool left,
                     bool right);
kvs__val kvs__jreplace(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *old, const kvs__jstr *by,
                       int64_t count);
kvs__jlist *kvs__jsplit(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *sep, int64_t most);
kvs__jlist *kvs__jrsplit(kvs__jheap *h, const kvs__jstr *s, const kvs__jstr *sep, int64_t most);
kvs__jlist *kvs__jlines(kvs__jheap *h, const kvs__jstr *s, bool keep);
kvs__val kvs__jcased(kvs__jheap *h, const kvs__jstr *s, kvs__jcase to);
kvs__val kvs__jcapitalize(kvs__jheap *h, const kvs__jstr *s);
kvs__val kvs__jtitle_method(kvs__jheap *h, const kvs__jstr *s);
kvs__val kvs__jtitle_filter(kvs__jheap *h, const kvs__jstr *s);
/* Byte offset of the first (last) occurrence in [from, to), -1 for none. */
int64_t kvs__jfind(kvs__jheap *h, const kvs__jstr *s, size_t from, size_t to, const kvs__jstr *what,
                   bool last);

/* ---- calls */

typedef struct kvs__jarg {
    const kvs__jstr *name;
    kvs__val value;
} kvs__jarg;

typedef struct kvs__jargs {
    const char *who; /* for messages */
    kvs__val *at;
    size_t n;
    kvs__jarg *named;
    size_t n_named;
} kvs__jargs;

/* Puts arguments where their names stand in `names` ("chars", "old|new|count"); absent ones are
 * left as they are in out, and `given` gets a bit each. Fails for others. */
uint32_t kvs__jbind(kvs__jheap *h, const kvs__jargs *a, const char *names, kvs__val *out);

typedef struct kvs__jrun kvs__jrun; /* a rendering */

typedef kvs__val (*kvs__jfilter_fn)(kvs__jrun *r, kvs__val in, const kvs__jargs *a);
typedef bool (*kvs__jtest_fn)(kvs__jrun *r, kvs__val in, const kvs__jargs *a);
typedef struct kvs__jfilter {
    const char *name;
    kvs__jfilter_fn fn;
} kvs__jfilter;
typedef struct kvs__jtest {
    const char *name;
    kvs__jtest_fn fn;
} kvs__jtest;
/* NULL: none of that name. */
const kvs__jfilter *kvs__jfilter_named(const char *name, size_t n);
const kvs__jtest *kvs__jtest_named(const char *name, size_t n);
kvs__val kvs__jmethod(kvs__jrun *r, kvs__val self, const kvs__jstr *name, const kvs__jargs *a);
bool kvs__jhas_method(const kvs__val *self, const kvs__jstr *name);
kvs__val kvs__jpercent(kvs__jheap *h, const kvs__jstr *fmt, const kvs__val *arg);
kvs__val kvs__jformat(kvs__jrun *r, const kvs__jstr *fmt, const kvs__jargs *a);
kvs__val kvs__jslice(kvs__jheap *h, kvs__val v, const kvs__val part[3]);
kvs__val kvs__jgetitem(kvs__jrun *r, kvs__val v, kvs__val key);
kvs__val kvs__jgetattr(kvs__jrun *r, kvs__val v, kvs__val name);
kvs__val kvs__jcall(kvs__jrun *r, kvs__val fn, const kvs__jargs *a);
kvs__val kvs__jglobal_call(kvs__jrun *r, const char *name, const kvs__jargs *a);
kvs__val kvs__jreverse(kvs__jheap *h, kvs__val v);

/* Operators: "+", "-", "*", "/", "//", "%", "**" by their codes. */
enum { J_FLOORDIV = 256, J_POW, J_EQ, J_NE, J_LE, J_GE, J_IN, J_NOT_IN };
kvs__val kvs__jbinary(kvs__jheap *h, int op, kvs__val a, kvs__val b);
bool kvs__jrelation(kvs__jheap *h, int op, kvs__val a, kvs__val b);

/* ---- tree */

typedef enum kvs__jop {
    /* statements: list through next */
    S_DATA,     /* val */
    S_PRINT,    /* a */
    S_IF,       /* a cond, b body, c else */
    S_FOR,      /* a target, b iterable, c body, d else, e filter */
    S_SET,      /* a target, b value */
    S_SETBLOCK, /* a target, b body, c filter chain over E_HOLE */
    S_MACRO,    /* val name, a parameters (E_NAME, b default), b body, flag: see J_USES_* */
    S_FILTER,   /* a filter chain over E_HOLE, b body */
    S_WITH,     /* a targets, b values, c body */
    S_SCOPE,    /* b body */
    S_BREAK,
    S_CONTINUE,
    /* expressions */
    E_CONST, /* val */
    E_NAME,  /* val */
    E_LIST,  /* a items */
    E_TUPLE,
    E_DICT, /* a: key, its next value, ... */
    E_COND, /* a cond, b then, c else or NULL */
    E_AND,
    E_OR,
    E_NOT,
    E_COMPARE, /* a first, b list of E_OPERAND (flag op, a) */
    E_OPERAND,
    E_CONCAT, /* a list */
    E_BINARY, /* flag op */
    E_NEG,
    E_POS,
    E_ATTR,   /* a, val */
    E_ITEM,   /* a, b */
    E_SLICE,  /* a; b, c, d */
    E_CALL,   /* a callee, b arguments (E_ARG for named) */
    E_ARG,    /* val name, a */
    E_FILTER, /* a input, b arguments, fn */
    E_TEST,
    E_HOLE /* the text of the block */
} kvs__jop;

enum { J_USES_VARARGS = 1, J_USES_KWARGS = 2 };

typedef struct kvs__jnode kvs__jnode;
struct kvs__jnode {
    kvs__jop op;
    uint32_t line;
    int flag;
    kvs__val val;
    kvs__jnode *next;
    kvs__jnode *a, *b, *c, *d, *e;
    const kvs__jfilter *filter;
    const kvs__jtest *test;
};

typedef enum kvs__jtok_type {
    T_EOF,
    T_DATA,
    T_VAR_BEGIN,
    T_VAR_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STR,
    T_NUMBER,
    T_OP
} kvs__jtok_type;

typedef struct kvs__jtok {
    kvs__jtok_type type;
    uint32_t line;
    int op;       /* a character, or J_* */
    kvs__val val; /* text or number */
} kvs__jtok;

typedef struct kvs__jparser {
    kvs__jheap *h;
    kvs__jtok *tok;
    size_t at;
    uint32_t loops;
    int macro_uses;
} kvs__jparser;

kvs__jtok *kvs__jlex(kvs__jheap *h, const char *text, size_t n);
kvs__jnode *kvs__jparse(kvs__jheap *h, const char *text, size_t n);
/* For the statements (jinja_parse.c) from the expressions (jinja_expr.c). */
kvs__jnode *kvs__jnode_new(kvs__jparser *p, kvs__jop op);
kvs__jnode *kvs__jexpr(kvs__jparser *p);
kvs__jnode *kvs__jexpr_or(kvs__jparser *p); /* without "a if b else c" */
kvs__jnode *kvs__jtuple(kvs__jparser *p, bool with_cond);
kvs__jnode *kvs__jtarget(kvs__jparser *p, bool attributes);
kvs__jnode *kvs__jfilters(kvs__jparser *p, kvs__jnode *input, bool first_is_named);
bool kvs__jis_op(const kvs__jparser *p, int op);
bool kvs__jis_name(const kvs__jparser *p, const char *name);
bool kvs__jskip_op(kvs__jparser *p, int op);
bool kvs__jskip_name(kvs__jparser *p, const char *name);
void kvs__jwant_op(kvs__jparser *p, int op);
_Noreturn void kvs__junexpected(kvs__jparser *p, const char *want);

/* ---- running */

typedef struct kvs__jvar kvs__jvar;
struct kvs__jvar {
    kvs__jvar *next;
    const kvs__jstr *name;
    kvs__val value;
};
typedef struct kvs__jscope kvs__jscope;
struct kvs__jscope {
    kvs__jscope *up;
    kvs__jvar *vars;
};

struct kvs__jrun {
    kvs__jheap *h;
    const kvs__val *vars; /* an object or NULL */
    kvs__jscope *scope;
    kvs__jsb *out;
    kvs__val hole;
    const kvs_template_opts *opts;
    uint32_t macros; /* calls that are open */
};

struct kvs__jfunc {
    const kvs__jnode *macro; /* or a method of self, or a global */
    kvs__jscope *scope;
    kvs__val self;
    const kvs__jstr *name;
};

struct kvs__jloop {
    kvs__jlist *items;
    size_t i;
    uint32_t depth;
    kvs__val changed; /* what changed() saw last */
    bool has_changed;
};

kvs__val kvs__jeval(kvs__jrun *r, const kvs__jnode *n);
void kvs__jassign(kvs__jrun *r, const kvs__jnode *target, kvs__val v);
void kvs__jset(kvs__jrun *r, const kvs__jstr *name, kvs__val v);
kvs__jscope *kvs__jpush(kvs__jrun *r, kvs__jscope *up); /* the scope before */
void kvs__jexec(kvs__jrun *r, const kvs__jnode *body);
kvs__val kvs__jmacro(kvs__jrun *r, const kvs__jfunc *fn, const kvs__jargs *a);
kvs__val kvs__jloop_attr(kvs__jrun *r, kvs__jloop *l, const kvs__jstr *name);

static inline bool kvs__jis(const kvs__jstr *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

#endif
