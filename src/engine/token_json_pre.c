/* SPDX-License-Identifier: MIT */
/* token_json_pre.c: pre-tokenizers. Each is read into one to three steps; a piece of text goes
 * through all later steps before the next piece is cut, so a step needs one buffer, and no list of
 * pieces is made. */
#include <string.h>

#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

#define GPT2                                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" KVS__RE_WS "\\p{L}\\p{N}]+|"                \
    "[" KVS__RE_WS "]+(?![^" KVS__RE_WS "])|[" KVS__RE_WS "]+"
#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"

/* ---- reading */

static kvs__tj_pre *add(kvs_tokenizer *tok, kvs__tj_pre_kind kind, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    if (tj->n_pres == KVS__TJ_STAGES) {
        (void)kvs__tj_bad("too many pre-tokenizers", err);
        return NULL;
    }
    kvs__tj_pre *p = &tj->pres[tj->n_pres++];
    *p = (kvs__tj_pre){.kind = kind, .behave = KVS__SPLIT_ISOLATED};
    return p;
}

static kvs_status add_split(kvs_tokenizer *tok, const char *expression, kvs__tj_behave behave,
                            bool invert, kvs_err *err)
{
    kvs__tj_pre *p = add(tok, KVS__TPRE_SPLIT, err);
    if (!p) {
        return KVS_E_FORMAT;
    }
    p->behave = behave;
    p->invert = invert;
    return kvs__re_new(tok->ctx, (kvs__text){expression, strlen(expression)}, KVS__RE_PCRE, &p->re,
                       err);
}

static kvs_status read_behaviour(kvs__jval node, kvs__tj_behave *behave, kvs_err *err)
{
    static const struct {
        const char *name, *spelled;
        kvs__tj_behave behave;
    } known[] = {{"Removed", "removed", KVS__SPLIT_REMOVED},
                 {"Isolated", "isolated", KVS__SPLIT_ISOLATED},
                 {"MergedWithPrevious", "merged_with_previous", KVS__SPLIT_PREVIOUS},
                 {"MergedWithNext", "merged_with_next", KVS__SPLIT_NEXT},
                 {"Contiguous", "contiguous", KVS__SPLIT_CONTIGUOUS}};
    const kvs__jval value = kvs__json_get(node, "behavior");
    if (kvs__tj_absent(value)) {
        return KVS_OK;
    }
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (kvs__json_is(value, known[i].name) || kvs__json_is(value, known[i].spelled)) {
            *behave = known[i].behave;
            return KVS_OK;
        }
    }
    return kvs__tj_bad("unknown behavior of a pre-tokenizer", err);
}

static kvs_status read_split(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    kvs__tj_pre *p = add(tok, KVS__TPRE_SPLIT, err);
    if (!p) {
        return KVS_E_FORMAT;
    }
    kvs_status st = read_behaviour(node, &p->behave, err);
    st = st == KVS_OK ? kvs__tj_bool(node, "invert", &p->invert, err) : st;
    return st == KVS_OK ? kvs__tj_pattern(tok, node, &p->re, err) : st;
}

static kvs_status read_byte_level(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    bool space = true;
    bool regex = true;
    bool trim = true; /* of offsets, which are not given out */
    kvs_status st = kvs__tj_bool(node, "add_prefix_space", &space, err);
    st = st == KVS_OK ? kvs__tj_bool(node, "use_regex", &regex, err) : st;
    st = st == KVS_OK ? kvs__tj_bool(node, "trim_offsets", &trim, err) : st;
    if (st == KVS_OK && space && !add(tok, KVS__TPRE_SPACE, err)) {
        return KVS_E_FORMAT;
    }
    if (st == KVS_OK && regex) {
        st = add_split(tok, GPT2, KVS__SPLIT_ISOLATED, false, err);
    }
    if (st == KVS_OK && !add(tok, KVS__TPRE_VISIBLE, err)) {
        return KVS_E_FORMAT;
    }
    return st;
}

kvs_status kvs__tj_meta_scheme(kvs__jval node, kvs__tj_scheme *scheme, kvs_err *err)
{
    static const char *const names[] = {"always", "first", "never"};
    const kvs__jval value = kvs__json_get(node, "prepend_scheme");
    bool prefix = true;
    kvs_status st = kvs__tj_bool(node, "add_prefix_space", &prefix, err);
    if (st != KVS_OK) {
        return st;
    }
    *scheme = prefix ? KVS__META_ALWAYS : KVS__META_NEVER;
    if (kvs__tj_absent(value)) {
        return KVS_OK;
    }
    for (unsigned i = 0; i < KVS_COUNT(names); i++) {
        if (kvs__json_is(value, names[i])) {
            if (!prefix && i != KVS__META_NEVER) {
                return kvs__tj_bad("add_prefix_space contradicts prepend_scheme", err);
            }
            *scheme = (kvs__tj_scheme)i;
            return KVS_OK;
        }
    }
    return kvs__tj_bad("unknown prepend_scheme", err);
}

kvs__text kvs__tj_mark(kvs__text text)
{
    size_t step = 0;
    uint32_t cp = 0;
    if (!text.ptr || text.len == 0 ||
        kvs__utf8_step(text.ptr, text.len, &step, &cp) != KVS__UTF8_OK || step != text.len) {
        return (kvs__text){NULL, 0};
    }
    return text;
}

static kvs_status read_meta(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    kvs__text mark = {NULL, 0};
    kvs__tj_pre *p = add(tok, KVS__TPRE_META, err);
    kvs_status st = p ? kvs__tj_text(node, "replacement", &mark, err) : KVS_E_FORMAT;
    if (st != KVS_OK || !p) {
        return st;
    }
    p->mark = kvs__tj_mark(mark);
    if (p->mark.len == 0) {
        return kvs__tj_bad("Metaspace: replacement is not one character", err);
    }
    p->split = true;
    st = kvs__tj_bool(node, "split", &p->split, err);
    return st == KVS_OK ? kvs__tj_meta_scheme(node, &p->scheme, err) : st;
}

static kvs_status read_digits(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    bool single = false;
    kvs_status st = kvs__tj_bool(node, "individual_digits", &single, err);
    return st == KVS_OK
               ? add_split(tok, "\\p{N}", single ? KVS__SPLIT_ISOLATED : KVS__SPLIT_CONTIGUOUS,
                           false, err)
               : st;
}

static kvs_status read_punctuation(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    kvs__tj_behave behave = KVS__SPLIT_ISOLATED;
    kvs_status st = read_behaviour(node, &behave, err);
    return st == KVS_OK ? add_split(tok, PUNCTUATION, behave, false, err) : st;
}

static kvs_status read_whitespace(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    (void)node;
    return add_split(tok,
                     "[" KVS__RE_WORD "\\x{200c}\\x{200d}]+|[^" KVS__RE_WORD
                     "\\x{200c}\\x{200d}" KVS__RE_WS "]+",
                     KVS__SPLIT_REMOVED, true, err);
}

static kvs_status read_whitespace_split(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    (void)node;
    return add_split(tok, "[" KVS__RE_WS "]+", KVS__SPLIT_REMOVED, false, err);
}

static kvs_status read_bert(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    kvs_status st = read_whitespace_split(tok, node, err);
    return st == KVS_OK ? add_split(tok, PUNCTUATION, KVS__SPLIT_ISOLATED, false, err) : st;
}

static kvs_status read_one(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    static const struct {
        const char *name;
        kvs_status (*read)(kvs_tokenizer *tok, kvs__jval node, kvs_err *err);
    } known[] = {{"Split", read_split},
                 {"ByteLevel", read_byte_level},
                 {"Metaspace", read_meta},
                 {"Digits", read_digits},
                 {"Punctuation", read_punctuation},
                 {"Whitespace", read_whitespace},
                 {"WhitespaceSplit", read_whitespace_split},
                 {"BertPreTokenizer", read_bert}};
    const kvs__jval type = kvs__json_get(node, "type");
    for (size_t i = 0; i < KVS_COUNT(known); i++) {
        if (kvs__json_is(type, known[i].name)) {
            return known[i].read(tok, node, err);
        }
    }
    return kvs__tj_refuse("pre_tokenizer", node, err);
}

kvs_status kvs__tj_pres_read(kvs_tokenizer *tok, kvs__jval node, kvs_err *err)
{
    return kvs__tj_each(node, "pretokenizers", read_one, tok, err);
}

void kvs__tj_pres_free(struct kvs__tj *tj)
{
    for (size_t i = 0; i < tj->n_pres; i++) {
        kvs__re_free(tj->pres[i].re);
    }
}

/* ---- running */

static kvs_status step(kvs__token_work *w, size_t i, kvs__text text, bool at_start);

/* The piece that is not passed on yet: the next part may still be joined to it. */
struct split {
    kvs__token_work *w;
    size_t stage;
    kvs__text text;
    bool at_start;
    kvs__tj_behave behave;
    bool invert;
    size_t from, to; /* pending */
    bool pending;
    bool was_match; /* the last part was one */
};

static kvs_status flush(struct split *s)
{
    if (!s->pending) {
        return KVS_OK;
    }
    s->pending = false;
    return step(s->w, s->stage + 1, (kvs__text){s->text.ptr + s->from, s->to - s->from},
                s->at_start && s->from == 0);
}

/* Does this part lengthen the pending piece? */
static bool joins(const struct split *s, bool match)
{
    switch (s->behave) {
    case KVS__SPLIT_PREVIOUS:
        return match && !s->was_match;
    case KVS__SPLIT_NEXT:
        return !match && s->was_match;
    case KVS__SPLIT_CONTIGUOUS:
        return match == s->was_match;
    default:
        return false;
    }
}

static kvs_status part(struct split *s, size_t from, size_t to, bool match)
{
    match = match != s->invert;
    kvs_status st = KVS_OK;
    if (s->pending && joins(s, match)) {
        s->to = to;
    } else {
        st = flush(s);
        s->pending = !(match && s->behave == KVS__SPLIT_REMOVED);
        s->from = from;
        s->to = to;
    }
    s->was_match = match;
    return st;
}

static kvs_status split(kvs__token_work *w, size_t i, kvs__text text, bool at_start)
{
    const kvs__tj_pre *p = &w->tok->json->pres[i];
    struct split s = {.w = w,
                      .stage = i,
                      .text = text,
                      .at_start = at_start,
                      .behave = p->behave,
                      .invert = p->invert};
    size_t done = 0;
    size_t from = 0;
    size_t to = 0;
    kvs_status st = KVS_OK;
    kvs__re_walk walk = kvs__re_start(p->re, w->json->match, text);
    while ((st = kvs__re_next(&walk, &from, &to, w->err)) == KVS_OK) {
        if (from > done) {
            st = part(&s, done, from, false);
        }
        st = st == KVS_OK ? part(&s, from, to, true) : st;
        if (st != KVS_OK) {
            return st;
        }
        done = to;
    }
    st = st == KVS_NO ? KVS_OK : st;
    if (st == KVS_OK && done < text.len) {
        st = part(&s, done, text.len, false);
    }
    return st == KVS_OK ? flush(&s) : st;
}

static bool starts_with(kvs__text text, kvs__text with)
{
    return text.len >= with.len && memcmp(text.ptr, with.ptr, with.len) == 0;
}

static kvs_status meta_cut(kvs__token_work *w, size_t i, const kvs__tj_pre *p, bool at_start)
{
    const kvs__tbuf *b = &w->json->stage[i];
    size_t from = 0;
    kvs_status st = KVS_OK;
    for (size_t at = 1; p->split && at < b->len && st == KVS_OK; at++) {
        if (b->p[at] == p->mark.ptr[0] && b->len - at >= p->mark.len &&
            memcmp(b->p + at, p->mark.ptr, p->mark.len) == 0) {
            st = step(w, i + 1, (kvs__text){b->p + from, at - from}, at_start && from == 0);
            from = at;
        }
    }
    return st == KVS_OK
               ? step(w, i + 1, (kvs__text){b->p + from, b->len - from}, at_start && from == 0)
               : st;
}

static kvs_status meta(kvs__token_work *w, size_t i, kvs__text text, bool at_start)
{
    const kvs__tj_pre *p = &w->tok->json->pres[i];
    kvs_ctx *ctx = w->tok->ctx;
    kvs__tbuf *b = &w->json->stage[i];
    b->len = 0;
    const bool marked = text.ptr[0] == ' ' || starts_with(text, p->mark);
    kvs_status st = KVS_OK;
    if (!marked && (p->scheme == KVS__META_ALWAYS || (p->scheme == KVS__META_FIRST && at_start))) {
        st = kvs__tbuf_put(ctx, b, p->mark.ptr, p->mark.len, w->err);
    }
    size_t from = 0;
    while (st == KVS_OK && from < text.len) {
        const char *hit = memchr(text.ptr + from, ' ', text.len - from);
        const size_t to = hit ? (size_t)(hit - text.ptr) : text.len;
        st = kvs__tbuf_put(ctx, b, text.ptr + from, to - from, w->err);
        if (st == KVS_OK && hit) {
            st = kvs__tbuf_put(ctx, b, p->mark.ptr, p->mark.len, w->err);
        }
        from = to + (hit ? 1 : 0);
    }
    return st == KVS_OK ? meta_cut(w, i, p, at_start) : st;
}

static kvs_status prefix_space(kvs__token_work *w, size_t i, kvs__text text, bool at_start)
{
    if (text.ptr[0] == ' ') {
        return step(w, i + 1, text, at_start);
    }
    kvs__tbuf *b = &w->json->stage[i];
    b->len = 0;
    kvs_status st = kvs__tbuf_put(w->tok->ctx, b, " ", 1, w->err);
    st = st == KVS_OK ? kvs__tbuf_put(w->tok->ctx, b, text.ptr, text.len, w->err) : st;
    return st == KVS_OK ? step(w, i + 1, (kvs__text){b->p, b->len}, at_start) : st;
}

static kvs_status visible(kvs__token_work *w, size_t i, kvs__text text, bool at_start)
{
    kvs__tbuf *b = &w->json->stage[i];
    b->len = 0;
    kvs_status st = kvs__tbuf_room(w->tok->ctx, b, 2 * text.len, w->err);
    if (st != KVS_OK) {
        return st;
    }
    for (size_t k = 0; k < text.len; k++) {
        b->len += kvs__token_bpe_visible((unsigned char)text.ptr[k], b->p + b->len);
    }
    return step(w, i + 1, (kvs__text){b->p, b->len}, at_start);
}

static kvs_status step(kvs__token_work *w, size_t i, kvs__text text, bool at_start)
{
    const struct kvs__tj *tj = w->tok->json;
    if (text.len == 0) {
        return KVS_OK;
    }
    if (i == tj->n_pres) {
        return tj->unigram ? kvs__tj_unigram(w, text) : kvs__tj_bpe(w, text);
    }
    switch (tj->pres[i].kind) {
    case KVS__TPRE_SPLIT:
        return split(w, i, text, at_start);
    case KVS__TPRE_META:
        return meta(w, i, text, at_start);
    case KVS__TPRE_SPACE:
        return prefix_space(w, i, text, at_start);
    default:
        return visible(w, i, text, at_start);
    }
}

kvs_status kvs__tj_pretokenize(kvs__token_work *w, kvs__text text, bool at_start)
{
    return step(w, 0, text, at_start);
}
