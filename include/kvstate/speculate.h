/* SPDX-License-Identifier: MIT */
/* kvstate/speculate.h: several tokens from one step: cheap drafts, verified together.
 *
 * A round picks the next token as usual, drafts some that may follow, computes all of them in one
 * step and picks again at each: drafts stay as long as the pick is the draft. So tokens and logits
 * are bit for bit those of plain decoding with the same sampler and seed, for any plan; drafts only
 * decide how many tokens a step yields. All layers, and the state of a draft model, go back in the
 * round's own transaction (txn.h).
 *
 * What a session shares and keeps its draft model does, too: in a prefix cache that was made for that
 * draft model and plan (prefix_cache.h), and in the session's store (persist.h: given before kvs_spec_new),
 * in the same entries or beside them, under the same budgets. Given is what rounds have settled. The
 * drafter is lent, or reads, the longest prefix there is of its own state, never that of other
 * tokens, plans or models, and computes what it lacks of the text; kvs_spec_get_reuse tells. Where memory
 * or the pool has room for the text or for drafts, but not for both, drafts end. */
#ifndef KVSTATE_SPECULATE_H
#define KVSTATE_SPECULATE_H

#include "kvstate/batch.h"
#include "kvstate/persist.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Always max_drafts drafts. Without it the depth follows what is accepted: drafts that do not
     * pay get fewer, then pauses of doubling length; a rule of counts alone, not of time. */
    KVS_SPEC_FIXED = 1u << 0
};

/* What on_token says. */
enum {
    KVS_SPEC_GO = 0,
    KVS_SPEC_LAST = 1, /* the session is to hold this token, and none after it */
    KVS_SPEC_DROP = 2  /* nor this one */
};
/* Told every token in order, as soon as it is certain. */
typedef int (*kvs_token_fn)(void *user, int32_t token);
/* Writes up to n drafts of what follows tokens [0 .. n_tokens) and returns how many; what is no
 * token ends the list. */
typedef uint32_t (*kvs_draft_fn)(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out,
                                 uint32_t n);

typedef struct kvs_spec_opts {
    size_t struct_size;
    uint32_t flags;
    uint32_t max_drafts;  /* of a round; 0: 8. Fewer where a ring has no room for them */
    kvs_sampler *sampler; /* borrowed; NULL: the greatest logit */
    kvs_token_fn on_token;
    void *user; /* of on_token and draft */
    /* Where drafts come from: a model, a function, or else what followed the longest earlier
     * occurrence of the newest tokens, at least ngram of them (0: 3). */
    uint32_t ngram;
    kvs_draft_fn draft;
    const kvs_model *draft_model; /* of the same vocabulary; outlives this */
    const kvs_plan *draft_plan;   /* of draft_model; NULL: f16, as long as the session's context, in
                                     blocks where the session's prefix cache has a part for it */
} kvs_spec_opts;
#define KVS_SPEC_OPTS_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_spec_opts), 0, 0, NULL, NULL, NULL, 0, NULL, NULL, NULL                         \
    }

/* Drafts for one session, by its thread; freed before it. Between rounds the session may be used as
 * ever. */
typedef struct kvs_spec kvs_spec;

/* KVS_E_INVAL: the sampler, draft plan or vocabulary is of another model (the message names both);
 * KVS_E_RANGE: an option; KVS_E_UNSUPPORTED: a recurrent layer that does not go back (undo_tokens). */
KVS_API kvs_status kvs_spec_new(kvs_session *session, const kvs_spec_opts *opts, kvs_spec **out,
                                kvs_err *err);
KVS_API void kvs_spec_free(kvs_spec *spec); /* NULL is fine */

/* One round. The session needs logits and holds afterwards the tokens that on_token was told and
 * did not drop, with the logits that follow them. KVS_NO: on_token ended the round. KVS_E_LIMIT:
 * the context is full; on_token was told the one token that found no room. After any other failure
 * the session holds what it held, though on_token may have been told the first token. */
KVS_API kvs_status kvs_spec_next(kvs_spec *spec, kvs_err *err);
/* A round of many, in one step of the batch; rows accept as many drafts as each can. KVS_NO: on_token
 * ended the round of a row. KVS_E_LIMIT: the context of a row is full, the other rows went on. */
KVS_API kvs_status kvs_spec_next_rows(kvs_batch *batch, kvs_spec *const *specs, uint32_t n,
                                      kvs_err *err);

typedef struct kvs_spec_stats {
    size_t struct_size;
    uint64_t n_rounds;
    uint64_t n_tokens;       /* that the session took from rounds */
    uint64_t n_drafts;       /* computed */
    uint64_t n_accepted;     /* of them */
    uint32_t depth;          /* drafts that the next round may have, 0: pausing */
    size_t bytes;            /* state and scratch of a draft model */
    uint64_t draft_reused;   /* tokens that a draft model was lent or read from a store */
    uint64_t draft_restored; /* of these, from a store */
    uint64_t draft_computed; /* and those that it computed, drafts that stayed included */
} kvs_spec_stats;
#define KVS_SPEC_STATS_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_spec_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0                                          \
    }
KVS_API kvs_status kvs_spec_get_stats(const kvs_spec *spec, kvs_spec_stats *out);
/* As kvs_session_get_reuse, of the draft model's state: of the last time that it came to a text, not of
 * rounds. reason: also why it shares nothing. KVS_NO: there is no draft model. */
KVS_API kvs_status kvs_spec_get_reuse(const kvs_spec *spec, kvs_reuse *out);

#ifdef __cplusplus
}
#endif
#endif
