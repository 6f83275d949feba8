/* SPDX-License-Identifier: MIT */
/* persist.c: when a session saves and what it looks for (kvstate/persist.h).
 *
 * Saved is: the end of a prompt, the end of an answer, and on the way, once a prompt has doubled
 * since the last save, an answer grown by 256 tokens or a sixteenth. A block of 256 tokens is laid out
 * and hashed once (store/known.h), so a save costs what is new, and 32 bytes a block and 4 a token in
 * its own file. Saves on the way are removed when a longer one is durable; ends of prompts stay,
 * because they are asked for again exactly. All share their blocks.
 *
 * I1  on_disk tokens of those held are in an entry that is durable or queued, or could not be saved. A
 *     queue that is full is no such failure: the next occasion tries again, the last one waits.
 * I2  What the writing thread touches (struct written) is under its lock.
 * I3  From before a save is queued until it is durable or given up, the entries of a prefix cache that
 *     it covers are not evicted for others (store/prefix_wait.h). */
#include "engine/persist.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/identity.h"
#include "engine/share.h"
#include "engine/weights.h"
#include "store/history.h"
#include "store/known.h"
#include "store/store_vfs.h"

#define NOTE_BYTES   ((uint64_t)64 << 20)
#define MIN_TOKENS   64u
#define WORTH_TOKENS 16u /* fewer more than what is held are not fetched */
#define STEP_TOKENS  256u
#define TRIES        4 /* entries that turn out damaged */
#define MAX_DEAD     4 /* one save is under way at a time, and those of ends may wait behind it */
/* What a template may open an answer with: the next turn need not have it again, and an equal prompt
 * leaves a token to compute. So the snapshot of a prompt's end is that many tokens before it. */
#define OPENING 8u

typedef struct written {
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a save */
    uint32_t under_way;
    uint32_t lineage;
    kvs_entry passing; /* durable, on the way: to be removed once a longer one is */
    uint64_t passing_len;
    uint64_t prompt_len;      /* a save of so many tokens stays */
    kvs_entry dead[MAX_DEAD]; /* to be removed; more than that stay as any entry */
    uint32_t n_dead;
    bool lost;        /* the newest save of this lineage was given up */
    struct job *over; /* whose pins the session's thread is to let go */
    uint64_t saved, saved_bytes, not_saved;
    char reason[160];
} written;

struct kvs__persist {
    kvs_ctx *ctx;
    kvs_cache *cache;
    kvs__history *history;
    kvs_store *store; /* NULL: notes alone */
    bool own_store;
    bool read_only;
    uint64_t max_bytes;
    uint64_t note_bytes;
    size_t min_tokens;
    uint8_t identity[KVS_DIGEST_BYTES];
    const kvs__share *share; /* of the session's prefix cache; NULL: none */
    size_t on_disk;
    size_t tried; /* so many tokens found no room in the queue */
    bool on_way;  /* the last save was */
    bool foreign; /* the state came from a file that proves nothing: it is never saved */
    written w;
    kvs_reuse last;
};

typedef struct job {
    kvs__persist *p;
    kvs__saved saved;
    kvs__share_wait wait;
    uint32_t lineage;
    bool passing;
    struct job *next; /* of those that are over */
} job;

static void say(char *dst, size_t n, const char *text)
{
    size_t len = strlen(text);
    len = len < n ? len : n - 1;
    memcpy(dst, text, len);
    dst[len] = '\0';
}

/* ---- identity */

static kvs_status identify(kvs__persist *p, const kvs__persist_for *f, const kvs_persist_opts *o,
                           kvs_err *err)
{
    uint8_t model[32];
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    kvs_status st = kvs__weights_digest(f->model, o->dir, model, err);
    d.model = (kvs_bytes){model, sizeof model};
    d.rope = o->rope;
    d.adapter = o->adapter;
    d.media = o->media;
    d.salt = o->salt;
    return st == KVS_OK
               ? kvs__identity(f->ctx, &f->model->net, f->cache, f->n_ctx, &d, p->identity, err)
               : st;
}

/* Of a draft model: where its target's state is found, there its own is, too, and nowhere else. */
static kvs_status identify_draft(kvs__persist *p, const kvs__persist_for *f, kvs_err *err)
{
    uint8_t model[32];
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    kvs_status st = kvs__weights_digest(f->model, kvs__store_dir(p->store), model, err);
    d.model = (kvs_bytes){model, sizeof model};
    d.salt = (kvs_bytes){f->beside->identity, sizeof f->beside->identity};
    return st == KVS_OK
               ? kvs__identity(f->ctx, &f->model->net, f->cache, f->n_ctx, &d, p->identity, err)
               : st;
}

/* ---- opening */

kvs_status kvs__persist_open(kvs_ctx *ctx, const char *dir, uint64_t max_bytes, kvs_store **out,
                             kvs_err *err)
{
    kvs_store_opts so = KVS_STORE_OPTS_INIT;
    so.flags = KVS_STORE_READONLY_BUSY;
    so.max_bytes = max_bytes;
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all); /* the store's threads are not for the program's signals */
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    kvs_status st = kvs_store_open(ctx, dir, &so, out, err);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return st;
}

static kvs_status open_store(kvs__persist *p, const kvs__persist_for *f, const kvs_persist_opts *o,
                             kvs_err *err)
{
    kvs_status st = KVS_OK;
    const uint8_t *identity = NULL;
    p->store = f->beside ? f->beside->store : kvs__share_store(f->share, &identity);
    if (f->beside) {
        st = identify_draft(p, f, err);
    } else if (p->store) {
        memcpy(p->identity, identity, sizeof p->identity);
    } else {
        st = kvs__persist_open(p->ctx, o->dir, o->max_bytes, &p->store, err);
        p->own_store = st == KVS_OK;
        st = st == KVS_OK ? identify(p, f, o, err) : st;
    }
    if (st == KVS_OK) {
        kvs_store_stats stats = KVS_STORE_STATS_INIT;
        (void)kvs_store_get_stats(p->store, &stats);
        p->read_only = stats.read_only != 0;
        say(p->w.reason, sizeof p->w.reason, stats.reason);
    }
    return st;
}

kvs_status kvs__persist_new(const kvs__persist_for *f, const kvs_persist_opts *opts,
                            kvs__persist **out, kvs_err *err)
{
    *out = NULL;
    kvs_persist_opts o = KVS_PERSIST_OPTS_INIT;
    kvs_status st = opts ? kvs__opts_read(&o, sizeof o, opts, "kvs_persist_opts", err) : KVS_OK;
    if (st != KVS_OK) {
        return st;
    }
    kvs__persist *p = kvs__calloc(f->ctx, 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "engine", sizeof *p);
    }
    (void)pthread_mutex_init(&p->w.lock, NULL);
    (void)pthread_cond_init(&p->w.ended, NULL);
    p->ctx = f->ctx;
    p->cache = f->cache;
    p->share = f->share;
    p->max_bytes = o.max_bytes;
    p->min_tokens = o.min_tokens ? o.min_tokens : MIN_TOKENS;
    p->note_bytes = o.note_bytes ? o.note_bytes : NOTE_BYTES;
    if (f->beside) {
        p->max_bytes = f->beside->max_bytes;
        p->min_tokens = f->beside->min_tokens;
        p->note_bytes = f->beside->note_bytes;
    }
    p->last = (kvs_reuse)KVS_REUSE_INIT;
    st = kvs__history_new(f->ctx, f->cache, (size_t)p->note_bytes, &p->history, err);
    const uint8_t *identity = NULL;
    if (st == KVS_OK && (o.dir || f->beside || kvs__share_store(f->share, &identity))) {
        st = open_store(p, f, &o, err);
    }
    if (st != KVS_OK) {
        kvs__persist_free(p);
        return st;
    }
    *out = p;
    return KVS_OK;
}

/* Lets go of what saves that are over held. */
static void collect(kvs__persist *p)
{
    (void)pthread_mutex_lock(&p->w.lock);
    job *j = p->w.over;
    p->w.over = NULL;
    (void)pthread_mutex_unlock(&p->w.lock);
    while (j) {
        job *next = j->next;
        kvs__saved_free(&j->saved);
        kvs__free(p->ctx, j, sizeof *j);
        j = next;
    }
}

bool kvs__persist_settle(kvs__persist *p)
{
    if (!p) {
        return false;
    }
    (void)pthread_mutex_lock(&p->w.lock);
    bool any = p->w.under_way > 0 || p->w.over;
    while (p->w.under_way > 0) {
        (void)pthread_cond_wait(&p->w.ended, &p->w.lock);
    }
    (void)pthread_mutex_unlock(&p->w.lock);
    collect(p);
    return any;
}

static void bury(kvs__persist *p)
{
    collect(p);
    (void)pthread_mutex_lock(&p->w.lock);
    kvs_entry dead[MAX_DEAD];
    uint32_t n = p->w.under_way == 0 ? p->w.n_dead : 0;
    memcpy(dead, p->w.dead, n * sizeof *dead);
    p->w.n_dead -= n;
    (void)pthread_mutex_unlock(&p->w.lock);
    for (uint32_t i = 0; i < n; i++) {
        (void)kvs_store_remove(p->store, dead[i], NULL);
    }
}

void kvs__persist_free(kvs__persist *p)
{
    if (!p) {
        return;
    }
    kvs__history_free(p->history);
    if (p->store) {
        (void)kvs_store_flush(p->store, NULL);
        bury(p);
    }
    if (p->own_store) {
        kvs_store_close(p->store);
    }
    collect(p);
    (void)pthread_cond_destroy(&p->w.ended);
    (void)pthread_mutex_destroy(&p->w.lock);
    kvs__free(p->ctx, p, sizeof *p);
}

/* ---- saving */

static void on_saved(void *user, kvs_status status, kvs_entry entry, const kvs_err *err)
{
    job *j = user;
    written *w = &j->p->w;
    kvs__share_wait_end(&j->wait); /* before the session's thread may free it */
    (void)pthread_mutex_lock(&w->lock);
    w->under_way--;
    if (status == KVS_OK) {
        w->saved++;
        w->saved_bytes += j->saved.bytes;
        w->reason[0] = '\0';
        if (j->lineage == w->lineage) {
            if (w->passing && w->n_dead < MAX_DEAD) {
                w->dead[w->n_dead++] = w->passing;
            }
            w->passing = j->passing && j->saved.len != w->prompt_len ? entry : 0;
            w->passing_len = j->saved.len;
        }
    } else {
        w->not_saved++;
        w->lost = w->lost || j->lineage == w->lineage;
        say(w->reason, sizeof w->reason, err ? err->msg : "not saved");
    }
    kvs__saved_done(&j->saved);
    j->next = w->over;
    w->over = j;
    (void)pthread_cond_broadcast(&w->ended);
    (void)pthread_mutex_unlock(&w->lock);
}

static kvs_status not_saved(kvs__persist *p, kvs_status st, const kvs_err *err)
{
    (void)pthread_mutex_lock(&p->w.lock);
    p->w.not_saved++;
    say(p->w.reason, sizeof p->w.reason, err->msg);
    (void)pthread_mutex_unlock(&p->w.lock);
    return st;
}

/* How save is called. */
enum {
    PASSING = 1, /* on the way */
    LAST = 2     /* waits for room in the queue */
};

static kvs_status put(kvs__persist *p, job *j, const int32_t *tokens, size_t n, uint32_t flags,
                      kvs_err *err)
{
    kvs_store_key key = {p->identity, "", 0, tokens, n};
    kvs_store_put_opts o = KVS_STORE_PUT_OPTS_INIT;
    o.flags = KVS_PUT_BORROW | (flags & LAST ? KVS_PUT_WAIT : 0u);
    o.kind = KVS__STATE_KIND;
    o.cost = n;
    o.done = on_saved;
    o.done_user = j;
    (void)pthread_mutex_lock(&p->w.lock);
    p->w.under_way++;
    (void)pthread_mutex_unlock(&p->w.lock);
    kvs_status st = kvs__store_put_known(p->store, &key, j->saved.parts, j->saved.n_parts, &o,
                                         j->saved.known, err);
    if (st != KVS_OK) {
        (void)pthread_mutex_lock(&p->w.lock);
        p->w.under_way--;
        (void)pthread_mutex_unlock(&p->w.lock);
    }
    return st;
}

static bool lost(kvs__persist *p)
{
    (void)pthread_mutex_lock(&p->w.lock);
    bool is = p->w.lost;
    (void)pthread_mutex_unlock(&p->w.lock);
    return is;
}

/* Where an earlier one was given up all that it covered waits for this one. */
static kvs_status queue(kvs__persist *p, job *j, const int32_t *tokens, size_t n, uint32_t flags,
                        kvs_err *err)
{
    (void)pthread_mutex_lock(&p->w.lock);
    bool was_lost = p->w.lost;
    p->w.lost = false;
    (void)pthread_mutex_unlock(&p->w.lock);
    kvs__share_wait_begin(p->share, tokens, n, was_lost ? 0 : p->on_disk, &j->wait);
    kvs_status st = put(p, j, tokens, n, flags, err);
    if (st != KVS_OK) {
        kvs__share_wait_end(&j->wait);
    }
    if (st == KVS_NO) {
        (void)pthread_mutex_lock(&p->w.lock);
        p->w.lost = p->w.lost || was_lost;
        say(p->w.reason, sizeof p->w.reason, "the queue to the directory is full");
        (void)pthread_mutex_unlock(&p->w.lock);
    }
    return st;
}

static kvs_status save(kvs__persist *p, const int32_t *tokens, size_t n, uint32_t flags,
                       kvs_err *err)
{
    kvs_err own = {KVS_OK, 0, "", ""};
    err = err ? err : &own;
    job *j = kvs__calloc(p->ctx, 1, sizeof *j);
    if (!j) {
        (void)kvs__nomem(err, "engine", sizeof *j);
        return not_saved(p, KVS_E_NOMEM, err);
    }
    bury(p);
    *j = (job){.p = p,
               .saved = {.ctx = p->ctx},
               .lineage = p->w.lineage,
               .passing = (flags & PASSING) != 0};
    kvs_status st = kvs__history_copy(p->history, p->max_bytes, &j->saved, err);
    if (st == KVS_OK && j->saved.len != n) {
        st = kvs__fail(err, KVS_E_STATE, "engine", "%llu tokens in the cache, %zu in the session",
                       (unsigned long long)j->saved.len, n);
    }
    st = st == KVS_OK ? queue(p, j, tokens, n, flags, err) : st;
    if (st != KVS_OK) {
        kvs__saved_free(&j->saved);
        kvs__free(p->ctx, j, sizeof *j);
    }
    if (st == KVS_NO) {
        p->tried = n;
        return st;
    }
    p->on_disk = n; /* a failure is not tried again at each token */
    p->on_way = (flags & PASSING) != 0;
    return st == KVS_OK ? st : not_saved(p, st, err);
}

static bool may_save(const kvs__persist *p, size_t n, size_t least)
{
    return p && p->store && !p->read_only && !p->foreign && n >= p->min_tokens &&
           n >= p->on_disk + least;
}

static bool idle(kvs__persist *p)
{
    (void)pthread_mutex_lock(&p->w.lock);
    bool is = p->w.under_way == 0;
    (void)pthread_mutex_unlock(&p->w.lock);
    return is;
}

void kvs__persist_prompt(kvs__persist *p, size_t held, size_t n)
{
    if (p && n > held) {
        kvs__history_mark(p->history, held); /* a question put otherwise begins here */
        if (n > held + OPENING) {
            kvs__history_mark(p->history, n - OPENING);
        }
    }
}

uint32_t kvs__persist_step(const kvs__persist *p, size_t n_tokens, uint32_t n)
{
    return p ? kvs__history_step(p->history, n_tokens, n) : n;
}

void kvs__persist_before(kvs__persist *p, uint32_t n)
{
    if (p) {
        collect(p);
        kvs__history_note(p->history, n);
    }
}

void kvs__persist_after(kvs__persist *p, const int32_t *tokens, size_t n_tokens, uint32_t n)
{
    if (!p) {
        return;
    }
    kvs__history_note(p->history, 0);
    size_t step = n > 1 ? p->on_disk : n_tokens / 16;
    step = step > STEP_TOKENS ? step : STEP_TOKENS;
    if (may_save(p, n_tokens, step) && n_tokens >= p->tried + STEP_TOKENS && idle(p)) {
        (void)save(p, tokens, n_tokens, PASSING, NULL);
    }
}

void kvs__persist_cut(kvs__persist *p, size_t n)
{
    if (!p) {
        return;
    }
    p->tried = n < p->tried ? 0 : p->tried;
    if (n < p->on_disk) {
        p->on_disk = n; /* what lies on disk goes on otherwise, its beginning is this */
        (void)pthread_mutex_lock(&p->w.lock);
        p->w.lineage++;
        p->w.lost = false;
        p->w.passing = 0;
        (void)pthread_mutex_unlock(&p->w.lock);
    }
    if (n == 0) {
        p->foreign = false;
        kvs__history_clear(p->history);
    } else {
        kvs__history_note(p->history, 0);
    }
}

size_t kvs__persist_reach(const kvs__persist *p, size_t n)
{
    return (size_t)kvs__history_reach(p->history, n);
}

kvs_status kvs__persist_back(kvs__persist *p, size_t n, kvs_err *err)
{
    kvs_status st = kvs__history_back(p->history, n, err);
    if (st == KVS_OK) {
        kvs__persist_cut(p, n);
    }
    return st;
}

void kvs__persist_foreign(kvs__persist *p)
{
    if (p) {
        p->foreign = true;
    }
}

void kvs__persist_lent(kvs__persist *p, size_t n)
{
    if (!p) {
        return;
    }
    kvs__persist_cut(p, 0);
    kvs__history_note(p->history, 2);
    p->on_disk = n; /* who computed it saves it */
    p->last.n_memory = 0;
}

void kvs__persist_synced(kvs__persist *p, const int32_t *tokens, size_t n)
{
    if (!p) {
        return;
    }
    (void)pthread_mutex_lock(&p->w.lock);
    p->w.prompt_len = n; /* what the way there saved last may be all of it */
    p->w.passing = p->w.passing_len == n ? 0 : p->w.passing;
    (void)pthread_mutex_unlock(&p->w.lock);
    if (may_save(p, n, p->on_way ? 1 : p->min_tokens)) {
        (void)save(p, tokens, n, 0, NULL);
    }
    p->on_way = false;
}

/* ---- looking */

static double seconds(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Why there was no hit. */
static void explain_miss(kvs__persist *p)
{
    kvs_entry cursor = 0;
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    uint32_t mine = 0;
    uint32_t others = 0;
    while (mine == 0 && others < 1000 && kvs_store_list(p->store, &cursor, &info) == KVS_OK) {
        bool state = info.kind == KVS__STATE_KIND;
        bool same = memcmp(info.identity, p->identity, sizeof p->identity) == 0;
        mine += state && same;
        others += state && !same;
    }
    if (mine > 0) {
        say(p->last.reason, sizeof p->last.reason, "no saved text begins like this one");
    } else if (others > 0) {
        say(p->last.reason, sizeof p->last.reason,
            "what is saved is of another model, plan or position setting");
    } else {
        say(p->last.reason, sizeof p->last.reason, "nothing is saved yet");
    }
}

static size_t common_with(kvs__persist *p, const kvs_entry_info *info, const int32_t *tokens,
                          size_t n, int32_t *ids)
{
    size_t most = info->n_ids < n ? info->n_ids : n;
    size_t i = 0;
    if (kvs_store_entry_ids(p->store, info->entry, ids, most) != KVS_OK) {
        return 0;
    }
    while (i < most && ids[i] == tokens[i]) {
        i++;
    }
    return i;
}

/* The entry that shares most need not be the one that serves most: it may lack windows, or the dense
 * form of a beginning. So all are asked; where the first can't help. *got: to be exceeded. */
static bool look_at_all(kvs__persist *p, const int32_t *tokens, size_t n, kvs_store_hit *hit,
                        uint64_t *got)
{
    kvs_entry cursor = 0;
    kvs_entry_info info = KVS_ENTRY_INFO_INIT;
    int32_t *ids = kvs__alloc(p->ctx, n * sizeof *ids);
    bool found = false;
    while (ids && kvs_store_list(p->store, &cursor, &info) == KVS_OK) {
        if (info.kind != KVS__STATE_KIND ||
            memcmp(info.identity, p->identity, sizeof p->identity) != 0) {
            continue;
        }
        size_t common = common_with(p, &info, tokens, n, ids);
        uint64_t c = common < n - 1 ? common : n - 1;
        if (c <= *got || kvs_store_pin(p->store, info.entry) != KVS_OK) {
            continue;
        }
        if (kvs__history_probe(p->history, p->store, info.entry, &c, NULL) != KVS_OK || c <= *got) {
            (void)kvs_store_unpin(p->store, info.entry);
            continue;
        }
        if (found) {
            (void)kvs_store_unpin(p->store, hit->entry);
        }
        found = true;
        hit->entry = info.entry;
        hit->n_common = common;
        *got = c;
    }
    kvs__free(p->ctx, ids, n * sizeof *ids);
    return found;
}

/* Finds an entry that gives more than own tokens, pinned; *got: how many. */
static kvs_status look(kvs__persist *p, const int32_t *tokens, size_t n, size_t own,
                       kvs_store_hit *hit, uint64_t *got)
{
    kvs_store_key key = {p->identity, "", 0, tokens, n};
    kvs_store_query q = KVS_STORE_QUERY_INIT;
    kvs_err err = {KVS_OK, 0, "", ""};
    q.mode = KVS_FIND_OVERLAP;
    q.kinds = 1u << KVS__STATE_KIND;
    q.min_tokens = own + WORTH_TOKENS;
    kvs_status st = kvs_store_find(p->store, &key, &q, hit, &err);
    if (st != KVS_OK) {
        if (st == KVS_NO) {
            explain_miss(p);
        } else {
            say(p->last.reason, sizeof p->last.reason, err.msg);
        }
        return KVS_NO;
    }
    *got = hit->n_common < n - 1 ? hit->n_common : n - 1; /* one gives the logits */
    st = kvs__history_probe(p->history, p->store, hit->entry, got, &err);
    if (st == KVS_OK && *got >= own + WORTH_TOKENS) {
        return KVS_OK;
    }
    (void)kvs_store_unpin(p->store, hit->entry);
    say(p->last.reason, sizeof p->last.reason, st == KVS_OK ? "no more than is held" : err.msg);
    if (st == KVS_E_FORMAT) {
        return st;
    }
    *got = own + WORTH_TOKENS - 1;
    return look_at_all(p, tokens, n, hit, got) ? KVS_OK : KVS_NO;
}

/* The cache is cleared first, and again if it fails. */
static kvs_status load(kvs__persist *p, kvs_entry entry, uint64_t *c, kvs_err *err)
{
    kvs_status st = kvs_cache_clear(p->cache, err);
    kvs__persist_cut(p, 0);
    st = st == KVS_OK ? kvs__history_restore(p->history, p->store, entry, c, err) : st;
    if (st != KVS_OK) {
        (void)kvs_cache_clear(p->cache, NULL);
        kvs__persist_cut(p, 0);
        return st == KVS_NO ? KVS_E_FORMAT : st;
    }
    return KVS_OK;
}

/* What came back, for kvs_reuse. */
static void account(kvs__persist *p, uint64_t c, double t0, uint64_t read_before)
{
    kvs_store_stats stats = KVS_STORE_STATS_INIT;
    (void)kvs_store_get_stats(p->store, &stats);
    p->last.reason[0] = '\0';
    p->last.n_memory = 0;
    p->last.n_disk = c;
    p->last.disk_s = seconds() - t0;
    p->last.disk_bytes = stats.read_bytes - read_before;
}

kvs_status kvs__persist_fetch(kvs__persist *p, const int32_t *tokens, size_t n, size_t own,
                              size_t *got)
{
    p->last = (kvs_reuse)KVS_REUSE_INIT;
    p->last.n_memory = own;
    if (!p->store || n < p->min_tokens || n < own + WORTH_TOKENS + 1) {
        return KVS_NO;
    }
    kvs_status result = KVS_NO;
    for (int i = 0; i < TRIES; i++) {
        kvs_store_hit hit = KVS_STORE_HIT_INIT;
        uint64_t c = 0;
        double t0 = seconds();
        kvs_status st = look(p, tokens, n, own, &hit, &c);
        if (st == KVS_NO) {
            return result;
        }
        if (st != KVS_OK) {
            continue;
        }
        kvs_store_stats before = KVS_STORE_STATS_INIT;
        kvs_err err = {KVS_OK, 0, "", ""};
        (void)kvs_store_get_stats(p->store, &before);
        st = load(p, hit.entry, &c, &err);
        p->foreign = false; /* it is another state, or none */
        if (st == KVS_OK) {
            account(p, c, t0, before.read_bytes);
            p->on_disk = hit.n_common;
            *got = (size_t)c;
            return KVS_OK;
        }
        (void)kvs_store_unpin(p->store, hit.entry);
        say(p->last.reason, sizeof p->last.reason, err.msg);
        p->last.n_memory = 0;
        result = st;
        own = 0;
    }
    return result;
}

/* ---- questions, and what a program asks for */

/* Also what could not be saved before, once more. */
static bool worth_saving(kvs__persist *p, size_t n)
{
    return may_save(p, n, WORTH_TOKENS) || (may_save(p, n, 0) && lost(p));
}

kvs_status kvs__persist_save(kvs__persist *p, const int32_t *tokens, size_t n, kvs_err *err)
{
    if (!worth_saving(p, n)) {
        return KVS_NO;
    }
    kvs_status st = save(p, tokens, n, 0, err);
    if (st == KVS_NO) {
        (void)pthread_mutex_lock(&p->w.lock);
        p->w.not_saved++;
        (void)pthread_mutex_unlock(&p->w.lock);
    }
    return st;
}

void kvs__persist_end(kvs__persist *p, const int32_t *tokens, size_t n)
{
    if (worth_saving(p, n)) {
        (void)save(p, tokens, n, LAST, NULL);
    }
}

kvs_status kvs__persist_flush(kvs__persist *p, kvs_err *err)
{
    return p && p->store && !p->read_only ? kvs_store_flush(p->store, err) : KVS_OK;
}

void kvs__persist_reuse(kvs__persist *p, kvs_reuse *out)
{
    size_t size = out->struct_size;
    *out = p->last;
    out->struct_size = size;
    out->notes_bytes = kvs__history_bytes(p->history);
    out->has_store = p->store != NULL;
    out->read_only = p->read_only;
    (void)pthread_mutex_lock(&p->w.lock);
    out->saved = p->w.saved;
    out->saved_bytes = p->w.saved_bytes;
    out->not_saved = p->w.not_saved;
    say(out->save_reason, sizeof out->save_reason, p->w.reason);
    (void)pthread_mutex_unlock(&p->w.lock);
}

kvs_store *kvs__persist_store(kvs__persist *p, const uint8_t **identity)
{
    *identity = p ? p->identity : NULL;
    return p && !p->read_only ? p->store : NULL;
}

bool kvs__persist_has_store(const kvs__persist *p)
{
    return p && p->store;
}
