/* SPDX-License-Identifier: MIT */
/* test_engine_model_gguf.c: the reader on the two real models (scripts/fetch-model.sh). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/gguf.h"
#include "support/gguf_walk.h"
#include "support/models.h"

static kvs_ctx *ctx;
static unsigned n_run;

/* NULL when the model is absent. */
static kvs__gguf *open_model(const char *file)
{
    char path[4096];
    if (!kvs_test_model(file, path, sizeof path)) {
        return NULL;
    }
    kvs__gguf *g = NULL;
    kvs_err err = {0};
    if (kvs__gguf_open(ctx, path, &g, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    n_run++;
    return g;
}

static void expect_u32(const kvs__gguf *g, const char *key, uint32_t want)
{
    uint32_t got = 0;
    kvs_err err = {0};
    if (kvs__gguf_get_u32(g, key, &got, &err) != KVS_OK || got != want) {
        fail_msg("%s is %u (%s), expected %u", key, got, err.msg, want);
    }
}

static void expect_token(const kvs__gguf_array *tokens, size_t i, const char *want)
{
    kvs__str s = kvs__gguf_array_str(tokens, i);
    if (!kvs__str_eq(s, want)) {
        fail_msg("token %zu is '%.*s', expected '%s'", i, (int)s.len, s.ptr, want);
    }
}

/* Of all tensors, without padding. */
static size_t tensor_bytes(const kvs__gguf *g)
{
    size_t sum = 0;
    const kvs__gguf_tensor *t = NULL;
    for (size_t i = 0; (t = kvs__gguf_tensor_at(g, i)) != NULL; i++) {
        sum += t->bytes;
    }
    return sum;
}

static void test_smollm2(void **state)
{
    (void)state;
    kvs__gguf *g = open_model(KVS_TEST_SMOLLM2);
    if (!g) {
        skip();
    }
    kvs__gguf_array tokens;
    kvs__gguf_array merges;
    float base = 0;
    assert_int_equal(kvs__gguf_get_info(g).n_tensors, 272);
    assert_int_equal(tensor_bytes(g), 96576768);
    expect_u32(g, "llama.block_count", 30);
    expect_u32(g, "llama.attention.head_count_kv", 3);
    assert_int_equal(kvs__gguf_get_f32(g, "llama.rope.freq_base", &base, NULL), KVS_OK);
    assert_true(base == 100000.0f);
    assert_int_equal(kvs__gguf_get_array(g, "tokenizer.ggml.tokens", KVS__GGUF_STR, &tokens, NULL),
                     KVS_OK);
    assert_int_equal(tokens.n, 49152);
    expect_token(&tokens, 0, "<|endoftext|>");
    expect_token(&tokens, 2, "<|im_end|>");
    assert_int_equal(kvs__gguf_get_array(g, "tokenizer.ggml.merges", KVS__GGUF_STR, &merges, NULL),
                     KVS_OK);
    const kvs__gguf_tensor *t = kvs__gguf_tensor_find(g, "blk.29.ffn_down.weight");
    assert_non_null(t);
    assert_true(t->type == KVS__W_Q4_1 && t->ne[0] == 1536 && t->ne[1] == 576);
    assert_int_equal(t->row_bytes, 1536 / 32 * 20);
    (void)gguf_walk(g);
    kvs__gguf_close(g);
}

static void test_gemma3(void **state)
{
    (void)state;
    kvs__gguf *g = open_model(KVS_TEST_GEMMA3);
    if (!g) {
        skip();
    }
    kvs__gguf_array tokens;
    kvs__gguf_array scores;
    bool add_bos = false;
    assert_int_equal(kvs__gguf_get_info(g).n_tensors, 236);
    assert_int_equal(tensor_bytes(g), 246587904);
    expect_u32(g, "gemma3.block_count", 18);
    expect_u32(g, "gemma3.attention.sliding_window", 512);
    assert_int_equal(kvs__gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &add_bos, NULL), KVS_OK);
    assert_true(add_bos);
    assert_int_equal(kvs__gguf_get_array(g, "tokenizer.ggml.tokens", KVS__GGUF_STR, &tokens, NULL),
                     KVS_OK);
    assert_int_equal(tokens.n, 262144);
    expect_token(&tokens, 2, "<bos>");
    expect_token(&tokens, 106, "<end_of_turn>");
    assert_int_equal(kvs__gguf_get_array(g, "tokenizer.ggml.scores", KVS__GGUF_F32, &scores, NULL),
                     KVS_OK);
    assert_int_equal(scores.n, tokens.n);
    const kvs__gguf_tensor *t = kvs__gguf_tensor_find(g, "token_embd.weight");
    assert_non_null(t);
    assert_true(t->type == KVS__W_Q8_0 && t->ne[0] == 640 && t->n_rows == 262144);
    (void)gguf_walk(g);
    kvs__gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smollm2),
        cmocka_unit_test(test_gemma3),
    };
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    if (kvs_ctx_new(&opts, &ctx, NULL) != KVS_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvs_ctx_free(ctx);
    return failed || n_run > 0 ? failed : KVS_TEST_SKIP;
}
