/* SPDX-License-Identifier: MIT */
/* retain_heap.c: items in binary heaps, by score and by the end of their priority. The arrays have
 * room for all items, so that nothing here can fail. */
#include "store/retain_priv.h"

typedef uint32_t *(*place_fn)(kvs__item *item);

static uint32_t *score_place(kvs__item *item)
{
    return &item->heap_at;
}

static uint32_t *expiry_place(kvs__item *item)
{
    return &item->expiry_at;
}

bool kvs__less_score(const kvs__item *a, const kvs__item *b)
{
    if (a->score < b->score || a->score > b->score) {
        return a->score < b->score;
    }
    return a->last_use < b->last_use;
}

static bool less_expiry(const kvs__item *a, const kvs__item *b)
{
    return a->until < b->until;
}

/* Moves item number i from place `at` of the heap to where it belongs. */
static void settle(kvs_retain *r, kvs__heap *h, uint32_t at, uint32_t i, kvs__less_fn less,
                   place_fn place)
{
    kvs__item *all = r->item;
    while (at > 0 && less(&all[i], &all[h->at[(at - 1) / 2]])) {
        h->at[at] = h->at[(at - 1) / 2];
        *place(&all[h->at[at]]) = at;
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < h->n && less(&all[h->at[child + 1]], &all[h->at[child]])) {
            child++;
        }
        if (child >= h->n || !less(&all[h->at[child]], &all[i])) {
            break;
        }
        h->at[at] = h->at[child];
        *place(&all[h->at[at]]) = at;
        at = child;
    }
    h->at[at] = i;
    *place(&all[i]) = at;
}

static void take_out(kvs_retain *r, kvs__heap *h, uint32_t i, kvs__less_fn less, place_fn place)
{
    uint32_t at = *place(&r->item[i]);
    *place(&r->item[i]) = KVS__NONE;
    uint32_t last = h->at[--h->n];
    if (last != i) {
        settle(r, h, at, last, less, place);
    }
}

void kvs__score_push(kvs_retain *r, uint32_t i)
{
    kvs__heap *h = &r->heap[r->item[i].priority];
    settle(r, h, h->n++, i, kvs__less_score, score_place);
}

void kvs__score_remove(kvs_retain *r, uint32_t i)
{
    take_out(r, &r->heap[r->item[i].priority], i, kvs__less_score, score_place);
}

void kvs__expiry_push(kvs_retain *r, uint32_t i)
{
    settle(r, &r->expiry, r->expiry.n++, i, less_expiry, expiry_place);
}

void kvs__expiry_remove(kvs_retain *r, uint32_t i)
{
    take_out(r, &r->expiry, i, less_expiry, expiry_place);
}
