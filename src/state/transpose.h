/* SPDX-License-Identifier: MIT */
/* transpose.h: small blocks of f32 turned about. */
#ifndef KVS_STATE_TRANSPOSE_H
#define KVS_STATE_TRANSPOSE_H

#include <stddef.h>
#include <string.h>

/* dst[i * ldd + e] = src[e * lds + i], in registers. */
static inline void kvs__transpose_4x4(float *dst, size_t ldd, const float *src, size_t lds)
{
    typedef float vec __attribute__((vector_size(16)));
    vec in[4];
    for (size_t e = 0; e < 4; e++) {
        memcpy(&in[e], src + e * lds, sizeof in[e]);
    }
    vec ab = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
    vec ef = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
    vec cd = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
    vec gh = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
    vec out[4] = {
        __builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
        __builtin_shufflevector(ef, gh, 0, 1, 4, 5), __builtin_shufflevector(ef, gh, 2, 3, 6, 7)};
    for (size_t e = 0; e < 4; e++) {
        memcpy(dst + e * ldd, &out[e], sizeof out[e]);
    }
}

#endif
