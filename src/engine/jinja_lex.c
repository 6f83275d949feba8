/* SPDX-License-Identifier: MIT */
/* jinja_lex.c: a template's text to tokens, with the whitespace rules of trim_blocks (the newline
 * after a block tag goes) and lstrip_blocks (so does the space before one that begins its line). */
#include "engine/jinja.h"
#include "engine/json_number.h"
#include "engine/token_utf8.h"

typedef struct lexer {
    kvs__jheap *h;
    const char *p; /* newlines made one, well-formed, terminated */
    size_t n, i;
    kvs__jtok *tok;
    size_t n_tok, cap;
    bool line_start; /* what was read before ended a line */
    char open[64];   /* brackets */
    size_t n_open;
} lexer;

static kvs__jtok *add(lexer *l, kvs__jtok_type type)
{
    if (l->n_tok == l->cap) {
        size_t cap = l->cap > 0 ? 2 * l->cap : 128;
        kvs__jtok *t = kvs__jalloc_n(l->h, cap, sizeof *t);
        if (l->n_tok > 0) {
            memcpy(t, l->tok, l->n_tok * sizeof *t);
        }
        l->tok = t;
        l->cap = cap;
    }
    kvs__jtok *t = &l->tok[l->n_tok++];
    memset(t, 0, sizeof *t);
    t->type = type;
    t->line = l->h->line;
    return t;
}

/* Moves to `to`, counting lines. */
static void move(lexer *l, size_t to)
{
    for (; l->i < to; l->i++) {
        l->h->line += l->p[l->i] == '\n';
    }
}

static bool at(const lexer *l, size_t i, const char *what)
{
    return strncmp(l->p + i, what, strlen(what)) == 0;
}

static size_t skip_space(const lexer *l, size_t i)
{
    while (i < l->n) {
        size_t k = i;
        if (!kvs__jspace(kvs__jnext(l->p, &k))) {
            break;
        }
        i = k;
    }
    return i;
}

static size_t strip_right(const lexer *l, size_t from, size_t to)
{
    while (to > from) {
        size_t k = kvs__jprev(l->p, to);
        size_t j = k;
        if (!kvs__jspace(kvs__jnext(l->p, &j))) {
            break;
        }
        to = k;
    }
    return to;
}

/* The text before a tag that begins at `to` with this sign. */
static void put_data(lexer *l, size_t from, size_t to, char sign, bool is_block)
{
    size_t end = to;
    if (sign == '-') {
        end = strip_right(l, from, to);
    } else if (sign != '+' && is_block) {
        size_t line = to;
        while (line > from && l->p[line - 1] != '\n') {
            line--;
        }
        if ((line > from || l->line_start) && strip_right(l, line, to) == line) {
            end = line;
        }
    }
    if (end > from) {
        add(l, T_DATA)->val = kvs__jtext(l->h, l->p + from, end - from);
    }
}

/* "{% raw %}" at i (after the sign)? The offset behind "raw", 0 if not. */
static size_t word_at(const lexer *l, size_t i, const char *word)
{
    i = skip_space(l, i);
    if (!at(l, i, word)) {
        return 0;
    }
    return skip_space(l, i + strlen(word));
}

static char sign_at(const lexer *l, size_t i)
{
    return l->p[i] == '-' || l->p[i] == '+' ? l->p[i] : '\0';
}

/* Behind the end of a block tag or comment at i (at its sign); 0: it is none. */
static size_t tag_end(const lexer *l, size_t i, const char *end)
{
    char sign = sign_at(l, i);
    size_t k = i + (sign != '\0');
    if (!at(l, k, end)) {
        return 0;
    }
    k += strlen(end);
    return sign == '-' ? skip_space(l, k) : sign != '+' && l->p[k] == '\n' ? k + 1 : k;
}

static void comment(lexer *l)
{
    uint32_t line = l->h->line;
    size_t start = l->i + 2 + (sign_at(l, l->i + 2) != '\0');
    for (size_t i = start; i + 1 < l->n; i++) {
        size_t end = 0;
        if (l->p[i] == '#' || l->p[i] == '-' || l->p[i] == '+') {
            end = tag_end(l, i, "#}");
        }
        if (end > 0) {
            move(l, end);
            l->line_start = l->p[end - 1] == '\n';
            return;
        }
    }
    l->h->line = line;
    kvs__jfail(l->h, KVS_E_FORMAT, "a comment without its end \"#}\"");
}

/* True if a raw block began at l->i and was read whole. */
static bool raw(lexer *l, size_t from)
{
    char sign = sign_at(l, l->i + 2);
    size_t i = word_at(l, l->i + 2 + (sign != '\0'), "raw");
    if (i == 0) {
        return false;
    }
    size_t body = 0;
    if (at(l, i, "%}")) {
        body = i + 2;
    } else if (at(l, i, "-%}")) {
        body = skip_space(l, i + 3);
    } else {
        return false;
    }
    put_data(l, from, l->i, sign, true);
    move(l, body);
    l->line_start = l->p[body - 1] == '\n';
    for (i = body; i + 1 < l->n; i++) {
        if (!at(l, i, "{%")) {
            continue;
        }
        char s = sign_at(l, i + 2);
        size_t k = word_at(l, i + 2 + (s != '\0'), "endraw");
        size_t end = k > 0 ? tag_end(l, k, "%}") : 0;
        if (end > 0) {
            put_data(l, body, i, s, true);
            move(l, end);
            l->line_start = l->p[end - 1] == '\n';
            return true;
        }
    }
    kvs__jfail(l->h, KVS_E_FORMAT, "a raw block without its end");
}

/* ---- inside tags */

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static unsigned digit(char c)
{
    return c >= '0' && c <= '9'   ? (unsigned)(c - '0')
           : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a' + 10)
           : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A' + 10)
                                  : 99;
}

static size_t digits(const lexer *l, size_t i)
{
    while (digit(l->p[i]) < 10 || (l->p[i] == '_' && digit(l->p[i + 1]) < 10)) {
        i++;
    }
    return i;
}

static kvs__val based(lexer *l, size_t from, unsigned base)
{
    int64_t x = 0;
    size_t i = from;
    for (; digit(l->p[i]) < base || (l->p[i] == '_' && digit(l->p[i + 1]) < base); i++) {
        if (l->p[i] == '_') {
            continue;
        }
        if (__builtin_mul_overflow(x, (int64_t)base, &x) ||
            __builtin_add_overflow(x, (int64_t)digit(l->p[i]), &x)) {
            kvs__jfail(l->h, KVS_E_UNSUPPORTED, "an integer beyond 64 bits");
        }
    }
    move(l, i);
    return kvs__jint(x);
}

static void number(lexer *l)
{
    size_t i = digits(l, l->i);
    bool real = false;
    if (l->p[l->i] == '0' && strchr("xXoObB", l->p[l->i + 1]) && l->p[l->i + 1]) {
        char c = (char)(l->p[l->i + 1] | 0x20);
        add(l, T_NUMBER)->val = based(l, l->i + 2, c == 'x' ? 16 : c == 'o' ? 8 : 2);
        return;
    }
    bool after_dot = l->i > 0 && l->p[l->i - 1] == '.';
    if (!after_dot && l->p[i] == '.' && digit(l->p[i + 1]) < 10) {
        real = true;
        i = digits(l, i + 1);
    }
    if (!after_dot && (l->p[i] == 'e' || l->p[i] == 'E')) {
        size_t k = i + 1 + (l->p[i + 1] == '-' || l->p[i + 1] == '+');
        if (digit(l->p[k]) < 10) {
            real = true;
            i = digits(l, k);
        }
    }
    if (!real) {
        add(l, T_NUMBER)->val = based(l, l->i, 10);
        return;
    }
    char text[400];
    size_t n = 0;
    for (size_t k = l->i; k < i; k++) {
        if (l->p[k] != '_' && n + 1 < sizeof text) {
            text[n++] = l->p[k];
        }
    }
    add(l, T_NUMBER)->val = kvs__jfloat(kvs__json_number_double(text, n));
    move(l, i);
}

static uint32_t hex(lexer *l, size_t *i, unsigned n)
{
    uint32_t x = 0;
    for (unsigned k = 0; k < n; k++, (*i)++) {
        unsigned d = digit(l->p[*i]);
        if (d > 15) {
            kvs__jfail(l->h, KVS_E_FORMAT, "an escape of a string needs %u hexadecimal digits", n);
        }
        x = x << 4 | d;
    }
    if (x > 0x10ffff || (x >= 0xd800 && x < 0xe000)) {
        kvs__jfail(l->h, KVS_E_UNSUPPORTED, "the character U+%04X in a string", x);
    }
    return x;
}

/* Python's escapes; *i is behind the backslash. An unknown one keeps it. */
static void escape(lexer *l, kvs__jsb *b, size_t *i)
{
    static const char from[] = "\\'\"abfnrtv";
    static const char to[] = "\\'\"\a\b\f\n\r\t\v";
    char c = l->p[*i];
    const char *k = c ? strchr(from, c) : NULL;
    if (k) {
        kvs__jsb_put(b, to + (k - from), 1);
        (*i)++;
    } else if (c == '\n') {
        (*i)++;
    } else if (c >= '0' && c <= '7') {
        uint32_t x = 0;
        for (int d = 0; d < 3 && digit(l->p[*i]) < 8; d++, (*i)++) {
            x = x << 3 | digit(l->p[*i]);
        }
        kvs__jsb_cp(b, x);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        (*i)++;
        kvs__jsb_cp(b, hex(l, i, c == 'x' ? 2 : c == 'u' ? 4 : 8));
    } else if (c == 'N') {
        kvs__jfail(l->h, KVS_E_UNSUPPORTED, "\\N{...} in a string");
    } else {
        kvs__jsb_put(b, "\\", 1);
    }
}

static void string(lexer *l)
{
    char quote = l->p[l->i];
    kvs__jsb b = {.h = l->h};
    size_t i = l->i + 1;
    while (i < l->n && l->p[i] != quote) {
        size_t from = i;
        while (i < l->n && l->p[i] != quote && l->p[i] != '\\') {
            i++;
        }
        kvs__jsb_put(&b, l->p + from, i - from);
        if (l->p[i] == '\\' && ++i < l->n) {
            escape(l, &b, &i);
        }
    }
    if (i >= l->n) {
        kvs__jfail(l->h, KVS_E_FORMAT, "a string without its end");
    }
    kvs__jtok *t = add(l, T_STR);
    t->val = kvs__jsb_done(&b);
    move(l, i + 1);
}

static int operator_at(const lexer *l, size_t *len)
{
    static const struct {
        char text[3];
        int op;
    } two[] = {{"//", J_FLOORDIV}, {"**", J_POW}, {"==", J_EQ},
               {"!=", J_NE},       {"<=", J_LE},  {">=", J_GE}};
    for (size_t i = 0; i < KVS_COUNT(two); i++) {
        if (at(l, l->i, two[i].text)) {
            *len = 2;
            return two[i].op;
        }
    }
    *len = 1;
    char c = l->p[l->i];
    return c && strchr("+-/*%~[](){}<>=.:|,;", c) ? c : 0;
}

static void operator(lexer *l)
{
    size_t len = 0;
    int op = operator_at(l, &len);
    if (op == 0) {
        kvs__jfail(l->h, KVS_E_FORMAT, "unexpected character 0x%02x in a tag",
                   (unsigned char)l->p[l->i]);
    }
    if (op == '(' || op == '[' || op == '{') {
        if (l->n_open == sizeof l->open) {
            kvs__jfail(l->h, KVS_E_LIMIT, "brackets nested more than %zu deep", sizeof l->open);
        }
        l->open[l->n_open++] = op == '(' ? ')' : op == '[' ? ']' : '}';
    } else if (op == ')' || op == ']' || op == '}') {
        if (l->n_open == 0 || l->open[l->n_open - 1] != op) {
            kvs__jfail(l->h, KVS_E_FORMAT, "unexpected \"%c\"", op);
        }
        l->n_open--;
    }
    add(l, T_OP)->op = op;
    move(l, l->i + len);
}

/* The end of a variable or block tag at l->i? Behind it, or 0. */
static size_t close_at(const lexer *l, bool block)
{
    if (l->n_open > 0) {
        return 0;
    }
    if (block) {
        return tag_end(l, l->i, "%}");
    }
    if (at(l, l->i, "-}}")) {
        return skip_space(l, l->i + 3);
    }
    return at(l, l->i, "}}") ? l->i + 2 : 0;
}

static void tag(lexer *l, bool block)
{
    uint32_t line = l->h->line;
    add(l, block ? T_BLOCK_BEGIN : T_VAR_BEGIN);
    move(l, l->i + 2 + (sign_at(l, l->i + 2) != '\0'));
    l->n_open = 0;
    for (;;) {
        move(l, skip_space(l, l->i));
        size_t end = l->i < l->n ? close_at(l, block) : 0;
        if (end > 0) {
            add(l, block ? T_BLOCK_END : T_VAR_END);
            move(l, end);
            l->line_start = l->p[end - 1] == '\n';
            return;
        }
        if (l->i >= l->n) {
            l->h->line = line;
            kvs__jfail(l->h, KVS_E_FORMAT, "a tag without its end");
        }
        char c = l->p[l->i];
        if (c == '"' || c == '\'') {
            string(l);
        } else if (digit(c) < 10) {
            number(l);
        } else if (is_name_char(c)) {
            size_t from = l->i;
            while (is_name_char(l->p[l->i])) {
                l->i++;
            }
            add(l, T_NAME)->val = kvs__jtext(l->h, l->p + from, l->i - from);
        } else {
            operator(l);
        }
    }
}

/* ---- outside of tags */

static void root(lexer *l)
{
    size_t from = l->i;
    for (;;) {
        const char *p = strchr(l->p + l->i, '{');
        if (!p || !p[1]) {
            move(l, l->n);
            put_data(l, from, l->n, '+', false);
            return;
        }
        char kind = p[1];
        if (kind != '%' && kind != '#' && kind != '{') {
            move(l, (size_t)(p - l->p) + 1);
            continue;
        }
        move(l, (size_t)(p - l->p));
        if (kind == '%' && raw(l, from)) {
            from = l->i;
            continue;
        }
        /* "{%-" and "{%+", but "{%-%}" ends at once: the sign belongs to the beginning */
        put_data(l, from, l->i, sign_at(l, l->i + 2), kind != '{');
        if (kind == '#') {
            comment(l);
        } else {
            tag(l, kind == '%');
        }
        from = l->i;
    }
}

/* One newline for all forms of it, and none at the very end. */
static void normalise(lexer *l, const char *text, size_t n)
{
    char *p = kvs__jalloc(l->h, n + 4); /* what looks ahead reads zeros */
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            i += i + 1 < n && text[i + 1] == '\n';
            p[m++] = '\n';
        } else {
            p[m++] = text[i];
        }
    }
    if (m > 0 && p[m - 1] == '\n') {
        p[--m] = '\0';
    }
    l->p = p;
    l->n = m;
}

kvs__jtok *kvs__jlex(kvs__jheap *h, const char *text, size_t n)
{
    lexer l = {.h = h, .line_start = true};
    size_t valid = kvs__utf8_valid(text, n);
    if (valid != n || memchr(text, 0, n)) {
        kvs__jfail(h, KVS_E_FORMAT, "not UTF-8 text: byte 0x%02x at offset %zu",
                   valid != n ? (unsigned char)text[valid] : 0, valid != n ? valid : 0);
    }
    h->line = 1;
    normalise(&l, text, n);
    root(&l);
    add(&l, T_EOF);
    return l.tok;
}
