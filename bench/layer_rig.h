/* SPDX-License-Identifier: MIT */
/* layer_rig.h: the layer that bench_attention and bench_paged fill and read: 32 query heads, 8 KV
 * heads, head dim 128, blocks of up to 512 tokens. */
#ifndef KVS_BENCH_LAYER_RIG_H
#define KVS_BENCH_LAYER_RIG_H

#include "kvstate/kvstate.h"
#include "limits.h"

#define HQ    32u
#define HKV   8u
#define DIM   128u
#define BLOCK 512u

static float kv_block[2][BLOCK * HKV * DIM];
static float q[BLOCK * HQ * DIM];
static float out[BLOCK * HQ * DIM];

static void rig_fill(void)
{
    bench_fill(kv_block[0], sizeof kv_block / sizeof(float));
    bench_fill(q, sizeof q / sizeof(float));
}

static kvs_ctx *rig_ctx(uint32_t threads, uint32_t tiers_off)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx *ctx = NULL;
    o.n_threads = threads;
    o.tiers_off = tiers_off;
    bench_check(kvs_ctx_new(&o, &ctx, &err), &err);
    return ctx;
}

/* Without tokens. block 0: grow, else paged in blocks of so many. */
static kvs_cache *rig_cache(kvs_ctx *ctx, const kvs_codec *codec, uint64_t reserve, uint32_t block)
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
    o.reserve_tokens = reserve;
    o.block_tokens = block;
    bench_check(kvs_cache_new(ctx, &o, &c, &err), &err);
    return c;
}

/* tokens: a multiple of step. */
static void rig_append(kvs_cache *c, uint64_t tokens, uint32_t step)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_kv kv = KVS_KV_INIT;
    kv.k = kv_block[0];
    kv.v = kv_block[1];
    kv.n_tokens = step;
    for (uint64_t done = 0; done < tokens; done += step) {
        bench_check(kvs_cache_append(c, 0, &kv, &err), &err);
    }
}

static double rig_read_once(kvs_cache *c, uint32_t queries)
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

/* Seconds of a read; short ones are repeated to some milliseconds. */
static double rig_read(kvs_cache *c, uint32_t queries)
{
    double sum = 0;
    int count = 0;
    while (sum < 4e-3 && count < 64) {
        sum += rig_read_once(c, queries);
        count++;
    }
    return sum / count;
}

#endif
