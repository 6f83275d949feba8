/* SPDX-License-Identifier: MIT */
/* prefixops.c: prefixops.h: what programs do, and the list that foretells it. */
#include "diff/prefixops_priv.h"

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
 * of many that begin alike a lookup sees the nearest, which may lack a window. */
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
    if (w->n_known > 0 && prefixops_below(w, 4) > 0) {
        const text *old = &w->known[prefixops_below(w, w->n_known < 255 ? w->n_known : 255)].t;
        t->n = 1 + prefixops_below(w, old->n);
        memcpy(t->ids, old->ids, t->n * sizeof t->ids[0]);
    }
    uint32_t add = 1 + prefixops_below(w, 24);
    uint32_t bits = prefixops_byte(w);
    for (uint32_t i = 0; i < add && t->n < MAX_IDS; i++) {
        bits = bits * 5 + 3 + (i % 7 == 0 ? prefixops_byte(w) : 0);
        t->ids[t->n++] = (int32_t)(bits >> 3 & 1);
    }
}

static int check(world *w)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w->ix, &st);
    if (!kvs__prefix_check(w->ix) || !kvs__pages_check(w->pages)) {
        return prefixops_differs("an invariant", w->st->ops, 0);
    }
    if (st.max_bytes && st.peak_bytes > st.max_bytes) {
        return prefixops_differs("peak above the limit", st.peak_bytes, st.max_bytes);
    }
    return 0;
}

/* -- more entries, never fewer tokens */

#define ASKED 6u

typedef struct question {
    text t;
    uint32_t ns;
    size_t found;
} question;

static size_t ask(world *w, const question *q)
{
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    kvs_prefix_key key = key_of(&q->t, q->t.n, q->ns);
    (void)kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL);
    kvs_prefix_release(lease);
    return hit.n_tokens;
}

/* Beginnings of what is published, some of which go on otherwise. Returns how many; 0 where memory may
 * fail or room be made for a lookup. */
static uint32_t ask_all(world *w, question *q)
{
    uint64_t r = rig_mix(w->left * 64 + w->n_known);
    if (w->mem.fail_at >= 0 || w->ix->o.max_bytes > 0 || w->n_known == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < ASKED; i++) {
        r = rig_mix(r);
        const published *k = &w->known[r % w->n_known];
        q[i].t = k->t;
        q[i].ns = k->ns;
        q[i].t.n = i % 2 ? k->t.n : 1 + (uint32_t)((r >> 20) % k->t.n);
        if (q[i].t.n < MAX_IDS && r >> 40 & 1) {
            q[i].t.ids[q[i].t.n++] = 7; /* no text has it */
        }
        q[i].found = ask(w, &q[i]);
    }
    return ASKED;
}

/* Has a node more children than a lookup is sure to see? */
static bool crowded(const kvs__node *at)
{
    return at && (at->n_children > KVS__FURTHER + 1 || crowded(at->left) || crowded(at->right) ||
                  crowded(at->child));
}

static int ask_again(world *w, const question *q, uint32_t n)
{
    bool crowd = false;
    for (uint32_t i = 0; i < w->ix->n_roots; i++) {
        crowd = crowd || crowded(w->ix->root[i]);
    }
    for (uint32_t i = 0; i < n && !crowd; i++) {
        size_t found = ask(w, &q[i]);
        if (found < q[i].found) {
            return prefixops_differs("an entry more, and fewer tokens found", found, q[i].found);
        }
    }
    return 0;
}

static uint64_t gone(const world *w)
{
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w->ix, &st);
    return st.evicted + st.evicted_windows;
}

static kvs_status add_entry(world *w, kvs_cache *c, const text *t, uint32_t n, uint32_t ns,
                            bool midway)
{
    kvs_prefix_publish_opts o = KVS_PREFIX_PUBLISH_OPTS_INIT;
    uint64_t snap = prefixops_seed_of(t, n);
    uint32_t how = prefixops_byte(w);
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

static kvs_status do_publish(world *w, kvs_cache *c, const text *t, uint32_t n, uint32_t ns,
                             bool midway)
{
    question q[ASKED];
    uint64_t before = gone(w);
    uint32_t n_asked = ask_all(w, q);
    kvs_status st = add_entry(w, c, t, n, ns, midway);
    return st == KVS_OK && gone(w) == before && ask_again(w, q, n_asked) ? KVS_E_INTERNAL : st;
}

/* Looks a text up, proves what was found, computes the rest and publishes on the way. */
static int serve(world *w)
{
    text t;
    make_text(w, &t);
    uint32_t ns = prefixops_below(w, 8) == 0;
    uint32_t how = prefixops_byte(w);
    uint32_t least = 0;
    uint32_t most = 0;
    kvs_lease *lease = NULL;
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_prefix_key key = key_of(&t, t.n, ns);
    foretell(w, &t, ns, &least, &most);
    kvs_status st = kvs_prefix_lookup(w->ix, &key, 0, &lease, &hit, NULL);
    kvs_cache *c = prefixops_new_cache(w);
    uint32_t at = 0;
    int bad = 0;
    if (st == KVS_OK) {
        bool snap_bad = hit.snapshot && *(const uint64_t *)hit.snapshot !=
                                            prefixops_seed_of(&t, (uint32_t)hit.n_tokens);
        bad = hit.n_tokens >= t.n || hit.n_tokens > most || snap_bad || (w->snaps && !hit.snapshot)
                  ? prefixops_differs("hit longer than anything published", hit.n_tokens, most)
                  : 0;
        st = kvs_prefix_attach(lease, c, NULL);
        at = st == KVS_OK ? (uint32_t)hit.n_tokens : 0;
        bad = bad || prefixops_refused_attach(st);
        bad = bad || (at > 0 && prefixops_same_as_cold(w, c, &t, at));
        w->st->hits++;
        w->st->hit_tokens += at;
    }
    bool calm = w->mem.fail_at < 0 || w->mem.calls <= w->mem.fail_at;
    if (!bad && calm && hit.n_tokens < least) {
        bad = prefixops_differs("hit shorter than what was published", hit.n_tokens, least);
    }
    w->st->exact += least == most;
    held *slot = &w->lease[prefixops_below(w, N_LEASES)];
    if (lease && how & 1 && at > 0) { /* to be attached later, whatever happens meanwhile */
        kvs_prefix_release(slot->lease);
        *slot = (held){lease, t, at, ns};
    } else {
        kvs_prefix_release(lease);
    }
    uint32_t stop =
        how & 2 ? at + (t.n - at) * prefixops_below(w, 8) / 8 : t.n; /* cancelled on the way */
    w->st->cancelled += stop < t.n;
    while (!bad && at < stop) {
        uint32_t n = 1 + prefixops_below(w, MAX_BLOCK);
        n = n < stop - at ? n : stop - at;
        if (prefixops_compute(w, c, &t, at, n) != KVS_OK) {
            w->st->failed++;
            break;
        }
        at += n;
        if (prefixops_byte(w) % 4 == 0) {
            bad = do_publish(w, c, &t, at, ns, w->midway) != KVS_OK;
        }
    }
    bad = bad || (at > 0 && do_publish(w, c, &t, at, ns, false) != KVS_OK);
    bad = bad || (at > 0 &&
                  prefixops_same_as_cold(w, c, &t, at)); /* publishing shares, it changes nothing */
    kvs_cache_free(c);
    return bad;
}

/* What a slower tier gives back: of a window the sinks and the newest tokens, as many as need be. */
static kvs_status read_back(world *w, kvs_cache *c, const kvs_cache *from, uint32_t n)
{
    kvs_status st = KVS_OK;
    for (uint32_t l = 0; l < w->n_layers && st == KVS_OK; l++) {
        const kvs_layer_spec *s = &w->spec[l];
        if (s->kind == KVS_LAYER_BORROW) {
            continue;
        }
        uint32_t keep = s->window ? s->window - 1 + prefixops_below(w, MAX_BLOCK) : n;
        keep += keep == 0;
        uint32_t lo = n > keep ? n - keep : 0;
        uint32_t sinks = s->sinks < n ? s->sinks : n;
        lo = lo > sinks ? lo : sinks;
        st = prefixops_import(c, from, l, 0, sinks);
        st = st == KVS_OK ? prefixops_import(c, from, l, lo, n) : st;
    }
    return st;
}

/* A cache that was read back is published, and goes on. */
static int restore(world *w)
{
    text t;
    make_text(w, &t);
    uint32_t ns = prefixops_below(w, 8) == 0;
    if (w->dense) { /* no import crosses a delayed conversion */
        return 0;
    }
    uint32_t n = 1 + prefixops_below(w, t.n);
    kvs_cache *from = prefixops_cold(w, &t, n);
    kvs_cache *c = prefixops_new_cache(w);
    kvs_status st = read_back(w, c, from, n);
    int bad = st == KVS_OK || st == KVS_E_NOMEM || st == KVS_E_LIMIT
                  ? 0
                  : prefixops_differs("a cache read back", (uint64_t)(int64_t)st, 0);
    while (!bad && st == KVS_OK) {
        bad = do_publish(w, c, &t, n, ns, false) != KVS_OK || prefixops_same_as_cold(w, c, &t, n);
        if (w->n_known > 0) { /* a block that begins before what was read is not given */
            w->known[w->n_known - 1].evicted = UINT64_MAX;
        }
        w->st->restored++;
        uint32_t m = t.n - n < MAX_BLOCK ? t.n - n : MAX_BLOCK;
        if (m == 0 || prefixops_compute(w, c, &t, n, m) != KVS_OK) {
            break;
        }
        n += m;
    }
    kvs_cache_free(from);
    kvs_cache_free(c);
    return bad;
}

/* A lease taken long ago still gives what it was taken for. */
static int use_lease(world *w)
{
    held *h = &w->lease[prefixops_below(w, N_LEASES)];
    if (!h->lease) {
        return 0;
    }
    kvs_cache *c = prefixops_new_cache(w);
    int bad = 0;
    kvs_status st = kvs_prefix_attach(h->lease, c, NULL);
    bad = prefixops_refused_attach(st);
    if (st == KVS_OK) {
        bad = prefixops_same_as_cold(w, c, &h->t, h->n);
        text t = h->t; /* going on writes into copies only */
        t.n = h->n;
        for (uint32_t i = 0; i < 3 && t.n < MAX_IDS; i++) {
            t.ids[t.n++] = (int32_t)prefixops_below(w, 2);
        }
        if (!bad && prefixops_compute(w, c, &t, h->n,
                                      t.n - h->n < MAX_BLOCK ? t.n - h->n : MAX_BLOCK) == KVS_OK) {
            bad = prefixops_same_as_cold(w, c, &t, (uint32_t)kvs_cache_length(c, 0));
        }
    }
    kvs_cache_free(c);
    if (prefixops_byte(w) & 1) {
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
    uint32_t ns = prefixops_below(w, 2);
    uint32_t n = prefixops_byte(w) % 4 == 0 ? 0 : t.n;
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
            return prefixops_differs("forgotten, still found", hit.n_known, t.n);
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
    waiting *x = &w->waits[prefixops_below(w, N_WAITS)];
    int bad = 0;
    (void)kvs_prefix_get_stats(w->ix, &st);
    if (x->wait.begun) {
        bool sure = x->sure && x->given_up == st.evicted_waiting;
        uint32_t n = sure ? resumed(w, &x->t, x->ns) : x->t.n;
        bad = n < x->t.n ? prefixops_differs("gone while it waited", n, x->t.n) : 0;
        w->st->stayed += sure && n == x->t.n;
        kvs__prefix_wait_end(w->ix, &x->wait);
        unsure(w); /* of another one some may have waited in this */
        w->st->waits++;
    } else if (w->n_known > 0) {
        const published *k = &w->known[prefixops_below(w, w->n_known < 255 ? w->n_known : 255)];
        x->t = k->t;
        x->ns = k->ns;
        x->given_up = st.evicted_waiting;
        kvs_prefix_key key = key_of(&x->t, x->t.n, x->ns);
        uint32_t from = prefixops_byte(w) % 4 == 0 ? prefixops_below(w, x->t.n) : 0;
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
    uint8_t name[2] = {'o', (uint8_t)prefixops_below(w, 4)};
    kvs_prefix_key key = {NULL, name, 2, NULL, 0};
    kvs_prefix_hit hit = KVS_PREFIX_HIT_INIT;
    kvs_lease *lease = NULL;
    memset(data, name[1] + 1, sizeof data);
    if (prefixops_below(w, 2)) {
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
    return bad ? prefixops_differs("object", hit.snapshot_bytes, name[1]) : 0;
}

static int limit(world *w)
{
    size_t now = kvs__prefix_bytes(w->ix);
    size_t to = prefixops_byte(w) % 4 == 0 ? 0 : now / 2 + prefixops_byte(w) * 512u;
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
    (void)kvs_pages_set_limit(w->pages, prefixops_byte(w) & 1 ? 0 : s.bytes + 2048, NULL);
    return 0;
}

static int open_round(world *w)
{
    text t;
    make_text(w, &t);
    kvs_cache *c = prefixops_new_cache(w);
    if (prefixops_compute(w, c, &t, 0, 1) != KVS_OK) {
        kvs_cache_free(c);
        return 0;
    }
    kvs_prefix_key key = key_of(&t, 1, 0);
    c->open = true; /* as kvs_txn_begin leaves it */
    kvs_status st = kvs_prefix_publish(w->ix, &key, c, NULL, NULL, NULL);
    c->open = false;
    kvs_cache_free(c);
    return st != KVS_E_STATE ? prefixops_differs("published an open round", (uint64_t)-st, 0) : 0;
}

static int one_op(world *w)
{
    uint32_t op = prefixops_below(w, 40);
    bool fails = prefixops_byte(w) % 16 == 1;
    if (fails) {
        w->mem.fail_at = w->mem.calls + prefixops_below(w, 40);
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
    } else if (op == 30 && prefixops_byte(w) % 4 == 0) {
        kvs_prefix_clear(w->ix);
        w->n_known = 0;
        unsure(w);
    } else if (op == 31 && w->mem.fail_at < 0) {
        bad = open_round(w);
    } else if (op > 35) {
        bad = restore(w);
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
    prefixops_open_world(&w);
    int bad = 0;
    while (!bad && w.left > 0) {
        bad = one_op(&w);
        stats->ops++;
    }
    kvs_prefix_stats st = KVS_PREFIX_STATS_INIT;
    (void)kvs_prefix_get_stats(w.ix, &st);
    stats->evicted += st.evicted + st.evicted_windows;
    stats->programs++;
    return prefixops_close_world(&w) || bad;
}
