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

/* Where the bytes of a piece are. */
typedef enum source {
    PINNED, /* a layer that keeps all: made block by block when they are asked for */
    CACHE,  /* copied from the layer */
    NOTE,   /* of note i: lent where it is a whole block, else copied */
    SNAP    /* of snapshot i, lent */
} source;

/* A block, or part of one; PINNED: all of a layer; of a recurrent layer: its state after hi tokens. */
typedef struct piece {
    uint32_t layer;
    source from;
    uint32_t i;
    int64_t lo, hi;
    size_t bytes;
} piece;

/* Pieces that are one part of the entry. */
typedef struct run {
    uint32_t layer;
    uint32_t form;
    int64_t lo, hi;
    size_t bytes;
    size_t chunk; /* what the store cuts it into; 0: as it likes */
    const piece *piece;
    uint32_t n_pieces;
} run;

/* A run that is made when it is asked for. */
typedef struct kvs__saved_pin {
    kvs__store store; /* an alias */
    int64_t hi;
    size_t chunk;
} pin;

/* One whose blocks lie apart. */
typedef struct kvs__saved_apart {
    const unsigned char *const *block;
    size_t chunk;
} apart;

typedef struct copier {
    kvs__history *h;
    piece *pieces;
    size_t n_pieces, cap_pieces;
    run *runs;
    uint32_t n_runs;
    bool nomem;
    size_t bytes;  /* of all pieces */
    size_t copied; /* of these */
    uint32_t n_pins, n_apart;
    size_t n_chunks; /* of all runs */
} copier;

static const kvs__store *store_of(const kvs__hlayer *hl)
{
    return kvs__layer_store(hl->l);
}

/* ---- what there is to save */

static void add(copier *c, piece p)
{
    piece *list =
        kvs__grow(c->h->ctx, c->pieces, &c->cap_pieces, c->n_pieces, c->n_pieces + 1, sizeof *list);
    if (!list) {
        c->nomem = true;
        return;
    }
    c->pieces = list;
    const kvs__hlayer *hl = &c->h->layer[p.layer];
    if (p.bytes == 0) {
        p.bytes = hl->rec ? hl->rec_bytes
                          : kvs__hblock_bytes(&store_of(hl)->fmt, p.lo, (uint64_t)(p.hi - p.lo));
    }
    list[c->n_pieces++] = p;
}

static void walk_rec(copier *c, uint32_t layer)
{
    const kvs__history *h = c->h;
    const int64_t len = kvs__layer_len(h->layer[layer].rec);
    for (uint32_t k = 0; k < h->n_snaps && h->snap[k].pos < len; k++) {
        add(c, (piece){layer, SNAP, k, 0, h->snap[k].pos, 0});
    }
    add(c, (piece){layer, CACHE, 0, 0, len, 0});
}

static void range(copier *c, uint32_t layer, int64_t lo, int64_t hi)
{
    while (lo < hi) {
        int64_t end = kvs__hist_grid(lo) + BLOCK;
        end = end < hi ? end : hi;
        add(c, (piece){layer, CACHE, 0, lo, end, 0});
        lo = end;
    }
}

/* All of a layer that keeps all. */
static void whole(copier *c, uint32_t layer)
{
    const kvs__store *s = store_of(&c->h->layer[layer]);
    size_t chunk = kvs__hblock_chunk(&s->fmt);
    if (chunk == 0) {
        range(c, layer, 0, s->len);
        return;
    }
    size_t bytes = (size_t)(s->len / BLOCK) * chunk;
    if (s->len % BLOCK != 0) {
        bytes += kvs__hblock_bytes(&s->fmt, kvs__hist_grid(s->len), (uint64_t)(s->len % BLOCK));
    }
    add(c, (piece){layer, PINNED, 0, 0, s->len, bytes});
}

/* A layer that drops old tokens: what was noted. Sinks of a cache that began with them and a window, and
 * nothing between, may share a block of the notes with the window, which is what was noted then. */
static void slid(copier *c, uint32_t layer)
{
    const kvs__history *h = c->h;
    const kvs__hlayer *hl = &h->layer[layer];
    const kvs__store *s = store_of(hl);
    int64_t from = !h->over && hl->n_blk > 0 ? hl->blk[0].lo : s->lo;
    range(c, layer, 0, (int64_t)s->sinks < from ? (int64_t)s->sinks : from);
    if (h->over) {
        range(c, layer, s->lo, s->len);
        return;
    }
    for (uint32_t k = 0; k < hl->n_blk; k++) {
        add(c, (piece){layer, NOTE, k, hl->blk[k].lo, hl->blk[k].hi, 0});
    }
}

static void walk(copier *c)
{
    for (uint32_t i = 0; i < c->h->n_layers; i++) {
        const kvs__hlayer *hl = &c->h->layer[i];
        if (hl->rec) {
            walk_rec(c, i);
        } else if (hl->l && hl->slides) {
            slid(c, i);
        } else if (hl->l) {
            whole(c, i);
        }
    }
}

/* ---- as runs */

/* What the store cuts the part of a layer into. */
static size_t chunk_of(const kvs__hlayer *hl)
{
    return hl->rec ? 0 : kvs__hblock_chunk(&store_of(hl)->fmt);
}

/* Is it had from where it is, not from a copy? */
static bool lent(const copier *c, const piece *p)
{
    return p->from == PINNED || p->from == SNAP ||
           (p->from == NOTE && p->hi - p->lo == BLOCK && chunk_of(&c->h->layer[p->layer]) > 0);
}

static bool joins(const run *r, const piece *p)
{
    return r->layer == p->layer && r->form != KVS__FORM_RECURRENT && r->hi == p->lo &&
           p->lo % BLOCK == 0 && r->lo % BLOCK == 0;
}

static size_t chunks_of(size_t bytes, size_t chunk)
{
    chunk = chunk ? chunk : KVS_STORE_CHUNK;
    return (bytes + chunk - 1) / chunk;
}

static kvs_status make_runs(copier *c, kvs_err *err)
{
    size_t bytes = c->n_pieces * sizeof *c->runs;
    c->runs = c->nomem ? NULL : kvs__alloc(c->h->ctx, bytes);
    if (!c->runs) {
        return kvs__nomem(err, "store", bytes);
    }
    for (size_t i = 0; i < c->n_pieces; i++) {
        const piece *p = &c->pieces[i];
        const kvs__hlayer *hl = &c->h->layer[p->layer];
        run *r = c->n_runs > 0 ? &c->runs[c->n_runs - 1] : NULL;
        if (!r || !joins(r, p)) {
            uint32_t form = hl->rec                   ? KVS__FORM_RECURRENT
                            : kvs__layer_dense(hl->l) ? KVS__FORM_DENSE
                                                      : KVS__FORM_CODECS;
            r = &c->runs[c->n_runs++];
            *r = (run){p->layer, form, p->lo, p->hi, 0, chunk_of(hl), p, 0};
            c->n_pins += p->from == PINNED;
            c->n_apart += p->from != PINNED && r->chunk > 0;
        }
        r->hi = p->hi;
        r->bytes += p->bytes;
        r->n_pieces++;
        c->bytes += p->bytes;
        c->copied += lent(c, p) ? 0 : p->bytes;
    }
    for (uint32_t i = 0; i < c->n_runs; i++) {
        c->n_chunks += chunks_of(c->runs[i].bytes, c->runs[i].chunk);
    }
    return KVS_OK;
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

/* ---- as parts */

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

static void take_block(void *user, uint64_t offset, size_t bytes, void *dst)
{
    const apart *a = user;
    memcpy(dst, a->block[offset / a->chunk], bytes);
}

/* What is being filled: the next of each. */
typedef struct filler {
    copier *c;
    kvs__saved *out;
    unsigned char *data;
    const unsigned char **block;
    kvs__known **known;
} filler;

static void hold(filler *f, kvs__lent *l)
{
    kvs__lent_ref(l);
    f->out->held[f->out->n_held++] = l;
}

static kvs_status fill_pinned(filler *f, const run *r, kvs_store_part *p, kvs_err *err)
{
    const kvs__history *h = f->c->h;
    const kvs__hlayer *hl = &h->layer[r->layer];
    if (KVS_NEVER(!f->out->pins)) {
        return kvs__fail(err, KVS_E_INTERNAL, "store", "more pins than were counted");
    }
    pin *x = &f->out->pins[f->out->n_pins];
    kvs__layer *l = hl->l;
    kvs_status st =
        kvs__store_pin(h->ctx, &x->store, kvs__layer_dense(l) ? &l->early : &l->main, err);
    x->hi = r->hi;
    x->chunk = r->chunk;
    p->fill = make_block;
    p->fill_user = x;
    f->out->n_pins += st == KVS_OK;
    for (uint64_t k = 0; k < chunks_of(r->bytes, r->chunk); k++) {
        *f->known++ = kvs__hknown(h, hl, k);
    }
    return st;
}

/* Where the bytes of a piece are, copied if need be. */
static const unsigned char *bytes_of(filler *f, const piece *p)
{
    const kvs__history *h = f->c->h;
    const kvs__hlayer *hl = &h->layer[p->layer];
    if (lent(f->c, p)) {
        kvs__lent *l = p->from == SNAP ? h->snap[p->i].lent : hl->lent[p->i];
        hold(f, l);
        return l->data + (p->from == SNAP ? hl->rec_at : 0);
    }
    unsigned char *at = f->data;
    f->data += p->bytes;
    kvs__hblock to = {p->lo, p->hi, p->lo, (uint32_t)(p->hi - p->lo), at};
    if (hl->rec) {
        (void)kvs__rec_pack(h->ctx, hl->rec->rec, p->hi, at, NULL); /* is kept */
    } else if (p->from == NOTE) {
        kvs__hblock_copy(&store_of(hl)->fmt, &hl->blk[p->i], &to);
    } else {
        kvs__hblock_get(store_of(hl), &to);
    }
    return at;
}

/* Of a run that is not pinned, what is known of chunk k. */
static kvs__known *known_of(const filler *f, const run *r, uint32_t k)
{
    const kvs__hlayer *hl = &f->c->h->layer[r->layer];
    const piece *p = &r->piece[hl->rec ? 0 : k];
    if (!lent(f->c, p)) {
        return NULL;
    }
    return p->from == SNAP ? &f->c->h->snap[p->i].lent->known[hl->rec_known + k]
                           : &hl->lent[p->i]->known[0];
}

static void fill_run(filler *f, const run *r, kvs_store_part *p)
{
    const unsigned char **first = f->block;
    for (uint32_t i = 0; i < r->n_pieces; i++) {
        *f->block++ = bytes_of(f, &r->piece[i]);
    }
    if (r->chunk == 0) { /* one piece, or all copied, one behind the other */
        p->data = *first;
    } else {
        apart *a = &f->out->apart[f->out->n_apart++];
        *a = (apart){first, r->chunk};
        p->fill = take_block;
        p->fill_user = a;
    }
    for (uint32_t k = 0; k < chunks_of(r->bytes, r->chunk); k++) {
        bool blocks = r->chunk > 0 || r->form == KVS__FORM_RECURRENT;
        *f->known++ = blocks ? known_of(f, r, k) : NULL;
    }
}

static kvs_status fill_parts(copier *c, kvs__saved *out, size_t table, kvs_err *err)
{
    filler f = {c, out, out->data + table, out->blocks, out->known};
    out->parts[0] = (kvs_store_part){"state", 0, -1, table, out->data, 0, 0, NULL, NULL};
    f.known += chunks_of(table, 0);
    for (uint32_t i = 0; i < c->h->n_rows && c->n_pins > 0; i++) {
        hold(&f, c->h->row[i]);
    }
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < c->n_runs && st == KVS_OK; i++) {
        const run *r = &c->runs[i];
        kvs_store_part *p = &out->parts[i + 1];
        *p = (kvs_store_part){"kv", 0,   (int32_t)r->layer, r->bytes, NULL, (uint32_t)r->chunk, 0,
                              NULL, NULL};
        if (r->form == KVS__FORM_RECURRENT) {
            memcpy(p->name, "recurrent", sizeof "recurrent");
        }
        if (r->piece->from == PINNED) {
            st = fill_pinned(&f, r, p, err);
        } else {
            fill_run(&f, r, p);
        }
    }
    return st;
}

/* Memory of what is to be filled; false: not all of it. */
static bool make_lists(const copier *c, size_t table, kvs__saved *out)
{
    kvs_ctx *ctx = c->h->ctx;
    out->data_bytes = c->copied + table;
    out->n_parts = c->n_runs + 1;
    out->n_chunks = (uint32_t)(chunks_of(table, 0) + c->n_chunks);
    out->cap_pins = c->n_pins;
    out->cap_apart = c->n_apart;
    out->cap_blocks = c->n_pieces;
    out->cap_held = c->n_pieces + c->h->n_rows;
    out->data = kvs__calloc(ctx, 1, out->data_bytes);
    out->parts = kvs__calloc(ctx, out->n_parts, sizeof *out->parts);
    out->known = kvs__calloc(ctx, out->n_chunks, sizeof(void *));
    out->blocks = kvs__calloc(ctx, out->cap_blocks, sizeof *out->blocks);
    out->held = kvs__calloc(ctx, out->cap_held, sizeof(void *));
    out->pins = c->n_pins ? kvs__calloc(ctx, c->n_pins, sizeof *out->pins) : NULL;
    out->apart = c->n_apart ? kvs__calloc(ctx, c->n_apart, sizeof *out->apart) : NULL;
    return out->data && out->parts && out->known && out->blocks && out->held &&
           (out->pins || c->n_pins == 0) && (out->apart || c->n_apart == 0);
}

static kvs_status copy(copier *c, uint64_t len, uint64_t max_bytes, kvs__saved *out, kvs_err *err)
{
    walk(c);
    kvs_status st = make_runs(c, err);
    size_t table = KVS__SNAP_HEADER + (size_t)c->n_runs * KVS__SNAP_RUN;
    if (st != KVS_OK) {
        return st;
    }
    if (KVS_NEVER(!c->runs)) {
        return kvs__fail(err, KVS_E_INTERNAL, "store", "no runs were made");
    }
    out->bytes = c->bytes + table;
    out->len = len;
    if (c->n_runs + 1 > KVS_STORE_PARTS_MAX || (max_bytes > 0 && out->bytes > max_bytes)) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "%zu bytes of state, the limit is %llu",
                         out->bytes, (unsigned long long)max_bytes);
    }
    if (make_lists(c, table, out)) {
        fill_table(c, len, out->data);
        st = fill_parts(c, out, table, err);
    } else {
        st = kvs__nomem(err, "store", out->data_bytes);
    }
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
    kvs__hknown_follow(h);
    copier c = {.h = h};
    st = copy(&c, len, max_bytes, out, err);
    kvs__free(h->ctx, c.runs, c.n_pieces * sizeof *c.runs);
    kvs__free(h->ctx, c.pieces, c.cap_pieces * sizeof *c.pieces);
    return st;
}

void kvs__saved_done(kvs__saved *s)
{
    for (size_t i = 0; i < s->n_held; i++) {
        kvs__lent_unref(s->ctx, s->held[i]);
    }
    kvs__free(s->ctx, s->held, s->cap_held * sizeof(void *));
    kvs__free(s->ctx, s->known, s->n_chunks * sizeof(void *));
    kvs__free(s->ctx, s->blocks, s->cap_blocks * sizeof *s->blocks);
    kvs__free(s->ctx, s->apart, s->cap_apart * sizeof *s->apart);
    kvs__free(s->ctx, s->data, s->data_bytes);
    kvs__free(s->ctx, s->parts, s->n_parts * sizeof *s->parts);
    s->held = NULL;
    s->n_held = 0;
    s->known = NULL;
    s->blocks = NULL;
    s->apart = NULL;
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
