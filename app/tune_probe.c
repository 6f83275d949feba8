/* SPDX-License-Identifier: MIT */
/* tune_probe.c: what quantising each part costs.
 *
 * A part is measured alone, everything else dense, with 3 bits in groups of 64: an effect well above
 * the noise, and small enough to add up. What other bits and groups change is measured once for all
 * keys and once for all values; what 8 bits change over 6 follows from the step, whose square the
 * divergence goes with. */
#include <math.h>
#include <string.h>

#include "tune.h"

static const int wholes[] = {0, Q3, Q4, 3, 4, N_BITS + Q3, N_BITS + Q4, 2 * N_BITS + Q4};
enum { N_WHOLES = sizeof wholes / sizeof wholes[0] };
/* expected range of as many standard normal numbers, relative to 64: where nothing was measured */
static const double range_of[N_GROUPS] = {1.0, 1.118, 0.866};

/* "layers=": one side of one layer in a codec, all else dense. */
static void probe_text(tune *t, uint32_t layer, int side, int c)
{
    char name[16];
    tune_codec_name(t, c, side, name);
    (void)snprintf(t->text, t->text_size,
                   side == 0 ? "layers=* f32;%u %s+f32" : "layers=* f32;%u f32+%s", layer, name);
}

/* One side of all layers in a codec, groups of 64 where the geometry can't hold it. false: it can
 * nowhere. */
static bool whole_text(tune *t, int side, int c)
{
    bool any = false;
    size_t at = (size_t)snprintf(t->text, t->text_size, "layers=");
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char name[16];
        const part *p = tune_part(t, i, side);
        bool fits = p->kl[c] < HUGE_VAL;
        any = any || (fits && p->bytes[c] > 0.0);
        tune_codec_name(t, fits ? c : c % N_BITS, side, name);
        at += (size_t)snprintf(t->text + at, t->text_size - at,
                               side == 0 ? "%u %s+f32;" : "%u f32+%s;", i, name);
    }
    return any;
}

/* Rounding may leave a divergence of nothing a hair below 0. */
static double positive(double kl)
{
    return fmax(kl, 1e-12);
}

static int measure_wholes(tune *t)
{
    kvs_plan *plans[MAX_PLANS] = {NULL};
    double *to[MAX_PLANS];
    score scores[MAX_PLANS];
    size_t n = 0;
    int rc = 0;
    memset(scores, 0, sizeof scores);
    for (int i = 0; rc == 0 && i < N_WHOLES * SIDES; i++) {
        int side = i / N_WHOLES;
        if (whole_text(t, side, wholes[i % N_WHOLES])) {
            to[n] = &t->whole[side][wholes[i % N_WHOLES]];
            rc = quality_plan(&t->q, t->text, &plans[n]);
            n += rc == 0;
        }
    }
    rc = rc == 0 ? tune_measure(t, plans, n, false, scores, NULL) : rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        *to[i] = positive(score_kl(&scores[i]));
    }
    tune_plans_free(plans, MAX_PLANS);
    scores_free(scores, MAX_PLANS);
    tune_progress(t, N_WHOLES * SIDES);
    return rc;
}

/* Parts first .. first + n - 1 side by side: they share the base's work. */
static int probe(tune *t, uint32_t first, size_t n)
{
    kvs_plan *plans[MAX_PLANS] = {NULL};
    score scores[MAX_PLANS];
    int rc = 0;
    memset(scores, 0, sizeof scores);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint32_t at = first + (uint32_t)i;
        probe_text(t, at / SIDES, (int)(at % SIDES), Q3);
        rc = quality_plan(&t->q, t->text, &plans[i]);
    }
    rc = rc == 0 ? tune_measure(t, plans, n, false, scores, NULL) : rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        t->parts[first + i].kl[Q3] = positive(score_kl(&scores[i]));
    }
    tune_plans_free(plans, n);
    scores_free(scores, n);
    tune_progress(t, n);
    return rc;
}

static double ratio(const double *whole, int c, int to, double otherwise)
{
    return whole[c] > 0.0 && whole[to] > 0.0 ? whole[c] / whole[to] : otherwise;
}

static double squared_step(int more, int fewer)
{
    double r = (double)((1u << tune_bits(fewer)) - 1) / (double)((1u << tune_bits(more)) - 1);
    return r * r;
}

/* From what was measured to all codecs. */
static void extend(part *p, const double *whole)
{
    double kl = p->kl[Q3];
    p->kl[0] = kl * ratio(whole, 0, Q3, squared_step(0, Q3));
    for (int c = Q4; c < N_CODECS; c++) {
        int b = c % N_BITS;
        if (p->kl[c] == HUGE_VAL) {
            continue;
        }
        if (c < N_BITS) {
            p->kl[c] = p->kl[c - 1] * ratio(whole, c, c - 1, squared_step(c, c - 1));
        } else {
            int same = c - b + (b <= Q3 && whole[c - b + Q3] > 0.0 ? Q3 : Q4);
            double range = range_of[c / N_BITS] * range_of[c / N_BITS];
            p->kl[c] = p->kl[b] * ratio(whole, same, same % N_BITS, range);
        }
    }
}

int tune_sensitivity(tune *t)
{
    bool found = false;
    int rc = tune_sensitivity_read(t, &found);
    t->doing = "sensitivity";
    t->n_done = 0;
    t->n_jobs = t->n_parts + N_WHOLES * SIDES;
    if (rc == 0 && !found) {
        rc = check_writable(t->q.s->sensitivity) != 0 ? EXIT_INPUT : measure_wholes(t);
        for (uint32_t at = 0; rc == 0 && at < t->n_parts; at += MAX_PLANS) {
            uint32_t left = t->n_parts - at;
            rc = probe(t, at, left < MAX_PLANS ? left : MAX_PLANS);
        }
        rc = rc == 0 ? tune_sensitivity_write(t) : rc;
    }
    for (uint32_t i = 0; rc == 0 && i < t->n_parts; i++) {
        extend(&t->parts[i], t->whole[i % SIDES]);
    }
    return rc;
}
