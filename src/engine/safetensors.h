/* SPDX-License-Identifier: MIT */
/* safetensors.h: read-only access to one safetensors file: 8 bytes header length, a JSON header,
 * tensor data.
 *
 * Opening checks everything once, as the format demands: the length, the JSON, every dtype, shape
 * and range; names are unique; the ranges cover the data exactly, without a gap or an overlap.
 * After that every view lies inside the file and no access can fail. Data has no alignment: a
 * reader of more than a byte goes through memcpy. What is malformed is KVS_E_FORMAT with the file,
 * the tensor and the value.
 *
 * All views are borrowed until close. A handle never changes after opening: any number of threads
 * may read it. What happens when the file is truncated while open is said in base/map.h. */
#ifndef KVS_ENGINE_SAFETENSORS_H
#define KVS_ENGINE_SAFETENSORS_H

#include "base/base.h"
#include "base/map.h"
#include "engine/json.h"

#define KVS__ST_HEADER_MOST ((size_t)100 << 20) /* the format's own limit is 100 MB */
#define KVS__ST_DIMS        8u

/* X(NAME in the file, bits of an element) */
#define KVS_ST_DTYPE_MAP(X)                                                                        \
    X(F32, 32)                                                                                     \
    X(F16, 16)                                                                                     \
    X(BF16, 16)                                                                                    \
    X(U32, 32)                                                                                     \
    X(BOOL, 8)                                                                                     \
    X(U8, 8)                                                                                       \
    X(I8, 8)                                                                                       \
    X(I16, 16)                                                                                     \
    X(U16, 16)                                                                                     \
    X(I32, 32)                                                                                     \
    X(F64, 64)                                                                                     \
    X(I64, 64)                                                                                     \
    X(U64, 64)                                                                                     \
    X(C64, 64)                                                                                     \
    X(F8_E5M2, 8)                                                                                  \
    X(F8_E4M3, 8)                                                                                  \
    X(F8_E8M0, 8)                                                                                  \
    X(F6_E2M3, 6)                                                                                  \
    X(F6_E3M2, 6)                                                                                  \
    X(F4, 4)

typedef enum kvs__st_dtype {
#define KVS_X(name, bits) KVS__ST_##name,
    KVS_ST_DTYPE_MAP(KVS_X)
#undef KVS_X
} kvs__st_dtype;

typedef struct kvs__st_tensor {
    kvs__str name; /* UTF-8 of 1..65535 bytes without control characters */
    kvs__st_dtype dtype;
    uint32_t n_dims;           /* 0: a single value */
    size_t dims[KVS__ST_DIMS]; /* slowest first, as in the file; unused ones 1 */
    size_t n;                  /* elements, may be 0 */
    size_t bytes;
    const uint8_t *data; /* not aligned */
} kvs__st_tensor;

typedef struct kvs__safetensors kvs__safetensors;

/* Maps and checks the file at path. */
kvs_status kvs__safetensors_open(kvs_ctx *ctx, const char *path, kvs__safetensors **out,
                                 kvs_err *err);
/* The same over n bytes of memory, borrowed until close; `what` names them in messages. */
kvs_status kvs__safetensors_open_mem(kvs_ctx *ctx, const void *bytes, size_t n, const char *what,
                                     kvs__safetensors **out, kvs_err *err);
void kvs__safetensors_close(kvs__safetensors *s); /* NULL is fine */

size_t kvs__safetensors_bytes(const kvs__safetensors *s); /* of the file */
/* The mapped file; bytes 0 where it was opened in memory. */
const kvs__map *kvs__safetensors_map(const kvs__safetensors *s);
/* In order of their data; NULL past the end. */
const kvs__st_tensor *kvs__safetensors_at(const kvs__safetensors *s, size_t i);
/* By name, in constant time; NULL when absent. */
const kvs__st_tensor *kvs__safetensors_find(const kvs__safetensors *s, kvs__str name);
/* "__metadata__", an object of strings; none where the file has no such member. */
kvs__jval kvs__safetensors_metadata(const kvs__safetensors *s);

const char *kvs__st_dtype_name(kvs__st_dtype dtype);
uint32_t kvs__st_dtype_bits(kvs__st_dtype dtype);

#endif
