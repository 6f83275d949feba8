/* SPDX-License-Identifier: MIT */
/* bench_rows: many tokens from one step, on SmolLM2.
 *
 * rows    tokens/s of 1, 4, 8 rows decoded together behind prompts of 128; with --peer also
 *         llama.cpp's llama-batched-bench on the same file, between our rounds (bar: 2.5 times)
 * verify  at depth 2048: a step of 2 .. 16 tokens of one row over a step of one (bar: 8 tokens for
 *         2 steps), and of 2 and 5 tokens of eight rows over a step of one each (bar: 5 for 2);
 *         drafts are rejected, so taking back is in it
 * draft   tokens/s with n-gram drafts over plain decoding, for a text that is edited, one drawn at a
 *         high temperature, and drafts that are never right; the tokens are compared
 *   bench_rows [--csv FILE] [--peer DIR] [--smollm2 FILE] [--rounds N] [--threads N] [--quick]
 *              [rows|verify|draft ...]
 * Figures are medians; what is compared takes turns, step by step.
 * limit: the arithmetic floor, from what this run measured of the machine: a step reads the weights
 * once and each row's state once, and multiplies every weight and what is seen for every token; it
 * takes the longer of both. Of a step over a step: the floor over the measured single one. */
#include "kvstate/engine.h"
#include "limits.h"
#include "peer.h"

#define MAX_ROWS 8u
#define MODEL    "SmolLM2-135M-Instruct.Q4_1.gguf"
#define MAX_REPS 400u

typedef struct bench {
    const char *peer;
    const char *path;
    char found[512];
    uint32_t rounds, threads;
    bool quick;
    int argc; /* cases named; none: all */
    char **argv;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_batch *batch;
    size_t n_vocab;
    kvs_model_info info;
    double read_rate; /* bytes/s */
    double fma_peak;  /* FLOP/s; 0: not known */
} bench;

static kvs_session *new_session(const bench *b)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    kvs_session *s = NULL;
    o.plan = b->plan;
    o.batch = b->batch;
    bench_check(kvs_session_new(b->ctx, b->model, &o, &s, &err), &err);
    return s;
}

/* Pseudo-random tokens of row `row` behind what it holds. */
static void fill(const bench *b, kvs_session *s, uint32_t row, size_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t *tokens = malloc(n * sizeof *tokens);
    uint64_t x = 1 + row;
    for (size_t i = 0; tokens && i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((x >> 33) % b->n_vocab);
    }
    bench_check(kvs_session_sync(s, tokens, n, NULL, &err), &err);
    free(tokens);
}

/* Least seconds of a step of n tokens of each row, every row with logits, behind `depth` tokens. All
 * weights are multiplied: those of the embedding are the logits'. */
static double floor_of(const bench *b, uint32_t rows, uint32_t n, uint32_t depth)
{
    const kvs_model_info *m = &b->info;
    double bytes = (double)m->step_bytes;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        const kvs_layer_spec *l = kvs_plan_layer(b->plan, i);
        size_t row = kvs_codec_row_bytes(&l->k, l->k_dim) + kvs_codec_row_bytes(&l->v, l->v_dim);
        bytes += (double)row * l->n_kv_heads * depth * rows;
    }
    double seen = (double)m->n_layers * m->n_heads * (m->k_dim + m->v_dim) * depth;
    double flops = 2.0 * rows * n * ((double)m->n_params + seen);
    double reading = bytes / b->read_rate;
    double computing = b->fma_peak > 0 ? flops / b->fma_peak : 0;
    return reading > computing ? reading : computing;
}

/* A ratio with its bar in the name, 0: none. */
static void bar_line(const char *what, double value, const char *unit, double limit, double bar)
{
    char text[112];
    (void)snprintf(text, sizeof text, "%s (bar %g)", what, bar);
    bench_line(bar > 0 ? text : what, value, unit, limit);
}

/* ---- rows */

#define PROMPT 128u
#define N_GEN  48u

static double decode_rows(const bench *b, kvs_session **s, uint32_t n, uint32_t steps)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    const int32_t token = 11;
    const int32_t *tokens[MAX_ROWS];
    kvs_batch_step e = KVS_BATCH_STEP_INIT;
    e.n_rows = n;
    e.sessions = s;
    e.tokens = tokens;
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = &token;
        fill(b, s[i], i, PROMPT);
    }
    double t0 = bench_now();
    for (uint32_t i = 0; i < steps; i++) {
        bench_check(kvs_batch_eval(b->batch, &e, &err), &err);
    }
    return (double)n * steps / (bench_now() - t0);
}

/* S_TG of the line for n rows; 0 where it can't be had. */
static double peer_rows(const bench *b, uint32_t n)
{
    static char out[16384];
    char exe[600];
    char rows[16];
    char threads[16];
    double first = 0;
    (void)snprintf(exe, sizeof exe, "%s/bin/llama-batched-bench", b->peer);
    (void)snprintf(rows, sizeof rows, "%u", n);
    (void)snprintf(threads, sizeof threads, "%u", b->threads);
    const char *const argv[] = {exe,   "-m",   b->path, "-c",    "4096", "-b", "2048",
                                "-ub", "512",  "-t",    threads, "-fa",  "on", "-npp",
                                "128", "-ntg", "48",    "-npl",  rows,   NULL};
    if (!b->peer || !program_output(argv, out, sizeof out, &first)) {
        return 0;
    }
    for (const char *p = out; (p = strchr(p, '|')); p++) {
        unsigned pp = 0;
        unsigned tg = 0;
        unsigned pl = 0;
        unsigned kv = 0;
        double v[4];
        if (sscanf(p, "| %u | %u | %u | %u | %lf | %lf | %lf | %lf", &pp, &tg, &pl, &kv, &v[0],
                   &v[1], &v[2], &v[3]) == 8 &&
            pl == n) {
            return v[3];
        }
    }
    return 0;
}

static void bench_decode(const bench *b)
{
    static const uint32_t rows[] = {1, 4, 8};
    double ours[3][16];
    double peer[3][16];
    kvs_session *s[MAX_ROWS];
    uint32_t rounds = b->rounds < 16 ? b->rounds : 16;
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        s[i] = new_session(b);
    }
    for (uint32_t r = 0; r < rounds; r++) {
        for (size_t i = 0; i < 3; i++) {
            ours[i][r] = decode_rows(b, s, rows[i], b->quick ? 8 : N_GEN);
            peer[i][r] = peer_rows(b, rows[i]);
        }
    }
    for (size_t i = 0; i < 3; i++) {
        char what[64];
        double p = bench_median(peer[i], rounds);
        (void)snprintf(what, sizeof what, "smollm2 decode %u rows", rows[i]);
        bench_line(what, bench_median(ours[i], rounds), "tok/s",
                   rows[i] / floor_of(b, rows[i], 1, PROMPT + N_GEN / 2));
        if (p > 0) {
            (void)snprintf(what, sizeof what, "llama.cpp decode %u rows", rows[i]);
            bench_line(what, p, "tok/s", 0);
            (void)snprintf(what, sizeof what, "smollm2 decode %u rows over llama.cpp", rows[i]);
            bar_line(what, ours[i][rounds / 2] / p, "x", 0, rows[i] == 8 ? 2.5 : 0);
        } else if (b->peer) {
            (void)fprintf(stderr, "%s: no llama-batched-bench that could be run\n", b->peer);
        }
    }
    for (uint32_t i = 0; i < MAX_ROWS; i++) {
        kvs_session_free(s[i]);
    }
}

/* ---- verify */

static uint32_t n_wrong; /* drafts of a round */

static uint32_t wrong_drafts(void *user, const int32_t *tokens, size_t n_tokens, int32_t *out,
                             uint32_t n)
{
    (void)user;
    uint32_t most = n < n_wrong ? n : n_wrong;
    for (uint32_t i = 0; i < most; i++) {
        out[i] = (tokens[n_tokens - 1] + 7 + (int32_t)i) % 1000;
    }
    return most;
}

typedef struct verify_case {
    uint32_t rows, tokens;
    double bar; /* steps; 0: none */
} verify_case;

static void verify_rows(const bench *b, const verify_case *c, size_t n, uint32_t depth,
                        uint32_t reps)
{
    static double t[8][MAX_REPS];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session *s[MAX_ROWS];
    kvs_spec *spec[MAX_ROWS];
    for (uint32_t i = 0; i < c[0].rows; i++) {
        kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
        o.flags = KVS_SPEC_FIXED;
        o.max_drafts = 15;
        o.draft = wrong_drafts;
        s[i] = new_session(b);
        fill(b, s[i], i, depth);
        bench_check(kvs_spec_new(s[i], &o, &spec[i], &err), &err);
    }
    for (uint32_t r = 0; r < reps; r++) {
        for (size_t i = 0; i < n; i++) {
            n_wrong = c[i].tokens - 1;
            double t0 = bench_now();
            bench_check(kvs_spec_next_rows(b->batch, spec, c[i].rows, &err), &err);
            t[i][r] = bench_now() - t0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        char what[80];
        double step = bench_median(t[i], reps);
        (void)snprintf(what, sizeof what, "smollm2 d%u %u rows x %u tokens", depth, c[i].rows,
                       c[i].tokens);
        double least = floor_of(b, c[i].rows, c[i].tokens, depth);
        bench_line(what, 1e3 * step, "ms", 1e3 * least);
        if (i > 0) {
            (void)snprintf(what, sizeof what, "smollm2 d%u %u rows x %u tokens over one", depth,
                           c[i].rows, c[i].tokens);
            double one = t[0][reps / 2];
            bar_line(what, step / one, "steps", least / one, c[i].bar);
        }
    }
    for (uint32_t i = 0; i < c[0].rows; i++) {
        kvs_spec_free(spec[i]);
        kvs_session_free(s[i]);
    }
}

static void bench_verify(const bench *b)
{
    static const verify_case one[] = {{1, 1, 0}, {1, 2, 0}, {1, 3, 0}, {1, 4, 0},
                                      {1, 5, 0}, {1, 8, 2}, {1, 9, 0}, {1, 16, 0}};
    static const verify_case eight[] = {{8, 1, 0}, {8, 2, 0}, {8, 5, 2}};
    uint32_t depth = b->quick ? 256 : 2048;
    verify_rows(b, one, sizeof one / sizeof one[0], depth, b->quick ? 5 : 21);
    verify_rows(b, eight, sizeof eight / sizeof eight[0], depth, b->quick ? 3 : 11);
}

/* ---- drafts */

static const char edit_prompt[] =
    "<|im_start|>user\nRepeat the following text and correct the spelling mistakes:\n\n"
    "The libary keeps the state of a language model in memory. For each layer it stores the keys "
    "and values of all tokens that the model has seen so far. When a user sends another message, "
    "the state of the earlier messages is used again, so that only the new tokens have to be "
    "computed. When a draft of several tokens is rejected, the state goes back to where it was "
    "before, and no byte has to be moved. A windowed layer keeps the newest tokens only, and the "
    "slots of older tokens are used again. Quantised layers keep their codes in blocks, each with "
    "a scale and a minimum, so that a token takes a quarter of the memory or less. All of this "
    "happens without a change in the results: the same text gives the same logits, whatever the "
    "layout, the number of threads or the company that a row keeps.<|im_end|>\n"
    "<|im_start|>assistant\n";
static const char free_prompt[] =
    "<|im_start|>user\nWrite a story about a lighthouse keeper.<|im_end|>\n"
    "<|im_start|>assistant\n";

typedef struct draft_case {
    const char *name;
    const char *prompt;
    float temperature;
    bool wrong;
} draft_case;

static size_t held(const kvs_session *s, const int32_t **tokens)
{
    size_t n = 0;
    *tokens = kvs_session_tokens(s, &n);
    return n;
}

/* Plain and drafted decoding of the same tokens, in turns of 16 tokens. */
static void draft_one(const bench *b, const draft_case *c, uint32_t n_new, double *plain_rate,
                      double *rate, kvs_spec_stats *stats)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_sampler_opts so = KVS_SAMPLER_OPTS_INIT;
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    kvs_sampler *sampler = NULL;
    kvs_spec *spec = NULL;
    kvs_session *s[2] = {new_session(b), new_session(b)};
    int32_t ids[1024];
    size_t n = 0;
    double time[2] = {0, 0};
    const int32_t *tokens[2];
    so.temperature = c->temperature;
    so.top_k = 0;
    so.top_p = 1.0f;
    so.min_p = 0.0f;
    so.seed = 1;
    bench_check(kvs_sampler_new(b->ctx, &so, b->n_vocab, &sampler, &err), &err);
    bench_check(kvs_tokenizer_encode(kvs_model_tokenizer(b->model), c->prompt, strlen(c->prompt),
                                     KVS_TOKENIZE_SPECIAL, ids, 1024, &n, &err),
                &err);
    o.sampler = sampler;
    o.draft = c->wrong ? wrong_drafts : NULL;
    n_wrong = 15;
    for (int i = 0; i < 2; i++) {
        bench_check(kvs_session_sync(s[i], ids, n, NULL, &err), &err);
    }
    bench_check(kvs_spec_new(s[1], &o, &spec, &err), &err);
    for (size_t end = n; end < n + n_new;) {
        end += 16;
        double t0 = bench_now();
        while (held(s[1], &tokens[1]) < end) {
            bench_check(kvs_spec_next(spec, &err), &err);
        }
        double t1 = bench_now();
        end = held(s[1], &tokens[1]);
        while (held(s[0], &tokens[0]) < end) {
            int32_t token = 0;
            bench_check(kvs_session_sample(s[0], sampler, &token, &err), &err);
            bench_check(kvs_session_append(s[0], &token, 1, &err), &err);
        }
        time[1] += t1 - t0;
        time[0] += bench_now() - t1;
    }
    size_t made = held(s[1], &tokens[1]);
    if (held(s[0], &tokens[0]) != made || memcmp(tokens[0], tokens[1], made * sizeof(int32_t))) {
        (void)fprintf(stderr, "%s: the tokens differ\n", c->name);
        exit(1);
    }
    *plain_rate = (double)(made - n) / time[0];
    *rate = (double)(made - n) / time[1];
    bench_check(kvs_spec_get_stats(spec, stats), &err);
    kvs_spec_free(spec);
    kvs_sampler_free(sampler);
    kvs_session_free(s[0]);
    kvs_session_free(s[1]);
}

static void bench_drafts(const bench *b)
{
    static const draft_case cases[] = {{"edited text", edit_prompt, 0.0f, false},
                                       {"drawn text", free_prompt, 1.2f, false},
                                       {"never right", free_prompt, 0.0f, true}};
    double ratio[16];
    double plain[16];
    uint32_t rounds = b->rounds < 16 ? b->rounds : 16;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvs_spec_stats st = KVS_SPEC_STATS_INIT;
        char what[80];
        for (uint32_t r = 0; r < rounds; r++) {
            double rate = 0;
            draft_one(b, &cases[i], b->quick ? 32 : 192, &plain[r], &rate, &st);
            ratio[r] = rate / plain[r];
        }
        (void)snprintf(what, sizeof what, "smollm2 %s, plain", cases[i].name);
        bench_line(what, bench_median(plain, rounds), "tok/s", 0);
        (void)snprintf(what, sizeof what, "smollm2 %s, drafts over plain", cases[i].name);
        bench_line(what, bench_median(ratio, rounds), "x", 0);
        (void)snprintf(what, sizeof what, "smollm2 %s, accepted of drafts", cases[i].name);
        bench_line(what, (double)st.n_accepted, "drafts", (double)st.n_drafts);
        (void)snprintf(what, sizeof what, "smollm2 %s, tokens a round", cases[i].name);
        bench_line(what, (double)st.n_tokens / (double)st.n_rounds, "tokens", 0);
    }
}

/* ---- */

static bool named(const bench *b, const char *what)
{
    for (int i = 1; i < b->argc; i++) {
        if (strcmp(b->argv[i], what) == 0) {
            return true;
        }
    }
    return b->argc <= 1;
}

static void find_model(bench *b)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (!b->path) {
        (void)snprintf(b->found, sizeof b->found, "%s%s/kvstate/models/" MODEL,
                       cache  ? cache
                       : home ? home
                              : ".",
                       cache ? "" : "/.cache");
        b->path = b->found;
    }
}

static bool parse(bench *b, int argc, char **argv)
{
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool takes = true;
        if (strcmp(argv[i], "--peer") == 0) {
            b->peer = value;
        } else if (strcmp(argv[i], "--smollm2") == 0) {
            b->path = value;
        } else if (strcmp(argv[i], "--rounds") == 0 && value) {
            b->rounds = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--threads") == 0 && value) {
            b->threads = (uint32_t)strtoul(value, NULL, 10);
        } else {
            takes = false;
            b->quick = b->quick || strcmp(argv[i], "--quick") == 0;
            if (strcmp(argv[i], "--quick") != 0) {
                argv[kept++] = argv[i];
            }
        }
        if (takes && !value) {
            return false;
        }
        i += takes;
    }
    b->argc = kept;
    b->argv = argv;
    return b->rounds > 0;
}

static void open_model(bench *b)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    kvs_ctx_stats cs = KVS_CTX_STATS_INIT;
    const kvs_model_info info = KVS_MODEL_INFO_INIT;
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_batch_opts bo = KVS_BATCH_OPTS_INIT;
    co.n_threads = b->threads;
    bench_check(kvs_ctx_new(&co, &b->ctx, &err), &err);
    (void)kvs_ctx_get_stats(b->ctx, &cs);
    b->threads = cs.n_threads;
    bench_check(kvs_model_open(b->ctx, b->path, NULL, &b->model, &err), &err);
    b->info = info;
    (void)kvs_model_get_info(b->model, &b->info);
    b->n_vocab = b->info.n_vocab;
    b->read_rate = bench_read_rate(b->threads, (size_t)128 << 20, 5);
    b->fma_peak = bench_fma_peak(cs.tiers, b->threads);
    po.n_ctx = 4096;
    bench_check(kvs_plan_new(b->ctx, b->model, &po, &b->plan, &err), &err);
    bo.max_rows = MAX_ROWS;
    bo.max_logits = 40;
    bo.n_ctx = 4096;
    bench_check(kvs_batch_new(b->ctx, b->model, &bo, &b->batch, &err), &err);
    printf("%s, %u threads, %s\n", b->path, b->threads, bench_tier_name(cs.tiers));
    bench_line("read rate", 1e-9 * b->read_rate, "GB/s", 0);
    bench_line("FMA peak", 1e-9 * b->fma_peak, "GFLOP/s", 0);
}

int main(int argc, char **argv)
{
    bench b = {.rounds = 3};
    if (!bench_start("rows", &argc, argv) || !parse(&b, argc, argv)) {
        (void)fprintf(stderr, "usage: see the top of bench/bench_rows.c\n");
        return 2;
    }
    find_model(&b);
    FILE *f = fopen(b.path, "rb");
    if (!f) {
        (void)fprintf(stderr, "%s is absent; scripts/fetch-model.sh gets it\n", b.path);
        return 1;
    }
    (void)fclose(f);
    open_model(&b);
    if (named(&b, "rows")) {
        bench_decode(&b);
    }
    if (named(&b, "verify")) {
        bench_verify(&b);
    }
    if (named(&b, "draft")) {
        bench_drafts(&b);
    }
    kvs_batch_free(b.batch);
    kvs_plan_free(b.plan);
    kvs_model_close(b.model);
    kvs_ctx_free(b.ctx);
    return 0;
}
