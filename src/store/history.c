/* SPDX-License-Identifier: MIT */
/* history.c: notes of layers that drop old tokens, and going back with them (history.h).
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

size_t kvs__hblock_bytes(const kvs__fmt *fmt, uint64_t n)
{
    return kvs__hblock_at(fmt, n, KVS__SIDES, 0);
}

/* Row of position lo of head h. */
static unsigned char *rows_of(const kvs__fmt *fmt, const kvs__hblock *b, int side, int plane,
                              uint32_t head)
{
    const kvs__side *s = &fmt->side[side];
    size_t row = (size_t)s->n_units[plane] * s->unit_bytes[plane];
    return b->data + kvs__hblock_at(fmt, b->stride, side, plane) +
           ((size_t)head * b->stride + (size_t)(b->lo - b->base)) * row;
}

void kvs__hblock_get(const kvs__store *s, const kvs__hblock *b)
{
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int p = 0; p < KVS__PLANES; p++) {
            for (uint32_t h = 0; s->fmt.side[side].n_units[p] > 0 && h < s->fmt.n_heads; h++) {
                kvs__store_get_units(s, side, p, h, b->lo, (uint64_t)(b->hi - b->lo),
                                     rows_of(&s->fmt, b, side, p, h));
            }
        }
    }
}

kvs_status kvs__hblock_put(kvs_ctx *ctx, kvs__store *s, const kvs__hblock *b, kvs_err *err)
{
    uint64_t n = (uint64_t)(b->hi - b->lo);
    kvs_status st = kvs__store_reserve(ctx, s, b->lo, n, err);
    if (st != KVS_OK) {
        return st;
    }
    if (b->lo > s->len) {
        kvs__store_jump(s, b->lo);
    }
    kvs__store_advance(s, n);
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int p = 0; p < KVS__PLANES; p++) {
            for (uint32_t h = 0; s->fmt.side[side].n_units[p] > 0 && h < s->fmt.n_heads; h++) {
                kvs__store_set_units(s, side, p, h, b->lo, n, rows_of(&s->fmt, b, side, p, h));
            }
        }
    }
    return KVS_OK;
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

/* Distance of checkpoints about position c. */
static int64_t spacing(const kvs__history *h, int64_t c)
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

bool kvs__hist_wanted(const kvs__history *h, const kvs_layer_spec *spec, int64_t at, int64_t n)
{
    int64_t window = (int64_t)spec->window;
    if (at < (int64_t)spec->sinks || at + BLOCK > n - window - (int64_t)spec->max_block) {
        return true;
    }
    int64_t c = at + 1;
    for (int64_t s = 0; s != spacing(h, c);) {
        s = spacing(h, c);
        c = (at + s) / s * s;
    }
    return c < at + BLOCK + window;
}

static size_t note_bytes(const kvs__hlayer *hl)
{
    const kvs__store *s = hl->dense ? &hl->l->early : &hl->l->main;
    return kvs__hblock_bytes(&s->fmt, (uint64_t)BLOCK);
}

static void drop_block(kvs__history *h, kvs__hlayer *hl, uint32_t i)
{
    size_t bytes = note_bytes(hl);
    kvs__free(h->ctx, hl->blk[i].data, bytes);
    h->bytes -= bytes;
    hl->n_blk--;
    memmove(hl->blk + i, hl->blk + i + 1, (hl->n_blk - i) * sizeof *hl->blk);
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

static void give_up(kvs__history *h)
{
    h->over = true;
    for (uint32_t i = 0; i < h->n_layers; i++) {
        drop_all(h, &h->layer[i]);
    }
}

void kvs__hist_thin(kvs__history *h)
{
    for (;;) {
        for (uint32_t i = 0; i < h->n_layers; i++) {
            thin_layer(h, &h->layer[i]);
        }
        if (h->bytes <= h->max_bytes) {
            return;
        }
        if (h->shift == 40) {
            give_up(h);
            return;
        }
        h->shift++;
    }
}

static bool grow_list(kvs__history *h, kvs__hlayer *hl)
{
    if (hl->n_blk < hl->cap) {
        return true;
    }
    uint32_t cap = hl->cap ? 2 * hl->cap : 16;
    kvs__hblock *p = kvs__alloc(h->ctx, cap * sizeof *p);
    if (!p) {
        return false;
    }
    if (hl->n_blk > 0) {
        memcpy(p, hl->blk, hl->n_blk * sizeof *p);
    }
    kvs__free(h->ctx, hl->blk, hl->cap * sizeof *p);
    hl->blk = p;
    hl->cap = cap;
    return true;
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
    size_t bytes = note_bytes(hl);
    if (!grow_list(h, hl)) {
        return NULL;
    }
    unsigned char *data = kvs__calloc(h->ctx, 1, bytes);
    if (!data) {
        return NULL;
    }
    memmove(hl->blk + i + 1, hl->blk + i, (hl->n_blk - i) * sizeof *hl->blk);
    hl->n_blk++;
    h->bytes += bytes;
    hl->blk[i] = (kvs__hblock){base, base, base, (uint32_t)BLOCK, data};
    return &hl->blk[i];
}

/* ---- taking notes */

/* Copies [lo, hi), which the layer holds. False without memory. */
static bool note_range(kvs__history *h, kvs__hlayer *hl, int64_t lo, int64_t hi)
{
    const kvs__store *s = kvs__layer_store(hl->l);
    while (lo < hi) {
        kvs__hblock *b = kvs__hist_insert(h, hl, kvs__hist_grid(lo));
        if (!b) {
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

void kvs__history_note(kvs__history *h, uint32_t n)
{
    int64_t lag = n > 1 ? 0 : LAG;
    uint64_t length = 0;
    for (uint32_t i = 0; i < h->n_layers && !h->over; i++) {
        kvs__hlayer *hl = &h->layer[i];
        if (!hl->l) {
            continue;
        }
        length = (uint64_t)kvs__layer_len(hl->l);
        if (!hl->slides) {
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
    if (!h->over && h->bytes > 0) {
        kvs__hist_thin(h);
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
    return true;
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
    for (uint32_t i = 0; i < cache->n_layers; i++) {
        if (cache->layer[i].spec.kind == KVS_LAYER_RECURRENT) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "store",
                             "layer %u is recurrent: such state is not saved yet", i);
        }
        if (cache->layer[i].main.fmt.center_bytes > 0) {
            return kvs__fail(err, KVS_E_UNSUPPORTED, "store",
                             "layer %u keeps centred keys: their centres are not saved yet", i);
        }
    }
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
        h->layer[i].dense = own && kvs__layer_dense(l);
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
    for (uint32_t i = 0; i < h->n_layers; i++) {
        drop_all(h, &h->layer[i]);
    }
    h->shift = 0;
    h->over = false;
}

void kvs__history_free(kvs__history *h)
{
    if (!h) {
        return;
    }
    kvs__history_forget(h);
    for (uint32_t i = 0; i < h->n_layers; i++) {
        drop_all(h, &h->layer[i]);
        kvs__free(h->ctx, h->layer[i].blk, h->layer[i].cap * sizeof *h->layer[i].blk);
    }
    kvs__free(h->ctx, h->layer, h->n_layers * sizeof *h->layer);
    kvs__free(h->ctx, h, sizeof *h);
}

size_t kvs__history_bytes(const kvs__history *h)
{
    return h->bytes;
}
