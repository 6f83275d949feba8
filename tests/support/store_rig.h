/* SPDX-License-Identifier: MIT */
/* store_rig.h: entries made from a number, put into a store and compared with what comes back.
 *
 * Entry (key, version): ids of key % 5 * 50 + key tokens that share prefixes with their neighbours, and
 * parts whose bytes follow from both numbers, some of them shared between entries. */
#ifndef KVS_TESTS_SUPPORT_STORE_RIG_H
#define KVS_TESTS_SUPPORT_STORE_RIG_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvstate/store.h"
#include "store/kvstore.h"

#define RIG_UNUSED __attribute__((unused))
#define RIG_PARTS  4
#define RIG_IDS    512
#define RIG_CHUNKS 16 /* of an entry, at most */

static const uint8_t rig_identity[32] = {1, 2, 3};

typedef struct rig_entry {
    int32_t ids[RIG_IDS];
    size_t n_ids;
    char ns[16];
    uint8_t bytes[RIG_PARTS][1200];
    kvs_store_part parts[RIG_PARTS];
    kvs_store_key key;
} rig_entry;

RIG_UNUSED static void rig_make(rig_entry *r, uint32_t key, uint32_t version)
{
    memset(r, 0, sizeof *r);
    r->n_ids = key % 5 * 50 + key % 60;
    for (size_t i = 0; i < r->n_ids; i++) {
        /* every third key leaves the common text at token 70 */
        r->ids[i] = (int32_t)(i * 7 + (i >= 70 ? key % 3 * 1000 : 0));
    }
    (void)snprintf(r->ns, sizeof r->ns, "ns%u", key / 16);
    for (uint32_t p = 0; p < RIG_PARTS; p++) {
        size_t n = p == 3 ? 0 : 300 * (p + 1) + key % 7;
        for (size_t i = 0; i < n; i++) {
            /* part 0 does not depend on the key, part 1 not on the version */
            uint32_t x = (p == 0 ? 0 : key * 31) + (p == 1 ? 0 : version * 17) + p;
            r->bytes[p][i] = (uint8_t)(x + i * (p + 3) + (i >> 5));
        }
        (void)snprintf(r->parts[p].name, sizeof r->parts[p].name, "part%u", p);
        r->parts[p].kind = p;
        r->parts[p].layer = (int32_t)p - 1;
        r->parts[p].bytes = n;
        r->parts[p].data = r->bytes[p];
        r->parts[p].chunk_bytes = 256;
    }
    r->key = (kvs_store_key){rig_identity, r->ns, strlen(r->ns), r->ids, r->n_ids};
}

/* A part that is made when it is asked for; `user`: its bytes. */
RIG_UNUSED static void rig_fill(void *user, uint64_t offset, size_t bytes, void *dst)
{
    memcpy(dst, (const uint8_t *)user + offset, bytes);
}

RIG_UNUSED static void rig_done(void *user, kvs_status st, kvs_entry entry, const kvs_err *err)
{
    (void)entry;
    (void)err;
    *(kvs_status *)user = st;
}

/* `became` gets the status of the save itself, by the time a flush returns. May be NULL. `known`
 * [RIG_CHUNKS] is what earlier calls for this key and version learned; NULL: nothing. Where it is given
 * and the call is not durable, a flush must come before the next one. */
RIG_UNUSED static kvs_status rig_put_known(kvs_store *s, uint32_t key, uint32_t version,
                                           uint32_t flags, kvs_status *became, kvs__known *known,
                                           kvs_err *err)
{
    static _Thread_local rig_entry r;
    static _Thread_local kvs__known *list[RIG_CHUNKS];
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    rig_make(&r, key, version);
    for (uint32_t p = 0; p < RIG_PARTS; p++) {
        if ((version + p) % 2 == 1) { /* every other part: both forms give the same blocks */
            r.parts[p].data = NULL;
            r.parts[p].fill = rig_fill;
            r.parts[p].fill_user = r.bytes[p];
        }
    }
    o.flags = flags;
    o.kind = key % 3;
    o.cost = key;
    o.entry_flags = version;
    o.done = became ? rig_done : NULL;
    o.done_user = became;
    if (!known) {
        return kvs_store_put(s, &r.key, r.parts, RIG_PARTS, &o, err);
    }
    o.flags |= KVS_PUT_BORROW;
    for (uint32_t i = 0; i < RIG_CHUNKS; i++) {
        list[i] = (key + i) % 5 == 0 ? NULL : &known[i];
    }
    return kvs__store_put_known(s, &r.key, r.parts, RIG_PARTS, &o, list, err);
}

RIG_UNUSED static kvs_status rig_put_told(kvs_store *s, uint32_t key, uint32_t version,
                                          uint32_t flags, kvs_status *became, kvs_err *err)
{
    return rig_put_known(s, key, version, flags, became, NULL, err);
}

RIG_UNUSED static kvs_status rig_put(kvs_store *s, uint32_t key, uint32_t version, uint32_t flags,
                                     kvs_err *err)
{
    return rig_put_told(s, key, version, flags, NULL, err);
}

/* Version found under a key: -1 a miss, -2 wrong content, -3 it could not be read. */
RIG_UNUSED static int rig_get(kvs_store *s, uint32_t key)
{
    static _Thread_local rig_entry r;
    static _Thread_local uint8_t out[RIG_PARTS][1200];
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    kvs_store_buf bufs[RIG_PARTS];
    rig_make(&r, key, 0);
    if (kvs_store_find(s, &r.key, NULL, &h, NULL) != KVS_OK) {
        return -1;
    }
    uint32_t version = h.info.flags;
    rig_make(&r, key, version);
    int found = (int)version;
    for (size_t p = 0; p < RIG_PARTS; p++) {
        kvs_store_part part;
        if (kvs_store_entry_part(s, h.entry, p, &part) != KVS_OK ||
            part.bytes != r.parts[p].bytes || strcmp(part.name, r.parts[p].name) != 0 ||
            part.kind != p || part.layer != (int32_t)p - 1) {
            found = -2;
        }
        bufs[p] = (kvs_store_buf){p, 0, r.parts[p].bytes, out[p]};
    }
    memset(out, 0, sizeof out);
    if (found >= 0) {
        kvs_status st = kvs_store_get(s, h.entry, bufs, RIG_PARTS, NULL);
        if (st != KVS_OK) {
            found = -3;
        }
        for (size_t p = 0; p < RIG_PARTS && found >= 0; p++) {
            if (memcmp(out[p], r.bytes[p], (size_t)r.parts[p].bytes) != 0) {
                found = -2;
            }
        }
    }
    if (h.n_common != r.n_ids || kvs_store_unpin(s, h.entry) != KVS_OK) {
        found = -2;
    }
    return found;
}

/* The tables from scratch: I3 and I5 of kvstore.h. NULL, or what is wrong. */
RIG_UNUSED static const char *rig_audit(kvs_store *s)
{
    const char *bad = NULL;
    uint64_t disk = 0;
    uint64_t *live = calloc(s->segs_used + 1, sizeof *live);
    uint32_t *refs = calloc(s->blocks_used + 1, sizeof *refs);
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->slots_used; i++) {
        const kvs__entry *e = s->slots[i].e;
        for (uint32_t k = 0; e && k < e->head.n_chunks; k++) {
            refs[e->chunks[k]]++;
        }
        disk += e && e->listed ? e->head.file_bytes : 0;
        bad = e && !e->listed && e->pins == 0 ? "a dropped entry without pins" : bad;
    }
    for (size_t i = 0; i < s->blocks_used; i++) {
        const kvs__block *b = &s->blocks[i];
        if (b->used && b->refs != refs[i]) {
            bad = "a block's references";
        }
        if (b->used && b->seg != KVS__NO_SEG && b->refs > 0) {
            live[b->seg] += b->bytes;
        }
        bad = b->used && b->seg == KVS__NO_SEG ? "a block in no segment" : bad;
        bad = !b->used && refs[i] > 0 ? "a reference to a free block" : bad;
    }
    for (size_t i = 0; i < s->segs_used; i++) {
        bad = s->segs[i].id != 0 && s->segs[i].live_bytes != live[i] ? "live bytes" : bad;
        bad = s->segs[i].readers != 0 ? "a reader was left in a segment" : bad;
        disk += s->segs[i].id != 0 ? s->segs[i].file_bytes : 0;
    }
    bad = disk != s->stats.disk_bytes ? "bytes on disk" : bad;
    (void)pthread_mutex_unlock(&s->lock);
    free(live);
    free(refs);
    return bad;
}

#endif
