/* SPDX-License-Identifier: MIT */
/* net_params.c: hyper-parameters that architectures share, from the metadata of a model (net.h).
 *
 * Nothing is guessed: a key that is missing, out of range or asks for what the engine does not do
 * is an error that names it and its value. What only some architectures have is read by their
 * setup functions with the helpers of arch.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/arch.h"
#include "engine/hf.h"
#include "engine/model_parts.h"

#define MAX_LAYERS  1024u
#define MAX_WIDTH   (1u << 20)
#define MAX_EXPERTS 1024u

static const uint32_t zero = 0;
static const uint32_t one = 1;

static kvs_status unsupported(const kvs_model *m, const char *suffix, kvs__str value,
                              const char *known, kvs_err *err)
{
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "%s.%s is \"%.*s\"; known: %s",
                     m->arch->name, suffix, value.len < 40 ? (int)value.len : 40, value.ptr, known);
}

/* Keys that change the arithmetic in ways that are not implemented, whatever the architecture. */
static kvs_status refuse_unknown(const kvs_model *m, kvs_err *err)
{
    const kvs__u32_rule experts = {"expert_count", 0, UINT32_MAX, &zero};
    uint32_t n = 0;
    kvs_status st = kvs__param_u32(m, &experts, &n, err);
    if (st == KVS_OK && n > 0 && !(m->arch->parts & KVS__PART_EXPERTS)) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s.expert_count is %u; mixtures of experts are not supported for it",
                         m->arch->name, n);
    }
    bool causal = true;
    if (st == KVS_OK) {
        st = kvs__param_bool(m, "attention.causal", &causal, err);
    }
    if (st == KVS_OK && !causal) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s.attention.causal is false; only causal models run", m->arch->name);
    }
    return st;
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
    kvs__layer *l = &m->net.usual;
    const kvs__u32_rule heads = {"attention.head_count", 1, MAX_LAYERS, NULL};
    kvs_status st = kvs__param_u32(m, &heads, &l->n_heads, err);
    if (st != KVS_OK) {
        return st;
    }
    const kvs__u32_rule kv_heads = {"attention.head_count_kv", 1, l->n_heads, &l->n_heads};
    st = kvs__param_u32(m, &kv_heads, &l->n_kv_heads, err);
    if (st != KVS_OK) {
        return st;
    }
    if (l->n_heads % l->n_kv_heads != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.attention.head_count %u is no multiple of head_count_kv %u",
                         m->arch->name, l->n_heads, l->n_kv_heads);
    }
    uint32_t dim = m->net.d_model / l->n_heads;
    st = head_dim(m, "attention.key_length", dim, &l->k_dim, err);
    if (st == KVS_OK) {
        st = head_dim(m, "attention.value_length", dim, &l->v_dim, err);
    }
    return st;
}

/* ---- rotary encodings */

static const struct {
    const char *name;
    kvs__rope_kind kind;
} rope_kinds[] = {
    {"none", KVS__ROPE_PLAIN},
    {"default", KVS__ROPE_PLAIN},
    {"linear", KVS__ROPE_LINEAR},
    {"dynamic", KVS__ROPE_DYNAMIC},
    {"yarn", KVS__ROPE_YARN},
    {"llama3", KVS__ROPE_LLAMA3},
    {"longrope", KVS__ROPE_LONG},
    {"su", KVS__ROPE_LONG},
    {"proportional", KVS__ROPE_PROPORTIONAL},
};

static kvs_status rope_kind(const kvs_model *m, kvs__rope_kind *out, kvs_err *err)
{
    kvs__str type = {"none", 4};
    kvs_status st = kvs__param_str(m, "rope.scaling.type", &type, err);
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rope_kinds); i++) {
        if (kvs__str_eq(type, rope_kinds[i].name)) {
            *out = rope_kinds[i].kind;
            return KVS_OK;
        }
    }
    return st != KVS_OK
               ? st
               : unsupported(m, "rope.scaling.type", type,
                             "none, linear, dynamic, yarn, llama3, longrope, proportional", err);
}

/* rope.scaling.*; what a kind does not use keeps a value that is in range. */
static kvs_status read_scaling(const kvs_model *m, kvs__rope *r, kvs_err *err)
{
    static const float unit = 1.0f;
    static const float none = 0.0f;
    static const float fast = 32.0f;
    static const float high = 4.0f;
    const struct {
        const char *suffix;
        const float *fallback;
        float *out;
    } floats[] = {
        {"rope.scaling.factor", &unit, &r->factor},
        {"rope.scaling.attention_factor", &none, &r->turn},
        {"rope.scaling.attn_factor", &none, &r->turn_mul},
        {"rope.scaling.yarn_beta_fast", &fast, &r->beta_fast},
        {"rope.scaling.yarn_beta_slow", &unit, &r->beta_slow},
        {"rope.scaling.mscale", &none, &r->mscale},
        {"rope.scaling.mscale_all_dim", &none, &r->mscale_all},
        {"rope.scaling.low_freq_factor", &unit, &r->low},
        {"rope.scaling.high_freq_factor", &high, &r->high},
        {"rope.scaling.partial_rotary_factor", &unit, &r->part},
    };
    kvs_status st = rope_kind(m, &r->kind, err);
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(floats); i++) {
        st = kvs__param_f32(m, floats[i].suffix, floats[i].fallback, floats[i].out, err);
    }
    const kvs__u32_rule orig = {"rope.scaling.original_context_length", 1, INT32_MAX,
                                &m->net.n_ctx_train};
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &orig, &r->n_ctx_orig, err);
    }
    return st;
}

/* Values that would make a frequency that is no number. */
static kvs_status check_scaling(const kvs_model *m, const kvs__rope *r, kvs_err *err)
{
    const char *name = m->arch->name;
    if (r->kind == KVS__ROPE_LLAMA3 && r->high <= r->low) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.rope.scaling.high_freq_factor %g is not above low_freq_factor %g",
                         name, (double)r->high, (double)r->low);
    }
    if (r->kind == KVS__ROPE_YARN && (r->base <= 1.0f || r->beta_fast < r->beta_slow)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: yarn with rope.freq_base %g, beta_fast %g and beta_slow %g", name,
                         (double)r->base, (double)r->beta_fast, (double)r->beta_slow);
    }
    if (r->kind == KVS__ROPE_DYNAMIC && (r->n_rot == 2 || r->factor < 1.0f)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: dynamic scaling by rope.scaling.factor %g of %u elements", name,
                         (double)r->factor, r->n_rot);
    }
    if (r->kind == KVS__ROPE_LONG && r->n_ctx_orig < 2) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.rope.scaling.original_context_length is %u", name, r->n_ctx_orig);
    }
    if (r->part > 1.0f) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.rope.scaling.partial_rotary_factor is %g, above 1", name,
                         (double)r->part);
    }
    return KVS_OK;
}

static kvs_status read_rope(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs__rope *r = &net->ropes[0];
    const kvs__u32_rule rot = {"rope.dimension_count", 2, net->usual.k_dim, &net->usual.k_dim};
    kvs_status st = kvs__param_u32(m, &rot, &r->n_rot, err);
    if (st != KVS_OK) {
        return st;
    }
    if (r->n_rot % 2 != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s.rope.dimension_count is %u, not even",
                         m->arch->name, r->n_rot);
    }
    const float base = 10000.0f;
    net->n_ropes = 1;
    r->n_ctx_train = net->n_ctx_train;
    st = kvs__param_f32(m, "rope.freq_base", &base, &r->base, err);
    if (st == KVS_OK) {
        st = read_scaling(m, r, err);
    }
    return st == KVS_OK ? check_scaling(m, r, err) : st;
}

kvs_status kvs__net_params(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const bool bare = (m->arch->parts & KVS__PART_NO_FFN) != 0;
    const bool headless = (m->arch->parts & KVS__PART_NO_HEADS) != 0;
    const kvs__u32_rule rules[] = {
        {"block_count", 1, MAX_LAYERS, NULL},
        {"embedding_length", 8, MAX_WIDTH, NULL},
        {"feed_forward_length", bare ? 0 : 8, MAX_WIDTH, bare ? &zero : NULL},
        {"context_length", 1, INT32_MAX, NULL},
    };
    uint32_t *const fields[] = {&net->n_layers, &net->d_model, &net->usual.d_ff, &net->n_ctx_train};
    kvs_status st = refuse_unknown(m, err);
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, &rules[i], fields[i], err);
    }
    if (st == KVS_OK && !headless) {
        st = read_heads(m, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "attention.layer_norm_rms_epsilon", NULL, &net->rms_eps, err);
    }
    if (st == KVS_OK && !headless) {
        st = read_rope(m, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    const float scale = headless ? 1.0f : 1.0f / sqrtf((float)net->usual.k_dim);
    net->embed_scale = 1.0f;
    net->block_scale = 1.0f;
    net->logit_scale = 1.0f;
    net->usual.ffn = bare ? KVS__FFN_NONE : KVS__FFN_DENSE;
    /* GGUF files of some architectures hold q and k permuted, the originals do not */
    net->rope_style =
        m->source.hf ? kvs__hf_get_family(m->source.hf)->rope_style : m->arch->rope_style;
    net->act = m->arch->act;
    return kvs__param_f32(m, "attention.scale", &scale, &net->usual.attn_scale, err);
}

/* ---- what several architectures share */

kvs_status kvs__setup_window(kvs_model *m, kvs_err *err)
{
    const uint32_t never = 1024;
    const kvs__u32_rule rule = {"attention.sliding_window", 0, INT32_MAX, &zero};
    const kvs__u32_rule pattern = {"attention.sliding_window_pattern", 1, 1024, &never};
    uint32_t window = 0;
    uint32_t every = never;
    kvs_status st = kvs__param_u32(m, &rule, &window, err);
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &pattern, &every, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < m->net.n_layers; i++) {
        m->net.layers[i].window = every == never || (i + 1) % every != 0 ? window : 0;
    }
    return st;
}

static kvs_status check_experts(const kvs_model *m, const kvs__moe *e, kvs_err *err)
{
    const char *name = m->arch->name;
    if (e->n % e->n_groups != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.expert_count %u is no multiple of expert_group_count %u", name, e->n,
                         e->n_groups);
    }
    if (e->used > e->groups_used * (e->n / e->n_groups)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s.expert_used_count %u is more than %u groups of %u experts hold", name,
                         e->used, e->groups_used, e->n / e->n_groups);
    }
    const kvs__u32_rule gating = {"expert_gating_func", 0, UINT32_MAX, &one};
    uint32_t func = 1;
    kvs_status st = kvs__param_u32(m, &gating, &func, err);
    if (st == KVS_OK && func != 1) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s.expert_gating_func is %u; 1 (softmax) runs", name, func);
    }
    return st;
}

/* Models whose shared expert has a width of its own gate it. */
static kvs_status read_shared(const kvs_model *m, kvs__moe *e, kvs_err *err)
{
    const kvs__u32_rule own = {"expert_shared_feed_forward_length", 0, MAX_WIDTH, &zero};
    kvs_status st = kvs__param_u32(m, &own, &e->d_shared, err);
    e->gated = e->d_shared > 0;
    return st;
}

kvs_status kvs__setup_experts(kvs_model *m, bool normalise, kvs_err *err)
{
    kvs__layer *l = &m->net.usual;
    kvs__moe e = {.normalise = normalise};
    const float unit = 1.0f;
    const kvs__u32_rule count = {"expert_count", 1, MAX_EXPERTS, NULL};
    kvs_status st = kvs__param_u32(m, &count, &e.n, err);
    if (st != KVS_OK) {
        return st;
    }
    const kvs__u32_rule used = {"expert_used_count", 1, e.n, NULL};
    const kvs__u32_rule width = {"expert_feed_forward_length", 8, MAX_WIDTH, &l->d_ff};
    const kvs__u32_rule groups = {"expert_group_count", 1, e.n, &one};
    const kvs__u32_rule shared = {"expert_shared_count", 0, 64, &zero};
    const kvs__u32_rule *const rules[] = {&used, &width, &groups, &shared};
    uint32_t n_shared = 0;
    uint32_t *const fields[] = {&e.used, &e.d_ff, &e.n_groups, &n_shared};
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, rules[i], fields[i], err);
    }
    const kvs__u32_rule best = {"expert_group_used_count", 1, e.n_groups, &e.n_groups};
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &best, &e.groups_used, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_bool(m, "expert_weights_norm", &e.normalise, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "expert_weights_scale", &unit, &e.scale, err);
    }
    if (st == KVS_OK) {
        st = check_experts(m, &e, err);
    }
    e.d_shared = n_shared * e.d_ff;
    if (st == KVS_OK && e.d_shared == 0) {
        st = read_shared(m, &e, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < m->net.n_layers; i++) {
        m->net.layers[i].moe = e;
    }
    return st;
}
