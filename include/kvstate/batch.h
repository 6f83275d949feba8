/* SPDX-License-Identifier: MIT */
/* kvstate/batch.h: many sequences of one model computed together.
 *
 * A batch owns the activations of one step and no sequence: sessions of different lengths and plans
 * come and go from step to step, and are prefilled, sampled and cut on their own in between. The
 * weights are read once for all rows of a step. A row's logits are bit for bit those that it has
 * alone, whatever company it keeps. */
#ifndef KVSTATE_BATCH_H
#define KVSTATE_BATCH_H

#include "kvstate/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvs_batch_opts {
    size_t struct_size;
    uint32_t max_rows;   /* of a step; 0: 8 */
    uint32_t max_tokens; /* of a step, over all rows; 0: chosen, at least max_rows */
    uint32_t max_logits; /* rows of logits that a step may ask for; 0: max_rows */
    uint32_t n_ctx;      /* longest sequence; 0: the model's */
} kvs_batch_opts;
#define KVS_BATCH_OPTS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_batch_opts), 0, 0, 0, 0                                                         \
    }

/* All memory is taken here. The context is that of the sessions to come. A batch and the sessions
 * in it are used by one thread at a time. Freed after sessions that were made with it (opts.batch)
 * and before context and model. KVS_E_RANGE: more than 65536 rows, max_tokens below max_rows, a
 * context that is none; KVS_E_UNSUPPORTED: the model was opened for inspection. */
KVS_API kvs_status kvs_batch_new(kvs_ctx *ctx, const kvs_model *model, const kvs_batch_opts *opts,
                                 kvs_batch **out, kvs_err *err);
KVS_API void kvs_batch_free(kvs_batch *batch); /* NULL is fine */

typedef struct kvs_batch_step {
    size_t struct_size;
    uint32_t n_rows;
    kvs_session *const *sessions; /* [n_rows], each once; of the batch's model and context */
    const int32_t *const *tokens; /* [n_rows], of row r n_tokens[r] that are appended to it */
    const uint32_t *n_tokens;     /* [n_rows], at most the session's block; NULL: one each */
    const uint32_t *n_logits;     /* [n_rows] of its newest tokens; NULL: one each */
} kvs_batch_step;
#define KVS_BATCH_STEP_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_batch_step), 0, NULL, NULL, NULL, NULL                                          \
    }

/* Appends the tokens of all rows and computes the logits asked for. A session with n_logits > 0
 * holds those of its last token (kvs_session_logits), another has none. All rows or none: after a
 * failure every session holds the tokens it held. The message names the row. KVS_E_INVAL: a session
 * twice, of another model or context; KVS_E_LIMIT: a context is full; KVS_E_RANGE: a token outside
 * the vocabulary, or more tokens or logits than the batch or a session takes; KVS_E_UNSUPPORTED:
 * the model's rotary encoding depends on n_ctx, and the session's is another. */
KVS_API kvs_status kvs_batch_eval(kvs_batch *batch, const kvs_batch_step *step, kvs_err *err);
/* [n_vocab] logits of the i'th of the tokens of a row that they were asked for, in order; NULL out
 * of range. Borrowed until the next step. */
KVS_API const float *kvs_batch_logits(const kvs_batch *batch, uint32_t row, uint32_t i);

typedef struct kvs_batch_stats {
    size_t struct_size;
    uint32_t max_rows;
    uint32_t max_tokens;
    uint32_t max_logits;
    uint64_t n_steps;
    uint64_t n_tokens;    /* of all steps */
    size_t scratch_bytes; /* activations, logits, tables */
} kvs_batch_stats;
#define KVS_BATCH_STATS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_batch_stats), 0, 0, 0, 0, 0, 0                                                  \
    }
KVS_API kvs_status kvs_batch_get_stats(const kvs_batch *batch, kvs_batch_stats *out);

#ifdef __cplusplus
}
#endif
#endif
