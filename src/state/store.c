/* SPDX-License-Identifier: MIT */
/* store.c: segments and the layouts grow and ring (invariants in store.h); paged is paged.c.
 *
 * grow: a ladder of segments, each half as large again as all before it. Capacity depends on the
 * token count alone, a token never moves, and views stay valid without copies. Where others read
 * what an append would write over, a ladder of its own starts at the last tile that they share.
 * ring: one segment of window - 1 + max_block tokens, rounded up to the tile: a block append
 * overwrites only tokens that no later query sees, and a rewind by a block loses none. */
#include "state/store.h"

#include <string.h>

#define FIRST_SEG   256u
#define FOLD_AT     (KVS__MAX_SEGS / 2)
#define PLANE_ALIGN 64u

static uint32_t rotation_block(uint32_t dim)
{
    return dim & (0u - dim); /* the largest power of two that divides it */
}

static uint32_t dtype_bytes(kvs_dtype t)
{
    return t == KVS_F32 ? 4 : 2;
}

void kvs__side_init(kvs__side *side, const kvs_codec *codec, uint32_t dim)
{
    memset(side, 0, sizeof *side);
    side->codec = *codec;
    side->shape = (kvs__shape){dim, codec->bits, codec->group, codec->dtype};
    if (codec->bits == 0) {
        side->n_units[0] = dim;
        side->unit_bytes[0] = dtype_bytes(codec->dtype);
        return;
    }
    side->rot = codec->rotate & KVS_ROTATED ? rotation_block(dim) : 0;
    side->n_units[0] = dim / 32 * codec->bits;
    side->unit_bytes[0] = 4;
    for (int p = 1; p < KVS__PLANES; p++) {
        side->n_units[p] = dim / codec->group;
        side->unit_bytes[p] = dtype_bytes(codec->dtype);
    }
}

/* V of a latent layer: the first elements of K, in the domain that K is stored in. */
static void latent_side(kvs__fmt *fmt)
{
    const kvs__side *k = &fmt->side[KVS__K];
    kvs__side *v = &fmt->side[KVS__V];
    uint32_t dim = v->shape.dim;
    fmt->n_sides = 1;
    *v = *k;
    v->shape.dim = dim;
    memset(v->n_units, 0, sizeof v->n_units);
    memset(v->unit_bytes, 0, sizeof v->unit_bytes);
}

/* Lays the planes out; returns false on overflow. seg may be NULL to get the size alone. */
static bool lay_out(const kvs__fmt *fmt, uint64_t cap, kvs__seg *seg, size_t *bytes)
{
    size_t at = 0;
    if (cap > SIZE_MAX || !kvs__align_size(sizeof(kvs__seg), PLANE_ALIGN, &at)) {
        return false;
    }
    for (int side = 0; side < KVS__SIDES; side++) {
        const kvs__side *s = &fmt->side[side];
        for (int p = 0; p < KVS__PLANES; p++) {
            size_t row = (size_t)s->n_units[p] * s->unit_bytes[p];
            size_t head = 0;
            size_t plane = 0;
            if (!kvs__mul_size((size_t)cap, row, &head) ||
                !kvs__mul_size(head, fmt->n_heads, &plane) ||
                !kvs__align_size(plane, PLANE_ALIGN, &plane)) {
                return false;
            }
            if (seg) {
                seg->offset[side][p] = at;
                seg->head_bytes[side][p] = head;
            }
            if (!kvs__add_size(at, plane, &at)) {
                return false;
            }
        }
    }
    uint64_t rows = fmt->center_bytes ? kvs__center_rows(cap) : 0;
    size_t head = 0;
    size_t plane = 0;
    if (rows > UINT32_MAX || !kvs__mul_size((size_t)rows, fmt->center_bytes, &head) ||
        !kvs__mul_size(head, fmt->n_heads, &plane) ||
        !kvs__align_size(plane, PLANE_ALIGN, &plane)) {
        return false;
    }
    if (seg) {
        seg->center_at = at;
        seg->center_head = head;
        seg->n_centers = (uint32_t)rows;
    }
    return kvs__add_size(at, plane, bytes);
}

bool kvs__seg_size(const kvs__fmt *fmt, uint64_t cap, size_t *bytes)
{
    return lay_out(fmt, cap, NULL, bytes);
}

static kvs_status seg_new(kvs_ctx *ctx, const kvs__fmt *fmt, uint64_t cap, kvs__seg **out,
                          kvs_err *err)
{
    size_t bytes = 0;
    if (!lay_out(fmt, cap, NULL, &bytes)) {
        return kvs__fail(err, KVS_E_RANGE, "state", "a segment of %llu tokens is too large",
                         (unsigned long long)cap);
    }
    kvs__seg *seg = kvs__alloc(ctx, bytes);
    if (!seg) {
        (void)kvs__nomem(err, "state", bytes);
        return KVS_E_NOMEM;
    }
    memset(seg, 0, sizeof *seg);
    (void)lay_out(fmt, cap, seg, &bytes);
    seg->bytes = bytes;
    seg->cap = cap;
    seg->refs = 1;
    *out = seg;
    return KVS_OK;
}

void kvs__seg_unref(kvs_ctx *ctx, kvs__seg *seg)
{
    if (!seg) {
        return;
    }
    if (--seg->refs == 0) {
        kvs__free(ctx, seg, seg->bytes);
    } else if (seg->refs == 1) {
        /* What is left is either the store or the last view; a lone view needs no guard. */
        seg->pin_lo = 0;
        seg->pin_hi = 0;
    }
}

static uint64_t round_tile(uint64_t n)
{
    return (n + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
}

void kvs__store_init(kvs__store *s, const kvs_layer_spec *spec, const kvs_codec *k,
                     const kvs_codec *v, uint64_t reserve_tokens)
{
    memset(s, 0, sizeof *s);
    s->fmt.n_heads = spec->n_kv_heads;
    kvs__side_init(&s->fmt.side[KVS__K], k, spec->k_dim);
    kvs__side_init(&s->fmt.side[KVS__V], v, spec->v_dim);
    s->fmt.n_sides = KVS__SIDES;
    if (spec->kind == KVS_LAYER_LATENT) {
        latent_side(&s->fmt);
    } else {
        s->fmt.center_bytes = (uint32_t)kvs_codec_center_bytes(k, spec->k_dim);
    }
    s->layout = spec->layout;
    s->window = spec->window;
    s->sinks = spec->sinks;
    if (kvs__store_slides(s)) {
        uint64_t block = spec->max_block ? spec->max_block : 1;
        /* a centred append needs the token before it, for the centre of their group */
        uint64_t before = spec->window == 1 && s->fmt.center_bytes ? 1 : spec->window - 1;
        s->ring_cap = round_tile(before + block);
    } else {
        s->first_cap = reserve_tokens ? round_tile(reserve_tokens) : FIRST_SEG;
    }
}

/* Capacity of the next rung of the ladder when `cap` tokens fit so far. Behind a shared prefix the
 * ladder starts again: a branch pays for what it adds. */
static uint64_t next_rung(const kvs__store *s, uint64_t cap)
{
    if (cap == 0) {
        return s->first_cap;
    }
    uint64_t own = cap - (uint64_t)s->base;
    return own == 0 ? FIRST_SEG : (own / 2 + FIRST_SEG - 1) / FIRST_SEG * FIRST_SEG;
}

bool kvs__store_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes)
{
    size_t sum = 0;
    size_t one = 0;
    if (s->layout == KVS_LAYOUT_PAGED) {
        return kvs__paged_planned(s, n_tokens, bytes);
    }
    if (s->layout == KVS_LAYOUT_RING) {
        if (!kvs__seg_size(&s->fmt, s->ring_cap, &sum)) {
            return false;
        }
        if (s->sinks > 0 && (!kvs__seg_size(&s->fmt, round_tile(s->sinks), &one) ||
                             !kvs__add_size(sum, one, &sum))) {
            return false;
        }
        *bytes = sum;
        return true;
    }
    uint64_t cap = 0;
    for (uint32_t n = 0; cap < n_tokens; n++) {
        uint64_t rung = next_rung(s, cap);
        if (n == KVS__MAX_SEGS || !kvs__seg_size(&s->fmt, rung, &one) ||
            !kvs__add_size(sum, one, &sum)) {
            return false;
        }
        cap += rung;
    }
    *bytes = sum;
    return true;
}

size_t kvs__store_bytes(const kvs__store *s)
{
    size_t sum = 0;
    if (s->layout == KVS_LAYOUT_PAGED) {
        return kvs__paged_bytes(s);
    }
    for (uint32_t i = 0; i < s->n_segs; i++) {
        sum += s->seg[i]->bytes;
    }
    return sum;
}

/* Where the positions of segment i of a grow store end. */
static int64_t seg_end(const kvs__store *s, uint32_t i)
{
    return i + 1 < s->n_segs ? s->first[i + 1] : s->first[i] + (int64_t)s->seg[i]->cap;
}

/* Must the store have segment i for itself before positions [at, end) are written? (I5) */
static bool must_part(const kvs__store *s, uint32_t i, int64_t at, int64_t end)
{
    const kvs__seg *seg = s->seg[i];
    bool pinned = seg->pin_lo < seg->pin_hi;
    if (seg->refs == 1) {
        return false;
    }
    if (s->layout == KVS_LAYOUT_GROW) {
        at = at > s->first[i] ? at : s->first[i];
        end = end < seg_end(s, i) ? end : seg_end(s, i);
        return at < end && (!s->owned[i] || (pinned && at < seg->pin_hi && end > seg->pin_lo));
    }
    if (i > 0) {
        return at < (int64_t)s->sinks;
    }
    if (!s->owned[i] || !pinned) {
        return !s->owned[i];
    }
    /* A ring's slot is shared by all positions of one remainder; an import may jump any distance.
     * The pinned slots start `ahead` slots after those of `at`. Centres have a remainder of their
     * own, which is safe within one round, and past a gap the pinned group may get another one. */
    int64_t cap = (int64_t)s->ring_cap;
    if (s->fmt.center_bytes && (at < seg->pin_lo || at > s->len || end - seg->pin_lo > cap)) {
        return true;
    }
    int64_t ahead = ((seg->pin_lo - at) % cap + cap) % cap;
    return ahead < end - at || cap - ahead < seg->pin_hi - seg->pin_lo;
}

/* Gives a ring its own copy of segment i; the others keep the old one. */
static kvs_status unshare(kvs_ctx *ctx, kvs__store *s, uint32_t i, kvs_err *err)
{
    kvs__seg *old = s->seg[i];
    kvs__seg *copy = kvs__alloc(ctx, old->bytes);
    if (!copy) {
        return kvs__nomem(err, "state", old->bytes);
    }
    memcpy(copy, old, old->bytes);
    copy->refs = 1;
    copy->pin_lo = 0;
    copy->pin_hi = 0;
    s->seg[i] = copy;
    s->owned[i] = true;
    kvs__seg_unref(ctx, old);
    return KVS_OK;
}

void kvs__store_trim(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs, uint64_t table_cap)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_give_back(ctx, s, n_segs, table_cap);
        return;
    }
    while (s->n_segs > n_segs) {
        s->n_segs--;
        kvs__seg_unref(ctx, s->seg[s->n_segs]);
        s->seg[s->n_segs] = NULL;
    }
}

/* Centres of the n positions from `at` on, at slot `from` of one segment and `to` of the other. */
static void copy_centers(const kvs__store *src, const kvs__seg *seg, int64_t at, int64_t n,
                         uint64_t from, kvs__seg *dst, uint64_t to)
{
    int64_t step = 0;
    for (int64_t i = 0; src->fmt.center_bytes && i < n; i += step) {
        step = (int64_t)KVS_CENTER_GROUP - (at + i) % (int64_t)KVS_CENTER_GROUP;
        for (uint32_t h = 0; h < src->fmt.n_heads; h++) {
            memcpy(kvs__center_at(src, dst, h, at + i, to + (uint64_t)i),
                   kvs__center_at(src, seg, h, at + i, from + (uint64_t)i), src->fmt.center_bytes);
        }
    }
}

/* Copies positions [at, end), `at` on the tile grid, from a store to a segment whose slot 0 is
 * position `first`: bytes, no value changes. */
static void copy_tokens(const kvs__store *src, int64_t at, int64_t end, kvs__seg *dst,
                        int64_t first)
{
    while (at < end) {
        const kvs__seg *seg = NULL;
        uint64_t from = 0;
        uint64_t n = kvs__store_locate(src, at, (uint64_t)(end - at), &seg, &from);
        uint64_t slot = (uint64_t)(at - first);
        uint64_t tiles = (n + KVS__TILE - 1) / KVS__TILE;
        for (int p = 0; p < KVS__PLANES; p++) {
            const kvs__side *k = &src->fmt.side[KVS__K];
            const kvs__side *v = &src->fmt.side[KVS__V];
            size_t k_bytes = (size_t)tiles * KVS__TILE * k->n_units[p] * k->unit_bytes[p];
            size_t v_bytes = (size_t)n * v->n_units[p] * v->unit_bytes[p];
            for (uint32_t h = 0; h < src->fmt.n_heads; h++) {
                memcpy(kvs__k_tile_at(src, dst, p, h, slot / KVS__TILE),
                       kvs__k_tile_at(src, seg, p, h, from / KVS__TILE), k_bytes);
                memcpy(kvs__v_row_at(src, dst, p, h, slot), kvs__v_row_at(src, seg, p, h, from),
                       v_bytes);
            }
        }
        copy_centers(src, seg, at, (int64_t)n, from, dst, slot);
        at += (int64_t)n;
    }
}

static kvs_status too_many(uint64_t end, kvs_err *err)
{
    return kvs__fail(err, KVS_E_LIMIT, "state", "%llu tokens need more than %d segments",
                     (unsigned long long)end, KVS__MAX_SEGS);
}

/* Adds segments behind the last one, the first of them of `least` tokens at least. On failure some
 * may have been added. */
static kvs_status climb(kvs_ctx *ctx, kvs__store *s, uint64_t end, uint64_t least, kvs_err *err)
{
    uint64_t cap = (uint64_t)(s->n_segs > 0 ? seg_end(s, s->n_segs - 1) : s->base);
    while (cap < end) {
        if (s->n_segs == KVS__MAX_SEGS) {
            return too_many(end, err);
        }
        uint64_t rung = next_rung(s, cap);
        kvs__seg *seg = NULL;
        kvs_status st = seg_new(ctx, &s->fmt, rung > least ? rung : least, &seg, err);
        if (st != KVS_OK) {
            return st;
        }
        s->first[s->n_segs] = (int64_t)cap;
        s->owned[s->n_segs] = true;
        s->seg[s->n_segs++] = seg;
        cap += seg->cap;
        least = 0;
    }
    return KVS_OK;
}

/* Keeps the segments below position `cut` (on the tile grid), the last of them ending there, and
 * puts new ones behind, to which the tokens from `cut` on are copied. */
static kvs_status restart(kvs_ctx *ctx, kvs__store *s, int64_t cut, uint64_t end, kvs_err *err)
{
    kvs__store to = *s;
    uint32_t keep = 0;
    while (keep < s->n_segs && s->first[keep] < cut) {
        keep++;
    }
    to.n_segs = 0;
    to.base = cut;
    int64_t len = s->len > cut ? s->len : cut;
    kvs_status st = climb(ctx, &to, end, round_tile((uint64_t)(len - cut) + 1), err);
    if (st == KVS_OK && keep + to.n_segs > KVS__MAX_SEGS) {
        st = too_many(end, err);
    }
    if (st != KVS_OK) {
        kvs__store_trim(ctx, &to, 0, 0);
        return st;
    }
    copy_tokens(s, cut, len, to.seg[0], cut);
    kvs__store_trim(ctx, s, keep, 0);
    for (uint32_t i = 0; i < to.n_segs; i++) {
        s->seg[keep + i] = to.seg[i];
        s->first[keep + i] = to.first[i];
        s->owned[keep + i] = true;
    }
    s->n_segs = keep + to.n_segs;
    s->base = cut;
    return KVS_OK;
}

static kvs_status reserve_grow(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t end, kvs_err *err)
{
    const int64_t tile = (int64_t)KVS__TILE;
    uint32_t i = 0;
    while (i < s->n_segs && !must_part(s, i, at, (int64_t)end)) {
        i++;
    }
    uint32_t had = s->n_segs;
    kvs_status st = KVS_OK;
    if (i < s->n_segs) {
        st = restart(ctx, s, at > s->first[i] ? at / tile * tile : s->first[i], end, err);
    } else {
        st = climb(ctx, s, end, 0, err);
    }
    if (st != KVS_OK && st != KVS_E_LIMIT) {
        kvs__store_trim(ctx, s, had, 0);
    } else if (st == KVS_E_LIMIT) {
        /* a branch of a branch of ...: the upper half of the list becomes one segment */
        kvs__store_trim(ctx, s, had, 0);
        st = had > FOLD_AT ? restart(ctx, s, s->first[FOLD_AT], end, err) : st;
    }
    return st;
}

/* I4: slots of a ring are entered in any order, so all its K tiles start as zeros. */
static void clear_k(kvs__seg *seg)
{
    memset((unsigned char *)seg + seg->offset[KVS__K][0], 0,
           seg->offset[KVS__V][0] - seg->offset[KVS__K][0]);
}

static kvs_status reserve_ring(kvs_ctx *ctx, kvs__store *s, kvs_err *err)
{
    if (s->n_segs > 0) {
        return KVS_OK;
    }
    uint64_t cap[2] = {s->ring_cap, round_tile(s->sinks)};
    uint32_t n = s->sinks > 0 ? 2 : 1;
    kvs__seg *made[2] = {NULL, NULL};
    for (uint32_t i = 0; i < n; i++) {
        kvs_status st = seg_new(ctx, &s->fmt, cap[i], &made[i], err);
        if (st != KVS_OK) {
            kvs__seg_unref(ctx, made[0]);
            return st;
        }
        clear_k(made[i]);
    }
    memcpy(s->seg, made, sizeof made);
    s->owned[0] = true;
    s->owned[1] = true;
    s->n_segs = n;
    return KVS_OK;
}

kvs_status kvs__store_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        return kvs__paged_reserve(ctx, s, at, n, err);
    }
    int64_t end = at + (int64_t)n;
    if (s->layout == KVS_LAYOUT_GROW) {
        return reserve_grow(ctx, s, at, (uint64_t)end, err);
    }
    uint32_t had = s->n_segs;
    kvs_status st = reserve_ring(ctx, s, err);
    for (uint32_t i = 0; st == KVS_OK && i < s->n_segs; i++) {
        if (must_part(s, i, at, end)) {
            st = unshare(ctx, s, i, err);
        }
    }
    if (st != KVS_OK) {
        kvs__store_trim(ctx, s, had, 0);
    }
    return st;
}

kvs_status kvs__store_reserve_like(kvs_ctx *ctx, kvs__store *dst, const kvs__store *src,
                                   uint64_t extra, kvs_err *err)
{
    /* blocks that src let go of are not taken again for dst */
    int64_t at = dst->layout == KVS_LAYOUT_PAGED ? src->lo : 0;
    return kvs__store_reserve(ctx, dst, at, (uint64_t)(src->len - at) + extra, err);
}

kvs_status kvs__store_tail(kvs_ctx *ctx, const kvs__store *s, uint64_t n, kvs__store *out,
                           kvs_err *err)
{
    memset(out, 0, sizeof *out);
    out->fmt = s->fmt;
    out->layout = KVS_LAYOUT_GROW;
    uint64_t lead = (uint64_t)s->len % KVS__TILE; /* slots stay on the tile grid of positions */
    kvs__seg *seg = NULL;
    kvs_status st = seg_new(ctx, &s->fmt, round_tile(lead + n), &seg, err);
    if (st != KVS_OK) {
        return st;
    }
    clear_k(seg);
    out->seg[0] = seg;
    out->n_segs = 1;
    out->first[0] = s->len - (int64_t)lead;
    out->lo = s->len;
    out->len = s->len + (int64_t)n;
    return KVS_OK;
}

void kvs__store_advance(kvs__store *s, uint64_t n)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_advance(s, n);
        return;
    }
    s->len += (int64_t)n;
    if (s->layout == KVS_LAYOUT_RING && s->len - s->lo > (int64_t)s->ring_cap) {
        s->lo = s->len - (int64_t)s->ring_cap;
    }
}

void kvs__store_jump(kvs__store *s, int64_t at)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_jump(s, at);
        return;
    }
    s->lo = at;
    s->len = at;
    s->kept = 0;
}

bool kvs__store_can_rewind(const kvs__store *s, int64_t len)
{
    if (len < 0 || len > s->len) {
        return false;
    }
    return len == 0 || kvs__attend_covered(s, len, len);
}

void kvs__store_rewind(kvs__store *s, int64_t len)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_rewind(s, len);
        return;
    }
    s->len = len;
    s->kept = len < s->kept ? len : s->kept;
    if (s->lo > len) {
        s->lo = len;
    }
}

void kvs__store_drop(kvs_ctx *ctx, kvs__store *s)
{
    if (s->layout == KVS_LAYOUT_PAGED) {
        kvs__paged_drop(ctx, s);
        return;
    }
    for (uint32_t i = 0; i < s->n_segs; i++) {
        kvs__seg_unref(ctx, s->seg[i]);
        s->seg[i] = NULL;
    }
    s->n_segs = 0;
    s->lo = 0;
    s->len = 0;
    s->kept = 0;
    s->base = 0;
}

void kvs__store_empty(kvs_ctx *ctx, kvs__store *s)
{
    if (s->layout != KVS_LAYOUT_GROW || s->n_segs == 0 || s->seg[0]->refs > 1) {
        kvs__store_drop(ctx, s);
        return;
    }
    kvs__store_trim(ctx, s, 1, 0);
    s->len = 0;
    s->lo = 0;
    s->kept = 0;
    s->base = 0;
}

bool kvs__store_holds(const kvs__store *s, int64_t pos)
{
    return pos >= 0 && pos < s->len && (pos >= s->lo || pos < (int64_t)s->sinks);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Headers of blocks lie side by side where the blocks do, and nowhere else (pages_chunk.c). */
static bool beside(const kvs__seg *a, const kvs__seg *b)
{
    return (uintptr_t)b - (uintptr_t)a == KVS__SEG_STRIDE;
}

uint64_t kvs__store_locate(const kvs__store *s, int64_t pos, uint64_t most, const kvs__seg **seg,
                           uint64_t *slot)
{
    KVS_ASSERT(kvs__store_holds(s, pos));
    uint64_t run = least(most, (uint64_t)(s->len - pos));
    if (s->layout == KVS_LAYOUT_GROW) {
        uint32_t i = s->n_segs - 1;
        while (s->first[i] > pos) {
            i--;
        }
        *seg = s->seg[i];
        *slot = (uint64_t)(pos - s->first[i]);
        return least(run, (uint64_t)(seg_end(s, i) - pos));
    }
    if (s->layout == KVS_LAYOUT_PAGED) {
        uint64_t b = s->shift ? (uint64_t)pos >> s->shift : (uint64_t)pos / s->block;
        uint64_t i = b < s->n_sink ? b : s->n_sink + b - s->front;
        *seg = s->table[i];
        *slot = (uint64_t)pos - b * s->block;
        if (pos < s->lo) { /* what lies between the sinks and lo is not held */
            run = least(run, least((uint64_t)s->sinks, (uint64_t)s->lo) - (uint64_t)pos);
        }
        uint64_t in_row = s->block - *slot;
        while (in_row < run && s->joins && beside(s->table[i], s->table[i + 1])) {
            in_row += s->block; /* position pos + in_row is held: entry i + 1 is its block */
            i++;
        }
        return least(run, in_row);
    }
    if (pos >= s->lo) {
        *seg = s->seg[0];
        *slot = (uint64_t)pos % s->ring_cap;
        return least(run, s->ring_cap - *slot);
    }
    *seg = s->seg[1];
    *slot = (uint64_t)pos;
    return least(run, least((uint64_t)s->sinks, (uint64_t)s->lo) - *slot);
}

/* dst shares the segments of src with tokens below `len`, which are pinned. */
static void share(kvs__store *dst, kvs__store *src, int64_t len)
{
    *dst = *src;
    dst->n_segs = 0;
    for (uint32_t i = 0; i < src->n_segs; i++) {
        kvs__seg *seg = src->seg[i];
        int64_t lo = src->lo;
        int64_t hi = len;
        if (src->layout == KVS_LAYOUT_GROW) {
            lo = src->first[i];
            hi = hi < seg_end(src, i) ? hi : seg_end(src, i);
        } else if (i == 1) {
            lo = 0;
            hi = src->sinks;
        }
        if (src->layout == KVS_LAYOUT_GROW && lo >= len) {
            break;
        }
        src->owned[i] = src->owned[i] || seg->refs == 1;
        bool none = seg->pin_lo >= seg->pin_hi;
        seg->pin_lo = none || lo < seg->pin_lo ? lo : seg->pin_lo;
        seg->pin_hi = none || hi > seg->pin_hi ? hi : seg->pin_hi;
        seg->refs++;
        dst->n_segs = i + 1;
    }
}

kvs_status kvs__store_pin(kvs_ctx *ctx, kvs__store *dst, kvs__store *src, kvs_err *err)
{
    if (src->layout == KVS_LAYOUT_PAGED) {
        return kvs__paged_fork(ctx, src, src->len, dst, err);
    }
    share(dst, src, src->len);
    return KVS_OK;
}

kvs_status kvs__store_fork(kvs_ctx *ctx, kvs__store *dst, kvs__store *src, int64_t len,
                           kvs_err *err)
{
    if (src->layout == KVS_LAYOUT_PAGED) {
        return kvs__paged_fork(ctx, src, len, dst, err);
    }
    if (len == 0) { /* nothing to share: as new */
        *dst = *src;
        dst->n_segs = 0;
        dst->lo = 0;
        dst->len = 0;
        dst->kept = 0;
        dst->base = 0;
        return KVS_OK;
    }
    share(dst, src, len);
    memset(dst->owned, 0, sizeof dst->owned);
    kvs__store_rewind(dst, len);
    dst->kept = 0;
    if (dst->layout == KVS_LAYOUT_GROW) {
        dst->base = seg_end(dst, dst->n_segs - 1);
    }
    return KVS_OK;
}
