/* SPDX-License-Identifier: MIT */
/* test_sessions.c: random programs over sessions of one model: syncs to what was said before and to
 * what was not, appends, rounds of drafts alone and in batches, saves, restarts on the same directory,
 * stops, failed allocations, with every kind of model and plan, a prefix cache or a store or neither.
 *
 * After each operation a session must hold the tokens that a plain list of them says, and where it has
 * logits they must be those of a session that never did anything else, bit for bit, computed by other
 * kernels on one thread. What it says to have reused is what it did not compute.
 * usage: test_sessions [--programs N] [--first SEED] [--ops N] [--verbose 1] */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstate/engine.h"
#include "support/fail_alloc.h"
#include "support/model_build.h"
#include "support/remove_tree.h"

#define MAX_N   200
#define N_SEATS 3
#define N_VOCAB 97
#define N_HEARD 10
#define N_KNOWN 64
#define OPS     40

static uint64_t seed_now;
static bool verbose;

#define DIE(...)                                                                                   \
    do {                                                                                           \
        (void)printf("seed %" PRIu64 ": ", seed_now);                                              \
        (void)printf(__VA_ARGS__);                                                                 \
        (void)printf("\nagain with: test_sessions --first %" PRIu64 " --programs 1\n", seed_now);  \
        exit(1);                                                                                   \
    } while (0)

#define TELL(...)                                                                                  \
    do {                                                                                           \
        if (verbose) {                                                                             \
            (void)printf(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (0)

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z >> 32) % n);
}

static bool chance(uint32_t one_in)
{
    return below(one_in) == 0;
}

/* ---- the world */

typedef struct text {
    int32_t t[MAX_N];
    size_t n;
} text;

typedef struct known { /* logits after a text */
    text of;
    float logits[N_VOCAB];
} known;

typedef struct seat {
    kvs_session *s;
    kvs_spec *spec;
    kvs_sampler *sampler; /* NULL: the greatest logit */
    text held;
    /* a round under way */
    text told;
    uint32_t end_at; /* told so many: the round ends */
    int end_how;
} seat;

typedef struct world {
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_batch *batch;
    kvs_prefix_cache *shared;
    seat seats[N_SEATS];
    text heard[N_HEARD]; /* texts of the past, to come back to */
    /* what it is made of */
    tiny t;
    kvs_plan_opts plan_opts;
    uint32_t threads, tiers_off, block, n_ctx;
    bool has_batch, has_shared, has_store, has_dir;
    kvs_sampler_opts sampling;
    uint32_t draft_kind; /* 0 n-grams, 1 the model itself, 2 what will come, with errors */
    uint64_t note_bytes, max_bytes;
    char base[64], file[128], dir[128];
    int stop_in; /* calls of progress until it stops; 0: never */
    /* the reference */
    kvs_ctx *plain_ctx;
    kvs_model *plain_model;
    kvs_plan *plain_plan;
    kvs_sampler *plain_sampler;
    known known[N_KNOWN];
    uint32_t next_known;
    struct counts {
        uint64_t programs, ops, checks, syncs, reused, disk, lent, rounds, accepted, failures,
            refused, stops, restarts;
    } n;
} world;

static void must(kvs_status st, const kvs_err *err, const char *what)
{
    if (st != KVS_OK) {
        DIE("%s: %s: %s", what, kvs_status_name(st), err->msg);
    }
}

static int on_progress(void *user, size_t done, size_t total)
{
    world *w = user;
    (void)done;
    (void)total;
    return w->stop_in > 0 && --w->stop_in == 0;
}

/* ---- the reference */

static const float *plain_logits(world *w, const int32_t *t, size_t n)
{
    kvs_err err = KVS_ERR_INIT;
    for (size_t i = 0; i < N_KNOWN; i++) {
        const text *k = &w->known[i].of;
        if (n > 0 && k->n == n && memcmp(k->t, t, n * sizeof *t) == 0) {
            return w->known[i].logits;
        }
    }
    known *k = &w->known[w->next_known++ % N_KNOWN];
    kvs_session *s = NULL;
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = w->plain_plan;
    must(kvs_session_new(w->plain_ctx, w->plain_model, &o, &s, &err), &err, "plain session");
    must(kvs_session_append(s, t, n, &err), &err, "plain append");
    memcpy(k->of.t, t, n * sizeof *t);
    k->of.n = n;
    memcpy(k->logits, kvs_session_logits(s), sizeof k->logits);
    kvs_session_free(s);
    return k->logits;
}

static int32_t plain_pick(world *w, const int32_t *t, size_t n)
{
    kvs_err err = KVS_ERR_INIT;
    int32_t token = 0;
    must(kvs_sampler_pick(w->plain_sampler, plain_logits(w, t, n), t, n, &token, &err), &err,
         "plain pick");
    return token;
}

static void check_logits(world *w, const float *got, const int32_t *t, size_t n, const char *what)
{
    const float *want = plain_logits(w, t, n);
    w->n.checks++;
    if (memcmp(got, want, N_VOCAB * sizeof *got) != 0) {
        DIE("%s: other logits after %zu tokens", what, n);
    }
}

/* must_have: logits are due. */
static void check_seat(world *w, const seat *p, bool must_have, const char *what)
{
    size_t n = 0;
    const int32_t *t = kvs_session_tokens(p->s, &n);
    if (n != p->held.n || (n > 0 && memcmp(t, p->held.t, n * sizeof *t) != 0)) {
        DIE("%s: holds %zu tokens, not the %zu that it should", what, n, p->held.n);
    }
    const float *got = kvs_session_logits(p->s);
    if (got && n > 0) {
        check_logits(w, got, t, n, what);
    } else if (must_have) {
        DIE("%s: no logits after %zu tokens", what, n);
    }
}

/* ---- building */

static int on_token(void *user, int32_t token)
{
    seat *p = user;
    if (p->told.n == MAX_N) {
        DIE("a round without end");
    }
    p->told.t[p->told.n++] = token;
    return p->end_at > 0 && p->told.n >= p->end_at ? p->end_how : KVS_SPEC_GO;
}

static world *drafting; /* the world of the draft function, which is told a seat */

static uint32_t draft(void *user, const int32_t *t, size_t n, int32_t *out, uint32_t want)
{
    int32_t all[MAX_N + 64];
    (void)user;
    memcpy(all, t, n * sizeof *t);
    uint32_t wrong = below(4) == 0 ? want : below(want + 1);
    for (uint32_t i = 0; i < want; i++) {
        if (n + i >= drafting->n_ctx) {
            return i;
        }
        all[n + i] = plain_pick(drafting, all, n + i);
        if (i == wrong) {
            all[n + i] = chance(8) ? 1 << 20 : (all[n + i] + 1) % N_VOCAB;
        }
        out[i] = all[n + i];
        if (out[i] >= N_VOCAB) {
            return i + 1;
        }
    }
    return want;
}

static kvs_status make_spec(world *w, seat *p, kvs_err *err)
{
    kvs_spec_opts o = KVS_SPEC_OPTS_INIT;
    o.sampler = p->sampler;
    o.on_token = on_token;
    o.user = p;
    o.max_drafts = 1 + below(10);
    o.flags = chance(2) ? KVS_SPEC_FIXED : 0;
    o.ngram = 1;
    o.draft_model = w->draft_kind == 1 ? w->model : NULL;
    o.draft = w->draft_kind == 2 ? draft : NULL;
    return kvs_spec_new(p->s, &o, &p->spec, err);
}

static kvs_status make_seat(world *w, seat *p, kvs_err *err)
{
    kvs_session_opts o = KVS_SESSION_OPTS_INIT;
    o.plan = w->plan;
    o.block = w->block;
    o.batch = w->batch;
    o.prefix_cache = w->shared;
    o.progress = on_progress;
    o.progress_user = w;
    kvs_status st = kvs_session_new(w->ctx, w->model, &o, &p->s, err);
    if (st == KVS_OK && w->has_store) {
        kvs_persist_opts po = KVS_PERSIST_OPTS_INIT;
        po.dir = w->has_dir ? w->dir : NULL;
        po.max_bytes = w->max_bytes;
        po.note_bytes = w->note_bytes;
        po.min_tokens = 8;
        st = kvs_session_persist(p->s, &po, err);
    }
    if (st == KVS_OK) {
        st = kvs_sampler_new(w->ctx, &w->sampling, N_VOCAB, &p->sampler, err);
    }
    bool rounds = w->plan_opts.undo_tokens != KVS_UNDO_NONE || w->t.s_heads == 0;
    return st == KVS_OK && rounds ? make_spec(w, p, err) : st;
}

static void free_seat(seat *p)
{
    kvs_spec_free(p->spec);
    kvs_sampler_free(p->sampler);
    kvs_session_free(p->s);
    memset(p, 0, sizeof *p);
}

/* False: the plan does not fit the model. */
static bool open_world(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = w->threads;
    co.tiers_off = w->tiers_off;
    co.alloc = fail_alloc_take;
    co.free = fail_alloc_give;
    co.alloc_user = &w->heap;
    must(kvs_ctx_new(&co, &w->ctx, &err), &err, "context");
    must(kvs_model_open(w->ctx, w->file, NULL, &w->model, &err), &err, "model");
    kvs_status st = kvs_plan_new(w->ctx, w->model, &w->plan_opts, &w->plan, &err);
    if (st != KVS_OK) {
        TELL("%s\n", err.msg);
        return false;
    }
    if (w->block > kvs_plan_max_block(w->plan)) {
        w->block = kvs_plan_max_block(w->plan);
    }
    if (w->has_batch) {
        kvs_batch_opts bo = KVS_BATCH_OPTS_INIT;
        bo.max_rows = N_SEATS;
        bo.max_tokens = 40;
        bo.max_logits = 33;
        bo.n_ctx = w->n_ctx;
        must(kvs_batch_new(w->ctx, w->model, &bo, &w->batch, &err), &err, "batch");
        w->block = w->block > 40 ? 40 : w->block;
    }
    if (w->has_shared) {
        kvs_prefix_cache_opts o = KVS_PREFIX_CACHE_OPTS_INIT;
        o.plan = w->plan;
        o.max_bytes = (size_t)w->max_bytes;
        o.snapshot_stride = w->note_bytes & 1 ? 16 : 0;
        o.dir = w->has_dir ? w->dir : NULL;
        o.dir_bytes = w->max_bytes;
        st = kvs_prefix_cache_new(w->ctx, w->model, &o, &w->shared, &err);
        if (st != KVS_OK) {
            TELL("%s\n", err.msg);
            return false;
        }
    }
    for (size_t i = 0; i < N_SEATS; i++) {
        must(make_seat(w, &w->seats[i], &err), &err, "session");
    }
    return true;
}

static void close_world(world *w)
{
    for (size_t i = 0; i < N_SEATS; i++) {
        free_seat(&w->seats[i]);
    }
    kvs_prefix_cache_free(w->shared);
    kvs_batch_free(w->batch);
    kvs_plan_free(w->plan);
    kvs_model_close(w->model);
    kvs_ctx_free(w->ctx);
    w->shared = NULL;
    w->batch = NULL;
    w->plan = NULL;
    if (w->heap.blocks != 0 || w->heap.wrong != 0) {
        DIE("%ld blocks leak, %ld frees are wrong", (long)w->heap.blocks, (long)w->heap.wrong);
    }
}

static void open_plain(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_ctx_opts co = KVS_CTX_OPTS_INIT;
    co.n_threads = 1;
    co.tiers_off = w->tiers_off == KVS_TIER_ALL ? 0 : chance(8) ? KVS_TIER_ALL : KVS_TIER_AVX512;
    must(kvs_ctx_new(&co, &w->plain_ctx, &err), &err, "context");
    must(kvs_model_open(w->plain_ctx, w->file, NULL, &w->plain_model, &err), &err, "model");
    must(kvs_plan_new(w->plain_ctx, w->plain_model, &w->plan_opts, &w->plain_plan, &err), &err,
         "plan");
    must(kvs_sampler_new(w->plain_ctx, &w->sampling, N_VOCAB, &w->plain_sampler, &err), &err,
         "sampler");
}

static void close_plain(world *w)
{
    kvs_sampler_free(w->plain_sampler);
    kvs_plan_free(w->plain_plan);
    kvs_model_close(w->plain_model);
    kvs_ctx_free(w->plain_ctx);
}

/* ---- choosing */

static void choose_model(world *w)
{
    static const tiny models[] = {TINY_LLAMA,  TINY_GEMMA,     TINY_DEEPSEEK,
                                  TINY_GEMMA4, TINY_QWEN3NEXT, TINY_MAMBA2};
    w->t = models[below(6)];
    w->t.dim = tiny_is(&w->t, "deepseek2") ? w->t.dim : 64;
    w->t.full_dim = w->t.full_dim ? 128 : 0;
    w->t.rank = w->t.rank ? 48 : 0; /* with the rotated part rows of 64 */
}

static void choose_plan(world *w)
{
    static const char *const kvs[] = {"f16",
                                      "f32",
                                      "bf16",
                                      "q8",
                                      "q6",
                                      "q4",
                                      "q3",
                                      "q2",
                                      "c4",
                                      "c8",
                                      "c2:32",
                                      "affine8:32",
                                      "affine4",
                                      "k8v4",
                                      "q3+f16",
                                      "f16+q4",
                                      "c3+f32",
                                      "layers=* q4;0 f16",
                                      "layers=* f16;1 q8 window=20 sinks=3;2 c4 start=30",
                                      "layers=* c4 window=17;0 bf16+q2 start=50"};
    kvs_plan_opts *o = &w->plan_opts;
    *o = (kvs_plan_opts)KVS_PLAN_OPTS_INIT;
    o->kv = kvs[below(sizeof kvs / sizeof kvs[0])];
    w->n_ctx = 90 + below(MAX_N - 90);
    o->n_ctx = w->n_ctx;
    o->window = chance(3) ? 1 + below(60) : 0;
    o->sinks = o->window && chance(2) ? 1 + below(9) : 0;
    o->start =
        chance(4) && o->kv[0] != 'f' && o->kv[0] != 'b' && o->kv[0] != 'l' ? 1 + below(90) : 0;
    o->max_block = chance(2) ? 1 + below(40) : 0;
    o->kv_block = chance(2) ? 0 : chance(2) ? 16 : 1 + below(70);
    o->flags = chance(6) ? KVS_PLAN_FULL_WINDOW : 0;
    o->undo_tokens = chance(3) ? 1 + below(40) : chance(3) ? KVS_UNDO_NONE : 0;
    o->undo_bytes = chance(3) ? below(400000) : 0;
    w->block = chance(2) ? 0 : 1 + below(40);
}

static void choose_world(world *w)
{
    choose_model(w);
    choose_plan(w);
    w->threads = 1 + below(2);
    w->tiers_off = chance(10) ? KVS_TIER_ALL : chance(3) ? KVS_TIER_AVX512 : 0;
    w->has_batch = chance(2);
    w->has_shared = w->plan_opts.kv_block > 0 && !chance(3);
    w->has_store = !w->has_shared && !chance(6);
    w->has_dir = !chance(4);
    w->note_bytes = chance(2) ? 0 : below(200000);
    w->max_bytes = chance(2) ? 0 : 100000 + below(1000000);
    w->draft_kind = below(3);
    w->sampling = (kvs_sampler_opts)KVS_SAMPLER_OPTS_INIT;
    w->sampling.seed = rng;
    w->sampling.temperature = chance(2) ? 0.0f : 1.0f;
    w->sampling.repeat_penalty = chance(2) ? 1.0f : 1.3f;
    if (verbose) {
        const kvs_plan_opts *o = &w->plan_opts;
        (void)printf(
            "%s kv=%s ctx %u window %u sinks %u start %u max_block %u kv_block %u flags %u undo "
            "%u/%llu block %u "
            "threads %u off %x batch %d shared %d store %d dir %d notes %llu max %llu drafts %u\n",
            w->t.arch, o->kv, o->n_ctx, o->window, o->sinks, o->start, o->max_block, o->kv_block,
            o->flags, o->undo_tokens, (unsigned long long)o->undo_bytes, w->block, w->threads,
            w->tiers_off, w->has_batch, w->has_shared, w->has_store, w->has_dir,
            (unsigned long long)w->note_bytes, (unsigned long long)w->max_bytes, w->draft_kind);
    }
}

static void remember(world *w, const text *t)
{
    if (t->n > 0) {
        w->heard[below(N_HEARD)] = *t;
    }
}

static void add_random(text *t, size_t n)
{
    while (n-- > 0 && t->n < MAX_N) {
        t->t[t->n++] = (int32_t)below(chance(3) ? 5 : N_VOCAB);
    }
}

/* A text to go to: part of one that was heard or is held, and something new. */
static void choose_text(world *w, text *t)
{
    const text *from = chance(2) ? &w->heard[below(N_HEARD)] : &w->seats[below(N_SEATS)].held;
    size_t n = chance(2) ? from->n : below((uint32_t)from->n + 1);
    memcpy(t->t, from->t, n * sizeof *t->t);
    t->n = n;
    bool first = from->n == 0; /* long enough to be worth a save */
    add_random(t, first ? 30 + below(60) : chance(3) ? 0 : chance(2) ? below(8) : below(60));
}

/* ---- operations */

static void fail_soon(world *w)
{
    if (chance(8)) {
        w->heap.fail_at = w->heap.calls + (long)below(chance(2) ? 6 : 60);
    }
}

static void fail_no_more(world *w)
{
    w->heap.fail_at = -1;
}

/* After a failure: a prefix of what was wanted, at least the first `least` of it. */
static void take_prefix(world *w, seat *p, const text *want, size_t least, const char *what)
{
    size_t n = 0;
    const int32_t *t = kvs_session_tokens(p->s, &n);
    if (n < least || n > want->n || memcmp(t, want->t, n * sizeof *t) != 0) {
        DIE("%s: after a failure it holds %zu tokens that are no prefix of the %zu wanted", what, n,
            want->n);
    }
    memcpy(p->held.t, want->t, n * sizeof *t);
    p->held.n = n;
    check_seat(w, p, false, what);
}

static void check_failed(world *w, kvs_status st, const kvs_err *err, const char *what)
{
    TELL("  %s %s\n", kvs_status_name(st), err->msg);
    if (st == KVS_E_NOMEM) {
        w->n.failures++;
    } else if (st == KVS_E_CANCELLED) {
        w->n.stops++;
    } else {
        DIE("%s: %s: %s", what, kvs_status_name(st), err->msg);
    }
}

static void op_sync(world *w, seat *p, bool prepare)
{
    kvs_err err = KVS_ERR_INIT;
    text to;
    size_t reused = 0;
    choose_text(w, &to);
    kvs_session_stats before = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(p->s, &before);
    TELL("seat %d: %s to %zu tokens, holding %zu\n", (int)(p - w->seats),
         prepare ? "prepare" : "sync", to.n, p->held.n);
    w->stop_in = chance(6) ? 1 + (int)below(4) : 0;
    fail_soon(w);
    kvs_status st = prepare ? kvs_session_prepare(p->s, to.t, to.n, &reused, &err)
                            : kvs_session_sync(p->s, to.t, to.n, &reused, &err);
    fail_no_more(w);
    w->stop_in = 0;
    if (to.n > w->n_ctx) {
        if (st != KVS_E_LIMIT) {
            DIE("sync: %s for %zu tokens in %u", kvs_status_name(st), to.n, w->n_ctx);
        }
        w->n.refused++;
        check_seat(w, p, false, "a sync that was refused");
        return;
    }
    remember(w, &p->held);
    if (st != KVS_OK) {
        check_failed(w, st, &err, "sync");
        take_prefix(w, p, &to, 0, "sync");
        return;
    }
    kvs_session_stats after = KVS_SESSION_STATS_INIT;
    (void)kvs_session_get_stats(p->s, &after);
    w->n.syncs++;
    w->n.reused += reused;
    kvs_reuse r = KVS_REUSE_INIT;
    (void)kvs_session_get_reuse(p->s, &r);
    w->n.disk += r.n_disk;
    w->n.lent += r.n_shared;
    TELL("  reused %zu: memory %" PRIu64 " disk %" PRIu64 " lent %" PRIu64 " %s\n", reused,
         r.n_memory, r.n_disk, r.n_shared, r.reason);
    if (prepare) {
        take_prefix(w, p, &to, 0, "prepare");
        if (p->held.n != reused) {
            DIE("prepare: holds %zu tokens, says %zu", p->held.n, reused);
        }
        return;
    }
    if (after.n_computed - before.n_computed != to.n - reused) {
        DIE("sync: %" PRIu64 " tokens computed, %zu of %zu reused",
            after.n_computed - before.n_computed, reused, to.n);
    }
    p->held = to;
    check_seat(w, p, to.n > 0, "sync");
}

typedef struct rows {
    world *w;
    const int32_t *t;
    size_t next; /* position that is due */
    size_t stop; /* told so many: stop; 0: never */
    size_t told;
} rows;

static int on_logits(void *user, int64_t pos, const float *logits, size_t n_vocab)
{
    rows *r = user;
    if ((size_t)pos != r->next++ || n_vocab != N_VOCAB) {
        DIE("logits of position %" PRId64 ", %zu was due", pos, r->next - 1);
    }
    check_logits(r->w, logits, r->t, (size_t)pos + 1, "a row of logits");
    return ++r->told == r->stop;
}

static void op_append(world *w, seat *p)
{
    kvs_err err = KVS_ERR_INIT;
    text to = p->held;
    add_random(&to, chance(2) ? 1 : 1 + below(50));
    if (to.n == p->held.n) {
        return;
    }
    rows r = {w, to.t, 0, chance(6) ? 1 + below(5) : 0, 0};
    kvs_eval e = KVS_EVAL_INIT;
    e.tokens = to.t + p->held.n;
    e.n_tokens = to.n - p->held.n;
    if (chance(4)) {
        e.logits_from = below((uint32_t)e.n_tokens + 1);
        e.on_logits = on_logits;
        e.user = &r;
        r.next = p->held.n + e.logits_from;
    }
    TELL("seat %d: append %zu to %zu\n", (int)(p - w->seats), e.n_tokens, p->held.n);
    fail_soon(w);
    kvs_status st = kvs_session_eval(p->s, &e, &err);
    fail_no_more(w);
    if (to.n > w->n_ctx) {
        if (st != KVS_E_LIMIT) {
            DIE("append: %s for %zu tokens in %u", kvs_status_name(st), to.n, w->n_ctx);
        }
        w->n.refused++;
        check_seat(w, p, false, "an append that was refused");
        return;
    }
    if (st != KVS_OK) {
        check_failed(w, st, &err, "append");
        take_prefix(w, p, &to, p->held.n, "append");
        return;
    }
    if (e.on_logits && r.next != to.n) {
        DIE("append: the last row of logits was of position %zu", r.next - 1);
    }
    p->held = to;
    check_seat(w, p, !e.on_logits || e.logits_from < e.n_tokens, "append");
}

/* What a round told must be what plain decoding picks; what it keeps is what it told. */
static void settle(world *w, seat *p, kvs_status st, const kvs_err *err, const char *what)
{
    text all = p->held;
    TELL("  seat %d: %s, %zu told at %zu, ends at %u by %d\n", (int)(p - w->seats),
         kvs_status_name(st), p->told.n, p->held.n, p->end_at, p->end_how);
    bool dropped = p->end_at > 0 && p->told.n >= p->end_at && p->end_how == KVS_SPEC_DROP;
    for (size_t i = 0; i < p->told.n; i++) {
        int32_t want = plain_pick(w, all.t, all.n);
        if (p->told.t[i] != want) {
            DIE("%s: told token %d after %zu, plain decoding picks %d", what, p->told.t[i], all.n,
                want);
        }
        if (all.n == w->n_ctx && st == KVS_E_LIMIT && i + 1 == p->told.n) {
            break; /* the one that found no room */
        }
        if (!(dropped && i + 1 == p->told.n)) {
            all.t[all.n++] = want;
        }
    }
    if (st == KVS_OK || st == KVS_NO || st == KVS_E_LIMIT) {
        p->held = all;
        check_seat(w, p, true, what);
    } else {
        check_failed(w, st, err, what);
        check_seat(w, p, false, what);
    }
}

static bool can_draw(const seat *p)
{
    return p->spec && p->held.n > 0 && kvs_session_logits(p->s);
}

static void begin_round(seat *p)
{
    p->told.n = 0;
    p->end_at = chance(3) ? 1 + below(5) : 0;
    p->end_how = chance(2) ? KVS_SPEC_LAST : KVS_SPEC_DROP;
}

static void op_round(world *w, seat *p)
{
    for (uint32_t k = 1 + below(4); k > 0 && can_draw(p); k--) {
        kvs_err err = KVS_ERR_INIT;
        kvs_spec_stats a = KVS_SPEC_STATS_INIT;
        kvs_spec_stats b = KVS_SPEC_STATS_INIT;
        begin_round(p);
        (void)kvs_spec_get_stats(p->spec, &a);
        TELL("seat %d: round at %zu\n", (int)(p - w->seats), p->held.n);
        fail_soon(w);
        kvs_status st = kvs_spec_next(p->spec, &err);
        fail_no_more(w);
        (void)kvs_spec_get_stats(p->spec, &b);
        w->n.rounds++;
        w->n.accepted += b.n_accepted - a.n_accepted;
        settle(w, p, st, &err, "round");
        if (st != KVS_OK) {
            break;
        }
    }
}

static void op_rounds(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    kvs_spec *specs[N_SEATS];
    seat *who[N_SEATS];
    uint32_t n = 0;
    for (size_t i = 0; i < N_SEATS; i++) {
        if (can_draw(&w->seats[i])) {
            who[n] = &w->seats[i];
            specs[n++] = w->seats[i].spec;
            begin_round(&w->seats[i]);
        }
    }
    TELL("rounds of %u\n", n);
    fail_soon(w);
    kvs_status st = kvs_spec_next_rows(w->batch, specs, n, &err);
    fail_no_more(w);
    TELL("  %s %s\n", kvs_status_name(st), err.msg);
    for (uint32_t i = 0; i < n; i++) {
        /* of one row's end the others know nothing */
        bool full = st == KVS_E_LIMIT && who[i]->held.n == w->n_ctx;
        bool fine = st == KVS_OK || st == KVS_NO || st == KVS_E_LIMIT;
        w->n.rounds++;
        settle(w, who[i], full ? KVS_E_LIMIT : fine ? KVS_OK : st, &err, "rounds");
    }
}

static void op_batch(world *w)
{
    kvs_err err = KVS_ERR_INIT;
    text to[N_SEATS];
    kvs_session *s[N_SEATS];
    const int32_t *t[N_SEATS];
    uint32_t n_t[N_SEATS];
    uint32_t n_l[N_SEATS];
    seat *who[N_SEATS];
    uint32_t n = 0;
    for (size_t i = 0; i < N_SEATS; i++) {
        seat *p = &w->seats[i];
        kvs_session_stats st = KVS_SESSION_STATS_INIT;
        (void)kvs_session_get_stats(p->s, &st);
        if (chance(4)) {
            continue;
        }
        to[n] = p->held;
        add_random(&to[n], 1 + below(st.block < 12 ? st.block : 12));
        if (to[n].n > w->n_ctx || to[n].n == p->held.n) {
            continue;
        }
        who[n] = p;
        s[n] = p->s;
        n_t[n] = (uint32_t)(to[n].n - p->held.n);
        n_l[n] = below((n_t[n] < 8 ? n_t[n] : 8) + 1);
        t[n] = to[n].t + p->held.n;
        n++;
    }
    kvs_batch_step step = KVS_BATCH_STEP_INIT;
    step.n_rows = n;
    step.sessions = s;
    step.tokens = t;
    step.n_tokens = n_t;
    step.n_logits = n_l;
    TELL("batch of %u\n", n);
    fail_soon(w);
    kvs_status st = kvs_batch_eval(w->batch, &step, &err);
    fail_no_more(w);
    TELL("  %s %s\n", kvs_status_name(st), err.msg);
    for (uint32_t i = 0; i < n; i++) {
        if (st != KVS_OK) {
            check_failed(w, st, &err, "batch");
            check_seat(w, who[i], false, "a batch that failed");
            continue;
        }
        who[i]->held = to[i];
        for (uint32_t j = 0; j < n_l[i]; j++) {
            check_logits(w, kvs_batch_logits(w->batch, i, j), to[i].t, to[i].n - n_l[i] + j + 1,
                         "a row of a batch");
        }
        check_seat(w, who[i], n_l[i] > 0, "batch");
    }
}

static void op_save(world *w, seat *p)
{
    fail_soon(w);
    (void)kvs_session_save(p->s, NULL);
    if (chance(2)) {
        (void)kvs_session_flush(p->s, NULL);
    }
    fail_no_more(w);
    check_seat(w, p, false, "save");
}

static void op_renew(world *w, seat *p)
{
    kvs_err err = KVS_ERR_INIT;
    TELL("seat %d: anew\n", (int)(p - w->seats));
    remember(w, &p->held);
    fail_soon(w);
    free_seat(p);
    kvs_status st = make_seat(w, p, &err);
    fail_no_more(w);
    if (st != KVS_OK) {
        check_failed(w, st, &err, "a new session");
        free_seat(p);
        must(make_seat(w, p, &err), &err, "a new session");
    }
}

static void op_restart(world *w)
{
    TELL("restart\n");
    for (size_t i = 0; i < N_SEATS; i++) {
        remember(w, &w->seats[i].held);
    }
    close_world(w);
    w->n.restarts++;
    if (!open_world(w)) {
        DIE("what was opened once is not opened again");
    }
}

static void step(world *w)
{
    seat *p = &w->seats[below(N_SEATS)];
    w->n.ops++;
    switch (below(16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        op_sync(w, p, false);
        break;
    case 4:
        op_sync(w, p, true);
        break;
    case 5:
    case 6:
        op_append(w, p);
        break;
    case 7:
    case 8:
        op_round(w, p);
        break;
    case 9:
    case 10:
        if (w->batch) {
            op_rounds(w);
        }
        break;
    case 11:
    case 12:
        if (w->batch) {
            op_batch(w);
        }
        break;
    case 13:
        op_save(w, p);
        break;
    case 14:
        op_renew(w, p);
        break;
    default:
        if (chance(3)) {
            op_restart(w);
        }
    }
}

/* ---- programs */

static void write_model(world *w)
{
    gb b;
    tiny_build(&b, &w->t);
    FILE *f = fopen(w->file, "wb");
    if (!f || fwrite(b.p, 1, b.n, f) != b.n || fclose(f) != 0) {
        DIE("%s can't be written", w->file);
    }
    gb_free(&b);
}

static void run_program(world *w, uint32_t n_ops)
{
    struct counts n = w->n;
    memset(w, 0, sizeof *w);
    w->n = n;
    w->n.programs++;
    w->heap.fail_at = -1;
    drafting = w;
    (void)snprintf(w->base, sizeof w->base, "/dev/shm/kvstate-sessions-XXXXXX");
    if (!mkdtemp(w->base)) {
        (void)snprintf(w->base, sizeof w->base, "/tmp/kvstate-sessions-XXXXXX");
        if (!mkdtemp(w->base)) {
            DIE("no directory");
        }
    }
    (void)snprintf(w->file, sizeof w->file, "%s/model", w->base);
    (void)snprintf(w->dir, sizeof w->dir, "%s/state", w->base);
    choose_world(w);
    write_model(w);
    for (int tries = 0; !open_world(w); tries++) { /* what this geometry can't hold: dense */
        if (tries == 4) {
            DIE("no plan fits");
        }
        close_world(w);
        if (w->has_shared && w->plan_opts.kv[0] == 'f') {
            w->has_shared = false;
        }
        w->plan_opts.kv = chance(2) ? "f16" : "f32";
        w->plan_opts.start = 0;
        w->plan_opts.undo_bytes = 0;
    }
    open_plain(w);
    for (uint32_t i = 0; i < n_ops; i++) {
        step(w);
    }
    close_world(w);
    close_plain(w);
    remove_tree(w->base);
}

int main(int argc, char **argv)
{
    static world w;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    uint64_t first = 1;
    uint64_t count = 16;
    uint64_t ops = OPS;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t x = strtoull(argv[i + 1], NULL, 10);
        if (strcmp(argv[i], "--verbose") == 0) {
            verbose = x != 0;
        } else {
            *(strcmp(argv[i], "--first") == 0 ? &first
              : strcmp(argv[i], "--ops") == 0 ? &ops
                                              : &count) = x;
        }
    }
    for (seed_now = first; seed_now < first + count; seed_now++) {
        rng = seed_now * 0x2545f4914f6cdd1du + 1;
        run_program(&w, (uint32_t)ops);
    }
    (void)printf("%" PRIu64 " programs, %" PRIu64 " ops, %" PRIu64 " logits equal, %" PRIu64
                 " syncs, %" PRIu64 " tokens reused, %" PRIu64 " from disk, %" PRIu64
                 " lent, %" PRIu64 " rounds, %" PRIu64 " drafts accepted, %" PRIu64
                 " failed allocations, %" PRIu64 " refusals, %" PRIu64 " stops, %" PRIu64
                 " restarts\n",
                 w.n.programs, w.n.ops, w.n.checks, w.n.syncs, w.n.reused, w.n.disk, w.n.lent,
                 w.n.rounds, w.n.accepted, w.n.failures, w.n.refused, w.n.stops, w.n.restarts);
    bool all = w.n.disk > 0 && w.n.lent > 0 && w.n.accepted > 0 && w.n.failures > 0;
    return w.n.checks == 0 || (count >= 16 && !all); /* of few programs some do without */
}
