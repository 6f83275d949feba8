/* SPDX-License-Identifier: MIT */
/* pcache_info.c: what an open prompt-cache file says of itself (interchange.h). */
#include <string.h>

#include "engine/pcache.h"

kvs_status kvs_prompt_cache_get_info(const kvs_prompt_cache *f, kvs_prompt_info *out)
{
    if (!f || !out) {
        return KVS_E_INVAL;
    }
    kvs_prompt_info r = KVS_PROMPT_INFO_INIT;
    r.layout = f->layout;
    r.n_entries = f->n_entries;
    r.n_layers = f->n_leaves;
    r.n_rows = (uint32_t)f->leaves[0].batch;
    r.n_meta = f->n_meta;
    r.file_bytes = kvs__safetensors_bytes(f->st);
    return kvs__stats_write(out, &r, sizeof r);
}

static void look_at_rows(const kvs__pc_leaf *l, kvs_prompt_layer *r)
{
    size_t rows = l->offsets ? l->batch : 1;
    for (size_t row = 0; row < rows; row++) {
        kvs__pc_run run[KVS__PC_RUNS];
        uint32_t n = 0;
        int64_t offset = 0;
        uint64_t stored = 0;
        (void)kvs__pc_runs(l, row, run, &n, &offset);
        for (uint32_t i = 0; i < n; i++) {
            stored += run[i].n;
        }
        r->offset = offset > r->offset ? offset : r->offset;
        r->n_stored = stored > r->n_stored ? stored : r->n_stored;
    }
}

kvs_status kvs_prompt_cache_get_layer(const kvs_prompt_cache *f, uint32_t i, kvs_prompt_layer *out)
{
    if (!f || !out) {
        return KVS_E_INVAL;
    }
    if (i >= f->n_leaves) {
        return KVS_NO;
    }
    const kvs__pc_leaf *l = &f->leaves[i];
    kvs_prompt_layer r = KVS_PROMPT_LAYER_INIT;
    r.cls = l->cls;
    r.entry = l->entry;
    r.member = l->member;
    r.n_rows = (uint32_t)l->batch;
    r.window = (uint32_t)(l->max_size - l->keep);
    r.sinks = (uint32_t)l->keep;
    r.chunk = (uint32_t)l->chunk;
    r.n_arrays = l->n_arrays;
    if (l->n_planes > 0) {
        r.n_kv_heads = (uint32_t)l->heads;
        r.k_dim = l->dim[0];
        r.v_dim = l->dim[1];
        r.k = l->codec[0];
        r.v = l->codec[1];
    }
    look_at_rows(l, &r);
    return kvs__stats_write(out, &r, sizeof r);
}

kvs_status kvs_prompt_cache_get_meta(const kvs_prompt_cache *f, uint32_t i, const char **key,
                                     size_t *key_bytes, const char **value, size_t *value_bytes)
{
    if (!f || !key || !key_bytes || !value || !value_bytes) {
        return KVS_E_INVAL;
    }
    if (i >= f->n_meta) {
        return KVS_NO;
    }
    *key = f->meta[i].key.ptr;
    *key_bytes = f->meta[i].key.len;
    *value = f->meta[i].value.ptr;
    *value_bytes = f->meta[i].value.len;
    return KVS_OK;
}

/* ---- tokens: decimal numbers with one space between them */

static bool next_token(kvs__str s, size_t *at, int32_t *out)
{
    int64_t v = 0;
    size_t first = *at;
    while (*at < s.len && s.ptr[*at] >= '0' && s.ptr[*at] <= '9' && v <= INT32_MAX) {
        v = v * 10 + (s.ptr[(*at)++] - '0');
    }
    bool good = *at > first && v <= INT32_MAX && (*at == s.len || s.ptr[*at] == ' ');
    *out = good ? (int32_t)v : 0;
    *at += *at < s.len;
    return good && (*at < s.len || s.ptr[s.len - 1] != ' ');
}

kvs_status kvs_prompt_cache_get_tokens(const kvs_prompt_cache *f, int32_t *dst, size_t cap,
                                       size_t *n, kvs_err *err)
{
    if (!f || !n || (cap > 0 && !dst)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "file, dst or n is NULL");
    }
    uint32_t i = 0;
    while (i < f->n_meta && !kvs__str_eq(f->meta[i].key, "kvstate_tokens")) {
        i++;
    }
    *n = 0;
    if (i == f->n_meta) {
        return KVS_NO;
    }
    kvs__str s = f->meta[i].value;
    size_t count = 0;
    for (size_t at = 0; at < s.len; count++) {
        int32_t token = 0;
        if (!next_token(s, &at, &token)) {
            return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: kvstate_tokens is no list of tokens",
                             f->what);
        }
        if (count < cap) {
            dst[count] = token;
        }
    }
    *n = count;
    return KVS_OK;
}
