/* SPDX-License-Identifier: MIT */
/* token_spm.c: SentencePiece-style tokenising with scores: characters are joined while the joined
 * text is a token, best score first, and what is no token falls back to byte tokens.
 *
 * There are no words here, a merge may cross a space. But no merge can join two characters that
 * stand side by side in no token at all, so the text is cut there first, which changes nothing and
 * makes nearly all pieces a few characters long. `neighbours` is that set of character pairs,
 * hashed: a collision costs a cut, never a wrong one.
 *
 * Tokens of type unused are produced like normal ones.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_utf8.h"

static size_t neighbour_bit(uint32_t a, uint32_t b)
{
    uint64_t key = ((uint64_t)a << 21 | b) * 0x9e3779b97f4a7c15u;
    return (size_t)(key >> (64 - KVS__NEIGHBOUR_BITS));
}

bool kvs__token_are_neighbours(const kvs_tokenizer *tok, uint32_t a, uint32_t b)
{
    size_t bit = neighbour_bit(a, b);
    return (tok->neighbours[bit / 64] >> (bit % 64) & 1) != 0;
}

kvs_status kvs__token_neighbours_new(kvs_tokenizer *tok, kvs_err *err)
{
    tok->neighbours = kvs__calloc(tok->ctx, KVS__NEIGHBOUR_WORDS, sizeof *tok->neighbours);
    return tok->neighbours
               ? KVS_OK
               : kvs__nomem(err, "engine", KVS__NEIGHBOUR_WORDS * sizeof *tok->neighbours);
}

void kvs__token_neighbours_add(kvs_tokenizer *tok, uint32_t a, uint32_t b)
{
    size_t bit = neighbour_bit(a, b);
    tok->neighbours[bit / 64] |= (uint64_t)1 << (bit % 64);
}

static void note_neighbours(kvs_tokenizer *tok, const kvs__token_entry *e)
{
    uint32_t prev = 0;
    for (size_t i = 0, step = 0; i < e->len; i += step) {
        uint32_t cp = 0;
        if (kvs__utf8_step(e->ptr + i, e->len - i, &step, &cp) != KVS__UTF8_OK) {
            return; /* ill-formed texts can't be met: the text to tokenise is well-formed */
        }
        cp = cp == ' ' ? KVS__SPACE_MARK_CP : cp;
        if (i > 0) {
            kvs__token_neighbours_add(tok, prev, cp);
        }
        prev = cp;
    }
}

/* Descending order of floats as ascending order of unsigned numbers; NaN counts as the worst. */
uint32_t kvs__token_spm_rank(float score)
{
    if (score != score) {
        return KVS__RANK_NONE - 1;
    }
    score += 0.0f; /* -0 becomes 0 */
    uint32_t bits = 0;
    memcpy(&bits, &score, sizeof bits);
    return (bits & 0x80000000u) != 0 ? bits : ~(bits | 0x80000000u);
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x0A>" -> 10, else -1. */
static int byte_of(const kvs__token_entry *e)
{
    if (e->len != 6 || memcmp(e->ptr, "<0x", 3) != 0 || e->ptr[5] != '>') {
        return -1;
    }
    int hi = hex(e->ptr[3]);
    int lo = hex(e->ptr[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static kvs_status note_bytes(kvs_tokenizer *tok, kvs_err *err)
{
    for (unsigned b = 0; b < 256; b++) {
        tok->byte_id[b] = -1;
    }
    for (size_t i = 0; i < tok->n_tokens; i++) {
        if ((tok->entries[i].attr & KVS_TOKEN_BYTE) == 0) {
            continue;
        }
        int byte = byte_of(&tok->entries[i]);
        if (byte < 0) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "byte token %zu is not spelled like <0x0A>", i);
        }
        if (tok->byte_id[byte] < 0) {
            tok->byte_id[byte] = (int32_t)i;
        }
    }
    return KVS_OK;
}

kvs_status kvs__token_spm_build(kvs_tokenizer *tok, kvs_err *err)
{
    kvs_status st = kvs__token_neighbours_new(tok, err);
    if (st != KVS_OK) {
        return st;
    }
    for (size_t i = 0; i < tok->n_tokens; i++) {
        if ((tok->entries[i].attr & KVS__TOKEN_MERGEABLE) != 0) {
            note_neighbours(tok, &tok->entries[i]);
        }
    }
    return note_bytes(tok, err);
}

static int32_t find_piece(const kvs_tokenizer *tok, const char *text, size_t len)
{
    int32_t id = kvs__token_map_find(tok, text, len);
    return id >= 0 && (tok->entries[id].attr & KVS__TOKEN_MERGEABLE) != 0 ? id : -1;
}

static uint32_t pair_rank(const kvs_tokenizer *tok, const char *text, const kvs__sym *left,
                          const kvs__sym *right, int32_t *id)
{
    size_t len = (size_t)left->len + right->len;
    int32_t found = len <= tok->max_len ? find_piece(tok, text + left->at, len) : -1;
    if (found < 0) {
        return KVS__RANK_NONE;
    }
    *id = found;
    return tok->ranks[found];
}

static bool has_bytes(const kvs_tokenizer *tok, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (tok->byte_id[(unsigned char)text[i]] < 0) {
            return false;
        }
    }
    return true;
}

/* A character without a token: its bytes, or the unknown token, one for several in a row. */
static kvs_status push_fallback(kvs__token_work *w, const char *text, size_t len)
{
    const kvs_tokenizer *tok = w->tok;
    if (has_bytes(tok, text, len)) {
        w->after_unk = false;
        kvs_status st = KVS_OK;
        for (size_t i = 0; i < len && st == KVS_OK; i++) {
            st = kvs__token_push(w, tok->byte_id[(unsigned char)text[i]]);
        }
        return st;
    }
    int32_t unk = tok->special[KVS_SPECIAL_UNK];
    if (w->after_unk || unk < 0) {
        return KVS_OK;
    }
    w->after_unk = true;
    return kvs__token_push(w, unk);
}

static kvs_status push_piece(kvs__token_work *w, int32_t id, const char *text, size_t len)
{
    if (id < 0) {
        return push_fallback(w, text, len);
    }
    w->after_unk = false;
    return kvs__token_push(w, id);
}

/* n characters, whose at and len are in syms. */
static kvs_status merge_run(kvs__token_work *w, const char *text, size_t n)
{
    kvs__sym *s = w->syms;
    for (size_t i = 0; i < n; i++) {
        s[i].id = find_piece(w->tok, text + s[i].at, s[i].len);
    }
    if (n == 1) {
        return push_piece(w, s[0].id, text + s[0].at, s[0].len);
    }
    kvs__token_merge(w->tok, text, s, w->heap, n, pair_rank);
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i != UINT32_MAX && st == KVS_OK; i = s[i].next) {
        st = push_piece(w, s[i].id, text + s[i].at, s[i].len);
    }
    return st;
}

static kvs_status tokenize(kvs__token_work *w, const char *text, size_t len)
{
    size_t n = 0;
    uint32_t prev = 0;
    kvs_status st = KVS_OK;
    for (size_t i = 0, step = 0; i < len; i += step) {
        uint32_t cp = 0;
        (void)kvs__utf8_step(text + i, len - i, &step, &cp);
        if (n > 0 && !kvs__token_are_neighbours(w->tok, prev, cp)) {
            st = merge_run(w, text, n);
            n = 0;
        }
        if (st == KVS_OK) {
            st = kvs__token_reserve_syms(w, n + 1);
        }
        if (st != KVS_OK) {
            return st;
        }
        w->syms[n].at = (uint32_t)i;
        w->syms[n].len = (uint32_t)step;
        n++;
        prev = cp;
    }
    return n > 0 ? merge_run(w, text, n) : KVS_OK;
}

kvs_status kvs__token_spm_section(kvs__token_work *w, char *text, size_t len)
{
    if (len == 0) {
        return KVS_OK;
    }
    if (w->tok->add_space_prefix) {
        /* What stood there is done with, or the room that encode left in front. */
        text -= sizeof KVS__SPACE_MARK - 1;
        len += sizeof KVS__SPACE_MARK - 1;
        memcpy(text, KVS__SPACE_MARK, sizeof KVS__SPACE_MARK - 1);
    }
    return tokenize(w, text, len);
}
