/* SPDX-License-Identifier: MIT */
/* token_json_vocab.c: the vocabulary and the tables of the models BPE and Unigram.
 *
 * I1  No two tokens have one text, and none two ids: what the file says twice is refused.
 * I2  Special added tokens are not in the tables that text is matched with: they come from
 *     KVS_TOKENIZE_SPECIAL alone, even where the vocabulary proper holds them.
 *
 * Ids may leave holes, but not so many that a small file asks for much memory.
 */
#include <inttypes.h>
#include <string.h>

#include "engine/json_number.h"
#include "engine/token_json_priv.h"
#include "engine/token_utf8.h"

#define HOLES_MAX 65536u

struct reader {
    kvs_tokenizer *tok;
    struct kvs__tj *tj;
    kvs__jval model;
    kvs__jval vocab;
    kvs__jval added;
    size_t n_model; /* texts of the vocabulary proper */
    kvs_err *err;
};

static kvs_status find_model(struct reader *r)
{
    const kvs__jval type = kvs__json_get(r->model, "type");
    r->vocab = kvs__json_get(r->model, "vocab");
    r->n_model = kvs__json_count(r->vocab);
    const bool untyped = kvs__tj_absent(type);
    const kvs__json_type kind = kvs__json_kind(r->vocab);
    if (kvs__json_is(type, "Unigram") || (untyped && kind == KVS__JSON_ARRAY)) {
        r->tj->unigram = true;
        return kind == KVS__JSON_ARRAY ? KVS_OK : kvs__tj_bad("Unigram: vocab is no list", r->err);
    }
    const bool merges = kvs__json_kind(kvs__json_get(r->model, "merges")) == KVS__JSON_ARRAY;
    if (kvs__json_is(type, "BPE") || (untyped && merges)) {
        return kind == KVS__JSON_OBJECT && merges
                   ? KVS_OK
                   : kvs__tj_bad("BPE: vocab is no object, or merges no list", r->err);
    }
    return kvs__tj_refuse("model", r->model, r->err);
}

/* ---- sizes and texts */

/* Text and id of the piece after *at, which moves on to it. */
static kvs_status next_piece(const struct reader *r, uint32_t i, kvs__jval *at, kvs__text *text,
                             int64_t *id)
{
    if (r->tj->unigram) {
        kvs__jval pair[2];
        (void)kvs__json_next(r->vocab, at);
        (void)kvs__tj_pair(*at, pair);
        *text = kvs__tj_str(pair[0]);
        *id = i;
        return text->ptr ? KVS_OK : kvs__tj_bad("Unigram: a piece is no [text, score]", r->err);
    }
    kvs__jval name = {NULL, 0};
    (void)kvs__json_member(r->vocab, &name, at);
    *text = kvs__tj_str(name);
    if (!kvs__json_whole(*at, id) || *id < 0 || *id > INT32_MAX - 2) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: the id of \"%.*s\" is no token id",
                         text->len < 60 ? (int)text->len : 60, text->ptr);
    }
    return KVS_OK;
}

static kvs_status count_ids(const struct reader *r, size_t *n)
{
    int64_t top = -1;
    kvs__jval at = {NULL, 0};
    for (uint32_t i = 0; i < r->n_model; i++) {
        kvs__text text = {NULL, 0};
        int64_t id = 0;
        kvs_status st = next_piece(r, i, &at, &text, &id);
        if (st != KVS_OK) {
            return st;
        }
        top = id > top ? id : top;
    }
    for (size_t i = 0; i < r->tj->n_added; i++) {
        top = r->tj->added[i].id > top ? r->tj->added[i].id : top;
    }
    const size_t texts = r->n_model + r->tj->n_added;
    if (top < 0 || (uint64_t)top > 4 * (uint64_t)texts + HOLES_MAX) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: %zu tokens with ids up to %" PRId64, texts, top);
    }
    *n = (size_t)top + 1;
    return KVS_OK;
}

static kvs_status set_entry(const struct reader *r, int64_t id, kvs__text text, uint32_t attr)
{
    kvs_tokenizer *tok = r->tok;
    kvs__token_entry *e = &tok->entries[id];
    const int shown = text.len < 60 ? (int)text.len : 60;
    if (text.len > KVS__TOKEN_TEXT_MAX) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: token %" PRId64 " has a text of %zu bytes", id, text.len);
    }
    bool same = e->ptr && text.ptr && e->len == text.len && memcmp(e->ptr, text.ptr, text.len) == 0;
    if (e->ptr && !same) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: id %" PRId64 " is \"%.*s\" and \"%.*s\"", id,
                         e->len < 60 ? (int)e->len : 60, e->ptr, shown, text.ptr);
    }
    if (e->ptr && attr == KVS_TOKEN_NORMAL) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: token \"%.*s\" is there twice", shown, text.ptr);
    }
    *e = (kvs__token_entry){text.ptr, (uint32_t)text.len, attr};
    tok->max_len = text.len > tok->max_len ? text.len : tok->max_len;
    return KVS_OK;
}

static kvs_status fill_entries(const struct reader *r, size_t n_rows)
{
    kvs_tokenizer *tok = r->tok;
    size_t n = 0;
    kvs_status st = count_ids(r, &n);
    if (st != KVS_OK) {
        return st;
    }
    if (n_rows > 0 && (n_rows < n || n_rows > INT32_MAX - 1)) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json has %zu tokens, the model %zu rows", n, n_rows);
    }
    n = n_rows > 0 ? n_rows : n;
    tok->entries = kvs__calloc(tok->ctx, n, sizeof *tok->entries);
    if (!tok->entries) {
        return kvs__nomem(r->err, "engine", n * sizeof *tok->entries);
    }
    tok->n_tokens = n;
    kvs__jval at = {NULL, 0};
    for (uint32_t i = 0; i < r->n_model && st == KVS_OK; i++) {
        kvs__text text = {NULL, 0};
        int64_t id = 0;
        st = next_piece(r, i, &at, &text, &id);
        st = st == KVS_OK ? set_entry(r, id, text, KVS_TOKEN_NORMAL) : st;
    }
    for (size_t i = 0; i < r->tj->n_added && st == KVS_OK; i++) {
        const kvs__tj_added *a = &r->tj->added[i];
        st = set_entry(r, a->id, a->text, a->special ? KVS_TOKEN_CONTROL : KVS_TOKEN_USER);
    }
    for (size_t i = 0; i < n; i++) {
        if (!tok->entries[i].ptr) {
            tok->entries[i] = (kvs__token_entry){"", 0, KVS_TOKEN_UNUSED};
        }
    }
    return st;
}

static kvs_status check_unique(const struct reader *r)
{
    const kvs_tokenizer *tok = r->tok;
    for (size_t i = 0; i < tok->n_tokens; i++) {
        const kvs__token_entry *e = &tok->entries[i];
        const int32_t id = e->len > 0 ? kvs__token_map_find(tok, e->ptr, e->len) : (int32_t)i;
        if (id != (int32_t)i) {
            return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                             "tokenizer.json: tokens %d and %zu are both \"%.*s\"", id, i,
                             e->len < 60 ? (int)e->len : 60, e->ptr);
        }
    }
    return KVS_OK;
}

/* ---- added tokens */

static kvs_status read_added_one(const struct reader *r, kvs__jval node, kvs__tj_added *a)
{
    int64_t id = 0;
    kvs_status st = kvs__tj_text(node, "content", &a->text, r->err);
    if (st != KVS_OK) {
        return st;
    }
    if (!a->text.ptr || !kvs__json_whole(kvs__json_get(node, "id"), &id) || id < 0 ||
        id > INT32_MAX - 2) {
        return kvs__tj_bad("an added token has no content or no id", r->err);
    }
    a->id = (int32_t)id;
    const struct {
        const char *key;
        bool *value;
    } flags[] = {{"special", &a->special},
                 {"lstrip", &a->lstrip},
                 {"rstrip", &a->rstrip},
                 {"single_word", &a->single_word},
                 {"normalized", &a->normalized}};
    for (size_t i = 0; i < KVS_COUNT(flags) && st == KVS_OK; i++) {
        st = kvs__tj_bool(node, flags[i].key, flags[i].value, r->err);
    }
    return st;
}

/* Special ones first: of two that match the same text the first counts. */
static kvs_status read_added(const struct reader *r)
{
    if (kvs__tj_absent(r->added)) {
        return KVS_OK;
    }
    if (kvs__json_kind(r->added) != KVS__JSON_ARRAY) {
        return kvs__tj_bad("added_tokens is no list", r->err);
    }
    const size_t n = kvs__json_count(r->added);
    kvs__tj_added *all = kvs__calloc(r->tok->ctx, n, sizeof *all);
    if (!all) {
        return kvs__nomem(r->err, "engine", n * sizeof *all);
    }
    r->tj->added = all;
    r->tj->n_added = n;
    size_t used = 0;
    for (unsigned pass = 0; pass < 2; pass++) {
        kvs__jval at = {NULL, 0};
        while (kvs__json_next(r->added, &at)) {
            kvs__tj_added a = {.normalized = false};
            kvs_status st = read_added_one(r, at, &a);
            if (st != KVS_OK) {
                return st;
            }
            if (a.special == (pass == 0)) {
                all[used++] = a;
            }
        }
    }
    return KVS_OK;
}

/* ---- BPE */

static bool usable(const kvs_tokenizer *tok, int32_t id)
{
    return id >= 0 && (tok->entries[id].attr & KVS_TOKEN_CONTROL) == 0;
}

static void fill_bytes(kvs_tokenizer *tok)
{
    for (unsigned b = 0; b < 256; b++) {
        static const char hex[] = "0123456789ABCDEF";
        const char text[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        tok->byte_id[b] = tok->json->byte_fallback ? kvs__token_map_find(tok, text, 6) : -1;
        if (tok->byte_id[b] >= 0) {
            uint32_t *attr = &tok->entries[tok->byte_id[b]].attr;
            *attr = (*attr & ~(uint32_t)KVS_TOKEN_NORMAL) | KVS_TOKEN_BYTE;
        }
    }
}

static bool is_byte_token(const kvs_tokenizer *tok, int32_t id)
{
    return (tok->entries[id].attr & KVS_TOKEN_BYTE) != 0;
}

static uint32_t edge_char(kvs__text t, bool last)
{
    size_t at = 0;
    if (last) {
        at = t.len;
        while (at > 0 && ((unsigned char)t.ptr[--at] & 0xc0) == 0x80) {
        }
    }
    size_t step = 0;
    uint32_t cp = 0;
    if (t.ptr) {
        (void)kvs__utf8_step(t.ptr + at, t.len - at, &step, &cp);
    }
    return cp;
}

static kvs_status merge_texts(const struct reader *r, kvs__jval node, kvs__text part[2])
{
    const kvs__text s = kvs__tj_str(node);
    if (s.ptr) {
        const char *space = memchr(s.ptr, ' ', s.len);
        const size_t left = space ? (size_t)(space - s.ptr) : 0;
        if (!space || left == 0 || left + 1 == s.len || memchr(space + 1, ' ', s.len - left - 1)) {
            return kvs__tj_bad("a merge is not two texts", r->err);
        }
        part[0] = (kvs__text){s.ptr, left};
        part[1] = (kvs__text){space + 1, s.len - left - 1};
        return KVS_OK;
    }
    kvs__jval pair[2];
    if (!kvs__tj_pair(node, pair)) {
        return kvs__tj_bad("a merge is not two texts", r->err);
    }
    part[0] = kvs__tj_str(pair[0]);
    part[1] = kvs__tj_str(pair[1]);
    return part[0].ptr && part[1].ptr && part[0].len > 0 && part[1].len > 0
               ? KVS_OK
               : kvs__tj_bad("a merge is not two texts", r->err);
}

static kvs_status add_merge(const struct reader *r, kvs__tbuf *whole, uint32_t rank,
                            const kvs__text part[2])
{
    kvs_tokenizer *tok = r->tok;
    const size_t skip = r->tj->prefix.len;
    const int32_t left = kvs__token_map_find(tok, part[0].ptr, part[0].len);
    const int32_t right = kvs__token_map_find(tok, part[1].ptr, part[1].len);
    whole->len = 0;
    kvs_status st = kvs__tbuf_put(tok->ctx, whole, part[0].ptr, part[0].len, r->err);
    if (st == KVS_OK && part[1].len >= skip) {
        st = kvs__tbuf_put(tok->ctx, whole, part[1].ptr + skip, part[1].len - skip, r->err);
    }
    if (st != KVS_OK) {
        return st;
    }
    const int32_t id = kvs__token_map_find(tok, whole->p, whole->len);
    if (left < 0 || right < 0 || id < 0) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: merge %u of \"%.*s\" and \"%.*s\": no such token", rank,
                         part[0].len < 40 ? (int)part[0].len : 40, part[0].ptr,
                         part[1].len < 40 ? (int)part[1].len : 40, part[1].ptr);
    }
    if (!usable(tok, id)) {
        return KVS_OK;
    }
    if (is_byte_token(tok, left) || is_byte_token(tok, right) || left == r->tj->unk ||
        right == r->tj->unk) {
        r->tj->no_cuts = true; /* such symbols stand for other characters than their text's */
    }
    kvs__token_neighbours_add(tok, edge_char(part[0], true), edge_char(part[1], false));
    return kvs__token_pair_put(tok, (kvs__bpe_pair){(uint32_t)left, (uint32_t)right, rank, id},
                               r->err);
}

static kvs_status build_bpe(const struct reader *r)
{
    kvs_tokenizer *tok = r->tok;
    struct kvs__tj *tj = r->tj;
    const kvs__jval merges = kvs__json_get(r->model, "merges");
    const size_t n = kvs__json_count(merges);
    tj->no_cuts = tj->prefix.len > 0 || tj->suffix.len > 0;
    kvs_status st = kvs__token_pairs_new(tok, n, r->err);
    st = st == KVS_OK ? kvs__token_neighbours_new(tok, r->err) : st;
    kvs__tbuf whole = {NULL, 0, 0};
    kvs__jval at = {NULL, 0};
    for (size_t i = 0; st == KVS_OK && kvs__json_next(merges, &at); i++) {
        kvs__text part[2] = {{NULL, 0}, {NULL, 0}};
        st = merge_texts(r, at, part);
        st = st == KVS_OK ? add_merge(r, &whole, (uint32_t)i, part) : st;
    }
    kvs__tbuf_free(tok->ctx, &whole);
    for (uint32_t cp = 0; cp < KVS_COUNT(tj->cp_id); cp++) {
        char text[4];
        const int32_t id = kvs__token_map_find(tok, text, kvs__utf8_put(cp, text));
        tj->cp_id[cp] = usable(tok, id) ? id : -1;
    }
    return st;
}

/* ---- Unigram */

static kvs_status build_unigram(const struct reader *r)
{
    kvs_tokenizer *tok = r->tok;
    struct kvs__tj *tj = r->tj;
    tj->scores = kvs__calloc(tok->ctx, tok->n_tokens, sizeof *tj->scores);
    tj->words.items = kvs__calloc(tok->ctx, r->n_model, sizeof *tj->words.items);
    tj->n_words_cap = r->n_model;
    if (!tj->scores || !tj->words.items) {
        return kvs__nomem(r->err, "engine", tok->n_tokens * sizeof *tj->scores);
    }
    double least = 0;
    size_t used = 0;
    kvs__jval at = {NULL, 0};
    kvs__token_entry *items = tj->words.items;
    for (size_t i = 0; i < r->n_model; i++) {
        kvs__jval pair[2];
        (void)kvs__json_next(r->vocab, &at);
        (void)kvs__tj_pair(at, pair);
        if (!kvs__tj_double(pair[1], &tj->scores[i])) {
            return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                             "tokenizer.json: the score of piece %zu is no number", i);
        }
        /* Paths whose scores are the same numbers in another order differ in their last bits only:
         * which of them wins hangs on the bits that the reference reads. */
        const kvs__str digits = kvs__json_raw(pair[1]);
        tj->scores[i] = kvs__json_number_rounded_twice(digits.ptr, digits.len);
        least = i == 0 || tj->scores[i] < least ? tj->scores[i] : least;
        if (usable(tok, (int32_t)i) && tok->entries[i].len > 0) {
            items[used] = tok->entries[i];
            items[used++].attr = (uint32_t)i;
        }
    }
    tj->words.n = used;
    kvs__token_list_index(&tj->words);
    tj->unk_score = least - 10;
    return KVS_OK;
}

/* ---- together */

static kvs_status read_unk(const struct reader *r)
{
    struct kvs__tj *tj = r->tj;
    const char *key = tj->unigram ? "unk_id" : "unk_token";
    const kvs__jval node = kvs__json_get(r->model, key);
    if (kvs__tj_absent(node)) {
        return KVS_OK;
    }
    const kvs__text text = kvs__tj_str(node);
    int64_t id = -1;
    if (!tj->unigram && text.ptr) {
        id = kvs__token_map_find(r->tok, text.ptr, text.len);
    } else if (!tj->unigram || !kvs__json_whole(node, &id)) {
        id = -1;
    }
    if (id < 0 || (uint64_t)id >= (tj->unigram ? r->n_model : r->tok->n_tokens)) {
        return kvs__fail(r->err, KVS_E_FORMAT, "engine",
                         "tokenizer.json: %s is not in the vocabulary", key);
    }
    tj->unk = (int32_t)id;
    uint32_t *attr = &r->tok->entries[id].attr;
    *attr = (*attr & ~(uint32_t)KVS_TOKEN_NORMAL) | KVS_TOKEN_UNKNOWN;
    return KVS_OK;
}

static kvs_status read_options(const struct reader *r)
{
    struct kvs__tj *tj = r->tj;
    double dropout = 0;
    const kvs__jval node = kvs__json_get(r->model, "dropout");
    if (!kvs__tj_absent(node) && (!kvs__tj_double(node, &dropout) || dropout != 0)) {
        return kvs__fail(r->err, KVS_E_UNSUPPORTED, "engine",
                         "tokenizer.json: dropout is not supported");
    }
    kvs_status st = kvs__tj_bool(r->model, "byte_fallback", &tj->byte_fallback, r->err);
    if (st == KVS_OK && !tj->unigram) {
        st = kvs__tj_bool(r->model, "fuse_unk", &tj->fuse_unk, r->err);
        st =
            st == KVS_OK ? kvs__tj_bool(r->model, "ignore_merges", &tj->ignore_merges, r->err) : st;
        st = st == KVS_OK ? kvs__tj_text(r->model, "continuing_subword_prefix", &tj->prefix, r->err)
                          : st;
        st = st == KVS_OK ? kvs__tj_text(r->model, "end_of_word_suffix", &tj->suffix, r->err) : st;
    }
    return st;
}

kvs_status kvs__tj_vocab_read(kvs_tokenizer *tok, size_t n_rows, kvs_err *err)
{
    struct kvs__tj *tj = tok->json;
    struct reader r = {.tok = tok, .tj = tj, .err = err};
    const kvs__jval root = kvs__json_root(tj->doc);
    r.model = kvs__json_get(root, "model");
    r.added = kvs__json_get(root, "added_tokens");
    tj->unk = -1;
    kvs_status st = find_model(&r);
    st = st == KVS_OK ? read_added(&r) : st;
    st = st == KVS_OK ? fill_entries(&r, n_rows) : st;
    st = st == KVS_OK ? kvs__token_map_build(tok, err) : st;
    st = st == KVS_OK ? check_unique(&r) : st;
    st = st == KVS_OK ? read_options(&r) : st;
    st = st == KVS_OK ? read_unk(&r) : st;
    if (st != KVS_OK) {
        return st;
    }
    fill_bytes(tok);
    return tj->unigram ? build_unigram(&r) : build_bpe(&r);
}
