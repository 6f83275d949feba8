/* SPDX-License-Identifier: MIT */
/* pcache_form.c: the class of mlx-lm that a layer can be written as, or why it can't (pcache_save.h).
 *
 * A layer that keeps all is a KVCache or QuantizedKVCache of exactly its tokens, without spare rows. A
 * layer with a window is a RotatingKVCache in time order with everything it still holds: sinks, then
 * all up to the newest, index behind the last. mlx-lm has the same after a prefill longer than the
 * ring and drops the excess at its next update; a file of just the ring would lose what a rewind, or
 * a layer that keeps more than its window, still needs. Rows of a batch are right-justified. */
#include "engine/pcache_save.h"

#include <string.h>

static kvs_status refuse(uint32_t layer, kvs_err *err, const char *why)
{
    return kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "layer %u can't be written for mlx-lm: %s",
                     layer, why);
}

static kvs_status check_codecs(const kvs__pc_source *s, const kvs__pc_out *out, kvs_err *err)
{
    const kvs_codec *k = &out->codec[0];
    const kvs_codec *v = &out->codec[1];
    const kvs_layer_spec *spec = kvs_cache_spec(s->first, out->layer);
    if (k->rotate || v->rotate) {
        return refuse(out->layer, err, "its codes are rotated (qN); affineN can be exchanged");
    }
    if (k->bits != v->bits || k->group != v->group) {
        return refuse(out->layer, err, "keys and values have other bits or groups");
    }
    if (k->bits > 0 && k->dtype != v->dtype) {
        return refuse(out->layer, err, "scales of keys and values have other types");
    }
    if (spec->kind == KVS_LAYER_LATENT && spec->k_dim == spec->v_dim) {
        return refuse(out->layer, err, "a latent row without a rotary part");
    }
    if (k->bits > 0 && kvs__pc_n_rows(s) > 1) {
        return refuse(out->layer, err, "no class of a batch is quantised");
    }
    if (spec->kind == KVS_LAYER_LATENT && k->bits > 0 &&
        (spec->v_dim % k->group != 0 || spec->v_dim * k->bits % 32 != 0)) {
        return refuse(out->layer, err, "a group of codes lies over the border of its rotary part");
    }
    return KVS_OK;
}

static void set_geometry(const kvs__pc_source *s, kvs__pc_out *out, int64_t length)
{
    const kvs_layer_spec *spec = kvs_cache_spec(s->first, out->layer);
    bool latent = spec->kind == KVS_LAYER_LATENT;
    bool dense = spec->dense_until > 0 && length <= (int64_t)spec->dense_until;
    const kvs_codec early = KVS_CODEC_DENSE(spec->dense_dtype);
    out->codec[0] = dense ? early : spec->k;
    out->codec[1] = dense ? early : latent ? spec->k : spec->v;
    out->heads = latent ? 1 : spec->n_kv_heads;
    out->dim[0] = latent ? spec->v_dim : spec->k_dim;
    out->dim[1] = latent ? spec->k_dim - spec->v_dim : spec->v_dim;
}

/* Does the cache hold [0, sinks) and [begin, length)? */
static bool holds(const kvs_cache *c, uint32_t layer, int64_t begin)
{
    return kvs_cache_oldest(c, layer) <= begin;
}

kvs__pc_held kvs__pc_held_by(const kvs__pc_source *s, const kvs__pc_out *out, uint32_t row)
{
    const kvs_cache *c = kvs__pc_row(s, row);
    kvs__pc_held h = {kvs_cache_length(c, out->layer), 0, 0};
    if (out->cls == KVS_PROMPT_BATCH_ROTATING) {
        h.begin = h.offset > out->max_size ? h.offset - out->max_size : 0;
    } else if (out->max_size > 0) {
        int64_t oldest = kvs_cache_oldest(c, out->layer);
        h.n_sinks = oldest > out->keep ? out->keep : 0;
        h.begin = oldest > out->keep ? oldest : 0;
    }
    return h;
}

static kvs_status set_ring(const kvs__pc_source *s, kvs__pc_out *out, kvs_err *err)
{
    kvs__pc_held h = kvs__pc_held_by(s, out, 0);
    int64_t held = h.n_sinks + h.offset - h.begin;
    if (held < h.offset && held < out->max_size) {
        return kvs__fail(err, KVS_E_STATE, "engine",
                         "layer %u holds %lld of the %lld tokens that mlx-lm's ring needs: it was "
                         "taken back as far as it goes; append a token first",
                         out->layer, (long long)held, (long long)out->max_size);
    }
    out->columns = (size_t)held;
    out->index = held;
    return KVS_OK;
}

static kvs_status set_batch(const kvs__pc_source *s, kvs__pc_out *out, kvs_err *err)
{
    int64_t most = 0;
    for (uint32_t r = 0; r < kvs__pc_n_rows(s); r++) {
        kvs__pc_held h = kvs__pc_held_by(s, out, r);
        if (h.offset > 0 && !holds(kvs__pc_row(s, r), out->layer, h.begin)) {
            return kvs__fail(err, KVS_E_STATE, "engine",
                             "row %u, layer %u does not hold the newest %lld tokens", r, out->layer,
                             (long long)(h.offset - h.begin));
        }
        most = h.offset - h.begin > most ? h.offset - h.begin : most;
    }
    out->columns = (size_t)most;
    out->index = most;
    out->offset = most;
    return KVS_OK;
}

static kvs_status choose(const kvs__pc_source *s, kvs__pc_out *out, kvs_err *err)
{
    const kvs_layer_spec *spec = kvs_cache_spec(s->first, out->layer);
    bool batch = kvs__pc_n_rows(s) > 1;
    bool affine = out->codec[0].bits > 0;
    if (spec->window > 0) {
        out->keep = spec->sinks;
        out->max_size = (int64_t)spec->window + spec->sinks;
        out->cls = batch    ? KVS_PROMPT_BATCH_ROTATING
                   : affine ? KVS_PROMPT_ROTATING_QUANTIZED
                            : KVS_PROMPT_ROTATING;
    } else {
        out->cls = batch            ? KVS_PROMPT_BATCH_KV
                   : affine         ? KVS_PROMPT_QUANTIZED
                   : out->chunk > 0 ? KVS_PROMPT_CHUNKED
                                    : KVS_PROMPT_KV;
    }
    if (out->chunk > 0 && out->cls != KVS_PROMPT_CHUNKED) {
        return refuse(out->layer, err, "a ChunkedKVCache is dense, of one row and has no window");
    }
    if (batch && out->keep > 0) {
        return refuse(out->layer, err, "a batch has no sinks");
    }
    if (out->cls == KVS_PROMPT_ROTATING_QUANTIZED && s->o->layout == KVS_PROMPT_MLX_LM_032) {
        return refuse(out->layer, err,
                      "a quantised window has no class there; in the layout before 0.32.0 it is "
                      "mlx-optiq's");
    }
    return KVS_OK;
}

static kvs_status form_layer(const kvs__pc_source *s, kvs__pc_out *out, kvs_err *err)
{
    int64_t longest = 0;
    for (uint32_t r = 0; r < kvs__pc_n_rows(s); r++) {
        int64_t n = kvs_cache_length(kvs__pc_row(s, r), out->layer);
        longest = n > longest ? n : longest;
    }
    if (longest > INT32_MAX) {
        return refuse(out->layer, err, "more tokens than MLX can count");
    }
    set_geometry(s, out, longest);
    kvs_status st = check_codecs(s, out, err);
    st = st == KVS_OK ? choose(s, out, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (longest == 0 && s->o->layout == KVS_PROMPT_MLX_LM_031) {
        return refuse(out->layer, err, "it is empty, which the layout before 0.32.0 can't say");
    }
    if (kvs__pc_n_rows(s) > 1) {
        return set_batch(s, out, err);
    }
    out->offset = longest;
    if (out->max_size > 0) {
        return set_ring(s, out, err);
    }
    out->columns = (size_t)longest;
    return KVS_OK;
}

/* Entries of mlx-lm's list: neighbours with the same number share one. */
static void number_entries(kvs__pc_out *out, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++) {
        bool same = out[i].list != 0 && out[i].list == out[i - 1].list;
        out[i].entry = out[i - 1].entry + !same;
        out[i].member = same ? out[i - 1].member + 1 : 0;
    }
}

kvs_status kvs__pc_forms(const kvs__pc_source *s, kvs__pc_out *out, uint32_t *n, kvs_err *err)
{
    kvs_status st = KVS_OK;
    *n = 0;
    for (uint32_t i = 0; st == KVS_OK && i < kvs_cache_n_layers(s->first); i++) {
        const kvs_layer_spec *spec = kvs_cache_spec(s->first, i);
        if (spec->kind == KVS_LAYER_BORROW) {
            continue;
        }
        if (spec->kind == KVS_LAYER_RECURRENT) {
            return refuse(i, err, "recurrent state");
        }
        kvs__pc_out *o = &out[(*n)++];
        memset(o, 0, sizeof *o);
        o->layer = i;
        if (s->o->forms) {
            o->list = s->o->forms[i].list;
            o->chunk = s->o->forms[i].chunk;
        }
        st = form_layer(s, o, err);
    }
    number_entries(out, *n);
    return st == KVS_OK && *n == 0 ? refuse(0, err, "no layer keeps anything") : st;
}
