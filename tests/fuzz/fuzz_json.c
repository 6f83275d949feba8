/* SPDX-License-Identifier: MIT */
/* fuzz_json.c: the input is a JSON text. It parses into nodes that can all be walked, or is refused
 * with a place and a reason; memory follows its size. Read as the caller's text and decoded in
 * place it is refused with the same message or holds the same values. */
#include <stdlib.h>
#include <string.h>

#include "engine/json.h"
#include "fuzz/fuzz.h"

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

/* Of documents made of the same text. */
static void check_same(kvs__jval a, kvs__jval b)
{
    CHECK(kvs__json_kind(a) == kvs__json_kind(b) && kvs__json_count(a) == kvs__json_count(b));
    char *text = malloc(kvs__json_raw(a).len + 1);
    CHECK(text);
    const size_t n = kvs__json_text(a, text);
    const kvs__str s = kvs__json_raw(b);
    CHECK(!kvs__json_escaped(b) && s.len == n && memcmp(text, s.ptr, n) == 0);
    free(text);
    kvs__jval name[2] = {{NULL, 0}, {NULL, 0}};
    kvs__jval e[2] = {{NULL, 0}, {NULL, 0}};
    while (kvs__json_next(a, &e[0])) {
        CHECK(kvs__json_next(b, &e[1]));
        check_same(e[0], e[1]);
    }
    e[0].doc = e[1].doc = NULL;
    while (kvs__json_member(a, &name[0], &e[0])) {
        CHECK(kvs__json_member(b, &name[1], &e[1]));
        check_same(name[0], name[1]);
        check_same(e[0], e[1]);
    }
}

static void check_adopted(kvs_ctx *ctx, const uint8_t *data, size_t size, kvs_status want,
                          const kvs__json *doc, const kvs_err *want_err)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs__json *own = NULL;
    char *text = kvs__alloc(ctx, size + 1);
    CHECK(text);
    if (size > 0) {
        memcpy(text, data, size);
    }
    CHECK(kvs__json_adopt(ctx, text, size, "text", &own, &err) == want);
    if (want == KVS_OK) {
        check_same(kvs__json_root(doc), kvs__json_root(own));
    } else {
        CHECK(!own && strcmp(err.msg, want_err->msg) == 0);
    }
    kvs__json_free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    opts.n_threads = 1;
    opts.max_bytes =
        96 * size + (64u << 10); /* 16 bytes a character, thrice while growing, twice */
    kvs_ctx *ctx = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    CHECK(kvs_ctx_new(&opts, &ctx, &err) == KVS_OK);
    kvs__json *doc = NULL;
    kvs_status st = kvs__json_parse(ctx, (const char *)data, size, "text", &doc, &err);
    if (st == KVS_OK) {
        (void)walk(kvs__json_root(doc), 0);
    } else {
        CHECK((st == KVS_E_FORMAT || st == KVS_E_LIMIT) && !doc && err.msg[0] != 0);
    }
    check_adopted(ctx, data, size, st, doc, &err);
    kvs__json_free(doc);
    kvs_ctx_free(ctx);
    return 0;
}
