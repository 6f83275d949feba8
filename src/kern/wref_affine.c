/* SPDX-License-Identifier: MIT */
/* wref_affine.c: the reference decoder of rows, affine types included (wmat.h). Plain loops; this
 * is the specification, nothing here is tuned. */
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "kern/wmat.h"

/* Code e of a little-endian stream of codes of `bits` bits. */
static uint32_t code_at(const uint8_t *p, size_t e, uint32_t bits)
{
    uint32_t code = 0;
    for (uint32_t i = 0; i < bits; i++) {
        size_t at = e * bits + i;
        code |= (uint32_t)(p[at / 8] >> (at % 8) & 1u) << i;
    }
    return code;
}

/* Value i of a plane of scales or biases. */
static float scale_at(const uint8_t *p, kvs__wtype dtype, size_t i)
{
    uint16_t half = 0;
    float f = 0.0f;
    if (dtype == KVS__W_F32) {
        memcpy(&f, p + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, p + i * sizeof half, sizeof half);
    return dtype == KVS__W_F16 ? kvs__f16_to_f32(half) : kvs__bf16_to_f32(half);
}

void kvs__wrows_decode(const kvs__wrows *w, size_t j, size_t first, size_t n, float *dst)
{
    const uint8_t *row = w->data + j * w->row_bytes;
    const kvs__waffine *a = &w->affine;
    if (!a->scales) {
        const kvs__wtype_info *info = kvs__wtype_get((uint32_t)w->type);
        KVS_ASSERT(info && first % info->block_elems == 0);
        kvs__gguf_dequant(w->type, row + first / info->block_elems * info->block_bytes, n, dst);
        return;
    }
    uint32_t bits = kvs__waffine_bits(w->type);
    for (size_t i = 0; i < n; i++) {
        size_t e = first + i;
        size_t g = e >> (5 + a->shift);
        float scale = scale_at(a->scales + j * a->row_bytes, a->dtype, g);
        float bias = scale_at(a->biases + j * a->row_bytes, a->dtype, g);
        float p = scale * (float)code_at(row, e, bits);
        dst[i] = p + bias;
    }
}
