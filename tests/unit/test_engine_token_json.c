/* SPDX-License-Identifier: MIT */
/* test_engine_token_json.c: what a small tokenizer.json says and what is refused, by name; the files
 * beside it; every allocation failing once. Whole vocabularies are compared in tests/oracle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/token_json.h"
#include "support/fail_alloc.h"
#include "support/token_expect.h"

#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,"  \
    "\"ab\":3,\"\\u2581\":4,\"\\u2581ab\":5,\"<s>\":6},\"merges\":[\"a b\",[\"\\u2581\",\"ab\"]]}"
#define ADDED                                                                                      \
    "\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"special\":true},"                           \
    "{\"id\":9,\"content\":\"<u>\",\"special\":false}],"
#define LLAMA                                                                                      \
    "{" ADDED                                                                                      \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"    \
    "\"\\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}]"  \
    "},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"        \
    "{\"String\":\"\\u2581\"},\"content\":\" \"},{\"type\":\"Fuse\"},{\"type\":\"Strip\","         \
    "\"content\":\" \",\"start\":1,\"stop\":0}]}," MODEL "}"

static fail_alloc heap = FAIL_ALLOC_INIT;
static kvs_ctx *ctx;

static int setup(void **state)
{
    (void)state;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.alloc = fail_alloc_take;
    opts.free = fail_alloc_give;
    opts.alloc_user = &heap;
    return kvs_ctx_new(&opts, &ctx, NULL);
}

static int teardown(void **state)
{
    (void)state;
    kvs_ctx_free(ctx);
    return 0;
}

static size_t live(void)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(ctx, &s), KVS_OK);
    return s.live_bytes;
}

static kvs_tokenizer *make(const char *json, size_t n_rows)
{
    kvs_tokenizer *tok = NULL;
    kvs_err err = {0};
    if (kvs__tokenizer_from_json_text(ctx, json, strlen(json), n_rows, &tok, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return tok;
}

static void refuses(const char *json, kvs_status want, const char *word)
{
    kvs_tokenizer *tok = NULL;
    kvs_err err = {0};
    const size_t before = live();
    kvs_status st = kvs__tokenizer_from_json_text(ctx, json, strlen(json), 0, &tok, &err);
    if (st != want || !strstr(err.msg, word)) {
        fail_msg("%d \"%s\", not %d with \"%s\", for %.100s", st, err.msg, want, word, json);
    }
    assert_null(tok);
    assert_int_equal(live(), before);
}

static void test_small(void **state)
{
    (void)state;
    kvs_tokenizer *tok = make(LLAMA, 12);
    assert_int_equal(kvs_tokenizer_size(tok), 12);
    EXPECT(tok, "ab ab", 0, 5, 5);
    EXPECT(tok, "abc", 0, 5, 0);
    EXPECT(tok, "<s>ab<u>", KVS_TOKENIZE_SPECIAL, 6, 5, 9);
    EXPECT(tok, "<u>ab", 0, 9, 5);
    assert_int_equal(kvs_tokenizer_attr(tok, 6), KVS_TOKEN_CONTROL);
    assert_int_equal(kvs_tokenizer_attr(tok, 9), KVS_TOKEN_USER);
    assert_int_equal(kvs_tokenizer_attr(tok, 8), KVS_TOKEN_UNUSED);
    assert_int_equal(kvs_tokenizer_attr(tok, 11), KVS_TOKEN_UNUSED);
    assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_UNK), 0);
    assert_int_equal(kvs_tokenizer_find(tok, "<u>", 3), 9);
    assert_int_equal(kvs_tokenizer_adds(tok), 0);
    char text[32];
    size_t n = 0;
    const int32_t ids[] = {6, 5, 5, 9};
    assert_int_equal(kvs_tokenizer_decode(tok, ids, 4, 0, text, 32, &n, NULL), KVS_OK);
    assert_int_equal(n, 8);
    assert_memory_equal(text, "ab ab<u>", 8);
    kvs_tokenizer_close(tok);
}

#define WITH(part) "{" part "," MODEL "}"

static void test_refused(void **state)
{
    (void)state;
    const kvs_status format = KVS_E_FORMAT;
    const kvs_status unsupported = KVS_E_UNSUPPORTED;
    refuses("", format, "line 1, byte 1: expected a value, but the text ends");
    refuses("{\"a\":1,}", format, "expected a name");
    refuses("[1 2]", format, "expected a comma");
    refuses("{\"a\":01}", format, "number");
    refuses("{} x", format, "after the value");
    refuses("\"\\ud800\"", format, "escape");
    refuses("\"\xff\"", format, "UTF-8");
    refuses("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", KVS_E_LIMIT,
            "deeper");
    refuses("[]", format, "no object");
    refuses("{}", unsupported, "model");
    refuses("{\"model\":{\"type\":\"WordPiece\"}}", unsupported, "WordPiece");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}", format,
            "merge 0");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"ab\"]}}", format,
            "two texts");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", format,
            "id 0 is");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}", format,
            "both");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000},\"merges\":[]}}", format,
            "2000000");
    refuses("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}}", format, "\"a\"");
    refuses("{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]}}", format, "score");
    refuses("{\"model\":{\"type\":\"Unigram\",\"unk_id\":7,\"vocab\":[[\"a\",1]]}}", format,
            "unk_id");
    refuses(WITH("\"added_tokens\":[{\"id\":1,\"content\":\"<x>\"}]"), format, "id 1 is");
    refuses(WITH("\"added_tokens\":[{\"id\":9,\"content\":\"ab\"}]"), format, "both");
    refuses(WITH("\"added_tokens\":[{\"id\":9,\"content\":\"x\",\"special\":1}]"), format,
            "special");
    refuses(WITH("\"normalizer\":{\"type\":\"BertNormalizer\"}"), unsupported, "BertNormalizer");
    refuses(WITH("\"normalizer\":7"), format, "no object");
    refuses(WITH("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA\"}"),
            format, "charsmap");
    refuses(WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), unsupported, "UnicodeScripts");
    refuses(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},"
                 "\"behavior\":\"Isolated\"}"),
            unsupported, "escape");
    refuses(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},"
                 "\"behavior\":\"Isolated\"}"),
            unsupported, "intersection");
    refuses(WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
                 "\"behavior\":\"Sideways\"}"),
            format, "behavior");
    refuses(WITH("\"decoder\":{\"type\":\"CTC\"}"), unsupported, "CTC");
    refuses(WITH("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":"
                 "\"ByteLevel\"}]}"),
            unsupported, "after Fuse");
    refuses(WITH("\"post_processor\":{\"type\":\"Other\"}"), unsupported, "Other");
    refuses(WITH("\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",99],\"sep\":"
                 "[\"a\",1]}"),
            format, "no token");
}

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void is_string(const kvs_tokenizer *tok, const char *key, const char *want)
{
    size_t n = 0;
    const char *s = kvs_tokenizer_string(tok, key, &n);
    if (!want) {
        assert_null(s);
        return;
    }
    assert_non_null(s);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(s, want, n);
}

static void test_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/kvs-token-json-XXXXXX";
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json",
                                        "special_tokens_map.json", "generation_config.json",
                                        "chat_template.jinja"};
    assert_non_null(mkdtemp(dir));
    kvs_tokenizer *tok = NULL;
    kvs_err err = {0};
    assert_int_equal(kvs_tokenizer_open(ctx, dir, &tok, &err), KVS_E_NOTFOUND);
    write_file(dir, files[0], LLAMA);
    write_file(dir, files[1],
               "{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":true,\"chat_template\":"
               "[{\"name\":\"default\",\"template\":\"T\"},{\"name\":\"tool_use\",\"template\":"
               "\"U\"}]}");
    write_file(dir, files[2], "{\"eos_token\":\"<u>\",\"bos_token\":\"other\"}");
    write_file(dir, files[3], "{\"eos_token_id\":[9,3,1000]}");
    assert_int_equal(kvs_tokenizer_open(ctx, dir, &tok, &err), KVS_OK);
    is_string(tok, "chat_template", "T");
    is_string(tok, "chat_template.tool_use", "U");
    is_string(tok, "bos_token", "<s>");
    is_string(tok, "eos_token", "<u>");
    is_string(tok, "unk_token", "<unk>");
    is_string(tok, "pad_token", NULL);
    assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_BOS), 6);
    assert_int_equal(kvs_tokenizer_special(tok, KVS_SPECIAL_EOS), 9);
    assert_true((kvs_tokenizer_attr(tok, 3) & KVS_TOKEN_EOG) != 0);
    assert_true((kvs_tokenizer_attr(tok, 9) & KVS_TOKEN_EOG) != 0);
    assert_int_equal(kvs_tokenizer_adds(tok), 1);
    EXPECT(tok, "ab", KVS_TOKENIZE_ADD_SPECIAL, 6, 5);
    kvs_tokenizer_close(tok);
    write_file(dir, files[4], "{{ file }}");
    assert_int_equal(kvs_tokenizer_open(ctx, dir, &tok, &err), KVS_OK);
    is_string(tok, "chat_template", "{{ file }}");
    kvs_tokenizer_close(tok);
    write_file(dir, files[1], "{\"bos_token\":");
    assert_int_equal(kvs_tokenizer_open(ctx, dir, &tok, &err), KVS_E_FORMAT);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    for (size_t i = 0; i < KVS_COUNT(files); i++) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

#define PARTS                                                                                      \
    "{" ADDED                                                                                      \
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKC\"},{\"type\":"        \
    "\"Replace\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"content\":\" \"}]},\"pre_tokenizer\":"       \
    "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"always\",\"split\":" \
    "true},\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"},\"post_processor\":"   \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"            \
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[6]}}},"                  \
    "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"a\",-1],[\"b\",-1]," \
    "[\"ab\",-1.5],[\"\\u2581\",-3],[\"\\u2581ab\",-3e0],[\"<s>\",0]]}}"

/* Fails the k-th allocation of opening and encoding, for every k. */
static void test_no_memory(void **state)
{
    (void)state;
    static const char *const files[] = {PARTS, LLAMA};
    static const char text[] = "<s> ab  e\xcc\x81\xcc\x95 b<u>\xff a";
    const size_t before = live();
    for (size_t f = 0; f < KVS_COUNT(files); f++) {
        bool done = false;
        for (long k = 0; !done; k++) {
            kvs_tokenizer *tok = NULL;
            kvs_err err = {0};
            size_t n = 0;
            heap.fail_at = heap.calls + k;
            kvs_status st =
                kvs__tokenizer_from_json_text(ctx, files[f], strlen(files[f]), 0, &tok, &err);
            if (st == KVS_OK) {
                st = kvs_tokenizer_encode(tok, text, sizeof text - 1, 3, NULL, 0, &n, &err);
            }
            done = heap.calls <= heap.fail_at;
            heap.fail_at = -1;
            if (st != (done ? KVS_OK : KVS_E_NOMEM) && st != KVS_OK) {
                fail_msg("allocation %ld: %d %s", k, st, err.msg);
            }
            kvs_tokenizer_close(tok);
            assert_int_equal(live(), before);
            assert_int_equal(heap.wrong, 0);
        }
    }
}

/* Without a token for the unknown, a character that the vocabulary lacks is left out, and what
 * stood around it is merged: also in words long enough to be cut where no token reaches over. */
static void test_left_out(void **state)
{
    (void)state;
    kvs_tokenizer *tok =
        make("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,"
             "\"cccccccc\":9,\"cc\":7,\"cccc\":8},"
             "\"merges\":[\"a b\",\"b c\",\"c c\",\"cc cc\",\"cccc cccc\"]}}",
             0);
#define C8 "cccccccc"
    EXPECT(tok, "axbc", 0, 3, 2);
    EXPECT(tok, C8 C8 C8 C8 C8 C8 C8 C8 "axbca" C8, 0, 9, 9, 9, 9, 9, 9, 9, 9, 3, 2, 0, 9);
    EXPECT(tok, C8 C8 C8 C8 C8 C8 C8 C8 "bxxa" C8, 0, 9, 9, 9, 9, 9, 9, 9, 9, 1, 0, 9);
    kvs_tokenizer_close(tok);
}

/* Text of a kind that would take quadratic time if anything did. */
static void test_long(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "\xcc\x81\xcc\x95", "ab ", "\xe4\xb8\xad"};
    kvs_tokenizer *toks[2] = {make(PARTS, 0), make(LLAMA, 0)};
    const size_t n = (size_t)1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t u = 0; u < KVS_COUNT(units); u++) {
        const size_t len = strlen(units[u]);
        for (size_t i = 0; i + len <= n; i += len) {
            memcpy(text + i, units[u], len);
        }
        for (unsigned t = 0; t < 2; t++) {
            size_t n_ids = 0;
            assert_int_equal(
                kvs_tokenizer_encode(toks[t], text, n / len * len, 0, NULL, 0, &n_ids, NULL),
                KVS_OK);
            assert_true(n_ids > 0);
        }
    }
    free(text);
    kvs_tokenizer_close(toks[0]);
    kvs_tokenizer_close(toks[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_folder),   cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_left_out), cmocka_unit_test(test_long)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
