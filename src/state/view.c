/* SPDX-License-Identifier: MIT */
/* view.c: pinned reads. A view is an alias of a layer's stores that holds a reference to each
 * segment; the cache copies a segment before it writes over a pinned token (store.c), and a block of
 * a pool before it writes to it at all (paged.c). */
#include "state/layer.h"

struct kvs_view {
    kvs_ctx *ctx;
    kvs__layer layer;
};

kvs_status kvs_view_new(kvs_cache *c, uint32_t layer, kvs_view **out, kvs_err *err)
{
    if (!out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "out is NULL");
    }
    *out = NULL;
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_kv_layer(c, layer, &l, err);
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__layer_len(l) == 0) {
        return kvs__fail(err, KVS_E_STATE, "state", "layer %u holds no token", layer);
    }
    st = kvs__layer_committed(l, kvs__layer_len(l), "view", err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_view *v = kvs__calloc(c->ctx, 1, sizeof *v);
    if (!v) {
        return kvs__nomem(err, "state", sizeof *v);
    }
    v->ctx = c->ctx;
    v->layer = *l;
    st = kvs__store_pin(c->ctx, &v->layer.main, &l->main, err);
    if (st != KVS_OK) {
        kvs__free(c->ctx, v, sizeof *v);
        return st;
    }
    st = kvs__store_pin(c->ctx, &v->layer.early, &l->early, err);
    if (st != KVS_OK) {
        kvs_view_free(v);
        return st;
    }
    *out = v;
    return KVS_OK;
}

void kvs_view_free(kvs_view *v)
{
    if (!v) {
        return;
    }
    kvs__store_drop(v->ctx, &v->layer.main);
    kvs__store_drop(v->ctx, &v->layer.early);
    kvs__free(v->ctx, v, sizeof *v);
}

kvs_status kvs_view_get_info(const kvs_view *v, kvs_view_info *out)
{
    if (!v || !out) {
        return KVS_E_INVAL;
    }
    const kvs__store *s = kvs__layer_store(&v->layer);
    kvs_view_info i = KVS_VIEW_INFO_INIT;
    i.offset = s->len;
    i.end = s->len;
    int64_t window = (int64_t)s->window;
    i.start = kvs__store_slides(s) && s->len > window ? s->len - window : 0;
    i.start = i.start > s->lo ? i.start : s->lo;
    i.n_sinks = (uint32_t)((int64_t)s->sinks < i.start ? (int64_t)s->sinks : i.start);
    i.n_sinks = kvs__store_slides(s) ? i.n_sinks : 0;
    i.width = i.n_sinks + (uint64_t)(i.end - i.start);
    i.dtype = s->fmt.side[KVS__K].shape.dtype;
    return kvs__stats_write(out, &i, sizeof i);
}

kvs_status kvs_view_attend(kvs_view *v, const kvs_attend *desc, kvs_err *err)
{
    if (!v || !desc) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", v ? "desc" : "view");
    }
    kvs_attend d = KVS_ATTEND_INIT;
    kvs_status st = kvs__opts_read(&d, sizeof d, desc, "kvs_attend", err);
    if (st != KVS_OK) {
        return st;
    }
    if (d.mode != KVS_READ_CAUSAL) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "a view has no read of mode %d",
                         (int)d.mode);
    }
    return kvs__layer_attend(v->ctx, &v->layer, &d, err);
}
