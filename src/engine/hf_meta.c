/* SPDX-License-Identifier: MIT */
/* hf_meta.c: writes the metadata of a GGUF file (no tensors) into memory: what config.json says
 * under the engine's keys, so that architectures read one form. Number of keys is patched in as
 * they come; kvs__gguf_open_mem checks the result like any file. */
#include <stdio.h>
#include <string.h>

#include "engine/hf_priv.h"

#define N_KV_AT   16u
#define KEY_MOST  255u
#define DEPTH     3u
#define LIST_MOST 4096u

static kvs_status put(kvs__hf *hf, const void *bytes, size_t n, kvs_err *err)
{
    size_t need = 0;
    uint8_t *more = kvs__add_size(hf->meta_bytes, n, &need)
                        ? kvs__grow(hf->ctx, hf->meta, &hf->meta_cap, hf->meta_bytes, need, 1)
                        : NULL;
    if (!more) {
        return kvs__nomem(err, "engine", n);
    }
    hf->meta = more;
    if (n > 0) {
        memcpy(hf->meta + hf->meta_bytes, bytes, n);
    }
    hf->meta_bytes += n;
    return KVS_OK;
}

/* A number of n bytes, little-endian. */
static kvs_status put_le(kvs__hf *hf, uint64_t v, size_t n, kvs_err *err)
{
    uint8_t b[8];
    for (size_t i = 0; i < n; i++) {
        b[i] = (uint8_t)(v >> (8 * i));
    }
    return put(hf, b, n, err);
}

static kvs_status put_text(kvs__hf *hf, const char *s, size_t n, kvs_err *err)
{
    kvs_status st = put_le(hf, n, 8, err);
    return st == KVS_OK ? put(hf, s, n, err) : st;
}

/* Key and type; the value follows. */
static kvs_status put_key(kvs__hf *hf, const char *key, kvs__gguf_vtype type, kvs_err *err)
{
    kvs_status st = put_text(hf, key, strlen(key), err);
    if (st == KVS_OK) {
        st = put_le(hf, (uint64_t)type, 4, err);
    }
    if (st == KVS_OK) {
        uint64_t n = kvs__gguf_le64(hf->meta + N_KV_AT) + 1;
        for (size_t i = 0; i < 8; i++) {
            hf->meta[N_KV_AT + i] = (uint8_t)(n >> (8 * i));
        }
    }
    return st;
}

kvs_status kvs__meta_begin(kvs__hf *hf, kvs_err *err)
{
    static const uint8_t header[KVS__GGUF_HEADER_BYTES] = {'G', 'G', 'U', 'F', 3};
    return put(hf, header, sizeof header, err);
}

kvs_status kvs__meta_u32(kvs__hf *hf, const char *key, uint32_t v, kvs_err *err)
{
    kvs_status st = put_key(hf, key, KVS__GGUF_U32, err);
    return st == KVS_OK ? put_le(hf, v, 4, err) : st;
}

kvs_status kvs__meta_f32(kvs__hf *hf, const char *key, float v, kvs_err *err)
{
    uint32_t bits = 0;
    memcpy(&bits, &v, sizeof bits);
    kvs_status st = put_key(hf, key, KVS__GGUF_F32, err);
    return st == KVS_OK ? put_le(hf, bits, 4, err) : st;
}

kvs_status kvs__meta_bool(kvs__hf *hf, const char *key, bool v, kvs_err *err)
{
    kvs_status st = put_key(hf, key, KVS__GGUF_BOOL, err);
    return st == KVS_OK ? put_le(hf, v, 1, err) : st;
}

kvs_status kvs__meta_str(kvs__hf *hf, const char *key, const char *v, kvs_err *err)
{
    kvs_status st = put_key(hf, key, KVS__GGUF_STR, err);
    return st == KVS_OK ? put_text(hf, v, strlen(v), err) : st;
}

/* ---- JSON */

static kvs_status put_string(kvs__hf *hf, kvs__jval v, kvs_err *err)
{
    size_t most = kvs__json_raw(v).len;
    char *text = kvs__alloc(hf->ctx, most);
    if (!text) {
        return kvs__nomem(err, "engine", most);
    }
    kvs_status st = put_text(hf, text, kvs__json_text(v, text), err);
    kvs__free(hf->ctx, text, most);
    return st;
}

/* The GGUF type of a JSON scalar; KVS__GGUF_ARRAY: it is none. */
static kvs__gguf_vtype scalar_type(kvs__jval v)
{
    int64_t i = 0;
    switch (kvs__json_kind(v)) {
    case KVS__JSON_TRUE:
    case KVS__JSON_FALSE:
        return KVS__GGUF_BOOL;
    case KVS__JSON_STRING:
        return KVS__GGUF_STR;
    case KVS__JSON_NUMBER:
        return kvs__json_int(v, &i) ? KVS__GGUF_I64 : KVS__GGUF_F64;
    default:
        return KVS__GGUF_ARRAY;
    }
}

static kvs_status put_scalar(kvs__hf *hf, kvs__gguf_vtype type, kvs__jval v, kvs_err *err)
{
    int64_t i = 0;
    double f = 0.0;
    uint64_t bits = 0;
    switch (type) {
    case KVS__GGUF_BOOL:
        return put_le(hf, kvs__json_kind(v) == KVS__JSON_TRUE, 1, err);
    case KVS__GGUF_STR:
        return put_string(hf, v, err);
    case KVS__GGUF_I64:
        (void)kvs__json_int(v, &i);
        return put_le(hf, (uint64_t)i, 8, err);
    default:
        (void)kvs__json_double(v, &f);
        memcpy(&bits, &f, sizeof bits);
        return put_le(hf, bits, 8, err);
    }
}

/* An array of scalars of one type, up to a size; others are passed over. */
static kvs_status put_list(kvs__hf *hf, const char *key, kvs__jval list, kvs_err *err)
{
    size_t n = kvs__json_count(list);
    kvs__jval v = {NULL, 0};
    kvs__gguf_vtype type = KVS__GGUF_ARRAY;
    for (size_t i = 0; kvs__json_next(list, &v); i++) {
        kvs__gguf_vtype t = scalar_type(v);
        bool number = t == KVS__GGUF_F64 || t == KVS__GGUF_I64;
        if (i == 0 || (number && type == KVS__GGUF_I64)) {
            type = t;
        } else if (t != type && !(number && type == KVS__GGUF_F64)) {
            return KVS_OK;
        }
    }
    if (type == KVS__GGUF_ARRAY || n > LIST_MOST) {
        return KVS_OK;
    }
    kvs_status st = put_key(hf, key, KVS__GGUF_ARRAY, err);
    if (st == KVS_OK) {
        st = put_le(hf, (uint64_t)type, 4, err);
    }
    if (st == KVS_OK) {
        st = put_le(hf, n, 8, err);
    }
    while (st == KVS_OK && kvs__json_next(list, &v)) {
        st = put_scalar(hf, type, v, err);
    }
    return st;
}

/* prefix.name where that is a key GGUF takes: no control characters, not too long. */
static bool make_key(const char *prefix, kvs__jval name, char key[KEY_MOST + 1])
{
    kvs__str raw = kvs__json_raw(name);
    int n = snprintf(key, KEY_MOST + 1, "%s.", prefix);
    if (n < 0 || raw.len == 0 || raw.len > KEY_MOST - (size_t)n) {
        return false;
    }
    size_t len = kvs__json_text(name, key + n);
    key[(size_t)n + len] = '\0';
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)key[(size_t)n + i];
        if (c < 0x20 || c == 0x7f) {
            return false;
        }
    }
    return true;
}

static kvs_status put_member(kvs__hf *hf, const char *key, kvs__jval v, kvs_err *err)
{
    kvs__gguf_vtype type = scalar_type(v);
    if (type == KVS__GGUF_ARRAY) {
        return put_list(hf, key, v, err);
    }
    kvs_status st = put_key(hf, key, type, err);
    return st == KVS_OK ? put_scalar(hf, type, v, err) : st;
}

/* Whether a later member of the same object has this name: the last one counts. */
static bool is_repeated(kvs__jval object, kvs__jval value, const char *name)
{
    kvs__jval last = kvs__json_get(object, name);
    return last.at != value.at;
}

kvs_status kvs__meta_json(kvs__hf *hf, const char *prefix, kvs__jval v, kvs_err *err)
{
    char key[KEY_MOST + 1];
    uint32_t depth = 0;
    for (const char *p = prefix; *p; p++) {
        depth += *p == '.';
    }
    if (kvs__json_count(v) > LIST_MOST || depth >= DEPTH) {
        return KVS_OK;
    }
    kvs_status st = KVS_OK;
    kvs__jval name = {NULL, 0};
    kvs__jval value = {NULL, 0};
    while (st == KVS_OK && kvs__json_member(v, &name, &value)) {
        if (!make_key(prefix, name, key) || is_repeated(v, value, key + strlen(prefix) + 1)) {
            continue;
        }
        st = kvs__json_kind(value) == KVS__JSON_OBJECT ? kvs__meta_json(hf, key, value, err)
                                                       : put_member(hf, key, value, err);
    }
    return st;
}
