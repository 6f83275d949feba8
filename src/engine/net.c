/* SPDX-License-Identifier: MIT */
/* net.c: weights of an open file, resolved and checked (net.h).
 *
 * What a layer consists of follows from the architecture's parts and from what setup made of the
 * layer; net_find.c looks it up, net_recurrent.c has the recurrent layers. What would change the
 * result and is not computed is refused by name. */
#include "engine/net.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch.h"
#include "engine/model_parts.h"
#include "engine/net_find.h"

/* ---- attention */

static kvs_status load_qkv(kvs_model *m, uint32_t i, size_t q, size_t k, size_t v, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    if (m->arch->parts & KVS__PART_FUSED) {
        const kvs__slice fused[] = {{&l->wq, q}, {&l->wk, k}, {&l->wv, v}};
        return kvs__find_slices(m, i, "attn_qkv.weight", d, fused, KVS_COUNT(fused), err);
    }
    const kvs__part parts[] = {
        {"attn_q.weight", d, l->gated ? 2 * q : q, &l->wq, NULL, false},
        {"attn_k.weight", d, k, &l->wk, NULL, false},
        {"attn_v.weight", d, v, &l->wv, NULL, false},
    };
    size_t n = l->borrows ? 1 : l->same_kv ? 2 : 3;
    return kvs__find_parts(m, i, parts, n, err);
}

/* What some files store for layers that borrow, and nobody reads. */
static void pass_over(const kvs_model *m, uint32_t i)
{
    static const char *const names[] = {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"};
    for (size_t k = 0; k < KVS_COUNT(names); k++) {
        (void)kvs__has_part(m, i, names[k]);
    }
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
    const kvs__part common[] = {
        {"attn_output.weight", out, m->net.d_model, &l->wo, NULL, false},
    };
    const kvs__part bias[] = {
        {"attn_q.bias", 0, q, NULL, &l->bq, true},
        {"attn_k.bias", 0, k, NULL, &l->bk, true},
        {"attn_v.bias", 0, v, NULL, &l->bv, true},
        {"attn_output.bias", 0, m->net.d_model, NULL, &l->bo, true},
    };
    const kvs__part qk_norm[] = {
        {"attn_q_norm.weight", 0, l->wide_norm ? q : l->k_dim, NULL, &l->q_norm, false},
        {"attn_k_norm.weight", 0, l->wide_norm ? k : l->k_dim, NULL, &l->k_norm, false},
    };
    kvs_status st = load_qkv(m, i, q, k, v, err);
    if (st == KVS_OK) {
        st = kvs__find_parts(m, i, common, KVS_COUNT(common), err);
    }
    if (st == KVS_OK && parts & KVS__PART_BIAS) {
        st = kvs__find_parts(m, i, bias, KVS_COUNT(bias), err);
    }
    if (st == KVS_OK && parts & KVS__PART_QK_NORM) {
        st = kvs__find_parts(m, i, qk_norm, l->borrows ? 1 : 2, err);
    }
    if (st == KVS_OK && l->borrows) {
        pass_over(m, i);
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
    const kvs__part q_direct[] = {{"attn_q.weight", d, q, &a->q_b, NULL, false}};
    const kvs__part q_low[] = {
        {"attn_q_a.weight", d, a->q_rank, &a->q_a, NULL, false},
        {"attn_q_a_norm.weight", 0, a->q_rank, NULL, &a->q_a_norm, false},
        {"attn_q_b.weight", a->q_rank, q, &a->q_b, NULL, false},
    };
    const kvs__part common[] = {
        {"attn_kv_a_mqa.weight", d, (size_t)a->rank + a->rot, &a->kv_a, NULL, false},
        {"attn_kv_a_norm.weight", 0, a->rank, NULL, &a->kv_a_norm, false},
        {"attn_output.weight", heads * a->v_dim, d, &l->wo, NULL, false},
    };
    const kvs__part apart[] = {
        {"attn_k_b.weight", a->nope, heads * a->rank, &a->k_b, NULL, false},
        {"attn_v_b.weight", a->rank, heads * a->v_dim, &a->v_b, NULL, false},
    };
    const kvs__part fused[] = {
        {"attn_kv_b.weight", a->rank, heads * (a->nope + a->v_dim), &a->kv_b, NULL, false},
    };
    kvs_status st = a->q_rank ? kvs__find_parts(m, i, q_low, KVS_COUNT(q_low), err)
                              : kvs__find_parts(m, i, q_direct, KVS_COUNT(q_direct), err);
    if (st == KVS_OK) {
        st = kvs__find_parts(m, i, common, KVS_COUNT(common), err);
    }
    if (st != KVS_OK) {
        return st;
    }
    return kvs__has_part(m, i, "attn_k_b.weight")
               ? kvs__find_parts(m, i, apart, KVS_COUNT(apart), err)
               : kvs__find_parts(m, i, fused, KVS_COUNT(fused), err);
}

/* ---- feed-forward */

static kvs_status load_dense(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    const kvs__part down[] = {{"ffn_down.weight", l->d_ff, d, &l->down, NULL, false}};
    const kvs__part apart[] = {
        {"ffn_gate.weight", d, l->d_ff, &l->gate, NULL, false},
        {"ffn_up.weight", d, l->d_ff, &l->up, NULL, false},
    };
    const kvs__slice fused[] = {{&l->gate, l->d_ff}, {&l->up, l->d_ff}};
    if (kvs__has_part(m, i, "ffn_gate_up_shexp.weight")) { /* what others call the shared expert */
        const kvs__part shared[] = {{"ffn_down_shexp.weight", l->d_ff, d, &l->down, NULL, false}};
        kvs_status one =
            kvs__find_slices(m, i, "ffn_gate_up_shexp.weight", d, fused, KVS_COUNT(fused), err);
        return one == KVS_OK ? kvs__find_parts(m, i, shared, KVS_COUNT(shared), err) : one;
    }
    kvs_status st = m->arch->parts & KVS__PART_FUSED
                        ? kvs__find_slices(m, i, "ffn_up.weight", d, fused, KVS_COUNT(fused), err)
                        : kvs__find_parts(m, i, apart, KVS_COUNT(apart), err);
    return st == KVS_OK ? kvs__find_parts(m, i, down, KVS_COUNT(down), err) : st;
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
        kvs__layer_name(name, i, names[x % 3]);
        size_t k = x % 3 == 2 ? e->d_ff : d;
        size_t n = x % 3 == 2 ? d : e->d_ff;
        st = kvs__find_expert(m, name, x / 3, k, n, &e->expert[x], err);
    }
    m->info.step_bytes = before + (m->info.step_bytes - before) / e->n * e->used;
    return st;
}

static kvs_status load_moe(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__moe *e = &m->net.layers[i].moe;
    size_t d = m->net.d_model;
    const kvs__part router[] = {{"ffn_gate_inp.weight", d, e->n, &e->router, NULL, false}};
    const kvs__part shared[] = {
        {"ffn_gate_shexp.weight", d, e->d_shared, &e->shared_gate, NULL, false},
        {"ffn_up_shexp.weight", d, e->d_shared, &e->shared_up, NULL, false},
        {"ffn_down_shexp.weight", e->d_shared, d, &e->shared_down, NULL, false},
        {"ffn_gate_inp_shexp.weight", d, 1, &e->shared_router, NULL, false},
    };
    if (kvs__has_part(m, i, "exp_probs_b.bias")) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "blk.%u.exp_probs_b.bias: routing with a bias is not supported", i);
    }
    m->net.layers[i].ffn = KVS__FFN_MOE;
    kvs_status st = kvs__find_parts(m, i, router, KVS_COUNT(router), err);
    if (st == KVS_OK) {
        st = load_experts(m, i, err);
    }
    if (st != KVS_OK || e->d_shared == 0) {
        return st;
    }
    const kvs__slice both[] = {{&e->shared_gate, e->d_shared}, {&e->shared_up, e->d_shared}};
    if (kvs__has_part(m, i, "ffn_gate_up_shexp.weight")) {
        st = kvs__find_slices(m, i, "ffn_gate_up_shexp.weight", d, both, KVS_COUNT(both), err);
        return st == KVS_OK ? kvs__find_parts(m, i, shared + 2, 1, err) : st;
    }
    return kvs__find_parts(m, i, shared, e->gated ? 4 : 3, err);
}

/* What would change the result and has no place in a layer of the engine. */
static kvs_status refuse_parts(const kvs_model *m, uint32_t i, kvs_err *err)
{
    static const char *const foreign[] = {"ffn_gate.bias", "ffn_up.bias", "ffn_down.bias",
                                          "attn_qkv.bias", "ssm_in.bias", "ssm_out.bias"};
    static const char *const biases[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias",
                                         "attn_output.bias"};
    const char *bad = NULL;
    for (size_t k = 0; k < KVS_COUNT(foreign); k++) {
        bad = !bad && kvs__has_part(m, i, foreign[k]) ? foreign[k] : bad;
    }
    for (size_t k = 0; k < KVS_COUNT(biases) && !(m->arch->parts & KVS__PART_BIAS); k++) {
        bad = !bad && kvs__has_part(m, i, biases[k]) ? biases[k] : bad;
    }
    if (!bad) {
        return KVS_OK;
    }
    char name[64];
    kvs__layer_name(name, i, bad);
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "tensor %s: %s models have none",
                     kvs__source_name(&m->source, name).text, m->arch->name);
}

/* What comes after the feed-forward. */
static kvs_status load_side(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    size_t side = m->net.d_side;
    const kvs__part own[] = {
        {"inp_gate.weight", d, side, &l->side_gate, NULL, false},
        {"proj.weight", side, d, &l->side_proj, NULL, false},
        {"post_norm.weight", 0, d, NULL, &l->side_norm, false},
    };
    const kvs__part scale[] = {{"layer_output_scale.weight", 0, 1, NULL, &l->out_scale, true}};
    kvs_status st = side > 0 ? kvs__find_parts(m, i, own, KVS_COUNT(own), err) : KVS_OK;
    return st == KVS_OK ? kvs__find_parts(m, i, scale, KVS_COUNT(scale), err) : st;
}

static kvs_status load_mixer(kvs_model *m, uint32_t i, kvs_err *err)
{
    switch (m->net.layers[i].mixer) {
    case KVS__MIX_LATENT:
        return load_latent(m, i, err);
    case KVS__MIX_RECURRENT:
        return kvs__load_recurrent(m, i, err);
    default:
        return load_attention(m, i, err);
    }
}

static kvs_status load_layer(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    size_t d = m->net.d_model;
    uint32_t parts = m->arch->parts;
    const kvs__part norms[] = {
        {"attn_norm.weight", 0, d, NULL, &l->attn_norm, false},
        {parts & KVS__PART_POST_NAME ? "post_attention_norm.weight" : "ffn_norm.weight", 0, d, NULL,
         &l->ffn_norm, false},
    };
    const kvs__part post[] = {
        {"post_attention_norm.weight", 0, d, NULL, &l->post_attn_norm, false},
        {"post_ffw_norm.weight", 0, d, NULL, &l->post_ffn_norm, false},
    };
    kvs_status st = refuse_parts(m, i, err);
    if (st == KVS_OK) {
        st = kvs__find_parts(m, i, norms, parts & KVS__PART_NO_FFN ? 1 : 2, err);
    }
    if (st == KVS_OK && parts & KVS__PART_POST_NORM) {
        st = kvs__find_parts(m, i, post, KVS_COUNT(post), err);
    }
    if (st == KVS_OK) {
        st = load_mixer(m, i, err);
    }
    if (st == KVS_OK) {
        st = load_side(m, i, err);
    }
    if (st != KVS_OK || l->ffn == KVS__FFN_NONE) {
        return st;
    }
    bool moe =
        parts & KVS__PART_EXPERTS && l->moe.n > 0 && kvs__has_part(m, i, "ffn_gate_inp.weight");
    return moe ? load_moe(m, i, err) : load_dense(m, i, err);
}

/* ---- what is not in a layer */

/* Divisors of rotary frequencies, used where present. */
static kvs_status find_factors(kvs_model *m, const char *name, const float **out, kvs_err *err)
{
    size_t n = m->net.ropes[0].n_rot / 2;
    kvs_status st = kvs__find_optional(m, name, n, out, err);
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

/* The inputs that layers have of their own. */
static kvs_status load_side_inputs(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    size_t all = (size_t)net->n_layers * net->d_side;
    if (net->d_side == 0) {
        return KVS_OK;
    }
    uint64_t before = m->info.step_bytes;
    kvs_status st = kvs__find_matrix(m, "per_layer_token_embd.weight", all, net->n_vocab,
                                     &net->side_embed, err);
    if (st == KVS_OK) {
        m->info.step_bytes = before + (m->info.step_bytes - before) / net->n_vocab;
        st = kvs__find_matrix(m, "per_layer_model_proj.weight", net->d_model, all, &net->side_model,
                              err);
    }
    if (st == KVS_OK) {
        st = kvs__find_vector(m, "per_layer_proj_norm.weight", net->d_side, &net->side_norm, err);
    }
    return st;
}

static kvs_status load_ends(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs_status st = kvs__find_matrix(m, "token_embd.weight", net->d_model, 0, &net->embed, err);
    if (st != KVS_OK) {
        return st;
    }
    if (net->embed.n == 0 || net->embed.n > INT32_MAX) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "token_embd.weight has %zu rows",
                         net->embed.n);
    }
    net->n_vocab = (uint32_t)net->embed.n;
    net->output = net->embed;
    if (kvs__has_tensor(m, "output.weight")) {
        size_t row = net->embed.row_bytes + 2 * net->embed.affine.row_bytes;
        m->info.step_bytes -= net->embed.n * row;
        m->info.step_bytes += row;
        st = kvs__find_matrix(m, "output.weight", net->d_model, net->n_vocab, &net->output, err);
    }
    if (st == KVS_OK) {
        st = kvs__find_vector(m, "output_norm.weight", net->d_model, &net->output_norm, err);
    }
    if (st == KVS_OK) {
        st = load_side_inputs(m, err);
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
        st = kvs__reserve_vectors(m, err);
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
    if (l->mixer == KVS__MIX_RECURRENT) {
        out->kind = KVS_LAYER_RECURRENT;
        out->recurrent = &l->recurrent.spec;
        return;
    }
    out->kind = l->mixer == KVS__MIX_LATENT ? KVS_LAYER_LATENT
                : l->borrows                ? KVS_LAYER_BORROW
                                            : KVS_LAYER_ATTENTION;
    out->donor = l->donor;
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
