/* SPDX-License-Identifier: MIT */
/* machine.c: see machine.h. */
#include "machine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "saved.h"

int ids_add(id_list *l, const int32_t *ids, size_t n)
{
    if (l->cap - l->n < n) {
        size_t cap = 2 * l->cap > l->n + n ? 2 * l->cap : l->n + n + 256;
        int32_t *p = realloc(l->ids, cap * sizeof *p);
        if (!p) {
            return fail(EXIT_MEMORY, "out of memory");
        }
        l->ids = p;
        l->cap = cap;
    }
    if (n > 0) {
        memcpy(l->ids + l->n, ids, n * sizeof *ids);
    }
    l->n += n;
    return 0;
}

double rate(size_t n, double seconds)
{
    return seconds > 0.0 ? (double)n / seconds : 0.0;
}

static int on_progress(void *user, size_t done, size_t total)
{
    machine *m = user;
    if (!m->s->quiet && isatty(STDERR_FILENO)) {
        (void)fprintf(stderr, "\rprompt %zu of %zu tokens ", done, total);
        m->progress_shown = true;
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

/* ---- tokens of an answer */

typedef struct answer {
    emit_fn emit;
    void *user;
    id_list *made;
    const char **reason;
    int rc;
} answer;

static int emit_token(machine *m, int32_t token, emit_fn emit, void *user)
{
    const char *text = "";
    size_t n = 0;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_detok_put(m->detok, token, &text, &n, &err);
    return st == KVS_OK ? emit(user, text, n) : fail_err(EXIT_FAILED, st, &err, NULL);
}

/* The next token of the answer; what the session is to do with it (KVS_SPEC_*). The last one of an
 * answer is not computed. */
static int take_token(machine *m, answer *a, int32_t token)
{
    const kvs_tokenizer *tok = kvs_model_tokenizer(m->model);
    if (kvs_tokenizer_attr(tok, token) & KVS_TOKEN_EOG && !m->s->ignore_eos) {
        *a->reason = "end";
        return KVS_SPEC_DROP;
    }
    a->rc = emit_token(m, token, a->emit, a->user);
    if (a->rc == 0) {
        a->rc = ids_add(a->made, &token, 1);
    }
    if (a->rc != 0) {
        return KVS_SPEC_DROP;
    }
    if (m->s->n_predict > 0 && a->made->n >= m->s->n_predict) {
        *a->reason = "length";
        return KVS_SPEC_DROP;
    }
    if (m->progress_prompt) {
        saved_progress(m, m->progress_prompt, a->made);
    }
    return KVS_SPEC_GO;
}

static int on_token(void *user, int32_t token)
{
    machine *m = user;
    if (interrupted()) {
        *m->answer->reason = "interrupted";
        return KVS_SPEC_DROP;
    }
    return take_token(m, m->answer, token);
}

/* ---- drafts */

/* "ngram" or "ngram:N"; false: a file. */
static bool parse_ngram(const char *how, uint32_t *least, int *rc)
{
    *least = 0;
    *rc = 0;
    if (strcmp(how, "ngram") == 0) {
        return true;
    }
    if (strncmp(how, "ngram:", 6) != 0) {
        return false;
    }
    char *end = NULL;
    unsigned long n = strtoul(how + 6, &end, 10);
    if (how[6] < '0' || how[6] > '9' || *end != '\0' || n < 1 || n > 32) {
        *rc = fail(EXIT_USAGE, "--draft: \"%s\": N of ngram:N is a whole number from 1 to 32", how);
    }
    *least = (uint32_t)n;
    return true;
}

/* Before the session, whose prefix cache has its state, too. What is wrong with the options make_drafts
 * says. */
static int open_draft_model(machine *m)
{
    settings other = *m->s;
    uint32_t least = 0;
    int rc = 0;
    other.model = other.draft ? other.draft : other.draft_model;
    if (!other.model || (other.draft && other.draft_model) ||
        (other.draft && parse_ngram(other.draft, &least, &rc)) || rc != 0) {
        return rc;
    }
    return open_model(&other, m->ctx, 0, &m->draft_model);
}

static int make_drafts(machine *m)
{
    const settings *s = m->s;
    const char *how = s->draft ? s->draft : s->draft_model;
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    int rc = 0;
    if (s->draft && s->draft_model) {
        return fail(EXIT_USAGE, "--draft and --draft-model; give one");
    }
    if (!how) {
        return s->draft_max ? fail(EXIT_USAGE, "--draft-max needs --draft or --draft-model") : 0;
    }
    if (s->draft) {
        (void)parse_ngram(how, &o.ngram, &rc);
    }
    o.draft_model = m->draft_model;
    o.max_drafts = s->draft_max;
    o.sampler = m->sampler;
    o.on_token = on_token;
    o.user = m;
    kvs_status st = kvs_spec_new(m->session, &o, &m->spec, &err);
    return st == KVS_OK ? 0
                        : fail_err(EXIT_USAGE, st, &err,
                                   st == KVS_E_UNSUPPORTED ? "--undo sets how far" : NULL);
}

kvs_spec_stats machine_drafts(const machine *m)
{
    kvs_spec_stats st = KVS_SPEC_STATS_INIT;
    if (m->spec) {
        (void)kvs_spec_get_stats(m->spec, &st);
    }
    return st;
}

const char *machine_draft_tier(const kvs_spec_stats *st)
{
    return st->draft_reused == 0                    ? "none"
           : st->draft_restored == 0                ? "memory"
           : st->draft_restored == st->draft_reused ? "disk"
                                                    : "disk and memory";
}

void machine_undo(const machine *m, uint64_t *rewinds, uint64_t *recomputed)
{
    const kvs_cache *c = kvs_session_cache(m->session);
    *rewinds = *recomputed = 0;
    for (uint32_t l = 0; l < kvs_cache_n_layers(c); l++) {
        kvs_recurrent_stats st = KVS_RECURRENT_STATS_INIT;
        if (kvs_recurrent_get_stats(c, l, &st) == KVS_OK) { /* alike in all of them */
            *rewinds = st.n_rewinds > *rewinds ? st.n_rewinds : *rewinds;
            *recomputed = st.n_recomputed > *recomputed ? st.n_recomputed : *recomputed;
        }
    }
}

void machine_note_drafts(const machine *m)
{
    kvs_spec_stats st = machine_drafts(m);
    if (m->spec && st.n_rounds > 0) {
        note(m->s, "drafts: %llu of %llu accepted (%.0f %%), %.2f tokens a step",
             (unsigned long long)st.n_accepted, (unsigned long long)st.n_drafts,
             100.0 * rate(st.n_accepted, (double)st.n_drafts),
             rate(st.n_tokens, (double)st.n_rounds));
    }
    if (m->draft_model && st.draft_reused > 0) {
        note(m->s, "draft model: %llu tokens reused from %s, %llu computed",
             (unsigned long long)st.draft_reused, machine_draft_tier(&st),
             (unsigned long long)st.draft_computed);
    }
    uint64_t rewinds = 0;
    uint64_t recomputed = 0;
    machine_undo(m, &rewinds, &recomputed);
    if (rewinds > 0) {
        note(m->s, "recurrent layers went back %llu times and computed %llu tokens again",
             (unsigned long long)rewinds, (unsigned long long)recomputed);
    }
}

int machine_sampler(machine *m)
{
    const settings *s = m->s;
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(m->model, &info);
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
    o.seed = m->seed;
    o.bias = bias;
    o.n_bias = s->n_bias;
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_spec_free(m->spec);
    m->spec = NULL;
    kvs_sampler_free(m->sampler);
    m->sampler = NULL;
    kvs_status st = kvs_sampler_new(m->ctx, &o, info.n_vocab, &m->sampler, &err);
    return st == KVS_OK ? make_drafts(m) : fail_err(EXIT_USAGE, st, &err, NULL);
}

static int make_session(machine *m)
{
    int rc = make_plan(m->s, m->ctx, m->model, NULL, &m->plan);
    if (rc != 0) {
        return rc;
    }
    char line[256];
    for (uint32_t i = 0; kvs_plan_line(m->plan, i, line, sizeof line) > 0; i++) {
        note(m->s, "kv: %s", line);
    }
    kvs_model_info info = KVS_MODEL_INFO_INIT;
    (void)kvs_model_get_info(m->model, &info);
    if (kvs_plan_n_ctx(m->plan) > info.n_ctx_train) {
        note(m->s, "warning: a context of %u tokens is beyond the %u this model was trained for",
             kvs_plan_n_ctx(m->plan), info.n_ctx_train);
    }
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = m->plan;
    o.progress = on_progress;
    o.progress_user = m;
    o.block = block_of(m->s, m->plan);
    o.prefix_cache = saved_prefixes(m);
    kvs_status st = kvs_session_new(m->ctx, m->model, &o, &m->session, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

int machine_open(machine *m, settings *s)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    m->s = s;
    m->seed = s->seed_given ? s->seed : random_seed();
    int rc = make_ctx(s, &m->ctx);
    if (rc == 0) {
        rc = open_model(s, m->ctx, 0, &m->model);
    }
    if (rc == 0 && !kvs_model_tokenizer(m->model)) {
        return fail(EXIT_INPUT, "%s: the file has no tokenizer", s->model);
    }
    rc = rc == 0 ? open_draft_model(m) : rc;
    rc = rc == 0 ? make_session(m) : rc;
    if (rc == 0) {
        uint32_t flags = s->special ? KVS_TOKENIZE_SPECIAL : 0;
        kvs_status st = kvs_detok_new(kvs_model_tokenizer(m->model), flags, &m->detok, &err);
        rc = st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
    }
    if (rc == 0) {
        saved_open(m);
    }
    if (rc == 0 && s->verbose) {
        note(s, "seed %llu", (unsigned long long)m->seed);
    }
    return rc;
}

void machine_close(machine *m)
{
    kvs_detok_free(m->detok);
    kvs_spec_free(m->spec);
    kvs_sampler_free(m->sampler);
    kvs_session_free(m->session);
    kvs_prefix_cache_free(m->prefixes);
    kvs_plan_free(m->plan);
    kvs_model_close(m->draft_model);
    kvs_model_close(m->model);
    kvs_ctx_free(m->ctx);
}

/* What came of computing a prompt. */
static int computed(machine *m, kvs_status st, const kvs_err *err, const char **reason)
{
    if (m->progress_shown) {
        (void)fputs("\r\033[K", stderr);
        m->progress_shown = false;
    }
    if (st == KVS_E_CANCELLED) {
        *reason = "interrupted";
        return 0;
    }
    return st == KVS_OK ? 0
                        : fail_err(EXIT_FAILED, st, err,
                                   st == KVS_E_LIMIT ? "--ctx-size sets the context" : NULL);
}

int machine_sync(machine *m, const id_list *ids, size_t *n_reused, const char **reason)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_session_sync(m->session, ids->ids, ids->n, n_reused, &err);
    return computed(m, st, &err, reason);
}

int machine_append(machine *m, const id_list *ids, const char **reason)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_status st = kvs_session_append(m->session, ids->ids, ids->n, &err);
    return computed(m, st, &err, reason);
}

/* One token after another: it is the context's end, or a failure. */
static int append_failed(const machine *m, kvs_status st, const kvs_err *err, const char **reason)
{
    size_t n = 0;
    (void)kvs_session_tokens(m->session, &n);
    if (st == KVS_E_LIMIT && n == kvs_plan_n_ctx(m->plan)) {
        *reason = "context";
        return 0;
    }
    return fail_err(EXIT_FAILED, st, err, NULL);
}

/* One token; *reason where it was the last. */
static int step(machine *m, answer *a)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    int32_t token = 0;
    kvs_status st = kvs_session_sample(m->session, m->sampler, &token, &err);
    if (st != KVS_OK) {
        return fail_err(EXIT_FAILED, st, &err, NULL);
    }
    if (take_token(m, a, token) != KVS_SPEC_GO) {
        return a->rc;
    }
    st = kvs_session_append(m->session, &token, 1, &err);
    return st == KVS_OK ? 0 : append_failed(m, st, &err, a->reason);
}

/* As many as a round of drafts yields. */
static int draft_step(machine *m, answer *a)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    m->answer = a;
    kvs_status st = kvs_spec_next(m->spec, &err);
    m->answer = NULL;
    if (a->rc != 0 || st == KVS_OK || st == KVS_NO) {
        return a->rc;
    }
    if (st == KVS_E_CANCELLED) {
        *a->reason = "interrupted";
        return 0;
    }
    return append_failed(m, st, &err, a->reason);
}

int machine_answer(machine *m, emit_fn emit, void *user, id_list *made, const char **reason)
{
    int rc = 0;
    answer a = {emit, user, made, reason, 0};
    while (rc == 0 && !*reason) {
        if (interrupted()) {
            *reason = "interrupted";
        } else {
            rc = m->spec ? draft_step(m, &a) : step(m, &a);
        }
    }
    const char *rest = "";
    size_t n = 0;
    kvs_detok_finish(m->detok, &rest, &n);
    (void)kvs_session_save(m->session, NULL);
    return rc == 0 ? emit(user, rest, n) : rc;
}

int machine_resume(machine *m, const id_list *prompt, emit_fn emit, void *user, id_list *made,
                   const char **reason)
{
    id_list all = {NULL, 0, 0};
    id_list ids = {NULL, 0, 0};
    m->progress_prompt = prompt;
    if (!saved_find(m, prompt, &ids, &m->seed)) {
        free(ids.ids);
        return machine_sync(m, prompt, NULL, reason);
    }
    m->progress_put = true;
    note(m->s, "going on with an answer that was cut off after %zu tokens", ids.n);
    int rc = machine_sampler(m);
    for (size_t i = 0; rc == 0 && i < ids.n; i++) {
        rc = emit_token(m, ids.ids[i], emit, user);
    }
    rc = rc == 0 ? ids_add(&all, prompt->ids, prompt->n) : rc;
    rc = rc == 0 ? ids_add(&all, ids.ids, ids.n) : rc;
    rc = rc == 0 ? ids_add(made, ids.ids, ids.n) : rc;
    rc = rc == 0 ? machine_sync(m, &all, NULL, reason) : rc;
    free(all.ids);
    free(ids.ids);
    return rc;
}
