/* SPDX-License-Identifier: MIT */
/* arch_qwen3next.c: Qwen3-Next and Qwen3.5: three layers of the gated delta rule, then one of
 * attention whose output is gated and whose heads turn in part only; mixtures of experts with a
 * gated shared one, or dense feed-forwards. The two differ in how matrices are stored alone. */
#include "engine/arch.h"

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    const uint32_t none = 0;
    const kvs__u32_rule experts = {"expert_count", 0, UINT32_MAX, &none};
    uint32_t n = 0;
    kvs_status st = kvs__setup_delta(m, err);
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &experts, &n, err);
    }
    if (st == KVS_OK && n > 0) {
        st = kvs__setup_experts(m, true, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < m->net.n_layers; i++) {
        m->net.layers[i].gated = true;
    }
    return st;
}

/* In GGUF files of qwen35 head h of the values belongs to group h modulo the number of groups. */
static kvs_status setup_35(kvs_model *m, kvs_err *err)
{
    kvs_status st = setup(m, err);
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        kvs__recurrent *r = &m->net.layers[i].recurrent;
        r->tiled = !m->source.hf && r->spec.n_heads > r->spec.n_groups;
    }
    return st;
}

#define PARTS (KVS__PART_QK_NORM | KVS__PART_EXPERTS | KVS__PART_POST_NAME)

const kvs__arch kvs__arch_qwen3next = {
    .name = "qwen3next",
    .parts = PARTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup,
};

const kvs__arch kvs__arch_qwen35moe = {
    .name = "qwen35moe",
    .parts = PARTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup_35,
};

const kvs__arch kvs__arch_qwen35 = {
    .name = "qwen35",
    .parts = PARTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup_35,
};
