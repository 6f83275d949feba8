/* SPDX-License-Identifier: MIT */
/* arch_llama.c: Llama and its near kin, which differ in a norm or a bias.
 *
 * llama    Llama 2 and 3, SmolLM2, Mistral, Mixtral. The files store q and k permuted, so that
 *          rotary pairs are neighbours. Llama 3's stretched frequencies come as
 *          rope_freqs.weight.
 * qwen2    Qwen 2 and 2.5: biases of q, k and v
 * qwen3    norms of each head of q and k
 * qwen3moe the same with a mixture of experts whose weights sum to 1
 * olmoe    norms of q and k over all heads at once; expert weights as the softmax gives them */
#include "engine/arch.h"

/* Mixtral is a llama with experts, whose weights sum to 1. */
static kvs_status setup_llama(kvs_model *m, kvs_err *err)
{
    const uint32_t none = 0;
    const kvs__u32_rule rule = {"expert_count", 0, UINT32_MAX, &none};
    uint32_t experts = 0;
    kvs_status st = kvs__setup_window(m, err);
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &rule, &experts, err);
    }
    return st == KVS_OK && experts > 0 ? kvs__setup_experts(m, true, err) : st;
}

static kvs_status setup_qwen3moe(kvs_model *m, kvs_err *err)
{
    kvs_status st = kvs__setup_window(m, err);
    return st == KVS_OK ? kvs__setup_experts(m, true, err) : st;
}

static kvs_status setup_olmoe(kvs_model *m, kvs_err *err)
{
    const float none = 0.0f;
    float clamp = 0.0f;
    kvs_status st = kvs__param_f32(m, "attention.clamp_kqv", &none, &clamp, err);
    if (st == KVS_OK && clamp > 0.0f) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "olmoe.attention.clamp_kqv is %g; only models without it run",
                         (double)clamp);
    }
    return st == KVS_OK ? kvs__setup_experts(m, false, err) : st;
}

const kvs__arch kvs__arch_llama = {
    .name = "llama",
    .parts = KVS__PART_BIAS | KVS__PART_EXPERTS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_PAIRS,
    .act = KVS__ACT_SILU,
    .setup = setup_llama,
};

const kvs__arch kvs__arch_qwen2 = {
    .name = "qwen2",
    .parts = KVS__PART_BIAS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = kvs__setup_window,
};

const kvs__arch kvs__arch_qwen3 = {
    .name = "qwen3",
    .parts = KVS__PART_QK_NORM | KVS__PART_BIAS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = kvs__setup_window,
};

const kvs__arch kvs__arch_qwen3moe = {
    .name = "qwen3moe",
    .parts = KVS__PART_QK_NORM | KVS__PART_BIAS | KVS__PART_EXPERTS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup_qwen3moe,
};

const kvs__arch kvs__arch_olmoe = {
    .name = "olmoe",
    .parts = KVS__PART_QK_NORM | KVS__PART_WIDE_NORM | KVS__PART_EXPERTS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_SILU,
    .setup = setup_olmoe,
};
