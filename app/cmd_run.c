/* SPDX-License-Identifier: MIT */
/* cmd_run.c: completes one prompt. Text goes to standard output as it comes, everything else to
 * standard error. An interrupted answer is a result: it is told how far it came. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "chat.h"
#include "commands.h"
#include "util.h"

typedef struct run {
    settings *s;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_session *session;
    kvs_sampler *sampler;
    kvs_detok *detok;
    const chat_format *format;
    char *text; /* the prompt, where it was read from a file */
    id_list ids;
    /* results */
    char *answer; /* JSON only */
    size_t n_answer;
    size_t n_produced;
    const char *reason;
    double load_s, prompt_s, answer_s;
    bool progress_shown;
} run;

/* ---- the prompt */

static int read_all(FILE *f, const char *name, char **text, size_t *n)
{
    size_t cap = 1 << 16;
    size_t used = 0;
    char *p = malloc(cap);
    while (p) {
        used += fread(p + used, 1, cap - used, f);
        if (used < cap) {
            break;
        }
        cap *= 2;
        char *q = realloc(p, cap);
        if (!q) {
            free(p);
        }
        p = q;
    }
    if (!p) {
        return fail(EXIT_MEMORY, "%s: out of memory", name);
    }
    *text = p;
    *n = used;
    return ferror(f) ? fail(EXIT_INPUT, "%s: %s", name, strerror(errno)) : 0;
}

static int get_prompt(run *r, const char **text, size_t *n)
{
    const settings *s = r->s;
    if (s->prompt && s->file) {
        return fail(EXIT_USAGE, "--prompt and --file; give one");
    }
    if (s->prompt) {
        *text = s->prompt;
        *n = strlen(s->prompt);
        return 0;
    }
    bool from_stdin = s->file ? strcmp(s->file, "-") == 0 : !isatty(STDIN_FILENO);
    if (!s->file && !from_stdin) {
        return fail(EXIT_USAGE, "which prompt? Give one with -p TEXT or -f FILE");
    }
    FILE *f = from_stdin ? stdin : fopen(s->file, "rb");
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", s->file, strerror(errno));
    }
    int rc = read_all(f, from_stdin ? "standard input" : s->file, &r->text, n);
    if (!from_stdin) {
        (void)fclose(f);
    }
    *text = r->text;
    return rc;
}

static int check_utf8(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t i = 0; i < n;) {
        size_t len = utf8_length(p + i, n - i);
        if (len == 0) {
            return fail(EXIT_USAGE,
                        "the prompt is not UTF-8: byte 0x%02x at offset %zu; convert it, e.g. with "
                        "iconv -f latin1 -t utf-8",
                        p[i], i);
        }
        i += len;
    }
    return 0;
}

static int encode_prompt(run *r)
{
    const char *text = NULL;
    size_t n = 0;
    int rc = get_prompt(r, &text, &n);
    if (rc == 0) {
        rc = check_utf8(text, n);
    }
    if (rc == 0 && !r->s->raw) {
        rc = chat_find(r->s->template, r->model, &r->format);
    }
    if (rc == 0 && r->s->system && !r->format) {
        return fail(EXIT_USAGE, "--system-prompt needs a chat format, and this model has no chat "
                                "template; name one with --chat-template");
    }
    if (rc == 0) {
        rc = chat_encode(r->format, r->model, r->s->system, text, n, &r->ids);
    }
    if (rc == 0 && r->ids.n == 0) {
        return fail(EXIT_USAGE, "the prompt is empty");
    }
    return rc;
}

/* ---- making */

static int on_progress(void *user, size_t done, size_t total)
{
    run *r = user;
    if (!r->s->quiet && isatty(STDERR_FILENO)) {
        (void)fprintf(stderr, "\rprompt %zu of %zu tokens ", done, total);
        r->progress_shown = true;
    }
    return interrupted() != 0;
}

static uint64_t random_seed(void)
{
    uint64_t seed = (uint64_t)time(NULL) << 20 ^ (uint64_t)getpid();
    FILE *f = fopen("/dev/urandom", "rb");
    if (f) {
        uint64_t x = 0;
        seed = fread(&x, sizeof x, 1, f) == 1 ? x : seed;
        (void)fclose(f);
    }
    return seed >> 1; /* fits a signed number of any other tool */
}

static int parse_bias(const settings *s, size_t n_vocab, kvs_logit_bias *out)
{
    for (uint32_t i = 0; i < s->n_bias; i++) {
        char *end = NULL;
        char *end2 = NULL;
        errno = 0;
        long id = strtol(s->bias[i], &end, 10);
        float x = end && (*end == '+' || *end == '-') ? strtof(end, &end2) : 0.0f;
        if (errno != 0 || end == s->bias[i] || !end2 || *end2 != '\0' || id < 0 ||
            (size_t)id >= n_vocab) {
            return fail(EXIT_USAGE,
                        "--logit-bias: \"%s\" is not a token id below %zu and a signed number, as "
                        "in 42-100",
                        s->bias[i], n_vocab);
        }
        out[i] = (kvs_logit_bias){(int32_t)id, x};
    }
    return 0;
}

static int make_sampler(run *r, uint64_t seed)
{
    const settings *s = r->s;
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(r->model, &info);
    kvs_logit_bias bias[MAX_BIAS];
    int rc = parse_bias(s, info.n_vocab, bias);
    if (rc != 0) {
        return rc;
    }
    kvs_sampler_opts o = KVS_SAMPLER_OPTS_INIT;
    o.temperature = s->temperature;
    o.top_k = s->top_k;
    o.top_p = s->top_p;
    o.min_p = s->min_p;
    o.repeat_penalty = s->repeat_penalty;
    o.presence_penalty = s->presence_penalty;
    o.frequency_penalty = s->frequency_penalty;
    o.penalty_last_n = s->repeat_last_n;
    o.seed = seed;
    o.bias = bias;
    o.n_bias = s->n_bias;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_sampler_new(r->ctx, &o, info.n_vocab, &r->sampler, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_USAGE, st, &err, NULL);
}

static int make_session(run *r)
{
    int rc = make_plan(r->s, r->ctx, r->model, NULL, &r->plan);
    if (rc != 0) {
        return rc;
    }
    char line[256];
    for (uint32_t i = 0; kvs_plan_line(r->plan, i, line, sizeof line) > 0; i++) {
        note(r->s, "kv: %s", line);
    }
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(r->model, &info);
    if (kvs_plan_n_ctx(r->plan) > info.n_ctx_train) {
        note(r->s, "warning: a context of %u tokens is beyond the %u this model was trained for",
             kvs_plan_n_ctx(r->plan), info.n_ctx_train);
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = r->plan;
    o.progress = on_progress;
    o.progress_user = r;
    o.block = block_of(r->s, r->plan);
    kvs_status st = kvs_session_new(r->ctx, r->model, &o, &r->session, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

static int prepare(run *r, uint64_t seed)
{
    double t0 = now_seconds();
    kvs_err err = {KVS_OK, 0, "", ""};
    int rc = make_ctx(r->s, &r->ctx);
    if (rc == 0) {
        rc = open_model(r->s, r->ctx, 0, &r->model);
    }
    if (rc == 0 && !kvs_model_tokenizer(r->model)) {
        return fail(EXIT_INPUT, "%s: the file has no tokenizer", r->s->model);
    }
    if (rc == 0) {
        rc = make_session(r);
    }
    if (rc == 0) {
        rc = encode_prompt(r);
    }
    if (rc == 0) {
        rc = make_sampler(r, seed);
    }
    if (rc == 0) {
        uint32_t flags = r->s->special ? KVS_TOKENIZE_SPECIAL : 0;
        kvs_status st = kvs_detok_new(kvs_model_tokenizer(r->model), flags, &r->detok, &err);
        rc = st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
    }
    if (rc == 0 && r->format) {
        note(r->s, "chat format: %s (--raw completes the prompt as it is)", chat_name(r->format));
    }
    r->load_s = now_seconds() - t0;
    if (rc == 0 && r->s->verbose) {
        note(r->s, "seed %llu", (unsigned long long)seed);
    }
    return rc;
}

/* ---- the answer */

static int emit(run *r, const char *text, size_t n)
{
    if (!r->s->json) {
        if (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0) {
            return fail(EXIT_FAILED, "standard output: %s", strerror(errno));
        }
        return 0;
    }
    char *p = realloc(r->answer, r->n_answer + n + 1);
    if (!p) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    memcpy(p + r->n_answer, text, n);
    r->answer = p;
    r->n_answer += n;
    return 0;
}

static int emit_token(run *r, int32_t token)
{
    const char *text = "";
    size_t n = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_detok_put(r->detok, token, &text, &n, &err);
    return st == KVS_OK ? emit(r, text, n) : fail_err(EXIT_FAILED, st, &err, NULL);
}

static int process_prompt(run *r)
{
    double t0 = now_seconds();
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_session_sync(r->session, r->ids.ids, r->ids.n, NULL, &err);
    r->prompt_s = now_seconds() - t0;
    if (r->progress_shown) {
        (void)fputs("\r\033[K", stderr);
    }
    if (st == KVS_E_CANCELLED) {
        r->reason = "interrupted";
        return 0;
    }
    return st == KVS_OK ? 0
                        : fail_err(EXIT_FAILED, st, &err,
                                   st == KVS_E_LIMIT ? "--ctx-size sets the context" : NULL);
}

/* Produces tokens until something ends the answer; r->reason says what. */
static int answer(run *r)
{
    const kvs_tokenizer *tok = kvs_model_tokenizer(r->model);
    kvs_err err = {KVS_OK, 0, "", ""};
    while (!r->reason) {
        int32_t token = 0;
        if (interrupted()) {
            r->reason = "interrupted";
            break;
        }
        kvs_status st = kvs_session_sample(r->session, r->sampler, &token, &err);
        if (st != KVS_OK) {
            return fail_err(EXIT_FAILED, st, &err, NULL);
        }
        if (kvs_tokenizer_attr(tok, token) & KVS_TOKEN_EOG && !r->s->ignore_eos) {
            r->reason = "end";
            break;
        }
        int rc = emit_token(r, token);
        if (rc != 0) {
            return rc;
        }
        r->n_produced++;
        if (r->s->n_predict > 0 && r->n_produced >= r->s->n_predict) {
            r->reason = "length";
            break;
        }
        st = kvs_session_append(r->session, &token, 1, &err);
        if (st == KVS_E_LIMIT) {
            r->reason = "context";
        } else if (st != KVS_OK) {
            return fail_err(EXIT_FAILED, st, &err, NULL);
        }
    }
    const char *rest = "";
    size_t n = 0;
    kvs_detok_finish(r->detok, &rest, &n);
    return emit(r, rest, n);
}

/* ---- reports */

static double rate(size_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

static void report_text(const run *r, const kvs_session_stats *st)
{
    char state[32];
    const char *reason = r->reason ? r->reason : "";
    if (strcmp(reason, "interrupted") == 0) {
        note(r->s, "interrupted after %zu of %zu prompt tokens and %zu answer tokens",
             st->n_tokens < r->ids.n ? (size_t)st->n_tokens : r->ids.n, r->ids.n, r->n_produced);
    } else if (strcmp(reason, "length") == 0) {
        note(r->s, "stopped after %zu tokens; -n sets the limit, -1 for none", r->n_produced);
    } else if (strcmp(reason, "context") == 0) {
        note(r->s, "stopped: the context of %u tokens is full; --ctx-size sets it", st->n_ctx);
    }
    note(r->s,
         "start %.0f ms; prompt %zu tokens in %.2f s, %.1f tok/s; answer %zu tokens in %.2f s, "
         "%.1f tok/s; state %s",
         1e3 * r->load_s, r->ids.n, r->prompt_s, rate(r->ids.n, r->prompt_s), r->n_produced,
         r->answer_s, rate(r->n_produced, r->answer_s),
         format_bytes(state, sizeof state, (double)st->state_bytes));
}

static void report_json(const run *r, const kvs_session_stats *st, uint64_t seed)
{
    size_t n = 0;
    const int32_t *tokens = kvs_session_tokens(r->session, &n);
    (void)fputs("{\"text\":", stdout);
    json_text(stdout, r->answer ? r->answer : "", r->n_answer);
    (void)printf(",\"finish\":\"%s\",\"prompt_tokens\":%zu,\"answer_tokens\":%zu,\"seed\":%llu",
                 r->reason ? r->reason : "", r->ids.n, r->n_produced, (unsigned long long)seed);
    (void)printf(",\"load_s\":%.4f,\"prompt_s\":%.4f,\"answer_s\":%.4f,\"state_bytes\":%zu,"
                 "\"scratch_bytes\":%zu,\"n_ctx\":%u,\"tokens\":[",
                 r->load_s, r->prompt_s, r->answer_s, st->state_bytes, st->scratch_bytes,
                 st->n_ctx);
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s%d", i ? "," : "", tokens[i]);
    }
    (void)fputs("]}\n", stdout);
}

static void run_free(run *r)
{
    kvs_detok_free(r->detok);
    kvs_sampler_free(r->sampler);
    kvs_session_free(r->session);
    kvs_plan_free(r->plan);
    kvs_model_close(r->model);
    kvs_ctx_free(r->ctx);
    free(r->text);
    free(r->ids.ids);
    free(r->answer);
}

static int finish(run *r, uint64_t seed)
{
    kvs_session_stats st = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(r->session, &st);
    if (r->s->json) {
        report_json(r, &st, seed);
    } else if (r->n_produced > 0) {
        (void)putchar('\n');
    }
    int rc = finish_stdout(0);
    report_text(r, &st);
    return rc == 0 ? interrupted() : rc;
}

int cmd_run(settings *s)
{
    run r = {.s = s};
    uint64_t seed = s->seed_given ? s->seed : random_seed();
    catch_signals();
    int rc = prepare(&r, seed);
    if (rc == 0) {
        rc = process_prompt(&r);
    }
    if (rc == 0) {
        double t0 = now_seconds();
        rc = r.reason ? 0 : answer(&r);
        r.answer_s = now_seconds() - t0;
    }
    if (rc == 0) {
        rc = finish(&r, seed);
    }
    run_free(&r);
    return rc;
}
