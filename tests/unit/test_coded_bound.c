/* SPDX-License-Identifier: MIT */
/* test_coded_bound.c: how far attention over affine codes is from exact attention over the same codes,
 * in f64. That it is what docs/numerics.md says: test_coded.c.
 *
 * Worst case, with u = 2^-24, w the exact weights, o the exact output, v = code * scale + bias likewise k:
 * 1. A number made integer is off by h = top / 65024 at most, half a step, besides its roundings in f32;
 *    where top < 2^-100 by top.
 * 2. A score is off by e_j = sum_g h_g sum_{d in g} |k_jd| + gamma(n) sum_d (|q_d| + h_g)(|code scale| +
 *    |bias|), n = 5 + 2 groups: the factor to integers, its product, the step, D, D step, and two sums for
 *    each group. To that comes what a weight goes through, as if the score were off: its exp and those of
 *    the joins, 2.04 u each (a 1.02nd ulp), their arguments, whose distances add up to that from the
 *    greatest score, and the products of joins.
 * 3. So weights are w_j exp(+-e_j) / Z, Z >= sum_j w_j exp(-e_j), and since sum_j w_j (v_j - o) = 0 the
 *    output is off by sum_j w_j (exp(e_j) - 1) |v_j - o| / Z. Those of more than e^-86.5 alone are sure
 *    to be there.
 * 4. A weight times its scale is made an integer of its chunk and group: sum_c h_c sum_{j in c} code_j.
 * 5. Sums round: of values and of weights each gamma(n), n = 21 + 2 joins: 16 sums in a lane, 4 of lanes,
 *    one with the codes' part, which has fewer, and the joins. A dense V: as many as a chunk has tokens.
 *    Then the division. What underflows is off by 2^-150 each time.
 * No term is left out as of second order, so no input may pass the bound; some that are made for it come
 * within a hundredth of it.
 *
 * Expectation: errors of half a step are even in [-h, h], of variance h^2 / 3, and those of q's elements
 * and of weights independent. That of q[d] is one number for all tokens, and does h sum_j w_j (v_j - o)
 * k_jd to the output. Over many outputs of random inputs the mean of error^2 / variance must be 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define RIG_PAGED
#include "base/half.h"
#include "support/coded_rig.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define U        0x1p-24
#define LEAST    0x1p-150 /* half of the least float */
#define LOST     2.8e-38  /* e^-86.5 */
#define TINY     (0x1p-100 * (1 + 0x1p-10))
#define HALF     (1.0 / 65024)
#define CHUNK    256u

static double gamma_of(double n)
{
    return n * U / (1 - n * U);
}

/* A scene in f64. */
typedef struct world {
    const scene *s;
    double *x[2];    /* [n][dim]: values of codes */
    double *part[2]; /* [n][dim]: |code * scale| + |bias| */
} world;

static world world_of(const scene *s)
{
    world w = {.s = s};
    for (int side = 0; side < 2; side++) {
        size_t n = (size_t)s->n * scene_dim(s, side);
        uint32_t group = s->unit[side] ? scene_codec(s, side).group : 1;
        w.x[side] = rig_alloc(n * sizeof(double));
        w.part[side] = rig_alloc(n * sizeof(double));
        for (size_t i = 0; i < n; i++) {
            const float *unit = s->unit[side] ? s->unit[side] + i / group * 2 : NULL;
            double scaled = (double)s->code[side][i] * (unit ? (double)unit[0] : 1.0);
            double bias = unit ? (double)unit[1] : 0.0;
            w.x[side][i] = scaled + bias;
            w.part[side][i] = fabs(scaled) + fabs(bias);
        }
    }
    return w;
}

static void world_free(const world *w)
{
    for (int side = 0; side < 2; side++) {
        free(w->x[side]);
        free(w->part[side]);
    }
}

/* One query: arrays [n], 0 for tokens that it does not see. */
typedef struct exact {
    double *score;
    double *e;    /* what the score may be off by */
    double *w;    /* weights */
    double *high; /* the greatest that w may become */
    double *near; /* exp(score - greatest of its chunk) */
    double *half; /* [k_dim]: half a step of q */
    double z;     /* the least that the weights may add up to */
    double joins;
} exact;

static exact exact_new(const scene *s)
{
    size_t n = s->n * sizeof(double);
    exact x = {.score = rig_alloc(n),
               .e = rig_alloc(n),
               .w = rig_alloc(n),
               .high = rig_alloc(n),
               .near = rig_alloc(n),
               .half = rig_alloc(s->spec.k_dim * sizeof(double)),
               .joins = floor((double)s->n / CHUNK) + 2};
    return x;
}

static void exact_free(const exact *x)
{
    free(x->score);
    free(x->e);
    free(x->w);
    free(x->high);
    free(x->near);
    free(x->half);
}

static void halves(const scene *s, const float *q, exact *x)
{
    uint32_t group = s->unit[0] ? s->spec.k.group : s->spec.k_dim;
    for (uint32_t d0 = 0; d0 < s->spec.k_dim; d0 += group) {
        double top = 0;
        for (uint32_t d = d0; d < d0 + group; d++) {
            top = fmax(top, fabs((double)q[d]));
        }
        for (uint32_t d = d0; d < d0 + group; d++) {
            x->half[d] = s->unit[0] ? top * (top < TINY ? 1 : HALF) : 0;
        }
    }
}

static void weigh(const world *w, const float *q, int64_t pos, exact *x)
{
    const scene *s = w->s;
    const uint32_t dim = s->spec.k_dim;
    double roundings = s->unit[0] ? 5 + 2.0 * dim / s->spec.k.group : dim;
    double top = -(double)INFINITY;
    double total = 0;
    halves(s, q, x);
    for (uint32_t t = 0; t < s->n; t++) {
        double mag = 0;
        x->score[t] = x->e[t] = 0;
        for (uint32_t d = 0; d < dim; d++) {
            double k = w->x[0][(size_t)t * dim + d];
            x->score[t] += (double)q[d] * k;
            x->e[t] += x->half[d] * fabs(k);
            mag += (fabs((double)q[d]) + x->half[d]) * w->part[0][(size_t)t * dim + d];
        }
        x->e[t] += gamma_of(roundings) * mag + roundings * LEAST;
        x->score[t] = scene_sees(s, pos, t) ? x->score[t] : -(double)INFINITY;
        top = fmax(top, x->score[t]);
    }
    for (uint32_t c = 0; c < s->n; c += CHUNK) {
        uint32_t end = c + CHUNK < s->n ? c + CHUNK : s->n;
        double most = -(double)INFINITY;
        for (uint32_t t = c; t < end; t++) {
            most = fmax(most, x->score[t]);
        }
        for (uint32_t t = c; t < end; t++) {
            bool seen = isfinite(x->score[t]);
            x->near[t] = seen ? exp(x->score[t] - most) : 0;
            x->w[t] = exp(x->score[t] - top);
            x->e[t] = seen ? x->e[t] + (2.04 + 3.04 * x->joins + top - x->score[t]) * U : 0;
            total += x->w[t];
        }
    }
    x->z = 0;
    for (uint32_t t = 0; t < s->n; t++) {
        x->w[t] /= total;
        x->z += x->w[t] * exp(-x->e[t]);
    }
    for (uint32_t t = 0; t < s->n; t++) {
        x->high[t] = x->w[t] * exp(x->e[t]) / x->z;
    }
}

/* Half a step of the weights that element d of chunk c's codes is multiplied with. */
static double half_weight(const scene *s, const exact *x, uint32_t c, uint32_t d)
{
    double top = 0;
    double nearest = 0;
    for (uint32_t t = c; t < s->n && t < c + CHUNK; t++) {
        double scale = fabs((double)scene_unit(s, 1, t, d / s->spec.v.group)[0]);
        top = fmax(top, x->high[t] * scale);
        nearest = fmax(nearest, x->near[t] * scale);
    }
    return top * (nearest < TINY ? 1 : HALF);
}

/* Of one output: exact, the most that it may be off by, and the expected square of that. */
typedef struct output {
    double o;
    double bound;
    double square;
} output;

/* Points 3 and 5. */
static output of_scores(const world *w, const exact *x, uint32_t d)
{
    const scene *s = w->s;
    output y = {0, 0, 0};
    double mag = 0;
    double lost = 0;
    for (uint32_t t = 0; t < s->n; t++) {
        size_t at = (size_t)t * s->spec.v_dim + d;
        y.o += x->w[t] * w->x[1][at];
        mag += x->high[t] * w->part[1][at];
    }
    for (uint32_t t = 0; t < s->n; t++) {
        double v = w->x[1][(size_t)t * s->spec.v_dim + d];
        y.bound += x->w[t] * expm1(x->e[t]) * fabs(v - y.o) / x->z;
        lost += x->w[t] > 0 && x->w[t] < 2 * LOST ? x->high[t] * (fabs(v) + fabs(y.o)) : 0;
    }
    double n_sum = 2 * x->joins + (s->unit[1] ? 21 : s->n < CHUNK ? s->n : CHUNK);
    y.bound += lost + gamma_of(n_sum) * (mag + fabs(y.o)) + 2 * U * (fabs(y.o) + mag);
    y.bound += (n_sum + 2) * LEAST * (1 + fabs(y.o)) / x->z;
    y.square = n_sum * U * U * (mag * mag + y.o * y.o) / 3;
    return y;
}

static output output_of(const world *w, const exact *x, uint32_t d, bool expect)
{
    const scene *s = w->s;
    output y = of_scores(w, x, d);
    double half = 0;
    for (uint32_t t = 0; s->unit[1] && t < s->n; t++) {
        double code = (double)scene_code(s, 1, t)[d];
        half = t % CHUNK ? half : half_weight(s, x, t, d);
        y.bound += x->w[t] > 0 ? half * code : 0;
        y.square += x->w[t] > 0 ? half * half * code * code / 3 : 0;
    }
    for (uint32_t i = 0; expect && i < s->spec.k_dim; i++) {
        double share = 0;
        for (uint32_t t = 0; t < s->n; t++) {
            share += x->w[t] * (w->x[1][(size_t)t * s->spec.v_dim + d] - y.o) *
                     w->x[0][(size_t)t * s->spec.k_dim + i];
        }
        y.square += share * share * x->half[i] * x->half[i] / 3;
    }
    return y;
}

typedef struct verdict {
    double worst; /* error / bound */
    double rms;   /* error / expectation */
} verdict;

/* Reads with the newest queries q [queries][k_dim]. */
static verdict judge(const scene *s, const float *q, uint32_t queries, bool expect)
{
    kvs_ctx *ctx = rig_ctx(1, 0);
    float *got = scene_read(ctx, s, q, queries, 1);
    verdict v = {0, 0};
    world w = world_of(s);
    exact x = exact_new(s);
    for (uint32_t i = 0; i < queries; i++) {
        weigh(&w, q + (size_t)i * s->spec.k_dim, (int64_t)s->n - queries + i, &x);
        for (uint32_t d = 0; d < s->spec.v_dim; d++) {
            output y = output_of(&w, &x, d, expect);
            double error = fabs((double)got[(size_t)i * s->spec.v_dim + d] - y.o);
            v.worst = error / y.bound <= v.worst ? v.worst : error / y.bound; /* a NaN stays */
            v.rms += error * error / y.square;
        }
    }
    v.rms = sqrt(v.rms / (queries * s->spec.v_dim));
    exact_free(&x);
    world_free(&w);
    free(got);
    kvs_ctx_free(ctx);
    return v;
}

/* -- random inputs */

static float *draw(uint64_t seed, uint32_t queries, uint32_t dim, float factor)
{
    float *q = rig_rows(seed, 0, queries, dim);
    for (size_t i = 0; i < (size_t)queries * dim; i++) {
        q[i] *= factor;
    }
    return q;
}

/* Few tokens, so that half a step counts more than what f32 rounds; then many, in chunks and windows,
 * where the expectation takes each sum to be as great as its last. */
static void test_random(void **state)
{
    (void)state;
    static const struct {
        uint32_t n;
        uint32_t queries;
        uint32_t window;
        float q;
        double rms[2]; /* of all reads together */
    } cases[] = {{40, 40, 0, 0.1f, {0.95, 1.05}},
                 {300, 8, 0, 0.03f, {0.7, 1.05}},
                 {600, 8, 90, 0.05f, {0.7, 1.05}}};
    static const char *const codecs[] = {"affine2:32/f32",
                                         "affine3:64/f16",
                                         "affine4:64/bf16",
                                         "affine5:32/f16",
                                         "affine6:64/f32",
                                         "affine8:64/f32",
                                         "f32"};
    for (size_t c = 0; c < COUNT(cases); c++) {
        double squares = 0;
        for (size_t i = 0; i < COUNT(codecs); i++) {
            kvs_layer_spec spec =
                rig_spec(1, 64, 64, codecs[i], codecs[(i + 1 + c) % COUNT(codecs)]);
            spec.window = cases[c].window;
            scene s = scene_new(spec, cases[c].n, 10 * c + i);
            float *q = draw(i, cases[c].queries, 64, cases[c].q);
            verdict v = judge(&s, q, cases[c].queries, true);
            squares += v.rms * v.rms / (double)COUNT(codecs);
            if (!(v.worst <= 1)) {
                fail_msg("case %zu, codec %zu: %.3f of the bound", c, i, v.worst);
            }
            free(q);
            scene_free(&s);
        }
        assert_true(sqrt(squares) >= cases[c].rms[0]);
        assert_true(sqrt(squares) <= cases[c].rms[1]);
    }
}

/* -- inputs made to be far off: 64 elements of K and V in f32 units, `q` for each query alike in size */

typedef struct trap {
    const char *name;
    void (*set)(scene *s, float *q, uint32_t queries, uint64_t seed);
    uint32_t n;
    uint32_t queries;
    double least; /* of the bound that is reached */
} trap;

static float most_code(const scene *s, int side)
{
    return (float)((1u << scene_codec(s, side).bits) - 1);
}

static uint32_t n_groups(const scene *s, int side)
{
    return scene_dim(s, side) / scene_codec(s, side).group;
}

/* All elements of q are just short of half a step from the integer below, one is 32512 and meets code 0;
 * of two tokens one has all codes greatest, the other none. */
static void queries_down(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    (void)queries;
    (void)seed;
    for (uint32_t d = 0; d < 64; d++) {
        bool first = d % s->spec.k.group == 0;
        q[d] = first ? 32512.0f : (d % 2 ? 100.0f : -100.0f) + 0.499f;
        scene_code(s, 0, 0)[d] = first ? 0.0f : most_code(s, 0);
        scene_code(s, 0, 1)[d] = 0.0f;
        scene_code(s, 1, 0)[d] = scene_code(s, 1, 1)[d] = 0.0f;
    }
    for (uint32_t t = 0; t < 2; t++) {
        for (uint32_t g = 0; g < n_groups(s, 0); g++) {
            scene_unit(s, 0, t, g)[0] = 0x1p-14f / most_code(s, 0);
            scene_unit(s, 0, t, g)[1] = 0.0f;
        }
        for (uint32_t g = 0; g < n_groups(s, 1); g++) {
            scene_unit(s, 1, t, g)[1] = t ? 1.0f : -1.0f;
        }
    }
}

/* Tokens of weight 1, their scales likewise short of half a step, but for one of code 0. */
static void weights_down(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    memset(q, 0, (size_t)queries * 64 * sizeof *q);
    for (uint32_t t = 0; t < s->n; t++) {
        bool first = t % CHUNK == 0;
        float scale = first ? 32512.0f : (float)(rig_mix(seed + t) % 200) - 100.0f + 0.499f;
        for (uint32_t d = 0; d < 64; d++) {
            scene_code(s, 1, t)[d] = first ? 0.0f : most_code(s, 1);
        }
        for (uint32_t g = 0; g < n_groups(s, 1); g++) {
            scene_unit(s, 1, t, g)[0] = scale;
            scene_unit(s, 1, t, g)[1] = 0.0f;
        }
    }
}

/* Multiplies scales and biases of a side by 2^-most .. 2^most, token by token and group by group. */
static void spread(scene *s, int side, int most, uint64_t seed)
{
    for (uint32_t t = 0; t < s->n; t++) {
        for (uint32_t g = 0; g < n_groups(s, side); g++) {
            int by = (int)(rig_mix(seed + 64ull * t + g) % (2u * (uint32_t)most + 1)) - most;
            scene_unit(s, side, t, g)[0] = ldexpf(scene_unit(s, side, t, g)[0], by);
            scene_unit(s, side, t, g)[1] = ldexpf(scene_unit(s, side, t, g)[1], by);
        }
    }
}

static void times(float *x, size_t n, float by)
{
    for (size_t i = 0; i < n; i++) {
        x[i] *= by;
    }
}

/* Scales of V of any size within a chunk: the small ones lose their bits. */
static void scales_apart(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    times(q, (size_t)queries * 64, 0.1f);
    spread(s, 1, 30, seed);
}

/* One element of a query takes the bits of its group, and of its keys. */
static void outliers(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    times(q, (size_t)queries * 64, 0.1f);
    for (uint32_t i = 0; i < queries; i++) {
        q[i * 64 + rig_mix(seed + i) % 64] = 300.0f;
    }
    for (uint32_t t = 0; t < s->n; t++) {
        for (uint32_t g = 0; g < n_groups(s, 0); g++) {
            scene_unit(s, 0, t, g)[0] *= 0x1p-4f;
            scene_unit(s, 0, t, g)[1] *= 0x1p-6f;
        }
    }
}

/* Values are small differences of codes and biases. */
static void cancelling(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    (void)seed;
    times(q, (size_t)queries * 64, 0.1f);
    for (int side = 0; side < 2; side++) {
        for (uint32_t t = 0; t < s->n; t++) {
            for (uint32_t d = 0; d < 64; d++) {
                float *code = &scene_code(s, side, t)[d];
                *code = most_code(s, side) - (rig_mix(d + 64ull * t) % 8 == 0 ? 1.0f : 0.0f);
            }
            for (uint32_t g = 0; g < n_groups(s, side); g++) {
                float *unit = scene_unit(s, side, t, g);
                unit[1] = -unit[0] * most_code(s, side);
            }
        }
    }
}

/* Each token scores `by` more than the one before. */
static void slope(scene *s, float *q, uint32_t queries, float by)
{
    for (uint32_t i = 0; i < queries * 64; i++) {
        q[i] = 1.0f + 0.3f * q[i];
    }
    for (uint32_t t = 0; t < s->n; t++) {
        for (uint32_t g = 0; g < n_groups(s, 0); g++) {
            scene_unit(s, 0, t, g)[0] *= 0x1p-4f;
            scene_unit(s, 0, t, g)[1] = by * (float)t / 64.0f;
        }
    }
}

static void climbing(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    slope(s, q, queries, seed % 2 ? 0.01f : 0.3f);
}

static void falling(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    slope(s, q, queries, seed % 2 ? -0.01f : -0.3f);
}

/* Nearly all weight is one token's. */
static void sharp(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    (void)s;
    (void)seed;
    times(q, (size_t)queries * 64, 3.0f);
}

/* About 2^-100, where all becomes 0. */
static void tiny_values(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    times(q, (size_t)queries * 64, 0.1f);
    float by = ldexpf(1.0f, -102 + (int)(seed % 5));
    times(s->unit[1], (size_t)s->n * n_groups(s, 1) * 2, by * most_code(s, 1));
}

static void tiny_queries(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    float by = ldexpf(0.1f, -100 + (int)(seed % 6));
    times(q, (size_t)queries * 64, by);
    times(s->unit[0], (size_t)s->n * n_groups(s, 0) * 2, 0x1p98f);
}

/* What is seen begins and ends within chunks, and what isn't is huge. */
static void windowed(scene *s, float *q, uint32_t queries, uint64_t seed)
{
    times(q, (size_t)queries * 64, 0.1f);
    s->spec.window = 40 + (uint32_t)seed % 300;
    s->spec.sinks = 3;
    uint32_t lo = s->n - queries - s->spec.window + 1;
    times(scene_unit(s, 1, 3, 0), (size_t)(lo - 3) * n_groups(s, 1) * 2, 0x1p60f);
}

static const trap traps[] = {
    {"queries down", queries_down, 2, 1, 0.99},
    {"weights down", weights_down, 256, 1, 0.98},
    {"weights down, chunks", weights_down, 700, 1, 0.9},
    {"scales apart", scales_apart, 300, 4, 0},
    {"outliers", outliers, 300, 4, 0},
    {"cancelling", cancelling, 300, 4, 0},
    {"climbing", climbing, 800, 4, 0},
    {"falling", falling, 800, 4, 0},
    {"sharp", sharp, 300, 4, 0},
    {"tiny values", tiny_values, 100, 4, 0},
    {"tiny queries", tiny_queries, 60, 4, 0},
    {"windowed", windowed, 700, 4, 0},
};

static void test_traps(void **state)
{
    (void)state;
    static const char *const codecs[] = {"affine2:32/f32", "affine3:64/f32", "affine4:64/f32",
                                         "affine5:32/f32", "affine6:64/f32", "affine8:64/f32"};
    for (size_t i = 0; i < COUNT(traps) * COUNT(codecs); i++) {
        const trap *t = &traps[i / COUNT(codecs)];
        const char *k = codecs[i % COUNT(codecs)];
        const char *v = codecs[(i * 5 + 3) % COUNT(codecs)];
        scene s = scene_new(rig_spec(1, 64, 64, k, v), t->n, i);
        float *q = rig_rows(i, 0, t->queries, 64);
        t->set(&s, q, t->queries, i);
        verdict r = judge(&s, q, t->queries, false);
        if (!(r.worst <= 1) || !(r.worst >= t->least)) {
            fail_msg("%s, %s %s: %.4f of the bound", t->name, k, v, r.worst);
        }
        free(q);
        scene_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_traps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
