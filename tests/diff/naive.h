/* SPDX-License-Identifier: MIT */
/* naive.h: the naive model of one layer: every token as plain floats in one array, visibility as a
 * predicate, attention as loops over it. It shares with the library the codec functions (held
 * against MLX elsewhere) and the scalar exp, nothing of layouts, spans, masks or scheduling. */
#ifndef KVS_TESTS_DIFF_NAIVE_H
#define KVS_TESTS_DIFF_NAIVE_H

#include <stdbool.h>

#include "kvstate/kvstate.h"

#define MODEL_MAX_TOKENS 2048
#define MODEL_GROUPS     (MODEL_MAX_TOKENS / KVS_CENTER_GROUP + 2)

typedef struct model {
    kvs_ctx *ctx;
    kvs_layer_spec spec;
    int64_t len;
    int64_t gap;    /* tokens below it, sinks apart, were never stored (import past a gap) */
    int64_t high;   /* greatest length since the layer was empty: what a ring may have dropped */
    bool early;     /* the dense copy of a delayed layer is still there */
    bool converted; /* main holds the tokens */
    float *in[2];   /* [MODEL_MAX_TOKENS][heads][dim] as appended: K, V */
    float *raw[2];  /* what main encodes: as appended, rounded to dense below dense_until */
    /* Centred keys: what main holds of K beside the centre, in the domain it is stored in, and the
     * centres [MODEL_GROUPS][heads][k_dim]; and what of K was encoded. Beyond len they are scratch of
     * block reads. */
    float *rest;
    float *apart;
    float *center;
} model;

void model_init(model *m, kvs_ctx *ctx, const kvs_layer_spec *spec);
void model_free(model *m);
void model_clear(model *m);
void model_append(model *m, uint32_t n, const float *k, const float *v);
/* n tokens count as seen and dropped. */
void model_skip(model *m, uint32_t n);
/* Appends what an import brings: of centred keys k is what is encoded beside the centres, which are
 * given for the groups of the new positions, [groups][heads][k_dim]. */
void model_import(model *m, uint32_t n, const float *k, const float *v, const float *center);
bool model_centered(const model *m);
/* A copy of its own; dst is not initialised. */
void model_copy(model *dst, const model *src);
void model_rewind(model *m, uint64_t n);
void model_convert(model *m, const kvs_codec *k, const kvs_codec *v);
/* Could a ring have dropped, or never got, a token that a query at `pos` sees? Then a refusal is
 * right. */
bool model_may_miss(const model *m, int64_t pos);
bool model_sees(const model *m, const kvs_attend *d, uint32_t query, int64_t key);
/* out [n_queries][n_q_heads][v_dim]; q dense f32; block K, V dense f32 or NULL. */
void model_attend(const model *m, const kvs_attend *d, const float *q, const float *block_k,
                  const float *block_v, float *out);

#endif
