/* SPDX-License-Identifier: MIT */
/* memfs.h: a file system in memory behind vfs.h that remembers every write, flush, rename and unlink,
 * so that a test can build what a disk may hold after a crash at any point; it can also fail the
 * k-th call, or all calls from the k-th on.
 *
 * The crash model is as unkind as POSIX allows: what was written to a file since its last flush may be
 * there, missing, torn or garbage, each write by itself; a name that was made, moved or removed
 * since the last flush of its directory may or may not be; flushing a file says nothing of its name. */
#ifndef KVS_TESTS_SUPPORT_MEMFS_H
#define KVS_TESTS_SUPPORT_MEMFS_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vfs.h"

#define MEMFS_UNUSED __attribute__((unused))

typedef enum memfs_kind {
    MEMFS_WRITE,
    MEMFS_SYNC,
    MEMFS_CREATE,
    MEMFS_RENAME,
    MEMFS_UNLINK,
    MEMFS_SYNC_DIR
} memfs_kind;

typedef struct memfs_op {
    memfs_kind kind;
    int inode;
    uint64_t at;
    size_t n;
    uint8_t *data;
    char *path;
    char *to;
} memfs_op;

typedef struct memfs_inode {
    uint8_t *data;
    size_t n;
    bool is_dir;
    uint32_t mode;
} memfs_inode;

typedef struct memfs_name {
    char *path;
    int inode;
} memfs_name;

typedef struct memfs {
    kvs__vfs v;
    pthread_mutex_t lock;
    memfs_inode *inodes;
    int n_inodes;
    memfs_name *names;
    int n_names;
    memfs_op *ops;
    size_t n_ops;
    size_t cap_ops;
    bool record;
    bool locked;
    long calls;
    long fail_at; /* -1: never */
    bool fail_on; /* and every call after it */
    int fail_errno;
    bool fail_reads_only;
    uint64_t clock;
} memfs;

typedef enum memfs_crash {
    MEMFS_DROP_ALL, /* nothing that was not flushed */
    MEMFS_KEEP_ALL,
    MEMFS_NAMES_ONLY, /* names at once, data not */
    MEMFS_RANDOM      /* each by itself: dropped, kept, torn, garbled */
} memfs_crash;

MEMFS_UNUSED static char *memfs_dup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *p = malloc(n);
    memcpy(p, s, n);
    return p;
}

/* `lock` held. */
static int memfs_fails(memfs *m, bool is_read)
{
    if (m->fail_at < 0 || (m->fail_reads_only && !is_read)) {
        return 0;
    }
    long k = m->calls++;
    return k == m->fail_at || (m->fail_on && k > m->fail_at) ? m->fail_errno : 0;
}

static int memfs_look(const memfs *m, const char *path)
{
    for (int i = 0; i < m->n_names; i++) {
        if (strcmp(m->names[i].path, path) == 0) {
            return i;
        }
    }
    return -1;
}

static int memfs_new_inode(memfs *m, bool is_dir, uint32_t mode)
{
    m->inodes = realloc(m->inodes, (size_t)(m->n_inodes + 1) * sizeof *m->inodes);
    m->inodes[m->n_inodes] = (memfs_inode){NULL, 0, is_dir, mode};
    return m->n_inodes++;
}

static void memfs_link(memfs *m, const char *path, int inode)
{
    int i = memfs_look(m, path);
    if (i >= 0) {
        m->names[i].inode = inode;
        return;
    }
    m->names = realloc(m->names, (size_t)(m->n_names + 1) * sizeof *m->names);
    m->names[m->n_names++] = (memfs_name){memfs_dup(path), inode};
}

static void memfs_cut(memfs *m, int i)
{
    free(m->names[i].path);
    m->names[i] = m->names[--m->n_names];
}

static void memfs_put(memfs_inode *f, const void *data, size_t n, uint64_t at)
{
    if (at + n > f->n) {
        f->data = realloc(f->data, (size_t)at + n);
        memset(f->data + f->n, 0, (size_t)at + n - f->n);
        f->n = (size_t)at + n;
    }
    if (n > 0) {
        memcpy(f->data + at, data, n);
    }
}

static void memfs_log(memfs *m, memfs_kind kind, int inode, const void *data, size_t n, uint64_t at,
                      const char *path, const char *to)
{
    if (!m->record) {
        return;
    }
    if (m->n_ops == m->cap_ops) {
        m->cap_ops = m->cap_ops ? m->cap_ops * 2 : 256;
        m->ops = realloc(m->ops, m->cap_ops * sizeof *m->ops);
    }
    memfs_op *o = &m->ops[m->n_ops++];
    *o = (memfs_op){
        kind, inode, at, n, NULL, path ? memfs_dup(path) : NULL, to ? memfs_dup(to) : NULL};
    if (n > 0) {
        o->data = malloc(n);
        memcpy(o->data, data, n);
    }
}

static kvs__file *memfs_file(int inode)
{
    return (kvs__file *)((intptr_t)inode + 1);
}

static int memfs_inode_of(const kvs__file *f)
{
    return (int)((intptr_t)f - 1);
}

#define MEMFS_ENTER(is_read)                                                                       \
    memfs *m = v->user;                                                                            \
    (void)pthread_mutex_lock(&m->lock);                                                            \
    int e = memfs_fails(m, is_read)
#define MEMFS_LEAVE                                                                                \
    (void)pthread_mutex_unlock(&m->lock);                                                          \
    return e

static int memfs_open(kvs__vfs *v, const char *path, kvs__open_mode mode, kvs__file **out)
{
    MEMFS_ENTER(mode == KVS__OPEN_READ);
    if (!e) {
        int i = memfs_look(m, path);
        if (mode == KVS__OPEN_READ) {
            e = i < 0 ? ENOENT : m->inodes[m->names[i].inode].is_dir ? EISDIR : 0;
            if (!e) {
                *out = memfs_file(m->names[i].inode);
            }
        } else if (i >= 0) {
            e = EEXIST;
        } else {
            int inode = memfs_new_inode(m, false, 0600);
            memfs_link(m, path, inode);
            memfs_log(m, MEMFS_CREATE, inode, NULL, 0, 0, path, NULL);
            *out = memfs_file(inode);
        }
    }
    MEMFS_LEAVE;
}

static void memfs_close(kvs__vfs *v, kvs__file *f)
{
    (void)v;
    (void)f;
}

static int memfs_pread(kvs__vfs *v, kvs__file *f, void *buf, size_t n, uint64_t at, size_t *got)
{
    *got = 0;
    MEMFS_ENTER(true);
    if (!e) {
        const memfs_inode *x = &m->inodes[memfs_inode_of(f)];
        size_t have = at < x->n ? x->n - (size_t)at : 0;
        *got = n < have ? n : have;
        if (*got > 0) {
            memcpy(buf, x->data + at, *got);
        }
    }
    MEMFS_LEAVE;
}

static int memfs_pwrite(kvs__vfs *v, kvs__file *f, const void *buf, size_t n, uint64_t at)
{
    MEMFS_ENTER(false);
    int inode = memfs_inode_of(f);
    if (!e) {
        memfs_put(&m->inodes[inode], buf, n, at);
        memfs_log(m, MEMFS_WRITE, inode, buf, n, at, NULL, NULL);
    } else if (n > 1) { /* a failing write may have done a part */
        memfs_put(&m->inodes[inode], buf, n / 2, at);
        memfs_log(m, MEMFS_WRITE, inode, buf, n / 2, at, NULL, NULL);
    }
    MEMFS_LEAVE;
}

static void memfs_hint(kvs__vfs *v, kvs__file *f, uint64_t at, uint64_t n)
{
    (void)v, (void)f, (void)at, (void)n;
}

static int memfs_size(kvs__vfs *v, kvs__file *f, uint64_t *bytes)
{
    MEMFS_ENTER(true);
    *bytes = m->inodes[memfs_inode_of(f)].n;
    MEMFS_LEAVE;
}

static int memfs_sync(kvs__vfs *v, kvs__file *f)
{
    MEMFS_ENTER(false);
    if (!e) {
        memfs_log(m, MEMFS_SYNC, memfs_inode_of(f), NULL, 0, 0, NULL, NULL);
    }
    MEMFS_LEAVE;
}

static int memfs_sync_dir(kvs__vfs *v, const char *path)
{
    MEMFS_ENTER(false);
    if (!e) {
        e = memfs_look(m, path) < 0 ? ENOENT : 0;
        memfs_log(m, MEMFS_SYNC_DIR, -1, NULL, 0, 0, path, NULL);
    }
    MEMFS_LEAVE;
}

static int memfs_rename(kvs__vfs *v, const char *from, const char *to)
{
    MEMFS_ENTER(false);
    int i = e ? -1 : memfs_look(m, from);
    e = e ? e : i < 0 ? ENOENT : 0;
    if (!e) {
        int inode = m->names[i].inode;
        memfs_cut(m, i);
        memfs_link(m, to, inode);
        memfs_log(m, MEMFS_RENAME, inode, NULL, 0, 0, from, to);
    }
    MEMFS_LEAVE;
}

static int memfs_unlink(kvs__vfs *v, const char *path)
{
    MEMFS_ENTER(false);
    int i = e ? -1 : memfs_look(m, path);
    e = e ? e : i < 0 ? ENOENT : 0;
    if (!e) {
        memfs_log(m, MEMFS_UNLINK, m->names[i].inode, NULL, 0, 0, path, NULL);
        memfs_cut(m, i);
    }
    MEMFS_LEAVE;
}

static int memfs_mkdir(kvs__vfs *v, const char *path)
{
    MEMFS_ENTER(false);
    if (!e) {
        e = memfs_look(m, path) >= 0 ? EEXIST : 0;
    }
    if (!e) {
        int inode = memfs_new_inode(m, true, 0700);
        memfs_link(m, path, inode);
        memfs_log(m, MEMFS_CREATE, inode, NULL, 0, 0, path, NULL);
    }
    MEMFS_LEAVE;
}

static int memfs_list(kvs__vfs *v, const char *path, kvs__list_fn fn, void *arg)
{
    MEMFS_ENTER(true);
    size_t n = strlen(path);
    if (!e && memfs_look(m, path) < 0) {
        e = ENOENT;
    }
    for (int i = 0; i < m->n_names && !e; i++) {
        const char *p = m->names[i].path;
        if (strncmp(p, path, n) == 0 && p[n] == '/' && !strchr(p + n + 1, '/') &&
            !fn(arg, p + n + 1)) {
            break;
        }
    }
    MEMFS_LEAVE;
}

static int memfs_stat(kvs__vfs *v, const char *path, kvs__stat *out)
{
    MEMFS_ENTER(true);
    int i = e ? -1 : memfs_look(m, path);
    e = e ? e : i < 0 ? ENOENT : 0;
    if (!e) {
        const memfs_inode *x = &m->inodes[m->names[i].inode];
        *out = (kvs__stat){x->n, x->mode, x->is_dir, !x->is_dir, false};
    }
    MEMFS_LEAVE;
}

static int memfs_chmod(kvs__vfs *v, const char *path, uint32_t mode)
{
    MEMFS_ENTER(false);
    int i = e ? -1 : memfs_look(m, path);
    e = e ? e : i < 0 ? ENOENT : 0;
    if (!e) {
        m->inodes[m->names[i].inode].mode = mode;
    }
    MEMFS_LEAVE;
}

static int memfs_lock(kvs__vfs *v, const char *path, const char *note, kvs__file **out)
{
    (void)path;
    (void)note;
    MEMFS_ENTER(false);
    if (!e) {
        e = m->locked ? EWOULDBLOCK : 0;
    }
    if (!e) {
        m->locked = true;
        *out = memfs_file(1 << 20);
    }
    MEMFS_LEAVE;
}

static void memfs_unlock(kvs__vfs *v, kvs__file *f)
{
    memfs *m = v->user;
    (void)f;
    (void)pthread_mutex_lock(&m->lock);
    m->locked = false;
    (void)pthread_mutex_unlock(&m->lock);
}

static uint64_t memfs_now(kvs__vfs *v)
{
    memfs *m = v->user;
    (void)pthread_mutex_lock(&m->lock);
    uint64_t t = ++m->clock;
    (void)pthread_mutex_unlock(&m->lock);
    return t;
}

static void memfs_sleep(kvs__vfs *v, uint32_t ms)
{
    (void)v, (void)ms;
}

MEMFS_UNUSED static memfs *memfs_new(void)
{
    memfs *m = calloc(1, sizeof *m);
    m->v =
        (kvs__vfs){m,           memfs_open, memfs_close, memfs_pread,    memfs_pwrite, memfs_hint,
                   memfs_hint,  memfs_size, memfs_sync,  memfs_sync_dir, memfs_rename, memfs_unlink,
                   memfs_mkdir, memfs_list, memfs_stat,  memfs_chmod,    memfs_lock,   memfs_unlock,
                   memfs_now,   memfs_sleep};
    m->fail_at = -1;
    m->fail_errno = EIO;
    m->clock = 1000;
    (void)pthread_mutex_init(&m->lock, NULL);
    return m;
}

MEMFS_UNUSED static void memfs_free(memfs *m)
{
    if (!m) {
        return;
    }
    for (int i = 0; i < m->n_inodes; i++) {
        free(m->inodes[i].data);
    }
    for (int i = 0; i < m->n_names; i++) {
        free(m->names[i].path);
    }
    for (size_t i = 0; i < m->n_ops; i++) {
        free(m->ops[i].data);
        free(m->ops[i].path);
        free(m->ops[i].to);
    }
    free(m->inodes);
    free(m->names);
    free(m->ops);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

/* ---- after a crash */

static uint64_t memfs_rand(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static bool memfs_in_dir(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/');
}

/* Whether op i, seen from a crash after p ops, is certain. */
static bool memfs_settled(const memfs *m, size_t i, size_t p)
{
    const memfs_op *o = &m->ops[i];
    for (size_t k = i + 1; k < p; k++) {
        const memfs_op *s = &m->ops[k];
        if (o->kind == MEMFS_WRITE ? s->kind == MEMFS_SYNC && s->inode == o->inode
                                   : s->kind == MEMFS_SYNC_DIR && memfs_in_dir(o->path, s->path)) {
            return true;
        }
    }
    return false;
}

static void memfs_replay(memfs *d, const memfs_op *o, uint64_t *seed, bool torn, bool garbled)
{
    int i = o->path ? memfs_look(d, o->path) : -1;
    size_t n = torn ? o->n / 2 : o->n;
    switch (o->kind) {
    case MEMFS_WRITE:
        memfs_put(&d->inodes[o->inode], o->data, n, o->at);
        for (size_t k = 0; k < n && garbled; k++) {
            d->inodes[o->inode].data[o->at + k] = (uint8_t)memfs_rand(seed);
        }
        break;
    case MEMFS_CREATE:
        memfs_link(d, o->path, o->inode);
        break;
    case MEMFS_RENAME:
        if (i >= 0 && d->names[i].inode == o->inode) {
            memfs_cut(d, i);
        }
        memfs_link(d, o->to, o->inode);
        break;
    case MEMFS_UNLINK:
        if (i >= 0 && d->names[i].inode == o->inode) {
            memfs_cut(d, i);
        }
        break;
    default:
        break;
    }
}

/* What the disk may hold when the machine stops after the first p ops. */
MEMFS_UNUSED static memfs *memfs_crashed(const memfs *m, size_t p, memfs_crash how, uint64_t seed)
{
    memfs *d = memfs_new();
    seed = seed * 0x9e3779b97f4a7c15u + 0x1234567;
    d->clock = m->clock;
    for (int i = 0; i < m->n_inodes; i++) {
        (void)memfs_new_inode(d, m->inodes[i].is_dir, m->inodes[i].mode);
    }
    for (size_t i = 0; i < p; i++) {
        const memfs_op *o = &m->ops[i];
        bool keep = true;
        bool torn = false;
        bool garbled = false;
        if (o->kind == MEMFS_SYNC || o->kind == MEMFS_SYNC_DIR) {
            continue;
        }
        if (!memfs_settled(m, i, p)) {
            uint64_t r = memfs_rand(&seed) >> 20;
            keep = how == MEMFS_KEEP_ALL || (how == MEMFS_NAMES_ONLY && o->kind != MEMFS_WRITE) ||
                   (how == MEMFS_RANDOM && r % 4 != 0);
            torn = how == MEMFS_RANDOM && r % 4 == 2;
            garbled = how == MEMFS_RANDOM && r % 4 == 3;
        }
        if (keep) {
            memfs_replay(d, o, &seed, torn, garbled);
        }
    }
    return d;
}

#endif
