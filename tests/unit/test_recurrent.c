/* SPDX-License-Identifier: MIT */
/* test_recurrent.c: the calls of recurrent.h, and recurrent layers under the calls of cache.h. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "diff/rec_drive.h"
#include "kern/math.h"
#include "state/layer.h"
#include "support/fail_alloc.h"

static kvs_recurrent_spec delta_spec(uint32_t undo, uint32_t interval)
{
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT;
    s.n_heads = 4;
    s.n_groups = 2;
    s.head_dim = 24;
    s.state_dim = 16;
    s.conv_dim = (uint32_t)rec_sizes_of(&s).conv;
    s.conv_taps = 4;
    s.conv_dtype = KVS_BF16;
    s.undo_tokens = undo;
    s.undo_interval = interval;
    return s;
}

static kvs_recurrent_spec ssd_spec(uint32_t undo, uint32_t interval)
{
    kvs_recurrent_spec s = delta_spec(undo, interval);
    s.rule = KVS_RECURRENT_SSD;
    s.head_dim = 64;
    s.n_heads = 6;
    s.conv_dim = (uint32_t)rec_sizes_of(&s).conv;
    s.conv_dtype = KVS_F32;
    return s;
}

static kvs_layer_spec layer_of(const kvs_recurrent_spec *s)
{
    kvs_layer_spec l = KVS_LAYER_SPEC_INIT;
    l.kind = KVS_LAYER_RECURRENT;
    l.recurrent = s;
    return l;
}

static kvs_cache *cache_of(kvs_ctx *ctx, const kvs_recurrent_spec *s)
{
    kvs_layer_spec l = layer_of(s);
    return rig_cache(ctx, &l, 1, 0);
}

static kvs_status try_new(kvs_ctx *ctx, const kvs_layer_spec *l, kvs_err *err)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    o.n_layers = 1;
    o.layers = l;
    memset(err, 0, sizeof *err);
    kvs_status st = kvs_cache_new(ctx, &o, &c, err);
    assert_true(st != KVS_OK || c);
    kvs_cache_free(c);
    return st;
}

#define SEEN 70

static void ids_from(uint64_t *ids, uint64_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = first + i;
    }
}

/* Appends SEEN tokens in chunks and returns y, conv and the planes in one piece. */
static float *run_chunks(kvs_ctx *ctx, const kvs_recurrent_spec *s, uint32_t chunk, size_t *bytes)
{
    rec_sizes z = rec_sizes_of(s);
    rec_weights w = rec_weights_new(s, 7);
    kvs_cache *c = cache_of(ctx, s);
    uint64_t ids[SEEN];
    ids_from(ids, 0, SEEN);
    size_t planes_bytes = 0;
    float *y = rig_alloc(SEEN * z.value * 4);
    float *conv = rig_alloc(SEEN * z.conv * 4);
    for (uint32_t at = 0; at < SEEN; at += chunk) {
        uint32_t n = SEEN - at < chunk ? SEEN - at : chunk;
        rig_must(rec_drive(c, 0, &w, ids + at, n, conv + at * z.conv, y + at * z.value, NULL));
    }
    void *planes = rec_export(c, 0, SEEN, &planes_bytes);
    *bytes = SEEN * (z.value + z.conv) * 4 + planes_bytes;
    unsigned char *all = rig_alloc(*bytes);
    memcpy(all, y, SEEN * z.value * 4);
    memcpy(all + SEEN * z.value * 4, conv, SEEN * z.conv * 4);
    memcpy(all + SEEN * (z.value + z.conv) * 4, planes, planes_bytes);
    free(y);
    free(conv);
    free(planes);
    kvs_cache_free(c);
    rec_weights_free(&w);
    return (float *)(void *)all;
}

static void test_chunks_threads_tiers(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 2, 3, 7, 64, SEEN};
    static const uint32_t offs[] = {0, KVS_TIER_AVX512, KVS_TIER_ALL};
    for (int rule = 0; rule < 2; rule++) {
        kvs_recurrent_spec s = rule ? ssd_spec(5, 2) : delta_spec(5, 2);
        size_t want_bytes = 0;
        size_t bytes = 0;
        kvs_ctx *one = rig_ctx(1, KVS_TIER_ALL);
        float *want = run_chunks(one, &s, SEEN, &want_bytes);
        kvs_ctx_free(one);
        for (size_t i = 0; i < 3 * KVS_COUNT(chunks); i++) {
            kvs_ctx *ctx = rig_ctx(1 + (uint32_t)(i % 4), offs[i % 3]);
            float *got = run_chunks(ctx, &s, chunks[i / 3], &bytes);
            assert_int_equal(bytes, want_bytes);
            assert_memory_equal(got, want, bytes);
            free(got);
            kvs_ctx_free(ctx);
        }
        free(want);
    }
}

/* f32 in the order of numerics.md, and f64: the first bit for bit, the second within a bound. */
static void check_model(const kvs_recurrent_spec *s)
{
    rec_sizes z = rec_sizes_of(s);
    kvs_ctx *ctx = rig_ctx(2, 0);
    kvs_cache *c = cache_of(ctx, s);
    rec_model *m = rec_model_new(s, 7);
    double *y64 = rig_alloc(z.value * sizeof *y64);
    float *conv = rig_alloc(z.conv * 4);
    float *y = rig_alloc(z.value * 4);
    float *want_conv = rig_alloc(z.conv * 4);
    float *want_y = rig_alloc(z.value * 4);
    double worst = 0;
    double size = 0;
    for (uint64_t id = 0; id < 200; id++) {
        rig_must(rec_drive(c, 0, &m->w, &id, 1, conv, y, NULL));
        rec_model_token(m, id, want_conv, want_y, y64);
        assert_memory_equal(y, want_y, z.value * 4);
        assert_memory_equal(conv, want_conv, z.conv * 4);
        for (size_t i = 0; i < z.value; i++) {
            worst = fmax(worst, fabs((double)y[i] - y64[i]));
            size = fmax(size, fabs(y64[i]));
        }
    }
    printf("y against f64: worst error %.3g of values up to %.3g\n", worst, size);
    assert_true(size > 0.1);
    assert_true(worst < 2e-6 * size);
    free(y64);
    free(conv);
    free(y);
    free(want_conv);
    free(want_y);
    rec_model_free(m);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

static void test_model(void **state)
{
    (void)state;
    kvs_recurrent_spec d = delta_spec(0, 0);
    kvs_recurrent_spec s = ssd_spec(0, 0);
    check_model(&d);
    check_model(&s);
}

static void test_softplus(void **state)
{
    (void)state;
    double worst = 0;
    double worst_sigmoid = 0;
    uint64_t n = 0;
    for (uint32_t bits = 0x30000000u; bits < 0x42ac0000u; bits += 197) { /* up to 86 */
        for (uint32_t sign = 0; sign < 2; sign++, n++) {
            float x = kvs__f32_bits(bits | sign << 31);
            double exact = x > 0 ? (double)x + log1p(exp(-(double)x)) : log1p(exp((double)x));
            worst = fmax(worst, fabs((double)kvs__softplus(x) - exact) / exact);
            double sigmoid = 1 / (1 + exp(-(double)x));
            worst_sigmoid = fmax(worst_sigmoid, fabs((double)kvs__sigmoid(x) - sigmoid) / sigmoid);
        }
    }
    printf("softplus, sigmoid: %llu values, worst error %.3f u, %.3f u\n", (unsigned long long)n,
           worst / 0x1p-24, worst_sigmoid / 0x1p-24);
    assert_true(n > 3000000);
    assert_true(worst <= 4.5 * 0x1p-24);
    assert_true(worst_sigmoid <= 4.5 * 0x1p-24);
    assert_true(isinf(kvs__softplus(INFINITY)) && kvs__softplus(-INFINITY) == 0.0f);
    assert_true(kvs__softplus(1e30f) == 1e30f && kvs__softplus(-100.0f) == 0.0f);
    assert_int_equal(kvs__bits_f32(kvs__softplus(-NAN)), KVS__NAN_BITS);
    assert_true(kvs__sigmoid(-200.0f) == 0.0f && kvs__sigmoid(200.0f) == 1.0f);
}

/* -- specs */

typedef struct bad_spec {
    size_t offset;
    uint32_t value;
    const char *says;
    kvs_status status;
} bad_spec;

static void test_bad_specs(void **state)
{
    (void)state;
#define AT(field) offsetof(kvs_recurrent_spec, field)
    static const bad_spec bad[] = {
        {AT(rule), 2, "rule 2", KVS_E_INVAL},
        {AT(n_heads), 0, "0 heads", KVS_E_INVAL},
        {AT(n_heads), 65538, "65538 heads", KVS_E_INVAL},
        {AT(n_groups), 0, "0 groups", KVS_E_INVAL},
        {AT(n_groups), 3, "3 groups", KVS_E_INVAL},
        {AT(head_dim), 0, "head_dim 0", KVS_E_INVAL},
        {AT(head_dim), 1025, "head_dim 1025", KVS_E_INVAL},
        {AT(state_dim), 18, "state_dim 18", KVS_E_INVAL},
        {AT(state_dim), 1028, "state_dim 1028", KVS_E_INVAL},
        {AT(conv_taps), 0, "0 taps", KVS_E_INVAL},
        {AT(conv_taps), 1, "1 taps", KVS_E_INVAL},
        {AT(conv_taps), 17, "17 taps", KVS_E_INVAL},
        {AT(conv_dim), 0, "0 channels", KVS_E_INVAL},
        {AT(conv_dtype), 3, "conv_dtype 3", KVS_E_INVAL},
        {AT(undo_tokens), 65537, "undo_tokens 65537", KVS_E_RANGE},
        {AT(undo_interval), 65537, "undo_interval 65537", KVS_E_RANGE},
        {AT(undo_tokens), 0, "without undo_tokens", KVS_E_INVAL},
    };
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_err err;
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        kvs_recurrent_spec s = delta_spec(4, 2);
        memcpy((char *)&s + bad[i].offset, &bad[i].value, sizeof bad[i].value);
        kvs_layer_spec l = layer_of(&s);
        assert_int_equal(try_new(ctx, &l, &err), bad[i].status);
        assert_non_null(strstr(err.msg, bad[i].says));
        assert_non_null(strstr(err.msg, "layer 0"));
    }
    kvs_recurrent_spec s = delta_spec(4, 2);
    kvs_layer_spec l = layer_of(&s);
    assert_int_equal(try_new(ctx, &l, &err), KVS_OK);
    l.window = 8;
    assert_int_equal(try_new(ctx, &l, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "window 8"));
    l = layer_of(NULL);
    assert_int_equal(try_new(ctx, &l, &err), KVS_E_INVAL);
    l = rig_spec(1, 16, 16, "f16", "f16");
    l.recurrent = &s;
    assert_int_equal(try_new(ctx, &l, &err), KVS_E_INVAL);
    kvs_ctx_free(ctx);
}

/* -- undo by budget */

static kvs_recurrent_stats stats_of(kvs_ctx *ctx, const kvs_recurrent_spec *s)
{
    kvs_recurrent_stats st = KVS_RECURRENT_STATS_INIT;
    kvs_cache *c = cache_of(ctx, s);
    rig_must(kvs_recurrent_get_stats(c, 0, &st));
    kvs_cache_free(c);
    return st;
}

static void test_budget(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT; /* a Qwen3-Next layer */
    s.n_heads = 32;
    s.n_groups = 16;
    s.head_dim = 128;
    s.state_dim = 128;
    s.conv_dim = 8192;
    s.conv_taps = 4;
    s.conv_dtype = KVS_BF16;
    kvs_recurrent_stats none = stats_of(ctx, &s);
    assert_int_equal(none.interval, 0);
    assert_int_equal(none.undo_bytes, 0);
    s.undo_tokens = 8;
    kvs_recurrent_stats least = stats_of(ctx, &s);
    assert_int_equal(least.undo_bytes, least.undo_bytes_least);
    assert_int_equal(least.state_bytes, none.state_bytes);
    assert_true(least.interval > 1);
    s.undo_bytes = least.undo_bytes_1;
    kvs_recurrent_stats planes = stats_of(ctx, &s);
    assert_int_equal(planes.interval, 1);
    assert_int_equal(planes.undo_bytes, least.undo_bytes_1);
    printf("undo of 8 tokens, MiB a layer: state %.2f, every token %.2f, interval %u %.2f\n",
           (double)none.state_bytes / 0x1p20, (double)planes.undo_bytes / 0x1p20, least.interval,
           (double)least.undo_bytes / 0x1p20);
    assert_true(planes.undo_bytes > 2 * least.undo_bytes);
    s.undo_bytes = least.undo_bytes_1 - 1;
    assert_true(stats_of(ctx, &s).interval > 1);
    assert_true(stats_of(ctx, &s).undo_bytes <= s.undo_bytes);
    s.undo_bytes = least.undo_bytes_least - 1;
    kvs_layer_spec l = layer_of(&s);
    kvs_err err;
    assert_int_equal(try_new(ctx, &l, &err), KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "undo of 8 tokens"));
    kvs_ctx_free(ctx);
}

static void test_plan(void **state)
{
    (void)state;
    static const uint32_t policy[][2] = {{0, 0}, {1, 1}, {6, 1}, {6, 2}, {6, 6}, {6, 9}, {6, 0}};
    for (size_t i = 0; i < 2 * KVS_COUNT(policy); i++) {
        const uint32_t *p = policy[i / 2];
        uint64_t reserve = i % 2;
        kvs_recurrent_spec s = delta_spec(p[0], p[1]);
        kvs_layer_spec specs[2] = {layer_of(&s), rig_spec(2, 16, 16, "f32", "f16")};
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        o.n_layers = 2;
        o.layers = specs;
        o.reserve_tokens = reserve;
        size_t all = 0;
        size_t part[2] = {0, 0};
        kvs_cache *c = rig_cache(ctx, specs, 2, reserve);
        rec_weights w = rec_weights_new(&s, 7);
        uint64_t id = 0;
        rig_must(kvs_cache_plan(&o, 0, &all, part, NULL));
        assert_int_equal(kvs_cache_bytes(c, 0), part[0]);
        for (uint64_t n = 1; n < 30; n++) {
            rig_must(rec_drive(c, 0, &w, &id, 1, NULL, NULL, NULL));
            rig_must(kvs_cache_plan(&o, n, &all, part, NULL));
            assert_int_equal(kvs_cache_bytes(c, 0), part[0]);
        }
        rig_fill(c, 1, 29, 29, 3);
        assert_int_equal(kvs_cache_bytes(c, KVS_ALL_LAYERS), all);
        rig_must(kvs_cache_clear(c, NULL));
        rig_must(kvs_cache_plan(&o, 0, &all, part, NULL));
        assert_int_equal(kvs_cache_bytes(c, 0), part[0]);
        assert_int_equal(kvs_cache_length(c, 0), 0);
        rec_weights_free(&w);
        kvs_cache_free(c);
        kvs_ctx_free(ctx);
    }
}

/* -- the calls of cache.h */

static void test_refused(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = delta_spec(3, 0);
    kvs_layer_spec specs[2] = {layer_of(&s), rig_spec(1, 16, 16, "f16", "f16")};
    kvs_cache *c = rig_cache(ctx, specs, 2, 0);
    float x[64] = {0};
    kvs_err err;
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = 1;
    kv.k = x;
    kv.v = x;
    assert_int_equal(kvs_cache_append(c, 0, &kv, &err), KVS_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "layer 0 is recurrent"));
    kvs_attend at = KVS_ATTEND_INIT;
    assert_int_equal(kvs_cache_attend(c, 0, &at, NULL), KVS_E_UNSUPPORTED);
    kvs_view *v = NULL;
    assert_int_equal(kvs_view_new(c, 0, &v, NULL), KVS_E_UNSUPPORTED);
    uint32_t n = 0;
    assert_int_equal(kvs_cache_spans(c, 0, 0, 0, NULL, 0, &n, NULL), KVS_E_UNSUPPORTED);
    kvs_planes p = KVS_PLANES_INIT;
    assert_int_equal(kvs_cache_export(c, 0, 0, 0, &p, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_import(c, 0, 0, 1, &p, NULL), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_cache_convert(c, 0, &specs[1].k, &specs[1].v, NULL), KVS_E_UNSUPPORTED);
    kvs_step st = KVS_STEP_INIT;
    assert_int_equal(kvs_step_plan(c, 0, &st, NULL), KVS_E_UNSUPPORTED);
    kvs_recurrent_stats rs = KVS_RECURRENT_STATS_INIT;
    assert_int_equal(kvs_recurrent_get_stats(c, 1, &rs), KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_recurrent_get_stats(c, 2, &rs), KVS_E_RANGE);
    assert_int_equal(kvs_recurrent_kept(c, 1, 0), -1);
    char name[128];
    (void)kvs_cache_signature(c, 0, name, sizeof name);
    assert_string_equal(name, "recurrent delta heads=4/2 dims=24/16 conv=4x160:bf16 undo=3/3");
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

static void test_bad_steps(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = delta_spec(0, 0);
    kvs_cache *c = cache_of(ctx, &s);
    static float x[1024];
    kvs_err err;
    kvs_recurrent_conv_desc d = KVS_RECURRENT_CONV_DESC_INIT;
    d.n_tokens = 1;
    d.x = x;
    d.weight = x;
    d.out = x + 512;
    assert_int_equal(kvs_recurrent_conv(c, 0, &d, NULL), KVS_OK);
    d.x_stride = 100;
    assert_int_equal(kvs_recurrent_conv(c, 0, &d, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "x_stride 100"));
    d.x_stride = 0;
    d.flags = 2;
    assert_int_equal(kvs_recurrent_conv(c, 0, &d, NULL), KVS_E_UNSUPPORTED);
    d.flags = 0;
    d.n_tokens = 0;
    assert_int_equal(kvs_recurrent_conv(c, 0, &d, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_recurrent_conv(c, 0, NULL, NULL), KVS_E_INVAL);
    kvs_recurrent_step good = KVS_RECURRENT_STEP_INIT;
    good.n_tokens = 1;
    good.conv_x = good.q = good.k = good.v = good.a = good.b = good.decay = x;
    good.y = x + 512;
#define BAD(change, status)                                                                        \
    do {                                                                                           \
        kvs_recurrent_step p = good;                                                               \
        change;                                                                                    \
        assert_int_equal(kvs_recurrent_advance(c, 0, &p, NULL), status);                           \
        assert_int_equal(kvs_cache_length(c, 0), 0);                                               \
    } while (0)
    BAD(p.n_tokens = 0, KVS_E_INVAL);
    BAD(p.conv_x = NULL, KVS_E_INVAL);
    BAD(p.q = NULL, KVS_E_INVAL);
    BAD(p.k = NULL, KVS_E_INVAL);
    BAD(p.v = NULL, KVS_E_INVAL);
    BAD(p.a = NULL, KVS_E_INVAL);
    BAD(p.b = NULL, KVS_E_INVAL);
    BAD(p.decay = NULL, KVS_E_INVAL);
    BAD(p.d = x, KVS_E_INVAL);
    BAD(p.dt_max = 1, KVS_E_INVAL);
    BAD(p.k_stride = 31, KVS_E_INVAL);
    BAD(p.y_stride = 95, KVS_E_INVAL);
    BAD(p.reserved = 1, KVS_E_UNSUPPORTED);
    assert_int_equal(kvs_recurrent_advance(c, 0, &good, NULL), KVS_OK);
    good.y = NULL;
    good.q = NULL;
    assert_int_equal(kvs_recurrent_advance(c, 0, &good, NULL), KVS_OK);
    assert_int_equal(kvs_cache_length(c, 0), 2);
    kvs_recurrent_planes planes = KVS_RECURRENT_PLANES_INIT;
    assert_int_equal(kvs_recurrent_export(c, 0, 1, &planes, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_recurrent_export(c, 0, 3, &planes, NULL), KVS_E_RANGE);
    assert_int_equal(kvs_recurrent_export(c, 0, 2, &planes, NULL), KVS_OK);
    assert_int_equal(kvs_recurrent_import(c, 0, 2, &planes, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_recurrent_import(c, 0, -1, &planes, NULL), KVS_E_RANGE);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* All or none over an attention layer and a recurrent one that reaches less far. */
static void test_rewind_all(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = delta_spec(4, 0);
    kvs_layer_spec specs[2] = {rig_spec(1, 16, 16, "f16", "f16"), layer_of(&s)};
    kvs_cache *c = rig_cache(ctx, specs, 2, 0);
    rec_weights w = rec_weights_new(&s, 7);
    uint64_t ids[40];
    ids_from(ids, 0, 40);
    rig_fill(c, 0, 40, 40, 1);
    rig_must(rec_drive(c, 1, &w, ids, 40, NULL, NULL, NULL));
    kvs_err err;
    assert_int_equal(kvs_cache_can_rewind(c, KVS_ALL_LAYERS, 4), KVS_OK);
    assert_int_equal(kvs_cache_rewind(c, KVS_ALL_LAYERS, 30, &err), KVS_E_STATE);
    assert_non_null(strstr(err.msg, "layer 1"));
    assert_int_equal(kvs_cache_length(c, 0), 40);
    rig_must(kvs_cache_rewind(c, KVS_ALL_LAYERS, 4, NULL));
    assert_int_equal(kvs_cache_length(c, 0), 36);
    assert_int_equal(kvs_cache_length(c, 1), 36);
    assert_int_equal(kvs_cache_rewind(c, 1, 37, NULL), KVS_E_RANGE);
    rec_weights_free(&w);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* Two rows of an attention and a recurrent layer in one round of three drafts, with an acceptance
 * each, then an aborted round: all ends as if only what was kept had ever been there. */
static void test_rounds(void **state)
{
    (void)state;
    static const uint32_t accepted[] = {1, 3};
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = ssd_spec(4, 0);
    kvs_layer_spec specs[2] = {rig_spec(1, 16, 16, "f16", "f16"), layer_of(&s)};
    rec_weights w = rec_weights_new(&s, 7);
    kvs_cache *row[2];
    kvs_cache *solo[2];
    uint64_t ids[20];
    ids_from(ids, 0, 20);
    row[0] = rig_cache(ctx, specs, 2, 0);
    rig_fill(row[0], 0, 10, 10, 1);
    rig_must(rec_drive(row[0], 1, &w, ids, 10, NULL, NULL, NULL));
    rig_must(kvs_cache_fork(row[0], KVS_ALL_TOKENS, &row[1], NULL));
    for (int i = 0; i < 2; i++) {
        rig_must(kvs_cache_fork(row[0], KVS_ALL_TOKENS, &solo[i], NULL));
        rig_must(rec_drive(solo[i], 1, &w, ids + 10, accepted[i] + 1, NULL, NULL, NULL));
    }
    kvs_cache *own[2] = {row[0], row[1]};
    kvs_rows *set = NULL;
    rig_must(kvs_rows_merge(ctx, own, 2, &set, NULL));
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    o.n_drafts = 3;
    for (int round = 0; round < 2; round++) {
        rig_must(kvs_txn_begin(set, &o, NULL));
        for (int i = 0; i < 2; i++) {
            rig_fill(row[i], 0, 4, 4, 1);
            rig_must(rec_drive(row[i], 1, &w, ids + 10, 4, NULL, NULL, NULL));
            kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
            int64_t len = kvs_cache_length(row[i], 1);
            assert_int_equal(kvs_recurrent_export(row[i], 1, len, &p, NULL), KVS_E_STATE);
            assert_int_equal(rec_drive(row[i], 1, &w, ids, 1, NULL, NULL, NULL), KVS_E_LIMIT);
        }
        rig_must(round ? kvs_txn_abort(set, NULL) : kvs_txn_resolve(set, accepted, NULL));
        for (int i = 0; i < 2; i++) {
            size_t n = 0;
            int64_t len = 11 + (int64_t)accepted[i];
            assert_int_equal(kvs_cache_length(row[i], 0), len);
            assert_int_equal(kvs_cache_length(row[i], 1), len);
            void *a = rec_export(row[i], 1, len, &n);
            void *b = rec_export(solo[i], 1, len, &n);
            assert_memory_equal(a, b, n);
            free(a);
            free(b);
        }
    }
    o.n_drafts = 4; /* and the pending token: one more than undo reaches */
    assert_int_not_equal(kvs_txn_begin(set, &o, NULL), KVS_OK);
    kvs_rows_free(set);
    kvs_cache_free(solo[0]);
    kvs_cache_free(solo[1]);
    rec_weights_free(&w);
    kvs_ctx_free(ctx);
}

/* Rows of 3, 7 and 5 tokens, padded in front and behind to 8 columns, in two pieces of columns:
 * each ends with what it has alone. */
static void test_padding(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {3, 7, 5};
    static const uint32_t lefts[] = {5, 1, 2};
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = delta_spec(2, 1);
    rec_weights w = rec_weights_new(&s, 7);
    for (size_t i = 0; i < 3; i++) {
        uint64_t cols[8];
        ids_from(cols, 100 * i - lefts[i], 8);
        kvs_cache *alone = cache_of(ctx, &s);
        kvs_cache *padded = cache_of(ctx, &s);
        rig_must(rec_drive(alone, 0, &w, cols + lefts[i], lengths[i], NULL, NULL, NULL));
        kvs_recurrent_pad pad = {lefts[i] + lengths[i], lefts[i]};
        static const uint32_t pieces[] = {3, 5, 4};
        uint32_t at = 0;
        for (size_t j = 0; j < 3; j++) {
            uint32_t first = 0;
            uint32_t count = 0;
            kvs_recurrent_pad_next(&pad, pieces[j], &first, &count);
            if (count) {
                rig_must(rec_drive(padded, 0, &w, cols + at + first, count, NULL, NULL, NULL));
            }
            at += pieces[j];
        }
        assert_int_equal(kvs_cache_length(padded, 0), lengths[i]);
        assert_int_equal(pad.length, (int64_t)lefts[i] + lengths[i] - 12);
        assert_int_equal(pad.left, (int64_t)lefts[i] - 12);
        size_t n = 0;
        void *a = rec_export(alone, 0, lengths[i], &n);
        void *b = rec_export(padded, 0, lengths[i], &n);
        assert_memory_equal(a, b, n);
        free(a);
        free(b);
        kvs_cache_free(alone);
        kvs_cache_free(padded);
    }
    rec_weights_free(&w);
    kvs_ctx_free(ctx);
}

/* A NaN comes out as the one NaN and, as state, is exported as it. */
static void test_nan(void **state)
{
    (void)state;
    kvs_ctx *ctx = rig_ctx(1, 0);
    kvs_recurrent_spec s = delta_spec(0, 0);
    kvs_cache *c = cache_of(ctx, &s);
    static float x[1024];
    static float y[96];
    x[3] = kvs__f32_bits(0xffc12345u);
    kvs_recurrent_step p = KVS_RECURRENT_STEP_INIT;
    p.n_tokens = 1;
    p.conv_x = p.a = p.b = p.decay = x + 512;
    p.q = p.k = p.v = x;
    p.y = y;
    rig_must(kvs_recurrent_advance(c, 0, &p, NULL));
    size_t n = 0;
    float *planes = rec_export(c, 0, 1, &n);
    size_t nans = 0;
    for (size_t i = 0; i < 4 * 24 * 16; i++) {
        nans += planes[i] != planes[i] ? 1 : 0;
        assert_true(planes[i] == planes[i] || kvs__bits_f32(planes[i]) == KVS__NAN_BITS);
    }
    assert_true(nans > 0);
    assert_int_equal(kvs__bits_f32(y[0]), KVS__NAN_BITS);
    free(planes);
    kvs_cache_free(c);
    kvs_ctx_free(ctx);
}

/* Each allocation of a layer's life fails once. */
static kvs_status life(kvs_ctx *ctx, const kvs_recurrent_spec *s, const rec_weights *w)
{
    kvs_layer_spec l = layer_of(s);
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    kvs__rec *f = NULL;
    uint64_t ids[20];
    ids_from(ids, 0, 20);
    o.n_layers = 1;
    o.layers = &l;
    kvs_status st = kvs_cache_new(ctx, &o, &c, NULL);
    st = st == KVS_OK ? rec_drive(c, 0, w, ids, 20, NULL, NULL, NULL) : st;
    st =
        st == KVS_OK ? kvs__rec_fork(ctx, c->layer[0].rec, s->undo_tokens ? 18 : 20, &f, NULL) : st;
    if (st == KVS_OK) { /* now its snapshots are shared */
        st = rec_drive(c, 0, w, ids, 5, NULL, NULL, NULL);
        assert_int_equal(kvs_cache_length(c, 0), st == KVS_OK ? 25 : 20);
        assert_int_equal(kvs_cache_can_rewind(c, 0, s->undo_tokens), KVS_OK);
    }
    kvs__rec_free(ctx, f);
    kvs_cache_free(c);
    return st;
}

static void test_fault(void **state)
{
    (void)state;
    static const uint32_t policy[][2] = {{0, 0}, {4, 1}, {4, 2}};
    for (size_t i = 0; i < KVS_COUNT(policy); i++) {
        fail_alloc mem = FAIL_ALLOC_INIT;
        kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
        kvs_ctx *ctx = NULL;
        o.alloc = fail_alloc_take;
        o.free = fail_alloc_give;
        o.alloc_user = &mem;
        o.n_threads = 1;
        kvs_recurrent_spec s = delta_spec(policy[i][0], policy[i][1]);
        rec_weights w = rec_weights_new(&s, 7);
        long k = 0;
        kvs_status st = KVS_E_NOMEM;
        for (; st != KVS_OK; k++) {
            rig_must(kvs_ctx_new(&o, &ctx, NULL));
            size_t before = mem.live;
            mem.fail_at = mem.calls + k;
            st = life(ctx, &s, &w);
            mem.fail_at = -1;
            assert_true(st == KVS_OK || st == KVS_E_NOMEM);
            /* scratch that was reserved stays with the context */
            assert_true(mem.live <= before + kvs__ctx_scratch_bytes(ctx) + 64);
            kvs_ctx_free(ctx);
            assert_int_equal(mem.live, 0);
            assert_int_equal(mem.wrong, 0);
        }
        assert_true(k > 6);
        rec_weights_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_threads_tiers),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_softplus),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_rewind_all),
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
