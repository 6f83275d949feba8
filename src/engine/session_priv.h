/* SPDX-License-Identifier: MIT */
/* session_priv.h: a session inside, for what computes several of them together (batch.c) or takes
 * tokens of one back (speculate.c).
 *
 * I1  tokens[0 .. n_tokens) are exactly what every layer of the cache holds, but for a round that
 *     is open inside a call.
 * I2  has_logits: `logits` are those after token n_tokens - 1.
 * A block that fails half way is taken back from the layers that have it, so I1 holds after every
 * call. Should that be impossible the session latches broken. */
#ifndef KVS_ENGINE_SESSION_PRIV_H
#define KVS_ENGINE_SESSION_PRIV_H

#include "engine/graph.h"
#include "engine/net.h"
#include "engine/persist.h"
#include "engine/share.h"
#include "kvstate/batch.h"
#include "kvstate/txn.h"

/* Activations of a block stay within this, which leaves room for the rest in the budget of 32 MiB
 * beyond weights and state. Blocks above 512 gain nothing. */
#define KVS__ACTIVATION_BYTES ((size_t)12 << 20)
#define KVS__MAX_BLOCK        512u

struct kvs_session {
    kvs_ctx *ctx;
    const kvs_model *model;
    kvs_session_opts opts;
    kvs_rows *rows;   /* one row: the unit of a round */
    kvs_cache *cache; /* that row */
    kvs__graph *graph;
    uint32_t n_ctx;
    uint32_t block;
    uint32_t logit_rows;
    size_t n_vocab;
    int32_t *tokens; /* [n_ctx]; beyond n_tokens a round writes what it tries */
    size_t n_tokens;
    size_t n_unknown; /* of them, the first ones: -1, from a file that did not tell them */
    float *logits;    /* [logit_rows][n_vocab]; the newest in row 0 */
    size_t logit_cap;
    bool has_logits;
    bool broken;
    uint64_t n_computed;
    uint64_t n_reused;
    uint64_t n_restored;   /* of these, of a draft model, from a store */
    size_t n_own;          /* of those reused by the last sync, its own */
    kvs__persist *persist; /* NULL: no store */
    kvs__share *share;     /* NULL: no prefix cache */
};

struct kvs_batch {
    kvs_ctx *ctx;
    const kvs_model *model;
    kvs__graph *graph;
    uint32_t max_rows;
    uint32_t max_tokens;
    uint32_t max_logits;
    uint32_t n_ctx;
    kvs__graph_row *row;   /* [max_rows] of a step */
    uint32_t *first_logit; /* [max_rows + 1] of the last step's rows */
    uint32_t n_rows;       /* of the last step; 0 after a failure */
    float *logits;         /* [max_logits][n_vocab] */
    size_t bytes;          /* of the three, in one piece from row on */
    uint64_t n_steps;
    uint64_t n_tokens;
};

/* KVS_E_BROKEN, KVS_E_INVAL, KVS_E_LIMIT, KVS_E_RANGE of n tokens to come after `held` ones. */
kvs_status kvs__session_check(const kvs_session *s, const int32_t *tokens, size_t n, size_t held,
                              kvs_err *err);
/* A draft model's session, which is empty and has `plan`, shares and keeps its state where the target
 * does. KVS_NO: `why` says where not, and it computes what it lacks. */
kvs_status kvs__session_beside(kvs_session *s, const kvs_session *target, const kvs_plan *plan,
                               kvs_err *why);
/* As kvs_session_sync, but without logits, with what the prefix cache and the store have up to there.
 * tokens[n] is read, too: the one that comes next. */
kvs_status kvs__session_goto(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err);
/* Room for several rows of logits at once, as many as are worth it. */
kvs_status kvs__session_grow_logits(kvs_session *s, size_t rows, kvs_err *err);
/* Takes back what a failed step left in some layers. */
/* Room for n more tokens; where there is none, once its saves under way have let go of theirs. */
kvs_status kvs__session_reserve(kvs_session *s, uint32_t n, kvs_err *err);
void kvs__session_undo(kvs_session *s);
/* n tokens that the cache has got are the session's, with `logits` after them (NULL: none). */
void kvs__session_took(kvs_session *s, const int32_t *tokens, size_t n, const float *logits);

/* Tokens that the session's text and this one begin with together. */
static inline size_t kvs__session_common(const kvs_session *s, const int32_t *tokens, size_t n)
{
    size_t most = n < s->n_tokens ? n : s->n_tokens;
    size_t i = 0;
    while (i < most && s->tokens[i] == tokens[i]) {
        i++;
    }
    return i;
}

/* May this session be computed by the batch? The message says "row N". */
kvs_status kvs__batch_fits(const kvs_batch *b, const kvs_session *s, uint32_t row, kvs_err *err);

#endif
