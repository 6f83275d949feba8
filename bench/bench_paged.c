/* SPDX-License-Identifier: MIT */
/* bench_paged: paged layers against grow, 32 query heads, 8 KV heads, head dim 128.
 *
 * decode  one query at depth T: grow's bytes of tokens per second against the machine's, and its time
 *         over that of paged layers, medians of interleaved rounds. pagedN: one sequence of blocks of N
 *         tokens in a pool of its own. fork: three quarters are another's prefix, the rest was appended
 *         in turn with three more forks. scattered: blocks in random order, the worst that a pool comes
 *         to
 * window  512 queries at depth T, the same
 * append  blocks of 512 tokens, the same
 *   bench_paged [--csv FILE] [--threads=N] [--codec=bf16|affine8|affine4] */
#include "layer_rig.h"
#include "state/pages_priv.h"

#define FILLS  3 /* what memory a cache gets is luck: it is filled as often */
#define ROUNDS 15

#define FORKS 4

typedef enum fill_kind { ALONE, FORK, SCATTERED } fill_kind;

static const struct {
    const char *name;
    uint32_t block; /* 0: grow */
    fill_kind kind;
} kinds[] = {{"grow", 0, ALONE},
             {"paged16", 16, ALONE},
             {"paged64", 64, ALONE},
             {"paged256", 256, ALONE},
             {"paged64-fork", 64, FORK},
             {"paged16-scattered", 16, SCATTERED},
             {"paged64-scattered", 64, SCATTERED}};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static double read_rate; /* bytes/s of the machine, with as many threads */

static kvs_cache *empty_cache(kvs_ctx *ctx, const kvs_codec *codec, size_t kind, uint64_t tokens)
{
    kvs_cache *c = rig_cache(ctx, codec, tokens + 64, kinds[kind].block);
    if (kinds[kind].kind == SCATTERED) {
        kvs__pages_scramble(c->pages, 12345);
        /* many to choose from */
        bench_must(kvs_cache_reserve(c, 0, (uint32_t)tokens, NULL), "reserve");
    }
    return c;
}

static double append_all(kvs_cache *c, uint64_t tokens)
{
    double t = bench_now();
    rig_append(c, tokens, BLOCK);
    return bench_now() - t;
}

/* A cache of so many tokens; the others of its pool, NULL where there are none, are to be freed, too. */
static kvs_cache *full_cache(kvs_ctx *ctx, const kvs_codec *codec, size_t kind, uint64_t tokens,
                             kvs_cache *others[FORKS])
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_cache *c = empty_cache(ctx, codec, kind, tokens);
    const uint64_t shared = kinds[kind].kind == FORK ? tokens / 4 * 3 : tokens;
    const uint32_t step = 32;
    memset(others, 0, FORKS * sizeof *others);
    rig_append(c, shared, BLOCK);
    if (shared == tokens) {
        return c;
    }
    others[0] = c;
    for (int i = 1; i < FORKS; i++) {
        bench_check(kvs_cache_fork(c, shared, &others[i], &err), &err);
    }
    bench_check(kvs_cache_fork(others[0], shared, &c, &err), &err);
    for (uint64_t done = shared; done < tokens; done += step) {
        for (int i = 1; i < FORKS; i++) {
            rig_append(others[i], step, step);
        }
        rig_append(c, step, step);
    }
    return c;
}

static void free_all(kvs_cache *c, kvs_cache *others[FORKS])
{
    kvs_cache_free(c);
    for (int i = 0; i < FORKS; i++) {
        kvs_cache_free(others[i]);
    }
}

static void report(const char *what, const char *codec, uint64_t tokens, double (*t)[ROUNDS])
{
    char line[96];
    for (size_t i = 1; i < N_KINDS; i++) {
        double ratio[ROUNDS];
        for (int r = 0; r < ROUNDS; r++) {
            ratio[r] = t[0][r] / t[i][r];
        }
        (void)snprintf(line, sizeof line, "%s/T%lluk/%s/%s", what,
                       (unsigned long long)(tokens >> 10), codec, kinds[i].name);
        bench_line(line, bench_median(ratio, ROUNDS), "x", 1);
    }
}

/* What a decode of grow reads per second. */
static void report_rate(const char *codec, uint64_t tokens, double bytes, const double *t)
{
    char line[96];
    double sorted[ROUNDS];
    memcpy(sorted, t, sizeof sorted);
    (void)snprintf(line, sizeof line, "decode/T%lluk/%s/grow", (unsigned long long)(tokens >> 10),
                   codec);
    bench_line(line, bytes / bench_median(sorted, ROUNDS) * 1e-9, "GB/s", read_rate * 1e-9);
}

static double bytes_of(const kvs_codec *codec)
{
    double bits = codec->bits ? codec->bits + 32.0 / codec->group : 16;
    return 2.0 * HKV * DIM * bits / 8;
}

static void reads(kvs_ctx *ctx, const char *name, const kvs_codec *codec, uint64_t tokens,
                  uint32_t queries)
{
    kvs_cache *c[N_KINDS];
    kvs_cache *others[N_KINDS][FORKS];
    double t[N_KINDS][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < N_KINDS && r % (ROUNDS / FILLS) == 0; i++) {
            if (r > 0) {
                free_all(c[i], others[i]);
            }
            c[i] = full_cache(ctx, codec, i, tokens, others[i]);
            (void)rig_read_once(c[i], queries);
        }
        for (size_t i = 0; i < N_KINDS; i++) {
            t[i][r] = rig_read(c[i], queries);
        }
    }
    if (queries == 1) {
        report_rate(name, tokens, bytes_of(codec) * (double)tokens, t[0]);
    }
    report(queries == 1 ? "decode" : "window512", name, tokens, t);
    for (size_t i = 0; i < N_KINDS; i++) {
        free_all(c[i], others[i]);
    }
}

static void appends(kvs_ctx *ctx, const char *name, const kvs_codec *codec, uint64_t tokens)
{
    double t[N_KINDS][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < N_KINDS; i++) {
            kvs_cache *c = empty_cache(ctx, codec, i, 0);
            t[i][r] = append_all(c, tokens);
            kvs_cache_free(c);
        }
    }
    report("append", name, tokens, t);
}

int main(int argc, char **argv)
{
    uint32_t threads = 1;
    const char *only = NULL;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--threads=", 10) == 0) {
            threads = (uint32_t)strtoul(argv[i] + 10, NULL, 10);
        } else if (strncmp(argv[i], "--codec=", 8) == 0) {
            only = argv[i] + 8;
        }
    }
    if (!bench_start("paged", &argc, argv)) {
        return 2;
    }
    rig_fill();
    kvs_ctx *ctx = rig_ctx(threads, 0);
    const struct {
        const char *name;
        kvs_codec codec;
    } codecs[] = {{"bf16", KVS_CODEC_DENSE(KVS_BF16)},
                  {"affine8", KVS_CODEC_AFFINE(8, 64, KVS_F16)},
                  {"affine4", KVS_CODEC_AFFINE(4, 64, KVS_F16)}};
    read_rate = bench_read_rate(threads, (size_t)256 << 20, 5);
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        const char *name = codecs[i].name;
        if (!only || strcmp(only, name) == 0) {
            reads(ctx, name, &codecs[i].codec, 2048, 1);
            reads(ctx, name, &codecs[i].codec, 8192, 1);
            reads(ctx, name, &codecs[i].codec, 32768, 1);
            reads(ctx, name, &codecs[i].codec, 4096, BLOCK);
            appends(ctx, name, &codecs[i].codec, 8192);
        }
    }
    kvs_ctx_free(ctx);
    return 0;
}
