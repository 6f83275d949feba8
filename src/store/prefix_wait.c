/* SPDX-License-Identifier: MIT */
/* prefix_wait.c: what waits for a slower tier is not evicted to make room for other entries, so that
 * nothing goes from memory before it is elsewhere: a publication that would need its room is refused
 * instead. Limits that are not the index's to keep win: a pool that has no block left for a sequence
 * being computed, a budget that is lowered. Then the entry that has waited longest goes from its end, since
 * it will be elsewhere soonest; the statistics say how many did.
 *
 * W1  A node is in at most one list (node.wait), and then has one pin more: its item and its windows.
 * W2  A list takes no memory but its nodes' links: waiting never fails, nor does its end.
 * W3  What is dropped by name (forget, clear) leaves its list. */
#include "store/prefix_priv.h"

static void leave(kvs_prefix *ix, kvs__prefix_wait *w, kvs__node *node)
{
    if (node->wait_prev) {
        node->wait_prev->wait_next = node->wait_next;
    } else {
        w->first = node->wait_next;
    }
    if (node->wait_next) {
        node->wait_next->wait_prev = node->wait_prev;
    } else {
        w->last = node->wait_prev;
    }
    node->wait = NULL;
    node->wait_prev = NULL;
    node->wait_next = NULL;
    (void)kvs_retain_unpin(ix->retain, node->item);
    if (node->windows) {
        (void)kvs_retain_unpin(ix->retain, node->windows);
    }
}

void kvs__node_leave_wait(kvs_prefix *ix, kvs__node *node)
{
    if (node->wait) {
        leave(ix, node->wait, node);
    }
}

static void enter(kvs_prefix *ix, kvs__node *node, kvs__prefix_wait *w)
{
    node->wait = w;
    node->wait_prev = w->last;
    *(w->last ? &w->last->wait_next : &w->first) = node;
    w->last = node;
    (void)kvs_retain_pin(ix->retain, node->item);
    if (node->windows) {
        (void)kvs_retain_pin(ix->retain, node->windows);
    }
}

/* Of one block, n tokens of the prompt: the node of all of them, and leaves of fewer, which have the
 * windows and the snapshots. Returns the one to go on below; NULL: none. */
static kvs__node *enter_block(kvs_prefix *ix, const kvs__node *parent, const int32_t *ids,
                              uint32_t n, uint32_t known, kvs__prefix_wait *w)
{
    kvs__node *below = kvs__node_child_with(parent, ids, n);
    if (below && !below->wait && n > known) {
        enter(ix, below, w);
    }
    for (uint32_t m = n; m > known;) {
        kvs__node *near[2];
        uint32_t same[2];
        kvs__node_near(parent, ids, m, near, same);
        m = near[0] ? same[0] : 0;
        if (m > known && near[0]->n_tokens == m) {
            if (!near[0]->wait) {
                enter(ix, near[0], w);
            }
            m--;
        }
    }
    return below;
}

void kvs__prefix_wait_begin(kvs_prefix *ix, const kvs_prefix_key *key, size_t from,
                            kvs__prefix_wait *w)
{
    uint8_t name[KVS__SHA_BYTES];
    *w = (kvs__prefix_wait){ix->waits_last, NULL, NULL, NULL, true};
    *(ix->waits_last ? &ix->waits_last->next : &ix->waits) = w;
    ix->waits_last = w;
    kvs__root_key(key, name);
    kvs__node *at = kvs__root_find(ix, name);
    for (size_t done = 0; at && done < key->n_ids;) {
        size_t left = key->n_ids - done;
        uint32_t n = left < ix->block ? (uint32_t)left : ix->block;
        uint32_t known = from <= done ? 0 : from - done < n ? (uint32_t)(from - done) : n;
        at = enter_block(ix, at, key->ids + done, n, known, w);
        done += n;
    }
}

void kvs__prefix_wait_end(kvs_prefix *ix, kvs__prefix_wait *w)
{
    if (!w->begun) {
        return;
    }
    while (w->first) {
        leave(ix, w, w->first);
    }
    *(w->prev ? &w->prev->next : &ix->waits) = w->next;
    *(w->next ? &w->next->prev : &ix->waits_last) = w->prev;
    *w = (kvs__prefix_wait){NULL, NULL, NULL, NULL, false};
}

/* Is there a block in it that nobody else refers to? */
static bool frees(const kvs_prefix *ix, const kvs__node *node)
{
    for (uint32_t s = 0; s < ix->n_slots; s++) {
        if (node->page[s] && !kvs__page_shared(node->page[s])) {
            return true;
        }
    }
    return false;
}

bool kvs__prefix_give_up(kvs_prefix *ix, bool blocks)
{
    for (kvs__prefix_wait *w = ix->waits; w; w = w->next) {
        for (kvs__node *node = w->last; node; node = node->wait_prev) {
            if (node->n_children > 0 || node->holds > 0 || (blocks && !frees(ix, node))) {
                continue;
            }
            if (ix->on_evict) {
                ix->on_evict(ix->evict_user, node, false);
            }
            ix->st.evicted++;
            ix->st.evicted_waiting++;
            kvs__node_drop(ix, node, KVS_RETAIN_EVICTED);
            return true;
        }
    }
    return false;
}

size_t kvs__prefix_lease_spare(const kvs_prefix *ix)
{
    size_t blocks = 0;
    for (const kvs__prefix_wait *w = ix->waits; w; w = w->next) {
        size_t n = w->last ? w->last->depth + (size_t)1 : 0;
        blocks = n > blocks ? n : blocks;
    }
    uint32_t layers = ix->part[KVS__PART_MAIN].n_layers + ix->part[KVS__PART_DRAFT].n_layers;
    size_t path = blocks + 1 > ix->cap_path ? 2 * (blocks + 1 < 32 ? 32 : blocks + 1) : 0;
    return blocks == 0
               ? 0
               : kvs__lease_bytes(layers, blocks * ix->n_slots) + path * sizeof(kvs__node *);
}

void kvs__prefix_count_waiting(const kvs_prefix *ix, kvs_prefix_stats *out)
{
    for (const kvs__prefix_wait *w = ix->waits; w; w = w->next) {
        for (const kvs__node *node = w->first; node; node = node->wait_next) {
            kvs_retain_info info = KVS_RETAIN_INFO_INIT;
            (void)kvs_retain_get_info(ix->retain, node->item, &info);
            out->waiting++;
            out->waiting_bytes += info.bytes;
            if (node->windows && kvs_retain_get_info(ix->retain, node->windows, &info) == KVS_OK) {
                out->waiting_bytes += info.bytes;
            }
        }
    }
}

bool kvs__prefix_check_waits(const kvs_prefix *ix)
{
    const kvs__prefix_wait *before = NULL;
    for (const kvs__prefix_wait *w = ix->waits; w; w = w->next) {
        const kvs__node *last = NULL;
        for (const kvs__node *node = w->first; node; node = node->wait_next) {
            if (node->wait != w || node->wait_prev != last || !node->item) {
                return false;
            }
            last = node;
        }
        if (w->last != last || w->prev != before || !w->begun) {
            return false;
        }
        before = w;
    }
    return ix->waits_last == before;
}
