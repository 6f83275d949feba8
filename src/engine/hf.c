/* SPDX-License-Identifier: MIT */
/* hf.c: opens and closes a model directory (hf.h); the steps are in the other hf_ files. */
#include "engine/hf.h"

#include <string.h>

#include "engine/hf_priv.h"

/* A file of the directory; KVS_NO: it is not there. */
static kvs_status load_json(kvs__hf *hf, const char *name, kvs__json **out, kvs_err *err)
{
    size_t bytes = 0;
    char *path = kvs__hf_path(hf, name, &bytes);
    if (!path) {
        return kvs__nomem(err, "engine", bytes);
    }
    kvs_status st = kvs__json_load(hf->ctx, path, KVS__HF_CONFIG_MOST, out, err);
    kvs__free(hf->ctx, path, bytes);
    return st == KVS_E_NOTFOUND ? KVS_NO : st;
}

static kvs_status read_config(kvs__hf *hf, kvs_err *err)
{
    kvs_status st = load_json(hf, "config.json", &hf->config, err);
    if (st == KVS_NO) {
        return kvs__fail(err, KVS_E_NOTFOUND, "engine", "%.120s has no config.json", hf->dir);
    }
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__json_kind(kvs__json_root(hf->config)) != KVS__JSON_OBJECT) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "config.json is %s, not an object",
                         kvs__json_kind_name(kvs__json_root(hf->config)));
    }
    st = load_json(hf, "generation_config.json", &hf->generation, err);
    return st == KVS_NO ? KVS_OK : st;
}

static kvs_status load(kvs__hf *hf, const char *single, kvs_err *err)
{
    kvs_status st = read_config(hf, err);
    if (st == KVS_OK) {
        st = kvs__hf_find_family(hf, err);
    }
    if (st == KVS_OK) {
        st = kvs__hf_open_shards(hf, single, err);
    }
    if (st == KVS_OK) {
        st = kvs__hf_mark_affine(hf, err);
    }
    if (st == KVS_OK) {
        st = kvs__hf_find_names(hf, err);
    }
    return st == KVS_OK ? kvs__hf_write_meta(hf, err) : st;
}

static bool ends_with(const char *s, size_t n, const char *tail)
{
    size_t t = strlen(tail);
    return n >= t && memcmp(s + n - t, tail, t) == 0;
}

/* Splits a path to a .safetensors file or to its index into directory and name. */
static const char *split(const char *path, size_t *dir_len)
{
    size_t n = strlen(path);
    bool index = ends_with(path, n, ".safetensors.index.json");
    if (!index && !ends_with(path, n, ".safetensors")) {
        while (n > 1 && path[n - 1] == '/') {
            n--;
        }
        *dir_len = n;
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    *dir_len = slash ? (size_t)(slash - path) + (slash == path) : 0;
    return index ? NULL : slash ? slash + 1 : path;
}

kvs_status kvs__hf_open(kvs_ctx *ctx, const char *path, kvs__hf **out, kvs_err *err)
{
    kvs__hf *hf = kvs__calloc(ctx, 1, sizeof *hf);
    if (!hf) {
        return kvs__nomem(err, "engine", sizeof *hf);
    }
    hf->ctx = ctx;
    size_t n = 0;
    const char *single = split(path, &n);
    const char *dir = n > 0 ? path : ".";
    n = n > 0 ? n : 1;
    hf->dir_bytes = n + 1;
    hf->dir = kvs__alloc(ctx, hf->dir_bytes);
    if (!hf->dir) {
        kvs__hf_close(hf);
        return kvs__nomem(err, "engine", n + 1);
    }
    memcpy(hf->dir, dir, n);
    hf->dir[n] = '\0';
    kvs_status st = load(hf, single, err);
    if (st != KVS_OK) {
        kvs__hf_close(hf);
        return st;
    }
    *out = hf;
    return KVS_OK;
}

void kvs__hf_close(kvs__hf *hf)
{
    if (!hf) {
        return;
    }
    kvs__gguf_names_free(hf->ctx, &hf->index);
    if (hf->listed) {
        kvs__free(hf->ctx, hf->listed, hf->n_tensors * sizeof *hf->listed);
    }
    kvs__free(hf->ctx, hf->tensors, hf->n_tensors * sizeof *hf->tensors);
    for (size_t i = 0; i < hf->n_shards; i++) {
        kvs__safetensors_close(hf->shards[i].file);
    }
    kvs__free(hf->ctx, hf->shards, hf->cap_shards * sizeof *hf->shards);
    kvs__free(hf->ctx, hf->meta, hf->meta_cap);
    kvs__free(hf->ctx, hf->rope_factors, hf->n_rope_factors * sizeof *hf->rope_factors);
    kvs__json_free(hf->generation);
    kvs__json_free(hf->config);
    kvs__free(hf->ctx, hf->dir, hf->dir_bytes);
    kvs__free(hf->ctx, hf, sizeof *hf);
}

void kvs__hf_meta(const kvs__hf *hf, const void **bytes, size_t *n)
{
    *bytes = hf->meta;
    *n = hf->meta_bytes;
}

const kvs__hf_family *kvs__hf_get_family(const kvs__hf *hf)
{
    return hf->family;
}

kvs__jval kvs__hf_config(const kvs__hf *hf)
{
    return kvs__json_root(hf->config);
}

uint64_t kvs__hf_file_bytes(const kvs__hf *hf)
{
    uint64_t n = 0;
    for (size_t i = 0; i < hf->n_shards; i++) {
        n += kvs__safetensors_bytes(hf->shards[i].file);
    }
    return n;
}

const char *kvs__hf_dir(const kvs__hf *hf)
{
    return hf->dir;
}
