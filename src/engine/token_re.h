/* SPDX-License-Identifier: MIT */
/* token_re.h: the regular expressions of tokenizer.json files: written for Oniguruma, run by PCRE2.
 */
#ifndef KVS_ENGINE_TOKEN_RE_H
#define KVS_ENGINE_TOKEN_RE_H

#include "engine/token.h"

typedef struct kvs__re kvs__re;
typedef struct kvs__re_match kvs__re_match;

typedef enum kvs__re_syntax {
    KVS__RE_LITERAL, /* the text itself; empty matches are between all characters */
    KVS__RE_ONIG,
    KVS__RE_PCRE /* ours */
} kvs__re_syntax;

/* White space as Unicode's White_Space, and word characters as its annex on regular expressions
 * has them; for the inside of a class. */
#define KVS__RE_WS                                                                                 \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define KVS__RE_WORD                                                                               \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"                    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

/* KVS_E_UNSUPPORTED names what can't be translated. A literal's text is borrowed. */
kvs_status kvs__re_new(kvs_ctx *ctx, kvs__text pattern, kvs__re_syntax syntax, kvs__re **out,
                       kvs_err *err);
void kvs__re_free(kvs__re *re); /* NULL is fine */

kvs__re_match *kvs__re_match_new(kvs_ctx *ctx); /* NULL: out of memory */
void kvs__re_match_free(kvs__re_match *m);      /* NULL is fine */

/* A walk over the matches in a text, from left to right. An empty match directly behind another
 * match does not count. */
typedef struct kvs__re_walk {
    const kvs__re *re;
    kvs__re_match *m;
    kvs__text text;
    size_t at;
    size_t last; /* end of the last match; SIZE_MAX: none yet */
} kvs__re_walk;
kvs__re_walk kvs__re_start(const kvs__re *re, kvs__re_match *m, kvs__text text);
/* KVS_NO: no more. */
kvs_status kvs__re_next(kvs__re_walk *walk, size_t *from, size_t *to, kvs_err *err);

#endif
