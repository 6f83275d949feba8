/* SPDX-License-Identifier: MIT */
/* scan.c: builds the index from the files, and nothing else: headers and tables of segments, whole
 * entry files, then the facts of use.
 *
 * What a file is decides what happens to it: good: listed; of another format: left alone; read, but
 * does not verify: set aside; could not be read: left alone (I6). A file that was left alone may
 * refer to blocks, so nothing is reclaimed while there is one (I4); and an entry whose blocks are
 * missing is set aside only if every segment could be read. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "store/kvstore.h"

#define NAME_MAX_BYTES 80u
#define ENTRY_LIMIT    ((uint64_t)3 << 30) /* bytes of an entry file that are read */

typedef struct names {
    kvs_store *s;
    char (*v)[NAME_MAX_BYTES];
    size_t n;
    size_t cap;
    bool nomem;
} names;

typedef struct scan {
    kvs_store *s;
    kvs__entry **entries; /* loaded, not listed yet */
    size_t n;
    size_t cap;
    bool segments_skipped;
} scan;

static bool add_name(void *arg, const char *name)
{
    names *l = arg;
    size_t len = strlen(name);
    if (len >= NAME_MAX_BYTES) {
        return true; /* none of ours */
    }
    void *p = kvs__grow(l->s->ctx, l->v, &l->cap, l->n, l->n + 1, NAME_MAX_BYTES);
    if (!p) {
        l->nomem = true;
        return false;
    }
    l->v = p;
    memcpy(l->v[l->n++], name, len + 1);
    return true;
}

static kvs_status list_names(kvs_store *s, const char *dir, names *out, kvs_err *err)
{
    *out = (names){s, NULL, 0, 0, false};
    int e = s->v->list(s->v, dir, add_name, out);
    if (out->nomem) {
        return kvs__nomem(err, "store", out->cap * NAME_MAX_BYTES * 2);
    }
    if (e == ENOENT && s->read_only) { /* a directory that was never written to */
        return KVS_OK;
    }
    return e == 0 ? KVS_OK : kvs__io(err, e, "list", dir);
}

static void free_names(names *l)
{
    kvs__free(l->s->ctx, l->v, l->cap * NAME_MAX_BYTES);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name);
    size_t m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* True if the name is handled: a temporary, or no regular file. Narrows the mode otherwise. */
static bool not_ours(kvs_store *s, const char *dir, const char *name)
{
    char path[KVS__PATH_MAX];
    kvs__stat st;
    if (!kvs__path(path, dir, name)) {
        return true;
    }
    if (ends_with(name, ".tmp")) { /* the lock says that nobody is writing it */
        if (!s->read_only && s->v->unlink(s->v, path) == 0) {
            s->stats.temporaries++;
        }
        return true;
    }
    if (s->v->stat(s->v, path, &st) == 0) {
        if (!st.is_file) {
            return true;
        }
        if ((st.mode & 077u) && !s->read_only) {
            (void)s->v->chmod(s->v, path, 0600);
        }
    }
    return false;
}

/* `n` hex digits and then `end`. */
static bool is_hex_name(const char *name, size_t n, const char *end)
{
    return strspn(name, "0123456789abcdef") == n && strcmp(name + n, end) == 0;
}

kvs_status kvs__slurp(kvs_store *s, const char *path, uint64_t limit, uint8_t **data, size_t *bytes,
                      kvs_err *err)
{
    kvs__file *f = NULL;
    uint64_t size = 0;
    size_t got = 0;
    int e = s->v->open(s->v, path, KVS__OPEN_READ, &f);
    if (e != 0) {
        return kvs__io(err, e, "open", path);
    }
    e = s->v->size(s->v, f, &size);
    if (e == 0 && size > limit) {
        s->v->close(s->v, f);
        return kvs__fail(err, KVS_E_FORMAT, "store", "'%.120s' is too large", path);
    }
    *bytes = (size_t)size;
    *data = e == 0 ? kvs__alloc(s->ctx, *bytes) : NULL;
    if (e == 0 && *data) {
        e = s->v->pread(s->v, f, *data, *bytes, 0, &got);
    }
    s->v->close(s->v, f);
    if (e == 0 && !*data) {
        return kvs__nomem(err, "store", *bytes);
    }
    if (e != 0 || got != *bytes) {
        kvs__free(s->ctx, *data, *bytes);
        *data = NULL;
        return kvs__io(err, e ? e : EIO, "read", path);
    }
    return KVS_OK;
}

static void skip(kvs_store *s, const char *name, const kvs_err *err)
{
    s->stats.unreadable++;
    s->gc_blocked = true;
    kvs__reason(s, "%.20s...: %.120s", name, err->msg);
}

/* ---- segments */

static kvs_status read_table(kvs_store *s, kvs__file *f, uint64_t file_bytes, kvs__seg_head *head,
                             uint8_t **table, kvs__verdict *verdict, const char **why, kvs_err *err)
{
    uint8_t first[KVS__SEG_HEAD];
    size_t got = 0;
    int e = s->v->pread(s->v, f, first, sizeof first, 0, &got);
    if (e != 0) {
        return kvs__fail_errno(err, KVS_E_IO, e, "store", "cannot read a segment");
    }
    *verdict = kvs__seg_head_parse(first, got, file_bytes, head, why);
    if (*verdict != KVS__GOOD) {
        return KVS_OK;
    }
    size_t bytes = (size_t)KVS__BLOCK_REC * head->n_blocks;
    *table = kvs__alloc(s->ctx, bytes);
    if (!*table) {
        return kvs__nomem(err, "store", bytes);
    }
    e = s->v->pread(s->v, f, *table, bytes, head->table_at, &got);
    if (e != 0) {
        return kvs__fail_errno(err, KVS_E_IO, e, "store", "cannot read a segment");
    }
    if (got != bytes || !kvs__seg_table_check(head, *table, why)) {
        *verdict = KVS__DAMAGED;
    }
    return KVS_OK;
}

/* Newest segment first, so that of two copies of a block the newer one is kept. */
static kvs_status add_segment(kvs_store *s, const kvs__seg_head *head, const uint8_t *table,
                              kvs_err *err)
{
    kvs_status st = kvs__segs_reserve(s, 1, err);
    if (st == KVS_OK) {
        st = kvs__blocks_reserve(s, head->n_blocks, err);
    }
    if (st != KVS_OK) {
        return st;
    }
    uint32_t seg = kvs__seg_new(s, head->id, head->file_bytes);
    for (uint32_t i = 0; i < head->n_blocks; i++) {
        kvs__block_rec r;
        kvs__block_rec_read(table + (size_t)KVS__BLOCK_REC * i, &r);
        if (kvs__block_find(s, r.sha, r.bytes) == KVS__NONE) {
            uint32_t b = kvs__block_new(s, r.sha, (uint32_t)r.bytes, r.xxh);
            kvs__block_place(s, b, seg, r.at);
        }
    }
    return KVS_OK;
}

static uint64_t hex_value(const char *name)
{
    uint64_t x = 0;
    for (size_t i = 0; i < 16; i++) {
        x = x << 4 | (uint64_t)(name[i] <= '9' ? name[i] - '0' : name[i] - 'a' + 10);
    }
    return x;
}

static kvs_status scan_segment(scan *c, const char *name, kvs_err *err)
{
    kvs_store *s = c->s;
    char path[KVS__PATH_MAX];
    kvs__file *f = NULL;
    uint8_t *table = NULL;
    uint64_t size = 0;
    kvs__seg_head head = {0};
    kvs__verdict verdict = KVS__DAMAGED;
    const char *why = "";
    kvs_err e1;
    memset(&e1, 0, sizeof e1);
    (void)kvs__path(path, s->blocks_dir, name);
    int e = s->v->open(s->v, path, KVS__OPEN_READ, &f);
    e = e ? e : s->v->size(s->v, f, &size);
    kvs_status st = e != 0 ? kvs__io(&e1, e, "open", path)
                           : read_table(s, f, size, &head, &table, &verdict, &why, &e1);
    if (f) {
        s->v->close(s->v, f);
    }
    if (st == KVS_OK && verdict == KVS__GOOD && head.id != hex_value(name)) {
        verdict = KVS__DAMAGED;
        why = "it bears another number";
    }
    if (st == KVS_E_IO) {
        c->segments_skipped = true;
        skip(s, name, &e1);
        st = KVS_OK;
    } else if (st == KVS_OK && verdict == KVS__OTHER_FORMAT) {
        c->segments_skipped = true;
        s->stats.other_format++;
        kvs__reason(s, "%.20s: a segment of another format", name);
    } else if (st == KVS_OK && verdict == KVS__DAMAGED) {
        kvs__set_aside(s, s->blocks_dir, name, why);
    } else if (st == KVS_OK) {
        st = add_segment(s, &head, table, err);
    } else if (err) {
        *err = e1;
    }
    kvs__free(s->ctx, table, (size_t)KVS__BLOCK_REC * head.n_blocks);
    return st;
}

/* Names in falling order, by heap sort: no memory, no surprises. */
static void sink(char (*v)[NAME_MAX_BYTES], size_t i, size_t n)
{
    char tmp[NAME_MAX_BYTES];
    for (size_t k = 2 * i + 1; k < n; k = 2 * i + 1) {
        k += k + 1 < n && strcmp(v[k + 1], v[k]) < 0;
        if (strcmp(v[k], v[i]) >= 0) {
            return;
        }
        memcpy(tmp, v[k], sizeof tmp);
        memcpy(v[k], v[i], sizeof tmp);
        memcpy(v[i], tmp, sizeof tmp);
        i = k;
    }
}

static void sort_falling(names *l)
{
    char tmp[NAME_MAX_BYTES];
    for (size_t i = l->n / 2; i-- > 0;) {
        sink(l->v, i, l->n);
    }
    for (size_t n = l->n; n > 1; n--) {
        memcpy(tmp, l->v[0], sizeof tmp);
        memcpy(l->v[0], l->v[n - 1], sizeof tmp);
        memcpy(l->v[n - 1], tmp, sizeof tmp);
        sink(l->v, 0, n - 1);
    }
}

static kvs_status scan_segments(scan *c, kvs_err *err)
{
    names l;
    kvs_status st = list_names(c->s, c->s->blocks_dir, &l, err);
    if (st == KVS_OK) {
        sort_falling(&l);
    }
    for (size_t i = 0; i < l.n && st == KVS_OK; i++) {
        bool hex = is_hex_name(l.v[i], 16, ".kvb");
        if (hex && hex_value(l.v[i]) < UINT64_MAX / 2 && hex_value(l.v[i]) >= c->s->next_seg) {
            c->s->next_seg = hex_value(l.v[i]) + 1; /* numbers of files left alone are taken too */
        }
        if (!not_ours(c->s, c->s->blocks_dir, l.v[i]) && hex) {
            st = scan_segment(c, l.v[i], err);
        }
    }
    free_names(&l);
    return st;
}

/* ---- entries */

static kvs_status load_entry(kvs_store *s, const kvs__entry_view *v, kvs__entry **out, kvs_err *err)
{
    kvs__entry *e = kvs__entry_new(s, &v->head, err);
    if (!e) {
        return KVS_E_NOMEM;
    }
    if (v->head.ns_bytes > 0) {
        memcpy(e->ns, v->ns, v->head.ns_bytes);
    }
    for (uint32_t i = 0; i < v->head.n_ids; i++) {
        e->ids[i] = (int32_t)kvs__le32(v->ids + (size_t)4 * i);
    }
    uint32_t chunk = 0;
    for (uint32_t i = 0; i < v->head.n_parts; i++) {
        kvs__entry_part(v, i, &e->parts[i]);
        e->parts[i].first_chunk = chunk;
        chunk += e->parts[i].n_chunks;
    }
    *out = e;
    return KVS_OK;
}

/* References to all blocks; false and none where one is missing. */
static bool take_blocks(kvs_store *s, kvs__entry *e, const uint8_t *chunks)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->head.n_parts; i++) {
        for (uint32_t k = 0; k < e->parts[i].n_chunks; k++, n++) {
            uint32_t b =
                kvs__block_find(s, chunks + (size_t)32 * n, kvs__chunk_size(&e->parts[i], k));
            if (b == KVS__NONE) {
                while (n > 0) {
                    kvs__block_unref(s, e->chunks[--n]);
                }
                return false;
            }
            e->chunks[n] = b;
            kvs__block_ref(s, b);
        }
    }
    return true;
}

static kvs_status keep(scan *c, kvs__entry *e, kvs_err *err)
{
    kvs_store *s = c->s;
    kvs__entry **p = kvs__grow(s->ctx, c->entries, &c->cap, c->n, c->n + 1, sizeof(kvs__entry *));
    if (!p) {
        return kvs__nomem(err, "store", sizeof(kvs__entry *));
    }
    c->entries = p;
    c->entries[c->n++] = e;
    return KVS_OK;
}

static kvs_status good_entry(scan *c, const char *name, const kvs__entry_view *v, kvs_err *err)
{
    kvs_store *s = c->s;
    kvs__entry *e = NULL;
    kvs_status st = load_entry(s, v, &e, err);
    if (st != KVS_OK) {
        return st;
    }
    if (!take_blocks(s, e, v->chunks)) {
        kvs__entry_free(s, e);
        if (c->segments_skipped || s->read_only) {
            s->stats.unreadable++;
            s->gc_blocked = true;
            kvs__reason(s, "%.20s...: a block is in a segment that was not read", name);
        } else {
            kvs__set_aside(s, s->entries_dir, name, "a block is missing");
        }
        return KVS_OK;
    }
    e->foreign = !s->any_identity && memcmp(e->head.identity, s->identity, 32) != 0;
    e->tick = 1; /* uses_read knows better */
    st = keep(c, e, err);
    if (st != KVS_OK) {
        kvs__entry_free(s, e);
    }
    return st;
}

static kvs_status scan_entry(scan *c, const char *name, kvs_err *err)
{
    kvs_store *s = c->s;
    char path[KVS__PATH_MAX];
    char want[KVS__ENTRY_NAME + 1];
    uint8_t *data = NULL;
    size_t bytes = 0;
    kvs__entry_view v;
    kvs_err e1;
    memset(&e1, 0, sizeof e1);
    (void)kvs__path(path, s->entries_dir, name);
    kvs_status st = kvs__slurp(s, path, ENTRY_LIMIT, &data, &bytes, &e1);
    if (st == KVS_E_IO) {
        skip(s, name, &e1);
        return KVS_OK;
    }
    if (st == KVS_E_NOMEM) {
        if (err) {
            *err = e1;
        }
        return st;
    }
    kvs__verdict verdict = st == KVS_OK ? kvs__entry_parse(data, bytes, &v) : KVS__DAMAGED;
    const char *why = st == KVS_OK ? v.why : "too large for an entry";
    st = KVS_OK;
    if (verdict == KVS__GOOD) {
        kvs__entry_name(v.head.key, want);
        if (strcmp(want, name) != 0) {
            verdict = KVS__DAMAGED;
            why = "it bears the name of another entry";
        }
    }
    if (verdict == KVS__OTHER_FORMAT) {
        s->stats.other_format++;
        s->gc_blocked = true;
        kvs__reason(s, "%.20s...: an entry of another format", name);
    } else if (verdict == KVS__DAMAGED) {
        kvs__set_aside(s, s->entries_dir, name, why);
    } else {
        st = good_entry(c, name, &v, err);
    }
    kvs__free(s->ctx, data, bytes);
    return st;
}

static void sink_entry(kvs__entry **v, size_t i, size_t n)
{
    for (size_t k = 2 * i + 1; k < n; k = 2 * i + 1) {
        k += k + 1 < n && v[k + 1]->head.created_ms > v[k]->head.created_ms;
        if (v[k]->head.created_ms <= v[i]->head.created_ms) {
            return;
        }
        kvs__entry *tmp = v[k];
        v[k] = v[i];
        v[i] = tmp;
        i = k;
    }
}

static void sort_by_age(kvs__entry **v, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) {
        sink_entry(v, i, n);
    }
    for (; n > 1; n--) {
        kvs__entry *tmp = v[0];
        v[0] = v[n - 1];
        v[n - 1] = tmp;
        sink_entry(v, 0, n - 1);
    }
}

/* Oldest first; those that the uses file does not know count as used when they were made, after
 * all that it knows. The policy hears of each when its facts are complete. */
static kvs_status list_all(scan *c, kvs_err *err)
{
    kvs_store *s = c->s;
    void (*add)(void *, const kvs_entry_info *) = s->policy.add;
    kvs_status st = KVS_OK;
    s->policy.add = NULL;
    s->tick = 1;
    sort_by_age(c->entries, c->n);
    size_t i = 0;
    for (; i < c->n && st == KVS_OK; i++) {
        st = kvs__entries_reserve(s, c->entries[i]->n_levels, err);
        if (st == KVS_OK) {
            kvs__entry_list(s, c->entries[i]);
        } else {
            i--; /* not listed: freed by the caller */
        }
    }
    if (i < c->n) {
        memmove(c->entries, c->entries + i, (c->n - i) * sizeof(kvs__entry *));
    }
    c->n -= i;
    s->policy.add = add;
    if (st != KVS_OK) {
        return st;
    }
    kvs__uses_read(s);
    while (s->oldest != KVS__NONE && s->slots[s->oldest].e->tick == 1) {
        kvs__entry_recall(s, s->oldest, ++s->tick, 0);
    }
    for (uint32_t k = s->oldest; k != KVS__NONE && add; k = s->slots[k].e->newer) {
        kvs_entry_info info;
        kvs__entry_info_of(s->slots[k].e, &info);
        add(s->policy.user, &info);
    }
    return KVS_OK;
}

static kvs_status scan_entries(scan *c, kvs_err *err)
{
    names l;
    kvs_status st = list_names(c->s, c->s->entries_dir, &l, err);
    for (size_t i = 0; i < l.n && st == KVS_OK; i++) {
        if (!not_ours(c->s, c->s->entries_dir, l.v[i]) && is_hex_name(l.v[i], 64, ".kve")) {
            st = scan_entry(c, l.v[i], err);
        }
    }
    free_names(&l);
    return st;
}

kvs_status kvs__scan(kvs_store *s, kvs_err *err)
{
    char path[KVS__PATH_MAX];
    scan c = {.s = s};
    if (!s->read_only && kvs__path(path, s->dir, "uses.tmp") && s->v->unlink(s->v, path) == 0) {
        s->stats.temporaries++;
    }
    kvs_status st = scan_segments(&c, err);
    if (st == KVS_OK) {
        st = scan_entries(&c, err);
    }
    if (st == KVS_OK) {
        st = list_all(&c, err);
    }
    for (size_t i = 0; i < c.n; i++) {
        kvs__entry_free(s, c.entries[i]);
    }
    kvs__free(s->ctx, c.entries, c.cap * sizeof(kvs__entry *));
    return st;
}
