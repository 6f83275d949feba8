/* SPDX-License-Identifier: MIT */
/* sessions_world.c: makes and ends the worlds of random programs over sessions, and knows what they
 * must hold: a plain list of tokens, and the logits that a session on one thread, with other kernels
 * and no past, has after it. */
#include "diff/sessions_world.h"

#include <string.h>
#include <unistd.h>

#include "support/remove_tree.h"

uint64_t seed_now;
bool verbose;

static uint64_t rng;

void seed(uint64_t x)
{
    seed_now = x;
    rng = x * 0x2545f4914f6cdd1du + 1;
}

uint32_t below(uint32_t n)
{
    uint64_t z = rng += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z >> 32) % n);
}

bool chance(uint32_t one_in)
{
    return below(one_in) == 0;
}

void must(kvs_status st, const kvs_err *err, const char *what)
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

int32_t plain_pick(world *w, const int32_t *t, size_t n)
{
    kvs_err err = KVS_ERR_INIT;
    int32_t token = 0;
    must(kvs_sampler_pick(w->plain_sampler, plain_logits(w, t, n), t, n, &token, &err), &err,
         "plain pick");
    return token;
}

void check_logits(world *w, const float *got, const int32_t *t, size_t n, const char *what)
{
    const float *want = plain_logits(w, t, n);
    w->n.checks++;
    if (memcmp(got, want, N_VOCAB * sizeof *got) != 0) {
        DIE("%s: other logits after %zu tokens", what, n);
    }
}

void check_seat(world *w, const seat *p, bool must_have, const char *what)
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

kvs_status make_seat(world *w, seat *p, kvs_err *err)
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

void free_seat(seat *p)
{
    kvs_spec_free(p->spec);
    kvs_sampler_free(p->sampler);
    kvs_session_free(p->s);
    memset(p, 0, sizeof *p);
}

bool open_world(world *w)
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

void close_world(world *w)
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

void remember(world *w, const text *t)
{
    if (t->n > 0) {
        w->heard[below(N_HEARD)] = *t;
    }
}

void add_random(text *t, size_t n)
{
    while (n-- > 0 && t->n < MAX_N) {
        t->t[t->n++] = (int32_t)below(chance(3) ? 5 : N_VOCAB);
    }
}

void choose_text(world *w, text *t)
{
    const text *from = chance(2) ? &w->heard[below(N_HEARD)] : &w->seats[below(N_SEATS)].held;
    size_t n = chance(2) ? from->n : below((uint32_t)from->n + 1);
    memcpy(t->t, from->t, n * sizeof *t->t);
    t->n = n;
    bool first = from->n == 0; /* long enough to be worth a save */
    add_random(t, first ? 30 + below(60) : chance(3) ? 0 : chance(2) ? below(8) : below(60));
}

void begin_world(world *w)
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
    if (!tiny_save(&w->t, w->file)) {
        DIE("%s can't be written", w->file);
    }
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
}

void end_world(world *w)
{
    close_world(w);
    close_plain(w);
    remove_tree(w->base);
}
