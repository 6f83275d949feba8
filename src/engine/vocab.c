/* SPDX-License-Identifier: MIT */
/* vocab.c: reads the tokenizer.* keys of a file into the form that token.h takes.
 *
 * Ids and lengths are checked here or by kvs__tokenizer_new; the temporary arrays live for the call
 * only. Which tokens end a generation is often not in the metadata, so control tokens with one of
 * the usual spellings count as such too. */
#include <stdio.h>
#include <string.h>

#include "engine/model_parts.h"
#include "engine/token.h"

#define KEY(name) "tokenizer.ggml." name
#define MAX_EOG   16u

typedef struct reader {
    kvs_ctx *ctx;
    const kvs__gguf *g;
    kvs__vocab_src src;
    kvs__text *texts;
    kvs__text *merges;
    float *scores;
    int32_t *types;
    size_t n_merges;
    int32_t eog[MAX_EOG];
} reader;

static void reader_free(reader *r)
{
    kvs__free(r->ctx, r->texts, r->src.n_tokens * sizeof *r->texts);
    kvs__free(r->ctx, r->merges, r->n_merges * sizeof *r->merges);
    kvs__free(r->ctx, r->scores, r->src.n_tokens * sizeof *r->scores);
    kvs__free(r->ctx, r->types, r->src.n_tokens * sizeof *r->types);
}

/* A string array as views into the file. KVS_NO where the key is absent. */
static kvs_status read_texts(reader *r, const char *key, kvs__text **out, size_t *n, kvs_err *err)
{
    kvs__gguf_array a = {0};
    kvs_status st = kvs__gguf_get_array(r->g, key, KVS__GGUF_STR, &a, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__text *texts = kvs__calloc(r->ctx, a.n, sizeof *texts);
    if (!texts) {
        return kvs__nomem(err, "engine", a.n * sizeof *texts);
    }
    size_t at = 0;
    kvs__str s = {NULL, 0};
    for (size_t i = 0; i < a.n && kvs__gguf_array_next(&a, &at, &s); i++) {
        texts[i] = (kvs__text){s.ptr, s.len};
    }
    *out = texts;
    *n = a.n;
    return KVS_OK;
}

static kvs_status check_count(const char *key, size_t n, size_t n_tokens, kvs_err *err)
{
    if (n != n_tokens) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu elements for %zu tokens", key, n,
                         n_tokens);
    }
    return KVS_OK;
}

static kvs_status read_scores(reader *r, kvs_err *err)
{
    kvs__gguf_array a = {0};
    kvs_status st = kvs__gguf_get_array(r->g, KEY("scores"), KVS__GGUF_F32, &a, err);
    if (st == KVS_OK) {
        st = check_count(KEY("scores"), a.n, r->src.n_tokens, err);
    }
    if (st != KVS_OK) {
        return st == KVS_NO ? KVS_OK : st;
    }
    r->scores = kvs__alloc(r->ctx, a.n * sizeof *r->scores);
    if (!r->scores) {
        return kvs__nomem(err, "engine", a.n * sizeof *r->scores);
    }
    for (size_t i = 0; i < a.n; i++) {
        r->scores[i] = kvs__gguf_array_f32(&a, i);
    }
    r->src.scores = r->scores;
    return KVS_OK;
}

static kvs_status read_types(reader *r, kvs_err *err)
{
    kvs__gguf_array a = {0};
    kvs_status st = kvs__gguf_get_array(r->g, KEY("token_type"), KVS__GGUF_I32, &a, err);
    if (st == KVS_OK) {
        st = check_count(KEY("token_type"), a.n, r->src.n_tokens, err);
    }
    if (st != KVS_OK) {
        return st == KVS_NO ? KVS_OK : st;
    }
    r->types = kvs__alloc(r->ctx, a.n * sizeof *r->types);
    if (!r->types) {
        return kvs__nomem(err, "engine", a.n * sizeof *r->types);
    }
    for (size_t i = 0; i < a.n; i++) {
        r->types[i] = (int32_t)kvs__gguf_array_int(&a, i);
    }
    r->src.types = r->types;
    return KVS_OK;
}

static kvs_status read_special(reader *r, kvs_err *err)
{
    static const char *const keys[KVS_SPECIAL_COUNT] = {
        [KVS_SPECIAL_BOS] = KEY("bos_token_id"),     [KVS_SPECIAL_EOS] = KEY("eos_token_id"),
        [KVS_SPECIAL_UNK] = KEY("unknown_token_id"), [KVS_SPECIAL_PAD] = KEY("padding_token_id"),
        [KVS_SPECIAL_EOT] = KEY("eot_token_id"),     [KVS_SPECIAL_SEP] = KEY("seperator_token_id"),
        [KVS_SPECIAL_MASK] = KEY("mask_token_id"),
    };
    for (size_t i = 0; i < KVS_SPECIAL_COUNT; i++) {
        int64_t id = -1;
        kvs_status st = kvs__gguf_get_i64(r->g, keys[i], &id, err);
        if (st == KVS_NO) {
            continue;
        }
        if (st != KVS_OK) {
            return st;
        }
        if (id < -1 || id >= (int64_t)r->src.n_tokens) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "%s is %lld, there are %zu tokens",
                             keys[i], (long long)id, r->src.n_tokens);
        }
        r->src.special[i] = (int32_t)id;
    }
    return KVS_OK;
}

static kvs_status read_flag(const reader *r, const char *key, int *out, kvs_err *err)
{
    bool b = false;
    kvs_status st = kvs__gguf_get_bool(r->g, key, &b, err);
    if (st == KVS_OK) {
        *out = b ? 1 : 0;
    }
    return st == KVS_NO ? KVS_OK : st;
}

/* Spellings of tokens that end a turn or a text. The first half also serve as EOT. */
static void find_eog(reader *r)
{
    static const char *const names[] = {
        "<|eot_id|>",      "<|im_end|>",    "<|end|>",    "<end_of_turn>",   "<EOT>",
        "<|end_of_turn|>", "<|endoftext|>", "<|eom_id|>", "<|end_of_text|>", "</s>",
    };
    const size_t n_eot = 6;
    r->src.eog = r->eog;
    for (size_t i = 0; i < r->src.n_tokens && r->src.n_eog < MAX_EOG; i++) {
        const kvs__text *t = &r->texts[i];
        bool special =
            r->types && (r->types[i] == KVS__TYPE_CONTROL || r->types[i] == KVS__TYPE_USER);
        if (!special || t->len < 4 || t->ptr[0] != '<') {
            continue;
        }
        for (size_t j = 0; j < KVS_COUNT(names); j++) {
            if (!kvs__str_eq((kvs__str){t->ptr, t->len}, names[j])) {
                continue;
            }
            r->eog[r->src.n_eog++] = (int32_t)i;
            if (j < n_eot && r->src.special[KVS_SPECIAL_EOT] < 0) {
                r->src.special[KVS_SPECIAL_EOT] = (int32_t)i;
            }
            break;
        }
    }
}

static kvs_status read_kind(reader *r, kvs__str model, kvs_err *err)
{
    if (kvs__str_eq(model, "gpt2")) {
        r->src.kind = KVS__VOCAB_BPE;
        kvs__str pre = {"default", 7};
        kvs_status st = kvs__gguf_get_str(r->g, KEY("pre"), &pre, err);
        if (st < 0) {
            return st;
        }
        r->src.pre = (kvs__text){pre.ptr, pre.len};
        st = read_texts(r, KEY("merges"), &r->merges, &r->n_merges, err);
        r->src.merges = r->merges;
        r->src.n_merges = r->n_merges;
        return st == KVS_NO ? KVS_OK : st;
    }
    if (kvs__str_eq(model, "llama")) {
        r->src.kind = KVS__VOCAB_SPM;
        return read_scores(r, err);
    }
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "tokenizer.ggml.model \"%.*s\" is not supported; supported: gpt2, llama",
                     model.len < 40 ? (int)model.len : 40, model.ptr);
}

static kvs_status read_all(reader *r, kvs__str model, kvs_err *err)
{
    kvs_status st = read_texts(r, KEY("tokens"), &r->texts, &r->src.n_tokens, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no " KEY("tokens"));
    }
    r->src.texts = r->texts;
    if (st == KVS_OK) {
        st = read_kind(r, model, err);
    }
    if (st == KVS_OK) {
        st = read_types(r, err);
    }
    if (st == KVS_OK) {
        st = read_special(r, err);
    }
    if (st == KVS_OK) {
        st = read_flag(r, KEY("add_bos_token"), &r->src.add_bos, err);
    }
    if (st == KVS_OK) {
        st = read_flag(r, KEY("add_eos_token"), &r->src.add_eos, err);
    }
    if (st == KVS_OK) {
        st = read_flag(r, KEY("add_space_prefix"), &r->src.add_space_prefix, err);
    }
    return st;
}

kvs_status kvs__vocab_load(kvs_model *m, kvs_err *err)
{
    kvs__str model = {NULL, 0};
    kvs_status st = kvs__gguf_get_str(m->gguf, KEY("model"), &model, err);
    if (st != KVS_OK) {
        return st == KVS_NO ? KVS_OK : st;
    }
    reader r = {.ctx = m->ctx, .g = m->gguf, .src = KVS__VOCAB_SRC_INIT};
    st = read_all(&r, model, err);
    if (st == KVS_OK) {
        find_eog(&r);
        st = kvs__tokenizer_new(m->ctx, &r.src, &m->tok, err);
    }
    reader_free(&r);
    return st;
}
