/* SPDX-License-Identifier: MIT */
/* plan_parse.c: codec names, pairs and layers files (plan_parse.h). Reads text, decides nothing
 * about layouts and checks no geometry; that is plan.c's. */
#include "engine/plan_parse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NAME   64u
#define FILE_LIMIT (1u << 20)

void kvs__plan_put(kvs__plan_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    size_t at = t->used < t->cap ? t->used : t->cap;
    int len = vsnprintf(t->dst ? t->dst + at : NULL, t->cap - at, fmt, ap);
    va_end(ap);
    t->used += len > 0 ? (size_t)len : 0;
}

/* ---- names */

/* A decimal number of at most 9 digits; false if there is none. */
static bool parse_number(const char **text, uint32_t *out)
{
    uint32_t v = 0;
    size_t n = 0;
    while (n < 9 && (*text)[n] >= '0' && (*text)[n] <= '9') {
        v = v * 10 + (uint32_t)((*text)[n] - '0');
        n++;
    }
    *text += n;
    *out = v;
    return n > 0;
}

/* llama.cpp's block types by what we store instead: the same bits a code, and the group that comes
 * nearest in bits a value. Its blocks of 32 carry an f16 scale (x_0) or scale and minimum (x_1). */
typedef struct alias {
    const char *name;
    uint8_t bits;
    uint16_t group;
} alias;

static const alias aliases[] = {
    {"q8_0", 8, 64}, {"q5_0", 5, 64}, {"q5_1", 5, 32},
    {"q4_0", 4, 64}, {"q4_1", 4, 32}, {"iq4_nl", 4, 64},
};

static void note_alias(kvs__plan_parser *ps, const alias *a, const kvs_codec *c)
{
    char name[48];
    char text[sizeof ps->notes->text[0]];
    (void)kvs_codec_name(c, name, sizeof name);
    (void)snprintf(text, sizeof text, "%s is stored as %s (group %u, rotated)", a->name, name,
                   c->group);
    for (uint32_t i = 0; i < ps->notes->n; i++) {
        if (strcmp(ps->notes->text[i], text) == 0) {
            return;
        }
    }
    if (ps->notes->n < KVS_COUNT(ps->notes->text)) {
        memcpy(ps->notes->text[ps->notes->n++], text, sizeof text);
    }
}

static bool names_group(const char *name)
{
    return strchr(name, ':') != NULL;
}

kvs_status kvs__plan_parse_codec(kvs__plan_parser *ps, const char *name, kvs_codec *out,
                                 kvs_err *err)
{
    for (size_t i = 0; i < KVS_COUNT(aliases); i++) {
        if (strcmp(name, aliases[i].name) == 0) {
            kvs_codec c = KVS_CODEC_AFFINE(aliases[i].bits, aliases[i].group, KVS_F16);
            c.rotate = KVS_ROTATED;
            c.group = ps->group && aliases[i].group == 64 ? (uint16_t)ps->group : c.group;
            note_alias(ps, &aliases[i], &c);
            *out = c;
            return KVS_OK;
        }
    }
    kvs_codec c;
    kvs_err e = {KVS_OK, 0, "", ""};
    if (kvs_codec_parse(name, &c, &e) != KVS_OK) {
        bool known = strstr(e.msg, "is no codec") == NULL; /* but its bits or group are not */
        return kvs__fail(err, KVS_E_INVAL, "engine", "\"%.60s\" names no codec%s%.150s", name,
                         known ? ": " : "; f32, f16, bf16, q8, q6, q5, q4, q3, q2, affine4:32 do",
                         known ? e.msg : "");
    }
    if (ps->group && c.bits > 0 && !names_group(name)) {
        c.group = (uint16_t)ps->group;
    }
    *out = c;
    return KVS_OK;
}

kvs_status kvs__plan_parse_paged(const char **kv, uint32_t *block, kvs_err *err)
{
    const char *at = *kv + 5;
    uint32_t n = 64;
    if (strncmp(*kv, "paged", 5) != 0) {
        return KVS_OK;
    }
    if (*at == '/') {
        at++;
        if (!parse_number(&at, &n) || n == 0) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "\"%.60s\": no block size after the /",
                             *kv);
        }
    }
    if (*at != '\0' && (*at != ':' || at[1] == '\0')) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "\"%.60s\": no plan after \"paged\"", *kv);
    }
    *kv = *at == ':' ? at + 1 : "f16";
    *block = n;
    return KVS_OK;
}

/* X of "kXvY": bits of a q codec, or 16 and 32 for f16 and f32. */
static kvs_status parse_bits(kvs__plan_parser *ps, uint32_t bits, kvs_codec *out, kvs_err *err)
{
    char name[16];
    (void)snprintf(name, sizeof name, "%c%u", bits >= 16 ? 'f' : 'q', bits);
    return kvs__plan_parse_codec(ps, name, out, err);
}

kvs_status kvs__plan_parse_pair(kvs__plan_parser *ps, const char *text, kvs_codec *k, kvs_codec *v,
                                kvs_err *err)
{
    uint32_t kb = 0;
    uint32_t vb = 0;
    const char *at = text + 1;
    if (text[0] == 'k' && parse_number(&at, &kb) && *at++ == 'v' && parse_number(&at, &vb) &&
        *at == '\0') {
        kvs_status st = parse_bits(ps, kb, k, err);
        return st == KVS_OK ? parse_bits(ps, vb, v, err) : st;
    }
    char name[MAX_NAME];
    const char *plus = strchr(text, '+');
    if (!plus) {
        kvs_status st = kvs__plan_parse_codec(ps, text, k, err);
        *v = *k;
        return st;
    }
    size_t len = (size_t)(plus - text);
    if (len >= sizeof name) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "\"%.80s\" is no codec", text);
    }
    memcpy(name, text, len);
    name[len] = '\0';
    kvs_status st = kvs__plan_parse_codec(ps, name, k, err);
    return st == KVS_OK ? kvs__plan_parse_codec(ps, plus + 1, v, err) : st;
}

/* ---- layers files */

typedef struct line {
    kvs__plan_parser *ps;
    const char *path; /* for messages */
    const char *ends; /* characters that end a line */
    uint32_t number;
    bool *named; /* [n_layers] */
} line;

static kvs_status line_fail(const line *l, kvs_err *err, const char *what, const char *text)
{
    return kvs__fail(err, KVS_E_INVAL, "engine", "%.100s:%u: %s \"%.60s\"", l->path, l->number,
                     what, text);
}

/* Marks the layers of "*", "3", "0-4,7" in set; false if it can't be read or names no layer. */
static bool parse_layers(const line *l, const char *text, bool *set)
{
    if (strcmp(text, "*") == 0) {
        memset(set, 1, l->ps->n_layers);
        return true;
    }
    for (;;) {
        uint32_t a = 0;
        if (!parse_number(&text, &a)) {
            return false;
        }
        uint32_t b = a;
        if (*text == '-') {
            text++;
            if (!parse_number(&text, &b)) {
                return false;
            }
        }
        if (a > b || b >= l->ps->n_layers) {
            return false;
        }
        memset(set + a, 1, b - a + 1);
        if (*text == '\0') {
            return true;
        }
        if (*text++ != ',') {
            return false;
        }
    }
}

static kvs_status parse_setting(const line *l, const char *word, kvs_layer_spec *s, kvs_err *err)
{
    static const char *const keys[] = {"window=", "sinks=", "start="};
    uint32_t *const fields[] = {&s->window, &s->sinks, &s->dense_until};
    for (size_t i = 0; i < KVS_COUNT(keys); i++) {
        size_t len = strlen(keys[i]);
        const char *value = word + len;
        uint32_t x = 0;
        if (strncmp(word, keys[i], len) != 0 || !parse_number(&value, &x) || *value != '\0') {
            continue;
        }
        if (*fields[i] != 0) {
            return line_fail(l, err, "a second time:", word);
        }
        if (fields[i] == &s->dense_until && x > 0 && s->k.bits == 0 && s->v.bits == 0) {
            return line_fail(l, err, "nothing is quantised, which would begin at", word);
        }
        *fields[i] = x;
        return KVS_OK;
    }
    return line_fail(l, err, "no setting:", word);
}

/* Applies one line: words[0] layers, words[1] codec, the rest settings. */
static kvs_status parse_words(const line *l, char **words, size_t n, kvs_err *err)
{
    uint32_t n_layers = l->ps->n_layers;
    bool *set = kvs__calloc(l->ps->ctx, n_layers, sizeof *set);
    if (!set) {
        return kvs__nomem(err, "engine", n_layers);
    }
    kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
    kvs_status st = KVS_OK;
    kvs_err e = {KVS_OK, 0, "", ""};
    if (!parse_layers(l, words[0], set)) {
        st = line_fail(l, err, "no layers of this model:", words[0]);
    } else if (n < 2) {
        st = line_fail(l, err, "no codec after", words[0]);
    } else if (kvs__plan_parse_pair(l->ps, words[1], &s.k, &s.v, &e) != KVS_OK) {
        st = line_fail(l, err, e.msg, words[1]);
    }
    for (size_t i = 2; st == KVS_OK && i < n; i++) {
        st = parse_setting(l, words[i], &s, err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < n_layers; i++) {
        kvs_layer_spec *d = &l->ps->layers[i];
        if (!set[i]) {
            continue;
        }
        l->named[i] = true;
        d->k = s.k;
        d->v = s.v;
        d->dense_until = s.dense_until;
        /* a model's own window is part of its arithmetic; a line may only add one */
        uint32_t own = kvs_model_window(l->ps->model, i);
        d->sinks = own == 0 ? s.sinks : 0;
        d->window = own == 0 ? s.window : own;
    }
    kvs__free(l->ps->ctx, set, n_layers * sizeof *set);
    return st;
}

static kvs_status parse_line(const line *l, char *text, kvs_err *err)
{
    char *words[8];
    size_t n = 0;
    char *hash = strchr(text, '#');
    if (hash) {
        *hash = '\0';
    }
    char *save = NULL;
    for (char *w = strtok_r(text, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (n == KVS_COUNT(words)) {
            return line_fail(l, err, "too many words from", w);
        }
        words[n++] = w;
    }
    return n == 0 ? KVS_OK : parse_words(l, words, n, err);
}

/* Lines end with a newline or, so that a plan fits on a command line, a semicolon. */
static kvs_status parse_text(line *l, char *text, kvs_err *err)
{
    kvs_status st = KVS_OK;
    while (st == KVS_OK && text) {
        char *end = strpbrk(text, l->ends);
        if (end) {
            *end++ = '\0';
        }
        l->number++;
        st = parse_line(l, text, err);
        text = end;
    }
    for (uint32_t i = 0; st == KVS_OK && i < l->ps->n_layers; i++) {
        if (!l->named[i]) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "%.100s names no codec for layer %u",
                             l->path, i);
        }
    }
    return st;
}

/* Reads the whole file into text[FILE_LIMIT]. */
static kvs_status read_file(const char *path, char *text, kvs_err *err)
{
    FILE *f = fopen(path, "r");
    if (!f) {
        return kvs__fail_errno(err, KVS_E_IO, errno, "engine", "%.100s", path);
    }
    size_t n = fread(text, 1, FILE_LIMIT - 1, f);
    bool bad = ferror(f) != 0;
    bool more = !bad && fgetc(f) != EOF;
    (void)fclose(f);
    if (bad || more) {
        return kvs__fail(err, bad ? KVS_E_IO : KVS_E_LIMIT, "engine", "%.100s %s", path,
                         bad ? "can't be read" : "is above 1 MiB");
    }
    text[n] = '\0';
    if (strlen(text) != n) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%.100s: byte %zu is NUL, this is no text",
                         path, strlen(text));
    }
    return KVS_OK;
}

static kvs_status copy_text(const char *from, char *text, kvs_err *err)
{
    size_t n = strlen(from);
    if (n >= FILE_LIMIT) {
        return kvs__fail(err, KVS_E_LIMIT, "engine", "a plan of %zu bytes is above 1 MiB", n);
    }
    memcpy(text, from, n + 1);
    return KVS_OK;
}

/* source: the path of a file, or the lines themselves. */
static kvs_status parse_lines(kvs__plan_parser *ps, const char *source, bool is_file, kvs_err *err)
{
    char *text = kvs__alloc(ps->ctx, FILE_LIMIT);
    bool *named = kvs__calloc(ps->ctx, ps->n_layers, sizeof *named);
    kvs_status st = KVS_OK;
    if (!text || !named) {
        st = kvs__nomem(err, "engine", FILE_LIMIT);
    } else {
        line l = {ps, is_file ? source : "layers=", is_file ? "\n" : "\n;", 0, named};
        st = is_file ? read_file(source, text, err) : copy_text(source, text, err);
        if (st == KVS_OK) {
            st = parse_text(&l, text, err);
        }
    }
    kvs__free(ps->ctx, text, FILE_LIMIT);
    kvs__free(ps->ctx, named, ps->n_layers * sizeof *named);
    return st;
}

kvs_status kvs__plan_parse_file(kvs__plan_parser *ps, const char *path, kvs_err *err)
{
    return parse_lines(ps, path, true, err);
}

kvs_status kvs__plan_parse_layers(kvs__plan_parser *ps, const char *lines, kvs_err *err)
{
    return parse_lines(ps, lines, false, err);
}
