/* SPDX-License-Identifier: MIT */
/* snap.c: a cache as parts of a store's entry: copied out (kvs__history_copy).
 *
 * The first part, "state", lists runs of positions; each run is a part "kv", or "recurrent" for a
 * snapshot. A run begins at a block of the grid, so that its blocks are the store's chunks, or lies
 * within one block. docs/format.md has the bytes. */
#include <string.h>

#include "store/history_priv.h"
#include "store/snap.h"

static void put_u32(unsigned char *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (unsigned char)(x >> 8 * i);
    }
}

static void put_u64(unsigned char *p, uint64_t x)
{
    put_u32(p, (uint32_t)x);
    put_u32(p + 4, (uint32_t)(x >> 32));
}

typedef struct run {
    uint32_t layer;
    uint32_t form;
    int64_t lo, hi;
    size_t at; /* in the data */
    size_t bytes;
} run;

typedef struct copier {
    kvs__history *h;
    run *runs;
    uint32_t n_runs;
    size_t at;
    unsigned char *data; /* NULL: the runs are made */
} copier;

static const kvs__store *store_of(const kvs__hlayer *hl)
{
    return kvs__layer_store(hl->l);
}

/* One piece within a block of the grid; note NULL: from the cache. */
static void piece(copier *c, uint32_t layer, int64_t lo, int64_t hi, const kvs__hblock *note)
{
    const kvs__store *s = store_of(&c->h->layer[layer]);
    size_t bytes = kvs__hblock_bytes(&s->fmt, lo, (uint64_t)(hi - lo));
    run *r = c->n_runs > 0 ? &c->runs[c->n_runs - 1] : NULL;
    if (c->data) {
        kvs__hblock to = {lo, hi, lo, (uint32_t)(hi - lo), c->data + c->at};
        if (note) {
            kvs__hblock_copy(&s->fmt, note, &to);
        } else {
            kvs__hblock_get(s, &to);
        }
        c->at += bytes;
        return;
    }
    if (r && r->layer == layer && r->hi == lo && lo % BLOCK == 0 && r->lo % BLOCK == 0) {
        r->hi = hi;
        r->bytes += bytes;
    } else {
        uint32_t form = kvs__layer_dense(c->h->layer[layer].l) ? KVS__FORM_DENSE : KVS__FORM_CODECS;
        c->runs[c->n_runs++] = (run){layer, form, lo, hi, c->at, bytes};
    }
    c->at += bytes;
}

/* A recurrent layer after `pos` tokens; snap NULL: now. */
static void piece_rec(copier *c, uint32_t layer, int64_t pos, const kvs__hsnap *snap)
{
    const kvs__hlayer *hl = &c->h->layer[layer];
    if (!c->data) {
        c->runs[c->n_runs++] = (run){layer, KVS__FORM_RECURRENT, 0, pos, c->at, hl->rec_bytes};
    } else if (snap) {
        memcpy(c->data + c->at, snap->data + hl->rec_at, hl->rec_bytes);
    } else {
        (void)kvs__rec_pack(c->h->ctx, hl->rec->rec, pos, c->data + c->at, NULL); /* is kept */
    }
    c->at += hl->rec_bytes;
}

static void walk_rec(copier *c, uint32_t layer)
{
    const kvs__history *h = c->h;
    const int64_t len = kvs__layer_len(h->layer[layer].rec);
    for (uint32_t k = 0; k < h->n_snaps && h->snap[k].pos < len; k++) {
        piece_rec(c, layer, h->snap[k].pos, &h->snap[k]);
    }
    piece_rec(c, layer, len, NULL);
}

static void range(copier *c, uint32_t layer, int64_t lo, int64_t hi)
{
    while (lo < hi) {
        int64_t end = kvs__hist_grid(lo) + BLOCK;
        end = end < hi ? end : hi;
        piece(c, layer, lo, end, NULL);
        lo = end;
    }
}

static void walk(copier *c)
{
    for (uint32_t i = 0; i < c->h->n_layers; i++) {
        kvs__hlayer *hl = &c->h->layer[i];
        if (hl->rec) {
            walk_rec(c, i);
        }
        if (!hl->l) {
            continue;
        }
        const kvs__store *s = store_of(hl);
        if (!hl->slides) {
            range(c, i, 0, s->len);
        } else if (c->h->over) {
            int64_t sinks = (int64_t)s->sinks < s->lo ? (int64_t)s->sinks : s->lo;
            range(c, i, 0, sinks);
            range(c, i, s->lo, s->len);
        } else {
            for (uint32_t k = 0; k < hl->n_blk; k++) {
                piece(c, i, hl->blk[k].lo, hl->blk[k].hi, &hl->blk[k]);
            }
        }
    }
}

/* Most runs there can be. */
static uint32_t most_runs(const kvs__history *h)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        n += h->layer[i].n_blk + (h->layer[i].rec ? h->n_snaps : 0) + 4;
    }
    return n;
}

static kvs_status check(const kvs__history *h, uint64_t *len, kvs_err *err)
{
    *len = 0;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const kvs__layer *l = &h->cache->layer[i];
        if (!h->layer[i].l && !h->layer[i].rec) {
            continue;
        }
        uint64_t n = (uint64_t)kvs__layer_len(l);
        if (*len > 0 && n != *len) {
            return kvs__fail(err, KVS_E_STATE, "store", "layer %u has %llu tokens, others %llu", i,
                             (unsigned long long)n, (unsigned long long)*len);
        }
        *len = n;
    }
    if (*len == 0) {
        return kvs__fail(err, KVS_E_STATE, "store", "there is no state to save");
    }
    return kvs__cache_closed(h->cache, "save", err);
}

/* The oldest version that knows all that is in it. */
static uint32_t version(const copier *c)
{
    for (uint32_t i = 0; i < c->n_runs; i++) {
        const run *r = &c->runs[i];
        if (r->form == KVS__FORM_RECURRENT ||
            store_of(&c->h->layer[r->layer])->fmt.center_bytes > 0) {
            return KVS__SNAP_VERSION;
        }
    }
    return 1;
}

static void fill_table(const copier *c, uint64_t len, unsigned char *p)
{
    memcpy(p, KVS__SNAP_MAGIC, sizeof KVS__SNAP_MAGIC - 1);
    put_u32(p + 8, version(c));
    put_u32(p + 12, KVS__HISTORY_BLOCK);
    put_u64(p + 16, len);
    put_u32(p + 24, c->h->n_layers);
    put_u32(p + 28, c->n_runs);
    for (uint32_t i = 0; i < c->n_runs; i++) {
        unsigned char *r = p + KVS__SNAP_HEADER + (size_t)i * KVS__SNAP_RUN;
        put_u32(r, c->runs[i].layer);
        put_u32(r + 4, c->runs[i].form);
        put_u64(r + 8, (uint64_t)c->runs[i].lo);
        put_u64(r + 16, (uint64_t)c->runs[i].hi);
        put_u32(r + 24, i + 1);
        put_u32(r + 28, 0);
    }
}

/* What the store cuts the part of a run into; 0: as it likes. */
static uint32_t chunk_of(const copier *c, const run *r)
{
    if (r->form == KVS__FORM_RECURRENT) {
        return 0;
    }
    const kvs__fmt *fmt = &store_of(&c->h->layer[r->layer])->fmt;
    size_t chunk = kvs__hblock_bytes(fmt, 0, (uint64_t)BLOCK);
    return chunk <= KVS_STORE_CHUNK_MAX ? (uint32_t)chunk : 0;
}

static void fill_parts(const copier *c, kvs__saved *out, size_t table)
{
    out->parts[0] = (kvs_store_part){"state", 0, -1, table, out->data + c->at, 0, 0};
    for (uint32_t i = 0; i < c->n_runs; i++) {
        const run *r = &c->runs[i];
        kvs_store_part *p = &out->parts[i + 1];
        *p = (kvs_store_part){"kv",           0, (int32_t)r->layer, r->bytes, out->data + r->at,
                              chunk_of(c, r), 0};
        if (r->form == KVS__FORM_RECURRENT) {
            memcpy(p->name, "recurrent", sizeof "recurrent");
        }
    }
}

static kvs_status copy(copier *c, uint64_t len, uint64_t max_bytes, kvs__saved *out, kvs_err *err)
{
    walk(c);
    size_t table = KVS__SNAP_HEADER + (size_t)c->n_runs * KVS__SNAP_RUN;
    if (c->n_runs + 1 > KVS_STORE_PARTS_MAX || (max_bytes > 0 && c->at + table > max_bytes)) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "%zu bytes of state, the limit is %llu",
                         c->at + table, (unsigned long long)max_bytes);
    }
    out->bytes = c->at + table;
    out->n_parts = c->n_runs + 1;
    out->data = kvs__calloc(c->h->ctx, 1, out->bytes);
    out->parts = kvs__calloc(c->h->ctx, out->n_parts, sizeof *out->parts);
    if (!out->data || !out->parts) {
        size_t bytes = out->bytes;
        kvs__saved_free(out);
        return kvs__nomem(err, "store", bytes);
    }
    c->data = out->data;
    c->at = 0;
    walk(c);
    fill_table(c, len, out->data + c->at);
    fill_parts(c, out, table);
    out->len = len;
    return KVS_OK;
}

kvs_status kvs__history_copy(kvs__history *h, uint64_t max_bytes, kvs__saved *out, kvs_err *err)
{
    *out = (kvs__saved){h->ctx, 0, 0, NULL, NULL, 0};
    uint64_t len = 0;
    kvs_status st = check(h, &len, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__history_note(h, 2);
    kvs__hist_fill(h);
    size_t bytes = most_runs(h) * sizeof(run);
    copier c = {h, kvs__alloc(h->ctx, bytes), 0, 0, NULL};
    if (!c.runs) {
        return kvs__nomem(err, "store", bytes);
    }
    st = copy(&c, len, max_bytes, out, err);
    kvs__free(h->ctx, c.runs, bytes);
    return st;
}

void kvs__saved_free(kvs__saved *s)
{
    kvs__free(s->ctx, s->data, s->bytes);
    kvs__free(s->ctx, s->parts, s->n_parts * sizeof *s->parts);
    *s = (kvs__saved){s->ctx, 0, 0, NULL, NULL, 0};
}
