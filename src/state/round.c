/* SPDX-License-Identifier: MIT */
/* round.c: rounds on layers of keys and values. Tokens are taken back by lowering the length: a
 * ring's slack (max_block) holds what they displaced, a grow layer displaces nothing. The dense copy
 * of a delayed conversion is the one thing that an append drops for good; layer.c keeps it while
 * round.dense says so. */
#include "state/round.h"

static bool kv_can_begin(const kvs__layer *l, uint64_t most, bool drafts)
{
    (void)drafts;
    uint64_t block = l->spec.max_block ? l->spec.max_block : 1;
    return !kvs__store_slides(&l->main) || most <= block;
}

static kvs_status kv_begin(kvs_ctx *ctx, kvs__layer *l, kvs_err *err)
{
    bool delayed = l->spec.dense_until > 0;
    kvs__layer_mark(l);
    l->round.whole = delayed && l->main.len == 0;
    l->round.dense = l->round.drafts && (l->round.whole || l->early.len > 0);
    return kvs__layer_reserve(ctx, l, l->round.most, err);
}

static void go_back(kvs_ctx *ctx, kvs__layer *l, int64_t to)
{
    if (l->round.whole && to <= (int64_t)l->spec.dense_until) {
        kvs__store_drop(ctx, &l->main);
        kvs__store_rewind(&l->early, to);
        return;
    }
    kvs__store_rewind(&l->main, to);
}

static kvs_status kv_settle(kvs_ctx *ctx, kvs__layer *l, uint64_t kept, kvs_err *err)
{
    (void)err;
    go_back(ctx, l, l->round.base + (int64_t)kept);
    if (l->round.dense && !l->round.whole && kept > 0) {
        kvs__store_drop(ctx, &l->early); /* as the append of what is kept would have */
    }
    return KVS_OK;
}

static void kv_abort(kvs_ctx *ctx, kvs__layer *l)
{
    go_back(ctx, l, l->round.base);
}

/* Nothing was appended yet: what begin took goes too. */
static void kv_undo(kvs_ctx *ctx, kvs__layer *l)
{
    kv_abort(ctx, l);
    kvs__layer_undo(ctx, l);
}

static size_t kv_retained(const kvs__layer *l)
{
    return l->round.held ? kvs__store_bytes(&l->early) : 0;
}

/* -- recurrent layers: tokens are taken back from a snapshot, as deep as undo reaches. */

static bool rec_can_begin(const kvs__layer *l, uint64_t most, bool drafts)
{
    (void)drafts; /* an abort takes all of them back, drafts or not */
    return most <= l->rec->spec.undo_tokens;
}

static kvs_status rec_begin(kvs_ctx *ctx, kvs__layer *l, kvs_err *err)
{
    kvs_status st = kvs__rec_reserve(ctx, l->rec, l->round.most, err);
    return st == KVS_OK ? kvs__rec_begin(l->rec, l->round.most, err) : st;
}

static void rec_undo(kvs_ctx *ctx, kvs__layer *l)
{
    (void)ctx;
    (void)kvs__rec_commit(l->rec, NULL);
}

static kvs_status rec_settle(kvs_ctx *ctx, kvs__layer *l, uint64_t kept, kvs_err *err)
{
    if (l->rec->len == l->round.base) {
        return kvs__rec_commit(l->rec, err);
    }
    return kvs__rec_rollback(ctx, l->rec, kept, err);
}

static void rec_abort(kvs_ctx *ctx, kvs__layer *l)
{
    (void)rec_settle(ctx, l, 0, NULL);
}

static size_t rec_retained(const kvs__layer *l)
{
    (void)l; /* undo is there with or without rounds */
    return 0;
}

const kvs__round_ops *kvs__round_ops_of(kvs_layer_kind kind)
{
    static const kvs__round_ops rec = {rec_can_begin, rec_begin, rec_undo,
                                       rec_settle,    rec_abort, rec_retained};
    if (kind == KVS_LAYER_RECURRENT) {
        return &rec;
    }
    static const kvs__round_ops kv = {kv_can_begin, kv_begin, kv_undo,
                                      kv_settle,    kv_abort, kv_retained};
    return kind == KVS_LAYER_ATTENTION || kind == KVS_LAYER_LATENT ? &kv : NULL;
}
