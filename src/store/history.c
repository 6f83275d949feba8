/* SPDX-License-Identifier: MIT */
/* history.c: notes of layers that drop old tokens, and going back with them (history.h). Those of
 * recurrent layers are in history_rec.c.
 *
 * I1  Notes of a layer are blocks in ascending order, at most one for each block of the grid; block
 *     b holds positions [lo, hi), which are the layer's own as they were stored.
 * I2  All notes of a layer have one form. When the layer is converted (dense_until) they begin anew. */
#include "store/history.h"

#include <string.h>

#include "store/history_priv.h"

#define LAG 64 /* tokens that a decoding session may be ahead of the notes */

/* ---- blocks */

size_t kvs__hblock_at(const kvs__fmt *fmt, uint64_t n, int side, int plane)
{
    size_t at = 0;
    for (int s = 0; s < KVS__SIDES; s++) {
        for (int p = 0; p < KVS__PLANES; p++) {
            if (s == side && p == plane) {
                return at;
            }
            const kvs__side *sd = &fmt->side[s];
            at += (size_t)fmt->n_heads * n * sd->n_units[p] * sd->unit_bytes[p];
            at = (at + 7) & ~(size_t)7;
        }
    }
    return at;
}

size_t kvs__hblock_bytes(const kvs__fmt *fmt, int64_t base, uint64_t n)
{
    size_t centers = (size_t)fmt->n_heads * kvs_center_groups(base, n) * fmt->center_bytes;
    return kvs__hblock_at(fmt, n, KVS__SIDES, 0) + ((centers + 7) & ~(size_t)7);
}

/* The planes of a block from position lo on; how many groups of centres a head has. */
static kvs_planes planes_of(const kvs__fmt *fmt, const kvs__hblock *b, uint64_t *c_stride)
{
    kvs_planes out = KVS_PLANES_INIT;
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int p = 0; p < KVS__PLANES; p++) {
            const kvs__side *s = &fmt->side[side];
            size_t row = (size_t)s->n_units[p] * s->unit_bytes[p];
            void **plane = side == KVS__K ? &out.k[p] : &out.v[p];
            *plane = row == 0 ? NULL
                              : b->data + kvs__hblock_at(fmt, b->stride, side, p) +
                                    (size_t)(b->lo - b->base) * row;
        }
    }
    *c_stride = kvs_center_groups(b->base, b->stride);
    if (fmt->center_bytes > 0) {
        const int64_t group = (int64_t)KVS_CENTER_GROUP;
        out.k_center = b->data + kvs__hblock_at(fmt, b->stride, KVS__SIDES, 0) +
                       (size_t)(b->lo / group - b->base / group) * fmt->center_bytes;
    }
    return out;
}

void kvs__hblock_get(const kvs__store *s, const kvs__hblock *b)
{
    uint64_t c_stride = 0;
    kvs_planes p = planes_of(&s->fmt, b, &c_stride);
    kvs__store_export(s, b->lo, (uint64_t)(b->hi - b->lo), &p, b->stride, c_stride);
}

kvs_status kvs__hblock_put(kvs_ctx *ctx, kvs__store *s, const kvs__hblock *b, kvs_err *err)
{
    uint64_t n = (uint64_t)(b->hi - b->lo);
    uint64_t c_stride = 0;
    kvs_planes p = planes_of(&s->fmt, b, &c_stride);
    if (s->fmt.center_bytes > 0 &&
        kvs__store_check_centers(s, b->lo, &p, c_stride, NULL) != KVS_OK) {
        return kvs__fail(err, KVS_E_FORMAT, "store",
                         "keys of one group, about position %lld, have two centres",
                         (long long)b->lo);
    }
    kvs_status st = kvs__store_reserve(ctx, s, b->lo, n, err);
    if (st == KVS_OK) {
        kvs__store_import(s, b->lo, n, &p, b->stride, c_stride);
    }
    return st;
}

void kvs__hblock_copy(const kvs__fmt *fmt, const kvs__hblock *from, const kvs__hblock *to)
{
    uint64_t sc = 0;
    uint64_t dc = 0;
    kvs__hblock src = *from;
    src.lo = to->lo;
    const kvs_planes a = planes_of(fmt, &src, &sc);
    const kvs_planes b = planes_of(fmt, to, &dc);
    for (int i = 0; i < KVS__SIDES * KVS__PLANES; i++) {
        const int p = i % KVS__PLANES;
        const kvs__side *s = &fmt->side[i / KVS__PLANES];
        size_t row = (size_t)s->n_units[p] * s->unit_bytes[p];
        const unsigned char *x = i < KVS__PLANES ? a.k[p] : a.v[p];
        unsigned char *y = i < KVS__PLANES ? b.k[p] : b.v[p];
        for (uint32_t h = 0; row > 0 && h < fmt->n_heads; h++) {
            memcpy(y + h * (size_t)to->stride * row, x + h * (size_t)from->stride * row,
                   (size_t)(to->hi - to->lo) * row);
        }
    }
    const unsigned char *x = a.k_center;
    unsigned char *y = b.k_center;
    size_t centers =
        (size_t)kvs_center_groups(to->lo, (uint64_t)(to->hi - to->lo)) * fmt->center_bytes;
    for (uint32_t h = 0; centers > 0 && h < fmt->n_heads; h++) {
        memcpy(y + h * dc * fmt->center_bytes, x + h * sc * fmt->center_bytes, centers);
    }
}

int64_t kvs__hist_need(const kvs_layer_spec *spec, int64_t c)
{
    int64_t reach = (int64_t)spec->window - 1;
    return spec->window == 0 || c <= reach ? 0 : c - reach;
}

bool kvs__hist_covers(const kvs__hblock *b, uint32_t n, int64_t lo, int64_t hi)
{
    for (uint32_t i = 0; i < n && lo < hi; i++) {
        if (b[i].lo <= lo && b[i].hi > lo) {
            lo = b[i].hi;
        }
    }
    return lo >= hi;
}

bool kvs__hist_serves(const kvs_layer_spec *spec, bool slides, const kvs__hblock *b, uint32_t n,
                      int64_t c)
{
    if (!slides) {
        return kvs__hist_covers(b, n, 0, c);
    }
    int64_t sinks = (int64_t)spec->sinks < c ? (int64_t)spec->sinks : c;
    return kvs__hist_covers(b, n, 0, sinks) && kvs__hist_covers(b, n, kvs__hist_need(spec, c), c);
}

/* Tokens beyond the window are worth having: they allow a rewind. */
int64_t kvs__hist_from(const kvs_layer_spec *spec, bool slides, const kvs__hblock *b, uint32_t n,
                       int64_t c)
{
    if (!slides) {
        return 0;
    }
    int64_t from = kvs__hist_need(spec, c);
    int64_t least = from - (int64_t)(spec->max_block ? spec->max_block : 1);
    least = least > 0 ? least : 0;
    for (uint32_t i = n; i-- > 0 && from > least;) {
        if (b[i].lo < from && b[i].hi >= from) {
            from = b[i].lo > least ? b[i].lo : least;
        }
    }
    return from <= (int64_t)spec->sinks ? 0 : from;
}

static kvs_status load_range(kvs_ctx *ctx, kvs__store *s, const kvs__hblock *b, uint32_t n,
                             int64_t lo, int64_t hi, kvs_err *err)
{
    for (uint32_t i = 0; i < n && lo < hi; i++) {
        if (b[i].lo <= lo && b[i].hi > lo) {
            kvs__hblock part = b[i];
            part.lo = lo;
            part.hi = b[i].hi < hi ? b[i].hi : hi;
            kvs_status st = kvs__hblock_put(ctx, s, &part, err);
            if (st != KVS_OK) {
                return st;
            }
            lo = part.hi;
        }
    }
    return KVS_OK;
}

kvs_status kvs__hist_load(kvs_ctx *ctx, kvs__store *s, const kvs_layer_spec *spec, bool slides,
                          const kvs__hblock *b, uint32_t n, int64_t c, kvs_err *err)
{
    int64_t from = kvs__hist_from(spec, slides, b, n, c);
    kvs_status st = KVS_OK;
    if (from > 0 && spec->sinks > 0) {
        st = load_range(ctx, s, b, n, 0, (int64_t)spec->sinks, err);
    }
    if (st == KVS_OK && !slides) {
        st = kvs__store_reserve(ctx, s, 0, (uint64_t)c, err);
    }
    return st == KVS_OK ? load_range(ctx, s, b, n, from, c, err) : st;
}

/* ---- which blocks are kept */

int64_t kvs__hist_spacing(const kvs__history *h, int64_t c)
{
    int64_t s = BLOCK;
    for (int64_t at = 16 * BLOCK; at <= c && s < INT64_MAX / 4; at *= 2) {
        s *= 2;
    }
    for (uint32_t i = 0; i < h->shift && s < INT64_MAX / 4; i++) {
        s *= 2;
    }
    return s;
}

int64_t kvs__hist_next(const kvs__history *h, int64_t at)
{
    int64_t c = at + 1;
    for (int64_t s = 0; s != kvs__hist_spacing(h, c);) {
        s = kvs__hist_spacing(h, c);
        c = (at + s) / s * s;
    }
    return c;
}

bool kvs__hist_wanted(const kvs__history *h, const kvs_layer_spec *spec, int64_t at, int64_t n)
{
    int64_t window = (int64_t)spec->window;
    if (at < (int64_t)spec->sinks || at + BLOCK > n - window - (int64_t)spec->max_block) {
        return true;
    }
    for (int i = 0; i < KVS__MARKS && h->rec_bytes > 0; i++) {
        if (at < h->mark[i] && at + BLOCK > h->mark[i] - window) {
            return true;
        }
    }
    return kvs__hist_next(h, at) < at + BLOCK + window;
}

static size_t note_bytes(const kvs__hlayer *hl)
{
    const kvs__store *s = hl->dense ? &hl->l->early : &hl->l->main;
    return kvs__lent_bytes(kvs__hblock_bytes(&s->fmt, 0, (uint64_t)BLOCK), 1);
}

static void drop_block(kvs__history *h, kvs__hlayer *hl, uint32_t i)
{
    kvs__lent_unref(h->ctx, hl->lent[i]);
    h->bytes -= note_bytes(hl);
    hl->n_blk--;
    memmove(hl->blk + i, hl->blk + i + 1, (hl->n_blk - i) * sizeof *hl->blk);
    memmove(hl->lent + i, hl->lent + i + 1, (hl->n_blk - i) * sizeof(void *));
}

static void drop_all(kvs__history *h, kvs__hlayer *hl)
{
    while (hl->n_blk > 0) {
        drop_block(h, hl, hl->n_blk - 1);
    }
    hl->end = 0;
}

static void thin_layer(kvs__history *h, kvs__hlayer *hl)
{
    for (uint32_t i = hl->n_blk; i-- > 0;) {
        if (!kvs__hist_wanted(h, &hl->l->spec, hl->blk[i].base, hl->end)) {
            drop_block(h, hl, i);
        }
    }
}

static void drop_notes(kvs__history *h)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        drop_all(h, &h->layer[i]);
    }
    kvs__hrec_drop(h, 0);
}

static void give_up(kvs__history *h)
{
    h->over = true;
    drop_notes(h);
}

bool kvs__hist_room(kvs__history *h, size_t bytes)
{
    if (bytes > h->max_bytes) {
        return false;
    }
    for (;;) {
        for (uint32_t i = 0; i < h->n_layers; i++) {
            thin_layer(h, &h->layer[i]);
        }
        kvs__hrec_thin(h);
        if (h->bytes <= h->max_bytes - bytes) {
            return true;
        }
        if (h->shift < 40) {
            h->shift++;
        } else if (!kvs__hrec_drop_mark(h)) {
            break;
        }
    }
    if (bytes == 0) {
        give_up(h);
    }
    return false;
}

kvs__hblock *kvs__hist_insert(kvs__history *h, kvs__hlayer *hl, int64_t base)
{
    uint32_t i = hl->n_blk;
    while (i > 0 && hl->blk[i - 1].base >= base) {
        i--;
    }
    if (i < hl->n_blk && hl->blk[i].base == base) {
        return &hl->blk[i];
    }
    const kvs__store *s = hl->dense ? &hl->l->early : &hl->l->main;
    size_t bytes = kvs__hblock_bytes(&s->fmt, 0, (uint64_t)BLOCK);
    kvs__hblock *blk = kvs__grow(h->ctx, hl->blk, &hl->cap, hl->n_blk, hl->n_blk + 1, sizeof *blk);
    if (!blk) {
        return NULL;
    }
    hl->blk = blk;
    kvs__lent **list =
        kvs__grow(h->ctx, hl->lent, &hl->cap_lent, hl->n_blk, hl->n_blk + 1, sizeof(void *));
    if (!list) {
        return NULL;
    }
    hl->lent = list;
    kvs__lent *lent = kvs__lent_new(h->ctx, bytes, 1);
    if (!lent) {
        return NULL;
    }
    memmove(hl->blk + i + 1, hl->blk + i, (hl->n_blk - i) * sizeof *hl->blk);
    memmove(hl->lent + i + 1, hl->lent + i, (hl->n_blk - i) * sizeof(void *));
    hl->n_blk++;
    h->bytes += note_bytes(hl);
    hl->blk[i] = (kvs__hblock){base, base, base, (uint32_t)BLOCK, lent->data};
    hl->lent[i] = lent;
    return &hl->blk[i];
}

bool kvs__hist_own(kvs__history *h, kvs__hlayer *hl, kvs__hblock *b)
{
    kvs__lent **lent = &hl->lent[b - hl->blk];
    bool ok = kvs__lent_own(h->ctx, lent);
    b->data = (*lent)->data;
    return ok;
}

/* ---- taking notes */

/* Copies [lo, hi), which the layer holds. False without memory. */
static bool note_range(kvs__history *h, kvs__hlayer *hl, int64_t lo, int64_t hi)
{
    const kvs__store *s = kvs__layer_store(hl->l);
    while (lo < hi) {
        kvs__hblock *b = kvs__hist_insert(h, hl, kvs__hist_grid(lo));
        if (!b || !kvs__hist_own(h, hl, b)) {
            return false;
        }
        if (lo < b->lo || lo > b->hi) { /* a gap: begin anew here */
            b->lo = lo;
            b->hi = lo;
        }
        kvs__hblock part = *b;
        part.lo = lo;
        part.hi = b->base + BLOCK < hi ? b->base + BLOCK : hi;
        kvs__hblock_get(s, &part);
        b->hi = part.hi > b->hi ? part.hi : b->hi;
        lo = part.hi;
    }
    return true;
}

/* Forgets positions from len on. */
static void cut(kvs__history *h, kvs__hlayer *hl, int64_t len)
{
    while (hl->n_blk > 0 && hl->blk[hl->n_blk - 1].lo >= len) {
        drop_block(h, hl, hl->n_blk - 1);
    }
    if (hl->n_blk > 0 && hl->blk[hl->n_blk - 1].hi > len) {
        hl->blk[hl->n_blk - 1].hi = len;
    }
    hl->end = len;
}

static bool note_layer(kvs__history *h, kvs__hlayer *hl, int64_t lag)
{
    const kvs__store *s = kvs__layer_store(hl->l);
    int64_t len = kvs__layer_len(hl->l);
    bool dense = kvs__layer_dense(hl->l);
    if (dense != hl->dense) {
        drop_all(h, hl);
        hl->dense = dense;
    }
    if (len < hl->end) {
        cut(h, hl, len);
    }
    if (len - hl->end <= lag) {
        return true;
    }
    int64_t sinks = (int64_t)s->sinks < len ? (int64_t)s->sinks : len;
    if (hl->end < sinks && !note_range(h, hl, hl->end, sinks)) {
        return false;
    }
    int64_t from = hl->end > s->lo ? hl->end : s->lo;
    from = from > sinks ? from : sinks;
    bool ok = from >= len || note_range(h, hl, from, len);
    hl->end = ok ? len : hl->end;
    return ok;
}

uint64_t kvs__hist_len(const kvs__history *h)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        const kvs__layer *l = h->layer[i].l ? h->layer[i].l : h->layer[i].rec;
        if (l) {
            return (uint64_t)kvs__layer_len(l);
        }
    }
    return 0;
}

void kvs__history_note(kvs__history *h, uint32_t n)
{
    int64_t lag = n > 1 ? 0 : LAG;
    uint64_t length = kvs__hist_len(h);
    for (uint32_t i = 0; i < h->n_layers && !h->over; i++) {
        kvs__hlayer *hl = &h->layer[i];
        if (!hl->l || !hl->slides) {
            continue;
        }
        /* what the window has beyond the newest max_block is not to be overtaken */
        int64_t room = (int64_t)hl->l->spec.window < (int64_t)hl->l->spec.max_block
                           ? (int64_t)hl->l->spec.window
                           : (int64_t)hl->l->spec.max_block;
        int64_t most = room > 1 ? room / 2 : 0;
        if (!note_layer(h, hl, lag < most ? lag : most)) {
            give_up(h);
        }
    }
    if (length < h->from_entry) {
        h->from_entry = length;
    }
    kvs__hrec_note(h);
    if (!h->over && h->bytes > 0) {
        (void)kvs__hist_room(h, 0);
    }
}

/* ---- going back */

static bool layer_serves(const kvs__hlayer *hl, int64_t c)
{
    int64_t len = hl->l ? kvs__layer_len(hl->l) : 0;
    if (!hl->l || (len >= c && kvs__layer_can_rewind(hl->l, (uint64_t)(len - c)))) {
        return true;
    }
    int64_t dense = (int64_t)hl->l->spec.dense_until;
    return hl->slides && hl->dense == (dense > 0 && c <= dense) &&
           kvs__hist_serves(&hl->l->spec, true, hl->blk, hl->n_blk, c);
}

static bool all_serve(const kvs__history *h, int64_t c)
{
    for (uint32_t i = 0; i < h->n_layers; i++) {
        if (!layer_serves(&h->layer[i], c)) {
            return false;
        }
    }
    return kvs__hrec_serves(h, c);
}

uint64_t kvs__history_reach(const kvs__history *h, uint64_t n)
{
    if (n == 0 || all_serve(h, (int64_t)n)) {
        return n;
    }
    int64_t best = 0;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        for (uint32_t k = h->layer[i].n_blk; k-- > 0;) {
            int64_t c = h->layer[i].blk[k].hi;
            if (c < (int64_t)n && c > best && all_serve(h, c)) {
                best = c;
            }
        }
    }
    for (uint32_t k = h->n_snaps; k-- > 0 && h->snap[k].pos > best;) {
        if (h->snap[k].pos < (int64_t)n && all_serve(h, h->snap[k].pos)) {
            best = h->snap[k].pos;
        }
    }
    return (uint64_t)best;
}

kvs_status kvs__history_back(kvs__history *h, uint64_t n, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < h->n_layers && st == KVS_OK; i++) {
        kvs__hlayer *hl = &h->layer[i];
        if (!hl->l) {
            continue;
        }
        uint64_t back = (uint64_t)kvs__layer_len(hl->l) - n;
        if (kvs__layer_can_rewind(hl->l, back)) {
            kvs__layer_rewind(h->ctx, hl->l, back);
            continue;
        }
        if (!layer_serves(hl, (int64_t)n)) {
            return kvs__fail(err, KVS_E_STATE, "store", "layer %u can't go back to %llu tokens", i,
                             (unsigned long long)n);
        }
        bool dense = hl->dense;
        kvs__layer_drop(h->ctx, hl->l);
        st = kvs__hist_load(h->ctx, dense ? &hl->l->early : &hl->l->main, &hl->l->spec, true,
                            hl->blk, hl->n_blk, (int64_t)n, err);
    }
    st = st == KVS_OK ? kvs__hrec_back(h, (int64_t)n, err) : st;
    if (st == KVS_OK) {
        kvs__history_note(h, 0);
    }
    return st;
}

/* ---- the whole */

kvs_status kvs__history_new(kvs_ctx *ctx, kvs_cache *cache, size_t max_bytes, kvs__history **out,
                            kvs_err *err)
{
    *out = NULL;
    kvs__history *h = kvs__calloc(ctx, 1, sizeof *h);
    if (!h) {
        return kvs__nomem(err, "store", sizeof *h);
    }
    h->ctx = ctx;
    h->cache = cache;
    h->max_bytes = max_bytes;
    h->layer = kvs__calloc(ctx, cache->n_layers, sizeof *h->layer);
    if (!h->layer) {
        kvs__history_free(h);
        return kvs__nomem(err, "store", cache->n_layers * sizeof *h->layer);
    }
    h->n_layers = cache->n_layers;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        kvs__layer *l = &cache->layer[i];
        bool own = l->spec.kind == KVS_LAYER_ATTENTION || l->spec.kind == KVS_LAYER_LATENT;
        h->layer[i].l = own ? l : NULL;
        h->layer[i].slides = own && kvs__store_slides(&l->main);
        h->layer[i].whole = own && !h->layer[i].slides ? h->n_whole++ : 0;
        h->layer[i].dense = own && kvs__layer_dense(l);
    }
    kvs_status st = kvs__hrec_init(h, err);
    if (st != KVS_OK) {
        kvs__history_free(h);
        return st;
    }
    *out = h;
    return KVS_OK;
}

void kvs__history_forget(kvs__history *h)
{
    if (h->store) {
        (void)kvs_store_unpin(h->store, h->entry);
    }
    h->store = NULL;
    h->from_entry = 0;
}

void kvs__history_clear(kvs__history *h)
{
    kvs__history_forget(h);
    drop_notes(h);
    kvs__hknown_drop(h, 0);
    memset(h->mark, 0, sizeof h->mark);
    h->rec_end = 0;
    h->shift = 0;
    h->over = false;
}

void kvs__history_free(kvs__history *h)
{
    if (!h) {
        return;
    }
    kvs__history_forget(h);
    drop_notes(h);
    kvs__hknown_drop(h, 0);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        kvs__free(h->ctx, h->layer[i].blk, h->layer[i].cap * sizeof *h->layer[i].blk);
        kvs__free(h->ctx, h->layer[i].lent, h->layer[i].cap_lent * sizeof(void *));
    }
    kvs__free(h->ctx, h->row, h->cap_rows * sizeof(void *));
    kvs__free(h->ctx, h->snap, h->cap_snaps * sizeof *h->snap);
    kvs__free(h->ctx, h->layer, h->n_layers * sizeof *h->layer);
    kvs__free(h->ctx, h, sizeof *h);
}

size_t kvs__history_bytes(const kvs__history *h)
{
    return h->bytes + kvs__hknown_bytes(h);
}
