/* SPDX-License-Identifier: MIT */
/* cmd_inspect.c: what a model file holds, and the bytes its state would take under a plan. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "util.h"

typedef struct inspect {
    settings *s;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_model_info info;
    size_t *layer_bytes; /* [n_layers] */
    size_t state_bytes;
    uint32_t n_ctx;
} inspect;

static int plan_state(inspect *v)
{
    if (v->info.n_layers == 0) {
        return 0;
    }
    int rc = make_plan(v->s, v->ctx, v->model, NULL, &v->plan);
    if (rc != 0) {
        return rc;
    }
    v->n_ctx = kvs_plan_n_ctx(v->plan);
    v->layer_bytes = calloc(v->info.n_layers, sizeof *v->layer_bytes);
    if (!v->layer_bytes) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_plan_bytes(v->plan, v->n_ctx, &v->state_bytes, v->layer_bytes, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

/* ---- text */

static void text_model(const inspect *v)
{
    const kvs_model_info *i = &v->info;
    char a[32];
    char b[32];
    (void)printf("model         %s\narchitecture  %s%s\n", i->name[0] ? i->name : "(no name)",
                 i->arch[0] ? i->arch : "(none)", i->n_layers ? "" : " (not supported)");
    (void)printf("parameters    %.1f M\nfile          %s, weights %s\n", (double)i->n_params / 1e6,
                 format_bytes(a, sizeof a, (double)i->file_bytes),
                 format_bytes(b, sizeof b, (double)i->weight_bytes));
    if (i->n_layers == 0) {
        return;
    }
    (void)printf("read/token    %s\n", format_bytes(a, sizeof a, (double)i->step_bytes));
    (void)printf("layers        %u of width %u, feed-forward %u\n", i->n_layers, i->d_model,
                 i->d_ff);
    if (i->n_heads > 0) {
        (void)printf("heads         %u, %u for keys and values of %u/%u\n", i->n_heads,
                     i->n_kv_heads, i->k_dim, i->v_dim);
    }
    if (i->n_experts > 0) {
        (void)printf("experts       %u, %u for each token\n", i->n_experts, i->n_experts_used);
    }
    (void)printf("context       %u tokens\n", i->n_ctx_train);
    uint32_t local = 0;
    uint32_t window = 0;
    for (uint32_t l = 0; l < i->n_layers; l++) {
        uint32_t w = kvs_model_window(v->model, l);
        local += w > 0;
        window = w > 0 ? w : window;
    }
    if (local > 0) {
        (void)printf("window        %u tokens in %u layers\n", window, local);
    }
}

static void text_tokenizer(const inspect *v)
{
    static const char *const names[] = {"begin", "end", "unknown", "pad", "turn end"};
    const kvs_tokenizer *t = kvs_model_tokenizer(v->model);
    if (!t) {
        (void)puts("tokenizer     none");
        return;
    }
    (void)printf("tokenizer     %zu tokens", kvs_tokenizer_size(t));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int32_t id = kvs_tokenizer_special(t, (kvs_special)i);
        size_t n = 0;
        const char *text = id >= 0 ? kvs_tokenizer_text(t, id, &n) : NULL;
        if (text) {
            (void)printf(", %s %d %.*s", names[i], id, (int)n, text);
        }
    }
    (void)puts(kvs_tokenizer_adds(t) & 1 ? ", begin is added" : "");
}

static void text_state(const inspect *v)
{
    char line[256];
    char a[32];
    if (!v->plan) {
        return;
    }
    for (uint32_t i = 0; kvs_plan_line(v->plan, i, line, sizeof line) > 0; i++) {
        (void)printf("%-13s %s\n", i ? "" : "state", line);
    }
    (void)printf("state bytes   %s at %u tokens\n",
                 format_bytes(a, sizeof a, (double)v->state_bytes), v->n_ctx);
    for (uint32_t l = 0; l < v->info.n_layers; l++) {
        (void)printf("  layer %-5u %s\n", l, format_bytes(a, sizeof a, (double)v->layer_bytes[l]));
    }
}

static kvs_plan_undo undo_of(const inspect *v)
{
    kvs_plan_undo u = KVS_PLAN_UNDO_INIT;
    if (v->plan) {
        (void)kvs_plan_get_undo(v->plan, &u);
    }
    return u;
}

static void text_undo(const inspect *v)
{
    char a[32];
    char b[32];
    char c[32];
    kvs_plan_undo u = undo_of(v);
    if (u.n_tokens == 0) {
        return;
    }
    (void)printf("undo          %u tokens of recurrent layers: %s, at most %u computed again\n"
                 "              (the least is %s and %u; %s and none)\n",
                 u.n_tokens, format_bytes(a, sizeof a, (double)u.bytes), u.interval - 1,
                 format_bytes(b, sizeof b, (double)u.bytes_least), u.interval_least - 1,
                 format_bytes(c, sizeof c, (double)u.bytes_every));
}

static void text_entries(const inspect *v)
{
    kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
    (void)puts("metadata");
    for (size_t i = 0; kvs_model_get_entry(v->model, i, &e) == KVS_OK; i++) {
        (void)printf("  %s %s = %.150s\n", e.key, e.type, e.value);
    }
    if (!v->s->tensors) {
        return;
    }
    kvs_model_tensor t = KVS_MODEL_TENSOR_INIT;
    (void)puts("tensors");
    for (size_t i = 0; kvs_model_get_tensor(v->model, i, &t) == KVS_OK; i++) {
        (void)printf("  %-40s %-5s %llu x %llu x %llu x %llu, %llu bytes\n", t.name, t.type,
                     (unsigned long long)t.dims[0], (unsigned long long)t.dims[1],
                     (unsigned long long)t.dims[2], (unsigned long long)t.dims[3],
                     (unsigned long long)t.bytes);
    }
}

/* ---- JSON */

static void json_member(const char *sep, const char *key, const char *value)
{
    (void)printf("%s\"%s\":", sep, key);
    json_text(stdout, value, strlen(value));
}

static void json_model(const inspect *v)
{
    const kvs_model_info *i = &v->info;
    json_member("{", "name", i->name);
    json_member(",", "architecture", i->arch);
    (void)printf(
        ",\"parameters\":%llu,\"file_bytes\":%llu,\"weight_bytes\":%llu,\"step_bytes\":%llu",
        (unsigned long long)i->n_params, (unsigned long long)i->file_bytes,
        (unsigned long long)i->weight_bytes, (unsigned long long)i->step_bytes);
    (void)printf(",\"n_layers\":%u,\"d_model\":%u,\"d_ff\":%u,\"n_heads\":%u,\"n_kv_heads\":%u,"
                 "\"k_dim\":%u,\"v_dim\":%u,\"n_vocab\":%u,\"n_ctx_train\":%u,"
                 "\"n_experts\":%u,\"n_experts_used\":%u",
                 i->n_layers, i->d_model, i->d_ff, i->n_heads, i->n_kv_heads, i->k_dim, i->v_dim,
                 i->n_vocab, i->n_ctx_train, i->n_experts, i->n_experts_used);
}

static void json_state(const inspect *v)
{
    char line[256];
    (void)printf(",\"state\":{\"n_ctx\":%u,\"bytes\":%zu,\"plan\":[", v->n_ctx, v->state_bytes);
    for (uint32_t i = 0; v->plan && kvs_plan_line(v->plan, i, line, sizeof line) > 0; i++) {
        (void)fputs(i ? "," : "", stdout);
        json_text(stdout, line, strlen(line));
    }
    (void)fputs("],\"layer_bytes\":[", stdout);
    for (uint32_t l = 0; v->layer_bytes && l < v->info.n_layers; l++) {
        (void)printf("%s%zu", l ? "," : "", v->layer_bytes[l]);
    }
    kvs_plan_undo u = undo_of(v);
    (void)printf("],\"undo\":{\"tokens\":%u,\"interval\":%u,\"bytes\":%zu,"
                 "\"interval_least\":%u,\"bytes_least\":%zu,\"bytes_every\":%zu}}",
                 u.n_tokens, u.interval, u.bytes, u.interval_least, u.bytes_least, u.bytes_every);
}

static void json_entries(const inspect *v)
{
    kvs_model_entry e = KVS_MODEL_ENTRY_INIT;
    (void)fputs(",\"metadata\":[", stdout);
    for (size_t i = 0; kvs_model_get_entry(v->model, i, &e) == KVS_OK; i++) {
        json_member(i ? ",{" : "{", "key", e.key);
        json_member(",", "type", e.type);
        json_member(",", "value", e.value);
        (void)fputs("}", stdout);
    }
    kvs_model_tensor t = KVS_MODEL_TENSOR_INIT;
    (void)fputs("],\"tensors\":[", stdout);
    for (size_t i = 0; v->s->tensors && kvs_model_get_tensor(v->model, i, &t) == KVS_OK; i++) {
        json_member(i ? ",{" : "{", "name", t.name);
        json_member(",", "type", t.type);
        (void)printf(",\"dims\":[%llu,%llu,%llu,%llu],\"bytes\":%llu}",
                     (unsigned long long)t.dims[0], (unsigned long long)t.dims[1],
                     (unsigned long long)t.dims[2], (unsigned long long)t.dims[3],
                     (unsigned long long)t.bytes);
    }
    (void)fputs("]}\n", stdout);
}

int cmd_inspect(settings *s)
{
    inspect v = {.s = s, .info = KVS_MODEL_INFO_INIT};
    int rc = make_ctx(s, &v.ctx);
    if (rc == 0) {
        rc = open_model(s, v.ctx, KVS_MODEL_INSPECT, &v.model);
    }
    if (rc == 0) {
        (void)kvs_model_get_info(v.model, &v.info);
        rc = plan_state(&v);
    }
    if (rc == 0 && s->json) {
        json_model(&v);
        json_state(&v);
        json_entries(&v);
    } else if (rc == 0) {
        text_model(&v);
        text_tokenizer(&v);
        text_state(&v);
        text_undo(&v);
        text_entries(&v);
    }
    free(v.layer_bytes);
    kvs_plan_free(v.plan);
    kvs_model_close(v.model);
    kvs_ctx_free(v.ctx);
    return rc;
}
