/* SPDX-License-Identifier: MIT */
/* pages.c: the pool: classes, chunks, reference counts, limit (invariants in pages_priv.h). Knows
 * nothing of positions and tables; that is paged.c.
 *
 * A chunk is one allocation of some blocks (pages_chunk.h). Where the limit leaves less than a chunk, a
 * smaller one is taken, so the limit is reached to within a block; where the allocator refuses a large
 * one, a smaller one is tried. */
#include "state/pages_priv.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define OPEN_LOOKED_AT 8 /* chunks, for the longest run of free blocks */

struct kvs_pages {
    kvs_ctx *ctx;
    pthread_mutex_t lock; /* recursive: reclaim is called with it, and lets go of blocks */
    uint32_t block;
    bool closed; /* the caller let go */
    uint64_t users;
    size_t max_bytes;
    size_t chunk_bytes;
    size_t bytes;
    size_t peak;
    kvs__page_class *classes;
    uint64_t scramble;
    kvs__page_reclaim_fn reclaim;
    void *reclaim_user;
};

/* -- life cycle */

static kvs_status read_opts(const kvs_pages_opts *opts, kvs_pages_opts *o, kvs_err *err)
{
    kvs_status st = opts ? kvs__opts_read(o, sizeof *o, opts, "kvs_pages_opts", err) : KVS_OK;
    if (st != KVS_OK) {
        return st;
    }
    if (o->block_tokens > KVS__PAGE_MOST) {
        return kvs__fail(err, KVS_E_INVAL, "state", "block_tokens %u is above %u", o->block_tokens,
                         KVS__PAGE_MOST);
    }
    if (o->reserved != 0) {
        return kvs__fail(err, KVS_E_UNSUPPORTED, "state", "kvs_pages_opts.reserved is %u, not 0",
                         o->reserved);
    }
    o->block_tokens = o->block_tokens ? o->block_tokens : KVS__PAGE_BLOCK;
    return KVS_OK;
}

static kvs_status make_lock(kvs_pages *p, kvs_err *err)
{
    pthread_mutexattr_t a;
    int e = pthread_mutexattr_init(&a);
    if (e == 0) {
        (void)pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
        e = pthread_mutex_init(&p->lock, &a);
        (void)pthread_mutexattr_destroy(&a);
    }
    return e == 0 ? KVS_OK : kvs__fail(err, KVS_E_NOMEM, "state", "no lock, error %d", e);
}

kvs_status kvs_pages_new(kvs_ctx *ctx, const kvs_pages_opts *opts, kvs_pages **out, kvs_err *err)
{
    if (!ctx || !out) {
        return kvs__fail(err, KVS_E_INVAL, "state", "%s is NULL", ctx ? "out" : "ctx");
    }
    *out = NULL;
    kvs_pages_opts o = KVS_PAGES_OPTS_INIT;
    kvs_status st = read_opts(opts, &o, err);
    if (st != KVS_OK) {
        return st;
    }
    if (o.max_bytes && o.max_bytes < sizeof(kvs_pages)) {
        return kvs__fail(err, KVS_E_LIMIT, "state", "max_bytes %zu does not hold the pool itself",
                         o.max_bytes);
    }
    kvs_pages *p = kvs__calloc(ctx, 1, sizeof *p);
    if (!p) {
        return kvs__nomem(err, "state", sizeof *p);
    }
    kvs_status made = make_lock(p, err);
    if (made != KVS_OK) {
        kvs__free(ctx, p, sizeof *p);
        return made;
    }
    p->ctx = ctx;
    p->block = o.block_tokens;
    p->max_bytes = o.max_bytes;
    p->chunk_bytes = o.chunk_bytes;
    p->bytes = sizeof *p;
    p->peak = sizeof *p;
    *out = p;
    return KVS_OK;
}

void kvs__pages_lock(kvs_pages *p)
{
    (void)pthread_mutex_lock(&p->lock);
}

/* Only the call that takes the last thing away sees it done. */
void kvs__pages_unlock(kvs_pages *p)
{
    bool done = p->closed && p->users == 0 && !p->classes;
    (void)pthread_mutex_unlock(&p->lock);
    if (done) {
        (void)pthread_mutex_destroy(&p->lock);
        kvs__free(p->ctx, p, sizeof *p);
    }
}

void kvs_pages_free(kvs_pages *p)
{
    if (p) {
        kvs__pages_lock(p);
        p->closed = true;
        kvs__pages_unlock(p);
    }
}

void kvs__pages_join(kvs_pages *p)
{
    kvs__pages_lock(p);
    p->users++;
    kvs__pages_unlock(p);
}

void kvs__pages_leave(kvs_pages *p)
{
    kvs__pages_lock(p);
    p->users--;
    kvs__pages_unlock(p);
}

uint32_t kvs__pages_block(const kvs_pages *p)
{
    return p->block;
}

kvs_ctx *kvs__pages_ctx(const kvs_pages *p)
{
    return p->ctx;
}

void kvs__pages_set_reclaim(kvs_pages *p, kvs__page_reclaim_fn fn, void *user)
{
    kvs__pages_lock(p);
    p->reclaim = fn;
    p->reclaim_user = user;
    kvs__pages_unlock(p);
}

void kvs__pages_scramble(kvs_pages *p, uint64_t seed)
{
    p->scramble = seed;
}

kvs_status kvs_pages_set_limit(kvs_pages *p, size_t max_bytes, kvs_err *err)
{
    if (!p) {
        return kvs__fail(err, KVS_E_INVAL, "state", "pages is NULL");
    }
    kvs__pages_lock(p);
    p->max_bytes = max_bytes;
    kvs__pages_unlock(p);
    return KVS_OK;
}

/* -- invariants */

typedef struct tally {
    uint64_t n[3]; /* free, cached, held */
} tally;

static uint32_t state_of(const kvs__seg *page)
{
    if (page->refs == 0) {
        return 0;
    }
    return page->refs == page->kept ? 1 : 2;
}

static bool check_chunk(const kvs__page_chunk *chunk, tally *t)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < chunk->n_blocks; i++) {
        const kvs__seg *page = kvs__page_at(chunk, i);
        if (page->chunk != chunk || page->kept > page->refs ||
            kvs__page_is_free(chunk, i) != (page->refs == 0)) {
            return false;
        }
        t->n[state_of(page)]++;
        n_free += page->refs == 0;
    }
    return n_free == chunk->n_free;
}

static bool check_class(const kvs__page_class *k)
{
    return k->n_free + k->n_cached + k->n_held == k->n_total;
}

bool kvs__pages_check(const kvs_pages *p)
{
    size_t bytes = sizeof *p;
    for (const kvs__page_class *k = p->classes; k; k = k->next) {
        tally t = {{0, 0, 0}};
        uint64_t total = 0;
        uint64_t open = 0;
        bytes += sizeof *k;
        for (const kvs__page_chunk *c = k->chunks; c; c = c->next) {
            if (c->home != k || c->n_free == c->n_blocks || !check_chunk(c, &t)) {
                return false;
            }
            bytes += c->n_blocks * k->block_bytes;
            total += c->n_blocks;
            open += c->n_free > 0;
        }
        for (const kvs__page_chunk *c = k->open; c; c = c->open_next) {
            open -= c->n_free > 0;
        }
        if (!k->chunks || open != 0 || total != k->n_total || t.n[0] != k->n_free ||
            t.n[1] != k->n_cached || t.n[2] != k->n_held || !check_class(k)) {
            return false;
        }
    }
    return bytes == p->bytes;
}

/* The part of I1 that a change of this chunk could break, at a cost that debug builds can bear. */
static void prove(const kvs__page_chunk *chunk)
{
#ifdef KVS_DEBUG
    tally t = {{0, 0, 0}};
    KVS_ASSERT(check_chunk(chunk, &t) && check_class(chunk->home));
#else
    (void)chunk;
#endif
}

/* -- chunks and classes */

bool kvs__fmt_same(const kvs__fmt *a, const kvs__fmt *b)
{
    bool same =
        a->n_heads == b->n_heads && a->n_sides == b->n_sides && a->center_bytes == b->center_bytes;
    for (int i = 0; i < KVS__SIDES; i++) {
        const kvs__side *x = &a->side[i];
        const kvs__side *y = &b->side[i];
        same = same && x->shape.dim == y->shape.dim && x->codec.bits == y->codec.bits &&
               x->codec.group == y->codec.group && x->codec.dtype == y->codec.dtype &&
               x->rot == y->rot;
    }
    return same;
}

static void link_open(kvs__page_chunk *c)
{
    c->open_prev = NULL;
    c->open_next = c->home->open;
    if (c->open_next) {
        c->open_next->open_prev = c;
    }
    c->home->open = c;
}

static void unlink_open(kvs__page_chunk *c)
{
    if (c->open_prev) {
        c->open_prev->open_next = c->open_next;
    } else {
        c->home->open = c->open_next;
    }
    if (c->open_next) {
        c->open_next->open_prev = c->open_prev;
    }
}

static void count_bytes(kvs_pages *p, size_t bytes)
{
    p->bytes += bytes;
    p->peak = p->bytes > p->peak ? p->bytes : p->peak;
}

static kvs__page_class *find_class(const kvs_pages *p, const kvs__fmt *fmt)
{
    kvs__page_class *k = p->classes;
    while (k && !kvs__fmt_same(&k->fmt, fmt)) {
        k = k->next;
    }
    return k;
}

static void drop_class(kvs__page_class *k)
{
    kvs_pages *p = k->pages;
    kvs__page_class **at = &p->classes;
    while (*at != k) {
        at = &(*at)->next;
    }
    *at = k->next;
    p->bytes -= sizeof *k;
    kvs__free(p->ctx, k, sizeof *k);
}

static void drop_chunk(kvs__page_chunk *c)
{
    kvs__page_class *k = c->home;
    kvs_pages *p = k->pages;
    unlink_open(c);
    if (c->prev) {
        c->prev->next = c->next;
    } else {
        k->chunks = c->next;
    }
    if (c->next) {
        c->next->prev = c->prev;
    }
    k->n_total -= c->n_blocks;
    k->n_free -= c->n_blocks;
    p->bytes -= c->n_blocks * k->block_bytes;
    kvs__free(p->ctx, c, c->n_blocks * k->block_bytes);
    if (!k->chunks) {
        drop_class(k);
    }
}

static void add_chunk(kvs__page_class *k, kvs__page_chunk *c, uint32_t n)
{
    kvs__page_chunk_init(c, k, &k->fmt, k->pages->block, n, k->block_bytes);
    c->next = k->chunks;
    if (c->next) {
        c->next->prev = c;
    }
    k->chunks = c;
    link_open(c);
    k->n_total += n;
    k->n_free += n;
    count_bytes(k->pages, n * k->block_bytes);
}

/* Memory for *n blocks, or where the allocator refuses that for fewer, but `least` at least. */
static kvs__page_chunk *alloc_chunk(kvs_pages *p, size_t block_bytes, uint32_t least, uint32_t *n)
{
    kvs__page_chunk *c = kvs__alloc(p->ctx, *n * block_bytes);
    while (!c && *n > least) {
        *n = *n / 2 > least ? *n / 2 : least;
        c = kvs__alloc(p->ctx, *n * block_bytes);
    }
    return c;
}

/* Blocks of the next chunk of a class, k NULL: of the first; 0: the limit leaves no room for one. */
static uint32_t next_chunk(const kvs_pages *p, const kvs__page_class *k, size_t block_bytes)
{
    const uint64_t total = k ? k->n_total : 0;
    uint64_t n = kvs__page_rung(block_bytes, p->chunk_bytes, total + 1) - total;
    if (p->max_bytes) {
        size_t used = p->bytes + (k ? 0 : sizeof *k);
        uint64_t most = p->max_bytes > used ? (p->max_bytes - used) / block_bytes : 0;
        n = n < most ? n : most;
    }
    return (uint32_t)n;
}

/* One try: a chunk of the format, and its class where it is the first. */
static kvs_status grow(kvs_pages *p, const kvs__fmt *fmt, size_t block_bytes, kvs_err *err)
{
    kvs__page_class *k = find_class(p, fmt);
    uint32_t n = next_chunk(p, k, block_bytes);
    if (n == 0) {
        return kvs__fail(err, KVS_E_LIMIT, "state",
                         "the pool holds %zu bytes, a block of %zu more would pass its limit of "
                         "%zu",
                         p->bytes, block_bytes, p->max_bytes);
    }
    uint32_t least = kvs__page_least(block_bytes, p->chunk_bytes);
    kvs__page_class *made = k ? NULL : kvs__calloc(p->ctx, 1, sizeof *made);
    kvs__page_chunk *chunk = k || made ? alloc_chunk(p, block_bytes, least, &n) : NULL;
    if (!chunk) {
        kvs__free(p->ctx, made, sizeof *made);
        return kvs__nomem(err, "state", n * block_bytes);
    }
    if (made) {
        made->pages = p;
        made->fmt = *fmt;
        made->block_bytes = block_bytes;
        made->next = p->classes;
        p->classes = made;
        count_bytes(p, sizeof *made);
    }
    add_chunk(k ? k : made, chunk, n);
    return KVS_OK;
}

/* A class with a free block. */
static kvs_status provide(kvs_pages *p, const kvs__fmt *fmt, kvs__page_class **out, kvs_err *err)
{
    size_t bytes = 0;
    if (!kvs__page_size(fmt, p->block, &bytes) || bytes > SIZE_MAX / 2) {
        return kvs__fail(err, KVS_E_RANGE, "state", "a block of %u tokens is too large", p->block);
    }
    for (;;) {
        *out = find_class(p, fmt);
        if (*out && (*out)->open) {
            return KVS_OK;
        }
        kvs_status st = grow(p, fmt, bytes, err);
        if (st != KVS_OK && (!p->reclaim || !p->reclaim(p->reclaim_user, p, bytes))) {
            return st;
        }
    }
}

/* -- blocks */

static uint64_t draw(kvs_pages *p)
{
    uint64_t z = p->scramble += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Any free block, for tests. */
static kvs__seg *scrambled(kvs__page_class *k)
{
    kvs__page_chunk *c = k->open;
    for (uint64_t skip = draw(k->pages) % 8; skip > 0 && c->open_next; skip--) {
        c = c->open_next;
    }
    return kvs__page_at(c, kvs__page_nth_free(c, (uint32_t)(draw(k->pages) % c->n_free)));
}

/* The block to take: the one beside `after` where it is free, so that blocks of a sequence lie in a row;
 * else where most are free in a row, so that those which follow have room. */
static kvs__seg *choose(kvs__page_class *k, const kvs__seg *after)
{
    if (k->pages->scramble) {
        return scrambled(k);
    }
    if (after && after->chunk->home == k) {
        uint32_t i = kvs__page_index(after->chunk, after) + 1;
        if (i < after->chunk->n_blocks && kvs__page_is_free(after->chunk, i)) {
            return kvs__page_at(after->chunk, i);
        }
    }
    kvs__seg *page = NULL;
    uint32_t most = 0;
    kvs__page_chunk *c = k->open;
    for (int i = 0; c && i < OPEN_LOOKED_AT; i++, c = c->open_next) {
        uint32_t at = 0;
        uint32_t n = kvs__page_longest(c, &at);
        if (n > most) {
            most = n;
            page = kvs__page_at(c, at);
        }
    }
    return page;
}

static kvs__seg *pop(kvs__page_class *k, const kvs__seg *after)
{
    kvs__seg *page = choose(k, after);
    kvs__page_chunk *c = page->chunk;
    kvs__page_set_free(c, kvs__page_index(c, page), false);
    if (c->n_free == 0) {
        unlink_open(c);
    }
    return page;
}

static uint64_t *counter(kvs__page_class *k, uint32_t state)
{
    uint64_t *const at[3] = {&k->n_free, &k->n_cached, &k->n_held};
    return at[state];
}

/* Puts a block that nobody refers to back; its chunk may go. */
static void push(kvs__seg *page)
{
    kvs__page_chunk *c = page->chunk;
    if (c->n_free == 0) {
        link_open(c);
    }
    kvs__page_set_free(c, kvs__page_index(c, page), true);
    prove(c);
    if (c->n_free == c->n_blocks) {
        drop_chunk(c);
    }
}

static void change(kvs__seg *page, int refs, int kept)
{
    kvs__page_class *k = page->chunk->home;
    kvs_pages *p = k->pages;
    kvs__pages_lock(p);
    KVS_ASSERT(page->refs > 0);                                  /* never from a free block */
    KVS_ASSERT(refs > 0 || kept < 0 || page->refs > page->kept); /* some cache's */
    KVS_ASSERT(kept >= 0 || page->kept > 0);                     /* some index's */
    --*counter(k, state_of(page));
    page->refs += (uint32_t)refs;
    page->kept += (uint32_t)kept;
    ++*counter(k, state_of(page));
    if (page->refs == 0) {
        push(page);
    } else {
        prove(page->chunk);
    }
    kvs__pages_unlock(p);
}

static kvs_status take(kvs_pages *p, const kvs__fmt *fmt, const kvs__seg *after, kvs__seg **out,
                       kvs_err *err)
{
    kvs__page_class *k = NULL;
    kvs_status st = provide(p, fmt, &k, err);
    if (st == KVS_OK) {
        *out = pop(k, after);
        k->n_free--;
        k->n_held++;
        (*out)->refs = 1;
        prove((*out)->chunk);
    }
    return st;
}

kvs_status kvs__page_take(kvs_pages *p, const kvs__fmt *fmt, const kvs__seg *after, kvs__seg **out,
                          kvs_err *err)
{
    kvs__seg *page = NULL;
    kvs__pages_lock(p);
    kvs_status st = take(p, fmt, after, &page, err);
    kvs__pages_unlock(p);
    if (st == KVS_OK) {
        page->phase = KVS__NO_PHASE;
        page->hole = 0;
        kvs__page_clear(fmt, page); /* I4 */
        *out = page;
    }
    return st;
}

bool kvs__page_shared(const kvs__seg *page)
{
    kvs_pages *p = page->chunk->home->pages;
    kvs__pages_lock(p);
    bool shared = page->refs > 1;
    kvs__pages_unlock(p);
    return shared;
}

void kvs__page_share(kvs__seg *page)
{
    change(page, 1, 0);
}

void kvs__page_release(kvs__seg *page)
{
    change(page, -1, 0);
}

void kvs__page_keep(kvs__seg *page)
{
    change(page, 1, 1);
}

void kvs__page_unkeep(kvs__seg *page)
{
    change(page, -1, -1);
}

/* -- statistics */

static kvs_pages *unconst(const kvs_pages *p)
{
    return (kvs_pages *)(uintptr_t)p; /* to lock it */
}

kvs_status kvs_pages_get_stats(const kvs_pages *p, kvs_pages_stats *out)
{
    if (!p || !out) {
        return KVS_E_INVAL;
    }
    kvs_pages_stats s = KVS_PAGES_STATS_INIT;
    kvs__pages_lock(unconst(p));
    s.block_tokens = p->block;
    s.bytes = p->bytes;
    s.peak_bytes = p->peak;
    s.max_bytes = p->max_bytes;
    for (const kvs__page_class *k = p->classes; k; k = k->next) {
        s.n_classes++;
        s.n_total += k->n_total;
        s.n_free += k->n_free;
        s.n_cached += k->n_cached;
        s.n_held += k->n_held;
        s.cached_bytes += (size_t)k->n_cached * k->block_bytes;
        s.held_bytes += (size_t)k->n_held * k->block_bytes;
    }
    kvs__pages_unlock(unconst(p));
    return kvs__stats_write(out, &s, sizeof s);
}

static void describe(const kvs__page_class *k, kvs_pages_class *c)
{
    char name[KVS__SIDES][48];
    c->block_bytes = k->block_bytes;
    c->n_total = k->n_total;
    c->n_free = k->n_free;
    c->n_cached = k->n_cached;
    c->n_held = k->n_held;
    for (int side = 0; side < KVS__SIDES; side++) {
        (void)kvs_codec_name(&k->fmt.side[side].codec, name[side], sizeof name[side]);
    }
    (void)snprintf(c->shape, sizeof c->shape, "k=%s v=%s heads=%u dims=%u/%u", name[KVS__K],
                   name[KVS__V], k->fmt.n_heads, k->fmt.side[KVS__K].shape.dim,
                   k->fmt.side[KVS__V].shape.dim);
}

kvs_status kvs_pages_get_class(const kvs_pages *p, uint32_t i, kvs_pages_class *out)
{
    if (!p || !out) {
        return KVS_E_INVAL;
    }
    kvs_pages_class c = KVS_PAGES_CLASS_INIT;
    kvs__pages_lock(unconst(p));
    const kvs__page_class *k = p->classes;
    for (; k && i > 0; i--) {
        k = k->next;
    }
    if (k) {
        describe(k, &c);
    }
    kvs__pages_unlock(unconst(p));
    return k ? kvs__stats_write(out, &c, sizeof c) : KVS_E_RANGE;
}

/* -- plan */

bool kvs__pages_need(const kvs_pages_opts *opts, const kvs__fmt *fmt, uint64_t n_blocks,
                     size_t *bytes)
{
    uint32_t tokens = opts->block_tokens ? opts->block_tokens : KVS__PAGE_BLOCK;
    size_t block = 0;
    if (!kvs__page_size(fmt, tokens, &block) || block > SIZE_MAX / 2 || n_blocks > SIZE_MAX / 2) {
        return false;
    }
    *bytes = 0;
    if (n_blocks == 0) {
        return true;
    }
    uint64_t total = kvs__page_rung(block, opts->chunk_bytes, n_blocks);
    return total <= SIZE_MAX && kvs__mul_size((size_t)total, block, bytes) &&
           kvs__add_size(*bytes, sizeof(kvs__page_class), bytes);
}

size_t kvs__pages_head(void)
{
    return sizeof(kvs_pages);
}

kvs_status kvs__pages_read_opts(const kvs_pages_opts *opts, kvs_pages_opts *out, kvs_err *err)
{
    return read_opts(opts, out, err);
}
