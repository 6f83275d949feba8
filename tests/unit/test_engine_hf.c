/* SPDX-License-Identifier: MIT */
/* test_engine_hf.c: model directories: one file or shards, names, config.json, quantised triples;
 * each thing that may be missing, doubled or of the wrong kind; every allocation failing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "kvstate/session.h"
#include "support/fail_alloc.h"
#include "support/hf_build.h"

#define MAIN  "model.safetensors"
#define INDEX "model.safetensors.index.json"

static char dir[64];
static fail_alloc heap = FAIL_ALLOC_INIT;
static kvs_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/kvs-hf-XXXXXX");
    if (!mkdtemp(dir)) {
        return -1;
    }
    heap = (fail_alloc)FAIL_ALLOC_INIT;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    o.alloc = fail_alloc_take;
    o.free = fail_alloc_give;
    o.alloc_user = &heap;
    return kvs_ctx_new(&o, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const files[] = {
        MAIN,
        INDEX,
        "config.json",
        "a.safetensors",
        "b.safetensors",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    };
    for (size_t i = 0; i < KVS_COUNT(files); i++) {
        hf_remove(dir, files[i]);
    }
    (void)rmdir(dir);
    kvs_ctx_free(ctx);
    return heap.live == 0 && heap.wrong == 0 ? 0 : -1;
}

static void write_plain(void)
{
    static hf_file f;
    memset(&f, 0, sizeof f);
    hf_add_ends(&f);
    hf_add_layer(&f, 0, NULL);
    hf_write_file(dir, MAIN, &f);
    hf_write_text(dir, "config.json", "{" HF_CONFIG "}");
}

static kvs_model *open_good(const char *path)
{
    kvs_model *m = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_model_open(ctx, path, NULL, &m, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return m;
}

static void refused(kvs_status want, const char *says)
{
    kvs_model *m = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t live = heap.live;
    kvs_status st = kvs_model_open(ctx, dir, NULL, &m, &err);
    if (st != want || !strstr(err.msg, says)) {
        fail_msg("status %d, \"%s\"; wanted %d, \"%s\"", st, err.msg, want, says);
    }
    assert_null(m);
    assert_int_equal(heap.live, live);
}

/* Logits after a few tokens. */
static void compute(const kvs_model *m, float logits[40])
{
    kvs_plan *plan = NULL;
    kvs_session *s = NULL;
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = "f32";
    assert_int_equal(kvs_plan_new(ctx, m, &po, &plan, NULL), KVS_OK);
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = plan;
    assert_int_equal(kvs_session_new(ctx, m, &so, &s, NULL), KVS_OK);
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6, 39, 0};
    assert_int_equal(kvs_session_sync(s, tokens, KVS_COUNT(tokens), NULL, NULL), KVS_OK);
    memcpy(logits, kvs_session_logits(s), 40 * sizeof *logits);
    for (size_t i = 0; i < 40; i++) {
        assert_true(isfinite(logits[i]));
    }
    kvs_session_free(s);
    kvs_plan_free(plan);
}

static void test_opens(void **state)
{
    (void)state;
    write_plain();
    kvs_model *m = open_good(dir);
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    assert_int_equal(kvs_model_get_info(m, &info), KVS_OK);
    assert_string_equal(info.arch, "llama");
    assert_string_equal(info.name, strrchr(dir, '/') + 1);
    assert_int_equal(info.n_layers, 1);
    assert_int_equal(info.n_vocab, 40);
    assert_int_equal(info.k_dim, 32);
    assert_int_equal(info.n_params, 40 * 64 + 64 + 128 + 2 * 4096 + 2 * 2048 + 3 * 4096);
    assert_null(kvs_model_tokenizer(m));
    float a[40];
    float b[40];
    compute(m, a);
    kvs_model_close(m);
    /* by the file's name, with a slash at the end, and as shards: the same */
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", dir, MAIN);
    m = open_good(path);
    compute(m, b);
    kvs_model_close(m);
    assert_memory_equal(a, b, sizeof a);
    static hf_file f;
    memset(&f, 0, sizeof f);
    hf_add_ends(&f);
    hf_write_file(dir, "a.safetensors", &f);
    memset(&f, 0, sizeof f);
    hf_add_layer(&f, 0, NULL);
    hf_text(&f.header, " "); /* data at another, odd address */
    hf_write_file(dir, "b.safetensors", &f);
    hf_remove(dir, MAIN);
    hf_write_text(dir, INDEX,
                  "{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\","
                  "\"model.layers.0.mlp.up_proj.weight\":\"b.safetensors\"}}");
    (void)snprintf(path, sizeof path, "%s/", dir);
    m = open_good(path);
    compute(m, b);
    kvs_model_close(m);
    assert_memory_equal(a, b, sizeof a);
}

static void test_missing_files(void **state)
{
    (void)state;
    refused(KVS_E_NOTFOUND, "has no config.json");
    hf_write_text(dir, "config.json", "{" HF_CONFIG "}");
    refused(KVS_E_NOTFOUND, MAIN);
    hf_write_text(dir, INDEX, "{\"weight_map\":{\"x\":\"a.safetensors\"}}");
    refused(KVS_E_NOTFOUND, "a.safetensors");
    hf_write_text(dir, "config.json", "[]");
    refused(KVS_E_FORMAT, "config.json is array, not an object");
    hf_write_text(dir, "config.json", "{");
    refused(KVS_E_FORMAT, "config.json: line 1, byte 2");
    hf_write_text(dir, "config.json", "{}");
    refused(KVS_E_FORMAT, "model_type is nothing, not a string");
}

static void test_index(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *says;
    } bad[] = {
        {"[]", "weight_map is nothing"},
        {"{\"weight_map\":{}}", "not an object with members"},
        {"{\"weight_map\":{\"x\":7}}", "is not the name of a file beside it"},
        {"{\"weight_map\":{\"x\":\"../a.safetensors\"}}", "is not the name of a file beside it"},
        {"{\"weight_map\":{\"x\":\"/etc/passwd\"}}", "is not the name of a file beside it"},
        {"{\"weight_map\":{\"x\":\"\"}}", "is not the name of a file beside it"},
        {"{\"weight_map\":{\"x\":\"a\\u002fb\"}}", "is not the name of a file beside it"},
        {"{\"weight_map\":{\"absent\":\"a.safetensors\"}}",
         "names tensor \"absent\" in a.safetensors: it is not there"},
        {"{\"weight_map\":{\"model.norm.weight\":\"a.safetensors\","
         "\"model.embed_tokens.weight\":\"b.safetensors\"}}",
         "is in a.safetensors and in b.safetensors"},
    };
    static hf_file f;
    memset(&f, 0, sizeof f);
    hf_add_ends(&f);
    hf_write_file(dir, "a.safetensors", &f);
    hf_write_file(dir, "b.safetensors", &f);
    hf_write_text(dir, "config.json", "{" HF_CONFIG "}");
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        hf_write_text(dir, INDEX, bad[i].text);
        refused(KVS_E_FORMAT, bad[i].says);
    }
}

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *more; /* after what the model needs; the last of two values counts */
        kvs_status status;
        const char *says;
    } bad[] = {
        {"\"hidden_size\":\"64\"", KVS_E_FORMAT, "hidden_size is string 64, not a whole number"},
        {"\"hidden_size\":64.5", KVS_E_FORMAT, "hidden_size is number 64.5"},
        {"\"hidden_size\":-64", KVS_E_FORMAT, "hidden_size is number -64"},
        {"\"hidden_size\":5000000000", KVS_E_FORMAT, "hidden_size is number 5000000000"},
        {"\"hidden_size\":null", KVS_E_FORMAT, "config.json has no hidden_size"},
        {"\"hidden_size\":128", KVS_E_FORMAT, "model.embed_tokens.weight is 64 x 40"},
        {"\"num_hidden_layers\":2", KVS_E_FORMAT, "no tensor model.layers.1.input_layernorm"},
        {"\"num_hidden_layers\":0", KVS_E_FORMAT, "block_count is 0"},
        {"\"vocab_size\":41", KVS_E_FORMAT, "has 40 rows"},
        {"\"rms_norm_eps\":\"x\"", KVS_E_FORMAT, "rms_norm_eps is string x, not a number"},
        {"\"rms_norm_eps\":1e99", KVS_E_FORMAT, "rms_norm_eps is number 1e99"},
        {"\"rms_norm_eps\":0", KVS_E_FORMAT, "not a positive number"},
        {"\"rope_theta\":-1", KVS_E_FORMAT, "rope_theta is number -1, not a positive number"},
        {"\"hidden_act\":\"relu\"", KVS_E_FORMAT, "hidden_act is string relu, not silu"},
        {"\"use_sliding_window\":true", KVS_E_UNSUPPORTED, "use_sliding_window is true"},
        {"\"use_sliding_window\":7", KVS_E_FORMAT, "use_sliding_window is number 7"},
        {"\"tie_word_embeddings\":false", KVS_E_FORMAT, "there is no tensor lm_head.weight"},
        {"\"model_type\":\"bert\"", KVS_E_UNSUPPORTED, "architecture \"bert\" is not supported"},
        {"\"rope_scaling\":{\"type\":\"odd\"}", KVS_E_UNSUPPORTED, "rope_scaling of type \"odd\""},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}", KVS_E_FORMAT, "factor is number 0"},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\"}", KVS_E_FORMAT, "rope_scaling has factor 0"},
        {"\"quantization_config\":{\"quant_method\":\"gptq\"}", KVS_E_UNSUPPORTED,
         "quantisation by \"gptq\" is not read"},
        {"\"quantization\":{\"mode\":\"mxfp4\"}", KVS_E_UNSUPPORTED, "mode \"mxfp4\" is not read"},
    };
    write_plain();
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        char text[1024];
        (void)snprintf(text, sizeof text, "{" HF_CONFIG ",%s}", bad[i].more);
        hf_write_text(dir, "config.json", text);
        refused(bad[i].status, bad[i].says);
    }
}

/* One file of a layer without one tensor, or with one more. */
static void write_variant(const char *skip, const char *name, const char *dtype, const char *shape,
                          size_t bytes)
{
    static hf_file f;
    memset(&f, 0, sizeof f);
    hf_add_ends(&f);
    hf_add_layer(&f, 0, skip);
    if (name) {
        hf_add(&f, name, dtype, shape, bytes);
    }
    hf_write_file(dir, MAIN, &f);
}

static void test_tensors(void **state)
{
    (void)state;
    write_plain();
    write_variant("mlp.up_proj", NULL, NULL, NULL, 0);
    refused(KVS_E_FORMAT, "the model has no tensor model.layers.0.mlp.up_proj.weight");
    write_variant("mlp.up_proj", "model.layers.0.mlp.up_proj.weight", "BF16", "64,32", 4096);
    refused(KVS_E_FORMAT, "model.layers.0.mlp.up_proj.weight is 32 x 64");
    write_variant("mlp.up_proj", "model.layers.0.mlp.up_proj.weight", "I8", "64,64", 4096);
    refused(KVS_E_UNSUPPORTED, "model.layers.0.mlp.up_proj.weight is of type I8");
    write_variant("mlp.up_proj", "model.layers.0.mlp.up_proj.weight", "U32", "64,8", 2048);
    refused(KVS_E_FORMAT, "is U32 and has no .scales beside it");
    write_variant("input_layernorm", "model.layers.0.input_layernorm.weight", "F32", "63", 252);
    refused(KVS_E_FORMAT, "model.layers.0.input_layernorm.weight has 63 x 1");
    write_variant(NULL, "model.layers.0.self_attn.odd.weight", "F32", "1", 4);
    refused(KVS_E_UNSUPPORTED, "self_attn.odd.weight is not used by architecture llama");
    write_variant(NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", "1", 4);
    kvs_model_close(open_good(dir));
    write_variant(NULL, "vision_tower.layers.0.odd.weight", "I64", "1", 8);
    kvs_model_close(open_good(dir));
    /* a head of its own counts unless the configuration says that it is tied */
    write_variant(NULL, "lm_head.weight", "BF16", "39,64", 39 * 64 * 2);
    refused(KVS_E_FORMAT, "lm_head.weight is 64 x 39");
    hf_write_text(dir, "config.json", "{" HF_CONFIG ",\"tie_word_embeddings\":true}");
    kvs_model_close(open_good(dir));
    write_variant(NULL, "lm_head.weight", "BF16", "40,64", 40 * 64 * 2);
    hf_write_text(dir, "config.json", "{" HF_CONFIG ",\"tie_word_embeddings\":false}");
    kvs_model_close(open_good(dir));
}

#define UP "model.layers.0.mlp.up_proj"

static void write_triple(const char *scales, size_t scale_bytes, const char *dtype)
{
    static hf_file f;
    memset(&f, 0, sizeof f);
    hf_add_ends(&f);
    hf_add_layer(&f, 0, "mlp.up_proj");
    hf_add(&f, UP ".weight", "U32", "64,8", 2048);
    hf_add(&f, UP ".scales", dtype, scales, scale_bytes);
    hf_add(&f, UP ".biases", dtype, scales, scale_bytes);
    hf_write_file(dir, MAIN, &f);
}

static void test_quantised(void **state)
{
    (void)state;
    static const struct {
        const char *quantization;
        kvs_status status;
        const char *says;
    } bad[] = {
        {"{}", KVS_E_FORMAT, "no quantization.bits and group_size for " UP},
        {"{\"bits\":\"4\",\"group_size\":32}", KVS_E_FORMAT, "no quantization.bits"},
        {"{\"bits\":7,\"group_size\":32}", KVS_E_UNSUPPORTED, "has 7 bits in groups of 32"},
        {"{\"bits\":4,\"group_size\":16}", KVS_E_UNSUPPORTED, "has 4 bits in groups of 16"},
        {"{\"bits\":4,\"group_size\":64}", KVS_E_FORMAT, "words and scales disagree"},
        {"{\"bits\":8,\"group_size\":32}", KVS_E_FORMAT, "words and scales disagree"},
        {"{\"bits\":4,\"group_size\":32,\"" UP "\":false}", KVS_E_FORMAT, "is not quantised, but"},
        {"{\"bits\":4,\"group_size\":32,\"" UP "\":{\"bits\":4,\"group_size\":64}}", KVS_E_FORMAT,
         "words and scales disagree"},
        {"{\"bits\":4,\"group_size\":32,\"" UP "\":{\"bits\":4,\"mode\":\"nvfp4\"}}",
         KVS_E_UNSUPPORTED, "mode \"nvfp4\""},
        {"{\"bits\":4,\"group_size\":32,\"bits\":4}", KVS_E_FORMAT, "'bits' occurs twice"},
    };
    write_triple("64,2", 256, "BF16");
    char text[1024];
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        (void)snprintf(text, sizeof text, "{" HF_CONFIG ",\"quantization\":%s}",
                       bad[i].quantization);
        hf_write_text(dir, "config.json", text);
        refused(bad[i].status, bad[i].says);
    }
    hf_write_text(dir, "config.json",
                  "{" HF_CONFIG ",\"quantization\":{\"bits\":8,\"group_size\":64,\"" UP
                  "\":{\"bits\":4,\"group_size\":32}}}");
    kvs_model *m = open_good(dir);
    float logits[40];
    compute(m, logits);
    kvs_model_tensor t = KVS_MODEL_TENSOR_INIT;
    bool found = false;
    for (size_t i = 0; kvs_model_get_tensor(m, i, &t) == KVS_OK; i++) {
        assert_null(strstr(t.name, "scales"));
        if (strcmp(t.name, UP ".weight") == 0) {
            found = true;
            assert_string_equal(t.type, "affine4:32");
            assert_int_equal(t.dims[0], 64);
            assert_int_equal(t.dims[1], 64);
            assert_int_equal(t.bytes, 2048 + 512);
        }
    }
    assert_true(found);
    kvs_model_close(m);
    write_triple("64,2", 128, "I8");
    refused(KVS_E_FORMAT, "scales and biases must be F32, F16 or BF16");
    write_triple("32,2", 128, "F16");
    refused(KVS_E_FORMAT, "other rows than the weight");
    write_triple("128", 256, "F16");
    refused(KVS_E_FORMAT, "other rows than the weight");
}

static void test_inspect(void **state)
{
    (void)state;
    write_plain();
    hf_write_text(dir, "generation_config.json",
                  "{\"eos_token_id\":[1,2],\"temperature\":0.5,\"do_sample\":true}");
    hf_write_text(
        dir, "config.json",
        "{\"model_type\":\"odd\",\"a\":{\"b\":{\"c\":{\"d\":1},\"e\":\"x\"}},\"f\":[1,2.5]}");
    kvs_model_opts o = KVS_MODEL_OPTS_INIT;
    o.flags = KVS_MODEL_INSPECT;
    kvs_model *m = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_model_open(ctx, dir, &o, &m, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    static const char *const want[][2] = {
        {"general.architecture", "odd"},   {"config.a.b.e", "x"},
        {"config.f", "2: 1 2.5"},          {"generation.eos_token_id", "2: 1 2"},
        {"generation.temperature", "0.5"}, {"generation.do_sample", "true"},
    };
    for (size_t k = 0; k < KVS_COUNT(want); k++) {
        kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
        bool found = false;
        for (size_t i = 0; kvs_model_get_entry(m, i, &e) == KVS_OK; i++) {
            if (strcmp(e.key, want[k][0]) == 0) {
                found = true;
                assert_string_equal(e.value, want[k][1]);
            }
        }
        if (!found) {
            fail_msg("no %s", want[k][0]);
        }
    }
    kvs_model_close(m);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    write_triple("64,2", 256, "F16");
    hf_write_text(dir, "config.json",
                  "{" HF_CONFIG ",\"quantization\":{\"bits\":4,\"group_size\":32},"
                  "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":4}}");
    long k = 0;
    for (;; k++) {
        size_t live = heap.live;
        heap.fail_at = heap.calls + k;
        kvs_model *m = NULL;
        kvs_err err = {KVS_OK, 0, "", ""};
        kvs_status st = kvs_model_open(ctx, dir, NULL, &m, &err);
        heap.fail_at = -1;
        if (st != KVS_OK && (st != KVS_E_NOMEM || m || !err.msg[0])) {
            fail_msg("allocation %ld: status %d, %s", k, st, err.msg);
        }
        kvs_model_close(m);
        assert_int_equal(heap.live, live);
        if (st == KVS_OK) {
            break;
        }
    }
    assert_true(k > 20);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* The tokenizer of the folder is the model's, its chat template is found as in a GGUF file, and ids
 * up to the rows of the embedding exist. */
static void test_tokenizer(void **state)
{
    (void)state;
    write_plain();
    hf_write_text(dir, "tokenizer.json",
                  "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},"
                  "\"merges\":[\"a b\"]}}");
    hf_write_text(dir, "tokenizer_config.json", "{\"chat_template\":\"{{ messages }}\"}");
    kvs_model *m = open_good(dir);
    const kvs_tokenizer *tok = kvs_model_tokenizer(m);
    assert_non_null(tok);
    int32_t ids[4];
    size_t n = 0;
    assert_int_equal(kvs_tokenizer_encode(tok, "aba", 3, 0, ids, 4, &n, NULL), KVS_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[1], 0);
    assert_int_equal(kvs_tokenizer_size(tok), 40);
    size_t len = 0;
    const char *template = kvs_model_string(m, "tokenizer.chat_template", &len);
    assert_int_equal(len, 14);
    assert_memory_equal(template, "{{ messages }}", 14);
    assert_null(kvs_model_string(m, "tokenizer.nothing", &len));
    kvs_model_close(m);
    hf_write_text(dir, "tokenizer.json", "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}");
    refused(KVS_E_UNSUPPORTED, "WordPiece");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_opens),     TEST(test_tokenizer), TEST(test_missing_files),
        TEST(test_index),     TEST(test_config),    TEST(test_tensors),
        TEST(test_quantised), TEST(test_inspect),   TEST(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
