/* SPDX-License-Identifier: MIT */
/* safetensors_write.h: writes a safetensors file, durable or absent: first everything is declared, then
 * the data follows in the order of declaration.
 *
 * A file appears under its name only by kvs__st_commit, which refuses one whose data is not complete.
 * Names and metadata are escaped as JSON wants it; the caller answers for UTF-8 and for names that
 * are not given twice. */
#ifndef KVS_ENGINE_SAFETENSORS_WRITE_H
#define KVS_ENGINE_SAFETENSORS_WRITE_H

#include "base/vfs.h"
#include "engine/safetensors.h"

typedef struct kvs__st_writer kvs__st_writer;

kvs_status kvs__st_writer_new(kvs_ctx *ctx, kvs__st_writer **out, kvs_err *err);
/* Removes what is not committed. NULL is fine. */
void kvs__st_writer_free(kvs__st_writer *w);

/* Metadata before the first tensor. */
kvs_status kvs__st_meta(kvs__st_writer *w, const char *key, const char *value, kvs_err *err);
kvs_status kvs__st_tensor_declare(kvs__st_writer *w, const char *name, kvs__st_dtype dtype,
                                  uint32_t n_dims, const size_t *dims, kvs_err *err);
/* Opens the file beside `path` and writes the header. */
kvs_status kvs__st_begin(kvs__st_writer *w, kvs__vfs *v, const char *path, kvs_err *err);
kvs_status kvs__st_data(kvs__st_writer *w, const void *data, size_t bytes, kvs_err *err);
kvs_status kvs__st_commit(kvs__st_writer *w, kvs_err *err);

#endif
