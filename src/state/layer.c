/* SPDX-License-Identifier: MIT */
/* layer.c: append, rewind and read of one layer, with the delayed conversion of layer.h. */
#include "state/layer.h"

#include <string.h>

static bool delayed(const kvs__layer *l)
{
    return l->spec.dense_until > 0;
}

static int64_t dense_until(const kvs__layer *l)
{
    return (int64_t)l->spec.dense_until;
}

const kvs__store *kvs__layer_store(const kvs__layer *l)
{
    return delayed(l) && l->main.len == 0 ? &l->early : &l->main;
}

int64_t kvs__layer_len(const kvs__layer *l)
{
    return l->rec ? l->rec->len : kvs__layer_store(l)->len;
}

bool kvs__layer_scratch(const kvs__layer *l, uint32_t n_threads, size_t *bytes)
{
    size_t most = 0;
    if (l->rec) {
        *bytes = kvs__rec_scratch_bytes(&l->rec->spec, n_threads);
        return true;
    }
    for (int i = 0; i < (delayed(l) ? 2 : 1); i++) {
        const kvs__fmt *fmt = i ? &l->early.fmt : &l->main.fmt;
        size_t a = 0;
        size_t w = 0;
        if (!kvs__attend_scratch_bytes(fmt, n_threads, &a) ||
            !kvs__write_scratch_bytes(fmt, n_threads, &w)) {
            return false;
        }
        most = a > most ? a : most;
        most = w > most ? w : most;
    }
    *bytes = most;
    return true;
}

/* Parts of an append of n tokens: `dense` go to early, `rest` to main alone. */
typedef struct append_plan {
    uint64_t dense;
    uint64_t rest;
    bool cross; /* main is filled from early before the rest is written */
} append_plan;

static append_plan plan_append(const kvs__layer *l, uint64_t n)
{
    append_plan p = {0, n, false};
    int64_t len = kvs__layer_len(l);
    if (!delayed(l) || l->main.len > 0) {
        return p;
    }
    int64_t room = dense_until(l) - len;
    p.dense = room < (int64_t)n ? (uint64_t)room : n;
    p.rest = n - p.dense;
    p.cross = p.rest > 0;
    return p;
}

void kvs__layer_mark(kvs__layer *l)
{
    const kvs__store *s[2] = {&l->main, &l->early};
    for (int i = 0; i < 2; i++) {
        l->mark[i].n_segs = s[i]->n_segs;
        l->mark[i].table_cap = s[i]->table_cap;
    }
}

void kvs__layer_undo(kvs_ctx *ctx, kvs__layer *l)
{
    kvs__store *s[2] = {&l->main, &l->early};
    for (int i = 0; i < 2; i++) {
        kvs__store_trim(ctx, s[i], l->mark[i].n_segs, l->mark[i].table_cap);
    }
}

kvs_status kvs__layer_room(const kvs__layer *l, uint64_t n, kvs_err *err)
{
    int64_t len = kvs__layer_len(l);
    if (!kvs__layer_open(l) || (uint64_t)(len - l->round.base) + n <= l->round.most) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_LIMIT, "state",
                     "%llu tokens at position %lld: the round at %lld takes %llu",
                     (unsigned long long)n, (long long)len, (long long)l->round.base,
                     (unsigned long long)l->round.most);
}

void kvs__layer_drop_early(kvs_ctx *ctx, kvs__layer *l)
{
    if (kvs__layer_open(l) && l->round.dense) {
        l->round.held = true;
    } else {
        kvs__store_drop(ctx, &l->early);
    }
}

kvs_status kvs__layer_reserve_all(kvs_ctx *ctx, kvs__layer *l, uint64_t n, kvs_err *err)
{
    int64_t len = kvs__layer_len(l);
    if (n > (uint64_t)(INT64_MAX / 4) || len > INT64_MAX / 4) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                         (unsigned long long)n);
    }
    kvs_status st = kvs__layer_room(l, n, err);
    if (st != KVS_OK) {
        return st;
    }
    append_plan p = plan_append(l, n);
    uint32_t had = l->early.n_segs;
    uint64_t table = l->early.table_cap;
    if (p.dense) {
        st = kvs__store_reserve(ctx, &l->early, len, p.dense, err);
    }
    if (st == KVS_OK && p.cross) {
        st = kvs__store_reserve_like(ctx, &l->main, &l->early, n, err);
    } else if (st == KVS_OK && p.rest) {
        st = kvs__store_reserve(ctx, &l->main, len, p.rest, err);
    }
    if (st != KVS_OK) {
        kvs__store_trim(ctx, &l->early, had, table);
    }
    return st;
}

kvs_status kvs__layer_reserve(kvs_ctx *ctx, kvs__layer *l, uint64_t n, kvs_err *err)
{
    if (l->rec) {
        kvs_status st = kvs__layer_room(l, n, err);
        return st == KVS_OK ? kvs__rec_reserve(ctx, l->rec, n, err) : st;
    }
    uint64_t most = l->spec.max_block ? l->spec.max_block : 1;
    if (kvs__store_slides(&l->main) && n > most) {
        return kvs__fail(
            err, KVS_E_LIMIT, "state", "a block of %llu tokens exceeds the %s's max_block %llu",
            (unsigned long long)n, l->spec.layout == KVS_LAYOUT_RING ? "ring" : "window",
            (unsigned long long)most);
    }
    return kvs__layer_reserve_all(ctx, l, n, err);
}

kvs_status kvs__kv_check(const kvs_kv *kv, kvs_layer_kind kind, const char *what, kvs_err *err)
{
    if (!kv->k || (!kv->v && kind != KVS_LAYER_LATENT)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s.%s is NULL", what, kv->k ? "v" : "k");
    }
    if (kv->n_tokens == 0 || kv->n_tokens > INT32_MAX) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s.n_tokens is %u", what, kv->n_tokens);
    }
    if (kv->dtype != KVS_F32 && kv->dtype != KVS_F16 && kv->dtype != KVS_BF16) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s.dtype %d is no kvs_dtype", what,
                         (int)kv->dtype);
    }
    return KVS_OK;
}

static void write_tokens(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, const kvs_kv *kv,
                         int64_t kv_pos)
{
    if (n > 0) {
        kvs__store_advance(s, n);
        kvs__store_write(ctx, s, NULL, at, n, kv, kv_pos);
    }
}

kvs_status kvs__layer_append(kvs_ctx *ctx, kvs__layer *l, const kvs_kv *kv, kvs_err *err)
{
    kvs_status st = kvs__layer_reserve(ctx, l, kv->n_tokens, err);
    if (st != KVS_OK) {
        return st;
    }
    int64_t len = kvs__layer_len(l);
    append_plan p = plan_append(l, kv->n_tokens);
    if (delayed(l) && l->main.len > 0) {
        kvs__layer_drop_early(ctx, l);
    }
    write_tokens(ctx, &l->early, len, p.dense, kv, len);
    if (p.cross) {
        kvs__store_transcode(ctx, &l->main, &l->early);
    }
    write_tokens(ctx, &l->main, len + (int64_t)p.dense, p.rest, kv, len);
    return KVS_OK;
}

kvs_status kvs__layer_committed(const kvs__layer *l, int64_t end, const char *what, kvs_err *err)
{
    if (!kvs__layer_open(l) || end <= l->round.base) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_STATE, "state",
                     "%s of position %lld: a round is open, positions from %lld on are not "
                     "committed",
                     what, (long long)end - 1, (long long)l->round.base);
}

void kvs__layer_drop(kvs_ctx *ctx, kvs__layer *l)
{
    kvs__rec_free(ctx, l->rec);
    l->rec = NULL;
    kvs__store_drop(ctx, &l->main);
    kvs__store_drop(ctx, &l->early);
}

kvs_status kvs__layer_fork(kvs_ctx *ctx, kvs__layer *dst, kvs__layer *src, int64_t len,
                           kvs_err *err)
{
    *dst = *src;
    dst->round.base = -1;
    if (src->rec) {
        dst->rec = NULL;
        kvs_status made = kvs__rec_fork(ctx, src->rec, len, &dst->rec, err);
        dst->spec.recurrent = dst->rec ? &dst->rec->spec : NULL;
        return made;
    }
    len = src->spec.kind == KVS_LAYER_BORROW ? 0 : len;
    /* as a rewind: below the switch only the dense copy, at it what there is */
    bool converted = !delayed(src) || (src->main.len > 0 && len >= dense_until(src));
    int64_t dense = src->early.len < len ? src->early.len : len;
    kvs_status st = kvs__store_fork(ctx, &dst->main, &src->main, converted ? len : 0, err);
    if (st != KVS_OK) {
        return st;
    }
    if (delayed(src)) {
        st = kvs__store_fork(ctx, &dst->early, &src->early, dense, err);
    }
    if (st != KVS_OK) {
        kvs__store_drop(ctx, &dst->main);
    }
    return st;
}

bool kvs__layer_can_rewind(const kvs__layer *l, uint64_t n)
{
    if (l->rec) {
        return kvs__rec_can_rewind(l->rec, n);
    }
    int64_t len = kvs__layer_len(l);
    if (n > (uint64_t)len) {
        return false;
    }
    int64_t to = len - (int64_t)n;
    if (!delayed(l) || to > dense_until(l) || (to == dense_until(l) && l->main.len > 0)) {
        return kvs__store_can_rewind(kvs__layer_store(l), to);
    }
    /* Back into the dense part: only while it is there. */
    return l->early.len >= to && kvs__store_can_rewind(&l->early, to);
}

void kvs__layer_rewind(kvs_ctx *ctx, kvs__layer *l, uint64_t n)
{
    if (l->rec) {
        kvs__rec_rewind(ctx, l->rec, n);
        return;
    }
    int64_t to = kvs__layer_len(l) - (int64_t)n;
    if (delayed(l) && to < dense_until(l)) {
        kvs__store_drop(ctx, &l->main); /* it is made anew when the length passes dense_until */
        kvs__store_rewind(&l->early, to);
        return;
    }
    if (l->main.len > 0) {
        kvs__store_rewind(&l->main, to);
        return;
    }
    kvs__store_rewind(&l->early, to);
}

/* Queries of desc that read early: those below dense_until. */
static uint32_t dense_queries(const kvs__layer *l, const kvs_attend *d)
{
    if (!delayed(l)) {
        return 0;
    }
    int64_t n = dense_until(l) - d->q_pos;
    if (n <= 0) {
        return 0;
    }
    return n < (int64_t)d->n_queries ? (uint32_t)n : d->n_queries;
}

static kvs_status check_cover(const kvs__store *s, int64_t first, int64_t end, kvs_err *err)
{
    if (kvs__attend_covered(s, first, end)) {
        return KVS_OK;
    }
    return kvs__fail(err, KVS_E_RANGE, "state",
                     "the window of the query at position %lld reaches below %lld, the oldest "
                     "position stored",
                     (long long)first, (long long)s->lo);
}

/* The block lies in a segment of its own for the time of the call; the layer is only read. */
static kvs_status attend_block(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *d, kvs_err *err)
{
    kvs_kv kv = KVS_KV_INIT;
    kvs_status st = kvs__opts_read(&kv, sizeof kv, d->block, "kvs_kv", err);
    st = st == KVS_OK ? kvs__kv_check(&kv, l->spec.kind, "block", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (kv.n_tokens != d->n_queries) {
        return kvs__fail(err, KVS_E_INVAL, "state", "a block of %u tokens with %u queries",
                         kv.n_tokens, d->n_queries);
    }
    const kvs__store *s = kvs__layer_store(l);
    st = check_cover(s, s->len, s->len, err);
    kvs__store tail;
    st = st == KVS_OK ? kvs__store_tail(ctx, s, kv.n_tokens, &tail, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs__store_write(ctx, &tail, s, tail.lo, kv.n_tokens, &kv, tail.lo);
    kvs_attend at = *d;
    at.q_pos = tail.lo;
    kvs__attend_run(ctx, s, &tail, &at, 0, d->n_queries);
    kvs__store_drop(ctx, &tail);
    return KVS_OK;
}

static void run_part(kvs_ctx *ctx, const kvs__store *s, const kvs_attend *d, uint32_t begin,
                     uint32_t end, void *scratch)
{
    if (begin == end) {
        return;
    }
    if (scratch) {
        kvs__attend_run_here(ctx, s, d, begin, end, scratch);
    } else {
        kvs__attend_run(ctx, s, NULL, d, begin, end);
    }
}

/* scratch NULL: shared out over the threads. */
static kvs_status attend(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc, void *scratch,
                         kvs_err *err)
{
    kvs_attend d = *desc;
    int64_t len = kvs__layer_len(l);
    kvs_status st = kvs__attend_check(&l->main.fmt, &d, err);
    if (st != KVS_OK) {
        return st;
    }
    if (len == 0) {
        return kvs__fail(err, KVS_E_STATE, "state", "the layer holds no token");
    }
    if (d.mode == KVS_READ_BLOCK) {
        return attend_block(ctx, l, &d, err);
    }
    if (d.q_pos == -1) {
        d.q_pos = len - (int64_t)d.n_queries;
    }
    if (d.q_pos < 0 || d.q_pos >= len || (int64_t)d.n_queries > len - d.q_pos) {
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "%u queries at position %lld do not fit the %lld tokens held", d.n_queries,
                         (long long)d.q_pos, (long long)len);
    }
    uint32_t dense = dense_queries(l, &d);
    if (dense > 0 && dense < d.n_queries && d.mode == KVS_READ_BIDIRECTIONAL) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                         "a bidirectional read of positions %lld to %lld spans dense_until %u",
                         (long long)d.q_pos, (long long)d.q_pos + d.n_queries, l->spec.dense_until);
    }
    if (dense > 0) {
        if (l->early.len == 0) {
            return kvs__fail(err, KVS_E_STATE, "state",
                             "the query at position %lld is read dense, and the dense copy below "
                             "%u was dropped",
                             (long long)d.q_pos, l->spec.dense_until);
        }
        st = check_cover(&l->early, d.q_pos, d.q_pos + (int64_t)dense, err);
    }
    if (st == KVS_OK && dense < d.n_queries) {
        st = check_cover(&l->main, d.q_pos + (int64_t)dense, d.q_pos + (int64_t)d.n_queries, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    run_part(ctx, &l->early, &d, 0, dense, scratch);
    run_part(ctx, &l->main, &d, dense, d.n_queries, scratch);
    return KVS_OK;
}

kvs_status kvs__layer_attend(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc,
                             kvs_err *err)
{
    return attend(ctx, l, desc, NULL, err);
}

kvs_status kvs__layer_attend_here(kvs_ctx *ctx, const kvs__layer *l, const kvs_attend *desc,
                                  void *scratch, kvs_err *err)
{
    KVS_ASSERT(desc->mode == KVS_READ_CAUSAL);
    return attend(ctx, l, desc, scratch, err);
}
