/* SPDX-License-Identifier: MIT */
/* model_open.c: opens a model file and answers questions about it. Owns the mapping, the tokenizer
 * and the resolved network; how these are read is in net.c and token_gguf.c. */
#include "kvstate/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/arch.h"
#include "engine/hf.h"
#include "engine/model_parts.h"
#include "engine/token_gguf.h"
#include "engine/token_json.h"

/* ---- opening */

static void copy_text(char *dst, size_t n, kvs__str s)
{
    size_t len = s.len < n - 1 ? s.len : n - 1;
    memcpy(dst, s.ptr, len);
    dst[len] = '\0';
}

static void fill_info(kvs_model *m)
{
    kvs_model_info *info = &m->info;
    const kvs__net *net = &m->net;
    kvs__str s = {NULL, 0};
    if (kvs__gguf_get_str(m->gguf, "general.architecture", &s, NULL) == KVS_OK) {
        copy_text(info->arch, sizeof info->arch, s);
    }
    if (kvs__gguf_get_str(m->gguf, "general.name", &s, NULL) == KVS_OK) {
        copy_text(info->name, sizeof info->name, s);
    }
    info->file_bytes =
        m->source.hf ? kvs__hf_file_bytes(m->source.hf) : kvs__gguf_get_info(m->gguf).file_bytes;
    kvs__tensor t;
    for (size_t i = 0; kvs__source_at(&m->source, i, &t); i++) {
        info->n_params += (uint64_t)t.ne[0] * t.n_rows;
        info->weight_bytes += t.bytes;
    }
    info->n_layers = net->n_layers;
    info->d_model = net->d_model;
    info->d_ff = net->usual.d_ff;
    info->n_heads = net->usual.n_heads;
    info->n_kv_heads = net->usual.n_kv_heads;
    info->k_dim = net->usual.k_dim;
    info->v_dim = net->usual.v_dim;
    info->n_vocab = net->n_vocab;
    info->n_ctx_train = net->n_ctx_train;
    for (uint32_t i = 0; i < net->n_layers; i++) {
        uint32_t w = net->layers[i].window;
        info->window = w > info->window ? w : info->window;
        if (net->layers[i].ffn == KVS__FFN_MOE) {
            info->n_experts = net->layers[i].moe.n;
            info->n_experts_used = net->layers[i].moe.used;
        }
    }
}

/* Embeddings of checkpoints are often padded: there may be more rows than tokens. */
static kvs_status check_vocab(const kvs_model *m, kvs_err *err)
{
    const kvs__u32_rule rule = {"vocab_size", 1, UINT32_MAX, &m->net.n_vocab};
    uint32_t n_vocab = 0;
    if (m->arch && m->source.hf) {
        kvs_status st = kvs__param_u32(m, &rule, &n_vocab, err);
        if (st != KVS_OK) {
            return st;
        }
        if (n_vocab != m->net.n_vocab) {
            return kvs__fail(
                err, KVS_E_FORMAT, "engine", "config.json: vocab_size is %u, %s has %u rows",
                n_vocab, kvs__source_name(&m->source, "token_embd.weight").text, m->net.n_vocab);
        }
    }
    size_t n_tokens = m->tok ? kvs_tokenizer_size(m->tok) : 0;
    bool padded = m->source.hf && n_tokens < m->net.n_vocab;
    if (m->tok && m->arch && !padded && n_tokens != m->net.n_vocab) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "vocabulary mismatch: token_embd.weight has %u rows, the tokenizer %zu "
                         "tokens",
                         m->net.n_vocab, n_tokens);
    }
    return KVS_OK;
}

static kvs_status find_arch(kvs_model *m, uint32_t flags, kvs_err *err)
{
    kvs__str name = {NULL, 0};
    kvs_status st = kvs__gguf_get_str(m->gguf, "general.architecture", &name, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no general.architecture");
    }
    if (st != KVS_OK) {
        return st;
    }
    m->arch = kvs__arch_find(name);
    if (!m->arch && !(flags & KVS_MODEL_INSPECT)) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "architecture \"%.*s\" is not supported; supported: %s",
                         name.len < 60 ? (int)name.len : 60, name.ptr, kvs__arch_list());
    }
    return KVS_OK;
}

static kvs_status load(kvs_model *m, uint32_t flags, kvs_err *err)
{
    kvs_status st = find_arch(m, flags, err);
    if (st == KVS_OK && m->arch) {
        st = kvs__net_load(m, err);
    }
    if (st == KVS_OK && m->arch && m->source.hf) {
        st = kvs__hf_check_used(m->source.hf, err);
    }
    if (st == KVS_OK) {
        bool inspect = (flags & KVS_MODEL_INSPECT) != 0;
        st = m->source.hf ? kvs__tokenizer_from_json(m->ctx, kvs__hf_dir(m->source.hf),
                                                     m->arch ? m->net.n_vocab : 0, &m->tok, err)
                          : kvs__tokenizer_from_gguf(m->ctx, m->gguf, NULL, &m->tok, err);
        if (st == KVS_E_NOTFOUND || (inspect && st == KVS_E_UNSUPPORTED)) {
            st = KVS_OK;
        }
    }
    return st == KVS_OK ? check_vocab(m, err) : st;
}

kvs_status kvs__model_open_gguf(kvs_ctx *ctx, kvs__gguf *g, uint32_t flags, kvs_model **out,
                                kvs_err *err)
{
    return kvs__model_open_source(ctx, g, NULL, flags, out, err);
}

kvs_status kvs__model_open_source(kvs_ctx *ctx, kvs__gguf *g, kvs__hf *hf, uint32_t flags,
                                  kvs_model **out, kvs_err *err)
{
    kvs_model *m = kvs__calloc(ctx, 1, sizeof *m);
    if (!m) {
        kvs__gguf_close(g);
        kvs__hf_close(hf);
        return kvs__nomem(err, "engine", sizeof *m);
    }
    m->ctx = ctx;
    m->gguf = g;
    m->source = (kvs__source){g, hf};
    m->info = (kvs_model_info)KVS_MODEL_INFO_INIT;
    kvs_status st = load(m, flags, err);
    if (st != KVS_OK) {
        kvs_model_close(m);
        return st;
    }
    fill_info(m);
    *out = m;
    return KVS_OK;
}

/* A directory, or a file by the names that safetensors have. */
static bool is_hf(const char *path)
{
    static const char *const tails[] = {".safetensors", ".safetensors.index.json"};
    size_t n = strlen(path);
    for (size_t i = 0; i < KVS_COUNT(tails); i++) {
        size_t t = strlen(tails[i]);
        if (n > t && strcmp(path + n - t, tails[i]) == 0) {
            return true;
        }
    }
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

static kvs_status open_hf(kvs_ctx *ctx, const char *path, uint32_t flags, kvs_model **out,
                          kvs_err *err)
{
    kvs__hf *hf = NULL;
    kvs_status st = kvs__hf_open(ctx, path, &hf, err);
    if (st != KVS_OK) {
        return st;
    }
    const void *bytes = NULL;
    size_t n = 0;
    kvs__gguf *g = NULL;
    kvs__hf_meta(hf, &bytes, &n);
    st = kvs__gguf_open_mem(ctx, bytes, n, &g, err);
    if (st != KVS_OK) {
        kvs__hf_close(hf);
        return st;
    }
    return kvs__model_open_source(ctx, g, hf, flags, out, err);
}

kvs_status kvs_model_open(kvs_ctx *ctx, const char *path, const kvs_model_opts *opts,
                          kvs_model **out, kvs_err *err)
{
    if (!ctx || !path || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, path or out is NULL");
    }
    *out = NULL;
    kvs_model_opts o = KVS_MODEL_OPTS_INIT;
    if (opts) {
        kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_model_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    if (o.flags & ~(uint32_t)KVS_MODEL_INSPECT || o.reserved) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "flags 0x%x of kvs_model_opts", o.flags);
    }
    if (is_hf(path)) {
        return open_hf(ctx, path, o.flags, out, err);
    }
    kvs__gguf *g = NULL;
    kvs_status st = kvs__gguf_open(ctx, path, &g, err);
    return st == KVS_OK ? kvs__model_open_gguf(ctx, g, o.flags, out, err) : st;
}

void kvs_model_close(kvs_model *m)
{
    if (!m) {
        return;
    }
    kvs__net_free(m);
    kvs__tokenizer_free(m->tok);
    kvs__gguf_close(m->gguf);
    kvs__hf_close(m->source.hf);
    kvs__free(m->ctx, m, sizeof *m);
}

/* ---- questions */

kvs_status kvs_model_get_info(const kvs_model *m, kvs_model_info *out)
{
    return m && out ? kvs__stats_write(out, &m->info, sizeof m->info) : KVS_E_INVAL;
}

uint32_t kvs_model_window(const kvs_model *m, uint32_t layer)
{
    return m && layer < m->net.n_layers ? m->net.layers[layer].window : 0;
}

const kvs_tokenizer *kvs_model_tokenizer(const kvs_model *m)
{
    return m ? m->tok : NULL;
}

const char *kvs_model_string(const kvs_model *m, const char *key, size_t *n_bytes)
{
    static const char tokens[] = "tokenizer.";
    kvs__str s = {NULL, 0};
    if (!m || !key || !n_bytes) {
        return NULL;
    }
    if (kvs__gguf_get_str(m->gguf, key, &s, NULL) == KVS_OK) {
        *n_bytes = s.len;
        return s.ptr;
    }
    /* what GGUF files have as metadata, folders have beside tokenizer.json */
    bool beside = m->tok && m->source.hf && strncmp(key, tokens, sizeof tokens - 1) == 0;
    return beside ? kvs_tokenizer_string(m->tok, key + sizeof tokens - 1, n_bytes) : NULL;
}

/* Text with what a terminal must not see replaced, cut at n; returns the length written. */
static size_t put_text(char *dst, size_t n, kvs__str s)
{
    size_t used = 0;
    for (size_t i = 0; i < s.len && used + 1 < n; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        dst[used++] = c < 0x20 || c == 0x7f ? ' ' : (char)c;
    }
    while (used > 0 && used < s.len && ((unsigned char)s.ptr[used] & 0xc0) == 0x80) {
        used--; /* a cut must not end inside a character */
    }
    dst[used] = '\0';
    return used;
}

static size_t put_element(char *dst, size_t n, const kvs__gguf_array *a, size_t i)
{
    int len = 0;
    switch (a->type) {
    case KVS__GGUF_STR:
        return put_text(dst, n < 24 ? n : 24, kvs__gguf_array_str(a, i));
    case KVS__GGUF_F32:
    case KVS__GGUF_F64:
        len = snprintf(dst, n, "%g", (double)kvs__gguf_array_f32(a, i));
        break;
    default:
        len = snprintf(dst, n, "%" PRId64, kvs__gguf_array_int(a, i));
        break;
    }
    return len > 0 && (size_t)len < n ? (size_t)len : strlen(dst);
}

static void put_array(char *dst, size_t n, const kvs__gguf_array *a)
{
    size_t used = (size_t)snprintf(dst, n, "%zu:", a->n);
    for (size_t i = 0; i < a->n && i < 8 && used + 40 < n; i++) {
        dst[used++] = ' ';
        used += put_element(dst + used, n - used, a, i);
    }
    if (a->n > 8 && used + 5 < n) {
        (void)snprintf(dst + used, n - used, " ...");
    }
}

static void put_value(char *dst, size_t n, const kvs__gguf_kv *kv)
{
    switch (kv->type) {
    case KVS__GGUF_STR:
        (void)put_text(dst, n, kv->v.s);
        break;
    case KVS__GGUF_ARRAY:
        put_array(dst, n, &kv->v.a);
        break;
    case KVS__GGUF_F32:
    case KVS__GGUF_F64:
        (void)snprintf(dst, n, "%g", kv->v.f);
        break;
    case KVS__GGUF_BOOL:
        (void)snprintf(dst, n, "%s", kv->v.b ? "true" : "false");
        break;
    case KVS__GGUF_I8:
    case KVS__GGUF_I16:
    case KVS__GGUF_I32:
    case KVS__GGUF_I64:
        (void)snprintf(dst, n, "%" PRId64, kv->v.i);
        break;
    default:
        (void)snprintf(dst, n, "%" PRIu64, kv->v.u);
        break;
    }
}

kvs_status kvs_model_get_entry(const kvs_model *m, size_t i, kvs_model_entry *out)
{
    const kvs__gguf_kv *kv = m && out ? kvs__gguf_kv_at(m->gguf, i) : NULL;
    if (!m || !out) {
        return KVS_E_INVAL;
    }
    if (!kv) {
        return KVS_NO;
    }
    kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
    (void)put_text(e.key, sizeof e.key, kv->key);
    if (kv->type == KVS__GGUF_ARRAY) {
        (void)snprintf(e.type, sizeof e.type, "%s[]", kvs__gguf_vtype_name(kv->v.a.type));
    } else {
        (void)snprintf(e.type, sizeof e.type, "%s", kvs__gguf_vtype_name(kv->type));
    }
    put_value(e.value, sizeof e.value, kv);
    return kvs__stats_write(out, &e, sizeof e);
}

kvs_status kvs_model_get_tensor(const kvs_model *m, size_t i, kvs_model_tensor *out)
{
    kvs__tensor t;
    if (!m || !out) {
        return KVS_E_INVAL;
    }
    if (!kvs__source_at(&m->source, i, &t)) {
        return KVS_NO;
    }
    kvs_model_tensor r = KVS_MODEL_TENSOR_INIT;
    (void)put_text(r.name, sizeof r.name, t.name);
    (void)snprintf(r.type, sizeof r.type, "%s", t.type_name);
    for (size_t d = 0; d < 4; d++) {
        r.dims[d] = t.ne[d];
    }
    r.bytes = t.bytes;
    return kvs__stats_write(out, &r, sizeof r);
}
