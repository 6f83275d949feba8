/* SPDX-License-Identifier: MIT */
/* safetensors.c: reads and checks a safetensors file (safetensors.h).
 *
 * The header is parsed into nodes, then into one table of tensors, sorted by where their data
 * begins: neighbours must touch, the first begin at 0 and the last end with the file, which is what
 * the format demands and what makes overlaps impossible. Names with JSON escapes are decoded into
 * memory of their own; all others point into the file. Memory is some 20 times the header at most
 * (nodes while it is parsed, 48 bytes a tensor of at least 60 bytes), whatever the header claims. */
#include "engine/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/map.h"
#include "engine/gguf_priv.h"

#define LENGTH_BYTES 8u

struct kvs__safetensors {
    kvs_ctx *ctx;
    kvs__map map; /* bytes 0 when the memory is the caller's */
    const uint8_t *file;
    size_t file_bytes;
    size_t data_at; /* of the tensor data in the file */
    kvs__json *header;
    kvs__jval meta;
    kvs__st_tensor *tensors; /* [cap], n filled */
    size_t cap, n;
    char *names; /* decoded ones */
    size_t names_bytes, names_used;
    kvs__gguf_names index;
    char what[128];
};

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
#define KVS_X(name, bits) {#name, bits},
    KVS_ST_DTYPE_MAP(KVS_X)
#undef KVS_X
};

const char *kvs__st_dtype_name(kvs__st_dtype dtype)
{
    return dtypes[dtype].name;
}

uint32_t kvs__st_dtype_bits(kvs__st_dtype dtype)
{
    return dtypes[dtype].bits;
}

/* ---- one tensor */

static kvs_status bad(const kvs__safetensors *s, kvs__str name, kvs_err *err, const char *why)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: tensor \"%s\": %s", s->what,
                     kvs__gguf_quote(name).text, why);
}

static kvs_status read_dtype(const kvs__safetensors *s, kvs__st_tensor *t, kvs__jval v,
                             kvs_err *err)
{
    for (size_t i = 0; i < KVS_COUNT(dtypes); i++) {
        if (kvs__json_is(v, dtypes[i].name)) {
            t->dtype = (kvs__st_dtype)i;
            return KVS_OK;
        }
    }
    if (kvs__json_kind(v) != KVS__JSON_STRING) {
        return bad(s, t->name, err, "dtype is no string");
    }
    return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: tensor \"%s\": unknown dtype \"%s\"",
                     s->what, kvs__gguf_quote(t->name).text,
                     kvs__gguf_quote(kvs__json_raw(v)).text);
}

static kvs_status read_shape(const kvs__safetensors *s, kvs__st_tensor *t, kvs__jval v,
                             kvs_err *err)
{
    if (kvs__json_kind(v) != KVS__JSON_ARRAY) {
        return bad(s, t->name, err, "shape is no array");
    }
    if (kvs__json_count(v) > KVS__ST_DIMS) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "%s: tensor \"%s\" has %zu dimensions, %u are read", s->what,
                         kvs__gguf_quote(t->name).text, kvs__json_count(v), KVS__ST_DIMS);
    }
    for (uint32_t i = 0; i < KVS__ST_DIMS; i++) {
        t->dims[i] = 1;
    }
    t->n = 1;
    kvs__jval d = {NULL, 0};
    while (kvs__json_next(v, &d)) {
        int64_t n = -1;
        if (!kvs__json_int(d, &n) || n < 0 || (uint64_t)n > SIZE_MAX) {
            return bad(s, t->name, err, "a dimension that is no count");
        }
        t->dims[t->n_dims++] = (size_t)n;
        if (!kvs__mul_size(t->n, (size_t)n, &t->n)) {
            return bad(s, t->name, err, "more elements than can be counted");
        }
    }
    size_t bits = 0;
    if (!kvs__mul_size(t->n, dtypes[t->dtype].bits, &bits) || bits % 8 != 0) {
        return bad(s, t->name, err, "elements that fill no whole bytes");
    }
    t->bytes = bits / 8;
    return KVS_OK;
}

static kvs_status read_range(const kvs__safetensors *s, kvs__st_tensor *t, kvs__jval v,
                             kvs_err *err)
{
    int64_t at[2] = {0, 0};
    size_t i = 0;
    kvs__jval e = {NULL, 0};
    bool good = kvs__json_kind(v) == KVS__JSON_ARRAY && kvs__json_count(v) == 2;
    while (good && kvs__json_next(v, &e)) {
        good = kvs__json_int(e, &at[i]) && at[i] >= 0;
        i++;
    }
    if (!good || at[0] > at[1]) {
        return bad(s, t->name, err, "data_offsets is no pair of begin and end");
    }
    size_t data = s->file_bytes - s->data_at;
    if ((uint64_t)at[1] > data) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: tensor \"%s\" ends at byte %lld of %zu of data", s->what,
                         kvs__gguf_quote(t->name).text, (long long)at[1], data);
    }
    if ((uint64_t)(at[1] - at[0]) != t->bytes) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: tensor \"%s\" has %lld bytes, its shape needs %zu", s->what,
                         kvs__gguf_quote(t->name).text, (long long)(at[1] - at[0]), t->bytes);
    }
    t->data = s->file + s->data_at + at[0];
    return KVS_OK;
}

/* The name as it is, in the file or decoded. */
static kvs_status read_name(kvs__safetensors *s, kvs__jval v, size_t i, kvs__str *out, kvs_err *err)
{
    *out = kvs__json_raw(v);
    if (kvs__json_escaped(v)) {
        char *to = s->names + s->names_used;
        out->len = kvs__json_text(v, to);
        out->ptr = to;
        s->names_used += out->len;
    }
    bool good = out->len > 0 && out->len <= KVS__GGUF_NAME_MAX;
    for (size_t k = 0; good && k < out->len; k++) {
        good = (unsigned char)out->ptr[k] >= 0x20 && out->ptr[k] != 0x7f;
    }
    return good ? KVS_OK
                : kvs__fail(err, KVS_E_FORMAT, "engine",
                            "%s: entry %zu has an empty name, a long one, or control characters",
                            s->what, i);
}

static kvs_status read_tensor(kvs__safetensors *s, kvs__str name, kvs__jval v, kvs_err *err)
{
    kvs__st_tensor *t = &s->tensors[s->n];
    *t = (kvs__st_tensor){.name = name};
    if (kvs__json_kind(v) != KVS__JSON_OBJECT) {
        return bad(s, name, err, "its description is no object");
    }
    kvs_status st = read_dtype(s, t, kvs__json_get(v, "dtype"), err);
    if (st == KVS_OK) {
        st = read_shape(s, t, kvs__json_get(v, "shape"), err);
    }
    if (st == KVS_OK) {
        st = read_range(s, t, kvs__json_get(v, "data_offsets"), err);
    }
    s->n += st == KVS_OK;
    return st;
}

/* ---- the header */

static kvs_status read_meta(kvs__safetensors *s, kvs__jval v, kvs_err *err)
{
    bool good = kvs__json_kind(v) == KVS__JSON_OBJECT && !s->meta.doc;
    kvs__jval key = {NULL, 0};
    kvs__jval value = {NULL, 0};
    while (good && kvs__json_member(v, &key, &value)) {
        good = kvs__json_kind(value) == KVS__JSON_STRING;
    }
    s->meta = v;
    return good ? KVS_OK
                : kvs__fail(err, KVS_E_FORMAT, "engine", "%s: __metadata__ is no object of strings",
                            s->what);
}

/* Bytes that names with escapes take once decoded, at most. */
static size_t escaped_bytes(kvs__jval root)
{
    size_t n = 0;
    kvs__jval key = {NULL, 0};
    kvs__jval value = {NULL, 0};
    while (kvs__json_member(root, &key, &value)) {
        n += kvs__json_escaped(key) ? kvs__json_raw(key).len : 0;
    }
    return n;
}

static kvs_status reserve(kvs__safetensors *s, kvs__jval root, kvs_err *err)
{
    s->cap = kvs__json_count(root);
    s->tensors = kvs__calloc(s->ctx, s->cap, sizeof *s->tensors);
    if (!s->tensors) {
        return kvs__nomem(err, "engine", s->cap * sizeof *s->tensors);
    }
    s->names_bytes = escaped_bytes(root);
    s->names = kvs__alloc(s->ctx, s->names_bytes);
    return s->names ? KVS_OK : kvs__nomem(err, "engine", s->names_bytes);
}

static kvs_status read_entries(kvs__safetensors *s, kvs_err *err)
{
    kvs__jval root = kvs__json_root(s->header);
    if (kvs__json_kind(root) != KVS__JSON_OBJECT) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: the header is %s, not an object",
                         s->what, kvs__json_kind_name(root));
    }
    kvs_status st = reserve(s, root, err);
    kvs__jval key = {NULL, 0};
    kvs__jval value = {NULL, 0};
    for (size_t i = 0; st == KVS_OK && kvs__json_member(root, &key, &value); i++) {
        kvs__str name = {NULL, 0};
        st = read_name(s, key, i, &name, err);
        if (st == KVS_OK) {
            st = kvs__str_eq(name, "__metadata__") ? read_meta(s, value, err)
                                                   : read_tensor(s, name, value, err);
        }
    }
    return st;
}

static int by_begin(const void *a, const void *b)
{
    const kvs__st_tensor *p = a;
    const kvs__st_tensor *q = b;
    if (p->data != q->data) {
        return p->data < q->data ? -1 : 1;
    }
    return (p->bytes > q->bytes) - (p->bytes < q->bytes); /* empty ones first */
}

/* Neighbours touch: neither gap nor overlap. */
static kvs_status check_ranges(kvs__safetensors *s, kvs_err *err)
{
    const uint8_t *data = s->file + s->data_at;
    qsort(s->tensors, s->n, sizeof *s->tensors, by_begin);
    size_t end = 0;
    for (size_t i = 0; i < s->n; i++) {
        const kvs__st_tensor *t = &s->tensors[i];
        size_t begin = (size_t)(t->data - data);
        if (begin != end) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "%s: tensor \"%s\" begins at byte %zu of the data, %s byte %zu",
                             s->what, kvs__gguf_quote(t->name).text, begin,
                             begin < end ? "inside another that ends at" : "after a gap from", end);
        }
        end = begin + t->bytes;
    }
    size_t have = s->file_bytes - s->data_at;
    if (end != have) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: tensors end at byte %zu of the data, which has %zu", s->what, end,
                         have);
    }
    return KVS_OK;
}

static kvs_status read_header(kvs__safetensors *s, kvs_err *err)
{
    if (s->file_bytes < LENGTH_BYTES) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s has %zu bytes; no safetensors file",
                         s->what, s->file_bytes);
    }
    uint64_t n = kvs__gguf_le64(s->file);
    if (n > s->file_bytes - LENGTH_BYTES || n > KVS__ST_HEADER_MOST) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "%s: the header has %llu bytes, the file %zu, the most is %zu", s->what,
                         (unsigned long long)n, s->file_bytes, KVS__ST_HEADER_MOST);
    }
    const char *text = (const char *)s->file + LENGTH_BYTES;
    if (n == 0 || text[0] != '{') {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "%s: the header does not begin with {",
                         s->what);
    }
    s->data_at = LENGTH_BYTES + (size_t)n;
    return kvs__json_parse(s->ctx, text, (size_t)n, s->what, &s->header, err);
}

static kvs_status load(kvs__safetensors *s, kvs_err *err)
{
    kvs_status st = read_header(s, err);
    if (st == KVS_OK) {
        st = read_entries(s, err);
    }
    if (st == KVS_OK) {
        st = check_ranges(s, err);
    }
    if (st == KVS_OK) {
        s->index.items = (const unsigned char *)s->tensors;
        s->index.stride = sizeof *s->tensors;
        s->index.n = s->n;
        char what[sizeof s->what + 16];
        (void)snprintf(what, sizeof what, "%s: tensor", s->what);
        st = kvs__gguf_names_build(s->ctx, &s->index, what, err);
    }
    return st;
}

/* NULL: out of memory. */
static kvs__safetensors *handle_new(kvs_ctx *ctx, const char *what)
{
    kvs__safetensors *s = kvs__calloc(ctx, 1, sizeof *s);
    if (!s) {
        return NULL;
    }
    s->ctx = ctx;
    size_t len = strlen(what);
    size_t skip = len < sizeof s->what ? 0 : len + 1 - sizeof s->what;
    memcpy(s->what, what + skip, len - skip + 1);
    return s;
}

static kvs_status finish(kvs__safetensors *s, kvs__safetensors **out, kvs_err *err)
{
    kvs_status st = load(s, err);
    if (st != KVS_OK) {
        kvs__safetensors_close(s);
        return st;
    }
    *out = s;
    return KVS_OK;
}

kvs_status kvs__safetensors_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, const char *what,
                                     kvs__safetensors **out, kvs_err *err)
{
    kvs__safetensors *s = handle_new(ctx, what);
    if (!s) {
        return kvs__nomem(err, "engine", sizeof *s);
    }
    s->file = bytes;
    s->file_bytes = n;
    return finish(s, out, err);
}

kvs_status kvs__safetensors_open(kvs_ctx *ctx, const char *path, kvs__safetensors **out,
                                 kvs_err *err)
{
    kvs__safetensors *s = handle_new(ctx, path);
    if (!s) {
        return kvs__nomem(err, "engine", sizeof *s);
    }
    kvs_status st = kvs__map_open(path, &s->map, err);
    if (st != KVS_OK) {
        kvs__safetensors_close(s);
        return st;
    }
    s->file = s->map.data;
    s->file_bytes = s->map.bytes;
    return finish(s, out, err);
}

void kvs__safetensors_close(kvs__safetensors *s)
{
    if (!s) {
        return;
    }
    kvs__gguf_names_free(s->ctx, &s->index);
    kvs__free(s->ctx, s->names, s->names_bytes);
    kvs__free(s->ctx, s->tensors, s->cap * sizeof *s->tensors);
    kvs__json_free(s->header);
    kvs__map_close(&s->map);
    kvs__free(s->ctx, s, sizeof *s);
}

/* ---- questions */

size_t kvs__safetensors_bytes(const kvs__safetensors *s)
{
    return s->file_bytes;
}

const kvs__map *kvs__safetensors_map(const kvs__safetensors *s)
{
    return &s->map;
}

const kvs__st_tensor *kvs__safetensors_at(const kvs__safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const kvs__st_tensor *kvs__safetensors_find(const kvs__safetensors *s, kvs__str name)
{
    size_t i = kvs__gguf_names_find(&s->index, name.ptr, name.len);
    return i == SIZE_MAX ? NULL : &s->tensors[i];
}

kvs__jval kvs__safetensors_metadata(const kvs__safetensors *s)
{
    return s->meta;
}
