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

/* Converters to GGUF put the heads of a group of qwen35 apart (head h belongs to group h modulo the
 * number of groups), which the rule here does not know. */
static kvs_status setup_35(kvs_model *m, kvs_err *err)
{
    if (!m->source.hf) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "qwen35 is read from a directory of safetensors, not from GGUF");
    }
    return setup(m, err);
}

#define PARTS (KVS__PART_QK_NORM | KVS__PART_EXPERTS | KVS__PART_POST_NAME)

const kvs__arch kvs__arch_qwen3next = {
    .name = "qwen3next",
    .parts = PARTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup,
};

const kvs__arch kvs__arch_qwen35 = {
    .name = "qwen35",
    .parts = PARTS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup_35,
};
