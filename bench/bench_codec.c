/* SPDX-License-Identifier: MIT */
/* bench_codec: encode and decode of rows of 128 elements through the public calls, one thread, data
 * in the L2 cache; per codec, source dtype and tier. Gelem/s, against the rate at which memcpy
 * moves the source in the same place (no codec can touch its input less than once).
 *   bench_codec [--csv FILE] */
#include "kvstate/kvstate.h"
#include "limits.h"

#define DIM    128u
#define ROWS   512u
#define ROUNDS 9
#define PASS   2e-3

static float src[ROWS * DIM];
static uint16_t half[ROWS * DIM];
static uint32_t words[ROWS * DIM];
static uint32_t scales[ROWS * 4];
static uint32_t biases[ROWS * 4];
static float back[ROWS * DIM];

typedef struct work {
    kvs_ctx *ctx;
    kvs_codec codec;
    kvs_dtype from;
    int what; /* 0 encode, 1 decode as MLX, 2 decode to f32, 3 memcpy of the source */
} work;

static void once(const work *w)
{
    const void *in = w->from == KVS_F32 ? (const void *)src : half;
    kvs_status st = KVS_OK;
    void *s = w->codec.bits ? scales : NULL;
    void *b = w->codec.bits ? biases : NULL;
    if (w->what == 0) {
        st = kvs_codec_encode(w->ctx, &w->codec, DIM, ROWS, in, w->from, words, s, b, NULL);
    } else if (w->what == 1) {
        st = kvs_codec_decode(w->ctx, &w->codec, DIM, ROWS, words, s, b, back, NULL);
    } else if (w->what == 2) {
        st = kvs_codec_decode_f32(w->ctx, &w->codec, DIM, ROWS, words, s, b, back, NULL);
    } else {
        memcpy(back, in, (size_t)ROWS * DIM * (w->from == KVS_F32 ? 4 : 2));
        __asm__ volatile("" : : "r"(back) : "memory");
    }
    if (st != KVS_OK) {
        (void)fprintf(stderr, "codec call failed: %s\n", kvs_status_name(st));
        exit(1);
    }
}

/* CPU seconds of the thread: another process on the core doesn't count. */
static double rate(const work *w)
{
    double r[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        long n = 0;
        double start = bench_cpu_now();
        double t = 0;
        do {
            once(w);
            n++;
            t = bench_cpu_now() - start;
        } while (t < PASS);
        r[i] = (double)n * ROWS * DIM / t;
    }
    return bench_median(r, ROUNDS);
}

static void codec_lines(kvs_ctx *ctx, uint32_t tiers, kvs_codec codec, const double *copy)
{
    static const char *from[] = {"f32", "f16", "bf16"};
    char name[48];
    char what[96];
    (void)kvs_codec_name(&codec, name, sizeof name);
    for (int t = 0; t < 3; t++) {
        work w = {ctx, codec, (kvs_dtype)t, 0};
        (void)snprintf(what, sizeof what, "encode/%s/%s/from-%s", bench_tier_name(tiers), name,
                       from[t]);
        bench_line(what, rate(&w) / 1e9, "Gelem/s", copy[t] / 1e9);
    }
    for (int d = 1; d <= 2; d++) {
        work w = {ctx, codec, KVS_F32, d};
        (void)snprintf(what, sizeof what, "%s/%s/%s", d == 1 ? "decode" : "decode-f32",
                       bench_tier_name(tiers), name);
        bench_line(what, rate(&w) / 1e9, "Gelem/s", copy[0] / 1e9);
    }
}

static void tier_lines(uint32_t off)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    o.n_threads = 1;
    o.tiers_off = off;
    if (kvs_ctx_new(&o, &ctx, NULL) != KVS_OK || kvs_ctx_get_stats(ctx, &st) != KVS_OK) {
        exit(1);
    }
    double copy[3];
    for (int t = 0; t < 3; t++) {
        work w = {ctx, KVS_CODEC_DENSE(KVS_F32), (kvs_dtype)t, 3};
        copy[t] = rate(&w);
    }
    static const uint8_t bits[] = {8, 6, 5, 4, 3, 2};
    codec_lines(ctx, st.tiers, (kvs_codec)KVS_CODEC_DENSE(KVS_F16), copy);
    codec_lines(ctx, st.tiers, (kvs_codec)KVS_CODEC_DENSE(KVS_BF16), copy);
    for (size_t i = 0; i < sizeof bits; i++) {
        codec_lines(ctx, st.tiers, (kvs_codec)KVS_CODEC_AFFINE(bits[i], 64, KVS_BF16), copy);
    }
    kvs_ctx_free(ctx);
}

int main(int argc, char **argv)
{
    if (!bench_start("codec", &argc, argv)) {
        return 2;
    }
    uint64_t s = 7;
    for (size_t i = 0; i < ROWS * DIM; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        src[i] = (float)(int32_t)(s >> 32) * 0x1p-30f;
        uint32_t u = 0;
        memcpy(&u, &src[i], sizeof u);
        half[i] = (uint16_t)(u >> 16); /* a bf16; as f16 the same bits are finite numbers too */
    }
    uint32_t have = kvs_cpu_tiers();
    tier_lines(0);
    if (have & KVS_TIER_AVX512) {
        tier_lines(KVS_TIER_AVX512);
    }
    tier_lines(KVS_TIER_ALL);
    return 0;
}
