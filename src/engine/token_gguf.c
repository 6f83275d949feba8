/* SPDX-License-Identifier: MIT */
/* token_gguf.c: reads tokenizer.ggml.* into a kvs__vocab_src.
 *
 * Special ids out of range are logged and ignored rather than refused: files in use have -1 there,
 * stored as unsigned, for "none". Everything else that does not fit together is an error.
 */
#include <string.h>

#include "engine/token_gguf.h"

#define MAX_EOG 8u

/* The arrays of the source, which live only as long as the tokenizer is being made. */
struct arrays {
    kvs__text *texts;
    kvs__text *merges;
    float *scores;
    int32_t *types;
    int32_t eog[MAX_EOG];
    size_t n_texts;
    size_t n_merges;
};

static void arrays_free(kvs_ctx *ctx, struct arrays *a)
{
    kvs__free(ctx, a->texts, a->n_texts * sizeof *a->texts);
    kvs__free(ctx, a->merges, a->n_merges * sizeof *a->merges);
    kvs__free(ctx, a->scores, a->n_texts * sizeof *a->scores);
    kvs__free(ctx, a->types, a->n_texts * sizeof *a->types);
}

static kvs_status read_texts(kvs_ctx *ctx, const kvs__gguf_array *array, kvs__text **out, size_t *n,
                             kvs_err *err)
{
    *out = kvs__calloc(ctx, array->n, sizeof **out);
    if (!*out) {
        return kvs__nomem(err, "engine", array->n);
    }
    *n = array->n;
    size_t at = 0;
    kvs__str s = {NULL, 0};
    for (size_t i = 0; i < array->n && kvs__gguf_array_next(array, &at, &s); i++) {
        (*out)[i] = (kvs__text){s.ptr, s.len};
    }
    return KVS_OK;
}

/* An array with one element for each token; KVS_NO when absent. */
static kvs_status per_token(const kvs__gguf *g, const char *key, kvs__gguf_vtype type, size_t n,
                            kvs__gguf_array *out, kvs_err *err)
{
    kvs_status st = kvs__gguf_get_array(g, key, type, out, err);
    if (st == KVS_OK && out->n != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu elements for %zu tokens", key,
                         out->n, n);
    }
    return st;
}

static kvs_status read_scores(kvs_ctx *ctx, const kvs__gguf *g, struct arrays *a, kvs_err *err)
{
    kvs__gguf_array array;
    kvs_status st = per_token(g, "tokenizer.ggml.scores", KVS__GGUF_F32, a->n_texts, &array, err);
    if (st != KVS_OK) {
        return st == KVS_NO ? KVS_OK : st;
    }
    a->scores = kvs__calloc(ctx, a->n_texts, sizeof *a->scores);
    if (!a->scores) {
        return kvs__nomem(err, "engine", a->n_texts * sizeof *a->scores);
    }
    for (size_t i = 0; i < a->n_texts; i++) {
        a->scores[i] = kvs__gguf_array_f32(&array, i);
    }
    return KVS_OK;
}

static kvs_status read_types(kvs_ctx *ctx, const kvs__gguf *g, struct arrays *a, kvs_err *err)
{
    kvs__gguf_array array;
    kvs_status st =
        per_token(g, "tokenizer.ggml.token_type", KVS__GGUF_I32, a->n_texts, &array, err);
    if (st != KVS_OK) {
        return st == KVS_NO ? KVS_OK : st;
    }
    a->types = kvs__calloc(ctx, a->n_texts, sizeof *a->types);
    if (!a->types) {
        return kvs__nomem(err, "engine", a->n_texts * sizeof *a->types);
    }
    for (size_t i = 0; i < a->n_texts; i++) {
        a->types[i] = (int32_t)kvs__gguf_array_int(&array, i);
    }
    return KVS_OK;
}

static kvs_status read_arrays(kvs_ctx *ctx, const kvs__gguf *g, bool bpe, struct arrays *a,
                              kvs_err *err)
{
    kvs__gguf_array array;
    kvs_status st = kvs__gguf_get_array(g, "tokenizer.ggml.tokens", KVS__GGUF_STR, &array, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.ggml.tokens is missing");
    }
    if (st == KVS_OK) {
        st = read_texts(ctx, &array, &a->texts, &a->n_texts, err);
    }
    if (st == KVS_OK) {
        st = read_types(ctx, g, a, err);
    }
    if (st != KVS_OK || !bpe) {
        return st == KVS_OK ? read_scores(ctx, g, a, err) : st;
    }
    st = kvs__gguf_get_array(g, "tokenizer.ggml.merges", KVS__GGUF_STR, &array, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "tokenizer.ggml.merges is missing");
    }
    return st == KVS_OK ? read_texts(ctx, &array, &a->merges, &a->n_merges, err) : st;
}

/* *id is left alone where the key is absent, and becomes -1 where it is out of range. */
static kvs_status read_id(kvs_ctx *ctx, const kvs__gguf *g, const char *key, size_t n_tokens,
                          int32_t *id, kvs_err *err)
{
    int64_t value = 0;
    kvs_status st = kvs__gguf_get_i64(g, key, &value, err);
    if (st == KVS_NO) {
        return KVS_OK;
    }
    if (st == KVS_OK && (value < 0 || (uint64_t)value >= n_tokens)) {
        kvs__log(ctx, KVS_LOG_WARN, "%s is %lld of %zu tokens: ignored", key, (long long)value,
                 n_tokens);
        value = -1;
    }
    if (st == KVS_OK) {
        *id = (int32_t)value;
    }
    return st;
}

static kvs_status read_ids(kvs_ctx *ctx, const kvs__gguf *g, struct arrays *a, kvs__vocab_src *src,
                           kvs_err *err)
{
    static const char *const keys[KVS_SPECIAL_COUNT] = {
        "tokenizer.ggml.bos_token_id",     "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.seperator_token_id", /* sic */
        "tokenizer.ggml.mask_token_id"};
    static const char *const eog_keys[] = {
        "tokenizer.ggml.eom_token_id", "tokenizer.ggml.fim_pad_token_id",
        "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id"};
    if (src->kind == KVS__VOCAB_SPM && src->n_tokens > 2) {
        /* what SentencePiece gives these unless told otherwise */
        src->special[KVS_SPECIAL_UNK] = 0;
        src->special[KVS_SPECIAL_BOS] = 1;
        src->special[KVS_SPECIAL_EOS] = 2;
    }
    for (size_t i = 0; i < KVS_COUNT(keys); i++) {
        kvs_status st = read_id(ctx, g, keys[i], src->n_tokens, &src->special[i], err);
        if (st != KVS_OK) {
            return st;
        }
    }
    for (size_t i = 0; i < KVS_COUNT(eog_keys); i++) {
        int32_t id = -1;
        kvs_status st = read_id(ctx, g, eog_keys[i], src->n_tokens, &id, err);
        if (st != KVS_OK) {
            return st;
        }
        if (id >= 0) {
            a->eog[src->n_eog++] = id;
        }
    }
    src->eog = a->eog;
    return KVS_OK;
}

static kvs_status read_flag(const kvs__gguf *g, const char *key, int *flag, kvs_err *err)
{
    bool value = false;
    kvs_status st = kvs__gguf_get_bool(g, key, &value, err);
    if (st == KVS_OK) {
        *flag = value ? 1 : 0;
    }
    return st == KVS_NO ? KVS_OK : st;
}

static kvs_status read_pre(const kvs__gguf *g, const char *pre, kvs__vocab_src *src, kvs_err *err)
{
    if (pre) {
        src->pre = (kvs__text){pre, strlen(pre)};
        return KVS_OK;
    }
    kvs__str s = {NULL, 0};
    kvs_status st = kvs__gguf_get_str(g, "tokenizer.ggml.pre", &s, err);
    src->pre = (kvs__text){s.ptr, s.len};
    return st == KVS_NO ? KVS_OK : st;
}

static kvs_status read_kind(const kvs__gguf *g, kvs__vocab_kind *kind, kvs_err *err)
{
    kvs__str s = {NULL, 0};
    kvs_status st = kvs__gguf_get_str(g, "tokenizer.ggml.model", &s, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_NOTFOUND, "engine",
                         "the file has no tokenizer (tokenizer.ggml.model is missing)");
    }
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__str_eq(s, "gpt2")) {
        *kind = KVS__VOCAB_BPE;
        return KVS_OK;
    }
    if (kvs__str_eq(s, "llama")) {
        *kind = KVS__VOCAB_SPM;
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "tokenizer.ggml.model \"%.*s\" is not supported; gpt2 and llama are",
                     s.len > 32 ? 32 : (int)s.len, s.ptr);
}

kvs_status kvs__tokenizer_from_gguf(kvs_ctx *ctx, const kvs__gguf *g, const char *pre,
                                    kvs_tokenizer **out, kvs_err *err)
{
    kvs__vocab_src src = KVS__VOCAB_SRC_INIT;
    struct arrays a = {0};
    kvs_status st = read_kind(g, &src.kind, err);
    if (st == KVS_OK) {
        st = read_arrays(ctx, g, src.kind == KVS__VOCAB_BPE, &a, err);
    }
    src.n_tokens = a.n_texts;
    src.texts = a.texts;
    src.merges = a.merges;
    src.n_merges = a.n_merges;
    src.scores = a.scores;
    src.types = a.types;
    if (st == KVS_OK) {
        st = read_ids(ctx, g, &a, &src, err);
    }
    if (st == KVS_OK) {
        st = read_pre(g, pre, &src, err);
    }
    if (st == KVS_OK) {
        st = read_flag(g, "tokenizer.ggml.add_bos_token", &src.add_bos, err);
    }
    if (st == KVS_OK) {
        st = read_flag(g, "tokenizer.ggml.add_eos_token", &src.add_eos, err);
    }
    if (st == KVS_OK) {
        st = read_flag(g, "tokenizer.ggml.add_space_prefix", &src.add_space_prefix, err);
    }
    if (st == KVS_OK) {
        st = kvs__tokenizer_new(ctx, &src, out, err);
    }
    arrays_free(ctx, &a);
    return st;
}
