/* SPDX-License-Identifier: MIT */
/* map.c: read-only file mapping over POSIX open, fstat and mmap.
 *
 * Opened without blocking, so that a FIFO given for a file is an error and not a hang. Pages are
 * read when they are touched; nothing is locked or read ahead here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* madvise */
#endif
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t empty_file[1];

static int open_retry(const char *path)
{
    int fd = -1;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static kvs_status map_fd(int fd, const char *path, kvs__map *out, kvs_err *err)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0) {
        return kvs__fail_errno(err, KVS_E_IO, errno, "base", "cannot examine '%.120s'", path);
    }
    if (!S_ISREG(sb.st_mode)) {
        return kvs__fail(err, KVS_E_IO, "base", "'%.120s' is not a regular file", path);
    }
    if ((uintmax_t)sb.st_size > SIZE_MAX) {
        return kvs__fail(err, KVS_E_LIMIT, "base", "'%.120s' is too large for the address space",
                         path);
    }
    size_t bytes = (size_t)sb.st_size;
    if (bytes == 0) { /* mmap refuses an empty range */
        *out = (kvs__map){empty_file, 0, {0}};
        return KVS_OK;
    }
    void *p = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        return kvs__fail_errno(err, KVS_E_IO, errno, "base", "cannot map %zu bytes of '%.120s'",
                               bytes, path);
    }
    *out = (kvs__map){p,
                      bytes,
                      {(uint64_t)sb.st_dev, (uint64_t)sb.st_ino,
                       (uint64_t)sb.st_mtim.tv_sec * 1000000000u + (uint64_t)sb.st_mtim.tv_nsec,
                       (uint64_t)sb.st_ctim.tv_sec * 1000000000u + (uint64_t)sb.st_ctim.tv_nsec}};
    return KVS_OK;
}

kvs_status kvs__map_open(const char *path, kvs__map *out, kvs_err *err)
{
    int fd = open_retry(path);
    if (fd < 0) {
        kvs_status st = errno == ENOENT ? KVS_E_NOTFOUND : KVS_E_IO;
        return kvs__fail_errno(err, st, errno, "base", "cannot open '%.120s'", path);
    }
    kvs_status st = map_fd(fd, path, out, err);
    (void)close(fd); /* nothing was written, so nothing can be lost */
    return st;
}

void kvs__map_close(kvs__map *m)
{
    if (m->bytes > 0) {
        union {
            const uint8_t *in;
            void *out;
        } p = {m->data}; /* munmap takes a pointer without const */
        (void)munmap(p.out, m->bytes);
    }
    *m = (kvs__map){NULL, 0, {0}};
}

void kvs__map_huge(void *p, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const int saved = errno;
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* refused where the kernel has none: no loss */
    errno = saved;
#else
    (void)p;
    (void)bytes;
#endif
}
