/* SPDX-License-Identifier: MIT */
/* token_gguf.c: reads tokenizer.ggml.* into a kvs__vocab_src.
 *
 * Special ids out of range are logged and ignored rather than refused: files in use have -1 there,
 * stored as unsigned, for "none". Everything else that does not fit together is an error.
 */
#include <string.h>

#include "engine/token_gguf.h"

#define MAX_EOG 8u

/* Where the walk through the file is. */
struct walk {
    kvs__gguf_array texts;
    kvs__gguf_array scores; /* n is 0 when absent */
    kvs__gguf_array types;
    kvs__gguf_array merges;
    size_t text_at; /* offsets of the next string */
    size_t merge_at;
    int32_t eog[MAX_EOG];
};

static kvs__text next(const kvs__gguf_array *array, size_t i, size_t *at)
{
    kvs__str s = {NULL, 0};
    *at = i == 0 ? 0 : *at;
    (void)kvs__gguf_array_next(array, at, &s);
    return (kvs__text){s.ptr, s.len};
}

static kvs__vocab_token token_of(void *user, size_t i)
{
    struct walk *w = user;
    kvs__vocab_token t = {next(&w->texts, i, &w->text_at), 0, KVS__TYPE_NORMAL};
    if (w->scores.n > 0) {
        t.score = kvs__gguf_array_f32(&w->scores, i);
    }
    if (w->types.n > 0) {
        t.type = (int32_t)kvs__gguf_array_int(&w->types, i);
    }
    return t;
}

static kvs__text merge_of(void *user, size_t i)
{
    struct walk *w = user;
    return next(&w->merges, i, &w->merge_at);
}

/* An array with one element for each token; with none at all when absent. */
static kvs_status per_token(const kvs__gguf *g, const char *key, kvs__gguf_vtype type, size_t n,
                            kvs__gguf_array *out, kvs_err *err)
{
    kvs_status st = kvs__gguf_get_array(g, key, type, out, err);
    if (st == KVS_OK && out->n != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu elements for %zu tokens", key,
                         out->n, n);
    }
    return st == KVS_NO ? KVS_OK : st;
}

static kvs_status missing(const char *key, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "%s is missing", key);
}

static kvs_status read_arrays(const kvs__gguf *g, struct walk *w, kvs__vocab_src *src, kvs_err *err)
{
    static const char tokens[] = "tokenizer.ggml.tokens";
    static const char types[] = "tokenizer.ggml.token_type";
    static const char scores[] = "tokenizer.ggml.scores";
    static const char merges[] = "tokenizer.ggml.merges";
    kvs_status st = kvs__gguf_get_array(g, tokens, KVS__GGUF_STR, &w->texts, err);
    if (st != KVS_OK) {
        return st == KVS_NO ? missing(tokens, err) : st;
    }
    src->n_tokens = w->texts.n;
    st = per_token(g, types, KVS__GGUF_I32, w->texts.n, &w->types, err);
    if (st == KVS_OK && src->kind == KVS__VOCAB_SPM) {
        st = per_token(g, scores, KVS__GGUF_F32, w->texts.n, &w->scores, err);
        if (st == KVS_OK && w->scores.n == 0) {
            return missing(scores, err);
        }
    } else if (st == KVS_OK) {
        st = kvs__gguf_get_array(g, merges, KVS__GGUF_STR, &w->merges, err);
        src->n_merges = w->merges.n;
        st = st == KVS_NO ? missing(merges, err) : st;
    }
    return st;
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

static kvs_status read_ids(kvs_ctx *ctx, const kvs__gguf *g, struct walk *w, kvs__vocab_src *src,
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
            w->eog[src->n_eog++] = id;
        }
    }
    src->eog = w->eog;
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
    struct walk w = {0};
    src.token = token_of;
    src.merge = merge_of;
    src.user = &w;
    kvs_status st = read_kind(g, &src.kind, err);
    if (st == KVS_OK) {
        st = read_arrays(g, &w, &src, err);
    }
    if (st == KVS_OK) {
        st = read_ids(ctx, g, &w, &src, err);
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
    return st == KVS_OK ? kvs__tokenizer_new(ctx, &src, out, err) : st;
}
