/* SPDX-License-Identifier: MIT */
/* share.c: a session and its prefix cache (share.h): what it asks for, and when it gives.
 *
 * Given are: whole blocks as soon as they are computed, since layers with a window drop them; the end
 * of a prompt; all of it where the session stops half way, goes back or ends. A model with recurrent
 * layers can resume at snapshots alone, so blocks of a prompt end where those belong: before the
 * last token (the same prompt again leaves one token to compute, the next turn goes on from there,
 * too), and where this prompt leaves an earlier one (the next one that does finds a snapshot). */
#include "engine/share.h"

#include <string.h>
#include <time.h>

#include "engine/identity.h"
#include "engine/session_priv.h"
#include "kvstate/recurrent.h"
#include "state/pages_lock.h"

struct kvs__share {
    kvs_ctx *ctx;
    kvs_prefix_cache *pc;
    kvs_cache *cache;
    uint32_t part; /* of the entries; a draft model's has the target's identity */
    uint8_t identity[KVS_DIGEST_BYTES];
    kvs_lease *lease; /* I2 */
    kvs_prefix_hit hit;
    size_t prompt;    /* length of the last one */
    size_t branch;    /* where it leaves what is known; 0: nowhere that matters */
    size_t published; /* of the tokens held, those given block by block */
    size_t exact;     /* all of so many have been given, with a snapshot */
    size_t asked;     /* tokens that the lookup of this prompt has counted as used */
    size_t counted;   /* those, and what was given since: >= asked */
    size_t lent;
    uint64_t session; /* as the index knows it; 0: none */
    uint32_t priority;
    uint32_t priority_ms;
    bool foreign;
};

/* ---- making */

kvs_status kvs__share_check(kvs_session_opts *o, const kvs_model *model, kvs_err *err)
{
    const kvs_prefix_cache *pc = o->prefix_cache;
    uint8_t plan[KVS_PLAN_DIGEST_BYTES];
    if (!pc) {
        const char *what = o->prefix_salt.bytes > 0                      ? "salt"
                           : o->prefix_session                           ? "session"
                           : o->prefix_priority || o->prefix_priority_ms ? "priority"
                                                                         : NULL;
        return what ? kvs__fail(err, KVS_E_INVAL, "engine", "prefix_%s without prefix_cache", what)
                    : KVS_OK;
    }
    if (o->prefix_priority >= KVS_RETAIN_PRIORITIES) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "prefix_priority is %u, at most %u are there",
                         o->prefix_priority, KVS_RETAIN_PRIORITIES - 1);
    }
    if (!o->plan || pc->model != model || (o->pages && o->pages != pc->pages)) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "%s",
                         !o->plan             ? "a session with a prefix cache needs its plan"
                         : pc->model != model ? "the prefix cache is of another model"
                                              : "the prefix cache has another pool");
    }
    kvs_plan_digest(o->plan, plan);
    if (memcmp(plan, pc->plan, sizeof plan) != 0) {
        return kvs__fail(err, KVS_E_INVAL, "engine", "the prefix cache is of another plan");
    }
    o->pages = pc->pages;
    return KVS_OK;
}

static void count_in(kvs_prefix_cache *pc)
{
    kvs__pages_lock(pc->pages);
    pc->n_sessions++;
    kvs__pages_unlock(pc->pages);
}

kvs_status kvs__share_new(kvs_ctx *ctx, kvs_cache *cache, const kvs_session_opts *o, uint32_t n_ctx,
                          kvs__share **out, kvs_err *err)
{
    kvs_prefix_cache *pc = o->prefix_cache;
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    *out = NULL;
    if (!pc) {
        return KVS_OK;
    }
    kvs__share *h = kvs__calloc(ctx, 1, sizeof *h);
    if (!h) {
        return kvs__nomem(err, "engine", sizeof *h);
    }
    h->ctx = ctx;
    h->pc = pc;
    h->cache = cache;
    d.model = (kvs_bytes){pc->weights, pc->store ? sizeof pc->weights : 0};
    d.salt = o->prefix_salt;
    kvs_status st = kvs__identity(ctx, &pc->model->net, cache, n_ctx, &d, h->identity, err);
    if (st != KVS_OK) {
        kvs__free(ctx, h, sizeof *h);
        return st;
    }
    if (o->prefix_session) { /* of another salt it is another one */
        uint64_t apart = 0;
        memcpy(&apart, h->identity, sizeof apart);
        h->session = o->prefix_session ^ apart;
        h->session += h->session == 0;
    }
    h->priority = o->prefix_priority;
    h->priority_ms = o->prefix_priority_ms;
    count_in(pc);
    *out = h;
    return KVS_OK;
}

/* ---- a draft model's */

uint32_t kvs__share_draft_block(const kvs__share *h, const kvs_model *draft)
{
    return h && h->pc->draft_model == draft ? h->pc->block : 0;
}

kvs_pages *kvs__share_draft_pages(const kvs__share *h, const kvs_model *draft, uint32_t kv_block)
{
    uint32_t block = kvs__share_draft_block(h, draft);
    return block && (kv_block == 0 || kv_block == block) ? h->pc->pages : NULL;
}

kvs_status kvs__share_beside(const kvs__share *h, const kvs_session *drafter, const kvs_plan *plan,
                             kvs__share **out, kvs_err *err)
{
    uint8_t digest[KVS_PLAN_DIGEST_BYTES];
    uint8_t identity[KVS_DIGEST_BYTES];
    kvs_identity_desc d = KVS_IDENTITY_DESC_INIT;
    *out = NULL;
    if (!h || h->pc->draft_model != drafter->model) {
        return KVS_NO;
    }
    kvs_plan_digest(plan, digest);
    kvs_status st = kvs__identity(drafter->ctx, &drafter->model->net, drafter->cache,
                                  drafter->n_ctx, &d, identity, err);
    if (st == KVS_OK && (memcmp(digest, h->pc->draft_plan, sizeof digest) != 0 ||
                         memcmp(identity, h->pc->draft_identity, sizeof identity) != 0)) {
        st = KVS_NO;
    }
    kvs__share *b = st == KVS_OK ? kvs__calloc(drafter->ctx, 1, sizeof *b) : NULL;
    if (!b) {
        return st == KVS_OK ? kvs__nomem(err, "engine", sizeof *b) : st;
    }
    b->ctx = drafter->ctx;
    b->pc = h->pc;
    b->cache = drafter->cache;
    b->part = KVS__PART_DRAFT;
    memcpy(b->identity, h->identity, sizeof b->identity);
    count_in(b->pc);
    *out = b;
    return KVS_OK;
}

void kvs__share_free(kvs__share *h)
{
    if (h) {
        kvs__share_release(h);
        kvs__pages_lock(h->pc->pages);
        h->pc->n_sessions--;
        kvs__pages_unlock(h->pc->pages);
        kvs__free(h->ctx, h, sizeof *h);
    }
}

kvs_store *kvs__share_store(const kvs__share *h, const uint8_t **identity)
{
    *identity = h ? h->identity : NULL;
    return h ? h->pc->store : NULL;
}

void kvs__share_wait_begin(const kvs__share *h, const int32_t *tokens, size_t n, size_t from,
                           kvs__share_wait *out)
{
    out->pc = h && !h->foreign ? h->pc : NULL;
    if (out->pc) {
        kvs_prefix_key key = {h->identity, NULL, 0, tokens, n};
        kvs__pages_lock(out->pc->pages);
        kvs__prefix_wait_begin(out->pc->index, &key, from, &out->list);
        kvs__pages_unlock(out->pc->pages);
    }
}

void kvs__share_wait_end(kvs__share_wait *w)
{
    if (w->pc) {
        kvs__pages_lock(w->pc->pages);
        kvs__prefix_wait_end(w->pc->index, &w->list);
        kvs__pages_unlock(w->pc->pages);
        w->pc = NULL;
    }
}

/* For what is kept for some time. */
static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- asking */

/* Of recurrent layers; 0: there are none. */
static size_t snapshot_bytes(const kvs__share *h)
{
    return h->pc->snapshot_bytes[h->part];
}

/* So little in common is had by any two prompts, and computed again sooner than a snapshot is taken. */
static bool worth_snapshot(const kvs__share *h, size_t own)
{
    size_t have = h->hit.n_tokens > own ? h->hit.n_tokens : own;
    return snapshot_bytes(h) > 0 && h->hit.n_known >= have + h->pc->block;
}

size_t kvs__share_find(kvs__share *h, const int32_t *tokens, size_t n, size_t own)
{
    if (!h) {
        return 0;
    }
    kvs_prefix_key key = {h->identity, NULL, 0, tokens, n};
    h->hit = (kvs_prefix_hit)KVS_PREFIX_HIT_INIT;
    h->prompt = n;
    h->branch = 0;
    h->asked = 0;
    h->counted = 0;
    h->lent = 0;
    if (n < 2 || own + 1 >= n) {
        return 0;
    }
    kvs__pages_lock(h->pc->pages);
    kvs_prefix_clock(h->pc->index, now_ms());
    kvs_status st =
        kvs__prefix_lookup_part(h->pc->index, h->part, &key, own + 1, &h->lease, &h->hit, NULL);
    kvs__pages_unlock(h->pc->pages);
    h->branch = worth_snapshot(h, own) ? h->hit.n_known : 0;
    if (st != KVS_OK) { /* no memory is as good a reason as none known */
        return 0;
    }
    h->asked = h->hit.n_tokens; /* wherever it will be taken from */
    h->counted = h->asked;
    if (snapshot_bytes(h) > 0 && h->hit.snapshot_bytes != snapshot_bytes(h)) {
        kvs__share_release(h);
        return 0;
    }
    return h->hit.n_tokens;
}

kvs_status kvs__share_attach(kvs__share *h, kvs_err *err)
{
    kvs_status st = kvs_prefix_attach(h->lease, h->cache, err);
    if (st == KVS_OK && snapshot_bytes(h) > 0) {
        st = kvs_recurrent_resume(h->cache, (int64_t)h->hit.n_tokens, h->hit.snapshot,
                                  h->hit.snapshot_bytes, err);
    }
    if (st == KVS_OK) {
        h->lent = h->hit.n_tokens;
        h->published = h->lent;
        h->exact = h->lent;
        h->foreign = false;
    }
    kvs__share_release(h);
    return st;
}

void kvs__share_release(kvs__share *h)
{
    if (h && h->lease) {
        kvs__pages_lock(h->pc->pages);
        kvs_prefix_release(h->lease);
        kvs__pages_unlock(h->pc->pages);
        h->lease = NULL;
    }
}

/* ---- giving */

/* A failure leaves the index as it was, or with a part: that is true all the same. */
static void give(kvs__share *h, const int32_t *tokens, size_t n, bool whole)
{
    kvs_prefix_key key = {h->identity, NULL, 0, tokens, n};
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    size_t stored = 0;
    o.flags = whole ? 0 : KVS_PREFIX_NO_TAIL | KVS_PREFIX_MIDWAY;
    o.n_counted = h->counted;
    o.session = h->session;
    o.priority = h->priority;
    o.priority_ms = h->priority_ms;
    kvs__pages_lock(h->pc->pages);
    kvs_prefix_clock(h->pc->index, now_ms());
    if (whole && snapshot_bytes(h) > 0 &&
        kvs_recurrent_snapshot(h->cache, (int64_t)n, h->pc->blob, snapshot_bytes(h), NULL) ==
            KVS_OK) {
        o.snapshot = h->pc->blob;
        o.snapshot_bytes = snapshot_bytes(h);
    }
    (void)kvs__prefix_publish_part(h->pc->index, h->part, &key, h->cache, &o, &stored, NULL);
    kvs__pages_unlock(h->pc->pages);
    h->counted = stored > h->counted ? stored : h->counted;
    h->published = n;
    h->exact = whole ? n : h->exact;
}

static bool snapshot_here(const kvs__share *h, size_t n)
{
    uint32_t stride = h->pc->snapshot_stride;
    return n == h->branch || n + 1 == h->prompt || (stride > 0 && n % stride == 0);
}

size_t kvs__share_stop(const kvs__share *h, size_t n, size_t end)
{
    if (!h || snapshot_bytes(h) == 0) {
        return end;
    }
    size_t stop = end;
    size_t at[3] = {h->branch, h->prompt > 0 ? h->prompt - 1 : 0, 0};
    if (h->pc->snapshot_stride > 0) {
        at[2] = (n / h->pc->snapshot_stride + 1) * h->pc->snapshot_stride;
    }
    for (int i = 0; i < 3; i++) {
        stop = at[i] > n && at[i] < stop ? at[i] : stop;
    }
    return stop;
}

void kvs__share_after(kvs__share *h, const int32_t *tokens, size_t n)
{
    if (!h || h->foreign) {
        return;
    }
    size_t block = h->pc->block;
    if (snapshot_bytes(h) > 0 ? snapshot_here(h, n) : n == h->prompt) {
        give(h, tokens, n, true);
    } else if (n / block > h->published / block) {
        give(h, tokens, n - n % block, false);
    }
}

void kvs__share_keep(kvs__share *h, const int32_t *tokens, size_t n)
{
    if (h && !h->foreign && n > 0 && n != h->exact) {
        give(h, tokens, n, true);
    }
}

void kvs__share_cut(kvs__share *h, size_t n)
{
    if (h) {
        h->published = h->published < n ? h->published : n;
        h->exact = n == 0 || h->exact > n ? 0 : h->exact;
        h->counted = h->counted < n ? h->counted : n;
        h->counted = h->counted > h->asked ? h->counted : h->asked;
        h->foreign = h->foreign && n > 0;
    }
}

void kvs__share_foreign(kvs__share *h)
{
    if (h) {
        h->foreign = true;
    }
}

size_t kvs__share_lent(const kvs__share *h)
{
    return h ? h->lent : 0;
}
