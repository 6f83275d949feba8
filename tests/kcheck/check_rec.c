/* SPDX-License-Identifier: MIT */
/* check_rec.c: cases of the kernels of recurrent layers. Outputs that the caller sees have one NaN;
 * in the state any NaN equals any other (see check_attn.c). */
#include <math.h>
#include <string.h>

#include "base/base.h"
#include "kcheck.h"

static const kc_data kinds[] = {KC_NORMAL, KC_NORMAL, KC_UNIFORM, KC_SUB,
                                KC_ZERO,   KC_BITS,   KC_SPECIAL, KC_MIX};

static kc_data any_kind(kc *t)
{
    return kinds[kc_below(&t->rng, KVS_COUNT(kinds))];
}

/* -- conv_taps: block: taps; bits: 1 silu, 2 bias; n tokens, dim channels */

static void call_conv(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->conv_taps(p[0], a->ld0, p[1], a->ld1, a->n, p[2], a->ld2, a->bits & 2 ? p[3] : NULL,
                 a->block, a->dim, (a->bits & 1) != 0);
}

static void fill(kc *t, kc_data kind, size_t n)
{
    kc_fill_f32(&t->rng, kind, kc_buffer(t, KC_INPUT, 4, n), n);
}

void kc_check_conv_taps(kc *t)
{
    static const size_t counts[] = {1, 2, 3, 7, 33};
    kc_arg a = {0};
    for (a.dim = 1; a.dim <= 70; a.dim++) {
        for (size_t i = 0; i < KVS_COUNT(counts); i++) {
            a.n = counts[i];
            a.block = 1 + kc_below(&t->rng, 5);
            a.bits = kc_below(&t->rng, 4);
            a.data = any_kind(t);
            a.ld0 = a.dim + kc_below(&t->rng, 4);
            a.ld1 = a.dim + kc_below(&t->rng, 4);
            a.ld2 = a.dim + kc_below(&t->rng, 4);
            kc_begin(t);
            (void)kc_buffer(t, KC_EXACT, 4, (a.n - 1) * a.ld0 + a.dim);
            fill(t, a.data, (a.n + a.block - 2) * a.ld1 + a.dim);
            fill(t, a.data, (a.block - 1) * a.ld2 + a.dim);
            fill(t, KC_NORMAL, a.dim);
            kc_run(t, call_conv, &a);
        }
    }
}

/* -- gates: bits: 1 beta, 2 bias; f0, f1: limits of dt */

static void call_gates(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    k->gates(p[0], p[1], p[2], a->bits & 1 ? p[3] : NULL, a->bits & 2 ? p[4] : NULL, p[5], a->f0,
             a->f1, a->n);
}

void kc_check_gates(kc *t)
{
    kc_arg a = {0};
    for (size_t i = 0; i < 400; i++) {
        a.n = kc_below(&t->rng, 40);
        a.bits = kc_below(&t->rng, 4);
        a.data = any_kind(t);
        a.f0 = kc_below(&t->rng, 2) ? 0.0f : 0.01f;
        a.f1 = kc_below(&t->rng, 2) ? HUGE_VALF : 0.7f;
        kc_begin(t);
        (void)kc_buffer(t, KC_EXACT, 4, a.n);
        (void)kc_buffer(t, KC_EXACT, 4, a.n);
        fill(t, a.data, a.n);
        fill(t, a.data, a.n);
        fill(t, KC_NORMAL, a.n);
        fill(t, a.data, a.n);
        kc_run(t, call_gates, &a);
    }
}

/* -- scans: k and q of a token lie in one row, and g and b; block 1: in place */

typedef void (*scan_fn)(float *dst, const float *src, size_t rows, size_t dim, const kvs__scan *in,
                        size_t n, float *y, size_t ldy);

static void scan(scan_fn fn, void *const *p, const kc_arg *a)
{
    const float *kq = p[3];
    const float *gb = p[5];
    kvs__scan in = {kq,   a->bits ? kq + a->dim : NULL, p[4], gb, gb + 1, a->ld1, a->ld1, a->ld2, 2,
                    a->f0};
    fn(p[0], a->block ? p[0] : p[1], a->rows, a->dim, &in, a->n, p[2], a->ld0);
}

static void call_scan_delta(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    scan(k->scan_delta, p, a);
}

static void call_scan_ssd(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    scan(k->scan_ssd, p, a);
}

static void scan_case(kc *t, kc_call call, kc_arg a)
{
    a.ld0 = a.rows + kc_below(&t->rng, 9);
    a.ld1 = 2 * a.dim + kc_below(&t->rng, 9);
    a.ld2 = a.rows + kc_below(&t->rng, 9);
    a.f0 = kc_normal(&t->rng);
    kc_begin(t);
    size_t n_state = a.dim * KVS__TILE;
    kc_fill_f32(&t->rng, a.data, kc_buffer(t, KC_NAN_F32, 4, n_state), n_state);
    fill(t, a.data, n_state);
    (void)kc_buffer(t, KC_EXACT, 4, (a.n - 1) * a.ld0 + a.rows);
    fill(t, a.data, (a.n - 1) * a.ld1 + 2 * a.dim);
    fill(t, a.data, (a.n - 1) * a.ld2 + a.rows);
    size_t n_gates = 2 * a.n;
    float *gb = kc_buffer(t, KC_INPUT, 4, n_gates);
    kc_fill_f32(&t->rng, a.data, gb, n_gates);
    for (size_t i = 0; a.data == KC_NORMAL && i < n_gates; i++) {
        gb[i] = 0.4f + 0.2f * gb[i]; /* a state that stays tame */
    }
    kc_run(t, call, &a);
}

static void check_scan(kc *t, kc_call call)
{
    static const size_t dims[] = {4, 8, 12, 16, 64, 100, 128, 256};
    static const size_t counts[] = {1, 2, 3, 9};
    kc_arg a = {0};
    for (a.rows = 1; a.rows <= KVS__TILE; a.rows++) {
        for (size_t i = 0; i < KVS_COUNT(dims) * KVS_COUNT(counts); i++) {
            a.dim = dims[i % KVS_COUNT(dims)];
            a.n = counts[i / KVS_COUNT(dims)];
            a.block = kc_below(&t->rng, 2);
            a.bits = kc_below(&t->rng, 4) > 0;
            a.data = any_kind(t);
            scan_case(t, call, a);
        }
    }
}

void kc_check_scan_delta(kc *t)
{
    check_scan(t, call_scan_delta);
}

void kc_check_scan_ssd(kc *t)
{
    check_scan(t, call_scan_ssd);
}

/* -- bench: one tile of a layer with 128 columns; state elements x tokens a second */

void kc_bench_conv_taps(kc_bench *b)
{
    kc_arg a = {.n = 16, .dim = 128, .block = 4, .bits = 3, .ld0 = 128, .ld1 = 128, .ld2 = 128};
    size_t n = a.n * a.dim;
    void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, (n + 3 * a.dim) * 4),
                 kc_bench_buffer(2, 4 * a.dim * 4), kc_bench_buffer(3, a.dim * 4)};
    kc_bench_run(b, "taps 4", call_conv, p, &a, (double)n, (double)n * 8);
}

void kc_bench_gates(kc_bench *b)
{
    kc_arg a = {.n = 32, .bits = 3, .f1 = HUGE_VALF};
    void *p[] = {kc_bench_buffer(0, 128), kc_bench_buffer(1, 128), kc_bench_buffer(2, 128),
                 kc_bench_buffer(3, 128), kc_bench_buffer(4, 128), kc_bench_buffer(5, 128)};
    kc_bench_run(b, "", call_gates, p, &a, 32, 32 * 24);
}

static void bench_scan(kc_bench *b, kc_call call)
{
    static const size_t counts[] = {1, 16};
    for (size_t i = 0; i < KVS_COUNT(counts); i++) {
        kc_arg a = {.n = counts[i], .rows = 16, .dim = 128, .bits = 1, .block = 1};
        a.ld0 = 16;
        a.ld1 = 256;
        a.ld2 = 16;
        void *p[] = {kc_bench_buffer(0, 128 * 16 * 4), kc_bench_buffer(1, 64),
                     kc_bench_buffer(2, a.n * 64),     kc_bench_buffer(3, a.n * 1024),
                     kc_bench_buffer(4, a.n * 64),     kc_bench_buffer(5, a.n * 8)};
        memset(p[5], 0, a.n * 8); /* the state must not run away over the rounds */
        char what[32];
        (void)snprintf(what, sizeof what, "tokens %zu", a.n);
        double n = (double)(a.n * a.rows * a.dim);
        kc_bench_run(b, what, call, p, &a, n, n * 8);
    }
}

void kc_bench_scan_delta(kc_bench *b)
{
    bench_scan(b, call_scan_delta);
}

void kc_bench_scan_ssd(kc_bench *b)
{
    bench_scan(b, call_scan_ssd);
}
