/* SPDX-License-Identifier: MIT */
/* bench_wmat: speed of weights x activations per weight type, tier, rows of x and threads.
 *
 * `decode`: a matrix of 96 MiB, read from DRAM once per pass, 1 .. 8 rows; value in G weights/s,
 * limit: what the read bandwidth of the same run allows, or the fma peak where that is lower.
 * `prefill`: matrices of a small model, 64 and 512 rows; value in GFLOP/s, limit: the fma peak.
 * `token`: the matrices of SmolLM2-135M once, 96 MB; value in ms, limit: bandwidth or fma peak.
 * Figures are medians of passes; bandwidth and peak are measured before each pass. CSV on stdout:
 * bench,case,value,unit,limit,ratio.
 *   bench_wmat [-c] [substring of case names]...
 * -c: CPU time of the process over its threads instead of wall time, for a machine with other work.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "engine/matmul.h"
#include "kvstate/base.h"

#define DECODE_BYTES ((size_t)96 << 20)
#define PASSES       7
#define MAX_ROWS     512u
#define MAX_K        2048u
#define N_THREADS    2u

static int n_filters;
static char **filters;
static uint8_t *weights; /* DECODE_BYTES, of the type under test */
static float *x;         /* [MAX_ROWS][MAX_K] */
static float *y;
static kvs_ctx *ctx[N_THREADS];
static void *scratch;
static size_t scratch_bytes;

static const struct {
    const char *name;
    uint32_t need;
    uint32_t set;
    int lanes;
} tiers[] = {
#if defined(__x86_64__)
    {"avx2", KVS_TIER_AVX2, KVS_TIER_AVX2, 8},
    {"avx512", KVS_TIER_AVX512, KVS_TIER_AVX2 | KVS_TIER_AVX512, 16},
#else
    {"neon", KVS_TIER_NEON, KVS_TIER_NEON, 4},
#endif
};

static clockid_t time_source = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(time_source, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double since(double start, uint32_t threads)
{
    double t = now() - start;
    return time_source == CLOCK_MONOTONIC ? t : t / threads;
}

static int by_value(const void *a, const void *b)
{
    double p = *(const double *)a;
    double q = *(const double *)b;
    return (p > q) - (p < q);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static void die(const char *what)
{
    (void)fprintf(stderr, "bench_wmat: %s\n", what);
    exit(1);
}

static void *get(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) {
        die("out of memory");
    }
    return p;
}

static bool wanted(const char *name)
{
    for (int i = 0; i < n_filters; i++) {
        if (strstr(name, filters[i])) {
            return true;
        }
    }
    return n_filters == 0;
}

/* -- limits of the machine, measured by the same pools */

#define READ_ITEM ((size_t)1 << 20)
static volatile uint64_t sink;

static void read_item(void *opaque, size_t item, uint32_t thread)
{
    (void)thread;
    const uint64_t *p = (const uint64_t *)opaque + item * (READ_ITEM / 8);
    uint64_t s[8] = {0};
    for (size_t i = 0; i < READ_ITEM / 8; i += 64) {
        for (size_t j = 0; j < 8; j++) { /* one word of each cache line: the line is what counts */
            s[j] += p[i + 8 * j];
        }
    }
    sink = s[0] ^ s[1] ^ s[2] ^ s[3] ^ s[4] ^ s[5] ^ s[6] ^ s[7];
}

/* GB/s */
static double read_speed(uint32_t threads)
{
    double t = now();
    kvs__pool_run(kvs__ctx_pool(ctx[threads - 1]), DECODE_BYTES / READ_ITEM, read_item, weights);
    return (double)DECODE_BYTES / since(t, threads) * 1e-9;
}

#define FMA_LOOPS 300000

#if defined(__x86_64__)
#define FMA_ITEM(name, isa, vec, set1, fma, reduce)                                                \
    __attribute__((target(isa))) static void name(void *opaque, size_t item, uint32_t thread)      \
    {                                                                                              \
        (void)opaque;                                                                              \
        (void)item;                                                                                \
        (void)thread;                                                                              \
        vec a0 = set1(1.0f), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0;                          \
        vec a6 = a0, a7 = a0, a8 = a0, a9 = a0;                                                    \
        vec c = set1(0.5f);                                                                        \
        for (size_t i = 0; i < FMA_LOOPS; i++) {                                                   \
            a0 = fma(a0, c, c);                                                                    \
            a1 = fma(a1, c, c);                                                                    \
            a2 = fma(a2, c, c);                                                                    \
            a3 = fma(a3, c, c);                                                                    \
            a4 = fma(a4, c, c);                                                                    \
            a5 = fma(a5, c, c);                                                                    \
            a6 = fma(a6, c, c);                                                                    \
            a7 = fma(a7, c, c);                                                                    \
            a8 = fma(a8, c, c);                                                                    \
            a9 = fma(a9, c, c);                                                                    \
            __asm__ volatile(""                                                                    \
                             : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4), "+v"(a5),         \
                               "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9));                            \
        }                                                                                          \
    }
FMA_ITEM(fma_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, )
FMA_ITEM(fma_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, )
static const kvs__item_fn fma_items[] = {fma_avx2, fma_avx512};
#endif

/* GFLOP/s of tier t; 0 where it is not measured */
static double fma_speed(size_t t, uint32_t threads)
{
#if defined(__x86_64__)
    double start = now();
    kvs__pool_run(kvs__ctx_pool(ctx[threads - 1]), (size_t)threads * 4, fma_items[t], NULL);
    return (double)threads * 4 * FMA_LOOPS * 10 * 2 * tiers[t].lanes / since(start, threads) * 1e-9;
#else
    (void)t;
    (void)threads;
    return 0.0;
#endif
}

/* -- data */

static uint32_t rnd(void)
{
    static uint64_t s = 88172645463325252u;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return (uint32_t)(s >> 16);
}

/* Every bit pattern below is an ordinary number as f16, and so are the scales of any block. */
static void fill(kvs__wtype type, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        weights[i] = (uint8_t)(rnd() & 0x3fu);
        bool top = type == KVS__W_F32 ? i % 4 == 3 : i % 2 == 1;
        if (top && (type == KVS__W_F32 || type == KVS__W_BF16 || type == KVS__W_F16)) {
            weights[i] |= 0x38u;
        }
    }
}

static void run(size_t tier, uint32_t threads, const kvs__mat_out *outs, size_t n_outs,
                const float *from, size_t rows)
{
    kvs__matmul_args a = {.kern = kvs__wkern_for(tiers[tier].set),
                          .x = from,
                          .ldx = outs[0].w.k,
                          .rows = rows,
                          .outs = outs,
                          .n_outs = n_outs,
                          .scratch = scratch,
                          .scratch_bytes = scratch_bytes};
    kvs__matmul(kvs__ctx_pool(ctx[threads - 1]), &a);
}

static void line(const char *name, double value, const char *unit, double limit)
{
    (void)printf("wmat,%s,%.4g,%s,%.4g,%.3f\n", name, value, unit, limit,
                 limit > 0.0 ? value / limit : 0.0);
    (void)fflush(stdout);
}

/* -- cases */

typedef struct spot {
    double time[PASSES];
    double read[PASSES];
    double fma[PASSES];
} spot;

static void measure(spot *s, size_t pass, size_t tier, uint32_t threads, const kvs__mat_out *out,
                    size_t rows)
{
    s->read[pass] = read_speed(threads);
    s->fma[pass] = fma_speed(tier, threads);
    double per = (double)out->w.n * (double)out->w.k * (double)rows;
    size_t repeat = per < 2e7 ? (size_t)(2e7 / per) + 1 : 1;
    double t = now();
    for (size_t i = 0; i < repeat; i++) {
        run(tier, threads, out, 1, x, rows);
    }
    s->time[pass] = since(t, threads) / (double)repeat;
}

/* A matrix of any type in the first bytes of `weights`; affine ones with bf16 scales of 64. */
static kvs__wrows matrix(kvs__wtype type, size_t n, size_t k)
{
    if (kvs__wtype_get((uint32_t)type)) {
        return kvs__wrows_of(type, weights, n, k);
    }
    kvs__wrows w = {.data = weights, .row_bytes = k / 8 * kvs__waffine_bits(type), .n = n, .k = k};
    w.type = type;
    w.affine.dtype = KVS__W_BF16;
    w.affine.shift = 1;
    w.affine.row_bytes = k / 64 * 2;
    w.affine.scales = weights + n * w.row_bytes;
    w.affine.biases = w.affine.scales + n * w.affine.row_bytes;
    return w;
}

static void group(const char *kind, kvs__wtype type, const char *type_name, size_t n, size_t k,
                  const size_t *row_counts, size_t n_rows, bool by_flops)
{
    for (size_t r = 0; r < n_rows; r++) {
        size_t rows = row_counts[r];
        kvs__mat_out out = {matrix(type, n, k), y, n};
        for (size_t i = 0; i < KVS_COUNT(tiers) * N_THREADS; i++) {
            size_t tier = i / N_THREADS;
            uint32_t threads = (uint32_t)(i % N_THREADS) + 1;
            char name[128];
            (void)snprintf(name, sizeof name, "%s %s %zux%zu r%zu %s t%u", kind, type_name, n, k,
                           rows, tiers[tier].name, threads);
            if (!(kvs_cpu_tiers() & tiers[tier].need) || !wanted(name)) {
                continue;
            }
            static spot s;
            run(tier, threads, &out, 1, x, rows);
            for (size_t p = 0; p < PASSES; p++) {
                measure(&s, p, tier, threads, &out, rows);
            }
            double t = median(s.time, PASSES);
            double peak = median(s.fma, PASSES);
            double weights_n = (double)n * (double)k;
            if (by_flops) {
                line(name, 2.0 * weights_n * (double)rows / t * 1e-9, "GFLOP/s", peak);
            } else {
                double bytes = (double)(out.w.row_bytes + 2 * out.w.affine.row_bytes) / (double)k;
                double limit = median(s.read, PASSES) / bytes;
                double by_peak = peak / (2.0 * (double)rows);
                line(name, weights_n / t * 1e-9, "Gweight/s", limit < by_peak ? limit : by_peak);
            }
        }
    }
}

/* SmolLM2-135M: 30 layers of q, k, v; o; gate, up; down in Q4_1 and a Q8_0 head. */
static size_t walk(size_t tier, uint32_t threads, size_t rows)
{
    const size_t d = 576;
    const size_t kv = 192;
    const size_t ffn = 1536;
    const uint8_t *at = weights;
    size_t bytes = 0;
#define MAT(type, n, k, to)                                                                        \
    (kvs__mat_out)                                                                                 \
    {                                                                                              \
        kvs__wrows_of(type, at + bytes, n, k), to, n                                               \
    }
    for (int layer = 0; layer < 30; layer++) {
        kvs__mat_out m[7];
        const size_t shape[7][2] = {{d, d}, {kv, d}, {kv, d}, {d, d}, {ffn, d}, {ffn, d}, {d, ffn}};
        for (size_t i = 0; i < 7; i++) {
            m[i] = MAT(KVS__W_Q4_1, shape[i][0], shape[i][1], y + i * rows * ffn);
            bytes += m[i].w.n * m[i].w.row_bytes;
        }
        run(tier, threads, &m[0], 3, x, rows);
        run(tier, threads, &m[3], 1, x, rows);
        run(tier, threads, &m[4], 2, x, rows);
        run(tier, threads, &m[6], 1, x, rows);
    }
    kvs__mat_out head = MAT(KVS__W_Q8_0, 49152, d, y);
    run(tier, threads, &head, 1, x, 1);
    return bytes + head.w.n * head.w.row_bytes;
#undef MAT
}

static void tokens(void)
{
    static const size_t rows[] = {1, 8, 512};
    fill(KVS__W_Q4_1, DECODE_BYTES);
    for (size_t i = 0; i < KVS_COUNT(tiers) * N_THREADS * KVS_COUNT(rows); i++) {
        size_t tier = i / (N_THREADS * KVS_COUNT(rows));
        size_t n = rows[i / N_THREADS % KVS_COUNT(rows)];
        uint32_t threads = (uint32_t)(i % N_THREADS) + 1;
        char name[96];
        (void)snprintf(name, sizeof name, "token SmolLM2 r%zu %s t%u", n, tiers[tier].name,
                       threads);
        if (!(kvs_cpu_tiers() & tiers[tier].need) || !wanted(name)) {
            continue;
        }
        static spot s;
        size_t bytes = walk(tier, threads, n);
        for (size_t p = 0; p < PASSES; p++) {
            s.read[p] = read_speed(threads);
            s.fma[p] = fma_speed(tier, threads);
            double t = now();
            (void)walk(tier, threads, n);
            s.time[p] = since(t, threads);
        }
        double t = median(s.time, PASSES);
        double limit = (double)bytes * 1e-9 / median(s.read, PASSES);
        double flops = 2.0 * 106.2e6 * (double)n + 2.0 * 28.3e6;
        double by_peak = flops * 1e-9 / median(s.fma, PASSES);
        limit = limit > by_peak ? limit : by_peak;
        /* the ratio is that of speeds: 1 is the limit */
        (void)printf("wmat,%s,%.4g,ms,%.4g,%.3f\n", name, t * 1e3, limit * 1e3, limit / t);
        (void)fflush(stdout);
    }
}

static void set_up(void)
{
    for (uint32_t t = 0; t < N_THREADS; t++) {
        kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
        o.n_threads = t + 1;
        if (kvs_ctx_new(&o, &ctx[t], NULL) != KVS_OK) {
            die("no context");
        }
    }
    weights = get(DECODE_BYTES);
    x = get(sizeof *x * MAX_ROWS * MAX_K);
    y = get(sizeof *y * MAX_ROWS * 1536 * 7);
    for (size_t i = 0; i < (size_t)MAX_ROWS * MAX_K; i++) {
        x[i] = (float)(int32_t)rnd() * 0x1p-31f;
    }
    scratch_bytes = kvs__matmul_scratch(N_THREADS, MAX_K);
    scratch = get(scratch_bytes);
}

static const size_t few[] = {1, 2, 4, 8};
static const size_t many[] = {64, 512};

static void affine_types(void)
{
    static const struct {
        kvs__wtype type;
        const char *name;
    } types[] = {
#define KVS_X(name, number, bits) {KVS__W_##name, #name},
        KVS_WTYPE_AFFINE_MAP(KVS_X)
#undef KVS_X
    };
    const size_t k = 576;
    for (size_t i = 0; i < DECODE_BYTES; i += 2) { /* scales are ordinary wherever they lie */
        weights[i] = (uint8_t)rnd();
        weights[i + 1] = 0x3c;
    }
    for (size_t i = 0; i < KVS_COUNT(types); i++) {
        size_t n = DECODE_BYTES / (k / 8 * kvs__waffine_bits(types[i].type) + k / 16) / 12 * 12;
        n = n > MAX_ROWS * 1536 * 7 / 8 ? MAX_ROWS * 1536 * 7 / 8 : n;
        group("decode", types[i].type, types[i].name, n, k, few, KVS_COUNT(few), false);
        group("prefill", types[i].type, types[i].name, 1536, 576, many, KVS_COUNT(many), true);
    }
}

int main(int argc, char **argv)
{
    bool cpu_time = argc > 1 && strcmp(argv[1], "-c") == 0;
    time_source = cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    filters = argv + 1 + cpu_time;
    n_filters = argc - 1 - cpu_time;
    set_up();
    (void)printf("bench,case,value,unit,limit,ratio\n");
    const kvs__wtype_info *info = NULL;
    for (size_t i = 0; (info = kvs__wtype_at(i)) != NULL; i++) {
        fill(info->type, DECODE_BYTES);
        size_t k = info->block_elems == 256 ? 1536 : 576;
        size_t row_bytes = k / info->block_elems * info->block_bytes;
        size_t n = DECODE_BYTES / row_bytes / 12 * 12;
        n = n > MAX_ROWS * 1536 * 7 / 8 ? MAX_ROWS * 1536 * 7 / 8 : n;
        group("decode", info->type, info->name, n, k, few, KVS_COUNT(few), false);
        if (info->block_elems != 256) {
            group("prefill", info->type, info->name, 1536, 576, many, KVS_COUNT(many), true);
        }
        group("prefill", info->type, info->name, 576, 1536, many, KVS_COUNT(many), true);
        group("prefill", info->type, info->name, 640, 2048, many, KVS_COUNT(many), true);
    }
    affine_types();
    tokens();
    for (uint32_t t = 0; t < N_THREADS; t++) {
        kvs_ctx_free(ctx[t]);
    }
    return 0;
}
