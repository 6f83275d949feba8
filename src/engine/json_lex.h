/* SPDX-License-Identifier: MIT */
/* json_lex.h: the words of a JSON text, for json.c, which makes nodes of them, and jinja_json.c,
 * which makes values of templates of them: places, white space, stretches of strings, escapes.
 * Numbers are in json_number.h. Nothing is allocated, and no byte beyond the text is read. */
#ifndef KVS_ENGINE_JSON_LEX_H
#define KVS_ENGINE_JSON_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/token_utf8.h"

/* Lines are counted in white space alone: a string holds no line break. So a place is known even
 * where strings before it were decoded over their own text. */
typedef struct kvs__json_lex {
    const char *text;
    size_t n;
    size_t at;
    size_t line;    /* of `at`, from 0 */
    size_t line_at; /* where it begins */
} kvs__json_lex;

/* '\0' at the end. */
static inline char kvs__json_peek(const kvs__json_lex *l)
{
    return l->at < l->n ? l->text[l->at] : '\0';
}

static inline void kvs__json_space(kvs__json_lex *l)
{
    for (; l->at < l->n; l->at++) {
        const char c = l->text[l->at];
        if (c == '\n') {
            l->line++;
            l->line_at = l->at + 1;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

/* Steps over `word` where the text goes on with it. */
static inline bool kvs__json_word(kvs__json_lex *l, const char *word)
{
    const size_t n = strlen(word);
    if (l->n - l->at < n || memcmp(l->text + l->at, word, n) != 0) {
        return false;
    }
    l->at += n;
    return true;
}

/* Inside a string, from `at` on: the first byte that does not stand for itself, which is a quote, a
 * backslash, a control character or ill-formed UTF-8; n: there is none. */
static inline size_t kvs__json_run(const char *s, size_t n, size_t at)
{
    while (at < n) {
        const unsigned char c = (unsigned char)s[at];
        size_t len = 1;
        if (c >= 0x80) {
            uint32_t cp = 0;
            if (kvs__utf8_step(s + at, n - at, &len, &cp) != KVS__UTF8_OK) {
                break;
            }
        } else if (c == '"' || c == '\\' || c < 0x20) {
            break;
        }
        at += len;
    }
    return at;
}

/* Bytes of the escape at s, which is a backslash; 0: it is none. *cp is its character, a surrogate
 * where only one half of a pair is there. */
size_t kvs__json_escape(const char *s, size_t left, uint32_t *cp);

static inline bool kvs__json_surrogate(uint32_t cp)
{
    return cp >= 0xd800 && cp <= 0xdfff;
}

#endif
