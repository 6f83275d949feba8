/* SPDX-License-Identifier: MIT */
/* cmd_tune.c: chooses bits for the keys and the values of each layer under a byte budget.
 *
 * Sensitivity: the divergence that one layer's keys, or values, cause when they alone are quantised,
 * everything else being dense; small divergences of several layers add up (each is quadratic in its
 * error, and the errors are independent), so a plan's is predicted by the sum. It is measured with
 * 2, 3 and 4 bits; for more it falls with the square of the step, (2^4 - 1)^2 / (2^b - 1)^2. A group
 * of 128 or 32 instead of 64 changes the step by the ratio of the expected ranges of as many normal
 * numbers.
 *
 * Choice: least sum of divergence + lambda * bytes; lambda by bisection, and what is left of the
 * budget goes to the upgrades with the best ratio. The plan is then measured, next to uniform q4, on
 * windows of the text that the choice has not seen. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "quality.h"
#include "svg.h"

enum { SIDES = 2, N_BITS = 6, N_GROUPS = 3, N_CODECS = N_BITS * N_GROUPS, N_PROBES = 3 };
static const uint32_t bits_of[N_BITS] = {2, 3, 4, 5, 6, 8};
static const uint32_t group_of[N_GROUPS] = {64, 128, 32};
/* expected range of that many standard normal numbers, relative to 64 */
static const double range_of[N_GROUPS] = {1.0, 1.118, 0.866};

#define MAX_LAYERS 512u

/* One layer's keys or values. */
typedef struct part {
    double kl[N_CODECS];    /* predicted; HUGE_VAL: the geometry can't hold the codec */
    double bytes[N_CODECS]; /* of the tokens held */
    int chosen;
} part;

typedef struct tune {
    quality q;
    kvs_plan *base;
    uint32_t n_layers;
    part *parts; /* [n_layers][SIDES] */
    double budget;
    double values; /* stored ones */
    uint32_t probe_chunks;
    uint32_t n_done, n_jobs;
    char *text; /* a plan in work */
    size_t text_size;
    score uniform, tuned;
    double uniform_bytes, tuned_bytes;
} tune;

static void codec_name(int c, char dst[16])
{
    uint32_t g = group_of[c / N_BITS];
    (void)snprintf(dst, 16, g == 64 ? "q%u" : "q%u:%u", bits_of[c % N_BITS], g);
}

static part *part_at(const tune *t, uint32_t layer, int side)
{
    return &t->parts[layer * SIDES + (uint32_t)side];
}

/* Tokens that a layer holds at the depth that the budget is about. */
static double held(const tune *t, const kvs_layer_spec *l)
{
    double depth = t->q.s->depth > 0 ? (double)t->q.s->depth : 1.0;
    double window = (double)l->window + (double)l->sinks;
    return l->window > 0 && window < depth ? window : depth;
}

static int prepare(tune *t)
{
    int rc = quality_plan(&t->q, "f32", &t->base);
    if (rc != 0) {
        return rc;
    }
    t->n_layers = kvs_plan_n_layers(t->base);
    t->text_size = (size_t)t->n_layers * 64 + 64;
    t->text = malloc(t->text_size);
    t->parts = calloc((size_t)t->n_layers * SIDES, sizeof *t->parts);
    if (!t->text || !t->parts || t->n_layers > MAX_LAYERS) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        const kvs_layer_spec *l = kvs_plan_layer(t->base, i);
        for (int side = 0; side < SIDES; side++) {
            part *p = part_at(t, i, side);
            uint32_t dim = side == 0 ? l->k_dim : l->v_dim;
            double rows = held(t, l) * l->n_kv_heads;
            t->values += l->kind == KVS_LAYER_BORROW ? 0.0 : rows * dim;
            for (int c = 0; c < N_CODECS; c++) {
                char name[16];
                kvs_codec codec;
                codec_name(c, name);
                bool none = l->kind == KVS_LAYER_RECURRENT || l->kind == KVS_LAYER_BORROW;
                bool fits = kvs_codec_parse(name, &codec, NULL) == KVS_OK &&
                            (none || kvs_codec_check(&codec, dim, NULL) == KVS_OK);
                p->kl[c] = fits ? 0.0 : HUGE_VAL;
                p->bytes[c] = fits && !none ? rows * (double)kvs_codec_row_bytes(&codec, dim) : 0.0;
            }
            if (p->kl[0] == HUGE_VAL) {
                return fail(EXIT_INPUT, "layer %u: a head of %u can't be quantised in groups of 64",
                            i, dim);
            }
        }
    }
    if (t->values == 0.0) {
        return fail(EXIT_INPUT, "no layer of this model keeps keys and values");
    }
    t->budget = t->q.s->budget_bytes > 0.0f ? (double)t->q.s->budget_bytes
                                            : t->values * (double)t->q.s->budget / 8.0;
    return 0;
}

/* ---- sensitivity */

/* "layers=": one side of one layer in a codec, all else dense. */
static void probe_text(tune *t, uint32_t layer, int side, int c)
{
    char name[16];
    codec_name(c, name);
    (void)snprintf(t->text, t->text_size,
                   side == 0 ? "layers=* f32;%u %s+f32" : "layers=* f32;%u f32+%s", layer, name);
}

static void show_progress(tune *t, uint32_t n)
{
    t->n_done += n;
    if (!t->q.s->quiet) {
        (void)fprintf(stderr, "\rsensitivity: %u of %u probes", t->n_done, t->n_jobs);
        if (t->n_done == t->n_jobs || interrupted()) {
            (void)fputc('\n', stderr);
        }
    }
}

/* Probes first .. first + n - 1 side by side: they share the base's work. */
static int probe(tune *t, uint32_t first, size_t n)
{
    kvs_plan *plans[MAX_PLANS] = {NULL};
    const kvs_plan *list[MAX_PLANS];
    score scores[MAX_PLANS];
    int rc = 0;
    memset(scores, 0, sizeof scores);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint32_t job = first + (uint32_t)i;
        probe_text(t, job / N_PROBES / SIDES, (int)(job / N_PROBES % SIDES), (int)(job % N_PROBES));
        rc = quality_plan(&t->q, t->text, &plans[i]);
        list[i] = plans[i];
    }
    if (rc == 0) {
        quality_run r = {.base = t->base,
                         .plans = list,
                         .n_plans = n,
                         .n_chunks = t->probe_chunks,
                         .scores = scores};
        rc = quality_measure(&t->q, &r);
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t job = first + (uint32_t)i;
        kvs_plan_free(plans[i]);
        if (rc == 0) {
            /* rounding may leave a divergence of nothing a hair below 0 */
            t->parts[job / N_PROBES].kl[job % N_PROBES] = fmax(score_kl(&scores[i]), 1e-12);
        }
    }
    scores_free(scores, n);
    show_progress(t, (uint32_t)n);
    return rc;
}

static void extrapolate(part *p)
{
    for (int c = 0; c < N_CODECS; c++) {
        double widen = range_of[c / N_BITS] * range_of[c / N_BITS];
        int b = c % N_BITS;
        if (p->kl[c] == HUGE_VAL) {
            continue;
        }
        if (b < N_PROBES) {
            p->kl[c] = p->kl[b] * widen;
        } else {
            double step = 15.0 / (double)((1u << bits_of[b]) - 1);
            p->kl[c] = p->kl[N_PROBES - 1] * step * step * widen;
        }
    }
}

static int measure_parts(tune *t)
{
    t->n_jobs = t->n_layers * SIDES * N_PROBES;
    for (uint32_t at = 0; at < t->n_jobs; at += MAX_PLANS) {
        uint32_t left = t->n_jobs - at;
        int rc = probe(t, at, left < MAX_PLANS ? left : MAX_PLANS);
        if (rc != 0) {
            return rc;
        }
    }
    for (uint32_t i = 0; i < t->n_layers * SIDES; i++) {
        extrapolate(&t->parts[i]);
    }
    return 0;
}

/* ---- choice */

static double choose_at(tune *t, double lambda)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < t->n_layers * SIDES; i++) {
        part *p = &t->parts[i];
        p->chosen = 0;
        for (int c = 1; c < N_CODECS; c++) {
            double cost = p->kl[c] + lambda * p->bytes[c];
            p->chosen = cost < p->kl[p->chosen] + lambda * p->bytes[p->chosen] ? c : p->chosen;
        }
        bytes += p->bytes[p->chosen];
    }
    return bytes;
}

/* The upgrade with the most divergence saved a byte that still fits; false: none. */
static bool upgrade(tune *t, double *bytes)
{
    part *best = NULL;
    int best_codec = 0;
    double best_ratio = 0.0;
    for (uint32_t i = 0; i < t->n_layers * SIDES; i++) {
        part *p = &t->parts[i];
        for (int c = 0; c < N_CODECS; c++) {
            double more = p->bytes[c] - p->bytes[p->chosen];
            double less = p->kl[p->chosen] - p->kl[c];
            if (p->kl[c] == HUGE_VAL || less <= 0.0 || *bytes + more > t->budget) {
                continue;
            }
            double ratio = more > 0.0 ? less / more : HUGE_VAL;
            if (ratio > best_ratio) {
                best = p;
                best_codec = c;
                best_ratio = ratio;
            }
        }
    }
    if (!best) {
        return false;
    }
    *bytes += best->bytes[best_codec] - best->bytes[best->chosen];
    best->chosen = best_codec;
    return true;
}

static int choose(tune *t)
{
    double lo = 1e-30; /* costs too many bytes, or everything fits */
    double hi = 1e10;
    double bytes = choose_at(t, hi);
    if (bytes > t->budget) {
        return fail(EXIT_USAGE, "a budget of %.0f bytes is below the least, %.0f", t->budget,
                    bytes);
    }
    for (int i = 0; i < 200; i++) {
        double mid = sqrt(lo * hi);
        if (choose_at(t, mid) > t->budget) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    bytes = choose_at(t, hi);
    while (upgrade(t, &bytes)) {
    }
    t->tuned_bytes = bytes;
    return 0;
}

/* Lines of the chosen plan, each ended by `end`; start: what comes before. */
static void plan_text(const tune *t, const char *start, char end)
{
    size_t at = (size_t)snprintf(t->text, t->text_size, "%s", start);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char k[16];
        char v[16];
        codec_name(part_at(t, i, 0)->chosen, k);
        codec_name(part_at(t, i, 1)->chosen, v);
        at += (size_t)snprintf(t->text + at, t->text_size - at, "%u %s+%s%c", i, k, v, end);
    }
}

/* Both plans on windows that the probes did not see, where the text has more. */
static int verify(tune *t)
{
    kvs_plan *plans[2] = {NULL, NULL};
    const kvs_plan *list[2];
    score scores[2];
    memset(scores, 0, sizeof scores);
    plan_text(t, "layers=", ';');
    int rc = quality_plan(&t->q, t->text, &plans[0]);
    rc = rc == 0 ? quality_plan(&t->q, "q4", &plans[1]) : rc;
    if (rc == 0) {
        bool fresh = t->q.n_chunks > t->probe_chunks;
        list[0] = plans[0];
        list[1] = plans[1];
        quality_run r = {.base = t->base,
                         .plans = list,
                         .n_plans = 2,
                         .first_chunk = fresh ? t->probe_chunks : 0,
                         .n_chunks = fresh ? t->q.n_chunks - t->probe_chunks : t->q.n_chunks,
                         .scores = scores};
        rc = quality_measure(&t->q, &r);
        t->tuned = scores[0];
        t->uniform = scores[1];
    }
    for (uint32_t i = 0; rc == 0 && i < t->n_layers * SIDES; i++) {
        t->uniform_bytes += t->parts[i].bytes[2];
    }
    scores_free(scores, 2);
    kvs_plan_free(plans[0]);
    kvs_plan_free(plans[1]);
    return rc;
}

/* ---- results */

static int write_plan(tune *t)
{
    if (!t->q.s->out) {
        return 0;
    }
    FILE *f = fopen(t->q.s->out, "w");
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", t->q.s->out, strerror(errno));
    }
    (void)fprintf(f, "# kvstate tune: %s, %.3f bits a value, KL %.6f (q4: %.3f bits, %.6f)\n",
                  t->q.info.name, 8.0 * t->tuned_bytes / t->values, score_kl(&t->tuned),
                  8.0 * t->uniform_bytes / t->values, score_kl(&t->uniform));
    plan_text(t, "", '\n');
    (void)fputs(t->text, f);
    bool bad = ferror(f) != 0;
    bad = fclose(f) != 0 || bad;
    return bad ? fail(EXIT_FAILED, "%s can't be written: %s", t->q.s->out, strerror(errno)) : 0;
}

static void print_table(const tune *t)
{
    (void)printf("| layer | KL of q4 keys | KL of q4 values | keys | values |\n"
                 "| ---: | ---: | ---: | --- | --- |\n");
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char k[16];
        char v[16];
        codec_name(part_at(t, i, 0)->chosen, k);
        codec_name(part_at(t, i, 1)->chosen, v);
        (void)printf("| %u | %.7f | %.7f | %s | %s |\n", i, part_at(t, i, 0)->kl[2],
                     part_at(t, i, 1)->kl[2], k, v);
    }
    (void)printf("\n| plan | bits a value | KL mean | KL 99 %% | perplexity |\n"
                 "| --- | ---: | ---: | ---: | ---: |\n");
    (void)printf("| tuned | %.3f | %.6f ± %.6f | - | %.4f |\n", 8.0 * t->tuned_bytes / t->values,
                 score_kl(&t->tuned), score_kl_error(&t->tuned), score_perplexity(&t->tuned));
    (void)printf("| q4 | %.3f | %.6f ± %.6f | - | %.4f |\n", 8.0 * t->uniform_bytes / t->values,
                 score_kl(&t->uniform), score_kl_error(&t->uniform), score_perplexity(&t->uniform));
    (void)printf("\nKL of the tuned plan is %.3f times that of q4.\n",
                 score_kl(&t->tuned) / score_kl(&t->uniform));
}

static void print_json(const tune *t)
{
    (void)printf("{\"model\":");
    json_text(stdout, t->q.info.name, strlen(t->q.info.name));
    (void)printf(",\"window\":%u,\"probe_chunks\":%u,\"layers\":[", t->q.window, t->probe_chunks);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        (void)printf("%s{\"layer\":%u", i ? "," : "", i);
        for (int side = 0; side < SIDES; side++) {
            const part *p = part_at(t, i, side);
            char name[16];
            codec_name(p->chosen, name);
            (void)printf(",\"%s\":{\"codec\":\"%s\",\"kl\":{\"q2\":%.9g,\"q3\":%.9g,\"q4\":%.9g}}",
                         side == 0 ? "k" : "v", name, p->kl[0], p->kl[1], p->kl[2]);
        }
        (void)fputc('}', stdout);
    }
    (void)printf("],\"tuned\":{\"bits\":%.6f,\"kl\":%.9g,\"perplexity\":%.6f},"
                 "\"q4\":{\"bits\":%.6f,\"kl\":%.9g,\"perplexity\":%.6f},\"kl_ratio\":%.6f}\n",
                 8.0 * t->tuned_bytes / t->values, score_kl(&t->tuned), score_perplexity(&t->tuned),
                 8.0 * t->uniform_bytes / t->values, score_kl(&t->uniform),
                 score_perplexity(&t->uniform), score_kl(&t->tuned) / score_kl(&t->uniform));
}

static int plot(const tune *t)
{
    double x[MAX_LAYERS];
    double k[MAX_LAYERS];
    double v[MAX_LAYERS];
    for (uint32_t i = 0; i < t->n_layers; i++) {
        x[i] = i;
        k[i] = part_at(t, i, 0)->kl[2];
        v[i] = part_at(t, i, 1)->kl[2];
    }
    svg_series series[2] = {{"keys", SVG_BARS, t->n_layers, x, k, NULL},
                            {"values", SVG_BARS, t->n_layers, x, v, NULL}};
    svg_plot plot = {"KL divergence of 4-bit keys or values of one layer",
                     "layer",
                     "KL divergence, nats",
                     true,
                     series,
                     2};
    return svg_write(t->q.s->svg, &plot);
}

static int report(tune *t)
{
    if (t->q.s->json) {
        print_json(t);
    } else {
        print_table(t);
    }
    int rc = write_plan(t);
    return rc == 0 && t->q.s->svg ? plot(t) : rc;
}

int cmd_tune(settings *s)
{
    static tune t;
    catch_signals();
    if (s->kv || s->kv_bits > 0 || s->cache_k || s->cache_v) {
        return fail(EXIT_USAGE, "tune makes the plan; --kv, --kv-bits and cache types don't apply");
    }
    int rc = quality_open(&t.q, s, 512);
    if (rc == 0) {
        rc = prepare(&t);
    }
    if (rc == 0) {
        /* half of the windows to choose by, half to check with */
        t.probe_chunks = t.q.n_chunks > 1 ? t.q.n_chunks / 2 : 1;
        rc = measure_parts(&t);
    }
    if (rc == 0) {
        rc = choose(&t);
    }
    if (rc == 0) {
        rc = verify(&t);
    }
    if (rc == 0) {
        rc = report(&t);
    }
    free(t.parts);
    free(t.text);
    kvs_plan_free(t.base);
    quality_close(&t.q);
    return rc;
}
