/* SPDX-License-Identifier: MIT */
/* vfs_posix.c: vfs.h over POSIX; what only Linux has (early write-back, flock without a name for
 * it in POSIX) stays in this file. Descriptors are close-on-exec, links are not followed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sync_file_range, flock */
#endif
#include "base/vfs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A file is its descriptor + 1 in the clothes of a pointer: opening takes no memory. */
static kvs__file *as_file(int fd)
{
    return (kvs__file *)((intptr_t)fd + 1); /* NOLINT(performance-no-int-to-ptr) */
}

static int as_fd(const kvs__file *f)
{
    return (int)((intptr_t)f - 1);
}

static int open_retry(const char *path, int flags)
{
    int fd = -1;
    do {
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static int posix_open(kvs__vfs *v, const char *path, kvs__open_mode mode, kvs__file **out)
{
    (void)v;
    struct stat sb;
    /* without blocking: a FIFO given for a file is an error and not a hang */
    int flags = mode == KVS__OPEN_READ ? O_RDONLY | O_NONBLOCK : O_RDWR | O_CREAT | O_EXCL;
    int fd = open_retry(path, flags);
    if (fd < 0) {
        return errno;
    }
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) {
        (void)close(fd);
        return EINVAL;
    }
    *out = as_file(fd);
    return 0;
}

static void posix_close(kvs__vfs *v, kvs__file *f)
{
    (void)v;
    if (f) {
        (void)close(as_fd(f)); /* all that was written has been flushed, or is being thrown away */
    }
}

static int posix_pread(kvs__vfs *v, kvs__file *f, void *buf, size_t n, uint64_t at, size_t *got)
{
    (void)v;
    *got = 0;
    while (*got < n) {
        ssize_t r = pread(as_fd(f), (char *)buf + *got, n - *got, (off_t)(at + *got));
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r < 0) {
            return errno;
        }
        if (r == 0) {
            break;
        }
        *got += (size_t)r;
    }
    return 0;
}

static int posix_pwrite(kvs__vfs *v, kvs__file *f, const void *buf, size_t n, uint64_t at)
{
    (void)v;
    size_t done = 0;
    while (done < n) {
        ssize_t r = pwrite(as_fd(f), (const char *)buf + done, n - done, (off_t)(at + done));
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r <= 0) {
            return r < 0 ? errno : EIO;
        }
        done += (size_t)r;
    }
    return 0;
}

static void posix_start_write(kvs__vfs *v, kvs__file *f, uint64_t at, uint64_t n)
{
    (void)v;
#if defined(__linux__)
    (void)sync_file_range(as_fd(f), (off_t)at, (off_t)n, SYNC_FILE_RANGE_WRITE);
#else
    (void)f, (void)at, (void)n;
#endif
}

static void posix_will_read(kvs__vfs *v, kvs__file *f, uint64_t at, uint64_t n)
{
    (void)v;
    (void)posix_fadvise(as_fd(f), (off_t)at, (off_t)n, POSIX_FADV_WILLNEED);
}

static int posix_size(kvs__vfs *v, kvs__file *f, uint64_t *bytes)
{
    (void)v;
    struct stat sb;
    if (fstat(as_fd(f), &sb) != 0) {
        return errno;
    }
    *bytes = (uint64_t)sb.st_size;
    return 0;
}

static int posix_sync(kvs__vfs *v, kvs__file *f)
{
    (void)v;
    int r = 0;
    do {
        r = fsync(as_fd(f));
    } while (r != 0 && errno == EINTR);
    return r == 0 ? 0 : errno;
}

static int posix_sync_dir(kvs__vfs *v, const char *path)
{
    int fd = open_retry(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) {
        return errno;
    }
    int e = posix_sync(v, as_file(fd));
    (void)close(fd);
    return e == EINVAL ? 0 : e; /* a file system that can't flush a directory writes it at once */
}

static int posix_rename(kvs__vfs *v, const char *from, const char *to)
{
    (void)v;
    return rename(from, to) == 0 ? 0 : errno;
}

static int posix_unlink(kvs__vfs *v, const char *path)
{
    (void)v;
    return unlink(path) == 0 ? 0 : errno;
}

static int posix_mkdir(kvs__vfs *v, const char *path)
{
    (void)v;
    return mkdir(path, 0700) == 0 ? 0 : errno;
}

static int posix_list(kvs__vfs *v, const char *path, kvs__list_fn fn, void *arg)
{
    (void)v;
    DIR *d = opendir(path);
    if (!d) {
        return errno;
    }
    int e = 0;
    for (;;) {
        errno = 0;
        struct dirent *x = readdir(d); /* NOLINT(concurrency-mt-unsafe): the stream is ours alone */
        if (!x) {
            e = errno;
            break;
        }
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 && !fn(arg, x->d_name)) {
            break;
        }
    }
    (void)closedir(d);
    return e;
}

static int posix_stat(kvs__vfs *v, const char *path, kvs__stat *out)
{
    (void)v;
    struct stat sb;
    if (lstat(path, &sb) != 0) {
        return errno;
    }
    out->bytes = (uint64_t)sb.st_size;
    out->mode = (uint32_t)sb.st_mode & 07777u;
    out->is_dir = S_ISDIR(sb.st_mode);
    out->is_file = S_ISREG(sb.st_mode);
    out->is_link = S_ISLNK(sb.st_mode);
    return 0;
}

static int posix_chmod(kvs__vfs *v, const char *path, uint32_t mode)
{
    (void)v;
    return chmod(path, (mode_t)mode) == 0 ? 0 : errno;
}

/* flock and not fcntl: it is lost neither by closing another descriptor of the file nor shared by
 * two stores of one process. */
static int posix_lock(kvs__vfs *v, const char *path, const char *note, kvs__file **out)
{
    int fd = open_retry(path, O_RDWR | O_CREAT);
    if (fd < 0) {
        return errno;
    }
    int r = 0;
    do {
        r = flock(fd, LOCK_EX | LOCK_NB);
    } while (r != 0 && errno == EINTR);
    if (r != 0) {
        int e = errno;
        (void)close(fd);
        return e;
    }
    *out = as_file(fd);
    if (ftruncate(fd, 0) == 0) { /* the note is a courtesy; the lock holds without it */
        (void)posix_pwrite(v, *out, note, strlen(note), 0);
    }
    return 0;
}

static uint64_t posix_now_ms(kvs__vfs *v)
{
    (void)v;
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void posix_sleep_ms(kvs__vfs *v, uint32_t ms)
{
    (void)v;
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000L};
    (void)nanosleep(&t, NULL);
}

static const kvs__vfs posix_vfs = {
    NULL,         posix_open,        posix_close,     posix_pread,
    posix_pwrite, posix_start_write, posix_will_read, posix_size,
    posix_sync,   posix_sync_dir,    posix_rename,    posix_unlink,
    posix_mkdir,  posix_list,        posix_stat,      posix_chmod,
    posix_lock,   posix_close,       posix_now_ms,    posix_sleep_ms};

/* The table never changes and has no user data, so that one serves all. */
kvs__vfs *kvs__vfs_posix(void)
{
    union {
        const kvs__vfs *in;
        kvs__vfs *out;
    } p = {&posix_vfs};
    return p.out;
}
