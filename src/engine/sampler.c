/* SPDX-License-Identifier: MIT */
/* sampler.c: penalties, filters and the draw of sampler.h.
 *
 * All filters keep a prefix of the candidates sorted by (logit descending, id ascending), so the
 * order among equal logits is fixed. Sums are taken in double. Nothing depends on an earlier pick:
 * the object holds options and scratch only.
 *
 * I1  counts[] is all zero between picks.
 * I2  cand[0 .. n_cand) is sorted when pick returns, unless it holds the whole vocabulary. */
#include "kvstate/sampler.h"

#include <math.h>
#include <string.h>

#include "base/base.h"

struct kvs_sampler {
    kvs_ctx *ctx;
    kvs_sampler_opts opts;
    kvs_logit_bias *bias;
    size_t n_bias;
    size_t n_vocab;
    bool penalise;
    float *adjusted;     /* [n_vocab], only with penalties or bias */
    uint32_t *counts;    /* [n_vocab], only with penalties */
    kvs_candidate *cand; /* [cap_cand] */
    size_t cap_cand;
    size_t n_cand;
};

static kvs_status range(kvs_err *err, const char *name, double value, const char *want)
{
    return kvs__fail(err, KVS_E_RANGE, "engine", "%s %g must be %s", name, value, want);
}

static kvs_status check_opts(const kvs_sampler_opts *o, size_t n_vocab, kvs_err *err)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "a vocabulary of %zu tokens", n_vocab);
    }
    if (!(o->temperature >= 0.0f) || !isfinite(o->temperature)) {
        return range(err, "temperature", (double)o->temperature, "0 or more");
    }
    if (!(o->top_p >= 0.0f && o->top_p <= 1.0f)) {
        return range(err, "top_p", (double)o->top_p, "between 0 and 1");
    }
    if (!(o->min_p >= 0.0f && o->min_p <= 1.0f)) {
        return range(err, "min_p", (double)o->min_p, "between 0 and 1");
    }
    if (!(o->repeat_penalty > 0.0f) || !isfinite(o->repeat_penalty)) {
        return range(err, "repeat_penalty", (double)o->repeat_penalty, "above 0");
    }
    if (!isfinite(o->presence_penalty)) {
        return range(err, "presence_penalty", (double)o->presence_penalty, "finite");
    }
    if (!isfinite(o->frequency_penalty)) {
        return range(err, "frequency_penalty", (double)o->frequency_penalty, "finite");
    }
    if (o->n_bias > 0 && !o->bias) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "n_bias is %zu but bias is NULL", o->n_bias);
    }
    for (size_t i = 0; i < o->n_bias; i++) {
        if (o->bias[i].token < 0 || (size_t)o->bias[i].token >= n_vocab) {
            return kvs__fail(err, KVS_E_RANGE, "engine",
                             "logit bias for token %d, the vocabulary has %zu", o->bias[i].token,
                             n_vocab);
        }
        if (isnan(o->bias[i].bias)) {
            return range(err, "logit bias", (double)o->bias[i].bias, "a number");
        }
    }
    return KVS_OK;
}

static bool allocate(kvs_sampler *s)
{
    s->cand = kvs__alloc(s->ctx, s->cap_cand * sizeof *s->cand);
    if (s->n_bias > 0) {
        s->bias = kvs__alloc(s->ctx, s->n_bias * sizeof *s->bias);
    }
    if (s->n_bias > 0 || s->penalise) {
        s->adjusted = kvs__alloc(s->ctx, s->n_vocab * sizeof *s->adjusted);
    }
    if (s->penalise) {
        s->counts = kvs__calloc(s->ctx, s->n_vocab, sizeof *s->counts);
    }
    return s->cand && (s->n_bias == 0 || s->bias) && (!s->penalise || s->counts) &&
           ((s->n_bias == 0 && !s->penalise) || s->adjusted);
}

kvs_status kvs_sampler_new(kvs_ctx *ctx, const kvs_sampler_opts *opts, size_t n_vocab,
                           kvs_sampler **out, kvs_err *err)
{
    if (!ctx || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx or out is NULL");
    }
    *out = NULL;
    kvs_sampler_opts o = KVS_SAMPLER_OPTS_INIT;
    if (opts) {
        kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_sampler_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    kvs_status st = check_opts(&o, n_vocab, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_sampler *s = kvs__calloc(ctx, 1, sizeof *s);
    if (!s) {
        return kvs__nomem(err, "engine", sizeof *s);
    }
    s->ctx = ctx;
    s->opts = o;
    s->n_vocab = n_vocab;
    s->n_bias = o.n_bias;
    s->penalise = o.penalty_last_n > 0 && (o.repeat_penalty != 1.0f || o.presence_penalty != 0.0f ||
                                           o.frequency_penalty != 0.0f);
    s->cap_cand = o.temperature <= 0.0f ? 1 : o.top_k > 0 && o.top_k < n_vocab ? o.top_k : n_vocab;
    if (!allocate(s)) {
        kvs_sampler_free(s);
        return kvs__nomem(err, "engine", n_vocab * sizeof(float));
    }
    if (s->n_bias > 0) {
        memcpy(s->bias, o.bias, s->n_bias * sizeof *s->bias);
    }
    *out = s;
    return KVS_OK;
}

void kvs_sampler_free(kvs_sampler *s)
{
    if (!s) {
        return;
    }
    kvs__free(s->ctx, s->cand, s->cap_cand * sizeof *s->cand);
    kvs__free(s->ctx, s->bias, s->n_bias * sizeof *s->bias);
    kvs__free(s->ctx, s->adjusted, s->n_vocab * sizeof *s->adjusted);
    kvs__free(s->ctx, s->counts, s->n_vocab * sizeof *s->counts);
    kvs__free(s->ctx, s, sizeof *s);
}

size_t kvs_sampler_n_vocab(const kvs_sampler *s)
{
    return s ? s->n_vocab : 0;
}

size_t kvs_sampler_candidates(const kvs_sampler *s, const kvs_candidate **out)
{
    if (!s || !out) {
        return 0;
    }
    *out = s->cand;
    return s->n_cand;
}

/* ---- penalties and bias */

static void penalise_one(const kvs_sampler *s, float *logit, uint32_t count)
{
    float r = s->opts.repeat_penalty;
    *logit = *logit > 0.0f ? *logit / r : *logit * r;
    *logit -= s->opts.presence_penalty + (float)count * s->opts.frequency_penalty;
}

/* The logits to draw from: the caller's, or a copy with penalties and bias applied. */
static const float *adjust(kvs_sampler *s, const float *logits, const int32_t *history,
                           size_t n_history)
{
    if (!s->adjusted) {
        return logits;
    }
    memcpy(s->adjusted, logits, s->n_vocab * sizeof *logits);
    if (s->penalise) {
        size_t n = n_history < s->opts.penalty_last_n ? n_history : s->opts.penalty_last_n;
        const int32_t *seen = n > 0 ? history + (n_history - n) : NULL;
        for (size_t i = 0; i < n; i++) {
            s->counts[seen[i]]++;
        }
        for (size_t i = 0; i < n; i++) {
            uint32_t *count = &s->counts[seen[i]];
            if (*count > 0) {
                penalise_one(s, &s->adjusted[seen[i]], *count);
                *count = 0; /* I1, and each token once */
            }
        }
    }
    for (size_t i = 0; i < s->n_bias; i++) {
        s->adjusted[s->bias[i].token] += s->bias[i].bias;
    }
    return s->adjusted;
}

/* ---- filters */

static bool before(kvs_candidate a, kvs_candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static bool usable(float logit)
{
    return logit > -INFINITY; /* false for NaN too */
}

/* Heap whose root comes before all others when `best_first`, after all others when not. */
static void sift_down(kvs_candidate *h, size_t n, size_t i, bool best_first)
{
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) {
            return;
        }
        if (child + 1 < n && before(h[child + 1], h[child]) == best_first) {
            child++;
        }
        if (before(h[child], h[i]) != best_first) {
            return;
        }
        kvs_candidate t = h[i];
        h[i] = h[child];
        h[child] = t;
        i = child;
    }
}

static void make_heap(kvs_candidate *h, size_t n, bool best_first)
{
    for (size_t i = n / 2; i-- > 0;) {
        sift_down(h, n, i, best_first);
    }
}

/* Sorts the candidates best first and stops once the kept ones weigh `want`.
 * Cost O(n + kept log n), so that a filter over a whole large vocabulary is cheap. */
static void order(kvs_sampler *s, double max, double want)
{
    kvs_candidate *h = s->cand;
    size_t n = s->n_cand;
    size_t left = n;
    double sum = 0.0;
    make_heap(h, n, true);
    while (left > 0 && sum < want) {
        sum += exp((double)h[0].logit - max);
        left--;
        kvs_candidate t = h[0];
        h[0] = h[left];
        h[left] = t;
        sift_down(h, left, 0, true);
    }
    for (size_t i = 0; i < n / 2; i++) { /* the kept ones lie at the end, worst first */
        kvs_candidate t = h[i];
        h[i] = h[n - 1 - i];
        h[n - 1 - i] = t;
    }
    s->n_cand = n - left;
}

/* The cap_cand best of all usable logits, in no order. */
static void collect(kvs_sampler *s, const float *logits)
{
    size_t n = 0;
    for (size_t id = 0; id < s->n_vocab; id++) {
        kvs_candidate c = {(int32_t)id, logits[id]};
        if (!usable(c.logit)) {
            continue;
        }
        if (n < s->cap_cand) {
            s->cand[n++] = c;
            if (n == s->cap_cand) {
                make_heap(s->cand, n, false);
            }
        } else if (before(c, s->cand[0])) {
            s->cand[0] = c;
            sift_down(s->cand, n, 0, false);
        }
    }
    s->n_cand = n;
}

static double greatest(const kvs_sampler *s)
{
    float max = s->cand[0].logit;
    for (size_t i = 1; i < s->n_cand; i++) {
        max = s->cand[i].logit > max ? s->cand[i].logit : max;
    }
    return (double)max;
}

/* Drops what is less probable than min_p times the greatest. */
static void keep_min_p(kvs_sampler *s, double max)
{
    double least = max + log((double)s->opts.min_p);
    size_t n = 0;
    for (size_t i = 0; i < s->n_cand; i++) {
        if ((double)s->cand[i].logit >= least) {
            s->cand[n++] = s->cand[i];
        }
    }
    s->n_cand = n;
}

/* top_p weighs all that top_k kept; both filters keep a prefix of the sorted order, so the set does
 * not depend on which is applied first. */
static void filter(kvs_sampler *s)
{
    double max = greatest(s);
    double want = HUGE_VAL;
    if (s->opts.top_p < 1.0f) {
        double total = 0.0;
        for (size_t i = 0; i < s->n_cand; i++) {
            total += exp((double)s->cand[i].logit - max);
        }
        /* at least the best one: an empty set has weight 0 */
        want = fmax((double)s->opts.top_p * total, 0x1p-1000);
    }
    if (s->opts.min_p > 0.0f) {
        keep_min_p(s, max);
    }
    bool all = s->n_cand == s->n_vocab && isinf(want);
    if (!all) {
        order(s, max, want);
    }
}

/* ---- the draw */

/* A bijection of 64-bit words in which every input bit reaches every output bit (the finaliser of
 * Steele, Lea & Flood's SplitMix). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* u in (0, 1) of 53 bits; the noise of a token is standard Gumbel: -log(-log(u)). */
static double uniform(uint64_t key, int32_t token)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t bits = mix(key + golden * ((uint64_t)(uint32_t)token + 1));
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

static int32_t draw(const kvs_sampler *s, size_t position)
{
    uint64_t key = mix(s->opts.seed + UINT64_C(0x632be59bd9b4e019));
    key = mix(key ^ mix(s->opts.row + UINT64_C(0x8cb92ba72f3d8dd7)));
    key = mix(key ^ mix((uint64_t)position + UINT64_C(0xd6e8feb86659fd93)));
    double inv = 1.0 / (double)s->opts.temperature;
    double best = -HUGE_VAL;
    int32_t token = s->cand[0].token;
    for (size_t i = 0; i < s->n_cand; i++) {
        double logit = (double)s->cand[i].logit * inv;
        double u = uniform(key, s->cand[i].token);
        /* -log(-log(0.95)) = 2.97: such noise can't make up for a lag of 3. Saves the logarithms
         * of nearly all tokens when nothing was filtered. */
        if (u < 0.95 && logit + 3.0 < best) {
            continue;
        }
        double score = logit - log(-log(u));
        if (score > best) {
            best = score;
            token = s->cand[i].token;
        }
    }
    return token;
}

static kvs_status check_history(const kvs_sampler *s, const int32_t *history, size_t n,
                                kvs_err *err)
{
    size_t first = n < s->opts.penalty_last_n ? 0 : n - s->opts.penalty_last_n;
    for (size_t i = first; s->penalise && i < n; i++) {
        if (history[i] < 0 || (size_t)history[i] >= s->n_vocab) {
            return kvs__fail(err, KVS_E_RANGE, "engine",
                             "token %d at position %zu, the vocabulary has %zu", history[i], i,
                             s->n_vocab);
        }
    }
    return KVS_OK;
}

kvs_status kvs_sampler_pick(kvs_sampler *s, const float *logits, const int32_t *history,
                            size_t n_history, int32_t *token, kvs_err *err)
{
    if (!s || !logits || !token || (n_history > 0 && !history)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "sampler, logits, history or token is NULL");
    }
    kvs_status st = check_history(s, history, n_history, err);
    if (st != KVS_OK) {
        return st;
    }
    collect(s, adjust(s, logits, history, n_history));
    if (s->n_cand == 0) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "no token is left to pick at position %zu: every logit is NaN or -inf",
                         n_history);
    }
    if (s->opts.temperature <= 0.0f) {
        *token = s->cand[0].token;
        return KVS_OK;
    }
    filter(s);
    *token = draw(s, n_history);
    return KVS_OK;
}
