/* SPDX-License-Identifier: MIT */
/* attn_pairs.h: attention over affine codes, of which 16-bit products add up exactly (pairs.h); the
 * third part of the body of the attn_*.c files (see attn_simd.h), included after it. A tier defines
 *   vi_dot(acc, a, b): acc + a.lo * b.lo + a.hi * b.hi in each lane, of signed 16-bit numbers;
 *   vf_from_i32, vi_round (to nearest even), vi_max (unsigned), vf_evens and vf_odds, which take every
 *   second lane of two vectors;
 *   v_unit8, v_unit4: two vectors of pairs of two rows' codes, UNIT elements, and in_order4, which puts
 *   two vectors of sums of the latter in order; without them (V_UNITS) codes are unpacked one by one;
 *   PAIR_ROWS, the most rows that are multiplied while codes are unpacked, PAIR_SHAPES: X(rows, tiles,
 *   units), as DIRECT_SHAPES, and PAIR_DIRECT(bits), the most rows for which no code goes to scratch.
 *
 * Few rows: codes are unpacked in registers, each pair multiplied at once. Many: to scratch first. */
#ifndef KVS_KERN_ATTN_PAIRS_H
#define KVS_KERN_ATTN_PAIRS_H

#include "kern/pairs.h"

/* -- 16-bit numbers */

INLINE uint32_t top_lane(vi x)
{
    uint32_t lane[VW];
    vf_st((float *)(void *)lane, vf_from_bits(x));
    uint32_t top = 0;
    for (size_t i = 0; i < VW; i++) {
        top = lane[i] > top ? lane[i] : top;
    }
    return top;
}

INLINE vi magnitudes(vf x)
{
    return vi_and(vi_from_bits(x), vi_set(0x7fffffffu));
}

INLINE void vi_st(int32_t *p, vi x)
{
    vf_st((float *)(void *)p, vf_from_bits(x));
}

static void q_pairs(uint32_t *pairs, float *params, const float *q, const kvs__shape *shape)
{
    for (size_t g = 0; g < shape->dim / shape->group; g++, q += shape->group) {
        int32_t x[128];
        vi top = vi_set(0);
        for (size_t d = 0; d < shape->group; d += VW) {
            top = vi_max(top, magnitudes(vf_ld(q + d)));
        }
        kvs__scale16 s = kvs__scale16_of(top_lane(top));
        int32_t sum = 0;
        for (size_t d = 0; d < shape->group; d += VW) {
            vi_st(x + d, s.to == 0.0f ? vi_set(0) : vi_round(vf_mul(vf_ld(q + d), vf_set(s.to))));
        }
        for (uint32_t i = 0; i < shape->group / 2; i++) {
            kvs__pair_at at = kvs__pair_of(shape->bits, i);
            sum += x[at.lo] + x[at.hi];
            *pairs++ = kvs__pair(x[at.lo], x[at.hi]);
        }
        params[2 * g] = s.step;
        params[2 * g + 1] = (float)sum * s.step;
    }
}

static void p_weights(int16_t *w, float *step, float *sum, const float *p, const float *scale,
                      const float *bias, size_t n)
{
    const vf zero = vf_set(0.0f);
    vi top = vi_set(0);
    vf lane[TILE_VECS];
    EACH (c, TILE_VECS) {
        lane[c] = zero;
    }
    for (size_t i = 0; i < n; i += KVS__TILE) {
        EACH (c, TILE_VECS) {
            vf x = vf_ld(p + i + c * VW);
            vm some = vm_lt(zero, x);
            vf y = vf_sel(some, vf_mul(x, vf_ld(scale + i + c * VW)), x); /* x: 0, or NaN */
            top = vi_max(top, magnitudes(y));
            lane[c] = vf_fma(x, vf_sel(some, vf_ld(bias + i + c * VW), zero), lane[c]);
        }
    }
    kvs__scale16 s = kvs__scale16_of(top_lane(top));
    for (size_t i = 0; i < n; i += VW) {
        vf x = vf_ld(p + i);
        vf y = vf_sel(vm_lt(zero, x), vf_mul(x, vf_ld(scale + i)), zero);
        vi_st16(w + i, s.to == 0.0f ? vi_set(0) : vi_round(vf_mul(y, vf_set(s.to))));
    }
    for (size_t half = TILE_VECS / 2; half > 0; half /= 2) {
        for (size_t c = 0; c < half; c++) {
            lane[c] = vf_add(lane[c], lane[c + half]);
        }
    }
    *step = s.step;
    *sum = vf_sum(lane[0]) + 0.0f;
}

/* dst0[i] = src[2 i], dst1[i] = src[2 i + 1], i < n, a multiple of VW. */
INLINE void split(float *dst0, float *dst1, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i += VW) {
        vf a = vf_ld(src + 2 * i);
        vf b = vf_ld(src + 2 * i + VW);
        vf_st(dst0 + i, vf_evens(a, b));
        vf_st(dst1 + i, vf_odds(a, b));
    }
}

/* dst[g * ld + i] = src[i * n_groups + g], i < V_RUN; of 2 or 4 groups. */
INLINE void by_group(float *dst, size_t ld, const float *src, size_t n_groups)
{
    float half[2][2 * V_RUN];
    if (n_groups == 2) {
        split(dst, dst + ld, src, V_RUN);
        return;
    }
    split(half[0], half[1], src, (size_t)2 * V_RUN);
    split(dst, dst + 2 * ld, half[0], V_RUN);
    split(dst + ld, dst + 3 * ld, half[1], V_RUN);
}

/* The same of n < V_RUN, or any number of groups. */
static void some_by_group(float *dst, size_t ld, const float *src, size_t n_groups, size_t n)
{
    for (size_t i = 0; i < n * n_groups; i++) {
        dst[i % n_groups * ld + i / n_groups] = src[i];
    }
}

static void v_units(float *scale, float *bias, size_t ld, const kvs__shape *shape,
                    const kvs__planes *rows, size_t n)
{
    const size_t n_groups = shape->dim / shape->group;
    if (n_groups == 1) {
        dense(scale, rows->scale, shape->dtype, 0, n);
        dense(bias, rows->bias, shape->dtype, 0, n);
        return;
    }
    v_params v;
    for (size_t j = 0; j < n; j += V_RUN) {
        size_t m = n - j < V_RUN ? n - j : V_RUN;
        v_widen(&v, shape, rows, j, m);
        if (m == V_RUN && (n_groups == 2 || n_groups == 4)) {
            by_group(scale + j, ld, v.scale, n_groups);
            by_group(bias + j, ld, v.bias, n_groups);
        } else {
            some_by_group(scale + j, ld, v.scale, n_groups, m);
            some_by_group(bias + j, ld, v.bias, n_groups, m);
        }
    }
}

static void v_sums(float *acc, const int32_t *sums, size_t n, float step, float bias)
{
    for (size_t d = 0; d < n; d += VW) {
        vf x = vf_from_i32(vi_ld((const uint32_t *)sums + d));
        vf_st(acc + d, vf_fma(x, vf_set(step), vf_set(bias)));
    }
}

/* -- scores */

/* Pair number i (a constant once inlined) of the code streams of VW tokens whose words are at w. */
INLINE vi k_pairs(const uint32_t *w, uint32_t bits, size_t i)
{
    if (kvs__pair_in_word(bits)) {
        const uint32_t half = 16 / bits;
        const uint32_t mask = (1u << bits) - 1;
        vi v = vi_ld(w + i / half * KVS__TILE);
        v = i % half ? vi_srl(v, (int)(i % half * bits)) : v;
        return vi_and(v, vi_set(mask | mask << 16));
    }
    return vi_or(k_codes(w, bits, 2 * i), vi_sll(k_codes(w, bits, 2 * i + 1), 16));
}

typedef struct code_scores {
    float *s;
    size_t lds;
    const uint32_t *q;
    const float *params;
    const kvs__shape *shape;
    const kvs__planes *tiles;
    size_t n;
} code_scores;

/* s = fma(D * step, scale, s), fma(sum, bias, s); of the first group s is +0. */
INLINE void end_group(float *s, vi sum, const float *line, const float *params, bool first)
{
    vf x = vf_mul(vf_from_i32(sum), vf_set(params[0]));
    x = vf_fma(x, vf_ld(line), first ? vf_set(0.0f) : vf_ld(s));
    vf_st(s, vf_fma(vf_set(params[1]), vf_ld(line + KVS__TILE), x));
}

INLINE void pair_tiles(const code_scores *job, uint32_t bits, const size_t R, const size_t T)
{
    const kvs__shape *shape = job->shape;
    const size_t period = code_period(bits);
    const size_t n_groups = shape->dim / shape->group;
    for (size_t t0 = 0; t0 < job->n; t0 += T) {
        const uint32_t *words[T_MAX];
        size_t far[T_MAX];
        const kvs__planes *tile[T_MAX];
        EACH (t, T) {
            tile[t] = job->tiles + (t0 + t < job->n ? t0 + t : job->n - 1);
            words[t] = tile[t]->data;
            far[t] = far_of(tile[t], bits);
        }
        const uint32_t *q[PAIR_ROWS];
        EACH (r, R) {
            q[r] = job->q + r * (shape->dim / 2);
        }
        size_t at = 0;
        for (size_t g = 0; g < n_groups; g++) {
            vi x[PAIR_ROWS * T_MAX * TILE_VECS];
            EACH (i, R * T * TILE_VECS) {
                x[i] = vi_set(0);
            }
            for (size_t d = 0; d < shape->group; d += period) {
                EACH (t, T) {
                    EACH (i, period * bits / 32) {
                        ask(words[t] + at + i * KVS__TILE, far[t]);
                    }
                }
                EACH (i, period / 2) {
                    vi y[T_MAX * TILE_VECS];
                    EACH (c, T * TILE_VECS) {
                        y[c] = k_pairs(words[c / TILE_VECS] + at + c % TILE_VECS * VW, bits, i);
                    }
                    EACH (r, R) {
                        vi a = vi_set(q[r][i]);
                        EACH (c, T * TILE_VECS) {
                            x[r * T * TILE_VECS + c] = vi_dot(x[r * T * TILE_VECS + c], y[c], a);
                        }
                    }
                }
                at += period * bits / 32 * KVS__TILE;
                EACH (r, R) {
                    q[r] += period / 2;
                }
            }
            float line[T_MAX * 2 * KVS__TILE];
            EACH (t, T) {
                tile_params(line + t * 2 * KVS__TILE, tile[t], shape->dtype, g);
            }
            EACH (i, R * T * TILE_VECS) {
                size_t r = i / (T * TILE_VECS);
                size_t c = i % (T * TILE_VECS);
                if (t0 + c / TILE_VECS < job->n) {
                    end_group(job->s + r * job->lds + t0 * KVS__TILE + c * VW, x[i],
                              line + c / TILE_VECS * 2 * KVS__TILE + c % TILE_VECS * VW,
                              job->params + (r * n_groups + g) * 2, g == 0);
                }
            }
        }
    }
}

/* -- products of pairs: c[r][x] += sum over j of a[r][j] * b[j][x], as block() of floats. */

typedef struct pair_product {
    int32_t *c;
    size_t ldc;
    const int16_t *a; /* pairs of [r * lda + 2 * j] */
    size_t lda;
    const uint32_t *b;
    size_t ldb;
    size_t next;
    size_t n; /* pairs */
} pair_product;

INLINE uint32_t pair_at(const int16_t *p)
{
    uint32_t x = 0;
    memcpy(&x, p, sizeof x);
    return x;
}

INLINE void pair_block(const pair_product *p, const size_t R, const size_t C)
{
    vi x[ROWS_MAX][COLS_WIDE];
    const int16_t *a = p->a;
    const uint32_t *b = p->b;
    size_t lda = p->lda;
    EACH (r, R) {
        EACH (i, C) {
            x[r][i] = vi_ld((const uint32_t *)p->c + r * p->ldc + i * VW);
        }
    }
    for (size_t j = 0; j < p->n; j++, b += p->ldb) {
        vi y[COLS_WIDE];
        EACH (i, C) {
            y[i] = vi_ld(b + i / TILE_VECS * p->next + i % TILE_VECS * VW);
        }
        EACH (r, R) {
            vi w = vi_set(pair_at(a + r * lda + 2 * j));
            EACH (i, C) {
                x[r][i] = vi_dot(x[r][i], y[i], w);
            }
        }
    }
    EACH (r, R) {
        EACH (i, C) {
            vi_st(p->c + r * p->ldc + i * VW, x[r][i]);
        }
    }
}

typedef void (*pair_block_fn)(const pair_product *p);

#define BLOCK(R, C)                                                                                \
    static void pair_block_##R##_##C(const pair_product *p)                                        \
    {                                                                                              \
        pair_block(p, R, C);                                                                       \
    }
BLOCKS
#undef BLOCK

static const pair_block_fn pair_block_of[ROWS_MAX + 1][4] = {
#define BLOCK(R, C) [R][(C) == 8 ? 3 : (C) / 2] = pair_block_##R##_##C,
    BLOCKS
#undef BLOCK
};

/* As multiply(). */
static void multiply_pairs(pair_product p, size_t rows, size_t n_vecs)
{
    size_t n_blocks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    size_t most = (rows + n_blocks - 1) / n_blocks;
    size_t level = 3;
    while (n_vecs > 0) {
        while (!pair_block_of[most][level] || (size_t)1 << level > n_vecs) {
            level--;
        }
        size_t cols = (size_t)1 << level;
        pair_product q = p;
        for (size_t left = n_blocks, rest = rows; left > 0; left--) {
            size_t take = (rest + left - 1) / left;
            pair_block_of[take][level](&q);
            q.c += take * p.ldc;
            q.a += take * p.lda;
            rest -= take;
        }
        p.c += cols * VW;
        p.b += cols / TILE_VECS * p.next + cols % TILE_VECS * VW;
        n_vecs -= cols;
    }
}

/* -- scores of many rows */

INLINE void unpack_tile(uint32_t *dst, const uint32_t *w, size_t dim, uint32_t bits)
{
    const size_t period = code_period(bits);
    for (size_t d = 0; d < dim; d += period) {
        EACH (i, period / 2) {
            EACH (c, TILE_VECS) {
                vi_st((int32_t *)dst + i * KVS__TILE + c * VW, k_pairs(w + c * VW, bits, i));
            }
        }
        w += period * bits / 32 * KVS__TILE;
        dst += period / 2 * KVS__TILE;
    }
}

#define MOST_ROWS 64 /* of one call; more are cut */

static void scores_of_many(const code_scores *job, size_t rows, uint32_t *scratch,
                           void (*unpack)(uint32_t *, const uint32_t *, size_t))
{
    const kvs__shape *shape = job->shape;
    const size_t n_groups = shape->dim / shape->group;
    const size_t tile_words = (size_t)shape->dim / 2 * KVS__TILE;
    for (size_t t0 = 0; t0 < job->n; t0 += KVS__PAIR_TILES) {
        const size_t n = job->n - t0 < KVS__PAIR_TILES ? job->n - t0 : KVS__PAIR_TILES;
        const size_t ld = n * KVS__TILE;
        for (size_t t = 0; t < n; t++) {
            unpack(scratch + t * tile_words, job->tiles[t0 + t].data, shape->dim);
        }
        for (size_t g = 0; g < n_groups; g++) {
            int32_t sums[MOST_ROWS * KVS__PAIR_TILES * KVS__TILE];
            float line[KVS__PAIR_TILES * 2 * KVS__TILE];
            memset(sums, 0, rows * ld * sizeof *sums);
            pair_product p = {sums,
                              ld,
                              (const int16_t *)(job->q + g * shape->group / 2),
                              shape->dim,
                              scratch + g * shape->group / 2 * KVS__TILE,
                              KVS__TILE,
                              tile_words,
                              shape->group / 2};
            multiply_pairs(p, rows, n * TILE_VECS);
            for (size_t t = 0; t < n; t++) {
                tile_params(line + t * 2 * KVS__TILE, &job->tiles[t0 + t], shape->dtype, g);
            }
            for (size_t r = 0; r < rows; r++) {
                for (size_t c = 0; c < n * TILE_VECS; c++) {
                    end_group(job->s + r * job->lds + t0 * KVS__TILE + c * VW,
                              vi_ld((const uint32_t *)sums + r * ld + c * VW),
                              line + c / TILE_VECS * 2 * KVS__TILE + c % TILE_VECS * VW,
                              job->params + (r * n_groups + g) * 2, g == 0);
                }
            }
        }
    }
}

/* -- values: R rows by U units of d, over all tokens. Pairs of rows a and b. */

#define UNIT        (2 * VW) /* elements */
#define BLOCK_UNITS (32 / UNIT)

/* Lanes of elements of two rows' blocks of 32 codes; of `bits` that no v_pairs serves, in order. */
INLINE vi v_pair(const uint8_t *a, const uint8_t *b, uint32_t bits, size_t c)
{
    vi mask = vi_set((1u << bits) - 1);
    return vi_or(vi_and(v_codes(a, bits, c), mask), vi_sll(vi_and(v_codes(b, bits, c), mask), 16));
}

/* Unit u of two rows' blocks of 32 codes, in the tier's order of lanes. */
INLINE void v_unit(vi y[2], const uint8_t *a, const uint8_t *b, uint32_t bits, size_t u)
{
#ifdef V_UNITS
    if (bits == 8) {
        v_unit8(y, a + u * UNIT, b + u * UNIT);
        return;
    }
    if (bits == 4) {
        v_unit4(y, a + u * UNIT / 2, b + u * UNIT / 2);
        return;
    }
#endif
    y[0] = v_pair(a, b, bits, 2 * u);
    y[1] = v_pair(a, b, bits, 2 * u + 1);
}

INLINE void in_order(vi y[2], uint32_t bits)
{
#ifdef V_UNITS
    if (bits == 4) {
        in_order4(y);
    }
#endif
    (void)y;
    (void)bits;
}

INLINE void add_unit(int32_t *acc, vi y[2], uint32_t bits)
{
    in_order(y, bits);
    EACH (c, 2) {
        vi_st(acc + c * VW, vi_add(vi_ld((const uint32_t *)acc + c * VW), y[c]));
    }
}

typedef struct code_values {
    int32_t *acc;
    size_t lda;
    const int16_t *w;
    size_t ldw;
    size_t ldg;
    const kvs__shape *shape;
    const kvs__planes *rows;
    size_t n;
} code_values;

/* Units u0 .. u0 + U - 1 of the blocks of 32 codes at element d, of R rows; within one group. */
INLINE void pair_rows(const code_values *job, size_t d, uint32_t bits, const size_t R,
                      const size_t U, const size_t u0)
{
    const size_t row_bytes = (size_t)job->shape->dim * bits / 8;
    const size_t far = far_of(job->rows, bits);
    const uint8_t *a = (const uint8_t *)job->rows->data + d * bits / 8;
    const int16_t *w = job->w + d / job->shape->group * job->ldg;
    const size_t at_byte = (d + u0 * UNIT) * bits / 8;
    vi x[PAIR_ROWS * U_MAX * 2];
    EACH (i, R * U * 2) {
        x[i] = vi_set(0);
    }
    size_t j = 0;
    for (; j + 1 < job->n; j += 2, a += 2 * row_bytes) {
        vi y[U_MAX * 2];
        ask_strip(a + u0 * UNIT * bits / 8, at_byte, U * UNIT * bits / 8, far);
        ask_strip(a + row_bytes + u0 * UNIT * bits / 8, at_byte, U * UNIT * bits / 8, far);
        EACH (i, U) {
            const size_t at = (u0 + i) / BLOCK_UNITS * bits * 4;
            v_unit(y + 2 * i, a + at, a + row_bytes + at, bits, (u0 + i) % BLOCK_UNITS);
        }
        EACH (r, R) {
            vi weight = vi_set(pair_at(w + r * job->ldw + j));
            EACH (c, U * 2) {
                x[r * U * 2 + c] = vi_dot(x[r * U * 2 + c], y[c], weight);
            }
        }
    }
    if (j < job->n) { /* the last one is alone */
        EACH (i, U) {
            vi y[2];
            const size_t at = (u0 + i) / BLOCK_UNITS * bits * 4;
            v_unit(y, a + at, a + at, bits, (u0 + i) % BLOCK_UNITS);
            EACH (r, R) {
                vi weight = vi_set((uint16_t)w[r * job->ldw + j]);
                EACH (c, 2) {
                    x[(r * U + i) * 2 + c] = vi_dot(x[(r * U + i) * 2 + c], y[c], weight);
                }
            }
        }
    }
    EACH (i, R * U) {
        add_unit(job->acc + i / U * job->lda + d + (u0 + i % U) * UNIT, x + i * 2, bits);
    }
}

INLINE void pair_values(const code_values *job, uint32_t bits, const size_t R, const size_t U)
{
    const size_t least = U < BLOCK_UNITS ? U : BLOCK_UNITS;
    if (U > BLOCK_UNITS && job->shape->group % (U * UNIT) == 0) {
        for (size_t d = 0; d < job->shape->dim; d += U * UNIT) {
            pair_rows(job, d, bits, R, U, 0);
        }
        return;
    }
    for (size_t d = 0; d < job->shape->dim; d += 32) {
        UNROLL for (size_t u0 = 0; u0 < BLOCK_UNITS; u0 += least)
        {
            pair_rows(job, d, bits, R, least, u0);
        }
    }
}

/* -- values of many rows */

INLINE void unpack_rows(uint32_t *dst, const uint8_t *a, size_t row_bytes, size_t n, size_t dim,
                        uint32_t bits)
{
    for (size_t j = 0; j < n; j += 2, a += 2 * row_bytes, dst += dim) {
        const uint8_t *b = j + 1 < n ? a + row_bytes : a; /* then its weight is 0 */
        for (size_t d = 0; d < dim; d += 32) {
            EACH (u, BLOCK_UNITS) {
                vi y[2];
                v_unit(y, a + d * bits / 8, b + d * bits / 8, bits, u);
                in_order(y, bits);
                vi_st((int32_t *)dst + d + u * UNIT, y[0]);
                vi_st((int32_t *)dst + d + u * UNIT + VW, y[1]);
            }
        }
    }
}

static void values_of_many(const code_values *job, size_t rows, uint32_t bits, uint32_t *scratch,
                           void (*unpack)(uint32_t *, const uint8_t *, size_t, size_t, size_t))
{
    const kvs__shape *shape = job->shape;
    const size_t row_bytes = (size_t)shape->dim * bits / 8;
    for (size_t j = 0; j < job->n; j += KVS__PAIR_ROWS) {
        const size_t n = job->n - j < KVS__PAIR_ROWS ? job->n - j : KVS__PAIR_ROWS;
        unpack(scratch, (const uint8_t *)job->rows->data + j * row_bytes, row_bytes, n, shape->dim);
        for (size_t g = 0; g < shape->dim / shape->group; g++) {
            pair_product p = {job->acc + g * shape->group,
                              job->lda,
                              job->w + g * job->ldg + j,
                              job->ldw,
                              scratch + g * shape->group,
                              shape->dim,
                              KVS__TILE,
                              n / 2};
            multiply_pairs(p, rows, shape->group / VW);
            for (size_t r = 0; r < rows && n % 2 != 0; r++) { /* the last one is alone */
                const uint32_t *last = scratch + n / 2 * shape->dim + g * shape->group;
                vi weight = vi_set((uint16_t)p.a[r * p.lda + n - 1]);
                for (size_t d = 0; d < shape->group; d += VW) {
                    int32_t *at = p.c + r * p.ldc + d;
                    vi_st(at, vi_dot(vi_ld((const uint32_t *)at), vi_ld(last + d), weight));
                }
            }
        }
    }
}

/* -- instances */

#define PAIR_CODECS(X, R, T, U)                                                                    \
    X(2, R, T, U) X(3, R, T, U) X(4, R, T, U) X(5, R, T, U) X(6, R, T, U) X(8, R, T, U)
#define PAIR_INSTANCE(bits, R, T, U)                                                               \
    static void scores_##bits##_##R(const code_scores *job)                                        \
    {                                                                                              \
        pair_tiles(job, bits, R, T);                                                               \
    }                                                                                              \
    static void values_##bits##_##R(const code_values *job)                                        \
    {                                                                                              \
        pair_values(job, bits, R, U);                                                              \
    }
#define PAIR_INSTANCES(R, T, U) PAIR_CODECS(PAIR_INSTANCE, R, T, U)
PAIR_SHAPES(PAIR_INSTANCES)

#define EACH_BITS(X) X(2) X(3) X(4) X(5) X(6) X(8)
#define UNPACK(bits)                                                                               \
    static void unpack_tile_##bits(uint32_t *dst, const uint32_t *w, size_t dim)                   \
    {                                                                                              \
        unpack_tile(dst, w, dim, bits);                                                            \
    }                                                                                              \
    static void unpack_rows_##bits(uint32_t *dst, const uint8_t *a, size_t row_bytes, size_t n,    \
                                   size_t dim)                                                     \
    {                                                                                              \
        unpack_rows(dst, a, row_bytes, n, dim, bits);                                              \
    }
EACH_BITS(UNPACK)

#define SCORES_ENTRY(bits, R, T, U) [bits][R] = scores_##bits##_##R,
#define VALUES_ENTRY(bits, R, T, U) [bits][R] = values_##bits##_##R,
#define SCORES_ENTRIES(R, T, U)     PAIR_CODECS(SCORES_ENTRY, R, T, U)
#define VALUES_ENTRIES(R, T, U)     PAIR_CODECS(VALUES_ENTRY, R, T, U)
static void (*const scores_of[9][PAIR_ROWS + 1])(const code_scores *) = {
    PAIR_SHAPES(SCORES_ENTRIES)};
static void (*const values_of[9][PAIR_ROWS + 1])(const code_values *) = {
    PAIR_SHAPES(VALUES_ENTRIES)};
static void (*const unpack_tile_of[9])(uint32_t *, const uint32_t *, size_t) = {
    [2] = unpack_tile_2, [3] = unpack_tile_3, [4] = unpack_tile_4,
    [5] = unpack_tile_5, [6] = unpack_tile_6, [8] = unpack_tile_8};
static void (*const unpack_rows_of[9])(uint32_t *, const uint8_t *, size_t, size_t, size_t) = {
    [2] = unpack_rows_2, [3] = unpack_rows_3, [4] = unpack_rows_4,
    [5] = unpack_rows_5, [6] = unpack_rows_6, [8] = unpack_rows_8};

static void qk_codes(float *s, size_t lds, const uint32_t *q, const float *params, size_t rows,
                     const kvs__shape *shape, const kvs__planes *tiles, size_t n_tiles,
                     uint32_t *scratch)
{
    const size_t n_groups = shape->dim / shape->group;
    code_scores job = {s, lds, q, params, shape, tiles, n_tiles};
    const bool few = rows <= PAIR_DIRECT(shape->bits);
    const size_t most = few ? PAIR_ROWS : MOST_ROWS;
    for (size_t n_blocks = (rows + most - 1) / most; n_blocks > 0; n_blocks--) {
        size_t take = (rows + n_blocks - 1) / n_blocks;
        if (few) {
            scores_of[shape->bits][take](&job);
        } else {
            scores_of_many(&job, take, scratch, unpack_tile_of[shape->bits]);
        }
        job.s += take * lds;
        job.q += take * shape->dim / 2;
        job.params += take * 2 * n_groups;
        rows -= take;
    }
}

static void pv_codes(int32_t *acc, size_t lda, const int16_t *w, size_t ldw, size_t ldg,
                     size_t rows, const kvs__shape *shape, const kvs__planes *v, size_t n,
                     uint32_t *scratch)
{
    code_values job = {acc, lda, w, ldw, ldg, shape, v, n};
    if (rows > PAIR_DIRECT(shape->bits)) {
        values_of_many(&job, rows, shape->bits, scratch, unpack_rows_of[shape->bits]);
        return;
    }
    for (size_t n_blocks = (rows + PAIR_ROWS - 1) / PAIR_ROWS; n_blocks > 0; n_blocks--) {
        size_t take = (rows + n_blocks - 1) / n_blocks;
        values_of[shape->bits][take](&job);
        job.acc += take * lda;
        job.w += take * ldw;
        rows -= take;
    }
}

static void pairs_init(kvs__kern *k)
{
    k->q_pairs = q_pairs;
    k->qk_codes = qk_codes;
    k->v_units = v_units;
    k->p_weights = p_weights;
    k->pv_codes = pv_codes;
    k->v_sums = v_sums;
}
#endif
