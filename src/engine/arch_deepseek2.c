/* SPDX-License-Identifier: MIT */
/* arch_deepseek2.c: DeepSeek V2 and V2-Lite: latent attention, mixtures of experts with shared ones
 * behind some dense layers, YaRN. V3's sigmoid routing is refused by its expert_gating_func.
 *
 * Files describe a head in two ways: older ones by attention.key_length and value_length; those
 * made for latent attention put the length of the latent row there and the head's dims into
 * key_length_mla and value_length_mla. */
#include <math.h>

#include "engine/arch.h"

#define LATENT_EPS 1e-6f /* of the norms of low-rank rows, whatever the model's other norms use */
#define MAX_RANK   (1u << 16)

static kvs_status read_dims(kvs_model *m, kvs__latent *a, kvs_err *err)
{
    const kvs__layer *usual = &m->net.usual;
    const uint32_t none = 0;
    uint32_t key = 0;
    const kvs__u32_rule q_rank = {"attention.q_lora_rank", 0, MAX_RANK, &none};
    const kvs__u32_rule rank = {"attention.kv_lora_rank", 16, 1016, NULL};
    const kvs__u32_rule key_rule = {"attention.key_length_mla", 16, 1024, &usual->k_dim};
    const kvs__u32_rule value_rule = {"attention.value_length_mla", 8, 1024, &usual->v_dim};
    const kvs__u32_rule *const rules[] = {&q_rank, &rank, &key_rule, &value_rule};
    uint32_t *const fields[] = {&a->q_rank, &a->rank, &key, &a->v_dim};
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, rules[i], fields[i], err);
    }
    if (st != KVS_OK) {
        return st;
    }
    a->eps = LATENT_EPS;
    a->rot = m->net.ropes[0].n_rot;
    if (a->rot >= key || a->rank % 8 != 0 || (a->rank + a->rot) % 8 != 0 ||
        a->rank + a->rot > 1024) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "deepseek2: kv_lora_rank %u with rope.dimension_count %u of heads of %u",
                         a->rank, a->rot, key);
    }
    a->nope = key - a->rot;
    return KVS_OK;
}

/* Where only the logarithm's multiplier is given, as in GGUF files, it is a tenth of mscale_all_dim
 * and mscale is the same, so that the magnitude of the encoding is 1. */
static kvs_status read_magnitude(kvs_model *m, kvs_err *err)
{
    kvs__rope *r = &m->net.ropes[0];
    const float none = 0.0f;
    float log_mul = 0.0f;
    kvs_status st = kvs__param_f32(m, "rope.scaling.yarn_log_multiplier", &none, &log_mul, err);
    if (st == KVS_OK && log_mul > 0.0f && r->mscale_all == 0.0f) {
        r->mscale_all = 10.0f * log_mul;
        r->mscale = r->mscale > 0.0f ? r->mscale : r->mscale_all;
    }
    return st;
}

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    kvs__latent a = {.q_rank = 0};
    kvs_status st = read_dims(m, &a, err);
    if (st == KVS_OK) {
        st = read_magnitude(m, err);
    }
    if (st == KVS_OK) {
        st = kvs__setup_experts(m, false, err);
    }
    const float scale = kvs__rope_score_scale(&net->ropes[0]) / sqrtf((float)(a.nope + a.rot));
    for (uint32_t i = 0; st == KVS_OK && i < net->n_layers; i++) {
        kvs__layer *l = &net->layers[i];
        l->mixer = KVS__MIX_LATENT;
        l->latent = a;
        l->n_kv_heads = 1;
        l->k_dim = a.rank + a.rot;
        l->v_dim = a.rank;
        l->attn_scale = scale;
    }
    return st;
}

const kvs__arch kvs__arch_deepseek2 = {
    .name = "deepseek2",
    .parts = KVS__PART_EXPERTS,
    .rope_style = KVS__ROPE_PAIRS,
    .act = KVS__ACT_SILU,
    .setup = setup,
};
