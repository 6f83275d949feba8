/* SPDX-License-Identifier: MIT */
/* speculate_draft.c: drafts from the text itself and from a draft model. Nothing here can change a
 * result: drafts are guesses. */
#include <stdio.h>
#include <string.h>

#include "engine/speculate_priv.h"

/* ---- n-grams */

/* Equal tokens going back from the newest of history [n] and the newest of its first `end`. */
static uint32_t match(const int32_t *history, size_t n, size_t end)
{
    uint32_t len = 0;
    while (len < KVS__NGRAM_MOST && len < end && history[end - 1 - len] == history[n - 1 - len]) {
        len++;
    }
    return len;
}

uint32_t kvs__ngram_draft(const int32_t *history, size_t n, uint32_t least, int32_t *out,
                          uint32_t want)
{
    uint32_t best = 0;
    size_t from = 0;
    for (size_t end = n > 0 ? n - 1 : 0; end > 0 && best < KVS__NGRAM_MOST; end--) {
        if (history[end - 1] != history[n - 1]) {
            continue;
        }
        uint32_t len = match(history, n, end);
        if (len > best) {
            best = len;
            from = end;
        }
    }
    if (best < least || best == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < want; i++) {
        size_t at = from + i;
        out[i] = at < n ? history[at] : out[at - n];
    }
    return want;
}

/* ---- a draft model */

static kvs_status other_vocabulary(const kvs_model *draft, const kvs_model *model, const char *why,
                                   kvs_err *err)
{
    return kvs__fail(err, KVS_E_INVAL, "engine", "draft model \"%.48s\" and \"%.48s\": %s",
                     draft->info.name, model->info.name, why);
}

kvs_status kvs__same_vocabulary(const kvs_model *draft, const kvs_model *model, kvs_err *err)
{
    char why[120];
    uint32_t n = model->net.n_vocab;
    if (draft == model) {
        return KVS_OK;
    }
    if (draft->net.n_vocab != n) {
        (void)snprintf(why, sizeof why, "vocabularies of %u and %u tokens", draft->net.n_vocab, n);
        return other_vocabulary(draft, model, why, err);
    }
    if (!draft->tok || !model->tok) {
        return draft->tok == model->tok
                   ? KVS_OK
                   : other_vocabulary(draft, model, "only one has a tokenizer", err);
    }
    for (uint32_t i = 0; i < n; i++) {
        size_t n_a = 0;
        size_t n_b = 0;
        const char *a = kvs_tokenizer_text(draft->tok, (int32_t)i, &n_a);
        const char *b = kvs_tokenizer_text(model->tok, (int32_t)i, &n_b);
        if (n_a != n_b || (n_a > 0 && memcmp(a, b, n_a) != 0)) {
            (void)snprintf(why, sizeof why, "token %u is \"%.*s\" in one, \"%.*s\" in the other", i,
                           (int)(n_a < 24 ? n_a : 24), a ? a : "", (int)(n_b < 24 ? n_b : 24),
                           b ? b : "");
            return other_vocabulary(draft, model, why, err);
        }
    }
    return KVS_OK;
}

kvs_status kvs__check_undo(const kvs_session *s, kvs_err *err)
{
    for (uint32_t i = 0; i < kvs_cache_n_layers(s->cache); i++) {
        const kvs_layer_spec *l = kvs_cache_spec(s->cache, i);
        if (l->kind == KVS_LAYER_RECURRENT && l->recurrent->undo_tokens == 0) {
            return kvs__fail(
                err, KVS_E_UNSUPPORTED, "engine",
                "layer %u of \"%.48s\" does not go back (undo_tokens is 0), as a round "
                "of drafts must",
                i, s->model->info.name);
        }
    }
    return KVS_OK;
}

static kvs_status open_session(kvs__drafter *d, const kvs_session *target, const kvs_model *model,
                               const kvs_plan *plan, kvs_err *err)
{
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = plan;
    o.progress = target->opts.progress;
    o.progress_user = target->opts.progress_user;
    o.pages = kvs__share_draft_pages(target->share, model, kvs_plan_kv_block(plan));
    kvs_status st = kvs_session_new(target->ctx, model, &o, &d->session, err);
    st = st == KVS_OK ? kvs__check_undo(d->session, err) : st;
    if (st == KVS_OK) {
        st = kvs__session_beside(d->session, target, plan, &d->apart);
        if (st == KVS_NO) {
            d->apart.status = KVS_NO;
            st = KVS_OK;
        }
    }
    return st == KVS_E_NOMEM ? kvs__nomem(err, "engine", sizeof *d) : st;
}

kvs_status kvs__drafter_open(kvs__drafter *d, const kvs_session *target, const kvs_model *model,
                             const kvs_plan *plan, kvs_err *err)
{
    kvs_plan *own = NULL;
    kvs_status st = kvs__same_vocabulary(model, target->model, err);
    if (st == KVS_OK && !plan) {
        uint32_t block = kvs__share_draft_block(target->share, model);
        st = kvs__draft_plan(target->ctx, model, target->n_ctx, block, &own, err);
    }
    if (st == KVS_OK) {
        st = open_session(d, target, model, plan ? plan : own, err);
    }
    kvs_plan_free(own);
    return st;
}

void kvs__drafter_close(kvs__drafter *d)
{
    kvs__drafter_save(d);
    kvs_session_free(d->session);
    d->session = NULL;
}

/* Drafts that the session has room for behind n tokens, of which `fresh` are to come. */
static uint32_t room(const kvs_session *s, size_t n, uint32_t fresh, uint32_t want)
{
    if (n > s->n_ctx) {
        return 0;
    }
    /* the last draft is not computed */
    size_t most = s->n_ctx - n + 1;
    want = want < most ? want : (uint32_t)most;
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    while (want > 0) {
        o.n_drafts = fresh + want - 2;
        if (kvs_txn_can_begin(s->rows, &o) == KVS_OK) {
            break;
        }
        want--;
    }
    return want;
}

/* Tokens into the open round; the pick after the last of them. */
static kvs_status advance(kvs__drafter *d, kvs_sampler *sampler, uint32_t n, int32_t *pick,
                          kvs_err *err)
{
    kvs_session *s = d->session;
    size_t at = s->n_tokens + d->tried;
    kvs__graph_row row = {s->cache, s->tokens + at, n, n - 1, (int64_t)at};
    kvs_status st = kvs__graph_run(s->graph, &row, 1, err);
    if (st != KVS_OK) {
        return st;
    }
    d->tried += n;
    kvs__graph_logits(s->graph, 0, 1, s->logits);
    return kvs_sampler_pick(sampler, s->logits, s->tokens, at + n, pick, err);
}

static kvs_status draft(kvs__drafter *d, kvs_sampler *sampler, const int32_t *tokens, size_t n,
                        uint32_t want, int32_t *out, uint32_t *got, kvs_err *err)
{
    kvs_session *s = d->session;
    if (want == 0 || n > s->n_ctx || d->off) {
        return KVS_OK;
    }
    /* one token or two are computed with the drafts, more of them before, in blocks */
    size_t held = kvs__session_common(s, tokens, n);
    size_t before = n - held <= 2 && held < n ? held : n - 1;
    kvs_status st = kvs__session_goto(s, tokens, before, err);
    if (st != KVS_OK) {
        return st;
    }
    uint32_t fresh = (uint32_t)(n - before);
    if (fresh > s->block) {
        return KVS_OK;
    }
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    want = room(s, n, fresh, want);
    if (want == 0) {
        return KVS_OK;
    }
    o.n_drafts = fresh + want - 2;
    kvs__persist_before(s->persist, fresh + want - 1);
    st = kvs_txn_begin(s->rows, &o, err);
    if (st != KVS_OK) {
        return st;
    }
    s->has_logits = false;
    d->fresh = fresh;
    d->tried = 0;
    memcpy(s->tokens + before, tokens + before, fresh * sizeof *tokens);
    for (uint32_t i = 0; st == KVS_OK && i < want; i++) {
        st = advance(d, sampler, i == 0 ? fresh : 1, &out[i], err);
        if (st == KVS_OK && i + 1 < want) {
            s->tokens[n + i] = out[i];
        }
    }
    if (st != KVS_OK) {
        kvs__drafter_abort(d);
        return st;
    }
    *got = want;
    return KVS_OK;
}

kvs_status kvs__drafter_draft(kvs__drafter *d, kvs_sampler *sampler, const int32_t *tokens,
                              size_t n, uint32_t want, int32_t *out, uint32_t *got, kvs_err *err)
{
    *got = 0;
    kvs_status st = draft(d, sampler, tokens, n, want, out, got, err);
    return st == KVS_E_LIMIT ? KVS_OK : st; /* a pool that is full is no reason to stop */
}

kvs_status kvs__drafter_settle(kvs__drafter *d, uint32_t accepted, kvs_err *err)
{
    kvs_session *s = d->session;
    if (!s || d->tried == 0) {
        return KVS_OK;
    }
    uint32_t kept = d->fresh + accepted;
    kept = kept < d->tried ? kept : d->tried; /* the last draft was not computed */
    d->tried = 0;
    kvs_status st = kvs_txn_resolve_all(s->rows, kept - 1, err);
    if (st != KVS_OK) {
        s->broken = true;
        return st;
    }
    kvs__session_took(s, s->tokens + s->n_tokens, kept, NULL);
    return KVS_OK;
}

void kvs__drafter_save(kvs__drafter *d)
{
    if (d->session) {
        (void)kvs_session_save(d->session, NULL);
    }
}

bool kvs__drafter_yield(kvs__drafter *d)
{
    if (!d->session || d->session->n_tokens == 0) {
        return false;
    }
    d->off = true;
    if (kvs_session_sync(d->session, NULL, 0, NULL, NULL) != KVS_OK) {
        return false;
    }
    d->apart.status = kvs__fail(&d->apart, KVS_E_NOMEM, "engine",
                                "no memory for both: the draft model gave up what it held");
    return true;
}

void kvs__drafter_abort(kvs__drafter *d)
{
    d->tried = 0;
    if (d->session && kvs_txn_abort(d->session->rows, NULL) == KVS_E_BROKEN) {
        d->session->broken = true;
    }
}
