/* SPDX-License-Identifier: MIT */
/* bench_paged: paged layers against grow, 32 query heads, 8 KV heads, head dim 128.
 *
 * decode  one query at depth T: grow's time over paged's, medians of interleaved rounds
 * window  512 queries at depth T, the same
 * append  blocks of 512 tokens, the same
 * Blocks are handed out in random order, which is the worst that a pool comes to.
 *   bench_paged [--csv FILE] [--threads=N] */
#include "kvstate/kvstate.h"
#include "limits.h"
#include "state/pages_priv.h"

#define HQ     32u
#define HKV    8u
#define DIM    128u
#define BLOCK  512u
#define ROUNDS 9

static const uint32_t sizes[] = {0, 16, 64, 256}; /* 0: grow */
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static float *kv_block; /* [2][BLOCK][HKV][DIM] */
static float *q;        /* [BLOCK][HQ][DIM] */
static float *out;

static kvs_cache *empty_cache(kvs_ctx *ctx, const kvs_codec *codec, uint32_t block, uint64_t tokens)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    s.n_kv_heads = HKV;
    s.k_dim = DIM;
    s.v_dim = DIM;
    s.k = *codec;
    s.v = *codec;
    s.layout = block ? KVS_LAYOUT_PAGED : KVS_LAYOUT_GROW;
    o.n_layers = 1;
    o.layers = &s;
    o.reserve_tokens = tokens + 64;
    o.block_tokens = block;
    bench_check(kvs_cache_new(ctx, &o, &c, &err), &err);
    if (block) {
        kvs__pages_scramble(c->pages, 12345);
    }
    return c;
}

/* Blocks come in a random order only if there are many to choose from. */
static void spread(kvs_cache *c, uint64_t tokens)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    if (c->pages) {
        bench_check(kvs_cache_reserve(c, 0, (uint32_t)tokens, &err), &err);
    }
}

static double append_all(kvs_cache *c, uint64_t tokens)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_kv kv = KVS_KV_INIT;
    kv.k = kv_block;
    kv.v = kv_block + (size_t)BLOCK * HKV * DIM;
    kv.n_tokens = BLOCK;
    double t = bench_now();
    for (uint64_t done = 0; done < tokens; done += kv.n_tokens) {
        bench_check(kvs_cache_append(c, 0, &kv, &err), &err);
    }
    return bench_now() - t;
}

static double read_once(kvs_cache *c, uint32_t queries)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_attend d = KVS_ATTEND_INIT;
    d.n_queries = queries;
    d.n_q_heads = HQ;
    d.q = q;
    d.out = out;
    d.scale = 0.0883883f;
    double t = bench_now();
    bench_check(kvs_cache_attend(c, 0, &d, &err), &err);
    return bench_now() - t;
}

static double read_some(kvs_cache *c, uint32_t queries)
{
    double sum = 0; /* short reads are repeated to some milliseconds */
    int count = 0;
    while (sum < 4e-3 && count < 64) {
        sum += read_once(c, queries);
        count++;
    }
    return sum / count;
}

static void report(const char *what, const char *codec, uint64_t tokens, double (*t)[ROUNDS])
{
    char line[96];
    for (size_t i = 1; i < N_SIZES; i++) {
        double ratio[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            ratio[r] = t[0][r] / t[i][r];
        }
        (void)snprintf(line, sizeof line, "%s/T%lluk/%s/paged%u-vs-grow", what,
                       (unsigned long long)(tokens >> 10), codec, sizes[i]);
        bench_line(line, bench_median(ratio, ROUNDS), "x", 0);
    }
}

static void reads(kvs_ctx *ctx, const char *name, const kvs_codec *codec, uint64_t tokens,
                  uint32_t queries)
{
    kvs_cache *c[N_SIZES];
    double t[N_SIZES][ROUNDS];
    for (size_t i = 0; i < N_SIZES; i++) {
        c[i] = empty_cache(ctx, codec, sizes[i], tokens);
        spread(c[i], tokens);
        (void)append_all(c[i], tokens);
        (void)read_once(c[i], queries);
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            t[i][r] = read_some(c[i], queries);
        }
    }
    report(queries == 1 ? "decode" : "window512", name, tokens, t);
    for (size_t i = 0; i < N_SIZES; i++) {
        kvs_cache_free(c[i]);
    }
}

static void appends(kvs_ctx *ctx, const char *name, const kvs_codec *codec, uint64_t tokens)
{
    double t[N_SIZES][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < N_SIZES; i++) {
            kvs_cache *c = empty_cache(ctx, codec, sizes[i], 0);
            t[i][r] = append_all(c, tokens);
            kvs_cache_free(c);
        }
    }
    report("append", name, tokens, t);
}

int main(int argc, char **argv)
{
    uint32_t threads = 1;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--threads=", 10) == 0) {
            threads = (uint32_t)strtoul(argv[i] + 10, NULL, 10);
        }
    }
    if (!bench_start("paged", &argc, argv)) {
        return 2;
    }
    kv_block = malloc((size_t)2 * BLOCK * HKV * DIM * sizeof(float));
    q = malloc((size_t)BLOCK * HQ * DIM * sizeof(float));
    out = malloc((size_t)BLOCK * HQ * DIM * sizeof(float));
    if (!kv_block || !q || !out) {
        return 1;
    }
    bench_fill(kv_block, (size_t)2 * BLOCK * HKV * DIM);
    bench_fill(q, (size_t)BLOCK * HQ * DIM);
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx *ctx = NULL;
    o.n_threads = threads;
    bench_check(kvs_ctx_new(&o, &ctx, &err), &err);
    const kvs_codec bf16 = KVS_CODEC_DENSE(KVS_BF16);
    const kvs_codec q4 = KVS_CODEC_AFFINE(4, 64, KVS_F16);
    const kvs_codec *codec[2] = {&bf16, &q4};
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "affine4" : "bf16";
        reads(ctx, name, codec[i], 2048, 1);
        reads(ctx, name, codec[i], 8192, 1);
        reads(ctx, name, codec[i], 32768, 1);
        reads(ctx, name, codec[i], 4096, BLOCK);
        appends(ctx, name, codec[i], 8192);
    }
    kvs_ctx_free(ctx);
    free(kv_block);
    free(q);
    free(out);
    return 0;
}
