/* SPDX-License-Identifier: MIT */
/* token.c: making a tokenizer from a vocabulary, and what it knows about its tokens.
 *
 * A tokenizer is immutable once made. It copies no texts: entries point into the source's bytes.
 */
#include <string.h>

#include "engine/token.h"
#include "engine/token_pre.h"

/* Tokens that end a turn or a text, by spelling: many files name only one of them. */
static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<turn|>",
    "<|flush|>",
    "<|calls|>",
    "<eos>",
    "</s>",
    "<\xef\xbd\x9c\x65nd\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>"};
static const char *const eot_texts[] = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"};

static uint32_t attr_of(int32_t type)
{
    switch (type) {
    case KVS__TYPE_UNKNOWN:
        return KVS_TOKEN_UNKNOWN;
    case KVS__TYPE_CONTROL:
        return KVS_TOKEN_CONTROL;
    case KVS__TYPE_USER:
        return KVS_TOKEN_USER;
    case KVS__TYPE_UNUSED:
        return KVS_TOKEN_UNUSED;
    case KVS__TYPE_BYTE:
        return KVS_TOKEN_BYTE;
    default: /* 0 is undefined, and some files have it for normal tokens */
        return KVS_TOKEN_NORMAL;
    }
}

static kvs_status check_src(const kvs__vocab_src *src, kvs_err *err)
{
    if (src->n_tokens == 0 || src->n_tokens > INT32_MAX - 1) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "a vocabulary of %zu tokens", src->n_tokens);
    }
    static const char *const names[KVS_SPECIAL_COUNT] = {"BOS", "EOS",       "unknown", "padding",
                                                         "EOT", "separator", "mask"};
    for (unsigned i = 0; i < KVS_SPECIAL_COUNT; i++) {
        if (src->special[i] < -1 || src->special[i] >= (int64_t)src->n_tokens) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "%s token %d of a vocabulary of %zu",
                             names[i], src->special[i], src->n_tokens);
        }
    }
    for (size_t i = 0; i < src->n_eog; i++) {
        if (src->eog[i] < 0 || src->eog[i] >= (int64_t)src->n_tokens) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "end-of-generation token %d of a vocabulary of %zu", src->eog[i],
                             src->n_tokens);
        }
    }
    return KVS_OK;
}

static kvs_status fill_entries(kvs_tokenizer *tok, const kvs__vocab_src *src, kvs_err *err)
{
    const bool spm = tok->kind == KVS__VOCAB_SPM;
    tok->n_tokens = src->n_tokens;
    tok->entries = kvs__calloc(tok->ctx, src->n_tokens, sizeof *tok->entries);
    tok->ranks = spm ? kvs__calloc(tok->ctx, src->n_tokens, sizeof *tok->ranks) : NULL;
    if (!tok->entries || (spm && !tok->ranks)) {
        return kvs__nomem(err, "engine", src->n_tokens * sizeof *tok->entries);
    }
    for (size_t i = 0; i < src->n_tokens; i++) {
        kvs__vocab_token t = src->token(src->user, i);
        if (t.text.len > KVS__TOKEN_TEXT_MAX) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "token %zu has a text of %zu bytes", i,
                             t.text.len);
        }
        tok->max_len = t.text.len > tok->max_len ? t.text.len : tok->max_len;
        tok->entries[i] = (kvs__token_entry){t.text.len > 0 ? t.text.ptr : "", (uint32_t)t.text.len,
                                             attr_of(t.type)};
        if (spm) {
            tok->ranks[i] = kvs__token_spm_rank(t.score);
        }
    }
    return KVS_OK;
}

static int32_t find_z(const kvs_tokenizer *tok, const char *text)
{
    return kvs__token_map_find(tok, text, strlen(text));
}

static void mark_eog(kvs_tokenizer *tok, int32_t id)
{
    if (id >= 0) {
        tok->entries[id].attr |= KVS_TOKEN_EOG;
    }
}

/* A plain word of the vocabulary, or an HTML tag that the model writes as text, must not end a
 * generation because it is spelled like another model's token. */
static bool may_be_eog(const kvs_tokenizer *tok, int32_t id)
{
    const kvs__token_entry *e = &tok->entries[id];
    bool tag = e->len > 1 && memcmp(e->ptr, "<", 1) == 0 && e->ptr[1] != '|';
    return (e->attr & KVS_TOKEN_CONTROL) != 0 || (!tag && (e->attr & KVS_TOKEN_USER) != 0);
}

void kvs__token_special_fill(kvs_tokenizer *tok, const kvs__vocab_src *src)
{
    memcpy(tok->special, src->special, sizeof tok->special);
    for (size_t i = 0; i < KVS_COUNT(eog_texts); i++) {
        int32_t id = find_z(tok, eog_texts[i]);
        if (id >= 0 && may_be_eog(tok, id)) {
            mark_eog(tok, id);
        }
    }
    /* Where messages end with <|return|> or <|call|>, <|end|> only separates their parts. */
    int32_t end = find_z(tok, "<|end|>");
    if (end >= 0 && find_z(tok, "<|return|>") >= 0 && find_z(tok, "<|call|>") >= 0) {
        tok->entries[end].attr &= ~(uint32_t)KVS_TOKEN_EOG;
    }
    for (size_t i = 0; tok->special[KVS_SPECIAL_EOT] < 0 && i < KVS_COUNT(eot_texts); i++) {
        int32_t id = find_z(tok, eot_texts[i]);
        if (id >= 0 && (tok->entries[id].attr & KVS_TOKEN_EOG) != 0) {
            tok->special[KVS_SPECIAL_EOT] = id;
        }
    }
    mark_eog(tok, tok->special[KVS_SPECIAL_EOS]);
    mark_eog(tok, tok->special[KVS_SPECIAL_EOT]);
    for (size_t i = 0; i < src->n_eog; i++) {
        mark_eog(tok, src->eog[i]);
    }
}

static void fill_flags(kvs_tokenizer *tok, const kvs__vocab_src *src)
{
    bool spm = tok->kind == KVS__VOCAB_SPM;
    bool bos = src->add_bos < 0 ? spm || kvs__pre_adds_bos(tok->pre) : src->add_bos != 0;
    bool eos = src->add_eos > 0;
    tok->adds = (bos && tok->special[KVS_SPECIAL_BOS] >= 0 ? 1u : 0u) |
                (eos && tok->special[KVS_SPECIAL_EOS] >= 0 ? 2u : 0u);
    tok->add_space_prefix = spm && src->add_space_prefix != 0;
}

static kvs_status build(kvs_tokenizer *tok, const kvs__vocab_src *src, kvs_err *err)
{
    kvs_status st = fill_entries(tok, src, err);
    tok->max_out = tok->max_len;
    if (st == KVS_OK) {
        st = kvs__token_map_build(tok, err);
    }
    if (st == KVS_OK) {
        st = tok->kind == KVS__VOCAB_BPE ? kvs__token_bpe_build(tok, src, err)
                                         : kvs__token_spm_build(tok, err);
    }
    if (st == KVS_OK) {
        kvs__token_special_fill(tok, src);
        fill_flags(tok, src);
        st = kvs__token_lists_build(tok, err);
    }
    return st;
}

kvs_status kvs__tokenizer_new(kvs_ctx *ctx, const kvs__vocab_src *src, kvs_tokenizer **out,
                              kvs_err *err)
{
    kvs_status st = check_src(src, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_tokenizer *tok = kvs__calloc(ctx, 1, sizeof *tok);
    if (!tok) {
        return kvs__nomem(err, "engine", sizeof *tok);
    }
    tok->ctx = ctx;
    tok->kind = src->kind;
    st = build(tok, src, err);
    if (st != KVS_OK) {
        kvs__tokenizer_free(tok);
        return st;
    }
    *out = tok;
    return KVS_OK;
}

void kvs__tokenizer_free(kvs_tokenizer *tok)
{
    if (!tok) {
        return;
    }
    kvs_ctx *ctx = tok->ctx;
    kvs__tj_free(ctx, tok->json, tok->n_tokens);
    kvs__token_lists_free(tok);
    kvs__pre_free(tok->pre);
    kvs__free(ctx, tok->pairs, tok->n_pairs * sizeof *tok->pairs);
    kvs__free(ctx, tok->ranks, tok->n_tokens * sizeof *tok->ranks);
    kvs__free(ctx, tok->neighbours, KVS__NEIGHBOUR_WORDS * sizeof *tok->neighbours);
    kvs__free(ctx, tok->map.slots, tok->map.n_slots * sizeof *tok->map.slots);
    kvs__free(ctx, tok->entries, tok->n_tokens * sizeof *tok->entries);
    kvs__free(ctx, tok, sizeof *tok);
}

static bool is_id(const kvs_tokenizer *tok, int32_t id)
{
    return tok && id >= 0 && (size_t)id < tok->n_tokens;
}

const char *kvs_tokenizer_text(const kvs_tokenizer *tok, int32_t id, size_t *n_bytes)
{
    bool known = is_id(tok, id);
    if (n_bytes) {
        *n_bytes = known ? tok->entries[id].len : 0;
    }
    return known ? tok->entries[id].ptr : NULL;
}

int32_t kvs_tokenizer_find(const kvs_tokenizer *tok, const char *text, size_t n_bytes)
{
    return tok && (text || n_bytes == 0) ? kvs__token_map_find(tok, text ? text : "", n_bytes) : -1;
}

size_t kvs_tokenizer_size(const kvs_tokenizer *tok)
{
    return tok ? tok->n_tokens : 0;
}

uint32_t kvs_tokenizer_attr(const kvs_tokenizer *tok, int32_t id)
{
    return is_id(tok, id) ? tok->entries[id].attr : 0;
}

int32_t kvs_tokenizer_special(const kvs_tokenizer *tok, kvs_special which)
{
    return tok && (unsigned)which < KVS_SPECIAL_COUNT ? tok->special[which] : -1;
}

uint32_t kvs_tokenizer_adds(const kvs_tokenizer *tok)
{
    return tok ? tok->adds : 0;
}
