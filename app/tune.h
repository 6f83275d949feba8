/* SPDX-License-Identifier: MIT */
/* tune.h: the parts of `kvstate tune`; cmd_tune.c says how they work together.
 *
 * A part is the keys or the values of one layer. Codecs are counted: bits within group, as
 * tune_codec_name writes them. */
#ifndef KVS_APP_TUNE_H
#define KVS_APP_TUNE_H

#include "quality.h"

enum { SIDES = 2, N_BITS = 6, N_GROUPS = 3, N_CODECS = N_BITS * N_GROUPS };
enum { MAX_LAYERS = 512, MAX_PARTS = MAX_LAYERS * SIDES };
enum { Q3 = 1, Q4 = 2 }; /* codecs of that many bits in groups of 64 */

typedef struct part {
    double kl[N_CODECS];    /* divergence it causes alone; HUGE_VAL: the geometry can't hold it */
    double cost[N_CODECS];  /* the same as a weighing sees it */
    double bytes[N_CODECS]; /* of the tokens held */
} part;

/* How the measured divergences are believed. */
typedef struct weighing {
    double trust; /* 0: all layers of a side are alike, 1: each is what was measured of it */
    double keys;  /* weight of the keys' divergence beside the values' */
} weighing;

typedef struct choice {
    double budget; /* bytes */
    weighing by;
    double bytes;
    uint8_t codec[MAX_PARTS];
    double kl;       /* measured, on the windows to choose by */
    double kl_bound; /* two standard errors above */
} choice;

/* A plan and what the windows to check with say of it. */
typedef struct checked {
    const char *name; /* "tuned" or what --kv takes */
    score score;
    double kl_99;
    double bytes;
    double kl_chosen_by; /* on the windows to choose by; -1: not measured there */
} checked;
enum { MAX_CHECKED = 4 };

typedef struct tune {
    quality q;
    kvs_plan *base;
    uint32_t n_layers;
    uint32_t n_parts; /* layer * SIDES + side */
    part *parts;
    /* all keys, or all values, in one codec; 0: not measured */
    double whole[SIDES][N_CODECS];
    double values;       /* stored ones, of the tokens held */
    double budget;       /* bytes; 0: as few as max_kl allows */
    double max_kl;       /* or: divergence allowed */
    const char *as_plan; /* max_kl is that of this plan; or NULL */
    double q4_kl;        /* of uniform q4, on the windows to choose by */
    uint32_t n_choose;   /* windows to choose by, the first ones */
    uint32_t n_check;    /* windows to check with, the last ones */
    uint32_t n_done, n_jobs;
    const char *doing;
    char *text; /* a plan in work */
    size_t text_size;
    choice best;
    score dense;
    checked checks[MAX_CHECKED]; /* the tuned plan first, then q4 */
    size_t n_checks;
} tune;

void tune_codec_name(const tune *t, int codec, int side, char dst[16]);
int tune_bits(int codec);
part *tune_part(const tune *t, uint32_t layer, int side);
/* Bytes that the plan takes for the tokens held. */
double tune_plan_bytes(const tune *t, const kvs_plan *plan);
/* Lines of a plan, each ended by `end`, after `start`, to t->text. */
void tune_plan_text(const tune *t, const choice *c, const char *start, char end);

/* Divergences of the plans from dense on the windows to choose by, or those to check with. scores:
 * [n] zeroed, to be freed by scores_free; base: dense's own, or NULL. */
int tune_measure(tune *t, kvs_plan *const *plans, size_t n, bool check, score *scores, score *base);
void tune_plans_free(kvs_plan **plans, size_t n);
/* n more of n_jobs are done. */
void tune_progress(tune *t, size_t n);

/* What each part costs: from the file of --sensitivity where it is there, else measured (and
 * written there). */
int tune_sensitivity(tune *t);
int tune_sensitivity_read(tune *t, bool *found);
int tune_sensitivity_write(const tune *t);

/* The least predicted divergence within c->budget, by c->by. */
int tune_choose(tune *t, choice *c);
/* Sum of the divergences of the parts. */
double tune_predict(const tune *t, const choice *c);
double tune_least_bytes(const tune *t);

/* t->best: the measured best of several choices. */
int tune_search(tune *t);

int tune_report(tune *t);

#endif
