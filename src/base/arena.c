/* SPDX-License-Identifier: MIT */
/* arena.c: regions of huge pages, cut into pieces of small pages.
 *
 * I1  A bit of a region's map is set exactly when that small page belongs to a piece.
 * I2  A huge page without a set bit holds no memory.
 * I3  Giving back takes no memory, so it can't fail.
 */
#include "base/arena.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/map.h"

#define PAGE       ((size_t)4096)
#define HUGE_PAGES (KVS__HUGE_PAGE / PAGE) /* small pages of a huge one */
#define REGION     ((size_t)64 << 20) /* or the piece it is made for; only what is touched is held */
#define WORD_BITS  ((size_t)64)

typedef struct region {
    struct region *next;
    unsigned char *base; /* a multiple of a huge page */
    size_t n_pages;
    size_t n_used;
    uint64_t map[];
} region;

struct kvs__arena {
    pthread_mutex_t lock;
    region *first;
    size_t used; /* pages */
    size_t mapped;
};

kvs__arena *kvs__arena_new(void)
{
    kvs__arena *a = calloc(1, sizeof *a);
    if (a) {
        (void)pthread_mutex_init(&a->lock, NULL);
    }
    return a;
}

static bool is_set(const region *r, size_t page)
{
    return (r->map[page / WORD_BITS] >> (page % WORD_BITS) & 1) != 0;
}

static void set_pages(region *r, size_t first, size_t n, bool used)
{
    for (size_t i = first; i < first + n; i++) {
        KVS_ASSERT(is_set(r, i) != used);
        uint64_t bit = UINT64_C(1) << (i % WORD_BITS);
        uint64_t *word = &r->map[i / WORD_BITS];
        *word = used ? *word | bit : *word & ~bit;
    }
}

/* The lowest run of n free pages, or n_pages. */
static size_t find_run(const region *r, size_t n)
{
    size_t run = 0;
    for (size_t i = 0; i < r->n_pages && r->n_pages - r->n_used >= n;) {
        uint64_t word = r->map[i / WORD_BITS];
        if (i % WORD_BITS == 0 && (word == 0 || word == UINT64_MAX)) {
            run = word == 0 ? run + WORD_BITS : 0;
            i += WORD_BITS;
        } else {
            run = is_set(r, i) ? 0 : run + 1;
            i++;
        }
        if (run >= n) {
            return i - run;
        }
    }
    return r->n_pages;
}

static void drop_region(kvs__arena *a, region *r)
{
    region **at = &a->first;
    while (*at != r) {
        at = &(*at)->next;
    }
    *at = r->next;
    a->mapped -= r->n_pages;
    kvs__unmap_memory(r->base, r->n_pages * PAGE);
    free(r);
}

static region *new_region(kvs__arena *a, size_t bytes)
{
    size_t n_pages = bytes / PAGE;
    size_t words = (n_pages + WORD_BITS - 1) / WORD_BITS;
    unsigned char *base = kvs__map_memory(bytes);
    region *r = base ? calloc(1, sizeof *r + words * sizeof r->map[0]) : NULL;
    if (!r) {
        if (base) {
            kvs__unmap_memory(base, bytes);
        }
        return NULL;
    }
    kvs__map_huge(base, bytes);
    r->base = base;
    r->n_pages = n_pages;
    r->next = a->first;
    a->first = r;
    a->mapped += n_pages;
    return r;
}

/* A region with room for n pages. */
static region *room_for(kvs__arena *a, size_t n)
{
    size_t least = (n * PAGE + KVS__HUGE_PAGE - 1) / KVS__HUGE_PAGE * KVS__HUGE_PAGE;
    region *r = least < REGION ? new_region(a, REGION) : NULL;
    return r ? r : new_region(a, least);
}

void *kvs__arena_take(kvs__arena *a, size_t bytes)
{
    size_t n = bytes / PAGE + (bytes % PAGE != 0);
    if (!kvs__has_huge_pages() || n == 0 || bytes > SIZE_MAX / 4) {
        return NULL;
    }
    (void)pthread_mutex_lock(&a->lock);
    region *r = a->first;
    size_t at = 0;
    while (r && (at = find_run(r, n)) == r->n_pages) {
        r = r->next;
    }
    if (!r) {
        at = 0;
        r = room_for(a, n);
    }
    unsigned char *p = NULL;
    if (r) {
        set_pages(r, at, n, true);
        r->n_used += n;
        a->used += n;
        p = r->base + at * PAGE;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return p;
}

static bool is_empty(const region *r, size_t huge)
{
    uint64_t any = 0;
    for (size_t i = huge * HUGE_PAGES; i < (huge + 1) * HUGE_PAGES; i += WORD_BITS) {
        any |= r->map[i / WORD_BITS];
    }
    return any == 0;
}

/* I2 after the pages [first, first + n) have become free. */
static void release(const region *r, size_t first, size_t n)
{
    size_t begin = first / HUGE_PAGES;
    size_t end = (first + n - 1) / HUGE_PAGES + 1;
    if (!is_empty(r, begin)) {
        begin++;
    }
    if (begin < end && !is_empty(r, end - 1)) {
        end--;
    }
    if (begin < end) {
        kvs__drop_memory(r->base + begin * KVS__HUGE_PAGE, (end - begin) * KVS__HUGE_PAGE);
    }
}

bool kvs__arena_give(kvs__arena *a, void *p, size_t bytes)
{
    size_t n = bytes / PAGE + (bytes % PAGE != 0);
    (void)pthread_mutex_lock(&a->lock);
    region *r = a->first;
    while (r &&
           ((unsigned char *)p < r->base || (unsigned char *)p >= r->base + r->n_pages * PAGE)) {
        r = r->next;
    }
    if (r) {
        size_t first = (size_t)((unsigned char *)p - r->base) / PAGE;
        set_pages(r, first, n, false);
        r->n_used -= n;
        a->used -= n;
        if (r->n_used == 0) {
            drop_region(a, r);
        } else {
            release(r, first, n);
        }
    }
    (void)pthread_mutex_unlock(&a->lock);
    return r != NULL;
}

void kvs__arena_bytes(kvs__arena *a, size_t *used, size_t *mapped)
{
    (void)pthread_mutex_lock(&a->lock);
    *used = a->used * PAGE;
    *mapped = a->mapped * PAGE;
    (void)pthread_mutex_unlock(&a->lock);
}

void kvs__arena_free(kvs__arena *a)
{
    while (a && a->first) {
        drop_region(a, a->first);
    }
    if (a) {
        (void)pthread_mutex_destroy(&a->lock);
    }
    free(a);
}
