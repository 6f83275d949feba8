/* SPDX-License-Identifier: MIT */
/* check_codec.c: cases of the conversion, rotation and affine kernels. All outputs are exact, NaN
 * results included: where the processor would choose sign or payload, the reference fixes them. */
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "kcheck.h"

static const size_t lengths[] = {0,  1,  2,  3,  5,  7,  8,   9,   15,  16,  17,  23,  24,
                                 31, 32, 33, 47, 61, 64, 127, 128, 129, 256, 576, 579, 1009};
static const uint32_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const uint32_t all_groups[] = {32, 64, 128};
static const size_t group_counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33};

/* -- conversion */

static void call_f32_from_f16(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->f32_from_f16(p[0], p[1], a->n);
}

static void call_f32_from_bf16(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->f32_from_bf16(p[0], p[1], a->n);
}

static void call_f16_from_f32(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->f16_from_f32(p[0], p[1], a->n);
}

static void call_bf16_from_f32(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->bf16_from_f32(p[0], p[1], a->n);
}

static void check_widen(kc *t, kc_call call, kvs_dtype dtype)
{
    kc_arg a = {0};
    a.dtype = dtype;
    a.n = 65536; /* every pattern */
    kc_begin(t);
    (void)kc_buffer(t, KC_EXACT, 4, a.n);
    uint16_t *src = kc_buffer(t, KC_INPUT, 2, a.n);
    for (size_t i = 0; i < a.n; i++) {
        src[i] = (uint16_t)i;
    }
    kc_run(t, call, &a);
    for (size_t i = 0; i < KVS_COUNT(lengths); i++) {
        for (a.data = 0; a.data < KC_N_DATA; a.data++) {
            a.n = lengths[i];
            kc_begin(t);
            (void)kc_buffer(t, KC_EXACT, 4, a.n);
            kc_fill(&t->rng, a.data, dtype, kc_buffer(t, KC_INPUT, 2, a.n), a.n);
            kc_run(t, call, &a);
        }
    }
}

/* f32 patterns around every value of the narrow type and around the middle between two. */
static void fill_near(kc_rng *r, kvs_dtype dtype, float *dst, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h = (uint16_t)(first + i);
        uint32_t half_step = dtype == KVS_F16 ? 0x1000u : 0x8000u;
        uint32_t u = kvs__bits_f32(dtype == KVS_F16 ? kvs__f16_to_f32(h) : kvs__bf16_to_f32(h));
        u += (kc_below(r, 2) ? half_step : 0u) + kc_below(r, 3) - 1u;
        dst[i] = kvs__f32_bits(u);
    }
}

static void check_narrow(kc *t, kc_call call, kvs_dtype dtype)
{
    kc_arg a = {0};
    a.dtype = dtype;
    a.n = 65536;
    for (int round = 0; round < 4; round++) {
        kc_begin(t);
        (void)kc_buffer(t, KC_EXACT, 2, a.n);
        fill_near(&t->rng, dtype, kc_buffer(t, KC_INPUT, 4, a.n), 0, a.n);
        kc_run(t, call, &a);
    }
    for (size_t i = 0; i < KVS_COUNT(lengths); i++) {
        for (a.data = 0; a.data < KC_N_DATA; a.data++) {
            a.n = lengths[i];
            kc_begin(t);
            (void)kc_buffer(t, KC_EXACT, 2, a.n);
            kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_INPUT, 4, a.n), a.n);
            kc_run(t, call, &a);
        }
    }
}

void kc_check_f32_from_f16(kc *t)
{
    check_widen(t, call_f32_from_f16, KVS_F16);
}

void kc_check_f32_from_bf16(kc *t)
{
    check_widen(t, call_f32_from_bf16, KVS_BF16);
}

void kc_check_f16_from_f32(kc *t)
{
    check_narrow(t, call_f16_from_f32, KVS_F16);
}

void kc_check_bf16_from_f32(kc *t)
{
    check_narrow(t, call_bf16_from_f32, KVS_BF16);
}

/* -- rotation */

static void call_hadamard(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->hadamard(p[0], a->n, a->block);
}

void kc_check_hadamard(kc *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 5, 8, 17};
    kc_arg a = {0};
    for (a.block = 1; a.block <= 1024; a.block *= 2) {
        for (size_t i = 0; i < KVS_COUNT(counts); i++) {
            for (a.data = 0; a.data < KC_N_DATA; a.data++) {
                a.n = counts[i];
                kc_begin(t);
                float *x = kc_buffer(t, KC_EXACT, 4, a.n * a.block);
                kc_fill_f32(&t->rng, a.data, x, a.n * a.block);
                kc_run(t, call_hadamard, &a);
            }
        }
    }
}

/* -- affine */

static void call_affine_encode(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->affine_encode(p[3], a->n, a->bits, a->group, p[0], p[1], p[2]);
}

static void call_affine_decode(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->affine_decode(p[0], p[1], p[2], p[3], a->n, a->bits, a->group);
}

static void call_affine_decode_mlx(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->affine_decode_mlx(p[0], p[1], p[2], p[3], a->n, a->bits, a->group, a->dtype);
}

static void encode_case(kc *t, const kc_arg *a)
{
    kc_begin(t);
    (void)kc_buffer(t, KC_EXACT, 4, a->n * a->group * a->bits / 32);
    (void)kc_buffer(t, KC_EXACT, 4, a->n);
    (void)kc_buffer(t, KC_EXACT, 4, a->n);
    float *x = kc_buffer(t, KC_INPUT, 4, a->n * a->group);
    kc_fill_f32(&t->rng, a->data, x, a->n * a->group);
    kc_run(t, call_affine_encode, a);
}

static void decode_case(kc *t, const kc_arg *a, kc_call call)
{
    size_t elem = kc_dtype_bytes(a->dtype);
    kc_begin(t);
    (void)kc_buffer(t, KC_EXACT, elem, a->n * a->group);
    size_t n_words = a->n * a->group * a->bits / 32;
    kc_fill_bytes(&t->rng, kc_buffer(t, KC_INPUT, 4, n_words), n_words * 4);
    kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, elem, a->n), a->n);
    kc_fill(&t->rng, a->data, a->dtype, kc_buffer(t, KC_INPUT, elem, a->n), a->n);
    kc_run(t, call, a);
}

/* Every pair of bits and group, every count of groups, every kind of data. */
static void each_affine(kc *t, kvs_dtype dtype, void (*one)(kc *t, const kc_arg *a))
{
    kc_arg a = {0};
    a.dtype = dtype;
    for (size_t b = 0; b < KVS_COUNT(all_bits); b++) {
        for (size_t g = 0; g < KVS_COUNT(all_groups); g++) {
            for (size_t i = 0; i < KVS_COUNT(group_counts); i++) {
                for (a.data = 0; a.data < KC_N_DATA; a.data++) {
                    a.bits = all_bits[b];
                    a.group = all_groups[g];
                    a.n = group_counts[i];
                    one(t, &a);
                }
            }
        }
    }
}

static void one_decode(kc *t, const kc_arg *a)
{
    decode_case(t, a, call_affine_decode);
}

static void one_decode_mlx(kc *t, const kc_arg *a)
{
    decode_case(t, a, call_affine_decode_mlx);
}

void kc_check_affine_encode(kc *t)
{
    each_affine(t, KVS_F32, encode_case);
}

void kc_check_affine_decode(kc *t)
{
    each_affine(t, KVS_F32, one_decode);
}

void kc_check_affine_decode_mlx(kc *t)
{
    each_affine(t, KVS_F32, one_decode_mlx);
    each_affine(t, KVS_F16, one_decode_mlx);
    each_affine(t, KVS_BF16, one_decode_mlx);
}

/* -- bench: a footprint in the first-level cache, as in use (a row or a chunk at a time) */

enum { N = 4096, GROUP = 64 };

static void bench_convert(kc_bench *b, kc_call call, double from, double to)
{
    void *p[] = {kc_bench_buffer(0, N * 4), kc_bench_buffer(1, N * 4)};
    kc_arg a = {.n = N};
    kc_bench_run(b, "", call, p, &a, N, N * (from + to));
}

void kc_bench_f32_from_f16(kc_bench *b)
{
    bench_convert(b, call_f32_from_f16, 2, 4);
}

void kc_bench_f32_from_bf16(kc_bench *b)
{
    bench_convert(b, call_f32_from_bf16, 2, 4);
}

void kc_bench_f16_from_f32(kc_bench *b)
{
    bench_convert(b, call_f16_from_f32, 4, 2);
}

void kc_bench_bf16_from_f32(kc_bench *b)
{
    bench_convert(b, call_bf16_from_f32, 4, 2);
}

void kc_bench_hadamard(kc_bench *b)
{
    static const size_t blocks[] = {16, 64, 128, 256};
    for (size_t i = 0; i < KVS_COUNT(blocks); i++) {
        kc_arg a = {.block = blocks[i], .n = N / blocks[i]};
        void *p[] = {kc_bench_buffer(0, N * 4)};
        char what[32];
        (void)snprintf(what, sizeof what, "%zu", a.block);
        kc_bench_run(b, what, call_hadamard, p, &a, N, N * 8.0);
    }
}

static void bench_affine(kc_bench *b, kc_call call, kvs_dtype dtype)
{
    for (size_t i = 0; i < KVS_COUNT(all_bits); i++) {
        uint32_t bits = all_bits[i];
        kc_arg a = {.n = N / GROUP, .bits = bits, .group = GROUP, .dtype = dtype};
        void *p[] = {kc_bench_buffer(0, N * 4), kc_bench_buffer(1, N * 4),
                     kc_bench_buffer(2, N * 4), kc_bench_buffer(3, N * 4)};
        char what[32];
        (void)snprintf(what, sizeof what, "%u:%u/%s", bits, (unsigned)GROUP, kc_dtype_name(dtype));
        double elem = (double)kc_dtype_bytes(dtype);
        kc_bench_run(b, what, call, p, &a, N,
                     N * (elem + bits / 8.0) + N / (double)GROUP * 2 * elem);
    }
}

void kc_bench_affine_encode(kc_bench *b)
{
    b->elem_rate = kc_bench_divide_rate(b);
    bench_affine(b, call_affine_encode, KVS_F32);
    b->elem_rate = 0;
}

void kc_bench_affine_decode(kc_bench *b)
{
    bench_affine(b, call_affine_decode, KVS_F32);
}

void kc_bench_affine_decode_mlx(kc_bench *b)
{
    bench_affine(b, call_affine_decode_mlx, KVS_F16);
    bench_affine(b, call_affine_decode_mlx, KVS_BF16);
}
