/* SPDX-License-Identifier: MIT */
/* table.c: the tables in memory: blocks with their reference counts, segments, entries with the
 * list by last use. Keeps I3 and I5 of kvstore.h. Does no input or output. All with `lock` held. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

static kvs_status grow(kvs_store *s, void **array, size_t *cap, size_t used, size_t more,
                       size_t each, kvs_err *err)
{
    size_t want = 0;
    if (!kvs__add_size(used, more, &want) || want >= KVS__NONE - 1) {
        return kvs__fail(err, KVS_E_LIMIT, "store", "a table of the index is full");
    }
    if (want <= *cap) {
        return KVS_OK;
    }
    char *p = kvs__grow(s->ctx, *array, cap, used, want, each);
    if (!p) {
        return kvs__nomem(err, "store", more * each);
    }
    memset(p + used * each, 0, (*cap - used) * each);
    *array = p;
    return KVS_OK;
}

void kvs__reason(kvs_store *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->stats.reason, sizeof s->stats.reason, fmt, ap);
    va_end(ap);
}

/* ---- blocks */

kvs_status kvs__blocks_reserve(kvs_store *s, size_t more, kvs_err *err)
{
    void *p = s->blocks;
    kvs_status st = kvs__idmap_reserve(s->ctx, &s->shas, more, err);
    if (st == KVS_OK && s->blocks_free < more) {
        st = grow(s, &p, &s->blocks_cap, s->blocks_used, more - s->blocks_free, sizeof *s->blocks,
                  err);
        s->blocks = p;
    }
    return st;
}

uint32_t kvs__block_find(const kvs_store *s, const uint8_t sha[32], uint64_t bytes)
{
    size_t at = SIZE_MAX;
    for (;;) {
        uint32_t i = kvs__idmap_next(&s->shas, kvs__head64(sha), &at);
        if (i == KVS__NONE) {
            return i;
        }
        const kvs__block *b = &s->blocks[i];
        if (!b->bad && b->bytes == bytes && memcmp(b->sha, sha, 32) == 0) {
            return i;
        }
    }
}

uint32_t kvs__block_new(kvs_store *s, const uint8_t sha[32], uint32_t bytes, uint64_t xxh)
{
    uint32_t i = s->free_block;
    if (i != KVS__NONE) {
        s->free_block = s->blocks[i].next;
        s->blocks_free--;
    } else {
        KVS_ASSERT(s->blocks_used < s->blocks_cap);
        i = (uint32_t)s->blocks_used++;
    }
    kvs__block *b = &s->blocks[i];
    memset(b, 0, sizeof *b);
    memcpy(b->sha, sha, 32);
    b->bytes = bytes;
    b->xxh = xxh;
    b->seg = KVS__NO_SEG;
    b->next = KVS__NONE;
    b->used = true;
    kvs__idmap_insert(&s->shas, kvs__head64(sha), i);
    s->stats.blocks++;
    return i;
}

void kvs__block_ref(kvs_store *s, uint32_t block)
{
    kvs__block *b = &s->blocks[block];
    if (b->refs++ == 0 && b->seg != KVS__NO_SEG) {
        s->segs[b->seg].live_bytes += b->bytes;
    }
}

void kvs__block_unref(kvs_store *s, uint32_t block)
{
    kvs__block *b = &s->blocks[block];
    KVS_ASSERT(b->refs > 0);
    if (--b->refs == 0 && b->seg != KVS__NO_SEG) {
        s->segs[b->seg].live_bytes -= b->bytes;
    }
}

void kvs__block_drop(kvs_store *s, uint32_t block)
{
    kvs__block *b = &s->blocks[block];
    KVS_ASSERT(b->refs == 0 && b->used);
    kvs__idmap_remove(&s->shas, kvs__head64(b->sha), block);
    b->used = false;
    b->next = s->free_block;
    s->free_block = block;
    s->blocks_free++;
    s->stats.blocks--;
}

void kvs__block_place(kvs_store *s, uint32_t block, uint32_t seg, uint64_t at)
{
    kvs__block *b = &s->blocks[block];
    KVS_ASSERT(b->seg == KVS__NO_SEG);
    b->seg = seg;
    b->at = at;
    b->next = s->segs[seg].head;
    s->segs[seg].head = block;
    if (b->refs > 0) {
        s->segs[seg].live_bytes += b->bytes;
    }
}

/* ---- segments */

kvs_status kvs__segs_reserve(kvs_store *s, size_t more, kvs_err *err)
{
    void *p = s->segs;
    kvs_status st = grow(s, &p, &s->segs_cap, s->segs_used, more, sizeof *s->segs, err);
    s->segs = p;
    return st;
}

uint32_t kvs__seg_new(kvs_store *s, uint64_t id, uint64_t file_bytes)
{
    size_t i = 0;
    while (i < s->segs_used && s->segs[i].id != 0) {
        i++;
    }
    KVS_ASSERT(i < s->segs_cap);
    s->segs_used = i == s->segs_used ? i + 1 : s->segs_used;
    s->segs[i] = (kvs__segment){id, file_bytes, 0, KVS__NONE, 0, false, false};
    s->stats.segments++;
    s->stats.disk_bytes += file_bytes;
    if (id >= s->next_seg) {
        s->next_seg = id + 1;
    }
    return (uint32_t)i;
}

void kvs__seg_drop(kvs_store *s, uint32_t seg)
{
    kvs__segment *g = &s->segs[seg];
    KVS_ASSERT(g->live_bytes == 0);
    for (uint32_t b = g->head; b != KVS__NONE;) {
        uint32_t next = s->blocks[b].next;
        kvs__block_drop(s, b);
        b = next;
    }
    s->stats.segments--;
    s->stats.disk_bytes -= g->file_bytes;
    *g = (kvs__segment){0, 0, 0, KVS__NONE, 0, false, false};
}

void kvs__seg_path(const kvs_store *s, uint64_t id, char out[KVS__PATH_MAX])
{
    char name[32];
    (void)snprintf(name, sizeof name, "%016llx.kvb", (unsigned long long)id);
    (void)kvs__path(out, s->blocks_dir, name);
}

/* ---- entries */

void kvs__entry_name(const uint8_t key[32], char out[KVS__ENTRY_NAME + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 32; i++) {
        out[2 * i] = digits[key[i] >> 4];
        out[2 * i + 1] = digits[key[i] & 15];
    }
    memcpy(out + 64, ".kve", 5);
}

kvs_status kvs__entries_reserve(kvs_store *s, uint32_t n_levels, kvs_err *err)
{
    void *p = s->slots;
    kvs_status st = kvs__idmap_reserve(s->ctx, &s->keys, 1, err);
    if (st == KVS_OK) {
        st = kvs__chain_reserve(s->ctx, &s->chain, n_levels, err);
    }
    if (st == KVS_OK && s->slots_free == 0) {
        st = grow(s, &p, &s->slots_cap, s->slots_used, 1, sizeof *s->slots, err);
        s->slots = p;
    }
    return st;
}

kvs__entry *kvs__entry_new(kvs_store *s, const kvs__entry_head *head, kvs_err *err)
{
    uint32_t n_levels = kvs__chain_levels(head->n_ids);
    size_t at_links = (sizeof(kvs__entry) + 15) / 16 * 16;
    size_t at_parts = (at_links + (size_t)n_levels * sizeof(kvs__chain_link) + 7) / 8 * 8;
    size_t at_chunks = at_parts + (size_t)head->n_parts * sizeof(kvs__part);
    size_t at_ids = at_chunks + (size_t)head->n_chunks * sizeof(uint32_t);
    size_t at_ns = at_ids + (size_t)head->n_ids * sizeof(int32_t);
    size_t bytes = at_ns + head->ns_bytes;
    char *p = kvs__alloc(s->ctx, bytes);
    if (!p) {
        (void)kvs__nomem(err, "store", bytes);
        return NULL;
    }
    kvs__entry *e = (kvs__entry *)(void *)p;
    memset(e, 0, sizeof *e);
    e->head = *head;
    e->alloc_bytes = bytes;
    e->n_levels = n_levels;
    e->links = (kvs__chain_link *)(void *)(p + at_links);
    e->parts = (kvs__part *)(void *)(p + at_parts);
    e->chunks = (uint32_t *)(void *)(p + at_chunks);
    e->ids = (int32_t *)(void *)(p + at_ids);
    e->ns = (uint8_t *)p + at_ns;
    return e;
}

void kvs__entry_free(kvs_store *s, kvs__entry *e)
{
    kvs__free(s->ctx, e, e ? e->alloc_bytes : 0);
}

static void lru_out(kvs_store *s, kvs__entry *e)
{
    if (e->older != KVS__NONE) {
        s->slots[e->older].e->newer = e->newer;
    } else {
        s->oldest = e->newer;
    }
    if (e->newer != KVS__NONE) {
        s->slots[e->newer].e->older = e->older;
    } else {
        s->newest = e->older;
    }
}

/* After the entry with the largest tick that is not larger: in order at open, newest otherwise. */
static void lru_in(kvs_store *s, kvs__entry *e)
{
    uint32_t slot = kvs__slot_of(e->id);
    uint32_t older = s->newest;
    while (older != KVS__NONE && s->slots[older].e->tick > e->tick) {
        older = s->slots[older].e->older;
    }
    e->older = older;
    e->newer = older == KVS__NONE ? s->oldest : s->slots[older].e->newer;
    if (older != KVS__NONE) {
        s->slots[older].e->newer = slot;
    } else {
        s->oldest = slot;
    }
    if (e->newer != KVS__NONE) {
        s->slots[e->newer].e->older = slot;
    } else {
        s->newest = slot;
    }
}

void kvs__entry_info_of(const kvs__entry *e, kvs_entry_info *out)
{
    kvs_entry_info i = KVS_ENTRY_INFO_INIT;
    i.entry = e->id;
    i.bytes = e->head.data_bytes;
    i.file_bytes = e->head.file_bytes;
    i.cost = e->head.cost;
    i.created_ms = e->head.created_ms;
    i.last_use = e->tick;
    i.uses = e->uses;
    i.kind = e->head.kind;
    i.priority = e->head.priority;
    i.flags = e->head.flags;
    i.n_ids = e->head.n_ids;
    i.n_parts = e->head.n_parts;
    i.pins = e->pins;
    i.foreign = e->foreign;
    memcpy(i.identity, e->head.identity, 32);
    memcpy(i.key, e->head.key, 32);
    *out = i;
}

void kvs__entry_list(kvs_store *s, kvs__entry *e)
{
    uint32_t slot = s->free_slot;
    if (slot != KVS__NONE) {
        s->free_slot = s->slots[slot].next;
        s->slots_free--;
    } else {
        KVS_ASSERT(s->slots_used < s->slots_cap);
        slot = (uint32_t)s->slots_used++;
    }
    s->slots[slot].e = e;
    e->id = (uint64_t)++s->slots[slot].generation << 32 | (slot + 1);
    e->listed = true;
    if (e->tick == 0) {
        e->tick = ++s->tick;
    }
    kvs__idmap_insert(&s->keys, kvs__head64(e->head.key), slot);
    s->stats.disk_bytes += e->head.file_bytes;
    if (e->foreign) {
        s->stats.foreign++;
        s->stats.foreign_bytes += e->head.data_bytes;
        return;
    }
    s->stats.entries++;
    lru_in(s, e);
    kvs__chain_hash start = kvs__chain_start(e->head.identity, e->ns, e->head.ns_bytes);
    e->tail = kvs__chain_insert(&s->chain, slot, start, e->ids, e->head.n_ids);
    if (s->policy.add) {
        kvs_entry_info info;
        kvs__entry_info_of(e, &info);
        s->policy.add(s->policy.user, &info);
    }
}

static void release(kvs_store *s, kvs__entry *e)
{
    uint32_t slot = kvs__slot_of(e->id);
    for (uint32_t i = 0; i < e->head.n_chunks; i++) {
        kvs__block_unref(s, e->chunks[i]);
    }
    s->slots[slot].e = NULL;
    s->slots[slot].next = s->free_slot;
    s->free_slot = slot;
    s->slots_free++;
    kvs__entry_free(s, e);
}

void kvs__entry_drop(kvs_store *s, uint32_t slot)
{
    kvs__entry *e = s->slots[slot].e;
    e->listed = false;
    kvs__idmap_remove(&s->keys, kvs__head64(e->head.key), slot);
    s->stats.disk_bytes -= e->head.file_bytes;
    if (e->foreign) {
        s->stats.foreign--;
        s->stats.foreign_bytes -= e->head.data_bytes;
    } else {
        s->stats.entries--;
        lru_out(s, e);
        kvs__chain_remove(&s->chain, slot, e->n_levels, e->tail);
        if (s->policy.drop) {
            s->policy.drop(s->policy.user, e->id);
        }
    }
    if (e->pins == 0) {
        release(s, e);
    }
}

uint32_t kvs__entry_by_key(const kvs_store *s, const uint8_t key[32])
{
    size_t at = SIZE_MAX;
    for (;;) {
        uint32_t i = kvs__idmap_next(&s->keys, kvs__head64(key), &at);
        if (i == KVS__NONE || memcmp(s->slots[i].e->head.key, key, 32) == 0) {
            return i;
        }
    }
}

kvs__entry *kvs__entry_of(const kvs_store *s, kvs_entry id)
{
    uint32_t slot = kvs__slot_of(id);
    if (slot >= s->slots_used || !s->slots[slot].e || s->slots[slot].e->id != id) {
        return NULL;
    }
    return s->slots[slot].e;
}

void kvs__entry_use(kvs_store *s, kvs__entry *e)
{
    if (!e->listed || e->foreign) {
        return;
    }
    lru_out(s, e);
    e->tick = ++s->tick;
    e->uses += e->uses < UINT32_MAX;
    lru_in(s, e);
    s->touches++;
    if (s->policy.use) {
        kvs_entry_info info;
        kvs__entry_info_of(e, &info);
        s->policy.use(s->policy.user, &info);
    }
}

void kvs__entry_unpin(kvs_store *s, kvs__entry *e)
{
    KVS_ASSERT(e->pins > 0);
    if (--e->pins == 0 && !e->listed) {
        release(s, e);
    }
}

void kvs__entry_recall(kvs_store *s, uint32_t slot, uint64_t tick, uint32_t uses)
{
    kvs__entry *e = s->slots[slot].e;
    s->tick = tick > s->tick ? tick : s->tick;
    e->uses = uses;
    if (!e->foreign) {
        lru_out(s, e);
        e->tick = tick;
        lru_in(s, e);
    }
}
