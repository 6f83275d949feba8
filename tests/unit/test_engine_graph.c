/* SPDX-License-Identifier: MIT */
/* test_engine_graph.c: tiny models against a forward pass written straight from the definition, in
 * double, over the same file; and the errors of files that don't fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kvstate/engine.h"
#include "support/model_build.h"

#define MAX_TOKENS 80
#define MAX_ROW    512

/* ---- the naive forward */

typedef struct naive {
    const tiny *t;
    kvs__gguf *g;
    double *k[16], *v[16]; /* of each layer: [tokens][n_kv][dim] */
} naive;

static const kvs__gguf_tensor *need(const naive *a, int layer, const char *name)
{
    char full[96];
    if (layer >= 0) {
        (void)snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    } else {
        (void)snprintf(full, sizeof full, "%s", name);
    }
    return kvs__gguf_tensor_find(a->g, full);
}

static void row_of(const kvs__gguf_tensor *w, size_t row, double *out)
{
    float buf[MAX_ROW];
    kvs__gguf_dequant(w->type, (const uint8_t *)w->data + row * w->row_bytes, w->ne[0], buf);
    for (size_t i = 0; i < w->ne[0]; i++) {
        out[i] = (double)buf[i];
    }
}

static void times(const kvs__gguf_tensor *w, const kvs__gguf_tensor *bias, const double *x,
                  double *y)
{
    double row[MAX_ROW];
    double b[MAX_ROW] = {0};
    if (bias) {
        row_of(bias, 0, b);
    }
    for (size_t j = 0; j < w->ne[1]; j++) {
        row_of(w, j, row);
        y[j] = b[j];
        for (size_t i = 0; i < w->ne[0]; i++) {
            y[j] += row[i] * x[i];
        }
    }
}

static void norm(const kvs__gguf_tensor *w, const double *x, double *y)
{
    double weight[MAX_ROW];
    double sum = 0.0;
    row_of(w, 0, weight);
    for (size_t i = 0; i < w->ne[0]; i++) {
        sum += x[i] * x[i];
    }
    double s = 1.0 / sqrt(sum / (double)w->ne[0] + (double)1e-5f);
    for (size_t i = 0; i < w->ne[0]; i++) {
        y[i] = x[i] * s * weight[i];
    }
}

static int is_local(const naive *a, int layer)
{
    return a->t->arch[0] == 'g' ? (layer + 1) % 6 != 0 : a->t->window > 0;
}

static void turn(const naive *a, int layer, int pos, double *x)
{
    const tiny *t = a->t;
    int gemma = t->arch[0] == 'g';
    double factors[MAX_ROW];
    const kvs__gguf_tensor *f = t->rope_freqs ? need(a, -1, "rope_freqs.weight") : NULL;
    if (f) {
        row_of(f, 0, factors);
    }
    int local = gemma && is_local(a, layer);
    double base = local ? 10000.0 : 5000.0;
    double scale = t->rope_scale > 0.0f && !local ? 1.0 / (double)t->rope_scale : 1.0;
    uint32_t half = t->dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double angle = pos * scale * pow(base, -2.0 * i / t->dim) / (f ? factors[i] : 1.0);
        double *p = gemma ? &x[i] : &x[2 * i];
        double *q = gemma ? &x[i + half] : &x[2 * i + 1];
        double u = *p * cos(angle) - *q * sin(angle);
        *q = *p * sin(angle) + *q * cos(angle);
        *p = u;
    }
}

static void attention(const naive *a, int layer, int pos, const double *q, double *out)
{
    const tiny *t = a->t;
    int first = is_local(a, layer) && pos - (int)t->window + 1 > 0 ? pos - (int)t->window + 1 : 0;
    for (uint32_t h = 0; h < t->n_heads; h++) {
        uint32_t g = h / (t->n_heads / t->n_kv_heads);
        double p[MAX_TOKENS];
        double sum = 0.0;
        for (int j = first; j <= pos; j++) {
            const double *k = a->k[layer] + ((size_t)j * t->n_kv_heads + g) * t->dim;
            double s = 0.0;
            for (uint32_t d = 0; d < t->dim; d++) {
                s += q[h * t->dim + d] * k[d];
            }
            p[j] = exp(s / sqrt(t->dim));
            sum += p[j];
        }
        for (uint32_t d = 0; d < t->dim; d++) {
            double y = 0.0;
            for (int j = first; j <= pos; j++) {
                y += p[j] / sum * a->v[layer][((size_t)j * t->n_kv_heads + g) * t->dim + d];
            }
            out[h * t->dim + d] = y;
        }
    }
}

static double activate(const tiny *t, double x)
{
    if (t->arch[0] == 'g') {
        return 0.5 * x *
               (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    }
    return x / (1.0 + exp(-x));
}

static void add_normed(const naive *a, int layer, const char *post, const double *y, double *x)
{
    double h[MAX_ROW];
    const kvs__gguf_tensor *w = a->t->arch[0] == 'g' ? need(a, layer, post) : NULL;
    if (w) {
        norm(w, y, h);
    }
    for (uint32_t i = 0; i < a->t->d_model; i++) {
        x[i] += w ? h[i] : y[i];
    }
}

static void layer_forward(naive *a, int i, int pos, double *x)
{
    const tiny *t = a->t;
    int gemma = t->arch[0] == 'g';
    double h[MAX_ROW];
    double q[MAX_ROW];
    double y[MAX_ROW];
    double gate[MAX_ROW];
    double *k = a->k[i] + (size_t)pos * t->n_kv_heads * t->dim;
    norm(need(a, i, "attn_norm.weight"), x, h);
    times(need(a, i, "attn_q.weight"), t->bias ? need(a, i, "attn_q.bias") : NULL, h, q);
    times(need(a, i, "attn_k.weight"), t->bias ? need(a, i, "attn_k.bias") : NULL, h, k);
    times(need(a, i, "attn_v.weight"), t->bias ? need(a, i, "attn_v.bias") : NULL, h,
          a->v[i] + (size_t)pos * t->n_kv_heads * t->dim);
    for (uint32_t n = 0; n < t->n_heads; n++) {
        if (gemma) {
            norm(need(a, i, "attn_q_norm.weight"), q + n * t->dim, q + n * t->dim);
        }
        turn(a, i, pos, q + n * t->dim);
    }
    for (uint32_t n = 0; n < t->n_kv_heads; n++) {
        if (gemma) {
            norm(need(a, i, "attn_k_norm.weight"), k + n * t->dim, k + n * t->dim);
        }
        turn(a, i, pos, k + n * t->dim);
    }
    attention(a, i, pos, q, h);
    times(need(a, i, "attn_output.weight"), NULL, h, y);
    add_normed(a, i, "post_attention_norm.weight", y, x);
    norm(need(a, i, "ffn_norm.weight"), x, h);
    times(need(a, i, "ffn_gate.weight"), NULL, h, gate);
    times(need(a, i, "ffn_up.weight"), NULL, h, y);
    for (uint32_t n = 0; n < t->d_ff; n++) {
        h[n] = activate(t, gate[n]) * y[n];
    }
    times(need(a, i, "ffn_down.weight"), NULL, h, y);
    add_normed(a, i, "post_ffw_norm.weight", y, x);
}

static void naive_logits(naive *a, int32_t token, int pos, double *logits)
{
    const tiny *t = a->t;
    double x[MAX_ROW];
    double h[MAX_ROW];
    row_of(need(a, -1, "token_embd.weight"), (size_t)token, x);
    for (uint32_t i = 0; t->arch[0] == 'g' && i < t->d_model; i++) {
        x[i] *= sqrt(t->d_model);
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        layer_forward(a, (int)i, pos, x);
    }
    norm(need(a, -1, "output_norm.weight"), x, h);
    times(need(a, -1, t->untied ? "output.weight" : "token_embd.weight"), NULL, h, logits);
}

/* ---- comparison */

typedef struct check {
    naive n;
    const int32_t *tokens;
    double worst, largest;
    size_t rows;
} check;

static int compare_row(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    check *c = user;
    double want[MAX_ROW];
    naive_logits(&c->n, c->tokens[pos], (int)pos, want);
    assert_int_equal(n_vocab, c->n.t->n_vocab);
    for (size_t i = 0; i < n_vocab; i++) {
        double d = fabs((double)logits[i] - want[i]);
        assert_true(d == d);
        c->worst = d > c->worst ? d : c->worst;
        c->largest = fabs(want[i]) > c->largest ? fabs(want[i]) : c->largest;
    }
    c->rows++;
    return 0;
}

static void compare(const tiny *t)
{
    char path[256];
    kvs_ctx *ctx = NULL;
    kvs_model *model = NULL;
    kvs_plan *plan = NULL;
    kvs_session *session = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t tokens[MAX_TOKENS];
    check c = {.n = {.t = t}, .tokens = tokens};
    assert_true(tiny_write(t, path, sizeof path));
    assert_int_equal(kvs_ctx_new(NULL, &ctx, &err), KVS_OK);
    kvs_status st = kvs_model_open(ctx, path, NULL, &model, &err);
    if (st != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    po.kv = "f32";
    po.max_block = 16;
    assert_int_equal(kvs_plan_new(ctx, model, &po, &plan, &err), KVS_OK);
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    so.plan = plan;
    assert_int_equal(kvs_session_new(ctx, model, &so, &session, &err), KVS_OK);
    assert_int_equal(kvs__gguf_open(ctx, path, &c.n.g, &err), KVS_OK);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        size_t n = (size_t)MAX_TOKENS * t->n_kv_heads * t->dim;
        c.n.k[i] = test_calloc(n, sizeof(double));
        c.n.v[i] = test_calloc(n, sizeof(double));
    }
    for (int i = 0; i < MAX_TOKENS; i++) {
        tokens[i] = (int32_t)((i * 37 + i * i) % (int)t->n_vocab);
    }
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = tokens;
    e.n_tokens = MAX_TOKENS;
    e.on_logits = compare_row;
    e.user = &c;
    st = kvs_session_eval(session, &e, &err);
    if (st != KVS_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(c.rows, MAX_TOKENS);
    assert_true(c.largest > 1.0); /* or the comparison would be of nothing */
    if (c.worst > 2e-4 * c.largest) {
        fail_msg("off by %g of %g", c.worst, c.largest);
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        test_free(c.n.k[i]);
        test_free(c.n.v[i]);
    }
    kvs__gguf_close(c.n.g);
    kvs_session_free(session);
    kvs_plan_free(plan);
    kvs_model_close(model);
    kvs_ctx_free(ctx);
    (void)unlink(path);
}

static void test_llama(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    compare(&t);
    t.untied = 1;
    t.bias = 1;
    t.rope_freqs = 1;
    t.seed = 5;
    compare(&t);
}

static void test_llama_window_and_scaling(void **state)
{
    (void)state;
    tiny t = TINY_LLAMA;
    t.window = 20;
    t.rope_scale = 4.0f;
    compare(&t);
}

static void test_gemma3(void **state)
{
    (void)state;
    tiny t = TINY_GEMMA;
    compare(&t);
    t.rope_scale = 8.0f;
    t.seed = 9;
    compare(&t);
}

static void test_weight_types(void **state)
{
    (void)state;
    const kvs__wtype types[] = {KVS__W_F16, KVS__W_BF16, KVS__W_Q8_0, KVS__W_Q4_0};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        tiny t = TINY_LLAMA;
        t.type = types[i];
        compare(&t);
    }
}

/* ---- what must be refused, and what the message names */

typedef struct bad {
    const char *omit, *wrong;
    const char *arch;
    uint32_t n_heads, n_kv_heads, dim;
    kvs_status status;
    const char *names;
} bad;

static const bad bads[] = {
    {.arch = "mamba", .status = KVS_E_UNSUPPORTED, .names = "\"mamba\""},
    {.omit = "llama.block_count", .status = KVS_E_FORMAT, .names = "llama.block_count"},
    {.omit = "llama.attention.layer_norm_rms_epsilon",
     .status = KVS_E_FORMAT,
     .names = "llama.attention.layer_norm_rms_epsilon"},
    {.omit = "blk.1.ffn_up.weight", .status = KVS_E_FORMAT, .names = "blk.1.ffn_up.weight"},
    {.omit = "output_norm.weight", .status = KVS_E_FORMAT, .names = "output_norm.weight"},
    {.wrong = "blk.2.attn_k.weight",
     .status = KVS_E_FORMAT,
     .names = "blk.2.attn_k.weight is 64 x 33 x 1, the metadata says 64 x 32"},
    {.n_heads = 5, .status = KVS_E_FORMAT, .names = "head_count 5 is no multiple of"},
    {.n_kv_heads = 8, .status = KVS_E_FORMAT, .names = "llama.attention.head_count_kv is 8"},
    {.dim = 12, .status = KVS_E_FORMAT, .names = "llama.attention.key_length is 12"},
    {.dim = 20, .status = KVS_E_UNSUPPORTED, .names = "llama.attention.key_length is 20"},
};

static void test_refused(void **state)
{
    (void)state;
    kvs_ctx *ctx = NULL;
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    for (size_t i = 0; i < sizeof bads / sizeof bads[0]; i++) {
        tiny t = TINY_LLAMA;
        const bad *b = &bads[i];
        kvs_err err = {KVS_OK, 0, "", ""};
        char path[256];
        kvs_model *m = NULL;
        t.omit = b->omit;
        t.wrong = b->wrong;
        t.arch = b->arch ? b->arch : t.arch;
        t.n_heads = b->n_heads ? b->n_heads : t.n_heads;
        t.n_kv_heads = b->n_kv_heads ? b->n_kv_heads : t.n_kv_heads;
        t.dim = b->dim ? b->dim : t.dim;
        assert_true(tiny_write(&t, path, sizeof path));
        assert_int_equal(kvs_model_open(ctx, path, NULL, &m, &err), b->status);
        assert_null(m);
        if (!strstr(err.msg, b->names)) {
            fail_msg("\"%s\" does not say \"%s\"", err.msg, b->names);
        }
        (void)unlink(path);
    }
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    assert_int_equal(kvs_ctx_get_stats(ctx, &st), KVS_OK);
    size_t before = st.live_bytes;
    kvs_ctx_free(ctx);
    assert_int_equal(kvs_ctx_new(NULL, &ctx, NULL), KVS_OK);
    assert_int_equal(kvs_ctx_get_stats(ctx, &st), KVS_OK);
    assert_int_equal(st.live_bytes, before); /* nothing leaked */
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),   cmocka_unit_test(test_llama_window_and_scaling),
        cmocka_unit_test(test_gemma3),  cmocka_unit_test(test_weight_types),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
