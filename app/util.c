/* SPDX-License-Identifier: MIT */
/* util.c: what all commands share (util.h). The only place that knows of signals and terminals. */
#include "util.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t caught;
static uint32_t memory_limit; /* MiB, 0: none; for the message of a failing allocation */

static bool colour(void)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return (!no || !*no) && term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

int fail(int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)fflush(stdout);
    (void)fputs(colour() ? "\033[1;31mkvstate:\033[0m " : "kvstate: ", stderr);
    (void)vfprintf(stderr, fmt, ap);
    (void)fputc('\n', stderr);
    va_end(ap);
    return code;
}

int fail_err(int code, kvs_status status, const kvs_err *err, const char *hint)
{
    if (status == KVS_E_NOMEM || status == KVS_E_LIMIT) {
        code = EXIT_MEMORY;
    }
    const char *msg = err && err->msg[0] ? err->msg : kvs_status_text(status);
    char limit[64];
    if (status == KVS_E_NOMEM && memory_limit > 0 && !hint) {
        (void)snprintf(limit, sizeof limit, "--max-memory allows %u MiB", memory_limit);
        hint = limit;
    }
    return fail(code, "%s%s%s", msg, hint ? "\n         " : "", hint ? hint : "");
}

void note(const settings *s, const char *fmt, ...)
{
    if (s->quiet) {
        return;
    }
    va_list ap;
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    (void)fputc('\n', stderr);
    va_end(ap);
}

double now_seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_signal(int sig)
{
    int code = sig == SIGINT ? EXIT_SIGINT : EXIT_SIGTERM;
    if (caught) {
        _exit(code);
    }
    caught = code;
}

void catch_signals(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
}

int interrupted(void)
{
    return caught;
}

void interrupt_done(void)
{
    if (caught == EXIT_SIGINT) {
        caught = 0;
    }
}

/* Warnings of the library, and with --verbose all that it says. */
static void on_log(void *user, kvs_log_level level, const char *msg)
{
    const settings *s = user;
    if (level <= KVS_LOG_WARN || s->verbose) {
        note(s, "%s%s", level == KVS_LOG_WARN ? "warning: " : "", msg);
    }
}

int make_ctx(settings *s, kvs_ctx **out)
{
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.n_threads = s->threads;
    o.log = on_log;
    o.log_user = s;
    o.max_bytes = (size_t)s->max_memory << 20;
    memory_limit = s->max_memory;
    if (s->isa && strcmp(s->isa, "ref") == 0) {
        o.tiers_off = KVS_TIER_ALL;
    } else if (s->isa && strcmp(s->isa, "avx2") == 0) {
        o.tiers_off = KVS_TIER_AVX512;
        if (!(kvs_cpu_tiers() & KVS_TIER_AVX2)) {
            return fail(EXIT_USAGE, "--isa avx2: this CPU has no AVX2");
        }
    } else if (s->isa && strcmp(s->isa, "best") != 0) {
        return fail(EXIT_USAGE, "--isa: \"%s\" is none of ref, avx2, best", s->isa);
    }
    kvs_status st = kvs_ctx_new(&o, out, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

int open_model(const settings *s, kvs_ctx *ctx, uint32_t flags, kvs_model **out)
{
    if (!s->model) {
        return fail(EXIT_USAGE,
                    "which model? Give a GGUF file or a directory of safetensors: -m FILE");
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_model_opts o = KVS_MODEL_OPTS_INIT;
    o.flags = flags;
    kvs_status st = kvs_model_open(ctx, s->model, &o, out, &err);
    if (st == KVS_OK) {
        return 0;
    }
    if (st == KVS_E_NOMEM) {
        return fail_err(EXIT_MEMORY, st, &err, NULL);
    }
    if (strstr(err.msg, s->model)) {
        return fail(EXIT_INPUT, "%s", err.msg);
    }
    return fail(EXIT_INPUT, "%s: %s", s->model, err.msg);
}

/* A codec, not the layout of a plan or a list of layers: nothing is left of it beside both types. */
static bool says_codec(const char *kv)
{
    static const char *const more[] = {"paged", "layers", "config"};
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        if (strncmp(kv, more[i], strlen(more[i])) == 0) {
            return false;
        }
    }
    return true;
}

int make_plan(const settings *s, kvs_ctx *ctx, const kvs_model *model, const char *kv,
              kvs_plan **out)
{
    char bits[24];
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_plan_opts o = KVS_PLAN_OPTS_INIT;
    o.kv = kv ? kv : s->kv;
    if (s->kv_bits > 0) {
        if (o.kv) {
            return fail(EXIT_USAGE, "--kv-bits and --kv say the same thing; give one");
        }
        (void)snprintf(bits, sizeof bits, "affine%u", s->kv_bits);
        o.kv = bits;
    }
    if (s->cache_k && s->cache_v && (s->kv_bits > 0 || (s->kv && says_codec(s->kv)))) {
        return fail(EXIT_USAGE, "--%s has no effect beside --ctk and --ctv; leave one out",
                    s->kv_bits > 0 ? "kv-bits" : "kv");
    }
    o.k = s->cache_k;
    o.v = s->cache_v;
    o.group = s->kv_group;
    o.start = s->kv_start;
    o.kv_block = s->kv_block;
    o.window = s->window;
    o.sinks = s->sinks;
    if (s->max_kv_size > 0) {
        if (s->window > 0 || s->sinks > 0) {
            return fail(EXIT_USAGE, "--max-kv-size and --window or --sinks; give one");
        }
        o.window = s->max_kv_size - 4;
        o.sinks = 4;
    }
    o.n_ctx = s->ctx_size;
    o.max_block = s->block;
    if (s->undo == 0 && s->undo_bytes > 0) {
        return fail(EXIT_USAGE, "--undo-bytes and --undo 0; give one");
    }
    o.undo_tokens = s->undo > 0 ? s->undo : KVS_UNDO_NONE;
    o.undo_bytes = s->undo_bytes;
    o.flags = s->swa_full ? KVS_PLAN_FULL_WINDOW : 0;
    kvs_status st = kvs_plan_new(ctx, model, &o, out, &err);
    if (st != KVS_OK) {
        return fail_err(st == KVS_E_IO ? EXIT_INPUT : EXIT_USAGE, st, &err, NULL);
    }
    kvs_plan_undo undo = KVS_PLAN_UNDO_INIT;
    (void)kvs_plan_get_undo(*out, &undo);
    if (s->undo_bytes > 0 && undo.n_tokens == 0) {
        kvs_plan_free(*out);
        *out = NULL;
        return fail(EXIT_USAGE, "--undo-bytes: no layer of this model is recurrent");
    }
    return 0;
}

uint32_t block_of(const settings *s, const kvs_plan *plan)
{
    uint32_t most = kvs_plan_max_block(plan);
    return s->block < most ? s->block : most;
}

size_t utf8_length(const unsigned char *p, size_t left)
{
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = p[0] < 0x80             ? 1
               : (p[0] & 0xe0) == 0xc0 ? 2
               : (p[0] & 0xf0) == 0xe0 ? 3
               : (p[0] & 0xf8) == 0xf0 ? 4
                                       : 0;
    if (n <= 1 || n > left) {
        return n == 1 ? 1 : 0;
    }
    unsigned cp = p[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
        cp = cp << 6 | (p[i] & 0x3fu);
    }
    return cp < least[n] || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) ? 0 : n;
}

int check_utf8(const char *what, const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(p + i, n - i);
        if (len == 0) {
            return fail(
                EXIT_USAGE,
                "%s is not UTF-8: byte 0x%02x at offset %zu; convert it, e.g. with iconv -f "
                "latin1 -t utf-8",
                what, p[i], i);
        }
        i += len;
    }
    return 0;
}

void json_text(FILE *out, const char *text, size_t n)
{
    (void)fputc('"', out);
    for (size_t i = 0; i < n;) {
        const unsigned char *p = (const unsigned char *)text + i;
        size_t len = utf8_length(p, n - i);
        if (len == 0) {
            (void)fputs("\xef\xbf\xbd", out);
        } else if (*p == '"' || *p == '\\') {
            (void)fprintf(out, "\\%c", *p);
        } else if (*p < 0x20 || *p == 0x7f) {
            (void)fprintf(out, "\\u%04x", *p);
        } else {
            (void)fwrite(p, 1, len, out);
        }
        i += len ? len : 1;
    }
    (void)fputc('"', out);
}

const char *format_bytes(char *dst, size_t n, double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;
    while (bytes >= 1024.0 && u < 4) {
        bytes /= 1024.0;
        u++;
    }
    (void)snprintf(dst, n, u == 0 ? "%.0f %s" : "%.2f %s", bytes, units[u]);
    return dst;
}

int check_writable(const char *path)
{
    char dir[4096];
    const char *slash = path ? strrchr(path, '/') : NULL;
    if (!path || access(path, W_OK) == 0) {
        return 0;
    }
    int why = errno;
    if (why == ENOENT) { /* then the directory counts */
        (void)snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1,
                       slash ? path : ".");
        why = access(*dir ? dir : "/", W_OK) == 0 ? 0 : errno;
    }
    return why == 0 ? 0 : fail(EXIT_INPUT, "%s can't be written: %s", path, strerror(why));
}

int finish_stdout(int code)
{
    errno = 0; /* of a write that failed earlier nothing is known any more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        return code != 0 ? code
                         : fail(EXIT_FAILED, "standard output can't be written%s%s",
                                errno ? ": " : "", errno ? strerror(errno) : "");
    }
    return code;
}
