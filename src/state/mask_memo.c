/* SPDX-License-Identifier: MIT */
/* mask_memo.c: shares one mask among the layers of a forward (kvs_masks).
 *
 * I1  A mask is immutable; it lives while the memo or a lease holds it (refs counts both).
 * I2  A slot's mask is given again only for equal values of everything it depends on: geometry,
 *     each row's base and pad, and the flagged pairs, compared by content.
 * I3  A new mask is complete before it replaces the old one in its slot.
 * A model has a handful of families; with more than N_SLOTS the one leased longest ago goes. */
#include <string.h>

#include "state/mask_geom.h"

#define N_SLOTS 32u

struct kvs_mask {
    kvs_ctx *ctx;
    size_t bytes; /* of this allocation: the struct, rows, paired, data */
    size_t refs;
    kvs_mask_shape shape;
    kvs__mask_geom geom;
    int64_t *rows;   /* [n_rows][2]: base and pad */
    uint8_t *paired; /* [n_queries] of 0 or 1, NULL without pairs */
    void *data;      /* NULL where the mode needs no array */
};

/* What all layers of one sort have in common; no padding, compared as bytes. */
typedef struct family {
    int64_t kind;
    int64_t type;
    int64_t infinite;
    int64_t window;
    int64_t sinks;
    int64_t ring;
} family;

typedef struct slot {
    family fam;
    kvs_mask *mask; /* NULL: unused */
    uint64_t used;  /* value of `leases` at the last lease */
} slot;

struct kvs_masks {
    kvs_ctx *ctx;
    kvs_mask *constant[2]; /* modes "none" and "causal" */
    slot slots[N_SLOTS];
    uint64_t builds;
    uint64_t leases;
};

/* Offsets within the one allocation of a mask. */
typedef struct mask_layout {
    size_t rows;
    size_t paired;
    size_t data;
    size_t bytes;
} mask_layout;

static bool lay_out(const kvs__mask_plan *p, mask_layout *l)
{
    size_t rows = 0;
    size_t at = 0;
    size_t paired = p->desc.paired ? p->desc.n_queries : 0;
    return kvs__align_size(sizeof(kvs_mask), _Alignof(int64_t), &l->rows) &&
           kvs__mul_size((size_t)p->geom.n_rows, 2 * sizeof(int64_t), &rows) &&
           kvs__add_size(l->rows, rows, &l->paired) && kvs__add_size(l->paired, paired, &at) &&
           kvs__align_size(at, 64, &l->data) && kvs__add_size(l->data, p->shape.bytes, &l->bytes);
}

static kvs_mask *build(kvs_ctx *ctx, const kvs__mask_plan *p, kvs_err *err)
{
    mask_layout l = {0};
    char *base = lay_out(p, &l) ? kvs__alloc(ctx, l.bytes) : NULL;
    if (!base) {
        (void)kvs__nomem(err, "state", l.bytes ? l.bytes : p->shape.bytes);
        return NULL;
    }
    kvs_mask *m = (void *)base;
    *m = (kvs_mask){.ctx = ctx, .bytes = l.bytes, .refs = 1, .shape = p->shape, .geom = p->geom};
    m->rows = (void *)(base + l.rows);
    for (uint32_t b = 0; b < (uint32_t)p->geom.n_rows; b++) {
        m->rows[2 * b] = kvs__mask_base(p, b);
        m->rows[2 * b + 1] = kvs__mask_pad(p, b);
    }
    if (p->desc.paired) {
        m->paired = (uint8_t *)(base + l.paired);
        for (uint32_t i = 0; i < p->desc.n_queries; i++) {
            m->paired[i] = p->desc.paired[i] != 0;
        }
    }
    m->data = base + l.data;
    kvs__mask_write(p, m->data);
    return m;
}

/* I2 */
static bool same(const kvs_mask *m, const kvs__mask_plan *p)
{
    if (memcmp(&m->geom, &p->geom, sizeof m->geom) != 0) {
        return false;
    }
    for (uint32_t b = 0; b < (uint32_t)p->geom.n_rows; b++) {
        if (m->rows[2 * b] != kvs__mask_base(p, b) || m->rows[2 * b + 1] != kvs__mask_pad(p, b)) {
            return false;
        }
    }
    for (uint32_t i = 0; m->paired && i < p->desc.n_queries; i++) {
        if (m->paired[i] != (p->desc.paired[i] != 0)) {
            return false;
        }
    }
    return true;
}

static kvs_mask *constant_new(kvs_ctx *ctx, kvs_mask_mode mode, kvs_err *err)
{
    kvs_mask *m = kvs__calloc(ctx, 1, sizeof *m);
    if (!m) {
        (void)kvs__nomem(err, "state", sizeof *m);
        return NULL;
    }
    m->ctx = ctx;
    m->bytes = sizeof *m;
    m->refs = 1;
    m->shape = (kvs_mask_shape)KVS_MASK_SHAPE_INIT;
    m->shape.mode = mode;
    return m;
}

kvs_status kvs_masks_new(kvs_ctx *ctx, kvs_masks **out, kvs_err *err)
{
    if (!ctx || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", ctx ? "out" : "ctx");
    }
    kvs_masks *s = kvs__calloc(ctx, 1, sizeof *s);
    if (!s) {
        return kvs__nomem(err, "state", sizeof *s);
    }
    s->ctx = ctx;
    s->constant[0] = constant_new(ctx, KVS_MASK_MODE_NONE, err);
    s->constant[1] = s->constant[0] ? constant_new(ctx, KVS_MASK_MODE_CAUSAL, err) : NULL;
    if (!s->constant[1]) {
        kvs_masks_free(s);
        return KVS_E_NOMEM;
    }
    *out = s;
    return KVS_OK;
}

void kvs_masks_clear(kvs_masks *s)
{
    for (size_t i = 0; s && i < N_SLOTS; i++) {
        kvs_mask_release(s->slots[i].mask);
        s->slots[i].mask = NULL;
    }
}

void kvs_masks_free(kvs_masks *s)
{
    if (!s) {
        return;
    }
    kvs_masks_clear(s);
    kvs_mask_release(s->constant[0]);
    kvs_mask_release(s->constant[1]);
    kvs__free(s->ctx, s, sizeof *s);
}

/* The family's slot, else a free one, else the one leased longest ago. */
static slot *find_slot(kvs_masks *s, const family *fam)
{
    slot *best = &s->slots[0];
    for (size_t i = 0; i < N_SLOTS; i++) {
        slot *at = &s->slots[i];
        if (at->mask && memcmp(&at->fam, fam, sizeof *fam) == 0) {
            return at;
        }
        if (best->mask && (!at->mask || at->used < best->used)) {
            best = at;
        }
    }
    return best;
}

static kvs_mask *array_of(kvs_masks *s, const kvs__mask_plan *p, kvs_err *err)
{
    const kvs_mask_desc *d = &p->desc;
    family fam = {
        d->kind, d->type, d->flags & KVS_MASK_INFINITE, d->window, d->sinks, d->ring,
    };
    slot *at = find_slot(s, &fam);
    bool ours = at->mask && memcmp(&at->fam, &fam, sizeof fam) == 0;
    if (!ours || !same(at->mask, p)) {
        kvs_mask *m = build(s->ctx, p, err);
        if (!m) {
            return NULL;
        }
        kvs_mask_release(at->mask);
        at->fam = fam;
        at->mask = m;
        s->builds++;
    }
    at->used = s->leases;
    return at->mask;
}

kvs_status kvs_masks_acquire(kvs_masks *s, const kvs_mask_desc *desc, kvs_mask **out, kvs_err *err)
{
    if (!s || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", s ? "out" : "masks");
    }
    kvs__mask_plan p;
    kvs_status st = kvs__mask_check(desc, &p, err);
    if (st != KVS_OK) {
        return st;
    }
    bool array = p.shape.mode == KVS_MASK_MODE_ARRAY;
    kvs_mask *m = array ? array_of(s, &p, err) : s->constant[p.shape.mode];
    if (!m) {
        return KVS_E_NOMEM;
    }
    m->refs++;
    s->leases++;
    *out = m;
    return KVS_OK;
}

void kvs_mask_release(kvs_mask *m)
{
    if (m && --m->refs == 0) {
        kvs__free(m->ctx, m, m->bytes);
    }
}

const void *kvs_mask_data(const kvs_mask *m)
{
    return m ? m->data : NULL;
}

kvs_status kvs_mask_get_shape(const kvs_mask *m, kvs_mask_shape *out)
{
    if (!m || !out) {
        return KVS_E_INVAL;
    }
    return kvs__stats_write(out, &m->shape, sizeof m->shape);
}

kvs_status kvs_masks_get_stats(const kvs_masks *s, kvs_masks_stats *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    kvs_masks_stats stats = KVS_MASKS_STATS_INIT;
    stats.builds = s->builds;
    stats.leases = s->leases;
    for (size_t i = 0; i < N_SLOTS; i++) {
        stats.kept += s->slots[i].mask != NULL;
    }
    return kvs__stats_write(out, &stats, sizeof stats);
}
