/* SPDX-License-Identifier: MIT */
/* svg.c: svg.h. One fixed size; colours that differ in lightness too, so that a printout shows the
 * series; no script, no font file. */
#include "svg.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "util.h"

enum { WIDTH = 760, HEIGHT = 440, LEFT = 76, RIGHT = 24, TOP = 46, BOTTOM = 56 };

static const char *const colours[] = {"#1f5fa8", "#d0662a", "#4a9a4a",
                                      "#8a4fa0", "#a09020", "#505050"};
#define N_COLOURS (sizeof colours / sizeof colours[0])

typedef struct axis {
    double lo, hi, step;
    bool log;
} axis;

typedef struct canvas {
    FILE *out;
    axis x, y;
} canvas;

static void put_text(FILE *out, const char *text)
{
    for (const char *p = text; *p; p++) {
        switch (*p) {
        case '<':
            (void)fputs("&lt;", out);
            break;
        case '&':
            (void)fputs("&amp;", out);
            break;
        default:
            (void)fputc(*p, out);
        }
    }
}

/* Round steps: 1, 2 or 5 times a power of ten, five or so of them. */
static axis axis_of(double lo, double hi, bool log)
{
    axis a = {lo, hi, 1.0, log};
    if (log) {
        a.lo = floor(log10(lo));
        a.hi = ceil(log10(hi));
        a.hi = a.hi > a.lo ? a.hi : a.lo + 1.0;
        return a;
    }
    double range = hi > lo ? hi - lo : fabs(hi) > 0.0 ? fabs(hi) : 1.0;
    double power = pow(10.0, floor(log10(range / 5.0)));
    double unit = range / 5.0 / power;
    a.step = power * (unit > 5.0 ? 10.0 : unit > 2.0 ? 5.0 : unit > 1.0 ? 2.0 : 1.0);
    a.lo = floor(lo / a.step) * a.step;
    a.hi = ceil(hi / a.step) * a.step;
    a.hi = a.hi > a.lo ? a.hi : a.lo + a.step;
    return a;
}

static double share(const axis *a, double v)
{
    v = a->log ? log10(v) : v;
    return (v - a->lo) / (a->hi - a->lo);
}

static double px(const canvas *c, double v)
{
    return LEFT + share(&c->x, v) * (WIDTH - LEFT - RIGHT);
}

static double py(const canvas *c, double v)
{
    return HEIGHT - BOTTOM - share(&c->y, v) * (HEIGHT - TOP - BOTTOM);
}

static void text_at(const canvas *c, double x, double y, const char *attrs, const char *text)
{
    (void)fprintf(c->out, "<text x=\"%.1f\" y=\"%.1f\" %s>", x, y, attrs);
    put_text(c->out, text);
    (void)fputs("</text>\n", c->out);
}

static void ticks(const canvas *c, const axis *a, bool is_x)
{
    int n = (int)lround((a->hi - a->lo) / a->step);
    for (int i = 0; i <= n; i++) {
        char text[32];
        double at = a->lo + i * a->step;
        double v = a->log ? pow(10.0, at) : fabs(at) < a->step * 1e-6 ? 0.0 : at;
        double x = is_x ? px(c, v) : LEFT;
        double y = is_x ? HEIGHT - BOTTOM : py(c, v);
        (void)snprintf(text, sizeof text, "%.6g", v);
        (void)fprintf(c->out, "<path d=\"M%.1f %.1f%s\" stroke=\"#ddd\"/>\n", x, y,
                      is_x ? "V46" : "H736");
        text_at(c, is_x ? x : x - 8, is_x ? y + 18 : y + 4,
                is_x ? "text-anchor=\"middle\"" : "text-anchor=\"end\"", text);
    }
}

static void bars(const canvas *c, const svg_plot *plot, size_t k, size_t n_bars, size_t nth)
{
    const svg_series *s = &plot->series[k];
    double unit = px(c, 1.0) - px(c, 0.0);
    double w = unit * 0.8 / (double)n_bars;
    for (size_t i = 0; i < s->n; i++) {
        double x = px(c, s->x[i]) - unit * 0.4 + (double)nth * w;
        double y = py(c, s->y[i]);
        (void)fprintf(c->out,
                      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                      x, y, w, HEIGHT - BOTTOM - y, colours[k % N_COLOURS]);
    }
}

static void points(const canvas *c, const svg_series *s, const char *colour)
{
    if (s->mark == SVG_LINES) {
        (void)fprintf(c->out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                      colour);
        for (size_t i = 0; i < s->n; i++) {
            (void)fprintf(c->out, "%.1f,%.1f ", px(c, s->x[i]), py(c, s->y[i]));
        }
        (void)fputs("\"/>\n", c->out);
    }
    for (size_t i = 0; i < s->n; i++) {
        (void)fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n",
                      px(c, s->x[i]), py(c, s->y[i]), colour);
        if (s->labels && s->labels[i]) {
            bool right = px(c, s->x[i]) < WIDTH - RIGHT - 80;
            text_at(c, px(c, s->x[i]) + (right ? 8 : -8), py(c, s->y[i]) - 6,
                    right ? "" : "text-anchor=\"end\"", s->labels[i]);
        }
    }
}

static void draw(const canvas *c, const svg_plot *plot)
{
    size_t n_bars = 0;
    size_t nth = 0;
    for (size_t k = 0; k < plot->n_series; k++) {
        n_bars += plot->series[k].mark == SVG_BARS;
    }
    for (size_t k = 0; k < plot->n_series; k++) {
        const svg_series *s = &plot->series[k];
        if (s->mark == SVG_BARS) {
            bars(c, plot, k, n_bars, nth++);
        } else {
            points(c, s, colours[k % N_COLOURS]);
        }
        if (s->name) {
            double x = WIDTH - RIGHT - 150;
            double y = TOP + 16 + 18 * (double)k;
            (void)fprintf(c->out,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n",
                          x, y - 10, colours[k % N_COLOURS]);
            text_at(c, x + 18, y, "", s->name);
        }
    }
}

static void bounds(const svg_plot *plot, canvas *c)
{
    double x0 = HUGE_VAL;
    double x1 = -HUGE_VAL;
    double y0 = HUGE_VAL;
    double y1 = -HUGE_VAL;
    bool any_bars = false;
    for (size_t k = 0; k < plot->n_series; k++) {
        const svg_series *s = &plot->series[k];
        any_bars = any_bars || s->mark == SVG_BARS;
        for (size_t i = 0; i < s->n; i++) {
            x0 = fmin(x0, s->x[i]);
            x1 = fmax(x1, s->x[i]);
            y0 = fmin(y0, s->y[i]);
            y1 = fmax(y1, s->y[i]);
        }
    }
    if (any_bars) { /* room for the first and the last, and a bar starts at the bottom */
        x0 -= 0.5;
        x1 += 0.5;
        y0 = plot->log_y ? y0 / 2.0 : fmin(y0, 0.0);
    }
    c->x = axis_of(x0, x1, false);
    c->y = axis_of(y0, y1, plot->log_y);
}

int svg_write(const char *path, const svg_plot *plot)
{
    canvas c = {.out = fopen(path, "w")};
    if (!c.out) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    bounds(plot, &c);
    (void)fprintf(c.out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                  "font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
                  "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    ticks(&c, &c.x, true);
    ticks(&c, &c.y, false);
    (void)fprintf(c.out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#222\"/>\n", LEFT, TOP,
                  HEIGHT - BOTTOM, WIDTH - RIGHT);
    text_at(&c, LEFT, 26, "font-size=\"16\"", plot->title);
    text_at(&c, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, "text-anchor=\"middle\"", plot->x_label);
    (void)fprintf(c.out, "<g transform=\"rotate(-90 18 %d)\">\n", HEIGHT / 2);
    text_at(&c, 18, HEIGHT / 2.0, "text-anchor=\"middle\"", plot->y_label);
    (void)fputs("</g>\n", c.out);
    draw(&c, plot);
    (void)fputs("</svg>\n", c.out);
    bool bad = ferror(c.out) != 0;
    bad = fclose(c.out) != 0 || bad;
    return bad ? fail(EXIT_FAILED, "%s can't be written: %s", path, strerror(errno)) : 0;
}
