/* SPDX-License-Identifier: MIT */
/* rows.c: sets of rows: lists of handles. Each call makes room first and then moves pointers; a
 * round or a broken set is refused before that. Tokens are never looked at. */
#include "state/rows.h"

#include <string.h>

#define ROW sizeof(kvs_cache *)

kvs_status kvs__rows_check(const kvs_rows *rows, kvs_err *err)
{
    if (!rows) {
        return kvs__fail(err, KVS_E_INVAL, "state", "rows is NULL");
    }
    if (rows->broken) {
        return kvs__fail(err, KVS_E_BROKEN, "state",
                         "the set of %u rows was broken by a failed round", rows->n);
    }
    return KVS_OK;
}

kvs_status kvs__rows_closed(const kvs_rows *rows, const char *what, kvs_err *err)
{
    kvs_status st = kvs__rows_check(rows, err);
    if (st == KVS_OK && rows->open) {
        st = kvs__fail(err, KVS_E_STATE, "state", "%s: a round is open", what);
    }
    return st;
}

kvs_status kvs__rows_index(const kvs_rows *rows, uint32_t row, kvs_err *err)
{
    if (row >= rows->n) {
        return kvs__fail(err, KVS_E_RANGE, "state", "row %u of a set of %u", row, rows->n);
    }
    return KVS_OK;
}

static kvs_status make_room(kvs_rows *rows, uint32_t more, kvs_err *err)
{
    if (more > UINT32_MAX / 4 - rows->n) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%u rows and %u more are too many", rows->n,
                         more);
    }
    uint32_t need = rows->n + more;
    if (need <= rows->cap) {
        return KVS_OK;
    }
    uint32_t cap = need < rows->cap * 2 ? rows->cap * 2 : need;
    kvs_cache **row = kvs__calloc(rows->ctx, cap, ROW);
    if (!row) {
        return kvs__nomem(err, "state", cap * ROW);
    }
    if (rows->n > 0) {
        memcpy(row, rows->row, rows->n * ROW);
    }
    kvs__free(rows->ctx, rows->row, rows->cap * ROW);
    rows->row = row;
    rows->cap = cap;
    return KVS_OK;
}

/* Layer by layer one kind, and one geometry where there is one. */
static kvs_status check_like(const kvs_cache *a, const kvs_cache *b, uint32_t row, kvs_err *err)
{
    if (a->n_layers != b->n_layers) {
        return kvs__fail(err, KVS_E_INVAL, "state", "row %u has %u layers, the others %u", row,
                         b->n_layers, a->n_layers);
    }
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const kvs_layer_spec *x = &a->layer[i].spec;
        const kvs_layer_spec *y = &b->layer[i].spec;
        if (x->kind != y->kind || x->donor != y->donor || x->n_kv_heads != y->n_kv_heads ||
            x->k_dim != y->k_dim || x->v_dim != y->v_dim) {
            return kvs__fail(err, KVS_E_INVAL, "state",
                             "row %u, layer %u: kind %d, %u heads of %u/%u; the others have kind "
                             "%d, %u of %u/%u",
                             row, i, (int)y->kind, y->n_kv_heads, y->k_dim, y->v_dim, (int)x->kind,
                             x->n_kv_heads, x->k_dim, x->v_dim);
        }
    }
    return KVS_OK;
}

static kvs_status check_joins(const kvs_ctx *ctx, const kvs_cache *first, const kvs_cache *c,
                              uint32_t row, kvs_err *err)
{
    if (!c) {
        return kvs__fail(err, KVS_E_INVAL, "state", "row %u is NULL", row);
    }
    if (c->ctx != ctx) {
        return kvs__fail(err, KVS_E_INVAL, "state", "row %u is of another context", row);
    }
    if (c->broken || c->open) {
        return kvs__fail(err, c->broken ? KVS_E_BROKEN : KVS_E_INVAL, "state", "row %u %s", row,
                         c->broken ? "was broken by a failed round" : "is in a round");
    }
    return check_like(first, c, row, err);
}

static kvs_status check_merge(const kvs_ctx *ctx, kvs_cache *const *caches, uint32_t n,
                              kvs_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        kvs_status st = check_joins(ctx, caches[0], caches[i], i, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    /* a mark in each, so that a cache given twice is found in O(n) */
    uint32_t twice = n;
    for (uint32_t i = 0; i < n; i++) {
        twice = caches[i]->mark && twice == n ? i : twice;
        caches[i]->mark = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        caches[i]->mark = false;
    }
    return twice == n ? KVS_OK
                      : kvs__fail(err, KVS_E_INVAL, "state", "row %u is given twice", twice);
}

kvs_status kvs_rows_merge(kvs_ctx *ctx, kvs_cache *const *caches, uint32_t n, kvs_rows **out,
                          kvs_err *err)
{
    if (!ctx || !out || (n > 0 && !caches)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL",
                         !ctx   ? "ctx"
                         : !out ? "out"
                                : "caches");
    }
    *out = NULL;
    kvs_status st = check_merge(ctx, caches, n, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_rows *rows = kvs__calloc(ctx, 1, sizeof *rows);
    if (!rows) {
        return kvs__nomem(err, "state", sizeof *rows);
    }
    rows->ctx = ctx;
    st = make_room(rows, n, err);
    if (st != KVS_OK) {
        kvs_rows_free(rows);
        return st;
    }
    if (n > 0) {
        memcpy(rows->row, caches, n * ROW);
    }
    rows->n = n;
    *out = rows;
    return KVS_OK;
}

void kvs_rows_free(kvs_rows *rows)
{
    if (!rows) {
        return;
    }
    for (uint32_t i = 0; i < rows->n; i++) {
        kvs_cache_free(rows->row[i]);
    }
    kvs__free(rows->ctx, rows->row, rows->cap * ROW);
    kvs__free(rows->ctx, rows, sizeof *rows);
}

uint32_t kvs_rows_count(const kvs_rows *rows)
{
    return rows ? rows->n : 0;
}

kvs_cache *kvs_rows_cache(const kvs_rows *rows, uint32_t row)
{
    return rows && !rows->broken && row < rows->n ? rows->row[row] : NULL;
}

kvs_status kvs_rows_extend(kvs_rows *dst, kvs_rows *src, kvs_err *err)
{
    kvs_status st = kvs__rows_closed(dst, "extend", err);
    st = st == KVS_OK ? kvs__rows_closed(src, "extend", err) : st;
    if (st != KVS_OK) {
        return st;
    }
    if (dst == src || dst->ctx != src->ctx) {
        return kvs__fail(err, KVS_E_INVAL, "state", "extend by %s",
                         dst == src ? "itself" : "rows of another context");
    }
    if (dst->n > 0 && src->n > 0) {
        st = check_like(dst->row[0], src->row[0], dst->n, err);
    }
    st = st == KVS_OK ? make_room(dst, src->n, err) : st;
    if (st != KVS_OK || src->n == 0) {
        return st;
    }
    memcpy(dst->row + dst->n, src->row, src->n * ROW);
    dst->n += src->n;
    src->n = 0;
    return KVS_OK;
}

static kvs_status check_keep(kvs_rows *rows, const uint32_t *keep, uint32_t n, kvs_err *err)
{
    if (n > 0 && !keep) {
        return kvs__fail(err, KVS_E_INVAL, "state", "keep is NULL");
    }
    kvs_status st = KVS_OK;
    uint32_t seen = 0;
    while (st == KVS_OK && seen < n) {
        st = kvs__rows_index(rows, keep[seen], err);
        if (st == KVS_OK && rows->row[keep[seen]]->mark) {
            st = kvs__fail(err, KVS_E_INVAL, "state", "row %u is named twice", keep[seen]);
        }
        if (st == KVS_OK) {
            rows->row[keep[seen++]]->mark = true;
        }
    }
    for (uint32_t i = 0; st != KVS_OK && i < seen; i++) {
        rows->row[keep[i]]->mark = false;
    }
    return st; /* KVS_OK: what is kept is marked */
}

kvs_status kvs_rows_filter(kvs_rows *rows, const uint32_t *keep, uint32_t n, kvs_err *err)
{
    kvs_status st = kvs__rows_closed(rows, "filter", err);
    if (st != KVS_OK) {
        return st;
    }
    kvs_cache **row = kvs__calloc(rows->ctx, n ? n : 1, ROW);
    if (!row) {
        return kvs__nomem(err, "state", n * ROW);
    }
    st = check_keep(rows, keep, n, err);
    if (st != KVS_OK) {
        kvs__free(rows->ctx, row, (n ? n : 1) * ROW);
        return st;
    }
    for (uint32_t i = 0; i < n; i++) {
        row[i] = rows->row[keep[i]];
    }
    for (uint32_t i = 0; i < rows->n; i++) {
        if (!rows->row[i]->mark) {
            kvs_cache_free(rows->row[i]);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        row[i]->mark = false;
    }
    kvs__free(rows->ctx, rows->row, rows->cap * ROW);
    rows->row = row;
    rows->cap = n ? n : 1;
    rows->n = n;
    return KVS_OK;
}

kvs_status kvs_rows_reorder(kvs_rows *rows, const uint32_t *order, uint32_t n, kvs_err *err)
{
    kvs_status st = kvs__rows_closed(rows, "reorder", err);
    if (st == KVS_OK && n != rows->n) {
        st =
            kvs__fail(err, KVS_E_INVAL, "state", "an order of %u rows for a set of %u", n, rows->n);
    }
    return st == KVS_OK ? kvs_rows_filter(rows, order, n, err) : st;
}

static kvs_cache *take_row(kvs_rows *rows, uint32_t row)
{
    kvs_cache *c = rows->row[row];
    rows->n--;
    memmove(rows->row + row, rows->row + row + 1, (rows->n - row) * ROW);
    return c;
}

kvs_status kvs_rows_extract(kvs_rows *rows, uint32_t row, kvs_cache **out, kvs_err *err)
{
    if (!out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "out is NULL");
    }
    *out = NULL;
    kvs_status st = kvs__rows_closed(rows, "extract", err);
    st = st == KVS_OK ? kvs__rows_index(rows, row, err) : st;
    if (st == KVS_OK) {
        *out = take_row(rows, row);
    }
    return st;
}

kvs_status kvs_rows_fork(kvs_rows *rows, uint32_t row, uint64_t n_tokens, kvs_err *err)
{
    kvs_status st = kvs__rows_closed(rows, "fork", err);
    st = st == KVS_OK ? kvs__rows_index(rows, row, err) : st;
    kvs_cache *c = NULL;
    st = st == KVS_OK ? kvs_cache_fork(rows->row[row], n_tokens, &c, err) : st;
    st = st == KVS_OK ? make_room(rows, 1, err) : st;
    if (st == KVS_OK) {
        rows->row[rows->n++] = c;
    } else {
        kvs_cache_free(c);
    }
    return st;
}

kvs_status kvs_rows_cancel(kvs_rows *rows, uint32_t row, kvs_err *err)
{
    kvs_status st = kvs__rows_check(rows, err);
    st = st == KVS_OK ? kvs__rows_index(rows, row, err) : st;
    if (st == KVS_OK) {
        kvs_cache_free(take_row(rows, row));
    }
    return st;
}
