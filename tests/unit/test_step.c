/* SPDX-License-Identifier: MIT */
/* test_step.c: a cache driven by plan/commit equals a twin driven by append, byte for byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/kvstate.h"

#define HEADS  2u
#define DIM    64u
#define GROUP  32u
#define BITS   4u
#define WINDOW 8u
#define WORDS  (DIM * BITS / 32)
#define GROUPS (DIM / GROUP)

typedef struct pair {
    kvs_ctx *ctx;
    kvs_cache *driven;
    kvs_cache *twin;
    uint64_t rng;
} pair;

static float draw(pair *p)
{
    p->rng = p->rng * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(p->rng >> 33) * 0x1p-30f;
}

static void setup(pair *p, kvs_layout layout, kvs_codec codec)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(kvs_ctx_new(NULL, &p->ctx, NULL), KVS_OK);
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    s.n_kv_heads = HEADS;
    s.k_dim = DIM;
    s.v_dim = DIM;
    s.k = codec;
    s.v = codec;
    s.layout = layout;
    s.window = layout == KVS_LAYOUT_RING ? WINDOW : 0;
    s.max_block = 16;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 1;
    o.layers = &s;
    assert_int_equal(kvs_cache_new(p->ctx, &o, &p->driven, NULL), KVS_OK);
    assert_int_equal(kvs_cache_new(p->ctx, &o, &p->twin, NULL), KVS_OK);
}

static void teardown(pair *p)
{
    kvs_cache_free(p->driven);
    kvs_cache_free(p->twin);
    kvs_ctx_free(p->ctx);
}

static void append(kvs_cache *c, uint32_t n, const float *k, const float *v)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = k;
    kv.v = v;
    assert_int_equal(kvs_cache_append(c, 0, &kv, NULL), KVS_OK);
}

static void compare(pair *p)
{
    int64_t len = kvs_cache_length(p->twin, 0);
    assert_int_equal(kvs_cache_length(p->driven, 0), len);
    int64_t oldest = kvs_cache_oldest(p->twin, 0);
    assert_int_equal(kvs_cache_oldest(p->driven, 0), oldest);
    uint64_t n = (uint64_t)(len - oldest);
    static unsigned char a[6][HEADS * 64 * DIM * 4];
    static unsigned char b[6][HEADS * 64 * DIM * 4];
    kvs_planes pa = KVS_PLANES_INIT;
    kvs_planes pb = KVS_PLANES_INIT;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (int i = 0; i < 3; i++) {
        pa.k[i] = a[i];
        pa.v[i] = a[i + 3];
        pb.k[i] = b[i];
        pb.v[i] = b[i + 3];
    }
    assert_int_equal(kvs_cache_export(p->driven, 0, oldest, n, &pa, NULL), KVS_OK);
    assert_int_equal(kvs_cache_export(p->twin, 0, oldest, n, &pb, NULL), KVS_OK);
    assert_memory_equal(a, b, sizeof a);
}

static void encode(const pair *p, const kvs_codec *c, const float *x, unsigned char out[3][2048])
{
    assert_int_equal(kvs_codec_encode(p->ctx, c, DIM, HEADS, x, KVS_F32, out[0],
                                      c->bits ? out[1] : NULL, c->bits ? out[2] : NULL, NULL),
                     KVS_OK);
}

static void one_step(pair *p, const kvs_codec *c, bool ring)
{
    float k[HEADS * DIM];
    float v[HEADS * DIM];
    for (size_t i = 0; i < HEADS * DIM; i++) {
        k[i] = draw(p);
        v[i] = draw(p);
    }
    int64_t len = kvs_cache_length(p->driven, 0);
    kvs_fetch phase = KVS_FETCH_CONCAT;
    kvs_step s = KVS_STEP_INIT;
    assert_int_equal(kvs_step_phase(p->driven, 0, &phase, NULL), KVS_OK);
    assert_int_equal(kvs_step_plan(p->driven, 0, &s, NULL), KVS_OK);
    assert_int_equal(s.fetch, phase);
    assert_int_equal(phase, ring && len + 1 >= (int64_t)WINDOW ? KVS_FETCH_RING : KVS_FETCH_CONCAT);
    assert_int_equal(s.position, len);
    assert_int_equal(kvs_cache_length(p->driven, 0), len);
    uint64_t active = ring && len > (int64_t)WINDOW - 1 ? WINDOW - 1 : (uint64_t)len;
    assert_int_equal(s.active, active);
    assert_string_equal(s.key, phase == KVS_FETCH_RING ? (c->bits ? "q-ring:32:4" : "p-ring:0:0")
                                                       : (c->bits ? "q-cat:32:4" : "p-cat:0:0"));
    assert_int_equal(s.n_outputs, c->bits ? 6 : 2);
    kvs_span spans[8];
    uint32_t n = 0;
    assert_int_equal(kvs_step_inputs(p->driven, 0, &s, spans, 8, &n, NULL), KVS_OK);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < n; i++) {
        tokens += spans[i].n_tokens;
    }
    assert_int_equal(tokens, active);
    static unsigned char ek[3][2048];
    static unsigned char ev[3][2048];
    encode(p, c, k, ek);
    encode(p, c, v, ev);
    kvs_planes row = KVS_PLANES_INIT;
    for (int i = 0; i < 3; i++) {
        row.k[i] = ek[i];
        row.v[i] = ev[i];
    }
    assert_int_equal(kvs_step_commit(p->driven, 0, &s, &row, NULL), KVS_OK);
    kvs_err err = {KVS_OK, 0, "", ""};
    assert_int_equal(kvs_step_commit(p->driven, 0, &s, &row, &err), KVS_E_STATE);
    assert_non_null(strstr(err.msg, "planned at position"));
    append(p->twin, 1, k, v);
    compare(p);
}

static void drive(kvs_layout layout, kvs_codec codec, uint32_t prefill)
{
    pair p;
    setup(&p, layout, codec);
    kvs_step s = KVS_STEP_INIT;
    assert_int_equal(kvs_step_plan(p.driven, 0, &s, NULL), KVS_E_STATE);
    float k[16 * HEADS * DIM];
    float v[16 * HEADS * DIM];
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        k[i] = draw(&p);
        v[i] = draw(&p);
    }
    append(p.driven, prefill, k, v);
    append(p.twin, prefill, k, v);
    for (int i = 0; i < 14; i++) {
        one_step(&p, &codec, layout == KVS_LAYOUT_RING);
    }
    teardown(&p);
}

static void test_driven_equals_twin(void **state)
{
    (void)state;
    kvs_codec codecs[] = {KVS_CODEC_AFFINE(BITS, GROUP, KVS_BF16), KVS_CODEC_DENSE(KVS_F16)};
    for (size_t c = 0; c < 2; c++) {
        for (int layout = 0; layout < 2; layout++) {
            drive((kvs_layout)layout, codecs[c], 3);
            drive((kvs_layout)layout, codecs[c], 12);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_driven_equals_twin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
