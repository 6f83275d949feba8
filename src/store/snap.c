/* SPDX-License-Identifier: MIT */
/* snap.c: a cache as parts of a store's entry (kvs__history_copy).
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
    size_t chunk; /* bytes of its blocks where it is pinned, else 0 */
} run;

/* A run that is made when it is asked for. */
typedef struct kvs__saved_pin {
    kvs__store store; /* an alias */
    int64_t hi;
    size_t chunk;
} pin;

typedef struct copier {
    kvs__history *h;
    run *runs;
    uint32_t n_runs;
    uint32_t n_pins;
    size_t pinned; /* bytes */
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
        c->runs[c->n_runs++] = (run){layer, form, lo, hi, c->at, bytes, 0};
    }
    c->at += bytes;
}

/* A recurrent layer after `pos` tokens; snap NULL: now. */
static void piece_rec(copier *c, uint32_t layer, int64_t pos, const kvs__hsnap *snap)
{
    const kvs__hlayer *hl = &c->h->layer[layer];
    if (!c->data) {
        c->runs[c->n_runs++] = (run){layer, KVS__FORM_RECURRENT, 0, pos, c->at, hl->rec_bytes, 0};
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

/* All of a layer that keeps all. */
static void whole(copier *c, uint32_t layer)
{
    const kvs__hlayer *hl = &c->h->layer[layer];
    const kvs__store *s = store_of(hl);
    size_t chunk = kvs__hblock_bytes(&s->fmt, 0, (uint64_t)BLOCK);
    if (chunk > KVS_STORE_CHUNK_MAX) {
        range(c, layer, 0, s->len);
        return;
    }
    if (c->data) {
        return;
    }
    uint32_t form = kvs__layer_dense(hl->l) ? KVS__FORM_DENSE : KVS__FORM_CODECS;
    size_t bytes = (size_t)(s->len / BLOCK) * chunk;
    if (s->len % BLOCK != 0) {
        bytes += kvs__hblock_bytes(&s->fmt, kvs__hist_grid(s->len), (uint64_t)(s->len % BLOCK));
    }
    c->runs[c->n_runs++] = (run){layer, form, 0, s->len, 0, bytes, chunk};
    c->pinned += bytes;
    c->n_pins++;
}

/* A block of a pinned layer. */
static void make_block(void *user, uint64_t offset, size_t bytes, void *dst)
{
    const pin *p = user;
    int64_t lo = (int64_t)(offset / p->chunk) * BLOCK;
    int64_t hi = lo + BLOCK < p->hi ? lo + BLOCK : p->hi;
    kvs__hblock to = {lo, hi, lo, (uint32_t)(hi - lo), dst};
    memset(dst, 0, bytes); /* what is between planes */
    kvs__hblock_get(&p->store, &to);
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
            whole(c, i);
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

static kvs_status fill_parts(const copier *c, kvs__saved *out, size_t table, kvs_err *err)
{
    out->parts[0] = (kvs_store_part){"state", 0, -1, table, out->data + c->at, 0, 0, NULL, NULL};
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < c->n_runs && st == KVS_OK; i++) {
        const run *r = &c->runs[i];
        kvs_store_part *p = &out->parts[i + 1];
        *p = (kvs_store_part){"kv", 0,   (int32_t)r->layer, r->bytes, NULL, chunk_of(c, r), 0,
                              NULL, NULL};
        if (r->form == KVS__FORM_RECURRENT) {
            memcpy(p->name, "recurrent", sizeof "recurrent");
        }
        if (r->chunk == 0) {
            p->data = out->data + r->at;
            continue;
        }
        if (KVS_NEVER(!out->pins)) {
            return kvs__fail(err, KVS_E_INTERNAL, "store", "more pins than were counted");
        }
        pin *x = &out->pins[out->n_pins];
        kvs__layer *l = c->h->layer[r->layer].l;
        st = kvs__store_pin(c->h->ctx, &x->store, kvs__layer_dense(l) ? &l->early : &l->main, err);
        x->hi = r->hi;
        x->chunk = r->chunk;
        p->fill = make_block;
        p->fill_user = x;
        out->n_pins += st == KVS_OK;
    }
    return st;
}

static kvs_status copy(copier *c, uint64_t len, uint64_t max_bytes, kvs__saved *out, kvs_err *err)
{
    walk(c);
    size_t table = KVS__SNAP_HEADER + (size_t)c->n_runs * KVS__SNAP_RUN;
    size_t all = c->at + c->pinned + table;
    if (c->n_runs + 1 > KVS_STORE_PARTS_MAX || (max_bytes > 0 && all > max_bytes)) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "%zu bytes of state, the limit is %llu", all,
                         (unsigned long long)max_bytes);
    }
    out->bytes = all;
    out->data_bytes = c->at + table;
    out->n_parts = c->n_runs + 1;
    out->cap_pins = c->n_pins;
    out->data = kvs__calloc(c->h->ctx, 1, out->data_bytes);
    out->parts = kvs__calloc(c->h->ctx, out->n_parts, sizeof *out->parts);
    out->pins = c->n_pins ? kvs__calloc(c->h->ctx, c->n_pins, sizeof *out->pins) : NULL;
    if (!out->data || !out->parts || (c->n_pins && !out->pins)) {
        size_t bytes = out->data_bytes + c->n_pins * sizeof *out->pins;
        kvs__saved_free(out);
        return kvs__nomem(err, "store", bytes);
    }
    c->data = out->data;
    c->at = 0;
    walk(c);
    fill_table(c, len, out->data + c->at);
    out->len = len;
    kvs_status st = fill_parts(c, out, table, err);
    if (st != KVS_OK) {
        kvs__saved_free(out);
    }
    return st;
}

kvs_status kvs__history_copy(kvs__history *h, uint64_t max_bytes, kvs__saved *out, kvs_err *err)
{
    *out = (kvs__saved){.ctx = h->ctx};
    uint64_t len = 0;
    kvs_status st = check(h, &len, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__history_note(h, 2);
    kvs__hist_fill(h);
    size_t bytes = most_runs(h) * sizeof(run);
    copier c = {.h = h, .runs = kvs__alloc(h->ctx, bytes)};
    if (!c.runs) {
        return kvs__nomem(err, "store", bytes);
    }
    st = copy(&c, len, max_bytes, out, err);
    kvs__free(h->ctx, c.runs, bytes);
    return st;
}

void kvs__saved_done(kvs__saved *s)
{
    kvs__free(s->ctx, s->data, s->data_bytes);
    kvs__free(s->ctx, s->parts, s->n_parts * sizeof *s->parts);
    s->data = NULL;
    s->parts = NULL;
}

void kvs__saved_free(kvs__saved *s)
{
    kvs__saved_done(s);
    for (uint32_t i = 0; i < s->n_pins; i++) {
        kvs__store_drop(s->ctx, &s->pins[i].store);
    }
    kvs__free(s->ctx, s->pins, s->cap_pins * sizeof *s->pins);
    *s = (kvs__saved){.ctx = s->ctx};
}
