/* SPDX-License-Identifier: MIT */
/* step.c: the two-phase decode step: plan = reserve and tell, commit = import of one row. */
#include "kvstate/step.h"

#include <stdio.h>

#include "state/layer.h"

static kvs_status find(const kvs_cache *c, uint32_t layer, kvs__layer **out, kvs_err *err)
{
    kvs_status st = kvs__cache_kv_layer(c, layer, out, err);
    if (st != KVS_OK) {
        return st;
    }
    int64_t len = kvs__layer_len(*out);
    if (len == 0) {
        return kvs__fail(err, KVS_E_STATE, "state", "layer %u holds no token", layer);
    }
    if ((*out)->spec.dense_until > 0 && len == (int64_t)(*out)->spec.dense_until &&
        (*out)->main.len == 0) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "layer %u: the step to position %lld converts it; append instead", layer,
                         (long long)len);
    }
    const kvs__store *s = kvs__layer_store(*out);
    if (!kvs__attend_covered(s, len, len)) { /* after an import past a gap */
        return kvs__fail(err, KVS_E_RANGE, "state",
                         "layer %u: the window of a step to position %lld reaches below %lld, the "
                         "oldest position stored",
                         layer, (long long)len, (long long)s->lo);
    }
    return KVS_OK;
}

static kvs_fetch fetch_of(const kvs__store *s)
{
    bool full = s->layout == KVS_LAYOUT_RING && s->len + 1 >= (int64_t)s->window;
    return full ? KVS_FETCH_RING : KVS_FETCH_CONCAT;
}

kvs_status kvs_step_phase(const kvs_cache *c, uint32_t layer, kvs_fetch *out, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = find(c, layer, &l, err);
    if (st == KVS_OK && !out) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "out is NULL");
    }
    if (st == KVS_OK) {
        *out = fetch_of(kvs__layer_store(l));
    }
    return st;
}

static uint32_t count_planes(const kvs__store *s)
{
    uint32_t n = 0;
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int p = 0; p < KVS__PLANES; p++) {
            n += s->fmt.side[side].n_units[p] ? 1 : 0;
        }
    }
    return n;
}

static void describe(const kvs__store *s, kvs_step *out)
{
    const kvs_codec *k = &s->fmt.side[KVS__K].codec;
    int64_t window = (int64_t)s->window;
    out->fetch = fetch_of(s);
    out->position = s->len;
    out->oldest = window && s->len - window + 1 > 0 ? s->len - window + 1 : 0;
    int64_t sinks = (int64_t)s->sinks < out->oldest ? (int64_t)s->sinks : out->oldest;
    out->active = (uint64_t)(s->len - out->oldest + sinks);
    out->n_outputs = count_planes(s);
    out->n_inputs = out->n_outputs + (out->fetch == KVS_FETCH_RING ? 1 : 0);
    if (s->layout == KVS_LAYOUT_RING) {
        out->write_slot = (uint64_t)s->len % s->ring_cap;
    } else if (s->layout == KVS_LAYOUT_PAGED) {
        out->write_slot = (uint64_t)s->len % s->block;
    } else {
        uint32_t i = s->n_segs - 1;
        while (s->first[i] > s->len) {
            i--;
        }
        out->write_slot = (uint64_t)(s->len - s->first[i]);
    }
    (void)snprintf(out->key, sizeof out->key, "%s-%s:%u:%u", k->bits ? "q" : "p",
                   out->fetch == KVS_FETCH_RING ? "ring" : "cat", k->bits ? k->group : 0u,
                   (unsigned)k->bits);
}

kvs_status kvs_step_plan(kvs_cache *c, uint32_t layer, kvs_step *out, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_status st = kvs__cache_own_kv(c, layer, "step", &l, err);
    st = st == KVS_OK ? find(c, layer, &l, err) : st;
    if (st == KVS_OK && !out) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "out is NULL");
    }
    if (st == KVS_OK && out->struct_size < sizeof out->struct_size) {
        st = kvs__fail(err, KVS_E_INVAL, "state",
                       "kvs_step.struct_size is %zu; use the initialiser", out->struct_size);
    }
    st = st == KVS_OK ? kvs__layer_reserve(c->ctx, l, 1, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs_step s = KVS_STEP_INIT;
    describe(kvs__layer_store(l), &s);
    (void)kvs__stats_write(out, &s, sizeof s);
    return KVS_OK;
}

static kvs_status read_step(const kvs__layer *l, const kvs_step *step, kvs_step *out, kvs_err *err)
{
    if (!step) {
        return kvs__fail(err, KVS_E_INVAL, "state", "step is NULL");
    }
    kvs_status st = kvs__opts_read(out, sizeof *out, step, "kvs_step", err);
    if (st != KVS_OK) {
        return st;
    }
    if (out->position != kvs__layer_len(l)) {
        return kvs__fail(err, KVS_E_STATE, "state",
                         "the step was planned at position %lld, the layer is at %lld",
                         (long long)out->position, (long long)kvs__layer_len(l));
    }
    if (out->oldest < 0 || out->oldest > out->position) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "the step's oldest position %lld is not its own", (long long)out->oldest);
    }
    return KVS_OK;
}

kvs_status kvs_step_inputs(const kvs_cache *c, uint32_t layer, const kvs_step *step, kvs_span *out,
                           uint32_t cap, uint32_t *n_spans, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_step s = KVS_STEP_INIT;
    kvs_status st = find(c, layer, &l, err);
    st = st == KVS_OK ? read_step(l, step, &s, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (!n_spans || (cap > 0 && !out)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", n_spans ? "out" : "n_spans");
    }
    const kvs__store *store = kvs__layer_store(l);
    uint32_t sinks = 0;
    int64_t n_sinks = (int64_t)s.active - (s.position - s.oldest);
    if (n_sinks > 0 && n_sinks <= (int64_t)store->sinks) {
        st = kvs_cache_spans(c, layer, 0, n_sinks, out, cap, &sinks, err);
    }
    uint32_t rest = 0;
    if (st == KVS_OK) {
        uint32_t used = sinks < cap ? sinks : cap;
        st = kvs_cache_spans(c, layer, s.oldest, s.position, out ? out + used : NULL, cap - used,
                             &rest, err);
    }
    if (st == KVS_OK) {
        *n_spans = sinks + rest;
    }
    return st;
}

kvs_status kvs_step_commit(kvs_cache *c, uint32_t layer, const kvs_step *step,
                           const kvs_planes *row, kvs_err *err)
{
    kvs__layer *l = NULL;
    kvs_step s = KVS_STEP_INIT;
    kvs_status st = find(c, layer, &l, err);
    st = st == KVS_OK ? read_step(l, step, &s, err) : st;
    return st == KVS_OK ? kvs_cache_import(c, layer, s.position, 1, row, err) : st;
}
