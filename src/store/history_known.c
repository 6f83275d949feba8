/* SPDX-License-Identifier: MIT */
/* history_known.c: what is known of the blocks of layers that keep all tokens, so that a save makes
 * and hashes those alone that are new.
 *
 * A block of 256 tokens that all are there never changes: tokens are written behind the last one, and
 * stored codes are not touched. So its digests hold until the layer goes back below its end (its store
 * tells, kept: store.h I9), is emptied, or changes from dense to codes. Notes and snapshots have theirs
 * beside their bytes.
 *
 * I1  Row i is of blocks that are as they were since it was made, whenever follow was called. */
#include "store/history_priv.h"

#define SHARE 16 /* what rows take at most: that part of the budget of notes, besides it */

static size_t row_bytes(const kvs__history *h)
{
    return kvs__lent_bytes(0, h->n_whole) + sizeof(void *);
}

size_t kvs__hknown_bytes(const kvs__history *h)
{
    return h->n_rows * row_bytes(h);
}

void kvs__hknown_drop(kvs__history *h, uint32_t n)
{
    while (h->n_rows > n) {
        kvs__lent_unref(h->ctx, h->row[--h->n_rows]);
    }
}

/* How many tokens are what they were at the last call. */
static int64_t unchanged(kvs__history *h)
{
    int64_t n = INT64_MAX;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        kvs__hlayer *hl = &h->layer[i];
        if (!hl->l || hl->slides) {
            continue;
        }
        bool dense = kvs__layer_dense(hl->l);
        kvs__store *s = dense ? &hl->l->early : &hl->l->main;
        n = s->kept < n ? s->kept : n;
        n = dense == hl->dense ? n : 0;
        hl->dense = dense;
        s->kept = s->len;
    }
    return n;
}

static bool add_row(kvs__history *h)
{
    if (h->n_rows >= h->max_bytes / SHARE / row_bytes(h)) {
        return false;
    }
    kvs__lent **row =
        kvs__grow(h->ctx, h->row, &h->cap_rows, h->n_rows, (size_t)h->n_rows + 1, sizeof(void *));
    if (!row) {
        return false;
    }
    h->row = row;
    row[h->n_rows] = kvs__lent_new(h->ctx, 0, h->n_whole);
    if (!row[h->n_rows]) {
        return false;
    }
    h->n_rows++;
    return true;
}

void kvs__hknown_follow(kvs__history *h)
{
    if (h->n_whole == 0) {
        return;
    }
    int64_t kept = unchanged(h) / BLOCK;
    kvs__hknown_drop(h, kept < UINT32_MAX ? (uint32_t)kept : UINT32_MAX);
    uint64_t whole = kvs__hist_len(h) / (uint64_t)BLOCK;
    while (h->n_rows < whole && add_row(h)) {
    }
}
