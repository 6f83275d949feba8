/* SPDX-License-Identifier: MIT */
/* store.c: segments and the two layouts (invariants in store.h).
 *
 * grow: a ladder of segments, each half as large again as all before it. Capacity depends on the
 * token count alone, a token never moves, and views stay valid without copies.
 * ring: one segment of window - 1 + max_block tokens, rounded up to the tile: a block append
 * overwrites only tokens that no later query sees, and a rewind by a block loses none. */
#include "state/store.h"

#include <string.h>

#define FIRST_SEG   256u
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
    side->rot = codec->rotate ? rotation_block(dim) : 0;
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
    *bytes = at;
    return true;
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
    }
    s->layout = spec->layout;
    s->window = spec->window;
    s->sinks = spec->sinks;
    if (spec->layout == KVS_LAYOUT_RING) {
        uint64_t block = spec->max_block ? spec->max_block : 1;
        s->ring_cap = round_tile((uint64_t)spec->window - 1 + block);
    } else {
        s->first_cap = reserve_tokens ? round_tile(reserve_tokens) : FIRST_SEG;
    }
}

/* Capacity of the next rung of the ladder when `cap` tokens fit so far. */
static uint64_t next_rung(const kvs__store *s, uint64_t cap)
{
    return cap == 0 ? s->first_cap : (cap / 2 + FIRST_SEG - 1) / FIRST_SEG * FIRST_SEG;
}

bool kvs__store_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes)
{
    size_t sum = 0;
    size_t one = 0;
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
    for (uint32_t i = 0; i < s->n_segs; i++) {
        sum += s->seg[i]->bytes;
    }
    return sum;
}

static uint64_t grow_cap(const kvs__store *s)
{
    const kvs__seg *last = s->n_segs > 0 ? s->seg[s->n_segs - 1] : NULL;
    return last ? (uint64_t)s->first[s->n_segs - 1] + last->cap : 0;
}

/* Would writing positions [at, end) into segment i overwrite a pinned token? */
static bool hits_pin(const kvs__store *s, uint32_t i, int64_t at, int64_t end)
{
    const kvs__seg *seg = s->seg[i];
    if (seg->refs == 1 || seg->pin_lo >= seg->pin_hi) {
        return false;
    }
    if (s->layout == KVS_LAYOUT_GROW || i > 0) {
        return at < seg->pin_hi && end > seg->pin_lo;
    }
    /* A ring's slot is shared by all positions of one remainder; an import may jump any distance.
     * The pinned slots start `ahead` slots after those of `at`. */
    int64_t cap = (int64_t)s->ring_cap;
    int64_t ahead = ((seg->pin_lo - at) % cap + cap) % cap;
    return ahead < end - at || cap - ahead < seg->pin_hi - seg->pin_lo;
}

/* Gives the store its own copy of segment i; views keep the old one. */
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
    kvs__seg_unref(ctx, old);
    return KVS_OK;
}

void kvs__store_trim(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs)
{
    while (s->n_segs > n_segs) {
        s->n_segs--;
        kvs__seg_unref(ctx, s->seg[s->n_segs]);
        s->seg[s->n_segs] = NULL;
    }
}

static kvs_status reserve_grow(kvs_ctx *ctx, kvs__store *s, uint64_t end, kvs_err *err)
{
    while (grow_cap(s) < end) {
        uint64_t cap = grow_cap(s);
        if (s->n_segs == KVS__MAX_SEGS) {
            return kvs__fail(err, KVS_E_LIMIT, "state", "%llu tokens need more than %d segments",
                             (unsigned long long)end, KVS__MAX_SEGS);
        }
        kvs__seg *seg = NULL;
        kvs_status st = seg_new(ctx, &s->fmt, next_rung(s, cap), &seg, err);
        if (st != KVS_OK) {
            return st;
        }
        s->first[s->n_segs] = (int64_t)cap;
        s->seg[s->n_segs++] = seg;
    }
    return KVS_OK;
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
    s->n_segs = n;
    return KVS_OK;
}

kvs_status kvs__store_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err)
{
    int64_t end = at + (int64_t)n;
    uint32_t had = s->n_segs;
    kvs_status st = s->layout == KVS_LAYOUT_RING ? reserve_ring(ctx, s, err)
                                                 : reserve_grow(ctx, s, (uint64_t)end, err);
    for (uint32_t i = 0; st == KVS_OK && i < s->n_segs; i++) {
        if (hits_pin(s, i, at, end)) {
            st = unshare(ctx, s, i, err);
        }
    }
    if (st != KVS_OK) {
        kvs__store_trim(ctx, s, had);
    }
    return st;
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
    s->len += (int64_t)n;
    if (s->layout == KVS_LAYOUT_RING && s->len - s->lo > (int64_t)s->ring_cap) {
        s->lo = s->len - (int64_t)s->ring_cap;
    }
}

void kvs__store_jump(kvs__store *s, int64_t at)
{
    s->lo = at;
    s->len = at;
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
    s->len = len;
    if (s->lo > len) {
        s->lo = len;
    }
}

void kvs__store_drop(kvs_ctx *ctx, kvs__store *s)
{
    for (uint32_t i = 0; i < s->n_segs; i++) {
        kvs__seg_unref(ctx, s->seg[i]);
        s->seg[i] = NULL;
    }
    s->n_segs = 0;
    s->lo = 0;
    s->len = 0;
}

bool kvs__store_holds(const kvs__store *s, int64_t pos)
{
    return pos >= 0 && pos < s->len && (pos >= s->lo || pos < (int64_t)s->sinks);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
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
        return least(run, s->seg[i]->cap - *slot);
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

void kvs__store_pin(kvs__store *dst, kvs__store *src)
{
    *dst = *src;
    for (uint32_t i = 0; i < src->n_segs; i++) {
        kvs__seg *seg = src->seg[i];
        int64_t lo = src->lo;
        int64_t hi = src->len;
        if (src->layout == KVS_LAYOUT_GROW) {
            int64_t end = src->first[i] + (int64_t)seg->cap;
            lo = src->first[i];
            hi = hi < end ? hi : end;
        } else if (i == 1) {
            lo = 0;
            hi = src->sinks;
        }
        bool none = seg->pin_lo >= seg->pin_hi;
        seg->pin_lo = none || lo < seg->pin_lo ? lo : seg->pin_lo;
        seg->pin_hi = none || hi > seg->pin_hi ? hi : seg->pin_hi;
        seg->refs++;
    }
}
