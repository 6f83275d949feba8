/* SPDX-License-Identifier: MIT */
/* wmat.h: the table of the kernels in wmat.inc, beside kern.h's and made the same way. */
#ifndef KVS_KERN_WMAT_H
#define KVS_KERN_WMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern/wtype.h"

/* Scales and biases of an affine type, planes of their own: row j at j * row_bytes in both, one of
 * each for 32 << shift elements. Not aligned. */
typedef struct kvs__waffine {
    const uint8_t *scales; /* NULL: not an affine type */
    const uint8_t *biases;
    size_t row_bytes;
    uint32_t shift;   /* group of 32, 64 or 128 elements: 0, 1, 2 */
    kvs__wtype dtype; /* F32, F16 or BF16 */
} kvs__waffine;

/* Rows of a weight matrix as they lie in the file: row j at data + j * row_bytes. */
typedef struct kvs__wrows {
    const uint8_t *data;
    size_t row_bytes; /* k / block_elems * block_bytes, or more */
    size_t n;         /* rows of W = elements of a row of y */
    size_t k;         /* elements of a row, a multiple of the type's block_elems */
    kvs__wtype type;
    kvs__waffine affine;
} kvs__wrows;

/* Rows first .. first + n - 1 of w. */
static inline kvs__wrows kvs__wrows_part(const kvs__wrows *w, size_t first, size_t n)
{
    kvs__wrows part = *w;
    part.data += first * w->row_bytes;
    part.n = n;
    if (part.affine.scales) {
        part.affine.scales += first * w->affine.row_bytes;
        part.affine.biases += first * w->affine.row_bytes;
    }
    return part;
}

/* Elements first .. first + n - 1 of row j; `first` is where a block begins. The specification of
 * affine types: value = code * scale + bias, both operations rounded to f32, with scale and bias as
 * f32 exactly. With scales of 16 bits the product is exact; with f32 ones it is not, so that a
 * fused operation would be another number. */
void kvs__wrows_decode(const kvs__wrows *w, size_t j, size_t first, size_t n, float *dst);

#define KVS_WKERN(name, ret, args) typedef ret(*kvs__##name##_wfn) args;
#include "kern/wmat.inc"
#undef KVS_WKERN

typedef struct kvs__wkern {
#define KVS_WKERN(name, ret, args) kvs__##name##_wfn name;
#include "kern/wmat.inc"
#undef KVS_WKERN
} kvs__wkern;

/* The table for a set of KVS_TIER_*; tables are made once and live for ever. */
const kvs__wkern *kvs__wkern_for(uint32_t tiers);

/* Bytes of scratch that matmul needs for rows of k elements, the same for every tier; a multiple of
 * 64. Saturates at SIZE_MAX, which no allocator grants. */
size_t kvs__wmat_scratch(size_t k);
/* Rows of W that matmul decodes at a time, a multiple of KVS__WTILE_ROWS. */
size_t kvs__wmat_panel_rows(size_t k);

/* Sizes that scratch and driver agree on. */
#define KVS__WPANEL_BYTES (256u << 10) /* decoded rows: half of a 512 KiB second-level cache */
#define KVS__WPANEL_ROWS  96u          /* most rows decoded at a time */
#define KVS__WTILE_ROWS   12u          /* a multiple of every tier's tile; n splits on multiples */
#define KVS__WCHUNK       768u         /* elements of a row that a tile walks at a time */

/* gelu: C1 = 2 sqrt(2 / pi), C3 = 0.044715 C1 */
#define KVS__GELU_C1 1.59576912f
#define KVS__GELU_C3 0.0713548162f

void kvs__wkern_init_ref(kvs__wkern *k);
void kvs__wkern_init_vec_ref(kvs__wkern *k);
void kvs__wkern_init_avx2(kvs__wkern *k);
void kvs__wkern_init_vec_avx2(kvs__wkern *k);
void kvs__wkern_init_avx512(kvs__wkern *k);
void kvs__wkern_init_neon(kvs__wkern *k);
void kvs__wkern_init_vec_neon(kvs__wkern *k);

#endif
