/* SPDX-License-Identifier: MIT */
/* test_half.c: f16 and bf16 conversion: all 65536 halves to f32; f32 to halves on 12 million
 * patterns (a stride over all 2^32, and every rounding boundary with its neighbours), judged by
 * arithmetic in double and, where the CPU has them, by the F16C instructions. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#include "kvstate/base.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("f16c"))) static uint16_t hw_from(float x)
{
    return (uint16_t)_mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(x), 0), 0);
}

__attribute__((target("f16c"))) static float hw_to(uint16_t h)
{
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}
#else
static uint16_t hw_from(float x)
{
    return kvs__f16_from_f32(x);
}

static float hw_to(uint16_t h)
{
    return kvs__f16_to_f32(h);
}
#endif

/* CPUID takes microseconds in a virtual machine, so it is asked once. */
static int has_hw(void)
{
    static int known = -1;
    if (known < 0) {
        known = (kvs_cpu_tiers() & KVS_TIER_AVX2) != 0; /* the tier includes F16C */
    }
    return known;
}

typedef struct format {
    int mant; /* stored fraction bits */
    int min_exp;
    double top; /* greatest finite value */
} format;

static const format f16 = {10, -14, 65504.0};
static const format bf16 = {7, -126, 0x1.fep127};

/* Nearest value of the format, ties to even, gradual underflow; the sum of products of powers of
 * two is exact in double. */
static double nearest(const format *f, double x)
{
    int e = 0;
    (void)frexp(x, &e); /* x = m 2^e, m in [0.5, 1) */
    e = e - 1 < f->min_exp ? f->min_exp : e - 1;
    double unit = ldexp(1.0, e - f->mant);
    double r = nearbyint(x / unit) * unit;
    return fabs(r) > f->top ? copysign(HUGE_VAL, x) : r;
}

static void check_f32(uint32_t u)
{
    float x = kvs__f32_bits(u);
    uint16_t h = kvs__f16_from_f32(x);
    uint16_t b = kvs__bf16_from_f32(x);
    if (isnan(x)) { /* stays NaN with its sign, quiet, and the top payload bits */
        uint32_t want = (u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu);
        if (h != want || b != (u >> 16 | 0x40u)) {
            fail_msg("NaN 0x%08x: f16 0x%04x, bf16 0x%04x", u, h, b);
        }
    } else {
        double wh = nearest(&f16, (double)x);
        double wb = nearest(&bf16, (double)x);
        double gh = (double)kvs__f16_to_f32(h);
        double gb = (double)kvs__bf16_to_f32(b);
        if (gh != wh || gb != wb || !signbit(gh) != !signbit(wh) || !signbit(gb) != !signbit(wb)) {
            fail_msg("0x%08x: f16 0x%04x, bf16 0x%04x", u, h, b);
        }
    }
    if (has_hw() && h != hw_from(x)) {
        fail_msg("0x%08x: f16 0x%04x, F16C 0x%04x", u, h, hw_from(x));
    }
}

static void test_to_f32(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float x = kvs__f16_to_f32((uint16_t)h);
        int e = (int)(h >> 10 & 31);
        int frac = (int)(h & 0x3ff);
        double want =
            e == 31 ? HUGE_VAL : ldexp((double)(e ? frac + 1024 : frac), (e ? e : 1) - 25);
        want = h & 0x8000 ? -want : want;
        if (e == 31 && frac) {
            assert_true(isnan(x));
            assert_int_equal(kvs__bits_f32(x),
                             (h & 0x8000u) << 16 | 0x7fc00000u | (h & 0x3ffu) << 13);
        } else {
            assert_true((double)x == want && !signbit(x) == !signbit(want));
            assert_int_equal(kvs__f16_from_f32(x), h);
        }
        if (has_hw()) {
            assert_int_equal(kvs__bits_f32(x), kvs__bits_f32(hw_to((uint16_t)h)));
        }
        float y = kvs__bf16_to_f32((uint16_t)h);
        assert_int_equal(kvs__bits_f32(y), h << 16);
        if (!isnan(y)) {
            assert_int_equal(kvs__bf16_from_f32(y), h);
        }
    }
}

static void test_stride(void **state)
{
    (void)state;
    uint32_t u = 0;
    do { /* an odd stride visits each residue; 4.2 million steps round the circle */
        check_f32(u);
        uint32_t next = u + 1021;
        if (next < u) {
            break;
        }
        u = next;
    } while (1);
}

/* Between neighbouring halves lies the tie; it and the floats around it decide the rounding. */
static void test_boundaries(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        for (int k = -2; k <= 2; k++) {
            uint32_t f = kvs__bits_f32(kvs__f16_to_f32((uint16_t)h));
            check_f32(f + (uint32_t)k);
            check_f32(f + 0x1000u + (uint32_t)k); /* half an f16 ulp of normal numbers */
            check_f32((h << 16) + 0x8000u + (uint32_t)k);
            check_f32((h << 16) + (uint32_t)k);
            if ((h & 0x7c00) == 0) { /* ties between subnormals: (2 m + 1) 2^-25 */
                float tie = (float)(2 * (h & 0x3ff) + 1) * 0x1p-25f;
                check_f32((kvs__bits_f32(tie) | (h & 0x8000u) << 16) + (uint32_t)k);
            }
        }
    }
    for (uint32_t e = 0; e < 512; e++) { /* all exponents with fractions near each end */
        for (uint32_t k = 0; k < 4096; k++) {
            check_f32(e << 23 | k);
            check_f32(e << 23 | (0x7fffffu - k));
            check_f32(e << 23 | (k << 11));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_to_f32),
        cmocka_unit_test(test_stride),
        cmocka_unit_test(test_boundaries),
    };
    if (!has_hw()) {
        printf("SKIP of one judge: this CPU has no F16C\n");
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
