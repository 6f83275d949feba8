/* SPDX-License-Identifier: MIT */
/* full.c: the long comparison: kvs_codec_encode and both decodes on the tier under test against the
 * same on the reference tier, for every (bits, group, dtype) over at least `count` random values
 * of that dtype. One block of values serves all of them in turn. Every byte is compared, NaN
 * included. Also the bench of these functions, which widen or narrow on top of the kernels. */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/half.h"
#include "kcheck.h"

enum {
    DIM = 1024,
    ROWS = 32,
    BLOCK = DIM * ROWS, /* values at a time: what the second-level cache holds */
    RUN = 128
};

static const uint32_t all_bits[] = {2, 3, 4, 5, 6, 8};
static const uint16_t all_groups[] = {32, 64, 128};

typedef struct coded {
    uint32_t words[BLOCK * 8 / 32];
    uint32_t scales[BLOCK / 32];
    uint32_t biases[BLOCK / 32];
    uint32_t plain[BLOCK];
    float f32[BLOCK];
} coded;

typedef struct full {
    kvs_ctx *ref;
    kvs_ctx *tested;
    kc_rng rng;
    float x[BLOCK];
    uint32_t src[BLOCK]; /* the same in the codec's dtype */
    coded want;
    coded got;
} full;

/* Two f32 of one drawing of 64 bits, of one kind a run: bell, any magnitude, any bits,
 * small multiples (ties), one sign, tiny. */
static void fill_run(kc_rng *r, float *x)
{
    uint64_t pick = kc_u64(r);
    uint32_t kind = (uint32_t)pick % 8;
    float scale = kvs__f32_bits((uint32_t)(107 + (pick >> 8) % 40) << 23); /* 2^-20 .. 2^19 */
    for (size_t i = 0; i < RUN; i += 2) {
        uint64_t z = kc_u64(r);
        for (size_t j = 0; j < 2; j++, z >>= 32) {
            uint32_t u = (uint32_t)z;
            float y = (float)(int32_t)u * 0x1p-31f;
            if (kind == 0) {
                y = kvs__f32_bits(u);
            } else if (kind == 1) {
                y = kvs__f32_bits((u & 0x807fffffu) | (97 + (u >> 23 & 63)) << 23);
            } else if (kind == 2) {
                y = 0.5f * (float)((int32_t)(u % 63) - 31);
            } else if (kind < 6) {
                y = (float)((int32_t)(u & 0xffff) + (int32_t)(u >> 16) - 65535) * scale;
            } else if (kind == 6) {
                y = y < 0.0f ? y : -y;
            } else {
                y *= scale * 0x1p-23f; /* 2^-43 .. 2^-4: where the least scale acts */
            }
            x[i + j] = y;
        }
    }
}

static bool run_one(full *f, const kvs_codec *c, kvs_ctx *ctx, coded *out)
{
    return kvs_codec_encode(ctx, c, DIM, ROWS, f->src, c->dtype, out->words, out->scales,
                            out->biases, NULL) == KVS_OK &&
           kvs_codec_decode(ctx, c, DIM, ROWS, out->words, out->scales, out->biases, out->plain,
                            NULL) == KVS_OK &&
           kvs_codec_decode_f32(ctx, c, DIM, ROWS, out->words, out->scales, out->biases, out->f32,
                                NULL) == KVS_OK;
}

static size_t count_bad(const void *a, const void *b, size_t bytes)
{
    size_t bad = 0;
    if (memcmp(a, b, bytes) != 0) {
        for (size_t i = 0; i < bytes; i += 2) {
            bad += memcmp((const char *)a + i, (const char *)b + i, 2) != 0;
        }
    }
    return bad;
}

static size_t compare_one(full *f, const kvs_codec *c)
{
    if (!run_one(f, c, f->ref, &f->want) || !run_one(f, c, f->tested, &f->got)) {
        return BLOCK;
    }
    size_t elem = kc_dtype_bytes(c->dtype);
    size_t bad = count_bad(f->want.words, f->got.words, (size_t)BLOCK * c->bits / 8);
    bad += count_bad(f->want.scales, f->got.scales, BLOCK / c->group * elem);
    bad += count_bad(f->want.biases, f->got.biases, BLOCK / c->group * elem);
    bad += count_bad(f->want.plain, f->got.plain, BLOCK * elem);
    return bad + count_bad(f->want.f32, f->got.f32, sizeof f->got.f32);
}

/* Adds to `bad`; the first difference of all is told. */
static size_t compare_block(full *f, size_t bad)
{
    for (size_t i = 0; i < BLOCK; i += RUN) {
        fill_run(&f->rng, f->x + i);
    }
    for (int t = KVS_F32; t <= KVS_BF16; t++) {
        kvs_codec dense = KVS_CODEC_DENSE((kvs_dtype)t);
        if (kvs_codec_encode(f->ref, &dense, DIM, ROWS, f->x, KVS_F32, f->src, NULL, NULL, NULL) !=
            KVS_OK) {
            return bad + BLOCK;
        }
        for (size_t i = 0; i < KVS_COUNT(all_bits) * KVS_COUNT(all_groups); i++) {
            uint8_t bits = (uint8_t)all_bits[i % KVS_COUNT(all_bits)];
            uint16_t group = all_groups[i / KVS_COUNT(all_bits)];
            kvs_codec c = KVS_CODEC_AFFINE(bits, group, (kvs_dtype)t);
            size_t n = compare_one(f, &c);
            if (n > 0 && bad == 0) {
                char name[32];
                (void)kvs_codec_name(&c, name, sizeof name);
                (void)printf("  BAD full: %s: %zu differences in a block\n", name, n);
            }
            bad += n;
        }
    }
    return bad;
}

static kvs_ctx *context(uint32_t tiers)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.tiers_off = kvs_cpu_tiers() & ~tiers;
    kvs_ctx *ctx = NULL;
    return kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK ? ctx : NULL;
}

size_t kc_full(uint32_t tiers, const char *tier, uint64_t seed, size_t count)
{
    full *f = calloc(1, sizeof *f);
    size_t bad = 1;
    size_t done = 0;
    if (f) {
        f->ref = context(0);
        f->tested = context(tiers);
        f->rng.s = seed;
    }
    if (f && f->ref && f->tested) {
        bad = 0;
        for (; done < count; done += BLOCK) {
            bad = compare_block(f, bad);
        }
    }
    (void)printf("%s %s/full: %zu values for each of %zu codecs, %zu differences\n",
                 bad ? "BAD " : "ok  ", tier, done, 3 * KVS_COUNT(all_bits) * KVS_COUNT(all_groups),
                 bad);
    if (f) {
        kvs_ctx_free(f->ref);
        kvs_ctx_free(f->tested);
    }
    free(f);
    return bad;
}

/* -- bench: 32 rows of 128, from and to bf16 */

enum { BENCH_DIM = 128, BENCH_ROWS = 32 };

static kvs_codec bench_codec(const kc_arg *a)
{
    kvs_codec c = KVS_CODEC_AFFINE((uint8_t)a->bits, (uint16_t)a->group, a->dtype);
    return c;
}

static void call_encode(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    (void)k; /* the context has its own */
    kvs_codec c = bench_codec(a);
    (void)kvs_codec_encode(p[4], &c, BENCH_DIM, BENCH_ROWS, p[0], KVS_BF16, p[1], p[2], p[3], NULL);
}

static void call_decode(const kvs__kern *k, void *const *p, const kc_arg *a)
{
    (void)k;
    kvs_codec c = bench_codec(a);
    (void)kvs_codec_decode(p[4], &c, BENCH_DIM, BENCH_ROWS, p[1], p[2], p[3], p[0], NULL);
}

void kc_bench_codec_api(kc_bench *b, uint32_t tiers)
{
    static const uint8_t widths[] = {0, 2, 3, 4, 5, 6, 8};
    size_t n = BENCH_DIM * BENCH_ROWS;
    kvs_ctx *ctx = context(tiers);
    for (size_t i = 0; ctx && i < KVS_COUNT(widths); i++) {
        kc_arg a = {.bits = widths[i], .group = widths[i] ? 64 : 0, .dtype = KVS_BF16};
        a.dtype = widths[i] ? KVS_BF16 : KVS_F16;
        void *p[] = {kc_bench_buffer(0, n * 4), kc_bench_buffer(1, n * 4),
                     kc_bench_buffer(2, n * 4), kc_bench_buffer(3, n * 4), ctx};
        kvs_codec c = bench_codec(&a);
        char name[32];
        char what[64];
        (void)kvs_codec_name(&c, name, sizeof name);
        double bytes = (double)n * 2 + (double)(kvs_codec_row_bytes(&c, BENCH_DIM) * BENCH_ROWS);
        (void)snprintf(what, sizeof what, "encode from bf16/%s", name);
        b->elem_rate = widths[i] ? kc_bench_divide_rate(b) : 0;
        kc_bench_run(b, what, call_encode, p, &a, (double)n, bytes);
        b->elem_rate = 0;
        (void)snprintf(what, sizeof what, "decode/%s", name);
        kc_bench_run(b, what, call_decode, p, &a, (double)n, bytes);
    }
    kvs_ctx_free(ctx);
}
