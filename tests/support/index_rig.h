/* SPDX-License-Identifier: MIT */
/* index_rig.h: a prefix index over caches of one or two layers, after cmocka.h: texts are the first
 * tokens of `ids`. */
#ifndef KVS_TESTS_SUPPORT_INDEX_RIG_H
#define KVS_TESTS_SUPPORT_INDEX_RIG_H

#include <stdint.h>

#define RIG_PAGED
#include "store/prefix_priv.h"
#include "support/cache_rig.h"

static int32_t ids[4200];

typedef struct rig {
    kvs_ctx *ctx;
    kvs_pages *pages;
    kvs_prefix *ix;
    kvs_layer_spec spec[2];
    uint32_t n_layers;
    uint32_t max_block;
} rig;

static inline kvs_cache *new_cache(rig *r)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    o.n_layers = r->n_layers;
    o.layers = r->spec;
    o.pages = r->pages;
    assert_int_equal(kvs_cache_new(r->ctx, &o, &c, NULL), KVS_OK);
    return c;
}

static inline void open_rig(rig *r, uint32_t block, uint32_t window, uint32_t sinks,
                            uint32_t max_block, const kvs_prefix_opts *opts)
{
    for (size_t i = 0; i < KVS_COUNT(ids); i++) {
        ids[i] = (int32_t)(rig_mix(i) % 1000);
    }
    r->ctx = rig_ctx(1, 0);
    r->pages = rig_pages(r->ctx, block, 0);
    r->spec[0] = rig_spec(1, 16, 16, "f16", "f16");
    r->spec[0].layout = KVS_LAYOUT_PAGED;
    r->spec[1] = r->spec[0];
    r->spec[1].window = window;
    r->spec[1].sinks = sinks;
    r->spec[1].max_block = max_block;
    r->n_layers = window ? 2 : 1;
    r->max_block = window ? max_block : 64;
    kvs_cache *like = new_cache(r);
    assert_int_equal(kvs_prefix_new(r->ctx, like, opts, &r->ix, NULL), KVS_OK);
    kvs_cache_free(like);
}

static inline void close_rig(rig *r)
{
    assert_true(kvs__prefix_check(r->ix));
    kvs_prefix_free(r->ix);
    kvs_pages_free(r->pages);
    kvs_ctx_free(r->ctx);
}

static inline void fill_to(rig *r, kvs_cache *c, uint32_t n)
{
    uint32_t have = (uint32_t)kvs_cache_length(c, 0);
    for (uint32_t l = 0; l < r->n_layers; l++) {
        rig_fill(c, l, n - have, r->max_block, l + 1);
    }
}

static inline kvs_prefix_key key_of(size_t n)
{
    kvs_prefix_key k = {NULL, "t", 1, ids, n};
    return k;
}

static inline void publish(rig *r, kvs_cache *c, size_t n, const kvs_prefix_publish_opts *o)
{
    kvs_prefix_key k = key_of(n);
    size_t stored = 0;
    assert_int_equal(kvs_prefix_publish(r->ix, &k, c, o, &stored, NULL), KVS_OK);
    assert_int_equal(stored, n);
}

static inline size_t found(rig *r, size_t n, kvs_prefix_hit *hit)
{
    kvs_prefix_hit h = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_prefix_key k = key_of(n);
    kvs_status st = kvs_prefix_lookup(r->ix, &k, 0, &lease, &h, NULL);
    assert_int_equal(st, h.n_tokens > 0 ? KVS_OK : KVS_NO);
    if (lease) { /* what was promised can be attached, and nothing less */
        kvs_cache *c = new_cache(r);
        assert_int_equal(kvs_prefix_attach(lease, c, NULL), KVS_OK);
        assert_int_equal(kvs_cache_length(c, 0), h.n_tokens);
        assert_int_equal(kvs_prefix_attach(lease, c, NULL), KVS_E_STATE);
        kvs_cache_free(c);
        kvs_prefix_release(lease);
    }
    if (hit) {
        *hit = h;
    }
    return h.n_tokens;
}

#endif
