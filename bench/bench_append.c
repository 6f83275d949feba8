/* SPDX-License-Identifier: MIT */
/* bench_append: cost of an append and of a rewind as the context grows, grow and ring, one token
 * and blocks of 8. Figures are ns per token over windows of the run around T = 1k ... 1M; `flat` is
 * the last over the first, which must not grow with T.
 *   bench_append [--csv FILE] */
#include "kvstate/kvstate.h"
#include "limits.h"

#define HKV    2u
#define DIM    64u
#define WINDOW 512u

static float kv_rows[2 * 8 * HKV * DIM];

static void run(const char *name, kvs_layout layout, kvs_codec codec, uint32_t block)
{
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    kvs_cache *c = NULL;
    co.n_threads = 1;
    bench_must(kvs_ctx_new(&co, &ctx, NULL), "ctx");
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    s.n_kv_heads = HKV;
    s.k_dim = DIM;
    s.v_dim = DIM;
    s.k = codec;
    s.v = codec;
    s.layout = layout;
    s.window = layout == KVS_LAYOUT_RING ? WINDOW : 0;
    s.max_block = 8;
    o.n_layers = 1;
    o.layers = &s;
    bench_must(kvs_cache_new(ctx, &o, &c, NULL), "cache");
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = block;
    kv.k = kv_rows;
    kv.v = kv_rows + (size_t)8 * HKV * DIM;
    int64_t at = 0;
    double first = 0;
    double last = 0;
    for (int64_t mark = 1024; mark <= 1 << 20; mark *= 4) {
        /* amortised: from half the mark to the mark, growth included */
        while (at < mark / 2) {
            bench_must(kvs_cache_append(c, 0, &kv, NULL), "append");
            at += block;
        }
        double t = bench_cpu_now();
        int64_t from = at;
        while (at < mark) {
            bench_must(kvs_cache_append(c, 0, &kv, NULL), "append");
            at += block;
        }
        double ns = 1e9 * (bench_cpu_now() - t) / (double)(at - from);
        t = bench_cpu_now();
        for (int i = 0; i < 1000; i++) {
            bench_must(kvs_cache_rewind(c, 0, 1, NULL), "rewind");
            kv.n_tokens = 1;
            bench_must(kvs_cache_append(c, 0, &kv, NULL), "append");
            kv.n_tokens = block;
        }
        double back = 1e9 * (bench_cpu_now() - t) / 1000;
        char what[96];
        (void)snprintf(what, sizeof what, "append%u/%s/T%lldk", block, name,
                       (long long)(mark >> 10));
        bench_line(what, ns, "ns/token", 0);
        (void)snprintf(what, sizeof what, "rewind1+append1/%s/T%lldk", name,
                       (long long)(mark >> 10));
        bench_line(what, back, "ns", 0);
        first = first > 0 ? first : ns;
        last = ns;
    }
    char what[96];
    (void)snprintf(what, sizeof what, "append%u/%s/flat", block, name);
    bench_line(what, last / first, "x", 0);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

int main(int argc, char **argv)
{
    if (!bench_start("append", &argc, argv)) {
        return 2;
    }
    for (size_t i = 0; i < sizeof kv_rows / sizeof *kv_rows; i++) {
        kv_rows[i] = (float)(i % 61) * 0.03f - 0.9f;
    }
    for (uint32_t block = 1; block <= 8; block += 7) {
        run("grow/f16", KVS_LAYOUT_GROW, (kvs_codec)KVS_CODEC_DENSE(KVS_F16), block);
        run("grow/affine4", KVS_LAYOUT_GROW, (kvs_codec)KVS_CODEC_AFFINE(4, 64, KVS_F16), block);
        run("ring/f16", KVS_LAYOUT_RING, (kvs_codec)KVS_CODEC_DENSE(KVS_F16), block);
        run("ring/affine4", KVS_LAYOUT_RING, (kvs_codec)KVS_CODEC_AFFINE(4, 64, KVS_F16), block);
    }
    return 0;
}
