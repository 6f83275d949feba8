/* SPDX-License-Identifier: MIT */
/* json.c: the parser and the questions of json.h.
 *
 * A document is its text and an array of nodes in the order of the text; a node knows where the
 * node after its whole subtree is, so that stepping over anything is one addition. Members of an
 * object are a string node and a value node in turn. The parser is a loop with a stack of open
 * brackets: neither depth nor size of a hostile text can exhaust the C stack.
 *
 * I1  A string's decoded bytes are never more than its escaped ones, so decoding in place begins
 *     where the string does and never overtakes the reading.
 * I2  nodes[i].next > i, and every walk by next ends at n_nodes. */
#include "engine/json.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/json_lex.h"
#include "engine/json_number.h"

typedef struct parser {
    kvs__json *d;
    kvs_err *err;
    kvs__json_lex l;
    uint32_t open[KVS__JSON_DEPTH]; /* nodes of the brackets around l.at */
    uint32_t depth;
} parser;

/* ---- parsing */

/* At a byte of the line where the lexer is. */
static kvs_status bad(parser *p, size_t at, const char *why)
{
    return kvs__fail(p->err, KVS_E_FORMAT, "engine", "%s: line %zu, byte %zu: %s", p->d->what,
                     p->l.line + 1, at - p->l.line_at + 1, why);
}

static kvs_status push(parser *p, kvs__json_type type, size_t at, size_t len, bool mark)
{
    kvs__json *d = p->d;
    kvs__json_node *more =
        kvs__grow(d->ctx, d->nodes, &d->cap, d->n_nodes, d->n_nodes + 1, sizeof *more);
    if (!more) {
        return kvs__nomem(p->err, "engine", sizeof *more);
    }
    d->nodes = more;
    const uint32_t next = (uint32_t)d->n_nodes + 1;
    d->nodes[d->n_nodes++] =
        (kvs__json_node){(uint32_t)at, (uint32_t)len, next, (uint8_t)type, mark};
    return KVS_OK;
}

static kvs_status parse_string(parser *p)
{
    const char *t = p->l.text;
    const size_t n = p->l.n;
    char *own = p->d->own;
    const size_t begin = p->l.at + 1;
    size_t to = begin; /* in own */
    size_t i = begin;
    bool escaped = false;
    for (;;) {
        const size_t end = kvs__json_run(t, n, i);
        if (own && escaped && end > i) {
            memmove(own + to, t + i, end - i);
        }
        to += end - i;
        i = end;
        if (i == n) {
            return bad(p, p->l.at, "a string without its end");
        }
        if (t[i] == '"') {
            break;
        }
        if (t[i] != '\\') {
            return bad(p, i,
                       (unsigned char)t[i] < 0x20 ? "a control character inside a string"
                                                  : "bytes that are not UTF-8");
        }
        uint32_t cp = 0;
        const size_t len = kvs__json_escape(t + i, n - i, &cp);
        if (len == 0 || kvs__json_surrogate(cp)) {
            return bad(p, i, "an escape that is none, or half of a surrogate pair");
        }
        escaped = true;
        to += own ? kvs__utf8_put(cp, own + to) : 0;
        i += len;
    }
    p->l.at = i + 1;
    return push(p, KVS__JSON_STRING, begin, (own ? to : i) - begin, escaped && !own);
}

static kvs_status parse_word(parser *p)
{
    static const struct {
        const char *text;
        kvs__json_type type;
    } words[] = {{"null", KVS__JSON_NULL}, {"true", KVS__JSON_TRUE}, {"false", KVS__JSON_FALSE}};
    const size_t at = p->l.at;
    for (size_t i = 0; i < KVS_COUNT(words); i++) {
        if (kvs__json_word(&p->l, words[i].text)) {
            return push(p, words[i].type, at, p->l.at - at, false);
        }
    }
    return bad(p, at, at == p->l.n ? "expected a value, but the text ends" : "expected a value");
}

static kvs_status parse_number(parser *p)
{
    const size_t at = p->l.at;
    bool whole = false;
    const size_t len = kvs__json_number_len(p->l.text + at, p->l.n - at, &whole);
    if (len == 0) {
        return bad(p, at, "a number that is none");
    }
    p->l.at += len;
    return push(p, KVS__JSON_NUMBER, at, len, whole);
}

static kvs_status open_bracket(parser *p, kvs__json_type type)
{
    if (p->depth == KVS__JSON_DEPTH) {
        return kvs__fail(p->err, KVS_E_LIMIT, "engine",
                         "%s: line %zu, byte %zu: brackets inside brackets, deeper than %u",
                         p->d->what, p->l.line + 1, p->l.at - p->l.line_at + 1, KVS__JSON_DEPTH);
    }
    p->open[p->depth++] = (uint32_t)p->d->n_nodes;
    return push(p, type, p->l.at++, 0, false);
}

static kvs_status parse_value(parser *p)
{
    const char c = kvs__json_peek(&p->l);
    if (c == '"') {
        return parse_string(p);
    }
    if (c == '{' || c == '[') {
        return open_bracket(p, c == '{' ? KVS__JSON_OBJECT : KVS__JSON_ARRAY);
    }
    if (c == '-' || (c >= '0' && c <= '9')) {
        return parse_number(p);
    }
    /* Python writes infinity so; in files that it wrote, a number */
    const size_t at = p->l.at;
    if (c == 'I' && p->d->map.bytes > 0 && kvs__json_word(&p->l, "Infinity")) {
        return push(p, KVS__JSON_NUMBER, at, p->l.at - at, false);
    }
    return parse_word(p);
}

/* A member's name and colon. */
static kvs_status parse_name(parser *p)
{
    if (kvs__json_peek(&p->l) != '"') {
        return bad(p, p->l.at, "expected a name in quotes");
    }
    kvs_status st = parse_string(p);
    if (st != KVS_OK) {
        return st;
    }
    kvs__json_space(&p->l);
    if (kvs__json_peek(&p->l) != ':') {
        return bad(p, p->l.at, "expected a colon after a name");
    }
    p->l.at++;
    kvs__json_space(&p->l);
    return KVS_OK;
}

/* After an opening bracket (first) or a value: closes brackets and steps to the next value.
 * KVS_NO: the outermost value is complete. */
static kvs_status step(parser *p, bool first)
{
    for (;; first = false) {
        kvs__json_space(&p->l);
        if (p->depth == 0) {
            return p->l.at == p->l.n ? KVS_NO : bad(p, p->l.at, "text after the value");
        }
        kvs__json_node *around = &p->d->nodes[p->open[p->depth - 1]];
        const bool object = around->type == KVS__JSON_OBJECT;
        const char c = kvs__json_peek(&p->l);
        if (c == (object ? '}' : ']')) {
            around->next = (uint32_t)p->d->n_nodes;
            p->depth--;
            p->l.at++;
            continue;
        }
        if (!first) {
            if (c != ',') {
                return bad(p, p->l.at, "expected a comma or the closing bracket");
            }
            p->l.at++;
            kvs__json_space(&p->l);
        }
        around->len++;
        return object ? parse_name(p) : KVS_OK;
    }
}

static kvs_status parse(parser *p)
{
    kvs__json_space(&p->l);
    for (;;) {
        const uint32_t depth = p->depth;
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
    parser p = {.d = d, .err = err, .l = {.text = d->text, .n = d->n}};
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
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%s has %zu bytes", what, n);
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
    const size_t most = max_bytes < KVS__JSON_MOST ? max_bytes : KVS__JSON_MOST;
    if (d->n > most) {
        st = kvs__fail(err, KVS_E_LIMIT, "engine", "%s has %zu bytes, more than %zu", d->what, d->n,
                       most);
        kvs__json_free(d);
        return st;
    }
    return document_fill(d, out, err);
}

kvs_status kvs__json_adopt(kvs_ctx *ctx, char *text, size_t n, const char *what, kvs__json **out,
                           kvs_err *err)
{
    kvs__json *d = document_new(ctx, what);
    if (!d) {
        kvs__free(ctx, text, n + 1);
        return kvs__nomem(err, "engine", sizeof *d);
    }
    d->own = text;
    d->text = text;
    d->n = n;
    if (n > KVS__JSON_MOST) {
        kvs__json_free(d);
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%s has %zu bytes", what, n);
    }
    return document_fill(d, out, err);
}

/* Allocates and fills *text for the size of the open file. */
static kvs_status read_all(kvs_ctx *ctx, int fd, const char *path, size_t most, char **text,
                           size_t *n, kvs_err *err)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        return kvs__fail(err, KVS_E_IO, "engine", "%.150s is not a regular file", path);
    }
    if ((uint64_t)sb.st_size > most) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%.150s has %llu bytes, more than %zu", path,
                         (unsigned long long)sb.st_size, most);
    }
    const size_t size = (size_t)sb.st_size;
    char *own = kvs__alloc(ctx, size + 1);
    if (!own) {
        return kvs__nomem(err, "engine", size + 1);
    }
    for (size_t got = 0; got < size;) {
        const ssize_t r = read(fd, own + got, size - got);
        if (r > 0) {
            got += (size_t)r;
        } else if (r == 0 || errno != EINTR) {
            kvs__free(ctx, own, size + 1);
            return kvs__fail_errno(err, KVS_E_IO, r == 0 ? 0 : errno, "engine",
                                   "%.150s: %zu of %zu bytes read", path, got, size);
        }
    }
    own[size] = '\0';
    *text = own;
    *n = size;
    return KVS_OK;
}

kvs_status kvs__json_file(kvs_ctx *ctx, const char *path, size_t max_bytes, char **text, size_t *n,
                          kvs_err *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang */
    if (fd < 0) {
        return kvs__fail_errno(err, errno == ENOENT ? KVS_E_NOTFOUND : KVS_E_IO, errno, "engine",
                               "%.150s", path);
    }
    kvs_status st = read_all(ctx, fd, path, max_bytes, text, n, err);
    (void)close(fd);
    return st;
}

void kvs__json_drop_nodes(kvs__json *d)
{
    kvs__free(d->ctx, d->nodes, d->cap * sizeof *d->nodes);
    d->nodes = NULL;
    d->cap = 0;
    d->n_nodes = 0;
}

void kvs__json_free(kvs__json *d)
{
    if (!d) {
        return;
    }
    kvs__json_drop_nodes(d);
    if (d->own) {
        kvs__free(d->ctx, d->own, d->n + 1);
    }
    kvs__map_close(&d->map);
    kvs__free(d->ctx, d, sizeof *d);
}

/* ---- questions */

kvs__jval kvs__json_root(const kvs__json *doc)
{
    return doc && doc->n_nodes > 0 ? (kvs__jval){doc, 0} : (kvs__jval){NULL, 0};
}

const char *kvs__json_kind_name(kvs__jval v)
{
    static const char *const names[] = {"nothing", "null",   "false", "true",
                                        "number",  "string", "array", "object"};
    return names[kvs__json_kind(v)];
}

bool kvs__json_member(kvs__jval object, kvs__jval *name, kvs__jval *value)
{
    if (kvs__json_kind(object) != KVS__JSON_OBJECT) {
        return false;
    }
    uint32_t at = value->doc ? kvs__json_node_of(*value)->next : object.at + 1;
    if (at >= kvs__json_node_of(object)->next) {
        *name = *value = (kvs__jval){NULL, 0};
        return false;
    }
    *name = (kvs__jval){object.doc, at};
    *value = (kvs__jval){object.doc, at + 1};
    return true;
}

kvs__jval kvs__json_get(kvs__jval object, const char *name)
{
    kvs__jval found = (kvs__jval){NULL, 0};
    kvs__jval key = (kvs__jval){NULL, 0};
    kvs__jval value = (kvs__jval){NULL, 0};
    while (kvs__json_member(object, &key, &value)) {
        if (kvs__json_is(key, name)) {
            found = value;
        }
    }
    return found;
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
        i += kvs__json_escape(raw.ptr + i, raw.len - i, &cp); /* never 0: the parser has seen it */
        used += kvs__utf8_put(cp, dst + used);
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
            i += kvs__json_escape(raw.ptr + i, raw.len - i, &cp);
            len = kvs__utf8_put(cp, c);
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

bool kvs__json_whole(kvs__jval v, int64_t *out)
{
    return kvs__json_kind(v) == KVS__JSON_NUMBER && kvs__json_node_of(v)->mark &&
           kvs__json_int(v, out);
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
