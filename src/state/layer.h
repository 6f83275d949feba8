/* SPDX-License-Identifier: MIT */
/* layer.h: one layer of a cache: its store, and the dense store of a delayed conversion; or, of a
 * recurrent layer, the object of recurrent.h and no store.
 *
 * Phases of a layer with dense_until = D > 0, by its length n:
 *   n <= D               early holds all, main is empty
 *   n > D, just crossed  early holds [.., D), main holds all; queries below D still read early
 *   n > D, later         the next append dropped early; main holds all
 * A block read takes the format that the stored tokens have: early up to D, main beyond.
 * I1  A query at a position below D reads early, any other main. The switch depends on positions
 *     alone, so how tokens were cut into appends can't show.
 * I2  The length of the layer is main.len if main holds a token, else early.len. */
#ifndef KVS_STATE_LAYER_H
#define KVS_STATE_LAYER_H

#include "state/recurrent.h"
#include "state/store.h"

typedef struct kvs__layer {
    kvs_layer_spec spec;
    uint64_t reserve;
    kvs__store main;
    kvs__store early; /* used when spec.dense_until > 0 */
    kvs__rec *rec;    /* recurrent layers; the stores are not used then */
} kvs__layer;

struct kvs_cache {
    kvs_ctx *ctx;
    uint32_t n_layers;
    kvs__layer *layer; /* [n_layers] */
};

/* "layer 3: ..." errors for a layer out of range; *out NULL then. */
kvs_status kvs__cache_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err);
/* The same, and refuses layers that hold no keys and values. */
kvs_status kvs__cache_kv_layer(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err);

int64_t kvs__layer_len(const kvs__layer *l);
/* The store whose tokens answer for the length: main once converted, early before. */
const kvs__store *kvs__layer_store(const kvs__layer *l);
kvs_status kvs__layer_reserve(kvs_ctx *ctx, kvs__layer *l, uint64_t n, kvs_err *err);
/* Reserves, then writes; the write itself cannot fail. */
kvs_status kvs__layer_append(kvs_ctx *ctx, kvs__layer *l, const kvs_kv *kv, kvs_err *err);
bool kvs__layer_can_rewind(const kvs__layer *l, uint64_t n);
void kvs__layer_rewind(kvs_ctx *ctx, kvs__layer *l, uint64_t n);
kvs_status kvs__layer_attend(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc,
                             kvs_err *err);
/* Checks a kv against the layer; `what` names it in messages. */
kvs_status kvs__kv_check(const kvs_kv *kv, const char *what, kvs_err *err);
/* Scratch of every call on a layer of this spec; part of kvs_cache_new. */
bool kvs__layer_scratch(const kvs__layer *l, uint32_t n_threads, size_t *bytes);

#endif
