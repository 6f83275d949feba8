/* SPDX-License-Identifier: MIT */
/* net_find.h: weights of an open file by the engine's names, for net.c and the files beside it.
 *
 * Nothing is guessed: a tensor that is missing or of another shape is an error that names it.
 * Matrices stay where the file is mapped; vectors (norms, biases, frequency factors, convolutions)
 * are copied to f32 into room that was reserved before, they are a few hundred kilobytes. */
#ifndef KVS_ENGINE_NET_FIND_H
#define KVS_ENGINE_NET_FIND_H

#include "engine/net.h"

typedef struct kvs__part {
    const char *name; /* after "blk.N." */
    size_t k, n;      /* a vector where k is 0 */
    kvs__wrows *matrix;
    const float **vector;
    bool optional;
} kvs__part;

/* Matrix `name` whose rows are those of several matrices, one under the other; n_rows == 0 ends. */
typedef struct kvs__slice {
    kvs__wrows *matrix;
    size_t n_rows;
} kvs__slice;

/* Room for all that is copied; call first. */
kvs_status kvs__reserve_vectors(kvs_model *m, kvs_err *err);

/* Matrix `name` of n rows of k; n == 0: as many as there are. Rows may be cut into a third
 * dimension. */
kvs_status kvs__find_matrix(kvs_model *m, const char *name, size_t k, size_t n, kvs__wrows *out,
                            kvs_err *err);
/* Expert x of the matrices `name`: n rows of k. */
kvs_status kvs__find_expert(kvs_model *m, const char *name, uint32_t x, size_t k, size_t n,
                            kvs__wrows *out, kvs_err *err);
/* Vector `name` of n elements as f32. */
kvs_status kvs__find_vector(kvs_model *m, const char *name, size_t n, const float **out,
                            kvs_err *err);
/* The same, NULL where there is none. */
kvs_status kvs__find_optional(kvs_model *m, const char *name, size_t n, const float **out,
                              kvs_err *err);
/* n numbers however they are shaped, as f32. */
kvs_status kvs__find_list(kvs_model *m, const char *name, size_t n, const float **out,
                          kvs_err *err);
bool kvs__has_tensor(const kvs_model *m, const char *name);

/* ---- of a layer: "blk.N.suffix" */
void kvs__layer_name(char name[64], uint32_t layer, const char *suffix);
bool kvs__has_part(const kvs_model *m, uint32_t layer, const char *suffix);
kvs_status kvs__find_parts(kvs_model *m, uint32_t layer, const kvs__part *parts, size_t n,
                           kvs_err *err);
kvs_status kvs__find_slices(kvs_model *m, uint32_t layer, const char *name, size_t k,
                            const kvs__slice *slices, size_t n_slices, kvs_err *err);

/* net_recurrent.c: the weights of a recurrent layer. */
kvs_status kvs__load_recurrent(kvs_model *m, uint32_t i, kvs_err *err);

#endif
