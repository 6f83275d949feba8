/* SPDX-License-Identifier: MIT */
/* bench_recurrent: recurrent layers of the size of Qwen3-Next (gated delta rule) and of a Mamba-2 of
 * 2.7B (SSD).
 *
 *   decode   one token a call, over as many layers as do not fit a cache: GB/s of state read and
 *            written, against what a plain loop that scales an array in place reaches
 *   prefill  blocks of 512 tokens of one layer: tokens/s, against the arithmetic's limit (4 vector
 *            operations an element and token for delta, 3 for SSD, two a cycle: half the FMA peak)
 *   undo     what keeping the newest 8 tokens undoable adds to a decode step, by interval, and what
 *            a rewind of 7 tokens takes, at 1k and 128k tokens
 *   bench_recurrent [--csv FILE] */
#include "kvstate/kvstate.h"
#include "limits.h"

#define THREADS 2u
#define LAYERS  24u
#define BLOCK   512u

typedef struct shape {
    const char *name;
    kvs_recurrent_rule rule;
    uint32_t heads, groups, head_dim, state_dim;
    double ops; /* vector operations an element and token */
} shape;

static const shape shapes[] = {
    {"delta", KVS_RECURRENT_GATED_DELTA, 32, 16, 128, 128, 4},
    {"ssd", KVS_RECURRENT_SSD, 80, 1, 64, 128, 3},
};

static void must(kvs_status st)
{
    if (st != KVS_OK) {
        (void)fprintf(stderr, "%s\n", kvs_status_name(st));
        exit(1);
    }
}

static float *floats(size_t n)
{
    float *x = malloc(n * sizeof *x);
    if (!x) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = (float)(i % 61) * 0.003f - 0.09f;
    }
    return x;
}

typedef struct rig {
    kvs_ctx *ctx;
    kvs_recurrent_spec spec;
    kvs_recurrent_conv_desc conv;
    kvs_recurrent_step step;
    float *in;
    float *out;
    float *y;
    float *small;
    size_t state_bytes; /* of one layer */
} rig;

static void rig_init(rig *r, const shape *s, uint32_t n_tokens)
{
    size_t key = (size_t)s->groups * s->state_dim;
    size_t value = (size_t)s->heads * s->head_dim;
    size_t dim = 2 * key + value;
    kvs_recurrent_spec spec = KVS_RECURRENT_SPEC_INIT;
    spec.rule = s->rule;
    spec.n_heads = s->heads;
    spec.n_groups = s->groups;
    spec.head_dim = s->head_dim;
    spec.state_dim = s->state_dim;
    spec.conv_dim = (uint32_t)dim;
    spec.conv_taps = 4;
    spec.conv_dtype = KVS_BF16;
    r->spec = spec;
    r->in = floats(n_tokens * dim);
    r->out = floats(n_tokens * dim);
    r->y = floats(n_tokens * value);
    r->small = floats(4 * dim + 2 * (size_t)n_tokens * s->heads);
    r->state_bytes = value * s->state_dim * sizeof(float);
    kvs_recurrent_conv_desc c = KVS_RECURRENT_CONV_DESC_INIT;
    c.n_tokens = n_tokens;
    c.x = r->in;
    c.weight = r->small;
    c.out = r->out;
    r->conv = c;
    kvs_recurrent_step p = KVS_RECURRENT_STEP_INIT;
    p.n_tokens = n_tokens;
    p.conv_x = r->in;
    p.q = r->out;
    p.k = r->out + key;
    p.v = r->out + 2 * key;
    p.q_stride = p.k_stride = p.v_stride = dim;
    p.a = r->small + 4 * dim;
    p.b = s->rule == KVS_RECURRENT_SSD ? NULL : p.a + (size_t)n_tokens * s->heads;
    p.decay = r->small;
    p.y = r->y;
    r->step = p;
}

static void rig_free(rig *r)
{
    free(r->in);
    free(r->out);
    free(r->y);
    free(r->small);
}

static kvs_cache *cache_of(rig *r, uint32_t n_layers)
{
    kvs_layer_spec l[LAYERS];
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    for (uint32_t i = 0; i < n_layers; i++) {
        kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
        l[i] = init;
        l[i].kind = KVS_LAYER_RECURRENT;
        l[i].recurrent = &r->spec;
    }
    o.n_layers = n_layers;
    o.layers = l;
    o.reserve_tokens = 1;
    must(kvs_cache_new(r->ctx, &o, &c, NULL));
    return c;
}

static void advance(rig *r, kvs_cache *c, uint32_t layer, uint32_t n)
{
    r->conv.n_tokens = n;
    r->step.n_tokens = n;
    must(kvs_recurrent_conv(c, layer, &r->conv, NULL));
    must(kvs_recurrent_advance(c, layer, &r->step, NULL));
}

/* Bytes/s, read and written, of scaling an array of `bytes` a thread in place. */
typedef struct scale_arg {
    float *p;
    size_t n;
} scale_arg;

static void *scale_thread(void *arg)
{
    const scale_arg *a = arg;
    for (size_t i = 0; i < a->n; i++) {
        a->p[i] *= 0.999f;
    }
    return NULL;
}

static double scale_rate(size_t bytes)
{
    scale_arg a[THREADS];
    double t[9];
    for (uint32_t i = 0; i < THREADS; i++) {
        a[i].n = bytes / THREADS / sizeof(float);
        a[i].p = floats(a[i].n);
    }
    for (size_t r = 0; r < 9; r++) {
        pthread_t id[THREADS];
        double start = bench_now();
        for (uint32_t i = 0; i + 1 < THREADS; i++) {
            (void)pthread_create(&id[i], NULL, scale_thread, &a[i]);
        }
        (void)scale_thread(&a[THREADS - 1]);
        for (uint32_t i = 0; i + 1 < THREADS; i++) {
            (void)pthread_join(id[i], NULL);
        }
        t[r] = bench_now() - start;
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        free(a[i].p);
    }
    (void)bench_median(t, 9); /* sorts: t[0] is the best */
    return 2 * (double)bytes / t[0];
}

static void bench_decode(rig *r, const shape *s)
{
    kvs_cache *c = cache_of(r, LAYERS);
    double t[41];
    double limit = scale_rate(r->state_bytes * LAYERS);
    for (size_t i = 0; i < 41; i++) {
        double start = bench_now();
        for (uint32_t l = 0; l < LAYERS; l++) {
            advance(r, c, l, 1);
        }
        t[i] = (bench_now() - start) / LAYERS;
    }
    char what[64];
    double bytes = (double)r->state_bytes * 2;
    double again = scale_rate(r->state_bytes * LAYERS);
    limit = again > limit ? again : limit;
    (void)snprintf(what, sizeof what, "decode/%s/%u threads/state", s->name, THREADS);
    bench_line(what, 1e-9 * bytes / bench_median(t, 41), "GB/s", 1e-9 * limit);
    (void)snprintf(what, sizeof what, "decode/%s/%u threads/layer", s->name, THREADS);
    bench_line(what, 1e6 * t[20], "us", 0);
    kvs_cache_free(c);
}

static void bench_prefill(rig *r, const shape *s, double peak)
{
    kvs_cache *c = cache_of(r, 1);
    double t[9];
    r->step.n_tokens = BLOCK;
    r->conv.n_tokens = BLOCK;
    for (size_t i = 0; i < 9; i++) {
        double start = bench_now();
        must(kvs_recurrent_advance(c, 0, &r->step, NULL));
        t[i] = bench_now() - start;
    }
    char what[64];
    double elements = (double)r->state_bytes / 4;
    (void)snprintf(what, sizeof what, "prefill/%s/%u threads", s->name, THREADS);
    /* peak counts two operations an FMA, one a vector lane here */
    double limit = peak > 0 ? peak / 2 / (elements * s->ops) : 0;
    bench_line(what, BLOCK / bench_median(t, 9), "tokens/s", limit);
    for (size_t i = 0; i < 9; i++) {
        double start = bench_now();
        must(kvs_recurrent_conv(c, 0, &r->conv, NULL));
        t[i] = bench_now() - start;
    }
    (void)snprintf(what, sizeof what, "prefill/%s/%u threads/convolution", s->name, THREADS);
    bench_line(what, BLOCK / bench_median(t, 9), "tokens/s", 0);
    kvs_cache_free(c);
}

/* Seconds of a decode step of one layer, the best of several rounds of 8 steps over all layers, of a
 * cache with undo and of one without, turn about. */
static void bench_pair(rig *r, kvs_cache *c, kvs_cache *plain, double *with, double *without)
{
    kvs_cache *both[] = {c, plain};
    double *best[] = {with, without};
    *with = 1e9;
    *without = 1e9;
    for (size_t i = 0; i < 20; i++) {
        double start = bench_now();
        for (size_t j = 0; j < 8 * LAYERS; j++) {
            advance(r, both[i % 2], (uint32_t)(j % LAYERS), 1);
        }
        double t = (bench_now() - start) / (8 * LAYERS);
        *best[i % 2] = t < *best[i % 2] ? t : *best[i % 2];
    }
}

static void bench_rewind(rig *r, kvs_cache *c, const char *name, uint32_t interval)
{
    for (int64_t len = 1 << 10; len <= 1 << 17; len <<= 7) {
        double t[33];
        r->step.n_tokens = BLOCK;
        while (kvs_cache_length(c, 0) < len) {
            must(kvs_recurrent_advance(c, 0, &r->step, NULL));
        }
        for (size_t j = 0; j < 33; j++) {
            for (int k = 0; k < 8; k++) {
                advance(r, c, 0, 1);
            }
            double start = bench_now();
            must(kvs_cache_rewind(c, 0, 7, NULL));
            t[j] = bench_now() - start;
        }
        char what[64];
        (void)snprintf(what, sizeof what, "undo8/%s/interval %u/rewind 7 at %lldk", name, interval,
                       (long long)(len >> 10));
        bench_line(what, 1e6 * bench_median(t, 33), "us", 0);
    }
}

static void bench_undo(rig *r, const shape *s)
{
    static const uint32_t intervals[] = {1, 4, 8};
    kvs_cache *plain = cache_of(r, LAYERS);
    for (size_t i = 0; i < 3; i++) {
        r->spec.undo_tokens = 8;
        r->spec.undo_interval = intervals[i];
        kvs_cache *c = cache_of(r, LAYERS);
        kvs_recurrent_stats st = KVS_RECURRENT_STATS_INIT;
        double with = 0;
        double without = 0;
        must(kvs_recurrent_get_stats(c, 0, &st));
        bench_pair(r, c, plain, &with, &without);
        char what[64];
        (void)snprintf(what, sizeof what, "undo8/%s/interval %u/memory", s->name, st.interval);
        bench_line(what, (double)st.undo_bytes / 0x1p20, "MiB", 0);
        (void)snprintf(what, sizeof what, "undo8/%s/interval %u/decode", s->name, st.interval);
        bench_line(what, with / without, "x", 0);
        bench_rewind(r, c, s->name, st.interval);
        kvs_cache_free(c);
    }
    kvs_cache_free(plain);
    r->spec.undo_tokens = 0;
    r->spec.undo_interval = 0;
}

int main(int argc, char **argv)
{
    if (!bench_start("recurrent", &argc, argv)) {
        return 2;
    }
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = THREADS;
    double peak = bench_fma_peak(kvs_cpu_tiers(), THREADS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        rig r;
        memset(&r, 0, sizeof r);
        must(kvs_ctx_new(&o, &r.ctx, NULL));
        rig_init(&r, &shapes[i], BLOCK);
        bench_decode(&r, &shapes[i]);
        bench_prefill(&r, &shapes[i], peak);
        bench_undo(&r, &shapes[i]);
        rig_free(&r);
        kvs_ctx_free(r.ctx);
    }
    return 0;
}
