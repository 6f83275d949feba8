/* SPDX-License-Identifier: MIT */
/* test_engine_model_token.c: the tokenizers of the two real models. The ids of the prompts were
 * recorded from llama.cpp 0c1e57098 (add_special and parse_special on); the rest are round trips.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/token_gguf.h"
#include "support/models.h"

enum { MAX_IDS = 64 };

struct prompt {
    const char *text;
    int32_t ids[MAX_IDS]; /* up to -1 */
};

static const struct prompt SMOLLM2[] = {
    {"The capital of France is", {504, 3575, 282, 4649, 314, -1}},
    {"Once upon a time, in a small village by the sea,",
     {6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28, -1}},
    {"def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
     {1604, 3987, 46477, 24, 94, 727, 472, 1620, 14362, 260, 304, 29, 373, 24681, 46477, 1230, 7996,
      198, -1}},
    {"<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n",
     {1, 4093, 198, 1780, 314, 216, 33, 34, 1232, 216, 39, 47, 2, 198, 1, 520, 9531, 198, -1}},
    {"List three reasons why caching intermediate results makes programs faster:\n1.",
     {6106, 1296, 3710, 1701, 48002, 14019, 1844, 2022, 2774, 5331, 42, 198, 33, 30, -1}},
};

static const struct prompt GEMMA3[] = {
    {"The capital of France is", {2, 818, 5279, 529, 7001, 563, -1}},
    {"Once upon a time, in a small village by the sea,",
     {2, 14946, 3324, 496, 990, 236764, 528, 496, 1944, 9744, 684, 506, 5442, 236764, -1}},
    {"def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
     {2,     2063, 10779, 78113,  236769, 236749, 1473, 107,   140, 12234,
      13293, 506,  538,   236772, 594,    123466, 1548, 29738, 107, -1}},
    {"Q: What is 12 + 7? Explain step by step.\nA:",
     {2,      236935, 236787, 2900, 563,  236743, 236770, 236778, 900,    236743, 236832,
      236881, 42085,  2918,   684,  2918, 236761, 107,    236776, 236787, -1}},
    {"List three reasons why caching intermediate results makes programs faster:\n1.",
     {2, 1613, 1806, 7483, 3217, 80864, 18276, 2536, 3590, 6607, 11442, 236787, 107, 236770, 236761,
      -1}},
};

static kvs_ctx *ctx;
static unsigned n_run;

struct model {
    kvs__gguf *g;
    kvs_tokenizer *tok;
};

static struct model open_model(const char *file)
{
    char path[4096];
    struct model m = {NULL, NULL};
    if (!kvs_test_model(file, path, sizeof path)) {
        skip();
    }
    n_run++;
    kvs_err err = {0};
    if (kvs__gguf_open(ctx, path, &m.g, &err) != KVS_OK ||
        kvs__tokenizer_from_gguf(ctx, m.g, NULL, &m.tok, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return m;
}

static void close_model(struct model m)
{
    kvs__tokenizer_free(m.tok);
    kvs__gguf_close(m.g);
}

static void check_prompt(const kvs_tokenizer *tok, const struct prompt *p)
{
    int32_t ids[MAX_IDS];
    size_t n = 0;
    const uint32_t flags = KVS_TOKENIZE_ADD_SPECIAL | KVS_TOKENIZE_SPECIAL;
    assert_int_equal(
        kvs_tokenizer_encode(tok, p->text, strlen(p->text), flags, ids, MAX_IDS, &n, NULL), KVS_OK);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] != p->ids[i]) {
            fail_msg("\"%s\": id %zu is %d, not %d", p->text, i, ids[i], p->ids[i]);
        }
    }
    assert_int_equal(p->ids[n], -1);
}

/* Every prefix of a text of all sorts comes back, a cut character as U+FFFD. */
static void check_prefixes(const kvs_tokenizer *tok)
{
    static const char text[] = "  Hi! it's\t12345,\n\n\r\n na\303\257ve \344\270\255\346\226\207 "
                               "\360\237\221\251\342\200\215\360\237\232\200    x=(y+1);";
    for (size_t n = 0; n < sizeof text; n++) {
        int32_t ids[256];
        char out[256];
        size_t n_ids = 0;
        size_t len = 0;
        assert_int_equal(kvs_tokenizer_encode(tok, text, n, 0, ids, 256, &n_ids, NULL), KVS_OK);
        assert_int_equal(kvs_tokenizer_decode(tok, ids, n_ids, 0, out, sizeof out, &len, NULL),
                         KVS_OK);
        size_t same = 0;
        while (same < n && same < len && out[same] == text[same]) {
            same++;
        }
        if (same < n) { /* U+FFFD and the first bytes of a cut character may begin alike */
            assert_true(n - same < 4 && len >= 3);
            assert_memory_equal(out + len - 3, "\357\277\275", 3);
        } else {
            assert_int_equal(len, n);
        }
    }
}

static void smollm2(void **state)
{
    (void)state;
    struct model m = open_model(KVS_TEST_SMOLLM2);
    for (size_t i = 0; i < KVS_COUNT(SMOLLM2); i++) {
        check_prompt(m.tok, &SMOLLM2[i]);
    }
    check_prefixes(m.tok);
    assert_int_equal(kvs_tokenizer_size(m.tok), 49152);
    assert_int_equal(kvs_tokenizer_adds(m.tok), 0);
    assert_int_equal(kvs_tokenizer_special(m.tok, KVS_SPECIAL_EOS), 2);
    assert_int_equal(kvs_tokenizer_find(m.tok, "<|im_end|>", 10), 2);
    assert_int_equal(kvs_tokenizer_attr(m.tok, 2), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    assert_int_equal(kvs_tokenizer_attr(m.tok, 0), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    assert_int_equal(kvs_tokenizer_attr(m.tok, 1), KVS_TOKEN_CONTROL);
    close_model(m);
}

static void gemma3(void **state)
{
    (void)state;
    struct model m = open_model(KVS_TEST_GEMMA3);
    for (size_t i = 0; i < KVS_COUNT(GEMMA3); i++) {
        check_prompt(m.tok, &GEMMA3[i]);
    }
    check_prefixes(m.tok);
    assert_int_equal(kvs_tokenizer_size(m.tok), 262144);
    assert_int_equal(kvs_tokenizer_adds(m.tok), 1);
    assert_int_equal(kvs_tokenizer_special(m.tok, KVS_SPECIAL_BOS), 2);
    int32_t turn = kvs_tokenizer_find(m.tok, "<end_of_turn>", 13);
    assert_int_equal(kvs_tokenizer_attr(m.tok, turn), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    assert_int_equal(kvs_tokenizer_attr(m.tok, 1), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    int32_t strike = kvs_tokenizer_find(m.tok, "</s>", 4); /* an HTML tag of the vocabulary */
    assert_int_equal(kvs_tokenizer_attr(m.tok, strike), KVS_TOKEN_USER);
    close_model(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(smollm2), cmocka_unit_test(gemma3)};
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    if (kvs_ctx_new(&opts, &ctx, NULL) != KVS_OK) {
        return 1;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kvs_ctx_free(ctx);
    return failed || n_run > 0 ? failed : KVS_TEST_SKIP;
}
