/* SPDX-License-Identifier: MIT */
/* check_direct.c: cases of qk_direct and pv_direct. Every case runs twice: the tier's kernel against
 * the reference's, then the tier's k_tile and qk (v_rows and pv) against the reference's direct
 * kernel, since a caller may take either way. Any NaN equals any other, as in check_attn.c. */
#include "base/base.h"
#include "kcheck.h"

enum { MAX_DIM = 576, MAX_TILES = 9, MAX_TOKENS = 70 };

static const kvs_dtype all_dtypes[] = {KVS_F32, KVS_F16, KVS_BF16};

static kvs__shape shape_of(const kc_arg *a)
{
    kvs__shape s = {(uint32_t)a->dim, a->bits, a->group, a->dtype};
    return s;
}

/* Bytes of one vector's elements. */
static size_t data_bytes(const kc_arg *a)
{
    return a->dim * kc_dtype_bytes(a->dtype);
}

static kvs__planes planes_at(void *const *p, const kc_arg *a, size_t token)
{
    kvs__planes at = {(const uint8_t *)p[2] + token * data_bytes(a), NULL, NULL, 0, 0};
    return at;
}

static void call_qk_direct(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    kvs__planes tiles[MAX_TILES];
    for (size_t t = 0; t < a->tiles; t++) {
        tiles[t] = planes_at(p, a, t * KVS__TILE);
    }
    k->qk_direct(p[0], a->ld0, p[1], a->ld1, a->rows, &s, tiles, a->tiles);
}

static void call_qk_split(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    static float scratch[KVS__TILE * MAX_DIM];
    if (k == kvs__kern_for(0)) {
        call_qk_direct(k, p, a);
        return;
    }
    kvs__shape s = shape_of(a);
    for (size_t t = 0; t < a->tiles; t++) {
        kvs__planes tile = planes_at(p, a, t * KVS__TILE);
        k->k_tile(scratch, &s, &tile);
        k->qk((float *)p[0] + t * KVS__TILE, a->ld0, p[1], a->ld1, a->rows, scratch, 1, a->dim);
    }
}

static void call_pv_direct(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    kvs__planes v = planes_at(p, a, 0);
    k->pv_direct(p[0], a->ld0, p[1], a->ld1, a->rows, &s, &v, a->n);
}

static void call_pv_split(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    static float scratch[MAX_TOKENS * MAX_DIM];
    if (k == kvs__kern_for(0)) {
        call_pv_direct(k, p, a);
        return;
    }
    kvs__shape s = shape_of(a);
    kvs__planes v = planes_at(p, a, 0);
    k->v_rows(scratch, a->dim, &s, &v, a->n);
    k->pv(p[0], a->ld0, p[1], a->ld1, a->rows, scratch, a->dim, a->n, a->dim);
}

/* The stored elements of `tokens` vectors as buffer 2. */
static void planes(kc *t, const kc_arg *a, size_t tokens)
{
    size_t n = tokens * a->dim;
    kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, kc_dtype_bytes(a->dtype), n), n);
}

static void qk_case(kc *t, kc_arg a)
{
    a.tiles = 1 + kc_below(&t->rng, MAX_TILES);
    a.ld0 = a.tiles * KVS__TILE + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    a.ld1 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    for (int way = 0; way < 2; way++) {
        kc_begin(t);
        (void)kc_buffer(t, KC_NAN_F32, 4, (a.rows - 1) * a.ld0 + a.tiles * KVS__TILE);
        size_t n_q = (a.rows - 1) * a.ld1 + a.dim;
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_q), n_q);
        planes(t, &a, a.tiles * KVS__TILE);
        kc_run(t, way ? call_qk_split : call_qk_direct, &a);
    }
}

static void pv_case(kc *t, kc_arg a)
{
    static const size_t counts[] = {0, 1, 2, 5, 16, 31, 32, 33, 64, MAX_TOKENS};
    a.n = counts[kc_below(&t->rng, KVS_COUNT(counts))];
    a.ld0 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    a.ld1 = a.n + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    for (int way = 0; way < 2; way++) {
        kc_begin(t);
        size_t n_acc = (a.rows - 1) * a.ld0 + a.dim;
        size_t n_p = a.n == 0 ? 0 : (a.rows - 1) * a.ld1 + a.n;
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_NAN_F32, 4, n_acc), n_acc);
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_p), n_p);
        planes(t, &a, a.n);
        kc_run(t, way ? call_pv_split : call_pv_direct, &a);
    }
}

/* Every type and number of rows; dims and data in turn, mostly tame. */
static void each_type(kc *t, void (*one)(kc *t, kc_arg a))
{
    for (size_t i = 0; i < 4 * KVS_COUNT(all_dtypes); i++) {
        for (size_t rows = 1; rows <= 17; rows++) {
            kc_arg a = {.rows = rows, .dtype = all_dtypes[i % KVS_COUNT(all_dtypes)]};
            a.data = (kc_data)kc_below(&t->rng, rows % 4 ? KC_N_TAME : KC_N_DATA);
            a.dim = 16 + 8 * (size_t)kc_below(&t->rng, 30);
            one(t, a);
        }
    }
}

void kc_check_qk_direct(kc *t)
{
    each_type(t, qk_case);
}

void kc_check_pv_direct(kc *t)
{
    each_type(t, pv_case);
}

/* -- bench: 128 tokens of head dim 128 */

static void bench_direct(kc_bench *b, kc_call call)
{
    static const size_t row_counts[] = {1, 3, 4, 8};
    for (size_t i = 0; i < KVS_COUNT(all_dtypes) * KVS_COUNT(row_counts); i++) {
        kc_arg a = {.rows = row_counts[i % KVS_COUNT(row_counts)], .tiles = 8, .n = 128};
        a.dim = 128;
        a.dtype = all_dtypes[i / KVS_COUNT(row_counts)];
        a.ld0 = 128;
        a.ld1 = 128;
        size_t n = a.n * a.dim;
        void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4),
                     kc_bench_buffer(2, n * 4)};
        char what[48];
        (void)snprintf(what, sizeof what, "%s rows %zu", kc_dtype_name(a.dtype), a.rows);
        kc_bench_run(b, what, call, p, &a, (double)n, (double)(a.n * data_bytes(&a)));
    }
}

void kc_bench_qk_direct(kc_bench *b)
{
    bench_direct(b, call_qk_direct);
}

void kc_bench_pv_direct(kc_bench *b)
{
    bench_direct(b, call_pv_direct);
}
