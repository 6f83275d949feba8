/* SPDX-License-Identifier: MIT */
/* net_recurrent.c: hyper-parameters and weights of recurrent layers, by the keys and names that
 * GGUF files have for them: ssm.inner_size is all heads together, ssm.time_step_rank the number of
 * heads. What a spec allows is checked here, so that a model that opens can be computed. */
#include <math.h>
#include <string.h>

#include "engine/arch.h"
#include "engine/net_find.h"

#define MAX_STATE  1024u
#define MAX_HEADS  65536u
#define MAX_WIDTH  (1u << 20)
#define LONG_NORMS 1024u /* most elements of a norm without a weight */

static kvs_status read_spec(const kvs_model *m, kvs_recurrent_spec *s, kvs_err *err)
{
    uint32_t inner = 0;
    const kvs__u32_rule heads = {"ssm.time_step_rank", 1, MAX_HEADS, NULL};
    const kvs__u32_rule groups = {"ssm.group_count", 1, MAX_HEADS, NULL};
    const kvs__u32_rule state = {"ssm.state_size", 4, MAX_STATE, NULL};
    const kvs__u32_rule taps = {"ssm.conv_kernel", 2, 16, NULL};
    const kvs__u32_rule width = {"ssm.inner_size", 8, MAX_WIDTH, NULL};
    const kvs__u32_rule *const rules[] = {&heads, &groups, &state, &taps, &width};
    uint32_t *const fields[] = {&s->n_heads, &s->n_groups, &s->state_dim, &s->conv_taps, &inner};
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, rules[i], fields[i], err);
    }
    if (st != KVS_OK) {
        return st;
    }
    s->head_dim = inner / s->n_heads;
    uint64_t conv = inner + 2 * (uint64_t)s->n_groups * s->state_dim;
    if (inner % s->n_heads != 0 || s->n_heads % s->n_groups != 0 || s->state_dim % 4 != 0 ||
        s->head_dim > MAX_STATE || conv > MAX_WIDTH) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s: ssm.inner_size %u with %u heads in %u groups and a state of %u",
                         m->arch->name, inner, s->n_heads, s->n_groups, s->state_dim);
    }
    s->conv_dim = (uint32_t)conv;
    return KVS_OK;
}

/* Layers [0, n_layers) but every `every`-th; 0: all. */
static void make_recurrent(kvs_model *m, const kvs__recurrent *r, uint32_t every)
{
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        kvs__layer *l = &m->net.layers[i];
        if (every == 0 || (i + 1) % every != 0) {
            l->mixer = KVS__MIX_RECURRENT;
            l->recurrent = *r;
        }
    }
}

kvs_status kvs__setup_delta(kvs_model *m, kvs_err *err)
{
    kvs__recurrent r = {.spec = KVS_RECURRENT_SPEC_INIT};
    uint32_t every = 4;
    const uint32_t usual = every;
    const kvs__u32_rule interval = {"full_attention_interval", 1, 1024, &usual};
    kvs_status st = read_spec(m, &r.spec, err);
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &interval, &every, err);
    }
    r.spec.rule = KVS_RECURRENT_GATED_DELTA;
    r.norm_groups = r.spec.n_heads;
    m->net.n_ones = LONG_NORMS;
    if (st == KVS_OK) {
        make_recurrent(m, &r, every);
    }
    return st;
}

kvs_status kvs__setup_ssd(kvs_model *m, kvs_err *err)
{
    kvs__recurrent r = {.spec = KVS_RECURRENT_SPEC_INIT};
    const float none = 0.0f;
    kvs_status st = read_spec(m, &r.spec, err);
    if (st != KVS_OK) {
        return st;
    }
    r.spec.rule = KVS_RECURRENT_SSD;
    const kvs__u32_rule parts = {"ssm.norm_group_count", 1, r.spec.n_groups, &r.spec.n_groups};
    st = kvs__param_u32(m, &parts, &r.norm_groups, err);
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "ssm.time_step_min", &none, &r.dt_min, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "ssm.time_step_max", &none, &r.dt_max, err);
    }
    if (st == KVS_OK && r.dt_max == 0.0f && r.dt_min > 0.0f) {
        r.dt_max = HUGE_VALF;
    }
    uint32_t values = r.spec.n_heads * r.spec.head_dim;
    if (st == KVS_OK && (values % r.norm_groups != 0 || r.dt_min > r.dt_max)) {
        st = kvs__fail(err, KVS_E_FORMAT, "engine",
                       "%s: ssm.norm_group_count %u of %u elements, time steps from %g to %g",
                       m->arch->name, r.norm_groups, values, (double)r.dt_min, (double)r.dt_max);
    }
    if (st == KVS_OK) {
        make_recurrent(m, &r, 0);
    }
    return st;
}

/* ---- weights */

/* Weights of the convolution, stored channel by channel, tap by tap. */
static kvs_status find_conv(kvs_model *m, uint32_t i, kvs__recurrent *r, kvs_err *err)
{
    char name[64];
    kvs__layer_name(name, i, "ssm_conv1d.weight");
    size_t taps = r->spec.conv_taps;
    size_t dim = r->spec.conv_dim;
    float *w = m->vectors + m->vectors_used;
    kvs_status st = kvs__find_list(m, name, taps * dim, &r->conv, err);
    if (st != KVS_OK) {
        return st;
    }
    float *by_channel = kvs__alloc(m->ctx, taps * dim * sizeof *by_channel);
    if (!by_channel) {
        return kvs__nomem(err, "engine", taps * dim * sizeof *by_channel);
    }
    memcpy(by_channel, w, taps * dim * sizeof *w);
    for (size_t c = 0; c < dim; c++) {
        for (size_t t = 0; t < taps; t++) {
            w[t * dim + c] = by_channel[c * taps + t];
        }
    }
    kvs__free(m->ctx, by_channel, taps * dim * sizeof *by_channel);
    return KVS_OK;
}

/* GGUF files hold the decay, others its logarithm. */
static kvs_status find_decay(kvs_model *m, uint32_t i, kvs__recurrent *r, kvs_err *err)
{
    char name[64];
    kvs__layer_name(name, i, "ssm_a");
    float *a = m->vectors + m->vectors_used;
    size_t n = r->spec.n_heads;
    kvs_status st = kvs__find_list(m, name, n, &r->decay, err);
    if (st == KVS_OK && m->source.hf) {
        kvs_recurrent_decay(a, a, n);
    }
    for (size_t h = 0; st == KVS_OK && h < n; h++) {
        if (!(a[h] <= 0.0f) || !isfinite(a[h])) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "element %zu of %s decays by %g", h,
                             kvs__source_name(&m->source, name).text, (double)a[h]);
        }
    }
    return st;
}

static kvs_status load_delta(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    kvs__recurrent *r = &l->recurrent;
    const size_t d = m->net.d_model;
    const size_t keys = (size_t)r->spec.n_groups * r->spec.state_dim;
    const size_t heads = r->spec.n_heads;
    const size_t values = heads * r->spec.head_dim;
    const kvs__part groups[] = {
        {"ssm_in.weight", d, 2 * keys + 2 * values, &r->mixed, NULL, false}};
    const kvs__part apart[] = {
        {"attn_qkv.weight", d, 2 * keys + values, &r->x, NULL, false},
        {"attn_gate.weight", d, values, &r->z, NULL, false},
    };
    const kvs__part both[] = {{"ssm_ba.weight", d, 2 * heads, &r->ba, NULL, false}};
    const kvs__part ab[] = {
        {"ssm_alpha.weight", d, heads, &r->a, NULL, false},
        {"ssm_beta.weight", d, heads, &r->b, NULL, false},
    };
    r->by_group = kvs__has_part(m, i, "ssm_in.weight");
    r->ba_by_group = kvs__has_part(m, i, "ssm_ba.weight");
    kvs_status st = r->by_group ? kvs__find_parts(m, i, groups, KVS_COUNT(groups), err)
                                : kvs__find_parts(m, i, apart, KVS_COUNT(apart), err);
    if (st == KVS_OK) {
        st = r->ba_by_group ? kvs__find_parts(m, i, both, KVS_COUNT(both), err)
                            : kvs__find_parts(m, i, ab, KVS_COUNT(ab), err);
    }
    return st;
}

/* Vectors of tiled heads, n elements a head from *v on, in the rule's order. */
static kvs_status untile(const kvs_model *m, const kvs__recurrent *r, float *v, size_t n,
                         kvs_err *err)
{
    const size_t heads = r->spec.n_heads;
    const size_t per = heads / r->spec.n_groups;
    float *stored = kvs__alloc(m->ctx, heads * n * sizeof *stored);
    if (!stored) {
        return kvs__nomem(err, "engine", heads * n * sizeof *stored);
    }
    memcpy(stored, v, heads * n * sizeof *v);
    for (size_t h = 0; h < heads; h++) {
        size_t at = h % per * r->spec.n_groups + h / per;
        memcpy(v + h * n, stored + at * n, n * sizeof *v);
    }
    kvs__free(m->ctx, stored, heads * n * sizeof *stored);
    return KVS_OK;
}

static kvs_status untile_all(const kvs_model *m, const kvs__recurrent *r, const size_t at[3],
                             kvs_err *err)
{
    const size_t keys = 2 * (size_t)r->spec.n_groups * r->spec.state_dim;
    kvs_status st = untile(m, r, m->vectors + at[0], 1, err);
    if (st == KVS_OK) {
        st = untile(m, r, m->vectors + at[1], 1, err);
    }
    for (size_t t = 0; st == KVS_OK && t < r->spec.conv_taps; t++) {
        st = untile(m, r, m->vectors + at[2] + t * r->spec.conv_dim + keys, r->spec.head_dim, err);
    }
    return st;
}

static kvs_status load_ssd(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__recurrent *r = &m->net.layers[i].recurrent;
    const size_t heads = r->spec.n_heads;
    const kvs__slice in[] = {
        {&r->z, heads * r->spec.head_dim}, {&r->x, r->spec.conv_dim}, {&r->a, heads}};
    char name[64];
    kvs__layer_name(name, i, "ssm_d");
    kvs_status st = kvs__find_slices(m, i, "ssm_in.weight", m->net.d_model, in, KVS_COUNT(in), err);
    if (st == KVS_OK) {
        st = kvs__find_list(m, name, heads, &r->d, err);
    }
    kvs__layer_name(name, i, "ssm_conv1d.bias");
    return st == KVS_OK ? kvs__find_optional(m, name, r->spec.conv_dim, &r->conv_bias, err) : st;
}

kvs_status kvs__load_recurrent(kvs_model *m, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &m->net.layers[i];
    kvs__recurrent *r = &l->recurrent;
    const bool delta = r->spec.rule == KVS_RECURRENT_GATED_DELTA;
    const size_t values = (size_t)r->spec.n_heads * r->spec.head_dim;
    const kvs__part common[] = {
        {"ssm_dt.bias", 0, r->spec.n_heads, NULL, &r->dt_bias, false},
        {"ssm_out.weight", values, m->net.d_model, &l->wo, NULL, false},
    };
    char name[64];
    kvs__layer_name(name, i, "ssm_norm.weight");
    kvs_status st = delta ? load_delta(m, i, err) : load_ssd(m, i, err);
    if (st == KVS_OK) {
        st = kvs__find_parts(m, i, common, KVS_COUNT(common), err);
    }
    if (st == KVS_OK) {
        st = kvs__find_list(m, name, delta ? r->spec.head_dim : values, &r->norm, err);
    }
    if (st == KVS_OK) {
        st = find_conv(m, i, r, err);
    }
    if (st == KVS_OK) {
        st = find_decay(m, i, r, err);
    }
    if (st != KVS_OK || !r->tiled) {
        return st;
    }
    const size_t at[3] = {(size_t)(r->dt_bias - m->vectors), (size_t)(r->decay - m->vectors),
                          (size_t)(r->conv - m->vectors)};
    return untile_all(m, r, at, err);
}
