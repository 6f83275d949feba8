/* SPDX-License-Identifier: MIT */
/* batch.c: one step over several sessions (batch.h): checks of all rows, room in all caches, one run
 * of the graph, then the tokens become the sessions'. Until the last part a failure takes every row
 * back. A batch keeps no session between steps. */
#include "kvstate/batch.h"

#include <string.h>

#include "engine/session_priv.h"

#define DEFAULT_ROWS 8u
#define MAX_ROWS     65536u

/* ---- making */

static size_t n_vocab_of(const kvs_batch *b)
{
    return b->model->net.n_vocab;
}

/* One piece: rows, logits (floats), offsets. */
static kvs_status take_memory(kvs_batch *b, kvs_err *err)
{
    size_t logits = 0;
    size_t bytes = 0;
    size_t rows = b->max_rows * sizeof *b->row + ((size_t)b->max_rows + 1) * sizeof(uint32_t);
    if (!kvs__mul_size((size_t)b->max_logits * sizeof(float), n_vocab_of(b), &logits) ||
        !kvs__add_size(logits, rows, &bytes)) {
        return kvs__nomem(err, "engine", SIZE_MAX);
    }
    b->row = kvs__alloc(b->ctx, bytes);
    if (!b->row) {
        return kvs__nomem(err, "engine", bytes);
    }
    b->bytes = bytes;
    b->logits = (float *)(void *)(b->row + b->max_rows);
    b->first_logit = (uint32_t *)(void *)(b->logits + (size_t)b->max_logits * n_vocab_of(b));
    return KVS_OK;
}

static kvs_status take_opts(kvs_batch *b, const kvs_batch_opts *o, kvs_err *err)
{
    const kvs__net *net = &b->model->net;
    b->max_rows = o->max_rows ? o->max_rows : DEFAULT_ROWS;
    if (b->max_rows > MAX_ROWS) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "max_rows %u is above %u", b->max_rows,
                         MAX_ROWS);
    }
    b->max_logits = o->max_logits ? o->max_logits : b->max_rows;
    b->max_tokens = o->max_tokens;
    if (b->max_tokens == 0) {
        b->max_tokens = kvs__graph_block(net, KVS__ACTIVATION_BYTES, KVS__MAX_BLOCK);
        b->max_tokens = b->max_tokens > b->max_rows ? b->max_tokens : b->max_rows;
    }
    b->n_ctx = o->n_ctx ? o->n_ctx : net->n_ctx_train;
    if (b->max_tokens < b->max_rows || b->max_tokens > INT32_MAX || b->n_ctx > INT32_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "max_tokens %u (at least max_rows %u) or n_ctx %u is out of range",
                         b->max_tokens, b->max_rows, b->n_ctx);
    }
    return KVS_OK;
}

kvs_status kvs_batch_new(kvs_ctx *ctx, const kvs_model *model, const kvs_batch_opts *opts,
                         kvs_batch **out, kvs_err *err)
{
    if (!ctx || !model || !out) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "ctx, model or out is NULL");
    }
    *out = NULL;
    kvs_batch_opts o = KVS_BATCH_OPTS_INIT;
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_batch_opts", err) : KVS_OK;
    if (st == KVS_OK && !model->arch) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "engine", "the model was opened for inspection");
    }
    if (st != KVS_OK) {
        return st;
    }
    kvs_batch *b = kvs__calloc(ctx, 1, sizeof *b);
    if (!b) {
        return kvs__nomem(err, "engine", sizeof *b);
    }
    b->ctx = ctx;
    b->model = model;
    st = take_opts(b, &o, err);
    st = st == KVS_OK ? take_memory(b, err) : st;
    if (st == KVS_OK) {
        st = kvs__graph_new(ctx, &model->net, b->max_tokens, b->n_ctx, &b->graph, err);
    }
    if (st != KVS_OK) {
        kvs_batch_free(b);
        return st;
    }
    *out = b;
    return KVS_OK;
}

void kvs_batch_free(kvs_batch *b)
{
    if (!b) {
        return;
    }
    kvs__graph_free(b->graph);
    kvs__free(b->ctx, b->row, b->bytes);
    kvs__free(b->ctx, b, sizeof *b);
}

/* ---- which sessions may come */

/* Some rotary encodings are made for the length of the context. */
static bool angles_differ(const kvs_batch *b, const kvs_session *s)
{
    const kvs__net *net = &b->model->net;
    bool depends = false;
    for (uint32_t r = 0; r < net->n_ropes; r++) {
        kvs__rope_kind kind = net->ropes[r].kind;
        depends = depends || kind == KVS__ROPE_DYNAMIC || kind == KVS__ROPE_LONG;
    }
    return depends && s->n_ctx != b->n_ctx;
}

kvs_status kvs__batch_fits(const kvs_batch *b, const kvs_session *s, uint32_t row, kvs_err *err)
{
    if (s->model != b->model || s->ctx != b->ctx) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "row %u: a session of another %s", row,
                         s->model != b->model ? "model" : "context");
    }
    if (s->n_ctx > b->n_ctx) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "row %u: a context of %u tokens, the batch is for %u", row, s->n_ctx,
                         b->n_ctx);
    }
    if (angles_differ(b, s)) {
        return kvs__fail(
            err, KVS_E_UNSUPPORTED, "engine",
            "row %u: the model's rotary encoding depends on the length of the context, "
            "%u tokens here and %u in the batch",
            row, s->n_ctx, b->n_ctx);
    }
    return KVS_OK;
}

/* ---- a step */

static uint32_t tokens_of(const kvs_batch_step *e, uint32_t row)
{
    return e->n_tokens ? e->n_tokens[row] : 1;
}

static uint32_t logits_of(const kvs_batch_step *e, uint32_t row)
{
    return e->n_logits ? e->n_logits[row] : 1;
}

static kvs_status row_failed(kvs_status st, uint32_t row, kvs_err *err)
{
    if (!err) {
        return st;
    }
    char why[sizeof err->msg];
    memcpy(why, err->msg, sizeof why);
    return kvs__fail(err, st, "engine", "row %u: %.200s", row, why);
}

static kvs_status check_row(const kvs_batch *b, const kvs_batch_step *e, uint32_t r, kvs_err *err)
{
    const kvs_session *s = e->sessions[r];
    uint32_t n = tokens_of(e, r);
    if (!s || !e->tokens[r]) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "row %u: %s is NULL", r,
                         s ? "tokens" : "session");
    }
    for (uint32_t i = 0; i < r; i++) {
        if (e->sessions[i] == s) {
            return kvs__fail(err, KVS_E_INVAL, "engine", "rows %u and %u are one session", i, r);
        }
    }
    kvs_status st = kvs__batch_fits(b, s, r, err);
    if (st != KVS_OK) {
        return st;
    }
    if (n == 0 || n > s->block || logits_of(e, r) > n) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "row %u: %u tokens with %u logits; the session takes 1 to %u", r, n,
                         logits_of(e, r), s->block);
    }
    st = kvs__session_check(s, e->tokens[r], n, s->n_tokens, err);
    return st == KVS_OK ? st : row_failed(st, r, err);
}

static kvs_status check_step(const kvs_batch *b, const kvs_batch_step *e, kvs_err *err)
{
    size_t tokens = 0;
    size_t logits = 0;
    if (e->n_rows > b->max_rows) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "%u rows, the batch takes %u", e->n_rows,
                         b->max_rows);
    }
    if (e->n_rows > 0 && (!e->sessions || !e->tokens)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "sessions or tokens is NULL");
    }
    for (uint32_t r = 0; r < e->n_rows; r++) {
        kvs_status st = check_row(b, e, r, err);
        if (st != KVS_OK) {
            return st;
        }
        tokens += tokens_of(e, r);
        logits += logits_of(e, r);
    }
    if (tokens > b->max_tokens || logits > b->max_logits) {
        return kvs__fail(err, KVS_E_RANGE, "engine",
                         "%zu tokens with %zu logits, the batch takes %u with %u", tokens, logits,
                         b->max_tokens, b->max_logits);
    }
    return KVS_OK;
}

/* Rows' tokens into all caches; none on failure. */
static kvs_status run_step(kvs_batch *b, const kvs_batch_step *e, kvs_err *err)
{
    for (uint32_t r = 0; r < e->n_rows; r++) {
        kvs_session *s = e->sessions[r];
        uint32_t n = tokens_of(e, r);
        kvs__persist_before(s->persist, n);
        kvs_status st = kvs__session_reserve(s, n, err);
        if (st != KVS_OK) {
            return row_failed(st, r, err);
        }
        b->row[r] =
            (kvs__graph_row){s->cache, e->tokens[r], n, n - logits_of(e, r), (int64_t)s->n_tokens};
    }
    kvs_status st = kvs__graph_run(b->graph, b->row, e->n_rows, err);
    for (uint32_t r = 0; st != KVS_OK && r < e->n_rows; r++) {
        kvs__session_undo(e->sessions[r]);
    }
    return st;
}

kvs_status kvs_batch_eval(kvs_batch *b, const kvs_batch_step *step, kvs_err *err)
{
    if (!b || !step) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "batch or step is NULL");
    }
    kvs_batch_step e = KVS_BATCH_STEP_INIT;
    kvs_status st = kvs__opts_read(&e, sizeof e, step, "kvs_batch_step", err);
    st = st == KVS_OK ? check_step(b, &e, err) : st;
    if (st != KVS_OK || e.n_rows == 0) {
        return st;
    }
    b->n_rows = 0;
    st = run_step(b, &e, err);
    if (st != KVS_OK) {
        return st;
    }
    uint32_t n = 0;
    for (uint32_t r = 0; r < e.n_rows; r++) {
        b->first_logit[r] = n;
        n += logits_of(&e, r);
    }
    b->first_logit[e.n_rows] = n;
    b->n_rows = e.n_rows;
    if (n > 0) {
        kvs__graph_logits(b->graph, 0, n, b->logits);
    }
    for (uint32_t r = 0; r < e.n_rows; r++) {
        uint32_t end = b->first_logit[r + 1];
        const float *last = end > b->first_logit[r] ? b->logits + (end - 1) * n_vocab_of(b) : NULL;
        kvs__session_took(e.sessions[r], e.tokens[r], tokens_of(&e, r), last);
        b->n_tokens += tokens_of(&e, r);
    }
    b->n_steps++;
    return KVS_OK;
}

/* ---- questions */

const float *kvs_batch_logits(const kvs_batch *b, uint32_t row, uint32_t i)
{
    if (!b || row >= b->n_rows || i >= b->first_logit[row + 1] - b->first_logit[row]) {
        return NULL;
    }
    return b->logits + (size_t)(b->first_logit[row] + i) * n_vocab_of(b);
}

kvs_status kvs_batch_get_stats(const kvs_batch *b, kvs_batch_stats *out)
{
    if (!b || !out) {
        return KVS_E_INVAL;
    }
    kvs_batch_stats r = KVS_BATCH_STATS_INIT;
    r.max_rows = b->max_rows;
    r.max_tokens = b->max_tokens;
    r.max_logits = b->max_logits;
    r.n_steps = b->n_steps;
    r.n_tokens = b->n_tokens;
    r.scratch_bytes = kvs__graph_bytes(b->graph) + b->bytes + kvs__ctx_scratch_bytes(b->ctx);
    return kvs__stats_write(out, &r, sizeof r);
}
