/* SPDX-License-Identifier: MIT */
/* safetensors_write.c: the header as text that grows, then a file beside the final one
 * (safetensors_write.h).
 *
 * The temporary file has a name of its own for each writer, so that two that write the same path
 * can't publish each other's halves: the later rename wins with a whole file. The header is padded
 * with spaces to 8 bytes, which readers that map the file like and all others skip. */
#include "engine/safetensors_write.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 900u /* leaves room for what the temporary name adds */

struct kvs__st_writer {
    kvs_ctx *ctx;
    char *text; /* 8 bytes of length, then the header */
    size_t cap, used;
    bool in_meta;     /* the object of metadata is open */
    bool any;         /* a member was written at this level */
    size_t declared;  /* bytes of data */
    size_t written;   /* of data */
    uint64_t data_at; /* in the file */
    kvs__pub pub;
    char path[128]; /* the end of it, for messages */
};

/* ---- text */

static kvs_status put(kvs__st_writer *w, const char *s, size_t n, kvs_err *err)
{
    size_t need = 0;
    if (!kvs__add_size(w->used, n, &need)) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "the header overflows");
    }
    char *p = kvs__grow(w->ctx, w->text, &w->cap, w->used, need, 1);
    if (!p) {
        return kvs__nomem(err, "engine", need);
    }
    w->text = p;
    memcpy(w->text + w->used, s, n);
    w->used += n;
    return KVS_OK;
}

static kvs_status put_text(kvs__st_writer *w, const char *s, kvs_err *err)
{
    return put(w, s, strlen(s), err);
}

static kvs_status put_string(kvs__st_writer *w, const char *s, kvs_err *err)
{
    kvs_status st = put(w, "\"", 1, err);
    while (st == KVS_OK && *s) {
        size_t n = 0; /* bytes that need no escape */
        while (s[n] && (unsigned char)s[n] >= 0x20 && s[n] != '"' && s[n] != '\\') {
            n++;
        }
        if (n > 0) {
            st = put(w, s, n, err);
        } else {
            char e[8];
            n = 1;
            (void)snprintf(e, sizeof e, "\\u%04x", (unsigned char)*s);
            st = put_text(w, e, err);
        }
        s += n;
    }
    return st == KVS_OK ? put(w, "\"", 1, err) : st;
}

static kvs_status next_member(kvs__st_writer *w, kvs_err *err)
{
    kvs_status st = w->any ? put(w, ",", 1, err) : KVS_OK;
    w->any = true;
    return st;
}

/* ---- declaring */

kvs_status kvs__st_writer_new(kvs_ctx *ctx, kvs__st_writer **out, kvs_err *err)
{
    kvs__st_writer *w = kvs__calloc(ctx, 1, sizeof *w);
    if (!w) {
        return kvs__nomem(err, "engine", sizeof *w);
    }
    w->ctx = ctx;
    kvs_status st = put(w, "\0\0\0\0\0\0\0\0{", 9, err);
    if (st != KVS_OK) {
        kvs__st_writer_free(w);
        return st;
    }
    *out = w;
    return KVS_OK;
}

void kvs__st_writer_free(kvs__st_writer *w)
{
    if (!w) {
        return;
    }
    kvs__pub_abort(&w->pub);
    kvs__free(w->ctx, w->text, w->cap);
    kvs__free(w->ctx, w, sizeof *w);
}

kvs_status kvs__st_meta(kvs__st_writer *w, const char *key, const char *value, kvs_err *err)
{
    KVS_ASSERT(w->in_meta || !w->any);
    kvs_status st = KVS_OK;
    if (!w->in_meta) {
        st = put_text(w, "\"__metadata__\":{", err);
        w->in_meta = true;
    }
    st = st == KVS_OK ? next_member(w, err) : st;
    st = st == KVS_OK ? put_string(w, key, err) : st;
    st = st == KVS_OK ? put(w, ":", 1, err) : st;
    return st == KVS_OK ? put_string(w, value, err) : st;
}

static kvs_status close_meta(kvs__st_writer *w, kvs_err *err)
{
    if (!w->in_meta) {
        return KVS_OK;
    }
    w->in_meta = false;
    w->any = true;
    return put(w, "}", 1, err);
}

static kvs_status put_shape(kvs__st_writer *w, uint32_t n_dims, const size_t *dims, kvs_err *err)
{
    char num[32];
    kvs_status st = put_text(w, "\"shape\":[", err);
    for (uint32_t i = 0; st == KVS_OK && i < n_dims; i++) {
        (void)snprintf(num, sizeof num, "%s%zu", i ? "," : "", dims[i]);
        st = put_text(w, num, err);
    }
    return st;
}

kvs_status kvs__st_tensor_declare(kvs__st_writer *w, const char *name, kvs__st_dtype dtype,
                                  uint32_t n_dims, const size_t *dims, kvs_err *err)
{
    size_t bytes = kvs__st_dtype_bits(dtype) / 8;
    size_t end = 0;
    bool fits = true;
    for (uint32_t i = 0; i < n_dims; i++) {
        fits = fits && kvs__mul_size(bytes, dims[i], &bytes);
    }
    if (!fits || !kvs__add_size(w->declared, bytes, &end)) {
        return kvs__fail(err, KVS_E_RANGE, "engine", "tensor %.60s overflows", name);
    }
    char text[80];
    kvs_status st = close_meta(w, err);
    st = st == KVS_OK ? next_member(w, err) : st;
    st = st == KVS_OK ? put_string(w, name, err) : st;
    (void)snprintf(text, sizeof text, ":{\"dtype\":\"%s\",", kvs__st_dtype_name(dtype));
    st = st == KVS_OK ? put_text(w, text, err) : st;
    st = st == KVS_OK ? put_shape(w, n_dims, dims, err) : st;
    (void)snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", w->declared, end);
    st = st == KVS_OK ? put_text(w, text, err) : st;
    w->declared = st == KVS_OK ? end : w->declared;
    return st;
}

/* ---- writing */

static kvs_status io(const kvs__st_writer *w, kvs_err *err, int e, const char *what)
{
    return kvs__fail_errno(err, KVS_E_IO, e, "engine", "%s: %s", w->path, what);
}

/* kvs__pub_begin with a temporary name that no other writer has. */
static int open_beside(kvs__st_writer *w, kvs__vfs *v, const char *path)
{
    kvs__pub *p = &w->pub;
    const char *slash = strrchr(path, '/');
    size_t dir = slash ? (size_t)(slash - path) : 0;
    if (strlen(path) > MAX_PATH) {
        return ENAMETOOLONG;
    }
    p->v = v;
    (void)snprintf(p->final, sizeof p->final, "%s", path);
    (void)snprintf(p->dir, sizeof p->dir, "%.*s", (int)dir, path);
    if (dir == 0) {
        (void)snprintf(p->dir, sizeof p->dir, "%s", slash ? "/" : ".");
    }
    (void)snprintf(p->tmp, sizeof p->tmp, "%.900s.%ld-%zx.tmp", path, (long)getpid(),
                   (size_t)(uintptr_t)w);
    int e = v->open(v, p->tmp, KVS__OPEN_CREATE, &p->f);
    if (e == EEXIST) { /* of a process that died and had our number */
        e = v->unlink(v, p->tmp);
        e = e ? e : v->open(v, p->tmp, KVS__OPEN_CREATE, &p->f);
    }
    if (e) {
        p->f = NULL;
    }
    return e;
}

kvs_status kvs__st_begin(kvs__st_writer *w, kvs__vfs *v, const char *path, kvs_err *err)
{
    size_t len = strlen(path);
    size_t skip = len < sizeof w->path ? 0 : len + 1 - sizeof w->path;
    memcpy(w->path, path + skip, len - skip + 1);
    kvs_status st = close_meta(w, err);
    st = st == KVS_OK ? put(w, "}", 1, err) : st;
    while (st == KVS_OK && w->used % 8 != 0) {
        st = put(w, " ", 1, err);
    }
    if (st == KVS_OK && w->used - 8 > KVS__ST_HEADER_MOST) {
        st = kvs__fail(err, KVS_E_LIMIT, "engine", "%s: a header of %zu bytes, the most is %zu",
                       w->path, w->used - 8, KVS__ST_HEADER_MOST);
    }
    if (st != KVS_OK) {
        return st;
    }
    uint64_t n = w->used - 8;
    for (size_t i = 0; i < 8; i++) {
        w->text[i] = (char)(unsigned char)(n >> (8 * i));
    }
    int e = open_beside(w, v, path);
    if (e) {
        return io(w, err, e, "can't be created");
    }
    e = v->pwrite(v, w->pub.f, w->text, w->used, 0);
    w->data_at = w->used;
    return e ? io(w, err, e, "can't be written") : KVS_OK;
}

kvs_status kvs__st_data(kvs__st_writer *w, const void *data, size_t bytes, kvs_err *err)
{
    KVS_ASSERT(bytes <= w->declared - w->written);
    kvs__vfs *v = w->pub.v;
    int e = bytes > 0 ? v->pwrite(v, w->pub.f, data, bytes, w->data_at + w->written) : 0;
    if (e) {
        return io(w, err, e, "can't be written");
    }
    w->written += bytes;
    return KVS_OK;
}

kvs_status kvs__st_commit(kvs__st_writer *w, kvs_err *err)
{
    if (KVS_NEVER(w->written != w->declared)) {
        return kvs__fail(err, KVS_E_INTERNAL, "engine", "%s: %zu bytes of %zu", w->path, w->written,
                         w->declared);
    }
    int e = kvs__pub_commit(&w->pub, true);
    return e ? io(w, err, e, "can't be published") : KVS_OK;
}
