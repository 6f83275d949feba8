/* SPDX-License-Identifier: MIT */
/* attn_simd.h: the attention kernels over a small vector vocabulary; the body of attn_avx2.c,
 * attn_avx512.c and attn_neon.c, each of which defines the vocabulary first:
 *   VW lanes; vf, vi (u32) vectors, vm lane masks; vf_* / vi_* / vm_* operations; vf_top, the
 *   greatest lane, and vf_sum, which adds the upper half of the lanes to the lower until one is left;
 *   ROWS_MAX x COLS_WIDE, the largest register block of block();
 *   CODE_LANES and v_codes(), which unpack a row's codes.
 *
 * Lanes are tokens in K tiles and elements in V rows, and a block only splits rows and lanes among
 * registers. So every output is the reference's one chain of fma, whatever the width or the number
 * of rows, and equals it bit for bit. Nothing is loaded past an argument's end. */
#ifndef KVS_KERN_ATTN_SIMD_H
#define KVS_KERN_ATTN_SIMD_H

#include <float.h>

#include "kern/math.h"

#define TILE_VECS  (KVS__TILE / VW)
#define BLOCK_VECS (32 / VW) /* vectors of a block of 32 codes of a row */

/* Makes the compiler load again what p points to, which it would otherwise keep in registers. */
#define FORGET(p) __asm__ volatile("" : "+r"(p))

/* -- elements of a run-time dtype. */

static inline float load1(const void *p, kvs_dtype t, size_t i)
{
    if (t == KVS_F32) {
        return ((const float *)p)[i];
    }
    uint16_t h = ((const uint16_t *)p)[i];
    return t == KVS_F16 ? f32_from_f16_1(h) : kvs__bf16_to_f32(h);
}

INLINE vf load_vec(const void *p, kvs_dtype t, size_t i)
{
    if (t == KVS_F32) {
        return vf_ld((const float *)p + i);
    }
    const uint16_t *h = (const uint16_t *)p + i;
    return t == KVS_F16 ? vf_from_f16(h) : vf_from_bf16(h);
}

INLINE void load_run(float *dst, const void *src, kvs_dtype t, size_t at, size_t n)
{
    size_t i = 0;
    for (; i + VW <= n; i += VW) {
        vf_st(dst + i, load_vec(src, t, at + i));
    }
    for (; i < n; i++) {
        dst[i] = load1(src, t, at + i);
    }
}

static void dense(float *dst, const void *src, kvs_dtype t, size_t at, size_t n)
{
    if (t == KVS_F32) {
        load_run(dst, src, KVS_F32, at, n);
    } else if (t == KVS_F16) {
        load_run(dst, src, KVS_F16, at, n);
    } else {
        load_run(dst, src, KVS_BF16, at, n);
    }
}

/* -- codes of a K tile: the bit streams of 16 tokens side by side. */

/* Codes after which a stream of `bits`-wide codes is at a word's start again. */
INLINE size_t code_period(uint32_t bits)
{
    return bits == 8 ? 4 : bits == 4 ? 8 : bits % 2 == 0 ? 16 : 32;
}

/* Code number i (a constant once inlined) of the streams whose first words are at w. */
INLINE vi k_codes(const uint32_t *w, uint32_t bits, size_t i)
{
    uint32_t shift = (uint32_t)(i * bits % 32);
    const uint32_t *at = w + i * bits / 32 * KVS__TILE;
    vi v = vi_ld(at);
    if (shift > 0) {
        v = vi_srl(v, (int)shift);
    }
    if (shift + bits > 32) {
        v = vi_or(v, vi_sll(vi_ld(at + KVS__TILE), (int)(32 - shift)));
    }
    return shift + bits == 32 ? v : vi_and(v, vi_set((1u << bits) - 1));
}

INLINE void k_affine(float *dst, const kvs__shape *s, const kvs__planes *t, uint32_t bits)
{
    const size_t period = code_period(bits);
    const uint32_t *w = t->data;
    for (size_t g = 0; g < s->dim / s->group; g++) {
        vf scale[TILE_VECS];
        vf bias[TILE_VECS];
        EACH (c, TILE_VECS) {
            scale[c] = load_vec(t->scale, s->dtype, g * KVS__TILE + c * VW);
            bias[c] = load_vec(t->bias, s->dtype, g * KVS__TILE + c * VW);
        }
        for (size_t d = 0; d < s->group; d += period) {
            EACH (i, period) {
                EACH (c, TILE_VECS) {
                    vf code = vf_from_u32(k_codes(w + c * VW, bits, i));
                    vf_st(dst + i * KVS__TILE + c * VW, vf_fma(code, scale[c], bias[c]));
                }
            }
            w += period * bits / 32 * KVS__TILE;
            dst += period * KVS__TILE;
        }
    }
}

static void k_tile(float *dst, const kvs__shape *s, const kvs__planes *t)
{
    switch (s->bits) {
    case 0:
        dense(dst, t->data, s->dtype, 0, (size_t)s->dim * KVS__TILE);
        break;
    case 2:
        k_affine(dst, s, t, 2);
        break;
    case 3:
        k_affine(dst, s, t, 3);
        break;
    case 4:
        k_affine(dst, s, t, 4);
        break;
    case 5:
        k_affine(dst, s, t, 5);
        break;
    case 6:
        k_affine(dst, s, t, 6);
        break;
    default:
        k_affine(dst, s, t, 8);
        break;
    }
}

/* -- codes of V rows: 32 codes are `bits` words; every lane picks its bytes. */

/* How the codes of one group become values; where a tier has no look-up of 16, by fma. */
#ifndef V_DECODER
typedef struct v_decoder {
    vf scale;
    vf bias;
} v_decoder;

INLINE v_decoder v_decoder_of(uint32_t bits, float scale, float bias)
{
    (void)bits;
    v_decoder v = {vf_set(scale), vf_set(bias)};
    return v;
}

/* Elements VW * c and up of a block of 32. */
INLINE vf v_values(const v_decoder *v, const uint8_t *block, uint32_t bits, size_t c)
{
    return vf_fma(vf_from_u32(v_codes(block, bits, c)), v->scale, v->bias);
}
#endif

/* The scales and biases of a run of tokens in f32; widened together, since a scalar conversion for
 * each costs as much as decoding its group. */
#define V_RUN      32
#define MAX_GROUPS 32 /* of a row: dim <= 1024, group >= 32 */
typedef struct v_params {
    size_t n_groups; /* of a row */
    float scale[V_RUN * MAX_GROUPS];
    float bias[V_RUN * MAX_GROUPS];
} v_params;

static void v_widen(v_params *v, const kvs__shape *s, const kvs__planes *rows, size_t from,
                    size_t n)
{
    v->n_groups = s->dim / s->group;
    dense(v->scale, rows->scale, s->dtype, from * v->n_groups, n * v->n_groups);
    dense(v->bias, rows->bias, s->dtype, from * v->n_groups, n * v->n_groups);
}

INLINE void v_affine(float *dst, size_t ldd, const kvs__shape *s, const kvs__planes *rows, size_t n,
                     uint32_t bits)
{
    const uint8_t *w = rows->data;
    v_params v;
    for (size_t j = 0; j < n; j++) {
        if (j % V_RUN == 0) {
            v_widen(&v, s, rows, j, n - j < V_RUN ? n - j : V_RUN);
        }
        for (size_t g = 0; g < v.n_groups; g++) {
            size_t at = j % V_RUN * v.n_groups + g;
            v_decoder look = v_decoder_of(bits, v.scale[at], v.bias[at]);
            float *out = dst + j * ldd + g * s->group;
            for (size_t d = 0; d < s->group; d += 32) {
                EACH (c, BLOCK_VECS) {
                    vf_st(out + d + c * VW, v_values(&look, w, bits, c));
                }
                w += (size_t)bits * 4;
            }
        }
    }
}

static void v_rows(float *dst, size_t ldd, const kvs__shape *s, const kvs__planes *rows, size_t n)
{
    switch (s->bits) {
    case 0:
        for (size_t j = 0; j < n; j++) {
            dense(dst + j * ldd, rows->data, s->dtype, j * s->dim, s->dim);
        }
        break;
    case 2:
        v_affine(dst, ldd, s, rows, n, 2);
        break;
    case 3:
        v_affine(dst, ldd, s, rows, n, 3);
        break;
    case 4:
        v_affine(dst, ldd, s, rows, n, 4);
        break;
    case 5:
        v_affine(dst, ldd, s, rows, n, 5);
        break;
    case 6:
        v_affine(dst, ldd, s, rows, n, 6);
        break;
    default:
        v_affine(dst, ldd, s, rows, n, 8);
        break;
    }
}

/* -- products: c[r][x] (+)= sum over j of a[r][j] * b[j][x], R rows by C vectors in registers.
 * Sixteen columns (a tile) are contiguous in b; the next sixteen are `next` floats further. */

typedef struct product {
    float *c;
    size_t ldc;
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb;
    size_t next;
    size_t n;
    bool add; /* onto c, not onto +0 */
} product;

INLINE void block(const product *p, const size_t R, const size_t C)
{
    vf x[ROWS_MAX][COLS_WIDE];
    const float *a = p->a;
    const float *b = p->b;
    size_t lda = p->lda;
    EACH (r, R) {
        EACH (i, C) {
            x[r][i] = p->add ? vf_ld(p->c + r * p->ldc + i * VW) : vf_set(0.0f);
        }
    }
    for (size_t j = 0; j < p->n; j++, b += p->ldb) {
        vf y[COLS_WIDE];
        EACH (i, C) {
            y[i] = vf_ld(b + i / TILE_VECS * p->next + i % TILE_VECS * VW);
        }
        EACH (r, R) {
            vf w = vf_set(a[r * lda + j]);
            EACH (i, C) {
                x[r][i] = vf_fma(w, y[i], x[r][i]);
            }
        }
    }
    EACH (r, R) {
        EACH (i, C) {
            vf_st(p->c + r * p->ldc + i * VW, x[r][i]);
        }
    }
}

typedef void (*block_fn)(const product *p);

#define BLOCK(R, C)                                                                                \
    static void block_##R##_##C(const product *p)                                                  \
    {                                                                                              \
        block(p, R, C);                                                                            \
    }
BLOCKS
#undef BLOCK

/* [rows][log2 of vectors]; the sizes that fit the registers. */
static const block_fn block_of[ROWS_MAX + 1][4] = {
#define BLOCK(R, C) [R][(C) == 8 ? 3 : (C) / 2] = block_##R##_##C,
    BLOCKS
#undef BLOCK
};

/* n_vecs vectors of columns. Columns outside, so that the part of b in use stays in L1 while the
 * rows pass. Rows are cut evenly into blocks of ROWS_MAX at most. */
static void multiply(product p, size_t rows, size_t n_vecs)
{
    size_t n_blocks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    size_t most = (rows + n_blocks - 1) / n_blocks;
    size_t level = 3;
    while (n_vecs > 0) {
        while (!block_of[most][level] || (size_t)1 << level > n_vecs) {
            level--;
        }
        size_t cols = (size_t)1 << level;
        product q = p;
        for (size_t left = n_blocks, rest = rows; left > 0; left--) {
            size_t take = (rest + left - 1) / left;
            block_of[take][level](&q);
            q.c += take * p.ldc;
            q.a += take * p.lda;
            rest -= take;
        }
        p.c += cols * VW;
        p.b += cols / TILE_VECS * p.next + cols % TILE_VECS * VW;
        n_vecs -= cols;
    }
}

static void qk(float *s, size_t lds, const float *q, size_t ldq, size_t rows, const float *k,
               size_t n_tiles, size_t dim)
{
    product p = {s, lds, q, ldq, k, KVS__TILE, dim * KVS__TILE, dim, false};
    multiply(p, rows, n_tiles * TILE_VECS);
}

static void pv(float *acc, size_t lda, const float *p, size_t ldp, size_t rows, const float *v,
               size_t ldv, size_t n, size_t dim)
{
    product m = {acc, lda, p, ldp, v, ldv, KVS__TILE, n, true};
    multiply(m, rows, dim / VW);
    for (size_t r = 0; r < rows && dim % VW != 0; r++) {
        float *sum = acc + r * lda;
        for (size_t j = 0; j < n; j++) {
            for (size_t d = dim - dim % VW; d < dim; d++) {
                sum[d] = fmaf(p[r * ldp + j], v[j * ldv + d], sum[d]);
            }
        }
    }
}

/* -- softmax. */

/* exp without its upper clamp, for x <= 0 and NaN. The magic number's bits vanish in the shift. */
INLINE vf exp_vec_low(vf x)
{
    vf t = vf_fma(x, vf_set(KVS__EXP_LOG2E), vf_set(KVS__EXP_MAGIC));
    vf n = vf_sub(t, vf_set(KVS__EXP_MAGIC));
    vf r = vf_fma(n, vf_set(-KVS__EXP_LN2_HEAD), x);
    r = vf_fma(n, vf_set(-KVS__EXP_LN2_TAIL), r);
    vf p = vf_fma(vf_set(KVS__EXP_C0), r, vf_set(KVS__EXP_C1));
    p = vf_fma(p, r, vf_set(KVS__EXP_C2));
    p = vf_fma(p, r, vf_set(KVS__EXP_C3));
    p = vf_fma(p, r, vf_set(KVS__EXP_C4));
    p = vf_fma(p, r, vf_set(KVS__EXP_C5));
    vf y = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1.0f));
    y = vf_from_bits(vi_add(vi_from_bits(y), vi_sll(vi_from_bits(t), 23)));
    y = vf_sel(vm_lt(x, vf_set(KVS__EXP_LO)), vf_set(0.0f), y);
    return vf_sel(vm_nan(x), vf_set(kvs__f32_bits(KVS__NAN_BITS)), y);
}

INLINE vf exp_vec(vf x)
{
    return vf_sel(vm_lt(vf_set(KVS__EXP_HI), x), vf_set(HUGE_VALF), exp_vec_low(x));
}

INLINE vf softcap_vec(vf s, float cap)
{
    vf c = vf_set(cap);
    vf e = exp_vec(vf_mul(vf_set(2.0f), vf_div(s, c)));
    vf one = vf_set(1.0f);
    return vf_mul(c, vf_sub(one, vf_div(vf_set(2.0f), vf_add(e, one))));
}

/* The greatest visible score. Zeros of both signs compare equal: then the first one's sign. */
static float row_top(float *s, size_t n_tiles, const uint16_t *mask, float softcap)
{
    vf top[TILE_VECS];
    EACH (c, TILE_VECS) {
        top[c] = vf_set(-FLT_MAX);
    }
    for (size_t t = 0; t < n_tiles; t++) {
        if (mask[t] == 0xffffu && !(softcap > 0.0f)) {
            EACH (c, TILE_VECS) {
                top[c] = vf_greater(vf_ld(s + t * KVS__TILE + c * VW), top[c]);
            }
            continue;
        }
        EACH (c, TILE_VECS) {
            float *at = s + t * KVS__TILE + c * VW;
            vf x = vf_ld(at);
            vm visible = vm_bits((uint32_t)mask[t] >> (c * VW));
            if (softcap > 0.0f) {
                x = softcap_vec(x, softcap);
                vf_st(at, x);
            }
            x = vf_sel(visible, x, vf_set(-FLT_MAX));
            top[c] = vf_greater(x, top[c]);
        }
    }
    for (size_t half = TILE_VECS / 2; half > 0; half /= 2) {
        for (size_t c = 0; c < half; c++) {
            top[c] = vf_greater(top[c], top[c + half]);
        }
    }
    float m = vf_top(top[0]); /* no lane is NaN: the order does not show but in a zero's sign */
    for (size_t i = 0; m == 0.0f && i < n_tiles * KVS__TILE; i++) {
        if (s[i] == 0.0f && (mask[i / KVS__TILE] >> (i % KVS__TILE) & 1)) {
            return s[i];
        }
    }
    return m;
}

/* s -> exp(s - top), and the sum. */
static float row_exp(float *s, size_t n_tiles, const uint16_t *mask, float top)
{
    vf sum[TILE_VECS];
    EACH (c, TILE_VECS) {
        sum[c] = vf_set(0.0f);
    }
    vf m = vf_set(top); /* no visible score is above it */
    for (size_t t = 0; t < n_tiles; t++) {
        if (mask[t] == 0xffffu) {
            EACH (c, TILE_VECS) {
                float *at = s + t * KVS__TILE + c * VW;
                vf p = exp_vec_low(vf_sub(vf_ld(at), m));
                vf_st(at, p);
                sum[c] = vf_add(sum[c], p);
            }
            continue;
        }
        EACH (c, TILE_VECS) {
            float *at = s + t * KVS__TILE + c * VW;
            vf p = exp_vec_low(vf_sub(vf_ld(at), m));
            p = vf_sel(vm_bits((uint32_t)mask[t] >> (c * VW)), p, vf_set(0.0f));
            vf_st(at, p);
            sum[c] = vf_add(sum[c], p);
        }
    }
    for (size_t half = TILE_VECS / 2; half > 0; half /= 2) {
        for (size_t c = 0; c < half; c++) {
            sum[c] = vf_add(sum[c], sum[c + half]);
        }
    }
    return vf_sum(sum[0]);
}

static void softmax(float *s, size_t lds, size_t rows, size_t n_tiles, const uint16_t *mask,
                    size_t ldm, float softcap, float *m, float *l)
{
    for (size_t r = 0; r < rows; r++) {
        m[r] = row_top(s + r * lds, n_tiles, mask + r * ldm, softcap);
        l[r] = row_exp(s + r * lds, n_tiles, mask + r * ldm, m[r]);
    }
}

static void merge(float *acc, float *m, float *l, const float *acc2, float m2, float l2, size_t dim)
{
    float top = *m > m2 ? *m : m2;
    float a = kvs__exp(*m - top);
    float b = kvs__exp(m2 - top);
    size_t d = 0;
    for (; d + VW <= dim; d += VW) {
        vf scaled = vf_mul(vf_ld(acc2 + d), vf_set(b));
        vf_st(acc + d, vf_fma(vf_ld(acc + d), vf_set(a), scaled));
    }
    for (; d < dim; d++) {
        acc[d] = fmaf(acc[d], a, acc2[d] * b);
    }
    *l = fmaf(*l, a, l2 * b);
    *m = top;
}
#endif
