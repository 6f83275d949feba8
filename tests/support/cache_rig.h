/* SPDX-License-Identifier: MIT */
/* cache_rig.h: what tests of caches share: contexts, tokens that are a function of their position
 * (so that any way to append them gives the same cache), and snapshots of all that a call could
 * have changed. */
#ifndef KVS_TESTS_SUPPORT_CACHE_RIG_H
#define KVS_TESTS_SUPPORT_CACHE_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/kvstate.h"
#ifdef RIG_PAGED /* before inclusion: rig_cache can make every layer paged */
#include "state/pages_priv.h"
#endif

#define RIG_ALL_LAYERS 4
#define RIG_MAX_LAYERS 8

static inline void *rig_alloc(size_t n)
{
    void *p = calloc(n ? n : 1, 1);
    if (!p) {
        abort();
    }
    return p;
}

static inline void rig_must(kvs_status st)
{
    if (st != KVS_OK) {
        abort();
    }
}

static inline uint64_t rig_mix(uint64_t z)
{
    z = (z + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* In [-2, 2). */
static inline float rig_value(uint64_t seed, uint64_t i)
{
    return (float)((int64_t)(rig_mix(seed * 0x1000193u + i) >> 40) - (1 << 23)) * 0x1p-22f;
}

static inline kvs_ctx *rig_ctx(uint32_t n_threads, uint32_t tiers_off)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    o.n_threads = n_threads;
    o.tiers_off = tiers_off;
    rig_must(kvs_ctx_new(&o, &ctx, NULL));
    return ctx;
}

static inline size_t rig_live(const kvs_ctx *ctx)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    rig_must(kvs_ctx_get_stats(ctx, &s));
    return s.live_bytes;
}

static inline kvs_layer_spec rig_spec(uint32_t heads, uint32_t k_dim, uint32_t v_dim, const char *k,
                                      const char *v)
{
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    s.n_kv_heads = heads;
    s.k_dim = k_dim;
    s.v_dim = v_dim;
    rig_must(kvs_codec_parse(k, &s.k, NULL));
    rig_must(kvs_codec_parse(v, &s.v, NULL));
    return s;
}

static inline kvs_layer_spec rig_ring(kvs_layer_spec s, uint32_t window, uint32_t sinks,
                                      uint32_t max_block)
{
    s.layout = KVS_LAYOUT_RING;
    s.window = window;
    s.sinks = sinks;
    s.max_block = max_block;
    return s;
}

#ifdef RIG_PAGED
static uint32_t
    rig_block; /* not 0: layers are paged, in blocks of so many tokens in random order */

/* Block sizes that suites are run with. */
static const uint32_t rig_blocks[] = {1, 3, 16, 17, 64, 256};
#define RIG_BLOCKS (sizeof rig_blocks / sizeof rig_blocks[0])

/* A pool that goes with the last cache that uses it, once rig_pages_done was called. */
static inline kvs_pages *rig_pages(kvs_ctx *ctx, uint32_t block, size_t max_bytes)
{
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_pages *p = NULL;
    o.block_tokens = block;
    o.max_bytes = max_bytes;
    rig_must(kvs_pages_new(ctx, &o, &p, NULL));
    kvs__pages_scramble(p, 0x9e3779b9u + block);
    return p;
}

static inline kvs_layer_spec rig_as_paged(kvs_layer_spec s)
{
    if (s.layout == KVS_LAYOUT_GROW && s.window) {
        s.max_block = 4096; /* as a grown layer, which takes blocks of any length */
    }
    s.layout = KVS_LAYOUT_PAGED;
    return s;
}

static inline kvs_cache *rig_paged_cache(kvs_ctx *ctx, const kvs_layer_spec *specs, uint32_t n,
                                         kvs_pages *pages)
{
    kvs_layer_spec paged[RIG_MAX_LAYERS];
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    for (uint32_t i = 0; i < n; i++) {
        paged[i] = rig_as_paged(specs[i]);
    }
    o.n_layers = n;
    o.layers = paged;
    o.pages = pages;
    rig_must(kvs_cache_new(ctx, &o, &c, NULL));
    return c;
}
#endif

static inline kvs_cache *rig_cache(kvs_ctx *ctx, const kvs_layer_spec *specs, uint32_t n,
                                   uint64_t reserve)
{
#ifdef RIG_PAGED
    if (rig_block) {
        kvs_pages *pages = rig_pages(ctx, rig_block, 0);
        kvs_cache *paged = rig_paged_cache(ctx, specs, n, pages);
        kvs_pages_free(pages);
        return paged;
    }
#endif
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    o.n_layers = n;
    o.layers = specs;
    o.reserve_tokens = reserve;
    rig_must(kvs_cache_new(ctx, &o, &c, NULL));
    return c;
}

/* Rows [n][heads][dim] of positions at .. at + n - 1. */
static inline float *rig_rows(uint64_t seed, int64_t at, uint64_t n, size_t row)
{
    float *x = rig_alloc(n * row * sizeof *x);
    for (size_t i = 0; i < n * row; i++) {
        x[i] = rig_value(seed, (uint64_t)at * row + i);
    }
    return x;
}

/* Appends the next n tokens of the stream `seed`. */
static inline kvs_status rig_append(kvs_cache *c, uint32_t layer, uint32_t n, uint64_t seed,
                                    kvs_err *err)
{
    const kvs_layer_spec *s = kvs_cache_spec(c, layer);
    int64_t at = kvs_cache_length(c, layer);
    float *k = rig_rows(2 * seed, at, n, (size_t)s->n_kv_heads * s->k_dim);
    float *v = rig_rows(2 * seed + 1, at, n, (size_t)s->n_kv_heads * s->v_dim);
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = k;
    kv.v = v;
    kvs_status st = kvs_cache_append(c, layer, &kv, err);
    free(k);
    free(v);
    return st;
}

/* The same in blocks of at most `block`. */
static inline void rig_fill(kvs_cache *c, uint32_t layer, uint32_t n, uint32_t block, uint64_t seed)
{
    while (n > 0) {
        uint32_t m = n < block ? n : block;
        rig_must(rig_append(c, layer, m, seed, NULL));
        n -= m;
    }
}

/* Planes for n tokens of a layer (dense: of its dense_dtype), in one piece that free() gives back. */
static inline void *rig_planes(const kvs_layer_spec *s, int dense, uint64_t n, kvs_planes *p,
                               size_t *bytes)
{
    size_t at[7] = {0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < 6; i++) {
        kvs_codec c = i < 3 ? s->k : s->v;
        c = dense ? (kvs_codec){0, 0, 0, s->dense_dtype} : c;
        size_t dim = i < 3 ? s->k_dim : s->v_dim;
        size_t unit = c.dtype == KVS_F32 ? 4 : 2;
        size_t row = c.bits ? dim * c.bits / 8 : dim * unit;
        if (i % 3 > 0) {
            row = c.bits ? dim / c.group * unit : 0;
        }
        at[i + 1] = at[i] + (n * s->n_kv_heads * row + 7) / 8 * 8;
    }
    const bool centered = !dense && s->kind == KVS_LAYER_ATTENTION && (s->k.rotate & KVS_CENTERED);
    const size_t groups = (size_t)(n + 2 * KVS_CENTER_GROUP - 2) / KVS_CENTER_GROUP;
    const size_t centers = groups * s->n_kv_heads * s->k_dim * (s->k.dtype == KVS_F32 ? 4 : 2);
    *bytes = at[6] + (centered ? centers : 0);
    unsigned char *base = rig_alloc(*bytes);
    memset(base + at[6], 0, *bytes - at[6]); /* an export may have fewer groups */
    kvs_planes init = KVS_PLANES_INIT;
    *p = init;
    for (int i = 0; i < 3; i++) {
        p->k[i] = at[i + 1] > at[i] ? base + at[i] : NULL;
        p->v[i] = at[i + 4] > at[i + 3] ? base + at[i + 3] : NULL;
    }
    p->k_center = centered ? base + at[6] : NULL;
    return base;
}

/* Does the layer hold its tokens dense now? */
static inline int rig_is_dense(const kvs_cache *c, uint32_t layer)
{
    return kvs_cache_length(c, layer) <= (int64_t)kvs_cache_spec(c, layer)->dense_until;
}

static inline void *rig_export(const kvs_cache *c, uint32_t layer, int64_t begin, uint64_t n,
                               size_t *bytes)
{
    kvs_planes p;
    void *base = rig_planes(kvs_cache_spec(c, layer), rig_is_dense(c, layer), n, &p, bytes);
    rig_must(kvs_cache_export(c, layer, begin, n, &p, NULL));
    return base;
}

/* Everything that can be seen of a cache without an attention read. */
typedef struct rig_snap {
    uint32_t n_layers;
    int64_t length[RIG_ALL_LAYERS];
    int64_t oldest[RIG_ALL_LAYERS];
    size_t held[RIG_ALL_LAYERS];
    size_t n[RIG_ALL_LAYERS][2]; /* of the sinks, of the rest */
    void *bytes[RIG_ALL_LAYERS][2];
} rig_snap;

static inline void rig_snap_take(rig_snap *s, const kvs_cache *c)
{
    memset(s, 0, sizeof *s);
    s->n_layers = kvs_cache_n_layers(c);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        int64_t sinks = (int64_t)kvs_cache_spec(c, i)->sinks;
        s->length[i] = kvs_cache_length(c, i);
        s->oldest[i] = kvs_cache_oldest(c, i);
        s->held[i] = kvs_cache_bytes(c, i);
        sinks = sinks < s->oldest[i] ? sinks : s->oldest[i];
        s->bytes[i][0] = rig_export(c, i, 0, (uint64_t)sinks, &s->n[i][0]);
        s->bytes[i][1] =
            rig_export(c, i, s->oldest[i], (uint64_t)(s->length[i] - s->oldest[i]), &s->n[i][1]);
    }
}

static inline void rig_snap_drop(rig_snap *s)
{
    for (uint32_t i = 0; i < s->n_layers; i++) {
        free(s->bytes[i][0]);
        free(s->bytes[i][1]);
    }
}

/* 1 if the cache still looks as it did. */
static inline int rig_snap_same(const rig_snap *s, const kvs_cache *c)
{
    rig_snap now;
    rig_snap_take(&now, c);
    int same = now.n_layers == s->n_layers;
    for (uint32_t i = 0; same && i < s->n_layers; i++) {
        same = now.length[i] == s->length[i] && now.oldest[i] == s->oldest[i] &&
               now.held[i] == s->held[i];
        for (int j = 0; same && j < 2; j++) {
            same = now.n[i][j] == s->n[i][j] &&
                   memcmp(now.bytes[i][j], s->bytes[i][j], s->n[i][j]) == 0;
        }
    }
    rig_snap_drop(&now);
    return same;
}

/* Reads with the newest n queries (or those at q_pos) into a new array [n][q_heads][v_dim] f32. */
static inline kvs_attend rig_query(const kvs_layer_spec *s, uint32_t n, uint32_t rep, int64_t q_pos,
                                   float **q, float **out)
{
    kvs_attend d = KVS_ATTEND_INIT;
    d.n_queries = n;
    d.n_q_heads = s->n_kv_heads * rep;
    *q = rig_rows(77, 0, n, (size_t)d.n_q_heads * s->k_dim);
    *out = rig_alloc((size_t)n * d.n_q_heads * s->v_dim * sizeof **out);
    d.q = *q;
    d.out = *out;
    d.scale = 0.125f;
    d.q_pos = q_pos;
    return d;
}

static inline float *rig_read(kvs_cache *c, uint32_t layer, uint32_t n, uint32_t rep)
{
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(kvs_cache_spec(c, layer), n, rep, -1, &q, &out);
    rig_must(kvs_cache_attend(c, layer, &d, NULL));
    free(q);
    return out;
}

#endif
