/* SPDX-License-Identifier: MIT */
/* speculate_priv.h: what a round (speculate.c) and where its drafts come from (speculate_draft.c,
 * speculate_pace.c) know of each other. */
#ifndef KVS_ENGINE_SPECULATE_PRIV_H
#define KVS_ENGINE_SPECULATE_PRIV_H

#include "engine/session_priv.h"
#include "kvstate/speculate.h"

/* ---- how many drafts: speculate_pace.c */

/* A step's unit of cost is 16. A token accepted saves a step; a draft costs its share of the step
 * that verifies it, and what making it took. `credit` is what drafts have earned, within bounds: so
 * a text that turns is soon noticed. Below zero drafting pauses, each time twice as long. */
typedef struct kvs__pace {
    uint32_t most;  /* drafts of a round */
    uint32_t cost;  /* of a draft */
    uint32_t depth; /* the next round may have */
    int32_t credit;
    uint32_t pause; /* length of the last pause, 0: none since a round paid */
    uint32_t wait;  /* rounds of the pause that are left */
    bool fixed;
} kvs__pace;

/* own: what making a draft costs, in sixteenths of a step. */
void kvs__pace_start(kvs__pace *p, uint32_t most, uint32_t own, bool fixed);
/* Drafts that the next round may have. */
uint32_t kvs__pace_depth(const kvs__pace *p);
/* A round had `drafts`, of which `accepted`. */
void kvs__pace_note(kvs__pace *p, uint32_t drafts, uint32_t accepted);

/* ---- drafts: speculate_draft.c */

/* What followed the longest earlier occurrence of the newest tokens of history [n], where at least
 * `least` and at most KVS__NGRAM_MOST of them are equal; of equally long ones the last. Writes up to
 * `want` drafts, going round where the end is reached, and returns how many. */
#define KVS__NGRAM_MOST 32u
uint32_t kvs__ngram_draft(const int32_t *history, size_t n, uint32_t least, int32_t *out,
                          uint32_t want);

/* KVS_E_INVAL, naming both models, unless every token of one is the same of the other. */
kvs_status kvs__same_vocabulary(const kvs_model *draft, const kvs_model *model, kvs_err *err);

/* A draft model at work. Its session holds a prefix of what the target will hold. */
typedef struct kvs__drafter {
    kvs_session *session;
    uint32_t fresh; /* tokens of the open round that are no drafts */
    uint32_t tried; /* tokens of the open round; 0: none is open */
    bool off;       /* its target needed the room */
    kvs_err apart;  /* why it shares nothing, or not with all; KVS_OK: it does */
} kvs__drafter;

/* A session of the draft model for the target's: `plan` or f16. What the target shares and keeps with a
 * prefix cache and a store, it does, too, where it can. KVS_E_UNSUPPORTED: it does not go back. */
kvs_status kvs__drafter_open(kvs__drafter *d, const kvs_session *target, const kvs_model *model,
                             const kvs_plan *plan, kvs_err *err);
void kvs__drafter_close(kvs__drafter *d);
/* A round can be taken back, one without drafts too. */
kvs_status kvs__check_undo(const kvs_session *s, kvs_err *err);

/* Brings the session to `tokens` [n] and drafts up to `want` tokens as the sampler picks them, in a
 * round that stays open until the settling. *got is fewer where there is no room. A failure leaves
 * no round open. */
kvs_status kvs__drafter_draft(kvs__drafter *d, kvs_sampler *sampler, const int32_t *tokens,
                              size_t n, uint32_t want, int32_t *out, uint32_t *got, kvs_err *err);
/* Of the drafts `accepted` stay. KVS_E_* only where the session is lost. */
kvs_status kvs__drafter_settle(kvs__drafter *d, uint32_t accepted, kvs_err *err);
void kvs__drafter_abort(kvs__drafter *d);
/* An answer ended here: what is not saved is. */
void kvs__drafter_save(kvs__drafter *d);
/* There is no memory for the target: gives up what it holds, and drafts no more. false: it holds none. */
bool kvs__drafter_yield(kvs__drafter *d);

#endif
