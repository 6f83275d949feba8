/* SPDX-License-Identifier: MIT */
/* cmd_cache_sim.c: kvstate cache simulate: what a cache of so many blocks would have hit on a trace.
 *
 * A trace has one JSON object a line with "hash_ids": the blocks of a prompt in order, where an id
 * stands for a block after one prefix (Mooncake's format). Each policy meets the requests in order.
 * A block counts as a hit if it, and all before it, are there when its request comes. As in the prefix
 * index a block stays while one that goes on from it is there, and the blocks of a request are used
 * from the last to the first. The bound evicts what is needed again last, which no policy can know. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "kvstate/retain.h"
#include "svg.h"
#include "util.h"

#define MAX_CAPS    16
#define N_POLICIES  4
#define LINE_MOST   ((size_t)1 << 24)
#define BLOCKS_MOST 100000000u

static const char *const policy_names[N_POLICIES] = {"lru", "cost", "density", "bound"};

typedef struct sim_trace {
    uint32_t *block;  /* [n]: numbered densely */
    uint32_t *next;   /* [n]: place of the next use of the same block, UINT32_MAX: none */
    uint32_t *parent; /* [n_blocks]: the block before it, a smaller number; UINT32_MAX: none */
    uint32_t *length; /* [n_requests] */
    size_t n;
    size_t cap;
    size_t n_requests;
    size_t cap_requests;
    uint32_t n_blocks;
    long long *id; /* open addressing while reading: [n_slots] */
    uint32_t *number;
    size_t n_slots;
} sim_trace;

static void trace_free(sim_trace *t)
{
    free(t->block);
    free(t->next);
    free(t->parent);
    free(t->length);
    free(t->id);
    free(t->number);
}

/* -- reading */

static bool grow(void **p, size_t *cap, size_t n, size_t each)
{
    if (n < *cap) {
        return true;
    }
    size_t want = *cap ? *cap * 2 : 1024;
    void *more = realloc(*p, want * each);
    if (!more) {
        return false;
    }
    *p = more;
    *cap = want;
    return true;
}

static size_t slot_of(const sim_trace *t, long long id)
{
    size_t i = (size_t)((unsigned long long)id * 0x9e3779b97f4a7c15u >> 24) & (t->n_slots - 1);
    while (t->number[i] != UINT32_MAX && t->id[i] != id) {
        i = (i + 1) & (t->n_slots - 1);
    }
    return i;
}

static bool grow_slots(sim_trace *t)
{
    sim_trace more = *t;
    more.n_slots = t->n_slots ? t->n_slots * 2 : 4096;
    more.id = calloc(more.n_slots, sizeof *more.id);
    more.number = malloc(more.n_slots * sizeof *more.number);
    if (!more.id || !more.number) {
        free(more.id);
        free(more.number);
        return false;
    }
    memset(more.number, 0xff, more.n_slots * sizeof *more.number);
    for (size_t i = 0; i < t->n_slots; i++) {
        if (t->number[i] != UINT32_MAX) {
            size_t at = slot_of(&more, t->id[i]);
            more.id[at] = t->id[i];
            more.number[at] = t->number[i];
        }
    }
    free(t->id);
    free(t->number);
    *t = more;
    return true;
}

static bool add_block(sim_trace *t, long long id)
{
    if ((t->n_blocks * (size_t)2 >= t->n_slots && !grow_slots(t)) ||
        !grow((void **)&t->block, &t->cap, t->n, sizeof *t->block)) {
        return false;
    }
    size_t at = slot_of(t, id);
    if (t->number[at] == UINT32_MAX) {
        t->id[at] = id;
        t->number[at] = t->n_blocks++;
    }
    t->block[t->n++] = t->number[at];
    return true;
}

/* The array of "hash_ids" in one line; EXIT_INPUT where there is none or it is malformed. */
static int read_line(sim_trace *t, const char *line, const char *path, size_t number)
{
    const char *p = strstr(line, "\"hash_ids\"");
    p = p ? p + strlen("\"hash_ids\"") : "";
    p += strspn(p, " \t");
    bool ok = *p == ':';
    p += ok;
    p += strspn(p, " \t");
    ok = ok && *p == '[';
    p += ok;
    p += strspn(p, " \t");
    size_t begin = t->n;
    while (ok && *p != ']') {
        char *end = NULL;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        ok = end != p && errno == 0 && t->n < BLOCKS_MOST;
        if (ok && !add_block(t, id)) {
            return fail(EXIT_MEMORY, "out of memory");
        }
        p = end + strspn(end, " \t");
        bool comma = *p == ',';
        p += comma;
        p += strspn(p, " \t");
        ok = ok && (comma ? *p != ']' : *p == ']');
    }
    if (!ok) {
        return fail(EXIT_INPUT, "%s: line %zu has no list \"hash_ids\" of whole numbers", path,
                    number);
    }
    if (t->n == begin) {
        return 0; /* a request without blocks */
    }
    if (!grow((void **)&t->length, &t->cap_requests, t->n_requests, sizeof *t->length)) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    t->length[t->n_requests++] = (uint32_t)(t->n - begin);
    return 0;
}

static int read_lines(sim_trace *t, FILE *in, const char *path)
{
    char *line = NULL;
    size_t cap = 0;
    size_t number = 0;
    int rc = 0;
    for (;;) {
        errno = 0;
        ssize_t n = getline(&line, &cap, in);
        if (n < 0) {
            rc = ferror(in) ? fail(EXIT_INPUT, "%s: %s", path, strerror(errno)) : 0;
            break;
        }
        number++;
        if ((size_t)n > LINE_MOST || strlen(line) != (size_t)n) {
            rc = fail(EXIT_INPUT,
                      "%s: line %zu is no text (compressed? zcat FILE | kvstate cache "
                      "simulate -)",
                      path, number);
            break;
        }
        if (line[strspn(line, " \t\r\n")] == '\0') {
            continue;
        }
        rc = read_line(t, line, path, number);
        if (rc != 0) {
            break;
        }
    }
    free(line);
    if (rc == 0 && t->n_requests == 0) {
        rc = fail(EXIT_INPUT, "%s: no requests", path);
    }
    return rc;
}

/* next and parent. Where an id follows different blocks its first place counts; blocks are numbered
 * as they come, so there are no circles. */
static int link_blocks(sim_trace *t)
{
    t->next = malloc(t->n * sizeof *t->next);
    t->parent = malloc(t->n_blocks * sizeof *t->parent);
    uint32_t *seen = malloc(t->n_blocks * sizeof *seen);
    if (!t->next || !t->parent || !seen) {
        free(seen);
        return fail(EXIT_MEMORY, "out of memory");
    }
    memset(seen, 0xff, t->n_blocks * sizeof *seen);
    for (size_t i = t->n; i-- > 0;) {
        t->next[i] = seen[t->block[i]];
        seen[t->block[i]] = (uint32_t)i;
    }
    size_t at = 0;
    for (size_t i = 0; i < t->n_requests; i++) {
        for (uint32_t k = 0; k < t->length[i]; k++, at++) {
            if (seen[t->block[at]] == at) {
                t->parent[t->block[at]] = k > 0 ? t->block[at - 1] : UINT32_MAX;
            }
        }
    }
    free(seen);
    return 0;
}

static int trace_read(sim_trace *t, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *in = standard ? stdin : fopen(path, "re");
    if (!in) {
        return fail(EXIT_INPUT, "%s: %s", path, strerror(errno));
    }
    int rc = read_lines(t, in, path);
    if (!standard) {
        (void)fclose(in);
    }
    if (rc != 0) {
        return rc;
    }
    if (t->n == 0 || t->n_blocks == 0) {
        return fail(EXIT_INPUT, "%s: no request names a block", path);
    }
    return link_blocks(t);
}

/* -- one policy at one capacity */

typedef struct sim {
    const sim_trace *t;
    kvs_retain *r;
    kvs_retain_id *id;  /* [n_blocks], 0: not there */
    uint32_t *children; /* [n_blocks]: there */
    size_t at;          /* of the use that is being told */
    uint64_t hits;
} sim;

/* What is needed again last goes first. */
static double next_use(void *user, const kvs_retain_info *info)
{
    const sim *s = user;
    (void)info;
    return s->t->next[s->at] == UINT32_MAX ? -1e300 : -(double)s->t->next[s->at];
}

/* What an engine knows when it stores blocks: which one is the last (probably partial), whether the
 * prompt begins like an earlier one, and how much of it was never seen. */
static uint32_t hint_of(uint32_t k, uint32_t length, uint32_t known)
{
    uint32_t fresh = length - known;
    return (k + 1 == length ? 1u : 0u) | (known > 1 ? 2u : 0u) |
           (fresh > 32 ? 8u : (fresh > 8 ? 4u : 0u));
}

/* Blocks from the first that the policy has or remembers. */
static uint32_t known_of(const sim *s, const uint32_t *block, uint32_t length)
{
    uint32_t k = 0;
    while (k < length && kvs_retain_knows(s->r, block[k] + UINT64_C(1)) >= KVS_OK) {
        k++;
    }
    return k;
}

/* The block came or went: its parent is pinned while it has children that are there. */
static void count_child(sim *s, uint32_t block, bool came)
{
    uint32_t parent = s->t->parent[block];
    if (parent == UINT32_MAX) {
        return;
    }
    bool first = s->children[parent] == (came ? 0u : 1u);
    s->children[parent] += came ? 1u : UINT32_MAX;
    if (first && s->id[parent]) {
        (void)(came ? kvs_retain_pin : kvs_retain_unpin)(s->r, s->id[parent]);
    }
}

static kvs_status touch(sim *s, uint32_t block, uint32_t hint, uint32_t capacity, kvs_err *err)
{
    kvs_retain_item item = KVS_RETAIN_ITEM_INIT;
    kvs_retain_stats st = KVS_RETAIN_STATS_INIT;
    if (s->id[block]) {
        return kvs_retain_use(s->r, s->id[block], 1, hint);
    }
    item.key = block + UINT64_C(1);
    item.bytes = 1;
    item.cost = 1;
    item.hint = hint;
    kvs_status rc = kvs_retain_add(s->r, &item, &s->id[block], err);
    if (rc != KVS_OK) {
        return rc;
    }
    if (s->children[block] > 0) {
        (void)kvs_retain_pin(s->r, s->id[block]);
    }
    count_child(s, block, true);
    (void)kvs_retain_get_stats(s->r, &st);
    if (st.items > capacity) {
        kvs_retain_info info = KVS_RETAIN_INFO_INIT;
        kvs_retain_id victim = 0;
        (void)kvs_retain_choose(s->r, &victim);
        (void)kvs_retain_get_info(s->r, victim, &info);
        (void)kvs_retain_drop(s->r, victim, KVS_RETAIN_EVICTED);
        s->id[info.key - 1] = 0;
        count_child(s, (uint32_t)(info.key - 1), false);
    }
    return KVS_OK;
}

static kvs_status request(sim *s, size_t begin, uint32_t length, uint32_t capacity, kvs_err *err)
{
    const uint32_t *block = s->t->block + begin;
    uint32_t known = known_of(s, block, length);
    uint32_t there = 0;
    while (there < length && s->id[block[there]]) {
        there++;
    }
    s->hits += there;
    kvs_status rc = KVS_OK;
    for (uint32_t k = there; rc == KVS_OK && k-- > 0;) { /* first: they can't go then */
        s->at = begin + k;
        rc = touch(s, block[k], hint_of(k, length, known), capacity, err);
    }
    for (uint32_t k = length; rc == KVS_OK && k-- > there;) {
        s->at = begin + k;
        rc = touch(s, block[k], hint_of(k, length, known), capacity, err);
    }
    return rc;
}

static int run_policy(const sim_trace *t, kvs_ctx *ctx, uint32_t policy, uint32_t capacity,
                      double *rate)
{
    static const kvs_retain_policy which[N_POLICIES] = {KVS_RETAIN_LRU, KVS_RETAIN_COST,
                                                        KVS_RETAIN_DENSITY, KVS_RETAIN_CUSTOM};
    kvs_retain_opts o = KVS_RETAIN_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    sim s = {t, NULL, NULL, NULL, 0, 0};
    size_t n = t->n_blocks > 0 ? t->n_blocks : 1;
    s.id = calloc(n, sizeof *s.id);
    s.children = calloc(n, sizeof *s.children);
    o.policy = which[policy];
    o.score = next_use;
    o.user = &s;
    kvs_status st = s.id && s.children ? kvs_retain_new(ctx, &o, &s.r, &err) : KVS_E_NOMEM;
    size_t at = 0;
    int rc = 0;
    for (size_t i = 0; st == KVS_OK && i < t->n_requests; i++) {
        st = request(&s, at, t->length[i], capacity, &err);
        at += t->length[i];
        rc = interrupted();
        if (rc != 0) {
            break;
        }
    }
    *rate = (double)s.hits / (double)t->n;
    kvs_retain_free(s.r);
    free(s.id);
    free(s.children);
    return st == KVS_OK ? rc : fail_err(EXIT_FAILED, st, &err, NULL);
}

/* -- report */

typedef struct result {
    uint32_t caps[MAX_CAPS];
    uint32_t n_caps;
    double rate[N_POLICIES][MAX_CAPS];
} result;

static int read_caps(const char *text, result *r)
{
    const char *p = text ? text : "1000,3000,10000,30000,50000";
    while (*p) {
        char *end = NULL;
        errno = 0;
        unsigned long v = strtoul(p, &end, 10);
        if (!isdigit((unsigned char)*p) || errno || v == 0 || v > BLOCKS_MOST ||
            (*end && *end != ',') || r->n_caps == MAX_CAPS) {
            return fail(EXIT_USAGE, "--blocks: \"%s\" is not a list of at most %d numbers", text,
                        MAX_CAPS);
        }
        r->caps[r->n_caps++] = (uint32_t)v;
        p = *end ? end + 1 : end;
    }
    return 0;
}

static void print_json(const sim_trace *t, const result *r, const char *path)
{
    (void)fputs("{\"trace\":", stdout);
    json_text(stdout, path, strlen(path));
    (void)printf(",\"requests\":%zu,\"uses\":%zu,\"blocks\":%u,\"ideal\":%.6f,\"capacity\":[",
                 t->n_requests, t->n, t->n_blocks, 1.0 - (double)t->n_blocks / (double)t->n);
    for (uint32_t c = 0; c < r->n_caps; c++) {
        (void)printf("%s%u", c ? "," : "", r->caps[c]);
    }
    (void)fputs("]", stdout);
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        (void)printf(",\"%s\":[", policy_names[p]);
        for (uint32_t c = 0; c < r->n_caps; c++) {
            (void)printf("%s%.6f", c ? "," : "", r->rate[p][c]);
        }
        (void)fputs("]", stdout);
    }
    (void)puts("}");
}

static void print_table(const sim_trace *t, const result *r)
{
    (void)printf("%zu requests, %zu blocks, %u of them distinct; at best %.2f %% could be hit\n",
                 t->n_requests, t->n, t->n_blocks,
                 100.0 * (1.0 - (double)t->n_blocks / (double)t->n));
    (void)puts("hits in percent of all blocks\n");
    (void)printf("%9s", "capacity");
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        (void)printf("  %7s", policy_names[p]);
    }
    (void)puts("");
    for (uint32_t c = 0; c < r->n_caps; c++) {
        (void)printf("%9u", r->caps[c]);
        for (uint32_t p = 0; p < N_POLICIES; p++) {
            (void)printf("  %7.2f", 100.0 * r->rate[p][c]);
        }
        (void)puts("");
    }
}

static int plot(const result *r, const char *path)
{
    double x[MAX_CAPS];
    double y[N_POLICIES][MAX_CAPS];
    svg_series series[N_POLICIES];
    for (uint32_t p = 0; p < N_POLICIES; p++) {
        for (uint32_t c = 0; c < r->n_caps; c++) {
            x[c] = (double)r->caps[c];
            y[p][c] = 100.0 * r->rate[p][c];
        }
        series[p] = (svg_series){policy_names[p], SVG_LINES, r->n_caps, x, y[p], NULL};
    }
    svg_plot plot = {
        "Blocks hit by capacity", "blocks of capacity", "hit rate, %", false, series, N_POLICIES};
    return svg_write(path, &plot);
}

int cmd_cache_simulate(settings *s, const char *path)
{
    static result r;
    sim_trace t = {NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, 0};
    kvs_ctx *ctx = NULL;
    int rc = read_caps(s->blocks, &r);
    rc = rc == 0 ? trace_read(&t, path) : rc;
    rc = rc == 0 ? make_ctx(s, &ctx) : rc;
    for (uint32_t p = 0; rc == 0 && p < N_POLICIES; p++) {
        for (uint32_t c = 0; rc == 0 && c < r.n_caps; c++) {
            rc = run_policy(&t, ctx, p, r.caps[c], &r.rate[p][c]);
        }
    }
    if (rc == 0 && s->json) {
        print_json(&t, &r, path);
    } else if (rc == 0) {
        print_table(&t, &r);
    }
    rc = rc == 0 && s->svg ? plot(&r, s->svg) : rc;
    kvs_ctx_free(ctx);
    trace_free(&t);
    return rc;
}
