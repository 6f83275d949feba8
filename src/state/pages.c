/* SPDX-License-Identifier: MIT */
/* pages.c: the pool: classes, chunks, reference counts, limit (invariants in pages_priv.h). Knows
 * nothing of positions and tables; that is paged.c.
 *
 * A chunk is one allocation of some blocks. Where the limit leaves less than a chunk, a smaller one
 * is taken, so the limit is reached to within a block. */
#include "state/pages_priv.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)1 << 20)
#define CHUNK_HEAD  ((sizeof(kvs__page_chunk) + 63) / 64 * 64)

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
    o->chunk_bytes = o->chunk_bytes ? o->chunk_bytes : CHUNK_BYTES;
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

static kvs__seg *page_at(const kvs__page_chunk *chunk, uint32_t i)
{
    unsigned char *base = (unsigned char *)(uintptr_t)chunk + CHUNK_HEAD;
    return (kvs__seg *)(void *)(base + (size_t)i * chunk->home->block_bytes);
}

static bool check_chunk(const kvs__page_chunk *chunk, tally *t)
{
    uint32_t n_free = 0;
    for (uint32_t i = 0; i < chunk->n_blocks; i++) {
        const kvs__seg *page = page_at(chunk, i);
        if (page->chunk != chunk || page->kept > page->refs) {
            return false;
        }
        t->n[state_of(page)]++;
        n_free += page->refs == 0;
    }
    uint32_t listed = 0;
    for (const kvs__seg *s = chunk->free; s && listed <= chunk->n_blocks; s = s->next_free) {
        if (s->refs != 0 || s->chunk != chunk) {
            return false;
        }
        listed++;
    }
    return n_free == chunk->n_free && listed == n_free;
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
            bytes += c->bytes;
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

uint32_t kvs__page_centers(uint32_t block)
{
    const uint32_t group = KVS_CENTER_GROUP;
    if (block % group == 0 || group % block == 0) {
        return block > group ? block / group : 1;
    }
    return (uint32_t)kvs__center_rows(block);
}

/* Unlike a segment's, all planes of one head lie together, so that reading a head of a block touches
 * few pages of memory. seg may be NULL to get the size alone; false on overflow. */
static bool lay_out(const kvs__fmt *fmt, uint32_t block, kvs__seg *seg, size_t *bytes)
{
    const uint64_t cap = (block + KVS__TILE - 1) / KVS__TILE * KVS__TILE;
    size_t head = 0;
    size_t at[KVS__SIDES][KVS__PLANES];
    for (int side = 0; side < KVS__SIDES; side++) {
        for (int p = 0; p < KVS__PLANES; p++) { /* dims and cap are small: no overflow here */
            const kvs__side *s = &fmt->side[side];
            at[side][p] = head;
            head += ((size_t)cap * s->n_units[p] * s->unit_bytes[p] + 63) / 64 * 64;
        }
    }
    const size_t centers = head;
    const size_t rows = fmt->center_bytes ? kvs__page_centers(block) : 0;
    head += (rows * fmt->center_bytes + 63) / 64 * 64;
    const size_t front = (sizeof *seg + 63) / 64 * 64;
    if (!kvs__mul_size(head, fmt->n_heads, bytes) || !kvs__add_size(*bytes, front, bytes)) {
        return false;
    }
    if (seg) {
        memset(seg, 0, sizeof *seg);
        seg->bytes = *bytes;
        seg->cap = cap;
        seg->center_at = front + centers;
        seg->center_head = head;
        seg->n_centers = (uint32_t)rows;
        for (int i = 0; i < KVS__SIDES * KVS__PLANES; i++) {
            seg->offset[i / KVS__PLANES][i % KVS__PLANES] =
                front + at[i / KVS__PLANES][i % KVS__PLANES];
            seg->head_bytes[i / KVS__PLANES][i % KVS__PLANES] = head;
        }
    }
    return true;
}

bool kvs__page_size(const kvs__fmt *fmt, uint32_t block, size_t *bytes)
{
    return lay_out(fmt, block, NULL, bytes);
}

/* Blocks of a chunk that may take `room` bytes; 0: not even one fits. */
static uint32_t chunk_blocks(size_t block_bytes, size_t room)
{
    size_t n = room > CHUNK_HEAD ? (room - CHUNK_HEAD) / block_bytes : 0;
    return n < 4096 ? (uint32_t)n : 4096;
}

/* Blocks of a chunk where no limit is near. */
static uint32_t full_chunk(size_t block_bytes, size_t chunk_bytes)
{
    uint32_t n = chunk_blocks(block_bytes, chunk_bytes);
    return n > 0 ? n : 1;
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
    p->bytes -= c->bytes;
    kvs__free(p->ctx, c, c->bytes);
    if (!k->chunks) {
        drop_class(k);
    }
}

static void add_chunk(kvs__page_class *k, kvs__page_chunk *c, uint32_t n, size_t bytes)
{
    memset(c, 0, sizeof *c);
    c->home = k;
    c->bytes = bytes;
    c->n_blocks = n;
    c->n_free = n;
    for (uint32_t i = n; i-- > 0;) { /* so that the lowest is handed out first */
        kvs__seg *page = page_at(c, i);
        size_t size = 0;
        (void)lay_out(&k->fmt, k->pages->block, page, &size);
        page->chunk = c;
        page->next_free = c->free;
        c->free = page;
    }
    c->next = k->chunks;
    if (c->next) {
        c->next->prev = c;
    }
    k->chunks = c;
    link_open(c);
    k->n_total += n;
    k->n_free += n;
    count_bytes(k->pages, bytes);
}

/* One try: a chunk of the format, and its class where it is the first. */
static kvs_status grow(kvs_pages *p, const kvs__fmt *fmt, size_t block_bytes, kvs_err *err)
{
    kvs__page_class *k = find_class(p, fmt);
    size_t extra = k ? 0 : sizeof *k;
    uint32_t n = full_chunk(block_bytes, p->chunk_bytes);
    if (p->max_bytes) {
        size_t room = p->max_bytes > p->bytes ? p->max_bytes - p->bytes : 0;
        uint32_t most = room > extra ? chunk_blocks(block_bytes, room - extra) : 0;
        n = n < most ? n : most;
        if (n == 0) {
            return kvs__fail(err, KVS_E_LIMIT, "state",
                             "the pool holds %zu bytes, a block of %zu more would pass its limit "
                             "of %zu",
                             p->bytes, block_bytes, p->max_bytes);
        }
    }
    size_t bytes = CHUNK_HEAD + n * block_bytes;
    kvs__page_class *made = k ? NULL : kvs__calloc(p->ctx, 1, sizeof *made);
    kvs__page_chunk *chunk = k || made ? kvs__alloc(p->ctx, bytes) : NULL;
    if (!chunk) {
        kvs__free(p->ctx, made, sizeof *made);
        return kvs__nomem(err, "state", bytes);
    }
    if (made) {
        made->pages = p;
        made->fmt = *fmt;
        made->block_bytes = block_bytes;
        made->next = p->classes;
        p->classes = made;
        count_bytes(p, sizeof *made);
    }
    add_chunk(k ? k : made, chunk, n, bytes);
    return KVS_OK;
}

/* A class with a free block. */
static kvs_status provide(kvs_pages *p, const kvs__fmt *fmt, kvs__page_class **out, kvs_err *err)
{
    size_t bytes = 0;
    size_t chunk = 0;
    if (!kvs__page_size(fmt, p->block, &bytes) ||
        !kvs__add_size(bytes, CHUNK_HEAD + sizeof(kvs__page_class), &chunk)) {
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

/* Takes one off the free list of an open chunk. */
static kvs__seg *pop(kvs__page_class *k)
{
    kvs__page_chunk *c = k->open;
    if (k->pages->scramble) {
        for (uint64_t skip = draw(k->pages) % 8; skip > 0 && c->open_next; skip--) {
            c = c->open_next;
        }
    }
    kvs__seg **at = &c->free;
    if (k->pages->scramble) {
        for (uint64_t skip = draw(k->pages) % c->n_free; skip > 0; skip--) {
            at = &(*at)->next_free;
        }
    }
    kvs__seg *page = *at;
    *at = page->next_free;
    page->next_free = NULL;
    if (--c->n_free == 0) {
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
    page->next_free = c->free;
    c->free = page;
    if (c->n_free++ == 0) {
        link_open(c);
    }
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

static kvs_status take(kvs_pages *p, const kvs__fmt *fmt, kvs__seg **out, kvs_err *err)
{
    kvs__page_class *k = NULL;
    kvs_status st = provide(p, fmt, &k, err);
    if (st == KVS_OK) {
        *out = pop(k);
        k->n_free--;
        k->n_held++;
        (*out)->refs = 1;
        prove((*out)->chunk);
    }
    return st;
}

kvs_status kvs__page_take(kvs_pages *p, const kvs__fmt *fmt, kvs__seg **out, kvs_err *err)
{
    kvs__seg *page = NULL;
    kvs__pages_lock(p);
    kvs_status st = take(p, fmt, &page, err);
    kvs__pages_unlock(p);
    if (st == KVS_OK) {
        page->phase = KVS__NO_PHASE;
        size_t head = page->offset[KVS__K][0];
        memset((unsigned char *)page + head, 0, page->bytes - head); /* I4 */
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
    kvs_pages_opts o = *opts;
    size_t block = 0;
    size_t sum = 0;
    o.block_tokens = o.block_tokens ? o.block_tokens : KVS__PAGE_BLOCK;
    if (!kvs__page_size(fmt, o.block_tokens, &block) || block > SIZE_MAX / 2 ||
        n_blocks > SIZE_MAX) {
        return false;
    }
    *bytes = 0;
    if (n_blocks == 0) {
        return true;
    }
    uint32_t per = full_chunk(block, o.chunk_bytes ? o.chunk_bytes : CHUNK_BYTES);
    size_t chunks = (size_t)(n_blocks / per + (n_blocks % per > 0));
    return kvs__mul_size(per, block, &sum) && kvs__add_size(sum, CHUNK_HEAD, &sum) &&
           kvs__mul_size(sum, chunks, &sum) && kvs__add_size(sum, sizeof(kvs__page_class), bytes);
}

size_t kvs__pages_head(void)
{
    return sizeof(kvs_pages);
}

kvs_status kvs__pages_read_opts(const kvs_pages_opts *opts, kvs_pages_opts *out, kvs_err *err)
{
    return read_opts(opts, out, err);
}
