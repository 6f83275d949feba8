/* SPDX-License-Identifier: MIT */
/* codec_neon.c: the codec kernels for Armv8-A Advanced SIMD: the primitives that codec_simd.h
 * wants. `bits` is a constant wherever it is passed. */
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#include "kern/vec_neon.h"

typedef struct v32 {
    uint8x16_t half[2]; /* 16 codes each */
} v32;

/* 16 codes of a stream each: 2 * bits bytes from byte 0 on, rubbish after them. */
typedef struct v32_stream {
    uint8x16_t half[2];
} v32_stream;

INLINE vf vf_rint(vf x)
{
    return vrndnq_f32(x);
}

INLINE vf vf_abs(vf x)
{
    return vabsq_f32(x);
}

INLINE vf vf_neg(vf x)
{
    return vnegq_f32(x);
}

INLINE vm vm_gt(vf a, vf b)
{
    return vcgtq_f32(a, b);
}

/* Compare and select: the minimum instructions return a NaN, or do for a signalling one. */
INLINE vf vf_min(vf x, vf acc)
{
    return vf_sel(vm_lt(x, acc), x, acc);
}

INLINE vf vf_max(vf x, vf acc)
{
    return vf_sel(vm_gt(x, acc), x, acc);
}

INLINE float vf_hmin(vf x)
{
    return vminvq_f32(x);
}

INLINE float vf_hmax(vf x)
{
    return vmaxvq_f32(x);
}

INLINE vf vf_butterfly(vf x, int h)
{
    static const uint32_t upper[2][4] = {{0, ~0u, 0, ~0u}, {0, 0, ~0u, ~0u}};
    vf partner = h == 1 ? vrev64q_f32(x) : vextq_f32(x, x, 2);
    vm m = vld1q_u32(upper[h - 1]);
    return vf_sel(m, vsubq_f32(partner, x), vaddq_f32(partner, x));
}

INLINE void vf_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}

INLINE vf vf_round_f16(vf x)
{
    return vcvt_f32_f16(vcvt_f16_f32(x));
}

/* The f32 pattern whose upper half is the nearest bf16. */
INLINE uint32x4_t bf16_rounded(vf x)
{
    uint32x4_t u = vreinterpretq_u32_f32(x);
    uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd);
}

INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    uint32x4_t quiet = vorrq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x400000));
    uint32x4_t r = vbslq_u32(vm_nan(x), quiet, bf16_rounded(x));
    vst1_u16(p, vshrn_n_u32(r, 16));
}

INLINE vf vf_round_bf16(vf x)
{
    return vreinterpretq_f32_u32(vandq_u32(bf16_rounded(x), vdupq_n_u32(0xffff0000u)));
}

/* The conversion gives 0 for a NaN and for what is negative. */
INLINE uint16x8_t codes_8(vf a, vf b)
{
    return vcombine_u16(vmovn_u32(vcvtnq_u32_f32(a)), vmovn_u32(vcvtnq_u32_f32(b)));
}

INLINE v32 v32_codes(const vf *q, uint32_t top)
{
    v32 c;
    for (int i = 0; i < 2; i++, q += 4) {
        uint8x16_t v =
            vcombine_u8(vqmovn_u16(codes_8(q[0], q[1])), vqmovn_u16(codes_8(q[2], q[3])));
        c.half[i] = vminq_u8(v, vdupq_n_u8((uint8_t)top));
    }
    return c;
}

/* The table bytes that move together the `b` bytes that either 64 bits hold. */
#define KEEP(b, i) (uint8_t)((i) < (b) ? (i) : (i) < 2 * (b) ? 8 + (i) - (b) : 0xffu)

/* Neighbours are joined three times, to 2, 4 and 8 codes in 16, 32 and 64 bits. */
INLINE uint8x16_t join_codes(uint8x16_t c, uint32_t b)
{
    uint16x8_t h = vreinterpretq_u16_u8(c);
    h = vorrq_u16(vandq_u16(h, vdupq_n_u16(0xff)),
                  vshlq_u16(vshrq_n_u16(h, 8), vdupq_n_s16((int16_t)b)));
    uint32x4_t w = vreinterpretq_u32_u16(h);
    w = vorrq_u32(vandq_u32(w, vdupq_n_u32(0xffff)),
                  vshlq_u32(vshrq_n_u32(w, 16), vdupq_n_s32((int32_t)(2 * b))));
    uint64x2_t d = vreinterpretq_u64_u32(w);
    d = vorrq_u64(vandq_u64(d, vdupq_n_u64(0xffffffffu)),
                  vshlq_u64(vshrq_n_u64(d, 32), vdupq_n_s64((int64_t)(4 * b))));
    uint8x16_t keep = {KEEP(b, 0),  KEEP(b, 1),  KEEP(b, 2),  KEEP(b, 3), KEEP(b, 4),  KEEP(b, 5),
                       KEEP(b, 6),  KEEP(b, 7),  KEEP(b, 8),  KEEP(b, 9), KEEP(b, 10), KEEP(b, 11),
                       KEEP(b, 12), KEEP(b, 13), KEEP(b, 14), KEEP(b, 15)};
    return vqtbl1q_u8(vreinterpretq_u8_u64(d), keep);
}

INLINE void v32_pack(uint32_t *words, v32 c, uint32_t bits)
{
    uint8_t *dst = (uint8_t *)words;
    for (int i = 0; i < 2; i++, dst += 2 * bits) {
        uint8x16_t v = bits == 8 ? c.half[i] : join_codes(c.half[i], bits);
        memcpy(dst, &v, 2 * bits);
    }
}

INLINE v32_stream v32_load(const uint32_t *words, uint32_t bits, size_t left)
{
    const uint8_t *p = (const uint8_t *)words;
    v32_stream s;
    if (left >= 2 * bits + 16) { /* whole vectors, all of it within the argument */
        s.half[0] = vld1q_u8(p);
        s.half[1] = vld1q_u8(p + 2 * bits);
        return s;
    }
    s.half[0] = vdupq_n_u8(0);
    s.half[1] = vdupq_n_u8(0);
    memcpy(&s.half[0], p, 2 * bits);
    memcpy(&s.half[1], p + 2 * bits, 2 * bits);
    return s;
}

/* Code k of 16: the one or two bytes it lies in, brought to a 32-bit lane, and the shift down. */
#define FIRST(b, k) (uint8_t)((k) * (b) / 8)
#define NEXT(b, k)  (uint8_t)((k) * (b) % 8 + (b) > 8 ? (k) * (b) / 8 + 1 : 0xffu)
#define BYTES(b, k) FIRST(b, k), NEXT(b, k), 0xff, 0xff
#define SHIFT(b, k) (-(int32_t)((k) * (b) % 8))

INLINE vf v32_values(v32_stream s, uint32_t b, int j)
{
    uint32_t k = 4 * ((uint32_t)j % 4);
    uint8x16_t bytes = {BYTES(b, k), BYTES(b, k + 1), BYTES(b, k + 2), BYTES(b, k + 3)};
    int32x4_t shift = {SHIFT(b, k), SHIFT(b, k + 1), SHIFT(b, k + 2), SHIFT(b, k + 3)};
    uint32x4_t u = vreinterpretq_u32_u8(vqtbl1q_u8(s.half[j / 4], bytes));
    if (b != 8) {
        u = vandq_u32(vshlq_u32(u, shift), vdupq_n_u32((1u << b) - 1));
    }
    return vcvtq_f32_u32(u);
}

#include "kern/codec_simd.h"

void kvs__kern_init_codec_neon(kvs__kern *k)
{
    codec_init(k);
}
