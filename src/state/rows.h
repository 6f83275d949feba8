/* SPDX-License-Identifier: MIT */
/* rows.h: a set of rows inside: the list of caches it owns, and its round. */
#ifndef KVS_STATE_ROWS_H
#define KVS_STATE_ROWS_H

#include "kvstate/txn.h"
#include "state/layer.h"

/* I1  row[0 .. n) are distinct caches of ctx, owned, of one geometry.
 * I2  open: the round of every row is, with its own number of drafts. Else of none.
 * I3  broken: no call but free touches a row. */
struct kvs_rows {
    kvs_ctx *ctx;
    uint32_t n;
    uint32_t cap;
    kvs_cache **row; /* [cap] */
    bool open;
    bool broken;
    kvs_txn_kind kind;
    uint64_t rounds;
    uint64_t drafts;
    uint64_t accepted;
};

/* KVS_E_INVAL: NULL; KVS_E_BROKEN. */
kvs_status kvs__rows_check(const kvs_rows *rows, kvs_err *err);
/* Also KVS_E_STATE while a round is open: `what` moves rows. */
kvs_status kvs__rows_closed(const kvs_rows *rows, const char *what, kvs_err *err);
/* KVS_E_RANGE: no such row. */
kvs_status kvs__rows_index(const kvs_rows *rows, uint32_t row, kvs_err *err);

#endif
