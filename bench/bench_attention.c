/* SPDX-License-Identifier: MIT */
/* bench_attention: reads of a layer with 32 query heads, 8 KV heads, head dim 128.
 *
 * decode  one query at depth T: bytes of live state per second against the read bandwidth, and
 *         tokens/s against dense bf16, next to the ratio that this run's bandwidth and FMA peak
 *         allow; codecs interleaved round by round, medians
 * window  512 queries at depth T: FLOP/s against the FMA peak; tokens/s against dense bf16
 * block   8 queries at T = 8k against one
 * busy    decode with one other busy thread, against undisturbed
 *   bench_attention [--csv FILE] [--full] [--threads=N] [decode|window|block|busy ...]
 * --full adds T = 128k and the reference tier; --threads=N decode with 4, 8 ... N threads. */
#include <stdatomic.h>

#include "layer_rig.h"

#define ROUNDS 7

typedef struct named {
    const char *name;
    kvs_codec codec;
} named;

static const named codecs[] = {
    {"bf16", KVS_CODEC_DENSE(KVS_BF16)},
    {"affine8", KVS_CODEC_AFFINE(8, 64, KVS_F16)},
    {"affine4", KVS_CODEC_AFFINE(4, 64, KVS_F16)},
    {"affine3", KVS_CODEC_AFFINE(3, 64, KVS_F16)},
    {"affine2", KVS_CODEC_AFFINE(2, 64, KVS_F16)},
    {"q4", {4, KVS_ROTATED, 64, KVS_F16}},
    {"c4", {4, KVS_ROTATED | KVS_CENTERED, 64, KVS_F16}},
};
#define N_CODECS (sizeof codecs / sizeof codecs[0])

/* Median seconds of a read of each codec's cache, rounds interleaved. */
static void time_all(kvs_cache **c, size_t n, uint32_t queries, double *seconds)
{
    double t[N_CODECS][ROUNDS];
    for (size_t i = 0; i < n; i++) {
        (void)rig_read_once(c[i], queries);
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < n; i++) {
            t[i][r] = rig_read(c[i], queries);
        }
    }
    for (size_t i = 0; i < n; i++) {
        seconds[i] = bench_median(t[i], ROUNDS);
    }
}

static void open_all(kvs_ctx *ctx, uint64_t tokens, kvs_cache **c)
{
    for (size_t i = 0; i < N_CODECS; i++) {
        c[i] = rig_cache(ctx, &codecs[i].codec, tokens + 64, 0);
        rig_append(c[i], tokens, BLOCK);
    }
}

static void close_all(kvs_cache **c)
{
    for (size_t i = 0; i < N_CODECS; i++) {
        kvs_cache_free(c[i]);
    }
}

/* What one query can't be faster than: its bytes at the read rate, its multiply-adds at the FMA
 * peak. Each element takes one for each query head that shares it, and one more to become a number
 * where it is a code (scores and values alike; softmax and unpacking not counted). */
static double least_seconds(size_t codec, uint64_t tokens, double read_rate, double peak)
{
    double elements = (double)tokens * 2 * HKV * DIM;
    double bytes =
        (double)tokens * 2 * HKV * (double)kvs_codec_row_bytes(&codecs[codec].codec, DIM);
    double each = HQ / HKV + (codecs[codec].codec.bits > 0 ? 1 : 0);
    double compute = peak > 0.0 ? elements * each * 2 / peak : 0.0;
    return bytes / read_rate > compute ? bytes / read_rate : compute;
}

static void decode(uint32_t tiers_off, uint32_t threads, uint64_t tokens)
{
    kvs_ctx *ctx = rig_ctx(threads, tiers_off);
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &st);
    kvs_cache *c[N_CODECS];
    double s[N_CODECS];
    char what[96];
    open_all(ctx, tokens, c);
    time_all(c, N_CODECS, 1, s);
    double limit = bench_read_rate(threads, (size_t)128 << 20, 5);
    double peak = bench_fma_peak(st.tiers, threads);
    for (size_t i = 0; i < N_CODECS; i++) {
        size_t row = kvs_codec_row_bytes(&codecs[i].codec, DIM);
        double bytes = (double)tokens * 2 * HKV * (double)row;
        (void)snprintf(what, sizeof what, "decode/%s/%ut/T%lluk/%s", bench_tier_name(st.tiers),
                       threads, (unsigned long long)(tokens >> 10), codecs[i].name);
        bench_line(what, bytes / s[i] / 1e9, "GB/s", limit / 1e9);
        (void)strncat(what, "/vs-bf16", sizeof what - strlen(what) - 1);
        bench_line(what, s[0] / s[i], "x",
                   least_seconds(0, tokens, limit, peak) / least_seconds(i, tokens, limit, peak));
    }
    close_all(c);
    kvs_ctx_free(ctx);
}

static void window(uint32_t tiers_off, uint32_t threads, uint64_t tokens)
{
    kvs_ctx *ctx = rig_ctx(threads, tiers_off);
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &st);
    kvs_cache *c[N_CODECS];
    double s[N_CODECS];
    char what[96];
    open_all(ctx, tokens, c);
    time_all(c, N_CODECS, BLOCK, s);
    double peak = bench_fma_peak(st.tiers, threads);
    /* visible pairs: the block's queries see tokens - 511 .. tokens */
    double pairs = (double)BLOCK * ((double)tokens - (BLOCK - 1) / 2.0);
    double flops = pairs * HQ * 2 * 2 * DIM;
    for (size_t i = 0; i < N_CODECS; i++) {
        (void)snprintf(what, sizeof what, "window512/%s/%ut/T%lluk/%s", bench_tier_name(st.tiers),
                       threads, (unsigned long long)(tokens >> 10), codecs[i].name);
        bench_line(what, flops / s[i] / 1e9, "GFLOP/s", peak / 1e9);
        (void)strncat(what, "/vs-bf16", sizeof what - strlen(what) - 1);
        bench_line(what, s[0] / s[i], "x", 0);
    }
    close_all(c);
    kvs_ctx_free(ctx);
}

static void block(uint32_t tiers_off, uint32_t threads)
{
    kvs_ctx *ctx = rig_ctx(threads, tiers_off);
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &st);
    kvs_cache *c[N_CODECS];
    double one[N_CODECS];
    double eight[N_CODECS];
    char what[96];
    open_all(ctx, 8192, c);
    time_all(c, N_CODECS, 1, one);
    time_all(c, N_CODECS, 8, eight);
    for (size_t i = 0; i < N_CODECS; i++) {
        (void)snprintf(what, sizeof what, "block8-vs-1/%s/%ut/T8k/%s", bench_tier_name(st.tiers),
                       threads, codecs[i].name);
        bench_line(what, eight[i] / one[i], "x", 0);
    }
    close_all(c);
    kvs_ctx_free(ctx);
}

static atomic_bool stop_busy;

static void *busy_thread(void *arg)
{
    (void)arg;
    volatile uint64_t x = 1;
    while (!atomic_load_explicit(&stop_busy, memory_order_relaxed)) {
        for (int i = 0; i < 10000; i++) {
            x = x * 6364136223846793005u + 1;
        }
    }
    return NULL;
}

static void busy(uint32_t threads)
{
    kvs_ctx *ctx = rig_ctx(threads, 0);
    kvs_cache *c[N_CODECS];
    double calm[N_CODECS];
    double disturbed[N_CODECS];
    char what[96];
    open_all(ctx, 8192, c);
    time_all(c, N_CODECS, 1, calm);
    pthread_t id;
    atomic_store(&stop_busy, false);
    (void)pthread_create(&id, NULL, busy_thread, NULL);
    time_all(c, N_CODECS, 1, disturbed);
    atomic_store(&stop_busy, true);
    (void)pthread_join(id, NULL);
    for (size_t i = 0; i < N_CODECS; i++) {
        (void)snprintf(what, sizeof what, "busy-vs-calm/%ut/T8k/%s", threads, codecs[i].name);
        bench_line(what, calm[i] / disturbed[i], "x", 0);
    }
    close_all(c);
    kvs_ctx_free(ctx);
}

static bool wanted(int argc, char **argv, const char *what)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] != '-') {
            any = true;
            if (strcmp(argv[i], what) == 0) {
                return true;
            }
        }
    }
    return !any;
}

int main(int argc, char **argv)
{
    if (!bench_start("attention", &argc, argv)) {
        return 2;
    }
    bool full = false;
    uint32_t most = 2;
    for (int i = 1; i < argc; i++) {
        full = full || strcmp(argv[i], "--full") == 0;
        if (strncmp(argv[i], "--threads=", 10) == 0) {
            most = (uint32_t)strtoul(argv[i] + 10, NULL, 10);
            most = most > 64 ? 64 : most;
        }
    }
    rig_fill();
    uint32_t have = kvs_cpu_tiers();
    uint32_t off[3] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    for (int i = 0; i < (full ? 3 : 2); i++) {
        if (i == 1 && !(have & KVS_TIER_AVX512)) {
            continue; /* the same as i == 0 */
        }
        for (uint32_t threads = 1; threads <= 2; threads++) {
            static const uint64_t depths[] = {1024, 2048, 8192, 32768, 131072};
            for (size_t d = 0; wanted(argc, argv, "decode") && d < 5; d++) {
                if ((depths[d] <= 32768 || full) && (i < 2 || d == 0)) {
                    decode(off[i], threads, depths[d]);
                }
            }
            if (wanted(argc, argv, "window") && i < 2) {
                window(off[i], threads, 2048);
                window(off[i], threads, 8192);
            }
            if (wanted(argc, argv, "block") && i < 2) {
                block(off[i], threads);
            }
        }
    }
    for (uint32_t threads = 4; threads <= most && wanted(argc, argv, "decode"); threads *= 2) {
        decode(0, threads, 32768);
    }
    if (wanted(argc, argv, "busy")) {
        busy(2);
    }
    return 0;
}
