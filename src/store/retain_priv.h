/* SPDX-License-Identifier: MIT */
/* retain_priv.h: items and the two orders they can be in: a heap by score, or cells by density.
 *
 * I1  An item is in the order of its priority exactly if it is live and not pinned.
 * I2  bytes is the sum over live items, pinned_bytes over those with pins.
 * I3  Ghosts are few (max_ghosts), in a list, the one that went longest ago first. */
#ifndef KVS_STORE_RETAIN_PRIV_H
#define KVS_STORE_RETAIN_PRIV_H

#include "kvstate/retain.h"
#include "store/idmap.h"

enum { KVS__FREE = 0, KVS__LIVE = 1, KVS__GHOST = 2 };

typedef struct kvs__link {
    uint32_t prev;
    uint32_t next;
} kvs__link;

typedef struct kvs__item {
    uint64_t key;
    uint64_t bytes;
    uint64_t cost;
    uint64_t last_use;
    uint64_t until;
    double score;
    uint32_t generation;
    uint32_t uses;
    uint32_t pins;
    uint32_t heap_at;   /* KVS__NONE: not in a heap */
    uint32_t expiry_at; /* in the heap of those whose priority ends */
    kvs__link evict;    /* density: of its cell; ghosts: of their list; free: next alone */
    kvs__link age;      /* density: all of its class and age, ghosts too */
    uint8_t state;
    uint8_t kind;
    uint8_t hint;
    uint8_t priority;
    uint8_t class;  /* density */
    uint8_t cell;   /* age bucket it is kept under; it may lag behind */
    uint8_t bucket; /* the same in the list of all */
    uint8_t gap;    /* 0: first use, else 1 + bucket of the time between the last two uses */
} kvs__item;

/* A binary heap of item numbers. */
typedef struct kvs__heap {
    uint32_t *at; /* [cap of the items] */
    uint32_t n;
} kvs__heap;

struct kvs__density;

struct kvs_retain {
    kvs_ctx *ctx;
    kvs_retain_opts o;
    kvs__item *item; /* [cap] */
    uint32_t cap;
    uint32_t free; /* list */
    kvs__idmap by_key;
    uint64_t tick; /* uses so far */
    uint64_t now;
    double age; /* COST */
    kvs__heap heap[KVS_RETAIN_PRIORITIES];
    kvs__heap expiry;
    struct kvs__density *density;
    kvs__link ghosts;
    uint64_t n_live;
    uint64_t n_ghosts;
    uint64_t bytes;
    uint64_t pinned_bytes;
    uint64_t added;
    uint64_t used;
    uint64_t evicted;
    uint64_t returned;
};

/* What the next add may take at its worst moment; 0: it has the room. */
size_t kvs__retain_growth(const kvs_retain *r);
size_t kvs__retain_own(const kvs_retain *r);

/* -- retain_heap.c */

typedef bool (*kvs__less_fn)(const kvs__item *a, const kvs__item *b);
bool kvs__less_score(const kvs__item *a, const kvs__item *b);
void kvs__score_push(kvs_retain *r, uint32_t i);
void kvs__score_remove(kvs_retain *r, uint32_t i);
void kvs__expiry_push(kvs_retain *r, uint32_t i);
void kvs__expiry_remove(kvs_retain *r, uint32_t i);

/* -- retain_density.c */

kvs_status kvs__density_new(kvs_ctx *ctx, struct kvs__density **out, kvs_err *err);
void kvs__density_free(kvs_ctx *ctx, struct kvs__density *d);
size_t kvs__density_bytes(void);
/* A use: counts what its age was (known: it was there or a ghost), then starts anew. The item is in
 * no evict list. */
void kvs__density_use(kvs_retain *r, uint32_t i, bool known);
/* The same use goes on: its age starts anew, nothing is counted. The item is in no evict list. */
void kvs__density_renew(kvs_retain *r, uint32_t i);
void kvs__density_link(kvs_retain *r, uint32_t i); /* may be evicted */
void kvs__density_unlink(kvs_retain *r, uint32_t i);
void kvs__density_forget(kvs_retain *r, uint32_t i); /* is no ghost any more */
uint32_t kvs__density_pick(kvs_retain *r, uint32_t priority);

#endif
