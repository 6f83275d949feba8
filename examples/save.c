/* SPDX-License-Identifier: MIT */
/* save.c: the state of a prompt, written to a directory and found again for a longer one.
 *
 *   cc save.c $(pkg-config --cflags --libs kvstate) && ./a.out DIR */
#include <kvstate/kvstate.h>
#include <stdio.h>
#include <string.h>

enum { DIM = 64, TOKENS = 100, MORE = 20 };

static float kv[TOKENS][DIM];   /* what a model would compute */
static uint16_t k[TOKENS][DIM]; /* stored bytes of f16: [heads][tokens][units] */
static uint16_t v[TOKENS][DIM];
static int32_t ids[TOKENS + MORE]; /* the longer prompt; its front is the saved one */

int main(int argc, char **argv)
{
    static const uint8_t identity[KVS_DIGEST_BYTES] = {1}; /* see kvs_identity_digest */
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx *ctx = NULL;
    kvs_cache *cache = NULL, *again = NULL;
    kvs_store *store = NULL;
    kvs_layer_spec layer = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    kvs_kv tokens = KVS_KV_INIT;
    kvs_planes planes = KVS_PLANES_INIT;
    kvs_store_key key = {identity, "demo", 4, ids, TOKENS};
    kvs_store_part parts[2] = {{"k", 0, 0, sizeof k, k, 0, 0, NULL, NULL},
                               {"v", 0, 0, sizeof v, v, 0, 0, NULL, NULL}};
    kvs_store_buf bufs[2] = {{0, 0, sizeof k, k}, {1, 0, sizeof v, v}};
    kvs_store_put_opts put = KVS_STORE_PUT_OPTS_INIT;
    kvs_store_query query = KVS_STORE_QUERY_INIT;
    kvs_store_hit hit = KVS_STORE_HIT_INIT;

    layer.n_kv_heads = 1;
    layer.k_dim = layer.v_dim = DIM;
    opts.n_layers = 1;
    opts.layers = &layer;
    tokens.n_tokens = TOKENS;
    tokens.k = tokens.v = kv;
    planes.k[0] = k; /* affine codecs have scales and biases in [1] and [2] */
    planes.v[0] = v;
    put.flags = KVS_PUT_DURABLE;
    query.mode = KVS_FIND_PREFIX;
    for (int i = 0; i < TOKENS + MORE; i++) {
        ids[i] = i;
    }
    if (kvs_ctx_new(NULL, &ctx, &err) || kvs_cache_new(ctx, &opts, &cache, &err) ||
        kvs_cache_append(cache, 0, &tokens, &err) ||
        kvs_cache_export(cache, 0, 0, TOKENS, &planes, &err) ||
        kvs_store_open(ctx, argc > 1 ? argv[1] : "saved", NULL, &store, &err) ||
        kvs_store_put(store, &key, parts, 2, &put, &err)) {
        goto done;
    }
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    key.n_ids = TOKENS + MORE;
    if (kvs_store_find(store, &key, &query, &hit, &err) == KVS_OK) { /* KVS_NO: a miss */
        kvs_status st = kvs_store_get(store, hit.entry, bufs, 2, &err);
        (void)kvs_store_unpin(store, hit.entry);
        if (st == KVS_OK && kvs_cache_new(ctx, &opts, &again, &err) == KVS_OK &&
            kvs_cache_import(again, 0, 0, hit.n_common, &planes, &err) == KVS_OK) {
            printf("%zu of %zu tokens need not be computed\n", hit.n_common, key.n_ids);
        }
    }
done:
    if (err.status) {
        fprintf(stderr, "%s: %s\n", kvs_status_name(err.status), err.msg);
    }
    kvs_store_close(store);
    kvs_cache_free(again);
    kvs_cache_free(cache);
    kvs_ctx_free(ctx);
    return err.status != KVS_OK;
}
