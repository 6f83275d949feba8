/* SPDX-License-Identifier: MIT */
/* fuzz_template.c: the input is the JSON of the variables, a zero byte, and a template
 * (tests/fuzz/seed_template.py writes some). Whatever they are: an error with a text, or a text that
 * is UTF-8 with spans in order; bounded steps and memory, and the same on a second rendering. */
#include <stdlib.h>
#include <string.h>

#include "engine/token_utf8.h"
#include "fuzz/fuzz.h"
#include "kvstate/template.h"

static void check_text(const kvs_value *v)
{
    size_t n = 0;
    size_t at = 0;
    size_t from = 0;
    size_t to = 0;
    const char *p = kvs_value_text(v, &n);
    CHECK(p && p[n] == '\0' && kvs__utf8_valid(p, n) == n);
    for (size_t i = 0; kvs_value_input_span(v, i, &from, &to) == KVS_OK; i++) {
        CHECK(from >= at && to > from && to <= n);
        at = to;
    }
}

static void render(kvs_ctx *ctx, const kvs_template *t, const kvs_value *vars)
{
    kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
    kvs_value *out[2] = {NULL, NULL};
    kvs_err err = {KVS_OK, 0, "", ""};
    o.max_bytes = (size_t)16 << 20;
    o.max_output = (size_t)1 << 20;
    o.max_steps = 200000;
    o.has_time = 1;
    o.time = 1751968800;
    kvs_status st[2];
    for (int i = 0; i < 2; i++) {
        st[i] = kvs_template_render(ctx, t, vars, &o, &out[i], &err);
        CHECK(st[i] == KVS_OK || (err.status == st[i] && err.msg[0] && !out[i]));
        CHECK(st[i] != KVS_E_INTERNAL);
    }
    CHECK(st[0] == st[1]);
    if (st[0] == KVS_OK) {
        check_text(out[0]);
        CHECK(strcmp(kvs_value_text(out[0], NULL), kvs_value_text(out[1], NULL)) == 0);
    }
    kvs_value_free(out[0]);
    kvs_value_free(out[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    kvs_ctx_opts opts = KVS_CTX_OPTS_INIT;
    kvs_ctx *ctx = NULL;
    kvs_value *vars = NULL;
    kvs_template *t = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    opts.n_threads = 1;
    CHECK(kvs_ctx_new(&opts, &ctx, NULL) == KVS_OK);
    const uint8_t *zero = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : 0;
    const char *json = (const char *)data;
    kvs_status st = kvs_value_parse(ctx, json, n, KVS_VALUE_VARIABLES, &vars, &err);
    CHECK(st == KVS_OK || err.msg[0]);
    const char *text = zero ? json + n + 1 : json;
    st = kvs_template_compile(ctx, text, zero ? size - n - 1 : size, &t, &err);
    CHECK(st == KVS_OK || err.msg[0]);
    if (st == KVS_OK) {
        render(ctx, t, vars);
    }
    kvs_template_free(t);
    kvs_value_free(vars);
    kvs_ctx_free(ctx);
    return 0;
}
