/* SPDX-License-Identifier: MIT */
/* test_center.c: centred keys against a reference written from docs/numerics.md alone: what is stored
 * however it was appended and in whatever layout, rewinds and forks inside a group of 64, conversion,
 * import, keys that are not finite, and attention bit for bit. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"
#define RIG_PAGED
#include "kern/math.h"
#include "support/cache_rig.h"
#include "support/coded.h"

#define HEADS 2
#define REP   2
#define DIM   64
#define V_DIM 32
#define MOST  420
#define GROUP 64
#define ROW   (HEADS * DIM)

/* ---- the reference */

typedef struct ref {
    kvs_ctx *ctx;
    kvs_layer_spec spec;
    int64_t n;
    int64_t unseen; /* positions below it were not there when a conversion made the centres ... */
    int64_t until;  /* ... of the groups that begin below this; 0: no conversion */
    float in[MOST][ROW];
    float v_in[MOST][HEADS * V_DIM];
    float rest[MOST][HEADS][DIM]; /* what is stored of a key, decoded */
    float k_codes[MOST][HEADS][DIM];
    float k_units[MOST][HEADS][2 * CODED_GROUPS];
    float v[MOST][HEADS][V_DIM]; /* dense, in the domain that they are stored in, or codes */
    float v_units[MOST][HEADS][2 * CODED_GROUPS];
    float center[MOST / GROUP + 1][HEADS][DIM];
    uint32_t words[MOST][HEADS][DIM];
    uint32_t scales[MOST][HEADS][4];
    uint32_t biases[MOST][HEADS][4];
} ref;

static ref *make_ref(kvs_ctx *ctx, const kvs_layer_spec *spec)
{
    ref *r = rig_alloc(sizeof *r);
    r->ctx = ctx;
    r->spec = *spec;
    return r;
}

/* Normalised Walsh-Hadamard over the whole row, a power of two. */
static void turn(float *x, uint32_t dim)
{
    for (uint32_t h = 1; h < dim; h *= 2) {
        for (uint32_t i = 0; i < dim; i++) {
            if ((i & h) == 0) {
                float a = x[i];
                float b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
    }
    const float scale = (float)pow(2.0, -log2((double)dim) / 2);
    for (uint32_t i = 0; i < dim; i++) {
        x[i] *= scale;
    }
}

static float rounded(kvs_dtype t, float x)
{
    return t == KVS_F16    ? kvs__f16_to_f32(kvs__f16_from_f32(x))
           : t == KVS_BF16 ? kvs__bf16_to_f32(kvs__bf16_from_f32(x))
                           : x;
}

static void make_center(ref *r, int64_t first, int h)
{
    float *c = r->center[first / GROUP][h];
    const int64_t window = (int64_t)r->spec.window;
    int64_t span = window > 0 && window - 1 < GROUP ? window - 1 : GROUP;
    int64_t begin = first - span > 0 ? first - span : 0;
    bool all = begin < first;
    for (int64_t p = begin; p < first; p++) {
        all = all && (first >= r->until || p >= r->unseen || p < (int64_t)r->spec.sinks);
    }
    for (int d = 0; d < DIM; d++) {
        float sum = 0.0f;
        for (int64_t p = begin; p < first; p++) {
            float key = r->rest[p][h][d] + r->center[p / GROUP][h][d];
            sum += key;
        }
        float mean = all ? rounded(r->spec.k.dtype, sum / (float)(first - begin)) : 0.0f;
        c[d] = isfinite(mean) ? mean : 0.0f;
    }
}

static void store(ref *r, int64_t p, int h)
{
    float x[DIM];
    memcpy(x, &r->in[p][(size_t)h * DIM], sizeof x);
    turn(x, DIM);
    for (int d = 0; d < DIM; d++) {
        x[d] -= r->center[p / GROUP][h][d];
    }
    rig_must(kvs_codec_encode(r->ctx, &r->spec.k, DIM, 1, x, KVS_F32, r->words[p][h],
                              r->scales[p][h], r->biases[p][h], NULL));
    rig_must(kvs_codec_decode_f32(r->ctx, &r->spec.k, DIM, 1, r->words[p][h], r->scales[p][h],
                                  r->biases[p][h], r->rest[p][h], NULL));
    coded_unpack(&r->spec.k, DIM, r->words[p][h], r->scales[p][h], r->biases[p][h],
                 r->k_codes[p][h], r->k_units[p][h]);
    uint32_t w[V_DIM];
    uint32_t s[4];
    uint32_t b[4];
    float y[V_DIM];
    memcpy(y, &r->v_in[p][(size_t)h * V_DIM], sizeof y);
    if (r->spec.v.rotate) {
        turn(y, V_DIM);
    }
    bool codes = r->spec.v.bits > 0;
    rig_must(kvs_codec_encode(r->ctx, &r->spec.v, V_DIM, 1, y, KVS_F32, w, codes ? s : NULL,
                              codes ? b : NULL, NULL));
    if (codes) {
        coded_unpack(&r->spec.v, V_DIM, w, s, b, r->v[p][h], r->v_units[p][h]);
        return;
    }
    rig_must(kvs_codec_decode_f32(r->ctx, &r->spec.v, V_DIM, 1, w, NULL, NULL, r->v[p][h], NULL));
}

/* Keys with a large mean that moves. */
static void draw(float *k, float *v, int64_t pos, uint64_t text)
{
    for (int i = 0; i < ROW; i++) {
        float mean =
            3.0f * rig_value(9, (uint64_t)i) + 0.01f * (float)pos * rig_value(8, (uint64_t)i);
        k[i] = mean + 0.3f * rig_value(text, (uint64_t)pos * 1000 + (uint64_t)i);
    }
    for (int i = 0; i < HEADS * V_DIM; i++) {
        v[i] = rig_value(text + 50, (uint64_t)pos * 1000 + (uint64_t)i);
    }
}

static void ref_input(ref *r, int64_t n, uint64_t text)
{
    for (int64_t end = r->n + n; r->n < end; r->n++) {
        draw(r->in[r->n], r->v_in[r->n], r->n, text);
    }
}

static void ref_store(ref *r)
{
    for (int64_t p = 0; p < r->n; p++) {
        for (int h = 0; h < HEADS; h++) {
            if (p % GROUP == 0) {
                make_center(r, p, h);
            }
            store(r, p, h);
        }
    }
}

/* The first n tokens of `text`, all stored. */
static ref *ref_of(kvs_ctx *ctx, const kvs_layer_spec *spec, int64_t n, uint64_t text)
{
    ref *r = make_ref(ctx, spec);
    ref_input(r, n, text);
    ref_store(r);
    return r;
}

/* One query head at position pos, by the order of docs/numerics.md. */
static void ref_attend(const ref *r, const float *query, int64_t pos, int h, float scale,
                       float *out)
{
    float q[DIM];
    float total[V_DIM] = {0};
    float m = -FLT_MAX;
    float l = 0.0f;
    memcpy(q, query, sizeof q);
    turn(q, DIM);
    for (int d = 0; d < DIM; d++) {
        q[d] *= scale;
    }
    for (int64_t c = 0; c <= pos; c += 256) {
        float s[256];
        float acc[V_DIM] = {0};
        float lane[16] = {0};
        float m2 = -FLT_MAX;
        bool seen[256] = {false};
        bool any = false;
        for (int64_t p = c; p < c + 256 && p <= pos; p++) {
            const int64_t w = (int64_t)r->spec.window;
            float dot = coded_score(DIM, r->spec.k.group, q, r->k_codes[p][h], r->k_units[p][h]);
            float add = 0.0f;
            for (int d = 0; d < DIM; d++) {
                add = fmaf(q[d], r->center[p / GROUP][h][d], add);
            }
            s[p - c] = dot + add;
            seen[p - c] = w == 0 || p > pos - w || p < (int64_t)r->spec.sinks;
            any = any || seen[p - c];
            m2 = seen[p - c] && s[p - c] > m2 ? s[p - c] : m2;
        }
        const float *codes[256] = {NULL};
        const float *units[256] = {NULL};
        for (int i = 0; i < 256; i++) {
            if (seen[i]) {
                s[i] = kvs__exp(s[i] - m2);
                lane[i % 16] += s[i];
                codes[i] = r->v[c + i][h];
                units[i] = r->v_units[c + i][h];
            }
            for (int d = 0; seen[i] && r->spec.v.bits == 0 && d < V_DIM; d++) {
                acc[d] = fmaf(s[i], r->v[c + i][h][d], acc[d]);
            }
        }
        if (r->spec.v.bits > 0) {
            coded_values(V_DIM, r->spec.v.group, s, codes, units, acc);
        }
        for (int step = 8; step > 0; step /= 2) {
            for (int i = 0; i < step; i++) {
                lane[i] += lane[i + step];
            }
        }
        if (any) {
            float top = m > m2 ? m : m2;
            float a = kvs__exp(m - top);
            float b = kvs__exp(m2 - top);
            for (int d = 0; d < V_DIM; d++) {
                total[d] = fmaf(total[d], a, acc[d] * b);
            }
            l = fmaf(l, a, lane[0] * b);
            m = top;
        }
    }
    for (int d = 0; d < V_DIM; d++) {
        out[d] = total[d] / l;
    }
    if (r->spec.v.rotate) {
        turn(out, V_DIM);
    }
}

/* ---- comparing */

/* Codes, scales, biases and centres of positions [begin, end). */
static void same_planes(const kvs_cache *c, const ref *r, int64_t begin, int64_t end,
                        const char *what)
{
    kvs_planes p;
    size_t bytes = 0;
    if (begin >= end) {
        return;
    }
    const size_t n = (size_t)(end - begin);
    void *own = rig_planes(&r->spec, 0, n, &p, &bytes);
    rig_must(kvs_cache_export(c, 0, begin, n, &p, NULL));
    const size_t unit = r->spec.k.dtype == KVS_F32 ? 4 : 2;
    const size_t word = DIM * r->spec.k.bits / 8;
    const size_t scales = DIM / r->spec.k.group * unit;
    const size_t groups = (size_t)kvs_center_groups(begin, n);
    for (size_t h = 0; h < HEADS; h++) {
        for (size_t i = 0; i < n; i++) {
            const size_t at = h * n + i;
            const int64_t pos = begin + (int64_t)i;
            if (memcmp((char *)p.k[0] + at * word, r->words[pos][h], word) != 0 ||
                memcmp((char *)p.k[1] + at * scales, r->scales[pos][h], scales) != 0 ||
                memcmp((char *)p.k[2] + at * scales, r->biases[pos][h], scales) != 0) {
                fail_msg("%s: codes of position %lld, head %zu", what, (long long)pos, h);
            }
        }
        for (size_t g = 0; g < groups; g++) {
            const char *row = (char *)p.k_center + (h * groups + g) * DIM * unit;
            const float *want = r->center[(size_t)begin / GROUP + g][h];
            for (size_t d = 0; d < DIM; d++) {
                uint16_t half = 0;
                float got = 0.0f;
                memcpy(unit == 4 ? (void *)&got : (void *)&half, row + d * unit, unit);
                got = unit == 4                    ? got
                      : r->spec.k.dtype == KVS_F16 ? kvs__f16_to_f32(half)
                                                   : kvs__bf16_to_f32(half);
                if (memcmp(&got, &want[d], sizeof got) != 0) {
                    fail_msg("%s: centre of group %zu, head %zu, element %zu: %g, not %g", what,
                             (size_t)begin / GROUP + g, h, d, (double)got, (double)want[d]);
                }
            }
        }
    }
    free(own);
}

static void same_attention(kvs_cache *c, const ref *r, uint32_t n, int64_t pos, const char *what)
{
    float *q = NULL;
    float *out = NULL;
    float want[V_DIM];
    kvs_attend d = rig_query(&r->spec, n, REP, pos, &q, &out);
    kvs_err err = KVS_ERR_INIT;
    if (kvs_cache_attend(c, 0, &d, &err) != KVS_OK) {
        fail_msg("%s: %s", what, err.msg);
    }
    for (uint32_t i = 0; i < n * HEADS * REP; i++) {
        int64_t at = pos + i / (HEADS * REP);
        int head = (int)(i % (HEADS * REP));
        ref_attend(r, q + (size_t)i * DIM, at, head / REP, d.scale, want);
        if (memcmp(want, out + (size_t)i * V_DIM, sizeof want) != 0) {
            fail_msg("%s: query at %lld, head %d: %g, not %g", what, (long long)at, head,
                     (double)out[(size_t)i * V_DIM], (double)want[0]);
        }
    }
    free(q);
    free(out);
}

/* Everything that is still stored, and the newest queries. */
static void same_all(kvs_cache *c, const ref *r, const char *what)
{
    int64_t oldest = kvs_cache_oldest(c, 0);
    int64_t sinks = (int64_t)r->spec.sinks < oldest ? (int64_t)r->spec.sinks : oldest;
    assert_int_equal(kvs_cache_length(c, 0), r->n);
    same_planes(c, r, 0, sinks, what);
    same_planes(c, r, oldest, r->n, what);
    same_attention(c, r, 1, r->n - 1, what);
    if (r->n >= 3) {
        same_attention(c, r, 3, r->n - 3, what);
    }
}

/* ---- caches */

typedef struct shape {
    const char *name;
    const char *k, *v;
    uint32_t window, sinks, max_block, block; /* block: paged */
} shape;

static const shape shapes[] = {
    {"grow", "c4:32", "q4:32", 0, 0, 0, 0},
    {"grow c8, bf16", "c8/bf16", "affine8:32", 0, 0, 0, 0},
    {"grow c2, f32", "c2:32/f32", "f32", 0, 0, 0, 0},
    {"ring 100", "c4", "q8:32", 100, 5, 130, 0},
    {"ring 40", "c3", "f32", 40, 0, 64, 0},
    {"ring 65", "c4", "q4:32", 65, 70, 65, 0},
    {"paged 16", "c4", "q4:32", 0, 0, 0, 16},
    {"paged 1", "c5", "f32", 0, 0, 0, 1},
    {"paged 48", "c6:32", "q8:32", 0, 0, 0, 48},
    {"paged 256", "c4", "q4:32", 0, 0, 0, 256},
    {"paged 64, window 100", "c4", "q4:32", 100, 9, 130, 64},
    {"paged 17, window 30", "c8:32", "q4:32", 30, 3, 40, 17},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static kvs_layer_spec spec_of(const shape *s)
{
    kvs_layer_spec l = rig_spec(HEADS, DIM, V_DIM, s->k, s->v);
    l.window = s->window;
    l.sinks = s->sinks;
    l.max_block = s->max_block;
    l.layout = s->block ? KVS_LAYOUT_PAGED : s->window ? KVS_LAYOUT_RING : KVS_LAYOUT_GROW;
    return l;
}

static kvs_cache *cache_of(kvs_ctx *ctx, const shape *s)
{
    kvs_layer_spec l = spec_of(s);
    return l.layout == KVS_LAYOUT_PAGED ? (rig_block = s->block, rig_cache(ctx, &l, 1, 0))
                                        : (rig_block = 0, rig_cache(ctx, &l, 1, 0));
}

/* Appends positions up to `end` of `text` in blocks of `step`. */
static void fill(kvs_cache *c, int64_t end, uint32_t step, uint64_t text)
{
    static float k[MOST][ROW];
    static float v[MOST][HEADS * V_DIM];
    const kvs_layer_spec *s = kvs_cache_spec(c, 0);
    step = s->max_block && step > s->max_block ? s->max_block : step;
    for (int64_t at = kvs_cache_length(c, 0); at < end;) {
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = end - at < (int64_t)step ? (uint32_t)(end - at) : step;
        for (uint32_t i = 0; i < kv.n_tokens; i++) {
            draw(k[i], v[i], at + i, text);
        }
        kv.k = k;
        kv.v = v;
        rig_must(kvs_cache_append(c, 0, &kv, NULL));
        at += kv.n_tokens;
    }
}

static const uint32_t steps[] = {1, 7, 16, 63, 64, 65, 200, MOST};
#define N_STEPS (sizeof steps / sizeof steps[0])

/* ---- tests */

/* What is stored does not depend on appends, layouts or threads. */
static void test_appends(void **state)
{
    (void)state;
    static const int64_t ends[] = {1, 15, 63, 64, 65, 127, 128, 129, 257, 400};
    for (size_t i = 0; i < N_SHAPES; i++) {
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            kvs_ctx *ctx = rig_ctx(threads, 0);
            kvs_layer_spec l = spec_of(&shapes[i]);
            for (size_t k = 0; k < N_STEPS; k++) {
                kvs_cache *c = cache_of(ctx, &shapes[i]);
                for (size_t e = 0; e < KVS_COUNT(ends); e++) {
                    ref *r = ref_of(ctx, &l, ends[e], 1);
                    fill(c, ends[e], steps[k], 1);
                    same_all(c, r, shapes[i].name);
                    free(r);
                }
                kvs_cache_free(c);
            }
            kvs_ctx_free(ctx);
        }
    }
}

/* Taken back to `to`, inside a group or at its edge, then another text. */
static void test_rewind(void **state)
{
    (void)state;
    static const int64_t from[] = {65, 100, 128, 191, 200, 260};
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec l = spec_of(&shapes[i]);
        uint32_t done = 0;
        for (size_t f = 0; f < KVS_COUNT(from); f++) {
            for (int64_t back = 0; back <= 140; back += back < 4 ? 1 : 31) {
                kvs_cache *c = cache_of(ctx, &shapes[i]);
                fill(c, from[f], 50, 1);
                int64_t to = from[f] - back;
                if (to < 0 || kvs_cache_can_rewind(c, 0, (uint64_t)back) != KVS_OK) {
                    kvs_cache_free(c);
                    continue;
                }
                rig_must(kvs_cache_rewind(c, 0, (uint64_t)back, NULL));
                ref *r = make_ref(ctx, &l);
                ref_input(r, to, 1);
                ref_input(r, 90, 2);
                ref_store(r);
                fill(c, to + 90, 13, 2);
                same_all(c, r, shapes[i].name);
                free(r);
                kvs_cache_free(c);
                done++;
            }
        }
        assert_true(done >= 20);
        kvs_ctx_free(ctx);
    }
}

/* Both sides of a fork go on in the group that they share. */
static void test_fork(void **state)
{
    (void)state;
    static const int64_t at[] = {1, 63, 64, 70, 100, 127, 128, 160};
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec l = spec_of(&shapes[i]);
        for (size_t k = 0; k < KVS_COUNT(at); k++) {
            kvs_cache *a = cache_of(ctx, &shapes[i]);
            kvs_cache *b = NULL;
            kvs_view *view = NULL;
            float *q = NULL;
            float *out = NULL;
            float *later = NULL;
            fill(a, at[k], 50, 1);
            rig_must(kvs_cache_fork(a, (uint64_t)at[k], &b, NULL));
            rig_must(kvs_view_new(a, 0, &view, NULL));
            kvs_attend d = rig_query(&l, 1, REP, -1, &q, &out);
            rig_must(kvs_view_attend(view, &d, NULL));
            for (uint64_t text = 1; text <= 2; text++) {
                kvs_cache *c = text == 1 ? a : b;
                ref *r = make_ref(ctx, &l);
                ref_input(r, at[k], 1);
                ref_input(r, 150, text + 5);
                ref_store(r);
                fill(c, at[k] + 150, 40, text + 5);
                same_all(c, r, shapes[i].name);
                free(r);
            }
            float *first = out;
            free(q);
            d = rig_query(&l, 1, REP, -1, &q, &later);
            rig_must(kvs_view_attend(view, &d, NULL)); /* it pinned the centres, too */
            assert_memory_equal(first, later, (size_t)HEADS * REP * V_DIM * sizeof *first);
            free(first);
            free(later);
            free(q);
            kvs_view_free(view);
            kvs_cache_free(a);
            kvs_cache_free(b);
        }
        kvs_ctx_free(ctx);
    }
}

/* From f32 keys: the centres of a conversion are those of appends, but for what is no longer seen.
 * And back: what is decoded is the stored key plus its centre. */
static void test_convert(void **state)
{
    (void)state;
    static const int64_t lens[] = {40, 64, 65, 150, 300};
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        shape dense = shapes[i];
        kvs_layer_spec l = spec_of(&shapes[i]);
        dense.k = dense.v = "f32";
        for (size_t k = 0; k < KVS_COUNT(lens); k++) {
            kvs_cache *c = cache_of(ctx, &dense);
            fill(c, lens[k], 30, 1);
            rig_must(kvs_cache_convert(c, 0, &l.k, &l.v, NULL));
            ref *r = make_ref(ctx, &l);
            r->until = lens[k];
            r->unseen = l.window ? lens[k] - (int64_t)l.window + 1 : 0;
            ref_input(r, lens[k] + 70, 1);
            ref_store(r);
            fill(c, lens[k] + 70, 9, 1);
            same_all(c, r, shapes[i].name);
            kvs_codec f32 = KVS_CODEC_DENSE(KVS_F32);
            rig_must(kvs_cache_convert(c, 0, &f32, &l.v, NULL));
            int64_t at = r->n - 20;
            float got[HEADS][20][DIM];
            kvs_planes p = KVS_PLANES_INIT;
            p.k[0] = got;
            rig_must(kvs_cache_export(c, 0, at, 20, &p, NULL));
            for (int64_t x = 0; x < 20 * HEADS; x++) {
                float want[DIM];
                int64_t pos = at + x / HEADS;
                for (int d = 0; d < DIM; d++) {
                    want[d] = r->rest[pos][x % HEADS][d] + r->center[pos / GROUP][x % HEADS][d];
                }
                turn(want, DIM);
                assert_memory_equal(want, got[x % HEADS][x / HEADS], sizeof want);
            }
            free(r);
            kvs_cache_free(c);
        }
        kvs_ctx_free(ctx);
    }
}

/* Delayed conversion, whatever block crosses it. */
static void test_delayed(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        for (size_t k = 0; k < N_STEPS; k++) {
            kvs_layer_spec l = spec_of(&shapes[i]);
            l.dense_until = 150;
            l.dense_dtype = KVS_F32;
            rig_block = shapes[i].block;
            kvs_cache *c = rig_cache(ctx, &l, 1, 0);
            ref *r = make_ref(ctx, &l);
            r->until = 150;
            r->unseen = l.window ? 150 - (int64_t)l.window + 1 : 0;
            ref_input(r, 260, 1);
            ref_store(r);
            fill(c, 260, steps[k], 1);
            same_all(c, r, shapes[i].name);
            free(r);
            kvs_cache_free(c);
        }
        kvs_ctx_free(ctx);
    }
}

/* Planes from one layout to another, cut anywhere; a centre that is not the group's is refused. */
static void test_import(void **state)
{
    (void)state;
    static const int64_t cuts[] = {1, 30, 64, 100, 128, 130};
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        shape from = shapes[i];
        kvs_layer_spec l = spec_of(&shapes[i]);
        from.window = from.sinks = from.max_block = 0;
        from.block = i % 2 ? 0 : 33;
        ref *r = make_ref(ctx, &l);
        r->spec.window = r->spec.sinks = 0; /* made by a layer that sees all */
        ref_input(r, 190, 1);
        ref_store(r);
        r->spec = l;
        kvs_cache *a = cache_of(ctx, &from);
        fill(a, 190, 50, 1);
        for (size_t k = 0; k < KVS_COUNT(cuts); k++) {
            kvs_cache *c = cache_of(ctx, &shapes[i]);
            for (int64_t at = 0; at < 190;) {
                int64_t n = at == 0 ? cuts[k] : 190 - at;
                int64_t most = l.max_block ? (int64_t)l.max_block : n;
                n = n < most ? n : most;
                kvs_planes p;
                size_t bytes = 0;
                void *own = rig_planes(&l, 0, (uint64_t)n, &p, &bytes);
                rig_must(kvs_cache_export(a, 0, at, (uint64_t)n, &p, NULL));
                uint8_t *element = (uint8_t *)p.k_center + DIM;
                if (at % GROUP != 0) {
                    *element ^= 1;
                    assert_int_equal(kvs_cache_import(c, 0, at, (uint64_t)n, &p, NULL),
                                     KVS_E_INVAL);
                    assert_int_equal(kvs_cache_length(c, 0), at);
                    *element ^= 1;
                }
                void *centers = p.k_center;
                p.k_center = NULL;
                assert_int_equal(kvs_cache_import(c, 0, at, (uint64_t)n, &p, NULL), KVS_E_INVAL);
                p.k_center = centers;
                rig_must(kvs_cache_import(c, 0, at, (uint64_t)n, &p, NULL));
                free(own);
                at += n;
            }
            same_all(c, r, shapes[i].name);
            kvs_cache_free(c);
        }
        kvs_cache_free(a);
        free(r);
        kvs_ctx_free(ctx);
    }
}

/* Spans name the centre of every position. */
static void test_spans(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        kvs_ctx *ctx = rig_ctx(1, 0);
        kvs_layer_spec l = spec_of(&shapes[i]);
        kvs_cache *c = cache_of(ctx, &shapes[i]);
        ref *r = ref_of(ctx, &l, 300, 1);
        fill(c, 300, 60, 1);
        static kvs_span spans[MOST];
        uint32_t n = 0;
        int64_t met = 0;
        rig_must(kvs_cache_spans(c, 0, 0, 300, spans, MOST, &n, NULL));
        for (uint32_t k = 0; k < n; k++) {
            const kvs_plane *p = &spans[k].k_center;
            for (uint64_t t = 0; t < spans[k].n_tokens; t++, met++) {
                int64_t group = (spans[k].first_pos + (int64_t)t) / GROUP;
                uint64_t row = (uint64_t)(group - spans[k].first_group) % spans[k].n_centers;
                for (size_t h = 0; h < HEADS; h++) {
                    uint32_t bits = 0;
                    memcpy(&bits,
                           (const char *)p->base + h * p->head_bytes +
                               (row * p->n_units + 5) * p->unit_bytes,
                           p->unit_bytes);
                    float got = l.k.dtype == KVS_F32   ? kvs__f32_bits(bits)
                                : l.k.dtype == KVS_F16 ? kvs__f16_to_f32((uint16_t)bits)
                                                       : kvs__bf16_to_f32((uint16_t)bits);
                    assert_true(got == r->center[group][h][5]);
                }
            }
        }
        int64_t oldest = kvs_cache_oldest(c, 0);
        int64_t sinks = (int64_t)l.sinks < oldest ? (int64_t)l.sinks : oldest;
        assert_int_equal(met, 300 - oldest + sinks);
        free(r);
        kvs_cache_free(c);
        kvs_ctx_free(ctx);
    }
}

/* A key that is not finite spoils no centre, and no query that does not see it. */
static void test_not_finite(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    kvs_ctx *ctx = rig_ctx(1, 0);
    shape s = {"not finite", "c4", "f32", 40, 2, 64, 0};
    kvs_layer_spec l = spec_of(&s);
    for (size_t i = 0; i < KVS_COUNT(bad); i++) {
        for (s.block = 0; s.block <= 24; s.block += 24) {
            static float k[200][ROW];
            static float v[200][HEADS * V_DIM];
            l = spec_of(&s);
            kvs_cache *c = cache_of(ctx, &s);
            ref *r = make_ref(ctx, &l);
            ref_input(r, 200, 1);
            for (int d = 0; d < DIM; d++) {
                r->in[120][d] = d == 3 ? bad[i] : r->in[120][d];
            }
            ref_store(r);
            memcpy(k, r->in, sizeof k);
            memcpy(v, r->v_in, sizeof v);
            for (uint32_t at = 0; at < 200; at += 50) {
                kvs_kv kv = KVS_KV_INIT;
                kv.n_tokens = 50;
                kv.k = k[at];
                kv.v = v[at];
                rig_must(kvs_cache_append(c, 0, &kv, NULL));
            }
            for (int d = 0; d < DIM; d++) {
                assert_true(isfinite(r->center[2][0][d]));
                assert_true(r->center[2][1][d] != 0.0f || d > 0);
            }
            assert_true(r->center[3][0][0] != 0.0f);
            same_all(c, r, s.name);
            free(r);
            kvs_cache_free(c);
        }
    }
    kvs_ctx_free(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends), cmocka_unit_test(test_rewind),
        cmocka_unit_test(test_fork),    cmocka_unit_test(test_convert),
        cmocka_unit_test(test_delayed), cmocka_unit_test(test_import),
        cmocka_unit_test(test_spans),   cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
