/* SPDX-License-Identifier: MIT */
/* check_attn.c: cases of the attention kernels.
 *
 * Where a result is a sum or a product of inputs that may be NaN, sign and payload of the NaN are
 * the processor's (which operand wins, the sign of an invalid operation), and a compiler may swap
 * the operands; there any NaN equals any other: codes read with a NaN scale (k_tile, v_rows), qk,
 * softmax's l and p, pv, merge. Dense tiles and rows move or widen bits: exact. */
#include <float.h>
#include <string.h>

#include "base/base.h"
#include "kcheck.h"

enum { MAX_DIM = 576 };

static const uint32_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const uint32_t all_groups[] = {32, 64, 128};
static const kvs_dtype all_dtypes[] = {KVS_F32, KVS_F16, KVS_BF16};
/* tame, then whatever may come */
static const kc_data kinds[] = {KC_NORMAL, KC_SUB, KC_ZERO, KC_BITS, KC_SPECIAL, KC_MIX};

static kvs__shape shape_of(const kc_arg *a)
{
    kvs__shape s = {(uint32_t)a->dim, a->bits, a->group, a->dtype};
    return s;
}

static void call_k_tile(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    kvs__planes planes = {p[1], a->bits ? p[2] : NULL, a->bits ? p[3] : NULL, 0, 0};
    k->k_tile(p[0], &s, &planes);
}

static void call_v_rows(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    kvs__shape s = shape_of(a);
    kvs__planes planes = {p[1], a->bits ? p[2] : NULL, a->bits ? p[3] : NULL, 0, 0};
    k->v_rows(p[0], a->ld0, &s, &planes, a->n);
}

static void call_qk(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->qk(p[0], a->ld0, p[1], a->ld1, a->rows, p[2], a->tiles, a->dim);
}

static void call_softmax(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->softmax(p[0], a->ld0, a->rows, a->tiles, p[3], a->ld1, a->softcap, p[1], p[2]);
}

static void call_pv(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->pv(p[0], a->ld0, p[1], a->ld1, a->rows, p[2], a->ld2, a->n, a->dim);
}

static void call_merge(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->merge(p[0], p[1], p[2], p[3], a->f0, a->f1, a->dim);
}

/* The stored planes of `tokens` vectors as buffers 1, 2, 3. */
static void planes(kc *t, const kc_arg *a, size_t tokens)
{
    size_t elem = kc_dtype_bytes(a->dtype);
    size_t n = tokens * a->dim;
    if (a->bits == 0) {
        kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, elem, n), n);
        return;
    }
    size_t words = n * a->bits / 32;
    size_t groups = n / a->group;
    kc_fill_bytes(&t->rng, kc_buffer(t, KC_INPUT, 4, words), words * 4);
    kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, elem, groups), groups);
    kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, elem, groups), groups);
}

static void k_tile_case(kc *t, const kc_arg *a)
{
    kc_begin(t);
    (void)kc_buffer(t, a->bits ? KC_NAN_F32 : KC_EXACT, 4, a->dim * KVS__TILE);
    planes(t, a, KVS__TILE);
    kc_run(t, call_k_tile, a);
}

static void v_rows_case(kc *t, const kc_arg *base)
{
    static const size_t counts[] = {0, 1, 2, 3, 5, 15, 16, 17, 23};
    kc_arg a = *base;
    for (size_t i = 0; i < KVS_COUNT(counts); i++) {
        a.n = counts[i];
        a.ld0 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
        kc_begin(t);
        /* the last row ends at dim, not at ldd */
        size_t n = a.n == 0 ? 0 : (a.n - 1) * a.ld0 + a.dim;
        (void)kc_buffer(t, a.bits ? KC_NAN_F32 : KC_EXACT, 4, n);
        planes(t, &a, a.n);
        kc_run(t, call_v_rows, &a);
    }
}

/* Every head dim, codec and dtype, with one kind of data each in turn. */
static void each_shape(kc *t, void (*one)(kc *t, const kc_arg *a), size_t dim_step)
{
    size_t turn = 0;
    kc_arg a = {0};
    for (size_t d = 0; d < KVS_COUNT(all_dtypes); d++) {
        a.dtype = all_dtypes[d];
        a.bits = 0;
        a.group = 0;
        for (a.dim = 16; a.dim <= MAX_DIM; a.dim += dim_step) {
            a.data = kinds[turn++ % KVS_COUNT(kinds)];
            one(t, &a);
        }
        for (size_t i = 0; i < KVS_COUNT(all_bits) * KVS_COUNT(all_groups); i++) {
            a.bits = all_bits[i % KVS_COUNT(all_bits)];
            a.group = all_groups[i / KVS_COUNT(all_bits)];
            for (a.dim = a.group; a.dim <= MAX_DIM; a.dim += a.group) {
                a.data = kinds[turn++ % KVS_COUNT(kinds)];
                one(t, &a);
            }
        }
    }
}

void kc_check_k_tile(kc *t)
{
    each_shape(t, k_tile_case, 8);
    each_shape(t, k_tile_case, 8);
}

void kc_check_v_rows(kc *t)
{
    each_shape(t, v_rows_case, 8);
}

static size_t any_dim(kc_rng *r)
{
    return 16 + 8 * (size_t)kc_below(r, (MAX_DIM - 16) / 8 + 1);
}

static void qk_case(kc *t, kc_arg a)
{
    a.ld0 = a.tiles * KVS__TILE + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    a.ld1 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    kc_begin(t);
    (void)kc_buffer(t, KC_NAN_F32, 4, (a.rows - 1) * a.ld0 + a.tiles * KVS__TILE);
    size_t n_q = (a.rows - 1) * a.ld1 + a.dim;
    size_t n_k = a.tiles * a.dim * KVS__TILE;
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_q), n_q);
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_k), n_k);
    kc_run(t, call_qk, &a);
}

void kc_check_qk(kc *t)
{
    kc_arg a = {0};
    for (a.rows = 1; a.rows <= 17; a.rows++) {
        for (a.tiles = 1; a.tiles <= 16; a.tiles++) {
            a.data = (kc_data)kc_below(&t->rng, KC_N_DATA);
            a.dim = 16 + 8 * (size_t)kc_below(&t->rng, 6);
            qk_case(t, a);
        }
    }
    for (a.dim = 16; a.dim <= MAX_DIM; a.dim += 8) {
        a.rows = 1 + kc_below(&t->rng, 5);
        a.tiles = 1 + kc_below(&t->rng, 5);
        a.data = a.dim % 32 ? (kc_data)kc_below(&t->rng, KC_N_TAME) : KC_ZERO;
        qk_case(t, a);
    }
}

static void fill_mask(kc_rng *r, uint16_t *mask, size_t n)
{
    uint32_t kind = kc_below(r, 5);
    for (size_t i = 0; i < n; i++) {
        uint16_t any = (uint16_t)kc_u64(r);
        uint16_t one = (uint16_t)(1u << (any & 15));
        uint16_t causal = (uint16_t)(0xffffu >> (any & 15));
        uint16_t choice[] = {0xffff, 0, any, one, causal};
        mask[i] = choice[kind];
    }
}

static void softmax_case(kc *t, kc_arg a)
{
    static const float caps[] = {0.0f, 0.0f, 30.0f, 50.0f, 0.5f};
    a.softcap = caps[kc_below(&t->rng, KVS_COUNT(caps))];
    a.ld0 = a.tiles * KVS__TILE + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    a.ld1 = a.tiles + kc_below(&t->rng, 3);
    kc_begin(t);
    size_t n = (a.rows - 1) * a.ld0 + a.tiles * KVS__TILE;
    size_t n_mask = (a.rows - 1) * a.ld1 + a.tiles;
    float *s = kc_buffer(t, KC_NAN_F32, 4, n);
    kc_fill_f32(&t->rng, a.data, s, n);
    if (a.data == KC_NORMAL) { /* scores spread over the whole domain of exp */
        for (size_t i = 0; i < n; i++) {
            s[i] *= 40.0f;
        }
    }
    (void)kc_buffer(t, KC_EXACT, 4, a.rows);
    (void)kc_buffer(t, KC_NAN_F32, 4, a.rows);
    fill_mask(&t->rng, kc_buffer(t, KC_INPUT, 2, n_mask), n_mask);
    kc_run(t, call_softmax, &a);
}

void kc_check_softmax(kc *t)
{
    kc_arg a = {0};
    for (a.rows = 1; a.rows <= 17; a.rows++) {
        for (a.tiles = 1; a.tiles <= KVS__CHUNK_TILES; a.tiles++) {
            for (int i = 0; i < 4; i++) {
                a.data = i < 2 ? KC_NORMAL : (kc_data)kc_below(&t->rng, KC_N_DATA);
                softmax_case(t, a);
            }
        }
    }
}

static void pv_case(kc *t, kc_arg a)
{
    a.ld0 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    a.ld1 = a.n + kc_below(&t->rng, 3) * kc_below(&t->rng, 20);
    a.ld2 = a.dim + kc_below(&t->rng, 3) * kc_below(&t->rng, 9);
    size_t n_acc = (a.rows - 1) * a.ld0 + a.dim;
    size_t n_p = a.n == 0 ? 0 : (a.rows - 1) * a.ld1 + a.n;
    size_t n_v = a.n == 0 ? 0 : (a.n - 1) * a.ld2 + a.dim;
    kc_begin(t);
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_NAN_F32, 4, n_acc), n_acc);
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_p), n_p);
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, n_v), n_v);
    kc_run(t, call_pv, &a);
}

void kc_check_pv(kc *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 7, 8, 13, 15, 16, 17, 31, 64, 127, 255, 256};
    kc_arg a = {0};
    for (a.rows = 1; a.rows <= 17; a.rows++) {
        for (size_t i = 0; i < KVS_COUNT(counts); i++) {
            a.n = counts[i];
            a.data = (kc_data)kc_below(&t->rng, KC_N_DATA);
            a.dim = 16 + 8 * (size_t)kc_below(&t->rng, a.n > 64 ? 6 : 20);
            pv_case(t, a);
        }
    }
    for (size_t dim = 16; dim <= MAX_DIM; dim += 8) {
        a.rows = 1 + kc_below(&t->rng, 5);
        a.n = 1 + kc_below(&t->rng, 40);
        a.data = dim % 32 ? (kc_data)kc_below(&t->rng, KC_N_TAME) : KC_ZERO;
        a.dim = dim;
        pv_case(t, a);
    }
}

void kc_check_merge(kc *t)
{
    static const float tops[] = {0.0f, -FLT_MAX, 1.0f, -3.5f, 60.0f, 200.0f, FLT_MAX};
    kc_arg a = {0};
    for (size_t i = 0; i < 800; i++) {
        a.dim = any_dim(&t->rng);
        a.data = (kc_data)kc_below(&t->rng, KC_N_DATA);
        a.f0 = tops[kc_below(&t->rng, KVS_COUNT(tops))];
        a.f1 = kc_normal(&t->rng) * 8.0f;
        kc_begin(t);
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_NAN_F32, 4, a.dim), a.dim);
        float *m = kc_buffer(t, KC_EXACT, 4, 1);
        *m = kc_below(&t->rng, 2) ? kc_normal(&t->rng) * 50.0f
                                  : tops[kc_below(&t->rng, KVS_COUNT(tops))];
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_NAN_F32, 4, 1), 1);
        kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, a.dim), a.dim);
        kc_run(t, call_merge, &a);
    }
}

/* -- bench: the shapes of a decode step with head dim 128 and groups of 64 */

enum { DIM = 128, GROUP = 64, TILES = 16 };

static void bench_stored(kc_bench *b, kc_call call, size_t tokens)
{
    for (size_t i = 0; i <= KVS_COUNT(all_bits); i++) {
        uint32_t bits = i == 0 ? 0 : all_bits[i - 1];
        kvs_dtype dtype = bits ? KVS_F16 : KVS_BF16;
        kc_arg a = {.n = tokens, .dim = DIM, .ld0 = DIM, .bits = bits, .group = GROUP};
        a.dtype = dtype;
        void *p[] = {kc_bench_buffer(0, tokens * DIM * 4), kc_bench_buffer(1, tokens * DIM * 4),
                     kc_bench_buffer(2, tokens * DIM * 4), kc_bench_buffer(3, tokens * DIM * 4)};
        char what[32];
        (void)snprintf(what, sizeof what, "%u/%s", bits, kc_dtype_name(dtype));
        double n = (double)(tokens * DIM);
        double stored = bits ? n * bits / 8 + n / GROUP * 4 : n * 2;
        kc_bench_run(b, what, call, p, &a, n, n * 4 + stored);
    }
}

void kc_bench_k_tile(kc_bench *b)
{
    bench_stored(b, call_k_tile, KVS__TILE);
}

void kc_bench_v_rows(kc_bench *b)
{
    bench_stored(b, call_v_rows, KVS__TILE);
}

static const size_t row_counts[] = {1, 4, 8, 16};

void kc_bench_qk(kc_bench *b)
{
    for (size_t i = 0; i < KVS_COUNT(row_counts); i++) {
        kc_arg a = {.rows = row_counts[i], .tiles = 4, .dim = DIM, .ld0 = 4 * KVS__TILE};
        a.ld1 = DIM;
        size_t n = 4 * KVS__TILE * DIM;
        void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4),
                     kc_bench_buffer(2, n * 4)};
        char what[32];
        (void)snprintf(what, sizeof what, "rows %zu", a.rows);
        kc_bench_run(b, what, call_qk, p, &a, (double)(n * a.rows), (double)n * 4);
    }
}

void kc_bench_softmax(kc_bench *b)
{
    kc_arg a = {.rows = 4, .tiles = TILES, .ld0 = KVS__CHUNK, .ld1 = TILES};
    size_t n = a.rows * KVS__CHUNK;
    void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, 64), kc_bench_buffer(2, 64),
                 kc_bench_buffer(3, n)};
    memset(p[3], 0xff, n);
    kc_bench_run(b, "", call_softmax, p, &a, (double)n, (double)n * 8);
}

void kc_bench_pv(kc_bench *b)
{
    for (size_t i = 0; i < KVS_COUNT(row_counts); i++) {
        kc_arg a = {.rows = row_counts[i], .n = 64, .dim = DIM, .ld0 = DIM, .ld1 = 64};
        a.ld2 = DIM;
        size_t n = a.n * DIM;
        void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4),
                     kc_bench_buffer(2, n * 4)};
        memset(p[1], 0, n * 4); /* or the sums would run away over the rounds */
        char what[32];
        (void)snprintf(what, sizeof what, "rows %zu", a.rows);
        kc_bench_run(b, what, call_pv, p, &a, (double)(n * a.rows), (double)n * 4);
    }
}

void kc_bench_merge(kc_bench *b)
{
    kc_arg a = {.dim = DIM};
    void *p[] = {kc_bench_buffer(0, DIM * 4), kc_bench_buffer(1, 64), kc_bench_buffer(2, 64),
                 kc_bench_buffer(3, DIM * 4)};
    kc_bench_run(b, "", call_merge, p, &a, DIM, DIM * 12.0);
}
