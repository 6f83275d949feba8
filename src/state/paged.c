/* SPDX-License-Identifier: MIT */
/* paged.c: the layout whose segments are blocks of a pool (store.h I5).
 *
 * Blocks are shared by forks, views and prefix indexes. One that somebody else refers to is never
 * written: reserve puts a copy in its place. That can only be the block that holds position len - 1,
 * since those beyond are this store's alone.
 * A window keeps the blocks that hold one of the newest ring_cap tokens, ring_cap being what a ring
 * of the same window would hold; so any rewind that a ring allows is exact here too. The table of a
 * window is moved down when its oldest blocks go, so it has a fixed size. */
#include <string.h>

#include "state/pages_priv.h"

#define TABLE_MIN 16u

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t div_up(uint64_t n, uint64_t d)
{
    return n / d + (n % d > 0);
}

void kvs__paged_init(kvs__store *s, struct kvs_pages *pages, uint32_t block)
{
    s->pages = pages;
    s->block = block;
    s->shift = block & (block - 1) ? 0 : (uint32_t)__builtin_ctz(block);
    /* no slot left over at the end of a block, no centre of a group that goes on in the next */
    s->joins = block % KVS__TILE == 0 && (!s->fmt.center_bytes || block % KVS_CENTER_GROUP == 0);
    s->n_sink = div_up(s->sinks, block);
    s->front = s->n_sink;
}

/* Blocks in the table after those of the sinks. */
static uint64_t n_window(const kvs__store *s)
{
    return s->n_segs > s->n_sink ? s->n_segs - s->n_sink : 0;
}

kvs__seg **kvs__paged_find(const kvs__store *s, uint64_t b)
{
    if (b < s->n_sink) {
        return b < s->n_segs ? &s->table[b] : NULL;
    }
    return b >= s->front && b - s->front < n_window(s) ? &s->table[s->n_sink + b - s->front] : NULL;
}

/* Oldest position kept of a sliding store that holds len tokens. */
int64_t kvs__paged_oldest(const kvs__store *s, int64_t len)
{
    int64_t lo = s->window ? len - (int64_t)s->ring_cap : 0;
    return lo > 0 ? lo - lo % (int64_t)s->block : 0;
}

static void trim(kvs__store *s, uint32_t n_segs)
{
    while (s->n_segs > n_segs) {
        s->n_segs--;
        kvs__page_release(s->table[s->n_segs]);
        s->table[s->n_segs] = NULL;
    }
}

/* -- sizes */

uint64_t kvs__paged_blocks(const kvs__store *s, uint64_t n_tokens)
{
    uint64_t end = div_up(n_tokens, s->block);
    uint64_t lo = (uint64_t)kvs__paged_oldest(s, (int64_t)n_tokens) / s->block;
    uint64_t first = most(lo, s->n_sink);
    return least(s->n_sink, end) + (end > first ? end - first : 0);
}

/* Blocks that what a window keeps and an append of n tokens span, wherever they start in a block. */
static uint64_t window_blocks(const kvs__store *s, uint64_t n)
{
    return (s->ring_cap + n + 2 * (uint64_t)s->block - 2) / s->block;
}

uint64_t kvs__paged_peak(const kvs__store *s, uint64_t n_tokens)
{
    uint64_t end = div_up(n_tokens, s->block);
    uint64_t append = s->ring_cap - s->window + 1; /* max_block, rounded up */
    return s->window ? least(end, s->n_sink + window_blocks(s, append)) : end;
}

static uint64_t table_cap(const kvs__store *s, uint64_t n_blocks)
{
    if (n_blocks == 0) {
        return 0;
    }
    if (s->window) {
        /* of one import; several blocks may be reserved together */
        return most(n_blocks, s->n_sink + window_blocks(s, s->ring_cap + s->block));
    }
    uint64_t cap = TABLE_MIN;
    while (cap < n_blocks) {
        cap *= 2;
    }
    return cap;
}

static bool add_table(uint64_t cap, size_t *bytes)
{
    size_t table = 0;
    return cap <= SIZE_MAX && kvs__mul_size((size_t)cap, sizeof(kvs__seg *), &table) &&
           kvs__add_size(*bytes, table, bytes);
}

bool kvs__paged_planned(const kvs__store *s, uint64_t n_tokens, size_t *bytes)
{
    size_t one = 0;
    uint64_t n = kvs__paged_blocks(s, n_tokens);
    *bytes = 0;
    return n <= UINT32_MAX && kvs__page_size(&s->fmt, s->block, &one) &&
           kvs__mul_size((size_t)n, one, bytes) && add_table(table_cap(s, n), bytes);
}

size_t kvs__paged_bytes(const kvs__store *s)
{
    /* all blocks of a store have one size */
    return s->table_cap * sizeof(kvs__seg *) + (s->n_segs ? s->n_segs * s->table[0]->bytes : 0);
}

/* -- plan: what an append needs */

/* A list linked by next. */
static void give_up(kvs__seg *list)
{
    while (list) {
        kvs__seg *next = list->next;
        list->next = NULL;
        kvs__page_release(list);
        list = next;
    }
}

/* Blocks that follow `after`, NULL: the first. */
static kvs_status take(kvs__store *s, uint64_t n, const kvs__seg *after, kvs__seg **list,
                       kvs_err *err)
{
    *list = NULL;
    for (uint64_t i = 0; i < n; i++) {
        kvs__seg *page = NULL;
        kvs_status st = kvs__page_take(s->pages, &s->fmt, after, &page, err);
        if (st != KVS_OK) {
            give_up(*list);
            *list = NULL;
            return st;
        }
        page->next = *list;
        *list = page;
        after = page;
    }
    return KVS_OK;
}

kvs_status kvs__paged_table(kvs_ctx *ctx, kvs__store *s, uint64_t n_blocks, kvs_err *err)
{
    uint64_t cap = table_cap(s, n_blocks);
    if (n_blocks > UINT32_MAX / 2) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%llu blocks are too many",
                         (unsigned long long)n_blocks);
    }
    if (cap <= s->table_cap) {
        return KVS_OK;
    }
    kvs__seg **table = kvs__calloc(ctx, (size_t)cap, sizeof(kvs__seg *));
    if (!table) {
        return kvs__nomem(err, "state", (size_t)cap * sizeof(kvs__seg *));
    }
    if (s->n_segs > 0) {
        memcpy(table, s->table, s->n_segs * sizeof(kvs__seg *));
    }
    kvs__free(ctx, s->table, s->table_cap * sizeof(kvs__seg *));
    s->table = table;
    s->table_cap = cap;
    return KVS_OK;
}

/* What reserve does. */
typedef struct paged_plan {
    uint64_t first;    /* number of the first block after the sinks' that is needed */
    uint64_t add_sink; /* blocks to add */
    uint64_t add;
    bool anew;  /* those held after the sinks' make way: `at` lies past a gap */
    bool share; /* the block of `at` is another's too, and going to be written */
} paged_plan;

static paged_plan plan_reserve(const kvs__store *s, int64_t at, uint64_t n)
{
    paged_plan p = {0, 0, 0, false, false};
    uint64_t end = div_up((uint64_t)at + n, s->block);
    uint64_t have_sink = least(s->n_segs, s->n_sink);
    uint64_t want_sink = least(s->n_sink, end);
    uint64_t held_end = s->front + n_window(s);
    p.first = most(s->n_sink, (uint64_t)at / s->block);
    p.add_sink = want_sink > have_sink ? want_sink - have_sink : 0;
    bool empty = n_window(s) == 0;
    p.anew = empty || p.first < s->front || p.first > held_end;
    uint64_t from = p.anew ? p.first : held_end;
    p.add = end > from ? end - from : 0;
    p.anew = p.anew && p.add > 0;
    if ((uint64_t)at % s->block) {
        kvs__seg **at_block = kvs__paged_find(s, (uint64_t)at / s->block);
        p.share = at_block && kvs__page_shared(*at_block);
    }
    return p;
}

/* Tells blocks of the table from entry i on where they lie in their groups of positions; others that
 * refer to one have it in the same place. */
static void set_phases(const kvs__store *s, uint64_t i)
{
    for (; s->table && i < s->n_segs; i++) {
        uint64_t b = i < s->n_sink ? i : s->front + i - s->n_sink;
        uint32_t phase = (uint32_t)(b * s->block % KVS_CENTER_GROUP);
        if (s->table[i]->phase != phase) { /* not written where another thread may read */
            s->table[i]->phase = phase;
        }
    }
}

/* Puts a copy of a block that others refer to in its place. */
static void unshare(kvs__seg **at, kvs__seg *copy)
{
    kvs__page_copy(kvs__page_fmt(copy), copy, *at);
    copy->phase = (*at)->phase;
    kvs__page_release(*at);
    *at = copy;
}

static void install(kvs__store *s, kvs__seg *list, uint64_t n)
{
    const uint64_t had = s->n_segs;
    /* the list is in the order opposite to that of taking; numbers low first */
    for (uint64_t i = n; i-- > 0;) {
        kvs__seg *next = list->next;
        list->next = NULL;
        s->table[s->n_segs + i] = list;
        list = next;
    }
    s->n_segs += (uint32_t)n;
    set_phases(s, had);
}

kvs_status kvs__paged_reserve(kvs_ctx *ctx, kvs__store *s, int64_t at, uint64_t n, kvs_err *err)
{
    paged_plan p = plan_reserve(s, at, n);
    uint64_t kept = p.anew ? least(s->n_segs, s->n_sink) : s->n_segs;
    kvs__seg *list = NULL;
    kvs_status st = KVS_OK;
    if (p.add_sink > UINT32_MAX || p.add > UINT32_MAX) {
        return kvs__fail(err, KVS_E_RANGE, "state", "%llu tokens are too many",
                         (unsigned long long)n);
    }
    kvs__seg *copy = NULL;
    const kvs__seg *last = s->n_segs > 0 && !p.anew ? s->table[s->n_segs - 1] : NULL;
    if (p.share) { /* in the place of the last block, whose own last one is before it */
        st = take(s, 1, s->n_segs > 1 ? s->table[s->n_segs - 2] : NULL, &copy, err);
        last = copy;
    }
    st = st == KVS_OK ? take(s, p.add_sink + p.add, last, &list, err) : st;
    st = st == KVS_OK ? kvs__paged_table(ctx, s, kept + p.add_sink + p.add, err) : st;
    if (st != KVS_OK) {
        give_up(copy);
        give_up(list);
        return st;
    }
    if (p.share) {
        unshare(kvs__paged_find(s, (uint64_t)at / s->block), copy); /* the table may have moved */
    }
    if (p.anew) {
        trim(s, (uint32_t)kept);
        s->front = p.first;
    }
    install(s, list, p.add_sink + p.add);
    return KVS_OK;
}

/* -- apply */

void kvs__paged_give_back(kvs_ctx *ctx, kvs__store *s, uint32_t n_segs, uint64_t cap)
{
    trim(s, n_segs);
    if (cap < s->table_cap) {
        kvs__seg **table = cap > 0 ? kvs__calloc(ctx, (size_t)cap, sizeof(kvs__seg *)) : NULL;
        if (cap > 0 && !table) {
            return; /* the large one serves as well */
        }
        if (cap > 0) {
            memcpy(table, s->table, s->n_segs * sizeof(kvs__seg *));
        }
        kvs__free(ctx, s->table, s->table_cap * sizeof(kvs__seg *));
        s->table = table;
        s->table_cap = cap;
    }
}

/* Gives back the blocks after the sinks' that lie wholly below lo. */
static void release_front(kvs__store *s)
{
    uint64_t end = (uint64_t)s->lo / s->block;
    uint64_t n = end > s->front ? least(end - s->front, n_window(s)) : 0;
    if (n == 0) {
        return;
    }
    kvs__seg **at = s->table + s->n_sink;
    for (uint64_t i = 0; i < n; i++) {
        kvs__page_release(at[i]);
    }
    memmove(at, at + n, (size_t)(n_window(s) - n) * sizeof(kvs__seg *));
    s->n_segs -= (uint32_t)n;
    for (uint64_t i = 0; i < n; i++) {
        s->table[s->n_segs + i] = NULL;
    }
    s->front += n;
}

void kvs__paged_advance(kvs__store *s, uint64_t n)
{
    s->len += (int64_t)n;
    int64_t lo = kvs__paged_oldest(s, s->len);
    s->lo = lo > s->lo ? lo : s->lo;
    release_front(s);
}

void kvs__paged_jump(kvs__store *s, int64_t at)
{
    uint64_t end = s->n_sink * s->block;
    if (at > s->len && (uint64_t)s->len < end) { /* I8 */
        s->hole = s->block - (uint32_t)(end - least(end, (uint64_t)at));
    }
    s->lo = at;
    s->len = at;
    s->kept = 0;
    release_front(s);
}

/* Blocks of the table that hold positions below len. */
static uint64_t entries_below(const kvs__store *s, int64_t len)
{
    uint64_t end = div_up((uint64_t)len, s->block);
    if (end <= s->n_sink) {
        return least(end, s->n_segs);
    }
    return least(s->n_segs, s->n_sink + (end > s->front ? end - s->front : 0));
}

void kvs__paged_rewind(kvs__store *s, int64_t len)
{
    s->len = len;
    s->kept = len < s->kept ? len : s->kept;
    s->lo = len < s->lo ? len : s->lo;
    s->hole = len > (int64_t)s->sinks ? s->hole : 0; /* what comes next fills it */
    trim(s, (uint32_t)entries_below(s, len));
}

void kvs__paged_drop(kvs_ctx *ctx, kvs__store *s)
{
    trim(s, 0);
    kvs__free(ctx, s->table, s->table_cap * sizeof(kvs__seg *));
    s->table = NULL;
    s->table_cap = 0;
    s->front = s->n_sink;
    s->hole = 0;
    s->lo = 0;
    s->len = 0;
    s->kept = 0;
}

void kvs__paged_adopt(kvs__store *s, kvs__seg *const *page, uint64_t n, uint64_t first, int64_t lo,
                      int64_t len)
{
    trim(s, 0);
    for (uint64_t i = 0; s->table && i < n; i++) {
        kvs__page_share(page[i]);
        s->table[i] = page[i];
    }
    s->n_segs = (uint32_t)n;
    s->front = first;
    s->hole = len > (int64_t)s->sinks ? s->hole : 0;
    s->lo = lo;
    s->len = len;
    s->kept = 0;
    set_phases(s, 0);
}

kvs_status kvs__paged_fork(kvs_ctx *ctx, const kvs__store *src, int64_t n_tokens, kvs__store *dst,
                           kvs_err *err)
{
    *dst = *src;
    dst->table = NULL;
    dst->table_cap = 0;
    dst->n_segs = 0;
    dst->len = 0;
    dst->lo = 0;
    uint64_t n = entries_below(src, n_tokens);
    kvs_status st = kvs__paged_table(ctx, dst, n, err);
    if (st != KVS_OK) {
        dst->front = dst->n_sink;
        return st;
    }
    kvs__paged_adopt(dst, src->table, n, src->front, n_tokens < src->lo ? n_tokens : src->lo,
                     n_tokens);
    return KVS_OK;
}
