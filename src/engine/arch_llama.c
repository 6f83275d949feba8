/* SPDX-License-Identifier: MIT */
/* arch_llama.c: Llama 2 and 3, SmolLM2, Mistral. The files store q and k permuted, so that rotary
 * pairs are neighbours. Llama 3's stretched frequencies come as rope_freqs.weight. */
#include "engine/arch.h"

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    const uint32_t none = 0;
    const kvs__u32_rule rule = {"attention.sliding_window", 0, INT32_MAX, &none};
    uint32_t window = 0;
    kvs_status st = kvs__param_u32(m, &rule, &window, err);
    for (uint32_t i = 0; st == KVS_OK && i < m->net.n_layers; i++) {
        m->net.layers[i].window = window;
    }
    return st;
}

const kvs__arch kvs__arch_llama = {
    .name = "llama",
    .parts = KVS__PART_QKV_BIAS | KVS__PART_ROPE_FREQS,
    .rope_style = KVS__ROPE_PAIRS,
    .act = KVS__ACT_SILU,
    .setup = setup,
};
