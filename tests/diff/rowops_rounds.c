/* SPDX-License-Identifier: MIT */
/* rowops_rounds.c: the ops of rowops.c that make a round: begin, drafts and what has to be refused
 * meanwhile, acceptance row by row, abort. */
#include <string.h>

#include "base/base.h"
#include "diff/rowops_rig.h"

int op_begin(run *r, set *s)
{
    uint32_t drafts[MAX_ROWS + 1];
    kvs_txn_opts o = KVS_TXN_OPTS_INIT;
    uint32_t how = byte(r);
    bool fits = true;
    o.kind = how % 5 == 0 ? KVS_TXN_STEP : KVS_TXN_DRAFTS;
    uint32_t all = o.kind == KVS_TXN_STEP ? 0 : how / 5 % 7;
    for (uint32_t b = 0; b < s->n; b++) {
        drafts[b] = o.kind == KVS_TXN_STEP || how % 2 ? all : (all + byte(r)) % 7;
        uint32_t block = row_block(r, s->row[b]);
        if (how < 220 && drafts[b] + 1 > block) { /* most rounds are to begin */
            drafts[b] = block - 1;
        }
        fits = fits && drafts[b] + 1 <= block;
        fits = fits && s->row[b]->n + 8 < MAX_TOKENS;
        if (s->row[b]->n + 8 >= MAX_TOKENS) {
            return 0;
        }
    }
    bool scalar = true;
    for (uint32_t b = 1; b < s->n; b++) {
        scalar = scalar && drafts[b] == drafts[0];
    }
    if (scalar && how % 3) {
        o.n_drafts = s->n ? drafts[0] : 0;
    } else if (o.kind == KVS_TXN_DRAFTS) {
        o.drafts = drafts;
    }
    kvs_status can = kvs_txn_can_begin(s->rows, &o);
    CHECK(can == (s->open || !fits ? KVS_NO : KVS_OK), "can_begin");
    kvs_status st = KVS_OK;
    TWICE(kvs_txn_begin(s->rows, &o, NULL));
    if (can == KVS_NO) {
        CHECK(st == (s->open ? KVS_E_STATE : KVS_E_LIMIT), "begin");
        r->stats->refused++;
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    s->open = true;
    s->step = o.kind == KVS_TXN_STEP;
    for (uint32_t b = 0; b < s->n; b++) {
        s->row[b]->base = s->row[b]->n;
        s->row[b]->drafts = drafts[b];
    }
    return 0;
}

static uint32_t room_of(const row *m)
{
    return m->base + m->drafts + 1 - m->n;
}

/* Some tokens of the round, and what has to be refused meanwhile. */
int op_draft(run *r, set *s)
{
    if (s->n == 0 || !s->open) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    row *m = s->row[b];
    uint32_t how = byte(r);
    kvs_cache *c = kvs_rows_cache(s->rows, b);
    uint32_t n = how % 8 < room_of(m) ? how % 8 : room_of(m);
    if (n > 0 && append_tokens(r, s, b, n)) {
        return 1;
    }
    uint32_t layer = how / 8 % r->n_layers;
    if (r->rec[layer]) {
        return 0;
    }
    if (room_of(m) == 0) {
        uint32_t src = source_of(r, layer);
        kvs_kv kv = token_kv(r, src, &r->next_token, 1);
        CHECK(kvs_cache_append(c, src, &kv, NULL) == KVS_E_LIMIT, "more tokens than the round has");
    }
    kvs_view *v = NULL;
    kvs_status st = kvs_view_new(c, layer, &v, NULL);
    kvs_view_free(v);
    bool failed = r->heap.failed;
    r->heap.failed = false;
    if (m->n > m->base) {
        kvs_cache *f = NULL;
        kvs_planes none = KVS_PLANES_INIT;
        CHECK(st == KVS_E_STATE, "view of drafts");
        CHECK(kvs_cache_fork(c, m->base + 1, &f, NULL) == KVS_E_STATE && !f, "fork of drafts");
        CHECK(kvs_cache_export(c, layer, m->base, 1, &none, NULL) == KVS_E_STATE, "drafts out");
        r->stats->refused += 3;
    } else {
        CHECK(failed || st == (m->n ? KVS_OK : KVS_E_STATE), "view of committed tokens");
    }
    return read_and_compare(r, c, NULL, m, layer, 1);
}

/* A fork of what is committed, while drafts are there. */
int op_share(run *r, set *s)
{
    if (s->n == 0 || !s->open) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    row m = *s->row[b];
    kvs_cache *f = NULL;
    kvs_status st = KVS_OK;
    TWICE(kvs_cache_fork(kvs_rows_cache(s->rows, b), m.base, &f, NULL));
    if (st == KVS_E_STATE && may_refuse(&m, r, m.base)) {
        return 0; /* the dense copy, or what a ring dropped before the round */
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    cut_row(&m, m.base);
    int bad = replay(r, f, &m);
    kvs_cache_free(f);
    r->stats->forks++;
    return bad;
}

static void settle_model(run *r, row *m, uint32_t kept)
{
    uint32_t to = m->base + kept;
    r->stats->rejected += m->n - to;
    m->n = to;
    m->high = to == 0 ? 0 : m->high;
}

int op_abort(run *r, set *s)
{
    kvs_status st = kvs_txn_abort(s->rows, NULL);
    CHECK(st == (s->open ? KVS_OK : KVS_E_STATE), "abort");
    for (uint32_t b = 0; s->open && b < s->n; b++) {
        settle_model(r, s->row[b], 0);
    }
    r->stats->rounds += s->open;
    s->open = false;
    return 0;
}

static int refuse_accept(run *r, set *s, const uint32_t *right)
{
    if (s->n == 0) {
        return 0;
    }
    uint32_t wrong[MAX_ROWS];
    uint32_t b = pick(r, s->n);
    memcpy(wrong, right, sizeof wrong);
    wrong[b] = s->step ? 2 : s->row[b]->drafts + 1;
    CHECK(kvs_txn_resolve(s->rows, wrong, NULL) == KVS_E_RANGE, "acceptance of too many");
    wrong[b] = s->step ? 1 : s->row[b]->drafts;
    if (room_of(s->row[b]) > 0) {
        CHECK(kvs_txn_resolve(s->rows, wrong, NULL) == KVS_E_STATE, "acceptance of what is not");
    }
    r->stats->refused += 2;
    return verify(r);
}

int op_resolve(run *r, set *s)
{
    uint32_t accepted[MAX_ROWS];
    if (!s->open) {
        CHECK(kvs_txn_resolve_all(s->rows, 0, NULL) == KVS_E_STATE, "resolve of no round");
        return 0;
    }
    memset(accepted, 0, sizeof accepted);
    bool equal = true;
    for (uint32_t b = 0; b < s->n; b++) {
        row *m = s->row[b];
        if (m->n == m->base && append_tokens(r, s, b, 1 + byte(r) % room_of(m))) {
            return 1;
        }
        uint32_t got = m->n - m->base;
        uint32_t how = byte(r);
        accepted[b] = s->step ? how % 2 : how % got;
        if (b > 0 && how > 128 && (s->step || accepted[0] < got)) {
            accepted[b] = accepted[0];
        }
        equal = equal && accepted[b] == accepted[0];
    }
    if (pick(r, 4) == 0 && refuse_accept(r, s, accepted)) {
        return 1;
    }
    uint64_t live = r->heap.live;
    r->heap.fail_at = 1; /* nothing may be allocated */
    r->heap.count = 0;
    kvs_status st = equal && byte(r) % 2 ? kvs_txn_resolve_all(s->rows, accepted[0], NULL)
                                         : kvs_txn_resolve(s->rows, accepted, NULL);
    r->heap.fail_at = 0;
    CHECK(st == KVS_OK && !r->heap.failed && r->heap.live <= live, "resolve");
    for (uint32_t b = 0; b < s->n; b++) {
        settle_model(r, s->row[b], s->step ? accepted[b] : accepted[b] + 1);
    }
    r->stats->rounds++;
    s->open = false;
    return 0;
}
