/* SPDX-License-Identifier: MIT */
/* rec_simd.h: the kernels of recurrent layers over the vocabulary of attn_simd.h, included after it.
 *
 * Lanes are rows of a state tile, so a sum over columns needs no shuffle and is the reference's.
 * scan_delta walks a tile once a token: the pass that updates the state with token t also decays it
 * for token t + 1 and sums that against its key, with the same roundings as two passes. REC_COLS
 * vectors of a tile are walked together: 8 accumulators each. */
#ifndef KVS_KERN_REC_SIMD_H
#define KVS_KERN_REC_SIMD_H

#include "kern/rec_gates.h"

#define REC_LANES 4

INLINE vf one_nan(vf x)
{
    return vf_sel(vm_nan(x), vf_set(kvs__f32_bits(KVS__NAN_BITS)), x);
}

INLINE vf silu_vec(vf x)
{
    return vf_div(x, vf_add(vf_set(1.0f), exp_vec(vf_sub(vf_set(0.0f), x))));
}

static float conv_one(const float *x, size_t ldx, const float *w, size_t ldw, float acc,
                      size_t taps, bool silu)
{
    for (size_t j = 0; j < taps; j++) {
        acc = fmaf(w[j * ldw], x[j * ldx], acc);
    }
    acc = silu ? acc / (1.0f + kvs__exp(-acc)) : acc;
    return acc != acc ? kvs__f32_bits(KVS__NAN_BITS) : acc;
}

static void conv_taps(float *y, size_t ldy, const float *x, size_t ldx, size_t n, const float *w,
                      size_t ldw, const float *bias, size_t taps, size_t n_ch, bool silu)
{
    size_t c = 0;
    for (; c + VW <= n_ch; c += VW) {
        vf first = bias ? vf_ld(bias + c) : vf_set(0.0f);
        for (size_t t = 0; t < n; t++) {
            vf acc = first;
            for (size_t j = 0; j < taps; j++) {
                acc = vf_fma(vf_ld(w + j * ldw + c), vf_ld(x + (t + j) * ldx + c), acc);
            }
            vf_st(y + t * ldy + c, one_nan(silu ? silu_vec(acc) : acc));
        }
    }
    for (; c < n_ch; c++) {
        for (size_t t = 0; t < n; t++) {
            y[t * ldy + c] =
                conv_one(x + t * ldx + c, ldx, w + c, ldw, bias ? bias[c] : 0.0f, taps, silu);
        }
    }
}

/* Lanes [at, at + VW) of a row of `rows` floats, 0 beyond. */
INLINE vf load_rows(const float *p, size_t at, size_t rows)
{
    if (at + VW <= rows) {
        return vf_ld(p + at);
    }
    float x[VW] = {0};
    for (size_t i = at; i < rows; i++) {
        x[i - at] = p[i];
    }
    return vf_ld(x);
}

INLINE void store_rows(float *p, size_t at, size_t rows, vf v)
{
    if (at + VW <= rows) {
        vf_st(p + at, v);
        return;
    }
    float x[VW];
    vf_st(x, v);
    for (size_t i = at; i < rows; i++) {
        p[i] = x[i - at];
    }
}

typedef struct sums {
    vf lane[REC_LANES][REC_COLS];
} sums;

INLINE void sums_zero(sums *s)
{
    EACH (l, REC_LANES) {
        EACH (c, REC_COLS) {
            s->lane[l][c] = vf_set(0.0f);
        }
    }
}

INLINE vf sums_join(const sums *s, size_t c)
{
    return vf_add(vf_add(s->lane[0][c], s->lane[2][c]), vf_add(s->lane[1][c], s->lane[3][c]));
}

/* u = s g; m = u k. */
INLINE void delta_decay(float *dst, const float *src, size_t dim, float g, const float *k, sums *m)
{
    sums acc;
    sums_zero(&acc);
    vf gv = vf_set(g);
    for (size_t j = 0; j < dim; j += REC_LANES) {
        EACH (l, REC_LANES) {
            vf kv = vf_set(k[j + l]);
            EACH (c, REC_COLS) {
                size_t at = (j + l) * KVS__TILE + c * VW;
                vf u = vf_mul(vf_ld(src + at), gv);
                vf_st(dst + at, u);
                acc.lane[l][c] = vf_fma(u, kv, acc.lane[l][c]);
            }
        }
    }
    *m = acc;
}

/* s = u + k delta; y = s q; with a next token (k2 not NULL) u = s g2 and m = u k2. */
INLINE void delta_update(float *s, size_t dim, const float *k, const vf *delta, const float *q,
                         sums *y, float g2, const float *k2, sums *m)
{
    sums ya;
    sums ma;
    sums_zero(&ya);
    sums_zero(&ma);
    vf gv = vf_set(g2);
    for (size_t j = 0; j < dim; j += REC_LANES) {
        EACH (l, REC_LANES) {
            vf kv = vf_set(k[j + l]);
            vf qv = vf_set(q ? q[j + l] : 0.0f);
            vf nv = vf_set(k2 ? k2[j + l] : 0.0f);
            EACH (c, REC_COLS) {
                float *at = s + (j + l) * KVS__TILE + c * VW;
                vf x = vf_fma(kv, delta[c], vf_ld(at));
                if (q) {
                    ya.lane[l][c] = vf_fma(x, qv, ya.lane[l][c]);
                }
                if (k2) {
                    x = vf_mul(x, gv);
                    ma.lane[l][c] = vf_fma(x, nv, ma.lane[l][c]);
                }
                vf_st(at, x);
            }
        }
    }
    *y = ya;
    *m = ma;
}

INLINE void delta_cols(float *dst, const float *src, size_t first, size_t rows, size_t dim,
                       const kvs__scan *in, size_t n, float *y, size_t ldy, const float *q)
{
    sums m;
    sums out;
    delta_decay(dst + first, src + first, dim, in->g[0], in->k, &m);
    for (size_t t = 0; t < n; t++) {
        const float *k = in->k + t * in->ldk;
        const float *qt = q ? q + t * in->ldq : NULL;
        vf b = vf_set(in->b[t * in->ldg]);
        vf delta[REC_COLS];
        EACH (c, REC_COLS) {
            vf v = load_rows(in->v + t * in->ldv, first + c * VW, rows);
            delta[c] = vf_mul(vf_sub(v, sums_join(&m, c)), b);
        }
        if (t + 1 < n) {
            delta_update(dst + first, dim, k, delta, qt, &out, in->g[(t + 1) * in->ldg],
                         k + in->ldk, &m);
        } else {
            delta_update(dst + first, dim, k, delta, qt, &out, 0.0f, NULL, &m);
        }
        if (q) {
            EACH (c, REC_COLS) {
                store_rows(y + t * ldy, first + c * VW, rows, one_nan(sums_join(&out, c)));
            }
        }
    }
}

static void scan_delta(float *dst, const float *src, size_t rows, size_t dim, const kvs__scan *in,
                       size_t n, float *y, size_t ldy)
{
    for (size_t first = 0; first < KVS__TILE; first += REC_COLS * VW) {
        if (in->q) {
            delta_cols(dst, src, first, rows, dim, in, n, y, ldy, in->q);
        } else {
            delta_cols(dst, src, first, rows, dim, in, n, y, ldy, NULL);
        }
    }
}

INLINE void ssd_step(float *dst, const float *src, size_t dim, float g, const float *k,
                     const vf *dtx, const float *q, sums *y)
{
    sums ya;
    sums_zero(&ya);
    vf gv = vf_set(g);
    for (size_t j = 0; j < dim; j += REC_LANES) {
        EACH (l, REC_LANES) {
            vf kv = vf_set(k[j + l]);
            vf qv = vf_set(q ? q[j + l] : 0.0f);
            EACH (c, REC_COLS) {
                size_t at = (j + l) * KVS__TILE + c * VW;
                vf x = vf_fma(kv, dtx[c], vf_mul(vf_ld(src + at), gv));
                vf_st(dst + at, x);
                if (q) {
                    ya.lane[l][c] = vf_fma(x, qv, ya.lane[l][c]);
                }
            }
        }
    }
    *y = ya;
}

INLINE void ssd_cols(float *dst, const float *src, size_t first, size_t rows, size_t dim,
                     const kvs__scan *in, size_t n, float *y, size_t ldy, const float *q)
{
    const float *from = src + first;
    for (size_t t = 0; t < n; t++) {
        vf dt = vf_set(in->b[t * in->ldg]);
        vf x[REC_COLS];
        vf dtx[REC_COLS];
        EACH (c, REC_COLS) {
            x[c] = load_rows(in->v + t * in->ldv, first + c * VW, rows);
            dtx[c] = vf_mul(dt, x[c]);
        }
        sums out;
        ssd_step(dst + first, from, dim, in->g[t * in->ldg], in->k + t * in->ldk, dtx,
                 q ? q + t * in->ldq : NULL, &out);
        from = dst + first;
        if (q) {
            EACH (c, REC_COLS) {
                vf sum = vf_fma(vf_set(in->skip), x[c], sums_join(&out, c));
                store_rows(y + t * ldy, first + c * VW, rows, one_nan(sum));
            }
        }
    }
}

static void scan_ssd(float *dst, const float *src, size_t rows, size_t dim, const kvs__scan *in,
                     size_t n, float *y, size_t ldy)
{
    for (size_t first = 0; first < KVS__TILE; first += REC_COLS * VW) {
        if (in->q) {
            ssd_cols(dst, src, first, rows, dim, in, n, y, ldy, in->q);
        } else {
            ssd_cols(dst, src, first, rows, dim, in, n, y, ldy, NULL);
        }
    }
}

static void rec_init(kvs__kern *k)
{
    k->conv_taps = conv_taps;
    k->gates = gates;
    k->scan_delta = scan_delta;
    k->scan_ssd = scan_ssd;
}

#endif
