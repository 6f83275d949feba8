/* SPDX-License-Identifier: MIT */
/* test_engine_null.c: a handle that was never made, as a binding passes after an error that it did not
 * look at: an answer like that of something empty, or KVS_E_INVAL, never a crash. Functions with a
 * status are tested where they are; these have none, or had no test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kvstate/engine.h"

static void test_plan(void **state)
{
    (void)state;
    char text[8] = "x";
    uint8_t digest[KVS_PLAN_DIGEST_BYTES] = {7};
    size_t bytes = 7;
    assert_int_equal(kvs_plan_n_layers(NULL), 0);
    assert_null(kvs_plan_layer(NULL, 0));
    assert_int_equal(kvs_plan_n_ctx(NULL), 0);
    assert_int_equal(kvs_plan_max_block(NULL), 0);
    assert_int_equal(kvs_plan_kv_block(NULL), 0);
    assert_int_equal(kvs_plan_bytes(NULL, 1, &bytes, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(kvs_plan_rows_bytes(NULL, 1, 1, &bytes, NULL, NULL), KVS_E_INVAL);
    assert_int_equal(bytes, 7);
    assert_int_equal(kvs_plan_line(NULL, 0, text, sizeof text), 0);
    assert_string_equal(text, "");
    assert_int_equal(kvs_plan_signature(NULL, text, sizeof text), 0);
    kvs_plan_digest(NULL, digest);
    assert_int_equal(digest[0], 7);
}

static void test_model(void **state)
{
    (void)state;
    size_t n = 7;
    kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
    kvs_model_tensor t = KVS_MODEL_TENSOR_INIT;
    assert_int_equal(kvs_model_window(NULL, 0), 0);
    assert_null(kvs_model_tokenizer(NULL));
    assert_null(kvs_model_string(NULL, "tokenizer.chat_template", &n));
    assert_int_equal(kvs_model_get_entry(NULL, 0, &e), KVS_E_INVAL);
    assert_int_equal(kvs_model_get_tensor(NULL, 0, &t), KVS_E_INVAL);
}

static void test_session(void **state)
{
    (void)state;
    size_t n = 7;
    const kvs_candidate *c = NULL;
    const char *text = "x";
    assert_null(kvs_session_logits(NULL));
    assert_null(kvs_session_tokens(NULL, &n));
    assert_int_equal(n, 0);
    assert_null(kvs_session_tokens(NULL, NULL));
    assert_null(kvs_session_cache(NULL));
    assert_null(kvs_batch_logits(NULL, 0, 0));
    assert_int_equal(kvs_sampler_n_vocab(NULL), 0);
    assert_int_equal(kvs_sampler_candidates(NULL, &c), 0);
    kvs_detok_finish(NULL, &text, &n);
    uint32_t first = 7;
    uint32_t count = 7;
    kvs_recurrent_pad_next(NULL, 1, &first, &count);
    assert_true(first == 7 && count == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
