/* SPDX-License-Identifier: MIT */
/* session.c: the tokens of one sequence and the decision what to reuse (session.h, session_priv.h).
 */
#include "engine/session_priv.h"

#include <string.h>

#include "engine/identity.h"
#include "engine/persist.h"
#include "kvstate/interchange.h"

/* Rows of logits computed together when many are asked for: bounded by bytes, not by the request. */
#define LOGIT_BYTES ((size_t)8 << 20)

/* ---- making */

static kvs_status make_cache(kvs_session *s, const kvs_plan *plan, kvs_err *err)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    o.n_layers = kvs_plan_n_layers(plan);
    o.layers = kvs_plan_layer(plan, 0);
    o.pages = s->opts.pages;
    o.block_tokens = kvs_plan_kv_block(plan);
    kvs_cache *cache = NULL;
    kvs_status st = kvs_cache_new(s->ctx, &o, &cache, err);
    if (st == KVS_OK) {
        st = kvs_rows_merge(s->ctx, &cache, 1, &s->rows, err);
    }
    if (st != KVS_OK) {
        kvs_cache_free(cache);
        return st;
    }
    s->cache = cache;
    return KVS_OK;
}

/* The activations: its own, or the batch's. */
static kvs_status make_graph(kvs_session *s, kvs_err *err)
{
    const kvs_batch *b = s->opts.batch;
    if (!b) {
        return kvs__graph_new(s->ctx, &s->model->net, s->block, s->n_ctx, &s->graph, err);
    }
    s->graph = b->graph;
    return kvs__batch_fits(b, s, 0, err);
}

static uint32_t choose_block(const kvs_session *s, uint32_t most)
{
    if (s->opts.block) {
        return s->opts.block;
    }
    most = most < KVS__MAX_BLOCK ? most : KVS__MAX_BLOCK;
    if (s->opts.batch) {
        return most < s->opts.batch->max_tokens ? most : s->opts.batch->max_tokens;
    }
    return kvs__graph_block(&s->model->net, KVS__ACTIVATION_BYTES, most);
}

/* Its prefix cache, and the slower tier of that. */
static kvs_status make_share(kvs_session *s, kvs_err *err)
{
    const uint8_t *identity = NULL;
    kvs_status st = kvs__share_new(s->ctx, s->cache, &s->opts, s->n_ctx, &s->share, err);
    if (st != KVS_OK || !kvs__share_store(s->share, &identity)) {
        return st;
    }
    kvs__persist_for f = {s->ctx, s->model, s->cache, s->n_ctx, s->share, NULL};
    return kvs__persist_new(&f, NULL, &s->persist, err);
}

static kvs_status build(kvs_session *s, const kvs_plan *plan, kvs_err *err)
{
    const kvs__net *net = &s->model->net;
    kvs_status st = kvs__net_check_plan(net, plan, err);
    if (st != KVS_OK) {
        return st;
    }
    s->n_ctx = kvs_plan_n_ctx(plan);
    s->n_vocab = net->n_vocab;
    uint32_t most = kvs_plan_max_block(plan);
    if (s->opts.block > most) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "block %u is above the plan's max_block %u",
                         s->opts.block, most);
    }
    if (s->opts.batch && s->opts.block > s->opts.batch->max_tokens) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "block %u is above the batch's max_tokens %u",
                         s->opts.block, s->opts.batch->max_tokens);
    }
    s->block = choose_block(s, most);
    s->logit_rows = 1;
    st = make_cache(s, plan, err);
    if (st == KVS_OK) {
        st = make_graph(s, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    s->tokens = kvs__alloc(s->ctx, s->n_ctx * sizeof *s->tokens);
    s->logits = kvs__alloc(s->ctx, s->n_vocab * sizeof *s->logits);
    s->logit_cap = s->n_vocab;
    if (!s->tokens || !s->logits) {
        return kvs__nomem(err, "engine", s->n_ctx * sizeof *s->tokens);
    }
    return make_share(s, err);
}

kvs_status kvs_session_new(kvs_ctx *ctx, const kvs_model *model, const kvs_session_opts *opts,
                           kvs_session **out, kvs_err *err)
{
    if (!ctx || !model || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, model or out is NULL");
    }
    *out = NULL;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    if (opts) {
        kvs_status st = kvs__opts_read(&o, sizeof o, opts, "kvs_session_opts", err);
        if (st != KVS_OK) {
            return st;
        }
    }
    kvs_status st =
        o.flags ? kvs__fail(err, KVS_E_INVAL, "engine", "flags 0x%x of kvs_session_opts", o.flags)
                : kvs__share_check(&o, model, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_session *s = kvs__calloc(ctx, 1, sizeof *s);
    if (!s) {
        return kvs__nomem(err, "engine", sizeof *s);
    }
    s->ctx = ctx;
    s->model = model;
    s->opts = o;
    kvs_plan *own = NULL;
    st = o.plan ? KVS_OK : kvs_plan_new(ctx, model, NULL, &own, err);
    if (st == KVS_OK) {
        st = build(s, own ? own : o.plan, err);
    }
    kvs_plan_free(own);
    if (st != KVS_OK) {
        kvs_session_free(s);
        return st;
    }
    s->opts.plan = NULL;
    s->opts.prefix_salt = (kvs_bytes){NULL, 0};
    *out = s;
    return KVS_OK;
}

/* What it is about to lose goes to the cache, and to the store that others look into, too. A full
 * queue does not stop a session, but its end. */
static void keep_all(kvs_session *s, bool last)
{
    if (!s->share || s->broken || s->n_unknown > 0 || s->n_tokens == 0) {
        return;
    }
    kvs__share_keep(s->share, s->tokens, s->n_tokens);
    if (last) {
        kvs__persist_end(s->persist, s->tokens, s->n_tokens);
    } else {
        (void)kvs__persist_save(s->persist, s->tokens, s->n_tokens, NULL);
    }
}

void kvs_session_free(kvs_session *s)
{
    if (!s) {
        return;
    }
    keep_all(s, true);
    kvs__share_free(s->share);
    kvs__persist_free(s->persist);
    kvs_rows_free(s->rows);
    if (!s->opts.batch) {
        kvs__graph_free(s->graph);
    }
    kvs__free(s->ctx, s->tokens, s->n_ctx * sizeof *s->tokens);
    kvs__free(s->ctx, s->logits, s->logit_cap * sizeof *s->logits);
    kvs__free(s->ctx, s, sizeof *s);
}

/* ---- computing */

kvs_status kvs__session_check(const kvs_session *s, const int32_t *tokens, size_t n, size_t held,
                              kvs_err *err)
{
    if (s->broken) {
        return kvs__fail(err, KVS_E_BROKEN, "engine",
                         "an earlier failure could not be taken back; make a new session");
    }
    if (n > 0 && !tokens) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "tokens is NULL");
    }
    if (n > s->n_ctx - held) {
        return kvs__fail(err, KVS_E_LIMIT, "engine",
                         "context full: %zu tokens do not fit into %u; make the context larger or "
                         "the text shorter",
                         held + n, s->n_ctx);
    }
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= s->n_vocab) {
            return kvs__fail(err, KVS_E_RANGE, "engine",
                             "token %d at index %zu, the vocabulary has %zu", tokens[i], i,
                             s->n_vocab);
        }
    }
    return KVS_OK;
}

void kvs__session_undo(kvs_session *s)
{
    for (uint32_t i = 0; i < kvs_cache_n_layers(s->cache); i++) {
        uint64_t extra = (uint64_t)kvs_cache_length(s->cache, i) - s->n_tokens;
        if (extra > 0 && kvs_cache_rewind(s->cache, i, extra, NULL) != KVS_OK) {
            s->broken = true;
        }
    }
    kvs__persist_cut(s->persist, s->n_tokens);
}

void kvs__session_took(kvs_session *s, const int32_t *tokens, size_t n, const float *logits)
{
    memmove(s->tokens + s->n_tokens, tokens, n * sizeof *tokens);
    s->n_tokens += n;
    s->n_computed += n;
    kvs__share_after(s->share, s->tokens, s->n_tokens);
    kvs__persist_after(s->persist, s->tokens, s->n_tokens, (uint32_t)n);
    s->has_logits = logits != NULL;
    if (logits && logits != s->logits) {
        memcpy(s->logits, logits, s->n_vocab * sizeof *logits);
    }
}

/* Rows of logits wanted from a block: [first, n). */
typedef struct wanted {
    uint32_t first;
    kvs_logits_fn fn; /* NULL: the last one stays in the session */
    void *user;
} wanted;

/* Hands rows out in groups; true if the callback wants to stop. */
static bool deliver(kvs_session *s, const kvs__graph_row *row, const wanted *w)
{
    for (uint32_t r = w->first; r < row->n;) {
        uint32_t n = row->n - r < s->logit_rows ? row->n - r : s->logit_rows;
        kvs__graph_logits(s->graph, r - w->first, n, s->logits);
        for (uint32_t i = 0; i < n; i++) {
            const float *logits = s->logits + i * s->n_vocab;
            if (w->fn && w->fn(w->user, row->pos + r + i, logits, s->n_vocab) != 0) {
                return true;
            }
        }
        r += n;
        if (r == row->n && n > 1) {
            memmove(s->logits, s->logits + (n - 1) * s->n_vocab, s->n_vocab * sizeof *s->logits);
        }
    }
    return false;
}

kvs_status kvs__session_reserve(kvs_session *s, uint32_t n, kvs_err *err)
{
    kvs_status st = kvs_cache_reserve(s->cache, KVS_ALL_LAYERS, n, err);
    if ((st == KVS_E_LIMIT || st == KVS_E_NOMEM) && kvs__persist_settle(s->persist)) {
        st = kvs_cache_reserve(s->cache, KVS_ALL_LAYERS, n, err);
    }
    return st;
}

/* One block of at most s->block tokens. */
static kvs_status run_block(kvs_session *s, const int32_t *tokens, uint32_t n, const wanted *w,
                            kvs_err *err)
{
    kvs__persist_before(s->persist, n);
    kvs_status st = kvs__session_reserve(s, n, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__graph_row row = {s->cache, tokens, n, w->first, (int64_t)s->n_tokens};
    s->has_logits = false;
    st = kvs__graph_run(s->graph, &row, 1, err);
    if (st != KVS_OK) {
        kvs__session_undo(s);
        return st;
    }
    kvs__session_took(s, tokens, n, NULL);
    if (deliver(s, &row, w)) {
        return kvs__fail(err, KVS_E_CANCELLED, "engine", "stopped after token %zu", s->n_tokens);
    }
    s->has_logits = w->first < n;
    return KVS_OK;
}

static kvs_status run_blocks(kvs_session *s, const kvs_eval *e, kvs_err *err)
{
    size_t from = e->on_logits ? e->logits_from : e->n_tokens - 1;
    for (size_t done = 0; done < e->n_tokens;) {
        if (done > 0 && s->opts.progress &&
            s->opts.progress(s->opts.progress_user, done, e->n_tokens) != 0) {
            return kvs__fail(err, KVS_E_CANCELLED, "engine", "stopped after %zu of %zu tokens",
                             done, e->n_tokens);
        }
        size_t left = e->n_tokens - done;
        uint32_t n = left < s->block ? (uint32_t)left : s->block;
        n = (uint32_t)(kvs__share_stop(s->share, s->n_tokens, s->n_tokens + n) - s->n_tokens);
        n = kvs__persist_step(s->persist, s->n_tokens, n);
        size_t first = from > done ? from - done : 0;
        wanted w = {first < n ? (uint32_t)first : n, e->on_logits, e->user};
        kvs_status st = run_block(s, e->tokens + done, n, &w, err);
        if (st != KVS_OK) {
            return st;
        }
        done += n;
    }
    return KVS_OK;
}

kvs_status kvs__session_grow_logits(kvs_session *s, size_t rows, kvs_err *err)
{
    size_t fit = LOGIT_BYTES / (s->n_vocab * sizeof *s->logits);
    rows = rows < fit ? rows : fit;
    rows = rows < s->block ? rows : s->block;
    if (rows <= s->logit_rows) {
        return KVS_OK;
    }
    float *p = kvs__alloc(s->ctx, rows * s->n_vocab * sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", rows * s->n_vocab * sizeof *p);
    }
    memcpy(p, s->logits, s->n_vocab * sizeof *p);
    kvs__free(s->ctx, s->logits, s->logit_cap * sizeof *s->logits);
    s->logits = p;
    s->logit_cap = rows * s->n_vocab;
    s->logit_rows = (uint32_t)rows;
    return KVS_OK;
}

kvs_status kvs_session_eval(kvs_session *s, const kvs_eval *eval, kvs_err *err)
{
    if (!s || !eval) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session or eval is NULL");
    }
    kvs_eval e = KVS_EVAL_INIT;
    kvs_status st = kvs__opts_read(&e, sizeof e, eval, "kvs_eval", err);
    if (st == KVS_OK) {
        st = kvs__session_check(s, e.tokens, e.n_tokens, s->n_tokens, err);
    }
    if (st == KVS_OK && e.on_logits && e.logits_from < e.n_tokens) {
        st = kvs__session_grow_logits(s, e.n_tokens - e.logits_from, err);
    }
    return st == KVS_OK && e.n_tokens > 0 ? run_blocks(s, &e, err) : st;
}

kvs_status kvs_session_append(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err)
{
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = tokens;
    e.n_tokens = n;
    return kvs_session_eval(s, &e, err);
}

/* ---- sync */

/* How many of the first `keep` tokens it can go back to. */
static size_t can_keep(const kvs_session *s, size_t keep)
{
    if (keep == 0 || keep == s->n_tokens ||
        kvs_cache_can_rewind(s->cache, KVS_ALL_LAYERS, s->n_tokens - keep) == KVS_OK) {
        return keep;
    }
    return s->persist ? kvs__persist_reach(s->persist, keep) : 0;
}

/* Goes back to `keep` tokens, as can_keep allows. */
static kvs_status cut(kvs_session *s, size_t keep, kvs_err *err)
{
    if (keep == s->n_tokens) {
        return KVS_OK;
    }
    kvs_status st = KVS_OK;
    if (keep == 0) {
        st = kvs_cache_clear(s->cache, err);
    } else if (kvs_cache_can_rewind(s->cache, KVS_ALL_LAYERS, s->n_tokens - keep) == KVS_OK) {
        st = kvs_cache_rewind(s->cache, KVS_ALL_LAYERS, s->n_tokens - keep, err);
    } else if (kvs__persist_back(s->persist, keep, NULL) != KVS_OK) {
        keep = 0; /* some layers may have been emptied: all are */
        st = kvs_cache_clear(s->cache, err);
    }
    if (st == KVS_OK) {
        kvs__persist_cut(s->persist, keep);
        kvs__share_cut(s->share, keep);
        s->n_tokens = keep;
        s->n_unknown = s->n_unknown < keep ? s->n_unknown : keep;
        s->has_logits = false;
    }
    return st;
}

static int no_logits(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    (void)user;
    (void)pos;
    (void)logits;
    (void)n_vocab;
    return 0;
}

/* Takes over what the prefix cache found, in place of what it holds. Without memory it is empty. */
static void take_shared(kvs_session *s, size_t n)
{
    kvs_status st = kvs_cache_clear(s->cache, NULL);
    kvs__share_cut(s->share, 0);
    st = st == KVS_OK ? kvs__share_attach(s->share, NULL) : st;
    if (st != KVS_OK) {
        kvs__share_release(s->share);
        (void)kvs_cache_clear(s->cache, NULL);
        n = 0;
    }
    kvs__persist_lent(s->persist, n);
    s->n_tokens = n;
}

/* The longest prefix of tokens[0 .. n) that can be had in place of `own` of the tokens held: from the
 * prefix cache, or from the store if that has more. KVS_NO: neither has more than that. */
static kvs_status fetch(kvs_session *s, const int32_t *tokens, size_t n, size_t own)
{
    size_t lent = kvs__share_find(s->share, tokens, n, own);
    size_t best = lent > own ? lent : own;
    size_t got = 0;
    kvs_status st = s->persist ? kvs__persist_fetch(s->persist, tokens, n, best, &got) : KVS_NO;
    if (st == KVS_OK) {
        kvs__share_release(s->share);
        kvs__share_cut(s->share, 0);
        s->n_tokens = got;
    } else if (lent > 0) {
        take_shared(s, lent);
    } else if (st == KVS_NO) {
        return st;
    } else {
        kvs__share_cut(s->share, 0);
        s->n_tokens = 0;
    }
    memmove(s->tokens, tokens, s->n_tokens * sizeof *tokens);
    s->has_logits = false;
    s->n_unknown = 0;
    return KVS_OK; /* what came from disk is given to memory with the next block */
}

/* Takes the session to a prefix of tokens[0 .. n): what is held, or more from elsewhere. */
static kvs_status prepare(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err)
{
    size_t keep = kvs__session_common(s, tokens, n);
    if (keep == n && n == s->n_tokens && (s->has_logits || n == 0)) {
        if (s->persist) {
            size_t none = 0;
            (void)kvs__persist_fetch(s->persist, tokens, n, n, &none);
        }
        (void)kvs__share_find(s->share, tokens, n, n);
        s->n_own = n;
        return KVS_OK;
    }
    if (keep < s->n_tokens) {
        keep_all(s, false);
    }
    /* the last token is computed again where only its logits are missing */
    size_t own = can_keep(s, keep == n && n > 0 ? n - 1 : keep);
    kvs_status st = fetch(s, tokens, n, own);
    s->n_own = st == KVS_NO ? own : 0;
    return st == KVS_NO ? cut(s, own, err) : st;
}

/* Tokens of tokens[0 .. n) that are held, or can be had without computing them. */
static kvs_status approach(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err)
{
    size_t keep = kvs__session_common(s, tokens, n);
    size_t own = can_keep(s, keep);
    if (own == n || (!s->share && !s->persist)) {
        return cut(s, own, err);
    }
    if (keep < s->n_tokens) {
        keep_all(s, false);
    }
    kvs_status st = fetch(s, tokens, n + 1, own);
    s->n_own = st == KVS_NO ? own : 0;
    if (st == KVS_OK && s->n_tokens > own) {
        s->n_reused += s->n_tokens - own;
        s->n_restored += kvs__share_lent(s->share) > 0 ? 0 : s->n_tokens - own;
    }
    if (st == KVS_OK &&
        s->n_tokens == n) { /* it may have come from disk: then others are lent it */
        kvs__share_keep(s->share, s->tokens, n);
    }
    return st == KVS_NO ? cut(s, own, err) : st;
}

static kvs_status compute_to(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err)
{
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = tokens + s->n_tokens;
    e.n_tokens = n - s->n_tokens;
    e.logits_from = e.n_tokens;
    e.on_logits = no_logits;
    return run_blocks(s, &e, err);
}

kvs_status kvs__session_goto(kvs_session *s, const int32_t *tokens, size_t n, kvs_err *err)
{
    kvs_status st = kvs__session_check(s, tokens, n, 0, err);
    st = st == KVS_OK ? approach(s, tokens, n, err) : st;
    if (st != KVS_OK || n == s->n_tokens) {
        return st;
    }
    kvs__persist_prompt(s->persist, s->n_tokens, n);
    st = compute_to(s, tokens, n, err);
    if (!s->broken) {
        kvs__share_keep(s->share, s->tokens, s->n_tokens);
    }
    kvs__persist_synced(s->persist, s->tokens, s->n_tokens);
    return st;
}

static kvs_status start(kvs_session *s, const int32_t *tokens, size_t n, size_t *n_reused,
                        kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session is NULL");
    }
    kvs_status st = kvs__session_check(s, tokens, n, 0, err);
    st = st == KVS_OK ? prepare(s, tokens, n, err) : st;
    if (st == KVS_OK && n_reused) {
        *n_reused = s->n_tokens;
    }
    s->n_reused += st == KVS_OK ? s->n_tokens : 0;
    return st;
}

kvs_status kvs_session_prepare(kvs_session *s, const int32_t *tokens, size_t n, size_t *n_reused,
                               kvs_err *err)
{
    return start(s, tokens, n, n_reused, err);
}

kvs_status kvs_session_sync(kvs_session *s, const int32_t *tokens, size_t n, size_t *n_reused,
                            kvs_err *err)
{
    kvs_status st = start(s, tokens, n, n_reused, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__persist_prompt(s->persist, s->n_tokens, n);
    st = kvs_session_append(s, n > 0 ? tokens + s->n_tokens : tokens, n - s->n_tokens, err);
    if (st != KVS_OK && !s->broken) { /* stopped half way: what there is is worth keeping */
        kvs__share_keep(s->share, s->tokens, s->n_tokens);
    }
    kvs__persist_synced(s->persist, s->tokens, s->n_tokens);
    return st;
}

/* ---- a prompt-cache file */

/* Tokens of the loaded state, which holds n: from the file, or unknown. */
static kvs_status take_tokens(kvs_session *s, const kvs_prompt_cache *file, uint32_t row, size_t n,
                              kvs_err *err)
{
    size_t count = 0;
    kvs_status st =
        row == 0 ? kvs_prompt_cache_get_tokens(file, s->tokens, s->n_ctx, &count, err) : KVS_NO;
    if (st == KVS_OK && count != n) {
        return kvs__fail(err, KVS_E_FORMAT, "engine", "the file names %zu tokens and holds %zu",
                         count, n);
    }
    for (size_t i = 0; st == KVS_NO && i < n; i++) {
        s->tokens[i] = -1;
    }
    if (st == KVS_OK) {
        st = kvs__session_check(s, s->tokens, n, 0, err);
    }
    s->n_unknown = st == KVS_NO ? n : 0;
    return st == KVS_NO ? KVS_OK : st;
}

/* All layers must have come equally far. */
static kvs_status loaded_length(const kvs_session *s, size_t *n, kvs_err *err)
{
    int64_t length = kvs_cache_length(s->cache, 0);
    for (uint32_t i = 0; i < kvs_cache_n_layers(s->cache); i++) {
        if (kvs_cache_length(s->cache, i) != length) {
            return kvs__fail(err, KVS_E_FORMAT, "engine",
                             "layer %u holds %lld tokens in the file, layer 0 %lld", i,
                             (long long)kvs_cache_length(s->cache, i), (long long)length);
        }
    }
    if ((uint64_t)length > s->n_ctx) {
        return kvs__fail(err, KVS_E_LIMIT, "engine",
                         "%lld tokens in the file do not fit into the context of %u",
                         (long long)length, s->n_ctx);
    }
    *n = (size_t)length;
    return KVS_OK;
}

kvs_status kvs_session_load_prompt_cache(kvs_session *s, const kvs_prompt_cache *file, uint32_t row,
                                         kvs_err *err)
{
    if (!s || !file) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session or file is NULL");
    }
    kvs_status st = kvs__session_check(s, NULL, 0, 0, err);
    if (st == KVS_OK) {
        keep_all(s, false);
    }
    st = st == KVS_OK ? cut(s, 0, err) : st;
    st = st == KVS_OK ? kvs_prompt_cache_load(file, row, s->cache, err) : st;
    if (st != KVS_OK) {
        return st;
    }
    kvs__share_foreign(s->share);
    kvs__persist_foreign(s->persist);
    size_t n = 0;
    st = loaded_length(s, &n, err);
    st = st == KVS_OK ? take_tokens(s, file, row, n, err) : st;
    if (st == KVS_OK) {
        s->n_tokens = n;
    } else if (kvs_cache_clear(s->cache, NULL) != KVS_OK) {
        s->broken = true;
    } else {
        kvs__persist_cut(s->persist, 0);
        kvs__share_cut(s->share, 0);
    }
    return st;
}

/* ---- questions */

const float *kvs_session_logits(const kvs_session *s)
{
    return s && s->has_logits ? s->logits : NULL;
}

kvs_status kvs_session_sample(const kvs_session *s, kvs_sampler *sampler, int32_t *token,
                              kvs_err *err)
{
    if (!s || !sampler || !token) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session, sampler or token is NULL");
    }
    if (!s->has_logits) {
        return kvs__fail(err, KVS_E_STATE, "engine", "no logits: sync or append tokens first");
    }
    if (kvs_sampler_n_vocab(sampler) != s->n_vocab) {
        return kvs__fail(err, KVS_E_INVAL, "engine",
                         "the sampler is for %zu tokens, the model has %zu",
                         kvs_sampler_n_vocab(sampler), s->n_vocab);
    }
    return kvs_sampler_pick(sampler, s->logits, s->tokens + s->n_unknown,
                            s->n_tokens - s->n_unknown, token, err);
}

const int32_t *kvs_session_tokens(const kvs_session *s, size_t *n)
{
    if (n) {
        *n = s ? s->n_tokens : 0;
    }
    return s ? s->tokens : NULL;
}

const kvs_cache *kvs_session_cache(const kvs_session *s)
{
    return s ? s->cache : NULL;
}

kvs_status kvs_session_get_stats(const kvs_session *s, kvs_session_stats *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    kvs_session_stats r = KVS_SESSION_STATS_INIT;
    r.n_ctx = s->n_ctx;
    r.block = s->block;
    r.n_tokens = s->n_tokens;
    r.n_computed = s->n_computed;
    r.n_reused = s->n_reused;
    r.state_bytes = kvs_cache_bytes(s->cache, KVS_ALL_LAYERS);
    r.scratch_bytes = (s->opts.batch ? 0 : kvs__graph_bytes(s->graph)) +
                      kvs__ctx_scratch_bytes(s->ctx) + s->logit_cap * sizeof *s->logits +
                      s->n_ctx * sizeof *s->tokens;
    return kvs__stats_write(out, &r, sizeof r);
}

/* ---- the store */

kvs_status kvs_session_persist(kvs_session *s, const kvs_persist_opts *opts, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session is NULL");
    }
    if (s->persist || s->n_tokens > 0 || s->broken) {
        return kvs__fail(err, KVS_E_STATE, "engine",
                         s->persist ? "the session has a store already"
                                    : "the session holds tokens: give it the store before");
    }
    kvs__persist_for f = {s->ctx, s->model, s->cache, s->n_ctx, NULL, NULL};
    return kvs__persist_new(&f, opts, &s->persist, err);
}

kvs_status kvs__session_beside(kvs_session *s, const kvs_session *target, const kvs_plan *plan,
                               kvs_err *why)
{
    kvs_status st = KVS_OK;
    kvs_status shared = KVS_OK;
    if (target->share) {
        shared = kvs__share_beside(target->share, s, plan, &s->share, why);
    }
    if (shared == KVS_NO) {
        (void)kvs__fail(why, KVS_NO, "engine", "the prefix cache has no part for this draft plan");
    }
    if ((shared == KVS_OK || shared == KVS_NO) && kvs__persist_has_store(target->persist)) {
        kvs__persist_for f = {s->ctx, s->model, s->cache, s->n_ctx, s->share, target->persist};
        st = kvs__persist_new(&f, NULL, &s->persist, why);
    }
    st = st == KVS_OK ? shared : st;
    return st == KVS_OK || st == KVS_E_NOMEM ? st : KVS_NO;
}

kvs_status kvs_session_save(kvs_session *s, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "session is NULL");
    }
    return s->broken ? KVS_NO : kvs__persist_save(s->persist, s->tokens, s->n_tokens, err);
}

kvs_status kvs_session_flush(kvs_session *s, kvs_err *err)
{
    return s ? kvs__persist_flush(s->persist, err)
             : kvs__fail(err, KVS_E_INVAL, "engine", "session is NULL");
}

kvs_status kvs_session_get_reuse(const kvs_session *s, kvs_reuse *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    kvs_reuse r = KVS_REUSE_INIT;
    if (s->persist) {
        kvs__persist_reuse(s->persist, &r);
    }
    r.n_memory = s->persist ? r.n_memory : s->n_own;
    r.n_shared = kvs__share_lent(s->share);
    return kvs__stats_write(out, &r, sizeof r);
}

kvs__persist *kvs__session_persist(const kvs_session *s)
{
    return s ? s->persist : NULL;
}
