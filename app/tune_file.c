/* SPDX-License-Identifier: MIT */
/* tune_file.c: measured sensitivities as a text file, so that another budget costs no more probes.
 *
 *     kvstate sensitivity 1
 *     model NAME                     what they were measured with, and must be equal
 *     of PARAMETERS FILE_BYTES LAYERS WINDOW WINDOWS TEXT KEYS
 *     whole k KL ...                 [N_CODECS] of all keys; 0: not measured
 *     whole v KL ...
 *     0 k KL                         3 bits of layer 0; every layer, k then v
 *
 * TEXT is the FNV-1a of the tokens of the windows, KEYS centred or plain. Numbers are hexadecimal
 * floats: what is read is what was written. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tune.h"

#define FIRST_LINE "kvstate sensitivity 1"

static uint64_t text_hash(const tune *t)
{
    uint64_t h = 0xcbf29ce484222325u;
    size_t n = (size_t)t->n_choose * t->q.window;
    for (size_t i = 0; i < n; i++) {
        for (int b = 0; b < 32; b += 8) {
            h = (h ^ (((uint32_t)t->q.tokens[i] >> b) & 255u)) * 0x100000001b3u;
        }
    }
    return h;
}

static void write_of(const tune *t, char dst[160])
{
    (void)snprintf(dst, 160, "of %" PRIu64 " %" PRIu64 " %u %u %u %016" PRIx64 " %s",
                   t->q.info.n_params, t->q.info.file_bytes, t->n_layers, t->q.window, t->n_choose,
                   text_hash(t), t->q.s->no_center ? "plain" : "centred");
}

int tune_sensitivity_write(const tune *t)
{
    const char *path = t->q.s->sensitivity;
    FILE *f = path ? fopen(path, "w") : NULL;
    char of[160];
    if (!path) {
        return 0;
    }
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    write_of(t, of);
    (void)fprintf(f, FIRST_LINE "\nmodel %s\n%s\n", t->q.info.name, of);
    for (int side = 0; side < SIDES; side++) {
        (void)fprintf(f, "whole %c", side == 0 ? 'k' : 'v');
        for (int c = 0; c < N_CODECS; c++) {
            (void)fprintf(f, " %a", t->whole[side][c]);
        }
        (void)fputc('\n', f);
    }
    for (uint32_t i = 0; i < t->n_parts; i++) {
        (void)fprintf(f, "%u %c %a\n", i / SIDES, i % SIDES == 0 ? 'k' : 'v', t->parts[i].kl[Q3]);
    }
    bool bad = ferror(f) != 0;
    bad = fclose(f) != 0 || bad;
    return bad ? fail(EXIT_FAILED, "%s can't be written: %s", path, strerror(errno)) : 0;
}

/* The next line without its end; false: there is none, or it is too long. */
static bool next_line(FILE *f, char *line, size_t n)
{
    if (!fgets(line, (int)n, f)) {
        return false;
    }
    char *end = strchr(line, '\n');
    if (!end) {
        return false;
    }
    *end = '\0';
    return true;
}

/* "PREFIX KL KL ...", n finite numbers from 0 on, and no more. */
static bool numbers(const char *line, const char *prefix, size_t n, double *dst)
{
    size_t len = strlen(prefix);
    if (strncmp(line, prefix, len) != 0) {
        return false;
    }
    const char *at = line + len;
    for (size_t i = 0; i < n; i++) {
        char *end = NULL;
        if (*at != ' ') {
            return false;
        }
        dst[i] = strtod(at + 1, &end);
        if (end == at + 1 || !(dst[i] >= 0.0) || dst[i] > 1e6) {
            return false;
        }
        at = end;
    }
    return *at == '\0';
}

static bool read_numbers(tune *t, FILE *f, char *line, size_t n)
{
    for (int side = 0; side < SIDES; side++) {
        if (!next_line(f, line, n) ||
            !numbers(line, side == 0 ? "whole k" : "whole v", N_CODECS, t->whole[side])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < t->n_parts; i++) {
        char prefix[24];
        (void)snprintf(prefix, sizeof prefix, "%u %c", i / SIDES, i % SIDES == 0 ? 'k' : 'v');
        if (!next_line(f, line, n) || !numbers(line, prefix, 1, &t->parts[i].kl[Q3])) {
            return false;
        }
    }
    return fgetc(f) == EOF;
}

int tune_sensitivity_read(tune *t, bool *found)
{
    const char *path = t->q.s->sensitivity;
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[1024];
    char want[160];
    *found = false;
    if (!path || (!f && errno == ENOENT)) {
        return 0;
    }
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    int rc = 0;
    if (!next_line(f, line, sizeof line) || strcmp(line, FIRST_LINE) != 0) {
        rc = fail(EXIT_INPUT, "%s is no file of sensitivities", path);
    }
    (void)snprintf(want, sizeof want, "model %s", t->q.info.name);
    if (rc == 0 && (!next_line(f, line, sizeof line) || strcmp(line, want) != 0)) {
        rc = fail(EXIT_INPUT, "%s was measured with another model: \"%s\"", path, line);
    }
    write_of(t, want);
    if (rc == 0 && (!next_line(f, line, sizeof line) || strcmp(line, want) != 0)) {
        rc = fail(
            EXIT_INPUT,
            "%s was measured with another file, window, text or kind of keys: \"%s\", here \"%s\"",
            path, line, want);
    }
    if (rc == 0 && !read_numbers(t, f, line, sizeof line)) {
        rc = fail(EXIT_INPUT, "%s: not understood: \"%s\"", path, line);
    }
    (void)fclose(f);
    *found = rc == 0;
    return rc;
}
