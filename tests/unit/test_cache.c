/* SPDX-License-Identifier: MIT */
/* test_cache.c: every way to call the cache wrongly: the documented status, a message that names
 * the value, and a cache that is byte for byte what it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "support/cache_rig.h"

/* Layer 0 grows, layer 1 is a ring of window 8, 2 sinks and blocks of 4, layer 2 is dense below 20,
 * layer 3 is empty. */
typedef struct rig {
    kvs_ctx *ctx;
    kvs_cache *c;
    size_t live;
    rig_snap before;
} rig;

static int setup(void **state)
{
    rig *r = rig_alloc(sizeof *r);
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.max_bytes = (size_t)1 << 30; /* what no machine has is refused here too */
    rig_must(kvs_ctx_new(&o, &r->ctx, NULL));
    kvs_layer_spec s[4];
    s[0] = rig_spec(2, 64, 32, "affine4:32", "f16");
    s[1] = rig_ring(rig_spec(2, 32, 64, "f32", "q8"), 8, 2, 4);
    s[2] = rig_spec(1, 64, 64, "q4", "bf16");
    s[2].dense_until = 20;
    s[3] = s[0];
    r->c = rig_cache(r->ctx, s, 4, 0);
    rig_fill(r->c, 0, 40, 40, 1);
    rig_fill(r->c, 1, 50, 4, 1);
    rig_fill(r->c, 2, 18, 18, 1);
    r->live = rig_live(r->ctx);
    rig_snap_take(&r->before, r->c);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig *r = *state;
    rig_snap_drop(&r->before);
    kvs_cache_free(r->c);
    kvs_ctx_free(r->ctx);
    free(r);
    return 0;
}

static void check_refused(rig *r, kvs_status got, kvs_status want, const kvs_err *err,
                          const char *word, int line)
{
    if (got != want || err->status != want || !strstr(err->msg, word) ||
        !rig_snap_same(&r->before, r->c) || rig_live(r->ctx) != r->live) {
        fail_msg("line %d: %s (%s), wanted %s with \"%s\"; %s, %zu bytes live of %zu", line,
                 kvs_status_name(got), err->msg, kvs_status_name(want), word,
                 rig_snap_same(&r->before, r->c) ? "unchanged" : "CHANGED", rig_live(r->ctx),
                 r->live);
    }
}

/* `call` uses e as its kvs_err. It must fail without one too. */
#define REFUSED(call, want, word)                                                                  \
    do {                                                                                           \
        kvs_err err = {KVS_OK, 0, "", ""};                                                         \
        kvs_err *e = &err;                                                                         \
        kvs_status got = (call);                                                                   \
        check_refused(r, got, want, &err, word, __LINE__);                                         \
        e = NULL;                                                                                  \
        assert_int_equal((call), want);                                                            \
    } while (0)

/* -- options of a cache */

#define U32(field) (offsetof(kvs_layer_spec, field))

typedef struct bad_spec {
    size_t at;
    uint32_t value;
    size_t at2;
    uint32_t value2;
    kvs_status want;
    const char *word;
} bad_spec;

static const bad_spec bad_specs[] = {
    {U32(n_kv_heads), 0, 0, 0, KVS_E_INVAL, "n_kv_heads 0"},
    {U32(n_kv_heads), 65537, 0, 0, KVS_E_INVAL, "65537"},
    {U32(n_kv_heads), UINT32_MAX, 0, 0, KVS_E_INVAL, "4294967295"},
    {U32(k_dim), 0, 0, 0, KVS_E_INVAL, "K: dim 0"},
    {U32(k_dim), 8, 0, 0, KVS_E_INVAL, "K: dim 8"},
    {U32(k_dim), 68, 0, 0, KVS_E_INVAL, "K: dim 68"},
    {U32(k_dim), 1032, 0, 0, KVS_E_INVAL, "K: dim 1032"},
    {U32(k_dim), 48, 0, 0, KVS_E_INVAL, "group 32"},
    {U32(v_dim), 0, 0, 0, KVS_E_INVAL, "V: dim 0"},
    {U32(v_dim), 1025, 0, 0, KVS_E_INVAL, "V: dim 1025"},
    {U32(v_dim), UINT32_MAX, 0, 0, KVS_E_INVAL, "V: dim 4294967295"},
    {U32(layout), 3, 0, 0, KVS_E_INVAL, "layout 3"},
    {U32(layout), UINT32_MAX, 0, 0, KVS_E_INVAL, "layout -1"},
    {U32(layout), KVS_LAYOUT_RING, 0, 0, KVS_E_INVAL, "a ring needs a window"},
    {U32(sinks), 3, 0, 0, KVS_E_INVAL, "3 sinks without a window"},
    {U32(window), (1u << 30) + 1, 0, 0, KVS_E_RANGE, "1073741825"},
    {U32(window), 1, U32(sinks), UINT32_MAX, KVS_E_RANGE, "4294967295"},
    {U32(window), 1, U32(max_block), UINT32_MAX, KVS_E_RANGE, "4294967295"},
    {U32(dense_until), 1, U32(dense_dtype), 3, KVS_E_INVAL, "dense: dtype 3"},
};

static void refuse_opts(rig *r, const kvs_cache_opts *o, kvs_status want, const char *word,
                        int line)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_cache *c = r->c;
    check_refused(r, kvs_cache_new(r->ctx, o, &c, &err), want, &err, word, line);
    assert_null(c);
    size_t sum = 5;
    size_t each[2] = {6, 7};
    kvs_err none = {KVS_OK, 0, "", ""};
    check_refused(r, kvs_cache_plan(o, 10, &sum, each, &none), want, &none, word, line);
    assert_true(sum == 5 && each[0] == 6 && each[1] == 7);
}

static kvs_layer_spec good_spec(void)
{
    return rig_spec(2, 64, 64, "affine4:32", "f16");
}

/* The bad spec comes second: the message names layer 1. */
static void refuse_spec(rig *r, const kvs_layer_spec *bad, kvs_status want, const char *word,
                        int line)
{
    kvs_layer_spec two[2] = {good_spec(), *bad};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = 2;
    o.layers = two;
    refuse_opts(r, &o, want, word, line);
    refuse_opts(r, &o, want, "layer 1", line);
}

static void test_bad_specs(void **state)
{
    rig *r = *state;
    for (size_t i = 0; i < sizeof bad_specs / sizeof bad_specs[0]; i++) {
        const bad_spec *b = &bad_specs[i];
        kvs_layer_spec s = good_spec();
        memcpy((char *)&s + b->at, &b->value, sizeof b->value);
        if (b->at2) {
            memcpy((char *)&s + b->at2, &b->value2, sizeof b->value2);
        }
        refuse_spec(r, &s, b->want, b->word, (int)(1000 + i));
    }
}

static const struct {
    kvs_codec codec;
    kvs_status want;
    const char *word;
} bad_codecs[] = {
    {{1, 0, 32, KVS_F16}, KVS_E_UNSUPPORTED, "bits 1"},
    {{7, 0, 32, KVS_F16}, KVS_E_UNSUPPORTED, "bits 7"},
    {{255, 0, 32, KVS_F16}, KVS_E_UNSUPPORTED, "bits 255"},
    {{4, 0, 0, KVS_F16}, KVS_E_UNSUPPORTED, "group 0"},
    {{4, 0, 48, KVS_F16}, KVS_E_UNSUPPORTED, "group 48"},
    {{4, 0, 65535, KVS_F16}, KVS_E_UNSUPPORTED, "group 65535"},
    {{4, 0, 128, KVS_F16}, KVS_E_INVAL, "group 128"},
    {{4, 0, 32, (kvs_dtype)3}, KVS_E_INVAL, "dtype 3"},
    {{0, 0, 0, (kvs_dtype)9}, KVS_E_INVAL, "dtype 9"},
    {{4, 2, 32, KVS_F16}, KVS_E_INVAL, "rotate 2"},
    {{0, 1, 0, KVS_F16}, KVS_E_INVAL, "rotate"},
    {{0, 0, 32, KVS_F16}, KVS_E_INVAL, "32"},
};

static void test_bad_codecs(void **state)
{
    rig *r = *state;
    for (size_t i = 0; i < sizeof bad_codecs / sizeof bad_codecs[0]; i++) {
        kvs_codec bad = bad_codecs[i].codec;
        kvs_codec good = {8, 0, 32, KVS_F32};
        kvs_layer_spec s = good_spec();
        s.k = bad;
        refuse_spec(r, &s, bad_codecs[i].want, bad_codecs[i].word, (int)(2000 + i));
        s = good_spec();
        s.v = bad;
        refuse_spec(r, &s, bad_codecs[i].want, bad_codecs[i].word, (int)(3000 + i));
        if (bad_codecs[i].codec.group != 128) { /* layer 0: K 64, V 32 elements */
            REFUSED(kvs_cache_convert(r->c, 0, &bad, &good, e), bad_codecs[i].want,
                    bad_codecs[i].word);
        }
        REFUSED(kvs_cache_convert(r->c, 0, &good, &bad, e), bad_codecs[i].want, bad_codecs[i].word);
    }
}

static void test_bad_opts(void **state)
{
    rig *r = *state;
    kvs_layer_spec two[2] = {good_spec(), good_spec()};
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    REFUSED(kvs_cache_new(NULL, &o, &c, e), KVS_E_INVAL, "ctx");
    REFUSED(kvs_cache_new(r->ctx, &o, NULL, e), KVS_E_INVAL, "out");
    refuse_opts(r, NULL, KVS_E_INVAL, "opts", __LINE__);
    refuse_opts(r, &o, KVS_E_INVAL, "n_layers 0", __LINE__);
    o.n_layers = 2;
    refuse_opts(r, &o, KVS_E_INVAL, "NULL", __LINE__);
    o.layers = two;
    o.n_layers = 65537;
    refuse_opts(r, &o, KVS_E_INVAL, "65537", __LINE__);
    o.n_layers = 2;
    o.struct_size = 4;
    refuse_opts(r, &o, KVS_E_INVAL, "struct_size is 4", __LINE__);
    o.struct_size = sizeof o;
    two[1].struct_size = sizeof two[1] - 4;
    refuse_opts(r, &o, KVS_E_INVAL, "layer 1: struct_size", __LINE__);
    two[0].struct_size = 0;
    two[1].struct_size = 0;
    refuse_opts(r, &o, KVS_E_INVAL, "struct_size is 0", __LINE__);
    two[0] = good_spec();
    two[1] = good_spec();
    o.reserve_tokens = UINT64_MAX;
    refuse_opts(r, &o, KVS_E_RANGE, "18446744073709551615", __LINE__);
    o.reserve_tokens = (uint64_t)INT64_MAX / 4; /* the bytes overflow */
    REFUSED(kvs_cache_new(r->ctx, &o, &c, e), KVS_E_RANGE, "2305843009213693952");
    size_t sum = 5;
    REFUSED(kvs_cache_plan(&o, 0, &sum, NULL, e), KVS_E_RANGE, "layer 0");
    o.reserve_tokens = 0;
    REFUSED(kvs_cache_plan(&o, UINT64_MAX, &sum, NULL, e), KVS_E_RANGE, "18446744073709551615");
    REFUSED(kvs_cache_plan(&o, (uint64_t)INT64_MAX / 4, &sum, NULL, e), KVS_E_RANGE, "overflow");
    assert_int_equal(sum, 5);
    o.reserve_tokens = (uint64_t)1 << 52; /* fits a size_t, but no machine */
    REFUSED(kvs_cache_new(r->ctx, &o, &c, e), KVS_E_NOMEM, "bytes");
}

/* Specs of a longer and of a shorter struct than the library's: elements are struct_size apart. */
static void test_foreign_spec_sizes(void **state)
{
    rig *r = *state;
    union {
        kvs_layer_spec spec;
        unsigned char bytes[2 * (sizeof(kvs_layer_spec) + 16)];
    } u;
    for (int grow = 0; grow < 2; grow++) {
        size_t size = grow ? sizeof(kvs_layer_spec) + 16 : offsetof(kvs_layer_spec, window);
        memset(&u, 0, sizeof u);
        for (size_t i = 0; i < 2; i++) {
            kvs_layer_spec s = good_spec();
            s.n_kv_heads = 1 + (uint32_t)i;
            s.struct_size = size;
            memcpy(u.bytes + i * size, &s, size < sizeof s ? size : sizeof s);
        }
        kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
        o.n_layers = 2;
        o.layers = &u.spec;
        kvs_cache *c = NULL;
        assert_int_equal(kvs_cache_new(r->ctx, &o, &c, NULL), KVS_OK);
        assert_int_equal(kvs_cache_spec(c, 1)->n_kv_heads, 2);
        assert_int_equal(kvs_cache_spec(c, 1)->struct_size, sizeof(kvs_layer_spec));
        assert_int_equal(kvs_cache_spec(c, 1)->window, 0);
        kvs_cache_free(c);
        r->live = rig_live(r->ctx); /* more scratch */
        u.bytes[2 * size - 1] = 1;
        if (grow) {
            refuse_opts(r, &o, KVS_E_UNSUPPORTED, "kvs_layer_spec sets an option", __LINE__);
        }
    }
}

/* -- writing */

static kvs_kv good_kv(uint32_t n, float *x)
{
    kvs_kv kv = KVS_KV_INIT;
    kv.n_tokens = n;
    kv.k = x;
    kv.v = x;
    return kv;
}

static void test_bad_append(void **state)
{
    rig *r = *state;
    float x[64 * 2 * 5] = {0};
    kvs_kv kv = good_kv(1, x);
    REFUSED(kvs_cache_append(NULL, 0, &kv, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_append(r->c, 4, &kv, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_append(r->c, KVS_ALL_LAYERS, &kv, e), KVS_E_RANGE, "4294967295");
    REFUSED(kvs_cache_append(r->c, 0, NULL, e), KVS_E_INVAL, "kv is NULL");
    kv.k = NULL;
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "kv.k is NULL");
    kv = good_kv(1, x);
    kv.v = NULL;
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "kv.v is NULL");
    kv = good_kv(0, x);
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "n_tokens is 0");
    kv = good_kv(1u << 31, x);
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "2147483648");
    kv = good_kv(1, x);
    kv.dtype = (kvs_dtype)3;
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "dtype 3");
    kv = good_kv(1, x);
    kv.struct_size = 7;
    REFUSED(kvs_cache_append(r->c, 0, &kv, e), KVS_E_INVAL, "struct_size is 7");
    kv = good_kv(5, x);
    REFUSED(kvs_cache_append(r->c, 1, &kv, e), KVS_E_LIMIT, "max_block 4");
    REFUSED(kvs_cache_reserve(r->c, 1, 5, e), KVS_E_LIMIT, "5 tokens");
    REFUSED(kvs_cache_reserve(r->c, 4, 1, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_reserve(NULL, KVS_ALL_LAYERS, 1, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_clear(NULL, e), KVS_E_INVAL, "cache");
    assert_int_equal(kvs_cache_reserve(r->c, KVS_ALL_LAYERS, 0, NULL), KVS_OK);
}

static void test_bad_rewind(void **state)
{
    rig *r = *state;
    REFUSED(kvs_cache_rewind(NULL, 0, 1, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_rewind(r->c, 7, 1, e), KVS_E_RANGE, "layer 7");
    REFUSED(kvs_cache_rewind(r->c, 0, 41, e), KVS_E_RANGE, "41 tokens, 40 are held");
    REFUSED(kvs_cache_rewind(r->c, 0, UINT64_MAX, e), KVS_E_RANGE, "18446744073709551615");
    REFUSED(kvs_cache_rewind(r->c, 3, 1, e), KVS_E_RANGE, "layer 3: rewind of 1");
    /* the ring has 16 slots for a window of 8: 9 tokens can be taken back, or all but the sinks */
    REFUSED(kvs_cache_rewind(r->c, 1, 10, e), KVS_E_STATE, "at most 9");
    REFUSED(kvs_cache_rewind(r->c, 1, 47, e), KVS_E_STATE, "at most 9");
    assert_int_equal(kvs_cache_can_rewind(r->c, 1, 9), KVS_OK);
    assert_int_equal(kvs_cache_can_rewind(r->c, 1, 10), KVS_NO);
    assert_int_equal(kvs_cache_can_rewind(r->c, 1, 48), KVS_OK);
    assert_int_equal(kvs_cache_can_rewind(r->c, 1, 50), KVS_OK);
    assert_int_equal(kvs_cache_can_rewind(r->c, 1, 51), KVS_NO);
    assert_int_equal(kvs_cache_can_rewind(r->c, 4, 0), KVS_E_RANGE);
    assert_int_equal(kvs_cache_can_rewind(NULL, 0, 0), KVS_E_INVAL);
    /* all or none: layer 3 is empty, so not even one token; then only layer 1 says no */
    REFUSED(kvs_cache_rewind(r->c, KVS_ALL_LAYERS, 1, e), KVS_E_RANGE, "layer 3");
    assert_int_equal(kvs_cache_can_rewind(r->c, KVS_ALL_LAYERS, 1), KVS_NO);
    assert_int_equal(kvs_cache_rewind(r->c, KVS_ALL_LAYERS, 0, NULL), KVS_OK);
    assert_true(rig_snap_same(&r->before, r->c));
}

/* -- reading */

static void refuse_read(rig *r, uint32_t layer, const kvs_attend *d, kvs_status want,
                        const char *word, int line)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    check_refused(r, kvs_cache_attend(r->c, layer, d, &err), want, &err, word, line);
}

static void test_bad_attend(void **state)
{
    rig *r = *state;
    float *q = NULL;
    float *out = NULL;
    kvs_attend ok = rig_query(kvs_cache_spec(r->c, 0), 2, 2, -1, &q, &out);
    kvs_attend d = ok;
    REFUSED(kvs_cache_attend(NULL, 0, &d, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_attend(r->c, 4, &d, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_attend(r->c, 0, NULL, e), KVS_E_INVAL, "desc");
#define WITH(change, want, word)                                                                   \
    d = ok;                                                                                        \
    d.change;                                                                                      \
    refuse_read(r, 0, &d, want, word, __LINE__)
    WITH(struct_size = 0, KVS_E_INVAL, "struct_size is 0");
    WITH(q = NULL, KVS_E_INVAL, "q is NULL");
    WITH(out = NULL, KVS_E_INVAL, "out is NULL");
    WITH(n_queries = 0, KVS_E_INVAL, "n_queries is 0");
    WITH(n_queries = UINT32_MAX, KVS_E_INVAL, "4294967295");
    WITH(n_queries = 41, KVS_E_RANGE, "41 queries");
    WITH(n_q_heads = 0, KVS_E_INVAL, "n_q_heads 0");
    WITH(n_q_heads = 3, KVS_E_INVAL, "n_q_heads 3");
    WITH(n_q_heads = UINT32_MAX - 1, KVS_E_RANGE, "4294967294");
    WITH(q_dtype = (kvs_dtype)3, KVS_E_INVAL, "q_dtype 3");
    WITH(out_dtype = (kvs_dtype)4, KVS_E_INVAL, "out_dtype 4");
    WITH(scale = NAN, KVS_E_INVAL, "scale");
    WITH(scale = INFINITY, KVS_E_INVAL, "scale");
    WITH(softcap = NAN, KVS_E_INVAL, "softcap");
    WITH(softcap = -1.0f, KVS_E_INVAL, "softcap -1");
    WITH(mode = (kvs_read)3, KVS_E_INVAL, "mode 3");
    WITH(mode = (kvs_read)-1, KVS_E_INVAL, "mode -1");
    WITH(mode = KVS_READ_BLOCK, KVS_E_INVAL, "block");
    WITH(mode = KVS_READ_BIDIRECTIONAL, KVS_E_INVAL, "flags");
    WITH(flags = (const uint8_t *)q, KVS_E_INVAL, "flags");
    WITH(q_pos = 39, KVS_E_RANGE, "position 39");
    WITH(q_pos = 40, KVS_E_RANGE, "position 40");
    WITH(q_pos = INT64_MAX, KVS_E_RANGE, "9223372036854775807");
    WITH(q_pos = -2, KVS_E_RANGE, "position -2");
    WITH(q_pos = INT64_MIN, KVS_E_RANGE, "-9223372036854775808");
#undef WITH
    kvs_kv kv = good_kv(1, q);
    d = ok;
    d.block = &kv;
    refuse_read(r, 0, &d, KVS_E_INVAL, "block", __LINE__);
    d.mode = KVS_READ_BLOCK;
    refuse_read(r, 0, &d, KVS_E_INVAL, "1 tokens with 2 queries", __LINE__);
    kv = good_kv(2, q);
    kv.v = NULL;
    refuse_read(r, 0, &d, KVS_E_INVAL, "block.v", __LINE__);
    kv = good_kv(2, q);
    kv.dtype = (kvs_dtype)5;
    refuse_read(r, 0, &d, KVS_E_INVAL, "dtype 5", __LINE__);
    kv.struct_size = 1;
    refuse_read(r, 0, &d, KVS_E_INVAL, "struct_size is 1", __LINE__);
    kv = good_kv(2, q);
    refuse_read(r, 3, &d, KVS_E_STATE, "no token", __LINE__);
    d = ok;
    refuse_read(r, 3, &d, KVS_E_STATE, "no token", __LINE__);
    free(q);
    free(out);
}

static void test_windows_gone(void **state)
{
    rig *r = *state;
    float *q = NULL;
    float *out = NULL;
    uint8_t flags[4] = {1, 1, 1, 1};
    /* the ring's 16 slots hold positions 34 to 49: a query at 41 sees 34 to 41 */
    kvs_attend d = rig_query(kvs_cache_spec(r->c, 1), 1, 1, 41, &q, &out);
    assert_int_equal(kvs_cache_oldest(r->c, 1), 34);
    assert_int_equal(kvs_cache_attend(r->c, 1, &d, NULL), KVS_OK);
    d.q_pos = 40;
    refuse_read(r, 1, &d, KVS_E_RANGE, "position 40 reaches below 34", __LINE__);
    free(q);
    free(out);
    /* across dense_until, and below it once the dense copy is gone */
    d = rig_query(kvs_cache_spec(r->c, 2), 4, 1, 18, &q, &out);
    rig_fill(r->c, 2, 5, 5, 1);
    rig_snap_drop(&r->before);
    rig_snap_take(&r->before, r->c);
    r->live = rig_live(r->ctx);
    assert_int_equal(kvs_cache_attend(r->c, 2, &d, NULL), KVS_OK);
    d.mode = KVS_READ_BIDIRECTIONAL;
    d.flags = flags;
    refuse_read(r, 2, &d, KVS_E_UNSUPPORTED, "dense_until 20", __LINE__);
    rig_fill(r->c, 2, 1, 1, 1);
    rig_snap_drop(&r->before);
    rig_snap_take(&r->before, r->c);
    r->live = rig_live(r->ctx);
    d.mode = KVS_READ_CAUSAL;
    d.flags = NULL;
    refuse_read(r, 2, &d, KVS_E_STATE, "was dropped", __LINE__);
    REFUSED(kvs_cache_rewind(r->c, 2, 5, e), KVS_E_STATE, "at most 4");
    free(q);
    free(out);
}

/* -- views, bytes, steps */

static void test_bad_views(void **state)
{
    rig *r = *state;
    kvs_view *v = NULL;
    REFUSED(kvs_view_new(NULL, 0, &v, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_view_new(r->c, 4, &v, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_view_new(r->c, 0, NULL, e), KVS_E_INVAL, "out");
    REFUSED(kvs_view_new(r->c, 3, &v, e), KVS_E_STATE, "layer 3 holds no token");
    assert_null(v);
    assert_int_equal(kvs_view_new(r->c, 0, &v, NULL), KVS_OK);
    kvs_view_info info = KVS_VIEW_INFO_INIT;
    assert_int_equal(kvs_view_get_info(NULL, &info), KVS_E_INVAL);
    assert_int_equal(kvs_view_get_info(v, NULL), KVS_E_INVAL);
    info.struct_size = 7;
    assert_int_equal(kvs_view_get_info(v, &info), KVS_E_INVAL);
    float *q = NULL;
    float *out = NULL;
    kvs_attend d = rig_query(kvs_cache_spec(r->c, 0), 1, 1, -1, &q, &out);
    r->live = rig_live(r->ctx);
    REFUSED(kvs_view_attend(NULL, &d, e), KVS_E_INVAL, "view");
    REFUSED(kvs_view_attend(v, NULL, e), KVS_E_INVAL, "desc");
    d.mode = KVS_READ_BLOCK;
    REFUSED(kvs_view_attend(v, &d, e), KVS_E_UNSUPPORTED, "mode 1");
    d.mode = KVS_READ_CAUSAL;
    d.q_pos = 40;
    REFUSED(kvs_view_attend(v, &d, e), KVS_E_RANGE, "position 40");
    free(q);
    free(out);
    kvs_view_free(v);
    kvs_view_free(NULL);
    kvs_cache_free(NULL);
}

static void test_bad_ranges(void **state)
{
    rig *r = *state;
    kvs_span s[4];
    uint32_t n = 0;
    kvs_planes p = KVS_PLANES_INIT;
    REFUSED(kvs_cache_spans(NULL, 0, 0, 1, s, 4, &n, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_spans(r->c, 4, 0, 1, s, 4, &n, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_spans(r->c, 0, -1, 1, s, 4, &n, e), KVS_E_RANGE, "-1");
    REFUSED(kvs_cache_spans(r->c, 0, 3, 2, s, 4, &n, e), KVS_E_RANGE, "3 to 2");
    REFUSED(kvs_cache_spans(r->c, 0, 0, 41, s, 4, &n, e), KVS_E_RANGE, "41");
    REFUSED(kvs_cache_spans(r->c, 0, INT64_MIN, INT64_MAX, s, 4, &n, e), KVS_E_RANGE, "922337");
    REFUSED(kvs_cache_spans(r->c, 0, 0, 1, NULL, 4, &n, e), KVS_E_INVAL, "out");
    REFUSED(kvs_cache_spans(r->c, 0, 0, 1, s, 4, NULL, e), KVS_E_INVAL, "n_spans");
    REFUSED(kvs_cache_export(r->c, 4, 0, 1, &p, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_export(r->c, 0, 0, 1, NULL, e), KVS_E_INVAL, "planes");
    REFUSED(kvs_cache_export(r->c, 0, 0, 41, &p, e), KVS_E_RANGE, "0 to 41");
    REFUSED(kvs_cache_export(r->c, 0, -1, 1, &p, e), KVS_E_RANGE, "-1");
    REFUSED(kvs_cache_export(r->c, 0, INT64_MAX, 1, &p, e), KVS_E_RANGE, "9223372036854775807");
    REFUSED(kvs_cache_export(r->c, 0, INT64_MIN, 1, &p, e), KVS_E_RANGE, "9223372036854775808");
    REFUSED(kvs_cache_export(r->c, 0, 0, UINT64_MAX, &p, e), KVS_E_RANGE, "18446744073709551615");
    REFUSED(kvs_cache_export(r->c, 1, 33, 2, &p, e), KVS_E_RANGE, "34 is the oldest");
    REFUSED(kvs_cache_export(r->c, 1, 1, 2, &p, e), KVS_E_RANGE, "after 2 sinks");
    p.struct_size = 0;
    REFUSED(kvs_cache_export(r->c, 0, 0, 1, &p, e), KVS_E_INVAL, "struct_size");
    p.struct_size = sizeof p;
    assert_int_equal(kvs_cache_export(r->c, 0, 0, 1, &p, NULL), KVS_OK); /* no plane is asked for */
    assert_int_equal(kvs_cache_export(r->c, 1, 0, 2, &p, NULL), KVS_OK);
    assert_int_equal(kvs_cache_export(r->c, 1, 34, 16, &p, NULL), KVS_OK);
    REFUSED(kvs_cache_convert(NULL, 0, NULL, NULL, e), KVS_E_INVAL, "cache");
    kvs_codec f16 = KVS_CODEC_DENSE(KVS_F16);
    REFUSED(kvs_cache_convert(r->c, 0, NULL, &f16, e), KVS_E_INVAL, "k is NULL");
    REFUSED(kvs_cache_convert(r->c, 0, &f16, NULL, e), KVS_E_INVAL, "v is NULL");
    REFUSED(kvs_cache_convert(r->c, 4, &f16, &f16, e), KVS_E_RANGE, "layer 4");
}

static void test_bad_import(void **state)
{
    rig *r = *state;
    kvs_planes p;
    size_t bytes = 0;
    void *base = rig_planes(kvs_cache_spec(r->c, 0), 0, 4, &p, &bytes);
    REFUSED(kvs_cache_import(NULL, 0, 0, 1, &p, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_cache_import(r->c, 4, 0, 1, &p, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_cache_import(r->c, 0, 40, 1, NULL, e), KVS_E_INVAL, "planes");
    REFUSED(kvs_cache_import(r->c, 0, 40, 0, &p, e), KVS_E_RANGE, "0 tokens at 40");
    REFUSED(kvs_cache_import(r->c, 0, 40, UINT64_MAX, &p, e), KVS_E_RANGE, "18446744073709551615");
    REFUSED(kvs_cache_import(r->c, 0, -1, 1, &p, e), KVS_E_RANGE, "-1");
    REFUSED(kvs_cache_import(r->c, 0, INT64_MAX, 1, &p, e), KVS_E_RANGE, "9223372036854775807");
    REFUSED(kvs_cache_import(r->c, 0, 41, 1, &p, e), KVS_E_RANGE, "at 41 into a layer of 40");
    REFUSED(kvs_cache_import(r->c, 0, 39, 1, &p, e), KVS_E_RANGE, "at 39");
    kvs_planes bad = p;
    bad.k[1] = NULL;
    REFUSED(kvs_cache_import(r->c, 0, 40, 1, &bad, e), KVS_E_INVAL, "k[1]");
    bad = p;
    bad.v[0] = (char *)p.v[0] + 1;
    REFUSED(kvs_cache_import(r->c, 0, 40, 1, &bad, e), KVS_E_INVAL, "v[0]");
    REFUSED(kvs_cache_import(r->c, 2, 18, 3, &p, e), KVS_E_UNSUPPORTED, "dense_until 20");
    REFUSED(kvs_cache_import(r->c, 0, 40, (uint64_t)1 << 60, &p, e), KVS_E_NOMEM, "bytes");
    free(base);
    base = rig_planes(kvs_cache_spec(r->c, 1), 0, 17, &p, &bytes);
    REFUSED(kvs_cache_import(r->c, 1, 50, 17, &p, e), KVS_E_LIMIT, "17 tokens into a ring of 16");
    REFUSED(kvs_cache_import(r->c, 1, 49, 1, &p, e), KVS_E_RANGE, "at 49");
    free(base);
}

static void test_bad_steps(void **state)
{
    rig *r = *state;
    kvs_step s = KVS_STEP_INIT;
    kvs_fetch f = KVS_FETCH_CONCAT;
    kvs_span span[4];
    uint32_t n = 0;
    kvs_planes p;
    size_t bytes = 0;
    void *base = rig_planes(kvs_cache_spec(r->c, 1), 0, 1, &p, &bytes);
    REFUSED(kvs_step_phase(NULL, 0, &f, e), KVS_E_INVAL, "cache");
    REFUSED(kvs_step_phase(r->c, 1, NULL, e), KVS_E_INVAL, "out");
    REFUSED(kvs_step_phase(r->c, 3, &f, e), KVS_E_STATE, "layer 3 holds no token");
    REFUSED(kvs_step_plan(r->c, 3, &s, e), KVS_E_STATE, "layer 3 holds no token");
    REFUSED(kvs_step_plan(r->c, 4, &s, e), KVS_E_RANGE, "layer 4");
    REFUSED(kvs_step_plan(r->c, 1, NULL, e), KVS_E_INVAL, "out");
    s.struct_size = 7;
    REFUSED(kvs_step_plan(r->c, 1, &s, e), KVS_E_INVAL, "struct_size is 7");
    s.struct_size = sizeof s;
    assert_int_equal(kvs_step_plan(r->c, 1, &s, NULL), KVS_OK);
    REFUSED(kvs_step_inputs(r->c, 1, NULL, span, 4, &n, e), KVS_E_INVAL, "step");
    REFUSED(kvs_step_inputs(r->c, 1, &s, NULL, 4, &n, e), KVS_E_INVAL, "out");
    REFUSED(kvs_step_inputs(r->c, 1, &s, span, 4, NULL, e), KVS_E_INVAL, "n_spans");
    REFUSED(kvs_step_commit(r->c, 1, NULL, &p, e), KVS_E_INVAL, "step");
    REFUSED(kvs_step_commit(r->c, 1, &s, NULL, e), KVS_E_INVAL, "planes");
    kvs_step bad = s;
    bad.position = 49;
    REFUSED(kvs_step_commit(r->c, 1, &bad, &p, e), KVS_E_STATE, "planned at position 49");
    bad = s;
    bad.oldest = INT64_MIN;
    REFUSED(kvs_step_inputs(r->c, 1, &bad, span, 4, &n, e), KVS_E_INVAL, "9223372036854775808");
    kvs_cache_clear(r->c, NULL);
    assert_int_equal(kvs_step_commit(r->c, 1, &s, &p, NULL), KVS_E_STATE);
    assert_int_equal(kvs_cache_length(r->c, 1), 0);
    free(base);
}

/* Questions about a layer that is not there. */
static void test_no_layer(void **state)
{
    rig *r = *state;
    char text[8] = "x";
    assert_int_equal(kvs_cache_n_layers(NULL), 0);
    assert_int_equal(kvs_cache_n_layers(r->c), 4);
    assert_null(kvs_cache_spec(r->c, 4));
    assert_null(kvs_cache_spec(NULL, 0));
    assert_int_equal(kvs_cache_length(r->c, 4), -1);
    assert_int_equal(kvs_cache_length(NULL, 0), -1);
    assert_int_equal(kvs_cache_oldest(r->c, 4), -1);
    assert_int_equal(kvs_cache_bytes(r->c, 4), 0);
    assert_int_equal(kvs_cache_bytes(NULL, KVS_ALL_LAYERS), 0);
    assert_int_equal(kvs_cache_signature(r->c, 4, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(kvs_cache_signature(NULL, 0, NULL, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_bad_specs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_codecs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_opts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_spec_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_append, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_rewind, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_attend, setup, teardown),
        cmocka_unit_test_setup_teardown(test_windows_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_views, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_ranges, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_import, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_layer, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
