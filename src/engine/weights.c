/* SPDX-License-Identifier: MIT */
/* weights.c: see weights.h. DIR/weights has a line of text for each file: device, inode, size, two
 * times, digest. It is replaced as a whole; a line that can't be read is as none. */
#include "engine/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "engine/gguf_priv.h"
#include "engine/hf_priv.h"

#define LINE_MAX_BYTES 256
#define FILE_MOST      ((size_t)64 << 10) /* older lines are forgotten */
#define SETTLED_NS     2000000000u

typedef struct memo {
    char path[1024]; /* "": nothing is remembered */
    char text[FILE_MOST];
    size_t n;
} memo;

static void memo_read(memo *m, const char *dir)
{
    m->n = 0;
    int len = dir ? snprintf(m->path, sizeof m->path, "%s/weights", dir) : 0;
    if (len <= 0 || (size_t)len + 8 >= sizeof m->path) {
        m->path[0] = '\0';
        return;
    }
    int fd = open(m->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    while (fd >= 0 && m->n < sizeof m->text) {
        ssize_t got = read(fd, m->text + m->n, sizeof m->text - m->n);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            break;
        }
        m->n += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
}

static size_t write_head(char *dst, size_t n, const kvs__map *map)
{
    int len = snprintf(dst, n, "%llu %llu %zu %llu %llu ", (unsigned long long)map->id[0],
                       (unsigned long long)map->id[1], map->bytes, (unsigned long long)map->id[2],
                       (unsigned long long)map->id[3]);
    return len > 0 && (size_t)len < n ? (size_t)len : 0;
}

static bool read_hex(const char *p, uint8_t out[32])
{
    for (int i = 0; i < 64; i++) {
        const char *digits = "0123456789abcdef";
        const char *d = p[i] ? strchr(digits, p[i]) : NULL;
        if (!d) {
            return false;
        }
        unsigned x = (unsigned)(d - digits);
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | x : x << 4);
    }
    return true;
}

static bool memo_find(const memo *m, const kvs__map *map, uint8_t out[32])
{
    char head[LINE_MAX_BYTES];
    size_t len = write_head(head, sizeof head, map);
    const char *p = m->text;
    const char *end = m->text + m->n;
    while (len > 0 && p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        if (!nl) {
            return false;
        }
        if ((size_t)(nl - p) == len + 64 && memcmp(p, head, len) == 0 && read_hex(p + len, out)) {
            return true;
        }
        p = nl + 1;
    }
    return false;
}

static bool settled(const kvs__map *map)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return false;
    }
    uint64_t t = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    uint64_t changed = map->id[2] > map->id[3] ? map->id[2] : map->id[3];
    return changed != 0 && t > changed && t - changed > SETTLED_NS;
}

/* The new line in front; the oldest are cut off. */
static void memo_add(memo *m, const kvs__map *map, const uint8_t digest[32])
{
    char line[LINE_MAX_BYTES + 66];
    size_t len = write_head(line, LINE_MAX_BYTES, map);
    if (m->path[0] == '\0' || len == 0 || !settled(map)) {
        return;
    }
    for (int i = 0; i < 64; i++) {
        line[len++] = "0123456789abcdef"[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    }
    line[len++] = '\n';
    size_t kept = m->n + len <= sizeof m->text ? m->n : sizeof m->text - len;
    while (kept > 0 && m->text[kept - 1] != '\n') {
        kept--;
    }
    memmove(m->text + len, m->text, kept);
    memcpy(m->text, line, len);
    m->n = kept + len;
}

static void memo_write(const memo *m)
{
    char temporary[sizeof m->path + 8];
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", m->path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        return;
    }
    size_t at = 0;
    while (at < m->n) {
        ssize_t put = write(fd, m->text + at, m->n - at);
        if (put <= 0 && !(put < 0 && errno == EINTR)) {
            break;
        }
        at += put > 0 ? (size_t)put : 0;
    }
    if (close(fd) != 0 || at < m->n || rename(temporary, m->path) != 0) {
        (void)unlink(temporary);
    }
}

/* True: it was not remembered. */
static bool digest_map(memo *m, const kvs__map *map, uint8_t out[32])
{
    if (memo_find(m, map, out)) {
        return false;
    }
    kvs__sha256_of(map->data, map->bytes, out);
    memo_add(m, map, out);
    return true;
}

static void add_map(memo *m, const kvs__map *map, kvs__sha256 *sum, bool *fresh)
{
    uint8_t digest[32];
    *fresh = digest_map(m, map, digest) || *fresh;
    kvs__sha256_field(sum, digest, sizeof digest);
}

kvs_status kvs__weights_digest(const kvs_model *model, const char *dir, uint8_t out[32],
                               kvs_err *err)
{
    memo *m = kvs__alloc(model->ctx, sizeof *m);
    if (!m) {
        return kvs__nomem(err, "engine", sizeof *m);
    }
    bool fresh = false;
    kvs__sha256 sum;
    kvs__sha256_init(&sum);
    kvs__sha256_field(&sum, "kvstate-weights-1", 17);
    memo_read(m, dir);
    const kvs__gguf *g = model->gguf;
    const kvs__hf *hf = model->source.hf;
    if (g->map.bytes > 0) {
        add_map(m, &g->map, &sum, &fresh);
    } else { /* metadata made from config.json, or a file in memory */
        kvs__sha256_field(&sum, g->data, g->size);
    }
    for (size_t i = 0; hf && i < hf->n_shards; i++) {
        add_map(m, kvs__safetensors_map(hf->shards[i].file), &sum, &fresh);
    }
    kvs__sha256_end(&sum, out);
    if (fresh && m->path[0] != '\0') {
        memo_write(m);
    }
    kvs__free(model->ctx, m, sizeof *m);
    return KVS_OK;
}
