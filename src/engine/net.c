/* SPDX-License-Identifier: MIT */
/* net.c: hyper-parameters and weights of an open file, resolved and checked (net.h).
 *
 * Nothing is guessed: a key or tensor that is missing, of another shape, or asks for what graph.c
 * does not do is an error that names it. Matrices stay where the file is mapped; vectors (norms,
 * biases, frequency factors) are copied to f32, they are a few hundred kilobytes. */
#include "engine/net.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch.h"
#include "engine/hf.h"
#include "engine/model_parts.h"

#define MAX_LAYERS 1024u
#define MAX_WIDTH  (1u << 20)

static const uint32_t zero = 0;

/* ---- hyper-parameters */

/* Keys that change the arithmetic in ways that are not implemented, whatever the architecture. */
static kvs_status refuse_unknown(const kvs_model *m, kvs_err *err)
{
    const kvs__u32_rule experts = {"expert_count", 0, UINT32_MAX, &zero};
    uint32_t n = 0;
    kvs_status st = kvs__param_u32(m, &experts, &n, err);
    if (st != KVS_OK) {
        return st;
    }
    if (n > 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s.expert_count is %u; mixtures of experts are not supported",
                         m->arch->name, n);
    }
    char key[96];
    bool causal = true;
    (void)snprintf(key, sizeof key, "%s.attention.causal", m->arch->name);
    st = kvs__gguf_get_bool(m->gguf, key, &causal, err);
    if (st < 0) {
        return st;
    }
    if (!causal) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "%s is false; only causal models run",
                         key);
    }
    return KVS_OK;
}

static kvs_status head_dim(const kvs_model *m, const char *suffix, uint32_t fallback, uint32_t *out,
                           kvs_err *err)
{
    const kvs__u32_rule rule = {suffix, 16, 1024, &fallback};
    kvs_status st = kvs__param_u32(m, &rule, out, err);
    if (st == KVS_OK && *out % 8 != 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s.%s is %u; head dims must be multiples of 8", m->arch->name, suffix,
                         *out);
    }
    return st;
}

static kvs_status read_heads(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const kvs__u32_rule heads = {"attention.head_count", 1, MAX_LAYERS, NULL};
    kvs_status st = kvs__param_u32(m, &heads, &net->n_heads, err);
    if (st != KVS_OK) {
        return st;
    }
    const kvs__u32_rule kv_heads = {"attention.head_count_kv", 1, net->n_heads, &net->n_heads};
    st = kvs__param_u32(m, &kv_heads, &net->n_kv_heads, err);
    if (st != KVS_OK) {
        return st;
    }
    if (net->n_heads % net->n_kv_heads != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.attention.head_count %u is no multiple of head_count_kv %u",
                         m->arch->name, net->n_heads, net->n_kv_heads);
    }
    uint32_t dim = net->d_model / net->n_heads;
    st = head_dim(m, "attention.key_length", dim, &net->k_dim, err);
    if (st == KVS_OK) {
        st = head_dim(m, "attention.value_length", dim, &net->v_dim, err);
    }
    return st;
}

/* Linear scaling is a factor on positions; other kinds change the frequencies. */
static kvs_status read_rope_scaling(const kvs_model *m, float *position_scale, kvs_err *err)
{
    char key[96];
    kvs__str type = {"none", 4};
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch->name);
    kvs_status st = kvs__gguf_get_str(m->gguf, key, &type, err);
    if (st < 0) {
        return st;
    }
    const float one = 1.0f;
    float factor = 1.0f;
    *position_scale = 1.0f;
    if (kvs__str_eq(type, "none")) {
        return KVS_OK;
    }
    if (!kvs__str_eq(type, "linear")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "%s is \"%.*s\"; none and linear run",
                         key, type.len < 40 ? (int)type.len : 40, type.ptr);
    }
    st = kvs__param_f32(m, "rope.scaling.factor", &one, &factor, err);
    if (st == KVS_OK) {
        *position_scale = 1.0f / factor;
    }
    return st;
}

static kvs_status read_rope(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const kvs__u32_rule rot = {"rope.dimension_count", 2, net->k_dim, &net->k_dim};
    kvs_status st = kvs__param_u32(m, &rot, &net->n_rot, err);
    if (st != KVS_OK) {
        return st;
    }
    if (net->n_rot % 2 != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s.rope.dimension_count is %u, not even",
                         m->arch->name, net->n_rot);
    }
    const float base = 10000.0f;
    net->n_ropes = 1;
    st = kvs__param_f32(m, "rope.freq_base", &base, &net->ropes[0].base, err);
    if (st == KVS_OK) {
        st = read_rope_scaling(m, &net->ropes[0].position_scale, err);
    }
    return st;
}

static kvs_status read_params(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const kvs__u32_rule rules[] = {
        {"block_count", 1, MAX_LAYERS, NULL},
        {"embedding_length", 8, MAX_WIDTH, NULL},
        {"feed_forward_length", 8, MAX_WIDTH, NULL},
        {"context_length", 1, INT32_MAX, NULL},
    };
    uint32_t *const fields[] = {&net->n_layers, &net->d_model, &net->d_ff, &net->n_ctx_train};
    kvs_status st = refuse_unknown(m, err);
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, &rules[i], fields[i], err);
    }
    if (st == KVS_OK) {
        st = read_heads(m, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "attention.layer_norm_rms_epsilon", NULL, &net->rms_eps, err);
    }
    if (st == KVS_OK) {
        st = read_rope(m, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    const float scale = 1.0f / sqrtf((float)net->k_dim);
    net->embed_scale = 1.0f;
    /* GGUF files of some architectures hold q and k permuted, the originals do not */
    net->rope_style =
        m->source.hf ? kvs__hf_get_family(m->source.hf)->rope_style : m->arch->rope_style;
    net->act = m->arch->act;
    return kvs__param_f32(m, "attention.scale", &scale, &net->attn_scale, err);
}

/* ---- weights */

static kvs_status find_tensor(const kvs_model *m, const char *name, kvs__tensor *t, kvs_err *err)
{
    if (!kvs__source_find(&m->source, name, t)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no tensor %s",
                         kvs__source_name(&m->source, name).text);
    }
    if (!t->is_weight) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "tensor %s is of type %s; F32, F16, BF16 and quantised ones are read",
                         kvs__source_name(&m->source, name).text, t->type_name);
    }
    return KVS_OK;
}

/* Matrix `name` of n rows of k; n == 0: as many as there are. */
static kvs_status find_matrix(kvs_model *m, const char *name, size_t k, size_t n, kvs__wrows *out,
                              kvs_err *err)
{
    kvs__tensor t;
    kvs_status st = find_tensor(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != k || (n != 0 && t.ne[1] != n) || t.ne[2] != 1 || t.ne[3] != 1) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor %s is %zu x %zu x %zu, the metadata says %zu x %zu",
                         kvs__source_name(&m->source, name).text, t.ne[0], t.ne[1], t.ne[2], k,
                         n ? n : t.ne[1]);
    }
    *out = kvs__tensor_rows(&t, 0, t.ne[1]);
    m->info.step_bytes += t.bytes;
    return KVS_OK;
}

/* Vector `name` of n elements as f32. */
static kvs_status find_vector(kvs_model *m, const char *name, size_t n, const float **out,
                              kvs_err *err)
{
    kvs__tensor t;
    kvs_status st = find_tensor(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != n || t.n_rows != 1 || t.affine.scales) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor %s has %zu x %zu elements of %s, the metadata says %zu",
                         kvs__source_name(&m->source, name).text, t.ne[0], t.n_rows, t.type_name,
                         n);
    }
    float *dst = m->vectors + m->vectors_used;
    if (KVS_NEVER(n > m->vectors_bytes / sizeof(float) - m->vectors_used)) {
        return kvs__fail(err, KVS_E_INTERNAL, "engine", "tensor %s was not counted", name);
    }
    kvs__tensor_vector(&t, dst);
    m->vectors_used += n;
    m->info.step_bytes += t.bytes;
    *out = dst;
    return KVS_OK;
}

static kvs_status find_optional(kvs_model *m, const char *name, size_t n, const float **out,
                                kvs_err *err)
{
    kvs__tensor t;
    *out = NULL;
    return kvs__source_find(&m->source, name, &t) ? find_vector(m, name, n, out, err) : KVS_OK;
}

/* Room for every tensor of one row, which is what find_vector can ask for. */
static kvs_status reserve_vectors(kvs_model *m, kvs_err *err)
{
    size_t n = 0;
    kvs__tensor t;
    for (size_t i = 0; kvs__source_at(&m->source, i, &t); i++) {
        if (t.n_rows == 1 && !kvs__add_size(n, t.ne[0], &n)) {
            return kvs__nomem(err, "engine", SIZE_MAX);
        }
    }
    size_t bytes = 0;
    if (!kvs__mul_size(n, sizeof(float), &bytes)) {
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    m->vectors = kvs__alloc(m->ctx, bytes);
    if (!m->vectors) {
        return kvs__nomem(err, "engine", bytes);
    }
    m->vectors_bytes = bytes;
    return KVS_OK;
}

typedef struct part {
    const char *name; /* after "blk.N." */
    size_t k, n;      /* a vector where k is 0 */
    kvs__wrows *matrix;
    const float **vector;
    bool optional;
} part;

static kvs_status find_part(kvs_model *m, uint32_t layer, const part *p, kvs_err *err)
{
    char name[64];
    (void)snprintf(name, sizeof name, "blk.%u.%s", layer, p->name);
    if (p->matrix) {
        return find_matrix(m, name, p->k, p->n, p->matrix, err);
    }
    if (KVS_NEVER(!p->vector)) {
        return KVS_E_INTERNAL;
    }
    return p->optional ? find_optional(m, name, p->n, p->vector, err)
                       : find_vector(m, name, p->n, p->vector, err);
}

static kvs_status find_parts(kvs_model *m, uint32_t layer, const part *parts, size_t n,
                             kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < n; i++) {
        st = find_part(m, layer, &parts[i], err);
    }
    return st;
}

static kvs_status load_layer(kvs_model *m, uint32_t i, kvs_err *err)
{
    const kvs__net *net = &m->net;
    kvs__layer *l = &net->layers[i];
    size_t d = net->d_model;
    size_t ff = net->d_ff;
    size_t q = (size_t)net->n_heads * net->k_dim;
    size_t k = (size_t)net->n_kv_heads * net->k_dim;
    size_t v = (size_t)net->n_kv_heads * net->v_dim;
    const part common[] = {
        {"attn_norm.weight", 0, d, NULL, &l->attn_norm, false},
        {"attn_q.weight", d, q, &l->wq, NULL, false},
        {"attn_k.weight", d, k, &l->wk, NULL, false},
        {"attn_v.weight", d, v, &l->wv, NULL, false},
        {"attn_output.weight", (size_t)net->n_heads * net->v_dim, d, &l->wo, NULL, false},
        {"ffn_norm.weight", 0, d, NULL, &l->ffn_norm, false},
        {"ffn_gate.weight", d, ff, &l->gate, NULL, false},
        {"ffn_up.weight", d, ff, &l->up, NULL, false},
        {"ffn_down.weight", ff, d, &l->down, NULL, false},
    };
    const part bias[] = {
        {"attn_q.bias", 0, q, NULL, &l->bq, true},
        {"attn_k.bias", 0, k, NULL, &l->bk, true},
        {"attn_v.bias", 0, v, NULL, &l->bv, true},
    };
    const part qk_norm[] = {
        {"attn_q_norm.weight", 0, net->k_dim, NULL, &l->q_norm, false},
        {"attn_k_norm.weight", 0, net->k_dim, NULL, &l->k_norm, false},
    };
    const part post[] = {
        {"post_attention_norm.weight", 0, d, NULL, &l->post_attn_norm, false},
        {"post_ffw_norm.weight", 0, d, NULL, &l->post_ffn_norm, false},
    };
    uint32_t parts = m->arch->parts;
    kvs_status st = find_parts(m, i, common, KVS_COUNT(common), err);
    if (st == KVS_OK && parts & KVS__PART_QKV_BIAS) {
        st = find_parts(m, i, bias, KVS_COUNT(bias), err);
    }
    if (st == KVS_OK && parts & KVS__PART_QK_NORM) {
        st = find_parts(m, i, qk_norm, KVS_COUNT(qk_norm), err);
    }
    if (st == KVS_OK && parts & KVS__PART_POST_NORM) {
        st = find_parts(m, i, post, KVS_COUNT(post), err);
    }
    return st;
}

static kvs_status load_ends(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs_status st = find_matrix(m, "token_embd.weight", net->d_model, 0, &net->embed, err);
    if (st != KVS_OK) {
        return st;
    }
    if (net->embed.n > INT32_MAX) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "token_embd.weight has %zu rows",
                         net->embed.n);
    }
    net->n_vocab = (uint32_t)net->embed.n;
    net->output = net->embed;
    kvs__tensor head;
    if (kvs__source_find(&m->source, "output.weight", &head)) {
        m->info.step_bytes -= net->embed.n * net->embed.row_bytes;
        m->info.step_bytes += net->embed.row_bytes;
        st = find_matrix(m, "output.weight", net->d_model, net->n_vocab, &net->output, err);
    }
    if (st == KVS_OK) {
        st = find_vector(m, "output_norm.weight", net->d_model, &net->output_norm, err);
    }
    if (st == KVS_OK && m->arch->parts & KVS__PART_ROPE_FREQS) {
        st = find_optional(m, "rope_freqs.weight", net->n_rot / 2, &net->ropes[0].factors, err);
    }
    const float *factors = net->ropes[0].factors;
    for (uint32_t i = 0; st == KVS_OK && factors && i < net->n_rot / 2; i++) {
        if (!(factors[i] > 0.0f) || !isfinite(factors[i])) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "element %u of rope_freqs.weight is %g, not a positive number", i,
                             (double)factors[i]);
        }
    }
    return st;
}

kvs_status kvs__net_load(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs_status st = read_params(m, err);
    if (st != KVS_OK) {
        return st;
    }
    net->layers = kvs__calloc(m->ctx, net->n_layers, sizeof *net->layers);
    if (!net->layers) {
        return kvs__nomem(err, "engine", net->n_layers * sizeof *net->layers);
    }
    if (m->arch->setup) {
        st = m->arch->setup(m, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "embedding_scale", &net->embed_scale, &net->embed_scale, err);
    }
    if (st == KVS_OK) {
        st = reserve_vectors(m, err);
    }
    if (st == KVS_OK) {
        st = load_ends(m, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < net->n_layers; i++) {
        st = load_layer(m, i, err);
    }
    return st;
}

void kvs__net_free(kvs_model *m)
{
    kvs__free(m->ctx, m->net.layers, m->net.n_layers * sizeof *m->net.layers);
    kvs__free(m->ctx, m->vectors, m->vectors_bytes);
}
