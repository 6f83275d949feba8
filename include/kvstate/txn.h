/* SPDX-License-Identifier: MIT */
/* kvstate/txn.h: rounds of drafts over all rows of a set and all their layers.
 *
 *   begin(drafts d per row)  append up to d + 1 tokens to every layer, reading as one goes
 *   resolve(accepted a per row)  the first a + 1 of them are committed, the others never were
 *   abort                    none of them were
 *
 * The tokens of a round are the pending one (whose successor was drafted from) and d drafts, in one
 * verify block or token by token. A round of kind STEP is one token that may be rejected itself.
 *
 * While a round is open, lengths and reads include its tokens, but only committed tokens can be
 * viewed, forked or exported, and rewind, clear and convert are refused (KVS_E_STATE): what may be
 * rejected is never published. A ring has room for max_block tokens beyond its window, so taking
 * tokens back moves no byte and costs the same at any length, also after it wrapped. A layer that is
 * converted (dense_until) by tokens that may be rejected keeps its dense copy until they are
 * accepted. After resolve each row is what it would be if only its committed tokens had been
 * appended. */
#ifndef KVSTATE_TXN_H
#define KVSTATE_TXN_H

#include "kvstate/rows.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_txn_kind {
    KVS_TXN_DRAFTS = 0, /* the pending token stays whatever is accepted */
    KVS_TXN_STEP = 1    /* one token a row, itself kept or not */
} kvs_txn_kind;

typedef struct kvs_txn_opts {
    size_t struct_size;
    kvs_txn_kind kind;
    uint32_t n_drafts;      /* of every row, where drafts is NULL; 0 for a step */
    const uint32_t *drafts; /* [kvs_rows_count] or NULL */
} kvs_txn_opts;
#define KVS_TXN_OPTS_INIT                                                                          \
    {                                                                                              \
        sizeof(kvs_txn_opts), KVS_TXN_DRAFTS, 0, NULL                                              \
    }

/* KVS_OK, or KVS_NO: a round is open, or a layer has not the room to take so many tokens back (a
 * ring: drafts + 1 > max_block). Negative where begin would find the options invalid. */
KVS_API kvs_status kvs_txn_can_begin(const kvs_rows *rows, const kvs_txn_opts *opts);
/* Also does all allocation that the round's appends need (as kvs_cache_reserve). KVS_E_STATE: a
 * round is open; KVS_E_LIMIT names the row and layer without room. On failure no round is open. */
KVS_API kvs_status kvs_txn_begin(kvs_rows *rows, const kvs_txn_opts *opts, kvs_err *err);

/* accepted[row]: drafts accepted, 0 .. its drafts; of a step: 1 kept, 0 not. KVS_E_RANGE: more than
 * that; KVS_E_STATE: no round, or a layer did not get the tokens to be kept; nothing has changed
 * then and the round is still open. Any other failure can only come from recurrent layers, and
 * breaks the set: it and its caches answer KVS_E_BROKEN for ever and are to be freed. */
KVS_API kvs_status kvs_txn_resolve(kvs_rows *rows, const uint32_t *accepted, kvs_err *err);
/* The same number for each row. */
KVS_API kvs_status kvs_txn_resolve_all(kvs_rows *rows, uint32_t accepted, kvs_err *err);
/* Back to the state at begin. Cannot fail but for KVS_E_STATE, KVS_E_BROKEN. */
KVS_API kvs_status kvs_txn_abort(kvs_rows *rows, kvs_err *err);

typedef struct kvs_txn_stats {
    size_t struct_size;
    uint32_t open; /* 1: a round is */
    kvs_txn_kind kind;
    /* Bytes held for the round alone, to be able to take its tokens back; 0 without drafts. */
    size_t retained_bytes;
    uint64_t rounds; /* resolved or aborted so far */
    uint64_t drafts; /* resolved so far, and those of them accepted */
    uint64_t accepted;
} kvs_txn_stats;
#define KVS_TXN_STATS_INIT                                                                         \
    {                                                                                              \
        sizeof(kvs_txn_stats), 0, KVS_TXN_DRAFTS, 0, 0, 0, 0                                       \
    }
KVS_API kvs_status kvs_txn_get_stats(const kvs_rows *rows, kvs_txn_stats *out);
/* Tokens of a layer that can't be rejected: its length, less those of an open round; -1 for a layer
 * out of range. */
KVS_API int64_t kvs_cache_committed(const kvs_cache *cache, uint32_t layer);

#ifdef __cplusplus
}
#endif
#endif
