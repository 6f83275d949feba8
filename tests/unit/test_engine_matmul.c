/* SPDX-License-Identifier: MIT */
/* test_engine_matmul.c: the split over threads never shows: every result has the bits that the
 * reference kernel gives for one row alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/matmul.h"
#include "kvstate/base.h"

#define K        288u
#define N0       97u
#define N1       36u
#define N2       500u
#define ROWS_MAX 300u

static uint32_t seed = 12345;

static uint32_t rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

typedef struct world {
    uint8_t *w;
    float *x;
    float *want;
    float *got;
    void *scratch;
    size_t scratch_bytes;
} world;

static const size_t n_of[3] = {N0, N1, N2};
static const kvs__wtype type_of[3] = {KVS__W_Q4_1, KVS__W_Q8_0, KVS__W_F32};

/* Every bit pattern of the bytes is an ordinary number as f16 and f32. */
static void make(world *o)
{
    size_t bytes = (size_t)(N0 + N1 + N2) * K * 4;
    o->w = malloc(bytes);
    o->x = malloc(sizeof(float) * ROWS_MAX * K);
    o->want = malloc(sizeof(float) * ROWS_MAX * (N0 + N1 + N2));
    o->got = malloc(sizeof(float) * ROWS_MAX * (N0 + N1 + N2));
    o->scratch_bytes = kvs__matmul_scratch(3, K);
    o->scratch = aligned_alloc(64, o->scratch_bytes + 64);
    assert_true(o->w && o->x && o->want && o->got && o->scratch);
    for (size_t i = 0; i < bytes; i++) {
        o->w[i] = (uint8_t)(0x20u | (rnd() & 0x1fu));
    }
    for (size_t i = 0; i < (size_t)ROWS_MAX * K; i++) {
        o->x[i] = (float)(rnd() % 2001) * 0.001f - 1.0f;
    }
}

static void drop(world *o)
{
    free(o->w);
    free(o->x);
    free(o->want);
    free(o->got);
    free(o->scratch);
}

static void outs_at(const world *o, float *y, kvs__mat_out outs[3], size_t rows)
{
    const uint8_t *w = o->w;
    for (size_t m = 0; m < 3; m++) {
        outs[m] = (kvs__mat_out){kvs__wrows_of(type_of[m], w, n_of[m], K), y, n_of[m]};
        w += n_of[m] * outs[m].w.row_bytes;
        y += n_of[m] * rows;
    }
}

static void check(uint32_t n_threads, uint32_t tiers_off, size_t rows)
{
    world o;
    make(&o);
    kvs__mat_out outs[3];
    outs_at(&o, o.want, outs, rows);
    for (size_t m = 0; m < 3; m++) { /* one row at a time */
        for (size_t r = 0; r < rows; r++) {
            kvs__wkern_for(0)->matmul(outs[m].y + r * n_of[m], n_of[m], o.x + r * K, K, 1,
                                      &outs[m].w, o.scratch);
        }
    }
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = n_threads;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&opts, &ctx, NULL), KVS_OK);
    outs_at(&o, o.got, outs, rows);
    size_t total = rows * (N0 + N1 + N2);
    memset(o.got, 0xa5, total * sizeof(float));
    memset((uint8_t *)o.scratch + o.scratch_bytes, 0x77, 64);
    kvs__matmul_args a = {.kern = kvs__wkern_for(kvs_cpu_tiers() & ~tiers_off),
                          .x = o.x,
                          .ldx = K,
                          .rows = rows,
                          .outs = outs,
                          .n_outs = 3,
                          .scratch = o.scratch,
                          .scratch_bytes = o.scratch_bytes};
    kvs__matmul(kvs__ctx_pool(ctx), &a);
    assert_memory_equal(o.got, o.want, total * sizeof(float));
    for (size_t i = 0; i < 64; i++) {
        assert_int_equal(((uint8_t *)o.scratch)[o.scratch_bytes + i], 0x77);
    }
    kvs_ctx_free(ctx);
    drop(&o);
}

static void every_split_has_the_bits_of_one_row(void **state)
{
    (void)state;
    static const size_t rows[] = {1, 4, 5, 130, ROWS_MAX};
    for (uint32_t threads = 1; threads <= 3; threads++) {
        for (size_t i = 0; i < KVS_COUNT(rows); i++) {
            check(threads, 0, rows[i]);
        }
    }
    check(2, KVS_TIER_AVX512, 7);
    check(2, KVS_TIER_ALL, 2);
}

static void nothing_to_do(void **state)
{
    (void)state;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 2;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(&opts, &ctx, NULL), KVS_OK);
    float y = 1.5f;
    float x = 1.0f;
    kvs__mat_out out = {kvs__wrows_of(KVS__W_F32, NULL, 0, 1), &y, 1};
    void *scratch = aligned_alloc(64, kvs__matmul_scratch(2, 1));
    assert_non_null(scratch);
    kvs__matmul_args a = {.kern = kvs__wkern_for(kvs_cpu_tiers()),
                          .x = &x,
                          .ldx = 1,
                          .rows = 1,
                          .outs = &out,
                          .n_outs = 1,
                          .scratch = scratch,
                          .scratch_bytes = kvs__matmul_scratch(2, 1)};
    kvs__matmul(kvs__ctx_pool(ctx), &a);
    out.w = kvs__wrows_of(KVS__W_F32, &x, 1, 1);
    a.rows = 0;
    kvs__matmul(kvs__ctx_pool(ctx), &a);
    assert_true(y == 1.5f);
    free(scratch);
    kvs_ctx_free(ctx);
}

static void scratch_saturates(void **state)
{
    (void)state;
    assert_true(kvs__matmul_scratch(2, SIZE_MAX - 5) == SIZE_MAX);
    assert_true(kvs__matmul_scratch(2, SIZE_MAX / 64) == SIZE_MAX);
    assert_true(kvs__matmul_scratch(2, 576) < (size_t)1 << 20);
    assert_true(kvs__wmat_scratch(577) % 64 == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_has_the_bits_of_one_row),
        cmocka_unit_test(nothing_to_do),
        cmocka_unit_test(scratch_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
