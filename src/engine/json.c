/* SPDX-License-Identifier: MIT */
/* json.c: the parser and the questions of json.h.
 *
 * A document is its text and an array of nodes in the order of the text; a node knows where the
 * node after its whole subtree is, so that stepping over anything is one addition. Members of an
 * object are a string node and a value node in turn. The parser is a loop with a stack of open
 * brackets: neither depth nor size of a hostile text can exhaust the C stack. */
#include "engine/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "engine/json_number.h"
#include "engine/token_utf8.h"

typedef struct node {
    uint32_t at;   /* of the first byte after the quote, or of the first digit */
    uint32_t len;  /* bytes; arrays and objects: elements or members */
    uint32_t next; /* node after this one and all inside it */
    uint8_t type;  /* kvs__json_type */
    uint8_t escaped;
} node;

struct kvs__json {
    kvs_ctx *ctx;
    kvs__map map; /* bytes 0 when the text is the caller's */
    const char *text;
    size_t n;
    node *nodes;
    size_t cap;
    size_t n_nodes;
    char what[128];
};

typedef struct parser {
    kvs__json *d;
    kvs_err *err;
    size_t at;
    uint32_t open[KVS__JSON_DEPTH]; /* nodes of the brackets around `at` */
    uint32_t depth;
} parser;

/* ---- parsing */

static kvs_status bad(parser *p, size_t at, const char *why)
{
    size_t line = 1;
    size_t start = 0;
    for (size_t i = 0; i < at; i++) {
        if (p->d->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    return kvs__fail(p->err, KVS_E_FORMAT, "engine", "%s: line %zu, byte %zu: %s", p->d->what, line,
                     at - start + 1, why);
}

static kvs_status push(parser *p, kvs__json_type type, size_t at, size_t len)
{
    kvs__json *d = p->d;
    if (d->n_nodes == d->cap) {
        size_t cap = d->cap ? 2 * d->cap : 64;
        size_t bytes = 0;
        node *more = kvs__mul_size(cap, sizeof *more, &bytes) ? kvs__alloc(d->ctx, bytes) : NULL;
        if (!more) {
            return kvs__nomem(p->err, "engine", bytes);
        }
        if (d->n_nodes > 0) {
            memcpy(more, d->nodes, d->n_nodes * sizeof *more);
        }
        kvs__free(d->ctx, d->nodes, d->cap * sizeof *d->nodes);
        d->nodes = more;
        d->cap = cap;
    }
    d->nodes[d->n_nodes] = (node){(uint32_t)at, (uint32_t)len, 0, (uint8_t)type, 0};
    d->n_nodes++;
    d->nodes[d->n_nodes - 1].next = (uint32_t)d->n_nodes;
    return KVS_OK;
}

static void skip_space(parser *p)
{
    const char *t = p->d->text;
    while (p->at < p->d->n &&
           (t[p->at] == ' ' || t[p->at] == '\n' || t[p->at] == '\r' || t[p->at] == '\t')) {
        p->at++;
    }
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Four hexadecimal digits, or -1. */
static int32_t hex4(const char *s, size_t left)
{
    int32_t v = 0;
    for (size_t i = 0; i < 4; i++) {
        int d = i < left ? hex_digit(s[i]) : -1;
        if (d < 0) {
            return -1;
        }
        v = v * 16 + d;
    }
    return v;
}

/* Bytes of the escape at s (a backslash), and its character; 0: it is none. */
static size_t escape(const char *s, size_t left, uint32_t *cp)
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    const char *hit = left > 1 && s[1] ? strchr(from, s[1]) : NULL;
    if (hit) {
        *cp = (uint32_t)(unsigned char)to[hit - from];
        return 2;
    }
    int32_t v = left > 1 && s[1] == 'u' ? hex4(s + 2, left - 2) : -1;
    if (v < 0 || (v >= 0xdc00 && v <= 0xdfff)) {
        return 0;
    }
    if (v < 0xd800 || v > 0xdbff) {
        *cp = (uint32_t)v;
        return 6;
    }
    int32_t low = left > 7 && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8, left - 8) : -1;
    if (low < 0xdc00 || low > 0xdfff) {
        return 0;
    }
    *cp = 0x10000u + ((uint32_t)(v - 0xd800) << 10) + (uint32_t)(low - 0xdc00);
    return 12;
}

static kvs_status parse_string(parser *p)
{
    const char *t = p->d->text;
    size_t begin = p->at + 1;
    bool escaped = false;
    size_t i = begin;
    while (i < p->d->n && t[i] != '"') {
        if ((unsigned char)t[i] < 0x20) {
            return bad(p, i, "a control character inside a string");
        }
        uint32_t cp = 0;
        size_t len = 1;
        if (t[i] == '\\') {
            escaped = true;
            len = escape(t + i, p->d->n - i, &cp);
            if (len == 0) {
                return bad(p, i, "an escape that is none, or half of a surrogate pair");
            }
        }
        i += len;
    }
    if (i >= p->d->n) {
        return bad(p, p->at, "a string without its end");
    }
    kvs_status st = push(p, KVS__JSON_STRING, begin, i - begin);
    if (st == KVS_OK) {
        p->d->nodes[p->d->n_nodes - 1].escaped = escaped;
        p->at = i + 1;
    }
    return st;
}

static kvs_status parse_word(parser *p)
{
    static const struct {
        const char *text;
        kvs__json_type type;
    } words[] = {{"null", KVS__JSON_NULL}, {"true", KVS__JSON_TRUE}, {"false", KVS__JSON_FALSE}};
    for (size_t i = 0; i < KVS_COUNT(words); i++) {
        size_t len = strlen(words[i].text);
        if (p->d->n - p->at >= len && memcmp(p->d->text + p->at, words[i].text, len) == 0) {
            kvs_status st = push(p, words[i].type, p->at, len);
            p->at += len;
            return st;
        }
    }
    return bad(p, p->at, "expected a value");
}

static kvs_status open_bracket(parser *p, kvs__json_type type)
{
    if (p->depth == KVS__JSON_DEPTH) {
        return bad(p, p->at, "brackets inside brackets, 64 deep");
    }
    kvs_status st = push(p, type, p->at, 0);
    if (st == KVS_OK) {
        p->open[p->depth++] = (uint32_t)(p->d->n_nodes - 1);
        p->at++;
    }
    return st;
}

static kvs_status parse_value(parser *p)
{
    char c = p->at < p->d->n ? p->d->text[p->at] : '\0';
    if (c == '"') {
        return parse_string(p);
    }
    if (c == '{' || c == '[') {
        return open_bracket(p, c == '{' ? KVS__JSON_OBJECT : KVS__JSON_ARRAY);
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        size_t len = kvs__json_number_len(p->d->text + p->at, p->d->n - p->at);
        if (len == 0) {
            return bad(p, p->at, "a number that is none");
        }
        kvs_status st = push(p, KVS__JSON_NUMBER, p->at, len);
        p->at += len;
        return st;
    }
    /* Python writes infinity so; in files that it wrote, a number */
    static const char infinity[] = "Infinity";
    size_t len = sizeof infinity - 1;
    if (p->d->map.bytes > 0 && p->d->n - p->at >= len &&
        memcmp(p->d->text + p->at, infinity, len) == 0) {
        kvs_status st = push(p, KVS__JSON_NUMBER, p->at, len);
        p->at += len;
        return st;
    }
    return parse_word(p);
}

/* A member's name and colon. */
static kvs_status parse_name(parser *p)
{
    if (p->at >= p->d->n || p->d->text[p->at] != '"') {
        return bad(p, p->at, "expected a name in quotes");
    }
    kvs_status st = parse_string(p);
    if (st != KVS_OK) {
        return st;
    }
    skip_space(p);
    if (p->at >= p->d->n || p->d->text[p->at] != ':') {
        return bad(p, p->at, "expected a colon after a name");
    }
    p->at++;
    skip_space(p);
    return KVS_OK;
}

/* After an opening bracket (first) or a value: closes brackets and steps to the next value.
 * KVS_NO: the outermost value is complete. */
static kvs_status step(parser *p, bool first)
{
    for (;; first = false) {
        skip_space(p);
        if (p->depth == 0) {
            return p->at == p->d->n ? KVS_NO : bad(p, p->at, "text after the value");
        }
        node *around = &p->d->nodes[p->open[p->depth - 1]];
        bool object = around->type == KVS__JSON_OBJECT;
        char c = p->at < p->d->n ? p->d->text[p->at] : '\0';
        if (c == (object ? '}' : ']')) {
            around->next = (uint32_t)p->d->n_nodes;
            p->depth--;
            p->at++;
            continue;
        }
        if (!first) {
            if (c != ',') {
                return bad(p, p->at, "expected a comma or the closing bracket");
            }
            p->at++;
            skip_space(p);
        }
        around->len++;
        return object ? parse_name(p) : KVS_OK;
    }
}

static kvs_status parse(parser *p)
{
    size_t good = kvs__utf8_valid(p->d->text, p->d->n);
    if (good != p->d->n) {
        return bad(p, good, "bytes that are not UTF-8");
    }
    skip_space(p);
    for (;;) {
        uint32_t depth = p->depth;
        kvs_status st = parse_value(p);
        if (st == KVS_OK) {
            st = step(p, p->depth > depth);
        }
        if (st != KVS_OK) {
            return st == KVS_NO ? KVS_OK : st;
        }
    }
}

/* NULL: out of memory. */
static kvs__json *document_new(kvs_ctx *ctx, const char *what)
{
    kvs__json *d = kvs__calloc(ctx, 1, sizeof *d);
    if (!d) {
        return NULL;
    }
    d->ctx = ctx;
    size_t len = strlen(what);
    size_t skip =
        len < sizeof d->what ? 0 : len + 1 - sizeof d->what; /* the end of a path counts */
    memcpy(d->what, what + skip, len - skip + 1);
    return d;
}

static kvs_status document_fill(kvs__json *d, kvs__json **out, kvs_err *err)
{
    parser p = {.d = d, .err = err};
    kvs_status st = parse(&p);
    if (st != KVS_OK) {
        kvs__json_free(d);
        return st;
    }
    *out = d;
    return KVS_OK;
}

kvs_status kvs__json_parse(kvs_ctx *ctx, const char *text, size_t n, const char *what,
                           kvs__json **out, kvs_err *err)
{
    if (n > KVS__JSON_MOST) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu bytes", what, n);
    }
    kvs__json *d = document_new(ctx, what);
    if (!d) {
        return kvs__nomem(err, "engine", sizeof *d);
    }
    d->text = text;
    d->n = n;
    return document_fill(d, out, err);
}

kvs_status kvs__json_load(kvs_ctx *ctx, const char *path, size_t max_bytes, kvs__json **out,
                          kvs_err *err)
{
    kvs__json *d = document_new(ctx, path);
    if (!d) {
        return kvs__nomem(err, "engine", sizeof *d);
    }
    kvs_status st = kvs__map_open(path, &d->map, err);
    if (st != KVS_OK) {
        d->map = (kvs__map){0};
        kvs__json_free(d);
        return st;
    }
    d->text = (const char *)d->map.data;
    d->n = d->map.bytes;
    size_t most = max_bytes < KVS__JSON_MOST ? max_bytes : KVS__JSON_MOST;
    if (d->n > most) {
        st = kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu bytes, more than %zu", d->what,
                       d->n, most);
        kvs__json_free(d);
        return st;
    }
    return document_fill(d, out, err);
}

void kvs__json_free(kvs__json *d)
{
    if (!d) {
        return;
    }
    kvs__free(d->ctx, d->nodes, d->cap * sizeof *d->nodes);
    kvs__map_close(&d->map);
    kvs__free(d->ctx, d, sizeof *d);
}

/* ---- questions */

static const kvs__jval none = {NULL, 0};

static const node *node_of(kvs__jval v)
{
    return &v.doc->nodes[v.at];
}

kvs__jval kvs__json_root(const kvs__json *doc)
{
    return (kvs__jval){doc, 0};
}

kvs__json_type kvs__json_kind(kvs__jval v)
{
    return v.doc ? (kvs__json_type)node_of(v)->type : KVS__JSON_NONE;
}

const char *kvs__json_kind_name(kvs__jval v)
{
    static const char *const names[] = {"nothing", "null",   "false", "true",
                                        "number",  "string", "array", "object"};
    return names[kvs__json_kind(v)];
}

size_t kvs__json_count(kvs__jval v)
{
    kvs__json_type type = kvs__json_kind(v);
    return type == KVS__JSON_ARRAY || type == KVS__JSON_OBJECT ? node_of(v)->len : 0;
}

/* Node `at`, or none where the container ends before it. */
static bool inside(kvs__jval container, uint32_t at)
{
    return at < node_of(container)->next;
}

bool kvs__json_next(kvs__jval array, kvs__jval *v)
{
    if (kvs__json_kind(array) != KVS__JSON_ARRAY) {
        return false;
    }
    uint32_t at = v->doc ? node_of(*v)->next : array.at + 1;
    *v = inside(array, at) ? (kvs__jval){array.doc, at} : none;
    return v->doc != NULL;
}

bool kvs__json_member(kvs__jval object, kvs__jval *name, kvs__jval *value)
{
    if (kvs__json_kind(object) != KVS__JSON_OBJECT) {
        return false;
    }
    uint32_t at = value->doc ? node_of(*value)->next : object.at + 1;
    if (!inside(object, at)) {
        *name = *value = none;
        return false;
    }
    *name = (kvs__jval){object.doc, at};
    *value = (kvs__jval){object.doc, at + 1};
    return true;
}

kvs__jval kvs__json_get(kvs__jval object, const char *name)
{
    kvs__jval found = none;
    kvs__jval key = none;
    kvs__jval value = none;
    while (kvs__json_member(object, &key, &value)) {
        if (kvs__json_is(key, name)) {
            found = value;
        }
    }
    return found;
}

kvs__str kvs__json_raw(kvs__jval v)
{
    kvs__json_type type = kvs__json_kind(v);
    if (type != KVS__JSON_STRING && type != KVS__JSON_NUMBER) {
        return (kvs__str){"", 0};
    }
    return (kvs__str){v.doc->text + node_of(v)->at, node_of(v)->len};
}

bool kvs__json_escaped(kvs__jval v)
{
    return v.doc && node_of(v)->escaped;
}

static size_t put_utf8(char *dst, uint32_t cp)
{
    if (cp < 0x80) {
        dst[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--) {
        dst[i] = (char)(0x80u | (cp & 0x3fu));
        cp >>= 6;
    }
    dst[0] = (char)(lead[n] | cp);
    return n;
}

size_t kvs__json_text(kvs__jval v, char *dst)
{
    kvs__str raw = kvs__json_raw(v);
    if (!kvs__json_escaped(v)) {
        memcpy(dst, raw.ptr, raw.len);
        return raw.len;
    }
    size_t used = 0;
    for (size_t i = 0; i < raw.len;) {
        if (raw.ptr[i] != '\\') {
            dst[used++] = raw.ptr[i++];
            continue;
        }
        uint32_t cp = 0;
        i += escape(raw.ptr + i, raw.len - i, &cp); /* never 0: the parser has seen it */
        used += put_utf8(dst + used, cp);
    }
    return used;
}

bool kvs__json_is(kvs__jval v, const char *text)
{
    if (kvs__json_kind(v) != KVS__JSON_STRING) {
        return false;
    }
    kvs__str raw = kvs__json_raw(v);
    size_t n = strlen(text);
    if (!kvs__json_escaped(v)) {
        return raw.len == n && memcmp(raw.ptr, text, n) == 0;
    }
    size_t used = 0;
    for (size_t i = 0; i < raw.len;) {
        char c[4] = {raw.ptr[i], 0, 0, 0};
        size_t len = 1;
        if (raw.ptr[i] == '\\') {
            uint32_t cp = 0;
            i += escape(raw.ptr + i, raw.len - i, &cp);
            len = put_utf8(c, cp);
        } else {
            i++;
        }
        if (len > n - used || memcmp(c, text + used, len) != 0) {
            return false;
        }
        used += len;
    }
    return used == n;
}

bool kvs__json_int(kvs__jval v, int64_t *out)
{
    return kvs__json_kind(v) == KVS__JSON_NUMBER && kvs__json_raw(v).ptr[0] != 'I' &&
           kvs__json_number_int(kvs__json_raw(v).ptr, kvs__json_raw(v).len, out);
}

bool kvs__json_double(kvs__jval v, double *out)
{
    if (kvs__json_kind(v) != KVS__JSON_NUMBER) {
        return false;
    }
    if (kvs__json_raw(v).ptr[0] == 'I') {
        *out = HUGE_VAL;
        return true;
    }
    *out = kvs__json_number_double(kvs__json_raw(v).ptr, kvs__json_raw(v).len);
    return true;
}
