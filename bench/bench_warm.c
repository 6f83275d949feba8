/* SPDX-License-Identifier: MIT */
/* bench_warm: time to the first token of prompts whose state is there already, on the two real models.
 *
 * cold      all tokens (4096), and half of them + 32, computed from nothing
 * again     the same tokens in the same session
 * disk      the same after a restart, from a directory whose files are in the page cache
 * disk cold the same with the files dropped from it
 * back      to half of them + 32 new ones: in the same session, and after a restart
 * restore   MB/s of the state that came back, against reading the files from their directory
 * save      MB/s of writing the whole state, against writing a file of that size, flushed
 * save again  after 16 more tokens, at twice the tokens (8192): until it is durable, and CPU time of all
 *           threads for it; a ratio is to the first save there
 * shared    the same tokens, and half of them + 32, in new sessions that share a prefix cache in
 * memory:
 *           to the first token, and of that what comes before it is computed (lookup, blocks lent)
 * A ratio of times is against cold.
 *   bench_warm [--csv FILE] [--tokens N] [--dir DIR] [--kv PLAN] [--saves] [smollm2|gemma3 ...] */
#define _GNU_SOURCE /* posix_fadvise, mkdtemp */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "kvstate/engine.h"
#include "limits.h"

#define ROUNDS 5
#define NEW    32
#define MORE   16 /* tokens between two saves */

static size_t n_tokens = 4096;
static bool only_saves;
static const char *kv = "f16";
static char folder[512];
static char store[600];

typedef struct rig {
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *s;
    int32_t *tokens; /* [2 * n_tokens + ROUNDS * MORE] */
    int32_t *edited; /* [n_tokens / 2 + NEW] that go another way */
} rig;

static void must(kvs_status st, const kvs_err *err, const char *what)
{
    if (st != KVS_OK) {
        (void)fprintf(stderr, "bench_warm: %s: %s\n", what, err->msg);
        exit(1);
    }
}

/* CPU time of the process. */
static double cpu_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Nothing is saved before it holds `least` tokens; 0: as usual. */
static void session(rig *r, bool cache, size_t least)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
    o.plan = r->plan;
    must(kvs_session_new(r->ctx, r->model, &o, &r->s, &err), &err, "session");
    po.dir = store;
    po.min_tokens = (uint32_t)least;
    if (cache) {
        must(kvs_session_persist(r->s, &po, &err), &err, "store");
    }
}

/* Milliseconds until the logits are there. */
static double first(rig *r, const int32_t *t, size_t n)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    double t0 = bench_now();
    must(kvs_session_sync(r->s, t, n, NULL, &err), &err, "sync");
    return 1e3 * (bench_now() - t0);
}

static kvs_reuse reuse(const rig *r)
{
    kvs_reuse u = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(r->s, &u);
    return u;
}

/* Reads all files of the store's blocks; with `drop` takes them out of the page cache. */
static double read_blocks(bool drop, double *bytes)
{
    char path[1200];
    static char buf[1 << 20];
    (void)snprintf(path, sizeof path, "%s/blocks", store);
    DIR *d = opendir(path);
    *bytes = 0;
    double t0 = bench_now();
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        (void)snprintf(path, sizeof path, "%s/blocks/%s", store, e->d_name);
        int fd = open(path, O_RDONLY);
        if (drop && fd >= 0) {
            (void)fsync(fd);
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        }
        for (ssize_t n = 1; !drop && fd >= 0 && n > 0;) {
            n = read(fd, buf, sizeof buf);
            *bytes += n > 0 ? (double)n : 0.0;
        }
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    if (d) {
        (void)closedir(d);
    }
    return bench_now() - t0;
}

static double write_file(double bytes)
{
    char path[1200];
    static char buf[1 << 20];
    (void)snprintf(path, sizeof path, "%s/plain", folder);
    double t0 = bench_now();
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    for (double at = 0; fd >= 0 && at < bytes; at += sizeof buf) {
        if (write(fd, buf, sizeof buf) < 0) {
            break;
        }
    }
    (void)fsync(fd);
    (void)close(fd);
    double t = bench_now() - t0;
    (void)unlink(path);
    return bytes / t;
}

static void clean(void)
{
    char command[700];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", store);
    if (system(command) != 0) { /* NOLINT: a folder of ours */
        (void)fprintf(stderr, "bench_warm: %s stays\n", store);
    }
}

static void line(const char *model, const char *what, double ms, double cold)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s %s %s", model, kv, what);
    bench_line(name, ms, "ms", cold);
}

/* After a restart: median of rounds. */
static double restart(rig *r, const int32_t *t, size_t n, bool drop, kvs_reuse *u)
{
    double ms[ROUNDS];
    double bytes = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (drop) {
            (void)read_blocks(true, &bytes);
        }
        session(r, true, 0);
        ms[i] = first(r, t, n);
        *u = reuse(r);
        kvs_session_free(r->s);
    }
    return bench_median(ms, ROUNDS);
}

static void rates(const char *model, const kvs_reuse *u, double save_s, double saved)
{
    char name[96];
    double bytes = 0;
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double t = read_blocks(false, &bytes);
        best = bytes / t > best ? bytes / t : best;
    }
    (void)snprintf(name, sizeof name, "%s %s restore from the page cache", model, kv);
    bench_line(name, (double)u->disk_bytes / u->disk_s / 1e6, "MB/s", best / 1e6);
    (void)snprintf(name, sizeof name, "%s %s save", model, kv);
    bench_line(name, saved / save_s / 1e6, "MB/s", write_file(saved) / 1e6);
}

static void measure(rig *r, const char *model)
{
    kvs_reuse u = KVS_REUSE_INIT;
    size_t half = n_tokens / 2;
    session(r, false, 0);
    double cold_back = first(r, r->edited, half + NEW);
    kvs_session_free(r->s);
    line(model, "cold half + 32", cold_back, 0);
    session(r, true, n_tokens); /* one save, at the end */
    double cold = first(r, r->tokens, n_tokens - 1);
    line(model, "cold whole", cold, 0);
    double t0 = bench_now(); /* one token more, and then all is saved */
    (void)first(r, r->tokens, n_tokens);
    (void)kvs_session_flush(r->s, NULL);
    double save_s = bench_now() - t0;
    u = reuse(r);
    double saved = (double)u.saved_bytes;
    (void)first(r, r->tokens, n_tokens - 1);
    double again = first(r, r->tokens, n_tokens);
    save_s -= again / 1e3;
    line(model, "again in the session", again, cold);
    double back = first(r, r->edited, half + NEW);
    u = reuse(r);
    line(model, "back to half + 32 in the session", back, cold_back);
    (void)fprintf(stderr, "%s: %llu of %zu tokens held, notes %.1f MB\n", model,
                  (unsigned long long)u.n_memory, half + NEW, (double)u.notes_bytes / 1e6);
    kvs_session_free(r->s);
    line(model, "again from disk", restart(r, r->tokens, n_tokens, false, &u), cold);
    kvs_reuse whole = u;
    (void)fprintf(stderr, "%s: %llu tokens, %.1f MB read in %.1f ms\n", model,
                  (unsigned long long)u.n_disk, (double)u.disk_bytes / 1e6, 1e3 * u.disk_s);
    line(model, "again from disk without the page cache", restart(r, r->tokens, n_tokens, true, &u),
         cold);
    line(model, "back to half + 32 from disk", restart(r, r->edited, half + NEW, false, &u),
         cold_back);
    rates(model, &whole, save_s, saved);
}

typedef struct cost { /* milliseconds */
    double wall, cpu;
} cost;

static cost cost_now(void)
{
    return (cost){1e3 * bench_now(), 1e3 * cpu_now()};
}

/* What it took since then until everything that was queued is durable. */
static cost durable(rig *r, cost since)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    must(kvs_session_flush(r->s, &err), &err, "flush");
    cost now = cost_now();
    return (cost){now.wall - since.wall, now.cpu - since.cpu};
}

/* A long text is saved, and again whenever it has grown a little. */
static void measure_saves(rig *r, const char *model)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    size_t n = 2 * n_tokens;
    double wall[ROUNDS];
    double cpu[ROUNDS];
    char name[64];
    clean();
    session(r, true, n); /* the first sync of so many tokens saves, no later one does */
    (void)first(r, r->tokens, n - 2);
    cost t = cost_now();
    (void)first(r, r->tokens, n - 1);
    cost token = durable(r, t); /* nothing is saved yet */
    t = cost_now();
    (void)first(r, r->tokens, n);
    cost whole = durable(r, t);
    for (int i = 0; i < ROUNDS; i++) {
        (void)first(r, r->tokens, n + (size_t)(i + 1) * MORE);
        t = cost_now();
        must(kvs_session_save(r->s, &err), &err, "save");
        cost again = durable(r, t);
        wall[i] = again.wall;
        cpu[i] = again.cpu;
    }
    kvs_reuse u = reuse(r);
    (void)fprintf(stderr, "%s: %llu saves of %.1f MB in all, notes %.1f MB\n", model,
                  (unsigned long long)u.saved, (double)u.saved_bytes / 1e6,
                  (double)u.notes_bytes / 1e6);
    kvs_session_free(r->s);
    (void)snprintf(name, sizeof name, "save of %zu tokens", n);
    line(model, name, whole.wall - token.wall, 0);
    line(model, "save again after 16 more", bench_median(wall, ROUNDS), whole.wall - token.wall);
    (void)snprintf(name, sizeof name, "save of %zu tokens, CPU time", n);
    line(model, name, whole.cpu - token.cpu, 0);
    line(model, "save again after 16 more, CPU time", bench_median(cpu, ROUNDS),
         whole.cpu - token.cpu);
}

/* A new session of the cache: milliseconds to what it is lent, and to the logits. */
static void lent(rig *r, const kvs_session_opts *o, const int32_t *t, size_t n, double ms[2])
{
    kvs_err err = {KVS_OK, 0, "", ""};
    double prepared[ROUNDS];
    double whole[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        must(kvs_session_new(r->ctx, r->model, o, &r->s, &err), &err, "session");
        double t0 = bench_now();
        must(kvs_session_prepare(r->s, t, n, NULL, &err), &err, "prepare");
        prepared[i] = 1e3 * (bench_now() - t0);
        whole[i] = prepared[i] + first(r, t, n);
        kvs_session_free(r->s);
    }
    ms[0] = bench_median(prepared, ROUNDS);
    ms[1] = bench_median(whole, ROUNDS);
}

static void measure_shared(rig *r, const char *model)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_prefix_cache_opts co = KVS_PREFIX_CACHE_OPTS_INIT;
    kvs_session_opts so = KVS_SESSION_OPTS_INIT;
    kvs_plan *plan = NULL;
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    size_t half = n_tokens / 2;
    double ms[2];
    po.kv = kv;
    po.kv_block = 64;
    po.n_ctx = (uint32_t)n_tokens + 512;
    must(kvs_plan_new(r->ctx, r->model, &po, &plan, &err), &err, "plan");
    co.plan = so.plan = plan;
    must(kvs_prefix_cache_new(r->ctx, r->model, &co, &so.prefix_cache, &err), &err, "cache");
    must(kvs_session_new(r->ctx, r->model, &so, &r->s, &err), &err, "session");
    double cold = first(r, r->tokens, n_tokens);
    line(model, "shared, cold whole", cold, 0);
    kvs_session_free(r->s);
    lent(r, &so, r->tokens, n_tokens, ms);
    line(model, "shared again, lent", ms[0], 0);
    line(model, "shared again, to the first token", ms[1], cold);
    must(kvs_session_new(r->ctx, r->model, &so, &r->s, &err), &err, "session");
    double back = first(r, r->edited, half + NEW);
    kvs_session_free(r->s);
    line(model, "shared half + 32, to the first token", back, cold);
    (void)kvs_prefix_cache_get_stats(so.prefix_cache, &st);
    (void)fprintf(stderr, "%s: %llu of %llu tokens asked for were lent, the cache takes %.1f MB\n",
                  model, (unsigned long long)st.hit_tokens, (unsigned long long)st.asked_tokens,
                  (double)st.bytes / 1e6);
    kvs_prefix_cache_free(so.prefix_cache);
    kvs_plan_free(plan);
}

static void model_path(const char *file, char *dst, size_t n)
{
    const char *xdg = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    (void)snprintf(dst, n, "%s%s/kvstate/models/%s",
                   xdg    ? xdg
                   : home ? home
                          : "",
                   xdg ? "" : "/.cache", file);
}

static void run(const char *model, const char *file)
{
    rig r = {NULL, NULL, NULL, NULL, NULL, NULL};
    char path[800];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts po = KVS_PLAN_OPTS_INIT;
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    model_path(file, path, sizeof path);
    must(kvs_ctx_new(NULL, &r.ctx, &err), &err, "context");
    if (kvs_model_open(r.ctx, path, NULL, &r.model, &err) != KVS_OK) {
        (void)fprintf(stderr, "SKIP %s: %s\n", model, err.msg);
        kvs_ctx_free(r.ctx);
        return;
    }
    po.kv = kv;
    po.n_ctx = (uint32_t)n_tokens * 2 + 512;
    must(kvs_plan_new(r.ctx, r.model, &po, &r.plan, &err), &err, "plan");
    (void)kvs_model_get_info(r.model, &info);
    size_t n = 2 * n_tokens + (size_t)ROUNDS * MORE;
    r.tokens = malloc(n * sizeof *r.tokens);
    r.edited = malloc(n * sizeof *r.edited);
    uint64_t x = 1;
    for (size_t i = 0; r.tokens && r.edited && i < n; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        r.tokens[i] = (int32_t)((x >> 33) % info.n_vocab);
        r.edited[i] = i < n_tokens / 2 ? r.tokens[i] : (int32_t)((x >> 35) % info.n_vocab);
    }
    if (!only_saves) {
        measure_shared(&r, model);
        measure(&r, model);
    }
    measure_saves(&r, model);
    free(r.tokens);
    free(r.edited);
    kvs_plan_free(r.plan);
    kvs_model_close(r.model);
    kvs_ctx_free(r.ctx);
    clean();
}

int main(int argc, char **argv)
{
    const char *dir = ".";
    bool smollm2 = true;
    bool gemma3 = true;
    if (!bench_start("warm", &argc, argv)) {
        return 2;
    }
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--tokens") == 0 && more) {
            n_tokens = (size_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--dir") == 0 && more) {
            dir = argv[++i];
        } else if (strcmp(argv[i], "--kv") == 0 && more) {
            kv = argv[++i];
        } else if (strcmp(argv[i], "--saves") == 0) {
            only_saves = true;
        } else {
            gemma3 = strcmp(argv[i], "gemma3") == 0;
            smollm2 = strcmp(argv[i], "smollm2") == 0;
        }
    }
    (void)snprintf(folder, sizeof folder, "%s/bench_warm-XXXXXX", dir);
    if (n_tokens < 256 || !mkdtemp(folder)) {
        (void)fprintf(stderr, "bench_warm: no folder in %s, or fewer than 256 tokens\n", dir);
        return 1;
    }
    (void)snprintf(store, sizeof store, "%s/state", folder);
    if (smollm2) {
        run("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf");
    }
    if (gemma3) {
        run("gemma3", "gemma-3-270m-q4_k_m.gguf");
    }
    (void)rmdir(folder);
    if (bench_csv) {
        (void)fclose(bench_csv);
    }
    return 0;
}
