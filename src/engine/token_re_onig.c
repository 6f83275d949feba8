/* SPDX-License-Identifier: MIT */
/* token_re_onig.c: what differs between Oniguruma, for which tokenizer.json files are written, and
 * PCRE2: white space and word characters, scripts, nested classes, the letters that may follow a
 * backslash, and when + after an interval is possessive. What can't be written for PCRE2 is
 * refused with its place; nothing is passed on that is not known to mean the same.
 *
 * Not imitated: under (?i), one character that folds to several ("ss" and U+00DF).
 */
#include "engine/token_re_onig.h"

#include <string.h>

#include "engine/token_re.h"
#include "engine/token_utf8.h"

#define NOT_WS                                                                                     \
    "\\x00-\\x08\\x0e-\\x1f!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"           \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"
/* Outside a class, and for \b, Oniguruma's table of Latin-1 has some more numbers as words. */
#define LONE_WORD KVS__RE_WORD "\\xb2\\xb3\\xb9\\xbc-\\xbe"
#define WORD      "[" LONE_WORD "]"

struct walk {
    kvs_ctx *ctx;
    kvs__text re;
    size_t at;
    kvs__tbuf *out;
    kvs_err *err;
};

static kvs_status refuse(const struct walk *w, const char *what)
{
    int n = w->re.len < 60 ? (int)w->re.len : 60;
    return kvs__fail(w->err, KVS_E_UNSUPPORTED, "engine",
                     "expression \"%.*s\": %s at byte %zu is not supported", n, w->re.ptr, what,
                     w->at);
}

static kvs_status put(struct walk *w, const char *text)
{
    return kvs__tbuf_put_z(w->ctx, w->out, text, w->err);
}

/* A byte of the pattern, or NUL past its end. */
static char peek(const struct walk *w, size_t ahead)
{
    return w->at + ahead < w->re.len ? w->re.ptr[w->at + ahead] : '\0';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f');
}

/* One character as it stands. */
static kvs_status copy(struct walk *w)
{
    size_t n = 1;
    uint32_t cp = 0;
    (void)kvs__utf8_step(w->re.ptr + w->at, w->re.len - w->at, &n, &cp);
    kvs_status st = kvs__tbuf_put(w->ctx, w->out, w->re.ptr + w->at, n, w->err);
    w->at += n;
    return st;
}

/* ---- properties */

/* What may stand in \p{...}; NULL: a script. */
static const char *property(const char *name)
{
    static const char *const known[][2] = {
        {"Alpha", "Alphabetic"}, {"Alphabetic", "Alphabetic"},
        {"Upper", "Uppercase"},  {"Uppercase", "Uppercase"},
        {"Lower", "Lowercase"},  {"Lowercase", "Lowercase"},
        {"Digit", "Nd"},         {"Letter", "L"},
        {"Number", "N"},         {"Punctuation", "P"},
        {"Symbol", "S"},         {"Mark", "M"},
        {"Separator", "Z"},      {"Other", "C"},
        {"Any", "Any"},
    };
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (strcmp(known[i][0], name) == 0) {
            return known[i][1];
        }
    }
    return NULL;
}

/* After \p or \P, at the brace. */
static kvs_status put_property(struct walk *w, bool negated)
{
    char name[40];
    size_t n = 0;
    if (peek(w, 0) != '{') {
        return refuse(w, "\\p without a brace");
    }
    w->at++;
    if (peek(w, 0) == '^') {
        negated = !negated;
        w->at++;
    }
    while (n + 1 < sizeof name && (is_letter(peek(w, 0)) || peek(w, 0) == '_')) {
        name[n++] = peek(w, 0);
        w->at++;
    }
    name[n] = '\0';
    if (n == 0 || peek(w, 0) != '}') {
        return refuse(w, "property name");
    }
    const char *posix[] = {"Space", "Word",  "Punct",  "Alnum", "Blank",   "Cntrl",
                           "Graph", "Print", "XDigit", "ASCII", "Assigned"};
    for (size_t i = 0; i < KVS_COUNT(posix); i++) {
        if (strcmp(posix[i], name) == 0) {
            return refuse(w, "POSIX property");
        }
    }
    w->at++;
    const char *to = property(name);
    kvs_status st = put(w, negated ? "\\P{" : "\\p{");
    if (st == KVS_OK && n > 2 && !to) {
        st = put(w, "sc:"); /* PCRE2 alone would take the script's extensions in */
    }
    if (st == KVS_OK) {
        st = put(w, to ? to : name);
    }
    return st == KVS_OK ? put(w, "}") : st;
}

/* ---- escapes */

/* \xHH, \x{H...}, \uHHHH: after the letter. */
static kvs_status put_code(struct walk *w, char letter)
{
    uint32_t cp = 0;
    const bool brace = letter == 'x' && peek(w, 0) == '{';
    w->at += brace;
    const unsigned want = brace ? 6 : letter == 'x' ? 2 : 4;
    unsigned n = 0;
    while (n < want && is_hex(peek(w, 0))) {
        char c = peek(w, 0);
        cp = cp << 4 | (uint32_t)(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
        w->at++;
        n++;
    }
    if (n == 0 || (!brace && n < want) || (brace && peek(w, 0) != '}') || cp > 0x10ffff ||
        (cp >= 0xd800 && cp < 0xe000) || (letter == 'x' && !brace && cp >= 0x80)) {
        return refuse(w, "character code");
    }
    w->at += brace;
    char text[16] = "\\x{";
    size_t used = 3;
    for (int shift = 20; shift >= 0; shift -= 4) {
        text[used++] = "0123456789abcdef"[cp >> shift & 15];
    }
    text[used++] = '}';
    text[used] = '\0';
    return put(w, text);
}

/* Escapes that are one character in and outside a class; KVS_NO: another kind. After the
 * backslash. */
static kvs_status put_char_escape(struct walk *w)
{
    const char c = peek(w, 0);
    if (!is_letter(c) && !is_digit(c) && c != '\0') {
        if ((unsigned char)c < 0x80) {
            kvs_status st = put(w, "\\");
            return st == KVS_OK ? copy(w) : st;
        }
        return copy(w);
    }
    w->at++;
    switch (c) {
    case 'n':
        return put(w, "\\n");
    case 'r':
        return put(w, "\\r");
    case 't':
        return put(w, "\\t");
    case 'f':
        return put(w, "\\f");
    case 'a':
        return put(w, "\\a");
    case 'e':
        return put(w, "\\e");
    case 'v':
        return put(w, "\\x0b");
    case 'x':
    case 'u':
        return put_code(w, c);
    default:
        w->at--;
        return KVS_NO;
    }
}

static kvs_status put_escape(struct walk *w)
{
    w->at++;
    kvs_status st = put_char_escape(w);
    if (st != KVS_NO) {
        return st;
    }
    const char c = peek(w, 0);
    w->at++;
    switch (c) {
    case 's':
        return put(w, "[" KVS__RE_WS "]");
    case 'S':
        return put(w, "[^" KVS__RE_WS "]");
    case 'd':
        return put(w, "\\p{Nd}");
    case 'D':
        return put(w, "\\P{Nd}");
    case 'w':
        return put(w, WORD);
    case 'W':
        return put(w, "[^" LONE_WORD "]");
    case 'h':
        return put(w, "[0-9A-Fa-f]");
    case 'H':
        return put(w, "[^0-9A-Fa-f]");
    case 'b':
        return put(w, "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))");
    case 'B':
        return put(w, "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))");
    case 'A':
        return put(w, "\\A");
    case 'z':
        return put(w, "\\z");
    case 'Z':
        return put(w, "\\Z");
    case 'p':
    case 'P':
        return put_property(w, c == 'P');
    default:
        w->at--;
        return refuse(w, "escape");
    }
}

/* ---- classes */

static kvs_status put_class_escape(struct walk *w, bool *set)
{
    w->at++;
    kvs_status st = put_char_escape(w);
    *set = st == KVS_NO;
    if (st != KVS_NO) {
        return st;
    }
    const char c = peek(w, 0);
    w->at++;
    switch (c) {
    case 's':
        return put(w, KVS__RE_WS);
    case 'S':
        return put(w, NOT_WS);
    case 'd':
        return put(w, "\\p{Nd}");
    case 'D':
        return put(w, "\\P{Nd}");
    case 'w':
        return put(w, KVS__RE_WORD);
    case 'h':
        return put(w, "0-9A-Fa-f");
    case 'p':
    case 'P':
        return put_property(w, c == 'P');
    default:
        w->at--;
        return refuse(w, "escape in a class");
    }
}

static bool starts_set(const struct walk *w, size_t ahead)
{
    return peek(w, ahead) == '\\' && peek(w, ahead + 1) != '\0' &&
           strchr("sSdDwWhHpP", peek(w, ahead + 1));
}

/* A dash beside a set, or at an end, is a dash. */
static kvs_status put_dash(struct walk *w, bool after_set)
{
    const char next = peek(w, 1);
    if (after_set || next == ']' || next == '[' || starts_set(w, 1)) {
        w->at++;
        return put(w, "\\-");
    }
    return copy(w);
}

/* Behind an opening bracket; a class inside a class is emptied into it (depth counts them). */
static kvs_status put_class(struct walk *w)
{
    kvs_status st = put(w, "[");
    unsigned depth = 1;
    bool set = true; /* a dash here is a dash */
    w->at++;
    if (peek(w, 0) == '^') {
        st = st == KVS_OK ? copy(w) : st;
    }
    if (peek(w, 0) == ']') {
        return refuse(w, "a class that starts with ]");
    }
    while (st == KVS_OK) {
        const char c = peek(w, 0);
        if (c == '\0' && w->at >= w->re.len) {
            return refuse(w, "an open class");
        }
        if (c == ']') {
            w->at++;
            set = true;
            if (--depth == 0) {
                return put(w, "]");
            }
        } else if (c == '[') {
            if (peek(w, 1) == '^' || peek(w, 1) == ':' || peek(w, 1) == ']') {
                return refuse(w, "a class of this kind in a class");
            }
            w->at++;
            depth++;
            set = true;
        } else if (c == '&' && peek(w, 1) == '&') {
            return refuse(w, "intersection of classes");
        } else if (c == '\\') {
            st = put_class_escape(w, &set);
        } else if (c == '-') {
            st = put_dash(w, set);
            set = false;
        } else {
            st = copy(w);
            set = false;
        }
    }
    return st;
}

/* ---- groups and repetition */

static kvs_status put_group(struct walk *w)
{
    static const char *const known[] = {"(?:", "(?=",  "(?!",   "(?<=", "(?<!",
                                        "(?>", "(?i:", "(?-i:", "(?i)"};
    if (peek(w, 1) == '*') {
        return refuse(w, "(*");
    }
    if (peek(w, 1) != '?') {
        w->at++;
        return put(w, "(?:");
    }
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        const size_t n = strlen(known[i]);
        const bool open = strcmp(known[i], "(?i)") == 0; /* elsewhere its reach differs */
        if (w->re.len - w->at >= n && memcmp(w->re.ptr + w->at, known[i], n) == 0 &&
            (!open || w->at == 0)) {
            w->at += n;
            return put(w, known[i]);
        }
    }
    return refuse(w, "group");
}

static kvs_status put_interval(struct walk *w)
{
    size_t n = 1;
    bool comma = false;
    while (is_digit(peek(w, n)) || (peek(w, n) == ',' && !comma && n > 1)) {
        comma = comma || peek(w, n) == ',';
        n++;
    }
    if (n == 1 || peek(w, n) != '}') {
        return refuse(w, "a brace that is no interval");
    }
    if (peek(w, n + 1) == '+' || (peek(w, n + 1) == '?' && !comma)) {
        w->at += n + 1;
        return refuse(w, "a sign after an interval");
    }
    kvs_status st = kvs__tbuf_put(w->ctx, w->out, w->re.ptr + w->at, n + 1, w->err);
    w->at += n + 1;
    return st;
}

/* \s+$ would be tried at every place in a run of white space, in quadratic time; the first match
 * starts where a run does. */
static bool is_tail(kvs__text re)
{
    return re.len == 4 && memcmp(re.ptr, "\\s+$", 4) == 0;
}

kvs_status kvs__re_translate(kvs_ctx *ctx, kvs__text pattern, kvs__tbuf *out, kvs_err *err)
{
    struct walk w = {ctx, pattern, 0, out, err};
    kvs_status st = is_tail(pattern) ? put(&w, "(?<![" KVS__RE_WS "])") : KVS_OK;
    while (st == KVS_OK && w.at < pattern.len) {
        switch (peek(&w, 0)) {
        case '\\':
            st = put_escape(&w);
            break;
        case '[':
            st = put_class(&w);
            break;
        case '(':
            st = put_group(&w);
            break;
        case '{':
            st = put_interval(&w);
            break;
        case '\0':
            st = refuse(&w, "NUL");
            break;
        default:
            st = copy(&w);
        }
    }
    return st;
}
