/* SPDX-License-Identifier: MIT */
/* kvstate/session.h: one sequence of a model: its tokens, their state, the logits that follow.
 *
 * The caller hands over the whole token prefix each time; sync decides what can be reused. Logits
 * depend on the tokens and the plan alone: not on how the prefix came about, the block size, the
 * number of threads or the CPU. */
#ifndef KVSTATE_SESSION_H
#define KVSTATE_SESSION_H

#include "kvstate/plan.h"
#include "kvstate/sampler.h"
#include "kvstate/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Asked between blocks of a long prompt; non-zero stops with KVS_E_CANCELLED. */
typedef int (*kvs_progress_fn)(void *user, size_t n_done, size_t n_total);

typedef struct kvs_batch kvs_batch;               /* batch.h */
typedef struct kvs_prefix_cache kvs_prefix_cache; /* prefix_cache.h */

typedef struct kvs_session_opts {
    size_t struct_size;
    const kvs_plan *plan; /* NULL: f16, the model's context; read by kvs_session_new only */
    uint32_t block;       /* tokens computed together; 0: chosen, at most the plan's max_block */
    uint32_t flags;       /* 0 */
    kvs_progress_fn progress;
    void *progress_user;
    kvs_pages *pages; /* of a paged plan, with its block size; NULL: one of the session's own */
    kvs_batch *batch; /* whose activations it computes in; NULL: its own */
    /* Shares prefixes with other sessions, in the pool of that cache; NULL: does not. Needs a plan
     * like the cache's. KVS_E_INVAL: another model, plan or pool. */
    kvs_prefix_cache *prefix_cache;
    kvs_bytes prefix_salt; /* of a tenant, an adapter ...: prefixes are shared among equal ones */
    /* Names a conversation, which may outlive this session; 0: none. Its newest entry in the memory of
     * the prefix cache goes after those of no conversation, for session_ms of that. */
    uint64_t prefix_session;
    uint32_t prefix_priority; /* of what it gives to the prefix cache, 0..KVS_RETAIN_PRIORITIES - 1:
                                    it goes after all that has less; 0: 1 for a conversation's newest */
    uint32_t prefix_priority_ms; /* then it is of priority 0; 0: session_ms for a conversation's
                                    newest, else for ever */
} kvs_session_opts;
#define KVS_SESSION_OPTS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_session_opts), NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, {NULL, 0}, 0, 0, 0     \
    }

/* One thread at a time. Freed before its context and model. */
typedef struct kvs_session kvs_session;

/* The context may be another than the model's. All memory but that of the state's growth is taken
 * here. */
KVS_API kvs_status kvs_session_new(kvs_ctx *ctx, const kvs_model *model,
                                   const kvs_session_opts *opts, kvs_session **out, kvs_err *err);
KVS_API void kvs_session_free(kvs_session *session); /* NULL is fine */

/* Makes the session hold exactly tokens[0 .. n) and the logits that follow them. Reuses the longest
 * common prefix where every layer can go back to it, else starts anew; *n_reused (or NULL) is the
 * number of tokens that were not computed again. Checked before anything changes: KVS_E_LIMIT (more
 * than n_ctx), KVS_E_RANGE (a token outside the vocabulary, named). After KVS_E_CANCELLED or
 * KVS_E_NOMEM it holds a shorter prefix of `tokens`, and a further sync goes on from there. */
KVS_API kvs_status kvs_session_sync(kvs_session *session, const int32_t *tokens, size_t n,
                                    size_t *n_reused, kvs_err *err);

/* The first half of sync: makes the session hold the longest prefix of tokens[0 .. n) that can be had
 * without computing, for who computes the rest with appends or in a batch. It is all of them only where
 * sync would compute nothing. */
KVS_API kvs_status kvs_session_prepare(kvs_session *session, const int32_t *tokens, size_t n,
                                       size_t *n_reused, kvs_err *err);

/* Appends tokens and computes logits of those from index logits_from on, in order, in blocks; no
 * other token costs a row of logits. */
typedef int (*kvs_logits_fn)(void *user, int64_t pos, const float *logits, size_t n_vocab);
typedef struct kvs_eval {
    size_t struct_size;
    const int32_t *tokens;
    size_t n_tokens;
    size_t logits_from;      /* with on_logits only */
    kvs_logits_fn on_logits; /* NULL: the last token's logits alone; non-zero stops */
    void *user;
} kvs_eval;
#define KVS_EVAL_INIT                                                                              \
    {                                                                                              \
        sizeof(kvs_eval), NULL, 0, 0, NULL, NULL                                                   \
    }
/* Statuses as sync; after a failure it holds the tokens before and a prefix of the new ones. */
KVS_API kvs_status kvs_session_eval(kvs_session *session, const kvs_eval *eval, kvs_err *err);
/* The same for plain appends: one token is a decode step. */
KVS_API kvs_status kvs_session_append(kvs_session *session, const int32_t *tokens, size_t n,
                                      kvs_err *err);

/* [n_vocab] logits after the last token, borrowed until the next call that computes; NULL when the
 * session is empty or was cut by a failure. */
KVS_API const float *kvs_session_logits(const kvs_session *session);
/* Picks the next token; does not append it. KVS_E_STATE without logits. */
KVS_API kvs_status kvs_session_sample(const kvs_session *session, kvs_sampler *sampler,
                                      int32_t *token, kvs_err *err);
/* What it holds; borrowed until the next call that computes. */
KVS_API const int32_t *kvs_session_tokens(const kvs_session *session, size_t *n);
/* The state, to look at: lengths, bytes, spans. Changing it is not allowed. */
KVS_API const kvs_cache *kvs_session_cache(const kvs_session *session);

typedef struct kvs_session_stats {
    size_t struct_size;
    uint32_t n_ctx;
    uint32_t block;
    uint64_t n_tokens;    /* held */
    uint64_t n_computed;  /* since it was made */
    uint64_t n_reused;    /* by syncs */
    size_t state_bytes;   /* of the cache, now */
    size_t scratch_bytes; /* activations, logits, tables */
} kvs_session_stats;
#define KVS_SESSION_STATS_INIT                                                                     \
    {                                                                                              \
        sizeof(kvs_session_stats), 0, 0, 0, 0, 0, 0, 0                                             \
    }
KVS_API kvs_status kvs_session_get_stats(const kvs_session *session, kvs_session_stats *out);

#ifdef __cplusplus
}
#endif
#endif
