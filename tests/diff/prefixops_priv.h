/* SPDX-License-Identifier: MIT */
/* prefixops_priv.h: the world of a program: layers, pools, an index, texts. */
#ifndef KVS_TESTS_DIFF_PREFIXOPS_PRIV_H
#define KVS_TESTS_DIFF_PREFIXOPS_PRIV_H

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

/* 1, after printing. */
int prefixops_differs(const char *what, uint64_t a, uint64_t b);
/* The next of the program; 0 behind its end. */
uint32_t prefixops_byte(world *w);
uint32_t prefixops_below(world *w, uint32_t n);
/* What a lookup promised is attached, unless memory fails. */
int prefixops_refused_attach(kvs_status st);
/* Empty, with blocks of the pool that the index serves. */
kvs_cache *prefixops_new_cache(world *w);
void prefixops_open_world(world *w);
/* 0: nothing is left. */
int prefixops_close_world(world *w);
/* Of the first n tokens. */
uint64_t prefixops_seed_of(const text *t, uint32_t n);
/* Tokens [at, at + n) of a text in every layer, or none. */
kvs_status prefixops_compute(world *w, kvs_cache *c, const text *t, uint32_t at, uint32_t n);
/* n tokens of a text, computed in a pool of its own; no allocation fails. */
kvs_cache *prefixops_cold(world *w, const text *t, uint32_t n);
/* The bytes of [begin, end) of a layer of another cache, taken over; or the first of them. */
kvs_status prefixops_import(kvs_cache *c, const kvs_cache *from, uint32_t l, uint32_t begin,
                            uint32_t end);
/* 0: state of a cache that holds n tokens is that of a cold one. */
int prefixops_same_as_cold(world *w, kvs_cache *c, const text *t, uint32_t n);

#endif
