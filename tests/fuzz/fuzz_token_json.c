/* SPDX-License-Identifier: MIT */
/* fuzz_token_json.c: the input is a tokenizer.json, a NUL, and a text (tests/fuzz/seed_token_json.py
 * writes some).
 *
 * A file may be refused, with a message; then nothing is left allocated. A text is refused only for
 * memory or for an expression that backtracks without end. Ids must be in range and the same on a
 * second call, control tokens come from KVS_TOKENIZE_SPECIAL alone, and the stream must be the
 * repaired decoding. */
#include <stdlib.h>
#include <string.h>

#include "engine/token_json.h"
#include "engine/token_utf8.h"
#include "fuzz/fuzz.h"

#define MEMORY   ((size_t)16 << 20)
#define TEXT_MAX 300u
#define IDS_MAX  4096u

static void check_stream(const kvs_tokenizer *tok, const int32_t *ids, size_t n, uint32_t flags)
{
    static char bytes[1 << 20];
    size_t n_bytes = 0;
    kvs_detok *d = NULL;
    kvs_status st = kvs_tokenizer_decode(tok, ids, n, flags, bytes, sizeof bytes, &n_bytes, NULL);
    if (st == KVS_E_RANGE || st == KVS_E_NOMEM || kvs_detok_new(tok, flags, &d, NULL) != KVS_OK) {
        return;
    }
    CHECK(st == KVS_OK);
    size_t at = 0; /* of bytes; what was compared */
    for (size_t i = 0; i <= n; i++) {
        const char *piece = NULL;
        size_t len = 0;
        if (i < n) {
            CHECK(kvs_detok_put(d, ids[i], &piece, &len, NULL) == KVS_OK);
        } else {
            kvs_detok_finish(d, &piece, &len);
        }
        CHECK(kvs__utf8_valid(piece, len) == len);
        for (size_t k = 0; k < len;) {
            size_t step = 0;
            size_t got = 0;
            uint32_t cp = 0;
            uint32_t want = 0xfffd;
            CHECK(at < n_bytes);
            (void)kvs__utf8_step(piece + k, len - k, &got, &cp);
            if (kvs__utf8_step(bytes + at, n_bytes - at, &step, &want) != KVS__UTF8_OK) {
                want = 0xfffd;
            }
            CHECK(cp == want);
            at += step;
            k += got;
        }
    }
    CHECK(at == n_bytes);
    kvs_detok_free(d);
}

static void check_text(const kvs_tokenizer *tok, const char *text, size_t n, uint32_t flags)
{
    static int32_t ids[IDS_MAX];
    static int32_t again[IDS_MAX];
    size_t n_ids = 0;
    size_t n_again = 0;
    kvs_err err = {0};
    kvs_status st = kvs_tokenizer_encode(tok, text, n, flags, ids, IDS_MAX, &n_ids, &err);
    if (st != KVS_OK) {
        CHECK(st == KVS_E_RANGE || st == KVS_E_NOMEM || st == KVS_E_LIMIT);
        return;
    }
    CHECK(kvs_tokenizer_encode(tok, text, n, flags, again, IDS_MAX, &n_again, NULL) == KVS_OK);
    CHECK(n_ids == n_again && memcmp(ids, again, n_ids * sizeof *ids) == 0);
    for (size_t i = 0; i < n_ids; i++) {
        const uint32_t attr = kvs_tokenizer_attr(tok, ids[i]);
        CHECK(attr != 0);
        CHECK(flags != 0 || (attr & KVS_TOKEN_CONTROL) == 0 || (attr & KVS_TOKEN_UNKNOWN) != 0);
    }
    check_stream(tok, ids, n_ids, 0);
    check_stream(tok, ids, n_ids, KVS_TOKENIZE_SPECIAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    const size_t n_file = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : "He said: 12 <s>\xc3\xa9\xff";
    size_t n_text = nul ? size - n_file - 1 : strlen(text);
    n_text = n_text < TEXT_MAX ? n_text : TEXT_MAX;
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = MEMORY;
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs_ctx_stats before = KVS_CTX_STATS_INIT;
    kvs_ctx_stats after = KVS_CTX_STATS_INIT;
    CHECK(kvs_ctx_get_stats(ctx, &before) == KVS_OK);
    kvs_tokenizer *tok = NULL;
    kvs_status st = kvs__tokenizer_from_json_text(ctx, (const char *)data, n_file, 0, &tok, &err);
    if (st == KVS_OK) {
        check_text(tok, text, n_text, 0);
        check_text(tok, text, n_text, KVS_TOKENIZE_SPECIAL | KVS_TOKENIZE_ADD_SPECIAL);
    } else {
        CHECK(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED || st == KVS_E_LIMIT ||
              st == KVS_E_NOMEM);
        CHECK(!tok && err.msg[0] != 0);
    }
    kvs__tokenizer_free(tok);
    CHECK(kvs_ctx_get_stats(ctx, &after) == KVS_OK && after.live_bytes == before.live_bytes);
    kvs_ctx_free(ctx);
    return 0;
}
