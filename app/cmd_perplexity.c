/* SPDX-License-Identifier: MIT */
/* cmd_perplexity.c: how well a model predicts a text under each of some plans, and how far a plan's
 * predictions are from those of a base plan. */
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "quality.h"
#include "svg.h"

typedef struct plans {
    kvs_plan *plan[MAX_PLANS];
    char name[MAX_PLANS][128];
    score scores[MAX_PLANS];
    size_t n;
    kvs_plan *base;
    const char *base_name;
    score base_score;
} plans;

static int add_plan(const quality *q, plans *p, const char *kv, size_t len)
{
    if (p->n == MAX_PLANS) {
        return fail(EXIT_USAGE, "--kv: more than %d plans", MAX_PLANS);
    }
    char *name = p->name[p->n];
    if (len >= sizeof p->name[0]) {
        return fail(EXIT_USAGE, "--kv: \"%s\" is too long", kv);
    }
    memcpy(name, kv, len);
    name[len] = '\0';
    int rc = quality_plan(q, len > 0 ? name : NULL, &p->plan[p->n]);
    if (len == 0) {
        (void)snprintf(name, sizeof p->name[0], "%s", q->s->kv_bits > 0 ? "kv-bits" : "f16");
    }
    p->n += rc == 0;
    return rc;
}

static int make_plans(const quality *q, plans *p)
{
    const char *kv = q->s->kv ? q->s->kv : "";
    bool one = strncmp(kv, "layers", 6) == 0;
    int rc = 0;
    for (const char *at = kv; rc == 0;) {
        size_t len = one ? strlen(at) : strcspn(at, ",");
        rc = add_plan(q, p, at, len);
        if (at[len] == '\0') {
            break;
        }
        at += len + 1;
    }
    p->base_name = q->s->kl_base ? q->s->kl_base : "f32";
    if (rc == 0 && (q->s->kl_base || q->s->kl)) {
        settings s =
            *q->s; /* the base is what its name says, whatever else is asked of the plans */
        s.cache_k = NULL;
        s.cache_v = NULL;
        s.kv_bits = 0;
        s.kv_start = 0;
        quality base = *q;
        base.s = &s;
        rc = quality_plan(&base, p->base_name, &p->base);
    }
    return rc;
}

static void free_plans(plans *p)
{
    for (size_t i = 0; i < p->n; i++) {
        kvs_plan_free(p->plan[i]);
    }
    kvs_plan_free(p->base);
    scores_free(p->scores, p->n);
}

typedef struct reporter {
    const quality *q;
    const plans *p;
} reporter;

static void on_chunk(void *user, uint32_t chunk)
{
    const reporter *r = user;
    if (r->q->s->quiet) {
        return;
    }
    (void)fprintf(stderr, "[%u/%u]", chunk + 1, r->q->n_chunks);
    for (size_t i = 0; i < r->p->n; i++) {
        (void)fprintf(stderr, " %s %.4f", r->p->name[i], score_perplexity(&r->p->scores[i]));
    }
    (void)fputc('\n', stderr);
}

/* ---- results */

static void print_table(const quality *q, plans *p)
{
    (void)printf("%s, %s, %u windows of %u tokens, %zu scored\n\n", q->info.name, q->s->file,
                 q->n_chunks, q->window, p->scores[0].n);
    if (p->base) {
        (void)printf("divergence from %s, whose perplexity is %.4f\n\n", p->base_name,
                     score_perplexity(&p->base_score));
    }
    (void)printf("| plan | bytes a token | perplexity | %s\n",
                 p->base ? "KL mean | KL 99 % | KL max | same top token | logit diff max |" : "");
    (void)printf("| --- | ---: | ---: |%s\n", p->base ? " ---: | ---: | ---: | ---: | ---: |" : "");
    for (size_t i = 0; i < p->n; i++) {
        score *s = &p->scores[i];
        (void)printf("| %s | %zu | %.4f ± %.4f |", p->name[i], quality_token_bytes(p->plan[i]),
                     score_perplexity(s), score_perplexity_error(s));
        if (p->base) {
            (void)printf(" %.6f ± %.6f | %.5f | %.5f | %.2f %% | %.3f |", score_kl(s),
                         score_kl_error(s), score_kl_at(s, 0.99), score_kl_at(s, 1.0),
                         100.0 * (double)s->same_top / (double)s->n, s->logit_diff);
        }
        (void)fputc('\n', stdout);
    }
}

static void print_json(const quality *q, plans *p)
{
    (void)printf("{\"model\":");
    json_text(stdout, q->info.name, strlen(q->info.name));
    (void)printf(",\"window\":%u,\"chunks\":%u,\"scored\":%zu", q->window, q->n_chunks,
                 p->scores[0].n);
    if (p->base) {
        (void)printf(",\"kl_base\":");
        json_text(stdout, p->base_name, strlen(p->base_name));
        (void)printf(",\"base_perplexity\":%.6f", score_perplexity(&p->base_score));
    }
    (void)printf(",\"plans\":[");
    for (size_t i = 0; i < p->n; i++) {
        score *s = &p->scores[i];
        (void)printf("%s{\"kv\":", i ? "," : "");
        json_text(stdout, p->name[i], strlen(p->name[i]));
        (void)printf(",\"bytes_per_token\":%zu,\"perplexity\":%.6f,\"perplexity_error\":%.6f",
                     quality_token_bytes(p->plan[i]), score_perplexity(s),
                     score_perplexity_error(s));
        if (p->base) {
            (void)printf(",\"kl_mean\":%.8f,\"kl_error\":%.8f,\"kl_median\":%.8f,\"kl_99\":%.8f,"
                         "\"kl_max\":%.8f,\"same_top\":%.6f,\"logit_diff_max\":%.6f",
                         score_kl(s), score_kl_error(s), score_kl_at(s, 0.5), score_kl_at(s, 0.99),
                         score_kl_at(s, 1.0), (double)s->same_top / (double)s->n, s->logit_diff);
        }
        (void)fputc('}', stdout);
    }
    (void)printf("]}\n");
}

static int plot(const quality *q, const plans *p)
{
    double x[MAX_PLANS];
    double y[MAX_PLANS];
    const char *labels[MAX_PLANS];
    for (size_t i = 0; i < p->n; i++) {
        x[i] = (double)quality_token_bytes(p->plan[i]);
        y[i] = score_perplexity(&p->scores[i]);
        labels[i] = p->name[i];
    }
    svg_series series = {NULL, SVG_POINTS, p->n, x, y, labels};
    svg_plot plot = {
        "Perplexity by state bytes", "state bytes a token", "perplexity", false, &series, 1};
    return svg_write(q->s->svg, &plot);
}

int cmd_perplexity(settings *s)
{
    static plans p;
    quality q;
    catch_signals();
    int rc = quality_open(&q, s, 512);
    if (rc == 0) {
        rc = make_plans(&q, &p);
    }
    if (rc == 0) {
        reporter r = {&q, &p};
        const kvs_plan *list[MAX_PLANS];
        for (size_t i = 0; i < p.n; i++) {
            list[i] = p.plan[i];
        }
        quality_run run = {.base = p.base,
                           .plans = list,
                           .n_plans = p.n,
                           .n_chunks = q.n_chunks,
                           .scores = p.scores,
                           .base_score = p.base ? &p.base_score : NULL,
                           .progress = on_chunk,
                           .user = &r};
        rc = quality_measure(&q, &run);
    }
    if (rc == 0 && s->json) {
        print_json(&q, &p);
    } else if (rc == 0) {
        print_table(&q, &p);
    }
    if (rc == 0 && s->svg) {
        rc = plot(&q, &p);
    }
    free_plans(&p);
    quality_close(&q);
    return rc;
}
