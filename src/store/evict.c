/* SPDX-License-Identifier: MIT */
/* evict.c: keeps the directory within its limit: forgets entries, unlinks dead segments, rewrites
 * sparse ones; moves damaged files aside; keeps the facts of use. All with `role` held.
 *
 * Order is everything here (I2): entry files are unlinked and that is flushed before a segment goes;
 * a rewritten segment is durable before the one it replaces goes. A crash in between leaves blocks
 * that nothing refers to, which the next open reclaims. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

#define USES_HEAD  32u
#define USES_REC   48u
#define USES_LIMIT (64u << 20) /* bytes of the file that are read */

static const char uses_magic[8] = {'K', 'V', 'S', 'U', 'S', 'E', 'S', '1'};

/* ---- forgetting */

kvs_status kvs__flush_entries(kvs_store *s, kvs_err *err)
{
    if (!s->entries_dirty) {
        return KVS_OK;
    }
    int e = s->v->sync_dir(s->v, s->entries_dir);
    if (e != 0) {
        return kvs__io(err, e, "flush", s->entries_dir);
    }
    s->entries_dirty = false;
    return KVS_OK;
}

kvs_status kvs__forget(kvs_store *s, kvs_entry id, kvs_err *err)
{
    char name[KVS__ENTRY_NAME + 1];
    char path[KVS__PATH_MAX];
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, id);
    if (!e || !e->listed) {
        (void)pthread_mutex_unlock(&s->lock);
        return kvs__fail(err, KVS_E_NOTFOUND, "store", "the entry is gone");
    }
    kvs__entry_name(e->head.key, name);
    e->pins++; /* it stays while its file goes */
    (void)pthread_mutex_unlock(&s->lock);
    (void)kvs__path(path, s->entries_dir, name);
    int rc = s->v->unlink(s->v, path);
    s->entries_dirty |= rc == 0;
    (void)pthread_mutex_lock(&s->lock);
    bool gone = rc == 0 || rc == ENOENT;
    if (gone && e->listed) {
        kvs__entry_drop(s, kvs__slot_of(id));
    }
    kvs__entry_unpin(s, e);
    (void)pthread_mutex_unlock(&s->lock);
    return gone ? KVS_OK : kvs__io(err, rc, "unlink", path);
}

/* One dead segment out of the tables, or marked for its last reader; false: none is left. */
static bool take_dead(kvs_store *s, char path[KVS__PATH_MAX], uint64_t *bytes)
{
    bool found = false;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->segs_used && !found; i++) {
        kvs__segment *g = &s->segs[i];
        if (g->id == 0 || g->live_bytes > 0 || g->doomed || s->gc_blocked) {
            continue;
        }
        if (g->readers > 0) {
            continue; /* a compaction's; its reader unlinks it */
        }
        kvs__seg_path(s, g->id, path);
        *bytes = g->file_bytes;
        kvs__seg_drop(s, (uint32_t)i);
        found = true;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return found;
}

uint64_t kvs__reclaim(kvs_store *s)
{
    char path[KVS__PATH_MAX];
    uint64_t bytes = 0;
    uint64_t freed = 0;
    if (s->read_only || kvs__flush_entries(s, NULL) != KVS_OK) {
        return 0;
    }
    while (take_dead(s, path, &bytes)) {
        int e = s->v->unlink(s->v, path);
        if (e == 0 || e == ENOENT) {
            freed += bytes;
        }
    }
    return freed;
}

/* ---- choosing */

static int evictable(const void *arg, kvs_entry id)
{
    const kvs__entry *e = kvs__entry_of(arg, id);
    return e && e->listed && !e->foreign && e->pins == 0;
}

static kvs_entry choose_oldest(const kvs_store *s)
{
    for (uint32_t i = s->oldest; i != KVS__NONE; i = s->slots[i].e->newer) {
        if (s->slots[i].e->pins == 0) {
            return s->slots[i].e->id;
        }
    }
    return 0;
}

static kvs_entry choose(kvs_store *s, uint64_t bytes)
{
    kvs_entry id =
        s->policy.choose ? s->policy.choose(s->policy.user, bytes, evictable, s) : choose_oldest(s);
    return id != 0 && evictable(s, id) ? id : 0;
}

uint64_t kvs__live_bytes(const kvs_store *s)
{
    uint64_t live = 0;
    for (size_t i = 0; i < s->segs_used; i++) {
        live += s->segs[i].id != 0 ? s->segs[i].live_bytes : 0;
    }
    return live;
}

/* Bytes too many, 0: it fits. */
static uint64_t excess(kvs_store *s, uint64_t need)
{
    uint64_t max = s->opts.max_bytes;
    uint64_t want = s->stats.disk_bytes + need;
    return max == 0 || want <= max ? 0 : want - max;
}

kvs_status kvs__make_room(kvs_store *s, uint64_t need, kvs_err *err)
{
    bool compacting = true;
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        uint64_t over = excess(s, need);
        bool blocked = s->gc_blocked;
        (void)pthread_mutex_unlock(&s->lock);
        if (over == 0) {
            return KVS_OK;
        }
        if (blocked) { /* evicting would lose entries and free nothing (I4) */
            return kvs__fail(err, KVS_E_LIMIT, "store",
                             "%llu bytes do not fit, and a file that can't be understood keeps "
                             "blocks from being reclaimed",
                             (unsigned long long)need);
        }
        if (kvs__reclaim(s) > 0) {
            continue;
        }
        if (compacting && kvs__compact_one(s, 2, NULL) == KVS_OK) {
            continue;
        }
        compacting = false;
        (void)pthread_mutex_lock(&s->lock);
        kvs_entry victim = choose(s, over);
        s->stats.evicted += victim != 0;
        (void)pthread_mutex_unlock(&s->lock);
        if (victim == 0) {
            if (kvs__compact_one(s, UINT32_MAX, NULL) == KVS_OK) {
                continue;
            }
            return kvs__fail(err, KVS_E_LIMIT, "store",
                             "%llu bytes do not fit: nothing more can be evicted",
                             (unsigned long long)need);
        }
        kvs_status st = kvs__forget(s, victim, err);
        if (st != KVS_OK) {
            return st;
        }
        compacting = true;
    }
}

/* ---- compaction */

typedef struct move {
    uint32_t block;
    kvs__block facts;
    kvs__block_rec rec;
} move;

static uint32_t sparsest(const kvs_store *s, uint32_t part)
{
    uint32_t best = KVS__NO_SEG;
    uint64_t most = 0;
    for (size_t i = 0; i < s->segs_used; i++) {
        const kvs__segment *g = &s->segs[i];
        if (g->id == 0 || g->doomed || g->stuck || g->live_bytes == 0) {
            continue;
        }
        uint64_t frame = KVS__SEG_HEAD;
        for (uint32_t b = g->head; b != KVS__NONE; b = s->blocks[b].next) {
            frame += s->blocks[b].refs > 0 ? KVS__BLOCK_REC : 0;
        }
        uint64_t dead =
            g->file_bytes - g->live_bytes > frame ? g->file_bytes - g->live_bytes - frame : 0;
        if (dead > most && dead >= g->file_bytes / part) {
            best = (uint32_t)i;
            most = dead;
        }
    }
    return best;
}

/* The live blocks of a segment, which is then counted into; KVS_NO: there is nothing to do. */
static kvs_status pick(kvs_store *s, uint32_t part, uint32_t *seg, move **moves, size_t *n,
                       kvs_err *err)
{
    kvs_status st = KVS_NO;
    (void)pthread_mutex_lock(&s->lock);
    *seg = s->gc_blocked || s->read_only ? KVS__NO_SEG : sparsest(s, part);
    if (*seg != KVS__NO_SEG) {
        kvs__segment *g = &s->segs[*seg];
        *n = 0;
        for (uint32_t b = g->head; b != KVS__NONE; b = s->blocks[b].next) {
            *n += s->blocks[b].refs > 0;
        }
        uint64_t need = g->live_bytes + KVS__SEG_HEAD + (uint64_t)KVS__BLOCK_REC * *n;
        st = excess(s, need) > 0
                 ? kvs__fail(err, KVS_E_LIMIT, "store", "no room to rewrite a segment")
                 : KVS_OK;
        move *m = st == KVS_OK ? kvs__calloc(s->ctx, *n, sizeof *m) : NULL;
        if (st == KVS_OK && !m) {
            st = kvs__nomem(err, "store", *n * sizeof *m);
        }
        size_t i = 0;
        for (uint32_t b = g->head; b != KVS__NONE && m; b = s->blocks[b].next) {
            if (s->blocks[b].refs > 0) {
                m[i].block = b;
                m[i++].facts = s->blocks[b];
            }
        }
        *moves = m;
        if (st == KVS_OK) {
            st = kvs__segs_reserve(s, 1, err);
        }
        if (st == KVS_OK) {
            s->segs[*seg].readers++;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

static kvs_status copy_blocks(kvs_store *s, uint64_t id, const move *moves, size_t n,
                              kvs__seg_out *o, kvs_err *err)
{
    kvs__file *f = NULL;
    kvs_status st = kvs__seg_open(s, id, &f, err);
    if (st != KVS_OK) {
        return st;
    }
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        most = moves[i].facts.bytes > most ? moves[i].facts.bytes : most;
    }
    void *buf = kvs__alloc(s->ctx, most);
    st = buf ? KVS_OK : kvs__nomem(err, "store", most);
    for (size_t i = 0; i < n && st == KVS_OK; i++) {
        const kvs__block *b = &moves[i].facts;
        kvs__block_rec r = {{0}, 0, b->bytes, b->xxh};
        memcpy(r.sha, b->sha, 32);
        /* a block that does not verify stays where it is: its readers find out */
        st = kvs__block_read(s, b, f, buf, false, err);
        if (st == KVS_OK) {
            st = kvs__seg_add(s, o, moves[i].block, &r, buf, err);
        }
    }
    kvs__free(s->ctx, buf, most);
    s->v->close(s->v, f);
    return st;
}

/* Dead blocks go, live ones belong to the fresh segment. */
static void moved(kvs_store *s, uint32_t seg, const kvs__seg_out *o)
{
    (void)pthread_mutex_lock(&s->lock);
    uint32_t fresh = kvs__seg_new(s, o->id, o->at + (uint64_t)KVS__BLOCK_REC * o->n_blocks);
    uint32_t list = s->segs[seg].head;
    s->segs[seg].head = KVS__NONE;
    s->segs[seg].live_bytes = 0;
    s->segs[seg].doomed = true;
    for (uint32_t i = 0; i < o->n_blocks; i++) {
        s->blocks[o->members[i]].moves = true;
    }
    for (uint32_t b = list; b != KVS__NONE;) {
        uint32_t next = s->blocks[b].next;
        s->blocks[b].seg = KVS__NO_SEG;
        if (!s->blocks[b].moves) { /* only a save takes up a dead block, and it has the role */
            kvs__block_drop(s, b);
        }
        b = next;
    }
    for (uint32_t i = 0; i < o->n_blocks; i++) {
        kvs__block_rec r;
        kvs__block_rec_read(o->table + (size_t)KVS__BLOCK_REC * i, &r);
        s->blocks[o->members[i]].moves = false;
        kvs__block_place(s, o->members[i], fresh, r.at);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

kvs_status kvs__compact_one(kvs_store *s, uint32_t part, kvs_err *err)
{
    uint32_t seg = KVS__NO_SEG;
    move *moves = NULL;
    size_t n = 0;
    kvs__seg_out o;
    memset(&o, 0, sizeof o);
    kvs_status st = pick(s, part, &seg, &moves, &n, err);
    if (st == KVS_OK) {
        st = kvs__seg_begin(s, &o, err);
        if (st == KVS_OK) {
            st = copy_blocks(s, s->segs[seg].id, moves, n, &o, err);
        }
        if (st == KVS_OK) {
            st = kvs__seg_publish(s, &o, err);
        }
        int e = st == KVS_OK ? s->v->sync_dir(s->v, s->blocks_dir) : 0;
        if (e != 0) {
            (void)s->v->unlink(s->v, o.pub.final);
            st = kvs__io(err, e, "flush", s->blocks_dir);
        }
        if (st == KVS_OK) {
            moved(s, seg, &o);
        }
        (void)pthread_mutex_lock(&s->lock);
        s->segs[seg].stuck |= st == KVS_E_FORMAT;
        (void)pthread_mutex_unlock(&s->lock);
        kvs__seg_leave(s, seg); /* unlinks the old one, unless somebody reads in it */
    }
    kvs__seg_out_free(s, &o);
    kvs__free(s->ctx, moves, n * sizeof *moves);
    return st;
}

kvs_status kvs_store_gc(kvs_store *s, uint64_t *freed, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store is NULL");
    }
    if (s->read_only) {
        return kvs__fail(err, KVS_E_STATE, "store", "'%s' is open read-only", s->dir);
    }
    (void)pthread_mutex_lock(&s->role);
    (void)pthread_mutex_lock(&s->lock);
    uint64_t before = s->stats.disk_bytes;
    bool blocked = s->gc_blocked;
    (void)pthread_mutex_unlock(&s->lock);
    kvs__settle_damage(s);
    kvs_status st = kvs__flush_entries(s, err);
    if (st == KVS_OK) {
        (void)kvs__reclaim(s);
        do {
            st = kvs__compact_one(s, 8, err);
        } while (st == KVS_OK);
    }
    (void)pthread_mutex_lock(&s->lock);
    if (freed) {
        *freed = before > s->stats.disk_bytes ? before - s->stats.disk_bytes : 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    (void)pthread_mutex_unlock(&s->role);
    if (blocked) {
        return kvs__fail(err, KVS_E_STATE, "store",
                         "a file in '%s' can't be understood, so no block is reclaimed", s->dir);
    }
    return st == KVS_NO || st == KVS_E_LIMIT ? KVS_OK : st;
}

kvs_status kvs_store_limit(kvs_store *s, uint64_t max_bytes, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store is NULL");
    }
    (void)pthread_mutex_lock(&s->role);
    (void)pthread_mutex_lock(&s->lock);
    s->opts.max_bytes = max_bytes;
    (void)pthread_mutex_unlock(&s->lock);
    kvs_status st = s->read_only ? KVS_OK : kvs__make_room(s, 0, err);
    (void)pthread_mutex_unlock(&s->role);
    return st;
}

/* ---- quarantine */

void kvs__set_aside(kvs_store *s, const char *dir, const char *name, const char *why)
{
    char from[KVS__PATH_MAX];
    char to[KVS__PATH_MAX];
    char fresh[160];
    (void)snprintf(fresh, sizeof fresh, "%013llu-%.100s", (unsigned long long)s->v->now_ms(s->v),
                   name);
    if (s->read_only || !kvs__path(from, dir, name) || !kvs__path(to, s->aside_dir, fresh)) {
        return;
    }
    int e = s->v->rename(s->v, from, to);
    s->entries_dirty |= e == 0;
    (void)pthread_mutex_lock(&s->lock);
    s->stats.quarantined += e == 0;
    kvs__reason(s, "%.80s: %.70s", name, why);
    (void)pthread_mutex_unlock(&s->lock);
}

void kvs__settle_damage(kvs_store *s)
{
    char name[KVS__ENTRY_NAME + 1];
    for (;;) {
        (void)pthread_mutex_lock(&s->lock);
        bool any = s->n_damaged > 0;
        bool again = false;
        if (any) {
            s->n_damaged--;
            kvs__entry_name(s->damaged[s->n_damaged], name);
            /* saved anew since: the file is another one */
            again = kvs__entry_by_key(s, s->damaged[s->n_damaged]) != KVS__NONE;
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (!any) {
            return;
        }
        if (!again) {
            kvs__set_aside(s, s->entries_dir, name, "a block does not verify");
        }
    }
}

/* ---- facts of use: a file that may be lost */

kvs_status kvs__uses_write(kvs_store *s)
{
    (void)pthread_mutex_lock(&s->lock);
    uint64_t n = s->stats.entries;
    size_t cap = USES_HEAD + (size_t)n * USES_REC;
    uint8_t *p = s->touches > 0 ? kvs__calloc(s->ctx, cap, 1) : NULL;
    if (!p) {
        kvs_status st = s->touches > 0 ? KVS_E_NOMEM : KVS_OK;
        (void)pthread_mutex_unlock(&s->lock);
        return st;
    }
    uint8_t *at = p + USES_HEAD;
    for (uint32_t i = s->oldest; i != KVS__NONE; i = s->slots[i].e->newer) {
        const kvs__entry *e = s->slots[i].e;
        memcpy(at, e->head.key, 32);
        kvs__put64(at + 32, e->tick);
        kvs__put32(at + 40, e->uses);
        at += USES_REC;
    }
    uint32_t touches = s->touches;
    (void)pthread_mutex_unlock(&s->lock);
    memcpy(p, uses_magic, sizeof uses_magic);
    kvs__put64(p + 8, n);
    kvs__put64(p + 24, kvs__xxh3(p + USES_HEAD, cap - USES_HEAD));
    int e = kvs__publish(s->v, s->dir, "uses", p, cap, false);
    kvs__free(s->ctx, p, cap);
    (void)pthread_mutex_lock(&s->lock);
    s->touches -= e == 0 ? touches : 0;
    (void)pthread_mutex_unlock(&s->lock);
    return e == 0 ? KVS_OK : KVS_E_IO;
}

void kvs__uses_read(kvs_store *s)
{
    char path[KVS__PATH_MAX];
    uint8_t *p = NULL;
    size_t bytes = 0;
    if (!kvs__path(path, s->dir, "uses") ||
        kvs__slurp(s, path, USES_LIMIT, &p, &bytes, NULL) != KVS_OK) {
        return;
    }
    uint64_t n = bytes >= USES_HEAD ? kvs__le64(p + 8) : 0;
    if (bytes >= USES_HEAD && memcmp(p, uses_magic, sizeof uses_magic) == 0 &&
        n <= bytes / USES_REC && bytes == USES_HEAD + n * USES_REC &&
        kvs__le64(p + 24) == kvs__xxh3(p + USES_HEAD, bytes - USES_HEAD)) {
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t *r = p + USES_HEAD + i * USES_REC;
            uint32_t slot = kvs__entry_by_key(s, r);
            if (slot != KVS__NONE && kvs__le64(r + 32) > 1 && kvs__le64(r + 32) < UINT64_MAX / 2) {
                kvs__entry_recall(s, slot, kvs__le64(r + 32), kvs__le32(r + 40));
            }
        }
    }
    kvs__free(s->ctx, p, bytes);
}
