/* SPDX-License-Identifier: MIT */
/* sessions_world.h: what random programs over sessions (test_sessions.c) run in: a model, a plan, seats
 * with sessions, texts to come back to, and the sessions that never did anything else. */
#ifndef KVS_TESTS_DIFF_SESSIONS_WORLD_H
#define KVS_TESTS_DIFF_SESSIONS_WORLD_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvstate/engine.h"
#include "support/fail_alloc.h"
#include "support/model_build.h"

#define MAX_N   200
#define N_SEATS 3
#define N_VOCAB 97
#define N_HEARD 10
#define N_KNOWN 64

extern uint64_t seed_now;
extern bool verbose;

#define DIE(...)                                                                                   \
    do {                                                                                           \
        (void)printf("seed %" PRIu64 ": ", seed_now);                                              \
        (void)printf(__VA_ARGS__);                                                                 \
        (void)printf("\nagain with: test_sessions --first %" PRIu64 " --programs 1\n", seed_now);  \
        exit(1);                                                                                   \
    } while (0)

#define TELL(...)                                                                                  \
    do {                                                                                           \
        if (verbose) {                                                                             \
            (void)printf(__VA_ARGS__);                                                             \
        }                                                                                          \
    } while (0)

typedef struct text {
    int32_t t[MAX_N];
    size_t n;
} text;

typedef struct known { /* logits after a text */
    text of;
    float logits[N_VOCAB];
} known;

typedef struct seat {
    kvs_session *s;
    kvs_spec *spec;
    kvs_sampler *sampler; /* NULL: the greatest logit */
    text held;
    /* a round under way */
    text told;
    uint32_t end_at; /* told so many: the round ends */
    int end_how;
} seat;

typedef struct world {
    fail_alloc heap;
    kvs_ctx *ctx;
    kvs_model *model;
    kvs_plan *plan;
    kvs_batch *batch;
    kvs_prefix_cache *shared;
    seat seats[N_SEATS];
    text heard[N_HEARD]; /* texts of the past, to come back to */
    /* what it is made of */
    tiny t;
    kvs_plan_opts plan_opts;
    uint32_t threads, tiers_off, block, n_ctx;
    bool has_batch, has_shared, has_store, has_dir;
    kvs_sampler_opts sampling;
    uint32_t draft_kind; /* 0 n-grams, 1 the model itself, 2 what will come, with errors */
    uint64_t note_bytes, max_bytes;
    char base[64], file[128], dir[128];
    int stop_in; /* calls of progress until it stops; 0: never */
    /* the reference */
    kvs_ctx *plain_ctx;
    kvs_model *plain_model;
    kvs_plan *plain_plan;
    kvs_sampler *plain_sampler;
    known known[N_KNOWN];
    uint32_t next_known;
    struct counts {
        uint64_t programs, ops, checks, syncs, reused, disk, lent, rounds, accepted, failures,
            refused, stops, restarts;
    } n;
} world;

/* Random numbers of a program; its first is the seed's. */
void seed(uint64_t x);
uint32_t below(uint32_t n);
bool chance(uint32_t one_in);

/* Ends the test unless st is KVS_OK. */
void must(kvs_status st, const kvs_err *err, const char *what);
/* What plain decoding says after n tokens. */
int32_t plain_pick(world *w, const int32_t *t, size_t n);
void check_logits(world *w, const float *got, const int32_t *t, size_t n, const char *what);
/* must_have: logits are due. */
void check_seat(world *w, const seat *p, bool must_have, const char *what);

/* A session and what it draws and guesses with; after a failure free_seat frees what there is. */
kvs_status make_seat(world *w, seat *p, kvs_err *err);
void free_seat(seat *p);
/* False: the plan does not fit the model. */
bool open_world(world *w);
/* Nothing may leak. */
void close_world(world *w);
/* A world of its own for a program, in an empty directory; only w->n is kept. */
void begin_world(world *w);
void end_world(world *w);

void remember(world *w, const text *t);
void add_random(text *t, size_t n);
/* A text to go to: part of one that was heard or is held, and something new. */
void choose_text(world *w, text *t);

#endif
