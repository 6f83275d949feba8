/* SPDX-License-Identifier: MIT */
/* txn.c: rounds over a set of rows: checks, then each layer's own part (round.h).
 *
 * closed --begin--> open --resolve, abort--> closed;  open --a layer fails to settle--> broken.
 * begin reserves what the round's appends take; resolve and abort of keys and values allocate
 * nothing and cannot fail. */
#include "kvstate/txn.h"

#include "state/round.h"
#include "state/rows.h"

static kvs_status read_opts(const kvs_rows *rows, const kvs_txn_opts *opts, kvs_txn_opts *o,
                            kvs_err *err)
{
    kvs_status st = kvs__rows_check(rows, err);
    if (st == KVS_OK && !opts) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "opts is NULL");
    }
    st = st == KVS_OK ? kvs__opts_read(o, sizeof *o, opts, "kvs_txn_opts", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if ((unsigned)o->kind > KVS_TXN_STEP) {
        return kvs__fail(err, KVS_E_INVAL, "state", "kind %d is none of kvs_txn_kind",
                         (int)o->kind);
    }
    if (o->kind == KVS_TXN_STEP && (o->n_drafts > 0 || o->drafts)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a step has no drafts");
    }
    return KVS_OK;
}

static uint32_t drafts_of(const kvs_txn_opts *o, uint32_t row)
{
    return o->drafts ? o->drafts[row] : o->n_drafts;
}

/* Does every layer of every row have the room? Else *row, *layer is one that has not. */
static bool fits(const kvs_rows *rows, const kvs_txn_opts *o, uint32_t *row, uint32_t *layer)
{
    for (uint32_t r = 0; r < rows->n; r++) {
        const kvs_cache *c = rows->row[r];
        uint32_t d = drafts_of(o, r);
        for (uint32_t i = 0; i < c->n_layers; i++) {
            const kvs__layer *l = &c->layer[i];
            bool may_go = d > 0 || o->kind == KVS_TXN_STEP;
            if (l->ops && !l->ops->can_begin(l, (uint64_t)d + 1, may_go)) {
                *row = r;
                *layer = i;
                return false;
            }
        }
    }
    return true;
}

kvs_status kvs_txn_can_begin(const kvs_rows *rows, const kvs_txn_opts *opts)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    uint32_t row = 0;
    uint32_t layer = 0;
    kvs_status st = read_opts(rows, opts, &o, NULL);
    if (st != KVS_OK) {
        return st;
    }
    return !rows->open && fits(rows, &o, &row, &layer) ? KVS_OK : KVS_NO;
}

static void close_layer(kvs__layer *l)
{
    l->round = (kvs__round){.base = -1};
}

/* Closes layers [0, end) of the row: `begun` aborts a round, else it failed to begin. */
static void unwind(kvs_cache *c, uint32_t end, bool begun)
{
    for (uint32_t i = 0; i < end; i++) {
        kvs__layer *l = &c->layer[i];
        if (!l->ops) {
            continue;
        }
        if (begun) {
            l->ops->abort(c->ctx, l);
        } else {
            l->ops->undo(c->ctx, l);
        }
        close_layer(l);
    }
    c->open = false;
}

static kvs_status begin_row(kvs_cache *c, kvs_txn_kind kind, uint32_t drafts, kvs_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        kvs__layer *l = &c->layer[i];
        if (!l->ops) {
            continue;
        }
        l->round = (kvs__round){.base = kvs__layer_len(l),
                                .most = (uint64_t)drafts + 1,
                                .drafts = drafts > 0 || kind == KVS_TXN_STEP};
        kvs_status st = l->ops->begin(c->ctx, l, err);
        if (st != KVS_OK) {
            close_layer(l);
            unwind(c, i, false);
            return st;
        }
    }
    c->open = true;
    c->drafts = drafts;
    return KVS_OK;
}

kvs_status kvs_txn_begin(kvs_rows *rows, const kvs_txn_opts *opts, kvs_err *err)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    uint32_t row = 0;
    uint32_t layer = 0;
    kvs_status st = read_opts(rows, opts, &o, err);
    st = st == KVS_OK ? kvs__rows_closed(rows, "begin", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (!fits(rows, &o, &row, &layer)) {
        return kvs__fail(err, KVS_E_LIMIT, "state",
                         "row %u, layer %u: no room to take a round of %u drafts back", row, layer,
                         drafts_of(&o, row));
    }
    for (uint32_t r = 0; r < rows->n; r++) {
        st = begin_row(rows->row[r], o.kind, drafts_of(&o, r), err);
        if (st != KVS_OK) {
            for (uint32_t u = 0; u < r; u++) {
                unwind(rows->row[u], rows->row[u]->n_layers, false);
            }
            return st;
        }
    }
    rows->open = true;
    rows->kind = o.kind;
    return KVS_OK;
}

static kvs_status check_open(const kvs_rows *rows, kvs_err *err)
{
    kvs_status st = kvs__rows_check(rows, err);
    if (st == KVS_OK && !rows->open) {
        st = kvs__fail(err, KVS_E_STATE, "state", "no round is open");
    }
    return st;
}

/* Tokens that stay of a row with `a` accepted. */
static uint64_t kept_of(const kvs_rows *rows, uint32_t a)
{
    return rows->kind == KVS_TXN_STEP ? a : (uint64_t)a + 1;
}

static kvs_status check_accept(const kvs_rows *rows, uint32_t row, uint32_t a, kvs_err *err)
{
    const kvs_cache *c = rows->row[row];
    uint32_t most = rows->kind == KVS_TXN_STEP ? 1 : c->drafts;
    if (a > most) {
        return kvs__fail(err, KVS_E_RANGE, "state", "row %u: %u accepted of %u", row, a, most);
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const kvs__layer *l = &c->layer[i];
        uint64_t got = l->ops ? (uint64_t)(kvs__layer_len(l) - l->round.base) : UINT64_MAX;
        if (got < kept_of(rows, a)) {
            return kvs__fail(err, KVS_E_STATE, "state",
                             "row %u, layer %u: %llu tokens appended, %llu to be kept", row, i,
                             (unsigned long long)got, (unsigned long long)kept_of(rows, a));
        }
    }
    return KVS_OK;
}

static kvs_status settle_row(kvs_cache *c, uint64_t kept, kvs_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        kvs__layer *l = &c->layer[i];
        if (!l->ops) {
            continue;
        }
        kvs_status st = l->ops->settle(c->ctx, l, kept, err);
        if (st != KVS_OK) {
            return st;
        }
        close_layer(l);
    }
    c->open = false;
    return KVS_OK;
}

static kvs_status broken(kvs_rows *rows, kvs_status st)
{
    rows->broken = true;
    for (uint32_t r = 0; r < rows->n; r++) {
        rows->row[r]->broken = true;
    }
    return st;
}

/* each: the rows' own numbers, or NULL for `all`. */
static kvs_status resolve(kvs_rows *rows, const uint32_t *each, uint32_t all, kvs_err *err)
{
    kvs_status st = check_open(rows, err);
    for (uint32_t r = 0; st == KVS_OK && r < rows->n; r++) {
        st = check_accept(rows, r, each ? each[r] : all, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t r = 0; r < rows->n; r++) {
        uint32_t a = each ? each[r] : all;
        kvs_cache *c = rows->row[r];
        st = settle_row(c, kept_of(rows, a), err);
        if (st != KVS_OK) {
            return broken(rows, st);
        }
        rows->drafts += rows->kind == KVS_TXN_STEP ? 1 : c->drafts;
        rows->accepted += a;
    }
    rows->open = false;
    rows->rounds++;
    return KVS_OK;
}

kvs_status kvs_txn_resolve(kvs_rows *rows, const uint32_t *accepted, kvs_err *err)
{
    if (rows && rows->n > 0 && !accepted) {
        return kvs__fail(err, KVS_E_INVAL, "state", "accepted is NULL");
    }
    return resolve(rows, accepted, 0, err);
}

kvs_status kvs_txn_resolve_all(kvs_rows *rows, uint32_t accepted, kvs_err *err)
{
    return resolve(rows, NULL, accepted, err);
}

kvs_status kvs_txn_abort(kvs_rows *rows, kvs_err *err)
{
    kvs_status st = check_open(rows, err);
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t r = 0; r < rows->n; r++) {
        unwind(rows->row[r], rows->row[r]->n_layers, true);
    }
    rows->open = false;
    rows->rounds++;
    return KVS_OK;
}

kvs_status kvs_txn_get_stats(const kvs_rows *rows, kvs_txn_stats *out)
{
    if (!rows || !out) {
        return KVS_E_INVAL;
    }
    kvs_txn_stats s = KVS_TXN_STATS_INIT;
    s.open = rows->open;
    s.kind = rows->kind;
    s.rounds = rows->rounds;
    s.drafts = rows->drafts;
    s.accepted = rows->accepted;
    for (uint32_t r = 0; rows->open && r < rows->n; r++) {
        const kvs_cache *c = rows->row[r];
        for (uint32_t i = 0; i < c->n_layers; i++) {
            const kvs__layer *l = &c->layer[i];
            s.retained_bytes += l->ops ? l->ops->retained(l) : 0;
        }
    }
    return kvs__stats_write(out, &s, sizeof s);
}

int64_t kvs_cache_committed(const kvs_cache *c, uint32_t layer)
{
    kvs__layer *l = NULL;
    if (kvs__cache_layer(c, layer, &l, NULL) != KVS_OK) {
        return -1;
    }
    return kvs__layer_open(l) ? l->round.base : kvs__layer_len(l);
}
