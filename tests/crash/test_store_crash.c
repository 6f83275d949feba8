/* SPDX-License-Identifier: MIT */
/* test_store_crash.c: a program of saves and removals over a file system that records, stopped after
 * every single call, with all that was not flushed dropped, kept, torn, garbled. Each disk that may
 * result is opened: whatever was durable before must be there, whatever was removed must not, only
 * the operation under way may have happened or not, and nothing that is read may be wrong.
 *
 * usage: test_store_crash FIRST_SEED N_SEEDS [STEP]: crash points 0, STEP, ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/memfs.h"
#include "support/store_rig.h"

#define KEYS     24
#define MAX_OPS  40
#define VARIANTS 6

typedef struct event {
    uint32_t key;
    int version; /* -1: removed */
    size_t begin;
    size_t end; /* calls made when it returned */
} event;

typedef struct program {
    memfs *fs;
    event events[MAX_OPS];
    int n;
    bool limited; /* entries may have been evicted: absence is always allowed */
} program;

static kvs_ctx *ctx;
static long n_disks;

static kvs_store *open_store(memfs *fs, uint64_t max_bytes)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_store *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.flags = KVS_STORE_NO_THREADS;
    o.max_bytes = max_bytes;
    if (kvs__store_open_vfs(ctx, &fs->v, "d", &o, &s, &err) != KVS_OK) {
        printf("open: %s\n", err.msg);
        exit(1);
    }
    return s;
}

static void record(program *p, uint64_t seed)
{
    static kvs__known known[KEYS][5][RIG_CHUNKS];
    memset(known, 0, sizeof known);
    p->fs = memfs_new();
    p->limited = seed % 3 == 2;
    p->n = 0;
    memfs_link(p->fs, ".", memfs_new_inode(p->fs, true, 0700)); /* inode 0 */
    kvs_store *s = open_store(p->fs, p->limited ? 40000 : 0);
    p->fs->record = true;
    for (int i = 0; i < MAX_OPS; i++) {
        uint32_t key = (uint32_t)(memfs_rand(&seed) >> 8) % KEYS;
        uint64_t what = memfs_rand(&seed) >> 8;
        event e = {key, (int)(what % 5), p->fs->n_ops, 0};
        if (what % 11 == 0) {
            (void)kvs_store_gc(s, NULL, NULL);
            continue;
        }
        if (what % 13 == 0) {
            (void)kvs_store_flush(s, NULL);
            continue;
        }
        if (what % 4 == 0) {
            static rig_entry r;
            kvs_store_hit h = KVS_STORE_HIT_INIT;
            rig_make(&r, key, 0);
            if (kvs_store_find(s, &r.key, NULL, &h, NULL) != KVS_OK) {
                continue;
            }
            (void)kvs_store_unpin(s, h.entry);
            e.version = -1;
            if (kvs_store_remove(s, h.entry, NULL) != KVS_OK) {
                exit(1);
            }
        } else if (rig_put_known(s, key, (uint32_t)e.version, KVS_PUT_DURABLE, NULL,
                                 seed % 2 ? known[key][e.version] : NULL, NULL) != KVS_OK) {
            exit(1);
        }
        e.end = p->fs->n_ops;
        p->events[p->n++] = e;
    }
    kvs_store_close(s);
    p->fs->record = false;
}

/* Whether a store opened after crash point `at` may answer `got` for a key. */
static bool allowed(const program *p, uint32_t key, size_t at, int got)
{
    int certain = -1;
    bool ok = false;
    for (int i = 0; i < p->n; i++) {
        const event *e = &p->events[i];
        if (e->key != key || e->begin >= at) {
            continue;
        }
        if (e->end <= at) {
            certain = e->version;
        } else {
            ok |= got == e->version; /* under way */
        }
    }
    return ok || got == certain || (p->limited && got == -1);
}

static int check_disk(const program *p, size_t at, memfs *disk, const char *what)
{
    int bad = 0;
    kvs_store *s = open_store(disk, p->limited ? 40000 : 0);
    n_disks++;
    for (uint32_t key = 0; key < KEYS; key++) {
        int got = rig_get(s, key);
        if (!allowed(p, key, at, got)) {
            printf("crash after call %zu, %s: key %u gives %d\n", at, what, key, got);
            bad++;
        }
    }
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    (void)kvs_store_get_stats(s, &st);
    const char *audit = rig_audit(s);
    if (st.quarantined > 0 || st.gc_blocked || audit) {
        printf("crash after call %zu, %s: %llu set aside, %s (%s)\n", at, what,
               (unsigned long long)st.quarantined, audit ? audit : "", st.reason);
        bad++;
    }
    /* and it goes on */
    kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
    if (rig_put(s, 3, 9, KVS_PUT_DURABLE, NULL) != KVS_OK || rig_get(s, 3) != 9 ||
        kvs_store_gc(s, NULL, NULL) != KVS_OK || kvs_store_verify(s, &r, NULL) != KVS_OK) {
        printf("crash after call %zu, %s: the store does not go on\n", at, what);
        bad++;
    }
    kvs_store_close(s);
    return bad;
}

static int crash_everywhere(uint64_t seed, size_t step)
{
    static const char *const names[] = {"nothing kept", "all kept", "names alone", "random"};
    program p;
    int bad = 0;
    record(&p, seed);
    for (size_t at = 0; at <= p.fs->n_ops && bad < 10; at += step) {
        for (int k = 0; k < VARIANTS; k++) {
            memfs_crash how = k < 3 ? (memfs_crash)k : MEMFS_RANDOM;
            memfs *disk = memfs_crashed(p.fs, at, how, seed * 1000 + at * 8 + (uint64_t)k);
            memfs_link(disk, ".", 0);
            /* the directories were made and flushed before the record began */
            memfs_link(disk, "d", 1);
            memfs_link(disk, "d/entries", 2);
            memfs_link(disk, "d/blocks", 3);
            memfs_link(disk, "d/quarantine", 4);
            bad += check_disk(&p, at, disk, names[how]);
            memfs_free(disk);
        }
    }
    memfs_free(p.fs);
    return bad;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t n = argc > 2 ? strtoull(argv[2], NULL, 10) : 3;
    size_t step = argc > 3 ? (size_t)strtoull(argv[3], NULL, 10) : 1;
    int bad = 0;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = 1;
    if (kvs_ctx_new(&co, &ctx, NULL) != KVS_OK || step == 0) {
        return 1;
    }
    for (uint64_t seed = first; seed < first + n && bad < 10; seed++) {
        int b = crash_everywhere(seed, step);
        if (b > 0) {
            printf("seed %llu fails\n", (unsigned long long)seed);
        }
        bad += b;
    }
    kvs_ctx_stats st = KVS_CTX_STATS_INIT;
    (void)kvs_ctx_get_stats(ctx, &st);
    kvs_ctx_free(ctx);
    printf("%ld disks, %d failures\n", n_disks, bad);
    return bad > 0 || n_disks == 0;
}
