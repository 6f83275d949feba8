/* SPDX-License-Identifier: MIT */
/* gguf.h: read-only access to a GGUF model file (versions 2 and 3, little-endian).
 *
 * Opening checks everything once: sizes, counts, names, types, offsets, overlaps. After that every
 * view lies inside the file and no access can fail. What is malformed is KVS_E_FORMAT, what is
 * valid but not read here (big-endian, version 1, nested arrays, other tensor types) is
 * KVS_E_UNSUPPORTED; the message names the key or tensor and the value.
 *
 * All views (strings, arrays, tensor data) are borrowed until kvs__gguf_close. A handle never
 * changes after opening: any number of threads may read it. What happens when the file is truncated
 * while open is said in base/map.h. */
#ifndef KVS_ENGINE_GGUF_H
#define KVS_ENGINE_GGUF_H

#include "base/base.h"
#include "kern/wtype.h"

typedef struct kvs__gguf kvs__gguf;

/* Bytes in the file: not terminated, may hold NUL and anything else where it is a value. Keys and
 * tensor names are UTF-8 of 1..65535 bytes without control characters. */
typedef struct kvs__str {
    const char *ptr;
    size_t len;
} kvs__str;

/* X(NAME, number in the file, bytes of a value or 0, text) */
#define KVS_GGUF_VTYPE_MAP(X)                                                                      \
    X(U8, 0, 1, "u8")                                                                              \
    X(I8, 1, 1, "i8")                                                                              \
    X(U16, 2, 2, "u16")                                                                            \
    X(I16, 3, 2, "i16")                                                                            \
    X(U32, 4, 4, "u32")                                                                            \
    X(I32, 5, 4, "i32")                                                                            \
    X(F32, 6, 4, "f32")                                                                            \
    X(BOOL, 7, 1, "bool")                                                                          \
    X(STR, 8, 0, "string")                                                                         \
    X(ARRAY, 9, 0, "array")                                                                        \
    X(U64, 10, 8, "u64")                                                                           \
    X(I64, 11, 8, "i64")                                                                           \
    X(F64, 12, 8, "f64")

typedef enum kvs__gguf_vtype {
#define KVS_X(name, number, bytes, text) KVS__GGUF_##name = number,
    KVS_GGUF_VTYPE_MAP(KVS_X)
#undef KVS_X
} kvs__gguf_vtype;

typedef struct kvs__gguf_array {
    kvs__gguf_vtype type;  /* of the elements; never KVS__GGUF_ARRAY */
    size_t n;              /* elements */
    const uint8_t *data;   /* little-endian, packed, not aligned; strings: u64 length, bytes */
    size_t bytes;          /* of data */
    const size_t *anchors; /* strings: offset in data of every 32nd element */
} kvs__gguf_array;

typedef struct kvs__gguf_kv {
    kvs__str key;
    kvs__gguf_vtype type;
    union {
        uint64_t u; /* U8 U16 U32 U64 */
        int64_t i;  /* I8 I16 I32 I64 */
        double f;   /* F32 F64 */
        bool b;
        kvs__str s;
        kvs__gguf_array a;
    } v;
} kvs__gguf_kv;

typedef struct kvs__gguf_tensor {
    kvs__str name;
    kvs__wtype type;
    uint32_t n_dims;  /* 1..4 */
    size_t ne[4];     /* elements per dimension, fastest first, unused ones 1; none is 0 */
    size_t n_rows;    /* ne[1] * ne[2] * ne[3] */
    size_t row_bytes; /* of ne[0] elements */
    size_t bytes;     /* n_rows * row_bytes */
    size_t offset;    /* from the start of the tensor data */
    const void *data; /* aligned as general.alignment says, at least 8 */
} kvs__gguf_tensor;

typedef struct kvs__gguf_info {
    uint32_t version;
    uint32_t alignment;
    size_t file_bytes;
    size_t data_offset; /* of the tensor data in the file */
    size_t n_kv;
    size_t n_tensors;
} kvs__gguf_info;

/* Maps and checks the file at path. */
kvs_status kvs__gguf_open(kvs_ctx *ctx, const char *path, kvs__gguf **out, kvs_err *err);
/* The same over n bytes of memory, borrowed until close; aligned to 64 if tensor data is to be. */
kvs_status kvs__gguf_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, kvs__gguf **out,
                              kvs_err *err);
void kvs__gguf_close(kvs__gguf *g); /* NULL is fine */

kvs__gguf_info kvs__gguf_get_info(const kvs__gguf *g);

/* Iteration in file order; NULL past the end. */
const kvs__gguf_kv *kvs__gguf_kv_at(const kvs__gguf *g, size_t i);
const kvs__gguf_tensor *kvs__gguf_tensor_at(const kvs__gguf *g, size_t i);

/* By name, in constant time; NULL when absent. */
const kvs__gguf_kv *kvs__gguf_kv_find(const kvs__gguf *g, const char *key);
const kvs__gguf_tensor *kvs__gguf_tensor_find(const kvs__gguf *g, const char *name);

/* Typed values. KVS_NO: no such key. KVS_E_FORMAT: another type, both are named. Integer getters
 * take any integer type, KVS_E_RANGE if the value does not fit; f32 takes f32 and f64, rounded.
 * *out is written on KVS_OK only. */
kvs_status kvs__gguf_get_u32(const kvs__gguf *g, const char *key, uint32_t *out, kvs_err *err);
kvs_status kvs__gguf_get_u64(const kvs__gguf *g, const char *key, uint64_t *out, kvs_err *err);
kvs_status kvs__gguf_get_i64(const kvs__gguf *g, const char *key, int64_t *out, kvs_err *err);
kvs_status kvs__gguf_get_f32(const kvs__gguf *g, const char *key, float *out, kvs_err *err);
kvs_status kvs__gguf_get_bool(const kvs__gguf *g, const char *key, bool *out, kvs_err *err);
kvs_status kvs__gguf_get_str(const kvs__gguf *g, const char *key, kvs__str *out, kvs_err *err);
/* An array whose elements are of exactly that type. */
kvs_status kvs__gguf_get_array(const kvs__gguf *g, const char *key, kvs__gguf_vtype type,
                               kvs__gguf_array *out, kvs_err *err);

/* Element i < a->n. int: any integer type or bool, a u64 above INT64_MAX wraps; f32: f32 or f64;
 * str: at most 31 lengths are stepped over. Another type or index is a bug of the caller: 0. */
int64_t kvs__gguf_array_int(const kvs__gguf_array *a, size_t i);
float kvs__gguf_array_f32(const kvs__gguf_array *a, size_t i);
kvs__str kvs__gguf_array_str(const kvs__gguf_array *a, size_t i);
/* Walks strings in order without searching: *at (an offset in data) is 0 at first; false after the
 * last element. */
bool kvs__gguf_array_next(const kvs__gguf_array *a, size_t *at, kvs__str *out);

const char *kvs__gguf_vtype_name(kvs__gguf_vtype type);
bool kvs__str_eq(kvs__str s, const char *text);

#endif
