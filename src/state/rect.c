/* SPDX-License-Identifier: MIT */
/* rect.c: one layer of a set of rows as the padded rectangle of a tensor engine, and the arithmetic
 * of padded prefills. Padding exists in the caller's planes alone: it is written as zero bytes on
 * the way out and never read on the way in. */
#include <string.h>

#include "kern/kern.h"
#include "kvstate/rows.h"
#include "state/rows.h"

static kvs_status check_layer(const kvs_rows *set, uint32_t layer, kvs_err *err)
{
    kvs_status st = kvs__rows_check(set, err);
    kvs__layer *l = NULL;
    for (uint32_t b = 0; st == KVS_OK && b < set->n; b++) {
        st = kvs__cache_kv_layer(set->row[b], layer, &l, err);
    }
    return st;
}

static const kvs__layer *layer_of(const kvs_rows *set, uint32_t b, uint32_t layer)
{
    kvs__layer *l = NULL;
    (void)kvs__cache_layer(set->row[b], layer, &l, NULL);
    return l;
}

/* First position of the live window: what the newest token sees. */
static int64_t live_begin(const kvs__store *s)
{
    int64_t begin = s->window > 0 ? s->len - (int64_t)s->window : 0;
    begin = begin > 0 ? begin : 0;
    return begin > s->lo ? begin : s->lo;
}

kvs_status kvs_rect_plan(const kvs_rows *set, uint32_t layer, kvs_rect_row *rows, uint64_t *width,
                         kvs_err *err)
{
    kvs_status st = check_layer(set, layer, err);
    if (st == KVS_OK && (!width || (set->n > 0 && !rows))) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", width ? "rows" : "width");
    }
    uint64_t most = 0;
    for (uint32_t b = 0; st == KVS_OK && b < set->n; b++) {
        const kvs__store *s = kvs__layer_store(layer_of(set, b, layer));
        int64_t begin = live_begin(s);
        uint64_t n = (uint64_t)(s->len - begin);
        most = n > most ? n : most;
        if (s->sinks > 0 && begin > 0) {
            st = kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                           "row %u, layer %u: %u sinks lie apart from the window at %lld", b, layer,
                           s->sinks, (long long)begin);
        }
    }
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t b = 0; b < set->n; b++) {
        const kvs__store *s = kvs__layer_store(layer_of(set, b, layer));
        int64_t begin = live_begin(s);
        rows[b] = (kvs_rect_row){s->len, begin, most - (uint64_t)(s->len - begin), most};
    }
    *width = most;
    return KVS_OK;
}

/* A description that was read. */
typedef struct rect {
    uint32_t layer;
    uint32_t flags;
    kvs_dtype dtype;
    uint64_t width;
    const kvs_rect_row *rows;
    kvs_planes planes;
} rect;

static kvs_status read_structs(const kvs_rows *set, const kvs_rect *desc, rect *r, kvs_err *err)
{
    kvs_rect d = KVS_RECT_INIT;
    kvs_planes planes = KVS_PLANES_INIT;
    kvs_status st = kvs__rows_check(set, err);
    if (st == KVS_OK && !desc) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "rect is NULL");
    }
    st = st == KVS_OK ? kvs__opts_read(&d, sizeof d, desc, "kvs_rect", err) : st;
    if (st == KVS_OK && !d.planes) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "planes is NULL");
    }
    st = st == KVS_OK ? kvs__opts_read(&planes, sizeof planes, d.planes, "kvs_planes", err) : st;
    *r = (rect){d.layer, d.flags, d.dtype, d.width, d.rows, planes};
    return st == KVS_OK ? check_layer(set, r->layer, err) : st;
}

static kvs_status read_rect(const kvs_rows *set, const kvs_rect *desc, rect *r, kvs_err *err)
{
    kvs_status st = read_structs(set, desc, r, err);
    if (st != KVS_OK) {
        return st;
    }
    if (r->flags & ~(uint32_t)KVS_RECT_RAW) {
        return kvs__fail(err, KVS_E_INVAL, "state", "flags %#x are unknown", r->flags);
    }
    if (r->dtype != KVS_F32 && r->dtype != KVS_F16 && r->dtype != KVS_BF16) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dtype %d is no kvs_dtype", (int)r->dtype);
    }
    if (set->n > 0 && !r->rows) {
        return kvs__fail(err, KVS_E_INVAL, "state", "rows is NULL");
    }
    for (uint32_t b = 0; b < set->n; b++) {
        const kvs_rect_row *w = &r->rows[b];
        if (w->start > w->end || w->end > r->width || r->width > (uint64_t)INT64_MAX / 4 ||
            w->first < 0 || w->first > INT64_MAX / 4) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "row %u: columns %llu to %llu of %llu at position %lld", b,
                             (unsigned long long)w->start, (unsigned long long)w->end,
                             (unsigned long long)r->width, (long long)w->first);
        }
    }
    return KVS_OK;
}

static bool raw(const rect *r)
{
    return (r->flags & KVS_RECT_RAW) != 0;
}

static bool same_format(const kvs__fmt *a, const kvs__fmt *b)
{
    for (int side = 0; side < KVS__SIDES; side++) {
        const kvs_codec *x = &a->side[side].codec;
        const kvs_codec *y = &b->side[side].codec;
        if (x->bits != y->bits || x->rotate != y->rotate || x->group != y->group ||
            x->dtype != y->dtype) {
            return false;
        }
    }
    return true;
}

/* The format that a row's columns have (out) or need (in). */
static const kvs__fmt *row_fmt(const kvs_rows *set, const rect *r, uint32_t b, bool in)
{
    const kvs__layer *l = layer_of(set, b, r->layer);
    int64_t end = r->rows[b].first + (int64_t)(r->rows[b].end - r->rows[b].start);
    if (!in) {
        return &kvs__layer_store(l)->fmt;
    }
    return end <= (int64_t)l->spec.dense_until ? &l->early.fmt : &l->main.fmt;
}

/* Of the rectangle: that of the first row which has columns; the caller checks the others. */
static const kvs__fmt *rect_fmt(const kvs_rows *set, const rect *r, bool in)
{
    uint32_t b = 0;
    while (b + 1 < set->n && r->rows[b].start == r->rows[b].end) {
        b++;
    }
    return row_fmt(set, r, b, in);
}

static kvs_status mixed(uint32_t row, uint32_t layer, kvs_err *err)
{
    return kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                     "row %u, layer %u: raw planes of rows with different codecs", row, layer);
}

static uint32_t elem_bytes(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

/* Bytes of a token of one head in a plane of the rectangle. */
static size_t unit_row(const rect *r, const kvs__fmt *fmt, int side, int plane)
{
    const kvs__side *s = &fmt->side[side];
    if (raw(r)) {
        return (size_t)s->n_units[plane] * s->unit_bytes[plane];
    }
    return plane == 0 ? (size_t)s->shape.dim * elem_bytes(r->dtype) : 0;
}

static unsigned char *plane_of(const rect *r, int side, int plane)
{
    return side == KVS__K ? r->planes.k[plane] : r->planes.v[plane];
}

/* Column `column` of row b, head h. */
static unsigned char *cell(const rect *r, const kvs__fmt *fmt, int side, int plane, uint32_t b,
                           uint32_t h, uint64_t column)
{
    size_t at = ((size_t)b * fmt->n_heads + h) * (size_t)r->width + (size_t)column;
    return plane_of(r, side, plane) + at * unit_row(r, fmt, side, plane);
}

/* The planes of row b alone, from column `column` on; heads are r->width tokens apart. */
static kvs_planes planes_of_row(const rect *r, const kvs__fmt *fmt, uint32_t b, uint64_t column)
{
    kvs_planes p = KVS_PLANES_INIT;
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int plane = 0; plane < KVS__PLANES; plane++) {
            void **to = side == KVS__K ? p.k : p.v;
            bool there = plane_of(r, side, plane) && unit_row(r, fmt, side, plane) > 0;
            to[plane] = there ? cell(r, fmt, side, plane, b, 0, column) : NULL;
        }
    }
    if (r->planes.k_center) {
        size_t row = (size_t)kvs__center_rows(r->width) * fmt->center_bytes;
        p.k_center = (unsigned char *)r->planes.k_center + (size_t)b * fmt->n_heads * row;
    }
    return p;
}

/* Values of the row's columns, at most a tile at a time. */
static void put_values(const kvs_rows *set, const rect *r, const kvs__store *s, uint32_t b,
                       int side, float *rows)
{
    const kvs_rect_row *w = &r->rows[b];
    size_t dim = s->fmt.side[side].shape.dim;
    for (uint32_t h = 0; h < s->fmt.n_heads; h++) {
        uint64_t done = 0;
        while (done < w->end - w->start) {
            int64_t at = w->first + (int64_t)done;
            uint64_t n = KVS__TILE - (uint64_t)at % KVS__TILE;
            n = n < w->end - w->start - done ? n : w->end - w->start - done;
            kvs__store_read(set->ctx, s, side, h, at, n, rows);
            kvs__kern_narrow(kvs__ctx_kern(set->ctx),
                             cell(r, &s->fmt, side, 0, b, h, w->start + done), r->dtype, rows,
                             (size_t)n * dim);
            done += n;
        }
    }
}

static void pad_row(const rect *r, const kvs__fmt *fmt, uint32_t b, int side, int plane)
{
    const kvs_rect_row *w = &r->rows[b];
    size_t row = unit_row(r, fmt, side, plane);
    for (uint32_t h = 0; row > 0 && h < fmt->n_heads; h++) {
        memset(cell(r, fmt, side, plane, b, h, 0), 0, (size_t)w->start * row);
        memset(cell(r, fmt, side, plane, b, h, w->end), 0, (size_t)(r->width - w->end) * row);
    }
}

static kvs_status check_export(const kvs_rows *set, const rect *r, kvs_err *err)
{
    for (uint32_t b = 0; b < set->n; b++) {
        const kvs__layer *l = layer_of(set, b, r->layer);
        const kvs__store *s = kvs__layer_store(l);
        const kvs_rect_row *w = &r->rows[b];
        int64_t end = w->first + (int64_t)(w->end - w->start);
        bool sinks = end <= (int64_t)s->sinks || s->lo <= (int64_t)s->sinks;
        if (w->end > w->start && (end > s->len || (w->first < s->lo && !sinks))) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "row %u: positions %lld to %lld of %lld, %lld the oldest stored", b,
                             (long long)w->first, (long long)end, (long long)s->len,
                             (long long)s->lo);
        }
        kvs_status st = kvs__layer_committed(l, end, "export", err);
        if (st != KVS_OK) {
            return st;
        }
        if (raw(r) && w->end > w->start && !same_format(&s->fmt, rect_fmt(set, r, false))) {
            return mixed(b, r->layer, err);
        }
    }
    return KVS_OK;
}

kvs_status kvs_rect_export(const kvs_rows *set, const kvs_rect *desc, kvs_err *err)
{
    rect r;
    kvs_status st = read_rect(set, desc, &r, err);
    st = st == KVS_OK ? check_export(set, &r, err) : st;
    if (st != KVS_OK || set->n == 0) {
        return st;
    }
    const kvs__fmt *fmt = rect_fmt(set, &r, false);
    uint32_t k_dim = fmt->side[KVS__K].shape.dim;
    uint32_t v_dim = fmt->side[KVS__V].shape.dim;
    uint32_t dims = k_dim > v_dim ? k_dim : v_dim;
    float *rows = kvs__alloc(set->ctx, KVS__TILE * dims * sizeof *rows);
    if (!rows) {
        return kvs__nomem(err, "state", KVS__TILE * dims * sizeof *rows);
    }
    for (uint32_t b = 0; b < set->n; b++) {
        const kvs__store *s = kvs__layer_store(layer_of(set, b, r.layer));
        uint64_t n = r.rows[b].end - r.rows[b].start;
        for (int side = 0; side < KVS__SIDES; side++) {
            for (int plane = 0; plane < KVS__PLANES; plane++) {
                if (plane_of(&r, side, plane)) {
                    pad_row(&r, fmt, b, side, plane);
                }
            }
            if (!raw(&r) && plane_of(&r, side, 0)) {
                put_values(set, &r, s, b, side, rows);
            }
        }
        if (raw(&r) && fmt->center_bytes && r.planes.k_center) {
            size_t row = (size_t)kvs__center_rows(r.width) * fmt->center_bytes * fmt->n_heads;
            memset((unsigned char *)r.planes.k_center + b * row, 0, row);
        }
        if (raw(&r) && n > 0) {
            kvs_planes p = planes_of_row(&r, fmt, b, r.rows[b].start);
            kvs__store_export(s, r.rows[b].first, n, &p, r.width, kvs__center_rows(r.width));
        }
    }
    kvs__free(set->ctx, rows, KVS__TILE * dims * sizeof *rows);
    return KVS_OK;
}

/* Everything about row b that can fail. Values that go into a ring come in blocks, of which the
 * first makes the room. */
static kvs_status reserve_row(const kvs_rows *set, const rect *r, uint32_t b, kvs_err *err)
{
    kvs__layer *l = NULL;
    const kvs_rect_row *w = &r->rows[b];
    uint64_t n = w->end - w->start;
    kvs_status st = kvs__cache_own_kv(set->row[b], r->layer, "import", &l, err);
    if (st != KVS_OK || n == 0) {
        return st;
    }
    if (raw(r)) {
        kvs_planes p = planes_of_row(r, rect_fmt(set, r, true), b, w->start);
        return kvs__layer_import_reserve(set->ctx, l, w->first, n, &p, kvs__center_rows(r->width),
                                         err);
    }
    if (w->first != kvs__layer_len(l) || !r->planes.k[0] || !r->planes.v[0]) {
        return kvs__fail(err, r->planes.k[0] && r->planes.v[0] ? KVS_E_RANGE : KVS_E_INVAL, "state",
                         "row %u: values for position %lld of a row of %lld tokens, planes %p, %p",
                         b, (long long)w->first, (long long)kvs__layer_len(l), r->planes.k[0],
                         r->planes.v[0]);
    }
    st = kvs__layer_room(l, n, err);
    return st == KVS_OK ? kvs__layer_reserve_all(set->ctx, l, n, err) : st;
}

static void import_values(const kvs_rows *set, const rect *r, uint32_t b)
{
    kvs__layer *l = NULL;
    const kvs_rect_row *w = &r->rows[b];
    (void)kvs__cache_layer(set->row[b], r->layer, &l, NULL);
    uint64_t most = l->spec.max_block ? l->spec.max_block : 1;
    most = kvs__store_slides(&l->main) ? most : INT32_MAX;
    for (uint64_t at = w->start; at < w->end;) {
        uint64_t n = w->end - at < most ? w->end - at : most;
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = (uint32_t)n;
        kv.dtype = r->dtype;
        kv.k = cell(r, &l->main.fmt, KVS__K, 0, b, 0, at);
        kv.v = cell(r, &l->main.fmt, KVS__V, 0, b, 0, at);
        kv.k_token_stride = l->spec.k_dim;
        kv.v_token_stride = l->spec.v_dim;
        kv.k_head_stride = (size_t)r->width * l->spec.k_dim;
        kv.v_head_stride = (size_t)r->width * l->spec.v_dim;
        kvs_status st = kvs__layer_append(set->ctx, l, &kv, NULL);
        if (KVS_NEVER(st != KVS_OK)) {
            return;
        }
        at += n;
    }
}

kvs_status kvs_rect_import(kvs_rows *set, const kvs_rect *desc, kvs_err *err)
{
    rect r;
    kvs_status st = read_rect(set, desc, &r, err);
    for (uint32_t b = 0; st == KVS_OK && raw(&r) && b < set->n; b++) {
        bool has = r.rows[b].end > r.rows[b].start;
        if (has && !same_format(row_fmt(set, &r, b, true), rect_fmt(set, &r, true))) {
            st = mixed(b, r.layer, err);
        }
    }
    for (uint32_t b = 0; st == KVS_OK && b < set->n; b++) {
        st = reserve_row(set, &r, b, err);
    }
    for (uint32_t b = 0; st == KVS_OK && b < set->n; b++) {
        const kvs_rect_row *w = &r.rows[b];
        kvs__layer *l = NULL;
        (void)kvs__cache_layer(set->row[b], r.layer, &l, NULL);
        if (w->end == w->start) {
            continue;
        }
        if (raw(&r)) {
            kvs_planes p = planes_of_row(&r, rect_fmt(set, &r, true), b, w->start);
            kvs__layer_import(set->ctx, l, w->first, w->end - w->start, &p, r.width,
                              kvs__center_rows(r.width));
        } else {
            import_values(set, &r, b);
        }
    }
    return st;
}

kvs_status kvs_rect_mask(const kvs_rows *set, uint32_t layer, const kvs_rect_row *rows,
                         uint64_t width, uint32_t n_queries, int64_t *pads, kvs_mask_desc *out,
                         kvs_err *err)
{
    kvs_status st = check_layer(set, layer, err);
    if (st == KVS_OK && (!out || (set->n > 0 && (!rows || !pads)))) {
        st = kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL",
                       !out    ? "out"
                       : !rows ? "rows"
                               : "pads");
    }
    if (st == KVS_OK && (width > (uint64_t)INT64_MAX / 4 || set->n == 0)) {
        st = kvs__fail(err, KVS_E_RANGE, "state", "a mask of %u rows, %llu columns", set->n,
                       (unsigned long long)width);
    }
    int64_t window = 0;
    for (uint32_t b = 0; st == KVS_OK && b < set->n; b++) {
        int64_t w = (int64_t)layer_of(set, b, layer)->spec.window;
        window = b == 0 ? w : window;
        if (rows[b].end != width || rows[b].start > width || w != window) {
            st = kvs__fail(err, KVS_E_UNSUPPORTED, "state",
                           "row %u ends in column %llu of %llu, window %lld; row 0 has window %lld",
                           b, (unsigned long long)rows[b].end, (unsigned long long)width,
                           (long long)w, (long long)window);
        }
    }
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t b = 0; b < set->n; b++) {
        pads[b] = (int64_t)rows[b].start;
    }
    kvs_mask_desc d = KVS_MASK_DESC_INIT;
    d.kind = KVS_MASK_PADDED;
    d.n_queries = n_queries;
    d.n_rows = set->n;
    d.n_keys = (int64_t)width + (int64_t)n_queries;
    d.window = window;
    d.pads = pads;
    return kvs__stats_write(out, &d, sizeof d);
}

/* -- padded prefill: positions alone */

kvs_status kvs_prefill_prepare(kvs_prefill_row *rows, uint32_t n_rows, const uint32_t *left,
                               const uint32_t *lengths, const uint32_t *right, kvs_err *err)
{
    if (n_rows > 0 && (!rows || !lengths)) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", rows ? "lengths" : "rows");
    }
    bool trailing = false;
    for (uint32_t b = 0; b < n_rows; b++) {
        trailing = trailing || (right && right[b] > 0);
    }
    for (uint32_t b = 0; b < n_rows; b++) {
        uint32_t lp = left ? left[b] : 0;
        if (trailing && lp > lengths[b]) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "row %u: length %u does not include its left padding of %u", b,
                             lengths[b], lp);
        }
        if (lp > 0 && rows[b].offset != 0) {
            return kvs__fail(err, KVS_E_STATE, "state",
                             "row %u: left padding of %u behind %lld tokens", b, lp,
                             (long long)rows[b].offset);
        }
        if (rows[b].offset > INT64_MAX / 4 || rows[b].pad > INT64_MAX / 4) {
            return kvs__fail(err, KVS_E_RANGE, "state", "row %u: offset %lld, pad %lld", b,
                             (long long)rows[b].offset, (long long)rows[b].pad);
        }
    }
    for (uint32_t b = 0; b < n_rows; b++) {
        int64_t lp = left ? (int64_t)left[b] : 0;
        rows[b].pad += lp;
        rows[b].offset -= lp;
        if (trailing) {
            rows[b].end = rows[b].offset + (int64_t)lengths[b];
        }
    }
    return KVS_OK;
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

kvs_status kvs_prefill_advance(kvs_prefill_row *rows, uint32_t n_rows, uint64_t n_columns,
                               uint64_t *starts, uint64_t *ends, kvs_err *err)
{
    if (n_rows > 0 && !rows) {
        return kvs__fail(err, KVS_E_INVAL, "state", "rows is NULL");
    }
    for (uint32_t b = 0; b < n_rows; b++) {
        if (n_columns > (uint64_t)INT64_MAX / 4 || rows[b].offset > INT64_MAX / 4) {
            return kvs__fail(err, KVS_E_RANGE, "state", "row %u: %llu columns at offset %lld", b,
                             (unsigned long long)n_columns, (long long)rows[b].offset);
        }
    }
    int64_t n = (int64_t)n_columns;
    for (uint32_t b = 0; b < n_rows; b++) {
        kvs_prefill_row *w = &rows[b];
        int64_t start = clamp(-w->offset, 0, n);
        int64_t end = w->end == KVS_PREFILL_NO_END ? n : clamp(w->end - w->offset, start, n);
        if (starts) {
            starts[b] = (uint64_t)start;
        }
        if (ends) {
            ends[b] = (uint64_t)end;
        }
        w->offset += n;
    }
    return KVS_OK;
}

int64_t kvs_prefill_valid(const kvs_prefill_row *row)
{
    return row ? clamp(row->offset, INT64_MIN, row->end) : -1;
}

kvs_status kvs_prefill_finalize(kvs_prefill_row *rows, uint32_t n_rows, uint64_t *shifts)
{
    if (n_rows > 0 && !rows) {
        return KVS_E_INVAL;
    }
    bool any = false;
    for (uint32_t b = 0; b < n_rows; b++) {
        kvs_prefill_row *w = &rows[b];
        int64_t x = w->offset - kvs_prefill_valid(w);
        w->offset -= x;
        w->pad += x;
        w->end = KVS_PREFILL_NO_END;
        any = any || x > 0;
        if (shifts) {
            shifts[b] = (uint64_t)x;
        }
    }
    return any ? KVS_OK : KVS_NO;
}

uint64_t kvs_prefill_roll(uint64_t column, uint64_t shift, uint64_t width)
{
    if (width == 0) {
        return 0;
    }
    column %= width;
    shift %= width;
    return column >= shift ? column - shift : width - (shift - column);
}
