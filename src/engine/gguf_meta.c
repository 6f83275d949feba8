/* SPDX-License-Identifier: MIT */
/* gguf_meta.c: the keys of a GGUF file: reading them once, and the typed getters.
 *
 *     key    u64 length, bytes; u32 type; value
 *     string u64 length, bytes
 *     array  u32 element type, u64 count, elements without padding
 *
 * Scalars are decoded at once. Arrays stay in the file: numbers are checked by size alone, strings
 * are walked once, which also notes where every 32nd begins. Arrays of arrays are refused, so there
 * is no recursion. */
#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "base/half.h"
#include "engine/gguf_priv.h"

typedef struct vtype_info {
    uint32_t bytes; /* of a value, 0: it says so itself */
    const char *name;
} vtype_info;

static const vtype_info *vtype_get(uint32_t number)
{
    static const vtype_info table[] = {
#define KVS_X(name, number_, bytes, text) [number_] = {bytes, text},
        KVS_GGUF_VTYPE_MAP(KVS_X)
#undef KVS_X
    };
    return number < KVS_COUNT(table) ? &table[number] : NULL;
}

const char *kvs__gguf_vtype_name(kvs__gguf_vtype type)
{
    const vtype_info *info = vtype_get((uint32_t)type);
    return info ? info->name : "unknown";
}

static bool is_unsigned(kvs__gguf_vtype t)
{
    return t == KVS__GGUF_U8 || t == KVS__GGUF_U16 || t == KVS__GGUF_U32 || t == KVS__GGUF_U64;
}

static bool is_signed(kvs__gguf_vtype t)
{
    return t == KVS__GGUF_I8 || t == KVS__GGUF_I16 || t == KVS__GGUF_I32 || t == KVS__GGUF_I64;
}

static uint64_t le_uint(const uint8_t *p, uint32_t bytes)
{
    uint64_t u = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        u |= (uint64_t)p[i] << (8 * i);
    }
    return u;
}

static int64_t le_int(const uint8_t *p, uint32_t bytes)
{
    uint64_t sign = (uint64_t)1 << (8 * bytes - 1);
    uint64_t u = (le_uint(p, bytes) ^ sign) - sign; /* extends the sign */
    int64_t i = 0;
    memcpy(&i, &u, sizeof i);
    return i;
}

static double le_float(const uint8_t *p, uint32_t bytes)
{
    if (bytes == 4) {
        return (double)kvs__f32_bits(kvs__gguf_le32(p));
    }
    uint64_t u = kvs__gguf_le64(p);
    double d = 0;
    memcpy(&d, &u, sizeof d);
    return d;
}

/* Rounds to f32; beyond its range to infinity, which a plain cast leaves undefined. */
static float to_f32(double d)
{
    if (d > (double)FLT_MAX || d < -(double)FLT_MAX) {
        return d > 0 ? kvs__f32_bits(0x7f800000u) : kvs__f32_bits(0xff800000u);
    }
    return (float)d;
}

/* -- reading */

static kvs_status read_string(kvs__gguf_cursor *c, kvs__gguf_kv *kv, kvs_err *err)
{
    uint64_t len = 0;
    if (!kvs__gguf_take_u64(c, &len)) {
        return kvs__gguf_ends(c, "key", kv->key, "string length", err);
    }
    const uint8_t *p = kvs__gguf_take(c, len);
    if (!p) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "key '%s': string of %" PRIu64 " bytes reaches beyond the file's end",
                         kvs__gguf_quote(kv->key).text, len);
    }
    kv->v.s = (kvs__str){(const char *)p, (size_t)len};
    return KVS_OK;
}

static kvs_status bad_bool(const kvs__gguf_kv *kv, uint8_t value, kvs_err *err)
{
    return kvs__fail(err, KVS_E_FORMAT, "engine", "key '%s': bool has value %u, neither 0 nor 1",
                     kvs__gguf_quote(kv->key).text, value);
}

/* Walks the strings of an array; anchors[] has room for one of every 32. */
static kvs_status walk_strings(kvs__gguf_cursor *c, const kvs__gguf_kv *kv, size_t n,
                               size_t *anchors, kvs_err *err)
{
    size_t start = c->at;
    for (size_t i = 0; i < n; i++) {
        if (i % KVS__GGUF_ANCHOR_STEP == 0) {
            anchors[i / KVS__GGUF_ANCHOR_STEP] = c->at - start;
        }
        uint64_t len = 0;
        if (!kvs__gguf_take_u64(c, &len) || !kvs__gguf_take(c, len)) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "key '%s': string %zu of %zu (%" PRIu64
                             " bytes) reaches beyond the file's end",
                             kvs__gguf_quote(kv->key).text, i, n, len);
        }
    }
    return KVS_OK;
}

/* A string takes 8 bytes at least, so a checked count bounds the anchors by 1/32 of the file. */
static kvs_status read_strings(kvs__gguf *g, kvs__gguf_cursor *c, kvs__gguf_kv *kv, kvs_err *err)
{
    size_t n = kv->v.a.n;
    if (n == 0) {
        return KVS_OK;
    }
    size_t bytes = (n - 1) / KVS__GGUF_ANCHOR_STEP * sizeof(size_t) + sizeof(size_t);
    size_t *anchors = kvs__alloc(g->ctx, bytes);
    if (!anchors) {
        return kvs__nomem(err, "engine", bytes);
    }
    kvs_status st = walk_strings(c, kv, n, anchors, err);
    if (st != KVS_OK) {
        kvs__free(g->ctx, anchors, bytes);
        return st;
    }
    kv->v.a.anchors = anchors;
    return KVS_OK;
}

static kvs_status read_numbers(kvs__gguf_cursor *c, const kvs__gguf_kv *kv, uint32_t bytes_each,
                               kvs_err *err)
{
    const uint8_t *p = kvs__gguf_take(c, (uint64_t)kv->v.a.n * bytes_each);
    if (KVS_NEVER(!p)) { /* the count was checked */
        return kvs__gguf_ends(c, "key", kv->key, "array", err);
    }
    for (size_t i = 0; kv->v.a.type == KVS__GGUF_BOOL && i < kv->v.a.n; i++) {
        if (p[i] > 1) {
            return bad_bool(kv, p[i], err);
        }
    }
    return KVS_OK;
}

static kvs_status read_array(kvs__gguf *g, kvs__gguf_cursor *c, kvs__gguf_kv *kv, kvs_err *err)
{
    uint32_t type = 0;
    uint64_t n = 0;
    if (!kvs__gguf_take_u32(c, &type) || !kvs__gguf_take_u64(c, &n)) {
        return kvs__gguf_ends(c, "key", kv->key, "array header", err);
    }
    const vtype_info *info = vtype_get(type);
    if (!info) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "key '%s': array element type %" PRIu32 " is unknown",
                         kvs__gguf_quote(kv->key).text, type);
    }
    if (type == KVS__GGUF_ARRAY) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "engine",
                         "key '%s' is an array of arrays, which is not read",
                         kvs__gguf_quote(kv->key).text);
    }
    uint32_t least = info->bytes ? info->bytes : 8;
    if (n > (c->size - c->at) / least) {
        return kvs__fail(err, KVS_E_FORMAT, "engine",
                         "key '%s': array of %" PRIu64 " x %s reaches beyond the file's end",
                         kvs__gguf_quote(kv->key).text, n, info->name);
    }
    kv->v.a = (kvs__gguf_array){(kvs__gguf_vtype)type, (size_t)n, c->data + c->at, 0, NULL};
    kvs_status st =
        type == KVS__GGUF_STR ? read_strings(g, c, kv, err) : read_numbers(c, kv, info->bytes, err);
    kv->v.a.bytes = (size_t)(c->data + c->at - kv->v.a.data);
    return st;
}

static kvs_status read_scalar(kvs__gguf_cursor *c, kvs__gguf_kv *kv, uint32_t bytes, kvs_err *err)
{
    const uint8_t *p = kvs__gguf_take(c, bytes);
    if (!p) {
        return kvs__gguf_ends(c, "key", kv->key, "value", err);
    }
    if (kv->type == KVS__GGUF_BOOL) {
        if (*p > 1) {
            return bad_bool(kv, *p, err);
        }
        kv->v.b = *p == 1;
    } else if (is_unsigned(kv->type)) {
        kv->v.u = le_uint(p, bytes);
    } else if (is_signed(kv->type)) {
        kv->v.i = le_int(p, bytes);
    } else {
        kv->v.f = le_float(p, bytes);
    }
    return KVS_OK;
}

static kvs_status read_kv(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t i, kvs__gguf_kv *kv,
                          kvs_err *err)
{
    kvs_status st = kvs__gguf_read_name(c, "key", i, &kv->key, err);
    if (st != KVS_OK) {
        return st;
    }
    uint32_t type = 0;
    if (!kvs__gguf_take_u32(c, &type)) {
        return kvs__gguf_ends(c, "key", kv->key, "type", err);
    }
    const vtype_info *info = vtype_get(type);
    if (!info) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "key '%s': value type %" PRIu32 " is unknown",
                         kvs__gguf_quote(kv->key).text, type);
    }
    kv->type = (kvs__gguf_vtype)type;
    if (type == KVS__GGUF_ARRAY) {
        return read_array(g, c, kv, err);
    }
    return type == KVS__GGUF_STR ? read_string(c, kv, err) : read_scalar(c, kv, info->bytes, err);
}

kvs_status kvs__gguf_read_meta(kvs__gguf *g, kvs__gguf_cursor *c, uint64_t n, kvs_err *err)
{
    for (uint64_t i = 0; i < n; i++) {
        const size_t used = g->info.n_kv;
        kvs__gguf_kv *p = kvs__grow(g->ctx, g->kv, &g->cap_kv, used, used + 1, sizeof *p);
        if (!p) {
            return kvs__nomem(err, "engine", sizeof *p);
        }
        g->kv = p;
        kvs__gguf_kv kv = {0};
        kvs_status st = read_kv(g, c, i, &kv, err);
        if (st != KVS_OK) {
            return st;
        }
        g->kv[g->info.n_kv++] = kv;
    }
    g->kv_names.items = (const unsigned char *)g->kv;
    g->kv_names.stride = sizeof *g->kv;
    g->kv_names.n = g->info.n_kv;
    return kvs__gguf_names_build(g->ctx, &g->kv_names, "key", err);
}

/* -- getters */

static kvs_status wrong_type(const kvs__gguf_kv *kv, const char *want, kvs_err *err)
{
    bool array = kv->type == KVS__GGUF_ARRAY;
    return kvs__fail(err, KVS_E_FORMAT, "engine", "key '%s' is of type %s%s, expected %s",
                     kvs__gguf_quote(kv->key).text, array ? "array of " : "",
                     kvs__gguf_vtype_name(array ? kv->v.a.type : kv->type), want);
}

static kvs_status too_large(const kvs__gguf_kv *kv, const char *want, kvs_err *err)
{
    return kvs__fail(err, KVS_E_RANGE, "engine", "key '%s' is %" PRIu64 ", too large for %s",
                     kvs__gguf_quote(kv->key).text, kv->v.u, want);
}

static kvs_status get_unsigned(const kvs__gguf *g, const char *key, uint64_t max, const char *want,
                               uint64_t *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (!is_unsigned(kv->type) && !is_signed(kv->type)) {
        return wrong_type(kv, want, err);
    }
    if (is_signed(kv->type) && kv->v.i < 0) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "key '%s' is %" PRId64 ", negative for %s",
                         kvs__gguf_quote(kv->key).text, kv->v.i, want);
    }
    uint64_t u = is_signed(kv->type) ? (uint64_t)kv->v.i : kv->v.u;
    if (u > max) {
        return too_large(kv, want, err);
    }
    *out = u;
    return KVS_OK;
}

kvs_status kvs__gguf_get_u32(const kvs__gguf *g, const char *key, uint32_t *out, kvs_err *err)
{
    uint64_t u = 0;
    kvs_status st = get_unsigned(g, key, UINT32_MAX, "u32", &u, err);
    if (st == KVS_OK) {
        *out = (uint32_t)u;
    }
    return st;
}

kvs_status kvs__gguf_get_u64(const kvs__gguf *g, const char *key, uint64_t *out, kvs_err *err)
{
    return get_unsigned(g, key, UINT64_MAX, "u64", out, err);
}

kvs_status kvs__gguf_get_i64(const kvs__gguf *g, const char *key, int64_t *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (is_signed(kv->type)) {
        *out = kv->v.i;
        return KVS_OK;
    }
    if (!is_unsigned(kv->type)) {
        return wrong_type(kv, "i64", err);
    }
    if (kv->v.u > INT64_MAX) {
        return too_large(kv, "i64", err);
    }
    *out = (int64_t)kv->v.u;
    return KVS_OK;
}

kvs_status kvs__gguf_get_f32(const kvs__gguf *g, const char *key, float *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (kv->type != KVS__GGUF_F32 && kv->type != KVS__GGUF_F64) {
        return wrong_type(kv, "f32", err);
    }
    *out = to_f32(kv->v.f);
    return KVS_OK;
}

kvs_status kvs__gguf_get_bool(const kvs__gguf *g, const char *key, bool *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (kv->type != KVS__GGUF_BOOL) {
        return wrong_type(kv, "bool", err);
    }
    *out = kv->v.b;
    return KVS_OK;
}

kvs_status kvs__gguf_get_str(const kvs__gguf *g, const char *key, kvs__str *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (kv->type != KVS__GGUF_STR) {
        return wrong_type(kv, "string", err);
    }
    *out = kv->v.s;
    return KVS_OK;
}

kvs_status kvs__gguf_get_array(const kvs__gguf *g, const char *key, kvs__gguf_vtype type,
                               kvs__gguf_array *out, kvs_err *err)
{
    const kvs__gguf_kv *kv = kvs__gguf_kv_find(g, key);
    if (!kv) {
        return KVS_NO;
    }
    if (kv->type != KVS__GGUF_ARRAY || kv->v.a.type != type) {
        char want[32] = "array of ";
        strncat(want, kvs__gguf_vtype_name(type), sizeof want - 1 - strlen(want));
        return wrong_type(kv, want, err);
    }
    *out = kv->v.a;
    return KVS_OK;
}

/* -- elements */

static const uint8_t *element(const kvs__gguf_array *a, size_t i, uint32_t *bytes)
{
    *bytes = vtype_get((uint32_t)a->type)->bytes;
    return a->data + i * *bytes;
}

int64_t kvs__gguf_array_int(const kvs__gguf_array *a, size_t i)
{
    bool plain = is_unsigned(a->type) || a->type == KVS__GGUF_BOOL;
    if (KVS_NEVER(i >= a->n || (!plain && !is_signed(a->type)))) {
        return 0;
    }
    uint32_t bytes = 0;
    const uint8_t *p = element(a, i, &bytes);
    return plain && bytes < 8 ? (int64_t)le_uint(p, bytes) : le_int(p, bytes);
}

float kvs__gguf_array_f32(const kvs__gguf_array *a, size_t i)
{
    if (KVS_NEVER(i >= a->n || (a->type != KVS__GGUF_F32 && a->type != KVS__GGUF_F64))) {
        return 0.0f;
    }
    uint32_t bytes = 0;
    const uint8_t *p = element(a, i, &bytes);
    return to_f32(le_float(p, bytes));
}

kvs__str kvs__gguf_array_str(const kvs__gguf_array *a, size_t i)
{
    kvs__str s = {"", 0};
    if (KVS_NEVER(i >= a->n || a->type != KVS__GGUF_STR)) {
        return s;
    }
    size_t at = a->anchors[i / KVS__GGUF_ANCHOR_STEP];
    for (size_t k = i - i % KVS__GGUF_ANCHOR_STEP; k <= i; k++) {
        (void)kvs__gguf_array_next(a, &at, &s);
    }
    return s;
}

bool kvs__gguf_array_next(const kvs__gguf_array *a, size_t *at, kvs__str *out)
{
    if (*at >= a->bytes || KVS_NEVER(a->type != KVS__GGUF_STR)) {
        return false;
    }
    const uint8_t *p = a->data + *at;
    size_t len = (size_t)kvs__gguf_le64(p);
    *out = (kvs__str){(const char *)p + 8, len};
    *at += 8 + len;
    return true;
}
