/* SPDX-License-Identifier: MIT */
/* mask.c: checks a mask descriptor, reduces it to a geometry (mask_geom.h) and writes the array.
 *
 * I1  Everything that can fail happens in kvs__mask_check, before dst is touched.
 * I2  Counts are at most 2^40 and pads at least -2^40, so no sum of a few of them overflows.
 * I3  mode NONE and CAUSAL are answered only where they mean exactly what the array says.
 * It knows no cache: positions are the caller's, and a mask that does not fit the cache it is used
 * with is not noticed here. */
#include <string.h>

#include "state/mask_geom.h"

#define MOST        (INT64_C(1) << 40)
#define HAS(f)      (1u << (f))
#define COUNT_KINDS (KVS_MASK_RING_ROWS + 1)

/* Fields that a kind reads; the others must be zero. */
enum { F_OFFSET, F_KEYS, F_WINDOW, F_SINKS, F_RING, F_INDEX, F_ENDS, F_PADS, F_PAIRED };

static const uint32_t kind_fields[COUNT_KINDS] = {
    [KVS_MASK_CAUSAL] = HAS(F_OFFSET) | HAS(F_WINDOW) | HAS(F_SINKS),
    [KVS_MASK_BOTTOM_RIGHT] = HAS(F_KEYS),
    [KVS_MASK_BIDIRECTIONAL] = HAS(F_OFFSET) | HAS(F_WINDOW) | HAS(F_SINKS) | HAS(F_PAIRED),
    [KVS_MASK_PADDED] = HAS(F_KEYS) | HAS(F_WINDOW) | HAS(F_PADS),
    [KVS_MASK_ROWS] = HAS(F_WINDOW) | HAS(F_PADS) | HAS(F_ENDS),
    [KVS_MASK_RING_WINDOW] = HAS(F_OFFSET) | HAS(F_WINDOW) | HAS(F_SINKS) | HAS(F_RING),
    [KVS_MASK_RING_DECODE] =
        HAS(F_OFFSET) | HAS(F_WINDOW) | HAS(F_SINKS) | HAS(F_RING) | HAS(F_INDEX),
    [KVS_MASK_RING_BLOCK] = HAS(F_OFFSET) | HAS(F_KEYS) | HAS(F_RING),
    [KVS_MASK_RING_ROWS] = HAS(F_OFFSET) | HAS(F_WINDOW) | HAS(F_RING) | HAS(F_INDEX) | HAS(F_PADS),
};

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static kvs_status check_count(int64_t value, bool used, const char *name, kvs_err *err)
{
    if (!used && value != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is %lld; this kind of mask does not use it",
                         name, (long long)value);
    }
    if (value < 0 || value > MOST) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%s %lld is not within 0 .. 2^40", name,
                         (long long)value);
    }
    return KVS_OK;
}

static kvs_status check_counts(const kvs_mask_desc *d, uint32_t has, kvs_err *err)
{
    const struct {
        int64_t value;
        int field;
        const char *name;
    } counts[] = {
        {d->offset, F_OFFSET, "offset"}, {d->n_keys, F_KEYS, "n_keys"},
        {d->window, F_WINDOW, "window"}, {d->sinks, F_SINKS, "sinks"},
        {d->ring, F_RING, "ring"},       {d->ring_index, F_INDEX, "ring_index"},
    };
    for (size_t i = 0; i < KVS_COUNT(counts); i++) {
        kvs_status st =
            check_count(counts[i].value, (has & HAS(counts[i].field)) != 0, counts[i].name, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    if ((has & HAS(F_RING)) && d->ring == 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "ring is 0; a ring has at least one slot");
    }
    return KVS_OK;
}

static kvs_status check_pointer(const void *p, bool used, const char *name, kvs_err *err)
{
    if (used != (p != NULL)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         used ? "%s is NULL" : "%s is given; this kind of mask does not use it",
                         name);
    }
    return KVS_OK;
}

/* Row arrays: pads within 2^40 of zero (never negative but in a ring), ends at or after zero. */
static kvs_status check_rows(const kvs_mask_desc *d, uint32_t has, kvs_err *err)
{
    bool rows = (has & HAS(F_PADS)) != 0;
    if (rows != (d->n_rows > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "state",
                         "n_rows is %u; kinds with rows need one, others none", d->n_rows);
    }
    kvs_status st = check_pointer(d->pads, rows, "pads", err);
    st = st ? st : check_pointer(d->row_offsets, (has & HAS(F_ENDS)) != 0, "row_offsets", err);
    st = st ? st : check_pointer(d->paired, (has & HAS(F_PAIRED)) != 0, "paired", err);
    int64_t least = d->kind == KVS_MASK_RING_ROWS ? -MOST : 0;
    for (uint32_t b = 0; st == KVS_OK && b < d->n_rows; b++) {
        if (d->pads[b] < least || d->pads[b] > MOST) {
            return kvs__fail(err, KVS_E_RANGE, "state", "pads[%u] %lld is not within %s .. 2^40", b,
                             (long long)d->pads[b], least ? "-2^40" : "0");
        }
        if (d->row_offsets && (d->row_offsets[b] < -MOST || d->row_offsets[b] > MOST ||
                               d->row_offsets[b] + d->pads[b] < 0)) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "row_offsets[%u] %lld and pads[%u] %lld put the row's end below 0 "
                             "or beyond 2^40",
                             b, (long long)d->row_offsets[b], b, (long long)d->pads[b]);
        }
    }
    return st;
}

static kvs_status check_keys(const kvs_mask_desc *d, kvs_err *err)
{
    bool below = (d->kind == KVS_MASK_BOTTOM_RIGHT || d->kind == KVS_MASK_PADDED) &&
                 d->n_keys < (int64_t)d->n_queries;
    if (below) {
        return kvs__fail(err, KVS_E_RANGE, "state", "n_keys %lld is below n_queries %u",
                         (long long)d->n_keys, d->n_queries);
    }
    if (d->ring && d->sinks >= d->ring) {
        return kvs__fail(err, KVS_E_RANGE, "state", "sinks %lld leave no slot of ring %lld",
                         (long long)d->sinks, (long long)d->ring);
    }
    if (d->kind == KVS_MASK_RING_DECODE) {
        if (d->n_queries != 1) {
            return kvs__fail(err, KVS_E_INVAL, "state",
                             "n_queries is %u; a ring written in place takes one", d->n_queries);
        }
        if (d->offset < d->ring && d->ring_index != d->offset) {
            return kvs__fail(err, KVS_E_RANGE, "state",
                             "ring_index %lld is not offset %lld in a ring that is not full",
                             (long long)d->ring_index, (long long)d->offset);
        }
        if (d->offset >= d->ring && d->ring_index < d->sinks) {
            return kvs__fail(err, KVS_E_RANGE, "state", "ring_index %lld lies on the %lld sinks",
                             (long long)d->ring_index, (long long)d->sinks);
        }
    }
    return KVS_OK;
}

static kvs_status check(const kvs_mask_desc *d, kvs_err *err)
{
    if ((uint32_t)d->kind >= COUNT_KINDS) {
        return kvs__fail(err, KVS_E_INVAL, "state", "kind %d is no kvs_mask_kind", (int)d->kind);
    }
    if ((uint32_t)d->type > KVS_MASK_BF16) {
        return kvs__fail(err, KVS_E_INVAL, "state", "type %d is no kvs_mask_type", (int)d->type);
    }
    uint32_t known = KVS_MASK_INFINITE | KVS_MASK_ARRAY;
    if (d->kind == KVS_MASK_RING_ROWS) {
        known |= KVS_MASK_ROTATED | KVS_MASK_ORDERED;
    }
    if (d->flags & ~known) {
        return kvs__fail(err, KVS_E_INVAL, "state", "flags 0x%x do not go with kind %d", d->flags,
                         (int)d->kind);
    }
    if (d->n_queries == 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "n_queries is 0");
    }
    uint32_t has = kind_fields[d->kind];
    kvs_status st = check_counts(d, has, err);
    st = st ? st : check_rows(d, has, err);
    return st ? st : check_keys(d, err);
}

/* ---- geometry */

static void geom_ring_decode(const kvs_mask_desc *d, kvs__mask_geom *g)
{
    g->n_keys = min64(d->offset + 1, d->ring);
    g->sinks = d->sinks;
    if (d->offset >= d->ring) { /* full: the slot written holds the newest token */
        int64_t slot = d->ring_index >= d->ring ? d->sinks : d->ring_index;
        g->roll_from = d->sinks;
        g->roll = (slot + 1 - d->sinks) % (d->ring - d->sinks);
    }
}

/* Columns below `lo` are too old, [hole) are slots never filled, the rest is the block. */
static void geom_ring_block(const kvs_mask_desc *d, kvs__mask_geom *g)
{
    int64_t n = d->n_keys;
    int64_t reach = d->ring - 1;
    int64_t valid = min64(d->offset, n);
    if (n > reach && d->offset >= n) { /* the stored part is cut to what the block may see */
        n = reach;
    }
    g->n_queries = 1;
    g->n_keys = n + (int64_t)d->n_queries;
    if (n > reach) {
        g->hole_begin = valid;
        g->hole_end = n;
    }
}

static int64_t ring_rows_shift(const kvs_mask_desc *d)
{
    bool block = d->n_queries > 1 || (d->flags & KVS_MASK_ORDERED);
    bool wraps = !block && ((d->flags & KVS_MASK_ROTATED) || d->ring_index >= d->ring);
    return wraps ? (d->ring_index >= d->ring ? 0 : d->ring_index) + 1 : 0;
}

static void geometry(const kvs_mask_desc *d, kvs__mask_geom *g)
{
    int64_t n = d->n_queries;
    memset(g, 0, sizeof *g);
    g->n_rows = d->n_rows ? d->n_rows : 1;
    g->n_queries = n;
    g->window = d->window;
    g->n_keys = d->n_keys;
    switch (d->kind) {
    case KVS_MASK_CAUSAL:
    case KVS_MASK_BIDIRECTIONAL:
        g->n_keys = d->offset + n;
        g->flag_col = d->paired ? d->offset : 0;
        g->sinks = d->sinks;
        break;
    case KVS_MASK_BOTTOM_RIGHT:
    case KVS_MASK_PADDED:
        break;
    case KVS_MASK_ROWS:
        for (uint32_t b = 0; b < d->n_rows; b++) {
            g->n_keys = max64(g->n_keys, d->row_offsets[b] + d->pads[b] + n);
        }
        break;
    case KVS_MASK_RING_DECODE:
        geom_ring_decode(d, g);
        break;
    case KVS_MASK_RING_BLOCK:
        geom_ring_block(d, g);
        break;
    case KVS_MASK_RING_ROWS:
    case KVS_MASK_RING_WINDOW:
        g->n_keys = min64(d->ring - 1, d->offset) + n;
        g->window = d->window ? d->window : d->ring - d->sinks;
        g->sinks = d->sinks;
        g->roll = d->kind == KVS_MASK_RING_ROWS ? ring_rows_shift(d) % g->n_keys : 0;
        break;
    }
    /* a window that reaches everything is none: one mask, one key */
    g->window = g->window >= g->n_keys ? 0 : g->window;
    g->sinks = g->window ? min64(g->sinks, g->n_keys) : 0;
}

int64_t kvs__mask_base(const kvs__mask_plan *p, uint32_t b)
{
    const kvs_mask_desc *d = &p->desc;
    if (d->kind == KVS_MASK_ROWS) {
        return d->row_offsets[b] + d->pads[b];
    }
    return p->geom.n_keys - p->geom.n_queries;
}

int64_t kvs__mask_pad(const kvs__mask_plan *p, uint32_t b)
{
    const kvs_mask_desc *d = &p->desc;
    if (d->kind == KVS_MASK_RING_BLOCK) {
        bool old = p->geom.hole_end > d->ring - 1;
        return old ? max64(0, p->geom.hole_begin - (d->ring - 1)) : 0;
    }
    if (d->kind != KVS_MASK_RING_ROWS) {
        return d->pads ? d->pads[b] : 0;
    }
    /* what the append that follows will push out of the window, and the slot it overwrites */
    bool block = d->n_queries > 1 || (d->flags & KVS_MASK_ORDERED);
    int64_t held = block && (d->flags & KVS_MASK_ROTATED) ? d->ring : d->ring_index;
    int64_t cut = held - d->ring + (block ? 1 : 0);
    return max64(0, d->pads[b] - max64(0, cut) - (ring_rows_shift(d) ? 1 : 0));
}

/* ---- mode and shape */

/* MLX's rule for a mask of one sequence whose first query stands at column `base`. */
static kvs_mask_mode serial_mode(const kvs_mask_desc *d, const kvs__mask_geom *g, int64_t base)
{
    bool all = g->window == 0 || g->window + g->sinks >= g->n_keys;
    if (g->n_queries == 1) {
        return all ? KVS_MASK_MODE_NONE : KVS_MASK_MODE_ARRAY;
    }
    bool ring = d->kind == KVS_MASK_RING_WINDOW;
    bool causal = ring || d->window == 0 || base == 0;
    return causal && g->window == 0 && !(d->flags & KVS_MASK_ARRAY) ? KVS_MASK_MODE_CAUSAL
                                                                    : KVS_MASK_MODE_ARRAY;
}

/* Rows without padding that all end at one column are one sequence for a mask. */
static bool rows_aligned(const kvs_mask_desc *d)
{
    for (uint32_t b = 0; b < d->n_rows; b++) {
        if (d->pads[b] != 0 || (d->row_offsets && d->row_offsets[b] != d->row_offsets[0])) {
            return false;
        }
    }
    return true;
}

static kvs_mask_mode mode_of(const kvs__mask_plan *p)
{
    const kvs_mask_desc *d = &p->desc;
    switch (d->kind) {
    case KVS_MASK_CAUSAL:
    case KVS_MASK_RING_WINDOW:
    case KVS_MASK_RING_DECODE:
        return serial_mode(d, &p->geom, kvs__mask_base(p, 0));
    case KVS_MASK_PADDED:
    case KVS_MASK_ROWS:
        return rows_aligned(d) ? serial_mode(d, &p->geom, kvs__mask_base(p, 0))
                               : KVS_MASK_MODE_ARRAY;
    case KVS_MASK_BOTTOM_RIGHT:
        return d->n_queries == 1 ? KVS_MASK_MODE_NONE : KVS_MASK_MODE_ARRAY;
    case KVS_MASK_RING_BLOCK:
        return d->n_keys <= d->ring - 1 ? KVS_MASK_MODE_NONE : KVS_MASK_MODE_ARRAY;
    case KVS_MASK_BIDIRECTIONAL:
    case KVS_MASK_RING_ROWS:
        break;
    }
    return KVS_MASK_MODE_ARRAY;
}

static size_t element_bytes(kvs_mask_type type)
{
    return type == KVS_MASK_BOOL ? 1 : type == KVS_MASK_F32 ? 4 : 2;
}

static kvs_status shape_of(kvs__mask_plan *p, kvs_err *err)
{
    const kvs__mask_geom *g = &p->geom;
    kvs_mask_shape *s = &p->shape;
    *s = (kvs_mask_shape)KVS_MASK_SHAPE_INIT;
    s->mode = mode_of(p);
    uint64_t all[4] = {(uint64_t)g->n_rows, 1, (uint64_t)g->n_queries, (uint64_t)g->n_keys};
    bool four = p->desc.n_rows > 0 || p->desc.kind == KVS_MASK_RING_BLOCK;
    s->n_dims = four ? 4 : p->desc.kind == KVS_MASK_RING_DECODE ? 1 : 2;
    memcpy(s->dims, all + 4 - s->n_dims, s->n_dims * sizeof all[0]);
    size_t bytes = element_bytes(p->desc.type);
    for (int i = 0; i < 4; i++) {
        if (all[i] > SIZE_MAX || !kvs__mul_size(bytes, (size_t)all[i], &bytes)) {
            return kvs__fail(err, KVS_E_LIMIT, "state",
                             "a mask of %lld x %lld x %lld elements is too large",
                             (long long)g->n_rows, (long long)g->n_queries, (long long)g->n_keys);
        }
    }
    s->bytes = bytes;
    return KVS_OK;
}

kvs_status kvs__mask_check(const kvs_mask_desc *desc, kvs__mask_plan *out, kvs_err *err)
{
    if (!desc) {
        return kvs__fail(err, KVS_E_INVAL, "state", "desc is NULL");
    }
    out->desc = (kvs_mask_desc)KVS_MASK_DESC_INIT;
    kvs_status st = kvs__opts_read(&out->desc, sizeof out->desc, desc, "kvs_mask_desc", err);
    st = st ? st : check(&out->desc, err);
    if (st != KVS_OK) {
        return st;
    }
    geometry(&out->desc, &out->geom);
    return shape_of(out, err);
}

/* ---- writing */

/* Visible columns of one query, as at most two runs before the hole, the flags and the roll. */
typedef struct writer {
    kvs_mask_type type;
    uint32_t floor; /* bit pattern of a hidden element */
    char *dst;
    const kvs__mask_geom *geom;
} writer;

static void put(const writer *w, int64_t begin, int64_t end, bool visible)
{
    if (begin >= end) {
        return;
    }
    size_t n = (size_t)(end - begin);
    uint32_t bits = visible ? 0 : w->floor;
    if (w->type == KVS_MASK_BOOL) {
        memset(w->dst + begin, visible ? 1 : 0, n);
    } else if (w->type == KVS_MASK_F32) {
        float *f = (void *)w->dst;
        float x = 0;
        memcpy(&x, &bits, sizeof x);
        for (size_t i = 0; i < n; i++) {
            f[begin + (int64_t)i] = x;
        }
    } else {
        uint16_t *h = (void *)w->dst;
        for (size_t i = 0; i < n; i++) {
            h[begin + (int64_t)i] = (uint16_t)bits;
        }
    }
}

/* A run of columns in time order, put where the roll moves it: at most two pieces. */
static void put_rolled(const writer *w, int64_t begin, int64_t end, bool visible)
{
    const kvs__mask_geom *g = w->geom;
    int64_t fixed = min64(end, g->roll_from);
    put(w, begin, fixed, visible);
    begin = max64(begin, g->roll_from);
    int64_t wrap = g->n_keys - g->roll; /* columns from here on come round to roll_from */
    put(w, begin + g->roll, min64(end, wrap) + g->roll, visible);
    int64_t back = g->roll_from - wrap;
    put(w, max64(begin, wrap) + back, end + back, visible);
}

static uint32_t floor_bits(const kvs_mask_desc *d)
{
    static const uint32_t finite[] = {0, 0xff7fffffu, 0xfbffu, 0xff7fu};
    static const uint32_t infinite[] = {0, 0xff800000u, 0xfc00u, 0xff80u};
    return (d->flags & KVS_MASK_INFINITE ? infinite : finite)[d->type];
}

static void write_query(const writer *w, const kvs_mask_desc *d, int64_t at, int64_t pad, int64_t i)
{
    const kvs__mask_geom *g = w->geom;
    put(w, 0, g->n_keys, false);
    int64_t end = min64(at + 1, g->n_keys);
    int64_t begin = g->window ? max64(at + 1 - g->window, pad) : pad;
    put_rolled(w, pad, min64(end, g->sinks), true);
    put_rolled(w, begin, end, true);
    put(w, g->hole_begin, g->hole_end, false);
    if (d->paired && d->paired[i]) {
        for (int64_t j = 0; j < g->n_queries; j++) {
            if (d->paired[j]) {
                put(w, g->flag_col + j, g->flag_col + j + 1, true);
            }
        }
    }
}

void kvs__mask_write(const kvs__mask_plan *p, void *dst)
{
    const kvs__mask_geom *g = &p->geom;
    size_t row_bytes = (size_t)g->n_keys * element_bytes(p->desc.type);
    writer w = {p->desc.type, floor_bits(&p->desc), dst, g};
    for (int64_t b = 0; b < g->n_rows; b++) {
        int64_t base = kvs__mask_base(p, (uint32_t)b);
        int64_t pad = kvs__mask_pad(p, (uint32_t)b);
        for (int64_t i = 0; i < g->n_queries; i++) {
            write_query(&w, &p->desc, base + i, pad, i);
            w.dst += row_bytes;
        }
    }
}

kvs_status kvs_mask_plan(const kvs_mask_desc *desc, kvs_mask_shape *out, kvs_err *err)
{
    if (!out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "out is NULL");
    }
    kvs__mask_plan p;
    kvs_status st = kvs__mask_check(desc, &p, err);
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__stats_write(out, &p.shape, sizeof p.shape) != KVS_OK) {
        return kvs__fail(err, KVS_E_INVAL, "state", "out->struct_size is %zu; use the initialiser",
                         out->struct_size);
    }
    return KVS_OK;
}

kvs_status kvs_mask_fill(const kvs_mask_desc *desc, void *dst, size_t dst_bytes, kvs_err *err)
{
    kvs__mask_plan p;
    kvs_status st = kvs__mask_check(desc, &p, err);
    if (st != KVS_OK) {
        return st;
    }
    if (dst_bytes != p.shape.bytes) {
        return kvs__fail(err, KVS_E_RANGE, "state", "dst_bytes is %zu, the mask takes %zu",
                         dst_bytes, p.shape.bytes);
    }
    size_t align = element_bytes(p.desc.type);
    if (!dst || (uintptr_t)dst % align != 0) {
        return kvs__fail(err, KVS_E_INVAL, "state", "dst %p is NULL or not aligned to %zu", dst,
                         align);
    }
    kvs__mask_write(&p, dst);
    return KVS_OK;
}
