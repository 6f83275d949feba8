/* SPDX-License-Identifier: MIT */
/* arch_gemma3.c: Gemma 3, text. Five layers with a window and a rotary base of their own, then one
 * that sees everything; norms on both sides of each block and on q and k; scaled embedding. */
#include <math.h>

#include "engine/arch.h"

#define PERIOD        6u     /* every sixth layer is global */
#define LOCAL_BASE    1.0e4f /* not in older files */
#define LAYERS_OF_27B 62u    /* scales queries by d_model / n_heads, all others by the head dim */

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    const float local = LOCAL_BASE;
    const uint32_t none = 0;
    const uint32_t period = PERIOD;
    const kvs__u32_rule window_rule = {"attention.sliding_window", 0, INT32_MAX, &none};
    const kvs__u32_rule period_rule = {"attention.sliding_window_pattern", 1, 1024, &period};
    uint32_t window = 0;
    uint32_t every = PERIOD;
    kvs_status st = kvs__param_u32(m, &window_rule, &window, err);
    if (st == KVS_OK) {
        st = kvs__param_u32(m, &period_rule, &every, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "rope.freq_base_swa", &local, &net->ropes[1].base, err);
    }
    float scale = net->usual.attn_scale;
    if (st == KVS_OK && net->n_layers == LAYERS_OF_27B) {
        float by_width = 1.0f / sqrtf((float)net->d_model / (float)net->usual.n_heads);
        st = kvs__param_f32(m, "attention.scale", &by_width, &scale, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    net->n_ropes = 2;
    net->ropes[1].n_rot = net->ropes[0].n_rot;
    net->ropes[1].factor = 1.0f; /* scaling stretches the global layers only */
    net->ropes[1].part = 1.0f;
    for (uint32_t i = 0; i < net->n_layers; i++) {
        bool is_local = (i + 1) % every != 0;
        net->layers[i].rope = is_local ? 1 : 0;
        net->layers[i].window = is_local ? window : 0;
        net->layers[i].attn_scale = scale;
    }
    net->embed_scale = sqrtf((float)net->d_model);
    return KVS_OK;
}

const kvs__arch kvs__arch_gemma3 = {
    .name = "gemma3",
    .parts = KVS__PART_QK_NORM | KVS__PART_POST_NORM,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_GELU,
    .setup = setup,
};
