/* SPDX-License-Identifier: MIT */
/* bench_store.c: save and restore rates of the object store against what the same directory does with
 * a plain file of the same size in the same run, and the time of lookups by number of entries.
 *
 * usage: bench_store [--csv FILE] [DIRECTORY]; a folder is made in DIRECTORY (.) and removed. */
#define _GNU_SOURCE /* posix_fadvise, mkdtemp */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvstate/store.h"
#include "limits.h"

#define TOTAL  ((size_t)256 << 20)
#define PARTS  60
#define ROUNDS 5

static uint8_t *data;
static uint8_t *back;
static char folder[512];

static void must(bool ok, const char *what)
{
    if (!ok) {
        (void)fprintf(stderr, "bench_store: %s failed\n", what);
        exit(1);
    }
}

static void fill(uint64_t seed)
{
    for (size_t i = 0; i < TOTAL / 8; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        memcpy(data + 8 * i, &seed, 8);
    }
}

/* Bytes/s of writing 1 MiB at a time and flushing once. */
static double raw_write(const char *path)
{
    double t = bench_now();
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    must(fd >= 0, "open");
    for (size_t at = 0; at < TOTAL; at += 1 << 20) {
        must(write(fd, data + at, 1 << 20) == 1 << 20, "write");
    }
    must(fsync(fd) == 0, "fsync");
    (void)close(fd);
    return (double)TOTAL / (bench_now() - t);
}

/* Drops a file's pages, so that it is read from the disk. */
static void forget(const char *path)
{
    int fd = open(path, O_RDONLY);
    must(fd >= 0, "open");
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

static void forget_blocks(void)
{
    for (unsigned long long i = 1; i < 4096; i++) {
        char path[640];
        struct stat sb;
        (void)snprintf(path, sizeof path, "%s/store/blocks/%016llx.kvb", folder, i);
        if (stat(path, &sb) == 0) {
            forget(path);
        }
    }
}

static double raw_read(const char *path)
{
    double t = bench_now();
    int fd = open(path, O_RDONLY);
    must(fd >= 0, "open");
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (size_t at = 0; at < TOTAL; at += 1 << 20) {
        must(read(fd, back + at, 1 << 20) == 1 << 20, "read");
    }
    (void)close(fd);
    return (double)TOTAL / (bench_now() - t);
}

static uint8_t identity[32] = {1};

static kvs_store *open_store(kvs_ctx *ctx)
{
    char path[600];
    kvs_store *s = NULL;
    (void)snprintf(path, sizeof path, "%s/store", folder);
    must(kvs_store_open(ctx, path, NULL, &s, NULL) == KVS_OK, "open");
    return s;
}

static void save(kvs_store *s, int32_t id)
{
    static kvs_store_part parts[PARTS];
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    size_t each = TOTAL / PARTS / 4096 * 4096;
    for (int i = 0; i < PARTS; i++) {
        parts[i] = (kvs_store_part){"kv",
                                    0,
                                    i,
                                    i < PARTS - 1 ? each : TOTAL - (PARTS - 1) * each,
                                    data + (size_t)i * each,
                                    0,
                                    0,
                                    NULL,
                                    NULL};
    }
    kvs_store_key key = {identity, "", 0, &id, 1};
    o.flags = KVS_PUT_DURABLE;
    must(kvs_store_put(s, &key, parts, PARTS, &o, NULL) == KVS_OK, "save");
}

static void restore(kvs_store *s, int32_t id)
{
    kvs_store_key key = {identity, "", 0, &id, 1};
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    kvs_store_buf bufs[PARTS];
    size_t each = TOTAL / PARTS / 4096 * 4096;
    must(kvs_store_find(s, &key, NULL, &h, NULL) == KVS_OK, "find");
    for (size_t i = 0; i < PARTS; i++) {
        bufs[i] = (kvs_store_buf){i, 0, i < PARTS - 1 ? each : TOTAL - (PARTS - 1) * each,
                                  back + i * each};
    }
    must(kvs_store_get(s, h.entry, bufs, PARTS, NULL) == KVS_OK, "restore");
    must(kvs_store_unpin(s, h.entry) == KVS_OK, "unpin");
}

static void rates(kvs_ctx *ctx)
{
    char raw[600];
    double w[3][ROUNDS];
    double r[4][ROUNDS];
    kvs_store *s = open_store(ctx);
    (void)snprintf(raw, sizeof raw, "%s/raw", folder);
    for (int i = 0; i < ROUNDS; i++) { /* interleaved: the disk is shared */
        fill((uint64_t)i + 1);
        w[0][i] = raw_write(raw);
        double t = bench_now();
        save(s, i);
        w[1][i] = (double)TOTAL / (bench_now() - t);
        t = bench_now();
        save(s, i + 1000); /* the same blocks again */
        w[2][i] = (double)TOTAL / (bench_now() - t);
        r[2][i] = raw_read(raw);
        t = bench_now();
        restore(s, i);
        r[3][i] = (double)TOTAL / (bench_now() - t);
        must(memcmp(back, data, TOTAL) == 0, "comparison");
        forget(raw);
        r[0][i] = raw_read(raw);
        forget_blocks();
        t = bench_now();
        restore(s, i);
        r[1][i] = (double)TOTAL / (bench_now() - t);
    }
    kvs_store_close(s);
    double limit = bench_median(w[0], ROUNDS);
    bench_line("raw sequential write + fsync", limit / 1e6, "MB/s", 0);
    bench_line("save, durable", bench_median(w[1], ROUNDS) / 1e6, "MB/s", limit / 1e6);
    bench_line("save of known blocks, durable", bench_median(w[2], ROUNDS) / 1e6, "MB/s", 0);
    limit = bench_median(r[0], ROUNDS);
    bench_line("raw sequential read, cold", limit / 1e6, "MB/s", 0);
    bench_line("restore, cold", bench_median(r[1], ROUNDS) / 1e6, "MB/s", limit / 1e6);
    limit = bench_median(r[2], ROUNDS);
    bench_line("raw sequential read, in page cache", limit / 1e6, "MB/s", 0);
    bench_line("restore, in page cache", bench_median(r[3], ROUNDS) / 1e6, "MB/s", limit / 1e6);
}

/* Prompts of 8192 tokens among n entries that share 4096 with it and part at different places. */
static void lookups(kvs_ctx *ctx, int n)
{
    static int32_t ids[8192];
    kvs_store *s = open_store(ctx);
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    for (int i = 0; i < 8192; i++) {
        ids[i] = i * 13;
    }
    kvs_store_key key = {identity, "lookup", 6, ids, 64};
    o.flags = KVS_PUT_WAIT;
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * 64 % 8192;
        int32_t was = ids[at];
        ids[at] = -1 - i;
        key.n_ids = 64 + (size_t)i % 2048 * 4;
        must(kvs_store_put(s, &key, NULL, 0, &o, NULL) == KVS_OK, "put");
        ids[at] = was;
    }
    must(kvs_store_flush(s, NULL) == KVS_OK, "flush");
    for (uint32_t mode = KVS_FIND_EXACT; mode <= KVS_FIND_OVERLAP; mode++) {
        static const char *const names[] = {"exact", "prefix", "overlap"};
        double t[101];
        kvs_store_query q = KVS_STORE_QUERY_INIT;
        kvs_store_hit h = KVS_STORE_HIT_INIT;
        char what[64];
        q.mode = mode;
        key.n_ids = 8192;
        for (int i = 0; i < 101; i++) {
            double start = bench_now();
            if (kvs_store_find(s, &key, &q, &h, NULL) == KVS_OK) {
                (void)kvs_store_unpin(s, h.entry);
            }
            t[i] = 1e6 * (bench_now() - start);
        }
        (void)snprintf(what, sizeof what, "lookup of 8192 tokens among %d, %s", n, names[mode]);
        bench_line(what, bench_median(t, 101), "us", 0);
    }
    double t = bench_now();
    kvs_store_close(s);
    s = open_store(ctx);
    bench_line("open", 1e3 * (bench_now() - t), "ms", 0);
    kvs_store_close(s);
}

int main(int argc, char **argv)
{
    kvs_ctx *ctx = NULL;
    char cmd[600];
    if (!bench_start("store", &argc, argv)) {
        return 2;
    }
    (void)snprintf(folder, sizeof folder, "%s/kvs-bench-XXXXXX", argc > 1 ? argv[1] : ".");
    must(mkdtemp(folder) != NULL, "mkdtemp");
    data = aligned_alloc(4096, TOTAL);
    back = aligned_alloc(4096, TOTAL);
    must(data && back && kvs_ctx_new(NULL, &ctx, NULL) == KVS_OK, "memory");
    memset(back, 1, TOTAL);
    rates(ctx);
    lookups(ctx, 64);
    lookups(ctx, 1024);
    kvs_ctx_free(ctx);
    (void)snprintf(cmd, sizeof cmd, "rm -rf %s", folder);
    return system(cmd) == 0 ? 0 : 1;
}
