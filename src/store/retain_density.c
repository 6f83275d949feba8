/* SPDX-License-Identifier: MIT */
/* retain_density.c: evict what promises the fewest hits per byte and time.
 *
 * Time is counted in uses. Items of a class (kind, how often used, hint, the last gap, cost per byte)
 * are taken to be asked for again alike. For class c and age bucket b (quarter octaves) are
 * counted: at_risk, the items that reached the bucket without being used, and reused, those used in
 * it; ghosts count as well, so that what is learned of old ages does not depend on what was kept.
 * Both are smoothed over neighbouring ages: the best of many noisy horizons is mostly noise.
 * hazard = reused / at_risk, drawn where little was seen towards that of the class's family (the
 * same kind and uses), that towards the one of all, and this towards one that falls with age (so
 * that a beginner is an LRU). The worth of a cell is the
 * Gittins index: the best over horizons of hits expected per time held,
 *     max over e >= b of  sum(S_k h_k) / sum(S_k w_k (1 - h_k / 2)),  S_b = 1, S_k+1 = S_k (1 - h_k)
 * with the bucket's width w, times the class's cost per byte. Cells are ranked anew every PERIOD
 * uses; the victim is the oldest item of the lowest cell that has one, found in a bit map.
 *
 * Items move on to the next bucket in sweeps every SWEEP uses, at most once per bucket: O(log age)
 * in all. */
#include <stdlib.h>
#include <string.h>

#include "store/retain_priv.h"

#define CLASSES 64u
#define BUCKETS 64u
#define CELLS   (CLASSES * BUCKETS)
#define WORDS   ((CELLS + 63) / 64)
#define SWEEP   32u
#define PERIOD  1024u
/* Faded so that about the last 100 periods count. Mooncake trace: 0.95..1 are within 0.3 points. */
#define FADE      0.99
#define PRIOR     20.0 /* items seen until a class, or a family, is believed half */
#define ALL_PRIOR 10.0
/* Times that [1 2 1] / 4 is applied: +-1.4 buckets. Mooncake trace at 3k blocks: 0.3 points. */
#define SMOOTHINGS 4
/* Hazard of a bucket before anything is known; buckets grow, so it falls with age. 0.1 keeps a large
 * cache from trusting old ages: 0.5 points below LRU at 50k blocks of the Mooncake trace. */
#define FIRST_GUESS 0.01

typedef struct list {
    uint32_t head; /* oldest */
    uint32_t tail;
} list;

struct kvs__density {
    uint32_t class_key[CLASSES];
    double weight[CLASSES]; /* cost per byte */
    uint32_t n_classes;
    uint64_t next_sweep;
    uint64_t next_rank;
    double reused[CLASSES][BUCKETS];
    double at_risk[CLASSES][BUCKETS];
    list all[CLASSES][BUCKETS];
    list evict[KVS_RETAIN_PRIORITIES][CELLS];
    uint64_t used[KVS_RETAIN_PRIORITIES][WORDS]; /* bit per rank: the cell has an item */
    uint16_t rank[CELLS];                        /* of a cell */
    uint16_t by_rank[CELLS];
    double worth[CELLS];
};

/* Age at which bucket b begins: 64 * 2^(b / 4), 0 for the first. */
static uint64_t begin_of(uint32_t b)
{
    static const double quarter[4] = {1.0, 1.189207115002721, 1.4142135623730951,
                                      1.681792830507429};
    return b == 0 ? 0 : (uint64_t)(64.0 * quarter[b % 4] * (double)(UINT64_C(1) << (b / 4)));
}

static uint32_t bucket_of(uint64_t age)
{
    uint32_t b = 0;
    while (b + 1 < BUCKETS && begin_of(b + 1) <= age) {
        b++;
    }
    return b;
}

/* -- lists */

static kvs__link *link_of(kvs__item *item, bool evict)
{
    return evict ? &item->evict : &item->age;
}

static void append(kvs_retain *r, list *l, uint32_t i, bool evict)
{
    kvs__link *at = link_of(&r->item[i], evict);
    at->prev = l->tail;
    at->next = KVS__NONE;
    if (l->tail == KVS__NONE) {
        l->head = i;
    } else {
        link_of(&r->item[l->tail], evict)->next = i;
    }
    l->tail = i;
}

static void take_out(kvs_retain *r, list *l, uint32_t i, bool evict)
{
    const kvs__link *at = link_of(&r->item[i], evict);
    if (at->prev == KVS__NONE) {
        l->head = at->next;
    } else {
        link_of(&r->item[at->prev], evict)->next = at->next;
    }
    if (at->next == KVS__NONE) {
        l->tail = at->prev;
    } else {
        link_of(&r->item[at->next], evict)->prev = at->prev;
    }
}

static void set_used(struct kvs__density *d, uint32_t priority, uint32_t cell)
{
    uint32_t k = d->rank[cell];
    uint64_t bit = UINT64_C(1) << (k % 64);
    bool any = d->evict[priority][cell].head != KVS__NONE;
    d->used[priority][k / 64] = (d->used[priority][k / 64] & ~bit) | (any ? bit : 0);
}

static void link_cell(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    uint32_t cell = x->class * BUCKETS + x->cell;
    append(r, &r->density->evict[x->priority][cell], i, true);
    set_used(r->density, x->priority, cell);
}

void kvs__density_unlink(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    uint32_t cell = x->class * BUCKETS + x->cell;
    take_out(r, &r->density->evict[x->priority][cell], i, true);
    set_used(r->density, x->priority, cell);
}

void kvs__density_link(kvs_retain *r, uint32_t i)
{
    kvs__item *x = &r->item[i];
    x->cell = x->bucket;
    link_cell(r, i);
}

/* -- ranking */

/* Kind and uses of a class (key_of). */
static uint32_t family_of(uint32_t key)
{
    return (key - 1) / (16 * 128);
}

static int by_worth(const void *a, const void *b)
{
    const double *x = *(const double *const *)a;
    const double *y = *(const double *const *)b;
    if (*x < *y || *x > *y) {
        return *x < *y ? -1 : 1;
    }
    return x < y ? -1 : 1; /* cells in order: the same everywhere */
}

/* What was counted of one class or of several, by age. */
typedef struct tally {
    double reused[BUCKETS];
    double at_risk[BUCKETS];
} tally;

static void smooth(double *v)
{
    for (int n = 0; n < SMOOTHINGS; n++) {
        double before = v[0];
        for (uint32_t b = 0; b < BUCKETS; b++) {
            double here = v[b];
            double after = b + 1 < BUCKETS ? v[b + 1] : here;
            v[b] = 0.25 * before + 0.5 * here + 0.25 * after;
            before = here;
        }
    }
}

static void count_class(tally *t, const struct kvs__density *d, uint32_t c)
{
    for (uint32_t b = 0; b < BUCKETS; b++) {
        t->reused[b] += d->reused[c][b];
        t->at_risk[b] += d->at_risk[c][b];
    }
}

/* hazard: of a wider group on entry, of the tally's on return. */
static void draw_hazard(tally *t, double *hazard)
{
    smooth(t->reused);
    smooth(t->at_risk);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        hazard[b] = (t->reused[b] + PRIOR * hazard[b]) / (t->at_risk[b] + PRIOR);
    }
}

static void value_class(struct kvs__density *d, uint32_t c, const double *family)
{
    tally t = {{0}, {0}};
    double hazard[BUCKETS];
    memcpy(hazard, family, sizeof hazard);
    count_class(&t, d, c);
    draw_hazard(&t, hazard);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        hazard[b] = hazard[b] < 0.95 ? hazard[b] : 0.95;
    }
    for (uint32_t b = 0; b < BUCKETS; b++) {
        double alive = 1.0;
        double hits = 0.0;
        double time = 0.0;
        double best = 0.0;
        for (uint32_t k = b; k + 1 < BUCKETS && alive > 1e-6; k++) {
            double width = (double)(begin_of(k + 1) - begin_of(k));
            hits += alive * hazard[k];
            time += alive * width * (1.0 - hazard[k] * 0.5);
            alive *= 1.0 - hazard[k];
            best = hits > best * time ? hits / time : best;
        }
        d->worth[c * BUCKETS + b] = best * d->weight[c];
    }
}

/* The family of class `first`, if that is the first of it. */
static void value_family(struct kvs__density *d, uint32_t first, const double *common)
{
    tally t = {{0}, {0}};
    double hazard[BUCKETS];
    uint32_t family = family_of(d->class_key[first]);
    for (uint32_t c = 0; c < first; c++) {
        if (family_of(d->class_key[c]) == family) {
            return;
        }
    }
    for (uint32_t c = first; c < d->n_classes; c++) {
        if (family_of(d->class_key[c]) == family) {
            count_class(&t, d, c);
        }
    }
    memcpy(hazard, common, sizeof hazard);
    draw_hazard(&t, hazard);
    for (uint32_t c = first; c < d->n_classes; c++) {
        if (family_of(d->class_key[c]) == family) {
            value_class(d, c, hazard);
        }
    }
}

static void value_all(struct kvs__density *d)
{
    tally all = {{0}, {0}};
    double common[BUCKETS];
    for (uint32_t c = 0; c < d->n_classes; c++) {
        count_class(&all, d, c);
    }
    smooth(all.reused);
    smooth(all.at_risk);
    for (uint32_t b = 0; b < BUCKETS; b++) {
        common[b] = (all.reused[b] + ALL_PRIOR * FIRST_GUESS) / (all.at_risk[b] + ALL_PRIOR);
    }
    for (uint32_t c = 0; c < d->n_classes; c++) {
        value_family(d, c, common);
    }
    if (d->n_classes < CLASSES) { /* nothing is known of the others: all like the first of them */
        value_class(d, d->n_classes, common);
    }
    for (uint32_t c = d->n_classes + 1; c < CLASSES; c++) {
        memcpy(d->worth + c * BUCKETS, d->worth + d->n_classes * BUCKETS,
               BUCKETS * sizeof *d->worth);
    }
}

static void rank(struct kvs__density *d)
{
    const double *order[CELLS];
    value_all(d);
    for (uint32_t i = 0; i < CELLS; i++) {
        order[i] = &d->worth[i];
    }
    qsort(order, CELLS, sizeof order[0], by_worth);
    memset(d->used, 0, sizeof d->used);
    for (uint32_t k = 0; k < CELLS; k++) {
        uint32_t cell = (uint32_t)(order[k] - d->worth);
        d->rank[cell] = (uint16_t)k;
        d->by_rank[k] = (uint16_t)cell;
        for (uint32_t p = 0; p < KVS_RETAIN_PRIORITIES; p++) {
            set_used(d, p, cell);
        }
    }
}

static void fade(struct kvs__density *d)
{
    for (uint32_t i = 0; i < CELLS; i++) {
        d->reused[i / BUCKETS][i % BUCKETS] *= FADE;
        d->at_risk[i / BUCKETS][i % BUCKETS] *= FADE;
    }
}

/* -- ages */

static void move_on(kvs_retain *r, uint32_t c, uint32_t b)
{
    struct kvs__density *d = r->density;
    uint64_t next = begin_of(b + 1);
    for (uint32_t i = d->all[c][b].head; i != KVS__NONE; i = d->all[c][b].head) {
        kvs__item *x = &r->item[i];
        if (r->tick - x->last_use < next) {
            return;
        }
        take_out(r, &d->all[c][b], i, false);
        x->bucket = (uint8_t)(b + 1);
        append(r, &d->all[c][b + 1], i, false);
        d->at_risk[c][b + 1] += 1.0;
        if (x->state == KVS__LIVE && x->pins == 0) {
            kvs__density_unlink(r, i);
            x->cell = x->bucket;
            link_cell(r, i);
        }
    }
}

static void keep_time(kvs_retain *r)
{
    struct kvs__density *d = r->density;
    if (r->tick >= d->next_sweep) {
        for (uint32_t c = 0; c < d->n_classes; c++) {
            for (uint32_t b = 0; b + 1 < BUCKETS; b++) {
                move_on(r, c, b);
            }
        }
        d->next_sweep = r->tick + SWEEP;
    }
    if (r->tick >= d->next_rank) {
        rank(d);
        fade(d);
        d->next_rank = r->tick + PERIOD;
    }
}

/* -- classes */

static uint32_t ratio_of(const kvs__item *x)
{
    double v = (double)x->cost / (double)(x->bytes > 0 ? x->bytes : 1);
    uint32_t level = 64;
    while (v >= 2.0 && level < 127) {
        v *= 0.5;
        level++;
    }
    while (v < 1.0 && level > 0) {
        v *= 2.0;
        level--;
    }
    return level;
}

/* First uses are told apart by their hint. Later the last gap says more: up to 2^12 uses, 2^14, more
 * (Mooncake trace); of the hint there is left whether it is above 3. */
static uint32_t key_of(const kvs__item *x)
{
    uint32_t uses = x->uses < 4 ? x->uses : 4;
    uint32_t more = x->hint;
    if (uses > 1) {
        more = (x->gap > 24 ? 1u : 0u) + (x->gap > 32 ? 1u : 0u) + (x->hint > 3 ? 3u : 0u);
    }
    if (x->uses > 24) {
        uses = 5; /* what everybody uses would spoil what is learned of the others */
        more = 0;
    }
    return ((((uint32_t)x->kind * 8 + uses) * 16 + more) * 128 + ratio_of(x)) + 1;
}

static uint8_t class_of(struct kvs__density *d, const kvs__item *x)
{
    uint32_t key = key_of(x);
    for (uint32_t c = 0; c < d->n_classes; c++) {
        if (d->class_key[c] == key) {
            return (uint8_t)c;
        }
    }
    uint32_t c = d->n_classes;
    if (c == CLASSES) { /* more kinds than there is room for share classes */
        return (uint8_t)(key % CLASSES);
    }
    double weight = 1.0;
    for (uint32_t level = ratio_of(x); level != 64; level += level < 64 ? 1u : UINT32_MAX) {
        weight *= level < 64 ? 0.5 : 2.0;
    }
    d->class_key[c] = key;
    d->weight[c] = weight;
    d->n_classes++; /* it has the rank of an unknown one until then */
    d->next_rank = d->next_rank < d->next_sweep + SWEEP ? d->next_rank : d->next_sweep + SWEEP;
    return (uint8_t)c;
}

void kvs__density_use(kvs_retain *r, uint32_t i, bool known)
{
    struct kvs__density *d = r->density;
    kvs__item *x = &r->item[i];
    x->gap = 0;
    if (known) {
        uint32_t b = bucket_of(r->tick - x->last_use);
        x->gap = (uint8_t)(b + 1);
        for (uint32_t k = x->bucket + 1u; k <= b; k++) {
            d->at_risk[x->class][k] += 1.0;
        }
        b = b > x->bucket ? b : x->bucket;
        d->reused[x->class][b] += 1.0;
        take_out(r, &d->all[x->class][x->bucket], i, false);
    }
    x->class = class_of(d, x);
    x->bucket = 0;
    x->last_use = r->tick;
    append(r, &d->all[x->class][0], i, false);
    d->at_risk[x->class][0] += 1.0;
    keep_time(r);
}

void kvs__density_renew(kvs_retain *r, uint32_t i)
{
    struct kvs__density *d = r->density;
    kvs__item *x = &r->item[i];
    for (uint32_t b = 1; b <= x->bucket; b++) { /* it will reach them again */
        double *n = &d->at_risk[x->class][b];
        *n = *n > 1.0 ? *n - 1.0 : 0.0;
    }
    take_out(r, &d->all[x->class][x->bucket], i, false);
    x->bucket = 0;
    x->last_use = r->tick;
    append(r, &d->all[x->class][0], i, false);
    keep_time(r);
}

void kvs__density_forget(kvs_retain *r, uint32_t i)
{
    take_out(r, &r->density->all[r->item[i].class][r->item[i].bucket], i, false);
}

uint32_t kvs__density_pick(kvs_retain *r, uint32_t priority)
{
    const struct kvs__density *d = r->density;
    for (uint32_t w = 0; w < WORDS; w++) {
        uint64_t bits = d->used[priority][w];
        if (bits) {
            uint32_t k = w * 64 + (uint32_t)__builtin_ctzll(bits);
            return d->evict[priority][d->by_rank[k]].head;
        }
    }
    return KVS__NONE;
}

/* -- life cycle */

size_t kvs__density_bytes(void)
{
    return sizeof(struct kvs__density);
}

kvs_status kvs__density_new(kvs_ctx *ctx, struct kvs__density **out, kvs_err *err)
{
    struct kvs__density *d = kvs__calloc(ctx, 1, sizeof *d);
    *out = d;
    if (!d) {
        return kvs__nomem(err, "store", sizeof *d);
    }
    memset(d->all, 0xff, sizeof d->all); /* KVS__NONE */
    memset(d->evict, 0xff, sizeof d->evict);
    for (uint32_t c = 0; c < CLASSES; c++) {
        d->weight[c] = 1.0;
    }
    rank(d);
    d->next_sweep = SWEEP;
    d->next_rank = PERIOD;
    return KVS_OK;
}

void kvs__density_free(kvs_ctx *ctx, struct kvs__density *d)
{
    kvs__free(ctx, d, sizeof *d);
}
