/* SPDX-License-Identifier: MIT */
/* transfer.c: verification of everything, and one entry to one file and back.
 *
 * An export file is a small header, an entry file and a segment file one after another, so that the
 * reader of either reads it too. Import trusts none of it: header, entry, table and the SHA-256 of
 * every block are checked before the entry is put like any other. */
#include <errno.h>
#include <string.h>

#include "store/kvstore.h"

#define EXPORT_HEAD 96u
#define ENTRY_LIMIT ((uint64_t)3 << 30)

static const char export_magic[8] = {'K', 'V', 'S', 'E', 'X', 'P', 'R', 'T'};

/* ---- verify */

typedef struct verify {
    kvs_store *s;
    uint8_t *seen; /* [n_seen] 1: block is good, 2: bad */
    size_t n_seen;
    void *buf;
    size_t buf_bytes;
    kvs_verify_result r;
} verify;

static kvs_status check_block(verify *v, kvs_entry id, uint32_t block, size_t part, uint64_t at,
                              size_t bytes, kvs_err *err)
{
    kvs_store_buf b = {part, at, bytes, v->buf};
    if (v->seen && block < v->n_seen && v->seen[block] == 1) {
        return KVS_OK;
    }
    if (v->buf_bytes < bytes) {
        kvs__free(v->s->ctx, v->buf, v->buf_bytes);
        v->buf = kvs__alloc(v->s->ctx, bytes);
        v->buf_bytes = v->buf ? bytes : 0;
        if (!v->buf) {
            return kvs__nomem(err, "store", bytes);
        }
        b.dst = v->buf;
    }
    kvs_status st = kvs__get_locked_out(v->s, id, &b, 1, true, err);
    if (v->seen && block < v->n_seen && (st == KVS_OK || st == KVS_E_FORMAT) &&
        v->seen[block] == 0) {
        v->seen[block] = st == KVS_OK ? 1 : 2;
        v->r.blocks++;
        v->r.bytes += bytes;
        v->r.bad_blocks += st == KVS_E_FORMAT;
    }
    return st;
}

/* The entry is pinned. */
static kvs_status check_entry(verify *v, const kvs__entry *e, kvs_err *err)
{
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < e->head.n_parts && st == KVS_OK; i++) {
        const kvs__part *p = &e->parts[i];
        for (uint32_t k = 0; k < p->n_chunks && st == KVS_OK; k++) {
            st = check_block(v, e->id, e->chunks[p->first_chunk + k], i,
                             (uint64_t)k * p->chunk_bytes, kvs__chunk_size(p, k), err);
        }
    }
    v->r.entries++;
    v->r.bad_entries += st == KVS_E_FORMAT;
    v->r.unreadable += st == KVS_E_IO;
    return st == KVS_E_NOMEM ? st : KVS_OK;
}

kvs_status kvs_store_verify(kvs_store *s, kvs_verify_result *out, kvs_err *err)
{
    verify v = {.s = s, .r = KVS_VERIFY_RESULT_INIT};
    kvs_status st = KVS_OK;
    if (!s || !out) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or out is NULL");
    }
    (void)pthread_mutex_lock(&s->role); /* no block changes its number meanwhile */
    (void)pthread_mutex_lock(&s->lock);
    v.n_seen = s->blocks_used;
    v.seen = kvs__calloc(s->ctx, v.n_seen, 1);
    st = v.seen ? KVS_OK : kvs__nomem(err, "store", v.n_seen);
    for (size_t i = 0; i < s->slots_used && st == KVS_OK; i++) {
        kvs__entry *e = s->slots[i].e;
        if (!e || !e->listed) {
            continue;
        }
        e->pins++;
        (void)pthread_mutex_unlock(&s->lock);
        st = check_entry(&v, e, err);
        (void)pthread_mutex_lock(&s->lock);
        kvs__entry_unpin(s, e);
    }
    (void)pthread_mutex_unlock(&s->lock);
    kvs__settle_damage(s);
    (void)kvs__reclaim(s);
    (void)pthread_mutex_unlock(&s->role);
    kvs__free(s->ctx, v.seen, v.n_seen);
    kvs__free(s->ctx, v.buf, v.buf_bytes);
    if (st != KVS_OK) {
        return st;
    }
    st = kvs__stats_write(out, &v.r, sizeof v.r);
    return st == KVS_OK && v.r.bad_entries > 0 ? KVS_NO : st;
}

/* ---- export */

typedef struct exporter {
    kvs_store *s;
    kvs__entry *e;
    kvs__pub pub;
    uint8_t *file; /* of the entry */
    uint8_t *table;
    uint32_t *blocks; /* each once, in order of mention */
    uint32_t n_blocks;
    kvs__idmap seen;
    void *buf;
    size_t buf_bytes;
} exporter;

static kvs_status distinct(exporter *x, kvs_err *err)
{
    const kvs__entry *e = x->e;
    kvs_status st = kvs__idmap_reserve(x->s->ctx, &x->seen, e->head.n_chunks, err);
    for (uint32_t i = 0; i < e->head.n_chunks && st == KVS_OK; i++) {
        size_t at = SIZE_MAX;
        if (kvs__idmap_next(&x->seen, e->chunks[i], &at) == KVS__NONE) {
            kvs__idmap_insert(&x->seen, e->chunks[i], x->n_blocks);
            x->blocks[x->n_blocks++] = i;
        }
    }
    return st;
}

/* Chunk i of the entry to the buffer, by the same way as any read. */
static kvs_status fetch(exporter *x, uint32_t i, kvs__block *b, kvs_err *err)
{
    const kvs__entry *e = x->e;
    size_t part = 0;
    while (i >= e->parts[part].first_chunk + e->parts[part].n_chunks) {
        part++;
    }
    const kvs__part *p = &e->parts[part];
    uint32_t k = i - p->first_chunk;
    (void)pthread_mutex_lock(&x->s->lock);
    *b = x->s->blocks[e->chunks[i]];
    (void)pthread_mutex_unlock(&x->s->lock);
    if (x->buf_bytes < b->bytes) {
        kvs__free(x->s->ctx, x->buf, x->buf_bytes);
        x->buf = kvs__alloc(x->s->ctx, b->bytes);
        x->buf_bytes = x->buf ? b->bytes : 0;
        if (!x->buf) {
            return kvs__nomem(err, "store", b->bytes);
        }
    }
    kvs_store_buf buf = {part, (uint64_t)k * p->chunk_bytes, b->bytes, x->buf};
    return kvs__get_locked_out(x->s, e->id, &buf, 1, true, err);
}

static kvs_status write_at(exporter *x, const void *data, size_t n, uint64_t at, kvs_err *err)
{
    int e = x->s->v->pwrite(x->s->v, x->pub.f, data, n, at);
    return e == 0 ? KVS_OK : kvs__io(err, e, "write", x->pub.tmp);
}

static kvs_status write_export(exporter *x, kvs_err *err)
{
    kvs_store *s = x->s;
    uint8_t head[KVS__SEG_HEAD];
    size_t entry_bytes = (size_t)x->e->head.file_bytes;
    uint64_t base = EXPORT_HEAD + entry_bytes;
    kvs__seg_head h = {0, 1, KVS__SEG_HEAD, s->v->now_ms(s->v), x->n_blocks, {0}};
    kvs_status st = KVS_OK;
    for (uint32_t i = 0; i < x->n_blocks && st == KVS_OK; i++) {
        kvs__block b;
        st = fetch(x, x->blocks[i], &b, err);
        if (st == KVS_OK) {
            kvs__block_rec r = {{0}, h.table_at, b.bytes, b.xxh};
            memcpy(r.sha, b.sha, 32);
            kvs__block_rec_write(x->table + (size_t)KVS__BLOCK_REC * i, &r);
            st = write_at(x, x->buf, b.bytes, base + h.table_at, err);
            h.table_at += b.bytes;
        }
    }
    size_t table = (size_t)KVS__BLOCK_REC * x->n_blocks;
    h.file_bytes = h.table_at + table;
    kvs__sha256_of(x->table, table, h.table_sha);
    kvs__seg_head_write(head, &h);
    if (st == KVS_OK && x->n_blocks > 0) {
        st = write_at(x, x->table, table, base + h.table_at, err);
        st = st == KVS_OK ? write_at(x, head, sizeof head, base, err) : st;
    }
    st = st == KVS_OK ? write_at(x, x->file, entry_bytes, EXPORT_HEAD, err) : st;
    uint8_t front[EXPORT_HEAD];
    memset(front, 0, sizeof front);
    memcpy(front, export_magic, sizeof export_magic);
    kvs__put32(front + 8, KVS_FORMAT_CURRENT);
    kvs__put32(front + 12, EXPORT_HEAD);
    kvs__put64(front + 16, base + (x->n_blocks > 0 ? h.file_bytes : 0));
    kvs__put64(front + 24, entry_bytes);
    kvs__put64(front + 32, x->n_blocks > 0 ? h.file_bytes : 0);
    kvs__sha256_of(front, 64, front + 64);
    return st == KVS_OK ? write_at(x, front, sizeof front, 0, err) : st;
}

static kvs_status export_pinned(exporter *x, const char *path, kvs_err *err)
{
    kvs_store *s = x->s;
    kvs__entry *e = x->e;
    char dir[KVS__PATH_MAX];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 1;
    const char *name = slash ? slash + 1 : path;
    if (n + 1 >= sizeof dir || name[0] == '\0') {
        return kvs__fail(err, KVS_E_INVAL, "store", "'%.140s' names no file", path);
    }
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    size_t chunks = e->head.n_chunks;
    x->file = kvs__alloc(s->ctx, (size_t)e->head.file_bytes);
    x->table = kvs__alloc(s->ctx, chunks * KVS__BLOCK_REC);
    x->blocks = kvs__alloc(s->ctx, chunks * sizeof *x->blocks);
    if (!x->file || !x->table || !x->blocks) {
        return kvs__nomem(err, "store", (size_t)e->head.file_bytes);
    }
    uint8_t *sha = x->file + e->head.file_bytes - (size_t)32 * chunks;
    (void)pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < chunks; i++) {
        memcpy(sha + 32 * i, s->blocks[e->chunks[i]].sha, 32);
    }
    (void)pthread_mutex_unlock(&s->lock);
    kvs__entry_write(x->file, &e->head, e->ns, e->ids, e->parts, NULL);
    kvs_status st = distinct(x, err);
    if (st != KVS_OK) {
        return st;
    }
    int rc = kvs__pub_begin(&x->pub, s->v, n == 0 ? "/" : dir, name);
    if (rc != 0) {
        return kvs__io(err, rc, "create", path);
    }
    st = write_export(x, err);
    if (st != KVS_OK) {
        kvs__pub_abort(&x->pub);
        return st;
    }
    rc = kvs__pub_commit(&x->pub, true);
    return rc == 0 ? KVS_OK : kvs__io(err, rc, "publish", path);
}

kvs_status kvs_store_export(kvs_store *s, kvs_entry entry, const char *path, kvs_err *err)
{
    exporter x = {.s = s};
    if (!s || !path) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or path is NULL");
    }
    if (kvs_store_pin(s, entry) != KVS_OK) {
        return kvs__fail(err, KVS_E_NOTFOUND, "store", "the entry is gone");
    }
    (void)pthread_mutex_lock(&s->lock);
    x.e = kvs__entry_of(s, entry);
    (void)pthread_mutex_unlock(&s->lock);
    size_t chunks = x.e->head.n_chunks;
    kvs_status st = export_pinned(&x, path, err);
    kvs__free(s->ctx, x.file, (size_t)x.e->head.file_bytes);
    kvs__free(s->ctx, x.table, chunks * KVS__BLOCK_REC);
    kvs__free(s->ctx, x.blocks, chunks * sizeof *x.blocks);
    kvs__free(s->ctx, x.buf, x.buf_bytes);
    kvs__idmap_free(s->ctx, &x.seen);
    (void)kvs_store_unpin(s, entry);
    return st;
}

/* ---- import */

typedef struct importer {
    kvs_store *s;
    kvs__file *f;
    uint64_t file_bytes;
    uint64_t entry_bytes;
    uint64_t seg_bytes;
    uint8_t *entry;
    uint8_t *table;
    uint32_t n_blocks;
    kvs__idmap shas;
    uint8_t *data; /* of all parts */
    kvs_store_part *parts;
    int32_t *ids;
    kvs__entry_view v;
} importer;

static kvs_status damaged(kvs_err *err, const char *why)
{
    return kvs__fail(err, KVS_E_FORMAT, "store", "the file does not hold an entry: %s", why);
}

static kvs_status read_at(importer *m, void *dst, size_t n, uint64_t at, kvs_err *err)
{
    size_t got = 0;
    int e = m->s->v->pread(m->s->v, m->f, dst, n, at, &got);
    if (e != 0) {
        return kvs__fail_errno(err, KVS_E_IO, e, "store", "cannot read the file");
    }
    return got == n ? KVS_OK : damaged(err, "it is too short");
}

static kvs_status read_front(importer *m, kvs_err *err)
{
    uint8_t front[EXPORT_HEAD];
    uint8_t sha[32];
    kvs_status st = read_at(m, front, sizeof front, 0, err);
    if (st != KVS_OK) {
        return st;
    }
    kvs__sha256_of(front, 64, sha);
    if (memcmp(front, export_magic, sizeof export_magic) != 0 || memcmp(sha, front + 64, 32) != 0) {
        return damaged(err, "the header does not verify");
    }
    if (kvs__le32(front + 8) < KVS_FORMAT_MIN || kvs__le32(front + 8) > KVS_FORMAT_CURRENT) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "store", "format %u is not read here",
                         kvs__le32(front + 8));
    }
    m->entry_bytes = kvs__le64(front + 24);
    m->seg_bytes = kvs__le64(front + 32);
    if (kvs__le64(front + 16) != m->file_bytes || m->entry_bytes > ENTRY_LIMIT ||
        m->entry_bytes > m->file_bytes - EXPORT_HEAD ||
        m->seg_bytes != m->file_bytes - EXPORT_HEAD - m->entry_bytes) {
        return damaged(err, "the lengths do not agree");
    }
    m->entry = kvs__alloc(m->s->ctx, (size_t)m->entry_bytes);
    if (!m->entry) {
        return kvs__nomem(err, "store", (size_t)m->entry_bytes);
    }
    st = read_at(m, m->entry, (size_t)m->entry_bytes, EXPORT_HEAD, err);
    if (st == KVS_OK && kvs__entry_parse(m->entry, (size_t)m->entry_bytes, &m->v) != KVS__GOOD) {
        st = damaged(err, m->v.why);
    }
    return st;
}

static kvs_status read_blocks_table(importer *m, kvs_err *err)
{
    uint8_t head[KVS__SEG_HEAD];
    kvs__seg_head h;
    const char *why = "";
    uint64_t base = EXPORT_HEAD + m->entry_bytes;
    if (m->seg_bytes == 0) {
        return m->v.head.n_chunks == 0 ? KVS_OK : damaged(err, "the blocks are missing");
    }
    kvs_status st = m->seg_bytes < sizeof head ? damaged(err, "it is too short")
                                               : read_at(m, head, sizeof head, base, err);
    if (st != KVS_OK) {
        return st;
    }
    if (kvs__seg_head_parse(head, sizeof head, m->seg_bytes, &h, &why) != KVS__GOOD) {
        return damaged(err, why);
    }
    m->n_blocks = h.n_blocks;
    size_t bytes = (size_t)KVS__BLOCK_REC * h.n_blocks;
    m->table = kvs__alloc(m->s->ctx, bytes);
    if (!m->table) {
        return kvs__nomem(err, "store", bytes);
    }
    st = read_at(m, m->table, bytes, base + h.table_at, err);
    if (st == KVS_OK && !kvs__seg_table_check(&h, m->table, &why)) {
        st = damaged(err, why);
    }
    if (st == KVS_OK) {
        st = kvs__idmap_reserve(m->s->ctx, &m->shas, h.n_blocks, err);
    }
    for (uint32_t i = 0; i < h.n_blocks && st == KVS_OK; i++) {
        kvs__idmap_insert(&m->shas, kvs__head64(m->table + (size_t)KVS__BLOCK_REC * i), i);
    }
    return st;
}

static kvs_status read_chunk(importer *m, const uint8_t sha[32], void *dst, size_t bytes,
                             kvs_err *err)
{
    size_t at = SIZE_MAX;
    uint8_t digest[32];
    for (;;) {
        uint32_t i = kvs__idmap_next(&m->shas, kvs__head64(sha), &at);
        kvs__block_rec r;
        if (i == KVS__NONE) {
            return damaged(err, "a block is missing");
        }
        kvs__block_rec_read(m->table + (size_t)KVS__BLOCK_REC * i, &r);
        if (memcmp(r.sha, sha, 32) != 0 || r.bytes != bytes) {
            continue;
        }
        kvs_status st = read_at(m, dst, bytes, EXPORT_HEAD + m->entry_bytes + r.at, err);
        kvs__sha256_of(dst, bytes, digest);
        if (st == KVS_OK && (memcmp(digest, sha, 32) != 0 || kvs__xxh3(dst, bytes) != r.xxh)) {
            st = damaged(err, "a block does not verify");
        }
        return st;
    }
}

static kvs_status read_parts(importer *m, kvs_err *err)
{
    kvs_ctx *ctx = m->s->ctx;
    const kvs__entry_head *h = &m->v.head;
    /* checked before memory is taken: the blocks of the file are at least so many */
    if (h->data_bytes > SIZE_MAX / 2) {
        return damaged(err, "the parts are too large");
    }
    m->data = kvs__alloc(ctx, (size_t)h->data_bytes);
    m->parts = kvs__calloc(ctx, h->n_parts, sizeof *m->parts);
    m->ids = kvs__alloc(ctx, (size_t)h->n_ids * sizeof *m->ids);
    if (!m->data || !m->parts || !m->ids) {
        return kvs__nomem(err, "store", (size_t)h->data_bytes);
    }
    for (uint32_t i = 0; i < h->n_ids; i++) {
        m->ids[i] = (int32_t)kvs__le32(m->v.ids + (size_t)4 * i);
    }
    kvs_status st = KVS_OK;
    uint8_t *to = m->data;
    const uint8_t *sha = m->v.chunks;
    for (uint32_t i = 0; i < h->n_parts && st == KVS_OK; i++) {
        kvs__part p;
        kvs__entry_part(&m->v, i, &p);
        memcpy(m->parts[i].name, p.name, sizeof p.name);
        m->parts[i].kind = p.kind;
        m->parts[i].layer = p.layer;
        m->parts[i].bytes = p.bytes;
        m->parts[i].data = to;
        m->parts[i].chunk_bytes = p.chunk_bytes;
        for (uint32_t k = 0; k < p.n_chunks && st == KVS_OK; k++, sha += 32) {
            size_t n = kvs__chunk_size(&p, k);
            st = read_chunk(m, sha, to, n, err);
            to += n;
        }
    }
    return st;
}

static kvs_status import_open(importer *m, kvs_entry *out, kvs_err *err)
{
    kvs_status st = read_front(m, err);
    if (st == KVS_OK) {
        st = read_blocks_table(m, err);
    }
    if (st == KVS_OK) {
        st = read_parts(m, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    const kvs__entry_head *h = &m->v.head;
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    o.flags = KVS_PUT_DURABLE;
    o.kind = h->kind;
    o.entry_flags = h->flags;
    o.priority = h->priority;
    o.cost = h->cost;
    kvs_store_key key = {h->identity, m->v.ns, h->ns_bytes, m->ids, h->n_ids};
    st = kvs_store_put(m->s, &key, m->parts, h->n_parts, &o, err);
    if (st == KVS_OK && out) {
        (void)pthread_mutex_lock(&m->s->lock);
        uint32_t slot = kvs__entry_by_key(m->s, h->key);
        *out = slot == KVS__NONE ? 0 : m->s->slots[slot].e->id;
        (void)pthread_mutex_unlock(&m->s->lock);
    }
    return st;
}

kvs_status kvs_store_import(kvs_store *s, const char *path, kvs_entry *out, kvs_err *err)
{
    importer m = {.s = s};
    if (!s || !path) {
        return kvs__fail(err, KVS_E_INVAL, "store", "store or path is NULL");
    }
    int e = s->v->open(s->v, path, KVS__OPEN_READ, &m.f);
    if (e != 0) {
        return kvs__io(err, e, "open", path);
    }
    e = s->v->size(s->v, m.f, &m.file_bytes);
    kvs_status st = e != 0 ? kvs__io(err, e, "examine", path) : KVS_OK;
    if (st == KVS_OK) {
        st = m.file_bytes < EXPORT_HEAD ? damaged(err, "it is too short")
                                        : import_open(&m, out, err);
    }
    s->v->close(s->v, m.f);
    kvs__free(s->ctx, m.entry, (size_t)m.entry_bytes);
    kvs__free(s->ctx, m.table, (size_t)KVS__BLOCK_REC * m.n_blocks);
    kvs__free(s->ctx, m.data, (size_t)m.v.head.data_bytes);
    kvs__free(s->ctx, m.parts, m.v.head.n_parts * sizeof *m.parts);
    kvs__free(s->ctx, m.ids, (size_t)m.v.head.n_ids * sizeof *m.ids);
    kvs__idmap_free(s->ctx, &m.shas);
    return st;
}
