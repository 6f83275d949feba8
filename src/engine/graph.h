/* SPDX-License-Identifier: MIT */
/* graph.h: the forward pass of a decoder-only transformer over a kvs_cache.
 *
 * A graph owns the activations of one block of tokens. Each row of every step depends on its own
 * token alone (and, in attention, on the cache), so the block size never shows in a result. */
#ifndef KVS_ENGINE_GRAPH_H
#define KVS_ENGINE_GRAPH_H

#include "engine/net.h"
#include "kvstate/cache.h"

typedef struct kvs__graph kvs__graph;

/* Activations for blocks of up to max_tokens. */
kvs_status kvs__graph_new(kvs_ctx *ctx, const kvs__net *net, uint32_t max_tokens, kvs__graph **out,
                          kvs_err *err);
void kvs__graph_free(kvs__graph *g); /* NULL is fine */
size_t kvs__graph_bytes(const kvs__graph *g);
/* The greatest block whose activations stay within `bytes`, between 16 and `most`. */
uint32_t kvs__graph_block(const kvs__net *net, size_t bytes, uint32_t most);

typedef struct kvs__graph_step {
    const int32_t *tokens; /* [n], checked by the caller */
    uint32_t n;
    uint32_t first_row; /* rows from here on are wanted after the last layer; n: none */
    int64_t pos;        /* of the first token */
} kvs__graph_step;

/* Appends the tokens to every layer of the cache and leaves the final hidden rows in the graph. The
 * caller has reserved the cache; after a failure layers may differ in length. */
kvs_status kvs__graph_run(kvs__graph *g, kvs_cache *cache, const kvs__graph_step *step,
                          kvs_err *err);
/* Logits of n rows, the first being `row` of the last run: dst [n][n_vocab]. */
void kvs__graph_logits(kvs__graph *g, uint32_t row, uint32_t n, float *dst);

#endif
