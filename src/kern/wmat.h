/* SPDX-License-Identifier: MIT */
/* wmat.h: the table of the kernels in wmat.inc, beside kern.h's and made the same way. */
#ifndef KVS_KERN_WMAT_H
#define KVS_KERN_WMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kern/wtype.h"

/* Rows of a weight matrix as they lie in the file: row j at data + j * row_bytes. */
typedef struct kvs__wrows {
    const uint8_t *data;
    size_t row_bytes; /* k / block_elems * block_bytes, or more */
    size_t n;         /* rows of W = elements of a row of y */
    size_t k;         /* elements of a row, a multiple of the type's block_elems */
    kvs__wtype type;
} kvs__wrows;

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
