/* SPDX-License-Identifier: MIT */
/* net.c: weights of an open file, resolved and checked (net.h).
 *
 * Nothing is guessed: a tensor that is missing or of another shape is an error that names it.
 * Matrices stay where the file is mapped; vectors (norms,
 * biases, frequency factors) are copied to f32, they are a few hundred kilobytes. */
#include "engine/net.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch.h"
#include "engine/model_parts.h"

static kvs_status no_tensor(const kvs_model *m, const char *name, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "the model has no tensor %s",
                     kvs__source_name(&m->source, name).text);
}

static kvs_status check_type(const kvs_model *m, const char *name, const kvs__tensor *t,
                             kvs_err *err)
{
    if (t->is_weight) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                     "tensor %s is of type %s; F32, F16, BF16 and quantised ones are read",
                     kvs__source_name(&m->source, name).text, t->type_name);
}

static bool has_tensor(const kvs_model *m, const char *name)
{
    kvs__tensor t;
    return kvs__source_find(&m->source, name, &t);
}

/* Matrix `name` of n rows of k; n == 0: as many as there are. Rows may be cut into a third
 * dimension. */
static kvs_status find_matrix(kvs_model *m, const char *name, size_t k, size_t n, kvs__wrows *out,
                              kvs_err *err)
{
    kvs__tensor t;
    if (!kvs__source_find(&m->source, name, &t)) {
        return no_tensor(m, name, err);
    }
    kvs_status st = check_type(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != k || (n != 0 ? t.n_rows != n : t.ne[2] != 1) || t.ne[3] != 1) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "tensor %s is %zu x %zu x %zu, the metadata says %zu x %zu",
                         kvs__source_name(&m->source, name).text, t.ne[0], t.ne[1], t.ne[2], k,
                         n ? n : t.n_rows);
    }
    *out = kvs__tensor_rows(&t, 0, t.n_rows);
    m->info.step_bytes += t.bytes;
    return KVS_OK;
}

/* Expert x of the matrices `name`: n rows of k. */
static kvs_status find_expert(kvs_model *m, const char *name, uint32_t x, size_t k, size_t n,
                              kvs__wrows *out, kvs_err *err)
{
    kvs__tensor t;
    if (!kvs__source_expert(&m->source, name, x, &t)) {
        return no_tensor(m, name, err);
    }
    kvs_status st = check_type(m, name, &t, err);
    if (st != KVS_OK) {
        return st;
    }
    if (t.ne[0] != k || t.n_rows != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "expert %u of tensor %s is %zu x %zu, the metadata says %zu x %zu", x,
                         kvs__source_name(&m->source, name).text, t.ne[0], t.n_rows, k, n);
    }
    *out = kvs__tensor_rows(&t, 0, n);
    m->info.step_bytes += t.bytes;
    return KVS_OK;
}

/* Vector `name` of n elements as f32. */
static kvs_status find_vector(kvs_model *m, const char *name, size_t n, const float **out,
                              kvs_err *err)
{
    kvs__tensor t;
    if (!kvs__source_find(&m->source, name, &t)) {
        return no_tensor(m, name, err);
    }
    kvs_status st = check_type(m, name, &t, err);
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
    *out = NULL;
    return has_tensor(m, name) ? find_vector(m, name, n, out, err) : KVS_OK;
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

static void layer_name(char name[64], uint32_t layer, const char *suffix)
{
    (void)snprintf(name, 64, "blk.%u.%s", layer, suffix);
}

static kvs_status find_part(kvs_model *m, uint32_t layer, const part *p, kvs_err *err)
{
    char name[64];
    layer_name(name, layer, p->name);
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

static bool has_part(const kvs_model *m, uint32_t layer, const char *suffix)
{
    char name[64];
    layer_name(name, layer, suffix);
    return has_tensor(m, name);
}

/* ---- attention */

/* Matrix `name` whose rows are those of several matrices, one under the other; n_rows == 0 ends. */
typedef struct slice {
    kvs__wrows *matrix;
    size_t n_rows;
} slice;

static kvs_status find_slices(kvs_model *m, uint32_t layer, const char *name, size_t k,
                              const slice *slices, size_t n_slices, kvs_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < n_slices; i++) {
        n += slices[i].n_rows;
    }
    kvs__wrows all;
    const part whole = {name, k, n, &all, NULL, false};
    kvs_status st = find_part(m, layer, &whole, err);
    size_t first = 0;
    for (size_t i = 0; st == KVS_OK && i < n_slices; i++) {
        *slices[i].matrix = kvs__wrows_part(&all, first, slices[i].n_rows);
        first += slices[i].n_rows;
    }
    return st;
}

static kvs_status load_qkv(kvs_model *m, uint32_t i, size_t q, size_t k, size_t v, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    if (m->arch->parts & KVS__PART_FUSED) {
        const slice fused[] = {{&l->wq, q}, {&l->wk, k}, {&l->wv, v}};
        return find_slices(m, i, "attn_qkv.weight", d, fused, KVS_COUNT(fused), err);
    }
    const part parts[] = {
        {"attn_q.weight", d, q, &l->wq, NULL, false},
        {"attn_k.weight", d, k, &l->wk, NULL, false},
        {"attn_v.weight", d, v, &l->wv, NULL, false},
    };
    return find_parts(m, i, parts, KVS_COUNT(parts), err);
}

static kvs_status load_attention(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t q = (size_t)l->n_heads * l->k_dim;
    size_t k = (size_t)l->n_kv_heads * l->k_dim;
    size_t v = (size_t)l->n_kv_heads * l->v_dim;
    size_t out = (size_t)l->n_heads * l->v_dim;
    uint32_t parts = m->arch->parts;
    l->wide_norm = (parts & KVS__PART_WIDE_NORM) != 0;
    const part common[] = {
        {"attn_output.weight", out, m->net.d_model, &l->wo, NULL, false},
    };
    const part bias[] = {
        {"attn_q.bias", 0, q, NULL, &l->bq, true},
        {"attn_k.bias", 0, k, NULL, &l->bk, true},
        {"attn_v.bias", 0, v, NULL, &l->bv, true},
        {"attn_output.bias", 0, m->net.d_model, NULL, &l->bo, true},
    };
    const part qk_norm[] = {
        {"attn_q_norm.weight", 0, l->wide_norm ? q : l->k_dim, NULL, &l->q_norm, false},
        {"attn_k_norm.weight", 0, l->wide_norm ? k : l->k_dim, NULL, &l->k_norm, false},
    };
    kvs_status st = load_qkv(m, i, q, k, v, err);
    if (st == KVS_OK) {
        st = find_parts(m, i, common, KVS_COUNT(common), err);
    }
    if (st == KVS_OK && parts & KVS__PART_BIAS) {
        st = find_parts(m, i, bias, KVS_COUNT(bias), err);
    }
    if (st == KVS_OK && parts & KVS__PART_QK_NORM) {
        st = find_parts(m, i, qk_norm, KVS_COUNT(qk_norm), err);
    }
    return st;
}

static kvs_status load_latent(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    kvs__latent *a = &l->latent;
    size_t d = m->net.d_model;
    size_t heads = l->n_heads;
    size_t q = heads * (a->nope + a->rot);
    const part q_direct[] = {{"attn_q.weight", d, q, &a->q_b, NULL, false}};
    const part q_low[] = {
        {"attn_q_a.weight", d, a->q_rank, &a->q_a, NULL, false},
        {"attn_q_a_norm.weight", 0, a->q_rank, NULL, &a->q_a_norm, false},
        {"attn_q_b.weight", a->q_rank, q, &a->q_b, NULL, false},
    };
    const part common[] = {
        {"attn_kv_a_mqa.weight", d, (size_t)a->rank + a->rot, &a->kv_a, NULL, false},
        {"attn_kv_a_norm.weight", 0, a->rank, NULL, &a->kv_a_norm, false},
        {"attn_output.weight", heads * a->v_dim, d, &l->wo, NULL, false},
    };
    const part apart[] = {
        {"attn_k_b.weight", a->nope, heads * a->rank, &a->k_b, NULL, false},
        {"attn_v_b.weight", a->rank, heads * a->v_dim, &a->v_b, NULL, false},
    };
    const part fused[] = {
        {"attn_kv_b.weight", a->rank, heads * (a->nope + a->v_dim), &a->kv_b, NULL, false},
    };
    kvs_status st = a->q_rank ? find_parts(m, i, q_low, KVS_COUNT(q_low), err)
                              : find_parts(m, i, q_direct, KVS_COUNT(q_direct), err);
    if (st == KVS_OK) {
        st = find_parts(m, i, common, KVS_COUNT(common), err);
    }
    if (st != KVS_OK) {
        return st;
    }
    return has_part(m, i, "attn_k_b.weight") ? find_parts(m, i, apart, KVS_COUNT(apart), err)
                                             : find_parts(m, i, fused, KVS_COUNT(fused), err);
}

/* ---- feed-forward */

static kvs_status load_dense(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    const part down[] = {{"ffn_down.weight", l->d_ff, d, &l->down, NULL, false}};
    const part apart[] = {
        {"ffn_gate.weight", d, l->d_ff, &l->gate, NULL, false},
        {"ffn_up.weight", d, l->d_ff, &l->up, NULL, false},
    };
    const slice fused[] = {{&l->gate, l->d_ff}, {&l->up, l->d_ff}};
    kvs_status st = m->arch->parts & KVS__PART_FUSED
                        ? find_slices(m, i, "ffn_up.weight", d, fused, KVS_COUNT(fused), err)
                        : find_parts(m, i, apart, KVS_COUNT(apart), err);
    return st == KVS_OK ? find_parts(m, i, down, KVS_COUNT(down), err) : st;
}

static kvs_status load_experts(kvs_model *m, uint32_t i, kvs_err *err)
{
    static const char *const names[3] = {"ffn_gate_exps.weight", "ffn_up_exps.weight",
                                         "ffn_down_exps.weight"};
    kvs__moe *e = &m->net.layers[i].moe;
    size_t d = m->net.d_model;
    e->expert = kvs__calloc(m->ctx, (size_t)e->n * 3, sizeof *e->expert);
    if (!e->expert) {
        return kvs__nomem(err, "engine", (size_t)e->n * 3 * sizeof *e->expert);
    }
    kvs_status st = KVS_OK;
    uint64_t before = m->info.step_bytes;
    for (uint32_t x = 0; st == KVS_OK && x < e->n * 3; x++) {
        char name[64];
        layer_name(name, i, names[x % 3]);
        size_t k = x % 3 == 2 ? e->d_ff : d;
        size_t n = x % 3 == 2 ? d : e->d_ff;
        st = find_expert(m, name, x / 3, k, n, &e->expert[x], err);
    }
    m->info.step_bytes = before + (m->info.step_bytes - before) / e->n * e->used;
    return st;
}

static kvs_status load_moe(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__moe *e = &m->net.layers[i].moe;
    size_t d = m->net.d_model;
    const part router[] = {{"ffn_gate_inp.weight", d, e->n, &e->router, NULL, false}};
    const part shared[] = {
        {"ffn_gate_shexp.weight", d, e->d_shared, &e->shared_gate, NULL, false},
        {"ffn_up_shexp.weight", d, e->d_shared, &e->shared_up, NULL, false},
        {"ffn_down_shexp.weight", e->d_shared, d, &e->shared_down, NULL, false},
    };
    if (has_part(m, i, "exp_probs_b.bias")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "blk.%u.exp_probs_b.bias: routing with a bias is not supported", i);
    }
    m->net.layers[i].ffn = KVS__FFN_MOE;
    kvs_status st = find_parts(m, i, router, KVS_COUNT(router), err);
    if (st == KVS_OK) {
        st = load_experts(m, i, err);
    }
    if (st == KVS_OK && e->d_shared > 0) {
        st = find_parts(m, i, shared, KVS_COUNT(shared), err);
    }
    return st;
}

/* What would change the result and has no place in a layer of the engine. */
static kvs_status refuse_parts(const kvs_model *m, uint32_t i, kvs_err *err)
{
    static const char *const foreign[] = {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias",
                                          "attn_qkv.bias"};
    static const char *const biases[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias",
                                         "attn_output.bias"};
    const char *bad = NULL;
    for (size_t k = 0; k < KVS_COUNT(foreign); k++) {
        bad = !bad && has_part(m, i, foreign[k]) ? foreign[k] : bad;
    }
    for (size_t k = 0; k < KVS_COUNT(biases) && !(m->arch->parts & KVS__PART_BIAS); k++) {
        bad = !bad && has_part(m, i, biases[k]) ? biases[k] : bad;
    }
    if (!bad) {
        return KVS_OK;
    }
    char name[64];
    layer_name(name, i, bad);
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "tensor %s: %s models have none",
                     kvs__source_name(&m->source, name).text, m->arch->name);
}

static kvs_status load_layer(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    uint32_t parts = m->arch->parts;
    const part norms[] = {
        {"attn_norm.weight", 0, d, NULL, &l->attn_norm, false},
        {"ffn_norm.weight", 0, d, NULL, &l->ffn_norm, false},
    };
    const part post[] = {
        {"post_attention_norm.weight", 0, d, NULL, &l->post_attn_norm, false},
        {"post_ffw_norm.weight", 0, d, NULL, &l->post_ffn_norm, false},
    };
    kvs_status st = refuse_parts(m, i, err);
    if (st == KVS_OK) {
        st = find_parts(m, i, norms, KVS_COUNT(norms), err);
    }
    if (st == KVS_OK && parts & KVS__PART_POST_NORM) {
        st = find_parts(m, i, post, KVS_COUNT(post), err);
    }
    if (st == KVS_OK) {
        st = l->mixer == KVS__MIX_LATENT ? load_latent(m, i, err) : load_attention(m, i, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    bool moe = parts & KVS__PART_EXPERTS && has_part(m, i, "ffn_gate_inp.weight");
    return moe ? load_moe(m, i, err) : load_dense(m, i, err);
}

/* ---- what is not in a layer */

/* Divisors of rotary frequencies, used where present. */
static kvs_status find_factors(kvs_model *m, const char *name, const float **out, kvs_err *err)
{
    size_t n = m->net.ropes[0].n_rot / 2;
    kvs_status st = find_optional(m, name, n, out, err);
    for (size_t i = 0; st == KVS_OK && *out && i < n; i++) {
        float f = (*out)[i];
        if (!(f > 0.0f) || !isfinite(f)) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "element %zu of %s is %g, not a positive number", i, name, (double)f);
        }
    }
    return st;
}

static kvs_status load_rope_factors(kvs_model *m, kvs_err *err)
{
    kvs__rope *r = &m->net.ropes[0];
    kvs_status st = find_factors(m, "rope_freqs.weight", &r->factors, err);
    if (st != KVS_OK || r->factors) {
        return st;
    }
    st = find_factors(m, "rope_factors_long.weight", &r->factors, err);
    if (st == KVS_OK) {
        st = find_factors(m, "rope_factors_short.weight", &r->short_factors, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    bool both = r->factors && r->short_factors;
    bool may = r->kind == KVS__ROPE_LONG || r->kind == KVS__ROPE_PLAIN;
    if ((r->kind == KVS__ROPE_LONG && !both) || (r->factors && !both) || (both && !may)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "longrope needs rope_factors_long.weight and rope_factors_short.weight, "
                         "and no other scaling has them");
    }
    r->kind = both ? KVS__ROPE_LONG : r->kind;
    return KVS_OK;
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
    if (has_tensor(m, "output.weight")) {
        size_t row = net->embed.row_bytes + 2 * net->embed.affine.row_bytes;
        m->info.step_bytes -= net->embed.n * row;
        m->info.step_bytes += row;
        st = find_matrix(m, "output.weight", net->d_model, net->n_vocab, &net->output, err);
    }
    if (st == KVS_OK) {
        st = find_vector(m, "output_norm.weight", net->d_model, &net->output_norm, err);
    }
    if (st == KVS_OK && m->arch->parts & KVS__PART_ROPE_FREQS) {
        st = load_rope_factors(m, err);
    }
    if (st == KVS_OK && net->ropes[0].kind == KVS__ROPE_LONG && !net->ropes[0].factors) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                       "%s.rope.scaling.type is longrope, which this architecture has not",
                       m->arch->name);
    }
    return st;
}

kvs_status kvs__net_load(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs_status st = kvs__net_params(m, err);
    if (st != KVS_OK) {
        return st;
    }
    net->layers = kvs__calloc(m->ctx, net->n_layers, sizeof *net->layers);
    if (!net->layers) {
        return kvs__nomem(err, "engine", net->n_layers * sizeof *net->layers);
    }
    for (uint32_t i = 0; i < net->n_layers; i++) {
        net->layers[i] = net->usual;
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

void kvs__net_layer_spec(const kvs__net *net, uint32_t i, kvs_layer_spec *out)
{
    const kvs__layer *l = &net->layers[i];
    *out = (kvs_layer_spec)KVS_LAYER_SPEC_INIT;
    out->kind = l->mixer == KVS__MIX_LATENT ? KVS_LAYER_LATENT : KVS_LAYER_ATTENTION;
    out->n_kv_heads = l->n_kv_heads;
    out->k_dim = l->k_dim;
    out->v_dim = l->v_dim;
    out->window = l->window;
}

void kvs__net_free(kvs_model *m)
{
    for (uint32_t i = 0; m->net.layers && i < m->net.n_layers; i++) {
        const kvs__moe *e = &m->net.layers[i].moe;
        kvs__free(m->ctx, e->expert, (size_t)e->n * 3 * sizeof *e->expert);
    }
    kvs__free(m->ctx, m->net.layers, m->net.n_layers * sizeof *m->net.layers);
    kvs__free(m->ctx, m->vectors, m->vectors_bytes);
}
