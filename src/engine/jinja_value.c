/* SPDX-License-Identifier: MIT */
/* jinja_value.c: the heap of the template interpreter and its values: lists, dicts, comparisons,
 * with Python's meaning. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "engine/jinja.h"

/* ---- heap */

#define CHUNK_BYTES ((size_t)64 << 10)
#define MAX_DEPTH   600u

struct kvs__jchunk {
    kvs__jchunk *next;
    size_t bytes; /* with this header */
};
#define CHUNK_HEAD ((sizeof(kvs__jchunk) + 15) & ~(size_t)15)

void kvs__jfail(kvs__jheap *h, kvs_status st, const char *fmt, ...)
{
    char text[200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[kvs__jutf8_cut(text)] = '\0';
    h->status = st;
    if (h->line > 0) {
        (void)kvs__fail(h->err, st, "engine", "chat template, line %u: %s", h->line, text);
    } else {
        (void)kvs__fail(h->err, st, "engine", "%s", text);
    }
    longjmp(*h->escape, 1);
}

static void *new_chunk(kvs__jheap *h, size_t bytes)
{
    size_t want = bytes + CHUNK_HEAD;
    size_t size = want > CHUNK_BYTES ? want : CHUNK_BYTES;
    if (bytes > h->max_bytes || size > h->max_bytes - h->used) {
        kvs__jfail(h, KVS_E_LIMIT, "more than %zu MiB of memory", h->max_bytes >> 20);
    }
    kvs__jchunk *c = kvs__calloc(h->ctx, 1, size);
    if (!c) {
        kvs__jfail(h, KVS_E_NOMEM, "out of memory: %zu bytes", size);
    }
    h->used += size;
    c->bytes = size;
    c->next = h->chunks;
    h->chunks = c;
    return (char *)c + CHUNK_HEAD;
}

void *kvs__jalloc(kvs__jheap *h, size_t bytes)
{
    if (bytes > h->max_bytes) {
        kvs__jfail(h, KVS_E_LIMIT, "more than %zu MiB of memory", h->max_bytes >> 20);
    }
    bytes = (bytes + 15) & ~(size_t)15;
    if (bytes <= h->left) {
        void *p = h->next;
        h->next += bytes;
        h->left -= bytes;
        return p;
    }
    char *p = new_chunk(h, bytes);
    if (bytes + CHUNK_HEAD < CHUNK_BYTES && CHUNK_BYTES - CHUNK_HEAD - bytes > h->left) {
        h->next = p + bytes;
        h->left = CHUNK_BYTES - CHUNK_HEAD - bytes;
    }
    return p;
}

void *kvs__jalloc_n(kvs__jheap *h, size_t n, size_t each)
{
    size_t bytes = 0;
    if (!kvs__mul_size(n, each, &bytes)) {
        kvs__jfail(h, KVS_E_LIMIT, "%zu elements", n);
    }
    return kvs__jalloc(h, bytes);
}

void kvs__jheap_free(kvs__jheap *h)
{
    while (h->chunks) {
        kvs__jchunk *c = h->chunks;
        h->chunks = c->next;
        kvs__free(h->ctx, c, c->bytes);
    }
}

void kvs__jstep(kvs__jheap *h, size_t n)
{
    h->steps += n;
    if (h->steps > h->max_steps) {
        kvs__jfail(h, KVS_E_LIMIT, "more than %llu steps", (unsigned long long)h->max_steps);
    }
}

void kvs__jenter(kvs__jheap *h)
{
    if (++h->depth > MAX_DEPTH) {
        kvs__jfail(h, KVS_E_LIMIT, "nested or recursing more than %u deep", MAX_DEPTH);
    }
}

/* ---- lists and dicts */

kvs__val kvs__jtext(kvs__jheap *h, const char *p, size_t n)
{
    kvs__jsb b = {.h = h};
    kvs__jsb_put(&b, p, n);
    return kvs__jsb_done(&b);
}

kvs__val kvs__jtext0(kvs__jheap *h, const char *p)
{
    return kvs__jtext(h, p, strlen(p));
}

kvs__jlist *kvs__jlist_new(kvs__jheap *h, kvs__jkind kind)
{
    kvs__jlist *l = kvs__jalloc(h, sizeof *l);
    l->kind = kind;
    return l;
}

void kvs__jlist_add(kvs__jheap *h, kvs__jlist *l, kvs__val v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap > 0 ? 2 * l->cap : 4;
        kvs__val *at = kvs__jalloc_n(h, cap, sizeof *at);
        if (l->n > 0) {
            memcpy(at, l->at, l->n * sizeof *at);
        }
        l->at = at;
        l->cap = cap;
    }
    l->at[l->n++] = v;
}

kvs__jdict *kvs__jdict_new(kvs__jheap *h)
{
    return kvs__jalloc(h, sizeof(kvs__jdict));
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static bool hash_of(kvs__jheap *h, const kvs__val *v, uint64_t *out)
{
    uint64_t x = 0xcbf29ce484222325u;
    switch (v->type) {
    case J_STR:
        for (size_t i = 0; i < v->u.s->n; i++) {
            x = (x ^ (unsigned char)v->u.s->p[i]) * 0x100000001b3u;
        }
        *out = mix(x);
        return true;
    case J_BOOL:
    case J_INT:
    case J_FLOAT: {
        double f = kvs__jnum_float(v) + 0.0; /* equal numbers, equal hash */
        memcpy(&x, &f, sizeof x);
        *out = mix(x);
        return true;
    }
    case J_NONE:
        *out = 7;
        return true;
    case J_LIST:
        if (v->u.l->kind != J_KIND_TUPLE) {
            return false;
        }
        for (size_t i = 0; i < v->u.l->n; i++) {
            uint64_t y = 0;
            if (h) {
                kvs__jenter(h);
            }
            if (!hash_of(h, &v->u.l->at[i], &y)) {
                return false;
            }
            if (h) {
                kvs__jleave(h);
            }
            x = mix(x ^ y);
        }
        *out = x;
        return true;
    default:
        return false;
    }
}

static const kvs__jpair *lookup(kvs__jheap *h, const kvs__jdict *d, const kvs__val *key,
                                uint64_t hash)
{
    if (d->n_index == 0) {
        for (size_t i = 0; i < d->n; i++) {
            if (d->at[i].hash == hash && kvs__jequal(h, &d->at[i].key, key)) {
                return &d->at[i];
            }
        }
        return NULL;
    }
    size_t k = hash & (d->n_index - 1);
    for (; d->index[k] != 0; k = (k + 1) & (d->n_index - 1)) {
        const kvs__jpair *p = &d->at[d->index[k] - 1];
        if (p->hash == hash && kvs__jequal(h, &p->key, key)) {
            return p;
        }
    }
    return NULL;
}

static void put_index(kvs__jdict *d, size_t i)
{
    size_t k = d->at[i].hash & (d->n_index - 1);
    while (d->index[k] != 0) {
        k = (k + 1) & (d->n_index - 1);
    }
    d->index[k] = (uint32_t)(i + 1);
}

static void grow_dict(kvs__jheap *h, kvs__jdict *d)
{
    size_t cap = d->cap > 0 ? 2 * d->cap : 8;
    if (cap > UINT32_MAX / 2) {
        kvs__jfail(h, KVS_E_LIMIT, "%zu members", cap);
    }
    kvs__jpair *at = kvs__jalloc_n(h, cap, sizeof *at);
    if (d->n > 0) {
        memcpy(at, d->at, d->n * sizeof *at);
    }
    d->at = at;
    d->cap = cap;
    if (cap > 8) {
        d->n_index = 2 * cap;
        d->index = kvs__jalloc_n(h, d->n_index, sizeof *d->index);
        for (size_t i = 0; i < d->n; i++) {
            put_index(d, i);
        }
    }
}

void kvs__jdict_set(kvs__jheap *h, kvs__jdict *d, kvs__val key, kvs__val v)
{
    uint64_t hash = 0;
    if (!hash_of(h, &key, &hash)) {
        kvs__jfail(h, KVS_E_FORMAT, "%s can't be the key of a dict", kvs__jtype_name(&key));
    }
    const kvs__jpair *p = lookup(h, d, &key, hash);
    if (p) {
        d->at[p - d->at].value = v;
        return;
    }
    if (d->n == d->cap) {
        grow_dict(h, d);
    }
    d->at[d->n] = (kvs__jpair){key, v, hash};
    d->n++;
    if (d->n_index > 0) {
        put_index(d, d->n - 1);
    }
}

const kvs__val *kvs__jdict_find(kvs__jheap *h, const kvs__jdict *d, kvs__val key)
{
    uint64_t hash = 0;
    if (!hash_of(h, &key, &hash)) {
        if (h) {
            kvs__jfail(h, KVS_E_FORMAT, "%s can't be the key of a dict", kvs__jtype_name(&key));
        }
        return NULL;
    }
    const kvs__jpair *p = lookup(h, d, &key, hash);
    return p ? &p->value : NULL;
}

const kvs__val *kvs__jdict_name(const kvs__jdict *d, const char *name, size_t n)
{
    kvs__jstr s = {.p = name, .n = n};
    return kvs__jdict_find(NULL, d, kvs__jstrv(&s));
}

/* ---- truth, numbers, equality */

bool kvs__jis_number(const kvs__val *v)
{
    return v->type == J_BOOL || v->type == J_INT || v->type == J_FLOAT;
}

int64_t kvs__jnum_int(const kvs__val *v)
{
    return v->type == J_BOOL ? v->u.b : v->u.i;
}

double kvs__jnum_float(const kvs__val *v)
{
    return v->type == J_FLOAT ? v->u.f : (double)kvs__jnum_int(v);
}

bool kvs__jtrue(const kvs__val *v)
{
    switch (v->type) {
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
        return v->u.b;
    case J_INT:
        return v->u.i != 0;
    case J_FLOAT:
        return !(v->u.f == 0.0);
    case J_STR:
        return v->u.s->n > 0;
    case J_LIST:
        return v->u.l->kind == J_KIND_ITER || v->u.l->n > 0;
    case J_DICT:
        return v->u.d->n > 0;
    default:
        return true;
    }
}

const char *kvs__jtype_name(const kvs__val *v)
{
    static const char *const names[] = {"an undefined value",
                                        "none",
                                        "a boolean",
                                        "an integer",
                                        "a float",
                                        "a string",
                                        "a list",
                                        "a dict",
                                        "a namespace",
                                        "a function",
                                        "a loop"};
    static const char *const kinds[] = {"a list",          "a tuple",         "a range",
                                        "a generator",     "a view of items", "a view of keys",
                                        "a view of values"};
    return v->type == J_LIST ? kinds[v->u.l->kind] : names[v->type];
}

int64_t kvs__jlen(const kvs__val *v)
{
    switch (v->type) {
    case J_UNDEFINED:
        return 0;
    case J_STR:
        return (int64_t)v->u.s->n_chars;
    case J_LIST:
        return v->u.l->kind == J_KIND_ITER ? -1 : (int64_t)v->u.l->n;
    case J_DICT:
        return (int64_t)v->u.d->n;
    case J_LOOP:
        return (int64_t)v->u.loop->items->n;
    default:
        return -1;
    }
}

static int number_order(const kvs__val *a, const kvs__val *b, bool *ordered)
{
    *ordered = true;
    if (a->type != J_FLOAT && b->type != J_FLOAT) {
        int64_t x = kvs__jnum_int(a);
        int64_t y = kvs__jnum_int(b);
        return x < y ? -1 : x > y;
    }
    /* an integer of 64 bits must not be rounded */
    double x = kvs__jnum_float(a);
    double y = kvs__jnum_float(b);
    *ordered = !isnan(x) && !isnan(y);
    if (x != y || (a->type == J_FLOAT && b->type == J_FLOAT) || fabs(x) >= 0x1p63) {
        return x < y ? -1 : x > y;
    }
    int64_t i = a->type == J_FLOAT ? (int64_t)a->u.f : kvs__jnum_int(a);
    int64_t j = b->type == J_FLOAT ? (int64_t)b->u.f : kvs__jnum_int(b);
    return i < j ? -1 : i > j;
}

static bool same_list(kvs__jheap *h, const kvs__jlist *a, const kvs__jlist *b)
{
    if (a == b) {
        return true;
    }
    if (a->kind != b->kind || a->n != b->n || a->kind >= J_KIND_ITER) {
        return false;
    }
    for (size_t i = 0; i < a->n; i++) {
        if (!kvs__jequal(h, &a->at[i], &b->at[i])) {
            return false;
        }
    }
    return true;
}

static bool same_dict(kvs__jheap *h, const kvs__jdict *a, const kvs__jdict *b)
{
    if (a->n != b->n) {
        return false;
    }
    for (size_t i = 0; i < a->n && a != b; i++) {
        const kvs__jpair *p = lookup(h, b, &a->at[i].key, a->at[i].hash);
        if (!p || !kvs__jequal(h, &a->at[i].value, &p->value)) {
            return false;
        }
    }
    return true;
}

static bool equal(kvs__jheap *h, const kvs__val *a, const kvs__val *b)
{
    if (kvs__jis_number(a) && kvs__jis_number(b)) {
        bool ordered = true;
        return number_order(a, b, &ordered) == 0 && ordered;
    }
    if (a->type != b->type) {
        return false;
    }
    switch (a->type) {
    case J_STR:
        return a->u.s->n == b->u.s->n && memcmp(a->u.s->p, b->u.s->p, a->u.s->n) == 0;
    case J_LIST:
        return same_list(h, a->u.l, b->u.l);
    case J_DICT:
        return same_dict(h, a->u.d, b->u.d);
    case J_SPACE:
        return a->u.d == b->u.d;
    case J_FUNC:
        return a->u.fn == b->u.fn;
    case J_LOOP:
        return a->u.loop == b->u.loop;
    default:
        return true; /* none, undefined */
    }
}

bool kvs__jequal(kvs__jheap *h, const kvs__val *a, const kvs__val *b)
{
    if (!h) {
        return equal(h, a, b);
    }
    kvs__jenter(h);
    kvs__jstep(h, a->type == J_STR && b->type == J_STR ? 1 + a->u.s->n / 64 : 1);
    bool same = equal(h, a, b);
    kvs__jleave(h);
    return same;
}

static _Noreturn void no_order(kvs__jheap *h, const kvs__val *a, const kvs__val *b, const char *op)
{
    kvs__jfail(h, KVS_E_FORMAT, "%s and %s can't be compared by %s", kvs__jtype_name(a),
               kvs__jtype_name(b), op);
}

static int order_texts(kvs__jheap *h, const kvs__jstr *a, const kvs__jstr *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    kvs__jstep(h, n / 64);
    int c = memcmp(a->p, b->p, n); /* UTF-8 sorts as its code points do */
    if (c != 0) {
        return c < 0 ? -1 : 1;
    }
    return a->n < b->n ? -1 : a->n > b->n;
}

static int order_lists(kvs__jheap *h, const kvs__jlist *a, const kvs__jlist *b, const char *op)
{
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        if (!kvs__jequal(h, &a->at[i], &b->at[i])) {
            return kvs__jcompare(h, &a->at[i], &b->at[i], op);
        }
    }
    return a->n < b->n ? -1 : a->n > b->n;
}

/* -1, 0, 1; 2 where neither is less (NaN). */
int kvs__jcompare(kvs__jheap *h, const kvs__val *a, const kvs__val *b, const char *op)
{
    kvs__jstep(h, 1);
    if (kvs__jis_number(a) && kvs__jis_number(b)) {
        bool ordered = true;
        int c = number_order(a, b, &ordered);
        return ordered ? c : 2;
    }
    if (a->type == J_STR && b->type == J_STR) {
        return order_texts(h, a->u.s, b->u.s);
    }
    if (a->type != J_LIST || b->type != J_LIST || a->u.l->kind != b->u.l->kind ||
        a->u.l->kind > J_KIND_TUPLE) {
        no_order(h, a, b, op);
    }
    kvs__jenter(h);
    int c = order_lists(h, a->u.l, b->u.l, op);
    kvs__jleave(h);
    return c;
}

bool kvs__jcontains(kvs__jheap *h, const kvs__val *item, const kvs__val *in)
{
    if (in->type == J_STR) {
        if (item->type != J_STR) {
            kvs__jfail(h, KVS_E_FORMAT, "%s in a string: only a string can be",
                       kvs__jtype_name(item));
        }
        return kvs__jfind(h, in->u.s, 0, in->u.s->n, item->u.s, false) >= 0;
    }
    if (in->type == J_DICT) {
        return kvs__jdict_find(h, in->u.d, *item) != NULL;
    }
    const kvs__jlist *l = kvs__jiter(h, in);
    for (size_t i = 0; i < l->n; i++) {
        if (kvs__jequal(h, &l->at[i], item)) {
            return true;
        }
    }
    return false;
}

/* ---- iteration */

bool kvs__jiterable(const kvs__val *v)
{
    return v->type == J_UNDEFINED || v->type == J_STR || v->type == J_LIST || v->type == J_DICT ||
           v->type == J_LOOP;
}

static kvs__jlist *characters(kvs__jheap *h, const kvs__jstr *s)
{
    kvs__jlist *l = kvs__jlist_new(h, J_KIND_LIST);
    for (size_t i = 0; i < s->n;) {
        size_t from = i;
        (void)kvs__jnext(s->p, &i);
        kvs__jlist_add(h, l, kvs__jsub(h, s, from, i));
    }
    return l;
}

kvs__jlist *kvs__jiter(kvs__jheap *h, const kvs__val *v)
{
    kvs__jlist *l = NULL;
    switch (v->type) {
    case J_UNDEFINED:
        return kvs__jlist_new(h, J_KIND_LIST);
    case J_STR:
        return characters(h, v->u.s);
    case J_DICT:
        l = kvs__jlist_new(h, J_KIND_LIST);
        for (size_t i = 0; i < v->u.d->n; i++) {
            kvs__jlist_add(h, l, v->u.d->at[i].key);
        }
        return l;
    case J_LIST:
        if (v->u.l->kind != J_KIND_ITER) {
            return v->u.l;
        }
        l = kvs__jlist_new(h, J_KIND_LIST);
        *l = *v->u.l;
        l->kind = J_KIND_LIST;
        v->u.l->n = 0;
        v->u.l->cap = 0;
        return l;
    default:
        kvs__jfail(h, KVS_E_FORMAT, "%s can't be walked through", kvs__jtype_name(v));
    }
}
