/* SPDX-License-Identifier: MIT */
/* hybrid_rig.h: for tests of caches with layers of keys and values and recurrent ones: 0 sees all, f32;
 * 1 as asked; 2 gated delta behind a convolution of 5 channels; 3 Mamba-2 without one. */
#ifndef KVS_TESTS_SUPPORT_HYBRID_RIG_H
#define KVS_TESTS_SUPPORT_HYBRID_RIG_H

#include "support/cache_rig.h"

#define HYBRID_LAYERS 4
#define HYBRID_DIM    32
#define HYBRID_DELTA  272 /* bytes of layer 2: a tail of 30, 2 of zeros, a state of 240 */
#define HYBRID_SSD    48  /* of layer 3 */

static inline void hybrid_specs(kvs_layer_spec *l, kvs_recurrent_spec *r, const char *k,
                                uint32_t window, uint32_t undo)
{
    l[0] = rig_spec(1, 16, 16, "f32", "f16");
    l[1] = rig_spec(2, HYBRID_DIM, HYBRID_DIM, k, "f16");
    if (window) {
        l[1] = rig_ring(l[1], window, 3, 16);
    }
    for (int i = 0; i < 2; i++) {
        r[i] = (kvs_recurrent_spec)KVS_RECURRENT_SPEC_INIT;
        l[2 + i] = (kvs_layer_spec)KVS_LAYER_SPEC_INIT;
        l[2 + i].kind = KVS_LAYER_RECURRENT;
        l[2 + i].recurrent = &r[i];
        r[i].n_groups = 1;
        r[i].state_dim = 4;
        r[i].undo_tokens = undo;
    }
    r[0].rule = KVS_RECURRENT_GATED_DELTA;
    r[0].n_heads = 3;
    r[0].head_dim = 5;
    r[0].conv_dim = 5;
    r[0].conv_taps = 4;
    r[0].conv_dtype = KVS_F16;
    r[1].rule = KVS_RECURRENT_SSD;
    r[1].n_heads = 1;
    r[1].head_dim = 3;
}

/* Numbers that depend on text, layer and position alone, so that any calls give the same state. */
static inline void hybrid_advance(kvs_cache *c, uint32_t layer, int64_t pos, uint64_t text)
{
    static const float decay[3] = {-0.05f, -0.1f, -0.2f};
    const kvs_recurrent_spec *s = kvs_cache_spec(c, layer)->recurrent;
    float x[64];
    kvs_recurrent_step st = KVS_RECURRENT_STEP_INIT;
    for (int i = 0; i < 64; i++) {
        x[i] = rig_value(text * 8 + layer, (uint64_t)pos * 64 + (uint64_t)i);
    }
    st.n_tokens = 1;
    st.conv_x = s->conv_dim ? x : NULL;
    st.k = x + 8;
    st.v = x + 16;
    st.a = x + 40;
    st.b = s->rule == KVS_RECURRENT_SSD ? NULL : x + 48;
    st.decay = decay;
    rig_must(kvs_recurrent_advance(c, layer, &st, NULL));
}

static inline void hybrid_planes(const kvs_cache *c, uint32_t layer, int64_t at, unsigned char *dst)
{
    kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
    memset(dst, 0, HYBRID_DELTA);
    p.conv = layer == 2 ? dst : NULL;
    p.state = (float *)(void *)(dst + (layer == 2 ? 32 : 0));
    rig_must(kvs_recurrent_export(c, layer, at, &p, NULL));
}

/* All that both store is equal: the recurrent layers, and what neither window dropped. */
static inline void hybrid_same(const kvs_cache *a, const kvs_cache *b)
{
    for (uint32_t i = 0; i < HYBRID_LAYERS; i++) {
        int64_t n = kvs_cache_length(a, i);
        assert_int_equal(n, kvs_cache_length(b, i));
        if (i >= 2) {
            _Alignas(8) unsigned char x[HYBRID_DELTA];
            _Alignas(8) unsigned char y[HYBRID_DELTA];
            hybrid_planes(a, i, n, x);
            hybrid_planes(b, i, n, y);
            assert_memory_equal(x, y, sizeof x);
            continue;
        }
        int64_t from = kvs_cache_oldest(a, i);
        from = from > kvs_cache_oldest(b, i) ? from : kvs_cache_oldest(b, i);
        size_t nx = 0;
        size_t ny = 0;
        void *x = rig_export(a, i, from, (uint64_t)(n - from), &nx);
        void *y = rig_export(b, i, from, (uint64_t)(n - from), &ny);
        assert_int_equal(nx, ny);
        assert_memory_equal(x, y, nx);
        free(x);
        free(y);
    }
}

/* Little-endian numbers of n bytes. */
static inline uint64_t le(const void *at, size_t n)
{
    const unsigned char *p = at;
    uint64_t x = 0;
    while (n-- > 0) {
        x = x << 8 | p[n];
    }
    return x;
}

static inline void put_le(unsigned char *p, uint64_t x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        p[i] = (unsigned char)(x >> 8 * i);
    }
}

#endif
