/* SPDX-License-Identifier: MIT */
/* wtype.h: block types of model weights (GGUF numbering): the table and the reference decoder.
 *
 * A row of n elements is n / block_elems blocks of block_bytes, little-endian, packed without gaps.
 * kvs__gguf_dequant is the specification: every matrix kernel decodes a block to exactly these f32
 * values, which are bit for bit those of the `gguf` Python package (gguf.quants.dequantize). The
 * one exception: a NaN (infinite or NaN scale in a broken file) is a NaN in both, of any payload.
 *
 * Every product in these formulas is exact in f32 (11 bits of an f16, at most 7 of a scale, 5 of a
 * code, no underflow), so the one rounding is that of the last addition: factors may be multiplied
 * in any order, and fma gives the same bits as multiply and add. */
#ifndef KVS_KERN_WTYPE_H
#define KVS_KERN_WTYPE_H

#include <stddef.h>
#include <stdint.h>

/* X(NAME, number in the file, elements of a block, bytes of a block) */
#define KVS_WTYPE_MAP(X)                                                                           \
    X(F32, 0, 1, 4)                                                                                \
    X(F16, 1, 1, 2)                                                                                \
    X(Q4_0, 2, 32, 18)                                                                             \
    X(Q4_1, 3, 32, 20)                                                                             \
    X(Q5_0, 6, 32, 22)                                                                             \
    X(Q5_1, 7, 32, 24)                                                                             \
    X(Q8_0, 8, 32, 34)                                                                             \
    X(Q2_K, 10, 256, 84)                                                                           \
    X(Q3_K, 11, 256, 110)                                                                          \
    X(Q4_K, 12, 256, 144)                                                                          \
    X(Q5_K, 13, 256, 176)                                                                          \
    X(Q6_K, 14, 256, 210)                                                                          \
    X(BF16, 30, 1, 2)

/* Affine types, MLX's: X(NAME, number, bits). Codes in one plane, scales and biases in planes of
 * their own (kvs__waffine in wmat.h), so they are no block types: not in the table below and in no
 * GGUF file. 32 elements are `bits` words of 32 bits, a little-endian stream of codes. */
#define KVS_WTYPE_AFFINE_MAP(X)                                                                    \
    X(AFF2, 64, 2) X(AFF3, 65, 3) X(AFF4, 66, 4) X(AFF5, 67, 5) X(AFF6, 68, 6) X(AFF8, 69, 8)

typedef enum kvs__wtype {
#define KVS_X(name, number, elems, bytes) KVS__W_##name = number,
    KVS_WTYPE_MAP(KVS_X)
#undef KVS_X
#define KVS_X(name, number, bits) KVS__W_##name = number,
        KVS_WTYPE_AFFINE_MAP(KVS_X)
#undef KVS_X
} kvs__wtype;

/* Bits of a code of an affine type. */
static inline uint32_t kvs__waffine_bits(kvs__wtype type)
{
    uint32_t n = (uint32_t)type - (uint32_t)KVS__W_AFF2;
    return n == 5 ? 8 : n + 2;
}

typedef struct kvs__wtype_info {
    kvs__wtype type;
    uint32_t block_elems;
    uint32_t block_bytes;
    const char *name; /* "Q4_K" */
} kvs__wtype_info;

/* NULL for a number that is not in the table; any uint32_t may be asked. */
const kvs__wtype_info *kvs__wtype_get(uint32_t number);
/* Entry i of the table in order of numbers; NULL past the end. */
const kvs__wtype_info *kvs__wtype_at(size_t i);

/* Decodes n elements (a multiple of block_elems) from src, which needs no alignment. */
void kvs__gguf_dequant(kvs__wtype type, const void *src, size_t n, float *dst);

#endif
