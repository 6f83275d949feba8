/* SPDX-License-Identifier: MIT */
/* rec_naive.h: a recurrent layer told once more, as plain as can be: row-major state, one token at a
 * time, and every state since the start kept, so that a rewind is a decrement. In f32 it follows the
 * order of docs/numerics.md and must agree bit for bit; in f64 it follows mathematics and says how
 * far rounding went. Shares no code with the library but exp, softplus and sigmoid (kern/math.h),
 * whose own error test_softplus bounds. */
#ifndef KVS_TESTS_REC_NAIVE_H
#define KVS_TESTS_REC_NAIVE_H

#include "kvstate/recurrent.h"

enum { NAIVE_MAX_TOKENS = 400 };

/* One layer's weights and one token's raw inputs, made from seeds. */
typedef struct rec_weights {
    float *conv; /* [taps][conv_dim] */
    float *bias;
    float *decay;
    float *dt_bias;
    float *d;
    float dt_min, dt_max;
} rec_weights;

typedef struct rec_token {
    float *x; /* [conv_dim] */
    float *a; /* [n_heads] */
    float *b;
} rec_token;

/* Sizes of the parts of a token that follow from a spec whose conv_dim is q, k and v in a row (SSD:
 * C, B and x). */
typedef struct rec_sizes {
    size_t key, value, conv, state;
} rec_sizes;
rec_sizes rec_sizes_of(const kvs_recurrent_spec *s);

rec_weights rec_weights_new(const kvs_recurrent_spec *s, uint64_t seed);
void rec_weights_free(rec_weights *w);
/* The raw inputs of token `id`: x, a and b, in one piece that starts at x. */
rec_token rec_token_new(const kvs_recurrent_spec *s, uint64_t id);
/* What the caller does between convolution and scan, in place: q and k scaled to length 1. */
void rec_glue(const kvs_recurrent_spec *s, float *conv_out);

typedef struct rec_model {
    kvs_recurrent_spec spec;
    rec_weights w;
    int64_t len;
    int64_t oldest; /* tests may lower their sights: nothing before it is known (import) */
    int64_t guard;  /* what undo_tokens promises: the greatest length less that, or oldest */
    float *state;   /* [NAIVE_MAX_TOKENS + 1][heads][head_dim][state_dim] */
    double *exact;  /* the same in f64 */
    float *tail;    /* [NAIVE_MAX_TOKENS + 1][taps - 1][conv_dim], values as rounded */
} rec_model;

rec_model *rec_model_new(const kvs_recurrent_spec *s, uint64_t seed);
void rec_model_free(rec_model *m);
void rec_model_copy(rec_model *dst, const rec_model *src);
/* One token: conv [conv_dim] and y [value] as the library must give them; y64 may be NULL. */
void rec_model_token(rec_model *m, uint64_t id, float *conv, float *y, double *y64);
const float *rec_model_state(const rec_model *m, int64_t at);
const float *rec_model_tail(const rec_model *m, int64_t at);

#endif
