/* SPDX-License-Identifier: MIT */
/* ops_rig.h: the run of an op program, and what ops.c and ops_import.c share of it. */
#ifndef KVS_TESTS_DIFF_OPS_RIG_H
#define KVS_TESTS_DIFF_OPS_RIG_H

#include <stdbool.h>

#include "diff/naive.h"
#include "diff/ops.h"
#include "diff/ops_heap.h"
#include "diff/ops_paged.h"
#include "diff/ops_planes.h"

#define MAX_LAYERS 3
#define MAX_VIEWS  2
#define MAX_BLOCK  320

typedef struct run {
    const uint8_t *p;
    size_t n;
    heap heap;
    kvs_ctx *ctx;   /* the cache's, with the failing heap */
    kvs_ctx *plain; /* the model's codec calls */
    kvs_pages *pages;
    bool limited; /* the pool has a limit, so a call may be refused */
    kvs_cache *cache;
    kvs_cache *fork; /* of one paged layer */
    model at_fork;
    uint32_t n_layers;
    kvs_layer_spec spec[MAX_LAYERS];
    model model[MAX_LAYERS];
    kvs_view *view[MAX_VIEWS];
    model at_view[MAX_VIEWS]; /* the layer as it was */
    uint64_t rng;
    uint64_t op;
    ops_stats *stats;
    float *k;
    float *v;
    float *q;
    float *got;
    float *want;
    float *center; /* of an import */
} run;

#define CHECK(cond, what)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return report(r, what, #cond);                                                         \
        }                                                                                          \
    } while (0)

static inline bool latent(const kvs_layer_spec *s)
{
    return s->kind == KVS_LAYER_LATENT;
}

/* The next byte of the program, below n. */
uint32_t pick(run *r, uint32_t n);
/* Prints; 1. */
int report(const run *r, const char *what, const char *detail);
/* n drawn floats; odd: infinities, NaN and the like among them. */
void fill(run *r, float *x, size_t n, bool odd);
/* Largest block that the layer takes. */
uint32_t max_block(const kvs_layer_spec *s);
/* Was the status right, given that an allocation may have been refused? */
bool failed_as_told(run *r, kvs_status st);
void draw_read(run *r, const model *m, kvs_attend *d, float *sinks);
/* Bit for bit. */
int compare(run *r, const float *got, const float *want, size_t n, const char *what);

/* Encoded rows at the end, or (ring) past a gap. */
int op_import(run *r, uint32_t layer);
int op_step(run *r, uint32_t layer);
/* Export of the live tokens, import into a second cache, and the same bytes out of that one. */
int op_copy(run *r, uint32_t layer);

#endif
