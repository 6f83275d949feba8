/* SPDX-License-Identifier: MIT */
/* bench_cache: what a hit in memory costs before the first new token is computed.
 *
 * hit     lookup, attach to an empty cache, release, of 4096 tokens of two real models' geometries
 * lookup  of a prompt of 8192 tokens among 1,000,000 entries (of one layer, which share one block: the
 *         tree does not care what its nodes refer to): found whole, and differing in its last block
 * publish the 4096 tokens again, which are there, and anew
 * Medians; limits are the promises. `cold` puts 64 MB of other memory through the caches before each.
 *   bench_cache [--csv FILE] [--entries=N] */
#include "kvstate/kvstate.h"
#include "limits.h"

#define TOKENS 4096u
#define PROMPT 8192u
#define ROUNDS 101

typedef struct shape {
    const char *name;
    uint32_t n_layers;
    uint32_t heads;
    uint32_t dim;
    uint32_t window; /* of all layers but every sixth; 0: none */
} shape;

static const shape shapes[] = {{"smollm2_135m", 30, 3, 64, 0}, {"gemma3_270m", 18, 1, 256, 512}};

static kvs_cache *new_cache(kvs_ctx *ctx, const shape *s, kvs_pages *pages)
{
    kvs_layer_spec spec[64];
    const kvs_codec f16 = KVS_CODEC_DENSE(KVS_F16);
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_cache *c = NULL;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
        spec[i] = init;
        spec[i].n_kv_heads = s->heads;
        spec[i].k_dim = s->dim;
        spec[i].v_dim = s->dim;
        spec[i].k = f16;
        spec[i].v = f16;
        spec[i].layout = KVS_LAYOUT_PAGED;
        spec[i].window = i % 6 == 5 ? 0 : s->window;
        spec[i].max_block = s->window ? 512 : 0;
    }
    o.n_layers = s->n_layers;
    o.layers = spec;
    o.pages = pages;
    bench_check(kvs_cache_new(ctx, &o, &c, &err), &err);
    return c;
}

static void append(kvs_cache *c, uint32_t n)
{
    static float zeros[512 * 1024];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_kv kv = KVS_KV_INIT;
    kv.k = zeros;
    kv.v = zeros;
    kv.n_tokens = n;
    for (uint32_t i = 0; i < kvs_cache_n_layers(c); i++) {
        bench_check(kvs_cache_append(c, i, &kv, &err), &err);
    }
}

static void spoil(void)
{
    static volatile uint8_t *big;
    big = big ? big : malloc((size_t)64 << 20);
    for (size_t i = 0; big && i < (size_t)64 << 20; i += 64) {
        big[i]++;
    }
}

static void line(const char *what, const char *name, double *t, double limit)
{
    char text[80];
    (void)snprintf(text, sizeof text, "%s_%s", what, name);
    bench_line(text, 1e6 * bench_median(t, ROUNDS), "us", limit);
}

static void fill_ids(int32_t *ids, uint32_t n, uint32_t seed)
{
    uint64_t s = seed;
    for (uint32_t i = 0; i < n; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)(s >> 33) % 50000;
    }
}

static double one_hit(kvs_ctx *ctx, kvs_prefix *ix, const shape *s, kvs_pages *pages,
                      const kvs_prefix_key *key, size_t *n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_cache *c = new_cache(ctx, s, pages); /* a row has one before its prompt comes */
    double t = bench_now();
    bench_check(kvs_prefix_lookup(ix, key, 0, &lease, &hit, &err), &err);
    bench_check(kvs_prefix_attach(lease, c, &err), &err);
    kvs_prefix_release(lease);
    t = bench_now() - t;
    *n = hit.n_tokens;
    kvs_cache_free(c);
    return t;
}

static void hits(kvs_ctx *ctx, const shape *s)
{
    static int32_t ids[TOKENS + 1];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_pages *pages = NULL;
    kvs_prefix *ix = NULL;
    kvs_prefix_key key = {NULL, NULL, 0, ids, TOKENS};
    double warm[ROUNDS];
    double cold[ROUNDS];
    double again[ROUNDS];
    size_t n = 0;
    bench_check(kvs_pages_new(ctx, NULL, &pages, &err), &err);
    kvs_cache *c = new_cache(ctx, s, pages);
    bench_check(kvs_prefix_new(ctx, c, NULL, &ix, &err), &err);
    fill_ids(ids, TOKENS + 1, 1);
    double fresh = 0;
    for (uint32_t at = 512; at <= TOKENS;
         at += 512) { /* as an engine does, so that windows are kept */
        append(c, 512);
        key.n_ids = at;
        double t = bench_now();
        bench_check(kvs_prefix_publish(ix, &key, c, NULL, NULL, &err), &err);
        fresh += bench_now() - t;
    }
    key.n_ids = TOKENS + 1;
    for (int r = 0; r < ROUNDS; r++) {
        warm[r] = one_hit(ctx, ix, s, pages, &key, &n);
        spoil();
        cold[r] = one_hit(ctx, ix, s, pages, &key, &n);
        key.n_ids = TOKENS;
        again[r] = bench_now();
        bench_check(kvs_prefix_publish(ix, &key, c, NULL, NULL, &err), &err);
        again[r] = bench_now() - again[r];
        key.n_ids = TOKENS + 1;
    }
    if (n != TOKENS) {
        (void)fprintf(stderr, "hit %zu of %u tokens\n", n, TOKENS);
        exit(1);
    }
    line("hit_4096", s->name, warm, 1000);
    line("hit_4096_cold", s->name, cold, 1000);
    line("publish_again_4096", s->name, again, 0);
    char text[80];
    (void)snprintf(text, sizeof text, "publish_anew_4096_%s", s->name);
    bench_line(text, 1e6 * fresh, "us", 0);
    kvs_prefix_free(ix);
    kvs_cache_free(c);
    kvs_pages_free(pages);
}

static void lookups(kvs_ctx *ctx, uint32_t entries)
{
    static int32_t ids[PROMPT + 1];
    const shape tiny = {"tiny", 1, 1, 16, 0};
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_pages *pages = NULL;
    kvs_prefix *ix = NULL;
    kvs_prefix_key key = {NULL, NULL, 0, ids, 64};
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    double t[2][ROUNDS];
    bench_check(kvs_pages_new(ctx, NULL, &pages, &err), &err);
    kvs_cache *c = new_cache(ctx, &tiny, pages);
    append(c, 64);
    bench_check(kvs_prefix_new(ctx, c, NULL, &ix, &err), &err);
    double start = bench_now();
    for (uint32_t i = 0; i < entries; i++) {
        fill_ids(ids, 64, i + 10);
        ids[0] = (int32_t)(i % 1000);
        bench_check(kvs_prefix_publish(ix, &key, c, NULL, NULL, &err), &err);
    }
    bench_line("insert_among_many", 1e6 * (bench_now() - start) / entries, "us", 0);
    for (uint32_t at = 64; at < PROMPT; at += 512) {
        append(c, at + 512 <= PROMPT ? 512 : PROMPT - at);
    }
    fill_ids(ids, PROMPT + 1, 12); /* begins like one of them but for the first id */
    key.n_ids = PROMPT;
    bench_check(kvs_prefix_publish(ix, &key, c, NULL, NULL, &err), &err);
    key.n_ids = PROMPT + 1;
    for (int r = 0; r < ROUNDS; r++) {
        for (int k = 0; k < 2; k++) {
            kvs_lease *lease = NULL;
            ids[PROMPT - 1] += k;
            spoil();
            t[k][r] = bench_now();
            bench_check(kvs_prefix_lookup(ix, &key, 0, &lease, &hit, &err), &err);
            t[k][r] = bench_now() - t[k][r];
            kvs_prefix_release(lease);
            ids[PROMPT - 1] -= k;
            if (hit.n_tokens != PROMPT - (size_t)k) {
                (void)fprintf(stderr, "found %zu tokens\n", hit.n_tokens);
                exit(1);
            }
        }
    }
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(ix, &st);
    bench_line("entries", (double)st.nodes, "nodes", 0);
    line("lookup_8192", "whole", t[0], 200);
    line("lookup_8192", "last_differs", t[1], 200);
    kvs_prefix_free(ix);
    kvs_cache_free(c);
    kvs_pages_free(pages);
}

int main(int argc, char **argv)
{
    uint32_t entries = 1000000;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--entries=", 10) == 0) {
            entries = (uint32_t)strtoul(argv[i] + 10, NULL, 10);
        }
    }
    if (!bench_start("cache", &argc, argv)) {
        return 2;
    }
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx *ctx = NULL;
    o.n_threads = 1;
    bench_check(kvs_ctx_new(&o, &ctx, &err), &err);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        hits(ctx, &shapes[i]);
    }
    lookups(ctx, entries);
    kvs_ctx_free(ctx);
    return 0;
}
