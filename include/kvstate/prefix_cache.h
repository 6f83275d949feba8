/* SPDX-License-Identifier: MIT */
/* kvstate/prefix_cache.h: prefixes that sessions of one model share.
 *
 * A session made with a prefix cache (kvs_session_opts.prefix_cache) looks there for more of a prompt
 * than it holds, is lent the blocks (nothing is copied, memory is counted once), computes the rest,
 * at least one token, and gives what it has computed. Logits are those of a computation from the
 * first token on, bit for bit. What memory lacks is looked for in a directory, if there is one.
 *   kvs_prefix_cache_new(ctx, model, &(kvs_prefix_cache_opts){.plan = paged, ...}, &cache, err);
 *   kvs_session_new(ctx, model, &(kvs_session_opts){.plan = paged, .prefix_cache = cache}, &a, err);
 *   kvs_session_sync(a, prompt, n, &n_reused, err);   and the same for sessions b, c ...
 * The cache is a help, never a need: where it has no room the sessions go on without.
 *
 * With a directory, state is written through: an entry whose save is queued or under way stays in
 * memory until it is durable or was given up. Where all that could go waits like this, a new entry is
 * not taken into memory (kvs_prefix_stats.refused_waiting), its session goes on, and saves it. Two
 * limits win over waiting, and count what went early (evicted_waiting): pool_bytes where that frees
 * a block, else a session waits for its own saves, and kvs_prefix_cache_limit. The queue is bounded (store.h);
 * where it is full a session tries again as it goes on, and waits for room when it is freed.
 *
 * With a draft model its state is part of the entries: sessions that speculate with it (speculate.h)
 * are lent the drafter's state of a prompt as well, all of it or of a shorter prefix. Entries come, count
 * under max_bytes and go with both, pool_bytes holds the blocks of both, and the directory the state
 * of both. */
#ifndef KVSTATE_PREFIX_CACHE_H
#define KVSTATE_PREFIX_CACHE_H

#include "kvstate/prefix.h"
#include "kvstate/session.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvs_prefix_cache_opts {
    size_t struct_size;
    const kvs_plan *plan; /* paged, the sessions' plan; read by kvs_prefix_cache_new only */
    size_t max_bytes;     /* blocks that the cache refers to, snapshots, tables; 0: no limit */
    size_t pool_bytes;    /* all blocks, those of sessions too: entries go before it is passed;
                             0: no limit but the context's */
    kvs_retain_policy policy;
    uint32_t window_stride; /* see kvs_prefix_opts; 0: all blocks of windows */
    /* Of models with recurrent layers a prompt can be resumed at snapshots alone. They are taken before
     * the last token of a prompt, where a session stops, where a prompt leaves an earlier one, and
     * at multiples of so many tokens; 0: not at multiples. */
    uint32_t snapshot_stride;
    uint32_t session_ms;       /* see kvs_session_opts.prefix_session; 0: for ever */
    const char *dir;           /* slower tier, as kvs_persist_opts.dir; NULL: memory alone */
    uint64_t dir_bytes;        /* of the directory, 0: no limit */
    kvs_retain_score_fn score; /* CUSTOM: see kvs_prefix_opts; calls come one at a time */
    void *score_user;
    const kvs_model *draft_model; /* of sessions that speculate; outlives the cache. NULL: none */
    const kvs_plan *draft_plan;   /* of draft_model, paged with the same blocks; as plan, read here
                                     only. NULL: f16, as long as plan's context */
} kvs_prefix_cache_opts;
#define KVS_PREFIX_CACHE_OPTS_INIT                                                                 \
    {                                                                                              \
        sizeof(kvs_prefix_cache_opts), NULL, 0, 0, KVS_RETAIN_DENSITY, 0, 0, 0, NULL, 0, NULL,     \
            NULL, NULL, NULL                                                                       \
    }

/* A cache may be used by sessions of several threads, each with a context of its own; all call the
 * allocator of the cache's context then.
 * KVS_E_INVAL: no plan, one of another model, or draft_plan without draft_model; KVS_E_UNSUPPORTED: a layer is not paged, or (with
 * dir) of a kind that is not saved, the message names it; KVS_E_LIMIT: max_bytes or pool_bytes does
 * not hold what is empty; what kvs_session_persist says of the directory. */
KVS_API kvs_status kvs_prefix_cache_new(kvs_ctx *ctx, const kvs_model *model,
                                        const kvs_prefix_cache_opts *opts, kvs_prefix_cache **out,
                                        kvs_err *err);
/* After its sessions, before the context and the model. NULL is fine. */
KVS_API void kvs_prefix_cache_free(kvs_prefix_cache *cache);
/* Drops all entries from memory; the directory and what is lent stay. */
KVS_API void kvs_prefix_cache_clear(kvs_prefix_cache *cache);
/* As kvs_prefix_limit. KVS_E_LIMIT: less than what is empty takes, nothing changes. */
KVS_API kvs_status kvs_prefix_cache_limit(kvs_prefix_cache *cache, size_t max_bytes, kvs_err *err);
KVS_API kvs_status kvs_prefix_cache_get_stats(const kvs_prefix_cache *cache, kvs_prefix_stats *out);
/* Of the directory: what is queued, what failed, and why. KVS_NO: there is none. */
KVS_API kvs_status kvs_prefix_cache_get_store_stats(const kvs_prefix_cache *cache,
                                                    kvs_store_stats *out);
/* The pool of the cache and its sessions, borrowed: for kvs_pages_get_stats. */
KVS_API const kvs_pages *kvs_prefix_cache_pages(const kvs_prefix_cache *cache);

#ifdef __cplusplus
}
#endif
#endif
