/* SPDX-License-Identifier: MIT */
/* speculate.c: rounds of speculate.h.
 *
 *   open     each row: pick, draft, begin a round of its session (and of the draft model's)
 *   run      all rows in one step; on failure every round is aborted
 *   settle   each row: pick at each draft until one differs, resolve with what was accepted
 *
 * A pick is a pure function of logits, history and position (sampler.h), so that the pick at a draft
 * is the one that plain decoding would have made there. The pick that ends a round is kept for the
 * next one. */
#include "kvstate/speculate.h"

#include <stdio.h>

#include "engine/speculate_priv.h"

#define DEFAULT_DRAFTS 8u
#define DEFAULT_NGRAM  3u
#define MOST_DRAFTS    255u

struct kvs_spec {
    kvs_session *session;
    kvs_spec_opts opts;
    kvs_sampler *sampler;
    bool own_sampler;
    kvs__drafter drafter;
    kvs__pace pace;
    /* the next token, where it is known: of the session as it was then */
    bool has_pick;
    int32_t pick;
    size_t pick_tokens;
    uint64_t pick_computed;
    /* the round */
    bool open;
    bool ended;
    uint32_t drafts; /* behind session->tokens[n_tokens] */
    uint32_t first;  /* of its rows of logits among all */
    kvs_spec_stats stats;
};

/* ---- making */

static kvs_status make_sampler(kvs_spec *p, kvs_err *err)
{
    const kvs_session *s = p->session;
    p->sampler = p->opts.sampler;
    if (!p->sampler) {
        kvs_sampler_opts o = KVS_SAMPLER_OPTS_INIT;
        o.temperature = 0.0f;
        p->own_sampler = true;
        return kvs_sampler_new(s->ctx, &o, s->n_vocab, &p->sampler, err);
    }
    if (kvs_sampler_n_vocab(p->sampler) != s->n_vocab) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "the sampler is for %zu tokens, the model has %zu",
                         kvs_sampler_n_vocab(p->sampler), s->n_vocab);
    }
    return KVS_OK;
}

/* What a draft costs to make, in sixteenths of a step of the session's model. */
static uint32_t own_cost(const kvs_spec *p)
{
    if (!p->opts.draft_model) {
        return 0;
    }
    double mine = (double)p->opts.draft_model->info.step_bytes;
    double step = (double)p->session->model->info.step_bytes;
    double cost = step > 0.0 ? 16.0 * mine / step : 16.0;
    return cost < 1.0 ? 1 : cost > 1024.0 ? 1024 : (uint32_t)cost;
}

static kvs_status check_opts(const kvs_spec_opts *o, kvs_err *err)
{
    if (o->flags & ~(uint32_t)KVS_SPEC_FIXED) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "flags 0x%x of kvs_spec_opts", o->flags);
    }
    if (o->max_drafts > MOST_DRAFTS || o->ngram > KVS__NGRAM_MOST) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "max_drafts %u is above %u, or ngram %u above %u", o->max_drafts,
                         MOST_DRAFTS, o->ngram, KVS__NGRAM_MOST);
    }
    if (o->draft && o->draft_model) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "draft and draft_model; give one");
    }
    return KVS_OK;
}

static kvs_status build(kvs_spec *p, kvs_err *err)
{
    p->opts.max_drafts = p->opts.max_drafts ? p->opts.max_drafts : DEFAULT_DRAFTS;
    p->opts.ngram = p->opts.ngram ? p->opts.ngram : DEFAULT_NGRAM;
    kvs_status st = kvs__check_undo(p->session, err);
    st = st == KVS_OK ? make_sampler(p, err) : st;
    if (st == KVS_OK && p->opts.draft_model) {
        st = kvs__drafter_open(&p->drafter, p->session, p->opts.draft_model, p->opts.draft_plan,
                               err);
    }
    if (st == KVS_OK) {
        st = kvs__session_grow_logits(p->session, (size_t)p->opts.max_drafts + 1, err);
    }
    kvs__pace_start(&p->pace, p->opts.max_drafts, own_cost(p),
                    (p->opts.flags & KVS_SPEC_FIXED) != 0);
    return st;
}

kvs_status kvs_spec_new(kvs_session *session, const kvs_spec_opts *opts, kvs_spec **out,
                        kvs_err *err)
{
    if (!session || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session or out is NULL");
    }
    *out = NULL;
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_spec_opts", err) : KVS_OK;
    st = st == KVS_OK ? check_opts(&o, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs_spec *p = kvs__calloc(session->ctx, 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    p->session = session;
    p->opts = o;
    p->stats = (kvs_spec_stats)KVS_SPEC_STATS_INIT;
    st = build(p, err);
    if (st != KVS_OK) {
        kvs_spec_free(p);
        return st;
    }
    *out = p;
    return KVS_OK;
}

void kvs_spec_free(kvs_spec *p)
{
    if (!p) {
        return;
    }
    kvs__drafter_close(&p->drafter);
    if (p->own_sampler) {
        kvs_sampler_free(p->sampler);
    }
    kvs__free(p->session->ctx, p, sizeof *p);
}

/* ---- opening */

/* The next token of the session. */
static kvs_status pick_next(kvs_spec *p, int32_t *token, kvs_err *err)
{
    const kvs_session *s = p->session;
    if (p->has_pick && p->pick_tokens == s->n_tokens && p->pick_computed == s->n_computed) {
        *token = p->pick;
        return KVS_OK;
    }
    return kvs_session_sample(s, p->sampler, token, err);
}

static int tell(const kvs_spec *p, int32_t token)
{
    return p->opts.on_token ? p->opts.on_token(p->opts.user, token) : KVS_SPEC_GO;
}

/* Drafts that all layers have room for, at most `want`; `left` tokens fit into the step. */
static uint32_t room_for(const kvs_spec *p, uint32_t want, uint32_t left)
{
    const kvs_session *s = p->session;
    size_t ctx = s->n_ctx - s->n_tokens - 1;
    want = want < left - 1 ? want : left - 1;
    want = want < s->block - 1 ? want : s->block - 1;
    want = want < ctx ? want : (uint32_t)ctx;
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    for (; want > 0; want--) {
        o.n_drafts = want;
        if (kvs_txn_can_begin(s->rows, &o) == KVS_OK) {
            break;
        }
    }
    return want;
}

/* Puts drafts behind the session's tokens and the one picked. */
static kvs_status make_drafts(kvs_spec *p, uint32_t want, kvs_err *err)
{
    kvs_session *s = p->session;
    int32_t *out = s->tokens + s->n_tokens + 1;
    size_t n = s->n_tokens + 1;
    uint32_t got = 0;
    kvs_status st = KVS_OK;
    p->drafts = 0;
    if (want == 0 || (s->n_unknown > 0 && p->drafter.session)) {
        return KVS_OK;
    }
    if (p->opts.draft) {
        got = p->opts.draft(p->opts.user, s->tokens, n, out, want);
        got = got < want ? got : want;
    } else if (p->drafter.session) {
        st = kvs__drafter_draft(&p->drafter, p->sampler, s->tokens, n, want, out, &got, err);
    } else {
        got =
            kvs__ngram_draft(s->tokens + s->n_unknown, n - s->n_unknown, p->opts.ngram, out, want);
    }
    while (st == KVS_OK && p->drafts < got && out[p->drafts] >= 0 &&
           (size_t)out[p->drafts] < s->n_vocab) {
        p->drafts++;
    }
    return st;
}

static kvs_status begin(kvs_spec *p, kvs_err *err)
{
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    o.n_drafts = p->drafts;
    kvs__persist_before(p->session->persist, p->drafts + 1);
    kvs_status st = kvs_txn_begin(p->session->rows, &o, err);
    if (st != KVS_OK && p->drafter.tried > 0) {
        kvs__drafter_abort(&p->drafter);
        p->drafts = 0;
    }
    if ((st == KVS_E_LIMIT || st == KVS_E_NOMEM) && kvs__drafter_yield(&p->drafter)) {
        o.n_drafts = 0;
        p->drafts = 0;
        st = kvs_txn_begin(p->session->rows, &o, err);
    }
    p->open = st == KVS_OK;
    return st;
}

/* KVS_E_LIMIT, the token told: no room for it. `left` tokens fit into the step. */
static kvs_status open_row(kvs_spec *p, uint32_t left, kvs_err *err)
{
    kvs_session *s = p->session;
    int32_t token = 0;
    kvs_status st = kvs__session_check(s, NULL, 0, s->n_tokens, err);
    st = st == KVS_OK ? pick_next(p, &token, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    int said = tell(p, token);
    p->ended = said != KVS_SPEC_GO;
    if (said == KVS_SPEC_DROP) {
        return KVS_OK;
    }
    st = kvs__session_check(s, &token, 1, s->n_tokens, err);
    if (st != KVS_OK) {
        return st;
    }
    s->tokens[s->n_tokens] = token;
    st = make_drafts(p, p->ended ? 0 : room_for(p, kvs__pace_depth(&p->pace), left), err);
    return st == KVS_OK ? begin(p, err) : st;
}

static void abort_row(kvs_spec *p)
{
    if (!p->open) {
        return;
    }
    p->open = false;
    if (kvs_txn_abort(p->session->rows, NULL) == KVS_E_BROKEN) {
        p->session->broken = true;
    }
    if (p->drafter.tried > 0) {
        kvs__drafter_abort(&p->drafter);
    }
}

/* ---- a round */

typedef struct round {
    kvs_spec *const *specs;
    uint32_t n;
    kvs__graph *graph;
    kvs__graph_row *row; /* [n] */
    uint32_t max_tokens;
    float *logits; /* [logit_rows] rows of logits, now those from `at` on */
    uint32_t logit_rows;
    uint32_t total; /* rows of logits of the step */
    uint32_t at;
    uint32_t end;
} round;

static kvs_status open_rows(round *r, uint32_t *n_open, kvs_status *full, kvs_err *err)
{
    uint32_t left = r->max_tokens;
    for (uint32_t i = 0; i < r->n; i++) {
        kvs_spec *p = r->specs[i];
        uint32_t others = r->n - i - 1;
        kvs_status st = open_row(p, left - others, err);
        if (st == KVS_E_LIMIT && p->session->n_tokens == p->session->n_ctx) {
            *full = st;
            continue;
        }
        if (st != KVS_OK) {
            return st;
        }
        if (!p->open) {
            continue;
        }
        const kvs_session *s = p->session;
        uint32_t n = p->drafts + 1;
        r->row[(*n_open)++] =
            (kvs__graph_row){s->cache, s->tokens + s->n_tokens, n, 0, (int64_t)s->n_tokens};
        p->first = r->total;
        r->total += n;
        left -= n;
    }
    return KVS_OK;
}

static const float *logits_at(round *r, uint32_t i, size_t n_vocab)
{
    if (i < r->at || i >= r->end) {
        uint32_t n = r->total - i < r->logit_rows ? r->total - i : r->logit_rows;
        kvs__graph_logits(r->graph, i, n, r->logits);
        r->at = i;
        r->end = i + n;
    }
    return r->logits + (size_t)(i - r->at) * n_vocab;
}

/* Picks at each draft; returns how many are accepted. */
static uint32_t verify(round *r, kvs_spec *p)
{
    const kvs_session *s = p->session;
    uint32_t a = 0;
    p->has_pick = false;
    while (a < p->drafts && !p->ended) {
        int32_t token = 0;
        size_t n = s->n_tokens + 1 + a;
        const float *logits = logits_at(r, p->first + a, s->n_vocab);
        if (kvs_sampler_pick(p->sampler, logits, s->tokens + s->n_unknown, n - s->n_unknown, &token,
                             NULL) != KVS_OK) {
            break; /* the next round fails likewise, and says so */
        }
        if (token != s->tokens[n]) {
            p->has_pick = true;
            p->pick = token;
            break;
        }
        int said = tell(p, token);
        p->ended = said != KVS_SPEC_GO;
        a += said != KVS_SPEC_DROP;
    }
    return a;
}

static kvs_status settle_row(round *r, kvs_spec *p, kvs_err *err)
{
    kvs_session *s = p->session;
    uint32_t a = verify(r, p);
    p->open = false;
    kvs_status st = kvs_txn_resolve_all(s->rows, a, err);
    if (st != KVS_OK) {
        s->broken = true;
        s->has_logits = false;
    } else {
        kvs__session_took(s, s->tokens + s->n_tokens, a + 1,
                          logits_at(r, p->first + a, s->n_vocab));
    }
    p->pick_tokens = s->n_tokens;
    p->pick_computed = s->n_computed;
    kvs_status st2 = kvs__drafter_settle(&p->drafter, a, st == KVS_OK ? err : NULL);
    kvs__pace_note(&p->pace, p->drafts, a);
    p->stats.n_rounds++;
    p->stats.n_tokens += a + 1;
    p->stats.n_drafts += p->drafts;
    p->stats.n_accepted += a;
    return st == KVS_OK ? st2 : st;
}

static kvs_status run_round(round *r, kvs_err *err)
{
    uint32_t n_open = 0;
    kvs_status full = KVS_OK;
    for (uint32_t i = 0; i < r->n; i++) {
        r->specs[i]->open = false;
        r->specs[i]->ended = false;
        r->specs[i]->drafts = 0;
    }
    kvs_status st = open_rows(r, &n_open, &full, err);
    if (st == KVS_OK && n_open > 0) {
        st = kvs__graph_run(r->graph, r->row, n_open, err);
    }
    if (st != KVS_OK) {
        for (uint32_t i = 0; i < r->n; i++) {
            abort_row(r->specs[i]);
        }
        return st;
    }
    bool ended = false;
    for (uint32_t i = 0; i < r->n; i++) {
        kvs_spec *p = r->specs[i];
        if (p->open) {
            kvs_status one = settle_row(r, p, err);
            st = st == KVS_OK ? one : st;
        }
        if (p->ended) {
            kvs__drafter_save(&p->drafter);
        }
        ended = ended || p->ended;
    }
    st = st == KVS_OK ? full : st;
    return st == KVS_OK && ended ? KVS_NO : st;
}

kvs_status kvs_spec_next(kvs_spec *p, kvs_err *err)
{
    if (!p) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "spec is NULL");
    }
    kvs_session *s = p->session;
    kvs__graph_row row;
    round r = {.specs = &p, .n = 1, .graph = s->graph, .row = &row, .max_tokens = s->block};
    r.logits = s->logits;
    r.logit_rows = s->logit_rows;
    return run_round(&r, err);
}

static kvs_status check_rows(const kvs_batch *b, kvs_spec *const *specs, uint32_t n, kvs_err *err)
{
    if (n > b->max_rows) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "%u rows, the batch takes %u", n, b->max_rows);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!specs[i]) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "row %u is NULL", i);
        }
        for (uint32_t j = 0; j < i; j++) {
            if (specs[j]->session == specs[i]->session) {
                return kvs__fail(err, KVS_E_INVAL, "engine", "rows %u and %u are one session", j,
                                 i);
            }
        }
        kvs_status st = kvs__batch_fits(b, specs[i]->session, i, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    return KVS_OK;
}

kvs_status kvs_spec_next_rows(kvs_batch *b, kvs_spec *const *specs, uint32_t n, kvs_err *err)
{
    if (!b || (n > 0 && !specs)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "batch or specs is NULL");
    }
    kvs_status st = check_rows(b, specs, n, err);
    if (st != KVS_OK) {
        return st;
    }
    b->n_rows = 0;
    round r = {.specs = specs, .n = n, .graph = b->graph, .row = b->row};
    r.max_tokens = b->max_tokens;
    r.logits = b->logits;
    r.logit_rows = b->max_logits;
    st = run_round(&r, err);
    if (r.total > 0 && (st == KVS_OK || st == KVS_NO)) {
        b->n_steps++;
        b->n_tokens += r.total;
    }
    return st;
}

kvs_status kvs_spec_get_stats(const kvs_spec *p, kvs_spec_stats *out)
{
    if (!p || !out) {
        return KVS_E_INVAL;
    }
    kvs_spec_stats r = p->stats;
    r.depth = kvs__pace_depth(&p->pace);
    if (p->drafter.session) {
        kvs_session_stats d = KVS_SESSION_STATS_INIT;
        (void)kvs_session_get_stats(p->drafter.session, &d);
        r.bytes = d.state_bytes + d.scratch_bytes;
        r.draft_reused = d.n_reused;
        r.draft_restored = p->drafter.session->n_restored;
        r.draft_computed = d.n_computed;
    }
    return kvs__stats_write(out, &r, sizeof r);
}

kvs_status kvs_spec_get_reuse(const kvs_spec *p, kvs_reuse *out)
{
    if (!p || !out) {
        return KVS_E_INVAL;
    }
    if (!p->drafter.session) {
        return KVS_NO;
    }
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(p->drafter.session, &r);
    if (p->drafter.off || (p->drafter.apart.status != KVS_OK && r.reason[0] == '\0')) {
        (void)snprintf(r.reason, sizeof r.reason, "%.159s", p->drafter.apart.msg);
    }
    return kvs__stats_write(out, &r, sizeof r);
}
