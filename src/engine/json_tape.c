/* SPDX-License-Identifier: MIT */
/* json_tape.c: see json_tape.h. Strict: RFC 8259, UTF-8 only, no lone surrogates, nothing after the
 * value. The parser keeps its own stack, so depth costs no C stack.
 *
 * I1  A string's unescaped bytes are never more than its escaped ones, so they are written where it
 *     starts and never overtake the reading.
 * I2  nodes[i].next > i, and every walk by next ends at n_nodes.
 */
#include "engine/json_tape.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/token_utf8.h"

struct parser {
    kvs__tape *j;
    size_t at;
    uint32_t stack[KVS__TAPE_DEPTH_MAX];
    unsigned depth;
    kvs_err *err;
};

static kvs_status bad(const struct parser *p, const char *what)
{
    return kvs__fail(p->err, KVS_E_FORMAT, "engine", "%s: %s at byte %zu", p->j->name, what, p->at);
}

static void skip_space(struct parser *p)
{
    const char *t = p->j->text;
    while (t[p->at] == ' ' || t[p->at] == '\n' || t[p->at] == '\t' || t[p->at] == '\r') {
        p->at++; /* the text ends with a NUL */
    }
}

static kvs_status add_node(struct parser *p, kvs__ttype type, size_t at, size_t len)
{
    kvs__tape *j = p->j;
    if (!j->nodes || j->n_nodes == j->cap_nodes) {
        size_t cap = j->cap_nodes > 0 ? j->cap_nodes * 2 : 64;
        kvs__tnode *nodes = kvs__alloc(j->ctx, cap * sizeof *nodes);
        if (!nodes) {
            return kvs__nomem(p->err, "engine", cap * sizeof *nodes);
        }
        if (j->nodes) {
            memcpy(nodes, j->nodes, j->n_nodes * sizeof *nodes);
            kvs__free(j->ctx, j->nodes, j->cap_nodes * sizeof *nodes);
        }
        j->nodes = nodes;
        j->cap_nodes = cap;
    }
    uint32_t next = (uint32_t)j->n_nodes + 1;
    j->nodes[j->n_nodes++] = (kvs__tnode){(uint32_t)type, (uint32_t)at, (uint32_t)len, next};
    return KVS_OK;
}

/* ---- strings */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex4(struct parser *p, uint32_t *out)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < 4; i++) {
        int d = hex_digit(p->j->text[p->at]);
        if (d < 0) {
            return false;
        }
        v = v << 4 | (uint32_t)d;
        p->at++;
    }
    *out = v;
    return true;
}

/* After "\u". */
static bool read_code(struct parser *p, uint32_t *cp)
{
    const char *t = p->j->text;
    uint32_t low = 0;
    if (!read_hex4(p, cp) || (*cp >= 0xdc00 && *cp < 0xe000)) {
        return false;
    }
    if (*cp < 0xd800 || *cp >= 0xe000) {
        return true;
    }
    if (t[p->at] != '\\' || t[p->at + 1] != 'u') {
        return false;
    }
    p->at += 2;
    if (!read_hex4(p, &low) || low < 0xdc00 || low >= 0xe000) {
        return false;
    }
    *cp = 0x10000 + ((*cp - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

/* After a backslash; *to moves on behind what was written. */
static bool read_escape(struct parser *p, size_t *to)
{
    static const char from[] = "\"\\/bfnrt";
    static const char into[] = "\"\\/\b\f\n\r\t";
    char c = p->j->text[p->at];
    const char *hit = c != 0 ? strchr(from, c) : NULL;
    if (hit) {
        p->at++;
        p->j->text[(*to)++] = into[hit - from];
        return true;
    }
    uint32_t cp = 0;
    if (c != 'u') {
        return false;
    }
    p->at++;
    if (!read_code(p, &cp)) {
        return false;
    }
    *to += kvs__utf8_put(cp, p->j->text + *to);
    return true;
}

static kvs_status read_string(struct parser *p)
{
    char *t = p->j->text;
    const size_t end = p->j->text_bytes;
    const size_t start = ++p->at;
    size_t to = start;
    while (t[p->at] != '"') {
        unsigned char c = (unsigned char)t[p->at];
        if (c == '\\') {
            p->at++;
            if (!read_escape(p, &to)) {
                return bad(p, "malformed escape");
            }
        } else if (c < 0x20) {
            return bad(p, p->at >= end ? "unfinished string" : "control character in a string");
        } else if (c < 0x80) {
            t[to++] = (char)c;
            p->at++;
        } else {
            size_t len = 0;
            uint32_t cp = 0;
            if (kvs__utf8_step(t + p->at, end - p->at, &len, &cp) != KVS__UTF8_OK) {
                return bad(p, "ill-formed UTF-8");
            }
            memmove(t + to, t + p->at, len);
            to += len;
            p->at += len;
        }
    }
    p->at++;
    return add_node(p, KVS__T_STRING, start, to - start);
}

/* ---- numbers and words */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool skip_digits(struct parser *p)
{
    size_t from = p->at;
    while (is_digit(p->j->text[p->at])) {
        p->at++;
    }
    return p->at > from;
}

static kvs_status read_number(struct parser *p)
{
    const char *t = p->j->text;
    const size_t from = p->at;
    p->at += t[p->at] == '-';
    const bool zero = t[p->at] == '0';
    if (!skip_digits(p) ||
        (zero && is_digit(t[p->at - 1]) && p->at - from > 1 + (t[from] == '-'))) {
        return bad(p, "malformed number");
    }
    if (t[p->at] == '.') {
        p->at++;
        if (!skip_digits(p)) {
            return bad(p, "malformed number");
        }
    }
    if (t[p->at] == 'e' || t[p->at] == 'E') {
        p->at++;
        p->at += t[p->at] == '-' || t[p->at] == '+';
        if (!skip_digits(p)) {
            return bad(p, "malformed number");
        }
    }
    return add_node(p, KVS__T_NUMBER, from, p->at - from);
}

static kvs_status read_word(struct parser *p)
{
    static const struct {
        const char *text;
        kvs__ttype type;
    } words[] = {{"null", KVS__T_NULL}, {"false", KVS__T_FALSE}, {"true", KVS__T_TRUE}};
    for (size_t i = 0; i < KVS_COUNT(words); i++) {
        size_t n = strlen(words[i].text);
        if (p->at + n <= p->j->text_bytes && memcmp(p->j->text + p->at, words[i].text, n) == 0) {
            p->at += n;
            return add_node(p, words[i].type, p->at - n, n);
        }
    }
    return bad(p, p->at >= p->j->text_bytes ? "the text ends early" : "no JSON value");
}

/* ---- nesting */

static kvs_status open_nest(struct parser *p, kvs__ttype type)
{
    if (p->depth == KVS__TAPE_DEPTH_MAX) {
        return kvs__fail(p->err, KVS_E_LIMIT, "engine", "%s: nested deeper than %u at byte %zu",
                         p->j->name, KVS__TAPE_DEPTH_MAX, p->at);
    }
    p->at++;
    p->stack[p->depth++] = (uint32_t)p->j->n_nodes;
    return add_node(p, type, p->at, 0);
}

static void close_nest(struct parser *p)
{
    p->at++;
    p->j->nodes[p->stack[--p->depth]].next = (uint32_t)p->j->n_nodes;
}

/* A key and its colon. */
static kvs_status read_key(struct parser *p)
{
    skip_space(p);
    if (p->j->text[p->at] != '"') {
        return bad(p, "no member name");
    }
    kvs_status st = read_string(p);
    if (st == KVS_OK) {
        skip_space(p);
        if (p->j->text[p->at] != ':') {
            return bad(p, "no colon");
        }
        p->at++;
    }
    return st;
}

/* What starts here: a plain value, or a nest, whose first value or end follows (*opened). */
static kvs_status read_value(struct parser *p, bool *opened)
{
    skip_space(p);
    const char c = p->j->text[p->at];
    *opened = c == '{' || c == '[';
    if (*opened) {
        return open_nest(p, c == '{' ? KVS__T_OBJECT : KVS__T_ARRAY);
    }
    if (c == '"') {
        return read_string(p);
    }
    return c == '-' || is_digit(c) ? read_number(p) : read_word(p);
}

/* After a value, or just inside a nest (fresh): closes what ends here; then a value must follow
 * unless nothing is open any more. */
static kvs_status advance(struct parser *p, bool fresh)
{
    while (p->depth > 0) {
        kvs__tnode *top = &p->j->nodes[p->stack[p->depth - 1]];
        const bool object = top->type == KVS__T_OBJECT;
        skip_space(p);
        const char c = p->j->text[p->at];
        if (c == (object ? '}' : ']')) {
            close_nest(p);
            fresh = false;
            continue;
        }
        if (!fresh) {
            if (c != ',') {
                return bad(p, object ? "no comma or }" : "no comma or ]");
            }
            p->at++;
        }
        top->len++;
        return object ? read_key(p) : KVS_OK;
    }
    return KVS_OK;
}

static kvs_status parse(kvs__tape *j, kvs_err *err)
{
    struct parser p = {.j = j, .err = err};
    do {
        bool opened = false;
        kvs_status st = read_value(&p, &opened);
        if (st == KVS_OK) {
            st = advance(&p, opened);
        }
        if (st != KVS_OK) {
            return st;
        }
    } while (p.depth > 0);
    skip_space(&p);
    return p.at < j->text_bytes ? bad(&p, "text after the value") : KVS_OK;
}

/* ---- documents */

kvs_status kvs__tape_file(kvs_ctx *ctx, const char *path, size_t max, char **out, size_t *n,
                          kvs_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return kvs__fail_errno(err, errno == ENOENT ? KVS_E_NOTFOUND : KVS_E_IO, errno, "engine",
                               "%.150s", path);
    }
    struct stat sb;
    kvs_status st = KVS_OK;
    char *text = NULL;
    size_t size = 0;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        st = kvs__fail(err, KVS_E_IO, "engine", "%.150s is not a regular file", path);
    } else if ((uint64_t)sb.st_size > max) {
        st = kvs__fail(err, KVS_E_LIMIT, "engine", "%.150s has %llu bytes; at most %zu", path,
                       (unsigned long long)sb.st_size, max);
    } else {
        size = (size_t)sb.st_size;
        text = kvs__alloc(ctx, size + 1);
        st = text ? KVS_OK : kvs__nomem(err, "engine", size + 1);
    }
    size_t got = 0;
    while (st == KVS_OK && text && got < size) {
        ssize_t r = read(fd, text + got, size - got);
        if (r > 0) {
            got += (size_t)r;
        } else if (r == 0 || errno != EINTR) {
            st = kvs__fail_errno(err, KVS_E_IO, r == 0 ? 0 : errno, "engine",
                                 "%.150s: %zu of %zu bytes read", path, got, size);
        }
    }
    (void)close(fd);
    if (st != KVS_OK || !text) {
        kvs__free(ctx, text, size + 1);
        return st;
    }
    text[size] = '\0';
    *out = text;
    *n = size;
    return KVS_OK;
}

/* Takes text over. */
static kvs_status parse_own(kvs_ctx *ctx, char *text, size_t n, const char *name, kvs__tape *out,
                            kvs_err *err)
{
    kvs__tape j = {.ctx = ctx, .text = text, .text_bytes = n, .name = name};
    kvs_status st = parse(&j, err);
    if (st != KVS_OK) {
        kvs__tape_free(&j);
        return st;
    }
    *out = j;
    return KVS_OK;
}

kvs_status kvs__tape_open(kvs_ctx *ctx, const char *path, const char *name, kvs__tape *out,
                          kvs_err *err)
{
    char *text = NULL;
    size_t n = 0;
    kvs_status st = kvs__tape_file(ctx, path, KVS__TAPE_BYTES_MAX, &text, &n, err);
    return st == KVS_OK ? parse_own(ctx, text, n, name, out, err) : st;
}

kvs_status kvs__tape_parse(kvs_ctx *ctx, const char *text, size_t n, const char *name,
                           kvs__tape *out, kvs_err *err)
{
    if (n > KVS__TAPE_BYTES_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%s: %zu bytes", name, n);
    }
    char *copy = kvs__alloc(ctx, n + 1);
    if (!copy) {
        return kvs__nomem(err, "engine", n + 1);
    }
    memcpy(copy, text, n);
    copy[n] = '\0';
    return parse_own(ctx, copy, n, name, out, err);
}

void kvs__tape_drop_nodes(kvs__tape *j)
{
    kvs__free(j->ctx, j->nodes, j->cap_nodes * sizeof *j->nodes);
    j->nodes = NULL;
    j->n_nodes = 0;
    j->cap_nodes = 0;
}

void kvs__tape_free(kvs__tape *j)
{
    if (j->text) {
        kvs__tape_drop_nodes(j);
        kvs__free(j->ctx, j->text, j->text_bytes + 1);
        j->text = NULL;
    }
}

/* ---- access */

kvs__ttype kvs__tape_type(const kvs__tape *j, uint32_t node)
{
    return node < j->n_nodes ? (kvs__ttype)j->nodes[node].type : KVS__T_NULL;
}

const char *kvs__tape_str(const kvs__tape *j, uint32_t node, size_t *n)
{
    if (kvs__tape_type(j, node) != KVS__T_STRING) {
        return NULL;
    }
    *n = j->nodes[node].len;
    return j->text + j->nodes[node].at;
}

bool kvs__tape_is(const kvs__tape *j, uint32_t node, const char *text)
{
    size_t n = 0;
    const char *s = kvs__tape_str(j, node, &n);
    return s && n == strlen(text) && memcmp(s, text, n) == 0;
}

uint32_t kvs__tape_get(const kvs__tape *j, uint32_t object, const char *key)
{
    uint32_t found = KVS__TAPE_NONE;
    if (kvs__tape_type(j, object) != KVS__T_OBJECT) {
        return found;
    }
    uint32_t at = object + 1;
    for (uint32_t i = 0; i < j->nodes[object].len; i++) {
        if (kvs__tape_is(j, at, key)) {
            found = at + 1;
        }
        at = j->nodes[at + 1].next;
    }
    return found;
}

bool kvs__tape_int(const kvs__tape *j, uint32_t node, int64_t *out)
{
    if (kvs__tape_type(j, node) != KVS__T_NUMBER) {
        return false;
    }
    const char *s = j->text + j->nodes[node].at;
    const size_t n = j->nodes[node].len;
    const bool minus = s[0] == '-';
    int64_t v = 0;
    for (size_t i = minus ? 1 : 0; i < n; i++) {
        if (!is_digit(s[i]) || v > (INT64_MAX - 9) / 10) {
            return false;
        }
        v = v * 10 + (s[i] - '0');
    }
    *out = minus ? -v : v;
    return true;
}

__extension__ typedef unsigned __int128 u128;

/* m / 10^places, correctly rounded; places <= 19. */
static double divide(uint64_t m, unsigned places)
{
    uint64_t ten = 1;
    for (unsigned i = 0; i < places; i++) {
        ten *= 10;
    }
    if (m == 0) {
        return 0;
    }
    unsigned shift = 64;
    u128 top = (u128)m << 64;
    while (top >> 127 == 0) {
        top <<= 1;
        shift++;
    }
    u128 q = top / ten; /* at least 64 bits */
    bool sticky = top % ten != 0;
    while (q >> 55 != 0) {
        sticky = sticky || (q & 1) != 0;
        q >>= 1;
        shift--;
    }
    uint64_t v = (uint64_t)q << 1 | (sticky ? 1 : 0); /* 55 bits and the sticky one: exact halves */
    double d = (double)v;                             /* rounds once, to nearest even */
    for (unsigned i = 0; i < shift + 1; i++) {
        d *= 0.5;
    }
    return d;
}

bool kvs__tape_double(const kvs__tape *j, uint32_t node, double *out)
{
    if (kvs__tape_type(j, node) != KVS__T_NUMBER) {
        return false;
    }
    const char *s = j->text + j->nodes[node].at;
    const size_t n = j->nodes[node].len;
    uint64_t m = 0;
    int64_t places = 0;
    size_t i = s[0] == '-' ? 1 : 0;
    bool dot = false;
    for (; i < n && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            dot = true;
        } else if (m < 1000000000000000000u) {
            m = m * 10 + (uint64_t)(s[i] - '0');
            places += dot;
        } else {
            places -= !dot; /* digits beyond the nineteenth are dropped */
        }
    }
    if (i < n) {
        const bool minus = s[++i] == '-';
        int64_t e = 0;
        for (i += s[i] == '-' || s[i] == '+'; i < n; i++) {
            e = e < 10000 ? e * 10 + (s[i] - '0') : e;
        }
        places += minus ? e : -e;
    }
    double d = places > 0 ? divide(m, places > 19 ? 19 : (unsigned)places) : (double)m;
    for (; places > 19 && d != 0; places--) {
        d /= 10;
    }
    for (; places < 0 && d < 1e308 && d != 0; places++) {
        d *= 10;
    }
    *out = s[0] == '-' ? -d : d;
    return d <= 1.7976931348623157e308;
}
