/* SPDX-License-Identifier: MIT */
/* attn_direct.h: qk_direct and pv_direct, which widen in registers; the second part of the body of
 * the attn_*.c files (see attn_simd.h), included after it. A tier defines
 *   DIRECT_ROWS, the most rows of a register block, and DIRECT_SHAPES: X(rows, tiles, vectors),
 *   how many tiles qk_direct and how many vectors of a V row pv_direct take at once;
 *
 * The values are those of k_tile and v_rows and the chains those of qk and pv, so the bits are too.
 * What is saved is the trip through scratch, and decoding overlaps with the products. */
#ifndef KVS_KERN_ATTN_DIRECT_H
#define KVS_KERN_ATTN_DIRECT_H

/* out[r] (+)= sum of w[r][..] times what `planes` store. */
typedef struct direct {
    float *out;
    size_t ldo;
    const float *w;
    size_t ldw;
    const kvs__shape *shape;
    const kvs__planes *planes; /* tiles, one each, or the rows */
    size_t n;                  /* tiles or tokens */
} direct;

typedef void (*direct_fn)(const direct *job);

/* Asks for the line of `ahead` bytes after p, as far as the second cache. The loops below ask for
 * each line that they will need later as they use one, so that waiting and computing overlap: asked
 * for in bursts, the requests outrun the line fill buffers and the products wait behind them.
 * Hardware alone is too late with streams of a few KiB. The distance is one in elements, since the
 * time that an element takes is about the same in every codec, and so is what memory takes to
 * answer. It is too far for the first cache, whose fill buffers the products need: bf16 on Zen 4,
 * one core, Gelem/s at 512 (into the first cache), 512, 2048, 4096, 8192 and 16384 bytes per bit:
 * AVX2 5.5, 5.9, 7.6, 10.4, 10.4, 9.5; AVX-512 6.8, 9.5, 9.2, 11.2, 11.3, 10.6; bandwidth 10.6.
 * Nothing is read, so an address past the end is harmless. */
#define LINE          64u
#define AHEAD(bits)   (4096u * (bits)) /* of codes and elements */
#define AHEAD_OF_UNIT 1024u            /* of scales and biases */
INLINE void ask(const void *p, size_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)p + ahead), 0, 2);
}

INLINE size_t far_of(const kvs__planes *p, size_t bits)
{
    return p->far ? p->far : AHEAD(bits);
}

/* Pointers, not multiples of ldw: with them the unrolled code needs no other registers. */
INLINE void weight_rows(const float *w[], const direct *job, const size_t R)
{
    EACH (r, R) {
        w[r] = job->w + r * job->ldw;
    }
}

/* -- scores: R rows by T tiles. Slots beyond the last tile repeat it and are not stored. */

/* x[r][c] += w[r][at] * y[c], column by column with the weights in registers where those are fewer,
 * otherwise row by row once every y is there: products_begin, then for each c the value of y[c] and
 * products_column, then products_end. */
INLINE void products_begin(vf a[], const float *w[], size_t at, const size_t R, const size_t C)
{
    if (R <= C) {
        EACH (r, R) {
            a[r] = vf_set(w[r][at]);
        }
    }
}

INLINE void products_column(vf x[], const vf a[], const vf y[], size_t c, const size_t R,
                            const size_t C)
{
    if (R <= C) {
        EACH (r, R) {
            x[r * C + c] = vf_fma(a[r], y[c], x[r * C + c]);
        }
    }
}

INLINE void products_end(vf x[], const vf y[], const float *w[], size_t at, const size_t R,
                         const size_t C)
{
    if (R > C) {
        EACH (r, R) {
            vf a = vf_set(w[r][at]);
            EACH (c, C) {
                x[r * C + c] = vf_fma(a, y[c], x[r * C + c]);
            }
        }
    }
}

INLINE void dense_tiles(vf x[], const direct *job, const kvs__planes *const tile[], kvs_dtype dtype,
                        const size_t R, const size_t T)
{
    const float *w[DIRECT_ROWS];
    size_t far[T_MAX];
    EACH (t, T) {
        far[t] = far_of(tile[t], dtype == KVS_F32 ? 32 : 16);
    }
    weight_rows(w, job, R);
    for (size_t d = 0; d < job->shape->dim; d++) {
        vf a[DIRECT_ROWS];
        vf y[T_MAX * TILE_VECS];
        products_begin(a, w, d, R, T * TILE_VECS);
        EACH (c, T * TILE_VECS) {
            size_t at = d * KVS__TILE + c % TILE_VECS * VW;
            const unsigned char *data = tile[c / TILE_VECS]->data;
            if (c % TILE_VECS == 0 && (dtype == KVS_F32 || d % 2 == 0)) {
                ask(data + at * (dtype == KVS_F32 ? 4 : 2), far[c / TILE_VECS]);
            }
            y[c] = load_vec(data, dtype, at);
            products_column(x, a, y, c, R, T * TILE_VECS);
        }
        products_end(x, y, w, d, R, T * TILE_VECS);
    }
}

/* A group's scales and biases of 16 tokens in f32: line[0..15], line[16..31]. Out of line: the
 * branches on dtype are not worth a copy in every instance. */
static __attribute__((noinline)) void tile_params(float *line, const kvs__planes *tile,
                                                  kvs_dtype dtype, size_t g)
{
    size_t at = g * KVS__TILE;
    size_t size = dtype == KVS_F32 ? 4 : 2;
    size_t far = tile->far_unit ? tile->far_unit : AHEAD_OF_UNIT;
    ask((const unsigned char *)tile->scale + at * size, far);
    ask((const unsigned char *)tile->bias + at * size, far);
    EACH (c, TILE_VECS) {
        vf_st(line + c * VW, load_vec(tile->scale, dtype, at + c * VW));
        vf_st(line + KVS__TILE + c * VW, load_vec(tile->bias, dtype, at + c * VW));
    }
}

INLINE void direct_tiles(const direct *job, kvs_dtype dtype, const size_t R, const size_t T)
{
    for (size_t t0 = 0; t0 < job->n; t0 += T) {
        const kvs__planes *tile[T_MAX];
        vf x[DIRECT_ROWS * T_MAX * TILE_VECS];
        EACH (t, T) {
            tile[t] = job->planes + (t0 + t < job->n ? t0 + t : job->n - 1);
        }
        EACH (i, R * T * TILE_VECS) {
            x[i] = vf_set(0.0f);
        }
        dense_tiles(x, job, tile, dtype, R, T);
        EACH (i, R * T * TILE_VECS) {
            size_t r = i / (T * TILE_VECS);
            size_t c = i % (T * TILE_VECS);
            if (t0 + c / TILE_VECS < job->n) {
                vf_st(job->out + r * job->ldo + t0 * KVS__TILE + c * VW, x[i]);
            }
        }
    }
}

/* -- outputs: R rows by C vectors of d, over all tokens. */

INLINE void load_acc(vf x[], const direct *job, size_t d, const size_t R, const size_t C)
{
    EACH (i, R * C) {
        x[i] = vf_ld(job->out + i / C * job->ldo + d + i % C * VW);
    }
}

INLINE void store_acc(vf x[], const direct *job, size_t d, const size_t R, const size_t C)
{
    EACH (i, R * C) {
        vf_st(job->out + i / C * job->ldo + d + i % C * VW, x[i]);
    }
}

/* The lines of the same strip of a later row; those that another strip starts are its business. */
INLINE void ask_strip(const uint8_t *row, size_t at_byte, size_t n_bytes, size_t far)
{
    if (at_byte % LINE == 0) {
        EACH (i, (n_bytes + LINE - 1) / LINE) {
            ask(row + i * LINE, far);
        }
    }
}

INLINE void dense_rows(const direct *job, size_t d, kvs_dtype dtype, const size_t R, const size_t C)
{
    const size_t size = dtype == KVS_F32 ? 4 : 2;
    const size_t far = far_of(job->planes, size * 8);
    const float *w[DIRECT_ROWS];
    weight_rows(w, job, R);
    vf x[DIRECT_ROWS * C_MAX];
    load_acc(x, job, d, R, C);
    for (size_t j = 0; j < job->n; j++) {
        vf a[DIRECT_ROWS];
        vf y[C_MAX];
        products_begin(a, w, j, R, C);
        ask_strip((const uint8_t *)job->planes->data + (j * job->shape->dim + d) * size, d * size,
                  C * VW * size, far);
        EACH (c, C) {
            y[c] = load_vec(job->planes->data, dtype, j * job->shape->dim + d + c * VW);
            products_column(x, a, y, c, R, C);
        }
        products_end(x, y, w, j, R, C);
    }
    store_acc(x, job, d, R, C);
}

INLINE void direct_rows(const direct *job, kvs_dtype dtype, const size_t R, const size_t C)
{
    size_t dim = job->shape->dim;
    size_t d = 0;
    for (; d + C * VW <= dim; d += C * VW) {
        dense_rows(job, d, dtype, R, C);
    }
    for (; d + VW <= dim; d += VW) {
        dense_rows(job, d, dtype, R, 1);
    }
    for (size_t j = 0; j < job->n; j++) {
        for (size_t i = d; i < dim; i++) {
            float v = load1(job->planes->data, dtype, j * dim + i);
            for (size_t r = 0; r < R; r++) {
                float *sum = job->out + r * job->ldo + i;
                *sum = fmaf(job->w[r * job->ldw + j], v, *sum);
            }
        }
    }
}

/* -- instances: by type and rows. */

#define TYPES_OF(X, R, T, C)                                                                       \
    X(f32, KVS_F32, R, T, C)                                                                       \
    X(f16, KVS_F16, R, T, C)                                                                       \
    X(bf16, KVS_BF16, R, T, C)

#define INSTANCE(name, dtype, R, T, C)                                                             \
    static void qk_##name##_##R(const direct *job)                                                 \
    {                                                                                              \
        direct_tiles(job, dtype, R, T);                                                            \
    }                                                                                              \
    static void pv_##name##_##R(const direct *job)                                                 \
    {                                                                                              \
        direct_rows(job, dtype, R, C);                                                             \
    }
#define INSTANCES(R, T, C) TYPES_OF(INSTANCE, R, T, C)
DIRECT_SHAPES(INSTANCES)

/* [dtype][rows] */
#define QK_ENTRY(name, dtype, R, T, C) [dtype][R] = qk_##name##_##R,
#define PV_ENTRY(name, dtype, R, T, C) [dtype][R] = pv_##name##_##R,
#define QK_ENTRIES(R, T, C)            TYPES_OF(QK_ENTRY, R, T, C)
#define PV_ENTRIES(R, T, C)            TYPES_OF(PV_ENTRY, R, T, C)
static const direct_fn qk_of[3][DIRECT_ROWS + 1] = {DIRECT_SHAPES(QK_ENTRIES)};
static const direct_fn pv_of[3][DIRECT_ROWS + 1] = {DIRECT_SHAPES(PV_ENTRIES)};

/* Rows are cut evenly into blocks of DIRECT_ROWS at most. */
static void direct_all(direct job, size_t rows, const direct_fn fn[DIRECT_ROWS + 1])
{
    size_t n_blocks = (rows + DIRECT_ROWS - 1) / DIRECT_ROWS;
    for (; n_blocks > 0; n_blocks--) {
        size_t take = (rows + n_blocks - 1) / n_blocks;
        fn[take](&job);
        job.out += take * job.ldo;
        job.w += take * job.ldw;
        rows -= take;
    }
}

static void qk_direct(float *s, size_t lds, const float *q, size_t ldq, size_t rows,
                      const kvs__shape *shape, const kvs__planes *tiles, size_t n_tiles)
{
    direct job = {s, lds, q, ldq, shape, tiles, n_tiles};
    direct_all(job, rows, qk_of[shape->dtype]);
}

static void pv_direct(float *acc, size_t lda, const float *p, size_t ldp, size_t rows,
                      const kvs__shape *shape, const kvs__planes *v, size_t n)
{
    direct job = {acc, lda, p, ldp, shape, v, n};
    direct_all(job, rows, pv_of[shape->dtype]);
}

static void attn_init(kvs__kern *k)
{
    k->k_tile = k_tile;
    k->v_rows = v_rows;
    k->qk = qk;
    k->qk_direct = qk_direct;
    k->softmax = softmax;
    k->pv = pv;
    k->pv_direct = pv_direct;
    k->merge = merge;
}
#endif
