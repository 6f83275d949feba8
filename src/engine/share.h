/* SPDX-License-Identifier: MIT */
/* share.h: what a session does with a prefix cache (kvstate/prefix_cache.h). Calls take NULL: none.
 *
 * I1  Given to the cache are tokens that the session has computed, was lent, or read from the cache's
 *     store: never those of a file, never those of an open round.
 * I2  The index is used under the lock of the pool, nothing of it is kept outside but a lease, between
 *     find and attach or release, and what waits for the store.
 * I3  The store is never called, nor waited for, under that lock: its threads take it. */
#ifndef KVS_ENGINE_SHARE_H
#define KVS_ENGINE_SHARE_H

#include "engine/net.h"
#include "kvstate/prefix_cache.h"
#include "kvstate/session.h"
#include "store/prefix_part.h"
#include "store/prefix_wait.h"

struct kvs_prefix_cache {
    kvs_ctx *ctx;
    const kvs_model *model;
    kvs_pages *pages;
    kvs_prefix *index; /* of caches of the plan */
    kvs_store *store;  /* NULL: memory alone */
    uint8_t plan[KVS_PLAN_DIGEST_BYTES];
    uint8_t weights[32]; /* with store */
    uint32_t block;
    uint32_t snapshot_stride;
    uint64_t n_sessions;
    size_t snapshot_bytes[KVS__PARTS]; /* of recurrent layers; 0: there are none */
    unsigned char *blob; /* a snapshot on its way into the index; NULL: there are none */
    size_t blob_bytes;
    const kvs_model *draft_model; /* NULL: no draft part */
    uint8_t draft_plan[KVS_PLAN_DIGEST_BYTES];
    uint8_t draft_identity[KVS_DIGEST_BYTES]; /* plan and position settings alone */
};

typedef struct kvs__share kvs__share;

/* May a session of these options have the cache? Sets their pool. */
kvs_status kvs__share_check(kvs_session_opts *o, const kvs_model *model, kvs_err *err);
/* The options' cache for a session of n_ctx tokens, which is empty. */
kvs_status kvs__share_new(kvs_ctx *ctx, kvs_cache *cache, const kvs_session_opts *o, uint32_t n_ctx,
                          kvs__share **out, kvs_err *err);
/* For a draft model's session, which is empty, beside the one of h: in its entries, as their draft part.
 * KVS_NO, *out NULL: the cache's draft model or plan is another one. */
kvs_status kvs__share_beside(const kvs__share *h, const kvs_session *drafter, const kvs_plan *plan,
                             kvs__share **out, kvs_err *err);
/* The pool for a draft model of so many tokens a block (0: of no paged layer); NULL: one of its own. */
kvs_pages *kvs__share_draft_pages(const kvs__share *h, const kvs_model *draft, uint32_t kv_block);
/* Tokens in a block of the pool for that draft model; 0: it has no part in the cache. */
uint32_t kvs__share_draft_block(const kvs__share *h, const kvs_model *draft);
/* The plan that a draft model has where none is given: f16, in blocks of kv_block where it can be. */
kvs_status kvs__draft_plan(kvs_ctx *ctx, const kvs_model *draft, uint32_t n_ctx, uint32_t kv_block,
                           kvs_plan **out, kvs_err *err);
void kvs__share_free(kvs__share *h);
/* The slower tier and its name for the session's state; NULL: none. */
kvs_store *kvs__share_store(const kvs__share *h, const uint8_t **identity);

/* What a save that is queued covers; from any thread, also after the share's end. */
typedef struct kvs__share_wait {
    kvs_prefix_cache *pc; /* NULL: nothing */
    kvs__prefix_wait list;
} kvs__share_wait;
/* What is in memory of the first n tokens beyond `from` stays there. h NULL is fine. */
void kvs__share_wait_begin(const kvs__share *h, const int32_t *tokens, size_t n, size_t from,
                           kvs__share_wait *out);
/* It is on disk, or won't be. */
void kvs__share_wait_end(kvs__share_wait *w);

/* A prompt begins, of which `own` tokens can be had without the cache: looks for more, and for at
 * most n - 1. Returns how many, then attach or release follows; 0: none. */
size_t kvs__share_find(kvs__share *h, const int32_t *tokens, size_t n, size_t own);
/* Makes the cache, which is empty, one of what was found. After a failure it may hold some. */
kvs_status kvs__share_attach(kvs__share *h, kvs_err *err);
void kvs__share_release(kvs__share *h);

/* Where a block of tokens from n on should end at the latest, `end` or before. */
size_t kvs__share_stop(const kvs__share *h, size_t n, size_t end);
/* The session holds n tokens now: what of them is worth it goes to the cache. */
void kvs__share_after(kvs__share *h, const int32_t *tokens, size_t n);
/* It stops, or is about to lose them: all of it goes there. */
void kvs__share_keep(kvs__share *h, const int32_t *tokens, size_t n);
/* It was cut to n tokens. */
void kvs__share_cut(kvs__share *h, size_t n);
/* What it holds came from elsewhere: nothing of it is given until it is cut to nothing. */
void kvs__share_foreign(kvs__share *h);
/* Tokens lent at the last prompt. */
size_t kvs__share_lent(const kvs__share *h);

#endif
