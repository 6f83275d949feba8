/* SPDX-License-Identifier: MIT */
/* cmd_chat.c: a conversation: lines in, answers out, commands that begin with a slash. Answers go to
 * standard output, everything else to standard error; with --json one object a turn. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "line.h"
#include "saved.h"
#include "talk.h"

typedef struct totals {
    size_t turns, prompt, reused, computed, recomputed, answered;
    double prompt_s, answer_s;
} totals;

typedef struct chat {
    settings *s;
    machine m;
    chat_template *template;
    talk talk;
    line_input *input;
    totals sum;
    char *answer; /* of the turn */
    size_t n_answer;
    bool done;
    int status; /* of the last turn that failed */
} chat;

typedef struct turn {
    talk_asked asked;
    size_t held, reused, recomputed;
    kvs_spec_stats before; /* of drafts */
    id_list made;
    const char *reason;
    double prompt_s, answer_s;
} turn;

/* ---- one turn */

static int emit(void *user, const char *text, size_t n)
{
    chat *c = user;
    char *p = realloc(c->answer, c->n_answer + n + 1);
    if (!p) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    memcpy(p + c->n_answer, text, n);
    c->answer = p;
    c->n_answer += n;
    if (!c->s->json && (fwrite(text, 1, n, stdout) != n || fflush(stdout) != 0)) {
        return fail(EXIT_FAILED, "standard output: %s", strerror(errno));
    }
    return 0;
}

/* Tokens that were computed although the session had them, or their text, before. */
static size_t count_recomputed(const chat *c, const turn *t)
{
    size_t computed = c->talk.ids.n - t->reused;
    if (t->asked.exact) {
        size_t had = t->asked.kept < t->held ? t->asked.kept : t->held;
        return had > t->reused ? had - t->reused : 0;
    }
    return computed > t->asked.n_new ? computed - t->asked.n_new : 0;
}

static void report_json(const chat *c, const turn *t, size_t n_prompt)
{
    kvs_session_stats st = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(c->m.session, &st);
    kvs_spec_stats d = machine_drafts(&c->m);
    (void)printf("{\"turn\":%zu,\"text\":", c->talk.n_turns);
    json_text(stdout, c->answer ? c->answer : "", c->n_answer);
    (void)printf(",\"finish\":\"%s\",\"prompt_tokens\":%zu,\"held\":%zu,\"kept\":%zu,\"exact\":%s,"
                 "\"new\":%zu,\"reused\":%zu,\"computed\":%zu,\"recomputed\":%zu,"
                 "\"answer_tokens\":%zu,\"prompt_s\":%.4f,\"answer_s\":%.4f,\"state_bytes\":%zu,"
                 "\"drafts\":%llu,\"accepted\":%llu",
                 t->reason, n_prompt, t->held, t->asked.kept, t->asked.exact ? "true" : "false",
                 t->asked.n_new, t->reused, n_prompt - t->reused, t->recomputed, t->made.n,
                 t->prompt_s, t->answer_s, st.state_bytes,
                 (unsigned long long)(d.n_drafts - t->before.n_drafts),
                 (unsigned long long)(d.n_accepted - t->before.n_accepted));
    saved_json(stdout, &c->m);
    (void)fputs("}\n", stdout);
    (void)fflush(stdout);
}

static void report_text(const chat *c, const turn *t, size_t n_prompt)
{
    if (c->n_answer > 0 && c->answer[c->n_answer - 1] != '\n') {
        (void)putchar('\n');
    }
    (void)fflush(stdout);
    if (strcmp(t->reason, "interrupted") == 0) {
        note(c->s, "[stopped after %zu tokens; they are kept]", t->made.n);
    } else if (strcmp(t->reason, "length") == 0) {
        note(c->s, "[stopped after %zu tokens; -n sets the limit, -1 for none]", t->made.n);
    } else if (strcmp(t->reason, "context") == 0) {
        note(c->s, "[the context is full; /clear begins anew, --ctx-size sets it]");
    }
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(c->m.session, &r);
    if (r.n_disk > 0) {
        note(c->s, "[%llu of %zu tokens from disk, %.0f ms]", (unsigned long long)r.n_disk,
             n_prompt, 1e3 * r.disk_s);
    }
    if (t->recomputed > 0) {
        note(c->s, "[%zu tokens computed again%s]", t->recomputed,
             t->asked.exact ? ": the window layers could not go back"
                            : ": the template changed earlier text");
    }
    if (c->s->verbose) {
        note(c->s,
             "[prompt %zu tokens, %zu reused, %zu computed, %.1f tok/s; answer %zu, %.1f "
             "tok/s]",
             n_prompt, t->reused, n_prompt - t->reused, rate(n_prompt - t->reused, t->prompt_s),
             t->made.n, rate(t->made.n, t->answer_s));
        machine_note_drafts(&c->m);
    }
}

static void add_up(chat *c, const turn *t, size_t n_prompt)
{
    c->sum.turns++;
    c->sum.prompt += n_prompt;
    c->sum.reused += t->reused;
    c->sum.computed += n_prompt - t->reused;
    c->sum.recomputed += t->recomputed;
    c->sum.answered += t->made.n;
    c->sum.prompt_s += t->prompt_s;
    c->sum.answer_s += t->answer_s;
}

/* With the question in: its prompt computed, and an answer. */
static int answer(chat *c, turn *t)
{
    double t0 = now_seconds();
    (void)kvs_session_tokens(c->m.session, &t->held);
    int rc = machine_sync(&c->m, &c->talk.ids, &t->reused, &t->reason);
    t->prompt_s = now_seconds() - t0;
    if (rc != 0 || t->reason) {
        (void)talk_undo(&c->talk);
        if (rc == 0) {
            note(c->s, "[stopped before the answer began; the question is taken back]");
        }
        return rc;
    }
    size_t n_prompt = c->talk.ids.n;
    t->recomputed = count_recomputed(c, t);
    t0 = now_seconds();
    c->n_answer = 0;
    t->before = machine_drafts(&c->m);
    rc = machine_answer(&c->m, emit, c, &t->made, &t->reason);
    t->answer_s = now_seconds() - t0;
    if (rc == 0) {
        rc = talk_answer(&c->talk, &t->made, c->answer ? c->answer : "", c->n_answer);
    }
    if (rc != 0) {
        (void)talk_undo(&c->talk);
        return rc;
    }
    add_up(c, t, n_prompt);
    if (c->s->json) {
        report_json(c, t, n_prompt);
    } else {
        report_text(c, t, n_prompt);
    }
    return 0;
}

static int say(chat *c, const char *text, size_t n)
{
    turn t = {.reason = NULL};
    int rc = check_utf8("the question", text, n);
    if (rc == 0) {
        rc = talk_ask(&c->talk, text, n, &t.asked);
    }
    if (rc == 0) {
        rc = answer(c, &t);
    }
    free(t.made.ids);
    interrupt_done();
    return rc;
}

/* ---- commands */

static int do_help(chat *c, const char *arg)
{
    (void)c;
    (void)arg;
    (void)fputs("/stats         what was reused and computed, speeds, bytes of the state\n"
                "/undo          takes back the last question and its answer\n"
                "/system TEXT   the system message; without TEXT shows it, with - removes it\n"
                "/clear         begins anew (the system message stays)\n"
                "/save FILE     writes the conversation, with its exact tokens\n"
                "/load FILE     goes on with a saved one\n"
                "/help          this text\n"
                "/exit          ends (so does Ctrl-D)\n"
                "Ctrl-C stops an answer. A line that ends in a backslash goes on in the next;\n"
                "\"\"\" begins and ends a text of several lines; // begins a line with a slash.\n",
                stderr);
    return 0;
}

static int do_exit(chat *c, const char *arg)
{
    (void)arg;
    c->done = true;
    return 0;
}

static int do_stats(chat *c, const char *arg)
{
    char state[32];
    const totals *t = &c->sum;
    kvs_session_stats st = KVS_SESSION_STATS_INIT;
    (void)arg;
    (void)kvs_session_get_stats(c->m.session, &st);
    kvs_spec_stats d = machine_drafts(&c->m);
    if (c->s->json) {
        (void)printf("{\"stats\":{\"turns\":%zu,\"prompt_tokens\":%zu,\"reused\":%zu,"
                     "\"computed\":%zu,\"recomputed\":%zu,\"answer_tokens\":%zu,"
                     "\"prompt_tok_s\":%.2f,\"answer_tok_s\":%.2f,\"tokens\":%zu,\"n_ctx\":%u,"
                     "\"state_bytes\":%zu,\"drafts\":%llu,\"accepted\":%llu}}\n",
                     t->turns, t->prompt, t->reused, t->computed, t->recomputed, t->answered,
                     rate(t->computed, t->prompt_s), rate(t->answered, t->answer_s), c->talk.ids.n,
                     st.n_ctx, st.state_bytes, (unsigned long long)d.n_drafts,
                     (unsigned long long)d.n_accepted);
        (void)fflush(stdout);
        return 0;
    }
    (void)fprintf(stderr,
                  "%zu turns since the start; %zu tokens now, of %u\n"
                  "prompts %zu tokens: %zu reused, %zu computed (%zu of them again), %.1f tok/s\n"
                  "answers %zu tokens, %.1f tok/s; state %s\n",
                  t->turns, c->talk.ids.n, st.n_ctx, t->prompt, t->reused, t->computed,
                  t->recomputed, rate(t->computed, t->prompt_s), t->answered,
                  rate(t->answered, t->answer_s),
                  format_bytes(state, sizeof state, (double)st.state_bytes));
    machine_note_drafts(&c->m);
    return 0;
}

static int do_undo(chat *c, const char *arg)
{
    (void)arg;
    if (!talk_undo(&c->talk)) {
        return fail(EXIT_USAGE, "/undo: there is no turn to take back");
    }
    size_t held = 0;
    (void)kvs_session_tokens(c->m.session, &held);
    size_t back = held > c->talk.ids.n ? held - c->talk.ids.n : 0;
    bool can =
        kvs_cache_can_rewind(kvs_session_cache(c->m.session), KVS_ALL_LAYERS, back) == KVS_OK;
    note(c->s, "[the last turn is taken back%s]",
         back == 0 || can || !c->s->no_cache
             ? ""
             : "; window layers can't go back, so the next question computes all "
               "of the conversation again");
    return 0;
}

static int do_system(chat *c, const char *arg)
{
    const chat_message *m = talk_get_system(&c->talk);
    if (!*arg) {
        (void)fprintf(stderr, "%s\n", m ? m->text : "(no system message)");
        return 0;
    }
    bool remove = strcmp(arg, "-") == 0;
    int rc = check_utf8("the system message", arg, strlen(arg));
    if (rc == 0) {
        rc = talk_system(&c->talk, remove ? NULL : arg, strlen(arg));
    }
    if (rc == 0 && c->talk.n_turns > 0) {
        note(c->s, "[the next question computes the conversation again: its beginning changed]");
    }
    return rc;
}

static int do_clear(chat *c, const char *arg)
{
    (void)arg;
    talk_clear(&c->talk);
    return 0;
}

static int do_save(chat *c, const char *arg)
{
    if (!*arg) {
        return fail(EXIT_USAGE, "/save FILE");
    }
    int rc = talk_save(&c->talk, arg);
    if (rc == 0) {
        note(c->s, "[%zu turns, %zu tokens written to %s]", c->talk.n_turns, c->talk.ids.n, arg);
    }
    return rc;
}

static int do_load(chat *c, const char *arg)
{
    if (!*arg) {
        return fail(EXIT_USAGE, "/load FILE");
    }
    int rc = talk_load(&c->talk, c->s, c->m.ctx, arg);
    if (rc == 0) {
        note(c->s, "[%zu turns, %zu tokens; the next question computes them]", c->talk.n_turns,
             c->talk.ids.n);
    }
    return rc;
}

static int command(chat *c, const char *text)
{
    static const struct {
        const char *name;
        int (*fn)(chat *c, const char *arg);
    } known[] = {{"help", do_help},     {"exit", do_exit},   {"quit", do_exit}, {"stats", do_stats},
                 {"undo", do_undo},     {"clear", do_clear}, {"save", do_save}, {"load", do_load},
                 {"system", do_system}, {"?", do_help}};
    size_t len = strcspn(text + 1, " \t\n");
    const char *arg = text + 1 + len;
    arg += strspn(arg, " \t\n");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].name) == len && memcmp(known[i].name, text + 1, len) == 0) {
            return known[i].fn(c, arg);
        }
    }
    return fail(EXIT_USAGE, "unknown command %.*s; /help lists them",
                (int)(len < 40 ? len + 1 : 40), text);
}

/* ---- the whole */

/* One entry: a command, or something to say; // begins a line with a slash. */
static int take(chat *c, const char *text, size_t n)
{
    if (n == 0) {
        return 0;
    }
    bool slash = text[0] == '/';
    if (slash && (n < 2 || text[1] != '/')) {
        return command(c, text);
    }
    return say(c, text + slash, n - slash);
}

/* No more lines: as it should be, or because they can't be read. */
static int input_ended(const chat *c)
{
    int error = line_error(c->input);
    if (line_is_tty(c->input)) {
        (void)putchar('\n');
    }
    return error == 0 ? 0 : fail(EXIT_INPUT, "standard input: %s", strerror(error));
}

static int loop(chat *c)
{
    while (!c->done && interrupted() != EXIT_SIGTERM) {
        const char *text = NULL;
        size_t n = 0;
        line_status st = line_read(c->input, "> ", &text, &n);
        if (st == LINE_INTERRUPTED) {
            interrupt_done();
            if (line_is_tty(c->input)) {
                note(c->s, "\n[Ctrl-D or /exit ends]");
            }
            continue;
        }
        int rc = st == LINE_END ? input_ended(c) : take(c, text, n);
        c->done = c->done || st == LINE_END;
        c->status = rc != 0 ? rc : c->status;
        if (ferror(stdout)) {
            return rc != 0 ? rc : fail(EXIT_FAILED, "standard output can't be written");
        }
    }
    if (interrupted() == EXIT_SIGTERM) {
        return EXIT_SIGTERM;
    }
    /* a person has seen what went wrong, a program sees the status */
    return line_is_tty(c->input) ? 0 : c->status;
}

static int prepare(chat *c)
{
    int rc = machine_open(&c->m, c->s);
    if (rc == 0) {
        rc = chat_open(c->s, c->m.ctx, c->m.model, true, &c->template);
    }
    if (rc == 0) {
        rc = machine_sampler(&c->m);
    }
    c->talk.template = c->template;
    c->talk.model = c->m.model;
    if (rc == 0 && c->s->system) {
        rc = check_utf8("the system message", c->s->system, strlen(c->s->system));
    }
    if (rc == 0 && c->s->system) {
        rc = talk_system(&c->talk, c->s->system, strlen(c->s->system));
    }
    if (rc == 0) {
        rc = line_open(c->s, !c->s->no_history, &c->input);
    }
    if (rc == 0) {
        note(c->s, "chat template: %s", chat_name(c->template));
        if (line_is_tty(c->input)) {
            note(c->s, "/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
        }
    }
    return rc;
}

int cmd_chat(settings *s)
{
    chat c = {.s = s};
    catch_signals();
    int rc = prepare(&c);
    if (rc == 0) {
        rc = loop(&c);
    }
    line_close(c.input);
    talk_free(&c.talk);
    chat_close(c.template);
    machine_close(&c.m);
    free(c.answer);
    return rc;
}
