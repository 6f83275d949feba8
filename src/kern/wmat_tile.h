/* SPDX-License-Identifier: MIT */
/* wmat_tile.h: the loops of matmul that every SIMD tier shares; included once by each wmat_TIER.c.
 *
 * The tier has defined before: vec, VL (floats of a vec: 4, 8 or 16), vload, vstore, vzero, vfma
 * (a * b + c), TILE_R x TILE_C (outputs of a register tile), HOLD (keeps a vector in a register),
 * FUSED_MAX (most rows of x that go the fused way together: 4 or 8), FUSED_MOST (and one group after
 * another: decoding again costs less than packing), FUSED_COLS_N (rows of W side by side
 * for N rows of x), FUSED_SHARED (registers suffice for a part of all of these), reduce4 (four
 * times 16 lanes -> four sums), reduce8 (eight; where REDUCE8 is defined), sum16 (sixteen vectors -> sixteen sums; where FUSED_MAX > 4),
 * f16_one (an f16 in memory as float) and, for each type T, hdr_T and dec_T. An affine type has no
 * hdr of its own (NULL): its scales lie in other planes.
 *
 * Two ways, one order of operations: a lane is a sequence of fma over ascending k in both.
 *   few rows:   a block is decoded into registers and multiplied at once (fused_rows);
 *   more rows:  rows of W are decoded once into a panel in the second-level cache, then tiles of
 *               TILE_R rows of x by TILE_C rows of W walk at most KVS__WCHUNK elements at a time so
 *               that the rows of x stay in the first-level cache; lanes wait in memory.
 * A panel holds, for each chunk, tiles of TILE_C rows: [pass][k / 16][TILE_C][VL], a pass being VL
 * of the 16 lanes, so that the inner loop reads one stream. */
#ifndef KVS_KERN_WMAT_TILE_H
#define KVS_KERN_WMAT_TILE_H

#include <string.h>

#include "base/base.h"
#include "kern/wmat.h"

#define AI         static inline __attribute__((always_inline))
#define LANES      16u
#define PAD        32u
#define PASSES     (LANES / VL)
#define VECS       (PAD / VL)
#define SMALL_ROWS 16u
#define AHEAD      4096u /* bytes between use and prefetch */
#define HDR        32    /* floats of a block's scales: 16 factors, 16 offsets */
/* n of a panel is padded to a multiple of this: whole tiles and whole reduce4. */
#define PANEL_ALIGN (TILE_C % 4 ? 12u : 4u)

/* Types of one element per block: the only ones whose rows may end inside a part. */
#define ONE_ELEM(parts, bytes) ((parts) == 1 && (bytes) % PAD == 0)

/* Scales of a block, computed once for its 32-element parts. */
typedef void (*hdr_fn)(const uint8_t *b, float *h);
/* Elements 32 s .. 32 s + 31 of a block. */
typedef void (*dec_fn)(const uint8_t *b, const float *h, unsigned s, vec *v);

AI float affine_one(const uint8_t *plane, size_t g, kvs__wtype dtype)
{
    float f = 0.0f;
    if (dtype == KVS__W_F16) {
        return f16_one(plane + 2 * g);
    }
    if (dtype == KVS__W_BF16) {
        uint16_t h = 0;
        memcpy(&h, plane + 2 * g, sizeof h);
        uint32_t u = (uint32_t)h << 16;
        memcpy(&f, &u, sizeof f);
        return f;
    }
    memcpy(&f, plane + 4 * g, sizeof f);
    return f;
}

/* Scales of block `i` of row `j` at b: scale to h[0] and bias to h[16] for affine types. */
AI void header(hdr_fn hdr, const kvs__wrows *w, size_t j, size_t i, const uint8_t *b, float *h)
{
    if (hdr) {
        hdr(b, h);
        return;
    }
    const kvs__waffine *a = &w->affine;
    size_t g = i >> a->shift;
    h[0] = affine_one(a->scales + j * a->row_bytes, g, a->dtype);
    h[16] = affine_one(a->biases + j * a->row_bytes, g, a->dtype);
}

/* n (a multiple of 4) sums of lanes at acc[16 * j] to y, of which n_out exist. */
AI void reduce(float *y, const float *acc, size_t n, size_t n_out)
{
    size_t j = 0;
#ifdef REDUCE8
    for (; j + 8 <= n_out; j += 8) {
        reduce8(y + j, acc + j * LANES);
    }
#endif
    for (; j < n; j += 4) {
        if (j + 4 <= n_out) {
            reduce4(y + j, acc + j * LANES);
        } else {
            float t[4];
            reduce4(t, acc + j * LANES);
            for (size_t i = j; i < n_out; i++) {
                y[i] = t[i - j];
            }
        }
    }
}

/* Weights are read once, and with several rows side by side no hardware prefetcher sees a stream:
 * without this, reading Q8_0 from DRAM fell from 24 to 6 GB/s (Zen 5, one core; 1, 2, 4 KiB ahead:
 * 13, 24, 25 GB/s). A prefetch past the matrix is harmless. */
AI void prefetch(const uint8_t *p, size_t bytes)
{
    EACH (i, (bytes + 63) / 64) {
        PREFETCH((uintptr_t)p + AHEAD + i * 64);
    }
}

/* -- fused */

/* FUSED_SHARED: a part is multiplied while the next one is decoded, since decoding takes longer than
 * the scheduler sees ahead. */

/* v[VECS] of one row of W times `rows` rows of x; acc [rows][PASSES]. */
AI void fused_part(vec *acc, const vec *v, const float *x, size_t ldx, unsigned rows)
{
    EACH (r, rows) {
        EACH (i, VECS) {
            vec *a = &acc[r * PASSES + i % PASSES];
            *a = vfma(vload(x + r * ldx + i * VL), v[i], *a);
        }
    }
}

/* The same for `cols` rows of W, each load of x shared by all. */
AI void fused_block(vec acc[][FUSED_MAX * PASSES], vec v[][VECS], const float *x, size_t ldx,
                    unsigned rows, unsigned cols)
{
    EACH (i, VECS) {
        EACH (r, rows) {
            vec xv = vload(x + r * ldx + i * VL);
            HOLD(xv);
            EACH (c, cols) {
                vec *a = &acc[c][r * PASSES + i % PASSES];
                *a = vfma(xv, v[c][i], *a);
            }
        }
    }
}

typedef struct fused_args {
    float *y; /* of row 0 of x and row j of W */
    size_t ldy;
    const float *x;
    size_t ldx;
    const kvs__wrows *w;
    size_t j;            /* first of `cols` rows */
    size_t n;            /* rows that exist of `cols`; the last one stands in for the others */
    const float *x_tail; /* [rows][PAD], zero-padded; NULL when k is a multiple of PAD */
} fused_args;

/* Sums of n outputs' lanes, of output i at acc[i % cols][i / cols * PASSES]. */
AI void fused_sums(float *sums, vec acc[][FUSED_MAX * PASSES], unsigned n, unsigned cols)
{
#if FUSED_MAX > 4
    if (n > 4) {
        vec a[16];
        EACH (i, 16) {
            a[i] = i < n ? acc[i % cols][i / cols] : vzero();
        }
        sum16(sums, a);
        return;
    }
#endif
    float lanes[4 * LANES];
    EACH (i, 4 * PASSES) {
        unsigned out = i / PASSES;
        vstore(lanes + i * VL,
               out < n ? acc[out % cols][out / cols * PASSES + i % PASSES] : vzero());
    }
    reduce4(sums, lanes);
}

/* Scales of many parts take long to compute: those of the next block beside this one's parts. Q4_K,
 * one row of x, cycles per 16 weights on a Zen 4: 3.9 -> 2.9 (AVX-512), 4.7 -> 4.4 (AVX2). */
#define HDR_EARLY(parts) ((parts) > 1)

AI void fused_cols(const fused_args *f, unsigned rows, unsigned cols, hdr_fn hdr, dec_fn dec,
                   unsigned parts, size_t bytes)
{
    vec acc[4][FUSED_MAX * PASSES];
    EACH (c, cols) {
        EACH (i, rows * PASSES) {
            acc[c][i] = vzero();
        }
    }
    vec late[4][VECS]; /* decoded a part before it is multiplied, where FUSED_SHARED */
    size_t n_blocks = f->w->k / (parts * PAD);
    const float *x = f->x;
    const uint8_t *first = f->w->data + f->j * f->w->row_bytes;
    const uint8_t *w[4];
    size_t j[4];
    EACH (c, cols) {
        j[c] = f->j + (c < f->n ? c : f->n - 1);
        w[c] = f->w->data + j[c] * f->w->row_bytes;
    }
    float early[2][4][HDR]; /* by turns, where HDR_EARLY */
    for (unsigned c = 0; HDR_EARLY(parts) && n_blocks > 0 && c < cols; c++) {
        header(hdr, f->w, j[c], 0, w[c], early[0][c]);
    }
    for (size_t b = 0; b < n_blocks; b++) {
        float now[4][HDR];
        float(*h)[HDR] = HDR_EARLY(parts) ? early[b % 2] : now;
        prefetch(first + b * cols * bytes, cols * bytes);
        EACH (c, cols) {
            if (!HDR_EARLY(parts)) {
                header(hdr, f->w, j[c], b, w[c], h[c]);
            } else if (b + 1 < n_blocks) {
                header(hdr, f->w, j[c], b + 1, w[c] + bytes, early[(b + 1) % 2][c]);
            }
        }
        EACH (s, parts) {
            vec v[4][VECS];
            EACH (c, cols) {
                dec(w[c], h[c], s, v[c]);
                if (!FUSED_SHARED) {
                    fused_part(acc[c], v[c], x + s * PAD, f->ldx, rows);
                }
            }
            if (FUSED_SHARED) {
                if (b + s > 0) {
                    fused_block(acc, late, x + s * PAD - PAD, f->ldx, rows, cols);
                }
                EACH (i, cols * VECS) {
                    late[i / VECS][i % VECS] = v[i / VECS][i % VECS];
                }
            } else if (FUSED_SHARED) {
                fused_block(acc, v, x + s * PAD, f->ldx, rows, cols);
            }
        }
        EACH (c, cols) {
            w[c] += bytes;
        }
        x += (size_t)parts * PAD;
    }
    if (FUSED_SHARED && n_blocks > 0) {
        fused_block(acc, late, x - PAD, f->ldx, rows, cols);
    }
    if (ONE_ELEM(parts, bytes) && f->x_tail) {
        size_t left = f->w->k % PAD * (bytes / PAD);
        EACH (c, cols) {
            uint8_t t[PAD * sizeof(float)] = {0};
            memcpy(t, w[c], left);
            vec v[VECS];
            dec(t, NULL, 0, v);
            fused_part(acc[c], v, f->x_tail, PAD, rows);
        }
    }
    float sums[16];
    fused_sums(sums, acc, rows * cols, cols);
    EACH (r, rows) {
        if (f->n >= cols) {
            memcpy(f->y + r * f->ldy, sums + r * cols, cols * sizeof *sums);
        }
        for (unsigned c = 0; f->n < cols && c < f->n; c++) {
            f->y[r * f->ldy + c] = sums[r * cols + c];
        }
    }
}

/* Rows of x whose tail is a copy padded with zeros. */
static void copy_tails(float *dst, const float *x, size_t ldx, size_t rows, size_t k)
{
    size_t left = k % PAD;
    memset(dst, 0, rows * PAD * sizeof *dst);
    for (size_t r = 0; r < rows; r++) {
        memcpy(dst + r * PAD, x + r * ldx + (k - left), left * sizeof *dst);
    }
}

AI void fused_rows(float *y, size_t ldy, const float *x, size_t ldx, const kvs__wrows *w,
                   unsigned rows, unsigned cols, hdr_fn hdr, dec_fn dec, unsigned parts,
                   size_t bytes)
{
    float tails[FUSED_MAX * PAD];
    bool has_tail = w->k % PAD != 0;
    if (has_tail) {
        copy_tails(tails, x, ldx, rows, w->k);
    }
    fused_args f = {.ldy = ldy, .x = x, .ldx = ldx, .w = w};
    f.x_tail = has_tail ? tails : NULL;
    for (size_t j = 0; j < w->n; j += cols) {
        f.y = y + j;
        f.j = j;
        f.n = w->n - j;
        fused_cols(&f, rows, cols, hdr, dec, parts, bytes);
    }
}

/* -- panel */

/* Part of a row: elements k0 .. k0 + kk - 1 of row j, which begin with a block. */
typedef struct w_part {
    const kvs__wrows *w;
    size_t j;
    size_t k0;
    size_t kk;
} w_part;

AI const uint8_t *part_data(const w_part *p, unsigned parts, size_t bytes)
{
    const uint8_t *row = p->w->data + p->j * p->w->row_bytes;
    return row + (ONE_ELEM(parts, bytes) ? p->k0 * (bytes / PAD) : p->k0 / (parts * PAD) * bytes);
}

/* Decodes part of a row into row c of a tile. */
AI void pack_row(float *dst, size_t steps, const w_part *p, hdr_fn hdr, dec_fn dec, unsigned parts,
                 size_t bytes)
{
    const uint8_t *w = part_data(p, parts, bytes);
    size_t i0 = p->k0 / (parts * PAD);
    size_t kk = p->kk;
    float *to = dst;
    for (size_t k = 0; k + parts * PAD <= kk; k += parts * PAD, w += bytes) {
        float h[HDR];
        prefetch(w, bytes);
        header(hdr, p->w, p->j, i0 + k / (parts * PAD), w, h);
        EACH (s, parts) {
            vec v[VECS];
            dec(w, h, s, v);
            EACH (i, VECS) {
                size_t at = i % PASSES * steps + i / PASSES;
                vstore(to + at * TILE_C * VL, v[i]);
            }
            to += (size_t)PAD / LANES * TILE_C * VL;
        }
    }
    size_t left = kk % PAD;
    if (ONE_ELEM(parts, bytes) && left > 0) {
        uint8_t t[PAD * sizeof(float)] = {0};
        memcpy(t, w, left * (bytes / PAD));
        vec v[VECS];
        dec(t, NULL, 0, v);
        EACH (i, VECS) {
            size_t at = i % PASSES * steps + i / PASSES;
            vstore(to + at * TILE_C * VL, v[i]);
        }
    }
}

static void zero_row(float *dst, size_t steps)
{
    for (size_t i = 0; i < steps * PASSES; i++) {
        vstore(dst + i * TILE_C * VL, vzero());
    }
}

/* A whole row in its own order. */
AI void plain_row(float *dst, const w_part *p, hdr_fn hdr, dec_fn dec, unsigned parts, size_t bytes)
{
    const uint8_t *w = part_data(p, parts, bytes);
    size_t n = p->kk;
    for (size_t block = 0; n >= parts * PAD; n -= parts * PAD, w += bytes, block++) {
        float h[HDR];
        header(hdr, p->w, p->j, block, w, h);
        EACH (s, parts) {
            vec v[VECS];
            dec(w, h, s, v);
            EACH (i, VECS) {
                vstore(dst + s * PAD + i * VL, v[i]);
            }
        }
        dst += (size_t)parts * PAD;
    }
    if (ONE_ELEM(parts, bytes) && n > 0) {
        uint8_t t[PAD * sizeof(float)] = {0};
        memcpy(t, w, n * (bytes / PAD));
        float out[PAD];
        vec v[VECS];
        dec(t, NULL, 0, v);
        EACH (i, VECS) {
            vstore(out + i * VL, v[i]);
        }
        memcpy(dst, out, n * sizeof *dst);
    }
}

/* rows x TILE_C outputs over `steps` times 16 elements. acc rows are `lda` outputs apart. */
AI void tile(float *acc, size_t lda, const float *x, size_t ldx, const float *panel, size_t steps,
             bool first, unsigned rows)
{
    for (unsigned h = 0; h < PASSES; h++, x += VL, acc += VL) {
        vec a[TILE_R][TILE_C];
        EACH (r, rows) {
            EACH (c, TILE_C) {
                a[r][c] = first ? vzero() : vload(acc + (r * lda + c) * LANES);
            }
        }
        for (size_t t = 0; t < steps; t++, panel += TILE_C * VL) {
            TILE_STEP(a, x + t * LANES, ldx, panel, rows);
        }
        EACH (r, rows) {
            EACH (c, TILE_C) {
                vstore(acc + (r * lda + c) * LANES, a[r][c]);
            }
        }
    }
}

typedef void (*tile_fn)(float *acc, size_t lda, const float *x, size_t ldx, const float *panel,
                        size_t steps, bool first);
#define TILE_FN(rows)                                                                              \
    static void tile_##rows(float *acc, size_t lda, const float *x, size_t ldx,                    \
                            const float *panel, size_t steps, bool first)                          \
    {                                                                                              \
        tile(acc, lda, x, ldx, panel, steps, first, rows);                                         \
    }

typedef void (*pack_fn)(float *dst, size_t steps, const w_part *p);
typedef void (*plain_fn)(float *dst, const w_part *p);
typedef void (*fused_fn)(float *y, size_t ldy, const float *x, size_t ldx, const kvs__wrows *w);

typedef struct type_ops {
    pack_fn pack;
    plain_fn plain;
    fused_fn fused[FUSED_MAX]; /* for 1 .. FUSED_MAX rows of x */
} type_ops;

/* parts: 32-element parts of a block; bytes: of parts * 32 elements; colsN: rows of W side by side
 * for N rows of x, so that enough independent fma are in flight and the registers suffice. */
#define TYPE_FNS(T, parts, bytes)                                                                  \
    static void pack_##T(float *dst, size_t steps, const w_part *p)                                \
    {                                                                                              \
        pack_row(dst, steps, p, hdr_##T, dec_##T, parts, bytes);                                   \
    }                                                                                              \
    static void plain_##T(float *dst, const w_part *p)                                             \
    {                                                                                              \
        plain_row(dst, p, hdr_##T, dec_##T, parts, bytes);                                         \
    }                                                                                              \
    FUSED_FN(T, parts, bytes, 1)                                                                   \
    FUSED_FN(T, parts, bytes, 2)                                                                   \
    FUSED_FN(T, parts, bytes, 3)                                                                   \
    FUSED_FN(T, parts, bytes, 4)                                                                   \
    FUSED_MORE(T, parts, bytes)
#define FUSED_FN(T, parts, bytes, rows)                                                            \
    static void fused_##T##_##rows(float *y, size_t ldy, const float *x, size_t ldx,               \
                                   const kvs__wrows *w)                                            \
    {                                                                                              \
        fused_rows(y, ldy, x, ldx, w, rows, FUSED_COLS_##rows, hdr_##T, dec_##T, parts, bytes);    \
    }
#define FUSED_OPS(T)                                                                               \
    {                                                                                              \
        fused_##T##_1, fused_##T##_2, fused_##T##_3, fused_##T##_4 FUSED_MORE_OPS(T)               \
    }
#define TYPE_OPS(T, NAME) [KVS__W_##NAME] = {pack_##T, plain_##T, FUSED_OPS(T)}

/* Defined by the tier after its TYPE_FNS and TILE_FN. */
static const type_ops ops[KVS__W_AFF8 + 1];
static const tile_fn tiles[TILE_R];

/* A panel: n rows of W decoded, all of k. */
typedef struct w_panel {
    float *data;
    float *lanes; /* [TILE_R][n_pad][LANES] */
    size_t n;
    size_t n_pad;
    size_t k_full; /* multiple of PAD; the rest of k is one more chunk of PAD elements */
} w_panel;

static size_t chunk_at(size_t k0, size_t k_full, size_t k)
{
    if (k0 == k_full) {
        return k - k_full;
    }
    return k_full - k0 < KVS__WCHUNK ? k_full - k0 : KVS__WCHUNK;
}

/* Decodes rows j0 .. j0 + n - 1 of W, each from end to end: the order in which they lie. */
static void pack_panel(const w_panel *p, const kvs__wrows *w, size_t j0)
{
    const type_ops *op = &ops[w->type];
    for (size_t j = 0; j < p->n_pad; j++) {
        for (size_t k0 = 0; k0 < w->k;) {
            size_t kk = chunk_at(k0, p->k_full, w->k);
            size_t padded = (kk + PAD - 1) / PAD * PAD;
            float *to = p->data + k0 * p->n_pad + j / TILE_C * TILE_C * padded + j % TILE_C * VL;
            if (j < p->n) {
                op->pack(to, padded / LANES, &(w_part){w, j0 + j, k0, kk});
            } else {
                zero_row(to, padded / LANES);
            }
            k0 += kk;
        }
    }
}

static void panel_tiles(const w_panel *p, const float *x, size_t ldx, size_t rows, size_t k)
{
    float tails[TILE_R * PAD];
    for (size_t k0 = 0; k0 < k;) {
        size_t kk = chunk_at(k0, p->k_full, k);
        size_t padded = (kk + PAD - 1) / PAD * PAD;
        const float *xs = x + k0;
        size_t lds = ldx;
        if (kk % PAD != 0) {
            copy_tails(tails, x, ldx, rows, k);
            xs = tails;
            lds = PAD;
        }
        for (size_t j = 0; j < p->n_pad; j += TILE_C) {
            const float *from = p->data + k0 * p->n_pad + j * padded;
            tiles[rows - 1](p->lanes + j * LANES, p->n_pad, xs, lds, from, padded / LANES, k0 == 0);
        }
        k0 += kk;
    }
}

static void panel_rows(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                       const kvs__wrows *w, float *scratch)
{
    size_t most = kvs__wmat_panel_rows((w->k + PAD - 1) / PAD * PAD);
    /* few rows: small panels, so that decoding and multiplying stay in the first-level cache */
    most = rows <= SMALL_ROWS ? KVS__WTILE_ROWS : most;
    w_panel p = {.lanes = scratch, .k_full = w->k / PAD * PAD};
    p.data = scratch + (size_t)TILE_R * KVS__WPANEL_ROWS * LANES;
    for (size_t j0 = 0; j0 < w->n; j0 += most) {
        p.n = w->n - j0 < most ? w->n - j0 : most;
        p.n_pad = (p.n + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
        pack_panel(&p, w, j0);
        for (size_t r = 0; r < rows; r += TILE_R) {
            size_t nr = rows - r < TILE_R ? rows - r : TILE_R;
            panel_tiles(&p, x + r * ldx, ldx, nr, w->k);
            for (size_t i = 0; i < nr; i++) {
                reduce(y + (r + i) * ldy + j0, p.lanes + i * p.n_pad * LANES, p.n_pad, p.n);
            }
        }
    }
}

static void matmul(float *y, size_t ldy, const float *x, size_t ldx, size_t rows,
                   const kvs__wrows *w, void *scratch)
{
    if (rows == 0 || w->n == 0) {
        return;
    }
    if (w->k == 0) {
        for (size_t r = 0; r < rows; r++) {
            memset(y + r * ldy, 0, w->n * sizeof *y);
        }
    } else if (rows <= FUSED_MOST) {
        for (size_t g = (rows + FUSED_MAX - 1) / FUSED_MAX; g > 0; g--) { /* even groups */
            size_t n = (rows + g - 1) / g;
            // cppcheck-suppress arrayIndexOutOfBounds ; n <= FUSED_MAX, the size of the array
            ops[w->type].fused[n - 1](y, ldy, x, ldx, w);
            rows -= n;
            y += n * ldy;
            x += n * ldx;
        }
    } else {
        panel_rows(y, ldy, x, ldx, rows, w, scratch);
    }
}

static void dequant(float *dst, kvs__wtype type, const void *src, size_t n)
{
    kvs__wrows w = {.data = src, .k = n, .type = type};
    ops[type].plain(dst, &(w_part){&w, 0, 0, n});
}

static void row(float *dst, const kvs__wrows *w, size_t j)
{
    ops[w->type].plain(dst, &(w_part){w, j, 0, w->k});
}

#endif
