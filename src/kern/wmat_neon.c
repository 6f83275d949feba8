/* SPDX-License-Identifier: MIT */
/* wmat_neon.c: weights x activations with Advanced SIMD; equals wmat_ref.c bit for bit.
 *
 * Every quantised type goes one way: the scales of a block become floats (factors in h[0..15],
 * offsets in h[16..31], one for each 16 elements), the codes of a part 32 signed bytes, widened to
 * f32 and multiplied; products are exact in f32. Layouts as in wref.c. Written for equality and run
 * under an emulator; not tuned on a processor. */
#include <arm_neon.h>
#include <string.h>

#include "base/half.h"

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH(i, n)  UNROLL for (unsigned i = 0; i < (n); i++)
#define NI          static inline __attribute__((always_inline))
#define HOLD(v)     __asm__("" : "+w"(v))
#define PREFETCH(p) __builtin_prefetch((const void *)(p))

typedef float32x4_t vec;
#define VL            4u
#define vload         vld1q_f32
#define vstore        vst1q_f32
#define vzero()       vdupq_n_f32(0.0f)
#define vfma(a, b, c) vfmaq_f32(c, a, b)
#define TILE_R        6u
#define TILE_C        4u
#define FUSED_MOST    4u
#define FUSED_MAX     4u
#define FUSED_SHARED  0
#define FUSED_MORE(T, parts, bytes)
#define FUSED_MORE_OPS(T)
#define FUSED_COLS_1 4
#define FUSED_COLS_2 2
#define FUSED_COLS_3 1
#define FUSED_COLS_4 1

#define TILE_STEP(a, xs, ldx, w, rows)                                                             \
    do {                                                                                           \
        vec tw[TILE_C];                                                                            \
        EACH (c, TILE_C) {                                                                         \
            tw[c] = vload((w) + c * VL);                                                           \
        }                                                                                          \
        EACH (r, (rows)) {                                                                         \
            vec tx = vload((xs) + r * (ldx));                                                      \
            EACH (c, TILE_C) {                                                                     \
                (a)[r][c] = vfma(tx, tw[c], (a)[r][c]);                                            \
            }                                                                                      \
        }                                                                                          \
    } while (0)

/* Lanes i + (i + 8), then + 4: one vector of four for one output. */
NI vec fold(const float *acc)
{
    vec lo = vaddq_f32(vld1q_f32(acc), vld1q_f32(acc + 8));
    vec hi = vaddq_f32(vld1q_f32(acc + 4), vld1q_f32(acc + 12));
    return vaddq_f32(lo, hi);
}

NI void reduce4(float *y, const float *acc)
{
    vec a = fold(acc);
    vec b = fold(acc + 16);
    vec c = fold(acc + 32);
    vec d = fold(acc + 48);
    /* i + (i + 2), then i + (i + 1) */
    vec ab = vcombine_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)),
                          vadd_f32(vget_low_f32(b), vget_high_f32(b)));
    vec cd = vcombine_f32(vadd_f32(vget_low_f32(c), vget_high_f32(c)),
                          vadd_f32(vget_low_f32(d), vget_high_f32(d)));
    vec s = vaddq_f32(vuzp1q_f32(ab, cd), vuzp2q_f32(ab, cd));
    vst1q_f32(y, vbslq_f32(vceqq_f32(s, s), s, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u))));
}

NI float f16_one(const uint8_t *p)
{
    uint16_t u = 0;
    memcpy(&u, p, sizeof u);
    return kvs__f16_to_f32(u);
}

#include "kern/wmat_tile.h"

/* Affine types: eight codes lie in `bits` bytes; each is cut out of two neighbouring bytes. */
NI void affine8(uint8x16_t src, const uint8_t *at, const int16_t *shift, unsigned mask,
                const float *h, vec *v)
{
    uint16x8_t two = vreinterpretq_u16_u8(vqtbl1q_u8(src, vld1q_u8(at)));
    uint16x8_t q = vandq_u16(vshlq_u16(two, vld1q_s16(shift)), vdupq_n_u16((uint16_t)mask));
    vec s = vdupq_n_f32(h[0]);
    vec b = vdupq_n_f32(h[16]);
    v[0] = vaddq_f32(vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(q))), s), b);
    v[1] = vaddq_f32(vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(q))), s), b);
}

#define TWO(o) (uint8_t)(o), (uint8_t)((o) + 1)
#define AT2(c)                                                                                     \
    {                                                                                              \
        TWO(c), TWO(c), TWO(c), TWO(c), TWO((c) + 1), TWO((c) + 1), TWO((c) + 1), TWO((c) + 1)     \
    }
#define AT3(c)                                                                                     \
    {                                                                                              \
        TWO(c), TWO(c), TWO(c), TWO((c) + 1), TWO((c) + 1), TWO((c) + 1), TWO((c) + 2),            \
            TWO((c) + 2)                                                                           \
    }
#define AT4(c)                                                                                     \
    {                                                                                              \
        TWO(c), TWO(c), TWO((c) + 1), TWO((c) + 1), TWO((c) + 2), TWO((c) + 2), TWO((c) + 3),      \
            TWO((c) + 3)                                                                           \
    }
#define AT5(c)                                                                                     \
    {                                                                                              \
        TWO(c), TWO(c), TWO((c) + 1), TWO((c) + 1), TWO((c) + 2), TWO((c) + 3), TWO((c) + 3),      \
            TWO((c) + 4)                                                                           \
    }
#define AT6(c)                                                                                     \
    {                                                                                              \
        TWO(c), TWO(c), TWO((c) + 1), TWO((c) + 2), TWO((c) + 3), TWO((c) + 3), TWO((c) + 4),      \
            TWO((c) + 5)                                                                           \
    }
static const int16_t shift2[8] = {0, -2, -4, -6, 0, -2, -4, -6};
static const int16_t shift3[8] = {0, -3, -6, -1, -4, -7, -2, -5};
static const int16_t shift4[8] = {0, -4, 0, -4, 0, -4, 0, -4};
static const int16_t shift5[8] = {0, -5, -2, -7, -4, -1, -6, -3};
static const int16_t shift6[8] = {0, -6, -4, -2, 0, -6, -4, -2};

NI void dec_aff2(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    static const uint8_t at[4][16] = {AT2(0), AT2(2), AT2(4), AT2(6)};
    uint8x16_t q = vcombine_u8(vld1_u8(b), vdup_n_u8(0));
    (void)s;
    EACH (i, 4) {
        affine8(q, at[i], shift2, 3, h, v + 2 * i);
    }
}

NI void dec_aff3(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    static const uint8_t at[4][16] = {AT3(0), AT3(3), AT3(6), AT3(9)};
    uint8_t t[16] = {0};
    (void)s;
    memcpy(t, b, 12);
    uint8x16_t q = vld1q_u8(t);
    EACH (i, 4) {
        affine8(q, at[i], shift3, 7, h, v + 2 * i);
    }
}

NI void dec_aff4(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    static const uint8_t at[4][16] = {AT4(0), AT4(4), AT4(8), AT4(12)};
    uint8x16_t q = vld1q_u8(b);
    (void)s;
    EACH (i, 4) {
        affine8(q, at[i], shift4, 15, h, v + 2 * i);
    }
}

/* Bytes 15 .. 19 from a second load. */
NI void dec_aff5(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    static const uint8_t at[4][16] = {AT5(0), AT5(5), AT5(10), AT5(11)};
    (void)s;
    EACH (i, 4) {
        affine8(vld1q_u8(b + (i == 3 ? 4 : 0)), at[i], shift5, 31, h, v + 2 * i);
    }
}

NI void dec_aff6(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    static const uint8_t at[4][16] = {AT6(0), AT6(6), AT6(4), AT6(10)};
    (void)s;
    EACH (i, 4) {
        affine8(vld1q_u8(b + (i >= 2 ? 8 : 0)), at[i], shift6, 63, h, v + 2 * i);
    }
}

NI void dec_aff8(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    vec scale = vdupq_n_f32(h[0]);
    vec bias = vdupq_n_f32(h[16]);
    (void)s;
    EACH (i, 4) {
        uint16x8_t q = vmovl_u8(vld1_u8(b + 8 * i));
        vec lo = vcvtq_f32_u32(vmovl_u16(vget_low_u16(q)));
        vec hi = vcvtq_f32_u32(vmovl_u16(vget_high_u16(q)));
        v[2 * i] = vaddq_f32(vmulq_f32(lo, scale), bias);
        v[2 * i + 1] = vaddq_f32(vmulq_f32(hi, scale), bias);
    }
}

NI uint32_t ld32(const uint8_t *p)
{
    uint32_t u = 0;
    memcpy(&u, p, sizeof u);
    return u;
}

NI void hdr_none(const uint8_t *b, float *h)
{
    (void)b;
    (void)h;
}

NI void hdr_d(const uint8_t *b, float *h)
{
    h[0] = f16_one(b);
}

NI void hdr_dm(const uint8_t *b, float *h)
{
    h[0] = f16_one(b);
    h[16] = f16_one(b + 2);
}

NI void hdr_q2_k(const uint8_t *b, float *h)
{
    float d = f16_one(b + 80);
    float dmin = f16_one(b + 82);
    for (unsigned i = 0; i < 16; i++) {
        h[i] = d * (float)(b[i] & 15);
        h[16 + i] = -(dmin * (float)(b[i] >> 4));
    }
}

NI void hdr_q3_k(const uint8_t *b, float *h)
{
    float d = f16_one(b + 108);
    const uint8_t *s = b + 96;
    for (unsigned i = 0; i < 16; i++) {
        int low = s[i % 8] >> (i / 8 * 4) & 15;
        int high = s[8 + i % 4] >> (i / 4 * 2) & 3;
        h[i] = d * (float)((low | high << 4) - 32);
    }
}

/* One scale and minimum for 32 elements: stored for both halves. */
NI void hdr_q4_k(const uint8_t *b, float *h)
{
    float d = f16_one(b);
    float dmin = f16_one(b + 2);
    const uint8_t *s = b + 4;
    for (unsigned j = 0; j < 8; j++) {
        int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
        h[2 * j] = h[2 * j + 1] = d * (float)sc;
        h[16 + 2 * j] = h[16 + 2 * j + 1] = -(dmin * (float)mn);
    }
}

NI void hdr_q6_k(const uint8_t *b, float *h)
{
    float d = f16_one(b + 208);
    for (unsigned i = 0; i < 16; i++) {
        h[i] = d * (float)(int8_t)b[192 + i];
    }
}

/* 16 signed bytes as floats. */
NI void widen(int8x16_t q, vec *v)
{
    int16x8_t lo = vmovl_s8(vget_low_s8(q));
    int16x8_t hi = vmovl_s8(vget_high_s8(q));
    v[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo)));
    v[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo)));
    v[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi)));
    v[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)));
}

NI void times(uint8x16_t q, float d, vec *v)
{
    widen(vreinterpretq_s8_u8(q), v);
    EACH (i, 4) {
        v[i] = vmulq_n_f32(v[i], d);
    }
}

NI void times_plus(uint8x16_t q, float d, float m, vec *v)
{
    widen(vreinterpretq_s8_u8(q), v);
    EACH (i, 4) {
        v[i] = vfmaq_n_f32(vdupq_n_f32(m), v[i], d);
    }
}

/* 0xff in byte e where bit e is set. */
NI uint8x16_t spread(uint32_t bits)
{
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t all = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));
    return vtstq_u8(all, vld1q_u8(bit));
}

NI uint8x16_t low_nibbles(uint8x16_t q)
{
    return vandq_u8(q, vdupq_n_u8(15));
}

NI uint8x16_t minus(uint8x16_t q, uint8_t by)
{
    return vsubq_u8(q, vdupq_n_u8(by));
}

NI uint8x16_t fifth(uint8x16_t q, uint8x16_t set)
{
    return vorrq_u8(q, vandq_u8(set, vdupq_n_u8(16)));
}

NI void dec_f32(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 8) {
        v[i] = vreinterpretq_f32_u8(vld1q_u8(b + 16 * i));
    }
}

NI void dec_f16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 8) {
        v[i] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(b + 8 * i)));
    }
}

NI void dec_bf16(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)h;
    (void)s;
    EACH (i, 8) {
        v[i] = vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(b + 8 * i)), 16));
    }
}

NI void dec_q4_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    uint8x16_t q = vld1q_u8(b + 2);
    times(minus(low_nibbles(q), 8), h[0], v);
    times(minus(vshrq_n_u8(q, 4), 8), h[0], v + 4);
}

NI void dec_q4_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    uint8x16_t q = vld1q_u8(b + 4);
    times_plus(low_nibbles(q), h[0], h[16], v);
    times_plus(vshrq_n_u8(q, 4), h[0], h[16], v + 4);
}

NI void dec_q5_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    uint32_t bits = ld32(b + 2);
    uint8x16_t q = vld1q_u8(b + 6);
    times(minus(fifth(low_nibbles(q), spread(bits)), 16), h[0], v);
    times(minus(fifth(vshrq_n_u8(q, 4), spread(bits >> 16)), 16), h[0], v + 4);
}

NI void dec_q5_1(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    uint32_t bits = ld32(b + 4);
    uint8x16_t q = vld1q_u8(b + 8);
    times_plus(fifth(low_nibbles(q), spread(bits)), h[0], h[16], v);
    times_plus(fifth(vshrq_n_u8(q, 4), spread(bits >> 16)), h[0], h[16], v + 4);
}

NI void dec_q8_0(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    (void)s;
    times(vld1q_u8(b + 2), h[0], v);
    times(vld1q_u8(b + 18), h[0], v + 4);
}

/* 2-bit codes of half i of part s. */
NI uint8x16_t two_bits(const uint8_t *p, unsigned s, unsigned i)
{
    uint8x16_t q = vld1q_u8(p + s / 4 * 32 + 16 * i);
    return vandq_u8(vshlq_u8(q, vdupq_n_s8((int8_t) - (int)(s % 4 * 2))), vdupq_n_u8(3));
}

NI void dec_q2_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        times_plus(two_bits(b + 16, s, i), h[2 * s + i], h[16 + 2 * s + i], v + 4 * i);
    }
}

NI uint8x16_t bit_set(const uint8_t *p, unsigned s)
{
    return vtstq_u8(vld1q_u8(p), vdupq_n_u8((uint8_t)(1u << s)));
}

NI void dec_q3_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        uint8x16_t clear = vmvnq_u8(bit_set(b + 16 * i, s));
        uint8x16_t q = vsubq_u8(two_bits(b + 32, s, i), vandq_u8(clear, vdupq_n_u8(4)));
        times(q, h[2 * s + i], v + 4 * i);
    }
}

NI uint8x16_t nibbles_k(const uint8_t *p, unsigned s, unsigned i)
{
    uint8x16_t q = vld1q_u8(p + s / 2 * 32 + 16 * i);
    return s % 2 ? vshrq_n_u8(q, 4) : low_nibbles(q);
}

NI void dec_q4_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        times_plus(nibbles_k(b + 16, s, i), h[2 * s + i], h[16 + 2 * s + i], v + 4 * i);
    }
}

NI void dec_q5_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        uint8x16_t q = fifth(nibbles_k(b + 48, s, i), bit_set(b + 16 + 16 * i, s));
        times_plus(q, h[2 * s + i], h[16 + 2 * s + i], v + 4 * i);
    }
}

NI void dec_q6_k(const uint8_t *b, const float *h, unsigned s, vec *v)
{
    EACH (i, 2) {
        uint8x16_t q = vld1q_u8(b + s / 4 * 64 + s % 2 * 32 + 16 * i);
        q = s % 4 >= 2 ? vshrq_n_u8(q, 4) : low_nibbles(q);
        q = vorrq_u8(q, vshlq_n_u8(two_bits(b + 128, s, i), 4));
        times(minus(q, 32), h[2 * s + i], v + 4 * i);
    }
}

#define hdr_q4_0 hdr_d
#define hdr_q4_1 hdr_dm
#define hdr_q5_0 hdr_d
#define hdr_q5_1 hdr_dm
#define hdr_q8_0 hdr_d
#include "kern/wmat_types.h"

void kvs__wkern_init_neon(kvs__wkern *k)
{
    k->matmul = matmul;
    k->dequant = dequant;
    k->row = row;
}
