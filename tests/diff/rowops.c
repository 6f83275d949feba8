/* SPDX-License-Identifier: MIT */
/* rowops.c: see rowops.h. The model of a row is the list of its tokens: what a token stores in a
 * layer is a function of the token alone, so a row can be replayed in a cache of its own, and read
 * by the naive model, at any time. Geometry is tiny: what is tested is who holds which token. */
#include "diff/rowops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "diff/rowops_rig.h"

/* -- invariants */

static int verify_set(run *r, const set *s)
{
    CHECK(kvs_rows_count(s->rows) == s->n, "rows");
    for (uint32_t b = 0; b < s->n; b++) {
        const kvs_cache *c = kvs_rows_cache(s->rows, b);
        for (uint32_t i = 0; i < r->n_layers; i++) {
            CHECK(kvs_cache_length(c, i) == (int64_t)s->row[b]->n, "length");
            int64_t committed = (int64_t)(s->open ? s->row[b]->base : s->row[b]->n);
            CHECK(kvs_cache_committed(c, i) == committed, "committed");
        }
    }
    return 0;
}

int verify(run *r)
{
    kvs_ctx_stats s = KVS_CTX_STATS_INIT;
    CHECK(kvs_ctx_get_stats(r->ctx, &s) == KVS_OK && s.live_bytes == r->heap.live, "live bytes");
    CHECK(kvs__pages_check(r->pages), "the pool's invariants");
    return verify_set(r, &r->set[0]) || verify_set(r, &r->set[1]);
}

int after_failure(run *r, kvs_status st, bool *again)
{
    *again = false;
    if (r->heap.failed) {
        r->heap.failed = false;
        CHECK(st == KVS_E_NOMEM, "status of a refused allocation");
        r->stats->failures++;
        *again = true;
        return verify(r);
    }
    return 0;
}

/* -- making rows */

static kvs_codec draw_codec(run *r, uint32_t dim)
{
    static const uint8_t bits[] = {0, 0, 2, 3, 4, 5, 6, 8};
    kvs_codec c = KVS_CODEC_DENSE((kvs_dtype)pick(r, 3));
    uint8_t b = bits[pick(r, sizeof bits)];
    if (b && dim % 32 == 0) {
        c.bits = b;
        c.group = 32;
        static const uint8_t rotate[] = {0, KVS_ROTATED, KVS_ROTATED | KVS_CENTERED};
        c.rotate = rotate[pick(r, 3)];
    }
    return c;
}

static void draw_layer(run *r, uint32_t i, kvs_layer_spec *s, kvs_recurrent_spec *rec)
{
    kvs_layer_spec init = KVS_LAYER_SPEC_INIT;
    *s = init;
    if (r->rec[i]) {
        uint32_t how = byte(r);
        s->kind = KVS_LAYER_RECURRENT;
        *rec = r->rec_shape[i];
        rec->undo_tokens = 1 + how % 9;
        rec->undo_interval = how / 9 % 4 ? how / 36 % 5 : 0;
        return;
    }
    if (r->borrow[i]) {
        s->kind = KVS_LAYER_BORROW;
        s->donor = i - 1;
        return;
    }
    s->n_kv_heads = r->heads[i];
    s->k_dim = r->k_dim[i];
    s->v_dim = r->v_dim[i];
    s->k = draw_codec(r, s->k_dim);
    s->v = draw_codec(r, s->v_dim);
    uint32_t shape = byte(r);
    uint32_t kind = shape % 4;
    s->layout = kind >= 2 ? KVS_LAYOUT_RING : KVS_LAYOUT_GROW;
    s->window = kind == 0 ? 0 : 1 + shape / 4 % 13 + (shape / 64 == 3 ? 20 : 0);
    s->sinks = kind == 0 ? 0 : shape / 16 % 4;
    s->max_block = kind >= 2 ? 1 + shape / 8 % 7 : 0;
    s->dense_until = shape % 5 == 0 ? 1 + shape / 5 % 24 : 0;
    s->dense_dtype = (kvs_dtype)(shape % 3);
    if (byte(r) % 3 == 0) {
        s->layout = KVS_LAYOUT_PAGED;
        s->max_block = s->window ? 1 + shape / 8 % 7 : 0;
    }
}

static void draw_rec(run *r, uint32_t i, uint32_t how)
{
    kvs_recurrent_spec s = KVS_RECURRENT_SPEC_INIT;
    s.rule = how % 2 ? KVS_RECURRENT_SSD : KVS_RECURRENT_GATED_DELTA;
    s.n_groups = 1 + how / 2 % 2;
    s.n_heads = 2;
    s.head_dim = 1 + how / 4 % 9;
    s.state_dim = 4;
    s.conv_taps = how / 36 % 2 ? 0 : 2 + how % 3;
    s.conv_dim = s.conv_taps ? 2 * s.n_groups * s.state_dim + s.n_heads * s.head_dim : 0;
    s.conv_dtype = (kvs_dtype)(how % 3);
    r->rec_shape[i] = s;
    r->rec_w[i] = rec_weights_new(&s, i);
}

static void draw_geometry(run *r)
{
    uint32_t g = byte(r);
    r->n_layers = 1 + g % MAX_LAYERS;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        bool may = i > 0 && !r->borrow[i - 1] && !r->rec[i - 1];
        r->borrow[i] = may && (g >> (4 + i)) % 2;
        uint32_t d = byte(r);
        r->rec[i] = !r->borrow[i] && d % 3 == 2;
        if (r->rec[i]) {
            draw_rec(r, i, d / 3);
        }
        r->heads[i] = r->borrow[i] ? r->heads[i - 1] : 1 + d % MAX_HEADS;
        r->k_dim[i] = r->borrow[i] ? r->k_dim[i - 1] : 16 + d / 2 % 2 * 16;
        r->v_dim[i] = r->borrow[i] ? r->v_dim[i - 1] : 16 + d / 4 % 2 * 16;
    }
}

static row *new_row(void)
{
    row *m = calloc(1, sizeof *m);
    if (!m) {
        abort();
    }
    return m;
}

/* A set of one new row, to be extended into another. */
static int op_add(run *r, set *s)
{
    if (s->n == MAX_ROWS || s->open) {
        return 0;
    }
    row *m = new_row();
    s->row[s->n] = m;
    for (uint32_t i = 0; i < r->n_layers; i++) {
        draw_layer(r, i, &m->spec[i], &m->rec[i]);
    }
    uint64_t reserve = pick(r, 3) == 0 ? 16 : 0;
    kvs_cache *c = NULL;
    kvs_rows *one = NULL;
    kvs_status st = KVS_OK;
    bool again = false;
    st = new_cache(r, r->ctx, m, reserve, &c);
    if (r->heap.failed) {
        r->heap.failed = false;
        CHECK(st == KVS_E_NOMEM && !c, "cache");
        st = new_cache(r, r->ctx, m, reserve, &c);
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    st = kvs_rows_merge(r->ctx, &c, 1, &one, NULL);
    if (after_failure(r, st, &again)) {
        return 1;
    }
    st = again ? kvs_rows_merge(r->ctx, &c, 1, &one, NULL) : st;
    CHECK(st == KVS_OK, kvs_status_name(st));
    TWICE(kvs_rows_extend(s->rows, one, NULL));
    CHECK(st == KVS_OK && kvs_rows_count(one) == 0, kvs_status_name(st));
    kvs_rows_free(one);
    s->n++;
    return 0;
}

int append_tokens(run *r, set *s, uint32_t b, uint32_t n)
{
    row *m = s->row[b];
    kvs_cache *c = kvs_rows_cache(s->rows, b);
    for (uint32_t t = 0; t < n; t++) {
        m->tok[m->n + t] = ++r->next_token;
    }
    for (uint32_t i = 0; i < r->n_layers; i++) {
        kvs_kv kv = token_kv(r, source_of(r, i), m->tok + m->n, n);
        int bad = 0;
        kvs_status st = kvs_cache_append(c, i, &kv, NULL);
        if (r->rec[i]) {
            CHECK(st == KVS_E_UNSUPPORTED, "keys and values of a recurrent layer");
            st = append_rec(r, c, m, i, n, &bad);
        }
        if (r->borrow[i]) {
            CHECK(st == KVS_E_UNSUPPORTED, "append to a layer that borrows");
            continue;
        }
        if (r->heap.failed) {
            r->heap.failed = false;
            CHECK(st == KVS_E_NOMEM && kvs_cache_length(c, i) == (int64_t)m->n, "failed append");
            r->stats->failures++;
            st = r->rec[i] ? append_rec(r, c, m, i, n, &bad) : kvs_cache_append(c, i, &kv, NULL);
        }
        CHECK(st == KVS_OK && !bad, kvs_status_name(st));
    }
    m->n += n;
    m->high = m->n > m->high ? m->n : m->high;
    return 0;
}

static int op_append(run *r, set *s)
{
    if (s->n == 0 || s->open) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    uint32_t how = byte(r);
    uint32_t total = 1 + how % 20 + (how > 250 ? 250 : 0);
    uint32_t block = 1 + how % row_block(r, s->row[b]);
    while (total > 0 && s->row[b]->n + total < MAX_TOKENS) {
        uint32_t n = block < total ? block : total;
        if (append_tokens(r, s, b, n)) {
            return 1;
        }
        total -= n;
    }
    return 0;
}

static int op_read(run *r, set *s)
{
    if (s->n == 0) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    uint32_t how = byte(r);
    uint32_t n = how < 64 && s->row[b]->n >= 4 ? 4 : 1;
    if (r->rec[how % r->n_layers]) {
        return s->open ? 0
                       : same_state(r, kvs_rows_cache(s->rows, b), s->row[b], how % r->n_layers);
    }
    return read_and_compare(r, kvs_rows_cache(s->rows, b), NULL, s->row[b], how % r->n_layers, n);
}

static int op_replay(run *r, set *s)
{
    if (s->n == 0 || s->open) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    return replay(r, kvs_rows_cache(s->rows, b), s->row[b]);
}

/* -- moving rows */

static void forget(set *s, uint32_t b)
{
    free(s->row[b]);
    s->n--;
    memmove(s->row + b, s->row + b + 1, (s->n - b) * sizeof *s->row);
}

static int op_filter(run *r, set *s)
{
    uint32_t keep[MAX_ROWS + 1];
    uint32_t n = pick(r, s->n + 2);
    bool used[MAX_ROWS + 2] = {false};
    bool twice = false;
    bool outside = false;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t how = byte(r);
        keep[i] = how % (s->n + (how > 250 ? 1 : 0) + (s->n == 0));
        for (uint32_t t = 0; how < 230 && t < s->n && used[keep[i]]; t++) {
            keep[i] = (keep[i] + 1) % s->n;
        }
        outside = outside || keep[i] >= s->n;
        twice = twice || used[keep[i]];
        used[keep[i]] = true;
    }
    bool all = byte(r) % 2;
    kvs_status st = KVS_OK;
    TWICE(all ? kvs_rows_reorder(s->rows, keep, n, NULL) : kvs_rows_filter(s->rows, keep, n, NULL));
    if (s->open) {
        CHECK(st == KVS_E_STATE, "filter in a round");
        return 0;
    }
    if (outside || twice || (all && n != s->n)) {
        CHECK(st == KVS_E_RANGE || st == KVS_E_INVAL, "filter of doubles or strangers");
        r->stats->refused++;
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    row *kept[MAX_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        kept[i] = s->row[keep[i]];
    }
    for (uint32_t i = 0; i < s->n; i++) {
        if (!used[i]) {
            free(s->row[i]);
        }
    }
    memcpy(s->row, kept, n * sizeof *kept);
    s->n = n;
    return 0;
}

static int op_extend(run *r, set *s, set *other)
{
    if (s->n + other->n > MAX_ROWS) {
        return 0;
    }
    kvs_status st = KVS_OK;
    TWICE(kvs_rows_extend(s->rows, other->rows, NULL));
    if (s->open || other->open) {
        CHECK(st == KVS_E_STATE, "extend in a round");
        r->stats->refused++;
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    memcpy(s->row + s->n, other->row, other->n * sizeof *s->row);
    s->n += other->n;
    other->n = 0;
    return 0;
}

/* Out of one set, compared with its replay, and into the other as a set of its own. */
static int op_extract(run *r, set *s, set *other)
{
    if (s->n == 0) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    kvs_cache *c = NULL;
    kvs_status st = kvs_rows_extract(s->rows, b, &c, NULL);
    if (s->open) {
        CHECK(st == KVS_E_STATE && !c, "extract in a round");
        r->stats->refused++;
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    row m = *s->row[b];
    forget(s, b);
    if (replay(r, c, &m)) {
        return 1;
    }
    if (other->n == MAX_ROWS || other->open || byte(r) % 2) {
        kvs_cache_free(c);
        return 0;
    }
    kvs_rows *one = NULL;
    TWICE(kvs_rows_merge(r->ctx, &c, 1, &one, NULL));
    CHECK(st == KVS_OK, kvs_status_name(st));
    TWICE(kvs_rows_extend(other->rows, one, NULL));
    CHECK(st == KVS_OK, kvs_status_name(st));
    kvs_rows_free(one);
    other->row[other->n] = new_row();
    *other->row[other->n++] = m;
    return 0;
}

/* Could going back to `to` be refused? */
bool may_refuse(const row *m, const run *r, uint32_t to)
{
    for (uint32_t i = 0; i < r->n_layers; i++) {
        const kvs_layer_spec *s = &m->spec[i];
        model x = {.spec = *s, .high = m->high};
        if (r->rec[i] && m->high - to > m->rec[i].undo_tokens) {
            return true;
        }
        if (r->borrow[i] || r->rec[i] || to == 0) {
            continue;
        }
        if (model_may_miss(&x, to) || (s->dense_until >= to && m->high > s->dense_until)) {
            return true;
        }
    }
    return false;
}

void cut_row(row *m, uint32_t to)
{
    m->back = m->back || to < m->n;
    m->n = to;
    m->high = to == 0 ? 0 : m->high;
    m->back = to == 0 ? false : m->back;
}

static int op_fork(run *r, set *s)
{
    if (s->n == 0 || s->n == MAX_ROWS) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    row *m = s->row[b];
    uint32_t how = byte(r);
    uint32_t to = how < 100 ? m->n : how < 200 ? m->n - m->n * (how - 100) / 400 : how;
    kvs_status st = KVS_OK;
    TWICE(kvs_rows_fork(s->rows, b, how < 50 ? KVS_ALL_TOKENS : to, NULL));
    if (s->open || to > m->n) {
        CHECK(st == (s->open ? KVS_E_STATE : KVS_E_RANGE), "fork in a round, or of too much");
        r->stats->refused++;
        return 0;
    }
    if (st == KVS_E_STATE && to < m->n && may_refuse(m, r, to)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    row *f = new_row();
    *f = *m;
    cut_row(f, to);
    s->row[s->n++] = f;
    r->stats->forks++;
    return 0;
}

static int op_rewind(run *r, set *s)
{
    if (s->n == 0) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    row *m = s->row[b];
    uint32_t how = byte(r);
    uint32_t back = how < 230 ? how % 12 : how;
    kvs_cache *c = kvs_rows_cache(s->rows, b);
    kvs_status can = kvs_cache_can_rewind(c, KVS_ALL_LAYERS, back);
    kvs_status st = KVS_OK; /* a recurrent layer that is shared takes memory */
    TWICE(kvs_cache_rewind(c, KVS_ALL_LAYERS, back, NULL));
    CHECK((can == KVS_OK) == (st == KVS_OK), "can_rewind and rewind agree");
    if (s->open || back > m->n) {
        CHECK(st == (s->open ? KVS_E_STATE : KVS_E_RANGE), "rewind in a round, or too far");
        r->stats->refused++;
        return 0;
    }
    if (st == KVS_E_STATE && may_refuse(m, r, m->n - back)) {
        return 0;
    }
    CHECK(st == KVS_OK, kvs_status_name(st));
    cut_row(m, m->n - back);
    return 0;
}

static int op_cancel(run *r, set *s)
{
    uint32_t b = pick(r, s->n + 1);
    kvs_status st = kvs_rows_cancel(s->rows, b, NULL);
    CHECK(st == (b < s->n ? KVS_OK : KVS_E_RANGE), "cancel");
    if (st == KVS_OK) {
        forget(s, b);
    }
    return 0;
}

static int op_clear(run *r, set *s)
{
    if (s->n == 0) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    kvs_status st = kvs_cache_clear(kvs_rows_cache(s->rows, b), NULL);
    CHECK(st == (s->open ? KVS_E_STATE : KVS_OK), "clear");
    if (st == KVS_OK) {
        cut_row(s->row[b], 0);
    }
    return 0;
}

/* -- captured donors */

static int op_view(run *r, set *s)
{
    captured *v = &r->view[pick(r, MAX_VIEWS)];
    if (v->view) {
        uint32_t how = byte(r);
        if (read_and_compare(r, NULL, v->view, &v->at, v->layer, 1)) {
            return 1;
        }
        if (how % 3 == 0) {
            kvs_view_free(v->view);
            v->view = NULL;
        }
        return 0;
    }
    if (s->n == 0 || s->open) {
        return 0;
    }
    uint32_t b = pick(r, s->n);
    uint32_t layer = byte(r) % r->n_layers;
    if (r->rec[layer]) {
        CHECK(kvs_view_new(kvs_rows_cache(s->rows, b), layer, &v->view, NULL) == KVS_E_UNSUPPORTED,
              "view of a recurrent layer");
        return 0;
    }
    kvs_status st = KVS_OK;
    TWICE(kvs_view_new(kvs_rows_cache(s->rows, b), layer, &v->view, NULL));
    CHECK(st == (s->row[b]->n ? KVS_OK : KVS_E_STATE), kvs_status_name(st));
    v->layer = layer;
    v->at = *s->row[b];
    return 0;
}

static int one_op(run *r)
{
    uint32_t kind = byte(r);
    set *s = &r->set[kind >= 192];
    set *other = &r->set[kind < 192];
    kind %= 64;
    if (byte(r) >= 216) { /* the k-th allocation of this op fails */
        r->heap.count = 0;
        r->heap.fail_at = 1 + r->op % 5;
    }
    if (s->open && kind < 34) {
        return kind < 14   ? op_draft(r, s)
               : kind < 16 ? op_share(r, s)
               : kind < 30 ? op_resolve(r, s)
                           : op_abort(r, s);
    }
    static int (*const ops[])(run *, set *) = {
        op_append, op_append, op_append,  op_append, op_append, op_add,    op_add,  op_begin,
        op_begin,  op_begin,  op_begin,   op_begin,  op_read,   op_read,   op_read, op_filter,
        op_fork,   op_fork,   op_fork,    op_rewind, op_rewind, op_cancel, op_view, op_view,
        op_replay, op_clear,  op_resolve, op_rect,   op_rect};
    if (kind < 58) {
        return ops[kind / 2](r, s);
    }
    return kind < 61 ? op_extend(r, s, other) : op_extract(r, s, other);
}

static bool start(run *r, uint32_t tiers_off)
{
    if (!heap_contexts(&r->heap, tiers_off, 1, &r->ctx, &r->plain)) {
        return false;
    }
    uint32_t size = byte(r);
    r->pages = ops_pool(r->ctx, size, size / 8, 0);
    if (!r->pages) {
        return false;
    }
    draw_geometry(r);
    for (int i = 0; i < 2; i++) {
        if (kvs_rows_merge(r->ctx, NULL, 0, &r->set[i].rows, NULL) != KVS_OK) {
            return false;
        }
    }
    return true;
}

static int finish(run *r, int bad)
{
    r->heap.fail_at = 0;
    for (int i = 0; i < 2; i++) {
        set *s = &r->set[i];
        /* what is left is looked at once more, then all goes, an open round too */
        for (uint32_t b = 0; !bad && b < s->n; b++) {
            bad = s->open ? 0 : replay(r, kvs_rows_cache(s->rows, b), s->row[b]);
        }
        kvs_rows_free(s->rows);
        for (uint32_t b = 0; b < s->n; b++) {
            free(s->row[b]);
        }
    }
    for (int i = 0; i < MAX_VIEWS; i++) {
        if (!bad && r->view[i].view) { /* the source is gone */
            bad = read_and_compare(r, NULL, r->view[i].view, &r->view[i].at, r->view[i].layer, 1);
        }
        kvs_view_free(r->view[i].view);
    }
    for (uint32_t i = 0; i < MAX_LAYERS; i++) {
        if (r->rec[i]) {
            rec_weights_free(&r->rec_w[i]);
        }
    }
    kvs_pages_free(r->pages);
    kvs_ctx_free(r->ctx);
    kvs_ctx_free(r->plain);
    if (!bad && r->heap.live != 0) {
        return report(r, "leak", "bytes are live after everything was freed");
    }
    return bad;
}

/* One for all programs: it is large and need not be cleared. */
static model *shared_model(void)
{
    static model m;
    static bool made;
    if (!made) {
        kvs_layer_spec s = KVS_LAYER_SPEC_INIT;
        s.n_kv_heads = MAX_HEADS;
        s.k_dim = MAX_DIM;
        s.v_dim = MAX_DIM;
        model_init(&m, NULL, &s);
        made = true;
    }
    return &m;
}

int rowops_run(const uint8_t *program, size_t n, uint32_t tiers_off, rowops_stats *stats)
{
    static run r;
    memset(&r, 0, sizeof r - sizeof r.k - sizeof r.v);
    r.p = program;
    r.n = n;
    r.stats = stats;
    r.model = *shared_model();
    if (!start(&r, tiers_off)) {
        return finish(&r, 1);
    }
    r.model.ctx = r.plain;
    stats->programs++;
    int bad = op_add(&r, &r.set[0]) || op_add(&r, &r.set[0]) || op_append(&r, &r.set[0]);
    while (!bad && r.n > 0) {
        bad = one_op(&r);
        r.heap.fail_at = 0;
        r.heap.failed = false;
        bad = bad || verify(&r);
        r.op++;
        stats->ops++;
    }
    return finish(&r, bad);
}
