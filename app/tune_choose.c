/* SPDX-License-Identifier: MIT */
/* tune_choose.c: the plan with the least predicted divergence under a budget of bytes: least sum of
 * cost + lambda * bytes, lambda by bisection; what is left of the budget goes to the upgrades with
 * the best ratio.
 *
 * Measured divergences of single parts are noisy, and a choice among many picks what noise made
 * cheap. A weighing draws them towards the geometric mean of their side. */
#include <math.h>
#include <string.h>

#include "tune.h"

static void weigh(tune *t, const weighing *by)
{
    for (int side = 0; side < SIDES; side++) {
        double weight = side == 0 ? by->keys : 1.0;
        for (int c = 0; c < N_CODECS; c++) {
            double sum = 0.0;
            uint32_t n = 0;
            for (uint32_t i = 0; i < t->n_layers; i++) {
                const part *p = tune_part(t, i, side);
                bool counts = p->kl[c] > 0.0 && p->kl[c] < HUGE_VAL;
                sum += counts ? log(p->kl[c]) : 0.0;
                n += counts;
            }
            double mean = n > 0 ? sum / n : 0.0;
            for (uint32_t i = 0; i < t->n_layers; i++) {
                part *p = tune_part(t, i, side);
                bool counts = p->kl[c] > 0.0 && p->kl[c] < HUGE_VAL;
                p->cost[c] =
                    counts ? weight * exp(mean + by->trust * (log(p->kl[c]) - mean)) : p->kl[c];
            }
        }
    }
}

static double choose_at(const tune *t, double lambda, choice *to)
{
    double bytes = 0.0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        const part *p = &t->parts[i];
        int best = 0;
        for (int c = 1; c < N_CODECS; c++) {
            double cost = p->cost[c] + lambda * p->bytes[c];
            best = cost < p->cost[best] + lambda * p->bytes[best] ? c : best;
        }
        to->codec[i] = (uint8_t)best;
        bytes += p->bytes[best];
    }
    return bytes;
}

/* The upgrade with the most divergence saved a byte that still fits; false: none. */
static bool upgrade(const tune *t, choice *to)
{
    uint32_t best = t->n_parts;
    int best_codec = 0;
    double best_ratio = 0.0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        const part *p = &t->parts[i];
        for (int c = 0; c < N_CODECS; c++) {
            double more = p->bytes[c] - p->bytes[to->codec[i]];
            double less = p->cost[to->codec[i]] - p->cost[c];
            if (p->cost[c] == HUGE_VAL || less <= 0.0 || to->bytes + more > to->budget) {
                continue;
            }
            double ratio = more > 0.0 ? less / more : HUGE_VAL;
            if (ratio > best_ratio) {
                best = i;
                best_codec = c;
                best_ratio = ratio;
            }
        }
    }
    if (best == t->n_parts) {
        return false;
    }
    to->bytes += t->parts[best].bytes[best_codec] - t->parts[best].bytes[to->codec[best]];
    to->codec[best] = (uint8_t)best_codec;
    return true;
}

double tune_least_bytes(const tune *t)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        double least = HUGE_VAL;
        for (int c = 0; c < N_CODECS; c++) {
            const part *p = &t->parts[i];
            least = p->kl[c] < HUGE_VAL ? fmin(least, p->bytes[c]) : least;
        }
        sum += least;
    }
    return sum;
}

int tune_choose(tune *t, choice *c)
{
    double lo = 1e-30; /* costs too many bytes, or everything fits */
    double hi = 1e10;
    weigh(t, &c->by);
    c->bytes = choose_at(t, hi, c);
    if (c->bytes > c->budget) {
        return fail(EXIT_USAGE, "a budget of %.0f bytes is below the least, %.0f", c->budget,
                    c->bytes);
    }
    for (int i = 0; i < 200; i++) {
        double mid = sqrt(lo * hi);
        if (choose_at(t, mid, c) > c->budget) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    c->bytes = choose_at(t, hi, c);
    while (upgrade(t, c)) {
    }
    return 0;
}

double tune_predict(const tune *t, const choice *c)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < t->n_parts; i++) {
        sum += t->parts[i].kl[c->codec[i]];
    }
    return sum;
}
