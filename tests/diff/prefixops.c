/* SPDX-License-Identifier: MIT */
/* prefixops.c: prefixops.h. Keys and values of a token are a function of it and of all tokens before
 * it, so that state of another prefix differs in its bytes. */
#include "diff/prefixops.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RIG_PAGED
#include "store/prefix_priv.h"
#include "support/cache_rig.h"
#include "support/fail_alloc.h"

#define MAX_IDS   72u
#define MAX_KNOWN 400u
#define N_LEASES  3u
#define N_WAITS   3u
#define MAX_BLOCK 4u

typedef struct text {
    uint32_t n;
    int32_t ids[MAX_IDS];
} text;

typedef struct published {
    text t;
    uint32_t ns;
    uint64_t evicted; /* count when it was published */
    bool snap;
} published;

typedef struct held {
    kvs_lease *lease;
    text t; /* the prompt; the lease covers n */
    uint32_t n;
    uint32_t ns;
} held;

/* What waits for a slower tier. */
typedef struct waiting {
    kvs__prefix_wait wait;
    text t;
    uint32_t ns;
    bool sure;         /* all of it can be resumed from while it waits */
    uint64_t given_up; /* count when it began */
} waiting;

typedef struct world {
    const uint8_t *p;
    size_t left;
    uint64_t more; /* behind the program: zeros */
    fail_alloc mem;
    kvs_ctx *ctx;
    kvs_pages *pages;
    kvs_pages *apart; /* of cold caches: without a limit */
    kvs_prefix *ix;
    kvs_layer_spec spec[RIG_MAX_LAYERS];
    uint32_t n_layers;
    bool windows;
    bool snaps;
    bool dense;
    bool midway;      /* publications on the way keep the stride's windows alone */
    bool forgot;      /* the list was full once: what it began with is not known */
    bool bounded;     /* something may have been evicted or left out */
    published *known; /* [MAX_KNOWN] */
    uint32_t n_known;
    held lease[N_LEASES];
    waiting waits[N_WAITS];
    prefixops_stats *st;
} world;

static int differs(const char *what, uint64_t a, uint64_t b)
{
    (void)fprintf(stderr, "prefixops: %s: %llu, %llu\n", what, (unsigned long long)a,
                  (unsigned long long)b);
    return 1;
}

static uint32_t byte(world *w)
{
    if (w->left == 0) {
        return 0;
    }
    w->left--;
    return *w->p++;
}

static uint32_t below(world *w, uint32_t n)
{
    return byte(w) % n;
}

/* What a lookup promised is attached, unless memory fails. */
static int refused_attach(kvs_status st)
{
    bool fine = st == KVS_OK || st == KVS_E_NOMEM;
    return fine ? 0 : differs("attach refused", (uint64_t)(int64_t)st, 0);
}

/* -- the world */

static kvs_layer_spec window_spec(kvs_layer_spec s, uint32_t window, uint32_t sinks)
{
    s.layout = KVS_LAYOUT_PAGED;
    s.window = window;
    s.sinks = sinks;
    s.max_block = MAX_BLOCK;
    return s;
}

static void add_layer(world *w, kvs_layer_spec s)
{
    s.layout = KVS_LAYOUT_PAGED;
    w->spec[w->n_layers++] = s;
}

static void choose_layers(world *w)
{
    uint32_t kind = below(w, 7);
    add_layer(w, rig_spec(1, 32, 32, "f32", "f32"));
    if (kind == 1 || kind == 3 || kind == 4) {
        uint32_t window = 1 + below(w, 12);
        uint32_t sinks = below(w, 2) ? below(w, 8) : 0;
        add_layer(w, window_spec(rig_spec(1, 32, 64, "affine4:32", "f16"), window, sinks));
        if (kind == 3) { /* its blocks of sinks are others' blocks of a window */
            sinks = below(w, 2) ? below(w, 8) : 0;
            window = 1 + below(w, 12);
            add_layer(w, window_spec(rig_spec(1, 32, 32, "f16", "f16"), window, sinks));
        }
        w->windows = true;
    }
    if (kind == 2 || kind == 4) {
        kvs_layer_spec s = rig_spec(1, 64, 32, "affine8:32", "affine8:32");
        s.kind = KVS_LAYER_LATENT;
        add_layer(w, s);
        s = rig_spec(1, 32, 32, "f32", "f32");
        s.kind = KVS_LAYER_BORROW;
        s.layout = KVS_LAYOUT_PAGED;
        w->spec[w->n_layers++] = s;
    }
    if (kind == 5) {
        kvs_layer_spec s = rig_spec(2, 32, 32, "affine4:32", "affine4:32");
        s.dense_until = 1 + below(w, 20);
        s.dense_dtype = KVS_F16;
        if (below(w, 2)) {
            uint32_t window = 1 + below(w, 12);
            s = window_spec(s, window, below(w, 8));
            w->windows = true;
        }
        add_layer(w, s);
        w->dense = true;
    }
    w->snaps = kind == 6;
}

static kvs_cache *new_cache_in(world *w, kvs_pages *pages)
{
    kvs_cache_opts o = KVS_CACHE_OPTS_INIT;
    kvs_cache *c = NULL;
    o.n_layers = w->n_layers;
    o.layers = w->spec;
    o.pages = pages;
    long fail_at = w->mem.fail_at;
    w->mem.fail_at = -1;
    rig_must(kvs_cache_new(w->ctx, &o, &c, NULL));
    w->mem.fail_at = fail_at;
    return c;
}

static kvs_cache *new_cache(world *w)
{
    return new_cache_in(w, w->pages);
}

static void open_world(world *w)
{
    static const uint32_t blocks[] = {1, 2, 3, 4, 7, 16};
    kvs_ctx_opts c = KVS_CTX_OPTS_INIT;
    kvs_prefix_opts o = KVS_PREFIX_OPTS_INIT;
    c.alloc = fail_alloc_take;
    c.free = fail_alloc_give;
    c.alloc_user = &w->mem;
    c.n_threads = 1;
    rig_must(kvs_ctx_new(&c, &w->ctx, NULL));
    choose_layers(w);
    w->pages = rig_pages(w->ctx, blocks[below(w, 6)], 0);
    w->apart = rig_pages(w->ctx, kvs__pages_block(w->pages), 0);
    kvs_cache *like = new_cache(w);
    o.policy = (kvs_retain_policy)below(w, 3);
    o.flags = w->snaps ? KVS_PREFIX_SNAPSHOTS : 0;
    o.window_stride = below(w, 2) ? 1 + below(w, 24) : 0;
    o.session_ms = below(w, 2) * 10;
    rig_must(kvs_prefix_new(w->ctx, like, &o, &w->ix, NULL));
    kvs_cache_free(like);
    w->midway = below(w, 2);
    w->known = rig_alloc(MAX_KNOWN * sizeof *w->known);
    if (below(w, 3) == 0) {
        w->bounded = true;
        rig_must(kvs_prefix_limit(w->ix, kvs__prefix_bytes(w->ix) + 4096 + byte(w) * 1024u));
    }
}

static int close_world(world *w)
{
    for (uint32_t i = 0; i < N_LEASES; i++) {
        kvs_prefix_release(w->lease[i].lease);
    }
    for (uint32_t i = 0; i < N_WAITS; i++) {
        kvs__prefix_wait_end(w->ix, &w->waits[i].wait);
    }
    kvs_prefix_free(w->ix);
    kvs_pages_free(w->pages);
    kvs_pages_free(w->apart);
    kvs_ctx_free(w->ctx);
    free(w->known);
    return w->mem.live != 0 || w->mem.wrong != 0 ? differs("bytes left", w->mem.live, 0) : 0;
}

/* -- computing */

static uint64_t seed_of(const text *t, uint32_t n)
{
    uint64_t h = 0x243f6a8885a308d3u;
    for (uint32_t i = 0; i < n; i++) {
        h = rig_mix(h ^ (uint64_t)(uint32_t)t->ids[i]);
    }
    return h;
}

/* Tokens [at, at + n) of a text in every layer. */
static kvs_status compute(world *w, kvs_cache *c, const text *t, uint32_t at, uint32_t n)
{
    static float k[MAX_BLOCK * 128];
    static float v[MAX_BLOCK * 128];
    kvs_status st = KVS_OK;
    for (uint32_t l = 0; l < w->n_layers && st == KVS_OK; l++) { /* all or none: reserve first */
        st = w->spec[l].kind == KVS_LAYER_BORROW ? KVS_OK : kvs_cache_reserve(c, l, n, NULL);
    }
    if (st != KVS_OK) {
        return st;
    }
    for (uint32_t l = 0; l < w->n_layers; l++) {
        const kvs_layer_spec *s = &w->spec[l];
        if (s->kind == KVS_LAYER_BORROW) {
            continue;
        }
        uint32_t kr = s->n_kv_heads * s->k_dim;
        uint32_t vr = s->n_kv_heads * s->v_dim;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t seed = seed_of(t, at + i + 1) + l;
            for (uint32_t d = 0; d < kr; d++) {
                k[i * kr + d] = rig_value(seed, d);
            }
            for (uint32_t d = 0; d < vr; d++) {
                v[i * vr + d] = rig_value(seed, 1000 + d);
            }
        }
        kvs_kv kv = KVS_KV_INIT;
        kv.n_tokens = n;
        kv.k = k;
        kv.v = s->kind == KVS_LAYER_LATENT ? NULL : v;
        rig_must(kvs_cache_append(c, l, &kv, NULL));
    }
    return KVS_OK;
}

static kvs_cache *cold(world *w, const text *t, uint32_t n)
{
    kvs_cache *c = new_cache_in(w, w->apart);
    long fail_at = w->mem.fail_at;
    w->mem.fail_at = -1;
    for (uint32_t at = 0; at < n;) {
        uint32_t m = n - at < MAX_BLOCK ? n - at : MAX_BLOCK;
        rig_must(compute(w, c, t, at, m));
        at += m;
    }
    w->mem.fail_at = fail_at;
    return c;
}

/* What a layer answers to a query for its next token, and its stored bytes: equal? */
static int same_layer(world *w, kvs_cache *a, kvs_cache *b, uint32_t l)
{
    const kvs_layer_spec *s = &w->spec[l];
    int64_t len = kvs_cache_length(a, l);
    int64_t lo = kvs_cache_oldest(a, l);
    int64_t other = kvs_cache_oldest(b, l);
    if (len != kvs_cache_length(b, l)) {
        return differs("length", (uint64_t)len, (uint64_t)kvs_cache_length(b, l));
    }
    lo = other > lo ? other : lo;
    size_t n[2] = {0, 0};
    void *x = rig_export(a, l, lo, (uint64_t)(len - lo), &n[0]);
    void *y = rig_export(b, l, lo, (uint64_t)(len - lo), &n[1]);
    int bad = n[0] != n[1] || memcmp(x, y, n[0]) != 0;
    free(x);
    free(y);
    int64_t sinks = s->sinks < len ? (int64_t)s->sinks : len;
    sinks = sinks < lo ? sinks : lo;
    if (!bad && sinks > 0) {
        x = rig_export(a, l, 0, (uint64_t)sinks, &n[0]);
        y = rig_export(b, l, 0, (uint64_t)sinks, &n[1]);
        bad = n[0] != n[1] || memcmp(x, y, n[0]) != 0;
        free(x);
        free(y);
    }
    if (!bad && s->window && len - lo < (int64_t)s->window - 1 && lo > 0) {
        return differs("window", (uint64_t)(len - lo), s->window);
    }
    return bad ? differs("state of layer", l, (uint64_t)len) : 0;
}

static int same_as_cold(world *w, kvs_cache *c, const text *t, uint32_t n)
{
    long fail_at = w->mem.fail_at;
    w->mem.fail_at = -1;
    kvs_cache *ref = cold(w, t, n);
    int bad = 0;
    for (uint32_t l = 0; l < w->n_layers && !bad; l++) {
        bad = w->spec[l].kind == KVS_LAYER_BORROW ? 0 : same_layer(w, c, ref, l);
    }
    kvs_cache_free(ref);
    w->mem.fail_at = fail_at;
    w->st->equal++;
    return bad;
}

/* -- the naive list */

static uint32_t common(const text *a, const text *b)
{
    uint32_t i = 0;
    while (i < a->n && i < b->n && a->ids[i] == b->ids[i]) {
        i++;
    }
    return i;
}

static void remember(world *w, const text *t, uint32_t n, uint32_t ns, bool snap)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w->ix, &st);
    if (w->n_known == MAX_KNOWN) {
        w->bounded = true;
        w->forgot = true;
        w->n_known = 0;
    }
    published *k = &w->known[w->n_known++];
    k->t = *t;
    k->t.n = n;
    k->ns = ns;
    k->evicted = st.evicted + st.evicted_windows;
    k->snap = snap;
}

/* Is there a longer text that begins with this one? Then its last block may lie in the other's alone, and
 * of many that begin alike a lookup sees two, which may lack a window. */
static bool goes_on(const world *w, const published *k)
{
    for (uint32_t i = 0; i < w->n_known; i++) {
        const published *x = &w->known[i];
        if (x->ns == k->ns && x->t.n > k->t.n && common(&x->t, &k->t) == k->t.n) {
            return true;
        }
    }
    return false;
}

/* The longest that is certain, and the longest that is possible. */
static void foretell(world *w, const text *t, uint32_t ns, uint32_t *least, uint32_t *most)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w->ix, &st);
    *least = 0;
    *most = w->forgot ? t->n - 1 : 0; /* then the bytes alone prove a hit */
    for (uint32_t i = 0; i < w->n_known; i++) {
        const published *k = &w->known[i];
        uint32_t n = k->ns == ns ? common(&k->t, t) : 0;
        bool whole = n == k->t.n && n < t->n;
        n = n < t->n ? n : t->n - 1;
        *most = n > *most ? n : *most;
        bool ends = whole && (k->t.n % kvs__pages_block(w->pages) == 0 || !goes_on(w, k));
        bool certain = w->snaps ? whole && k->snap : !w->windows || ends;
        if (w->dense || w->bounded || k->evicted != st.evicted + st.evicted_windows) {
            certain = false; /* what is on the other side of dense_until does not count */
        }
        *least = certain && n > *least ? n : *least;
    }
}

static kvs_prefix_key key_of(const text *t, uint32_t n, uint32_t ns)
{
    static const uint8_t identity[KVS_DIGEST_BYTES] = {1, 2, 3};
    static const char *const names[] = {"a", "b"};
    kvs_prefix_key k = {identity, names[ns], 1, t->ids, n};
    return k;
}

/* -- ops */

static void make_text(world *w, text *t)
{
    memset(t, 0, sizeof *t);
    if (w->n_known > 0 && below(w, 4) > 0) {
        const text *old = &w->known[below(w, w->n_known < 255 ? w->n_known : 255)].t;
        t->n = 1 + below(w, old->n);
        memcpy(t->ids, old->ids, t->n * sizeof t->ids[0]);
    }
    uint32_t add = 1 + below(w, 24);
    uint32_t bits = byte(w);
    for (uint32_t i = 0; i < add && t->n < MAX_IDS; i++) {
        bits = bits * 5 + 3 + (i % 7 == 0 ? byte(w) : 0);
        t->ids[t->n++] = (int32_t)(bits >> 3 & 1);
    }
}

static int check(world *w)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w->ix, &st);
    if (!kvs__prefix_check(w->ix) || !kvs__pages_check(w->pages)) {
        return differs("an invariant", w->st->ops, 0);
    }
    if (st.max_bytes && st.peak_bytes > st.max_bytes) {
        return differs("peak above the limit", st.peak_bytes, st.max_bytes);
    }
    return 0;
}

static kvs_status do_publish(world *w, kvs_cache *c, const text *t, uint32_t n, uint32_t ns,
                             bool midway)
{
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    uint64_t snap = seed_of(t, n);
    uint32_t how = byte(w);
    uint32_t tail = how & 3 ? n : n - n % kvs__pages_block(w->pages);
    size_t stored = 0;
    o.flags = (how & 3 ? 0u : KVS_PREFIX_NO_TAIL) | (midway ? KVS_PREFIX_MIDWAY : 0u);
    o.session = how & 4 ? 1 + (how >> 3 & 3) : 0;
    o.priority = how >> 5 & 3;
    if (how & 128 || w->snaps) {
        o.snapshot = &snap;
        o.snapshot_bytes = sizeof snap;
    }
    kvs_prefix_key key = key_of(t, n, ns);
    kvs_status st = kvs_prefix_publish(w->ix, &key, c, &o, &stored, NULL);
    if (st == KVS_OK && stored != tail) {
        return KVS_E_INTERNAL;
    }
    if (stored > 0) {
        /* of a window midway there may be less than a prompt that ends here needs */
        bool all = !(midway && w->windows);
        w->bounded = w->bounded || !all;
        remember(w, t, (uint32_t)stored, ns, o.snapshot && st == KVS_OK && stored == n);
        if (w->windows && stored < n) { /* the cache may have let go of what resuming there needs */
            w->known[w->n_known - 1].evicted = UINT64_MAX;
        }
    }
    w->bounded = w->bounded || st != KVS_OK;
    return st == KVS_NO || st == KVS_E_NOMEM || st == KVS_E_LIMIT ? KVS_OK : st;
}

/* Looks a text up, proves what was found, computes the rest and publishes on the way. */
static int serve(world *w)
{
    text t;
    make_text(w, &t);
    uint32_t ns = below(w, 8) == 0;
    uint32_t how = byte(w);
    uint32_t least = 0;
    uint32_t most = 0;
    kvs_lease *lease = NULL;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_prefix_key key = key_of(&t, t.n, ns);
    foretell(w, &t, ns, &least, &most);
    kvs_status st = kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL);
    kvs_cache *c = new_cache(w);
    uint32_t at = 0;
    int bad = 0;
    if (st == KVS_OK) {
        bool snap_bad =
            hit.snapshot && *(const uint64_t *)hit.snapshot != seed_of(&t, (uint32_t)hit.n_tokens);
        bad = hit.n_tokens >= t.n || hit.n_tokens > most || snap_bad || (w->snaps && !hit.snapshot)
                  ? differs("hit longer than anything published", hit.n_tokens, most)
                  : 0;
        st = kvs_prefix_attach(lease, c, NULL);
        at = st == KVS_OK ? (uint32_t)hit.n_tokens : 0;
        bad = bad || refused_attach(st);
        bad = bad || (at > 0 && same_as_cold(w, c, &t, at));
        w->st->hits++;
        w->st->hit_tokens += at;
    }
    bool calm = w->mem.fail_at < 0 || w->mem.calls <= w->mem.fail_at;
    if (!bad && calm && hit.n_tokens < least) {
        bad = differs("hit shorter than what was published", hit.n_tokens, least);
    }
    w->st->exact += least == most;
    held *slot = &w->lease[below(w, N_LEASES)];
    if (lease && how & 1 && at > 0) { /* to be attached later, whatever happens meanwhile */
        kvs_prefix_release(slot->lease);
        *slot = (held){lease, t, at, ns};
    } else {
        kvs_prefix_release(lease);
    }
    uint32_t stop = how & 2 ? at + (t.n - at) * below(w, 8) / 8 : t.n; /* cancelled on the way */
    w->st->cancelled += stop < t.n;
    while (!bad && at < stop) {
        uint32_t n = 1 + below(w, MAX_BLOCK);
        n = n < stop - at ? n : stop - at;
        if (compute(w, c, &t, at, n) != KVS_OK) {
            w->st->failed++;
            break;
        }
        at += n;
        if (byte(w) % 4 == 0) {
            bad = do_publish(w, c, &t, at, ns, w->midway) != KVS_OK;
        }
    }
    bad = bad || (at > 0 && do_publish(w, c, &t, at, ns, false) != KVS_OK);
    bad = bad || (at > 0 && same_as_cold(w, c, &t, at)); /* publishing shares, it changes nothing */
    kvs_cache_free(c);
    return bad;
}

/* A lease taken long ago still gives what it was taken for. */
static int use_lease(world *w)
{
    held *h = &w->lease[below(w, N_LEASES)];
    if (!h->lease) {
        return 0;
    }
    kvs_cache *c = new_cache(w);
    int bad = 0;
    kvs_status st = kvs_prefix_attach(h->lease, c, NULL);
    bad = refused_attach(st);
    if (st == KVS_OK) {
        bad = same_as_cold(w, c, &h->t, h->n);
        text t = h->t; /* going on writes into copies only */
        t.n = h->n;
        for (uint32_t i = 0; i < 3 && t.n < MAX_IDS; i++) {
            t.ids[t.n++] = (int32_t)below(w, 2);
        }
        if (!bad &&
            compute(w, c, &t, h->n, t.n - h->n < MAX_BLOCK ? t.n - h->n : MAX_BLOCK) == KVS_OK) {
            bad = same_as_cold(w, c, &t, (uint32_t)kvs_cache_length(c, 0));
        }
    }
    kvs_cache_free(c);
    if (byte(w) & 1) {
        kvs_prefix_release(h->lease);
        h->lease = NULL;
    }
    return bad;
}

static void forget_known(world *w, const text *t, uint32_t n, uint32_t ns)
{
    uint32_t to = 0;
    for (uint32_t i = 0; i < w->n_known; i++) {
        published *k = &w->known[i];
        if (k->ns == ns && common(&k->t, t) >= n) { /* the blocks before stay */
            k->t.n = n > 0 ? n - 1 : 0;
        }
        if (k->t.n > 0) {
            w->known[to++] = *k;
        }
    }
    w->n_known = to;
}

static void unsure(world *w)
{
    for (uint32_t i = 0; i < N_WAITS; i++) {
        w->waits[i].sure = false;
    }
}

static int forget(world *w)
{
    text t;
    make_text(w, &t);
    uint32_t ns = below(w, 2);
    uint32_t n = byte(w) % 4 == 0 ? 0 : t.n;
    kvs_prefix_key key = key_of(&t, n, ns);
    kvs_status st = kvs_prefix_forget(w->ix, &key, NULL);
    if (st == KVS_OK) {
        forget_known(w, &t, n, ns);
        unsure(w);
        w->bounded = true; /* the block that holds the last ids held others too */
        kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
        kvs_lease *lease = NULL;
        text longer = t;
        longer.ids[longer.n < MAX_IDS ? longer.n++ : MAX_IDS - 1] = 9;
        key = key_of(&longer, longer.n, ns);
        (void)kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL);
        kvs_prefix_release(lease);
        if (hit.n_known >= t.n) {
            return differs("forgotten, still found", hit.n_known, t.n);
        }
    }
    return 0;
}

/* Tokens that a prompt which goes on after the text is resumed from; MAX_IDS + 1: it can't be told. */
static uint32_t resumed(world *w, const text *t, uint32_t ns)
{
    text longer = *t;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    longer.ids[longer.n++] = 9;
    kvs_prefix_key key = key_of(&longer, longer.n, ns);
    kvs_status st = kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL);
    kvs_prefix_release(lease);
    return st == KVS_OK || st == KVS_NO ? (uint32_t)hit.n_tokens : MAX_IDS + 1;
}

/* Has a node all that resuming after its n tokens takes of it? */
static bool complete(const world *w, const kvs__node *node, uint32_t n)
{
    bool snap = !w->snaps;
    for (const kvs__snap *s = node->snaps; s; s = s->next) {
        snap = snap || s->at == n;
    }
    for (uint32_t s = 0; s < w->ix->n_slots; s++) {
        snap = snap && node->page[s];
    }
    return snap && node->n_tokens == n;
}

/* Does a text's last block lie in a node of its own, which all that goes on after it will find? */
static bool ends_alone(const world *w, const text *t, const kvs_prefix_key *key)
{
    uint8_t name[KVS__SHA_BYTES];
    kvs__root_key(key, name);
    const kvs__node *at = kvs__root_find(w->ix, name);
    for (uint32_t done = 0; at && done < t->n;) {
        uint32_t n = t->n - done < w->ix->block ? t->n - done : w->ix->block;
        at = kvs__node_child_with(at, t->ids + done, n);
        done += n;
        if (at && done == t->n) {
            return complete(w, at, n);
        }
    }
    return false;
}

/* A text begins to wait, or has waited: then it is all there, whatever was evicted meanwhile. */
static int wait(world *w)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    waiting *x = &w->waits[below(w, N_WAITS)];
    int bad = 0;
    (void)kvs_prefix_get_stats(w->ix, &st);
    if (x->wait.begun) {
        bool sure = x->sure && x->given_up == st.evicted_waiting;
        uint32_t n = sure ? resumed(w, &x->t, x->ns) : x->t.n;
        bad = n < x->t.n ? differs("gone while it waited", n, x->t.n) : 0;
        w->st->stayed += sure && n == x->t.n;
        kvs__prefix_wait_end(w->ix, &x->wait);
        unsure(w); /* of another one some may have waited in this */
        w->st->waits++;
    } else if (w->n_known > 0) {
        const published *k = &w->known[below(w, w->n_known < 255 ? w->n_known : 255)];
        x->t = k->t;
        x->ns = k->ns;
        x->given_up = st.evicted_waiting;
        kvs_prefix_key key = key_of(&x->t, x->t.n, x->ns);
        uint32_t from = byte(w) % 4 == 0 ? below(w, x->t.n) : 0;
        kvs__prefix_wait_begin(w->ix, &key, from, &x->wait);
        x->sure = from == 0 && x->t.n < MAX_IDS && ends_alone(w, &x->t, &key) &&
                  resumed(w, &x->t, x->ns) == x->t.n;
    }
    return bad;
}

static int object(world *w)
{
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    uint8_t data[40];
    uint8_t name[2] = {'o', (uint8_t)below(w, 4)};
    kvs_prefix_key key = {NULL, name, 2, NULL, 0};
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    memset(data, name[1] + 1, sizeof data);
    if (below(w, 2)) {
        o.snapshot = data;
        o.snapshot_bytes = 8 + name[1] * 8u;
        (void)kvs_prefix_publish(w->ix, &key, NULL, &o, NULL, NULL);
    }
    int bad = 0;
    if (kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL) == KVS_OK) {
        bad = hit.snapshot_bytes != 8 + name[1] * 8u ||
              memcmp(hit.snapshot, data, hit.snapshot_bytes) != 0;
    }
    kvs_prefix_release(lease);
    return bad ? differs("object", hit.snapshot_bytes, name[1]) : 0;
}

static int limit(world *w)
{
    size_t now = kvs__prefix_bytes(w->ix);
    size_t to = byte(w) % 4 == 0 ? 0 : now / 2 + byte(w) * 512u;
    w->bounded = true;
    if (kvs_prefix_limit(w->ix, to) != KVS_OK) {
        (void)kvs_prefix_limit(w->ix, kvs__prefix_bytes(w->ix));
    }
    return 0;
}

/* The pool runs into a limit of its own: the index gives up blocks for the rows. */
static int squeeze(world *w)
{
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    (void)kvs_pages_get_stats(w->pages, &s);
    w->bounded = true;
    (void)kvs_pages_set_limit(w->pages, byte(w) & 1 ? 0 : s.bytes + 2048, NULL);
    return 0;
}

static int open_round(world *w)
{
    text t;
    make_text(w, &t);
    kvs_cache *c = new_cache(w);
    if (compute(w, c, &t, 0, 1) != KVS_OK) {
        kvs_cache_free(c);
        return 0;
    }
    kvs_prefix_key key = key_of(&t, 1, 0);
    c->open = true; /* as kvs_txn_begin leaves it */
    kvs_status st = kvs_prefix_publish(w->ix, &key, c, NULL, NULL, NULL);
    c->open = false;
    kvs_cache_free(c);
    return st != KVS_E_STATE ? differs("published an open round", (uint64_t)-st, 0) : 0;
}

static int one_op(world *w)
{
    uint32_t op = below(w, 36);
    bool fails = byte(w) % 16 == 1;
    if (fails) {
        w->mem.fail_at = w->mem.calls + below(w, 40);
        w->bounded = true;
    }
    int bad = 0;
    if (op < 20) {
        bad = serve(w);
    } else if (op < 25) {
        bad = use_lease(w);
    } else if (op == 25) {
        bad = forget(w);
    } else if (op == 26) {
        bad = object(w);
    } else if (op == 27 && w->bounded) {
        bad = limit(w);
    } else if (op == 28 && w->bounded) {
        bad = squeeze(w);
    } else if (op == 29) {
        kvs_prefix_clock(w->ix, w->st->ops);
    } else if (op == 30 && byte(w) % 4 == 0) {
        kvs_prefix_clear(w->ix);
        w->n_known = 0;
        unsure(w);
    } else if (op == 31 && w->mem.fail_at < 0) {
        bad = open_round(w);
    } else if (op > 31) {
        bad = wait(w);
    }
    w->mem.fail_at = -1;
    return bad || check(w);
}

int prefixops_run(const uint8_t *program, size_t n, prefixops_stats *stats)
{
    world w;
    memset(&w, 0, sizeof w);
    w.p = program;
    w.left = n;
    w.mem.fail_at = -1;
    w.st = stats;
    open_world(&w);
    int bad = 0;
    while (!bad && w.left > 0) {
        bad = one_op(&w);
        stats->ops++;
    }
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w.ix, &st);
    stats->evicted += st.evicted + st.evicted_windows;
    stats->programs++;
    return close_world(&w) || bad;
}
