/* SPDX-License-Identifier: MIT */
/* token_expect.h: for tests of tokenizers, after cmocka.h: one from a synthetic vocabulary, and the ids
 * that a text must give. */
#ifndef KVS_TESTS_SUPPORT_TOKEN_EXPECT_H
#define KVS_TESTS_SUPPORT_TOKEN_EXPECT_H

#include "support/token_vocab.h"

enum { MAX_IDS = 4096 };

static inline kvs_tokenizer *tv_make(kvs_ctx *ctx, tv *v)
{
    kvs_tokenizer *tok = NULL;
    kvs_err err = {0};
    if (kvs__tokenizer_new(ctx, &v->src, &tok, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return tok;
}

static inline size_t encode(const kvs_tokenizer *tok, const char *text, size_t n, uint32_t flags,
                            int32_t *ids)
{
    size_t n_ids = 0;
    kvs_err err = {0};
    if (kvs_tokenizer_encode(tok, text, n, flags, ids, MAX_IDS, &n_ids, &err) != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    return n_ids;
}

static inline void expect(const kvs_tokenizer *tok, const char *text, uint32_t flags, size_t n,
                          const int32_t *want)
{
    int32_t ids[MAX_IDS];
    size_t got = encode(tok, text, strlen(text), flags, ids);
    if (got != n || (n > 0 && memcmp(ids, want, n * sizeof *ids) != 0)) {
        for (size_t i = 0; i < got; i++) {
            print_error("%d ", ids[i]);
        }
        fail_msg("for \"%s\"", text);
    }
}
#define EXPECT(tok, text, flags, ...)                                                              \
    expect(tok, text, flags, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),                   \
           (int32_t[]){__VA_ARGS__})

#endif
