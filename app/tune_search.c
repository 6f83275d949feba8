/* SPDX-License-Identifier: MIT */
/* tune_search.c: choices measured as whole plans.
 *
 * The sum over the parts is a prediction: at few bits errors of several layers interact. So choices
 * are made with several weighings and measured side by side, all on the windows that the
 * sensitivities come from, and what was measured decides. A divergence that is to be kept to is kept
 * to with two standard errors to spare: the smallest of many choices is one that these windows favour,
 * and it is to hold on other text. For the fewest bytes within a divergence
 * the budget is found in the same way, by measuring a ladder of budgets, the best weighing at the
 * budget that the ladder gives, and a finer ladder with that weighing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

static const weighing weighings[] = {{0.6, 1.0}, {1.0, 1.0}, {1.0, 0.5}, {1.0, 2.0}, {0.6, 0.5},
                                     {0.6, 2.0}, {0.0, 1.0}, {0.0, 0.5}, {0.0, 2.0}};
enum { N_WEIGHINGS = sizeof weighings / sizeof weighings[0] };
static const double coarse[] = {0.80, 0.86, 0.92, 1.0, 1.08, 1.17, 1.27};
static const double fine[] = {0.92, 0.94, 0.96, 0.98, 1.0, 1.02, 1.04, 1.06};
enum { N_COARSE = sizeof coarse / sizeof coarse[0], N_FINE = sizeof fine / sizeof fine[0] };

/* kl of each. */
static int measure_choices(tune *t, choice *list, size_t n)
{
    kvs_plan *plans[MAX_PLANS] = {NULL};
    score scores[MAX_PLANS];
    int rc = 0;
    memset(scores, 0, sizeof scores);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = tune_choose(t, &list[i]);
        if (rc == 0) {
            tune_plan_text(t, &list[i], "layers=", ';');
            rc = quality_plan(&t->q, t->text, &plans[i]);
        }
    }
    rc = rc == 0 ? tune_measure(t, plans, n, false, scores, NULL) : rc;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        list[i].kl = score_kl(&scores[i]);
        list[i].kl_bound = list[i].kl + 2.0 * score_kl_error(&scores[i]);
    }
    tune_plans_free(plans, n);
    scores_free(scores, n);
    tune_progress(t, n);
    return rc;
}

/* The least divergence of all weighings at a budget, to *best. */
static int best_weighing(tune *t, double budget, choice *list, choice *best)
{
    for (int i = 0; i < N_WEIGHINGS; i++) {
        list[i].budget = budget;
        list[i].by = weighings[i];
    }
    int rc = measure_choices(t, list, N_WEIGHINGS);
    size_t at = 0;
    for (size_t i = 1; i < N_WEIGHINGS; i++) {
        at = list[i].kl < list[at].kl ? i : at;
    }
    *best = list[at];
    return rc;
}

/* A ladder of budgets around one, measured. */
static int ladder(tune *t, double around, const double *steps, size_t n, const weighing *by,
                  choice *list)
{
    double least = tune_least_bytes(t);
    for (size_t i = 0; i < n; i++) {
        list[i].budget = fmax(around * steps[i], least);
        list[i].by = *by;
    }
    return measure_choices(t, list, n);
}

/* The fewest bytes whose prediction is max_kl. */
static int predicted_budget(tune *t, double *budget)
{
    static choice c;
    double lo = tune_least_bytes(t);
    double hi = t->values * 1.2; /* above 8 bits in groups of 32 */
    c.by = weighings[0];
    for (int i = 0; i < 24; i++) {
        c.budget = sqrt(lo * hi);
        int rc = tune_choose(t, &c);
        if (rc != 0) {
            return rc;
        }
        if (tune_predict(t, &c) > t->max_kl) {
            lo = c.budget;
        } else {
            hi = c.budget;
        }
    }
    *budget = hi;
    return 0;
}

/* Where the ladder crosses max_kl, by a straight line through logarithms; past its ends, the end. */
static double crossing(const tune *t, const choice *list, size_t n)
{
    for (size_t i = 0; i + 1 < n; i++) {
        double a = log(list[i].kl_bound / t->max_kl);
        double b = log(list[i + 1].kl_bound / t->max_kl);
        if (a > 0.0 && b <= 0.0) {
            return list[i].budget * pow(list[i + 1].budget / list[i].budget, a / (a - b));
        }
    }
    return list[0].kl_bound <= t->max_kl ? list[0].budget : list[n - 1].budget;
}

/* t->best: the fewest bytes measured so far that keep to max_kl; t->best.bytes is 0 before. */
static void keep_fewest(tune *t, const choice *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool fewer = t->best.bytes <= 0.0 || list[i].bytes < t->best.bytes;
        t->best = list[i].kl_bound <= t->max_kl && fewer ? list[i] : t->best;
    }
}

/* Ladders from the prediction on, until one crosses max_kl; *budget: where. */
static int climb(tune *t, choice *list, double *budget)
{
    enum { MOST_LADDERS = 4 };
    int rc = predicted_budget(t, budget);
    for (int i = 0; rc == 0 && i < MOST_LADDERS; i++) {
        t->n_jobs += i > 0 ? N_COARSE : 0;
        rc = ladder(t, *budget, coarse, N_COARSE, &weighings[0], list);
        if (rc != 0) {
            break;
        }
        keep_fewest(t, list, N_COARSE);
        *budget = crossing(t, list, N_COARSE);
        bool least = list[0].kl_bound <= t->max_kl && list[0].budget <= tune_least_bytes(t);
        if (least || (list[0].kl_bound > t->max_kl && list[N_COARSE - 1].kl_bound <= t->max_kl)) {
            break;
        }
    }
    return rc;
}

static int search_bytes(tune *t, choice *list)
{
    choice *best = malloc(sizeof *best);
    double budget = 0.0;
    if (!best) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    t->best.bytes = 0.0;
    int rc = climb(t, list, &budget);
    if (rc == 0) {
        rc = best_weighing(t, budget, list, best);
    }
    if (rc == 0) {
        keep_fewest(t, list, N_WEIGHINGS);
        rc = ladder(t, budget, fine, N_FINE, &best->by, list);
    }
    if (rc == 0) {
        keep_fewest(t, list, N_FINE);
        if (t->best.bytes <= 0.0) {
            rc = fail(EXIT_FAILED, "no plan found with a divergence of at most %g", t->max_kl);
        }
    }
    free(best);
    return rc;
}

int tune_search(tune *t)
{
    choice *list = calloc(MAX_PLANS, sizeof *list);
    if (!list) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    t->doing = "search";
    t->n_done = 0;
    t->n_jobs = t->budget > 0.0 ? N_WEIGHINGS : N_COARSE + N_WEIGHINGS + N_FINE;
    int rc = t->budget > 0.0 ? best_weighing(t, t->budget, list, &t->best) : search_bytes(t, list);
    free(list);
    return rc;
}
