/* SPDX-License-Identifier: MIT */
/* token_re.c: compiled expressions and the walk over their matches.
 *
 * Oniguruma's ^ and $ are those of lines, and only LF ends a line. A limit on the matching steps
 * turns an expression that backtracks without end into an error.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "engine/token_pre.h"
#include "engine/token_re.h"
#include "engine/token_re_onig.h"
#include "engine/token_utf8.h"

#define PATTERN_MAX 16384u

struct kvs__re {
    kvs_ctx *ctx;
    kvs__text literal;
    pcre2_general_context *memory;
    pcre2_code *code; /* NULL: literal */
};

struct kvs__re_match {
    kvs_ctx *ctx;
    pcre2_general_context *memory;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

static kvs_status compile(kvs__re *re, const char *text, size_t n, kvs_err *err)
{
    re->memory = pcre2_general_context_create(kvs__pcre_alloc, kvs__pcre_free, re->ctx);
    pcre2_compile_context *cc = re->memory ? pcre2_compile_context_create(re->memory) : NULL;
    if (!cc) {
        return kvs__nomem(err, "engine", sizeof(void *));
    }
    (void)pcre2_set_newline(cc, PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE |
                             PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    int code = 0;
    PCRE2_SIZE at = 0;
    re->code = pcre2_compile((PCRE2_SPTR)text, n, options, &code, &at, cc);
    pcre2_compile_context_free(cc);
    if (!re->code) {
        if (code == PCRE2_ERROR_NOMEMORY || code == 121) {
            return kvs__nomem(err, "engine", sizeof(void *));
        }
        PCRE2_UCHAR why[100] = "";
        (void)pcre2_get_error_message(code, why, sizeof why);
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "expression \"%.*s\": %s",
                         n < 80 ? (int)n : 80, text, (const char *)why);
    }
    /* Without a just-in-time compiler the interpreter matches the same, more slowly. */
    (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    return KVS_OK;
}

kvs_status kvs__re_new(kvs_ctx *ctx, kvs__text pattern, kvs__re_syntax syntax, kvs__re **out,
                       kvs_err *err)
{
    if (pattern.len > PATTERN_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "an expression of %zu bytes; at most %u",
                         pattern.len, PATTERN_MAX);
    }
    kvs__re *re = kvs__calloc(ctx, 1, sizeof *re);
    if (!re) {
        return kvs__nomem(err, "engine", sizeof *re);
    }
    re->ctx = ctx;
    re->literal = pattern;
    kvs_status st = KVS_OK;
    if (syntax == KVS__RE_ONIG) {
        kvs__tbuf text = {NULL, 0, 0};
        st = kvs__tbuf_room(ctx, &text, 0, err);
        st = st == KVS_OK ? kvs__re_translate(ctx, pattern, &text, err) : st;
        st = st == KVS_OK ? compile(re, text.p, text.len, err) : st;
        kvs__tbuf_free(ctx, &text);
    } else if (syntax == KVS__RE_PCRE) {
        st = compile(re, pattern.ptr, pattern.len, err);
    }
    if (st != KVS_OK) {
        kvs__re_free(re);
        return st;
    }
    *out = re;
    return KVS_OK;
}

void kvs__re_free(kvs__re *re)
{
    if (re) {
        pcre2_code_free(re->code);
        pcre2_general_context_free(re->memory);
        kvs__free(re->ctx, re, sizeof *re);
    }
}

kvs__re_match *kvs__re_match_new(kvs_ctx *ctx)
{
    kvs__re_match *m = kvs__calloc(ctx, 1, sizeof *m);
    if (!m) {
        return NULL;
    }
    m->ctx = ctx;
    m->memory = pcre2_general_context_create(kvs__pcre_alloc, kvs__pcre_free, ctx);
    m->data = m->memory ? pcre2_match_data_create(1, m->memory) : NULL;
    m->limits = m->memory ? pcre2_match_context_create(m->memory) : NULL;
    if (!m->data || !m->limits) {
        kvs__re_match_free(m);
        return NULL;
    }
    return m;
}

void kvs__re_match_free(kvs__re_match *m)
{
    if (m) {
        pcre2_match_data_free(m->data);
        pcre2_match_context_free(m->limits);
        pcre2_general_context_free(m->memory);
        kvs__free(m->ctx, m, sizeof *m);
    }
}

kvs__re_walk kvs__re_start(const kvs__re *re, kvs__re_match *m, kvs__text text)
{
    return (kvs__re_walk){re, m, text, 0, SIZE_MAX};
}

static kvs_status find_literal(const kvs__re_walk *walk, size_t *from, size_t *to)
{
    const kvs__text lit = walk->re->literal;
    const kvs__text text = walk->text;
    size_t at = walk->at;
    while (lit.len > 0 && text.len - at >= lit.len) {
        const char *hit = memchr(text.ptr + at, lit.ptr[0], text.len - at - lit.len + 1);
        if (!hit) {
            return KVS_NO;
        }
        at = (size_t)(hit - text.ptr);
        if (memcmp(hit, lit.ptr, lit.len) == 0) {
            break;
        }
        at++;
    }
    if (text.len - at < lit.len) {
        return KVS_NO;
    }
    *from = at;
    *to = at + lit.len;
    return KVS_OK;
}

static kvs_status find(const kvs__re_walk *walk, size_t *from, size_t *to, kvs_err *err)
{
    if (!walk->re->code) {
        return find_literal(walk, from, to);
    }
    kvs__re_match *m = walk->m;
    const uint64_t steps = 100000 + 64 * (uint64_t)walk->text.len;
    pcre2_set_match_limit(m->limits, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    pcre2_set_depth_limit(m->limits, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    int rc = pcre2_match(walk->re->code, (PCRE2_SPTR)walk->text.ptr, walk->text.len, walk->at,
                         PCRE2_NO_UTF_CHECK, m->data, m->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(walk->re->code, (PCRE2_SPTR)walk->text.ptr, walk->text.len, walk->at,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, m->data, m->limits);
    }
    if (rc == PCRE2_ERROR_NOMATCH) {
        return KVS_NO;
    }
    if (rc == PCRE2_ERROR_NOMEMORY) {
        return kvs__nomem(err, "engine", walk->text.len);
    }
    if (rc < 0) {
        return kvs__fail(err, KVS_E_LIMIT, "engine",
                         "an expression of the tokenizer gave up on a piece of %zu bytes (PCRE2 "
                         "error %d)",
                         walk->text.len, rc);
    }
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
    *from = span[0];
    *to = span[1] < span[0] ? span[0] : span[1];
    return KVS_OK;
}

kvs_status kvs__re_next(kvs__re_walk *walk, size_t *from, size_t *to, kvs_err *err)
{
    while (walk->at <= walk->text.len) {
        kvs_status st = find(walk, from, to, err);
        if (st != KVS_OK) {
            return st;
        }
        if (*from != *to || *to != walk->last) {
            walk->at = *to;
            walk->last = *to;
            return KVS_OK;
        }
        size_t step = 1;
        uint32_t cp = 0;
        if (walk->at < walk->text.len) {
            (void)kvs__utf8_step(walk->text.ptr + walk->at, walk->text.len - walk->at, &step, &cp);
        }
        walk->at += step;
    }
    return KVS_NO;
}
