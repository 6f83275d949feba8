/* SPDX-License-Identifier: MIT */
/* golden_recurrent.c: recurrent layers against what mlx-lm's gated_delta and ssm recorded
 * (tests/golden/README.md). Orders of summation differ, SSD's even in form (mlx-lm multiplies
 * matrices of a whole chunk), so values agree within a bound, stated as a part of the greatest value
 * of a record: a hundred roundings' worth, far below what a missing term or a wrong head makes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "golden/kvgold.h"
#include "kvstate/kvstate.h"

#define BOUND 3e-6

enum { TOKENS = 12 };

static gold_file file;
static int n_bad;

static float *stream(uint64_t seed, size_t n, float scale)
{
    float *x = malloc(n * sizeof *x);
    if (!x) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = gold_value(seed, i) * scale;
    }
    return x;
}

static void must(kvs_status st)
{
    if (st != KVS_OK) {
        printf("%s\n", kvs_status_name(st));
        exit(1);
    }
}

static void compare(const char *name, const float *got)
{
    gold_record r;
    const float *want = gold_find(&file, name, &r);
    double worst = 0;
    double size = 0;
    for (size_t i = 0; i < gold_elements(&r); i++) {
        worst = fmax(worst, fabs((double)got[i] - (double)want[i]));
        size = fmax(size, fabs((double)want[i]));
        worst = isnan(got[i]) ? HUGE_VAL : worst;
    }
    int ok = size > 0.1 && worst <= BOUND * size;
    printf("%s %s: %zu values up to %.3g, worst difference %.3g\n", ok ? "ok " : "BAD", name,
           gold_elements(&r), size, worst);
    n_bad += ok ? 0 : 1;
}

static kvs_cache *cache_of(kvs_ctx *ctx, const kvs_recurrent_spec *s)
{
    kvs_layer_spec l = KVS_LAYER_SPEC_INIT;
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    l.kind = KVS_LAYER_RECURRENT;
    l.recurrent = s;
    o.n_layers = 1;
    o.layers = &l;
    must(kvs_cache_new(ctx, &o, &c, NULL));
    return c;
}

static void scans(kvs_ctx *ctx, const char *name, const kvs_recurrent_spec *s, uint64_t seed)
{
    int is_ssd = s->rule == KVS_RECURRENT_SSD;
    size_t key = (size_t)s->n_groups * s->state_dim;
    size_t value = (size_t)s->n_heads * s->head_dim;
    float *q = stream(is_ssd ? 13 : 1, TOKENS * key, is_ssd ? 1.0f : 0.25f);
    float *k = stream(is_ssd ? 12 : 2, TOKENS * key, is_ssd ? 1.0f : 0.25f);
    float *v = stream(is_ssd ? 11 : 3, TOKENS * value, 1.0f);
    float *a = stream(seed, (size_t)TOKENS * s->n_heads, 1.0f);
    float *b = stream(5, (size_t)TOKENS * s->n_heads, 1.0f);
    float *decay = stream(is_ssd ? 15 : 6, s->n_heads, 0.5f);
    float *dt_bias = stream(is_ssd ? 16 : 7, s->n_heads, 0.5f);
    float *d = stream(17, s->n_heads, 1.0f);
    float *y = stream(0, TOKENS * value, 0.0f);
    float *state = stream(0, value * s->state_dim, 0.0f);
    kvs_recurrent_decay(decay, decay, s->n_heads);
    kvs_cache *c = cache_of(ctx, s);
    kvs_recurrent_step p = KVS_RECURRENT_STEP_INIT;
    p.n_tokens = TOKENS;
    p.q = q;
    p.k = k;
    p.v = v;
    p.a = a;
    p.b = is_ssd ? NULL : b;
    p.decay = decay;
    p.dt_bias = dt_bias;
    p.d = is_ssd ? d : NULL;
    p.dt_min = is_ssd ? 0.05f : 0.0f;
    p.dt_max = is_ssd ? 1.5f : 0.0f;
    p.y = y;
    must(kvs_recurrent_advance(c, 0, &p, NULL));
    kvs_recurrent_planes planes = KVS_RECURRENT_PLANES_INIT;
    planes.state = state;
    must(kvs_recurrent_export(c, 0, TOKENS, &planes, NULL));
    char what[32];
    (void)snprintf(what, sizeof what, "%s/y", name);
    compare(what, y);
    (void)snprintf(what, sizeof what, "%s/state", name);
    compare(what, state);
    kvs_cache_free(c);
    float *all[] = {q, k, v, a, b, decay, dt_bias, d, y, state};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
}

static void convolution(kvs_ctx *ctx)
{
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT;
    s.n_heads = 1;
    s.n_groups = 1;
    s.head_dim = 8;
    s.state_dim = 16;
    s.conv_dim = 40;
    s.conv_taps = 4;
    float *x = stream(21, (size_t)TOKENS * s.conv_dim, 1.0f);
    float *w = stream(22, (size_t)s.conv_taps * s.conv_dim, 1.0f);
    float *bias = stream(23, s.conv_dim, 1.0f);
    float *y = stream(0, (size_t)TOKENS * s.conv_dim, 0.0f);
    kvs_cache *c = cache_of(ctx, &s);
    kvs_recurrent_conv_desc d = KVS_RECURRENT_CONV_DESC_INIT;
    d.n_tokens = TOKENS;
    d.x = x;
    d.weight = w;
    d.bias = bias;
    d.out = y;
    must(kvs_recurrent_conv(c, 0, &d, NULL));
    compare("conv/y", y);
    kvs_cache_free(c);
    free(x);
    free(w);
    free(bias);
    free(y);
}

int main(void)
{
    file = gold_read(KVS_GOLDEN_FILE);
    kvs_ctx *ctx = NULL;
    must(kvs_ctx_new(NULL, &ctx, NULL));
    kvs_recurrent_spec delta = KVS_RECURRENT_SPEC_INIT;
    delta.n_heads = 4;
    delta.n_groups = 2;
    delta.head_dim = 16;
    delta.state_dim = 32;
    kvs_recurrent_spec ssd = delta;
    ssd.rule = KVS_RECURRENT_SSD;
    ssd.head_dim = 24;
    ssd.state_dim = 16;
    scans(ctx, "delta", &delta, 4);
    scans(ctx, "ssd", &ssd, 14);
    convolution(ctx);
    kvs_ctx_free(ctx);
    free(file.data);
    return n_bad ? 1 : 0;
}
