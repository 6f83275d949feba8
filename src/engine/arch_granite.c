/* SPDX-License-Identifier: MIT */
/* arch_granite.c: Granite 4, hybrids of Mamba-2 and some layers of attention, most of which turn no
 * heads; mixtures of experts with a shared one, or dense; four numbers that scale the embedding,
 * scores, what blocks add to the stream, and logits. Which layers are recurrent is seen by their
 * tensors. */
#include "engine/arch.h"
#include "engine/net_find.h"

static kvs_status read_scales(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const float one = 1.0f;
    float logits = 1.0f;
    kvs_status st = kvs__param_f32(m, "residual_scale", &one, &net->block_scale, err);
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "logit_scale", &one, &logits, err);
    }
    net->logit_scale = 1.0f / logits;
    return st;
}

static kvs_status read_experts(kvs_model *m, kvs_err *err)
{
    const uint32_t none = 0;
    const kvs__u32_rule experts = {"expert_count", 0, UINT32_MAX, &none};
    uint32_t n = 0;
    kvs_status st = kvs__param_u32(m, &experts, &n, err);
    if (st == KVS_OK && n > 0) {
        st = kvs__setup_experts(m, true, err);
    }
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        m->net.layers[i].moe.gated = false;
    }
    return st;
}

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    bool rotary = true;
    kvs_status st = kvs__setup_ssd(m, err);
    if (st == KVS_OK) {
        st = read_experts(m, err);
    }
    if (st == KVS_OK) {
        st = read_scales(m, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_bool(m, "attention.rotary", &rotary, err);
    }
    if (!rotary) { /* no pair turns: cosines are 1, sines 0 */
        net->ropes[0].kind = KVS__ROPE_PROPORTIONAL;
        net->ropes[0].part = 0.0f;
    }
    for (uint32_t i = 0; st == KVS_OK && i < net->n_layers; i++) {
        if (!kvs__has_part(m, i, "ssm_in.weight")) {
            net->layers[i].mixer = KVS__MIX_ATTENTION;
        }
    }
    return st;
}

const kvs__arch kvs__arch_granitehybrid = {
    .name = "granitehybrid",
    .parts = KVS__PART_EXPERTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup,
};
