/* SPDX-License-Identifier: MIT */
/* prefix_tree.c: nodes, siblings, roots (invariants in prefix_priv.h). Siblings are a treap, so that
 * a node of a million children is searched in twenty comparisons; ids are compared, never hashes. */
#include <string.h>

#include "store/prefix_priv.h"

/* -- order */

int kvs__ids_compare(const int32_t *a, uint32_t na, const int32_t *b, uint32_t nb, uint32_t *lcp)
{
    uint32_t n = na < nb ? na : nb;
    uint32_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    *lcp = i;
    if (i < n) {
        return a[i] < b[i] ? -1 : 1;
    }
    return na == nb ? 0 : (na < nb ? -1 : 1);
}

void kvs__node_near(const kvs__node *parent, const int32_t *ids, uint32_t n, kvs__node *near[2],
                    uint32_t lcp[2])
{
    near[0] = NULL;
    near[1] = NULL;
    lcp[0] = 0;
    lcp[1] = 0;
    kvs__node *at = parent->child;
    while (at) {
        uint32_t same = 0;
        int order = kvs__ids_compare(at->ids, at->n_tokens, ids, n, &same);
        int side = order <= 0 ? 0 : 1;
        near[side] = at;
        lcp[side] = same;
        at = order <= 0 ? at->right : at->left;
        while (order == 0 && at) { /* what comes after the equal one */
            near[1] = at;
            (void)kvs__ids_compare(at->ids, at->n_tokens, ids, n, &lcp[1]);
            at = at->left;
        }
    }
}

kvs__node *kvs__node_child_with(const kvs__node *parent, const int32_t *ids, uint32_t n)
{
    kvs__node *near[2];
    uint32_t same[2];
    kvs__node_near(parent, ids, n, near, same);
    for (int i = 0; i < 2; i++) {
        if (near[i] && same[i] == n) {
            return near[i];
        }
    }
    return NULL;
}

static int order_of(const kvs__node *a, const kvs__node *b)
{
    uint32_t same = 0;
    return kvs__ids_compare(a->ids, a->n_tokens, b->ids, b->n_tokens, &same);
}

kvs__node *kvs__node_beside(const kvs__node *node, int side)
{
    kvs__node *found = NULL;
    kvs__node *at = node->parent->child;
    while (at) {
        int order = order_of(at, node);
        bool beyond = side ? order > 0 : order < 0;
        found = beyond ? at : found;
        at = beyond == (side != 0) ? at->left : at->right;
    }
    return found;
}

/* -- the treap */

/* Divides a tree into what orders before and after a node that is not in it. */
static void split(kvs__node *tree, const kvs__node *by, kvs__node **less, kvs__node **more)
{
    while (tree) {
        if (order_of(tree, by) < 0) {
            *less = tree;
            less = &tree->right;
            tree = tree->right;
        } else {
            *more = tree;
            more = &tree->left;
            tree = tree->left;
        }
    }
    *less = NULL;
    *more = NULL;
}

static kvs__node *join(kvs__node *less, kvs__node *more)
{
    kvs__node *out = NULL;
    kvs__node **at = &out;
    while (less && more) {
        if (less->order < more->order) {
            *at = less;
            at = &less->right;
            less = less->right;
        } else {
            *at = more;
            at = &more->left;
            more = more->left;
        }
    }
    *at = less ? less : more;
    return out;
}

void kvs__node_link(kvs_prefix *ix, kvs__node *parent, kvs__node *node)
{
    kvs__node **at = &parent->child;
    while (*at && (*at)->order < node->order) {
        at = order_of(*at, node) < 0 ? &(*at)->right : &(*at)->left;
    }
    split(*at, node, &node->left, &node->right);
    *at = node;
    node->parent = parent;
    parent->n_children++;
    if (parent->n_children == 1 && parent->item) {
        (void)kvs_retain_pin(ix->retain, parent->item);
    }
    ix->st.nodes++;
}

void kvs__node_unlink(kvs_prefix *ix, kvs__node *node)
{
    kvs__node *parent = node->parent;
    kvs__node **at = &parent->child;
    while (*at && *at != node) { /* it is there: the analyser can't know */
        at = order_of(*at, node) < 0 ? &(*at)->right : &(*at)->left;
    }
    *at = join(node->left, node->right);
    parent->n_children--;
    if (parent->n_children == 0 && parent->item) {
        (void)kvs_retain_unpin(ix->retain, parent->item);
    }
    ix->st.nodes--;
}

/* -- memory of nodes */

static size_t up8(size_t n)
{
    return (n + 7) / 8 * 8;
}

size_t kvs__node_bytes(const kvs_prefix *ix)
{
    return up8(sizeof(kvs__node) + ix->n_slots * sizeof(kvs__seg *) + ix->block * sizeof(int32_t));
}

kvs__node *kvs__node_new(kvs_prefix *ix)
{
    size_t bytes = kvs__node_bytes(ix);
    kvs__node *node = kvs__calloc(ix->ctx, 1, bytes);
    if (!node) {
        return NULL;
    }
    node->bytes = bytes;
    node->page = (kvs__seg **)(void *)(node + 1);
    node->ids = (int32_t *)(void *)(node->page + ix->n_slots);
    ix->rng = ix->rng * 6364136223846793005u + 1442695040888963407u;
    node->order = (uint32_t)(ix->rng >> 32);
    return node;
}

void kvs__snap_unref(kvs_prefix *ix, kvs__snap *snap)
{
    if (snap && --snap->refs == 0) {
        ix->own -= snap->apart ? snap->bytes : 0;
        kvs__free(ix->ctx, snap, snap->bytes);
    }
}

void kvs__snap_leave(kvs_prefix *ix, kvs__snap *snap)
{
    snap->apart = snap->refs > 1;
    ix->own += snap->apart ? snap->bytes : 0;
    kvs__snap_unref(ix, snap);
}

/* -- holding and dropping */

void kvs__node_hold(kvs_prefix *ix, kvs__node *node)
{
    node->holds++;
    if (node->item) {
        (void)kvs_retain_pin(ix->retain, node->item);
    }
    if (node->windows) {
        (void)kvs_retain_pin(ix->retain, node->windows);
    }
}

static void free_root(kvs_prefix *ix, kvs__node *root)
{
    uint64_t hash = root->hash;
    size_t at = SIZE_MAX;
    uint32_t i = kvs__idmap_next(&ix->roots, hash, &at);
    while (ix->root[i] != root) {
        i = kvs__idmap_next(&ix->roots, hash, &at);
    }
    kvs__idmap_remove(&ix->roots, hash, i);
    uint32_t last = --ix->n_roots;
    if (last != i) {
        kvs__node *moved = ix->root[last];
        kvs__idmap_remove(&ix->roots, moved->hash, last);
        kvs__idmap_insert(&ix->roots, moved->hash, i);
        ix->root[i] = moved;
    }
    ix->own -= root->bytes;
    ix->st.namespaces--;
    kvs__free(ix->ctx, root, root->bytes);
}

static void free_if_idle(kvs_prefix *ix, kvs__node *root)
{
    if (!root->parent && root->n_children == 0 && root->holds == 0 && !root->item) {
        free_root(ix, root);
    }
}

void kvs__node_release(kvs_prefix *ix, kvs__node *node)
{
    node->holds--;
    if (node->item) {
        (void)kvs_retain_unpin(ix->retain, node->item);
    }
    if (node->windows) {
        (void)kvs_retain_unpin(ix->retain, node->windows);
    }
    free_if_idle(ix, node);
}

static void drop_pages(kvs_prefix *ix, kvs__node *node)
{
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        if (node->page[s]) {
            kvs__page_unkeep(node->page[s]);
            node->page[s] = NULL;
            ix->st.pages--;
        }
    }
}

static void drop_snaps(kvs_prefix *ix, kvs__node *node)
{
    while (node->snaps) {
        kvs__snap *next = node->snaps->next;
        kvs__snap_leave(ix, node->snaps);
        node->snaps = next;
    }
}

void kvs__node_drop(kvs_prefix *ix, kvs__node *node, uint32_t how)
{
    if (node->session) {
        kvs__idmap_remove(&ix->sessions, node->session, (uint32_t)node->item);
    }
    kvs__node_leave_wait(ix, node);
    if (node->windows) {
        (void)kvs_retain_drop(ix->retain, node->windows, how);
    }
    if (node->item) {
        (void)kvs_retain_drop(ix->retain, node->item, how);
    }
    node->item = 0;
    node->windows = 0;
    drop_snaps(ix, node);
    drop_pages(ix, node);
    kvs__node *parent = node->parent;
    if (!parent) {
        free_if_idle(ix, node);
        return;
    }
    kvs__node_unlink(ix, node);
    kvs__free(ix->ctx, node, node->bytes);
    free_if_idle(ix, parent);
}

static kvs__node *first_leaf(kvs__node *node)
{
    while (node->child) {
        node = node->child;
        while (node->left) {
            node = node->left;
        }
    }
    return node;
}

void kvs__node_drop_tree(kvs_prefix *ix, kvs__node *top)
{
    top->holds++; /* a root must not go while it is emptied */
    for (kvs__node *at = first_leaf(top); at != top;) {
        kvs__node *parent = at->parent;
        kvs__node *next = kvs__node_beside(at, 1);
        if (at->n_children == 0 && at->holds == 0) {
            kvs__node_drop(ix, at, KVS_RETAIN_FORGOTTEN);
        }
        at = next ? first_leaf(next) : parent;
    }
    top->holds--;
    if (top->n_children == 0 && top->holds == 0) {
        kvs__node_drop(ix, top, KVS_RETAIN_FORGOTTEN);
    }
}

/* -- roots */

void kvs__root_key(const kvs_prefix_key *key, uint8_t out[KVS__SHA_BYTES])
{
    kvs__sha256 h;
    kvs__sha256_init(&h);
    kvs__sha256_field(&h, key->identity, key->identity ? KVS_DIGEST_BYTES : 0);
    kvs__sha256_field(&h, key->ns, key->ns_bytes);
    kvs__sha256_end(&h, out);
}

static uint64_t root_hash(const uint8_t key[KVS__SHA_BYTES])
{
    uint64_t h = 0;
    memcpy(&h, key, sizeof h);
    return h;
}

kvs__node *kvs__root_find(const kvs_prefix *ix, const uint8_t key[KVS__SHA_BYTES])
{
    size_t at = SIZE_MAX;
    uint32_t i = kvs__idmap_next(&ix->roots, root_hash(key), &at);
    while (i != KVS__NONE && memcmp(ix->root[i]->key, key, KVS__SHA_BYTES) != 0) {
        i = kvs__idmap_next(&ix->roots, root_hash(key), &at);
    }
    return i == KVS__NONE ? NULL : ix->root[i];
}

/* Room for one more root in the list and the map. */
static kvs_status reserve_root(kvs_prefix *ix, kvs_err *err)
{
    if (ix->n_roots < ix->cap_roots) {
        return KVS_OK;
    }
    uint32_t cap = ix->cap_roots ? ix->cap_roots * 2 : 8;
    const size_t item = sizeof(kvs__node *);
    size_t list = cap * item;
    size_t map = (size_t)cap * 4 * sizeof(kvs__idmap_slot);
    kvs_status st = kvs__prefix_room(ix, list + map, err);
    if (st != KVS_OK) {
        return st;
    }
    size_t before = ix->roots.cap;
    kvs__node **root = kvs__calloc(ix->ctx, cap, item);
    st = root ? kvs__idmap_reserve(ix->ctx, &ix->roots, cap - ix->n_roots, err)
              : kvs__nomem(err, "store", list);
    ix->own += (ix->roots.cap - before) * sizeof(kvs__idmap_slot);
    if (st != KVS_OK || !root) {
        kvs__free(ix->ctx, root, list);
        return st;
    }
    for (uint32_t i = 0; i < ix->n_roots; i++) {
        root[i] = ix->root[i];
    }
    kvs__free(ix->ctx, ix->root, ix->cap_roots * item);
    ix->own += (cap - ix->cap_roots) * item;
    ix->root = root;
    ix->cap_roots = cap;
    return KVS_OK;
}

kvs_status kvs__root_make(kvs_prefix *ix, const uint8_t key[KVS__SHA_BYTES], kvs__node **out,
                          kvs_err *err)
{
    *out = kvs__root_find(ix, key);
    if (*out) {
        return KVS_OK;
    }
    kvs_status st = reserve_root(ix, err);
    st = st == KVS_OK ? kvs__prefix_room(ix, kvs__node_bytes(ix), err) : st;
    kvs__node *root = st == KVS_OK ? kvs__node_new(ix) : NULL;
    if (!root) {
        return st == KVS_OK ? kvs__nomem(err, "store", kvs__node_bytes(ix)) : st;
    }
    memcpy(root->key, key, KVS__SHA_BYTES);
    root->hash = root_hash(key);
    ix->own += root->bytes;
    ix->root[ix->n_roots] = root;
    kvs__idmap_insert(&ix->roots, root->hash, ix->n_roots++);
    ix->st.namespaces++;
    *out = root;
    return KVS_OK;
}
