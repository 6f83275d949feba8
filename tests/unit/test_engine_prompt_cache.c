/* SPDX-License-Identifier: MIT */
/* test_engine_prompt_cache.c: prompt-cache files written and read again: the same bytes in every
 * kind of layer and both layouts, batches, lists, metadata, sessions. What is refused is
 * test_engine_prompt_refused.c's, what mlx-lm makes of them oracle_files.py's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kvstate/recurrent.h"
#include "support/prompt_rig.h"

enum { MOST = 3 };

/* The same answers now and after more tokens. */
static void same_reads(kvs_cache *a, kvs_cache *b)
{
    static float q[4 * 128];
    static float out[2][4 * 128];
    uint64_t state = 5;
    for (size_t i = 0; i < sizeof q / sizeof q[0]; i++) {
        q[i] = tiny_random(&state);
    }
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t l = 0; l < kvs_cache_n_layers(a); l++) {
            kvs_attend d = KVS_ATTEND_INIT;
            d.n_queries = 1;
            d.n_q_heads = kvs_cache_spec(a, l)->n_kv_heads;
            d.q = q;
            d.scale = 0.1f;
            memset(out, 0, sizeof out);
            d.out = out[0];
            assert_int_equal(kvs_cache_attend(a, l, &d, NULL), KVS_OK);
            d.out = out[1];
            assert_int_equal(kvs_cache_attend(b, l, &d, NULL), KVS_OK);
            assert_memory_equal(out[0], out[1], sizeof out[0]);
        }
        feed(a, 1 + round, 77 + round);
        feed(b, 1 + round, 77 + round);
    }
}

/* ---- there and back */

typedef struct round_row {
    const char *name;
    uint32_t n_layers;
    kvs_layer_spec spec[MOST];
    uint32_t tokens;
    uint32_t layouts; /* 1: since 0.32, 2: before, 3: both */
    kvs_prompt_class cls;
} round_row;

static const round_row rows[] = {
    {"f32", 1, {SPEC(2, 64, 64, DENSE(KVS_F32))}, 300, 3, KVS_PROMPT_KV},
    {"f16",
     2,
     {SPEC(2, 64, 128, DENSE(KVS_F16)), SPEC(1, 16, 16, DENSE(KVS_BF16))},
     17,
     3,
     KVS_PROMPT_KV},
    {"affine4", 1, {SPEC(3, 64, 128, AFFINE(4, 64, KVS_F16))}, 33, 3, KVS_PROMPT_QUANTIZED},
    {"affine3", 1, {SPEC(1, 96, 96, AFFINE(3, 32, KVS_BF16))}, 20, 3, KVS_PROMPT_QUANTIZED},
    {"affine8", 1, {SPEC(1, 128, 128, AFFINE(8, 128, KVS_F32))}, 270, 3, KVS_PROMPT_QUANTIZED},
    {"ring", 1, {SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 8))}, 61, 3, KVS_PROMPT_ROTATING},
    {"ring, part",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 8))},
     11,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, full",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), RING(20, 4, 8))},
     24,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, sinks",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_BF16), RING(20, 4, 1))},
     61,
     3,
     KVS_PROMPT_ROTATING},
    {"ring, quantised",
     1,
     {SPEC(2, 64, 64, AFFINE(4, 32, KVS_F16), RING(20, 4, 8))},
     61,
     2,
     KVS_PROMPT_ROTATING_QUANTIZED},
    {"window that keeps all",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24)},
     61,
     3,
     KVS_PROMPT_ROTATING},
    {"paged", 1, {SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(0, 0))}, 100, 3, KVS_PROMPT_KV},
    {"paged window",
     1,
     {SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(24, 8))},
     300,
     3,
     KVS_PROMPT_ROTATING},
    {"latent",
     1,
     {SPEC(1, 80, 64, DENSE(KVS_F16), .kind = KVS_LAYER_LATENT)},
     40,
     3,
     KVS_PROMPT_KV},
    {"latent, quantised",
     1,
     {SPEC(1, 128, 96, AFFINE(8, 32, KVS_F16), .kind = KVS_LAYER_LATENT)},
     40,
     3,
     KVS_PROMPT_QUANTIZED},
    {"before the start",
     1,
     {SPEC(1, 64, 64, AFFINE(4, 64, KVS_BF16), .dense_until = 30, .dense_dtype = KVS_BF16)},
     30,
     3,
     KVS_PROMPT_KV},
    {"after the start",
     1,
     {SPEC(1, 64, 64, AFFINE(4, 64, KVS_BF16), .dense_until = 30, .dense_dtype = KVS_BF16)},
     300,
     3,
     KVS_PROMPT_QUANTIZED},
    {"a borrower",
     3,
     {SPEC(1, 32, 32, DENSE(KVS_F16)),
      SPEC(1, 32, 32, DENSE(KVS_F16), .kind = KVS_LAYER_BORROW, .donor = 0),
      SPEC(1, 32, 32, DENSE(KVS_F32))},
     9,
     3,
     KVS_PROMPT_KV},
};

static void round_trip(const round_row *r, kvs_prompt_layout layout)
{
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_prompt_layer info = KVS_PROMPT_LAYER_INIT;
    kvs_prompt_info file = KVS_PROMPT_INFO_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.layout = layout;
    kvs_cache *a = make(ctx, r->spec, r->n_layers);
    kvs_cache *b = make(ctx, r->spec, r->n_layers);
    feed(a, r->tokens, 1);
    save(a, &o);
    kvs_prompt_cache *f = open_file(path);
    assert_int_equal(kvs_prompt_cache_get_info(f, &file), KVS_OK);
    assert_int_equal(file.layout, layout);
    assert_int_equal(file.n_rows, 1);
    assert_int_equal(kvs_prompt_cache_get_layer(f, 0, &info), KVS_OK);
    assert_int_equal(info.cls, r->cls);
    assert_int_equal(info.offset, r->tokens);
    assert_int_equal(info.window, r->spec[0].window);
    assert_int_equal(info.sinks, r->spec[0].sinks);
    assert_int_equal(kvs_prompt_cache_get_layer(f, file.n_layers, &info), KVS_NO);
    if (kvs_prompt_cache_load(f, 0, b, &err) != KVS_OK) {
        fail_msg("%s: %s", r->name, err.msg);
    }
    for (uint32_t l = 0; l < r->n_layers; l++) {
        same_layer(a, b, l);
    }
    same_reads(a, b);
    assert_int_equal(kvs_prompt_cache_load(f, 0, b, &err), KVS_E_STATE);
    kvs_prompt_cache_close(f);
    kvs_cache_free(a);
    kvs_cache_free(b);
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (uint32_t layout = 0; layout < 2; layout++) {
            if (rows[i].layouts >> layout & 1) {
                round_trip(&rows[i], (kvs_prompt_layout)layout);
            }
        }
    }
}

/* A ring's file fits a ring of another phase and block, and one that keeps all. */
static void test_other_layouts(void **state)
{
    (void)state;
    const kvs_layer_spec grow = SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24);
    const kvs_layer_spec to[] = {
        SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 1)),
        SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 64)),
        SPEC(2, 32, 64, DENSE(KVS_F16), PAGED(24, 8)),
        SPEC(2, 32, 64, DENSE(KVS_F16), .window = 24),
    };
    for (size_t i = 0; i < sizeof to / sizeof to[0]; i++) {
        kvs_cache *a = make(ctx, &grow, 1);
        kvs_cache *b = make(ctx, &to[i], 1);
        feed(a, 100, 3);
        save(a, NULL);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        same_layer(a, b, 0);
        kvs_prompt_cache_close(f);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
}

/* ---- several rows, lists, chunks, metadata */

static void test_batch(void **state)
{
    (void)state;
    const kvs_layer_spec specs[2] = {SPEC(2, 32, 64, DENSE(KVS_F16)),
                                     SPEC(2, 32, 64, DENSE(KVS_F16), RING(24, 0, 64))};
    const uint32_t n[3] = {5, 60, 24};
    for (int layout = 0; layout < 2; layout++) {
        kvs_cache *c[3];
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_prompt_info info = KVS_PROMPT_INFO_INIT;
        for (int r = 0; r < 3; r++) {
            c[r] = make(ctx, specs, 2);
            feed(c[r], n[r], 10 + (uint64_t)r);
        }
        const kvs_cache *more[2] = {c[1], c[2]};
        o.layout = (kvs_prompt_layout)layout;
        o.more = more;
        o.n_more = 2;
        save(c[0], &o);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_get_info(f, &info), KVS_OK);
        assert_int_equal(info.n_rows, 3);
        for (uint32_t r = 0; r < 3; r++) {
            kvs_cache *b = make(ctx, specs, 2);
            assert_int_equal(kvs_prompt_cache_load(f, r, b, NULL), KVS_OK);
            same_layer(c[r], b, 0);
            same_layer(c[r], b, 1);
            same_reads(c[r], b);
            kvs_cache_free(b);
        }
        kvs_cache *b = make(ctx, specs, 2);
        assert_int_equal(kvs_prompt_cache_load(f, 3, b, NULL), KVS_E_RANGE);
        kvs_cache_free(b);
        kvs_prompt_cache_close(f);
        for (int r = 0; r < 3; r++) {
            kvs_cache_free(c[r]);
        }
    }
}

static bool str_is(const char *s, size_t n, const char *want)
{
    return n == strlen(want) && memcmp(s, want, n) == 0;
}

static void test_lists_and_meta(void **state)
{
    (void)state;
    const kvs_layer_spec specs[3] = {SPEC(2, 32, 64, DENSE(KVS_F16)),
                                     SPEC(1, 64, 64, AFFINE(8, 32, KVS_F16)),
                                     SPEC(1, 32, 32, DENSE(KVS_F32))};
    const kvs_prompt_form forms[3] = {{9, 0}, {9, 0}, {0, 64}};
    const kvs_prompt_meta meta[2] = {{"model", "a \"b\"\n\\ \xc3\xa9"}, {"empty", ""}};
    int32_t tokens[7] = {1, 0, 2147483647, 3, 4, 5, 6};
    int32_t back[8];
    for (int layout = 0; layout < 2; layout++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_prompt_layer l = KVS_PROMPT_LAYER_INIT;
        kvs_prompt_info info = KVS_PROMPT_INFO_INIT;
        kvs_cache *a = make(ctx, specs, 3);
        kvs_cache *b = make(ctx, specs, 3);
        feed(a, 7, 2);
        o.layout = (kvs_prompt_layout)layout;
        o.forms = forms;
        o.n_forms = 3;
        o.meta = meta;
        o.n_meta = 2;
        o.tokens = tokens;
        o.n_tokens = 7;
        save(a, &o);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_get_info(f, &info), KVS_OK);
        assert_true(info.n_entries == 2 && info.n_layers == 3 && info.n_meta == 3);
        assert_int_equal(kvs_prompt_cache_get_layer(f, 1, &l), KVS_OK);
        assert_true(l.entry == 0 && l.member == 1 && l.cls == KVS_PROMPT_QUANTIZED);
        assert_int_equal(kvs_prompt_cache_get_layer(f, 2, &l), KVS_OK);
        assert_true(l.entry == 1 && l.member == UINT32_MAX && l.cls == KVS_PROMPT_CHUNKED &&
                    l.chunk == 64);
        const char *k = NULL;
        const char *v = NULL;
        size_t kn = 0;
        size_t vn = 0;
        assert_int_equal(kvs_prompt_cache_get_meta(f, 2, &k, &kn, &v, &vn), KVS_OK);
        assert_true(str_is(k, kn, "model") && str_is(v, vn, meta[0].value));
        assert_int_equal(kvs_prompt_cache_get_meta(f, 3, &k, &kn, &v, &vn), KVS_NO);
        size_t n = 0;
        assert_int_equal(kvs_prompt_cache_get_tokens(f, back, 8, &n, NULL), KVS_OK);
        assert_int_equal(n, 7);
        assert_memory_equal(back, tokens, sizeof tokens);
        assert_int_equal(kvs_prompt_cache_get_tokens(f, back, 2, &n, NULL), KVS_OK);
        assert_int_equal(n, 7);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, NULL), KVS_OK);
        for (uint32_t i = 0; i < 3; i++) {
            same_layer(a, b, i);
        }
        kvs_prompt_cache_close(f);
        kvs_cache_free(a);
        kvs_cache_free(b);
    }
}

/* Recurrent state stands where the layers that count say, in a list, and in a batch. */
static void test_recurrent(void **state)
{
    (void)state;
    kvs_recurrent_spec r = KVS_RECURRENT_SPEC_INIT;
    r.n_heads = 2;
    r.n_groups = 1;
    r.head_dim = 8;
    r.state_dim = 4;
    r.conv_dim = 24;
    r.conv_taps = 4;
    r.conv_dtype = KVS_BF16;
    const kvs_layer_spec specs[2] = {
        {.struct_size = sizeof(kvs_layer_spec), .kind = KVS_LAYER_RECURRENT, .recurrent = &r},
        SPEC(1, 32, 32, DENSE(KVS_F16))};
    const kvs_prompt_form forms[2] = {{1, 0}, {1, 0}};
    uint16_t conv[2][72];
    float mat[2][64];
    for (int layout = 0; layout < 2; layout++) {
        kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
        kvs_prompt_layer l = KVS_PROMPT_LAYER_INIT;
        kvs_recurrent_planes p = KVS_RECURRENT_PLANES_INIT;
        kvs_cache *c[2];
        for (uint32_t i = 0; i < 2; i++) {
            c[i] = make(ctx, specs, 2);
            feed(c[i], 7 + i, i);
            for (uint16_t k = 0; k < 72; k++) {
                conv[i][k] = (uint16_t)(0x3f80 + 100 * i + k);
                mat[i][k < 64 ? k : 0] = (float)k - 5.5f * (float)i;
            }
            p.conv = conv[i];
            p.state = mat[i];
            assert_int_equal(kvs_recurrent_import(c[i], 0, 7 + i, &p, NULL), KVS_OK);
        }
        const kvs_cache *more = c[1];
        o.layout = (kvs_prompt_layout)layout;
        o.forms = forms;
        o.n_forms = 2;
        o.more = &more;
        o.n_more = 1;
        save(c[0], &o);
        kvs_prompt_cache *f = open_file(path);
        assert_int_equal(kvs_prompt_cache_get_layer(f, 0, &l), KVS_OK);
        assert_true(l.cls == KVS_PROMPT_ARRAYS && l.n_arrays == 2 && l.member == 0);
        for (uint32_t i = 0; i < 2; i++) {
            kvs_cache *b = make(ctx, specs, 2);
            uint16_t conv2[72];
            float mat2[64];
            kvs_err err = {KVS_OK, 0, "", ""};
            if (kvs_prompt_cache_load(f, i, b, &err) != KVS_OK) {
                fail_msg("%s", err.msg);
            }
            assert_int_equal(kvs_cache_length(b, 0), 7 + i);
            same_layer(c[i], b, 1);
            p.conv = conv2;
            p.state = mat2;
            assert_int_equal(kvs_recurrent_export(b, 0, 7 + i, &p, NULL), KVS_OK);
            assert_memory_equal(conv2, conv[i], sizeof conv2);
            assert_memory_equal(mat2, mat[i], sizeof mat2);
            kvs_cache_free(b);
        }
        kvs_layer_spec other[2] = {specs[0], specs[1]};
        kvs_recurrent_spec wide = r;
        kvs_err err = {KVS_OK, 0, "", ""};
        wide.head_dim = 16;
        other[0].recurrent = &wide;
        kvs_cache *b = make(ctx, other, 2);
        assert_int_equal(kvs_prompt_cache_load(f, 0, b, &err), KVS_E_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "layer 0: its arrays are not a tail of 3 x 24 and a state "
                                        "of 2 x 16 x 4"));
        kvs_cache_free(b);
        kvs_prompt_cache_close(f);
        kvs_cache_free(c[0]);
        kvs_cache_free(c[1]);
        /* nothing else counts: only the tokens tell where the state stands */
        kvs_cache *one = make(ctx, specs, 1);
        const int32_t tokens[3] = {1, 2, 3};
        p.conv = conv[0];
        p.state = mat[0];
        assert_int_equal(kvs_recurrent_import(one, 0, 3, &p, NULL), KVS_OK);
        o = (kvs_prompt_save_opts)KVS_PROMPT_SAVE_OPTS_INIT;
        o.layout = (kvs_prompt_layout)layout;
        for (int told = 0; told < 2; told++) {
            b = make(ctx, specs, 1);
            o.tokens = told ? tokens : NULL;
            o.n_tokens = 3;
            save(one, &o);
            f = open_file(path);
            kvs_status st = kvs_prompt_cache_load(f, 0, b, &err);
            assert_int_equal(st, told ? KVS_OK : KVS_E_UNSUPPORTED);
            assert_int_equal(kvs_cache_length(b, 0), told ? 3 : 0);
            kvs_prompt_cache_close(f);
            kvs_cache_free(b);
        }
        kvs_cache_free(one);
    }
}

/* ---- a session */

static void test_session(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA;
    char model_path[256];
    kvs_model *model = NULL;
    kvs_plan *plan = NULL;
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_prompt_save_opts o = KVS_PROMPT_SAVE_OPTS_INIT;
    kvs_session *s[2];
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t tokens[100];
    size_t reused = 0;
    size_t n = 0;
    for (int i = 0; i < 100; i++) {
        tokens[i] = (i * 31 + 7) % 97;
    }
    assert_true(tiny_write(&t, model_path, sizeof model_path));
    assert_int_equal(kvs_model_open(ctx, model_path, NULL, &model, NULL), KVS_OK);
    po.kv = "bf16";
    po.max_block = 8;
    assert_int_equal(kvs_plan_new(ctx, model, &po, &plan, NULL), KVS_OK);
    so.plan = plan;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvs_session_new(ctx, model, &so, &s[i], NULL), KVS_OK);
    }
    assert_int_equal(kvs_session_sync(s[0], tokens, 90, NULL, NULL), KVS_OK);
    o.tokens = tokens;
    o.n_tokens = 90;
    save(kvs_session_cache(s[0]), &o);
    assert_int_equal(kvs_session_append(s[0], tokens + 90, 10, NULL), KVS_OK);

    kvs_prompt_cache *f = open_file(path);
    assert_int_equal(kvs_session_append(s[1], tokens, 3, NULL), KVS_OK); /* is given up */
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_null(kvs_session_logits(s[1]));
    assert_memory_equal(kvs_session_tokens(s[1], &n), tokens, 90 * sizeof *tokens);
    assert_int_equal(n, 90);
    assert_int_equal(kvs_session_sync(s[1], tokens, 100, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 90);
    assert_memory_equal(kvs_session_logits(s[0]), kvs_session_logits(s[1]), 97 * sizeof(float));
    /* exactly what is held: the last token is computed again */
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_int_equal(kvs_session_sync(s[1], tokens, 90, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 89);
    assert_int_equal(kvs_session_append(s[1], tokens + 90, 10, NULL), KVS_OK);
    assert_memory_equal(kvs_session_logits(s[0]), kvs_session_logits(s[1]), 97 * sizeof(float));
    kvs_prompt_cache_close(f);

    /* tokens that the file does not tell: one goes on behind them, and samples */
    kvs_session *cold = s[0];
    assert_int_equal(kvs_session_sync(cold, tokens, 90, NULL, NULL), KVS_OK);
    save(kvs_session_cache(cold), NULL);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_OK);
    assert_int_equal(kvs_session_tokens(s[1], &n)[89], -1);
    assert_int_equal(kvs_session_append(s[1], tokens + 90, 10, NULL), KVS_OK);
    assert_int_equal(kvs_session_append(cold, tokens + 90, 10, NULL), KVS_OK);
    assert_memory_equal(kvs_session_logits(cold), kvs_session_logits(s[1]), 97 * sizeof(float));
    kvs_sampler_opts sam = KVS_SAMPLER_OPTS_INIT;
    kvs_sampler *sampler = NULL;
    int32_t token = -1;
    sam.repeat_penalty = 1.5f;
    assert_int_equal(kvs_sampler_new(ctx, &sam, 97, &sampler, NULL), KVS_OK);
    assert_int_equal(kvs_session_sample(s[1], sampler, &token, NULL), KVS_OK);
    assert_true(token >= 0 && token < 97);
    kvs_sampler_free(sampler);
    assert_int_equal(kvs_session_sync(s[1], tokens, 90, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 0);
    kvs_prompt_cache_close(f);

    /* more tokens than another session's context, and tokens that are none of the model's */
    kvs_plan *small = NULL;
    kvs_session *t2 = NULL;
    po.n_ctx = 80;
    assert_int_equal(kvs_plan_new(ctx, model, &po, &small, NULL), KVS_OK);
    so.plan = small;
    assert_int_equal(kvs_session_new(ctx, model, &so, &t2, NULL), KVS_OK);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(t2, f, 0, &err), KVS_E_LIMIT);
    assert_non_null(strstr(err.msg, "90 tokens in the file do not fit into the context of 80"));
    (void)kvs_session_tokens(t2, &n);
    assert_int_equal(n, 0);
    kvs_prompt_cache_close(f);
    tokens[4] = 97;
    o.n_tokens = 90;
    assert_int_equal(kvs_session_sync(cold, tokens + 10, 90, NULL, NULL), KVS_OK);
    save(kvs_session_cache(cold), &o);
    f = open_file(path);
    assert_int_equal(kvs_session_load_prompt_cache(s[1], f, 0, &err), KVS_E_RANGE);
    assert_int_equal(kvs_session_sync(s[1], tokens + 10, 20, &reused, NULL), KVS_OK);
    assert_int_equal(reused, 0);
    kvs_prompt_cache_close(f);
    kvs_session_free(t2);
    kvs_session_free(s[0]);
    kvs_session_free(s[1]);
    kvs_plan_free(small);
    kvs_plan_free(plan);
    kvs_model_close(model);
    (void)unlink(model_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_other_layouts),
        cmocka_unit_test(test_batch),      cmocka_unit_test(test_lists_and_meta),
        cmocka_unit_test(test_recurrent),  cmocka_unit_test(test_session),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
