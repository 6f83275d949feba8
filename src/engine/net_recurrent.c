/* SPDX-License-Identifier: MIT */
/* net_recurrent.c: hyper-parameters of recurrent layers, from the keys that GGUF files have for
 * them: ssm.inner_size is all heads together, ssm.time_step_rank the number of heads. What a spec
 * allows is checked here, so that a model that opens can be computed. */
#include <math.h>

#include "engine/arch.h"

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
