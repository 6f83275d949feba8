/* SPDX-License-Identifier: MIT */
/* svg.h: plots as SVG files: axes with round ticks, series of points, lines or bars, a legend. */
#ifndef KVS_APP_SVG_H
#define KVS_APP_SVG_H

#include <stdbool.h>
#include <stddef.h>

typedef enum svg_mark { SVG_POINTS, SVG_LINES, SVG_BARS } svg_mark;

typedef struct svg_series {
    const char *name;
    svg_mark mark;
    size_t n;
    const double *x; /* [n] */
    const double *y;
    const char *const *labels; /* [n] texts beside the points, or NULL */
} svg_series;

typedef struct svg_plot {
    const char *title;
    const char *x_label;
    const char *y_label;
    bool log_y; /* every y is positive */
    const svg_series *series;
    size_t n_series;
} svg_plot;

/* Writes the file; returns an exit code, with a message where it is not 0. */
int svg_write(const char *path, const svg_plot *plot);

#endif
