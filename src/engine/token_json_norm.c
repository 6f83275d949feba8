/* SPDX-License-Identifier: MIT */
/* token_json_norm.c: normalizers: how they are read, and run one after the other over a section of
 * the text (what lies between added tokens). */
#include <string.h>
#include <utf8proc.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

/* ---- reading */

static kvs__tj_norm *add(kvs_tokenizer *tok, kvs__tj_norm_kind kind)
{
    struct kvs__tj *tj = tok->json;
    if (tj->n_norms == KVS__TJ_STAGES) {
        return NULL;
    }
    kvs__tj_norm *n = &tj->norms[tj->n_norms++];
    *n = (kvs__tj_norm){.kind = kind};
    return n;
}

kvs_status kvs__tj_pattern(kvs_tokenizer *tok, kvs__jval node, kvs__re **re, kvs_err *err)
{
    const kvs__jval pattern = kvs__json_get(node, "pattern");
    kvs__text text = {NULL, 0};
    text = kvs__tj_str(kvs__json_get(pattern, "String"));
    if (text.ptr) {
        return kvs__re_new(tok->ctx, text, KVS__RE_LITERAL, re, err);
    }
    text = kvs__tj_str(kvs__json_get(pattern, "Regex"));
    if (text.ptr) {
        return kvs__re_new(tok->ctx, text, KVS__RE_ONIG, re, err);
    }
    return kvs__tj_bad("a pattern is neither String nor Regex", err);
}

static kvs_status read_replace(kvs_tokenizer *tok, kvs__jval node, kvs__tj_norm *n, kvs_err *err)
{
    kvs_status st = kvs__tj_text(node, "content", &n->content, err);
    if (st == KVS_OK && !n->content.ptr) {
        st = kvs__tj_bad("Replace without content", err);
    }
    return st == KVS_OK ? kvs__tj_pattern(tok, node, &n->re, err) : st;
}

static kvs_status read_args(kvs_tokenizer *tok, kvs__jval node, kvs__tj_norm *n, kvs_err *err)
{
    kvs_status st = KVS_OK;
    switch (n->kind) {
    case KVS__NORM_STRIP:
        st = kvs__tj_bool(node, "strip_left", &n->compat, err);
        return st == KVS_OK ? kvs__tj_bool(node, "strip_right", &n->compose, err) : st;
    case KVS__NORM_REPLACE:
        return read_replace(tok, node, n, err);
    case KVS__NORM_PREPEND:
        st = kvs__tj_text(node, "prepend", &n->content, err);
        return st == KVS_OK && !n->content.ptr ? kvs__tj_bad("Prepend without prepend", err) : st;
    case KVS__NORM_CHARSMAP:
        st = kvs__tj_text(node, "precompiled_charsmap", &n->content, err);
        if (st == KVS_OK && !n->content.ptr) {
            st = kvs__tj_bad("Precompiled without precompiled_charsmap", err);
        }
        return st == KVS_OK ? kvs__tj_charsmap_read(tok->ctx, n->content, n, err) : st;
    default:
        return KVS_OK;
    }
}

static kvs_status read_one(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    static const struct {
        const char *name;
        kvs__tj_norm_kind kind;
        bool compat, compose;
    } known[] = {{"NFC", KVS__NORM_FORM, false, true},
                 {"NFD", KVS__NORM_FORM, false, false},
                 {"NFKC", KVS__NORM_FORM, true, true},
                 {"NFKD", KVS__NORM_FORM, true, false},
                 {"Lowercase", KVS__NORM_LOWER, false, false},
                 {"Strip", KVS__NORM_STRIP, true, true},
                 {"StripAccents", KVS__NORM_STRIP_ACCENTS, false, false},
                 {"Nmt", KVS__NORM_NMT, false, false},
                 {"Replace", KVS__NORM_REPLACE, false, false},
                 {"Prepend", KVS__NORM_PREPEND, false, false},
                 {"Precompiled", KVS__NORM_CHARSMAP, false, false},
                 {"ByteLevel", KVS__NORM_BYTES, false, false}};
    const kvs__jval type = kvs__json_get(node, "type");
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (kvs__json_is(type, known[i].name)) {
            kvs__tj_norm *n = add(tok, known[i].kind);
            if (!n) {
                return kvs__tj_bad("too many normalizers", err);
            }
            n->compat = known[i].compat;
            n->compose = known[i].compose;
            return read_args(tok, node, n, err);
        }
    }
    return kvs__tj_refuse("normalizer", node, err);
}

kvs_status kvs__tj_norms_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    return kvs__tj_each(node, "normalizers", read_one, tok, err);
}

void kvs__tj_norms_free(kvs_ctx *ctx, struct kvs__tj *tj)
{
    for (size_t i = 0; i < tj->n_norms; i++) {
        kvs__re_free(tj->norms[i].re);
        kvs__free(ctx, tj->norms[i].trie, tj->norms[i].block_bytes);
    }
}

/* ---- running */

bool kvs__tj_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

kvs_status kvs__tj_put(kvs_ctx *ctx, kvs__tbuf *out, kvs__text text, kvs_err *err)
{
    if (text.len > KVS__TJ_TEXT_MAX || out->len > KVS__TJ_TEXT_MAX - text.len) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "normalizing makes more than %zu bytes",
                         KVS__TJ_TEXT_MAX);
    }
    return kvs__tbuf_put(ctx, out, text.ptr, text.len, err);
}

static uint32_t lower(uint32_t cp)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

static bool nmt_drops(uint32_t cp)
{
    return (cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f ||
           cp == 0x8f || cp == 0x9f;
}

static bool nmt_spaces(uint32_t cp)
{
    return cp == 9 || cp == 10 || cp == 12 || cp == 13 || cp == 0x1680 ||
           (cp >= 0x200b && cp <= 0x200f) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
           cp == 0xfeff || cp == 0xfffd;
}

static bool is_mark(uint32_t cp)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

/* What a character becomes; UINT32_MAX: nothing. */
static uint32_t map_one(kvs__tj_norm_kind kind, uint32_t cp)
{
    if (kind == KVS__NORM_LOWER) {
        return lower(cp);
    }
    if (kind == KVS__NORM_STRIP_ACCENTS) {
        return is_mark(cp) ? UINT32_MAX : cp;
    }
    if (nmt_drops(cp)) {
        return UINT32_MAX;
    }
    return nmt_spaces(cp) ? ' ' : cp;
}

static kvs_status map_all(kvs_ctx *ctx, const kvs__tj_norm *n, kvs__text in, kvs__tbuf *out,
                          bool *at_start, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (size_t i = 0, step = 0; i < in.len && st == KVS_OK; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(in.ptr + i, in.len - i, &step, &cp);
        if (n->kind == KVS__NORM_LOWER && cp == 0x130) { /* the one that becomes two */
            st = kvs__tbuf_put_z(ctx, out, "i\xcc\x87", err);
            continue;
        }
        const uint32_t to = map_one(n->kind, cp);
        if (to != UINT32_MAX) {
            st = kvs__tbuf_put_cp(ctx, out, to, err);
        } else {
            *at_start = *at_start && out->len > 0;
        }
    }
    return st;
}

static kvs_status strip(kvs_ctx *ctx, const kvs__tj_norm *n, kvs__text in, kvs__tbuf *out,
                        bool *at_start, kvs_err *err)
{
    size_t from = 0;
    size_t to = 0;
    bool seen = false;
    for (size_t i = 0, step = 0; i < in.len; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(in.ptr + i, in.len - i, &step, &cp);
        if (!kvs__tj_is_space(cp)) {
            from = seen ? from : i;
            to = i + step;
            seen = true;
        }
    }
    from = !seen ? in.len : from;
    to = !seen ? in.len : to;
    if (!n->compat) {
        from = n->compose && !seen ? in.len : 0;
    }
    to = n->compose ? to : in.len;
    *at_start = *at_start && from == 0;
    return kvs__tbuf_put(ctx, out, in.ptr + from, to - from, err);
}

static kvs_status replace(kvs_ctx *ctx, kvs__re_match *m, const kvs__tj_norm *n, kvs__text in,
                          kvs__tbuf *out, bool *at_start, kvs_err *err)
{
    size_t done = 0;
    size_t from = 0;
    size_t to = 0;
    kvs_status st = KVS_OK;
    kvs__re_walk walk = kvs__re_start(n->re, m, in);
    while (in.len > 0 && (st = kvs__re_next(&walk, &from, &to, err)) == KVS_OK) {
        st = kvs__tbuf_put(ctx, out, in.ptr + done, from - done, err);
        if (n->content.len == 0 && out->len == 0 && to > from) {
            *at_start = false;
        }
        st = st == KVS_OK ? kvs__tj_put(ctx, out, n->content, err) : st;
        if (st != KVS_OK) {
            return st;
        }
        done = to;
    }
    return st < 0 ? st : kvs__tbuf_put(ctx, out, in.ptr + done, in.len - done, err);
}

static kvs_status visible(kvs_ctx *ctx, kvs__text in, kvs__tbuf *out, kvs_err *err)
{
    kvs_status st = kvs__tbuf_room(ctx, out, 2 * in.len, err);
    for (size_t i = 0; i < in.len && st == KVS_OK; i++) {
        out->len += kvs__token_bpe_visible((unsigned char)in.ptr[i], out->p + out->len);
    }
    return st;
}

static kvs_status run(kvs_ctx *ctx, kvs__tj_work *w, const kvs__tj_norm *n, kvs__text in,
                      kvs__tbuf *out, bool *at_start, kvs_err *err)
{
    kvs_status st = KVS_OK;
    switch (n->kind) {
    case KVS__NORM_FORM:
        return kvs__tj_form(ctx, w, in, n->compat, n->compose, out, err);
    case KVS__NORM_STRIP:
        return strip(ctx, n, in, out, at_start, err);
    case KVS__NORM_REPLACE:
        return replace(ctx, w->match, n, in, out, at_start, err);
    case KVS__NORM_PREPEND:
        st = in.len > 0 ? kvs__tbuf_put(ctx, out, n->content.ptr, n->content.len, err) : KVS_OK;
        return st == KVS_OK ? kvs__tbuf_put(ctx, out, in.ptr, in.len, err) : st;
    case KVS__NORM_CHARSMAP:
        return kvs__tj_charsmap(ctx, n, in, out, at_start, err);
    case KVS__NORM_BYTES:
        return visible(ctx, in, out, err);
    default:
        return map_all(ctx, n, in, out, at_start, err);
    }
}

kvs_status kvs__tj_normalize(const kvs_tokenizer *tok, kvs__tj_work *w, kvs__text *text,
                             bool *at_start, kvs_err *err)
{
    const struct kvs__tj *tj = tok->json;
    for (size_t i = 0; i < tj->n_norms; i++) {
        kvs__tbuf *out = &w->norm[i % 2];
        out->len = 0;
        kvs_status st = kvs__tbuf_room(tok->ctx, out, text->len, err);
        if (st == KVS_OK) {
            st = run(tok->ctx, w, &tj->norms[i], *text, out, at_start, err);
        }
        if (st != KVS_OK) {
            return st;
        }
        *text = (kvs__text){out->p, out->len};
    }
    return KVS_OK;
}
