/* SPDX-License-Identifier: MIT */
/* hf_shards.c: the safetensors files of a model directory as one list of tensors.
 *
 * model.safetensors.index.json says which file holds which tensor; without it there is one file. A
 * tensor in two files, a file that is missing, a name that its file does not hold: each is an error
 * that names both. File names of an index stay inside the directory. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_priv.h"

#define INDEX_NAME "model.safetensors.index.json"

char *kvs__hf_path(const kvs__hf *hf, const char *name, size_t *bytes)
{
    size_t a = strlen(hf->dir);
    size_t b = strlen(name);
    *bytes = a + b + 2;
    char *path = kvs__alloc(hf->ctx, *bytes);
    if (path) {
        memcpy(path, hf->dir, a);
        path[a] = '/';
        memcpy(path + a + 1, name, b + 1);
    }
    return path;
}

static kvs_status open_shard(kvs__hf *hf, kvs__hf_shard *shard, kvs_err *err)
{
    size_t bytes = 0;
    char *path = kvs__hf_path(hf, shard->name, &bytes);
    if (!path) {
        return kvs__nomem(err, "engine", bytes);
    }
    kvs_status st = kvs__safetensors_open(hf->ctx, path, &shard->file, err);
    kvs__free(hf->ctx, path, bytes);
    return st;
}

/* The shard of that name, opened where it is not yet. */
static kvs_status get_shard(kvs__hf *hf, const char *name, kvs__hf_shard **out, kvs_err *err)
{
    for (size_t i = hf->n_shards; i > 0; i--) { /* neighbours in an index share a file */
        if (strcmp(hf->shards[i - 1].name, name) == 0) {
            *out = &hf->shards[i - 1];
            return KVS_OK;
        }
    }
    if (hf->n_shards == KVS__HF_SHARDS_MOST) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "%s names more than %u files", INDEX_NAME,
                         KVS__HF_SHARDS_MOST);
    }
    kvs__hf_shard *list = kvs__grow(hf->ctx, hf->shards, &hf->cap_shards, hf->n_shards,
                                    hf->n_shards + 1, sizeof *list);
    if (!list) {
        return kvs__nomem(err, "engine", sizeof *list);
    }
    hf->shards = list;
    kvs__hf_shard *shard = &list[hf->n_shards];
    *shard = (kvs__hf_shard){0};
    (void)snprintf(shard->name, sizeof shard->name, "%s", name);
    kvs_status st = open_shard(hf, shard, err);
    if (st == KVS_OK) {
        hf->n_shards++;
        *out = shard;
    }
    return st;
}

/* A plain file name, as text. */
static kvs_status shard_name(kvs__jval v, char out[128], kvs_err *err)
{
    kvs__str raw = kvs__json_raw(v);
    bool good = kvs__json_kind(v) == KVS__JSON_STRING && raw.len > 0 && raw.len < 128 &&
                !kvs__json_escaped(v) && raw.ptr[0] != '.' && !memchr(raw.ptr, '/', raw.len);
    if (!good) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: \"%s\" is not the name of a file beside it", INDEX_NAME,
                         kvs__gguf_quote(raw).text);
    }
    memcpy(out, raw.ptr, raw.len);
    out[raw.len] = '\0';
    return KVS_OK;
}

static kvs_status check_member(kvs__hf *hf, kvs__jval name, kvs__jval file, char *text,
                               kvs_err *err)
{
    char file_name[128];
    kvs_status st = shard_name(file, file_name, err);
    kvs__hf_shard *shard = NULL;
    if (st == KVS_OK) {
        st = get_shard(hf, file_name, &shard, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    kvs__str s = {text, kvs__json_text(name, text)};
    if (!kvs__safetensors_find(shard->file, s)) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s names tensor \"%s\" in %.60s: it is not there", INDEX_NAME,
                         kvs__gguf_quote(s).text, file_name);
    }
    return KVS_OK;
}

static kvs_status read_index(kvs__hf *hf, const kvs__json *doc, kvs_err *err)
{
    kvs__jval map = kvs__json_get(kvs__json_root(doc), "weight_map");
    if (kvs__json_kind(map) != KVS__JSON_OBJECT || kvs__json_count(map) == 0) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: weight_map is %s, not an object with members", INDEX_NAME,
                         kvs__json_kind_name(map));
    }
    size_t most = 1;
    kvs__jval name = {NULL, 0};
    kvs__jval file = {NULL, 0};
    while (kvs__json_member(map, &name, &file)) {
        size_t len = kvs__json_raw(name).len;
        most = len > most ? len : most;
    }
    char *text = kvs__alloc(hf->ctx, most);
    if (!text) {
        return kvs__nomem(err, "engine", most);
    }
    kvs_status st = KVS_OK;
    while (st == KVS_OK && kvs__json_member(map, &name, &file)) {
        st = check_member(hf, name, file, text, err);
    }
    kvs__free(hf->ctx, text, most);
    return st;
}

static kvs_status open_files(kvs__hf *hf, const char *single, kvs_err *err)
{
    size_t bytes = 0;
    char *path = kvs__hf_path(hf, INDEX_NAME, &bytes);
    if (!path) {
        return kvs__nomem(err, "engine", bytes);
    }
    kvs__json *doc = NULL;
    kvs_status st = kvs__json_load(hf->ctx, path, KVS__HF_INDEX_MOST, &doc, err);
    kvs__free(hf->ctx, path, bytes);
    if (st == KVS_OK) {
        st = read_index(hf, doc, err);
        kvs__json_free(doc);
        return st;
    }
    if (st != KVS_E_NOTFOUND) {
        return st;
    }
    kvs__hf_shard *shard = NULL;
    return get_shard(hf, single ? single : "model.safetensors", &shard, err);
}

/* Which files hold the name, for the message. */
static kvs_status in_two_files(const kvs__hf *hf, kvs__str name, kvs_err *err)
{
    const char *files[2] = {"", ""};
    size_t n = 0;
    for (size_t i = 0; i < hf->n_shards && n < 2; i++) {
        if (kvs__safetensors_find(hf->shards[i].file, name)) {
            files[n++] = hf->shards[i].name;
        }
    }
    return kvs__fail(err, KVS_E_FORMAT, "engine", "tensor \"%s\" is in %.60s and in %.60s",
                     kvs__gguf_quote(name).text, files[0], files[1]);
}

static kvs_status check_unique(kvs__hf *hf, kvs_err *err)
{
    kvs_err twice = {KVS_OK, 0, "", ""};
    kvs_status st = kvs__gguf_names_build(hf->ctx, &hf->index, "tensor", &twice);
    if (st != KVS_E_FORMAT) {
        return st == KVS_OK ? st : kvs__fail(err, st, "engine", "%s", twice.msg);
    }
    for (size_t i = 0; i < hf->n_tensors; i++) { /* found by the table as far as it was filled */
        kvs__str name = hf->tensors[i].name;
        size_t first = kvs__gguf_names_find(&hf->index, name.ptr, name.len);
        if (first != i) {
            return in_two_files(hf, name, err);
        }
    }
    return kvs__fail(err, st, "engine", "%s", twice.msg);
}

static kvs_status list_tensors(kvs__hf *hf, kvs_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < hf->n_shards; i++) {
        for (size_t k = 0; kvs__safetensors_at(hf->shards[i].file, k); k++) {
            n++;
        }
    }
    hf->tensors = kvs__calloc(hf->ctx, n, sizeof *hf->tensors);
    if (!hf->tensors) {
        return kvs__nomem(err, "engine", n * sizeof *hf->tensors);
    }
    hf->n_tensors = n;
    n = 0;
    for (size_t i = 0; i < hf->n_shards; i++) {
        const kvs__st_tensor *t = NULL;
        for (size_t k = 0; (t = kvs__safetensors_at(hf->shards[i].file, k)); k++) {
            hf->tensors[n++] = (kvs__hf_tensor){.name = t->name, .t = t};
        }
    }
    hf->index.items = (const unsigned char *)hf->tensors;
    hf->index.stride = sizeof *hf->tensors;
    hf->index.n = n;
    return check_unique(hf, err);
}

kvs_status kvs__hf_open_shards(kvs__hf *hf, const char *single, kvs_err *err)
{
    kvs_status st = open_files(hf, single, err);
    return st == KVS_OK ? list_tensors(hf, err) : st;
}

kvs__hf_tensor *kvs__hf_lookup(const kvs__hf *hf, const char *name, size_t len)
{
    size_t i = kvs__gguf_names_find(&hf->index, name, len);
    return i == SIZE_MAX ? NULL : &hf->tensors[i];
}
