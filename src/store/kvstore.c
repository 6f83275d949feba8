/* SPDX-License-Identifier: MIT */
/* kvstore.c: opening and closing, pins, removal, listing and figures of a store. */
#include "store/kvstore.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define QUEUE_BYTES ((uint64_t)256 << 20)
#define QUEUE_ITEMS 64u
#define RETRIES     3u
#define RETRY_MS    50u
#define THREADS     2u
#define DAMAGED_CAP 256u

/* ---- opening */

static kvs_status read_opts(kvs_store *s, const kvs_store_opts *opts, kvs_err *err)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_store_policy p = KVS_STORE_POLICY_INIT;
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_store_opts", err) : KVS_OK;
    if (st == KVS_OK && o.policy) {
        st = kvs__opts_read(&p, sizeof p, o.policy, "kvs_store_policy", err);
        if (st == KVS_OK && !p.choose) {
            st = kvs__fail(err, KVS_E_INVAL, "store", "the policy has no choose");
        }
    }
    if (st == KVS_OK && (o.reserved != 0 || (o.flags & ~15u))) {
        st = kvs__fail(err, KVS_E_UNSUPPORTED, "store", "flags %#x are not known", o.flags);
    }
    if (st == KVS_OK && o.n_threads > 64) {
        st = kvs__fail(err, KVS_E_RANGE, "store", "n_threads %u is above 64", o.n_threads);
    }
    o.max_queue_bytes = o.max_queue_bytes ? o.max_queue_bytes : QUEUE_BYTES;
    o.max_queue_items = o.max_queue_items ? o.max_queue_items : QUEUE_ITEMS;
    o.retries = o.retries ? o.retries : RETRIES;
    o.retry_ms = o.retry_ms ? o.retry_ms : RETRY_MS;
    o.n_threads = o.n_threads ? o.n_threads : THREADS;
    o.n_threads = o.flags & KVS_STORE_NO_THREADS ? 1 : o.n_threads;
    s->any_identity = !o.identity;
    if (o.identity) {
        memcpy(s->identity, o.identity, 32);
    }
    o.identity = NULL;
    o.policy = NULL;
    s->opts = o;
    s->policy = p;
    s->read_only = (o.flags & KVS_STORE_READONLY) != 0;
    s->stats.read_only = s->read_only;
    return st;
}

/* What a directory holds. */
typedef struct content {
    bool store;   /* entries, so it is one */
    bool names;   /* anything that is called as what a store has */
    bool foreign; /* anything else */
} content;

static bool note_name(void *arg, const char *name)
{
    static const char *const own[] = {"entries", "blocks",  "quarantine", "lock",
                                      "uses",    "weights", "uses.tmp",   "weights.tmp"};
    content *c = arg;
    for (size_t i = 0; i < KVS_COUNT(own); i++) {
        if (strcmp(name, own[i]) == 0) {
            c->store = c->store || i == 0;
            c->names = true;
            return true;
        }
    }
    c->foreign = true;
    return true;
}

/* A directory that holds other things too is not ours to close to others, what is below it, which is,
 * is closed anyway; where others may write, or a file of that name would be overwritten, it is none
 * for a store. */
static kvs_status check_content(kvs_store *s, uint32_t mode, kvs_err *err)
{
    content c = {false, false, false};
    if (s->read_only) {
        return KVS_OK;
    }
    int e = s->v->list(s->v, s->dir, note_name, &c);
    if (e == 0 && !c.store && s->opts.flags & KVS_STORE_NO_CREATE) {
        return kvs__fail(err, KVS_E_NOTFOUND, "store", "'%.140s' holds no saved state", s->dir);
    }
    if (e != 0 || !c.foreign) {
        (void)((mode & 077u) ? s->v->chmod(s->v, s->dir, 0700) : 0);
        return KVS_OK; /* what can't be listed the scan tells */
    }
    if ((mode & 022u) || (c.names && !c.store)) {
        return kvs__fail(err, KVS_E_IO, "store",
                         "'%.140s' holds other things%s; a store needs a directory of its own",
                         s->dir, mode & 022u ? ", and others may write to it" : "");
    }
    return KVS_OK;
}

/* The directory, made if need be, and narrowed to its owner. */
static kvs_status make_dir(kvs_store *s, const char *path, bool *made, kvs_err *err)
{
    kvs__stat sb;
    int e = s->v->stat(s->v, path, &sb);
    if (e == ENOENT && !s->read_only && !(s->opts.flags & KVS_STORE_NO_CREATE && path == s->dir)) {
        e = s->v->mkdir(s->v, path);
        *made |= e == 0;
        e = e == EEXIST ? 0 : e;
        e = e ? e : s->v->stat(s->v, path, &sb);
    }
    if (e != 0) {
        if (s->read_only && path != s->dir && e == ENOENT) {
            return KVS_OK;
        }
        return kvs__fail_errno(err, e == ENOENT ? KVS_E_NOTFOUND : KVS_E_IO, e, "store",
                               "cannot open the directory '%.140s'", path);
    }
    if (!sb.is_dir) {
        return kvs__fail(err, KVS_E_IO, "store", "'%.140s' is not a directory%s", path,
                         sb.is_link ? " but a link, which is not followed" : "");
    }
    if (path == s->dir) {
        return check_content(s, sb.mode, err);
    }
    if ((sb.mode & 077u) && !s->read_only) {
        (void)s->v->chmod(s->v, path, 0700);
    }
    return KVS_OK;
}

static kvs_status take_lock(kvs_store *s, kvs_err *err)
{
    char path[KVS__PATH_MAX];
    char note[48];
    if (s->read_only) {
        return KVS_OK;
    }
    (void)kvs__path(path, s->dir, "lock");
    (void)snprintf(note, sizeof note, "%ld\n", (long)getpid());
    int e = s->v->lock(s->v, path, note, &s->lock_file);
    if (e == 0) {
        return KVS_OK;
    }
    s->lock_file = NULL;
    if (s->opts.flags & KVS_STORE_READONLY_BUSY &&
        (e == EWOULDBLOCK || e == EACCES || e == EROFS)) {
        s->read_only = true;
        s->stats.read_only = 1;
        kvs__reason(s, e == EWOULDBLOCK ? "another process has the directory open: read-only"
                                        : "the directory can't be written to: read-only");
        return KVS_OK;
    }
    if (e != EWOULDBLOCK) {
        return kvs__io(err, e, "lock", path);
    }
    uint8_t *who = NULL;
    size_t n = 0;
    if (kvs__slurp(s, path, 64, &who, &n, NULL) != KVS_OK) {
        n = 0;
    }
    int digits = (int)n - (n > 0);
    kvs_status st =
        kvs__fail(err, KVS_E_STATE, "store",
                  "'%.140s' is in use by another process (%.*s); a store has one writer", s->dir,
                  digits, n > 0 ? (const char *)who : "");
    kvs__free(s->ctx, who, n);
    return st;
}

static kvs_status make_dirs(kvs_store *s, const char *dir, kvs_err *err)
{
    bool made = false;
    if (strlen(dir) >= sizeof s->dir || dir[0] == '\0') {
        return kvs__fail(err, KVS_E_RANGE, "store", "the directory's name has %zu bytes",
                         strlen(dir));
    }
    memcpy(s->dir, dir, strlen(dir) + 1);
    (void)kvs__path(s->entries_dir, s->dir, "entries");
    (void)kvs__path(s->blocks_dir, s->dir, "blocks");
    (void)kvs__path(s->aside_dir, s->dir, "quarantine");
    kvs_status st = make_dir(s, s->dir, &made, err);
    if (st == KVS_OK) {
        st = take_lock(s, err);
    }
    made = false;
    const char *const subs[] = {s->entries_dir, s->blocks_dir, s->aside_dir};
    for (size_t i = 0; i < KVS_COUNT(subs) && st == KVS_OK; i++) {
        st = make_dir(s, subs[i], &made, err);
    }
    if (st == KVS_OK && made) {
        int e = s->v->sync_dir(s->v, s->dir);
        st = e == 0 ? KVS_OK : kvs__io(err, e, "flush", s->dir);
    }
    return st;
}

static kvs_status start_thread(kvs_store *s, pthread_t *id, void *(*fn)(void *), bool *has,
                               kvs_err *err)
{
    int e = pthread_create(id, NULL, fn, s);
    *has = e == 0;
    return e == 0 ? KVS_OK : kvs__fail_errno(err, KVS_E_NOMEM, e, "store", "cannot start a thread");
}

static kvs_status start(kvs_store *s, const char *dir, const kvs_store_opts *opts, kvs_err *err)
{
    kvs_status st = read_opts(s, opts, err);
    if (st == KVS_OK) {
        st = kvs__pool_new(s->ctx, s->opts.n_threads, &s->pool, err);
    }
    if (st == KVS_OK) {
        s->damaged_cap = DAMAGED_CAP;
        s->damaged = kvs__calloc(s->ctx, DAMAGED_CAP, sizeof *s->damaged);
        st = s->damaged ? KVS_OK : kvs__nomem(err, "store", DAMAGED_CAP * sizeof *s->damaged);
    }
    if (st == KVS_OK) {
        st = make_dirs(s, dir, err);
    }
    if (st == KVS_OK) {
        st = kvs__scan(s, err);
    }
    if (st == KVS_OK && !s->read_only) {
        /* a limit that can't be kept now is told by the figures and by the next put */
        (void)kvs__make_room(s, 0, NULL);
        (void)kvs__reclaim(s);
    }
    if (st == KVS_OK && !s->read_only && !(s->opts.flags & KVS_STORE_NO_THREADS)) {
        st = start_thread(s, &s->writer, kvs__writer_main, &s->has_writer, err);
    }
    if (st == KVS_OK && !(s->opts.flags & KVS_STORE_NO_THREADS)) {
        st = start_thread(s, &s->reader, kvs__reader_main, &s->has_reader, err);
    }
    return st;
}

kvs_status kvs__store_open_vfs(kvs_ctx *ctx, kvs__vfs *v, const char *dir,
                               const kvs_store_opts *opts, kvs_store **out, kvs_err *err)
{
    if (!ctx || !dir || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "ctx, dir or out is NULL");
    }
    *out = NULL;
    kvs_store *s = kvs__calloc(ctx, 1, sizeof *s);
    if (!s) {
        return kvs__nomem(err, "store", sizeof *s);
    }
    s->ctx = ctx;
    s->v = v;
    s->oldest = KVS__NONE;
    s->newest = KVS__NONE;
    s->free_block = KVS__NONE;
    s->free_slot = KVS__NONE;
    s->next_seg = 1;
    kvs__chain_init(&s->chain, kvs__entry_links, s);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_mutex_init(&s->role, NULL);
    (void)pthread_mutex_init(&s->pool_lock, NULL);
    (void)pthread_cond_init(&s->changed, NULL);
    kvs_status st = start(s, dir, opts, err);
    if (st != KVS_OK) {
        kvs_store_close(s);
        return st;
    }
    *out = s;
    return KVS_OK;
}

kvs_status kvs_store_open(kvs_ctx *ctx, const char *dir, const kvs_store_opts *opts,
                          kvs_store **out, kvs_err *err)
{
    return kvs__store_open_vfs(ctx, kvs__vfs_posix(), dir, opts, out, err);
}

static void stop_threads(kvs_store *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
    if (s->has_reader) {
        (void)pthread_join(s->reader, NULL);
    }
    if (s->has_writer) {
        (void)pthread_join(s->writer, NULL);
    }
}

void kvs_store_close(kvs_store *s)
{
    if (!s) {
        return;
    }
    stop_threads(s);
    if (s->lock_file) {
        kvs__settle_damage(s);
        (void)kvs__uses_write(s);
        s->v->unlock(s->v, s->lock_file);
    }
    for (size_t i = 0; i < s->slots_used; i++) {
        kvs__entry_free(s, s->slots[i].e);
    }
    kvs_ctx *ctx = s->ctx;
    kvs__pool_free(s->pool);
    kvs__chain_free(ctx, &s->chain);
    kvs__idmap_free(ctx, &s->keys);
    kvs__idmap_free(ctx, &s->shas);
    kvs__free(ctx, s->slots, s->slots_cap * sizeof *s->slots);
    kvs__free(ctx, s->blocks, s->blocks_cap * sizeof *s->blocks);
    kvs__free(ctx, s->segs, s->segs_cap * sizeof *s->segs);
    kvs__free(ctx, s->damaged, s->damaged_cap * sizeof *s->damaged);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->role);
    (void)pthread_mutex_destroy(&s->pool_lock);
    (void)pthread_cond_destroy(&s->changed);
    kvs__free(ctx, s, sizeof *s);
}

/* ---- entries by name */

kvs_status kvs_store_pin(kvs_store *s, kvs_entry entry)
{
    if (!s) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, entry);
    bool ok = e && e->listed && e->pins < UINT32_MAX;
    if (ok) {
        e->pins++;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return ok ? KVS_OK : KVS_E_NOTFOUND;
}

kvs_status kvs_store_unpin(kvs_store *s, kvs_entry entry)
{
    if (!s) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, entry);
    bool ok = e && e->pins > 0;
    if (ok) {
        kvs__entry_unpin(s, e);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return ok ? KVS_OK : KVS_E_NOTFOUND;
}

kvs_status kvs_store_touch(kvs_store *s, kvs_entry entry)
{
    if (!s) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    kvs__entry *e = kvs__entry_of(s, entry);
    if (e) {
        kvs__entry_use(s, e);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return e ? KVS_OK : KVS_E_NOTFOUND;
}

kvs_status kvs_store_entry_info(kvs_store *s, kvs_entry entry, kvs_entry_info *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    (void)pthread_mutex_lock(&s->lock);
    const kvs__entry *e = kvs__entry_of(s, entry);
    if (e) {
        kvs__entry_info_of(e, &info);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return e ? kvs__stats_write(out, &info, sizeof info) : KVS_E_NOTFOUND;
}

kvs_status kvs_store_entry_part(kvs_store *s, kvs_entry entry, size_t i, kvs_store_part *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    kvs_status st = KVS_E_NOTFOUND;
    (void)pthread_mutex_lock(&s->lock);
    const kvs__entry *e = kvs__entry_of(s, entry);
    if (e && i < e->head.n_parts) {
        const kvs__part *p = &e->parts[i];
        memset(out, 0, sizeof *out);
        memcpy(out->name, p->name, sizeof out->name);
        out->kind = p->kind;
        out->layer = p->layer;
        out->bytes = p->bytes;
        out->chunk_bytes = p->chunk_bytes;
        st = KVS_OK;
    } else if (e) {
        st = KVS_NO;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

bool kvs__store_known(kvs_store *s, kvs_entry entry, size_t part, uint64_t at, uint64_t bytes,
                      kvs__known *out)
{
    bool found = false;
    (void)pthread_mutex_lock(&s->lock);
    const kvs__entry *e = kvs__entry_of(s, entry);
    const kvs__part *p = e && part < e->head.n_parts ? &e->parts[part] : NULL;
    if (p && at % p->chunk_bytes == 0 && at / p->chunk_bytes < p->n_chunks) {
        uint32_t k = (uint32_t)(at / p->chunk_bytes);
        const kvs__block *b = &s->blocks[e->chunks[p->first_chunk + k]];
        if (kvs__chunk_size(p, k) == bytes) {
            memcpy(out->sha, b->sha, sizeof out->sha);
            out->xxh = b->xxh;
            out->set = true;
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return found;
}

kvs_status kvs_store_entry_ids(kvs_store *s, kvs_entry entry, int32_t *ids, size_t n)
{
    if (!s || (!ids && n > 0)) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    const kvs__entry *e = kvs__entry_of(s, entry);
    kvs_status st = !e ? KVS_E_NOTFOUND : n > e->head.n_ids ? KVS_E_RANGE : KVS_OK;
    if (st == KVS_OK && n > 0) {
        memcpy(ids, e->ids, n * sizeof *ids);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

kvs_status kvs_store_entry_ns(kvs_store *s, kvs_entry entry, void *ns, size_t cap, size_t *ns_bytes)
{
    if (!s || (!ns && cap > 0)) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    const kvs__entry *e = kvs__entry_of(s, entry);
    size_t n = e && e->head.ns_bytes < cap ? e->head.ns_bytes : cap;
    if (e && n > 0) {
        memcpy(ns, e->ns, n);
    }
    if (e && ns_bytes) {
        *ns_bytes = e->head.ns_bytes;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return e ? KVS_OK : KVS_E_NOTFOUND;
}

kvs_status kvs_store_remove(kvs_store *s, kvs_entry entry, kvs_err *err)
{
    if (!s) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store is NULL");
    }
    if (s->read_only) {
        return kvs__fail(err, KVS_E_STATE, "store", "'%.120s' is open read-only", s->dir);
    }
    (void)pthread_mutex_lock(&s->role);
    kvs_status st = kvs__forget(s, entry, err);
    if (st == KVS_OK) {
        st = kvs__flush_entries(s, err);
    }
    (void)kvs__reclaim(s);
    (void)pthread_mutex_unlock(&s->role);
    return st;
}

kvs_status kvs_store_list(kvs_store *s, kvs_entry *cursor, kvs_entry_info *out)
{
    if (!s || !cursor || !out) {
        return KVS_E_INVAL;
    }
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    bool found = false;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = (uint32_t)*cursor; i < s->slots_used && !found; i++) {
        const kvs__entry *e = s->slots[i].e;
        if (e && e->listed) {
            kvs__entry_info_of(e, &info);
            *cursor = e->id;
            found = true;
        }
    }
    (void)pthread_mutex_unlock(&s->lock);
    return found ? kvs__stats_write(out, &info, sizeof info) : KVS_NO;
}

const char *kvs__store_dir(const kvs_store *s)
{
    return s->dir;
}

kvs_status kvs_store_get_stats(kvs_store *s, kvs_store_stats *out)
{
    if (!s || !out) {
        return KVS_E_INVAL;
    }
    (void)pthread_mutex_lock(&s->lock);
    kvs_store_stats st = s->stats;
    st.max_bytes = s->opts.max_bytes;
    st.gc_blocked = s->gc_blocked;
    st.live_bytes = kvs__live_bytes(s);
    for (size_t i = 0; i < s->slots_used; i++) {
        const kvs__entry *e = s->slots[i].e;
        st.live_bytes += e && e->listed ? e->head.file_bytes : 0;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return kvs__stats_write(out, &st, sizeof st);
}
