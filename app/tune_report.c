/* SPDX-License-Identifier: MIT */
/* tune_report.c: what tune found: the table or the JSON object, the plan file, the plot. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"
#include "tune.h"

static double bits(const tune *t, double bytes)
{
    return 8.0 * bytes / t->values;
}

static double kl_ratio(const tune *t)
{
    return score_kl(&t->checks[0].score) / score_kl(&t->checks[1].score);
}

static double saved(const tune *t)
{
    return 1.0 - t->checks[0].bytes / t->checks[1].bytes;
}

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
                  t->q.info.name, bits(t, t->checks[0].bytes), score_kl(&t->checks[0].score),
                  bits(t, t->checks[1].bytes), score_kl(&t->checks[1].score));
    tune_plan_text(t, &t->best, "", '\n');
    (void)fputs(t->text, f);
    bool bad = ferror(f) != 0;
    bad = fclose(f) != 0 || bad;
    return bad ? fail(EXIT_FAILED, "%s can't be written: %s", t->q.s->out, strerror(errno)) : 0;
}

static void print_table(const tune *t)
{
    (void)printf("| layer | KL of %c3 keys | KL of q3 values | keys | values |\n"
                 "| ---: | ---: | ---: | --- | --- |\n",
                 t->q.s->no_center ? 'q' : 'c');
    for (uint32_t i = 0; i < t->n_layers; i++) {
        char k[16];
        char v[16];
        tune_codec_name(t, t->best.codec[i * SIDES], 0, k);
        tune_codec_name(t, t->best.codec[i * SIDES + 1], 1, v);
        (void)printf("| %u | %.7f | %.7f | %s | %s |\n", i, tune_part(t, i, 0)->kl[Q3],
                     tune_part(t, i, 1)->kl[Q3], k, v);
    }
    (void)printf("\nchosen by %u windows of %u tokens; %s %u, %zu tokens scored:\n\n", t->n_choose,
                 t->q.window, t->q.n_chunks > 1 ? "checked with other" : "checked with the same",
                 t->n_check, t->dense.n);
    (void)printf("| plan | bits a value | KL mean | KL 99 %% | perplexity | KL where chosen |\n"
                 "| --- | ---: | ---: | ---: | ---: | ---: |\n"
                 "| f32 | 32 | 0 | 0 | %.4f | 0 |\n",
                 score_perplexity(&t->dense));
    for (size_t i = 0; i < t->n_checks; i++) {
        const checked *c = &t->checks[i];
        char where[32] = "-";
        if (c->kl_chosen_by >= 0.0) {
            (void)snprintf(where, sizeof where, "%.6f", c->kl_chosen_by);
        }
        (void)printf("| %s | %.3f | %.6f ± %.6f | %.5f | %.4f | %s |\n", c->name, bits(t, c->bytes),
                     score_kl(&c->score), score_kl_error(&c->score), c->kl_99,
                     score_perplexity(&c->score), where);
    }
    (void)printf("\nKL of the tuned plan is %.3f times that of q4, its bytes are %.1f %% %s.\n",
                 kl_ratio(t), 100.0 * (saved(t) < 0.0 ? -saved(t) : saved(t)),
                 saved(t) < 0.0 ? "more" : "fewer");
}

static void print_layers(const tune *t)
{
    for (uint32_t i = 0; i < t->n_layers; i++) {
        (void)printf("%s{\"layer\":%u", i ? "," : "", i);
        for (int side = 0; side < SIDES; side++) {
            const part *p = tune_part(t, i, side);
            char name[16];
            tune_codec_name(t, t->best.codec[i * SIDES + (uint32_t)side], side, name);
            (void)printf(",\"%s\":{\"codec\":\"%s\",\"kl\":{\"q3\":%.9g}}", side == 0 ? "k" : "v",
                         name, p->kl[Q3]);
        }
        (void)fputc('}', stdout);
    }
}

static void print_json(const tune *t)
{
    (void)printf("{\"model\":");
    json_text(stdout, t->q.info.name, strlen(t->q.info.name));
    (void)printf(",\"window\":%u,\"probe_chunks\":%u,\"check_chunks\":%u,\"scored\":%zu,"
                 "\"layers\":[",
                 t->q.window, t->n_choose, t->n_check, t->dense.n);
    print_layers(t);
    (void)printf("],\"dense\":{\"perplexity\":%.6f}", score_perplexity(&t->dense));
    for (size_t i = 0; i < t->n_checks; i++) {
        const checked *c = &t->checks[i];
        (void)fputc(',', stdout);
        json_text(stdout, c->name, strlen(c->name));
        (void)printf(":{\"bits\":%.6f,\"bytes\":%.1f,\"kl\":%.9g,\"kl_error\":%.9g,"
                     "\"kl_99\":%.9g,\"perplexity\":%.6f",
                     bits(t, c->bytes), c->bytes, score_kl(&c->score), score_kl_error(&c->score),
                     c->kl_99, score_perplexity(&c->score));
        if (c->kl_chosen_by >= 0.0) {
            (void)printf(",\"kl_chosen_by\":%.9g", c->kl_chosen_by);
        }
        (void)fputc('}', stdout);
    }
    if (t->max_kl > 0.0) {
        (void)printf(",\"max_kl\":%.9g,\"kl_bound\":%.9g", t->max_kl, t->best.kl_bound);
    }
    (void)printf(",\"kl_ratio\":%.6f,\"saved\":%.6f}\n", kl_ratio(t), saved(t));
}

static int plot(const tune *t)
{
    static double x[MAX_LAYERS];
    static double k[MAX_LAYERS];
    static double v[MAX_LAYERS];
    for (uint32_t i = 0; i < t->n_layers; i++) {
        x[i] = i;
        k[i] = tune_part(t, i, 0)->kl[Q3];
        v[i] = tune_part(t, i, 1)->kl[Q3];
    }
    svg_series series[2] = {{"keys", SVG_BARS, t->n_layers, x, k, NULL},
                            {"values", SVG_BARS, t->n_layers, x, v, NULL}};
    svg_plot plot = {"KL divergence of 3-bit keys or values of one layer",
                     "layer",
                     "KL divergence, nats",
                     true,
                     series,
                     2};
    return svg_write(t->q.s->svg, &plot);
}

int tune_report(tune *t)
{
    if (t->q.s->json) {
        print_json(t);
    } else {
        print_table(t);
    }
    int rc = write_plan(t);
    return rc == 0 && t->q.s->svg ? plot(t) : rc;
}
