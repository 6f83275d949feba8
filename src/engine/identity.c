/* SPDX-License-Identifier: MIT */
/* identity.c: see identity.h. */
#include "engine/identity.h"

#include <stdio.h>
#include <string.h>

#include "base/sha256.h"

#define NUMERICS "kvstate-numerics-2" /* raised whenever bits change: docs/numerics.md */

static void add_layer(kvs__sha256 *sum, const kvs_layer_spec *s)
{
    char k[48];
    char v[48];
    char text[256];
    (void)kvs_codec_name(&s->k, k, sizeof k);
    (void)kvs_codec_name(&s->v, v, sizeof v);
    bool borrows = s->kind == KVS_LAYER_BORROW;
    (void)snprintf(text, sizeof text, "%d %u %u %u %s %s %u %u %u %d %u", (int)s->kind,
                   s->n_kv_heads, s->k_dim, s->v_dim, k, s->kind == KVS_LAYER_ATTENTION ? v : "",
                   s->window, s->window ? s->sinks : 0, s->dense_until,
                   s->dense_until ? (int)s->dense_dtype : 0, borrows ? s->donor : 0);
    kvs__sha256_field(sum, text, strlen(text));
    if (s->kind == KVS_LAYER_RECURRENT) { /* undo is no part of it: results do not depend on it */
        const kvs_recurrent_spec *r = s->recurrent;
        (void)snprintf(text, sizeof text, "recurrent %d %u %u %u %u %u %u %d", (int)r->rule,
                       r->n_heads, r->n_groups, r->head_dim, r->state_dim, r->conv_dim,
                       r->conv_taps, (int)r->conv_dtype);
        kvs__sha256_field(sum, text, strlen(text));
    }
}

/* The frequencies themselves: they can depend on the context's length. */
static kvs_status add_ropes(kvs_ctx *ctx, const kvs__net *net, uint32_t n_ctx, kvs__sha256 *sum,
                            kvs_err *err)
{
    for (uint32_t i = 0; i < net->n_ropes; i++) {
        size_t bytes = (size_t)net->ropes[i].n_rot / 2 * sizeof(double);
        double *freq = kvs__calloc(ctx, 1, bytes + sizeof(double));
        if (!freq) {
            return kvs__nomem(err, "engine", bytes);
        }
        freq[net->ropes[i].n_rot / 2] = (double)kvs__rope_freqs(&net->ropes[i], n_ctx, freq);
        kvs__sha256_field(sum, freq, bytes + sizeof(double));
        kvs__free(ctx, freq, bytes + sizeof(double));
    }
    return KVS_OK;
}

kvs_status kvs__identity(kvs_ctx *ctx, const kvs__net *net, const kvs_cache *cache, uint32_t n_ctx,
                         const kvs_identity_desc *desc, uint8_t out[KVS_DIGEST_BYTES], kvs_err *err)
{
    uint8_t plan[32];
    uint8_t rope[32];
    kvs__sha256 sum;
    kvs__sha256_init(&sum);
    kvs__sha256_field(&sum, NUMERICS, sizeof NUMERICS - 1);
    for (uint32_t i = 0; i < kvs_cache_n_layers(cache); i++) {
        add_layer(&sum, kvs_cache_spec(cache, i));
    }
    kvs__sha256_end(&sum, plan);
    kvs__sha256_init(&sum);
    kvs__sha256_field(&sum, desc->rope.data, desc->rope.bytes);
    kvs_status st = add_ropes(ctx, net, n_ctx, &sum, err);
    kvs__sha256_end(&sum, rope);
    kvs_identity_desc d = *desc;
    d.plan = (kvs_bytes){plan, sizeof plan};
    d.rope = (kvs_bytes){rope, sizeof rope};
    return st == KVS_OK ? kvs_identity_digest(&d, out, err) : st;
}

/* ---- plans */

static bool same_state(const kvs_recurrent_spec *a, const kvs_recurrent_spec *b)
{
    return !a || !b ||
           (a->rule == b->rule && a->n_heads == b->n_heads && a->n_groups == b->n_groups &&
            a->head_dim == b->head_dim && a->state_dim == b->state_dim &&
            a->conv_dim == b->conv_dim && a->conv_taps == b->conv_taps);
}

kvs_status kvs__net_check_plan(const kvs__net *net, const kvs_plan *plan, kvs_err *err)
{
    bool same = kvs_plan_n_layers(plan) == net->n_layers;
    for (uint32_t i = 0; same && i < net->n_layers; i++) {
        kvs_layer_spec need = KVS_LAYER_SPEC_INIT;
        const kvs_layer_spec *has = kvs_plan_layer(plan, i);
        kvs__net_layer_spec(net, i, &need);
        same = has->kind == need.kind && has->n_kv_heads == need.n_kv_heads &&
               has->k_dim == need.k_dim && has->v_dim == need.v_dim && has->donor == need.donor &&
               same_state(has->recurrent, need.recurrent);
    }
    if (!same) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "the plan was made for another model");
    }
    return KVS_OK;
}
