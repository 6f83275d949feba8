/* SPDX-License-Identifier: MIT */
/* vfs.h: the seam between the store and the file system, so that tests can put a crash, a full disk
 * or a failing call at any point; and the one way in which a file is published.
 *
 * Every call answers 0 or an errno value and has no other way to fail. Paths are built by the caller.
 * Calls may come from several threads at once. */
#ifndef KVS_BASE_VFS_H
#define KVS_BASE_VFS_H

#include "base/base.h"

typedef struct kvs__vfs kvs__vfs;
typedef struct kvs__file kvs__file;

typedef enum kvs__open_mode {
    KVS__OPEN_READ,  /* an existing regular file */
    KVS__OPEN_CREATE /* a new file of mode 0600, for writing; EEXIST where there is one */
} kvs__open_mode;

typedef struct kvs__stat {
    uint64_t bytes;
    uint32_t mode; /* permission bits */
    bool is_dir;
    bool is_file;
    bool is_link;
} kvs__stat;

/* Called for each name but "." and ".."; false ends the listing. */
typedef bool (*kvs__list_fn)(void *arg, const char *name);

struct kvs__vfs {
    void *user;
    int (*open)(kvs__vfs *v, const char *path, kvs__open_mode mode, kvs__file **out);
    void (*close)(kvs__vfs *v, kvs__file *f); /* NULL is fine */
    /* Reads until n bytes or the end of the file; *got says how many. */
    int (*pread)(kvs__vfs *v, kvs__file *f, void *buf, size_t n, uint64_t at, size_t *got);
    int (*pwrite)(kvs__vfs *v, kvs__file *f, const void *buf, size_t n,
                  uint64_t at);                                              /* all or error */
    void (*start_write)(kvs__vfs *v, kvs__file *f, uint64_t at, uint64_t n); /* a hint */
    void (*will_read)(kvs__vfs *v, kvs__file *f, uint64_t at, uint64_t n);   /* a hint */
    int (*size)(kvs__vfs *v, kvs__file *f, uint64_t *bytes);
    int (*sync)(kvs__vfs *v, kvs__file *f);
    int (*sync_dir)(kvs__vfs *v, const char *path);
    int (*rename)(kvs__vfs *v, const char *from, const char *to);
    int (*unlink)(kvs__vfs *v, const char *path);
    int (*mkdir)(kvs__vfs *v, const char *path); /* mode 0700; EEXIST where there is something */
    int (*list)(kvs__vfs *v, const char *path, kvs__list_fn fn, void *arg);
    int (*stat)(kvs__vfs *v, const char *path, kvs__stat *out); /* does not follow a link */
    int (*chmod)(kvs__vfs *v, const char *path, uint32_t mode);
    /* Exclusive, held until unlock or the end of the process; EWOULDBLOCK where another holds it.
     * The file is made if need be and its content replaced by `note`. */
    int (*lock)(kvs__vfs *v, const char *path, const char *note, kvs__file **out);
    void (*unlock)(kvs__vfs *v, kvs__file *f);
    uint64_t (*now_ms)(kvs__vfs *v); /* since 1970 */
    void (*sleep_ms)(kvs__vfs *v, uint32_t ms);
};

kvs__vfs *kvs__vfs_posix(void);

/* An error that may pass by itself, so that trying again makes sense. */
bool kvs__errno_transient(int e);

#define KVS__PATH_MAX 1024
/* "dir/name"; false where it does not fit. */
bool kvs__path(char out[KVS__PATH_MAX], const char *dir, const char *name);

/* Durable publication: begin, write, commit. The content goes to DIR/NAME.tmp; commit flushes it,
 * renames it to DIR/NAME and, unless the caller gathers several, flushes the directory. Nobody sees
 * NAME before it is complete, and after commit with `sync_dir` it survives a crash. */
typedef struct kvs__pub {
    kvs__vfs *v;
    kvs__file *f;
    char tmp[KVS__PATH_MAX];
    char final[KVS__PATH_MAX];
    char dir[KVS__PATH_MAX];
} kvs__pub;

int kvs__pub_begin(kvs__pub *p, kvs__vfs *v, const char *dir, const char *name);
/* After a failure the temporary file is gone (if the system lets it go) and p is closed. */
int kvs__pub_commit(kvs__pub *p, bool sync_dir);
void kvs__pub_abort(kvs__pub *p); /* a closed p is fine */
/* All three for one buffer. */
int kvs__publish(kvs__vfs *v, const char *dir, const char *name, const void *data, size_t bytes,
                 bool sync_dir);

#endif
