/* SPDX-License-Identifier: MIT */
/* rounds.c: two answers to one prompt. Their caches share the prompt's blocks in one pool, and
 * both are advanced by a round of drafts of which each row accepts its own number.
 *
 *   cc rounds.c $(pkg-config --cflags --libs kvstate) && ./a.out */
#include <inttypes.h>
#include <kvstate/kvstate.h>
#include <stdio.h>

enum { LAYERS = 2, DIM = 64, PROMPT = 256, DRAFTS = 3 };

static float kv[PROMPT][DIM]; /* keys and values that a model would compute */

/* n tokens to every layer of a cache; a model would attend layer by layer in between. */
static kvs_status append(kvs_cache *cache, uint32_t n, kvs_err *err)
{
    kvs_kv tokens = KVS_KV_INIT;
    tokens.n_tokens = n;
    tokens.k = tokens.v = kv;
    for (uint32_t i = 0; i < LAYERS; i++) {
        if (kvs_cache_append(cache, i, &tokens, err)) {
            return err->status;
        }
    }
    return KVS_OK;
}

int main(void)
{
    static const uint32_t accepted[2] = {3, 1};
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx *ctx = NULL;
    kvs_pages *pages = NULL; /* each is freed once, in this order reversed */
    kvs_cache *cache = NULL;
    kvs_rows *rows = NULL;
    kvs_layer_spec layers[LAYERS] = {KVS_LAYER_SPEC_INIT, KVS_LAYER_SPEC_INIT};
    kvs_cache_opts opts = KVS_CACHE_OPTS_INIT;
    kvs_txn_opts round = KVS_TXN_OPTS_INIT;
    kvs_pages_stats stats = KVS_PAGES_STATS_INIT;
    for (uint32_t i = 0; i < LAYERS; i++) { /* f16 unless a codec is named */
        layers[i].n_kv_heads = 1;
        layers[i].k_dim = layers[i].v_dim = DIM;
        layers[i].layout = KVS_LAYOUT_PAGED;
    }
    opts.n_layers = LAYERS;
    opts.layers = layers;
    round.n_drafts = DRAFTS;
    if (kvs_ctx_new(NULL, &ctx, &err) || kvs_pages_new(ctx, NULL, &pages, &err)) {
        goto done;
    }
    opts.pages = pages;
    if (kvs_cache_new(ctx, &opts, &cache, &err) || append(cache, PROMPT, &err) ||
        kvs_rows_merge(ctx, &cache, 1, &rows, &err)) {
        goto done;
    }
    cache = NULL; /* the set owns it */
    if (kvs_rows_fork(rows, 0, KVS_ALL_TOKENS, &err) || kvs_pages_get_stats(pages, &stats)) {
        goto done;
    }
    printf("two rows of %d tokens in %" PRIu64 " blocks\n", PROMPT, stats.n_held);
    if (kvs_txn_begin(rows, &round, &err) ||
        append(kvs_rows_cache(rows, 0), 1 + DRAFTS, &err) || /* the pending token and its drafts */
        append(kvs_rows_cache(rows, 1), 1 + DRAFTS, &err) ||
        kvs_txn_resolve(rows, accepted, &err)) {
        goto done;
    }
    for (uint32_t r = 0; r < kvs_rows_count(rows); r++) {
        printf("row %u: %" PRId64 " tokens\n", r, kvs_cache_length(kvs_rows_cache(rows, r), 0));
    }
done:
    if (err.status) {
        fprintf(stderr, "%s: %s\n", kvs_status_name(err.status), err.msg);
    }
    kvs_rows_free(rows);
    kvs_cache_free(cache);
    kvs_pages_free(pages);
    kvs_ctx_free(ctx);
    return err.status != KVS_OK;
}
