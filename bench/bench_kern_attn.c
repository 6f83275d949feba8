/* SPDX-License-Identifier: MIT */
/* bench_kern_attn: speed of the attention kernels, per tier, codec and number of query rows.
 *
 * `attend` is what a read of one KV head costs without softmax: k_tile, qk, v_rows and pv over all
 * tokens; `direct`: the same by qk_direct and pv_direct, of codes by what multiplies them as they are. Elements
 * are those of K and V together, in Gelem/s and per cycle of the core; `L2`: 256
 * tokens over and over; `DRAM`: many times the caches. Limits, measured in the same run: rows
 * products per element at the tier's f32 FMA peak; the read bandwidth for DRAM. Figures are the best
 * of many passes of a ms of CPU time, tiers interleaved: other load on the machine only adds time. CSV: bench,case,value,unit,limit,ratio.
 *   bench_kern_attn [-q] [substring]    -q: L2 only; substring: cases whose name has it */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/half.h"
#include "base/map.h"
#include "kern/kern.h"

#define DIM        128u
#define L2_TOKENS  256u
#define DRAM_BYTES ((size_t)96 << 20) /* of K, and of V */
#define K_RUN      4u                 /* tiles decoded ahead of qk */
#define V_RUN      32u                /* tokens decoded ahead of pv */
#define ROWS_MAX   64u
#define PASSES     25
#define PASS_NS    1e6

typedef struct codec {
    const char *name;
    kvs__shape shape;
} codec;

static const codec codecs[] = {
    {"f32", {DIM, 0, 0, KVS_F32}},         {"bf16", {DIM, 0, 0, KVS_BF16}},
    {"f16", {DIM, 0, 0, KVS_F16}},         {"affine8:64", {DIM, 8, 64, KVS_F16}},
    {"affine6:64", {DIM, 6, 64, KVS_F16}}, {"affine5:64", {DIM, 5, 64, KVS_F16}},
    {"affine4:64", {DIM, 4, 64, KVS_F16}}, {"affine3:64", {DIM, 3, 64, KVS_F16}},
    {"affine2:64", {DIM, 2, 64, KVS_F16}},
};
#define N_CODECS (sizeof codecs / sizeof codecs[0])

static const size_t row_counts[] = {1, 2, 3, 4, 6, 8, 64};
#define N_ROW_COUNTS (sizeof row_counts / sizeof row_counts[0])

typedef struct tier {
    const char *name;
    uint32_t set;
    const kvs__kern *kern;
    double peak; /* f32 multiply-adds per ns */
} tier;

static tier tiers[4];
static size_t n_tiers;
static double cycles_per_ns;
static double read_per_ns; /* bytes */
static const char *only = "";

/* One KV head's planes and the scratch of one reader. */
typedef struct head {
    kvs__shape shape;
    size_t n_tokens;
    uint8_t *k;
    uint8_t *v;
    uint16_t *scale; /* shared by K and V: f16, at most dim / 32 a token */
    uint16_t *bias;
} head;

static float q[ROWS_MAX * DIM];
static float acc[ROWS_MAX * DIM];
static float s[ROWS_MAX * KVS__CHUNK];
static _Alignas(64) float k_scratch[K_RUN * KVS__TILE * DIM];
static _Alignas(64) float v_scratch[V_RUN * DIM];

static double now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint32_t random_u32(void)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)(x >> 16);
}

/* -- the machine's limits. */

#if defined(__x86_64__)
#define FMA_LOOP(vec, set1, fma)                                                                   \
    vec x[12];                                                                                     \
    for (int i = 0; i < 12; i++) {                                                                 \
        x[i] = set1((float)i);                                                                     \
    }                                                                                              \
    vec a = set1(0.5f);                                                                            \
    for (size_t j = 0; j < n; j++) {                                                               \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                      \
        {                                                                                          \
            x[i] = fma(x[i], a, a);                                                                \
        }                                                                                          \
    }                                                                                              \
    for (int i = 1; i < 12; i++) {                                                                 \
        x[0] = fma(x[0], x[i], a);                                                                 \
    }

__attribute__((target("avx2,fma"))) static float fma_avx2(size_t n)
{
    FMA_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps)
    return _mm256_cvtss_f32(x[0]);
}

__attribute__((target("avx512f"))) static float fma_avx512(size_t n)
{
    FMA_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps)
    return _mm512_cvtss_f32(x[0]);
}
#elif defined(__aarch64__)
static float fma_neon(size_t n)
{
    float32x4_t x[12];
    float32x4_t a = vdupq_n_f32(0.5f);
    for (int i = 0; i < 12; i++) {
        x[i] = vdupq_n_f32((float)i);
    }
    for (size_t j = 0; j < n; j++) {
        for (int i = 0; i < 12; i++) {
            x[i] = vfmaq_f32(a, x[i], a);
        }
    }
    for (int i = 1; i < 12; i++) {
        x[0] = vfmaq_f32(a, x[0], x[i]);
    }
    return vgetq_lane_f32(x[0], 0);
}
#endif

static volatile float sink;

static double fma_peak(uint32_t set)
{
    double best = 0;
    const size_t n = 100000;
    for (int pass = 0; pass < 20; pass++) {
        double lanes = 1;
        double t0 = now_ns();
#if defined(__x86_64__)
        if (set & KVS_TIER_AVX512) {
            lanes = 16;
            sink = fma_avx512(n);
        } else {
            lanes = 8;
            sink = fma_avx2(n);
        }
#elif defined(__aarch64__)
        (void)set;
        lanes = 4;
        sink = fma_neon(n);
#endif
        double rate = lanes * 12 * (double)n / (now_ns() - t0);
        best = rate > best ? rate : best;
    }
    return best;
}

/* A chain of dependent additions runs at one a cycle. */
static double clock_rate(void)
{
    double best = 0;
    uint64_t x = 1;
    for (int pass = 0; pass < 20; pass++) {
        double t0 = now_ns();
        for (int j = 0; j < 20000; j++) {
#if defined(__x86_64__)
            __asm__ volatile(".rept 32\n\tadd %0, %0\n\t.endr" : "+r"(x));
#elif defined(__aarch64__)
            __asm__ volatile(".rept 32\n\tadd %0, %0, %0\n\t.endr" : "+r"(x));
#endif
        }
        double rate = 32 * 20000 / (now_ns() - t0);
        best = rate > best ? rate : best;
    }
    return best;
}

static double read_rate(const uint8_t *p, size_t n)
{
    double best = 0;
    for (int pass = 0; pass < 5; pass++) {
        double t0 = now_ns();
        uint64_t sum[8] = {0};
        for (size_t i = 0; i + 64 <= n; i += 64) {
            for (size_t j = 0; j < 8; j++) {
                uint64_t x = 0;
                memcpy(&x, p + i + 8 * j, 8);
                sum[j] += x;
            }
        }
        double t = now_ns() - t0;
        sink = (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
        best = (double)n / t > best ? (double)n / t : best;
    }
    return best;
}

/* -- the work. */

static size_t token_bytes(const kvs__shape *h)
{
    return h->bits ? DIM * h->bits / 8 : DIM * (h->dtype == KVS_F32 ? 4u : 2u);
}

static kvs__planes at_token(const head *h, const uint8_t *data, size_t token)
{
    kvs__planes p = {data + token * token_bytes(&h->shape), NULL, NULL, 0, 0};
    if (h->shape.bits) {
        p.scale = h->scale + token * (DIM / h->shape.group);
        p.bias = h->bias + token * (DIM / h->shape.group);
    }
    return p;
}

static void scores(const kvs__kern *k, const head *h, size_t rows, size_t from, size_t n)
{
    size_t n_tiles = n / KVS__TILE;
    if (h->shape.bits == 0 && h->shape.dtype == KVS_F32) {
        k->qk(s, KVS__CHUNK, q, DIM, rows, (const float *)(const void *)h->k + from * DIM, n_tiles,
              DIM);
        return;
    }
    for (size_t t = 0; t < n_tiles; t += K_RUN) {
        for (size_t i = 0; i < K_RUN; i++) {
            kvs__planes tile = at_token(h, h->k, from + (t + i) * KVS__TILE);
            k->k_tile(k_scratch + i * DIM * KVS__TILE, &h->shape, &tile);
        }
        k->qk(s + t * KVS__TILE, KVS__CHUNK, q, DIM, rows, k_scratch, K_RUN, DIM);
    }
}

static void values(const kvs__kern *k, const head *h, size_t rows, size_t from, size_t n)
{
    if (h->shape.bits == 0 && h->shape.dtype == KVS_F32) {
        k->pv(acc, DIM, s, KVS__CHUNK, rows, (const float *)(const void *)h->v + from * DIM, DIM, n,
              DIM);
        return;
    }
    for (size_t j = 0; j < n; j += V_RUN) {
        kvs__planes run = at_token(h, h->v, from + j);
        k->v_rows(v_scratch, DIM, &h->shape, &run, V_RUN);
        k->pv(acc, DIM, s + j, KVS__CHUNK, rows, v_scratch, DIM, V_RUN, DIM);
    }
}

/* What the 16-bit products of codes need. */
static uint32_t q_pairs[ROWS_MAX * DIM / 2];
static float params[ROWS_MAX * DIM / 32 * 2];
static int16_t weights[DIM / 32 * ROWS_MAX * KVS__CHUNK];
static float units[2 * DIM / 32 * KVS__CHUNK];
static int32_t sums[ROWS_MAX * DIM];
static uint32_t pairs[KVS__PAIR_TILES * KVS__TILE * DIM / 2];

/* As a chunk of attention does it (chunk.c), but for the softmax. */
static void code_values(const kvs__kern *k, const head *h, size_t rows, size_t from, size_t n)
{
    const size_t n_groups = DIM / h->shape.group;
    kvs__planes run = at_token(h, h->v, from);
    k->v_units(units, units + n_groups * KVS__CHUNK, KVS__CHUNK, &h->shape, &run, n);
    for (size_t i = 0; i < n_groups * rows; i++) {
        const float *scale = units + i / rows * KVS__CHUNK;
        k->p_weights(weights + i * KVS__CHUNK, params + 2 * i, params + 2 * i + 1,
                     s + i % rows * KVS__CHUNK, scale, scale + n_groups * KVS__CHUNK, n);
    }
    memset(sums, 0, rows * DIM * sizeof *sums);
    k->pv_codes(sums, DIM, weights, KVS__CHUNK, rows * KVS__CHUNK, rows, &h->shape, &run, n, pairs);
    for (size_t i = 0; i < n_groups * rows; i++) {
        size_t at = i % rows * DIM + i / rows * h->shape.group;
        k->v_sums(acc + at, sums + at, h->shape.group, params[2 * i], params[2 * i + 1]);
    }
}

static void direct_scores(const kvs__kern *k, const head *h, size_t rows, size_t from, size_t n)
{
    kvs__planes tiles[KVS__CHUNK_TILES];
    for (size_t t = 0; t < n / KVS__TILE; t++) {
        tiles[t] = at_token(h, h->k, from + t * KVS__TILE);
    }
    if (h->shape.bits > 0) {
        for (size_t r = 0; r < rows; r++) {
            k->q_pairs(q_pairs + r * DIM / 2, params + r * DIM / h->shape.group * 2, q + r * DIM,
                       &h->shape);
        }
        k->qk_codes(s, KVS__CHUNK, q_pairs, params, rows, &h->shape, tiles, n / KVS__TILE, pairs);
        return;
    }
    k->qk_direct(s, KVS__CHUNK, q, DIM, rows, &h->shape, tiles, n / KVS__TILE);
}

static void direct_values(const kvs__kern *k, const head *h, size_t rows, size_t from, size_t n)
{
    kvs__planes run = at_token(h, h->v, from);
    if (h->shape.bits > 0) {
        code_values(k, h, rows, from, n);
        return;
    }
    k->pv_direct(acc, DIM, s, KVS__CHUNK, rows, &h->shape, &run, n);
}

typedef enum op {
    OP_ATTEND,
    OP_DIRECT,
    OP_QK_DIRECT,
    OP_PV_DIRECT,
    OP_K_TILE,
    OP_V_ROWS,
    OP_QK,
    OP_PV,
    OP_SOFTMAX,
    N_OPS
} op;
static const char *const op_names[N_OPS] = {"attend", "direct", "qk_direct", "pv_direct", "k_tile",
                                            "v_rows", "qk",     "pv",        "softmax"};

static void work(op what, const kvs__kern *k, const head *h, size_t rows)
{
    static const uint16_t all[KVS__CHUNK_TILES * ROWS_MAX];
    float m[ROWS_MAX];
    float l[ROWS_MAX];
    for (size_t from = 0; from < h->n_tokens; from += KVS__CHUNK) {
        kvs__planes k_planes = at_token(h, h->k, from);
        kvs__planes v_planes = at_token(h, h->v, from);
        switch (what) {
        case OP_ATTEND:
            scores(k, h, rows, from, KVS__CHUNK);
            values(k, h, rows, from, KVS__CHUNK);
            break;
        case OP_DIRECT:
            direct_scores(k, h, rows, from, KVS__CHUNK);
            direct_values(k, h, rows, from, KVS__CHUNK);
            break;
        case OP_QK_DIRECT:
            direct_scores(k, h, rows, from, KVS__CHUNK);
            break;
        case OP_PV_DIRECT:
            direct_values(k, h, rows, from, KVS__CHUNK);
            break;
        case OP_K_TILE:
            for (size_t t = 0; t < KVS__CHUNK; t += KVS__TILE) {
                k_planes = at_token(h, h->k, from + t);
                k->k_tile(k_scratch, &h->shape, &k_planes);
            }
            break;
        case OP_V_ROWS:
            for (size_t t = 0; t < KVS__CHUNK; t += V_RUN) {
                v_planes = at_token(h, h->v, from + t);
                k->v_rows(v_scratch, DIM, &h->shape, &v_planes, V_RUN);
            }
            break;
        case OP_QK: /* on what is decoded, in L1 */
            for (size_t t = 0; t < KVS__CHUNK; t += K_RUN * KVS__TILE) {
                k->qk(s, KVS__CHUNK, q, DIM, rows, k_scratch, K_RUN, DIM);
            }
            break;
        case OP_PV:
            for (size_t t = 0; t < KVS__CHUNK; t += V_RUN) {
                k->pv(acc, DIM, s, KVS__CHUNK, rows, v_scratch, DIM, V_RUN, DIM);
            }
            break;
        default:
            k->softmax(s, KVS__CHUNK, rows, KVS__CHUNK_TILES, all, KVS__CHUNK_TILES, 0.0f, m, l);
            break;
        }
    }
}

/* Elements per ns: K and V together for attend, one of them for a kernel alone, scores of softmax. */
static double elements(op what, const head *h, size_t rows)
{
    double tokens = (double)h->n_tokens;
    if (what == OP_SOFTMAX) {
        return tokens * (double)rows;
    }
    return tokens * DIM * (what <= OP_DIRECT ? 2 : 1);
}

static double limit_of(op what, const tier *t, const head *h, size_t rows, bool dram)
{
    double limit = 0;
    if (what <= OP_PV_DIRECT || what == OP_QK || what == OP_PV) {
        limit = t->peak / (double)rows;
    }
    if (dram) {
        double bytes = (double)token_bytes(&h->shape) / DIM;
        bytes += h->shape.bits ? 4.0 / h->shape.group : 0;
        limit = limit < read_per_ns / bytes ? limit : read_per_ns / bytes;
    }
    return limit;
}

/* One reading of the clock for many calls: it costs as much as a few hundred tokens. */
static double pass_ns(op what, const tier *t, const head *h, size_t rows, size_t times)
{
    memset(acc, 0, sizeof acc);
    double t0 = now_ns();
    for (size_t i = 0; i < times; i++) {
        work(what, t->kern, h, rows);
    }
    return now_ns() - t0;
}

static void measure(op what, const codec *c, const head *h, size_t rows, bool dram)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s/%s/rows%zu/%s", op_names[what], c->name, rows,
                   dram ? "DRAM" : "L2");
    if (!strstr(name, only)) {
        return;
    }
    double best[4] = {0};
    size_t times[4];
    for (size_t i = 0; i < n_tiers; i++) {
        times[i] = 1;
        while (pass_ns(what, &tiers[i], h, rows, times[i]) < PASS_NS) {
            times[i] *= 2;
        }
    }
    for (size_t pass = 0; pass < PASSES; pass++) {
        for (size_t i = 0; i < n_tiers; i++) {
            double t = pass_ns(what, &tiers[i], h, rows, times[i]);
            double rate = elements(what, h, rows) * (double)times[i] / t;
            best[i] = rate > best[i] ? rate : best[i];
        }
    }
    for (size_t i = 0; i < n_tiers; i++) {
        double rate = best[i];
        double limit = limit_of(what, &tiers[i], h, rows, dram);
        printf("kern_attn,%s/%s,%.3f,Gelem/s,", tiers[i].name, name, rate);
        if (limit > 0) {
            printf("%.3f,%.2f\n", limit, rate / limit);
        } else {
            printf(",\n");
        }
        printf("kern_attn,%s/%s,%.3f,elem/cycle,,\n", tiers[i].name, name, rate / cycles_per_ns);
    }
    (void)fflush(stdout);
}

/* -- data. */

static void fill(const codec *c, uint8_t *p, size_t bytes)
{
    bool dense = c->shape.bits == 0;
    if (dense && c->shape.dtype == KVS_F32) {
        for (size_t i = 0; i < bytes / 4; i++) {
            uint32_t x = 0x3f000000u | (random_u32() & 0x807fffffu);
            memcpy(p + i * 4, &x, 4);
        }
        return;
    }
    uint32_t exponent = !dense ? 0 : c->shape.dtype == KVS_BF16 ? 0x3f003f00u : 0x38003800u;
    uint32_t keep = !dense ? 0xffffffffu : c->shape.dtype == KVS_BF16 ? 0x807f807fu : 0x83ff83ffu;
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t x = exponent | (random_u32() & keep);
        memcpy(p + i * 4, &x, 4);
    }
}

static void run_codec(const codec *c, uint8_t *k, uint8_t *v, uint16_t *scale, bool quick)
{
    head h = {c->shape, L2_TOKENS, k, v, scale, scale};
    fill(c, k, DRAM_BYTES);
    fill(c, v, DRAM_BYTES);
    for (size_t i = 0; i < N_ROW_COUNTS; i++) {
        measure(OP_ATTEND, c, &h, row_counts[i], false);
        measure(OP_DIRECT, c, &h, row_counts[i], false);
        measure(OP_QK_DIRECT, c, &h, row_counts[i], false);
        measure(OP_PV_DIRECT, c, &h, row_counts[i], false);
    }
    if (c->shape.bits || c->shape.dtype != KVS_F32) {
        measure(OP_K_TILE, c, &h, 1, false);
        measure(OP_V_ROWS, c, &h, 1, false);
    } else {
        for (size_t i = 0; i < N_ROW_COUNTS; i++) {
            measure(OP_QK, c, &h, row_counts[i], false);
            measure(OP_PV, c, &h, row_counts[i], false);
        }
        measure(OP_SOFTMAX, c, &h, 1, false);
        measure(OP_SOFTMAX, c, &h, 8, false);
    }
    h.n_tokens = DRAM_BYTES / token_bytes(&c->shape) / KVS__CHUNK * KVS__CHUNK;
    for (size_t i = 0; i < N_ROW_COUNTS && !quick; i++) {
        if (row_counts[i] <= 8) {
            measure(OP_ATTEND, c, &h, row_counts[i], true);
            measure(OP_DIRECT, c, &h, row_counts[i], true);
        }
    }
}

static void find_tiers(void)
{
    static const tier known[] = {
        {"avx2", KVS_TIER_AVX2, NULL, 0},
        {"avx512", KVS_TIER_AVX2 | KVS_TIER_AVX512, NULL, 0},
        {"neon", KVS_TIER_NEON, NULL, 0},
    };
    uint32_t have = kvs_cpu_tiers();
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if ((known[i].set & have) == known[i].set) {
            tiers[n_tiers] = known[i];
            tiers[n_tiers].kern = kvs__kern_for(known[i].set);
            tiers[n_tiers].peak = fma_peak(known[i].set);
            printf("kern_attn,%s/fma_peak,%.2f,GFMA/s,,\n", known[i].name, tiers[n_tiers].peak);
            n_tiers++;
        }
    }
}

static void *pages(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, KVS__HUGE_PAGE, bytes) != 0) {
        return NULL;
    }
    kvs__map_huge(p, bytes);
    return p;
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "-q") == 0;
    only = argc > 1 + quick ? argv[1 + quick] : "";
    size_t n_scales = DRAM_BYTES / (DIM * 2 / 8) * (DIM / 64);
    uint8_t *k = pages(DRAM_BYTES);
    uint8_t *v = pages(DRAM_BYTES);
    uint16_t *scale = malloc(n_scales * sizeof *scale);
    if (!k || !v || !scale) {
        (void)fprintf(stderr, "no memory for %zu bytes\n", 2 * DRAM_BYTES + 2 * n_scales);
        return 1;
    }
    for (size_t i = 0; i < n_scales; i++) {
        scale[i] = (uint16_t)(0x2c00u | (random_u32() & 0x83ffu));
    }
    for (size_t i = 0; i < ROWS_MAX * DIM; i++) {
        q[i] = (float)(random_u32() & 0xffffu) / 65536.0f;
    }
    memset(k, 1, DRAM_BYTES);
    printf("bench,case,value,unit,limit,ratio\n");
    cycles_per_ns = clock_rate();
    read_per_ns = read_rate(k, DRAM_BYTES);
    printf("kern_attn,clock,%.3f,GHz,,\nkern_attn,read,%.2f,GB/s,,\n", cycles_per_ns, read_per_ns);
    find_tiers();
    for (size_t i = 0; i < N_CODECS; i++) {
        run_codec(&codecs[i], k, v, scale, quick);
    }
    free(k);
    free(v);
    free(scale);
    return 0;
}
