/* SPDX-License-Identifier: MIT */
/* wcheck.c: every kernel of wmat.inc in every tier of this CPU against the reference, bit for bit.
 *
 * Inputs and outputs end at an unreadable page, so that one element too far faults, and outputs lie
 * between canaries. matmul is also checked for what the reference cannot show: the bits of a row
 * do not depend on how many rows are computed together or how W is cut. A tier that the CPU lacks
 * is printed as SKIP. Usage: wcheck [seed]. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/base.h"
#include "base/half.h"
#include "kern/wmat.h"
#include "kvstate/base.h"

#define CANARY     0x5a5a5a5au
#define MOST_BYTES ((size_t)1 << 20)

static uint64_t rng;
static unsigned long n_checked;
static unsigned long n_failed;

static uint32_t rnd(void)
{
    rng += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (rng ^ rng >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)(z >> 32);
}

/* A region of MOST_BYTES before an unreadable page. */
typedef struct fence {
    uint8_t *base;
    uint8_t *end;
} fence;

static fence fence_new(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *p =
        mmap(NULL, MOST_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + MOST_BYTES, page, PROT_NONE) != 0) {
        perror("wcheck: mmap");
        exit(2);
    }
    return (fence){p, p + MOST_BYTES};
}

static fence fx;
static fence fw;
static fence fy;
static fence fu;
static fence fb;
static uint8_t *scratch;

/* The last `bytes` before the fence. */
static void *last(const fence *f, size_t bytes)
{
    if (bytes > MOST_BYTES) {
        fprintf(stderr, "wcheck: %zu bytes do not fit\n", bytes);
        exit(2);
    }
    return f->end - bytes;
}

enum { PLAIN, SPECIAL, N_KINDS };

static float rnd_float(int kind)
{
    static const uint32_t special[] = {0x00000000u, 0x80000000u, 0x00000001u, 0x80000001u,
                                       0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x7fc12345u,
                                       0xffc00000u, 0x7f812345u, 0x00800000u, 0x3f800000u};
    uint32_t u = rnd();
    if (kind == SPECIAL && u % 16 == 0) {
        return kvs__f32_bits(special[rnd() % 12]);
    }
    float x = (float)(int32_t)u * 0x1p-31f;
    return kind == SPECIAL ? ldexpf(x, (int)(rnd() % 60) - 30) : x * 2.0f;
}

static void fill_floats(float *x, size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = rnd_float(kind);
    }
}

/* Offsets of the f16 scales of a block. */
static int scale_offsets(kvs__wtype type, int at[2])
{
    switch (type) {
    case KVS__W_Q4_1:
    case KVS__W_Q5_1:
    case KVS__W_Q4_K:
    case KVS__W_Q5_K:
        at[0] = 0;
        at[1] = 2;
        return 2;
    case KVS__W_Q2_K:
        at[0] = 80;
        at[1] = 82;
        return 2;
    case KVS__W_Q3_K:
        at[0] = 108;
        return 1;
    case KVS__W_Q6_K:
        at[0] = 208;
        return 1;
    case KVS__W_F32:
    case KVS__W_F16:
    case KVS__W_BF16:
        return 0;
    default:
        at[0] = 0;
        return 1;
    }
}

static void put16(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* Random blocks: codes of all bits, scales of ordinary size, special ones on request. */
static void fill_weights(uint8_t *w, kvs__wtype type, size_t n_blocks, int kind)
{
    const kvs__wtype_info *info = kvs__wtype_get((uint32_t)type);
    int at[2];
    int n = scale_offsets(type, at);
    for (size_t b = 0; b < n_blocks; b++, w += info->block_bytes) {
        for (uint32_t i = 0; i < info->block_bytes; i++) {
            w[i] = (uint8_t)rnd();
        }
        float f = rnd_float(kind);
        if (type == KVS__W_F32) {
            memcpy(w, &f, sizeof f);
        } else if (type == KVS__W_BF16) {
            put16(w, kvs__bf16_from_f32(f));
        } else if (type == KVS__W_F16) {
            put16(w, kvs__f16_from_f32(f));
        }
        for (int i = 0; i < n; i++) {
            uint16_t any = (uint16_t)rnd();
            float d = rnd_float(PLAIN) * 0.01f;
            put16(w + at[i], kind == SPECIAL && rnd() % 8 == 0 ? any : kvs__f16_from_f32(d));
        }
    }
}

static bool same(const char *what, const char *tier, const char *shape, const float *want,
                 const float *got, size_t n, bool any_nan)
{
    n_checked += n;
    for (size_t i = 0; i < n; i++) {
        uint32_t a = kvs__bits_f32(want[i]);
        uint32_t b = kvs__bits_f32(got[i]);
        bool nans = any_nan && want[i] != want[i] && got[i] != got[i];
        if (a != b && !nans) {
            printf("FAIL %s %s %s: element %zu: want %08x got %08x\n", what, tier, shape, i, a, b);
            n_failed++;
            return false;
        }
    }
    return true;
}

static void fill_canary(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        y[i] = kvs__f32_bits(CANARY);
    }
}

typedef struct shape {
    size_t k;
    size_t n;
    size_t rows;
    int kind;
} shape;

/* A type under test: block types have bits 0. */
typedef struct kind_of_weight {
    kvs__wtype type;
    const char *name;
    uint32_t block_elems;
    uint32_t block_bytes;
    uint32_t bits;
    uint32_t shift;   /* of affine types */
    kvs__wtype dtype; /* of their scales */
} kind_of_weight;

static size_t scale_bytes(kvs__wtype dtype, size_t n)
{
    return n * (dtype == KVS__W_F32 ? 4 : 2);
}

static void fill_scales(uint8_t *p, kvs__wtype dtype, size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        float f = rnd_float(kind) * (kind == SPECIAL ? 1.0f : 0.01f);
        if (dtype == KVS__W_F32) {
            memcpy(p + 4 * i, &f, sizeof f);
        } else {
            put16(p + 2 * i, dtype == KVS__W_F16 ? kvs__f16_from_f32(f) : kvs__bf16_from_f32(f));
        }
    }
}

/* Random rows of W, each plane at its own fence, rows a few bytes apart. */
static kvs__wrows make_weights(const kind_of_weight *t, shape s)
{
    kvs__wrows w = {.n = s.n, .k = s.k, .type = t->type};
    size_t gap = s.k % 7; /* rows of W need not touch */
    w.row_bytes = s.k / t->block_elems * t->block_bytes + gap;
    uint8_t *p = last(&fw, s.n * w.row_bytes - (s.n ? gap : 0));
    w.data = p;
    if (!t->bits) {
        for (size_t j = 0; j < s.n; j++) {
            fill_weights(p + j * w.row_bytes, t->type, s.k / t->block_elems, s.kind);
        }
        return w;
    }
    size_t groups = (s.k / 32) >> t->shift;
    w.affine.dtype = t->dtype;
    w.affine.shift = t->shift;
    w.affine.row_bytes = scale_bytes(t->dtype, groups) + gap;
    size_t bytes = s.n * w.affine.row_bytes - (s.n ? gap : 0);
    uint8_t *scales = last(&fu, bytes);
    uint8_t *biases = last(&fb, bytes);
    for (size_t j = 0; j < s.n; j++) {
        for (size_t i = 0; i < w.row_bytes - gap; i++) {
            p[j * w.row_bytes + i] = (uint8_t)rnd();
        }
        fill_scales(scales + j * w.affine.row_bytes, t->dtype, groups, s.kind);
        fill_scales(biases + j * w.affine.row_bytes, t->dtype, groups, s.kind);
    }
    w.affine.scales = scales;
    w.affine.biases = biases;
    return w;
}

/* One shape: the reference once, then each way to cut it. Rows of y are 3 floats apart. */
static void check_matmul(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier,
                         const kind_of_weight *t, shape s)
{
    kvs__wrows w = make_weights(t, s);
    size_t ldx = s.k + 1;
    size_t x_n = s.rows * ldx - (s.rows ? 1 : 0);
    float *x = last(&fx, x_n * sizeof *x);
    fill_floats(x, x_n, s.kind);
    size_t ldy = s.n + 3;
    size_t y_n = s.rows * ldy - (s.rows ? 3 : 0);
    float *want = malloc((y_n + 1) * sizeof *want);
    if (!want) {
        exit(2);
    }
    fill_canary(want, y_n);
    ref->matmul(want, ldy, x, ldx, s.rows, &w, scratch);
    char text[96];
    (void)snprintf(text, sizeof text, "%s shift=%u k=%zu n=%zu rows=%zu kind=%d", t->name, t->shift,
                   s.k, s.n, s.rows, s.kind);
    float *y = last(&fy, y_n * sizeof *y);
    fill_canary(y, y_n);
    cand->matmul(y, ldy, x, ldx, s.rows, &w, scratch);
    (void)same("matmul", tier, text, want, y, y_n, false);
    fill_canary(y, y_n);
    for (size_t r = 0; r < s.rows;) { /* rows in random parts, W in two */
        size_t nr = 1 + rnd() % (s.rows - r);
        size_t cut = rnd() % (s.n + 1);
        kvs__wrows a = kvs__wrows_part(&w, 0, cut);
        kvs__wrows b = kvs__wrows_part(&w, cut, s.n - cut);
        cand->matmul(y + r * ldy, ldy, x + r * ldx, ldx, nr, &a, scratch);
        cand->matmul(y + r * ldy + cut, ldy, x + r * ldx, ldx, nr, &b, scratch);
        r += nr;
    }
    (void)same("matmul in parts", tier, text, want, y, y_n, false);
    free(want);
}

static void check_dequant(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier,
                          const kind_of_weight *t, size_t n)
{
    kvs__wrows w = make_weights(t, (shape){n, 3, 0, SPECIAL});
    float *y = last(&fy, n * sizeof *y);
    float *want = last(&fx, n * sizeof *want);
    size_t j = rnd() % 3;
    ref->row(want, &w, j);
    fill_canary(y, n);
    cand->row(y, &w, j);
    (void)same("row", tier, t->name, want, y, n, true);
    if (!t->bits) {
        fill_canary(y, n);
        cand->dequant(y, t->type, w.data + j * w.row_bytes, n);
        (void)same("dequant", tier, t->name, want, y, n, true);
    }
}

static void check_type(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier,
                       const kind_of_weight *t)
{
    static const size_t k_unit[] = {0, 1, 2, 3, 5, 18, 25, 64};
    static const size_t k_any[] = {0, 1, 7, 15, 16, 17, 31, 33, 64, 95, 576, 801, 1543};
    static const size_t ns[] = {0, 1, 2, 3, 4, 5, 7, 12, 13, 33, 97};
    static const size_t rs[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 17, 19, 25};
    bool any = t->block_elems == 1;
    size_t n_k = any ? KVS_COUNT(k_any) : KVS_COUNT(k_unit);
    for (size_t i = 0; i < n_k; i++) {
        size_t k = any ? k_any[i] : k_unit[i] * 32;
        if (t->bits) {
            k <<= k_unit[i] < 32 ? t->shift : 0; /* whole groups */
        } else if (k % t->block_elems != 0) {
            k = k_unit[i] % 8 * 256; /* 256-element types: 0..5 blocks */
        }
        check_dequant(ref, cand, tier, t, k);
        for (size_t j = 0; j < 10; j++) {
            size_t n = ns[rnd() % KVS_COUNT(ns)];
            size_t rows = rs[j < 4 ? j : rnd() % KVS_COUNT(rs)];
            n = k * n * rows > 500000 ? 13 : n;
            check_matmul(ref, cand, tier, t, (shape){k, n, rows, (int)(rnd() % N_KINDS)});
        }
    }
}

static void check_types(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier)
{
    static const kind_of_weight affine[] = {
#define KVS_X(name, number, bits) {KVS__W_##name, #name, 32, 4 * (bits), bits, 0, KVS__W_F32},
        KVS_WTYPE_AFFINE_MAP(KVS_X)
#undef KVS_X
    };
    static const kvs__wtype dtypes[] = {KVS__W_F32, KVS__W_F16, KVS__W_BF16};
    const kvs__wtype_info *info = NULL;
    for (size_t i = 0; (info = kvs__wtype_at(i)) != NULL; i++) {
        kind_of_weight t = {info->type, info->name, info->block_elems, info->block_bytes, 0, 0, 0};
        check_type(ref, cand, tier, &t);
    }
    for (size_t i = 0; i < KVS_COUNT(affine); i++) {
        for (uint32_t k = 0; k < 9; k++) {
            kind_of_weight t = affine[i];
            t.shift = k % 3;
            t.dtype = dtypes[k / 3];
            check_type(ref, cand, tier, &t);
        }
    }
}

/* Elementwise kernels: y apart from the inputs and y on top of the first one. */
static void check_vectors(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier, size_t n,
                          int kind)
{
    float *a = last(&fx, n * sizeof *a);
    float *b = last(&fw, n * sizeof *b);
    float *y = last(&fy, n * sizeof *y);
    float *want = last(&fu, n * sizeof *want);
    char text[64];
    (void)snprintf(text, sizeof text, "n=%zu kind=%d", n, kind);
    fill_floats(a, n, kind);
    fill_floats(b, n, kind);
    for (size_t i = 0; i < n && kind == PLAIN; i++) {
        a[i] *= 50.0f; /* where exp saturates too */
    }
#define BOTH(name, ...)                                                                            \
    do {                                                                                           \
        ref->name(want, __VA_ARGS__);                                                              \
        fill_canary(y, n);                                                                         \
        cand->name(y, __VA_ARGS__);                                                                \
        (void)same(#name, tier, text, want, y, n, false);                                          \
    } while (0)
    if (n > 0) {
        BOTH(rms_norm, a, b, n, 1e-5f);
    }
    BOTH(silu_mul, a, b, n);
    BOTH(gelu_mul, a, b, n);
    BOTH(add, a, b, n);
    BOTH(scale, a, n > 0 ? b[0] : 1.0f, n);
#undef BOTH
    ref->gelu_mul(want, a, b, n);
    memcpy(y, a, n * sizeof *y);
    cand->gelu_mul(y, y, b, n);
    (void)same("gelu_mul in place", tier, text, want, y, n, false);
    ref->silu_mul(want, a, b, n);
    memcpy(y, b, n * sizeof *y);
    cand->silu_mul(y, a, y, n);
    (void)same("silu_mul in place", tier, text, want, y, n, false);
    if (n > 0) {
        ref->rms_norm(want, a, b, n, 1e-6f);
        memcpy(y, a, n * sizeof *y);
        cand->rms_norm(y, y, b, n, 1e-6f);
        (void)same("rms_norm in place", tier, text, want, y, n, false);
    }
}

static void check_rope(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier,
                       size_t n_heads, size_t dim, size_t half, int kind)
{
    size_t n = n_heads * dim;
    float *want = last(&fx, n * sizeof *want);
    float *y = last(&fy, n * sizeof *y);
    float *c = last(&fw, half * sizeof *c);
    float *s = last(&fu, half * sizeof *s);
    char text[64];
    (void)snprintf(text, sizeof text, "heads=%zu dim=%zu half=%zu", n_heads, dim, half);
    fill_floats(c, half, kind);
    fill_floats(s, half, kind);
    fill_floats(want, n, kind);
    memcpy(y, want, n * sizeof *y);
    ref->rope_norm(want, n_heads, dim, half, c, s);
    cand->rope_norm(y, n_heads, dim, half, c, s);
    (void)same("rope_norm", tier, text, want, y, n, false);
    fill_floats(want, n, kind);
    memcpy(y, want, n * sizeof *y);
    ref->rope_neox(want, n_heads, dim, half, c, s);
    cand->rope_neox(y, n_heads, dim, half, c, s);
    (void)same("rope_neox", tier, text, want, y, n, false);
}

static void check_vec(const kvs__wkern *ref, const kvs__wkern *cand, const char *tier)
{
    static const size_t dims[][2] = {{64, 32}, {64, 31}, {8, 1}, {80, 40}, {256, 128}, {6, 3}};
    for (size_t n = 0; n < 70; n++) {
        check_vectors(ref, cand, tier, n, PLAIN);
        check_vectors(ref, cand, tier, n, SPECIAL);
    }
    for (int i = 0; i < 50; i++) {
        check_vectors(ref, cand, tier, 576 + rnd() % 2000, (int)(rnd() % N_KINDS));
    }
    for (size_t i = 0; i < KVS_COUNT(dims); i++) {
        for (size_t h = 0; h < 5; h++) {
            check_rope(ref, cand, tier, h, dims[i][0], dims[i][1], (int)(h % N_KINDS));
        }
    }
}

int main(int argc, char **argv)
{
    rng = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    printf("seed %llu\n", (unsigned long long)rng);
    fx = fence_new();
    fw = fence_new();
    fy = fence_new();
    fu = fence_new();
    fb = fence_new();
    scratch = aligned_alloc(64, kvs__wmat_scratch(2048));
    if (!scratch) {
        return 2;
    }
    static const struct {
        uint32_t tier;
        const char *name;
    } tiers[] = {{KVS_TIER_AVX2, "avx2"}, {KVS_TIER_AVX512, "avx512"}, {KVS_TIER_NEON, "neon"}};
    uint32_t have = kvs_cpu_tiers();
    const kvs__wkern *ref = kvs__wkern_for(0);
    for (size_t i = 0; i < KVS_COUNT(tiers); i++) {
        if (!(have & tiers[i].tier)) {
            printf("SKIP %s: this CPU lacks it\n", tiers[i].name);
            continue;
        }
        const kvs__wkern *cand = kvs__wkern_for(tiers[i].tier);
        unsigned long before = n_checked;
        check_types(ref, cand, tiers[i].name);
        check_vec(ref, cand, tiers[i].name);
        printf("%s: %lu values compared\n", tiers[i].name, n_checked - before);
    }
    printf("%lu values, %lu failures\n", n_checked, n_failed);
    return n_failed ? 1 : 0;
}
