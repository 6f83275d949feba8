/* SPDX-License-Identifier: MIT */
/* idmap.c: open addressing with linear probing, at most 2/3 full; removal shifts the run back, so
 * that there are no tombstones and a table in steady use does not slow down. */
#include "store/idmap.h"

#include <string.h>

static size_t home(const kvs__idmap *m, uint64_t hash)
{
    return (size_t)((hash ^ hash >> 32) * 0x9e3779b97f4a7c15u >> 20) & (m->cap - 1);
}

static void place(kvs__idmap *m, uint64_t hash, uint32_t value)
{
    size_t i = home(m, hash);
    while (m->slots[i].value != KVS__NONE) {
        i = (i + 1) & (m->cap - 1);
    }
    m->slots[i] = (kvs__idmap_slot){hash, value, 0};
}

kvs_status kvs__idmap_reserve(kvs_ctx *ctx, kvs__idmap *m, size_t more, kvs_err *err)
{
    size_t want = 0;
    if (!kvs__add_size(m->n, more, &want) || want > SIZE_MAX / 64) {
        return kvs__nomem(err, "store", SIZE_MAX);
    }
    size_t cap = m->cap ? m->cap : 16;
    while (cap / 3 * 2 < want) {
        cap *= 2;
    }
    if (cap == m->cap) {
        return KVS_OK;
    }
    kvs__idmap bigger = {kvs__alloc(ctx, cap * sizeof(kvs__idmap_slot)), cap, m->n};
    if (!bigger.slots) {
        return kvs__nomem(err, "store", cap * sizeof(kvs__idmap_slot));
    }
    memset(bigger.slots, 0xff, cap * sizeof(kvs__idmap_slot));
    for (size_t i = 0; i < m->cap; i++) {
        if (m->slots[i].value != KVS__NONE) {
            place(&bigger, m->slots[i].hash, m->slots[i].value);
        }
    }
    kvs__idmap_free(ctx, m);
    *m = bigger;
    return KVS_OK;
}

void kvs__idmap_free(kvs_ctx *ctx, kvs__idmap *m)
{
    kvs__free(ctx, m->slots, m->cap * sizeof(kvs__idmap_slot));
    *m = (kvs__idmap){NULL, 0, 0};
}

void kvs__idmap_insert(kvs__idmap *m, uint64_t hash, uint32_t value)
{
    KVS_ASSERT(m->n < m->cap / 3 * 2);
    place(m, hash, value);
    m->n++;
}

void kvs__idmap_remove(kvs__idmap *m, uint64_t hash, uint32_t value)
{
    size_t i = home(m, hash);
    while (m->slots[i].hash != hash || m->slots[i].value != value) {
        if (KVS_NEVER(m->slots[i].value == KVS__NONE)) {
            return;
        }
        i = (i + 1) & (m->cap - 1);
    }
    m->n--;
    for (size_t hole = i;;) {
        i = (i + 1) & (m->cap - 1);
        if (m->slots[i].value == KVS__NONE) {
            m->slots[hole].value = KVS__NONE;
            return;
        }
        /* may move to the hole unless its home lies cyclically in (hole, i] */
        size_t from_home = (i - home(m, m->slots[i].hash)) & (m->cap - 1);
        if (from_home >= ((i - hole) & (m->cap - 1))) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
}

uint32_t kvs__idmap_next(const kvs__idmap *m, uint64_t hash, size_t *at)
{
    if (m->cap == 0) {
        return KVS__NONE;
    }
    size_t i = *at == SIZE_MAX ? home(m, hash) : (*at + 1) & (m->cap - 1);
    for (; m->slots[i].value != KVS__NONE; i = (i + 1) & (m->cap - 1)) {
        if (m->slots[i].hash == hash) {
            *at = i;
            return m->slots[i].value;
        }
    }
    return KVS__NONE;
}
