/* SPDX-License-Identifier: MIT */
/* kvstate/sampler.h: from logits to the next token.
 *
 * Order: penalties and bias, then top_k, top_p, min_p, then temperature. The draw adds to each kept
 * logit a noise that is a pure function of (seed, row, position, token id) and takes the greatest
 * sum, which is a draw from the softmax. So a change in the last bit of a logit moves the choice
 * only where two sums nearly tie, and a row's text does not depend on what other rows do. */
#ifndef KVSTATE_SAMPLER_H
#define KVSTATE_SAMPLER_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvs_logit_bias {
    int32_t token;
    float bias; /* added to the logit; -INFINITY bans the token */
} kvs_logit_bias;

typedef struct kvs_sampler_opts {
    size_t struct_size;
    float temperature;       /* >= 0; 0: the greatest logit, ties to the lowest id; no noise */
    uint32_t top_k;          /* keep the k greatest; 0: all */
    float top_p;             /* keep the fewest whose probability reaches it; 1: all */
    float min_p;             /* drop what is less probable than min_p * the greatest; 0: none */
    float repeat_penalty;    /* seen tokens: logit / it where positive, * it where not; 1: none */
    float presence_penalty;  /* taken from the logit of a token seen at all */
    float frequency_penalty; /* taken once for each time it was seen */
    uint32_t penalty_last_n; /* newest tokens that count as seen; UINT32_MAX: all */
    uint64_t seed;
    uint64_t row;               /* tells rows of one batch apart that share a seed */
    const kvs_logit_bias *bias; /* [n_bias], read by kvs_sampler_new only */
    size_t n_bias;
} kvs_sampler_opts;
#define KVS_SAMPLER_OPTS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_sampler_opts), 0.8f, 40, 0.95f, 0.05f, 1.0f, 0.0f, 0.0f, 64, 0, 0, NULL, 0      \
    }

typedef struct kvs_candidate {
    int32_t token;
    float logit; /* after penalties and bias, before temperature */
} kvs_candidate;

/* Used by one thread at a time, as its context is. */
typedef struct kvs_sampler kvs_sampler;

/* KVS_E_RANGE names the option and its value. */
KVS_API kvs_status kvs_sampler_new(kvs_ctx *ctx, const kvs_sampler_opts *opts, size_t n_vocab,
                                   kvs_sampler **out, kvs_err *err);
KVS_API void kvs_sampler_free(kvs_sampler *sampler); /* NULL is fine */

/* Picks the token that follows `history` (the whole sequence; its length is the position of the
 * noise, its newest penalty_last_n tokens are penalised). logits: [n_vocab]; NaN is passed over.
 * KVS_E_RANGE: no token is left, or one of the history lies outside the vocabulary. */
KVS_API kvs_status kvs_sampler_pick(kvs_sampler *sampler, const float *logits,
                                    const int32_t *history, size_t n_history, int32_t *token,
                                    kvs_err *err);
KVS_API size_t kvs_sampler_n_vocab(const kvs_sampler *sampler);
/* What the last pick drew from, most probable first (greedy: the one token; nothing filtered: all,
 * in no order); borrowed until the next pick. */
KVS_API size_t kvs_sampler_candidates(const kvs_sampler *sampler, const kvs_candidate **out);

#ifdef __cplusplus
}
#endif
#endif
