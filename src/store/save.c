/* SPDX-License-Identifier: MIT */
/* save.c: makes an entry durable: hash, write what is not there yet, flush, publish the entry file.
 *
 * A save works in windows of some MiB: the blocks of a window are hashed by several threads, looked
 * up, room is made for those that are missing, and they go to the open segment while the next window
 * is hashed; early write-back keeps the disk busy meanwhile. A chunk whose digests are known (known.h)
 * and whose block is there takes no part in that: its block is held from the start. Segments are flushed and renamed when
 * all blocks are out; only then the entry's file is published (I1). Whatever fails undoes what the
 * save did: references, blocks, temporaries; an entry of the same key stays as it was.
 *
 * What it does not do: decide what to evict (evict.c), or look at what parts mean. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

#define WINDOW       (16u << 20) /* bytes hashed before they are written */
#define MADE_WINDOW  (2u << 20)  /* the same where parts are made as they are needed: kept twice */
#define WRITE_BACK   (8u << 20)  /* bytes after which early write-back is asked for */
#define MAX_RETRIES  16u
#define MAX_RETRY_MS 10000u

kvs_status kvs__io(kvs_err *err, int e, const char *what, const char *path)
{
    return kvs__fail_errno(err, KVS_E_IO, e, "store", "cannot %s '%.140s'", what, path);
}

/* ---- segments */

kvs_status kvs__seg_begin(kvs_store *s, kvs__seg_out *o, kvs_err *err)
{
    char name[32];
    memset(o, 0, sizeof *o);
    (void)pthread_mutex_lock(&s->lock);
    o->id = s->next_seg++;
    (void)pthread_mutex_unlock(&s->lock);
    o->at = KVS__SEG_HEAD;
    o->start_ms = s->v->now_ms(s->v);
    (void)snprintf(name, sizeof name, "%016llx.kvb", (unsigned long long)o->id);
    int e = kvs__pub_begin(&o->pub, s->v, s->blocks_dir, name);
    o->open = e == 0;
    return e == 0 ? KVS_OK : kvs__io(err, e, "create", o->pub.final);
}

static kvs_status grow_table(kvs_store *s, kvs__seg_out *o, kvs_err *err)
{
    size_t cap = o->table_cap ? o->table_cap * 2 : 64;
    uint8_t *table = kvs__alloc(s->ctx, cap * KVS__BLOCK_REC);
    uint32_t *members = kvs__alloc(s->ctx, cap * sizeof *members);
    if (!table || !members) {
        kvs__free(s->ctx, table, cap * KVS__BLOCK_REC);
        kvs__free(s->ctx, members, cap * sizeof *members);
        return kvs__nomem(err, "store", cap * KVS__BLOCK_REC);
    }
    if (o->n_blocks > 0) {
        memcpy(table, o->table, (size_t)o->n_blocks * KVS__BLOCK_REC);
        memcpy(members, o->members, o->n_blocks * sizeof *members);
    }
    kvs__free(s->ctx, o->table, o->table_cap * KVS__BLOCK_REC);
    kvs__free(s->ctx, o->members, o->table_cap * sizeof *o->members);
    o->table = table;
    o->members = members;
    o->table_cap = cap;
    return KVS_OK;
}

kvs_status kvs__seg_add(kvs_store *s, kvs__seg_out *o, uint32_t block, const kvs__block_rec *rec,
                        const void *data, kvs_err *err)
{
    kvs__block_rec r = *rec;
    if (o->n_blocks == o->table_cap) {
        kvs_status st = grow_table(s, o, err);
        if (st != KVS_OK) {
            return st;
        }
    }
    r.at = o->at;
    int e = s->v->pwrite(s->v, o->pub.f, data, (size_t)r.bytes, r.at);
    if (e != 0) {
        return kvs__io(err, e, "write", o->pub.tmp);
    }
    kvs__block_rec_write(o->table + (size_t)KVS__BLOCK_REC * o->n_blocks, &r);
    o->members[o->n_blocks++] = block;
    o->at += r.bytes;
    if (o->at - o->sent >= WRITE_BACK) {
        s->v->start_write(s->v, o->pub.f, o->sent, o->at - o->sent);
        o->sent = o->at;
    }
    return KVS_OK;
}

kvs_status kvs__seg_publish(kvs_store *s, kvs__seg_out *o, kvs_err *err)
{
    uint8_t head[KVS__SEG_HEAD];
    size_t table = (size_t)KVS__BLOCK_REC * o->n_blocks;
    kvs__seg_head h = {o->at + table, o->id, o->at, o->start_ms, o->n_blocks, {0}};
    kvs__sha256_of(o->table, table, h.table_sha);
    kvs__seg_head_write(head, &h);
    int e = s->v->pwrite(s->v, o->pub.f, o->table, table, o->at);
    if (e == 0) {
        e = s->v->pwrite(s->v, o->pub.f, head, sizeof head, 0);
    }
    if (e != 0) {
        return kvs__io(err, e, "write", o->pub.tmp);
    }
    o->open = false; /* commit closes in any case */
    e = kvs__pub_commit(&o->pub, false);
    if (e != 0) {
        return kvs__io(err, e, "publish", o->pub.final);
    }
    o->published = true;
    return KVS_OK;
}

void kvs__seg_out_free(kvs_store *s, kvs__seg_out *o)
{
    if (o->open) {
        kvs__pub_abort(&o->pub);
        o->open = false;
    }
    kvs__free(s->ctx, o->table, o->table_cap * KVS__BLOCK_REC);
    kvs__free(s->ctx, o->members, o->table_cap * sizeof *o->members);
    o->table = NULL;
    o->members = NULL;
}

/* ---- one save */

typedef struct chunk {
    uint8_t sha[32];
    uint64_t xxh;
    const void *data; /* made into the buffer of its window where the part has `source` */
    const kvs__source *source;
    uint8_t *made;
    kvs__known *known; /* or NULL */
    uint64_t offset;   /* in the part */
    uint32_t bytes;
    uint32_t block; /* a reference to it is held; KVS__NONE: not looked up yet */
    bool is_new;    /* is written by this save */
} chunk;

typedef struct save {
    kvs_store *s;
    kvs__item *it;
    kvs__entry *e;
    chunk *chunks; /* [n] */
    uint32_t n;
    uint32_t *todo; /* [n_todo] chunks that are to be hashed, in order */
    uint32_t n_todo;
    bool holds;         /* references, of chunks with a block */
    kvs__seg_out *segs; /* [segs_cap]; the last may be open */
    size_t n_segs;
    size_t segs_cap;
    uint8_t *file; /* of the entry */
    size_t file_bytes;
    uint8_t *made; /* two windows' made chunks, of made_bytes each */
    size_t made_bytes;
    uint64_t written;
    uint64_t shared;
} save;

static void list_chunks(save *w)
{
    const kvs__item *it = w->it;
    uint32_t n = 0;
    for (uint32_t i = 0; i < it->head.n_parts; i++) {
        const kvs__part *p = &it->parts[i];
        for (uint32_t k = 0; k < p->n_chunks; k++) {
            chunk *c = &w->chunks[n++];
            c->offset = (uint64_t)k * p->chunk_bytes;
            c->bytes = (uint32_t)kvs__chunk_size(p, k);
            c->block = KVS__NONE;
            c->known = it->known ? it->known[n - 1] : NULL;
            if (it->data[i]) {
                c->data = (const char *)it->data[i] + c->offset;
            } else {
                c->source = &it->source[i];
            }
        }
    }
}

/* Takes a reference for each chunk that is known and there; the others are to do. What is known of
 * blocks that are gone, or bad, is forgotten: their chunks are as new. */
static void hold_known(save *w)
{
    kvs_store *s = w->s;
    w->holds = true;
    (void)pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < w->n; i++) {
        chunk *c = &w->chunks[i];
        kvs__known *k = c->known;
        if (k && k->set) {
            c->block = kvs__block_find(s, k->sha, c->bytes);
            k->set = c->block != KVS__NONE;
        }
        if (!k || !k->set) {
            w->todo[w->n_todo++] = i;
            continue;
        }
        memcpy(c->sha, k->sha, sizeof c->sha);
        kvs__block_ref(s, c->block);
        w->shared += c->bytes;
    }
    (void)pthread_mutex_unlock(&s->lock);
}

static chunk *todo(const save *w, uint32_t i)
{
    return &w->chunks[w->todo[i]];
}

/* Where the window from todo `from` on ends, and the bytes in it that are made. */
static uint32_t window_end(const save *w, uint32_t from, size_t *made)
{
    uint64_t all = 0;
    *made = 0;
    while (from < w->n_todo && all < WINDOW && *made < MADE_WINDOW) {
        const chunk *c = todo(w, from++);
        all += c->bytes;
        *made += c->source ? c->bytes : 0;
    }
    return from;
}

static kvs_status made_buffers(save *w, kvs_err *err)
{
    size_t made = 0;
    for (uint32_t at = 0; at < w->n_todo;) {
        at = window_end(w, at, &made);
        w->made_bytes = made > w->made_bytes ? made : w->made_bytes;
    }
    if (w->made_bytes == 0) {
        return KVS_OK;
    }
    w->made = kvs__calloc(w->s->ctx, 2, w->made_bytes);
    return w->made ? KVS_OK : kvs__nomem(err, "store", 2 * w->made_bytes);
}

/* Places for the made chunks of the window [from, to), which is the nth. */
static void place_made(save *w, uint32_t from, uint32_t to, uint32_t nth)
{
    uint8_t *at = w->made ? w->made + nth % 2 * w->made_bytes : NULL;
    for (uint32_t i = from; i < to; i++) {
        chunk *c = todo(w, i);
        if (c->source) {
            c->made = at;
            c->data = at;
            at += c->bytes;
        }
    }
}

/* Takes a reference for each chunk of the window; counts the bytes that must be written. */
static kvs_status look_up(save *w, uint32_t from, uint32_t to, uint64_t *missing, kvs_err *err)
{
    kvs_store *s = w->s;
    (void)pthread_mutex_lock(&s->lock);
    kvs_status st = kvs__blocks_reserve(s, to - from, err);
    for (uint32_t i = from; i < to && st == KVS_OK; i++) {
        chunk *c = todo(w, i);
        c->block = kvs__block_find(s, c->sha, c->bytes);
        if (c->block == KVS__NONE) {
            c->block = kvs__block_new(s, c->sha, c->bytes, c->xxh);
            c->is_new = true;
            *missing += c->bytes + (uint64_t)KVS__BLOCK_REC;
        } else {
            w->shared += c->bytes;
        }
        kvs__block_ref(s, c->block);
        s->stats.hashed_bytes += c->bytes;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* The open segment, or a fresh one. One that is complete waits for its flush until the end; its
 * write-back has begun. */
static kvs_status segment(save *w, kvs__seg_out **out, kvs_err *err)
{
    kvs__seg_out *last = w->n_segs > 0 ? &w->segs[w->n_segs - 1] : NULL;
    kvs_status st = KVS_OK;
    if (!last || last->at >= KVS__SEG_TARGET) {
        if (KVS_NEVER(!w->segs || w->n_segs >= w->segs_cap)) {
            return kvs__fail(err, KVS_E_INTERNAL, "store", "more segments than were planned");
        }
        last = &w->segs[w->n_segs];
        st = kvs__seg_begin(w->s, last, err);
        w->n_segs += st == KVS_OK;
    }
    *out = last;
    return st;
}

static kvs_status write_window(save *w, uint32_t from, uint32_t to, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (uint32_t i = from; i < to && st == KVS_OK; i++) {
        const chunk *c = todo(w, i);
        kvs__seg_out *o = NULL;
        if (!c->is_new) {
            continue;
        }
        st = segment(w, &o, err);
        if (st == KVS_OK) {
            kvs__block_rec r = {{0}, 0, c->bytes, c->xxh};
            memcpy(r.sha, c->sha, 32);
            st = kvs__seg_add(w->s, o, c->block, &r, c->data, err);
            w->written += c->bytes;
        }
    }
    return st;
}

/* Writing one window and hashing the next: item 0 writes, the others hash a chunk each. */
typedef struct stage {
    save *w;
    uint32_t write_from;
    uint32_t hash_from; /* where the written window ends */
    kvs_status status;
    kvs_err err;
} stage;

static void stage_item(void *arg, size_t i, uint32_t thread)
{
    stage *g = arg;
    (void)thread;
    if (i == 0) {
        g->status = write_window(g->w, g->write_from, g->hash_from, &g->err);
        return;
    }
    chunk *c = todo(g->w, g->hash_from + (uint32_t)i - 1);
    if (c->source) {
        c->source->fill(c->source->user, c->offset, c->bytes, c->made);
    }
    kvs__sha256_of(c->data, c->bytes, c->sha);
    c->xxh = kvs__xxh3(c->data, c->bytes);
    if (c->known) {
        c->known->xxh = c->xxh;
        memcpy(c->known->sha, c->sha, sizeof c->sha);
        c->known->set = true;
    }
}

static kvs_status save_blocks(save *w, kvs_err *err)
{
    uint64_t reserved = w->it->head.file_bytes + KVS__SEG_HEAD;
    kvs_status st = w->n_todo > 0 ? KVS_OK : kvs__make_room(w->s, reserved, err);
    stage g = {.w = w};
    for (uint32_t nth = 0; g.write_from < w->n_todo && st == KVS_OK; nth++) {
        size_t made = 0;
        uint32_t to = window_end(w, g.hash_from, &made);
        place_made(w, g.hash_from, to, nth);
        kvs__parallel(w->s, 1 + (size_t)(to - g.hash_from), stage_item, &g);
        st = g.status;
        if (st != KVS_OK && err) {
            *err = g.err;
        }
        if (st == KVS_OK) {
            st = look_up(w, g.hash_from, to, &reserved, err);
        }
        if (st == KVS_OK) {
            /* what this save has written so far is in no table yet, so all of it is asked for */
            st = kvs__make_room(w->s, reserved + w->n_segs * KVS__SEG_HEAD, err);
        }
        g.write_from = g.hash_from;
        g.hash_from = to;
    }
    return st;
}

/* Marks the segments of blocks that were there already; false: one of them has turned out bad. */
static bool mark_segs(const save *w, bool *marked)
{
    const kvs_store *s = w->s;
    bool good = true;
    for (uint32_t i = 0; i < w->n; i++) {
        const kvs__block *b = &s->blocks[w->chunks[i].block];
        good = good && !b->bad;
        if (b->seg != KVS__NO_SEG) {
            marked[b->seg] = true;
        }
    }
    return good;
}

/* Is the file of a segment there, and as long as it was? What the system can't tell is taken for yes. */
static bool seg_there(kvs_store *s, uint32_t seg)
{
    char path[KVS__PATH_MAX];
    kvs__stat sb;
    (void)pthread_mutex_lock(&s->lock);
    uint64_t bytes = s->segs[seg].file_bytes;
    kvs__seg_path(s, s->segs[seg].id, path);
    (void)pthread_mutex_unlock(&s->lock);
    int e = s->v->stat(s->v, path, &sb);
    bool there = e == 0 ? sb.is_file && sb.bytes >= bytes : e != ENOENT;
    if (!there) {
        (void)pthread_mutex_lock(&s->lock);
        for (uint32_t b = s->segs[seg].head; b != KVS__NONE; b = s->blocks[b].next) {
            s->blocks[b].bad = true;
        }
        s->segs[seg].stuck = true;
        kvs__reason(s, "'%.140s' has vanished or is cut short", path);
        (void)pthread_mutex_unlock(&s->lock);
    }
    return there;
}

/* Blocks that were there already may have been found bad meanwhile, or their files be gone. KVS_NO: it
 * is so, they are marked, and a save from the start writes them again. */
static kvs_status check_shared(save *w, kvs_err *err)
{
    kvs_store *s = w->s;
    (void)pthread_mutex_lock(&s->lock);
    size_t n = s->segs_used;
    bool *marked = kvs__calloc(s->ctx, n, sizeof *marked);
    bool good = marked && mark_segs(w, marked);
    (void)pthread_mutex_unlock(&s->lock);
    if (!marked) {
        return kvs__nomem(err, "store", n);
    }
    for (size_t i = 0; i < n;
         i++) { /* the references keep them, and the role keeps others from moving */
        good = (!marked[i] || seg_there(s, (uint32_t)i)) && good;
    }
    kvs__free(s->ctx, marked, n * sizeof *marked);
    return good ? KVS_OK : KVS_NO;
}

static kvs_status publish_segs(save *w, kvs_err *err)
{
    kvs_store *s = w->s;
    kvs_status st = KVS_OK;
    for (size_t i = 0; i < w->n_segs && st == KVS_OK; i++) {
        st = kvs__seg_publish(s, &w->segs[i], err);
    }
    if (st == KVS_OK && w->n_segs > 0) {
        int e = s->v->sync_dir(s->v, s->blocks_dir);
        st = e == 0 ? KVS_OK : kvs__io(err, e, "flush", s->blocks_dir);
    }
    return st;
}

/* Memory for what comes after the point of no return. */
static kvs_status reserve_tables(save *w, kvs_err *err)
{
    kvs_store *s = w->s;
    (void)pthread_mutex_lock(&s->lock);
    kvs_status st = kvs__segs_reserve(s, w->n_segs, err);
    if (st == KVS_OK) {
        st = kvs__entries_reserve(s, w->e->n_levels, err);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

static void fill_entry(save *w)
{
    const kvs__item *it = w->it;
    kvs__entry *e = w->e;
    uint8_t *sha = w->file + w->file_bytes - (size_t)32 * w->n; /* in place: they come last */
    if (it->head.n_ids > 0) {
        memcpy(e->ids, it->ids, (size_t)it->head.n_ids * sizeof *e->ids);
    }
    if (it->head.ns_bytes > 0) {
        memcpy(e->ns, it->ns, it->head.ns_bytes);
    }
    if (it->head.n_parts > 0) {
        memcpy(e->parts, it->parts, (size_t)it->head.n_parts * sizeof *e->parts);
    }
    for (uint32_t i = 0; i < w->n; i++) {
        e->chunks[i] = w->chunks[i].block;
        memcpy(sha + (size_t)32 * i, w->chunks[i].sha, 32);
    }
    e->foreign = !w->s->any_identity && memcmp(e->head.identity, w->s->identity, 32) != 0;
    kvs__entry_write(w->file, &it->head, e->ns, e->ids, e->parts, NULL);
}

/* Blocks and entry appear in the tables together; the one of the same key goes. */
static void install(save *w)
{
    kvs_store *s = w->s;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < w->n_segs; i++) {
        kvs__seg_out *o = &w->segs[i];
        uint32_t seg = kvs__seg_new(s, o->id, o->at + (uint64_t)KVS__BLOCK_REC * o->n_blocks);
        for (uint32_t k = 0; k < o->n_blocks; k++) {
            kvs__block_rec r;
            kvs__block_rec_read(o->table + (size_t)KVS__BLOCK_REC * k, &r);
            kvs__block_place(s, o->members[k], seg, r.at);
        }
    }
    uint32_t old = kvs__entry_by_key(s, w->e->head.key);
    if (old != KVS__NONE) {
        kvs__entry_drop(s, old);
    }
    kvs__entry_list(s, w->e);
    w->it->entry = w->e->id;
    s->stats.written++;
    s->stats.written_bytes += w->written;
    s->stats.deduplicated_bytes += w->shared;
    w->holds = false; /* the references are the entry's */
    w->e = NULL;
    (void)pthread_mutex_unlock(&s->lock);
}

static kvs_status publish_entry(save *w, kvs_err *err)
{
    kvs_store *s = w->s;
    char name[KVS__ENTRY_NAME + 1];
    kvs__entry_name(w->it->head.key, name);
    int e = kvs__publish(s->v, s->entries_dir, name, w->file, w->file_bytes, false);
    if (e != 0) {
        return kvs__io(err, e, "publish an entry in", s->entries_dir);
    }
    /* From here on the file is there, and what it replaced is not: the tables follow even if the
     * flush fails, in which case the entry is served but not said to be durable. */
    e = s->v->sync_dir(s->v, s->entries_dir);
    s->entries_dirty |= e != 0;
    install(w);
    return e == 0 ? KVS_OK : kvs__io(err, e, "flush", s->entries_dir);
}

static void undo(save *w)
{
    kvs_store *s = w->s;
    char path[KVS__PATH_MAX];
    for (size_t i = 0; i < w->n_segs; i++) {
        if (w->segs[i].published && w->e) { /* no entry file refers to it */
            kvs__seg_path(s, w->segs[i].id, path);
            (void)s->v->unlink(s->v, path);
        }
        kvs__seg_out_free(s, &w->segs[i]);
    }
    (void)pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; w->holds && i < w->n; i++) {
        if (w->chunks[i].block != KVS__NONE) {
            kvs__block_unref(s, w->chunks[i].block);
        }
    }
    for (uint32_t i = 0; w->holds && i < w->n; i++) {
        if (w->chunks[i].is_new) {
            kvs__block_drop(s, w->chunks[i].block);
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    kvs__entry_free(s, w->e);
    kvs__free(s->ctx, w->todo, (size_t)w->n * sizeof *w->todo);
    kvs__free(s->ctx, w->chunks, (size_t)w->n * sizeof *w->chunks);
    kvs__free(s->ctx, w->segs, w->segs_cap * sizeof *w->segs);
    kvs__free(s->ctx, w->file, w->file_bytes);
    kvs__free(s->ctx, w->made, 2 * w->made_bytes);
}

static kvs_status save_start(save *w, kvs_err *err)
{
    kvs__item *it = w->it;
    kvs_store *s = w->s;
    uint64_t whole = it->head.data_bytes + it->head.file_bytes;
    if (s->opts.max_bytes > 0 && whole > s->opts.max_bytes) {
        return kvs__fail(err, KVS_E_LIMIT, "store",
                         "an entry of %llu bytes is larger than the limit of %llu",
                         (unsigned long long)whole, (unsigned long long)s->opts.max_bytes);
    }
    w->n = it->head.n_chunks;
    w->file_bytes = (size_t)it->head.file_bytes;
    /* every segment but the last reaches the target */
    w->segs_cap = (size_t)(it->head.data_bytes / KVS__SEG_TARGET) + 2;
    w->e = kvs__entry_new(s, &it->head, err);
    w->chunks = kvs__calloc(s->ctx, w->n, sizeof *w->chunks);
    w->todo = kvs__calloc(s->ctx, w->n, sizeof *w->todo);
    w->segs = kvs__calloc(s->ctx, w->segs_cap, sizeof *w->segs);
    w->file = kvs__alloc(s->ctx, w->file_bytes);
    if (!w->e || !w->chunks || !w->todo || !w->segs || !w->file) {
        return kvs__nomem(err, "store", w->file_bytes);
    }
    list_chunks(w);
    hold_known(w);
    return made_buffers(w, err);
}

/* Once, with the role. KVS_NO: once more, some of what it shares is bad. */
static kvs_status save_once(kvs_store *s, kvs__item *it, kvs_err *err)
{
    save w = {.s = s, .it = it};
    it->head.created_ms = s->v->now_ms(s->v);
    kvs_status st = save_start(&w, err);
    if (st == KVS_OK) {
        w.e->head.created_ms = it->head.created_ms;
        st = save_blocks(&w, err);
    }
    if (st == KVS_OK) {
        st = check_shared(&w, err);
    }
    if (st == KVS_OK) {
        st = reserve_tables(&w, err);
    }
    if (st == KVS_OK) {
        st = publish_segs(&w, err);
    }
    if (st == KVS_OK) {
        fill_entry(&w);
        st = publish_entry(&w, err);
    }
    undo(&w);
    return st;
}

static bool worth_a_retry(kvs_status st, const kvs_err *err)
{
    return st == KVS_E_NOMEM || (st == KVS_E_IO && kvs__errno_transient(err->sys_errno));
}

void kvs__item_run(kvs_store *s, kvs__item *it)
{
    uint32_t wait_ms = s->opts.retry_ms;
    for (uint32_t round = 0;; round++) {
        memset(&it->err, 0, sizeof it->err);
        (void)pthread_mutex_lock(&s->role);
        do { /* each time more blocks are known to be bad */
            it->status = save_once(s, it, &it->err);
        } while (it->status == KVS_NO);
        kvs__settle_damage(s);
        (void)kvs__reclaim(s);
        (void)pthread_mutex_unlock(&s->role);
        (void)pthread_mutex_lock(&s->lock);
        bool again = it->status != KVS_OK && worth_a_retry(it->status, &it->err) &&
                     round < s->opts.retries && round < MAX_RETRIES && !s->stop;
        if (it->status != KVS_OK) {
            kvs__reason(s, "%.150s", it->err.msg);
            s->stats.retried += again;
            s->stats.failed += !again && it->status != KVS_E_LIMIT;
            s->stats.refused += it->status == KVS_E_LIMIT;
            if (!again && !it->waits) { /* nobody waits to be told: the next flush tells */
                s->unsaved++;
                s->unsaved_status = it->status;
                memcpy(s->unsaved_reason, it->err.msg, sizeof s->unsaved_reason);
                s->unsaved_reason[sizeof s->unsaved_reason - 1] = '\0';
            }
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (!again) {
            break;
        }
        s->v->sleep_ms(s->v, wait_ms);
        wait_ms = wait_ms < MAX_RETRY_MS ? wait_ms * 2 : wait_ms;
    }
    if (it->done) {
        it->done(it->done_user, it->status, it->entry, it->status == KVS_OK ? NULL : &it->err);
    }
}

void kvs__item_free(kvs_store *s, kvs__item *it)
{
    kvs__free(s->ctx, it->copy, it->copy_bytes);
    kvs__free(s->ctx, it, it->alloc_bytes);
}

void *kvs__writer_main(void *store)
{
    kvs_store *s = store;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->put_head && !s->stop) {
            (void)pthread_cond_wait(&s->changed, &s->lock);
        }
        kvs__item *it = s->put_head;
        if (!it) {
            break; /* stopped, and nothing is left */
        }
        s->put_head = it->next;
        s->put_tail = it->next ? s->put_tail : NULL;
        s->writing = true;
        (void)pthread_mutex_unlock(&s->lock);
        size_t bytes = it->queue_bytes;
        bool waits = it->waits;
        kvs__item_run(s, it);
        if (!waits) {
            kvs__item_free(s, it);
        }
        (void)pthread_mutex_lock(&s->lock);
        if (waits) {
            it->finished = true;
        }
        s->stats.queued_items--;
        s->stats.queued_bytes -= bytes;
        s->writing = false;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}
