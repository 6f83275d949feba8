/* SPDX-License-Identifier: MIT */
/* test_engine_token_edge.c: decoding and the stream, arguments, malformed vocabularies, running out
 * of memory at every allocation, the GGUF adapter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/token_gguf.h"
#include "support/fail_alloc.h"
#include "support/gguf_build.h"
#include "support/token_expect.h"

static kvs_ctx *ctx;
static tv vocab;

/* -- Decoding */

static void expect_text(const kvs_tokenizer *tok, const int32_t *ids, size_t n, uint32_t flags,
                        const char *plain, const char *streamed)
{
    char out[256];
    size_t len = 0;
    assert_int_equal(kvs_tokenizer_decode(tok, ids, n, flags, out, sizeof out, &len, NULL), KVS_OK);
    assert_int_equal(len, strlen(plain));
    assert_memory_equal(out, plain, len);
    kvs_detok *d = NULL;
    assert_int_equal(kvs_detok_new(tok, flags, &d, NULL), KVS_OK);
    for (unsigned round = 0; round < 2; round++) { /* finish makes it as good as new */
        size_t used = 0;
        const char *piece = NULL;
        for (size_t i = 0; i <= n; i++) {
            if (i < n) {
                assert_int_equal(kvs_detok_put(d, ids[i], &piece, &len, NULL), KVS_OK);
            } else {
                kvs_detok_finish(d, &piece, &len);
            }
            memcpy(out + used, piece, len);
            used += len;
        }
        assert_int_equal(used, strlen(streamed));
        assert_memory_equal(out, streamed, used);
    }
    kvs_detok_free(d);
}
#define TEXT(tok, flags, plain, streamed, ...)                                                     \
    expect_text(tok, (int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), \
                flags, plain, streamed)

static void decode_bpe(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    int32_t sp_a = tv_add(&vocab,
                          "\xc4\xa0"
                          "a",
                          KVS__TYPE_NORMAL, 0);
    int32_t control = tv_add(&vocab, "<c>", KVS__TYPE_CONTROL, 0);
    int32_t user = tv_add(&vocab, " \xc4\xa0u", KVS__TYPE_USER, 0); /* as it stands */
    int32_t odd = tv_add(&vocab, "a \xe4\xb8\xad", KVS__TYPE_NORMAL, 0);
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    TEXT(tok, 0, " a a", " a a", sp_a, control, sp_a);
    TEXT(tok, KVS_TOKENIZE_SPECIAL, " a<c> a", " a<c> a", sp_a, control, sp_a);
    TEXT(tok, 0, " \xc4\xa0u", " \xc4\xa0u", user);
    TEXT(tok, 0, "a \xe4\xb8\xad", "a \xe4\xb8\xad", odd);
    TEXT(tok, 0, "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80", 0xf0, 0x9f, 0x98, 0x80);
    TEXT(tok, 0, "\xf0\x9f\x98", "\xef\xbf\xbd", 0xf0, 0x9f, 0x98);
    TEXT(tok, 0,
         "\xf0\x9f"
         " a",
         "\xef\xbf\xbd a", 0xf0, 0x9f, sp_a);
    TEXT(tok, 0, "\x80\xff\n", "\xef\xbf\xbd\xef\xbf\xbd\n", 0x80, 0xff, '\n');
    TEXT(tok, 0, "\xe2\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac", 0xe2, 0xe2, 0x82, 0xac);
    kvs__tokenizer_free(tok);
}

/* Bytes of a character are held back until it is complete. */
static void stream_holds(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    kvs_detok *d = NULL;
    assert_int_equal(kvs_detok_new(tok, 0, &d, NULL), KVS_OK);
    static const size_t lens[] = {0, 0, 0, 4, 1};
    static const int32_t ids[] = {0xf0, 0x9f, 0x98, 0x80, 'a'};
    const char *text = NULL;
    size_t len = 0;
    for (size_t i = 0; i < KVS_COUNT(ids); i++) {
        assert_int_equal(kvs_detok_put(d, ids[i], &text, &len, NULL), KVS_OK);
        assert_int_equal(len, lens[i]);
    }
    assert_int_equal(kvs_detok_put(d, 0xe2, &text, &len, NULL), KVS_OK);
    kvs_err err = {0};
    assert_int_equal(kvs_detok_put(d, 256, &text, &len, &err), KVS_E_INVAL);
    assert_non_null(strstr(err.msg, "256"));
    assert_int_equal(kvs_detok_put(d, 0x82, &text, &len, NULL), KVS_OK);
    assert_int_equal(len, 0);
    assert_int_equal(kvs_detok_put(d, 0xac, &text, &len, NULL), KVS_OK); /* nothing was lost */
    assert_int_equal(len, 3);
    kvs_detok_finish(d, &text, &len);
    assert_int_equal(len, 0);
    kvs_detok_free(d);
    kvs__tokenizer_free(tok);
}

static void decode_spm(void **state)
{
    (void)state;
    tv_spm_init(&vocab);
    int32_t sp_a = tv_add(&vocab,
                          "\xe2\x96\x81"
                          "a",
                          KVS__TYPE_NORMAL, 0);
    int32_t sp = tv_add(&vocab, "\xe2\x96\x81", KVS__TYPE_NORMAL, 0);
    int32_t user = tv_add(&vocab, "  ", KVS__TYPE_USER, 0);
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    TEXT(tok, 0, "a a", "a a", 1, sp_a, sp_a, 2);
    TEXT(tok, 0, " a", " a", sp, sp_a);
    TEXT(tok, 0, " a", " a", user, 3 + 'a');
    TEXT(tok, KVS_TOKENIZE_SPECIAL, "<s> a</s>", "<s> a</s>", 1, sp_a, 2);
    TEXT(tok, 0, "a", "a", 0, sp_a);
    TEXT(tok, 0, "\xc3\xa9 a", "\xc3\xa9 a", 3 + 0xc3, 3 + 0xa9, sp_a);
    kvs__tokenizer_free(tok);
    vocab.src.add_space_prefix = 0;
    tok = tv_make(ctx, &vocab);
    TEXT(tok, 0, " a a", " a a", sp_a, sp_a);
    kvs__tokenizer_free(tok);
}

/* -- Arguments */

static void arguments(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    int32_t ids[4] = {-7, -7, -7, -7};
    size_t n = 99;
    kvs_err err = {0};
    assert_int_equal(kvs_tokenizer_encode(tok, "abc", 3, 0, NULL, 0, &n, &err), KVS_OK);
    assert_int_equal(n, 3);
    n = 0;
    assert_int_equal(kvs_tokenizer_encode(tok, "abc", 3, 0, ids, 2, &n, &err), KVS_E_RANGE);
    assert_int_equal(n, 3);
    assert_int_equal(ids[0], -7);
    assert_int_equal(kvs_tokenizer_encode(tok, "abc", 3, 0, ids, 3, &n, &err), KVS_OK);
    assert_int_equal(ids[2], 'c');
    assert_int_equal(ids[3], -7);
    assert_int_equal(kvs_tokenizer_encode(tok, "abc", 3, 8, ids, 4, &n, &err), KVS_E_INVAL);
    assert_int_equal(kvs_tokenizer_encode(tok, NULL, 3, 0, ids, 4, &n, &err), KVS_E_INVAL);
    assert_int_equal(kvs_tokenizer_encode(tok, NULL, 0, 0, ids, 4, &n, &err), KVS_OK);
    assert_int_equal(n, 0);
    assert_int_equal(kvs_tokenizer_encode(tok, "a", (size_t)1 << 40, 0, NULL, 0, &n, &err),
                     KVS_E_LIMIT);
    char text[4] = "....";
    assert_int_equal(kvs_tokenizer_decode(tok, ids, 3, 0, text, 2, &n, &err), KVS_E_RANGE);
    assert_int_equal(n, 3);
    assert_int_equal(text[0], '.');
    assert_int_equal(kvs_tokenizer_decode(tok, ids, 3, KVS_TOKENIZE_ADD_SPECIAL, text, 4, &n, &err),
                     KVS_E_INVAL);
    ids[1] = 256;
    assert_int_equal(kvs_tokenizer_decode(tok, ids, 3, 0, text, 4, &n, &err), KVS_E_INVAL);
    assert_int_equal(kvs_tokenizer_find(tok, "\xc4\xa0", 2), ' ');
    assert_int_equal(kvs_tokenizer_find(tok, "nope", 4), -1);
    assert_int_equal(kvs_tokenizer_size(tok), 256);
    assert_int_equal(kvs_tokenizer_attr(tok, -1), 0);
    assert_null(kvs_tokenizer_text(tok, 256, &n));
    assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_BOS), -1);
    kvs__tokenizer_free(tok);
    kvs__tokenizer_free(NULL);
}

/* -- Malformed vocabularies */

static void refused(kvs_status want, const char *word)
{
    kvs_tokenizer *tok = NULL;
    kvs_err err = {0};
    assert_int_equal(kvs__tokenizer_new(ctx, &vocab.src, &tok, &err), want);
    assert_null(tok);
    if (!strstr(err.msg, word)) {
        fail_msg("\"%s\" does not say \"%s\"", err.msg, word);
    }
}

static void malformed(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "klingon");
    refused(KVS_E_UNSUPPORTED, "klingon");
    refused(KVS_E_UNSUPPORTED, "override");
    refused(KVS_E_UNSUPPORTED, "llama-bpe");
    refused(KVS_E_UNSUPPORTED, "tekken");
    vocab.src.pre = (kvs__text){"gpt", 3}; /* not a prefix of a name either */
    refused(KVS_E_UNSUPPORTED, "gpt");
    tv_bpe_init(&vocab, "gpt-2");
    tv_merge(&vocab, "ab");
    refused(KVS_E_FORMAT, "merge 0");
    vocab.merges[0] = (kvs__text){" a", 2};
    refused(KVS_E_FORMAT, "merge 0");
    vocab.merges[0] = (kvs__text){"", 0};
    refused(KVS_E_FORMAT, "merge 0");
    vocab.src.n_merges = 0;
    vocab.src.special[KVS_SPECIAL_EOS] = 256;
    refused(KVS_E_FORMAT, "EOS token 256");
    vocab.src.special[KVS_SPECIAL_EOS] = -2;
    refused(KVS_E_FORMAT, "EOS token -2");
    vocab.src.special[KVS_SPECIAL_EOS] = -1;
    static char big[65537];
    vocab.texts[5] = (kvs__text){big, 65536};
    refused(KVS_E_FORMAT, "token 5");
    tv_spm_init(&vocab);
    vocab.texts[9] = (kvs__text){"<0xG0>", 6};
    refused(KVS_E_FORMAT, "token 9");
    vocab.src.n_tokens = 0;
    refused(KVS_E_FORMAT, "0 tokens");
}

/* Equal and empty texts, in any number, are no error: the lowest id counts. */
static void repeated_texts(void **state)
{
    (void)state;
    tv_spm_init(&vocab);
    int32_t a = tv_add(&vocab, "a", KVS__TYPE_NORMAL, -1);
    for (unsigned i = 0; i < 200; i++) {
        (void)tv_add(&vocab, i % 2 ? "a" : "", i % 3 ? KVS__TYPE_NORMAL : KVS__TYPE_USER, 0);
    }
    vocab.src.add_space_prefix = 0;
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    assert_int_equal(kvs_tokenizer_find(tok, "a", 1), a);
    int32_t ids[4];
    size_t n = 0;
    assert_int_equal(kvs_tokenizer_encode(tok, "bab", 3, 0, ids, 4, &n, NULL), KVS_OK);
    assert_int_equal(n, 3);
    assert_int_equal(ids[1], a + 4); /* the first user-defined "a" */
    kvs__tokenizer_free(tok);
}

/* -- Memory */

static kvs_status whole_life(kvs_ctx *c, kvs_err *err)
{
    kvs_tokenizer *tok = NULL;
    kvs_detok *d = NULL;
    kvs_status st = kvs__tokenizer_new(c, &vocab.src, &tok, err);
    if (st == KVS_OK) {
        char text[700];
        memset(text, 'a', sizeof text);
        text[3] = (char)0xff;
        size_t n = 0;
        int32_t ids[1500];
        st = kvs_tokenizer_encode(tok, text, sizeof text, 0, ids, 1500, &n, err);
        if (st == KVS_OK) {
            st = kvs_tokenizer_decode(tok, ids, n, 0, NULL, 0, &n, err);
        }
    }
    if (st == KVS_OK) {
        st = kvs_detok_new(tok, 0, &d, err);
    }
    kvs_detok_free(d);
    kvs__tokenizer_free(tok);
    return st;
}

static void every_allocation_fails(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        if (kind == 0) {
            tv_bpe_init(&vocab, "deepseek-llm");
        } else {
            tv_spm_init(&vocab);
        }
        (void)tv_add(&vocab, " u ", KVS__TYPE_USER, 0);
        long k = 0;
        for (bool done = false; !done; k++) {
            fail_alloc f = FAIL_ALLOC_INIT;
            kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
            opts.n_threads = 1;
            opts.alloc = fail_alloc_take;
            opts.free = fail_alloc_give;
            opts.alloc_user = &f;
            kvs_ctx *c = NULL;
            assert_int_equal(kvs_ctx_new(&opts, &c, NULL), KVS_OK);
            long before = f.blocks;
            f.fail_at = f.calls + k;
            kvs_err err = {0};
            kvs_status st = whole_life(c, &err);
            done = f.calls <= f.fail_at;
            assert_true(!done || st == KVS_OK);
            if (st != KVS_OK) {
                assert_int_equal(st, KVS_E_NOMEM);
                assert_int_equal(err.status, KVS_E_NOMEM);
            }
            assert_int_equal(f.blocks, before);
            kvs_ctx_free(c);
            assert_int_equal(f.blocks + f.wrong, 0);
        }
        assert_true(k > 8);
    }
}

/* -- From a GGUF file */

struct file {
    const char *model;
    const char *pre;
    size_t n_scores;
    uint32_t bos;
    bool merges;
};

static kvs_status from_gguf(const struct file *f, const char *pre, kvs_err *err)
{
    gb b;
    gb_init(&b, 3);
    if (f->model) {
        gb_kv_str(&b, "tokenizer.ggml.model", f->model);
    }
    if (f->pre) {
        gb_kv_str(&b, "tokenizer.ggml.pre", f->pre);
    }
    static const char *const texts[] = {"<unk>", "<s>", "</s>", "a", "b", "ab"};
    gb_kv_array(&b, "tokenizer.ggml.tokens", KVS__GGUF_STR, KVS_COUNT(texts));
    for (size_t i = 0; i < KVS_COUNT(texts); i++) {
        gb_str(&b, texts[i]);
    }
    gb_kv_array(&b, "tokenizer.ggml.scores", KVS__GGUF_F32, f->n_scores);
    for (size_t i = 0; i < f->n_scores; i++) {
        gb_u32(&b, 0);
    }
    if (f->merges) {
        gb_kv_array(&b, "tokenizer.ggml.merges", KVS__GGUF_STR, 1);
        gb_str(&b, "a b");
    }
    gb_kv_u32(&b, "tokenizer.ggml.bos_token_id", f->bos);
    kvs__gguf *g = NULL;
    assert_int_equal(kvs__gguf_open_mem(ctx, b.p, b.n, &g, err), KVS_OK);
    kvs_tokenizer *tok = NULL;
    kvs_status st = kvs__tokenizer_from_gguf(ctx, g, pre, &tok, err);
    if (st == KVS_OK) {
        int32_t ids[4];
        size_t n = 0;
        assert_int_equal(kvs_tokenizer_encode(tok, "ab", 2, 0, ids, 4, &n, err), KVS_OK);
        assert_int_equal(ids[n - 1], 5);
        assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_BOS),
                         f->bos < 6 ? (int)f->bos : -1);
    }
    kvs__tokenizer_free(tok);
    kvs__gguf_close(g);
    free(b.p);
    return st;
}

static void gguf_adapter(void **state)
{
    (void)state;
    static const struct {
        struct file file;
        const char *pre;
        kvs_status want;
        const char *word;
    } cases[] = {
        {{"llama", NULL, 6, 1, false}, NULL, KVS_OK, ""},
        {{"llama", "default", 6, UINT32_MAX, false}, NULL, KVS_OK, ""},
        {{"gpt2", "gpt-2", 6, 1, true}, NULL, KVS_OK, ""},
        {{"gpt2", NULL, 6, 1, true}, NULL, KVS_OK, ""},
        {{"gpt2", "klingon", 6, 1, true}, NULL, KVS_E_UNSUPPORTED, "klingon"},
        {{"gpt2", "klingon", 6, 1, true}, "gpt-2", KVS_OK, ""},
        {{"gpt2", "gpt-2", 6, 1, false}, NULL, KVS_E_FORMAT, "merges"},
        {{"llama", NULL, 5, 1, false}, NULL, KVS_E_FORMAT, "5 elements for 6 tokens"},
        {{"llama", NULL, 0, 1, false}, NULL, KVS_E_FORMAT, "scores has 0"},
        {{"bert", NULL, 6, 1, false}, NULL, KVS_E_UNSUPPORTED, "bert"},
        {{NULL, NULL, 6, 1, false}, NULL, KVS_E_NOTFOUND, "no tokenizer"},
    };
    for (size_t i = 0; i < KVS_COUNT(cases); i++) {
        kvs_err err = {0};
        kvs_status st = from_gguf(&cases[i].file, cases[i].pre, &err);
        if (st != cases[i].want || !strstr(err.msg, cases[i].word)) {
            fail_msg("case %zu: %s, \"%s\"", i, kvs_status_name(st), err.msg);
        }
    }
}

static int open_ctx(void **state)
{
    (void)state;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    return kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK ? 0 : -1;
}

static int close_ctx(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_ctx, close_ctx)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(decode_bpe),
        TEST(stream_holds),
        TEST(decode_spm),
        TEST(arguments),
        TEST(malformed),
        TEST(repeated_texts),
        TEST(every_allocation_fails),
        TEST(gguf_adapter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
