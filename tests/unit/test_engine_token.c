/* SPDX-License-Identifier: MIT */
/* test_engine_token.c: encoding with small vocabularies: merging against a naive model of it,
 * borders of words, special tokens, ill-formed text, space prefix, fallback, long texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/token_expect.h"

static kvs_ctx *ctx;
static tv vocab;

static uint32_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 1664525u + 1013904223u;
    return (rng_state >> 8) % below;
}

/* -- The naive model: parts as strings, all pairs looked up again for each merge. */

typedef struct model {
    const tv *v;
    kvs__text parts[MAX_IDS]; /* neighbours in one text */
    size_t n;
} model;

static int32_t model_id(const tv *v, kvs__text t)
{
    for (size_t i = 0; i < v->src.n_tokens; i++) {
        bool ok = v->types[i] == KVS__TYPE_NORMAL || v->types[i] == KVS__TYPE_USER;
        if (ok && v->texts[i].len == t.len && memcmp(v->texts[i].ptr, t.ptr, t.len) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

/* Lower is better; UINT32_MAX: no merge. Scores of the test are whole numbers <= 0. */
static uint32_t model_rank(const tv *v, kvs__text a, kvs__text b)
{
    if (v->src.kind == KVS__VOCAB_SPM) {
        int32_t id = model_id(v, (kvs__text){a.ptr, a.len + b.len});
        return id < 0 ? UINT32_MAX : (uint32_t)-v->scores[id];
    }
    for (size_t i = 0; i < v->src.n_merges; i++) {
        const char *m = v->merges[i].ptr;
        if (v->merges[i].len == a.len + 1 + b.len && memcmp(m, a.ptr, a.len) == 0 &&
            m[a.len] == ' ' && memcmp(m + a.len + 1, b.ptr, b.len) == 0) {
            return (uint32_t)i;
        }
    }
    return UINT32_MAX;
}

static size_t model_encode(model *m, const char *text, size_t n, int32_t *ids)
{
    m->n = n;
    for (size_t i = 0; i < n; i++) {
        m->parts[i] = (kvs__text){text + i, 1};
    }
    for (;;) {
        uint32_t best = UINT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < m->n; i++) {
            uint32_t rank = model_rank(m->v, m->parts[i], m->parts[i + 1]);
            if (rank < best) {
                best = rank;
                at = i;
            }
        }
        if (best == UINT32_MAX) {
            break;
        }
        m->parts[at].len += m->parts[at + 1].len;
        m->n--;
        memmove(&m->parts[at + 1], &m->parts[at + 2], (m->n - at - 1) * sizeof m->parts[0]);
    }
    for (size_t i = 0; i < m->n; i++) {
        ids[i] = model_id(m->v, m->parts[i]);
    }
    return m->n;
}

/* Random vocabularies over three letters, so that merges compete everywhere. */
static char random_texts[TV_MERGES][TV_TEXT];
static char random_merges[TV_MERGES][2 * TV_TEXT];

static void random_vocab(tv *v, kvs__vocab_kind kind)
{
    if (kind == KVS__VOCAB_BPE) {
        tv_bpe_init(v, "gpt-2");
    } else {
        tv_spm_init(v);
        (void)tv_add(v, "a", KVS__TYPE_NORMAL, -1000);
        (void)tv_add(v, "b", KVS__TYPE_NORMAL, -1001);
        (void)tv_add(v, "c", KVS__TYPE_NORMAL, -1002);
    }
    static const char *const letters[] = {"a", "b", "c"};
    size_t n_texts = 3;
    for (uint32_t k = 0; k < 60; k++) {
        const char *l = rng(3) ? letters[rng(3)] : n_texts > 3 ? random_texts[rng(k)] : "a";
        const char *r = rng(2) ? letters[rng(3)] : k > 0 ? random_texts[rng(k)] : "b";
        if (strlen(l) + strlen(r) > 12) {
            l = "a";
            r = "b";
        }
        (void)snprintf(random_texts[k], TV_TEXT, "%s%s", l, r);
        (void)snprintf(random_merges[k], 2 * TV_TEXT, "%s %s", l, r);
        if (model_id(v, (kvs__text){random_texts[k], strlen(random_texts[k])}) < 0) {
            /* ties between scores on purpose */
            (void)tv_add(v, random_texts[k], KVS__TYPE_NORMAL, -(float)rng(20));
        }
        if (kind == KVS__VOCAB_BPE) {
            tv_merge(v, random_merges[k]);
        }
        n_texts++;
    }
    v->src.add_space_prefix = 0;
}

static void check_model(kvs__vocab_kind kind)
{
    static model m;
    static int32_t ids[MAX_IDS];
    static int32_t want[MAX_IDS];
    char text[320];
    for (uint32_t seed = 1; seed <= 40; seed++) {
        rng_state = seed;
        random_vocab(&vocab, kind);
        kvs_tokenizer *tok = tv_make(ctx, &vocab);
        m.v = &vocab;
        for (unsigned round = 0; round < 12; round++) {
            size_t n = round < 8 ? 1 + rng(60) : 100 + rng(200);
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + rng(round % 3 + 1));
            }
            size_t n_want = model_encode(&m, text, n, want);
            size_t n_ids = encode(tok, text, n, 0, ids);
            if (n_ids != n_want || memcmp(ids, want, n_ids * sizeof *ids) != 0) {
                fail_msg("seed %u, \"%.*s\": %zu ids, the model has %zu", seed, (int)n, text, n_ids,
                         n_want);
            }
        }
        kvs__tokenizer_free(tok);
    }
}

static void bpe_is_the_model(void **state)
{
    (void)state;
    check_model(KVS__VOCAB_BPE);
}

static void spm_is_the_model(void **state)
{
    (void)state;
    check_model(KVS__VOCAB_SPM);
}

/* -- Byte-level BPE */

static void bpe_words(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    int32_t he = tv_add(&vocab, "he", KVS__TYPE_NORMAL, 0);
    int32_t sp_he = tv_add(&vocab, "\xc4\xa0he", KVS__TYPE_NORMAL, 0);
    int32_t e_sp = tv_add(&vocab, "e\xc4\xa0", KVS__TYPE_NORMAL, 0);
    int32_t d12 = tv_add(&vocab, "12", KVS__TYPE_NORMAL, 0);
    tv_merge(&vocab, "e \xc4\xa0"); /* best of all, but no word has it */
    tv_merge(&vocab, "h e");
    tv_merge(&vocab, "\xc4\xa0 he");
    tv_merge(&vocab, "1 2");
    tv_merge(&vocab, "x zz"); /* no token: left out */
    (void)tv_add(&vocab, "xy", KVS__TYPE_CONTROL, 0);
    tv_merge(&vocab, "x y"); /* and text must not become control */
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    (void)e_sp;
    EXPECT(tok, "he he", 0, he, sp_he);
    EXPECT(tok, "he  he", 0, he, ' ', sp_he);
    EXPECT(tok, "12312", 0, d12, '3', d12);
    EXPECT(tok, "xy", 0, 'x', 'y');
    EXPECT(tok, "\xc3\xa9", 0, 0xc3, 0xa9);
    expect(tok, "", 0, 0, NULL);
    kvs__tokenizer_free(tok);
    vocab.src.pre = (kvs__text){"smollm", 6};
    tok = tv_make(ctx, &vocab);
    EXPECT(tok, "12 he", 0, '1', '2', sp_he);
    kvs__tokenizer_free(tok);
}

static void bpe_whole_words(void **state)
{
    (void)state;
    for (unsigned whole = 0; whole < 2; whole++) {
        tv_bpe_init(&vocab, whole ? "llama-bpe" : "qwen2");
        int32_t abc = tv_add(&vocab, "abc", KVS__TYPE_NORMAL, 0);
        int32_t control = tv_add(&vocab, "xyz", KVS__TYPE_CONTROL, 0);
        int32_t bc = tv_add(&vocab, "bc", KVS__TYPE_NORMAL, 0);
        tv_merge(&vocab, "b c"); /* and no merge makes abc */
        vocab.src.special[KVS_SPECIAL_BOS] = control;
        kvs_tokenizer *tok = tv_make(ctx, &vocab);
        if (whole) {
            EXPECT(tok, "abc", 0, abc);
            EXPECT(tok, "abc", KVS_TOKENIZE_ADD_SPECIAL, control, abc);
        } else {
            EXPECT(tok, "abc", 0, 'a', bc);
            EXPECT(tok, "abc", KVS_TOKENIZE_ADD_SPECIAL, 'a', bc);
        }
        EXPECT(tok, "xyz", 0, 'x', 'y', 'z');
        kvs__tokenizer_free(tok);
    }
}

static void bpe_byte_without_token(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    vocab.texts['b'] = (kvs__text){"[b]", 3};
    int32_t ac = tv_add(&vocab, "ac", KVS__TYPE_NORMAL, 0);
    tv_merge(&vocab, "a c");
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    EXPECT(tok, "abc", 0, ac); /* dropped, and its neighbours meet */
    expect(tok, "bbb", 0, 0, NULL);
    kvs__tokenizer_free(tok);
}

/* -- Special tokens */

static void special_tokens(void **state)
{
    (void)state;
    tv_bpe_init(&vocab, "gpt-2");
    int32_t end = tv_add(&vocab, "<|im_end|>", KVS__TYPE_CONTROL, 0);
    int32_t longer = tv_add(&vocab, "<|im_end|>!", KVS__TYPE_CONTROL, 0);
    int32_t user = tv_add(&vocab, "<u>", KVS__TYPE_USER, 0);
    int32_t inner = tv_add(&vocab, "u>>", KVS__TYPE_USER, 0);
    int32_t bad = tv_add(&vocab, "\xa9", KVS__TYPE_USER, 0); /* half a character */
    int32_t eos = tv_add(&vocab, "<e>", KVS__TYPE_CONTROL, 0);
    vocab.src.special[KVS_SPECIAL_BOS] = user;
    vocab.src.special[KVS_SPECIAL_EOS] = eos;
    vocab.src.add_bos = 1;
    vocab.src.add_eos = 1;
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    (void)inner;
    (void)bad;
    EXPECT(tok, "<|im_end|>", KVS_TOKENIZE_SPECIAL, end);
    EXPECT(tok, "a<|im_end|>!!", KVS_TOKENIZE_SPECIAL, 'a', longer, '!');
    EXPECT(tok, "<e>", 0, '<', 'e', '>');
    EXPECT(tok, "<u>><u", 0, user, '>', '<', 'u'); /* leftmost first */
    EXPECT(tok, "\xc3\xa9", 0, 0xc3, 0xa9);
    EXPECT(tok, "a", KVS_TOKENIZE_ADD_SPECIAL, user, 'a', eos);
    EXPECT(tok, "", KVS_TOKENIZE_ADD_SPECIAL, user, eos);
    assert_int_equal(kvs_tokenizer_adds(tok), 3);
    assert_int_equal(kvs_tokenizer_attr(tok, end), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    assert_int_equal(kvs_tokenizer_attr(tok, longer), KVS_TOKEN_CONTROL);
    assert_int_equal(kvs_tokenizer_attr(tok, eos), KVS_TOKEN_CONTROL | KVS_TOKEN_EOG);
    assert_int_equal(kvs_tokenizer_attr(tok, user), KVS_TOKEN_USER);
    assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_EOT), end);
    kvs__tokenizer_free(tok);
}

static void ill_formed(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        const char *as;
    } cases[] = {
        {"\xff", "?"},
        {"a\x80z", "a?z"},
        {"\xc0\x80", "??"},
        {"\xe2\x82", "?"},
        {"\xe2\x82x", "?x"},
        {"\xf0\x9f\x98", "?"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "?\xf0\x9f\x98\x80"},
        {"\xed\xa0\x80", "???"},
        {"\xf4\x90\x80\x80", "????"},
        {"\xe0\x80\xaf", "???"},
        {"\xf5\xc3\xa9\xc3", "?\xc3\xa9?"},
    };
    for (unsigned kind = 0; kind < 2; kind++) {
        if (kind == 0) {
            tv_bpe_init(&vocab, "llama-bpe");
        } else {
            tv_spm_init(&vocab);
        }
        kvs_tokenizer *tok = tv_make(ctx, &vocab);
        for (size_t i = 0; i < KVS_COUNT(cases); i++) {
            char as[64];
            size_t n = 0;
            for (const char *p = cases[i].as; *p; p++) { /* '?' stands for U+FFFD */
                const bool bad = *p == '?';
                memcpy(as + n, bad ? "\xef\xbf\xbd" : p, bad ? 3 : 1);
                n += bad ? 3 : 1;
            }
            as[n] = 0;
            int32_t want[64];
            size_t n_want = encode(tok, as, n, 0, want);
            expect(tok, cases[i].in, 0, n_want, want);
        }
        kvs__tokenizer_free(tok);
    }
}

/* -- SentencePiece-style */

static void spm_prefix_and_fallback(void **state)
{
    (void)state;
    tv_spm_init(&vocab);
    int32_t sp = tv_add(&vocab, "\xe2\x96\x81", KVS__TYPE_NORMAL, -5);
    int32_t a = tv_add(&vocab, "a", KVS__TYPE_NORMAL, -6);
    int32_t sp_a = tv_add(&vocab,
                          "\xe2\x96\x81"
                          "a",
                          KVS__TYPE_NORMAL, -1);
    int32_t aa = tv_add(&vocab, "aa", KVS__TYPE_NORMAL, -2);
    int32_t x = tv_add(&vocab, "X", KVS__TYPE_CONTROL, 0);
    int32_t run = tv_add(&vocab, "   ", KVS__TYPE_USER, -1000);
    for (int prefix = 0; prefix < 2; prefix++) {
        vocab.src.add_space_prefix = prefix;
        kvs_tokenizer *tok = tv_make(ctx, &vocab);
        if (prefix) {
            EXPECT(tok, "a", 0, sp_a);
            EXPECT(tok, "aa", KVS_TOKENIZE_ADD_SPECIAL, 1, sp_a, a);
            EXPECT(tok, " ", 0, sp, sp);
            EXPECT(tok, "XaXXa", KVS_TOKENIZE_SPECIAL, x, sp_a, x, x, sp_a);
            EXPECT(tok, "X", 0, sp, 3 + 'X');
            EXPECT(tok, "a   a", 0, sp_a, run, sp_a);
        } else {
            EXPECT(tok, "a", 0, a);
            EXPECT(tok, "aaa a", 0, aa, a, sp_a); /* the leftmost of equal pairs */
            EXPECT(tok, "X", 0, 3 + 'X');
            EXPECT(tok, "a   a", 0, a, run, a);
            EXPECT(tok, "     a", 0, run, sp, sp_a);
            EXPECT(tok,
                   "\xe2\x96\x81"
                   "a",
                   0, sp_a); /* what looks like a space is one */
        }
        EXPECT(tok, "   ", 0, run);
        expect(tok, "", 0, 0, NULL);
        EXPECT(tok, "", KVS_TOKENIZE_ADD_SPECIAL, 1);
        kvs__tokenizer_free(tok);
    }
}

static void spm_unknown(void **state)
{
    (void)state;
    tv_spm_init(&vocab);
    vocab.src.n_tokens = 3; /* no byte tokens */
    int32_t a = tv_add(&vocab, "a", KVS__TYPE_NORMAL, -6);
    vocab.src.add_space_prefix = 0;
    kvs_tokenizer *tok = tv_make(ctx, &vocab);
    EXPECT(tok, "bcab\xc3\xa9 a", 0, 0, a, 0, a); /* one for several */
    kvs__tokenizer_free(tok);
}

/* -- Size */

static void long_texts(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *text = test_malloc(N);
    for (unsigned kind = 0; kind < 2; kind++) {
        rng_state = 7;
        random_vocab(&vocab, kind == 0 ? KVS__VOCAB_BPE : KVS__VOCAB_SPM);
        kvs_tokenizer *tok = tv_make(ctx, &vocab);
        static const char units[] = "a \n1!";
        for (const char *u = units; *u; u++) {
            memset(text, *u, N);
            text[N - 1] = 'x'; /* so that runs of space are not the end */
            size_t n = 0;
            kvs_err err = {0};
            assert_int_equal(kvs_tokenizer_encode(tok, text, N, 0, NULL, 0, &n, &err), KVS_OK);
            assert_true(n > N / 32 && n <= 3 * (size_t)N + 16);
        }
        kvs__tokenizer_free(tok);
    }
    test_free(text);
}

static int open_ctx(void **state)
{
    (void)state;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    return kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK ? 0 : -1;
}

/* Everything was given back. */
static int close_ctx(void **state)
{
    (void)state;
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    static size_t empty;
    (void)kvs_ctx_get_stats(ctx, &s);
    empty = empty ? empty : s.live_bytes;
    kvs_ctx_free(ctx);
    return s.live_bytes == empty ? 0 : -1;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_ctx, close_ctx)

static void nothing(void **state)
{
    (void)state; /* its teardown learns the size of an empty context */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing),        TEST(bpe_is_the_model), TEST(spm_is_the_model),
        TEST(bpe_words),      TEST(bpe_whole_words),  TEST(bpe_byte_without_token),
        TEST(special_tokens), TEST(ill_formed),       TEST(spm_prefix_and_fallback),
        TEST(spm_unknown),    TEST(long_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
