/* SPDX-License-Identifier: MIT */
/* quality.h: what a plan costs in the quality of a model's predictions, on a text.
 *
 * The text is cut into windows of ctx tokens, each computed from an empty state; the first half of
 * a window is context alone, every token after it is scored by the probability that the model gave
 * it (llama.cpp counts so). Against a base plan a token also has the Kullback-Leibler divergence of
 * the two next-token distributions, in nats. Plans run side by side over the same window, so that
 * the logits of a few tokens at a time are all that is kept. */
#ifndef KVS_APP_QUALITY_H
#define KVS_APP_QUALITY_H

#include "util.h"

typedef struct score {
    size_t n;           /* scored tokens */
    double nll, nll_sq; /* sums of -log p(token) and of its square */
    double kl, kl_sq;   /* of the divergence */
    double logit_diff;  /* greatest absolute difference of a logit */
    size_t same_top;    /* tokens whose most probable successor is the base's */
    float *kls;         /* [n] in the order of the text; NULL without a base */
} score;

typedef struct quality {
    settings *s;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_model_info info;
    uint32_t n_threads;
    int32_t *tokens; /* of the text */
    size_t n_tokens;
    uint32_t window;   /* tokens of one */
    uint32_t n_chunks; /* windows to be scored */
    int32_t bos;       /* replaces the first token of a window; -1: nothing does */
} quality;

/* Context, model, text (s->file) and windows as the options say: s->ctx_size tokens, `window` by
 * default, at most s->chunks of them. Returns an exit code. */
int quality_open(quality *q, settings *s, uint32_t window);
void quality_close(quality *q);

int quality_plan(const quality *q, const char *kv, kvs_plan **out);
/* Bytes that one more token takes in all layers: codes, scales and biases. */
size_t quality_token_bytes(const kvs_plan *plan);

enum { MAX_PLANS = 16 };
typedef struct quality_run {
    const kvs_plan *base; /* NULL: no divergence */
    const kvs_plan *const *plans;
    size_t n_plans;
    uint32_t first_chunk;
    uint32_t n_chunks;
    score *scores;     /* [n_plans] zeroed; kls to be freed by scores_free */
    score *base_score; /* or NULL */
    void (*progress)(void *user, uint32_t chunk); /* after each window; or NULL */
    void *user;
} quality_run;
/* Returns an exit code. */
int quality_measure(quality *q, const quality_run *r);
void scores_free(score *scores, size_t n);

double score_perplexity(const score *s);
double score_perplexity_error(const score *s); /* standard error, over tokens */
double score_kl(const score *s);               /* mean */
double score_kl_error(const score *s);
/* The smallest divergence that `share` of the tokens don't exceed. Sorts kls. */
double score_kl_at(score *s, double share);

#endif
