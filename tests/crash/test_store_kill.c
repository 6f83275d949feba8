/* SPDX-License-Identifier: MIT */
/* test_store_kill.c: a child saves and removes in a real directory and is killed with SIGKILL at a
 * random instant; the parent opens what is left. What the child was told is durable must be there,
 * what it was told is removed must not, only the operation it was in may have happened or not, and
 * all that is there must verify. The directory lives through all kills.
 *
 * usage: test_store_kill N_KILLS [SEED] */
#define _GNU_SOURCE /* usleep, mkdtemp */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "support/store_rig.h"

#define KEYS 40

/* What the child says: an operation begins, an operation has ended. */
typedef struct report {
    uint32_t key;
    int32_t version; /* -1: removed */
    uint32_t ended;
} report;

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s >> 11;
}

static kvs_store *open_dir(kvs_ctx *ctx, const char *dir)
{
    kvs_store *s = NULL;
    kvs_err err = {KVS_OK, 0, "", ""};
    if (kvs_store_open(ctx, dir, NULL, &s, &err) != KVS_OK) {
        printf("open: %s\n", err.msg);
        exit(1);
    }
    return s;
}

static kvs_ctx *new_ctx(void)
{
    kvs_ctx *ctx = NULL;
    kvs_ctx_opts o = KVS_CTX_OPTS_INIT;
    o.n_threads = 1;
    if (kvs_ctx_new(&o, &ctx, NULL) != KVS_OK) {
        exit(1);
    }
    return ctx;
}

static void say(int fd, report r)
{
    if (write(fd, &r, sizeof r) != (ssize_t)sizeof r) {
        _exit(1);
    }
}

static void child(const char *dir, int fd, uint64_t seed)
{
    static kvs__known known[KEYS][100][RIG_CHUNKS];
    kvs_store *s = open_dir(new_ctx(), dir);
    for (;;) {
        report r = {(uint32_t)(next_random(&seed) % KEYS), (int32_t)(next_random(&seed) % 100), 0};
        static rig_entry e;
        kvs_store_hit h = KVS_STORE_HIT_INIT;
        if (r.version < 20) {
            rig_make(&e, r.key, 0);
            if (kvs_store_find(s, &e.key, NULL, &h, NULL) != KVS_OK) {
                continue;
            }
            (void)kvs_store_unpin(s, h.entry);
            r.version = -1;
            say(fd, r);
            r.ended = kvs_store_remove(s, h.entry, NULL) == KVS_OK;
        } else {
            say(fd, r);
            kvs__known *k = next_random(&seed) % 2 ? known[r.key][r.version] : NULL;
            r.ended = rig_put_known(s, r.key, (uint32_t)r.version, KVS_PUT_DURABLE, NULL, k,
                                    NULL) == KVS_OK;
        }
        if (!r.ended) {
            _exit(1);
        }
        say(fd, r);
        if (next_random(&seed) % 16 == 0) {
            (void)kvs_store_gc(s, NULL, NULL);
        }
    }
}

static int check(const char *dir, int32_t model[KEYS], const report *last)
{
    int bad = 0;
    kvs_ctx *ctx = new_ctx();
    kvs_store *s = open_dir(ctx, dir);
    for (uint32_t k = 0; k < KEYS; k++) {
        int got = rig_get(s, k);
        bool open = last->key == k && !last->ended && got == last->version;
        if (got != model[k] && !open) {
            printf("key %u gives %d, not %d\n", k, got, (int)model[k]);
            bad++;
        }
        model[k] = got;
    }
    kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
    kvs_store_stats st = KVS_STORE_STATS_INIT;
    bool whole = kvs_store_verify(s, &r, NULL) == KVS_OK;
    (void)kvs_store_get_stats(s, &st);
    if (!whole || st.quarantined > 0 || st.unreadable > 0 || rig_audit(s)) {
        printf("verification fails: %s\n", st.reason);
        bad++;
    }
    kvs_store_close(s);
    kvs_ctx_free(ctx);
    return bad;
}

/* One life of the child; the number of operations it ended. */
static long one_kill(const char *dir, uint64_t *seed, int32_t model[KEYS], int *bad)
{
    int fd[2];
    report r;
    report last = {UINT32_MAX, 0, 1};
    long ended = 0;
    if (pipe(fd) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    if (pid == 0) {
        (void)close(fd[0]);
        child(dir, fd[1], next_random(seed) | 1);
    }
    (void)close(fd[1]);
    uint64_t us = 2000 + next_random(seed) % 60000;
    (void)next_random(seed);
    struct timespec t = {0, (long)us * 1000};
    (void)nanosleep(&t, NULL);
    if (kill(pid, SIGKILL) != 0) {
        exit(1);
    }
    int status = 0;
    (void)waitpid(pid, &status, 0);
    if (!WIFSIGNALED(status)) {
        printf("the child ended by itself: status %d\n", status);
        (*bad)++;
    }
    while (read(fd[0], &r, sizeof r) == (ssize_t)sizeof r) {
        last = r;
        if (r.ended) {
            model[r.key] = r.version;
            ended++;
        }
    }
    (void)close(fd[0]);
    *bad += check(dir, model, &last);
    return ended;
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : 50;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 12345;
    char dir[] = "/tmp/kvs-kill-XXXXXX";
    int32_t model[KEYS];
    int bad = 0;
    long ended = 0;
    if (!mkdtemp(dir)) {
        return 1;
    }
    for (int k = 0; k < KEYS; k++) {
        model[k] = -1;
    }
    for (long i = 0; i < n && bad == 0; i++) {
        ended += one_kill(dir, &seed, model, &bad);
    }
    char cmd[64];
    (void)snprintf(cmd, sizeof cmd, "rm -rf %s", dir);
    if (bad == 0 && system(cmd) != 0) {
        bad++;
    }
    printf("%ld kills, %ld operations ended before them, %d failures\n", n, ended, bad);
    return bad > 0 || ended == 0;
}
