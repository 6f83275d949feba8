/* SPDX-License-Identifier: MIT */
/* token_bpe.c: byte-level BPE: the visible byte alphabet, the merge table, one word at a time.
 *
 * Vocabulary texts spell each byte as one visible character (GPT-2's alphabet: printable Latin-1
 * as itself, the other 68 bytes as U+0100 and up, in order). Words are merged by token id, so
 * that alphabet matters only for building and for decoding.
 *
 * I1  pairs is at most half full; of two merges with one pair the first (better) counts.
 * I2  A merge whose parts or whole are no tokens is left out: it could not produce one. So is one
 *     that would make a control token: those come from KVS_TOKENIZE_SPECIAL alone.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_pre.h"
#include "engine/token_utf8.h"

#define PROBE_MAX 1024u
#define MERGE_MAX 4096u /* bytes of a merged text */
#define N_VISIBLE 324u  /* 256 + 68 */

static bool is_visible(unsigned b)
{
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
}

/* Character of a byte. The invisible ones are 0..0x20, 0x7f..0xa0 and 0xad. */
static uint32_t visible_of(unsigned byte)
{
    if (is_visible(byte)) {
        return byte;
    }
    if (byte <= 0x20) {
        return 256 + byte;
    }
    return byte <= 0xa0 ? 256 + 0x21 + (byte - 0x7f) : 256 + 0x43;
}

int kvs__token_bpe_byte_of(uint32_t cp)
{
    if (cp < 256) {
        return is_visible(cp) ? (int)cp : -1;
    }
    if (cp >= N_VISIBLE) {
        return -1;
    }
    uint32_t k = cp - 256;
    if (k <= 0x20) {
        return (int)k;
    }
    k -= 0x21;
    return k <= 0x21 ? (int)(0x7f + k) : 0xad;
}

size_t kvs__token_bpe_visible(unsigned byte, char *out)
{
    uint32_t cp = visible_of(byte);
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xc0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3f));
    return 2;
}

size_t kvs__token_bpe_bytes(const char *text, size_t len, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t step = 0;
        uint32_t cp = 0;
        int byte = -1;
        if (kvs__utf8_step(text + i, len - i, &step, &cp) == KVS__UTF8_OK) {
            byte = kvs__token_bpe_byte_of(cp);
        }
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else { /* not of the alphabet: as it stands */
            memcpy(out + n, text + i, step);
            n += step;
        }
        i += step;
    }
    return n;
}

/* -- The merge table */

static size_t pair_home(const kvs_tokenizer *tok, uint32_t left, uint32_t right)
{
    uint64_t key = (uint64_t)left << 32 | right;
    key *= 0x9e3779b97f4a7c15u;
    key ^= key >> 32;
    return (size_t)key & (tok->n_pairs - 1);
}

/* The pair's slot or the free slot for it; NULL when it would be too far from home. */
static kvs__bpe_pair *pair_slot(const kvs_tokenizer *tok, uint32_t left, uint32_t right)
{
    size_t at = pair_home(tok, left, right);
    for (unsigned probe = 0; probe < PROBE_MAX; probe++) {
        kvs__bpe_pair *p = &tok->pairs[at];
        if (p->rank == KVS__RANK_NONE || (p->left == left && p->right == right)) {
            return p;
        }
        at = (at + 1) & (tok->n_pairs - 1);
    }
    return NULL;
}

uint32_t kvs__token_bpe_rank(const kvs_tokenizer *tok, const char *text, const kvs__sym *left,
                             const kvs__sym *right, int32_t *id)
{
    (void)text;
    const kvs__bpe_pair *p = pair_slot(tok, (uint32_t)left->id, (uint32_t)right->id);
    if (!p || p->rank == KVS__RANK_NONE) {
        return KVS__RANK_NONE;
    }
    *id = p->id;
    return p->rank;
}

static kvs_status add_merge(kvs_tokenizer *tok, kvs__text merge, uint32_t rank, kvs_err *err)
{
    /* A space cannot be spelled in the alphabet, so it separates; a part is never empty. */
    const char *sep = merge.len > 1 ? memchr(merge.ptr + 1, ' ', merge.len - 1) : NULL;
    if (!sep || sep + 1 == merge.ptr + merge.len) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "merge %u is not two texts", rank);
    }
    size_t n_left = (size_t)(sep - merge.ptr);
    size_t n_right = merge.len - n_left - 1;
    if (merge.len > MERGE_MAX) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "merge %u has %zu bytes", rank, merge.len);
    }
    char whole[MERGE_MAX];
    memcpy(whole, merge.ptr, n_left);
    memcpy(whole + n_left, sep + 1, n_right);
    int32_t left = kvs__token_map_find(tok, whole, n_left);
    int32_t right = kvs__token_map_find(tok, sep + 1, n_right);
    int32_t id = kvs__token_map_find(tok, whole, n_left + n_right);
    if (left < 0 || right < 0 || id < 0 ||
        (tok->entries[id].attr & (KVS_TOKEN_CONTROL | KVS_TOKEN_UNKNOWN)) != 0) {
        return KVS_OK;
    }
    kvs__bpe_pair *p = pair_slot(tok, (uint32_t)left, (uint32_t)right);
    if (!p) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "merges collide at %u; the file is not genuine", rank);
    }
    if (p->rank == KVS__RANK_NONE) {
        *p = (kvs__bpe_pair){(uint32_t)left, (uint32_t)right, rank, id};
    }
    return KVS_OK;
}

kvs_status kvs__token_pairs_new(kvs_tokenizer *tok, size_t n_merges, kvs_err *err)
{
    if (n_merges > INT32_MAX) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%zu merges", n_merges);
    }
    size_t n = 16;
    while (n < n_merges * 2) {
        n *= 2;
    }
    tok->pairs = kvs__alloc(tok->ctx, n * sizeof *tok->pairs);
    if (!tok->pairs) {
        return kvs__nomem(err, "engine", n * sizeof *tok->pairs);
    }
    tok->n_pairs = n;
    memset(tok->pairs, 0xff, n * sizeof *tok->pairs);
    return KVS_OK;
}

kvs_status kvs__token_pair_put(kvs_tokenizer *tok, kvs__bpe_pair pair, kvs_err *err)
{
    kvs__bpe_pair *p = pair_slot(tok, pair.left, pair.right);
    if (!p) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "merges collide at %u; the file is not genuine", pair.rank);
    }
    *p = pair;
    return KVS_OK;
}

static kvs_status build_pairs(kvs_tokenizer *tok, const kvs__vocab_src *src, kvs_err *err)
{
    kvs_status made = kvs__token_pairs_new(tok, src->n_merges, err);
    if (made != KVS_OK) {
        return made;
    }
    for (size_t i = 0; i < src->n_merges; i++) {
        kvs_status st = add_merge(tok, src->merge(src->user, i), (uint32_t)i, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

kvs_status kvs__token_bpe_build(kvs_tokenizer *tok, const kvs__vocab_src *src, kvs_err *err)
{
    for (unsigned b = 0; b < 256; b++) {
        char text[2];
        tok->byte_id[b] = kvs__token_map_find(tok, text, kvs__token_bpe_visible(b, text));
    }
    kvs_status st = build_pairs(tok, src, err);
    if (st != KVS_OK) {
        return st;
    }
    static const char fallback[] = "default";
    kvs__text name = src->pre.len > 0 ? src->pre : (kvs__text){fallback, sizeof fallback - 1};
    return kvs__pre_new(tok->ctx, name, &tok->pre, err);
}

/* -- Encoding */

/* The token that spells the word, where the scheme prefers that to merging; else -1. */
static int32_t whole_word(const kvs_tokenizer *tok, const char *word, size_t len)
{
    char text[512];
    if (!kvs__pre_whole_words(tok->pre) || len > sizeof text / 2) {
        return -1;
    }
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        n += kvs__token_bpe_visible((unsigned char)word[i], text + n);
    }
    int32_t id = kvs__token_map_find(tok, text, n);
    return id >= 0 && (tok->entries[id].attr & KVS__TOKEN_MERGEABLE) != 0 ? id : -1;
}

kvs_status kvs__token_bpe_word(kvs__token_work *w, const char *word, size_t len)
{
    const kvs_tokenizer *tok = w->tok;
    int32_t whole = whole_word(tok, word, len);
    if (whole >= 0) {
        return kvs__token_push(w, whole);
    }
    kvs_status st = kvs__token_reserve_syms(w, len);
    if (st != KVS_OK) {
        return st;
    }
    /* A byte that never occurred in training may lack a token. It is dropped before merging, as
     * the models' own tokenizers do; unknown_token_id of such files is for other uses. */
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        int32_t id = tok->byte_id[(unsigned char)word[i]];
        if (id >= 0) {
            w->syms[n].at = (uint32_t)i;
            w->syms[n].len = 1;
            w->syms[n++].id = id;
        }
    }
    if (n == 0) {
        return KVS_OK;
    }
    kvs__token_merge(tok, word, w->syms, w->heap, n, kvs__token_bpe_rank);
    for (uint32_t i = 0; i != UINT32_MAX && st == KVS_OK; i = w->syms[i].next) {
        st = kvs__token_push(w, w->syms[i].id);
    }
    return st;
}

kvs_status kvs__token_bpe_section(kvs__token_work *w, const char *text, size_t len)
{
    if (!w->match) {
        w->match = kvs__pre_match_new(w->tok->pre);
        if (!w->match) {
            return kvs__nomem(w->err, "engine", sizeof(void *));
        }
    }
    return kvs__pre_split(w->tok->pre, w, text, len);
}
