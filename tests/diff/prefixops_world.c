/* SPDX-License-Identifier: MIT */
/* prefixops_world.c: prefixops_priv.h. Keys and values of a token are a function of it and of all tokens
 * before it, so that state of another prefix differs in its bytes. */
#include "diff/prefixops_priv.h"

int prefixops_differs(const char *what, uint64_t a, uint64_t b)
{
    (void)fprintf(stderr, "prefixops: %s: %llu, %llu\n", what, (unsigned long long)a,
                  (unsigned long long)b);
    return 1;
}

uint32_t prefixops_byte(world *w)
{
    if (w->left == 0) {
        return 0;
    }
    w->left--;
    return *w->p++;
}

uint32_t prefixops_below(world *w, uint32_t n)
{
    return prefixops_byte(w) % n;
}

/* What a lookup promised is attached, unless memory fails. */
int prefixops_refused_attach(kvs_status st)
{
    bool fine = st == KVS_OK || st == KVS_E_NOMEM;
    return fine ? 0 : prefixops_differs("attach refused", (uint64_t)(int64_t)st, 0);
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
    uint32_t kind = prefixops_below(w, 7);
    add_layer(w, rig_spec(1, 32, 32, "f32", "f32"));
    if (kind == 1 || kind == 3 || kind == 4) {
        uint32_t window = 1 + prefixops_below(w, 12);
        uint32_t sinks = prefixops_below(w, 2) ? prefixops_below(w, 8) : 0;
        add_layer(w, window_spec(rig_spec(1, 32, 64, "affine4:32", "f16"), window, sinks));
        if (kind == 3) { /* its blocks of sinks are others' blocks of a window */
            sinks = prefixops_below(w, 2) ? prefixops_below(w, 8) : 0;
            window = 1 + prefixops_below(w, 12);
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
        s.dense_until = 1 + prefixops_below(w, 20);
        s.dense_dtype = KVS_F16;
        if (prefixops_below(w, 2)) {
            uint32_t window = 1 + prefixops_below(w, 12);
            s = window_spec(s, window, prefixops_below(w, 8));
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

kvs_cache *prefixops_new_cache(world *w)
{
    return new_cache_in(w, w->pages);
}

void prefixops_open_world(world *w)
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
    w->pages = rig_pages(w->ctx, blocks[prefixops_below(w, 6)], 0);
    w->apart = rig_pages(w->ctx, kvs__pages_block(w->pages), 0);
    kvs_cache *like = prefixops_new_cache(w);
    o.policy = (kvs_retain_policy)prefixops_below(w, 3);
    o.flags = w->snaps ? KVS_PREFIX_SNAPSHOTS : 0;
    o.window_stride = prefixops_below(w, 2) ? 1 + prefixops_below(w, 24) : 0;
    o.session_ms = prefixops_below(w, 2) * 10;
    rig_must(kvs_prefix_new(w->ctx, like, &o, &w->ix, NULL));
    kvs_cache_free(like);
    w->midway = prefixops_below(w, 2);
    w->known = rig_alloc(MAX_KNOWN * sizeof *w->known);
    if (prefixops_below(w, 3) == 0) {
        w->bounded = true;
        rig_must(
            kvs_prefix_limit(w->ix, kvs__prefix_bytes(w->ix) + 4096 + prefixops_byte(w) * 1024u));
    }
}

int prefixops_close_world(world *w)
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
    return w->mem.live != 0 || w->mem.wrong != 0 ? prefixops_differs("bytes left", w->mem.live, 0)
                                                 : 0;
}

/* -- computing */

uint64_t prefixops_seed_of(const text *t, uint32_t n)
{
    uint64_t h = 0x243f6a8885a308d3u;
    for (uint32_t i = 0; i < n; i++) {
        h = rig_mix(h ^ (uint64_t)(uint32_t)t->ids[i]);
    }
    return h;
}

/* Tokens [at, at + n) of a text in every layer. */
kvs_status prefixops_compute(world *w, kvs_cache *c, const text *t, uint32_t at, uint32_t n)
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
            uint64_t seed = prefixops_seed_of(t, at + i + 1) + l;
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

kvs_cache *prefixops_cold(world *w, const text *t, uint32_t n)
{
    kvs_cache *c = new_cache_in(w, w->apart);
    long fail_at = w->mem.fail_at;
    w->mem.fail_at = -1;
    for (uint32_t at = 0; at < n;) {
        uint32_t m = n - at < MAX_BLOCK ? n - at : MAX_BLOCK;
        rig_must(prefixops_compute(w, c, t, at, m));
        at += m;
    }
    w->mem.fail_at = fail_at;
    return c;
}

kvs_status prefixops_import(kvs_cache *c, const kvs_cache *from, uint32_t l, uint32_t begin,
                            uint32_t end)
{
    kvs_status st = KVS_OK;
    while (begin < end && st == KVS_OK) { /* in pieces: a window may hold less than its sinks */
        uint32_t n = end - begin < MAX_BLOCK ? end - begin : MAX_BLOCK;
        kvs_planes p;
        size_t bytes = 0;
        void *base = rig_planes(kvs_cache_spec(c, l), rig_is_dense(from, l), n, &p, &bytes);
        rig_must(kvs_cache_export(from, l, begin, n, &p, NULL));
        st = kvs_cache_import(c, l, begin, n, &p, NULL);
        free(base);
        begin += n;
    }
    return st;
}

/* What a layer answers to a query for its next token, and its stored bytes: equal? */
static int same_layer(world *w, kvs_cache *a, kvs_cache *b, uint32_t l)
{
    const kvs_layer_spec *s = &w->spec[l];
    int64_t len = kvs_cache_length(a, l);
    int64_t lo = kvs_cache_oldest(a, l);
    int64_t other = kvs_cache_oldest(b, l);
    if (len != kvs_cache_length(b, l)) {
        return prefixops_differs("length", (uint64_t)len, (uint64_t)kvs_cache_length(b, l));
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
        return prefixops_differs("window", (uint64_t)(len - lo), s->window);
    }
    return bad ? prefixops_differs("state of layer", l, (uint64_t)len) : 0;
}

int prefixops_same_as_cold(world *w, kvs_cache *c, const text *t, uint32_t n)
{
    long fail_at = w->mem.fail_at;
    w->mem.fail_at = -1;
    kvs_cache *ref = prefixops_cold(w, t, n);
    int bad = 0;
    for (uint32_t l = 0; l < w->n_layers && !bad; l++) {
        bad = w->spec[l].kind == KVS_LAYER_BORROW ? 0 : same_layer(w, c, ref, l);
    }
    kvs_cache_free(ref);
    w->mem.fail_at = fail_at;
    w->st->equal++;
    return bad;
}
