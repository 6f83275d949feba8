/* SPDX-License-Identifier: MIT */
/* arch_gemma2.c: Gemma 2. Every other layer, the first included, has a window; scores and logits
 * are soft-capped; norms on both sides of each block; scaled embedding. */
#include <math.h>

#include "engine/arch.h"

#define LAYERS_OF_27B 46u /* scales queries by d_model / n_heads, all others by the head dim */

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const float attn_cap = 50.0f;
    const float logit_cap = 30.0f;
    const uint32_t usual_window = 4096;
    const kvs__u32_rule rule = {"attention.sliding_window", 0, INT32_MAX, &usual_window};
    uint32_t window = 0;
    float scale = net->usual.attn_scale;
    kvs_status st = kvs__param_u32(m, &rule, &window, err);
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "attn_logit_softcapping", &attn_cap, &net->attn_softcap, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "final_logit_softcapping", &logit_cap, &net->logit_softcap, err);
    }
    if (st == KVS_OK && net->n_layers == LAYERS_OF_27B) {
        float by_width = 1.0f / sqrtf((float)net->d_model / (float)net->usual.n_heads);
        st = kvs__param_f32(m, "attention.scale", &by_width, &scale, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < net->n_layers; i++) {
        net->layers[i].window = i % 2 == 0 ? window : 0;
        net->layers[i].attn_scale = scale;
    }
    net->embed_scale = sqrtf((float)net->d_model);
    return st;
}

const kvs__arch kvs__arch_gemma2 = {
    .name = "gemma2",
    .parts = KVS__PART_POST_NORM,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_GELU,
    .setup = setup,
};
