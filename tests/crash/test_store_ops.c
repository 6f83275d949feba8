/* SPDX-License-Identifier: MIT */
/* test_store_ops.c: random programs of saves, lookups, pins, removals, limits, collections, restarts
 * and sudden ends against a naive map of what each key must give.
 *
 * usage: test_store_ops MODE FIRST_SEED N_PROGRAMS
 *   plain    nothing fails
 *   io       calls of the file system fail, one or from then on, with various errors
 *   alloc    allocations fail
 *   threads  two threads with keys of their own on one store that has its own threads too
 *
 * A failing call must leave its key as it was or as it was to become, and every other key alone; with
 * a limit, entries may go at any time. Half of the saves are told what earlier ones of that content
 * learned (store/known.h), whatever became of its blocks since. In half of the plain programs somebody
 * deletes, cuts or changes files of blocks: an entry may then be a miss, but never wrong, and one that
 * is saved again is there. After every program the tables are audited, memory is counted,
 * and the files are opened once more. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/fail_alloc.h"
#include "support/memfs.h"
#include "support/store_rig.h"

#define KEYS     32
#define OPS      60
#define PINS     4
#define VERSIONS 8

typedef enum mode { PLAIN, IO, ALLOC, THREADS } mode;

typedef struct world {
    mode mode;
    memfs *fs;
    kvs_ctx *ctx;
    fail_alloc heap;
    kvs_store *s;
    uint64_t max_bytes;
    uint64_t seed;
    int model[KEYS]; /* version, -1 absent */
    kvs_entry pins[PINS];
    int pin_version[PINS];
    uint32_t pin_key[PINS];
    uint32_t first; /* keys first, first + stride ... are this thread's */
    uint32_t stride;
    kvs__known known[KEYS][VERSIONS][RIG_CHUNKS];
    bool harm;    /* to files is done in this program */
    bool harmed;  /* has been */
    bool flipped; /* what nobody can know before it is read */
    int bad;
} world;

static void complain(world *w, const char *what, uint32_t key, int got, int want)
{
    if (w->bad++ < 5) {
        printf("%s: key %u gives %d, not %d\n", what, key, got, want);
    }
}

static uint64_t draw(world *w, uint64_t n)
{
    return (memfs_rand(&w->seed) >> 11) % n;
}

static void arm(world *w)
{
    static const int errors[] = {EIO, ENOSPC, EMFILE, EACCES, EROFS, ENOMEM};
    if (w->mode == IO && draw(w, 3) == 0) {
        w->fs->calls = 0;
        w->fs->fail_errno = errors[draw(w, 6)];
        w->fs->fail_on = draw(w, 2) == 0;
        w->fs->fail_at = (long)draw(w, 30);
    }
    if (w->mode == ALLOC && draw(w, 2) == 0) {
        atomic_store(&w->heap.calls, 0);
        atomic_store(&w->heap.fail_at, (long)draw(w, 25));
    }
}

static void disarm(world *w)
{
    if (w->mode == THREADS) {
        return;
    }
    w->fs->fail_at = -1;
    atomic_store(&w->heap.fail_at, -1);
}

/* May `got` be a miss that the program did not ask for? */
static bool lost(const world *w, int got)
{
    return (w->max_bytes && got == -1) || (w->harmed && (got == -1 || got == -3));
}

/* What a key gives now must be `a` or `b`, or nothing where there is a limit; the model follows. */
static void settle(world *w, uint32_t key, int a, int b, const char *what)
{
    int got = rig_get(w->s, key);
    if (got != a && got != b && !lost(w, got)) {
        complain(w, what, key, got, a);
    }
    w->model[key] = got;
}

static bool open_world(world *w)
{
    kvs_store_opts o = KVS_STORE_OPTS_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    o.flags = w->mode == THREADS ? 0 : KVS_STORE_NO_THREADS;
    o.max_bytes = w->max_bytes;
    o.retries = 1;
    o.retry_ms = 1;
    w->s = NULL;
    kvs_status st = kvs__store_open_vfs(w->ctx, &w->fs->v, "d", &o, &w->s, &err);
    return st == KVS_OK;
}

/* One that was just saved is there, though files were harmed before: what has vanished was seen, and what
 * was changed is seen when it is read, block by block. */
static void settle_saved(world *w, uint32_t key, uint32_t version)
{
    int got = rig_get(w->s, key);
    for (int i = 0; i < RIG_CHUNKS && w->flipped && got != (int)version; i++) {
        if (rig_put_known(w->s, key, version, KVS_PUT_DURABLE, NULL, w->known[key][version],
                          NULL) != KVS_OK) {
            break;
        }
        got = rig_get(w->s, key);
    }
    if (got != (int)version && !(w->max_bytes && got == -1)) {
        complain(w, "after a save", key, got, (int)version);
    }
    w->model[key] = got;
}

static void op_put(world *w, uint32_t key)
{
    uint32_t version = (uint32_t)draw(w, VERSIONS);
    kvs__known *known = draw(w, 2) ? w->known[key][version] : NULL;
    uint32_t flags = draw(w, 2) ? KVS_PUT_DURABLE : KVS_PUT_WAIT;
    arm(w);
    kvs_status became = KVS_OK;
    kvs_status st = rig_put_known(w->s, key, version, flags, &became, known, NULL);
    if (flags == KVS_PUT_WAIT && st == KVS_OK) {
        /* two threads flush: either may be told of this failure, `became` is this save's own */
        kvs_status told = kvs_store_flush(w->s, NULL);
        if (w->mode != THREADS && told != became) {
            complain(w, "a flush says", key, (int)told, (int)became);
        }
        st = became;
    }
    disarm(w);
    if (st == KVS_OK) {
        settle_saved(w, key, version);
    } else if (w->mode == PLAIN && st != KVS_E_LIMIT) {
        complain(w, "a save fails", key, (int)st, 0);
    } else {
        settle(w, key, w->model[key], (int)version, "after a failed save");
    }
}

static void op_remove(world *w, uint32_t key)
{
    static _Thread_local rig_entry r;
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    rig_make(&r, key, 0);
    if (kvs_store_find(w->s, &r.key, NULL, &h, NULL) != KVS_OK) {
        return;
    }
    (void)kvs_store_unpin(w->s, h.entry);
    arm(w);
    kvs_status st = kvs_store_remove(w->s, h.entry, NULL);
    disarm(w);
    settle(w, key, -1, st == KVS_OK ? -1 : w->model[key], "after a removal");
}

static void op_get(world *w, uint32_t key)
{
    arm(w);
    int got = rig_get(w->s, key);
    disarm(w);
    bool failed = got == -3 && w->mode != PLAIN && w->mode != THREADS;
    if (got != w->model[key] && !failed && !lost(w, got)) {
        complain(w, "a read", key, got, w->model[key]);
    }
}

/* Lookups by prefix: what is reported as common is common, and the entry says the same. */
static void op_find(world *w, uint32_t key)
{
    static _Thread_local rig_entry r;
    static _Thread_local int32_t ids[RIG_IDS];
    kvs_store_query q = KVS_STORE_QUERY_INIT;
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    rig_make(&r, key, 0);
    q.mode = (uint32_t)(1 + draw(w, 2));
    q.kinds = (uint32_t)draw(w, 8);
    q.max_tokens = (size_t)draw(w, r.n_ids + 2);
    size_t limit = q.max_tokens && q.max_tokens < r.n_ids ? q.max_tokens : r.n_ids;
    if (kvs_store_find(w->s, &r.key, &q, &h, NULL) != KVS_OK) {
        return;
    }
    bool ok = h.n_common <= limit && h.info.n_ids <= RIG_IDS &&
              (q.mode == KVS_FIND_OVERLAP || h.n_common == h.info.n_ids) &&
              (q.kinds == 0 || (q.kinds >> h.info.kind & 1u)) &&
              kvs_store_entry_ids(w->s, h.entry, ids, h.info.n_ids) == KVS_OK;
    if (!ok || (h.n_common > 0 && memcmp(ids, r.ids, h.n_common * sizeof ids[0]) != 0)) {
        complain(w, "a lookup by prefix", key, (int)h.n_common, (int)limit);
    }
    (void)kvs_store_unpin(w->s, h.entry);
}

static void op_pin(world *w, uint32_t key)
{
    static _Thread_local rig_entry r;
    static _Thread_local uint8_t out[1200];
    size_t i = (size_t)draw(w, PINS);
    kvs_store_hit h = KVS_STORE_HIT_INIT;
    if (w->pins[i]) { /* it must still read as it did, whatever happened since */
        rig_make(&r, w->pin_key[i], (uint32_t)w->pin_version[i]);
        kvs_store_buf b = {2, 0, r.parts[2].bytes, out};
        kvs_status st = kvs_store_get(w->s, w->pins[i], &b, 1, NULL);
        bool gone = w->harmed && (st == KVS_E_FORMAT || st == KVS_E_IO);
        if (!gone && (st != KVS_OK || memcmp(out, r.bytes[2], (size_t)r.parts[2].bytes) != 0)) {
            complain(w, "a pinned entry", w->pin_key[i], (int)st, w->pin_version[i]);
        }
        (void)kvs_store_unpin(w->s, w->pins[i]);
        w->pins[i] = 0;
        return;
    }
    rig_make(&r, key, 0);
    if (kvs_store_find(w->s, &r.key, NULL, &h, NULL) == KVS_OK) {
        w->pins[i] = h.entry;
        w->pin_key[i] = key;
        w->pin_version[i] = (int)h.info.flags;
    }
}

static void reopen(world *w, bool sudden)
{
    if (sudden) { /* nothing that closing would write gets to the disk */
        w->fs->calls = 0;
        w->fs->fail_at = 0;
        w->fs->fail_on = true;
        w->fs->fail_errno = EIO;
    }
    kvs_store_close(w->s);
    memset(w->pins, 0, sizeof w->pins);
    disarm(w);
    if (!sudden) {
        arm(w);
        if (!open_world(w)) {
            disarm(w);
            if (!open_world(w)) {
                w->bad++;
                return;
            }
        }
        disarm(w);
        kvs_store_close(w->s); /* it may have skipped what it could not read */
    }
    if (!open_world(w)) {
        w->bad++;
        printf("the store does not open again\n");
        return;
    }
    for (uint32_t key = 0; key < KEYS; key++) {
        settle(w, key, w->model[key], w->model[key], "after opening again");
    }
}

/* Somebody else deletes a file of blocks, cuts it, or changes a byte. */
static void op_harm(world *w)
{
    char path[KVS__PATH_MAX];
    size_t from = (size_t)draw(w, w->s->segs_used + 1);
    for (size_t i = 0; i < w->s->segs_used; i++) {
        const kvs__segment *g = &w->s->segs[(from + i) % w->s->segs_used];
        if (g->id == 0) {
            continue;
        }
        kvs__seg_path(w->s, g->id, path);
        int name = memfs_look(w->fs, path);
        if (name < 0) {
            continue; /* it was done before */
        }
        memfs_inode *f = &w->fs->inodes[w->fs->names[name].inode];
        uint64_t how = draw(w, 4);
        if (how == 0) {
            memfs_cut(w->fs, name);
        } else if (how == 1) {
            f->n = (size_t)draw(w, f->n);
        } else if (f->n > 0) {
            f->data[draw(w, f->n)] ^= (uint8_t)(1u << draw(w, 8));
            w->flipped = true;
        }
        w->harmed = true;
        return;
    }
}

static void step(world *w)
{
    uint32_t key = w->first + w->stride * (uint32_t)draw(w, KEYS / w->stride);
    switch (draw(w, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        op_put(w, key);
        break;
    case 5:
        op_remove(w, key);
        break;
    case 6:
    case 7:
        op_pin(w, key);
        break;
    case 8:
    case 9:
        op_find(w, key);
        break;
    case 10:
        arm(w);
        (void)kvs_store_gc(w->s, NULL, NULL);
        disarm(w);
        break;
    case 11:
        if (w->max_bytes && w->mode != THREADS) {
            w->max_bytes = 15000 + draw(w, 30000);
            arm(w);
            (void)kvs_store_limit(w->s, w->max_bytes, NULL);
            disarm(w);
        }
        break;
    case 13:
        if (w->harm && draw(w, 4) == 0) {
            op_harm(w);
        }
        break;
    case 12:
        if (w->mode != THREADS) {
            reopen(w, draw(w, 2) == 0);
        }
        break;
    default:
        op_get(w, key);
        break;
    }
}

static void *run_steps(void *arg)
{
    world *w = arg;
    for (int i = 0; i < OPS && w->bad == 0; i++) {
        step(w);
        const char *audit = w->mode != THREADS && w->s ? rig_audit(w->s) : NULL;
        if (audit) {
            printf("audit: %s\n", audit);
            w->bad++;
        }
    }
    return NULL;
}

static int run_program(mode m, uint64_t seed)
{
    world w;
    memset(&w, 0, sizeof w);
    atomic_store(&w.heap.fail_at, -1);
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = 1;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &w.heap;
    w.mode = m;
    w.seed = seed * 0x9e3779b97f4a7c15u + 77;
    w.fs = memfs_new();
    memfs_link(w.fs, ".", memfs_new_inode(w.fs, true, 0700));
    w.max_bytes = draw(&w, 2) ? 0 : 15000 + draw(&w, 30000);
    w.harm = m == PLAIN && draw(&w, 2);
    w.stride = 1;
    for (int i = 0; i < KEYS; i++) {
        w.model[i] = -1;
    }
    if (kvs_ctx_new(&co, &w.ctx, NULL) != KVS_OK || !open_world(&w)) {
        return 1;
    }
    if (m == THREADS) {
        static world two[2];
        pthread_t id[2];
        for (uint32_t t = 0; t < 2; t++) {
            two[t] = w;
            two[t].seed += t;
            two[t].first = t;
            two[t].stride = 2;
        }
        for (uint32_t t = 0; t < 2; t++) {
            (void)pthread_create(&id[t], NULL, run_steps, &two[t]);
        }
        for (uint32_t t = 0; t < 2; t++) {
            (void)pthread_join(id[t], NULL);
            w.bad += two[t].bad;
            for (uint32_t i = t; i < KEYS; i += 2) {
                w.model[i] = two[t].model[i];
            }
            for (int i = 0; i < PINS; i++) {
                (void)kvs_store_unpin(w.s, two[t].pins[i]);
            }
        }
    } else {
        (void)run_steps(&w);
    }
    if (w.bad == 0) {
        w.mode = PLAIN;
        reopen(&w, false);
        kvs_verify_result r = KVS_VERIFY_RESULT_INIT;
        kvs_status st = kvs_store_verify(w.s, &r, NULL);
        if (st != KVS_OK && !w.harmed) {
            printf("verification fails\n");
            w.bad++;
        }
    }
    kvs_store_close(w.s);
    kvs_ctx_free(w.ctx);
    if (atomic_load(&w.heap.live) != 0 || atomic_load(&w.heap.wrong) != 0) {
        printf("%zu bytes leaked, %ld sizes wrong\n", atomic_load(&w.heap.live),
               atomic_load(&w.heap.wrong));
        w.bad++;
    }
    memfs_free(w.fs);
    return w.bad;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"plain", "io", "alloc", "threads"};
    int m = 0;
    while (m < 4 && (argc < 2 || strcmp(argv[1], names[m]) != 0)) {
        m++;
    }
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint64_t n = argc > 3 ? strtoull(argv[3], NULL, 10) : 100;
    if (m == 4 || n == 0) {
        (void)fprintf(stderr, "usage: test_store_ops plain|io|alloc|threads FIRST_SEED N\n");
        return 2;
    }
    int bad = 0;
    for (uint64_t seed = first; seed < first + n && bad < 3; seed++) {
        int b = run_program((mode)m, seed);
        if (b > 0) {
            printf("seed %llu fails\n", (unsigned long long)seed);
            bad++;
        }
    }
    printf("%llu programs of %d steps (%s), %d failures\n", (unsigned long long)n, OPS, names[m],
           bad);
    return bad > 0;
}
