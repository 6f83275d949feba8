/* SPDX-License-Identifier: MIT */
/* ring.c: a layer that remembers its newest 64 tokens and the first 4, keys in 8 bits and values in
 * 4; memory does not grow with the text, and the newest tokens can be taken back.
 *
 *   cc ring.c $(pkg-config --cflags --libs kvstate) && ./a.out */
#include <inttypes.h>
#include <kvstate/kvstate.h>
#include <stdio.h>

enum { KV_HEADS = 2, Q_HEADS = 8, DIM = 64, STEPS = 1000 };

/* Stands for what a model computes: keys and values of one token, all heads. */
static void compute(int64_t pos, float k[KV_HEADS][DIM], float v[KV_HEADS][DIM])
{
    for (int h = 0; h < KV_HEADS; h++) {
        for (int d = 0; d < DIM; d++) {
            k[h][d] = (float)((pos * 7 + h * 5 + d * 3) % 17) / 8.0f - 1.0f;
            v[h][d] = (float)((pos * 3 + h * 11 + d) % 13) / 6.0f - 1.0f;
        }
    }
}

int main(void)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx *ctx = NULL;
    kvs_cache *cache = NULL;
    kvs_layer_spec layer = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    float k[KV_HEADS][DIM], v[KV_HEADS][DIM], q[Q_HEADS][DIM] = {{1.0f}}, out[Q_HEADS][DIM];

    layer.n_kv_heads = KV_HEADS;
    layer.k_dim = layer.v_dim = DIM;
    layer.layout = KVS_LAYOUT_RING;
    layer.window = 64;
    layer.sinks = 4;
    layer.max_block = 8; /* most tokens of one append, and of a rewind */
    opts.n_layers = 1;
    opts.layers = &layer;
    if (kvs_codec_parse("q8", &layer.k, &err) || kvs_codec_parse("q4", &layer.v, &err) ||
        kvs_ctx_new(NULL, &ctx, &err) || kvs_cache_new(ctx, &opts, &cache, &err)) {
        goto failed;
    }
    for (int64_t pos = 0; pos < STEPS; pos++) {
        kvs_kv token = KVS_KV_INIT; /* strides 0: dense [tokens][heads][dim] */
        kvs_attend read = KVS_ATTEND_INIT;
        compute(pos, k, v);
        token.n_tokens = 1;
        token.k = k;
        token.v = v;
        read.n_queries = 1; /* q_pos -1: the newest token is the query */
        read.n_q_heads = Q_HEADS;
        read.q = q;
        read.out = out;
        read.scale = 0.125f; /* 1 / sqrt(DIM) */
        if (kvs_cache_append(cache, 0, &token, &err) || kvs_cache_attend(cache, 0, &read, &err)) {
            goto failed;
        }
    }
    printf("%" PRId64 " tokens seen, stored from %" PRId64 " on, %zu bytes; out[0][0] %g\n",
           kvs_cache_length(cache, 0), kvs_cache_oldest(cache, 0),
           kvs_cache_bytes(cache, KVS_ALL_LAYERS), (double)out[0][0]);
    /* Five tokens were drafts that did not hold. KVS_NO would be an answer, not an error. */
    if (kvs_cache_can_rewind(cache, 0, 5) == KVS_OK && kvs_cache_rewind(cache, 0, 5, &err)) {
        goto failed;
    }
    printf("%" PRId64 " tokens after the rewind\n", kvs_cache_length(cache, 0));
    kvs_cache_free(cache);
    kvs_ctx_free(ctx);
    return 0;
failed:
    fprintf(stderr, "%s: %s\n", kvs_status_name(err.status), err.msg);
    kvs_cache_free(cache);
    kvs_ctx_free(ctx);
    return 1;
}
