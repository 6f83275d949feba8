/* SPDX-License-Identifier: MIT */
/* cmd_run.c: completes one prompt. Text goes to standard output as it comes, everything else to
 * standard error. An interrupted answer is a result: it is told how far it came. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "commands.h"
#include "machine.h"
#include "prompt_file.h"
#include "saved.h"

typedef struct run {
    settings *s;
    machine m;
    chat_template *format;
    prompt_file file;
    size_t n_reused;
    char *text; /* the prompt, where it was read from a file */
    id_list ids;
    id_list made;
    /* results */
    char *answer; /* JSON only */
    size_t n_answer;
    const char *reason;
    double load_s, prompt_s, answer_s;
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

static int encode_prompt(run *r)
{
    const char *text = NULL;
    size_t n = 0;
    int rc = get_prompt(r, &text, &n);
    if (rc == 0) {
        rc = check_utf8("the prompt", text, n);
    }
    if (rc == 0 && r->s->system) {
        rc = check_utf8("the system message", r->s->system, strlen(r->s->system));
    }
    if (rc == 0 && !r->s->raw && !r->file.unknown) {
        rc = chat_open(r->s, r->m.ctx, r->m.model, false, &r->format);
    }
    if (rc == 0 && r->s->system && !r->format) {
        bool refused = r->s->raw || (r->s->template && strcmp(r->s->template, "none") == 0);
        return fail(EXIT_USAGE, "--system needs a chat format, %s",
                    refused ? "which --raw and --chat-template none do without"
                            : "and this model has no chat template; name one with --chat-template");
    }
    if (rc == 0) {
        rc = r->format ? chat_encode_turn(r->format, r->s->system, text, n, &r->ids)
                       : chat_encode_raw(r->m.model, text, n, &r->ids);
    }
    if (rc == 0 && r->ids.n == 0) {
        return fail(EXIT_USAGE, "the prompt is empty");
    }
    return rc;
}

static int prepare(run *r)
{
    double t0 = now_seconds();
    int rc = machine_open(&r->m, r->s);
    if (rc == 0) {
        rc = prompt_file_load(&r->m, &r->file);
    }
    if (rc == 0) {
        rc = encode_prompt(r);
    }
    if (rc == 0) {
        rc = machine_sampler(&r->m);
    }
    if (rc == 0 && r->format) {
        note(r->s, "chat format: %s (--raw completes the prompt as it is)", chat_name(r->format));
    }
    r->load_s = now_seconds() - t0;
    return rc;
}

/* ---- the answer */

static int emit(void *user, const char *text, size_t n)
{
    run *r = user;
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

/* ---- reports */

static void report_text(const run *r, const kvs_session_stats *st)
{
    char state[32];
    saved_report(&r->m);
    const char *reason = r->reason ? r->reason : "";
    if (r->n_reused > 0) {
        note(r->s, "%zu tokens were not computed again", r->n_reused);
    }
    if (strcmp(reason, "interrupted") == 0) {
        note(r->s, "interrupted after %zu of %zu prompt tokens and %zu answer tokens",
             st->n_tokens < r->ids.n ? (size_t)st->n_tokens : r->ids.n, r->ids.n, r->made.n);
    } else if (strcmp(reason, "length") == 0) {
        note(r->s, "stopped after %zu tokens; -n sets the limit, -1 for none", r->made.n);
    } else if (strcmp(reason, "context") == 0) {
        note(r->s, "stopped: the context of %u tokens is full; --ctx-size sets it", st->n_ctx);
    }
    note(r->s,
         "start %.0f ms; prompt %zu tokens in %.2f s, %.1f tok/s; answer %zu tokens in %.2f s, "
         "%.1f tok/s; state %s",
         1e3 * r->load_s, r->ids.n, r->prompt_s, rate(r->ids.n, r->prompt_s), r->made.n,
         r->answer_s, rate(r->made.n, r->answer_s),
         format_bytes(state, sizeof state, (double)st->state_bytes));
    machine_note_drafts(&r->m);
}

static void report_json(const run *r, const kvs_session_stats *st)
{
    size_t n = 0;
    const int32_t *tokens = kvs_session_tokens(r->m.session, &n);
    (void)fputs("{\"text\":", stdout);
    json_text(stdout, r->answer ? r->answer : "", r->n_answer);
    (void)printf(",\"finish\":\"%s\",\"prompt_tokens\":%zu,\"answer_tokens\":%zu,\"seed\":%llu",
                 r->reason ? r->reason : "", r->ids.n, r->made.n, (unsigned long long)r->m.seed);
    (void)printf(",\"reused\":%llu", (unsigned long long)saved_reused(&r->m));
    saved_json(stdout, &r->m);
    if (r->s->prompt_cache) {
        (void)printf(",\"reused_tokens\":%zu", r->n_reused);
    }
    (void)printf(",\"load_s\":%.4f,\"prompt_s\":%.4f,\"answer_s\":%.4f,\"state_bytes\":%zu,"
                 "\"scratch_bytes\":%zu,\"n_ctx\":%u,\"tokens\":[",
                 r->load_s, r->prompt_s, r->answer_s, st->state_bytes, st->scratch_bytes,
                 st->n_ctx);
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s%d", i ? "," : "", tokens[i]);
    }
    kvs_spec_stats d = machine_drafts(&r->m);
    uint64_t rewinds = 0;
    uint64_t recomputed = 0;
    machine_undo(&r->m, &rewinds, &recomputed);
    (void)printf("],\"rounds\":%llu,\"drafts\":%llu,\"accepted\":%llu,\"undo_rewinds\":%llu,"
                 "\"undo_recomputed\":%llu}\n",
                 (unsigned long long)d.n_rounds, (unsigned long long)d.n_drafts,
                 (unsigned long long)d.n_accepted, (unsigned long long)rewinds,
                 (unsigned long long)recomputed);
}

static void run_free(run *r)
{
    chat_close(r->format);
    machine_close(&r->m);
    free(r->text);
    free(r->ids.ids);
    free(r->made.ids);
    free(r->answer);
}

static int finish(run *r)
{
    kvs_session_stats st = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(r->m.session, &st);
    if (r->s->json) {
        report_json(r, &st);
    } else if (r->made.n > 0) {
        (void)putchar('\n');
    }
    int rc = finish_stdout(0);
    report_text(r, &st);
    return rc == 0 ? interrupted() : rc;
}

/* Makes the session hold the prompt, from a file of state, or what the cache has of it and of an
 * answer that was cut off. */
static int take_prompt(run *r)
{
    if (r->s->prompt_cache) {
        return prompt_file_sync(&r->m, &r->file, &r->ids, &r->n_reused, &r->reason);
    }
    saved_request(&r->m, "run");
    return machine_resume(&r->m, &r->ids, emit, r, &r->made, &r->reason);
}

int cmd_run(settings *s)
{
    run r = {.s = s};
    catch_signals();
    int rc = prepare(&r);
    double t0 = now_seconds();
    if (rc == 0) {
        rc = take_prompt(&r);
        r.prompt_s = now_seconds() - t0;
    }
    if (rc == 0 && !r.reason) {
        rc = prompt_file_save(&r.m, &r.file, false);
    }
    if (rc == 0) {
        t0 = now_seconds();
        rc = r.reason ? 0 : machine_answer(&r.m, emit, &r, &r.made, &r.reason);
        r.answer_s = now_seconds() - t0;
    }
    if (rc == 0 && r.reason && strcmp(r.reason, "interrupted") != 0) {
        saved_done(&r.m, &r.ids);
    }
    if (rc == 0) {
        rc = prompt_file_save(&r.m, &r.file, true);
    }
    if (rc == 0) {
        rc = finish(&r);
    }
    run_free(&r);
    return rc;
}
