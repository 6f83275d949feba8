/* SPDX-License-Identifier: MIT */
/* rowops_rig.h: the parts of a row program's run: the model of rows and sets, what a token stores,
 * one read held against the naive model, and the replay of a row in a cache of its own. */
#ifndef KVS_TESTS_DIFF_ROWOPS_RIG_H
#define KVS_TESTS_DIFF_ROWOPS_RIG_H

#include <stdbool.h>

#include "diff/naive.h"
#include "diff/ops_heap.h"
#include "diff/ops_paged.h"
#include "diff/rec_drive.h"
#include "diff/rowops.h"

enum { MAX_LAYERS = 3, MAX_ROWS = 6, MAX_TOKENS = 420, MAX_VIEWS = 2, MAX_DIM = 32, MAX_HEADS = 2 };

typedef struct row {
    kvs_layer_spec spec[MAX_LAYERS];
    kvs_recurrent_spec rec[MAX_LAYERS]; /* of the recurrent ones; spec points to no row's */
    uint32_t tok[MAX_TOKENS];
    uint32_t n;
    uint32_t base;   /* committed, while a round is open */
    uint32_t drafts; /* of the round */
    uint32_t high;   /* greatest length since it was empty: what a ring may have dropped */
    bool back;       /* was cut shorter outside rounds */
} row;

typedef struct set {
    kvs_rows *rows;
    uint32_t n;
    row *row[MAX_ROWS];
    bool open;
    bool step;
} set;

typedef struct captured {
    kvs_view *view;
    uint32_t layer;
    row at;
} captured;

typedef struct run {
    const uint8_t *p;
    size_t n;
    heap heap;
    kvs_ctx *ctx;
    kvs_pages *pages;
    kvs_ctx *plain; /* replays and the model's codec calls */
    uint32_t n_layers;
    bool borrow[MAX_LAYERS];
    bool rec[MAX_LAYERS];
    kvs_recurrent_spec rec_shape[MAX_LAYERS];
    rec_weights rec_w[MAX_LAYERS];
    uint32_t heads[MAX_LAYERS];
    uint32_t k_dim[MAX_LAYERS];
    uint32_t v_dim[MAX_LAYERS];
    set set[2];
    captured view[MAX_VIEWS];
    model model;
    uint32_t next_token;
    uint64_t op;
    rowops_stats *stats;
    float k[MAX_TOKENS * MAX_HEADS * MAX_DIM];
    float v[MAX_TOKENS * MAX_HEADS * MAX_DIM];
} run;

#define CHECK(cond, what)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            return report(r, what, #cond);                                                         \
        }                                                                                          \
    } while (0)

/* The next byte of the program, 0 past its end. */
uint32_t byte(run *r);
/* Runs `call` (sets st), and once more if an allocation was refused. */
#define TWICE(call)                                                                                \
    do {                                                                                           \
        bool again_ = false;                                                                       \
        st = (call);                                                                               \
        if (after_failure(r, st, &again_)) {                                                       \
            return 1;                                                                              \
        }                                                                                          \
        if (again_) {                                                                              \
            st = (call);                                                                           \
        }                                                                                          \
    } while (0)

static inline uint32_t pick(run *r, uint32_t n)
{
    return byte(r) % n;
}

/* Lengths, bytes and the pool agree with the model. */
int verify(run *r);
/* Was it an allocation that was refused? Then nothing may have changed. */
int after_failure(run *r, kvs_status st, bool *again);
/* n tokens that no row had before into row b. */
int append_tokens(run *r, set *s, uint32_t b, uint32_t n);
/* May a row refuse to go back to length `to`? */
bool may_refuse(const row *m, const run *r, uint32_t to);
/* The model's part of it. */
void cut_row(row *m, uint32_t to);
/* Rounds (rowops_rounds.c). */
int op_begin(run *r, set *s);
int op_draft(run *r, set *s);
int op_share(run *r, set *s);
int op_abort(run *r, set *s);
int op_resolve(run *r, set *s);
/* Tokens of all rows as one rectangle (rowops_rect.c). */
int op_rect(run *r, set *s);
/* Prints; 1. */
int report(const run *r, const char *what, const char *detail);
/* Keys and values of n tokens for a layer, in r->k and r->v. */
kvs_kv token_kv(run *r, uint32_t layer, const uint32_t *tok, uint32_t n);
/* The layer whose tokens are read. */
uint32_t source_of(const run *r, uint32_t layer);
/* Largest block that all layers of a row take. */
uint32_t row_block(const run *r, const row *m);
/* One read of the newest tokens, compared with the model; refusals are judged. */
int read_and_compare(run *r, kvs_cache *c, kvs_view *view, const row *m, uint32_t layer,
                     uint32_t n_queries);
kvs_status new_cache(const run *r, kvs_ctx *ctx, const row *m, uint64_t reserve, kvs_cache **out);
/* n tokens behind those of m into a recurrent layer; now and then what it gives out is compared with
 * what a layer of its own gives. */
kvs_status append_rec(run *r, kvs_cache *c, const row *m, uint32_t layer, uint32_t n, int *bad);
/* The state of a recurrent layer is that of one which got the same tokens in other blocks. */
int same_state(run *r, const kvs_cache *c, const row *m, uint32_t layer);
/* The tokens of m in a cache of its own: the same bytes as in c. */
int replay(run *r, kvs_cache *c, const row *m);

#endif
