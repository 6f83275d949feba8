/* SPDX-License-Identifier: MIT */
/* bench_model: real models, against the machine's limits and, with --peer, against llama.cpp on the
 * same file in the same run, in turns.
 *
 * prefill  tokens/s of a prompt into an empty session; limit: multiplications over the f32 FMA peak
 * decode   tokens/s one by one at a depth; limit: bytes that a token must read (weights and live
 *          codes) over the read bandwidth
 * busy     decode beside one other busy process, against undisturbed
 * first    seconds from process start to the first token of 32; milliseconds of loading the model
 * rss      peak resident bytes of a process after 4096 tokens, without the mapped file and the state
 *   bench_model [--csv FILE] [--peer DIR] [--smollm2 FILE] [--gemma3 FILE] [--rounds N]
 *               [--threads N] [--quick] [--full] [prefill|decode|busy|first|rss|smollm2|gemma3 ...]
 * DIR is a build folder as bench/peer_llamacpp.sh makes it. Without files, those of
 * scripts/fetch-model.sh are taken. Figures are medians of N rounds (3) that take turns; the peer
 * fills a deep context anew in each process, so there its rounds are of one process, between ours.
 * --quick: short prompts and depths; --full: also the peer's 4-bit type where it is slow. */
#include <signal.h>

#include "kvstate/engine.h"
#include "limits.h"
#include "peer.h"

#define MAX_ROUNDS  15u
#define N_PLANS     3u
#define N_DEPTHS    3u
#define RSS_TOKENS  4096u
#define LONG_TOKENS 1024u /* from which on a peer's process is too dear to be started each round */

static const char *const plans[N_PLANS] = {"f16", "q8", "q4"};
static const char *const peer_types[N_PLANS] = {"f16", "q8_0", "q4_0"};

typedef struct subject {
    const char *name;
    const char *file;
    uint32_t prefill_plans; /* of `plans`, the first ones */
    uint32_t depths[N_DEPTHS];
} subject;

static const subject subjects[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", N_PLANS, {0, 2048, 7168}},
    {"gemma3", "gemma-3-270m-q4_k_m.gguf", 1, {0, 2048, 16384}},
};
#define N_SUBJECTS (sizeof subjects / sizeof subjects[0])

typedef struct options {
    const char *peer;
    const char *file[N_SUBJECTS];
    uint32_t rounds;
    uint32_t threads;
    bool quick;
    bool full;
    int argc; /* cases and models that are named; none: all */
    char **argv;
} options;

typedef struct bench {
    const options *o;
    const subject *s;
    const char *path;
    double read_rate; /* bytes/s */
    double fma_peak;  /* flop/s */
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_model_info info;
    kvs_plan *plan[N_PLANS];
    kvs_session *session[N_PLANS];
    int32_t *tokens; /* [n_tokens] */
    size_t n_tokens;
} bench;

/* Speeds of one case: ours by plan, the peer's by type. */
typedef struct rates {
    double ours[N_PLANS][MAX_ROUNDS];
    double peer[N_PLANS][MAX_ROUNDS];
    size_t n_ours;
    size_t n_peer[N_PLANS];
} rates;

static bool named(const options *o, const char *what)
{
    bool any = false;
    for (int i = 1; i < o->argc; i++) {
        bool model = false;
        bool asks_model = false;
        for (size_t s = 0; s < N_SUBJECTS; s++) {
            model = model || strcmp(o->argv[i], subjects[s].name) == 0;
            asks_model = asks_model || strcmp(what, subjects[s].name) == 0;
        }
        any = any || model == asks_model;
        if (strcmp(o->argv[i], what) == 0) {
            return true;
        }
    }
    return !any;
}

/* ---- a model and its sessions */

static void make_tokens(bench *b, size_t n)
{
    uint64_t x = 1;
    b->n_tokens = n;
    b->tokens = malloc(n * sizeof *b->tokens);
    if (!b->tokens) {
        exit(1);
    }
    for (size_t i = 0; i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        b->tokens[i] = (int32_t)((x >> 33) % b->info.n_vocab);
    }
}

static void open_session(bench *b, size_t i)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts p = KVS_PLAN_OPTS_INIT;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    p.kv = plans[i];
    bench_check(kvs_plan_new(b->ctx, b->model, &p, &b->plan[i], &err), &err);
    o.plan = b->plan[i];
    bench_check(kvs_session_new(b->ctx, b->model, &o, &b->session[i], &err), &err);
}

static void open_model(bench *b)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = b->o->threads;
    b->info = (kvs_model_info)KVS_MODEL_INFO_INIT;
    bench_check(kvs_ctx_new(&o, &b->ctx, &err), &err);
    bench_check(kvs_model_open(b->ctx, b->path, NULL, &b->model, &err), &err);
    bench_check(kvs_model_get_info(b->model, &b->info), &err);
}

static void close_model(bench *b)
{
    for (size_t i = 0; i < N_PLANS; i++) {
        kvs_session_free(b->session[i]);
        kvs_plan_free(b->plan[i]);
        b->session[i] = NULL;
        b->plan[i] = NULL;
    }
    kvs_model_close(b->model);
    kvs_ctx_free(b->ctx);
    free(b->tokens);
    b->tokens = NULL;
}

static void go_to(bench *b, size_t plan, size_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    bench_check(kvs_session_sync(b->session[plan], b->tokens, n, NULL, &err), &err);
}

/* ---- limits */

/* Tokens that a layer's newest query sees at this depth. */
static double seen(const kvs_layer_spec *l, double depth)
{
    double window = l->window > 0 ? (double)l->window + l->sinks : depth;
    return window < depth ? window : depth;
}

static double decode_limit(const bench *b, size_t plan, double depth)
{
    double bytes = (double)b->info.step_bytes;
    for (uint32_t i = 0; i < kvs_plan_n_layers(b->plan[plan]); i++) {
        const kvs_layer_spec *l = kvs_plan_layer(b->plan[plan], i);
        size_t row = kvs_codec_row_bytes(&l->k, l->k_dim) + kvs_codec_row_bytes(&l->v, l->v_dim);
        bytes += (double)row * l->n_kv_heads * seen(l, depth);
    }
    return b->read_rate / bytes;
}

/* A prompt multiplies with every matrix but the embedding, and attends to what it sees. */
static double prefill_limit(const bench *b, size_t plan, uint32_t n)
{
    const kvs_model_info *m = &b->info;
    double weights = (double)m->n_params - (double)m->n_vocab * m->d_model;
    double pairs = 0;
    for (uint32_t i = 0; i < kvs_plan_n_layers(b->plan[plan]); i++) {
        const kvs_layer_spec *l = kvs_plan_layer(b->plan[plan], i);
        double w = seen(l, n);
        pairs += w * n - w * w / 2;
    }
    double flops = 2 * weights * n + 2 * pairs * m->n_heads * (m->k_dim + m->v_dim);
    return b->fma_peak / (flops / n);
}

/* ---- measuring */

static double prefill_once(bench *b, size_t plan, uint32_t n)
{
    go_to(b, plan, 0);
    double t = bench_now();
    go_to(b, plan, n);
    return n / (bench_now() - t);
}

/* Goes on from where it is when the depth cannot be gone back to (rings): some tokens deeper. */
static double decode_once(bench *b, size_t plan, uint32_t depth, uint32_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t held = 0;
    kvs_session *s = b->session[plan];
    (void)kvs_session_tokens(s, &held);
    if (depth == 0 || held < depth ||
        kvs_cache_can_rewind(kvs_session_cache(s), KVS_ALL_LAYERS, held - depth + 1) == KVS_OK) {
        go_to(b, plan, depth);
        held = depth;
    }
    double t = bench_now();
    for (uint32_t i = 0; i < n; i++) {
        bench_check(kvs_session_append(s, b->tokens + (held + i) % b->n_tokens, 1, &err), &err);
    }
    return n / (bench_now() - t);
}

static void peer_once(const bench *b, rates *r, size_t type, peer_case c)
{
    if (!b->o->peer) {
        return;
    }
    c.dir = b->o->peer;
    c.model = b->path;
    c.type = peer_types[type];
    c.threads = b->o->threads;
    r->n_peer[type] +=
        peer_rates(&c, r->peer[type] + r->n_peer[type], MAX_ROUNDS - r->n_peer[type]);
}

/* Lines of ours with their limits, the peer's, and ours against the peer's best type; then our
 * coded plans against the dense one. `what` is "prefill/512". */
static void print_rates(bench *b, rates *r, const char *what, const double *limit)
{
    double best = 0;
    double mid[N_PLANS] = {0};
    char line[96];
    for (size_t i = 0; i < N_PLANS; i++) {
        if (r->n_peer[i] > 0) {
            double x = bench_median(r->peer[i], r->n_peer[i]);
            best = x > best ? x : best;
            (void)snprintf(line, sizeof line, "peer/%s/%s/%s", b->s->name, what, peer_types[i]);
            bench_line(line, x, "tok/s", 0);
        }
    }
    for (size_t i = 0; i < N_PLANS && limit[i] > 0; i++) {
        mid[i] = bench_median(r->ours[i], r->n_ours);
        (void)snprintf(line, sizeof line, "%s/%s/%s", b->s->name, what, plans[i]);
        bench_line(line, mid[i], "tok/s", limit[i]);
        if (best > 0) {
            (void)snprintf(line, sizeof line, "vs-peer/%s/%s/%s", b->s->name, what, plans[i]);
            bench_line(line, mid[i] / best, "x", 0);
        }
        if (i > 0) {
            (void)snprintf(line, sizeof line, "vs-dense/%s/%s/%s", b->s->name, what, plans[i]);
            bench_line(line, mid[i] / mid[0], "x", 0);
        }
    }
}

static void prefill(bench *b, uint32_t n)
{
    rates r = {.n_ours = b->o->rounds};
    double limit[N_PLANS] = {0};
    char what[32];
    for (uint32_t round = 0; round < b->o->rounds; round++) {
        for (size_t i = 0; i < b->s->prefill_plans; i++) {
            r.ours[i][round] = prefill_once(b, i, n);
            limit[i] = prefill_limit(b, i, n);
            /* its coded types are never its fastest: once, and not where that takes long */
            if (i == 0 || (round == 0 && (n <= LONG_TOKENS || b->o->full))) {
                peer_once(b, &r, i, (peer_case){.n_prompt = n, .n_runs = 1});
            }
        }
    }
    (void)snprintf(what, sizeof what, "prefill/%u", n);
    print_rates(b, &r, what, limit);
}

static void decode(bench *b, uint32_t depth)
{
    rates r = {.n_ours = b->o->rounds};
    double limit[N_PLANS];
    char what[32];
    uint32_t n = depth < LONG_TOKENS ? 64 : 32;
    for (uint32_t round = 0; round < b->o->rounds; round++) {
        for (size_t i = 0; i < N_PLANS; i++) {
            r.ours[i][round] = decode_once(b, i, depth, n);
            limit[i] = decode_limit(b, i, depth + n / 2.0);
        }
        for (size_t i = 0; i < N_PLANS; i++) {
            if (depth < LONG_TOKENS) {
                peer_once(b, &r, i, (peer_case){.n_gen = n, .n_runs = 1});
            } else if ((i == round || (i > round && round + 1 == b->o->rounds)) &&
                       (i < 2 || depth < 4 * LONG_TOKENS || b->o->full)) {
                peer_once(b, &r, i,
                          (peer_case){.n_gen = n, .depth = depth, .n_runs = b->o->rounds});
            }
        }
    }
    (void)snprintf(what, sizeof what, "decode/d%u", depth);
    print_rates(b, &r, what, limit);
}

/* A process that keeps a CPU busy until it is killed. */
static pid_t start_busy(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (volatile uint64_t x = 1;;) {
            x = x * 6364136223846793005u + 1;
        }
    }
    return pid;
}

static void stop_busy(pid_t pid)
{
    if (pid > 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
}

static void busy(bench *b)
{
    rates calm = {.n_ours = 0};
    rates loud = {.n_ours = 0};
    char line[64];
    for (uint32_t round = 0; round < b->o->rounds; round++) {
        const peer_case c = {.n_gen = 32, .n_runs = 1};
        calm.ours[0][round] = decode_once(b, 0, 0, 64);
        peer_once(b, &calm, 0, c);
        pid_t pid = start_busy();
        loud.ours[0][round] = decode_once(b, 0, 0, 64);
        peer_once(b, &loud, 0, c);
        stop_busy(pid);
    }
    double x = bench_median(loud.ours[0], b->o->rounds) / bench_median(calm.ours[0], b->o->rounds);
    (void)snprintf(line, sizeof line, "%s/busy-vs-calm/d0/f16", b->s->name);
    bench_line(line, x, "x", 0);
    if (calm.n_peer[0] > 0 && loud.n_peer[0] > 0) {
        x = bench_median(loud.peer[0], loud.n_peer[0]) / bench_median(calm.peer[0], calm.n_peer[0]);
        (void)snprintf(line, sizeof line, "peer/%s/busy-vs-calm/d0/f16", b->s->name);
        bench_line(line, x, "x", 0);
    }
}

/* ---- a process of its own */

/* Resident bytes of the mapping of a file, and the peak of the process. */
static void resident(const char *path, double *mapped, double *peak)
{
    char line[4352];
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "r");
    *mapped = 0;
    *peak = 0;
    while (f && fgets(line, sizeof line, f)) {
        if (line[0] < 'A' || line[0] > 'Z') { /* "7f..-7f.. r--s 00000000 08:01 123 /path" */
            here = strstr(line, path) != NULL;
        } else if (here && strncmp(line, "Rss:", 4) == 0) {
            *mapped += strtod(line + 4, NULL) * 1024;
        }
    }
    if (f) {
        (void)fclose(f);
    }
    f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            *peak = strtod(line + 6, NULL) * 1024;
        }
    }
    if (f) {
        (void)fclose(f);
    }
}

/* --child FILE THREADS N: loads, takes N tokens, picks the next; prints a line at that moment, then
 * milliseconds of loading and bytes beyond the mapped file and the planned state. */
static int child(char **argv)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    options o = {.threads = (uint32_t)strtoul(argv[1], NULL, 10)};
    bench b = {.o = &o, .path = argv[0]};
    size_t n = strtoul(argv[2], NULL, 10);
    double t = bench_now();
    open_model(&b);
    t = bench_now() - t;
    make_tokens(&b, n);
    open_session(&b, 0);
    go_to(&b, 0, n);
    const float *logits = kvs_session_logits(b.session[0]);
    uint32_t best = 0;
    for (uint32_t i = 1; i < b.info.n_vocab; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    (void)printf("%u\n", best);
    (void)fflush(stdout);
    double mapped = 0;
    double peak = 0;
    size_t state = 0;
    resident(b.path, &mapped, &peak);
    bench_check(kvs_plan_bytes(b.plan[0], n, &state, NULL, &err), &err);
    (void)printf("%.3f %.0f\n", t * 1e3, peak - mapped - (double)state);
    close_model(&b);
    return 0;
}

static bool run_child(const bench *b, uint32_t n, double *first, double *load, double *extra)
{
    char exe[4096];
    char text[256];
    char num[2][16];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[len > 0 ? len : 0] = '\0';
    (void)snprintf(num[0], sizeof num[0], "%u", b->o->threads);
    (void)snprintf(num[1], sizeof num[1], "%u", n);
    const char *const argv[] = {exe, "--child", b->path, num[0], num[1], NULL};
    if (!program_output(argv, text, sizeof text, first)) {
        (void)fprintf(stderr, "%s --child %s failed\n", exe, b->path);
        return false;
    }
    char *p = strchr(text, '\n');
    *load = p ? strtod(p, &p) : 0;
    *extra = p ? strtod(p, NULL) : 0;
    return true;
}

/* Each round is a fresh process: loading, a prompt of 32 tokens, one token. The peer has no such
 * row. */
static void first_token(bench *b)
{
    double first[MAX_ROUNDS];
    double load[MAX_ROUNDS];
    double extra = 0;
    char line[64];
    for (uint32_t i = 0; i < b->o->rounds; i++) {
        if (!run_child(b, 32, &first[i], &load[i], &extra)) {
            return;
        }
    }
    (void)snprintf(line, sizeof line, "%s/first-token/32", b->s->name);
    bench_line(line, bench_median(first, b->o->rounds), "s", 0);
    (void)snprintf(line, sizeof line, "%s/load", b->s->name);
    bench_line(line, bench_median(load, b->o->rounds), "ms", 0);
}

static void rss(bench *b)
{
    double first = 0;
    double load = 0;
    double extra = 0;
    char line[64];
    if (run_child(b, RSS_TOKENS, &first, &load, &extra)) {
        (void)snprintf(line, sizeof line, "%s/rss-beyond-file-and-state/%u", b->s->name,
                       RSS_TOKENS);
        bench_line(line, extra / (1 << 20), "MiB", 32);
    }
}

/* ---- all of a model */

static void find_file(const options *o, size_t i, char *dst, size_t n)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (o->file[i]) {
        (void)snprintf(dst, n, "%s", o->file[i]);
    } else if (cache && cache[0]) {
        (void)snprintf(dst, n, "%s/kvstate/models/%s", cache, subjects[i].file);
    } else {
        (void)snprintf(dst, n, "%s/.cache/kvstate/models/%s", home ? home : "", subjects[i].file);
    }
}

static void measure(bench *b)
{
    const options *o = b->o;
    if (named(o, "first")) {
        first_token(b);
    }
    if (named(o, "rss")) {
        rss(b);
    }
    open_model(b);
    make_tokens(b, b->info.n_ctx_train);
    for (size_t i = 0; i < N_PLANS; i++) {
        open_session(b, i);
    }
    if (named(o, "busy")) {
        busy(b);
    }
    if (named(o, "prefill")) {
        prefill(b, 512);
        if (!o->quick) {
            prefill(b, 4096);
        }
    }
    for (size_t i = 0; named(o, "decode") && i < (o->quick ? N_DEPTHS - 1 : N_DEPTHS); i++) {
        decode(b, b->s->depths[i]);
    }
    close_model(b);
}

static uint32_t number(const char *text, uint32_t most)
{
    unsigned long x = strtoul(text, NULL, 10);
    return x < 1 ? 1 : x > most ? most : (uint32_t)x;
}

static bool parse(options *o, int argc, char **argv)
{
    o->argv = argv;
    o->argc = 1;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(a, "--full") == 0) {
            o->full = true;
        } else if (a[0] != '-') {
            argv[o->argc++] = argv[i];
        } else if (!value) {
            return false;
        } else {
            i++;
            if (strcmp(a, "--peer") == 0) {
                o->peer = value;
            } else if (strcmp(a, "--smollm2") == 0) {
                o->file[0] = value;
            } else if (strcmp(a, "--gemma3") == 0) {
                o->file[1] = value;
            } else if (strcmp(a, "--rounds") == 0) {
                o->rounds = number(value, MAX_ROUNDS);
            } else if (strcmp(a, "--threads") == 0) {
                o->threads = number(value, 64);
            } else {
                return false;
            }
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--child") == 0) {
        return child(argv + 2);
    }
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    options o = {.rounds = 3, .threads = cpus < 1 ? 1 : cpus > 64 ? 64 : (uint32_t)cpus};
    if (!bench_start("model", &argc, argv)) {
        return 2;
    }
    if (!parse(&o, argc, argv)) {
        (void)fprintf(stderr, "usage: the comment at the head of bench/bench_model.c\n");
        return 2;
    }
    bench b = {.o = &o};
    b.read_rate = bench_read_rate(o.threads, (size_t)128 << 20, 5);
    b.fma_peak = bench_fma_peak(kvs_cpu_tiers(), o.threads);
    bench_line("read bandwidth", b.read_rate / 1e9, "GB/s", 0);
    bench_line("f32 FMA peak", b.fma_peak / 1e9, "GFLOP/s", 0);
    for (size_t i = 0; i < N_SUBJECTS; i++) {
        char path[4096];
        find_file(&o, i, path, sizeof path);
        if (!named(&o, subjects[i].name)) {
            continue;
        }
        if (access(path, R_OK) != 0) {
            printf("SKIP %s: no %s (scripts/fetch-model.sh %s)\n", subjects[i].name, path,
                   subjects[i].name);
            continue;
        }
        b.s = &subjects[i];
        b.path = path;
        measure(&b);
    }
    return 0;
}
