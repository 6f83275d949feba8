/* SPDX-License-Identifier: MIT */
/* fuzz_token.c: the input is a vocabulary and a text (tests/fuzz/seed_token.py writes some):
 *
 *   u8 options   bit 0 SPM, bit 1 space prefix, bit 2 byte tokens or alphabet, bits 4..7 scheme
 *   u8 n, then n tokens:  u8 length, u8 type, i8 score, bytes
 *   u8 m, then m merges:  u8 length, bytes
 *   the rest is the text
 *
 * A vocabulary may be refused, a text never. Ids must be in range and the same on a second call,
 * the stream must be the repaired decoding, and where every byte has a token the text comes back. */
#include <stdlib.h>
#include <string.h>

#include "engine/token.h"
#include "engine/token_utf8.h"
#include "fuzz/fuzz.h"
#include "support/token_vocab.h"

static const char *const SCHEMES[16] = {"default", "gpt-2",        "smollm",         "llama-bpe",
                                        "dbrx",    "glm4",         "qwen2",          "qwen35",
                                        "falcon",  "deepseek-llm", "deepseek-coder", "deepseek-v3",
                                        "gpt-4o",  "tekken",       "no such scheme", "gpt-2"};

struct input {
    const uint8_t *p;
    size_t n;
};

static uint8_t take(struct input *in)
{
    if (in->n == 0) {
        return 0;
    }
    in->n--;
    return *in->p++;
}

static kvs__text take_text(struct input *in, size_t len)
{
    len = len < in->n ? len : in->n;
    kvs__text t = {(const char *)in->p, len};
    in->p += len;
    in->n -= len;
    return t;
}

static void take_vocab(struct input *in, tv *v, unsigned options)
{
    if ((options & 1) != 0) {
        tv_spm_init(v);
        v->src.n_tokens = (options & 4) != 0 ? v->src.n_tokens : 3;
        v->src.add_space_prefix = (options >> 1) & 1;
    } else {
        tv_bpe_init(v, SCHEMES[options >> 4]);
        v->src.n_tokens = (options & 4) != 0 ? v->src.n_tokens : 0x7f;
    }
    for (unsigned n = take(in); n > 0; n--) {
        size_t i = v->src.n_tokens++;
        size_t len = take(in);
        v->types[i] = take(in);
        v->scores[i] = (float)(int8_t)take(in);
        v->texts[i] = take_text(in, len);
    }
    for (unsigned m = take(in) % TV_MERGES; m > 0; m--) {
        size_t len = take(in);
        v->merges[v->src.n_merges++] = take_text(in, len);
    }
}

/* U+FFFD for every ill-formed part; with_spaces: U+2581 becomes a space. */
static size_t repair(const char *text, size_t n, bool with_spaces, char *out)
{
    size_t used = 0;
    for (size_t i = 0, step = 0; i < n; i += step) {
        uint32_t cp = 0;
        if (kvs__utf8_step(text + i, n - i, &step, &cp) != KVS__UTF8_OK) {
            memcpy(out + used, KVS__UTF8_REPLACEMENT, 3);
            used += 3;
        } else if (cp == KVS__SPACE_MARK_CP && with_spaces) {
            out[used++] = ' ';
        } else {
            memcpy(out + used, text + i, step);
            used += step;
        }
    }
    return used;
}

static void check_stream(const kvs_tokenizer *tok, const int32_t *ids, size_t n, uint32_t flags,
                         const char *bytes, size_t n_bytes)
{
    char *want = malloc(3 * n_bytes + 1);
    CHECK(want);
    size_t n_want = repair(bytes, n_bytes, false, want);
    kvs_detok *d = NULL;
    CHECK(kvs_detok_new(tok, flags, &d, NULL) == KVS_OK);
    size_t used = 0;
    for (size_t i = 0; i <= n; i++) {
        const char *piece = NULL;
        size_t len = 0;
        if (i < n) {
            CHECK(kvs_detok_put(d, ids[i], &piece, &len, NULL) == KVS_OK);
            CHECK(kvs__utf8_valid(piece, len) == len);
        } else {
            kvs_detok_finish(d, &piece, &len);
        }
        CHECK(used + len <= n_want && memcmp(want + used, piece, len) == 0);
        used += len;
    }
    CHECK(used == n_want);
    kvs_detok_free(d);
    free(want);
}

static bool has_user(const kvs_tokenizer *tok)
{
    bool any = false;
    for (size_t i = 0; i < kvs_tokenizer_size(tok); i++) {
        any = any || (kvs_tokenizer_attr(tok, (int32_t)i) & KVS_TOKEN_USER) != 0;
    }
    return any;
}

static void check_text(const kvs_tokenizer *tok, unsigned options, kvs__text text, uint32_t flags)
{
    size_t n = 0;
    CHECK(kvs_tokenizer_encode(tok, text.ptr, text.len, flags, NULL, 0, &n, NULL) == KVS_OK);
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    CHECK(ids);
    size_t n2 = 0;
    CHECK(kvs_tokenizer_encode(tok, text.ptr, text.len, flags, ids, n, &n2, NULL) == KVS_OK);
    CHECK(n == n2);
    size_t n_bytes = 0;
    CHECK(kvs_tokenizer_decode(tok, ids, n, KVS_TOKENIZE_SPECIAL, NULL, 0, &n_bytes, NULL) ==
          KVS_OK);
    char *bytes = malloc(n_bytes + 1);
    CHECK(bytes);
    CHECK(kvs_tokenizer_decode(tok, ids, n, KVS_TOKENIZE_SPECIAL, bytes, n_bytes, &n_bytes, NULL) ==
          KVS_OK);
    check_stream(tok, ids, n, KVS_TOKENIZE_SPECIAL, bytes, n_bytes);
    const bool spm = (options & 1) != 0;
    const bool prefixed = spm && (options & 2) != 0;
    const bool odd_prefix = prefixed && n_bytes >= 3 && memcmp(bytes, KVS__SPACE_MARK, 3) == 0;
    if ((options & 4) != 0 && flags == 0 && !(prefixed && has_user(tok)) && !odd_prefix) {
        char *want = malloc(3 * text.len + 1);
        CHECK(want);
        size_t n_want = repair(text.ptr, text.len, spm, want);
        /* a space without a token of its own comes back as the bytes of U+2581 */
        char *got = malloc(3 * n_bytes + 1);
        CHECK(got);
        size_t n_got = repair(bytes, n_bytes, spm, got);
        CHECK(n_got == n_want && memcmp(got, want, n_want) == 0);
        free(got);
        free(want);
    }
    free(bytes);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static tv vocab;
    struct input in = {data, size};
    const unsigned options = take(&in);
    take_vocab(&in, &vocab, options);
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    kvs_ctx *ctx = NULL;
    kvs_err err = {0};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs_tokenizer *tok = NULL;
    kvs_status st = kvs__tokenizer_new(ctx, &vocab.src, &tok, &err);
    if (st == KVS_OK) {
        kvs__text text = {(const char *)in.p, in.n};
        check_text(tok, options, text, 0);
        check_text(tok, options, text, KVS_TOKENIZE_SPECIAL | KVS_TOKENIZE_ADD_SPECIAL);
    } else {
        CHECK(st == KVS_E_FORMAT || st == KVS_E_UNSUPPORTED);
        CHECK(!tok && err.msg[0] != 0);
    }
    kvs__tokenizer_free(tok);
    kvs_ctx_free(ctx);
    return 0;
}
