/* SPDX-License-Identifier: MIT */
/* jinja_driver.c: renders templates for oracle_jinja.py. A line of standard input is an object
 * {"t": template, "v": JSON text of the variables, "now": seconds}; the answer is "O BYTES\n" and
 * the text, or "E STATUS BYTES\n" and the message; a newline after either. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "kvstate/engine.h"

static void answer(kvs_status st, const char *text, size_t n)
{
    if (st == KVS_OK) {
        (void)printf("O %zu\n", n);
    } else {
        (void)printf("E %d %zu\n", (int)st, n);
    }
    (void)fwrite(text, 1, n, stdout);
    (void)putchar('\n');
    (void)fflush(stdout);
}

static void one(kvs_ctx *ctx, const char *line, size_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_value *request = NULL;
    kvs_value *vars = NULL;
    kvs_value *text = NULL;
    kvs_template *t = NULL;
    kvs_template_opts o = KVS_TEMPLATE_OPTS_INIT;
    size_t len = 0;
    kvs_status st = kvs_value_parse(ctx, line, n, 0, &request, &err);
    if (st == KVS_OK) {
        const char *v = kvs_value_text(kvs_value_get(request, "v"), &len);
        st = kvs_value_parse(ctx, v, len, KVS_VALUE_VARIABLES, &vars, &err);
    }
    if (st == KVS_OK) {
        const char *p = kvs_value_text(kvs_value_get(request, "t"), &len);
        st = kvs_template_compile(ctx, p, len, &t, &err);
    }
    if (st == KVS_OK) {
        o.has_time = 1;
        o.time = kvs_value_int(kvs_value_get(request, "now"), 0);
        st = kvs_template_render(ctx, t, vars, &o, &text, &err);
    }
    const char *p = st == KVS_OK ? kvs_value_text(text, &len) : err.msg;
    answer(st, p, st == KVS_OK ? len : strlen(p));
    kvs_value_free(text);
    kvs_value_free(vars);
    kvs_value_free(request);
    kvs_template_free(t);
}

int main(void)
{
    kvs_ctx *ctx = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    char *line = NULL;
    size_t cap = 0;
    o.n_threads = 1;
    if (kvs_ctx_new(&o, &ctx, NULL) != KVS_OK) {
        return 1;
    }
    for (ssize_t n = getline(&line, &cap, stdin); n > 0; n = getline(&line, &cap, stdin)) {
        one(ctx, line, (size_t)n);
    }
    free(line);
    kvs_ctx_free(ctx);
    return 0;
}
