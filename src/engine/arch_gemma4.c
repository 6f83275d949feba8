/* SPDX-License-Identifier: MIT */
/* arch_gemma4.c: Gemma 4, text, without experts: some layers with a window, then one that sees
 * everything and has wider heads, of which a part of the pairs turns; values normed; the last
 * layers have no keys and values but read those of the last layer of their kind that has; inputs of
 * each layer's own (side.c); a factor at the end of a layer. */
#include <math.h>

#include "engine/arch.h"

#define MAX_SIDE   (1u << 16)
#define LONG_NORMS 1024u

typedef struct facts {
    uint32_t window, every; /* each every-th layer sees all */
    uint32_t local_dim;     /* of heads with a window */
    uint32_t full_heads;    /* K and V heads of the others */
    uint32_t shared;        /* layers at the end without keys and values */
    bool wide;              /* whose feed-forward is twice as wide */
    bool same;              /* values of layers that see all are their keys */
} facts;

static kvs_status read_facts(kvs_model *m, facts *f, kvs_err *err)
{
    const kvs__net *net = &m->net;
    const uint32_t none = 0;
    const kvs__layer *usual = &net->usual;
    const kvs__u32_rule rules[] = {
        {"attention.sliding_window", 1, INT32_MAX, NULL},
        {"attention.sliding_window_pattern", 1, 1024, NULL},
        {"attention.key_length_swa", 16, 1024, &usual->k_dim},
        {"attention.head_count_kv_full", 1, usual->n_heads, &usual->n_kv_heads},
        {"attention.shared_kv_layers", 0, net->n_layers - 1, &none},
        {"embedding_length_per_layer_input", 0, MAX_SIDE, &none},
    };
    uint32_t *const fields[] = {&f->window,     &f->every,  &f->local_dim,
                                &f->full_heads, &f->shared, &m->net.d_side};
    kvs_status st = KVS_OK;
    for (size_t i = 0; st == KVS_OK && i < KVS_COUNT(rules); i++) {
        st = kvs__param_u32(m, &rules[i], fields[i], err);
    }
    if (st == KVS_OK) {
        st = kvs__param_bool(m, "feed_forward_double_wide", &f->wide, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_bool(m, "attention.key_is_value", &f->same, err);
    }
    if (st == KVS_OK && (f->local_dim % 8 != 0 || usual->n_heads % f->full_heads != 0)) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                       "gemma4: local heads of %u elements, %u global ones for %u", f->local_dim,
                       f->full_heads, usual->n_heads);
    }
    return st;
}

static void set_layer(kvs__net *net, const facts *f, uint32_t i)
{
    kvs__layer *l = &net->layers[i];
    bool local = (i + 1) % f->every != 0;
    l->v_norm = true;
    l->rope = local ? 1 : 0;
    l->window = local ? f->window : 0;
    l->k_dim = local ? f->local_dim : net->usual.k_dim;
    l->v_dim = l->k_dim;
    l->same_kv = f->same && !local;
    l->n_kv_heads = l->same_kv ? f->full_heads : net->usual.n_kv_heads;
}

/* The last layer of the same kind that has keys and values. */
static kvs_status find_donor(kvs__net *net, const facts *f, uint32_t i, kvs_err *err)
{
    kvs__layer *l = &net->layers[i];
    uint32_t donor = net->n_layers - f->shared;
    while (donor > 0 && net->layers[donor - 1].rope != l->rope) {
        donor--;
    }
    if (donor == 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "gemma4: no layer below the last %u has keys and values for layer %u",
                         f->shared, i);
    }
    l->borrows = true;
    l->donor = donor - 1;
    l->d_ff *= f->wide ? 2 : 1;
    return KVS_OK;
}

static kvs_status setup(kvs_model *m, kvs_err *err)
{
    kvs__net *net = &m->net;
    facts f = {0};
    const float base = 1e4f;
    const float none = 0.0f;
    kvs_status st = read_facts(m, &f, err);
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "final_logit_softcapping", &none, &net->logit_softcap, err);
    }
    if (st == KVS_OK) {
        st = kvs__param_f32(m, "rope.freq_base_swa", &base, &net->ropes[1].base, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    net->n_ropes = 2;
    net->ropes[0].n_rot = net->usual.k_dim;
    net->ropes[1].n_rot = f.local_dim;
    net->ropes[1].factor = 1.0f;
    net->ropes[1].part = 1.0f;
    net->n_ones = LONG_NORMS;
    net->side_scale = sqrtf((float)net->d_side);
    for (uint32_t i = 0; i < net->n_layers; i++) {
        set_layer(net, &f, i);
    }
    for (uint32_t i = net->n_layers - f.shared; st == KVS_OK && i < net->n_layers; i++) {
        st = find_donor(net, &f, i, err);
    }
    return st;
}

const kvs__arch kvs__arch_gemma4 = {
    .name = "gemma4",
    .parts = KVS__PART_QK_NORM | KVS__PART_POST_NORM,
    .rope_style = KVS__ROPE_HALVES,
    .act = KVS__ACT_GELU,
    .setup = setup,
};
