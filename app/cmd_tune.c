/* SPDX-License-Identifier: MIT */
/* cmd_tune.c: chooses bits for the keys and the values of each layer: the least divergence from
 * dense under a byte budget, or the fewest bytes within a divergence (--max-kl).
 *
 * Sensitivity (tune_probe.c): the divergence that one layer's keys, or values, cause when they alone
 * are quantised; small divergences of several layers add up (each is quadratic in its error, and the
 * errors are independent), so a plan's is predicted by the sum. Choice (tune_choose.c): by that
 * prediction. Search (tune_search.c): several choices are measured as whole plans, and the best of
 * them is taken. All this sees the first windows of the text alone; the last ones, which nothing was
 * chosen by, then say what the plan is worth beside uniform ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "tune.h"

static const uint32_t bits_of[N_BITS] = {2, 3, 4, 5, 6, 8};
static const uint32_t group_of[N_GROUPS] = {64, 128, 32};

/* Keys are centred, unless told otherwise: that halves their divergence and costs 3 % of their
 * bytes. */
void tune_codec_name(const tune *t, int codec, int side, char dst[16])
{
    uint32_t g = group_of[codec / N_BITS];
    char kind = side == 0 && !t->q.s->no_center ? 'c' : 'q';
    (void)snprintf(dst, 16, g == 64 ? "%c%u" : "%c%u:%u", kind, bits_of[codec % N_BITS], g);
}

int tune_bits(int codec)
{
    return (int)bits_of[codec % N_BITS];
}

part *tune_part(const tune *t, uint32_t layer, int side)
{
    return &t->parts[layer * SIDES + (uint32_t)side];
}

void tune_plan_text(const tune *t, const choice *c, const char *start, char end)
{
    size_t at = (size_t)snprintf(t->text, t->text_size, "%s", start);
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char k[16];
        char v[16];
        tune_codec_name(t, c->codec[i * SIDES], 0, k);
        tune_codec_name(t, c->codec[i * SIDES + 1], 1, v);
        at += (size_t)snprintf(t->text + at, t->text_size - at, "%u %s+%s%c", i, k, v, end);
    }
}

/* Rows of one side that a layer holds at the depth that the budget is about. */
static double rows_held(const tune *t, const kvs_layer_spec *l)
{
    double depth = t->q.s->depth > 0 ? (double)t->q.s->depth : 1.0;
    double window = (double)l->window + (double)l->sinks;
    bool none = l->kind == KVS_LAYER_RECURRENT || l->kind == KVS_LAYER_BORROW;
    return none ? 0.0 : l->n_kv_heads * (l->window > 0 && window < depth ? window : depth);
}

static double row_bytes(const kvs_layer_spec *l, const kvs_codec *codec, int side)
{
    uint32_t dim = side == 0 ? l->k_dim : l->v_dim;
    double bytes = (double)kvs_codec_row_bytes(codec, dim);
    if (side == 0 && l->kind == KVS_LAYER_ATTENTION) {
        bytes += (double)kvs_codec_center_bytes(codec, dim) / KVS_CENTER_GROUP;
    }
    return bytes;
}

double tune_plan_bytes(const tune *t, const kvs_plan *plan)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < t->n_layers; i++) {
        const kvs_layer_spec *l = kvs_plan_layer(plan, i);
        double rows = rows_held(t, l);
        sum += rows > 0.0 ? rows * (row_bytes(l, &l->k, 0) + row_bytes(l, &l->v, 1)) : 0.0;
    }
    return sum;
}

/* ---- preparation */

/* One side of a layer; false: it can't be quantised. What is not stored takes any codec. */
static bool prepare_part(tune *t, uint32_t layer, int side)
{
    const kvs_layer_spec *l = kvs_plan_layer(t->base, layer);
    part *p = tune_part(t, layer, side);
    uint32_t dim = side == 0 ? l->k_dim : l->v_dim;
    double rows = rows_held(t, l);
    t->values += rows * dim;
    for (int c = 0; c < N_CODECS; c++) {
        char name[16];
        kvs_codec codec;
        tune_codec_name(t, c, side, name);
        bool fits = kvs_codec_parse(name, &codec, NULL) == KVS_OK &&
                    (rows == 0.0 || kvs_codec_check(&codec, dim, NULL) == KVS_OK);
        p->kl[c] = fits ? 0.0 : HUGE_VAL;
        p->bytes[c] = fits && rows > 0.0 ? rows * row_bytes(l, &codec, side) : 0.0;
    }
    return p->kl[0] != HUGE_VAL;
}

/* The windows: the first ones to choose by, the last ones to check with. */
static int share_windows(tune *t)
{
    uint32_t n = t->q.n_chunks;
    uint32_t check = t->q.s->check_chunks > 0 ? t->q.s->check_chunks : n - n / 2;
    if (n == 1) {
        t->n_choose = t->n_check = 1;
        return 0;
    }
    if (check >= n) {
        return fail(EXIT_USAGE, "--check %u: there are %u windows, and one is to choose by", check,
                    n);
    }
    t->n_check = check;
    t->n_choose = n - check;
    return 0;
}

/* What is asked for: --max-kl as a number or a plan, else a budget. */
static int read_goal(tune *t)
{
    const settings *s = t->q.s;
    if (!s->max_kl) {
        double bits = s->budget > 0.0f ? (double)s->budget : 4.5;
        t->budget = s->budget_bytes > 0.0f ? (double)s->budget_bytes : t->values * bits / 8.0;
        double least = tune_least_bytes(t);
        return t->budget >= least
                   ? 0
                   : fail(EXIT_USAGE, "a budget of %.0f bytes is below the least, %.0f", t->budget,
                          least);
    }
    if (s->budget > 0.0f || s->budget_bytes > 0.0f) {
        return fail(EXIT_USAGE, "--max-kl finds the fewest bytes; a budget does not apply");
    }
    char *end = NULL;
    t->max_kl = strtod(s->max_kl, &end);
    if (end == s->max_kl || *end != '\0') {
        t->as_plan = s->max_kl;
        return 0;
    }
    return t->max_kl > 0.0 && t->max_kl < HUGE_VAL
               ? 0
               : fail(EXIT_USAGE, "--max-kl %s: a divergence is above 0", s->max_kl);
}

static int prepare(tune *t)
{
    int rc = quality_plan(&t->q, "f32", &t->base);
    if (rc != 0) {
        return rc;
    }
    t->n_layers = kvs_plan_n_layers(t->base);
    t->n_parts = t->n_layers * SIDES;
    if (t->n_layers > MAX_LAYERS) {
        return fail(EXIT_INPUT, "%u layers, more than %d", t->n_layers, MAX_LAYERS);
    }
    t->text_size = (size_t)t->n_layers * 64 + 64;
    t->text = malloc(t->text_size);
    t->parts = calloc(t->n_parts, sizeof *t->parts);
    if (!t->text || !t->parts) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < t->n_layers; i++) {
        const kvs_layer_spec *l = kvs_plan_layer(t->base, i);
        for (int side = 0; side < SIDES; side++) {
            if (!prepare_part(t, i, side)) {
                uint32_t dim = side == 0 ? l->k_dim : l->v_dim;
                return fail(EXIT_INPUT, "layer %u: a head of %u can't be quantised in groups of 64",
                            i, dim);
            }
        }
    }
    if (t->values == 0.0) {
        return fail(EXIT_INPUT, "no layer of this model keeps keys and values");
    }
    rc = share_windows(t);
    return rc == 0 ? read_goal(t) : rc;
}

/* ---- whole plans */

int tune_measure(tune *t, kvs_plan *const *plans, size_t n, bool check, score *scores, score *base)
{
    const kvs_plan *list[MAX_PLANS];
    for (size_t i = 0; i < n; i++) {
        list[i] = plans[i];
    }
    quality_run r = {.base = t->base,
                     .plans = list,
                     .n_plans = n,
                     .first_chunk = check ? t->q.n_chunks - t->n_check : 0,
                     .n_chunks = check ? t->n_check : t->n_choose,
                     .scores = scores,
                     .base_score = base};
    return quality_measure(&t->q, &r);
}

void tune_plans_free(kvs_plan **plans, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kvs_plan_free(plans[i]);
    }
}

void tune_progress(tune *t, size_t n)
{
    t->n_done += (uint32_t)n;
    if (!t->q.s->quiet) {
        (void)fprintf(stderr, "\r%s: %u of %u plans", t->doing, t->n_done, t->n_jobs);
        if (t->n_done >= t->n_jobs || interrupted()) {
            (void)fputc('\n', stderr);
        }
    }
}

/* Divergences of uniform q4, and of the plan that --max-kl names, on the windows to choose by. */
static int measure_references(tune *t)
{
    kvs_plan *plans[2] = {NULL, NULL};
    score scores[2];
    size_t n = t->as_plan ? 2 : 1;
    memset(scores, 0, sizeof scores);
    int rc = quality_plan(&t->q, "q4", &plans[0]);
    if (rc == 0 && t->as_plan) {
        rc = quality_plan(&t->q, t->as_plan, &plans[1]);
    }
    rc = rc == 0 ? tune_measure(t, plans, n, false, scores, NULL) : rc;
    if (rc == 0) {
        t->q4_kl = score_kl(&scores[0]);
    }
    if (rc == 0 && t->as_plan) {
        t->max_kl = score_kl(&scores[1]);
        if (!(t->max_kl > 0.0)) {
            rc = fail(EXIT_USAGE, "--max-kl %s: that plan does not diverge from dense", t->as_plan);
        }
    }
    tune_plans_free(plans, 2);
    scores_free(scores, 2);
    return rc;
}

/* The plan and uniform ones on windows that the choice did not see, where the text has more. */
static int check(tune *t)
{
    const char *names[MAX_CHECKED] = {"tuned", "q4", "c4", t->as_plan};
    kvs_plan *plans[MAX_CHECKED] = {NULL};
    score scores[MAX_CHECKED];
    bool same = t->as_plan && (strcmp(t->as_plan, "q4") == 0 || strcmp(t->as_plan, "c4") == 0);
    size_t n = t->as_plan && !same ? 4 : 3;
    memset(scores, 0, sizeof scores);
    tune_plan_text(t, &t->best, "layers=", ';');
    int rc = quality_plan(&t->q, t->text, &plans[0]);
    for (size_t i = 1; rc == 0 && i < n; i++) {
        rc = quality_plan(&t->q, names[i], &plans[i]);
    }
    rc = rc == 0 ? tune_measure(t, plans, n, true, scores, &t->dense) : rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        checked *c = &t->checks[i];
        c->name = names[i];
        c->kl_99 = score_kl_at(&scores[i], 0.99);
        c->score = scores[i];
        c->score.kls = NULL;
        c->bytes = tune_plan_bytes(t, plans[i]);
        c->kl_chosen_by = i == 0 ? t->best.kl : i == 1 ? t->q4_kl : -1.0;
        if (t->as_plan && strcmp(c->name, t->as_plan) == 0) {
            c->kl_chosen_by = t->max_kl;
        }
    }
    t->n_checks = n;
    tune_plans_free(plans, MAX_CHECKED);
    scores_free(scores, n);
    return rc;
}

int cmd_tune(settings *s)
{
    static tune t;
    static int (*const steps[])(tune * t) = {
        prepare, tune_sensitivity, measure_references, tune_search, check, tune_report};
    catch_signals();
    if (s->kv || s->kv_bits > 0 || s->cache_k || s->cache_v) {
        return fail(EXIT_USAGE, "tune makes the plan; --kv, --kv-bits and cache types don't apply");
    }
    int rc = quality_open(&t.q, s, 512);
    for (size_t i = 0; rc == 0 && i < sizeof steps / sizeof steps[0]; i++) {
        rc = steps[i](&t);
    }
    free(t.parts);
    free(t.text);
    kvs_plan_free(t.base);
    quality_close(&t.q);
    return rc;
}
