/* SPDX-License-Identifier: MIT */
/* prefix_cache.c: life of a prefix cache: its pool, index and store (kvstate/prefix_cache.h). What
 * sessions do with it is share.c. The index serves caches of one plan, so it is made from an empty
 * cache of that. Memory for one snapshot is taken here, and counts: publishing takes no other. */
#include "kvstate/prefix_cache.h"

#include <string.h>

#include "engine/identity.h"
#include "engine/persist.h"
#include "engine/share.h"
#include "engine/weights.h"
#include "kvstate/recurrent.h"
#include "state/pages_lock.h"
#include "store/history.h"

static kvs_status check_opts(const kvs_model *model, const kvs_prefix_cache_opts *o, kvs_err *err)
{
    if (!o->plan) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "a prefix cache needs the sessions' plan");
    }
    if (o->draft_plan && !o->draft_model) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "draft_plan without draft_model");
    }
    kvs_status st = kvs__net_check_plan(&model->net, o->plan, err);
    return st == KVS_OK && o->draft_plan
               ? kvs__net_check_plan(&o->draft_model->net, o->draft_plan, err)
               : st;
}

kvs_status kvs__draft_plan(kvs_ctx *ctx, const kvs_model *draft, uint32_t n_ctx, uint32_t kv_block,
                           kvs_plan **out, kvs_err *err)
{
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.n_ctx = n_ctx;
    o.kv_block = kv_block;
    kvs_status st = kvs_plan_new(ctx, draft, &o, out, err);
    if (st == KVS_E_NOMEM || st == KVS_OK || kv_block == 0) {
        return st;
    }
    o.kv_block = 0; /* no layer of it can be paged */
    return kvs_plan_new(ctx, draft, &o, out, err);
}

/* The index keeps to what a snapshot's memory leaves. */
static size_t index_limit(const kvs_prefix_cache *c, size_t max_bytes)
{
    return max_bytes > c->blob_bytes ? max_bytes - c->blob_bytes : (max_bytes > 0 ? 1 : 0);
}

/* An empty cache of a plan in the pool; refuses what can't be saved, where there is to be a store. */
static kvs_status empty_cache(kvs_prefix_cache *c, const kvs_plan *plan, bool saved,
                              kvs_cache **out, kvs_err *err)
{
    kvs_cache_opts co = KVS_CACHE_OPTS_INIT;
    co.n_layers = kvs_plan_n_layers(plan);
    co.layers = kvs_plan_layer(plan, 0);
    co.pages = c->pages;
    kvs_status st = kvs_cache_new(c->ctx, &co, out, err);
    kvs__history *probe = NULL;
    st = st == KVS_OK && saved ? kvs__history_new(c->ctx, *out, 0, &probe, err) : st;
    kvs__history_free(probe);
    return st;
}

/* Of the caches that the index is of; room for the larger snapshot. */
static kvs_status make_blob(kvs_prefix_cache *c, kvs_cache *const like[KVS__PARTS], kvs_err *err)
{
    for (uint32_t i = 0; i < KVS__PARTS; i++) {
        size_t bytes = like[i] ? kvs_recurrent_snapshot_bytes(like[i]) : 0;
        c->snapshot_bytes[i] = bytes;
        c->blob_bytes = bytes > c->blob_bytes ? bytes : c->blob_bytes;
    }
    if (c->blob_bytes > 0) {
        c->blob = kvs__calloc(c->ctx, 1, c->blob_bytes);
    }
    return c->blob || c->blob_bytes == 0 ? KVS_OK : kvs__nomem(err, "engine", c->blob_bytes);
}

/* The draft model's part: a plan in blocks of the pool. */
static kvs_status make_draft(kvs_prefix_cache *c, const kvs_prefix_cache_opts *o, kvs_cache **like,
                             kvs_err *err)
{
    kvs_plan *own = NULL;
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    kvs_status st = KVS_OK;
    if (!o->draft_plan) {
        st = kvs__draft_plan(c->ctx, o->draft_model, kvs_plan_n_ctx(o->plan), c->block, &own, err);
    }
    const kvs_plan *plan = own ? own : o->draft_plan;
    if (st == KVS_OK && kvs_plan_kv_block(plan) > 0 && kvs_plan_kv_block(plan) != c->block) {
        st = kvs__fail(err, KVS_E_INVAL, "engine",
                       "the draft plan has blocks of %u tokens, the plan of %u",
                       kvs_plan_kv_block(plan), c->block);
    }
    st = st == KVS_OK ? empty_cache(c, plan, o->dir != NULL, like, err) : st;
    if (st == KVS_OK) {
        c->draft_model = o->draft_model;
        kvs_plan_digest(plan, c->draft_plan);
        st = kvs__identity(c->ctx, &o->draft_model->net, *like, kvs_plan_n_ctx(plan), &d,
                           c->draft_identity, err);
    }
    kvs_plan_free(own);
    return st;
}

static kvs_status make_index(kvs_prefix_cache *c, const kvs_prefix_cache_opts *o, kvs_err *err)
{
    kvs_prefix_opts io = KVS_PREFIX_OPTS_INIT;
    kvs_cache *like[KVS__PARTS] = {NULL, NULL};
    kvs_status st = empty_cache(c, o->plan, o->dir != NULL, &like[KVS__PART_MAIN], err);
    if (st == KVS_OK && o->draft_model) {
        st = make_draft(c, o, &like[KVS__PART_DRAFT], err);
    }
    st = st == KVS_OK ? make_blob(c, like, err) : st;
    io.policy = o->policy;
    io.score = o->score;
    io.user = o->score_user;
    io.max_bytes = index_limit(c, o->max_bytes);
    io.window_stride = o->window_stride;
    io.session_ms = o->session_ms;
    if (st == KVS_OK) {
        st = kvs__prefix_new_pair(c->ctx, like[KVS__PART_MAIN], like[KVS__PART_DRAFT], &io,
                                  &c->index, err);
    }
    kvs_cache_free(like[KVS__PART_DRAFT]);
    kvs_cache_free(like[KVS__PART_MAIN]);
    return st;
}

static kvs_status build(kvs_prefix_cache *c, const kvs_prefix_cache_opts *o, kvs_err *err)
{
    kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
    po.block_tokens = kvs_plan_kv_block(o->plan);
    if (po.block_tokens == 0 && o->draft_plan) {
        po.block_tokens = kvs_plan_kv_block(o->draft_plan);
    }
    po.max_bytes = o->pool_bytes;
    kvs_plan_digest(o->plan, c->plan);
    c->snapshot_stride = o->snapshot_stride;
    kvs_status st = kvs_pages_new(c->ctx, &po, &c->pages, err);
    if (st == KVS_OK) {
        kvs_pages_stats pool = KVS_PAGES_STATS_INIT;
        (void)kvs_pages_get_stats(c->pages, &pool);
        /* no layer is paged: any number will do */
        c->block = po.block_tokens || o->draft_model ? pool.block_tokens : 1;
        st = make_index(c, o, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    st = o->dir ? kvs__persist_open(c->ctx, o->dir, o->dir_bytes, &c->store, err) : st;
    return st == KVS_OK && o->dir ? kvs__weights_digest(c->model, o->dir, c->weights, err) : st;
}

kvs_status kvs_prefix_cache_new(kvs_ctx *ctx, const kvs_model *model,
                                const kvs_prefix_cache_opts *opts, kvs_prefix_cache **out,
                                kvs_err *err)
{
    if (!ctx || !model || !opts || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, model, opts or out is NULL");
    }
    *out = NULL;
    kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
    kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_prefix_cache_opts", err);
    st = st == KVS_OK ? check_opts(model, &o, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs_prefix_cache *c = kvs__calloc(ctx, 1, sizeof *c);
    if (!c) {
        return kvs__nomem(err, "engine", sizeof *c);
    }
    c->ctx = ctx;
    c->model = model;
    st = build(c, &o, err);
    if (st != KVS_OK) {
        kvs_prefix_cache_free(c);
        return st;
    }
    *out = c;
    return KVS_OK;
}

void kvs_prefix_cache_free(kvs_prefix_cache *c)
{
    if (!c) {
        return;
    }
    KVS_ASSERT(c->n_sessions == 0);
    kvs_store_close(c->store);
    kvs_prefix_free(c->index);
    kvs_pages_free(c->pages);
    kvs__free(c->ctx, c->blob, c->blob_bytes);
    kvs__free(c->ctx, c, sizeof *c);
}

void kvs_prefix_cache_clear(kvs_prefix_cache *c)
{
    if (c) {
        kvs__pages_lock(c->pages);
        kvs_prefix_clear(c->index);
        kvs__pages_unlock(c->pages);
    }
}

kvs_status kvs_prefix_cache_limit(kvs_prefix_cache *c, size_t max_bytes, kvs_err *err)
{
    if (!c) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "cache is NULL");
    }
    if (max_bytes > 0 && max_bytes <= c->blob_bytes) {
        return kvs__fail(err, KVS_E_LIMIT, "engine",
                         "max_bytes %zu does not hold a snapshot of %zu", max_bytes, c->blob_bytes);
    }
    kvs__pages_lock(c->pages);
    kvs_status st = kvs_prefix_limit(c->index, index_limit(c, max_bytes));
    kvs__pages_unlock(c->pages);
    return st;
}

kvs_status kvs_prefix_cache_get_stats(const kvs_prefix_cache *c, kvs_prefix_stats *out)
{
    if (!c || !out) {
        return KVS_E_INVAL;
    }
    kvs_prefix_stats s = KVS_PREFIX_STATS_INIT;
    kvs__pages_lock(c->pages);
    (void)kvs_prefix_get_stats(c->index, &s);
    kvs__pages_unlock(c->pages);
    s.bytes += c->blob_bytes;
    s.peak_bytes += c->blob_bytes;
    s.max_bytes += s.max_bytes ? c->blob_bytes : 0;
    return kvs__stats_write(out, &s, sizeof s);
}

kvs_status kvs_prefix_cache_get_store_stats(const kvs_prefix_cache *c, kvs_store_stats *out)
{
    if (!c || !out) {
        return KVS_E_INVAL;
    }
    return c->store ? kvs_store_get_stats(c->store, out) : KVS_NO;
}

const kvs_pages *kvs_prefix_cache_pages(const kvs_prefix_cache *c)
{
    return c ? c->pages : NULL;
}
