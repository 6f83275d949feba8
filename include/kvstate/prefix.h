/* SPDX-License-Identifier: MIT */
/* kvstate/prefix.h: state that was computed once, found again by its tokens, in memory.
 *
 * A radix tree over token ids in blocks of a pool (pages.h). A node stands for the tokens of one block
 * after those of its parents and refers to the blocks of every layer; nothing is ever copied. A hit
 * compares the ids themselves, so it is a proof; it costs O(prompt), whatever the number of entries.
 * What a hit may resume from is what every layer has: all blocks of layers that see everything, the
 * blocks of the newest window and the sinks of those that don't, and a snapshot at that very token
 * where the model needs one (recurrent layers). At least one token of the prompt is left to compute.
 *
 * Everything, the index's own tables included, stays under one byte budget: room is made before it is
 * taken, by a retention policy (retain.h). Used by one thread at a time, as its context is. */
#ifndef KVSTATE_PREFIX_H
#define KVSTATE_PREFIX_H

#include "kvstate/pages.h"
#include "kvstate/retain.h"
#include "kvstate/store.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Resume only where a snapshot was published: set by itself where a layer is recurrent. */
    KVS_PREFIX_SNAPSHOTS = 1u << 0
};
typedef struct kvs_prefix_opts {
    size_t struct_size;
    uint32_t flags;
    kvs_retain_policy policy;
    size_t max_bytes; /* blocks that the index refers to, and all of its own; 0: no limit */
    /* Of layers with a window the blocks around every multiple of so many tokens are kept, so that a
     * later prompt which leaves this one anywhere recomputes less than that; and those at the end of
     * each publication. 0: every block there is. */
    uint32_t window_stride;
    uint32_t
        session_ms; /* how long the newest entry of a session is kept before others; 0: for ever */
    kvs_retain_score_fn score; /* CUSTOM: as in kvs_retain_opts; must not call the index */
    void *user;
} kvs_prefix_opts;
#define KVS_PREFIX_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_prefix_opts), 0, KVS_RETAIN_DENSITY, 0, 0, 0, NULL, NULL                        \
    }

typedef struct kvs_prefix kvs_prefix;

/* An index for caches with the options of `like`, which is read during the call only. All layers but
 * borrowing and recurrent ones must be paged: KVS_E_UNSUPPORTED names the layer. A pool has one
 * index at most, which gives blocks up when the pool needs them. KVS_E_LIMIT: max_bytes does not hold
 * the index itself. */
KVS_API kvs_status kvs_prefix_new(kvs_ctx *ctx, const kvs_cache *like, const kvs_prefix_opts *opts,
                                  kvs_prefix **out, kvs_err *err);
/* After its leases, before the context; caches that attached are not touched. NULL is fine. */
KVS_API void kvs_prefix_free(kvs_prefix *ix);

/* What an entry is kept under: `identity` (kvs_identity_digest), any bytes as a namespace, the ids.
 * No ids: an object named by identity and namespace, of snapshot bytes alone. */
typedef kvs_store_key kvs_prefix_key;

typedef struct kvs_prefix_publish_opts {
    size_t struct_size;
    uint32_t flags;       /* KVS_PREFIX_NO_TAIL */
    uint32_t priority;    /* 0..KVS_RETAIN_PRIORITIES - 1, of the last block and the windows that go
                              with it; 0: as it is, or 1 with a session */
    uint64_t session;     /* 0: none. The session's earlier entry is an ordinary one from now on */
    const void *snapshot; /* copied; lent to who resumes after exactly these ids */
    size_t snapshot_bytes; /* of recurrent layers, of a drafter ... */
    /* Tokens of the prompt whose use this request has counted: n_tokens of its lookup's hit, *n_stored
     * of its publication before (which may be written here); 0: none. What a request comes to again
     * it does not use again. */
    size_t n_counted;
    uint32_t priority_ms; /* how long; 0: session_ms with a session, else for ever */
    uint32_t reserved;    /* 0 */
} kvs_prefix_publish_opts;
enum {
    KVS_PREFIX_NO_TAIL = 1u << 0, /* whole blocks only */
    KVS_PREFIX_MIDWAY =
        1u << 1 /* of a prompt being computed: of windows only what window_stride says,
                                     not what a prompt that ends here would need */
};
#define KVS_PREFIX_PUBLISH_OPTS_INIT                                                               \
    {                                                                                              \
        sizeof(kvs_prefix_publish_opts), 0, 0, 0, NULL, 0, 0, 0, 0                                 \
    }

/* Publishes the first key->n_ids tokens of a cache, which stand for these ids; what is there already
 * is not stored again. *n_stored (may be NULL): tokens of the prompt that are in the index now.
 * KVS_OK: all. KVS_NO: fewer, the rest did not fit. KVS_E_LIMIT: more than max_bytes, nothing was
 * evicted for it. KVS_E_STATE: a round of drafts is open. KVS_E_RANGE: the cache has fewer committed
 * tokens. KVS_E_INVAL: not a cache of this index. KVS_E_NOMEM: as KVS_NO. May be called while a
 * prompt is computed, and when that is cancelled: what has been computed is worth keeping. Layers with
 * a window drop blocks on the way, so call it at least every window_stride tokens. */
KVS_API kvs_status kvs_prefix_publish(kvs_prefix *ix, const kvs_prefix_key *key,
                                      const kvs_cache *cache, const kvs_prefix_publish_opts *opts,
                                      size_t *n_stored, kvs_err *err);

/* Why a lookup found nothing, or not all that agrees. */
typedef enum kvs_prefix_reason {
    KVS_PREFIX_ALL = 0,       /* nothing longer is known */
    KVS_PREFIX_NAMESPACE = 1, /* nothing is known under this identity and namespace */
    KVS_PREFIX_TOKENS = 2,    /* no entry begins like this */
    KVS_PREFIX_WINDOW = 3,    /* a longer one is known, but blocks of a window have gone */
    KVS_PREFIX_FORMAT = 4,    /* a longer one is known, but on the other side of dense_until */
    KVS_PREFIX_SNAPSHOT = 5,  /* a longer one is known, but without a snapshot */
    KVS_PREFIX_SHORT = 6      /* shorter than asked for */
} kvs_prefix_reason;
#define KVS_PREFIX_REASONS 7

/* A hit: keeps the blocks until released, whatever is evicted. */
typedef struct kvs_lease kvs_lease;
typedef struct kvs_prefix_hit {
    size_t struct_size;
    size_t n_tokens; /* to resume from */
    size_t n_known;  /* tokens that agree with some entry, >= n_tokens */
    kvs_prefix_reason reason;
    uint32_t reserved;
    const void *snapshot; /* published with exactly these tokens, or NULL; valid as the lease */
    size_t snapshot_bytes;
} kvs_prefix_hit;
#define KVS_PREFIX_HIT_INIT                                                                        \
    {                                                                                              \
        sizeof(kvs_prefix_hit), 0, 0, KVS_PREFIX_ALL, 0, NULL, 0                                   \
    }
/* The longest prefix of the ids, at most n_ids - 1 and at least min_tokens (1 if 0), that a cache can
 * resume from. KVS_NO: none, hit->reason says why. KVS_E_NOMEM, KVS_E_LIMIT: no room for the lease. */
KVS_API kvs_status kvs_prefix_lookup(kvs_prefix *ix, const kvs_prefix_key *key, size_t min_tokens,
                                     kvs_lease **out, kvs_prefix_hit *hit, kvs_err *err);
/* Makes an empty cache of the index's options one of hit->n_tokens tokens that shares the blocks; its
 * recurrent layers are the caller's (kvs_recurrent_resume of hit->snapshot). As kvs__page_attach:
 * all layers or none. */
KVS_API kvs_status kvs_prefix_attach(const kvs_lease *lease, kvs_cache *cache, kvs_err *err);
KVS_API void kvs_prefix_release(kvs_lease *lease); /* NULL is fine */

/* Drops entries: all that continue these ids (no ids: the whole namespace). Leases stay valid.
 * KVS_E_NOTFOUND. *freed (may be NULL): bytes of the budget. */
KVS_API kvs_status kvs_prefix_forget(kvs_prefix *ix, const kvs_prefix_key *key, size_t *freed);
/* Drops everything. */
KVS_API void kvs_prefix_clear(kvs_prefix *ix);
/* Another budget, and evicts down to it; KVS_NO: its own tables and leases take more than that. */
KVS_API kvs_status kvs_prefix_limit(kvs_prefix *ix, size_t max_bytes);
/* Milliseconds of any clock that does not go back; for session_ms. */
KVS_API void kvs_prefix_clock(kvs_prefix *ix, uint64_t now_ms);

typedef struct kvs_prefix_stats {
    size_t struct_size;
    size_t bytes; /* under the budget */
    size_t peak_bytes;
    size_t max_bytes;
    uint64_t nodes;
    uint64_t namespaces;
    uint64_t pages; /* blocks referred to */
    uint64_t leases;
    uint64_t lookups;
    uint64_t hits;
    uint64_t asked_tokens;
    uint64_t hit_tokens;
    uint64_t published; /* calls */
    uint64_t stored_tokens;
    uint64_t known_tokens; /* published and there already */
    uint64_t evicted;      /* nodes */
    uint64_t evicted_windows;
    uint64_t refused;                     /* publications that did not fit, wholly or in part */
    uint64_t reasons[KVS_PREFIX_REASONS]; /* lookups by kvs_prefix_reason */
    uint64_t waiting;         /* nodes whose save to a slower tier is under way: they stay */
    uint64_t waiting_bytes;   /* of these */
    uint64_t evicted_waiting; /* nodes that went before their save had ended, for a pool without a
                                 block, or for a lower limit */
    uint64_t refused_waiting; /* refused while others waited */
    /* Of a draft model's state in these entries (prefix_cache.h); the counts of lookups, hits and
     * reasons above are without it, bytes, pages and all others with it. */
    uint64_t draft_lookups;
    uint64_t draft_hits;
    uint64_t draft_hit_tokens;
} kvs_prefix_stats;
#define KVS_PREFIX_STATS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_prefix_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, 0, 0, 0, \
            0, 0, 0, 0                                                                             \
    }
KVS_API kvs_status kvs_prefix_get_stats(const kvs_prefix *ix, kvs_prefix_stats *out);

#ifdef __cplusplus
}
#endif
#endif
