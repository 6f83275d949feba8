/* SPDX-License-Identifier: MIT */
/* snap.h: the table of a saved cache: constants of its bytes (docs/format.md) and its reading. */
#ifndef KVS_STORE_SNAP_H
#define KVS_STORE_SNAP_H

#include "store/history_priv.h"

#define KVS__SNAP_MAGIC "KVSSTATE"
#define KVS__SNAP_VERSION                                                                          \
    2u /* 1 where no layer is recurrent and no key is centred: read and written */
#define KVS__SNAP_HEADER 32u
#define KVS__SNAP_RUN    32u

/* How a run holds what it holds. */
enum {
    KVS__FORM_CODECS = 0,
    KVS__FORM_DENSE = 1,    /* that of a delayed conversion, before it */
    KVS__FORM_RECURRENT = 2 /* planes of a recurrent layer after hi tokens; lo is 0 */
};

/* A block of the entry; b.data NULL until it is read. Of a recurrent layer: [0, hi), stride 0. */
typedef struct kvs__snap_block {
    kvs__hblock b;
    size_t part;
    uint64_t at; /* in the part */
} kvs__snap_block;

typedef struct kvs__snap_layer {
    uint32_t first, n; /* of the blocks */
    bool dense;
} kvs__snap_layer;

typedef struct kvs__snap {
    kvs_ctx *ctx;
    uint64_t len;
    uint32_t n_layers;
    kvs__snap_layer *layer;
    kvs__snap_block *blk; /* by layer, ascending */
    uint32_t n_blk;
} kvs__snap;

typedef struct kvs__snap_run {
    uint32_t layer;
    uint32_t form;
    int64_t lo, hi;
    uint32_t part;
} kvs__snap_run;
/* One run of a table of n bytes, checked by itself. KVS_E_FORMAT says what is wrong; never more than
 * the table is read. */
kvs_status kvs__snap_header(const unsigned char *p, size_t n, uint64_t *len, uint32_t *n_layers,
                            uint32_t *n_runs, kvs_err *err);
kvs_status kvs__snap_run_at(const unsigned char *p, uint32_t i, uint64_t len, uint32_t n_layers,
                            kvs__snap_run *out, kvs_err *err);

#endif
