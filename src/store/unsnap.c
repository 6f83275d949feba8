/* SPDX-License-Identifier: MIT */
/* unsnap.c: an entry back into a cache (kvs__history_restore), and into notes (kvs__hist_fill).
 *
 * The table is input: each run is checked against the cache's own formats and against the size of
 * its part before anything is read. A cache is filled layer by layer; the caller clears it if a layer
 * fails, so an entry comes back whole or not at all. */
#include <string.h>

#include "store/snap.h"

#define GROUP_BYTES ((size_t)4 << 20) /* read and checked together */

static uint32_t get_u32(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get_u64(const unsigned char *p)
{
    return get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

/* ---- the table */

kvs_status kvs__snap_header(const unsigned char *p, size_t n, uint64_t *len, uint32_t *n_layers,
                            uint32_t *n_runs, kvs_err *err)
{
    if (n < KVS__SNAP_HEADER || memcmp(p, KVS__SNAP_MAGIC, 8) != 0) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "the entry holds no state");
    }
    uint32_t version = get_u32(p + 8);
    if (version == 0 || version > KVS__SNAP_VERSION || get_u32(p + 12) != KVS__HISTORY_BLOCK) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "state of version %u in blocks of %u", version,
                         get_u32(p + 12));
    }
    *len = get_u64(p + 16);
    *n_layers = get_u32(p + 24);
    *n_runs = get_u32(p + 28);
    if (*len == 0 || *len > KVS_STORE_IDS_MAX || *n_runs >= KVS_STORE_PARTS_MAX ||
        n != KVS__SNAP_HEADER + (size_t)*n_runs * KVS__SNAP_RUN) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "state of %llu tokens in %u runs",
                         (unsigned long long)*len, *n_runs);
    }
    return KVS_OK;
}

kvs_status kvs__snap_run_at(const unsigned char *p, uint32_t i, uint64_t len, uint32_t n_layers,
                            kvs__snap_run *out, kvs_err *err)
{
    const unsigned char *r = p + KVS__SNAP_HEADER + (size_t)i * KVS__SNAP_RUN;
    uint64_t lo = get_u64(r + 8);
    uint64_t hi = get_u64(r + 16);
    uint32_t form = get_u32(r + 4);
    uint32_t last = get_u32(p + 8) == 1 ? KVS__FORM_DENSE : KVS__FORM_RECURRENT;
    *out = (kvs__snap_run){get_u32(r), form, (int64_t)lo, (int64_t)hi, get_u32(r + 24)};
    bool ok = out->layer < n_layers && form <= last && lo < hi && hi <= len && get_u32(r + 28) == 0;
    ok = ok && (lo % BLOCK == 0 || hi <= lo - lo % BLOCK + BLOCK);
    ok = ok && (lo == 0 || form != KVS__FORM_RECURRENT);
    return ok ? KVS_OK : kvs__fail(err, KVS_E_FORMAT, "store", "run %u of the state is damaged", i);
}

static uint32_t blocks_of(const kvs__snap_run *r)
{
    if (r->form == KVS__FORM_RECURRENT) {
        return 1;
    }
    return (uint32_t)((r->hi - kvs__hist_grid(r->lo) + BLOCK - 1) / BLOCK);
}

static const kvs__fmt *fmt_of(const kvs__layer *l, bool dense)
{
    return dense ? &l->early.fmt : &l->main.fmt;
}

/* Is the run in a form that its layer has, behind the runs before it? */
static bool fits(const kvs__snap *s, const kvs__history *h, const kvs__snap_run *r)
{
    const kvs__snap_layer *sl = &s->layer[r->layer];
    const kvs__hlayer *hl = &h->layer[r->layer];
    int64_t last = sl->n > 0 ? s->blk[s->n_blk - 1].b.hi : 0;
    if (sl->n > 0 && sl->first + sl->n != s->n_blk) {
        return false;
    }
    if (hl->rec) {
        return r->form == KVS__FORM_RECURRENT && r->hi > last;
    }
    if (!hl->l || r->lo < last) {
        return false;
    }
    uint64_t until = hl->l->spec.dense_until;
    bool both = until > 0 && s->len == until; /* dense, or converted and gone back there */
    bool dense = until > 0 && s->len <= until;
    return r->form == (dense ? KVS__FORM_DENSE : KVS__FORM_CODECS) ||
           (both && r->form == KVS__FORM_CODECS);
}

/* Appends the blocks of one run; the list has room. */
static kvs_status add_run(kvs__snap *s, const kvs__history *h, const kvs__snap_run *r,
                          uint64_t part_bytes, kvs_err *err)
{
    kvs__snap_layer *sl = &s->layer[r->layer];
    const kvs__hlayer *hl = &h->layer[r->layer];
    if (!fits(s, h, r)) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "layer %u is not stored like that", r->layer);
    }
    sl->first = sl->n == 0 ? s->n_blk : sl->first;
    sl->dense = r->form == KVS__FORM_DENSE;
    uint64_t at = 0;
    if (hl->rec) {
        s->blk[s->n_blk++] = (kvs__snap_block){{0, r->hi, 0, 0, NULL}, r->part, 0};
        sl->n++;
        at = hl->rec_bytes;
    }
    for (int64_t lo = hl->rec ? r->hi : r->lo; lo < r->hi;) {
        int64_t hi = kvs__hist_grid(lo) + BLOCK;
        hi = hi < r->hi ? hi : r->hi;
        s->blk[s->n_blk++] =
            (kvs__snap_block){{lo, hi, lo, (uint32_t)(hi - lo), NULL}, r->part, at};
        sl->n++;
        at += kvs__hblock_bytes(fmt_of(hl->l, sl->dense), lo, (uint64_t)(hi - lo));
        lo = hi;
    }
    if (at != part_bytes) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "layer %u: %llu bytes, %llu are needed",
                         r->layer, (unsigned long long)part_bytes, (unsigned long long)at);
    }
    return KVS_OK;
}

static void snap_free(kvs__snap *s)
{
    kvs__free(s->ctx, s->layer, s->n_layers * sizeof *s->layer);
    kvs__free(s->ctx, s->blk, s->n_blk * sizeof *s->blk);
}

static kvs_status add_runs(kvs__snap *s, const kvs__history *h, kvs_store *store, kvs_entry entry,
                           const unsigned char *p, uint32_t n_runs, kvs_err *err)
{
    uint64_t n_blk = 0;
    kvs__snap_run r;
    for (uint32_t i = 0; i < n_runs; i++) {
        kvs_status st = kvs__snap_run_at(p, i, s->len, s->n_layers, &r, err);
        if (st != KVS_OK) {
            return st;
        }
        n_blk += blocks_of(&r);
    }
    if (n_blk > UINT32_MAX / sizeof *s->blk) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "%llu blocks", (unsigned long long)n_blk);
    }
    s->blk = kvs__alloc(s->ctx, n_blk * sizeof *s->blk);
    if (!s->blk) {
        return kvs__nomem(err, "store", n_blk * sizeof *s->blk);
    }
    for (uint32_t i = 0; i < n_runs; i++) {
        kvs_store_part part;
        (void)kvs__snap_run_at(p, i, s->len, s->n_layers, &r, NULL);
        kvs_status st = r.part > 0 ? kvs_store_entry_part(store, entry, r.part, &part) : KVS_NO;
        if (st != KVS_OK) {
            st = kvs__fail(err, KVS_E_FORMAT, "store", "run %u has no part", i);
        } else {
            st = add_run(s, h, &r, part.bytes, err);
        }
        if (st != KVS_OK) {
            s->n_blk = (uint32_t)n_blk; /* as allocated */
            return st;
        }
    }
    return KVS_OK;
}

/* On failure nothing is held. */
static kvs_status snap_read(const kvs__history *h, kvs_store *store, kvs_entry entry, kvs__snap *s,
                            kvs_err *err)
{
    *s = (kvs__snap){h->ctx, 0, 0, NULL, NULL, 0};
    kvs_store_part part;
    kvs_status st = kvs_store_entry_part(store, entry, 0, &part);
    if (st != KVS_OK || strcmp(part.name, "state") != 0 ||
        part.bytes > KVS__SNAP_HEADER + (uint64_t)KVS_STORE_PARTS_MAX * KVS__SNAP_RUN) {
        return kvs__fail(err, KVS_E_FORMAT, "store", "the entry holds no state");
    }
    size_t n = (size_t)part.bytes;
    unsigned char *p = kvs__alloc(h->ctx, n);
    if (!p) {
        return kvs__nomem(err, "store", n);
    }
    kvs_store_buf buf = {0, 0, n, p};
    uint32_t n_layers = 0;
    uint32_t n_runs = 0;
    st = kvs_store_get(store, entry, &buf, 1, err);
    st = st == KVS_OK ? kvs__snap_header(p, n, &s->len, &n_layers, &n_runs, err) : st;
    if (st == KVS_OK && n_layers != h->n_layers) {
        st = kvs__fail(err, KVS_E_FORMAT, "store", "state of %u layers", n_layers);
    }
    if (st == KVS_OK) {
        s->layer = kvs__calloc(h->ctx, n_layers, sizeof *s->layer);
        s->n_layers = s->layer ? n_layers : 0;
        st = s->layer ? add_runs(s, h, store, entry, p, n_runs, err)
                      : kvs__nomem(err, "store", n_layers * sizeof *s->layer);
    }
    kvs__free(h->ctx, p, n);
    if (st != KVS_OK) {
        snap_free(s);
    }
    return st;
}

/* ---- how much of it */

/* The blocks of one layer, in a list of their own that the caller frees. */
static kvs__hblock *layer_blocks(const kvs__snap *s, uint32_t i)
{
    kvs__hblock *b = kvs__alloc(s->ctx, s->layer[i].n * sizeof *b);
    for (uint32_t k = 0; b && k < s->layer[i].n; k++) {
        b[k] = s->blk[s->layer[i].first + k].b;
    }
    return b;
}

/* c, or the greatest of the block ends below it, that the layer can begin at; 0: none. */
static int64_t layer_reach(const kvs__layer *l, bool slides, const kvs__snap_layer *sl,
                           const kvs__hblock *b, int64_t c)
{
    int64_t until = (int64_t)l->spec.dense_until; /* from there on codecs are read */
    int64_t least = sl->dense || until == 0 ? 0 : until - 1;
    for (uint32_t k = sl->n;; k--) {
        if (c > least && kvs__hist_serves(&l->spec, slides, b, sl->n, c)) {
            return c;
        }
        while (k > 0 && b[k - 1].hi >= c) {
            k--;
        }
        if (k == 0) {
            return 0;
        }
        c = b[k - 1].hi;
    }
}

/* The snapshot of a recurrent layer at or before c, NULL: none. */
static kvs__snap_block *rec_block(const kvs__snap *s, uint32_t i, int64_t c)
{
    for (uint32_t k = s->layer[i].n; k-- > 0;) {
        kvs__snap_block *b = &s->blk[s->layer[i].first + k];
        if (b->b.hi <= c) {
            return b;
        }
    }
    return NULL;
}

/* Lowers *c until every layer agrees. */
static kvs_status snap_reach(const kvs__history *h, const kvs__snap *s, int64_t *c, kvs_err *err)
{
    int64_t before = -1;
    while (*c > 0 && *c != before) {
        before = *c;
        for (uint32_t i = 0; i<h->n_layers && * c> 0; i++) {
            if (h->layer[i].rec) {
                const kvs__snap_block *snap = rec_block(s, i, *c);
                *c = snap ? snap->b.hi : 0;
            }
            if (!h->layer[i].l) {
                continue;
            }
            kvs__hblock *b = layer_blocks(s, i);
            if (!b) {
                return kvs__nomem(err, "store", s->layer[i].n * sizeof *b);
            }
            *c = layer_reach(h->layer[i].l, h->layer[i].slides, &s->layer[i], b, *c);
            kvs__free(s->ctx, b, s->layer[i].n * sizeof *b);
        }
    }
    if (*c <= 0) {
        return kvs__fail(err, KVS_NO, "store",
                         "what is saved of windows and recurrent layers does not reach back so "
                         "far, and nothing before it is enough");
    }
    return KVS_OK;
}

/* ---- reading */

/* Is block b read for c tokens? */
static bool needed(const kvs_layer_spec *spec, const kvs__hblock *b, int64_t from, int64_t c)
{
    return b->lo < c && (b->hi > from || (from > 0 && b->lo < (int64_t)spec->sinks));
}

typedef struct reader {
    kvs__history *h;
    kvs__snap *s;
    kvs_store *store;
    kvs_entry entry;
    int64_t c;
    unsigned char *data; /* of the group under way */
    size_t cap;
    kvs_store_buf *bufs;
    size_t n_bufs;
    size_t used;
} reader;

static size_t read_block(reader *r, kvs__snap_block *sb, size_t n, bool take)
{
    if (take) {
        sb->b.data = r->data + r->used;
        r->bufs[r->n_bufs++] = (kvs_store_buf){sb->part, sb->at, n, sb->b.data};
        r->used += n;
    }
    return n;
}

/* Bytes of the blocks of layer i that are needed; with `take` they are put on the list. */
static size_t layer_needs(reader *r, uint32_t i, bool take)
{
    kvs__hlayer *hl = &r->h->layer[i];
    const kvs__snap_layer *sl = &r->s->layer[i];
    kvs__snap_block *snap = hl->rec ? rec_block(r->s, i, r->c) : NULL;
    if (snap) {
        return read_block(r, snap, hl->rec_bytes, take);
    }
    if (!hl->l || sl->n == 0) {
        return 0;
    }
    const kvs__fmt *fmt = fmt_of(hl->l, sl->dense);
    kvs__hblock *b = layer_blocks(r->s, i);
    if (!b) {
        return SIZE_MAX;
    }
    int64_t from = kvs__hist_from(&hl->l->spec, hl->slides, b, sl->n, r->c);
    size_t bytes = 0;
    for (uint32_t k = 0; k < sl->n; k++) {
        if (!needed(&hl->l->spec, &b[k], from, r->c)) {
            continue;
        }
        bytes += read_block(r, &r->s->blk[sl->first + k],
                            kvs__hblock_bytes(fmt, b[k].base, b[k].stride), take);
    }
    kvs__free(r->s->ctx, b, sl->n * sizeof *b);
    return bytes;
}

static kvs_status load_layer(reader *r, uint32_t i, kvs_err *err)
{
    kvs__hlayer *hl = &r->h->layer[i];
    const kvs__snap_layer *sl = &r->s->layer[i];
    const kvs__snap_block *snap = hl->rec ? rec_block(r->s, i, r->c) : NULL;
    if (snap) {
        return kvs__rec_unpack(r->h->ctx, hl->rec->rec, r->c, snap->b.data, err);
    }
    if (!hl->l) {
        return KVS_OK;
    }
    kvs__hblock *b = layer_blocks(r->s, i);
    if (!b) {
        return kvs__nomem(err, "store", sl->n * sizeof *b);
    }
    kvs__store *to = sl->dense ? &hl->l->early : &hl->l->main;
    kvs_status st = kvs__hist_load(r->h->ctx, to, &hl->l->spec, hl->slides, b, sl->n, r->c, err);
    kvs__free(r->s->ctx, b, sl->n * sizeof *b);
    if (st == KVS_OK && kvs__layer_len(hl->l) != r->c) {
        st = kvs__fail(err, KVS_E_FORMAT, "store", "layer %u came back with %lld of %lld tokens", i,
                       (long long)kvs__layer_len(hl->l), (long long)r->c);
    }
    return st;
}

/* Layers [i, *end), as many as fit into one group. */
static kvs_status read_group(reader *r, uint32_t i, uint32_t *end, kvs_err *err)
{
    size_t bytes = 0;
    uint32_t k = i;
    for (; k < r->h->n_layers; k++) {
        size_t n = layer_needs(r, k, false);
        if (n == SIZE_MAX) {
            return kvs__nomem(err, "store", 0);
        }
        if (k > i && bytes + n > GROUP_BYTES) {
            break;
        }
        bytes += n;
    }
    *end = k;
    if (bytes > r->cap) {
        kvs__free(r->h->ctx, r->data, r->cap);
        r->data = kvs__alloc(r->h->ctx, bytes);
        r->cap = r->data ? bytes : 0;
        if (!r->data) {
            return kvs__nomem(err, "store", bytes);
        }
    }
    r->n_bufs = 0;
    r->used = 0;
    for (k = i; k < *end; k++) {
        if (layer_needs(r, k, true) == SIZE_MAX) {
            return kvs__nomem(err, "store", 0);
        }
    }
    return r->n_bufs > 0 ? kvs_store_get(r->store, r->entry, r->bufs, r->n_bufs, err) : KVS_OK;
}

static kvs_status load(reader *r, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < r->h->n_layers && st == KVS_OK;) {
        uint32_t end = i;
        st = read_group(r, i, &end, err);
        for (; i < end && st == KVS_OK; i++) {
            st = load_layer(r, i, err);
        }
    }
    return st;
}

/* What the entry says of its blocks holds for what was read from them. */
static void take_known(kvs__history *h, const kvs__snap *s, kvs_store *store, kvs_entry entry)
{
    kvs__hknown_follow(h);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const kvs__hlayer *hl = &h->layer[i];
        const kvs__snap_layer *sl = &s->layer[i];
        size_t bytes = hl->l ? kvs__hblock_chunk(fmt_of(hl->l, sl->dense)) : 0;
        if (hl->slides || bytes == 0) {
            continue;
        }
        for (uint32_t k = 0; k < sl->n; k++) {
            const kvs__snap_block *b = &s->blk[sl->first + k];
            kvs__known *known = kvs__hknown(h, hl, (uint64_t)(b->b.lo / BLOCK));
            if (known && b->b.hi - b->b.lo == BLOCK) {
                (void)kvs__store_known(store, entry, b->part, b->at, bytes, known);
            }
        }
    }
}

static kvs_status restore(kvs__history *h, kvs__snap *s, kvs_store *store, kvs_entry entry,
                          uint64_t *n, kvs_err *err)
{
    reader r = {h, s, store, entry, (int64_t)(*n < s->len ? *n : s->len), NULL, 0, NULL, 0, 0};
    *n = 0;
    kvs_status st = snap_reach(h, s, &r.c, err);
    if (st != KVS_OK) {
        return st;
    }
    r.bufs = kvs__alloc(h->ctx, s->n_blk * sizeof *r.bufs);
    st = r.bufs ? load(&r, err) : kvs__nomem(err, "store", s->n_blk * sizeof *r.bufs);
    kvs__free(h->ctx, r.data, r.cap);
    kvs__free(h->ctx, r.bufs, s->n_blk * sizeof *r.bufs);
    if (st == KVS_OK) {
        *n = (uint64_t)r.c;
    }
    return st;
}

kvs_status kvs__history_probe(kvs__history *h, kvs_store *store, kvs_entry entry, uint64_t *n,
                              kvs_err *err)
{
    kvs__snap s;
    kvs_status st = snap_read(h, store, entry, &s, err);
    if (st != KVS_OK) {
        return st;
    }
    int64_t c = (int64_t)(*n < s.len ? *n : s.len);
    st = snap_reach(h, &s, &c, err);
    snap_free(&s);
    if (st == KVS_OK) {
        *n = (uint64_t)c;
    }
    return st;
}

kvs_status kvs__history_restore(kvs__history *h, kvs_store *store, kvs_entry entry, uint64_t *n,
                                kvs_err *err)
{
    kvs__snap s;
    kvs_status st = snap_read(h, store, entry, &s, err);
    if (st != KVS_OK) {
        *n = 0;
        return st;
    }
    st = restore(h, &s, store, entry, n, err);
    if (st == KVS_OK) {
        kvs__history_forget(h);
        kvs__history_note(h, 2);
        take_known(h, &s, store, entry);
        h->store = store;
        h->entry = entry;
        h->from_entry = *n;
    }
    snap_free(&s);
    return st;
}

/* ---- notes from the entry */

/* Takes rows of a block that was read into the notes, where they join what is there. */
static bool take_note(kvs__history *h, kvs__hlayer *hl, const kvs__fmt *fmt,
                      const kvs__snap_block *sb, const kvs__hblock *b)
{
    kvs__hblock *to = kvs__hist_insert(h, hl, kvs__hist_grid(b->lo));
    if (!to) {
        return false;
    }
    bool fresh = to->lo == to->hi;
    if (!fresh && (b->lo > to->hi || b->hi < to->lo)) {
        return true;
    }
    if (!kvs__hist_own(h, hl, to)) {
        return false;
    }
    kvs__hblock part = *to;
    part.lo = b->lo;
    part.hi = b->hi;
    kvs__hblock_copy(fmt, b, &part);
    to->lo = fresh || b->lo < to->lo ? b->lo : to->lo;
    to->hi = fresh || b->hi > to->hi ? b->hi : to->hi;
    if (b->hi - b->lo == BLOCK) {
        (void)kvs__store_known(h->store, h->entry, sb->part, sb->at,
                               kvs__hblock_bytes(fmt, b->base, b->stride),
                               &hl->lent[to - hl->blk]->known[0]);
    }
    return true;
}

static bool noted(const kvs__hlayer *hl, const kvs__hblock *b)
{
    return kvs__hist_covers(hl->blk, hl->n_blk, b->lo, b->hi);
}

/* False: stop. */
static bool fill_block(kvs__history *h, kvs__hlayer *hl, kvs__snap_block *sb, const kvs__fmt *fmt)
{
    kvs__hblock b = sb->b;
    b.hi = b.hi < (int64_t)h->from_entry ? b.hi : (int64_t)h->from_entry;
    if (b.lo >= b.hi || noted(hl, &b) ||
        !kvs__hist_wanted(h, &hl->l->spec, kvs__hist_grid(b.lo), hl->end)) {
        return true;
    }
    size_t bytes = kvs__hblock_bytes(fmt, b.base, b.stride);
    if (h->bytes + kvs__lent_bytes(kvs__hblock_bytes(fmt, 0, (uint64_t)BLOCK), 1) > h->max_bytes) {
        return false;
    }
    b.data = kvs__alloc(h->ctx, bytes);
    if (!b.data) {
        return false;
    }
    kvs_store_buf buf = {sb->part, sb->at, bytes, b.data};
    bool ok =
        kvs_store_get(h->store, h->entry, &buf, 1, NULL) == KVS_OK && take_note(h, hl, fmt, sb, &b);
    kvs__free(h->ctx, b.data, bytes);
    return ok;
}

/* The snapshot at pos of every recurrent layer. False: one has none there, or it can't be read. */
static bool read_snap(const kvs__history *h, const kvs__snap *s, const kvs__hsnap *to)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const kvs__hlayer *hl = &h->layer[i];
        if (!hl->rec) {
            continue;
        }
        const kvs__snap_block *b = rec_block(s, i, to->pos);
        if (!b || b->b.hi != to->pos) {
            return false;
        }
        kvs_store_buf buf = {b->part, 0, hl->rec_bytes, to->lent->data + hl->rec_at};
        if (kvs_store_get(h->store, h->entry, &buf, 1, NULL) != KVS_OK) {
            return false;
        }
        for (uint32_t k = 0; k < kvs__rec_chunks(hl); k++) {
            uint64_t at = (uint64_t)k * KVS_STORE_CHUNK;
            uint64_t left = hl->rec_bytes - at;
            (void)kvs__store_known(h->store, h->entry, b->part, at,
                                   left < KVS_STORE_CHUNK ? left : KVS_STORE_CHUNK,
                                   &to->lent->known[hl->rec_known + k]);
        }
    }
    return true;
}

/* False: stop. */
static bool fill_snap(kvs__history *h, const kvs__snap *s, int64_t pos)
{
    if (pos > (int64_t)h->from_entry || !kvs__hrec_wanted(h, pos) || kvs__hrec_find(h, pos)) {
        return true;
    }
    size_t one = kvs__hsnap_bytes(h);
    if (one > h->max_bytes || h->bytes > h->max_bytes - one) {
        return false;
    }
    const kvs__hsnap *snap = kvs__hrec_insert(h, pos);
    if (snap && !read_snap(h, s, snap)) {
        kvs__hrec_remove(h, pos);
    }
    return snap != NULL;
}

/* Snapshots of the entry that are wanted, from the newest on, while they have room. All layers have
 * theirs at the same positions: those of the first one are looked through. */
static void fill_snaps(kvs__history *h, const kvs__snap *s)
{
    const kvs__snap_layer *first = NULL;
    for (uint32_t i = 0; i < h->n_layers && !first; i++) {
        first = h->layer[i].rec ? &s->layer[i] : NULL;
    }
    for (uint32_t k = first ? first->n : 0; k-- > 0;) {
        if (!fill_snap(h, s, s->blk[first->first + k].b.hi)) {
            return;
        }
    }
}

void kvs__hist_fill(kvs__history *h)
{
    kvs__snap s;
    if (!h->store || h->over || h->from_entry == 0 ||
        snap_read(h, h->store, h->entry, &s, NULL) != KVS_OK || KVS_NEVER(!s.layer)) {
        return;
    }
    bool go = true;
    for (uint32_t i = 0; i < h->n_layers && go; i++) {
        kvs__hlayer *hl = &h->layer[i];
        if (!hl->l || !hl->slides || s.layer[i].dense != hl->dense) {
            continue;
        }
        for (uint32_t k = s.layer[i].n; k-- > 0 && go;) { /* the newest first */
            go = fill_block(h, hl, &s.blk[s.layer[i].first + k], fmt_of(hl->l, s.layer[i].dense));
        }
    }
    fill_snaps(h, &s);
    snap_free(&s);
    kvs__history_forget(h);
    (void)kvs__hist_room(h, 0);
}
