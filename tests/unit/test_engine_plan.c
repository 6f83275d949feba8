/* SPDX-License-Identifier: MIT */
/* test_engine_plan.c: names, pairs, llama.cpp's names, layers files, layouts; every refusal says
 * which layer, line or name and why. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kvstate/engine.h"
#include "support/plan_rig.h"

static void refused(const kvs_model *m, const kvs_plan_opts *o, kvs_status status, const char *says)
{
    kvs_plan *p = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_plan_new(ctx, m, o, &p, &err);
    assert_null(p);
    if (st != status || !strstr(err.msg, says)) {
        fail_msg("%s: status %d, \"%s\"; expected %d, \"%s\"", o->kv ? o->kv : "-", st, err.msg,
                 status, says);
    }
}

typedef struct name_row {
    const char *kv;
    uint32_t group; /* option */
    uint8_t k_bits, v_bits;
    uint16_t k_group, v_group;
    uint8_t rotate;
    kvs_dtype dtype; /* where dense */
} name_row;

static void test_names(void **state)
{
    (void)state;
    const name_row rows[] = {
        {NULL, 0, 0, 0, 0, 0, 0, KVS_F16},
        {"f32", 0, 0, 0, 0, 0, 0, KVS_F32},
        {"f16", 0, 0, 0, 0, 0, 0, KVS_F16},
        {"bf16", 0, 0, 0, 0, 0, 0, KVS_BF16},
        {"q8", 0, 8, 8, 64, 64, 1, KVS_F16},
        {"q6", 0, 6, 6, 64, 64, 1, KVS_F16},
        {"q2", 32, 2, 2, 32, 32, 1, KVS_F16},
        {"affine4", 0, 4, 4, 64, 64, 0, KVS_F16},
        {"affine4:32", 64, 4, 4, 32, 32, 0, KVS_F16},
        {"affine3", 32, 3, 3, 32, 32, 0, KVS_F16},
        {"k8v4", 0, 8, 4, 64, 64, 1, KVS_F16},
        {"k5v3", 32, 5, 3, 32, 32, 1, KVS_F16},
        {"q8+q4", 0, 8, 4, 64, 64, 1, KVS_F16},
        {"q8_0", 0, 8, 8, 64, 64, 1, KVS_F16},
        {"q5_0", 0, 5, 5, 64, 64, 1, KVS_F16},
        {"q4_1", 0, 4, 4, 32, 32, 1, KVS_F16},
        {"iq4_nl", 0, 4, 4, 64, 64, 1, KVS_F16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
        o.kv = rows[i].kv;
        o.group = rows[i].group;
        kvs_plan *p = make(llama, &o);
        assert_int_equal(kvs_plan_n_layers(p), 3);
        for (uint32_t l = 0; l < 3; l++) {
            const kvs_layer_spec *s = kvs_plan_layer(p, l);
            assert_int_equal(s->k.bits, rows[i].k_bits);
            assert_int_equal(s->v.bits, rows[i].v_bits);
            assert_int_equal(s->k.group, rows[i].k_group);
            assert_int_equal(s->v.group, rows[i].v_group);
            assert_int_equal(s->k.rotate, rows[i].rotate);
            if (s->k.bits == 0) {
                assert_int_equal(s->k.dtype, rows[i].dtype);
            }
            assert_int_equal(s->layout, KVS_LAYOUT_GROW);
        }
        kvs_plan_free(p);
    }
}

static void test_sides(void **state)
{
    (void)state;
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    char line[256];
    o.kv = "bf16";
    o.v = "q4_0";
    kvs_plan *p = make(llama, &o);
    assert_int_equal(kvs_plan_layer(p, 2)->k.bits, 0);
    assert_int_equal(kvs_plan_layer(p, 2)->v.bits, 4);
    assert_true(kvs_plan_line(p, 0, line, sizeof line) > 0);
    assert_string_equal(line, "layers 0-2: grow, k bf16, v q4, 2 heads of 64/64");
    assert_true(kvs_plan_line(p, 1, line, sizeof line) > 0);
    assert_string_equal(line, "note: q4_0 is stored as q4 (group 64, rotated)");
    assert_int_equal(kvs_plan_line(p, 2, line, sizeof line), 0);
    char cut[10];
    assert_int_equal(kvs_plan_line(p, 0, cut, sizeof cut), 48); /* as snprintf */
    assert_string_equal(cut, "layers 0-");
    kvs_plan_free(p);
}

static void test_layouts(void **state)
{
    (void)state;
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    char line[256];
    o.max_block = 16;
    kvs_plan *p = make(gemma, &o);
    for (uint32_t l = 0; l < 7; l++) {
        const kvs_layer_spec *s = kvs_plan_layer(p, l);
        assert_int_equal(s->layout, l == 5 ? KVS_LAYOUT_GROW : KVS_LAYOUT_RING);
        assert_int_equal(s->window, l == 5 ? 0 : 24);
        assert_int_equal(s->sinks, 0);
    }
    (void)kvs_plan_line(p, 0, line, sizeof line);
    assert_string_equal(line, "layers 0-4,6: ring window 24, k f16, v f16, 1 heads of 32/32");
    (void)kvs_plan_line(p, 1, line, sizeof line);
    assert_string_equal(line, "layers 5: grow, k f16, v f16, 1 heads of 32/32");
    kvs_plan_free(p);

    o.window = 50; /* full layers only; a model's own window stays */
    o.sinks = 2;
    p = make(gemma, &o);
    assert_int_equal(kvs_plan_layer(p, 0)->window, 24);
    assert_int_equal(kvs_plan_layer(p, 0)->sinks, 0);
    assert_int_equal(kvs_plan_layer(p, 5)->window, 50);
    assert_int_equal(kvs_plan_layer(p, 5)->sinks, 2);
    assert_int_equal(kvs_plan_layer(p, 5)->layout, KVS_LAYOUT_RING);
    kvs_plan_free(p);

    o.flags = KVS_PLAN_FULL_WINDOW;
    p = make(gemma, &o);
    assert_int_equal(kvs_plan_layer(p, 0)->layout, KVS_LAYOUT_GROW);
    assert_int_equal(kvs_plan_layer(p, 0)->window, 24);
    kvs_plan_free(p);

    o.flags = 0;
    o.n_ctx = 40; /* 24 + 16 reach it: a ring would save nothing */
    p = make(gemma, &o);
    assert_int_equal(kvs_plan_layer(p, 0)->layout, KVS_LAYOUT_GROW);
    assert_int_equal(kvs_plan_n_ctx(p), 40);
    kvs_plan_free(p);
}

static void write_text(const char *text, char *path, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(path, n, "%s/kvs-plan-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void test_layers_file(void **state)
{
    (void)state;
    char kv[300] = "layers:";
    char *path = kv + 7;
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.kv = kv;
    o.max_block = 8;
    write_text("# all, then exceptions\n*  affine4:32  start=9\n\n0,3-4 f32\r\n5 affine8:32+bf16 "
               "window=60 sinks=4 # the full one\n",
               path, 256);
    kvs_plan *p = make(gemma, &o);
    const kvs_layer_spec *s = kvs_plan_layer(p, 0);
    assert_int_equal(s->k.bits, 0);
    assert_int_equal(s->k.dtype, KVS_F32);
    assert_int_equal(s->dense_until, 0);
    assert_int_equal(kvs_plan_layer(p, 1)->v.bits, 4);
    assert_int_equal(kvs_plan_layer(p, 1)->dense_until, 9);
    assert_int_equal(kvs_plan_layer(p, 4)->k.dtype, KVS_F32);
    s = kvs_plan_layer(p, 5);
    assert_int_equal(s->k.bits, 8);
    assert_int_equal(s->v.dtype, KVS_BF16);
    assert_int_equal(s->window, 60);
    assert_int_equal(s->sinks, 4);
    assert_int_equal(s->layout, KVS_LAYOUT_RING);
    kvs_plan_free(p);
    (void)unlink(path);

    const struct {
        const char *text, *says;
    } bad[] = {
        {"0-6 f16\n1 f17\n", ":2: "},
        {"0-7 f16\n", "no layers of this model: \"0-7\""},
        {"4-2 f16\n", "no layers of this model"},
        {"x f16\n", "no layers of this model"},
        {"*\n", "no codec after \"*\""},
        {"* f16 windows=3\n", "no setting: \"windows=3\""},
        {"* f16 window=3x\n", "no setting: \"window=3x\""},
        {"* f16 a b c d e f g h\n", "too many words"},
        {"* q4 window=9 window=8\n", "a second time: \"window=8\""},
        {"* f16 start=5\n", "nothing is quantised, which would begin at \"start=5\""},
        {"0-3 f16\n5-6 f16\n", "names no codec for layer 4"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_text(bad[i].text, path, 256);
        refused(gemma, &o, KVS_E_INVAL, bad[i].says);
        (void)unlink(path);
    }
    refused(gemma, &o, KVS_E_IO, path);
    write_text("* f16\n", path, 256);
    FILE *f = fopen(path, "ab"); /* lines behind a NUL are not passed over in silence */
    assert_non_null(f);
    assert_int_equal(fwrite("\0 0 f17\n", 1, 8, f), 8);
    assert_int_equal(fclose(f), 0);
    refused(gemma, &o, KVS_E_INVAL, "byte 6 is NUL");
    (void)unlink(path);
}

static void test_refused(void **state)
{
    (void)state;
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.kv = "q9";
    refused(llama, &o, KVS_E_INVAL, "\"q9\" names no codec");
    const char *const odd[] = {"k 8v4", "k-8v4", "k8v4 ", "k8v4v", "k7v4",
                               "k8",    "q8+",   "+q8",   "",      "k"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        o.kv = odd[i];
        refused(llama, &o, KVS_E_INVAL, "names no codec");
    }
    o.kv = "k8v";
    refused(llama, &o, KVS_E_INVAL, "\"k8v\" names no codec");
    o.kv = "q4";
    refused(gemma, &o, KVS_E_UNSUPPORTED, "layer 0 can't keep its keys so:");
    o.kv = "f16";
    o.v = "affine4:128";
    refused(llama, &o, KVS_E_UNSUPPORTED, "layer 0 can't keep its values so:");
    o = (kvs_plan_opts)KVS_PLAN_OPTS_INIT;
    o.group = 48;
    refused(llama, &o, KVS_E_INVAL, "group 48");
    o.group = 0;
    o.sinks = 4;
    refused(llama, &o, KVS_E_INVAL, "sinks 4 need a window");
    o.sinks = 0;
    o.start = 100;
    refused(llama, &o, KVS_E_INVAL, "start 100 delays quantisation");
}

/* "paged" in front of a plan, or kv_block beside it. */
static void test_paged(void **state)
{
    (void)state;
    static const struct {
        const char *kv;
        uint32_t kv_block;
        uint32_t want;
        uint8_t bits;
    } rows[] = {{"paged", 0, 64, 0},        {"paged/17", 0, 17, 0},
                {"paged:q8", 0, 64, 8},     {"paged/256:q8", 0, 256, 8},
                {"paged/16:q8", 32, 32, 8}, {"q8", 1, 1, 8},
                {NULL, 48, 48, 0},          {"q8", 0, 0, 8}};
    char line[256];
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
        o.kv = rows[i].kv;
        o.kv_block = rows[i].kv_block;
        kvs_plan *p = make(llama, &o);
        assert_int_equal(kvs_plan_kv_block(p), rows[i].want);
        for (uint32_t l = 0; l < 3; l++) {
            const kvs_layer_spec *s = kvs_plan_layer(p, l);
            assert_int_equal(s->layout, rows[i].want ? KVS_LAYOUT_PAGED : KVS_LAYOUT_GROW);
            assert_true(s->k.bits == rows[i].bits && s->max_block == 0);
        }
        kvs_plan_free(p);
    }
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.max_block = 16;
    o.kv_block = 32;
    kvs_plan *p = make(gemma, &o);
    assert_true(kvs_plan_layer(p, 0)->max_block == 16 && kvs_plan_layer(p, 5)->max_block == 0);
    (void)kvs_plan_line(p, 0, line, sizeof line);
    assert_string_equal(line, "layers 0-4,6: paged 32 window 24, k f16, v f16, 1 heads of 32/32");
    size_t few = 0;
    size_t many = 0;
    assert_int_equal(kvs_plan_bytes(p, 200, &few, NULL, NULL), KVS_OK);
    kvs_plan_free(p);
    o.flags = KVS_PLAN_FULL_WINDOW; /* windows keep all */
    p = make(gemma, &o);
    assert_int_equal(kvs_plan_layer(p, 0)->max_block, kvs_plan_n_ctx(p));
    assert_int_equal(kvs_plan_bytes(p, 200, &many, NULL, NULL), KVS_OK);
    assert_true(many > few);
    kvs_plan_free(p);
    static const char *const bad[] = {
        "paged/", "paged/0", "paged/x", "paged:", "paged/64:", "paged64", "pagedq8"};
    o = (kvs_plan_opts)KVS_PLAN_OPTS_INIT;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        o.kv = bad[i];
        refused(llama, &o, KVS_E_INVAL, bad[i]);
    }
    o.kv = "paged:q9";
    refused(llama, &o, KVS_E_INVAL, "\"q9\" names no codec");
    o.kv = "paged/257";
    refused(llama, &o, KVS_E_INVAL, "257");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),   cmocka_unit_test(test_sides),
        cmocka_unit_test(test_layouts), cmocka_unit_test(test_layers_file),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_paged),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
