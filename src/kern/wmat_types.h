/* SPDX-License-Identifier: MIT */
/* wmat_types.h: the functions of every weight type and the tile functions, from a tier's hdr_T and
 * dec_T; included once by each wmat_TIER.c after them. */
#ifndef KVS_KERN_WMAT_TYPES_H
#define KVS_KERN_WMAT_TYPES_H

#define hdr_f32  hdr_none
#define hdr_f16  hdr_none
#define hdr_bf16 hdr_none
/* the tier has the others */
#define hdr_q5_k hdr_q4_k

TYPE_FNS(f32, 1, 128)
TYPE_FNS(f16, 1, 64)
TYPE_FNS(bf16, 1, 64)
TYPE_FNS(q4_0, 1, 18)
TYPE_FNS(q4_1, 1, 20)
TYPE_FNS(q5_0, 1, 22)
TYPE_FNS(q5_1, 1, 24)
TYPE_FNS(q8_0, 1, 34)
TYPE_FNS(q2_k, 8, 84)
TYPE_FNS(q3_k, 8, 110)
TYPE_FNS(q4_k, 8, 144)
TYPE_FNS(q5_k, 8, 176)
TYPE_FNS(q6_k, 8, 210)
#define hdr_aff2 NULL
#define hdr_aff3 NULL
#define hdr_aff4 NULL
#define hdr_aff5 NULL
#define hdr_aff6 NULL
#define hdr_aff8 NULL
TYPE_FNS(aff2, 1, 8)
TYPE_FNS(aff3, 1, 12)
TYPE_FNS(aff4, 1, 16)
TYPE_FNS(aff5, 1, 20)
TYPE_FNS(aff6, 1, 24)
TYPE_FNS(aff8, 1, 32)

static const type_ops ops[KVS__W_AFF8 + 1] = {
    TYPE_OPS(f32, F32),   TYPE_OPS(f16, F16),   TYPE_OPS(bf16, BF16), TYPE_OPS(q4_0, Q4_0),
    TYPE_OPS(q4_1, Q4_1), TYPE_OPS(q5_0, Q5_0), TYPE_OPS(q5_1, Q5_1), TYPE_OPS(q8_0, Q8_0),
    TYPE_OPS(q2_k, Q2_K), TYPE_OPS(q3_k, Q3_K), TYPE_OPS(q4_k, Q4_K), TYPE_OPS(q5_k, Q5_K),
    TYPE_OPS(q6_k, Q6_K), TYPE_OPS(aff2, AFF2), TYPE_OPS(aff3, AFF3), TYPE_OPS(aff4, AFF4),
    TYPE_OPS(aff5, AFF5), TYPE_OPS(aff6, AFF6), TYPE_OPS(aff8, AFF8),
};

TILE_FN(1)
TILE_FN(2)
#if TILE_R > 2
TILE_FN(3)
TILE_FN(4)
TILE_FN(5)
TILE_FN(6)
#endif

static const tile_fn tiles[TILE_R] = {
    tile_1, tile_2,
#if TILE_R > 2
    tile_3, tile_4, tile_5, tile_6,
#endif
};

#endif
