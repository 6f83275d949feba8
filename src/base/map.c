/* SPDX-License-Identifier: MIT */
/* map.c: read-only file mapping over POSIX open, fstat and mmap.
 *
 * Opened without blocking, so that a FIFO given for a file is an error and not a hang. Pages are
 * read when they are touched; nothing is locked or read ahead here. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* madvise, MAP_ANONYMOUS */
#endif
#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __has_feature
#define KVS_FEATURE(x) __has_feature(x)
#else
#define KVS_FEATURE(x) 0
#endif
#ifdef MAP_NORESERVE
#define NO_RESERVE MAP_NORESERVE
#else
#define NO_RESERVE 0
#endif

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

bool kvs__has_huge_pages(void)
{
#if !defined(MADV_HUGEPAGE) || defined(__SANITIZE_ADDRESS__) || KVS_FEATURE(address_sanitizer) ||  \
    KVS_FEATURE(memory_sanitizer)
    return false;
#else
    return true;
#endif
}

void *kvs__map_memory(size_t bytes)
{
    const size_t whole =
        bytes + KVS__HUGE_PAGE; /* for the alignment; untouched, so it costs nothing */
    unsigned char *p =
        mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | NO_RESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    size_t head = (KVS__HUGE_PAGE - (uintptr_t)p % KVS__HUGE_PAGE) % KVS__HUGE_PAGE;
    if (head > 0) {
        (void)munmap(p, head);
    }
    (void)munmap(p + head + bytes, KVS__HUGE_PAGE - head);
    return p + head;
}

void kvs__unmap_memory(void *p, size_t bytes)
{
    (void)munmap(p, bytes);
}

void kvs__drop_memory(void *p, size_t bytes)
{
#ifdef MADV_DONTNEED /* only where it frees at once; elsewhere the memory stays until unmapped */
    (void)madvise(p, bytes, MADV_DONTNEED);
#else
    (void)p;
    (void)bytes;
#endif
}
