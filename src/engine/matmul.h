/* SPDX-License-Identifier: MIT */
/* matmul.h: activations times weight matrices, shared out over a thread pool.
 *
 * The bits of a result depend on its row of x and its row of W alone (docs/numerics-weights.md):
 * not on the number of rows, of threads, nor on how the work is cut. Never allocates, cannot fail.
 */
#ifndef KVS_ENGINE_MATMUL_H
#define KVS_ENGINE_MATMUL_H

#include "base/pool.h"
#include "kern/wmat.h"

#define KVS__MATMUL_MAX 8u /* matrices of one call */

/* y[r * ldy + j] = row r of x times row j of w. */
typedef struct kvs__mat_out {
    kvs__wrows w;
    float *y;
    size_t ldy;
} kvs__mat_out;

/* Matrices that share x (q, k, v; gate, up) go in one call: one barrier instead of three. */
typedef struct kvs__matmul_args {
    const kvs__wkern *kern;
    const float *x; /* [rows][ldx] */
    size_t ldx;
    size_t rows;
    const kvs__mat_out *outs; /* outputs do not overlap each other nor x */
    size_t n_outs;            /* at most KVS__MATMUL_MAX */
    void *scratch;            /* kvs__matmul_scratch bytes, aligned to 64 */
    size_t scratch_bytes;
} kvs__matmul_args;

void kvs__matmul(kvs__pool *pool, const kvs__matmul_args *args);
/* For rows of at most k elements; saturates at SIZE_MAX. */
size_t kvs__matmul_scratch(uint32_t n_threads, size_t k);

/* The matrix at data: n rows of k elements without gaps. */
kvs__wrows kvs__wrows_of(kvs__wtype type, const void *data, size_t n, size_t k);

#endif
