/* SPDX-License-Identifier: MIT */
/* kvstate/retain.h: which of the things kept should go when room is needed.
 *
 * A retention object knows items by metadata alone: bytes, cost, last use, uses, priority, kind and
 * what the caller hints at; never their content. It decides nothing by itself: the caller asks for a
 * victim, drops it and says so. Every call is O(log n) or better.
 *
 * An item goes only after all of lower priority that are not pinned. A priority may be lent for a
 * time; then the item is of priority 0 again. */
#ifndef KVSTATE_RETAIN_H
#define KVSTATE_RETAIN_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVS_RETAIN_PRIORITIES 4

typedef enum kvs_retain_policy {
    /* Hit density: how soon, and how surely, an item of its class and age has been asked for again is
     * learned while it runs, also from items that went long ago (ghosts); the one that promises least
     * per byte and time goes. Nothing learned: LRU. Classes: kind, uses, hint, last gap, cost / bytes. */
    KVS_RETAIN_DENSITY = 0,
    KVS_RETAIN_LRU = 1,
    /* GreedyDual: priority = age + cost * uses / max(1, bytes) at each use, the least goes, of equals
     * the one used longest ago; age = the largest priority that went. */
    KVS_RETAIN_COST = 2,
    KVS_RETAIN_CUSTOM = 3 /* by kvs_retain_opts.score */
} kvs_retain_policy;

typedef uint64_t kvs_retain_id; /* never 0; not used again for another item */

/* What a policy sees. */
typedef struct kvs_retain_info {
    size_t struct_size;
    uint64_t key;
    uint64_t bytes;
    uint64_t cost;
    uint64_t last_use; /* larger is later */
    uint32_t uses;     /* requests: 1 when added, more where it was known before */
    uint32_t kind;
    uint32_t hint;
    uint32_t priority;
    uint32_t pins;
    uint32_t reserved;
} kvs_retain_info;
#define KVS_RETAIN_INFO_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_retain_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                      \
    }

/* Asked when an item is added, used or renewed: the item with the least score goes, of equals the one used
 * longest ago. NaN counts as 0. Must not call the object. */
typedef double (*kvs_retain_score_fn)(void *user, const kvs_retain_info *info);

typedef struct kvs_retain_opts {
    size_t struct_size;
    kvs_retain_policy policy;
    uint32_t
        max_ghosts;     /* items remembered after they went; 0: 16 times those there, 4096 at least.
                            A ghost takes about 128 bytes; DENSITY alone has them */
    uint64_t max_bytes; /* of all items; 0: no limit */
    kvs_retain_score_fn score; /* CUSTOM */
    void *user;
} kvs_retain_opts;
#define KVS_RETAIN_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_retain_opts), KVS_RETAIN_DENSITY, 0, 0, NULL, NULL                              \
    }

/* Used by one thread at a time. */
typedef struct kvs_retain kvs_retain;

/* KVS_E_INVAL: an unknown policy, CUSTOM without a score. */
KVS_API kvs_status kvs_retain_new(kvs_ctx *ctx, const kvs_retain_opts *opts, kvs_retain **out,
                                  kvs_err *err);
KVS_API void kvs_retain_free(kvs_retain *r); /* NULL is fine */

typedef struct kvs_retain_item {
    size_t struct_size;
    uint64_t key; /* the same for the same content whenever it comes: how ghosts are known again */
    uint64_t bytes;
    uint64_t cost; /* what a hit saves, in any unit */
    uint32_t kind; /* 0..31: kinds live differently and are learned apart */
    uint32_t hint; /* 0..15: what else tells items with different futures apart; once an item has
                          been used again, only whether it is above 3 */
    uint32_t priority; /* 0..KVS_RETAIN_PRIORITIES - 1 */
    uint32_t reserved; /* 0 */
    uint64_t until;    /* clock at which the priority ends; 0: never */
} kvs_retain_item;
#define KVS_RETAIN_ITEM_INIT                                                                       \
    {                                                                                              \
        sizeof(kvs_retain_item), 0, 0, 0, 0, 0, 0, 0, 0                                            \
    }

/* May `bytes` be added? KVS_OK: there is room. KVS_NO: once as much has gone. KVS_E_LIMIT: more than
 * max_bytes, or than what is not pinned leaves: nothing should be dropped for it. */
KVS_API kvs_status kvs_retain_admit(const kvs_retain *r, uint64_t bytes);
/* Adds an item, which counts as used. KVS_E_LIMIT: max_bytes would be passed; KVS_E_STATE: an item
 * of this key is there; KVS_E_NOMEM. Nothing changes then. */
KVS_API kvs_status kvs_retain_add(kvs_retain *r, const kvs_retain_item *item, kvs_retain_id *out,
                                  kvs_err *err);
/* KVS_OK: the item of this key is there; KVS_NO: it went and is remembered; KVS_E_NOTFOUND. A caller
 * learns from it how much of a request was never seen, which tells items apart well (hint). */
KVS_API kvs_status kvs_retain_knows(const kvs_retain *r, uint64_t key);
/* KVS_E_NOTFOUND: no such item, here and below. cost and hint replace what was said before. */
KVS_API kvs_status kvs_retain_use(kvs_retain *r, kvs_retain_id id, uint64_t cost, uint32_t hint);
/* The request that used it last still does: its last use is now, and the same one. What is learned is
 * how often, and how long after one another, requests ask for an item; so a caller that comes to it
 * more than once in a request says use the first time and renew from then on. */
KVS_API kvs_status kvs_retain_renew(kvs_retain *r, kvs_retain_id id);
/* Another size; KVS_E_LIMIT as for add. */
KVS_API kvs_status kvs_retain_resize(kvs_retain *r, kvs_retain_id id, uint64_t bytes);
KVS_API kvs_status kvs_retain_set_priority(kvs_retain *r, kvs_retain_id id, uint32_t priority,
                                           uint64_t until);
/* Pins count; a pinned item is never chosen. unpin of one that is not pinned: KVS_E_STATE. */
KVS_API kvs_status kvs_retain_pin(kvs_retain *r, kvs_retain_id id);
KVS_API kvs_status kvs_retain_unpin(kvs_retain *r, kvs_retain_id id);
/* The item that should go next; KVS_NO: none that is not pinned. Changes nothing. */
KVS_API kvs_status kvs_retain_choose(kvs_retain *r, kvs_retain_id *out);
enum {
    KVS_RETAIN_EVICTED = 0,  /* went for room: remembered as a ghost */
    KVS_RETAIN_FORGOTTEN = 1 /* is not going to come back: not remembered */
};
/* The item is gone. KVS_E_STATE: pinned. */
KVS_API kvs_status kvs_retain_drop(kvs_retain *r, kvs_retain_id id, uint32_t how);
/* Sets the clock of `until`, in any unit; it never goes back. */
KVS_API void kvs_retain_clock(kvs_retain *r, uint64_t now);
/* Another limit; what is there stays until it is dropped. 0: none. */
KVS_API void kvs_retain_limit(kvs_retain *r, uint64_t max_bytes);
KVS_API kvs_status kvs_retain_get_info(const kvs_retain *r, kvs_retain_id id, kvs_retain_info *out);

typedef struct kvs_retain_stats {
    size_t struct_size;
    uint64_t items;
    uint64_t bytes;
    uint64_t pinned_bytes;
    uint64_t max_bytes;
    uint64_t ghosts;
    uint64_t added;
    uint64_t used;
    uint64_t evicted;
    uint64_t returned;  /* added again while a ghost */
    uint64_t own_bytes; /* that the object itself takes */
} kvs_retain_stats;
#define KVS_RETAIN_STATS_INIT                                                                      \
    {                                                                                              \
        sizeof(kvs_retain_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                     \
    }
KVS_API kvs_status kvs_retain_get_stats(const kvs_retain *r, kvs_retain_stats *out);

#ifdef __cplusplus
}
#endif
#endif
