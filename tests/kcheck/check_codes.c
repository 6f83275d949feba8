/* SPDX-License-Identifier: MIT */
/* check_codes.c: cases of the kernels of attention over affine codes (kern.inc): 16-bit numbers and
 * their products with codes. Any NaN equals any other, as in check_attn.c. */
#include <string.h>

#include "base/base.h"
#include "kcheck.h"

enum { MAX_DIM = 512, MAX_TILES = 9, MAX_ROWS = 70 };

static const uint32_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const kvs_dtype all_dtypes[] = {KVS_F32, KVS_F16, KVS_BF16};

static kvs__shape shape_of(const kc_arg *a)
{
    kvs__shape s = {(uint32_t)a->dim, a->bits, a->group, a->dtype};
    return s;
}

static kvs__planes planes_at(const void *data, const void *scale, const void *bias, const kc_arg *a,
                             size_t token)
{
    size_t unit = token * (a->dim / a->group) * kc_dtype_bytes(a->dtype);
    kvs__planes at = {data ? (const uint8_t *)data + token * a->dim * a->bits / 8 : NULL,
                      scale ? (const uint8_t *)scale + unit : NULL,
                      bias ? (const uint8_t *)bias + unit : NULL, 0, 0};
    return at;
}

/* Codec i of all, dim and data in turn. */
static kc_arg codec(kc *t, size_t i, size_t rows)
{
    kc_arg a = {.rows = rows, .bits = all_bits[i / KVS_COUNT(all_dtypes) % KVS_COUNT(all_bits)]};
    a.dtype = all_dtypes[i % KVS_COUNT(all_dtypes)];
    a.data = (kc_data)kc_below(&t->rng, kc_below(&t->rng, 4) ? KC_N_TAME : KC_N_DATA);
    a.group = 32u << kc_below(&t->rng, 3);
    a.dim = a.group * (1 + kc_below(&t->rng, 256 / a.group));
    return a;
}

#define N_CODECS (KVS_COUNT(all_bits) * KVS_COUNT(all_dtypes))

/* -- queries */

static void call_q_pairs(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    k->q_pairs(p[0], p[1], p[2], &s);
}

void kc_check_q_pairs(kc *t)
{
    for (size_t i = 0; i < 20 * N_CODECS; i++) {
        kc_arg a = codec(t, i, 1);
        a.data = (kc_data)(i % KC_N_DATA);
        kc_begin(t);
        (void)kc_buffer(t, KC_EXACT, 4, a.dim / 2);
        (void)kc_buffer(t, KC_NAN_F32, 4, a.dim / a.group * 2);
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, a.dim), a.dim);
        kc_run(t, call_q_pairs, &a);
    }
}

/* -- scores */

static void call_qk_codes(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    static uint32_t scratch[KVS__PAIR_TILES * KVS__TILE * MAX_DIM / 2];
    kvs__shape s = shape_of(a);
    kvs__planes tiles[MAX_TILES];
    for (size_t t = 0; t < a->tiles; t++) {
        tiles[t] = planes_at(p[3], p[4], p[5], a, t * KVS__TILE);
    }
    k->qk_codes(p[0], a->ld0, p[1], p[2], a->rows, &s, tiles, a->tiles, scratch);
}

/* Pairs of numbers that q_pairs can give. */
static void fill_pairs(kc *t, uint32_t *dst, size_t n)
{
    bool most = kc_below(&t->rng, 8) == 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t x = most ? 32512 : kc_below(&t->rng, 65025) - 32512;
        uint32_t y = most ? 32512 : kc_below(&t->rng, 65025) - 32512;
        dst[i] = (x & 0xffff) | y << 16;
    }
}

static void fill_codes(kc *t, void *dst, size_t bytes)
{
    if (kc_below(&t->rng, 8) == 0) {
        memset(dst, 0xff, bytes); /* the greatest sums */
    } else {
        kc_fill_bytes(&t->rng, dst, bytes);
    }
}

static void score_case(kc *t, size_t i, size_t rows)
{
    kc_arg a = codec(t, i, rows);
    a.tiles = 1 + kc_below(&t->rng, MAX_TILES);
    a.ld0 = a.tiles * KVS__TILE + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    size_t n_units = a.tiles * KVS__TILE * (a.dim / a.group);
    size_t elem = kc_dtype_bytes(a.dtype);
    size_t words = a.tiles * KVS__TILE * a.dim * a.bits / 32;
    kc_begin(t);
    (void)kc_buffer(t, KC_NAN_F32, 4, (rows - 1) * a.ld0 + a.tiles * KVS__TILE);
    fill_pairs(t, kc_buffer(t, KC_INPUT, 4, rows * a.dim / 2), rows * a.dim / 2);
    size_t n_params = rows * (a.dim / a.group) * 2;
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_params), n_params);
    fill_codes(t, kc_buffer(t, KC_INPUT, 4, words), words * 4);
    kc_fill(&t->rng, a.data, a.dtype, kc_buffer(t, KC_INPUT, elem, n_units), n_units);
    kc_fill(&t->rng, a.data, a.dtype, kc_buffer(t, KC_INPUT, elem, n_units), n_units);
    kc_run(t, call_qk_codes, &a);
}

void kc_check_qk_codes(kc *t)
{
    for (size_t i = 0; i < N_CODECS; i++) {
        for (size_t rows = 1; rows <= 18; rows++) {
            score_case(t, i, rows < 18 ? rows : MAX_ROWS);
        }
    }
}

/* -- weights */

static void call_v_units(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    kvs__planes rows = planes_at(NULL, p[2], p[3], a, 0);
    k->v_units(p[0], p[1], a->ld0, &s, &rows, a->n);
}

void kc_check_v_units(kc *t)
{
    for (size_t i = 0; i < 8 * N_CODECS; i++) {
        kc_arg a = codec(t, i, 1);
        a.n = 1 + kc_below(&t->rng, 80);
        a.ld0 = a.n + kc_below(&t->rng, 2) * kc_below(&t->rng, 9);
        size_t n_groups = a.dim / a.group;
        kc_begin(t);
        (void)kc_buffer(t, KC_NAN_F32, 4, (n_groups - 1) * a.ld0 + a.n);
        (void)kc_buffer(t, KC_NAN_F32, 4, (n_groups - 1) * a.ld0 + a.n);
        size_t elem = kc_dtype_bytes(a.dtype);
        kc_fill(&t->rng, a.data, a.dtype, kc_buffer(t, KC_INPUT, elem, a.n * n_groups),
                a.n * n_groups);
        kc_fill(&t->rng, a.data, a.dtype, kc_buffer(t, KC_INPUT, elem, a.n * n_groups),
                a.n * n_groups);
        kc_run(t, call_v_units, &a);
    }
}

static void call_p_weights(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->p_weights(p[0], p[1], p[2], p[3], p[4], p[5], a->n);
}

void kc_check_p_weights(kc *t)
{
    for (size_t i = 0; i < 400; i++) {
        kc_arg a = {.n = KVS__TILE * (1 + kc_below(&t->rng, KVS__CHUNK_TILES))};
        a.data = (kc_data)(i % KC_N_DATA);
        kc_begin(t);
        (void)kc_buffer(t, KC_EXACT, 2, a.n);
        (void)kc_buffer(t, KC_NAN_F32, 4, 1);
        (void)kc_buffer(t, KC_NAN_F32, 4, 1);
        float *p = kc_buffer(t, KC_INPUT, 4, a.n);
        for (size_t j = 0; j < a.n; j++) { /* numerators: 0 to 1, some 0, NaN with the wild */
            uint64_t x = kc_u64(&t->rng);
            p[j] = x % 3 == 0 ? 0.0f : (float)(x >> 40) * 0x1p-24f;
            p[j] = x % 7 == 0 ? p[j] * 0x1p-120f : p[j];
            if (a.data >= KC_N_TAME && x % 61 == 0) {
                memset(&p[j], 0xff, sizeof p[j]); /* a NaN */
            }
        }
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, a.n), a.n);
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, a.n), a.n);
        kc_run(t, call_p_weights, &a);
    }
}

/* -- values */

static void call_pv_codes(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    static uint32_t scratch[KVS__PAIR_ROWS / 2 * MAX_DIM];
    kvs__shape s = shape_of(a);
    kvs__planes rows = planes_at(p[2], NULL, NULL, a, 0);
    k->pv_codes(p[0], a->ld0, p[1], a->ld1, a->ld2, a->rows, &s, &rows, a->n, scratch);
}

static void value_case(kc *t, size_t i, size_t rows)
{
    static const size_t counts[] = {1, 2, 3, 5, 16, 31, 32, 33, 64, 97, 256};
    kc_arg a = codec(t, i, rows);
    a.n = counts[kc_below(&t->rng, KVS_COUNT(counts))];
    a.ld0 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    a.ld1 = a.n + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    a.ld2 = a.ld1 * rows;
    kc_begin(t);
    size_t n_acc = (rows - 1) * a.ld0 + a.dim;
    memset(kc_buffer(t, KC_EXACT, 4, n_acc), 0, n_acc * 4);
    size_t n_w = (a.dim / a.group - 1) * a.ld2 + (rows - 1) * a.ld1 + a.n;
    uint32_t pair[2];
    int16_t *w = kc_buffer(t, KC_INPUT, 2, n_w);
    for (size_t j = 0; j < n_w; j++) {
        fill_pairs(t, pair, 1);
        memcpy(&w[j], pair, sizeof w[j]);
    }
    size_t words = a.n * a.dim * a.bits / 32;
    fill_codes(t, kc_buffer(t, KC_INPUT, 4, words), words * 4);
    kc_run(t, call_pv_codes, &a);
}

void kc_check_pv_codes(kc *t)
{
    for (size_t i = 0; i < N_CODECS; i++) {
        for (size_t rows = 1; rows <= 18; rows++) {
            value_case(t, i, rows < 18 ? rows : MAX_ROWS);
        }
    }
}

static void call_v_sums(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->v_sums(p[0], p[1], a->n, a->f0, a->f1);
}

void kc_check_v_sums(kc *t)
{
    for (size_t i = 0; i < 200; i++) {
        kc_arg a = {.n = 32u << (i % 3)};
        float f[2];
        a.data = (kc_data)(i % KC_N_DATA);
        kc_begin(t);
        (void)kc_buffer(t, KC_NAN_F32, 4, a.n);
        kc_fill_bytes(&t->rng, kc_buffer(t, KC_INPUT, 4, a.n), a.n * 4);
        kc_fill_f32(&t->rng, a.data, f, 2);
        a.f0 = f[0];
        a.f1 = f[1];
        kc_run(t, call_v_sums, &a);
    }
}

/* -- bench: 128 tokens of head dim 128 */

typedef void (*bench_one)(kc_bench *b, const kc_arg *a, const char *what);

static void each_bench(kc_bench *b, bench_one one)
{
    static const size_t row_counts[] = {1, 3, 4, 8, 64};
    for (size_t i = 0; i < KVS_COUNT(all_bits) * KVS_COUNT(row_counts); i++) {
        kc_arg a = {.rows = row_counts[i % KVS_COUNT(row_counts)], .tiles = 8, .n = 128};
        a.bits = all_bits[i / KVS_COUNT(row_counts)];
        a.dim = 128;
        a.group = 64;
        a.dtype = KVS_F16;
        a.ld0 = 128;
        a.ld1 = 128;
        a.ld2 = 128 * a.rows;
        char what[48];
        (void)snprintf(what, sizeof what, "%u/f16 rows %zu", a.bits, a.rows);
        one(b, &a, what);
    }
}

static void bench_scores(kc_bench *b, const kc_arg *a, const char *what)
{
    size_t n = a->n * a->dim;
    void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4), kc_bench_buffer(2, n * 4),
                 kc_bench_buffer(3, n * 4), kc_bench_buffer(3, n * 4), kc_bench_buffer(3, n * 4)};
    double bytes = (double)n * a->bits / 8 + (double)(n / a->group * 4);
    kc_bench_run(b, what, call_qk_codes, p, a, (double)n, bytes);
}

static void bench_values(kc_bench *b, const kc_arg *a, const char *what)
{
    size_t n = a->n * a->dim;
    void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4), kc_bench_buffer(2, n * 4)};
    kc_bench_run(b, what, call_pv_codes, p, a, (double)n, (double)n * a->bits / 8);
}

void kc_bench_qk_codes(kc_bench *b)
{
    each_bench(b, bench_scores);
}

void kc_bench_pv_codes(kc_bench *b)
{
    each_bench(b, bench_values);
}

void kc_bench_q_pairs(kc_bench *b)
{
    kc_arg a = {.dim = 128, .bits = 8, .group = 64};
    void *p[] = {kc_bench_buffer(0, 1024), kc_bench_buffer(1, 1024), kc_bench_buffer(2, 1024)};
    kc_bench_run(b, "8/64 dim 128", call_q_pairs, p, &a, 128, 128 * 6);
}

void kc_bench_v_units(kc_bench *b)
{
    kc_arg a = {.n = 128, .dim = 128, .bits = 8, .group = 64, .dtype = KVS_F16, .ld0 = 128};
    void *p[] = {kc_bench_buffer(0, 4096), kc_bench_buffer(1, 4096), kc_bench_buffer(2, 4096),
                 kc_bench_buffer(3, 4096)};
    kc_bench_run(b, "f16 two groups", call_v_units, p, &a, 512, 512 * 6);
}

void kc_bench_p_weights(kc_bench *b)
{
    kc_arg a = {.n = 256};
    void *p[] = {kc_bench_buffer(0, 1024), kc_bench_buffer(1, 64),   kc_bench_buffer(2, 64),
                 kc_bench_buffer(3, 1024), kc_bench_buffer(3, 1024), kc_bench_buffer(3, 1024)};
    kc_bench_run(b, "256 tokens", call_p_weights, p, &a, 256, 256 * 14);
}

void kc_bench_v_sums(kc_bench *b)
{
    kc_arg a = {.n = 128, .f0 = 1.0f, .f1 = 2.0f};
    void *p[] = {kc_bench_buffer(0, 512), kc_bench_buffer(1, 512)};
    kc_bench_run(b, "128", call_v_sums, p, &a, 128, 128 * 8);
}
