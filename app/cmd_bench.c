/* SPDX-License-Identifier: MIT */
/* cmd_bench.c: prompt and answer speed of a model, by plan and depth.
 *
 * A case is "pp512" (a prompt of 512 tokens into an empty session), "tg64 @ d2048" (64 tokens one
 * by one after 2048 that are held) or "tg64 @ d0 x8" (the same of eight sequences, step by step; the
 * speed is that of all together), or "warm4096" (a prompt that another session has computed, up to its
 * first token: a session that shares the state by blocks). The tokens are pseudo-random: speed does
 * not depend on them. The limit of an answer is what memory allows: bytes that one token must read
 * (weights and the live codes) over the read bandwidth measured first, in this run, with the same
 * threads. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "svg.h"
#include "util.h"

#define MAX_LIST   16
#define MAX_ROWS   64u
#define MAX_REPS   1000
#define MAX_SERIES 6

typedef struct list {
    uint32_t v[MAX_LIST];
    size_t n;
} list;

typedef struct bench {
    settings *s;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_model_info info;
    kvs_plan *plan;
    kvs_session *session;
    kvs_batch *batch;           /* where several rows are asked for */
    kvs_session *row[MAX_ROWS]; /* row[0] is session */
    list prompts, warm, predicts, depths, rows;
    int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
    uint32_t n_threads;
    double bandwidth; /* bytes/s */
    double times[MAX_REPS];
    const char *kv;   /* NULL: the options say */
    const char *name; /* of the plan, in the table */
    size_t n_rows;    /* printed */
    /* answer speed by depth, for the plot; a series is a plan */
    size_t n_series;
    char series_name[MAX_SERIES][64];
    size_t n_points[MAX_SERIES];
    double depth[MAX_SERIES][MAX_LIST];
    double speed[MAX_SERIES][MAX_LIST];
} bench;

/* ---- arguments */

static int parse_list(const char *name, const char *text, list *out)
{
    out->n = 0;
    for (const char *p = text; out->n < MAX_LIST;) {
        char *end = NULL;
        unsigned long x = strtoul(p, &end, 10);
        if (end == p || (*end != '\0' && *end != ',') || *p == '-' || x > INT32_MAX) {
            break;
        }
        out->v[out->n++] = (uint32_t)x;
        if (*end == '\0') {
            return 0;
        }
        p = end + 1;
    }
    return fail(EXIT_USAGE, "--%s: \"%s\" is not a list of at most %d numbers, as in 0,2048,7168",
                name, text, MAX_LIST);
}

static uint32_t greatest(const list *l)
{
    uint32_t m = 0;
    for (size_t i = 0; i < l->n; i++) {
        m = l->v[i] > m ? l->v[i] : m;
    }
    return m;
}

static int parse(bench *b)
{
    const settings *s = b->s;
    int rc = parse_list("n-prompt", s->prompts ? s->prompts : "512", &b->prompts);
    if (rc == 0) {
        rc = parse_list("n-warm", s->warm ? s->warm : "0", &b->warm);
    }
    if (rc == 0) {
        rc = parse_list("n-gen", s->predicts ? s->predicts : "64", &b->predicts);
    }
    if (rc == 0) {
        rc = parse_list("n-depth", s->depths ? s->depths : "0", &b->depths);
    }
    if (rc == 0) {
        rc = parse_list("rows", s->rows ? s->rows : "1", &b->rows);
    }
    for (size_t i = 0; rc == 0 && i < b->rows.n; i++) {
        if (b->rows.v[i] < 1 || b->rows.v[i] > MAX_ROWS) {
            rc = fail(EXIT_USAGE, "--rows: %u is not from 1 to %u", b->rows.v[i], MAX_ROWS);
        }
    }
    if (rc == 0 && s->output && strcmp(s->output, "md") != 0 && strcmp(s->output, "csv") != 0 &&
        strcmp(s->output, "json") != 0) {
        rc = fail(EXIT_USAGE, "--output: \"%s\" is none of md, csv, json", s->output);
    }
    return rc;
}

static int make_tokens(bench *b)
{
    size_t most = greatest(&b->prompts) > greatest(&b->predicts) ? greatest(&b->prompts)
                                                                 : greatest(&b->predicts);
    b->n_tokens = (size_t)greatest(&b->depths) + most;
    b->n_tokens = b->n_tokens > greatest(&b->warm) ? b->n_tokens : greatest(&b->warm);
    b->tokens = calloc(b->n_tokens ? b->n_tokens : 1, sizeof *b->tokens);
    if (!b->tokens) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    uint64_t x = 1;
    for (size_t i = 0; i < b->n_tokens; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        b->tokens[i] = (int32_t)((x >> 33) % b->info.n_vocab);
    }
    return 0;
}

/* ---- bandwidth */

typedef struct reader {
    const uint64_t *p;
    size_t n;
    uint64_t sum;
} reader;

static void *read_words(void *opaque)
{
    reader *r = opaque;
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= r->n; i += 8) {
        for (size_t j = 0; j < 8; j++) {
            s[j] += r->p[i + j];
        }
    }
    r->sum = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return NULL;
}

/* Best of five passes over 128 MiB a thread: what other processes leave of it. */
static int measure_bandwidth(bench *b)
{
    size_t words = (size_t)16 << 20;
    uint32_t n = b->n_threads < 64 ? b->n_threads : 64;
    uint64_t *mem = malloc(n * words * sizeof *mem);
    pthread_t threads[64];
    reader readers[64];
    if (!mem) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    memset(mem, 1, n * words * sizeof *mem);
    for (int pass = 0; pass < 5; pass++) {
        double t0 = now_seconds();
        uint32_t started = 0;
        for (uint32_t i = 0; i < n; i++) {
            readers[i] = (reader){mem + i * words, words, 0};
            started += pthread_create(&threads[started], NULL, read_words, &readers[i]) == 0;
        }
        for (uint32_t i = 0; i < started; i++) {
            (void)pthread_join(threads[i], NULL);
        }
        double rate = (double)started * (double)words * sizeof *mem / (now_seconds() - t0);
        b->bandwidth = rate > b->bandwidth ? rate : b->bandwidth;
    }
    free(mem);
    return 0;
}

/* ---- rows of the table */

/* Codes that one token at this depth reads, all layers. */
static double live_bytes(const bench *b, uint32_t depth)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < kvs_plan_n_layers(b->plan); i++) {
        const kvs_layer_spec *l = kvs_plan_layer(b->plan, i);
        if (l->kind == KVS_LAYER_RECURRENT) {
            const kvs_recurrent_spec *r = l->recurrent;
            sum += (double)r->n_heads * r->head_dim * r->state_dim * sizeof(float);
            continue;
        }
        uint64_t seen = l->window > 0 ? (uint64_t)l->window + l->sinks : depth;
        seen = seen < depth ? seen : depth;
        size_t row = kvs_codec_row_bytes(&l->k, l->k_dim) + kvs_codec_row_bytes(&l->v, l->v_dim);
        size_t center = kvs_codec_center_bytes(&l->k, l->k_dim) / KVS_CENTER_GROUP;
        row += l->kind == KVS_LAYER_ATTENTION ? center : 0;
        sum += (double)row * l->n_kv_heads * (double)seen;
    }
    return sum;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Prints one case: the median of n speeds, with their spread. limit 0: none. */
static void print_row(bench *b, const char *name, size_t n, double limit)
{
    const char *form = b->s->output ? b->s->output : "md";
    char size[32];
    qsort(b->times, n, sizeof b->times[0], by_value);
    double mid = b->times[n / 2];
    double lo = b->times[0];
    double hi = b->times[n - 1];
    if (strcmp(form, "csv") == 0) {
        (void)printf("model,%s %s kv=%s,%.3f,tok/s,", b->info.name, name, b->name, mid);
        if (limit > 0.0) {
            (void)printf("%.3f,%.4f\n", limit, mid / limit);
        } else {
            (void)puts(",");
        }
    } else if (strcmp(form, "json") == 0) {
        (void)printf("%s{\"case\":\"%s\",\"kv\":", b->n_rows ? ",\n" : "[", name);
        json_text(stdout, b->name, strlen(b->name));
        (void)printf(",\"tok_per_s\":%.3f,\"min\":%.3f,\"max\":%.3f,\"limit\":%.3f}", mid, lo, hi,
                     limit);
    } else {
        char share[24] = "";
        if (limit > 0.0) {
            (void)snprintf(share, sizeof share, "%.0f %%", 100.0 * mid / limit);
        }
        (void)printf("| %-24s | %10s | %8.2f M | CPU | %7u | %-10s | %-14s | %8.2f (%.1f..%.1f) | "
                     "%6s |\n",
                     b->info.name, format_bytes(size, sizeof size, (double)b->info.weight_bytes),
                     (double)b->info.n_params / 1e6, b->n_threads, b->name, name, mid, lo, hi,
                     share);
    }
    b->n_rows++;
    (void)fflush(stdout);
}

static void print_head(const bench *b)
{
    const char *form = b->s->output ? b->s->output : "md";
    if (strcmp(form, "csv") == 0) {
        (void)printf("bench,case,value,unit,limit,ratio\n"
                     "model,read bandwidth %u threads,%.3f,GB/s,,\n",
                     b->n_threads, b->bandwidth / 1e9);
    } else if (strcmp(form, "md") == 0) {
        (void)printf("| model | size | params | backend | threads | kv | test | t/s (min..max) | "
                     "of limit |\n| --- | ---: | ---: | --- | ---: | --- | --- | ---: | ---: |\n");
    }
}

/* ---- measuring */

static int sync_to(const bench *b, kvs_session *session, size_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_session_sync(session, b->tokens, n, NULL, &err);
    if (st == KVS_E_CANCELLED) {
        return interrupted();
    }
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, "--ctx-size sets the context");
}

static int on_progress(void *user, size_t done, size_t total)
{
    (void)user;
    (void)done;
    (void)total;
    return interrupted() != 0;
}

static int measure_prompt(bench *b, uint32_t n)
{
    char name[48];
    for (uint32_t r = 0; r < b->s->repetitions; r++) {
        int rc = sync_to(b, b->session, 0);
        double t0 = now_seconds();
        rc = rc == 0 ? sync_to(b, b->session, n) : rc;
        if (rc != 0) {
            return rc;
        }
        b->times[r] = n / (now_seconds() - t0);
    }
    (void)snprintf(name, sizeof name, "pp%u", n);
    print_row(b, name, b->s->repetitions, 0.0);
    return 0;
}

/* The prompt in a session of its own; of the first one only what it leaves matters. */
static int measure_lent(bench *b, const kvs_session_opts *o, uint32_t n)
{
    char name[48];
    kvs_err err = {KVS_OK, 0, "", ""};
    for (uint32_t r = 0; r <= b->s->repetitions; r++) {
        kvs_session *session = NULL;
        kvs_status st = kvs_session_new(b->ctx, b->model, o, &session, &err);
        if (st != KVS_OK) {
            return fail_err(EXIT_FAILED, st, &err, NULL);
        }
        double t0 = now_seconds();
        int rc = sync_to(b, session, n);
        if (r > 0) {
            b->times[r - 1] = n / (now_seconds() - t0);
        }
        kvs_session_free(session);
        if (rc != 0) {
            return rc;
        }
    }
    (void)snprintf(name, sizeof name, "warm%u", n);
    print_row(b, name, b->s->repetitions, 0.0);
    return 0;
}

static int measure_warm(bench *b, uint32_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_prefix_cache_opts co = KVS_PREFIX_CACHE_OPTS_INIT;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    if (kvs_plan_kv_block(b->plan) == 0) {
        return fail(EXIT_USAGE, "--n-warm: sessions share blocks; give a paged plan, as in --kv "
                                "paged:q8");
    }
    co.plan = b->plan;
    o.plan = b->plan;
    o.block = block_of(b->s, b->plan);
    o.progress = on_progress;
    kvs_status st = kvs_prefix_cache_new(b->ctx, b->model, &co, &o.prefix_cache, &err);
    int rc = st == KVS_OK ? measure_lent(b, &o, n) : fail_err(EXIT_FAILED, st, &err, NULL);
    kvs_prefix_cache_free(o.prefix_cache);
    return rc;
}

/* Of the newest series; plans and depths beyond what a plot can show are left out. */
static void add_point(bench *b, uint32_t depth, double speed)
{
    size_t i = b->n_series - 1;
    if (b->n_series > 0 && i < MAX_SERIES && b->n_points[i] < MAX_LIST) {
        b->depth[i][b->n_points[i]] = depth;
        b->speed[i][b->n_points[i]] = speed;
        b->n_points[i]++;
    }
}

static int plot(const bench *b)
{
    svg_series series[MAX_SERIES];
    size_t n = 0;
    for (size_t i = 0; i < b->n_series && i < MAX_SERIES; i++) {
        if (b->n_points[i] > 0) {
            series[n++] = (svg_series){b->series_name[i], SVG_LINES,   b->n_points[i],
                                       b->depth[i],       b->speed[i], NULL};
        }
    }
    svg_plot p = {"Answer speed by depth", "tokens held", "tokens a second", false, series, n};
    return n > 0 ? svg_write(b->s->svg, &p)
                 : fail(EXIT_USAGE, "--svg: no answer was measured (-n, -d)");
}

/* One token for each row. */
static kvs_status answer_step(const bench *b, uint32_t rows, const int32_t *token, kvs_err *err)
{
    if (rows == 1) {
        return kvs_session_append(b->session, token, 1, err);
    }
    const int32_t *tokens[MAX_ROWS];
    kvs_batch_step e = KVS_BATCH_STEP_INIT;
    for (uint32_t i = 0; i < rows; i++) {
        tokens[i] = token;
    }
    e.n_rows = rows;
    e.sessions = b->row;
    e.tokens = tokens;
    return kvs_batch_eval(b->batch, &e, err);
}

static int measure_answer(bench *b, uint32_t n, uint32_t depth, uint32_t rows)
{
    char name[48];
    char many[16] = "";
    kvs_err err = {KVS_OK, 0, "", ""};
    for (uint32_t r = 0; r < b->s->repetitions; r++) {
        int rc = 0;
        for (uint32_t i = 0; rc == 0 && i < rows; i++) {
            rc = sync_to(b, b->row[i], depth);
        }
        if (rc != 0) {
            return rc;
        }
        double t0 = now_seconds();
        for (uint32_t i = 0; i < n; i++) {
            kvs_status st = answer_step(b, rows, b->tokens + depth + i, &err);
            if (st != KVS_OK || interrupted()) {
                return st == KVS_OK ? interrupted() : fail_err(EXIT_FAILED, st, &err, NULL);
            }
        }
        b->times[r] = (double)n * rows / (now_seconds() - t0);
    }
    if (rows > 1) {
        (void)snprintf(many, sizeof many, " x%u", rows);
    }
    (void)snprintf(name, sizeof name, "tg%u @ d%u%s", n, depth, many);
    double bytes = (double)b->info.step_bytes + rows * live_bytes(b, depth + n / 2);
    print_row(b, name, b->s->repetitions, rows * b->bandwidth / bytes);
    if (rows == b->rows.v[0]) { /* one speed for each depth in the plot */
        add_point(b, depth, b->times[b->s->repetitions / 2]);
    }
    return 0;
}

static int make_session(bench *b)
{
    int rc = make_plan(b->s, b->ctx, b->model, b->kv, &b->plan);
    if (rc != 0) {
        return rc;
    }
    char line[256];
    for (uint32_t i = 0; kvs_plan_line(b->plan, i, line, sizeof line) > 0; i++) {
        note(b->s, "kv: %s", line);
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = b->plan;
    o.block = block_of(b->s, b->plan);
    o.progress = on_progress;
    uint32_t rows = greatest(&b->rows);
    kvs_status st = KVS_OK;
    if (rows > 1) {
        kvs_batch_opts bo = KVS_BATCH_OPTS_INIT;
        bo.max_rows = rows;
        bo.max_tokens = o.block > rows ? o.block : 0;
        bo.n_ctx = kvs_plan_n_ctx(b->plan);
        st = kvs_batch_new(b->ctx, b->model, &bo, &b->batch, &err);
    }
    for (uint32_t i = 0; st == KVS_OK && i < rows; i++) {
        st = kvs_session_new(b->ctx, b->model, &o, &b->row[i], &err);
        o.batch = b->batch; /* the first one has activations of its own, for long prompts */
    }
    b->session = b->row[0];
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

static int measure_answers(bench *b, uint32_t depth)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < b->predicts.n; i++) {
        for (size_t r = 0; rc == 0 && r < b->rows.n && b->predicts.v[i] > 0; r++) {
            rc = measure_answer(b, b->predicts.v[i], depth, b->rows.v[r]);
        }
    }
    return rc;
}

static int measure_plan(bench *b)
{
    if (b->n_series < MAX_SERIES) {
        (void)snprintf(b->series_name[b->n_series], sizeof b->series_name[0], "%s", b->name);
        b->n_series++;
    }
    int rc = make_session(b);
    for (size_t i = 0; rc == 0 && i < b->prompts.n; i++) {
        rc = b->prompts.v[i] > 0 ? measure_prompt(b, b->prompts.v[i]) : 0;
    }
    for (size_t i = 0; rc == 0 && i < b->warm.n; i++) {
        rc = b->warm.v[i] > 0 ? measure_warm(b, b->warm.v[i]) : 0;
    }
    for (size_t d = 0; rc == 0 && d < b->depths.n; d++) {
        rc = measure_answers(b, b->depths.v[d]);
    }
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        kvs_session_free(b->row[i]);
        b->row[i] = NULL;
    }
    kvs_batch_free(b->batch);
    b->batch = NULL;
    kvs_plan_free(b->plan);
    b->session = NULL;
    b->plan = NULL;
    return rc;
}

/* The plans of --kv "f16,q8,q4", one after another. */
static int measure_plans(bench *b)
{
    char kv[64];
    const char *p = b->s->kv ? b->s->kv : "f16";
    if (strncmp(p, "layers:", 7) == 0 || b->s->kv_bits > 0) {
        b->kv = b->s->kv;
        b->name = b->s->kv ? b->s->kv : "kv-bits";
        return measure_plan(b);
    }
    for (int rc = 0; rc == 0;) {
        size_t len = strcspn(p, ",");
        if (len >= sizeof kv) {
            return fail(EXIT_USAGE, "--kv: \"%s\" is too long", p);
        }
        memcpy(kv, p, len);
        kv[len] = '\0';
        b->kv = kv;
        b->name = kv;
        rc = measure_plan(b);
        if (rc != 0 || p[len] == '\0') {
            return rc;
        }
        p += len + 1;
    }
    return 0;
}

int cmd_bench(settings *s)
{
    static bench b;
    b.s = s;
    b.info = (kvs_model_info)KVS_MODEL_INFO_INIT;
    catch_signals();
    int rc = parse(&b);
    if (rc == 0) {
        rc = check_writable(s->svg);
    }
    if (rc == 0) {
        rc = make_ctx(s, &b.ctx);
    }
    if (rc == 0) {
        kvs_ctx_stats st = KVS_CTX_STATS_INIT;
        (void)kvs_ctx_get_stats(b.ctx, &st);
        b.n_threads = st.n_threads;
        rc = open_model(s, b.ctx, 0, &b.model);
    }
    if (rc == 0) {
        (void)kvs_model_get_info(b.model, &b.info);
        rc = make_tokens(&b);
    }
    if (rc == 0) {
        rc = measure_bandwidth(&b);
    }
    if (rc == 0) {
        print_head(&b);
        rc = measure_plans(&b);
    }
    if (rc == 0 && s->svg) {
        rc = plot(&b);
    }
    if (b.n_rows > 0 && s->output && strcmp(s->output, "json") == 0) {
        (void)puts("]");
    }
    free(b.tokens);
    kvs_model_close(b.model);
    kvs_ctx_free(b.ctx);
    return rc;
}
