/* SPDX-License-Identifier: MIT */
/* token_json.c: a Hugging Face tokenizer.json: opening one, and the way of a text through it.
 *
 * Follows the Rust library `tokenizers`, whose files these are, wherever that is not a matter of
 * safety: text never becomes a special token without KVS_TOKENIZE_SPECIAL, not even where the
 * vocabulary proper holds its spelling. Truncation and padding of the file are left out: they
 * belong to training. What is not known is refused by its name, never skipped.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/token_json.h"
#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

/* ---- reading, what all parts use */

kvs_status kvs__tj_bad(const char *what, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.json: %s", what);
}

kvs__text kvs__tj_str(kvs__jval v)
{
    if (kvs__json_kind(v) != KVS__JSON_STRING) {
        return (kvs__text){NULL, 0};
    }
    const kvs__str s = kvs__json_raw(v);
    return (kvs__text){s.ptr, s.len};
}

bool kvs__tj_absent(kvs__jval v)
{
    return kvs__json_kind(v) <= KVS__JSON_NULL;
}

bool kvs__tj_double(kvs__jval v, double *out)
{
    return kvs__json_double(v, out) && isfinite(*out);
}

bool kvs__tj_pair(kvs__jval list, kvs__jval v[2])
{
    v[0] = v[1] = (kvs__jval){NULL, 0};
    if (kvs__json_count(list) != 2 || !kvs__json_next(list, &v[0])) {
        return false;
    }
    v[1] = v[0];
    return kvs__json_next(list, &v[1]);
}

kvs_status kvs__tj_open(kvs_ctx *ctx, const char *path, const char *name, kvs__json **out,
                        kvs_err *err)
{
    char *text = NULL;
    size_t n = 0;
    kvs_status st = kvs__json_file(ctx, path, KVS__TJ_FILE_MAX, &text, &n, err);
    return st == KVS_OK ? kvs__json_adopt(ctx, text, n, name, out, err) : st;
}

kvs_status kvs__tj_refuse(const char *part, kvs__jval node, kvs_err *err)
{
    const kvs__text name = kvs__tj_str(kvs__json_get(node, "type"));
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "tokenizer.json: %s \"%.*s\" is not supported", part,
                     name.len < 80 ? (int)name.len : 80, name.ptr ? name.ptr : "");
}

kvs_status kvs__tj_bool(kvs__jval object, const char *key, bool *value, kvs_err *err)
{
    const kvs__jval node = kvs__json_get(object, key);
    switch (kvs__json_kind(node)) {
    case KVS__JSON_NONE:
    case KVS__JSON_NULL:
        return KVS_OK;
    case KVS__JSON_FALSE:
    case KVS__JSON_TRUE:
        *value = kvs__json_kind(node) == KVS__JSON_TRUE;
        return KVS_OK;
    default:
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.json: %s is no boolean", key);
    }
}

kvs_status kvs__tj_text(kvs__jval object, const char *key, kvs__text *value, kvs_err *err)
{
    const kvs__jval node = kvs__json_get(object, key);
    if (kvs__tj_absent(node)) {
        return KVS_OK;
    }
    const kvs__text s = kvs__tj_str(node);
    if (!s.ptr) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.json: %s is no text", key);
    }
    *value = s;
    return KVS_OK;
}

static kvs_status each(kvs__jval node, const char *key,
                       kvs_status (*fn)(kvs_tokenizer *tok, kvs__jval node, kvs_err *err),
                       kvs_tokenizer *tok, unsigned depth, kvs_err *err)
{
    if (kvs__tj_absent(node)) {
        return KVS_OK;
    }
    if (kvs__json_kind(node) != KVS__JSON_OBJECT) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.json: one of %s is no object",
                         key);
    }
    if (!kvs__json_is(kvs__json_get(node, "type"), "Sequence")) {
        return fn(tok, node, err);
    }
    const kvs__jval list = kvs__json_get(node, key);
    if (kvs__json_kind(list) != KVS__JSON_ARRAY || depth == 8) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: Sequence without %s, or "
                         "nested deeply",
                         key);
    }
    kvs__jval at = {NULL, 0};
    while (kvs__json_next(list, &at)) {
        kvs_status st = each(at, key, fn, tok, depth + 1, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

kvs_status kvs__tj_each(kvs__jval node, const char *key,
                        kvs_status (*fn)(kvs_tokenizer *tok, kvs__jval node, kvs_err *err),
                        kvs_tokenizer *tok, kvs_err *err)
{
    return each(node, key, fn, tok, 0, err);
}

/* ---- work of one call */

void kvs__tj_work_free(const kvs_tokenizer *tok, kvs__tj_work *w)
{
    if (!w) {
        return;
    }
    kvs_ctx *ctx = tok->ctx;
    kvs__re_match_free(w->match);
    kvs__tbuf_free(ctx, &w->norm[0]);
    kvs__tbuf_free(ctx, &w->norm[1]);
    for (size_t i = 0; i < KVS__TJ_STAGES; i++) {
        kvs__tbuf_free(ctx, &w->stage[i]);
    }
    kvs__tbuf_free(ctx, &w->word);
    kvs__free(ctx, w->cps, w->cap_cps * sizeof *w->cps);
    kvs__free(ctx, w->order, w->cap_order * sizeof *w->order);
    kvs__free(ctx, w->nodes, w->cap_nodes * sizeof *w->nodes);
    kvs__free(ctx, w, sizeof *w);
}

static kvs__tj_work *work_new(kvs_ctx *ctx)
{
    kvs__tj_work *w = kvs__calloc(ctx, 1, sizeof *w);
    if (w) {
        w->match = kvs__re_match_new(ctx);
        if (!w->match) {
            kvs__free(ctx, w, sizeof *w);
            w = NULL;
        }
    }
    return w;
}

/* ---- added tokens */

static kvs_status list_alloc(kvs_tokenizer *tok, kvs__token_list *list, kvs_err *err)
{
    const size_t n = tok->json->n_added;
    list->items = kvs__calloc(tok->ctx, n, sizeof *list->items);
    return list->items ? KVS_OK : kvs__nomem(err, "engine", n * sizeof *list->items);
}

/* The list of tokens that are matched in normalized text, whose own texts are normalized too. */
static kvs_status build_normed(kvs_tokenizer *tok, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    kvs__tj_work *w = work_new(tok->ctx);
    kvs_status st = w ? KVS_OK : kvs__nomem(err, "engine", sizeof *w);
    for (size_t i = 0; i < tj->n_added && st == KVS_OK; i++) {
        if (!tj->added[i].normalized) {
            continue;
        }
        kvs__text text = tj->added[i].text;
        bool at_start = true;
        st = kvs__tj_normalize(tok, w, &text, &at_start, err);
        const size_t at = tj->normed_pool.len;
        st = st == KVS_OK ? kvs__tj_put(tok->ctx, &tj->normed_pool, text, err) : st;
        if (st == KVS_OK && text.len > UINT32_MAX) {
            st = kvs__tj_bad("an added token is too long", err);
        }
        if (st == KVS_OK && text.len > 0) { /* len: where it is in the pool, until that is full */
            tj->normed.items[tj->normed.n++] = (kvs__token_entry){NULL, (uint32_t)at, (uint32_t)i};
        }
    }
    for (size_t k = 0; k < tj->normed.n; k++) {
        const size_t at = tj->normed.items[k].len;
        const size_t end = k + 1 < tj->normed.n ? tj->normed.items[k + 1].len : tj->normed_pool.len;
        tj->normed.items[k].ptr = tj->normed_pool.p + at;
        tj->normed.items[k].len = (uint32_t)(end - at);
    }
    kvs__tj_work_free(tok, w);
    return st;
}

static kvs_status build_lists(kvs_tokenizer *tok, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    kvs_status st = list_alloc(tok, &tj->raw, err);
    st = st == KVS_OK ? list_alloc(tok, &tj->normed, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    for (size_t i = 0; i < tj->n_added; i++) {
        const kvs__tj_added *a = &tj->added[i];
        if (!a->normalized && a->text.len > 0) {
            tj->raw.items[tj->raw.n++] =
                (kvs__token_entry){a->text.ptr, (uint32_t)a->text.len, (uint32_t)i};
        }
    }
    st = build_normed(tok, err);
    if (st == KVS_OK) {
        kvs__token_list_index(&tj->raw);
        kvs__token_list_index(&tj->normed);
    }
    return st;
}

static bool is_word(kvs__re_match *m, const kvs_tokenizer *tok, kvs__text c)
{
    size_t from = 0;
    size_t to = 0;
    kvs__re_walk walk = kvs__re_start(tok->json->word_re, m, c);
    return kvs__re_next(&walk, &from, &to, NULL) == KVS_OK;
}

static size_t step_at(kvs__text t, size_t at, uint32_t *cp)
{
    size_t step = 1;
    (void)kvs__utf8_step(t.ptr + at, t.len - at, &step, cp);
    return step;
}

static size_t step_before(kvs__text t, size_t at, uint32_t *cp)
{
    size_t n = 1;
    while (n < at && ((unsigned char)t.ptr[at - n] & 0xc0) == 0x80) {
        n++;
    }
    (void)step_at(t, at - n, cp);
    return n;
}

static bool stands_alone(kvs__token_work *w, kvs__text t, size_t from, size_t to)
{
    uint32_t cp = 0;
    if (from > 0) {
        const size_t n = step_before(t, from, &cp);
        if (is_word(w->json->match, w->tok, (kvs__text){t.ptr + from - n, n})) {
            return false;
        }
    }
    if (to < t.len) {
        const size_t n = step_at(t, to, &cp);
        if (is_word(w->json->match, w->tok, (kvs__text){t.ptr + to, n})) {
            return false;
        }
    }
    return true;
}

/* An occurrence of an added token; widened by the white space it takes in. */
static bool accept(kvs__token_work *w, const kvs__tj_added *a, kvs__text t, size_t done,
                   size_t *from, size_t *to)
{
    uint32_t cp = 0;
    if (a->special && (w->flags & KVS_TOKENIZE_SPECIAL) == 0) {
        return false;
    }
    if (a->single_word && !stands_alone(w, t, *from, *to)) {
        return false;
    }
    while (a->lstrip && *from > done) {
        const size_t n = step_before(t, *from, &cp);
        if (!kvs__tj_is_space(cp)) {
            break;
        }
        *from -= n;
    }
    if (a->lstrip && *from < done) {
        *from = done;
    }
    while (a->rstrip && *to < t.len) {
        const size_t n = step_at(t, *to, &cp);
        if (!kvs__tj_is_space(cp)) {
            break;
        }
        *to += n;
    }
    return true;
}

typedef kvs_status (*between_fn)(kvs__token_work *w, kvs__text text, bool at_start);

/* Hands what lies between the list's tokens to fn. The leftmost match, and there the longest, is
 * taken or given up as a whole; the search goes on behind it. */
static kvs_status sections(kvs__token_work *w, const kvs__token_list *list, kvs__text t,
                           bool at_start, between_fn fn)
{
    const struct kvs__tj *tj = w->tok->json;
    size_t done = 0;
    kvs_status st = KVS_OK;
    for (size_t i = 0; list->n > 0 && i < t.len && st == KVS_OK;) {
        size_t len = 0;
        const unsigned char b = (unsigned char)t.ptr[i];
        const int32_t k = list->first[b] != list->first[b + 1]
                              ? kvs__token_list_match(list, t.ptr + i, t.len - i, &len)
                              : -1;
        if (k < 0) {
            i++;
            continue;
        }
        size_t from = i;
        size_t to = i + len;
        i = to;
        if (!accept(w, &tj->added[k], t, done, &from, &to)) {
            continue;
        }
        if (from > done) {
            st = fn(w, (kvs__text){t.ptr + done, from - done}, at_start && done == 0);
        }
        st = st == KVS_OK ? kvs__token_push(w, tj->added[k].id) : st;
        done = to;
    }
    if (st == KVS_OK && done < t.len) {
        st = fn(w, (kvs__text){t.ptr + done, t.len - done}, at_start && done == 0);
    }
    return st;
}

static kvs_status normalize_and_cut(kvs__token_work *w, kvs__text text, bool at_start)
{
    kvs_status st = kvs__tj_normalize(w->tok, w->json, &text, &at_start, w->err);
    return st == KVS_OK ? sections(w, &w->tok->json->normed, text, at_start, kvs__tj_pretokenize)
                        : st;
}

static kvs_status push_all(kvs__token_work *w, const int32_t *ids, size_t n)
{
    kvs_status st = KVS_OK;
    for (size_t i = 0; i < n && st == KVS_OK; i++) {
        st = kvs__token_push(w, ids[i]);
    }
    return st;
}

kvs_status kvs__tj_encode(kvs__token_work *w, const char *text, size_t n, uint32_t flags)
{
    const struct kvs__tj *tj = w->tok->json;
    const bool around = (flags & KVS_TOKENIZE_ADD_SPECIAL) != 0;
    w->flags = flags;
    w->json = work_new(w->tok->ctx);
    if (!w->json) {
        return kvs__nomem(w->err, "engine", sizeof *w->json);
    }
    kvs_status st = around ? push_all(w, tj->front, tj->n_front) : KVS_OK;
    st = st == KVS_OK ? sections(w, &tj->raw, (kvs__text){text, n}, true, normalize_and_cut) : st;
    return st == KVS_OK && around ? push_all(w, tj->back, tj->n_back) : st;
}

/* ---- opening */

void kvs__tj_free(kvs_ctx *ctx, struct kvs__tj *tj, size_t n_tokens)
{
    if (!tj) {
        return;
    }
    kvs__tj_norms_free(ctx, tj);
    kvs__tj_pres_free(tj);
    kvs__re_free(tj->word_re);
    kvs__free(ctx, tj->raw.items, tj->n_added * sizeof *tj->raw.items);
    kvs__free(ctx, tj->normed.items, tj->n_added * sizeof *tj->normed.items);
    kvs__tbuf_free(ctx, &tj->normed_pool);
    kvs__free(ctx, tj->added, tj->n_added * sizeof *tj->added);
    kvs__free(ctx, tj->pieces.at, (n_tokens + 1) * sizeof *tj->pieces.at);
    kvs__tbuf_free(ctx, &tj->pieces.pool);
    kvs__free(ctx, tj->first.at, (n_tokens + 1) * sizeof *tj->first.at);
    kvs__tbuf_free(ctx, &tj->first.pool);
    kvs__free(ctx, tj->scores, n_tokens * sizeof *tj->scores);
    kvs__free(ctx, tj->words.items, tj->n_words_cap * sizeof *tj->words.items);
    kvs__free(ctx, tj->front, tj->n_front * sizeof *tj->front);
    kvs__free(ctx, tj->back, tj->n_back * sizeof *tj->back);
    for (size_t i = 0; i < tj->n_strings; i++) {
        kvs__free(ctx, tj->strings[i].key, tj->strings[i].key_len + 1 + tj->strings[i].text_len);
    }
    kvs__free(ctx, tj->strings, KVS__TJ_STRINGS_MAX * sizeof *tj->strings);
    kvs__json_free(tj->doc);
    kvs__free(ctx, tj, sizeof *tj);
}

static kvs_status build(kvs_tokenizer *tok, const char *dir, size_t n_rows, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    const kvs__jval root = kvs__json_root(tj->doc);
    kvs__vocab_src src = KVS__VOCAB_SRC_INIT;
    if (kvs__json_kind(root) != KVS__JSON_OBJECT) {
        return kvs__tj_bad("the whole is no object", err);
    }
    static const char word[] = "[" KVS__RE_WORD "\\x{200c}\\x{200d}]";
    kvs_status st =
        kvs__re_new(tok->ctx, (kvs__text){word, sizeof word - 1}, KVS__RE_PCRE, &tj->word_re, err);
    st = st == KVS_OK ? kvs__tj_norms_read(tok, kvs__json_get(root, "normalizer"), err) : st;
    st = st == KVS_OK ? kvs__tj_pres_read(tok, kvs__json_get(root, "pre_tokenizer"), err) : st;
    st = st == KVS_OK ? kvs__tj_vocab_read(tok, n_rows, err) : st;
    st = st == KVS_OK ? build_lists(tok, err) : st;
    st = st == KVS_OK ? kvs__tj_decoder_read(tok, kvs__json_get(root, "decoder"), err) : st;
    st = st == KVS_OK ? kvs__tj_post_read(tok, kvs__json_get(root, "post_processor"), err) : st;
    st = st == KVS_OK ? kvs__tj_config_read(tok, dir, &src, err) : st;
    if (st == KVS_OK) {
        kvs__token_special_fill(tok, &src);
        tok->adds = (tj->n_front > 0 ? 1u : 0u) | (tj->n_back > 0 ? 2u : 0u);
        kvs__json_drop_nodes(tj->doc);
    }
    return st;
}

/* Takes doc over. */
static kvs_status make(kvs_ctx *ctx, kvs__json *doc, const char *dir, size_t n_rows,
                       kvs_tokenizer **out, kvs_err *err)
{
    kvs_tokenizer *tok = kvs__calloc(ctx, 1, sizeof *tok);
    struct kvs__tj *tj = kvs__calloc(ctx, 1, sizeof *tj);
    if (!tok || !tj) {
        kvs__free(ctx, tok, sizeof *tok);
        kvs__free(ctx, tj, sizeof *tj);
        kvs__json_free(doc);
        return kvs__nomem(err, "engine", sizeof *tok + sizeof *tj);
    }
    tok->ctx = ctx;
    tok->kind = KVS__VOCAB_JSON;
    tok->json = tj;
    tj->doc = doc;
    kvs_status st = build(tok, dir, n_rows, err);
    if (st != KVS_OK) {
        kvs__tokenizer_free(tok);
        return st;
    }
    *out = tok;
    return KVS_OK;
}

kvs_status kvs__tokenizer_from_json_text(kvs_ctx *ctx, const char *text, size_t n, size_t n_rows,
                                         kvs_tokenizer **out, kvs_err *err)
{
    if (n > KVS__TJ_FILE_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "tokenizer.json: %zu bytes", n);
    }
    char *copy = kvs__alloc(ctx, n + 1);
    if (!copy) {
        return kvs__nomem(err, "engine", n + 1);
    }
    memcpy(copy, text, n);
    kvs__json *doc = NULL;
    kvs_status st = kvs__json_adopt(ctx, copy, n, "tokenizer.json", &doc, err);
    return st == KVS_OK ? make(ctx, doc, NULL, n_rows, out, err) : st;
}

kvs_status kvs__tokenizer_from_json(kvs_ctx *ctx, const char *path, size_t n_rows,
                                    kvs_tokenizer **out, kvs_err *err)
{
    struct stat sb;
    const bool dir = stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
    char file[4096];
    const int n = snprintf(file, sizeof file, dir ? "%s/tokenizer.json" : "%s", path);
    if (n < 0 || (size_t)n >= sizeof file) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "a path of %d bytes", n);
    }
    kvs__json *doc = NULL;
    kvs_status st = kvs__tj_open(ctx, file, "tokenizer.json", &doc, err);
    return st == KVS_OK ? make(ctx, doc, dir ? path : NULL, n_rows, out, err) : st;
}

kvs_status kvs_tokenizer_open(kvs_ctx *ctx, const char *path, kvs_tokenizer **out, kvs_err *err)
{
    if (!ctx || !path || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "tokenizer_open: NULL argument");
    }
    *out = NULL;
    return kvs__tokenizer_from_json(ctx, path, 0, out, err);
}

void kvs_tokenizer_close(kvs_tokenizer *tok)
{
    kvs__tokenizer_free(tok);
}

const char *kvs_tokenizer_string(const kvs_tokenizer *tok, const char *key, size_t *n_bytes)
{
    static const char *const names[KVS_SPECIAL_COUNT] = {
        "bos_token", "eos_token", "unk_token", "pad_token", "eot_token", "sep_token", "mask_token"};
    if (!tok || !key || !n_bytes) {
        return NULL;
    }
    const struct kvs__tj *tj = tok->json;
    for (size_t i = 0; tj && i < tj->n_strings; i++) {
        if (strcmp(tj->strings[i].key, key) == 0) {
            *n_bytes = tj->strings[i].text_len;
            return tj->strings[i].key + tj->strings[i].key_len + 1;
        }
    }
    for (unsigned i = 0; i < KVS_SPECIAL_COUNT; i++) {
        if (strcmp(names[i], key) == 0 && tok->special[i] >= 0) {
            return kvs_tokenizer_text(tok, tok->special[i], n_bytes);
        }
    }
    return NULL;
}
