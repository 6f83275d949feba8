/* SPDX-License-Identifier: MIT */
/* history_rec.c: snapshots of recurrent layers, and going back to them (history.h).
 *
 * A state that has a token in it can't be had without: where a text may be left again, a snapshot must
 * have been taken. Positions come from history.h alone, never from a layer, so that all layers have
 * theirs at the same ones. What a layer can still rewind to by itself needs none, and a snapshot may
 * be taken as long as it can.
 *
 * I1  Snapshots are in ascending order, at positions in (0, length], of the tokens that are held. */
#include <string.h>

#include "store/history_priv.h"

kvs_status kvs__hrec_init(kvs__history *h, kvs_err *err)
{
    h->rec_undo = UINT64_MAX;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        kvs__layer *l = &h->cache->layer[i];
        kvs__hlayer *hl = &h->layer[i];
        if (l->spec.kind != KVS_LAYER_RECURRENT) {
            continue;
        }
        const kvs_recurrent_spec *s = &l->rec->spec;
        hl->rec = l;
        hl->rec_at = h->rec_bytes;
        hl->rec_known = h->rec_known;
        if (!kvs__rec_packed_bytes(s, &hl->rec_bytes) ||
            !kvs__add_size(h->rec_bytes, hl->rec_bytes, &h->rec_bytes)) {
            return kvs__fail(err, KVS_E_RANGE, "store", "layer %u: its state is too large", i);
        }
        h->rec_known += kvs__rec_chunks(hl);
        h->rec_undo = s->undo_tokens < h->rec_undo ? s->undo_tokens : h->rec_undo;
    }
    return KVS_OK;
}

/* ---- the list */

const kvs__hsnap *kvs__hrec_find(const kvs__history *h, int64_t pos)
{
    for (uint32_t i = h->n_snaps; i-- > 0 && h->snap[i].pos >= pos;) {
        if (h->snap[i].pos == pos) {
            return &h->snap[i];
        }
    }
    return NULL;
}

static void drop_at(kvs__history *h, uint32_t i)
{
    kvs__lent_unref(h->ctx, h->snap[i].lent);
    h->bytes -= kvs__hsnap_bytes(h);
    h->n_snaps--;
    memmove(h->snap + i, h->snap + i + 1, (h->n_snaps - i) * sizeof *h->snap);
}

void kvs__hrec_drop(kvs__history *h, int64_t pos)
{
    while (h->n_snaps > 0 && h->snap[h->n_snaps - 1].pos > pos) {
        drop_at(h, h->n_snaps - 1);
    }
}

void kvs__hrec_remove(kvs__history *h, int64_t pos)
{
    for (uint32_t i = h->n_snaps; i-- > 0;) {
        if (h->snap[i].pos == pos) {
            drop_at(h, i);
        }
    }
}

static bool is_mark(const kvs__history *h, int64_t pos)
{
    for (int i = 0; i < KVS__MARKS; i++) {
        if (h->mark[i] == pos) {
            return true;
        }
    }
    return false;
}

bool kvs__hrec_wanted(const kvs__history *h, int64_t pos)
{
    return !h->over && pos > 0 && (pos % kvs__hist_spacing(h, pos) == 0 || is_mark(h, pos));
}

void kvs__hrec_thin(kvs__history *h)
{
    for (uint32_t i = h->n_snaps; i-- > 0;) {
        if (!kvs__hrec_wanted(h, h->snap[i].pos)) {
            drop_at(h, i);
        }
    }
}

bool kvs__hrec_drop_mark(kvs__history *h)
{
    for (int i = KVS__MARKS; i-- > 0;) {
        if (h->mark[i] > 0) {
            h->mark[i] = 0;
            return true;
        }
    }
    return false;
}

kvs__hsnap *kvs__hrec_insert(kvs__history *h, int64_t pos)
{
    /* making room may widen the spacing */
    if (!kvs__hist_room(h, kvs__hsnap_bytes(h)) || !kvs__hrec_wanted(h, pos)) {
        return NULL;
    }
    kvs__hsnap *snap =
        kvs__grow(h->ctx, h->snap, &h->cap_snaps, h->n_snaps, h->n_snaps + 1, sizeof *snap);
    if (!snap) {
        return NULL;
    }
    h->snap = snap;
    kvs__lent *lent = kvs__lent_new(h->ctx, h->rec_bytes, h->rec_known);
    if (!lent) {
        return NULL;
    }
    uint32_t i = h->n_snaps;
    while (i > 0 && h->snap[i - 1].pos > pos) {
        i--;
    }
    memmove(h->snap + i + 1, h->snap + i, (h->n_snaps - i) * sizeof *h->snap);
    h->snap[i] = (kvs__hsnap){pos, lent};
    h->n_snaps++;
    h->bytes += kvs__hsnap_bytes(h);
    return &h->snap[i];
}

/* ---- taking snapshots */

static bool reaches(const kvs__history *h, int64_t pos)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const kvs__layer *l = h->layer[i].rec;
        int64_t len = l ? kvs__layer_len(l) : 0;
        if (l && (len < pos || !kvs__rec_can_rewind(l->rec, (uint64_t)(len - pos)))) {
            return false;
        }
    }
    return true;
}

/* False: it can't be had. */
static bool take(kvs__history *h, int64_t pos)
{
    if (kvs__hrec_find(h, pos)) {
        return true;
    }
    kvs__hsnap *s = reaches(h, pos) ? kvs__hrec_insert(h, pos) : NULL;
    bool ok = s != NULL;
    for (uint32_t i = 0; ok && i < h->n_layers; i++) {
        const kvs__hlayer *hl = &h->layer[i];
        ok = !hl->rec ||
             kvs__rec_pack(h->ctx, hl->rec->rec, pos, s->lent->data + hl->rec_at, NULL) == KVS_OK;
    }
    if (s && !ok) {
        drop_at(h, (uint32_t)(s - h->snap));
    }
    return ok;
}

void kvs__hrec_note(kvs__history *h)
{
    int64_t len = (int64_t)kvs__hist_len(h);
    if (h->rec_bytes == 0 || h->over || h->cache->open || !reaches(h, len)) {
        return; /* in the middle of a step the layers differ */
    }
    if (len < h->rec_end) {
        kvs__hrec_drop(h, len);
        for (int i = 0; i < KVS__MARKS; i++) {
            h->mark[i] = h->mark[i] > len ? 0 : h->mark[i];
        }
    }
    for (int64_t c = h->rec_end; (c = kvs__hist_next(h, c)) <= len;) {
        (void)take(h, c);
    }
    for (int i = 0; i < KVS__MARKS; i++) {
        if (h->mark[i] > 0 && h->mark[i] <= len && !take(h, h->mark[i])) {
            h->mark[i] = 0; /* not to be tried again at each token */
        }
    }
    h->rec_end = len;
}

void kvs__history_mark(kvs__history *h, uint64_t n)
{
    if (h->rec_bytes == 0 || n == 0 || is_mark(h, (int64_t)n)) {
        return;
    }
    memmove(h->mark + 1, h->mark, (KVS__MARKS - 1) * sizeof *h->mark);
    h->mark[0] = (int64_t)n;
}

uint32_t kvs__history_step(const kvs__history *h, uint64_t at, uint32_t n)
{
    const int64_t pos = (int64_t)at;
    if (h->rec_bytes == 0 || kvs__hsnap_bytes(h) > h->max_bytes || h->over) {
        return n;
    }
    int64_t stop = pos + (int64_t)n;
    for (int i = -1; i < KVS__MARKS; i++) {
        int64_t c = i < 0 ? kvs__hist_next(h, pos) : h->mark[i];
        if (c > pos && c < stop && (uint64_t)(stop - c) > h->rec_undo) {
            stop = c;
        }
    }
    return (uint32_t)(stop - pos);
}

/* ---- going back */

bool kvs__hrec_serves(const kvs__history *h, int64_t c)
{
    return h->rec_bytes == 0 || reaches(h, c) || kvs__hrec_find(h, c) != NULL;
}

kvs_status kvs__hrec_back(kvs__history *h, int64_t c, kvs_err *err)
{
    const kvs__hsnap *s = kvs__hrec_find(h, c);
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < h->n_layers && st == KVS_OK; i++) {
        const kvs__hlayer *hl = &h->layer[i];
        if (!hl->rec) {
            continue;
        }
        uint64_t back = (uint64_t)(kvs__layer_len(hl->rec) - c);
        if (kvs__rec_can_rewind(hl->rec->rec, back)) {
            kvs__rec_rewind(h->ctx, hl->rec->rec, back);
        } else if (s) {
            st = kvs__rec_unpack(h->ctx, hl->rec->rec, c, s->lent->data + hl->rec_at, err);
        } else {
            st = kvs__fail(err, KVS_E_STATE, "store", "layer %u can't go back to %lld tokens", i,
                           (long long)c);
        }
    }
    return st;
}
