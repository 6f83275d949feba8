/* SPDX-License-Identifier: MIT */
/* round.h: what a layer does in a round of drafts, one table per kind of layer.
 *
 * txn.c drives all layers of all rows through it:
 *   can_begin*  begin*  (undo* if a later layer's begin fails | appends  settle* | abort*)
 * A kind whose rewind is not a matter of indices keeps what it needs in begin and append. */
#ifndef KVS_STATE_ROUND_H
#define KVS_STATE_ROUND_H

#include "state/layer.h"

typedef struct kvs__round_ops {
    /* Could `most` tokens be appended, and with `drafts` any number of them be taken back? */
    bool (*can_begin)(const kvs__layer *l, uint64_t most, bool drafts);
    /* l->round is filled. May allocate; a failure leaves the layer as it was. */
    kvs_status (*begin)(kvs_ctx *ctx, kvs__layer *l, kvs_err *err);
    /* Gives back what begin took; cannot fail. */
    void (*undo)(kvs_ctx *ctx, kvs__layer *l);
    /* The first `kept` of the tokens appended stay. l->round is closed by the caller. A failure
     * breaks the set. */
    kvs_status (*settle)(kvs_ctx *ctx, kvs__layer *l, uint64_t kept, kvs_err *err);
    /* None stays. Cannot fail. */
    void (*abort)(kvs_ctx *ctx, kvs__layer *l);
    /* Bytes held for the round alone. */
    size_t (*retained)(const kvs__layer *l);
} kvs__round_ops;

/* NULL for a kind that keeps nothing (borrow). */
const kvs__round_ops *kvs__round_ops_of(kvs_layer_kind kind);

#endif
