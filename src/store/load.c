/* SPDX-License-Identifier: MIT */
/* load.c: reads parts of a pinned entry into the caller's memory, block by block, each checked
 * before the call returns; on several threads where there is enough to read.
 *
 * A block that is wanted whole is read in place; one that is wanted in part goes through a buffer,
 * for its checksum needs all of it. A block that does not verify is read once more (memory or bus
 * may have failed, not the disk); then block and entry are marked, and the entry is a miss. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

#define RUN_BYTES (4u << 20) /* of blocks read by one thread at a time, from one opened segment */

void kvs__parallel(kvs_store *s, size_t n, kvs__item_fn fn, void *arg)
{
    if (n > 1 && kvs__pool_threads(s->pool) > 1 && pthread_mutex_trylock(&s->pool_lock) == 0) {
        kvs__pool_run(s->pool, n, fn, arg);
        (void)pthread_mutex_unlock(&s->pool_lock);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        fn(arg, i, 0);
    }
}

kvs_status kvs__seg_open(kvs_store *s, uint64_t id, kvs__file **out, kvs_err *err)
{
    char path[KVS__PATH_MAX];
    kvs__seg_path(s, id, path);
    int e = s->v->open(s->v, path, KVS__OPEN_READ, out);
    return e == 0 ? KVS_OK : kvs__io(err, e, "open", path);
}

void kvs__seg_leave(kvs_store *s, uint32_t seg)
{
    char path[KVS__PATH_MAX];
    bool last = false;
    (void)pthread_mutex_lock(&s->lock);
    kvs__segment *g = &s->segs[seg];
    KVS_ASSERT(g->readers > 0);
    if (--g->readers == 0 && g->doomed) {
        last = true;
        kvs__seg_path(s, g->id, path);
        kvs__seg_drop(s, seg);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (last) {
        (void)s->v->unlink(s->v, path); /* if it stays, the next open finds nothing refers to it */
    }
}

static bool verifies(const kvs__block *b, const void *data, bool sha)
{
    uint8_t digest[32];
    if (kvs__xxh3(data, b->bytes) != b->xxh) {
        return false;
    }
    if (sha) {
        kvs__sha256_of(data, b->bytes, digest);
        return memcmp(digest, b->sha, 32) == 0;
    }
    return true;
}

kvs_status kvs__block_read(kvs_store *s, const kvs__block *b, kvs__file *f, void *dst, bool sha,
                           kvs_err *err)
{
    for (int round = 0; round < 2; round++) {
        size_t got = 0;
        int e = s->v->pread(s->v, f, dst, b->bytes, b->at, &got);
        if (e != 0) {
            return kvs__fail_errno(err, KVS_E_IO, e, "store", "cannot read a block");
        }
        if (got == b->bytes && verifies(b, dst, sha)) {
            return KVS_OK;
        }
    }
    return kvs__fail(err, KVS_E_FORMAT, "store", "a block of %u bytes at %llu does not verify",
                     b->bytes, (unsigned long long)b->at);
}

/* ---- one read */

/* A piece of a block that goes to one place. */
typedef struct piece {
    void *dst;
    uint32_t block;
    uint32_t skip;
    uint32_t bytes;
} piece;

typedef struct load {
    kvs_store *s;
    piece *pieces;
    size_t n;
    size_t *runs; /* [n_runs + 1], first pieces */
    size_t n_runs;
    bool sha;
    pthread_mutex_t lock; /* of what follows */
    kvs_status status;
    uint32_t bad_block;
    kvs_err err;
} load;

static void load_failed(load *l, kvs_status st, uint32_t block, const kvs_err *err)
{
    (void)pthread_mutex_lock(&l->lock);
    if (l->status == KVS_OK || (st == KVS_E_FORMAT && l->status != KVS_E_FORMAT)) {
        l->status = st;
        l->bad_block = block;
        l->err = *err;
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* What a thread has open. */
typedef struct hold {
    kvs__file *f;
    uint32_t seg;
    void *buf;
    size_t buf_bytes;
} hold;

static void let_go(kvs_store *s, hold *h)
{
    if (h->seg != KVS__NO_SEG) {
        s->v->close(s->v, h->f);
        kvs__seg_leave(s, h->seg);
    }
    h->f = NULL;
    h->seg = KVS__NO_SEG;
}

/* Copies the block's facts and counts into its segment, which a compaction may have changed since
 * the last look. */
static kvs_status go_to(kvs_store *s, hold *h, uint32_t block, kvs__block *b, kvs_err *err)
{
    (void)pthread_mutex_lock(&s->lock);
    *b = s->blocks[block];
    bool same = b->seg == h->seg;
    uint64_t id = s->segs[b->seg].id;
    if (!same) {
        s->segs[b->seg].readers++;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (same) {
        return KVS_OK;
    }
    let_go(s, h);
    kvs_status st = kvs__seg_open(s, id, &h->f, err);
    if (st != KVS_OK) {
        kvs__seg_leave(s, b->seg);
        return st;
    }
    h->seg = b->seg;
    s->v->will_read(s->v, h->f, b->at, RUN_BYTES);
    return KVS_OK;
}

static kvs_status read_piece(load *l, hold *h, const piece *p, kvs_err *err)
{
    kvs_store *s = l->s;
    kvs__block b;
    kvs_status st = go_to(s, h, p->block, &b, err);
    if (st != KVS_OK || p->bytes == b.bytes) {
        return st != KVS_OK ? st : kvs__block_read(s, &b, h->f, p->dst, l->sha, err);
    }
    if (h->buf_bytes < b.bytes) {
        kvs__free(s->ctx, h->buf, h->buf_bytes);
        h->buf = kvs__alloc(s->ctx, b.bytes);
        h->buf_bytes = h->buf ? b.bytes : 0;
        if (!h->buf) {
            return kvs__nomem(err, "store", b.bytes);
        }
    }
    st = kvs__block_read(s, &b, h->f, h->buf, l->sha, err);
    if (st == KVS_OK && p->bytes > 0) {
        memcpy(p->dst, (const char *)h->buf + p->skip, p->bytes);
    }
    return st;
}

static void read_run(void *arg, size_t run, uint32_t thread)
{
    load *l = arg;
    hold h = {NULL, KVS__NO_SEG, NULL, 0};
    kvs_err err;
    (void)thread;
    memset(&err, 0, sizeof err);
    for (size_t i = l->runs[run]; i < l->runs[run + 1]; i++) {
        kvs_status st = read_piece(l, &h, &l->pieces[i], &err);
        if (st != KVS_OK) {
            load_failed(l, st, l->pieces[i].block, &err);
            break;
        }
    }
    let_go(l->s, &h);
    kvs__free(l->s->ctx, h.buf, h.buf_bytes);
}

/* Pieces of one buffer, appended; with pieces NULL they are only counted. */
static size_t cut(const kvs__entry *e, const kvs_store_buf *buf, piece *pieces)
{
    const kvs__part *p = &e->parts[buf->part];
    size_t n = 0;
    for (uint64_t at = buf->at; at < buf->at + buf->bytes;) {
        uint32_t k = (uint32_t)(at / p->chunk_bytes);
        uint64_t begin = (uint64_t)k * p->chunk_bytes;
        uint64_t end = begin + kvs__chunk_size(p, k);
        uint64_t stop = end < buf->at + buf->bytes ? end : buf->at + buf->bytes;
        if (pieces) {
            pieces[n] = (piece){(char *)buf->dst + (at - buf->at), e->chunks[p->first_chunk + k],
                                (uint32_t)(at - begin), (uint32_t)(stop - at)};
        }
        n++;
        at = stop;
    }
    return n;
}

static kvs_status check_bufs(const kvs__entry *e, const kvs_store_buf *bufs, size_t n, kvs_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (bufs[i].part >= e->head.n_parts) {
            return kvs__fail(err, KVS_E_RANGE, "store", "part %zu of an entry of %u parts",
                             bufs[i].part, e->head.n_parts);
        }
        uint64_t have = e->parts[bufs[i].part].bytes;
        if (bufs[i].at > have || bufs[i].bytes > have - bufs[i].at ||
            (bufs[i].bytes > 0 && !bufs[i].dst)) {
            return kvs__fail(err, KVS_E_RANGE, "store",
                             "bytes %llu + %llu of a part of %llu, or no memory to read to",
                             (unsigned long long)bufs[i].at, (unsigned long long)bufs[i].bytes,
                             (unsigned long long)have);
        }
    }
    return KVS_OK;
}

static kvs_status plan(load *l, const kvs__entry *e, const kvs_store_buf *bufs, size_t n_bufs,
                       kvs_err *err)
{
    kvs_ctx *ctx = l->s->ctx;
    for (size_t i = 0; i < n_bufs; i++) {
        l->n += cut(e, &bufs[i], NULL);
    }
    l->pieces = kvs__calloc(ctx, l->n, sizeof *l->pieces);
    l->runs = kvs__calloc(ctx, l->n + 1, sizeof *l->runs);
    if (!l->pieces || !l->runs) {
        return kvs__nomem(err, "store", l->n * sizeof *l->pieces);
    }
    size_t at = 0;
    for (size_t i = 0; i < n_bufs; i++) {
        at += cut(e, &bufs[i], l->pieces + at);
    }
    uint64_t bytes = RUN_BYTES;
    for (size_t i = 0; i < l->n; i++) {
        if (bytes >= RUN_BYTES) {
            l->runs[l->n_runs++] = i;
            bytes = 0;
        }
        bytes += l->pieces[i].bytes;
    }
    l->runs[l->n_runs] = l->n;
    return KVS_OK;
}

void kvs__found_damage(kvs_store *s, kvs_entry entry, uint32_t block, const char *why)
{
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, entry);
    if (block != KVS__NONE) {
        s->blocks[block].bad = true;
    }
    kvs__reason(s, "%.150s", why);
    if (e && e->listed) {
        if (s->n_damaged < s->damaged_cap && !s->read_only) {
            memcpy(s->damaged[s->n_damaged++], e->head.key, 32);
        } /* else the next open or reader finds it again */
        kvs__entry_drop(s, kvs__slot_of(entry));
    }
    (void)pthread_mutex_unlock(&s->lock);
}

kvs_status kvs__get_locked_out(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs,
                               size_t n_bufs, bool sha, kvs_err *err)
{
    load l = {.s = s, .sha = sha, .lock = PTHREAD_MUTEX_INITIALIZER, .bad_block = KVS__NONE};
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, entry);
    kvs_status st = KVS_OK;
    if (!e || (!e->listed && e->pins == 0)) {
        st = kvs__fail(err, KVS_E_NOTFOUND, "store", "the entry is gone");
    } else {
        st = check_bufs(e, bufs, n_bufs, err);
    }
    if (st == KVS_OK) {
        e->pins++;
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (st != KVS_OK) {
        return st;
    }
    st = plan(&l, e, bufs, n_bufs, err);
    if (st == KVS_OK) {
        kvs__parallel(s, l.n_runs, read_run, &l);
        st = l.status;
        if (st != KVS_OK && err) {
            *err = l.err;
        }
    }
    if (st == KVS_E_FORMAT) {
        kvs__found_damage(s, entry, l.bad_block, l.err.msg);
    }
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < l.n && st == KVS_OK; i++) {
        s->stats.read_bytes += l.pieces[i].bytes;
    }
    if (st != KVS_OK) {
        s->stats.read_failed++;
        kvs__reason(s, "%.150s", st == KVS_E_NOMEM ? "no memory to read an entry" : l.err.msg);
    } else if (!sha) { /* a verification is no use */
        kvs__entry_use(s, e);
    }
    kvs__entry_unpin(s, e);
    (void)pthread_mutex_unlock(&s->lock);
    kvs__free(s->ctx, l.runs, (l.n + 1) * sizeof *l.runs);
    kvs__free(s->ctx, l.pieces, l.n * sizeof *l.pieces);
    return st;
}

kvs_status kvs_store_get(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs, size_t n_bufs,
                         kvs_err *err)
{
    if (!s || (!bufs && n_bufs > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or bufs is NULL");
    }
    return kvs__get_locked_out(s, entry, bufs, n_bufs, false, err);
}

/* ---- on the store's thread */

struct kvs__get {
    struct kvs__get *next;
    kvs_entry entry;
    kvs_get_fn done;
    void *user;
    size_t n_bufs;
    kvs_store_buf bufs[];
};

static void get_run(kvs_store *s, struct kvs__get *g)
{
    kvs_err err;
    memset(&err, 0, sizeof err);
    kvs_status st = kvs__get_locked_out(s, g->entry, g->bufs, g->n_bufs, false, &err);
    g->done(g->user, st, st == KVS_OK ? NULL : &err);
    kvs__free(s->ctx, g, sizeof *g + g->n_bufs * sizeof g->bufs[0]);
}

kvs_status kvs_store_get_async(kvs_store *s, kvs_entry entry, const kvs_store_buf *bufs,
                               size_t n_bufs, kvs_get_fn done, void *user, kvs_err *err)
{
    size_t bytes = 0;
    if (!s || !done || (!bufs && n_bufs > 0)) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store, bufs or done is NULL");
    }
    struct kvs__get *g = NULL;
    if (kvs__mul_size(n_bufs, sizeof g->bufs[0], &bytes) &&
        kvs__add_size(bytes, sizeof *g, &bytes)) {
        g = kvs__alloc(s->ctx, bytes);
    }
    if (!g) {
        return kvs__nomem(err, "store", bytes);
    }
    *g = (struct kvs__get){.entry = entry, .done = done, .user = user, .n_bufs = n_bufs};
    if (n_bufs > 0) {
        memcpy(g->bufs, bufs, n_bufs * sizeof g->bufs[0]);
    }
    if (!s->has_reader) {
        get_run(s, g);
        return KVS_OK;
    }
    (void)pthread_mutex_lock(&s->lock);
    bool full = s->n_gets >= s->opts.max_queue_items;
    if (!full) {
        s->n_gets++;
        if (s->get_tail) {
            s->get_tail->next = g;
        } else {
            s->get_head = g;
        }
        s->get_tail = g;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (full) {
        kvs__free(s->ctx, g, bytes);
        return KVS_NO;
    }
    return KVS_OK;
}

void *kvs__reader_main(void *store)
{
    kvs_store *s = store;
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->get_head && !s->stop) {
            (void)pthread_cond_wait(&s->changed, &s->lock);
        }
        struct kvs__get *g = s->get_head;
        if (!g) {
            break;
        }
        s->get_head = g->next;
        s->get_tail = g->next ? s->get_tail : NULL;
        (void)pthread_mutex_unlock(&s->lock);
        get_run(s, g);
        (void)pthread_mutex_lock(&s->lock);
        s->n_gets--;
        (void)pthread_cond_broadcast(&s->changed);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}
