/* SPDX-License-Identifier: MIT */
/* prefix_priv.h: the tree behind kvstate/prefix.h.
 *
 * A slot is one format of one paged layer: a layer with dense_until has two. Node d blocks below a
 * root holds the tokens [(d - 1) * block, ..) of a prompt, block of them or, in a leaf, fewer.
 * The slots of a part (prefix_part.h) are those of one model's layers; a root has both models' state.
 * I1  Siblings differ in their tokens; they are a treap ordered by tokens, the shorter first.
 * I2  page[s] is a block with the state of the node's tokens after those of all its parents, in slot
 *     s, with one index reference; NULL: not kept. Nodes never change but that a NULL gets a block,
 *     a window block goes, a snapshot comes.
 * I3  Only a node with `block` tokens has children. A node with children, that a call holds, or that
 *     waits (prefix_wait.c), is pinned in `retain`; so leaves go first and a parent is never missing.
 * I4  bytes = own + kvs_retain_stats.bytes, <= max_bytes: `item` of a node counts its memory, its
 *     snapshots and the blocks of slots without a window (and of sinks), `windows` the other blocks;
 *     `own` the index's tables, leases, and snapshots that leases alone still have.
 *
 * How state goes to a slower tier and back: kvs__lease_page gives the blocks of a hit, to be read
 * with kvs__page_get_raw; on the way back kvs__page_fresh and kvs__page_set_raw make blocks,
 * kvs__page_attach a cache of them, and kvs_prefix_publish entries of that. on_evict says what goes. */
#ifndef KVS_STORE_PREFIX_PRIV_H
#define KVS_STORE_PREFIX_PRIV_H

#include "base/sha256.h"
#include "kvstate/prefix.h"
#include "state/pages_priv.h"
#include "store/idmap.h"
#include "store/prefix_part.h"
#include "store/prefix_wait.h"

/* Siblings on each side that a lookup may try beside the two nearest to the prompt. */
#define KVS__FURTHER 8u

typedef struct kvs__part {
    uint32_t n_layers;
    uint32_t first; /* its slots: [first, end) */
    uint32_t end;
    bool snapshots; /* it is resumed at these alone */
} kvs__part;

typedef struct kvs__slot {
    kvs__fmt fmt;
    uint32_t layer;
    bool early;           /* of the dense copy of a layer with dense_until */
    uint32_t dense_until; /* of the layer */
    uint32_t window;      /* 0: sees all */
    uint64_t ring_cap;
    uint64_t n_sink; /* blocks */
    uint32_t sinks;  /* tokens */
    size_t page_bytes;
} kvs__slot;

typedef struct kvs__snap {
    struct kvs__snap *next;
    uint32_t part;
    uint32_t at;   /* tokens of the node before it */
    uint32_t refs; /* the node's and those of leases */
    bool apart;    /* of no node any more: counted in `own` */
    size_t bytes;  /* of the whole allocation */
    size_t n;      /* behind this struct */
} kvs__snap;

typedef struct kvs__node {
    struct kvs__node *parent; /* NULL: a root */
    struct kvs__node *left;   /* siblings */
    struct kvs__node *right;
    struct kvs__node *child; /* treap of children */
    kvs__snap *snaps;
    kvs_retain_id item;    /* of a root: 0 without snapshots */
    kvs_retain_id windows; /* 0: none kept */
    uint64_t hash;         /* of all tokens up to here and the namespace */
    uint64_t session;
    uint32_t order; /* random: heap order of the treap */
    uint32_t n_children;
    uint32_t holds; /* of calls under way */
    uint32_t depth; /* blocks before it */
    uint32_t n_tokens;
    size_t bytes;           /* of the allocation */
    kvs__prefix_wait *wait; /* the list that it is in; NULL: it waits for nothing */
    struct kvs__node *wait_prev;
    struct kvs__node *wait_next;
    uint8_t key[KVS__SHA_BYTES]; /* roots: identity and namespace */
    kvs__seg **page;             /* [n_slots] */
    int32_t *ids;                /* [block] */
} kvs__node;

typedef void (*kvs__evict_fn)(void *user, const kvs__node *node, bool windows);

struct kvs_prefix {
    kvs_ctx *ctx;
    kvs_pages *pages;
    uint32_t block;
    kvs__part part[KVS__PARTS];
    uint32_t n_slots;
    kvs__slot *slot; /* [n_slots], never NULL */
    kvs_prefix_opts o;
    kvs_retain *retain;
    kvs__node **owner; /* [n_owner]: by the number of a retention item; the low bit: its windows */
    size_t n_owner;
    kvs__idmap roots; /* of key -> number in root */
    kvs__node **root;
    uint32_t n_roots;
    uint32_t cap_roots;
    kvs__idmap sessions; /* of session -> number of the node's item */
    kvs__node **path;    /* [cap_path], of a lookup */
    size_t cap_path;
    uint32_t *run; /* [7][n_slots], of a lookup; never NULL */
    uint64_t rng;
    size_t own;
    size_t peak;
    uint64_t now;
    bool closed; /* while it is being freed */
    kvs__evict_fn on_evict;
    void *evict_user;
    kvs__prefix_wait *waits; /* the one that began first */
    kvs__prefix_wait *waits_last;
    kvs_prefix_stats st;
};

struct kvs_lease {
    kvs_prefix *ix;
    uint32_t n_layers;
    kvs__snap *snap;
    size_t n_tokens;
    size_t n_pages;
    size_t bytes;
    kvs__page_list *list; /* [n_layers] */
    kvs__seg **page;      /* [n_pages], one reference each */
};

/* -- prefix_tree.c */

/* Order of two token lists, and how many they begin with alike. */
int kvs__ids_compare(const int32_t *a, uint32_t na, const int32_t *b, uint32_t nb, uint32_t *lcp);
/* The two siblings beside n ids (that order before or equal, and after); NULL: none. */
void kvs__node_near(const kvs__node *parent, const int32_t *ids, uint32_t n, kvs__node *near[2],
                    uint32_t lcp[2]);
/* The sibling that orders next before (side 0) or after (1) a node; NULL: none. */
kvs__node *kvs__node_beside(const kvs__node *node, int side);
/* The child that holds these tokens, whole or as its beginning; NULL: none. */
kvs__node *kvs__node_child_with(const kvs__node *parent, const int32_t *ids, uint32_t n);
void kvs__node_link(kvs_prefix *ix, kvs__node *parent, kvs__node *node);
void kvs__node_unlink(kvs_prefix *ix, kvs__node *node);
kvs__node *kvs__root_find(const kvs_prefix *ix, const uint8_t key[KVS__SHA_BYTES]);
void kvs__root_key(const kvs_prefix_key *key, uint8_t out[KVS__SHA_BYTES]);
kvs_status kvs__root_make(kvs_prefix *ix, const uint8_t key[KVS__SHA_BYTES], kvs__node **out,
                          kvs_err *err);
/* Memory of a node without pages, with room already made. */
kvs__node *kvs__node_new(kvs_prefix *ix);
size_t kvs__node_bytes(const kvs_prefix *ix);
void kvs__node_hold(kvs_prefix *ix, kvs__node *node);
void kvs__node_release(kvs_prefix *ix, kvs__node *node);
/* With everything below it. */
void kvs__node_drop_tree(kvs_prefix *ix, kvs__node *node);
void kvs__node_drop(kvs_prefix *ix, kvs__node *node, uint32_t how); /* a leaf that nobody holds */
void kvs__snap_unref(kvs_prefix *ix, kvs__snap *snap);              /* of a lease; NULL is fine */
void kvs__snap_leave(kvs_prefix *ix, kvs__snap *snap);              /* of its node */

/* -- prefix_wait.c */

void kvs__node_leave_wait(kvs_prefix *ix, kvs__node *node);
/* Drops a node that waits; blocks: one that frees a block of the pool. false: there is none. */
bool kvs__prefix_give_up(kvs_prefix *ix, bool blocks);
/* What a lookup that finds the longest of what waits takes. */
size_t kvs__prefix_lease_spare(const kvs_prefix *ix);
void kvs__prefix_count_waiting(const kvs_prefix *ix, kvs_prefix_stats *out);
bool kvs__prefix_check_waits(const kvs_prefix *ix);

/* -- prefix.c */

size_t kvs__prefix_bytes(const kvs_prefix *ix);
/* KVS_OK: so many bytes may be taken now, and what waits can be lent all the same. KVS_E_LIMIT: not
 * even with all evicted that may be. */
kvs_status kvs__prefix_room(kvs_prefix *ix, size_t bytes, kvs_err *err);
/* The same for a lookup. */
kvs_status kvs__prefix_lend(kvs_prefix *ix, size_t bytes, kvs_err *err);
void kvs__prefix_count(kvs_prefix *ix); /* the peak, after something was taken */
bool kvs__prefix_evict(kvs_prefix *ix); /* one item; false: none may go */
kvs_status kvs__prefix_item(kvs_prefix *ix, kvs__node *node, bool windows, size_t bytes,
                            uint32_t hint, kvs_err *err);
void kvs__prefix_on_evict(kvs_prefix *ix, kvs__evict_fn fn, void *user);
/* Walks everything; false where an invariant does not hold. */
bool kvs__prefix_check(const kvs_prefix *ix);
kvs_status kvs__prefix_check_key(const kvs_prefix_key *key, kvs_err *err);
/* The slot that a cache of n tokens reads a layer from. */
static inline bool kvs__slot_used(const kvs__slot *s, uint64_t n_tokens)
{
    return s->early == (s->dense_until > 0 && n_tokens <= s->dense_until);
}

/* Of a lease on so many blocks. */
size_t kvs__lease_bytes(uint32_t n_layers, size_t n_pages);
/* The block of a layer that holds position block * tokens of a block; NULL: not part of it. */
const kvs__seg *kvs__lease_page(const kvs_lease *lease, uint32_t layer, uint64_t block);

#endif
