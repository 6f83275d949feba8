/* SPDX-License-Identifier: MIT */
/* quality.c: text, windows and scores of quality.h. Logits of a batch of tokens go to one buffer a
 * plan; then the rows are shared among threads, each row's sums by one thread in a fixed order, and
 * added up in the order of the text: the figures do not depend on the number of threads. */
#include "quality.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 64u /* tokens whose logits are kept at a time */

/* ---- text */

static int read_text(const settings *s, char **text, size_t *n)
{
    size_t cap = (size_t)1 << 20;
    FILE *f = strcmp(s->file, "-") == 0 ? stdin : fopen(s->file, "rb");
    if (!f) {
        return fail(EXIT_INPUT, "%s: %s", s->file, strerror(errno));
    }
    *text = malloc(cap);
    *n = 0;
    while (*text) {
        size_t got = fread(*text + *n, 1, cap - *n, f);
        *n += got;
        if (*n < cap) {
            break;
        }
        cap *= 2;
        char *more = cap <= (size_t)512 << 20 ? realloc(*text, cap) : NULL;
        if (!more) {
            free(*text);
            *text = NULL;
        }
        *text = more;
    }
    bool bad = ferror(f) != 0;
    int why = errno;
    if (f != stdin) {
        (void)fclose(f);
    }
    if (!*text) {
        return fail(EXIT_MEMORY, "%s is too long", s->file);
    }
    return bad ? fail(EXIT_INPUT, "%s: %s", s->file, strerror(why)) : 0;
}

static int tokenize(quality *q, const char *text, size_t n)
{
    const kvs_tokenizer *tok = kvs_model_tokenizer(q->model);
    kvs_err err = {KVS_OK, 0, "", ""};
    if (!tok) {
        return fail(EXIT_INPUT, "%s has no tokenizer", q->s->model);
    }
    kvs_status st =
        kvs_tokenizer_encode(tok, text, n, KVS_TOKENIZE_ADD_SPECIAL, NULL, 0, &q->n_tokens, &err);
    q->tokens = st == KVS_OK ? malloc((q->n_tokens + 1) * sizeof *q->tokens) : NULL;
    if (st == KVS_OK && !q->tokens) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    if (st == KVS_OK) {
        st = kvs_tokenizer_encode(tok, text, n, KVS_TOKENIZE_ADD_SPECIAL, q->tokens, q->n_tokens,
                                  &q->n_tokens, &err);
    }
    q->bos = kvs_tokenizer_adds(tok) & 1u ? kvs_tokenizer_special(tok, KVS_SPECIAL_BOS) : -1;
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

static int cut(quality *q, uint32_t window)
{
    q->window = q->s->ctx_size ? q->s->ctx_size : window;
    if (q->window < 4) {
        return fail(EXIT_USAGE, "--ctx-size %u: a window has at least 4 tokens", q->window);
    }
    size_t n = q->n_tokens / q->window;
    if (n == 0) {
        return fail(EXIT_INPUT,
                    "%s has %zu tokens, fewer than one window of %u (--ctx-size sets it)",
                    q->s->file, q->n_tokens, q->window);
    }
    n = q->s->chunks > 0 && q->s->chunks < n ? q->s->chunks : n;
    q->n_chunks = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return 0;
}

int quality_open(quality *q, settings *s, uint32_t window)
{
    char *text = NULL;
    size_t n = 0;
    memset(q, 0, sizeof *q);
    q->s = s;
    q->info = (kvs_model_info)KVS_MODEL_INFO_INIT;
    if (!s->file) {
        return fail(EXIT_USAGE, "which text? Give a file: -f FILE, - for standard input");
    }
    if (check_writable(s->svg) != 0 || check_writable(s->out) != 0) {
        return EXIT_INPUT;
    }
    int rc = make_ctx(s, &q->ctx);
    if (rc == 0) {
        kvs_ctx_stats st = KVS_CTX_STATS_INIT;
        (void)kvs_ctx_get_stats(q->ctx, &st);
        q->n_threads = st.n_threads;
        rc = open_model(s, q->ctx, 0, &q->model);
    }
    if (rc == 0) {
        (void)kvs_model_get_info(q->model, &q->info);
        rc = read_text(s, &text, &n);
    }
    if (rc == 0) {
        rc = tokenize(q, text, n);
    }
    free(text);
    return rc == 0 ? cut(q, window) : rc;
}

void quality_close(quality *q)
{
    free(q->tokens);
    kvs_model_close(q->model);
    kvs_ctx_free(q->ctx);
    memset(q, 0, sizeof *q);
}

int quality_plan(const quality *q, const char *kv, kvs_plan **out)
{
    settings s = *q->s;
    s.ctx_size = q->window;
    return make_plan(&s, q->ctx, q->model, kv, out);
}

size_t quality_token_bytes(const kvs_plan *plan)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < kvs_plan_n_layers(plan); i++) {
        const kvs_layer_spec *l = kvs_plan_layer(plan, i);
        bool keeps = l->kind == KVS_LAYER_ATTENTION || l->kind == KVS_LAYER_LATENT;
        sum += (keeps ? l->n_kv_heads : 0) *
               (kvs_codec_row_bytes(&l->k, l->k_dim) + kvs_codec_row_bytes(&l->v, l->v_dim));
        if (l->kind == KVS_LAYER_ATTENTION) {
            sum += l->n_kv_heads * kvs_codec_center_bytes(&l->k, l->k_dim) / KVS_CENTER_GROUP;
        }
    }
    return sum;
}

/* ---- one token */

/* Of one row of logits. */
typedef struct row_score {
    double nll;
    double kl;
    double diff;
    bool same_top;
} row_score;

static float greatest(const float *x, size_t n, size_t *at)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    *at = best;
    return x[best];
}

/* log of the sum of exp(x). */
static double log_sum(const float *x, size_t n, float top)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)expf(x[i] - top);
    }
    return sum > 0.0 ? (double)top + log(sum) : -HUGE_VAL; /* 0: there are no logits */
}

static row_score score_row(const float *x, const float *base, size_t n, int32_t next)
{
    row_score r = {0};
    size_t top = 0;
    size_t base_top = 0;
    double lse = log_sum(x, n, greatest(x, n, &top));
    r.nll = lse - (double)x[next];
    if (!base) {
        return r;
    }
    /* sum of p (log p - log q) = sum of p (b - x) - lse(b) + lse(x), p = exp(b - top) / total */
    float high = greatest(base, n, &base_top);
    double total = 0.0;
    double sum = 0.0;
    double diff = 0.0;
    for (size_t i = 0; i < n; i++) {
        double p = (double)expf(base[i] - high);
        double d = (double)base[i] - (double)x[i];
        total += p;
        sum += p * d;
        diff = fabs(d) > diff ? fabs(d) : diff;
    }
    r.kl = total > 0.0 ? sum / total - ((double)high + log(total)) + lse : 0.0;
    r.diff = diff;
    r.same_top = top == base_top;
    return r;
}

/* ---- a batch of tokens */

typedef struct lane {
    kvs_session *session;
    float *logits; /* [BATCH][n_vocab] */
    score *score;
    size_t n_rows;
    size_t n_vocab;
    row_score rows[BATCH];
} lane;

typedef struct batch {
    lane *lanes; /* the base first where there is one */
    size_t n_lanes;
    bool has_base;
    const int32_t *next; /* [rows] successors of the rows' tokens */
    size_t stride;       /* threads */
    size_t first;
} batch;

static void *score_rows(void *opaque)
{
    const batch *b = opaque;
    size_t n_rows = b->lanes[0].n_rows;
    for (size_t at = b->first; at < b->n_lanes * n_rows; at += b->stride) {
        lane *l = &b->lanes[at / n_rows];
        size_t r = at % n_rows;
        const float *base = b->has_base && l != b->lanes ? b->lanes[0].logits : NULL;
        l->rows[r] = score_row(l->logits + r * l->n_vocab, base ? base + r * l->n_vocab : NULL,
                               l->n_vocab, b->next[r]);
    }
    return NULL;
}

static void score_batch(const batch *b, uint32_t n_threads)
{
    enum { MOST = 64 };
    pthread_t threads[MOST];
    batch parts[MOST];
    size_t n = n_threads < MOST ? n_threads : MOST;
    n = n > 0 ? n : 1;
    size_t started = 0;
    for (size_t i = 0; i < n; i++) {
        parts[i] = *b;
        parts[i].stride = n;
        parts[i].first = i;
    }
    for (size_t i = 1; i < n; i++) {
        if (pthread_create(&threads[started], NULL, score_rows, &parts[i]) != 0) {
            (void)score_rows(&parts[i]);
        } else {
            started++;
        }
    }
    (void)score_rows(&parts[0]);
    for (size_t i = 0; i < started; i++) {
        (void)pthread_join(threads[i], NULL);
    }
    for (size_t i = 0; i < b->n_lanes; i++) {
        lane *l = &b->lanes[i];
        for (size_t r = 0; l->score && r < l->n_rows; r++) {
            score *s = l->score;
            s->nll += l->rows[r].nll;
            s->nll_sq += l->rows[r].nll * l->rows[r].nll;
            s->kl += l->rows[r].kl;
            s->kl_sq += l->rows[r].kl * l->rows[r].kl;
            s->logit_diff = l->rows[r].diff > s->logit_diff ? l->rows[r].diff : s->logit_diff;
            s->same_top += l->rows[r].same_top;
            if (s->kls) {
                s->kls[s->n] = (float)l->rows[r].kl;
            }
            s->n++;
        }
    }
}

/* ---- windows */

static int keep_row(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    lane *l = user;
    (void)pos;
    memcpy(l->logits + l->n_rows * n_vocab, logits, n_vocab * sizeof *logits);
    l->n_rows++;
    return interrupted() != 0;
}

static int eval(lane *l, const int32_t *tokens, size_t n, bool keep)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = tokens;
    e.n_tokens = n;
    e.on_logits = keep ? keep_row : NULL;
    e.user = l;
    l->n_rows = 0;
    kvs_status st = kvs_session_eval(l->session, &e, &err);
    if (interrupted()) {
        return interrupted();
    }
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

/* tokens: [window], the first replaced already. The last one is not computed: nothing follows it. */
static int run_window(const quality *q, batch *b, const int32_t *tokens)
{
    size_t first = q->window / 2;
    kvs_err err = {KVS_OK, 0, "", ""};
    for (size_t i = 0; i < b->n_lanes; i++) {
        kvs_status st = kvs_session_sync(b->lanes[i].session, NULL, 0, NULL, &err);
        if (st != KVS_OK) {
            return fail_err(EXIT_FAILED, st, &err, NULL);
        }
        int rc = eval(&b->lanes[i], tokens, first, false);
        if (rc != 0) {
            return rc;
        }
    }
    for (size_t at = first; at + 1 < q->window; at += BATCH) {
        size_t n = q->window - 1 - at < BATCH ? q->window - 1 - at : BATCH;
        for (size_t i = 0; i < b->n_lanes; i++) {
            int rc = eval(&b->lanes[i], tokens + at, n, true);
            if (rc != 0) {
                return rc;
            }
        }
        b->next = tokens + at + 1;
        score_batch(b, q->n_threads);
    }
    return 0;
}

static int open_lane(const quality *q, lane *l, const kvs_plan *plan)
{
    kvs_err err = {KVS_OK, 0, "", ""};
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = plan;
    o.block = block_of(q->s, plan);
    l->n_vocab = q->info.n_vocab;
    l->logits = malloc(BATCH * l->n_vocab * sizeof *l->logits);
    if (!l->logits) {
        return fail(EXIT_MEMORY, "out of memory");
    }
    kvs_status st = kvs_session_new(q->ctx, q->model, &o, &l->session, &err);
    return st == KVS_OK ? 0 : fail_err(EXIT_FAILED, st, &err, NULL);
}

static int open_lanes(const quality *q, const quality_run *r, batch *b)
{
    size_t first = r->base ? 1 : 0;
    size_t n_scores = (size_t)r->n_chunks * (q->window - q->window / 2 - 1);
    int rc = r->base ? open_lane(q, &b->lanes[0], r->base) : 0;
    b->lanes[0].score = r->base ? r->base_score : NULL;
    for (size_t i = 0; rc == 0 && i < r->n_plans; i++) {
        lane *l = &b->lanes[first + i];
        rc = open_lane(q, l, r->plans[i]);
        l->score = &r->scores[i];
        if (rc == 0 && r->base) {
            l->score->kls = malloc(n_scores * sizeof *l->score->kls);
            rc = l->score->kls ? 0 : fail(EXIT_MEMORY, "out of memory");
        }
    }
    return rc;
}

int quality_measure(quality *q, const quality_run *r)
{
    batch b = {.n_lanes = r->n_plans + (r->base ? 1 : 0), .has_base = r->base != NULL};
    int32_t *tokens = malloc(q->window * sizeof *tokens);
    b.lanes = calloc(b.n_lanes, sizeof *b.lanes);
    if (!tokens || !b.lanes) {
        free(tokens);
        free(b.lanes);
        return fail(EXIT_MEMORY, "out of memory");
    }
    int rc = open_lanes(q, r, &b);
    for (uint32_t c = 0; rc == 0 && c < r->n_chunks; c++) {
        memcpy(tokens, q->tokens + (size_t)(r->first_chunk + c) * q->window,
               q->window * sizeof *tokens);
        tokens[0] = q->bos >= 0 ? q->bos : tokens[0];
        rc = run_window(q, &b, tokens);
        if (rc == 0 && r->progress) {
            r->progress(r->user, c);
        }
    }
    for (size_t i = 0; i < b.n_lanes; i++) {
        kvs_session_free(b.lanes[i].session);
        free(b.lanes[i].logits);
    }
    free(b.lanes);
    free(tokens);
    return rc;
}

/* ---- scores */

void scores_free(score *scores, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(scores[i].kls);
        scores[i].kls = NULL;
    }
}

static double mean_error(double sum, double sum_sq, size_t n)
{
    double mean = sum / (double)n;
    double var = sum_sq / (double)n - mean * mean;
    return n > 1 && var > 0.0 ? sqrt(var / (double)(n - 1)) : 0.0;
}

double score_perplexity(const score *s)
{
    return exp(s->nll / (double)s->n);
}

double score_perplexity_error(const score *s)
{
    return mean_error(s->nll, s->nll_sq, s->n) * score_perplexity(s);
}

double score_kl(const score *s)
{
    return s->kl / (double)s->n;
}

double score_kl_error(const score *s)
{
    return mean_error(s->kl, s->kl_sq, s->n);
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

double score_kl_at(score *s, double share)
{
    qsort(s->kls, s->n, sizeof *s->kls, by_value);
    size_t at = (size_t)ceil(share * (double)s->n);
    return (double)s->kls[at > 0 ? at - 1 : 0];
}
