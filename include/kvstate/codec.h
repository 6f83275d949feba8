/* SPDX-License-Identifier: MIT */
/* kvstate/codec.h: how one token's key or value vector of one head is stored. */
#ifndef KVSTATE_CODEC_H
#define KVSTATE_CODEC_H

#include "kvstate/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum kvs_dtype { KVS_F32 = 0, KVS_F16 = 1, KVS_BF16 = 2 } kvs_dtype;

/* A codec is a value: compare, copy and print it freely.
 * Dense: bits = 0, the dtype is that of the elements.
 * Affine: `bits` per code (2,3,4,5,6,8), `group` consecutive elements (32,64,128) share a scale and
 * a bias of `dtype`; storage is MLX's `mx.quantize(mode="affine")` (CPU backend) bit for bit.
 * `rotate` holds flags, for affine codecs alone.
 * KVS_ROTATED: vectors are multiplied by a normalised Hadamard matrix (blocks of the largest power of
 * two that divides the head dim) before they are encoded. Reads undo it: for K the query is turned
 * the same way, for V the output is turned back.
 * KVS_CENTERED, with KVS_ROTATED: of K, what is encoded is the difference to a centre that all
 * positions [g KVS_CENTER_GROUP, (g + 1) KVS_CENTER_GROUP) share, which is stored once a group and
 * head in `dtype`: the mean of the stored keys of some positions before the group (docs/numerics.md),
 * 0 where there are none. Keys have a large mean that moves slowly; the codes need not spend
 * themselves on it. Without effect on V and on latent rows. */
#define KVS_ROTATED      1u
#define KVS_CENTERED     2u
#define KVS_CENTER_GROUP 64u
typedef struct kvs_codec {
    uint8_t bits;
    uint8_t rotate;
    uint16_t group;
    kvs_dtype dtype;
} kvs_codec;

#define KVS_CODEC_DENSE(dtype_)                                                                    \
    {                                                                                              \
        0, 0, 0, (dtype_)                                                                          \
    }
#define KVS_CODEC_AFFINE(bits_, group_, dtype_)                                                    \
    {                                                                                              \
        (bits_), 0, (group_), (dtype_)                                                             \
    }

/* KVS_E_INVAL or KVS_E_UNSUPPORTED, and a message, unless vectors of `dim` (16..1024, a multiple of
 * 8) can be stored: bits and group from the lists above, dim a multiple of the group. */
KVS_API kvs_status kvs_codec_check(const kvs_codec *codec, uint32_t dim, kvs_err *err);

/* Stored bytes of one vector of `dim` elements (codes, scales and biases; centres come on top); 0 if
 * the check fails. */
KVS_API size_t kvs_codec_row_bytes(const kvs_codec *codec, uint32_t dim);

/* Bytes of the centre that KVS_CENTER_GROUP positions of one head share where keys of `dim` are
 * stored so; 0: not centred, or the check fails. */
KVS_API size_t kvs_codec_center_bytes(const kvs_codec *codec, uint32_t dim);

/* "f16", "bf16", "affine4:64" (f16 scales), "affine4:64/bf16", "q4" forms; see docs/plan.md.
 * Writes at most n bytes with the NUL and returns the length that was needed. */
KVS_API size_t kvs_codec_name(const kvs_codec *codec, char *dst, size_t n);
/* Reads what kvs_codec_name writes: "qN" = affineN:64 rotated, "cN" rotated and centred,
 * "affineN[:group]" neither. KVS_E_INVAL: no such name (the message quotes it). */
KVS_API kvs_status kvs_codec_parse(const char *name, kvs_codec *out, kvs_err *err);

/* Encodes n rows of dim elements (row-major, `src_dtype`) without rotation and centre: dense codecs
 * write `words` only ([n][dim] elements), affine ones words [n][dim*bits/32] u32 and scales, biases
 * [n][dim/group]. Every row is encoded on its own; threads are not used. KVS_E_INVAL and
 * KVS_E_UNSUPPORTED as kvs_codec_check, here and below. */
KVS_API kvs_status kvs_codec_encode(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim,
                                    size_t n, const void *src, kvs_dtype src_dtype, void *words,
                                    void *scales, void *biases, kvs_err *err);
/* Decodes to the codec's dtype with MLX's two roundings: T(T(code * scale) + bias); dense copies. */
KVS_API kvs_status kvs_codec_decode(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim,
                                    size_t n, const void *words, const void *scales,
                                    const void *biases, void *dst, kvs_err *err);
/* Decodes to f32: fma(code, scale, bias), one rounding. Attention reads this value of latent layers and of
 * dense codecs; of other affine layers it multiplies the codes themselves (docs/numerics.md). */
KVS_API kvs_status kvs_codec_decode_f32(const kvs_ctx *ctx, const kvs_codec *codec, uint32_t dim,
                                        size_t n, const void *words, const void *scales,
                                        const void *biases, float *dst, kvs_err *err);

#ifdef __cplusplus
}
#endif
#endif
