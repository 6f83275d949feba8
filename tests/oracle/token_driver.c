/* SPDX-License-Identifier: MIT */
/* token_driver.c: the tokenizer of a GGUF file, or of a tokenizer.json or its folder, as a filter,
 * for comparison with other libraries.
 *
 *   token_driver FILE encode FLAGS [PRE]   records of bytes on stdin -> records of ids on stdout
 *   token_driver FILE decode FLAGS [PRE]   records of ids -> two records of bytes each: the
 *                                          decoded bytes, and all pieces of the stream together
 *   token_driver FILE time REPEATS [PRE]   times building, and encoding all records of stdin
 *
 * A record is a u32 count (bytes or ids) and the data, in the machine's order.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/token_gguf.h"
#include "engine/token_json.h"

/* Processor time: other programs on the machine do not count. */
static double now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int fail(const char *what, const kvs_err *err)
{
    (void)fprintf(stderr, "token_driver: %s: %s: %s\n", what, kvs_status_name(err->status),
                  err->msg);
    return 1;
}

/* Reads one record into a buffer that grows; false at the end. */
static bool read_record(void **buf, size_t *cap, size_t each, uint32_t *n)
{
    if (fread(n, sizeof *n, 1, stdin) != 1) {
        return false;
    }
    size_t bytes = *n * each;
    if (bytes + 1 > *cap) {
        *cap = bytes + 1;
        *buf = realloc(*buf, *cap);
    }
    return *buf && fread(*buf, 1, bytes, stdin) == bytes;
}

static void write_record(const void *data, size_t n, size_t each)
{
    uint32_t count = (uint32_t)n;
    (void)fwrite(&count, sizeof count, 1, stdout);
    (void)fwrite(data, each, n, stdout);
}

static int do_encode(const kvs_tokenizer *tok, uint32_t flags)
{
    void *text = NULL;
    size_t cap = 0;
    uint32_t n = 0;
    while (read_record(&text, &cap, 1, &n)) {
        kvs_err err = {0};
        size_t n_ids = 0;
        size_t room = 0; /* normalizing may lengthen a text */
        kvs_status st = kvs_tokenizer_encode(tok, text, n, flags, NULL, 0, &room, &err);
        int32_t *ids = malloc((room + 1) * sizeof *ids);
        if (!ids || st != KVS_OK ||
            kvs_tokenizer_encode(tok, text, n, flags, ids, room, &n_ids, &err) != KVS_OK) {
            free(ids);
            free(text);
            return fail("encode", &err);
        }
        write_record(ids, n_ids, sizeof *ids);
        free(ids);
    }
    free(text);
    return 0;
}

static int stream_record(kvs_detok *d, const int32_t *ids, size_t n, char *out)
{
    size_t used = 0;
    const char *piece = NULL;
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        kvs_err err = {0};
        if (kvs_detok_put(d, ids[i], &piece, &len, &err) != KVS_OK) {
            return fail("put", &err);
        }
        memcpy(out + used, piece, len);
        used += len;
    }
    kvs_detok_finish(d, &piece, &len);
    memcpy(out + used, piece, len);
    write_record(out, used + len, 1);
    return 0;
}

static int do_decode(const kvs_tokenizer *tok, uint32_t flags)
{
    void *ids = NULL;
    size_t cap = 0;
    uint32_t n = 0;
    kvs_err err = {0};
    kvs_detok *d = NULL;
    if (kvs_detok_new(tok, flags, &d, &err) != KVS_OK) {
        return fail("detok", &err);
    }
    int rc = 0;
    while (rc == 0 && read_record(&ids, &cap, sizeof(int32_t), &n)) {
        size_t len = 0;
        kvs_status st = kvs_tokenizer_decode(tok, ids, n, flags, NULL, 0, &len, &err);
        char *out = malloc(3 * len + 8);
        if (st == KVS_OK && out) {
            st = kvs_tokenizer_decode(tok, ids, n, flags, out, len, &len, &err);
        }
        if (st != KVS_OK || !out) {
            rc = fail("decode", &err);
        } else {
            write_record(out, len, 1);
            rc = stream_record(d, ids, n, out);
        }
        free(out);
    }
    kvs_detok_free(d);
    free(ids);
    return rc;
}

static int do_time(const kvs_tokenizer *tok, unsigned repeats)
{
    void *text = NULL;
    size_t cap = 0;
    uint32_t n = 0;
    while (read_record(&text, &cap, 1, &n)) {
        double best = 1e30;
        size_t n_ids = 0;
        for (unsigned i = 0; i < repeats; i++) {
            kvs_err err = {0};
            double start = now();
            if (kvs_tokenizer_encode(tok, text, n, 0, NULL, 0, &n_ids, &err) != KVS_OK) {
                free(text);
                return fail("encode", &err);
            }
            double took = now() - start;
            best = took < best ? took : best;
        }
        printf("%" PRIu32 " bytes %zu ids %.3f ms %.2f MB/s\n", n, n_ids, 1e3 * best,
               1e-6 * n / best);
    }
    free(text);
    return 0;
}

static kvs_status open_tokenizer(kvs_ctx *ctx, const char *path, const char *pre, kvs__gguf **g,
                                 kvs_tokenizer **tok, kvs_err *err)
{
    const size_t n = strlen(path);
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) {
        return kvs__tokenizer_from_json(ctx, path, 0, tok, err);
    }
    kvs_status st = kvs__gguf_open(ctx, path, g, err);
    return st == KVS_OK ? kvs__tokenizer_from_gguf(ctx, *g, pre, tok, err) : st;
}

static int run(kvs_ctx *ctx, char **argv, const char *pre)
{
    kvs_err err = {0};
    kvs__gguf *g = NULL;
    kvs_tokenizer *tok = NULL;
    double start = now();
    int rc = 0;
    const unsigned number = (unsigned)strtoul(argv[3], NULL, 0);
    if (open_tokenizer(ctx, argv[1], pre, &g, &tok, &err) != KVS_OK) {
        rc = fail("tokenizer", &err);
    } else if (strcmp(argv[2], "encode") == 0) {
        rc = do_encode(tok, number);
    } else if (strcmp(argv[2], "decode") == 0) {
        rc = do_decode(tok, number);
    } else {
        printf("built %zu tokens in %.2f ms\n", kvs_tokenizer_size(tok), 1e3 * (now() - start));
        rc = do_time(tok, number);
    }
    kvs__tokenizer_free(tok);
    kvs__gguf_close(g);
    return rc;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        (void)fprintf(stderr, "usage: token_driver FILE encode|decode|time NUMBER [PRE]\n");
        return 2;
    }
    kvs_err err = {0};
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    kvs_ctx *ctx = NULL;
    if (kvs_ctx_new(&opts, &ctx, &err) != KVS_OK) {
        return fail("ctx", &err);
    }
    int rc = run(ctx, argv, argc > 4 ? argv[4] : NULL);
    kvs_ctx_free(ctx);
    return rc;
}
