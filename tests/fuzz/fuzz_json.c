/* SPDX-License-Identifier: MIT */
/* fuzz_json.c: the input is a JSON text. It parses into nodes that can all be walked, or is refused
 * with a place and a reason; memory follows its size. */
#include <stdint.h>
#include <stdlib.h>

#include "engine/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void look(kvs__jval v)
{
    int64_t i = 0;
    double d = 0.0;
    (void)kvs__json_int(v, &i);
    (void)kvs__json_double(v, &d);
    (void)kvs__json_is(v, "a");
    kvs__str raw = kvs__json_raw(v);
    char *text = malloc(raw.len + 1);
    CHECK(text);
    CHECK(kvs__json_text(v, text) <= raw.len);
    free(text);
}

/* Everything below v, depth first; recursion is bounded by the parser's own limit. */
static size_t walk(kvs__jval v, unsigned depth)
{
    CHECK(depth <= KVS__JSON_DEPTH);
    size_t n = 0;
    kvs__jval name = {NULL, 0};
    kvs__jval e = {NULL, 0};
    while (kvs__json_next(v, &e)) {
        n++;
        (void)walk(e, depth + 1);
    }
    e.doc = NULL;
    while (kvs__json_member(v, &name, &e)) {
        n++;
        CHECK(kvs__json_kind(name) == KVS__JSON_STRING);
        look(name);
        (void)walk(e, depth + 1);
    }
    CHECK(n == kvs__json_count(v));
    look(v);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes = 48 * size + (64u << 10); /* 16 bytes a character, thrice while growing */
    kvs_ctx *ctx = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs__json *doc = NULL;
    kvs_status st = kvs__json_parse(ctx, (const char *)data, size, "text", &doc, &err);
    if (st == KVS_OK) {
        (void)walk(kvs__json_root(doc), 0);
    } else {
        CHECK(st == KVS_E_FORMAT && !doc && err.msg[0] != 0);
    }
    kvs__json_free(doc);
    kvs_ctx_free(ctx);
    return 0;
}
