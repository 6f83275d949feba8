/* SPDX-License-Identifier: MIT */
/* bench_rollback: what a rejected round costs as the context grows, and what a fork costs. A round is
 * begin, resolve with nothing accepted, apart from its appends, which are timed on their own; four
 * drafts over LAYERS layers. `flat` is the cost at 128k over the cost at 1k: it must not grow with
 * the context, nor with the window.
 *   bench_rollback [--csv FILE] */
#include "kvstate/kvstate.h"
#include "limits.h"

#define HKV    2u
#define DIM    64u
#define LAYERS 8u
#define DRAFTS 4u
#define ROUNDS 2000

static float kv_rows[2 * 512 * HKV * DIM];

typedef struct setup {
    kvs_ctx *ctx;
    kvs_rows *rows;
    kvs_cache *cache;
} setup;

static void append(kvs_cache *c, uint32_t n)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = kv_rows;
    kv.v = kv_rows + (size_t)512 * HKV * DIM;
    for (uint32_t i = 0; i < LAYERS; i++) {
        bench_must(kvs_cache_append(c, i, &kv, NULL), "append");
    }
}

static setup open_setup(kvs_codec codec, uint32_t window)
{
    setup s = {NULL, NULL, NULL};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_layer_spec spec[LAYERS];
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    co.n_threads = 1;
    bench_must(kvs_ctx_new(&co, &s.ctx, NULL), "ctx");
    for (uint32_t i = 0; i < LAYERS; i++) {
        kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
        spec[i] = init;
        spec[i].n_kv_heads = HKV;
        spec[i].k_dim = DIM;
        spec[i].v_dim = DIM;
        spec[i].k = codec;
        spec[i].v = codec;
        spec[i].layout = window ? KVS_LAYOUT_RING : KVS_LAYOUT_GROW;
        spec[i].window = window;
        spec[i].max_block = 512;
    }
    o.n_layers = LAYERS;
    o.layers = spec;
    bench_must(kvs_cache_new(s.ctx, &o, &s.cache, NULL), "cache");
    bench_must(kvs_rows_merge(s.ctx, &s.cache, 1, &s.rows, NULL), "rows");
    return s;
}

static void close_setup(setup *s)
{
    kvs_rows_free(s->rows);
    kvs_ctx_free(s->ctx);
}

/* ns of begin + resolve of rounds of which all drafts are rejected; *write: of their appends. */
static double rounds(setup *s, double *write)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    double spent = 0;
    o.n_drafts = DRAFTS;
    *write = 0;
    for (int i = 0; i < ROUNDS; i++) {
        double t0 = bench_cpu_now();
        bench_must(kvs_txn_begin(s->rows, &o, NULL), "begin");
        double t1 = bench_cpu_now();
        append(s->cache, DRAFTS + 1);
        double t2 = bench_cpu_now();
        bench_must(kvs_txn_resolve_all(s->rows, 0, NULL), "resolve");
        double t3 = bench_cpu_now();
        spent += t1 - t0 + t3 - t2;
        *write += t2 - t1;
    }
    *write *= 1e9 / ROUNDS;
    return 1e9 * spent / ROUNDS;
}

/* ns of a fork and its end, and of the first token appended to a fork. */
static double forks(const setup *s, double *first)
{
    double spent = 0;
    *first = 0;
    int n = 200;
    for (int i = 0; i < n; i++) {
        kvs_cache *f = NULL;
        double t0 = bench_cpu_now();
        bench_must(kvs_cache_fork(s->cache, KVS_ALL_TOKENS, &f, NULL), "fork");
        double t1 = bench_cpu_now();
        append(f, 1);
        double t2 = bench_cpu_now();
        kvs_cache_free(f);
        spent += t1 - t0;
        *first += t2 - t1;
    }
    *first *= 1e9 / n;
    return 1e9 * spent / n;
}

static void run(const char *name, kvs_codec codec, uint32_t window)
{
    setup s = open_setup(codec, window);
    double base[2] = {0, 0};
    double cost[2] = {0, 0};
    char what[96];
    for (uint32_t mark = 1024; mark <= 128 * 1024; mark *= 2) {
        while (kvs_cache_length(s.cache, 0) < (int64_t)mark) {
            append(s.cache, 512);
        }
        double write = 0;
        double first = 0;
        cost[0] = rounds(&s, &write);
        cost[1] = forks(&s, &first);
        (void)snprintf(what, sizeof what, "rollback/%s/T%uk", name, mark >> 10);
        bench_line(what, cost[0], "ns/round", 0);
        (void)snprintf(what, sizeof what, "drafts/%s/T%uk", name, mark >> 10);
        bench_line(what, write, "ns/round", 0);
        (void)snprintf(what, sizeof what, "fork/%s/T%uk", name, mark >> 10);
        bench_line(what, cost[1], "ns", 0);
        (void)snprintf(what, sizeof what, "fork+append1/%s/T%uk", name, mark >> 10);
        bench_line(what, first, "ns", 0);
        if (mark == 1024) {
            base[0] = cost[0];
            base[1] = cost[1];
        }
    }
    (void)snprintf(what, sizeof what, "rollback/%s/flat", name);
    bench_line(what, cost[0] / base[0], "x", 0);
    (void)snprintf(what, sizeof what, "fork/%s/flat", name);
    bench_line(what, cost[1] / base[1], "x", 0);
    close_setup(&s);
}

int main(int argc, char **argv)
{
    if (!bench_start("rollback", &argc, argv)) {
        return 2;
    }
    for (size_t i = 0; i < sizeof kv_rows / sizeof *kv_rows; i++) {
        kv_rows[i] = (float)(i % 61) * 0.03f - 0.9f;
    }
    run("grow/f16", (kvs_codec)KVS_CODEC_DENSE(KVS_F16), 0);
    run("grow/affine4", (kvs_codec)KVS_CODEC_AFFINE(4, 64, KVS_F16), 0);
    run("ring512/f16", (kvs_codec)KVS_CODEC_DENSE(KVS_F16), 512);
    run("ring4096/f16", (kvs_codec)KVS_CODEC_DENSE(KVS_F16), 4096);
    run("ring512/affine4", (kvs_codec)KVS_CODEC_AFFINE(4, 64, KVS_F16), 512);
    return 0;
}
