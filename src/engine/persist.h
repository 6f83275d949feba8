/* SPDX-License-Identifier: MIT */
/* persist.h: what a session does with its store (kvstate/persist.h). Calls take NULL: no store. */
#ifndef KVS_ENGINE_PERSIST_H
#define KVS_ENGINE_PERSIST_H

#include <stdbool.h>

#include "base/base.h"
#include "kvstate/persist.h"

typedef struct kvs__persist kvs__persist;
typedef struct kvs__share kvs__share;

typedef struct kvs__persist_for {
    kvs_ctx *ctx;
    const kvs_model *model;
    kvs_cache *cache;
    uint32_t n_ctx;
    const kvs__share *share; /* its store and identity; NULL, or none: those of the options */
    /* Of a draft model's session: its target's, whose store and limits it has. Its state lies there
     * under an identity of both models and plans. NULL: it is no draft model's. */
    const kvs__persist *beside;
} kvs__persist_for;
kvs_status kvs__persist_open(kvs_ctx *ctx, const char *dir, uint64_t max_bytes, kvs_store **out,
                             kvs_err *err);
kvs_status kvs__persist_new(const kvs__persist_for *f, const kvs_persist_opts *opts,
                            kvs__persist **out, kvs_err *err);
/* Before the cache, perhaps after its share. What is queued is written. */
void kvs__persist_free(kvs__persist *p);

/* A prompt of n tokens is to be computed, of which `held` are there. */
void kvs__persist_prompt(kvs__persist *p, size_t held, size_t n);
/* How many of the next n tokens behind n_tokens to compute at once (kvs__history_step). */
uint32_t kvs__persist_step(const kvs__persist *p, size_t n_tokens, uint32_t n);
/* Around an append of n tokens; after it with all the tokens held. */
void kvs__persist_before(kvs__persist *p, uint32_t n);
void kvs__persist_after(kvs__persist *p, const int32_t *tokens, size_t n_tokens, uint32_t n);
/* The cache was rewound to n tokens, or cleared (0). */
void kvs__persist_cut(kvs__persist *p, size_t n);
/* The most tokens, at most n, that notes allow to go back to; and going there. */
size_t kvs__persist_reach(const kvs__persist *p, size_t n);
kvs_status kvs__persist_back(kvs__persist *p, size_t n, kvs_err *err);

/* A sync of tokens[0 .. n) begins, `own` of them can be had without the store. KVS_OK: the cache now
 * holds the first *got instead, more than own. KVS_NO: it is as it was. Another status: it was
 * cleared, and the store has nothing that helps. */
kvs_status kvs__persist_fetch(kvs__persist *p, const int32_t *tokens, size_t n, size_t own,
                              size_t *got);
/* The cache was cleared and lent n tokens that another session of this store computed. */
void kvs__persist_lent(kvs__persist *p, size_t n);
/* What the cache holds was read from a file that proves nothing: not to be saved, until it is
 * cleared. */
void kvs__persist_foreign(kvs__persist *p);
/* And ends. */
void kvs__persist_synced(kvs__persist *p, const int32_t *tokens, size_t n);

/* KVS_NO: nothing to do, or the queue is full and not_saved says so. */
kvs_status kvs__persist_save(kvs__persist *p, const int32_t *tokens, size_t n, kvs_err *err);
/* The same for the last time: waits for room in the queue. */
void kvs__persist_end(kvs__persist *p, const int32_t *tokens, size_t n);
/* Waits for its saves that are under way and lets go of what they pinned; false: there were none. */
bool kvs__persist_settle(kvs__persist *p);
kvs_status kvs__persist_flush(kvs__persist *p, kvs_err *err);
void kvs__persist_reuse(kvs__persist *p, kvs_reuse *out);
/* session.c */
kvs__persist *kvs__session_persist(const kvs_session *s);
/* Is there one, be it to read? */
bool kvs__persist_has_store(const kvs__persist *p);
/* NULL where nothing can be written. */
kvs_store *kvs__persist_store(kvs__persist *p, const uint8_t **identity);

#endif
