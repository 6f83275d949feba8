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
    return kvs__net_check_plan(&model->net, o->plan, err);
}

/* The index keeps to what a snapshot's memory leaves. */
static size_t index_limit(const kvs_prefix_cache *c, size_t max_bytes)
{
    return max_bytes > c->blob_bytes ? max_bytes - c->blob_bytes : (max_bytes > 0 ? 1 : 0);
}

static kvs_status make_index(kvs_prefix_cache *c, const kvs_prefix_cache_opts *o, kvs_err *err)
{
    kvs_cache_opts co = KVS_CACHE_OPTS_INIT;
    kvs_prefix_opts io = KVS_PREFIX_OPTS_INIT;
    kvs_cache *like = NULL;
    co.n_layers = kvs_plan_n_layers(o->plan);
    co.layers = kvs_plan_layer(o->plan, 0);
    co.pages = c->pages;
    kvs_status st = kvs_cache_new(c->ctx, &co, &like, err);
    c->blob_bytes = kvs_recurrent_snapshot_bytes(like);
    if (c->blob_bytes > 0) {
        c->blob = kvs__calloc(c->ctx, 1, c->blob_bytes);
        st = c->blob ? st : kvs__nomem(err, "engine", c->blob_bytes);
    }
    io.policy = o->policy;
    io.score = o->score;
    io.user = o->score_user;
    io.max_bytes = index_limit(c, o->max_bytes);
    io.window_stride = o->window_stride;
    io.session_ms = o->session_ms;
    st = st == KVS_OK ? kvs_prefix_new(c->ctx, like, &io, &c->index, err) : st;
    kvs__history *probe = NULL; /* refuses what can't be saved */
    st = st == KVS_OK && o->dir ? kvs__history_new(c->ctx, like, 0, &probe, err) : st;
    kvs__history_free(probe);
    kvs_cache_free(like);
    return st;
}

static kvs_status build(kvs_prefix_cache *c, const kvs_prefix_cache_opts *o, kvs_err *err)
{
    kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
    po.block_tokens = kvs_plan_kv_block(o->plan);
    po.max_bytes = o->pool_bytes;
    kvs_plan_digest(o->plan, c->plan);
    c->snapshot_stride = o->snapshot_stride;
    kvs_status st = kvs_pages_new(c->ctx, &po, &c->pages, err);
    st = st == KVS_OK ? make_index(c, o, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    c->block = po.block_tokens ? po.block_tokens : 1; /* no layer is paged: any number will do */
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
