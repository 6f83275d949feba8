/* SPDX-License-Identifier: MIT */
/* graph.h: the forward pass of a decoder-only model over a list of rows.
 *
 * A row is some new tokens of one sequence with the cache that holds the tokens before them. Every
 * matrix product runs over the tokens of all rows at once; what touches a cache goes row by row.
 * Each token's result depends on its own row alone, so neither the rows computed together nor the
 * block size show in a bit. A graph owns the activations of one step and serves any rows. */
#ifndef KVS_ENGINE_GRAPH_H
#define KVS_ENGINE_GRAPH_H

#include "engine/net.h"
#include "kvstate/cache.h"

typedef struct kvs__graph kvs__graph;

/* Activations for steps of up to max_tokens tokens, over all rows; n_ctx is the longest sequence
 * (some rotary encodings depend on it). */
kvs_status kvs__graph_new(kvs_ctx *ctx, const kvs__net *net, uint32_t max_tokens, uint32_t n_ctx,
                          kvs__graph **out, kvs_err *err);
void kvs__graph_free(kvs__graph *g); /* NULL is fine */
size_t kvs__graph_bytes(const kvs__graph *g);
/* The greatest block whose activations stay within `bytes`, between 16 and `most`. */
uint32_t kvs__graph_block(const kvs__net *net, size_t bytes, uint32_t most);

typedef struct kvs__graph_row {
    kvs_cache *cache;      /* rows of a step have a cache each */
    const int32_t *tokens; /* [n], checked by the caller */
    uint32_t n;            /* >= 1 */
    uint32_t first_wanted; /* logits are wanted of tokens [first_wanted, n); n: of none */
    int64_t pos;           /* of the first token */
} kvs__graph_row;

/* Appends the tokens of each row to every layer of its cache and leaves the hidden rows of the
 * wanted tokens in the graph. The caller has reserved the caches; after a failure layers may differ
 * in length. */
kvs_status kvs__graph_run(kvs__graph *g, const kvs__graph_row *rows, uint32_t n_rows, kvs_err *err);
/* Logits of n wanted tokens of the last run, from the first'th on, counted through all rows in
 * their order: dst [n][n_vocab]. */
void kvs__graph_logits(kvs__graph *g, uint32_t first, uint32_t n, float *dst);

#endif
