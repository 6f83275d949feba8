/* SPDX-License-Identifier: MIT */
/* vfs.c: publication of files and the judgement of errors, over any file system of vfs.h.
 *
 * A failed flush is never retried on the same file: the system may have dropped the pages and would
 * report success the second time. The whole file is written again under a new temporary. */
#include "base/vfs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

bool kvs__errno_transient(int e)
{
    switch (e) {
    case EIO:
    case EAGAIN:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EBUSY:
    case ETIMEDOUT:
    case ESTALE:
        return true;
    default:
        return false;
    }
}

bool kvs__path(char out[KVS__PATH_MAX], const char *dir, const char *name)
{
    int n = snprintf(out, KVS__PATH_MAX, "%s/%s", dir, name);
    return n > 0 && n < KVS__PATH_MAX;
}

int kvs__pub_begin(kvs__pub *p, kvs__vfs *v, const char *dir, const char *name)
{
    memset(p, 0, sizeof *p);
    p->v = v;
    if (!kvs__path(p->final, dir, name) || strlen(p->final) + 5 > sizeof p->tmp) {
        return ENAMETOOLONG;
    }
    (void)snprintf(p->dir, sizeof p->dir, "%s", dir);
    memcpy(p->tmp, p->final, strlen(p->final) + 1);
    memcpy(p->tmp + strlen(p->tmp), ".tmp", 5);
    int e = v->open(v, p->tmp, KVS__OPEN_CREATE, &p->f);
    if (e == EEXIST) { /* left by an attempt whose cleaning failed; the lock says it is ours */
        e = v->unlink(v, p->tmp);
        e = e ? e : v->open(v, p->tmp, KVS__OPEN_CREATE, &p->f);
    }
    if (e) {
        p->f = NULL;
    }
    return e;
}

void kvs__pub_abort(kvs__pub *p)
{
    if (p->f) {
        p->v->close(p->v, p->f);
        p->f = NULL;
        (void)p->v->unlink(p->v, p->tmp);
    }
}

int kvs__pub_commit(kvs__pub *p, bool sync_dir)
{
    int e = p->v->sync(p->v, p->f);
    if (e) {
        kvs__pub_abort(p);
        return e;
    }
    p->v->close(p->v, p->f);
    p->f = NULL;
    e = p->v->rename(p->v, p->tmp, p->final);
    if (e) {
        (void)p->v->unlink(p->v, p->tmp);
        return e;
    }
    return sync_dir ? p->v->sync_dir(p->v, p->dir) : 0;
}

int kvs__publish(kvs__vfs *v, const char *dir, const char *name, const void *data, size_t bytes,
                 bool sync_dir)
{
    kvs__pub p;
    int e = kvs__pub_begin(&p, v, dir, name);
    if (e) {
        return e;
    }
    e = v->pwrite(v, p.f, data, bytes, 0);
    if (e) {
        kvs__pub_abort(&p);
        return e;
    }
    return kvs__pub_commit(&p, sync_dir);
}
