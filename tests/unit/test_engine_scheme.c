/* SPDX-License-Identifier: MIT */
/* test_engine_scheme.c: a plan's signature, digest and names in other programs, kv_config.json, and
 * planned bytes of several rows against what caches take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/sha256.h"
#include "kvstate/engine.h"
#include "kvstate/pages.h"
#include "support/plan_rig.h"

static void refused(const kvs_model *m, const char *kv, kvs_status status, const char *says)
{
    kvs_plan *p = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.kv = kv;
    kvs_status st = kvs_plan_new(ctx, m, &o, &p, &err);
    assert_null(p);
    if (st != status || !strstr(err.msg, says)) {
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", kv, st, err.msg, status, says);
    }
}

/* Every field that may differ gives another signature, limits alone do not. */
static void test_signature(void **state)
{
    (void)state;
    const kvs_plan_opts variants[] = {
        {.struct_size = sizeof(kvs_plan_opts)},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "f32"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "q4"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4/bf16"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4:32"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4+affine8"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine8+affine4"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4", .start = 7},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4", .start = 8},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "affine4/bf16", .start = 8},
        {.struct_size = sizeof(kvs_plan_opts), .window = 40, .max_block = 8},
        {.struct_size = sizeof(kvs_plan_opts), .window = 41, .max_block = 8},
        {.struct_size = sizeof(kvs_plan_opts), .window = 40, .sinks = 1, .max_block = 8},
        {.struct_size = sizeof(kvs_plan_opts), .window = 40, .max_block = 256},
        {.struct_size = sizeof(kvs_plan_opts), .kv_block = 32},
        {.struct_size = sizeof(kvs_plan_opts), .kv_block = 64},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "layers=0 f16;1-2 f32"},
        {.struct_size = sizeof(kvs_plan_opts), .kv = "layers=0-1 f16;2 f32"},
    };
    enum { N = sizeof variants / sizeof variants[0] };
    static char text[N][1024];
    static uint8_t digest[N][KVS_PLAN_DIGEST_BYTES];
    for (size_t i = 0; i < N; i++) {
        kvs_plan *p = make(llama, &variants[i]);
        size_t n = kvs_plan_signature(p, text[i], sizeof text[i]);
        assert_int_equal(n, strlen(text[i]));
        kvs_plan_digest(p, digest[i]);
        uint8_t want[KVS__SHA_BYTES];
        kvs__sha256_of(text[i], n, want);
        assert_memory_equal(digest[i], want, sizeof want);
        char cut[9];
        assert_int_equal(kvs_plan_signature(p, cut, sizeof cut), n);
        assert_string_equal(cut, "kvs-plan");
        assert_int_equal(kvs_plan_signature(p, NULL, 0), n);
        kvs_plan_free(p);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(text[i], text[j]);
            assert_memory_not_equal(digest[i], digest[j], sizeof digest[i]);
        }
    }
    assert_string_equal(text[3], "kvs-plan-1:3,"
                                 "84:attention heads=2 dims=64/64 k=affine4:64 v=affine4:64 grow "
                                 "window=0 sinks=0 start=0,"
                                 "84:attention heads=2 dims=64/64 k=affine4:64 v=affine4:64 grow "
                                 "window=0 sinks=0 start=0,"
                                 "84:attention heads=2 dims=64/64 k=affine4:64 v=affine4:64 grow "
                                 "window=0 sinks=0 start=0,");
    kvs_plan_opts o = variants[3];
    o.n_ctx = 100;
    o.max_block = 10;
    kvs_plan *p = make(llama, &o);
    char again[1024];
    (void)kvs_plan_signature(p, again, sizeof again);
    assert_string_equal(again, text[3]);
    kvs_plan_free(p);
}

typedef struct row {
    const char *kv;
    uint32_t start, window, sinks;
    kvs_scheme_form form;
    uint32_t flags;
    const char *base;
    const char *want; /* or, with a status, what the message says */
    kvs_status status;
} row;

static void check_row(const kvs_model *m, const row *r)
{
    char dst[512];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    kvs_scheme_opts so = KVS_SCHEME_OPTS_INIT;
    o.kv = r->kv;
    o.start = r->start;
    o.window = r->window;
    o.sinks = r->sinks;
    so.form = r->form;
    so.flags = r->flags;
    so.base = r->base;
    kvs_plan *p = make(m, &o);
    kvs_status st = kvs_plan_scheme(p, &so, dst, sizeof dst, &err);
    const char *got = st == KVS_OK ? dst : err.msg;
    if (st != r->status || (st == KVS_OK ? strcmp(got, r->want) != 0 : !strstr(got, r->want))) {
        fail_msg("%s: %d \"%s\"; expected %d \"%s\"", r->kv, st, got, r->status, r->want);
    }
    if (st == KVS_OK) {
        size_t n = strlen(dst);
        assert_int_equal(kvs_plan_scheme(p, &so, dst, n, &err), KVS_E_RANGE);
        assert_int_equal(kvs_plan_scheme(p, &so, dst, n + 1, &err), KVS_OK);
    }
    kvs_plan_free(p);
}

static void test_schemes(void **state)
{
    (void)state;
    const row rows[] = {
        {"bf16", 0, 0, 0, KVS_SCHEME_KEY, 3, NULL, "bf16", KVS_OK},
        {"affine4/bf16", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "kv4", KVS_OK},
        {"affine4/bf16", 5000, 0, 0, KVS_SCHEME_KEY, KVS_SCHEME_GROUP, NULL, "kv4-g64-start5000",
         KVS_OK},
        {"affine8:32/bf16", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "kv8-g32", KVS_OK},
        {"affine8:32/bf16", 0, 0, 0, KVS_SCHEME_KEY, KVS_SCHEME_START, NULL, "kv8-g32-start0",
         KVS_OK},
        {"layers=* bf16;1 affine4/bf16", 0, 0, 0, KVS_SCHEME_KEY, KVS_SCHEME_START, NULL,
         "config-start0", KVS_OK},
        {"layers=* affine8/bf16;1 affine4/bf16", 9, 0, 0, KVS_SCHEME_KEY, 0, NULL, "config-start9",
         KVS_OK},
        {"layers=* bf16;1 affine4:32/bf16", 0, 0, 0, KVS_SCHEME_KV_CONFIG, 0, NULL,
         "[{\"layer_idx\": 1, \"bits\": 4, \"group_size\": 32}]", KVS_OK},
        {"bf16", 0, 0, 0, KVS_SCHEME_KV_CONFIG, 0, NULL, "[]", KVS_OK},
        {"paged/16:bf16", 0, 0, 0, KVS_SCHEME_NAMESPACE, 0, NULL,
         "[\"paged-v1\",16,0,64,false,\"\"]", KVS_OK},
        {"paged/256:affine4:32/bf16", 0, 0, 0, KVS_SCHEME_NAMESPACE, KVS_SCHEME_DIRECT,
         "a\"b\\\n\x01", "[\"paged-v1\",256,4,32,true,\"a\\\"b\\\\\\n\\u0001\"]", KVS_OK},
        {"paged:layers=* bf16;0,2 affine4/bf16", 0, 0, 0, KVS_SCHEME_NAMESPACE, 0, "x",
         "[\"paged-v1\",64,\"layers\",[[0,4,64],[2,4,64]],false,\"x\"]", KVS_OK},
        {"bf16", 0, 0, 0, KVS_SCHEME_NAMESPACE, 0, NULL, "not paged", KVS_E_UNSUPPORTED},
        {"q4", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "layer 0 has no scheme of mlx-bun: it is rotated",
         KVS_E_UNSUPPORTED},
        {"affine4", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "scales are not bf16", KVS_E_UNSUPPORTED},
        {"f16", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "dense, but not bf16", KVS_E_UNSUPPORTED},
        {"affine4/bf16+affine8/bf16", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "kept differently",
         KVS_E_UNSUPPORTED},
        {"bf16", 0, 40, 4, KVS_SCHEME_KEY, 0, NULL, "not the model's", KVS_E_UNSUPPORTED},
        {"layers=* affine4/bf16;2 affine4/bf16 start=3", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL,
         "layer 2 has no scheme of mlx-bun: it starts", KVS_E_UNSUPPORTED},
        {"bf16", 0, 0, 0, KVS_SCHEME_KEY, 8, NULL, "flags 0x8", KVS_E_INVAL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        check_row(llama, &rows[i]);
    }
    const row own = {"bf16", 0, 0, 0, KVS_SCHEME_KEY, 0, NULL, "bf16", KVS_OK};
    check_row(gemma, &own); /* the model's own windows are no part of it */
}

static void write_text(const char *text, char *path, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(path, n, "%s/kvs-scheme-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void test_kv_config(void **state)
{
    (void)state;
    char kv[300] = "config:";
    char *path = kv + 7;
    char back[256];
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    kvs_scheme_opts so = KVS_SCHEME_OPTS_INIT;
    o.kv = kv;
    o.start = 5;
    so.form = KVS_SCHEME_KV_CONFIG;
    write_text(
        "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 32},\n {\"bits\": 4, \"layer\": 2}]",
        path, 256);
    kvs_plan *p = make(llama, &o);
    const kvs_layer_spec *s = kvs_plan_layer(p, 0);
    assert_true(s->k.bits == 8 && s->v.bits == 8 && s->k.group == 32 && s->k.rotate == 0);
    assert_true(s->k.dtype == KVS_BF16 && s->dense_until == 5 && s->dense_dtype == KVS_BF16);
    s = kvs_plan_layer(p, 1);
    assert_true(s->k.bits == 0 && s->v.bits == 0 && s->k.dtype == KVS_BF16 && s->dense_until == 0);
    s = kvs_plan_layer(p, 2);
    assert_true(s->k.bits == 4 && s->v.group == 64);
    assert_int_equal(kvs_plan_scheme(p, &so, back, sizeof back, NULL), KVS_OK);
    assert_string_equal(back, "[{\"layer_idx\": 0, \"bits\": 8, \"group_size\": 32}, "
                              "{\"layer_idx\": 2, \"bits\": 4, \"group_size\": 64}]");
    kvs_plan_free(p);
    (void)unlink(path);
    const struct {
        const char *text, *says;
    } bad[] = {
        {"{}", "object, not a list"},
        {"[1]", "entry 0: no object"},
        {"[{\"bits\":4}]", "entry 0: no layer_idx"},
        {"[{\"layer_idx\":1}]", "entry 0: no bits"},
        {"[{\"layer_idx\":3,\"bits\":4}]", "layer 3 of 3 layers"},
        {"[{\"layer_idx\":1,\"bits\":4},{\"layer\":1,\"bits\":8}]",
         "entry 1: layer 1 of 3 layers, a"},
        {"[{\"layer_idx\":1,\"layer\":1,\"bits\":4}]", "given twice"},
        {"[{\"layer_idx\":-1,\"bits\":4}]", "layer_idx is no whole number"},
        {"[{\"layer_idx\":1,\"bits\":7}]", "bits 7 is none of"},
        {"[{\"layer_idx\":1,\"bits\":4.5}]", "bits is no whole number"},
        {"[{\"layer_idx\":1,\"bits\":4,\"group_size\":16}]", "group_size 16 is none of"},
        {"[{\"layer_idx\":1,\"bits\":4,\"mode\":\"mxfp4\"}]", "\"mode\" is none of"},
        {"[{\"layer_idx\":1,\"bits\":4}", ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(bad[i].text, path, 256);
        refused(llama, kv, KVS_E_INVAL, bad[i].says);
        (void)unlink(path);
    }
    refused(llama, kv, KVS_E_IO, path);
}

static void append(kvs_cache *c, uint32_t n_layers, uint32_t n)
{
    static float rows[64 * 4 * 64];
    for (uint32_t l = 0; l < n_layers; l++) {
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = n;
        kv.k = rows;
        kv.v = rows;
        assert_int_equal(kvs_cache_append(c, l, &kv, NULL), KVS_OK);
    }
}

/* Planned is what caches of that many rows take. */
static void test_rows(void **state)
{
    (void)state;
    const char *const kvs[] = {"f16", "affine4", "paged/16:q8"};
    for (size_t i = 0; i < 3; i++) {
        kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
        kvs_cache *c[3];
        kvs_pages *pages = NULL;
        size_t sum = 0;
        size_t all = 0;
        size_t pool = 0;
        o.kv = kvs[i];
        kvs_plan *p = make(llama, &o);
        kvs_cache_opts co = KVS_CACHE_OPTS_INIT;
        co.n_layers = kvs_plan_n_layers(p);
        co.layers = kvs_plan_layer(p, 0);
        if (kvs_plan_kv_block(p) > 0) {
            kvs_pages_opts po = KVS_PAGES_OPTS_INIT;
            po.block_tokens = kvs_plan_kv_block(p);
            assert_int_equal(kvs_pages_new(ctx, &po, &pages, NULL), KVS_OK);
            co.pages = pages;
        }
        for (size_t r = 0; r < 3; r++) {
            assert_int_equal(kvs_cache_new(ctx, &co, &c[r], NULL), KVS_OK);
            append(c[r], co.n_layers, 50);
            sum += kvs_cache_bytes(c[r], KVS_ALL_LAYERS);
        }
        assert_int_equal(kvs_plan_rows_bytes(p, 3, 50, &all, &pool, NULL), KVS_OK);
        assert_int_equal(all, sum);
        if (pages) {
            kvs_pages_stats st = KVS_PAGES_STATS_INIT;
            assert_int_equal(kvs_pages_get_stats(pages, &st), KVS_OK);
            assert_int_equal(pool, st.bytes);
        } else {
            assert_int_equal(pool, 0);
        }
        for (size_t r = 0; r < 3; r++) {
            kvs_cache_free(c[r]);
        }
        kvs_pages_free(pages);
        assert_int_equal(kvs_plan_rows_bytes(p, UINT32_MAX, UINT64_MAX / 8, &all, NULL, NULL),
                         KVS_E_RANGE);
        kvs_plan_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signature),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_kv_config),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
