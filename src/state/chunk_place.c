/* SPDX-License-Identifier: MIT */
/* chunk_place.c: where the tokens of a chunk lie, and what is asked for ahead of its use. */
#include "state/chunk_priv.h"

#define FAR_ELEMENTS 32768u /* of a head that are asked for ahead where storage is in pieces */
#define AHEAD_BYTES  4096u  /* of a plane that are asked for ahead of their use */

uint64_t kvs__chunk_locate(const kvs__job *j, int64_t pos, uint64_t most, const kvs__seg **seg,
                           uint64_t *slot)
{
    const kvs__store *s = j->tail && pos >= j->tail->lo ? j->tail : j->s;
    return kvs__store_locate(s, pos, most, seg, slot);
}

kvs__planes kvs__k_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t tile)
{
    const kvs__side *k = &s->fmt.side[KVS__K];
    kvs__planes p = {kvs__k_tile_at(s, seg, 0, head, tile), NULL, NULL, 0, 0};
    if (k->shape.bits) {
        p.scale = kvs__k_tile_at(s, seg, 1, head, tile);
        p.bias = kvs__k_tile_at(s, seg, 2, head, tile);
    }
    return p;
}

kvs__planes kvs__v_planes(const kvs__store *s, const kvs__seg *seg, uint32_t head, uint64_t slot)
{
    kvs__planes p = {kvs__v_row_at(s, seg, 0, head, slot), NULL, NULL, 0, 0};
    if (s->fmt.side[KVS__V].shape.bits) {
        p.scale = kvs__v_row_at(s, seg, 1, head, slot);
        p.bias = kvs__v_row_at(s, seg, 2, head, slot);
    }
    return p;
}

void kvs__prefetch(const kvs__side *side, const void *data, size_t ahead, size_t n)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    uintptr_t at = ((uintptr_t)data + ahead * row) / KVS__CACHE_LINE * KVS__CACHE_LINE;
    uintptr_t end = (uintptr_t)data + (ahead + n) * row;
    for (; at < end; at += KVS__CACHE_LINE) {
        __builtin_prefetch((const void *)at, 0, 3);
    }
}

size_t kvs__ahead_of(const kvs__side *side)
{
    size_t row = (size_t)side->n_units[0] * side->unit_bytes[0];
    size_t tiles = AHEAD_BYTES / (row * KVS__TILE);
    return (tiles < 1 ? 1 : tiles) * KVS__TILE;
}

uint64_t kvs__far_positions(const kvs__side *side)
{
    uint32_t n = FAR_ELEMENTS / side->shape.dim;
    return n < KVS__V_ROWS ? KVS__V_ROWS : n / KVS__V_ROWS * KVS__V_ROWS;
}

uint64_t kvs__look_most(const kvs__side *side)
{
    return KVS__CHUNK + kvs__far_positions(side) + 1;
}

/* The position that is read `far` positions after pos, and its head: behind the last of a head comes
 * the first of the next. False: none. */
static bool far_place(const kvs__store *s, uint64_t far, int64_t *pos, uint32_t *head)
{
    *pos += (int64_t)far;
    if (*pos >= s->len) {
        *pos += s->lo - s->len;
        *head += 1;
    }
    return *head < s->fmt.n_heads && kvs__store_holds(s, *pos);
}

void kvs__look_ahead(const kvs__job *j, int side, uint32_t head, int64_t pos, uint64_t in_row,
                     kvs__planes *p)
{
    const kvs__store *s = j->s;
    uint64_t far = kvs__far_positions(&s->fmt.side[side]);
    if (far < in_row || j->tail) {
        return;
    }
    if (!far_place(s, far, &pos, &head)) {
        p->far = KVS__CACHE_LINE; /* on its way already: costs nothing */
        p->far_unit = KVS__CACHE_LINE;
        return;
    }
    const kvs__seg *seg = NULL;
    uint64_t slot = 0;
    (void)kvs__store_locate(s, pos, 1, &seg, &slot);
    kvs__planes f = side == KVS__K ? kvs__k_planes(s, seg, head, slot / KVS__TILE)
                                   : kvs__v_planes(s, seg, head, slot);
    p->far = (size_t)((uintptr_t)f.data - (uintptr_t)p->data);
    p->far_unit = (size_t)((uintptr_t)f.scale - (uintptr_t)p->scale);
    if (side == KVS__V && f.scale) { /* the kernels leave those of rows to the hardware */
        const kvs__side *v = &s->fmt.side[KVS__V];
        size_t bytes = (size_t)KVS__V_ROWS * v->n_units[1] * v->unit_bytes[1];
        for (size_t at = 0; at < bytes; at += KVS__CACHE_LINE) {
            __builtin_prefetch((const unsigned char *)f.scale + at, 0, 3);
            __builtin_prefetch((const unsigned char *)f.bias + at, 0, 3);
        }
    }
}
